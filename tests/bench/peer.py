"""`flotilla bench --model` against llama.cpp and ik_llama.cpp, in turn, same threads, same model, same run; and against what the
machine gives: the memory's read rate (decode) and its integer products (prefill), which `flotilla bench` measures itself.

SmolLM2, Gemma 3 270M, and the Qwen models where FLOTILLA_QWEN and FLOTILLA_QWEN_LARGE name them; and Llama's shapes of 1B and 8B
with random weights. Figures are bars on machines with AVX-512 VNNI; on others they are printed.
"""
import os, re, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import peers
import shapes
from peers import fetch
from ratio import BIN, MODEL, Lines, bars_apply, options, run_json

LARGE_BYTES = 16 << 30  # of memory, to measure a model of 5 GB: the file in the page cache, and the weights of one program
# Of decode against the memory's read rate and of prefill against the integer peak, by the types of a 1B shape.
MEMORY = {"Q4_0": 0.90, "Q8_0": 0.90, "Q4_K_M": 0.85, "Q6_K": 0.85, "IQ4_XS": 0.80, "MXFP4": 0.80}
PEAK = {"Q4_0": 0.75, "Q8_0": 0.75, "Q4_K_M": 0.65}


def bench(model, threads, prompt, tokens, depth=0):
    return run_json(os.path.join(BIN, "flotilla"), "bench", "--model", model, "-p", str(prompt), "-n", str(tokens),
                    "--depth", str(depth), "--threads", str(threads), "--json")


class Model:
    """The lines of one model file. open() gives its path, when a line is wanted."""

    def __init__(self, lines, name, threads, bars, others, open_file):
        self.lines, self.name, self.threads, self.bars, self.others, self.open_file = lines, name, threads, bars, others, open_file
        self.path = None

    def wanted(self, title):
        if not self.lines.wanted(title):
            return False
        self.path = self.path or self.open_file()
        return self.path is not None

    def figure(self, figure):
        return figure if self.bars else None

    def against_peers(self, what, prompt, tokens, figures):
        """figures: by the peer's name."""
        field = "prompt_tokens_per_s" if prompt else "decode_tokens_per_s"
        for peer in self.others:
            title = f"{self.name} {what} / {peer.name}"
            if not self.wanted(title):
                continue
            try:
                best = peer.best(lambda way: peer.speed(way, self.path, self.threads, prompt, tokens))
                r = self.lines.compare(title, lambda: bench(self.path, self.threads, prompt, tokens)[field],
                                       lambda: peer.speed(best, self.path, self.threads, prompt, tokens),
                                       self.figure(figures.get(peer.name)))
                r["options"] = " ".join(peer.ways[best][0])
            except RuntimeError as e:
                print(f"{title}: not measured: {e}", flush=True)

    def against_machine(self, what, prompt, tokens, ours, machine, figure):
        """Two fields of the same run of `flotilla bench`."""
        title, last = f"{self.name} {what}", {}
        if not self.wanted(title):
            return

        def run():
            last.update(bench(self.path, self.threads, prompt, tokens))
            return last[ours]
        self.lines.compare(title, run, lambda: last[machine], self.figure(figure))

    def of_memory(self, tokens, figure):
        self.against_machine("decode / memory's rate", 0, tokens, "decode_gb_per_s", "read_gb_per_s", figure)

    def of_peak(self, figure):
        self.against_machine("prefill / integer peak", 512, 0, "prompt_gmac_per_s", "peak_gmac_per_s", figure)

    def at_a_depth(self, depth, figure):
        title = f"{self.name} prefill at {depth:,} / at 0"
        if self.wanted(title):
            self.lines.compare(title, lambda: bench(self.path, self.threads, 512, 0, depth)["prompt_tokens_per_s"],
                               lambda: bench(self.path, self.threads, 512, 0)["prompt_tokens_per_s"], self.figure(figure))


def shape(name, mix, folder):
    """Writes the file, and gives its path."""
    path = os.path.join(folder, f"{name}-{mix}.gguf")
    if not os.path.exists(path):
        shapes.write(name, mix, path)
    return path


def memory_bytes():
    with open("/proc/meminfo") as f:
        return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", f.read())[1])


def large_shape(name, mix, folder):
    if memory_bytes() < LARGE_BYTES:
        print(f"{name}: not measured: less than {LARGE_BYTES >> 30} GiB of memory are free", flush=True)
        return None
    return shape(name, mix, folder)


def table(results):
    wide = max(len(r["title"]) for r in results)
    print(f"{'':{wide}} {'median':>8} {'95 % interval':>18} {'figure':>7}")
    for r in results:
        print(f"{r['title']:{wide}} {r['median']:8.3f} {r['low']:8.3f} .. {r['high']:6.3f} {r['figure'] or '':7} {r['verdict']}")


def main():
    p = options(__doc__)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    o = p.parse_args()
    print(f"llama.cpp with {' '.join(peers.sets())}; {o.threads} threads", flush=True)
    lines, bars, others = Lines(o), bars_apply(), [peers.llama(), peers.ik()]

    def model(name, open_file):
        return Model(lines, name, o.threads, bars, others, open_file)

    for name, open_file in (("SmolLM2 Q4_1", lambda: MODEL), ("Gemma 3 270M Q4_K_M", lambda: fetch.model("gemma"))):
        m = model(name, open_file)
        m.against_peers("decode", 0, 128, {"llama.cpp": 1.2, "ik_llama.cpp": 0.98})
        m.against_peers("prefill", 512, 0, {"llama.cpp": 1.5, "ik_llama.cpp": 1.3})
    for name, variable in (("Qwen2.5-Coder 0.5B", "FLOTILLA_QWEN"), ("Qwen2.5-Coder 1.5B Q4_K_M", "FLOTILLA_QWEN_LARGE")):
        if os.environ.get(variable):
            m = model(name, lambda: os.environ[variable])
            m.against_peers("decode", 0, 64, {"llama.cpp": 0.98, "ik_llama.cpp": 0.98})
            m.against_peers("prefill", 512, 0, {})
    for mix in MEMORY:
        with tempfile.TemporaryDirectory() as folder:
            m = model(f"1B {mix}", lambda: shape("llama-3.2-1b", mix, folder))
            m.of_memory(64, MEMORY[mix])
            m.of_peak(PEAK.get(mix))
            m.against_peers("decode", 0, 32, {"llama.cpp": 1.0, "ik_llama.cpp": 0.98})
            m.against_peers("prefill", 512, 0, {"llama.cpp": 1.0, "ik_llama.cpp": 1.6 if mix in PEAK else None})
            if mix == "Q4_K_M":
                m.at_a_depth(4096, 0.75)
    with tempfile.TemporaryDirectory() as folder:
        m = model("8B Q4_K_M", lambda: large_shape("llama-3.1-8b", "Q4_K_M", folder))
        m.of_memory(16, 0.85)
        m.against_peers("decode", 0, 16, {"llama.cpp": 0.98, "ik_llama.cpp": 0.98})
    if lines.results:
        table(lines.results)
    lines.finish()


if __name__ == "__main__":
    main()
