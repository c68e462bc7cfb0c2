/* The pure parts of drafting: settings, lengths, what of a verified run counts, what it gains; and
 * the rule itself on a pair of toy models, with the noise that the last stage uses. */
#include "tests/lib/verify_draft.h"

#include "common/text/chooser.h"
#include "coordinator/draft/gain.h"
#include "coordinator/draft/length.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- settings ---- */

static void test_lengths_within_limits(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct length l;
    struct draft_settings s = DRAFT_DEFAULTS;
    for (uint32_t n = 1; n <= 32; n += 31) {
        s.length = n;
        s.length_max = 32;
        assert_int_equal(length_init(&l, &s, &em), 0);
        assert_int_equal(l.now, n);
    }
    static const struct {
        uint32_t length, most;
        const char *number;
    } bad[] = {{0, 32, "0"}, {33, 33, "33"}, {50, 50, "50"}, {4, 33, "33"}, {4, 3, "3"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        s.length = bad[i].length;
        s.length_max = bad[i].most;
        l.now = 77;
        assert_int_equal(length_init(&l, &s, &em), ERR_RANGE);
        assert_non_null(strstr(em.text, bad[i].number));
        assert_non_null(strstr(em.text, "32"));
        assert_int_equal(l.now, 77);
    }
}

static void test_settings_checks(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct draft_settings s = DRAFT_DEFAULTS;
    assert_int_equal(draft_settings_check(&s, &em), 0);
    static const float bad[][2] = {
        {-0.1f, 0.5f}, {0.6f, 0.5f}, {0.5f, 1.1f}, {NAN, 0.5f}, {0, NAN}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        s.low = bad[i][0];
        s.high = bad[i][1];
        assert_int_equal(draft_settings_check(&s, &em), ERR_RANGE);
        assert_non_null(strstr(em.text, "acceptances"));
    }
    s = DRAFT_DEFAULTS;
    s.threads = DRAFT_THREADS_MAX + 1;
    assert_int_equal(draft_settings_check(&s, &em), ERR_RANGE);
    assert_non_null(strstr(em.text, "65 are more than 64"));
    s = DRAFT_DEFAULTS;
    s.memory_bytes = 1000;
    assert_int_equal(draft_settings_check(&s, &em), ERR_RANGE);
    assert_non_null(strstr(em.text, "1000"));
    s = DRAFT_DEFAULTS;
    for (int k = 0; k < DRAFT_N_KINDS; k++) {
        s.kind = (enum draft_kind)k;
        bool needs = k == DRAFT_MODEL || k == DRAFT_RECORDED;
        assert_int_equal(draft_settings_check(&s, &em), needs ? ERR_CONF : 0);
        if (needs) assert_non_null(strstr(em.text, draft_kind_name(s.kind)));
    }
}

static void test_sources_and_lengths_in_words(void **state)
{
    (void)state;
    struct errmsg em = {0};
    static const struct {
        const char *text;
        enum draft_kind kind;
        const char *path;
    } good[] = {{"off", DRAFT_OFF, NULL},
                {"ngram", DRAFT_NGRAM, NULL},
                {"auto", DRAFT_AUTO, NULL},
                {"auto:m.gguf", DRAFT_AUTO, "m.gguf"},
                {"recorded:x.ids", DRAFT_RECORDED, "x.ids"},
                {"a/small.gguf", DRAFT_MODEL, "a/small.gguf"}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct draft_settings s = DRAFT_DEFAULTS;
        s.path = "old";
        assert_int_equal(draft_settings_source(&s, good[i].text, &em), 0);
        assert_int_equal(s.kind, good[i].kind);
        if (good[i].path)
            assert_string_equal(s.path, good[i].path);
        else
            assert_null(s.path);
        assert_int_equal(draft_settings_check(&s, &em), 0);
    }
    static const char *const bad[] = {"",      "ngrams", "recorded:", "recorded",
                                      "auto:", ".gguf",  "on"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct draft_settings s = DRAFT_DEFAULTS;
        assert_int_equal(draft_settings_source(&s, bad[i], &em), ERR_CONF);
        assert_non_null(strstr(em.text, "recorded:FILE"));
        assert_int_equal(s.kind, DRAFT_OFF);
    }
    struct draft_settings s = DRAFT_DEFAULTS;
    assert_int_equal(draft_settings_length(&s, "8", &em), 0);
    assert_true(!s.adaptive && s.length == 8 && s.length_max == 8);
    assert_int_equal(draft_settings_length(&s, "auto", &em), 0);
    assert_true(s.adaptive);
    static const char *const lengths[] = {"0", "33", "50", "", "-1", "4x", "99999999999"};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        assert_int_equal(draft_settings_length(&s, lengths[i], &em), ERR_RANGE);
        assert_non_null(strstr(em.text, lengths[i]));
        assert_non_null(strstr(em.text, "32"));
        assert_true(s.adaptive && s.length == 8);
    }
    for (int k = 0; k < DRAFT_N_KINDS; k++) {
        enum draft_kind found = DRAFT_N_KINDS;
        assert_int_equal(draft_kind_parse(draft_kind_name((enum draft_kind)k), &found, &em), 0);
        assert_int_equal(found, k);
    }
    enum draft_kind kept = DRAFT_AUTO;
    assert_int_equal(draft_kind_parse("Auto", &kept, &em), ERR_CONF);
    assert_int_equal(kept, DRAFT_AUTO);
}

/* ---- adaptive length ---- */

static void test_length_follows_acceptance(void **state)
{
    (void)state;
    struct draft_settings s = DRAFT_DEFAULTS;
    struct length l;
    s.length_max = 8;
    assert_int_equal(length_init(&l, &s, NULL), 0);
    static const struct {
        float acceptance;
        uint32_t now;
    } steps[] = {{0.8f, 4}, {0.81f, 5}, {0.81f, 6}, {0.9f, 7}, {0.9f, 8},
                 {0.9f, 8}, {0.5f, 8},  {NAN, 8},   {0.49f, 7}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        length_note(&l, steps[i].acceptance);
        assert_int_equal(l.now, steps[i].now);
    }
    for (int i = 0; i < 20; i++) length_note(&l, 0.0f);
    assert_int_equal(l.now, 1);
    s.adaptive = false;
    assert_int_equal(length_init(&l, &s, NULL), 0);
    for (int i = 0; i < 20; i++) length_note(&l, i < 10 ? 1.0f : 0.0f);
    assert_int_equal(l.now, 4);
}

/* ---- accounting ---- */

static void assert_accept(struct accept a, uint32_t accepted, uint32_t emitted)
{
    if (a.accepted != accepted || a.emitted != emitted)
        fail_msg("accepted %u, emitted %u, not %u, %u", a.accepted, a.emitted, accepted, emitted);
}

/* A known row and four drafted ones: 11 12 13 14. */
static void assert_run(const int32_t choices[5], int32_t end, uint32_t accepted, uint32_t emitted)
{
    static const int32_t draft[] = {11, 12, 13, 14};
    assert_accept(verify_draft(draft, 4, choices, 5, &end, 1), accepted, emitted);
}

static void test_accounting(void **state)
{
    (void)state;
    static const int32_t same[] = {11, 12, 13, 14, 15};
    static const int32_t first_wrong[] = {21, 12, 13, 14, 15}, third_wrong[] = {11, 12, 23, 14, 15};
    assert_run(first_wrong, 99, 0, 1);
    assert_run(third_wrong, 99, 2, 3);
    assert_run(same, 99, 4, 5);
    /* Nothing behind an end token. One that was drafted is accepted, as any token that the target
     * chose too; then one in a draft's place, and the last choice. */
    assert_run(same, 12, 2, 2);
    assert_run(same, 14, 4, 4);
    assert_run(third_wrong, 23, 2, 3);
    assert_run(same, 15, 4, 5);
    /* Behind a wrong token an end token is none. */
    assert_run(first_wrong, 14, 0, 1);
    /* Nothing drafted; nothing ends an answer; no room for more than three tokens. */
    assert_accept(verify_draft(NULL, 0, same, 1, NULL, 0), 0, 1);
    assert_accept(verify_draft(same, 4, same, 5, NULL, 0), 4, 5);
    assert_accept(verify_draft(same, 4, same, 3, NULL, 0), 3, 3);
}

/* Runs of drafted rows alone follow rows in flight, and may be dead; a row that fails was live. */
static void test_accounting_of_rows_alone(void **state)
{
    (void)state;
    static const int32_t choices[] = {12, 13, 14}, end = 13;
    struct accept_rows rows = {.n_rows = 3, .n_draft = 3, .choices = choices, .room = 100};
    assert_accept(accept_run(&rows), 0, 0);
    rows.n_live = rows.n_choices = 1;
    assert_accept(accept_run(&rows), 1, 1);
    rows.n_live = rows.n_choices = 3;
    assert_accept(accept_run(&rows), 3, 3);
    rows.n_choices = 2; /* the third row failed */
    assert_accept(accept_run(&rows), 3, 2);
    rows.n_choices = 0; /* the first one did */
    rows.n_live = 1;
    assert_accept(accept_run(&rows), 1, 0);
    rows.n_live = rows.n_choices = 3;
    rows.room = 1;
    assert_accept(accept_run(&rows), 2, 1);
    rows.room = 100;
    rows.ends = &end;
    rows.n_ends = 1;
    assert_accept(accept_run(&rows), 3, 2);
}

static void test_statistics(void **state)
{
    (void)state;
    struct accept_stats s = {0}, all = {0};
    assert_true(accept_rate(&s) == 0.0 && accept_speedup(&s) == 0.0);
    accept_note(&s, 5, 4, (struct accept){3, 4});
    assert_true(accept_rate(&s) == 0.75);
    accept_note(&s, 5, 4, (struct accept){4, 5});
    assert_true(accept_rate(&s) == 0.875);
    assert_true(s.runs == 2 && s.drafted == 8 && s.accepted == 7 && s.emitted == 9 &&
                s.wasted == 1);
    /* Measured times alone: 40 ms a token without, 50 ms with. */
    s.off_ns = 400;
    s.off_tokens = 10;
    assert_true(accept_speedup(&s) == 0.0);
    s.on_ns = 1000;
    s.on_tokens = 20;
    assert_true(fabs(accept_speedup(&s) - 0.8) < 1e-12);
    s.early = 3;
    accept_add(&all, &s);
    accept_add(&all, &s);
    const struct accept_stats twice = {.runs = 4,
                                       .drafted = 16,
                                       .accepted = 14,
                                       .emitted = 18,
                                       .early = 6,
                                       .wasted = 2,
                                       .on_ns = 2000,
                                       .on_tokens = 40,
                                       .off_ns = 800,
                                       .off_tokens = 20};
    assert_memory_equal(&all, &twice, sizeof all);
    s = (struct accept_stats){0}; /* reset */
    assert_true(accept_rate(&s) == 0.0 && accept_speedup(&s) == 0.0);
}

/* ---- gain ---- */

/* Four stages of 10 ms whatever the number of rows up to 16, then in proportion; 30 ms outside. */
static const struct gain_chain four = {.n_points = 3,
                                       .rows = {1, 16, 32},
                                       .slowest_ns = {10e6, 10e6, 20e6},
                                       .all_ns = {40e6, 40e6, 80e6},
                                       .outside_ns = 30e6};
/* One machine, on which each row costs as much as the first. */
static const struct gain_chain bound = {
    .n_points = 2, .rows = {1, 32}, .slowest_ns = {10e6, 320e6}, .all_ns = {10e6, 320e6}};

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want))) fail_msg("%.12g, not %.12g", got, want);
}

static void test_gain_of_rounds(void **state)
{
    (void)state;
    struct gain_draft d = {.first_ns = 1e6, .token_ns = 1e6, .rate = 1.0};
    struct gain_load l = {.decoding = 1};
    assert_near(gain_slowest_ns(&four, 24), 15e6);
    assert_near(gain_all_ns(&four, 48), 120e6);
    assert_near(gain_all_ns(&four, 0.5), 40e6);
    assert_near(gain_tokens(1.0, 4), 5.0);
    assert_near(gain_tokens(0.5, 2), 1.75);
    assert_near(gain_tokens(0.0, 8), 1.0);
    assert_near(gain_speed(&four, &d, &l, 0), 1e3 / 70);
    assert_near(gain_speed(&four, &d, &l, 4), 5e3 / 75); /* 5 ms of drafting */
    d.rate = 0.5;
    assert_near(gain_speed(&four, &d, &l, 2), 1.75e3 / 73);
    /* Seven sequences fill the chain one by one, 14 two by two; the drafts then cost more. */
    l.decoding = 7;
    assert_near(gain_speed(&four, &d, &l, 0), 1e3 / 70);
    l.decoding = 14;
    assert_near(gain_speed(&four, &d, &l, 0), 1e3 / 70);
    l.decoding = 100; /* 100 x 3 ms of drafts: one thread makes them all */
    assert_near(gain_speed(&four, &d, &l, 2), 1.75e3 / 300);
}

static void test_gain_of_streams(void **state)
{
    (void)state;
    struct gain_draft d = {.first_ns = 0, .token_ns = 0.5e6, .rate = 1.0};
    struct gain_load l = {.decoding = 1, .pipelined = true};
    /* All right: a run of 8 leaves each time the slowest stage is free. */
    assert_near(gain_speed(&four, &d, &l, 8), 8e3 / 10);
    d.token_ns = 2e6; /* the drafter is slower: 16 ms a run */
    assert_near(gain_speed(&four, &d, &l, 8), 8e3 / 16);
    l.depth_max = 16; /* two runs in a round trip of 70 ms */
    assert_near(gain_speed(&four, &d, &l, 8), 16e3 / 70);
    /* All wrong: a round trip and a draft for each token. */
    d.rate = 0.0;
    l.depth_max = 0;
    assert_near(gain_speed(&four, &d, &l, 8), 1e3 / 86);
    /* Half of them: half a trip and draft, half of a run's eighth. */
    d.rate = 0.5;
    assert_near(gain_speed(&four, &d, &l, 8), 1e3 / (0.5 * 86 + 0.5 * 2));
    /* 20 sequences: dead rows take the others' time. A run of 8 and its dead rows, 70 / 10 runs. */
    d.token_ns = 0;
    l.decoding = 20; /* three in a Step of 24 rows: 15 ms, and 60 + 30 ms the trip */
    double row = 15.0 / 24, period = 20 * 8 * row, dead = 90 / period * 8;
    assert_near(gain_speed(&four, &d, &l, 8), 1e3 / ((1 + 0.5 * dead) * 20 * row));
}

static void test_best_gain(void **state)
{
    (void)state;
    struct gain_draft d = {.token_ns = 1e6, .rate = 1.0};
    struct gain_load l = {.decoding = 1};
    assert_int_equal(gain_best(&four, &d, &l, 8), 8);
    assert_int_equal(gain_best(&four, &d, &l, 32), 32);
    d.rate = 0.0;
    assert_int_equal(gain_best(&four, &d, &l, 32), 0);
    d.rate = 0.6;
    uint32_t middling = gain_best(&four, &d, &l, 32);
    assert_true(middling > 1 && middling < 15);
    d.rate = 0.9;
    assert_true(gain_best(&four, &d, &l, 32) > middling);
    /* A dear draft pays less, and then not at all. */
    d.rate = 0.6;
    d.token_ns = 20e6;
    uint32_t dear = gain_best(&four, &d, &l, 32);
    assert_true(dear > 0 && dear < middling);
    d.token_ns = 60e6;
    assert_int_equal(gain_best(&four, &d, &l, 32), 0);
    /* Where rows cost as much as Steps, only a perfect draft of a free drafter breaks even. */
    d = (struct gain_draft){.rate = 0.9};
    assert_int_equal(gain_best(&bound, &d, &l, 32), 0);
    /* Full batches: the chain is busy without drafts. */
    l.decoding = 16 * 7;
    d = (struct gain_draft){.rate = 0.7};
    assert_int_equal(gain_best(&four, &d, &l, 32), 0);
    /* Not a figure: not a gain. */
    l.decoding = 1;
    d.rate = NAN;
    assert_int_equal(gain_best(&four, &d, &l, 32), 0);
    d = (struct gain_draft){.first_ns = INFINITY, .rate = 1.0};
    assert_int_equal(gain_best(&four, &d, &l, 32), 0);
    d.first_ns = 0;
    struct gain_chain bad = four;
    bad.n_points = 0;
    assert_int_equal(gain_best(&bad, &d, &l, 32), 0);
    bad = four;
    bad.rows[2] = 16;
    assert_int_equal(gain_best(&bad, &d, &l, 32), 0);
    bad = four;
    bad.all_ns[0] = NAN;
    assert_int_equal(gain_best(&bad, &d, &l, 32), 0);
}

static void test_running_rate(void **state)
{
    (void)state;
    struct gain_rate r = {0};
    assert_near(gain_rate_value(&r, 0.7), 0.7);
    gain_rate_note(&r, 4, 0); /* one wrong token; what is behind it says nothing */
    assert_near(gain_rate_value(&r, 0.5), 1.0 / 3.0);
    for (int i = 0; i < 200; i++) gain_rate_note(&r, 4, 4);
    assert_true(gain_rate_value(&r, 0.5) > 0.98);
    for (int i = 0; i < 400; i++) gain_rate_note(&r, 4, 1);
    assert_true(fabs(gain_rate_value(&r, 0.5) - 0.5) < 0.02);
    gain_rate_note(&r, 0, 0);
    assert_true(fabs(gain_rate_value(&r, 0.5) - 0.5) < 0.02);
}

/* ---- a pair of toy models ---- */

#define TOY 4u
#define ITERATIONS 200000u
#define TOY_DRAFT 3u

static const float toy_target[TOY][TOY] = {
    {.5f, .3f, .15f, .05f}, {.1f, .6f, .2f, .1f}, {.25f, .25f, .4f, .1f}, {.7f, .1f, .1f, .1f}};
static const float toy_draft[TOY][TOY] = {
    {.2f, .3f, .3f, .2f}, {.3f, .3f, .2f, .2f}, {.1f, .5f, .2f, .2f}, {.25f, .25f, .25f, .25f}};

static int32_t toy_choose(struct chooser *c, const struct sampling *s, uint32_t pos,
                          const float *row)
{
    float logits[TOY];
    for (uint32_t i = 0; i < TOY; i++) logits[i] = logf(row[i]);
    const struct chooser_ask ask = {.sampling = s, .pos = pos, .boundary = 1, .logits = logits};
    struct chooser_choice choice;
    assert_int_equal(chooser_choose(c, &ask, &choice), 0);
    return choice.token;
}

/* How likely both choose the same with the same Gumbel noise (Maddison et al. 2014): token i wins
 * in both with 1 / sum over j of max(p_j / p_i, q_j / q_i). */
static double toy_expected(const float *p, const float *q)
{
    double sum = 0;
    for (uint32_t i = 0; i < TOY; i++) {
        double ratios = 0;
        for (uint32_t j = 0; j < TOY; j++)
            ratios += fmax((double)p[j] / (double)p[i], (double)q[j] / (double)q[i]);
        sum += 1 / ratios;
    }
    return sum;
}

static void test_toy_pair(void **state)
{
    (void)state;
    struct chooser *c;
    uint32_t first[TOY] = {0}, second[TOY][TOY] = {{0}}, accepted = 0;
    struct accept_stats stats = {0};
    assert_int_equal(chooser_open(TOY, &c, NULL), 0);
    for (uint32_t n = 0; n < ITERATIONS; n++) {
        struct sampling s = SAMPLING_PLAIN;
        s.temp = 1.0f;
        s.seed = n;
        int32_t draft[TOY_DRAFT], choices[TOY_DRAFT + 1], alone[TOY_DRAFT + 1], last = 0;
        for (uint32_t i = 0; i < TOY_DRAFT; i++)
            last = draft[i] = toy_choose(c, &s, 1 + i, toy_draft[last]);
        last = 0;
        for (uint32_t i = 0; i <= TOY_DRAFT; i++) {
            choices[i] = toy_choose(c, &s, 1 + i, toy_target[i ? draft[i - 1] : 0]);
            last = alone[i] = toy_choose(c, &s, 1 + i, toy_target[last]);
        }
        struct accept a = verify_draft(draft, TOY_DRAFT, choices, TOY_DRAFT + 1, NULL, 0);
        /* Drafter-invariant: what counts is what the target says alone. */
        for (uint32_t i = 0; i < a.emitted; i++) assert_int_equal(choices[i], alone[i]);
        accept_note(&stats, TOY_DRAFT + 1, TOY_DRAFT, a);
        accepted += draft[0] == choices[0];
        first[choices[0]]++;
        if (a.emitted > 1) second[choices[0]][choices[1]]++;
    }
    double variation = 0, best = 0, rate = (double)accepted / ITERATIONS;
    for (uint32_t i = 0; i < TOY; i++) {
        variation += fabs((double)first[i] / ITERATIONS - (double)toy_target[0][i]) / 2;
        best += fmin((double)toy_target[0][i], (double)toy_draft[0][i]);
    }
    print_message("toy pair: first token: total variation %.4f from the target; accepted %.4f "
                  "(best possible %.3f); %.3f tokens a run of %u\n",
                  variation, rate, best, (double)stats.emitted / ITERATIONS, TOY_DRAFT);
    assert_true(fabs(best - 0.7) < 1e-6);
    assert_true(variation <= 0.01);
    assert_true(rate >= 0.60);
    assert_true(fabs(rate - toy_expected(toy_target[0], toy_draft[0])) < 0.005);
    /* A token that follows an accepted one has the target's distribution too. */
    for (uint32_t i = 0; i < TOY; i++) {
        double n = 0, off = 0;
        for (uint32_t j = 0; j < TOY; j++) n += second[i][j];
        for (uint32_t j = 0; j < TOY; j++)
            off += fabs(second[i][j] / n - (double)toy_target[i][j]) / 2;
        assert_true(n > 1000 && off < 0.02);
    }
    chooser_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths_within_limits),
        cmocka_unit_test(test_settings_checks),
        cmocka_unit_test(test_sources_and_lengths_in_words),
        cmocka_unit_test(test_length_follows_acceptance),
        cmocka_unit_test(test_accounting),
        cmocka_unit_test(test_accounting_of_rows_alone),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_gain_of_rounds),
        cmocka_unit_test(test_gain_of_streams),
        cmocka_unit_test(test_best_gain),
        cmocka_unit_test(test_running_rate),
        cmocka_unit_test(test_toy_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
