"""One answer: the tokens depend on model, KV type, prompt, parameters and seed alone.

Base case: the engine alone, in one process, at the machine's best level. Compared with it: 1, 2 and 3 workers, chunks of 16
and 512, 1 and 2 threads, every level and KV type, alone and among 7 other requests; for SmolLM2 and for Gemma 3, whose
window is shorter than the longest prompt. The long form runs the product of these axes, whose cells take the KV types in
turn, with both sets of parameters. The short form runs a few cells in which each axis varies, and asks each prompt with one
of the two sets, which take turns from prompt to prompt and from cell to cell; its answers are shorter, and so is SmolLM2's
longest prompt.
"""
import itertools, os, sys, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import GEMMA, LONG, MODEL, Cluster, local
from machine import levels

COLD_DAY = "It was a bright cold day in April, and the clocks were striking thirteen. "
PROMPTS = [
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 2, 4, 8, 16,",
    "The three most important things in life are",
    COLD_DAY * 40,
]
TOKENS = 64 if LONG else 32
# The product's last axes have four cells: a cycle of the four types alone would always meet the same one.
TYPES_IN_TURN = ("q8_0", "f16", "q4_0", "f32", "f16")
PARAMETERS = [dict(temp=0, seed=1), dict(temp=0.8, seed=7)]
# The cells assert that no generation is lost. A machine that turns to something else for seconds must not decide
# that: how soon a worker is given up is tested where failures are.
UNHURRIED = ["step_timeout_ms=60000", "worker_timeout_ms=60000"]


class OneAnswer(unittest.TestCase):
    model = MODEL
    prompts = PROMPTS if LONG else [*PROMPTS[:-1], COLD_DAY * 16]
    longest = 600 if LONG else 250  # tokens, at least
    short = [(False, 1, "avx2", 512, 2, "f16"), (True, 2, "avx2", 512, 1, "f16"), (True, 3, "avx2", 16, 1, "f16"),
             (True, 2, "scalar", 512, 1, "f16")]
    kv_types = TYPES_IN_TURN if LONG else ("f16",)

    @classmethod
    def setUpClass(cls):
        cls.bases = {}
        lengths = [len(local(p, model=cls.model, tokens=0)["prompt_tokens"]) for p in cls.prompts]
        assert max(lengths) >= cls.longest, lengths

    def requests(self, turn):
        """(prompt, options): every prompt with both sets of parameters, in the short form with one of them."""
        sets = [[kw] * len(self.prompts) for kw in PARAMETERS]
        if not LONG:
            sets = [[PARAMETERS[(i + turn) % 2] for i in range(len(self.prompts))]]
        return [(p, dict(tokens=TOKENS, ignore_eos=True, **kw)) for s in sets for p, kw in zip(self.prompts, s)]

    def alone(self, asked, kv, **axis):
        return [local(p, model=self.model, kv=kv, **axis, **kw)["tokens"] for p, kw in asked]

    def base(self, asked, kv):
        """Each is computed once."""
        keys = [(kv, p, kw["temp"]) for p, kw in asked]
        for key, one in zip(keys, asked):
            if key not in self.bases:
                self.bases[key] = self.alone([one], kv, threads=2, chunk=512)[0]
        return [self.bases[key] for key in keys]

    def compare(self, asked, results, kv, what):
        for (prompt, kw), want, got in zip(asked, self.base(asked, kv), results, strict=True):
            self.assertEqual(got, want, f"{what}: {prompt[:40]!r} {kw}")

    def test_base_is_not_trivial(self):
        n = len(self.prompts) if LONG else 4
        greedy, sampled = ([(p, dict(tokens=TOKENS, ignore_eos=True, **kw)) for p in self.prompts[:n]] for kw in PARAMETERS)
        base = [self.base(asked, self.kv_types[0]) for asked in (greedy, sampled)]
        self.assertGreaterEqual(sum(a != b for a, b in zip(*base)), n - 1)
        self.assertTrue(all(len(t) == TOKENS for t in base[0] + base[1]))

    def test_engine_alone(self):
        for turn, axis in enumerate((dict(chunk=16, threads=2), dict(chunk=512, threads=1))):
            asked, kv = self.requests(turn), self.kv_types[0]
            self.compare(asked, self.alone(asked, kv, **axis), kv, f"alone {axis}")

    def in_cluster(self, asked, together, workers, isa, kv, **axis):
        what = f"{workers} workers {isa} {kv} {axis} {'together' if together else 'one by one'}"
        with Cluster(model=self.model, workers=workers, isa=isa, kv=kv, kv_tokens=16384, set=UNHURRIED, **axis) as c:
            if together:
                results = []
                for at in range(0, len(asked), len(self.prompts)):
                    running = [c.start(p, **kw) for p, kw in asked[at:at + len(self.prompts)]]
                    results += [r.result() for r in running]
                self.assertNotIn(None, results, what)
            else:
                results = [c.generate(p, **kw) for p, kw in asked]
            status, log = c.status(), c.text()[-2000:]
            self.compare(asked, [r["tokens"] for r in results], kv, what)
        replica = status["replicas"][0]
        for w in replica["workers"]:
            self.assertEqual(w["isa"], isa, what)
        self.assertEqual(replica["epoch"], 1, f"{what}: a generation was lost: {log}")
        self.assertEqual(replica["workers"][0]["kv_pages"]["free"], replica["workers"][0]["kv_pages"]["total"])
        return replica

    def test_clusters(self):
        cells = self.short
        if LONG:
            product = itertools.product([False, True], [1, 2, 3], levels(), [16, 512], [1, 2])
            cells = [(*cell, kv) for cell, kv in zip(product, itertools.cycle(self.kv_types))]
        most, mixed = 0, 0
        for turn, (together, workers, isa, chunk, threads, kv) in enumerate(cells):
            with self.subTest(together=together, workers=workers, isa=isa, chunk=chunk, threads=threads, kv=kv):
                r = self.in_cluster(self.requests(turn), together, workers, isa, kv, chunk=chunk, threads=threads)
                most, mixed = max(most, r["sequences_max"]), mixed + r["steps_mixed"]
        # Without these the comparison above would have compared nothing.
        self.assertGreaterEqual(most, 4, "no Step carried four sequences")
        self.assertGreater(mixed, 0, "no Step carried decodes and prefill together")


class Gemma(OneAnswer):
    model = GEMMA
    prompts = PROMPTS
    longest = 600
    short = [(True, 2, levels()[-1], 16, 1, "q8_0"), (True, 3, "avx2", 512, 1, "q4_0"), (False, 1, "avx2", 512, 2, "f32")]
    kv_types = TYPES_IN_TURN if LONG else ("q8_0",)


if __name__ == "__main__":
    unittest.main(verbosity=2)
