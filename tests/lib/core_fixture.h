/* A core in virtual time with two workers, for unit tests: events in, actions out. Each test gets a
 * core of its own. */
#ifndef FLOTILLA_TESTS_CORE_FIXTURE_H
#define FLOTILLA_TESTS_CORE_FIXTURE_H

#include "coordinator/core/core.h"

#include "common/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS NS_PER_MS

struct fixture {
    struct core *core;
    uint64_t now_ns;
    struct epoch epoch;
    uint32_t n_new;        /* tokens of the last turn */
    uint64_t ended;        /* the request with the lowest id that ended in it, or 0 */
    uint64_t position_ns;  /* what attention to a position takes in a timed turn */
    uint64_t depth;        /* positions that it attended to, */
    uint32_t prefilled[2]; /* and its rows of the prompts of requests 100 and 101 */
};

static inline struct core_config config(void)
{
    static const int32_t eog = 2;
    return (struct core_config){.incarnation = 77,
                                .n_stages = 2,
                                .n_layers = 5,
                                .width = 8,
                                .vocab = 50,
                                .model_digest = 9,
                                .model_path = "/m",
                                .results_endpoint = "tcp://:9",
                                .eog = &eog,
                                .n_eog = 1,
                                .n_pages = 8,
                                .page = 16,
                                .share = true,
                                .hash_mask = UINT64_MAX,
                                .ctx = 100,
                                .rows_max = 16,
                                .logits_max = 4,
                                .window = 2,
                                .max_live = 3,
                                .max_running = 3,
                                .max_per_client = 3,
                                .replica_wait_ns = 1000 * MS,
                                .deadline_ns = 60000 * MS,
                                .worker_timeout_ns = 1500 * MS,
                                .step_timeout_ns = 2000 * MS};
}

static inline struct actions feed(struct fixture *f, struct event e)
{
    e.now_ns = f->now_ns;
    return core_step(f->core, &e);
}

static inline const struct action *first(struct actions a, enum action_type type)
{
    for (size_t i = 0; i < a.n; i++)
        if (a.items[i].type == type) return &a.items[i];
    return NULL;
}

static inline struct actions from(struct fixture *f, uint64_t who, struct msg_from_worker m)
{
    static struct msg_from_worker kept;
    kept = m;
    kept.version = PROTO_VERSION;
    kept.instance = (struct instance){who, who};
    kept.has_epoch = true;
    kept.epoch = f->epoch;
    return feed(f, (struct event){.type = EV_FROM_WORKER, .from = {&kept, "10.0.0.1"}});
}

static inline struct actions hello(struct fixture *f, uint64_t who, const char *name)
{
    struct msg_from_worker m = {.type = FROM_HELLO};
    (void)snprintf(m.hello.name, sizeof m.hello.name, "%s", name);
    return from(f, who, m);
}

/* From Assign on: two workers load, link, and the probe comes back. */
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

static const int32_t prompt[200] = {1, 1, 1};

static inline struct actions submit(struct fixture *f, uint64_t id, uint32_t n_prompt,
                                    uint32_t max_new)
{
    return feed(
        f,
        (struct event){
            .type = EV_SUBMIT,
            .submit = {.request = id, .tokens = prompt, .n_prompt = n_prompt, .max_new = max_new}});
}

static inline void expect_end(struct actions a, enum status status, const char *words)
{
    const struct action *end = first(a, ACT_END);
    assert_non_null(end);
    assert_int_equal(end->end.status, status);
    assert_non_null(end->end.text);
    assert_non_null(strstr(end->end.text, words));
}

/* Token 7 for each run that wants one, as the last stage would answer; returns how many. */
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

/* Composes one Step; sends back token 7 for each run that wants one. False: there was nothing to
 * do. */
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

#endif
