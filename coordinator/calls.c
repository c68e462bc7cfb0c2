/* Clients: calls come in, text goes out. */
#include "coordinator/shell.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define SILENT_NS (2 * NS_PER_S)
#define KEEP_ALIVE_NS (500 * NS_PER_MS)
#define CLIENT_STALL_NS (60 * NS_PER_S)
#define TEXT_MOST_NS (60 * NS_PER_S) /* a Tokenize is not pinged: it ends by itself */

void calls__open(struct shell *s)
{
    s->n_calls = 2 * s->config->max_requests;
    s->calls = mem_zalloc(s->n_calls * sizeof *s->calls);
    s->next_request = 1; /* 0 is the probe's */
}

static void free_call(struct call *c)
{
    detok_close(&c->detok);
    mem_free(c->prompt.ids);
    mem_free(c->unsent.ids);
    struct buf *bufs[] = {&c->bias_ids, &c->bias, &c->chosen, &c->top_ids, &c->top};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) buf_close(bufs[i]);
    *c = (struct call){0};
}

void calls__close(struct shell *s)
{
    for (uint32_t i = 0; s->calls && i < s->n_calls; i++) free_call(&s->calls[i]);
    mem_free(s->calls);
}

static struct call *find(struct shell *s, struct instance client, uint64_t id)
{
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = &s->calls[i];
        if (c->used && c->id == id && instance_eq(c->client, client)) return c;
    }
    return NULL;
}

static struct call *by_request(struct shell *s, uint64_t request)
{
    for (uint32_t i = 0; i < s->n_calls; i++)
        if (s->calls[i].used && s->calls[i].request == request) return &s->calls[i];
    return NULL;
}

/* ---- sending ---- */

static int send_frames(struct shell *s, const struct route *to, const struct msg_reply *header,
                       const struct buf *body)
{
    wire_put_reply(header, &s->out);
    struct net_frame f[3] = {{to->bytes, to->n}, {s->out.data, s->out.len}, {"", 0}};
    if (body) f[2] = (struct net_frame){body->data, body->len};
    return net_send(s->clients, f, 3);
}

/* The one reply of a call that has no state here. */
static void answer(struct shell *s, const struct route *to, uint64_t call, enum status status,
                   const char *text, const struct buf *body)
{
    struct msg_reply h = {.call = call, .end = true, .status = status};
    (void)snprintf(h.message, sizeof h.message, "%s", text);
    if (status == STATUS_RESOURCE_EXHAUSTED) h.retry_ms = 1000;
    (void)send_frames(s, to, &h, body); /* a client that takes no reply asks again or gives up */
}

static void cancel(struct shell *s, struct call *c, const char *why)
{
    struct event e = {.type = EV_CANCEL, .request = {c->request, why}};
    if (!c->ended) shell__event(s, &e);
}

/* Everything the client lacks, in one message. */
static void flush(struct shell *s, struct call *c)
{
    struct msg_reply h = {.call = c->id, .end = c->ended, .status = c->status};
    struct buf *text = &c->detok.text;
    if (c->ended) {
        (void)snprintf(h.message, sizeof h.message, "%s", c->text);
        h.retry_ms = c->retry_ms;
    }
    struct msg_generate_reply r = {.first_index = c->first_unsent,
                                   .n_tokens = (uint32_t)c->unsent.n,
                                   .tokens = c->unsent.ids,
                                   .text = text->data ? text->data : "",
                                   .finish_reason = c->ended ? c->finish_reason : ""};
    if (c->chosen.len)
        r.logprobs = (struct msg_logprobs){(const float *)(const void *)c->chosen.data, c->n_top,
                                           (const int32_t *)(const void *)c->top_ids.data,
                                           (const float *)(const void *)c->top.data};
    if (!c->usage_sent && c->prompt.n) {
        r.has_usage = true;
        r.prompt_tokens = c->prompt.ids;
        r.n_prompt_tokens = (uint32_t)c->prompt.n;
        r.seed = c->sampling.seed;
    }
    wire_put_generate_reply(&r, &s->body);
    int rc = send_frames(s, &c->route, &h, &s->body);
    if (rc == ERR_AGAIN && !c->refused_ns) c->refused_ns = s->now_ns;
    if (rc == ERR_AGAIN && s->now_ns < c->refused_ns + CLIENT_STALL_NS)
        return; /* later, and then more at once */
    if (rc < 0) {
        cancel(s, c, rc == ERR_AGAIN ? "the client takes no replies" : "the client is gone");
        free_call(c);
        return;
    }
    c->dirty = false;
    c->refused_ns = 0;
    c->usage_sent |= r.has_usage;
    c->replied_ns = s->now_ns;
    c->first_unsent += (uint32_t)c->unsent.n;
    c->unsent.n = 0;
    buf_drop(text, text->len);
    buf_drop(&c->chosen, c->chosen.len);
    buf_drop(&c->top_ids, c->top_ids.len);
    buf_drop(&c->top, c->top.len);
    if (c->ended) free_call(c);
}

void calls__flush(struct shell *s)
{
    for (uint32_t i = 0; i < s->n_calls; i++)
        if (s->calls[i].used && s->calls[i].dirty) flush(s, &s->calls[i]);
}

/* ---- the core's actions ---- */

static void keep_logprobs(struct call *c, const struct msg_logprobs *l, uint32_t k)
{
    if (!l->chosen) return;
    c->n_top = l->n_top;
    (void)buf_append(&c->chosen, l->chosen + k, sizeof *l->chosen);
    if (l->n_top == 0) return;
    (void)buf_append(&c->top_ids, l->top_ids + (size_t)k * l->n_top, l->n_top * sizeof *l->top_ids);
    (void)buf_append(&c->top, l->top + (size_t)k * l->n_top, l->n_top * sizeof *l->top);
}

bool calls__tokens(struct shell *s, const struct action *a)
{
    const int32_t *tokens = a->tokens.tokens;
    struct call *c = by_request(s, a->tokens.request);
    if (!c || c->ended || c->detok.stopped) return false;
    for (uint32_t i = 0; i < a->tokens.n && !c->detok.stopped; i++) {
        keep_logprobs(c, &a->tokens.logprobs, i);
        struct vocab_string piece = vocab_piece(s->model->vocab, tokens[i]);
        tokens_push(&c->unsent, tokens[i]);
        if (!vocab_is_control(s->model->vocab, tokens[i]))
            detok_push(&c->detok, piece.data, piece.len);
    }
    c->dirty = true;
    return c->detok.stopped;
}

static void end(struct call *c, enum status status, const char *text, const char *finish_reason,
                uint32_t retry_ms)
{
    c->ended = c->dirty = true;
    c->status = status;
    c->finish_reason = finish_reason;
    c->retry_ms = retry_ms;
    (void)snprintf(c->text, sizeof c->text, "%s", text);
    detok_finish(&c->detok);
}

void calls__end(struct shell *s, const struct action *a)
{
    struct call *c = by_request(s, a->end.request);
    if (!c || c->ended) return;
    /* Static texts: the action's do not outlive the core's next step. */
    const char *reason = strcmp(a->end.finish_reason, "length") == 0 ? "length"
                         : a->end.finish_reason[0]                   ? "stop"
                                                                     : "";
    end(c, a->end.status, a->end.text, c->detok.stopped ? "stop" : reason, a->end.retry_ms);
}

void calls__stop(struct shell *s)
{
    for (uint32_t i = 0; i < s->n_calls; i++)
        if (s->calls[i].used && !s->calls[i].ended)
            end(&s->calls[i], STATUS_UNAVAILABLE, "the coordinator is stopping", "", 0);
    calls__flush(s);
}

void calls__tick(struct shell *s, uint64_t lost_ns)
{
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = &s->calls[i];
        if (!c->used) continue;
        c->heard_ns = c->heard_ns + lost_ns < s->now_ns ? c->heard_ns + lost_ns : s->now_ns;
        if (s->now_ns >= c->heard_ns + (c->generates ? SILENT_NS : TEXT_MOST_NS)) {
            cancel(s, c, "the client is silent");
            free_call(c);
        } else if (c->generates && !c->ended && s->now_ns >= c->deadline_ns) {
            cancel(s, c, ""); /* the core ends it too; still in the text queue, only this does */
            end(c, STATUS_DEADLINE_EXCEEDED, "the request's deadline has passed", "", 0);
            flush(s, c);
        } else if (c->dirty || (!c->ended && s->now_ns >= c->replied_ns + KEEP_ALIVE_NS)) {
            flush(s, c);
        }
    }
}

/* ---- methods ---- */

static struct call *new_call(struct shell *s, const struct msg_call *h, const struct route *from)
{
    uint64_t ms = h->deadline_ms ? h->deadline_ms : s->config->deadline_s * UINT64_C(1000);
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = &s->calls[i];
        if (c->used) continue;
        *c = (struct call){.used = true,
                           .route = *from,
                           .client = h->client,
                           .id = h->call,
                           .request = s->next_request++,
                           .heard_ns = s->now_ns,
                           .replied_ns = s->now_ns,
                           .deadline_ns =
                               s->now_ns +
                               (ms < LIMIT_DEADLINE_MS ? ms : LIMIT_DEADLINE_MS) * NS_PER_MS};
        return c;
    }
    return NULL;
}

/* Hands the text to the other thread, or ends the call where its queue is full. */
static void start_text(struct shell *s, struct call *c, const char *text, size_t len, bool special,
                       bool bos)
{
    struct textjob *job = mem_zalloc(sizeof *job);
    *job = (struct textjob){.id = c->request, .len = len, .special = special, .bos = bos};
    job->text = mem_try(len + 1);
    if (job->text) {
        memcpy(job->text, text, len);
        if (textjobs_put(s->text, job)) return;
    }
    textjob_free(job);
    end(c, STATUS_RESOURCE_EXHAUSTED, "too many texts are waiting to be tokenised", "", 1000);
}

static void submit(struct shell *s, struct call *c)
{
    if (s->now_ns >= c->deadline_ns) {
        end(c, STATUS_DEADLINE_EXCEEDED, "the request's deadline has passed", "", 0);
        return;
    }
    struct event e = {.type = EV_SUBMIT,
                      .submit = {.request = c->request,
                                 .tokens = c->prompt.ids,
                                 .n_prompt = (uint32_t)c->prompt.n,
                                 .max_new = c->max_new,
                                 .sampling = c->sampling,
                                 .ignore_eos = c->ignore_eos,
                                 .deadline_ns = c->deadline_ns - s->now_ns}};
    shell__event(s, &e);
}

/* Why a Generate cannot be served, or NULL. */
static const char *check_generate(const struct shell *s, const struct msg_generate *g,
                                  enum status *ret_status)
{
    *ret_status = STATUS_INVALID_ARGUMENT;
    if (g->unsupported) {
        *ret_status = STATUS_UNIMPLEMENTED;
        return g->unsupported;
    }
    if (g->model[0] && strcmp(g->model, s->name) != 0) {
        *ret_status = STATUS_NOT_FOUND;
        return "field 'model': no such model";
    }
    for (uint32_t i = 0; i < g->n_prompt_tokens; i++)
        if (g->prompt_tokens[i] < 0 || (uint32_t)g->prompt_tokens[i] >= s->model->dims.vocab)
            return "field 'prompt_tokens': a token is not in the vocabulary";
    if (g->n_prompt_tokens && g->prompt_len) return "both 'prompt' and 'prompt_tokens' are given";
    for (uint32_t i = 0; i < g->sampling.n_bias; i++)
        if ((uint32_t)g->sampling.bias_ids[i] >= s->model->dims.vocab)
            return "field 'logit_bias': a token is not in the vocabulary";
    return NULL;
}

/* The call outlives the message. */
static void keep_sampling(struct call *c, const struct msg_sampling *m)
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

static void generate(struct shell *s, const struct msg_call *h, const struct route *from,
                     struct net_frame body)
{
    struct errmsg em = {0};
    struct msg_generate g;
    enum status status = STATUS_INVALID_ARGUMENT;
    struct call *c = find(s, h->client, h->call);
    if (c) { /* repeated after a reconnection */
        c->route = *from;
        return;
    }
    const char *why = em.text;
    if (wire_get_generate(body.data, body.bytes, &s->body_arena, &g, &em) == 0)
        why = check_generate(s, &g, &status);
    if (why) {
        char text[LIMIT_TEXT_BYTES];
        (void)snprintf(text, sizeof text,
                       status == STATUS_UNIMPLEMENTED ? "field '%s' is not served" : "%s", why);
        answer(s, from, h->call, status, text, NULL);
        return;
    }
    c = new_call(s, h, from);
    if (!c) {
        answer(s, from, h->call, STATUS_RESOURCE_EXHAUSTED, "too many calls are live", NULL);
        return;
    }
    c->generates = true;
    c->max_new = g.max_tokens;
    c->ignore_eos = g.ignore_eos;
    keep_sampling(c, &g.sampling);
    if (!g.has_seed) {
        if (getrandom(&c->sampling.seed, sizeof c->sampling.seed, 0) < 0)
            c->sampling.seed = s->now_ns;
        c->sampling.seed >>= 11; /* a JSON number holds 53 bits exactly */
    }
    detok_init(&c->detok, g.stops, g.n_stops);
    if (g.n_prompt_tokens) {
        for (uint32_t i = 0; i < g.n_prompt_tokens; i++)
            tokens_push(&c->prompt, g.prompt_tokens[i]);
        submit(s, c);
    } else {
        start_text(s, c, g.prompt, g.prompt_len, g.special, true);
    }
}

static void tokenize(struct shell *s, const struct msg_call *h, const struct route *from,
                     struct net_frame body)
{
    struct errmsg em = {0};
    const char *text;
    bool special;
    if (wire_get_tokenize(body.data, body.bytes, &s->body_arena, &text, &special, &em) < 0) {
        answer(s, from, h->call, STATUS_INVALID_ARGUMENT, em.text, NULL);
        return;
    }
    struct call *c = new_call(s, h, from);
    if (!c)
        answer(s, from, h->call, STATUS_RESOURCE_EXHAUSTED, "too many calls are live", NULL);
    else
        start_text(s, c, text, strlen(text), special, false);
}

void calls__text_done(struct shell *s, struct textjob *job)
{
    struct call *c = by_request(s, job->id);
    if (!c || c->ended) return;
    if (job->rc < 0) {
        end(c, STATUS_INVALID_ARGUMENT, job->em.text, "", 0);
    } else if (c->generates) {
        c->prompt = job->tokens;
        job->tokens = (struct tokens){0};
        submit(s, c);
    } else {
        wire_put_tokens(job->tokens.ids, (uint32_t)job->tokens.n, &s->body);
        answer(s, &c->route, c->id, STATUS_OK, "", &s->body);
        free_call(c);
    }
}

static void cancel_call(struct shell *s, const struct msg_call *h, const struct route *from,
                        struct net_frame body)
{
    struct errmsg em = {0};
    uint64_t id;
    if (wire_get_cancel(body.data, body.bytes, &s->body_arena, &id, &em) < 0) {
        answer(s, from, h->call, STATUS_INVALID_ARGUMENT, em.text, NULL);
        return;
    }
    struct call *c = find(s, h->client, id);
    answer(s, from, h->call, c ? STATUS_OK : STATUS_NOT_FOUND, c ? "" : "no such call", NULL);
    if (!c || c->ended) return;
    cancel(s, c, "cancelled by the client");
    if (c->used && !c->ended) /* it was still being tokenised */
        end(c, STATUS_CANCELLED, "cancelled by the client", "", 0);
}

static void ping(struct shell *s, const struct msg_call *h, const struct route *from,
                 struct net_frame body)
{
    struct errmsg em = {0};
    const uint64_t *ids;
    uint32_t n, n_unknown = 0;
    if (wire_get_ping(body.data, body.bytes, &s->body_arena, &ids, &n, &em) < 0) {
        answer(s, from, h->call, STATUS_INVALID_ARGUMENT, em.text, NULL);
        return;
    }
    uint64_t *unknown = mem_alloc((n + 1) * sizeof *unknown);
    for (uint32_t i = 0; i < n; i++) {
        struct call *c = find(s, h->client, ids[i]);
        if (c) {
            c->heard_ns = s->now_ns;
            c->route = *from;
        } else {
            unknown[n_unknown++] = ids[i];
        }
    }
    wire_put_pong(unknown, n_unknown, &s->body);
    answer(s, from, h->call, STATUS_OK, "", &s->body);
    mem_free(unknown);
}

static void status(struct shell *s, const struct msg_call *h, const struct route *from)
{
    struct msg_status m;
    core_status(s->core, &m);
    m.model = s->name;
    m.messages_dropped += s->dropped;
    wire_put_status(&m, &s->body);
    answer(s, from, h->call, STATUS_OK, "", &s->body);
}

void calls__message(struct shell *s, const struct net_msg *m)
{
    struct errmsg em = {0};
    struct msg_call h;
    struct route from = {.n = 0};
    struct net_frame id = net_msg_frame(m, 0);
    if (m->n == 3 && !m->truncated && id.bytes <= ROUTE_BYTES) {
        memcpy(from.bytes, id.data, id.bytes);
        from.n = id.bytes;
    }
    struct net_frame header = m->n == 3 ? net_msg_frame(m, 1) : (struct net_frame){NULL, 0};
    if (!from.n || wire_get_call(header.data, header.bytes, &s->arena, &h, &em) < 0) {
        s->dropped++; /* not a call: there is nobody to answer */
        return;
    }
    struct net_frame body = net_msg_frame(m, 2);
    char text[LIMIT_TEXT_BYTES];
    if (h.version != PROTO_VERSION) {
        (void)snprintf(text, sizeof text,
                       "this server speaks protocol version %u, the call %" PRIu32, PROTO_VERSION,
                       h.version);
        answer(s, &from, h.call, STATUS_FAILED_PRECONDITION, text, NULL);
    } else if (strcmp(h.method, "Generate") == 0) {
        generate(s, &h, &from, body);
    } else if (strcmp(h.method, "Ping") == 0) {
        ping(s, &h, &from, body);
    } else if (strcmp(h.method, "Cancel") == 0) {
        cancel_call(s, &h, &from, body);
    } else if (strcmp(h.method, "Tokenize") == 0) {
        tokenize(s, &h, &from, body);
    } else if (strcmp(h.method, "Models") == 0) {
        wire_put_models(s->name, &s->body);
        answer(s, &from, h.call, STATUS_OK, "", &s->body);
    } else if (strcmp(h.method, "Status") == 0) {
        status(s, &h, &from);
    } else {
        (void)snprintf(text, sizeof text, "unknown method '%.24s'", h.method);
        answer(s, &from, h.call, STATUS_UNIMPLEMENTED, text, NULL);
    }
}
