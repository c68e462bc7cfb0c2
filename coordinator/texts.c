#include "coordinator/texts.h"

#include "common/base/mem.h"

#include <string.h>

int texts_open(struct net *net, struct offload **ret, struct errmsg *em)
{
    const struct offload_options o = {.what = "texts",
                                      .n_threads = 2,
                                      .short_bytes = TEXTS_SHORT_BYTES,
                                      .jobs_max = TEXTS_MAX,
                                      .bytes_max = TEXTS_BYTES_MAX,
                                      .share = TEXTS_SHARE};
    return offload_open(net, &o, ret, em);
}

void texts_free(struct text *t)
{
    if (!t) return;
    mem_free(t->bytes);
    mem_free(t->tokens.ids);
    mem_free(t->prompt);
    mem_free(t->format);
    buf_close(&t->grammar);
    mem_free(t);
}

static void encode(struct text *t)
{
    if (t->chat) {
        t->rc = conversation_encode(t->chat, t->bytes, t->len, &t->tokens,
                                    t->want_prompt ? &t->prompt : NULL, &t->open_thought, &t->em);
        return;
    }
    if (t->bos && vocab_adds_bos(t->vocab)) tokens_push(&t->tokens, vocab_bos(t->vocab));
    t->rc = vocab_encode(t->vocab, t->bytes, t->len, t->special, &t->tokens, &t->em);
}

static bool has_end(const struct vocab *v)
{
    for (uint32_t i = 0; i < vocab_size(v); i++)
        if (vocab_is_eog(v, (int32_t)i)) return true;
    return false;
}

static void compile(struct text *t)
{
    enum format_calls calls = t->chat && t->chat->chat ? t->chat->chat->calls : FORMAT_PLAIN;
    t->rc =
        format_compile(t->format, strlen(t->format), calls, t->open_thought, &t->grammar, &t->em);
    if (t->rc == 0 && t->grammar.len && !has_end(t->vocab))
        t->rc = err_set(&t->em, ERR_UNSUPPORTED, "the model has no token that ends an answer");
    if (t->rc < 0) (void)err_wrap(&t->em, t->rc, "field 'format_json'");
}

static void run(void *arg)
{
    struct text *t = arg;
    encode(t);
    if (t->rc == 0 && t->format) compile(t);
}

static void drop(void *arg)
{
    texts_free(arg);
}

int texts_put(struct offload *o, uint64_t client, const struct text *t, struct errmsg *em)
{
    struct text *copy = mem_zalloc(sizeof *copy);
    size_t format_bytes = t->format ? strlen(t->format) + 1 : 0;
    *copy = *t;
    copy->bytes = mem_try(t->len + 1);
    copy->format = t->format ? mem_try(format_bytes) : NULL;
    if (!copy->bytes || (t->format && !copy->format)) {
        texts_free(copy);
        return err_set(em, ERR_NOMEM, "no memory for a text of %zu bytes", t->len);
    }
    memcpy(copy->bytes, t->bytes, t->len);
    if (t->format) memcpy(copy->format, t->format, format_bytes);
    const struct offload_job job = {.id = t->request,
                                    .client = client,
                                    .bytes = t->len + format_bytes,
                                    .run = run,
                                    .drop = drop,
                                    .arg = copy};
    int rc = offload_put(o, &job, em);
    if (rc == 0) return 0;
    texts_free(copy);
    return err_wrap(em, rc, "tokenising");
}
