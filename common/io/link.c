#include "common/io/link.h"

#include "common/base/buf.h"
#include "common/base/check.h"
#include "common/base/mem.h"

#include <stdio.h>

/* The limit of received frames; a link receives none. */
#define FRAME_MAX (1 << 20)

struct waiting {
    struct buf frames[LINK_FRAMES];
    unsigned n;
};

struct link {
    struct net *net;
    struct net_sock *sock, *monitor; /* NULL: there is no connection */
    bool up;                         /* it stands, and LINK_UP was told */
    bool lost;                       /* it is lost, and LINK_LOST is still to be told */
    struct errmsg why;
    struct waiting *queue; /* a ring of `depth`, of which n from `at` on wait */
    uint32_t depth, at, n;
};

struct link *link_open(struct net *net, uint32_t depth)
{
    CHECK(depth > 0);
    struct link *l = mem_zalloc(sizeof *l);
    *l = (struct link){.net = net, .depth = depth};
    l->queue = mem_zalloc(depth * sizeof *l->queue);
    return l;
}

void link_close(struct link *l)
{
    if (!l) return;
    link_disconnect(l);
    mem_free(l->queue);
    mem_free(l);
}

/* Empties the queue and frees its buffers too: activations may be a hundred megabytes. */
static void forget(struct link *l)
{
    for (uint32_t i = 0; i < l->depth; i++)
        for (unsigned k = 0; k < LINK_FRAMES; k++) buf_close(&l->queue[i].frames[k]);
    l->at = l->n = 0;
}

void link_disconnect(struct link *l)
{
    net_monitor_close(l->sock, l->monitor);
    net_sock_close(l->sock);
    l->sock = l->monitor = NULL;
    l->up = l->lost = false;
    forget(l);
}

static void lose(struct link *l, const char *why)
{
    if (why) (void)snprintf(l->why.text, sizeof l->why.text, "%s", why);
    link_disconnect(l);
    l->lost = true;
}

void link_connect(struct link *l, const char *endpoint, int hwm)
{
    struct net_limits limits = {.hwm = hwm, .frame_max = FRAME_MAX};
    link_disconnect(l);
    l->why.text[0] = 0;
    int rc = net_socket(l->net, NET_PUSH, limits, &l->sock, &l->why);
    if (rc == 0) rc = net_monitor(l->net, l->sock, &l->monitor, &l->why);
    if (rc == 0) rc = net_connect(l->sock, endpoint, &l->why);
    if (rc < 0) lose(l, NULL);
}

bool link_is_open(const struct link *l)
{
    return l->sock != NULL;
}

void link_send(struct link *l, const struct net_frame *frames, unsigned n)
{
    CHECK(n > 0 && n <= LINK_FRAMES);
    if (!l->sock) return;
    if (l->n == 0 && net_send(l->sock, frames, n) == 0) return;
    if (l->n == l->depth) {
        lose(l, "its data link takes nothing");
        return;
    }
    struct waiting *w = &l->queue[(l->at + l->n++) % l->depth];
    w->n = n;
    for (unsigned i = 0; i < n; i++) {
        buf_drop(&w->frames[i], w->frames[i].len);
        (void)buf_append(&w->frames[i], frames[i].data, frames[i].bytes);
    }
}

static void flush(struct link *l)
{
    while (l->n && l->sock) {
        struct waiting *w = &l->queue[l->at];
        struct net_frame f[LINK_FRAMES];
        for (unsigned i = 0; i < w->n; i++)
            f[i] = (struct net_frame){w->frames[i].data, w->frames[i].len};
        if (net_send(l->sock, f, w->n) < 0) return;
        l->at = (l->at + 1) % l->depth;
        l->n--;
    }
}

void link_poll(const struct link *l, struct net_poll *ret_items)
{
    ret_items[0] = (struct net_poll){.sock = l->monitor};
    ret_items[1] = (struct net_poll){.sock = l->n ? l->sock : NULL, .want_write = true};
}

enum link_event link_turn(struct link *l, const struct net_poll *items)
{
    enum net_event e;
    if (items[1].writable) flush(l);
    while (items[0].readable && l->monitor &&
           (e = net_monitor_next(l->monitor)) != NET_EVENT_NONE) {
        if (e == NET_EVENT_CONNECTED && !l->up) {
            l->up = true;
            return LINK_UP;
        }
        if (e == NET_EVENT_LOST)
            lose(l, l->up ? "its data link closed" : "its data link cannot be reached");
    }
    bool lost = l->lost;
    l->lost = false;
    return lost ? LINK_LOST : LINK_QUIET;
}

const char *link_why(const struct link *l)
{
    return l->why.text;
}
