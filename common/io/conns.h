/* The accepted connections of listening sockets, held within bounds that libzmq does not keep: how
 * many there are, and how many bytes each has sent that no receiver was handed.
 *
 * libzmq hands a message over when it is whole, and counts messages, so the parts of one that never
 * ends pile up without limit. The kernel counts the bytes of each connection (TCP_INFO), the
 * receiver those that it was handed; the difference lies in libzmq. A connection beyond its limit
 * is shut down; libzmq then drops the unfinished message. Frames of few bytes, which take libzmq
 * many times what they have, show only in the size of the heap.
 *
 * One thread owns it (net.c's guard); conns_delivered, conns_owned, conns_prove and conns_refuse
 * may be called from any. */
#ifndef FLOTILLA_IO_CONNS_H
#define FLOTILLA_IO_CONNS_H

#include "common/base/err.h"
#include "common/base/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONNS_GROUPS 16u /* listening sockets */
#define CONNS_LOOK_MS 10
#define CONNS_FD_MAX 65536u /* file descriptors; a connection with a higher one is refused */

/* Of one listening socket. */
struct conns_limits {
    uint32_t count;       /* connections; one more pushes out the oldest that never said anything,
                             else the one that is quiet for longest, at least quiet_ns, or else is
                             refused itself */
    uint64_t quiet_ns;    /* 0: one that has spoken is never pushed out */
    bool proves;          /* to speak is to prove (conns_prove): other words do not count */
    uint64_t bytes;       /* of a connection that were not handed over */
    uint64_t total_bytes; /* of all its connections: the one with most goes first */
};

struct conns;

int conns_open(struct conns **ret, struct errmsg *em);
void conns_close(struct conns *c);

/* Limits of a group, before its first connection. */
void conns_set_limits(struct conns *c, uint32_t group, struct conns_limits limits);

/* The listening socket is closed, and its connections with it. */
void conns_drop_group(struct conns *c, uint32_t group);

/* libzmq has accepted a connection; it is about to close one. To be called in the order of the
 * events. */
void conns_accepted(struct conns *c, int fd, uint32_t group, uint64_t now_ns);
void conns_lost(struct conns *c, int fd);
/* A frame of so many bytes that came by fd was handed over. */
void conns_delivered(struct conns *c, int fd, size_t frame_bytes);

/* The connection that fd names now has said what only the right peer can. */
void conns_prove(struct conns *c, int fd);

/* The connection that fd names now is to be shut down, by the next conns_turn. */
void conns_refuse(struct conns *c, int fd);

/* A message that came by fd was of this key. */
void conns_owned(struct conns *c, int fd, const struct key *key);
/* Who is admitted has changed: shuts down the connections whose key is not admitted any more, and
 * those of which nothing was received yet, since nobody knows whose they are: whoever is admitted
 * connects again. */
typedef bool (*conns_admits_fn)(void *arg, uint32_t group, const struct key *key);
void conns_review(struct conns *c, conns_admits_fn admits, void *arg);

/* Readable when conns_turn has work before the time it said. */
int conns_fd(const struct conns *c);
/* Looks at the connections that have sent something. Returns the milliseconds until it wants to be
 * called again, -1: not before there is a connection. Beyond CONNS_LOOK_MS it wants to be called as
 * soon as conns_fd is readable. */
long conns_turn(struct conns *c, uint64_t now_ns);

#endif
