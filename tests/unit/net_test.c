/* Sockets over this machine's loopback against hostile peers, and names that do not resolve. */
#include "common/base/clock.h"
#include "common/io/conns.h"
#include "common/io/lookup.h"
#include "common/io/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#define FRAME ((size_t)64 << 10)

/* ---- the system's resolver, as the test wants it ---- */

int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **res);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **res);

static pthread_mutex_t slow = PTHREAD_MUTEX_INITIALIZER; /* while held, "slow" does not resolve */

int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **res)
{
    if (strcmp(node, "nohost") == 0) return EAI_NONAME;
    if (strcmp(node, "slow") == 0) {
        (void)pthread_mutex_lock(&slow);
        (void)pthread_mutex_unlock(&slow);
    }
    return __real_getaddrinfo(strcmp(node, "nobody") == 0 ? "nobody.invalid" : "127.0.0.1", service,
                              hints, res);
}

/* ---- a peer that speaks ZMTP by hand ---- */

static int raw_connect(const char *endpoint)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)(const void *)&at, sizeof at), 0);
    return fd;
}

static bool put(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static void greet(int fd, const char *kind)
{
    char greeting[64] = {(char)0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    char ready[64], rest[256];
    size_t n = strlen(kind), body = 6 + 1 + 11 + 4 + n;
    assert_true(put(fd, greeting, sizeof greeting));
    ready[0] = 4;
    ready[1] = (char)body;
    memcpy(ready + 2, "\5READY\13Socket-Type\0\0\0", 6 + 1 + 11 + 3);
    ready[2 + 6 + 1 + 11 + 3] = (char)n;
    memcpy(ready + 2 + 6 + 1 + 11 + 4, kind, n);
    assert_true(put(fd, ready, 2 + body));
    size_t got = 0;
    while (got < sizeof greeting + 2) { /* its greeting, and the beginning of its READY */
        ssize_t k = recv(fd, rest, sizeof rest, 0);
        assert_true(k > 0);
        got += (size_t)k;
    }
}

static bool put_frame(int fd, size_t bytes, bool more)
{
    static char data[FRAME];
    unsigned char header[9] = {(unsigned char)(2 | more)};
    for (int i = 0; i < 8; i++) header[1 + i] = (unsigned char)(bytes >> (56 - 8 * i));
    return put(fd, header, sizeof header) && put(fd, data, bytes);
}

/* Whether the other end has closed the connection; `wait`: within 30 s. */
static bool is_closed(int fd, bool wait)
{
    char c[256];
    ssize_t k;
    struct timeval most = {.tv_sec = 30};
    if (wait) (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    while ((k = recv(fd, c, sizeof c, wait ? 0 : MSG_DONTWAIT)) > 0) continue;
    return k == 0 || errno == ECONNRESET;
}

/* ---- fixtures ---- */

static struct net *net;
static struct net_sock *server;
static char endpoint[NET_ENDPOINT_MAX];

static void listen_as(enum net_kind kind, struct net_limits limits, const char *where)
{
    struct errmsg em = {0};
    assert_int_equal(net_open(&net, &em), 0);
    assert_int_equal(net_socket(net, kind, limits, &server, &em), 0);
    if (net_bind(server, where, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(net_bound(server, endpoint, &em), 0);
}

static int teardown(void **state)
{
    (void)state;
    net_sock_close(server);
    net_close(net);
    server = NULL;
    net = NULL;
    return 0;
}

static bool receive(struct net_msg *m, long ms)
{
    struct net_poll p = {.sock = server};
    if (net_recv(server, m) == 0) return true;
    (void)net_poll(&p, 1, ms);
    return net_recv(server, m) == 0;
}

/* net_poll looks at each of its sockets, however many there are. */
static void test_many_sockets(void **state)
{
    enum { N = 20 };
    struct errmsg em = {0};
    struct net_sock *peers[N];
    struct net_poll items[N + 1] = {{.sock = NULL}};
    (void)state;
    listen_as(NET_PULL, (struct net_limits){.hwm = 64, .frame_max = 64, .peers_max = N},
              "tcp://127.0.0.1:*");
    for (int i = 0; i < N; i++) {
        struct net_limits limits = {.hwm = 2, .frame_max = 64};
        assert_int_equal(net_socket(net, NET_PUSH, limits, &peers[i], &em), 0);
        assert_int_equal(net_connect(peers[i], endpoint, &em), 0);
        items[i] = (struct net_poll){.sock = peers[i], .want_write = true};
    }
    items[N] = (struct net_poll){.sock = server};
    bool all = false;
    for (int tries = 0; tries < 1000 && !all; tries++) {
        assert_int_equal(net_poll(items, N, 30), 0);
        all = true;
        for (int i = 0; i < N; i++) all &= items[i].writable;
        if (!all) usleep(10000);
    }
    struct net_frame f = {"x", 1};
    int sent = all ? net_send(peers[N - 1], &f, 1) : ERR_AGAIN;
    for (int i = 0; i < N; i++) items[i].sock = NULL;
    int polled = sent == 0 ? net_poll(items, N + 1, 30000) : 0;
    for (int i = 0; i < N; i++) net_sock_close(peers[i]); /* the teardown would wait for them */
    assert_true(all);
    assert_int_equal(sent, 0);
    assert_int_equal(polled, 0);
    assert_true(items[N].readable);
}

/* ---- what peers send ---- */

static void test_unfinished_message(void **state)
{
    /* 1 + 2 messages of 64 KiB are what an honest peer can have waiting. */
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        listen_as(kind ? NET_PULL : NET_ROUTER,
                  (struct net_limits){.hwm = 1, .frame_max = (int64_t)FRAME}, "tcp://127.0.0.1:*");
        int fd = raw_connect(endpoint);
        greet(fd, kind ? "PUSH" : "DEALER");
        size_t sent = 0;
        while (sent < ((size_t)1 << 30) && put_frame(fd, FRAME, true)) sent += FRAME;
        assert_true(sent < (size_t)1 << 30);
        assert_true(is_closed(fd, true));
        (void)close(fd);
        struct net_msg m;
        assert_false(receive(&m, 0)); /* nothing of it ever comes */
        (void)teardown(state);
    }
}

static void test_unfinished_message_that_waits(void **state)
{
    /* Less than the limit stays for as long as the peer likes, and may be finished. */
    (void)state;
    listen_as(NET_ROUTER, (struct net_limits){.hwm = 1, .frame_max = (int64_t)FRAME},
              "tcp://127.0.0.1:*");
    int fd = raw_connect(endpoint);
    greet(fd, "DEALER");
    assert_true(put_frame(fd, FRAME, true));
    (void)net_poll(NULL, 0, 100);
    assert_false(is_closed(fd, false));
    assert_true(put_frame(fd, 10, false));
    struct net_msg m;
    assert_true(receive(&m, 30000));
    assert_int_equal(m.n, 3);
    assert_int_equal(net_msg_frame(&m, 1).bytes, FRAME);
    assert_string_equal(m.peer, "127.0.0.1");
    net_msg_close(&m);
    (void)close(fd);
}

static void test_honest_peer_is_never_cut(void **state)
{
    /* It sends as much as it can while nobody receives; then all of it is received, again and
     * again. So many times the limit goes through one connection. */
    struct errmsg em = {0};
    struct net_sock *peer, *monitor;
    static char data[FRAME];
    (void)state;
    listen_as(NET_ROUTER, (struct net_limits){.hwm = 2, .frame_max = (int64_t)FRAME},
              "tcp://127.0.0.1:*");
    struct net_limits limits = {.hwm = 64, .frame_max = 1024};
    assert_int_equal(net_socket(net, NET_DEALER, limits, &peer, &em), 0);
    assert_int_equal(net_monitor(net, peer, &monitor, &em), 0);
    assert_int_equal(net_connect(peer, endpoint, &em), 0);
    struct net_frame f = {data, sizeof data};
    uint32_t sent = 0, got = 0;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 100; i++) {
            struct net_poll p = {.sock = peer, .want_write = true};
            (void)net_poll(&p, 1, 20);
            sent += net_send(peer, &f, 1) == 0;
        }
        struct net_msg m;
        while (got < sent && receive(&m, 30000)) {
            got++;
            net_msg_close(&m);
        }
        assert_int_equal(got, sent);
    }
    assert_true(sent >= 500);
    enum net_event e;
    while ((e = net_monitor_next(monitor)) != NET_EVENT_NONE)
        assert_int_equal(e, NET_EVENT_CONNECTED);
    net_monitor_close(peer, monitor);
    net_sock_close(peer);
}

static void test_connections_are_counted(void **state)
{
    /* Room for three: one that has sent a message stays, of the others the oldest is closed. */
    (void)state;
    listen_as(NET_ROUTER,
              (struct net_limits){.hwm = 1, .frame_max = (int64_t)FRAME, .peers_max = 3},
              "tcp://127.0.0.1:*");
    int spoken = raw_connect(endpoint), silent[6];
    struct net_msg m;
    greet(spoken, "DEALER");
    assert_true(put_frame(spoken, 5, false));
    assert_true(receive(&m, 30000));
    net_msg_close(&m);
    for (int i = 0; i < 6; i++) {
        silent[i] = raw_connect(endpoint);
        greet(silent[i], "DEALER"); /* it is accepted by now */
        if (i >= 2) assert_true(is_closed(silent[i - 2], true));
    }
    assert_true(put_frame(spoken, 5, false));
    assert_true(receive(&m, 30000));
    net_msg_close(&m);
    assert_false(is_closed(spoken, false));
    assert_false(is_closed(silent[5], false));
    for (int i = 0; i < 6; i++) (void)close(silent[i]);
    (void)close(spoken);
}

/* A message of a million empty frames is dropped bit by bit, and its connection is closed; the next
 * peer's message comes. */
static void test_many_frames(void **state)
{
    enum { FRAMES = 1000000, PUT = 100000 };
    static unsigned char empty[2 * PUT];
    struct net_msg m;
    (void)state;
    for (size_t i = 0; i < sizeof empty; i += 2) empty[i] = 1; /* more follow; no bytes */
    listen_as(NET_ROUTER,
              (struct net_limits){
                  .hwm = 4, .recv_hwm = 1, .frame_max = (int64_t)FRAME, .message_max = 4 * FRAMES},
              "tcp://127.0.0.1:*");
    int fd = raw_connect(endpoint), next = raw_connect(endpoint);
    greet(fd, "DEALER");
    greet(next, "DEALER");
    for (int i = 0; i < FRAMES / PUT; i++) assert_true(put(fd, empty, sizeof empty));
    assert_true(put_frame(fd, 5, false));
    assert_true(receive(&m, 30000));
    assert_true(m.truncated);
    net_msg_close(&m);
    assert_true(put_frame(next, 7, false));
    int calls = 0;
    uint64_t until_ns = clock_ns() + 30 * NS_PER_S;
    while (net_recv(server, &m) < 0 && clock_ns() < until_ns) {
        struct net_poll p = {.sock = server};
        (void)net_poll(&p, 1, 1000);
        calls += p.readable;
    }
    assert_true(m.n > 1); /* it came in time */
    assert_int_equal(net_msg_frame(&m, 1).bytes, 7);
    net_msg_close(&m);
    assert_true(calls > 10); /* none of them took it all */
    assert_true(is_closed(fd, true));
    (void)close(fd);
    (void)close(next);
}

/* Frames without bytes take 32 times in memory what they have on the wire: an endless message of
 * them ends long before the limit of bytes. */
static void test_endless_empty_frames(void **state)
{
    enum { PUT = 32768 };
    static unsigned char empty[2 * PUT];
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their heaps have no size */
#endif
    for (size_t i = 0; i < sizeof empty; i += 2) empty[i] = 1; /* more follow; no bytes */
    listen_as(NET_PULL,
              (struct net_limits){
                  .hwm = 4, .frame_max = (int64_t)FRAME, .message_max = UINT64_C(1) << 30},
              "tcp://127.0.0.1:*");
    int fd = raw_connect(endpoint);
    greet(fd, "PUSH");
    size_t sent = 0;
    while (sent < (size_t)64 << 20 && put(fd, empty, sizeof empty)) sent += sizeof empty;
    assert_true(sent < (size_t)32 << 20); /* some of it lies in the kernel */
    assert_true(is_closed(fd, true));
    (void)close(fd);
}

/* Only who proved to be the right peer of a data link keeps its place: words alone do not count. */
static void test_strangers_who_talk(void **state)
{
    enum { N = 8 };
    int strangers[N];
    struct net_msg m;
    (void)state;
    listen_as(NET_PULL, (struct net_limits){.hwm = 4, .frame_max = (int64_t)FRAME, .peers_max = N},
              "tcp://127.0.0.1:*");
    int right = raw_connect(endpoint);
    greet(right, "PUSH");
    assert_true(put_frame(right, 5, false));
    assert_true(receive(&m, 30000));
    net_prove(&m);
    net_msg_close(&m);
    for (int i = 0; i < N; i++) { /* one more than there is room for */
        strangers[i] = raw_connect(endpoint);
        greet(strangers[i], "PUSH");
        if (i == N - 1) break;
        assert_true(put_frame(strangers[i], 5, false));
        assert_true(receive(&m, 30000));
        net_msg_close(&m);
    }
    assert_true(is_closed(strangers[0], true));
    assert_false(is_closed(strangers[N - 1], false));
    assert_false(is_closed(right, false));
    for (int i = 0; i < N; i++) (void)close(strangers[i]);
    (void)close(right);
}

/* Connections of one socket, with the clock in the test's hands. */
struct pair {
    int peer, accepted;
};

static struct pair connect_pair(int listener, struct conns *c, uint64_t now_ns)
{
    struct sockaddr_in at;
    socklen_t n = sizeof at;
    assert_int_equal(getsockname(listener, (struct sockaddr *)(void *)&at, &n), 0);
    struct pair p = {.peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(connect(p.peer, (const struct sockaddr *)(const void *)&at, sizeof at), 0);
    p.accepted = accept(listener, NULL, NULL);
    assert_true(p.accepted >= 0);
    conns_accepted(c, p.accepted, 0, now_ns);
    return p;
}

/* The peer sends, and "libzmq" reads all of it. */
static void pass(const struct pair *p, size_t bytes)
{
    static char data[65536];
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < sizeof data ? bytes - at : sizeof data;
        assert_true(put(p->peer, data, n));
        for (size_t got = 0; got < n;) {
            ssize_t k = recv(p->accepted, data, sizeof data, 0);
            assert_true(k > 0);
            got += (size_t)k;
        }
        at += n;
    }
}

static void close_pair(struct conns *c, struct pair *p)
{
    conns_lost(c, p->accepted);
    (void)close(p->accepted);
    (void)close(p->peer);
}

static void test_accounts(void **state)
{
    struct errmsg em = {0};
    struct conns *c;
    uint64_t now = NS_PER_S;
    (void)state;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(conns_open(&c, &em), 0);
    conns_set_limits(c, 0,
                     (struct conns_limits){.count = 8, .bytes = 1 << 20, .total_bytes = 3 << 20});
    struct pair a = connect_pair(listener, c, now);
    for (int i = 0; i < 50; i++) { /* 25 MB in messages that are handed over */
        pass(&a, 500000);
        conns_delivered(c, a.accepted, 500000 - 9);
        (void)conns_turn(c, now += 2 * NS_PER_S);
    }
    assert_false(is_closed(a.peer, false));
    pass(&a, 900000);
    (void)conns_turn(c, now += 2 * NS_PER_S);
    assert_false(is_closed(a.peer, false));
    pass(&a, 200000); /* now more than a mebibyte was not delivered */
    (void)conns_turn(c, now += 2 * NS_PER_S);
    assert_true(is_closed(a.peer, true));
    close_pair(c, &a);
    /* The next connection with the same descriptor begins at nothing. */
    struct pair b[4];
    for (int i = 0; i < 4; i++) b[i] = connect_pair(listener, c, now);
    assert_int_equal(b[0].accepted, a.accepted);
    for (int i = 0; i < 4; i++) pass(&b[i], 700000 + 1000 * (size_t)i);
    (void)conns_turn(c, now += 2 * NS_PER_S);
    for (int i = 0; i < 4; i++) assert_false(is_closed(b[i].peer, false)); /* 2.8 MB together */
    pass(&b[1], 290000);
    pass(&b[2], 200000);
    (void)conns_turn(c, now += 2 * NS_PER_S);
    for (int i = 0; i < 4; i++) /* 3.3 MB: the one that has most goes */
        assert_int_equal(is_closed(b[i].peer, i == 1), i == 1);
    for (int i = 0; i < 4; i++) close_pair(c, &b[i]);
    /* All that were closed or cut have left room: as many as are allowed, and no more, are kept. */
    struct pair d[9];
    for (int i = 0; i < 9; i++) d[i] = connect_pair(listener, c, now += NS_PER_S);
    for (int i = 0; i < 9; i++) assert_int_equal(is_closed(d[i].peer, i == 0), i == 0);
    for (int i = 0; i < 9; i++) close_pair(c, &d[i]);
    conns_close(c);
    (void)close(listener);
}

static void test_who_makes_room(void **state)
{
    struct errmsg em = {0};
    struct conns *c;
    uint64_t now = NS_PER_S;
    (void)state;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(conns_open(&c, &em), 0);
    conns_set_limits(
        c, 0,
        (struct conns_limits){
            .count = 2, .quiet_ns = 10 * NS_PER_S, .bytes = 1 << 20, .total_bytes = 1 << 20});
    struct pair p[4];
    for (int i = 0; i < 2; i++) {
        p[i] = connect_pair(listener, c, now += NS_PER_S);
        pass(&p[i], 102);
        conns_delivered(c, p[i].accepted, 100);
        (void)conns_turn(c, now);
    }
    p[2] = connect_pair(listener, c, now += NS_PER_S); /* both have spoken just now */
    assert_true(is_closed(p[2].peer, true));
    p[3] = connect_pair(listener, c, now += 10 * NS_PER_S);
    assert_true(is_closed(p[0].peer, true)); /* quiet for longest */
    assert_false(is_closed(p[1].peer, false));
    assert_false(is_closed(p[3].peer, false));
    for (int i = 0; i < 4; i++) close_pair(c, &p[i]);
    conns_close(c);
    (void)close(listener);
}

/* ---- names ---- */

static void open_link(const char *to, struct net_sock **ret, struct net_sock **ret_monitor)
{
    struct errmsg em = {0};
    struct net_limits limits = {.hwm = 4, .frame_max = 1024};
    assert_int_equal(net_socket(net, NET_PUSH, limits, ret, &em), 0);
    assert_int_equal(net_monitor(net, *ret, ret_monitor, &em), 0);
    assert_int_equal(net_connect(*ret, to, &em), 0);
}

static enum net_event await_event(struct net_sock *monitor)
{
    enum net_event e = NET_EVENT_NONE;
    for (int i = 0; i < 300 && (e = net_monitor_next(monitor)) == NET_EVENT_NONE; i++) {
        struct net_poll p = {.sock = monitor};
        (void)net_poll(&p, 1, 100);
    }
    return e;
}

static void test_names(void **state)
{
    struct net_sock *link, *monitor;
    struct errmsg em = {0};
    char to[64];
    (void)state;
    listen_as(NET_PULL, (struct net_limits){.hwm = 4, .frame_max = 1024}, "tcp://127.0.0.1:*");
    (void)snprintf(to, sizeof to, "tcp://some-host%s", strrchr(endpoint, ':'));
    open_link(to, &link, &monitor);
    assert_int_equal(await_event(monitor), NET_EVENT_CONNECTED);
    assert_int_equal(net_lookup(link, &em), 0);
    net_monitor_close(link, monitor);
    net_sock_close(link);
    open_link("tcp://nohost:1", &link, &monitor);
    assert_int_equal(await_event(monitor), NET_EVENT_LOST);
    assert_int_equal(net_monitor_next(monitor), NET_EVENT_NONE);
    assert_int_equal(net_lookup(link, &em), ERR_NOTFOUND);
    assert_non_null(strstr(em.text, "host 'nohost' does not resolve"));
    net_monitor_close(link, monitor);
    net_sock_close(link);
}

static void test_slow_name_hinders_nobody(void **state)
{
    struct net_sock *waits, *waits_monitor, *link, *monitor;
    struct errmsg em = {0};
    struct net_msg m;
    (void)state;
    listen_as(NET_PULL, (struct net_limits){.hwm = 4, .frame_max = 1024}, "tcp://127.0.0.1:*");
    (void)pthread_mutex_lock(&slow);
    open_link("tcp://slow:1", &waits, &waits_monitor);
    open_link(endpoint, &link, &monitor);
    assert_int_equal(await_event(monitor), NET_EVENT_CONNECTED);
    struct net_frame f = {"x", 1};
    assert_int_equal(net_send(link, &f, 1), 0);
    assert_int_equal(net_send(waits, &f, 1), ERR_AGAIN);
    assert_true(receive(&m, 30000));
    net_msg_close(&m);
    assert_int_equal(net_lookup(waits, &em), ERR_AGAIN);
    net_monitor_close(waits, waits_monitor);
    net_sock_close(waits); /* the thread that waits for the resolver ends by itself */
    net_monitor_close(link, monitor);
    net_sock_close(link);
    (void)pthread_mutex_unlock(&slow);
}

/* ---- somebody else's poll loop ---- */

/* Waits as such a loop does: asks first, since the descriptor becomes readable at changes only. */
static void await_ready(struct net_sock *s, bool want_write)
{
    while (!net_ready(s, want_write)) {
        struct pollfd p = {.fd = net_fd(s), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 30000), 1);
    }
}

static void test_descriptor(void **state)
{
    struct net_sock *client;
    struct errmsg em = {0};
    struct net_msg m;
    struct net_frame f[2] = {{"q", 1}, {"a", 1}};
    char named[NET_ENDPOINT_MAX];
    (void)state;
    listen_as(NET_ROUTER, (struct net_limits){.hwm = 16, .frame_max = 1024}, "tcp://127.0.0.1:*");
    assert_int_equal(net_socket(net, NET_DEALER, (struct net_limits){.hwm = 16, .frame_max = 1024},
                                &client, &em),
                     0);
    (void)pthread_mutex_lock(&slow);
    (void)snprintf(named, sizeof named, "tcp://slow%s", strrchr(endpoint, ':'));
    assert_int_equal(net_connect(client, named, &em), 0);
    int of_lookup = net_fd(client);
    assert_false(net_ready(client, true));
    (void)pthread_mutex_unlock(&slow);
    await_ready(client, false); /* the look-up has ended */
    assert_int_equal(net_lookup(client, &em), 0);
    assert_int_not_equal(net_fd(client), of_lookup);
    await_ready(client, true); /* it is connected */
    assert_int_equal(net_send(client, f, 1), 0);
    assert_true(receive(&m, 30000));
    f[0] = net_msg_frame(&m, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(net_send(server, f, 2), 0);
    net_msg_close(&m);
    for (int i = 0; i < 3; i++) { /* the descriptor need not tell of each */
        await_ready(client, false);
        assert_int_equal(net_recv(client, &m), 0);
        net_msg_close(&m);
    }
    assert_false(net_ready(client, false));
    net_sock_close(client);
}

static void test_look_ups_are_bounded(void **state)
{
    struct lookup *l[LOOKUPS_MAX + 1];
    struct errmsg em = {0};
    uint32_t n = 0;
    (void)state;
    (void)pthread_mutex_lock(&slow);
    while (n <= LOOKUPS_MAX && lookup_start("slow", &l[n], &em) == 0) n++;
    assert_true(n > 0 && n <= LOOKUPS_MAX); /* one of a test before may still be ending */
    assert_non_null(strstr(em.text, "look-ups are under way"));
    (void)pthread_mutex_unlock(&slow);
    for (uint32_t i = 0; i < n; i++) lookup_close(l[i]);
}

/* ---- addresses ---- */

static void test_v6(void **state)
{
    struct errmsg em = {0};
    struct net_sock *peer;
    struct net_msg m;
    char host[64];
    (void)state;
    if (net_listen_address("::1", host, sizeof host, &em) < 0) {
        print_message("no IPv6 on this machine: skipped\n");
        skip();
    }
    assert_string_equal(host, "[::1]");
    listen_as(NET_ROUTER, (struct net_limits){.hwm = 4, .frame_max = 1024}, "tcp://[::1]:*");
    struct net_limits limits = {.hwm = 4, .frame_max = 1024};
    assert_int_equal(net_socket(net, NET_DEALER, limits, &peer, &em), 0);
    assert_int_equal(net_connect(peer, endpoint, &em), 0);
    struct net_frame f = {"x", 1};
    struct net_poll p = {.sock = peer, .want_write = true};
    (void)net_poll(&p, 1, 30000);
    assert_int_equal(net_send(peer, &f, 1), 0);
    assert_true(receive(&m, 30000));
    assert_string_equal(m.peer, "[::1]");
    net_msg_close(&m);
    net_sock_close(peer);
}

static void test_listen_address(void **state)
{
    static const struct {
        const char *host, *want, *words;
    } cases[] = {
        {"127.0.0.1", "127.0.0.1", NULL},
        {"0.0.0.0", "0.0.0.0", NULL},
        {"localhost", "127.0.0.1", NULL},
        {"nohost", NULL, "no name that resolves"},
        {"192.0.2.1", NULL, "'192.0.2.1' is no address of this machine"},
        {"127.0.0.1:80", NULL, "without a port"},
        {"*", NULL, "0.0.0.0 stands for every IPv4 address"},
        {"::g", NULL, "it is no IPv6 address"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char got[64] = "";
        struct errmsg em = {0};
        int rc = net_listen_address(cases[i].host, got, sizeof got, &em);
        if (cases[i].want) {
            assert_int_equal(rc, 0);
            assert_string_equal(got, cases[i].want);
        } else {
            assert_int_equal(rc, ERR_CONF);
            if (!strstr(em.text, cases[i].words))
                fail_msg("'%s' lacks '%s'", em.text, cases[i].words);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_many_sockets, teardown),
        cmocka_unit_test_teardown(test_unfinished_message, teardown),
        cmocka_unit_test_teardown(test_unfinished_message_that_waits, teardown),
        cmocka_unit_test_teardown(test_many_frames, teardown),
        cmocka_unit_test_teardown(test_endless_empty_frames, teardown),
        cmocka_unit_test_teardown(test_strangers_who_talk, teardown),
        cmocka_unit_test_teardown(test_honest_peer_is_never_cut, teardown),
        cmocka_unit_test_teardown(test_connections_are_counted, teardown),
        cmocka_unit_test(test_accounts),
        cmocka_unit_test(test_who_makes_room),
        cmocka_unit_test_teardown(test_names, teardown),
        cmocka_unit_test_teardown(test_slow_name_hinders_nobody, teardown),
        cmocka_unit_test_teardown(test_descriptor, teardown),
        cmocka_unit_test(test_look_ups_are_bounded),
        cmocka_unit_test_teardown(test_v6, teardown),
        cmocka_unit_test(test_listen_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
