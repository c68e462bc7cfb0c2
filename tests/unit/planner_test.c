/* When a replica begins and with whom, in a core whose workers say what a layer takes them, and
 * what the cluster file wishes of them. */
#include "tests/lib/core_fixture.h"

#define HEADER 5u

static struct fixture f;

/* What the core has told workers, by worker. */
static struct {
    bool assigned;
    uint32_t first, last, threads;
    uint32_t n_asked;
    struct msg_calibrate asked;
} told[9];

static char note[LIMIT_TEXT_BYTES]; /* the last one */

static void look(struct actions a)
{
    for (size_t i = 0; i < a.n; i++) {
        const struct action *x = &a.items[i];
        if (x->type == ACT_NOTE) (void)snprintf(note, sizeof note, "%s", x->note);
        if (x->type != ACT_TO_WORKER) continue;
        uint64_t who = x->to_worker.instance.hi;
        const struct msg_to_worker *m = x->to_worker.msg;
        if (m->type == TO_CALIBRATE) {
            told[who].n_asked++;
            told[who].asked = m->calibrate;
        }
        if (m->type != TO_ASSIGN) continue;
        f.epoch = m->epoch;
        told[who].assigned = true;
        told[who].first = m->assign.layer_first;
        told[who].last = m->assign.layer_last;
        told[who].threads = m->assign.threads;
    }
}

static void open(struct core_config k)
{
    core_close(f.core);
    memset(told, 0, sizeof told);
    note[0] = 0;
    f = (struct fixture){.core = core_open(&k), .now_ns = 1000 * MS};
}

static int close(void **state)
{
    (void)state;
    core_close(f.core);
    f.core = NULL;
    return 0;
}

static struct core_config measured(void)
{
    struct core_config k = config();
    k.n_layers = 10;
    k.header_digest = HEADER;
    return k;
}

static const char *const names[] = {"", "a", "b", "c", "d", "e", "f", "g", "h"};

static void join(uint64_t who)
{
    look(hello(&f, who, names[who]));
}

static void say_speed(uint64_t who, uint64_t layer_ns, uint64_t head_ns, uint32_t threads)
{
    struct msg_from_worker m = {.type = FROM_SPEED,
                                .speed = {.header_digest = HEADER,
                                          .threads = threads,
                                          .n_layer = layer_ns != 0,
                                          .n_head = layer_ns != 0,
                                          .layer = {{1, layer_ns}},
                                          .head = {{1, head_ns}},
                                          .layer_bytes = 1}};
    look(from(&f, who, m));
}

/* So much time passes, with a tick and heartbeats each quarter of a second. */
static void pass(uint64_t ms, uint64_t first, uint64_t last)
{
    for (uint64_t t = 0; t < ms; t += 250) {
        f.now_ns += 250 * MS;
        for (uint64_t w = first; w <= last; w++)
            look(from(&f, w, (struct msg_from_worker){.type = FROM_HEARTBEAT}));
        look(feed(&f, (struct event){.type = EV_TICK}));
    }
}

static void expect_layers(uint64_t who, uint32_t first, uint32_t last)
{
    if (!told[who].assigned) fail_msg("worker %s has no layers", names[who]);
    assert_int_equal(told[who].first, first);
    assert_int_equal(told[who].last, last);
}

static const struct msg_replica_status *status(uint32_t replica)
{
    static struct msg_status s;
    core_status(f.core, &s);
    return &s.replicas[replica];
}

/* Workers are asked once, and planned with when they have answered: the slow one has less. */
static void test_speeds(void **state)
{
    (void)state;
    open(measured());
    join(1);
    join(2);
    assert_true(told[1].n_asked == 1 && told[2].n_asked == 1);
    assert_true(told[1].asked.header_digest == HEADER && told[1].asked.threads == 0);
    assert_string_equal(told[1].asked.model_path, "/m");
    say_speed(1, 4 * MS, 0, 0);
    pass(250, 1, 2);
    assert_false(told[1].assigned);
    say_speed(2, 1 * MS, 0, 0);
    pass(250, 1, 2);
    expect_layers(1, 0, 1);
    expect_layers(2, 2, 9);
    /* A Step of four rows on eight layers of 1 ms a row. */
    assert_int_equal(status(0)->workers[1].row_ns, 8 * MS);
    assert_int_equal(status(0)->workers[1].streams_ns, 32 * MS);
    assert_int_equal(status(0)->workers[1].chunk_ns, 256 * MS);
    assert_int_equal(status(0)->workers[0].row_ns, 8 * MS);
}

/* One that does not answer is asked again each five seconds, and after thirty planned with all the
 * same; so is one that could not measure, at once. */
static void test_silence(void **state)
{
    (void)state;
    open(measured());
    join(1);
    join(2);
    say_speed(1, MS, 0, 0);
    pass(4750, 1, 2);
    assert_int_equal(told[2].n_asked, 1);
    pass(500, 1, 2);
    assert_true(told[2].n_asked == 2 && told[1].n_asked == 1);
    pass(24250, 1, 2);
    assert_false(told[2].assigned);
    pass(1000, 1, 2);
    expect_layers(1, 0, 4); /* as if it were as fast as the other */
    expect_layers(2, 5, 9);
    assert_int_equal(status(0)->workers[1].row_ns, 0);
    open(measured());
    join(1);
    join(2);
    say_speed(1, MS, 0, 0);
    say_speed(2, 0, 0, 0);
    assert_non_null(strstr(note, "worker b could not measure a layer"));
    pass(250, 1, 2);
    expect_layers(2, 5, 9);
}

/* A chain that is to be cut for fewer workers waits for those that are there and still measure. */
static void test_fewer_wait_for_who_measures(void **state)
{
    (void)state;
    struct core_config k = measured();
    k.n_stages = 3;
    k.replan_after_ns = 10 * NS_PER_S;
    open(k);
    join(1);
    join(2);
    say_speed(1, MS, 0, 0);
    pass(20000, 1, 2);
    assert_false(told[1].assigned); /* the second would have no layers */
    say_speed(2, MS, 0, 0);
    pass(250, 1, 2);
    expect_layers(1, 0, 4);
    expect_layers(2, 5, 9);
}

/* Where the cut does not depend on it, nobody waits. What is said of another model, or with other
 * threads, does not count. */
static void test_no_need(void **state)
{
    (void)state;
    struct core_config k = measured();
    k.split = PLAN_EVEN;
    open(k);
    join(1);
    join(2);
    expect_layers(2, 5, 9);
    say_speed(2, 9 * MS, 0, 0);
    assert_int_equal(status(0)->workers[1].row_ns, 45 * MS);
    open(measured());
    join(1);
    struct msg_from_worker other = {.type = FROM_SPEED, .speed = {.header_digest = HEADER + 1}};
    look(from(&f, 1, other));
    say_speed(1, MS, 0, 3);
    struct msg_status s;
    core_status(f.core, &s);
    assert_int_equal(s.messages_dropped, 2);
}

static void open_even(void)
{
    struct core_config k = measured();
    k.split = PLAN_EVEN;
    open(k);
}

/* The sums of what was predicted and measured are of the same Steps. */
static void test_predicted(void **state)
{
    (void)state;
    struct fixture *r = &f;
    open_even();
    f.n_stages = 2;
    join(1);
    join(2);
    say_speed(1, 3 * MS, 0, 0);
    say_speed(2, 1 * MS, 2 * MS, 0);
    ready_begin(r);
    ready_submit(r, 1, 7, 4, 2, PRIORITY_NORMAL);
    assert_int_equal(ready_compose(r), 1);
    f.now_ns += 40 * MS; /* none computes for longer than the Step was on its way */
    uint32_t rows = ready_answer(r, 20 * MS).rows;
    const struct msg_worker_status *a = &status(0)->workers[0], *b = &status(0)->workers[1];
    assert_true(a->timed_steps == 1 && b->timed_steps == 1);
    assert_true(a->compute_ns == 20 * MS && a->predicted_ns == rows * 15 * MS);
    assert_int_equal(b->predicted_ns, rows * 5 * MS + (rows == 4 ? 2 * MS : 0));
}

/* Two stages serve, and have a request. */
static void open_with_request(void)
{
    open_even();
    f.n_stages = 2;
    join(1);
    join(2);
    say_speed(1, MS, 0, 0);
    say_speed(2, MS, 0, 0);
    ready_begin(&f);
    ready_submit(&f, 1, 7, 4, 8, PRIORITY_NORMAL);
}

/* Stages say what they took; none took longer than the Step did, or a mere nothing of it. */
static void test_times_that_cannot_be(void **state)
{
    (void)state;
    static const uint64_t said[] = {UINT64_MAX, 1}, counted[] = {100 * MS, 100 * MS >> 16};
    struct fixture *r = &f;
    open_with_request();
    for (int i = 0; i < 2; i++) {
        uint64_t before = status(0)->workers[0].compute_ns;
        assert_int_equal(ready_compose(r), 1);
        f.now_ns += 100 * MS;
        (void)ready_answer(r, said[i]);
        assert_int_equal(status(0)->workers[0].compute_ns - before, counted[i]);
    }
}

/* Nothing is learnt of a Step whose result may have waited for a coordinator that did not run. */
static void test_late(void **state)
{
    (void)state;
    struct fixture *r = &f;
    open_with_request();
    for (int late = 0; late < 2; late++) {
        assert_int_equal(ready_compose(r), 1);
        f.now_ns += late ? 30000 * MS : 100 * MS;
        if (late) (void)ready_event(r, (struct event){.type = EV_LATE});
        (void)ready_answer(r, 20 * MS);
        const struct msg_replica_status *s = status(0);
        assert_int_equal(s->wire_ns + s->queue_ns, 60 * MS);
    }
}

static const struct core_wish wishes[] = {
    {"a", 0, 3, 2, PLAN_LAST, CORE_ANY_REPLICA, PLAN_ANY_STAGE},
    {"c", 0, 2, 0, PLAN_ANYWHERE, CORE_ANY_REPLICA, PLAN_ANY_STAGE}};

/* Threads, layers, and the preferred end. */
static void test_wishes(void **state)
{
    (void)state;
    struct core_config k = measured();
    k.wishes = wishes;
    k.n_wishes = 2;
    open(k);
    join(1);
    join(2);
    assert_true(told[1].asked.threads == 2 && told[2].asked.threads == 0);
    say_speed(1, MS, 0, 2);
    say_speed(2, MS, 0, 0);
    pass(250, 1, 2);
    expect_layers(2, 0, 6);
    expect_layers(1, 7, 9);
    assert_true(told[1].threads == 2 && told[2].threads == 0);
    /* Together they may have too few; the cut that is given, too many. */
    open(k);
    join(1);
    join(3);
    say_speed(1, MS, 0, 2);
    say_speed(3, MS, 0, 0);
    pass(250, 1, 3);
    assert_false(told[1].assigned);
    assert_string_equal(status(0)->why, "the workers may have 5 of 10 layers together "
                                        "('max_layers'): 5 more are needed");
    k.split = PLAN_EVEN;
    open(k);
    join(1);
    join(2);
    assert_string_equal(status(0)->why,
                        "'split' gives worker a 5 layers, 2 more than its 'max_layers' of 3");
    join(4);
    join(5);
    pass(2000, 1, 5);
    assert_false(told[1].assigned); /* it stays so, until the file is another one */
}

static const struct core_wish named[] = {{"b", 0, 0, 0, PLAN_ANYWHERE, 0, 0},
                                         {"a", 0, 0, 0, PLAN_ANYWHERE, 0, 1},
                                         {"c", 0, 0, 0, PLAN_ANYWHERE, 1, 0}};
static const uint32_t chains[] = {2, 1};

static struct core_config named_config(void)
{
    struct core_config k = config();
    k.n_layers = 10;
    k.n_replicas = 2;
    k.chains = chains;
    k.wishes = named;
    k.n_wishes = 3;
    return k;
}

/* Chains of named workers, of different lengths, in the order in which they are named. */
static void test_named(void **state)
{
    (void)state;
    open(named_config());
    join(3);
    expect_layers(3, 0, 9); /* it is the other chain's, and that one has all it needs */
    join(1);
    assert_false(told[1].assigned);
    join(2);
    expect_layers(2, 0, 4);
    expect_layers(1, 5, 9);
}

/* Another worker stands in for one that does not come within five seconds, but none that is named
 * for another chain. */
static void test_stand_in(void **state)
{
    (void)state;
    open(named_config());
    join(2);
    join(4);
    pass(4500, 2, 4);
    assert_false(told[4].assigned || told[2].assigned);
    join(3);
    expect_layers(3, 0, 9);
    pass(1000, 2, 4);
    expect_layers(2, 0, 4);
    expect_layers(4, 5, 9);
    open(named_config());
    join(2);
    pass(6000, 2, 2); /* whoever comes now may stand in */
    join(3);
    expect_layers(3, 0, 9);
    assert_false(told[2].assigned);
}

/* Both stages are ready, and the probe has come back. */
static void make_both_ready(void)
{
    for (uint64_t w = 1; w <= 2; w++)
        look(from(&f, w, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"}));
    for (uint64_t w = 1; w <= 2; w++)
        look(from(&f, w, (struct msg_from_worker){.type = FROM_LINKED}));
    look(feed(&f, (struct event){.type = EV_LINK_UP, .link = {f.epoch}}));
    struct msg_result probe = {.epoch = f.epoch, .number = 1, .digest = 5};
    look(feed(&f, (struct event){.type = EV_RESULT, .result = &probe}));
    assert_true(status(0)->ready);
}

static const char *rebalance(void)
{
    static char text[LIMIT_TEXT_BYTES];
    struct actions a = feed(&f, (struct event){.type = EV_REBALANCE, .order = {"", 0}});
    (void)snprintf(text, sizeof text, "%s", first(a, ACT_ANSWER)->answer.text);
    look(a);
    return text;
}

/* A worker measures itself after the first plan, which took it to be like the other. An order plans
 * anew by what it says, even where that loads all layers again; but not for nothing. */
static void test_rebalance(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        open(measured());
        join(1);
        join(2);
        say_speed(1, 1 * MS, 0, 0);
        pass(60000, 1, 2);
        expect_layers(1, 0, 4);
        expect_layers(2, 5, 9);
        make_both_ready();
        assert_non_null(strstr(rebalance(), "nothing is gained"));
        say_speed(2, slow ? 4 * MS : 1050000, 0, 0);
        assert_true(status(0)->ready); /* never by itself */
        assert_non_null(strstr(rebalance(), slow ? "1 replica is planned" : "nothing is gained"));
        pass(250, 1, 2);
        expect_layers(1, 0, slow ? 7 : 4);
        expect_layers(2, slow ? 8 : 5, 9);
        if (slow) make_both_ready();
        assert_non_null(strstr(rebalance(), "nothing is gained")); /* it is as it should be */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_speeds, close),
        cmocka_unit_test_teardown(test_silence, close),
        cmocka_unit_test_teardown(test_fewer_wait_for_who_measures, close),
        cmocka_unit_test_teardown(test_no_need, close),
        cmocka_unit_test_teardown(test_predicted, close),
        cmocka_unit_test_teardown(test_times_that_cannot_be, close),
        cmocka_unit_test_teardown(test_late, close),
        cmocka_unit_test_teardown(test_wishes, close),
        cmocka_unit_test_teardown(test_named, close),
        cmocka_unit_test_teardown(test_stand_in, close),
        cmocka_unit_test_teardown(test_rebalance, close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
