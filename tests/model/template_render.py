"""What transformers makes of chat templates and conversations: the expectations of template_test.py.

  template_render.py FILE...     prints, as JSON, for each template file and each conversation of chats.json
                                 {"text"}, {"refused": the words of raise_exception}, or {"failed": why}

Needs transformers and jinja2, of the versions that template_test.py names; no torch."""
import datetime, json, os, sys

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = 1700000000  # what strftime_now shows, in UTC
# Special tokens of no model in particular; as in the conversations' texts, they are text of the template's own.
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def chats():
    with open(os.path.join(HERE, "chats.json"), encoding="utf-8") as f:
        return json.load(f)


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
    out = {}
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8", newline="") as f:
            template = f.read()
        out[os.path.basename(path)] = [render(template, chat) for chat in chats()]
    json.dump(out, sys.stdout, ensure_ascii=True, indent=0)


if __name__ == "__main__":
    main()
