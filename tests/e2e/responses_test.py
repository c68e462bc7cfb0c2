"""OpenAI's Responses API through the official Python client, against two workers: texts, items, streams, tools, errors."""
import json, os, subprocess, sys, tempfile, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import MODEL, Cluster
from raw_http import post

try:
    import openai
except ImportError:
    print("skipped: no package openai")
    sys.exit(77)

NAME = os.path.basename(MODEL)


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(workers=2, threads=1, kv_tokens=8192)
        cls.client = openai.OpenAI(base_url=cls.c.http + "/v1", api_key="none", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.c.stop()

    def create(self, *args, **kw):
        return self.client.responses.create(**dict(dict(model=NAME, input=args[0] if args else "Hello", max_output_tokens=8,
                                                        temperature=0), **kw))

    def chat(self, *messages, **kw):
        body = dict({"messages": [{"role": r, "content": c} for r, c in messages], "max_tokens": 8, "temperature": 0}, **kw)
        return post(self.c.http, "/v1/chat/completions", body).json()

    def test_response(self):
        """The same answer as a chat's."""
        r = self.create(instructions="Be brief.", metadata={"a": "b"})
        want = self.chat(("system", "Be brief."), ("user", "Hello"))
        reason = want["choices"][0]["finish_reason"]
        self.assertEqual((r.object, r.model, r.status), ("response", NAME, {"length": "incomplete", "stop": "completed"}[reason]))
        self.assertEqual(r.output_text, want["choices"][0]["message"]["content"])
        self.assertEqual((r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens),
                         tuple(want["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")))
        self.assertEqual((r.instructions, r.metadata, r.store, r.temperature, r.max_output_tokens, r.tools, r.error),
                         ("Be brief.", {"a": "b"}, False, 0, 8, [], None))
        self.assertEqual(r.usage.output_tokens_details.reasoning_tokens, 0)

    def test_end(self):
        """An answer that the limit cut is incomplete, and one that ended by itself is not."""
        cut = self.create(max_output_tokens=2)
        self.assertEqual((cut.status, cut.incomplete_details.reason, cut.output[0].status), ("incomplete", "max_output_tokens", "incomplete"))
        whole = self.create("What is 1+1?", max_output_tokens=200)
        self.assertEqual((whole.status, whole.incomplete_details, whole.output[0].status), ("completed", None, "completed"))

    def test_conversation(self):
        """Items of the answer go back as they came, and the conversation's beginning is found computed."""
        first = self.create(max_output_tokens=40)
        items = [{"role": "user", "content": "Hello"}, *(x.model_dump(exclude_none=True) for x in first.output),
                 {"role": "user", "content": [{"type": "input_text", "text": "And then?"}]}]
        second = self.create(items)
        want = self.chat(("user", "Hello"), ("assistant", first.output_text), ("user", "And then?"))
        self.assertEqual((second.output_text, second.usage.input_tokens),
                         (want["choices"][0]["message"]["content"], want["usage"]["prompt_tokens"]))
        self.assertGreater(second.usage.input_tokens_details.cached_tokens, 0)

    def test_stream(self):
        whole = self.create()
        events = list(self.create(stream=True))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        kinds = [e.type.removeprefix("response.") for e in events]
        self.assertEqual(kinds[:4], ["created", "in_progress", "output_item.added", "content_part.added"])
        self.assertEqual(kinds[-4:], ["output_text.done", "content_part.done", "output_item.done", "incomplete"])
        self.assertEqual(set(kinds[4:-4]), {"output_text.delta"})
        self.assertEqual("".join(e.delta for e in events[4:-4]), whole.output_text)
        self.assertEqual((events[-4].text, events[-1].response.output_text), (whole.output_text, whole.output_text))
        self.assertEqual((events[0].response.status, events[-1].response.usage.total_tokens), ("in_progress", whole.usage.total_tokens))
        # The client's own accumulation.
        with self.client.responses.stream(model=NAME, input="What is 1+1?", max_output_tokens=200, temperature=0) as s:
            text = "".join(e.delta for e in s if e.type == "response.output_text.delta")
            self.assertEqual(s.get_final_response().output_text, text)
        self.assertEqual(text, self.create("What is 1+1?", max_output_tokens=200).output_text)

    def test_forms(self):
        """An answer is valid by its schema, and a tool that must be called is."""
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"],
                  "additionalProperties": False}
        form = {"type": "json_schema", "name": "n", "schema": schema}
        r = self.create("How many?", text={"format": form}, max_output_tokens=60)
        self.assertIn(json.loads(r.output_text)["n"], range(100))
        self.assertEqual((r.status, r.text.format.type), ("completed", "json_schema"))
        with self.assertRaises(openai.BadRequestError) as e:
            self.create(text={"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}})
        self.assertEqual(e.exception.param, "text.format")
        self.assertIn("'text.format'", str(e.exception))
        tools = [{"type": "function", "name": name, "parameters": schema} for name in ("f", "g")]
        for choice, names in (("required", "fg"), ({"type": "function", "name": "g"}, "g")):
            r = self.create("How many?", tools=tools, tool_choice=choice, max_output_tokens=100, parallel_tool_calls=False)
            self.assertEqual([x.type for x in r.output], ["function_call"])
            self.assertIn(r.output[0].name, names)
            self.assertIn(json.loads(r.output[0].arguments)["n"], range(100))

    def test_errors(self):
        for kw, kind, param in ((dict(model="other"), openai.NotFoundError, "model"),
                                (dict(temperature=-1), openai.BadRequestError, "temperature"),
                                (dict(store=True), openai.BadRequestError, "store"),
                                (dict(previous_response_id="resp-1"), openai.BadRequestError, "previous_response_id"),
                                (dict(tools=[{"type": "web_search"}]), openai.BadRequestError, "tools"),
                                (dict(text={"format": {"type": "nonsense"}}), openai.BadRequestError, "text.format"),
                                (dict(input=[]), openai.BadRequestError, "input"),
                                (dict(input="7" * 9000), openai.BadRequestError, None),
                                (dict(extra_body={"nonsense": 1}), openai.BadRequestError, "nonsense")):
            for stream in (False, True):
                with self.assertRaises(kind) as e:
                    self.create(stream=stream, **kw)
                self.assertEqual(e.exception.param, param)
                self.assertTrue(e.exception.body["message"])
        for method in ("GET", "DELETE"):
            with self.assertRaises(openai.NotFoundError):
                (self.client.responses.retrieve if method == "GET" else self.client.responses.delete)("resp-1")


class Tools(unittest.TestCase):
    """A scripted model that thinks, and then calls a tool (tests/lib/specs.py)."""

    def test_tools(self):
        tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}]
        with tempfile.TemporaryDirectory() as d:
            subprocess.run([sys.executable, os.path.join(HERE, "..", "lib", "specs.py"), d], check=True, stdout=subprocess.DEVNULL)
            with Cluster(model=os.path.join(d, "tools.gguf"), workers=2, threads=1, kv_tokens=2048) as c, \
                    openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=60) as client:
                ask = dict(model="tools.gguf", input=[{"role": "user", "content": "Weather?"}], tools=tools, temperature=0)
                r = client.responses.create(**ask)
                self.assertEqual([x.type for x in r.output], ["reasoning", "message", "function_call"])
                thought, message, call = r.output
                self.assertEqual((thought.content[0].text, message.content[0].text, call.name, json.loads(call.arguments)),
                                 ("Hm.", "Look:", "weather", {"city": "Paris"}))
                self.assertEqual((r.status, r.tools[0].strict, r.usage.output_tokens_details.reasoning_tokens), ("completed", False, 1))
                with client.responses.stream(**{k: v for k, v in ask.items() if k != "tools"}, extra_body={"tools": tools}) as s:
                    events = [e for e in s]
                last = events[-1].response
                self.assertEqual([(x.type, x.status) for x in last.output],
                                 [("reasoning", "completed"), ("message", "completed"), ("function_call", "completed")])
                self.assertEqual(last.output[2].arguments, call.arguments)
                arguments = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
                self.assertEqual(arguments, call.arguments)
                self.assertEqual([e.arguments for e in events if e.type == "response.function_call_arguments.done"], [arguments])
                # All of it goes back, with the result, and is the same conversation as a chat's.
                ask["input"] += [x.model_dump(exclude_none=True) for x in r.output]
                ask["input"] += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
                again = client.responses.create(**ask)
                want = post(c.http, "/tokenize", {"tools": [{"type": "function", "function": {
                    "name": "weather", "parameters": {"type": "object"}, "strict": True}}], "messages": [
                        {"role": "user", "content": "Weather?"},
                        {"role": "assistant", "content": "Look:", "reasoning_content": "Hm.", "tool_calls": [{
                            "id": call.call_id, "type": "function", "function": {"name": "weather", "arguments": call.arguments}}]},
                        {"role": "tool", "tool_call_id": call.call_id, "content": "sunny"}]}).json()
                self.assertEqual((again.usage.input_tokens, again.output[2].name), (want["count"], "weather"))


class Lost(unittest.TestCase):
    def test_error_in_a_stream(self):
        with Cluster(workers=2, threads=1, kv_tokens=2048, replica_wait=0) as c, \
                openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=60) as client:
            events = []
            for e in client.responses.create(model=NAME, input="Hello", stream=True, extra_body={"ignore_eos": True}):
                events.append(e)
                if len(events) == 8:
                    os.kill(c.pids()["flotilla-worker"][0], 9)
            self.assertEqual([e.type for e in events[-2:]], ["error", "response.failed"])
            self.assertIn("w1", events[-2].message)
            failed = events[-1].response
            self.assertEqual((failed.status, failed.error.code), ("failed", "server_error"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
