/* `template`: a conversation on stdin to the prompt that a model is given. */
#include "coordinator/cli/cmd.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "coordinator/chat.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

struct request {
    const char *model, *template, *pre;
    bool json, no_generation_prompt;
    uint64_t now_s;
    bool has_now;
};

/* The members of a request that say how to render it; others are not this command's. */
static int read_input(const struct request *r, const struct json *j, struct template_input *ret,
                      struct errmsg *em)
{
    struct template_input in = {.add_generation_prompt = !r->no_generation_prompt};
    const struct json *add;
    in.now_s = r->has_now ? (int64_t)r->now_s : (int64_t)time(NULL);
    if (json_kind(j) == JSON_KIND_ARRAY) {
        in.messages = j;
    } else {
        in.messages = json_get(j, "messages");
        in.tools = json_get(j, "tools");
        in.documents = json_get(j, "documents");
        in.kwargs = json_get(j, "chat_template_kwargs");
        add = json_get(j, "add_generation_prompt");
        if (add && !json_as_bool(add, &in.add_generation_prompt))
            return err_set(em, ERR_RANGE, "add_generation_prompt: not true or false");
    }
    *ret = in;
    return 0;
}

static void print_json(const struct template_prompt *p, const struct model_file *f,
                       const struct tokens *t)
{
    struct json *j = json_new_object(), *pieces = json_new_array();
    json_put_string(j, "prompt", p->text, p->bytes);
    for (size_t i = 0, at = 0; i < p->n_runs; at += p->runs[i++].bytes) {
        struct json *x = json_new_object();
        json_put_string(x, "text", p->text + at, p->runs[i].bytes);
        json_put_bool(x, "special", p->runs[i].special);
        json_add(pieces, x);
    }
    json_put(j, "pieces", pieces);
    if (f->vocab) json_put(j, "tokens", json_tokens(t->ids, t->n));
    json_put_u64(j, "steps", p->steps);
    json_print(j, stdout);
    json_free(j);
}

static int render(const struct request *r, const struct model_file *f, const struct chat *c,
                  const struct buf *text, struct errmsg *em)
{
    struct json *j = NULL;
    struct template_input in;
    struct template_prompt p = {0};
    struct tokens t = {0};
    int rc = json_read(text->data ? text->data : "", text->len, &j, em);
    if (rc < 0) return err_wrap(em, rc, "stdin");
    rc = read_input(r, j, &in, em);
    if (rc == 0) rc = chat_render(c, &in, &p, em);
    if (rc == 0 && r->json && f->vocab)
        rc = vocab_encode_runs(f->vocab, p.text, p.runs, p.n_runs, &t, em);
    if (rc == 0 && r->json)
        print_json(&p, f, &t);
    else if (rc == 0)
        (void)fwrite(p.text, 1, p.bytes, stdout);
    mem_free(t.ids);
    template_prompt_close(&p);
    json_free(j);
    return rc;
}

static int run(const struct request *r, struct errmsg *em)
{
    struct model_file f = {0};
    struct chat c = {0};
    struct buf text = {0};
    int rc = r->model ? model_file_open(r->model, false, r->pre, &f, em) : 0;
    if (rc == 0 && r->template)
        rc = chat_open_file(r->model ? &f : NULL, r->template, &c, em);
    else if (rc == 0)
        rc = chat_open(&f, &c, em);
    if (rc == 0) rc = cmd_read_stdin(&text, em);
    if (rc == 0) rc = render(r, &f, &c, &text, em);
    buf_close(&text);
    chat_close(&c);
    model_file_close(&f);
    return rc;
}

int cmd_template(int argc, char **argv)
{
    struct request r = {0};
    const struct opt table[] = {
        {"--model", 'm', OPT_STRING, &r.model, 0, 0, NULL,
         "FILE  a GGUF file; one with a vocabulary alone will do"},
        {"--template", 0, OPT_STRING, &r.template, 0, 0, NULL,
         "FILE  a Jinja template in place of the model's"},
        {"--no-generation-prompt", 0, OPT_FLAG, &r.no_generation_prompt, 0, 0, NULL,
         "do not end where the model's answer begins"},
        {"--now", 0, OPT_U64, &r.now_s, 0, 0, &r.has_now,
         "SECONDS  since 1970: the time that the template is told (now)"},
        CMD_OPT_PRE(&r.pre),
        CMD_OPT_JSON(&r.json),
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options("flotilla template --model FILE < MESSAGES",
                     "  echo '[{\"role\": \"user\", \"content\": \"Hello\"}]' | flotilla template "
                     "--model smol.gguf\n",
                     table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    int rc = 0;
    if (!r.model && !r.template)
        rc = err_set(&em, ERR_CONF, "needs --model or --template");
    else if (r.has_now && r.now_s > INT64_MAX / 2)
        rc = err_set(&em, ERR_CONF, "--now is too late");
    if (rc == 0) rc = run(&r, &em);
    return rc < 0 ? cmd_fail("template", rc, &em) : CMD_OK;
}
