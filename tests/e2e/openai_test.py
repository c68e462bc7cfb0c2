"""The official Python client of OpenAI's API, from PyPI, against two workers: what people point at a cluster without a change."""
import asyncio, json, os, subprocess, sys, tempfile, typing, unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from cluster import MODEL, Cluster

try:
    import openai, pydantic
except ImportError:
    print("skipped: no package openai")
    sys.exit(77)

NAME = os.path.basename(MODEL)
PROMPT = "Once upon a time"


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(workers=2, threads=1, kv_tokens=8192)
        cls.client = openai.OpenAI(base_url=cls.c.http + "/v1", api_key="none", max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.c.stop()

    def complete(self, **kw):
        return self.client.completions.create(**dict(dict(model=NAME, prompt=PROMPT, max_tokens=8, temperature=0), **kw))

    def idle(self):
        self.c.wait(lambda s: s["requests"] == {"running": 0, "queued": 0}, 10)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [NAME])
        self.assertEqual(self.client.models.retrieve(NAME).id, NAME)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_completion(self):
        r = self.complete()
        self.assertEqual((r.object, r.model, r.choices[0].finish_reason), ("text_completion", NAME, "length"))
        self.assertEqual((r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens), (4, 8, 12))
        self.assertTrue(r.choices[0].text)

    def test_schema(self):
        """The client's own helper: a class becomes a schema, and the answer an object of it."""
        class Animal(pydantic.BaseModel):
            name: typing.Annotated[str, pydantic.Field(max_length=12)]
            kind: typing.Literal["cat", "dog", "bird"]
            legs: typing.Annotated[int, pydantic.Field(ge=0, le=8)]
            colors: typing.Annotated[list[typing.Annotated[str, pydantic.Field(max_length=8)]], pydantic.Field(max_length=2)]
            owner: typing.Optional[typing.Annotated[str, pydantic.Field(max_length=8)]]

        ask = dict(model=NAME, messages=[{"role": "user", "content": "Describe an animal."}], response_format=Animal, temperature=1, max_tokens=200)
        for seed in range(3):
            a = self.client.chat.completions.parse(**ask, seed=seed).choices[0]
            self.assertEqual(a.finish_reason, "stop")
            self.assertIsInstance(a.message.parsed, Animal)
            with self.client.chat.completions.stream(**ask, seed=seed) as s:
                self.assertEqual(s.get_final_completion().choices[0].message.parsed, a.message.parsed)
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client.chat.completions.parse(**dict(ask, max_tokens=5))

    def test_forced_tool(self):
        class Weather(pydantic.BaseModel):
            city: typing.Annotated[str, pydantic.Field(max_length=12)]
            unit: typing.Literal["C", "F"]

        ask = dict(model=NAME, messages=[{"role": "user", "content": "How warm is it in Rome?"}], tools=[openai.pydantic_function_tool(Weather)],
                   temperature=1, max_tokens=100)
        for choice in ("required", {"type": "function", "function": {"name": "Weather"}}):
            for seed in range(2):
                (call, *_) = self.client.chat.completions.parse(**ask, seed=seed, tool_choice=choice).choices[0].message.tool_calls
                self.assertEqual(call.function.name, "Weather")
                self.assertIsInstance(call.function.parsed_arguments, Weather)

    def test_stream(self):
        whole = self.complete()
        for usage in (False, True):
            chunks = list(self.complete(stream=True, **({"stream_options": {"include_usage": True}} if usage else {})))
            self.assertEqual("".join(x.choices[0].text for x in chunks if x.choices), whole.choices[0].text)
            self.assertEqual(len({x.id for x in chunks}), 1)
            reasons = [x.choices[0].finish_reason for x in chunks if x.choices]
            self.assertEqual(reasons, [None] * (len(reasons) - 1) + ["length"])
            last = chunks[-1]
            self.assertEqual(last.choices == [], usage)
            if usage:
                self.assertEqual((last.usage.prompt_tokens, last.usage.completion_tokens), (4, 8))
                self.assertTrue(all(x.usage is None for x in chunks[:-1]))

    def test_chat(self):
        """Streamed and not, with usage, several answers and log-probabilities."""
        def chat(**kw):
            return self.client.chat.completions.create(**dict(dict(model=NAME, max_tokens=8, temperature=0, messages=[
                {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]), **kw))
        whole = chat()
        message = whole.choices[0].message
        self.assertEqual((whole.object, message.role, whole.usage.completion_tokens > 0), ("chat.completion", "assistant", True))
        self.assertEqual(whole.usage.completion_tokens_details.reasoning_tokens, 0)
        # What newer clients send and what changes nothing here.
        again = chat(safety_identifier="s", prompt_cache_key="k", metadata={"a": "b"}, verbosity="medium", store=False)
        self.assertEqual(again.choices[0].message.content, message.content)
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(x.choices[0].delta.content or "" for x in chunks if x.choices), message.content)
        self.assertEqual([x.choices[0].finish_reason for x in chunks if x.choices][-1], whole.choices[0].finish_reason)
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.total_tokens), ([], whole.usage.total_tokens))
        several = chat(n=2, temperature=1, seed=4, logprobs=True, top_logprobs=3)
        self.assertEqual([x.index for x in several.choices], [0, 1])
        for x in several.choices:
            self.assertEqual("".join(t.token for t in x.logprobs.content), x.message.content)
            self.assertEqual(len(x.logprobs.content[0].top_logprobs), 3)
        with self.assertRaises(openai.BadRequestError) as e:
            chat(messages=[])
        self.assertEqual(e.exception.param, "messages")

    def test_first_event_leaves_at_once(self):
        """The first event is there while the answer still runs."""
        stream = self.complete(max_tokens=400, extra_body={"ignore_eos": True}, stream=True)
        next(iter(stream))
        self.assertEqual(self.c.status()["requests"]["running"], 1)
        stream.close()
        self.idle()

    def test_n_and_logprobs(self):
        r = self.complete(n=3, temperature=1, seed=1, logprobs=2)
        self.assertEqual([x.index for x in r.choices], [0, 1, 2])
        self.assertGreater(len({x.text for x in r.choices}), 1)
        for x in r.choices:
            self.assertEqual("".join(x.logprobs.tokens), x.text)
            self.assertEqual(len(x.logprobs.top_logprobs[0]), 2)

    def test_errors(self):
        for kw, kind, code in ((dict(model="other"), openai.NotFoundError, "model_not_found"),
                               (dict(temperature=-1), openai.BadRequestError, None),
                               (dict(prompt="7" * 9000), openai.BadRequestError, "context_length_exceeded"),
                               (dict(extra_body={"nonsense": 1}), openai.BadRequestError, "unknown_parameter")):
            for stream in (False, True):
                with self.assertRaises(kind) as e:
                    self.complete(stream=stream, **kw)
                self.assertEqual(e.exception.code, code)
                self.assertTrue(e.exception.body["message"])

    def test_timeout(self):
        """The client gives up, and nothing goes on for it."""
        with self.assertRaises(openai.APITimeoutError):
            self.client.with_options(timeout=0.5).completions.create(model=NAME, prompt=PROMPT, max_tokens=4000,
                                                                     extra_body={"ignore_eos": True})
        self.idle()

    def test_cancellation(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=self.c.http + "/v1", api_key="none", max_retries=0) as client:
                task = asyncio.create_task(client.completions.create(model=NAME, prompt=PROMPT, max_tokens=4000,
                                                                     extra_body={"ignore_eos": True}))
                await asyncio.to_thread(self.c.wait, lambda s: s["requests"]["running"] == 1, 10)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        asyncio.run(run())
        self.idle()


class Tools(unittest.TestCase):
    """A scripted model that thinks, and then calls a tool (tests/lib/specs.py)."""

    def test_tools(self):
        tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
        with tempfile.TemporaryDirectory() as d:
            subprocess.run([sys.executable, os.path.join(HERE, "..", "lib", "specs.py"), d], check=True, stdout=subprocess.DEVNULL)
            with Cluster(model=os.path.join(d, "tools.gguf"), workers=2, threads=1, kv_tokens=2048) as c, \
                    openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=60) as client:
                messages = [{"role": "user", "content": "Weather?"}]
                def chat(**kw):
                    return client.chat.completions.create(**dict(dict(model="tools.gguf", messages=messages, tools=tools, temperature=0),
                                                                 **kw))
                r = chat()
                self.assertIn(r.usage.completion_tokens_details.reasoning_tokens, range(r.usage.completion_tokens))
                whole = r.choices[0]
                call = whole.message.tool_calls[0]
                self.assertEqual((call.type, call.function.name, json.loads(call.function.arguments)),
                                 ("function", "weather", {"city": "Paris"}))
                self.assertEqual((whole.finish_reason, whole.message.content, whole.message.reasoning_content),
                                 ("tool_calls", "Look:", "Hm."))
                # Streamed: the same, bit by bit.
                content = reasoning = arguments = ""
                names, reasons = [], []
                for chunk in chat(stream=True):
                    delta = chunk.choices[0].delta
                    content += delta.content or ""
                    reasoning += getattr(delta, "reasoning_content", None) or ""
                    for t in delta.tool_calls or []:
                        self.assertEqual(t.index, 0)
                        names += [t.function.name] if t.function.name else []
                        arguments += t.function.arguments or ""
                    reasons.append(chunk.choices[0].finish_reason)
                self.assertEqual((content, reasoning, names, json.loads(arguments), reasons[-1]),
                                 ("Look:", "Hm.", ["weather"], {"city": "Paris"}, "tool_calls"))
                # The result is handed back: arguments are what they say, for the template.
                messages += [whole.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
                self.assertEqual(chat().choices[0].finish_reason, "tool_calls")
                r = client.post("/../apply-template", body={"messages": messages, "tools": tools}, cast_to=object)
                self.assertIn('[assistant]Look:weather{"city": "Paris"}\n[tool]sunny\n', r["prompt"])
                # Without tools it is text, and so is reasoning that is not wanted apart.
                raw = chat(tools=openai.NOT_GIVEN, extra_body={"reasoning_format": "none"}).choices[0]
                self.assertTrue(raw.message.content.startswith("Hm.</think>\n\nLook: <tool_call>"))
                self.assertEqual((raw.finish_reason, raw.message.tool_calls), ("stop", None))
                self.assertEqual(chat(tool_choice="none").choices[0].message.tool_calls, None)
                with self.assertRaises(openai.BadRequestError) as e:
                    chat(tool_choice={"type": "function", "function": {"name": "other"}})
                self.assertEqual(e.exception.param, "tool_choice")


class Lost(unittest.TestCase):
    def test_error_in_a_stream(self):
        with Cluster(workers=2, threads=1, kv_tokens=2048, replica_wait=0) as c, \
                openai.OpenAI(base_url=c.http + "/v1", api_key="none", max_retries=0, timeout=60) as client:
            stream = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=1000, stream=True, extra_body={"ignore_eos": True})
            with self.assertRaises(openai.APIError) as e:
                for i, _ in enumerate(stream):
                    if i == 2:
                        os.kill(c.pids()["flotilla-worker"][0], 9)
            self.assertIn("w1", str(e.exception))
            with self.assertRaises(openai.InternalServerError):
                client.completions.create(model=NAME, prompt=PROMPT)


if __name__ == "__main__":
    unittest.main(verbosity=2)
