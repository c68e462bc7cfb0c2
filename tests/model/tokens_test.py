"""SmolLM2's tokens: recorded ids, round trips of random Unicode, bytes that the vocabulary lacks."""
import json, os, random, sys, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import MODEL, run

HERE = os.path.dirname(__file__)
MISSING = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, *range(0xF1, 0xF3), *range(0xF5, 0x100)}


def encode(data):
    r = run("tokenize", "--model", MODEL, "--json", input=data)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)["tokens"]


def byte_alphabet():
    """GPT-2's byte <-> character table, written from its definition."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(others)}}


class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import gguf
        field = gguf.GGUFReader(MODEL).fields["tokenizer.ggml.tokens"]
        table = byte_alphabet()
        cls.pieces = []
        for i in field.data:
            text = bytes(field.parts[i]).decode()
            cls.pieces.append(bytes(table[c] for c in text) if all(c in table for c in text) else text.encode())

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids)

    def test_recorded(self):
        with open(os.path.join(HERE, "smollm2_token_ids.json")) as f:
            rows = json.load(f)
        self.assertEqual(len(rows), 17)
        for row in rows:
            self.assertEqual(encode(row["text"].encode()), row["ids"], row["text"])

    def test_round_trip(self):
        """1,000 random strings; one run of the program takes them all, cut apart by a rare mark."""
        rng = random.Random(1)
        ranges = [(32, 127), (0xA0, 0x250), (0x370, 0x600), (0x900, 0xA00), (0x2000, 0x2070), (0x3000, 0x3100),
                  (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F650), (9, 14)]
        n = 0
        while n < 1000:
            text = "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(0, 40)))
            data = text.encode()
            if MISSING & set(data):
                continue
            n += 1
            if n % 20 == 0:  # alone
                self.assertEqual(self.decode(encode(data)), data)
                continue
            if n % 20 == 1:
                batch = []
            batch.append(data)
            if n % 20 == 19:
                joined = b"\n\n".join(batch)
                self.assertEqual(self.decode(encode(joined)), joined)

    def test_special(self):
        text = b"<|im_start|>user\nhi<|im_end|>"
        plain = encode(text)
        r = run("tokenize", "--model", MODEL, "--json", "--special", input=text)
        special = json.loads(r.stdout)["tokens"]
        self.assertEqual((special[0], special[-1]), (1, 2))
        self.assertFalse({1, 2} & set(plain))
        self.assertEqual(self.decode(plain), text)

    def test_missing_and_broken_bytes(self):
        """The file names its end of text as the unknown token: a text cannot hold that, so they are left out."""
        self.assertEqual(encode(b"a\x04b"), [*encode(b"a"), *encode(b"b")])
        for data in (b"\xff", b"a\xf5", b"\xc0\x80", b"\xe6\xad", bytes(range(256))):
            ids = encode(data)
            self.assertEqual(self.decode(ids), bytes(b for b in data if b not in MISSING), data)
        self.assertEqual(self.decode(encode(b"\xe6\xad")), b"\xe6\xad")  # a cut character, byte by byte

    def test_last_newline_counts(self):
        self.assertNotEqual(encode(b"a\n"), encode(b"a"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
