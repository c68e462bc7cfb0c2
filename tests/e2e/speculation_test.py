"""Speculation changes no token: what a cluster says with drafts is what the engine alone says without.

Drafts come from a file of recorded answers in which every few tokens are wrong (`recorded`), so that runs are confirmed, refuted
in the middle and dead, and from what was said before (`ngram`). Every cell has requests with drafts beside ordinary ones, at
temperature 0 and 0.8, with penalties, logit bias and log-probabilities, some of them cancelled on the way; a worker is killed in
mid-run. The long form runs the product of stages, lengths and kinds over 24 prompts of 128 tokens each.
"""
import json, os, signal, subprocess, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import LONG, Cluster, local, program, run

TOPICS = ["the sea", "a clock", "winter", "bread", "the moon", "a train", "rivers", "music", "iron", "a garden", "silence", "glass"]
PROMPTS = [f"Once upon a time there was a story about {t}. Once upon a time" for t in TOPICS] + \
          [f"List of facts about {t}:\n1." for t in TOPICS]
TOKENS = 128 if LONG else 40
WRONG_EACH = 7  # so many tokens of a recorded answer
UNHURRIED = ["step_timeout_ms=60000", "worker_timeout_ms=60000"]
PARAMETERS = [dict(temp=0), dict(temp=0.8, seed=7), dict(temp=0.8, seed=8, presence_penalty=0.7, frequency_penalty=0.3),
              dict(temp=0, repetition_penalty=1.2, logit_bias=["260=3", "28=-5"]), dict(temp=0.8, seed=9, logprobs=3),
              dict(temp=0.6, seed=1, top_k=40, top_p=0.9, min_p=0.01, logprobs=0)]


def asked(n):
    """n requests: (prompt, options)."""
    return [(PROMPTS[i % len(PROMPTS)], dict(PARAMETERS[i % len(PARAMETERS)], tokens=TOKENS, ignore_eos=True)) for i in range(n)]


class Draft(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.asked = asked(24 if LONG else 6)
        cls.base = [local(p, **kw) for p, kw in cls.asked]
        cls.recorded = tempfile.NamedTemporaryFile("w", prefix="flotilla-drafts-", suffix=".txt")
        for i, b in enumerate(cls.base):
            answer = [t if k % WRONG_EACH != i % WRONG_EACH else (t + 1) % 1000 for k, t in enumerate(b["tokens"])]
            cls.recorded.write(" ".join(map(str, b["prompt_tokens"] + answer)) + "\n")
        cls.recorded.flush()
        cls.source = "recorded:" + cls.recorded.name

    @classmethod
    def tearDownClass(cls):
        cls.recorded.close()

    def same(self, want, got, what):
        self.assertEqual(got["tokens"], want["tokens"], what)
        self.assertEqual(got["text"], want["text"], what)
        self.assertEqual(got.get("logprobs"), want.get("logprobs"), what)

    def figures(self, c):
        """Of all replicas."""
        parts = [r["speculation"] for r in c.status()["replicas"]]
        return {k: sum(p[k] for p in parts) for k in parts[0]}

    def all_together(self, c, requests, what, between=lambda: None):
        """With drafts, among ordinary ones, and some that go away in the middle."""
        drafted = [c.start(p, **kw) for p, kw in requests]
        plain = [c.start(p, draft="off", **kw) for p, kw in requests[:3]]
        gone = [c.start(p, **dict(kw, tokens=400)) for p, kw in requests[:2]]
        between()
        for g in gone:
            g.process.kill()
            g.process.wait()
        n = {"drafted": 0, "accepted": 0, "runs": 0}
        for g, b, (p, kw) in zip(drafted, self.base, requests):
            r = g.result()
            self.assertIsNotNone(r, g.error)
            self.same(b, r, f"{what}: {p!r} {kw}")
            for k in n:
                n[k] += r["speculation"][k]
        for g, b, (p, kw) in zip(plain, self.base, requests):
            r = g.result()
            self.assertIsNotNone(r, g.error)
            self.same(b, r, f"{what}, draft off: {p!r} {kw}")
            self.assertNotIn("speculation", r)
        return n

    def cell(self, workers, length, source, replicas=1, **kw):
        what = f"{replicas} x {workers} workers, {source}, length {length}, {kw}"
        with Cluster(workers=workers, replicas=replicas, draft=source, draft_len=str(length), threads=1,
                     set=UNHURRIED + [f"{k}={v}" for k, v in kw.items()]) as c:
            n = self.all_together(c, self.asked, what)
            f = self.figures(c)
            self.assertGreater(n["runs"], 0, what)
            self.assertLessEqual(n["accepted"], n["drafted"], what)
            self.assertLessEqual(n["drafted"], n["runs"] * (32 if length == "auto" else int(length)), what)
            if source != "ngram":
                self.assertGreater(n["accepted"], 0, what)
                self.assertGreater(f["wasted"], 0, what)
            self.assertEqual(f["early"] > 0, kw.get("draft_pipelined") != "false", what)
            for name in ("runs", "drafted", "accepted"):
                self.assertGreaterEqual(f[name], n[name], what)
            metrics = c.metrics()
            told = sum(v for k, v in metrics.items() if k.startswith("flotilla_draft_accepted_total"))
            self.assertGreaterEqual(told, n["accepted"])
            self.assertEqual(metrics["flotilla_draft_foreign_total"], 0)
            self.assertGreater(f["speedup"], 0, "of requests with drafts and without")
            for r in c.status()["replicas"]:
                s = r["speculation"]
                self.assertAlmostEqual(s["acceptance"], s["accepted"] / s["drafted"] if s["drafted"] else 0)

    def test_exact(self):
        """Row for row the same, whatever is guessed, on one stage and on several."""
        cells = [(2, 4, self.source, 1, {}), (1, 8, self.source, 1, {}), (4, 1, self.source, 1, {}),
                 (2, 8, "ngram", 2, {}), (2, "auto", self.source, 1, {}), (2, 4, self.source, 1, {"draft_pipelined": "false"})]
        if LONG:
            cells += [(w, k, s, r, {}) for w, r in ((1, 1), (2, 1), (4, 1), (2, 2)) for k in (1, 4, 8) for s in (self.source, "ngram")]
        for workers, length, source, replicas, kw in cells:
            with self.subTest(workers=workers, length=length, source=source[:8], replicas=replicas, **kw):
                self.cell(workers, length, source, replicas, **kw)

    def test_a_worker_is_killed(self):
        """In the middle of runs of guesses: what was known is replayed, and the rest comes out as it would have."""
        with Cluster(workers=2, draft=self.source, draft_len="4", threads=1) as c:
            c.worker("spare", threads=1)
            c.wait(lambda s: len(s["spares"]) == 1, 30)
            victim = c.workers()[1]["pid"]

            def kill():
                c.wait(lambda s: s["replicas"][0]["speculation"]["runs"] >= 3, 60)
                os.kill(victim, signal.SIGKILL)
            self.all_together(c, self.asked, "a worker is killed", kill)
            self.assertGreater(c.status()["replicas"][0]["epoch"], 1)

    def ask_as(self, c, tenant, prompt, seed):
        """What became of the guesses in one answer of a tenant: (tokens, drafted, accepted)."""
        r = subprocess.run([program("stream_probe"), "--tenant", tenant, c.address], input=f"1 {TOKENS} 1.0 {seed} {prompt}\n",
                           stdout=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(r.returncode, 0)
        lines = [json.loads(line) for line in r.stdout.splitlines()]
        self.assertEqual(lines[-1]["status"], "OK", lines[-1])
        last = next(x for x in lines if "drafted" in x)
        return [t for x in lines for t in x.get("tokens", [])], last["drafted"], last["accepted"]

    def test_tenants(self):
        """What a tenant was answered drafts for that tenant alone. No two tokens of prompt and answer come twice, so that nothing
        can be guessed from the text itself, and each guess is of an earlier answer."""
        prompt = "Write about glass and silence."
        for seed in range(100):
            b = local(prompt, temp=1, seed=seed, tokens=TOKENS, ignore_eos=True)
            text = b["prompt_tokens"] + b["tokens"]
            if len(set(zip(text, text[1:]))) == len(text) - 1:
                break
        else:
            self.fail("two tokens come twice in each answer")
        with Cluster(workers=1, threads=1, draft="ngram", draft_len="4") as c:
            for tenant, known in (("red", False), ("blue", False), ("red", True), ("green", False), ("blue", True)):
                tokens, drafted, accepted = self.ask_as(c, tenant, prompt, seed)
                self.assertEqual(tokens, b["tokens"], tenant)
                self.assertEqual(drafted > 0, known, (tenant, drafted))
                self.assertEqual(accepted > 0, known, (tenant, accepted))
            self.assertEqual(c.metrics()["flotilla_draft_foreign_total"], 0)

    def test_what_is_refused(self):
        """Lengths and kinds that do not exist are named, and the cluster goes on."""
        for words, said in ((["--draft-len", "0"], "draft length 0"), (["--draft-len", "33"], "draft length 33"),
                            (["--draft", "clever"], "clever"), (["--draft", "recorded:/no/such/file"], "/no/such/file")):
            r = run("up", "--model", os.environ["FLOTILLA_MODEL"], "--draft", "ngram", *words, timeout=60)
            self.assertNotEqual(r.returncode, 0, words)
            self.assertIn(said, r.stderr.decode())
        p, kw = self.asked[0]
        with Cluster(workers=1, draft="ngram") as c:
            for more, said in ((dict(draft="clever"), "'draft'"), (dict(draft="model"), "'draft'")):
                g = c.start(p, **kw, **more)
                self.assertIsNone(g.result(), more)
                self.assertIn(said, g.error)
            for length in (1, 32):
                self.same(self.base[0], c.generate(p, draft_len=length, **kw), f"length {length}")


if __name__ == "__main__":
    unittest.main()
