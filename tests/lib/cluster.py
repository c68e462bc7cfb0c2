"""Starts real processes and talks to them through the command line, for the end-to-end tests.

Environment: FLOTILLA_BIN (folder of the programs), FLOTILLA_MODEL (the demo model), FLOTILLA_GEMMA,
FLOTILLA_LLAMA_SOURCE (deploy/fetch.py), FLOTILLA_LONG, and then also FLOTILLA_QWEN, FLOTILLA_QWEN_LARGE.
"""
import json, os, re, signal, socket, subprocess, tempfile, time, urllib.request

BIN = os.environ["FLOTILLA_BIN"]
MODEL = os.environ["FLOTILLA_MODEL"]
GEMMA = os.environ.get("FLOTILLA_GEMMA", "")
QWEN = os.environ.get("FLOTILLA_QWEN", "")
QWEN_LARGE = os.environ.get("FLOTILLA_QWEN_LARGE", "")
LLAMA_SOURCE = os.environ.get("FLOTILLA_LLAMA_SOURCE", "")
LONG = bool(os.environ.get("FLOTILLA_LONG"))


def program(name):
    return os.path.join(BIN, name)


def options(kw):
    """{'top_k': 3, 'ignore_eos': True, 'stop': ['a', 'b']} as command-line words."""
    words = []
    for key, value in kw.items():
        name = "--" + key.replace("_", "-")
        if value is True:
            words.append(name)
        elif isinstance(value, list):
            words += [w for v in value for w in (name, v)]
        elif value is not None and value is not False:
            words += [name, str(value)]
    return words


def run(*words, prefix=(), timeout=600, **kw):
    return subprocess.run([*prefix, program("flotilla"), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, **kw)


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def local(prompt, model=MODEL, **kw):
    """`generate --model`: the engine alone."""
    r = run("generate", "--model", model, "--json", *options(dict(kw, prompt=prompt)))
    if r.returncode != 0:
        raise RuntimeError(r.stderr.decode())
    return json.loads(r.stdout)


def is_idle(status):
    """Nothing runs, and no page is held, on the coordinator and so on every worker."""
    return status["requests"] == {"running": 0, "queued": 0} and all(
        w["kv_pages"]["free"] == w["kv_pages"]["total"] for r in status["replicas"] for w in r["workers"])


class Generation:
    """A `generate --cluster` in the background."""

    def __init__(self, address, prompt, prefix=(), words=(), **kw):
        self.process = subprocess.Popen(
            [*prefix, program("flotilla"), "generate", "--cluster", address, "--json", *words, *options(dict(kw, prompt=prompt))],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def result(self, timeout=600):
        out, self.error = (b.decode() for b in self.process.communicate(timeout=timeout))
        self.ended = time.monotonic()
        return json.loads(out) if self.process.returncode == 0 else None


class Service:
    """A cluster that answers at self.address. Its logs go to self.log; self.prefix starts a client, which is given self.words: its
    key, if it needs one."""
    words = ()

    def text(self):
        with open(self.log.name) as f:
            return f.read()

    def status(self):
        r = run("status", "--cluster", self.address, "--json", *self.words, prefix=self.prefix)
        if r.returncode != 0:
            raise RuntimeError(r.stderr.decode())
        return json.loads(r.stdout)

    def workers(self):
        return self.status()["replicas"][0]["workers"]

    def start(self, prompt, **kw):
        return Generation(self.address, prompt, prefix=self.prefix, words=self.words, **kw)

    def generate(self, prompt, **kw):
        g = self.start(prompt, **kw)
        r = g.result()
        if r is None:
            raise RuntimeError(g.error)
        return r

    def wait(self, condition, seconds):
        """Waits until condition(status) holds; returns the status, or fails after `seconds`."""
        end = time.monotonic() + seconds
        while True:
            s = self.status()
            if condition(s):
                return s
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {s}\n{self.text()[-3000:]}")
            time.sleep(0.05)


class Cluster(Service):
    """`flotilla up`, until the end of the with block. All logs go to self.log. A worker that a test ends is not started again,
    unless no_restart=False."""

    def __init__(self, model=MODEL, env=None, prefix=(), kv_tokens=16384, split="even", **kw):
        """kv_tokens=None: without the option, so that the pool follows from the machine's memory. Layers are shared out evenly,
        to the workers in the order of their names, so that tests know who has which; split="measured": as shipped."""
        self.prefix = prefix
        kw["kv_tokens"] = kv_tokens
        kw["set"] = [f"split={split}", *kw.get("set", [])]
        self.log = tempfile.NamedTemporaryFile("w+", prefix="flotilla-log-", suffix=".txt")
        self.up = subprocess.Popen([*prefix, program("flotilla"), "up", "--model", model,
                                    *options(dict(dict(verbose=True, no_restart=True), **kw))],
                                   stdout=subprocess.PIPE, stderr=self.log, text=True,
                                   env={**os.environ, **(env or {})})
        line = self.up.stdout.readline()
        if not line.startswith("ready client="):
            self.stop()
            raise RuntimeError("no cluster: " + self.text())
        words = dict(word.split("=", 1) for word in line.split()[1:])
        self.address, self.http = words["client"], words.get("http")
        self.join = re.search(r"workers join at (\S+)", self.text()).group(1)
        self.extra = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for p in getattr(self, "extra", []):
            p.send_signal(signal.SIGCONT)
            p.terminate()
            p.wait()
        self.up.terminate()
        return self.up.wait(timeout=30)

    def pids(self):
        """This cluster's own processes by name: the coordinator and the workers that `up` started."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    parent = int(f.read().rsplit(")", 1)[1].split()[1])
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    name = os.path.basename(f.read().split(b"\0")[0].decode())
            except OSError:
                continue
            if parent == self.up.pid:
                found.setdefault(name, []).append(int(pid))
        return found

    def metrics(self):
        """The coordinator's, as {"name{labels}": value}; they are published a few times a second."""
        time.sleep(0.5)
        url = re.search(r"metrics at (http://\S+)", self.text()).group(1)
        with urllib.request.urlopen(url, timeout=5) as r:
            lines = [l for l in r.read().decode().splitlines() if not l.startswith("#")]
        return {l.rsplit(" ", 1)[0]: float(l.rsplit(" ", 1)[1]) for l in lines}

    def worker(self, name, **kw):
        """Starts one more worker by hand."""
        p = subprocess.Popen([*self.prefix, program("flotilla-worker"), "--coordinator", self.join, "--name", name, *options(kw)],
                             stderr=self.log)
        self.extra.append(p)
        return p


class Keys:
    """Keys of a coordinator, a client and workers by name; `lists` is the cluster file's value of `keys`."""

    def __init__(self, workers):
        self.folder = tempfile.TemporaryDirectory(prefix="flotilla-keys-")
        self.public = {name: run("keygen", self.path(name)).stdout.decode().strip() for name in ("coordinator", "client", *workers)}
        self.lists = json.dumps(dict(file=self.path("coordinator"), clients=[self.public["client"]],
                                     workers=[self.public[w] for w in workers]))

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def words(self, name):
        return ["--key", self.path(name), "--coordinator-key", self.public["coordinator"]]


class HandCluster(Service):
    """A coordinator and workers on this machine, each started by itself. `keys`: of the cluster file, beside the model; `workers`:
    (name, words before the command, options) of each. The caches of measured speeds are the cluster's own."""

    prefix = ()

    def __init__(self, keys, workers=(), model=MODEL, ports=(0, 0, 0)):
        """ports: of clients, workers and results; 0: any."""
        self.log = tempfile.NamedTemporaryFile("w+", prefix="flotilla-log-", suffix=".txt")
        self.folder = tempfile.TemporaryDirectory(prefix="flotilla-cache-")
        self.env = {**os.environ, "XDG_CACHE_HOME": self.folder.name}
        self.processes = {}
        ports = "{{clients: {}, workers: {}, results: {}}}".format(*ports)
        text = f"model: {model}\nports: {ports}\nmetrics: false\nhttp: {{serve: false}}\n{keys}\n"
        self.coordinator = subprocess.Popen([program("flotilla-coordinator"), "--config", "-"], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.env)
        self.coordinator.stdin.write(text)
        self.coordinator.stdin.close()
        m = re.match(r"listening client=(\S+) worker=(\S+)", self.coordinator.stdout.readline())
        if not m:
            self.stop()
            raise RuntimeError("no coordinator: " + self.text())
        self.address, self.join = m.groups()
        for name, before, kw in workers:
            self.worker(name, before, **kw)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def worker(self, name, before=(), **kw):
        words = [*before, program("flotilla-worker"), "--coordinator", self.join, "--name", name, *options(kw)]
        self.processes[name] = subprocess.Popen(words, stderr=self.log, env=self.env)
        return self.processes[name]

    def plan(self):
        r = run("plan", "--cluster", self.address, "--json")
        return json.loads(r.stdout)["replicas"]

    def stop(self):
        all_ = [*self.processes.values(), self.coordinator]
        for p in all_:
            p.send_signal(signal.SIGCONT)
            p.terminate()
        self.coordinator.stdout.close()
        codes = [p.wait(timeout=30) for p in all_]
        self.folder.cleanup()
        return codes


class SpreadCluster(Service):
    """A coordinator on the host "c" of a namespaces.Network and workers on others, by their names; a worker has the name of its
    host. More keys of the cluster file by name. Clients run on the coordinator's host, or on `client`. secure: everybody has a
    key, and only those are admitted."""

    def __init__(self, network, hosts, model=MODEL, client="c", secure=False, **keys):
        self.network, self.prefix = network, network[client].prefix
        self.log = tempfile.NamedTemporaryFile("w+", prefix="flotilla-log-", suffix=".txt")
        here, self.processes = network["c"].address, {}
        keys = dict(dict(model=model, workers=len(hosts), listen=here, metrics="false", http="{serve: false}", split="even"), **keys)
        self.keys = Keys(hosts) if secure else None
        keys.update({"keys": self.keys.lists} if secure else {"plaintext": "true"})
        self.words = self.keys.words("client") if secure else ()
        self.coordinator = subprocess.Popen([*network["c"].prefix, program("flotilla-coordinator"), "--config", "-"],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.coordinator.stdin.write("".join(f"{k}: {v}\n" for k, v in keys.items() if v is not None))
        self.coordinator.stdin.close()
        if not self.coordinator.stdout.readline().startswith("listening"):
            self.stop()
            raise RuntimeError("no coordinator: " + self.text())
        self.address, self.join = f"tcp://{here}:7070", f"tcp://{here}:7071"
        for name in hosts:
            self.worker(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def worker(self, name, **kw):
        """Starts a worker on its host; one that ran there has ended, or been killed."""
        if name in self.processes:
            self.processes[name].wait(timeout=30)
        self.processes[name] = subprocess.Popen(
            [*self.network[name].prefix, program("flotilla-worker"), "--coordinator", self.join, "--name", name,
             *(self.keys.words(name) if self.keys else ()), *options(dict(dict(threads=1), **kw))], stderr=self.log)
        return self.processes[name]

    def stop(self):
        """Ends all in order; the exit status of each, the coordinator's last."""
        all_ = [*self.processes.values(), self.coordinator]
        for p in all_:
            p.send_signal(signal.SIGCONT)
            p.terminate()
        self.coordinator.stdout.close()
        return [p.wait(timeout=30) for p in all_]
