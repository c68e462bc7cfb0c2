/* What a load's report is made of: samples with their percentiles, and the convoy's verdict. */
#include "common/base/samples.h"
#include "coordinator/cli/convoy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static bool near(double a, double b, double within)
{
    return fabs(a - b) <= within;
}

static void test_samples(void **state)
{
    (void)state;
    struct samples s = {0}, reversed = {0};
    const double four[] = {10, 12, 11, 50};
    for (int i = 0; i < 4; i++) samples_add(&s, four[i]);
    assert_true(near(samples_percentile(&s, 99), 50, 0));
    assert_true(near(samples_percentile(&s, 99.9), 50, 0));
    samples_close(&s);
    for (int i = 1; i <= 1000; i++) {
        samples_add(&s, i);
        samples_add(&reversed, 1001 - i);
    }
    assert_true(near(samples_percentile(&s, 99), 990, 0));
    assert_true(near(samples_percentile(&s, 99.9), 999, 0));
    for (double p = -5; p < 110; p += 2.5)
        assert_true(near(samples_percentile(&s, p), samples_percentile(&reversed, p), 0));
    samples_add(&s, 0.5); /* after percentiles were asked for */
    assert_true(near(samples_percentile(&s, 0), 0.5, 0));
    samples_close(&s);
    samples_close(&reversed);
    samples_add(&s, 7);
    samples_add(&s, NAN);
    samples_add(&s, INFINITY);
    samples_add(&s, -1);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.dropped, 3);
    samples_close(&s);
}

static void test_nearest_rank(void **state)
{
    (void)state;
    struct samples s = {0};
    for (int i = 100; i >= 1; i--) samples_add(&s, i);
    const double want[][2] = {{50, 50}, {95, 95}, {99, 99},  {99.9, 100},
                              {0, 1},   {-1, 1},  {100, 100}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_true(near(samples_percentile(&s, want[i][0]), want[i][1], 0));
    samples_close(&s);
}

static struct convoy_verdict judge(double from, double step, double waste, double wait)
{
    struct samples baseline = {0}, convoy = {0}, waits = {0};
    struct convoy_limits limits = CONVOY_LIMITS;
    struct convoy_verdict v;
    for (int i = 0; i < 100; i++) {
        samples_add(&baseline, 45 + 0.1 * i);
        samples_add(&convoy, from + step * i);
    }
    const double w[] = {80, wait, 95, 110, 85};
    for (int i = 0; i < 5; i++) samples_add(&waits, w[i]);
    convoy_judge(&baseline, &convoy, &waits, waste, &limits, &v);
    samples_close(&baseline);
    samples_close(&convoy);
    samples_close(&waits);
    return v;
}

static void test_convoy(void **state)
{
    (void)state;
    struct convoy_verdict v = judge(60, 0.15, 8.5, 120);
    assert_true(near(v.baseline_p99, 54.8, 1e-9));
    assert_true(near(v.convoy_p99, 74.7, 1e-9));
    assert_true(near(v.increase_percent, 36.3139, 1e-4));
    assert_true(near(v.wait_max, 120, 0));
    assert_true(near(v.wait_mean, 98, 1e-9));
    assert_true(v.pass);
    assert_int_equal(v.n_reasons, 0);
    v = judge(120, 0.15, 20, 700); /* all three limits broken: each named, with value and limit */
    assert_false(v.pass);
    assert_int_equal(v.n_reasons, 3);
    assert_non_null(strstr(v.reasons[0], "50 %"));
    assert_non_null(strstr(v.reasons[1], "700"));
    assert_non_null(strstr(v.reasons[2], "20 %"));
}

static void test_convoy_borders(void **state)
{
    (void)state;
    struct samples base = {0}, at = {0}, above = {0}, none = {0};
    struct convoy_limits limits = CONVOY_LIMITS;
    struct convoy_verdict v;
    samples_add(&base, 100);
    samples_add(&at, 150);
    samples_add(&above, 150.01);
    convoy_judge(&base, &at, &none, 15, &limits, &v);
    assert_true(v.pass); /* exactly 50 % */
    convoy_judge(&base, &above, &none, 0, &limits, &v);
    assert_false(v.pass);
    convoy_judge(&none, &at, &none, 0, &limits, &v);
    assert_false(v.pass); /* nothing to compare with */
    convoy_judge(&base, &none, &none, 0, &limits, &v);
    assert_false(v.pass); /* nothing to compare */
    samples_close(&base);
    samples_close(&at);
    samples_close(&above);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples), cmocka_unit_test(test_nearest_rank),
        cmocka_unit_test(test_convoy), cmocka_unit_test(test_convoy_borders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
