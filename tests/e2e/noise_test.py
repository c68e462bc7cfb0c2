"""Random and mutated messages to every socket of a running cluster, of the sanitized build where there is one: calls that
break a rule get a status, other bytes are dropped and counted, and the cluster still gives the right answer."""
import collections, contextlib, itertools, json, os, random, re, signal, socket, struct, subprocess, sys, threading, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
BIN = os.environ["FLOTILLA_BIN"]
os.environ["FLOTILLA_BIN"] = os.environ.get("FLOTILLA_SANITIZED_BIN") or BIN
from cluster import LONG, MODEL, Cluster, local
from raw_http import Connection, get, post

SECONDS = 600 if LONG else 10


def ports_of(c):
    """The ports for clients, workers, and results, then those on which workers take Steps."""
    listing = subprocess.run(["ss", "-ltnpH"], stdout=subprocess.PIPE, text=True).stdout
    pids = {w["pid"] for w in c.workers()}
    children = {int(p) for p in subprocess.run(["pgrep", "-P", str(c.up.pid)], stdout=subprocess.PIPE, text=True).stdout.split()} - pids
    data, other = set(), set()
    for line in listing.splitlines():
        pid = re.search(r"pid=(\d+)", line)
        port = int(line.split()[3].rsplit(":", 1)[1])
        if pid and int(pid.group(1)) in pids:
            data.add(port)
        elif pid and int(pid.group(1)) in children:
            other.add(port)
    client, worker, http = (int(at.rsplit(":", 1)[1]) for at in (c.address, c.join, c.http))
    metrics = int(re.search(r"metrics at http://\S+:(\d+)/", c.text()).group(1))
    results = other - {client, worker, http, metrics}
    if (len(data), len(results)) != (len(pids), 1):
        raise AssertionError(listing)
    return [client, worker, *results, *data]


def greet(s, kind):
    """The handshake of ZMTP. Who does not wait for the other's part of it is sometimes closed."""
    def take(n):
        while n:
            got = len(s.recv(n))
            if got == 0:
                raise EOFError("the connection ended in the handshake")
            n -= got
    s.settimeout(60)
    s.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31))
    take(64)
    ready = b"\5READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind.encode()
    s.sendall(b"\4" + bytes([len(ready)]) + ready)
    take(2)  # of its own READY


class Noise(unittest.TestCase):
    def test_every_socket(self):
        want = local("Once upon a time", tokens=6)["tokens"]
        with Cluster(workers=2, threads=1, kv_tokens=2048, max_requests=64) as c:
            client, worker, results, *data = ports_of(c)
            pids = {w["pid"] for w in c.workers()}
            at = "tcp://127.0.0.1:"
            words = [f"client={at}{client}", f"worker={at}{worker}", *(f"push={at}{p}" for p in [results, *data])]
            r = subprocess.run([os.path.join(BIN, "noise_probe"), str(SECONDS), "3", *words], stdout=subprocess.PIPE, text=True,
                               timeout=SECONDS + 120)
            self.assertEqual(r.returncode, 0, r.stdout)
            statuses = dict((int(k), int(v)) for k, v in re.findall(r" (\d+):(\d+)", r.stdout))
            self.assertGreater(int(r.stdout.split()[1]), 100 * SECONDS, r.stdout)
            for code in (0, 3, 9, 12):  # some are well-formed: served, out of range, other versions, unknown methods
                self.assertGreater(statuses.get(code, 0), 0, r.stdout)
            self.assertGreater(c.status()["messages_dropped"], 0)
            self.assertGreater(sum(w["messages_dropped"] for w in c.workers()), 0)
            s = c.wait(lambda s: s["ready"] and s["requests"]["running"] == 0, 30)
            self.assertEqual(s["replicas"][0]["epoch"], 1, c.text()[-2000:])
            self.assertEqual({w["pid"] for w in c.workers()}, pids)
            self.assertEqual(c.generate("Once upon a time", tokens=6)["tokens"], want)


    def test_messages_without_end(self):
        """Of a message that never ends no socket takes 64 MiB, and the cluster goes on."""
        with Cluster(workers=1, threads=1, kv_tokens=2048) as c:
            for port, kind, frame in zip(ports_of(c), ("DEALER", "DEALER", "PUSH", "PUSH"), (1 << 20, 60 << 10, 1 << 20, 1 << 20)):
                sent = 0
                with socket.create_connection(("127.0.0.1", port)) as s, self.subTest(kind=kind, port=port):
                    greet(s, kind)
                    with self.assertRaises(OSError):
                        while sent < 256 << 20:
                            s.sendall(b"\3" + struct.pack(">Q", frame) + bytes(frame))
                            sent += frame
                            time.sleep(0.01)  # as long as the accounts of a connection may be behind
                    self.assertGreater(sent, 0)  # it was let in
                    self.assertLess(sent, 64 << 20)
            self.assertEqual(c.generate("Once upon a time", tokens=6)["tokens"], local("Once upon a time", tokens=6)["tokens"])
            self.assertEqual(c.status()["replicas"][0]["epoch"], 1)


    def test_strangers_at_the_results(self):
        """Strangers who talk and stay, more than there is room for, keep no stage's results out, now or in the next generation."""
        want = local("Once upon a time", tokens=6)["tokens"]
        with Cluster(workers=1, threads=1, kv_tokens=2048, no_restart=False) as c, contextlib.ExitStack() as strangers:
            _, _, results, _ = ports_of(c)

            def come():
                for _ in range(12):
                    s = strangers.enter_context(socket.create_connection(("127.0.0.1", results)))
                    with contextlib.suppress(OSError, EOFError):
                        greet(s, "PUSH")
                        s.sendall(b"\0\1x")
                    time.sleep(0.1)  # it is heard before the next one comes
            come()
            self.assertEqual(c.generate("Once upon a time", tokens=6)["tokens"], want)
            self.assertEqual(c.status()["replicas"][0]["epoch"], 1, c.text()[-2000:])
            os.kill(c.workers()[0]["pid"], signal.SIGKILL)
            come()  # and take the place that became free
            c.wait(lambda s: s["ready"] and s["replicas"][0]["epoch"] > 1, 60)
            self.assertEqual(c.generate("Once upon a time", tokens=6)["tokens"], want)


class SlowReader(Connection):
    """Takes 10 kB a second of what it is sent."""

    def _more(self):
        time.sleep(0.05)
        got = self.sock.recv(512)
        if not got:
            raise EOFError("the connection ended")
        self.left += got


class Http(unittest.TestCase):
    """Mutated, cut, pipelined and half-closed requests at the gateway, beside readers of 10 kB/s and a probe, for as long as the
    noise lasts. FLOTILLA_NOISE_SEED repeats the requests of a run."""

    TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", 1]}}, "required": ["a"]}
    HI = [{"role": "user", "content": "Hi"}]
    REQUESTS = [("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 5, "stream": True, "logprobs": 3, "n": 2, "stop": ["x"]}),
                ("/v1/completions", {"prompt": ["a", [1, 2]], "max_tokens": 3, "best_of": 2, "logit_bias": {"5": 1}, "seed": 1}),
                ("/v1/completions", {"prompt": "x", "max_tokens": 6, "json_schema": SCHEMA}),
                ("/v1/completions", {"prompt": "x", "max_tokens": 6, "grammar": "root ::= [a-c]{2,4} root | \"x\""}),
                ("/v1/completions", {"prompt": "7" * 700, "max_tokens": 400, "ignore_eos": True, "stream": True}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 4,
                                          "stream": True, "stream_options": {"include_usage": True},
                                          "tools": [{"type": "function", "function": TOOL}]}),
                ("/v1/chat/completions", {"messages": HI, "max_tokens": 9, "tool_choice": "required",
                                          "tools": [{"type": "function", "function": TOOL}]}),
                ("/v1/chat/completions", {"messages": HI, "max_completion_tokens": 2, "chat_template_kwargs": {"a": 1}}),
                ("/v1/responses", {"input": "Hi", "max_output_tokens": 4, "stream": True, "text": {"format": {"type": "json_object"}}}),
                ("/v1/messages", {"model": os.path.basename(MODEL), "messages": HI, "max_tokens": 4, "stream": True, "system": "s",
                                  "tools": [{"name": "f", "input_schema": SCHEMA}]}),
                ("/v1/messages/count_tokens", {"model": os.path.basename(MODEL), "messages": HI}),
                ("/apply-template", {"messages": HI}), ("/tokenize", {"content": "text <|im_end|>"}), ("/detokenize", {"tokens": [1, 2, 3]})]
    PATHS = [*(path for path, _ in REQUESTS), "/v1/models", "/v1/models/x", "/metrics", "/status", "/health", "/ready", "/%2e%2e/", "/"]
    FIELDS = ["Expect: 100-continue", "Connection: close", "X-Deadline-Ms: 300", "Authorization: Bearer x", "X-Deadline-Ms: x",
              "Transfer-Encoding: chunked", "Content-Type: text/plain", "anthropic-version: 2023-06-01"]
    TEXT = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}

    def request(self, rng):
        path, body = rng.choice(self.REQUESTS)
        if rng.random() < 0.1:
            path = rng.choice(self.PATHS)
        body = json.dumps(body).encode()
        head = f"{rng.choice(['POST'] * 8 + ['GET', 'HEAD', 'PUT', 'OPTIONS'])} {path} HTTP/1.{rng.choice('0111')}\r\n"
        fields = ["Host: a", f"Content-Length: {len(body) if rng.random() < 0.9 else rng.randrange(1 << 34)}"]
        fields += rng.sample(self.FIELDS, rng.choice([0, 0, 1, 2]))
        data = bytearray(head.encode() + "\r\n".join(fields).encode() + b"\r\n\r\n" + body)
        for _ in range(rng.choice([0, 0, 0, 1, 3, 20])):
            i = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[i] = rng.randrange(256)
            elif kind == 1:
                del data[i:i + rng.randrange(1, 9)]
            elif kind == 2:
                data[i:i] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
            else:
                data[i:i] = data[rng.randrange(len(data)):][:rng.randrange(1, 40)]
            if not data:
                break
        return bytes(data[:rng.randrange(len(data) + 1)] if rng.random() < 0.1 else data)

    def one(self, url, rng):
        """One connection. What it sends and does follows from rng alone."""
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=2) as s:
            if rng.random() < 0.2:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            if rng.random() < 0.2:  # a reset instead of an orderly end
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            data, halves, reads = b"".join(self.request(rng) for _ in range(rng.choice([1, 1, 1, 2, 5]))), rng.random() < 0.2, rng.random() < 0.8
            takes = [rng.choice([1, 100, 65536]) for _ in range(rng.randrange(20))] if reads else []
            s.settimeout(rng.choice([0.05, 0.5, 2]))
            s.sendall(data)
            self.count["sent"] += 1
            self.count["half-closed"] += halves
            if halves:
                s.shutdown(socket.SHUT_WR)
            for n in takes:
                got = s.recv(n)
                self.count["read"] += got.startswith(b"HTTP/1.1 200")
                if not got:
                    break

    def noise(self, url, thread, until):
        for i in itertools.count():
            if time.monotonic() >= until or self.dead:
                return
            self.last[thread] = f"{self.seed}/{thread}/{i}"
            try:
                self.one(url, random.Random(self.last[thread]))
            except ConnectionRefusedError as e:
                self.dead.append(e)
            except OSError:
                pass  # the server may end a connection at any moment

    def check(self, c, want, reply, what):
        """The right answer, or in words that there is too much to do."""
        if reply.status == 200:
            text = "".join(x["choices"][0]["text"] for x in reply.chunks()) if what == "slow" else reply.json()["choices"][0]["text"]
            self.assertEqual(text, want)
            self.count[what] += 1
        else:
            self.assertEqual((reply.status in (429, 503), "retry-after" in reply.headers), (True, True), reply.body)

    def slow(self, c, until, want):
        while time.monotonic() < until and not self.dead:
            with SlowReader(c.http, 120) as s:
                s.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.send("POST", "/v1/completions", dict(self.TEXT, max_tokens=40, logprobs=5, stream=True, user="slow", priority="high"))
                self.check(c, want, s.reply(), "slow")

    def probe(self, c, until, want):
        while time.monotonic() < until and not self.dead:
            self.assertEqual(get(c.http, "/health").status, 200)
            self.check(c, want, post(c.http, "/v1/completions", dict(self.TEXT, max_tokens=6, user="probe", priority="critical")), "probe")
            time.sleep(0.2)

    def begin(self, work, *args):
        def run():
            try:
                work(*args)
            except Exception as e:  # the others stop, and the test says why
                self.dead.append(e)
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def test_gateway(self):
        self.seed = os.environ.get("FLOTILLA_NOISE_SEED") or (str(random.randrange(1 << 32)) if LONG else "1")
        self.count, self.dead, self.last = collections.Counter(), [], {}
        print(f"FLOTILLA_NOISE_SEED={self.seed}", flush=True)
        short, long = (local("Once upon a time", tokens=n, ignore_eos=True)["text"] for n in (6, 40))
        with Cluster(workers=1, threads=1, kv_tokens=4096, max_requests=64, set=["http.read=3", "http.stall=5", "http.body_kib=64"]) as c:
            before, until = c.pids(), time.monotonic() + SECONDS
            threads = [self.begin(self.noise, c.http, i, until) for i in range(8)]
            threads += [self.begin(self.slow, c, until, long) for _ in range(2)] + [self.begin(self.probe, c, until, short)]
            for t in threads:
                t.join()
            told = f"FLOTILLA_NOISE_SEED={self.seed}, last connections {sorted(self.last.values())}: {dict(self.count)}\n"
            self.assertEqual(self.dead, [], told + c.text()[-6000:])
            print(told, end="")
            self.assertGreater(self.count["sent"], SECONDS)
            for what in ("read", "half-closed", "slow", "probe"):
                self.assertGreater(self.count[what], 0, told)
            c.wait(lambda s: s["ready"] and s["requests"] == {"running": 0, "queued": 0}, 60)
            r = post(c.http, "/v1/completions", dict(self.TEXT, max_tokens=6))
            self.assertEqual(r.json()["choices"][0]["text"], short)
            self.assertEqual((c.status()["replicas"][0]["epoch"], c.pids()), (1, before), told + c.text()[-2000:])
            self.assertEqual(c.stop(), 0, told + c.text()[-6000:])  # a leak makes a sanitized coordinator end with another status
            self.assertNotIn("Sanitizer", c.text())

if __name__ == "__main__":
    unittest.main(verbosity=2)
