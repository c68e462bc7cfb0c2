"""Decode with two threads on two cores while one other process is busy, against the same alone: a process that stays on the
second core, and one that may go to either. More than one half cannot be hoped for where the weights come from memory, and one
thread reads about half as fast as two; a team that waited for the thread without a core each time would be far below."""
import os, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from ratio import BIN, MODEL, Lines, options, run_json

FIGURE = 0.45


class Busy:
    """A process that computes on some cores, until the end of the with block."""

    def __init__(self, cores):
        self.cores = cores

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"],
                                        preexec_fn=lambda: os.sched_setaffinity(0, self.cores))

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def main():
    p = options(__doc__)
    p.add_argument("--model", default=MODEL)
    p.add_argument("--tokens", type=int, default=800)
    o = p.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("this needs two cores")

    def decode():
        return run_json(os.path.join(BIN, "flotilla"), "bench", "--model", o.model, "-p", "0", "-n", str(o.tokens), "--threads", "2",
                        "--json", preexec_fn=lambda: os.sched_setaffinity(0, cores))["decode_tokens_per_s"]

    def beside(where):
        with Busy(where):
            return decode()

    lines = Lines(o)
    lines.compare("beside a process on one of two cores", lambda: beside({cores[1]}), decode, FIGURE)
    lines.compare("beside a process on either", lambda: beside(set(cores)), decode, FIGURE)
    lines.finish()


if __name__ == "__main__":
    main()
