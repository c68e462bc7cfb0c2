"""An uneven cluster: two workers with one core and one thread each, one of them with the scalar kernels, and 4 streams.

    tokens/s as the planner cuts / with `split: even`          at least 1.2
    the slower worker has fewer layers, and each stage's predicted time of a Step is within 20 % of the measured one
"""
import argparse, itertools, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, MODEL, compare, finish, run_json

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
from cluster import HandCluster, program

seeds = itertools.count(1)
WORKERS = [("slow", ["taskset", "-c", "0"], dict(threads=1, isa="scalar")), ("quick", ["taskset", "-c", "1"], dict(threads=1, isa="avx2"))]


def cluster(split):
    return HandCluster(f"workers: 2\nkv_tokens: 8192\nsplit: {split}", WORKERS)


def load(c, tokens):
    r = run_json(program("flotilla"), "bench", "--cluster", c.address, "--json", "--seed", str(next(seeds)), "--clients", "4",
                 "--requests", "4", "--prompt-tokens", "8", "--tokens", str(tokens))
    assert r["failed"] == 0
    return r["tokens_per_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--out", default="", help="a file for the JSON")
    o = p.parse_args()
    with cluster("measured") as c:
        c.wait(lambda s: s["ready"], 120)
        with cluster("even") as even:
            even.wait(lambda s: s["ready"], 120)
            row = compare("4 streams, uneven workers: measured / even", lambda: load(c, o.tokens), lambda: load(even, o.tokens), 1.2,
                          o.pairs)
        workers = c.workers()
    results = [row]
    layers = {w["name"]: w["layers"][1] - w["layers"][0] + 1 for w in workers}
    results.append(dict(title="layers", layers=layers, holds=layers["slow"] < layers["quick"]))
    for w in workers:
        step = w["step_ms"]
        ratio = step["predicted"] / step["measured"]
        results.append(dict(title=f"{w['name']}: predicted / measured ms of a Step", ratio=ratio, figure="0.8 .. 1.2",
                            holds=0.8 <= ratio <= 1.2, **step))
    for r in results[1:]:
        print(f"{r['title']}: {r.get('layers') or round(r['ratio'], 3)}: {'holds' if r['holds'] else 'does not hold'}")
    finish(results, o.out)


if __name__ == "__main__":
    main()
