"""The plan: workers of different speed, what stays of it over restarts, and `flotilla plan`."""
import json, os, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cluster import MODEL, HandCluster, local, run

WAIT_S = 120
LAYERS = 30


def layers(workers):
    return {w["name"]: w["layers"] for w in workers}


def plan_of(text):
    """`plan --config`: exit status, replicas, errors."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(f"model: {MODEL}\n{text}\n")
        f.flush()
        r = run("plan", "--config", f.name, "--json")
    return r.returncode, json.loads(r.stdout)["replicas"] if r.stdout else None, r.stderr.decode()


class Uneven(unittest.TestCase):
    def test_slow_and_quick(self):
        """The slow one has fewer layers, wherever it stands; the answer is the engine's. A worker that comes back has its layers
        again without measuring anew."""
        want = local("Once upon a time", tokens=12, ignore_eos=True)
        workers = [("quick", (), dict(threads=1, isa="avx2")), ("slow", (), dict(threads=1, isa="scalar"))]
        with HandCluster("workers: 2\nkv_tokens: 2048", workers) as c:
            c.wait(lambda s: s["ready"], WAIT_S)
            before = layers(c.workers())
            self.assertEqual(sorted(x for first, last in before.values() for x in range(first, last + 1)), list(range(LAYERS)))
            self.assertLess(before["slow"][1] - before["slow"][0], before["quick"][1] - before["quick"][0])
            self.assertLess(before["slow"][0], before["quick"][0], "the head is the quick one's")
            got = c.generate("Once upon a time", tokens=12, ignore_eos=True)
            self.assertEqual((got["tokens"], got["text"]), (want["tokens"], want["text"]))
            for w in c.workers():  # the probe and twelve tokens, each a Step
                self.assertGreater(w["step_ms"]["measured"], 0)
                self.assertGreater(w["step_ms"]["predicted"], 0)
            (replica,) = c.plan()
            self.assertTrue(replica["planned"])
            self.assertEqual(layers(replica["workers"]), before)
            self.assertEqual((replica["kv_pages"], replica["ctx"]), (128, 2048))
            self.assertIn(replica["bottleneck"], before)
            for w in replica["workers"]:
                ms = w["step_ms"]
                self.assertTrue(0 < ms["row"] < ms["streams"] < ms["chunk"], ms)
            measured = c.text().count("a layer takes")
            self.assertEqual(measured, 2)
            c.processes["quick"].kill()
            c.processes["quick"].wait()
            c.worker("quick", threads=1, isa="avx2")
            s = c.wait(lambda s: s["ready"] and s["replicas"][0]["epoch"] > 1, WAIT_S)
            self.assertEqual(layers(s["replicas"][0]["workers"]), before)
            again = c.plan()[0]["workers"]
            self.assertEqual([w["step_ms"] for w in again], [w["step_ms"] for w in replica["workers"]], "it was measured anew")
            got = c.generate("Once upon a time", tokens=12, ignore_eos=True)
            self.assertEqual(got["tokens"], want["tokens"])

    def test_wishes(self):
        """Layers, threads and the preferred end, of a worker that is somebody's laptop."""
        keys = "kv_tokens: 2048\nworkers:\n  - {name: laptop, max_layers: 2, threads: 1, prefer: last}\n  - server"
        with HandCluster(keys, [("laptop", (), dict(threads=2)), ("server", (), dict(threads=1))]) as c:
            c.wait(lambda s: s["ready"], WAIT_S)
            workers = {w["name"]: w for w in c.workers()}
            self.assertEqual(workers["laptop"]["layers"][1], LAYERS - 1)
            self.assertGreaterEqual(workers["laptop"]["layers"][0], LAYERS - 2)
            self.assertEqual(workers["laptop"]["threads"], 1)
            threads = os.listdir(f"/proc/{c.processes['laptop'].pid}/task")
            self.assertEqual(len(threads), len(os.listdir(f"/proc/{c.processes['server'].pid}/task")), "it computes with two threads")

    def test_named_chains(self):
        """Chains of different lengths, whose workers the file names, with the numbers of layers."""
        want = local("Once upon a time", tokens=8, ignore_eos=True)
        with HandCluster("kv_tokens: 2048\nreplicas: [[b, a], [c]]") as c:
            for name in "cab":
                c.worker(name, threads=1)
            s = c.wait(lambda s: all(r["state"] == "ready" for r in s["replicas"]), WAIT_S)
            self.assertEqual([[w["name"] for w in r["workers"]] for r in s["replicas"]], [["b", "a"], ["c"]])
            self.assertEqual(s["replicas"][1]["workers"][0]["layers"], [0, LAYERS - 1])
            for _ in range(4):
                self.assertEqual(c.generate("Once upon a time", tokens=8, ignore_eos=True)["tokens"], want["tokens"])
        with HandCluster("workers: 2\nkv_tokens: 2048\nsplit: [29, 1]", [(n, (), dict(threads=1)) for n in "ab"]) as c:
            c.wait(lambda s: s["ready"], WAIT_S)
            self.assertEqual(layers(c.workers()), {"a": [0, 28], "b": [29, 29]})
            self.assertEqual(c.generate("Once upon a time", tokens=8, ignore_eos=True)["tokens"], want["tokens"])


class DryRun(unittest.TestCase):
    def test_plan(self):
        # One thread's own time is measured soundly on a busy machine too.
        six = "workers: [" + ", ".join(f"{{name: w{i}, threads: 1}}" for i in range(6)) + "]"
        code, replicas, error = plan_of(f"{six}\nreplicas: 2\nkv_tokens: 2048\nsplit: even")
        self.assertEqual(code, 0, error)
        self.assertEqual([r["name"] for r in replicas], ["a", "b"])
        for r in replicas:
            self.assertEqual([w["layers"] for w in r["workers"]], [[0, 9], [10, 19], [20, 29]])
            self.assertEqual(r["bottleneck"], r["workers"][2]["name"], "the head is the last one's")
        named = "workers: [{name: x, threads: 1}, {name: y, threads: 1}, {name: z, threads: 1}]"
        cuts = []
        while not cuts or (cuts[-1][0] <= cuts[-1][1] and len(cuts) < 3):  # each measures anew, and beside whatever else runs
            code, replicas, error = plan_of(f"{named}\nreplicas: [[x, y], [z]]\nkv_tokens: 2048")
            self.assertEqual(code, 0, error)
            self.assertEqual([[w["name"] for w in r["workers"]] for r in replicas], [["x", "y"], ["z"]])
            cuts.append([w["layers"][1] - w["layers"][0] + 1 for w in replicas[0]["workers"]])
        self.assertGreater(*cuts[-1], f"the last one has the head: {cuts}")

    def test_what_does_not_fit(self):
        code, replicas, _ = plan_of("workers: [{name: a, max_layers: 4}, {name: b, max_layers: 20}]")
        self.assertEqual(code, 1)
        self.assertFalse(replicas[0]["planned"])
        self.assertIn("24 of 30 layers together ('max_layers'): 6 more are needed", replicas[0]["why"])
        code, replicas, _ = plan_of("workers: [{name: a, memory: 120 MiB}, b]\nctx: 4096\nsplit: even")
        self.assertEqual(code, 1)
        self.assertRegex(replicas[0]["why"], r"no room for 'ctx' of 4096: \d+ MiB more are needed; .* which has 120 MiB by the key 'memory'")
        code, replicas, _ = plan_of("workers: [{name: a, memory: 150 MiB}, b]\nctx: 4096")
        self.assertEqual(code, 0, "it has few layers")
        self.assertLess(replicas[0]["workers"][0]["layers"][1], 14)

    def test_misuse(self):
        for text, words in (("workers: 2\nsplit: [20, 11]", "key 'split': 31 layers, and the model has 30"),
                            ("workers: [a, a]", "appears twice"), ("workers: 2\nkv: q9", "key 'kv'"), ("", "key 'workers' is missing")):
            code, replicas, error = plan_of(text)
            self.assertEqual((code, replicas), (2, None), text)
            self.assertIn(words, error)
        for words in ([], ["--config", "x", "--cluster", "y"], ["--config", "/no/such/file"]):
            self.assertEqual(run("plan", *words).returncode, 2)
        self.assertEqual(run("plan", "--cluster", "tcp://127.0.0.1:1").returncode, 1)


if __name__ == "__main__":
    unittest.main()
