#include "common/io/conns.h"

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* At 2 GB/s, the most that one I/O thread takes in, 20 MB come between two looks. */
#define LOOK_NS (CONNS_LOOK_MS * NS_PER_MS)
/* epoll tells of a flood, but not of what libzmq has read by the time it is asked: all connections
 * are looked at this often. */
#define SWEEP_NS NS_PER_S
#define FIRED_MAX 64
/* An empty frame has two bytes on the wire and 64 in libzmq. What the heap may have grown since a
 * connection began to have something waiting: */
#define HEAP_BYTES (UINT64_C(64) << 20)
#define HEAP_A_BYTE 8u       /* and for each byte that all connections have waiting */
#define HEAP_MOST_A_BYTE 33u /* more than that it was not this connection that grew it */
/* With less than this waiting at all connections they cannot have grown it. */
#define HEAP_LOOK_BYTES (UINT64_C(256) << 10)
/* ZMTP commands (handshake, ping) are counted by the kernel and never handed over: */
#define COMMAND_BYTES 4096u
#define COMMAND_BYTES_A_SECOND 64u

/* A connection, by its file descriptor. What is handed over is counted by descriptor as well, and
 * libzmq may hand over messages of a closed connection when the descriptor already names the next
 * one: `base` is what at least had been handed over before this one. */
struct conn {
    bool used, cut, spoke;
    bool hot; /* looked at every LOOK_NS; otherwise when epoll tells, or in the next sweep */
    uint32_t group;
    uint64_t cookie; /* the kernel's name of the connection, never used twice */
    uint64_t since_ns, active_ns, base, consumed, waiting;
    uint64_t heap; /* bytes that the heap had when something began to wait; 0: not known yet */
};

struct conns {
    int epoll;
    int fd_end; /* above the highest descriptor that was ever used */
    uint64_t looked_ns, swept_ns;
    bool any_hot;
    bool to_trim; /* the heap has what a flood gave back */
    struct conns_limits limits[CONNS_GROUPS];
    uint32_t count[CONNS_GROUPS]; /* connections that are not cut */
    struct conn conns[CONNS_FD_MAX];
    _Atomic uint64_t delivered[CONNS_FD_MAX];
    _Atomic uint64_t proved[CONNS_FD_MAX];  /* the cookie of a connection that has, or 0 */
    _Atomic uint64_t refused[CONNS_FD_MAX]; /* the cookie of a connection to be cut, or 0 */
    atomic_bool any_refused;
    pthread_mutex_t lock; /* guards `owners` */
    struct owner {
        uint64_t cookie; /* of the connection by which a message of this key came last */
        struct key key;
    } owners[CONNS_FD_MAX];
};

int conns_open(struct conns **ret, struct errmsg *em)
{
    struct conns *c = mem_zalloc(sizeof *c);
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll < 0) {
        mem_free(c);
        return err_set(em, err_from_errno(errno), "epoll: %s", strerror(errno));
    }
    (void)pthread_mutex_init(&c->lock, NULL);
    *ret = c;
    return 0;
}

void conns_close(struct conns *c)
{
    if (!c) return;
    (void)close(c->epoll);
    (void)pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

void conns_set_limits(struct conns *c, uint32_t group, struct conns_limits limits)
{
    c->limits[group] = limits;
}

void conns_drop_group(struct conns *c, uint32_t group)
{
    for (int fd = 0; fd < c->fd_end; fd++)
        if (c->conns[fd].used && c->conns[fd].group == group) conns_lost(c, fd);
}

static uint64_t cookie_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t n = sizeof cookie;
    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) == 0 ? cookie : 0;
}

/* libzmq sees the end of the stream, drops what is unfinished, and closes the descriptor. It is
 * shut down only while it still names the same connection. */
static void cut(struct conns *c, int fd)
{
    struct conn *x = &c->conns[fd];
    if (x->cut) return;
    x->cut = true;
    x->hot = false;
    x->waiting = 0;
    c->count[x->group]--;
    if (!x->cookie || cookie_of(fd) != x->cookie) return;
    /* The peer is told at once (RST), even while it waits for room to send more. */
    struct linger at_once = {.l_onoff = 1};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    (void)shutdown(fd, SHUT_RDWR);
}

static bool has_spoken(struct conns *c, int fd)
{
    struct conn *x = &c->conns[fd];
    if (c->limits[x->group].proves) return x->cookie && atomic_load(&c->proved[fd]) == x->cookie;
    if (!x->spoke) x->spoke = atomic_load(&c->delivered[fd]) != x->base;
    return x->spoke;
}

static void make_room(struct conns *c, uint32_t group, int newest, uint64_t now_ns)
{
    uint64_t quiet_ns = c->limits[group].quiet_ns;
    int silent = -1, quiet = -1;
    for (int fd = 0; fd < c->fd_end; fd++) {
        struct conn *x = &c->conns[fd];
        if (!x->used || x->cut || x->group != group || fd == newest) continue;
        bool spoke = has_spoken(c, fd);
        if (!spoke && (silent < 0 || x->since_ns < c->conns[silent].since_ns)) silent = fd;
        if (spoke && quiet_ns && now_ns >= x->active_ns + quiet_ns &&
            (quiet < 0 || x->active_ns < c->conns[quiet].active_ns))
            quiet = fd;
    }
    cut(c, silent >= 0 ? silent : quiet >= 0 ? quiet : newest);
}

static void watch(struct conns *c, int fd, int op)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLONESHOT, .data = {.fd = fd}};
    (void)epoll_ctl(c->epoll, op, fd, &e); /* it may be closed already: then it is told as lost */
}

/* It may come before the guard has heard of the connection. A message of an earlier connection of
 * the same descriptor may be handed over as late as now, and then counts as the present one's. */
void conns_owned(struct conns *c, int fd, const struct key *key)
{
    if (fd < 0 || fd >= (int)CONNS_FD_MAX) return;
    struct owner owner = {cookie_of(fd), *key};
    (void)pthread_mutex_lock(&c->lock);
    c->owners[fd] = owner;
    (void)pthread_mutex_unlock(&c->lock);
}

static struct owner owner_of(struct conns *c, int fd)
{
    (void)pthread_mutex_lock(&c->lock);
    struct owner owner = c->owners[fd];
    (void)pthread_mutex_unlock(&c->lock);
    return owner;
}

void conns_review(struct conns *c, conns_admits_fn admits, void *arg)
{
    for (int fd = 0; fd < c->fd_end; fd++) {
        struct conn *x = &c->conns[fd];
        if (!x->used || x->cut) continue;
        struct owner owner = owner_of(c, fd);
        bool known = owner.cookie && owner.cookie == x->cookie;
        if (!known || !admits(arg, x->group, &owner.key)) cut(c, fd);
    }
}

void conns_accepted(struct conns *c, int fd, uint32_t group, uint64_t now_ns)
{
    if (fd < 0) return;
    if (fd >= (int)CONNS_FD_MAX) {
        (void)shutdown(fd, SHUT_RDWR);
        return;
    }
    conns_lost(c, fd);
    struct conn *x = &c->conns[fd];
    *x = (struct conn){.used = true,
                       .group = group,
                       .cookie = cookie_of(fd),
                       .since_ns = now_ns,
                       .active_ns = now_ns,
                       .base = x->base};
    if (fd >= c->fd_end) c->fd_end = fd + 1;
    c->count[group]++;
    if (c->count[group] > c->limits[group].count) make_room(c, group, fd, now_ns);
    if (!x->cut) watch(c, fd, EPOLL_CTL_ADD);
}

void conns_lost(struct conns *c, int fd)
{
    if (fd < 0 || fd >= (int)CONNS_FD_MAX || !c->conns[fd].used) return;
    struct conn *x = &c->conns[fd];
    if (!x->cut) c->count[x->group]--;
    uint64_t delivered = atomic_load(&c->delivered[fd]) - x->base;
    *x = (struct conn){.base = x->base + (delivered < x->consumed ? delivered : x->consumed)};
}

void conns_delivered(struct conns *c, int fd, size_t frame_bytes)
{
    if (fd < 0 || fd >= (int)CONNS_FD_MAX) return;
    atomic_fetch_add(&c->delivered[fd], frame_bytes + (frame_bytes > 255 ? 9 : 2));
}

void conns_prove(struct conns *c, int fd)
{
    if (fd >= 0 && fd < (int)CONNS_FD_MAX) atomic_store(&c->proved[fd], cookie_of(fd));
}

void conns_refuse(struct conns *c, int fd)
{
    if (fd < 0 || fd >= (int)CONNS_FD_MAX) return;
    atomic_store(&c->refused[fd], cookie_of(fd));
    atomic_store(&c->any_refused, true);
}

static void cut_refused(struct conns *c)
{
    if (!atomic_exchange(&c->any_refused, false)) return;
    for (int fd = 0; fd < c->fd_end; fd++) {
        uint64_t cookie = atomic_exchange(&c->refused[fd], 0);
        if (cookie && c->conns[fd].used && c->conns[fd].cookie == cookie) cut(c, fd);
    }
}

int conns_fd(const struct conns *c)
{
    return c->epoll;
}

/* How many bytes libzmq has read of a connection so far, at least and at most: bytes arrive and are
 * read while the kernel is asked for one number after the other. */
struct consumed {
    uint64_t least, most;
};

static bool read_consumed(int fd, const struct conn *x, struct consumed *ret)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof info;
    int before = 0, after = 0;
    if (!x->cookie || cookie_of(fd) != x->cookie || ioctl(fd, SIOCINQ, &before) != 0 ||
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) != 0 || ioctl(fd, SIOCINQ, &after) != 0)
        return false;
    uint64_t came = info.tcpi_bytes_received;
    uint64_t most_unread = after > 0 ? (uint64_t)after : 0;
    uint64_t least_unread = before > 0 ? (uint64_t)before : 0;
    ret->least = came > most_unread ? came - most_unread : 0;
    ret->most = came > least_unread ? came - least_unread : 0;
    return true;
}

static void look(struct conns *c, int fd, uint64_t now_ns)
{
    struct conn *x = &c->conns[fd];
    const struct conns_limits *l = &c->limits[x->group];
    struct consumed consumed;
    uint64_t before = atomic_load(&c->delivered[fd]);
    if (!read_consumed(fd, x, &consumed)) {
        x->hot = false;
        x->waiting = 0;
        return;
    }
    /* What was handed over before cannot be more than what has been read after; if it is, some of
     * it came by an earlier connection. */
    uint64_t delivered = atomic_load(&c->delivered[fd]);
    if (before - x->base > consumed.most) x->base = before - consumed.most;
    x->spoke |= delivered != x->base;
    x->hot = consumed.least != x->consumed;
    if (x->hot) x->active_ns = now_ns;
    x->consumed = consumed.least;
    uint64_t commands = COMMAND_BYTES + (now_ns - x->since_ns) / NS_PER_S * COMMAND_BYTES_A_SECOND;
    uint64_t handed = delivered - x->base;
    uint64_t waiting = consumed.least > handed ? consumed.least - handed : 0;
    x->waiting = waiting > commands ? waiting - commands : 0;
    if (!x->waiting) x->heap = 0;
    if (x->waiting > l->bytes)
        cut(c, fd);
    else if (!x->hot)
        watch(c, fd, EPOLL_CTL_MOD);
}

/* Cuts the connection with most until the sum fits. */
static void hold_total(struct conns *c, uint32_t group)
{
    for (;;) {
        uint64_t sum = 0;
        int largest = -1;
        for (int fd = 0; fd < c->fd_end; fd++) {
            const struct conn *x = &c->conns[fd];
            if (!x->used || x->cut || x->group != group) continue;
            sum += x->waiting;
            if (largest < 0 || x->waiting > c->conns[largest].waiting) largest = fd;
        }
        if (largest < 0 || sum <= c->limits[group].total_bytes) return;
        cut(c, largest);
    }
}

/* Where the heap has grown too much since a connection began to have something waiting, and its
 * bytes can be the reason, it is shut down: of several, the one with most; of those that have
 * proved themselves, none. It looks at the heap only while much waits, since that takes the locks
 * of malloc. */
static void hold_heap(struct conns *c)
{
    uint64_t sum = 0;
    int largest = -1;
    for (int fd = 0; fd < c->fd_end; fd++) sum += c->conns[fd].waiting;
    if (sum < HEAP_LOOK_BYTES) return;
    uint64_t heap = mem_heap();
    for (int fd = 0; fd < c->fd_end; fd++) {
        struct conn *x = &c->conns[fd];
        if (!x->waiting) continue;
        if (!x->heap) x->heap = heap;
        uint64_t grown = heap > x->heap ? heap - x->heap : 0;
        if (grown > HEAP_BYTES + HEAP_A_BYTE * sum && grown <= HEAP_MOST_A_BYTE * x->waiting &&
            !(c->limits[x->group].proves && has_spoken(c, fd)) &&
            (largest < 0 || x->waiting > c->conns[largest].waiting))
            largest = fd;
    }
    if (largest < 0) return;
    cut(c, largest);
    c->to_trim = true;
    for (int fd = 0; fd < c->fd_end; fd++) c->conns[fd].heap = 0;
}

long conns_turn(struct conns *c, uint64_t now_ns)
{
    cut_refused(c);
    if (c->any_hot && now_ns < c->looked_ns + LOOK_NS) {
        long left_ms = (long)((c->looked_ns + LOOK_NS - now_ns) / NS_PER_MS) + 1;
        return left_ms < CONNS_LOOK_MS ? left_ms : CONNS_LOOK_MS;
    }
    struct epoll_event fired[FIRED_MAX];
    int n;
    while ((n = epoll_wait(c->epoll, fired, FIRED_MAX, 0)) > 0) {
        for (int i = 0; i < n; i++) {
            struct conn *x = &c->conns[fired[i].data.fd];
            x->hot = x->used && !x->cut;
        }
        if (n < FIRED_MAX) break;
    }
    c->looked_ns = now_ns;
    c->any_hot = false;
    bool sweep = now_ns >= c->swept_ns + SWEEP_NS, any = false;
    if (sweep) c->swept_ns = now_ns;
    if (sweep && c->to_trim) {
        mem_trim(); /* libzmq has freed it by now: it hears of the end at once */
        c->to_trim = false;
    }
    uint32_t groups = 0; /* a bit for each in which something was looked at */
    for (int fd = 0; fd < c->fd_end; fd++) {
        const struct conn *x = &c->conns[fd];
        any |= x->used;
        if (!x->hot && !(sweep && x->used && !x->cut)) continue;
        groups |= 1u << c->conns[fd].group;
        look(c, fd, now_ns);
        c->any_hot |= c->conns[fd].hot;
    }
    for (uint32_t g = 0; g < CONNS_GROUPS; g++)
        if (groups >> g & 1) hold_total(c, g);
    if (groups) hold_heap(c);
    if (c->any_hot) return CONNS_LOOK_MS;
    return any || c->to_trim ? (long)((c->swept_ns + SWEEP_NS - now_ns) / NS_PER_MS) + 1 : -1;
}
