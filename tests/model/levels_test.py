"""Both real models, with a prompt longer than Gemma's window of 512: the same bits of logits at every
level and KV type, on one, two and three slices, in chunks of any size, with any number of threads. In the
short form SmolLM2, which has no window, gets a shorter prompt, and each KV type one of the three shapes."""
import concurrent.futures, itertools, json, os, sys, tempfile, unittest

import gguf

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import GEMMA, LONG, MODEL, local, run
from logits import KV_TYPES, logits
from machine import levels

with open(os.path.join(HERE, "ruth_jonah.txt")) as f:
    TEXT = f.read(3400)


class Levels(unittest.TestCase):
    def test_one_answer(self):
        best = levels()[-1]
        for model, least in (MODEL, 200), (GEMMA, 560):
            ids = local(TEXT if LONG or model == GEMMA else TEXT[:1000], model=model, tokens=0)["prompt_tokens"]
            self.assertGreater(len(ids), least)
            for turn, kv in enumerate(KV_TYPES):
                base = logits(model, ids, kv=kv, isa=best, last=16)
                cells = [dict(slices=2, chunk=16), dict(slices=3, threads=1), dict(slices=1, chunk=100, threads=3)]
                vectors = [dict(isa=i, slices=2, chunk=64) for i in levels()[1:]]
                scalar = [dict(isa="scalar", slices=2, chunk=256)]
                if LONG:
                    axes = itertools.product(levels(), (1, 2, 3), (16, 512), (1, 2))
                    cells, vectors = [dict(isa=i, slices=s, chunk=c, threads=t) for i, s, c, t in axes], []
                else:
                    cells = [cells[turn % len(cells)]]
                    if (model, kv) not in ((MODEL, "q8_0"), (GEMMA, "q4_0")):  # it is slow: one type a model
                        scalar = []
                def same(cell):
                    return cell, logits(model, ids, kv=kv, last=16, **cell).tobytes() == base.tobytes()

                # each cell is a process of its own: in the long form, as many as there are cores
                with concurrent.futures.ThreadPoolExecutor(os.cpu_count() if LONG else 1) as pool:
                    for cell, equal in pool.map(same, [*cells, *vectors, *scalar]):
                        self.assertTrue(equal, (model, kv, cell))

    def test_figures_name_the_level_of_every_kernel(self):
        for isa in levels():
            r = run("bench", "--model", MODEL, "-p", "8", "-n", "4", "--threads", "2", "--isa", isa, "--json")
            dispatch = json.loads(r.stdout)["dispatch"]
            self.assertEqual(list(dispatch), [isa])
            self.assertEqual(set(dispatch[isa]), {"linear", "attention", "norm", "rotate", "quantise", "gate"})
            for op, figures in dispatch[isa].items():
                self.assertGreater(figures["count"], 30 * 4, op)  # at least once a layer and token

    def test_steps_of_some_rows(self):
        words = ["bench", "--model", MODEL, "-p", "0", "-n", "0", "--threads", "2", "--rows"]
        j = json.loads(run(*words, "3,1,18", "--json").stdout)
        self.assertEqual([r["rows"] for r in j["rows"]], [3, 1, 18])
        self.assertTrue(all(r["step_ms"] > 0 and r["times_one"] > 0 for r in j["rows"]), j["rows"])
        self.assertEqual(set(j["rows_from_tiles"]), {"Q4_1", "Q8_0"})
        self.assertTrue(all(1 <= n <= 32 for n in j["rows_from_tiles"].values()), j["rows_from_tiles"])
        table = run(*words, "1,2").stdout.decode().splitlines()
        self.assertEqual([l.split()[0] for l in table if l[:1] == " "], ["1", "2"])
        for bad in ("", "0", "2,", "2,x", "2;3", "513", "-1", "99999999999999999999", ",".join(["1"] * 17)):
            r = run(*words, bad)
            self.assertNotEqual(r.returncode, 0, bad)
            self.assertIn("--rows", r.stderr.decode(), bad)

    def test_shares_of_what_the_machine_gives(self):
        """Products are counted over all quantised matrices of the layers for each row, and over the head for the last of a chunk."""
        r = run("bench", "--model", MODEL, "-p", "20", "--chunk", "8", "-n", "4", "--threads", "2", "--depth", "9", "--json")
        j = json.loads(r.stdout)
        floats = {gguf.GGMLQuantizationType[n] for n in ("F32", "F16", "BF16")}
        matrices = {t.name: int(t.n_elements) for t in gguf.GGUFReader(MODEL).tensors if t.tensor_type not in floats}
        layers = sum(n for name, n in matrices.items() if name.startswith("blk."))
        head = matrices.get("output.weight") or matrices["token_embd.weight"]
        gmac = j["prompt_tokens_per_s"] * (layers + head * 3 / 20) / 1e9
        self.assertAlmostEqual(j["prompt_gmac_per_s"] / gmac, 1, 4)
        self.assertAlmostEqual(j["prompt_share_of_peak"], j["prompt_gmac_per_s"] / j["peak_gmac_per_s"], 4)
        self.assertAlmostEqual(j["decode_share_of_read"], j["decode_gb_per_s"] / j["read_gb_per_s"], 4)
        self.assertEqual(j["depth"], 9)
        text = run("bench", "--model", MODEL, "-p", "8", "-n", "4", "--threads", "2").stdout.decode()
        self.assertRegex(text, r"(?m)^prompt +8 tokens .* GMAC/s, \d+ % of the peak of [\d.]+$")
        self.assertRegex(text, r"(?m)^decode +4 tokens .* GB/s of weights, \d+ % of the memory's [\d.]+$")

    def test_streams(self):
        words = ["bench", "--model", MODEL, "-p", "0", "-n", "0", "--threads", "2", "--depth", "40"]
        with tempfile.TemporaryDirectory() as folder:
            plot = os.path.join(folder, "plot.svg")
            j = json.loads(run(*words, "--streams", "4,1,17", "--rows", "2", "--plot", plot, "--json").stdout)
            with open(plot) as f:
                self.assertEqual(f.read().count("<polyline"), 2)
            self.assertNotEqual(run(*words, "--plot", plot).returncode, 0)  # there is nothing to draw
        self.assertEqual([s["streams"] for s in j["streams"]], [4, 1, 17])
        for s in j["streams"]:
            self.assertTrue(s["tokens_per_s"] > 0 and s["one_tokens_per_s"] > 0 and s["times_one"] > 0, s)
        self.assertNotIn("peak_gmac_per_s", j)
        r = run(*words, "--streams", "1,x")
        self.assertIn("--streams", r.stderr.decode())
        self.assertEqual(r.returncode, 2)

    def test_kernels(self):
        for isa in levels():
            j = json.loads(run("bench", "--kernels", "--isa", isa, "--json").stdout)
            self.assertEqual(j["isa"], isa)
            self.assertEqual(len(j["kernels"]["types"]), 17)
            for name, rows in j["kernels"]["types"].items():
                self.assertEqual([r["rows"] for r in rows], [1, 2, 4, 8, 16, 32], name)
        text = run("bench", "--kernels").stdout.decode()
        self.assertRegex(text, r"(?m)^Q4_K( +[\d.]+(/[\d.]+)?){6}$")
        for words in (), ("--rows", "1"), ("--kernels", "--streams", "1"):
            r = run("bench", *words)
            self.assertEqual(r.returncode, 2, words)
            self.assertIn("--model", r.stderr.decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
