"""Weights: dequantised exactly as the gguf package does; files that cannot be right are refused by
name before anything is served."""
import os, subprocess, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import BIN, GEMMA, MODEL, local, run

import gguf
import numpy as np


def ours(path, name):
    r = subprocess.run([os.path.join(BIN, "dequant_tool"), path, name], stdout=subprocess.PIPE, check=True)
    return np.frombuffer(r.stdout, np.float32)


class Dequantise(unittest.TestCase):
    def compare(self, path, tensors):
        for t in tensors:
            want = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).ravel()
            got = ours(path, t.name)
            self.assertEqual(got.size, want.size, t.name)
            self.assertTrue((got.view(np.uint32) == want.view(np.uint32)).all(), (t.name, t.tensor_type.name))

    def test_real_tensors(self):
        tensors = {t.name: t for t in gguf.GGUFReader(MODEL).tensors}
        names = ["token_embd.weight", "blk.0.attn_norm.weight", "blk.3.ffn_down.weight", "blk.29.attn_k.weight"]
        self.assertEqual({tensors[n].tensor_type.name for n in names}, {"Q8_0", "F32", "Q4_1"})
        self.compare(MODEL, [tensors[n] for n in names])

    def test_real_tensors_of_k_quants(self):
        """One tensor of each type that the Gemma file has."""
        first = {}
        for t in gguf.GGUFReader(GEMMA).tensors:
            if t.n_elements < 2 << 20:
                first.setdefault(t.tensor_type.name, t)
        self.assertIn("Q4_K", first)
        self.assertIn("Q6_K", first)
        self.compare(GEMMA, first.values())

    def test_made_tensors(self):
        rng = np.random.default_rng(3)
        types = [gguf.GGMLQuantizationType[n] for n in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")]
        scales_at = dict(Q2_K=(80, 82), Q3_K=(108,), Q4_K=(0, 2), Q5_K=(0, 2), Q6_K=(208,), IQ4_NL=(0,), IQ4_XS=(0,), IQ3_S=(0,))
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "t.gguf")
            w = gguf.GGUFWriter(path, "llama")
            for t in types:
                values = rng.standard_normal((7, 96), np.float32) * rng.choice([1e-4, 1, 1e3], (7, 1)).astype(np.float32)
                w.add_tensor(t.name, gguf.quants.quantize(values, t), raw_dtype=t)
            for name, offsets in scales_at.items():
                t = gguf.GGMLQuantizationType[name]
                block = gguf.GGML_QUANT_SIZES[t][1]
                data = rng.integers(0, 256, (7, 3 * block), np.uint8)
                for b in range(0, 3 * block, block):
                    for o in offsets:
                        data[:, b + o:b + o + 2] = rng.standard_normal((7, 1)).astype(np.float16).view(np.uint8)
                w.add_tensor(name, data, raw_dtype=t)
            # Every scale that MXFP4 has but the last, which is not a number; the first are denormal.
            exponents = rng.integers(0, 256, (255, 17), np.uint8)
            exponents[:, 0] = np.arange(255)
            w.add_tensor("exponents", exponents, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            w.write_header_to_file()
            w.write_kv_data_to_file()
            w.write_tensors_to_file()
            w.close()
            tensors = gguf.GGUFReader(path).tensors
            self.assertEqual(len(tensors), 18)
            self.compare(path, tensors)

    def test_grid(self):
        """All 512 entries of IQ3_S's grid, with every sign and sub-block scale."""
        blocks = np.random.default_rng(4).integers(0, 256, (64, 110), np.uint8)
        blocks[:, 0:2] = np.array([1], np.float16).view(np.uint8)
        for b in range(64):
            index = np.roll(np.arange(64) + 64 * (b % 8), b)
            blocks[b, 2:66] = index % 256
            blocks[b, 66:74] = np.packbits(index // 256 == 1, bitorder="little")
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "t.gguf")
            w = gguf.GGUFWriter(path, "llama")
            w.add_tensor("grid", blocks, raw_dtype=gguf.GGMLQuantizationType.IQ3_S)
            w.write_header_to_file()
            w.write_kv_data_to_file()
            w.write_tensors_to_file()
            w.close()
            self.compare(path, gguf.GGUFReader(path).tensors)


class Encode(unittest.TestCase):
    def test_q4_0_as_ggml(self):
        """Keys and values of Q4_0 are encoded to the bytes that ggml's reference gives."""
        rng = np.random.default_rng(8)
        x = rng.standard_normal((20000, 32)).astype(np.float32) * np.exp(rng.standard_normal((20000, 1)) * 2).astype(np.float32)
        x[7] = 0
        x[8, :] = np.resize([1, -1], 32)
        r = subprocess.run([os.path.join(BIN, "encode_tool"), "q4_0"], input=x.tobytes(), stdout=subprocess.PIPE, check=True)
        want = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q4_0)
        self.assertEqual(r.stdout, want.tobytes())


def tiny(path, change=None, **kv):
    """A llama of one layer with random weights; `change` may edit {name: (array, type)}."""
    rng = np.random.default_rng(1)
    d, ffn, vocab = 64, 96, 259
    shapes = {"token_embd": (vocab, d), "output": (vocab, d), "output_norm": (d,), "blk.0.attn_norm": (d,),
              "blk.0.ffn_norm": (d,), "blk.0.attn_q": (d, d), "blk.0.attn_k": (32, d), "blk.0.attn_v": (32, d),
              "blk.0.attn_output": (d, d), "blk.0.ffn_gate": (ffn, d), "blk.0.ffn_up": (ffn, d),
              "blk.0.ffn_down": (d, ffn)}
    f32 = gguf.GGMLQuantizationType.F32
    tensors = {n: ((rng.standard_normal(s) * 0.1).astype(np.float32), f32) for n, s in shapes.items()}
    if change:
        change(tensors)
    w = gguf.GGUFWriter(path, "llama")
    base = dict(context_length=128, embedding_length=d, block_count=1, feed_forward_length=ffn, head_count=2,
                head_count_kv=1, rope_dimension_count=32, layer_norm_rms_eps=1e-5)
    for key, value in {**base, **kv}.items():
        getattr(w, "add_" + key)(*(value if isinstance(value, tuple) else [value]))
    from scripted_gguf import BM
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([BM[b] for b in range(256)] + ["th", "<|endoftext|>", "<|im_end|>"])
    w.add_token_types([1] * 257 + [3, 3])
    w.add_token_merges(["t h"])
    w.add_eos_token_id(257)
    for n, (array, t) in tensors.items():
        w.add_tensor(n if n.endswith(".bias") else n + ".weight", array, raw_dtype=None if t == f32 else t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Refused(unittest.TestCase):
    def refuse(self, *words, change=None, **kv):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "t.gguf")
            tiny(path, change, **kv)
            r = run("generate", "--model", path, "--prompt", "a", "--tokens", "2")
            self.assertEqual(r.returncode, 1)
            for w in (path, *words):
                self.assertIn(w, r.stderr.decode())

    def test_tiny_runs(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "t.gguf")
            tiny(path)
            base = local("abc", model=path, tokens=8, ignore_eos=True)["tokens"]
            self.assertEqual(len(base), 8)
            for kw in (dict(isa="scalar"), dict(chunk=1), dict(threads=3)):
                self.assertEqual(local("abc", model=path, tokens=8, ignore_eos=True, **kw)["tokens"], base, kw)

    def test_shapes(self):
        def narrow(t):
            t["blk.0.attn_q"] = (np.zeros((64, 60), np.float32), t["blk.0.attn_q"][1])
        self.refuse("blk.0.attn_q.weight", "60", "64", change=narrow)
        self.refuse("blk.0.attn_norm.weight", change=lambda t: t.pop("blk.0.attn_norm"))
        self.refuse("259", "267", change=lambda t: t.update(
            token_embd=(np.zeros((267, 64), np.float32), t["token_embd"][1])))
        self.refuse("head_count", head_count=0)
        self.refuse("head_count", head_count=2, head_count_kv=3)
        self.refuse("block_count", block_count=2**31 - 1)

    def test_types(self):
        def iq2(t):
            f32 = t["output"][1]
            t["blk.0.ffn_gate"] = t["blk.0.ffn_up"] = (np.zeros((256, 64), np.float32), f32)
            t["blk.0.ffn_down"] = (np.zeros((64, 66), np.uint8), gguf.GGMLQuantizationType.IQ2_XXS)
        self.refuse("blk.0.ffn_down.weight", "IQ2_XXS", change=iq2, feed_forward_length=256)

        def infinite(t):
            block = np.zeros((64, 34 * 3), np.uint8)
            block[5, 0:2] = 0x00, 0x7C
            t["blk.0.ffn_down"] = (block, gguf.GGMLQuantizationType.Q8_0)
        self.refuse("blk.0.ffn_down.weight", "infinite", change=infinite)

        def no_number(t):
            block = np.zeros((64, 17 * 3), np.uint8)
            block[5, 17] = 255
            t["blk.0.ffn_down"] = (block, gguf.GGMLQuantizationType.MXFP4)
        self.refuse("blk.0.ffn_down.weight", "not a number", change=no_number)

    def test_variants(self):
        self.refuse("rope.scaling.type", "longrope", rope_scaling_type=gguf.RopeScalingType.LONGROPE)
        self.refuse("split.count", "3", uint32=("split.count", 3))
        self.refuse("blk.0.attn_q.bias", change=lambda t: t.update({"blk.0.attn_q.bias": t["output_norm"]}))
        self.refuse("expert_count", expert_count=4)
        # A key of another type is not an absent one.
        self.refuse("llama.expert_count", string=("llama.expert_count", "4"))
        self.refuse("llama.attention.sliding_window", string=("llama.attention.sliding_window", "8"))
        self.refuse("llama.rope.scaling.type", uint32=("llama.rope.scaling.type", 1))

    def test_cut_files(self):
        size = os.path.getsize(MODEL)
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "cut.gguf")
            with open(MODEL, "rb") as src:
                head = src.read(4 << 20)
            for n in (0, 3, 100, 1 << 20):
                with open(path, "wb") as dst:
                    dst.write(head[:n])
                r = run("generate", "--model", path, "--prompt", "a")
                self.assertEqual(r.returncode, 1)
                self.assertIn(path, r.stderr.decode())
            for n in (size - 1, size // 2):
                with open(path, "wb") as dst:  # sparse: only the header is real
                    dst.write(head)
                    dst.truncate(n)
                r = run("generate", "--model", path, "--prompt", "a")
                self.assertEqual(r.returncode, 1)
                self.assertRegex(r.stderr.decode(), r"tensor '\S+': .*missing")


if __name__ == "__main__":
    unittest.main(verbosity=2)
