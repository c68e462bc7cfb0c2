"""GGUF files of a real architecture's shape with random weights: they cost what the real one costs.

    python tests/lib/shapes.py SHAPE TYPE FILE [layers [vocabulary]]
"""
import sys

import gguf
import numpy as np

T = gguf.GGMLQuantizationType
SHAPES = {  # layers, hidden, heads, KV heads, head size, ffn, vocabulary
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256),
    "qwen3-0.6b": (28, 1024, 16, 8, 128, 3072, 151936),
    "gemma-2b": (18, 2048, 8, 1, 256, 16384, 256000),
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 14336, 128256),
}
CONTEXTS = {"llama-3.1-8b": 131072}  # of the others: 8192
SCALES = {T.Q4_0: (0,), T.Q4_1: (0, 2), T.Q5_0: (0,), T.Q8_0: (0,), T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,),
          T.IQ4_NL: (0,), T.IQ4_XS: (0,), T.IQ3_S: (0,), T.MXFP4: ()}


def blocks(rng, kind, n):
    """n random blocks whose scales make weights of about 0.02."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    some = min(n, 1 << 15)
    data = rng.integers(0, 256, (some, size), np.uint8)
    scale = {T.Q4_K: 2e-4, T.Q5_K: 1e-4, T.Q6_K: 1e-5, T.Q8_0: 3e-4, T.IQ4_NL: 3e-4, T.IQ4_XS: 2e-5, T.IQ3_S: 2e-4}.get(kind, 4e-3)
    if kind == T.MXFP4:  # powers of two about 2^-9
        data[:, 0] = rng.integers(118, 121, some)
    for at in SCALES[kind]:
        d = (rng.uniform(0.5, 1, some) * scale).astype(np.float16)
        data[:, at:at + 2] = d.view(np.uint8).reshape(-1, 2)
    return np.resize(data, (n, size))


def kind_of(mix, name, layer, layers):
    """The type of a tensor; Q4_K_M keeps attn_v and ffn_down of half of the layers in Q6_K."""
    if mix != "Q4_K_M":
        return T.Q6_K if name == "token_embd" and mix == "Q4_0" else T[mix]
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return T.Q6_K if name == "token_embd" or (name in ("attn_v", "ffn_down") and more) else T.Q4_K


def write(shape, mix, path, layers=None, vocabulary=None):
    n_layers, hidden, heads, kv_heads, head, ffn, vocab = SHAPES[shape]
    n_layers, vocab = layers or n_layers, vocabulary or vocab
    rng = np.random.default_rng(1)
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(CONTEXTS.get(shape, 8192))
    w.add_embedding_length(hidden)
    w.add_block_count(n_layers)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_rope_dimension_count(head)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(500000.0)
    w.add_vocab_size(vocab)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([f"t{i}" for i in range(vocab)])
    w.add_token_types([1] * vocab)
    w.add_token_merges(["t 1"])
    w.add_eos_token_id(0)
    w.add_bos_token_id(0)

    def matrix(name, layer, rows, k):
        kind = kind_of(mix, name.split(".")[-1], layer, n_layers)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        w.add_tensor(name + ".weight", blocks(rng, kind, rows * k // block).reshape(rows, k // block * size), raw_dtype=kind)

    matrix("token_embd", 0, vocab, hidden)
    w.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for l in range(n_layers):
        b = f"blk.{l}."
        for norm in ("attn_norm", "ffn_norm"):
            w.add_tensor(b + norm + ".weight", np.ones(hidden, np.float32))
        for name, rows, k in (("attn_q", heads * head, hidden), ("attn_k", kv_heads * head, hidden),
                              ("attn_v", kv_heads * head, hidden), ("attn_output", hidden, heads * head),
                              ("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)):
            matrix(b + name, l, rows, k)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
