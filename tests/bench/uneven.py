"""An uneven cluster: two workers with one core and one thread each, one of them with the scalar kernels, and 4 streams.

    tokens/s as the planner cuts / with `split: even`          at least 1.2
    the slower worker has fewer layers, and each stage's predicted time of a Step is within 20 % of the measured one
"""
import itertools, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, MODEL, Lines, options, run_json

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
    p = options(__doc__)
    p.add_argument("--tokens", type=int, default=32)
    o = p.parse_args()
    lines, title = Lines(o), "4 streams, uneven workers: measured / even"
    with cluster("measured") as c:
        c.wait(lambda s: s["ready"], 120)
        with cluster("even") as even:
            even.wait(lambda s: s["ready"], 120)
            lines.compare(title, lambda: load(c, o.tokens), lambda: load(even, o.tokens), 1.2)
        if not lines.wanted(title):
            load(c, o.tokens)  # so that stages have measured a Step
        workers = c.workers()
    more = []
    layers = {w["name"]: w["layers"][1] - w["layers"][0] + 1 for w in workers}
    more.append(dict(title="layers", layers=layers, holds=layers["slow"] < layers["quick"]))
    for w in workers:
        step = w["step_ms"]
        ratio = step["predicted"] / step["measured"]
        more.append(dict(title=f"{w['name']}: predicted / measured ms of a Step", ratio=ratio, figure="0.8 .. 1.2",
                         holds=0.8 <= ratio <= 1.2, **step))
    for r in filter(lambda r: lines.wanted(r["title"]), more):
        print(f"{r['title']}: {r.get('layers') or round(r['ratio'], 3)}: {'holds' if r['holds'] else 'does not hold'}")
        lines.add(r)
    lines.finish()


if __name__ == "__main__":
    main()
