"""Architectures and RoPE variants: tiny random models against a plain numpy forward pass
(tests/lib/tiny_arch.py), every position's logits, on 1, 2 and 3 slices and on real workers; a file
that lacks a tensor is refused by the tensor's name."""
import os, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import numpy as np
import tiny_arch
from cluster import Cluster, run
from logits import KV_TYPES, embedding, logits
from machine import levels

NAMES = [n for n, c in tiny_arch.CFG.items() if c["arch"] in ("llama", "gemma3", "qwen2", "qwen3")]
IDS = tiny_arch.PROMPT


def layers(name):
    return tiny_arch.CFG[name]["L"]


class Architectures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.want = {}
        for name in NAMES:
            c = tiny_arch.CFG[name]
            w = tiny_arch.weights(name, c)
            tiny_arch.save(cls.path(name), c, w)
            cls.want[name] = tiny_arch.forward(c, w, np.array(IDS)).astype(np.float32)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.dir.name, name + ".gguf")

    def test_logits(self):
        self.assertGreaterEqual(len(NAMES), 9)
        for name in NAMES:
            with self.subTest(name):
                got = logits(self.path(name), IDS, kv="f32")
                self.assertLess(np.abs(got - self.want[name]).max(), 1e-2 if name.startswith("gemma3") else 1e-3)
                self.assertEqual(got.argmax(-1).tolist(), self.want[name].argmax(-1).tolist())

    def test_one_answer(self):
        """Bit for bit on any number of slices, chunk, threads, level, for every KV type."""
        for name in NAMES:
            for kv in KV_TYPES:
                base = logits(self.path(name), IDS, kv=kv)
                for slices in range(1, min(3, layers(name)) + 1):
                    for axis in [dict(), dict(chunk=1), dict(threads=3), *(dict(isa=i) for i in levels())]:
                        if kv in ("q8_0", "q4_0") and tiny_arch.CFG[name]["hd"] % 32:
                            continue
                        got = logits(self.path(name), IDS, kv=kv, slices=slices, **axis)
                        self.assertEqual(got.tobytes(), base.tobytes(), (name, kv, slices, axis))
                if kv in ("q8_0", "q4_0") and tiny_arch.CFG[name]["hd"] % 32:
                    self.assertIsNone(base)
        self.assertGreaterEqual(len(levels()), 2)

    def test_embeddings(self):
        """The mean of all hidden rows, with length 1, as numpy has it; and bit for bit however it was computed."""
        for name in NAMES:
            c = tiny_arch.CFG[name]
            mean = tiny_arch.hidden(c, tiny_arch.weights(name, c), np.array(IDS)).mean(0)
            want = mean / np.linalg.norm(mean)
            for kv in KV_TYPES:
                if kv in ("q8_0", "q4_0") and c["hd"] % 32:
                    continue
                base = embedding(self.path(name), IDS, kv=kv)
                self.assertEqual(base.shape, want.shape)
                self.assertLess(np.abs(base - want).max(), {"f32": 1e-4, "f16": 1e-2}.get(kv, 0.3), (name, kv))
                for slices in range(1, min(3, layers(name)) + 1):
                    for axis in [dict(), dict(chunk=1), dict(chunk=7), dict(threads=3), *(dict(isa=i) for i in levels())]:
                        got = embedding(self.path(name), IDS, kv=kv, slices=slices, **axis)
                        self.assertEqual(got.tobytes(), base.tobytes(), (name, kv, slices, axis))

    def test_windows(self):
        """Layers with a window keep no more than the pages that a chunk's rows see, which are written again and again."""
        ids, tried = (list(IDS) * 5)[:230], 0
        for name in NAMES:
            window = tiny_arch.CFG[name].get("window")
            if not window:
                continue
            for kv in KV_TYPES:
                want = logits(self.path(name), ids, kv=kv)
                for chunk in (1, 16, 48):
                    pages = (window - 1 + 15) // 16 + (chunk + 15) // 16
                    for slices in (1, 3):
                        got = logits(self.path(name), ids, kv=kv, chunk=chunk, slices=slices, windowed=pages)
                        self.assertEqual(got.tobytes(), want.tobytes(), (name, kv, chunk, slices))
                        tried += 1
                short = logits(self.path(name), ids, kv=kv, chunk=48, windowed=pages - 1)
                self.assertNotEqual(short.tobytes(), want.tobytes(), (name, kv))
        self.assertGreaterEqual(tried, 24)

    def test_workers(self):
        for name in NAMES:
            c, ids = tiny_arch.CFG[name], list(IDS)
            w = tiny_arch.weights(name, c)
            for _ in range(16):
                ids.append(int(tiny_arch.forward(c, w, np.array(ids))[-1].argmax()))
            for workers in range(1, min(3, layers(name)) + 1):
                with Cluster(model=self.path(name), workers=workers, kv="f32") as cluster:
                    got = cluster.generate(None, prompt_tokens=",".join(map(str, IDS)), tokens=16, ignore_eos=True)
                    self.assertEqual(got["tokens"], ids[len(IDS):], (name, workers))

    def test_missing_tensors(self):
        for name in ("llama_plain", "gemma3_swa8", "qwen2_bias", "qwen3_headdim"):
            c = tiny_arch.CFG[name]
            w = tiny_arch.weights(name, c)
            for missing in [n for n in w if n.startswith("blk.1.")] + ["output_norm.weight", "token_embd.weight"]:
                path = os.path.join(self.dir.name, "missing.gguf")
                tiny_arch.save(path, c, {n: a for n, a in w.items() if n != missing})
                r = run("generate", "--model", path, "--prompt", "a", "--tokens", "1")
                self.assertEqual(r.returncode, 1)
                self.assertIn(missing, r.stderr.decode())
            unknown = "blk.0.attn_output.bias" if c.get("bias") else "blk.0.attn_q.bias"
            tiny_arch.save(path, c, {**w, unknown: np.zeros(c["H"] * c["hd"], np.float32)})
            r = run("generate", "--model", path, "--prompt", "a", "--tokens", "1")
            self.assertEqual(r.returncode, 1)
            self.assertIn(unknown, r.stderr.decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
