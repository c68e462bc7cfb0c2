/* Plans of chains: cuts against all cuts of small models, and the rules by which workers are
 * chosen, ordered, and kept. */
#include "coordinator/core/plan.h"

#include "common/base/rng.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS_MAX 9u
#define NEARLY 1.0000001 /* sums in another order differ in their last bits */
#define EVEN 1.05        /* an even cut may be so much slower, */
#define ORDER 0.97       /* and another order must be so much faster */

static uint64_t work[64], bytes[64];
static bool windowed[64];
static struct room_costs costs;
static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

/* A model whose layers are alike, and workers that were not measured and have any memory. */
static struct plan_ask plain_ask(uint32_t n_layers, uint32_t n_stages)
{
    static const struct room_costs unknown = {.layer_bytes = NULL};
    return (struct plan_ask){.n_layers = n_layers,
                             .n_stages = n_stages,
                             .costs = &unknown,
                             .pages_least = 1,
                             .pages_most = 1};
}

static void plain_workers(struct plan_worker *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        w[i] = (struct plan_worker){
            .id = 10 + i, .name = names[i], .room_bytes = UINT64_MAX, .stage = PLAN_ANY_STAGE};
}

/* "11:0-4 10:5-9": workers and their layers. */
static const char *text_of(const struct plan_stage *s, uint32_t n)
{
    static char text[512];
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%u:%u-%u", i ? " " : "", s[i].worker,
                               s[i].layer_first, s[i].layer_last);
    return text;
}

static void expect(const struct plan_ask *ask, struct plan_worker *w, uint32_t n, const char *plan)
{
    struct plan_stage s[LIMIT_STAGES];
    assert_int_equal(plan_make(ask, w, n, s), PLAN_MADE);
    assert_string_equal(text_of(s, ask->n_stages), plan);
}

/* ---- against all cuts ---- */

struct stage_of {
    double ns;
    bool fits;
};

/* Counted anew, layer by layer. */
static struct stage_of look(const struct plan_ask *ask, const struct plan_worker *w, uint32_t first,
                            uint32_t last, uint32_t pages)
{
    double ns = 0.0;
    uint64_t need = pages * costs.page_bytes, n = last - first + 1;
    uint64_t few = pages < 2 ? pages : 2; /* windowed pages, of so small a pool */
    for (uint32_t l = first; l <= last; l++) {
        ns += w->byte_ns * (double)work[l];
        need +=
            bytes[l] + (costs.layer_windowed && windowed[l] ? few : pages) * costs.page_layer_bytes;
    }
    if (last == ask->n_layers - 1) {
        ns += w->head_ns;
        need += costs.last_bytes;
    }
    if (n == ask->n_layers) need -= costs.tied_bytes;
    return (struct stage_of){ns, need <= w->room_bytes && (!w->layers_max || n <= w->layers_max)};
}

/* The slowest stage of the best of all cuts from layer `from` on, for the workers from s on. */
static double best_cut(const struct plan_ask *ask, const struct plan_worker *const *order,
                       uint32_t s, uint32_t from, uint32_t pages)
{
    double best = DBL_MAX;
    bool is_last = s + 1 == ask->n_stages;
    if (from == ask->n_layers) return best;
    for (uint32_t last = is_last ? ask->n_layers - 1 : from; last < ask->n_layers; last++) {
        struct stage_of own = look(ask, order[s], from, last, pages);
        if (!own.fits) continue;
        double rest = is_last ? 0.0 : best_cut(ask, order, s + 1, last + 1, pages);
        double t = own.ns > rest ? own.ns : rest;
        if (t < best) best = t;
    }
    return best;
}

static double slowest_of(const struct plan_ask *ask, const struct plan_worker *w, uint32_t n,
                         const struct plan_stage *s, uint32_t pages, bool *ret_fits)
{
    double most = 0.0;
    *ret_fits = true;
    for (uint32_t i = 0; i < ask->n_stages; i++)
        for (uint32_t k = 0; k < n; k++) {
            if (w[k].id != s[i].worker) continue;
            struct stage_of x = look(ask, &w[k], s[i].layer_first, s[i].layer_last, pages);
            if (x.ns > most) most = x.ns;
            assert_true(x.ns <= s[i].ns * NEARLY && s[i].ns <= x.ns * NEARLY);
            *ret_fits = *ret_fits && x.fits;
        }
    return most;
}

static void check_shape(const struct plan_ask *ask, const struct plan_stage *s)
{
    for (uint32_t i = 0; i < ask->n_stages; i++) {
        assert_int_equal(s[i].layer_first, i ? s[i - 1].layer_last + 1 : 0);
        assert_true(s[i].layer_first <= s[i].layer_last);
    }
    assert_int_equal(s[ask->n_stages - 1].layer_last, ask->n_layers - 1);
}

static bool is_even(const struct plan_ask *ask, const struct plan_stage *s)
{
    for (uint32_t i = 0; i < ask->n_stages; i++) {
        uint32_t n = s[i].layer_last - s[i].layer_first + 1, each = ask->n_layers / ask->n_stages;
        if (n != each + (i < ask->n_layers % ask->n_stages)) return false;
    }
    return true;
}

static struct plan_ask random_ask(struct rng *r)
{
    uint32_t layers = 1 + (uint32_t)rng_below(r, LAYERS_MAX);
    struct plan_ask ask = plain_ask(layers, 1 + (uint32_t)rng_below(r, layers < 4 ? layers : 4));
    for (uint32_t l = 0; l < layers; l++) {
        work[l] = 50 + rng_below(r, 100);
        bytes[l] = work[l] + (l == 0 ? 300 : 0) + (l == layers - 1 ? 300 : 0);
    }
    costs = (struct room_costs){.layer_bytes = bytes,
                                .tied_bytes = 300 * rng_below(r, 2),
                                .page_layer_bytes = rng_below(r, 20),
                                .page_bytes = rng_below(r, 5),
                                .last_bytes = rng_below(r, 40)};
    for (uint32_t l = 0; l < layers; l++) windowed[l] = rng_below(r, 3) > 0;
    if (rng_below(r, 2)) {
        costs.layer_windowed = windowed;
        costs.windowed_least = 2;
        costs.windowed_most = 5;
    }
    ask.costs = &costs;
    ask.work = work;
    ask.pages_least = ask.pages_most = (uint32_t)rng_below(r, 12);
    return ask;
}

static void random_workers(struct rng *r, struct plan_worker *w, uint32_t n, bool limits)
{
    plain_workers(w, n);
    for (uint32_t i = 0; i < n; i++) {
        w[i].byte_ns = 1.0 + (double)rng_below(r, 100) / 10.0;
        w[i].head_ns = (double)rng_below(r, 4000);
        if (limits && rng_below(r, 2)) w[i].room_bytes = rng_below(r, 2000);
        if (limits && rng_below(r, 4) == 0) w[i].layers_max = 1 + (uint32_t)rng_below(r, 6);
    }
}

/* Where the order is given, the cut is the best one, or an even one that is hardly slower; and
 * where none fits, it has room for as large a pool as any. */
static void test_cuts(void **state)
{
    (void)state;
    struct rng r = {1};
    uint32_t n_made = 0, n_short = 0, n_even = 0;
    for (int turn = 0; turn < 20000; turn++) {
        struct plan_ask ask = random_ask(&r);
        struct plan_worker w[4];
        const struct plan_worker *order[LIMIT_STAGES];
        struct plan_stage s[LIMIT_STAGES];
        bool fits;
        random_workers(&r, w, ask.n_stages, true);
        for (uint32_t i = 0; i < ask.n_stages; i++) w[i].stage = i;
        enum plan_result result = plan_make(&ask, w, ask.n_stages, s);
        for (uint32_t i = 0; i < ask.n_stages; i++) order[w[i].stage] = &w[i];
        uint32_t most = plan_layers_max(&ask, w);
        assert_true((result == PLAN_TOO_FEW_LAYERS) == (most < ask.n_layers));
        if (result != PLAN_MADE) continue;
        check_shape(&ask, s);
        double best = best_cut(&ask, order, 0, 0, ask.pages_least);
        double t = slowest_of(&ask, w, ask.n_stages, s, ask.pages_least, &fits);
        if (best < DBL_MAX) {
            n_made++;
            n_even += t > best * NEARLY;
            assert_true(fits);
            assert_true(t <= best * NEARLY || (is_even(&ask, s) && t <= best * EVEN * NEARLY));
            continue;
        }
        n_short++;
        uint32_t pages = ask.pages_least;
        while (pages && best_cut(&ask, order, 0, 0, pages - 1) == DBL_MAX) pages--;
        if (pages == 0) continue; /* not even the weights have room */
        (void)slowest_of(&ask, w, ask.n_stages, s, pages - 1, &fits);
        assert_true(fits);
    }
    assert_true(n_made > 5000 && n_short > 1000 && n_even > 20);
}

/* The best of all orders of the workers from s on. */
static double best_order(const struct plan_ask *ask, const struct plan_worker **order, uint32_t s)
{
    if (s == ask->n_stages) return best_cut(ask, order, 0, 0, 0);
    double best = DBL_MAX;
    for (uint32_t i = s; i < ask->n_stages; i++) {
        const struct plan_worker *x = order[s];
        order[s] = order[i];
        order[i] = x;
        double t = best_order(ask, order, s + 1);
        if (t < best) best = t;
        order[i] = order[s];
        order[s] = x;
    }
    return best;
}

/* Of layers that are alike, any order of the workers is tried that matters. */
static void test_orders(void **state)
{
    (void)state;
    struct rng r = {2};
    uint32_t n_moved = 0;
    for (int turn = 0; turn < 5000; turn++) {
        struct plan_ask ask = random_ask(&r);
        struct plan_worker w[4];
        const struct plan_worker *order[LIMIT_STAGES];
        struct plan_stage s[LIMIT_STAGES];
        bool fits;
        for (uint32_t l = 0; l < ask.n_layers; l++) work[l] = 100;
        random_workers(&r, w, ask.n_stages, false);
        assert_int_equal(plan_make(&ask, w, ask.n_stages, s), PLAN_MADE);
        check_shape(&ask, s);
        for (uint32_t i = 0; i < ask.n_stages; i++) order[i] = &w[i];
        double best = best_order(&ask, order, 0);
        double t = slowest_of(&ask, w, ask.n_stages, s, 0, &fits);
        assert_true(fits && t <= best * EVEN / ORDER * NEARLY);
        n_moved += s[ask.n_stages - 1].worker != 10 + ask.n_stages - 1;
    }
    assert_true(n_moved > 500);
}

/* ---- the rules ---- */

/* Nothing was measured: evenly, the first stages have one more. */
static void test_even(void **state)
{
    (void)state;
    struct plan_ask ask = plain_ask(8, 3);
    struct plan_worker w[4];
    plain_workers(w, 4);
    expect(&ask, w, 4, "10:0-2 11:3-5 12:6-7");
    const uint32_t given[] = {1, 6, 1};
    ask.split = PLAN_GIVEN;
    ask.given = given;
    expect(&ask, w, 4, "10:0-0 11:1-6 12:7-7");
    ask.split = PLAN_EVEN;
    for (int i = 0; i < 4; i++) w[i].byte_ns = 1.0 + 10 * i;
    expect(&ask, w, 4, "10:0-2 11:3-5 12:6-7");
    struct plan_stage s[3];
    assert_int_equal(plan_make(&ask, w, 2, s), PLAN_TOO_FEW_WORKERS);
    /* Their order is that of their names, also where one was measured, or is trusted, more. */
    plain_workers(w, 2);
    ask = plain_ask(10, 2);
    ask.split = PLAN_EVEN;
    w[0].byte_ns = 10.0;
    w[1].byte_ns = 1.0;
    expect(&ask, w, 2, "10:0-4 11:5-9");
    plain_workers(w, 2);
    w[0].rank = 3;
    expect(&ask, w, 2, "10:0-4 11:5-9");
}

/* A slow worker has fewer layers; a last stage and a first stage of one layer are ordinary. */
static void test_speed(void **state)
{
    (void)state;
    struct plan_ask ask = plain_ask(30, 2);
    struct plan_worker w[2];
    plain_workers(w, 2);
    w[0].byte_ns = 10.0;
    w[1].byte_ns = 1.0;
    expect(&ask, w, 2, "10:0-1 11:2-29"); /* 20 and 28; 30 and 27 */
    plain_workers(w, 2);
    w[0].byte_ns = w[1].byte_ns = 1.0;
    w[0].head_ns = w[1].head_ns = 40.0; /* more than all layers */
    expect(&ask, w, 2, "10:0-28 11:29-29");
    /* The slow one would be last by its name, and has the head to do. */
    plain_workers(w, 2);
    w[0].byte_ns = 1.0;
    w[1].byte_ns = 10.0;
    w[0].head_ns = 10.0;
    w[1].head_ns = 100.0;
    expect(&ask, w, 2, "11:0-2 10:3-29"); /* 30 and 37; 40 and 36 */
    /* A worker that was not measured counts like the mean. */
    plain_workers(w, 2);
    w[0].byte_ns = 3.0;
    expect(&ask, w, 2, "10:0-14 11:15-29");
    /* What is hardly faster than an even cut is not worth it. */
    plain_workers(w, 2);
    w[0].byte_ns = 1.0;
    w[1].byte_ns = 1.04;
    expect(&ask, w, 2, "10:0-14 11:15-29");
    w[1].byte_ns = 1.3;
    expect(&ask, w, 2, "10:0-16 11:17-29");
}

/* The best ranks, and of equals the fastest. */
static void test_choice(void **state)
{
    (void)state;
    struct plan_ask ask = plain_ask(10, 2);
    struct plan_worker w[4];
    plain_workers(w, 4);
    w[1].rank = 2;
    expect(&ask, w, 4, "10:0-4 12:5-9");
    plain_workers(w, 4);
    for (uint32_t i = 0; i < 4; i++) w[i].byte_ns = i == 1 ? 5.0 : 1.0;
    expect(&ask, w, 4, "10:0-4 12:5-9");
    plain_workers(w, 4);
    for (uint32_t i = 0; i < 4; i++) w[i].byte_ns = i < 2 ? 1.0 : 0.1; /* fast, but with faults */
    w[2].rank = w[3].rank = 1;
    expect(&ask, w, 4, "10:0-4 11:5-9");
}

static void hold(struct plan_worker *w, uint32_t first, uint32_t last)
{
    w->holds = true;
    w->layer_first = first;
    w->layer_last = last;
}

/* What all workers hold is kept, whatever is faster; what some hold, if it is not much slower. */
static void test_kept(void **state)
{
    (void)state;
    struct plan_ask ask = plain_ask(10, 2);
    struct plan_worker w[3];
    plain_workers(w, 3);
    w[0].byte_ns = w[1].byte_ns = w[2].byte_ns = 1.0;
    hold(&w[0], 7, 9);
    hold(&w[2], 0, 6);
    expect(&ask, w, 3, "12:0-6 10:7-9"); /* 7, where 5 was possible */
    plain_workers(w, 3);
    w[0].byte_ns = w[1].byte_ns = w[2].byte_ns = 1.0;
    hold(&w[2], 0, 5);
    expect(&ask, w, 3, "12:0-5 10:6-9"); /* 6: at most a quarter more than 5 */
    hold(&w[2], 0, 6);
    plain_workers(w, 3);
    w[0].byte_ns = w[1].byte_ns = w[2].byte_ns = 1.0;
    hold(&w[2], 0, 6);
    expect(&ask, w, 3, "10:0-4 11:5-9"); /* 7 is too much */
    /* A stage between two that are held. */
    ask.n_stages = 3;
    plain_workers(w, 3);
    w[0].byte_ns = w[1].byte_ns = w[2].byte_ns = 1.0;
    hold(&w[2], 0, 2);
    hold(&w[1], 7, 9);
    expect(&ask, w, 3, "12:0-2 10:3-6 11:7-9");
    /* Not where it is not cut so any more. */
    ask.split = PLAN_EVEN;
    expect(&ask, w, 3, "10:0-3 12:4-6 11:7-9");
    /* Nor where a worker may not have so many layers, or no room for them. */
    ask = plain_ask(10, 2);
    plain_workers(w, 2);
    w[0].byte_ns = w[1].byte_ns = 1.0;
    hold(&w[0], 0, 6);
    hold(&w[1], 7, 9);
    w[0].layers_max = 6;
    expect(&ask, w, 2, "10:0-4 11:5-9");
    /* Nor against what they prefer. */
    plain_workers(w, 2);
    w[0].byte_ns = w[1].byte_ns = 1.0;
    hold(&w[0], 0, 4);
    hold(&w[1], 5, 9);
    w[0].prefer = PLAN_LAST;
    expect(&ask, w, 2, "11:0-4 10:5-9");
}

/* Who has a stage by the file, and who prefers an end. */
static void test_wishes(void **state)
{
    (void)state;
    struct plan_ask ask = plain_ask(9, 3);
    struct plan_worker w[4];
    plain_workers(w, 4);
    w[0].prefer = PLAN_LAST;
    w[2].prefer = PLAN_FIRST;
    expect(&ask, w, 3, "12:0-2 11:3-5 10:6-8"); /* unmeasured */
    for (int i = 0; i < 3; i++) w[i].byte_ns = 1.0;
    expect(&ask, w, 3, "12:0-2 11:3-5 10:6-8");
    plain_workers(w, 4);
    w[3].stage = 1;
    w[3].rank = 9; /* whatever its faults are */
    expect(&ask, w, 4, "10:0-2 13:3-5 11:6-8");
    for (int i = 0; i < 4; i++) w[i].byte_ns = 1.0;
    expect(&ask, w, 4, "10:0-2 13:3-5 11:6-8");
    /* Who prefers to be last is, although another one would be better there. */
    ask = plain_ask(30, 2);
    plain_workers(w, 2);
    w[0].byte_ns = 1.0;
    w[1].byte_ns = 10.0;
    w[1].head_ns = 100.0;
    w[1].prefer = PLAN_LAST;
    expect(&ask, w, 2, "10:0-28 11:29-29");
    /* Layers that a worker may have. */
    ask = plain_ask(10, 2);
    plain_workers(w, 2);
    w[0].byte_ns = w[1].byte_ns = 1.0;
    w[0].layers_max = 2;
    expect(&ask, w, 2, "10:0-1 11:2-9");
    struct plan_stage s[2];
    w[0].layers_max = 2;
    w[1].layers_max = 3;
    assert_int_equal(plan_make(&ask, w, 2, s), PLAN_TOO_FEW_LAYERS);
    assert_int_equal(plan_layers_max(&ask, w), 5);
}

/* Of cuts that are about equally fast, the one with the larger pool. */
static void test_pool(void **state)
{
    (void)state;
    struct plan_ask ask = plain_ask(20, 2);
    struct plan_worker w[2];
    for (uint32_t l = 0; l < 20; l++) bytes[l] = 100;
    costs = (struct room_costs){.layer_bytes = bytes, .page_layer_bytes = 10};
    ask.costs = &costs;
    ask.pages_least = 1;
    ask.pages_most = 64;
    plain_workers(w, 2);
    w[0].byte_ns = 1.0;
    w[1].byte_ns = 1.2;
    w[0].room_bytes = 11 * 100 + 11 * 10 * 8; /* 11 layers with 8 pages, or 10 with 9 */
    expect(&ask, w, 2, "10:0-10 11:11-19");   /* 11; half of 64 pages, and again, until it fits */
    ask.pages_most = 9;
    expect(&ask, w, 2, "10:0-9 11:10-19"); /* 12 */
    w[1].byte_ns = 1.25;
    expect(&ask, w, 2, "10:0-10 11:11-19"); /* 12.5 would be too slow for it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),   cmocka_unit_test(test_orders), cmocka_unit_test(test_even),
        cmocka_unit_test(test_speed),  cmocka_unit_test(test_choice), cmocka_unit_test(test_kept),
        cmocka_unit_test(test_wishes), cmocka_unit_test(test_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
