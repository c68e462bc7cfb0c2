/* ZeroMQ sockets with every limit set, their keys, and their monitors.
 *
 * A socket belongs to the thread that opened it. Only net_poll, net_close and net_listen_address
 * wait. What libzmq does when peers die was measured; common/io/README.md says which option answers
 * what. */
#ifndef FLOTILLA_IO_NET_H
#define FLOTILLA_IO_NET_H

#include "common/base/err.h"
#include "common/base/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NET_FRAMES_MAX 4u
#define NET_ENDPOINT_MAX 256u

struct net; /* a context: its I/O thread */
struct net_sock;

int net_open(struct net **ret_net, struct errmsg *em);
/* All its sockets must be closed. Waits for what net_sock_drain lets leave. May be NULL. */
void net_close(struct net *n);

/* ---- keys ----
 *
 * A context with a key speaks CURVE on all TCP sockets, encrypted and authenticated both ways: the
 * end that binds is CURVE's server, admits the keys of its rule and no others, and tells of each
 * message whose key it came by; the end that connects says which key it expects there. A context
 * without one speaks plaintext, and admits everybody. */

/* Before the first socket. The pair is copied. */
int net_secure(struct net *n, const struct key_pair *own, struct errmsg *em);
bool net_is_secure(const struct net *n);
/* Replaces the keys that have roles: copied, and by any thread. Connections of keys that are not
 * admitted any more are cut, and nothing that came by them is received; so are those that have said
 * nothing yet, whosoever they are. */
void net_allow(struct net *n, const struct key_list *keys);

/* Whom a listening socket admits: keys with one of these roles, or one key alone. */
struct net_rule {
    uint32_t roles;
    struct key only;
};

enum net_refused {
    NET_REFUSED_KEY,    /* a key that has no role, or is not the one that is expected */
    NET_REFUSED_ROLE,   /* a key whose roles have no place at this socket */
    NET_REFUSED_PLAIN,  /* a peer without keys, or that broke off before it had shown one */
    NET_REFUSED_CRYPTO, /* one that expects another key at this end, or garbles its messages */
    NET_REFUSED_KINDS
};

struct net_refusal {
    enum net_refused kind;
    uint64_t count; /* of this kind since it was told last; what follows is of the latest */
    struct key key; /* of the first two kinds */
    char peer[64];  /* its address; of the last two kinds, the endpoint of this end */
};

/* The next kind of refused connections that net_refusal has not told of. False: there are none. */
bool net_refusal(struct net *n, struct net_refusal *ret);

/* The system looks whether the peer of this TCP connection is still there, as it does for those of
 * this module, so that one that is gone without a word is noticed. */
void net_keepalive(int fd);

/* ---- sockets ---- */

enum net_kind {
    NET_ROUTER, /* many peers; the first frame of a message is the peer's routing id */
    NET_DEALER, /* one peer; reconnects */
    NET_PUSH,   /* data link, sending end: never reconnects, refuses while not connected */
    NET_PULL,   /* data link, receiving end */
    NET_PAIR,   /* between two threads of this process */
};

struct net_limits {
    int hwm;           /* messages a peer, each way */
    int64_t frame_max; /* bytes of a received frame */
    /* What follows is for sockets that listen; 0 stands for what is in brackets. */
    int recv_hwm;         /* messages of a peer that wait to be received (hwm) */
    uint64_t message_max; /* bytes of a message that an honest peer sends, all frames (frame_max) */
    uint32_t peers_max;   /* connections at once (NET_PEERS_DEFAULT) */
};

#define NET_PEERS_DEFAULT 16u

int net_socket(struct net *n, enum net_kind kind, struct net_limits limits, struct net_sock **ret,
               struct errmsg *em);
/* Two connected ends for two threads of this process, NET_PAIR each. The second may be handed to
 * its thread before it is used. On failure there is none. */
int net_pair(struct net *n, struct net_limits limits, struct net_sock **ret_first,
             struct net_sock **ret_second, struct errmsg *em);
void net_sock_close(struct net_sock *s);
/* Closes, but lets what was sent leave for up to ms milliseconds (net_close then waits for it). */
void net_sock_drain(struct net_sock *s, int ms);

/* Whom it admits, before net_bind; nobody without. Only where the context has a key. */
void net_admit(struct net_sock *s, struct net_rule rule);
/* The key of the other end, before net_connect. */
void net_expect(struct net_sock *s, const struct key *key);

/* "tcp://ADDRESS:PORT", where PORT may be *, or "inproc://NAME". What peers send and nobody
 * receives is held within recv_hwm + 2 messages of message_max bytes each, even while a message
 * never ends: a peer that sends more is cut off (common/io/README.md). */
int net_bind(struct net_sock *s, const char *endpoint, struct errmsg *em);
/* "tcp://HOST:PORT" or "inproc://NAME". A host that is a name is looked up on a thread of its own;
 * net_poll goes on with it when it polls this socket or its monitor. A PUSH whose host does not
 * resolve is lost, as its monitor tells. ERR_CONF: one of the two ends has a key and the other has
 * none. */
int net_connect(struct net_sock *s, const char *endpoint, struct errmsg *em);
/* How far the look-up of net_connect is: 0 done, or none was needed; ERR_AGAIN: under way;
 * ERR_NOTFOUND: there is no such host; ERR_TIMEOUT, ERR_LIMIT, ERR_IO: it could not be found out.
 * A new socket tries again. */
int net_lookup(struct net_sock *s, struct errmsg *em);
/* The bound endpoint with its real port; NET_ENDPOINT_MAX bytes. */
int net_bound(struct net_sock *s, char *ret_endpoint, struct errmsg *em);

struct net_frame {
    const void *data;
    size_t bytes;
};

/* Sends a message of n frames, copied. ERR_AGAIN: the socket takes no message now; ERR_CLOSED: the
 * peer of a ROUTER is gone. Nothing was sent then. */
int net_send(struct net_sock *s, const struct net_frame *frames, unsigned n);

struct net_msg {
    unsigned n;     /* public: frames */
    char peer[64];  /* public: the host it came from, as in an endpoint; empty on inproc */
    struct key key; /* public: of its connection; not set where the context has none */
    uint32_t roles; /* public: what that key may do; KEY_ANY where the context has none */
    bool truncated; /* public: it had more frames than NET_FRAMES_MAX, which are dropped */
    struct {
        _Alignas(8) uint8_t raw[64];
    } frames[NET_FRAMES_MAX]; /* private, like the next two */
    struct net_sock *from;    /* a guarded one, else NULL */
    int fd;                   /* of its connection */
};

/* ERR_AGAIN: none waits, or one with very many frames is being dropped, some of them at each call.
 * Messages of keys that are not admitted any more are skipped. The connection of one with too many
 * frames is shut down. On success the message is released with net_msg_close. */
int net_recv(struct net_sock *s, struct net_msg *m);
/* The message, which need not be open any more, is such as only the right peer of a data link can
 * send: its connection is not pushed out for a new one. Those of a PULL that never sent such a
 * message are. */
void net_prove(const struct net_msg *m);
struct net_frame net_msg_frame(const struct net_msg *m, unsigned idx);
void net_msg_close(struct net_msg *m);

/* Watches a socket's connections, from the same thread. */
enum net_event {
    NET_EVENT_NONE,
    NET_EVENT_CONNECTED,
    NET_EVENT_LOST,
    NET_EVENT_REFUSED, /* the other end does not admit this one's key; no attempt follows */
};

int net_monitor(struct net *n, struct net_sock *s, struct net_sock **ret_monitor,
                struct errmsg *em);
/* Ends it and closes the monitor (may be NULL), before the socket itself is closed: libzmq's I/O
 * thread sends events blocking, and would wait for ever on a monitor that nobody reads. */
void net_monitor_close(struct net_sock *s, struct net_sock *monitor);
/* The next event, NET_EVENT_NONE when there is no more. */
enum net_event net_monitor_next(struct net_sock *monitor);

struct net_poll {
    struct net_sock *sock; /* NULL entries are skipped */
    bool want_write;
    bool readable, writable; /* results */
};

/* Waits until one of n sockets is ready, at most timeout_ms (-1: for ever). 0 also when a signal
 * came. A call with more than eight sockets allocates. */
int net_poll(struct net_poll *items, unsigned n, long timeout_ms);

/* For a poll loop of the caller's own. net_fd is the descriptor that becomes readable when
 * something about the socket changes; it belongs to the socket. It is a different one while the
 * host's name is looked up, so ask for it again after each turn. It is edge-triggered (ZMQ_FD), so
 * ask net_ready before each wait whether something is there already: a message, the result of a
 * look-up, or, with want_write, room for a message. */
int net_fd(struct net_sock *s);
bool net_ready(struct net_sock *s, bool want_write);

/* Raises this process's limit of open files as far as the system lets it. Returns how many may be
 * shared out among connections: that limit, or fewer, since connections with high numbers are
 * refused. */
uint64_t net_files_max(void);
/* The address under which others reach a program that listens at every address of this machine:
 * that of the first interface that is up and not the loopback; ERR_NOTFOUND: there is none. */
int net_own_address(bool v6, char *ret, size_t size);
/* For the start of a program: the address that `host` stands for, in brackets if IPv6. A name is
 * looked up, waiting for the result. ERR_CONF: there is none, or it is not this machine's. */
int net_listen_address(const char *host, char *ret, size_t size, struct errmsg *em);

#endif
