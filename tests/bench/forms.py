"""What it costs that an answer must have a form: tokens/s after the first token with a form, as a ratio of those of a free answer
of as many tokens to the same prompt. At least 0.95, since masks may take 5 % of a token's time: SmolLM2, one stream on the engine
alone with one thread, and 16 streams over HTTP on two workers with one thread each.

The forms' answers cannot end before the limit. Each run begins without any mask (the engine's process is new), so what is
measured has the making of masks in it, but for those of the first token.
"""
import itertools, json, os, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, MODEL, Lines, options, run_json

os.environ.setdefault("FLOTILLA_BIN", BIN)
os.environ.setdefault("FLOTILLA_MODEL", MODEL)
import http_load
from cluster import Cluster, program

PROMPT = "A list of people, as JSON:"
TOKENS, CLIENTS, REQUESTS = 128, 16, 32
seeds = itertools.count(1)

STRING = {"type": "string", "minLength": 40, "maxLength": 80}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "minLength": 4, "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                           "kind": {"enum": ["customer", "supplier", "employee"]},
                                           "born": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
                                           "notes": {"type": "array", "items": {"type": "string", "minLength": 8, "maxLength": 30}, "minItems": 2, "maxItems": 3}},
          "required": ["name", "age", "kind", "born", "notes"], "additionalProperties": False}
SCHEMAS = {"strings": {"type": "array", "items": STRING, "minItems": 60},
           "objects": {"type": "array", "items": PERSON, "minItems": 60},
           "numbers": {"type": "array", "items": {"type": "number", "minimum": -1000, "maximum": 1000}, "minItems": 400}}
GRAMMAR = 'root ::= line{80}\nline ::= "- " word (" " word){4,12} ".\\n"\nword ::= [a-zA-Z]{1,12}\n'


def engine(*words):
    """Tokens a second after the first."""
    r = run_json(program("flotilla"), "generate", "--model", MODEL, "--json", "--threads", "1", "--prompt", PROMPT, "--tokens", str(TOKENS), "--temp", "1",
                 "--seed", str(next(seeds)), *words)
    assert len(r["tokens"]) == TOKENS and r["finish_reason"] == "length", r
    assert ("constrained" in r) == ("--ignore-eos" not in words), r
    return (TOKENS - 1) * 1000.0 / r["timings"]["decode_ms"]


def streams(c, **kw):
    """Tokens a second of 16 clients."""
    bodies = [dict(prompt=PROMPT, max_tokens=TOKENS, temperature=1, seed=next(seeds), **kw) for _ in range(REQUESTS)]
    seconds, usage = http_load.run(c.http, "/v1/completions", bodies, CLIENTS)
    assert all(u["completion_tokens"] == TOKENS for u in usage), usage
    return REQUESTS * TOKENS / seconds


def main():
    lines = Lines(options(__doc__).parse_args())
    with tempfile.TemporaryDirectory() as folder:
        forms = {}
        for name, text in dict({n: json.dumps(s) for n, s in SCHEMAS.items()}, grammar=GRAMMAR).items():
            forms[name] = ["--grammar" if name == "grammar" else "--json-schema", os.path.join(folder, name)]
            with open(forms[name][1], "w") as f:
                f.write(text)
        for name, words in forms.items():
            lines.compare(f"one stream, {name} / free", lambda: engine(*words), lambda: engine("--ignore-eos"), 0.95)
    title = "16 streams, objects / free"
    if lines.wanted(title):
        with Cluster(workers=2, threads=1, kv_tokens=32768) as c:
            lines.compare(title, lambda: streams(c, json_schema=SCHEMAS["objects"]), lambda: streams(c, ignore_eos=True), 0.95)
    lines.finish()


if __name__ == "__main__":
    main()
