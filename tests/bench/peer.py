"""`flotilla bench --model` against `llama-bench`, in turn, same threads, same model, same run.

llama.cpp comes from the source package llama-cpp-python==0.3.36, built once with every instruction
set of this machine but AMX.
"""
import argparse, os, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy"))
import fetch
from fetch import CACHE
from ratio import BIN, MODEL, compare, finish, machine, run_json


def llama_bench():
    """Path of llama-bench, built if it is not there."""
    _, cores, flags = machine()
    wanted = {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "BMI2": "bmi2"}
    if "avx512_vnni" in flags:
        wanted.update(AVX512="avx512f", AVX512_VBMI="avx512vbmi", AVX512_VNNI="avx512_vnni", AVX512_BF16="avx512_bf16")
    have = sorted(n for n, f in wanted.items() if f in flags)
    build = os.path.join(CACHE, f"llama-cpp-{fetch.LLAMA}-" + "-".join(have).lower())
    program = os.path.join(build, "bin", "llama-bench")
    if os.path.exists(program):
        return program, have
    source = os.path.join(fetch.llama_source(), "vendor", "llama.cpp")
    options = [f"-DGGML_{n}=ON" for n in have]
    subprocess.run(["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF",
                    "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
                    "-DLLAMA_BUILD_SERVER=OFF", "-DBUILD_SHARED_LIBS=OFF", *options],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--target", "llama-bench", "-j", str(cores)], check=True,
                   stdout=subprocess.DEVNULL)
    return program, have


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", default=MODEL)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--pairs", type=int, default=7)
    o = p.parse_args()
    peer, sets = llama_bench()
    print(f"llama.cpp with {' '.join(sets)}; {o.threads} threads; {os.path.basename(o.model)}")

    def ours(field, prompt, tokens):
        def rate():
            return run_json(os.path.join(BIN, "flotilla"), "bench", "--model", o.model, "-p", str(prompt), "-n", str(tokens),
                            "--threads", str(o.threads), "--json")[field]
        return rate

    def theirs(prompt, tokens):
        def rate():
            return run_json(peer, "-m", o.model, "-p", str(prompt), "-n", str(tokens), "-t", str(o.threads), "-r", "1",
                            "-o", "json")[0]["avg_ts"]
        return rate

    finish([compare("decode 128 ", ours("decode_tokens_per_s", 0, 128), theirs(0, 128), 1.0, o.pairs),
            compare("prefill 512", ours("prompt_tokens_per_s", 512, 0), theirs(512, 0), 1.0, o.pairs)])


if __name__ == "__main__":
    main()
