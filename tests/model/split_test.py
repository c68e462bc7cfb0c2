"""A model in several GGUF files gives the logits and tokens of the model in one, whichever part is named, in one process and
in a cluster whose workers find all parts from one path; an incomplete set is refused by the missing part's name."""
import json, os, shutil, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import gguf_split
import tiny_arch
from cluster import MODEL, Cluster, local, run
from logits import logits

PARTS = 3
IDS = tiny_arch.PROMPT


class Split(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.parts = gguf_split.cut(MODEL, os.path.join(cls.dir.name, "demo"), PARTS)

    def test_tiny(self):
        """As the gguf package writes it."""
        for name in ("llama_plain", "gemma3_swa8"):
            c = tiny_arch.CFG[name]
            w = tiny_arch.weights(name, c)
            whole, prefix = (os.path.join(self.dir.name, n) for n in (name + ".gguf", name + "_split"))
            tiny_arch.save(whole, c, w)
            tiny_arch.save(prefix + ".gguf", c, w, split=8)
            n = -(-len(w) // 8)
            want = logits(whole, IDS)
            for i in range(1, n + 1):
                self.assertEqual(logits(gguf_split.name(prefix, i, n), IDS, slices=2).tobytes(), want.tobytes(), (name, i))

    def test_demo(self):
        want = local("Once upon a time", tokens=12, ignore_eos=True)["tokens"]
        for path in self.parts:
            self.assertEqual(local("Once upon a time", model=path, tokens=12, ignore_eos=True)["tokens"], want, path)
        with Cluster(model=self.parts[1], workers=2) as cluster:
            self.assertEqual(cluster.generate("Once upon a time", tokens=12, ignore_eos=True)["tokens"], want)
            read = sum(w["read_bytes"] for w in cluster.workers())
        inspected = [json.loads(run("inspect", path, "--json").stdout) for path in (MODEL, self.parts[2])]
        sizes = [{t["name"]: (t["type"], t["dims"], t["bytes"]) for t in i["tensors"]} for i in inspected]
        self.assertEqual(sizes[0], sizes[1])
        self.assertEqual([f["path"] for f in inspected[1]["files"]], self.parts)
        self.assertGreaterEqual(read, sum(t[2] for t in sizes[0].values()))

    def test_not_whole(self):
        def said(path):
            r = run("generate", "--model", path, "--prompt", "a", "--tokens", "1")
            self.assertEqual(r.returncode, 1)
            return r.stderr.decode()

        part, kept = self.parts[1], os.path.join(self.dir.name, "kept")
        os.rename(part, kept)
        self.assertIn(part, said(self.parts[0]))
        shutil.copy(self.parts[2], part)
        error = said(self.parts[0])
        self.assertIn(part, error)
        self.assertIn("split.no", error)
        os.rename(kept, part)
        alone = os.path.join(self.dir.name, "alone.gguf")
        shutil.copy(part, alone)
        error = said(alone)
        self.assertIn(alone, error)
        self.assertIn("split.count", error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
