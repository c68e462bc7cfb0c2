"""What every script of this folder has in common: pairs, medians, intervals and verdicts; the options --pairs, --only and --out."""
import argparse, json, math, os, random, re, statistics, subprocess, sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "flotilla")
BIN = os.environ.get("FLOTILLA_BIN", os.path.join(ROOT, "build", "bin"))
MODEL = os.environ.get("FLOTILLA_MODEL", os.path.join(CACHE, "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))


def machine():
    with open("/proc/cpuinfo") as f:
        text = f.read()
    name = next(l.split(": ")[1] for l in text.splitlines() if l.startswith("model name"))
    flags = set(next(l for l in text.splitlines() if l.startswith("flags")).split(": ")[1].split())
    return name, os.cpu_count(), flags


def bars_apply():
    """Figures of the engine's speed are meant for machines with AVX-512 VNNI; on others it is printed alone. Says so, once."""
    applies = "avx512_vnni" in machine()[2]
    if not applies:
        print("this machine has no AVX-512 VNNI: figures are printed, no bar applies", flush=True)
    return applies


def interval(ratios, resamples=10000, seed=1):
    """95 % bootstrap interval of the median: independent draws with replacement."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return medians[int(resamples * 0.025)], medians[int(resamples * 0.975) - 1]


def judge(title, rates, figure, within=None, most=False):
    """Prints and returns whether the median of the pairs' ratios, x / y, is at least the figure; with `most`, at most; or, where
    `within` is a share, as close to it. figure None: there is no bar, and it holds."""
    ratios = [x / y for x, y in rates]
    median, (low, high) = statistics.median(ratios), interval(ratios)
    noisy = (high - low) / median > 0.20
    wanted, holds = "", True
    if figure is not None:
        least, upper = (0, figure) if most else (figure, math.inf) if within is None else (figure * (1 - within), figure * (1 + within))
        holds = least <= median <= upper and low >= least * 0.95 and high <= upper * 1.05 and not noisy
        wanted = f"figure {figure}" + (", at most" if most else f", within {100 * within:g} %" if within is not None else "") + ": "
    verdict = "machine too noisy: run again" if noisy else "no bar" if figure is None else "holds" if holds else "does not hold"
    print(f"{title}  median {median:.3f}, 95 % interval {low:.3f} .. {high:.3f}; {wanted}{verdict}", flush=True)
    return dict(title=title, figure=figure, rates=rates, ratios=ratios, median=median, low=low, high=high, verdict=verdict, holds=holds)


def compare(title, a, b, figure, pairs=7, warm_up=1, **kw):
    """a and b return a rate; they are called in turn, and judged as above."""
    for _ in range(warm_up):
        a(), b()
    rates = []
    for i in range(pairs):
        x, y = a(), b()
        rates.append((x, y))
        print(f"{title}  pair {i + 1}: {x:9.1f} / {y:9.1f} = {x / y:.3f}", flush=True)
    return judge(title, rates, figure, **kw)


def options(doc, pairs=7):
    """A parser with the options of every script. pairs None: the script measures no pairs."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if pairs:
        p.add_argument("--pairs", type=int, default=pairs, help=f"of runs of both sides, for each line ({pairs})")
    p.add_argument("--only", default="", metavar="EXPRESSION", help="the lines whose title matches this regular expression (all)")
    p.add_argument("--out", default="", metavar="FILE", help="a file for what was measured, as JSON")
    return p


class Lines:
    """The lines of a script that --only names, and what came out of them."""

    def __init__(self, o):
        self.o, self.results = o, []

    def wanted(self, *titles):
        """Whether any of them is."""
        return any(re.search(self.o.only, t) for t in titles)

    def compare(self, title, a, b, figure, **kw):
        """compare(), if the line is wanted; its result, or None."""
        return self.add(compare(title, a, b, figure, self.o.pairs, **kw)) if self.wanted(title) else None

    def judge(self, title, rates, figure, **kw):
        """judge(), if the line is wanted, of what was measured for several lines together."""
        return self.add(judge(title, rates, figure, **kw)) if self.wanted(title) else None

    def add(self, result):
        self.results.append(result)
        return result

    def finish(self):
        """Prints all as JSON, writes it to --out, and ends with status 0 if all lines hold."""
        if not self.results:
            sys.exit(f"--only: no line matches '{self.o.only}'")
        finish(self.results, self.o.out)


def draw(path, panels, x, y):
    """An SVG with a panel for each title; panels: {title: {label: [(x, y), ...]}}."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = y
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False)
    for axis, (title, curves) in zip(axes[0], panels.items()):
        for label, points in curves.items():
            axis.plot(*zip(*points), marker="o", label=label)
        axis.set_title(title)
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        axis.set_ylim(bottom=0)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def run_json(*words, **kw):
    r = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, **kw)
    return json.loads(r.stdout)


def commit():
    return subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()


def finish(results, out=""):
    name, cores, _ = machine()
    document = dict(machine=name, cores=cores, commit=commit(), command=" ".join(os.path.basename(w) for w in sys.argv), results=results)
    print(json.dumps(document))
    if out:
        with open(out, "w") as f:
            json.dump(document, f, indent=1)
    sys.exit(0 if all(r["holds"] for r in results) else 1)
