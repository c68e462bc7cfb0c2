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
    uint64_t next_call;
    struct arena header_arena, body_arena;
    struct buf header, body;
};

int client_open(const char *endpoint, struct client **ret_client, struct errmsg *em)
{
    struct client *c = mem_zalloc(sizeof *c);
    (void)snprintf(c->endpoint, sizeof c->endpoint, "%s", endpoint);
    c->next_call = 1;
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

static void ping(struct client *c, uint64_t call, uint64_t of)
{
    struct msg_call h = {
        .version = PROTO_VERSION, .method = "Ping", .client = c->instance, .call = call};
    wire_put_call(&h, &c->header);
    wire_put_ping(&of, 1, &c->body);
    struct net_frame f[2] = {{c->header.data, c->header.len}, {c->body.data, c->body.len}};
    (void)net_send(c->sock, f, 2);
}

struct running {
    struct client *c;
    struct msg_generate request; /* what is asked for, from the next token on */
    uint64_t call, ping_call, deadline_ns;
    client_reply_fn on_reply;
    void *arg;
    bool cancelled;
    struct buf received; /* int32_t: tokens that were handed out */
    uint64_t lost_ns;    /* since when the server has not known the call; 0: it does */
    uint64_t asked_ns;   /* when it was last asked to go on with it */
    struct client_end *end;
    struct errmsg *em;
};

static uint32_t n_received(const struct running *r)
{
    return (uint32_t)(r->received.len / sizeof(int32_t));
}

/* Asks for the tokens from the next one on: of the running call, if the server knows it, and of one
 * that goes on behind what was received, if it is a new process. */
static int ask(struct running *r)
{
    uint64_t now = clock_ns(), left_ms = 0;
    if (r->deadline_ns) left_ms = now < r->deadline_ns ? (r->deadline_ns - now) / NS_PER_MS + 1 : 1;
    r->asked_ns = now;
    r->request.n_received = r->request.from_index = n_received(r);
    r->request.received = (const int32_t *)(const void *)r->received.data;
    wire_put_generate(&r->request, &r->c->body);
    return send_call(r->c, PROTO_VERSION, "Generate", r->call, left_ms, r->c->body.data,
                     r->c->body.len, r->em);
}

/* The call is lost, and may be found again for a while. */
static int lose(struct running *r, int code, const char *text)
{
    uint64_t now = clock_ns();
    if (!r->lost_ns) r->lost_ns = now;
    if (r->cancelled || r->request.samples > 1 ||
        now - r->lost_ns >= CLIENT_PATIENCE_MS * NS_PER_MS)
        return err_set(r->em, code, "%s %s", r->c->endpoint, text);
    if (now - r->asked_ns < PING_NS) return 0;
    int rc = ask(r);
    return rc == ERR_TIMEOUT ? 0 : rc; /* nobody is there: asked again until patience ends */
}

static void send_cancel(struct running *r)
{
    wire_put_cancel(r->call, &r->c->body);
    (void)send_call(r->c, PROTO_VERSION, "Cancel", r->c->next_call++, 0, r->c->body.data,
                    r->c->body.len, NULL);
    r->cancelled = true;
}

/* 1: the call has ended. */
static int take_reply(struct running *r, const struct net_msg *m, const struct msg_reply *h)
{
    struct net_frame body = net_msg_frame(m, 1);
    if (h->call == r->ping_call) {
        const uint64_t *unknown;
        uint32_t n = 0;
        int rc = wire_get_pong(body.data, body.bytes, &r->c->body_arena, &unknown, &n, r->em);
        return rc == 0 && n ? lose(r, ERR_CLOSED, "does not know this call any more") : rc;
    }
    if (h->call != r->call) return 0; /* of a call given up before */
    struct msg_generate_reply reply;
    int rc = 0;
    if (body.bytes)
        rc = wire_get_generate_reply(body.data, body.bytes, &r->c->body_arena, &reply, r->em);
    if (rc < 0) return rc;
    if (body.bytes && r->request.samples <= 1) {
        if (reply.first_index != n_received(r)) return lose(r, ERR_PROTO, "skips tokens");
        (void)buf_append(&r->received, reply.tokens, reply.n_tokens * sizeof *reply.tokens);
        if (reply.has_usage) { /* from now on it can be gone on with */
            r->request.has_seed = true;
            r->request.sampling.seed = reply.seed;
        }
        r->lost_ns = 0;
    }
    if (body.bytes && !r->cancelled && !r->on_reply(r->arg, &reply)) send_cancel(r);
    if (!h->end) return 0;
    *r->end = (struct client_end){.status = h->status, .retry_ms = h->retry_ms};
    memcpy(r->end->text, h->message, sizeof r->end->text);
    return 1;
}

int client_generate(struct client *c, const struct msg_generate *request, uint64_t deadline_ms,
                    client_reply_fn on_reply, void *arg, struct client_end *ret_end,
                    struct errmsg *em)
{
    struct running r = {.c = c,
                        .request = *request,
                        .call = c->next_call++,
                        .ping_call = c->next_call++,
                        .deadline_ns = deadline_ms ? clock_ns() + deadline_ms * NS_PER_MS : 0,
                        .on_reply = on_reply,
                        .arg = arg,
                        .end = ret_end,
                        .em = em};
    int rc = ask(&r);
    uint64_t heard_ns = clock_ns(), ping_ns = heard_ns + PING_NS;
    while (rc == 0) {
        struct net_msg m;
        struct msg_reply h;
        rc = next_reply(c, 100, &m, &h, em);
        uint64_t now = clock_ns();
        if (rc == 0) {
            heard_ns = now;
            rc = take_reply(&r, &m, &h);
            net_msg_close(&m);
        } else if (rc == ERR_AGAIN) {
            bool silent = now - heard_ns >= CLIENT_SILENT_MS * NS_PER_MS;
            rc = silent || r.lost_ns ? lose(&r, ERR_TIMEOUT, "is silent") : 0;
        }
        if (rc == 0 && now >= ping_ns) {
            ping(c, r.ping_call, r.call);
            ping_ns = now + PING_NS;
        }
    }
    buf_close(&r.received);
    return rc < 0 ? rc : 0;
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
