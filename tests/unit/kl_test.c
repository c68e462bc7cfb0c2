/* KL divergences of known pairs, and the figures of a list of them. */
#include "coordinator/cli/kl.h"

#include "common/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void expect(double got, double want)
{
    if (fabs(got - want) > 1e-9 * (1 + fabs(want))) fail_msg("%.12g, not %.12g", got, want);
}

static void test_known_pairs(void **state)
{
    (void)state;
    static const struct {
        float baseline[3], judged[3];
        uint32_t n;
        double want;
    } cases[] = {
        {{1, 2, 3}, {3, 2, 1}, 3, 1.1504207652},
        {{50, 0}, {0, 50}, 2, 50.0},
        {{0, 0}, {30, 0}, 2, 14.306852819},
        {{5, 0}, {-30, 0}, 2, 29.759034869}, /* not the other way round */
        {{7, 7, 7}, {-2, -2, -2}, 3, 0},
        {{0}, {0}, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect(kl_between(cases[i].baseline, cases[i].judged, cases[i].n), cases[i].want);
    const float a[3] = {1, 2, 3}, b[3] = {1.1f, 2, 2.9f};
    assert_true(fabs(kl_between(a, b, 3) - 0.0021801434) < 1e-8); /* 1.1 and 2.9 are f32 here */
}

static void test_not_finite(void **state)
{
    (void)state;
    const float plain[2] = {1, 2}, out[2] = {1, -INFINITY};
    const float bad[][2] = {
        {NAN, 2}, {1, NAN}, {INFINITY, 2}, {1, INFINITY}, {-INFINITY, -INFINITY}};
    assert_true(kl_between(plain, out, 2) == INFINITY); /* the baseline does not rule it out */
    expect(kl_between(out, plain, 2), log(1 + exp(1)));
    expect(kl_between(out, out, 2), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_true(kl_between(plain, bad[i], 2) == INFINITY);
        assert_true(kl_between(bad[i], plain, 2) == INFINITY);
    }
}

/* A recorded baseline has its largest logits; the other tokens count as one, with the probability
 * that is left. */
static void test_recorded(void **state)
{
    (void)state;
    enum { VOCAB = 200 };
    struct rng rng = {9};
    for (int round = 0; round < 200; round++) {
        float base[VOCAB], judged[VOCAB];
        struct kl_recorded r;
        for (int i = 0; i < VOCAB; i++) {
            base[i] = (float)(VOCAB - i) / 40.0f + (float)rng_below(&rng, 100) / 5000.0f;
            judged[i] = base[i] + (float)rng_below(&rng, 100) / 100.0f;
        }
        for (uint32_t i = 0; i < KL_TOP; i++) {
            r.id[i] = i;
            r.logit[i] = base[i];
        }
        r.lse = kl_log_sum_exp(base, VOCAB);
        double lq = kl_log_sum_exp(judged, VOCAB), want = 0, p_rest = 0, q_rest = 0;
        for (int i = 0; i < VOCAB; i++) {
            double p = exp((double)base[i] - r.lse), q = exp((double)judged[i] - lq);
            if (i < (int)KL_TOP) want += p * log(p / q);
            p_rest += i < (int)KL_TOP ? 0 : p;
            q_rest += i < (int)KL_TOP ? 0 : q;
        }
        want += p_rest * log(p_rest / q_rest);
        assert_true(p_rest > 0.01 && want > 1e-4);
        assert_true(fabs(kl_from_recorded(&r, judged, VOCAB) - want) < 1e-9);
        assert_true(kl_from_recorded(&r, judged, VOCAB) <= kl_between(base, judged, VOCAB) + 1e-12);
        judged[round % VOCAB] = NAN;
        assert_true(kl_from_recorded(&r, judged, VOCAB) == INFINITY);
    }
}

static void test_random_pairs(void **state)
{
    (void)state;
    struct rng rng = {4};
    for (int round = 0; round < 100000; round++) {
        float a[5], b[5];
        double p = 0, want = 0;
        for (int i = 0; i < 5; i++) {
            a[i] = (float)rng_below(&rng, 4000) / 100.0f - 20.0f;
            b[i] = round % 3 ? a[i] + (float)rng_below(&rng, 100) * 1e-7f
                             : (float)rng_below(&rng, 4000) / 100.0f - 20.0f;
        }
        double got = kl_between(a, b, 5), lp = kl_log_sum_exp(a, 5), lq = kl_log_sum_exp(b, 5);
        for (int i = 0; i < 5; i++) {
            p = (double)a[i] - lp;
            want += exp(p) * (p - ((double)b[i] - lq));
        }
        assert_true(got >= 0 && fabs(got - want) <= 1e-12 * (1 + fabs(want)));
    }
}

/* Percentiles by nearest rank, in whatever order the divergences come. */
static void test_figures(void **state)
{
    (void)state;
    static const struct {
        unsigned n, p99; /* of 1..n */
    } ranks[] = {{1, 1}, {2, 2}, {99, 99}, {100, 99}, {101, 100}, {150, 149}, {1000, 990}};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        struct kl_list l = {0};
        unsigned n = ranks[i].n;
        for (unsigned k = 0; k < n; k++) /* 37 is prime to n: each of 1..n once */
            kl_add(&l, (k * 37 + 5) % n + 1, k % 4 == 0);
        struct kl_figures f = kl_figures(&l);
        expect(f.mean, (n + 1) / 2.0);
        expect(f.p99, ranks[i].p99);
        expect(f.max, n);
        expect(f.top1_agreement, (double)((n + 3) / 4) / n);
        kl_close(&l);
    }
    struct kl_list known = {0};
    const float a[3] = {1, 2, 3}, b[3] = {3, 2, 1};
    kl_add(&known, kl_between(a, b, 3), kl_largest(a, 3) == kl_largest(b, 3));
    kl_add(&known, kl_between(a, a, 3), kl_largest(a, 3) == kl_largest(a, 3));
    struct kl_figures f = kl_figures(&known);
    expect(f.mean, 1.1504207652 / 2);
    expect(f.max, 1.1504207652);
    expect(f.top1_agreement, 0.5);
    kl_close(&known);
    f = kl_figures(&known);
    assert_true(f.mean == 0 && f.p99 == 0 && f.max == 0 && f.top1_agreement == 0);
    const float tie[4] = {1, 3, 3, 2};
    assert_int_equal(kl_largest(tie, 4), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_pairs), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_recorded),    cmocka_unit_test(test_random_pairs),
        cmocka_unit_test(test_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
