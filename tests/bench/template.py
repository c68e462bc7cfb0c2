"""A prompt of 100 messages, each of 500 characters, by every chat template of the reference's source that takes such
a conversation: at most 5 ms each, the fastest of 20. Prints the slowest ones."""
import glob, json, os, subprocess, sys

BIN = os.environ.get("FLOTILLA_BIN") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "bin")
MOST_MS, TAKEN_LEAST = 5.0, 60


def main():
    paths = glob.glob(os.path.join(os.environ["FLOTILLA_LLAMA_SOURCE"], "vendor/llama.cpp/models/templates/*.jinja"))
    messages = json.dumps([{"role": "assistant" if i % 2 else "user", "content": f"{i} " + "words of a sentence. " * 24}
                           for i in range(100)])
    rows = []
    for path in paths:
        r = subprocess.run([os.path.join(BIN, "template_bench"), path, "20"], input=messages, capture_output=True, text=True)
        if r.returncode == 0:
            rows.append((json.loads(r.stdout), os.path.basename(path)))
    rows.sort(key=lambda x: -x[0]["ms"])
    for figures, name in rows[:5]:
        print(f"{figures['ms']:.2f} ms (compiled in {figures['compile_ms']:.2f} ms, {figures['steps']} steps) {name}")
    holds = len(rows) >= TAKEN_LEAST and rows[0][0]["ms"] <= MOST_MS
    print(f"{len(rows)} of {len(paths)} templates, at most {rows[0][0]['ms']:.2f} ms: {'holds' if holds else 'FAILS'} (figure {MOST_MS})")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
