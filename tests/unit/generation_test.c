/* How a generation begins, what its workers are told, and its time limits, event by event. Which
 * workers a plan takes after faults is replica_test.c's. */
#include "tests/lib/core_fixture.h"

static struct actions tick(struct fixture *f, uint64_t ms)
{
    f->now_ns += ms * MS;
    return feed(f, (struct event){.type = EV_TICK});
}

/* Both workers send a heartbeat. Their compute threads stand still if `moves` is what it was. */
static void speak(struct fixture *f, uint64_t moves, uint64_t received, uint64_t done)
{
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(
            f, w,
            (struct msg_from_worker){
                .type = FROM_HEARTBEAT,
                .heartbeat = {.moves = moves, .step_received = received, .step_done = done}});
}

static bool is_ready(const struct fixture *f)
{
    struct msg_status s;
    core_status(f->core, &s);
    return s.ready;
}

/* ---- plans ---- */

static struct actions hello_holding(struct fixture *f, uint64_t who, const char *name,
                                    uint32_t layer_first, uint32_t layer_last)
{
    struct msg_from_worker m = {.type = FROM_HELLO};
    (void)snprintf(m.hello.name, sizeof m.hello.name, "%s", name);
    m.hello.holds = true;
    m.hello.holding = (struct msg_holding){9, layer_first, layer_last};
    return from(f, who, m);
}

/* The worker that is assigned the layers from `layer` on; 0: none. */
static uint64_t assigned(struct actions a, uint32_t layer)
{
    for (size_t i = 0; i < a.n; i++)
        if (a.items[i].type == ACT_TO_WORKER && a.items[i].to_worker.msg->type == TO_ASSIGN &&
            a.items[i].to_worker.msg->assign.layer_first == layer)
            return a.items[i].to_worker.instance.hi;
    return 0;
}

/* Workers that hold layers keep them under a new coordinator: it costs a probe, and no load. */
static void test_holders_keep_their_layers(void **state)
{
    struct fixture *f = *state;
    (void)hello_holding(f, 1, "a", 3, 4);
    struct actions a = hello_holding(f, 2, "b", 0, 2);
    assert_int_equal(assigned(a, 0), 2);
    assert_int_equal(assigned(a, 3), 1);
}

/* Of two that never served, the one that holds the layers is planned with, though the other's name
 * comes first; but once it has a fault, it gives way. */
static void test_holders_without_faults(void **state)
{
    struct fixture *f = *state;
    make_ready(f); /* a and b */
    (void)hello(f, 3, "0");
    assert_non_null(
        first(from(f, 2, (struct msg_from_worker){.type = FROM_GOODBYE}), ACT_LINK_CLOSE));
    f->now_ns += 200 * MS;
    struct actions a = hello_holding(f, 4, "c", 3, 4);
    assert_int_equal(assigned(a, 0), 1);
    assert_int_equal(assigned(a, 3), 4);
    f->epoch = first(a, ACT_TO_WORKER)->to_worker.msg->epoch;
    (void)from(f, 4, (struct msg_from_worker){.type = FROM_FAULT, .text = "no memory"});
    a = tick(f, 200);
    assert_int_equal(assigned(a, 3), 3);
}

/* The worker behind a broken link is not planned with before it speaks. */
static void test_a_broken_link_suspects(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_FAULT, .downstream = true, .text = "x"});
    assert_int_equal(tick(f, 200).n, 0);
    struct actions a = from(f, 2, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    assert_int_equal(a.n, 0);
    assert_int_equal(assigned(tick(f, 1), 3), 2);
}

/* ---- beginnings ---- */

/* The pause before the next generation grows with each that fails to begin, and is the shortest
 * again after one that served. */
static void test_pauses(void **state)
{
    struct fixture *f = *state;
    static const uint64_t pauses[] = {100, 200, 400, 800};
    make_ready(f);
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < 4; i++) {
            (void)from(f, 1,
                       (struct msg_from_worker){
                           .type = FROM_FAULT, .downstream = true, .text = "its link closed"});
            speak(f, 1, 0, 0);
            struct actions a = tick(f, pauses[i] - 1);
            assert_int_equal(assigned(a, 0), 0);
            a = tick(f, 1);
            assert_int_equal(assigned(a, 0), 1);
            f->epoch = first(a, ACT_TO_WORKER)->to_worker.msg->epoch;
            if (i == 3) begin_generation(f, a);
        }
    }
}

/* A load that makes progress now and then is waited for; one that makes none for two minutes is
 * not. */
static void test_slow_loads(void **state)
{
    struct fixture *f = *state;
    struct actions a = {0};
    (void)hello(f, 1, "a");
    f->epoch = first(hello(f, 2, "b"), ACT_TO_WORKER)->to_worker.msg->epoch;
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    uint64_t s = 0;
    for (; s < 300; s++) {
        speak(f, s, 0, 0);
        if (s % 100 == 99)
            (void)from(f, 2,
                       (struct msg_from_worker){
                           .type = FROM_LOAD_PROGRESS, .bytes_done = s, .bytes_total = 1000});
        assert_null(first(tick(f, 1000), ACT_LINK_CLOSE));
    }
    for (s = 0; s < 130 && !first(a, ACT_LINK_CLOSE); s++) {
        speak(f, s, 0, 0);
        a = tick(f, 1000);
    }
    assert_in_range(s, 118, 121);
    assert_non_null(strstr(first(a, ACT_NOTE)->note, "worker b does not load its layers"));
}

static void test_loopback_for_another_host(void **state)
{
    struct fixture *f = *state;
    (void)hello(f, 1, "a");
    f->epoch = first(hello(f, 2, "b"), ACT_TO_WORKER)->to_worker.msg->epoch;
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    struct actions a =
        from(f, 2, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://127.0.0.1:5"});
    assert_non_null(first(a, ACT_LINK_CLOSE));
    assert_non_null(strstr(first(a, ACT_NOTE)->note, "worker b advertises 127.0.0.1"));
    assert_non_null(strstr(first(a, ACT_NOTE)->note, "--advertise"));
}

/* Workers are told that plaintext is allowed if the configuration says so, and only then. */
static void test_plaintext(void **state)
{
    struct fixture *f = *state;
    for (int allowed = 0; allowed < 2; allowed++) {
        struct core_config k = config();
        k.plaintext = allowed;
        core_close(f->core);
        f->core = core_open(&k);
        (void)hello(f, 1, "a");
        struct actions a = hello(f, 2, "b");
        assert_int_equal(first(a, ACT_TO_WORKER)->to_worker.msg->assign.plaintext, allowed);
    }
}

static const struct key coordinator_key = {{9}}, key_a = {{1}}, key_b = {{2}};

/* A worker speaks over a connection of this key. */
static struct actions by(struct fixture *f, const struct key *key, uint64_t who,
                         struct msg_from_worker m)
{
    struct event e = said(f, who, m);
    e.key = *key;
    return feed(f, e);
}

static uint64_t dropped(const struct fixture *f)
{
    struct msg_status s;
    core_status(f->core, &s);
    return s.messages_dropped;
}

/* What the core tells each stage, in the order of stages. */
static const struct msg_to_worker *told(struct actions a, enum to_worker type, uint64_t who)
{
    for (size_t i = 0; i < a.n; i++)
        if (a.items[i].type == ACT_TO_WORKER && a.items[i].to_worker.msg->type == type &&
            a.items[i].to_worker.instance.hi == who)
            return a.items[i].to_worker.msg;
    fail_msg("worker %d was not told", (int)who);
    return NULL;
}

/* Each end of a link is told the key of the other, as its owner's connection has it; and what
 * another key says in a worker's name changes nothing. */
static void test_keys(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    struct msg_from_worker fault = {.type = FROM_FAULT, .text = "burns"};
    struct msg_from_worker a_hello = {.type = FROM_HELLO, .hello = {.name = "a"}};
    struct msg_from_worker b_hello = {.type = FROM_HELLO, .hello = {.name = "b"}};
    k.key = coordinator_key;
    core_close(f->core);
    f->core = core_open(&k);
    (void)by(f, &key_a, 1, a_hello);
    struct actions a = by(f, &key_b, 2, b_hello);
    assert_true(key_eq(&told(a, TO_ASSIGN, 1)->assign.upstream, &coordinator_key));
    assert_true(key_eq(&told(a, TO_ASSIGN, 2)->assign.upstream, &key_a));
    f->epoch = told(a, TO_ASSIGN, 1)->epoch;
    struct msg_from_worker ready = {.type = FROM_READY, .endpoint = "tcp://:5"};
    (void)by(f, &key_a, 1, ready);
    assert_int_equal(dropped(f), 0);
    assert_int_equal(by(f, &key_a, 2, ready).n, 0); /* a says that it is b */
    assert_int_equal(dropped(f), 1);
    a = by(f, &key_b, 2, ready);
    assert_true(key_eq(&told(a, TO_CONNECT, 1)->key, &key_b));
    assert_true(key_eq(&told(a, TO_CONNECT, 2)->key, &coordinator_key));
    assert_true(key_eq(&first(a, ACT_LINK_OPEN)->link.key, &key_a));
    (void)by(f, &key_a, 1, (struct msg_from_worker){.type = FROM_LINKED});
    (void)by(f, &key_b, 2, (struct msg_from_worker){.type = FROM_LINKED});
    (void)feed(f, (struct event){.type = EV_LINK_UP, .link = {f->epoch}});
    struct msg_result m = {.epoch = f->epoch, .number = 1, .digest = 5};
    (void)feed(f, (struct event){.type = EV_RESULT, .key = key_a, .result = &m});
    assert_false(is_ready(f)); /* only the last stage's worker has results */
    (void)by(f, &key_a, 2, fault);
    (void)by(f, &key_b, 1, a_hello);
    assert_int_equal(dropped(f), 4);
    (void)feed(f, (struct event){.type = EV_RESULT, .key = key_b, .result = &m});
    assert_true(is_ready(f));
}

/* ---- probes ---- */

/* From Assign on: both workers load and link, and the probe comes back with this digest. */
static struct actions probed(struct fixture *f, struct actions a, uint64_t digest)
{
    f->epoch = first(a, ACT_TO_WORKER)->to_worker.msg->epoch;
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(f, w, (struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://:5"});
    for (uint64_t w = 1; w <= 2; w++)
        (void)from(f, w, (struct msg_from_worker){.type = FROM_LINKED});
    (void)feed(f, (struct event){.type = EV_LINK_UP, .link = {f->epoch}});
    struct msg_result m = {.epoch = f->epoch, .number = 1, .digest = digest};
    return feed(f, (struct event){.type = EV_RESULT, .result = &m});
}

/* More names computed a digest than are remembered: it is the latest that are. */
static void test_the_latest_names_are_remembered(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    k.max_workers = 2; /* with four names for each */
    reopen(f, k);
    for (unsigned i = 0; i < 12; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "b%u", i);
        (void)from(f, 2, (struct msg_from_worker){.type = FROM_GOODBYE});
        f->now_ns += 200 * MS;
        (void)probed(f, hello(f, 2, name), 5);
        assert_true(is_ready(f));
    }
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_FAULT, .text = "it happens"});
    struct actions a = probed(f, tick(f, 200), 6);
    assert_false(is_ready(f));
    assert_non_null(strstr(first(a, ACT_NOTE)->note, "workers a, b11 computed others than"));
    assert_non_null(strstr(first(a, ACT_NOTE)->note, "than workers a, b6, b7, b8"));
}

/* The second worker is another one now, which computes this digest; until a generation has done so.
 */
static struct actions computed_by(struct fixture *f, const char *name, uint64_t digest)
{
    (void)from(f, 2, (struct msg_from_worker){.type = FROM_GOODBYE});
    f->now_ns += 200 * MS;
    struct actions a = hello(f, 2, name);
    for (int waits = 0; waits < 600 && !first(a, ACT_TO_WORKER); waits++) { /* it is held down */
        for (uint64_t w = 1; w <= 2; w++)
            (void)from(f, w, (struct msg_from_worker){.type = FROM_HEARTBEAT});
        a = tick(f, 200);
    }
    return probed(f, a, digest);
}

/* A digest is agreed on when it comes again, although a worker that computes another each time was
 * tried 14 times in between: with these and the one that stands, VERDICTS digests are known. */
static void test_a_digest_is_not_forgotten_among_many(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)computed_by(f, "c", 100);
    assert_false(is_ready(f));
    for (uint64_t i = 0; i < 14; i++) {
        (void)computed_by(f, "d", 200 + i);
        assert_false(is_ready(f));
    }
    (void)computed_by(f, "e", 100);
    assert_true(is_ready(f));
}

/* ---- limits ---- */

/* Six Steps of one row, each of which takes a second; then one of 64 rows, which is returned. Valid
 * until the next event. */
static const struct msg_step *large_step_after_slow_rows(struct fixture *f)
{
    struct core_config k = config();
    static const int32_t other[80] = {9};
    struct msg_run_result runs[8];
    k.window = 1;
    k.rows_max = 64;
    k.deadline_ns = 600 * NS_PER_S;
    reopen(f, k);
    (void)submit(f, 1, 1, 6);
    for (uint64_t i = 0; i < 6; i++) {
        const struct action *a = first(feed(f, (struct event){.type = EV_COMPOSE}), ACT_STEP);
        assert_int_equal(a->step->rows, 1);
        struct msg_result m = {.epoch = f->epoch, .number = a->step->number, .runs = runs};
        m.n_runs = answers_of(a->step, runs);
        f->now_ns += 1000 * MS;
        speak(f, i, m.number, m.number);
        (void)feed(f, (struct event){.type = EV_RESULT, .result = &m});
    }
    struct event e = request(2, 64, 2, PRIORITY_NORMAL);
    e.submit.tokens = other;
    (void)feed(f, e);
    const struct action *a = first(feed(f, (struct event){.type = EV_COMPOSE}), ACT_STEP);
    assert_int_equal(a->step->rows, 64);
    return a->step;
}

/* However slow Steps were, one that does not arrive at a worker whose thread idles is noticed soon:
 * the link is to blame, and nothing was computed. */
static void test_a_step_that_does_not_arrive(void **state)
{
    struct fixture *f = *state;
    uint64_t number = large_step_after_slow_rows(f)->number, moves = 6;
    int waited_s = 0;
    for (; waited_s < 120; waited_s++) {
        speak(f, moves++, number - 1, number - 1);
        struct actions now = tick(f, 1000);
        if (!first(now, ACT_LINK_CLOSE)) continue;
        assert_non_null(strstr(first(now, ACT_NOTE)->note, "link"));
        break;
    }
    assert_in_range(waited_s, 2, 31);
}

/* One row took a second; 64 rows take a minute, in which no layer is seen to end, and no worker is
 * blamed. */
static void test_large_steps(void **state)
{
    struct fixture *f = *state;
    struct msg_step s;
    struct msg_run r[8];
    struct msg_run_result runs[8];
    const struct msg_step *large = large_step_after_slow_rows(f);
    struct msg_result m = {.epoch = f->epoch, .number = large->number, .runs = runs};
    m.n_runs = answers_of(large, runs);
    for (int i = 0; i < 60; i++) {
        speak(f, 99, m.number, m.number - 1);
        assert_null(first(tick(f, 1000), ACT_LINK_CLOSE));
    }
    assert_non_null(first(feed(f, (struct event){.type = EV_RESULT, .result = &m}), ACT_TOKENS));
    assert_true(turn(f, &s, r));
}

/* Half a minute in which the coordinator's loop did not run is not held against workers, Steps or
 * links. */
static void test_lost_time_counts_for_nobody(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)submit(f, 9, 4, 3);
    uint64_t number = first(feed(f, (struct event){.type = EV_COMPOSE}), ACT_STEP)->step->number;
    speak(f, 1, number, number - 1);
    f->now_ns += 30000 * MS;
    struct event stalled = {.type = EV_TICK, .tick = {30000 * MS}};
    assert_null(first(feed(f, stalled), ACT_LINK_CLOSE));
    struct actions a = {0};
    uint64_t ms = 0;
    for (; ms < 5000 && !first(a, ACT_LINK_CLOSE); ms += 100) { /* what stands still from now on */
        speak(f, 1, number, number - 1);
        a = tick(f, 100);
    }
    assert_in_range(ms, 1900, 2100);
    assert_non_null(strstr(first(a, ACT_NOTE)->note, "compute thread hangs"));
}

/* The same where a Step had been under way for a while before, and no heartbeat comes right after.
 */
static void test_lost_time_after_a_wait(void **state)
{
    struct fixture *f = *state;
    for (int arrived = 0; arrived < 2; arrived++) {
        if (arrived) {
            close_fixture(state);
            open_fixture(state);
        }
        make_ready(f);
        f->now_ns += arrived ? 0 : 1400 * MS; /* since the probe's result */
        speak(f, 1, 1, 1);
        (void)submit(f, 9, 4, 3);
        const struct action *a = first(feed(f, (struct event){.type = EV_COMPOSE}), ACT_STEP);
        uint64_t number = a->step->number;
        assert_null(first(tick(f, arrived ? 1400 : 1), ACT_LINK_CLOSE));
        speak(f, 2, number - !arrived, number - 1);
        f->now_ns += 30000 * MS;
        struct event stalled = {.type = EV_TICK, .tick = {30000 * MS}};
        assert_null(first(feed(f, stalled), ACT_LINK_CLOSE));
        assert_null(first(tick(f, 700), ACT_LINK_CLOSE));
    }
}

/* A worker that computes is alive, also while its control connection brings nothing. */
static void test_results_are_signs_of_life(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    (void)submit(f, 9, 4, 90);
    struct msg_run_result runs[8];
    for (int i = 0; i < 10; i++) {
        const struct action *a = first(feed(f, (struct event){.type = EV_COMPOSE}), ACT_STEP);
        struct msg_result m = {.epoch = f->epoch, .number = a->step->number, .runs = runs};
        m.n_runs = answers_of(a->step, runs);
        m.n_timings = 2;
        for (uint32_t s = 0; s < 2; s++) m.timings[s] = (struct msg_timing){s, 1000, 0};
        assert_null(first(tick(f, 1000), ACT_LINK_CLOSE));
        (void)feed(f, (struct event){.type = EV_RESULT, .result = &m});
    }
}

/* What a heartbeat says of another generation is not taken for this one. */
static void test_old_heartbeats(void **state)
{
    struct fixture *f = *state;
    make_ready(f);
    struct epoch old = f->epoch;
    (void)from(f, 1, (struct msg_from_worker){.type = FROM_FAULT, .text = "broken"});
    begin_generation(f, tick(f, 200));
    struct epoch now = f->epoch;
    speak(f, 1, 1, 1);
    f->epoch = old;
    speak(f, 2, 900, 900);
    f->epoch = now;
    struct msg_status s;
    core_status(f->core, &s);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(s.replicas[0].workers[i].heartbeat.step_done, 1);
}

/* The status shows how long a worker's threads wait for a CPU. */
static void test_waiting_for_cpu(void **state)
{
    struct fixture *f = *state;
    struct msg_status s;
    struct msg_from_worker m = {.type = FROM_HELLO, .hello = {.name = "a", .threads = 2}};
    (void)from(f, 1, m);
    begin_generation(f, hello(f, 2, "b"));
    m = (struct msg_from_worker){.type = FROM_HEARTBEAT};
    for (uint64_t i = 0; i < 13; i++) { /* the worker reads its figure each second */
        m.heartbeat.cpu_wait_ns = i / 4 * 1500 * MS;
        (void)from(f, 1, m);
        f->now_ns += 250 * MS;
    }
    core_status(f->core, &s);
    uint32_t a = strcmp(s.replicas[0].workers[0].name, "a") == 0 ? 0 : 1;
    assert_int_equal((int)(100 * s.replicas[0].workers[a].cpu_waiting + 0.5),
                     75); /* of two threads */
    assert_int_equal((int)(100 * s.replicas[0].workers[1 - a].cpu_waiting), 0);
    for (int i = 0; i < 6; i++) {
        (void)from(f, 1, m);
        f->now_ns += 250 * MS;
    }
    core_status(f->core, &s);
    assert_int_equal((int)(100 * s.replicas[0].workers[a].cpu_waiting), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(test_holders_keep_their_layers),
        TEST(test_holders_without_faults),
        TEST(test_a_broken_link_suspects),
        TEST(test_pauses),
        TEST(test_slow_loads),
        TEST(test_loopback_for_another_host),
        TEST(test_plaintext),
        TEST(test_keys),
        TEST(test_the_latest_names_are_remembered),
        TEST(test_a_digest_is_not_forgotten_among_many),
        TEST(test_a_step_that_does_not_arrive),
        TEST(test_large_steps),
        TEST(test_lost_time_counts_for_nobody),
        TEST(test_lost_time_after_a_wait),
        TEST(test_results_are_signs_of_life),
        TEST(test_old_heartbeats),
        TEST(test_waiting_for_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
