/* Requests: results are compared with what was asked for, the last stage is told of every end;
 * tenants, replays, priorities, and who is suspected when generations are lost. */
#include "tests/lib/core_fixture.h"

/* The Step that is composed now, or NULL. */
static const struct msg_step *compose(struct fixture *f)
{
    const struct action *a = first(feed(f, (struct event){.type = EV_COMPOSE}), ACT_STEP);
    return a ? a->step : NULL;
}

static struct actions answer(struct fixture *f, uint64_t number, struct msg_run_result run)
{
    static struct msg_run_result kept;
    static struct msg_result r;
    kept = run;
    r = (struct msg_result){.epoch = f->epoch, .number = number, .n_runs = 1, .runs = &kept};
    return feed(f, (struct event){.type = EV_RESULT, .result = &r});
}

/* ---- results ---- */

/* Each result differs from what was asked for in one thing. It ends the generation, its worker is
 * named, nothing of it counts; the request is answered by the next generation. */
static void test_wrong_results(void **state)
{
    struct fixture *f = *state;
    static const int32_t tokens[2] = {7, 8}, top_ids[2] = {3, 4}, foreign_ids[2] = {3, 50};
    static const float chosen[2] = {-1, -1}, top[2] = {-1, -2};
    const struct msg_logprobs two = {chosen, 2, top_ids, top};
    const struct msg_run_result good = {.request = 9,
                                        .attempt = 1,
                                        .sample = 2,
                                        .first_pos = 4,
                                        .n_tokens = 1,
                                        .tokens = tokens,
                                        .logprobs = two};
    struct msg_run_result wrong[10];
    for (int i = 0; i < 10; i++) wrong[i] = good;
    wrong[0].dead = true;
    wrong[1].first_pos = 5;
    wrong[2].request = 8;
    wrong[3].attempt = 2;
    wrong[4].sample = 1;
    wrong[5].n_tokens = 2;
    wrong[6].n_tokens = 0;
    wrong[7].logprobs = (struct msg_logprobs){0};
    wrong[8].logprobs.n_top = 1;
    wrong[9].logprobs.top_ids = foreign_ids;
    for (int i = 0; i < 10; i++) {
        if (i) {
            close_fixture(state);
            open_fixture(state);
        }
        make_ready(f);
        struct event e = request(9, 4, 2, PRIORITY_NORMAL);
        e.submit.sample = 2;
        e.submit.sampling.logprobs = true;
        e.submit.sampling.top_logprobs = 2;
        (void)feed(f, e);
        struct actions a = answer(f, compose(f)->number, wrong[i]);
        assert_null(first(a, ACT_TOKENS));
        assert_null(first(a, ACT_END));
        assert_non_null(first(a, ACT_LINK_CLOSE));
        assert_non_null(strstr(first(a, ACT_NOTE)->note, "worker b is not what was asked for"));
        f->now_ns += 200 * MS;
        begin_generation(f, feed(f, (struct event){.type = EV_TICK}));
        struct msg_run_result again = good;
        again.attempt = 2;
        a = answer(f, compose(f)->number, again);
        assert_int_equal(first(a, ACT_TOKENS)->tokens.tokens[0], 7);
        assert_int_equal(first(a, ACT_TOKENS)->tokens.logprobs.n_top, 2);
    }
}

/* Log-probabilities that nobody asked for are not taken either. */
static void test_uninvited_logprobs(void **state)
{
    struct fixture *f = *state;
    static const int32_t token = 7;
    static const float chosen = -1;
    make_ready(f);
    (void)submit(f, 9, 4, 2);
    struct msg_run_result run = {.request = 9,
                                 .attempt = 1,
                                 .first_pos = 4,
                                 .n_tokens = 1,
                                 .tokens = &token,
                                 .logprobs = {.chosen = &chosen}};
    assert_non_null(first(answer(f, compose(f)->number, run), ACT_LINK_CLOSE));
}

/* An error ends the request that it names, and nothing else. */
static void test_a_run_that_failed(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)submit(f, 9, 4, 2);
    struct msg_run_result run = {.request = 9, .attempt = 1, .first_pos = 4, .error = "not finite"};
    struct actions a = answer(f, compose(f)->number, run);
    expect_end(a, STATUS_INTERNAL, "not finite");
    assert_null(first(a, ACT_LINK_CLOSE));
}

/* ---- ends ---- */

/* However a request ends, the next Step closes it at the last stage, once, if it was opened there.
 */
static void test_ended_requests_are_closed(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.window = 1;
    reopen(f, k);
    (void)submit(f, 1, 3, 1); /* ends by its length */
    assert_true(turn(f, &s, r));
    (void)submit(f, 2, 3, 5);
    assert_true(turn(f, &s, r));
    assert_int_equal(s.n_closed, 1);
    assert_int_equal(s.closed[0], 1);
    (void)feed(f, (struct event){.type = EV_STOP, .request = {2, ""}}); /* by its text */
    (void)submit(f, 3, 3, 5);
    assert_true(turn(f, &s, r));
    assert_int_equal(s.n_closed, 1);
    assert_int_equal(s.closed[0], 2);
    assert_true(turn(f, &s, r));
    assert_int_equal(s.n_closed, 0);
    (void)feed(f, (struct event){.type = EV_CANCEL, .request = {3, "asked"}});
    (void)submit(f, 4, 30, 5); /* 16 rows, none of which wants a token: it is not open yet */
    assert_int_equal(compose(f)->closed[0], 3);
    (void)feed(f, (struct event){.type = EV_CANCEL, .request = {4, "asked"}});
    struct msg_result none = {.epoch = f->epoch, .number = s.number + 1};
    (void)feed(f, (struct event){.type = EV_RESULT, .result = &none});
    (void)submit(f, 5, 3, 5);
    assert_true(turn(f, &s, r));
    assert_int_equal(s.n_closed, 0);
}

/* A grammar goes with what the last stage is told first, is shared by those that have it, and given
 * back by each; so many requests may have one. */
static void test_grammars(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    k.max_live = k.max_per_client = LIMIT_CONSTRAINED + 8;
    reopen(f, k);
    struct blob *grammar = blob_new("FG", 2);
    struct event e = request(1, 3, 5, PRIORITY_NORMAL);
    e.submit.grammar = grammar;
    (void)feed(f, e);
    const struct msg_step *s = compose(f);
    assert_true(s->n_runs == 1 && s->runs[0].has_open);
    assert_int_equal(s->runs[0].open.grammar_bytes, 2);
    assert_memory_equal(s->runs[0].open.grammar, "FG", 2);
    for (uint64_t id = 2; id <= LIMIT_CONSTRAINED; id++) {
        e.submit.request = id;
        assert_null(first(feed(f, e), ACT_END));
    }
    assert_int_equal(grammar->owners, 1 + LIMIT_CONSTRAINED);
    e.submit.request = 5000;
    expect_end(feed(f, e), STATUS_RESOURCE_EXHAUSTED, "1024 requests with a format are live");
    e.submit.request = 5001;
    e.submit.grammar = NULL;
    assert_null(first(feed(f, e), ACT_END));
    for (uint64_t id = 1; id <= LIMIT_CONSTRAINED; id += 2)
        (void)feed(f, (struct event){.type = EV_CANCEL, .request = {id, "asked"}});
    assert_int_equal(grammar->owners, 1 + LIMIT_CONSTRAINED / 2);
    e.submit.request = 5002;
    e.submit.grammar = grammar;
    assert_null(first(feed(f, e), ACT_END));
    close_fixture(state); /* with requests that are live */
    assert_int_equal(grammar->owners, 1);
    blob_drop(grammar);
    open_fixture(state);
}

static void test_end_tokens(void **state)
{
    struct fixture *f = *state;
    static const int32_t eog = 2;
    make_ready(f);
    for (uint64_t id = 1; id <= 2; id++) {
        struct event e = request(id, 3, 4, PRIORITY_NORMAL);
        e.submit.ignore_eos = id == 2;
        (void)feed(f, e);
        struct msg_run_result run = {
            .request = id, .attempt = 1, .first_pos = 3, .n_tokens = 1, .tokens = &eog};
        struct actions a = answer(f, compose(f)->number, run);
        assert_true(!first(a, ACT_END) == (id == 2));
        assert_true(!first(a, ACT_TOKENS) == (id == 1));
    }
}

/* The time in the queue that a client is told ends when the first Step with its rows is issued. */
static void test_queue_time(void **state)
{
    struct fixture *f = *state;
    static const int32_t token = 7;
    make_ready(f);
    (void)submit(f, 9, 4, 2);
    f->now_ns += 500 * MS;
    uint64_t number = compose(f)->number;
    f->now_ns += 900 * MS;
    struct msg_run_result run = {
        .request = 9, .attempt = 1, .first_pos = 4, .n_tokens = 1, .tokens = &token};
    struct actions a = answer(f, number, run);
    assert_int_equal(first(a, ACT_TOKENS)->tokens.queued_ns, 500 * MS);
}

/* ---- tenants, replays ---- */

static void test_tenants_share_nothing(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.window = 1;
    k.rows_max = 64;
    reopen(f, k);
    static const uint64_t tenants[] = {1, 2, 1};
    for (uint64_t id = 1; id <= 3; id++) {
        struct event e = request(id, 40, 1, PRIORITY_NORMAL);
        e.submit.tenant = tenants[id - 1];
        (void)feed(f, e);
        assert_true(turn(f, &s, r));
        assert_int_equal(r[0].n_rows, id == 3 ? 8 : 40); /* two pages of 16 are found */
    }
}

/* A replay has the rows of prompt and answer so far, and says where the prompt ends. */
static void test_replay(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.window = 1;
    reopen(f, k);
    (void)submit(f, 9, 5, 9);
    for (int i = 0; i < 3; i++) assert_true(turn(f, &s, r));
    (void)from(f, 2, (struct msg_from_worker){.type = FROM_FAULT, .text = "broken"});
    f->now_ns += 200 * MS;
    begin_generation(f, feed(f, (struct event){.type = EV_TICK}));
    assert_true(turn(f, &s, r));
    assert_int_equal(r[0].first_pos, 0);
    assert_int_equal(r[0].n_rows, 8);
    assert_true(r[0].has_open);
    assert_int_equal(r[0].open.boundary, 5);
    assert_int_equal(r[0].attempt, 2);
}

/* ---- classes ---- */

static void open_two_places(struct fixture *f)
{
    struct core_config k = config();
    k.max_live = k.max_per_client = 8;
    k.max_running = 2;
    k.window = 1;
    reopen(f, k);
}

/* A low request that rose to high by waiting preempts nobody. It does not keep one that asked for
 * high from doing so, and is the next of its class. */
static void test_priority_is_not_inverted(void **state)
{
    struct fixture *f = *state;
    struct msg_step s;
    struct msg_run r[8];
    struct msg_status now;
    open_two_places(f);
    for (uint64_t id = 1; id <= 2; id++) (void)feed(f, request(id, 3, 40, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    (void)feed(f, request(3, 3, 4, PRIORITY_LOW));
    f->now_ns += 21000 * MS;
    assert_true(turn(f, &s, r));
    assert_true(ready_runs(f, 1) && ready_runs(f, 2) && !ready_runs(f, 3)); /* it rose by waiting */
    (void)feed(f, request(4, 3, 4, PRIORITY_HIGH));
    (void)feed(f, request(5, 3, 4, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    assert_true(ready_runs(f, 1) && !ready_runs(f, 2) && !ready_runs(f, 3) && ready_runs(f, 4) &&
                !ready_runs(f, 5));
    core_status(f->core, &now);
    assert_int_equal(now.replicas[0].cache.preemptions, 1);
    (void)feed(f, (struct event){.type = EV_CANCEL, .request = {4, "asked"}});
    assert_true(turn(f, &s, r));
    assert_true(ready_runs(f, 1) && !ready_runs(f, 2) && ready_runs(f, 3) &&
                !ready_runs(f, 5)); /* the next of all */
}

/* One that rose and may preempt nobody does not hide one that may, though it would be next. */
static void test_the_risen_hide_nobody(void **state)
{
    struct fixture *f = *state;
    struct msg_step s;
    struct msg_run r[8];
    open_two_places(f);
    for (uint64_t id = 1; id <= 2; id++) (void)feed(f, request(id, 3, 60, PRIORITY_NORMAL));
    (void)feed(f, request(3, 3, 4, PRIORITY_LOW));
    assert_true(turn(f, &s, r));
    f->now_ns += 10000 * MS;
    (void)feed(f, request(4, 3, 4, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    f->now_ns += 11000 * MS;
    (void)feed(f, request(5, 3, 4, PRIORITY_HIGH)); /* now 3 and 4 have risen to high */
    assert_true(turn(f, &s, r));
    assert_true(ready_runs(f, 1) && !ready_runs(f, 2) && !ready_runs(f, 3) && !ready_runs(f, 4) &&
                ready_runs(f, 5));
}

/* A running request has the class to which it rose, so that those who come later do not preempt
 * it. */
static void test_a_risen_class_lasts(void **state)
{
    struct fixture *f = *state;
    struct msg_step s;
    struct msg_run r[8];
    open_two_places(f);
    (void)feed(f, request(1, 3, 40, PRIORITY_LOW));
    f->now_ns += 61000 * MS;
    (void)feed(f, request(2, 3, 40, PRIORITY_HIGH));
    assert_true(turn(f, &s, r));
    assert_true(ready_runs(f, 1) && ready_runs(f, 2));
    for (uint32_t i = 0; i < 2; i++) /* not better than high, however long it waited */
        assert_int_equal(core_sequence_at(f->core, i).class, PRIORITY_HIGH);
    (void)feed(f, request(3, 3, 40, PRIORITY_NORMAL));
    (void)feed(f, request(4, 3, 40, PRIORITY_HIGH));
    assert_true(turn(f, &s, r));
    assert_true(ready_runs(f, 1) && ready_runs(f, 2));
}

/* What a request waited before it was preempted still counts for its class afterwards. */
static void test_waiting_before_a_preemption_counts(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.max_live = k.max_per_client = 8;
    k.max_running = k.window = 1;
    k.worker_timeout_ns = 60 * NS_PER_S;
    reopen(f, k);
    (void)feed(f, request(1, 3, 2, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    (void)feed(f, request(2, 3, 9, PRIORITY_LOW));
    f->now_ns += 9000 * MS;
    assert_true(turn(f, &s, r)); /* the last of request 1 */
    assert_true(turn(f, &s, r)); /* 2 runs, after nine seconds */
    assert_int_equal(r[0].request, 2);
    (void)feed(f, request(3, 3, 2, PRIORITY_CRITICAL));
    assert_true(turn(f, &s, r)); /* and is preempted */
    assert_int_equal(r[0].request, 3);
    f->now_ns += 2000 * MS; /* eleven seconds in all: it counts like normal */
    (void)feed(f, request(4, 3, 2, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    assert_true(turn(f, &s, r));
    assert_int_equal(r[0].request, 2);
}

/* A request is admitted if, beside its own pages, one is left to write on and one for each request
 * that runs. */
static void test_room_to_write_on(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    k.share = false;
    k.window = 1;
    k.rows_max = 100;
    k.n_pages = 8;
    reopen(f, k);
    (void)submit(f, 1, 48, 9); /* 3 pages */
    (void)compose(f);
    (void)submit(f, 2, 64, 9); /* 4, one to write on, and one for request 1: 9 of 8 */
    struct msg_run_result run = {.request = 1, .attempt = 1, .first_pos = 48, .n_tokens = 1};
    static const int32_t token = 7;
    run.tokens = &token;
    (void)answer(f, 2, run);
    (void)compose(f);
    assert_true(ready_runs(f, 1) && !ready_runs(f, 2));
}

/* A page that two requests share is not gained when one of them is preempted. */
static void test_shared_pages_are_no_gain(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.window = 1;
    k.rows_max = 100;
    reopen(f, k);
    (void)feed(f, request(1, 48, 9, PRIORITY_LOW));
    assert_true(turn(f, &s, r));
    static const int32_t alike[48] = {1, 1, 1, [40] = 5}; /* but for the last page */
    struct event second = request(2, 48, 9, PRIORITY_LOW);
    second.submit.tokens = alike;
    (void)feed(f, second);
    assert_true(turn(f, &s, r));
    assert_int_equal(core_pages(f->core, 0).n_held,
                     5); /* two that they share, two of 1, one of 2 */
    struct event e = request(3, 64, 9, PRIORITY_NORMAL); /* 4, one to write on, one for another */
    static const int32_t other[64] = {9};
    e.submit.tokens = other;
    (void)feed(f, e);
    assert_true(turn(f, &s, r));
    struct msg_status now;
    core_status(f->core, &now);
    assert_int_equal(now.replicas[0].cache.preemptions, 2); /* 3 and the one of 2 were too few */
}

/* No request of the same class overtakes one that waits for pages. */
static void test_nobody_overtakes(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.max_live = k.max_per_client = 8;
    k.share = false;
    k.window = 1;
    k.rows_max = 100;
    reopen(f, k);
    (void)feed(f, request(1, 48, 9, PRIORITY_HIGH)); /* 3 pages of 8 */
    (void)feed(f, request(2, 10, 9, PRIORITY_LOW));
    assert_true(turn(f, &s, r));
    (void)feed(f, request(3, 64, 9, PRIORITY_NORMAL)); /* more than there is, also without 2 */
    (void)feed(f, request(4, 10, 9, PRIORITY_NORMAL));
    assert_true(turn(f, &s, r));
    assert_true(ready_runs(f, 1) && ready_runs(f, 2) && !ready_runs(f, 3) && !ready_runs(f, 4));
    /* Nor does one of a better class that could not preempt one that runs. */
    reopen(f, k);
    (void)feed(f, request(1, 48, 9, PRIORITY_HIGH));
    assert_true(turn(f, &s, r));
    (void)feed(f, request(2, 64, 9, PRIORITY_LOW));
    f->now_ns += 21000 * MS;
    (void)feed(f, request(3, 10, 9, PRIORITY_HIGH));
    assert_true(turn(f, &s, r));
    assert_true(ready_runs(f, 1) && !ready_runs(f, 2) && !ready_runs(f, 3));
}

/* ---- suspects ---- */

static void lose_generation(struct fixture *f, struct msg_from_worker m)
{
    assert_non_null(first(from(f, 2, m), ACT_LINK_CLOSE));
    f->now_ns += 2500 * MS; /* longer than a hold-down */
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(f, w, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    begin_generation(f, m.type == FROM_GOODBYE ? hello(f, 2, "b")
                                               : feed(f, (struct event){.type = EV_TICK}));
}

/* A generation is lost with a Step in flight that has rows of request 1 and none of request 2,
 * which runs too, and the next one with a Step that has rows of both. So 1, and only 1, must run
 * alone to show that it is innocent. */
static void test_only_who_was_in_the_step(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.window = 1;
    k.rows_max = 64;
    k.replica_wait_ns = 60 * NS_PER_S;
    reopen(f, k);
    (void)submit(f, 1, 3, 40);
    (void)submit(f, 2, 4, 40);
    assert_true(turn(f, &s, r)); /* both prompts */
    assert_int_equal(s.n_runs, 2);
    assert_int_equal(compose(f)->n_runs, 1); /* over two stages, one decodes a Step */
    lose_generation(f, (struct msg_from_worker){.type = FROM_FAULT, .text = "killed"});
    assert_int_equal(compose(f)->n_runs, 2); /* their replays */
    lose_generation(f, (struct msg_from_worker){.type = FROM_FAULT, .text = "killed"});
    (void)submit(f, 3, 5, 40);
    assert_true(turn(f, &s, r));
    assert_int_equal(s.n_runs, 1);
    assert_int_equal(r[0].request, 1);
    assert_true(ready_runs(f, 1) && !ready_runs(f, 2) && !ready_runs(f, 3));
    assert_true(turn(f, &s, r));
    assert_true(ready_runs(f, 1) && ready_runs(f, 2) &&
                ready_runs(f, 3)); /* it was not the cause */
}

/* Generation after generation is lost with rows of a request in flight, but each time what was lost
 * comes back before the next loss: it is never on trial, and never given up. */
static void test_progress_shows_innocence(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.window = 1;
    k.rows_max = 64;
    k.replica_wait_ns = 60 * NS_PER_S;
    reopen(f, k);
    (void)submit(f, 1, 3, 40);
    (void)submit(f, 2, 4, 40);
    for (int i = 0; i < 3; i++) {
        assert_true(turn(f, &s, r)); /* both, and each gets its next token */
        assert_int_equal(s.n_runs, 2);
        assert_int_equal(compose(f)->n_runs, 1);
        assert_true(ready_runs(f, 1) && ready_runs(f, 2));
        lose_generation(f, (struct msg_from_worker){.type = FROM_FAULT, .text = "killed"});
    }
    assert_true(turn(f, &s, r));
    assert_int_equal(s.n_runs, 2);
}

/* The link from the first worker to the second breaks with both requests in flight; after ms both
 * workers are heard of, and form the next generation. */
static void break_link(struct fixture *f, uint64_t ms)
{
    assert_int_equal(compose(f)->n_runs, 2);
    struct msg_from_worker m = {.type = FROM_FAULT, .downstream = true, .text = "its link closed"};
    assert_non_null(first(from(f, 1, m), ACT_LINK_CLOSE));
    f->now_ns += ms * MS;
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(f, w, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    f->now_ns += 50 * MS;
    begin_generation(f, feed(f, (struct event){.type = EV_TICK}));
}

/* Two requests, and then so many links that break, each for ms: how many of them compute next. One
 * that does so alone is on trial. */
static uint32_t runs_after_broken_links(struct fixture *f, int times, uint64_t ms)
{
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.window = 1;
    k.rows_max = 64;
    k.replica_wait_ns = 60 * NS_PER_S;
    reopen(f, k);
    (void)submit(f, 1, 3, 40);
    (void)submit(f, 2, 4, 40);
    for (int i = 0; i < times; i++) break_link(f, ms);
    assert_true(turn(f, &s, r));
    return s.n_runs;
}

/* The process behind a broken link is heard of again: it did not die, and no request has killed
 * it, however often that comes. */
static void test_who_lives_was_not_killed(void **state)
{
    assert_int_equal(runs_after_broken_links(*state, 4, 600), 2);
}

/* What a worker said just before its end may come after its link broke, and proves nothing. */
static void test_last_words_prove_nothing(void **state)
{
    assert_int_equal(runs_after_broken_links(*state, 2, 100), 1);
}

/* A worker that leaves in order makes no request a suspect. */
static void test_goodbyes(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_step s;
    struct msg_run r[8];
    k.window = 1;
    k.replica_wait_ns = 60 * NS_PER_S;
    reopen(f, k);
    (void)submit(f, 1, 3, 40);
    (void)submit(f, 2, 4, 40);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(compose(f)->n_runs, 2);
        lose_generation(f, (struct msg_from_worker){.type = FROM_GOODBYE});
    }
    assert_true(turn(f, &s, r));
    assert_int_equal(s.n_runs, 2);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(test_wrong_results),
        TEST(test_uninvited_logprobs),
        TEST(test_a_run_that_failed),
        TEST(test_ended_requests_are_closed),
        TEST(test_grammars),
        TEST(test_end_tokens),
        TEST(test_queue_time),
        TEST(test_tenants_share_nothing),
        TEST(test_replay),
        TEST(test_priority_is_not_inverted),
        TEST(test_the_risen_hide_nobody),
        TEST(test_a_risen_class_lasts),
        TEST(test_waiting_before_a_preemption_counts),
        TEST(test_room_to_write_on),
        TEST(test_shared_pages_are_no_gain),
        TEST(test_nobody_overtakes),
        TEST(test_only_who_was_in_the_step),
        TEST(test_progress_shows_innocence),
        TEST(test_who_lives_was_not_killed),
        TEST(test_last_words_prove_nothing),
        TEST(test_goodbyes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
