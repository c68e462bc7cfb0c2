"""One binary on CPUs that lack what this one has (qemu-user): the same tokens from the level that the
CPU can run; a forced level that it cannot is refused by the missing feature; wide instructions are in
the kernel files only, so nothing runs them before the check."""
import glob, json, os, re, subprocess, sys, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import GEMMA, MODEL, local, program

CPUS = {"Nehalem": "scalar", "SandyBridge": "scalar", "Haswell": "avx2"}


def emulated(cpu, model, *words):
    return subprocess.run(["qemu-x86_64", "-cpu", cpu, program("flotilla"), "generate", "--model", model, "--prompt", "Hi",
                           "--tokens", "8", "--ignore-eos", "--threads", "1", "--json", *words],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)


class Cpus(unittest.TestCase):
    def test_same_tokens(self):
        for model in (MODEL, GEMMA):
            want = local("Hi", model=model, tokens=8, ignore_eos=True)["tokens"]
            for cpu, isa in CPUS.items():
                if model == GEMMA and cpu == "SandyBridge":
                    continue  # the same level as Nehalem, and slow
                r = emulated(cpu, model)
                self.assertEqual(r.returncode, 0, r.stderr[-500:])
                got = json.loads(r.stdout)
                self.assertEqual((got["tokens"], got["isa"]), (want, isa), cpu)

    def test_forced(self):
        for cpu, isa, lacks in (("Nehalem", "avx2", "FMA"), ("SandyBridge", "avx2", "FMA"), ("Haswell", "avx512", "AVX512F")):
            r = emulated(cpu, MODEL, "--isa", isa)
            self.assertEqual(r.returncode, 1)
            self.assertIn(f"isa {isa}: this CPU lacks {lacks}", r.stderr.decode())

    def test_where_wide_instructions_are(self):
        build = os.path.dirname(os.environ["FLOTILLA_BIN"])
        objects = [o for o in glob.glob(os.path.join(build, "CMakeFiles", "*.dir", "**", "*.c.o"), recursive=True)
                   if "/gen/" not in o]
        self.assertGreater(len(objects), 30)
        wide = set()
        for o in objects:
            code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", o], stdout=subprocess.PIPE, text=True, check=True).stdout
            for function, body in re.findall(r"^[0-9a-f]+ <([^>]+)>:\n((?:.+\n)*)", code, re.M):
                wide |= {(os.path.basename(o), function, reg) for reg in ("%ymm", "%zmm", "%tmm") if reg in body}
        self.assertEqual({o for o, function, reg in wide if reg == "%zmm"}, {"kern_avx512.c.o"})
        # Elsewhere only in functions that are called where the CPU has them (INSN_FMA of common/base/insn.h).
        others = {function for o, function, reg in wide if o not in ("kern_avx512.c.o", "kern_avx2.c.o")}
        self.assertLessEqual({re.sub(r"\..*", "", function) for function in others}, {"choose_fma", "exp_each_fma"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
