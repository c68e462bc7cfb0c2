"""What a step of 2 to 32 rows takes, as a multiple of the step of one row beside it (`flotilla bench --model --rows`): three 1B
shapes with random weights, and SmolLM2. A pair is a process, in which 21 steps of each are measured in turn.

Figures are bars, at most, on machines with AVX-512 VNNI; on others they are printed. --plot draws the medians.
"""
import os, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import shapes
from ratio import BIN, MODEL, Lines, bars_apply, draw, options, run_json

ROWS = (2, 4, 8, 16, 32)
EIGHT_BITS = {2: 1.1, 4: 1.2, 8: 1.4, 16: 2.0}
BARS = {"1B Q4_K_M": {2: 1.15, 4: 1.3, 8: 1.7, 16: 2.6}, "1B Q4_0": EIGHT_BITS, "1B Q8_0": EIGHT_BITS,
        "SmolLM2 Q4_1": {4: 1.6, 8: 2.2, 16: 3.5}}


def steps(model, threads):
    """Milliseconds of a step of so many rows, and of the step of one row beside it: medians."""
    r = run_json(os.path.join(BIN, "flotilla"), "bench", "--model", model, "-p", "0", "-n", "0", "--threads", str(threads),
                 "--rows", ",".join(map(str, ROWS)), "--json")
    return {s["rows"]: (s["step_ms"], s["one_ms"]) for s in r["rows"]}


def main():
    p = options(__doc__)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--plot", default="", metavar="FILE", help="an SVG of rows against time")
    o = p.parse_args()
    lines, bars, curves = Lines(o), bars_apply(), {}
    for name, figures in BARS.items():
        titles = {n: f"{name}, {n} rows / 1" for n in ROWS}
        if not lines.wanted(*titles.values()):
            continue
        with tempfile.TemporaryDirectory() as folder:
            model = MODEL
            if name.startswith("1B "):
                model = os.path.join(folder, "model.gguf")
                shapes.write("llama-3.2-1b", name[3:], model)
            runs = []
            for i in range(o.pairs + 1):  # the first warms up
                runs.append(steps(model, o.threads))
                print(f"{name}  run {i}: " + ", ".join(f"{n} rows {x / y:.2f}" for n, (x, y) in runs[-1].items()), flush=True)
        results = [lines.judge(titles[n], [r[n] for r in runs[1:]], figures.get(n) if bars else None, most=True) for n in ROWS]
        curves[name] = [(1, 1.0), *((n, r["median"]) for n, r in zip(ROWS, results) if r)]
    if o.plot and curves:
        draw(o.plot, {f"{o.threads} threads": curves}, "rows of a step", "time, x a step of one row")
    lines.finish()


if __name__ == "__main__":
    main()
