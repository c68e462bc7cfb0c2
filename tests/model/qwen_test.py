"""Qwen2.5-Coder, 0.5B and 1.5B: token ids, answers to a chat's prompt, a function that it writes and that runs, perplexity
against the F32 files of the same weights, and one answer however a step is cut. In the long form only: 1.6 GB are read
again and again."""
import json, os, re, subprocess, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import QWEN, QWEN_LARGE, Cluster, local, run
from f32_file import write
from logits import KV_TYPES, logits
from machine import levels
from figures_test import quality
from quality_test import TEXT
from vocab_test import encode, expected

MODELS = (QWEN, QWEN_LARGE)
FUNCTION = "Write a Python function is_prime(n) that returns True if n is a prime number and False otherwise. Only the code."
ROUNDED = 0.012  # what quantised weights and activations may cost of perplexity


def chat(question):
    return ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")


def answer(model, question, tokens, **kw):
    got = local(chat(question), model=model, special=True, tokens=tokens, **kw)
    assert got["finish_reason"] == "stop", got
    return got["text"]


class Qwen(unittest.TestCase):
    def test_token_ids(self):
        for model in MODELS:
            n = 0
            for text, ids in expected("qwen2"):
                self.assertEqual(encode(model, text.encode()), ids, text)
                n += 1
            self.assertEqual(n, 47)

    def test_control_tokens(self):
        r = run("tokenize", "--model", QWEN, "--special", "--json", input=chat("Hi").encode())
        ids = json.loads(r.stdout)["tokens"]
        self.assertEqual((ids[0], ids.count(151644), ids.count(151645)), (151644, 3, 2))

    def test_answers_in_english(self):
        for model in MODELS:
            said = answer(model, "What is the capital of France? Answer in one sentence.", 60)
            self.assertRegex(said, r"^The capital of France is \**Paris", model)
            self.assertTrue(said.isascii())

    def test_writes_a_function(self):
        """What it writes is run: it says of the first hundred numbers which are prime."""
        check = "\nprint(*(n for n in range(101) if is_prime(n)))\n"
        primes = [n for n in range(2, 101) if all(n % d for d in range(2, n))]
        for model in MODELS:
            said = answer(model, FUNCTION, 320)
            code = re.search(r"```python\n(.*?)```", said, re.S)
            self.assertTrue(code, said)
            r = subprocess.run([sys.executable, "-I", "-c", code[1] + check], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               timeout=60, text=True)
            self.assertEqual(r.stdout.split("\n")[-2].split(), [str(n) for n in primes], code[1] + r.stdout)

    def test_perplexity(self):
        """Of the files, and of their weights in F32 with F32 keys and values."""
        for model in MODELS:
            with tempfile.TemporaryDirectory() as d:
                f32 = os.path.join(d, "f32.gguf")
                write(model, f32)
                want = quality(f32, "--text", TEXT, "--kv", "f32", timeout=3600)
            got = quality(model, "--text", TEXT, timeout=3600)
            self.assertEqual(got["tokens"], want["tokens"])
            self.assertGreater(got["tokens"], 2000)
            self.assertGreater(want["perplexity"], 2)
            self.assertNotEqual(got["perplexity"], want["perplexity"])
            self.assertLess(abs(got["perplexity"] / want["perplexity"] - 1), ROUNDED, (model, got, want))

    def test_one_answer(self):
        """The same bits of logits at every level, on one, two and three slices, in chunks of any size, with any number of
        threads; the smaller model with every KV type."""
        ids = local(chat(FUNCTION), model=QWEN, special=True, tokens=0)["prompt_tokens"]
        self.assertGreater(len(ids), 32)
        for model, kv in [*((QWEN, kv) for kv in KV_TYPES), (QWEN_LARGE, "f16")]:
            base = logits(model, ids, kv=kv, last=8)
            cells = [dict(slices=2, chunk=16), dict(slices=3, threads=1), dict(chunk=1, threads=3),
                     *(dict(isa=i, chunk=20) for i in levels())]
            for cell in cells:
                self.assertEqual(logits(model, ids, kv=kv, last=8, **cell).tobytes(), base.tobytes(), (model, kv, cell))

    def test_many_at_once(self):
        """Requests that share Steps get the tokens that each gets alone."""
        questions = ["What is a list?", FUNCTION, "Name three colours.", "What is 12 times 12?"]
        for model in MODELS:
            want = [local(chat(q), model=model, special=True, tokens=24)["tokens"] for q in questions]
            with Cluster(model=model, workers=2, kv_tokens=4096) as cluster:
                begun = [cluster.start(chat(q), special=True, tokens=24) for q in questions]
                self.assertEqual([b.result()["tokens"] for b in begun], want)


if __name__ == "__main__":
    unittest.main(verbosity=2)
