"""A worker is killed in the middle of streams that are more than text: answers of a form, calls of tools, several answers at once.
Each goes on as if nothing had been, valid, and is what it is undisturbed. `up` starts the worker again."""
import json, os, signal, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import LONG, Cluster
from raw_http import Connection, Reply
from schemas import is_prefix, is_valid
from tagged import TAGGED

LINES = {"type": "object", "properties": {"title": {"type": "string", "minLength": 20, "maxLength": 40},
                                          "lines": {"type": "array", "items": {"type": "string", "minLength": 20, "maxLength": 40}, "minItems": 3, "maxItems": 4}},
         "required": ["title", "lines"], "additionalProperties": False}
LETTER = {"type": "function", "function": {"name": "letter", "parameters": LINES}}
MEMO = {"type": "function", "function": {"name": "memo", "parameters": LINES}}
ASK = [{"role": "user", "content": "Write a letter to the king."}]
# Earlier turns, after which the model calls by itself.
CALLED = [x for who in ("queen", "duke", "bishop") for x in (
    {"role": "user", "content": f"Write a letter to the {who}."},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {
        "name": "letter", "arguments": json.dumps({"title": f"To the {who}", "lines": ["How are you?"]})}}]},
    {"role": "tool", "tool_call_id": "c", "content": "sent"})] + ASK
# path, body, what a client's event has in it that brings a part of the answer, answers
CHATS = {
    "form": (dict(messages=ASK, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": LINES}}), b'"content":', 1),
    "forced call": (dict(messages=ASK, tools=[LETTER, MEMO], tool_choice="required", parallel_tool_calls=False), b'"arguments":', 1),
    "free call": (dict(messages=CALLED, tools=[LETTER]), b'"arguments":', 1),
    "two answers": (dict(messages=ASK, n=2, max_tokens=80, ignore_eos=True), b'"content":', 2),
    "two forms": (dict(messages=ASK, n=2, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": LINES}}), b'"content":', 2),
}


def fold(chunks):
    """({index: (content, [(name, arguments)], finish reason)}, usage) of a stream's documents; a call has one id."""
    found, usage = {}, None
    for x in chunks:
        usage = x.get("usage") or usage
        for choice in x["choices"]:
            at = found.setdefault(choice["index"], dict(content="", calls={}, reason=None))
            assert at["reason"] is None, "more behind the end"
            at["content"] += choice["delta"].get("content") or ""
            for t in choice["delta"].get("tool_calls") or []:
                call = at["calls"].setdefault(t["index"], dict(id=[], name="", arguments=""))
                call["id"] += [t["id"]] if t.get("id") else []
                call["name"] += t["function"].get("name") or ""
                call["arguments"] += t["function"].get("arguments") or ""
            at["reason"] = choice["finish_reason"]
    for at in found.values():
        assert all(len(t["id"]) == 1 for t in at["calls"].values()), at
    return {i: (a["content"], [(t["name"], t["arguments"]) for t in a["calls"].values()], a["reason"]) for i, a in found.items()}, usage


class Lost(unittest.TestCase):
    def stream(self, c, body, between=None, mark=b"", after=0):
        """The stream's bytes. When `mark` has come so often, between() is called, and what comes meanwhile waits to be read."""
        with Connection(c.http, 300) as k:
            k.send("POST", "/v1/chat/completions", dict(body, stream=True, stream_options={"include_usage": True}))
            status, headers = k.head()
            data = b""
            for piece in k.pieces(headers):
                data += piece
                if between and data.count(mark) >= after:
                    between()
                    between = None
            self.assertEqual(status, 200, data)
            self.assertIsNone(between, "the answer has ended before")
        return data

    def kill(self, c, which, n_answers):
        """Returns when the coordinator has lost the worker; the answers have not ended then."""
        s = c.status()["replicas"][0]
        os.kill(s["workers"][which]["pid"], signal.SIGKILL)
        after = c.wait(lambda x: x["replicas"][0]["epoch"] > s["epoch"], 120)
        self.assertEqual(sum(after["requests"].values()), n_answers, after["requests"])

    def check(self, what, got):
        for content, calls, reason in got.values():
            texts = [a for _, a in calls] if "call" in what else [content] if "form" in what else []
            self.assertEqual(bool(texts), what != "two answers", (what, content))
            for i, text in enumerate(texts):
                if reason == "length" and i + 1 == len(texts):
                    self.assertIs(is_prefix(LINES, {}, text.rstrip("\ufffd")), True, text)
                else:
                    self.assertTrue(is_valid(LINES, text), text)

    def lose(self, c, what, which, seed):
        body, mark, n = CHATS[what]
        body = dict(dict(temperature=1, seed=seed, max_tokens=160), **body)
        whole = self.stream(c, body)
        want, usage = fold(Reply(200, {}, whole).chunks())
        if what == "free call" and not want[0][1]:
            return False  # it says something, and calls nobody
        self.check(what, want)
        # Early in the answer: events may have several tokens, and those are fewer.
        after = max(2, whole.count(mark) // 10)
        got, told = fold(Reply(200, {}, self.stream(c, body, lambda: self.kill(c, which, n), mark, after)).chunks())
        self.assertEqual(got, want, (what, which))
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            self.assertEqual(told[key], usage[key], (what, which))
        return True

    def test_a_worker_is_killed(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
            f.write(TAGGED)
            f.flush()
            for kw in (dict(), dict(draft="ngram", draft_len="4")) if LONG else (dict(draft="ngram", draft_len="4"),):
                with Cluster(workers=2, threads=1, kv_tokens=8192, no_restart=False, replica_wait=600,
                             set=[f"chat_template={f.name}"], **kw) as c:
                    for i, what in enumerate(CHATS):
                        for which in (0, 1) if LONG else (i % 2,):
                            with self.subTest(what=what, which=which, **kw):
                                self.assertTrue(any(self.lose(c, what, which, seed) for seed in range(10)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
