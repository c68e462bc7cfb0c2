"""Coordinator, client and workers on hosts of their own (network namespaces): what is on the wire between them, and what
happens when a link is cut, swallows everything or is slow, or a worker is lost.

Ends with status 77, skipped, where the kernel or the rights allow no namespaces.
"""
import os, random, signal, subprocess, sys, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from capture import Capture, zmtp_messages
from cluster import LONG, MODEL, SpreadCluster, local, run
from namespaces import SLOW_BURST_BYTES, Network, existing, is_alive, why_not
from relay import Relay

SKIPPED = 77
WORKER_TIMEOUT_S, STEP_TIMEOUT_S = 1.5, 2  # the defaults of the cluster file
BACK_S = 60  # until a cluster is whole again behind the last fault: pauses between attempts double
DATA_PORT = 7100
IN_ORDER = dict(workers=None, replicas="[[w1, w2]]")  # w1 has the first layers, whoever joins first


def ready(s):
    return s["ready"]


def metadata(key):
    r = run("inspect", MODEL)
    return int(next(l.split(b" = ")[1] for l in r.stdout.splitlines() if l.startswith(key.encode() + b" = ")))


class Namespaces(unittest.TestCase):
    def begin(self, c, n=1, **what):
        """n streams, each of which has begun and is far from its end."""
        streams = [c.start(f"Story number {i}:", **what) for i in range(n)]
        steps = c.status()["replicas"][0]["steps"]
        c.wait(lambda s: s["requests"]["running"] == n and s["replicas"][0]["steps"] > steps + 10, 30)
        return streams

    def finish(self, c, streams, want):
        for s, w in zip(streams, want, strict=True):
            got = s.result(timeout=200)
            self.assertIsNotNone(got, f"{s.error}\n{c.text()[-3000:]}")
            self.assertEqual(got["tokens"], w)

    def named(self, c, seconds, *texts):
        """To be called behind a fault: waits until the log, from now on, and `status`, unless it is over, name one of the texts."""
        at = len(c.text())

        def told(s):
            return any(t in c.text()[at:] and (s["ready"] or t in s["replicas"][0]["why"]) for t in texts)
        return lambda: c.wait(told, seconds)

    def test_on_the_wire(self):
        """The layers are shared out whole; what crosses the link between the workers is one frame of rows x width f32 for
        each Step, and nothing else of that size; the answer is the engine's, also over a slow link."""
        layers, width = metadata("llama.block_count"), metadata("llama.embedding_length")
        prompt, n = "Once upon a time there was a fleet of small boats", 24
        longer = " ".join(f"{i} boats" for i in range(70))
        want, want_longer = (local(p, tokens=n, ignore_eos=True) for p in (prompt, longer))
        with Network("c", "w1", "w2", "client") as net, Capture(net["w2"]) as capture:
            with SpreadCluster(net, ["w1", "w2"], client="client", kv_tokens=2048, **IN_ORDER) as c:
                c.wait(ready, BACK_S)
                got = c.generate(prompt, tokens=n, ignore_eos=True)
                self.assertEqual((got["tokens"], got["text"]), (want["tokens"], want["text"]))
                rows = 1 + len(got["prompt_tokens"]) + n - 1  # of the probe; the last token is not fed back
                net["w1"].slow("4mbit")
                got = c.generate(longer, tokens=n, ignore_eos=True)
                self.assertEqual((got["tokens"], got["text"]), (want_longer["tokens"], want_longer["text"]))
                sent = len(got["prompt_tokens"]) * width * 4
                self.assertGreaterEqual(got["timings"]["prompt_ms"], 1000 * (sent - SLOW_BURST_BYTES) * 8 / 4e6)
                rows += len(got["prompt_tokens"]) + n - 1
                # A heartbeat brings the figures.
                s = c.wait(lambda s: all(w["rows"] >= rows for w in s["replicas"][0]["workers"]), 10)
                w1, w2 = s["replicas"][0]["workers"]
                self.assertEqual((w1["layers"][0], w1["layers"][1] + 1, w2["layers"][1]), (0, w2["layers"][0], layers - 1))
                self.assertEqual((w1["name"], w2["name"]), ("w1", "w2"))
                self.assertEqual((w1["activation_bytes_out"], w2["activation_bytes_in"]), (rows * width * 4,) * 2)
                self.assertEqual(c.stop(), [0, 0, 0], c.text())
        w1, w2, coordinator = (net[h].address for h in ("w1", "w2", "c"))
        streams = capture.streams()
        links = [zmtp_messages(b) for k, b in streams.items() if (k[0], k[2]) == (w1, w2) and len(b) > 4096]
        self.assertEqual(len(links), 1)
        frames = [message[1] for message in links[0]]
        self.assertEqual({len(message) for message in links[0]}, {2})  # header and activations
        self.assertEqual({len(f) % (width * 4) for f in frames}, {0})
        self.assertEqual(sum(map(len, frames)), rows * width * 4)
        self.assertGreaterEqual(len(frames), 1 + 2 * n)  # the probe, and of both a prompt and each further token
        # Everybody else hears of tokens only.
        others = {k: max((len(f) for m in zmtp_messages(b) for f in m), default=0) for k, b in streams.items() if k[0] == w2}
        self.assertIn(coordinator, {k[2] for k in others})
        self.assertLess(max(others.values()), width * 4)

    def overheard(self, prompt, secure):
        """What two hosts see of a cluster of two workers that answers the prompt, after which all is as it should be: the streams
        of w2 and of the client, the answer, and the rows computed."""
        want = local(prompt, tokens=8, ignore_eos=True)
        with Network("c", "w1", "w2", "client") as net, Capture(net["w2"]) as at_worker, Capture(net["client"]) as at_client:
            with SpreadCluster(net, ["w1", "w2"], client="client", secure=secure, kv_tokens=2048, **IN_ORDER) as c:
                c.wait(ready, BACK_S)
                got = c.generate(prompt, tokens=8, ignore_eos=True)
                self.assertEqual((got["tokens"], got["text"]), (want["tokens"], want["text"]))
                rows = 1 + len(got["prompt_tokens"]) + 7
                s = c.wait(lambda s: all(w["rows"] >= rows for w in s["replicas"][0]["workers"]), 10)
                w1, w2 = s["replicas"][0]["workers"]
                self.assertEqual((w1["layers"][0], w1["layers"][1] + 1, w2["layers"][1]),
                                 (0, w2["layers"][0], metadata("llama.block_count") - 1))
                self.assertEqual(w2["activation_bytes_in"], rows * metadata("llama.embedding_length") * 4)
                self.assertEqual(c.stop(), [0, 0, 0], c.text())
        between = [b for k, b in at_worker.streams().items() if (k[0], k[2]) == (net["w1"].address, net["w2"].address)]
        return max(between, key=len), b"".join([*at_worker.streams().values(), *at_client.streams().values()])

    def test_what_keys_hide(self):
        """The same request without keys and with them. Without, whoever listens on the way reads the prompt's words and the
        activations; with keys neither, while as many bytes pass."""
        width = metadata("llama.embedding_length") * 4
        prompt = "The lighthouse keeper counted seventeen herons"
        words = [w for w in prompt.encode().split() if len(w) > 5]
        link, plain = self.overheard(prompt, secure=False)
        frames = [m[1] for m in zmtp_messages(link)]
        self.assertEqual({len(f) % width for f in frames}, {0})
        row = max(frames, key=len)[:width]  # the prompt's first, whose activations are the same whoever computes them
        self.assertGreater(len(set(row)), 64)
        self.assertIn(row, plain)
        for w in words:
            self.assertIn(w, plain)
        link, secret = self.overheard(prompt, secure=True)
        self.assertGreater(len(link), sum(map(len, frames)))
        self.assertIn(b"CURVE", link)
        for w in words:
            self.assertNotIn(w, secret)
        for at in range(0, width, 32):
            self.assertNotIn(row[at:at + 32], secret)

    def test_links(self):
        """A stream runs while the link between the workers is cut, then swallows everything; then the second worker is
        killed, and comes back behind a link of 20 ms. Each time the stream has the engine's every token."""
        what = dict(tokens=120, ignore_eos=True)
        want = [local("Story number 0:", **what)["tokens"]]
        with Network("c", "w1", "w2", "relay") as net, SpreadCluster(net, ["w1", "w2"], kv_tokens=2048, replica_wait=90) as c:
            c.wait(ready, BACK_S)
            for fault, seconds, says in (
                    # Both ends hear of a reset. Of a silent link nobody does: its Step is overdue.
                    (net.cut, 3 * STEP_TIMEOUT_S, ["worker w2 lost: its data link"]),
                    (net.black_hole, 3 * 2 * STEP_TIMEOUT_S, ["the link from w1 to worker w2"])):
                epoch = c.status()["replicas"][0]["epoch"]
                streams = self.begin(c, **what)
                named = self.named(c, seconds, *says)
                fault("w1", "w2")
                named()
                # A link that stays cut ends the next generations too, before they are ready; a silent one would take 5 s.
                c.wait(lambda s: s["replicas"][0]["epoch"] > epoch + (2 if fault == net.cut else 0), BACK_S)
                net.mend()
                s = c.wait(ready, BACK_S)
                self.assertGreater(s["replicas"][0]["epoch"], epoch)
                self.assertEqual([w["name"] for w in s["replicas"][0]["workers"]], ["w1", "w2"])
                self.finish(c, streams, want)
            streams = self.begin(c, **what)
            named = self.named(c, 3 * WORKER_TIMEOUT_S, "worker w2 lost")
            c.processes["w2"].kill()
            named()
            with Relay((net["w2"].address, DATA_PORT), (net["relay"].address, DATA_PORT), enter=net["relay"].enter) as relay:
                relay.set(relay.forth, latency=0.02)
                c.worker("w2", advertise=f"{net['relay'].address}:{DATA_PORT}")
                c.wait(ready, BACK_S)
                at, steps = time.monotonic(), c.status()["replicas"][0]["steps"]
                self.finish(c, streams, want)
                took, n_steps = time.monotonic() - at, c.status()["replicas"][0]["steps"] - steps
                self.assertGreater(n_steps, 20)
                # One stream: a Step begins when the one before has been answered.
                self.assertGreaterEqual(took, 0.02 * (n_steps - 1))
                self.assertGreaterEqual(relay.forth.bytes, n_steps * metadata("llama.embedding_length") * 4)
                self.assertEqual(relay.connections, 1)
                self.assertEqual(c.stop(), [0, 0, 0], c.text())

    @unittest.skipUnless(LONG, "in the long form")
    def test_half_open(self):
        """The connection between the workers is lost at one end, at the other, or on the way, where neither hears of it, or
        stands and nothing arrives: the log names the link, and a stream has its every token on a new one."""
        what = dict(tokens=120, ignore_eos=True)
        want = [local("Story number 0:", **what)["tokens"]]
        with Network("c", "w1", "w2", "relay") as net, \
                SpreadCluster(net, ["w1"], workers=2, kv_tokens=2048, replica_wait=90) as c, \
                Relay((net["w2"].address, DATA_PORT), (net["relay"].address, DATA_PORT), enter=net["relay"].enter) as relay:
            c.worker("w2", advertise=f"{net['relay'].address}:{DATA_PORT}")
            c.wait(ready, BACK_S)
            for fault in (lambda: relay.half_open("target"), lambda: relay.half_open("client"), relay.forget,
                          lambda: relay.set(relay.forth, black_hole=True)):
                connections = relay.connections
                streams = self.begin(c, **what)
                named = self.named(c, 3 * 2 * STEP_TIMEOUT_S, "worker w2 lost: its data link", "the link from w1 to worker w2")
                fault()
                named()
                relay.set(relay.forth, black_hole=False)
                c.wait(ready, BACK_S)
                self.finish(c, streams, want)
                self.assertGreater(relay.connections, connections)
            self.assertEqual(c.stop(), [0, 0, 0], c.text())

    @unittest.skipUnless(LONG, "in the long form")
    def test_random_faults(self):
        """Ten times in a row one fault, later two at once, each under three streams that began before."""
        seed = int(os.environ.get("FLOTILLA_SEED", random.randrange(1 << 30)))
        what = dict(tokens=200, ignore_eos=True, temp=0.8, seed=3)
        want = [local(f"Story number {i}:", **what)["tokens"] for i in range(3)]
        draw = random.Random(seed)
        with Network("c", "w1", "w2") as net, \
                SpreadCluster(net, ["w1", "w2"], kv_tokens=4096, replica_wait=180) as c:
            c.wait(ready, BACK_S)
            for n in range(10):
                faults = [(draw.choice(["kill", "stop", "cut", "black hole"]), victim, draw.choice([peer, "c"]))
                          for victim, peer in draw.sample([("w1", "w2"), ("w2", "w1")], 1 if n < 6 else 2)]
                print(f"seed {seed}, {n}: {faults}")  # FLOTILLA_SEED repeats it
                epoch = c.status()["replicas"][0]["epoch"]
                streams = self.begin(c, 3, **what)
                self.befall(net, c, faults, draw.uniform(0, 8))
                # A worker that was often to blame may be held down for 30 s.
                c.wait(lambda s: s["ready"] and s["replicas"][0]["epoch"] > epoch, BACK_S + 30)
                self.finish(c, streams, want)
            self.assertEqual(c.stop(), [0, 0, 0])

    def befall(self, net, c, faults, lasts_s):
        """All the faults at once; of (kind, victim, peer) a worker's process has the first two kinds, the link between victim
        and peer the others. The log names one that is part of it; after a while all end."""
        hosts = {victim for _, victim, _ in faults} | {peer for kind, _, peer in faults if kind in ("cut", "black hole")}
        named = self.named(c, 3 * 2 * STEP_TIMEOUT_S, *(f"worker {host}" for host in hosts - {"c"}))
        for kind, victim, peer in faults:
            if kind == "kill":
                c.processes[victim].kill()
            elif kind == "stop":
                c.processes[victim].send_signal(signal.SIGSTOP)
            else:
                (net.cut if kind == "cut" else net.black_hole)(victim, peer)
        named()
        time.sleep(lasts_s)
        net.mend()
        for kind, victim, _ in faults:
            if kind == "kill":
                c.worker(victim)
            elif kind == "stop":
                c.processes[victim].send_signal(signal.SIGCONT)

    def test_nothing_is_left(self):
        """A test that is killed leaves neither namespaces nor what ran in them."""
        script = ("import subprocess, sys; from namespaces import Network\n"
                  "with Network('a', 'b') as net:\n"
                  "    sleeper = subprocess.Popen([*net['a'].prefix, 'sleep', '1000'], stdout=subprocess.DEVNULL)\n"
                  "    print(sleeper.pid, flush=True)\n"
                  "    sys.stdin.read()\n")
        test = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                env={**os.environ, "PYTHONPATH": os.path.join(os.path.dirname(__file__), "..", "lib")})
        sleeper = int(test.stdout.readline())
        self.assertEqual(len(existing(test.pid)), 3)
        test.kill()
        test.communicate()
        end = time.monotonic() + 20
        while (existing(test.pid) or is_alive(sleeper)) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual((existing(test.pid), is_alive(sleeper)), ([], False))


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"skipped: no network namespaces here: {reason}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
