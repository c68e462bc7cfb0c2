"""Sequences that are decoded together: tokens a second of 1, 4 and 16 of them behind 64 positions each (`flotilla bench --model
--streams`), against one, and against both peers' llama-batched-bench, in turn: a 1B shape with random weights, and SmolLM2.

Figures are bars on machines with AVX-512 VNNI; on others they are printed. --plot draws the medians.
"""
import os, statistics, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import peers
import shapes
from ratio import BIN, MODEL, Lines, bars_apply, draw, options, run_json

COUNTS, DEPTH, TOKENS = (1, 4, 16), 64, 32
# Of so many streams: against one stream, a peer, or the better one of the two.
BARS = {"1B Q4_K_M": {(4, "one"): 2.7, (16, "one"): 5, (4, "the better peer"): 1.8, (16, "the better peer"): 1.8},
        "SmolLM2 Q4_1": {(16, "ik_llama.cpp"): 3}}


def ours(model, threads):
    """Tokens a second of so many streams, and of the one stream beside them."""
    r = run_json(os.path.join(BIN, "flotilla"), "bench", "--model", model, "-p", "0", "-n", "0", "--threads", str(threads), "--depth",
                 str(DEPTH), "--streams", ",".join(map(str, COUNTS)), "--json")
    return {s["streams"]: (s["tokens_per_s"], s["one_tokens_per_s"]) for s in r["streams"]}


class Rates:
    """What a run of each gives, pair by pair."""

    def __init__(self, model, threads, others):
        self.model, self.threads, self.others, self.ours = model, threads, others, []
        self.theirs = {p.name: [] for p in others}
        most = max(COUNTS)
        self.ways = {p.name: p.best(lambda way: self.of(p, way)[most]) for p in others}

    def of(self, peer, way):
        return peer.streams(way, self.model, self.threads, DEPTH, TOKENS, COUNTS)

    def run(self, name, i):
        rates = {"flotilla": {n: r[0] for n, r in self.add(self.ours, ours(self.model, self.threads)).items()}}
        for p in self.others:
            rates[p.name] = self.add(self.theirs[p.name], self.of(p, self.ways[p.name]))
        for who, r in rates.items():
            print(f"{name}  run {i}, {who}: " + ", ".join(f"{n} at once {r[n]:.1f}" for n in COUNTS), flush=True)

    @staticmethod
    def add(to, rates):
        to.append(rates)
        return rates

    def forget_warm_up(self):
        for runs in (self.ours, *self.theirs.values()):
            del runs[0]

    def pairs(self, n, against):
        """Of n streams: our rate and that of `against`, run by run."""
        for i, run in enumerate(self.ours):
            theirs = [r[i][n] for r in self.theirs.values()] if against == "the better peer" else \
                [run[n][1]] if against == "one" else [self.theirs[against][i][n]]
            yield run[n][0], max(theirs)

    def medians(self):
        curves = {name: [(n, statistics.median(r[n] for r in runs)) for n in COUNTS] for name, runs in self.theirs.items()}
        return {"flotilla": [(n, statistics.median(r[n][0] for r in self.ours)) for n in COUNTS], **curves}


def main():
    p = options(__doc__)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--plot", default="", metavar="FILE", help="an SVG of streams against tokens a second")
    o = p.parse_args()
    lines, bars, others, panels = Lines(o), bars_apply(), [peers.llama(), peers.ik()], {}
    for name, figures in BARS.items():
        titles = {(n, against): f"{name}, {n} stream{'s' if n > 1 else ''} / {against}" for n in COUNTS
                  for against in ("one", *(peer.name for peer in others), "the better peer") if n > 1 or against != "one"}
        if not lines.wanted(*titles.values()):
            continue
        with tempfile.TemporaryDirectory() as folder:
            model = MODEL
            if name.startswith("1B "):
                model = os.path.join(folder, "model.gguf")
                shapes.write("llama-3.2-1b", name[3:], model)
            rates = Rates(model, o.threads, others)
            for i in range(o.pairs + 1):
                rates.run(name, i)
            rates.forget_warm_up()
        for (n, against), title in titles.items():
            r = lines.judge(title, list(rates.pairs(n, against)), figures.get((n, against)) if bars else None)
            if r:
                r["options"] = {peer.name: " ".join(peer.ways[rates.ways[peer.name]][1]) for peer in others}
        panels[name] = rates.medians()
    if o.plot and panels:
        draw(o.plot, panels, "streams", "tokens/s of all")
    lines.finish()


if __name__ == "__main__":
    main()
