"""Embeddings through the official Python client of OpenAI's API, and byte by byte: the bits of the engine alone, whatever they
were computed beside, on any number of workers and replicas, and over the death of a worker."""
import base64, concurrent.futures, os, signal, sys, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import numpy as np
from cluster import GEMMA, MODEL, Cluster, is_idle
from logits import embedding
from raw_http import Connection, post

try:
    import openai
except ImportError:
    print("skipped: no package openai")
    sys.exit(77)

NAME, PATH, WIDTH = os.path.basename(MODEL), "/v1/embeddings", 576
TEXTS = ["Once upon a time", "The king's daughter walked in the garden.", "int main(void) { return 0; }", "Il pleut. \u2603"]
LONG_TEXT = " ".join(f"Sentence {i} is about the number {i * i}." for i in range(80))
MEDIUM = LONG_TEXT[:560]


def tokens_of(c, text):
    return post(c.http, "/tokenize", {"content": text, "special": False}).json()["tokens"]


def numbers(c, **body):
    """The embeddings of a request, as the reply has them."""
    r = post(c.http, PATH, body, timeout=900)
    assert r.status == 200, r.body
    return [np.array(x["embedding"], np.float32) for x in r.json()["data"]]


def idle(c):
    c.wait(is_idle, 20)


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(workers=2, threads=1, kv_tokens=8192, kv="f16")
        cls.client = openai.OpenAI(base_url=cls.c.http + "/v1", api_key="none", max_retries=0, timeout=300)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.c.stop()

    def embed(self, **kw):
        return self.client.embeddings.create(**dict(dict(model=NAME), **kw))

    def test_texts(self):
        ids = [tokens_of(self.c, t) for t in TEXTS]
        r = self.embed(input=TEXTS)  # in base64, and decoded by the client
        plain = self.embed(input=TEXTS, encoding_format="float")
        self.assertEqual((r.object, r.model, [x.index for x in r.data]), ("list", NAME, [0, 1, 2, 3]))
        n = sum(map(len, ids))
        self.assertEqual((r.usage.prompt_tokens, r.usage.total_tokens), (n, n))
        for i, (x, y) in enumerate(zip(r.data, plain.data)):
            got = np.array(x.embedding, np.float32)
            self.assertEqual((x.object, len(got)), ("embedding", WIDTH))
            self.assertEqual(got.tobytes(), np.array(y.embedding, np.float32).tobytes())
            self.assertAlmostEqual(float(np.linalg.norm(got.astype(np.float64))), 1, 6)
            self.assertEqual(got.tobytes(), embedding(MODEL, ids[i], kv="f16").tobytes(), TEXTS[i])
        self.assertEqual(len({np.array(x.embedding).tobytes() for x in r.data}), len(TEXTS))

    def test_tokens(self):
        """A text, its tokens, a list of either: the same."""
        ids = tokens_of(self.c, TEXTS[1])
        want = self.embed(input=TEXTS[1]).data[0].embedding
        for same in ([TEXTS[1]], ids, [ids]):
            r = self.embed(input=same)
            self.assertEqual((len(r.data), r.data[0].embedding, r.usage.prompt_tokens), (1, want, len(ids)))
        # Names of control tokens are text.
        self.assertGreater(len(tokens_of(self.c, "<|im_end|>")), 1)
        self.assertEqual(self.embed(input="<|im_end|>").usage.prompt_tokens, len(tokens_of(self.c, "<|im_end|>")))

    def test_many(self):
        """More texts than run at once, in company; each has the bits that it has alone."""
        texts = [f"Item {i} " + "costs much. " * (i % 9) for i in range(100)]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            chat = pool.submit(lambda: self.client.completions.create(model=NAME, prompt=LONG_TEXT, max_tokens=40, temperature=0,
                                                                      extra_body={"ignore_eos": True}))
            other = pool.submit(lambda: self.embed(input=LONG_TEXT))
            r = self.embed(input=texts)
            alone = other.result().data[0].embedding
            self.assertEqual(chat.result().usage.completion_tokens, 40)
        self.assertEqual([x.index for x in r.data], list(range(100)))
        for i in (0, 17, 50, 99):
            self.assertEqual(r.data[i].embedding, self.embed(input=texts[i]).data[0].embedding)
        self.assertEqual(alone, self.embed(input=LONG_TEXT).data[0].embedding)
        want = embedding(MODEL, tokens_of(self.c, LONG_TEXT), kv="f16", chunk=64)
        self.assertEqual(np.array(alone, np.float32).tobytes(), want.tobytes())
        idle(self.c)

    def test_nothing_is_cached(self):
        """Each row is computed, and none is left for others."""
        text = LONG_TEXT.replace("Sentence", "Line")
        before = self.c.status()["replicas"][0]["workers"][0]["rows"]
        for _ in range(2):
            self.embed(input=text)
        n = 2 * len(tokens_of(self.c, text))
        self.c.wait(lambda s: s["replicas"][0]["workers"][0]["rows"] - before >= n, 5)
        r = self.client.completions.create(model=NAME, prompt=text[:800], max_tokens=1, extra_body={"special": False})
        self.assertEqual(r.usage.prompt_tokens_details.cached_tokens, 0)

    def test_errors(self):
        for kw, kind, code, param in (
                (dict(model="other"), openai.NotFoundError, "model_not_found", "model"),
                (dict(input=""), openai.BadRequestError, None, "input"),
                (dict(input=[]), openai.BadRequestError, None, "input"),
                (dict(input=["a", "7" * 9000]), openai.BadRequestError, "context_length_exceeded", "input"),
                (dict(input=[1, 1 << 30]), openai.BadRequestError, None, "input"),
                (dict(dimensions=64), openai.BadRequestError, None, "dimensions"),
                (dict(encoding_format="int8"), openai.BadRequestError, None, "encoding_format"),
                (dict(extra_body={"temperature": 1}), openai.BadRequestError, "unknown_parameter", "temperature")):
            with self.assertRaises(kind) as e:
                self.embed(**dict(dict(input="a"), **kw))
            self.assertEqual((e.exception.code, e.exception.param), (code, param), kw)
        with self.assertRaises(openai.BadRequestError) as e:
            self.embed(input=["a", "7" * 9000])
        self.assertIn("item 1 of 'input'", str(e.exception))
        idle(self.c)

    def test_bytes(self):
        """One document, whole, by its length or in chunks; base64 is of 32-bit numbers, little-endian."""
        r = post(self.c.http, PATH, {"input": TEXTS[:2], "encoding_format": "base64"})
        self.assertEqual((r.status, r.headers["content-type"]), (200, "application/json"))
        body = r.json()
        self.assertEqual((list(body), body["model"]), (["object", "data", "model", "usage"], NAME))
        for x, y in zip(body["data"], numbers(self.c, input=TEXTS[:2])):
            self.assertEqual(base64.b64decode(x["embedding"], validate=True), y.astype("<f4").tobytes())
        self.assertEqual(post(self.c.http, PATH, {"input": [[1, 2]] * 2049}).error()["param"], "input")
        with Connection(self.c.http) as k:
            k.send("GET", PATH)
            self.assertEqual(k.reply().status, 405)

    def test_disconnect(self):
        """Who leaves has nothing computed any more."""
        with Connection(self.c.http) as k:
            k.send("POST", PATH, {"input": [LONG_TEXT] * 60})
            self.c.wait(lambda s: s["requests"]["running"] > 0, 10)
        idle(self.c)

    def test_deadline(self):
        r = post(self.c.http, PATH, {"input": [LONG_TEXT] * 60}, headers={"X-Deadline-Ms": "300"})
        self.assertEqual((r.status, r.error()["type"]), (408, "timeout_error"))
        idle(self.c)


class OtherChains(unittest.TestCase):
    def test_slices_and_replicas(self):
        """The same bits from chains of one, two and three workers, and from either of two replicas, where there are not
        enough pages for all at once; Gemma's too. No embedding undoes another's work."""
        for model, shapes in ((MODEL, (dict(workers=1), dict(workers=3), dict(workers=1, replicas=2))), (GEMMA, (dict(workers=2),))):
            for shape in shapes:
                with Cluster(model=model, threads=1, kv_tokens=256, kv="q8_0", chunk=48, **shape) as c:
                    texts = [MEDIUM, MEDIUM[7:], *TEXTS]
                    want = [embedding(model, tokens_of(c, t), kv="q8_0") for t in texts]
                    if model == GEMMA:  # which begins with a token of its own
                        want = [embedding(model, [2, *tokens_of(c, t)], kv="q8_0") for t in texts]
                    with concurrent.futures.ThreadPoolExecutor(4) as pool:
                        got = list(pool.map(lambda t: numbers(c, input=t)[0], texts * 2))
                    for i, x in enumerate(got):
                        self.assertEqual(x.tobytes(), want[i % len(texts)].tobytes(), (model, shape, i))
                    self.assertEqual(sum(r["preemptions"] for r in c.status()["replicas"]), 0, (model, shape))
                    m = c.metrics()
                    self.assertEqual(m["flotilla_embeddings_total"], 2 * len(texts))
                    n = sum(post(c.http, PATH, {"input": t}).json()["usage"]["prompt_tokens"] for t in texts)
                    self.assertEqual(m["flotilla_embedding_tokens_total"], 2 * n)


class Lost(unittest.TestCase):
    def test_a_worker_dies(self):
        """Killed in the middle of a prompt: it is computed again when the worker is back, to the same bits."""
        with Cluster(workers=2, threads=1, kv_tokens=8192, kv="f16", chunk=32, no_restart=False) as c, \
                concurrent.futures.ThreadPoolExecutor(1) as pool:
            want = embedding(MODEL, tokens_of(c, LONG_TEXT), kv="f16")
            for which in (0, 1):
                generation = c.status()["replicas"][0]["epoch"]
                got = pool.submit(lambda: numbers(c, input=LONG_TEXT)[0])
                c.wait(lambda s: s["requests"]["running"] == 1 and s["replicas"][0]["workers"][which]["rows"] > 64, 20)
                os.kill(c.workers()[which]["pid"], signal.SIGKILL)
                self.assertEqual(got.result(timeout=120).tobytes(), want.tobytes())
                self.assertGreater(c.status()["replicas"][0]["epoch"], generation)


if __name__ == "__main__":
    unittest.main(verbosity=2)
