"""Programs of llama.cpp, the peer, from the source package llama-cpp-python (deploy/fetch.py): built once, in the
cache, with every instruction set of this machine but AMX."""
import os, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy"))
import fetch
from ratio import machine


def sets():
    """GGML's names of the instruction sets that the build is given."""
    _, _, flags = machine()
    wanted = {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "BMI2": "bmi2"}
    if "avx512_vnni" in flags:
        wanted.update(AVX512="avx512f", AVX512_VBMI="avx512vbmi", AVX512_VNNI="avx512_vnni", AVX512_BF16="avx512_bf16")
    return sorted(n for n, f in wanted.items() if f in flags)


def programs(*names, server=False):
    """Paths of llama-bench, or, with server, of llama-server and ggml-rpc-server."""
    have = sets()
    build = os.path.join(fetch.CACHE, f"llama-cpp-{fetch.LLAMA}-" + "-".join(have).lower() + ("-server" if server else ""))
    paths = [os.path.join(build, "bin", n) for n in names]
    if all(os.path.exists(p) for p in paths):
        return paths
    source = os.path.join(fetch.llama_source(), "vendor", "llama.cpp")
    on = "ON" if server else "OFF"
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
               "-DLLAMA_BUILD_EXAMPLES=OFF", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
               f"-DLLAMA_BUILD_SERVER={on}", f"-DGGML_RPC={on}", *[f"-DGGML_{n}=ON" for n in have]]
    print(f"building {' and '.join(names)} of llama.cpp (some minutes)", file=sys.stderr)
    subprocess.run(["cmake", "-S", source, "-B", build, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--target", *names, "-j", str(os.cpu_count())], check=True, stdout=subprocess.DEVNULL)
    return paths
