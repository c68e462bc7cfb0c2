/* The shell's state, shared by loop.c (sockets, turns, actions) and calls.c (clients). Private. */
#ifndef FLOTILLA_COORDINATOR_SHELL_H
#define FLOTILLA_COORDINATOR_SHELL_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/io/net.h"
#include "coordinator/answer.h"
#include "coordinator/config.h"
#include "coordinator/core/core.h"
#include "coordinator/manifest.h"
#include "coordinator/metrics.h"
#include "coordinator/model_file.h"
#include "coordinator/textjob.h"

#define ROUTE_BYTES 32u

/* A ROUTER's name for a peer's connection. */
struct route {
    uint8_t bytes[ROUTE_BYTES];
    size_t n;
};

/* A client's call. */
struct call {
    bool used, dirty, usage_sent;
    bool ended;   /* status and text below are known */
    bool give_up; /* an answer has failed: the others are to be cancelled */
    struct route route;
    struct instance client;
    uint64_t id;      /* the client's */
    uint64_t request; /* the core's of the first answer, and the text job's; the others follow */
    struct answer *answers; /* n_answers; none but with Generate */
    uint32_t n_answers;
    uint64_t begun_ns, heard_ns, replied_ns;
    bool text_waits;      /* its text is being tokenised, or waits for that */
    uint64_t refused_ns;  /* since when its connection takes no reply; 0: it does */
    uint64_t retry_ns;    /* when it is tried again */
    uint64_t deadline_ns; /* when, not how long */
    uint32_t max_new;
    enum priority priority;
    uint64_t tenant;              /* a hash of its name; 0: none */
    struct msg_sampling sampling; /* its arrays: */
    struct buf bias_ids, bias;
    bool ignore_eos;
    struct tokens prompt, received; /* received: tokens of the answer from an earlier call */
    uint32_t from_index;            /* the first token of the answer that the client wants */
    enum status status;             /* once ended */
    char text[LIMIT_TEXT_BYTES];
    uint32_t retry_ms;
};

struct worker_route {
    struct instance instance;
    struct route route;
    uint64_t heard_ns;
    struct epoch linked; /* the last generation in which it was told its next stage */
    bool proved;         /* it was part of a generation that became ready */
};

/* To the first stage of a replica, in one of its generations. */
struct first_link {
    struct net_sock *sock, *monitor; /* NULL: there is no connection */
    struct epoch epoch;
    bool up, failed;
    bool proved; /* the generation became ready, and its workers' routes are kept */
    struct buf queue[LIMIT_WINDOW]; /* Steps that the connection did not take yet */
    uint32_t at, n;
};

struct shell {
    const struct config *config;
    const struct model_file *model;
    struct manifest manifest;
    const char *name; /* of the model, as served */
    struct net *net, *client_net;
    struct net_sock *clients, *workers, *results;
    struct first_link *links; /* n_links: one for each replica, by its id */
    uint32_t n_links;
    struct net_poll *polls; /* what a turn waits for */
    struct core *core;
    struct textjobs *text;
    struct worker_route *routes; /* n_routes: more than the core knows, since strangers have some */
    uint32_t n_routes;
    struct metrics *metrics; /* or NULL */
    struct counters count;
    uint64_t published_ns;
    struct call *calls;
    uint32_t n_calls;
    uint32_t *free_calls, n_free_calls; /* slots, a stack */
    uint32_t *dirty, n_dirty;           /* slots of calls that are due a reply */
    struct imap by_request, by_name;    /* to slots; the latter by a hash of client and call */
    struct imap by_client;              /* how many calls a client has, by a hash of it */
    uint32_t ctx;                       /* positions of a sequence, at most */
    uint32_t token_bytes;               /* of the longest token */
    uint64_t next_request;
    struct arena arena, body_arena;
    struct buf out, body;
    uint64_t dropped, now_ns;
    bool was_ready;
    bool draining; /* a signal to stop has come: running answers go on, new ones are refused */
    bool stopping; /* the last replies are being sent */
    uint64_t drain_until_ns, version_told_ns;
    uint32_t clients_max;                   /* connections at once, as open files allow */
    char client_endpoint[NET_ENDPOINT_MAX]; /* as others reach it */
};

/* loop.c: runs an event through the core and carries out its actions. */
void shell__event(struct shell *s, struct event *e);
/* Logs, not too often, that a peer ("client" or "worker") speaks another protocol version. */
void shell__tell_version(struct shell *s, const char *who, const char *peer, uint32_t version);

/* loop.c: the tables whose sizes follow from the number of replicas, and of workers that the core
 * may know. */
void shell__open_tables(struct shell *s, uint32_t n_replicas, uint32_t max_workers);
void shell__close_tables(struct shell *s);

/* loop.c: one turn; next_tick_ns is when the core and the calls are told the time again. */
void shell__turn(struct shell *s, uint64_t *next_tick_ns);

/* calls.c */
void calls__open(struct shell *s);
void calls__close(struct shell *s);
/* Bytes of the largest frame that a client may send, as the context and the vocabulary give it.
 * Before the clients' socket is opened. */
uint32_t calls__message_bytes(struct shell *s, uint32_t ctx);
/* Clients' messages, until a turn's budget is used; the rest waits in the socket. */
void calls__take(struct shell *s);
void calls__text_done(struct shell *s, struct textjob *job);
/* Actions of the core. calls__tokens returns true when the text met a stop string: the caller then
 * feeds EV_STOP. */
bool calls__tokens(struct shell *s, const struct action *a);
void calls__end(struct shell *s, const struct action *a);
/* Replies to who is due one; cancels for clients that are gone or silent. */
void calls__flush(struct shell *s);
void calls__tick(struct shell *s, uint64_t lost_ns);
/* Ends all calls: their clients are told to go on at the next coordinator. */
void calls__stop(struct shell *s);
/* Whether a client still waits for something. */
bool calls__any(const struct shell *s);

#endif
