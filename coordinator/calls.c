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
#define RETRY_NS (50 * NS_PER_MS) /* after which a connection that took no reply is tried again */
#define RESTARTING "the coordinator is restarting"
#define TEXT_MOST_NS (60 * NS_PER_S) /* a Tokenize is not pinged: it ends by itself */

/* A turn takes clients' messages until it has taken so many, or so many bytes. */
#define MESSAGES_A_TURN 32
#define BYTES_A_TURN ((size_t)256 << 10)
/* A message that the context has no room for should be refused in words; one far beyond it costs
 * its client the connection, unread. */
#define MESSAGE_BYTES_MIN ((size_t)4 << 20)
#define TOKEN_WIRE_BYTES 5u               /* of a token id, at most */
#define BODY_KEEP_BYTES ((size_t)1 << 20) /* of a reply's buffer, from turn to turn */

uint32_t calls__message_bytes(struct shell *s, uint32_t ctx)
{
    s->ctx = ctx;
    s->token_bytes = 1;
    for (uint32_t i = 0; i < vocab_size(s->model->vocab); i++) {
        size_t n = vocab_piece(s->model->vocab, (int32_t)i).len;
        if (n > s->token_bytes) s->token_bytes = (uint32_t)n;
    }
    /* The longest prompt as text, what was received of the answer, and all else. */
    uint64_t bytes = (uint64_t)ctx * (s->token_bytes + TOKEN_WIRE_BYTES) + LIMIT_CONTROL_BYTES;
    if (bytes < MESSAGE_BYTES_MIN) bytes = MESSAGE_BYTES_MIN;
    return (uint32_t)(bytes < LIMIT_CLIENT_BYTES ? bytes : LIMIT_CLIENT_BYTES);
}

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

static uint64_t client_of(struct instance client)
{
    return name_of(client, 0);
}

static void count_client(struct shell *s, struct instance client, int change)
{
    const uint32_t *n = imap_get(&s->by_client, client_of(client));
    uint32_t now = (n ? *n : 0) + (uint32_t)change;
    if (now)
        imap_put(&s->by_client, client_of(client), now);
    else
        imap_remove(&s->by_client, client_of(client));
}

static struct call *find(struct shell *s, struct instance client, uint64_t id)
{
    const uint32_t *slot = imap_get(&s->by_name, name_of(client, id));
    struct call *c = slot ? &s->calls[*slot] : NULL;
    return c && c->id == id && instance_eq(c->client, client) ? c : NULL;
}

static struct call *by_request(struct shell *s, uint64_t request)
{
    const uint32_t *slot = imap_get(&s->by_request, request);
    return slot ? &s->calls[*slot] : NULL;
}

static void free_call(struct shell *s, struct call *c);
static void answer(struct shell *s, const struct route *to, uint64_t call, enum status status,
                   const char *text, const struct buf *body);

/* The calls that have ended and whose clients do not read them are the only ones that can be given
 * up for a new one: of the client with most of them the oldest. */
static void give_up_unread(struct shell *s)
{
    struct imap unread = {0};
    struct call *victim = NULL;
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = &s->calls[i];
        if (!c->used || !c->ended || !c->refused_ns || c->dirty) continue;
        const uint32_t *n = imap_get(&unread, client_of(c->client));
        uint32_t now = n ? *n + 1 : 1;
        imap_put(&unread, client_of(c->client), now);
        if (now > most) most = now;
    }
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = &s->calls[i];
        if (!c->used || !c->ended || !c->refused_ns || c->dirty) continue;
        if (*imap_get(&unread, client_of(c->client)) == most &&
            (!victim || c->request < victim->request))
            victim = c;
    }
    imap_close(&unread);
    if (victim) free_call(s, victim);
}

/* Whether one more call of the client may be taken; em says why not. */
static bool has_room(struct shell *s, struct instance client, struct errmsg *em)
{
    uint32_t most = s->config->max_per_client ? s->config->max_per_client : s->config->max_requests;
    const uint32_t *n = imap_get(&s->by_client, client_of(client));
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

/* Answers of a new Generate get consecutive requests; a text job without answers gets one. NULL:
 * there is no room, as the client was told. */
static struct call *new_call(struct shell *s, const struct msg_call *h, const struct route *from,
                             uint32_t n_answers)
{
    uint64_t ms = h->deadline_ms ? h->deadline_ms : s->config->deadline_s * UINT64_C(1000);
    struct errmsg em = {0};
    if (!has_room(s, h->client, &em)) {
        answer(s, from, h->call, STATUS_RESOURCE_EXHAUSTED, em.text, NULL);
        return NULL;
    }
    count_client(s, h->client, 1);
    uint32_t slot = s->free_calls[--s->n_free_calls];
    struct call *c = &s->calls[slot];
    *c = (struct call){
        .used = true,
        .route = *from,
        .client = h->client,
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
}

static void free_call(struct shell *s, struct call *c)
{
    uint32_t slot = (uint32_t)(c - s->calls), n = c->n_answers ? c->n_answers : 1;
    for (uint32_t i = 0; i < n; i++) imap_remove(&s->by_request, c->request + i);
    if (find(s, c->client, c->id) == c) imap_remove(&s->by_name, name_of(c->client, c->id));
    count_client(s, c->client, -1);
    if (c->text_waits) textjobs_cancel(s->text, c->request);
    close_call(c);
    bool dirty = c->dirty; /* it is still in the list: calls__flush takes it out */
    *c = (struct call){.dirty = dirty};
    if (!dirty) s->free_calls[s->n_free_calls++] = slot;
}

static void mark(struct shell *s, struct call *c)
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
        struct call *c = &s->calls[i];
        if (!c->used || !same_route(&c->route, r)) continue;
        let_go(c);
        mark(s, c);
    }
}

/* The client speaks on this connection now. */
static void set_route(struct call *c, const struct route *r)
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

/* The one reply of a call that has no state here. */
static void answer(struct shell *s, const struct route *to, uint64_t call, enum status status,
                   const char *text, const struct buf *body)
{
    struct msg_reply h = {.call = call, .end = true, .status = status};
    (void)snprintf(h.message, sizeof h.message, "%s", text);
    h.restarting = status == STATUS_UNAVAILABLE && s->draining;
    if (status == STATUS_RESOURCE_EXHAUSTED || h.restarting) h.retry_ms = 1000;
    (void)send_frames(s, to, &h, body); /* a client that takes no reply asks again or gives up */
}

static void cancel(struct shell *s, struct call *c, const char *why)
{
    for (uint32_t i = 0; i < c->n_answers; i++) {
        struct event e = {.type = EV_CANCEL, .request = {c->request + i, why}};
        if (!c->answers[i].ended) shell__event(s, &e);
    }
}

/* One answer's news, or of none: that the call lives, or that it has ended. */
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
    }
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
    if (c->give_up) cancel(s, c, "another answer of this call has failed");
    c->give_up = false;
    bool stalled = has_stalled(s, c);
    if (!stalled && s->now_ns < c->retry_ns) return; /* calls__tick comes back to it */
    int rc = stalled ? ERR_AGAIN : send_all(s, c);
    if (rc == ERR_AGAIN && !stalled) {
        hold_route(s, &c->route); /* later, and then more at once */
    } else if (rc < 0) {
        cancel(s, c, stalled ? "the client takes no replies" : "the client is gone");
        free_call(s, c);
    } else if (c->ended) {
        free_call(s, c);
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
    struct call *c = by_request(s, a->tokens.request);
    if (!c || c->ended) return false;
    struct answer *x = &c->answers[a->tokens.request - c->request];
    if (x->detok.stopped) return false; /* its end is on the way */
    bool goes_on = true;
    count_tokens(s, c, x, a->tokens.n);
    x->queued_us = a->tokens.queued_ns / 1000;
    for (uint32_t i = 0; i < a->tokens.n && goes_on; i++)
        goes_on = answer_take(x, s->model->vocab, a->tokens.tokens[i], &a->tokens.logprobs, i);
    mark(s, c);
    return !goes_on;
}

/* Ends the call, and what has not ended of it. */
static void end(struct shell *s, struct call *c, enum status status, const char *text,
                uint32_t retry_ms)
{
    if (c->ended) return;
    if (c->text_waits) textjobs_cancel(s->text, c->request);
    c->text_waits = false;
    c->ended = true;
    c->status = status;
    c->retry_ms = retry_ms;
    (void)snprintf(c->text, sizeof c->text, "%s", text);
    mark(s, c);
}

void calls__end(struct shell *s, const struct action *a)
{
    struct call *c = by_request(s, a->end.request);
    if (!c) return;
    struct answer *x = &c->answers[a->end.request - c->request];
    if (x->ended) return;
    answer_end(x, a->end.finish_reason);
    s->count.ended[a->end.status < METRICS_STATUSES ? a->end.status : 2]++;
    mark(s, c);
    bool all = true;
    for (uint32_t i = 0; i < c->n_answers; i++) all = all && c->answers[i].ended;
    if (all || a->end.status != STATUS_OK) end(s, c, a->end.status, a->end.text, a->end.retry_ms);
    c->give_up |= a->end.status != STATUS_OK && !all;
}

void calls__stop(struct shell *s)
{
    s->stopping = true;
    for (uint32_t i = 0; i < s->n_calls; i++)
        if (s->calls[i].used) end(s, &s->calls[i], STATUS_UNAVAILABLE, RESTARTING, 1000);
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
        cancel(s, c, "the client is silent");
        free_call(s, c);
    } else if (c->n_answers && !c->ended && s->now_ns >= c->deadline_ns) {
        /* The core ends it too; while its text is in the queue, only this does. */
        end(s, c, STATUS_DEADLINE_EXCEEDED, "the request's deadline has passed", 0);
        cancel(s, c, "");
    } else if (c->refused_ns
                   ? s->now_ns >= c->retry_ns
                   : !c->ended && c->n_answers && s->now_ns >= c->replied_ns + KEEP_ALIVE_NS) {
        mark(s, c);
    }
}

void calls__tick(struct shell *s, uint64_t lost_ns)
{
    for (uint32_t i = 0; i < s->n_calls; i++) {
        struct call *c = &s->calls[i];
        if (!c->used) continue;
        c->heard_ns = c->heard_ns + lost_ns < s->now_ns ? c->heard_ns + lost_ns : s->now_ns;
        tick_call(s, c);
    }
}

/* ---- methods ---- */

/* Hands the text to the other thread, or ends the call where its queue is full. */
static void start_text(struct shell *s, struct call *c, const char *text, size_t len, bool special,
                       bool bos)
{
    struct errmsg em = {0};
    struct textjob *job = mem_zalloc(sizeof *job);
    *job = (struct textjob){.id = c->request,
                            .client = client_of(c->client),
                            .len = len,
                            .special = special,
                            .bos = bos};
    job->text = mem_try(len + 1);
    if (job->text) memcpy(job->text, text, len);
    int rc = job->text ? textjobs_put(s->text, job, &em)
                       : err_set(&em, ERR_NOMEM, "no memory for a text of %zu bytes", len);
    c->text_waits = rc == 0;
    if (rc == 0) return;
    textjob_free(job);
    end(s, c, STATUS_RESOURCE_EXHAUSTED, em.text, 1000);
}

static void submit(struct shell *s, struct call *c)
{
    if (s->now_ns >= c->deadline_ns) {
        end(s, c, STATUS_DEADLINE_EXCEEDED, "the request's deadline has passed", 0);
        return;
    }
    struct tokens all = {0};
    for (size_t i = 0; i < c->prompt.n; i++) tokens_push(&all, c->prompt.ids[i]);
    for (size_t i = 0; i < c->received.n; i++) tokens_push(&all, c->received.ids[i]);
    for (uint32_t i = 0; i < c->n_answers && !c->ended; i++) {
        struct event e = {.type = EV_SUBMIT,
                          .submit = {.request = c->request + i,
                                     .client = client_of(c->client),
                                     .tenant = c->tenant,
                                     .priority = c->priority,
                                     .tokens = all.ids,
                                     .n_prompt = (uint32_t)c->prompt.n,
                                     .n_received = (uint32_t)c->received.n,
                                     .max_new = c->max_new,
                                     .sample = i,
                                     .sampling = c->sampling,
                                     .ignore_eos = c->ignore_eos,
                                     .deadline_ns = c->deadline_ns - s->now_ns}};
        shell__event(s, &e);
    }
    mem_free(all.ids);
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
    for (uint32_t i = 0; i < g->n_received; i++)
        if (g->received[i] < 0 || (uint32_t)g->received[i] >= s->model->dims.vocab)
            return "field 'received': a token is not in the vocabulary";
    if (g->samples > 1 && (g->n_received || g->from_index))
        return "field 'samples': more than one cannot be gone on with: 'received' and 'from_index' "
               "are for one";
    for (uint32_t i = 0; i < g->sampling.n_bias; i++)
        if ((uint32_t)g->sampling.bias_ids[i] >= s->model->dims.vocab)
            return "field 'logit_bias': a token is not in the vocabulary";
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

/* A Generate that is repeated on a new connection, or because a reply may be lost. */
static void join(struct shell *s, struct call *c, const struct route *from, uint32_t from_index)
{
    set_route(c, from);
    c->heard_ns = s->now_ns;
    c->usage_sent = false;
    for (uint32_t i = 0; i < c->n_answers; i++)
        if (!answer_rewind(&c->answers[i], from_index)) {
            cancel(s, c, "field 'from_index' is beyond what was generated");
            return;
        }
    mark(s, c);
}

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

static void generate(struct shell *s, const struct msg_call *h, const struct route *from,
                     struct net_frame body)
{
    struct errmsg em = {0};
    struct msg_generate g;
    enum status status = STATUS_INVALID_ARGUMENT;
    struct call *c = find(s, h->client, h->call);
    const char *why = em.text;
    if (check_size(s, body, &em) == 0 &&
        wire_get_generate(body.data, body.bytes, &s->body_arena, &g, &em) == 0)
        why = check_generate(s, &g, &status);
    if (why) {
        char text[LIMIT_TEXT_BYTES];
        (void)snprintf(text, sizeof text,
                       status == STATUS_UNIMPLEMENTED ? "field '%s' is not served" : "%s", why);
        answer(s, from, h->call, status, text, NULL);
        return;
    }
    if (c) {
        join(s, c, from, g.from_index);
        return;
    }
    if (g.from_index > g.n_received) {
        answer(s, from, h->call, STATUS_INVALID_ARGUMENT,
               "field 'from_index' is beyond the tokens that were received", NULL);
        return;
    }
    if (s->draining) {
        answer(s, from, h->call, STATUS_UNAVAILABLE, RESTARTING, NULL);
        return;
    }
    c = new_call(s, h, from, g.samples);
    if (!c) return;
    c->max_new = g.max_tokens;
    c->priority = g.priority;
    c->tenant = g.tenant[0] ? hash_bytes(g.tenant, strlen(g.tenant), 1) | 1 : 0;
    c->ignore_eos = g.ignore_eos;
    keep_sampling(c, &g.sampling);
    if (!g.has_seed) {
        if (getrandom(&c->sampling.seed, sizeof c->sampling.seed, 0) < 0)
            c->sampling.seed = s->now_ns;
        c->sampling.seed >>= 11; /* a JSON number holds 53 bits exactly */
    }
    struct answer_options o = {g.stops, g.n_stops, g.sampling.logprobs, g.sampling.top_logprobs};
    if (o.n_top > s->model->dims.vocab) o.n_top = s->model->dims.vocab; /* as the last stage does */
    for (uint32_t i = 0; i < c->n_answers; i++) answer_open(&c->answers[i], &o);
    for (uint32_t i = 0; i < g.n_received; i++) tokens_push(&c->received, g.received[i]);
    answer_receive(&c->answers[0], s->model->vocab, g.received, g.n_received);
    (void)answer_rewind(&c->answers[0], g.from_index);
    if (c->answers[0].detok.stopped) {
        answer_end(&c->answers[0], FINISH_STOP);
        end(s, c, STATUS_OK, "", 0);
        return;
    }
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
    struct call *c = new_call(s, h, from, 0);
    if (c) start_text(s, c, text, strlen(text), special, false);
}

/* Of a TokenizeReply. */
static size_t tokens_bytes(const struct tokens *t)
{
    size_t n = 16; /* the field's number and length */
    for (size_t i = 0; i < t->n; i++)
        for (uint32_t id = (uint32_t)t->ids[i];; id >>= 7) {
            n++;
            if (id < 0x80) break;
        }
    return n;
}

/* The one reply of a Tokenize, whose receiver takes no larger message than this one does. */
static void tell_tokens(struct shell *s, struct call *c, const struct tokens *t)
{
    char text[LIMIT_TEXT_BYTES];
    size_t bytes = tokens_bytes(t);
    if (bytes > LIMIT_CLIENT_BYTES) {
        (void)snprintf(text, sizeof text,
                       "field 'text': its %zu tokens make a reply of %zu bytes, the limit is %u: "
                       "tokenise it in parts",
                       t->n, bytes, LIMIT_CLIENT_BYTES);
        end(s, c, STATUS_INVALID_ARGUMENT, text, 0);
        return;
    }
    wire_put_tokens(t->ids, (uint32_t)t->n, &s->body);
    answer(s, &c->route, c->id, STATUS_OK, "", &s->body);
    free_call(s, c);
}

void calls__text_done(struct shell *s, struct textjob *job)
{
    struct call *c = by_request(s, job->id);
    if (!c || c->ended) return;
    c->text_waits = false;
    if (job->rc < 0) {
        end(s, c, STATUS_INVALID_ARGUMENT, job->em.text, 0);
    } else if (c->n_answers) {
        c->prompt = job->tokens;
        job->tokens = (struct tokens){0};
        submit(s, c);
    } else {
        tell_tokens(s, c, &job->tokens);
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
        end(s, c, STATUS_CANCELLED, "cancelled by the client", 0);
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
            set_route(c, from);
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

static bool has_long_body(const char *method)
{
    return strcmp(method, "Generate") == 0 || strcmp(method, "Tokenize") == 0;
}

static void take_message(struct shell *s, const struct net_msg *m)
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
    if (!from.n || header.bytes > LIMIT_CONTROL_BYTES ||
        wire_get_call(header.data, header.bytes, &s->arena, &h, &em) < 0) {
        s->dropped++; /* not a call: there is nobody to answer */
        return;
    }
    struct net_frame body = net_msg_frame(m, 2);
    char text[LIMIT_TEXT_BYTES];
    if (h.version != PROTO_VERSION) {
        (void)snprintf(text, sizeof text,
                       "this server speaks protocol version %u, the call %" PRIu32, PROTO_VERSION,
                       h.version);
        shell__tell_version(s, "client", m->peer, h.version);
        answer(s, &from, h.call, STATUS_FAILED_PRECONDITION, text, NULL);
    } else if (!has_long_body(h.method) && body.bytes > LIMIT_CONTROL_BYTES) {
        (void)snprintf(text, sizeof text, "a body of %zu bytes, the limit of '%.24s' is %u",
                       body.bytes, h.method, LIMIT_CONTROL_BYTES);
        answer(s, &from, h.call, STATUS_INVALID_ARGUMENT, text, NULL);
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

void calls__take(struct shell *s)
{
    struct net_msg m;
    size_t bytes = 0;
    for (int n = 0; n < MESSAGES_A_TURN && bytes < BYTES_A_TURN; n++) {
        if (net_recv(s->clients, &m) != 0) return;
        for (unsigned i = 0; i < m.n; i++) bytes += net_msg_frame(&m, i).bytes;
        take_message(s, &m);
        net_msg_close(&m);
    }
}
