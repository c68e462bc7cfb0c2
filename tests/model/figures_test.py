"""The figures of `flotilla quality`, each computed again in numpy from the engine's logits."""
import json, os, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import run
from logits import logits
from weights_test import tiny

import numpy as np


def quality(model, *words, **kw):
    r = run("quality", "--model", model, "--json", *words, **kw)
    assert r.returncode == 0, r.stderr[-500:]
    return json.loads(r.stdout)


class Figures(unittest.TestCase):
    def test_recomputed(self):
        """Of two small models with random weights, whose predictions differ much: every figure from the engine's
        logits, in numpy. The divergence is that of the judged model from the baseline; the other one is far off."""
        window, rng = 16, np.random.default_rng(6)

        def sharper(t):
            t["output"] = (t["output"][0] * 40 + rng.standard_normal((259, 64)).astype(np.float32) * 0.3, t["output"][1])
        with tempfile.TemporaryDirectory() as d:
            judged, base, text = (os.path.join(d, n) for n in ("judged.gguf", "base.gguf", "text"))
            tiny(judged)
            tiny(base, sharper)
            data = bytes(rng.integers(97, 117, 20 * window + 5, np.uint8)).replace(b"t", b" ")
            with open(text, "wb") as f:
                f.write(data)
            r = run("tokenize", "--model", judged, "--json", input=data)
            ids = json.loads(r.stdout)["tokens"]
            got = quality(judged, "--text", text, "--baseline", base, "--kv", "f32", "--baseline-kv", "f32", "--window", str(window))
            kl, back, agreed, nll = [], [], [], []
            for at in range(0, len(ids) - window + 1, window):
                part = ids[at:at + window]
                lq, lp = (logits(m, part, kv="f32").astype(np.float64)[window // 2:window - 1] for m in (judged, base))
                lq, lp = (x - x.max(-1, keepdims=True) for x in (lq, lp))
                lq, lp = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (lq, lp))
                kl += (np.exp(lp) * (lp - lq)).sum(-1).tolist()
                back += (np.exp(lq) * (lq - lp)).sum(-1).tolist()
                agreed += (lp.argmax(-1) == lq.argmax(-1)).tolist()
                nll += [-row[t] for row, t in zip(lq, part[window // 2 + 1:])]
        n = len(kl)
        self.assertEqual(got["tokens"], n)
        self.assertGreater(n, 100)
        self.assertGreater(abs(np.mean(back) / np.mean(kl) - 1), 0.01)
        self.assertTrue(0 < np.mean(agreed) < 1)
        for name, want in dict(kl_mean=np.mean(kl), kl_p99=sorted(kl)[-(-99 * n // 100) - 1], kl_max=max(kl),
                               top1_agreement=np.mean(agreed), perplexity=np.exp(np.mean(nll))).items():
            self.assertLess(abs(got[name] / want - 1), 1e-6, name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
