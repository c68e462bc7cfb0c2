/* The connection: opening and renewing it, waiting, and handing each reply to its call. */
#include "common/client/client_state.h"

#include "common/base/mem.h"
#include "common/io/keys.h"
#include "proto/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

/* A turn that comes this much too late shows that this process was stopped meanwhile. */
#define STALL_NS (200 * NS_PER_MS)
#define LOOKUP_MS 10000               /* how long client_open waits for a name */
#define AGAIN_MOST_NS (24 * NS_PER_S) /* of silence, before a new connection is made */
#define DRAIN_MS 200                  /* how long client_close waits for Cancels to leave */

/* ---- the connection ---- */

/* Puts the socket's own descriptor into the client's. */
static void watch(struct client *c)
{
    int fd = c->sock ? net_fd(c->sock) : -1;
    if (fd == c->watched) return;
    if (c->watched >= 0) (void)epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->watched, NULL);
    struct epoll_event e = {.events = EPOLLIN};
    c->watched = fd >= 0 && epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &e) == 0 ? fd : -1;
}

static void disconnect(struct client *c)
{
    if (c->watched >= 0) (void)epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->watched, NULL);
    c->watched = -1;
    net_sock_close(c->sock);
    c->sock = NULL;
}

/* A new connection in place of the present one: that may be dead without this end knowing, and
 * libzmq does not look a name up again. */
static int connect_again(struct client *c, struct errmsg *em)
{
    struct net_limits limits = {.hwm = 1024, .frame_max = LIMIT_CLIENT_BYTES};
    disconnect(c);
    c->heard_ns = clock_ns();
    c->takes = 0; /* it may be another server */
    int rc = net_socket(c->net, NET_DEALER, limits, &c->sock, em);
    if (rc < 0) return rc;
    if (key_is_set(&c->coordinator_key)) net_expect(c->sock, &c->coordinator_key);
    rc = net_connect(c->sock, c->endpoint, em);
    if (rc < 0)
        disconnect(c);
    else
        watch(c);
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

static int open_keys(struct client *c, const struct client_keys *keys, struct errmsg *em)
{
    struct key_pair own;
    if (!keys->file && !keys->coordinator) return 0;
    if (!keys->file || !keys->coordinator)
        return err_set(em, ERR_CONF, "a key file and the coordinator's key go together");
    if (!key_parse(keys->coordinator, &c->coordinator_key))
        return err_set(
            em, ERR_CONF,
            "the coordinator's key: '%.60s' is no public key: 40 characters, as flotilla "
            "keygen prints them",
            keys->coordinator);
    int rc = keys_read(keys->file, &own, em);
    if (rc == 0) rc = net_secure(c->net, &own, em);
    explicit_bzero(&own, sizeof own);
    return rc;
}

int client_open(const char *endpoint, struct client **ret_client, struct errmsg *em)
{
    return client_open_keys(endpoint, &(struct client_keys){.file = NULL}, ret_client, em);
}

int client_open_keys(const char *endpoint, const struct client_keys *keys,
                     struct client **ret_client, struct errmsg *em)
{
    struct addr a;
    int rc = addr_parse_port(endpoint, &a, em);
    if (rc < 0) return rc;
    struct client *c = mem_zalloc(sizeof *c);
    addr_format(&a, c->endpoint, sizeof c->endpoint);
    c->next_call = 1;
    c->ping_call = c->next_call++;
    c->again_ns = CLIENT_AGAIN_MS * NS_PER_MS;
    c->watched = -1;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll < 0) rc = err_set(em, ERR_IO, "no descriptor to wait for: %s", strerror(errno));
    if (rc == 0) rc = net_open(&c->net, em);
    if (rc == 0) rc = open_keys(c, keys, em);
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
    static const struct client_end closed = {.status = STATUS_CANCELLED,
                                             .text = "the client was closed"};
    if (!c) return;
    c->closing = c->in_turn = true;
    while (c->n_calls) {
        struct client_call *r = c->calls[c->n_calls - 1];
        client_cancel(r);
        call__end(r, &closed);
    }
    unary__close(c);
    if (c->sock) {
        net_sock_drain(c->sock, DRAIN_MS);
        c->sock = NULL;
    }
    net_close(c->net);
    if (c->epoll >= 0) (void)close(c->epoll);
    mem_free(c->calls);
    arena_close(&c->header_arena);
    arena_close(&c->body_arena);
    buf_close(&c->header);
    buf_close(&c->body);
    buf_close(&c->reply);
    mem_free(c);
}

int client__send(struct client *c, const struct msg_call *h, const void *body, size_t body_bytes)
{
    wire_put_call(h, &c->header);
    struct net_frame f[2] = {{c->header.data, c->header.len}, {body, body_bytes}};
    int rc = c->sock && !c->blocked ? net_send(c->sock, f, 2) : ERR_AGAIN;
    if (rc < 0) c->blocked = true;
    return rc;
}

int client__fits(const struct client *c, size_t body_bytes, struct errmsg *em)
{
    uint32_t most = c->takes ? c->takes : LIMIT_CLIENT_BYTES;
    if (body_bytes > most)
        return err_set(em, ERR_LIMIT, "a request of %zu bytes; the server takes %u", body_bytes,
                       most);
    return c->takes || body_bytes <= LIMIT_CLIENT_LEAST ? 0 : ERR_AGAIN;
}

struct msg_call client__header(const struct client *c, const char *method, uint64_t call)
{
    struct msg_call h = {.version = PROTO_VERSION, .client = c->instance, .call = call};
    (void)snprintf(h.method, sizeof h.method, "%s", method);
    return h;
}

int client__nobody(const struct client *c, struct errmsg *em)
{
    return err_set(em, ERR_TIMEOUT, "no coordinator answers at %s%s", c->endpoint,
                   key_is_set(&c->coordinator_key)
                       ? " that has this key and admits the client's"
                       : " (one with keys answers only clients that have one)");
}

bool client__other_version(const struct msg_reply *h, struct client_end *ret)
{
    /* Of such a server only the header is read, which keeps its form; its own text, if it has one,
     * names both versions. */
    if (h->version == PROTO_VERSION) return false;
    *ret = (struct client_end){.lost = ERR_PROTO, .status = STATUS_FAILED_PRECONDITION};
    (void)snprintf(ret->text, sizeof ret->text,
                   "the server speaks protocol version %" PRIu32 ", this client %u%s%.300s",
                   h->version, PROTO_VERSION, h->message[0] ? ": " : "", h->message);
    return true;
}

/* ---- waiting ---- */

static bool waits_for_server(const struct client *c)
{
    return c->n_calls || c->unaries;
}

void client__expect(struct client *c, uint64_t now)
{
    if (waits_for_server(c)) return;
    c->heard_ns = c->said_ns = c->listened_ns = now;
    c->due_ns = now + CLIENT_PING_NS;
    c->again_ns = CLIENT_AGAIN_MS * NS_PER_MS;
}

static bool wants_to_send(const struct client *c)
{
    if (unary__wants_to_send(c)) return true;
    for (size_t i = 0; i < c->n_calls; i++)
        if (call__wants_to_send(c->calls[i])) return true;
    return false;
}

/* When there is something to do even if nothing comes; UINT64_MAX: never. */
static uint64_t next_due_ns(const struct client *c)
{
    if (!waits_for_server(c)) return UINT64_MAX;
    uint64_t due = c->pinged_ns + CLIENT_PING_NS;
    if (c->heard_ns + c->again_ns < due) due = c->heard_ns + c->again_ns;
    if (unary__due_ns(c) < due) due = unary__due_ns(c);
    for (size_t i = 0; i < c->n_calls; i++) {
        uint64_t d = call__due_ns(c->calls[i]);
        if (d < due) due = d;
    }
    return due;
}

static int ms_until(uint64_t due_ns, uint64_t now)
{
    return due_ns <= now ? 0 : (int)((due_ns - now + NS_PER_MS - 1) / NS_PER_MS);
}

int client_fd(const struct client *c)
{
    return c->epoll;
}

int client_wait_ms(struct client *c)
{
    uint64_t due = next_due_ns(c);
    if (c->sock && net_ready(c->sock, wants_to_send(c))) return 0;
    return due == UINT64_MAX ? -1 : ms_until(due, clock_ns());
}

/* Time in which this process was to run and did not does not count as silence. */
static void forgive_standstill(struct client *c)
{
    uint64_t now = clock_ns();
    uint64_t due = c->due_ns > c->listened_ns ? c->due_ns : c->listened_ns;
    if (!waits_for_server(c) || now <= due + STALL_NS) return;
    uint64_t late_ns = now - due;
    c->heard_ns += late_ns;
    c->said_ns += late_ns;
    for (size_t i = 0; i < c->n_calls; i++) {
        struct client_call *r = c->calls[i];
        r->heard_ns += late_ns;
        if (r->lost_ns) r->lost_ns += late_ns;
    }
}

static void wait_for(struct client *c, int timeout_ms)
{
    uint64_t now = clock_ns(), due = next_due_ns(c);
    if (due != UINT64_MAX && ms_until(due, now) < timeout_ms) timeout_ms = ms_until(due, now);
    c->listened_ns = now;
    c->due_ns = now + (uint64_t)timeout_ms * NS_PER_MS;
    struct net_poll p = {.sock = c->sock, .want_write = wants_to_send(c)};
    (void)net_poll(&p, 1, timeout_ms);
    forgive_standstill(c);
}

/* ---- a turn ---- */

/* The next reply's header, its message in *m (closed by the caller). ERR_AGAIN: none waits. */
static int next_reply(struct client *c, struct net_msg *m, struct msg_reply *ret)
{
    int rc = c->sock ? net_recv(c->sock, m) : ERR_AGAIN;
    if (rc < 0) return rc;
    c->heard_ns = c->said_ns = clock_ns();
    c->again_ns = CLIENT_AGAIN_MS * NS_PER_MS;
    struct net_frame f = net_msg_frame(m, 0);
    rc = m->n == 2 ? wire_get_reply(f.data, f.bytes, &c->header_arena, ret, NULL) : ERR_PROTO;
    if (rc < 0) net_msg_close(m);
    return rc;
}

static struct client_call *call_by_id(const struct client *c, uint64_t id)
{
    for (size_t i = 0; i < c->n_calls; i++)
        if (c->calls[i]->id == id) return c->calls[i];
    return NULL;
}

static void take_pong(struct client *c, struct net_frame body)
{
    const uint64_t *unknown;
    uint32_t n = 0, takes = 0;
    if (wire_get_pong(body.data, body.bytes, &c->body_arena, &unknown, &n, &takes, NULL) < 0)
        return;
    c->takes = takes && takes < LIMIT_CLIENT_BYTES ? takes : LIMIT_CLIENT_BYTES;
    for (uint32_t i = 0; i < n; i++) {
        struct client_call *r = call_by_id(c, unknown[i]);
        if (!r) continue;
        r->heard_ns = clock_ns();
        call__lose(r, ERR_CLOSED, "does not know this call any more");
    }
}

static void take(struct client *c, const struct msg_reply *h, struct net_frame body)
{
    struct client_end end;
    struct client_call *r = call_by_id(c, h->call);
    if (unary__take_reply(c, h, body)) return;
    if (client__other_version(h, &end)) {
        /* No reply of this server will ever be understood. */
        while (c->n_calls) call__end(c->calls[c->n_calls - 1], &end);
    } else if (h->call == c->ping_call) {
        take_pong(c, body);
    } else if (r) { /* otherwise of a call given up before */
        call__take_reply(r, h, body);
    }
}

/* Tells the server which calls somebody waits for, or with none that somebody is here. */
static void ping(struct client *c, uint64_t now)
{
    uint64_t ids[LIMIT_PING_CALLS];
    size_t at = 0;
    do {
        uint32_t n = 0;
        for (size_t i = at; i < c->n_calls && n < LIMIT_PING_CALLS; i++) ids[n++] = c->calls[i]->id;
        struct msg_call h = client__header(c, "Ping", c->ping_call);
        wire_put_ping(ids, n, &c->body);
        (void)client__send(c, &h, c->body.data, c->body.len);
        at += LIMIT_PING_CALLS;
    } while (at < c->n_calls);
    c->pinged_ns = now;
}

/* Silence of the connection: a new one, and all calls are asked for there. */
static void renew_silent(struct client *c, uint64_t now)
{
    if (now < c->heard_ns + c->again_ns) return;
    /* Over a slow line a long reply takes longer than this; and a server that comes back at
     * another address, or admits the key again, is not found by the present connection. */
    if (c->again_ns < AGAIN_MOST_NS) c->again_ns *= 2;
    (void)connect_again(c, NULL);
    c->blocked = false;
    unary__renew(c);
    for (size_t i = c->n_calls; i-- > 0;) {
        c->calls[i]->to_ask = true; /* at once when it is connected */
        if (c->calls[i]->asked) call__lose(c->calls[i], ERR_TIMEOUT, "is silent");
    }
}

/* In the order in which they began; the place of one that ends is the last one's. Calls that an
 * on_end begins have the next turn. */
static void look_after_calls(struct client *c, uint64_t now)
{
    for (size_t i = 0, left = c->n_calls; left > 0 && i < c->n_calls; left--) {
        struct client_call *r = c->calls[i];
        call__look_after(r, now);
        i += i < c->n_calls && c->calls[i] == r;
    }
}

size_t client_turn(struct client *c, int timeout_ms)
{
    struct net_msg m;
    struct msg_reply h;
    if (c->in_turn) return c->n_calls;
    if (timeout_ms < 0) timeout_ms = 0;
    c->in_turn = true;
    c->blocked = false;
    forgive_standstill(c);
    bool waited = false;
    for (int i = 0; i < CLIENT_REPLIES_A_TURN; i++) {
        int rc = next_reply(c, &m, &h);
        if (rc == ERR_AGAIN && (waited || i)) break;
        if (rc == ERR_AGAIN) {
            wait_for(c, timeout_ms);
            waited = true;
        } else if (rc == 0) {
            take(c, &h, net_msg_frame(&m, 1));
            net_msg_close(&m);
        }
    }
    uint64_t now = clock_ns();
    if (waits_for_server(c)) renew_silent(c, now);
    look_after_calls(c, now);
    unary__look_after(c, now);
    if (waits_for_server(c) && now >= c->pinged_ns + CLIENT_PING_NS) ping(c, now);
    watch(c);
    c->in_turn = false;
    c->listened_ns = now;
    c->due_ns = next_due_ns(c);
    return c->n_calls;
}
