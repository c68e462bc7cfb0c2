"""Answers that must have a form, from a real model over a real cluster: whatever ends is valid, whatever is cut off could have become
so, and it is the answer of the engine alone."""
import concurrent.futures, json, os, random, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import LONG, MODEL, Cluster, Generation, HandCluster, free_ports, local, run
from raw_http import get, post
from schemas import Schemas, is_prefix, is_valid
from tagged import TAGGED

N = 200 if LONG else 20
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                           "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3}},
          "required": ["name", "age", "tags"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo", "Bern"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"], "additionalProperties": False}}}
NOTE = {"type": "function", "function": {"name": "note", "parameters": {
    "type": "object", "properties": {"text": {"type": "string", "maxLength": 16}}, "required": ["text"], "additionalProperties": False}}}
NODE = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {
    "v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}}, "required": ["v", "next"]}}}
CHAT = [{"role": "user", "content": "Describe somebody as JSON."}]


TESTED, WALK, CACHE = ("flotilla_grammar_tokens_tested_total", 'flotilla_grammar_masks_total{from="walk"}',
                       'flotilla_grammar_masks_total{from="cache"}')


def grammar_counts(port):
    """What the last stage tells of its masks."""
    lines = get(f"http://127.0.0.1:{port}", "/metrics").body.decode().splitlines()
    return {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("flotilla_grammar")}


def format_of(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


class Form(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(workers=2, threads=1, kv_tokens=16384)

    @classmethod
    def tearDownClass(cls):
        cls.c.stop()

    def chat(self, status=200, path="/v1/chat/completions", **kw):
        r = post(self.c.http, path, dict(dict(messages=CHAT, temperature=1, max_tokens=400), **kw), timeout=600)
        self.assertEqual(r.status, status, r.body)
        return r.json()

    def test_random_schemas(self):
        rng = random.Random(42)
        schemas = Schemas(rng, trees=False)  # what may nest without end need not end within the limit
        asked = [schemas.next() for _ in range(N)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda x: self.chat(response_format=format_of(x[1]), seed=x[0])["choices"][0], enumerate(asked)))
        ended = 0
        for schema, a in zip(asked, answers):
            text = a["message"]["content"]
            if a["finish_reason"] == "stop":
                ended += 1
                self.assertTrue(is_valid(schema, text), (schema, text))
            else:
                self.assertEqual(a["finish_reason"], "length")
                self.assertIs(is_prefix(schema, schemas.patterns, text.rstrip("\ufffd")), True, (schema, text))
        self.assertGreaterEqual(ended, 0.9 * N)
        # Each cut off soon: what there is of it is the begin of the same answer.
        for i in range(0, N, 5):
            a = self.chat(response_format=format_of(asked[i]), seed=i, max_tokens=7)["choices"][0]
            text = a["message"]["content"].rstrip("\ufffd")
            self.assertTrue(answers[i]["message"]["content"].startswith(text))
            self.assertIs(is_prefix(asked[i], schemas.patterns, text), True, (asked[i], text))

    def test_one_answer(self):
        """The engine alone and the cluster choose the same tokens, at all kinds of sampling, also with several answers and after a replay."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(NODE, f)
            f.flush()
            for kw in (dict(temp=0), dict(temp=1, seed=3), dict(temp=1.5, seed=4, top_k=20), dict(temp=1, seed=5, top_p=0.8, repetition_penalty=1.2),
                       dict(temp=1, seed=6, min_p=0.1, logprobs=2)):
                kw = dict(kw, json_schema=f.name, tokens=60)
                alone = local("A list:", threads=2, **kw)
                self.assertGreater(sum(alone["constrained"].values()), 0)
                together = Generation(self.c.address, "A list:", **kw).result()
                for key in ("tokens", "text", "finish_reason", "logprobs"):
                    self.assertEqual(alone.get(key), together.get(key), kw)
                self.assertIs(is_prefix(NODE, {}, alone["text"]), True)
            chunks = [local("A list:", temp=1, seed=3, json_schema=f.name, tokens=60, chunk=k)["tokens"] for k in (1, 2, 512)]
            self.assertEqual(chunks[0], chunks[1])
            self.assertEqual(chunks[0], chunks[2])
            many = Generation(self.c.address, "A list:", temp=1, seed=3, json_schema=f.name, tokens=60, samples=3).result()
            for i, a in enumerate([many, *many["more"]]):
                self.assertEqual(a["tokens"], local("A list:", temp=1, seed=3, json_schema=f.name, tokens=60, sample=i)["tokens"])

    def test_formats(self):
        text = self.chat(response_format={"type": "json_object"}, temperature=0, max_tokens=60)["choices"][0]["message"]["content"]
        self.assertIs(is_prefix({"type": "object"}, {}, text), True, text)
        a = self.chat(grammar='root ::= "yes" | "no" ("!"){1,3}', seed=1)["choices"][0]
        self.assertIn(a["message"]["content"], ("yes", "no!", "no!!", "no!!!"))
        self.assertEqual(a["finish_reason"], "stop")
        r = post(self.c.http, "/v1/completions", {"prompt": "The age of the captain:", "json_schema": {"type": "integer", "minimum": 13, "maximum": 18},
                                                  "temperature": 1, "seed": 5}, timeout=60).json()["choices"][0]
        self.assertIn(r["text"], [str(x) for x in range(13, 19)])
        # The same tokens by the prompt's ids.
        ids = post(self.c.http, "/tokenize", {"content": "The age of the captain:"}, timeout=60).json()["tokens"]
        self.assertEqual(post(self.c.http, "/v1/completions", {"prompt": ids, "json_schema": {"type": "integer", "minimum": 13, "maximum": 18},
                                                               "temperature": 1, "seed": 5}, timeout=60).json()["choices"][0]["text"], r["text"])

    def test_refused(self):
        for kw, param, words in ((dict(response_format=format_of({"type": "object", "properties": {"a": {"uniqueItems": True}}})), "response_format", "uniqueItems"),
                                 (dict(response_format=format_of({"enum": []})), "response_format", "enum"),
                                 (dict(json_schema={"not": {}}), "json_schema", "'not'"), (dict(grammar="root ::= x"), "grammar", "not defined"),
                                 (dict(response_format={"type": "json_schema"}), "response_format", "json_schema"),
                                 (dict(response_format={"type": "json_object"}, ignore_eos=True), "ignore_eos", "end"),
                                 (dict(tool_choice="required", tools=[{"type": "function", "function": {"name": "f", "parameters": {"oneOf": [{}, {}]}}}]),
                                  "tools", "oneOf")):
            for stream in (False, True):
                e = self.chat(status=400, stream=stream, **kw)["error"]
                self.assertEqual(e["param"], param)
                self.assertIn(words, e["message"])
        r = run("generate", "--model", MODEL, "--prompt", "x", "--json-schema", "/dev/null")
        self.assertEqual(r.returncode, 2)
        self.assertIn(b"--json-schema /dev/null", r.stderr)

    def test_dear(self):
        """A form that goes on in too many ways at once ends its own request, and nobody waits for it."""
        grammar = "root ::= (" + " | ".join('"\\x%02x" y' % c for c in range(1, 127)) + ")*\ny ::= " + "w " * 14 + '\nw ::= "q"? | "r"?\n'
        for kw in (dict(temperature=0), dict(top_k=40, seed=1), dict(seed=2)):
            e = self.chat(status=500, grammar=grammar, **kw)["error"]
            self.assertIn("takes too long to find", e["message"])
        self.assertEqual(self.c.status()["replicas"][0]["epoch"], 1)
        self.assertIn(self.chat(grammar='root ::= "yes" | "no"', seed=1)["choices"][0]["message"]["content"], ("yes", "no"))

    def test_forced_tools(self):
        weather = {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["city", "days"], "additionalProperties": False}}}
        person = {"type": "function", "function": {"name": "person", "parameters": PERSON}}
        for choice, names in (("required", {"weather", "person"}), ({"type": "function", "function": {"name": "person"}}, {"person"})):
            for stream in (False, True):
                kw = dict(tools=[weather, person], tool_choice=choice, parallel_tool_calls=False, seed=8)
                if stream:
                    r = post(self.c.http, "/v1/chat/completions", dict(kw, messages=CHAT, temperature=1, max_tokens=300, stream=True), timeout=600)
                    deltas = [e["choices"][0] for e in r.chunks()]
                    calls = [t for d in deltas for t in d["delta"].get("tool_calls") or []]
                    name, arguments = calls[0]["function"]["name"], "".join(t["function"].get("arguments") or "" for t in calls)
                    self.assertEqual(deltas[-1]["finish_reason"], "tool_calls")
                else:
                    a = self.chat(**kw)["choices"][0]
                    (call,) = a["message"]["tool_calls"]
                    name, arguments = call["function"]["name"], call["function"]["arguments"]
                    self.assertEqual((a["finish_reason"], a["message"]["content"]), ("tool_calls", None))
                self.assertIn(name, names)
                self.assertTrue(is_valid((weather if name == "weather" else person)["function"]["parameters"], arguments), arguments)

    def test_guesses(self):
        """With speculation the same tokens: what is guessed and what is allowed are two things."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f, Cluster(workers=2, threads=1, kv_tokens=4096, draft="ngram", draft_len="6") as c:
            json.dump(NODE, f)
            f.flush()
            drafted = accepted = 0
            for kw in (dict(temp=0), dict(temp=1, seed=3), dict(temp=1.3, seed=4, top_k=10), dict(temp=0.7, seed=5)):
                kw = dict(kw, json_schema=f.name, tokens=150)
                alone, r = local("A list:", threads=2, **kw), c.generate("A list:", **kw)
                self.assertEqual((alone["tokens"], alone["finish_reason"]), (r["tokens"], r["finish_reason"]), kw)
                drafted += r["speculation"]["drafted"]
                accepted += r["speculation"]["accepted"]
            self.assertGreater(drafted, 50)
            self.assertGreater(accepted, 20)

    def test_counters(self):
        """Few tokens are looked at one by one, and masks are made once; a worker tells how many."""
        (port,) = free_ports(1)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f, \
                HandCluster("workers: 1\nkv_tokens: 4096", [("w", (), dict(metrics=f"127.0.0.1:{port}"))]) as c:
            json.dump(PERSON, f)
            f.flush()
            tokens, counts = 0, []
            for _ in range(2):
                for seed in range(4):
                    tokens += len(c.generate("Somebody as JSON: ", json_schema=f.name, temp=1, seed=seed, tokens=80)["tokens"])
                counts.append(grammar_counts(port))
            self.assertLess(counts[1][TESTED], 4 * tokens)
            self.assertGreater(counts[0][WALK], 0)
            self.assertEqual(counts[1][WALK], counts[0][WALK])  # the same answers again: all masks are known
            self.assertGreater(counts[1][CACHE], counts[0][CACHE])


class Guessed(unittest.TestCase):
    """Random forms with speculation and without: the same tokens of each answer."""

    def compare(self, source, length):
        rng = random.Random(43)
        schemas = Schemas(rng, trees=False)
        n = N if LONG else N // 2
        asked = [schemas.next() for _ in range(n)]
        (port,) = free_ports(1)
        keys = f"workers: 2\nsplit: even\nkv_tokens: 16384\ndraft: {source}\ndraft_len: {length}"
        with tempfile.TemporaryDirectory() as folder, \
                HandCluster(keys, [("a", (), dict(threads=1)), ("b", (), dict(threads=1, metrics=f"127.0.0.1:{port}"))]) as c:
            def answer(i, **kw):
                path = os.path.join(folder, f"{i}.json")
                with open(path, "w") as f:
                    json.dump(asked[i], f)
                return c.generate(CHAT[0]["content"], chat=True, json_schema=path, temp=1, seed=i, tokens=400, **kw)
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                plain = list(pool.map(lambda i: answer(i, draft="off"), range(n)))
                before = grammar_counts(port)[TESTED]
                guessed = list(pool.map(answer, range(n)))
            tested = grammar_counts(port)[TESTED] - before
        for i, (a, b) in enumerate(zip(plain, guessed)):
            self.assertNotIn("speculation", a)
            for key in ("tokens", "text", "finish_reason"):
                self.assertEqual(a[key], b[key], asked[i])
            if b["finish_reason"] == "stop":
                self.assertTrue(is_valid(asked[i], b["text"]), (asked[i], b["text"]))
            else:
                self.assertIs(is_prefix(asked[i], schemas.patterns, b["text"].rstrip("\ufffd")), True, (asked[i], b["text"]))
        sums = {k: sum(b["speculation"][k] for b in guessed) for k in ("drafted", "accepted", "runs")}
        sums.update(tokens=sum(len(b["tokens"]) for b in guessed), tested=tested, first=before)
        print(f"{source}: {sums}", flush=True)
        return sums

    def test_random_schemas(self):
        s = self.compare("ngram", "5")
        self.assertGreater(s["accepted"], 0)  # some guesses are right,
        self.assertGreater(s["drafted"], s["accepted"])  # and others wrong, or not allowed
        # Few tokens are tested one by one, all others by masks; guesses make it no more.
        self.assertGreater(s["tested"], 0)
        self.assertLess(s["first"], 4 * s["tokens"])
        self.assertLessEqual(s["tested"], s["first"])
        if LONG:
            self.compare("auto", "auto")


class AmongText(unittest.TestCase):
    """Tools that may be called: text is free, and what begins as a call is one."""

    def setUp(self):
        self.template = tempfile.NamedTemporaryFile("w", suffix=".jinja")
        self.addCleanup(self.template.close)
        self.template.write(TAGGED)
        self.template.flush()

    def cluster(self, **kw):
        return Cluster(threads=1, kv_tokens=8192, set=[f"chat_template={self.template.name}"], **kw)

    def talk(self):
        """Calls that are none of the tool's by its schema, so that the model writes more such."""
        talk = [{"role": "system", "content": "Answer with a call of the function weather."}]
        for city in ("Paris", "Berlin", "London"):
            call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
            talk += [{"role": "user", "content": f"How is the weather in {city}?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": "c", "content": "sunny"}]
        return talk + [{"role": "user", "content": "How is the weather in Madrid?"}]

    def ask(self, c, seed, **kw):
        body = dict(messages=self.talk(), tools=[WEATHER, NOTE], temperature=0.8, seed=seed, max_tokens=80)
        r = post(c.http, "/v1/chat/completions", dict(body, **kw), timeout=600)
        self.assertEqual(r.status, 200, r.body)
        return r

    def whole(self, c, seed, **kw):
        """(finish reason, content, [(name, arguments)]), with valid calls unless the limit cut the last."""
        choice = self.ask(c, seed, **kw).json()["choices"][0]
        calls = [(t["function"]["name"], t["function"]["arguments"]) for t in choice["message"].get("tool_calls") or []]
        for i, (name, arguments) in enumerate(calls):
            parameters = {"weather": WEATHER, "note": NOTE}[name]["function"]["parameters"]
            if choice["finish_reason"] == "length" and i + 1 == len(calls):
                self.assertIs(is_prefix(parameters, {}, arguments.rstrip("\ufffd")), True, arguments)
            else:
                self.assertTrue(is_valid(parameters, arguments), (seed, name, arguments))
        return choice["finish_reason"], choice["message"]["content"], calls

    def free(self, c, seed, **kw):
        """The text of the same answer where nothing is asked of it."""
        prompt = post(c.http, "/apply-template", {"messages": self.talk(), "tools": [WEATHER, NOTE]}).json()["prompt"]
        r = post(c.http, "/v1/completions", dict(dict(prompt=prompt, temperature=0.8, seed=seed, max_tokens=80), **kw), timeout=600)
        return r.json()["choices"][0]["text"]

    def test_calls(self):
        """On two workers, with several ways to sample: valid, and up to the call what the model says freely; that is not valid."""
        n, called, wrong, said = 40 if LONG else 10, 0, 0, 0
        with self.cluster(workers=2) as c:
            for seed in range(n):
                kw = [{}, {"top_p": 0.9}, {"top_k": 20}, {"repetition_penalty": 1.1}][seed % 4]
                reason, content, calls = self.whole(c, seed, **kw)
                free = self.free(c, seed, **kw)
                text, tag, call = free.partition("<tool_call>")
                self.assertEqual(bool(calls), bool(tag) and bool(call), free)
                if not tag:
                    self.assertEqual((content or "").strip(), free.strip())
                    said += 1
                    continue
                self.assertTrue((content or "").strip().startswith(text.strip()), (content, free))
                called += 1
                arguments = call.partition('"arguments": ')[2].partition("}\n</tool_call>")[0]
                wrong += not is_valid(WEATHER["function"]["parameters"], arguments)
                self.assertIn(reason, ("tool_calls", "length"))
            self.assertGreater(called, n // 2)
            self.assertGreater(wrong, n // 4)

    def test_streamed(self):
        with self.cluster(workers=2) as c:
            for seed in range(6):
                reason, content, calls = self.whole(c, seed)
                said, found = "", {}
                for e in self.ask(c, seed, stream=True).chunks():
                    delta = e["choices"][0]["delta"]
                    said += delta.get("content") or ""
                    for t in delta.get("tool_calls") or []:
                        call = found.setdefault(t["index"], ["", ""])
                        call[0] += t["function"].get("name") or ""
                        call[1] += t["function"].get("arguments") or ""
                self.assertEqual((said or None, [tuple(x) for x in found.values()], e["choices"][0]["finish_reason"]), (content or None, calls, reason))

    def test_one_answer(self):
        """The same on one worker and on three, and with guesses ahead, of which some are right."""
        with self.cluster(workers=1) as one, self.cluster(workers=3) as three, \
                self.cluster(workers=2, draft="ngram", draft_len="5") as guesses:
            for seed in range(20 if LONG else 6):
                kw = {"temperature": [0, 0.7, 1][seed % 3], "top_p": [1, 0.9][seed % 2]}
                want = self.whole(one, seed, **kw)
                for c in (three, guesses):
                    self.assertEqual(self.whole(c, seed, **kw), want, kw)
            r = guesses.status()["replicas"][0]["speculation"]
            self.assertGreater(r["drafted"], 20)
            self.assertGreater(r["accepted"], 10)

    def test_one_call(self):
        """Without parallel calls the answer ends behind the first; a model whose calls cannot be told from text is refused."""
        with self.cluster(workers=2) as c:
            for seed in range(4):
                reason, _, calls = self.whole(c, seed, parallel_tool_calls=False)
                self.assertLessEqual(len(calls), 1)
                self.assertEqual(reason == "tool_calls", bool(calls) and reason != "length")
        with Cluster(workers=1, threads=1, kv_tokens=2048) as c:
            body = dict(messages=CHAT, tools=[NOTE], max_tokens=4)
            self.assertEqual(post(c.http, "/v1/chat/completions", body).status, 200)
            r = post(c.http, "/v1/chat/completions", dict(body, parallel_tool_calls=False))
            self.assertEqual((r.status, "parallel" in r.error()["message"]), (400, True), r.body)

    def test_schemas_that_are_not_supported(self):
        """A tool whose schema cannot be held is an error only where it says that it must be."""
        odd = {"name": "odd", "parameters": {"type": "object", "properties": {"a": {"uniqueItems": True}}}}
        with self.cluster(workers=1) as c:
            for strict, status in ((False, 200), (True, 400)):
                tools = [WEATHER, {"type": "function", "function": dict(odd, strict=strict)}]
                r = post(c.http, "/v1/chat/completions", dict(messages=self.talk(), tools=tools, max_tokens=30, seed=1), timeout=600)
                self.assertEqual(r.status, status, r.body)
            self.assertEqual(r.error()["param"], "tools")
            for word in ("odd", "uniqueItems"):
                self.assertIn(word, r.error()["message"])


if __name__ == "__main__":
    unittest.main()
