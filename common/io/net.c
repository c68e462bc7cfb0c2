#include "common/io/net.h"

#include "common/base/addr.h"
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/mem.h"
#include "common/io/conns.h"
#include "common/io/lookup.h"
#include "common/io/zap.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

/* Who connects to a ROUTER may be anybody; a data link's ends may be busy, and are not redialled.
 */
#define HANDSHAKE_MS 2000
#define LINK_HANDSHAKE_MS 5000
#define BACKLOG 1024 /* connections that the kernel holds until they are accepted */
/* CURVE: what a frame grows by (a command's name, a nonce, a flag and a MAC), and the longest frame
 * of its handshake, which libzmq holds against the same limit as frames of messages. */
#define CURVE_BYTES 33
#define CURVE_HANDSHAKE_BYTES 1024
#define ENFORCE_DOMAIN                                                                             \
    93 /* ZMQ_ZAP_ENFORCE_DOMAIN: never without a handler. Not in Debian's zmq.h */
/* A peer whose host is gone, or whose connection a middlebox forgot, is found within 25 s, also
 * where nobody expects to hear from it. */
#define KEEPALIVE_IDLE_S 10
#define KEEPALIVE_EACH_S 5
#define KEEPALIVE_TRIES 3
#define MONITOR_EVENTS 4096 /* that may wait to be read; beyond, the I/O thread blocks */
#define SKIPPED_A_CALL 64   /* messages of keys that are not admitted any more */
#define DROPPED_A_CALL 4096 /* frames, of a message with too many */
#define QUIET_NS (10 * NS_PER_S)
#define TOTAL_FACTOR 4u /* times one peer's limit that all peers of a socket may have waiting */

/* The thread that holds the peers of listening sockets within their limits. It starts with the
 * first such socket. */
struct guard {
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows, up to `conns` */
    bool running, stop;
    bool review; /* who is admitted has changed */
    int wake;    /* an eventfd */
    struct watched {
        void *monitor; /* NULL: free. Used by the thread alone once it is here */
        struct conns_limits limits;
        bool fresh;      /* limits are not told to `conns` yet */
        uint32_t domain; /* of ZAP */
    } watched[CONNS_GROUPS];
    struct conns *conns;
    struct zap *zap; /* the context's, or NULL */
};

struct net {
    void *ctx;
    struct key_pair own;
    struct zap *zap; /* NULL: plaintext */
    struct guard guard;
};

struct net_sock {
    void *zmq;
    enum net_kind kind;
    struct net *net;
    struct net_limits limits;
    bool guarded;             /* its peers are held within limits */
    bool dropping;            /* the rest of a message with too many frames is to be received */
    struct net_rule rule;     /* whom it admits */
    struct key expected;      /* at the other end */
    bool has_domain;          /* it listens with keys, */
    uint32_t domain;          /* as this domain of ZAP */
    struct net_sock *watches; /* of a monitor: the socket, until that is closed */
    struct net_sock *monitor; /* and the other way round */
    struct lookup *lookup;    /* of its host, or NULL */
    struct addr to;           /* what is looked up */
    int lookup_rc;            /* how it failed, or 0 */
    bool lookup_told;         /* the monitor has told of it */
    struct errmsg lookup_why;
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
    (void)pthread_mutex_init(&n->guard.lock, NULL);
    *ret_net = n;
    return 0;
}

static void close_guard(struct guard *g);

void net_close(struct net *n)
{
    if (!n) return;
    close_guard(&n->guard);
    (void)pthread_mutex_destroy(&n->guard.lock);
    while (zmq_ctx_term(n->ctx) != 0 && errno == EINTR) continue;
    zap_close(n->zap);
    explicit_bzero(&n->own, sizeof n->own);
    mem_free(n);
}

int net_secure(struct net *n, const struct key_pair *own, struct errmsg *em)
{
    int rc = zap_open(n->ctx, &n->zap, em);
    if (rc < 0) return rc;
    n->own = *own;
    n->guard.zap = n->zap;
    return 0;
}

bool net_is_secure(const struct net *n)
{
    return n->zap != NULL;
}

void net_allow(struct net *n, const struct key_list *keys)
{
    if (!n->zap) return;
    zap_allow(n->zap, keys);
    (void)pthread_mutex_lock(&n->guard.lock);
    n->guard.review = n->guard.running; /* before, nobody has connected */
    if (n->guard.review) (void)eventfd_write(n->guard.wake, 1);
    (void)pthread_mutex_unlock(&n->guard.lock);
}

bool net_refusal(struct net *n, struct net_refusal *ret)
{
    return n->zap && zap_refusal(n->zap, ret);
}

void net_keepalive(int fd)
{
    const struct {
        int level, name, value;
    } options[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
                   {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EACH_S},
                   {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_TRIES}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value);
}

static bool set_int(void *s, int option, int value)
{
    return zmq_setsockopt(s, option, &value, sizeof value) == 0;
}

static bool set_options(void *s, enum net_kind kind, struct net_limits l, bool secure)
{
    int64_t frame_max = l.frame_max + (secure ? CURVE_BYTES : 0);
    int recv_hwm = l.recv_hwm ? l.recv_hwm : l.hwm;
    if (secure && frame_max < CURVE_HANDSHAKE_BYTES) frame_max = CURVE_HANDSHAKE_BYTES;
    /* With CURVE one message counts as waiting that never comes: where the mark is 1, a ROUTER or
     * PULL receives nothing at all (measured). */
    if (secure) recv_hwm++;
    const bool data = kind == NET_PUSH || kind == NET_PULL;
    bool ok = set_int(s, ZMQ_LINGER, 0) && set_int(s, ZMQ_SNDHWM, l.hwm) &&
              set_int(s, ZMQ_RCVHWM, recv_hwm) &&
              set_int(s, ZMQ_HANDSHAKE_IVL, data ? LINK_HANDSHAKE_MS : HANDSHAKE_MS) &&
              set_int(s, ZMQ_BACKLOG, BACKLOG) && set_int(s, ZMQ_TCP_KEEPALIVE, 1) &&
              set_int(s, ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S) &&
              set_int(s, ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_EACH_S) &&
              set_int(s, ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_TRIES) &&
              zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max) == 0;
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
    bool secure = n->zap && kind != NET_PAIR;
    if (!z || !set_options(z, kind, limits, secure)) {
        int code = err_set(em, ERR_IO, "socket: %s", zmq_strerror(errno));
        if (z) (void)zmq_close(z);
        return code;
    }
    struct net_sock *s = mem_zalloc(sizeof *s);
    *s = (struct net_sock){.zmq = z, .kind = kind, .net = n, .limits = limits};
    *ret = s;
    return 0;
}

void net_sock_close(struct net_sock *s)
{
    if (!s) return;
    if (s->watches) s->watches->monitor = NULL;
    if (s->monitor) s->monitor->watches = NULL;
    if (s->guarded) (void)zmq_socket_monitor(s->zmq, NULL, 0); /* so the guard closes its end */
    if (s->has_domain) zap_drop(s->net->zap, s->domain);
    lookup_close(s->lookup);
    (void)zmq_close(s->zmq);
    mem_free(s);
}

void net_sock_drain(struct net_sock *s, int ms)
{
    (void)set_int(s->zmq, ZMQ_LINGER, ms);
    net_sock_close(s);
}

/* ---- peers of listening sockets ---- */

/* A handshake that the peer broke off, or did not get on with. A peer without keys may be seen as
 * this: it closes the connection as soon as it has read that this end has some. */
#define BROKEN_OFF UINT32_MAX

static void tell_failed(struct guard *g, uint32_t why, zmq_msg_t *endpoint)
{
    char at[NET_ENDPOINT_MAX] = "";
    size_t n = zmq_msg_size(endpoint) < sizeof at ? zmq_msg_size(endpoint) : 0;
    if (!g->zap) return;
    memcpy(at, zmq_msg_data(endpoint), n);
    if (why == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH || why == BROKEN_OFF)
        zap_refuse(g->zap, NET_REFUSED_PLAIN, at, NULL);
    else if (why == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
        zap_refuse(g->zap, NET_REFUSED_CRYPTO, at, NULL);
}

/* False: the socket of this monitor is closed. */
static bool take_events(struct guard *g, void *monitor, uint32_t group)
{
    zmq_msg_t m;
    uint32_t failed = 0; /* how the handshake did of which the first frame told */
    for (;;) {
        uint16_t event = 0;
        uint32_t value = 0;
        (void)zmq_msg_init(&m);
        if (zmq_msg_recv(&m, monitor, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(&m);
            return errno == EAGAIN || errno == EINTR;
        }
        if (zmq_msg_more(&m) && zmq_msg_size(&m) == sizeof event + sizeof value) {
            memcpy(&event, zmq_msg_data(&m), sizeof event);
            memcpy(&value, (const char *)zmq_msg_data(&m) + sizeof event, sizeof value);
        }
        if (failed) tell_failed(g, failed, &m); /* the second frame is the endpoint of this end */
        (void)zmq_msg_close(&m);
        failed = event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL    ? value
                 : event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL ? BROKEN_OFF
                                                                 : 0;
        if (event == ZMQ_EVENT_ACCEPTED)
            conns_accepted(g->conns, (int)value, group, clock_ns());
        else if (event == ZMQ_EVENT_DISCONNECTED)
            conns_lost(g->conns, (int)value);
        else if (event == ZMQ_EVENT_MONITOR_STOPPED)
            return false;
    }
}

static bool still_admitted(void *arg, uint32_t group, const struct key *key)
{
    struct guard *g = arg;
    (void)pthread_mutex_lock(&g->lock);
    uint32_t domain = g->watched[group].domain;
    (void)pthread_mutex_unlock(&g->lock);
    return zap_roles(g->zap, domain, key) != 0;
}

/* Takes in what net_bind and net_allow have put there. False: it is time to end. */
static bool take_watched(struct guard *g, void **monitors, bool *ret_review)
{
    eventfd_t ignored;
    (void)eventfd_read(g->wake, &ignored);
    (void)pthread_mutex_lock(&g->lock);
    bool any = false;
    for (uint32_t i = 0; i < CONNS_GROUPS; i++) {
        struct watched *w = &g->watched[i];
        if (w->fresh) conns_set_limits(g->conns, i, w->limits);
        w->fresh = false;
        monitors[i] = w->monitor;
        any |= w->monitor != NULL;
    }
    bool stop = g->stop;
    *ret_review = g->review;
    g->review = false;
    (void)pthread_mutex_unlock(&g->lock);
    return any || !stop;
}

static void forget_watched(struct guard *g, uint32_t group)
{
    (void)zmq_close(g->watched[group].monitor);
    conns_drop_group(g->conns, group);
    (void)pthread_mutex_lock(&g->lock);
    g->watched[group].monitor = NULL;
    (void)pthread_mutex_unlock(&g->lock);
}

static void *run_guard(void *arg)
{
    struct guard *g = arg;
    void *monitors[CONNS_GROUPS];
    long wait_ms = -1;
    bool review;
    while (take_watched(g, monitors, &review)) {
        /* Between two looks that follow each other closely it only waits: asking each monitor costs
         * more than the looks. */
        bool looks = wait_ms >= 0 && wait_ms <= CONNS_LOOK_MS;
        zmq_pollitem_t items[CONNS_GROUPS + 2] = {{.fd = g->wake, .events = ZMQ_POLLIN},
                                                  {.fd = conns_fd(g->conns), .events = ZMQ_POLLIN}};
        uint32_t of[CONNS_GROUPS];
        int n = 0;
        for (uint32_t i = 0; i < CONNS_GROUPS; i++) {
            if (!monitors[i]) continue;
            of[n] = i;
            items[2 + n++] = (zmq_pollitem_t){.socket = monitors[i], .events = ZMQ_POLLIN};
        }
        (void)zmq_poll(items, looks ? 1 : n + 2, review ? 0 : wait_ms);
        for (int i = 0; i < n; i++)
            if ((looks || review || (items[2 + i].revents & ZMQ_POLLIN)) &&
                !take_events(g, monitors[of[i]], of[i]))
                forget_watched(g, of[i]);
        /* Behind the events: of whom was admitted before, each connection is known now. */
        if (review) conns_review(g->conns, still_admitted, g);
        wait_ms = conns_turn(g->conns, clock_ns());
    }
    return NULL;
}

/* With the lock: the threads of a program may bind their first sockets in the same moment. */
static int open_guard(struct guard *g, struct errmsg *em)
{
    sigset_t all, before;
    if (g->running) return 0;
    int rc = conns_open(&g->conns, em);
    if (rc < 0) return rc;
    g->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)sigfillset(&all); /* signals are the program's thread's */
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = g->wake < 0 ? errno : pthread_create(&g->thread, NULL, run_guard, g);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    g->running = failed == 0;
    if (g->running) return 0;
    if (g->wake >= 0) (void)close(g->wake);
    conns_close(g->conns);
    g->conns = NULL;
    return err_set(em, ERR_IO, "no thread to watch connections: %s", strerror(failed));
}

static void close_guard(struct guard *g)
{
    if (!g->running) return;
    (void)pthread_mutex_lock(&g->lock);
    g->stop = true;
    (void)pthread_mutex_unlock(&g->lock);
    (void)eventfd_write(g->wake, 1);
    (void)pthread_join(g->thread, NULL);
    conns_close(g->conns);
    (void)close(g->wake);
}

/* What an honest peer may have waiting: a queue, a message that libzmq has read and cannot put
 * there, and one that has left the queue and is not counted yet, since a ROUTER takes it out to see
 * whose it is, or the receiver has only just taken it. Only a ROUTER's peer is ever pushed out for
 * being quiet: clients and workers make a new connection, while an idle data link must stay. */
static struct conns_limits peer_limits(const struct net_sock *s)
{
    const struct net_limits *l = &s->limits;
    uint64_t message = l->message_max ? l->message_max : (uint64_t)l->frame_max;
    uint64_t queued = (uint64_t)(l->recv_hwm ? l->recv_hwm : l->hwm);
    uint64_t bytes = (queued + 2) * message;
    return (struct conns_limits){.count = l->peers_max ? l->peers_max : NET_PEERS_DEFAULT,
                                 .quiet_ns = s->kind == NET_ROUTER ? QUIET_NS : 0,
                                 .proves = s->kind == NET_PULL,
                                 .bytes = bytes,
                                 .total_bytes = TOTAL_FACTOR * bytes};
}

/* Before it listens, so that no connection is missed. */
static int watch_peers(struct net_sock *s, struct errmsg *em)
{
    struct guard *g = &s->net->guard;
    char endpoint[64];
    int hwm = MONITOR_EVENTS, linger = 0;
    int events = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_MONITOR_STOPPED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
    (void)pthread_mutex_lock(&g->lock);
    int rc = open_guard(g, em);
    (void)pthread_mutex_unlock(&g->lock);
    if (rc < 0 || s->guarded) return rc;
    (void)snprintf(endpoint, sizeof endpoint, "inproc://guard-%p", s->zmq);
    void *monitor = zmq_socket(s->net->ctx, ZMQ_PAIR);
    if (!monitor || zmq_setsockopt(monitor, ZMQ_RCVHWM, &hwm, sizeof hwm) != 0 ||
        zmq_setsockopt(monitor, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_socket_monitor(s->zmq, endpoint, events) != 0 || zmq_connect(monitor, endpoint) != 0) {
        rc = err_set(em, ERR_IO, "monitor: %s", zmq_strerror(errno));
        (void)zmq_socket_monitor(s->zmq, NULL, 0);
        if (monitor) (void)zmq_close(monitor);
        return rc;
    }
    /* The lock is also the memory fence that libzmq asks for when a socket changes its thread. */
    (void)pthread_mutex_lock(&g->lock);
    rc = ERR_LIMIT;
    for (uint32_t i = 0; i < CONNS_GROUPS && rc < 0; i++) {
        if (g->watched[i].monitor) continue;
        g->watched[i] = (struct watched){monitor, peer_limits(s), true, s->domain};
        rc = 0;
    }
    (void)pthread_mutex_unlock(&g->lock);
    s->guarded = true;
    if (rc == 0) {
        (void)eventfd_write(g->wake, 1);
        return 0;
    }
    (void)zmq_socket_monitor(s->zmq, NULL, 0);
    (void)zmq_close(monitor);
    return err_set(em, ERR_LIMIT, "more than %u sockets listen", CONNS_GROUPS);
}

/* ---- addresses ---- */

/* Only where it is needed: on an IPv4 address the option changes what libzmq looks up. */
static void allow_v6(struct net_sock *s, const struct addr *a)
{
    if (a->kind == ADDR_V6) (void)set_int(s->zmq, ZMQ_IPV6, 1);
}

void net_admit(struct net_sock *s, struct net_rule rule)
{
    s->rule = rule;
}

void net_expect(struct net_sock *s, const struct key *key)
{
    s->expected = *key;
}

static bool set_key(void *s, int option, const struct key *key)
{
    return zmq_setsockopt(s, option, key->bytes, KEY_BYTES) == 0;
}

/* A socket that was told to enforce its domain refuses everybody while there is no handler; without
 * that option, a CURVE server without a handler admits every key. */
static int be_server(struct net_sock *s, struct errmsg *em)
{
    char domain[ZAP_DOMAIN_BYTES];
    if (!s->net->zap || s->has_domain) return 0;
    int rc = zap_add(s->net->zap, s->rule, &s->domain, domain, em);
    if (rc < 0) return rc;
    s->has_domain = true;
    if (set_int(s->zmq, ZMQ_CURVE_SERVER, 1) &&
        set_key(s->zmq, ZMQ_CURVE_SECRETKEY, &s->net->own.secret) &&
        zmq_setsockopt(s->zmq, ZMQ_ZAP_DOMAIN, domain, strlen(domain)) == 0 &&
        set_int(s->zmq, ENFORCE_DOMAIN, 1))
        return 0;
    return err_set(em, ERR_IO, "keys: %s", zmq_strerror(errno));
}

static int be_client(struct net_sock *s, struct errmsg *em)
{
    bool expects = key_is_set(&s->expected);
    if (expects && !s->net->zap)
        return err_set(em, ERR_CONF, "the other end has a key, and this program has none: --key");
    if (!s->net->zap) return 0;
    if (!expects) return err_set(em, ERR_CONF, "this program has a key, and the other end none");
    if (set_key(s->zmq, ZMQ_CURVE_SERVERKEY, &s->expected) &&
        set_key(s->zmq, ZMQ_CURVE_PUBLICKEY, &s->net->own.public) &&
        set_key(s->zmq, ZMQ_CURVE_SECRETKEY, &s->net->own.secret))
        return 0;
    return err_set(em, ERR_IO, "keys: %s", zmq_strerror(errno));
}

int net_bind(struct net_sock *s, const char *endpoint, struct errmsg *em)
{
    struct addr a;
    if (strncmp(endpoint, "inproc://", 9) != 0) {
        if (!addr_split(endpoint, &a) || a.kind == ADDR_NAME)
            return err_set(em, ERR_CONF, "cannot listen at %s: it is no address", endpoint);
        allow_v6(s, &a);
        int rc = be_server(s, em);
        if (rc == 0) rc = watch_peers(s, em);
        if (rc < 0) return rc;
    }
    if (zmq_bind(s->zmq, endpoint) == 0) return 0;
    return err_set(em, ERR_IO, "cannot listen at %s: %s", endpoint, zmq_strerror(errno));
}

static int connect_to(struct net_sock *s, const char *endpoint, struct errmsg *em)
{
    if (zmq_connect(s->zmq, endpoint) == 0) return 0;
    return err_set(em, ERR_IO, "cannot connect to %s: %s", endpoint, zmq_strerror(errno));
}

int net_connect(struct net_sock *s, const char *endpoint, struct errmsg *em)
{
    char text[ADDR_TEXT_BYTES];
    if (strncmp(endpoint, "inproc://", 9) == 0) return connect_to(s, endpoint, em);
    int rc = addr_parse_port(endpoint, &s->to, em);
    if (rc == 0) rc = be_client(s, em);
    if (rc < 0) return rc;
    if (s->to.kind == ADDR_NAME) return lookup_start(s->to.host, &s->lookup, em);
    allow_v6(s, &s->to);
    addr_format(&s->to, text, sizeof text);
    return connect_to(s, text, em);
}

/* If the look-up has ended: connects, or keeps the error for net_lookup and the monitor. */
static void settle(struct net_sock *s)
{
    char text[ADDR_TEXT_BYTES];
    if (!s->lookup) return;
    int rc = lookup_result(s->lookup, &s->to, &s->lookup_why);
    if (rc == ERR_AGAIN) return;
    lookup_close(s->lookup);
    s->lookup = NULL;
    if (rc == 0) {
        allow_v6(s, &s->to);
        addr_format(&s->to, text, sizeof text);
        rc = connect_to(s, text, &s->lookup_why);
    }
    s->lookup_rc = rc;
}

int net_lookup(struct net_sock *s, struct errmsg *em)
{
    settle(s);
    if (s->lookup) return ERR_AGAIN;
    return s->lookup_rc ? err_set(em, s->lookup_rc, "%s", s->lookup_why.text) : 0;
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

/* As it stands in an endpoint: an IPv6 address in brackets, unless it stands for an IPv4 one. */
static void set_peer(struct net_msg *m, const char *peer)
{
    bool v6 = strchr(peer, ':') != NULL;
    if (v6 && strncmp(peer, "::ffff:", 7) == 0 && strchr(peer, '.'))
        (void)snprintf(m->peer, sizeof m->peer, "%s", peer + 7);
    else
        (void)snprintf(m->peer, sizeof m->peer, "%s%s%s", v6 ? "[" : "", peer, v6 ? "]" : "");
}

/* Whose message it is: with a key, libzmq tells the user id that ZAP gave its connection. */
static void set_key_of(const struct net_sock *s, struct net_msg *m, zmq_msg_t *frame)
{
    const char *name = zmq_msg_gets(frame, "User-Id");
    if (name && key_parse(name, &m->key)) m->roles = zap_roles(s->net->zap, s->domain, &m->key);
}

static zmq_msg_t *raw(struct net_msg *m, unsigned i)
{
    return (zmq_msg_t *)(void *)m->frames[i].raw;
}

static int receive_frame(struct net_sock *s, zmq_msg_t *ret, int *ret_fd, bool *ret_more)
{
    int rc;
    (void)zmq_msg_init(ret);
    while ((rc = zmq_msg_recv(ret, s->zmq, ZMQ_DONTWAIT)) < 0 && errno == EINTR) continue;
    if (rc < 0) {
        rc = errno == EAGAIN ? ERR_AGAIN : ERR_IO;
        (void)zmq_msg_close(ret);
        return rc;
    }
    *ret_more = zmq_msg_more(ret);
    *ret_fd = s->guarded ? zmq_msg_get(ret, ZMQ_SRCFD) : -1;
    if (s->guarded)
        conns_delivered(s->net->guard.conns, *ret_fd,
                        zmq_msg_size(ret) + (s->has_domain ? CURVE_BYTES : 0));
    return 0;
}

/* Receives what is left of a message with too many frames, or a part of it: there may be millions,
 * since an empty one has two bytes. ERR_AGAIN: more is left. */
static int drop_rest(struct net_sock *s)
{
    for (int i = 0; i < DROPPED_A_CALL && s->dropping; i++) {
        zmq_msg_t extra;
        int fd, rc = receive_frame(s, &extra, &fd, &s->dropping);
        if (rc < 0) return rc;
        (void)zmq_msg_close(&extra);
    }
    return s->dropping ? ERR_AGAIN : 0;
}

static void refuse_conn(struct net_sock *s, int fd)
{
    conns_refuse(s->net->guard.conns, fd);
    (void)eventfd_write(s->net->guard.wake, 1);
}

/* A whole message. */
static int receive(struct net_sock *s, struct net_msg *m)
{
    *m = (struct net_msg){
        .roles = s->has_domain ? 0 : KEY_ANY, .from = s->guarded ? s : NULL, .fd = -1};
    int rc = s->dropping ? drop_rest(s) : 0;
    bool more = true;
    while (rc == 0 && more && m->n < NET_FRAMES_MAX) {
        zmq_msg_t *frame = raw(m, m->n);
        rc = receive_frame(s, frame, &m->fd, &more);
        if (rc < 0) break;
        if (s->has_domain && !m->roles) set_key_of(s, m, frame);
        /* A ROUTER's own first frame does not carry it, those from the wire do. */
        const char *peer = m->peer[0] ? NULL : zmq_msg_gets(frame, "Peer-Address");
        if (peer) set_peer(m, peer);
        m->n++;
    }
    if (rc < 0) {
        net_msg_close(m);
        return rc;
    }
    m->truncated = s->dropping = more;
    if (more && s->guarded) refuse_conn(s, m->fd);
    if (s->guarded && s->has_domain) conns_owned(s->net->guard.conns, m->fd, &m->key);
    return 0;
}

int net_recv(struct net_sock *s, struct net_msg *m)
{
    for (int i = 0; i < SKIPPED_A_CALL; i++) {
        int rc = receive(s, m);
        if (rc < 0 || m->roles) return rc;
        /* Its key was admitted once, and is not any more. */
        zap_refuse(s->net->zap, NET_REFUSED_KEY, m->peer, &m->key);
        refuse_conn(s, m->fd);
        net_msg_close(m);
    }
    return ERR_AGAIN;
}

void net_prove(const struct net_msg *m)
{
    if (m->from) conns_prove(m->from->net->guard.conns, m->fd);
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
    int rc =
        net_socket(n, NET_PAIR, (struct net_limits){.hwm = 64, .frame_max = 4096}, ret_monitor, em);
    if (rc == 0) rc = net_connect(*ret_monitor, endpoint, em);
    if (rc == 0) {
        s->monitor = *ret_monitor;
        s->monitor->watches = s;
    }
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
    struct net_sock *s = monitor->watches;
    if (s) settle(s);
    if (s && s->lookup_rc && !s->lookup_told) {
        s->lookup_told = true;
        return NET_EVENT_LOST;
    }
    if (net_recv(monitor, &m) < 0) return NET_EVENT_NONE;
    struct net_frame f = net_msg_frame(&m, 0);
    uint16_t event = 0;
    if (f.bytes >= sizeof event) memcpy(&event, f.data, sizeof event);
    net_msg_close(&m);
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return NET_EVENT_REFUSED;
    return event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? NET_EVENT_CONNECTED : NET_EVENT_LOST;
}

/* The socket whose look-up concerns an item: itself, or the one that it watches. */
static struct net_sock *looking_up(const struct net_poll *item)
{
    struct net_sock *s = item->sock;
    return s && s->watches ? s->watches : s;
}

#define POLL_FEW 8u

int net_poll(struct net_poll *items, unsigned n, long timeout_ms)
{
    zmq_pollitem_t few[2 * POLL_FEW], *z = few;
    unsigned few_of[POLL_FEW], *of = few_of;
    int used = 0, lookups = 0;
    if (n > POLL_FEW) {
        z = mem_alloc(2 * n * sizeof *z);
        of = mem_alloc(n * sizeof *of);
    }
    for (unsigned i = 0; i < n; i++) {
        items[i].readable = items[i].writable = false;
        if (!items[i].sock) continue;
        of[used] = i;
        z[used++] = (zmq_pollitem_t){
            .socket = items[i].sock->zmq,
            .events = (short)(ZMQ_POLLIN | (items[i].want_write ? ZMQ_POLLOUT : 0))};
    }
    for (unsigned i = 0; i < n; i++) {
        const struct net_sock *s = looking_up(&items[i]);
        if (s && s->lookup)
            z[used + lookups++] =
                (zmq_pollitem_t){.fd = lookup_fd(s->lookup), .events = ZMQ_POLLIN};
    }
    bool polled = zmq_poll(z, used + lookups, timeout_ms) >= 0;
    int rc = polled || errno == EINTR ? 0 : ERR_IO;
    for (int i = 0; i < used && polled; i++) {
        items[of[i]].readable = z[i].revents & ZMQ_POLLIN;
        items[of[i]].writable = z[i].revents & ZMQ_POLLOUT;
    }
    if (z != few) {
        mem_free(z);
        mem_free(of);
    }
    for (unsigned i = 0; lookups && i < n && polled; i++) {
        struct net_sock *s = looking_up(&items[i]);
        if (!s) continue;
        settle(s);
        if (s != items[i].sock && s->lookup_rc && !s->lookup_told) items[i].readable = true;
    }
    return rc;
}

int net_fd(struct net_sock *s)
{
    int fd = -1;
    size_t size = sizeof fd;
    settle(s);
    if (s->lookup) return lookup_fd(s->lookup);
    return zmq_getsockopt(s->zmq, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

bool net_ready(struct net_sock *s, bool want_write)
{
    int events = 0;
    size_t size = sizeof events;
    bool looking_up = s->lookup != NULL;
    settle(s);
    if (looking_up && !s->lookup) return true;
    if (zmq_getsockopt(s->zmq, ZMQ_EVENTS, &events, &size) != 0) return true; /* so it is seen */
    return events & (ZMQ_POLLIN | (want_write ? ZMQ_POLLOUT : 0));
}

int net_pair(struct net *n, struct net_limits limits, struct net_sock **ret_first,
             struct net_sock **ret_second, struct errmsg *em)
{
    struct net_sock *first = NULL, *second = NULL;
    char endpoint[64];
    int rc = net_socket(n, NET_PAIR, limits, &first, em);
    if (rc == 0) rc = net_socket(n, NET_PAIR, limits, &second, em);
    if (rc == 0) {
        (void)snprintf(endpoint, sizeof endpoint, "inproc://pair-%p", first->zmq);
        rc = net_bind(first, endpoint, em);
    }
    if (rc == 0) rc = net_connect(second, endpoint, em);
    if (rc < 0) {
        net_sock_close(first);
        net_sock_close(second);
        return rc;
    }
    *ret_first = first;
    *ret_second = second;
    return 0;
}

/* ---- this machine ---- */

uint64_t net_files_max(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0) return 0;
    if (l.rlim_cur < l.rlim_max) {
        struct rlimit most = {l.rlim_max, l.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &most) == 0) l = most;
    }
    return l.rlim_cur < CONNS_FD_MAX ? l.rlim_cur : CONNS_FD_MAX;
}

int net_own_address(bool v6, char *ret, size_t size)
{
    struct ifaddrs *list;
    int rc = ERR_NOTFOUND;
    if (getifaddrs(&list) != 0) return err_from_errno(errno);
    for (const struct ifaddrs *i = list; i && rc < 0; i = i->ifa_next) {
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
        int family = i->ifa_addr->sa_family;
        const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
        const struct sockaddr_in *a4 = (const struct sockaddr_in *)(const void *)i->ifa_addr;
        if (family == AF_INET)
            rc = inet_ntop(family, &a4->sin_addr, ret, (socklen_t)size) ? 0 : ERR_LIMIT;
        else if (v6 && family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&a6->sin6_addr))
            rc = inet_ntop(family, &a6->sin6_addr, ret, (socklen_t)size) ? 0 : ERR_LIMIT;
    }
    freeifaddrs(list);
    return rc;
}

/* Tries to bind a socket to it. */
static int check_own(const struct addr *a, struct errmsg *em)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    bool six = a->kind == ADDR_V6;
    (void)inet_pton(six ? AF_INET6 : AF_INET, a->host,
                    six ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr);
    int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = fd < 0 ? -1
                    : bind(fd,
                           six ? (const struct sockaddr *)(const void *)&v6
                               : (const struct sockaddr *)(const void *)&v4,
                           six ? sizeof v6 : sizeof v4);
    int why = errno;
    if (fd >= 0) (void)close(fd);
    if (rc == 0) return 0;
    return err_set(em, ERR_CONF, "'%s' is no address of this machine: %s", a->host, strerror(why));
}

int net_listen_address(const char *host, char *ret, size_t size, struct errmsg *em)
{
    struct addr a;
    int rc = addr_parse(host, &a, em);
    if (rc < 0) return rc;
    if (a.has_port) return err_set(em, ERR_CONF, "'%s': a host, without a port", host);
    rc = lookup_now(&a, em);
    if (rc < 0)
        return err_set(em, ERR_CONF,
                       "'%s' is no address and no name that resolves: it is an IP address of this "
                       "machine, a host name, or 0.0.0.0 for every address",
                       host);
    rc = check_own(&a, em);
    if (rc == 0) addr_format_host(&a, ret, size);
    return rc;
}
