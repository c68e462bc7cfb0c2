"""Files that are wrong on purpose (tests/lib/malformed_tensors.py), parts of a split model, or truncated while they are read:
refused with a message that names the file, within a gigabyte of memory, and never by a signal. Cut files are
weights_test's."""
import os, resource, shutil, subprocess, sys, tempfile, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import malformed_tensors
import tiny_arch
from cluster import BIN, MODEL, run

GIB = 1 << 30


def limited(*words):
    """Runs a command in at most 1 GiB of address space; also the seconds it took."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (GIB, GIB))
    start = time.monotonic()
    r = subprocess.run([os.path.join(BIN, "flotilla"), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                       preexec_fn=limit)
    return r, time.monotonic() - start


class Malformed(unittest.TestCase):
    def test_tensor_tables(self):
        files = malformed_tensors.build()
        self.assertEqual(len(files), 30)
        with tempfile.TemporaryDirectory() as d:
            for name, data in sorted(files.items()):
                path = os.path.join(d, name + ".gguf")
                with open(path, "wb") as f:
                    f.write(data)
                r, seconds = limited("generate", "--model", path, "--prompt", "a", "--tokens", "2", "--threads", "1")
                if name == "00_valid":
                    self.assertEqual(r.returncode, 0, r.stderr)
                    continue
                self.assertIn(r.returncode, range(1, 128), (name, r.stderr))
                self.assertIn(path, r.stderr.decode(), name)
                self.assertLess(seconds, 15, name)  # 3 x the 5 s that are promised

    def test_truncated_while_read(self):
        """The header is whole when it is parsed; the tensors go while they are read."""
        size, refused = os.path.getsize(MODEL), 0
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "shrinks.gguf")
            for delay in (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10):
                subprocess.run(["cp", MODEL, path], check=True)
                p = subprocess.Popen([os.path.join(BIN, "flotilla"), "generate", "--model", path, "--prompt", "a", "--tokens", "1"],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                time.sleep(delay)
                os.truncate(path, size // 4)
                _, err = p.communicate(timeout=60)
                self.assertIn(p.returncode, (0, 1), err)  # 0: it had been read before
                refused += p.returncode == 1
                if p.returncode == 1:
                    self.assertIn(path.encode(), err)
        self.assertGreater(refused, 0)

    def test_split(self):
        with tempfile.TemporaryDirectory() as d:
            c = tiny_arch.CFG["llama_plain"]
            tiny_arch.save(os.path.join(d, "split.gguf"), c, tiny_arch.weights("llama_plain", c), split=8)
            parts = sorted(f for f in os.listdir(d) if f.startswith("split-"))
            self.assertEqual(len(parts), 3)
            joined = os.path.join(d, "joined.gguf")
            with open(joined, "wb") as out:
                for p in parts:
                    with open(os.path.join(d, p), "rb") as f:
                        out.write(f.read())
            alone = os.path.join(d, "alone")
            os.mkdir(alone)
            for p in parts:
                path = shutil.move(os.path.join(d, p), alone)
                self.refuse_split(path)
                shutil.move(path, d)
            self.refuse_split(joined)

    def refuse_split(self, path):
        r = run("generate", "--model", path, "--prompt", "a")
        self.assertEqual(r.returncode, 1)
        self.assertIn(path, r.stderr.decode())
        self.assertIn("split.count", r.stderr.decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
