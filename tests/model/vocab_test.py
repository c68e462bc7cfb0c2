"""Tokenizers against expected ids from elsewhere: five vocabularies with the texts and ids of llama.cpp's source, and
Gemma 3's with ids recorded from llama-cpp-python (record.py). Random Unicode comes back whole from Gemma's tokens; and
what `inspect` shows of a file."""
import json, os, random, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import rawgguf
from cluster import GEMMA, LLAMA_SOURCE, run

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(LLAMA_SOURCE, "vendor", "llama.cpp", "models")
NAMES = ("gpt-2", "llama-bpe", "qwen2", "llama-spm", "phi-3")


def texts(name):
    with open(os.path.join(MODELS, f"ggml-vocab-{name}.gguf.inp"), encoding="utf-8", newline="") as f:
        return f.read().split("\n__ggml_vocab_test__\n")


def expected(name):
    """Each text of a vocabulary's test, and its ids."""
    with open(os.path.join(MODELS, f"ggml-vocab-{name}.gguf.out")) as f:
        want = [[int(t) for t in line.split()] for line in f.read().split("\n")]
    inputs = texts(name)
    assert (len(inputs), len(want)) == (47, 47)
    return zip(inputs, want)


def encode(path, data):
    r = run("tokenize", "--model", path, "--json", input=data)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)["tokens"]


class Vocabularies(unittest.TestCase):
    def test_expected(self):
        for name in NAMES:
            for text, ids in expected(name):
                got = encode(os.path.join(MODELS, f"ggml-vocab-{name}.gguf"), text.encode())
                self.assertEqual(got, ids, (name, text))

    def test_gemma_recorded(self):
        with open(os.path.join(HERE, "gemma3_token_ids.json")) as f:
            want = json.load(f)
        inputs = texts("llama-spm")
        self.assertEqual((len(inputs), len(want)), (47, 47))
        for text, ids in zip(inputs, want):
            self.assertEqual(encode(GEMMA, text.encode()), ids, text)

    def test_gemma_round_trip(self):
        import gguf
        fields = gguf.GGUFReader(GEMMA).fields
        tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"].contents()

        def piece(i):
            raw = bytes(tokens.parts[tokens.data[i]])
            return bytes([int(raw[3:5], 16)]) if types[i] == 6 else raw.replace("\u2581".encode(), b" ")

        rng = random.Random(2)
        ranges = [(32, 127), (0xA0, 0x250), (0x370, 0x600), (0x900, 0xA00), (0x2000, 0x2070), (0x3000, 0x3100),
                  (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F650), (0xE000, 0xE100), (0, 31)]
        strings = ["".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(0, 40))) for _ in range(1000)]
        for at in range(0, 1000, 50):  # fifty to a run of the program, and some alone
            together = "\n".join(strings[at:at + 50]).encode()
            for data in (together, strings[at].encode()):
                self.assertEqual(b"".join(piece(i) for i in encode(GEMMA, data)), data)

    def test_files_without_tensors(self):
        path = os.path.join(MODELS, "ggml-vocab-phi-3.gguf")
        r = run("inspect", path)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(b'tokenizer.ggml.model = "llama"', r.stdout)

    def test_control_tokens_are_text(self):
        path = os.path.join(MODELS, "ggml-vocab-llama-bpe.gguf")
        data = b"<|begin_of_text|>hi"
        self.assertGreater(len(encode(path, data)), 3)
        r = run("tokenize", "--model", path, "--special", "--json", input=data)
        self.assertEqual(json.loads(r.stdout)["tokens"][0], 128000)


class Inspect(unittest.TestCase):
    """What a file says is shown as it is, and steers no terminal."""

    def show(self, *kvs):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "x.gguf")
            with open(path, "wb") as f:
                f.write(rawgguf.gguf([rawgguf.kv(*x) for x in kvs], [rawgguf.tinfo(b"t\x1b]0;x\x07", [1], 0, 0)], bytes(32)))
            text, js = run("inspect", path), run("inspect", path, "--json")
        self.assertEqual((text.returncode, js.returncode), (0, 0), text.stderr)
        return text.stdout, json.loads(js.stdout)["metadata"]

    def test_whole_numbers(self):
        values = {"u": (rawgguf.U64, 2**64 - 1), "v": (rawgguf.U64, 2**63 - 1), "i": (rawgguf.I64, -2**63),
                  "w": (rawgguf.U64, 2**53 + 1), "b": (rawgguf.I8, -1), "t": (rawgguf.BOOL, 1)}
        text, metadata = self.show(*((k, *tv) for k, tv in values.items()))
        for k, (t, v) in values.items():
            self.assertIn(f"{k} = {'true' if k == 't' else v}\n".encode(), text)
            if k == "u":  # integers of JSON end at 2^63 - 1 here: beyond them a real, of nine digits
                self.assertAlmostEqual(metadata[k] / v, 1, places=7)
            else:
                self.assertEqual(metadata[k], v)

    def test_escapes(self):
        text, _ = self.show(("a\x1b[31m", rawgguf.STR, b"x\x1b[2J\xc2\x9b\x7f\xff\r\xc3\xa9"))
        self.assertIn(rb'a\x1b[31m = "x\x1b[2J\xc2\x9b\x7f\xff\x0d' + "\u00e9\"\n".encode(), text)
        self.assertIn(rb"t\x1b]0;x\x07 ", text)
        self.assertEqual([b for b in text if b < 32 and b != 10 or b == 127], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
