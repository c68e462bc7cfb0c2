"""`flotilla bench --model` against `llama-bench`, in turn, same threads, same model, same run: SmolLM2,
Gemma 3 270M, and Llama 3.2 1B's shape with random weights, whose decode rate is also held against what
the memory gives. Figures are bars on machines with AVX-512 VNNI.
"""
import argparse, os, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import llama
import shapes
from llama import fetch
from ratio import BIN, MODEL, compare, finish, run_json


def bench(model, threads, prompt, tokens):
    return run_json(os.path.join(BIN, "flotilla"), "bench", "--model", model, "-p", str(prompt), "-n", str(tokens),
                    "--threads", str(threads), "--json")


class Pair:
    """Ours and theirs on one model file."""

    def __init__(self, peer, model, threads, pairs):
        self.peer, self.model, self.threads, self.pairs = peer, model, threads, pairs

    def against_peer(self, title, prompt, tokens, figure):
        field = "prompt_tokens_per_s" if prompt else "decode_tokens_per_s"

        def theirs():
            return run_json(self.peer, "-m", self.model, "-p", str(prompt), "-n", str(tokens), "-t", str(self.threads),
                            "-r", "1", "-o", "json")[0]["avg_ts"]
        return compare(title, lambda: bench(self.model, self.threads, prompt, tokens)[field], theirs, figure, self.pairs)

    def against_memory(self, title, tokens, figure):
        """GB/s of the file's bytes that a decoded token touches, against a read loop in the same run."""
        last = {}

        def ours():
            last.update(bench(self.model, self.threads, 0, tokens))
            return last["decode_gb_per_s"]
        return compare(title, ours, lambda: last["read_gb_per_s"], figure, self.pairs)


def table(results):
    print(f"{'':28} {'median':>8} {'95 % interval':>18} {'figure':>7}")
    for r in results:
        print(f"{r['title']:28} {r['median']:8.3f} {r['low']:8.3f} .. {r['high']:6.3f} {r['figure']:7} {r['verdict']}")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("--only", default="", help="rows whose title contains this")
    p.add_argument("--out", default="", help="a file for the JSON")
    o = p.parse_args()
    sets, (peer,) = llama.sets(), llama.programs("llama-bench")
    bar = "AVX512_VNNI" in sets  # without VNNI: figures, no bar
    print(f"llama.cpp with {' '.join(sets)}; {o.threads} threads{'' if bar else '; no VNNI: no bar'}")
    results = []

    def row(title, run, *words, figure):
        if o.only in title:
            results.append(run(title, *words, figure if bar else 0.0))

    for name, model in (("SmolLM2 Q4_1", MODEL), ("Gemma 3 270M Q4_K_M", fetch.model("gemma"))):
        pair = Pair(peer, model, o.threads, o.pairs)
        row(f"{name} decode", pair.against_peer, 0, 128, figure=1.2)
        row(f"{name} prefill", pair.against_peer, 512, 0, figure=1.5)
    for mix in ("Q4_0", "Q4_K_M", "Q6_K", "Q8_0"):
        with tempfile.TemporaryDirectory() as work:
            model = os.path.join(work, mix + ".gguf")
            if o.only in f"1B {mix}" or f"1B {mix}" in o.only:
                shapes.write("llama-3.2-1b", mix, model)
                pair = Pair(peer, model, o.threads, o.pairs)
                row(f"1B {mix} of memory's rate", pair.against_memory, 64, figure=0.70)
                row(f"1B {mix} decode", pair.against_peer, 0, 32, figure=1.0)
                row(f"1B {mix} prefill", pair.against_peer, 512, 0, figure=1.0)
    table(results)
    finish(results, o.out)


if __name__ == "__main__":
    main()
