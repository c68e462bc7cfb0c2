"""Memory and processors: the KV pool is as large as the workers have room for, what cannot fit is refused before a byte is
read, and a worker has a thread for each processor of its quota."""
import json, os, re, subprocess, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import LONG, MODEL, Cluster, local, program, run
from groups import Group
import shapes

GIB = 1 << 30
MIB = 1 << 20


def group(test, **kw):
    try:
        return Group(**kw)
    except OSError as e:
        test.skipTest(f"no control group can be made here: {e}")


class Memory(unittest.TestCase):
    def pool(self, c):
        return c.status()["replicas"][0]["workers"][0]["kv_pages"]["total"] * 16

    def test_memory_group(self):
        """A coordinator and two workers in a group of 1 GiB: the pool is as large as fits and leaves the reserve (a quarter)
        free, all of it is used, and nobody is killed."""
        with group(self, bytes=GIB) as g:
            with Cluster(workers=2, threads=1, kv_tokens=None, prefix=g.prefix) as c:
                self.assertIn("below the memory group's limit", c.text())
                self.assertIn("and 1 more", c.text())
                tokens = self.pool(c)
                self.assertGreater(tokens, 16384)
                self.assertLess(g.used(), GIB - GIB // 8)
                want = local("Once upon a time", tokens=24)["tokens"]
                r = run("generate", "--cluster", c.address, "--prompt", "Once upon a time", "--tokens", "24", "--json")
                self.assertEqual(r.returncode, 0, r.stderr)
                self.assertEqual(json.loads(r.stdout)["tokens"], want)
                self.assertEqual(c.status()["replicas"][0]["epoch"], 1)
            self.assertEqual(g.kills(), 0)

    def test_alone(self):
        """The engine alone refuses what its group has no room for, unread; a benchmark stays below the limit too."""
        with group(self, bytes=192 * MIB) as g:
            r = run("generate", "--model", MODEL, "--prompt", "a", "--tokens", "8000", prefix=g.prefix)
            self.assertEqual(r.returncode, 1)
            self.assertRegex(r.stderr.decode(), r"the largest that fits is \d+ tokens")
            self.assertNotIn("loading", r.stderr.decode())
            self.assertEqual(g.kills(), 0)
        with group(self, bytes=512 * MIB) as g:
            r = run("bench", "--model", MODEL, "-p", "8", "-n", "4", "--json", prefix=g.prefix)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertGreater(json.loads(r.stdout)["read_gb_per_s"], 0)
            self.assertEqual(g.kills(), 0)

    def test_too_large(self):
        """A pool that cannot fit: no worker reads a byte; status, log and the request's end name the worker, the keys and
        the largest that fits."""
        config = f"model: {MODEL}\nworkers: 2\nkv_tokens: {1 << 30}\nreplica_wait: 1\nmetrics: false\nhttp: {{serve: false}}\n" \
                 "ports: {clients: 0, workers: 0, results: 0}\n"
        with tempfile.TemporaryFile("w+") as log:
            c = subprocess.Popen([program("flotilla-coordinator"), "--config", "-"], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=log, text=True)
            c.stdin.write(config)
            c.stdin.close()
            client, worker = re.match(r"listening client=(\S+) worker=(\S+)", c.stdout.readline()).groups()
            workers = [subprocess.Popen([program("flotilla-worker"), "--coordinator", worker, "--name", f"w{i}", "--threads", "1"],
                                        stderr=log) for i in range(2)]
            try:
                r = run("generate", "--cluster", client, "--prompt", "a", "--tokens", "1")
                self.assertEqual(r.returncode, 1)
                status = run("status", "--cluster", client, "--json").stdout.decode()
                log.seek(0)
                logged = log.read()
                for text in (r.stderr.decode(), status, logged):
                    self.assertRegex(text, r"'kv_tokens' of \d+: the largest 'kv_tokens' or 'ctx' that fits is \d+; the tightest: worker w\d and 1 more")
                self.assertIn("UNAVAILABLE", r.stderr.decode())
                self.assertNotIn("generation 1", logged)
                for w in workers:  # not one of them has read the model
                    with open(f"/proc/{w.pid}/io") as f:
                        read = int(next(l for l in f if l.startswith("rchar")).split()[1])
                    self.assertLess(read, 4 * MIB)
            finally:
                for p in [*workers, c]:
                    p.terminate()
                for p in [*workers, c]:
                    p.wait()
                c.stdout.close()

    def test_quota(self):
        """A worker that may use half a processor has one thread."""
        with group(self, processors=0.5) as g:
            with Cluster(workers=1, prefix=g.prefix) as c:
                self.assertEqual(c.workers()[0]["threads"], 1)

    @unittest.skipUnless(LONG, "long")
    def test_eight_billion(self):
        """The shape of an 8B model, its trained context, two workers in 12 GiB: a pool that leaves the reserve free."""
        with tempfile.TemporaryDirectory() as folder, group(self, bytes=12 * GIB) as g:
            path = os.path.join(folder, "8b.gguf")
            shapes.write("llama-3.1-8b", "Q4_0", path)
            with Cluster(model=path, workers=2, kv_tokens=None, prefix=g.prefix) as c:
                self.assertGreater(self.pool(c), 4096)
                self.assertLess(g.used(), 12 * GIB - 12 * GIB // 8)
            self.assertEqual(g.kills(), 0)


if __name__ == "__main__":
    unittest.main()
