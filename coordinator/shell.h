/* The shell's state, shared by loop.c (sockets, turns, actions) and the files that serve clients
 * (calls.h). Private. */
#ifndef FLOTILLA_COORDINATOR_SHELL_H
#define FLOTILLA_COORDINATOR_SHELL_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/io/link.h"
#include "common/io/net.h"
#include "coordinator/calls.h"
#include "coordinator/config.h"
#include "coordinator/core/core.h"
#include "coordinator/draft/draft.h"
#include "coordinator/gateway/gateway.h"
#include "coordinator/manifest.h"
#include "coordinator/metrics.h"
#include "coordinator/model_file.h"

struct worker_route {
    struct instance instance;
    struct key key; /* of the connection by which it first came */
    struct route route;
    uint64_t heard_ns;
    struct epoch linked; /* the last generation in which it was told its next stage */
    bool proved;         /* it was part of a generation that became ready */
};

/* To the first stage of a replica, in one of its generations. */
struct first_link {
    struct link *link;
    struct epoch epoch;
    bool proved; /* the generation became ready, and its workers' routes are kept */
};

/* An ask for guesses that no drafter took: its answer is empty. */
struct no_draft {
    uint64_t request, serial;
    uint32_t first_pos;
};

struct shell {
    const struct config *config;
    const struct model_file *model;
    struct manifest manifest;
    const char *name; /* of the model, as served */
    struct chat chat; /* its chat templates, if `talk` has them, */
    struct conversation_model talk;
    struct errmsg no_chat; /* or why there are none */
    struct net *net, *client_net;
    struct net_sock *clients, *workers, *results;
    struct first_link *links; /* n_links: one for each replica, by its id */
    uint32_t n_links;
    struct no_draft *silent; /* n_silent asks that no drafter took; room for max_requests */
    uint32_t n_silent;
    struct net_poll *polls; /* what a turn waits for */
    struct core *core;
    struct offload *texts;       /* the queue of texts that are tokenised (texts.h) */
    struct worker_route *routes; /* n_routes: more than the core knows, since strangers have some */
    uint32_t n_routes;
    struct drafter *drafter; /* or NULL: nothing is guessed */
    uint64_t draft_told_ns;  /* when the log last told of one that failed */
    struct metrics *metrics; /* or NULL */
    struct gateway *gateway; /* or NULL, and where it is reached: */
    char http_url[NET_ENDPOINT_MAX + 8];
    struct counters count;
    uint64_t published_ns;
    struct call *calls;
    uint32_t n_calls;
    uint32_t *free_calls, n_free_calls; /* slots, a stack */
    uint32_t first_call;                /* the slot that is looked at first: calls.c */
    uint32_t *dirty, n_dirty;           /* slots of calls that are due a reply */
    struct imap by_request, by_name;    /* to slots; the latter by a hash of client and call */
    struct imap by_client;              /* how many calls a client has, by a hash of it */
    uint32_t ctx;                       /* positions of a sequence, at most */
    uint32_t token_bytes;               /* of the longest token */
    uint32_t message_bytes;             /* of a client's message, at most */
    uint64_t next_request;
    struct arena arena, body_arena;
    struct buf out, body;
    struct buf pieces, piece_bytes; /* of the reply that is being encoded */
    uint64_t dropped;               /* messages that could not be read */
    uint64_t now_ns;                /* the present turn's */
    bool was_ready;
    uint64_t ready_ns; /* when a replica served last; 0: none has */
    bool draining;     /* a signal to stop has come: running answers go on, new ones are refused */
    bool stopping;     /* the last replies are being sent */
    uint64_t drain_until_ns, version_told_ns;
    uint64_t refused[NET_REFUSED_KINDS]; /* connections of which the log has not told yet */
    uint64_t refused_told_ns[NET_REFUSED_KINDS];
    enum status answer; /* of the core to the last order, */
    char answer_text[LIMIT_TEXT_BYTES];
    uint32_t caller_roles;          /* of the key of the client's message that is being taken */
    uint32_t clients_max, http_max; /* connections at once, as open files allow */
    char client_endpoint[NET_ENDPOINT_MAX]; /* as others reach it */
};

/* loop.c: runs an event through the core and carries out its actions. */
bool shell__event(struct shell *s, struct event *e);
/* Logs, not too often, that a peer ("client" or "worker") speaks another protocol version. */
void shell__tell_version(struct shell *s, const char *who, const char *peer, uint32_t version);

/* drafts.c: opens the drafter, if the cluster file wants one. ends: the model's end tokens. */
int drafts__open(struct shell *s, const int32_t *ends, uint32_t n_ends, struct errmsg *em);
void drafts__close(struct shell *s);
/* Readable when drafts__take has something; NULL without a drafter. */
struct net_sock *drafts__socket(const struct shell *s);
/* Hands answers to the core. */
void drafts__take(struct shell *s);
/* Brings the counters of drafts up to date. */
void drafts__count(struct shell *s);
/* Actions of the core. drafts__ask returns false where there will be no answer. */
void drafts__tokens(struct shell *s, const struct action *a);
void drafts__end(struct shell *s, const struct action *a);
bool drafts__ask(struct shell *s, const struct action *a);
/* What a Generate says of its drafts, kept in c (NULL: only checked). ERR_RANGE names the field. */
int drafts__choose(const struct shell *s, const struct msg_generate *g, struct call *c,
                   struct errmsg *em);
/* Before answer i of a call is submitted, with these tokens: whether it has drafts. */
bool drafts__begin(struct shell *s, struct call *c, uint32_t i, const struct tokens *all);

/* admission.c: gives both contexts the coordinator's key, if it has one, before their first socket,
 * and says whose keys they admit. */
int admission__open(struct shell *s, struct errmsg *em);
/* Reads from the cluster file whose keys are admitted from now on. What is wrong is logged, and
 * changes nothing. */
void admission__reload(struct shell *s);
/* Logs, not too often, who was refused. */
void admission__tick(struct shell *s);

/* loop.c: opens the tables whose sizes follow from the number of replicas, and of workers that the
 * core may know. */
void shell__open_tables(struct shell *s, uint32_t n_replicas, uint32_t max_workers);
void shell__close_tables(struct shell *s);

/* loop.c: one turn; next_tick_ns is when the core and the calls are told the time again. */
void shell__turn(struct shell *s, uint64_t *next_tick_ns);

#endif
