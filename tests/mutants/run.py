"""Plants one fault after another in a copy of the tree and shows that the tests which guard it fail.

Each list of this folder (core.py, calls.py, ...) holds one-line substitutions: dict(name, file, old, new, tests, why).
`old` must occur exactly once in the file; `tests` are the ctest names of the smallest set that must notice. A fault that
no test notices survives; one that cannot be noticed carries `survives`, its reason. `short=True`: also in the short form.

    tests/mutants/run.py [--short] [--jobs N] [--lists core,calls] [--names a,b]

Ends with one line, and with status 1 when a fault survives without a reason, when more than 5 % survive at all, when a
substitution does not apply, or when a mutant does not build. Every set of tests first runs on the unchanged copy, where it
must pass.
"""
import argparse, glob, importlib.util, os, queue, re, resource, shutil, signal, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MOST_SURVIVORS = 0.05
# A fault that makes a test hang is noticed: by a limit made of what its tests took without a fault.
SECONDS_LEAST, SECONDS_FACTOR = 60, 5
MEMORY_BYTES = 8 << 30  # of one process; a fault that makes it take all there is takes nobody else's


def kill_descendants(pid):
    """The process and all that it began; a test may have made sessions of its own, so their parents are followed."""
    try:
        os.kill(pid, signal.SIGSTOP)
        for path in glob.glob(f"/proc/{pid}/task/*/children"):
            with open(path) as f:
                for child in map(int, f.read().split()):
                    kill_descendants(child)
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, FileNotFoundError):
        pass  # it ended meanwhile


def bound_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def load(only):
    found = []
    for path in sorted(glob.glob(os.path.join(HERE, "*.py"))):
        name = os.path.splitext(os.path.basename(path))[0]
        if name == "run" or (only and name not in only):
            continue
        spec = importlib.util.spec_from_file_location("mutants_" + name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [dict(m, list=name) for m in module.MUTANTS]
    names = [m["name"] for m in found]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        sys.exit(f"two mutants have one name: {', '.join(sorted(twice))}")
    return found


def applied(m):
    """The file's text with the fault, or None where `old` does not occur exactly once."""
    with open(os.path.join(ROOT, m["file"])) as f:
        text = f.read()
    return text.replace(m["old"], m["new"]) if text.count(m["old"]) == 1 else None


class Tree:
    """A copy of the tree with a build of its own, for one thread."""

    def __init__(self, folder):
        self.folder, self.build = folder, os.path.join(folder, "build")
        files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                               stdout=subprocess.PIPE).stdout.decode().split("\0")
        for name in filter(None, files):
            if not os.path.exists(os.path.join(ROOT, name)):
                continue
            os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), os.path.join(folder, name))
        launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        python = os.environ.get("FLOTILLA_PYTHON", sys.executable)
        # Optimised less than what ships: the tests that guard these facts count, and builds take half the time.
        subprocess.run(["cmake", "-B", self.build, f"-DPYTHON={python}", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1",
                        *launcher], cwd=folder,
                       check=True, stdout=subprocess.DEVNULL)
        listed = subprocess.run(["cmake", "--build", self.build, "--target", "help"], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.targets = set(re.findall(r"^\.\.\. (\S+)", listed, re.M))
        self.sound = {}

    def run(self, tests, seconds):
        """0: all pass; 1: some fail, or take longer than `seconds`; 2: does not build. With what was printed."""
        names = tests.split()
        targets = [n for n in names if n in self.targets]
        every = len(targets) < len(names)  # a script drives the programs and the tests' tools
        r = subprocess.run(["cmake", "--build", self.build, *([] if every else ["--target", *targets])], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, errors="replace")
        if r.returncode:
            return 2, r.stdout
        # Without what other forms add: the mutants are measured against the short form.
        env = {**os.environ, "FLOTILLA_LONG": ""}
        with subprocess.Popen(["ctest", "--test-dir", self.build, "--no-tests=error", "--output-on-failure",
                               "-R", "^(" + "|".join(map(re.escape, names)) + ")$"], env=env, preexec_fn=bound_memory,
                              start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as p:
            try:
                out, _ = p.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                kill_descendants(p.pid)
                return 1, "hangs"
        missing = [n for n in names if not re.search(rf"Test +#\d+: {re.escape(n)} ", out)]
        if missing:
            return 2, f"no such test: {', '.join(missing)}\n{out}"
        return int(p.returncode != 0), out

    def judge(self, m):
        if m["tests"] not in self.sound:
            begin = time.monotonic()
            self.sound[m["tests"]] = *self.run(m["tests"], None), time.monotonic() - begin
        code, out, took = self.sound[m["tests"]]
        if code:
            return "BROKEN", f"its tests fail without a fault:\n{out[-3000:]}"
        text, path = applied(m), os.path.join(self.folder, m["file"])
        if text is None:
            return "BROKEN", "does not occur exactly once"
        with open(path, "w") as f:
            f.write(text)
        code, out = self.run(m["tests"], SECONDS_LEAST + SECONDS_FACTOR * took)
        shutil.copyfile(os.path.join(ROOT, m["file"]), path)  # with a new time stamp: it is built again
        if code == 2:
            return "BROKEN", f"does not build:\n{out[-2000:]}"
        if code == 1:
            if out == "hangs":
                return "noticed", out
            failed = re.search(r"The following tests FAILED:\n(.*?)\n(?:Errors|$)", out, re.S)
            return "noticed", " ".join(re.findall(r"\d+ - (\S+)", failed[1])) if failed else ""
        return "SURVIVED", m.get("survives", "")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--short", action="store_true")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--lists", default="")
    p.add_argument("--names", default="")
    o = p.parse_args()
    mutants = load(set(filter(None, o.lists.split(","))))
    names = set(filter(None, o.names.split(",")))
    mutants = [m for m in mutants if (not o.short or m.get("short")) and (not names or m["name"] in names)]
    work, lock, count = queue.Queue(), threading.Lock(), dict(noticed=0, SURVIVED=0, reason=0, BROKEN=0)
    for m in sorted(mutants, key=lambda m: (m["tests"], m["file"])):  # neighbours share what is built
        work.put(m)

    def serve(folder):
        tree = Tree(folder)
        while True:
            try:
                m = work.get_nowait()
            except queue.Empty:
                return
            verdict, words = tree.judge(m)
            with lock:
                count["reason" if verdict == "SURVIVED" and m.get("survives") else verdict] += 1
                print(f"{verdict:9} {m['list']}/{m['name']} ({m['file']}): {m['why']}; {words}", flush=True)

    with tempfile.TemporaryDirectory(prefix="flotilla-mutants-") as folder:
        threads = [threading.Thread(target=serve, args=(os.path.join(folder, str(i)),)) for i in range(min(o.jobs, len(mutants)))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    n = sum(count.values())
    print(f"{n} faults planted: {count['noticed']} noticed, {count['SURVIVED']} survived, {count['reason']} cannot be noticed, "
          f"{count['BROKEN']} could not be tried")
    judged = n == len(mutants) and n > 0 and not count["BROKEN"]
    sys.exit(0 if judged and not count["SURVIVED"] and count["reason"] <= MOST_SURVIVORS * n else 1)


if __name__ == "__main__":
    main()
