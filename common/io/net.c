#include "common/io/net.h"

#include "common/base/cores.h"
#include "common/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define HANDSHAKE_MS 5000

struct net {
    void *ctx;
};

struct net_sock {
    void *zmq;
    enum net_kind kind;
};

_Static_assert(sizeof(zmq_msg_t) == 64, "struct net_msg holds zmq_msg_t");

/* The I/O thread stays on the first core, where a worker's compute thread 0 is too when its team is
 * pinned (common/base/pool.h). A message wakes one thread after another, each of which then sleeps:
 * on one core that is a switch, across cores it is an interrupt to a halted one, 30 us in a virtual
 * machine, nine times a token. */
static void stay_on_first_core(void *ctx)
{
    int core = cores_number(0);
    if (core >= 0 && core < 1024) /* libzmq's set ends there, and an empty one aborts it */
        (void)zmq_ctx_set(ctx, ZMQ_THREAD_AFFINITY_CPU_ADD, core);
}

int net_open(struct net **ret_net, struct errmsg *em)
{
    struct net *n = mem_zalloc(sizeof *n);
    n->ctx = zmq_ctx_new();
    if (!n->ctx) {
        mem_free(n);
        return err_set(em, ERR_NOMEM, "ZeroMQ context");
    }
    stay_on_first_core(n->ctx);
    *ret_net = n;
    return 0;
}

void net_close(struct net *n)
{
    if (!n) return;
    while (zmq_ctx_term(n->ctx) != 0 && errno == EINTR) continue;
    mem_free(n);
}

static bool set_int(void *s, int option, int value)
{
    return zmq_setsockopt(s, option, &value, sizeof value) == 0;
}

static bool set_options(void *s, enum net_kind kind, struct net_limits l)
{
    bool ok = set_int(s, ZMQ_LINGER, 0) && set_int(s, ZMQ_SNDHWM, l.hwm) &&
              set_int(s, ZMQ_RCVHWM, l.hwm) && set_int(s, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) &&
              zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &l.frame_max, sizeof l.frame_max) == 0;
    switch (kind) {
    case NET_ROUTER: ok = ok && set_int(s, ZMQ_ROUTER_MANDATORY, 1); break;
    case NET_DEALER:
        ok = ok && set_int(s, ZMQ_IMMEDIATE, 1) && set_int(s, ZMQ_RECONNECT_IVL, 100) &&
             set_int(s, ZMQ_RECONNECT_IVL_MAX, 1000);
        break;
    case NET_PUSH:
        /* A reborn peer must get nothing that was meant for the one before it. */
        ok = ok && set_int(s, ZMQ_IMMEDIATE, 1) && set_int(s, ZMQ_RECONNECT_IVL, -1);
        break;
    case NET_PULL:
    case NET_PAIR: break;
    }
    return ok;
}

int net_socket(struct net *n, enum net_kind kind, struct net_limits limits, struct net_sock **ret,
               struct errmsg *em)
{
    static const int types[] = {[NET_ROUTER] = ZMQ_ROUTER,
                                [NET_DEALER] = ZMQ_DEALER,
                                [NET_PUSH] = ZMQ_PUSH,
                                [NET_PULL] = ZMQ_PULL,
                                [NET_PAIR] = ZMQ_PAIR};
    void *z = zmq_socket(n->ctx, types[kind]);
    if (!z || !set_options(z, kind, limits)) {
        int code = err_set(em, ERR_IO, "socket: %s", zmq_strerror(errno));
        if (z) (void)zmq_close(z);
        return code;
    }
    struct net_sock *s = mem_zalloc(sizeof *s);
    *s = (struct net_sock){z, kind};
    *ret = s;
    return 0;
}

void net_sock_close(struct net_sock *s)
{
    if (!s) return;
    (void)zmq_close(s->zmq);
    mem_free(s);
}

void net_sock_drain(struct net_sock *s, int ms)
{
    (void)set_int(s->zmq, ZMQ_LINGER, ms);
    net_sock_close(s);
}

int net_bind(struct net_sock *s, const char *endpoint, struct errmsg *em)
{
    if (zmq_bind(s->zmq, endpoint) == 0) return 0;
    return err_set(em, ERR_IO, "cannot listen at %s: %s", endpoint, zmq_strerror(errno));
}

int net_connect(struct net_sock *s, const char *endpoint, struct errmsg *em)
{
    if (zmq_connect(s->zmq, endpoint) == 0) return 0;
    return err_set(em, ERR_IO, "cannot connect to %s: %s", endpoint, zmq_strerror(errno));
}

int net_bound(struct net_sock *s, char *ret_endpoint, struct errmsg *em)
{
    size_t n = NET_ENDPOINT_MAX;
    if (zmq_getsockopt(s->zmq, ZMQ_LAST_ENDPOINT, ret_endpoint, &n) == 0) return 0;
    return err_set(em, ERR_IO, "endpoint: %s", zmq_strerror(errno));
}

int net_send(struct net_sock *s, const struct net_frame *frames, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        int flags = ZMQ_DONTWAIT | (i + 1 < n ? ZMQ_SNDMORE : 0);
        /* Only the first frame can be refused: the rest of a message follows it unconditionally. */
        while (zmq_send(s->zmq, frames[i].data, frames[i].bytes, flags) < 0) {
            if (errno == EINTR) continue;
            return errno == EAGAIN ? ERR_AGAIN : ERR_CLOSED;
        }
    }
    return 0;
}

static zmq_msg_t *raw(struct net_msg *m, unsigned i)
{
    return (zmq_msg_t *)(void *)m->frames[i].raw;
}

int net_recv(struct net_sock *s, struct net_msg *m)
{
    *m = (struct net_msg){0};
    bool more = true;
    while (more) {
        zmq_msg_t extra, *to = m->n < NET_FRAMES_MAX ? raw(m, m->n) : &extra;
        (void)zmq_msg_init(to);
        int rc;
        while ((rc = zmq_msg_recv(to, s->zmq, ZMQ_DONTWAIT)) < 0 && errno == EINTR) continue;
        if (rc < 0) {
            (void)zmq_msg_close(to);
            net_msg_close(m);
            return errno == EAGAIN ? ERR_AGAIN : ERR_IO;
        }
        more = zmq_msg_more(to);
        if (m->n < NET_FRAMES_MAX) {
            /* A ROUTER's own first frame does not carry it, those from the wire do. */
            const char *peer = m->peer[0] ? NULL : zmq_msg_gets(to, "Peer-Address");
            if (peer) (void)snprintf(m->peer, sizeof m->peer, "%s", peer);
            m->n++;
        } else {
            m->truncated = true;
            (void)zmq_msg_close(to);
        }
    }
    return 0;
}

struct net_frame net_msg_frame(const struct net_msg *m, unsigned idx)
{
    zmq_msg_t *z = raw((struct net_msg *)(uintptr_t)m, idx);
    return (struct net_frame){zmq_msg_data(z), zmq_msg_size(z)};
}

void net_msg_close(struct net_msg *m)
{
    for (unsigned i = 0; i < m->n; i++) (void)zmq_msg_close(raw(m, i));
    m->n = 0;
}

int net_monitor(struct net *n, struct net_sock *s, struct net_sock **ret_monitor, struct errmsg *em)
{
    char endpoint[64];
    (void)snprintf(endpoint, sizeof endpoint, "inproc://monitor-%p", s->zmq);
    int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    if (zmq_socket_monitor(s->zmq, endpoint, events) != 0)
        return err_set(em, ERR_IO, "monitor: %s", zmq_strerror(errno));
    int rc = net_socket(n, NET_PAIR, (struct net_limits){64, 4096}, ret_monitor, em);
    if (rc == 0) rc = net_connect(*ret_monitor, endpoint, em);
    return rc;
}

void net_monitor_close(struct net_sock *s, struct net_sock *monitor)
{
    if (s) (void)zmq_socket_monitor(s->zmq, NULL, 0);
    net_sock_close(monitor);
}

enum net_event net_monitor_next(struct net_sock *monitor)
{
    struct net_msg m;
    if (net_recv(monitor, &m) < 0) return NET_EVENT_NONE;
    struct net_frame f = net_msg_frame(&m, 0);
    uint16_t event = 0;
    if (f.bytes >= sizeof event) memcpy(&event, f.data, sizeof event);
    net_msg_close(&m);
    return event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? NET_EVENT_CONNECTED : NET_EVENT_LOST;
}

int net_poll(struct net_poll *items, unsigned n, long timeout_ms)
{
    zmq_pollitem_t z[NET_POLL_MAX];
    unsigned of[NET_POLL_MAX];
    int used = 0;
    for (unsigned i = 0; i < n && i < NET_POLL_MAX; i++) {
        items[i].readable = items[i].writable = false;
        if (!items[i].sock) continue;
        of[used] = i;
        z[used++] = (zmq_pollitem_t){
            .socket = items[i].sock->zmq,
            .events = (short)(ZMQ_POLLIN | (items[i].want_write ? ZMQ_POLLOUT : 0))};
    }
    if (zmq_poll(z, used, timeout_ms) < 0) return errno == EINTR ? 0 : ERR_IO;
    for (int i = 0; i < used; i++) {
        items[of[i]].readable = z[i].revents & ZMQ_POLLIN;
        items[of[i]].writable = z[i].revents & ZMQ_POLLOUT;
    }
    return 0;
}
