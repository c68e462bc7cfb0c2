"""The peers: llama.cpp and ik_llama.cpp, its fastest fork for CPUs, built once, in the cache, from the source packages that
deploy/fetch.py gets; and what their benchmarks measure.

llama.cpp gets every instruction set of this machine but AMX; ik_llama.cpp what its own `native` finds, and the better of its two
ways with weights: as they are in the file, and repacked when it starts.
"""
import json, os, re, subprocess, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy"))
import fetch
from ratio import machine

# One row of llama-batched-bench's table: prompt, tokens, streams, positions, then seconds and tokens a second, in turn of the
# prompt, of what is decoded, and of both.
ROW = re.compile(r"\|" + r"\s*(\d+)\s*\|" * 4 + r"\s*([\d.]+)\s*\|" * 6 + r"\s*$", re.M)
TRIALS = 2  # of each way, to choose the better


def sets():
    """GGML's names of the instruction sets that the build of llama.cpp is given."""
    _, _, flags = machine()
    wanted = {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "BMI2": "bmi2"}
    if "avx512_vnni" in flags:
        wanted.update(AVX512="avx512f", AVX512_VBMI="avx512vbmi", AVX512_VNNI="avx512_vnni", AVX512_BF16="avx512_bf16")
    return sorted(n for n, f in wanted.items() if f in flags)


def build(name, source, folder, programs, *options):
    """Paths of the programs in the build in `folder`, which is made if they are not there. source() is called then only."""
    paths = [os.path.join(folder, "bin", p) for p in programs]
    if not all(os.path.exists(p) for p in paths):
        common = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF"]
        print(f"building {' and '.join(programs)} of {name} (ten minutes and more)", file=sys.stderr)
        subprocess.run(["cmake", "-S", source(), "-B", folder, *common, *options], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", folder, "--target", *programs, "-j", str(os.cpu_count())],
                       check=True, stdout=subprocess.DEVNULL)
    return paths


def llama_programs(*names, server=False):
    """Paths of llama-bench and the like, or, with server, of llama-server and ggml-rpc-server."""
    have = sets()
    folder = os.path.join(fetch.CACHE, f"llama-cpp-{fetch.LLAMA}-" + "-".join(have).lower() + ("-server" if server else ""))
    on = "ON" if server else "OFF"
    return build("llama.cpp", lambda: os.path.join(fetch.llama_source(), "vendor", "llama.cpp"), folder, names, "-DGGML_NATIVE=OFF",
                 "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", f"-DLLAMA_BUILD_SERVER={on}",
                 f"-DGGML_RPC={on}", *[f"-DGGML_{n}=ON" for n in have])


def ik_programs(*names):
    return build("ik_llama.cpp", lambda: os.path.join(fetch.ik_source(), "vendor", "ik_llama.cpp"), os.path.join(fetch.CACHE, f"ik-llama-cpp-{fetch.IK}-native"),
                 names, "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_EXAMPLES=ON", "-DLLAMA_BUILD_SERVER=OFF")


def run(words):
    """What a program prints; it may leave files in its folder."""
    with tempfile.TemporaryDirectory() as folder:
        r = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        if r.returncode:
            raise RuntimeError(f"{os.path.basename(words[0])}: status {r.returncode}: {(r.stdout + r.stderr)[-500:]}")
        return r.stdout, r.stderr


class Peer:
    """ways: more words for llama-bench, and for llama-batched-bench, of each way to run it."""

    def __init__(self, name, bench, batched, ways):
        self.name, self.bench, self.batched, self.ways = name, bench, batched, ways

    def speed(self, way, model, threads, prompt, tokens):
        """Tokens a second of one sequence."""
        out, _ = run([self.bench, "-m", model, "-p", str(prompt), "-n", str(tokens), "-t", str(threads), "-r", "1", "-o", "json",
                      *self.ways[way][0]])
        results, _ = json.JSONDecoder().raw_decode(out[out.index("[\n"):])  # it may say other things before
        return results[0]["avg_ts"]

    def streams(self, way, model, threads, depth, tokens, counts):
        """Tokens a second of so many sequences, each of which decodes so many tokens behind `depth` positions."""
        out, err = run([self.batched, "-m", model, "-t", str(threads), "-c", str(max(counts) * (depth + tokens) + 256 * max(counts)),
                        "-b", "2048", "-ub", "512", "-npp", str(depth), "-ntg", str(tokens), "-npl", ",".join(map(str, counts)),
                        *self.ways[way][1]])
        rows = {int(m[3]): float(m[8]) for m in ROW.finditer(out + "\n" + err)}
        if set(rows) != set(counts):
            raise RuntimeError(f"{self.name}: no rows of {counts} streams in:\n{(out + err)[-2000:]}")
        return rows

    def best(self, measure):
        """The way of the largest measure(way) of TRIALS each."""
        if len(self.ways) == 1:
            return 0
        return max(range(len(self.ways)), key=lambda way: max(measure(way) for _ in range(TRIALS)))


def llama():
    return Peer("llama.cpp", *llama_programs("llama-bench", "llama-batched-bench"), [([], [])])


def ik():
    return Peer("ik_llama.cpp", *ik_programs("llama-bench", "llama-batched-bench"), [([], []), (["-rtr", "1"], ["-rtr"])])
