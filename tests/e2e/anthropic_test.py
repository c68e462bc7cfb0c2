"""The official Python client of Anthropic's API, from PyPI, against two workers: messages, streams, tools, counting, errors."""
import asyncio, json, os, subprocess, sys, tempfile, typing, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import MODEL, Cluster, is_idle
from raw_http import post

try:
    import anthropic, pydantic
except ImportError:
    print("skipped: no package anthropic")
    sys.exit(77)

NAME = os.path.basename(MODEL)


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(workers=2, threads=1, kv_tokens=8192)
        cls.client = anthropic.Anthropic(base_url=cls.c.http, api_key="none", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.c.stop()

    def create(self, *messages, **kw):
        body = dict({"temperature": 0}, **kw.pop("extra_body", {}))
        return self.client.messages.create(**dict(dict(model=NAME, max_tokens=8, extra_body=body, messages=[
            {"role": "user", "content": m} if isinstance(m, (str, list)) else m for m in messages or ("Hello",)]), **kw))

    def test_message(self):
        """The same answer as OpenAI's API gives."""
        r = self.create("Hello", system="Be brief.")
        want = post(self.c.http, "/v1/chat/completions", {"messages": [{"role": "system", "content": "Be brief."},
                                                                       {"role": "user", "content": "Hello"}],
                                                          "max_tokens": 8, "temperature": 0}).json()
        self.assertEqual((r.type, r.role, r.model, r.content[0].type), ("message", "assistant", NAME, "text"))
        self.assertEqual(r.content[0].text, want["choices"][0]["message"]["content"])
        self.assertEqual(r.stop_reason, {"length": "max_tokens", "stop": "end_turn"}[want["choices"][0]["finish_reason"]])
        self.assertEqual((r.usage.input_tokens + r.usage.cache_read_input_tokens, r.usage.output_tokens),
                         (want["usage"]["prompt_tokens"], want["usage"]["completion_tokens"]))
        blocks = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
        self.assertEqual(self.create(blocks, system=[{"type": "text", "text": "Be brief."}]).content[0].text, r.content[0].text)

    def test_stream(self):
        whole = self.create()
        with self.client.messages.stream(model=NAME, max_tokens=8, extra_body={"temperature": 0},
                                         messages=[{"role": "user", "content": "Hello"}]) as s:
            self.assertEqual("".join(s.text_stream), whole.content[0].text)
            last = s.get_final_message()
        self.assertEqual((last.content[0].text, last.stop_reason, last.usage.output_tokens),
                         (whole.content[0].text, whole.stop_reason, whole.usage.output_tokens))

    LONG = [{"role": "user", "content": "Write a long story about a ship, a storm and an island."}]

    def idle(self):
        self.c.wait(is_idle, 10)

    def test_stop_sequence(self):
        """Which of them ended the answer, streamed and not; an answer that ends by itself met none."""
        whole = self.create("Count from one to nine.", max_tokens=40)
        words = whole.content[0].text.split()
        self.assertGreater(len(words), 6)
        stops = ["never said", words[5]]
        r = self.create("Count from one to nine.", max_tokens=40, stop_sequences=stops)
        self.assertEqual((r.stop_reason, r.stop_sequence), ("stop_sequence", words[5]))
        self.assertEqual(r.content[0].text.rstrip(), whole.content[0].text.split(words[5])[0].rstrip())
        with self.client.messages.stream(model=NAME, max_tokens=40, extra_body={"temperature": 0}, stop_sequences=stops,
                                         messages=[{"role": "user", "content": "Count from one to nine."}]) as s:
            last = s.get_final_message()
        self.assertEqual((last.stop_reason, last.stop_sequence, last.content[0].text), ("stop_sequence", words[5], r.content[0].text))
        self.assertEqual((whole.stop_reason in ("end_turn", "max_tokens"), whole.stop_sequence), (True, None))

    def test_settings(self):
        """What coding agents send beside text: thinking, hints for caches, effort, a form of the answer, the system in the middle."""
        plain = self.create()
        for kw in (dict(thinking={"type": "adaptive"}), dict(thinking={"type": "enabled", "budget_tokens": 1024}),
                   dict(thinking={"type": "disabled"}), dict(cache_control={"type": "ephemeral"}), dict(service_tier="auto"),
                   dict(output_config={"effort": "low"}), dict(metadata={"user_id": "u" * 200})):
            self.assertEqual(self.create(**kw).content, plain.content, kw)
        blocks = [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]
        self.assertEqual(self.create(blocks).content, plain.content)
        form = {"type": "json_schema", "schema": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
                                                  "required": ["n"], "additionalProperties": False}}
        r = self.create(output_config={"format": form}, max_tokens=40)
        self.assertIn(json.loads(r.content[0].text)["n"], range(10))
        self.assertEqual(r.stop_reason, "end_turn")
        said = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}, {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Bye"}]
        want = post(self.c.http, "/v1/chat/completions", {"messages": said, "max_tokens": 8, "temperature": 0}).json()
        self.assertEqual(self.create(*said).content[0].text, want["choices"][0]["message"]["content"])

    def test_parse(self):
        """The client's own helper: a class becomes a schema, and the answer an object of it."""
        class Weather(pydantic.BaseModel):
            sky: typing.Literal["clear", "cloudy", "rain"]
            cold: bool

        ask = dict(model=NAME, max_tokens=60, messages=[{"role": "user", "content": "How is the weather in Oslo?"}], output_format=Weather,
                   extra_body={"temperature": 0})
        r = self.client.messages.parse(**ask)
        self.assertIsInstance(r.parsed_output, Weather)
        with self.client.messages.stream(**ask) as s:
            self.assertEqual(s.get_final_message().parsed_output, r.parsed_output)

    def test_query(self):
        """What stands behind a question mark in the path is of no account: clients ask so for what is in a trial phase."""
        body = {"model": NAME, "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": "Hello"}]}
        r = post(self.c.http, "/v1/messages?beta=true", body, headers={"anthropic-beta": "some-2026-01-01", "anthropic-version": "2023-06-01"})
        self.assertEqual((r.status, r.json()["content"]), (200, [{"type": "text", "text": self.create().content[0].text}]))

    def test_timeout(self):
        """The client gives up, and nothing goes on for it."""
        with self.assertRaises(anthropic.APITimeoutError):
            self.client.with_options(timeout=0.1).messages.create(model=NAME, max_tokens=4000, messages=self.LONG)
        self.idle()

    def test_cancellation(self):
        async def run():
            async with anthropic.AsyncAnthropic(base_url=self.c.http, api_key="none", max_retries=0) as client:
                task = asyncio.create_task(client.messages.create(model=NAME, max_tokens=4000, messages=self.LONG, extra_body={"temperature": 0}))
                await asyncio.to_thread(self.c.wait, lambda s: s["requests"]["running"] == 1, 10)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        asyncio.run(run())
        self.idle()

    def test_counting(self):
        n = self.client.messages.count_tokens(model=NAME, messages=[{"role": "user", "content": "What is the capital of France?"}])
        self.assertEqual(n.input_tokens, 37)
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.count_tokens(model="other", messages=[{"role": "user", "content": "x"}])

    def test_errors(self):
        for kw, kind in ((dict(model="other"), anthropic.NotFoundError), (dict(extra_body={"temperature": -1}), anthropic.BadRequestError),
                         (dict(tool_choice={"type": "any"}), anthropic.BadRequestError),  # there are no tools
                        
                         (dict(extra_body={"nonsense": 1}), anthropic.BadRequestError)):
            for stream in (False, True):
                with self.assertRaises(kind) as e:
                    self.create(stream=stream, **kw)
                self.assertEqual(e.exception.body["type"], "error")
                self.assertTrue(e.exception.body["error"]["message"])
        for body in ({"messages": [{"role": "user", "content": "x"}]}, {"max_tokens": 1}, {"max_tokens": 1, "messages": []},
                     {"max_tokens": 1, "messages": [{"role": "tool", "content": "x"}]},
                     {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, []):
            r = post(self.c.http, "/v1/messages", body)
            self.assertEqual((r.status, r.json()["error"]["type"]), (400, "invalid_request_error"), body)


class Tools(unittest.TestCase):
    """A scripted model that thinks, and then calls a tool (tests/lib/specs.py)."""

    def test_tools(self):
        tools = [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}]
        with tempfile.TemporaryDirectory() as d:
            subprocess.run([sys.executable, os.path.join(HERE, "..", "lib", "specs.py"), d], check=True, stdout=subprocess.DEVNULL)
            with Cluster(model=os.path.join(d, "tools.gguf"), workers=2, threads=1, kv_tokens=2048) as c, \
                    anthropic.Anthropic(base_url=c.http, api_key="none", max_retries=0, timeout=60) as client:
                ask = dict(model="tools.gguf", max_tokens=100, extra_body={"temperature": 0}, tools=tools,
                           messages=[{"role": "user", "content": "Weather?"}])
                r = client.messages.create(**ask)
                self.assertEqual([b.type for b in r.content], ["thinking", "text", "tool_use"])
                thought, text, call = r.content
                self.assertEqual((thought.thinking, text.text, call.name, call.input, r.stop_reason),
                                 ("Hm.", "Look:", "weather", {"city": "Paris"}, "tool_use"))
                with client.messages.stream(**ask) as s:
                    events = [e.type for e in s]
                    last = s.get_final_message()
                self.assertEqual([b.type for b in last.content], ["thinking", "text", "tool_use"])
                self.assertEqual((last.content[0].thinking, last.content[1].text, last.content[2].input, last.stop_reason),
                                 ("Hm.", "Look:", {"city": "Paris"}, "tool_use"))
                self.assertEqual((events[0], events[-1], events.count("content_block_stop")), ("message_start", "message_stop", 3))
                # The result comes back as a block of the user's, and reaches the template as a message of the tool's.
                ask["messages"] += [{"role": "assistant", "content": [b.model_dump() for b in r.content]},
                                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}]
                n = client.messages.count_tokens(**{k: ask[k] for k in ("model", "messages", "tools")}).input_tokens
                prompt = post(c.http, "/tokenize", {"tools": [{"type": "function", "function": {
                    "name": "weather", "description": "d", "parameters": {"type": "object"}}}], "messages": [
                        {"role": "user", "content": "Weather?"},
                        {"role": "assistant", "content": "Look:", "tool_calls": [{"id": "x", "type": "function", "function": {
                            "name": "weather", "arguments": json.dumps({"city": "Paris"})}}]},
                        {"role": "tool", "tool_call_id": "x", "content": "sunny"}]}).json()
                self.assertEqual(n, prompt["count"])
                self.assertEqual(client.messages.create(**ask).stop_reason, "tool_use")


if __name__ == "__main__":
    unittest.main(verbosity=2)
