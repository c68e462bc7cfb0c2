/* The simulated world's state. Private to sim/. */
#ifndef FLOTILLA_SIM_WORLD_H
#define FLOTILLA_SIM_WORLD_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/rng.h"
#include "coordinator/core/core.h"
#include "coordinator/sim/sim.h"
#include "proto/gate.h"

#define WORLD_REPLICAS 3u /* at the most */
#define WORLD_STAGES 4u
#define WORLD_WORKERS (WORLD_REPLICAS * WORLD_STAGES + 2u)
#define WORLD_REQUESTS 48u
#define WORLD_WITNESSES 6u /* requests that are made when all others have ended */
#define WORLD_TENANTS 2u
#define WORLD_PAGES_MAX 64u
#define WORLD_TOKENS_MAX 256u /* of a sequence */
#define WORLD_VOCAB 1000u
#define WORLD_WIDTH 64u /* of the residual stream, and so numbers of an embedding */
#define WORLD_EOG 7
#define WORLD_INBOX 256u
#define WORLD_FAMILIES 4u /* of prompts that begin alike */
#define WORLD_BLOCKS 3u   /* of which those are made */
#define WORLD_GONE 16u    /* instances that said goodbye, as remembered */

/* What is scheduled to happen. */
enum happening {
    HAPPEN_TO_CORE,   /* a control message arrives */
    HAPPEN_TO_WORKER, /* the same, the other way */
    HAPPEN_STEP,      /* a Step arrives at a worker */
    HAPPEN_RESULT,
    HAPPEN_STAGE_DONE, /* a worker has finished what it computes */
    HAPPEN_LOADED,
    HAPPEN_LINK, /* the coordinator's link is up or lost */
    HAPPEN_HEARTBEAT,
    HAPPEN_TICK,
    HAPPEN_SUBMIT,
    HAPPEN_CANCEL,
    HAPPEN_STOP_STRING,
    HAPPEN_DRAFT,    /* guesses arrive */
    HAPPEN_FAULT,    /* something breaks */
    HAPPEN_RESTART,  /* a killed worker comes back */
    HAPPEN_CONTINUE, /* a stopped one goes on */
    HAPPEN_STRANGER, /* somebody says Hello and nothing more */
    HAPPEN_FORGED,   /* a message that no stage of the generation sent */
    HAPPEN_REPAIR,   /* faults are over: what is broken for good is mended */
};

/* What can break. */
enum fault {
    FAULT_KILL,
    FAULT_STOP,
    FAULT_CUT,       /* a data link between stages swallows everything, heartbeats go on */
    FAULT_CUT_LINK,  /* the same of the coordinator's link */
    FAULT_DEAF,      /* a control connection breaks and is made anew */
    FAULT_DEAF_UP,   /* it is half open: what the worker says is lost, */
    FAULT_DEAF_DOWN, /* or what it is told */
    FAULT_STALL,     /* the coordinator does not run for a while */
    FAULT_BLOCK,     /* a socket takes nothing for a while: what is sent waits */
    FAULT_GOODBYE,
    FAULT_HANG,        /* a compute thread stands still, heartbeats go on */
    FAULT_LOAD,        /* a worker cannot load */
    FAULT_UNREACHABLE, /* no link to it comes up */
    FAULT_LIE,         /* the next result is not what was asked for */
    FAULT_ERROR,       /* the next result has an error for one of its runs */
    FAULT_FORGE,
    FAULT_BABBLE,    /* a stage says what is in order on the wire, and makes no sense */
    FAULT_DAMAGE,    /* a worker computes wrong logits, as its next probe shows */
    FAULT_NEW_CORE,  /* the coordinator is killed and started again */
    FAULT_DRAIN,     /* no fault: an admin has a worker leave, */
    FAULT_REBALANCE, /* or replicas planned anew */
    N_FAULTS
};

/* What is wrong with a result on its way. */
enum lie {
    LIE_NONE,
    LIE_DEAD,
    LIE_LATE_POSITION,
    LIE_EARLY_POSITION,
    LIE_ATTEMPT,
    LIE_REQUEST,
    LIE_MORE_TOKENS,
    LIE_TOKEN,
    LIE_FEWER,
    LIE_CUT_SHORT,
    LIE_EMBEDDING,
    N_LIES,
    LIE_ERROR
};

struct occurrence {
    uint64_t at_ns, order; /* ties in the order of scheduling */
    enum happening what;
    uint32_t who;       /* worker or request */
    uint64_t life;      /* of the worker: what was meant for an earlier one is lost with it */
    uint64_t core_life; /* of the coordinator, likewise */
    struct epoch epoch;
    bool up;
    enum lie lie;  /* a result's, */
    uint64_t lied; /* and the request that it is told of */
    struct msg_from_worker *from;
    struct msg_to_worker *to;
    struct buf bytes; /* a Step or a result as on the wire; a drafter's answer */
};

/* What a stage was fed of a request: the tags of its rows' tokens up to each position, guesses
 * among them; and, on the last one, what it chose after the last live row, and where. */
struct world_chain {
    uint64_t tags[WORLD_TOKENS_MAX];
    uint32_t next;
    int32_t chosen;
};

/* Of the rows of a prompt whose embedding is wanted: what they come to, and which is the next. */
struct world_sum {
    uint64_t value;
    uint32_t next;
};

/* What lies in the pages of a pool, by position. */
struct world_shadow {
    uint64_t tags[WORLD_PAGES_MAX * LIMIT_PAGE];
    uint64_t wrote_in[WORLD_PAGES_MAX * LIMIT_PAGE]; /* number of the Step, */
    uint64_t wrote_by[WORLD_PAGES_MAX * LIMIT_PAGE]; /* and the request */
};

struct world_worker {
    bool alive, stopped, busy, loaded;
    bool hung, unreachable, unloadable, damaged, slow; /* broken until it is mended */
    bool greeted, leaves; /* the core took its Hello; an admin has ordered it to leave since */
    uint32_t loads_left;  /* signs of progress until what it loads is there */
    uint64_t layer_ns;    /* what it says that a layer takes it */
    char name[LIMIT_NAME_BYTES];
    uint64_t life; /* counts restarts */
    struct instance instance;
    struct gate gate;
    struct msg_assign assign;
    uint64_t ran;         /* number of the last Step run in the present epoch, by our count */
    int downstream;       /* worker, -1: results, -2: none */
    bool cut;             /* its outgoing data link swallows everything */
    uint64_t continue_ns; /* when a stopped one goes on */
    uint64_t deaf_up_ns, deaf_down_ns; /* until then what it says, or is told, is lost */
    struct msg_from_worker standing;   /* Ready or Linked, said again with each heartbeat */
    bool stands;
    bool open[WORLD_REQUESTS +
              WORLD_WITNESSES];          /* requests whose parameters it has, as the last stage */
    struct world_shadow whole, windowed; /* its pools */
    struct msg_open
        told[WORLD_REQUESTS + WORLD_WITNESSES]; /* their parameters, as the last stage */
    struct world_chain chains[WORLD_REQUESTS + WORLD_WITNESSES];
    struct world_sum sums[WORLD_REQUESTS + WORLD_WITNESSES];
    struct buf inbox[WORLD_INBOX]; /* Steps that wait, a ring */
    uint32_t inbox_at, inbox_n;
    struct buf outgoing; /* what it will hand on when done */
    bool outgoing_result;
    enum lie lie, next_lie; /* in what is going out, and in the next result */
    uint64_t lied;
    uint64_t last_out_ns; /* a link keeps its order */
    uint64_t last_control_ns;
    struct msg_heartbeat heartbeat;
    uint64_t moves;
};

struct world_request {
    bool made, submitted, ended;   /* made: its prompt and its answer are known */
    bool witness, ignore_eos, eog; /* eog: the answer ends with an end token */
    bool embed, embedded;          /* its embedding is wanted, and no token; it was handed out */
    uint64_t id, seed, client, tenant, deadline_at_ns, submitted_ns;
    enum priority class;
    struct sampling sampling;
    uint32_t sample;
    uint32_t n_prompt, max_new, n_received;
    uint32_t n_tokens;                /* prompt and what was delivered */
    int32_t tokens[WORLD_TOKENS_MAX]; /* the oracle's: all that can ever be generated */
    uint64_t tags[WORLD_TOKENS_MAX];
    uint32_t n_oracle; /* tokens until the limit or the end token (not included) */
    bool stopped_by_us, cancelled;
    enum status status; /* once ended */
    bool erred;         /* an error was told of it */
    /* What the core should know of it, by our own count. */
    bool running, was_running;              /* now, and before the present event */
    bool told[WORLD_REPLICAS];              /* the last stage has its parameters */
    bool in_step;                           /* rows of it were issued in the present event */
    bool was_ended;                         /* before the present event */
    enum priority admitted;                 /* the class it runs in */
    uint64_t waited_ns, queued_ns, arrival; /* waited: in the queue, before queued_ns */
    uint64_t begun_ns;                      /* its first row was issued; 0: none was */
    uint32_t replica;                       /* in which it runs, or ran last, */
    uint32_t with;                          /* in which it runs or waits, or CORE_NO_REPLICA */
    uint64_t core_arrival;                  /* as the core told last */
    uint64_t drained_ns;                    /* when it was with a replica last, as none was ready */
    uint64_t last_step;                     /* that has rows of it, in this generation; 0: none */
    uint32_t lost;                          /* generations */
    uint32_t lost_in_flight; /* those in whose lost Steps it was, since its last token */
    uint32_t issued;         /* end of its last run in this generation, */
    uint32_t right;          /* and positions known to be right there, as the core told last */
    uint64_t fed[WORLD_TOKENS_MAX]; /* tags of the rows issued, guesses among them */
    bool drafts;
    uint64_t preemptions; /* of anybody, before the event in which that was issued */
};

/* What the core has had written, as its Steps say: reset with each generation. */
struct world_page {
    uint64_t tags[LIMIT_PAGE], tenant; /* of whom its rows are */
    uint64_t wrote_in;                 /* the last Step that writes it, */
    uint64_t wrote_by;                 /* for which request, */
    uint32_t end;                      /* and the position behind its last row */
    uint64_t serial, sealed_in;        /* of the entry it was seen as, and wrote_in then; */
    uint64_t attached_in;              /* of a windowed page: and the Step that attached it */
};

/* A replica's most urgent sequence, and how long it has stood still. */
struct world_first {
    uint64_t request;
    uint32_t n_issued, n_tokens;
    uint32_t steps;
};

/* What the network and the checks know of a replica. */
struct world_replica {
    bool link_open, link_cut; /* of the coordinator's link to its first stage */
    uint32_t link_worker;
    struct epoch link_epoch;
    uint64_t last_link_ns; /* the link keeps its order */
    struct world_page pages[WORLD_PAGES_MAX], windowed[WORLD_PAGES_MAX];
    struct world_first first;
    uint32_t steps_now;                 /* issued in the present event */
    uint64_t flight_first, flight_next; /* numbers of the Steps in flight, by our count */
    struct epoch flight_epoch;
    uint64_t result_step; /* the Step whose result is being taken; 0: none */
    bool was_ready;       /* before the core's present event, as the next two */
    bool was_draining, was_rebalancing;
    uint32_t was_generation;
    uint64_t drains_until_ns; /* at the latest, if it drains */
    bool probe_wrong;         /* its last probe went through a damaged worker */
    uint64_t idle_ns; /* since when nothing is done although something is due; 0: it is done */
};

struct world {
    struct rng rng;
    struct rng draft_rng;  /* of its own, so that worlds without drafts draw what they always did */
    struct rng embed_rng;  /* likewise, of which requests want embeddings */
    struct rng window_rng; /* likewise */
    struct rng turn_rng;   /* likewise */
    struct sim_report *report;
    struct core *core;
    struct core_config cfg;
    uint32_t chains[WORLD_REPLICAS]; /* what cfg.chains points to */
    uint64_t now_ns, order, faults_end_ns, end_ns;
    struct occurrence *heap;
    uint32_t n_heap, cap_heap;
    struct world_worker workers[WORLD_WORKERS];
    uint32_t n_workers;
    struct world_request requests[WORLD_REQUESTS + WORLD_WITNESSES];
    uint32_t n_requests, n_witnesses;
    uint64_t arrivals;
    struct world_replica replicas[WORLD_REPLICAS];
    uint64_t next_life, stalled_until_ns, next_tick_ns;
    struct arena arena;
    struct buf folded; /* an action as on the wire, for the digest */
    uint64_t row_ns;   /* a stage's time for a row */
    int32_t blocks[WORLD_BLOCKS][LIMIT_PAGE];
    uint8_t families[WORLD_FAMILIES][WORLD_TOKENS_MAX / LIMIT_PAGE]; /* numbers of blocks */
    uint64_t preemptions;                                            /* before the present event */
    uint64_t core_life;     /* counts the coordinator's restarts */
    uint32_t faults;        /* bit by enum fault: those that this world has */
    uint32_t draft_right;   /* per cent of the guesses */
    uint64_t draft_most_ns; /* that an answer takes */
    bool unverified;        /* no worker can tell which guesses are right */
    int cripple;            /* worker that is broken for good, -1: none */
    bool in_turns;          /* the core composes after several events at a time */
    bool late;              /* it was told that it did not run, since the last tick */
    bool faultless;         /* nothing breaks in this world: no generation may be lost */
    bool slow;              /* faultless, but for a worker that is slow and computes */
    bool long_load;         /* loading takes minutes, and moves */
    bool was_ready;         /* any of them, before the core's present event */
    bool ever_ready;        /* since the coordinator's start */
    uint32_t n_lost_now;    /* generations that ended in the present event */
    uint64_t ready_ns;      /* when one was ready last, or might not be */
    uint64_t hung_ns;       /* a hung stage has a Step since; 0: none has, of a ready generation */
    uint64_t unready_ns;    /* since when no replica is ready */
    struct instance gone[WORLD_GONE];
    uint32_t n_gone;
    uint32_t n_tokens_now; /* handed out in the present event */
    bool ordering;         /* the present event is an admin's order, */
    uint32_t answered;     /* which has so many answers, */
    enum status answer;    /* the last with this status */
    uint64_t order_ns;     /* when the last one was given, */
    uint64_t limit_ns;     /* and how long running requests have then */
    bool failed, done;
};

/* world.c */
struct occurrence *world__schedule(struct world *w, uint64_t in_ns, enum happening what);
void world__core(struct world *w, struct event *e);
void world__fail(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t world__latency(struct world *w);
/* Whether faults may still happen. */
bool world__faulty(const struct world *w);
/* A new coordinator process in place of the one before: nothing of its memory is left. */
void world__new_core(struct world *w);
bool world__ready(const struct world *w);
/* Whether the core's status has the worker, or a dead predecessor of it. */
bool world__knows(const struct world *w, uint32_t who);
/* One of the replicas, drawn. */
struct world_replica *world__some_replica(struct world *w);

/* faults.c */
void fault__plan(struct world *w);
void fault__break(struct world *w);
void fault__repair(struct world *w);
void fault__stranger(struct world *w);
/* A worker that ended is started again, after a while. */
void fault__restart_later(struct world *w, uint32_t who);
void fault__forge(struct world *w);
/* Turns a true result into a lie; returns the request that it is told of, 0: there is none. */
uint64_t fault__lie(struct world *w, enum lie *lie, struct msg_result *m,
                    struct msg_run_result *runs);

/* admin.c */
void admin__drain(struct world *w);
void admin__rebalance(struct world *w);
/* The core gives a worker a stage. */
void admin__assigned(struct world *w, struct instance to);
/* After every event. */
void admin__state(struct world *w, const struct msg_status *s);

/* clients.c */
void client__submit(struct world *w, uint32_t idx);
/* EV_CANCEL or EV_STOP. */
void client__end(struct world *w, uint32_t idx, enum event_type type);
/* The coordinator is another: whoever waits for an answer asks again. */
void client__reconnect(struct world *w);
/* Once all is over and has ended: what is asked now must be answered. Ends the world. */
void client__witness(struct world *w);

/* stages.c: workers */
void stage__message(struct world *w, uint32_t who, const struct msg_to_worker *m);
void stage__loaded(struct world *w, uint32_t who, struct epoch epoch);
void stage__step(struct world *w, uint32_t who, struct buf *bytes);
void stage__done(struct world *w, uint32_t who);
void stage__next(struct world *w, uint32_t who);
void stage__heartbeat(struct world *w, uint32_t who);
void stage__start(struct world *w, uint32_t who);
void stage__kill(struct world *w, uint32_t who);
void stage__goodbye(struct world *w, uint32_t who);
/* Something that makes no sense, in its right generation. */
void stage__babble(struct world *w, uint32_t who);

/* drafts.c: the drafter */
void draft__plan(struct world *w);
void draft__asked(struct world *w, const struct action *a);
void draft__answer(struct world *w, const struct occurrence *o);

/* oracle.c: what the answers are, and what stages read and write */
void check__oracle(struct world *w, struct world_request *r);
void check__run(struct world *w, struct world_worker *s, uint64_t step, const struct msg_run *r);
void check__probe(struct world *w, struct world_worker *s, const struct msg_run *r);
/* The last stage has a request's parameters from its first row that wants logits until it is
 * closed. */
void check__open(struct world *w, struct world_worker *s, const struct msg_step *m);
/* What the last stage says to a run that wants logits: tokens has room for n_logits. */
void check__verify(struct world *w, struct world_worker *s, const struct msg_run *r,
                   int32_t *tokens, struct msg_run_result *ret);
/* What the last stage says to a run of a prompt whose embedding is wanted; `values` has room for
 * it. False: nothing, since more runs follow. */
bool check__embed(struct world *w, struct world_worker *s, const struct msg_run *r, float *values,
                  struct msg_run_result *ret);
/* Whether these are the request's embedding. */
bool check__is_embedding(const struct world_request *r, const float *values, uint32_t n);
struct world_request *check__find(struct world *w, uint64_t id);
uint64_t check__mix(uint64_t a, uint64_t b);
/* The tag before the first token. */
uint64_t check__root(uint64_t tenant);
/* The first position that a row sees in a windowed layer, where any layer is windowed. */
uint32_t check__first_seen(const struct world *w, uint32_t pos);

/* checks.c: what must hold of every action and after every event */
void check__before(struct world *w);
void check__action(struct world *w, const struct action *a);
void check__state(struct world *w, const struct event *e);
/* A result has come: whether it is the next of those in flight. */
bool check__counts(struct world *w, const struct msg_result *m, enum lie lie, uint64_t lied);
void check__result(struct world *w, bool counted, enum lie lie, uint64_t lied);
void check__end(struct world *w);

/* order.c: who runs and who waits */
void order__state(struct world *w);
/* A replica's generation is over, or the coordinator is another: nothing runs in it. */
void order__new_generation(struct world *w, uint32_t replica);

#endif
