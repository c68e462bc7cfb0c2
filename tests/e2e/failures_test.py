"""What happens when a worker, a compute thread, a link, a client or the coordinator is lost, stops or stands still, with
real processes."""
import contextlib, json, os, re, signal, subprocess, sys, tempfile, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import BIN, LONG, MODEL, Cluster, Generation, free_ports, local, program, run
from namespaces import Network
from relay import Relay
from threads import StoppedThread, compute_thread

LONG_RUN = dict(tokens=4000, ignore_eos=True)
WORKER_TIMEOUT_S, STEP_TIMEOUT_S = 1.5, 2  # the defaults of the cluster file


def running(n):
    return lambda s: s["requests"]["running"] == n


def ready(s):
    return s["ready"]


def all_ready(s):
    return all(r["state"] == "ready" for r in s["replicas"])


def epochs(s):
    return [r["epoch"] for r in s["replicas"]]


def all_free(s):
    pools = [r["workers"][0]["kv_pages"] for r in s["replicas"]]
    return s["requests"]["running"] == 0 and all(p["free"] == p["total"] for p in pools)


class Holds:
    """What holds with one replica and with several."""
    replicas, n_busy = 1, 6 * os.cpu_count()

    @contextlib.contextmanager
    def cluster(self, **kw):
        """Of two workers with one thread each in every replica; all are ready."""
        with Cluster(workers=2, replicas=self.replicas, threads=1, **kw) as c:
            c.wait(all_ready, 60)
            yield c

    def named(self, s, replica):
        return next(r for r in s["replicas"] if r["name"] == replica["name"])

    def test_client_killed(self):
        with self.cluster(kv_tokens=32768) as c:
            for _ in range(3):
                s = c.start("Once upon a time", **LONG_RUN)
                c.wait(running(1), 10)
                s.process.kill()
                s.process.communicate()
                c.wait(all_free, 6)

    def test_deadline(self):
        with self.cluster(kv_tokens=32768) as c:
            at = time.monotonic()
            s = c.start("Once upon a time", deadline=1, **LONG_RUN)
            self.assertIsNone(s.result())
            self.assertIn("DEADLINE_EXCEEDED", s.error)
            self.assertGreaterEqual(time.monotonic() - at, 1.0)
            self.assertLess(time.monotonic() - at, 10.0)  # its tokens alone would take several times that
            c.wait(all_free, 5)

    def test_coordinator_started_again(self):
        """Workers that are left running serve the next coordinator, and load nothing again; a stream goes on
        there with the very next token, whether the one before was killed or told to stop."""
        for how in (signal.SIGKILL, signal.SIGTERM):
            self.start_again(how)

    def start_again(self, how):
        what = dict(tokens=600, ignore_eos=True)
        whole = local("Once upon a time", **what)
        want = local("Once upon a time", tokens=12)["tokens"]
        ports = free_ports(3)
        config = f"model: {MODEL}\nworkers: 2\nreplicas: {self.replicas}\nkv_tokens: 1024\ndrain: 1\nmetrics: false\nhttp: {{serve: false}}\n" \
                 f"ports: {{clients: {ports[0]}, workers: {ports[1]}, results: {ports[2]}}}\n"
        client = f"tcp://127.0.0.1:{ports[0]}"

        def start():
            p = subprocess.Popen([program("flotilla-coordinator"), "--config", "-"], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            p.stdin.write(config)
            p.stdin.close()
            self.assertTrue(p.stdout.readline().startswith("listening"))
            return p

        with tempfile.TemporaryFile("w+") as log:
            c = start()
            workers = [subprocess.Popen([program("flotilla-worker"), "--coordinator", f"tcp://127.0.0.1:{ports[1]}",
                                         "--name", f"w{i}", "--threads", "1"], stderr=log) for i in range(2 * self.replicas)]
            try:
                self.assertTrue(c.stdout.readline().startswith("ready"))
                stream = Generation(client, "Once upon a time", **what)
                time.sleep(1)
                c.send_signal(how)
                self.assertEqual(c.wait(timeout=20), -signal.SIGKILL if how == signal.SIGKILL else 0)
                c.stdout.close()
                c = start()
                self.assertTrue(c.stdout.readline().startswith("ready"))
                got = stream.result(timeout=120)
                self.assertIsNotNone(got, stream.error)
                self.assertEqual((got["tokens"] == whole["tokens"], got["text"] == whole["text"]), (True, True))
                r = run("generate", "--cluster", client, "--prompt", "Once upon a time", "--tokens", "12", "--json")
                self.assertEqual(json.loads(r.stdout)["tokens"], want)
                s = json.loads(run("status", "--cluster", client, "--json").stdout)
                # Load progress is told once a load: a kept slice has none in this coordinator's life.
                self.assertEqual({w["load_total"] for r in s["replicas"] for w in r["workers"]}, {0})
            finally:
                for p in (*workers, c):
                    p.terminate()
                for p in (*workers, c):
                    self.assertEqual(p.wait(timeout=20), 0)
                c.stdout.close()

    def test_hung_compute_thread(self):
        """A worker's compute thread stands still while the rest of it speaks on: it is named, a spare takes its place,
        and the stream goes on with the very next token."""
        want = local("Once upon a time", tokens=600, ignore_eos=True)["tokens"]
        with self.cluster(replica_wait=60, kv_tokens=8192) as c:
            c.worker("spare", threads=1)
            c.wait(lambda s: "worker spare joined" in c.text(), 10)
            s = c.start("Once upon a time", tokens=600, ignore_eos=True)
            c.wait(running(1), 10)
            hit = next(r for r in c.status()["replicas"] if r["running"])
            first, victim = hit["workers"]
            with StoppedThread(compute_thread(victim["pid"])):
                # Twice the default step_timeout_ms, with real processes: three times.
                c.wait(lambda s: self.named(s, hit)["epoch"] != hit["epoch"], 3 * 2 * 2)
                self.assertIn(f"overdue at worker {victim['name']}: its compute thread hangs", c.text())
                now = self.named(c.wait(all_ready, 20), hit)
                self.assertEqual(sorted(w["name"] for w in now["workers"]), ["spare", first["name"]])
                self.assertEqual(s.result()["tokens"], want)

    def test_busy_machine(self):
        """Busy processes beside the workers, default limits: no generation is lost, and `status` says who waits for a CPU."""
        with self.cluster(kv_tokens=8192) as c:
            before = epochs(c.status())
            busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(self.n_busy)]
            load = subprocess.Popen([program("flotilla"), "bench", "--cluster", c.address, "--clients", "4", "--requests", "100000",
                                     "--prompt-tokens", "64", "--tokens", "16"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                steps, waited, end = [set() for _ in before], [0.0 for _ in before], time.monotonic() + (120 if LONG else 10)
                while time.monotonic() < end or (min(map(len, steps)) <= 10 and time.monotonic() < end + 60):
                    s = c.status()
                    self.assertEqual((epochs(s), all_ready(s)), (before, True), c.text()[-2000:])
                    for i, r in enumerate(s["replicas"]):
                        steps[i].add(r["steps"])
                        waited[i] = max(waited[i], *(w["cpu_waiting"] for w in r["workers"]))
                    time.sleep(0.5)
                self.assertGreater(min(map(len, steps)), 10)
                self.assertGreater(min(waited), 0.2)
                self.assertRegex(run("status", "--cluster", c.address).stdout.decode(), r"waits for CPU \d+ % of the time")
            finally:
                for p in (load, *busy):
                    p.kill()
                    p.wait()

    def test_coordinator_stands_still(self):
        """It is stopped for ten seconds: when it goes on nobody is blamed, and the stream is whole."""
        what = dict(tokens=300, ignore_eos=True)
        want = local("Once upon a time", **what)["tokens"]
        with self.cluster(kv_tokens=4096) as c:
            stream = c.start("Once upon a time", **what)
            c.wait(running(1), 10)
            before = epochs(c.status())
            pid = c.pids()["flotilla-coordinator"][0]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(10)
            os.kill(pid, signal.SIGCONT)
            got = stream.result(timeout=120)
            self.assertIsNotNone(got, stream.error)
            self.assertEqual(got["tokens"], want)
            self.assertEqual(epochs(c.status()), before, c.text()[-2000:])


@unittest.skipUnless(LONG, "in the long form")
class TwoReplicas(Holds, unittest.TestCase):
    replicas, n_busy = 2, 8


class Failures(Holds, unittest.TestCase):
    def lose(self, c, victim, how):
        """Four streams, then `how` befalls the worker: each ends UNAVAILABLE, naming it, within three times the time after
        which a silent worker is lost."""
        streams = [c.start(f"Story number {i}:", **LONG_RUN) for i in range(4)]
        c.wait(running(4), 30)
        w = next(w for w in c.workers() if w["name"] == victim)
        at = time.monotonic()
        os.kill(w["pid"], how)
        for s in streams:
            self.assertIsNone(s.result(timeout=30))
            self.assertIn("UNAVAILABLE", s.error)
            self.assertIn(f"worker {victim}", s.error)
            self.assertLess(s.ended - at, 3 * WORKER_TIMEOUT_S)
        c.status()  # the coordinator answers
        return w["pid"]

    def test_killed_and_stopped(self):
        want = local("Once upon a time", tokens=12)["tokens"]
        with Cluster(workers=3, replica_wait=0, kv_tokens=32768, threads=1) as c:
            for n, victim in enumerate(("w2", "w3", "w1")):
                self.lose(c, victim, signal.SIGKILL)
                c.worker(victim, threads=1)  # started again by hand; the coordinator is not touched
                c.wait(ready, 20)
                self.assertEqual(c.generate("Once upon a time", tokens=12)["tokens"], want)
            pid = self.lose(c, "w2", signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
            c.wait(ready, 20)
            self.assertEqual(c.generate("Once upon a time", tokens=12)["tokens"], want)
            c.wait(all_free, 5)

    def test_requests_wait_for_a_replica(self):
        """With a wait, a running stream goes on after the loss with the very next token."""
        want = local("Once upon a time", tokens=300, ignore_eos=True, temp=0.7, seed=3)["tokens"]
        with Cluster(workers=2, replica_wait=30, kv_tokens=8192, threads=1) as c:
            s = c.start("Once upon a time", tokens=300, ignore_eos=True, temp=0.7, seed=3)
            c.wait(lambda s: s["requests"]["running"] == 1 and s["replicas"][0]["steps"] > 20, 30)  # some tokens are out
            os.kill(c.workers()[0]["pid"], signal.SIGKILL)
            c.worker("again", threads=1)
            self.assertEqual(s.result()["tokens"], want)
            self.assertGreaterEqual(c.status()["replicas"][0]["epoch"], 2)

    def test_no_room(self):
        """A request that can never fit is refused at once; of those that can, so many live as the limit says, queue for
        the pool and are answered, and the next are refused."""
        with Cluster(workers=2, kv_tokens=256, threads=1, max_requests=6) as c:
            s = c.start("word " * 300, tokens=4)
            self.assertIsNone(s.result())
            self.assertIn("INVALID_ARGUMENT", s.error)
            streams = [c.start(f"{i} and", tokens=150, ignore_eos=True) for i in range(6)]
            c.wait(lambda s: s["requests"]["running"] + s["requests"]["queued"] == 6, 30)
            for i in range(3):
                s = c.start("One too many", tokens=4)
                self.assertIsNone(s.result())
                self.assertIn("RESOURCE_EXHAUSTED", s.error)
                self.assertIn("6", s.error)
            results = [s.result() for s in streams]
            self.assertEqual([len(r["tokens"]) for r in results if r], [150] * 6)
            c.wait(all_free, 5)

    def test_half_open(self):
        """A worker's and a client's connection are forgotten on the way, without a word to either end: both are back
        on new connections within 10 s, and the stream has every token once."""
        what = dict(tokens=900, ignore_eos=True)
        want = local("Once upon a time", **what)["tokens"]
        config = f"model: {MODEL}\nworkers: 1\nkv_tokens: 4096\nmetrics: false\nhttp: {{serve: false}}\n" \
                 "ports: {clients: 0, workers: 0, results: 0}\n"
        with tempfile.TemporaryFile("w+") as log:
            c = subprocess.Popen([program("flotilla-coordinator"), "--config", "-"], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=log, text=True)
            c.stdin.write(config)
            c.stdin.close()
            line = c.stdout.readline()
            client, join = re.search(r"client=(\S+) worker=(\S+)", line).groups()

            def await_ready(wanted, seconds):
                end = time.monotonic() + seconds
                while json.loads(run("status", "--cluster", client, "--json").stdout)["ready"] != wanted:
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.1)

            with Relay(int(join.rsplit(":", 1)[1])) as to_worker, Relay(int(client.rsplit(":", 1)[1])) as to_client:
                w = subprocess.Popen([program("flotilla-worker"), "--coordinator", f"127.0.0.1:{to_worker.port}",
                                      "--threads", "1"], stderr=log)
                try:
                    await_ready(True, 60)
                    to_worker.forget()
                    await_ready(False, 10)
                    at = time.monotonic()
                    await_ready(True, 30)
                    self.assertLess(time.monotonic() - at, 10)
                    self.assertGreaterEqual(to_worker.connections, 2)
                    stream = Generation(f"127.0.0.1:{to_client.port}", "Once upon a time", **what)
                    time.sleep(1)
                    to_client.forget()
                    got = stream.result(timeout=120)
                    self.assertIsNotNone(got, stream.error)
                    self.assertEqual(got["tokens"], want)
                    self.assertGreaterEqual(to_client.connections, 2)
                finally:
                    for p in (w, c):
                        p.terminate()
                        self.assertEqual(p.wait(timeout=20), 0)
                    c.stdout.close()

    def test_blocked_links(self):
        """A firewall swallows the data between workers for ten seconds: the stream ends and names one. Then the workers'
        control: a stream whose Steps go on is not lost for it."""
        want = local("Once upon a time", tokens=12)["tokens"]
        with Network("host") as net, \
                Cluster(workers=2, replica_wait=0, kv_tokens=32768, threads=1, prefix=net["host"].prefix) as c:
            for link in ("data", "control"):
                stream = c.start("Once upon a time", **LONG_RUN)
                c.wait(running(1), 10)
                w = next(w for w in c.workers() if w["name"] == "w2")
                port = net["host"].listening(w["pid"])[0] if link == "data" else int(c.join.rsplit(":", 1)[1])
                at, epoch = time.monotonic(), c.status()["replicas"][0]["epoch"]
                net["host"].block(port)
                if link == "data":
                    self.assertIsNone(stream.result(timeout=30))
                    self.assertIn("UNAVAILABLE", stream.error)
                    self.assertIn("the link from w1 to worker w2", stream.error)
                    self.assertLess(stream.ended - at, 3 * STEP_TIMEOUT_S)
                else:
                    time.sleep(3 * WORKER_TIMEOUT_S)
                    s = c.status()
                    self.assertEqual((s["requests"]["running"], s["replicas"][0]["epoch"]), (1, epoch))
                    stream.process.kill()
                    stream.process.communicate()
                time.sleep(max(0, 10 - (time.monotonic() - at)))
                net["host"].unblock()
                c.wait(ready, 30)
                self.assertEqual(c.generate("Once upon a time", tokens=12)["tokens"], want)

    def test_poison(self):
        """A prompt of which workers die, on two replicas: it ends with INTERNAL after three generations; everybody else, beside it
        and after it, is answered in full."""
        token = 31313
        varint = bytes([token & 0x7f | 0x80, token >> 7 & 0x7f | 0x80, token >> 14])  # as a Step carries it
        # Twice in a row: a Step has at least two rows of a prompt that must go on.
        env = {"LD_PRELOAD": os.path.join(BIN, "..", "lib", "libpoison.so"), "POISON": (2 * varint).hex()}
        what = dict(tokens=60, ignore_eos=True)
        prompts = [f"Number {i} of the old ships" for i in range(6)]
        want = [local(p, **what)["tokens"] for p in prompts]
        with Cluster(workers=2, replicas=2, threads=1, kv_tokens=8192, replica_wait=90, no_restart=False, env=env) as c:
            c.wait(lambda s: all(r["state"] == "ready" for r in s["replicas"]), 60)
            streams = [c.start(p, **what) for p in prompts]
            c.wait(running(len(prompts)), 30)
            r = run("generate", "--cluster", c.address, "--prompt-tokens", ",".join([str(token)] * 8), "--tokens", "4", "--json")
            self.assertEqual(r.returncode, 1)
            self.assertRegex(r.stderr.decode(), r"INTERNAL: in flight at 3 lost generations.*: worker w\d lost")
            late = c.start(prompts[0], **what)
            for s, w in zip([*streams, late], [*want, want[0]], strict=True):
                got = s.result(timeout=200)
                self.assertIsNotNone(got, f"{s.error}\n{c.text()[-3000:]}")
                self.assertEqual(got["tokens"], w)
            self.assertEqual(len(re.findall(r"killed by signal 6", c.text())), 3, c.text()[-3000:])
            c.wait(lambda s: all(r["state"] == "ready" for r in s["replicas"]), 90)

    def test_orderly_end(self):
        c = Cluster(workers=2, kv_tokens=1024)
        pids = [w["pid"] for w in c.workers()]
        self.assertEqual(c.stop(), 0)
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
