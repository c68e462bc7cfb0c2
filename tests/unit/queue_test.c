/* Which requests wait, run and are preempted: by class, arrival, time in the queue, and pages. */
#include "common/base/rng.h"
#include "tests/lib/core_fixture.h"

static struct core_config one_at_a_time(void)
{
    struct core_config k = ready_config();
    k.max_running = k.window = 1;
    return k;
}

/* A low request waits six seconds, runs, is preempted, and waits five more: eleven in all make it
 * normal, and it came before the normal one. */
static void test_waited_time_survives_a_preemption(void **state)
{
    (void)state;
    struct fixture r = ready_open(one_at_a_time());
    ready_submit(&r, 1, 3, 4, 9, PRIORITY_NORMAL);
    (void)ready_compose(&r);
    ready_submit(&r, 2, 4, 4, 9, PRIORITY_LOW);
    r.now_ns += 6000 * MS;
    (void)ready_answer(&r, 0);
    ready_cancel(&r, 1);
    (void)ready_compose(&r);
    assert_true(ready_runs(&r, 2));
    ready_submit(&r, 3, 5, 4, 9, PRIORITY_CRITICAL);
    (void)ready_answer(&r, 0);
    (void)ready_compose(&r);
    assert_true(ready_runs(&r, 3));
    assert_false(ready_runs(&r, 2));
    ready_submit(&r, 4, 6, 4, 9, PRIORITY_NORMAL);
    r.now_ns += 5000 * MS;
    (void)ready_answer(&r, 0);
    ready_cancel(&r, 3);
    (void)ready_compose(&r);
    assert_true(ready_runs(&r, 2));
    assert_false(ready_runs(&r, 4));
    core_close(r.core);
}

/* Waiting moves requests in the queue only: the low one has risen to the class of the normal one
 * that runs, and came before it, but does not preempt it. */
static void test_ageing_preempts_nobody(void **state)
{
    (void)state;
    struct fixture r = ready_open(one_at_a_time());
    ready_submit(&r, 1, 3, 4, 9, PRIORITY_CRITICAL);
    (void)ready_compose(&r);
    ready_submit(&r, 2, 4, 4, 9, PRIORITY_LOW);
    ready_submit(&r, 3, 5, 4, 99, PRIORITY_NORMAL);
    (void)ready_answer(&r, 0);
    ready_cancel(&r, 1);
    (void)ready_compose(&r);
    assert_true(ready_runs(&r, 3));
    for (int i = 0; i < 25; i++) {
        r.now_ns += 1000 * MS;
        (void)ready_answer(&r, 0);
        (void)ready_compose(&r);
        assert_true(ready_runs(&r, 3));
    }
    assert_int_equal(ready_cache(&r).preemptions, 0);
    (void)ready_answer(&r, 0);
    ready_cancel(&r, 3);
    (void)ready_compose(&r);
    assert_true(ready_runs(&r, 2));
    core_close(r.core);
}

/* A low request shares all but one of its pages with a high one. To preempt it would free one page,
 * too few for the normal one that waits: it is not preempted in vain. */
static void test_shared_pages_are_no_gain(void **state)
{
    (void)state;
    struct core_config k = ready_config();
    k.n_pages = 12;
    k.ctx = 180;
    struct fixture r = ready_open(k);
    ready_submit(&r, 1, 3, 70, 90, PRIORITY_HIGH);
    (void)ready_compose(&r);
    (void)ready_answer(&r, 0);
    ready_submit(&r, 2, 3, 70, 90, PRIORITY_LOW);
    (void)ready_compose(&r);
    (void)ready_answer(&r, 0);
    assert_true(ready_runs(&r, 2));
    assert_int_equal(ready_cache(&r).pages_held, 6); /* five, of which four are shared */
    ready_submit(&r, 3, 5, 90, 9, PRIORITY_NORMAL);
    (void)ready_compose(&r);
    assert_false(ready_runs(&r, 3));
    assert_true(ready_runs(&r, 2));
    assert_int_equal(ready_cache(&r).preemptions, 0);
    core_close(r.core);
}

/* A request is admitted when there are pages for its known tokens, one more to write on, and one
 * for each request that runs. */
static void test_one_page_is_kept_to_write_on(void **state)
{
    (void)state;
    for (uint32_t n_pages = 4; n_pages <= 5; n_pages++) {
        struct core_config k = ready_config();
        k.n_pages = n_pages;
        k.ctx = 60;
        k.share = false;
        struct fixture r = ready_open(k);
        ready_submit(&r, 1, 3, 8, 40, PRIORITY_NORMAL); /* one page */
        (void)ready_compose(&r);
        ready_submit(&r, 2, 4, 32, 4, PRIORITY_NORMAL); /* two pages, one more, one for the first */
        (void)ready_compose(&r);
        assert_int_equal(ready_runs(&r, 2), n_pages == 5);
        core_close(r.core);
    }
}

/* Cached pages that no request holds are as good as free ones. */
static void test_cached_pages_are_available(void **state)
{
    (void)state;
    struct core_config k = ready_config();
    k.n_pages = 8;
    k.ctx = 120;
    struct fixture r = ready_open(k);
    ready_submit(&r, 1, 3, 80, 1, PRIORITY_NORMAL);
    while (ready_compose(&r)) (void)ready_answer(&r, 0);
    assert_int_equal(ready_cache(&r).pages_cached, 5);
    ready_submit(&r, 2, 4, 8, 40, PRIORITY_NORMAL);
    (void)ready_compose(&r);
    ready_submit(&r, 3, 5, 60, 4, PRIORITY_NORMAL);
    (void)ready_compose(&r);
    assert_true(ready_runs(&r, 3));
    core_close(r.core);
}

/* 200 mixed requests with shared prefixes, some of them cancelled, and a generation lost among
 * them: nothing is held in the end, what is cached can be had, and a new generation has all pages
 * free. A prompt that the old one had is then computed anew: there is no stale hit. */
static void test_pages_come_back(void **state)
{
    (void)state;
    struct core_config k = ready_config();
    k.n_pages = 60;
    k.ctx = 400;
    k.max_running = 6;
    struct fixture r = ready_open(k);
    struct rng rng = {8};
    assert_int_equal(core_pages(r.core, 0).n_free, 60);
    uint32_t n_sent = 0;
    bool lost = false;
    while (n_sent < 200 || core_n_sequences(r.core) > 0) {
        for (; n_sent < 200 && core_n_sequences(r.core) < 12; n_sent++)
            ready_submit(&r, n_sent + 1, (int32_t)rng_below(&rng, 3) + 3,
                         1 + (uint32_t)rng_below(&rng, 200), (uint32_t)rng_below(&rng, 20),
                         (enum priority)rng_below(&rng, 4));
        if (!lost && n_sent >= 100 && r.n_flight) {
            lost = true;
            ready_again(&r);
            assert_int_equal(core_pages(r.core, 0).n_free, 60);
        }
        if (rng_below(&rng, 20) == 0) ready_cancel(&r, 1 + rng_below(&rng, n_sent));
        (void)ready_compose(&r);
        if (r.n_flight) (void)ready_answer(&r, 0);
        for (uint64_t w = 1; w <= 2; w++)
            ready_from(&r, w, (struct msg_from_worker){.type = FROM_HEARTBEAT});
    }
    while (r.n_flight) (void)ready_answer(&r, 0);
    assert_true(lost);
    assert_int_equal(r.n_ended, 200);
    struct pages_stats s = core_pages(r.core, 0);
    assert_int_equal(s.n_held, 0);
    assert_int_equal(s.n_free + s.n_cached, 60);
    assert_true(s.n_cached > 0 && ready_cache(&r).hits > 20 && ready_cache(&r).preemptions > 0);
    ready_again(&r);
    s = core_pages(r.core, 0);
    assert_int_equal(s.n_free, 60);
    assert_int_equal(s.n_cached, 0);
    ready_submit(&r, 201, 3, 100, 1, PRIORITY_NORMAL);
    (void)ready_compose(&r);
    assert_int_equal(r.flight[0].runs[0].first_pos, 0);
    core_close(r.core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waited_time_survives_a_preemption),
        cmocka_unit_test(test_ageing_preempts_nobody),
        cmocka_unit_test(test_shared_pages_are_no_gain),
        cmocka_unit_test(test_one_page_is_kept_to_write_on),
        cmocka_unit_test(test_cached_pages_are_available),
        cmocka_unit_test(test_pages_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
