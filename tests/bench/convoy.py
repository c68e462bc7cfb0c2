"""The convoy, live: 100 short requests (32 -> 64 tokens) alone and beside ten long ones (2,048 -> 512). It should pass
as shipped, fail when a prompt is computed in one piece, and fail, with that reason, when a worker stands still
for 700 ms. The verdict is recomputed here from the records of each request."""
import json, os, signal, subprocess, sys, tempfile, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, MODEL, Lines, options

SHORT_ROWS = 100 * (32 + 64)  # of the short requests alone

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
from cluster import Cluster, program


def p99(values):
    values = sorted(values)
    return values[-(-99 * len(values) // 100) - 1]


def run(title, plot="", stop_at=None, **kw):
    with Cluster(workers=2, threads=1, kv_tokens=16384, **kw) as c, tempfile.NamedTemporaryFile("r") as out:
        words = ["--plot", plot] if plot else []
        p = subprocess.Popen([program("flotilla"), "bench", "--cluster", c.address, "--scenario", "convoy", "--json", "--out", out.name,
                              *words], stdout=subprocess.PIPE)
        if stop_at:
            def stop():
                c.wait(lambda s: s["replicas"][0]["workers"][0]["rows"] > stop_at, 600)
                pid = c.workers()[1]["pid"]
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.7)
                os.kill(pid, signal.SIGCONT)
            threading.Thread(target=stop, daemon=True).start()
        summary = json.loads(p.communicate()[0])
        records = [json.loads(line) for line in out]
    itl = {kind: [v for r in records if r["kind"] == kind for v in r["itl_ms"]] for kind in ("baseline", "short")}
    increase = (p99(itl["short"]) / p99(itl["baseline"]) - 1) * 100
    v = summary["convoy"]
    waits = [max([r["queue_ms"], *r["itl_ms"]]) for r in records if r["kind"] == "short"]
    assert abs(increase - v["increase_percent"]) < 1e-3, (increase, v)
    assert abs(max(waits) - v["wait_max_ms"]) < 1e-3, (max(waits), v)
    assert v["pass"] == (increase <= 50 and max(waits) <= 500 and summary["kv_waste_percent"] <= 15), v
    assert summary["failed"] == 0 and {r["prompt_tokens"] for r in records} == {32, 2048}
    print(f"{title}: {'pass' if v['pass'] else 'fail'}; p99 ITL {v['baseline_p99_ms']:.1f} -> {v['convoy_p99_ms']:.1f} ms "
          f"({v['increase_percent']:+.1f} %), longest wait {v['wait_max_ms']:.0f} ms, KV unused {summary['kv_waste_percent']:.1f} %; "
          f"{'; '.join(v['reasons'])}", flush=True)
    return v


def main():
    p = options(__doc__, pairs=None)
    p.add_argument("--plot", default="", help="an SVG of the first run")
    o = p.parse_args()
    lines = Lines(o)

    def line(title, right, **kw):
        """right: whether a verdict is as it should be."""
        if lines.wanted(title):
            verdict = run(title, **kw)
            lines.add(dict(title=title, convoy=verdict, holds=right(verdict)))
            print(f"{title}: {'holds' if lines.results[-1]['holds'] else 'does not hold'}", flush=True)

    line("as shipped", lambda v: v["pass"], plot=o.plot)
    line("prompts in one piece", lambda v: not v["pass"], chunk=4096, set=["step_ms=60000"])
    line("a worker stopped for 700 ms", lambda v: not v["pass"] and any("waited" in r for r in v["reasons"]),
         stop_at=SHORT_ROWS * 3 // 2)
    lines.finish()


if __name__ == "__main__":
    main()
