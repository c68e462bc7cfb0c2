"""Formats of answers without a model: grammars of random JSON schemas, walked at random and judged by the package jsonschema; values
made by another program, which they must accept; vectors, and what is refused."""
import json, os, random, subprocess, sys, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from schemas import Schemas, is_prefix, is_valid, sample

TOOL = os.path.join(os.environ["FLOTILLA_BIN"], "format_tool")
N = 4000 if os.environ.get("FLOTILLA_LONG") else 400


class Formats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tool = subprocess.Popen([TOOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @classmethod
    def tearDownClass(cls):
        cls.tool.stdin.close()
        cls.tool.stdout.close()
        cls.tool.wait()

    def ask(self, format, **kw):
        self.tool.stdin.write(json.dumps(dict(kw, format=format)) + "\n")
        self.tool.stdin.flush()
        return json.loads(self.tool.stdout.readline())

    def schema(self, schema, **kw):
        return self.ask({"type": "json_schema", "json_schema": {"schema": schema}}, **kw)

    def states(self, format, texts, **kw):
        r = self.ask(format, texts=texts, **kw)
        self.assertNotIn("error", r)
        return r["states"]

    def test_random_schemas(self):
        """Whatever a grammar lets through is valid, whatever it lets through so far can become valid, and it lets through what is valid."""
        rng = random.Random(20261130)
        schemas = Schemas(rng)
        walked = accepted = prefixes = 0
        for i in range(N):
            s = schemas.next()
            values = [json.dumps(sample(rng, s, s, schemas.patterns), ensure_ascii=False, separators=rng.choice([(",", ":"), (", ", ": ")]))
                      for _ in range(5)]
            for v in values:
                self.assertTrue(is_valid(s, v), (s, v))
            r = self.schema(s, texts=values, random=3, seed=i)
            self.assertNotIn("error", r, s)
            for v, state in zip(values, r["states"]):
                accepted += 1
                self.assertEqual(state, "whole", (s, v))
            for text, ended in r["random"]:
                self.assertTrue(ended, (s, text))
                self.assertTrue(is_valid(s, text), (s, text))
                walked += 1
                cuts = [text[:rng.randint(0, len(text))] for _ in range(4)]
                self.assertTrue(set(self.schema(s, texts=cuts)["states"]) <= {"whole", "prefix"}, (s, cuts))
                for cut in cuts:
                    self.assertIs(is_prefix(s, schemas.patterns, cut), True, (s, cut, is_prefix(s, schemas.patterns, cut)))
                    prefixes += 1
                # A wrong byte in the middle is noticed by both, or by neither.
                if cuts[0]:
                    wrong = cuts[0][:-1] + rng.choice("{}[]\"\\,:x0-")
                    state = self.schema(s, texts=[wrong])["states"][0]
                    if state != "no":
                        self.assertIs(is_prefix(s, schemas.patterns, wrong), True, (s, wrong))
        self.assertEqual((walked, accepted), (3 * N, 5 * N))
        self.assertGreater(prefixes, 10 * N)

    def test_numbers(self):
        """All whole numbers around the ends of all small ranges, and decimals beside them."""
        rng = random.Random(7)
        for _ in range(60):
            a, b = sorted(rng.randint(-1100, 1100) for _ in range(2))
            near = sorted({x + d for x in (a, b, 0, -1, 10, 99, 100, -100, 1000) for d in (-1, 0, 1)})
            r = self.states({"type": "json_schema", "json_schema": {"schema": {"type": "integer", "minimum": a, "maximum": b}}}, [str(x) for x in near])
            for x, state in zip(near, r):
                if x == 0 and a > 0:
                    continue
                self.assertEqual(state == "whole", a <= x <= b, (a, b, x, state))
            low, high = a / 8, b / 8
            near = [x + d for x in (low, high) for d in (-1, -0.125, -0.00001, 0, 0.00001, 0.125, 1)]
            texts = ["%.6f" % x for x in near]
            r = self.states({"type": "json_schema", "json_schema": {"schema": {"type": "number", "minimum": low, "exclusiveMaximum": high}}}, texts)
            for text, state in zip(texts, r):
                if not text.startswith("-0.000000"):
                    self.assertEqual(state == "whole", low <= float(text) < high, (low, high, text, state))

    def test_vectors(self):
        any_json = {"type": "json_object"}
        texts = ["{}", '{"a": [1, 2.5e-3, {"b": null}], "c": "\\u00e9\\n"}', "[]", '{"a": 01}', '{"a"}', '{"a": "\\ud800"}', '{"a": "\x01"}', '{"a": tru']
        self.assertEqual(self.states(any_json, texts), ["whole", "whole", "no", "no", "no", "no", "no", "prefix"])
        gbnf = {"type": "grammar", "grammar": 'root ::= "a" item+ | [b-d]{2,3} (\n  . "x" )?  # so\nitem ::= "\\"" [^"\\\\\\n]* "\\""\n'}
        self.assertEqual(self.states(gbnf, ['a"x""y"', "bcd", "bc", "bcdé", "bcdéx", "b", "e", 'a"\n"', "bcdd"]),
                         ["whole", "whole", "whole", "prefix", "whole", "prefix", "no", "no", "prefix"])
        self.assertEqual(self.states({"type": "json_object"}, ["hm <</think> {}", "hm </think>\n{}", "a</think>x", "</thin"], thought=True),
                         ["no", "whole", "no", "prefix"])
        deep = {"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}
        self.assertEqual(self.states(deep, ["(" * 90 + "x" + ")" * 90, "(" * 200]), ["whole", "no"])

        others = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"abc": {"type": "string"}}, "required": ["abc"],
                                                                   "additionalProperties": {"type": "integer"}}}}
        texts = ['{"abc": "x", "%s": 1}' % n for n in ("abc", "ab", "abcd", "abd", "", "\\u0061bc", "x\\u0061")]
        self.assertEqual(self.states(others, texts), ["no", "whole", "whole", "whole", "whole", "no", "whole"])
        for low, high in ((2, 4), (0, 1), (3, 3)):
            schema = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "^[a-z]+$", "minLength": low, "maxLength": high}}}
            self.assertEqual([s == "whole" for s in self.states(schema, ['"%s"' % ("a" * n) for n in range(6)])], [max(low, 1) <= n <= high for n in range(6)])

        def taken(schema, texts):
            return [s == "whole" for s in self.states({"type": "json_schema", "json_schema": {"schema": schema}}, texts)]

        # A property that nothing is valid for is none of the other names.
        self.assertEqual(taken({"type": "object", "properties": {"x": False}, "additionalProperties": True}, ['{"x": 1}', '{"y": 1}', "{}"]), [False, True, True])
        self.assertEqual(taken({"type": "array", "prefixItems": []}, ["[1]", "[,1]", "[]", "[1, 2]"]), [True, False, True, True])
        self.assertIn("no answer", self.schema({"type": "array", "prefixItems": [{"type": "integer"}], "items": False, "minItems": 2})["error"])
        # What one dialect takes for white space, a digit or a letter, and another does not, is in no class that excludes them.
        for pattern, none in (("^[^\\s]+$", "\u00a0\u3000\ufeff\u001f "), ("^[^\\d]+$", "0\u0660"), ("^[^\\w]+$", "a\u00e9"), ("^[^\\S]+$", "a\u00e9"),
                              ("^[^\\D]+$", "a\u00e9"), ("^[^\\W]+$", "-\u00e9")):
            texts = [json.dumps(c, ensure_ascii=c < " ") for c in none]
            self.assertEqual(taken({"type": "string", "pattern": pattern}, texts), [False] * len(none), pattern)
        self.assertEqual(taken({"type": "string", "pattern": "^[^\\s]+$"}, ['"a"', '"\u00e9"']), [True, True])
        self.assertEqual(taken({"type": "number", "exclusiveMinimum": 40000000000}, ["40000000000.000003", "40000000000.00001", "40000000001"]),
                         [False, True, True])

    def test_telling_apart(self):
        """Of `oneOf`, by value; in bounded time."""
        for a, b, apart in (({"a": 1, "b": 2}, {"b": 2, "a": 1}, False), ([1], [1.0], False), ({"a": [1, {"b": None}]}, {"a": [1, {"b": 0}]}, True),
                            ("x", "y", True), (None, None, False), (True, False, True), (1, 1.0, False)):
            got = self.schema({"oneOf": [{"const": a}, {"const": b}]}).get("error", "taken")
            self.assertEqual("oneOf" not in got, apart, (a, b, got))
        # In quadratic time this took minutes.
        self.assertIn("oneOf", self.schema({"oneOf": [{"enum": ["a"] * 50000}, {"enum": ["b"] * 50000}]})["error"])

    def test_no_dead_ends(self):
        """What nests goes only where it can still be completed, also where that takes more stack some bytes later."""
        for grammar in ('root ::= "x" | "(y" a ")"\na ::= "[" b "]"\nb ::= root "2"', 'root ::= "x" | "(y" ("["{1,2} root "2]"){1,1} ")"'):
            format = {"type": "grammar", "grammar": grammar}
            text = ""
            while len(text) < 2000:  # as deep as it goes, then out again
                states = self.states(format, [text + c for c in "([y)]2x"])
                on = [c for c, s in zip("([y)]2x", states) if s != "no"]
                self.assertTrue(on, text)
                if "whole" in states and text:
                    text += "([y)]2x"[states.index("whole")]
                    break
                text += on[0]
            self.assertEqual(self.states(format, [text]), ["whole"])
            self.assertGreater(len(text), 100)

    def test_tools(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}},
                 {"type": "function", "function": {"name": "fg"}}]
        format = {"type": "tool_calls", "tools": tools, "parallel": True}
        plain, other = '{"name": "f", "arguments": {"x": 1}}', '{"name": "fg", "arguments": {}}'
        wrong = '{"name": "f", "arguments": {"y": 1}}'
        for calls, texts in ((0, [plain, plain + "; " + other, wrong]),
                             (1, [plain.replace("arguments", "parameters"), plain.replace("arguments", "parameters") + "; " + other.replace("arguments", "parameters"), plain]),
                             (2, ["<tool_call>\n%s\n</tool_call>" % plain, "<tool_call>\n%s\n</tool_call>\n<tool_call>\n%s\n</tool_call>" % (other, plain), plain]),
                             (3, ["[%s]" % plain, "[%s, %s]" % (other, plain), plain])):
            self.assertEqual(self.states(format, texts, calls=calls), ["whole", "whole", "no"], calls)
        self.assertEqual(self.states(dict(format, name="fg", parallel=False), [plain, other, other + "; " + other]), ["no", "whole", "no"])
        self.assertIn("no tool 'h'", self.ask(dict(format, name="h"))["error"])
        self.assertIn("tool 'f'", self.ask(dict(format, tools=[{"function": {"name": "f", "parameters": {"type": "nonsense"}}}]))["error"])

    def test_calls_among_text(self):
        """Of random schemas' tools, offered together, each takes what is valid by its own schema and nothing else."""
        rng = random.Random(20261201)
        schemas = Schemas(rng)
        taken = refused = 0
        for _ in range(N // 8):
            of = {name: schemas.next() for name in ("f", "fg", "g")}
            format = {"type": "tool_calls", "optional": True, "parallel": True, "tools": [
                {"type": "function", "function": {"name": name, "parameters": s, "strict": True}} for name, s in of.items()]}
            values = [json.dumps(sample(rng, s, s, schemas.patterns), ensure_ascii=False) for s in of.values()]
            pairs = [(name, v) for name in of for v in values]
            text = '%s<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>%s'
            begin, end = rng.choice(["", "Well: ", "<think>Or <tool_call>x?</think>\n"]), rng.choice(["", " done", "<tool_cal"])
            states = self.states(format, [text % (begin, name, v, end) for name, v in pairs], calls=2)
            for (name, v), state in zip(pairs, states):
                if v == values[list(of).index(name)] or state != "no":
                    self.assertEqual((state, is_valid(of[name], v) or of[name] == {}), ("whole", True), (name, v, of))
                    taken += 1
                else:
                    refused += 1
            for calls in (0, 1, 3):  # they begin as answers do
                self.assertEqual(self.ask(format, calls=calls), {"bytes": 0})
        self.assertGreater(taken, 3 * (N // 8) - 1)
        self.assertGreater(refused, N // 8)

    def test_refused(self):
        """What is not supported is refused by its name, where it stands."""
        for schema, word in (({"uniqueItems": True}, "uniqueItems"), ({"type": "object", "properties": {"a": {"not": {}}}}, "'/properties/a': 'not'"),
                             ({"patternProperties": {}}, "patternProperties"), ({"if": {}}, "'if'"), ({"type": "string", "format": "ipv6"}, "ipv6"),
                             ({"type": "strin"}, "'type'"), ({"$ref": "other.json"}, "$ref"), ({"$ref": "#/$defs/none"}, "$ref"), ({"multipleOf": 3}, "multipleOf"),
                             ({"type": "string", "pattern": "(?=a)b"}, "looking around"), ({"type": "string", "pattern": "(a)\\1"}, "reference to a group"),
                             ({"type": "string", "pattern": "["}, "class"), ({"type": "string", "pattern": "(a|b)*(c|dd)*", "maxLength": 3}, "maxLength"),
                             ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"), ({"allOf": [{}, {}]}, "allOf"),
                             ({"type": "array", "items": [{}]}, "prefixItems"), ({"maxLenght": 3}, "maxLenght"), ({"minLength": -1}, "minLength"),
                             ({"enum": []}, "enum"), ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no answer is possible"),
                             ({"$ref": "#", "type": "object"}, "beside"), ({"type": "string", "minLength": 5, "maxLength": 3}, "no answer is possible"),
                             ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}}, "nests too deeply"),
                             ({"enum": ["%d" % i + "x" * 40 for i in range(2000)]}, "too large"), (7, "schema")):
            self.assertIn(word, self.schema(schema).get("error", "taken"), schema)
        for grammar, word in (("", "root"), ("root ::= a", "not defined"), ('root ::= "a', "line 1"), ('root ::= root "a" | "b"', "begins with itself"),
                              ('root ::= ("a"?)*', "may be empty is repeated"), ('root ::= "a"\nroot ::= "b"', "line 2"), ("root ::= [b-a]", "range"),
                              ("root ::= <[7]>", "tokens"), ('root ::= "\\q"', "escape"), ('x ::= "a" {3,1}', "bounds"), ('root ::= x\nx ::= "a" x', "no answer")):
            self.assertIn(word, self.ask({"type": "grammar", "grammar": grammar}).get("error", "taken"), grammar)
        for format, word in (({"type": "xml"}, "xml"), ({}, "'type'"), ({"type": "json_schema"}, "'schema'"), ({"type": "grammar"}, "'grammar'"),
                             ({"type": "tool_calls"}, "'tools'")):
            self.assertIn(word, self.ask(format).get("error", "taken"), format)


if __name__ == "__main__":
    unittest.main()
