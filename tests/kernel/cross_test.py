"""The tree on another instruction set: all of it is built for AArch64 (tests/cross), the unit and kernel tests of base and
engine pass under qemu-user, and the logits have the same bits as those of this machine's scalar and best levels."""
import hashlib, os, subprocess, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import numpy as np
import tiny_arch
from cluster import GEMMA, MODEL
from logits import BIN, logits

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.path.join(os.path.dirname(BIN), "aarch64")
TESTS = ["base_test", "machine_test", "gguf_test", "weights_gguf_test", "engine_test", "step_test", "kern_test"]


class Cross(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.sysroot = subprocess.run([os.path.join(ROOT, "tests", "cross", "sysroot")], stdout=subprocess.PIPE, check=True,
                                     text=True).stdout.strip()
        cls.qemu = ["qemu-aarch64", "-L", cls.sysroot]
        for words in (["-S", ROOT, "-B", BUILD, "-DWERROR=ON", f"-DCROSS_ROOT={cls.sysroot}",
                       f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/tests/cross/aarch64.cmake"],
                      ["--build", BUILD, "-j", str(os.cpu_count())]):
            r = subprocess.run(["cmake", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if r.returncode != 0:
                raise RuntimeError(r.stdout[-5000:])

    def test_unit_and_kernel(self):
        for name in TESTS:
            with self.subTest(name):
                r = subprocess.run([*self.qemu, os.path.join(BUILD, "bin", name)], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
                self.assertEqual(r.returncode, 0, r.stdout[-5000:])

    def same(self, path, ids, kv):
        """The digest of the logits here, at both levels, and there."""
        there = dict(prefix=self.qemu, program=os.path.join(BUILD, "bin"))
        got = [logits(path, ids, kv=kv, **how) for how in (dict(isa="scalar"), dict(), there)]
        self.assertTrue(np.isfinite(got[0]).all())
        digests = [hashlib.sha256(l.tobytes()).hexdigest()[:16] for l in got]
        print(os.path.basename(path), kv, *digests)
        self.assertEqual(len(set(digests)), 1, (path, kv, digests))

    def test_tiny_models(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("llama_plain", "llama3_freqs", "llama_yarn4", "llama_tied", "gemma3_swa8"):
                c = tiny_arch.CFG[name]
                path = os.path.join(folder, name + ".gguf")
                tiny_arch.save(path, c, tiny_arch.weights(name, c))
                for kv in ("f32", "f16", *(("q8_0", "q4_0") if c["hd"] % 32 == 0 else ())):
                    self.same(path, tiny_arch.PROMPT, kv)

    def test_quantised_models(self):
        for path, kv in ((MODEL, "f16"), (GEMMA, "q8_0")):
            self.same(path, [1, 40, 700, 15], kv)


if __name__ == "__main__":
    unittest.main(verbosity=2)
