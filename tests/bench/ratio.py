"""Pairs, medians and intervals, for every script of this folder."""
import json, math, os, random, statistics, subprocess, sys

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


def interval(ratios, resamples=10000, seed=1):
    """95 % bootstrap interval of the median: independent draws with replacement."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return medians[int(resamples * 0.025)], medians[int(resamples * 0.975) - 1]


def compare(title, a, b, figure, pairs=7, warm_up=1, within=None):
    """a and b return a rate. Prints and returns whether median(a / b) meets the figure; or, where `within` is a share, whether it
    is as close to it."""
    for _ in range(warm_up):
        a(), b()
    ratios, rates = [], []
    for i in range(pairs):
        x, y = a(), b()
        ratios.append(x / y)
        rates.append((x, y))
        print(f"{title}  pair {i + 1}: {x:9.1f} / {y:9.1f} = {x / y:.3f}", flush=True)
    median, (low, high) = statistics.median(ratios), interval(ratios)
    noisy = (high - low) / median > 0.20
    least, most = (figure, math.inf) if within is None else (figure * (1 - within), figure * (1 + within))
    holds = least <= median <= most and low >= least * 0.95 and high <= most * 1.05 and not noisy
    verdict = "machine too noisy: run again" if noisy else "holds" if holds else "does not hold"
    wanted = f"figure {figure}" if within is None else f"figure {figure}, within {100 * within:g} %"
    print(f"{title}  median {median:.3f}, 95 % interval {low:.3f} .. {high:.3f}; {wanted}: {verdict}", flush=True)
    return dict(title=title, figure=figure, rates=rates, ratios=ratios, median=median, low=low, high=high, verdict=verdict,
                holds=holds)


def run_json(*words, **kw):
    r = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, **kw)
    return json.loads(r.stdout)


def finish(results, out=""):
    name, cores, _ = machine()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
    document = dict(machine=name, cores=cores, commit=commit, command=" ".join(os.path.basename(w) for w in sys.argv), results=results)
    print(json.dumps(document))
    if out:
        with open(out, "w") as f:
            json.dump(document, f, indent=1)
    sys.exit(0 if all(r["holds"] for r in results) else 1)
