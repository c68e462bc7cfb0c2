/* A client's Generate, from its message to the core: what of it cannot be served is refused in
 * words, what was asked before is joined, the rest is submitted. */
#include "coordinator/shell.h"

#include "common/base/mem.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What can never fit the context is refused before it is unpacked, or handed to the tokeniser. */
static int check_size(const struct shell *s, struct net_frame body, struct errmsg *em)
{
    struct msg_generate_size z;
    int rc = wire_size_generate(body.data, body.bytes, &z, em);
    if (rc < 0) return rc;
    if (z.prompt_bytes / s->token_bytes > s->ctx)
        return err_set(em, ERR_LIMIT,
                       "field 'prompt': %zu bytes do not fit the context of %" PRIu32
                       " tokens: the longest token has %" PRIu32 " bytes",
                       z.prompt_bytes, s->ctx, s->token_bytes);
    if (z.n_prompt_tokens >= s->ctx)
        return err_set(em, ERR_LIMIT,
                       "field 'prompt_tokens': a prompt of %zu tokens does not fit the context of "
                       "%" PRIu32,
                       z.n_prompt_tokens, s->ctx);
    if (z.n_received > s->ctx)
        return err_set(em, ERR_LIMIT,
                       "field 'received': %zu tokens cannot have been received: the context is "
                       "%" PRIu32,
                       z.n_received, s->ctx);
    return 0;
}

/* Why a Generate that wants an embedding cannot be served, or NULL. */
static const char *check_embed(const struct msg_generate *g)
{
    if (g->format) return "field 'embed': an embedding has no form; not with 'format_json'";
    if (g->samples > 1) return "field 'embed': a prompt has one embedding; 'samples' must be 1";
    if (g->n_received || g->from_index)
        return "field 'embed': there are no tokens; not with 'received' or 'from_index'";
    return NULL;
}

/* Why a Generate cannot be served, or NULL. */
static const char *check_generate(const struct shell *s, const struct msg_generate *g,
                                  enum status *ret_status, struct errmsg *em)
{
    *ret_status = STATUS_INVALID_ARGUMENT;
    if (g->format && g->ignore_eos)
        return "field 'format_json': an answer with a form has an end; not with 'ignore_eos'";
    if ((g->tenant[0] || g->has_priority || g->user[0]) &&
        !(s->caller_roles & (KEY_GATEWAY | KEY_ADMIN))) {
        *ret_status = STATUS_PERMISSION_DENIED;
        return "fields 'tenant', 'priority' and 'user' are believed from a gateway's key only";
    }
    if (g->model[0] && strcmp(g->model, s->name) != 0) {
        *ret_status = STATUS_NOT_FOUND;
        return "field 'model': no such model";
    }
    for (uint32_t i = 0; i < g->n_prompt_tokens; i++)
        if (g->prompt_tokens[i] < 0 || (uint32_t)g->prompt_tokens[i] >= s->model->dims.vocab)
            return "field 'prompt_tokens': a token is not in the vocabulary";
    if (g->n_prompt_tokens && g->prompt_len) return "both 'prompt' and 'prompt_tokens' are given";
    if (g->chat && (g->prompt_len || g->n_prompt_tokens))
        return "field 'chat_json': stands instead of a prompt, not beside it";
    for (uint32_t i = 0; i < g->n_received; i++)
        if (g->received[i] < 0 || (uint32_t)g->received[i] >= s->model->dims.vocab)
            return "field 'received': a token is not in the vocabulary";
    const char *why = g->embed ? check_embed(g) : NULL;
    if (why) return why;
    if (g->samples > 1 && (g->n_received || g->from_index))
        return "field 'samples': 'received' and 'from_index' need samples = 1";
    for (uint32_t i = 0; i < g->sampling.n_bias; i++)
        if ((uint32_t)g->sampling.bias_ids[i] >= s->model->dims.vocab)
            return "field 'logit_bias': a token is not in the vocabulary";
    if (drafts__choose(s, g, NULL, em) < 0) return em->text;
    return NULL;
}

/* The call outlives the message. */
static void keep_sampling(struct call *c, const struct sampling *m)
{
    c->sampling = *m;
    c->sampling.bias_ids = NULL;
    c->sampling.bias = NULL;
    if (m->n_bias == 0) return;
    (void)buf_append(&c->bias_ids, m->bias_ids, m->n_bias * sizeof *m->bias_ids);
    (void)buf_append(&c->bias, m->bias, m->n_bias * sizeof *m->bias);
    c->sampling.bias_ids = (const int32_t *)(const void *)c->bias_ids.data;
    c->sampling.bias = (const float *)(const void *)c->bias.data;
}

/* Hands the call's answers to the core. */
static void submit(struct shell *s, struct call *c)
{
    if (s->now_ns >= c->deadline_ns) {
        calls__finish(s, c, STATUS_DEADLINE_EXCEEDED, "the request's deadline has passed", 0);
        return;
    }
    struct tokens all = {0};
    for (size_t i = 0; i < c->prompt.n; i++) tokens_push(&all, c->prompt.ids[i]);
    for (size_t i = 0; i < c->received.n; i++) tokens_push(&all, c->received.ids[i]);
    for (uint32_t i = 0; i < c->n_answers && !c->ended; i++) {
        struct event e = {.type = EV_SUBMIT,
                          .submit = {.request = c->request + i,
                                     .client = c->share,
                                     .tenant = c->tenant,
                                     .priority = c->priority,
                                     .tokens = all.ids,
                                     .n_prompt = (uint32_t)c->prompt.n,
                                     .n_received = (uint32_t)c->received.n,
                                     .max_new = c->max_new,
                                     .sample = i,
                                     .sampling = c->sampling,
                                     .grammar = c->grammar,
                                     .ignore_eos = c->ignore_eos,
                                     .embed = c->embed,
                                     .drafts = drafts__begin(s, c, i, &all),
                                     .draft_length = c->draft_length,
                                     .deadline_ns = c->deadline_ns - s->now_ns}};
        shell__event(s, &e);
    }
    mem_free(all.ids);
}

/* A Generate that is repeated on a new connection, or because a reply may be lost. */
static void join(struct shell *s, struct call *c, const struct route *from, uint32_t from_index)
{
    calls__set_route(c, from);
    c->heard_ns = s->now_ns;
    c->usage_sent = false;
    for (uint32_t i = 0; i < c->n_answers; i++)
        if (!answer_rewind(&c->answers[i], from_index)) {
            calls__cancel(s, c, "field 'from_index' is beyond what was generated");
            return;
        }
    calls__mark(s, c);
}

/* What the message says is kept; then the prompt goes to the tokeniser, or the core. */
static void begin(struct shell *s, struct call *c, const struct msg_generate *g)
{
    c->embed = g->embed;
    c->max_new = g->embed ? 0 : g->max_tokens;
    c->priority = g->priority;
    c->tenant = g->tenant[0] ? hash_bytes(g->tenant, strlen(g->tenant), 1) | 1 : 0;
    c->ignore_eos = g->ignore_eos;
    c->pieces = g->pieces;
    (void)drafts__choose(s, g, c, NULL); /* it was checked */
    if (g->embed) c->draft = DRAFT_OFF;
    keep_sampling(c, &g->sampling);
    if (!g->has_seed) c->sampling.seed = sampling_draw_seed();
    struct answer_options o = {g->stops, g->n_stops, g->sampling.logprobs,
                               g->sampling.top_logprobs};
    if (o.n_top > s->model->dims.vocab) o.n_top = s->model->dims.vocab; /* as the last stage does */
    for (uint32_t i = 0; i < c->n_answers; i++) answer_open(&c->answers[i], &o);
    for (uint32_t i = 0; i < g->n_received; i++) tokens_push(&c->received, g->received[i]);
    answer_receive(&c->answers[0], s->model->vocab, g->received, g->n_received);
    (void)answer_rewind(&c->answers[0], g->from_index);
    if (c->answers[0].detok.stopped) {
        answer_end(&c->answers[0], FINISH_STOP);
        calls__finish(s, c, STATUS_OK, "", 0);
        return;
    }
    for (uint32_t i = 0; i < g->n_prompt_tokens; i++) tokens_push(&c->prompt, g->prompt_tokens[i]);
    if (g->n_prompt_tokens && !g->format) {
        submit(s, c);
    } else {
        const char *bytes = g->chat ? g->chat : g->prompt;
        const struct text t = {.request = c->request,
                               .vocab = s->model->vocab,
                               .bytes = (char *)(uintptr_t)bytes,
                               .len = g->chat ? strlen(g->chat) : g->prompt_len,
                               .special = g->special,
                               .bos = g->n_prompt_tokens == 0,
                               .format = (char *)(uintptr_t)g->format,
                               .chat = g->chat ? &s->talk : NULL};
        calls__start_text(s, c, &t);
    }
}

void generate__call(struct shell *s, const struct msg_call *h, const struct route *from,
                    struct net_frame body)
{
    struct errmsg em = {0};
    struct msg_generate g;
    enum status status = STATUS_INVALID_ARGUMENT;
    struct call *c = calls__find(s, h->client, h->call);
    const char *why = em.text;
    if (check_size(s, body, &em) == 0) {
        if (wire_get_generate(body.data, body.bytes, &s->body_arena, &g, &em) == 0)
            why = check_generate(s, &g, &status, &em);
        else
            status = calls__unread(s);
    }
    if (why) {
        char text[LIMIT_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "%s", why);
        calls__reply(s, from, h->call, status, text, NULL);
        return;
    }
    if (c) {
        join(s, c, from, g.from_index);
        return;
    }
    if (g.from_index > g.n_received) {
        calls__reply(s, from, h->call, STATUS_INVALID_ARGUMENT,
                     "field 'from_index' is beyond the tokens that were received", NULL);
        return;
    }
    if (s->draining) {
        calls__reply(s, from, h->call, STATUS_UNAVAILABLE, CALLS_RESTARTING, NULL);
        return;
    }
    c = calls__new(s, h, from, g.user, g.samples);
    if (c) begin(s, c, &g);
}

void generate__prompt(struct shell *s, struct call *c, struct text *t)
{
    if (c->prompt.n == 0) {
        c->prompt = t->tokens;
        t->tokens = (struct tokens){0};
    }
    if (t->grammar.len) {
        c->grammar = blob_new(t->grammar.data, t->grammar.len);
        if (!c->grammar) {
            calls__finish(s, c, STATUS_RESOURCE_EXHAUSTED, "no memory for the answer's form", 1000);
            return;
        }
    }
    submit(s, c);
}
