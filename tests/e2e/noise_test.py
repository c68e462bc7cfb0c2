"""Random and mutated messages to every socket of a running cluster, of the sanitized build where there is one: calls that
break a rule get a status, other bytes are dropped and counted, and the cluster still gives the right answer."""
import json, os, random, re, socket, subprocess, sys, threading, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
BIN = os.environ["FLOTILLA_BIN"]
os.environ["FLOTILLA_BIN"] = os.environ.get("FLOTILLA_SANITIZED_BIN") or BIN
from cluster import LONG, Cluster, local
from raw_http import post

SECONDS = 600 if LONG else 10


class Noise(unittest.TestCase):
    def test_every_socket(self):
        want = local("Once upon a time", tokens=6)["tokens"]
        with Cluster(workers=2, threads=1, kv_tokens=2048, max_requests=64) as c:
            listing = subprocess.run(["ss", "-ltnpH"], stdout=subprocess.PIPE, text=True).stdout
            pids = {w["pid"] for w in c.workers()}
            children = {int(p) for p in subprocess.run(["pgrep", "-P", str(c.up.pid)], stdout=subprocess.PIPE,
                                                       text=True).stdout.split()} - pids
            data, other = set(), set()
            for line in listing.splitlines():
                pid = re.search(r"pid=(\d+)", line)
                port = int(line.split()[3].rsplit(":", 1)[1])
                if pid and int(pid.group(1)) in pids:
                    data.add(port)
                elif pid and int(pid.group(1)) in children:
                    other.add(port)
            client = int(c.address.rsplit(":", 1)[1])
            worker = int(c.join.rsplit(":", 1)[1])
            http = int(re.search(r"metrics at http://\S+:(\d+)/", c.text()).group(1))
            results = other - {client, worker, http, int(c.http.rsplit(":", 1)[1])}
            self.assertEqual((len(data), len(results)), (2, 1), listing)
            at = "tcp://127.0.0.1:"
            words = [f"client={at}{client}", f"worker={at}{worker}", *(f"push={at}{p}" for p in data | results)]
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


class Http(unittest.TestCase):
    """Mutated, cut, pipelined, half closed and slowly read requests at the gateway, for as long as the noise lasts."""

    BODIES = [{"prompt": "Once upon a time", "max_tokens": 5, "stream": True, "logprobs": 3, "n": 2, "stop": ["x"]},
              {"prompt": ["a", [1, 2]], "max_tokens": 3, "best_of": 2, "logit_bias": {"5": 1}, "seed": 1},
              {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 4, "stream": True,
               "tools": [{"type": "function", "function": {"name": "f"}}], "stream_options": {"include_usage": True}},
              {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 2, "chat_template_kwargs": {"a": 1}},
              {"content": "text <|im_end|>"}, {"tokens": [1, 2, 3]}]
    PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template", "/v1/models", "/metrics",
             "/health", "/ready", "/v1/models/x", "/%2e%2e/", "/"]

    def request(self, rng):
        body = json.dumps(rng.choice(self.BODIES)).encode()
        head = f"{rng.choice(['POST', 'POST', 'POST', 'GET', 'HEAD', 'PUT', 'OPTIONS'])} {rng.choice(self.PATHS)} HTTP/1.{rng.randrange(2)}\r\n"
        fields = ["Host: a", f"Content-Length: {len(body) if rng.random() < 0.9 else rng.randrange(1 << 34)}"]
        fields += rng.sample(["Expect: 100-continue", "Connection: close", "X-Deadline-Ms: 300", "Authorization: Bearer x",
                              "X-Deadline-Ms: x", "Transfer-Encoding: chunked", "Content-Type: text/plain"], rng.randrange(3))
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

    def talk(self, url, seed, until, count):
        rng = random.Random(seed)
        host, port = url.removeprefix("http://").split(":")
        while time.monotonic() < until:
            try:
                with socket.create_connection((host, int(port)), timeout=2) as s:
                    if rng.random() < 0.2:
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                    s.sendall(b"".join(self.request(rng) for _ in range(rng.choice([1, 1, 1, 2, 5]))))
                    if rng.random() < 0.2:
                        s.shutdown(socket.SHUT_WR)
                    if rng.random() < 0.8:
                        s.settimeout(rng.choice([0.05, 0.5, 2]))
                        for _ in range(rng.randrange(20)):
                            got = s.recv(rng.choice([1, 100, 65536]))
                            count[0] += got.startswith(b"HTTP/1.1 200")
                            if not got:
                                break
                    count[1] += 1
            except OSError:
                pass

    def test_gateway(self):
        want = local("Once upon a time", tokens=6)["text"]
        with Cluster(workers=1, threads=1, kv_tokens=2048, max_requests=64, set=["http.read=3", "http.stall=5", "http.body_kib=64"]) as c:
            count, until = [0, 0], time.monotonic() + SECONDS
            threads = [threading.Thread(target=self.talk, args=(c.http, i, until, count)) for i in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertGreater(count[0], 0)
            self.assertGreater(count[1], 5 * SECONDS)
            c.wait(lambda s: s["ready"] and s["requests"] == {"running": 0, "queued": 0}, 60)
            r = post(c.http, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0})
            self.assertEqual(r.json()["choices"][0]["text"], want)
            self.assertEqual(c.status()["replicas"][0]["epoch"], 1, c.text()[-2000:])
            print(f"{count[1]} connections, {count[0]} replies of 200")
            self.assertEqual(c.stop(), 0)  # a leak makes a sanitized coordinator end with another status
            self.assertNotIn("Sanitizer", c.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
