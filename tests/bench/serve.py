"""Serving many, as ratios of two loads on the same clusters in one run: 2 workers with 1 thread each, SmolLM2.

    16 clients with a shared prefix of 1,000 tokens / one client   tokens/s, at least 3
    8 streams beside prompts of 2,048 tokens / alone               1 / p99 ITL, at least 0.5
    the slowest stage's own time / the time the load took          16 clients, at least 0.85
    8 prompts of 512 tokens, 3 Steps in flight / 1                 prompts/s, at least 1.6
    a prompt whose first 1,000 tokens are cached / new             1 / TTFT, at least 5

and the core's own time for an event at 1,000 live requests, at most 20 us.
"""
import itertools, os, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, MODEL, Lines, options, run_json

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
from cluster import Cluster, program

seeds = itertools.count(1)


def load(c, *words, seed=None):
    return run_json(program("flotilla"), "bench", "--cluster", c.address, "--json", "--seed", str(seed or next(seeds)), *words)


def shared(c, clients):
    """Tokens a second; the prefix is the same in every load."""
    r = load(c, "--scenario", "shared-prefix", "--clients", str(clients), "--requests", str(2 * clients), "--tokens", "64", seed=1)
    assert r["failed"] == 0
    return r["tokens_per_s"]


def p99(c, beside):
    long = beside and subprocess.Popen([program("flotilla"), "bench", "--cluster", c.address, "--clients", "2", "--requests", "1000",
                                        "--prompt-tokens", "2048", "--tokens", "1", "--seed", str(next(seeds) + 1000)],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    r = load(c, "--clients", "8", "--requests", "8", "--prompt-tokens", "16", "--tokens", "400")
    if long:
        long.kill()
        long.wait()
        c.wait(lambda s: s["requests"]["running"] == 0, 10)
    assert r["itl_ms"]["samples"] >= 1000 and r["failed"] == 0
    return 1000.0 / r["itl_ms"]["p99"]


def busy(c):
    """Seconds that the slowest stage computed, and that the load took."""
    before = c.metrics()
    r = load(c, "--clients", "16", "--requests", "32", "--prompt-tokens", "32", "--tokens", "64")
    after = c.metrics()
    key = "flotilla_stage_compute_seconds_total"
    return max(after[k] - before[k] for k in after if k.startswith(key)), r["wall_ms"] / 1000


def prompts(c):
    return 8000.0 / load(c, "--clients", "8", "--requests", "8", "--prompt-tokens", "512", "--tokens", "1")["wall_ms"]


def ttft(c, cached):
    prefix = f"Chapter {next(seeds)}. " + "The committee met again on Tuesday to discuss the matter of the bridge. " * 72
    if cached:
        c.generate(prefix + "Then", tokens=1)
    return 1000.0 / c.generate(prefix + "Now", tokens=1)["timings"]["ttft_ms"]


def main():
    lines = Lines(options(__doc__).parse_args())
    with Cluster(workers=2, threads=1, kv_tokens=32768) as c, Cluster(workers=2, threads=1, kv_tokens=32768, set=["window=1"]) as one:
        lines.compare("16 clients / 1 client, shared prefix", lambda: shared(c, 16), lambda: shared(c, 1), 3.0)
        lines.compare("8 streams: beside long prompts / alone", lambda: p99(c, True), lambda: p99(c, False), 0.5)
        last = {}

        def stage():
            last["own"], last["wall"] = busy(c)
            return last["own"]
        lines.compare("slowest stage's own time / wall, 16 clients", stage, lambda: last["wall"], 0.85)
        lines.compare("8 prompts: 3 Steps in flight / 1", lambda: prompts(c), lambda: prompts(one), 1.6)
        lines.compare("TTFT: new / cached prefix", lambda: ttft(c, True), lambda: ttft(c, False), 5.0)
    title = "core, 1,000 live requests"
    if lines.wanted(title):
        core = run_json(os.path.join(BIN, "core_bench"), "1000")
        core.update(title=title, figure=20, holds=core["us_per_event"] <= 20)
        print(f"{title}: {core['us_per_event']} us an event; figure 20: {'holds' if core['holds'] else 'does not hold'}")
        lines.add(core)
    lines.finish()


if __name__ == "__main__":
    main()
