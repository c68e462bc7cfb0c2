#include "common/client/client.h"

#include "common/base/addr.h"
#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/net.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define PING_NS (500 * NS_PER_MS)
#define STALL_NS (200 * NS_PER_MS) /* a wait that took so much longer: this process was stopped */
#define LOOKUP_MS 10000            /* how long client_open waits for a name */

struct client {
    struct net *net;
    struct net_sock *sock;
    char endpoint[ADDR_TEXT_BYTES];
    struct instance instance;
    uint64_t next_call, ping_call, pinged_ns;
    uint64_t heard_ns;          /* the server's last word, or when its connection was begun */
    uint64_t again_ns;          /* silence after which there will be a new connection */
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
    int lost_code; /* why, and in words: the last that the server said of it, or its silence */
    char lost_why[128];
    uint64_t asked_ns; /* when the server was last asked to go on with it */
};

/* A new connection in place of the present one: that may be dead without this end knowing, and
 * libzmq does not look a name up again. */
static int connect_again(struct client *c, struct errmsg *em)
{
    struct net_limits limits = {.hwm = 1024, .frame_max = LIMIT_CLIENT_BYTES};
    net_sock_close(c->sock);
    c->sock = NULL;
    c->heard_ns = clock_ns();
    int rc = net_socket(c->net, NET_DEALER, limits, &c->sock, em);
    if (rc == 0) rc = net_connect(c->sock, c->endpoint, em);
    if (rc == 0) return 0;
    net_sock_close(c->sock);
    c->sock = NULL;
    return rc;
}

/* A host that is a name is looked up now, so that a wrong one is told at once. */
static int await_lookup(struct client *c, struct errmsg *em)
{
    uint64_t give_up_ns = clock_ns() + LOOKUP_MS * NS_PER_MS;
    int rc;
    while ((rc = net_lookup(c->sock, em)) == ERR_AGAIN && clock_ns() < give_up_ns) {
        struct net_poll p = {.sock = c->sock};
        (void)net_poll(&p, 1, 100);
    }
    return rc == ERR_AGAIN ? err_set(em, ERR_TIMEOUT, "%s: the name service is silent", c->endpoint)
                           : rc;
}

int client_open(const char *endpoint, struct client **ret_client, struct errmsg *em)
{
    struct addr a;
    int rc = addr_parse_port(endpoint, &a, em);
    if (rc < 0) return rc;
    struct client *c = mem_zalloc(sizeof *c);
    addr_format(&a, c->endpoint, sizeof c->endpoint);
    c->next_call = 1;
    c->ping_call = c->next_call++;
    c->again_ns = CLIENT_AGAIN_MS * NS_PER_MS;
    rc = net_open(&c->net, em);
    if (rc == 0 && getrandom(&c->instance, sizeof c->instance, 0) != sizeof c->instance)
        rc = err_set(em, ERR_IO, "no random numbers");
    if (rc == 0) rc = connect_again(c, em);
    if (rc == 0) rc = await_lookup(c, em);
    if (rc < 0) {
        client_close(c);
        return rc == ERR_NOTFOUND ? ERR_CONF : rc;
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

/* ERR_AGAIN: there is no connection that takes it, now or after wait_ms. */
static int send_call(struct client *c, const struct msg_call *h, const void *body,
                     size_t body_bytes, uint64_t wait_ms)
{
    wire_put_call(h, &c->header);
    struct net_frame f[2] = {{c->header.data, c->header.len}, {body, body_bytes}};
    uint64_t give_up_ns = clock_ns() + wait_ms * NS_PER_MS;
    int rc;
    while ((rc = c->sock ? net_send(c->sock, f, 2) : ERR_AGAIN) == ERR_AGAIN &&
           clock_ns() < give_up_ns) {
        struct net_poll p = {.sock = c->sock, .want_write = true};
        (void)net_poll(&p, 1, 100);
    }
    return rc;
}

static struct msg_call call_header(struct client *c, const char *method, uint64_t call)
{
    struct msg_call h = {.version = PROTO_VERSION, .client = c->instance, .call = call};
    (void)snprintf(h.method, sizeof h.method, "%s", method);
    return h;
}

static int nobody(const struct client *c, struct errmsg *em)
{
    return err_set(em, ERR_TIMEOUT, "no coordinator answers at %s", c->endpoint);
}

static void forgive(struct client_call *r, uint64_t ns)
{
    r->heard_ns += ns;
    if (r->lost_ns) r->lost_ns += ns;
}

/* Waits; time in which this process itself did not run is nobody's silence. */
static void wait_for(struct client *c, long timeout_ms)
{
    struct net_poll p = {.sock = c->sock};
    uint64_t before = clock_ns();
    (void)net_poll(&p, 1, timeout_ms);
    uint64_t took_ns = clock_ns() - before;
    if (took_ns <= (uint64_t)timeout_ms * NS_PER_MS + STALL_NS) return;
    c->heard_ns += took_ns;
    for (size_t i = 0; i < c->n_calls; i++) forgive(c->calls[i], took_ns);
}

/* The next reply's header, its message in *m (closed by the caller). ERR_AGAIN after timeout_ms. */
static int next_reply(struct client *c, long timeout_ms, struct net_msg *m, struct msg_reply *ret,
                      struct errmsg *em)
{
    int rc = c->sock ? net_recv(c->sock, m) : ERR_AGAIN;
    if (rc == ERR_AGAIN && timeout_ms) {
        wait_for(c, timeout_ms);
        rc = c->sock ? net_recv(c->sock, m) : ERR_AGAIN;
    }
    if (rc < 0) return rc;
    c->heard_ns = clock_ns();
    c->again_ns = CLIENT_AGAIN_MS * NS_PER_MS;
    struct net_frame f = net_msg_frame(m, 0);
    rc = m->n == 2 ? wire_get_reply(f.data, f.bytes, &c->header_arena, ret, em)
                   : err_set(em, ERR_PROTO, "a reply of %u frames", m->n);
    if (rc < 0) net_msg_close(m);
    return rc;
}

/* Of a server that speaks another version only the header is read, which keeps its form; its own
 * text, if it has one, names both versions. */
static bool other_version(const struct msg_reply *h, struct client_end *ret)
{
    if (h->version == PROTO_VERSION) return false;
    *ret = (struct client_end){.lost = ERR_PROTO, .status = STATUS_FAILED_PRECONDITION};
    (void)snprintf(ret->text, sizeof ret->text,
                   "the server speaks protocol version %" PRIu32 ", this client %u%s%.300s",
                   h->version, PROTO_VERSION, h->message[0] ? ": " : "", h->message);
    return true;
}

/* ---- Generate ---- */

static uint32_t n_received(const struct client_call *r)
{
    return (uint32_t)(r->received.len / sizeof(int32_t));
}

/* Asks for the tokens from the next one on: of the running call, if the server knows it, and of one
 * that goes on behind what was received, if it is a new process. */
static int ask(struct client_call *r, uint64_t wait_ms)
{
    uint64_t now = clock_ns(), left_ms = 0;
    if (r->deadline_ns) left_ms = now < r->deadline_ns ? (r->deadline_ns - now) / NS_PER_MS + 1 : 1;
    r->asked_ns = now;
    if (r->request.samples <= 1) {
        r->request.n_received = r->request.from_index = n_received(r);
        r->request.received = (const int32_t *)(const void *)r->received.data;
    }
    wire_put_generate(&r->request, &r->c->body);
    struct msg_call h = call_header(r->c, "Generate", r->id);
    h.deadline_ms = left_ms;
    return send_call(r->c, &h, r->c->body.data, r->c->body.len, wait_ms);
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
static void go_on_lost(struct client_call *r)
{
    uint64_t now = clock_ns();
    if (r->cancelled || r->request.samples > 1 ||
        now - r->lost_ns >= CLIENT_PATIENCE_MS * NS_PER_MS) {
        struct client_end end = {.lost = r->lost_code, .status = STATUS_UNAVAILABLE};
        (void)snprintf(end.text, sizeof end.text, "%s %s", r->c->endpoint, r->lost_why);
        end_call(r, &end);
    } else if (now - r->asked_ns >= PING_NS) {
        (void)ask(r, 0); /* nobody there: again in a while */
    }
}

static void lose(struct client_call *r, int code, const char *why)
{
    if (!r->lost_ns) r->lost_ns = clock_ns();
    r->lost_code = code;
    (void)snprintf(r->lost_why, sizeof r->lost_why, "%.120s", why);
    go_on_lost(r);
}

static struct client_call *call_by_id(const struct client *c, uint64_t id)
{
    for (size_t i = 0; i < c->n_calls; i++)
        if (c->calls[i]->id == id) return c->calls[i];
    return NULL;
}

static void send_cancel(struct client_call *r)
{
    struct msg_call h = call_header(r->c, "Cancel", r->c->next_call++);
    wire_put_cancel(r->id, &r->c->body);
    (void)send_call(r->c, &h, r->c->body.data, r->c->body.len, 0); /* silence cancels it as well */
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
    if (h->end && h->restarting) { /* what it had is here; the next one goes on */
        lose(r, ERR_CLOSED, h->message);
        return;
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
        if (!r) continue;
        r->heard_ns = clock_ns();
        lose(r, ERR_CLOSED, "does not know this call any more");
    }
}

/* Tells the server which calls somebody waits for; at least that somebody is here. */
static void ping(struct client *c)
{
    uint64_t ids[LIMIT_PING_CALLS];
    size_t at = 0;
    do {
        uint32_t n = 0;
        for (size_t i = at; i < c->n_calls && n < LIMIT_PING_CALLS; i++) ids[n++] = c->calls[i]->id;
        struct msg_call h = call_header(c, "Ping", c->ping_call);
        wire_put_ping(ids, n, &c->body);
        (void)send_call(c, &h, c->body.data, c->body.len, 0);
        at += LIMIT_PING_CALLS;
    } while (at < c->n_calls);
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
    if (c->n_calls == 0) c->heard_ns = now; /* nobody was asked before */
    if (ask(r, CLIENT_CONNECT_MS) < 0) {
        mem_free(r);
        return nobody(c, em);
    }
    c->calls = mem_realloc(c->calls, (c->n_calls + 1) * sizeof *c->calls);
    c->calls[c->n_calls++] = r;
    return 0;
}

/* All calls end: no reply of this server will ever be understood. */
static void end_all(struct client *c, const struct client_end *end)
{
    while (c->n_calls) end_call(c->calls[c->n_calls - 1], end);
}

static void take(struct client *c, const struct msg_reply *h, struct net_frame body)
{
    struct client_end end;
    struct client_call *r = call_by_id(c, h->call);
    if (other_version(h, &end))
        end_all(c, &end);
    else if (h->call == c->ping_call)
        take_pong(c, body);
    else if (r) /* otherwise of a call given up before */
        take_reply(r, h, body);
}

/* Silence of the connection: a new one, and all calls are asked for there. Silence of a call: it is
 * lost, and asked for again for a while. */
static void check_silence(struct client *c)
{
    uint64_t now = clock_ns();
    if (c->n_calls && now - c->heard_ns >= c->again_ns) {
        c->again_ns *= 2; /* over a slow line a long reply takes its time */
        (void)connect_again(c, NULL);
        for (size_t i = c->n_calls; i-- > 0;) {
            struct client_call *r = c->calls[i];
            r->asked_ns = 0; /* at once when it is connected */
            lose(r, ERR_TIMEOUT, "is silent");
        }
    }
    for (size_t i = c->n_calls; i-- > 0;) {
        struct client_call *r = c->calls[i];
        if (now - r->heard_ns >= CLIENT_SILENT_MS * NS_PER_MS)
            lose(r, ERR_TIMEOUT, "is silent");
        else if (r->lost_ns)
            go_on_lost(r);
    }
}

size_t client_turn(struct client *c, long timeout_ms)
{
    struct net_msg m;
    struct msg_reply h;
    struct errmsg em = {0};
    for (int i = 0; i < CLIENT_REPLIES_A_TURN; i++) {
        int rc = next_reply(c, i ? 0 : timeout_ms, &m, &h, &em);
        if (rc == ERR_AGAIN) break;
        if (rc < 0) continue;
        take(c, &h, net_msg_frame(&m, 1));
        net_msg_close(&m);
    }
    check_silence(c);
    if (c->n_calls && clock_ns() - c->pinged_ns >= PING_NS) ping(c);
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

/* Takes the reply of a call with one, whose body stays in c->body. False: it was not that. */
static bool take_unary(struct client *c, uint64_t call, const struct msg_reply *h,
                       struct net_frame body, struct client_end *ret)
{
    if (other_version(h, ret)) return true;
    if (h->call != call || !h->end) return false;
    buf_drop(&c->body, c->body.len);
    (void)buf_append(&c->body, body.data, body.bytes);
    *ret = (struct client_end){.status = h->status, .retry_ms = h->retry_ms};
    memcpy(ret->text, h->message, sizeof ret->text);
    return true;
}

/* A call with one reply. It changes nothing at the server, so where nothing is heard it is asked
 * again on a new connection. The answers to pings tell a slow server from a dead one. */
static int unary(struct client *c, uint32_t version, const char *method, const void *body,
                 size_t body_bytes, struct client_end *ret_end, struct errmsg *em)
{
    struct msg_call h = call_header(c, method, c->next_call++);
    uint64_t begun_ns = clock_ns(), heard_ns = begun_ns, now;
    h.version = version;
    bool sent = send_call(c, &h, body, body_bytes, CLIENT_AGAIN_MS) == 0, ever = sent,
         again = false;
    while ((now = clock_ns()) - heard_ns < CLIENT_SILENT_MS * NS_PER_MS &&
           now - begun_ns < CLIENT_SLOW_MS * NS_PER_MS) {
        struct net_msg m;
        struct msg_reply reply;
        int rc = next_reply(c, 100, &m, &reply, em);
        if (rc == 0) {
            heard_ns = clock_ns();
            bool done = take_unary(c, h.call, &reply, net_msg_frame(&m, 1), ret_end);
            net_msg_close(&m);
            if (done) return ret_end->lost ? err_set(em, ret_end->lost, "%s", ret_end->text) : 0;
            continue;
        }
        if (rc != ERR_AGAIN) return rc;
        if (!again && clock_ns() - heard_ns >= CLIENT_AGAIN_MS * NS_PER_MS) {
            again = true;
            sent = false;
            (void)connect_again(c, NULL);
        }
        if (!sent) sent = send_call(c, &h, body, body_bytes, 0) == 0;
        ever |= sent;
        if (sent && clock_ns() - c->pinged_ns >= PING_NS) ping(c);
    }
    return ever ? err_set(em, ERR_TIMEOUT, "%s is silent", c->endpoint) : nobody(c, em);
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
