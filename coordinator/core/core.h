/* The coordinator's core: a pure state machine over requests, workers, replicas and their pages.
 *
 *   core_step(core, event) -> actions
 *
 * No sockets, clock, threads, log or randomness of its own: events bring the time, the configuration
 * random bits.
 * The shell (loop.c) turns sockets into events and actions into messages; the simulator (sim/) does
 * the same in virtual time. The rules it keeps are in README.md of this folder, "Order".
 *
 * Owned by one thread. What an event points to is borrowed for the call. Pointers in actions are
 * valid until the next core_step, those in a status until the next core_step or core_status.
 */
#ifndef FLOTILLA_CORE_CORE_H
#define FLOTILLA_CORE_CORE_H

#include "common/base/blob.h"
#include "coordinator/core/pages.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/room.h"
#include "coordinator/core/route.h"
#include "coordinator/draft/accept.h"
#include "coordinator/draft/gain.h"
#include "coordinator/draft/settings.h"
#include "proto/msg.h"

#include <stdbool.h>
#include <stdint.h>

#define CORE_ANY_REPLICA UINT32_MAX

/* What the cluster file wishes of the worker of a name. */
struct core_wish {
    const char *name;
    uint64_t memory_bytes; /* that it may take; 0: what its machine has */
    uint32_t layers_max;   /* 0: any number */
    uint32_t threads;      /* 0: as many as it has */
    enum plan_prefer prefer;
    uint32_t replica, stage; /* that it is for; or CORE_ANY_REPLICA, PLAN_ANY_STAGE */
};

struct core_config {
    uint64_t incarnation; /* random, one for each process */
    uint32_t n_replicas;  /* at least 1 */
    uint32_t n_wanted;    /* of them, those that are waited for; others begin when there are workers
                             for them, and are no word in a status before. 0: all */
    uint32_t n_stages;    /* workers of the longest replica, 1..LIMIT_STAGES, at most n_layers */
    const uint32_t *chains; /* workers of each replica, 1..n_stages; NULL: n_stages each */
    enum plan_split split;
    const uint32_t *given; /* PLAN_GIVEN: layers of each of the n_stages stages of all replicas */
    const struct core_wish *wishes; /* no two of one name */
    uint32_t n_wishes;
    uint32_t max_workers;            /* known at once; at least those of all replicas */
    uint32_t n_layers, width, vocab; /* of the model */
    uint64_t model_digest;
    uint64_t header_digest;     /* of the model; 0: workers are not asked what a layer takes them */
    const uint64_t *layer_work; /* bytes of weights that each layer reads; NULL: they are alike */
    const char *model_path;     /* copied, like all strings and arrays here */
    const char *results_endpoint;
    struct key key;     /* the coordinator's; not set: links carry no keys */
    const int32_t *eog; /* end-of-generation tokens */
    uint32_t n_eog;
    uint32_t kv_type;
    uint32_t n_pages;                 /* of the KV pool; 0: as many as the workers have room for, */
    uint32_t pages_least, pages_most; /* between these */
    struct room_costs costs; /* without layer_bytes, n_pages is not checked against any memory */
    uint32_t page;           /* positions of a page */
    uint32_t attn_window;    /* positions that windowed layers see, the widest; 0: none is windowed.
                                costs says how many pages there are for them */
    bool share;              /* prompts that begin alike share pages */
    uint64_t hash_seed, hash_mask; /* of the prefix index: pages.h */
    uint32_t ctx;                  /* positions of a sequence; never more than a pool has */
    uint32_t rows_max, logits_max; /* of a Step */
    uint32_t window;               /* Steps of a replica in flight, 1..LIMIT_WINDOW */
    uint32_t max_live;             /* requests, 1..LIMIT_LIVE */
    uint32_t max_running;          /* sequences that a replica computes at once, 1..max_live */
    enum route_policy policy;      /* which replica takes a request */
    double route_weight;           /* of ROUTE_COST; 0: 1 */
    uint32_t max_per_client;       /* live requests of one client, 1..max_live */
    uint64_t step_ns; /* limit of the predicted time of a Step with decodes; 0: the core's own */
    bool plaintext;
    uint64_t replan_after_ns;   /* how long a replica that lacks workers waits for them before it is
                                   cut   for fewer; 0: for ever */
    uint64_t replica_wait_ns;   /* how long a request waits for a replica; 0: not at all */
    uint64_t deadline_ns;       /* of requests that name none */
    uint64_t worker_timeout_ns; /* silence after which a worker is lost */
    uint64_t step_timeout_ns;   /* least age at which a Step is overdue */
    struct draft_settings draft; /* kind DRAFT_OFF: nothing is guessed. Of the rest the core reads
                                    the lengths, and whether runs are pipelined */
};

enum event_type {
    EV_FROM_WORKER, /* a control message; address: the host it came from */
    EV_LINK_UP,     /* the coordinator's link to a replica's first stage stands */
    EV_LINK_LOST,   /* it broke */
    EV_RESULT,
    EV_SUBMIT,
    EV_DRAFT,     /* guesses that an ACT_DRAFT asked for */
    EV_CANCEL,    /* by the client, or because the client is silent */
    EV_STOP,      /* the text met a stop string */
    EV_DRAIN,     /* an admin's order: a worker is to leave; answered in the same step */
    EV_REBALANCE, /* the same: one replica, or all, are to be planned anew */
    EV_LATE,    /* the shell did not run for a while: first in a turn, before what waited for it */
    EV_TICK,    /* time; lost_ns: time that the shell itself was not running */
    EV_COMPOSE, /* form the next Steps: once a turn, after all else */
};

struct event {
    enum event_type type;
    uint64_t now_ns;
    struct key
        key; /* EV_FROM_WORKER, EV_RESULT: of the connection by which it came, if it has one */
    union {
        struct {
            const struct msg_from_worker *msg;
            const char *address;
        } from;
        struct {
            struct epoch epoch;
        } link;
        const struct msg_result *result;
        struct {
            uint64_t request; /* never used before */
            uint64_t client, tenant;
            enum priority priority;
            const int32_t *tokens; /* n_prompt of the prompt, then n_received generated ones */
            uint32_t n_prompt, n_received; /* that the client has from an earlier call */
            uint32_t max_new;              /* beyond the prompt; 0: no token is generated */
            uint32_t sample;               /* which of several answers to one prompt */
            struct sampling sampling;
            struct blob *grammar; /* of the answer, or NULL: it is free. Shared */
            bool ignore_eos;
            bool embed;            /* no token is wanted (max_new is 0), but ACT_EMBEDDING */
            bool drafts;           /* its tokens are guessed, where the configuration has drafts */
            uint32_t draft_length; /* of its drafts, constant; 0: as configured */
            uint64_t deadline_ns;  /* from now; 0: the default */
        } submit;
        struct {
            uint64_t request, serial;    /* of the ask that it answers */
            uint32_t first_pos, n;       /* n 0: the drafter knows nothing better */
            const int32_t *tokens;       /* of the vocabulary */
            uint64_t waited_ns, took_ns; /* of the draft: until it was begun, and from there on */
        } draft;
        struct {
            uint64_t request;
            const char *why; /* of EV_CANCEL */
        } request;
        struct {
            const char *name;  /* of a worker; of a replica, "": all of them */
            uint64_t limit_ns; /* that requests which run have to end */
        } order;
        struct {
            uint64_t lost_ns;
        } tick;
    };
};

enum action_type {
    ACT_TO_WORKER,
    ACT_LINK_OPEN, /* connect to a first stage; answer with EV_LINK_UP or EV_LINK_LOST. A replica
                      (epoch.replica) has one link at a time */
    ACT_LINK_CLOSE,
    ACT_STEP,
    ACT_TOKENS,
    /* next tokens of a request: each once, in order */ ACT_END, /* the request's one last action */
    ACT_ANSWER,                                                  /* what follows from an order */
    ACT_EMBEDDING, /* of a request that wants one; its ACT_END follows */
    ACT_NOTE,      /* a change worth a line in the log */
    ACT_DRAFT, /* guesses are wanted; answer with EV_DRAFT. One ask of a request counts, the last */
};

struct action {
    enum action_type type;
    bool loss; /* of ACT_NOTE: something was lost */
    union {
        struct {
            struct instance instance;
            const struct msg_to_worker *msg;
        } to_worker;
        struct {
            struct epoch epoch;
            const char *endpoint;
            struct key key; /* of the other end; not set: no keys */
        } link;
        const struct msg_step *step;
        struct {
            uint64_t request;
            uint32_t first_index, n;
            const int32_t *tokens;
            struct msg_logprobs logprobs; /* of the n tokens */
            uint64_t queued_ns;           /* from submission to the first row */
            uint32_t cached;              /* positions of the prompt that were found computed */
        } tokens;
        struct {
            uint64_t request, serial;
            uint32_t first_pos;  /* of tail[0]: how many tokens are known */
            const int32_t *tail; /* n_tail guesses that it has */
            uint32_t n_tail, want;
            const struct gain_chain *chain; /* its replica's times; without points: none is known */
            struct gain_load load;
        } draft;
        struct {
            uint64_t request;
            struct accept_stats accept; /* of its guesses */
            enum status status;
            const char *text;                 /* "" with STATUS_OK */
            enum finish_reason finish_reason; /* with STATUS_OK, where tokens were wanted */
            uint32_t retry_ms;
        } end;
        struct {
            uint64_t request;
            const float *values; /* n: as many as the model is wide */
            uint32_t n;
        } embedding;
        struct {
            enum status status; /* STATUS_OK or STATUS_NOT_FOUND */
            const char *text;
        } answer;
        const char *note;
    };
};

struct actions {
    const struct action *items;
    size_t n;
    bool awaited; /* EV_RESULT: it was the next one of a generation, of a Step or of its probe */
};

struct core;

/* A configuration that breaks its bounds is a CHECK. */
struct core *core_open(const struct core_config *config);
/* May be NULL. */
void core_close(struct core *c);

/* To be carried out in their order. */
struct actions core_step(struct core *c, const struct event *e);

void core_status(struct core *c, struct msg_status *ret);
/* Whether the replica is ready, which a status says too. */
bool core_serves(const struct core *c, uint32_t replica);

#define CORE_NO_REPLICA UINT32_MAX

/* What a checker needs to recount pages without the allocator's help. Running sequences come first,
 * replica after replica, the most urgent one of each first. */
struct core_sequence {
    uint64_t request;
    bool running;
    uint32_t replica; /* in which it runs, or waits; or CORE_NO_REPLICA: it waits for one */
    uint32_t class;   /* enum priority: in which it runs, or which it asked for */
    uint32_t n_issued, n_right;   /* positions: issued; known to hold the right token */
    uint32_t n_tokens, n_guessed; /* known; and with the guesses behind them */
    uint64_t arrival;             /* order of arrival, at its replica if it was moved there */
    const uint32_t *pages;        /* n_pages; until the next core_step */
    uint32_t n_pages;
    const uint32_t *windowed; /* its windowed pages, likewise: those from first_windowed on, before
                                 end_windowed; NULL: no layer is windowed */
    uint32_t first_windowed, end_windowed;
};

uint32_t core_n_sequences(const struct core *c);
struct core_sequence core_sequence_at(const struct core *c, uint32_t idx);
struct pages_stats core_pages(const struct core *c, uint32_t replica);
struct page_view core_page_at(const struct core *c, uint32_t replica, uint32_t page);
/* The same of windowed pages; 0 of them where no layer is windowed. */
uint32_t core_n_windowed(const struct core *c, uint32_t replica);
struct windowed_stats core_windowed(const struct core *c, uint32_t replica);
struct windowed_view core_windowed_at(const struct core *c, uint32_t replica, uint32_t page);
uint32_t core_in_flight(const struct core *c, uint32_t replica);

#endif
