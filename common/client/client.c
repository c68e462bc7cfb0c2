#include "common/client/client.h"

#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/net.h"
#include "proto/wire.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define PING_NS (500 * NS_PER_MS)

struct client {
    struct net *net;
    struct net_sock *sock;
    char endpoint[NET_ENDPOINT_MAX];
    struct instance instance;
    uint64_t next_call, ping_call, pinged_ns;
    struct client_call **calls; /* running Generates */
    size_t n_calls;
    struct arena header_arena, body_arena;
    struct buf header, body;
};

/* A running Generate. */
struct client_call {
    struct client *c;
    struct msg_generate request; /* what is asked for, from the next token on */
    uint64_t id, deadline_ns;
    client_reply_fn on_reply;
    client_end_fn on_end;
    void *arg;
    bool cancelled;
    struct buf received; /* int32_t: tokens that were handed out */
    uint64_t heard_ns;   /* the server's last word of this call */
    uint64_t lost_ns;    /* since when it is lost; 0: it is not */
    uint64_t asked_ns;   /* when the server was last asked to go on with it */
};

int client_open(const char *endpoint, struct client **ret_client, struct errmsg *em)
{
    struct client *c = mem_zalloc(sizeof *c);
    (void)snprintf(c->endpoint, sizeof c->endpoint, "%s", endpoint);
    c->next_call = 1;
    c->ping_call = c->next_call++;
    int rc = net_open(&c->net, em);
    if (rc == 0 && getrandom(&c->instance, sizeof c->instance, 0) != sizeof c->instance)
        rc = err_set(em, ERR_IO, "no random numbers");
    struct net_limits limits = {1024, LIMIT_CLIENT_BYTES};
    if (rc == 0) rc = net_socket(c->net, NET_DEALER, limits, &c->sock, em);
    if (rc == 0) rc = net_connect(c->sock, endpoint, em);
    if (rc < 0) {
        client_close(c);
        return rc;
    }
    *ret_client = c;
    return 0;
}

void client_close(struct client *c)
{
    if (!c) return;
    if (c->sock) net_sock_drain(c->sock, 200); /* a Cancel may be on its way */
    net_close(c->net);
    for (size_t i = 0; i < c->n_calls; i++) {
        buf_close(&c->calls[i]->received);
        mem_free(c->calls[i]);
    }
    mem_free(c->calls);
    arena_close(&c->header_arena);
    arena_close(&c->body_arena);
    buf_close(&c->header);
    buf_close(&c->body);
    mem_free(c);
}

static int send_call(struct client *c, uint32_t version, const char *method, uint64_t call,
                     uint64_t deadline_ms, const void *body, size_t body_bytes, struct errmsg *em)
{
    struct msg_call h = {
        .version = version, .client = c->instance, .call = call, .deadline_ms = deadline_ms};
    (void)snprintf(h.method, sizeof h.method, "%s", method);
    wire_put_call(&h, &c->header);
    struct net_frame f[2] = {{c->header.data, c->header.len}, {body, body_bytes}};
    uint64_t give_up_ns = clock_ns() + CLIENT_CONNECT_MS * NS_PER_MS;
    int rc;
    while ((rc = net_send(c->sock, f, 2)) == ERR_AGAIN && clock_ns() < give_up_ns) {
        struct net_poll p = {.sock = c->sock, .want_write = true};
        (void)net_poll(&p, 1, 100);
    }
    return rc < 0 ? err_set(em, ERR_TIMEOUT, "no coordinator answers at %s", c->endpoint) : 0;
}

/* The next reply's header, its message in *m (closed by the caller). ERR_AGAIN after timeout_ms. */
static int next_reply(struct client *c, long timeout_ms, struct net_msg *m, struct msg_reply *ret,
                      struct errmsg *em)
{
    struct net_poll p = {.sock = c->sock};
    int rc = net_recv(c->sock, m);
    if (rc == ERR_AGAIN) {
        (void)net_poll(&p, 1, timeout_ms);
        rc = net_recv(c->sock, m);
    }
    if (rc < 0) return rc;
    struct net_frame f = net_msg_frame(m, 0);
    rc = m->n == 2 ? wire_get_reply(f.data, f.bytes, &c->header_arena, ret, em)
                   : err_set(em, ERR_PROTO, "a reply of %u frames", m->n);
    if (rc < 0) net_msg_close(m);
    return rc;
}

/* ---- Generate ---- */

static uint32_t n_received(const struct client_call *r)
{
    return (uint32_t)(r->received.len / sizeof(int32_t));
}

/* Asks for the tokens from the next one on: of the running call, if the server knows it, and of one
 * that goes on behind what was received, if it is a new process. */
static int ask(struct client_call *r, struct errmsg *em)
{
    uint64_t now = clock_ns(), left_ms = 0;
    if (r->deadline_ns) left_ms = now < r->deadline_ns ? (r->deadline_ns - now) / NS_PER_MS + 1 : 1;
    r->asked_ns = now;
    if (r->request.samples <= 1) {
        r->request.n_received = r->request.from_index = n_received(r);
        r->request.received = (const int32_t *)(const void *)r->received.data;
    }
    wire_put_generate(&r->request, &r->c->body);
    return send_call(r->c, PROTO_VERSION, "Generate", r->id, left_ms, r->c->body.data,
                     r->c->body.len, em);
}

static void end_call(struct client_call *r, const struct client_end *end)
{
    struct client *c = r->c;
    for (size_t i = 0; i < c->n_calls; i++)
        if (c->calls[i] == r) c->calls[i] = c->calls[--c->n_calls];
    r->on_end(r->arg, end);
    buf_close(&r->received);
    mem_free(r);
}

/* The call is lost, and may be found again for a while. */
static void lose(struct client_call *r, int code, const char *text)
{
    uint64_t now = clock_ns();
    if (!r->lost_ns) r->lost_ns = now;
    if (r->cancelled || r->request.samples > 1 ||
        now - r->lost_ns >= CLIENT_PATIENCE_MS * NS_PER_MS) {
        struct client_end end = {.lost = code, .status = STATUS_UNAVAILABLE};
        (void)snprintf(end.text, sizeof end.text, "%s %s", r->c->endpoint, text);
        end_call(r, &end);
        return;
    }
    struct errmsg em;
    if (now - r->asked_ns >= PING_NS) (void)ask(r, &em); /* nobody there: again in a while */
}

static struct client_call *call_by_id(const struct client *c, uint64_t id)
{
    for (size_t i = 0; i < c->n_calls; i++)
        if (c->calls[i]->id == id) return c->calls[i];
    return NULL;
}

static void send_cancel(struct client_call *r)
{
    wire_put_cancel(r->id, &r->c->body);
    (void)send_call(r->c, PROTO_VERSION, "Cancel", r->c->next_call++, 0, r->c->body.data,
                    r->c->body.len, NULL);
    r->cancelled = true;
}

/* False: the reply does not follow what was received: it is asked for again. */
static bool follows(struct client_call *r, const struct msg_generate_reply *reply)
{
    if (r->request.samples > 1) return true;
    if (reply->first_index != n_received(r)) return false;
    (void)buf_append(&r->received, reply->tokens, reply->n_tokens * sizeof *reply->tokens);
    if (reply->has_usage) { /* a request without a seed was given one: it can be gone on with */
        r->request.has_seed = true;
        r->request.sampling.seed = reply->seed;
    }
    return true;
}

static void take_reply(struct client_call *r, const struct msg_reply *h, struct net_frame body)
{
    struct msg_generate_reply reply;
    struct errmsg em = {0};
    r->heard_ns = clock_ns();
    if (body.bytes) {
        if (wire_get_generate_reply(body.data, body.bytes, &r->c->body_arena, &reply, &em) < 0 ||
            !follows(r, &reply)) {
            lose(r, ERR_PROTO, "skips tokens");
            return;
        }
        if (!r->cancelled && !r->on_reply(r->arg, &reply)) send_cancel(r);
    }
    r->lost_ns = 0;
    if (!h->end) return;
    struct client_end end = {.status = h->status, .retry_ms = h->retry_ms};
    memcpy(end.text, h->message, sizeof end.text);
    end_call(r, &end);
}

static void take_pong(struct client *c, struct net_frame body)
{
    const uint64_t *unknown;
    struct errmsg em;
    uint32_t n = 0;
    if (wire_get_pong(body.data, body.bytes, &c->body_arena, &unknown, &n, &em) < 0) return;
    for (uint32_t i = 0; i < n; i++) {
        struct client_call *r = call_by_id(c, unknown[i]);
        if (r) lose(r, ERR_CLOSED, "does not know this call any more");
    }
}

/* Tells the server which calls somebody waits for. */
static void ping(struct client *c)
{
    uint64_t ids[LIMIT_PING_CALLS];
    for (size_t at = 0; at < c->n_calls; at += LIMIT_PING_CALLS) {
        uint32_t n = 0;
        for (size_t i = at; i < c->n_calls && n < LIMIT_PING_CALLS; i++) ids[n++] = c->calls[i]->id;
        struct msg_call h = {.version = PROTO_VERSION,
                             .method = "Ping",
                             .client = c->instance,
                             .call = c->ping_call};
        wire_put_call(&h, &c->header);
        wire_put_ping(ids, n, &c->body);
        struct net_frame f[2] = {{c->header.data, c->header.len}, {c->body.data, c->body.len}};
        (void)net_send(c->sock, f, 2);
    }
    c->pinged_ns = clock_ns();
}

int client_start(struct client *c, const struct msg_generate *request, uint64_t deadline_ms,
                 client_reply_fn on_reply, client_end_fn on_end, void *arg, struct errmsg *em)
{
    struct client_call *r = mem_alloc(sizeof *r);
    uint64_t now = clock_ns();
    *r = (struct client_call){.c = c,
                              .request = *request,
                              .id = c->next_call++,
                              .deadline_ns = deadline_ms ? now + deadline_ms * NS_PER_MS : 0,
                              .on_reply = on_reply,
                              .on_end = on_end,
                              .arg = arg,
                              .heard_ns = now};
    int rc = ask(r, em);
    if (rc < 0) {
        mem_free(r);
        return rc;
    }
    c->calls = mem_realloc(c->calls, (c->n_calls + 1) * sizeof *c->calls);
    c->calls[c->n_calls++] = r;
    return 0;
}

size_t client_turn(struct client *c, long timeout_ms)
{
    struct net_msg m;
    struct msg_reply h;
    struct errmsg em = {0};
    int rc;
    while ((rc = next_reply(c, timeout_ms, &m, &h, &em)) != ERR_AGAIN) {
        timeout_ms = 0;
        if (rc < 0) continue;
        struct client_call *r = call_by_id(c, h.call);
        if (h.call == c->ping_call)
            take_pong(c, net_msg_frame(&m, 1));
        else if (r) /* otherwise of a call given up before */
            take_reply(r, &h, net_msg_frame(&m, 1));
        net_msg_close(&m);
    }
    uint64_t now = clock_ns();
    for (size_t i = c->n_calls; i-- > 0;) {
        struct client_call *r = c->calls[i];
        if (r->lost_ns || now - r->heard_ns >= CLIENT_SILENT_MS * NS_PER_MS)
            lose(r, ERR_TIMEOUT, "is silent");
    }
    if (c->n_calls && now - c->pinged_ns >= PING_NS) ping(c);
    return c->n_calls;
}

struct one_call {
    client_reply_fn on_reply;
    void *arg;
    struct client_end *end;
};

static bool one_reply(void *arg, const struct msg_generate_reply *reply)
{
    const struct one_call *o = arg;
    return o->on_reply(o->arg, reply);
}

static void one_end(void *arg, const struct client_end *end)
{
    *((struct one_call *)arg)->end = *end;
}

int client_generate(struct client *c, const struct msg_generate *request, uint64_t deadline_ms,
                    client_reply_fn on_reply, void *arg, struct client_end *ret_end,
                    struct errmsg *em)
{
    struct one_call o = {on_reply, arg, ret_end};
    int rc = client_start(c, request, deadline_ms, one_reply, one_end, &o, em);
    if (rc < 0) return rc;
    while (client_turn(c, 100)) continue;
    return ret_end->lost ? err_set(em, ret_end->lost, "%s", ret_end->text) : 0;
}

/* A call with one reply, whose body stays in c->body. */
static int unary(struct client *c, uint32_t version, const char *method, const void *body,
                 size_t body_bytes, struct client_end *ret_end, struct errmsg *em)
{
    uint64_t call = c->next_call++;
    int rc = send_call(c, version, method, call, 0, body, body_bytes, em);
    uint64_t give_up_ns = clock_ns() + CLIENT_SILENT_MS * NS_PER_MS;
    while (rc == 0) {
        struct net_msg m;
        struct msg_reply h;
        rc = next_reply(c, 100, &m, &h, em);
        if (rc == 0) {
            struct net_frame f = net_msg_frame(&m, 1);
            bool ours = h.call == call && h.end;
            if (ours) {
                buf_drop(&c->body, c->body.len);
                (void)buf_append(&c->body, f.data, f.bytes);
                *ret_end = (struct client_end){.status = h.status, .retry_ms = h.retry_ms};
                memcpy(ret_end->text, h.message, sizeof ret_end->text);
            }
            net_msg_close(&m);
            if (ours) return 0;
        } else if (rc == ERR_AGAIN && clock_ns() < give_up_ns) {
            rc = 0;
        } else if (rc == ERR_AGAIN) {
            rc = err_set(em, ERR_TIMEOUT, "%s is silent", c->endpoint);
        }
    }
    return rc;
}

static int ok_or_text(const struct client_end *end, struct errmsg *em)
{
    return end->status == STATUS_OK
               ? 0
               : err_set(em, ERR_PROTO, "status %d: %s", (int)end->status, end->text);
}

int client_status(struct client *c, struct msg_status *ret, struct errmsg *em)
{
    struct client_end end;
    int rc = unary(c, PROTO_VERSION, "Status", "", 0, &end, em);
    if (rc == 0) rc = ok_or_text(&end, em);
    return rc < 0 ? rc : wire_get_status(c->body.data, c->body.len, &c->body_arena, ret, em);
}

int client_models(struct client *c, const char **ret_name, struct errmsg *em)
{
    struct client_end end;
    int rc = unary(c, PROTO_VERSION, "Models", "", 0, &end, em);
    if (rc == 0) rc = ok_or_text(&end, em);
    return rc < 0 ? rc : wire_get_models(c->body.data, c->body.len, &c->body_arena, ret_name, em);
}

int client_tokenize(struct client *c, const char *text, bool special, const int32_t **ret_tokens,
                    uint32_t *ret_n, struct errmsg *em)
{
    struct client_end end;
    struct buf request = {0};
    wire_put_tokenize(text, special, &request);
    int rc = unary(c, PROTO_VERSION, "Tokenize", request.data, request.len, &end, em);
    buf_close(&request);
    if (rc == 0) rc = ok_or_text(&end, em);
    return rc < 0
               ? rc
               : wire_get_tokens(c->body.data, c->body.len, &c->body_arena, ret_tokens, ret_n, em);
}

int client_raw(struct client *c, uint32_t version, const char *method, const void *body,
               size_t body_bytes, struct client_end *ret_end, struct errmsg *em)
{
    return unary(c, version, method, body, body_bytes, ret_end, em);
}
