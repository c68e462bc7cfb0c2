"""Speculation: one stream through chains whose stages stand apart (tests/lib/delayed.py), with drafts against without, pipelined
against one run at a time; and what it costs where it cannot gain. `--curve`: tokens/s against the delay of a link, as JSON and SVG.

    draft.py [--only 'recorded|ngram'] [--pairs N] [--out FILE] [--curve FOLDER]
"""
import contextlib, json, os, statistics, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from ratio import BIN, MODEL, Lines, compare, options

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
from cluster import QWEN, QWEN_LARGE, HandCluster, local, run
from delayed import DelayedCluster, measure
from rewriting import prompts

KEYS = "kv_tokens: 8192\n"
SECONDS = 0.005  # one way, where a line names no other
STORY = [dict(prompt="Once upon a time there was a lighthouse", tokens=160, ignore_eos=True)]
# A text is rewritten once on each side: what was said before would be drafts, too.
REWRITING = [dict(prompt=p, special=True, tokens=100) for p in prompts()]
COMPLETIONS = [dict(prompt=p, tokens=96, ignore_eos=True) for p in (
    "def fibonacci(n):\n    ", "class Stack:\n    def __init__(self):\n", "import json\n\ndef load(path):\n    ",
    "# Returns the words of a text, sorted by how often they occur.\ndef words(text):\n    ", "def binary_search(items, wanted):\n    ",
    "def is_prime(n):\n    ", "class Matrix:\n    def __init__(self, rows, columns):\n", "def parse_date(text):\n    ")]


def record(path, tasks):
    """The perfect draft of these tasks: what the engine says alone."""
    with open(path, "w") as f:
        for task in tasks:
            r = local(**task)
            f.write(" ".join(map(str, r["prompt_tokens"] + r["tokens"])) + "\n")


class Side:
    """Streams of one cluster, task after task. What they say is compared with the engine alone, and drafts are counted."""

    def __init__(self, cluster, tasks, **kw):
        self.cluster, self.tasks, self.kw, self.n = cluster, tasks, kw, 0
        self.speculation = dict(runs=0, drafted=0, accepted=0)

    def __call__(self):
        task = self.tasks[self.n % len(self.tasks)]
        self.n += 1
        r = self.cluster.generate(**task, **self.kw)
        for key in self.speculation:
            self.speculation[key] += r.get("speculation", {}).get(key, 0)
        return r["timings"]["tokens_per_s"]


def told(cluster):
    """Of all replicas: how often a run was sent before the answer to the last had come, rows whose answer was not used."""
    s = cluster.status()
    return {k: sum(r["speculation"][k] for r in s["replicas"]) for k in ("runs", "drafted", "accepted", "early", "wasted")}


@contextlib.contextmanager
def near(draft, model=MODEL):
    """Two workers of this machine, without relays."""
    workers = [(f"w{i}", (), dict(threads=max(1, os.cpu_count() // 2))) for i in (1, 2)]
    with HandCluster(f"workers: 2\nsplit: even\n{KEYS}draft: {json.dumps(draft)}", workers, model=model) as c:
        c.wait(lambda s: s["ready"], 600)
        yield c


@contextlib.contextmanager
def cluster(stages, seconds, draft, *more):
    with DelayedCluster(stages, seconds, KEYS + f"draft: {json.dumps(draft)}\n" + "".join(more)) as c:
        yield c


def against_off(title, opened, tasks, figure, pairs):
    with opened as c:
        r = compare(title, Side(c, tasks), Side(c, tasks, draft="off"), figure, pairs)
        r["speculation"] = told(c)
        print(f"{title}  {r['speculation']}", flush=True)
        return r


def against_synchronous(title, stages, seconds, draft, tasks, figure, pairs):
    with cluster(stages, seconds, draft) as a, cluster(stages, seconds, draft, "draft_pipelined: false\n") as b:
        r = compare(title, Side(a, tasks), Side(b, tasks), figure, pairs)
        r["speculation"], r["synchronous"] = told(a), told(b)
        print(f"{title}  {r['speculation']} against {r['synchronous']}", flush=True)
        if not r["speculation"]["early"] or r["synchronous"]["early"]:
            r["holds"], r["verdict"] = False, "no run was early, or one was that should not be"
        return r


def clients(title, figure, pairs):
    """16 streams at once, without a delay."""
    def rate(c):
        words = ("bench", "--cluster", c.address, "--scenario", "closed", "--clients", "16", "--requests", "32", "--prompt-tokens", "64",
                 "--tokens", "64", "--json")
        r = run(*words)
        assert r.returncode == 0, r.stderr.decode()
        return json.loads(r.stdout)["tokens_per_s"]
    with near("auto") as a, near("off") as b:
        r = compare(title, lambda: rate(a), lambda: rate(b), figure, pairs)
        r["speculation"] = told(a)
        print(f"{r['title']}  {r['speculation']}", flush=True)
        return r


def known_lines(pairs, folder):
    """Title and run of each line. A title begins with the line's name."""
    recorded, poor = "recorded:" + os.path.join(folder, "texts.ids"), os.path.join(folder, "third.gguf")

    def on_record(stages, figure):
        def run(title):
            record(recorded[9:], STORY)
            return against_off(title, cluster(stages, SECONDS, recorded), STORY, figure, pairs)
        return run

    def on_poor(title):
        import smaller
        smaller.write(MODEL, poor, layers=10)
        return against_off(title, cluster(4, SECONDS, poor), STORY, 0.97, pairs)

    def off(opened, tasks, figure):
        return lambda title: against_off(title, opened, tasks, figure, pairs)

    return {
        "recorded-2: the perfect draft, 2 stages": on_record(2, 2.2),
        "recorded-4: likewise, 4 stages": on_record(4, 3.0),
        "recorded-8: likewise, 8 stages": on_record(8, 4.5),
        "ngram-4: rewriting, 4 stages": off(cluster(4, SECONDS, "ngram"), REWRITING, 2.5),
        "pipelined-4: rewriting, 4 stages, pipelined / synchronous":
            lambda title: against_synchronous(title, 4, SECONDS, "ngram", REWRITING, 1.6, pairs),
        "pipelined-2: rewriting, 2 stages 100 ms apart, pipelined / synchronous":
            lambda title: against_synchronous(title, 2, 0.1, "ngram", REWRITING, 2.0, pairs),
        "poor-4: a third of the layers as draft, 4 stages": on_poor,
        "clients: 16, auto / off": lambda title: clients(title, 0.97, pairs),
        # Qwen2.5-Coder 1.5B, whose files the long form of the tests has.
        "qwen-model: 1.5B, 0.5B as draft, completions": off(near(QWEN, QWEN_LARGE), COMPLETIONS, 0.97),
        "qwen-auto: 1.5B, 0.5B or ngram, completions": off(near(f"auto:{QWEN}", QWEN_LARGE), COMPLETIONS, 0.97),
        "qwen-ngram: 1.5B, rewriting": off(near("ngram", QWEN_LARGE), REWRITING, 1.5),
    }


def curve(folder, pairs):
    """Tokens/s at each delay, the median of `pairs`: off, one run at a time, pipelined."""
    points = []
    with tempfile.TemporaryDirectory() as d:
        recorded = "recorded:" + os.path.join(d, "texts.ids")
        record(recorded[9:], STORY)
        with cluster(4, 0, recorded) as a, cluster(4, 0, recorded, "draft_pipelined: false\n") as b:
            for ms in (0, 1, 5, 20, 100):
                a.relays.delay(ms / 1000)
                b.relays.delay(ms / 1000)
                sides = dict(off=Side(a, STORY, draft="off"), synchronous=Side(b, STORY), pipelined=Side(a, STORY))
                rates = {name: [] for name in sides}
                for i in range(pairs + 1):
                    for name, side in sides.items():
                        rate = side()
                        rates[name] += [rate] if i else []  # the first warms up
                points.append(dict(ms=ms, rates=rates, medians={n: statistics.median(r) for n, r in rates.items()}))
                print(ms, points[-1]["medians"], flush=True)
    with open(os.path.join(folder, "draft.json"), "w") as f:
        json.dump(points, f, indent=1)
    draw(points, os.path.join(folder, "draft.svg"))


def draw(points, path):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "draft"
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(6, 4))
    for name in ("pipelined", "synchronous", "off"):
        axes.plot([p["ms"] for p in points], [p["medians"][name] for p in points], marker="o", label=name)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("log")
    axes.set_xlabel("delay of a link, one way (ms)")
    axes.set_ylabel("tokens/s of one stream, four stages")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main():
    p = options(__doc__)
    p.add_argument("--curve", default="", metavar="FOLDER", help="where to draw tokens/s against the delay, instead of the lines")
    o = p.parse_args()
    trip, rate = measure(SECONDS)
    print(f"relay of {1e3 * SECONDS:g} ms: round trip {1e3 * trip:.2f} ms, {rate / 1e6:.0f} MB/s", flush=True)
    if o.curve:
        curve(o.curve, o.pairs)
        return
    with tempfile.TemporaryDirectory() as folder:
        lines = Lines(o)
        for title, run_line in known_lines(o.pairs, folder).items():
            if lines.wanted(title) and (QWEN or not title.startswith("qwen")):
                lines.add(run_line(title))
        lines.finish()


if __name__ == "__main__":
    main()
