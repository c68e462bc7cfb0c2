/* The core's state, private to this folder.
 *
 * A replica:            a request:
 *   WAITING <---------+    UNROUTED --> QUEUED --admitted--> RUNNING --> ended (its slot is
 *     | enough workers|      ^            | ^ +-> elsewhere      |         free)
 *   LOADING --------->|      |            | +---preempted--------+
 *     |               |      +------------+-----generation lost--+
 *     | all Ready     |
 *   LINKING --------->| any loss: worker, link, overdue Step, fault
 *     | all Linked    |
 *   PROBING --------->|
 *     | digest right  |
 *   READY ----------->|
 *     | ordered       |
 *   DRAINING ---------+ also when its requests have ended, or have no more time                */
#ifndef FLOTILLA_CORE_CORE_STATE_H
#define FLOTILLA_CORE_CORE_STATE_H

#include "common/base/arena.h"
#include "common/base/hash.h"
#include "coordinator/core/core.h"
#include "coordinator/core/cost.h"
#include "coordinator/core/speed.h"
#include "coordinator/draft/length.h"

#define PRESUMED_LEAST 32u /* workers that are remembered as dead, or two for each replica */
#define SUSPECTED_MAX                                                                              \
    3u /* lost generations in whose lost Steps a request may have been in a row                    \
        */
#define NO_WORKER UINT32_MAX
#define NAMES_A_WORKER 4u /* names remembered, for each worker that may be known at once */
#define FLEET_LOSSES 3u   /* a worker that is to blame so often in ten minutes is held down */
/* Digests of probes that are remembered: so many that one which comes each few generations is not
 * forgotten among those of a worker that computes another each time. */
#define VERDICTS 16u
#define STEP_SIZES 14u /* powers of two up to LIMIT_STEP_ROWS, and one */

enum replica_state {
    REPLICA_WAITING,
    REPLICA_LOADING,
    REPLICA_LINKING,
    REPLICA_PROBING,
    REPLICA_READY,
    REPLICA_DRAINING /* it computes what it has, and takes no requests */
};

/* What is remembered of the workers of one name, over their restarts. */
struct record {
    char name[LIMIT_NAME_BYTES]; /* "": the entry is free */
    bool proven;                 /* it was part of a generation that became ready */
    uint32_t faults; /* a certain fault counts two, a suspicion one; service takes them away */
    uint64_t lost_ns[FLEET_LOSSES]; /* when it was to blame for a loss, the latest first */
    uint32_t n_lost;                /* of those, and no more than there is room for */
    uint64_t held_until_ns;         /* it is not planned with before this time */
    uint64_t hold_ns;               /* how long it was held down the last time; doubles */
    uint64_t seen_ns;               /* when a worker of this name last said Hello */
    char why[LIMIT_TEXT_BYTES];     /* what it was last to blame for */
};

struct worker {
    bool used;
    struct replica *replica; /* in whose generation it has a stage; NULL: it is a spare */
    uint32_t stage;          /* which one */
    bool ready, linked;      /* in that generation */
    bool knows;              /* it has spoken of that generation: its Assign arrived */
    bool suspect;            /* its data link broke, and it has said nothing since */
    bool leaves;             /* as ordered: it is not planned with */
    bool namesake;           /* it came by the name of another that lives, and has not served yet */
    uint64_t told_ns;        /* when it was last told to leave; 0: it was not */
    uint32_t record;         /* index of its name's record */
    uint32_t doubt; /* record of the other end of its link that broke at doubted_ns, or NO_WORKER */
    uint64_t doubted_ns;
    struct instance instance;
    struct msg_hello hello;
    struct msg_memory memory;     /* as it told last */
    const struct core_wish *wish; /* of its name, or NULL */
    struct msg_speed speed;       /* what it measured; no points: nothing, or not yet */
    bool answered;                /* it has said so */
    uint64_t asked_ns;            /* when it was last asked */
    struct key key; /* of its connection: what it may say for itself, others may not say for it */
    char address[LIMIT_NAME_BYTES];
    char endpoint[LIMIT_TEXT_BYTES];
    uint64_t joined_ns, heard_ns, assigned_ns;
    uint64_t moves,
        moved_ns;       /* its compute thread's counter, and when that was last seen to move */
    uint64_t passed_ns; /* when it was last heard to have finished another Step */
    uint64_t loaded_ns; /* when its load was last seen to move */
    uint64_t waited_ns, beat_ns; /* its threads' waiting for CPU, and when that was heard */
    double waiting;              /* share of the time that a thread of it waits for CPU, of late */
    struct msg_heartbeat heartbeat; /* of its generation, like the next two */
    uint64_t compute_ns, idle_ns, predicted_ns;
    uint64_t timed_steps; /* of which these are the sums */
    uint64_t load_done, load_total;
};

/* What a run of a Step must come back with. */
struct asked {
    uint64_t request;
    uint32_t attempt, sample, first_pos; /* of the first token that is wanted */
    uint32_t n_tokens;                   /* that are wanted: rows of logits */
    uint32_t n_guesses;                  /* of those rows, the last: they may be dead */
    uint32_t line;                       /* its request's, when it was issued */
    uint32_t n_top;                      /* alternatives beside each token, if logprobs */
    bool logprobs;                       /* wanted */
    bool embeds;                         /* no tokens, but an embedding */
};

struct verdict_name {
    char name[LIMIT_NAME_BYTES];
    struct instance instance; /* the process of this name that computed it last, */
    uint64_t seen_ns;         /* and when */
};

/* What a generation's probe computed, and which workers took part in such generations. */
struct verdict {
    bool used, agreed; /* agreed: by two generations that were not made of the same workers */
    bool contradicted; /* those who computed it computed another one later */
    uint64_t seen_ns;  /* when it was last computed */
    uint64_t digest;
    uint32_t n_times;  /* generations that computed it since the standing one was computed, */
    uint64_t since_ns; /* and when the first of them did */
    uint32_t n_names;  /* of the workers that computed it, at most core.n_records */
    struct verdict_name *names;
};

/* A worker process that is taken for dead, and the generation that ended with it. */
struct presumed {
    struct instance instance;
    uint32_t generation; /* 0: the entry is free */
    uint64_t since_ns;
};

struct in_flight {
    uint64_t number, issued_ns;
    struct cost_work work;
    uint32_t n_asked; /* entries of flight.asked: one for each run but a probe's */
    uint32_t prompt_rows;
    bool alone;  /* the chain was empty when it was issued, */
    bool first;  /* and nothing had run before: its stages' idle time does not count */
    bool waited; /* perhaps: the shell did not run meanwhile; nothing is learnt of its time */
};

/* A sum that forgets, and how much of it there was. */
struct pace {
    double ns, n;
};

/* A replica's Steps in flight, and what is known of how long Steps take it. The latter stays when a
 * generation ends. */
struct flight {
    struct in_flight steps[LIMIT_WINDOW]; /* the oldest first */
    uint32_t n;
    uint64_t next_number;         /* of the Step that is issued next */
    struct asked *asked;          /* window x LIMIT_STEP_RUNS, by the Steps' numbers */
    bool rested;                  /* nothing has run since the last Step came back */
    uint64_t moved_ns;            /* when the last result came: Steps wait for those before them */
    uint64_t took_ns[STEP_SIZES]; /* the slowest Step of late, by the logarithm of its rows */
    struct cost cost;             /* of a Step on the slowest stage */
    struct pace prompts;          /* rows of prompts, and what Steps with such rows took */
    double trips;                 /* round trip of a lone Step / the time of its slowest stage */
    double stages;                /* time of all stages for a Step / that of its slowest */
    uint64_t wire_ns; /* of the round trip of a lone Step: the time outside the stages */
    uint64_t wire_sum_ns, queue_sum_ns; /* of all Steps: on the network, and behind others */
};

struct replica {
    uint32_t id; /* index in core.replicas */
    char name[LIMIT_NAME_BYTES];
    enum replica_state state;
    uint32_t stages_wanted; /* workers that it is to have */
    uint32_t n_stages;      /* of its chain: fewer, if workers were missing for long */
    uint64_t short_ns;      /* while it waits: since when there are too few; 0: there are not */
    uint32_t generation;    /* number of the present or the last one; 0: there was none */
    uint32_t stage[LIMIT_STAGES]; /* worker of each stage, NO_WORKER while waiting */
    uint32_t first[LIMIT_STAGES], last[LIMIT_STAGES]; /* layers */
    bool link_up;
    bool cramped;        /* no generation begins, since its workers have too little memory */
    uint64_t began_ns;   /* when the present or last generation began; 0: none has */
    uint64_t retry_ns;   /* no generation is begun before this time */
    uint64_t pause_ns;   /* between failed beginnings; doubles */
    bool with_new;       /* the present or last generation: a worker was new at its beginning */
    uint32_t new_failed; /* such ones that failed to begin since one that served was lost */
    uint64_t served_ns;  /* up to when its workers' service was counted */
    uint64_t since_ns;   /* the state was entered, or something moved in it */
    uint64_t drained_ns; /* while draining: when it ends at the latest */
    bool replans;        /* as ordered: it is to be planned anew, or is and is not ready yet */
    uint64_t replan_limit_ns;    /* that its requests have to end then */
    uint64_t replan_since_ns;    /* the last time that it was ordered, or had a generation */
    uint32_t replan_tries;       /* generations that have begun since it was ordered */
    uint64_t waits_ns;           /* since when it is without a generation; 0: it was never asked */
    bool named;                  /* the cluster file names its workers */
    char why[LIMIT_TEXT_BYTES];  /* what it waits for */
    char lost[LIMIT_TEXT_BYTES]; /* what ended the last generation; empty once ready again */
    char told[LIMIT_TEXT_BYTES]; /* what core_status points to */
    /* ---- its KV pages ---- */
    struct pages *pages;
    uint32_t n_pages;
    uint32_t ctx;              /* positions of a sequence that this pool allows */
    uint32_t *twice, n_twice;  /* pages of the present step build that the index had already */
    struct windowed *windowed; /* NULL: no layer is windowed, as in the next two */
    uint32_t n_windowed;
    uint32_t *windowed_twice, n_windowed_twice; /* as `twice` */
    /* ---- its sequences ---- */
    uint32_t *running, n_running; /* slots, the most urgent first: by class, then arrival */
    uint32_t *queued, n_queued;   /* slots of those that wait for it, by arrival */
    uint64_t *closed;             /* ended requests whose sampling state the last stage may drop */
    uint32_t n_closed;            /* up to 2 x max_live */
    /* ---- its Steps ---- */
    struct flight flight;
    uint64_t step_build;  /* counts step builds, whether they were issued or not */
    uint32_t n_chosen;    /* decodes chosen for the present step build, and not added yet */
    uint32_t decode_from; /* index into running: whose turn it is to decode */
    uint64_t prefilled;   /* number of the last Step with rows of the most urgent prompt */
    uint64_t steps, steps_mixed;
    uint32_t sequences_max;                 /* of one Step */
    uint64_t prefix_lookups, prefix_hits;   /* requests that looked; of those, that found some */
    uint64_t tokens_saved, tokens_computed; /* of prompts: found in the index; computed */
    uint64_t preemptions;
    struct accept_stats accept; /* of the guesses of all its requests */
};

struct request {
    /* What composing looks at in all that run, each Step: side by side. */
    uint64_t chosen_in; /* step build that chose it to decode and has not come to it yet; 0: none */
    uint64_t put_in;    /* last step build that has rows of it */
    uint32_t n_prompt, n_tokens, n_guessed, max_new;
    /* Since its admission, positions of which a row was issued or was found computed; and how many
     * of them are known to hold the right token: min(n_issued, n_tokens). */
    uint32_t n_issued, n_right;
    bool used, ignore_eos;
    bool open_ended; /* max_new is what contexts allow: less than was asked for */
    bool embed; /* its embedding is wanted: each row is computed for it, no page is shared, and it
                   has all its pages from its admission on */
    bool running;
    bool drafts;             /* tokens are guessed for it */
    struct replica *replica; /* in which it runs, or in whose queue it is; NULL: it waits for one */
    /* The prompt, then what was generated, then guesses up to n_guessed; room for n_prompt +
     * max_new. */
    int32_t *tokens;
    uint32_t *pages; /* room for all it can ever need */
    uint32_t n_pages;
    uint32_t *windowed; /* likewise, held from first_windowed on; NULL: no layer is windowed */
    uint32_t first_windowed;
    uint32_t n_ahead;   /* of its pages, the last ones: reserved, and without a windowed page yet */
    uint32_t n_walked;  /* of its pages that are in the index, */
    struct prefix walk; /* and along them */
    uint32_t n_found;   /* positions found computed before its first token */
    /* ---- its life ---- */
    uint64_t routed_ns;         /* when it was sent to its replica, or last looked at again */
    uint32_t due;               /* rows of its prompt that count as waiting there */
    struct index_node *promise; /* that it will compute its prompt there, or NULL */
    struct replica *opened;     /* whose last stage has its sampling parameters, or NULL */
    bool looked;                /* it was counted among the look-ups for prefixes */
    enum priority asked, class; /* class: in which it runs, fixed when it is admitted */
    uint64_t waited_ns;         /* in the queue, before this time */
    uint64_t arrival;           /* order of arrival, at its replica if it was moved there */
    uint64_t id, client, tenant, deadline_ns;
    uint64_t wait_since_ns;          /* for a replica */
    uint64_t queued_ns;              /* since when it is in the queue */
    uint64_t submitted_ns, begun_ns; /* begun: its first row was issued */
    uint32_t attempt;                /* 1 and one more for each lost generation that it ran in */
    uint32_t suspected;              /* lost generations in whose lost Steps it was since its last
                                        token, */
    uint32_t suspected_in[SUSPECTED_MAX]; /* which ones */
    uint32_t sample;
    struct sampling sampling;
    struct blob *grammar; /* of the answer, or NULL */
    /* ---- its guesses (speculate.c) ---- */
    uint32_t line;         /* counts how often guesses were given up */
    bool anchored;         /* in this line a known row was issued that wants logits */
    uint64_t ask;          /* serial of the ask that has no answer yet; 0: none */
    uint64_t asked_ns;     /* when, */
    uint64_t asked_step;   /* and the number of the Step that came next */
    bool dry;              /* the last answer brought nothing new, and no token has come since */
    bool was_dry;          /* the last answer brought nothing new */
    uint32_t run;          /* guesses of its next run; 0: speculation loses */
    uint32_t rest;         /* tokens until it is looked at again, while it does */
    struct length length;  /* of its drafts */
    struct gain_rate rate; /* of guesses that were right, issued or not */
    struct accept_stats accept;
    uint64_t spoke_ns; /* when its last token came; 0: none has since its admission */
};

struct core {
    struct core_config cfg;
    char model_path[LIMIT_PATH_BYTES], results_endpoint[LIMIT_TEXT_BYTES];
    int32_t *eog;
    uint64_t *layer_bytes, *layer_work;
    bool *layer_windowed;
    uint32_t *chains, *given;
    struct core_wish *wishes;
    uint64_t now_ns;
    struct worker *workers; /* cfg.max_workers */
    struct record *records; /* n_records: more than there are workers */
    uint32_t n_records;
    struct instance *leaving; /* those that were last ordered to leave: a ring of cfg.max_workers */
    uint64_t n_leaving;       /* orders in all */
    struct presumed *dead;    /* the latest, in turn: n_dead_most */
    uint32_t n_dead_most;
    struct imap dead_by;            /* to entries of `dead`, by a hash of the instance */
    struct plan_worker *candidates; /* of the plan that is being made: max_workers */
    struct msg_run *build_runs;     /* of the Step that is being composed: LIMIT_STEP_RUNS */
    uint64_t held_until_ns;         /* until then a name may be held down */
    uint32_t n_dead;                /* ever */
    struct verdict verdicts[VERDICTS];
    uint32_t standing;        /* the verdict that generations are held to, or VERDICTS: none yet */
    uint32_t n_erratic;       /* generations whose workers had computed another digest before */
    struct replica *replicas; /* cfg.n_replicas */
    bool *full;               /* of each: as many Steps are in flight as there may be */
    uint32_t ctx;         /* positions of the longest sequence that a pool allows, or may allow */
    uint32_t pool_ctx;    /* of the pools that there are; 0: none yet */
    struct index *index;  /* which of them holds which prefix */
    uint32_t generations; /* begun, of all replicas: no two have one number, since a worker that
                             served one replica takes only newer generations of another */
    uint64_t settled_ns;  /* until then the first plan waits for all workers; 0: none was due */
    struct request *requests; /* max_live slots */
    uint32_t *free_slots, n_free_slots;
    uint32_t *queued, n_queued; /* slots of those that wait for a replica, by arrival */
    uint32_t n_waiting;         /* requests in the queues of all replicas */
    uint32_t n_trials;          /* live requests that are on trial */
    uint32_t n_constrained;     /* live requests with a grammar */
    uint32_t n_embeds;          /* and those that want an embedding */
    /* ---- routing ---- */
    struct route_load *loads; /* of each replica, */
    double *columns;          /* and what route_note makes of them */
    uint32_t *held;           /* of each replica: pages of the prompt that is being routed, */
    double *costs;            /* what route.c makes of it, */
    uint32_t *alike;          /* and of that */
    uint32_t turn;            /* ROUTE_ROUND_ROBIN */
    double work_unit;         /* of a row that is given now, in loads[].work, */
    double work_all;          /* and the sum of those */
    uint32_t balance_from;    /* the replica whose turn it is to be given a request that waits */
    uint32_t looked;          /* at so many requests that wait, since the last tick */
    uint32_t again_from;      /* the replica with which the next tick begins to look again */
    struct pace prompts;      /* as of a replica, of all */
    struct pace answers;      /* ended requests, and what Steps without prompts took */
    /* ---- speculation ---- */
    uint64_t asks;         /* serial of the last */
    struct gain_rate rate; /* as of a request, of all */
    struct pace waits;     /* of drafts: until they were begun, */
    struct pace takes;     /* and then, for each token; n counts those */
    uint64_t arrivals;
    struct imap by_id;
    struct imap n_live;                /* requests of each client that has any */
    struct msg_replica_status *status; /* n_replicas: what core_status points to, */
    struct msg_worker_status *staff;   /* n_replicas x n_stages: and what those point to */
    struct msg_worker_status *spares;  /* likewise, at most LIMIT_SPARES */
    uint64_t dropped; /* messages of no generation, results not in flight, Hellos without room */
    struct action *actions;
    size_t n_actions, cap_actions;
    struct arena arena; /* of the present step: what actions point to */
};

/* core.c */
/* Whether any replica takes requests. */
bool core__ready(const struct core *c);
/* Why there is no replica, for a client: what is waited for, and what was lost. */
const char *core__no_replica(struct core *c);
struct action *core__act(struct core *c, enum action_type type);
void core__note(struct core *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A note that something was lost. */
void core__note_loss(struct core *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *core__alloc(struct core *c, size_t bytes);
/* "replica a: ", for the log where there are several; else "". */
const char *core__of_replica(struct core *c, const struct replica *r);
/* Text that lives until the next step. */
const char *core__text(struct core *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* requests.c */
void request__submit(struct core *c, const struct event *e);
void request__end(struct core *c, struct request *r, enum status status, enum finish_reason reason,
                  const char *text);
/* It is admitted here; wherever else it ran before may forget it. */
void request__move_in(struct core *c, struct request *r, struct replica *rep);
void request__results(struct core *c, const struct msg_result *m);
void request__by_id(struct core *c, uint64_t id, enum status status, enum finish_reason reason,
                    const char *text);
void request__tick(struct core *c);
/* A replica's generation is over: sends the requests that may be replayed to other replicas, or
 * lets them wait for one, and ends the others. suspicious: a request in its Steps in flight may be
 * what ended it. */
void request__generation_lost(struct core *c, struct replica *rep, bool suspicious,
                              const char *why);
/* That generation did not end with a worker's death: no request is suspected of it any more. */
void request__pardon(struct core *c, uint32_t generation);
/* Whether a request was in flight at so many lost generations that it must show, without others
 * like it, that it is not what ends them. */
bool request__on_trial(const struct request *r);
/* NULL: it has ended. */
struct request *request__find(struct core *c, uint64_t id);
/* Whether the token ends an answer, unless the request ignores that. */
bool request__is_end(const struct core *c, int32_t token);

/* fleet.c */
struct worker *fleet__find(struct core *c, struct instance instance);
/* Takes a Hello: the worker's entry, or NULL where the table has no room for it. */
struct worker *fleet__hello(struct core *c, const struct msg_from_worker *m, const char *address,
                            const struct key *key);
void fleet__heartbeat(struct core *c, struct worker *w, const struct msg_from_worker *m);
/* Gives up workers that are silent for too long. lost_ns: time in which the shell did not run. */
void fleet__tick(struct core *c, uint64_t lost_ns);
/* A certain fault of a worker. `why` is copied. */
void fleet__blame(struct core *c, struct worker *w, const char *why);
/* The same, of a worker that may be gone. */
void fleet__blame_name(struct core *c, const char *name, bool certain, const char *why);
/* A worker that has a stage seems to have died, and its generation with it. */
void fleet__presume_dead(struct core *c, const struct worker *w);
/* A worker process has spoken: if it was taken for dead, it was not, and no request has killed it.
 */
void fleet__spoke(struct core *c, struct instance instance);
/* The link from one worker to the next failed: either may be to blame. */
void fleet__doubt(struct core *c, struct worker *from, struct worker *to, const char *why);
/* A replica's workers became ready, or served up to now. */
void fleet__ready(struct core *c, struct replica *r);
void fleet__served(struct core *c, struct replica *r);
/* Workers that are known. */
uint32_t fleet__n_known(const struct core *c);
/* What a stage of it has of memory, as far as its worker and the cluster file tell; its layers are
 * not filled in. */
struct room_stage fleet__memory(const struct worker *w);
/* Threads that it may use. */
uint32_t fleet__threads(const struct worker *w);
/* Whether there is no use in waiting for what it measures: it has told, or takes too long. */
bool fleet__is_measured(const struct core *c, const struct worker *w);
void fleet__speed(struct core *c, struct worker *w, const struct msg_from_worker *m);
/* Whether a worker is a spare that may be planned with now. */
bool fleet__may_serve(const struct core *c, const struct worker *w);
/* How good it is to plan that replica with the worker: the lower, the better. */
uint32_t fleet__rank(const struct core *c, const struct replica *r, const struct worker *w);
/* Whether the chain of a generation that is about to begin has a worker that came since the last
 * one began. */
bool fleet__any_new(const struct core *c, const struct replica *r);
/* Its workers are spares again. */
void fleet__dismiss(struct core *c, struct replica *r);
/* Which workers are held down; and why, unless that is `told`, which the reader is told anyway. ""
 * if none is. */
void fleet__held(const struct core *c, const char *told, char *ret, size_t size);
/* Moves a moment later by time in which the shell did not run, but never past now. */
void fleet__forgive(const struct core *c, uint64_t *since_ns, uint64_t lost_ns);

/* orders.c */
/* Answers the order, and carries out what can be done at once. Requests that run where they must
 * not go on running have limit_ns to end. */
void order__drain(struct core *c, const char *worker, uint64_t limit_ns);
void order__rebalance(struct core *c, const char *replica, uint64_t limit_ns);
/* Whether this very process was ordered to leave, though it may have been lost since. */
bool order__leaves(const struct core *c, struct instance instance);
/* Goes on with what was ordered. */
void order__tick(struct core *c);

/* verdict.c */
/* The probe of a replica's present generation computed this digest. NULL: it may serve; otherwise
 * why not, with the workers named and blamed. */
const char *verdict__probe(struct core *c, const struct replica *r, uint64_t digest);

/* planner.c */
/* What layers first..last are for the worker, by which its Steps' times are predicted. */
struct speed_stage planner__stage(const struct core *c, const struct worker *w, uint32_t first,
                                  uint32_t last);

/* replica.c */
void replica__open(struct core *c, struct replica *r, uint32_t id);
void replica__close(struct replica *r);
void replica__from_worker(struct core *c, const struct msg_from_worker *m, const char *address,
                          const struct key *key);
void replica__link(struct core *c, struct epoch epoch, bool up);
void replica__tick(struct core *c, uint64_t lost_ns);
struct worker *replica__at(struct core *c, const struct replica *r, uint32_t stage);
struct epoch replica__epoch(const struct core *c, const struct replica *r);
/* The replica whose present or last generation has this epoch, or NULL. */
struct replica *replica__of(struct core *c, struct epoch epoch);
/* Ends the generation, if there is one. suspicious: as in request__generation_lost. */
void replica__lose(struct core *c, struct replica *r, bool suspicious, const char *why);
/* Ends the generation in order: nobody is to blame, and the next one may begin at once. */
void replica__end(struct core *c, struct replica *r, const char *why);
/* It takes no more requests, and those that wait for it go elsewhere if they can. Those that are
 * left have limit_ns to end; where it drains already, the earlier limit counts. */
void replica__drain(struct core *c, struct replica *r, uint64_t limit_ns, const char *why);
/* A message for a worker that concerns no generation. */
struct msg_to_worker *replica__to_worker(struct core *c, struct instance instance,
                                         enum to_worker type);
/* A worker that has a stage is to blame, and nobody else: ends its generation. */
void replica__lose_to(struct core *c, struct worker *w, const char *why);
/* The link into a stage (n_stages: into the coordinator) failed: blames, and ends the generation.
 * broke: it closed, as it also does when the process behind it dies, so requests are suspects. If
 * not, what was sent did not arrive, and both ends live: no request can be the cause. */
void replica__link_failed(struct core *c, struct replica *r, uint32_t stage, bool broke,
                          const char *why);
/* The probe of a generation has come back with this digest of its logits. */
void replica__probed(struct core *c, struct replica *r, uint64_t digest);

/* The planned stages of a replica, which has no generation, begin one. */
void replica__begin(struct core *c, struct replica *r);

/* planner.c */
/* Begins a generation of each replica that is without one, as far as there are workers. */
void planner__begin(struct core *c);
/* Whether a replica that serves would be made of other workers, or of more, if it were planned now.
 */
bool planner__gains(struct core *c, const struct replica *r);
/* Spares that it may be planned with now. */
uint32_t planner__n_spares(const struct core *c, const struct replica *r);

/* flight.c */
/* Takes a result's Step out of flight. False: nothing in it counts for requests: it is a probe's,
 * is not that of the next Step in flight, or is not what was asked for. *ret_awaited: it is right,
 * be it a probe's. */
bool flight__result(struct core *c, const struct msg_result *m, const struct key *key,
                    bool *ret_awaited);
/* A Step is on its way: it is the next one by its number, and the window has room for it. */
void flight__add(struct core *c, struct replica *r, const struct msg_step *step,
                 struct cost_work work);
/* What the result of a Step in flight must hold, one for each of its runs but a probe's; kept until
 * a Step with a number one window higher is added. */
struct asked *flight__asked(const struct core *c, const struct flight *f, uint64_t number);
/* A new generation: nothing is in flight, and Steps are numbered from 1. */
void flight__begin(struct flight *f);
/* The generation is over: nothing is in flight. */
void flight__end(struct core *c, struct replica *r);
void flight__check_overdue(struct core *c, struct replica *r);
/* The shell did not run for a while, and results may have waited for it. */
void flight__late(struct flight *f);
/* Time in which the shell did not run counts for no Step. */
void flight__forgive(const struct core *c, struct flight *f, uint64_t lost_ns);

/* room.c */
/* Chooses the pool's size for the planned stages. False: too little fits, and nobody is planned. */
bool room__plan(struct core *c, struct replica *r);
/* A new pool of so many pages, all free, with the windowed pages that go with them, and the context
 * that it allows. */
void room__set_pages(struct core *c, struct replica *r, uint32_t n_pages);
void room__drop_pages(struct replica *r);
/* Of a request with n tokens whose answer may be as long as a context holds: how many positions it
 * has. Where replicas differ it is the shortest context that holds n, so that any of them can take
 * the request; those with less than half of the longest do not count. Replicas that serve come
 * before others. */
uint32_t room__open_ctx(const struct core *c, uint32_t n);
/* The longest context of a pool that there is, serving or not, where it holds more than n tokens;
 * else what may still come. */
uint32_t room__known_ctx(const struct core *c, uint32_t n);
/* Whether a replica that serves has room for more than n tokens of a sequence. */
bool room__some_serve(const struct core *c, uint32_t n);

/* sched.c */
void sched__compose(struct core *c, struct replica *rep);
void sched__probe(struct core *c, struct replica *rep);
/* Rows of r that may be issued now without a guess: those of its known tokens. */
uint32_t sched__rows_due(const struct request *r);
/* Whether it has computed its prompt, and has no more than one such row. */
bool sched__decoding(const struct request *r);
/* Its guesses were confirmed: whole pages that hold none any more may be shared. It runs. */
void sched__enter_pages(struct core *c, struct request *r);
/* Steps that must be in flight to keep every stage busy. */
uint32_t sched__steps_wanted(const struct core *c, const struct replica *rep);

/* router.c */
/* Sends a request that does not run to a replica, if one can take it. */
void router__send(struct core *c, struct request *r);
/* The same of all that wait for one, by arrival: a replica has become ready, or one was lost. */
void router__send_all(struct core *c);
/* A replica takes requests from now on, or takes none. */
void router__ready(struct core *c, const struct replica *rep);
void router__lost(struct core *c, const struct replica *rep);
/* So many rows of the request's prompt wait at its replica. */
void router__due(struct core *c, struct request *r, uint32_t rows);
/* The request is with this replica (NULL: with none) from now on. */
void router__set(struct core *c, struct request *r, struct replica *rep);
/* Before Steps are composed: moves requests that wait for a place to replicas that have less to
 * do. */
void router__balance(struct core *c);
/* Looks again for requests that have waited: another replica may serve them sooner. */
void router__tick(struct core *c);
/* A Step took so long on a replica's slowest stage; a request ended. */
void router__learn(struct core *c, struct replica *rep, const struct in_flight *step,
                   uint64_t took_ns);
void router__ended(struct core *c);

/* speculate.c */
/* The most guesses of a request beyond its known tokens, in flight or not. */
#define GUESSES_MAX 512u
void spec__submit(const struct core *c, struct request *r, const struct event *e);
/* Gives up the request's guesses: only what is in flight of known tokens still counts. */
void spec__drop(struct request *r);
/* The token at the request's next position is known; guesses that it refutes are given up. */
void spec__token(struct core *c, struct request *r, int32_t token);
void spec__answer(struct core *c, const struct event *e);
/* Before Steps are composed: asks for the guesses that a replica's requests lack. */
void spec__ask(struct core *c, struct replica *rep);
/* Whether the row of the request's last known token is to wait for guesses that are on their way.
 */
bool spec__waits(const struct core *c, const struct request *r);
/* Whether what a result's run says fits the guesses that its request still has. */
bool spec__agrees(struct core *c, const struct asked *a, const struct msg_run_result *x);
/* A run with guesses has come back to rep; its tokens are not taken yet. r: NULL where its request
 * has ended. */
void spec__verified(struct core *c, struct replica *rep, struct request *r, const struct asked *a,
                    const struct msg_run_result *x);
/* Tokens of a run were taken, and the request lives on: how long it was to them. */
void spec__spoke(struct core *c, struct replica *rep, struct request *r, uint32_t n_tokens);

/* queue.c */
/* Into the queue of its replica, or of those that wait for one; out of it, or of the running ones.
 */
void queue__enter(struct core *c, struct request *r);
void queue__leave(struct core *c, struct request *r);
/* From its queue into another replica's (NULL: into that of those that wait for one). Who comes
 * from another replica comes last of its class, so that it takes nothing from those that run there.
 */
void queue__move(struct core *c, struct request *r, struct replica *to);
/* Gives all its pages back. */
void queue__release(struct request *r);
/* Out of the running ones and back into its replica's queue, without pages: it is computed again
 * later. */
void queue__again(struct core *c, struct request *r);
/* Admits to a replica the requests that may run there now, in order of urgency. */
void queue__admit(struct core *c, struct replica *rep);
/* One more page in the tables of r, which runs; if need be, a less urgent running request is
 * preempted for it, unless it has rows in the present step build. False: there is none. */
bool queue__page(struct core *c, struct request *r);

/* table.c: the page tables of a request that runs */
/* One more page of each kind, if there is one. */
bool table__grow(struct request *r);
/* The last pages go back. */
void table__shrink(struct request *r);
/* Takes all pages that a request without guesses ever needs for its known tokens, whose pages are
 * its own alone. False: there are not enough; it goes on from here when it is called again. */
bool table__reserve(const struct core *c, struct request *r);
/* Windowed pages that none of its rows to come reads go back. It has no rows in the present step
 * build yet. */
void table__slide(const struct core *c, struct request *r);
/* It holds nothing behind the pages that it has walked, which are all computed. Walks on over those
 * that the replica has computed in earlier Steps, as far as its rows may begin behind them, and
 * never over the one of its last token; returns how many these were. *ret_found: whether the next
 * one is being computed in Step `step`. */
uint32_t table__walk(const struct core *c, struct request *r, uint64_t step,
                     enum pages_found *ret_found);
/* Over how many pages such a walk goes, where the replica holds the first n_held of those that were
 * found, as far as can be foretold: pages that it is only promised will have all that they need. */
uint32_t table__usable(const struct core *c, const struct replica *rep, struct index_found found,
                       uint32_t n_held);
/* Full pages whose rows are all issued, and with the right tokens, may be shared from the Step
 * after `step` on. */
void table__enter(const struct core *c, struct request *r, uint64_t step);
/* Lets go of the pages whose prefix the index had already, once the Step is composed: its rows
 * still go there. */
void table__drop_twice(struct replica *rep);

#endif
