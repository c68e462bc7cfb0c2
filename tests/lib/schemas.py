"""Random JSON schemas, values that are valid by them, and a judge that knows nothing of grammars: `is_valid` is the package
jsonschema, `is_prefix` reads a text that was cut off and says whether a valid one can begin so."""
import json, re
from fractions import Fraction

import jsonschema

# Patterns as segments: (characters, least, most).
CLASSES = {"[a-z]": "abcdefghijklmnopqrstuvwxyz", "[0-9]": "0123456789", "[A-F0-9]": "ABCDEF0123456789", "[a-c_]": "abc_", "\\.": ".", "-": "-", "\\\"": '"',
           "\\\\": "\\", "[é-ü]": "éêëìíîïðñòóôõö÷øùúûü", "x": "x"}
WORDS = "name age city score tags id kind note list size color owner left right value data étage a\"b".split(" ")


def random_pattern(rng):
    parts = []
    for _ in range(rng.randint(1, 4)):
        low = rng.randint(0, 3)
        parts.append((rng.choice(list(CLASSES)), low, low + rng.randint(0 if low else 1, 4)))
    return "^" + "".join(c if (a, b) == (1, 1) else "%s{%d,%d}" % (c, a, b) for c, a, b in parts) + "$", parts


class Schemas:
    """One random schema after another. trees: some of them call themselves."""

    def __init__(self, rng, trees=True):
        self.rng, self.trees = rng, trees
        self.patterns = {}

    def string(self):
        r = self.rng.random()
        if r < 0.35:
            pattern, self.patterns[pattern] = (lambda p: (p[0], p[1]))(random_pattern(self.rng))
            return {"type": "string", "pattern": pattern}
        if r < 0.45:
            return {"type": "string", "format": self.rng.choice(["date", "uuid", "time", "ipv4"])}
        s = {"type": "string", "maxLength": self.rng.randint(1, 20)}
        if self.rng.random() < 0.3:
            s["minLength"] = self.rng.randint(0, s["maxLength"])
        return s

    def number(self):
        s = {"type": self.rng.choice(["integer", "number"])}
        if self.rng.random() < 0.7:
            a, b = sorted([self.rng.randint(-2000, 2000) / self.rng.choice([1, 1, 10, 8]) for _ in range(2)])
            if s["type"] == "integer" or self.rng.random() < 0.5:
                a, b = int(a), int(b)
            s[self.rng.choice(["minimum", "exclusiveMinimum"])] = a
            s[self.rng.choice(["maximum", "exclusiveMaximum"])] = b + 2
            if self.rng.random() < 0.3:
                del s[self.rng.choice([k for k in s if k != "type"])]
        return s

    def enum(self):
        values = ["red", "green", "re", "grün", "a b", "q\"", 1, 2, 17, -3, 0.5, None, True, [1, "x"], {"k": 2}]
        return {"enum": self.rng.sample(values, self.rng.randint(1, 5))}

    def array(self, depth):
        s = {"type": "array", "items": self.schema(depth - 1), "maxItems": self.rng.randint(0, 4)}
        if self.rng.random() < 0.5:
            s["minItems"] = self.rng.randint(0, s["maxItems"])
        if self.rng.random() < 0.15:
            s = {"type": "array", "prefixItems": [self.schema(0), self.schema(0)], "items": False, "minItems": self.rng.randint(0, 2)}
        return s

    def object(self, depth):
        names = self.rng.sample(WORDS, self.rng.randint(1, 5))
        s = {"type": "object", "properties": {n: self.schema(depth - 1) for n in names},
             "required": [n for n in names if self.rng.random() < 0.6]}
        if self.rng.random() < 0.7:
            s["additionalProperties"] = False
        elif self.rng.random() < 0.2:
            s["additionalProperties"] = {"type": "integer", "minimum": 0, "maximum": 9}
        return s

    def any_of(self, depth):
        if self.rng.random() < 0.3:  # told apart by a member
            parts = [dict(self.object(depth)) for _ in range(2)]
            for i, p in enumerate(parts):
                p["properties"] = {"kind": {"const": "abc"[i]}, **{k: v for k, v in p["properties"].items() if k != "kind"}}
                p["required"] = ["kind"] + [n for n in p["required"] if n != "kind"]
            return {"oneOf": parts}
        return {"anyOf": [self.schema(depth - 1) for _ in range(self.rng.randint(1, 3))]}

    def schema(self, depth):
        simple = [self.string, self.number, self.enum, lambda: {"type": "boolean"}, lambda: {"type": ["null", "integer"], "maximum": 5},
                  lambda: {"const": self.rng.choice([7, "seven", None])}]
        deep = [self.array, self.object, self.object, self.any_of]
        if depth > 0 and self.rng.random() < 0.6:
            return self.rng.choice(deep)(depth)
        return self.rng.choice(simple)()

    def next(self):
        if self.trees and self.rng.random() < 0.1:
            return {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
                "v": self.schema(0), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "required": ["v", "next"], "additionalProperties": False}}}
        return self.object(3)


def resolve(root, s):
    while isinstance(s, dict) and "$ref" in s:
        at = root
        for part in s["$ref"].lstrip("#").split("/")[1:]:
            at = at[part]
        s = at
    return s


def sample(rng, root, s, patterns, depth=0):
    """A value that is valid by s."""
    s = resolve(root, s)
    if "const" in s:
        return s["const"]
    if "enum" in s:
        return rng.choice(s["enum"])
    for key in ("anyOf", "oneOf"):
        if key in s:
            return sample(rng, root, s[key][0] if depth > 4 else rng.choice(s[key]), patterns, depth + 1)
    kind = s["type"] if isinstance(s["type"], str) else rng.choice(s["type"])
    if kind == "null":
        return None
    if kind == "boolean":
        return rng.random() < 0.5
    if kind in ("integer", "number"):
        low = s.get("minimum", s.get("exclusiveMinimum", s.get("maximum", s.get("exclusiveMaximum", 0)) - 100))
        high = s.get("maximum", s.get("exclusiveMaximum", low + 100))
        for _ in range(1000):
            x = rng.randint(int(low) - 1, int(high) + 1) if kind == "integer" else round(rng.uniform(low, high), rng.randint(0, 4))
            x = int(x) if x == int(x) and rng.random() < 0.5 else x
            if jsonschema.Draft202012Validator(s).is_valid(x):
                return x
        raise AssertionError(s)
    if kind == "string":
        if "pattern" in s:
            return "".join(rng.choice(CLASSES[c]) for c, a, b in patterns[s["pattern"]] for _ in range(rng.randint(a, b)))
        if "format" in s:
            return {"date": "2026-02-28", "uuid": "0123abcd-0123-0123-0123-0123456789ab", "time": "23:59:59.5+02:00", "ipv4": "10.255.0.99"}[s["format"]]
        n = rng.randint(s.get("minLength", 0), s["maxLength"])
        return "".join(rng.choice("ab \"\\\n\té€🦙{}[]:,") for _ in range(n))
    if kind == "array":
        if "prefixItems" in s:
            return [sample(rng, root, p, patterns, depth + 1) for p in s["prefixItems"][:rng.randint(s["minItems"], 2)]]
        return [sample(rng, root, s["items"], patterns, depth + 1) for _ in range(rng.randint(s.get("minItems", 0), s["maxItems"]))]
    value = {n: sample(rng, root, p, patterns, depth + 1) for n, p in s["properties"].items() if n in s["required"] or rng.random() < 0.5}
    if isinstance(s.get("additionalProperties"), dict) and rng.random() < 0.5:
        value["other"] = 3
    return value


def is_valid(schema, text):
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    except ValueError:
        return False


class Cut(Exception):
    """The text ended, and could have gone on."""


class Wrong(Exception):
    pass


NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
NUMBER_BEGIN = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?([eE]([+-]?\d*)?)?)?\Z")


class Judge:
    """Reads a text that may be cut off. Values that are whole must be valid by their schemas; the one that is cut off must be the
    begin of one that is. Raises Cut where all is well, Wrong where not; returns where a whole value ended."""

    def __init__(self, schema, patterns, text):
        self.root, self.patterns, self.t = schema, patterns, text

    def space(self, i):
        while i < len(self.t) and self.t[i] in " \n\t\r":
            i += 1
        if i == len(self.t):
            raise Cut()
        return i

    def whole(self, s, i):
        """Where a whole value that is valid ends, or None."""
        try:
            value, end = json.JSONDecoder().raw_decode(self.t, i)
        except ValueError:
            return None
        whole = dict(s, **{"$defs": self.root.get("$defs", {})}) if isinstance(s, dict) else s
        if isinstance(value, (int, float)) and not isinstance(value, bool) and NUMBER_BEGIN.match(self.t[i:]):
            return None  # it may go on
        if not jsonschema.Draft202012Validator(whole).is_valid(value):
            raise Wrong(f"{self.t[i:end]} by {s}")
        return end

    def value(self, s, i):
        i = self.space(i)
        s = resolve(self.root, s)
        end = self.whole(s, i)
        if end is not None:
            return end
        if s is True or s == {}:
            s = {"type": ["string", "number", "array", "object", "boolean", "null"]}
        for key in ("anyOf", "oneOf"):
            if key in s:
                return self.first(s[key], i)
        if "const" in s or "enum" in s:
            for v in s.get("enum", [s.get("const")]):
                text = json.dumps(v, ensure_ascii=False, separators=(",", ":"))
                left = "".join(self.t[i:].split()) if isinstance(v, (list, dict)) else self.t[i:]
                if text.startswith(left):
                    raise Cut()
            raise Wrong(f"{self.t[i:]} of {s}")
        kinds = s["type"] if isinstance(s["type"], list) else [s["type"]]
        return self.first([dict(s, type=k) for k in kinds], i) if len(kinds) > 1 else self.of_type(kinds[0], s, i)

    def first(self, schemas, i):
        for s in schemas:
            try:
                return self.value(s, i)
            except Wrong:
                pass
        raise Wrong(f"{self.t[i:]} by none of {schemas}")

    def of_type(self, kind, s, i):
        left = self.t[i:]
        if kind in ("null", "boolean"):
            for word in ("null",) if kind == "null" else ("true", "false"):
                if word.startswith(left):
                    raise Cut()
        elif kind in ("integer", "number") and NUMBER_BEGIN.match(left):
            return self.number(kind, s, left)
        elif kind == "string" and left[0] == '"':
            return self.string(s, i)
        elif kind == "array" and left[0] == "[":
            return self.array(s, i + 1)
        elif kind == "object" and left[0] == "{":
            return self.object(s, i + 1)
        raise Wrong(f"{left} as {kind}")

    def number(self, kind, s, left):
        """Whether a number within the bounds begins so: with k digits more before the point it is in [x, x + 1) times 10 to the k."""
        low = Fraction(s.get("minimum", s.get("exclusiveMinimum", -10 ** 20)))
        high = Fraction(s.get("maximum", s.get("exclusiveMaximum", 10 ** 20)))
        sign = -1 if left[0] == "-" else 1
        digits = left.lstrip("-")
        if not digits:
            if low < 0:
                raise Cut()
            raise Wrong(left)
        if "e" in digits or "E" in digits:
            raise Cut()
        unit = Fraction(1, 10 ** len(digits.split(".")[1])) if "." in digits else Fraction(1)
        x = Fraction(digits.rstrip("."))
        for k in range(17 if "." not in digits and digits != "0" else 1):
            a, b = x * 10 ** k, (x + unit) * 10 ** k - (1 if kind == "integer" else 0)
            a, b = (a, b) if sign > 0 else (-b, -a)
            if a <= high and b >= low:
                raise Cut()
        raise Wrong(left)

    def string(self, s, i):
        text = self.t[i + 1:]
        text = re.sub(r"\\(u[0-9a-fA-F]{0,3})?\Z", "", text) if not re.search(r"(?<!\\)(\\\\)+\Z", text) else text
        value = json.loads('"' + text + '"')
        if len(value) > s.get("maxLength", 10 ** 9):
            raise Wrong(value)
        if "pattern" in s:
            self.pattern(self.patterns[s["pattern"]], value)
        raise Cut()

    def pattern(self, parts, value):
        states = {(0, 0)}
        for c in [*value, None]:
            for _ in parts:  # what may be left out is
                states |= {(k + 1, 0) for k, n in states if k < len(parts) and n >= parts[k][1]}
            if c is None:
                break
            states = {(k, n + 1) for k, n in states if k < len(parts) and n < parts[k][2] and c in CLASSES[parts[k][0]]}
        if not states:
            raise Wrong(value)

    def array(self, s, i):
        n = 0
        i = self.space(i)
        if self.t[i] == "]":
            raise Wrong("an array that is not valid")
        while True:
            prefix = s.get("prefixItems", [])
            item = prefix[n] if n < len(prefix) else s.get("items", True)
            if item is False or n >= s.get("maxItems", 10 ** 9):
                raise Wrong(self.t[i:])
            i = self.space(self.value(item, i))
            n += 1
            if self.t[i] != ",":
                raise Wrong(self.t[i:])
            i += 1

    def object(self, s, i):
        seen = set()
        properties, others = s.get("properties", {}), s.get("additionalProperties", True)
        while True:
            i = self.space(i)
            if self.t[i] != '"':
                raise Wrong(self.t[i:])
            try:
                name, end = json.JSONDecoder().raw_decode(self.t, i)
            except ValueError:
                begin = self.t[i + 1:].rstrip("\\")
                if others or any(json.dumps(n, ensure_ascii=False)[1:-1].startswith(begin) for n in set(properties) - seen):
                    raise Cut()
                raise Wrong(begin)
            if name in seen or (name not in properties and others is False):
                raise Wrong(name)
            seen.add(name)
            i = self.space(end)
            if self.t[i] != ":":
                raise Wrong(self.t[i:])
            i = self.space(self.value(properties.get(name, others), i + 1))
            if self.t[i] != ",":
                raise Wrong(self.t[i:])
            i += 1


def is_prefix(schema, patterns, text):
    """True, or why not."""
    if not text:
        return True
    try:
        Judge(schema, patterns, text).value(schema, 0)
    except Cut:
        return True
    except Wrong as e:
        return str(e) or "wrong"
    return is_valid(schema, text) or "not valid"
