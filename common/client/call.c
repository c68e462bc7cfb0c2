/* Generate: a call from its request to its end, over as many connections and coordinators as that
 * takes.
 *
 *     client_start -> to be asked -> asked <-> lost -> ended
 *
 * A lost call is asked for again each CLIENT_PING_NS, behind the tokens that it has, until it is
 * heard of or CLIENT_PATIENCE_MS have passed. */
#include "common/client/client_state.h"

#include "common/base/mem.h"
#include "proto/wire.h"

#include <stdio.h>
#include <string.h>

_Static_assert(CLIENT_STOPS_MAX == LIMIT_STOPS, "client.h tells the limit");
_Static_assert(sizeof(((struct client_end *)0)->text) == LIMIT_TEXT_BYTES, "and this one");

/* ---- the request ---- */

/* Copies one behind the other; without `base` it only counts them. */
struct copies {
    char *base;
    size_t used;
};

static const void *keep(struct copies *to, const void *data, size_t n)
{
    char *copy = to->base ? to->base + to->used : NULL;
    if (copy && n) memcpy(copy, data, n);
    to->used += (n + 7) & ~(size_t)7;
    return copy;
}

static const char *keep_text(struct copies *to, const char *s)
{
    return s ? keep(to, s, strlen(s) + 1) : NULL;
}

static struct msg_generate message_of(const struct client_request *q, struct copies *to)
{
    struct msg_generate m = {
        .prompt = keep_text(to, q->prompt ? q->prompt : ""),
        .prompt_tokens = keep(to, q->prompt_tokens, q->n_prompt_tokens * sizeof *q->prompt_tokens),
        .n_prompt_tokens = q->n_prompt_tokens,
        .chat = keep_text(to, q->chat),
        .format = keep_text(to, q->format),
        .model = keep_text(to, q->model),
        .tenant = keep_text(to, q->tenant),
        .user = keep_text(to, q->user),
        .pieces = q->pieces,
        .special = q->special,
        .ignore_eos = q->ignore_eos,
        .has_seed = q->has_seed,
        .has_priority = q->has_priority,
        .priority = q->priority,
        .draft = keep_text(to, q->draft),
        .has_draft_length = q->draft_length > 0,
        .draft_length = q->draft_length,
        .max_tokens = q->max_tokens,
        .samples = q->samples,
        .embed = q->embed,
        .sampling = q->sampling,
        .n_stops = q->n_stops};
    for (uint32_t i = 0; i < q->n_stops; i++) m.stops[i] = keep_text(to, q->stops[i]);
    m.sampling.bias_ids = keep(to, m.sampling.bias_ids, m.sampling.n_bias * sizeof(int32_t));
    m.sampling.bias = keep(to, m.sampling.bias, m.sampling.n_bias * sizeof(float));
    return m;
}

void client_request_init(struct client_request *r)
{
    *r = (struct client_request){.max_tokens = 256, .sampling = SAMPLING_PLAIN};
}

/* ---- asking ---- */

static uint32_t n_received(const struct client_call *r)
{
    return (uint32_t)(r->received.len / sizeof(int32_t));
}

/* Encodes the request into the client's `body`. It wants the tokens from the next one on: a server
 * that knows the call goes on telling it; a new process goes on behind what was received. */
static void encode(struct client_call *r)
{
    if (r->request.samples <= 1) {
        r->request.n_received = r->request.from_index = n_received(r);
        r->request.received = (const int32_t *)(const void *)r->received.data;
    }
    wire_put_generate(&r->request, &r->c->body);
}

static int send_encoded(struct client_call *r, uint64_t now)
{
    struct msg_call h = client__header(r->c, "Generate", r->id);
    if (r->deadline_ns)
        h.deadline_ms = now < r->deadline_ns ? (r->deadline_ns - now) / NS_PER_MS + 1 : 1;
    int rc = client__send(r->c, &h, r->c->body.data, r->c->body.len);
    r->to_ask = rc < 0;
    if (rc < 0) return rc;
    if (!r->asked) r->heard_ns = now;
    r->asked = true;
    r->asked_ns = now;
    return 0;
}

/* May end the call. */
static void ask(struct client_call *r, uint64_t now)
{
    struct errmsg em;
    r->to_ask = true;
    if (r->c->blocked || (r->held && !r->c->takes)) return;
    encode(r);
    int rc = client__fits(r->c, r->c->body.len, &em);
    r->held = rc == ERR_AGAIN;
    if (rc == 0) {
        (void)send_encoded(r, now);
    } else if (rc == ERR_LIMIT) {
        struct client_end end = {.status = STATUS_INVALID_ARGUMENT};
        (void)snprintf(end.text, sizeof end.text, "%s", em.text);
        call__end(r, &end);
    }
}

static void send_cancel(struct client_call *r)
{
    struct client *c = r->c;
    struct msg_call h = client__header(c, "Cancel", c->next_call++);
    wire_put_cancel(r->id, &c->body);
    r->cancel_waits = client__send(c, &h, c->body.data, c->body.len) < 0;
}

static void add_call(struct client *c, struct client_call *r)
{
    if (c->n_calls == c->room_calls) {
        c->room_calls = c->room_calls ? 2 * c->room_calls : 16;
        c->calls = mem_realloc(c->calls, c->room_calls * sizeof(struct client_call *));
    }
    c->calls[c->n_calls++] = r;
}

int client_start(struct client *c, const struct client_request *request,
                 struct client_call **ret_call, client_reply_fn on_reply, client_end_fn on_end,
                 void *arg, struct errmsg *em)
{
    uint64_t now = clock_ns();
    struct copies copies = {.base = NULL};
    if (c->closing) return err_set(em, ERR_CLOSED, "the client is being closed");
    if (c->n_calls == CLIENT_CALLS_MAX)
        return err_set(em, ERR_AGAIN, "%d calls run, the limit", CLIENT_CALLS_MAX);
    if (request->n_stops > CLIENT_STOPS_MAX)
        return err_set(em, ERR_LIMIT, "more than %d stop texts", CLIENT_STOPS_MAX);
    (void)message_of(request, &copies);
    copies.base = mem_try(copies.used);
    if (!copies.base) return err_set(em, ERR_NOMEM, "no memory for a request");
    copies.used = 0;
    struct client_call *r = mem_alloc(sizeof *r);
    *r = (struct client_call){.c = c,
                              .request = message_of(request, &copies),
                              .copies = copies.base,
                              .on_reply = on_reply,
                              .on_end = on_end,
                              .arg = arg,
                              .heard_ns = now};
    uint64_t most_ms =
        request->deadline_ms < LIMIT_DEADLINE_MS ? request->deadline_ms : LIMIT_DEADLINE_MS;
    if (most_ms) r->deadline_ns = now + most_ms * NS_PER_MS;
    encode(r);
    int rc = client__fits(c, c->body.len, em);
    if (rc == ERR_LIMIT) {
        mem_free(r->copies);
        mem_free(r);
        return rc;
    }
    r->to_ask = r->held = rc == ERR_AGAIN;
    r->id = c->next_call++;
    client__expect(c, now);
    add_call(c, r);
    if (!r->held) (void)send_encoded(r, now);
    if (ret_call) *ret_call = r;
    return 0;
}

void client_cancel(struct client_call *r)
{
    if (r->cancelled) return;
    r->cancelled = r->cancel_waits = true;
    if (r->asked) send_cancel(r);
}

/* ---- its end, and when it is lost ---- */

void call__end(struct client_call *r, const struct client_end *end)
{
    struct client *c = r->c;
    for (size_t i = 0; i < c->n_calls; i++)
        if (c->calls[i] == r) c->calls[i] = c->calls[--c->n_calls];
    r->cancelled = true; /* so that client_cancel in on_end does nothing */
    r->on_end(r->arg, r, end);
    buf_close(&r->received);
    mem_free(r->copies);
    mem_free(r);
}

static void end_cancelled(struct client_call *r)
{
    call__end(r, &(struct client_end){.status = STATUS_CANCELLED, .text = "cancelled"});
}

static void go_on_lost(struct client_call *r, uint64_t now)
{
    if (r->cancelled) {
        end_cancelled(r);
    } else if (r->request.samples > 1 || now >= r->lost_ns + CLIENT_PATIENCE_MS * NS_PER_MS) {
        struct client_end end = {.lost = r->lost_code, .status = STATUS_UNAVAILABLE};
        (void)snprintf(end.text, sizeof end.text, "%s %s", r->c->endpoint, r->lost_why);
        call__end(r, &end);
    } else if (r->to_ask || now >= r->asked_ns + CLIENT_PING_NS) {
        ask(r, now);
    }
}

void call__lose(struct client_call *r, int code, const char *why)
{
    uint64_t now = clock_ns();
    if (!r->lost_ns) r->lost_ns = now;
    r->lost_code = code;
    (void)snprintf(r->lost_why, sizeof r->lost_why, "%.120s", why);
    go_on_lost(r, now);
}

static void go_on_unasked(struct client_call *r, uint64_t now)
{
    if (r->cancelled) {
        end_cancelled(r);
    } else if (now >= r->heard_ns + CLIENT_CONNECT_MS * NS_PER_MS) {
        struct errmsg em;
        struct client_end end = {.lost = client__nobody(r->c, &em), .status = STATUS_UNAVAILABLE};
        (void)snprintf(end.text, sizeof end.text, "%s", em.text);
        call__end(r, &end);
    } else {
        ask(r, now);
    }
}

/* When its silence is to be noticed; once it has been, there is nothing more to notice. */
static uint64_t silent_at_ns(const struct client_call *r)
{
    if (r->lost_ns && r->lost_code == ERR_TIMEOUT) return UINT64_MAX;
    return r->heard_ns + CLIENT_SILENT_MS * NS_PER_MS;
}

void call__look_after(struct client_call *r, uint64_t now)
{
    if (!r->asked) {
        go_on_unasked(r, now);
        return;
    }
    if (r->cancel_waits) send_cancel(r);
    if (now >= silent_at_ns(r))
        call__lose(r, ERR_TIMEOUT, "is silent");
    else if (r->lost_ns)
        go_on_lost(r, now);
}

uint64_t call__due_ns(const struct client_call *r)
{
    if (!r->asked) return r->cancelled ? 0 : r->heard_ns + CLIENT_CONNECT_MS * NS_PER_MS;
    uint64_t due = silent_at_ns(r);
    if (!r->lost_ns) return due;
    if (r->lost_ns + CLIENT_PATIENCE_MS * NS_PER_MS < due)
        due = r->lost_ns + CLIENT_PATIENCE_MS * NS_PER_MS;
    if (!r->to_ask && r->asked_ns + CLIENT_PING_NS < due) due = r->asked_ns + CLIENT_PING_NS;
    return due;
}

bool call__wants_to_send(const struct client_call *r)
{
    return (r->to_ask && !(r->held && !r->c->takes)) || (r->asked && r->cancel_waits);
}

/* ---- replies ---- */

/* Takes in the reply's tokens. False: they do not follow what was received. */
static bool follows(struct client_call *r, const struct msg_generate_reply *reply)
{
    if (r->request.samples > 1) return true;
    if (reply->first_index != n_received(r)) return false;
    (void)buf_append(&r->received, reply->tokens, reply->n_tokens * sizeof *reply->tokens);
    if (reply->has_usage) { /* the server's draw for a request without a seed: needed to go on */
        r->request.has_seed = true;
        r->request.sampling.seed = reply->seed;
    }
    return true;
}

static void hand_out(struct client_call *r, const struct msg_generate_reply *m)
{
    struct client_reply reply = {.sample = m->sample,
                                 .first_index = m->first_index,
                                 .n_tokens = m->n_tokens,
                                 .tokens = m->tokens,
                                 .text = m->text,
                                 .finish_reason = m->finish_reason,
                                 .has_stop = m->has_stop && m->stop < r->request.n_stops,
                                 .stop = m->stop,
                                 .logprobs = m->logprobs.chosen,
                                 .n_top = m->logprobs.n_top,
                                 .top_ids = m->logprobs.top_ids,
                                 .top_logprobs = m->logprobs.top,
                                 .queued_us = m->queued_us,
                                 .cached = m->cached,
                                 .pieces = m->pieces,
                                 .n_pieces = m->n_pieces,
                                 .piece_bytes = m->piece_bytes,
                                 .has_usage = m->has_usage,
                                 .prompt_tokens = m->prompt_tokens,
                                 .n_prompt_tokens = m->n_prompt_tokens,
                                 .seed = m->seed,
                                 .open_thought = m->open_thought,
                                 .has_drafts = m->has_draft,
                                 .draft_runs = m->draft.runs,
                                 .drafted = m->draft.drafted,
                                 .accepted = m->draft.accepted,
                                 .embedding = m->embedding,
                                 .n_embedding = m->n_embedding};
    if (r->on_reply && !r->cancelled) r->on_reply(r->arg, r, &reply);
}

void call__take_reply(struct client_call *r, const struct msg_reply *h, struct net_frame body)
{
    struct msg_generate_reply m;
    r->heard_ns = clock_ns();
    if (body.bytes) {
        if (wire_get_generate_reply(body.data, body.bytes, &r->c->body_arena, &m, NULL) < 0 ||
            !follows(r, &m)) {
            call__lose(r, ERR_PROTO, "skips tokens");
            return;
        }
        hand_out(r, &m);
    }
    if (h->end && h->restarting) { /* its tokens are here: the next coordinator goes on */
        call__lose(r, ERR_CLOSED, h->message);
        return;
    }
    r->lost_ns = 0;
    r->to_ask = false;
    if (!h->end) return;
    struct client_end end = {.status = h->status, .retry_ms = h->retry_ms};
    memcpy(end.text, h->message, sizeof end.text);
    call__end(r, &end);
}

/* ---- one call, waiting ---- */

struct one_call {
    client_reply_fn on_reply;
    void *arg;
    struct client_end *end;
    bool done;
};

static void one_reply(void *arg, struct client_call *call, const struct client_reply *reply)
{
    const struct one_call *o = arg;
    if (o->on_reply) o->on_reply(o->arg, call, reply);
}

static void one_end(void *arg, struct client_call *call, const struct client_end *end)
{
    struct one_call *o = arg;
    (void)call;
    *o->end = *end;
    o->done = true;
}

int client_generate(struct client *c, const struct client_request *request,
                    client_reply_fn on_reply, void *arg, struct client_end *ret_end,
                    struct errmsg *em)
{
    struct one_call o = {.on_reply = on_reply, .arg = arg, .end = ret_end};
    if (c->in_turn) return err_set(em, ERR_RANGE, "client_generate: called from a callback");
    int rc = client_start(c, request, NULL, one_reply, one_end, &o, em);
    if (rc < 0) return rc;
    while (!o.done) (void)client_turn(c, 100);
    return ret_end->lost ? err_set(em, ret_end->lost, "%s", ret_end->text) : 0;
}

/* Keeps the embedding where replies of calls with one reply are kept. */
static void keep_embedding(void *arg, struct client_call *call, const struct client_reply *reply)
{
    struct client *c = arg;
    (void)call;
    (void)buf_append(&c->reply, reply->embedding, reply->n_embedding * sizeof(float));
}

int client_embed(struct client *c, const struct client_request *request,
                 const float **ret_embedding, uint32_t *ret_n, struct client_end *ret_end,
                 struct errmsg *em)
{
    struct client_request q = *request;
    q.embed = true;
    q.samples = 0;
    q.format = NULL;
    buf_drop(&c->reply, c->reply.len);
    int rc = client_generate(c, &q, keep_embedding, c, ret_end, em);
    if (rc < 0) return rc;
    *ret_embedding = (const float *)(const void *)c->reply.data;
    *ret_n = (uint32_t)(c->reply.len / sizeof(float));
    return 0;
}

const char *client_status_name(enum status status)
{
    switch (status) {
    case STATUS_OK: return "OK";
    case STATUS_CANCELLED: return "CANCELLED";
    case STATUS_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case STATUS_DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    case STATUS_NOT_FOUND: return "NOT_FOUND";
    case STATUS_PERMISSION_DENIED: return "PERMISSION_DENIED";
    case STATUS_RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case STATUS_FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case STATUS_UNIMPLEMENTED: return "UNIMPLEMENTED";
    case STATUS_INTERNAL: return "INTERNAL";
    case STATUS_UNAVAILABLE: return "UNAVAILABLE";
    }
    return "status unknown";
}
