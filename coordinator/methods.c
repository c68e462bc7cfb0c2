/* What clients send, method by method. Generate has a file of its own. */
#include "coordinator/shell.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A turn takes clients' messages until it has taken so many, or so many bytes. */
#define MESSAGES_A_TURN 32
#define BYTES_A_TURN ((size_t)256 << 10)
#define TOKEN_WIRE_BYTES 5u /* of a token id, at most */
/* Bytes of a text whose DetokenizeReply its receiver takes: with the field's number and length. */
#define DETOKENIZED_MAX (LIMIT_CLIENT_BYTES - 16u)

uint32_t methods__message_bytes(struct shell *s, uint32_t ctx)
{
    s->ctx = ctx;
    s->token_bytes = 1;
    for (uint32_t i = 0; i < vocab_size(s->model->vocab); i++) {
        size_t n = vocab_piece(s->model->vocab, (int32_t)i).len;
        if (n > s->token_bytes) s->token_bytes = (uint32_t)n;
    }
    /* The longest prompt as text, what was received of the answer, and all else. What is larger
     * costs its client the connection, unread; so clients are told (PingReply). */
    uint64_t bytes = (uint64_t)ctx * (s->token_bytes + TOKEN_WIRE_BYTES) + LIMIT_CONTROL_BYTES;
    if (bytes < LIMIT_CLIENT_LEAST) bytes = LIMIT_CLIENT_LEAST;
    s->message_bytes = (uint32_t)(bytes < LIMIT_CLIENT_BYTES ? bytes : LIMIT_CLIENT_BYTES);
    return s->message_bytes;
}

/* ---- Tokenize ---- */

static void tokenize(struct shell *s, const struct msg_call *h, const struct route *from,
                     struct net_frame body)
{
    struct errmsg em = {0};
    struct msg_tokenize m;
    if (wire_get_tokenize(body.data, body.bytes, &s->body_arena, &m, &em) < 0) {
        calls__reply(s, from, h->call, calls__unread(s), em.text, NULL);
        return;
    }
    struct call *c = calls__new(s, h, from, "", 0);
    const char *bytes = m.chat ? m.chat : m.text;
    const struct text t = {.request = c ? c->request : 0,
                           .vocab = s->model->vocab,
                           .bytes = (char *)(uintptr_t)bytes,
                           .len = strlen(bytes),
                           .special = m.special,
                           .chat = m.chat ? &s->talk : NULL,
                           .want_prompt = m.chat != NULL};
    if (c) calls__start_text(s, c, &t);
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
static void tell_tokens(struct shell *s, struct call *c, const struct text *of)
{
    char text[LIMIT_TEXT_BYTES];
    const struct tokens *t = &of->tokens;
    size_t bytes = tokens_bytes(t) + (of->prompt ? strlen(of->prompt) + 16 : 0);
    if (bytes > LIMIT_CLIENT_BYTES) {
        (void)snprintf(text, sizeof text,
                       "field 'text': its %zu tokens make a reply of %zu bytes, the limit is %u: "
                       "tokenise it in parts",
                       t->n, bytes, LIMIT_CLIENT_BYTES);
        calls__finish(s, c, STATUS_INVALID_ARGUMENT, text, 0);
        return;
    }
    wire_put_tokens(&(struct msg_tokens){t->ids, (uint32_t)t->n, of->prompt}, &s->body);
    calls__reply(s, &c->route, c->id, STATUS_OK, "", &s->body);
    calls__free(s, c);
}

void methods__text_done(struct shell *s, struct text *t)
{
    struct call *c = calls__of_request(s, t->request);
    if (!c || c->ended) return;
    c->text_waits = false;
    if (t->rc == ERR_NOMEM) {
        char text[LIMIT_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "no memory for %.400s", t->em.text);
        calls__finish(s, c, STATUS_RESOURCE_EXHAUSTED, text, 1000);
    } else if (t->rc < 0) {
        calls__finish(s, c, STATUS_INVALID_ARGUMENT, t->em.text, 0);
    } else if (c->n_answers) {
        c->open_thought = t->open_thought;
        generate__prompt(s, c, t);
    } else {
        tell_tokens(s, c, t);
    }
}

/* ---- Detokenize ---- */

/* At most a context of them, so that no turn of the loop is long. */
static void detokenize(struct shell *s, const struct msg_call *h, const struct route *from,
                       struct net_frame body)
{
    struct errmsg em = {0};
    const int32_t *ids;
    uint32_t n;
    char text[LIMIT_TEXT_BYTES];
    if (wire_get_detokenize(body.data, body.bytes, &s->body_arena, &ids, &n, &em) < 0) {
        calls__reply(s, from, h->call, calls__unread(s), em.text, NULL);
        return;
    }
    if (n > s->ctx) {
        (void)snprintf(text, sizeof text,
                       "field 'tokens': %" PRIu32 " tokens do not fit the context of %" PRIu32, n,
                       s->ctx);
        calls__reply(s, from, h->call, STATUS_INVALID_ARGUMENT, text, NULL);
        return;
    }
    buf_drop(&s->pieces, s->pieces.len);
    for (uint32_t i = 0; i < n && s->pieces.len <= DETOKENIZED_MAX; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab_size(s->model->vocab)) {
            (void)snprintf(text, sizeof text,
                           "field 'tokens': %" PRId32 " is not in the vocabulary", ids[i]);
            calls__reply(s, from, h->call, STATUS_INVALID_ARGUMENT, text, NULL);
            return;
        }
        struct vocab_string p = vocab_piece(s->model->vocab, ids[i]);
        (void)buf_append(&s->pieces, p.data, p.len);
    }
    if (s->pieces.len > DETOKENIZED_MAX) {
        (void)snprintf(text, sizeof text,
                       "field 'tokens': their text has more than %u bytes, the limit: send them in "
                       "parts",
                       DETOKENIZED_MAX);
        calls__reply(s, from, h->call, STATUS_INVALID_ARGUMENT, text, NULL);
        return;
    }
    wire_put_bytes(s->pieces.data, s->pieces.len, &s->body);
    calls__reply(s, from, h->call, STATUS_OK, "", &s->body);
}

/* ---- the others ---- */

static void cancel_call(struct shell *s, const struct msg_call *h, const struct route *from,
                        struct net_frame body)
{
    struct errmsg em = {0};
    uint64_t id;
    if (wire_get_cancel(body.data, body.bytes, &s->body_arena, &id, &em) < 0) {
        calls__reply(s, from, h->call, calls__unread(s), em.text, NULL);
        return;
    }
    struct call *c = calls__find(s, h->client, id);
    calls__reply(s, from, h->call, c ? STATUS_OK : STATUS_NOT_FOUND, c ? "" : "no such call", NULL);
    if (!c || c->ended) return;
    calls__cancel(s, c, "cancelled by the client");
    if (c->used && !c->ended) /* it was still being tokenised */
        calls__finish(s, c, STATUS_CANCELLED, "cancelled by the client", 0);
}

static void ping(struct shell *s, const struct msg_call *h, const struct route *from,
                 struct net_frame body)
{
    struct errmsg em = {0};
    const uint64_t *ids;
    uint32_t n, n_unknown = 0;
    if (wire_get_ping(body.data, body.bytes, &s->body_arena, &ids, &n, &em) < 0) {
        calls__reply(s, from, h->call, calls__unread(s), em.text, NULL);
        return;
    }
    uint64_t *unknown = mem_alloc((n + 1) * sizeof *unknown);
    for (uint32_t i = 0; i < n; i++) {
        struct call *c = calls__find(s, h->client, ids[i]);
        if (c) {
            c->heard_ns = s->now_ns;
            calls__set_route(c, from);
        } else {
            unknown[n_unknown++] = ids[i];
        }
    }
    wire_put_pong(unknown, n_unknown, s->message_bytes, &s->body);
    calls__reply(s, from, h->call, STATUS_OK, "", &s->body);
    mem_free(unknown);
}

static void status(struct shell *s, const struct msg_call *h, const struct route *from)
{
    struct msg_status m;
    core_status(s->core, &m);
    m.model = s->name;
    m.messages_dropped += s->dropped;
    wire_put_status(&m, &s->body);
    calls__reply(s, from, h->call, STATUS_OK, "", &s->body);
}

/* Drain and Rebalance: an admin's. */
static void order(struct shell *s, const struct msg_call *h, const struct route *from,
                  struct net_frame body, enum event_type type)
{
    struct errmsg em = {0};
    struct msg_order o;
    if (!(s->caller_roles & KEY_ADMIN)) {
        calls__reply(s, from, h->call, STATUS_PERMISSION_DENIED,
                     "this takes an admin's key ('keys.admins')", NULL);
        return;
    }
    if (wire_get_order(body.data, body.bytes, &s->body_arena, &o, &em) < 0) {
        calls__reply(s, from, h->call, calls__unread(s), em.text, NULL);
        return;
    }
    uint64_t limit_ns = o.has_limit ? o.limit_ms * NS_PER_MS : s->config->drain_s * NS_PER_S;
    struct event e = {.type = type, .order = {o.name, limit_ns}};
    shell__event(s, &e);
    wire_put_order_reply(s->answer_text, &s->body);
    bool taken = s->answer == STATUS_OK;
    calls__reply(s, from, h->call, s->answer, taken ? "" : s->answer_text, taken ? &s->body : NULL);
}

static bool has_long_body(const char *method)
{
    return strcmp(method, "Generate") == 0 || strcmp(method, "Tokenize") == 0 ||
           strcmp(method, "Detokenize") == 0;
}

static void take_message(struct shell *s, const struct net_msg *m)
{
    s->caller_roles = m->roles;
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
        calls__reply(s, &from, h.call, STATUS_FAILED_PRECONDITION, text, NULL);
    } else if (!has_long_body(h.method) && body.bytes > LIMIT_CONTROL_BYTES) {
        (void)snprintf(text, sizeof text, "a body of %zu bytes, the limit of '%.24s' is %u",
                       body.bytes, h.method, LIMIT_CONTROL_BYTES);
        calls__reply(s, &from, h.call, STATUS_INVALID_ARGUMENT, text, NULL);
    } else if (strcmp(h.method, "Generate") == 0) {
        generate__call(s, &h, &from, body);
    } else if (strcmp(h.method, "Ping") == 0) {
        ping(s, &h, &from, body);
    } else if (strcmp(h.method, "Cancel") == 0) {
        cancel_call(s, &h, &from, body);
    } else if (strcmp(h.method, "Tokenize") == 0) {
        tokenize(s, &h, &from, body);
    } else if (strcmp(h.method, "Detokenize") == 0) {
        detokenize(s, &h, &from, body);
    } else if (strcmp(h.method, "Models") == 0) {
        wire_put_models(s->name, &s->body);
        calls__reply(s, &from, h.call, STATUS_OK, "", &s->body);
    } else if (strcmp(h.method, "Status") == 0) {
        status(s, &h, &from);
    } else if (strcmp(h.method, "Drain") == 0) {
        order(s, &h, &from, body, EV_DRAIN);
    } else if (strcmp(h.method, "Rebalance") == 0) {
        order(s, &h, &from, body, EV_REBALANCE);
    } else {
        (void)snprintf(text, sizeof text, "unknown method '%.24s'", h.method);
        calls__reply(s, &from, h.call, STATUS_UNIMPLEMENTED, text, NULL);
    }
}

void methods__take(struct shell *s)
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
