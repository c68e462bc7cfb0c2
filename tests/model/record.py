"""Records what the tests of this folder compare with, from llama-cpp-python==0.3.36 (built with
CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON"; its default build crashes
on batches where CPUs have AMX). Needs that package, gguf and numpy; run it by hand:

    python tests/model/record.py SMOLLM2.gguf GEMMA.gguf LLAMA_SOURCE

  smollm2.vectors, gemma3.vectors   20 texts a model through its F32 file (weights dequantised by the
                                    gguf package) with F32 keys and values: at each position log-sum-exp
                                    and the 128 largest logits (format: coordinator/cli/quality.c)
  gemma3_token_ids.json             ids of the 47 texts of llama.cpp's vocabulary tests
  perplexity.json                   perplexity of ruth_jonah.txt by the F32 files
"""
import json, os, struct, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
import llama_cpp
import numpy as np
from f32_file import write

TOP, TOKENS, WINDOW = 128, 48, 512
TEXTS = [
    "The river rises in the hills north of the town and runs for forty miles before it meets the sea. In spring, when the snow melts, it often floods the low fields.",
    "To make bread you need flour, water, salt and yeast. Mix them, knead the dough for ten minutes, let it rest until it has doubled, and bake it in a hot oven.",
    "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n\nprint(gcd(48, 36))  # 12\n",
    "#include <stdio.h>\n\nint main(void)\n{\n    for (int i = 0; i < 10; i++)\n        printf(\"%d\\n\", i * i);\n    return 0;\n}\n",
    "SELECT name, COUNT(*) AS orders FROM customers JOIN orders ON customers.id = orders.customer_id GROUP BY name HAVING COUNT(*) > 3;",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. It takes place in the chloroplasts of green plants and algae.",
    "Dear Ms. Lindqvist,\n\nThank you for your letter of 3 March. I am glad to confirm that the meeting will take place on Tuesday at 10:30 in room 214.",
    "The three largest planets are Jupiter, Saturn and Uranus. Jupiter alone is heavier than all the other planets of the solar system together.",
    "Q: What is 17 + 25?\nA: 42\nQ: What is 9 * 8?\nA: 72\nQ: What is 144 / 12?\nA: 12\nQ: What is 81 - 27?\nA:",
    "She closed the door quietly, hung up her coat and listened. Nothing moved in the house but the clock in the hall, and even that seemed to hesitate.",
    "Les enfants jouent dans le jardin pendant que leur mère prépare le dîner. Il fait encore chaud, et les oiseaux chantent dans les arbres.",
    "Die Sonne geht im Osten auf und im Westen unter. Im Sommer sind die Tage lang, im Winter kurz, und im Frühling blühen die Bäume.",
    "{\"name\": \"sensor-7\", \"unit\": \"celsius\", \"values\": [21.5, 21.7, 22.0, 22.4], \"ok\": true, \"note\": null}",
    "In mathematics, a prime number is a natural number greater than 1 that has no divisors other than 1 and itself. The first primes are 2, 3, 5, 7, 11 and 13.",
    "- milk\n- eggs\n- two loaves of bread\n- apples\n- coffee\n\nPlease also collect the parcel from the post office before five o'clock.",
    "The committee met twice last year. It approved the budget, postponed the new roof until the summer, and elected a treasurer after a long discussion.",
    "Water expands when it freezes, which is why ice floats and why pipes burst in winter. Most other substances shrink when they become solid.",
    "1. Open the box.\n2. Remove the packaging.\n3. Connect the cable to the port on the back.\n4. Press the button and wait until the light is green.",
    "The old lighthouse keeper counted the ships every night: three with red lanterns, one with a green lantern, and sometimes none at all.",
    "Once upon a time there was a fox who wanted to learn how to swim. He asked the duck, the otter and the frog, and each of them gave him different advice.",
]


def open_model(path, n_ctx):
    return llama_cpp.Llama(model_path=path, n_ctx=n_ctx, n_batch=n_ctx, n_threads=os.cpu_count(), logits_all=True,
                           type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, verbose=False)


def vocabulary(path):
    return llama_cpp.Llama(model_path=path, vocab_only=True, verbose=False)


def logits_of(m, ids):
    m.reset()
    m.eval(ids)
    return np.array(m.scores[:len(ids)], np.float64)


def log_sum_exp(x):
    top = x.max(-1, keepdims=True)
    return (top + np.log(np.exp(x - top).sum(-1, keepdims=True)))[..., 0]


def record(m, path, bos):
    out = [b"flotvec1", struct.pack("<I", len(TEXTS))]
    for text in TEXTS:
        ids = m.tokenize(text.encode(), add_bos=bos, special=False)[:TOKENS]
        logits = logits_of(m, ids)
        lse = log_sum_exp(logits)
        out += [struct.pack("<I", len(ids)), np.array(ids, "<i4").tobytes()]
        for row, total in zip(logits, lse):
            top = np.argsort(-row, kind="stable")[:TOP]
            out += [struct.pack("<d", total), top.astype("<u4").tobytes(), row[top].astype("<f4").tobytes()]
    with open(path, "wb") as f:
        f.write(b"".join(out))


def perplexity(m, bos):
    with open(os.path.join(HERE, "ruth_jonah.txt"), "rb") as f:
        ids = m.tokenize(f.read(), add_bos=False, special=False)
    nll, n = 0.0, 0
    for at in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[at:at + WINDOW]
        if bos:
            window[0] = m.token_bos()
        logits = logits_of(m, window)[WINDOW // 2:WINDOW - 1]
        nll += (log_sum_exp(logits) - logits[np.arange(len(logits)), window[WINDOW // 2 + 1:]]).sum()
        n += len(logits)
    return dict(perplexity=float(np.exp(nll / n)), tokens=n)


def main():
    smollm2, gemma, source = sys.argv[1:4]
    quoted = {}
    for name, path, bos in (("smollm2", smollm2, False), ("gemma3", gemma, True)):
        with tempfile.TemporaryDirectory() as work:
            f32 = os.path.join(work, "f32.gguf")
            write(path, f32)
            m = open_model(f32, WINDOW)
            record(m, os.path.join(HERE, name + ".vectors"), bos)
            quoted[name] = perplexity(m, bos)
            m.close()
    with open(os.path.join(HERE, "perplexity.json"), "w") as f:
        json.dump(quoted, f, indent=1)
    inputs = os.path.join(source, "vendor", "llama.cpp", "models", "ggml-vocab-llama-spm.gguf.inp")
    with open(inputs, encoding="utf-8", newline="") as f:
        texts = f.read().split("\n__ggml_vocab_test__\n")
    v = vocabulary(gemma)
    with open(os.path.join(HERE, "gemma3_token_ids.json"), "w") as f:
        json.dump([v.tokenize(t.encode(), add_bos=False, special=False) for t in texts], f)


if __name__ == "__main__":
    main()
