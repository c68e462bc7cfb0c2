/* A core with two replicas of two stages: each has its own workers, generations, Steps and pages;
 * they share the queue, the fleet and the numbering of generations. */
#include "tests/lib/core_fixture.h"

enum { REPLICAS = 2, STAGES = 2 };

struct pair {
    struct fixture f;
    struct epoch epochs[REPLICAS];
    struct ready_step steps[REPLICAS]; /* the last that was issued */
    uint32_t n_steps[REPLICAS];
    uint64_t closed[REPLICAS]; /* the last request that a Step closed */
};

static struct pair p;

/* Keeps what the actions say of each replica. */
static void look(struct actions a)
{
    for (size_t i = 0; i < a.n; i++) {
        const struct action *x = &a.items[i];
        if (x->type == ACT_TO_WORKER && x->to_worker.msg->type == TO_ASSIGN)
            p.epochs[x->to_worker.msg->epoch.replica] = x->to_worker.msg->epoch;
        if (x->type != ACT_STEP) continue;
        uint32_t r = x->step->epoch.replica;
        assert_true(epoch_eq(x->step->epoch, p.epochs[r]));
        p.steps[r] = (struct ready_step){.number = x->step->number, .n_runs = x->step->n_runs};
        p.n_steps[r]++;
        for (uint32_t k = 0; k < x->step->n_runs; k++) p.steps[r].runs[k] = x->step->runs[k];
        if (x->step->n_closed) p.closed[r] = x->step->closed[0];
    }
}

static void event(struct event e)
{
    look(feed(&p.f, e));
}

static void say(uint64_t who, uint32_t replica, struct msg_from_worker m)
{
    p.f.epoch = p.epochs[replica];
    look(from(&p.f, who, m));
}

static void join(uint64_t who)
{
    char name[8];
    (void)snprintf(name, sizeof name, "w%u", (unsigned)who);
    look(hello(&p.f, who, name));
}

static void compose(void)
{
    event((struct event){.type = EV_COMPOSE});
}

static const struct msg_replica_status *status(uint32_t replica)
{
    static struct msg_status s;
    core_status(p.f.core, &s);
    assert_int_equal(s.n_replicas, REPLICAS);
    return &s.replicas[replica];
}

static uint64_t messages_dropped(void)
{
    struct msg_status s;
    core_status(p.f.core, &s);
    return s.messages_dropped;
}

/* The workers of the replica's generation load and link. */
static void link_up(uint32_t replica, uint64_t first, uint64_t second)
{
    const uint64_t who[] = {first, second};
    for (int i = 0; i < STAGES; i++)
        say(who[i], replica, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    for (int i = 0; i < STAGES; i++)
        say(who[i], replica, (struct msg_from_worker){.type = FROM_LINKED});
    event((struct event){.type = EV_LINK_UP, .link = {p.epochs[replica]}});
}

static void answer(uint32_t replica)
{
    struct msg_run_result runs[READY_RUNS];
    const struct ready_step *s = &p.steps[replica];
    const struct msg_step step = {.runs = s->runs, .n_runs = s->n_runs};
    struct msg_result m = {
        .epoch = p.epochs[replica], .number = s->number, .digest = 5, .runs = runs};
    if (s->runs[0].kind != RUN_PROBE) m.n_runs = answers_of(&step, runs);
    event((struct event){.type = EV_RESULT, .result = &m});
}

static void begin(uint32_t replica, uint64_t first, uint64_t second)
{
    link_up(replica, first, second);
    answer(replica);
    assert_true(status(replica)->ready);
}

static struct core_config pair_config(void)
{
    struct core_config k = config();
    k.n_replicas = REPLICAS;
    k.window = 1;
    k.max_running = 1;
    k.replica_wait_ns = 0;
    return k;
}

/* Both replicas serve: w1 and w2 the first, w3 and w4 the second. */
static int open_pair(void **state)
{
    (void)state;
    struct core_config k = pair_config();
    p = (struct pair){.f = {.core = core_open(&k), .now_ns = 1000 * MS}};
    for (uint64_t who = 1; who <= 4; who++) join(who);
    begin(0, 1, 2);
    begin(1, 3, 4);
    return 0;
}

static int close_pair(void **state)
{
    (void)state;
    core_close(p.f.core);
    return 0;
}

static void test_each_has_its_own(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b"};
    for (uint32_t r = 0; r < REPLICAS; r++) {
        const struct msg_replica_status *s = status(r);
        assert_string_equal(s->name, names[r]);
        assert_int_equal(s->generation, r + 1); /* numbered over both */
        assert_int_equal(s->n_workers, STAGES);
        for (uint32_t i = 0; i < STAGES; i++)
            assert_int_equal(s->workers[i].name[1], '1' + (char)(r * STAGES + i));
        assert_int_equal(p.epochs[r].replica, r);
    }
}

/* Requests run where there is room, each in pages and Steps of its replica. */
static void test_both_run(void **state)
{
    (void)state;
    (void)submit(&p.f, 1, 20, 2);
    (void)submit(&p.f, 2, 4, 2);
    compose();
    for (uint32_t r = 0; r < REPLICAS; r++) {
        assert_int_equal(core_sequence_at(p.f.core, r).request, r + 1);
        assert_int_equal(core_sequence_at(p.f.core, r).replica, r);
        assert_int_equal(core_in_flight(p.f.core, r), 1);
        assert_int_equal(p.steps[r].runs[0].request, r + 1);
    }
    assert_int_equal(core_pages(p.f.core, 0).n_held, 1); /* a chunk of rows_max is one page */
    assert_int_equal(core_pages(p.f.core, 1).n_held, 1);
    answer(1);
    compose();
    answer(1);
    assert_int_equal(first(p.f.last, ACT_END)->end.request, 2);
    assert_int_equal(core_pages(p.f.core, 1).n_held, 0);
    assert_int_equal(core_pages(p.f.core, 0).n_held, 1);
    assert_int_equal(status(0)->steps, 1);
    assert_int_equal(status(1)->steps, 2);
}

/* What one replica loses goes on at the other, without waiting for one; the next generation has a
 * number that none has had. */
static void test_the_other_goes_on(void **state)
{
    (void)state;
    (void)submit(&p.f, 1, 4, 3);
    compose();
    answer(0);
    compose();
    assert_true(p.steps[0].runs[0].kind == RUN_DECODE);
    event((struct event){.type = EV_LINK_LOST, .link = {p.epochs[0]}});
    assert_null(first(p.f.last, ACT_END)); /* although replica_wait is 0 */
    assert_int_equal(first(p.f.last, ACT_LINK_CLOSE)->link.epoch.replica, 0);
    compose();
    assert_int_equal(p.steps[1].runs[0].request, 1);
    assert_int_equal(p.steps[1].runs[0].attempt, 2);
    assert_int_equal(p.steps[1].runs[0].n_rows, 5); /* the prompt and its first token */
    assert_true(p.steps[1].runs[0].has_open);
    answer(1);
    assert_int_equal(first(p.f.last, ACT_TOKENS)->tokens.first_index, 1);
    p.f.now_ns += 500 * MS; /* more than the pause before another generation */
    for (uint64_t who = 1; who <= 4; who++)
        say(who, who > 2, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    event((struct event){.type = EV_TICK});
    assert_int_equal(p.epochs[0].generation, 3);
    begin(0, 1, 2);
}

/* Results, lost links and faults that name another epoch than their replica's change nothing. */
static void test_epochs(void **state)
{
    (void)state;
    (void)submit(&p.f, 1, 4, 3);
    compose();
    struct epoch wrong = {p.epochs[0].incarnation, 1, p.epochs[0].generation};
    struct epoch none = {p.epochs[0].incarnation, REPLICAS, p.epochs[0].generation};
    const struct epoch others[] = {wrong, none, p.epochs[1]};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        uint64_t dropped = messages_dropped();
        struct msg_result m = {.epoch = others[i], .number = 2};
        if (i < 2) {
            event((struct event){.type = EV_RESULT, .result = &m});
            assert_int_equal(messages_dropped(), dropped + 1);
            event((struct event){.type = EV_LINK_LOST, .link = {others[i]}});
        }
        say(1, 1, (struct msg_from_worker){.type = FROM_FAULT}); /* w1 serves the other one */
        assert_true(status(0)->ready && status(1)->ready);
    }
    assert_int_equal(core_in_flight(p.f.core, 0), 1);
}

/* A request that is preempted in one replica and admitted to the other is opened there, and closed
 * in the first with its next Step. */
static void test_moves(void **state)
{
    (void)state;
    event(request(1, 4, 3, PRIORITY_NORMAL));
    compose();
    answer(0); /* its parameters were told to the first replica's last stage */
    event(request(2, 4, 3, PRIORITY_CRITICAL));
    compose();
    assert_int_equal(p.steps[0].runs[0].request, 2);
    assert_int_equal(p.steps[1].runs[0].request, 1);
    assert_true(p.steps[1].runs[0].has_open);
    assert_int_equal(core_sequence_at(p.f.core, 1).replica, 1);
    answer(0);
    compose();
    assert_int_equal(p.closed[0], 1);
    assert_int_equal(p.closed[1], 0);
}

/* A spare takes a place in whichever replica lacks a worker. */
static void test_spare(void **state)
{
    (void)state;
    join(5);
    say(3, 1, (struct msg_from_worker){.type = FROM_GOODBYE});
    assert_true(status(0)->ready && !status(1)->ready);
    p.f.now_ns += 500 * MS;
    for (uint64_t who = 1; who <= 5; who++)
        if (who != 3) say(who, who > 2, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    event((struct event){.type = EV_TICK});
    assert_int_equal(p.epochs[1].generation, 3);
    assert_string_equal(status(1)->workers[0].name, "w5");
    assert_string_equal(status(1)->workers[1].name, "w4"); /* it holds those layers */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_each_has_its_own, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_both_run, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_the_other_goes_on, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_epochs, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_moves, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_spare, open_pair, close_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
