/* delay_relay MICROSECONDS ADDRESS:PORT=ADDRESS:PORT...: TCP relays (IPv4), each from where it
 * listens to where it connects, which hold every byte so long in either direction. A number on
 * stdin is the new delay; the end of stdin ends it. Prints "ready" when all listen.
 *
 * It costs little beside what is measured: relay.py can do more to a connection, and takes a tenth
 * of a core for what this does in a hundredth. */
#include "common/base/clock.h"
#include "common/base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define RELAYS_MAX 128u
#define CONNS_MAX 512u
#define READ_BYTES 65536u
#define HELD_MAX ((size_t)8 << 20) /* of one direction; then its sender has to wait */

struct chunk {
    uint64_t due_ns;
    size_t n, at;
    struct chunk *next;
    uint8_t data[];
};

/* One direction of a connection. */
struct flow {
    int from, to;
    struct chunk *first, **end;
    size_t held;
    bool ended;   /* no more comes from `from` */
    bool blocked; /* `to` takes nothing at present */
};

struct conn {
    struct flow flow[2];
    bool open;
};

struct relay {
    int fd;
    struct sockaddr_in to;
};

struct world {
    struct relay relays[RELAYS_MAX];
    struct conn conns[CONNS_MAX];
    uint32_t n_relays, n_conns; /* n_conns: up to the last that was used */
    uint64_t delay_ns;
};

static bool parse(char *text, struct sockaddr_in *ret)
{
    char *colon = strrchr(text, ':');
    if (!colon) return false;
    *colon = '\0';
    *ret =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    return inet_pton(AF_INET, text, &ret->sin_addr) == 1 && ret->sin_port != 0;
}

static bool listen_at(struct relay *r, char *text)
{
    struct sockaddr_in at;
    int on = 1;
    char *sep = strchr(text, '=');
    if (!sep) return false;
    *sep = '\0';
    if (!parse(text, &at) || !parse(sep + 1, &r->to)) return false;
    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    (void)setsockopt(r->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(r->fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(r->fd, 64) == 0) return true;
    perror(text);
    return false;
}

static void accept_one(struct world *w, const struct relay *r)
{
    uint32_t i = 0;
    int on = 1, a = accept4(r->fd, NULL, NULL, SOCK_NONBLOCK);
    if (a < 0) return;
    while (i < CONNS_MAX && w->conns[i].open) i++;
    int b = i < CONNS_MAX ? socket(AF_INET, SOCK_STREAM, 0) : -1;
    if (b < 0 || connect(b, (const struct sockaddr *)&r->to, sizeof r->to) != 0) {
        (void)close(a);
        if (b >= 0) (void)close(b);
        return;
    }
    (void)fcntl(b, F_SETFL, O_NONBLOCK);
    (void)setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(b, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct conn *c = &w->conns[i];
    *c = (struct conn){.flow = {{.from = a, .to = b}, {.from = b, .to = a}}, .open = true};
    for (int k = 0; k < 2; k++) c->flow[k].end = &c->flow[k].first;
    if (i >= w->n_conns) w->n_conns = i + 1;
}

static void close_conn(struct conn *c)
{
    for (int k = 0; k < 2; k++) {
        struct flow *f = &c->flow[k];
        for (struct chunk *x = f->first, *next; x; x = next) {
            next = x->next;
            mem_free(x);
        }
        (void)close(f->from);
    }
    c->open = false;
}

/* False: the connection is lost. */
static bool take(const struct world *w, struct flow *f, uint64_t now)
{
    struct chunk *x = mem_alloc(sizeof *x + READ_BYTES);
    ssize_t n = recv(f->from, x->data, READ_BYTES, 0);
    if (n <= 0) {
        mem_free(x);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        f->ended = true;
        return true;
    }
    x->due_ns = now + w->delay_ns;
    x->n = (size_t)n;
    x->at = 0;
    x->next = NULL;
    *f->end = x;
    f->end = &x->next;
    f->held += x->n;
    return true;
}

/* Passes on what is due. False: the connection is lost, or has ended. */
static bool give(struct flow *f, uint64_t now)
{
    while (f->first && f->first->due_ns <= now) {
        struct chunk *x = f->first;
        ssize_t n = send(f->to, x->data + x->at, x->n - x->at, MSG_NOSIGNAL);
        if (n < 0) {
            f->blocked = errno == EAGAIN || errno == EINTR;
            return f->blocked;
        }
        x->at += (size_t)n;
        f->held -= (size_t)n;
        if (x->at < x->n) continue;
        f->first = x->next;
        if (!f->first) f->end = &f->first;
        mem_free(x);
    }
    return !f->ended || f->first;
}

/* What is asked of the system; in the order in which `turn` reads the answers. */
static nfds_t ask(const struct world *w, struct pollfd *p, uint64_t *ret_due_ns)
{
    nfds_t n = 0;
    *ret_due_ns = UINT64_MAX;
    p[n++] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    for (uint32_t i = 0; i < w->n_relays; i++)
        p[n++] = (struct pollfd){.fd = w->relays[i].fd, .events = POLLIN};
    for (uint32_t i = 0; i < w->n_conns; i++)
        for (int k = 0; k < 2; k++) {
            const struct flow *f = &w->conns[i].flow[k], *other = &w->conns[i].flow[1 - k];
            bool reads = !f->ended && f->held < HELD_MAX;
            short events = (short)((reads ? POLLIN : 0) | (other->blocked ? POLLOUT : 0));
            p[n++] = (struct pollfd){.fd = w->conns[i].open ? f->from : -1, .events = events};
            if (!w->conns[i].open || !f->first || f->blocked) continue;
            if (f->first->due_ns < *ret_due_ns) *ret_due_ns = f->first->due_ns;
        }
    return n;
}

static void turn(struct world *w, const struct pollfd *p, uint32_t n_conns)
{
    uint64_t now = clock_ns();
    for (uint32_t i = 0; i < n_conns; i++) {
        struct conn *c = &w->conns[i];
        bool good = true;
        for (int k = 0; k < 2 && c->open; k++) {
            short got = p[2 * i + (uint32_t)k].revents;
            if (got & POLLOUT) c->flow[1 - k].blocked = false;
            if (got & (POLLIN | POLLHUP | POLLERR)) good = good && take(w, &c->flow[k], now);
        }
        for (int k = 0; k < 2 && c->open; k++)
            if (!c->flow[k].blocked) good = good && give(&c->flow[k], now);
        if (c->open && !good) close_conn(c);
    }
}

static bool obey(struct world *w)
{
    char line[64];
    ssize_t n = read(STDIN_FILENO, line, sizeof line - 1);
    if (n <= 0) return false;
    line[n] = '\0';
    w->delay_ns = strtoull(line, NULL, 10) * 1000;
    return true;
}

int main(int argc, char **argv)
{
    static struct world w;
    static struct pollfd p[1 + RELAYS_MAX + 2 * CONNS_MAX];
    if (argc < 3 || argc - 2 > (int)RELAYS_MAX) return 2;
    w.delay_ns = strtoull(argv[1], NULL, 10) * 1000;
    for (int i = 2; i < argc; i++)
        if (!listen_at(&w.relays[w.n_relays++], argv[i])) return 2;
    (void)prctl(PR_SET_TIMERSLACK, 1);
    (void)puts("ready");
    (void)fflush(stdout);
    for (;;) {
        uint64_t due, now = clock_ns();
        uint32_t n_conns = w.n_conns;
        nfds_t n = ask(&w, p, &due);
        uint64_t left = due > now ? due - now : 0;
        struct timespec t = {(time_t)(left / NS_PER_S), (long)(left % NS_PER_S)};
        if (ppoll(p, n, due == UINT64_MAX ? NULL : &t, NULL) < 0 && errno != EINTR) return 1;
        if (p[0].revents && !obey(&w)) return 0;
        turn(&w, p + 1 + w.n_relays, n_conns);
        for (uint32_t i = 0; i < w.n_relays; i++)
            if (p[1 + i].revents) accept_one(&w, &w.relays[i]);
    }
}
