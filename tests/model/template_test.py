"""Chat templates: those of the reference's source, and those of the models, on the conversations of chats.json. The
text equals what transformers makes of them: as digests recorded with `template_test.py --record` by a Python that
has transformers, and in the long form anew (FLOTILLA_TRANSFORMERS, a Python that has it; else one is installed).
Where the template refuses, it does with its words; where Python fails, the rendering is refused."""
import glob, hashlib, json, os, subprocess, sys, tempfile, unittest, venv
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
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


def render(path, chat, *options, **more):
    """The command's output and status for a template file."""
    request = dict(chat, **more)
    request["chat_template_kwargs"] = {**template_render.TOKENS, **chat.get("chat_template_kwargs", {})}
    return subprocess.run([FLOTILLA, "template", "--template", path, "--now", str(template_render.NOW), *options],
                          input=json.dumps(request).encode(), capture_output=True, env={**os.environ, "TZ": "UTC"})


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def short(result):
    """What is recorded of a result: a digest, the words of a refusal, or that it failed."""
    return digest(result["text"]) if "text" in result else result if "refused" in result else None


def with_transformers(paths):
    """The results of transformers for template files."""
    python = os.environ.get("FLOTILLA_TRANSFORMERS")
    with tempfile.TemporaryDirectory() as folder:
        if not python:
            venv.create(folder, with_pip=True)
            python = os.path.join(folder, "bin", "python")
            subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        out = subprocess.run([python, os.path.join(HERE, "template_render.py"), *paths], check=True, capture_output=True).stdout
    return json.loads(out)


class Templates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.paths, cls.chats = templates(), template_render.chats()

    def check(self, name, chat, want):
        """want: as short() makes it; or the whole result, whose text is shown where it differs."""
        r = render(self.paths[name], chat)
        where, says = f"{name}, '{chat['name']}'", r.stderr.decode()
        if want is None or isinstance(want, dict) and "failed" in want:
            if r.returncode != 1 or r.stdout or not says.startswith("flotilla template: "):
                return f"{where}: was to be refused, is {r.stdout!r} {says} {want}"
        elif isinstance(want, dict) and "refused" in want:
            if r.returncode != 1 or r.stdout or says.rstrip("\n") != "flotilla template: " + want["refused"].replace("\n", "?"):
                return f"{where}: was to be refused with '{want['refused']}', is {r.stdout!r} {says}"
        elif isinstance(want, str):
            if r.returncode != 0 or digest(r.stdout.decode()) != want:
                return f"{where}: another text, or none: {says}"
        elif r.returncode != 0 or r.stdout.decode() != want["text"]:
            return f"{where}: {says}\nis    {r.stdout.decode()!r}\nnot   {want['text']!r}"

    def check_all(self, wanted):
        self.assertGreaterEqual(len(self.paths), 71)
        self.assertEqual(sorted(wanted), sorted(self.paths))
        jobs = [(name, chat, want) for name in wanted for chat, want in zip(self.chats, wanted[name], strict=True)]
        with ThreadPoolExecutor(2) as pool:
            wrong = [w for w in pool.map(lambda job: self.check(*job), jobs) if w]
        self.assertEqual(wrong, [], f"{len(wrong)} of {len(jobs)}:\n" + "\n".join(wrong[:20]))

    def test_recorded(self):
        with open(DIGESTS) as f:
            self.check_all(json.load(f))

    @unittest.skipUnless(LONG, "long form")
    def test_transformers(self):
        names = {os.path.basename(p): n for n, p in self.paths.items()}
        self.check_all({names[file]: results for file, results in with_transformers(self.paths.values()).items()})


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        results = with_transformers(templates().values())
        lines = [f'{json.dumps(n)}: [{", ".join(json.dumps(short(x)) for x in results[n])}]' for n in sorted(results)]
        with open(DIGESTS, "w") as f:
            f.write("{\n" + ",\n".join(lines) + "\n}\n")
    else:
        unittest.main(verbosity=2)
