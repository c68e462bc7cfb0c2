"""One stream through two workers on this machine, each with all threads, against one process: decode
rate as the client sees it, 128 tokens."""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from ratio import BIN, MODEL, Lines, options

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
from cluster import Cluster, local


def main():
    p = options(__doc__, pairs=9)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    o = p.parse_args()
    lines = Lines(o)
    what = dict(tokens=128, ignore_eos=True)
    with Cluster(workers=2, threads=o.threads, kv_tokens=4096) as c:
        lines.compare("2 workers / 1 process, decode", lambda: c.generate("Once upon a time", **what)["timings"]["tokens_per_s"],
                      lambda: local("Once upon a time", threads=o.threads, **what)["timings"]["tokens_per_s"], 0.85)
    lines.finish()


if __name__ == "__main__":
    main()
