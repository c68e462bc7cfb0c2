/* Windowed pages: counts, what is attached, eviction; and what a core with windowed layers holds,
 * finds and gives back. */
#include "coordinator/core/windowed.h"

#include "tests/lib/core_fixture.h"

enum { N = 4, WHOLE = 8 };

static uint32_t take(struct windowed *w)
{
    uint32_t page;
    assert_true(windowed_take(w, &page));
    return page;
}

static uint32_t attached(const struct windowed *w, uint32_t whole)
{
    uint64_t step;
    return windowed_of(w, whole, &step);
}

/* ---- the pool ---- */

/* The page that was let go of first makes place; one that is held again does not. */
static void test_least_recently_used(void **state)
{
    (void)state;
    struct windowed *w = windowed_open(N, WHOLE);
    uint32_t page[N], more;
    for (uint32_t i = 0; i < N; i++) page[i] = take(w);
    assert_false(windowed_take(w, &more));
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(windowed_attach(w, i, page[i], 10 + i), page[i]);
    for (uint32_t i = N; i-- > 0;) windowed_drop(w, page[i]);
    assert_int_equal(windowed_stats(w).n_cached, N);
    assert_int_equal(windowed_available(w), N);
    windowed_hold(w, page[3]); /* the oldest; now 2 is */
    windowed_drop(w, page[3]);
    assert_int_equal(take(w), page[2]);
    assert_int_equal(attached(w, 2), WINDOWED_NONE);
    assert_int_equal(windowed_stats(w).evicted, 1);
    uint64_t step = 0;
    assert_int_equal(windowed_of(w, 3, &step), page[3]);
    assert_int_equal(step, 13);
    windowed_drop(w, page[2]);
    windowed_clear(w);
    assert_int_equal(windowed_stats(w).n_free, N);
    assert_int_equal(attached(w, 3), WINDOWED_NONE);
    windowed_close(w);
    windowed_close(NULL);
}

/* Whoever computes what is attached already goes on with that, and its own page is free when it is
 * let go of. A whole page that is given up takes its windowed page with it. */
static void test_attached_once(void **state)
{
    (void)state;
    struct windowed *w = windowed_open(N, WHOLE);
    uint32_t a = take(w), b = take(w);
    assert_int_equal(windowed_attach(w, 5, a, 1), a);
    assert_int_equal(windowed_attach(w, 5, b, 2), a);
    windowed_drop(w, b);
    assert_int_equal(windowed_view(w, a).count, 2);
    assert_true(windowed_view(w, b).free);
    windowed_drop(w, a);
    windowed_drop(w, a);
    assert_int_equal(windowed_stats(w).n_cached, 1);
    windowed_forget(w, 4); /* which has none */
    windowed_forget(w, 5);
    assert_int_equal(windowed_stats(w).n_free, N);
    assert_int_equal(windowed_stats(w).evicted, 0);
    windowed_close(w);
}

/* ---- a core with windowed layers ---- */

enum { PAGE = 16, WINDOW = 32, CHUNK = 16 };
#define EACH (WINDOW / PAGE + 2 * CHUNK / PAGE) /* pages of a sequence with a chunk in a Step */

static struct core_config windowed_config(uint32_t most)
{
    struct core_config k = ready_config();
    k.rows_max = CHUNK;
    k.attn_window = WINDOW;
    k.costs.windowed_least = EACH;
    k.costs.windowed_most = most;
    return k;
}

static void finish(struct fixture *r)
{
    while (ready_compose(r) || r->n_flight)
        if (r->n_flight) (void)ready_answer(r, 0);
}

/* The first page that a row sees whose page begins at the right position `pos`. */
static uint32_t first_seen(uint32_t pos)
{
    pos = pos / PAGE * PAGE;
    return pos + 1 > WINDOW ? (pos + 1 - WINDOW) / PAGE : 0;
}

/* A long sequence gets through with as many windowed pages as a chunk and its window have, holds
 * whole ones of all its positions, and gives all back. */
static void test_slides_on(void **state)
{
    (void)state;
    struct fixture r = ready_open(windowed_config(EACH));
    assert_int_equal(core_n_windowed(r.core, 0), EACH);
    assert_int_equal(room_window(WINDOW, PAGE, CHUNK), EACH);
    ready_submit(&r, 1, 3, 500, 40, PRIORITY_NORMAL);
    uint32_t most = 0, seen = 0;
    while (ready_compose(&r) || r.n_flight) {
        const struct msg_run *x = &r.flight[r.n_flight - 1].runs[0];
        assert_int_equal(x->window_first, first_seen(x->first_pos));
        assert_int_equal(x->window_first + x->n_window_pages, x->n_pages);
        uint32_t held = core_windowed(r.core, 0).n_held;
        if (held > most) most = held;
        if (x->n_pages > seen) seen = x->n_pages;
        (void)ready_answer(&r, 0);
    }
    assert_int_equal(r.n_ended, 1);
    assert_int_equal(seen, (500 + 39 + PAGE - 1) / PAGE);
    assert_true(most <= EACH && most >= WINDOW / PAGE + 1);
    assert_int_equal(core_windowed(r.core, 0).n_held, 0);
    assert_int_equal(core_pages(r.core, 0).n_held, 0);
    core_close(r.core);
}

static uint64_t saved_by(struct fixture *r, uint64_t id, int32_t letter, uint32_t n_prompt)
{
    uint64_t before = ready_cache(r).tokens_saved;
    ready_submit(r, id, letter, n_prompt, 4, PRIORITY_NORMAL);
    finish(r);
    return ready_cache(r).tokens_saved - before;
}

/* A prompt is found as far as the windowed pages before a page's beginning are there: all of it
 * where there is room for them; else where a sequence has ended. */
static void test_prefixes(void **state)
{
    (void)state;
    struct fixture r = ready_open(windowed_config(200));
    assert_int_equal(core_n_windowed(r.core, 0), 50); /* a quarter of 200 */
    assert_int_equal(saved_by(&r, 1, 3, 200), 0);
    assert_int_equal(saved_by(&r, 2, 3, 200), 192);
    assert_int_equal(saved_by(&r, 3, 3, 100), 96);
    core_close(r.core);
    r = ready_open(windowed_config(EACH));
    assert_int_equal(saved_by(&r, 1, 3, 200), 0);
    assert_int_equal(saved_by(&r, 2, 3, 200), 192); /* where the first ended */
    assert_int_equal(saved_by(&r, 3, 3, 100), 0);   /* that window has gone */
    assert_int_equal(saved_by(&r, 4, 3, 100), 96);
    assert_int_equal(saved_by(&r, 5, 3, 200), 96); /* and the last one has, now */
    assert_int_equal(saved_by(&r, 6, 4, 100), 0);  /* other tokens */
    assert_int_equal(r.n_ended, 6);
    core_close(r.core);
}

/* Of two equal prompts at once the second rides behind the first, also where the whole pages are in
 * the index and only the windowed ones have gone. */
static void test_rides_behind(void **state)
{
    (void)state;
    struct core_config k = windowed_config(2 * EACH);
    k.rows_max = 2 * CHUNK;
    k.costs.windowed_least = 2 * EACH;
    struct fixture r = ready_open(k);
    for (uint64_t i = 0; i < 3; i++) {
        uint64_t before = ready_cache(&r).tokens_computed;
        ready_submit(&r, 10 * i + 1, 3, 200, 4, PRIORITY_NORMAL);
        ready_submit(&r, 10 * i + 2, 3, 200, 4, PRIORITY_NORMAL);
        finish(&r);
        uint64_t computed = ready_cache(&r).tokens_computed - before;
        assert_true(computed <= (i == 1 ? 2 * 8 : 200 + 2 * PAGE));
        /* The windows of another prompt take the place of these. */
        if (i == 1) (void)saved_by(&r, 10 * i + 3, 4, 400);
    }
    assert_int_equal(r.n_ended, 7);
    core_close(r.core);
}

/* Where there are windowed pages for one, the second waits until the first ends; a more urgent one
 * takes them, and both end. */
static void test_room_for_one(void **state)
{
    (void)state;
    for (int urgent = 0; urgent < 2; urgent++) {
        struct fixture r = ready_open(windowed_config(EACH));
        ready_submit(&r, 1, 3, 100, 200, PRIORITY_NORMAL);
        for (int i = 0; i < 20 && (ready_compose(&r) || r.n_flight); i++) (void)ready_answer(&r, 0);
        ready_submit(&r, 2, 4, 100, 20, urgent ? PRIORITY_CRITICAL : PRIORITY_NORMAL);
        (void)ready_compose(&r);
        (void)ready_answer(&r, 0);
        (void)ready_compose(&r);
        assert_int_equal(ready_runs(&r, 2), urgent);
        finish(&r);
        assert_int_equal(r.n_ended, 2);
        assert_int_equal(ready_cache(&r).preemptions, urgent);
        core_close(r.core);
    }
}

/* A lost generation: all pages are free in the next one, and nothing is found. */
static void test_lost(void **state)
{
    (void)state;
    struct fixture r = ready_open(windowed_config(200));
    assert_int_equal(saved_by(&r, 1, 3, 200), 0);
    ready_submit(&r, 2, 3, 300, 4, PRIORITY_NORMAL);
    (void)ready_compose(&r);
    assert_true(core_windowed(r.core, 0).n_held > 0);
    uint64_t before = ready_cache(&r).tokens_saved;
    ready_again(&r);
    assert_int_equal(core_windowed(r.core, 0).n_free, 50);
    finish(&r);
    assert_int_equal(r.n_ended, 2);
    assert_int_equal(ready_cache(&r).tokens_saved, before);
    assert_int_equal(core_windowed(r.core, 0).n_held, 0);
    core_close(r.core);
}

/* What status tells, and that a chain without windowed layers tells nothing. */
static void test_status(void **state)
{
    (void)state;
    struct fixture r = ready_open(windowed_config(200));
    ready_submit(&r, 1, 3, 100, 4, PRIORITY_NORMAL);
    (void)ready_compose(&r);
    struct msg_status s;
    core_status(r.core, &s);
    assert_int_equal(s.replicas[0].windowed_total, 50);
    assert_true(s.replicas[0].cache.windowed_held >= 1);
    finish(&r);
    core_status(r.core, &s);
    assert_int_equal(s.replicas[0].cache.windowed_held, 0);
    assert_true(s.replicas[0].cache.windowed_cached >= 6);
    core_close(r.core);
    r = ready_open(ready_config());
    core_status(r.core, &s);
    assert_int_equal(s.replicas[0].windowed_total, 0);
    assert_int_equal(core_n_windowed(r.core, 0), 0);
    core_close(r.core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_recently_used),
        cmocka_unit_test(test_attached_once),
        cmocka_unit_test(test_slides_on),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_rides_behind),
        cmocka_unit_test(test_room_for_one),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
