/* Which replica takes a request: each policy on loads made by hand. */
#include "coordinator/core/route.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { REPLICAS = 4, PAGE = 16 };

static struct route_load loads[REPLICAS];
static uint32_t held[REPLICAS], alike[REPLICAS + 1];
static double costs[2 * REPLICAS], columns[ROUTE_COLUMNS * REPLICAS];

/* A request of 100 pages for four idle replicas that hold nothing of it. */
static struct route_ask ask(enum route_policy policy)
{
    for (int i = 0; i < REPLICAS; i++)
        loads[i] = (struct route_load){.ctx = 10000, .row_ns = 1000.0};
    memset(held, 0, sizeof held);
    return (struct route_ask){.policy = policy,
                              .n_replicas = REPLICAS,
                              .max_running = 8,
                              .row_ns = 1000.0,
                              .loads = loads,
                              .columns = columns,
                              .positions = 100 * PAGE,
                              .n_tokens = 100 * PAGE,
                              .page_size = PAGE,
                              .held = held,
                              .costs = costs,
                              .alike = alike};
}

static uint32_t choose(const struct route_ask *a)
{
    for (uint32_t i = 0; i < REPLICAS; i++)
        route_note(columns, REPLICAS, i, &loads[i], a->max_running);
    return route_choose(a);
}

static void load(uint32_t replica, uint64_t pages, uint32_t live)
{
    loads[replica].rows = pages * PAGE;
    loads[replica].live = live;
    loads[replica].prompts = live;
}

static void test_names(void **state)
{
    (void)state;
    enum route_policy p;
    for (int i = 0; i < ROUTE_POLICIES; i++) {
        assert_true(route_policy_parse(route_policy_name((enum route_policy)i), &p));
        assert_int_equal(p, i);
    }
    assert_false(route_policy_parse("fastest", &p));
    assert_int_equal(ROUTE_AUTO, 0);
}

/* One state in which the policies differ: replica 0 holds most and has the longest queue, 1 holds
 * less and has fewer, 2 holds nothing and has one live request with much to do, 3 as many as 1. */
static void test_policies(void **state)
{
    (void)state;
    static const struct {
        enum route_policy policy;
        double weight;
        uint32_t expected;
    } cases[] = {
        {ROUTE_AFFINITY, 0, 0},     /* 90 pages held */
        {ROUTE_LEAST_LOADED, 0, 2}, /* one live request */
        {ROUTE_COST, 1.0, 3},       /* 500 + 10, 120 + 40, 400 + 100, 30 + 99 */
        {ROUTE_COST, 0.2, 1},       /* 100 + 10, 24 + 40, 80 + 100, 6 + 99 */
        {ROUTE_PRODUCT, 0, 1},  /* 10 x 31, 40 x 5, 100 x 2, 99 x 5: a tie, and 1 has less to do */
        {ROUTE_NEAR_MIN, 0, 1}, /* 500 is more than 30 + 2 x 100 */
        {ROUTE_ROUND_ROBIN, 0, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct route_ask a = ask(cases[i].policy);
        load(0, 500, 30);
        load(1, 120, 4);
        load(2, 400, 1);
        load(3, 30, 4);
        held[0] = 90;
        held[1] = 60;
        held[3] = 1;
        a.weight = cases[i].weight;
        a.turn = 3;
        if (choose(&a) != cases[i].expected)
            fail_msg("%s chooses %u, not %u", route_policy_name(a.policy), choose(&a),
                     cases[i].expected);
    }
}

static void test_who_may_take_it(void **state)
{
    (void)state;
    for (int policy = 0; policy < ROUTE_POLICIES; policy++) {
        struct route_ask a = ask((enum route_policy)policy);
        held[0] = 99;
        loads[0].ctx = 0; /* it is not ready */
        loads[1].ctx = 100 * PAGE - 1;
        load(2, 5000, 7);
        loads[3].ctx = 0;
        assert_int_equal(choose(&a), 2);
        loads[2].ctx = 0;
        assert_int_equal(choose(&a), ROUTE_NONE);
    }
}

/* Equal replicas have equal shares, whatever the policy but for the one that takes turns. */
static void test_ties_spread(void **state)
{
    (void)state;
    for (int policy = 0; policy < ROUTE_POLICIES; policy++) {
        struct route_ask a = ask((enum route_policy)policy);
        uint32_t n[REPLICAS] = {0};
        if (a.policy == ROUTE_ROUND_ROBIN) continue;
        for (a.draw = 0; a.draw < 4000; a.draw++) n[choose(&a)]++;
        for (int i = 0; i < REPLICAS; i++) assert_in_range(n[i], 900, 1100);
        a.draw = 5;
        assert_int_equal(choose(&a), choose(&a)); /* no state of its own */
    }
}

/* A page that one replica holds by chance draws nobody there; a prefix does, as long as it saves
 * more than the others' shorter queues. */
static void test_auto_affinity(void **state)
{
    (void)state;
    struct route_ask a = ask(ROUTE_AUTO);
    uint32_t n = 0;
    held[1] = 1;
    for (a.draw = 0; a.draw < 400; a.draw++) n += choose(&a) == 1;
    assert_in_range(n, 60, 140);
    held[1] = 60;
    for (a.draw = 0; a.draw < 40; a.draw++) assert_int_equal(choose(&a), 1);
    load(1, 20, 1);
    assert_int_equal(choose(&a), 1); /* 20 + 40 of 100 */
    load(1, 200, 1);
    assert_int_not_equal(choose(&a), 1); /* 200 + 40: the prefix is computed again */
    held[1] = 0;                         /* it was evicted */
    load(1, 10, 1);
    assert_int_not_equal(choose(&a), 1);
}

/* The more waits everywhere, the more a miss costs those that come later. */
static void test_auto_follows_the_load(void **state)
{
    (void)state;
    struct route_ask a = ask(ROUTE_AUTO);
    for (uint32_t i = 0; i < REPLICAS; i++) load(i, 100, 0);
    load(1, 170, 0);
    held[1] = 60;
    assert_int_not_equal(choose(&a), 1); /* 170 + 40, and 100 + 100 */
    for (uint32_t i = 0; i < REPLICAS; i++) loads[i].prompts = 3;
    assert_int_equal(choose(&a), 1);
    load(1, 1500, 3); /* but not at any price */
    assert_int_not_equal(choose(&a), 1);
}

/* Of two that cost nearly the same, the one takes it that was given less work of late; but no work
 * of late outweighs what a prefix saves. */
static void test_work_of_late(void **state)
{
    (void)state;
    struct route_ask a = ask(ROUTE_AUTO);
    held[1] = 10;
    a.work_all = 100.0;
    loads[1].work = 70.0;
    loads[0].work = loads[2].work = 15.0;
    assert_int_equal(choose(&a), 3); /* 90 pages and an eighth, or 100 less an eighth */
    held[1] = 40;
    assert_int_equal(choose(&a), 1);
    loads[1].work = 100.0;
    assert_int_equal(choose(&a), 1);
    held[1] = 10;
    a.work_all = 0.0; /* nothing is known */
    assert_int_equal(choose(&a), 1);
}

/* A row costs what it takes there; where nothing is measured, what it takes elsewhere. */
static void test_speed(void **state)
{
    (void)state;
    struct route_ask a = ask(ROUTE_AUTO);
    for (uint32_t i = 0; i < REPLICAS; i++) loads[i].row_ns = 4000.0;
    loads[2].row_ns = 1000.0;
    load(2, 100, 1);
    assert_int_equal(choose(&a), 2);
    assert_true(route_ttft(&a, 2) > 0.99 * 200 * PAGE * 1000.0);
    assert_true(route_ttft(&a, 2) < 1.01 * 200 * PAGE * 1000.0);
    a.row_ns = 10.0;
    loads[3].row_ns = 0.0;
    assert_int_equal(choose(&a), 3);
}

/* Where all places are taken, answers must end first. */
static void test_places(void **state)
{
    (void)state;
    struct route_ask a = ask(ROUTE_AUTO);
    a.answer_ns = 100 * PAGE * 1000.0;
    for (uint32_t i = 0; i < REPLICAS; i++) loads[i].live = 10;
    loads[3].live = 7;
    held[0] = 80;
    assert_int_equal(choose(&a), 3); /* 3 answers and 20 pages, or less than one and 100 */
    loads[3].live = 10;
    assert_int_equal(choose(&a), 0);
}

/* Long before all places are taken, others' decoding makes an answer slower: a replica without any
 * is chosen, unless much of the prompt is held elsewhere. */
static void test_others_decode(void **state)
{
    (void)state;
    struct route_ask a = ask(ROUTE_AUTO);
    a.max_running = 256;
    a.answer_ns = 40 * PAGE * 1000.0;
    for (uint32_t i = 0; i < REPLICAS; i++) loads[i].live = 8;
    loads[2].live = 0;
    held[0] = 20;
    assert_int_equal(choose(&a), 2);
    held[0] = 80;
    assert_int_equal(choose(&a), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),           cmocka_unit_test(test_policies),
        cmocka_unit_test(test_who_may_take_it), cmocka_unit_test(test_ties_spread),
        cmocka_unit_test(test_auto_affinity),   cmocka_unit_test(test_auto_follows_the_load),
        cmocka_unit_test(test_speed),           cmocka_unit_test(test_places),
        cmocka_unit_test(test_work_of_late),    cmocka_unit_test(test_others_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
