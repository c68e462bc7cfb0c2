"""Two replicas of two workers with one thread each, SmolLM2: what routing by prefix gains, and what encryption costs.

    TTFT p50, round robin / auto             at least 2: prompts of 20 groups, of 512 tokens that a group shares and 8 of their own,
                                             four at a time, in pools that have room for 12 such prefixes each
    decode tokens/s, with keys / plaintext   at least 0.95: 8 clients, prompts of 16 tokens, answers of 128; and tokens for each
                                             second of CPU time that coordinator and workers take, which a busy machine tells too

The first line also says the hit rate of both: positions of prompts that were found computed / all positions of all prompts.
"""
import contextlib, itertools, json, math, os, random, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, MODEL, Lines, options, run_json

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
from cluster import HandCluster, Keys, program

GROUPS, PREFIX, OWN, AT_ONCE, REQUESTS = 20, 512, 8, 4, 20
POOL = 12 * PREFIX + AT_ONCE * 128
seeds = itertools.count(1)


@contextlib.contextmanager
def cluster(replicas, pool, secure=False, policy="auto"):
    """Two workers with one thread each in every replica; all are ready."""
    names = [f"w{i + 1}" for i in range(2 * replicas)]
    keys = Keys(names) if secure else None
    own = {n: dict(threads=1, **(dict(key=keys.path(n), coordinator_key=keys.public["coordinator"]) if secure else {})) for n in names}
    text = f"workers: 2\nreplicas: {replicas}\nkv_tokens: {pool}\npolicy: {policy}\nsplit: even\n"
    with HandCluster(text + (f"keys: {keys.lists}" if secure else ""), [(n, (), own[n]) for n in names]) as c:
        c.words = keys.words("client") if secure else ()
        c.wait(lambda s: all(r["state"] == "ready" for r in s["replicas"]), 120)
        yield c


def texts(n_tokens):
    """A text of so many tokens for each group, of words that are one token each."""
    words = "the river stone light under seven garden old north cold paper house small white open long road night water door".split()
    rng = random.Random(5)
    return [" " + " ".join(rng.choice(words) for _ in range(n_tokens)) for _ in range(GROUPS)]


def positions(c):
    caches = [r["prefix_cache"] for r in c.status()["replicas"]]
    return sum(x["tokens_saved"] for x in caches), sum(x["tokens_computed"] for x in caches)


def ttfts(c, prompts):
    """Milliseconds to each prompt's first token, AT_ONCE under way."""
    probe = subprocess.Popen([program("stream_probe"), c.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asked, took, left = {}, [], list(enumerate(prompts))

    def ask():
        if left:
            i, prompt = left.pop(0)
            asked[i] = time.monotonic()
            probe.stdin.write(f"{i} 4 0 1 {prompt}\n")
            probe.stdin.flush()
        else:
            probe.stdin.close() if not probe.stdin.closed else None
    for _ in range(AT_ONCE):
        ask()
    for line in probe.stdout:
        e = json.loads(line)
        if "status" in e:
            assert e["status"] == "OK", e
            ask()
        elif e["tokens"] and e["first"] == 0:
            took.append(1000 * (e["at_ns"] / 1e9 - asked[e["id"]]))
    assert probe.wait() == 0 and len(took) == len(prompts)
    return sorted(took)


def routed(c, shared, seed, rates):
    """1,000 / p50 of TTFT over prompts of all groups in random order."""
    rng = random.Random(seed)
    groups = [g for _ in range(REQUESTS // GROUPS) for g in rng.sample(range(GROUPS), GROUPS)]
    before = positions(c)
    took = ttfts(c, [shared[g] + f" {rng.randrange(10**OWN):0{OWN}}" for g in groups])
    saved, computed = (b - a for a, b in zip(before, positions(c)))
    rates.append(saved / (saved + computed))
    return 1000 / took[math.ceil(len(took) / 2) - 1]


def decode(c, tokens):
    r = run_json(program("flotilla"), "bench", "--cluster", c.address, "--json", "--clients", "8", "--requests", "8", "--prompt-tokens",
                 "16", "--tokens", str(tokens), "--seed", str(next(seeds)), *c.words)
    assert r["failed"] == 0 and r["tokens"] == 8 * tokens
    return r["tokens_per_s"]


def cpu_seconds(c):
    total = 0
    for p in (c.coordinator, *c.processes.values()):
        with open(f"/proc/{p.pid}/stat") as f:
            total += sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def tokens_a_cpu_second(c, tokens):
    before = cpu_seconds(c)
    decode(c, tokens)
    return 8 * tokens / (cpu_seconds(c) - before)


def alone(secure, of, tokens):
    """In a cluster of its own: of two at once, the first would have its threads pinned to cores, and the second not."""
    with cluster(1, 4096, secure) as c:
        decode(c, 16)  # what a first load makes ready
        return of(c, tokens)


def main():
    p = options(__doc__)
    p.add_argument("--tokens", type=int, default=128, help="of an answer, for keys against plaintext (128)")
    o = p.parse_args()
    lines, shared, turn = Lines(o), texts(PREFIX), itertools.count(2)
    routing = "TTFT p50: round robin / auto"
    keys = {"decode tokens/s: keys / plaintext": decode, "tokens a CPU second: keys / plaintext": tokens_a_cpu_second}
    if lines.wanted(routing):
        with cluster(2, POOL) as auto, cluster(2, POOL, policy="round_robin") as robin:
            of_auto, of_robin = [], []
            result = lines.compare(routing, lambda: routed(auto, shared, next(turn) // 2, of_auto),
                                   lambda: routed(robin, shared, next(turn) // 2, of_robin), 2.0)
            for name, rates in (("auto", of_auto[1:]), ("round robin", of_robin[1:])):
                result["hit_rate, " + name] = rates
                print(f"hit rate, {name}: {min(rates):.3f} .. {max(rates):.3f}")
    for title, of in keys.items():
        lines.compare(title, lambda: alone(True, of, o.tokens), lambda: alone(False, of, o.tokens), 0.95)
    lines.finish()


if __name__ == "__main__":
    main()
