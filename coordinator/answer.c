#include "coordinator/answer.h"

#include "common/base/mem.h"

void answer_open(struct answer *a, const char *const *stops, uint32_t n_stops)
{
    *a = (struct answer){.finish_reason = ""};
    detok_init(&a->detok, stops, n_stops);
}

void answer_close(struct answer *a)
{
    struct buf *bufs[] = {&a->ends, &a->chosen, &a->top_ids, &a->top};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) buf_close(bufs[i]);
    detok_close(&a->detok);
    mem_free(a->tokens.ids);
    *a = (struct answer){0};
}

static void keep_logprobs(struct answer *a, const struct msg_logprobs *l, uint32_t k)
{
    a->n_top = l->n_top;
    (void)buf_append(&a->chosen, l->chosen + k, sizeof *l->chosen);
    if (l->n_top == 0) return;
    (void)buf_append(&a->top_ids, l->top_ids + (size_t)k * l->n_top, l->n_top * sizeof *l->top_ids);
    (void)buf_append(&a->top, l->top + (size_t)k * l->n_top, l->n_top * sizeof *l->top);
}

bool answer_take(struct answer *a, const struct vocab *v, int32_t token,
                 const struct msg_logprobs *l, uint32_t k)
{
    if (a->detok.stopped || a->ended) return false;
    if (l && l->chosen) keep_logprobs(a, l, k);
    struct vocab_string piece = vocab_piece(v, token);
    tokens_push(&a->tokens, token);
    if (!vocab_is_control(v, token)) detok_push(&a->detok, piece.data, piece.len);
    uint32_t end = (uint32_t)a->detok.text.len;
    (void)buf_append(&a->ends, &end, sizeof end);
    return !a->detok.stopped;
}

void answer_receive(struct answer *a, const struct vocab *v, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) (void)answer_take(a, v, tokens[i], NULL, 0);
    a->n_received = (uint32_t)a->tokens.n;
}

void answer_end(struct answer *a, const char *finish_reason)
{
    a->ended = true;
    a->finish_reason = a->detok.stopped ? "stop" : finish_reason;
    detok_finish(&a->detok);
}

bool answer_rewind(struct answer *a, uint32_t n)
{
    const uint32_t *ends = (const uint32_t *)(const void *)a->ends.data;
    if (n > a->tokens.n) return false;
    a->n_sent = n;
    a->text_sent = n ? ends[n - 1] : 0;
    return true;
}

bool answer_has_news(const struct answer *a)
{
    return a->n_sent < a->tokens.n || a->text_sent < a->detok.text.len;
}

void answer_news(const struct answer *a, struct msg_generate_reply *ret)
{
    const struct buf *text = &a->detok.text;
    *ret = (struct msg_generate_reply){.first_index = a->n_sent,
                                       .n_tokens = (uint32_t)a->tokens.n - a->n_sent,
                                       .tokens = a->tokens.ids + a->n_sent,
                                       .queued_us = a->n_sent ? 0 : a->queued_us,
                                       .text = text->data ? text->data + a->text_sent : "",
                                       .finish_reason = a->finish_reason};
    if (!a->chosen.len || a->n_sent < a->n_received) return;
    size_t from = a->n_sent - a->n_received;
    ret->logprobs =
        (struct msg_logprobs){(const float *)(const void *)a->chosen.data + from, a->n_top,
                              (const int32_t *)(const void *)a->top_ids.data + from * a->n_top,
                              (const float *)(const void *)a->top.data + from * a->n_top};
}

void answer_sent(struct answer *a)
{
    a->n_sent = (uint32_t)a->tokens.n;
    a->text_sent = a->detok.text.len;
}
