"""What `cmake --install` puts into an empty prefix: the programs with their version and manual pages, and a client
library that a program outside this tree builds with, and generates text."""
import glob, os, re, shutil, subprocess, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import BIN, Cluster, local

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PROGRAMS = ("flotilla", "flotilla-coordinator", "flotilla-worker")
HEADERS = ("api.h", "client.h", "err.h", "sampling.h")


def output(*words, **kw):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw).stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.prefix = os.path.join(cls.folder.name, "prefix")
        output("cmake", "--install", os.path.dirname(BIN), "--prefix", cls.prefix)
        cls.library = os.path.realpath(glob.glob(os.path.join(cls.prefix, "lib*", "**", "libflotilla-client.so"),
                                                 recursive=True)[0])
        pkg_config = os.path.join(os.path.dirname(cls.library), "pkgconfig")
        cls.env = {**os.environ, "PKG_CONFIG_PATH": pkg_config, "LD_LIBRARY_PATH": os.path.dirname(cls.library)}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def installed(self, *path):
        return os.path.join(self.prefix, *path)

    def build(self, *words):
        out = os.path.join(self.folder.name, "example")
        flags = output("pkg-config", "--cflags", "--libs", "flotilla-client", env=self.env).split()
        output(*words, "-Wall", "-Wextra", "-Werror", os.path.join(ROOT, "deploy", "example.c"), "-o", out, *flags)
        return out

    def test_program_outside(self):
        """The example is a program of less than fifty lines; what it prints is what the engine alone says."""
        example = self.build("cc", "-std=c17", "-pedantic")
        with Cluster(workers=1, kv_tokens=2048) as c:
            text = output(example, c.address, "Once upon a time", env=self.env)
        self.assertEqual(text, local("Once upon a time", tokens=32)["text"] + "\n")
        r = subprocess.run([example, "nowhere", "x"], env=self.env, stderr=subprocess.PIPE, text=True)
        self.assertEqual(r.returncode, 1)
        self.assertIn("names no port", r.stderr)

    def test_headers(self):
        """They include each other and the language's own, compile alone, and as C++ too."""
        self.assertEqual(sorted(os.listdir(self.installed("include", "flotilla"))), sorted(HEADERS))
        for name in HEADERS:
            with open(self.installed("include", "flotilla", name)) as f:
                text = f.read()
            for include in re.findall(r"#include (.*)", text):
                self.assertRegex(include, r"^<(flotilla/(api|err|sampling)\.h|std(bool|def|int)\.h)>$", name)
            output("cc", "-std=c17", "-pedantic", "-Wall", "-Werror", "-I", self.installed("include"), "-fsyntax-only",
                   "-x", "c", self.installed("include", "flotilla", name))
        self.build("g++", "-x", "c++")

    def test_exported_names(self):
        names = {line.split()[-1] for line in output("nm", "-D", "--defined-only", self.library).splitlines()}
        names = {n.split("@")[0] for n in names if not n.startswith("FLOTILLA_CLIENT_")}
        with open(self.installed("include", "flotilla", "client.h")) as f:
            declared = set(re.findall(r"\b(client_\w+)\(", f.read()))
        self.assertEqual({n for n in names if n.startswith("client_")}, declared)
        self.assertTrue(all(n.startswith(("client_", "err_text", "sampling_")) for n in names), names)

    def version(self, source):
        """What deploy/version.cmake writes for a tree, and when it wrote that."""
        out = os.path.join(self.folder.name, "version.c")
        output("cmake", f"-DSOURCE={source}", "-DVERSION=1.2.3", f"-DOUT={out}", "-P",
               os.path.join(ROOT, "deploy", "version.cmake"))
        with open(out) as f:
            return re.search('"([^"]*)";', f.read()).group(1), os.stat(out).st_mtime_ns

    def test_versions(self):
        with open(os.path.join(os.path.dirname(BIN), "gen", "version.c")) as f:
            built = re.search('"([^"]*)";', f.read()).group(1)
        self.assertRegex(built, r"^\d+\.\d+\.\d+( \([0-9a-f]{7,}(-dirty)?\))?$")
        for name in PROGRAMS:
            self.assertEqual(output(self.installed("bin", name), "--version"), f"{name} {built}\n")
        self.assertEqual(output(self.installed("bin", "flotilla"), "generate", "--version"), f"flotilla {built}\n")

    def test_commit(self):
        """Of a checkout the commit; of any other tree the number alone; and nothing is built again for the same."""
        if os.path.exists(os.path.join(ROOT, ".git")):
            commit = output("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
            self.assertIn(self.version(ROOT)[0], (f"1.2.3 ({commit})", f"1.2.3 ({commit}-dirty)"))
        first, second = self.version(self.folder.name), self.version(self.folder.name)
        self.assertEqual(first[0], "1.2.3")
        self.assertEqual(first, second)

    def test_manual_pages(self):
        for name in PROGRAMS:
            path = self.installed("share", "man", "man1", name + ".1")
            with open(path) as f:
                page = f.read().replace("\\-", "-")
            commands = [()]
            if name == "flotilla":
                commands = [(c,) for c in re.findall(r"^  ([a-z]+) ", output(self.installed("bin", name), "--help"), re.M)]
                self.assertGreater(len(commands), 5)
            for command in commands:
                options = re.findall(r"--[a-z][a-z-]+", output(self.installed("bin", name), *command, "--help"))
                self.assertGreater(len(options), 2)
                for option in options:
                    self.assertIn(option, page, command)
            if shutil.which("groff"):
                self.assertEqual(output("groff", "-man", "-Tutf8", "-ww", "-z", path), "")

    def test_hardened(self):
        """Peers are hostile: addresses cannot be guessed, no table of functions can be written, no stack executed, and
        the C library's calls and the stack are checked."""
        for path in (*(self.installed("bin", n) for n in PROGRAMS), self.library):
            headers = output("readelf", "-W", "-h", "-l", "-d", path)
            self.assertRegex(headers, r"Type:\s+DYN", path)
            self.assertIn("GNU_RELRO", headers, path)
            self.assertRegex(headers, r"FLAGS_1.*NOW", path)
            self.assertRegex(headers, r"GNU_STACK\s+\S+ \S+ \S+ \S+ \S+ RW\s", path)
            symbols = output("readelf", "-W", "--dyn-syms", path)
            self.assertIn("__stack_chk_fail", symbols, path)
            self.assertRegex(symbols, r"__\w+_chk\b", path)
            if path != self.library:
                self.assertRegex(headers, r"FLAGS_1.*PIE", path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
