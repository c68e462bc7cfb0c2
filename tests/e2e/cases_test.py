"""Cases from public bug reports of LLM servers, as far as they can be shown without chat templates. Some are on scripted
models whose whole output is known in advance (tests/lib/specs.py), alone and on two workers."""
import json, os, random, signal, subprocess, sys, tempfile, time, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import LONG, MODEL, Cluster, local, program, run


class Scripted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        subprocess.run([sys.executable, os.path.join(HERE, "..", "lib", "specs.py"), cls.dir.name], check=True,
                       stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def path(self, name):
        return os.path.join(self.dir.name, name + ".gguf")

    def both(self, name, calls):
        """Each call on the engine alone and on two workers: the same text, tokens and reason."""
        with Cluster(model=self.path(name), workers=2, threads=1) as c:
            for kw in calls:
                kw = dict(kw)
                prompt, text, reason, n = kw.pop("prompt"), kw.pop("text"), kw.pop("reason"), kw.pop("n", None)
                for r in (local(prompt, model=self.path(name), **kw), c.generate(prompt, **kw)):
                    self.assertEqual((r["text"], r["finish_reason"]), (text, reason), (name, prompt, kw))
                    if n is not None:
                        self.assertEqual(len(r["tokens"]), n, (name, prompt, kw))

    def test_characters_over_tokens(self):
        self.both("utf8", [dict(prompt="1", text="ok 歪!", reason="stop", n=3),
                           dict(prompt="2", text="\U0001F999", reason="stop", n=4),
                           dict(prompt="3", text="\U0001F642 \ufffd end", reason="stop", n=4),
                           dict(prompt="2", tokens=2, text="\ufffd", reason="length", n=2)])

    def test_end_of_the_turn(self):
        # The metadata names another end token than the one that the model ends its turn with.
        self.both("eog", [dict(prompt="1", tokens=12, text=" hi there", reason="stop", n=2)])

    def test_stop_strings(self):
        whole = "A B C O P Q R S"
        cut = [(["O P Q"], "A B C "), ([" O P"], "A B C"), (["P Q R S T"], whole), (["D"], whole), ([""], whole),
               ([], whole), (["zz", "O P Q"], "A B C ")]
        self.both("stop", [dict(prompt="1", tokens=16, stop=s, text=t, reason="stop") for s, t in cut])

    def test_most_tokens(self):
        whole = "A B C O P Q R S"
        self.both("stop", [dict(prompt="1", tokens=0, text="", reason="length", n=0),
                           dict(prompt="1", tokens=1, text="A", reason="length", n=1),
                           dict(prompt="1", tokens=2, text="A B", reason="length", n=2),
                           dict(prompt="1", tokens=8, text=whole, reason="length", n=8),
                           dict(prompt="1", tokens=9, text=whole, reason="stop", n=8),
                           dict(prompt="1", tokens=1000000, text=whole, reason="stop", n=8)])
        for bad in ("-1", "1.5", "2147483648", "x"):
            r = run("generate", "--model", self.path("stop"), "--prompt", "1", "--tokens", bad)
            self.assertEqual(r.returncode, 2)
            self.assertIn("--tokens", r.stderr.decode())

    def test_context(self):
        with Cluster(model=self.path("stop"), workers=2, threads=1) as c:
            for n in (600, 513, 512):
                for error in (run("generate", "--model", self.path("stop"), "--prompt", "x" * n).stderr.decode(),
                              self.refused(c, "x" * n)):
                    self.assertIn(str(n), error)
                    self.assertIn("512", error)
            for n in (511, 510):
                for r in (local("x" * n, model=self.path("stop"), ignore_eos=True, tokens=50),
                          c.generate("x" * n, ignore_eos=True, tokens=50)):
                    self.assertEqual((len(r["tokens"]), r["finish_reason"]), (512 - n, "length"))

    def refused(self, c, prompt):
        g = c.start(prompt)
        self.assertIsNone(g.result())
        return g.error

    def test_begin_of_sequence(self):
        for r, n in ((local("x", model=self.path("bos"), tokens=1), 2), (local("Hello", tokens=1), 1)):
            self.assertEqual(len(r["prompt_tokens"]), n)
        with Cluster(model=self.path("bos"), workers=1, threads=1) as c:
            self.assertEqual(len(c.generate("x", tokens=1)["prompt_tokens"]), 2)

    def test_unused_tokens_are_not_shown(self):
        self.both("padded", [dict(prompt="1", tokens=8, text=" fine", reason="stop")])


class Company(unittest.TestCase):
    """The same request in other company gives the same answer; seeds do not mix."""

    def test_company(self):
        others = [f"Prompt number {i} is about" for i in range(8)]
        prompt = "Once upon a time"
        for kw in (dict(temp=0), dict(temp=1, seed=7)):
            want = local(prompt, tokens=32, **kw)["text"]
            for workers, threads in ((1, 4), (2, 1), (3, 2)):
                with Cluster(workers=workers, threads=threads, kv_tokens=8192) as c:
                    self.assertEqual(c.generate(prompt, tokens=32, **kw)["text"], want)
                    running = [c.start(p, tokens=32, temp=0.9) for p in others]
                    same = [c.start(prompt, tokens=32, **kw) for _ in range(8)]
                    self.assertEqual({g.result()["text"] for g in same}, {want})
                    for g in running:
                        self.assertIsNotNone(g.result())

    def test_seeds(self):
        with Cluster(workers=2, threads=1, kv_tokens=8192) as c:
            running = [c.start("Once upon a time", tokens=32, temp=1, seed=s) for s in range(1, 9)]
            self.assertGreaterEqual(len({g.result()["text"] for g in running}), 7)
            a, b = (c.generate("Once upon a time", tokens=32, temp=1) for _ in range(2))
            self.assertNotEqual(a["text"], b["text"])
            again = c.generate("Once upon a time", tokens=32, temp=1, seed=a["seed"])
            self.assertEqual(again["text"], a["text"])

    def test_question(self):
        """The chat form typed as a raw prompt, with control tokens allowed: it ends by itself."""
        prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        r = local(prompt, special=True, tokens=60)
        self.assertEqual(r["finish_reason"], "stop")
        self.assertIn("Paris", r["text"])
        self.assertNotIn("<|im_end|>", r["text"])


class ClusterFile(unittest.TestCase):
    """YAML scalars, with the keys of the cluster file, through --check."""

    def check(self, text):
        r = subprocess.run([program("flotilla-coordinator"), "--config", "-", "--check"], input=text.encode(),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
        return r.returncode, r.stderr.decode()

    def test_scalars(self):
        base = f"model: {MODEL}\nworkers: 2\n"
        self.assertEqual(self.check(base)[0], 0)
        self.assertEqual(self.check("\ufeff" + base.replace("\n", "\r\n") + "name: no\r\n")[0], 0)
        for port in ("08080", "0o17620", "0x1F90", "8_080", "8080abc", "99999999999", "-1", '""', "~", "1e4", "22:30",
                     "[8080]"):
            code, error = self.check(base + f"ports:\n  clients: {port}\n")
            self.assertEqual(code, 2, port)
            self.assertRegex(error, r"stdin:4:12: key 'ports.clients'")
        for value in ("no", "off", "False", "n", '"false"', "maybe"):
            code, error = self.check(base + f"plaintext: {value}\n")
            self.assertEqual(code, 2, value)
            self.assertIn("stdin:3:12: key 'plaintext'", error)
        for text, words in ((base + "worker: 3\n", "stdin:3:1: key 'worker': unknown"),
                            (base + "workers: 3\n", "appears twice"), ("", "empty"),
                            (base + "---\n" + base, "second document"),
                            (base + "kv_tokens: 2G\n", "key 'kv_tokens'"),
                            (base + "ports:\n\tclients: 1\n", "stdin:4:1"),
                            (base.replace("workers: 2", "workers: 31"), "31 workers for 30 layers"),
                            (base + "kv: q9\n", "q9"), (base + "listen: 0.0.0.0\n", "plaintext: true"),
                            ("workers: 2\nmodel: /nonexistent.gguf\n", "/nonexistent.gguf")):
            code, error = self.check(text)
            self.assertEqual(code, 2, text)
            self.assertIn(words, error)
        self.assertEqual(self.check(base + "listen: 0.0.0.0\nplaintext: true\n")[0], 0)
        for kv in ("f32", "f16", "q8_0", "q4_0"):
            self.assertEqual(self.check(base + f"kv: {kv}\n")[0], 0)

    def test_example_file(self):
        """It is accepted with a model that exists. That it has every key is config_test.c's."""
        with open(os.path.join(HERE, "..", "..", "deploy", "cluster.example.yaml")) as f:
            code, error = self.check(f.read().replace("/srv/models/model.gguf", MODEL))
        self.assertEqual(code, 0, error)


class Clients(unittest.TestCase):
    """Clients that go away, pools that are full, queues that overflow."""

    def idle(self, c, seconds=6):
        def free(s):
            pages = s["replicas"][0]["workers"][0]["kv_pages"]
            return s["requests"] == {"running": 0, "queued": 0} and pages["free"] == pages["total"]
        return c.wait(free, seconds)

    def test_client_goes_away(self):
        with Cluster(workers=2, threads=1, kv_tokens=16384) as c:
            for i in range(200 if LONG else 12):
                digits = i % 3 == 2  # 4,000 digits: it leaves during prefill, or before
                g = c.start("7" * 4000 if digits else "Once upon a time", tokens=4000, ignore_eos=True)
                c.wait(lambda s: s["requests"]["running"] == 1, 10)
                time.sleep(0.1)
                g.process.send_signal(signal.SIGKILL if i % 2 else signal.SIGINT)
                g.process.communicate()
                self.idle(c)
            time.sleep(2)  # Steps that were in flight, and the heartbeats that tell of them
            before = c.workers()[0]["rows"]
            time.sleep(1)
            self.assertEqual(c.workers()[0]["rows"], before)  # nothing is computed for clients that are gone
            self.assertEqual(len(c.generate("Hi", tokens=3, ignore_eos=True)["tokens"]), 3)

    def test_full_pool_and_clients_that_leave(self):
        rng = random.Random(2)
        with Cluster(workers=2, threads=1, kv_tokens=512) as c:
            running = [c.start(str(10 ** 99 + i), tokens=100, ignore_eos=True) for i in range(16)]
            for g in rng.sample(running, 6):
                time.sleep(0.3)
                g.process.kill()
            self.assertGreaterEqual(sum(g.result() is not None for g in running), 10)
            self.idle(c)

    def test_last_worker_stopped_under_load(self):
        """Many requests, 200 at a time, and the last worker stands still for 10 s: it is lost and comes back, and every
        request is answered, with the tokens of the engine alone."""
        with Cluster(workers=3, threads=1, kv_tokens=8192, replica_wait=120) as c, tempfile.NamedTemporaryFile("r") as out:
            n = 2000 if LONG else 400
            load = subprocess.Popen([program("flotilla"), "bench", "--cluster", c.address, "--clients", "200", "--requests", str(n),
                                     "--prompt-tokens", "8", "--tokens", "4", "--model", MODEL, "--check", "8", "--out", out.name,
                                     "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            c.wait(lambda s: s["requests"]["running"] > 0, 20)
            pid = c.workers()[2]["pid"]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(10)
            os.kill(pid, signal.SIGCONT)
            summary = json.loads(load.communicate(timeout=600)[0])
            records = [json.loads(line) for line in out]
            self.assertEqual((len(records), summary["failed"], summary["mismatched"]), (n, 0, 0), summary)
            self.assertGreaterEqual(summary["checked"], 8)
            self.assertEqual({len(r["itl_ms"]) for r in records}, {3})
            self.assertGreaterEqual(self.idle(c, 30)["replicas"][0]["epoch"], 2)  # it was lost in between

    def test_long_prompt_beside_a_stream(self):
        """8,000 digits (2,500 in the short form) are many megabytes between two stages; a stream beside them goes on, and is the same."""
        want = local("Once upon a time", tokens=80, ignore_eos=True)["tokens"]
        with Cluster(workers=3, threads=1, kv_tokens=24000) as c:
            stream = c.start("Once upon a time", tokens=80, ignore_eos=True)
            c.wait(lambda s: s["requests"]["running"] == 1, 10)
            long = c.start("7" * (8000 if LONG else 2500), tokens=2, ignore_eos=True)
            self.assertEqual(stream.result()["tokens"], want)
            got = long.result()
            if got is None:  # longer than the model's context: refused by name
                self.assertIn("context", long.error)
            else:
                self.assertEqual(len(got["tokens"]), 2)

    def test_queues_of_one(self):
        """With room for one message on a client's connection, 64 requests at once."""
        with Cluster(workers=3, threads=1, kv_tokens=16384, set=["limits.hwm=1"]) as c:
            r = run("bench", "--cluster", c.address, "--clients", "64", "--requests", "64", "--prompt-tokens", "16", "--tokens", "24",
                    "--model", MODEL, "--check", "4", "--json")
            summary = json.loads(r.stdout)
            self.assertGreaterEqual(summary["checked"], 4)
            self.assertEqual((summary["failed"], summary["mismatched"], summary["tokens"]), (0, 0, 64 * 24))

    def test_wrong_answers_are_counted(self):
        """Answers of another KV type than the cluster's are other answers, and the load says so."""
        with Cluster(workers=1, kv="q4_0", kv_tokens=4096) as c:
            for kv, code in (("f16", 1), ("q4_0", 0)):
                r = run("bench", "--cluster", c.address, "--clients", "2", "--requests", "4", "--prompt-tokens", "64", "--tokens", "48",
                        "--model", MODEL, "--kv", kv, "--check", "4", "--json")
                summary = json.loads(r.stdout)
                self.assertEqual((r.returncode, summary["checked"]), (code, 4), r.stderr)
                self.assertEqual(summary["mismatched"] > 0, code == 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
