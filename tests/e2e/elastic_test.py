"""A cluster whose workers come, go, are replaced and planned anew while requests run, and whose coordinator is started again:
no stream sees an error, each text is the engine's alone, and `status` shows each step."""
import json, os, signal, subprocess, sys, tempfile, threading, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import LONG, MODEL, Cluster, Service, free_ports, local, program, run

TOKENS = 900 if LONG else 80
WHAT = dict(ignore_eos=True, temp=0.7)


class Streams:
    """Streams that begin one after the other, some at a time, until they are told to end; each is compared with the engine's
    own answer. What differs, or fails, is in self.wrong."""
    PROMPTS = 3
    WANTED = {}  # by prompt: of all tests

    def __init__(self, service, at_a_time=3):
        self.service, self.ends, self.wrong, self.done = service, False, [], 0
        self.threads = [threading.Thread(target=self.follow, args=(i,)) for i in range(at_a_time)]

    @staticmethod
    def prompt(i):
        return f"Once upon a time, in town number {i},"

    @classmethod
    def wanted(cls, i):
        if i not in cls.WANTED:
            cls.WANTED[i] = local(cls.prompt(i), seed=i, tokens=TOKENS, **WHAT)
        return cls.WANTED[i]

    def follow(self, i):
        i %= self.PROMPTS
        want = self.wanted(i)
        while not self.ends:
            g = self.service.start(self.prompt(i), seed=i, tokens=TOKENS, **WHAT)
            got = g.result(timeout=300)
            if got is None:
                self.wrong.append(g.error)
            elif (got["tokens"], got["text"]) != (want["tokens"], want["text"]):
                self.wrong.append(f"stream {i} differs")
            else:
                self.done += 1

    def __enter__(self):
        for i in range(self.PROMPTS):
            self.wanted(i)
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.ends = True
        for t in self.threads:
            t.join()


class Watch:
    """What `status` said of replicas and workers while it lasted, to whoever asked: pairs (name, state)."""

    def __init__(self, service):
        self.service, self.ends, self.ask = service, False, service.status
        self.replicas, self.workers = set(), set()
        self.thread = threading.Thread(target=self.look)
        service.status = self.status

    def status(self):
        s = self.ask()
        for r in s["replicas"]:
            self.replicas.add((r["name"], r["state"]))
            self.workers |= {(w["name"], w["state"]) for w in r["workers"]}
        self.workers |= {(w["name"], w["state"]) for w in s["spares"]}
        return s

    def look(self):
        while not self.ends:
            self.status()
            time.sleep(0.05)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends = True
        self.thread.join()


def order(c, *words):
    r = run(*words, "--cluster", c.address, prefix=c.prefix)
    return r.returncode, r.stdout.decode(), r.stderr.decode()


def all_ready(n):
    return lambda s: len(s["replicas"]) == n and all(r["state"] == "ready" for r in s["replicas"])


def computes(s, replica):
    pages = next(r["workers"][0]["kv_pages"] for r in s["replicas"] if r["name"] == replica)
    return pages["free"] < pages["total"]


def busy(n):
    return lambda s: s["requests"]["running"] >= n


class Elastic(unittest.TestCase):
    def names(self, s):
        return [[w["name"] for w in r["workers"]] for r in s["replicas"]]

    def test_workers_come_and_go(self):
        with Cluster(workers=1, replicas=2, kv_tokens=8192, threads=1, set=["max_replicas=3", "drain=60"]) as c, \
                Watch(c) as seen, Streams(c, 6) as streams:
            c.wait(all_ready(2), 240)
            c.wait(busy(3), 240)
            with self.subTest("a worker that joins forms another replica, which takes traffic"):
                c.worker("joiner", threads=1)
                s = c.wait(all_ready(3), 240)
                self.assertEqual(self.names(s)[2], ["joiner"])
                c.wait(lambda s: s["replicas"][2]["steps"] > 20, 240)
            with self.subTest("one more is a spare, and replaces a lost one"):
                c.worker("spare", threads=1)
                s = c.wait(lambda s: [w["name"] for w in s["spares"]] == ["spare"], 240)
                os.kill(next(w["pid"] for r in s["replicas"] for w in r["workers"] if w["name"] == "joiner"), signal.SIGKILL)
                s = c.wait(lambda s: ["spare"] in self.names(s) and all_ready(3)(s), 240)
                c.wait(lambda s: s["spares"] == [], 60)  # the one that was killed is silent for a while first
                c.extra[0].wait()
            with self.subTest("drained: its requests end there, and it leaves"):
                where = next(r["name"] for r in c.status()["replicas"] if r["workers"][0]["name"] == "spare")
                c.wait(lambda s: computes(s, where), 240)
                status, out, err = order(c, "drain", "spare")
                self.assertEqual((status, out), (0, "worker spare has left\n"), err)
                self.assertIn("worker spare leaves when the", err)
                self.assertIn(f"replica {where}", err)
                self.assertEqual(c.extra[1].wait(timeout=10), 0)
                self.assertIn("has left, as ordered", c.text())
                s = c.status()
                self.assertEqual([(r["name"], r["state"]) for r in s["replicas"] if not r["workers"]], [(where, "waiting")])
            with self.subTest("drained with a spare in its place: what runs goes on at once"):
                c.worker("again", threads=1)
                s = c.wait(all_ready(3), 240)
                c.worker("other", threads=1)
                c.wait(lambda s: [w["name"] for w in s["spares"]] == ["other"], 240)
                status, out, err = order(c, "drain", "again", "--json")
                self.assertEqual((status, json.loads(out)), (0, {"worker": "again", "state": "gone"}), err)
                self.assertIn(["other"], self.names(c.wait(all_ready(3), 60)))
            with self.subTest("what is no worker, and what gains nothing"):
                status, _, err = order(c, "drain", "nobody")
                self.assertEqual((status, "NOT_FOUND" in err and "'nobody'" in err), (1, True), err)
                status, _, err = order(c, "rebalance")
                self.assertEqual((status, "nothing is gained" in err), (0, True), err)
                self.assertEqual(order(c, "rebalance", "z")[0], 1)
                self.assertEqual(order(c, "drain")[0], 2)
        self.assertEqual(streams.wrong, [])
        self.assertGreaterEqual(streams.done, 3)
        for what in (("joiner", "serving"), ("spare", "spare"), ("spare", "serving"), ("other", "spare"), ("other", "serving")):
            self.assertIn(what, seen.workers)
        self.assertIn(("c", "waiting"), seen.replicas)
        self.assertNotIn("spare lost", c.text())

    def test_rebalance(self):
        """A worker stays away: the chain is cut for the one that is there. It comes back, and is taken in on order, one replica
        after the other."""
        with Cluster(workers=2, replicas=1, kv_tokens=8192, threads=1, set=["replan_after=2"]) as c, \
                Streams(c, 2) as streams:
            c.wait(busy(2), 240)
            os.kill(next(w["pid"] for w in c.workers() if w["name"] == "w2"), signal.SIGKILL)
            s = c.wait(lambda s: s["ready"] and len(s["replicas"][0]["workers"]) == 1, 240)
            self.assertEqual(s["replicas"][0]["workers"][0]["layers"], [0, 29])
            self.assertIn("it is cut for 1 of 2", c.text())
            c.worker("back", threads=1)
            s = c.wait(lambda s: [w["name"] for w in s["spares"]] == ["back"], 240)
            self.assertEqual(len(s["replicas"][0]["workers"]), 1)  # never by itself
            c.wait(busy(1), 240)
            status, out, err = order(c, "rebalance", "--limit", "1")
            self.assertEqual(status, 0, err)
            self.assertIn("1 replica is planned anew", err)
            s = c.status()
            self.assertEqual((s["ready"], sorted(w["name"] for w in s["replicas"][0]["workers"]), s["replicas"][0]["rebalancing"]),
                             (True, ["back", "w1"], False))
        self.assertEqual(streams.wrong, [])
        self.assertGreaterEqual(streams.done, 2)

    def test_coordinator_started_again(self):
        """Two replicas under load: workers keep their layers, each stream goes on with its next token."""
        ports = free_ports(3)
        config = f"model: {MODEL}\nworkers: 1\nreplicas: 2\nkv_tokens: 4096\ndrain: 1\nmetrics: false\n" \
                 f"ports: {{clients: {ports[0]}, workers: {ports[1]}, results: {ports[2]}}}\n"

        class Here(Service):
            address, prefix = f"tcp://127.0.0.1:{ports[0]}", ()

        service = Here()
        with tempfile.NamedTemporaryFile("w+") as service.log:
            def start():
                p = subprocess.Popen([program("flotilla-coordinator"), "--config", "-"], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=service.log, text=True)
                p.stdin.write(config)
                p.stdin.close()
                self.assertTrue(p.stdout.readline().startswith("listening"))
                return p

            c = start()
            workers = [subprocess.Popen([program("flotilla-worker"), "--coordinator", f"tcp://127.0.0.1:{ports[1]}",
                                         "--name", f"w{i}", "--threads", "1"], stderr=service.log) for i in range(2)]
            try:
                service.wait(all_ready(2), 240)
                with Streams(service) as streams:
                    for how in (signal.SIGKILL, signal.SIGTERM):
                        s = service.wait(lambda s: busy(3)(s) and all(r["steps"] > 20 for r in s["replicas"]), 240)
                        c.send_signal(how)
                        self.assertEqual(c.wait(timeout=20), -signal.SIGKILL if how == signal.SIGKILL else 0)
                        c.stdout.close()
                        c = start()
                        s = service.wait(all_ready(2), 240)
                        # Load progress is told once a load: a kept slice has none in this coordinator's life.
                        self.assertEqual([w["load_total"] for r in s["replicas"] for w in r["workers"]], [0, 0])
                self.assertEqual(streams.wrong, [])
                self.assertGreaterEqual(streams.done, 3)
            finally:
                for p in (*workers, c):
                    p.terminate()
                for p in (*workers, c):
                    self.assertEqual(p.wait(timeout=20), 0)
                c.stdout.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
