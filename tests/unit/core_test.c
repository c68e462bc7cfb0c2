/* The core's actions, event by event, in the cases that the simulator's random worlds do not single
 * out. */
#include "coordinator/core/cost.h"
#include "tests/lib/core_fixture.h"

/* The linker leads the core's calls of cost_predict through here, to be counted. */
uint64_t __real_cost_predict(const struct cost *c, struct cost_work work);
uint64_t __wrap_cost_predict(const struct cost *c, struct cost_work work);
static uint32_t n_predicted;

uint64_t __wrap_cost_predict(const struct cost *c, struct cost_work work)
{
    n_predicted++;
    return __real_cost_predict(c, work);
}

static void test_slices(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    struct msg_status s;
    core_status(f->core, &s);
    assert_int_equal(s.replicas[0].workers[0].layer_first, 0);
    assert_int_equal(s.replicas[0].workers[0].layer_last, 2); /* 5 layers over 2: 3 and 2 */
    assert_int_equal(s.replicas[0].workers[1].layer_first, 3);
    assert_int_equal(s.replicas[0].workers[1].layer_last, 4);
}

static void test_limits(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    expect_end(submit(f, 1, 0, 4), STATUS_INVALID_ARGUMENT, "no tokens");
    expect_end(submit(f, 2, 100, 4), STATUS_INVALID_ARGUMENT, "100");
    for (uint64_t id = 3; id < 6; id++) assert_null(first(submit(f, id, 3, 4), ACT_END));
    struct actions a = submit(f, 6, 3, 4);
    expect_end(a, STATUS_RESOURCE_EXHAUSTED, "3 requests");
    assert_true(first(a, ACT_END)->end.retry_ms > 0);
    expect_end(feed(f, (struct event){.type = EV_CANCEL, .request = {4, "asked"}}),
               STATUS_CANCELLED, "asked");
    assert_null(first(submit(f, 7, 3, 4), ACT_END)); /* there is room again */
    expect_end(submit(f, 8, 3, 4), STATUS_RESOURCE_EXHAUSTED, "");
}

static void test_one_request(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)submit(f, 9, 20, 3); /* chunks of 16 and 4 rows, both at once: the window has room */
    struct actions a = feed(f, (struct event){.type = EV_COMPOSE});
    assert_int_equal(a.n, 2);
    assert_int_equal(a.items[0].step->rows, 16);
    assert_int_equal(a.items[0].step->runs[0].n_logits, 0);
    assert_int_equal(a.items[1].step->rows, 4);
    assert_true(a.items[1].step->runs[0].has_open);
    assert_int_equal(a.items[1].step->runs[0].open.boundary, 20);
    uint64_t number = a.items[1].step->number;
    int32_t token = 7;
    struct msg_run_result run = {
        .request = 9, .attempt = 1, .first_pos = 20, .n_tokens = 1, .tokens = &token};
    struct msg_result r = {.epoch = f->epoch, .number = number - 1};
    (void)feed(f, (struct event){.type = EV_RESULT, .result = &r});
    r = (struct msg_result){.epoch = f->epoch, .number = number, .n_runs = 1, .runs = &run};
    a = feed(f, (struct event){.type = EV_RESULT, .result = &r});
    assert_int_equal(first(a, ACT_TOKENS)->tokens.first_index, 0);
    a = feed(f, (struct event){.type = EV_RESULT, .result = &r}); /* the same again */
    assert_int_equal(a.n, 0);
    struct msg_status status;
    core_status(f->core, &status);
    assert_int_equal(status.messages_dropped, 1);
    a = feed(f, (struct event){.type = EV_COMPOSE});
    assert_int_equal(first(a, ACT_STEP)->step->runs[0].kind, RUN_DECODE);
    assert_false(first(a, ACT_STEP)->step->runs[0].has_open); /* told once */
    token = 2;                                                /* the end token */
    run.first_pos = 21;
    r.number = number + 1;
    a = feed(f, (struct event){.type = EV_RESULT, .result = &r});
    assert_null(first(a, ACT_TOKENS));
    expect_end(a, STATUS_OK, "");
    assert_int_equal(first(a, ACT_END)->end.finish_reason, FINISH_STOP);
    struct pages_stats pages = core_pages(f->core, 0);
    assert_int_equal(pages.n_held, 0);
    assert_int_equal(pages.n_cached, 1); /* the prompt's whole page may be asked for again */
    assert_int_equal(pages.n_free, 7);
}

static void test_silent_worker(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)submit(f, 9, 20, 3);
    f->now_ns += 1499 * MS;
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    assert_null(first(feed(f, (struct event){.type = EV_TICK}), ACT_LINK_CLOSE));
    /* A second in which the coordinator's loop did not run does not count. */
    f->now_ns += 1000 * MS;
    struct event stalled = {.type = EV_TICK, .tick = {1000 * MS}};
    assert_null(first(feed(f, stalled), ACT_LINK_CLOSE));
    f->now_ns += 1 * MS;
    struct actions a = feed(f, (struct event){.type = EV_TICK});
    assert_non_null(first(a, ACT_LINK_CLOSE));
    assert_null(first(a, ACT_END)); /* the request waits for the worker's return */
    f->now_ns += 1000 * MS;
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    expect_end(feed(f, (struct event){.type = EV_TICK}), STATUS_UNAVAILABLE, "worker b");
}

static void test_overdue_step(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)submit(f, 9, 4, 3);
    struct actions a = feed(f, (struct event){.type = EV_COMPOSE});
    uint64_t number = first(a, ACT_STEP)->step->number;
    for (int i = 0; i < 9; i++) {
        f->now_ns += 300 * MS;
        struct msg_from_worker m = {.type = FROM_HEARTBEAT};
        m.heartbeat.step_received = m.heartbeat.step_done = number; /* a has passed it on */
        m.heartbeat.moves = (uint64_t)i + 1;                        /* and both turn idly */
        (void)from(f, 1, m);
        m.heartbeat.step_received = m.heartbeat.step_done = number - 1;
        (void)from(f, 2, m);
        a = feed(f, (struct event){.type = EV_TICK});
        if (first(a, ACT_LINK_CLOSE)) break;
    }
    assert_non_null(first(a, ACT_LINK_CLOSE));
    assert_non_null(strstr(first(a, ACT_NOTE)->note, "the link from a to worker b"));
}

static void test_other_version(void **state)
{
    struct fixture *f = *state;
    struct msg_from_worker m = {.version = 99, .type = FROM_HELLO, .instance = {3, 3}};
    struct actions a = feed(f, (struct event){.type = EV_FROM_WORKER, .from = {&m, "10.0.0.1"}});
    assert_int_equal(first(a, ACT_TO_WORKER)->to_worker.msg->type, TO_REFUSE);
    assert_non_null(strstr(first(a, ACT_TO_WORKER)->to_worker.msg->text, "99"));
}

static void test_probe_digest(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)from(f, 2, (struct msg_from_worker){.type = FROM_GOODBYE});
    f->now_ns += 200 * MS;
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    struct actions a = hello(f, 4, "c");
    f->epoch = first(a, ACT_TO_WORKER)->to_worker.msg->epoch;
    static const uint64_t who[] = {1, 4};
    for (int i = 0; i < 2; i++)
        (void)from(f, who[i], (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    for (int i = 0; i < 2; i++)
        (void)from(f, who[i], (struct msg_from_worker){.type = FROM_LINKED});
    (void)feed(f, (struct event){.type = EV_LINK_UP, .link = {f->epoch}});
    struct msg_result probe = {.epoch = f->epoch, .number = 1, .digest = 6}; /* it was 5 */
    a = feed(f, (struct event){.type = EV_RESULT, .result = &probe});
    assert_non_null(strstr(first(a, ACT_NOTE)->note, "differ"));
}

/* A result that skips a Step, has fewer or more runs than were asked for, or a token beyond the
 * vocabulary, ends the generation. */
static void test_results_that_are_not_asked_for(void **state)
{
    struct fixture *f = *state;
    static const int32_t right = 7, foreign = 50;
    const struct msg_run_result good = {
        .request = 9, .attempt = 1, .first_pos = 20, .n_tokens = 1, .tokens = &right};
    struct msg_run_result bad = good;
    bad.tokens = &foreign;
    const struct msg_result wrong[] = {
        {.number = 3, .n_runs = 1, .runs = &good}, /* Step 2's is missing */
        {.number = 2, .n_runs = 1, .runs = &good}, /* Step 2 wants none */
        {.number = 3, .n_runs = 0},
        {.number = 3, .n_runs = 1, .runs = &bad},
    };
    for (size_t i = 0; i < 4; i++) {
        if (i) {
            close_fixture(state);
            open_fixture(state);
        }
        make_ready(f);
        (void)submit(f, 9, 20, 3); /* Step 2: 16 rows, no token; Step 3: 4 rows, one */
        (void)feed(f, (struct event){.type = EV_COMPOSE});
        struct msg_result r = {.epoch = f->epoch, .number = 2};
        if (i >= 2) (void)feed(f, (struct event){.type = EV_RESULT, .result = &r});
        r = wrong[i];
        r.epoch = f->epoch;
        struct actions a = feed(f, (struct event){.type = EV_RESULT, .result = &r});
        assert_non_null(first(a, ACT_LINK_CLOSE));
        assert_null(first(a, ACT_TOKENS));
    }
}

/* More sequences than a Step has room for: all of them get tokens. */
static void test_everybody_decodes(void **state)
{
    struct fixture *f = *state;
    close_fixture(state);
    struct core_config k = config();
    k.max_live = k.max_running = k.max_per_client = 6;
    k.logits_max = 2;
    k.window = 1;
    f->core = core_open(&k);
    make_ready(f);
    uint32_t n_tokens[6] = {0};
    for (uint64_t id = 0; id < 6; id++) (void)submit(f, id + 10, 3, 13);
    for (int step = 0; step < 24; step++) {
        struct actions a = feed(f, (struct event){.type = EV_COMPOSE});
        const struct msg_step *s = first(a, ACT_STEP)->step;
        struct msg_run_result runs[8];
        struct msg_result r = {.epoch = f->epoch, .number = s->number, .runs = runs};
        r.n_runs = answers_of(s, runs);
        for (uint32_t i = 0; i < r.n_runs; i++) n_tokens[runs[i].request - 10]++;
        (void)feed(f, (struct event){.type = EV_RESULT, .result = &r});
    }
    assert_int_equal(n_tokens[0], 13); /* the most urgent is in every Step */
    for (int i = 1; i < 6; i++) assert_in_range(n_tokens[i], 4, 13); /* and the others in turn */
}

/* A coordinator that was stopped while a Step was in flight keeps the healthy generation. */
static void test_stalled_coordinator(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)submit(f, 9, 4, 30);
    int32_t token = 7;
    uint64_t number = 0;
    for (uint32_t i = 0; i < 12; i++) {
        struct actions a = feed(f, (struct event){.type = EV_COMPOSE});
        number = first(a, ACT_STEP)->step->number;
        uint64_t stall = i == 5 ? 30000 * MS : 0;
        f->now_ns += 10 * MS + stall;
        struct msg_run_result run = {
            .request = 9, .attempt = 1, .first_pos = 4 + i, .n_tokens = 1, .tokens = &token};
        struct msg_result r = {.epoch = f->epoch, .number = number, .n_runs = 1, .runs = &run};
        (void)feed(f, (struct event){.type = EV_RESULT, .result = &r});
        for (uint64_t w = 1; w <= 2; w++)
            (void)from(f, w, (struct msg_from_worker){.type = FROM_HEARTBEAT});
        a = feed(f, (struct event){.type = EV_TICK, .tick = {stall}});
        assert_null(first(a, ACT_LINK_CLOSE));
        if (i == 5) f->now_ns = f->now_ns + 10 * MS;
    }
    /* Silence counts again from now on. */
    f->now_ns += 1600 * MS;
    assert_non_null(first(feed(f, (struct event){.type = EV_TICK}), ACT_LINK_CLOSE));
}

/* An Assign that got lost is sent again; stages that never link are given up. */
static void test_beginnings(void **state)
{
    struct fixture *f = *state;
    (void)hello(f, 1, "a");
    struct actions a = hello(f, 2, "b");
    f->epoch = first(a, ACT_TO_WORKER)->to_worker.msg->epoch;
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    f->now_ns += 1100 * MS;
    struct msg_from_worker old = {
        .type = FROM_HEARTBEAT, .version = PROTO_VERSION, .instance = {2, 2}};
    (void)feed(f, (struct event){.type = EV_FROM_WORKER, .from = {&old, "10.0.0.1"}});
    a = feed(f, (struct event){.type = EV_TICK});
    assert_int_equal(a.n, 1);
    assert_int_equal(a.items[0].to_worker.msg->type, TO_ASSIGN);
    assert_int_equal(a.items[0].to_worker.instance.hi, 2);
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(f, w, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    a = from(f, 1, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    assert_int_equal(first(a, ACT_TO_WORKER)->to_worker.msg->type, TO_CONNECT); /* once more */
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_LINKED});
    (void)feed(f, (struct event){.type = EV_LINK_UP, .link = {f->epoch}});
    for (int i = 0; i < 6; i++) {
        f->now_ns += 1000 * MS;
        for (uint64_t w = 1; w <= 2; w++)
            (void)from(f, w, (struct msg_from_worker){.type = FROM_HEARTBEAT});
        a = feed(f, (struct event){.type = EV_TICK});
        if (first(a, ACT_LINK_CLOSE)) break;
    }
    assert_non_null(first(a, ACT_LINK_CLOSE));
    assert_non_null(strstr(first(a, ACT_NOTE)->note, "worker b does not reach the coordinator"));
}

/* One slot, a low-priority request runs, a critical one arrives: it is in the next Step, and the
 * first goes on afterwards where it was. */
static void test_preempts_for_the_critical(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.max_running = k.window = 1;
    reopen(f, k);
    (void)feed(f, request(1, 20, 6, PRIORITY_LOW));
    for (int i = 0; i < 4; i++) assert_true(turn(f, &s, r)); /* 16 and 4 rows, two decodes */
    assert_int_equal(r[0].first_pos, 21);
    (void)feed(f, request(2, 3, 2, PRIORITY_CRITICAL));
    assert_true(turn(f, &s, r));
    assert_int_equal(s.n_runs, 1);
    assert_int_equal(r[0].request, 2);
    assert_true(turn(f, &s, r));
    assert_true(turn(f, &s, r));
    assert_int_equal(r[0].request, 1);
    assert_int_equal(r[0].first_pos, 16); /* its whole page was still there */
    assert_int_equal(r[0].n_rows, 7);     /* of 20 and 3 tokens */
    assert_int_equal(r[0].open.boundary, 0);
    assert_false(r[0].has_open); /* the last stage still has its parameters */
    assert_int_equal(f->n_new, 1);
    struct msg_status now;
    core_status(f->core, &now);
    assert_int_equal(now.replicas[0].cache.preemptions, 1);
}

/* Of the same class, nobody is preempted for one that came later; waiting makes a request more
 * urgent. */
static void test_order(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.max_running = k.window = 1;
    reopen(f, k);
    (void)feed(f, request(1, 3, 2, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    (void)feed(f, request(2, 3, 2, PRIORITY_LOW));
    (void)feed(f, request(3, 3, 2, PRIORITY_NORMAL));
    uint64_t seen[6];
    for (int i = 1; turn(f, &s, r); i++) seen[i] = r[0].request;
    assert_int_equal(seen[1], 1);
    assert_int_equal(seen[2], 3); /* before 2, which came earlier */
    assert_int_equal(seen[4], 2);
    (void)feed(f, request(4, 3, 2, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    (void)feed(f, request(5, 3, 1, PRIORITY_LOW));
    f->now_ns += 10001 * MS;
    (void)feed(f, request(6, 3, 1, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    assert_true(turn(f, &s, r));
    assert_int_equal(r[0].request, 5); /* low for ten seconds is normal, and came first */
}

static void test_client_cap(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    k.max_per_client = 1;
    reopen(f, k);
    struct event e = request(1, 3, 2, PRIORITY_NORMAL);
    e.submit.client = 5;
    assert_null(first(feed(f, e), ACT_END));
    e.submit.request = 2;
    struct actions a = feed(f, e);
    expect_end(a, STATUS_RESOURCE_EXHAUSTED, "of this client");
    assert_true(first(a, ACT_END)->end.retry_ms > 0);
    e.submit.request = 3;
    e.submit.client = 6;
    assert_null(first(feed(f, e), ACT_END));
}

/* Pages of 25: a prompt of 100 shared tokens and one more, computed once and found three times. */
static void test_prefix_statistics(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    struct msg_status now;
    k.page = 25;
    k.ctx = 150;
    k.rows_max = 128;
    reopen(f, k);
    for (uint64_t id = 1; id <= 4; id++) {
        (void)feed(f, request(id, 101, 1, PRIORITY_NORMAL));
        assert_true(turn(f, &s, r));
        assert_int_equal(r[0].n_rows, id == 1 ? 101 : 1);
    }
    core_status(f->core, &now);
    assert_int_equal(now.replicas[0].cache.lookups, 4);
    assert_int_equal(now.replicas[0].cache.hits, 3); /* 0.75 */
    assert_int_equal(now.replicas[0].cache.tokens_saved, 300);
    assert_int_equal(now.replicas[0].cache.tokens_computed, 104);
}

/* A short prompt that comes behind a long one is in the next Step, whole. */
static void test_short_behind_long(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    static const int32_t other[90] = {4};
    k.window = 1;
    k.rows_max = 32;
    reopen(f, k);
    struct event e = request(1, 90, 1, PRIORITY_NORMAL);
    e.submit.tokens = other;
    (void)feed(f, e);
    assert_true(turn(f, &s, r));
    (void)feed(f, request(2, 10, 1, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    assert_int_equal(s.n_runs, 2);
    assert_int_equal(r[1].request, 2);
    assert_int_equal(r[1].n_rows, 10);
}

/* The second request waits behind the first, which still computes the prompt that they share: each
 * shared page is computed once. When the first is cancelled, the second takes over. */
static void test_rides_behind(void **state)
{
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        struct fixture *f = *state;
        struct core_config k = config();
        struct msg_step s = {.rows = 0};
        struct msg_run r[8];
        k.window = 1;
        k.rows_max = 32;
        reopen(f, k);
        (void)feed(f, request(1, 80, 1, PRIORITY_NORMAL));
        assert_true(turn(f, &s, r)); /* two pages of the first */
        uint32_t rows = s.rows;
        (void)feed(f, request(2, 80, 1, PRIORITY_NORMAL));
        assert_true(turn(f, &s, r)); /* one more; the second waits */
        assert_int_equal(s.n_runs, 1);
        assert_int_equal(r[0].request, 1);
        rows += s.rows;
        if (cancelled) (void)feed(f, (struct event){.type = EV_CANCEL, .request = {1, "asked"}});
        while (turn(f, &s, r)) rows += s.rows;
        /* Each page once, but for the fifth: it holds the last row, whose logits each needs. */
        assert_int_equal(rows, cancelled ? 80 : 96);
    }
}

/* A client that has received some of the answer from an earlier coordinator. */
static void test_received(void **state)
{
    struct fixture *f = *state;
    struct msg_step s;
    struct msg_run r[8];
    make_ready(f);
    struct event e = request(1, 5, 4, PRIORITY_NORMAL);
    e.submit.n_received = 3;
    (void)feed(f, e);
    assert_true(turn(f, &s, r));
    assert_int_equal(r[0].n_rows, 8);
    assert_int_equal(r[0].open.boundary, 5);
    assert_int_equal(f->n_new, 1);
    assert_false(turn(f, &s, r)); /* the fourth was the last */
    e = request(2, 5, 4, PRIORITY_NORMAL);
    e.submit.n_received = 4;
    expect_end(feed(f, e), STATUS_OK, ""); /* nothing is left to do */
}

/* What a Step takes in a timed turn, without attention, in ns. */
static uint64_t takes(uint32_t rows, uint32_t logits)
{
    return 1000000 + 60000 * (uint64_t)rows + 90000 * (uint64_t)logits;
}

/* A timed turn: issues one Step, lets the time pass that it takes, and answers it. False: there was
 * nothing to do. */
static bool timed_turn(struct fixture *f, uint32_t *ret_rows, uint32_t *ret_decodes)
{
    static struct msg_run_result runs[64];
    const struct action *a = first(feed(f, (struct event){.type = EV_COMPOSE}), ACT_STEP);
    if (!a) return false;
    struct msg_result r = {
        .epoch = f->epoch, .number = a->step->number, .runs = runs, .n_timings = 2};
    *ret_rows = a->step->rows;
    *ret_decodes = 0;
    f->depth = f->prefilled[0] = f->prefilled[1] = 0;
    for (uint32_t i = 0; i < a->step->n_runs; i++) {
        const struct msg_run *run = &a->step->runs[i];
        *ret_decodes += run->kind == RUN_DECODE;
        f->depth += (uint64_t)run->first_pos * run->n_rows;
        if (run->kind == RUN_PREFILL && (run->request == 100 || run->request == 101))
            f->prefilled[run->request - 100] = run->n_rows;
    }
    r.n_runs = answers_of(a->step, runs);
    uint64_t ns = takes(*ret_rows, r.n_runs) + f->depth * f->position_ns;
    r.timings[0] = (struct msg_timing){0, ns / 2, 0};
    r.timings[1] = (struct msg_timing){1, ns, 0};
    f->now_ns += ns;
    f->ended = 0;
    struct actions out = feed(f, (struct event){.type = EV_RESULT, .result = &r});
    for (size_t i = 0; i < out.n; i++)
        if (out.items[i].type == ACT_END && (!f->ended || out.items[i].end.request < f->ended))
            f->ended = out.items[i].end.request;
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(f, w, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    return true;
}

static struct core_config served(void)
{
    struct core_config k = config();
    k.n_pages = 1000;
    k.ctx = 8000;
    k.rows_max = 512;
    k.logits_max = 32;
    k.window = 1;
    k.max_live = k.max_running = k.max_per_client = 64;
    k.deadline_ns = 3600 * NS_PER_S;
    return k;
}

/* Beside decodes, a long prompt gets as many rows as the Step's time allows: in every Step, once
 * the model of times has learnt them. */
static void test_step_budget(void **state)
{
    struct fixture *f = *state;
    uint32_t rows, decodes, prefilled = 0;
    reopen(f, served());
    for (uint64_t id = 1; id <= 16; id++) (void)feed(f, request(id, 4, 300, PRIORITY_NORMAL));
    for (int i = 0; i < 60; i++) assert_true(timed_turn(f, &rows, &decodes));
    static const int32_t other[4000] = {9};
    struct event e = request(99, 4000, 1, PRIORITY_NORMAL);
    e.submit.tokens = other;
    (void)feed(f, e);
    for (int i = 0; i < 400 && prefilled < 4000; i++) {
        assert_true(timed_turn(f, &rows, &decodes));
        if (decodes == 0) continue;
        uint32_t chunk = rows - decodes;
        prefilled += chunk;
        assert_true(decodes <= 8); /* 16 over two stages */
        /* The least is 2 rows; a tenth is left for what the model of times may be wrong by. */
        if (i > 20 && chunk > 2)
            assert_in_range(takes(rows, decodes), 0, takes(8, 8) * 150 / 100 * 11 / 10);
        assert_true(chunk > 0);
    }
    assert_true(prefilled > 1000);
}

/* Attention makes two rows of a long prompt take longer than the time that there is for prefill.
 * The prompt goes on nevertheless, and does not hold up a short one behind it. */
static void test_deep_prompt(void **state)
{
    struct fixture *f = *state;
    static const int32_t other[4000] = {9};
    uint32_t rows, decodes, deep = 0, still = 0, waited = 0;
    reopen(f, served());
    f->position_ns = 500;
    for (uint64_t id = 1; id <= 16; id++) (void)feed(f, request(id, 4, 900, PRIORITY_NORMAL));
    for (int i = 0; i < 60; i++) assert_true(timed_turn(f, &rows, &decodes));
    struct event e = request(100, 4000, 1, PRIORITY_NORMAL);
    e.submit.tokens = other;
    (void)feed(f, e);
    for (int i = 0; i < 1600 && deep < 1500; i++) {
        assert_true(timed_turn(f, &rows, &decodes));
        still = f->prefilled[0] ? 0 : still + 1;
        assert_in_range(still, 0, 1); /* the most urgent prompt: each window + 1 Steps */
        deep += f->prefilled[0];
    }
    assert_true(deep >= 1500);
    e = request(101, 12, 1, PRIORITY_NORMAL);
    (void)feed(f, e);
    do {
        assert_true(timed_turn(f, &rows, &decodes));
        still = f->prefilled[0] ? 0 : still + 1;
        assert_in_range(still, 0, 1);
        waited++;
    } while (!f->prefilled[1]);
    assert_in_range(waited, 1, 2);
}

/* Two prompts so deep that one row takes more than their share of the time leave it to a short one.
 */
static void test_short_behind_two_deep(void **state)
{
    struct fixture *f = *state;
    static const int32_t deep[2][6000] = {{9}, {8}};
    uint32_t rows, decodes, first_deep = 0;
    reopen(f, served());
    f->position_ns = 500;
    for (uint64_t id = 1; id <= 16; id++) (void)feed(f, request(id, 4, 900, PRIORITY_NORMAL));
    for (int i = 0; i < 60; i++) assert_true(timed_turn(f, &rows, &decodes));
    for (uint64_t i = 0; i < 2; i++) {
        struct event e = request(100 + 2 * i, 6000, 1, PRIORITY_NORMAL);
        e.submit.tokens = deep[i];
        (void)feed(f, e);
    }
    while (first_deep < 1400) {
        assert_true(timed_turn(f, &rows, &decodes));
        first_deep += f->prefilled[0];
    }
    for (int n = 0; n < 20; n++) {
        (void)feed(f, request(101, 12, 1, PRIORITY_NORMAL));
        assert_true(timed_turn(f, &rows, &decodes));
        assert_int_equal(f->ended, 101);
    }
}

/* Prompts that come together while one sequence decodes are done in twice what their rows alone
 * take: the decode does not keep them small. */
static void test_crowd(void **state)
{
    struct fixture *f = *state;
    struct core_config k = served();
    uint32_t rows, decodes;
    k.share = false;
    reopen(f, k);
    for (uint64_t id = 1; id <= 16; id++) (void)feed(f, request(id, 4, 40, PRIORITY_NORMAL));
    (void)feed(f, request(17, 4, 900, PRIORITY_NORMAL));
    for (int i = 0; i < 120; i++) assert_true(timed_turn(f, &rows, &decodes));
    for (uint64_t id = 20; id < 36; id++) (void)feed(f, request(id, 32, 1, PRIORITY_NORMAL));
    uint64_t came_ns = f->now_ns;
    do assert_true(timed_turn(f, &rows, &decodes));
    while (rows > decodes);
    assert_in_range(f->now_ns - came_ns, 1, 2 * 16 * takes(32, 0) - 32 * takes(0, 0));
}

/* However many prompts wait, the time is predicted only for those that the Step has room for. */
static void test_many_prompts(void **state)
{
    struct fixture *f = *state;
    struct core_config k = served();
    uint32_t rows, decodes, prefilled = 0;
    k.n_pages = 8000;
    k.share = false;
    k.max_live = k.max_running = k.max_per_client = 1000;
    reopen(f, k);
    for (uint64_t id = 1; id <= 16; id++) (void)feed(f, request(id, 4, 300, PRIORITY_NORMAL));
    for (int i = 0; i < 60; i++) assert_true(timed_turn(f, &rows, &decodes));
    for (uint64_t id = 200; id < 1000; id++) (void)feed(f, request(id, 90, 1, PRIORITY_NORMAL));
    for (int i = 0; i < 100; i++) {
        n_predicted = 0;
        assert_true(timed_turn(f, &rows, &decodes));
        assert_in_range(n_predicted, 1, 300);
        prefilled += rows - decodes;
    }
    assert_true(prefilled > 200);
}

/* Nothing decodes: Steps of deep rows are short all the same, so that a new request has its turn
 * soon. */
static void test_steps_are_short(void **state)
{
    struct fixture *f = *state;
    static const int32_t other[7000] = {9};
    uint32_t rows, decodes, n = 0;
    reopen(f, served());
    f->position_ns = 500;
    struct event e = request(100, 7000, 1, PRIORITY_NORMAL);
    e.submit.tokens = other;
    (void)feed(f, e);
    while (timed_turn(f, &rows, &decodes)) {
        /* What the model of times may be wrong by, once it has seen some. */
        if (++n > 20) assert_in_range(takes(rows, 0) + f->depth * f->position_ns, 0, 172 * MS);
    }
    assert_in_range(n, 60, 300);
}

/* Ten minutes of more normal requests than can be served: a low one is served within a minute. */
static void test_nobody_starves(void **state)
{
    struct fixture *f = *state;
    struct core_config k = served();
    uint32_t rows, decodes, low = 0;
    uint64_t id = 1, sent_ns[10] = {0}, next_low = 0;
    k.max_running = 2;
    reopen(f, k);
    uint64_t start = f->now_ns, next_ns = start, low_ns = start;
    while (f->now_ns < start + 600 * NS_PER_S) {
        for (; next_ns <= f->now_ns; next_ns += 40 * MS)
            (void)feed(f, request(1000 + id++, 4, 40, PRIORITY_NORMAL));
        if (low < 10 && f->now_ns >= low_ns) { /* one a minute, ids 1 to 10; refused: asked again */
            struct actions a = feed(f, request(low + 1, 4, 40, PRIORITY_LOW));
            if (!first(a, ACT_END)) {
                sent_ns[low++] = f->now_ns;
                low_ns += 60 * NS_PER_S;
            }
        }
        assert_true(timed_turn(f, &rows, &decodes));
        if (f->ended && f->ended <= 10) {
            assert_int_equal(f->ended, next_low + 1);
            assert_in_range(f->now_ns - sent_ns[next_low++], 0, 60 * NS_PER_S);
        }
    }
    assert_true(next_low >= 9);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(test_slices),
        TEST(test_limits),
        TEST(test_one_request),
        TEST(test_silent_worker),
        TEST(test_overdue_step),
        TEST(test_other_version),
        TEST(test_probe_digest),
        TEST(test_results_that_are_not_asked_for),
        TEST(test_stalled_coordinator),
        TEST(test_beginnings),
        TEST(test_everybody_decodes),
        TEST(test_preempts_for_the_critical),
        TEST(test_order),
        TEST(test_client_cap),
        TEST(test_prefix_statistics),
        TEST(test_rides_behind),
        TEST(test_short_behind_long),
        TEST(test_received),
        TEST(test_step_budget),
        TEST(test_deep_prompt),
        TEST(test_short_behind_two_deep),
        TEST(test_crowd),
        TEST(test_many_prompts),
        TEST(test_steps_are_short),
        TEST(test_nobody_starves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
