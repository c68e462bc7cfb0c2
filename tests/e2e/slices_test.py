"""A worker reads and holds only its slice, and its own figures for that are those of the kernel."""
import json, os, shutil, signal, subprocess, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import GEMMA, MODEL, Cluster, local, program, run

MIB = 1 << 20


def proc_io(pid):
    with open(f"/proc/{pid}/io") as f:
        return {k: int(v) for k, v in (line.split(": ") for line in f)}


def rss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("Rss:"))


def slice_bytes(model, first, last, n_layers):
    """Bytes in the file of the tensors that layers first..last need (tied embedding)."""
    total = 0
    for t in json.loads(run("inspect", model, "--json").stdout)["tensors"]:
        name = t["name"]
        mine = name.startswith("blk.") and first <= int(name.split(".")[1]) <= last
        if name == "token_embd.weight":
            mine = first == 0 or last == n_layers - 1
        if name == "output_norm.weight":
            mine = last == n_layers - 1
        total += t["bytes"] if mine else 0
    return total


class Slices(unittest.TestCase):
    model, layers, hidden, kv_heads, head, vocab = MODEL, 30, 576, 3, 64, 49152
    ranges = [[0, 7], [8, 15], [16, 22], [23, 29]]

    def cluster(self, **axis):
        return Cluster(model=self.model, **axis)

    def positions(self, layer, kv_tokens):
        """Of the KV pool, in one layer."""
        return kv_tokens

    def test_ranges_cover_the_model(self):
        with self.cluster(workers=4, kv_tokens=1024) as c:
            ranges = [w["layers"] for w in c.workers()]
        self.assertEqual(ranges, self.ranges)

    def test_figures(self):
        for cold in (True, False):
            if cold:
                with open(self.model, "rb") as f:
                    os.fsync(f.fileno())
                    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with self.cluster(workers=2, kv_tokens=4096) as c:
                for w in c.wait(lambda s: all(x["resident_bytes"] for x in s["replicas"][0]["workers"]), 5)["replicas"][0]["workers"]:
                    want = slice_bytes(self.model, *w["layers"], self.layers)
                    self.assertEqual(w["read_bytes"], want)
                    io = proc_io(w["pid"])
                    # Reads by io_uring are not in rchar, reads from the cache not in read_bytes. The sum also has the
                    # header (2 MiB, read twice), libraries and alignment.
                    if cold:
                        self.assertGreaterEqual(io["read_bytes"], want // 4)
                    seen = io["read_bytes"] + io["rchar"]
                    self.assertGreaterEqual(seen, want)
                    self.assertLessEqual(seen, want * 1.02 + 16 * MIB)
                    self.assertLessEqual(abs(rss(w["pid"]) - w["resident_bytes"]), 4 * MIB)
                    words = 24 * self.vocab if w["layers"][1] == self.layers - 1 else 0  # the last stage has the vocabulary's bytes
                    self.assertLessEqual(w["resident_bytes"], want * 1.15 + w["kv_bytes"] + 64 * MIB + words)
                    first, last = w["layers"]  # f16 keys and values of these
                    positions = sum(self.positions(layer, 4096) for layer in range(first, last + 1))
                    self.assertEqual(w["kv_bytes"], positions * self.kv_heads * self.head * 2 * 2)

    def test_bytes_on_the_link(self):
        with self.cluster(workers=3, kv_tokens=2048, threads=1) as c:
            probe = [w["rows"] for w in c.workers()]
            g = c.generate("The quick brown fox", tokens=9, ignore_eos=True)
            # The last token is not fed back. Heartbeats tell the counters with a delay.
            rows = len(g["prompt_tokens"]) + 8
            s = c.wait(lambda s: all(w["rows"] == 1 + rows for w in s["replicas"][0]["workers"]), 5)
            for i, w in enumerate(s["replicas"][0]["workers"]):
                self.assertEqual(w["activation_bytes_in"], 0 if i == 0 else (1 + rows) * self.hidden * 4)
                self.assertEqual(w["activation_bytes_out"], 0 if i == 2 else (1 + rows) * self.hidden * 4)
            self.assertLessEqual(max(probe), 1)

    def test_the_rest_of_the_file_does_not_matter(self):
        """Each worker gets a file in which all that is not its own is 0xFF."""
        model, half = self.model, self.layers // 2
        slices = (0, half - 1), (half, self.layers - 1)
        want = local("Once upon a time", model=model, tokens=16)["tokens"]
        info = json.loads(run("inspect", model, "--json").stdout)
        with tempfile.TemporaryDirectory() as d:
            for i, (first, last) in enumerate(slices):
                os.mkdir(f"{d}/{i}")
                path = f"{d}/{i}/{os.path.basename(model)}"
                with open(model, "rb") as src, open(path, "wb") as dst:
                    dst.write(src.read(info["header_bytes"]))
                    dst.write(b"\xff" * (info["file_bytes"] - info["header_bytes"]))
                    for t in info["tensors"]:
                        name = t["name"]
                        layer = int(name.split(".")[1]) if name.startswith("blk.") else None
                        if (layer is None and name == "output_norm.weight" and i == 0) or \
                           (layer is not None and not first <= layer <= last):
                            continue
                        src.seek(t["offset"])
                        dst.seek(t["offset"])
                        dst.write(src.read(t["bytes"]))
            config = f"model: {model}\nworkers: 2\nsplit: even\nkv_tokens: 1024\n" \
                     "ports: {clients: 0, workers: 0, results: 0, metrics: 0, http: 0}\n"
            c = subprocess.Popen([program("flotilla-coordinator"), "--config", "-"], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
            c.stdin.write(config)
            c.stdin.close()
            words = dict(w.split("=") for w in c.stdout.readline().split()[1:])
            workers = [subprocess.Popen([program("flotilla-worker"), "--coordinator", words["worker"], "--name", f"w{i}",
                                         "--models", f"{d}/{i}"]) for i in range(2)]
            try:
                self.assertTrue(c.stdout.readline().startswith("ready"))
                r = run("generate", "--cluster", words["client"], "--prompt", "Once upon a time", "--tokens", "16", "--json")
                self.assertEqual(json.loads(r.stdout)["tokens"], want)
            finally:
                for p in (*workers, c):
                    p.send_signal(signal.SIGTERM)
                for p in (*workers, c):
                    self.assertEqual(p.wait(timeout=20), 0)
                c.stdout.close()

    def test_pool_sizes(self):
        """Positions x KV heads x head size x 2 x layers x bytes a value, scales included."""
        for kv, per_value in (("f32", 4), ("f16", 2), ("q8_0", 1.0625), ("q4_0", 0.5625)):
            with self.cluster(workers=2, kv=kv, kv_tokens=1024) as c:
                pool = sum(w["kv_bytes"] for w in c.workers())
                self.assertEqual(pool, 1024 * self.kv_heads * self.head * 2 * self.layers * per_value)
                self.assertEqual(len(c.generate("Hello", tokens=4, ignore_eos=True)["tokens"]), 4)


class Damaged(unittest.TestCase):
    def test_a_damaged_copy_is_named(self):
        """One byte of one worker's copy is another: the cluster is not ready, and says whose and where."""
        tensor = next(t for t in json.loads(run("inspect", MODEL, "--json").stdout)["tensors"]
                      if t["name"] == "blk.20.ffn_up.weight")
        with tempfile.TemporaryDirectory() as d:
            shutil.copy(MODEL, d)
            with open(os.path.join(d, os.path.basename(MODEL)), "r+b") as f:
                f.seek(tensor["offset"] + tensor["bytes"] // 2)
                byte = f.read(1)[0]
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte ^ 1]))
            config = f"model: {MODEL}\nworkers: 1\nkv_tokens: 1024\n" \
                     "ports: {clients: 0, workers: 0, results: 0, metrics: 0, http: 0}\n"
            c = subprocess.Popen([program("flotilla-coordinator"), "--config", "-"], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            c.stdin.write(config)
            c.stdin.close()
            words = dict(w.split("=") for w in c.stdout.readline().split()[1:])
            w = subprocess.Popen([program("flotilla-worker"), "--coordinator", words["worker"], "--name", "rotten",
                                  "--models", d], stderr=subprocess.DEVNULL)
            try:
                said = next(line for line in c.stderr if "ended" in line or "is ready" in line)
                self.assertIn("worker rotten", said)
                self.assertIn("tensor 'blk.20.ffn_up.weight' differs from the coordinator's", said)
                status = json.loads(run("status", "--cluster", words["client"], "--json").stdout)
                self.assertFalse(status["ready"])
            finally:
                for p in (w, c):
                    p.send_signal(signal.SIGTERM)
                for p in (w, c):
                    self.assertEqual(p.wait(timeout=20), 0)
                c.stdout.close()
                c.stderr.close()


class GemmaSlices(Slices):
    """Its heads are wider than hidden / heads, and its embedding is most of the file."""
    model, layers, hidden, kv_heads, head, vocab = GEMMA, 18, 640, 1, 256, 262144
    ranges = [[0, 4], [5, 9], [10, 13], [14, 17]]

    def positions(self, layer, kv_tokens):
        """Five layers of six see 512 positions: they have room for two sequences with a chunk of 512 each, in whole pages."""
        return kv_tokens if layer % 6 == 5 else 2 * (32 + 33) * 16


if __name__ == "__main__":
    unittest.main(verbosity=2)
