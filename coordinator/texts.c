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
    mem_free(t);
}

static void run(void *arg)
{
    struct text *t = arg;
    if (t->chat) {
        t->rc = conversation_encode(t->chat, t->bytes, t->len, &t->tokens,
                                    t->want_prompt ? &t->prompt : NULL, &t->em);
        return;
    }
    if (t->bos && vocab_adds_bos(t->vocab)) tokens_push(&t->tokens, vocab_bos(t->vocab));
    t->rc = vocab_encode(t->vocab, t->bytes, t->len, t->special, &t->tokens, &t->em);
}

static void drop(void *arg)
{
    texts_free(arg);
}

int texts_put(struct offload *o, uint64_t client, const struct text *t, struct errmsg *em)
{
    struct text *copy = mem_zalloc(sizeof *copy);
    *copy = *t;
    copy->bytes = mem_try(t->len + 1);
    if (!copy->bytes) {
        mem_free(copy);
        return err_set(em, ERR_NOMEM, "no memory for a text of %zu bytes", t->len);
    }
    memcpy(copy->bytes, t->bytes, t->len);
    const struct offload_job job = {
        .id = t->request, .client = client, .bytes = t->len, .run = run, .drop = drop, .arg = copy};
    int rc = offload_put(o, &job, em);
    if (rc == 0) return 0;
    texts_free(copy);
    return err_wrap(em, rc, "tokenising");
}
