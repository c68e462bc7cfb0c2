/* The model of a Step's time learns times that are made by a known rule. */
#include "coordinator/core/cost.h"

#include "common/base/clock.h"
#include "common/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static uint64_t rule(struct cost_work w)
{
    return 400000 + 60000 * (uint64_t)w.rows + 90000 * (uint64_t)w.logits + 3 * w.depth;
}

static struct cost_work random_work(struct rng *r)
{
    struct cost_work w = {.rows = 1 + (uint32_t)rng_below(r, 300)};
    w.logits = (uint32_t)rng_below(r, (w.rows < 16 ? w.rows : 16) + 1);
    w.depth = (uint64_t)w.rows * rng_below(r, 4000);
    return w;
}

static void test_learns(void **state)
{
    (void)state;
    struct cost c = {0};
    struct rng rng = {3};
    struct cost_work w = {1, 1, 100};
    assert_int_equal(cost_predict(&c, w), 0); /* nothing is known */
    for (int i = 0; i < 300; i++) {
        w = random_work(&rng);
        uint64_t noise = rng_below(&rng, 11);
        cost_learn(&c, w, rule(w) * (95 + noise) / 100);
    }
    for (int i = 0; i < 300; i++) {
        w = random_work(&rng);
        assert_in_range(cost_predict(&c, w), rule(w) * 9 / 10, rule(w) * 11 / 10);
    }
}

/* Decodes only, then a prompt: terms that always came together are told apart. */
static void test_decodes_then_prompts(void **state)
{
    (void)state;
    struct cost c = {0};
    struct rng rng = {4};
    for (int i = 0; i < 200; i++) {
        uint32_t n = 1 + (uint32_t)rng_below(&rng, 8);
        struct cost_work w = {n, n, n * 500};
        cost_learn(&c, w, rule(w));
    }
    struct cost_work eight = {8, 8, 4000}, prompt = {256, 0, 256 * 128};
    assert_in_range(cost_predict(&c, eight), rule(eight) * 97 / 100, rule(eight) * 103 / 100);
    assert_true(cost_predict(&c, prompt) > cost_predict(&c, eight)); /* untried, but not cheaper */
    for (int i = 0; i < 20; i++) cost_learn(&c, prompt, rule(prompt));
    assert_in_range(cost_predict(&c, prompt), rule(prompt) * 9 / 10, rule(prompt) * 11 / 10);
    assert_in_range(cost_predict(&c, eight), rule(eight) * 9 / 10, rule(eight) * 11 / 10);
}

/* The model follows a machine that becomes slower within a few hundred Steps. */
static void test_forgets(void **state)
{
    (void)state;
    struct cost c = {0};
    struct rng rng = {5};
    for (int i = 0; i < 2000; i++) {
        struct cost_work w = random_work(&rng);
        cost_learn(&c, w, rule(w) * (i < 1500 ? 1 : 3));
    }
    struct cost_work w = {100, 8, 50000};
    assert_in_range(cost_predict(&c, w), rule(w) * 27 / 10, rule(w) * 33 / 10);
}

/* Even where Steps with more logits took less time, no term is negative: a prediction never falls
 * as a Step grows. */
static void test_no_term_is_negative(void **state)
{
    (void)state;
    struct cost c = {0};
    struct rng rng = {6};
    for (int i = 0; i < 200; i++) {
        struct cost_work w = random_work(&rng);
        cost_learn(&c, w, 3000000 + 50000 * (uint64_t)w.rows - 150000 * (uint64_t)w.logits);
        for (int k = 0; k < COST_TERMS; k++) assert_true(c.weight[k] >= 0.0);
    }
    struct cost_work few = {16, 1, 0}, many = {16, 256, 0}, deep = {16, 256, 1 << 24};
    assert_true(cost_predict(&c, few) > 0);
    assert_true(cost_predict(&c, many) >= cost_predict(&c, few));
    assert_true(cost_predict(&c, deep) >= cost_predict(&c, many));
    assert_in_range(cost_predict(&c, deep), 1, NS_PER_S * 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns), cmocka_unit_test(test_decodes_then_prompts),
        cmocka_unit_test(test_forgets), cmocka_unit_test(test_no_term_is_negative)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
