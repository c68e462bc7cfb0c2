"""The gateway over HTTP: what official clients rely on, byte by byte, and what must not happen. Cases from public bug reports of
LLM servers on scripted models whose whole output is known in advance (tests/lib/specs.py), and on the demo model."""
import concurrent.futures, json, os, random, re, socket, subprocess, sys, tempfile, time, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import LONG, MODEL, Cluster, local, program
from raw_http import Connection, get, post, request

COMPLETIONS = "/v1/completions"


def probe(c):
    """The gateway is alive, and answers as ever."""
    assert get(c.http, "/health").status == 200
    return post(c.http, COMPLETIONS, {"prompt": "1", "max_tokens": 4, "temperature": 0}).json()["choices"][0]


def text_of(chunks):
    return "".join(x["choices"][0]["text"] for x in chunks if x["choices"])


def idle(c, seconds=10):
    """Nothing runs and no page is held, on the coordinator and so on every worker."""
    def free(s):
        return s["requests"] == {"running": 0, "queued": 0} and all(
            w["kv_pages"]["free"] == w["kv_pages"]["total"] for r in s["replicas"] for w in r["workers"])
    return c.wait(free, seconds)


class Scripted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        subprocess.run([sys.executable, os.path.join(HERE, "..", "lib", "specs.py"), cls.dir.name], check=True,
                       stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def cluster(self, name, **kw):
        return Cluster(model=os.path.join(self.dir.name, name + ".gguf"), workers=2, threads=1, kv_tokens=2048, **kw)

    def both(self, c, **body):
        """Not streamed and streamed: (text, finish reason, completion tokens), which must agree."""
        body = dict(dict(temperature=0), **body)
        whole = post(c.http, COMPLETIONS, body)
        self.assertEqual(whole.status, 200, whole.body)
        choice, usage = whole.json()["choices"][0], whole.json()["usage"]
        stream = post(c.http, COMPLETIONS, dict(body, stream=True, stream_options={"include_usage": True}))
        self.assertEqual((stream.status, stream.headers["content-type"]), (200, "text/event-stream"))
        chunks = stream.chunks()
        for x in chunks:
            self.assertNotIn("\ufffd", json.dumps(x) if body.get("prompt") in ("1", "2") and "max_tokens" not in body else "")
        self.assertEqual(text_of(chunks), choice["text"])
        self.assertEqual(chunks[-1]["choices"], [])
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            self.assertEqual(chunks[-1]["usage"][key], usage[key])
        reasons = [x["choices"][0]["finish_reason"] for x in chunks[:-1]]
        self.assertEqual(reasons, [None] * (len(reasons) - 1) + [choice["finish_reason"]])
        self.assertEqual({x["id"] for x in chunks}, {chunks[0]["id"]})
        self.deltas = [x["choices"][0]["text"] for x in chunks[:-1]]
        return choice["text"], choice["finish_reason"], usage["completion_tokens"]

    def test_characters_over_tokens(self):
        with self.cluster("utf8") as c:
            self.assertEqual(self.both(c, prompt="1"), ("ok 歪!", "stop", 3))
            self.assertEqual(self.both(c, prompt="2"), ("\U0001F999", "stop", 4))
            self.assertEqual(self.both(c, prompt="3"), ("\U0001F642 \ufffd end", "stop", 4))
            self.assertEqual(self.both(c, prompt="2", max_tokens=2), ("\ufffd", "length", 2))
            # A token that is no character is told as its bytes.
            told = post(c.http, COMPLETIONS, {"prompt": "1", "temperature": 0, "logprobs": 2}).json()["choices"][0]["logprobs"]
            self.assertEqual(told["tokens"], ["ok ", "\ufffd", "\ufffd!"])

    def test_stop_strings(self):
        whole = "A B C O P Q R S"
        with self.cluster("stop") as c:
            for stop, text in ((["O P Q"], "A B C "), ("O P Q", "A B C "), ([" O P"], "A B C"), (["P Q R S T"], whole),
                               (["D"], whole), ([""], whole), (None, whole), ([], whole), (["zz", "O P Q"], "A B C ")):
                self.assertEqual(self.both(c, prompt="1", max_tokens=16, stop=stop)[:2], (text, "stop"), stop)
                if stop == ["O P Q"]:
                    self.assertFalse([d for d in self.deltas if " O" in d])

    def test_most_tokens(self):
        whole = "A B C O P Q R S"
        with self.cluster("stop") as c:
            for n, text, reason, count in ((0, "", "length", 0), (1, "A", "length", 1), (2, "A B", "length", 2), (8, whole, "length", 8),
                                           (9, whole, "stop", 8), (None, whole, "stop", 8), (-1, whole, "stop", 8),
                                           (10 ** 9, whole, "stop", 8), (2147483648, whole, "stop", 8)):
                self.assertEqual(self.both(c, prompt="1", max_tokens=n), (text, reason, count), n)
            self.assertEqual(self.both(c, prompt="1"), (whole, "stop", 8))
            for bad in (1.5, "4", -2, [], {}):
                r = post(c.http, COMPLETIONS, {"prompt": "1", "max_tokens": bad})
                self.assertEqual((r.status, r.error()["param"]), (400, "max_tokens"))

    def test_context(self):
        with self.cluster("stop") as c:
            before = probe(c)
            for stream in (False, True):
                for n in (600, 513, 512):
                    r = post(c.http, COMPLETIONS, {"prompt": "x" * n, "max_tokens": 50, "stream": stream})
                    self.assertEqual((r.status, r.error()["code"]), (400, "context_length_exceeded"))
                    self.assertIn(str(n), r.error()["message"])
                    self.assertIn("512", r.error()["message"])
                for n in (511, 510):
                    r = post(c.http, COMPLETIONS, {"prompt": "x" * n, "max_tokens": 50, "ignore_eos": True, "stream": stream,
                                                   **({"stream_options": {"include_usage": True}} if stream else {})})
                    self.assertEqual(r.status, 200)
                    last = r.chunks()[-1] if stream else r.json()
                    self.assertEqual(last["usage"]["completion_tokens"], 512 - n)
                    reason = r.chunks()[-2] if stream else last
                    self.assertEqual(reason["choices"][0]["finish_reason"], "length")
                self.assertEqual(probe(c), before)

    def test_begin_of_sequence(self):
        with self.cluster("bos") as c:
            self.assertEqual(post(c.http, COMPLETIONS, {"prompt": "x", "max_tokens": 1}).json()["usage"]["prompt_tokens"], 2)

    def test_errors_before_and_in_a_stream(self):
        """Before the first token an error has a status; after it, it is an event, and the stream ends in order."""
        with self.cluster("stop", replica_wait=0) as c:
            for body, status, param in (({"prompt": "1", "model": "other"}, 404, "model"), ({"prompt": "1", "foo": 1}, 400, "foo"),
                                        ({}, 400, "prompt"), ({"prompt": []}, 400, "prompt"), ({"prompt": {}}, 400, "prompt"),
                                        ({"prompt": [300000]}, 400, "prompt_tokens"), ({"prompt": ["1", 2]}, 400, "prompt")):
                for stream in (False, True):
                    r = post(c.http, COMPLETIONS, dict(body, stream=stream))
                    self.assertEqual((r.status, r.headers["content-type"], r.error()["param"]), (status, "application/json", param))
            with Connection(c.http) as s:
                s.send("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True})
                status, headers = s.head()
                self.assertEqual(status, 200)
                for pid in c.pids()["flotilla-worker"]:
                    os.kill(pid, 9)
                body = b"".join(s.pieces(headers))
            self.assertIn(b"event: error\ndata: {\"error\":{", body)
            self.assertNotIn(b"[DONE]", body)
            error = json.loads(body.split(b"event: error\ndata: ")[1].split(b"\n\n")[0])["error"]
            self.assertEqual(error["type"], "service_unavailable_error")
            r = post(c.http, COMPLETIONS, {"prompt": "1"})
            self.assertEqual(r.status, 503)
            self.assertGreaterEqual(int(r.headers["retry-after"]), 1)
            self.assertEqual(get(c.http, "/ready").status, 503)
            self.assertEqual(get(c.http, "/health").status, 200)


class Protocol(unittest.TestCase):
    """HTTP itself, its limits, and peers that do not behave."""

    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(workers=1, threads=1, kv_tokens=8192,
                        set=["http.body_kib=64", "http.read=2", "http.connections=24", "http.stall=3"])

    @classmethod
    def tearDownClass(cls):
        cls.c.stop()

    def setUp(self):
        self.before = probe(self.c)

    def tearDown(self):
        self.assertEqual(probe(self.c), self.before)
        idle(self.c)

    def test_paths(self):
        url = self.c.http
        self.assertEqual(get(url, "/ready").json()["status"], "ready")
        models = get(url, "/v1/models").json()
        name = models["data"][0]["id"]
        self.assertEqual((models["object"], name), ("list", os.path.basename(MODEL)))
        self.assertEqual(get(url, "/v1/models/" + name).json()["id"], name)
        self.assertEqual(get(url, "/v1/models/other").error()["code"], "model_not_found")
        for method, path, status in (("GET", "/nothing", 404), ("GET", COMPLETIONS, 405), ("DELETE", "/v1/models", 405),
                                     ("POST", "/health", 405), ("GET", "/v1/models/", 404)):
            r = request(url, method, path)
            self.assertEqual(r.status, status, (method, path))
            self.assertTrue(r.error()["message"])
        lines = get(url, "/metrics").body.decode().splitlines()
        values = {l.rsplit(" ", 1)[0]: float(l.rsplit(" ", 1)[1]) for l in lines if not l.startswith("#")}
        self.assertGreaterEqual(values['flotilla_gateway_replies_total{status="405"}'], 3)
        self.assertEqual(values["flotilla_gateway_requests"], 0)

    def test_bodies(self):
        for body in (b"", b"{", b"[]", b"7", b'"x"', b"{\"prompt\": \"1\"} x", b"\xff", b"{\"prompt\": \"\xff\"}",
                     b"{\"prompt\": \"\\u0000\"}", b"[" * 4000, b"{\"prompt\": \"1\", \"prompt\": \"2\"}"):
            r = post(self.c.http, COMPLETIONS, body)
            self.assertEqual((r.status, r.error()["type"]), (400, "invalid_request_error"), body[:40])

    def test_large_bodies(self):
        """Beyond the limit: 413, whether its length was told before or not, and also while it is still being sent."""
        big = json.dumps({"prompt": "x" * 70000}).encode()
        self.assertEqual(post(self.c.http, COMPLETIONS, big).status, 413)
        with Connection(self.c.http) as s:
            s.send("POST", COMPLETIONS, b"", {"Transfer-Encoding": "chunked"})
            for i in range(0, len(big), 10000):
                part = big[i:i + 10000]
                s.sock.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            s.sock.sendall(b"0\r\n\r\n")
            self.assertEqual(s.reply().status, 413)
        with Connection(self.c.http) as s:  # far beyond it is not even read
            s.send("POST", COMPLETIONS, b"x", length=10 ** 9)
            r = s.reply()
            self.assertEqual((r.status, r.error()["type"]), (413, "invalid_request_error"))
        with Connection(self.c.http) as s:
            s.send("GET", "/health", headers={"X-Long": "x" * 20000})
            self.assertEqual(s.head()[0], 431)

    def test_expect(self):
        """The body comes after 100 Continue, or not at all."""
        body = json.dumps({"prompt": "1", "max_tokens": 1}).encode()
        with Connection(self.c.http) as s:
            s.send("POST", COMPLETIONS, b"", {"Expect": "100-continue"}, length=len(body))
            self.assertEqual(s.head()[0], 100)
            s.sock.sendall(body)
            self.assertEqual(s.reply().status, 200)
        with Connection(self.c.http) as s:
            s.send("POST", COMPLETIONS, b"", {"Expect": "100-continue"}, length=70000)
            self.assertEqual(s.head()[0], 413)

    def test_slow_requests(self):
        """A request that does not arrive within http.read is answered 408, byte after byte or not at all."""
        with Connection(self.c.http) as head, Connection(self.c.http) as body, Connection(self.c.http) as silent:
            head.sock.sendall(b"GET /health HTTP/1.1\r\nX-A: ")
            body.send("POST", COMPLETIONS, b"{", length=1000)
            for _ in range(12):
                time.sleep(0.25)
                for s in (head, body):
                    try:
                        s.sock.sendall(b" ")
                    except OSError:
                        pass
            for s in (head, body):
                r = s.reply()
                self.assertEqual((r.status, r.error()["type"]), (408, "timeout_error"))
            self.assertTrue(silent.closed())  # it has asked for nothing

    def test_connections(self):
        """One more than the limit closes the one that is idle for longest; where all are busy, it gets 503."""
        url = self.c.http
        idle_ones = [Connection(url) for _ in range(24)]
        self.assertEqual(get(url, "/health").status, 200)
        self.assertTrue(idle_ones[0].closed())
        idle_ones[5].send("GET", "/health")
        self.assertEqual(idle_ones[5].reply().status, 200)
        for s in idle_ones:
            s.close()
        busy = [Connection(url) for _ in range(24)]
        for s in busy:
            s.send("POST", COMPLETIONS, {"prompt": "1", "max_tokens": 300, "ignore_eos": True})
        self.c.wait(lambda s: s["requests"]["running"] + s["requests"]["queued"] == 24, 10)
        with Connection(url) as s:
            status, headers = s.head()
            self.assertEqual((status, headers["retry-after"]), (503, "1"))
        for s in busy:
            s.close()

    def test_keep_alive_and_pipelining(self):
        with Connection(self.c.http) as s:
            for _ in range(3):
                s.send("POST", COMPLETIONS, {"prompt": "1", "max_tokens": 2, "temperature": 0})
            texts = {s.reply().json()["choices"][0]["text"] for _ in range(3)}
            self.assertEqual(len(texts), 1)
            s.send("POST", COMPLETIONS, {"prompt": "1", "max_tokens": 2, "temperature": 0, "stream": True})
            self.assertEqual(text_of(s.reply().chunks()), texts.pop())

    def test_old_http(self):
        """HTTP/1.0: no chunks; the end of the connection is the end of the stream."""
        with Connection(self.c.http) as s:
            body = json.dumps({"prompt": "1", "max_tokens": 2, "temperature": 0, "stream": True}).encode()
            s.sock.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            data = b""
            while got := s.sock.recv(65536):
                data += got
            self.assertTrue(data.endswith(b"data: [DONE]\n\n"), data[-100:])

    def test_disconnects(self):
        """A client that goes is cancelled in every phase; so is one that only closes its half."""
        long = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True}
        digits = {"prompt": "7" * 4000, "max_tokens": 1}
        for i in range(200 if LONG else 18):
            with Connection(self.c.http) as s:
                if i % 6 == 0:  # streaming
                    s.send("POST", COMPLETIONS, dict(long, stream=True))
                    s.first_event()
                elif i % 6 == 1:  # computing
                    s.send("POST", COMPLETIONS, long)
                    self.c.wait(lambda x: x["requests"]["running"] == 1, 10)
                elif i % 6 == 2:  # in its prompt
                    s.send("POST", COMPLETIONS, digits)
                    self.c.wait(lambda x: x["requests"]["running"] == 1, 10)
                elif i % 6 == 3:  # in the middle of its body
                    s.send("POST", COMPLETIONS, b"{\"prompt\": ", length=1000)
                elif i % 6 == 4:  # half closed
                    s.send("POST", COMPLETIONS, long)
                    self.c.wait(lambda x: x["requests"]["running"] == 1, 10)
                    s.sock.shutdown(socket.SHUT_WR)
                    self.assertTrue(s.closed())
                else:  # just sent
                    s.send("POST", COMPLETIONS, long)
                if i % 2:  # a reset instead of an orderly end
                    s.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            idle(self.c, 6)
        before = self.c.workers()[0]["rows"]
        time.sleep(1.5)
        before, again = self.c.workers()[0]["rows"], before
        self.assertEqual(self.c.workers()[0]["rows"], before)  # nothing is computed for those who left

    def test_slow_reader(self):
        """A reader that takes nothing is cut after http.stall, and nobody waits for it; one that is slow gets it all."""
        want = local("Once upon a time", tokens=200, ignore_eos=True)["text"]
        with Connection(self.c.http) as s:
            s.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.send("POST", COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True,
                                         "stream": True})
            data = b""
            while b"[DONE]" not in data:
                data += s.sock.recv(400)
                time.sleep(0.01)
        texts = [json.loads(x)["choices"][0]["text"] for x in re.findall(rb"data: (\{[^\n]*)", re.sub(rb"\r\n[0-9a-f]+\r\n", b"", data))]
        self.assertEqual("".join(texts), want)
        with Connection(self.c.http) as s:
            s.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.send("POST", COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 8000, "ignore_eos": True, "stream": True,
                                         "logprobs": 20})
            self.c.wait(lambda x: x["requests"]["running"] == 1, 10)
            idle(self.c, 60)

    def test_deadline(self):
        r = post(self.c.http, COMPLETIONS, {"prompt": "1", "max_tokens": 8000, "ignore_eos": True}, {"X-Deadline-Ms": "500"})
        self.assertEqual((r.status, r.error()["type"]), (408, "timeout_error"))
        for bad in ("0", "-1", "x", "1.5"):
            self.assertEqual(post(self.c.http, COMPLETIONS, {"prompt": "1"}, {"X-Deadline-Ms": bad}).status, 400)


if __name__ == "__main__":
    unittest.main(verbosity=2)
