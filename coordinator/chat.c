#include "coordinator/chat.h"

#include "common/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define KEY_TEMPLATE "tokenizer.chat_template"
#define KEY_TOOL_USE "tokenizer.chat_template.tool_use"

/* The template under a key; *ret stays NULL where there is none. The last one says how tools are
 * called. */
static int open_key(const struct meta *m, const char *key, struct template **ret,
                    enum format_calls *ret_calls, struct errmsg *em)
{
    const char *text;
    size_t bytes;
    int rc = meta_get_string(m, key, &text, &bytes, em);
    if (rc == ERR_NOTFOUND) return 0;
    if (rc == 0) rc = template_open(text, bytes, ret, em);
    if (rc == 0) *ret_calls = format_calls_of(text, bytes);
    return rc < 0 ? err_wrap(em, rc, "key '%s'", key) : 0;
}

static void add_token(struct chat *c, const struct model_file *f, const char *name, int64_t id)
{
    if (id < 0 || id >= (int64_t)vocab_size(f->vocab)) return;
    c->tokens[c->n_tokens++] = (struct template_token){name, vocab_piece(f->vocab, (int32_t)id)};
}

/* As transformers does, a special token that a model does not have is no variable. */
static void read_tokens(struct chat *c, const struct model_file *f)
{
    static const char *const all[CHAT_TOKENS_MAX][2] = {
        {"bos_token", "tokenizer.ggml.bos_token_id"},
        {"eos_token", "tokenizer.ggml.eos_token_id"},
        {"unk_token", "tokenizer.ggml.unknown_token_id"},
        {"pad_token", "tokenizer.ggml.padding_token_id"}};
    for (size_t i = 0; i < CHAT_TOKENS_MAX; i++) {
        const struct meta_kv *kv = meta_find(weights_meta(f->weights), all[i][1]);
        struct meta_int id;
        if (kv && kv->type != META_ARRAY && meta_int_at(kv, 0, &id) && !id.negative &&
            id.value <= INT32_MAX)
            add_token(c, f, all[i][0], (int64_t)id.value);
    }
}

int chat_open(const struct model_file *f, struct chat *ret, struct errmsg *em)
{
    struct chat c = {0};
    const struct meta *m = weights_meta(f->weights);
    int rc = open_key(m, KEY_TEMPLATE, &c.plain, &c.calls, em);
    if (rc == 0) rc = open_key(m, KEY_TOOL_USE, &c.tool_use, &c.calls, em);
    if (rc < 0) {
        chat_close(&c);
        return err_wrap(em, rc, "%s", f->path);
    }
    read_tokens(&c, f);
    *ret = c;
    return 0;
}

int chat_open_text(const struct model_file *f, const char *text, size_t bytes, struct chat *ret,
                   struct errmsg *em)
{
    struct chat c = {0};
    int rc = template_open(text, bytes, &c.plain, em);
    if (rc < 0) return rc;
    if (f) read_tokens(&c, f);
    c.calls = format_calls_of(text, bytes);
    *ret = c;
    return 0;
}

int chat_open_file(const struct model_file *f, const char *path, struct chat *ret,
                   struct errmsg *em)
{
    FILE *file = fopen(path, "rb");
    if (!file) return err_set(em, err_from_errno(errno), "%s: %s", path, strerror(errno));
    char *text = mem_try(TEMPLATE_BYTES_MAX + 1);
    size_t n = text ? fread(text, 1, TEMPLATE_BYTES_MAX + 1, file) : 0;
    int rc = text ? 0 : err_set(em, ERR_NOMEM, "%s: out of memory", path);
    if (rc == 0 && ferror(file)) rc = err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
    (void)fclose(file);
    if (rc == 0) {
        rc = chat_open_text(f, text, n, ret, em);
        if (rc < 0) rc = err_wrap(em, rc, "%s", path);
    }
    mem_free(text);
    return rc;
}

void chat_close(struct chat *c)
{
    template_close(c->plain);
    template_close(c->tool_use);
    *c = (struct chat){0};
}

int chat_render(const struct chat *c, const struct template_input *in, struct template_prompt *ret,
                struct errmsg *em)
{
    struct template_input with = *in;
    bool tools = json_kind(in->tools) != JSON_KIND_NULL;
    const struct template *t = tools && c->tool_use ? c->tool_use : c->plain;
    if (!t) return err_set(em, ERR_NOTFOUND, "the model has no chat template");
    with.tokens = c->tokens;
    with.n_tokens = c->n_tokens;
    return template_render(t, &with, ret, em);
}
