/* What products can reach: each level's loop adds as many products as it says, so that no compiler
 * has left any out. And the rates of kernels: of every type and form that a number of rows has. */
#include "common/engine/cpu.h"
#include "common/engine/kern_rate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct kern *levels[4];
static unsigned n_levels;

static void test_peak_counts(void **state)
{
    (void)state;
    static const uint32_t rounds[] = {0, 1, 2, 3, 7, 64, 1001};
    for (unsigned l = 0; l < n_levels; l++)
        for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
            uint32_t want = rounds[i] * KERN_PEAK_PRODUCTS, got = levels[l]->peak(rounds[i]);
            if (got != want)
                fail_msg("%s: %u rounds: %u, not %u", levels[l]->name, rounds[i], got, want);
        }
}

static void test_peak_is_a_rate(void **state)
{
    (void)state;
    struct errmsg em = {0};
    for (unsigned l = 0; l < n_levels; l++)
        for (unsigned threads = 1; threads <= 2; threads++) {
            double rate = 0.0;
            assert_int_equal(kern_rate_peak(levels[l]->name, threads, &rate, &em), 0);
            assert_true(rate > 1e6);
        }
    double untouched = 7.0;
    assert_int_equal(kern_rate_peak("sse9", 1, &untouched, &em), ERR_UNSUPPORTED);
    assert_int_equal(kern_rate_peak(NULL, 0, &untouched, &em), ERR_RANGE);
    assert_true(untouched == 7.0);
}

static void test_isa(void **state)
{
    (void)state;
    struct errmsg em = {0};
    const char *name = "";
    for (unsigned l = 0; l < n_levels; l++) {
        assert_int_equal(kern_rate_isa(levels[l]->name, &name, &em), 0);
        assert_string_equal(name, levels[l]->name);
    }
    assert_int_equal(kern_rate_isa(NULL, &name, &em), 0);
    assert_string_equal(name, levels[n_levels - 1]->name); /* the best */
    assert_int_equal(kern_rate_isa("sse9", &name, &em), ERR_UNSUPPORTED);
}

static void check_forms(const struct kern *level, enum qtype type, uint32_t rows)
{
    struct errmsg em = {0};
    struct kern_rate r = {-1.0, -1.0};
    assert_int_equal(kern_rate_linear(level->name, type, rows, &r, &em), 0);
    bool tiles = !qtype_is_float(type) && (rows == 1 || level->has_few);
    bool panels = qtype_is_float(type) || rows > 1;
    if ((r.tiles > 0.0) != tiles || (r.panels > 0.0) != panels || r.tiles < 0.0 || r.panels < 0.0)
        fail_msg("%s, %s, %u rows: %g, %g", level->name, qtype_info((uint32_t)type)->name, rows,
                 r.tiles, r.panels);
}

static void test_forms(void **state)
{
    (void)state;
    static const enum qtype types[] = {
#define X(name, number, block, bytes) QTYPE_##name,
        QTYPES_FLOAT(X) QTYPES_BLOCK(X)
#undef X
    };
    for (unsigned l = 0; l < n_levels; l++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            check_forms(levels[l], types[t], 1);
            check_forms(levels[l], types[t], 2);
            if (levels[l]->has_few) check_forms(levels[l], types[t], KERN_RATE_ROWS_MAX);
        }
    struct errmsg em = {0};
    struct kern_rate untouched = {7.0, 8.0};
    assert_int_equal(kern_rate_linear(NULL, QTYPE_Q4_0, 0, &untouched, &em), ERR_RANGE);
    assert_int_equal(kern_rate_linear(NULL, QTYPE_Q4_0, KERN_RATE_ROWS_MAX + 1, &untouched, &em),
                     ERR_RANGE);
    assert_int_equal(kern_rate_linear("sse9", QTYPE_Q4_0, 1, &untouched, &em), ERR_UNSUPPORTED);
    assert_true(untouched.tiles == 7.0 && untouched.panels == 8.0);
}

int main(void)
{
    struct errmsg em;
    static const char *const names[] = {"scalar", "avx2", "avx512"}; /* the best comes last */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (cpu_kern(names[i], &levels[n_levels], &em) == 0)
            n_levels++;
        else
            (void)printf("not tested here: %s\n", em.text);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_peak_counts),
                                       cmocka_unit_test(test_peak_is_a_rate),
                                       cmocka_unit_test(test_isa), cmocka_unit_test(test_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
