"""This build against an older one, in turn: is anything slower than before?

    tests/bench/before.py OLD_BIN      the older build's folder of programs (build/bin of a checkout)

The engine alone (prefill of 128, decode of 64) on both demo models, and a cluster of two workers with one thread each: one
stream, 16 clients, and prompts of 512 tokens. Each line is new / old, at least 0.98. A sample of the engine is the best of three
short runs, each a process of its own, and one of the cluster has a cluster of its own: a process may keep for its life the rate
that its place in memory gave it. Compare a build with itself first: where that is far from 1, this machine cannot tell.
"""
import itertools, os, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, CACHE, MODEL, Lines, options, run_json

GEMMA = os.environ.get("FLOTILLA_GEMMA", os.path.join(CACHE, "models", "gemma-3-270m-Q4_K_M.gguf"))
FIGURE = 0.98
BEST_OF = 3
seeds = itertools.count(1)


def engine(binary, model, threads, prompt, tokens):
    words = [os.path.join(binary, "flotilla"), "bench", "--model", model, "-p", str(prompt), "-n", str(tokens), "--threads", str(threads),
             "--json"]
    return max(run_json(*words)["prompt_tokens_per_s" if prompt else "decode_tokens_per_s"] for _ in range(BEST_OF))


class Up:
    """`flotilla up` of one build, until the end of the with block."""

    def __init__(self, binary):
        self.binary = binary

    def __enter__(self):
        self.process = subprocess.Popen([os.path.join(self.binary, "flotilla"), "up", "--model", MODEL, "--workers", "2", "--threads", "1",
                                         "--kv-tokens", "32768"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready client="):
            sys.exit(f"{self.binary}: no cluster")
        self.address = line.split()[1].removeprefix("client=")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def load(self, clients, requests, prompt, tokens, seed):
        r = run_json(os.path.join(self.binary, "flotilla"), "bench", "--cluster", self.address, "--clients", str(clients), "--requests",
                     str(requests), "--prompt-tokens", str(prompt), "--tokens", str(tokens), "--seed", str(seed), "--json")
        if r["failed"]:
            sys.exit(f"{self.binary}: {r['failed']} requests failed")
        return r


def main():
    p = options(__doc__, pairs=11)
    p.add_argument("old")
    o = p.parse_args()
    lines = Lines(o)

    def pair(title, of):
        lines.compare(title, lambda: of(new), lambda: of(old), FIGURE)

    def load(binary, *words):
        with Up(binary) as up:
            return 1e6 / up.load(*words)["wall_ms"]

    new, old = BIN, o.old
    for name, model in (("SmolLM2", MODEL), ("Gemma 3", GEMMA)):
        for threads in (1, 2):
            pair(f"{name}, {threads} threads, prefill 128", lambda b: engine(b, model, threads, 128, 0))
            pair(f"{name}, {threads} threads, decode 64", lambda b: engine(b, model, threads, 0, 64))
    # New and old of a pair get the same prompts, which no request before them had.
    for title, clients, requests, prompt, tokens in (("one stream", 1, 1, 16, 256), ("16 clients", 16, 32, 32, 64),
                                                     ("8 prompts of 512 tokens", 8, 8, 512, 1)):
        turn = itertools.count(2 * next(seeds) * 1000)
        pair(title, lambda b: load(b, clients, requests, prompt, tokens, next(turn) // 2))
    lines.finish()


if __name__ == "__main__":
    main()
