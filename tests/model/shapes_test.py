"""Buffers are as large as the file's shape needs: models whose queries are wider than the hidden width, or whose FFN is eight
times as wide, with few layers and random weights, in the sanitized build where there is one; and the workers' compute path
allocates nothing on them either."""
import os, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import shapes
from cluster import BIN, Cluster, local
from logits import logits

GUARD = os.path.join(BIN, "..", "lib", "libguard_malloc.so")
SANITIZED = os.environ.get("FLOTILLA_SANITIZED_BIN") or BIN


class Shapes(unittest.TestCase):
    def test_shapes(self):
        ids = [(i * 37 + 5) % 1024 for i in range(40)]
        for shape, mix in (("qwen3-0.6b", "Q4_K_M"), ("qwen3-0.6b", "Q8_0"), ("gemma-2b", "Q4_0"), ("gemma-2b", "Q6_K")):
            with tempfile.TemporaryDirectory() as d:
                path = os.path.join(d, "shape.gguf")
                shapes.write(shape, mix, path, layers=3, vocabulary=1024)
                base = logits(path, ids, kv="q8_0", last=4)
                self.assertEqual(base.shape, (4, 1024))
                for kw in (dict(slices=3, chunk=7), dict(isa="avx2", chunk=16)):
                    self.assertEqual(logits(path, ids, kv="q8_0", last=4, program=SANITIZED, **kw).tobytes(), base.tobytes(),
                                     (shape, mix, kw))
                if mix == "Q8_0" or mix == "Q4_0":
                    self.guarded(path)

    def guarded(self, path):
        what = dict(prompt_tokens="5,6,7", tokens=200, ignore_eos=True, temp=0.7, seed=1, repetition_penalty=1.1, logprobs=3)
        want = local(None, model=path, **what)
        with Cluster(model=path, workers=2, kv_tokens=1024, env={"LD_PRELOAD": GUARD, "GUARD_MALLOC_SAY": "1"}) as c:
            self.assertGreaterEqual(c.text().count("guard_malloc: watching"), 2)
            got = c.generate(None, **what)
            self.assertEqual((got["tokens"], got["logprobs"]), (want["tokens"], want["logprobs"]))
            self.assertEqual(len(got["tokens"]), 200)


if __name__ == "__main__":
    unittest.main(verbosity=2)
