/* The core's state, private to core.c, requests.c, replica.c, queue.c and sched.c.
 *
 * A replica:            a request:
 *   WAITING <---------+    QUEUED --admitted--> RUNNING --> ended (its slot is free)
 *     | enough workers|      ^                    |
 *   LOADING --------->|      +--generation lost---+
 *     |               |      +--preempted---------+
 *     | all Ready     |
 *   LINKING --------->| any loss: worker, link, overdue Step, fault
 *     | all Linked    |
 *   PROBING --------->|
 *     | digest right  |
 *   READY ------------+                                                                      */
#ifndef FLOTILLA_COORDINATOR_CORE_STATE_H
#define FLOTILLA_COORDINATOR_CORE_STATE_H

#include "common/base/arena.h"
#include "common/base/hash.h"
#include "coordinator/core.h"
#include "coordinator/cost.h"
#include "proto/mutate.h"

#define ATTEMPTS_MAX 3u /* lost generations that a request may have been in flight at */
#define NO_WORKER UINT32_MAX
#define STEP_SIZES 14u /* powers of two up to LIMIT_STEP_ROWS, and one */

enum replica_state {
    REPLICA_WAITING,
    REPLICA_LOADING,
    REPLICA_LINKING,
    REPLICA_PROBING,
    REPLICA_READY
};

struct worker {
    bool used;
    bool ready, linked; /* in the present generation */
    bool knows;         /* it has spoken of the present generation: its Assign arrived */
    bool suspect;       /* its data link broke, and it has said nothing since */
    struct instance instance;
    struct msg_hello hello;
    char address[LIMIT_NAME_BYTES];
    char endpoint[LIMIT_TEXT_BYTES];
    uint64_t heard_ns, assigned_ns;
    uint32_t faults; /* that it reported since it last served: others are planned with first */
    struct msg_heartbeat heartbeat; /* of the present generation, like the next two */
    uint64_t compute_ns, idle_ns;
    uint64_t load_done, load_total;
};

struct in_flight {
    uint64_t number, issued_ns;
    struct cost_work work;
    uint32_t n_results; /* runs that want logits: each gives one result */
    bool alone;         /* the chain was empty when it was issued, */
    bool first;         /* and nothing had run before: its stages' idle time does not count */
};

struct replica {
    enum replica_state state;
    uint32_t generation;          /* of the present or the last generation */
    uint32_t stage[LIMIT_STAGES]; /* worker of each stage, NO_WORKER while waiting */
    uint32_t first[LIMIT_STAGES], last[LIMIT_STAGES]; /* layers */
    bool link_up;
    uint64_t next_number;
    uint64_t prefilled; /* the last Step in which the most urgent prompt went on */
    struct in_flight flight[LIMIT_WINDOW];
    uint32_t n_flight;
    bool rested; /* nothing has run since the last Step came back */
    bool has_digest;
    uint64_t digest;
    uint64_t retry_ns;            /* not before this time is a generation begun */
    uint64_t pause_ns;            /* between failed beginnings; doubles */
    uint64_t moved_ns;            /* when the last result came: Steps wait for those before them */
    uint64_t patience_ns;         /* least age at which a Step is overdue, while a worker is slow */
    uint64_t took_ns[STEP_SIZES]; /* the slowest Step of late, by the logarithm of its rows */
    struct cost cost;             /* of a Step on the slowest stage */
    double trips;                 /* round trip of a Step alone, in times of its slowest stage */
    uint64_t wire_ns;             /* of the round trip of a Step alone: on no stage */
    uint64_t wire_sum_ns, queue_sum_ns; /* of all Steps: on the way, and behind others */
    uint64_t since_ns;                  /* the state was entered, or something moved in it */
    char why[LIMIT_TEXT_BYTES];         /* what it waits for */
    char lost[LIMIT_TEXT_BYTES];        /* what ended the last generation; empty once ready again */
    uint64_t steps, steps_mixed;
    uint32_t sequences_max;
};

struct request {
    bool used, running, opened, ignore_eos;
    bool looked;                /* it was counted among the look-ups for prefixes */
    enum priority asked, class; /* class: in which it runs, fixed when it is admitted */
    uint64_t waited_ns;         /* in the queue, before this time */
    uint64_t arrival;           /* counts submissions */
    uint64_t id, client, tenant, deadline_ns;
    uint64_t wait_since_ns;          /* for a replica */
    uint64_t queued_ns;              /* since when it is in the queue */
    uint64_t submitted_ns, begun_ns; /* begun: its first row was issued */
    uint32_t attempt; /* 1 and one more for each lost generation that it was in flight at */
    uint32_t sample;
    int32_t *tokens; /* prompt, then what was generated; room for n_prompt + max_new */
    uint32_t n_prompt, n_tokens, max_new;
    uint32_t n_issued; /* positions whose rows were issued, or found computed, since admission */
    uint32_t *pages;   /* room for all it can ever need */
    uint32_t n_pages;
    struct prefix walk;         /* along its pages that are in the index, */
    uint32_t n_walked;          /* so many */
    uint64_t chosen_in, put_in; /* drafts of Steps that it was to decode in, and has rows in */
    struct msg_sampling sampling;
};

struct core {
    struct core_config cfg;
    char model_path[LIMIT_PATH_BYTES], results_endpoint[LIMIT_TEXT_BYTES];
    int32_t *eog;
    uint64_t now_ns;
    struct worker workers[LIMIT_WORKERS];
    struct replica replica;
    struct request *requests; /* max_live slots */
    uint32_t *free_slots, n_free_slots;
    uint32_t *running, n_running; /* slots, the most urgent first: by class, then arrival */
    uint32_t *queued, n_queued;   /* slots by arrival */
    uint64_t arrivals;
    uint64_t draft;       /* counts the Steps that were drafted, whether they were issued or not */
    uint32_t decode_from; /* index into running: whose turn it is to decode */
    struct imap by_id;
    struct pages *pages;
    uint32_t *twice, n_twice; /* pages of the Step being composed that the index had already */
    uint64_t prefix_lookups, prefix_hits, tokens_saved, tokens_computed, preemptions;
    uint64_t *closed; /* ended requests whose sampling state the last stage may drop */
    uint32_t n_closed;
    uint64_t dropped;
    struct action *actions;
    size_t n_actions, cap_actions;
    struct arena arena; /* of the present step: what actions point to */
};

/* core.c */
/* Why there is no replica, for a client: what is waited for, and what was lost. */
const char *core__no_replica(struct core *c);
struct action *core__act(struct core *c, enum action_type type);
void core__note(struct core *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A note that something was lost. */
void core__note_loss(struct core *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *core__alloc(struct core *c, size_t bytes);
/* Text that lives until the next step. */
const char *core__text(struct core *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* requests.c */
void request__submit(struct core *c, const struct event *e);
void request__end(struct core *c, struct request *r, enum status status, const char *finish_reason,
                  const char *text);
void request__results(struct core *c, const struct msg_result *m);
void request__by_id(struct core *c, uint64_t id, enum status status, const char *finish_reason,
                    const char *text);
void request__tick(struct core *c);
/* The generation is over: queue again what may be replayed, end the rest. */
void request__generation_lost(struct core *c, const char *why);

/* replica.c */
void replica__from_worker(struct core *c, const struct msg_from_worker *m, const char *address);
void replica__link(struct core *c, struct epoch epoch, bool up);
void replica__tick(struct core *c, uint64_t lost_ns);
/* Takes a result's Step out of flight. False: it was not the next in flight or is not what was
 * asked for, and nothing in it counts. */
bool replica__result(struct core *c, const struct msg_result *m);
struct epoch replica__epoch(const struct core *c);

/* sched.c */
void sched__compose(struct core *c);
void sched__probe(struct core *c);

/* queue.c */
/* Into the queue, and out of it or of the running ones. */
void queue__enter(struct core *c, struct request *r);
void queue__leave(struct core *c, struct request *r);
/* Gives all its pages back. */
void queue__release(struct core *c, struct request *r);
/* Back into the queue without pages: it is computed again later. */
void queue__again(struct core *c, struct request *r);
/* Lets in who may run now, in order of urgency. */
void queue__admit(struct core *c);
/* A page for r, if need be one of a running request that is less urgent, other than those that have
 * rows in the present draft. */
bool queue__page(struct core *c, struct request *r, uint32_t *ret_page);

#endif
