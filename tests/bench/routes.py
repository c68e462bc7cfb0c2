"""Routing by `flotilla simulate`: 8 FIFO replicas, every policy on the same traces, and whether `auto` holds its figures.

    python3 tests/bench/routes.py --trace conversation=conversation_trace.jsonl --trace synthetic=synthetic_trace.jsonl

The traces are those of the Mooncake project (FAST '25 release). To them comes `even`, a made-up workload with other prefix
lengths (400 groups that are asked equally often). With --more two others come that are known not to hold at all points.

At each point (a trace, caches of 10 % and 2 % of its distinct blocks, loads 0.5, 0.8, 1.1 and 1.5) `auto` is held against the
best of all other rules, for each figure another one if need be, `cost` with weights 0.2, 0.5 and 1:

    TTFT p50 <= 1.15 x, p90 <= 1.05 x, p99 <= 1.05 x; hit rate >= 0.97 x; the busiest replica's work <= 1.15 x the mean

and on two replicas, with each trace at concurrency 1 and one prefix group alone at concurrency 16, the replica that serves more
has at most 0.6 of the requests.

Hit rates are of all blocks of all prompts. Nothing is measured with a clock: the same commit gives the same table.
"""
import concurrent.futures, json, os, sys

from ratio import BIN, Lines, commit, options, run_json

CACHES, LOADS = ("10%", "2%"), (0.5, 0.8, 1.1, 1.5)
RULES = [("round_robin", None), ("least_loaded", None), ("affinity", None), ("cost", 0.2), ("cost", 0.5), ("cost", 1), ("product", None),
         ("near_min", None), ("auto", None)]
MADE_UP = {"even": "synthetic:requests=6000,groups=400,shared=48,own=4,skew=0"}
MORE = {"uneven": "synthetic:requests=8000,groups=200,shared=16,own=8,skew=0.5", "skewed": "synthetic"}
TTFT = ("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms")
MOST, LEAST_HITS, MOST_WORK, MOST_SHARE = (1.15, 1.05, 1.05), 0.97, 1.15, 0.6
ONE_GROUP = "synthetic:groups=1"
COLOURS = ("#999", "#c9c", "#6a6", "#fb0", "#f80", "#d40", "#0aa", "#a5a", "#00f")
KEEP = (*TTFT, "hit_rate", "bound_hit_rate", "max_over_mean_work")


def name_of(rule):
    return rule[0] if rule[1] is None else f"{rule[0]} {rule[1]}"


def larger_share(trace, concurrency):
    words = ("--trace", trace, "--replicas", "2", "--concurrency", str(concurrency), "--json")
    return run_json(os.path.join(BIN, "flotilla"), "simulate", *words)["largest_share"]


def run(trace, cache, load, rule):
    words = ["--trace", trace, "--replicas", "8", "--cache-blocks", cache, "--load", str(load), "--policy", rule[0], "--json"]
    words += ["--weight", str(rule[1])] if rule[1] is not None else []
    return run_json(os.path.join(BIN, "flotilla"), "simulate", *words)


def judge(point):
    """auto against the best of the others: five ratios, and which of them do not hold."""
    auto, others = point["rules"]["auto"], [v for k, v in point["rules"].items() if k != "auto"]
    ratios = [auto[k] / min(r[k] for r in others) for k in TTFT]
    hits = auto["hit_rate"] / max(r["hit_rate"] for r in others)
    misses = [k for k, x, most in zip(TTFT, ratios, MOST) if x > most]
    misses += ["hit_rate"] if hits < LEAST_HITS else []
    misses += ["max_over_mean_work"] if auto["max_over_mean_work"] > MOST_WORK else []
    point.update(ratios=ratios, hits=hits, work=auto["max_over_mean_work"], misses=misses, holds=not misses)


def title_of(p):
    return f"{p['trace']}, caches {p['cache']}, load {p['load']}"


def print_point(p):
    print(f"\n{title_of(p)}: TTFT in block times, hits of all blocks of all prompts")
    for name, r in p["rules"].items():
        print(f"  {name:13} p50 {r[TTFT[0]]:9.1f}  p90 {r[TTFT[1]]:9.1f}  p99 {r[TTFT[2]]:9.1f}  hits {r['hit_rate']:.3f}"
              f"  max/mean work {r['max_over_mean_work']:.3f}")
    print(f"  auto / best   p50 {p['ratios'][0]:9.3f}  p90 {p['ratios'][1]:9.3f}  p99 {p['ratios'][2]:9.3f}  hits {p['hits']:.3f}: "
          + ("holds" if p["holds"] else "does not hold: " + ", ".join(p["misses"])), flush=True)


def table(points):
    """The same in short, as Markdown."""
    lines = ["| trace | caches | load | p50 | p90 | p99 | hits | max/mean work | |", "|---|---|---|---|---|---|---|---|---|"]
    for p in points:
        lines.append(f"| {p['trace']} | {p['cache']} | {p['load']} | " + " | ".join(f"{x:.2f}" for x in p["ratios"])
                     + f" | {p['hits']:.3f} | {p['work']:.2f} | {'holds' if p['holds'] else 'does not hold'} |")
    return "\n".join(lines)


def plot(points, path):
    """TTFT p90 over load, a panel for each trace and cache, a line for each rule; the scale is logarithmic."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "routes"
    from matplotlib import pyplot
    traces = list(dict.fromkeys(p["trace"] for p in points))
    figure, panels = pyplot.subplots(len(CACHES), len(traces), figsize=(4 * len(traces), 3.4 * len(CACHES)), squeeze=False)
    for row, cache in zip(panels, CACHES):
        for panel, trace in zip(row, traces):
            mine = [p for p in points if (p["trace"], p["cache"]) == (trace, cache)]
            for rule, colour in zip(mine[0]["rules"] if mine else (), COLOURS):
                panel.plot([p["load"] for p in mine], [p["rules"][rule][TTFT[1]] for p in mine], color=colour, label=rule,
                           linewidth=2.5 if rule == "auto" else 1)
            panel.set_yscale("log")
            panel.set_title(f"{trace}, caches {cache}", fontsize=10)
            panel.set_xlabel("load")
            panel.set_ylabel("TTFT p90, block times")
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    p = options(__doc__, pairs=None)
    p.add_argument("--trace", action="append", default=[], metavar="NAME=FILE")
    p.add_argument("--more", action="store_true", help="the workloads that are known not to hold, too")
    p.add_argument("--rules", default="", help="what --out wrote before: the other rules' figures are taken from there, since they"
                   " change only with the model or a rule")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--plot", default="", help="a file for the plot, as SVG (needs matplotlib)")
    o = p.parse_args()
    lines = Lines(o)
    if any("=" not in t for t in o.trace):
        p.error("--trace is NAME=FILE")
    traces = {**dict(t.split("=", 1) for t in o.trace), **MADE_UP, **(MORE if o.more else {})}
    known, rules_commit = {}, None
    if o.rules:
        with open(o.rules) as f:
            before = json.load(f)
        rules_commit = before.get("rules_commit") or before["commit"]
        known = {(x["trace"], x["cache"], x["load"]): x["rules"] for x in before["points"]}
    points = [x for x in (dict(trace=t, cache=c, load=l) for t in traces for c in CACHES for l in LOADS) if lines.wanted(title_of(x))]
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        runs = []
        for x in points:
            x["rules"] = dict(known.get((x["trace"], x["cache"], x["load"]), {}))
            x["rules"].pop("auto", None)
            due = [rule for rule in RULES if name_of(rule) not in x["rules"]]
            runs.append({name_of(rule): pool.submit(run, traces[x["trace"]], x["cache"], x["load"], rule) for rule in due})
        for point, row in zip(points, runs):
            point["rules"].update({name: {k: r.result()[k] for k in KEEP} for name, r in row.items()})
            judge(point)
            print_point(point)
    print("\n" + table(points))
    for t in traces:
        mine = [x["holds"] for x in points if x["trace"] == t]
        if mine:
            print(f"{t}: auto holds at {sum(mine)} of {len(mine)} points")
    shares = []
    for name, trace, concurrency in [*((t, traces[t], 1) for t in traces), ("one group", ONE_GROUP, 16)]:
        title = f"two replicas, {name}, concurrency {concurrency}"
        if lines.wanted(title):
            share = larger_share(trace, concurrency)
            shares.append(dict(trace=name, concurrency=concurrency, share=share, holds=share <= MOST_SHARE))
            print(f"{title}: the larger share is {share:.3f}: " + ("holds" if share <= MOST_SHARE else "does not hold"))
    if not points and not shares:
        p.error(f"--only: no line matches '{o.only}'")
    if o.out:
        with open(o.out, "w") as f:
            json.dump(dict(commit=commit(), rules_commit=rules_commit or commit(),
                           command=" ".join(os.path.basename(w) for w in sys.argv), points=points, shares=shares), f, indent=1)
            f.write("\n")
    if o.plot:
        plot(points, o.plot)
    sys.exit(0 if all(x["holds"] for x in points + shares) else 1)


if __name__ == "__main__":
    main()
