"""Bias, penalties and log-probabilities: a cluster gives the tokens and bits of the engine alone, also among other
requests."""
import os, sys, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import Cluster, local

PROMPT = "the cat and the dog and the cat and the dog and"
CASES = [
    dict(repetition_penalty=1.3),
    dict(presence_penalty=1.5, frequency_penalty=0.5, temp=0.8, seed=3),
    dict(logit_bias=["35=-100", "260=4.5"], repetition_penalty=0.8, temp=1.2, seed=5, top_k=50, min_p=0.02),
    dict(logprobs=5, temp=0.7, seed=9),
    dict(logprobs=0),
    dict(logprobs=20, repetition_penalty=1.2, frequency_penalty=-0.5, temp=1, seed=2, top_p=0.9),
]


class Sampling(unittest.TestCase):
    def test_one_answer(self):
        fixed = dict(tokens=48, ignore_eos=True)
        base = [local(PROMPT, **fixed, **kw) for kw in CASES]
        plain = local(PROMPT, **fixed)
        self.assertEqual(base[4]["tokens"], plain["tokens"])
        self.assertNotIn("logprobs", plain)
        self.assertEqual(len({tuple(b["tokens"]) for b in base}), len(CASES))
        with Cluster(workers=2, kv_tokens=8192, chunk=16) as c:
            running = [c.start(PROMPT, **fixed, **kw) for kw in CASES]
            for kw, want, got in zip(CASES, base, [r.result() for r in running]):
                self.assertEqual(got["tokens"], want["tokens"], kw)
                self.assertEqual(got.get("logprobs"), want.get("logprobs"), kw)
                self.assertEqual(len(got.get("logprobs", [])), 48 if "logprobs" in kw else 0)
                for token, l in zip(got["tokens"], got.get("logprobs", [])):
                    self.assertEqual(len(l["top"]), kw["logprobs"])
                    inside = [lp for i, lp in l["top"] if i == token]
                    self.assertTrue(not inside or inside[0] == l["logprob"])
            status = c.status()["replicas"][0]
            self.assertGreaterEqual(status["sequences_max"], 2)

    def test_bias(self):
        digits = local("0123456789012", tokens=1)["tokens"]
        self.assertEqual(digits, [35])  # "3"
        self.assertNotIn(35, local("0123456789012", tokens=16, ignore_eos=True, logit_bias="35=-100")["tokens"])
        self.assertEqual(set(local("Hello", tokens=8, logit_bias="260=100", ignore_eos=True)["tokens"]), {260})

    def test_repetition(self):
        def repeats(**kw):
            t = local(PROMPT, tokens=64, ignore_eos=True, **kw)["tokens"]
            return len(t) - len(set(t))
        self.assertLess(repeats(repetition_penalty=1.5), repeats() // 2)
        self.assertLess(repeats(frequency_penalty=2), repeats())


if __name__ == "__main__":
    unittest.main(verbosity=2)
