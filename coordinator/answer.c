#include "coordinator/answer.h"

#include "common/base/mem.h"

#include <math.h>

void answer_open(struct answer *a, const struct answer_options *o)
{
    *a = (struct answer){.logprobs = o->logprobs, .n_top = o->logprobs ? o->n_top : 0};
    detok_init(&a->detok, o->stops, o->n_stops);
}

void answer_close(struct answer *a)
{
    struct buf *bufs[] = {&a->ends, &a->chosen, &a->top_ids, &a->top, &a->embedding, &a->part};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) buf_close(bufs[i]);
    detok_close(&a->detok);
    mem_free(a->tokens.ids);
    *a = (struct answer){0};
}

/* The answer's stride is its own: what a worker says of one token cannot change where the others'
 * are read. */
static void keep_logprobs(struct answer *a, const struct msg_logprobs *l, uint32_t k)
{
    bool has = l && l->chosen;
    float chosen = has ? l->chosen[k] : -INFINITY;
    (void)buf_append(&a->chosen, &chosen, sizeof chosen);
    for (uint32_t i = 0; i < a->n_top; i++) {
        size_t at = (size_t)k * (has ? l->n_top : 0) + i;
        bool told = has && i < l->n_top;
        int32_t id = told ? l->top_ids[at] : -1;
        float top = told ? l->top[at] : -INFINITY;
        (void)buf_append(&a->top_ids, &id, sizeof id);
        (void)buf_append(&a->top, &top, sizeof top);
    }
}

static bool take(struct answer *a, const struct vocab *v, int32_t token)
{
    struct vocab_string piece = vocab_piece(v, token);
    tokens_push(&a->tokens, token);
    if (!vocab_is_control(v, token)) detok_push(&a->detok, piece.data, piece.len);
    uint32_t end = (uint32_t)a->detok.text.len;
    (void)buf_append(&a->ends, &end, sizeof end);
    return !a->detok.stopped;
}

bool answer_take(struct answer *a, const struct vocab *v, int32_t token,
                 const struct msg_logprobs *l, uint32_t k)
{
    if (a->detok.stopped || a->ended) return false;
    if (a->logprobs) keep_logprobs(a, l, k);
    return take(a, v, token);
}

void answer_embed(struct answer *a, const float *values, uint32_t n)
{
    (void)buf_append(&a->embedding, values, n * sizeof *values);
}

void answer_receive(struct answer *a, const struct vocab *v, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n && !a->detok.stopped; i++) (void)take(a, v, tokens[i]);
    a->n_received = (uint32_t)a->tokens.n;
}

void answer_end(struct answer *a, enum finish_reason reason)
{
    a->ended = true;
    a->finish_reason = a->detok.stopped ? FINISH_STOP : reason;
    detok_finish(&a->detok);
}

/* Bytes of text when the first n tokens had been taken. */
static size_t text_end(const struct answer *a, uint32_t n)
{
    const uint32_t *ends = (const uint32_t *)(const void *)a->ends.data;
    return n ? ends[n - 1] : 0;
}

bool answer_rewind(struct answer *a, uint32_t n)
{
    if (n > a->tokens.n) return false;
    a->n_sent = n;
    a->text_sent = text_end(a, n);
    a->end_sent = false;
    return true;
}

bool answer_has_news(const struct answer *a)
{
    return a->n_sent < a->tokens.n || a->text_sent < a->detok.text.len ||
           (a->ended && !a->end_sent);
}

/* Tokens that were received have no log-probabilities: they are told apart from those that have. */
static uint32_t next_part(const struct answer *a)
{
    uint32_t n = (uint32_t)a->tokens.n;
    if (a->logprobs && a->n_sent < a->n_received) n = a->n_received;
    return n - a->n_sent > ANSWER_NEWS_TOKENS ? a->n_sent + ANSWER_NEWS_TOKENS : n;
}

bool answer_news(struct answer *a, struct msg_generate_reply *ret)
{
    const struct buf *text = &a->detok.text;
    a->n_told = next_part(a);
    bool all = a->n_told == a->tokens.n;
    *ret = (struct msg_generate_reply){.first_index = a->n_sent,
                                       .n_tokens = a->n_told - a->n_sent,
                                       .tokens = a->tokens.ids + a->n_sent,
                                       .queued_us = a->n_sent ? 0 : a->queued_us,
                                       .cached = a->n_sent ? 0 : a->cached,
                                       .text = text->data ? text->data + a->text_sent : "",
                                       .finish_reason = all ? a->finish_reason : FINISH_NONE};
    if (all && a->ended) {
        ret->has_stop = a->detok.stopped && a->finish_reason == FINISH_STOP;
        ret->stop = (uint32_t)a->detok.stop;
        ret->has_draft = a->drafts;
        ret->draft = a->draft;
        ret->embedding = (const float *)(const void *)a->embedding.data;
        ret->n_embedding = (uint32_t)(a->embedding.len / sizeof(float));
    }
    if (!all) {
        buf_drop(&a->part, a->part.len);
        (void)buf_append(&a->part, ret->text, text_end(a, a->n_told) - a->text_sent);
        ret->text = a->part.data ? a->part.data : "";
    }
    if (!a->logprobs || !ret->n_tokens || a->n_sent < a->n_received) return all;
    size_t from = a->n_sent - a->n_received;
    ret->logprobs =
        (struct msg_logprobs){(const float *)(const void *)a->chosen.data + from, a->n_top,
                              (const int32_t *)(const void *)a->top_ids.data + from * a->n_top,
                              (const float *)(const void *)a->top.data + from * a->n_top};
    return all;
}

void answer_sent(struct answer *a)
{
    bool all = a->n_told == a->tokens.n;
    a->n_sent = a->n_told;
    a->text_sent = all ? a->detok.text.len : text_end(a, a->n_told);
    a->end_sent = all && a->ended;
}
