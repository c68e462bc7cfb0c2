"""The rules of the tree that a machine can check: who includes whom, one module for each third-party
header, sources listed, a README in each folder, function and file sizes."""
import importlib.util, os, re, subprocess, unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))

# What a file under the prefix may include besides its own folder. The longest prefix counts.
MAY = {
    "common/base": [],
    "common/engine": ["common/base"],
    "common/text": ["common/base"],
    "common/model": ["common/base", "common/engine", "common/text"],
    "common/io": ["common/base"],
    "proto": ["common/base"],
    "common/client": ["common/base", "common/io", "proto"],
    "coordinator": ["common", "proto"],
    # Of the drafts: the pure parts.
    "coordinator/core": ["common/base", "proto/msg.h", "proto/limits.h",
                         *(f"coordinator/draft/{n}.h" for n in ("settings", "length", "accept", "gain"))],
    "worker": ["common", "proto"],
    "tests": ["common", "proto", "coordinator", "worker"],
    "deploy": [],  # an example for those who have flotilla installed
}
# The coordinator's core is pure: of base, not these.
CORE = "coordinator/core"
CORE_MAY_NOT = ["common/base/pool.h", "common/base/log.h", "common/base/progress.h"]

ONE_MODULE = {
    "yaml.h": "common/io/conf.c", "histedit.h": "coordinator/cli/line.c",
    "xxhash.h": "common/base/hash.c", "jansson.h": "common/text/json.c", "pcre2.h": "common/text/tok_bpe.c", "protobuf-c/protobuf-c.h": "proto/wire_pb.h",
}
SYSTEM = {
    "arpa/inet.h", "ctype.h", "dirent.h", "errno.h", "execinfo.h", "float.h", "fcntl.h", "ifaddrs.h", "inttypes.h", "limits.h", "linux/futex.h",
    "linux/sockios.h", "linux/tcp.h", "locale.h", "math.h", "net/if.h", "netdb.h", "netinet/in.h", "poll.h", "pthread.h",
    "sched.h", "signal.h", "stdarg.h", "stdatomic.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h",
    "string.h", "strings.h", "sys/epoll.h", "sys/eventfd.h", "sys/ioctl.h", "sys/mman.h", "sys/prctl.h", "sys/random.h",
    "sys/resource.h", "sys/signalfd.h", "sys/socket.h", "sys/stat.h", "sys/syscall.h", "sys/time.h", "sys/un.h", "sys/wait.h", "time.h",
    "unistd.h", "wchar.h",
}
MANY_MODULES = {"zmq.h": {"common/io/net.c", "common/io/zap.c", "common/io/keys.c",
                          "tests/lib/poison.c"},  # stands before a function of it
                "microhttpd.h": {"common/io/http.c", "common/io/httpd.c"},
                "utf8proc.h": {"common/text/nfc.c", "common/text/jinja/unicode.c"},
                # Instruction sets: the kernels' vector operations, and the few instructions that others need.
                "immintrin.h": {"common/engine/vec_x86.h"}, "xmmintrin.h": {"common/base/insn.h"},
                "cpuid.h": {"common/engine/cpu.c"},
                # The test changes what goes into the ring.
                "liburing.h": {"common/io/ring.c", "tests/unit/ring_test.c"},
                "flotilla/client.h": "deploy", "setjmp.h": "tests", "cmocka.h": "tests", "dlfcn.h": "tests",
                "malloc.h": {"common/base/mem.c", "tests/unit/engine_test.c"}}


def sources():
    for folder, _, names in os.walk(ROOT):
        rel = os.path.relpath(folder, ROOT)
        if rel.startswith((".git", "build")):
            continue
        for n in names:
            if n.endswith((".c", ".h")):
                yield os.path.normpath(os.path.join(rel, n))


def read(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def layer(path):
    return max((p for p in MAY if path.startswith(p + "/")), key=len)


class Tidy(unittest.TestCase):
    def test_includes(self):
        for path in sources():
            mine = layer(path)
            for inc in re.findall(r'#include "([^"]+)"', read(path)):
                if inc.endswith(".pb-c.h"):
                    self.assertRegex(path, r"^proto/wire_(cluster\.c|client\.c|pb\.h)$", "protobuf-c is known there only")
                    continue
                self.assertTrue(os.path.exists(os.path.join(ROOT, inc)), f"{path}: {inc} is not from the root")
                ok = inc.startswith(mine + "/") or any(inc == m or inc.startswith(m + "/") for m in MAY[mine])
                self.assertTrue(ok, f"{path} may not include {inc}")
                if mine == CORE:
                    self.assertNotIn(inc, CORE_MAY_NOT, path)

    def test_third_party(self):
        for path in sources():
            for inc in re.findall(r"#include <([^>]+)>", read(path)):
                if inc in ONE_MODULE:
                    self.assertEqual(path, ONE_MODULE[inc], f"{inc} belongs to one module")
                elif inc in MANY_MODULES:
                    owner = MANY_MODULES[inc]
                    self.assertTrue(path in owner if isinstance(owner, set) else path.startswith(owner), path)
                else:
                    self.assertIn(inc, SYSTEM, f"{path}: what is {inc}?")

    def test_core_is_pure(self):
        """All that the folder has is the core, and the core is all that the folder has."""
        found = [p for p in sources() if p.startswith(CORE + "/")]
        built = re.search(r"add_library\(core STATIC ([^)]*)\)", read("CMakeLists.txt")).group(1).split()
        self.assertEqual(sorted(built), sorted(p for p in found if p.endswith(".c")))
        for path in found:
            for word in ("clock_ns(", "getrandom", "printf(stdout", "log_info", "log_error", "pthread"):
                self.assertNotIn(word, read(path), path)

    def test_one_place_chooses_tokens(self):
        """The last stage and the engine alone both choose through common/text/chooser.h."""
        for path in sources():
            if not path.startswith(("common/text/", "tests/")):
                self.assertNotRegex(read(path), r"\bsample_(choose|adjust|logprobs|seen_add)\(", path)

    def test_the_interpreter_knows_no_model(self):
        """Chat templates are interpreted: no name of a model or its maker, and no text of a template."""
        names = ("qwen llama gemma mistral mixtral smol deepseek kimi phi3 phi4 granite cohere hermes hugging nemotron minimax "
                 "glm falcon yi- openai gpt anthropic chatml inst] <|").split()
        files = [p for p in sources() if p.startswith(("common/text/jinja/", "common/text/template."))]
        self.assertGreater(len(files), 20)
        for path in files:
            text = read(path).lower()
            for name in names:
                self.assertNotIn(name, text, path)

    def test_no_libm_in_the_engine(self):
        """Transcendentals are the project's own; fmaf, sqrtf and lrintf are exact."""
        for path in sources():
            if not path.startswith(("common/engine/", "common/text/sample")):
                continue
            for name in re.findall(r"\b((?:exp|log|pow|sin|cos|tan|tanh|erf)[12f]?[f]?)\(", read(path)):
                self.fail(f"{path} calls {name}")

    def test_fast_math_is_refused(self):
        """No file of the engine passes the preprocessor with flags that change arithmetic."""
        files = [p for p in sources() if p.startswith("common/engine/") and p.endswith(".c")]
        isa = "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni".split()
        for path in files:
            for flag, right in (("-O3", True), ("-ffast-math", False)):
                r = subprocess.run(["gcc", "-E", "-D_GNU_SOURCE", "-I", ROOT, *isa, flag, os.path.join(ROOT, path)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                self.assertEqual(r.returncode == 0, right, f"{path} {flag}: {r.stderr}")
        for flag, right in (("-O3", True), ("-funsafe-math-optimizations", False), ("-ffinite-math-only", False),
                            ("-freciprocal-math", False), ("-fno-signed-zeros", False)):
            r = subprocess.run(["gcc", "-E", flag, "-I", ROOT, os.path.join(ROOT, "common/base/fmath.h")], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
            self.assertEqual(r.returncode == 0, right, flag)

    def test_sources_are_listed(self):
        lists = read("CMakeLists.txt") + read("tests/CMakeLists.txt")
        for path in sources():
            if path.endswith(".c") and layer(path) != "deploy":
                self.assertIn(os.path.basename(path), lists, f"{path} is not built")

    def test_readmes(self):
        folders = {os.path.dirname(p) for p in sources() if not p.startswith("tests/")} | {"deploy", "tests"}
        for folder in folders:
            self.assertTrue(os.path.exists(os.path.join(ROOT, folder, "README.md")), f"{folder} has no README.md")

    def test_readme_lines(self):
        for folder, _, names in os.walk(ROOT):
            rel = os.path.relpath(folder, ROOT)
            for n in [] if rel.startswith((".git", "build")) else filter(lambda n: n.endswith(".md"), names):
                for i, line in enumerate(read(os.path.join(rel, n)).splitlines(), 1):
                    self.assertLessEqual(len(line), 120, f"{rel}/{n}:{i}")

    def test_sizes(self):
        for path in sources():
            text = read(path)
            self.assertLessEqual(text.count("\n"), 1000, path)
            for m in re.finditer(r"^[a-zA-Z_][^;{}#/\n]*(?:\n[^;{}#\n]*)?\n\{\n(.*?)^\}", text, re.S | re.M):
                self.assertLessEqual(m.group(1).count("\n"), 70, f"{path}: {m.group(0)[:60]}")

    def test_planted_faults(self):
        """The line that each fault changes is there, once; one that is not shows nothing."""
        folder = os.path.join(ROOT, "tests", "mutants")
        spec = importlib.util.spec_from_file_location("mutants_run", os.path.join(folder, "run.py"))
        planted = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(planted)
        found = planted.load(None)
        self.assertTrue(found)
        self.assertEqual([m["name"] for m in found if planted.applied(m) is None], [])

    def test_words(self):
        for path in sources():
            text = read(path)
            self.assertNotRegex(text, r"\b(TODO|FIXME|XXX|HACK)\b", path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
