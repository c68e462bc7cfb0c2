"""`flotilla simulate` through the command line: its document, its table, and what it refuses."""
import json, os, subprocess, sys, tempfile, unittest, xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import BIN, MODEL

KEYS = {"hit_rate", "bound_hit_rate", "max_over_mean_work", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "largest_share",
        "core_us_per_event", "arrival_us_p50", "arrival_us_p99", "compose_us_p99", "events", "policy", "replicas", "cache_blocks", "load",
        "concurrency", "block_ms", "token_ms", "requests", "blocks", "distinct_blocks", "answer_tokens", "took_ms"}
MEASURED = {"core_us_per_event", "arrival_us_p50", "arrival_us_p99", "compose_us_p99"}


def simulate(*words):
    return subprocess.run([os.path.join(BIN, "flotilla"), "simulate", *map(str, words)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)


def document(*words):
    r = simulate(*words, "--json")
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


class Simulate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.trace = os.path.join(cls.folder.name, "trace.jsonl")
        with open(cls.trace, "w") as f:
            for i in range(20):  # each asks for one of two prefixes of four blocks, and one block of its own
                first = 10 * (i % 2)
                print(json.dumps({"timestamp": 1000 * i, "input_length": 5 * 512, "output_length": 100,
                                  "hash_ids": [*range(first, first + 4), 100 + i]}), file=f)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def refused(self, words, says, status=2):
        r = simulate(*words)
        self.assertEqual((r.returncode, r.stdout), (status, ""), r.stderr)
        self.assertIn(says, r.stderr)

    def test_document(self):
        d = document("--trace", self.trace, "--replicas", 1, "--cache-blocks", "100%", "--load", 0.5)
        self.assertEqual(set(d), KEYS)
        # Of 100 blocks 28 are distinct; 48 block times of work at load 0.5 are spread over 96.
        self.assertEqual((d["requests"], d["blocks"], d["distinct_blocks"], d["cache_blocks"]), (20, 100, 28, 28))
        self.assertEqual((d["load"], d["concurrency"], d["answer_tokens"]), (0.5, 0, 2000))
        self.assertAlmostEqual(d["hit_rate"], 0.72)
        self.assertAlmostEqual(d["bound_hit_rate"], 0.72)
        self.assertAlmostEqual(d["ttft_p50_ms"], 1, 4)
        # The first two find nothing and take 6, and requests come each 96/19: the second one and the third wait.
        self.assertAlmostEqual(d["ttft_p90_ms"], 6 + 6 + 1 - 2 * 96 / 19, 4)
        self.assertAlmostEqual(d["ttft_p99_ms"], 6 + 5 - 96 / 19, 4)
        self.assertAlmostEqual(d["took_ms"], 96 + 2, 4)
        self.assertEqual((d["max_over_mean_work"], d["largest_share"]), (1, 1))

    def test_times_of_blocks_and_tokens(self):
        d = document("--trace", self.trace, "--replicas", 1, "--concurrency", 1, "--block-ms", 3, "--token-ms", 0.5,
                     "--cache-blocks", 28)
        self.assertIsNone(d["load"])
        self.assertEqual(d["concurrency"], 1)
        self.assertAlmostEqual(d["ttft_p50_ms"], 3, 4)
        self.assertAlmostEqual(d["took_ms"], 28 * 3 + 2000 * 0.5, 4)

    def test_measured_times(self):
        """A model's rates on this machine are what the replicas compute with."""
        d = document("--trace", self.trace, "--replicas", 1, "--concurrency", 1, "--cache-blocks", 28, "--model", MODEL,
                     "--threads", 1)
        self.assertGreater(d["block_ms"], d["token_ms"])
        self.assertGreater(d["token_ms"], 0)
        self.assertAlmostEqual(d["took_ms"] / (28 * d["block_ms"] + 2000 * d["token_ms"]), 1, 6)

    def test_no_replica_is_pinned(self):
        """Two idle replicas, one block that all prompts begin with, and at most 0.6 of the requests for the one that serves
        more; the same where one prefix group alone keeps both busy. A rule that follows the longest match sends all to one."""
        alike = ("--trace", "synthetic:groups=1,shared=1,own=20,requests=2000", "--concurrency", 1)
        group = ("--trace", "synthetic:groups=1,requests=2000", "--concurrency", 16)
        for words in (alike, group):
            self.assertLessEqual(document(*words, "--replicas", 2)["largest_share"], 0.6)
        self.assertEqual(document(*alike, "--replicas", 2, "--policy", "affinity")["largest_share"], 1)

    def test_same_seed_same_figures(self):
        words = ("--trace", "synthetic:requests=300,groups=9", "--replicas", 3, "--cache-blocks", "20%")
        a, b, c = document(*words), document(*words), document(*words, "--seed", 2)
        for key in KEYS - MEASURED:
            self.assertEqual(a[key], b[key], key)
        self.assertNotEqual(a["blocks"], c["blocks"])

    def test_table(self):
        r = simulate("--trace", self.trace, "--replicas", 2, "--cache-blocks", 28)
        self.assertEqual(r.returncode, 0, r.stderr)
        for text in ("20 requests, 100 blocks (28 distinct)", "2 replicas with caches of 28 blocks, policy auto, load 0.8",
                     "of all blocks of all prompts (0.720 with one unlimited cache)"):
            self.assertIn(text, r.stdout)

    def test_plot(self):
        path = os.path.join(self.folder.name, "plot.svg")
        document("--trace", self.trace, "--replicas", 4, "--cache-blocks", 28, "--plot", path)
        svg = xml.etree.ElementTree.parse(path).getroot()
        texts = [x.text for x in svg.iter("{http://www.w3.org/2000/svg}text")]
        self.assertTrue(any(x.startswith("TTFT: p50 ") and x.endswith(" 20 samples") for x in texts), texts)
        bars = [x for x in svg.iter("{http://www.w3.org/2000/svg}rect") if x.get("fill") == "#06c"]
        self.assertEqual(len(bars), 4)
        self.assertEqual(max(float(x.get("height")) for x in bars), 220)
        self.refused(["--trace", self.trace, "--cache-blocks", 28, "--plot", "/nonexistent/x"], "/nonexistent/x: No such file",
                     status=1)

    def test_help(self):
        r = simulate("--help")
        self.assertEqual(r.returncode, 0)
        self.assertIn("of all blocks of all prompts", r.stdout)

    def test_refused(self):
        bad = os.path.join(self.folder.name, "bad.jsonl")
        with open(self.trace) as f, open(bad, "w") as g:
            g.write(f.readline() + f.readline().replace("output", "outputs"))
        self.refused(["--trace", bad], f"{bad}:2: 'output_length' is missing", status=1)
        self.refused(["--trace", self.trace + "x"], f"{self.trace}x: No such file", status=1)
        self.refused([], "needs --trace")
        self.refused(["--trace", self.trace, "--model", bad], f"{bad}: ", status=1)
        self.refused(["--trace", self.trace, "--model", MODEL, "--token-ms", "1"], "--model measures what --block-ms")
        self.refused(["--trace", "synthetic:own=x"], "--trace synthetic: own=x: not a whole number in 0..16384")
        self.refused(["--trace", self.trace, "--cache-blocks", "4"], "a cache of 4 blocks cannot hold the longest prompt")
        for cache in ("many", "0", "1e9", "10%%", "nan"):
            self.refused(["--trace", self.trace, "--cache-blocks", cache], "--cache-blocks: ")
        self.refused(["--trace", self.trace, "--replicas", "1001"], "--replicas: '1001' is not a number in 1..1000")
        self.refused(["--trace", self.trace, "--load", "0"], "--load: '0' is not a number in 0.01..100")
        self.refused(["--trace", self.trace, "--load", "1", "--concurrency", "1"], "exclude each other")
        self.refused(["--trace", self.trace, "--policy", "best"], "--policy: 'best' is unknown (auto, round_robin, ")
        self.refused(["--trace", self.trace, "--weight", "1"], "--weight goes with --policy cost")


if __name__ == "__main__":
    unittest.main(verbosity=2)
