"""Programs as processes: closed descriptors, readers that go away, signals at any time, workers that end; IPv6; and what
`up` and `generate` take from the command line."""
import json, os, re, shlex, signal, subprocess, sys, tempfile, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cluster import MODEL, Cluster, free_ports, local, program, run

SMALL = dict(workers=1, threads=1, kv_tokens=2048)


def closing(*fds):
    def close():
        for fd in fds:
            os.close(fd)
    return close


def read(path):
    with open(path) as f:
        return f.read()


def until(what, seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


class Daemons:
    """A coordinator and one worker, started by hand with the descriptors that a test gives them."""

    def __init__(self, log=None, **kw):
        self.config = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.config.write(f"model: {json.dumps(MODEL)}\nworkers: 1\nkv_tokens: 2048\n"
                          "ports: {clients: 0, workers: 0, results: 0, metrics: 0, http: 0}\n")
        self.config.flush()
        self.coordinator = subprocess.Popen([program("flotilla-coordinator"), "--config", self.config.name],
                                            stdout=subprocess.PIPE, stderr=log, text=True)
        words = self.coordinator.stdout.readline().split()
        self.client, join = words[1].removeprefix("client="), words[2].removeprefix("worker=")
        self.worker = subprocess.Popen([program("flotilla-worker"), "--coordinator", join, "--name", "w", "--threads", "1"], **kw)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in (self.worker, self.coordinator):
            p.kill()
            p.wait()
        self.coordinator.stdout.close()
        self.config.close()

    def generate(self, **kw):
        return subprocess.run([program("flotilla"), "generate", "--cluster", self.client, "--prompt", "Once upon", "--tokens", "3"],
                              stderr=subprocess.PIPE, timeout=120, **kw)


class Replicas(unittest.TestCase):
    """Two chains of two workers: prompts of two groups, and a worker that dies while they are answered."""

    def test_one_dies(self):
        groups = ["The ships in the harbour were old. " * 6, "Nobody had opened the letter in the drawer. " * 6]
        prompts = [g + end for end in ("In the morning", "At night") for g in groups]
        ask = dict(tokens=100, ignore_eos=True, seed=7, temp=0.8)
        expected = {p: local(p, **ask)["tokens"] for p in prompts}
        with Cluster(workers=2, replicas=2, threads=1, kv_tokens=8192) as c:
            s = c.wait(lambda s: all(r["state"] == "ready" for r in s["replicas"]), 60)
            self.assertEqual([r["name"] for r in s["replicas"]], ["a", "b"])
            self.assertEqual(len({w["name"] for r in s["replicas"] for w in r["workers"]}), 4)
            before = [r["epoch"] for r in s["replicas"]]
            streams = [(p, c.start(p, **ask)) for p in prompts]
            s = c.wait(lambda s: s["requests"]["running"] == len(prompts) and all(r["steps"] > 10 for r in s["replicas"]), 60)
            os.kill(s["replicas"][0]["workers"][1]["pid"], signal.SIGKILL)
            for p, g in streams:
                r = g.result()
                self.assertIsNotNone(r, getattr(g, "error", ""))
                self.assertEqual(r["tokens"], expected[p])
            after = c.status()["replicas"]
            self.assertEqual((after[0]["state"], after[1]["state"]), ("waiting", "ready"))
            self.assertEqual(after[1]["epoch"], before[1])
            self.assertEqual(len(re.findall(r"generation \d+ ended", c.text())), 1)
            self.assertRegex(c.text(), rf"replica a: generation {before[0]} ended: worker w\d")
            m = c.metrics()
            self.assertEqual(m['flotilla_generation{replica="b"}'], before[1])
            self.assertEqual(m['flotilla_preemptions_total{replica="b"}'], 0)


class ProcessTest(unittest.TestCase):
    def test_readers_that_go(self):
        """Both outputs of the coordinator lose their reader; the worker has no standard descriptor at all; both are
        told that the terminal hung up. Both serve on."""
        r, w = os.pipe()
        with Daemons(log=w, preexec_fn=closing(0, 1, 2)) as d:
            os.close(w)
            os.close(r)
            d.coordinator.stdout.close()
            self.assertEqual(d.generate(stdout=subprocess.DEVNULL).returncode, 0)
            for p in (d.coordinator, d.worker):
                p.send_signal(signal.SIGHUP)
            # Of the client, too, any may be closed.
            for fds in ((0,), (1,), (0, 1)):
                self.assertEqual(d.generate(preexec_fn=closing(*fds)).returncode, 0, fds)
            self.assertIsNone(d.coordinator.poll())
            self.assertIsNone(d.worker.poll())

    def test_term_while_a_file_is_opened(self):
        """On a disk that does not answer a worker's load, or a coordinator's start, waits for ever."""
        silent = {**os.environ, "LD_PRELOAD": os.path.join(os.path.dirname(program("")), "..", "lib", "libsilent_disk.so")}
        with tempfile.NamedTemporaryFile("a") as log, Daemons(log=subprocess.DEVNULL, env=silent, stderr=log) as d:
            until("the load begins", 60, lambda: "generation 1: layers" in read(log.name))
            d.worker.terminate()
            self.assertEqual(d.worker.wait(timeout=30), 0)
        up = subprocess.Popen([program("flotilla"), "up", "--model", MODEL], env=silent, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        children = f"/proc/{up.pid}/task/{up.pid}/children"
        until("a coordinator", 60, lambda: read(children))
        up.terminate()
        up.communicate(timeout=30)
        self.assertEqual(up.returncode, 0)

    def test_term_while_the_model_is_hashed(self):
        """A disk that does not answer does not keep a coordinator that is to stop."""
        silent = {**os.environ, "LD_PRELOAD": os.path.join(os.path.dirname(program("")), "..", "lib", "libsilent_disk.so")}
        with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "a.yaml"), "w") as config:
            config.write(f"model: {json.dumps(MODEL)}\nworkers: 1\nports: {{clients: 0, workers: 0, results: 0, metrics: 0, http: 0}}\n")
            config.flush()
            waits = os.path.join(folder, "waits")
            p = subprocess.Popen([program("flotilla-coordinator"), "--config", config.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env={**silent, "SILENT_READS": waits, "XDG_CACHE_HOME": folder})
            self.addCleanup(p.kill)
            until("the model is read", 60, lambda: os.path.exists(waits))
            p.terminate()
            out, _ = p.communicate(timeout=30)
            self.assertEqual((p.returncode, out), (0, b""))  # it never listened

    def test_worker_that_cannot_serve(self):
        r = run("up", "--model", MODEL, "--isa", "nosuch")
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stderr.decode().splitlines()[-1], r"^flotilla up: w\d ended .*: isa 'nosuch' is unknown")

    def test_up_in_use(self):
        """The last --set of a key counts; the log is four lines, and the commands that it proposes work; a killed worker
        comes back."""
        [port] = free_ports(1)
        name = os.path.basename(MODEL)
        with tempfile.TemporaryDirectory() as folder:
            odd = os.path.join(os.fsencode(folder), b"mod\xe8le\n" + os.fsencode(name))
            os.symlink(MODEL, odd)
            with Cluster(model=odd, verbose=False, no_restart=False, set=["ports.clients=1", f"ports.clients={port}"], **SMALL) as c:
                self.assertEqual(c.address, f"tcp://127.0.0.1:{port}")
                until("all lines", 60, lambda: c.text().count("\n") >= 4)
                lines = c.text().splitlines()
                self.assertEqual(len(lines), 4, lines)
                for line in lines[1:]:
                    r = subprocess.run(shlex.split(line), stdout=subprocess.PIPE, timeout=120)
                    self.assertEqual(r.returncode, 0, line)
                    self.assertTrue(r.stdout)
                # Seeds of all 64 bits arrive whole.
                most = 2**64 - 1
                for seed in (most, 2**53 + 1):
                    a = c.generate("Once upon a time", temp=1, tokens=8, seed=seed)
                    self.assertEqual(a["seed"], str(seed))
                    self.assertEqual(a["tokens"], local("Once upon a time", temp=1, tokens=8, seed=seed)["tokens"])
                os.kill(c.workers()[0]["pid"], signal.SIGKILL)
                until("a word about it", 60, lambda: re.search(r"worker w1 ended \(killed by signal 9.*again in 1 s", c.text()))
                self.assertRegex(c.text(), r"coordinator: \S+ \S+ warn flotilla-coordinator: generation 1 ended")
                c.wait(lambda s: s["ready"], 60)

    def test_ipv6(self):
        """Clients, control, data links, results and metrics over IPv6 alone."""
        with Cluster(workers=2, threads=1, kv_tokens=2048, set=["listen=::1"]) as c:
            self.assertRegex(c.address, r"^tcp://\[::1\]:\d+$")
            self.assertRegex(c.join, r"^tcp://\[::1\]:\d+$")
            self.assertEqual(c.generate("Once upon a time", tokens=6)["tokens"], local("Once upon a time", tokens=6)["tokens"])
            self.assertGreater(c.metrics()["flotilla_tokens_total"], 0)

    def test_refused_options(self):
        for words, text in (
            (("up", "--model", MODEL, "--set", "ports.clients=70700"), "--set ports.clients=70700"),
            (("up", "--model", MODEL, "--set", "nosuch=1"), "--set nosuch=1"),
            (("up", "--model", MODEL, "--set", "kv"), "--set: 'kv' is not KEY=VALUE"),
            (("up", "--model", MODEL, "--set", "kv=f16\nctx: 5"), "--set"),
            (("up", "--model", MODEL, "--set", "model=x"), "'model' is given with --model"),
            (("up", "--model", MODEL, "--set", "workers=3"), "'workers' is given with --workers"),
            (("up", "--model", MODEL, "--set", "replicas=2"), "'replicas' is given with --replicas"),
            (("up", "--model", MODEL, "--set", "ports={clients: 7070}"), "one by one"),
            (("up", "--model", MODEL, "--set", "ports= !!map {clients: 7070}"), "one by one"),
            (("up", "--model", MODEL, "--draft", "m\udce8le.gguf"), "--draft: "),
            (("up", "--model", MODEL, "--kv", "nosuch"), "--kv"),
            (("up", "--model", MODEL, "--policy", "nosuch"), "--policy"),
            (("generate", "--model", MODEL, "--prompt", "a", "--file", "b"), "--file"),
            (("generate", "--model", MODEL, "--file", "/nonexistent/b"), "--file /nonexistent/b"),
            (("generate", "--model", MODEL, "--prompt", "a", "--seed", str(2**64)), str(2**64 - 1)),
        ):
            r = run(*words)
            self.assertEqual(r.returncode, 2, words)
            self.assertIn(text, r.stderr.decode())

    def test_prompts(self):
        """The same answer from an argument, a file and stdin; and what no argument can hold arrives whole."""
        text = "Once upon a time\n"
        want = local(text, tokens=4)["tokens"]
        words = ("generate", "--model", MODEL, "--json", "--tokens", "4")
        with tempfile.NamedTemporaryFile() as f:
            f.write(text.encode())
            f.flush()
            self.assertEqual(json.loads(run(*words, "--file", f.name).stdout)["tokens"], want)
            self.assertEqual(json.loads(run(*words, "--prompt", "-", input=text.encode()).stdout)["tokens"], want)
            long = "one two three four " * 11000  # 200 KiB, and more tokens than the context
            f.seek(0)
            f.write(long.encode())
            f.flush()
            said = [run(*words, "--file", f.name), run(*words, "--prompt", "-", input=long.encode())]
            for r in said:
                self.assertEqual(r.returncode, 1)
                self.assertEqual(r.stderr, said[0].stderr)
                n = int(re.search(rb"a prompt of (\d+) tokens", r.stderr).group(1))
                self.assertGreaterEqual(n, 44000)
        r = run(*words, "--prompt", "-", input=b"a\0b")
        self.assertEqual(r.returncode, 2)
        self.assertIn("NUL, at byte 1", r.stderr.decode())
        r = run(*words, "--prompt", "-", input=b"")
        self.assertEqual(r.returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
