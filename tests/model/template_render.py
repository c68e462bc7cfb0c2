"""What transformers makes of chat templates and conversations: the expectations of template_test.py.

  template_render.py FILE...     prints, as JSON, for each template file and each conversation of chats.json
                                 {"text"}, {"refused": the words of raise_exception}, or {"failed": why}
  template_render.py --snippets  the same for each template of snippets.json and one conversation

Needs transformers and jinja2, of the versions that template_test.py names; no torch."""
import datetime, json, os, sys

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = 1700000000  # what strftime_now shows, in UTC
# Special tokens of no model in particular; as in the conversations' texts, they are text of the template's own.
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def chats():
    with open(os.path.join(HERE, "chats.json"), encoding="utf-8") as f:
        return json.load(f)


def snippets():
    """Short templates of every feature, each with the result that was recorded."""
    with open(os.path.join(HERE, "snippets.json"), encoding="utf-8") as f:
        return json.load(f)


# What snippets.json's templates look at.
SNIPPET_CHAT = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi there"},
                 {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"}],
    "chat_template_kwargs": {"data": {
        "list": [1, 2, 3, 4, 5, 6], "obj": {"a": 1, "b": "two", "Z": None}, "float": 2.50, "int": 7, "neg": -3, "null": None,
        "bool": False, "text": "some <text> & 'more'", "empty": "", "exp": 1e-9,
        "people": [{"name": "Al", "age": 30}, {"name": "bo", "age": 25}, {"name": "Cy", "age": 30}],
        "tree": [{"name": "r", "kids": [{"name": "s", "kids": [{"name": "t"}]}, {"name": "u"}]}, {"name": "v"}]}}}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


def renderer():
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import jinja2
    import tokenizers
    import transformers
    import transformers.utils.chat_template_utils as utils
    utils.datetime = Clock
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **TOKENS)

    def render(template, chat):
        try:
            return {"text": tokenizer.apply_chat_template(
                chat["messages"], tools=chat.get("tools"), documents=chat.get("documents"), chat_template=template,
                add_generation_prompt=chat.get("add_generation_prompt", True), tokenize=False,
                **chat.get("chat_template_kwargs", {}))}
        except Exception as e:
            # raise_exception raises the base class itself; what jinja2 raises is of a class below it.
            return {"refused": str(e)} if type(e) is jinja2.exceptions.TemplateError else {"failed": f"{type(e).__name__}: {e}"}
    return render


def main():
    render = renderer()
    if sys.argv[1:] == ["--snippets"]:
        json.dump([render(template, SNIPPET_CHAT) for template, _ in snippets()], sys.stdout, ensure_ascii=True, indent=0)
        return
    out = {}
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8", newline="") as f:
            template = f.read()
        out[os.path.basename(path)] = [render(template, chat) for chat in chats()]
    json.dump(out, sys.stdout, ensure_ascii=True, indent=0)


if __name__ == "__main__":
    main()
