"""A prompt of 100 messages, each of 500 characters, by every chat template of the reference's source that takes such
a conversation: at most 5 ms each, the fastest of 20. Prints the slowest ones. A line is a template; the last is their number."""
import glob, json, os, subprocess

from ratio import BIN, Lines, options

MOST_MS, TAKEN_LEAST = 5.0, 60


def main():
    lines = Lines(options(__doc__, pairs=None).parse_args())
    paths = glob.glob(os.path.join(os.environ["FLOTILLA_LLAMA_SOURCE"], "vendor/llama.cpp/models/templates/*.jinja"))
    messages = json.dumps([{"role": "assistant" if i % 2 else "user", "content": f"{i} " + "words of a sentence. " * 24}
                           for i in range(100)])
    rows = []
    for path in paths:
        if lines.wanted(os.path.basename(path), "templates"):
            r = subprocess.run([os.path.join(BIN, "template_bench"), path, "20"], input=messages, capture_output=True, text=True)
            if r.returncode == 0:
                rows.append(dict(title=os.path.basename(path), **json.loads(r.stdout)))
    rows.sort(key=lambda r: -r["ms"])
    for r in rows[:5]:
        print(f"{r['ms']:.2f} ms (compiled in {r['compile_ms']:.2f} ms, {r['steps']} steps) {r['title']}")
    for r in rows:
        lines.add(dict(r, figure=MOST_MS, holds=r["ms"] <= MOST_MS))
    if lines.wanted("templates"):
        lines.add(dict(title="templates", taken=len(rows), of=len(paths), figure=TAKEN_LEAST, holds=len(rows) >= TAKEN_LEAST))
    if rows:
        holds = all(r["holds"] for r in lines.results)
        print(f"{len(rows)} of {len(paths)} templates, at most {rows[0]['ms']:.2f} ms: {'holds' if holds else 'FAILS'} (figure {MOST_MS})")
    lines.finish()


if __name__ == "__main__":
    main()
