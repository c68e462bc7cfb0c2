/* A core in virtual time, for unit tests: events in, actions out. The first half is for tests that
 * look at each action; the second, ready_*, for those that begin with a replica that is ready, and
 * answer its Steps one by one, each after the time that the test says. */
#ifndef FLOTILLA_TESTS_CORE_FIXTURE_H
#define FLOTILLA_TESTS_CORE_FIXTURE_H

#include "tests/lib/core_config.h"

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

struct fixture {
    struct core *core;
    uint64_t now_ns;
    struct epoch epoch;  /* of the generation that workers name */
    struct actions last; /* of the last event */
    uint32_t n_new;      /* tokens of the last turn */
    uint64_t ended;      /* the request with the lowest id that ended in it, or 0 */
    /* ---- of core_test's timed turns ---- */
    uint64_t position_ns;  /* what attention to one position takes */
    uint64_t depth;        /* positions that the last turn attended to */
    uint32_t prefilled[2]; /* its rows of the prompts of requests 100 and 101 */
    /* ---- of ready_* ---- */
    uint32_t n_stages;
    struct ready_step flight[READY_FLIGHT]; /* the oldest first */
    uint32_t n_flight;
    uint32_t n_ended;
};

static inline struct actions feed(struct fixture *f, struct event e)
{
    e.now_ns = f->now_ns;
    return f->last = core_step(f->core, &e);
}

static inline const struct action *first(struct actions a, enum action_type type)
{
    for (size_t i = 0; i < a.n; i++)
        if (a.items[i].type == type) return &a.items[i];
    return NULL;
}

/* A worker sends m, as an event that is valid until the next call. */
static inline struct event said(const struct fixture *f, uint64_t who, struct msg_from_worker m)
{
    static struct msg_from_worker kept;
    kept = m;
    kept.version = PROTO_VERSION;
    kept.instance = (struct instance){who, who};
    kept.has_epoch = true;
    kept.epoch = f->epoch;
    return (struct event){.type = EV_FROM_WORKER, .from = {&kept, "10.0.0.1"}};
}

static inline struct actions from(struct fixture *f, uint64_t who, struct msg_from_worker m)
{
    return feed(f, said(f, who, m));
}

static inline struct actions hello(struct fixture *f, uint64_t who, const char *name)
{
    struct msg_from_worker m = {.type = FROM_HELLO, .hello = {.verifies = true, .embeds = true}};
    (void)snprintf(m.hello.name, sizeof m.hello.name, "%s", name);
    return from(f, who, m);
}

/* From the Assign in `a` on: two workers load and link, and the probe comes back. */
static inline void begin_generation(struct fixture *f, struct actions a)
{
    const struct action *assign = first(a, ACT_TO_WORKER);
    assert_non_null(assign);
    f->epoch = assign->to_worker.msg->epoch;
    for (uint64_t w = 1; w <= 2; w++) {
        struct msg_from_worker m = {.type = FROM_READY, .endpoint = "tcp://:5"};
        a = from(f, w, m);
    }
    assert_string_equal(first(a, ACT_LINK_OPEN)->link.endpoint, "tcp://10.0.0.1:5");
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(f, w, (struct msg_from_worker){.type = FROM_LINKED});
    a = feed(f, (struct event){.type = EV_LINK_UP, .link = {f->epoch}});
    assert_int_equal(first(a, ACT_STEP)->step->runs[0].kind, RUN_PROBE);
    struct msg_status s;
    core_status(f->core, &s);
    assert_false(s.ready); /* linked is not ready: the probe is on its way */
    struct msg_result probe = {.epoch = f->epoch, .number = 1, .digest = 5};
    (void)feed(f, (struct event){.type = EV_RESULT, .result = &probe});
    core_status(f->core, &s);
    assert_true(s.ready);
}

/* Two workers join, and their first generation begins. */
static inline void make_ready(struct fixture *f)
{
    (void)hello(f, 1, "a");
    begin_generation(f, hello(f, 2, "b"));
}

static inline int open_fixture(void **state)
{
    static struct fixture f;
    struct core_config k = config();
    f = (struct fixture){.core = core_open(&k), .now_ns = 1000 * MS};
    *state = &f;
    return 0;
}

static inline int close_fixture(void **state)
{
    core_close(((struct fixture *)*state)->core);
    return 0;
}

static const int32_t prompt[8192] = {1, 1, 1}; /* of all requests that name no other */

static inline struct event request(uint64_t id, uint32_t n_prompt, uint32_t max_new,
                                   enum priority class)
{
    return (struct event){.type = EV_SUBMIT,
                          .submit = {.request = id,
                                     .priority = class,
                                     .tokens = prompt,
                                     .n_prompt = n_prompt,
                                     .max_new = max_new}};
}

static inline struct actions submit(struct fixture *f, uint64_t id, uint32_t n_prompt,
                                    uint32_t max_new)
{
    return feed(f, request(id, n_prompt, max_new, PRIORITY_CRITICAL));
}

static inline void expect_end(struct actions a, enum status status, const char *words)
{
    const struct action *end = first(a, ACT_END);
    assert_non_null(end);
    assert_int_equal(end->end.status, status);
    assert_non_null(end->end.text);
    assert_non_null(strstr(end->end.text, words));
}

/* What the last stage answers to a Step: token 7 for each run that wants one. Returns how many. */
static inline uint32_t answers_of(const struct msg_step *s, struct msg_run_result *ret_runs)
{
    static const int32_t token = 7;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_runs; i++) {
        const struct msg_run *x = &s->runs[i];
        if (x->n_logits)
            ret_runs[n++] = (struct msg_run_result){.request = x->request,
                                                    .attempt = x->attempt,
                                                    .sample = x->sample,
                                                    .first_pos = x->first_pos + x->n_rows,
                                                    .n_tokens = 1,
                                                    .tokens = &token};
    }
    return n;
}

/* Composes one Step and answers it. False: there was nothing to do. */
static inline bool turn(struct fixture *f, struct msg_step *ret_step, struct msg_run *ret_runs)
{
    struct msg_run_result runs[8];
    const struct action *a = first(feed(f, (struct event){.type = EV_COMPOSE}), ACT_STEP);
    *ret_step = a ? *a->step : (struct msg_step){.n_runs = 0};
    if (!a) return false;
    struct msg_result r = {.epoch = f->epoch, .number = a->step->number, .runs = runs};
    for (uint32_t i = 0; i < a->step->n_runs; i++) ret_runs[i] = a->step->runs[i];
    r.n_runs = answers_of(a->step, runs);
    f->n_new = 0;
    struct actions out = feed(f, (struct event){.type = EV_RESULT, .result = &r});
    for (size_t i = 0; i < out.n; i++) f->n_new += out.items[i].type == ACT_TOKENS;
    return true;
}

static inline void reopen(struct fixture *f, struct core_config k)
{
    core_close(f->core);
    f->core = core_open(&k);
    make_ready(f);
}

/* ---- a replica that is ready ---- */

/* Two stages, and more than a test is likely to use. */
static inline struct core_config ready_config(void)
{
    struct core_config k = config();
    k.n_layers = 6;
    k.n_pages = 200;
    k.ctx = 2000;
    k.rows_max = 512;
    k.logits_max = 16;
    k.max_live = k.max_running = k.max_per_client = 20;
    k.deadline_ns = 3600 * NS_PER_S;
    return k;
}

/* Feeds one event; keeps the Steps that it issues. Returns how many. */
static inline uint32_t ready_event(struct fixture *r, struct event e)
{
    struct actions a = feed(r, e);
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

static inline void ready_from(struct fixture *r, uint64_t who, struct msg_from_worker m)
{
    (void)ready_event(r, said(r, who, m));
}

static inline uint32_t ready_compose(struct fixture *r)
{
    return ready_event(r, (struct event){.type = EV_COMPOSE});
}

/* Answers the oldest Step. stage_ns: what each stage took; 0: the answer has no timings. */
static inline struct ready_step ready_answer(struct fixture *r, uint64_t stage_ns)
{
    struct msg_run_result runs[READY_RUNS];
    assert_true(r->n_flight > 0);
    struct ready_step s = r->flight[0];
    struct msg_result m = {.epoch = r->epoch, .number = s.number, .digest = 5, .runs = runs};
    memmove(r->flight, r->flight + 1, --r->n_flight * sizeof *r->flight);
    const struct msg_step asked = {.runs = s.runs, .n_runs = s.n_runs};
    if (s.runs[0].kind != RUN_PROBE) m.n_runs = answers_of(&asked, runs);
    for (uint32_t i = 0; i < r->n_stages && stage_ns; i++)
        m.timings[m.n_timings++] = (struct msg_timing){.stage = i, .compute_ns = stage_ns};
    (void)ready_event(r, (struct event){.type = EV_RESULT, .result = &m});
    return s;
}

/* From the Assign on: the workers load and link, and the probe comes back. */
static inline void ready_begin(struct fixture *r)
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
static inline struct fixture ready_open(struct core_config k)
{
    struct fixture r = {.core = core_open(&k), .now_ns = 1000 * MS, .n_stages = k.n_stages};
    for (uint64_t w = 1; w <= k.n_stages; w++) {
        struct msg_from_worker m = {.type = FROM_HELLO,
                                    .hello = {.verifies = true, .embeds = true}};
        (void)snprintf(m.hello.name, sizeof m.hello.name, "w%u", (unsigned)w);
        ready_from(&r, w, m);
    }
    ready_begin(&r);
    return r;
}

/* The generation is lost because a link broke; another one begins with the same workers. */
static inline void ready_again(struct fixture *r)
{
    (void)ready_event(r, (struct event){.type = EV_LINK_LOST, .link = {r->epoch}});
    r->n_flight = 0;
    r->now_ns += 500 * MS; /* more than the pause before another one */
    for (uint64_t w = 1; w <= r->n_stages; w++)
        ready_from(r, w, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    (void)ready_event(r, (struct event){.type = EV_TICK});
    ready_begin(r);
}

/* A request whose prompt is the token `letter`, n_prompt times. */
static inline void ready_submit(struct fixture *r, uint64_t id, int32_t letter, uint32_t n_prompt,
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

static inline void ready_cancel(struct fixture *r, uint64_t id)
{
    (void)ready_event(r, (struct event){.type = EV_CANCEL, .request = {id, "asked"}});
}

static inline bool ready_runs(const struct fixture *r, uint64_t id)
{
    for (uint32_t i = 0; i < core_n_sequences(r->core); i++)
        if (core_sequence_at(r->core, i).request == id) return core_sequence_at(r->core, i).running;
    return false;
}

static inline struct msg_cache_status ready_cache(const struct fixture *r)
{
    struct msg_status s;
    core_status(r->core, &s);
    return s.replicas[0].cache;
}

#endif
