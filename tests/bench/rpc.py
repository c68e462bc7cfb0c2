"""Sixteen clients, whose prompts share 1,000 tokens: flotilla with two workers against llama-server over two
ggml-rpc-servers, one thread each, on the same machine in turn. Tokens a second of all clients, at least 2."""
import concurrent.futures, json, os, random, socket, subprocess, sys, time, urllib.error, urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import peers
from ratio import BIN, MODEL, Lines, options, run_json

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
from cluster import Cluster, program

CLIENTS, REQUESTS, PREFIX, PROMPT, TOKENS = 16, 32, 1000, 1032, 64


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """llama-server, all layers on two ggml-rpc-servers."""

    def __enter__(self):
        server, rpc = peers.llama_programs("llama-server", "ggml-rpc-server", server=True)
        ports, self.port = [free_port(), free_port()], free_port()
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes = [subprocess.Popen([rpc, "-H", "127.0.0.1", "-p", str(p), "-t", "1"], **quiet) for p in ports]
        time.sleep(1)
        self.processes.append(subprocess.Popen(
            [server, "-m", MODEL, "--rpc", ",".join(f"127.0.0.1:{p}" for p in ports), "-ngl", "99", "-t", "1", "--no-warmup",
             "-np", str(CLIENTS), "-c", str(CLIENTS * 1280), "--host", "127.0.0.1", "--port", str(self.port)], **quiet))
        end = time.monotonic() + 120
        while not self.ready():
            if time.monotonic() > end or self.processes[-1].poll() is not None:
                raise RuntimeError("llama-server does not become ready")
            time.sleep(0.2)
        return self

    def __exit__(self, *_):
        for p in reversed(self.processes):
            p.terminate()
            p.wait()

    def ready(self):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    def complete(self, prompt):
        body = json.dumps(dict(prompt=prompt, n_predict=TOKENS, ignore_eos=True, temperature=0, cache_prompt=True)).encode()
        r = urllib.request.Request(f"http://127.0.0.1:{self.port}/completion", body, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(r, timeout=600))["tokens_predicted"]

    def tokens_per_s(self):
        rng = random.Random(1)
        prefix = [rng.randrange(1000, 40000) for _ in range(PREFIX)]
        prompts = [prefix + [rng.randrange(1000, 40000) for _ in range(PROMPT - PREFIX)] for _ in range(REQUESTS)]
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            counts = list(pool.map(self.complete, prompts))
        assert counts == [TOKENS] * REQUESTS, counts
        return sum(counts) / (time.monotonic() - start)


def ours(c):
    r = run_json(program("flotilla"), "bench", "--cluster", c.address, "--json", "--seed", "1", "--scenario", "shared-prefix", "--clients",
                 str(CLIENTS), "--requests", str(REQUESTS), "--prompt-tokens", str(PROMPT), "--tokens", str(TOKENS))
    assert r["failed"] == 0 and r["tokens"] == REQUESTS * TOKENS, r
    return r["tokens_per_s"]


def main():
    lines = Lines(options(__doc__).parse_args())
    with Cluster(workers=2, threads=1, kv_tokens=32768) as c, Server() as s:
        lines.compare("16 clients, shared prefix: flotilla / llama-server over RPC", lambda: ours(c), s.tokens_per_s, 2.0)
    lines.finish()


if __name__ == "__main__":
    main()
