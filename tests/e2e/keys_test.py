"""A cluster with keys: it answers as one without; to peers that have no key, an unlisted one or one of another role every
port is closed, whatever they send; lists are read again while it runs; and what passes on its links tells nothing."""
import json, os, re, signal, socket, subprocess, sys, tempfile, threading, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cluster import LONG, MODEL, free_ports, local, program, run
from relay import Relay

WORDS = "The lighthouse keeper counted seventeen herons"
WIDTH = 576 * 4  # bytes of an activation row of the demo model


def until(what, seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def port_of(address):
    return int(address.rsplit(":", 1)[1])


class Keyed:
    """A coordinator and two workers as processes of their own. Clients, the workers' control connections and the data
    link between the two pass through relays that keep what they see."""

    def __init__(self, keys=True):
        self.folder = tempfile.TemporaryDirectory()
        self.keys = keys
        self.public = {}
        self.lists = {"clients": ["client"], "workers": ["w0", "w1"]}
        for name in ("coordinator", "client", "w0", "w1", "late", "stranger") if keys else ():
            self.public[name] = run("keygen", self.path(name)).stdout.decode().strip()
        self.write()
        self.log = open(self.path("log"), "w+")
        self.coordinator = subprocess.Popen([program("flotilla-coordinator"), "--config", self.path("cluster.yaml")],
                                            stdout=subprocess.PIPE, stderr=self.log, text=True)
        words = self.coordinator.stdout.readline().split()
        self.ports = dict(client=port_of(words[1]), worker=port_of(words[2]))
        [data] = free_ports(1)
        self.relays = [Relay(self.ports["client"], keep=True), Relay(self.ports["worker"], keep=True),
                       Relay(("127.0.0.2", data), listen=("127.0.0.1", data), keep=True)]
        for r in self.relays:
            r.__enter__()
        self.workers = [self.worker("w0"), self.worker("w1", "--listen", "127.0.0.2", "--advertise", f"127.0.0.1:{data}")]
        line = self.coordinator.stdout.readline()
        assert line.startswith("ready"), self.text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in (*self.workers, self.coordinator):
            p.terminate()
        for p in (*self.workers, self.coordinator):
            p.wait(timeout=30)
        for r in self.relays:
            r.__exit__()
        self.coordinator.stdout.close()
        self.log.close()
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self):
        """The cluster file; JSON is YAML."""
        lists = {role: [self.public[n] for n in names] for role, names in self.lists.items()} if self.keys else {}
        with open(self.path("cluster.yaml"), "w") as f:
            f.write(f"model: {json.dumps(MODEL)}\nworkers: 2\nkv_tokens: 2048\nprefix_cache: false\n"
                    "ports: {clients: 0, workers: 0, results: 0}\nmetrics: false\nhttp: {serve: false}\n")
            if self.keys:
                f.write("keys: " + json.dumps(dict(lists, file=self.path("coordinator"))) + "\n")

    def text(self):
        with open(self.log.name) as f:
            return f.read()

    def credentials(self, name):
        return ["--key", self.path(name), "--coordinator-key", self.public["coordinator"]] if self.keys and name else []

    def worker(self, name, *words):
        return subprocess.Popen([program("flotilla-worker"), "--coordinator", f"tcp://127.0.0.1:{self.relays[1].port}", "--name",
                                 name, "--threads", "1", *self.credentials(name), *words], stderr=self.log)

    def command(self, name, words):
        return [program("flotilla"), words[0], "--cluster", f"tcp://127.0.0.1:{self.relays[0].port}", "--json", *words[1:],
                *self.credentials(name)]

    def flotilla(self, name, *words):
        return subprocess.run(self.command(name, words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)

    def status(self):
        return json.loads(self.flotilla("client", "status").stdout)

    def tokens(self, name="client", prompt=WORDS, n=8):
        r = self.flotilla(name, "generate", "--prompt", prompt, "--tokens", str(n))
        assert r.returncode == 0, r.stderr.decode()
        return json.loads(r.stdout)["tokens"]

    def reload(self, **lists):
        self.lists.update(lists)
        n = self.text().count("keys were read again")
        self.write()
        self.coordinator.send_signal(signal.SIGHUP)
        until("the keys are read", 10, lambda: self.text().count("keys were read again") > n)

    def listening(self, process):
        listing = subprocess.run(["ss", "-ltnpH"], stdout=subprocess.PIPE, text=True).stdout
        return {tuple(l.split()[3].rsplit(":", 1)) for l in listing.splitlines() if f"pid={process.pid}," in l}

    def targets(self):
        """Every port: (what the probe sends there, endpoint, the owner's name)."""
        found = [("client", f"tcp://127.0.0.1:{self.ports['client']}", "coordinator"),
                 ("worker", f"tcp://127.0.0.1:{self.ports['worker']}", "coordinator")]
        for process, name in ((self.coordinator, "coordinator"), (self.workers[0], "w0"), (self.workers[1], "w1")):
            found += [("push", f"tcp://{host}:{port}", name) for host, port in self.listening(process)
                      if int(port) not in self.ports.values()]
        assert len(found) == 5, found
        return found

    def noise(self, name, seconds, targets=None):
        """Random messages by the owner of a key (None: in plaintext) to the ports; how many left."""
        words = [program("noise_probe"), str(seconds), "3"] + ([f"key={self.path(name)}"] if name else [])
        for kind, endpoint, owner in targets or self.targets():
            words.append(f"{kind}={endpoint}" + (f",{self.public[owner]}" if name else ""))
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def dropped(self):
        s = self.status()
        return s["messages_dropped"] + sum(w["messages_dropped"] for w in s["replicas"][0]["workers"])

    def seen(self):
        return b"".join(bytes(b) for r in self.relays for _, b in r.seen)


class HalfOpen:
    """Connections that say nothing, or stop after a greeting; made again when they are closed."""

    def __init__(self, ports, each):
        self.stop, self.sockets, self.ports, self.made = False, {}, [p for p in ports for _ in range(each)], 0

    def __enter__(self):
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        self.thread.join()
        for s in self.sockets.values():
            s.close()

    def run(self):
        while not self.stop:
            for i, port in enumerate(self.ports):
                s = self.sockets.get(i)
                try:
                    if s is not None and (s.recv(64, socket.MSG_DONTWAIT) or True):
                        s.close()
                        s = None
                except BlockingIOError:
                    continue
                except OSError:
                    s.close()
                    s = None
                try:
                    s = self.sockets[i] = socket.create_connection(("127.0.0.1", port), timeout=1)
                    self.made += 1
                    if i % 2:
                        s.send(b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE")
                except OSError:
                    self.sockets.pop(i, None)
            time.sleep(0.2)


class KeysTest(unittest.TestCase):
    def intruders(self, c, want):
        """Nobody without an admitted key gets a message in, at any port; service goes on meanwhile."""
        before = c.dropped()
        # The second worker's data link admits the first worker's key, and the results' port a worker's.
        wrong = [t for t in c.targets() if t[0] != "push"]
        probes = [c.noise("stranger", 2), c.noise(None, 2), c.noise("client", 2, [t for t in c.targets() if t[0] != "client"]),
                  c.noise("w0", 2, [t for t in wrong if t[0] == "client"])]
        self.assertEqual(c.tokens(), want)
        for p in probes:
            out, _ = p.communicate(timeout=60)
            self.assertEqual((p.returncode, out.split()[:4]), (0, ["sent", "0", "replies", "0"]), out)
        self.assertEqual(c.dropped(), before)
        for words in (r"key \S{40} is in no list", r"key \S{40} is listed for another role", "a peer without a key"):
            self.assertRegex(c.text(), words)

    def reload(self, c, want):
        """A new key is admitted without a restart; without it again, its request ends and no other."""
        self.assertEqual(c.flotilla("late", "status").returncode, 1)
        c.reload(clients=["client", "late"])
        self.assertEqual(c.tokens("late"), want)
        long = ("generate", "--prompt", WORDS, "--tokens", "1500", "--ignore-eos")
        late, other = (subprocess.Popen(c.command(n, long), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                       for n in ("late", "client"))
        until("both run", 20, lambda: c.status()["requests"]["running"] == 2)
        c.reload(clients=["client"])
        until("one is cancelled", 10, lambda: c.status()["requests"]["running"] == 1)
        late.kill()
        late.communicate()
        self.assertIsNone(other.poll())
        other.kill()
        other.communicate()
        # What is wrong in the file changes nothing.
        c.public["late"] = "short"
        c.lists["clients"] = ["client", "late"]
        c.write()
        c.coordinator.send_signal(signal.SIGHUP)
        until("an error", 10, lambda: re.search(r"keys stay as they are: \S+cluster.yaml:\d+:\d+: key 'keys.clients': 'short'", c.text()))
        self.assertEqual(c.tokens(), want)

    def replayed(self, c, want):
        """What was seen on a connection, whole and with some bytes changed, sent again over new ones."""
        before = c.dropped()
        for relay in c.relays:
            heard = [bytes(b) for direction, b in relay.seen if direction is relay.forth and len(b) > 500]
            self.assertTrue(heard)
            for data in heard[:8]:
                for at in (None, 300, len(data) - 20):
                    some = bytearray(data[:100000])
                    if at is not None:
                        some[min(at, len(some) - 1)] ^= 1
                    with socket.create_connection(relay.target, timeout=5) as s:
                        try:
                            s.sendall(some)
                            s.shutdown(socket.SHUT_WR)
                            while s.recv(4096):
                                pass
                        except OSError:
                            pass
        self.assertEqual(c.dropped(), before)
        self.assertEqual(c.tokens(), want)

    def test_with_keys(self):
        want = local(WORDS, tokens=8)["tokens"]
        with Keyed() as c:
            self.assertEqual(c.tokens(), want)
            self.intruders(c, want)
            self.replayed(c, want)
            with HalfOpen([c.ports["client"], c.ports["worker"]], 500 if LONG else 100) as half:
                end = time.monotonic() + (30 if LONG else 3)
                while time.monotonic() < end:
                    self.assertEqual(c.tokens(), want)
                self.assertGreater(half.made, 1000 if LONG else 200)
            self.reload(c, want)
            s = c.status()
            self.assertEqual(s["replicas"][0]["epoch"], 1, c.text()[-3000:])
            if LONG:
                self.mutated(c, want)

    def mutated(self, c, want):
        """Random and mutated messages by keys that may send to these ports: dropped, at worst a new generation."""
        data = [t for t in c.targets() if t[0] == "push" and t[2] == "w1"]
        results = [t for t in c.targets() if t[0] == "push" and t[2] == "coordinator"]
        rest = c.targets()[:2]
        for p in (c.noise("client", 60, rest[:1]), c.noise("w0", 60, rest[1:] + results + data)):
            out, _ = p.communicate(timeout=120)
            self.assertEqual(p.returncode, 0)
            self.assertGreater(int(out.split()[1]), 1000, out)
        until("service", 60, lambda: c.status()["ready"])
        self.assertEqual(c.tokens(), want)

    def test_what_passes(self):
        """A row of activations is found in plaintext, whoever computes it, and neither it nor the prompt where there
        are keys."""
        with Keyed(keys=False) as c:
            want = c.tokens()
            c.tokens()
            link = max((bytes(b) for _, b in c.relays[2].seen), key=len)
            # The frame of the prompt's rows: a message's last, and a long one. A decode has one row, and so has the probe.
            heads = (link.find(b"\x02" + (rows * WIDTH).to_bytes(8, "big")) for rows in range(4, 30))
            at = next(a for a in heads if a >= 0)
            row = link[at + 9:at + 9 + WIDTH]
            seen = c.seen()
            self.assertGreaterEqual(seen.count(row), 2)  # the same request, computed twice
            self.assertIn(WORDS.encode(), seen)
        with Keyed() as c:
            self.assertEqual(c.tokens(), want)
            seen = c.seen()
            self.assertGreater(len(seen), len(link) // 2)
            for word in WORDS.encode().split():
                if len(word) > 5:
                    self.assertNotIn(word, seen)
            for piece in range(0, WIDTH, 64):
                self.assertNotIn(row[piece:piece + 64], seen)


class KeygenTest(unittest.TestCase):
    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.key")
            r = run("keygen", path)
            self.assertEqual(r.returncode, 0)
            self.assertRegex(r.stdout.decode(), r"^[!-~]{40}\n$")
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            self.assertEqual(run("keygen", "--show", path).stdout, r.stdout)
            self.assertEqual(json.loads(run("keygen", "--show", path, "--json").stdout)["public"] + "\n", r.stdout.decode())
            again = run("keygen", path)
            self.assertEqual(again.returncode, 1)
            self.assertIn(path, again.stderr.decode())
            os.chmod(path, 0o644)
            key = r.stdout.decode().strip()
            for words in (("status", "--cluster", "127.0.0.1:1", "--key", path, "--coordinator-key", key),
                          ("status", "--cluster", "127.0.0.1:1", "--key", path)):
                r = run(*words)
                self.assertEqual(r.returncode, 2, r.stderr)
            self.assertEqual(run("keygen").returncode, 2)
            r = run("up", "--model", MODEL, "--set", "keys.file=/k")
            self.assertEqual(r.returncode, 2)
            self.assertIn("keys", r.stderr.decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
