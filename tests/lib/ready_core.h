/* A core whose replica is ready, in virtual time: requests go in, Steps come out, and are answered
 * in the order and after the time that the test says. */
#ifndef FLOTILLA_TESTS_READY_CORE_H
#define FLOTILLA_TESTS_READY_CORE_H

#include "common/base/clock.h"
#include "coordinator/core/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS NS_PER_MS
#define READY_RUNS 32u
#define READY_FLIGHT 64u

struct ready_step {
    uint64_t number, issued_ns;
    uint32_t rows, n_runs, n_decodes;
    struct msg_run runs[READY_RUNS]; /* without their tokens and pages */
};

struct ready {
    struct core *core;
    uint64_t now_ns;
    struct epoch epoch;
    uint32_t n_stages;
    struct ready_step flight[READY_FLIGHT]; /* the oldest first */
    uint32_t n_flight;
    uint32_t n_ended;
};

/* Two stages with all that a test does not care for. */
static inline struct core_config ready_config(void)
{
    static const int32_t eog = 2;
    return (struct core_config){.incarnation = 77,
                                .n_stages = 2,
                                .n_layers = 6,
                                .width = 8,
                                .vocab = 50,
                                .model_digest = 9,
                                .model_path = "/m",
                                .results_endpoint = "tcp://:9",
                                .eog = &eog,
                                .n_eog = 1,
                                .n_pages = 200,
                                .page = 16,
                                .share = true,
                                .hash_mask = UINT64_MAX,
                                .ctx = 2000,
                                .rows_max = 512,
                                .logits_max = 16,
                                .window = 2,
                                .max_live = 20,
                                .max_running = 20,
                                .max_per_client = 20,
                                .replica_wait_ns = 1000 * MS,
                                .deadline_ns = 3600 * NS_PER_S,
                                .worker_timeout_ns = 1500 * MS,
                                .step_timeout_ns = 2000 * MS};
}

/* Feeds one event; keeps the Steps that it issues. Returns how many. */
static inline uint32_t ready_event(struct ready *r, struct event e)
{
    e.now_ns = r->now_ns;
    struct actions a = core_step(r->core, &e);
    uint32_t n = 0;
    for (size_t i = 0; i < a.n; i++) {
        const struct action *x = &a.items[i];
        r->n_ended += x->type == ACT_END;
        if (x->type == ACT_TO_WORKER && x->to_worker.msg->type == TO_ASSIGN)
            r->epoch = x->to_worker.msg->epoch;
        if (x->type != ACT_STEP) continue;
        assert_true(r->n_flight < READY_FLIGHT && x->step->n_runs <= READY_RUNS);
        struct ready_step *s = &r->flight[r->n_flight++];
        *s = (struct ready_step){.number = x->step->number,
                                 .issued_ns = r->now_ns,
                                 .rows = x->step->rows,
                                 .n_runs = x->step->n_runs};
        for (uint32_t k = 0; k < s->n_runs; k++) {
            s->runs[k] = x->step->runs[k];
            s->n_decodes += s->runs[k].kind == RUN_DECODE;
        }
        n++;
    }
    return n;
}

static inline void ready_from(struct ready *r, uint64_t who, struct msg_from_worker m)
{
    m.version = PROTO_VERSION;
    m.instance = (struct instance){who, who};
    m.has_epoch = true;
    m.epoch = r->epoch;
    (void)ready_event(r, (struct event){.type = EV_FROM_WORKER, .from = {&m, "10.0.0.1"}});
}

static inline uint32_t ready_compose(struct ready *r)
{
    return ready_event(r, (struct event){.type = EV_COMPOSE});
}

/* Answers the oldest Step: token 7 for each run that wants one. stage_ns: what each stage took; 0:
 * nothing is said of that. */
static inline struct ready_step ready_answer(struct ready *r, uint64_t stage_ns)
{
    static const int32_t token = 7;
    struct msg_run_result runs[READY_RUNS];
    assert_true(r->n_flight > 0);
    struct ready_step s = r->flight[0];
    struct msg_result m = {.epoch = r->epoch, .number = s.number, .digest = 5, .runs = runs};
    memmove(r->flight, r->flight + 1, --r->n_flight * sizeof *r->flight);
    for (uint32_t i = 0; i < s.n_runs; i++) {
        const struct msg_run *x = &s.runs[i];
        if (x->n_logits && x->kind != RUN_PROBE)
            runs[m.n_runs++] = (struct msg_run_result){.request = x->request,
                                                       .attempt = x->attempt,
                                                       .sample = x->sample,
                                                       .first_pos = x->first_pos + x->n_rows,
                                                       .n_tokens = 1,
                                                       .tokens = &token};
    }
    for (uint32_t i = 0; i < r->n_stages && stage_ns; i++)
        m.timings[m.n_timings++] = (struct msg_timing){.stage = i, .compute_ns = stage_ns};
    (void)ready_event(r, (struct event){.type = EV_RESULT, .result = &m});
    return s;
}

/* From Assign on: workers load and link, and the probe comes back. */
static inline void ready_begin(struct ready *r)
{
    for (uint64_t w = 1; w <= r->n_stages; w++)
        ready_from(r, w, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    for (uint64_t w = 1; w <= r->n_stages; w++)
        ready_from(r, w, (struct msg_from_worker){.type = FROM_LINKED});
    assert_int_equal(ready_event(r, (struct event){.type = EV_LINK_UP, .link = {r->epoch}}), 1);
    (void)ready_answer(r, 0);
    struct msg_status s;
    core_status(r->core, &s);
    assert_true(s.ready);
}

/* Workers join, and their first generation begins. */
static inline struct ready ready_open(struct core_config k)
{
    struct ready r = {.core = core_open(&k), .now_ns = 1000 * MS, .n_stages = k.n_stages};
    for (uint64_t w = 1; w <= k.n_stages; w++) {
        struct msg_from_worker m = {.type = FROM_HELLO};
        (void)snprintf(m.hello.name, sizeof m.hello.name, "w%u", (unsigned)w);
        ready_from(&r, w, m);
    }
    ready_begin(&r);
    return r;
}

/* The generation is lost by a link, and another one begins with the same workers. */
static inline void ready_again(struct ready *r)
{
    (void)ready_event(r, (struct event){.type = EV_LINK_LOST, .link = {r->epoch}});
    r->n_flight = 0;
    r->now_ns += 500 * MS; /* more than the pause before another one */
    for (uint64_t w = 1; w <= r->n_stages; w++)
        ready_from(r, w, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    (void)ready_event(r, (struct event){.type = EV_TICK});
    ready_begin(r);
}

/* A prompt of so many times the token `letter`. */
static inline void ready_submit(struct ready *r, uint64_t id, int32_t letter, uint32_t n_prompt,
                                uint32_t max_new, enum priority class)
{
    int32_t tokens[2000];
    assert_true(n_prompt <= 2000);
    for (uint32_t i = 0; i < n_prompt; i++) tokens[i] = letter;
    (void)ready_event(r, (struct event){.type = EV_SUBMIT,
                                        .submit = {.request = id,
                                                   .priority = class,
                                                   .tokens = tokens,
                                                   .n_prompt = n_prompt,
                                                   .max_new = max_new}});
}

static inline void ready_cancel(struct ready *r, uint64_t id)
{
    (void)ready_event(r, (struct event){.type = EV_CANCEL, .request = {id, "asked"}});
}

static inline bool ready_runs(const struct ready *r, uint64_t id)
{
    for (uint32_t i = 0; i < core_n_sequences(r->core); i++)
        if (core_sequence_at(r->core, i).request == id) return core_sequence_at(r->core, i).running;
    return false;
}

static inline struct msg_cache_status ready_cache(const struct ready *r)
{
    struct msg_status s;
    core_status(r->core, &s);
    return s.replica.cache;
}

#endif
