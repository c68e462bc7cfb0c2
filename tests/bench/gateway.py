"""What the gateway costs.

    16 streams over HTTP / over protobuf           tokens/s, at least 0.97; two workers, whose threads want all cores
    the same with a core for all but the worker    likewise
    1,000 idle streams, before their first token   memory of the coordinator's process, at most 64 KiB each

Both kinds of clients have the same prompts, of which all but the end is cached, and greedy answers of 64 tokens. Those of
protobuf are `flotilla bench`, those of HTTP a Python program (tests/lib/http_load.py), whose own time counts for the gateway's.
"""
import json, os, random, resource, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, MODEL, Lines, options, run_json

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
import http_load
from cluster import Cluster, program

CLIENTS, REQUESTS, TOKENS, PROMPT = 16, 48, 64, 32
STREAMS, STREAM_BYTES = 1000, 64 << 10
VOCAB_LEAST = 40000  # token ids below it are text


def protobuf(c):
    r = run_json(program("flotilla"), "bench", "--cluster", c.address, "--json", "--seed", "1", "--clients", str(CLIENTS), "--requests", str(REQUESTS),
                 "--prompt-tokens", str(PROMPT), "--shared-prefix", str(PROMPT), "--tokens", str(TOKENS))
    assert r["failed"] == 0 and r["tokens"] == REQUESTS * TOKENS, r
    return r["tokens_per_s"]


def http(c):
    rng = random.Random(1)
    body = dict(prompt=[rng.randrange(1000, VOCAB_LEAST) for _ in range(PROMPT)], max_tokens=TOKENS, temperature=0, ignore_eos=True)
    seconds, usage = http_load.run(c.http, "/v1/completions", [body] * REQUESTS, CLIENTS)
    assert all(u["completion_tokens"] == TOKENS for u in usage), usage
    return REQUESTS * TOKENS / seconds


def memory(pid):
    """Bytes of a process that are no file's."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon:"))


def idle_streams():
    """Bytes that each of many streams takes which wait behind another's long answer."""
    limits = ["max_requests=1100", "max_per_client=1100", "max_sequences=1"]
    body = json.dumps(dict(prompt="1", max_tokens=8000, temperature=0, ignore_eos=True, stream=True)).encode()
    with Cluster(workers=1, threads=1, kv_tokens=16384, set=limits) as c:
        pid, streams = c.pids()["flotilla-coordinator"][0], []

        def begin(n):
            for _ in range(n):
                streams.append(http_load.Stream(http_load.address_of(c.http)))
                streams[-1].ask(0, "/v1/completions", body)
            return c.wait(lambda s: s["requests"]["running"] + s["requests"]["queued"] == len(streams), 120)["requests"]
        begin(20)  # the one that runs, and what is taken once
        before = memory(pid)
        assert begin(STREAMS)["running"] == 1
        return (memory(pid) - before) / STREAMS


def main():
    lines = Lines(options(__doc__).parse_args())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # of the cluster's processes too
    for title, workers in (("16 streams, HTTP / protobuf", 2), ("16 streams, HTTP / protobuf, one worker", 1)):
        if lines.wanted(title):
            with Cluster(workers=workers, threads=1, kv_tokens=16384) as c:
                lines.compare(title, lambda: http(c), lambda: protobuf(c), 0.97)
    title = "1,000 idle streams"
    if lines.wanted(title):
        n = idle_streams()
        lines.add(dict(title=title, figure=STREAM_BYTES, bytes=n, holds=n <= STREAM_BYTES))
        print(f"{title}: {n / 1024:.1f} KiB each; figure 64: {'holds' if n <= STREAM_BYTES else 'does not hold'}", flush=True)
    lines.finish()


if __name__ == "__main__":
    main()
