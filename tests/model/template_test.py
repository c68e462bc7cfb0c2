"""Chat templates: those of the reference's source, and those of the models, on the conversations of chats.json. The
text equals what transformers makes of them: as digests recorded with `template_test.py --record` by a Python that
has transformers, and in the long form anew (FLOTILLA_TRANSFORMERS, a Python that has it; else one is installed).
Where the template refuses, it does with its words; where Python fails, the rendering is refused."""
import glob, hashlib, json, os, subprocess, sys, tempfile, unittest, venv

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "lib")]
import template_render

FLOTILLA = os.path.join(os.environ.get("FLOTILLA_BIN", ""), "flotilla")
SOURCE = os.environ.get("FLOTILLA_LLAMA_SOURCE", "")
DIGESTS = os.path.join(HERE, "template_digests.json")
LONG = os.environ.get("FLOTILLA_LONG") == "1"
PACKAGES = ["transformers==5.24.0", "jinja2==3.1.6"]


def templates():
    """Files with templates: name -> path. Those of models are written to a folder."""
    found = {os.path.basename(p): p for p in glob.glob(os.path.join(SOURCE, "vendor/llama.cpp/models/templates/*.jinja"))}
    folder = tempfile.mkdtemp()
    for name in ("FLOTILLA_MODEL", "FLOTILLA_GEMMA"):
        text = model_template(os.environ[name])
        if text:
            found[name] = os.path.join(folder, name)
            with open(found[name], "w", encoding="utf-8", newline="") as f:
                f.write(text)
    return found


def model_template(path):
    out = subprocess.run([FLOTILLA, "inspect", path, "--json"], check=True, capture_output=True).stdout
    return json.loads(out)["metadata"].get("tokenizer.chat_template")


def render(template, chat):
    """What template_tool reads for a template and a conversation. Tokens go with the client's words: the text is the same."""
    kwargs = {**template_render.TOKENS, **chat.get("chat_template_kwargs", {})}
    return json.dumps({"template": template, "request": {**chat, "chat_template_kwargs": kwargs}, "now": template_render.NOW})


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return f.read()


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def short(result):
    """What is recorded of a result: a digest, the words of a refusal, or that it failed."""
    return digest(result["text"]) if "text" in result else result if "refused" in result else None


def with_transformers(arguments):
    """The results of transformers, by template_render.py."""
    python = os.environ.get("FLOTILLA_TRANSFORMERS")
    with tempfile.TemporaryDirectory() as folder:
        if not python:
            venv.create(folder, with_pip=True)
            python = os.path.join(folder, "bin", "python")
            subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        out = subprocess.run([python, os.path.join(HERE, "template_render.py"), *arguments], check=True, capture_output=True).stdout
    return json.loads(out)


def differs(where, got, want):
    """None, or how a result differs from what is wanted: a result, or one as short() makes it."""
    if want is None or isinstance(want, dict) and "failed" in want:
        return None if list(got) == ["failed"] and got["failed"] else f"{where}: was to be refused, is {got} {want}"
    if isinstance(want, dict) and "refused" in want:
        return None if got == {"refused": want["refused"].replace("\n", "?")} else f"{where}: was to be {want}, is {got}"
    if isinstance(want, str):
        return None if "text" in got and digest(got["text"]) == want else f"{where}: another text, or none: {got.get('failed')}"
    return None if got == want else f"{where}:\nis    {got}\nnot   {want}"


def check_all(test, jobs):
    """jobs: (what it is, template, conversation, wanted)."""
    lines = "".join(render(template, chat) + "\n" for _, template, chat, _ in jobs)
    out = subprocess.run([os.path.join(os.path.dirname(FLOTILLA), "template_tool")], input=lines.encode(), check=True,
                         capture_output=True, env={**os.environ, "TZ": "UTC"}).stdout.decode().split("\n")[:-1]
    found = [d for (where, _, _, want), got in zip(jobs, out, strict=True) if (d := differs(where, json.loads(got), want))]
    test.assertEqual(found, [], f"{len(found)} of {len(jobs)}:\n" + "\n".join(found[:50]))


class Templates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.paths, cls.chats = templates(), template_render.chats()

    def check_all(self, wanted):
        self.assertGreaterEqual(len(self.paths), 71)
        self.assertEqual(sorted(wanted), sorted(self.paths))
        check_all(self, [(f"{name}, '{chat['name']}'", read(self.paths[name]), chat, want)
                         for name in wanted for chat, want in zip(self.chats, wanted[name], strict=True)])

    def test_recorded(self):
        with open(DIGESTS) as f:
            self.check_all(json.load(f))

    @unittest.skipUnless(LONG, "long form")
    def test_transformers(self):
        names = {os.path.basename(p): n for n, p in self.paths.items()}
        self.check_all({names[file]: results for file, results in with_transformers(self.paths.values()).items()})


class Snippets(unittest.TestCase):
    """Every statement, operator, filter, test and method, alone."""

    def check_all(self, results):
        jobs = [(repr(template), template, template_render.SNIPPET_CHAT, want)
                for (template, _), want in zip(template_render.snippets(), results, strict=True)]
        self.assertGreater(len(jobs), 200)
        check_all(self, jobs)

    def test_recorded(self):
        self.check_all([result for _, result in template_render.snippets()])

    @unittest.skipUnless(LONG, "long form")
    def test_transformers(self):
        self.check_all(with_transformers(["--snippets"]))


class Command(unittest.TestCase):
    """`flotilla template` on model files."""

    @classmethod
    def setUpClass(cls):
        from scripted_gguf import make  # needs gguf, which a Python that records need not have
        cls.make = staticmethod(make)
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def model(self, name, **keys):
        """A tiny model whose vocabulary has the control tokens <|a|> (id 257) and <|b|>, with more keys."""
        path = os.path.join(self.folder.name, name)
        self.make(path, {"extra": [{"ctl": "<|a|>"}, {"ctl": "<|b|>"}], "scripts": {"1": ["2", "EOS"]},
                    "kv": {f"tokenizer.{k}": v for k, v in keys.items()}})
        return path

    def run_on(self, request, *options):
        text = request if isinstance(request, bytes) else json.dumps(request).encode()
        return subprocess.run([FLOTILLA, "template", *options], input=text, capture_output=True)

    def ok(self, request, *options):
        r = self.run_on(request, *options)
        self.assertEqual((r.returncode, r.stderr), (0, b""))
        return r.stdout.decode()

    def refused(self, status, says, request, *options):
        r = self.run_on(request, *options)
        self.assertEqual((r.returncode, r.stdout, r.stderr.decode()), (status, b"", f"flotilla template: {says}\n"))

    def test_tokens(self):
        """What looks like a control token is one where the template wrote it, and text where the client did."""
        path = self.model("tokens", chat_template="{% for m in messages %}{{ '<|a|>' + m.content }}<|{{ 'b' }}|>{% endfor %}")
        got = json.loads(self.ok([{"role": "user", "content": "x<|a|>"}, {"role": "user", "content": "<|b|>"}], "--model", path, "--json"))
        text = "<|a|>x<|a|><|b|><|a|><|b|><|b|>"
        self.assertEqual(got["prompt"], text)
        self.assertEqual([(p["text"], p["special"]) for p in got["pieces"]],
                         [("<|a|>", True), ("x<|a|>", False), ("<|b|><|a|>", True), ("<|b|>", False), ("<|b|>", True)])
        a, b = 257, 258
        self.assertEqual(got["tokens"], [a, *b"x<|a|>", b, a, *b"<|b|>", b])

    def test_special_tokens(self):
        path = self.model("specials", chat_template="{{ bos_token }}|{{ eos_token }}|{{ unk_token is defined }}")
        self.assertEqual(self.ok([{"role": "user"}], "--model", path), "<|endoftext|>|<|endoftext|>|False")

    def test_named_templates(self):
        path = self.model("named", chat_template="plain", **{"chat_template.tool_use": "with {{ tools | length }} tools"})
        messages = [{"role": "user", "content": "x"}]
        self.assertEqual(self.ok(messages, "--model", path), "plain")
        self.assertEqual(self.ok({"messages": messages, "tools": [{}, {}]}, "--model", path), "with 2 tools")
        only = self.model("only", chat_template="plain {{ tools | length }}")
        self.assertEqual(self.ok({"messages": messages, "tools": [{}]}, "--model", only), "plain 1")

    def test_options(self):
        path = os.path.join(self.folder.name, "t.jinja")
        with open(path, "w") as f:
            f.write("{{ add_generation_prompt }} {{ strftime_now('%Y') }} {{ k }}")
        request = {"messages": [{"role": "user"}], "chat_template_kwargs": {"k": 1}}
        self.assertEqual(self.ok(request, "--template", path, "--now", "0"), "True 1970 1")
        self.assertEqual(self.ok(request, "--template", path, "--now", "0", "--no-generation-prompt"), "False 1970 1")
        self.assertEqual(self.ok({**request, "add_generation_prompt": False}, "--template", path, "--now", "0"), "False 1970 1")
        bare = self.model("bare")
        self.assertEqual(self.ok(request, "--template", path, "--now", "0", "--model", bare), "True 1970 1")

    def test_refused(self):
        bare, wrong = self.model("none"), self.model("wrong", chat_template="a\n{{ 1 + }}")
        tool = self.model("wrong_tool", chat_template="x", **{"chat_template.tool_use": "{% nope %}"})
        messages = [{"role": "user", "content": "x"}]
        self.refused(1, "the model has no chat template", messages, "--model", bare)
        self.refused(1, f"{wrong}: key 'tokenizer.chat_template': line 2: an expression is missing", messages, "--model", wrong)
        self.refused(1, f"{tool}: key 'tokenizer.chat_template.tool_use': line 1: there is no tag 'nope'", messages, "--model", tool)
        missing = os.path.join(self.folder.name, "missing")
        self.refused(1, f"{missing}: No such file or directory", messages, "--template", missing)
        self.refused(2, "needs --model or --template", messages)
        good = self.model("good", chat_template="x")
        self.refused(1, "stdin: byte 0: not JSON: '[' or '{' expected near end of file", b"", "--model", good)
        self.refused(1, "messages: not an array", {}, "--model", good)
        self.refused(1, "add_generation_prompt: not true or false", {"messages": messages, "add_generation_prompt": 1}, "--model", good)


def record():
    results = with_transformers(templates().values())
    lines = [f'{json.dumps(n)}: [{", ".join(json.dumps(short(x)) for x in results[n])}]' for n in sorted(results)]
    with open(DIGESTS, "w") as f:
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
    lines = [json.dumps([template, result if "failed" not in result else {"failed": True}])
             for (template, _), result in zip(template_render.snippets(), with_transformers(["--snippets"]))]
    with open(os.path.join(HERE, "snippets.json"), "w") as f:
        f.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    else:
        unittest.main(verbosity=2)
