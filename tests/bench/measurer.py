"""What a load measurer that is not ours says of a cluster, as a ratio of what `flotilla bench --cluster` says: both give it 16
clients with the same kind of load, answers of 64 tokens to a short prompt that they have in common. They must agree within 5 %,
streamed and not, all greedily. The measurer (infermark, from PyPI) speaks HTTP to the gateway, ours protobuf to the coordinator.

One worker with one thread, so that on two cores there is one for the clients: the measurer is a Python program.
"""
import json, os, subprocess, sys, venv

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, CACHE, MODEL, Lines, options, run_json

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
from cluster import Cluster, program
from raw_http import post

PACKAGE = "infermark==0.3.0"
CLIENTS, REQUESTS, TOKENS = 16, 32, 64
PROMPT = "Explain the theory of relativity in simple terms."
# In the measurer's own Python: its report of one load, which it begins with three requests that do not count.
THEIRS = """
import json, sys
from infermark import BenchmarkConfig, BenchmarkMode, run_benchmark
url, model, prompt, mode, clients, requests, tokens = sys.argv[1:]
r = run_benchmark(BenchmarkConfig(url=url, model=model, prompt=prompt, mode=BenchmarkMode(mode), concurrency_levels=[int(clients)],
                                  n_requests=int(requests), max_tokens=int(tokens), extra_body={"ignore_eos": True, "temperature": 0})).results[0]
print(json.dumps({"tokens_per_s": r.tokens_per_second, "errors": r.errors, "n": r.n_success, "seconds": r.total_duration}))
"""


def python():
    """Of an environment that has the package; made once, beside the models."""
    folder = os.path.join(CACHE, PACKAGE.replace("==", "-"))
    found = os.path.join(folder, "bin", "python")
    if not os.path.exists(os.path.join(folder, "installed")):
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE], check=True)
        open(os.path.join(folder, "installed"), "w").close()
    return found


def theirs(c, mode):
    r = run_json(python(), "-c", THEIRS, c.http + "/v1", os.path.basename(MODEL), PROMPT, mode, *map(str, (CLIENTS, REQUESTS, TOKENS)))
    # Every answer has all its tokens, whether it counted events or read the usage; characters of two tokens are one event.
    count = r["tokens_per_s"] * r["seconds"]
    assert r["errors"] == {} and r["n"] == REQUESTS and 0.98 * REQUESTS * TOKENS <= count <= REQUESTS * TOKENS + 0.5, r
    return r["tokens_per_s"]


def ours(c, prompt_tokens):
    r = run_json(program("flotilla"), "bench", "--cluster", c.address, "--json", "--seed", "1", "--clients", str(CLIENTS), "--requests",
                 str(REQUESTS), "--prompt-tokens", str(prompt_tokens), "--shared-prefix", str(prompt_tokens), "--tokens", str(TOKENS))
    assert r["failed"] == 0 and r["tokens"] == REQUESTS * TOKENS, r
    return r["tokens_per_s"]


def main():
    lines = Lines(options(__doc__).parse_args())
    with Cluster(workers=1, threads=1, kv_tokens=16384) as c:
        n = post(c.http, "/tokenize", {"messages": [{"role": "user", "content": PROMPT}]}).json()["count"]
        for title, mode in (("infermark / flotilla bench, streamed", "streaming"), ("infermark / flotilla bench, not streamed", "non_streaming")):
            lines.compare(title, lambda: theirs(c, mode), lambda: ours(c, n), 1, within=0.05)
    lines.finish()


if __name__ == "__main__":
    main()
