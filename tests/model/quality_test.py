"""Against the reference, whose logits on both models' F32 files are recorded (record.py): our engine on the F32 files and on
the shipped ones; perplexity; what quantised keys and values cost."""
import json, os, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import GEMMA, LONG, MODEL, run
from f32_file import write
from figures_test import quality

TEXT = os.path.join(HERE, "ruth_jonah.txt")
FILES = {"smollm2": MODEL, "gemma3": GEMMA}


class Reference(unittest.TestCase):
    def vectors(self, name):
        return "--baseline", os.path.join(HERE, name + ".vectors")

    def test_f32_file(self):
        for name, path in FILES.items():
            with tempfile.TemporaryDirectory() as d:
                f32 = os.path.join(d, "f32.gguf")
                write(path, f32)
                q = quality(f32, *self.vectors(name), "--kv", "f32")
            self.assertGreater(q["tokens"], 700)
            self.assertLessEqual(q["kl_mean"], 1e-5, name)
            self.assertGreaterEqual(q["top1_agreement"], 0.995, name)

    def test_shipped_file(self):
        """What quantised weights and activations cost: no more than this, nor so little that nothing was compared."""
        for name, kl, top1 in (("smollm2", 0.006, 0.96), ("gemma3", 0.010, 0.94)):
            q = quality(FILES[name], *self.vectors(name), "--kv", "f32")
            self.assertTrue(kl / 5 <= q["kl_mean"] <= kl, (name, q))
            self.assertTrue(top1 <= q["top1_agreement"] < 1, (name, q))
            self.assertTrue(q["kl_mean"] < q["kl_p99"] < q["kl_max"], (name, q))

    def test_perplexity(self):
        with open(os.path.join(HERE, "perplexity.json")) as f:
            want = json.load(f)
        for name, path in FILES.items():
            q = quality(path, "--text", TEXT, "--kv", "f32")
            self.assertEqual(q["tokens"], want[name]["tokens"])
            self.assertGreaterEqual(q["tokens"], 2000)
            self.assertLess(abs(q["perplexity"] / want[name]["perplexity"] - 1), 0.01, name)

    def test_kv_types(self):
        """On at least 512 tokens of a text, from F32 keys and values of the same file. (Even F16 keys
        and values are at 0.004 in files of quantised weights: any difference flips activations.) In the short form
        each model with one of the types."""
        limits = (("q8_0", 0.01), ("q4_0", 0.10))
        with tempfile.NamedTemporaryFile() as f, open(TEXT, "rb") as text:
            f.write(text.read(-1 if LONG else 7500))
            f.flush()
            for i, (name, path) in enumerate(FILES.items()):
                for kv, limit in limits if LONG else limits[i:i + 1]:
                    q = quality(path, "--text", f.name, "--kv", kv, "--baseline", path, "--baseline-kv", "f32")
                    self.assertGreaterEqual(q["tokens"], 512)
                    self.assertTrue(limit / 10 <= q["kl_mean"] <= limit, (name, kv, q))
                    self.assertLess(q["top1_agreement"], 1, (name, kv))


class Refused(unittest.TestCase):
    def test_inputs(self):
        with open(os.path.join(HERE, "smollm2.vectors"), "rb") as f:
            whole = f.read()
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "v")
            for data, word in ((whole[:-1], "cut short"), (whole[:14], "cut short"), (b"GGUF", path)):
                with open(path, "wb") as f:
                    f.write(data)
                r = run("quality", "--model", MODEL, "--baseline", path, "--json")
                self.assertEqual(r.returncode, 1)
                self.assertIn(word, r.stderr.decode())
            with open(path, "w") as f:
                f.write("too short a text")
            r = run("quality", "--model", MODEL, "--text", path)
            self.assertEqual(r.returncode, 1)
            self.assertIn("fewer than one window of 512", r.stderr.decode())
        for words in ((), ("--baseline", os.path.join(HERE, "smollm2.vectors"), "--text", TEXT), ("--baseline-kv", "f32", "--text", TEXT)):
            self.assertEqual(run("quality", "--model", MODEL, *words).returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
