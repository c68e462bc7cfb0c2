"""Many requests at once: each gets its one answer whatever runs beside it, pages are shared and given back, nothing is lost
when workers die, and nothing grows without bound."""
import collections, json, os, random, signal, sys, tempfile, time, unittest, urllib.error, urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import GEMMA, LONG, Cluster, Generation, free_ports, local, run
from relay import Relay

SYSTEM = "You are a careful assistant who answers in short sentences and never repeats a question. " * 64  # 1,025 tokens
WORDS = "river stone the of light under walked seven because garden old and ships north cold letter".split()


def cache(c):
    return c.status()["replicas"][0]["prefix_cache"]


def idle(s):
    """No request is live, and every page is free or kept for a prefix."""
    pages = s["replicas"][0]["workers"][0]["kv_pages"]
    return s["requests"] == {"running": 0, "queued": 0} and pages["free"] == pages["total"]


class Serve(unittest.TestCase):
    def one_answer(self, seed, workers):
        """64 requests at once, of different lengths and parameters, some with a common prefix, some given up by their
        clients, in a pool that is too small for all of them."""
        rng = random.Random(seed)
        requests = []
        for i in range(64):
            text = " ".join(rng.choice(WORDS) for _ in range(rng.choice((3, 20, 60, 150))))
            prompt = rng.choice(("", SYSTEM[:400], SYSTEM[:800])) + text
            requests.append((prompt, dict(tokens=rng.randint(1, 60), ignore_eos=rng.random() < 0.7, temp=rng.choice((0, 0.7, 1.2)),
                                          top_p=rng.choice((1, 0.9)), seed=rng.randint(0, 1000),
                                          repetition_penalty=rng.choice((1, 1.2)))))
        with Cluster(workers=workers, threads=1, kv_tokens=1024, ctx=1024) as c:
            running = [c.start(p, priority=rng.choice(("critical", "high", "normal", "low")), **kw) for p, kw in requests]
            time.sleep(1)
            for g in rng.sample(running, 8):
                g.process.send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM)))
            results = [g.result() for g in running]
            c.wait(idle, 10)
            s = c.status()["replicas"][0]
        done = 0
        for (prompt, kw), got in zip(requests, results):
            if got is not None:
                self.assertEqual(got["tokens"], local(prompt, threads=2, **kw)["tokens"], (seed, workers, prompt[-40:], kw))
                done += 1
        self.assertGreaterEqual(done, 56)
        self.assertGreater(s["preemptions"], 0, "nobody was preempted: the pool is too large for this test")
        self.assertGreater(s["prefix_cache"]["hits"], 0)

    def test_one_answer_under_load(self):
        for seed in range(5 if LONG else 1):
            for workers in (2, 3) if LONG else (2,):
                self.one_answer(seed, workers)

    def test_prefix_is_computed_once(self):
        """The same 1,000 tokens ten times, then once with the cache off."""
        what = dict(tokens=8, ignore_eos=True)
        with Cluster(workers=2, threads=1, kv_tokens=4096) as c:
            answers = []
            for i in range(10):
                before = cache(c)
                answers.append(c.generate(SYSTEM + f"Question {i}", **what)["tokens"])
                after = cache(c)
                if i:  # all but the tail, and at most one page of the prefix again
                    self.assertLessEqual(after["tokens_computed"] - before["tokens_computed"], 32)
            self.assertGreaterEqual(cache(c)["hits"], 9)
        with Cluster(workers=2, threads=1, kv_tokens=4096, set=["prefix_cache=false"]) as c:
            for i in (0, 9):
                self.assertEqual(c.generate(SYSTEM + f"Question {i}", **what)["tokens"], answers[i])
            self.assertEqual(cache(c)["hits"], 0)

    def test_prefix_and_sliding_window(self):
        """Gemma's window is 512: a shared prefix longer than that is found, and right for every layer."""
        with Cluster(model=GEMMA, workers=2, threads=1, kv_tokens=4096, kv="q8_0") as c:
            for i in range(3):
                prompt = SYSTEM[:3600] + f"Question {i}"
                want = local(prompt, model=GEMMA, kv="q8_0", tokens=12, ignore_eos=True)
                self.assertGreater(len(want["prompt_tokens"]), 560)
                self.assertEqual(c.generate(prompt, tokens=12, ignore_eos=True)["tokens"], want["tokens"])
            self.assertEqual(cache(c)["hits"], 2)
            self.assertGreater(cache(c)["tokens_saved"], 2 * 512)

    def test_rides_behind(self):
        """A second request comes while the first still computes the 1,000 tokens that both share: these are computed once."""
        with Cluster(workers=2, threads=1, kv_tokens=4096, chunk=32) as c:
            first = c.start(SYSTEM + "A", tokens=4, ignore_eos=True)
            c.wait(lambda s: s["replicas"][0]["prefix_cache"]["tokens_computed"] > 64, 30)
            second = c.start(SYSTEM + "B", tokens=4, ignore_eos=True)
            self.assertTrue(first.result() and second.result())
            n = len(local(SYSTEM + "A", tokens=0)["prompt_tokens"])
            computed, rows = cache(c)["tokens_computed"], [w["rows"] for w in c.workers()]
            self.assertLessEqual(computed, n + 32)
            self.assertLessEqual(max(rows), computed + 2 * 4 + 1)  # and on every stage: decodes and the probe beside it

    def test_workers_lost_again_and_again(self):
        """Under 16 streams a worker is killed or stopped, and started again, many times: no stream sees an
        error, a repeated or a missing token."""
        rng = random.Random(17)
        prompts = [f"{SYSTEM[:200]} Tell me about {w}." for w in WORDS[:8]]
        want = {(p, t): local(p, tokens=24, temp=t, seed=4, ignore_eos=True)["tokens"] for p in prompts for t in (0, 0.8)}
        losses, hits, answers = (20 if LONG else 4), 0, 0
        with Cluster(workers=2, threads=1, kv_tokens=8192, replica_wait=60) as c:
            start = c.wait(idle, 5)["replicas"][0]["workers"][0]["kv_pages"]
            keys = rng.sample(sorted(want), 16)
            streams = [(k, c.start(k[0], tokens=24, temp=k[1], seed=4, ignore_eos=True)) for k in keys]
            met = collections.Counter()
            stop = time.monotonic() + rng.uniform(0.3, 1.5)
            for loss in range(losses + 1):
                # A request that was in flight at two losses ends before the next: at three it is given up.
                while time.monotonic() < stop or any(met[g] > 1 for _, g in streams) or (loss == losses and streams):
                    for k, g in [x for x in streams if x[1].process.poll() is not None]:
                        got = g.result()
                        self.assertIsNotNone(got, g.error)
                        self.assertEqual(got["tokens"], want[k])
                        streams.remove((k, g))
                        answers += 1
                        if loss < losses:
                            k = rng.choice(sorted(want))
                            streams.append((k, c.start(k[0], tokens=24, temp=k[1], seed=4, ignore_eos=True)))
                    time.sleep(0.02)
                if loss == losses:
                    break
                s = c.status()
                victim, epoch = rng.choice(s["replicas"][0]["workers"]), s["replicas"][0]["epoch"]
                how = rng.choice((signal.SIGKILL, signal.SIGSTOP))
                hits += s["requests"]["running"] > 0
                met.update(g for _, g in streams)
                at = time.monotonic()
                os.kill(victim["pid"], how)
                if how == signal.SIGSTOP:
                    c.wait(lambda s: s["replicas"][0]["epoch"] > epoch or not s["ready"], 20)
                    os.kill(victim["pid"], signal.SIGKILL)
                c.worker(f"again{loss}", threads=1)
                c.wait(lambda s: s["ready"] and s["replicas"][0]["epoch"] > epoch, 60)
                print(f"{how.name} of {victim['name']}: {s['requests']['running']} requests ran, ready again after "
                      f"{time.monotonic() - at:.2f} s", file=sys.stderr)
                stop = time.monotonic() + rng.uniform(0.3, 2.5)
            self.assertGreaterEqual(hits, losses * 4 // 5)
            self.assertGreaterEqual(answers, 16)
            self.assertEqual(c.wait(idle, 10)["replicas"][0]["workers"][0]["kv_pages"], start)

    def test_pages_come_back(self):
        """After 200 mixed requests all pages are free or cached; and after a killed worker there is no stale hit."""
        rng = random.Random(3)
        with Cluster(workers=2, threads=1, kv_tokens=2048, replica_wait=60) as c:
            start = c.status()["replicas"][0]["workers"][0]["kv_pages"]
            for _ in range(20):
                batch = [c.start(rng.choice(("", SYSTEM[:300])) + rng.choice(WORDS) * rng.randint(1, 20), tokens=rng.randint(1, 6))
                         for _ in range(10)]
                self.assertNotIn(None, [g.result() for g in batch])
            self.assertEqual(c.wait(idle, 5)["replicas"][0]["workers"][0]["kv_pages"], start)
            os.kill(c.workers()[0]["pid"], signal.SIGKILL)
            c.worker("again", threads=1)
            want = local(SYSTEM[:300] + "river", tokens=8)["tokens"]
            self.assertEqual(c.generate(SYSTEM[:300] + "river", tokens=8)["tokens"], want)

    def test_samples(self):
        """Several answers share their prompt; each is the one that its index gives."""
        what = dict(tokens=12, temp=1, seed=5, ignore_eos=True)
        with Cluster(workers=2, threads=1, kv_tokens=4096) as c:
            got = c.generate(SYSTEM, samples=4, **what)
            s = cache(c)
        answers = [got["tokens"], *(m["tokens"] for m in got["more"])]
        self.assertEqual(answers, [local(SYSTEM, sample=i, **what)["tokens"] for i in range(4)])
        self.assertEqual(len({tuple(a) for a in answers}), 4)
        self.assertLessEqual(s["tokens_computed"], len(got["prompt_tokens"]) + 3 * 16)

    def test_pool_too_small(self):
        """Room for 512 tokens: what fits takes turns, what never can is refused."""
        prompts = [str(10 ** 99 + i * 7919) for i in range(16)]
        with Cluster(workers=2, threads=1, kv_tokens=512) as c:
            running = [c.start(p, tokens=100, ignore_eos=True) for p in prompts]
            results = [g.result() for g in running]
            self.assertNotIn(None, results)
            for p, r in zip(prompts[::5], results[::5]):
                self.assertEqual(r["tokens"], local(p, ctx=512, tokens=100, ignore_eos=True)["tokens"])
            refused = c.start(SYSTEM, tokens=10)
            self.assertIsNone(refused.result())
            self.assertIn("INVALID_ARGUMENT", refused.error)
            for i in range(300 if LONG else 60):  # one after another, all different
                self.assertEqual(len(c.generate(f"{i} {i * 104729}", tokens=2, ignore_eos=True)["tokens"]), 2)
            s = c.wait(idle, 5)["replicas"][0]
            self.assertGreater(s["prefix_cache"]["pages_evicted"], 0)
            self.assertEqual(s["prefix_cache"]["pages_held"], 0)

    def test_two_thousand_at_once(self):
        """Each is answered, or refused with a hint when to come back; memory has a bound."""
        with Cluster(workers=2, threads=1, kv_tokens=4096, max_requests=256) as c, tempfile.NamedTemporaryFile("r") as out:
            pid = c.pids()["flotilla-coordinator"][0]
            r = run("bench", "--cluster", c.address, "--clients", "2000", "--requests", "2000", "--prompt-tokens", "12", "--tokens", "2",
                    "--out", out.name, "--json")
            summary = json.loads(r.stdout)
            records = [json.loads(line) for line in out]
            self.assertEqual(len(records), 2000)
            failed = [x for x in records if x["failed"]]
            self.assertEqual(len(failed), summary["failed"])
            self.assertTrue(all(x["status"].startswith("8:") and x["retry_ms"] > 0 for x in failed), failed[:2])
            self.assertTrue(all(x["tokens"] == 2 for x in records if not x["failed"]))
            self.assertGreaterEqual(2000 - len(failed), 256)
            self.assertGreater(len(failed), 0, "2,000 at once and room for 256: nobody was refused")
            with open(f"/proc/{pid}/status") as f:
                peak = next(int(l.split()[1]) for l in f if l.startswith("VmHWM"))
            self.assertLess(peak, 300 << 10, "KiB at the coordinator's peak")
            c.wait(idle, 5)

    def test_metrics(self):
        """What Prometheus reads equals what the clients counted; workers have figures of their own."""
        port = free_ports(1)[0]
        with Cluster(workers=1, threads=1, kv_tokens=4096) as c:
            spare = c.worker("spare", threads=1, metrics=f"127.0.0.1:{port}")
            answers = [g.result() for g in [c.start(f"{i} " * 20, tokens=i % 7 + 1, ignore_eos=True) for i in range(100)]]
            self.assertNotIn(None, answers)
            refused = c.start("", tokens=3)
            self.assertIsNone(refused.result())
            m = c.metrics()
            self.assertEqual(m['flotilla_answers_total{status="0"}'], 100)
            self.assertEqual(m['flotilla_answers_total{status="3"}'], 1)
            tokens = sum(len(a["tokens"]) for a in answers)
            self.assertEqual(m["flotilla_tokens_total"], tokens)
            self.assertEqual(m["flotilla_ttft_seconds_count"], 100)
            self.assertEqual(m["flotilla_itl_seconds_count"], tokens - 100)
            self.assertEqual(m['flotilla_itl_seconds_bucket{le="+Inf"}'], tokens - 100)
            buckets = [v for k, v in m.items() if k.startswith("flotilla_itl_seconds_bucket")]
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual(sum(v for k, v in m.items() if k.startswith("flotilla_kv_pages")), 256)
            self.assertGreater(m['flotilla_stage_compute_seconds_total{replica="a",stage="0",worker="w1"}'], 0)
            os.kill(c.workers()[0]["pid"], signal.SIGKILL)
            c.wait(lambda s: s["ready"] and s["replicas"][0]["workers"][0]["name"] == "spare", 30)
            c.generate("Hi", tokens=4, ignore_eos=True)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as r:
                text = r.read().decode()
            self.assertIsNone(spare.poll())
            isa = c.workers()[0]["isa"]
            for op in ("linear", "attention", "norm", "rotate", "quantise", "gate"):
                self.assertRegex(text, f'flotilla_kernel_seconds_count{{isa="{isa}",op="{op}"}} [1-9]')
            with self.assertRaises(urllib.error.HTTPError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)

    def test_connection_breaks(self):
        """A client's connection breaks three times: the answer goes on with the very next token."""
        what = dict(tokens=600, ignore_eos=True, temp=0.9, seed=2)
        want = local("Once upon a time", **what)
        with Cluster(workers=2, threads=1, kv_tokens=4096) as c:
            with Relay(int(c.address.rsplit(":", 1)[1])) as relay:
                g = Generation(f"tcp://127.0.0.1:{relay.port}", "Once upon a time", **what)
                for _ in range(3):
                    c.wait(lambda s: s["requests"]["running"] == 1, 20)
                    time.sleep(0.2)
                    relay.break_connections()
                got = g.result()
            self.assertIsNotNone(got, g.error)
            self.assertEqual((got["tokens"] == want["tokens"], got["text"] == want["text"]), (True, True))

    def test_slow_and_vanished_clients(self):
        """A client that reads 10 bytes/s, and one that vanishes, do not change what others get, and are given up."""
        with Cluster(workers=2, threads=1, kv_tokens=8192, set=["limits.hwm=1", "client_stall=5"]) as c:
            with Relay(int(c.address.rsplit(":", 1)[1]), buffer_bytes=4096) as relay:
                slow = Generation(f"tcp://127.0.0.1:{relay.port}", "Once upon a time", tokens=4000, ignore_eos=True)
                gone = c.start("It was", tokens=4000, ignore_eos=True)
                c.wait(lambda s: s["requests"]["running"] == 2, 30)  # the slow one is connected, and computed
                relay.set(relay.back, rate=10)
                gone.process.kill()
                want = local("The capital of France is", tokens=40, ignore_eos=True)["tokens"]
                for _ in range(8):
                    self.assertEqual(c.generate("The capital of France is", tokens=40, ignore_eos=True)["tokens"], want)
                c.wait(idle, 60)  # the slow one is given up after client_stall: 4,000 tokens do not fit its connection
                self.assertIsNone(slow.process.poll(), "the slow client was answered: it was not slow")
                slow.process.kill()
                slow.result()
            m = c.metrics()
            self.assertEqual(m['flotilla_answers_total{status="1"}'], 2)  # both were cancelled


if __name__ == "__main__":
    unittest.main(verbosity=2)
