/* The inside of a client: what client.c (the connection), call.c (Generate) and unary.c (calls with
 * one reply) share. */
#ifndef FLOTILLA_CLIENT_CLIENT_STATE_H
#define FLOTILLA_CLIENT_CLIENT_STATE_H

#include "common/base/addr.h"
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/client/client.h"
#include "common/client/tools.h"
#include "common/io/net.h"
#include "proto/msg.h"

#define CLIENT_PING_NS (500 * NS_PER_MS)

/* A call with one reply, until that has come or is given up. */
struct unary {
    struct unary *next;
    uint64_t id, begun_ns;
    uint32_t version;
    char method[32];
    struct buf body;
    bool held;            /* until the server has said what it takes */
    bool sent;            /* on the present connection */
    bool asked;           /* on any connection */
    uint64_t restarts_ns; /* since when the server says that it restarts; 0: it does not */
    uint64_t again_ns;    /* not to be sent again before */
    client_ask_fn on_end;
    void *arg;
};

struct client {
    struct net *net;
    struct net_sock *sock; /* NULL where no new connection could be made */
    int epoll;             /* client_fd: an epoll set that holds `watched` */
    int watched;           /* the socket's own descriptor (net_fd), or -1 */
    char endpoint[ADDR_TEXT_BYTES];
    struct key coordinator_key; /* not set: plaintext */
    struct instance instance;
    uint64_t next_call, ping_call, pinged_ns;
    uint64_t said_ns;     /* when the server was heard last */
    uint64_t heard_ns;    /* the same, or when the connection was begun, if that was later */
    uint64_t again_ns;    /* silence after which there will be a new connection */
    uint64_t listened_ns; /* when the last turn ended, */
    uint64_t due_ns;      /* and when the next one was to begin */
    bool in_turn;         /* a callback may be running */
    bool blocked;         /* the connection takes nothing more in this turn */
    bool closing;
    struct client_call **calls; /* running Generates, n_calls of room_calls */
    size_t n_calls, room_calls;
    struct unary *unaries; /* that wait for their reply */
    uint32_t takes; /* bytes of a body that the server takes at most; 0: it has not said so yet */
    struct arena header_arena, body_arena;
    struct buf header, body; /* of the message that is being sent */
    struct buf reply;        /* body of the last unary reply */
};

/* A running Generate. */
struct client_call {
    struct client *c;
    struct msg_generate request; /* what is asked for, from the next token on */
    void *copies;                /* what `request` points to */
    uint64_t id, deadline_ns;
    client_reply_fn on_reply;
    client_end_fn on_end;
    void *arg;
    bool asked;                   /* the server was asked at least once */
    bool to_ask;                  /* it is to be asked as soon as a connection takes it, */
    bool held;                    /* and the server has said what it takes */
    bool cancelled, cancel_waits; /* cancel_waits: the server is not told yet */
    struct buf received;          /* int32_t: tokens that were handed out */
    uint64_t heard_ns;  /* when the server last spoke of it, or was first asked, or it began */
    uint64_t asked_ns;  /* when the server was asked last */
    uint64_t lost_ns;   /* since when it is lost; 0: it is not */
    int lost_code;      /* why it is lost: an ERR_*, */
    char lost_why[128]; /* and in words that follow the server's address */
};

/* client.c */
/* Sends header and body, now or not at all: a negative ERR_* if no connection takes them. */
int client__send(struct client *c, const struct msg_call *h, const void *body, size_t body_bytes);
/* 0: the server takes a body of so many bytes. ERR_LIMIT: it does not; ERR_AGAIN: it has not said
 * yet whether it does. */
int client__fits(const struct client *c, size_t body_bytes, struct errmsg *em);
struct msg_call client__header(const struct client *c, const char *method, uint64_t call);
/* Something is about to be asked: silence counts from now, unless something was asked before. */
void client__expect(struct client *c, uint64_t now);
/* True: the reply is of a server of another protocol version; *ret is how that ends a call. */
bool client__other_version(const struct msg_reply *h, struct client_end *ret);
/* ERR_TIMEOUT, with a text that no coordinator answers. */
int client__nobody(const struct client *c, struct errmsg *em);

/* call.c */
void call__take_reply(struct client_call *r, const struct msg_reply *h, struct net_frame body);
/* The call is lost, for this reason: it is asked for again until CLIENT_PATIENCE_MS have passed
 * since it was first lost, and then ends. */
void call__lose(struct client_call *r, int code, const char *why);
void call__end(struct client_call *r, const struct client_end *end);
/* Does what is due by now: asks again, notices silence, ends. */
void call__look_after(struct client_call *r, uint64_t now);
/* When that will be. */
uint64_t call__due_ns(const struct client_call *r);
/* Whether it has a message that no connection has taken yet. */
bool call__wants_to_send(const struct client_call *r);

/* unary.c */
/* False: no unary call has this id. */
bool unary__take_reply(struct client *c, const struct msg_reply *h, struct net_frame body);
/* Sends those that no connection has taken yet, and ends those that have waited too long. */
void unary__look_after(struct client *c, uint64_t now);
/* When the next of them will have. */
uint64_t unary__due_ns(const struct client *c);
bool unary__wants_to_send(const struct client *c);
/* There is a new connection. */
void unary__renew(struct client *c);
void unary__close(struct client *c);

#endif
