/* The simulated world's state. Private to sim/. */
#ifndef FLOTILLA_SIM_WORLD_H
#define FLOTILLA_SIM_WORLD_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/rng.h"
#include "coordinator/core.h"
#include "coordinator/sim/sim.h"
#include "proto/gate.h"

#define WORLD_WORKERS 6u
#define WORLD_REQUESTS 48u
#define WORLD_PAGES_MAX 64u
#define WORLD_TOKENS_MAX 256u /* of a sequence */
#define WORLD_VOCAB 1000u
#define WORLD_EOG 7
#define WORLD_INBOX 256u
#define WORLD_FAMILIES 4u /* of prompts that begin alike */
#define WORLD_BLOCKS 3u   /* of which those are made */

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
    HAPPEN_FAULT,    /* something breaks */
    HAPPEN_RESTART,  /* a killed worker comes back */
    HAPPEN_CONTINUE, /* a stopped one goes on */
};

struct occurrence {
    uint64_t at_ns, order; /* ties in the order of scheduling */
    enum happening what;
    uint32_t who;  /* worker or request */
    uint64_t life; /* of the worker: what was meant for an earlier one is lost with it */
    struct epoch epoch;
    bool up;
    struct msg_from_worker *from;
    struct msg_to_worker *to;
    struct buf bytes; /* a Step or a result as on the wire */
};

struct world_worker {
    bool alive, stopped, busy, loaded;
    uint64_t life; /* counts restarts */
    struct instance instance;
    struct gate gate;
    struct msg_assign assign;
    uint64_t ran;           /* number of the last Step run in the present epoch, by our count */
    int downstream;         /* worker, -1: results, -2: none */
    bool cut;               /* its outgoing data link swallows everything */
    uint64_t continue_ns;   /* when a stopped one goes on */
    uint64_t deaf_until_ns; /* its control connection is broken: messages both ways are lost */
    struct msg_from_worker standing; /* Ready or Linked, said again with each heartbeat */
    bool stands;
    bool open[WORLD_REQUESTS]; /* requests whose parameters it has, as the last stage */
    uint64_t tags[WORLD_PAGES_MAX * LIMIT_PAGE];
    uint64_t wrote_in[WORLD_PAGES_MAX * LIMIT_PAGE]; /* number of the Step, */
    uint64_t wrote_by[WORLD_PAGES_MAX * LIMIT_PAGE]; /* and the request */
    struct msg_sampling told[WORLD_REQUESTS];        /* their parameters, as the last stage */
    struct buf inbox[WORLD_INBOX];                   /* Steps that wait, a ring */
    uint32_t inbox_at, inbox_n;
    struct buf outgoing; /* what it will hand on when done */
    bool outgoing_result;
    uint64_t last_out_ns; /* a link keeps its order */
    uint64_t last_control_ns;
    struct msg_heartbeat heartbeat;
    uint64_t moves;
};

struct world_request {
    bool submitted, ended;
    uint64_t id, seed, client, deadline_at_ns;
    enum priority class;
    uint32_t sample;
    uint32_t n_prompt, max_new, n_received;
    uint32_t n_tokens;                /* prompt and what was delivered */
    int32_t tokens[WORLD_TOKENS_MAX]; /* the oracle's: all that can ever be generated */
    uint64_t tags[WORLD_TOKENS_MAX];
    uint32_t n_oracle; /* tokens until the limit or the end token (not included) */
    bool stopped_by_us, cancelled;
    uint32_t lost;        /* generations lost since it was submitted */
    uint32_t issued;      /* end of its last run in this generation */
    uint64_t preemptions; /* of anybody, before the event in which that was issued */
};

/* What the core has had written, as its Steps told: reset with each generation. */
struct world_page {
    uint64_t tags[LIMIT_PAGE];
    uint64_t wrote_in;          /* the last Step that writes it */
    uint64_t serial, sealed_in; /* of the entry it was seen as, and wrote_in then */
};

/* The most urgent sequence, and how long it has stood still. */
struct world_first {
    uint64_t request;
    uint32_t n_issued, n_tokens;
    uint32_t steps;
};

struct world {
    struct rng rng;
    struct sim_report *report;
    struct core *core;
    struct core_config cfg;
    uint64_t now_ns, order, faults_end_ns, end_ns;
    struct occurrence *heap;
    uint32_t n_heap, cap_heap;
    struct world_worker workers[WORLD_WORKERS];
    uint32_t n_workers;
    struct world_request requests[WORLD_REQUESTS];
    uint32_t n_requests;
    bool link_open;
    uint32_t link_worker;
    struct epoch link_epoch;
    uint64_t last_link_ns, next_life, stalled_until_ns, next_tick_ns;
    bool link_cut;
    struct arena arena;
    uint64_t row_ns; /* a stage's time for a row */
    int32_t blocks[WORLD_BLOCKS][LIMIT_PAGE];
    uint8_t families[WORLD_FAMILIES][WORLD_TOKENS_MAX / LIMIT_PAGE]; /* numbers of blocks */
    struct world_page pages[WORLD_PAGES_MAX];
    struct world_first first;
    uint32_t steps_now;   /* issued in the present event */
    uint64_t preemptions; /* before it */
    bool faultless;       /* nothing breaks in this world: no generation may be lost */
    bool was_ready;       /* before the core's present event */
    bool failed;
};

/* world.c */
struct occurrence *world__schedule(struct world *w, uint64_t in_ns, enum happening what);
void world__core(struct world *w, struct event *e);
void world__fail(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t world__latency(struct world *w);
/* Whether faults may still happen. */
bool world__faulty(const struct world *w);

/* stages.c: workers */
void stage__message(struct world *w, uint32_t who, const struct msg_to_worker *m);
void stage__loaded(struct world *w, uint32_t who, struct epoch epoch);
void stage__step(struct world *w, uint32_t who, struct buf *bytes);
void stage__done(struct world *w, uint32_t who);
void stage__next(struct world *w, uint32_t who);
void stage__tell(struct world *w, uint32_t who, struct msg_from_worker *m);
void stage__start(struct world *w, uint32_t who);
void stage__kill(struct world *w, uint32_t who);

/* checks.c: the oracle and the invariants */
void check__oracle(struct world *w, struct world_request *r);
void check__run(struct world *w, struct world_worker *s, uint64_t step, const struct msg_run *r);
int32_t check__choose(const struct msg_sampling *s, uint32_t sample, uint64_t tag);
/* A new generation: nothing is written anywhere. */
void check__new_generation(struct world *w);
struct world_request *check__find(struct world *w, uint64_t id);
void check__action(struct world *w, const struct action *a);
void check__state(struct world *w);
void check__end(struct world *w);
uint64_t check__mix(uint64_t a, uint64_t b);

#endif
