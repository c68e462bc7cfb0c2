#include "tests/lib/fake_net.h"

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct fake_net fake = {.now_ns = 1000 * NS_PER_S};

struct arrival {
    struct arrival *next;
    uint64_t at_ns;
    unsigned n;
    size_t bytes[NET_FRAMES_MAX];
    char data[];
};

struct net {
    int unused;
};

struct net_sock {
    uint32_t number;
    enum net_kind kind;
    bool open, monitor, has_fd;
    int fd; /* an eventfd, where it was asked for */
    struct net_limits limits;
    char endpoint[NET_ENDPOINT_MAX];
    struct net_rule rule;
    struct key expected;
    struct arrival *first;
    enum net_event events[16]; /* that its monitor has not told yet */
    unsigned n_events;
};

/* A monitor has the number of its socket. */
static struct net_sock sockets[FAKE_SOCKETS], monitors[FAKE_SOCKETS];
static struct net the_net;

int __wrap_clock_gettime(clockid_t id, struct timespec *ret);
void __wrap_process_end_within(unsigned seconds);

int __wrap_clock_gettime(clockid_t id, struct timespec *ret)
{
    (void)id;
    fake.now_ns += fake.reading_ns;
    *ret = (struct timespec){(time_t)(fake.now_ns / NS_PER_S), (long)(fake.now_ns % NS_PER_S)};
    return 0;
}

void __wrap_process_end_within(unsigned seconds)
{
    fake.end_within_s = seconds;
}

static void drop_arrivals(struct net_sock *s)
{
    while (s->first) {
        struct arrival *a = s->first;
        s->first = a->next;
        mem_free(a);
    }
}

void fake_reset(void)
{
    for (uint32_t i = 0; i < FAKE_SOCKETS; i++) {
        drop_arrivals(&sockets[i]);
        sockets[i] = monitors[i] = (struct net_sock){.open = false};
    }
    key_list_close(&fake.allowed);
    fake = (struct fake_net){.now_ns = 1000 * NS_PER_S,
                             .send_error = ERR_AGAIN,
                             .recv_error = ERR_IO,
                             .files_max = 65536,
                             .roles = KEY_ANY};
}

void fake_arrive(uint32_t sock, uint64_t delay_ns, const struct net_frame *frames, unsigned n)
{
    size_t bytes = 0, at = 0;
    for (unsigned i = 0; i < n; i++) bytes += frames[i].bytes;
    struct arrival *a = mem_zalloc(sizeof *a + bytes), **place = &sockets[sock].first;
    a->at_ns = fake.now_ns + delay_ns;
    a->n = n;
    for (unsigned i = 0; i < n; i++) {
        a->bytes[i] = frames[i].bytes;
        if (frames[i].bytes) memcpy(a->data + at, frames[i].data, frames[i].bytes);
        at += frames[i].bytes;
    }
    while (*place && (*place)->at_ns <= a->at_ns) place = &(*place)->next;
    a->next = *place;
    *place = a;
}

void fake_event(uint32_t sock, enum net_event event)
{
    struct net_sock *s = &sockets[sock];
    if (s->n_events < sizeof s->events / sizeof s->events[0]) s->events[s->n_events++] = event;
}

bool fake_is_open(uint32_t sock)
{
    return sockets[sock].open;
}

enum net_kind fake_kind(uint32_t sock)
{
    return sockets[sock].kind;
}

int fake_fd(uint32_t sock)
{
    return net_fd(&sockets[sock]);
}

const char *fake_endpoint(uint32_t sock)
{
    return sockets[sock].endpoint;
}

struct net_rule fake_rule(uint32_t sock)
{
    return sockets[sock].rule;
}

struct key fake_expected(uint32_t sock)
{
    return sockets[sock].expected;
}

const struct net_limits *fake_limits(uint32_t sock)
{
    return &sockets[sock].limits;
}

/* ---- common/io/net.h ---- */

int net_open(struct net **ret_net, struct errmsg *em)
{
    (void)em;
    *ret_net = &the_net;
    return 0;
}

void net_close(struct net *n)
{
    (void)n;
}

int net_secure(struct net *n, const struct key_pair *own, struct errmsg *em)
{
    (void)n;
    (void)own;
    (void)em;
    fake.secure = true;
    return 0;
}

bool net_is_secure(const struct net *n)
{
    (void)n;
    return fake.secure;
}

void net_allow(struct net *n, const struct key_list *keys)
{
    (void)n;
    key_list_close(&fake.allowed);
    for (size_t i = 0; i < keys->n; i++)
        key_add(&fake.allowed, &keys->items[i].key, keys->items[i].roles);
}

bool net_refusal(struct net *n, struct net_refusal *ret)
{
    (void)n;
    if (!fake.refusal.count) return false;
    *ret = fake.refusal;
    fake.refusal.count = 0;
    return true;
}

void net_admit(struct net_sock *s, struct net_rule rule)
{
    s->rule = rule;
}

void net_expect(struct net_sock *s, const struct key *key)
{
    s->expected = *key;
}

int net_socket(struct net *n, enum net_kind kind, struct net_limits limits, struct net_sock **ret,
               struct errmsg *em)
{
    (void)n;
    if (fake.n_sockets == FAKE_SOCKETS)
        return err_set(em, ERR_LIMIT, "the test has no more sockets");
    struct net_sock *s = &sockets[fake.n_sockets];
    *s =
        (struct net_sock){.number = fake.n_sockets++, .kind = kind, .open = true, .limits = limits};
    *ret = s;
    return 0;
}

void net_sock_close(struct net_sock *s)
{
    if (!s) return;
    if (!s->monitor) drop_arrivals(s);
    if (s->has_fd) (void)close(s->fd);
    s->open = s->has_fd = false;
}

void net_sock_drain(struct net_sock *s, int ms)
{
    (void)ms;
    net_sock_close(s);
}

int net_bind(struct net_sock *s, const char *endpoint, struct errmsg *em)
{
    (void)em;
    (void)snprintf(s->endpoint, sizeof s->endpoint, "%s", endpoint);
    return 0;
}

int net_connect(struct net_sock *s, const char *endpoint, struct errmsg *em)
{
    if (fake.connect_rc) return err_set(em, fake.connect_rc, "cannot connect to %s", endpoint);
    return net_bind(s, endpoint, em);
}

int net_lookup(struct net_sock *s, struct errmsg *em)
{
    (void)s;
    return fake.lookup_rc ? err_set(em, fake.lookup_rc, "host 'x' does not resolve") : 0;
}

int net_bound(struct net_sock *s, char *ret_endpoint, struct errmsg *em)
{
    (void)em;
    size_t n = strlen(s->endpoint);
    if (n && s->endpoint[n - 1] == '*')
        (void)snprintf(ret_endpoint, NET_ENDPOINT_MAX, "%.*s%u", (int)n - 1, s->endpoint,
                       7000 + s->number);
    else
        (void)snprintf(ret_endpoint, NET_ENDPOINT_MAX, "%s", s->endpoint);
    return 0;
}

int net_send(struct net_sock *s, const struct net_frame *frames, unsigned n)
{
    if (++fake.n_sends == fake.fail_send) return fake.send_error;
    return fake.on_send ? fake.on_send(s->number, frames, n) : 0;
}

/* A frame in struct net_msg is a pointer into the arrival, and its size. */
struct held {
    const char *data;
    size_t bytes;
    struct arrival *whole; /* in the first frame */
};

int net_recv(struct net_sock *s, struct net_msg *m)
{
    struct arrival *a = s->first;
    size_t at = 0;
    *m = (struct net_msg){.key = fake.key, .roles = fake.roles};
    if (++fake.n_recvs == fake.fail_recv) return fake.recv_error;
    if (!a || a->at_ns > fake.now_ns) return ERR_AGAIN;
    s->first = a->next;
    m->n = a->n;
    (void)snprintf(m->peer, sizeof m->peer, "127.0.0.1");
    for (unsigned i = 0; i < a->n; i++) {
        struct held h = {a->data + at, a->bytes[i], i ? NULL : a};
        memcpy(m->frames[i].raw, &h, sizeof h);
        at += a->bytes[i];
    }
    return 0;
}

void net_prove(const struct net_msg *m)
{
    (void)m;
}

struct net_frame net_msg_frame(const struct net_msg *m, unsigned idx)
{
    struct held h;
    memcpy(&h, m->frames[idx].raw, sizeof h);
    return (struct net_frame){h.data, h.bytes};
}

void net_msg_close(struct net_msg *m)
{
    struct held h;
    memcpy(&h, m->frames[0].raw, sizeof h);
    if (m->n) mem_free(h.whole);
    m->n = 0;
}

int net_monitor(struct net *n, struct net_sock *s, struct net_sock **ret_monitor, struct errmsg *em)
{
    (void)n;
    (void)em;
    monitors[s->number] = (struct net_sock){.number = s->number, .monitor = true, .open = true};
    *ret_monitor = &monitors[s->number];
    return 0;
}

void net_monitor_close(struct net_sock *s, struct net_sock *monitor)
{
    (void)s;
    net_sock_close(monitor);
}

enum net_event net_monitor_next(struct net_sock *monitor)
{
    struct net_sock *s = &sockets[monitor->number];
    if (!s->n_events) return NET_EVENT_NONE;
    enum net_event e = s->events[0];
    memmove(s->events, s->events + 1, --s->n_events * sizeof s->events[0]);
    return e;
}

static bool readable(const struct net_sock *s, uint64_t *next_ns)
{
    if (s->monitor) return sockets[s->number].n_events > 0;
    if (!s->first) return false;
    if (s->first->at_ns <= fake.now_ns) return true;
    if (s->first->at_ns < *next_ns) *next_ns = s->first->at_ns;
    return false;
}

/* Fills in what is ready; false: nothing is. *next_ns: lowered to when the next message arrives. */
static bool look(struct net_poll *items, unsigned n, uint64_t *next_ns)
{
    bool any = false;
    for (unsigned i = 0; i < n; i++) {
        items[i].readable = items[i].sock && readable(items[i].sock, next_ns);
        items[i].writable = items[i].sock && items[i].want_write && !fake.full;
        any |= items[i].readable || items[i].writable;
    }
    return any;
}

int net_poll(struct net_poll *items, unsigned n, long timeout_ms)
{
    if (fake.on_poll) fake.on_poll();
    uint64_t next_ns = fake.now_ns + (uint64_t)timeout_ms * NS_PER_MS;
    if (look(items, n, &next_ns)) return 0;
    fake.now_ns = next_ns;
    (void)look(items, n, &next_ns);
    return 0;
}

int net_fd(struct net_sock *s)
{
    if (!s->has_fd) s->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->has_fd = true;
    return s->fd;
}

bool net_ready(struct net_sock *s, bool want_write)
{
    fake.next_ns = UINT64_MAX;
    return (want_write && !fake.full) || readable(s, &fake.next_ns);
}

uint64_t net_files_max(void)
{
    return fake.files_max;
}

int net_own_address(bool v6, char *ret, size_t size)
{
    (void)snprintf(ret, size, v6 ? "fd00::5" : "10.0.0.5");
    return 0;
}

int net_listen_address(const char *host, char *ret, size_t size, struct errmsg *em)
{
    (void)em;
    (void)snprintf(ret, size, "%s", host);
    return 0;
}
