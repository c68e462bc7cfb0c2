"""Drafts on real texts. How often a draft model and its target choose the same token with the same noise, on real pairs: never better than 1 - total
variation of their distributions, and never worse than what the noise promises, (1 - tv) / (1 + tv). Prints what
common/text/README.md has. What drafts from texts gain where an answer repeats its prompt. The long form has more prompts, and Qwen2.5-Coder 0.5B as the draft of 1.5B."""
import json, math, os, subprocess, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import LONG, MODEL, QWEN, QWEN_LARGE, local, program, run
from rewriting import prompts
from smaller import write

import gguf
import numpy as np

PROMPTS = ["The capital of France is", "Once upon a time there was a lighthouse whose keeper",
           "To make bread, first mix the flour with", "The most important difference between a list and a tuple is",
           "In the year 1815 the", "Dear Sir or Madam,\n\nI am writing to", "Q: Why is the sky blue?\nA:", "The water of the river"]
CODE = ["def fibonacci(n):\n    ", "class Stack:\n    def __init__(self):\n", "import json\n\ndef load(path):\n    ",
        "# Returns the words of a text, sorted by how often they occur.\ndef words(text):\n    ",
        "def binary_search(items, wanted):\n    ", "for i in range(10):\n    ", "struct list {\n    struct node *", "SELECT name FROM"]
TOKENS = 128 if LONG else 64


def ids(model, text):
    r = run("tokenize", "--model", model, "--json", input=text.encode())
    return np.array(json.loads(r.stdout)["tokens"], np.int32).tobytes()


def measure(target, draft, temp, prompts):
    """Shares of all positions: chosen alike; the best that any drafter could reach; what the noise promises at least."""
    total = dict(tokens=0, alike=0, best=0.0, least=0.0)
    for seed, text in enumerate(prompts):
        r = subprocess.run([program("accept_tool"), target, draft, str(temp), str(seed), str(TOKENS), "2"], input=ids(target, text),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert r.returncode == 0, r.stderr.decode()
        for key, value in json.loads(r.stdout).items():
            total[key] += value
    n = total["tokens"]
    return n, total["alike"] / n, total["best"] / n, total["least"] / n


class Acceptance(unittest.TestCase):
    def pair(self, name, target, draft, prompts, at_least, at_most):
        for temp in (0, 0.8, 1):
            n, alike, best, least = measure(target, draft, temp, prompts)
            print(f"{name}, temperature {temp}: {alike:.3f} alike of {n}, best possible {best:.3f}, at least {least:.3f}", flush=True)
            slack = 3 * math.sqrt(0.25 / n)  # three standard deviations of a mean of n draws
            self.assertLessEqual(alike, best + slack, name)
            self.assertGreaterEqual(alike, least - slack, name)
            self.assertGreaterEqual(alike, at_least, name)
            self.assertLessEqual(alike, at_most, name)

    def test_same_model(self):
        """The perfect draft is always right."""
        n, alike, best, least = measure(MODEL, MODEL, 1, PROMPTS[:2])
        self.assertEqual((n, alike, best, least), (2 * TOKENS, 1, 1, 1))

    def test_coarser_weights_and_fewer_layers(self):
        prompts = PROMPTS if LONG else PROMPTS[:4]
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "draft.gguf")
            write(MODEL, path, type=gguf.GGMLQuantizationType.Q4_0)
            self.pair("SmolLM2 135M Q4_1, its weights in Q4_0", MODEL, path, prompts, 0.5, 0.98)
            write(MODEL, path, layers=10)
            self.pair("SmolLM2 135M Q4_1, 10 of its 30 layers", MODEL, path, prompts, 0, 0.3)

    @unittest.skipUnless(LONG, "gigabytes")
    def test_qwen(self):
        self.pair("Qwen2.5-Coder 1.5B, 0.5B, code", QWEN_LARGE, QWEN, CODE, 0.5, 0.98)

    def test_texts_that_are_rewritten(self):
        """Tokens a run of eight guesses; without guesses it is one."""
        runs = tokens = 0
        for text in prompts()[:None if LONG else 3]:
            r = local(text, special=True, tokens=100)
            ids_ = np.array(r["prompt_tokens"] + r["tokens"], np.int32).tobytes()
            words = [program("draft_tool"), "ngram", "8", str(len(r["prompt_tokens"])), "49152"]
            got = json.loads(subprocess.run(words, input=ids_, stdout=subprocess.PIPE, check=True).stdout)
            self.assertEqual(got["emitted"], len(r["tokens"]))
            runs, tokens = runs + got["runs"], tokens + got["emitted"]
        print(f"SmolLM2 135M rewrites {len(prompts()) if LONG else 3} texts: {tokens / runs:.2f} tokens a run", flush=True)
        self.assertGreaterEqual(tokens / runs, 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
