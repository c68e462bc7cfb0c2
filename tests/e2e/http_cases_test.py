"""Cases from public bug reports of LLM servers over HTTP, on two and three workers: what gateway_test has not, or has on one worker
only. Letters in comments are of the phases of one case."""
import concurrent.futures, json, os, signal, subprocess, sys, tempfile, time, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
import f32_file
from cluster import GEMMA, LONG, MODEL, Cluster, free_ports, is_idle, local, program
from namespaces import Network, why_not
from raw_http import Connection, Reply, get, post, probe, text_of

try:
    import openai
except ImportError:
    openai = None

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "Once upon a time"
STORY = dict(prompt=PROMPT, max_tokens=300, temperature=0, ignore_eos=True)
WORKER_TIMEOUT_S, STEP_TIMEOUT_S = 1.5, 2  # the defaults of the cluster file


def user(text):
    return [{"role": "user", "content": text}]


QUESTION = user("What is the capital of France?")


def ready(s):
    return s["ready"]


class Demo(unittest.TestCase):
    """The demo model on two workers."""

    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(workers=2, threads=1, kv_tokens=8192)

    @classmethod
    def tearDownClass(cls):
        cls.c.stop()

    def ends(self, c):
        for stream in (False, True):
            r = post(c.http, CHAT, dict(messages=QUESTION, max_tokens=60, temperature=0, stream=stream))
            choices = [x["choices"][0] for x in (r.chunks() if stream else [r.json()])]
            text = "".join(x["delta" if stream else "message"].get("content") or "" for x in choices)
            self.assertEqual((text, choices[-1]["finish_reason"]), ("The capital of France is Paris.", "stop"))

    def test_end_of_the_turn(self):
        """The answer's first token is a near tie with the model's own template, which activations of eight bits decide otherwise:
        there the F32 file of the same weights answers."""
        r = post(self.c.http, CHAT, dict(messages=QUESTION, max_tokens=1)).json()
        self.assertEqual(r["usage"]["prompt_tokens"], 37)
        with tempfile.TemporaryDirectory() as d:
            template = os.path.join(d, "chat.jinja")
            with open(template, "w") as f:
                f.write("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}")
            with Cluster(workers=2, threads=1, kv_tokens=1024, set=[f"chat_template={template}"]) as c:
                self.ends(c)
            if LONG:
                f32_file.write(MODEL, os.path.join(d, "f32.gguf"))
                with Cluster(model=os.path.join(d, "f32.gguf"), workers=2, threads=1, kv_tokens=1024, kv="f32") as c:
                    self.ends(c)

    def test_begin_of_sequence(self):
        """Neither doubled nor added where the model wants none; where it wants one, it is there."""
        self.assertEqual(post(self.c.http, COMPLETIONS, {"prompt": "Hello", "max_tokens": 1}).json()["usage"]["prompt_tokens"], 1)
        self.assertEqual(post(self.c.http, CHAT, {"messages": user("Hello"), "max_tokens": 1}).json()["usage"]["prompt_tokens"], 31)
        with Cluster(model=GEMMA, workers=2, threads=1, kv_tokens=1024) as c:
            r = post(c.http, COMPLETIONS, {"prompt": "The capital of France is", "max_tokens": 1}).json()
            self.assertEqual(r["usage"]["prompt_tokens"], 6)

    def test_words(self):
        with open(os.path.join(HERE, "..", "model", "smollm2_token_ids.json")) as f:
            rows = json.load(f)
        self.assertEqual(len(rows), 17)
        for row in rows:
            r = post(self.c.http, "/tokenize", {"content": row["text"], "special": False}).json()
            self.assertEqual(r, {"tokens": row["ids"], "count": len(row["ids"])}, row["text"])
            self.assertEqual(post(self.c.http, "/detokenize", {"tokens": row["ids"]}).json(), {"content": row["text"]})

    def test_no_messages(self):
        r = post(self.c.http, CHAT, {"max_tokens": 3})
        self.assertEqual((r.status, r.error()["param"]), (400, "messages"))

    def test_unchecked_parameters(self):
        """Each is 200, or 400 that names the field, and the server lives and answers as before."""
        right = ['"temperature": 1e-30', '"temperature": 1e30', '"temperature": null', '"top_p": 0', '"top_p": null', '"top_k": 0', '"top_k": -1',
                 '"top_k": 49153', '"top_k": 9999999', '"n": 2', '"seed": -1', '"seed": null', '"logprobs": true, "top_logprobs": 0',
                 '"logprobs": true, "top_logprobs": 20']
        wrong = ['"logit_bias": {"49152": 5}', '"logit_bias": {"-1": 5}', '"logit_bias": {"abc": 1}', '"logit_bias": {"99999999999": 1}',
                 '"logit_bias": {"35": 1e400}', '"logit_bias": {"35": "x"}', '"logit_bias": []', '"temperature": -1', '"temperature": NaN',
                 '"top_p": -0.1', '"top_p": 1.1', '"min_p": 2', '"repetition_penalty": 0', '"n": 0', '"n": 100000', '"seed": 1.5',
                 '"seed": 9223372036854775808', '"top_logprobs": 21, "logprobs": true', '"top_logprobs": 100000, "logprobs": true']
        before = probe(self.c.http)
        for text in right + wrong:
            r = post(self.c.http, CHAT, ('{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, %s}' % text).encode())
            self.assertEqual(r.status, 200 if text in right else 400, (text, r.body))
            if text in wrong:
                self.assertEqual(r.error()["param"], text.split('"')[1], r.body)
            self.assertEqual(probe(self.c.http), before, text)

    def leave(self, seconds, body, stream=False, length=None):
        """A client that goes: at the first event, or after so many seconds."""
        with Connection(self.c.http) as s:
            s.send("POST", COMPLETIONS, body, **({"length": length} if length else {}))
            if stream:
                s.first_event()
            time.sleep(seconds)

    def test_client_goes_away(self):
        long = dict(prompt=PROMPT, max_tokens=4000, ignore_eos=True)
        before = probe(self.c.http)
        phases = [lambda: self.leave(0, dict(long, stream=True), stream=True),               # (a)
                  lambda: self.leave(0.5, long),                                             # (b)
                  lambda: self.leave(0.2, dict(prompt="7" * 4000, max_tokens=1)),            # (c)
                  lambda: self.leave(0.1, json.dumps(long).encode()[:30], length=100)]       # (d)
        phases += [phases[0]] * (200 if LONG else 10)                                        # (e)
        for leave in phases:
            leave()
            self.c.wait(is_idle, 6)
        time.sleep(2)  # Steps that were in flight, and the heartbeats that tell of them
        rows = [w["rows"] for w in self.c.workers()]
        time.sleep(2)
        self.assertEqual([w["rows"] for w in self.c.workers()], rows)  # nothing is computed for those who left
        self.assertEqual(probe(self.c.http), before)

    def test_capped_by_the_context(self):
        """What would need more than the pool has is given as much as there is; a prompt that needs more is refused."""
        with Cluster(workers=2, threads=1, kv_tokens=512) as c:
            r = post(c.http, COMPLETIONS, dict(prompt="7" * 100, max_tokens=500, ignore_eos=True)).json()
            self.assertEqual((r["usage"]["completion_tokens"], r["choices"][0]["finish_reason"]), (412, "length"))
            r = post(c.http, COMPLETIONS, dict(prompt="7" * 600, max_tokens=1))
            self.assertEqual((r.status, r.error()["code"]), (400, "context_length_exceeded"))


class Company(unittest.TestCase):
    def test_company(self):
        """One request gives one answer: alone, among others, on one to three workers, with one to four threads."""
        others = [f"Prompt number {i} is about" for i in range(8)]
        asks = [dict(prompt=PROMPT, max_tokens=32, temperature=0), dict(prompt=PROMPT, max_tokens=32, temperature=1, seed=7)]
        want = [local(PROMPT, tokens=32, temp=0)["text"], local(PROMPT, tokens=32, temp=1, seed=7)["text"]]
        for workers, threads in ((1, 4), (2, 1), (3, 2)):
            with Cluster(workers=workers, threads=threads, kv_tokens=8192) as c, concurrent.futures.ThreadPoolExecutor(24) as pool:
                def ask(body):
                    return post(c.http, COMPLETIONS, body, timeout=600).json()["choices"][0]["text"]
                self.assertEqual([ask(a) for a in asks], want, (workers, threads))
                for a, w in zip(asks, want):
                    rest = [pool.submit(ask, dict(prompt=p, max_tokens=32, temperature=0.9)) for p in others]
                    self.assertEqual(set(pool.map(ask, [a] * 8)), {w}, (workers, threads))
                    for x in rest:
                        x.result()


class Begun:
    """A stream that runs and a request that is queued behind it, of which the replica computes one at a time."""
    QUEUED = dict(prompt="The capital of France is", max_tokens=8, temperature=0)

    def __init__(self, c):
        self.stream, self.queued = Connection(c.http, 200), Connection(c.http, 200)
        self.stream.send("POST", COMPLETIONS, dict(STORY, stream=True))
        self.head = self.stream.head()
        assert self.head[0] == 200
        self.queued.send("POST", COMPLETIONS, self.QUEUED)
        c.wait(lambda s: s["requests"] == {"running": 1, "queued": 1}, 10)

    def rest(self):
        """The stream, to its end."""
        return Reply(*self.head, b"".join(self.stream.pieces(self.head[1])))

    def close(self):
        self.stream.close()
        self.queued.close()


class Lost(unittest.TestCase):
    """A worker, a link or the coordinator is lost while a stream runs and a request is queued."""

    @classmethod
    def setUpClass(cls):
        cls.story = local(PROMPT, tokens=300, ignore_eos=True)["text"]
        cls.answer = local(Begun.QUEUED["prompt"], tokens=8)["text"]

    def cluster(self, workers, **kw):
        return Cluster(workers=workers, threads=1, kv_tokens=2048, set=["max_sequences=1"], **kw)

    def well(self, c, begun):
        """Both are answered in full, as if nothing had happened, and so is who comes next."""
        self.assertEqual(text_of(begun.rest().chunks()), self.story)
        self.assertEqual(begun.queued.reply().json()["choices"][0]["text"], self.answer)
        begun.close()
        self.assertEqual(post(c.http, COMPLETIONS, Begun.QUEUED).json()["choices"][0]["text"], self.answer)

    def ended(self, begun, *names):
        """Both have ended with an error that names one of these, in a form that clients read."""
        body = begun.rest().body
        self.assertIn(b"event: error\ndata: {\"error\":{", body)
        self.assertNotIn(b"[DONE]", body)
        self.assertTrue(any(n.encode() in body for n in names), body[-400:])
        r = begun.queued.reply()
        self.assertEqual((r.status, "retry-after" in r.headers), (503, True), r.body)
        begun.close()

    def test_worker_killed(self):
        """(a, c) Without a wait both requests end soon, and new ones are refused until the worker is started again."""
        for workers, victim in ((2, "w1"), (3, "w2")):
            with self.cluster(workers, replica_wait=0) as c:
                before = probe(c.http)
                begun = Begun(c)
                at = time.monotonic()
                os.kill(next(w["pid"] for w in c.workers() if w["name"] == victim), signal.SIGKILL)
                self.ended(begun, victim)
                self.assertLess(time.monotonic() - at, 3 * WORKER_TIMEOUT_S)
                self.assertEqual(get(c.http, "/health").status, 200)
                self.assertEqual(post(c.http, COMPLETIONS, Begun.QUEUED).status, 503)
                c.worker(victim, threads=1)
                c.wait(ready, 20)
                self.assertEqual(probe(c.http), before)
                self.assertEqual(post(c.http, COMPLETIONS, STORY).json()["choices"][0]["text"], self.story)

    def test_worker_replaced(self):
        """(a, c) With a wait the stream goes on with the very next token, and the queued request has its answer."""
        for workers, victim in ((2, "w1"), (3, "w2")):
            with self.cluster(workers, replica_wait=60) as c:
                begun = Begun(c)
                os.kill(next(w["pid"] for w in c.workers() if w["name"] == victim), signal.SIGKILL)
                c.worker(victim, threads=1)
                self.well(c, begun)

    def test_worker_stands_still(self):
        """(b) What it still says of the lost generation when it goes on reaches nobody."""
        with self.cluster(3, replica_wait=120) as c:
            begun = Begun(c)
            pid = next(w["pid"] for w in c.workers() if w["name"] == "w2")
            os.kill(pid, signal.SIGSTOP)
            time.sleep(30 if LONG else 3 * WORKER_TIMEOUT_S)
            os.kill(pid, signal.SIGCONT)
            self.well(c, begun)
            self.assertGreaterEqual(c.status()["replicas"][0]["epoch"], 2)  # it was lost in between

    def test_coordinator_killed(self):
        """(d) The next coordinator at the same address serves with the workers that were left running."""
        ports = free_ports(4)
        config = f"model: {MODEL}\nworkers: 2\nkv_tokens: 2048\nmax_sequences: 1\nmetrics: false\n" \
                 f"ports: {{clients: {ports[0]}, workers: {ports[1]}, results: {ports[2]}, http: {ports[3]}}}\n"
        url = f"http://127.0.0.1:{ports[3]}"

        def start():
            p = subprocess.Popen([program("flotilla-coordinator"), "--config", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True)
            p.stdin.write(config)
            p.stdin.close()
            self.assertTrue(p.stdout.readline().startswith("listening"))
            self.assertTrue(p.stdout.readline().startswith("ready"))
            return p

        # One waits for the other: a coordinator that starts is ready when its workers have joined.
        workers = [subprocess.Popen([program("flotilla-worker"), "--coordinator", f"tcp://127.0.0.1:{ports[1]}", "--name", f"w{i}",
                                     "--threads", "1"], stderr=subprocess.DEVNULL) for i in range(2)]
        c = start()
        try:
            before = probe(url)
            with Connection(url, 60) as stream:
                stream.send("POST", COMPLETIONS, dict(STORY, stream=True))
                status, _, first = stream.first_event()
                self.assertEqual(status, 200)
                c.kill()
                c.wait()
                with self.assertRaises((EOFError, OSError)):  # no end that could be taken for the answer's
                    while True:
                        self.assertNotEqual(stream._take(1), b"")
            c.stdout.close()
            c = start()
            self.assertEqual(probe(url), before)
            self.assertEqual(post(url, COMPLETIONS, STORY).json()["choices"][0]["text"], self.story)
            self.assertEqual([w.poll() for w in workers], [None, None])
        finally:
            for p in (*workers, c):
                p.terminate()
                p.wait(timeout=30)
            c.stdout.close()

    @unittest.skipIf(why_not(), "no network namespaces here")
    def test_link_blocked(self):
        """(e) A firewall swallows what the workers send each other for ten seconds."""
        with Network("host") as net, self.cluster(2, replica_wait=0, prefix=net["host"].prefix) as c, \
                concurrent.futures.ThreadPoolExecutor(1, initializer=net["host"].enter) as there:  # a thread on that host
            begun = there.submit(Begun, c).result()
            w2 = next(w for w in c.workers() if w["name"] == "w2")
            at = time.monotonic()
            net["host"].block(net["host"].listening(w2["pid"])[0])
            self.ended(begun, "w1", "w2")
            self.assertLess(time.monotonic() - at, 3 * STEP_TIMEOUT_S)
            time.sleep(max(0, 10 - (time.monotonic() - at)))
            net["host"].unblock()
            c.wait(ready, 30)
            self.assertEqual(there.submit(post, c.http, COMPLETIONS, Begun.QUEUED).result().json()["choices"][0]["text"], self.answer)


class Streams(unittest.TestCase):
    """What the official client reads, on a scripted model whose whole output is known (tests/lib/specs.py)."""

    def shape(self, chunks, usage, first=None):
        """Of all chunks: one id, a reason at the end of the choices only, and a last chunk with the usage where it was asked for."""
        self.assertEqual(len({x.id for x in chunks}), 1)
        told = [x for x in chunks if x.choices]
        self.assertEqual([x.choices[0].finish_reason for x in told[:-1]], [None] * (len(told) - 1))
        self.assertEqual(chunks[:len(told)], told)
        self.assertEqual([x.usage for x in chunks[len(told):]], [usage] if usage else [])
        self.assertTrue(all(x.usage is None for x in told))
        if first:
            self.assertEqual(told[0].choices[0].delta.role, first)
        return told[-1].choices[0].finish_reason

    @unittest.skipIf(openai is None, "no package openai")
    def test_official_client(self):
        with tempfile.TemporaryDirectory() as d:
            subprocess.run([sys.executable, os.path.join(HERE, "..", "lib", "specs.py"), d], check=True, stdout=subprocess.DEVNULL)
            template = os.path.join(d, "chat.jinja")
            with open(template, "w") as f:
                f.write("{% for m in messages %}{{ m.content }}{% endfor %}")
            with Cluster(model=os.path.join(d, "stop.gguf"), workers=2, threads=1, kv_tokens=2048, set=[f"chat_template={template}"]) as c, \
                    openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=60) as client:
                for limit, text, reason in ((None, "A B C O P Q R S", "stop"), (2, "A B", "length")):
                    for asked in (False, True):
                        ask = dict(model="stop.gguf", temperature=0, **({"max_tokens": limit} if limit else {}))
                        options = {"stream_options": {"include_usage": True}} if asked else {}
                        whole = client.completions.create(prompt="1", **ask)
                        chunks = list(client.completions.create(prompt="1", stream=True, **ask, **options))
                        self.assertEqual((whole.choices[0].text, whole.choices[0].finish_reason), (text, reason))
                        self.assertEqual("".join(x.choices[0].text for x in chunks if x.choices), text)
                        self.assertEqual(self.shape(chunks, whole.usage if asked else None), reason)
                        whole = client.chat.completions.create(messages=user("1"), **ask)
                        chunks = list(client.chat.completions.create(messages=user("1"), stream=True, **ask, **options))
                        self.assertEqual((whole.choices[0].message.content, whole.choices[0].finish_reason), (text, reason))
                        self.assertEqual("".join(x.choices[0].delta.content or "" for x in chunks if x.choices), text)
                        self.assertEqual(self.shape(chunks, whole.usage if asked else None, "assistant"), reason)
                r = client.chat.completions.create(model="stop.gguf", messages=user("1"), temperature=0, max_completion_tokens=2)
                self.assertEqual((r.choices[0].message.content, r.choices[0].finish_reason, r.usage.completion_tokens), ("A B", "length", 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
