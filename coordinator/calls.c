/* A call's life: its slot, what its client is told and when, and its end. What clients ask for
 * comes in through methods.c. */
#include "coordinator/shell.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SILENT_NS (2 * NS_PER_S)
#define KEEP_ALIVE_NS (500 * NS_PER_MS)
#define RETRY_NS (50 * NS_PER_MS) /* after which a connection that took no reply is tried again */
#define TEXT_MOST_NS (60 * NS_PER_S) /* a Tokenize is not pinged: it ends by itself */

#define BODY_KEEP_BYTES ((size_t)1 << 20) /* of a reply's buffer, from turn to turn */

void calls__open(struct shell *s)
{
    s->n_calls = 2 * s->config->max_requests;
    s->calls = mem_zalloc(s->n_calls * sizeof *s->calls);
    s->free_calls = mem_zalloc(s->n_calls * sizeof *s->free_calls);
    s->dirty =
        mem_zalloc(2 * s->n_calls * sizeof *s->dirty); /* while it is walked, all once more */
    for (uint32_t i = s->n_calls; i-- > 0;) s->free_calls[s->n_free_calls++] = i;
    s->next_request = 1; /* 0 is the probe's */
}

/* ---- the table of calls ---- */

static uint64_t name_of(struct instance client, uint64_t id)
{
    uint64_t words[3] = {client.hi, client.lo, id};
    return hash_bytes(words, sizeof words, 0);
}

/* A hash of a client, or of one of a gateway's users, by which the core and the texts tell one from
 * another. */
static uint64_t share_of(struct instance client, const char *user)
{
    return name_of(client, user[0] ? hash_bytes(user, strlen(user), 2) : 0);
}

static void count_client(struct shell *s, uint64_t share, int change)
{
    const uint32_t *n = imap_get(&s->by_client, share);
    uint32_t now = (n ? *n : 0) + (uint32_t)change;
    if (now)
        imap_put(&s->by_client, share, now);
    else
        imap_remove(&s->by_client, share);
}

struct call *calls__find(struct shell *s, struct instance client, uint64_t id)
{
    const uint32_t *slot = imap_get(&s->by_name, name_of(client, id));
    struct call *c = slot ? &s->calls[*slot] : NULL;
    return c && c->id == id && instance_eq(c->client, client) ? c : NULL;
}

struct call *calls__of_request(struct shell *s, uint64_t request)
{
    const uint32_t *slot = imap_get(&s->by_request, request);
    return slot ? &s->calls[*slot] : NULL;
}

/* Makes room for a new call. Only calls that have ended and whose clients do not read them can be
 * given up: the oldest one, of the client with most of them. */
static void give_up_unread(struct shell *s)
{
    struct imap unread = {0};
    struct call *victim = NULL;
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = &s->calls[i];
        if (!c->used || !c->ended || !c->refused_ns || c->dirty) continue;
        const uint32_t *n = imap_get(&unread, c->share);
        uint32_t now = n ? *n + 1 : 1;
        imap_put(&unread, c->share, now);
        if (now > most) most = now;
    }
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = &s->calls[i];
        if (!c->used || !c->ended || !c->refused_ns || c->dirty) continue;
        if (*imap_get(&unread, c->share) == most && (!victim || c->request < victim->request))
            victim = c;
    }
    imap_close(&unread);
    if (victim) calls__free(s, victim);
}

/* Whether one more call of the client may be taken; em says why not. */
static bool has_room(struct shell *s, uint64_t share, struct errmsg *em)
{
    uint32_t most = s->config->max_per_client ? s->config->max_per_client : s->config->max_requests;
    const uint32_t *n = imap_get(&s->by_client, share);
    if (n && *n >= most) {
        (void)err_set(em, ERR_LIMIT,
                      "%" PRIu32 " requests of this client are live or wait to be read, the limit",
                      *n);
        return false;
    }
    if (s->n_free_calls == 0) give_up_unread(s);
    if (s->n_free_calls == 0) (void)err_set(em, ERR_LIMIT, "too many calls are live");
    return s->n_free_calls > 0;
}

struct call *calls__new(struct shell *s, const struct msg_call *h, const struct route *from,
                        const char *user, uint32_t n_answers)
{
    uint64_t share = share_of(h->client, user);
    uint64_t ms = h->deadline_ms ? h->deadline_ms : s->config->deadline_s * UINT64_C(1000);
    struct errmsg em = {0};
    if (!has_room(s, share, &em)) {
        calls__reply(s, from, h->call, STATUS_RESOURCE_EXHAUSTED, em.text, NULL);
        return NULL;
    }
    count_client(s, share, 1);
    uint32_t slot = s->free_calls[--s->n_free_calls];
    struct call *c = &s->calls[slot];
    *c = (struct call){
        .used = true,
        .route = *from,
        .client = h->client,
        .share = share,
        .id = h->call,
        .request = s->next_request,
        .n_answers = n_answers,
        .begun_ns = s->now_ns,
        .heard_ns = s->now_ns,
        .replied_ns = s->now_ns,
        .deadline_ns = s->now_ns + (ms < LIMIT_DEADLINE_MS ? ms : LIMIT_DEADLINE_MS) * NS_PER_MS};
    if (n_answers) c->answers = mem_zalloc(n_answers * sizeof *c->answers);
    s->next_request += n_answers ? n_answers : 1;
    for (uint64_t r = c->request; r < s->next_request; r++) imap_put(&s->by_request, r, slot);
    imap_put(&s->by_name, name_of(c->client, c->id), slot);
    return c;
}

static void close_call(struct call *c)
{
    for (uint32_t i = 0; i < c->n_answers; i++) answer_close(&c->answers[i]);
    mem_free(c->answers);
    mem_free(c->prompt.ids);
    mem_free(c->received.ids);
    buf_close(&c->bias_ids);
    buf_close(&c->bias);
    blob_drop(c->grammar);
}

void calls__free(struct shell *s, struct call *c)
{
    uint32_t slot = (uint32_t)(c - s->calls), n = c->n_answers ? c->n_answers : 1;
    for (uint32_t i = 0; i < n; i++) imap_remove(&s->by_request, c->request + i);
    if (calls__find(s, c->client, c->id) == c) imap_remove(&s->by_name, name_of(c->client, c->id));
    count_client(s, c->share, -1);
    if (c->text_waits) offload_cancel(s->texts, c->request);
    close_call(c);
    bool dirty = c->dirty; /* it is still in the list: calls__flush takes it out */
    *c = (struct call){.dirty = dirty};
    if (!dirty) s->free_calls[s->n_free_calls++] = slot;
}

void calls__mark(struct shell *s, struct call *c)
{
    if (c->dirty) return;
    c->dirty = true;
    s->dirty[s->n_dirty++] = (uint32_t)(c - s->calls);
}

void calls__close(struct shell *s)
{
    for (uint32_t i = 0; s->calls && i < s->n_calls; i++) close_call(&s->calls[i]);
    imap_close(&s->by_request);
    imap_close(&s->by_name);
    imap_close(&s->by_client);
    mem_free(s->calls);
    mem_free(s->free_calls);
    mem_free(s->dirty);
}

/* ---- connections that take no reply ---- */

static bool same_route(const struct route *a, const struct route *b)
{
    return a->n == b->n && memcmp(a->bytes, b->bytes, a->n) == 0;
}

static bool has_news(const struct call *c)
{
    for (uint32_t i = 0; i < c->n_answers; i++)
        if (answer_has_news(&c->answers[i])) return true;
    return false;
}

/* Whether the client is to be told something of a call: one that has ended is told so until it has
 * it, one that goes on at least that it lives. */
static bool is_due(const struct shell *s, const struct call *c)
{
    if (s->now_ns < c->retry_ns) return false;
    return c->ended || (c->refused_ns && has_news(c)) ||
           (c->n_answers && s->now_ns >= c->replied_ns + KEEP_ALIVE_NS);
}

/* Slots in turn, from the one on that a connection refused last: those before it were served. */
static struct call *in_turn(const struct shell *s, uint32_t i)
{
    return &s->calls[(s->first_call + i) % s->n_calls];
}

/* Only sending tells whether a connection takes a reply, and a reply must be encoded to be sent. So
 * one refusal holds all calls of the connection for a while, and one success lets them go. */
static void hold_route(struct shell *s, const struct route *r)
{
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = &s->calls[i];
        if (!c->used || !same_route(&c->route, r)) continue;
        if (!c->refused_ns) c->refused_ns = s->now_ns;
        c->retry_ns = s->now_ns + RETRY_NS;
    }
}

static void let_go(struct call *c)
{
    c->refused_ns = 0;
    c->retry_ns = 0;
}

static void let_route_go(struct shell *s, const struct route *r)
{
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = in_turn(s, i);
        if (!c->used || !same_route(&c->route, r)) continue;
        c->retry_ns = 0;
        if (is_due(s, c)) calls__mark(s, c);
        let_go(c);
    }
}

void calls__set_route(struct call *c, const struct route *r)
{
    if (!same_route(&c->route, r)) let_go(c);
    c->route = *r;
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

enum status calls__unread(const struct shell *s)
{
    return s->body_arena.starved ? STATUS_RESOURCE_EXHAUSTED : STATUS_INVALID_ARGUMENT;
}

void calls__reply(struct shell *s, const struct route *to, uint64_t call, enum status status,
                  const char *text, const struct buf *body)
{
    struct msg_reply h = {.call = call, .end = true, .status = status};
    (void)snprintf(h.message, sizeof h.message, "%s", text);
    h.restarting = status == STATUS_UNAVAILABLE && s->draining;
    if (status == STATUS_RESOURCE_EXHAUSTED || h.restarting) h.retry_ms = 1000;
    (void)send_frames(s, to, &h, body); /* a client that takes no reply asks again or gives up */
}

void calls__cancel(struct shell *s, struct call *c, const char *why)
{
    for (uint32_t i = 0; i < c->n_answers; i++) {
        struct event e = {.type = EV_CANCEL, .request = {c->request + i, why}};
        if (!c->answers[i].ended) shell__event(s, &e);
    }
}

static void put_piece(struct shell *s, int32_t token)
{
    struct vocab_string p = {"", 0};
    if (token >= 0) p = vocab_piece(s->model->vocab, token);
    uint32_t n = (uint32_t)p.len;
    (void)buf_append(&s->pieces, p.data, p.len);
    (void)buf_append(&s->piece_bytes, &n, sizeof n);
}

/* The bytes of the reply's tokens, then of their alternatives. */
static void put_pieces(struct shell *s, struct msg_generate_reply *r)
{
    uint32_t n_top = r->logprobs.chosen ? r->n_tokens * r->logprobs.n_top : 0;
    buf_drop(&s->pieces, s->pieces.len);
    buf_drop(&s->piece_bytes, s->piece_bytes.len);
    for (uint32_t i = 0; i < r->n_tokens; i++) put_piece(s, r->tokens[i]);
    for (uint32_t i = 0; i < n_top; i++) put_piece(s, r->logprobs.top_ids[i]);
    r->n_pieces = r->n_tokens + n_top;
    r->pieces = s->pieces.data;
    r->piece_bytes = (const uint32_t *)(const void *)s->piece_bytes.data;
}

/* Sends what the client lacks of answer i. A call without answers, or without news, is told that it
 * lives, or has ended. */
static int send_news(struct shell *s, struct call *c, uint32_t i, bool last)
{
    struct msg_reply h = {.call = c->id, .status = c->status};
    struct msg_generate_reply r = {.text = ""};
    h.end = (i >= c->n_answers || answer_news(&c->answers[i], &r)) && last;
    if (h.end) {
        (void)snprintf(h.message, sizeof h.message, "%s", c->text);
        h.retry_ms = c->retry_ms;
        h.restarting = s->stopping && c->status == STATUS_UNAVAILABLE;
    }
    r.sample = i;
    if (!c->usage_sent && c->prompt.n) {
        r.has_usage = true;
        r.prompt_tokens = c->prompt.ids;
        r.n_prompt_tokens = (uint32_t)c->prompt.n;
        r.seed = c->sampling.seed;
        r.open_thought = c->open_thought;
    }
    if (c->pieces) put_pieces(s, &r);
    wire_put_generate_reply(&r, &s->body);
    int rc = send_frames(s, &c->route, &h, &s->body);
    if (rc < 0) return rc;
    if (c->refused_ns) let_route_go(s, &c->route);
    c->usage_sent |= r.has_usage;
    c->replied_ns = s->now_ns;
    if (i < c->n_answers) answer_sent(&c->answers[i]);
    return 0;
}

static int send_all(struct shell *s, struct call *c)
{
    int rc = 0;
    bool sent = false;
    for (uint32_t i = 0; i < c->n_answers && rc == 0; i++) {
        bool last = c->ended && i + 1 == c->n_answers;
        if (!last && !answer_has_news(&c->answers[i])) continue;
        do rc = send_news(s, c, i, last);
        while (rc == 0 && answer_has_news(&c->answers[i]));
        sent = true;
    }
    return sent || rc < 0 ? rc : send_news(s, c, 0, c->ended);
}

static bool has_stalled(const struct shell *s, const struct call *c)
{
    uint64_t stall_ns = s->config->client_stall_s * NS_PER_S;
    return c->refused_ns && s->now_ns >= c->refused_ns + stall_ns;
}

/* Everything the client lacks; with it the call is over, if it has ended. */
static void flush(struct shell *s, struct call *c)
{
    if (c->give_up) calls__cancel(s, c, "another answer of this call has failed");
    c->give_up = false;
    bool stalled = has_stalled(s, c);
    if (!stalled && s->now_ns < c->retry_ns) return; /* calls__tick comes back to it */
    int rc = stalled ? ERR_AGAIN : send_all(s, c);
    if (rc == ERR_AGAIN && !stalled) {
        hold_route(s, &c->route); /* later, and then more at once */
        s->first_call = (uint32_t)(c - s->calls);
    } else if (rc < 0) {
        calls__cancel(s, c, stalled ? "the client takes no replies" : "the client is gone");
        calls__free(s, c);
    } else if (c->ended) {
        calls__free(s, c);
    }
}

void calls__flush(struct shell *s)
{
    uint32_t n = s->n_dirty;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = s->dirty[i];
        struct call *c = &s->calls[slot];
        c->dirty = false;
        if (c->used)
            flush(s, c);
        else
            s->free_calls[s->n_free_calls++] = slot;
    }
    /* What was marked meanwhile waits for the next turn. */
    s->n_dirty -= n;
    memmove(s->dirty, s->dirty + n, s->n_dirty * sizeof *s->dirty);
    if (s->body.cap > BODY_KEEP_BYTES) buf_close(&s->body);
}

/* ---- the core's actions ---- */

static void count_tokens(struct shell *s, const struct call *c, struct answer *x, uint32_t n)
{
    s->count.tokens += n;
    if (!x->token_ns)
        stats_record(&s->count.ttft, s->now_ns - c->begun_ns);
    else
        stats_record(&s->count.itl, s->now_ns - x->token_ns);
    x->token_ns = s->now_ns;
}

bool calls__tokens(struct shell *s, const struct action *a)
{
    struct call *c = calls__of_request(s, a->tokens.request);
    if (!c || c->ended) return false;
    struct answer *x = &c->answers[a->tokens.request - c->request];
    if (x->detok.stopped) return false; /* its end is on the way */
    bool goes_on = true;
    count_tokens(s, c, x, a->tokens.n);
    x->queued_us = a->tokens.queued_ns / 1000;
    x->cached = a->tokens.cached;
    for (uint32_t i = 0; i < a->tokens.n && goes_on; i++)
        goes_on = answer_take(x, s->model->vocab, a->tokens.tokens[i], &a->tokens.logprobs, i);
    calls__mark(s, c);
    return !goes_on;
}

void calls__embedding(struct shell *s, const struct action *a)
{
    struct call *c = calls__of_request(s, a->embedding.request);
    if (!c || c->ended) return;
    struct answer *x = &c->answers[a->embedding.request - c->request];
    answer_embed(x, a->embedding.values, a->embedding.n);
    s->count.embeddings++;
    s->count.embedding_tokens += c->prompt.n;
}

void calls__finish(struct shell *s, struct call *c, enum status status, const char *text,
                   uint32_t retry_ms)
{
    if (c->ended) return;
    if (c->text_waits) offload_cancel(s->texts, c->request);
    c->text_waits = false;
    c->ended = true;
    c->status = status;
    c->retry_ms = retry_ms;
    (void)snprintf(c->text, sizeof c->text, "%s", text);
    calls__mark(s, c);
}

void calls__end(struct shell *s, const struct action *a)
{
    struct call *c = calls__of_request(s, a->end.request);
    if (!c) return;
    struct answer *x = &c->answers[a->end.request - c->request];
    if (x->ended) return;
    x->draft = (struct msg_draft_status){.runs = a->end.accept.runs,
                                         .drafted = a->end.accept.drafted,
                                         .accepted = a->end.accept.accepted,
                                         .early = a->end.accept.early,
                                         .wasted = a->end.accept.wasted};
    answer_end(x, a->end.finish_reason);
    s->count.ended[a->end.status < METRICS_STATUSES ? a->end.status : 2]++;
    calls__mark(s, c);
    bool all = true;
    for (uint32_t i = 0; i < c->n_answers; i++) all = all && c->answers[i].ended;
    if (all || a->end.status != STATUS_OK)
        calls__finish(s, c, a->end.status, a->end.text, a->end.retry_ms);
    c->give_up |= a->end.status != STATUS_OK && !all;
}

void calls__stop(struct shell *s)
{
    s->stopping = true;
    for (uint32_t i = 0; i < s->n_calls; i++)
        if (s->calls[i].used)
            calls__finish(s, &s->calls[i], STATUS_UNAVAILABLE, CALLS_RESTARTING, 1000);
    calls__flush(s);
}

bool calls__any(const struct shell *s)
{
    for (uint32_t i = 0; i < s->n_calls; i++)
        if (s->calls[i].used) return true;
    return false;
}

static void tick_call(struct shell *s, struct call *c)
{
    if (s->now_ns >= c->heard_ns + (c->n_answers ? SILENT_NS : TEXT_MOST_NS)) {
        calls__cancel(s, c, "the client is silent");
        calls__free(s, c);
    } else if (c->n_answers && !c->ended && s->now_ns >= c->deadline_ns) {
        /* The core ends it too; while its text is in the queue, only this does. */
        calls__finish(s, c, STATUS_DEADLINE_EXCEEDED, "the request's deadline has passed", 0);
        calls__cancel(s, c, "");
    } else if (is_due(s, c)) {
        calls__mark(s, c);
    }
}

void calls__tick(struct shell *s, uint64_t lost_ns)
{
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = in_turn(s, i);
        if (!c->used) continue;
        c->heard_ns = c->heard_ns + lost_ns < s->now_ns ? c->heard_ns + lost_ns : s->now_ns;
        tick_call(s, c);
    }
}

/* ---- texts ---- */

void calls__start_text(struct shell *s, struct call *c, const struct text *t)
{
    struct errmsg em = {0};
    c->text_waits = texts_put(s->texts, c->share, t, &em) == 0;
    if (!c->text_waits) calls__finish(s, c, STATUS_RESOURCE_EXHAUSTED, em.text, 1000);
}
