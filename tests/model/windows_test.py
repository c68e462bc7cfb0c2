"""Gemma 3, of whose six layers five see 512 positions: these keep a window only, so that a long context takes a fraction of the
pages, and logits and tokens are those of an engine that keeps everything."""
import json, os, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import GEMMA, LONG, MODEL, Cluster, local, run
from logits import KV_TYPES, logits

WINDOW, PAGE, LAYERS, WHOLE = 512, 16, 18, 3  # WHOLE: layers that see all positions
CHUNK = 512
EACH = (WINDOW - 1 + PAGE - 1) // PAGE + (PAGE - 1 + CHUNK + PAGE - 1) // PAGE  # pages of a sequence
LAYER_PAGE_BYTES = PAGE * 2 * 256 // 32 * 34  # Q8_0: one head of 256, keys and values

with open(os.path.join(HERE, "ruth_jonah.txt")) as f:
    TEXT = f.read()


def pages(c):
    r = c.status()["replicas"][0]
    return r["workers"][0]["kv_pages"], r["prefix_cache"]


class Windows(unittest.TestCase):
    def test_logits(self):
        """Windows of text (four in the long form, else two) with as many windowed pages as a chunk's rows see, bit for bit; with one
        less it is another answer."""
        ids = local(TEXT[:9000 if LONG else 5000], model=GEMMA, tokens=0)["prompt_tokens"]
        self.assertGreater(len(ids), (4 if LONG else 2) * WINDOW - 200)
        for kv in KV_TYPES if LONG else ("q8_0",):
            want = logits(GEMMA, ids, kv=kv, last=32)
            for chunk, slices in ((512, 1), (208, 3)):
                n = WINDOW // PAGE + chunk // PAGE
                got = logits(GEMMA, ids, kv=kv, last=32, chunk=chunk, slices=slices, windowed=n)
                self.assertEqual(got.tobytes(), want.tobytes(), (kv, chunk, slices))
            got = logits(GEMMA, ids, kv=kv, last=32, chunk=208, windowed=n - 1)
            self.assertNotEqual(got.tobytes(), want.tobytes(), kv)

    def test_plan(self):
        """`plan` tells both pools, by the file alone; a model without windows has one."""
        for model, want in ((GEMMA, [1024, 256]), (MODEL, [1024, None])):
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
                f.write(f"model: {model}\nworkers: 2\nkv: q8_0\nkv_tokens: 16384\nmax_sequences: 2\nchunk: {CHUNK}\n")
                f.flush()
                r = run("plan", "--config", f.name, "--json")
                self.assertEqual(r.returncode, 0, r.stderr)
                replica = json.loads(r.stdout)["replicas"][0]
                self.assertEqual([replica["kv_pages"], replica.get("kv_windowed_pages")], want)
                text = run("plan", "--config", f.name).stdout.decode()
                self.assertEqual("(1024 pages and 256 windowed ones)" in text, model == GEMMA)

    def test_pages(self):
        """A request at a depth of thousands holds 33 windowed pages, where without windows it would hold one for each 16 positions;
        the workers' memory is that of the two pools. Prompts that begin alike are right, whether their window is still there or not."""
        what = dict(tokens=16, ignore_eos=True)
        with Cluster(model=GEMMA, workers=2, threads=1, kv="q8_0", kv_tokens=16384, chunk=CHUNK, set=["max_sequences=2"]) as c:
            total, windowed = 16384 // PAGE, 4 * EACH
            windowed = min(windowed, max(2 * EACH, total // 4))
            at, _ = pages(c)
            self.assertEqual((at["total"], at["windowed"]["total"]), (total, windowed))
            self.assertEqual(sum(w["kv_bytes"] for w in c.workers()),
                             (total * WHOLE + windowed * (LAYERS - WHOLE)) * LAYER_PAGE_BYTES)
            n = len(local(TEXT[:8000], model=GEMMA, tokens=0)["prompt_tokens"])
            self.assertGreater(n, 3 * WINDOW)
            request = c.start(TEXT[:8000], tokens=8000, ignore_eos=True)  # it decodes until it is cancelled
            s = c.wait(lambda s: s["replicas"][0]["prefix_cache"]["pages_held"] > n // PAGE + 1, 300)
            at = s["replicas"][0]["workers"][0]["kv_pages"]
            self.assertEqual(at["windowed"]["held"], WINDOW // PAGE + 1)
            request.process.terminate()
            request.result()
            c.wait(lambda s: s["replicas"][0]["running"] == 0, 60)
            tokens_saved = 0
            for prompt in (TEXT[:8000] + " Then", TEXT[:4000] + " Then", TEXT[10000:19000 if LONG else 14000], TEXT[:4000] + " Thus"):
                self.assertEqual(c.generate(prompt, **what)["tokens"], local(prompt, model=GEMMA, kv="q8_0", **what)["tokens"], prompt[-9:])
                at, cache = pages(c)
                self.assertEqual((at["windowed"]["held"], cache["pages_held"]), (0, 0))
                if tokens_saved == 0:
                    self.assertGreater(cache["tokens_saved"], 3 * WINDOW)  # the window was there
                tokens_saved = cache["tokens_saved"]


if __name__ == "__main__":
    unittest.main(verbosity=2)
