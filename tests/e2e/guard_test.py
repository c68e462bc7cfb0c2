"""A worker's compute path, from a decoded Step to its result, allocates nothing; and the guard that shows it works."""
import os, signal, subprocess, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import BIN, Cluster, local

GUARD = os.path.join(BIN, "..", "lib", "libguard_malloc.so")


class Guard(unittest.TestCase):
    def probe(self, how):
        return subprocess.run([os.path.join(BIN, "guard_probe"), how], env={**os.environ, "LD_PRELOAD": GUARD},
                              stderr=subprocess.PIPE)

    def test_the_guard_bites(self):
        for how in ("malloc", "calloc", "realloc", "reallocarray", "posix_memalign", "aligned_alloc", "mmap", "mremap",
                    "mem", "mem_pages"):
            r = self.probe(how)
            self.assertEqual(r.returncode, -signal.SIGABRT, how)
            self.assertIn(b"guarded compute path", r.stderr)
        self.assertEqual(self.probe("outside").returncode, 0)
        self.assertEqual(self.probe("nothing").returncode, 0)

    def test_workers_under_guard(self):
        want = local("Once upon a time", tokens=200, temp=0.9, top_k=40, top_p=0.9, seed=4)["tokens"]
        with Cluster(workers=2, kv_tokens=8192, threads=2, env={"LD_PRELOAD": GUARD, "GUARD_MALLOC_SAY": "1"}) as c:
            self.assertGreaterEqual(c.text().count("guard_malloc: watching"), 2)
            pids = c.pids()
            running = [c.start(f"Number {i}:", tokens=64, temp=0.8) for i in range(5)]
            with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
                f.write('{"type": "object", "properties": {"a": {"type": "string", "maxLength": 40}, "b": {}}, "required": ["a", "b"]}')
                f.flush()
                running += [c.start("An object:", tokens=64, temp=1, top_k=k, json_schema=f.name) for k in (0, 20)]
                self.assertNotIn(None, [g.result() for g in running[-2:]])
            got = c.generate("Once upon a time", tokens=200, temp=0.9, top_k=40, top_p=0.9, seed=4)["tokens"]
            self.assertEqual(got, want)
            self.assertNotIn(None, [g.result() for g in running[:-2]])
            self.assertEqual(c.pids(), pids)  # an allocation would have aborted a worker


if __name__ == "__main__":
    unittest.main(verbosity=2)
