/* An outgoing data link: the connection over which one program hands Steps to the next, and a queue
 * of what that connection does not take yet. It knows frames, and nothing of what they mean.
 *
 *   link_open ── link_connect ── link_send ... link_turn ... ── link_disconnect ── link_close
 *                      ^                                               |
 *                      └────────────── one connection a generation ────┘
 *
 * A send never blocks and never gives anything back: what the connection does not take waits in the
 * queue, in order. A link is lost when its connection closes, when it cannot be made, or when the
 * queue is full, since a Step that is left out ends the generation anyway. Each loss is told once,
 * by link_turn and never inside another call; the link is closed by then, and what waited is
 * forgotten. Nothing is sent again: the peer that comes back is another one (common/io/README.md).
 *
 * A link belongs to the thread that opened it. */
#ifndef FLOTILLA_IO_LINK_H
#define FLOTILLA_IO_LINK_H

#include "common/io/net.h"

#define LINK_FRAMES 2u /* of a message: a header, and what follows it */
#define LINK_POLLS 2u  /* entries of a net_poll that a link takes */

struct link;

/* A link without a connection, whose queue holds `depth` messages (at least 1). `net` is borrowed
 * until link_close. Never fails. */
struct link *link_open(struct net *net, uint32_t depth);
/* May be NULL. */
void link_close(struct link *l);

/* Begins a connection to "tcp://HOST:PORT" that lets `hwm` messages be on the way; one that there
 * was is closed first. How it ends comes from link_turn: LINK_UP, or LINK_LOST. */
void link_connect(struct link *l, const char *endpoint, int hwm);
/* Closes the connection, if there is one, and forgets what waits. No event follows. */
void link_disconnect(struct link *l);
/* Whether a connection was begun and is not lost. */
bool link_is_open(const struct link *l);

/* Hands on a message of n frames (1 to LINK_FRAMES), copied. Without a connection it is dropped:
 * the loss was told, or link_turn is about to tell it. */
void link_send(struct link *l, const struct net_frame *frames, unsigned n);

enum link_event {
    LINK_QUIET, /* nothing more has happened */
    LINK_UP,    /* the connection stands; once for each link_connect */
    LINK_LOST,  /* link_why says how */
};

/* What to wait for: fills LINK_POLLS entries. */
void link_poll(const struct link *l, struct net_poll *ret_items);
/* After net_poll has looked at these entries: sends what waits as far as the connection takes it,
 * and says what has happened, one event a call. To be called until it is LINK_QUIET. */
enum link_event link_turn(struct link *l, const struct net_poll *items);
/* How the link was lost, in words that follow a name. Valid until the next link_connect. */
const char *link_why(const struct link *l);

#endif
