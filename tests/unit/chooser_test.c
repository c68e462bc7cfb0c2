/* How a token is chosen: the arithmetic on a row of logits (common/text/sample.h), and the one
 * function that puts it together for the last stage and for the engine alone. */
#include "common/text/chooser.h"

#include "common/base/fmath.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t fail_at; /* the allocation of mem_try that fails, from 1; 0: none */

void *__real_mem_try(size_t bytes);
void *__wrap_mem_try(size_t bytes);

void *__wrap_mem_try(size_t bytes)
{
    return fail_at && --fail_at == 0 ? NULL : __real_mem_try(bytes);
}

/* ---- the arithmetic ---- */

#define N 8

static void frequencies(const struct sampling *p, const float *logits, double *ret)
{
    struct sample_candidate scratch[N];
    const uint32_t rounds = 200000;
    for (int i = 0; i < N; i++) ret[i] = 0;
    for (uint32_t pos = 0; pos < rounds; pos++)
        ret[sample_choose(p, 0, pos, logits, N, scratch)] += 1.0 / rounds;
}

static void test_distribution(void **state)
{
    (void)state;
    const float logits[N] = {1.5f, 0, -1, 2, 0.5f, -3, 1, 1.9f};
    for (float temp = 0.5f; temp <= 2.0f; temp *= 2) {
        struct sampling p = {.temp = temp, .top_p = 1, .seed = 99};
        double got[N], total = 0;
        frequencies(&p, logits, got);
        for (int i = 0; i < N; i++) total += exp((double)logits[i] / (double)temp);
        for (int i = 0; i < N; i++)
            assert_true(fabs(got[i] - exp((double)logits[i] / (double)temp) / total) < 0.005);
    }
}

static void test_filters(void **state)
{
    (void)state;
    const float logits[N] = {1, 3, 2, 0, -1, 3, -2, -3}; /* ids 1 and 5 tie */
    double got[N];
    struct sampling p = {.temp = 1, .top_p = 1, .top_k = 2, .seed = 5};
    frequencies(&p, logits, got);
    assert_true(fabs(got[1] - 0.5) < 0.01 && fabs(got[5] - 0.5) < 0.01);
    p = (struct sampling){.temp = 1, .top_p = 1, .top_k = 1, .seed = 5};
    frequencies(&p, logits, got);
    assert_true(got[1] > 0.9999); /* the lower id of the tie */
    p = (struct sampling){.temp = 1, .top_p = 0.3f, .seed = 5};
    frequencies(&p, logits, got); /* the best alone holds more than 0.3 of the mass */
    assert_true(got[1] > 0.9999);
    p = (struct sampling){.temp = 1, .top_p = 0.8f, .seed = 5};
    frequencies(&p, logits, got); /* 1 and 5 hold 0.78: the third is needed too */
    assert_true(got[1] > 0 && got[5] > 0 && got[2] > 0 && got[0] + got[3] + got[4] == 0);
    p = (struct sampling){.temp = 1, .top_p = 0.5f, .top_k = 3, .seed = 5};
    frequencies(&p, logits, got); /* of the three best, 1 and 5 hold 0.84 */
    assert_true(got[1] > 0 && got[5] > 0 && got[2] == 0);
    p = (struct sampling){.temp = 1, .top_p = 1, .min_p = 0.3f, .seed = 5};
    frequencies(&p, logits, got); /* e^-1 = 0.37 stays, e^-2 goes */
    assert_true(got[2] > 0 && got[0] == 0);
}

static void test_choice_is_a_function(void **state)
{
    (void)state;
    float logits[N] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct sample_candidate scratch[N];
    struct sampling greedy = {.temp = 0, .top_p = 1}, tiny = {.temp = 1e-30f, .top_p = 1};
    assert_int_equal(sample_choose(&greedy, 0, 9, logits, N, scratch), 0); /* ties: lowest id */
    assert_int_equal(sample_choose(&tiny, 0, 9, logits, N, scratch), 0);
    struct sampling p = {.temp = 1, .top_p = 1, .seed = 1};
    int differ_pos = 0, differ_sample = 0, differ_seed = 0;
    for (uint32_t pos = 0; pos < 200; pos++) {
        struct sampling q = p;
        q.seed = 2;
        int32_t a = sample_choose(&p, 0, pos, logits, N, scratch);
        assert_int_equal(sample_choose(&p, 0, pos, logits, N, scratch), a);
        differ_pos += a != sample_choose(&p, 0, pos + 1, logits, N, scratch);
        differ_sample += a != sample_choose(&p, 1, pos, logits, N, scratch);
        differ_seed += a != sample_choose(&q, 0, pos, logits, N, scratch);
    }
    assert_true(differ_pos > 150 && differ_sample > 150 && differ_seed > 150);
    logits[3] = NAN;
    assert_int_equal(sample_choose(&p, 0, 0, logits, N, scratch), -1);
    logits[3] = INFINITY;
    assert_int_equal(sample_choose(&greedy, 0, 0, logits, N, scratch), -1);
}

/* Bias first, then penalties; repetition over prompt and answer, the others over the answer. */
static void test_adjustments(void **state)
{
    (void)state;
    uint32_t count[N] = {0};
    int32_t ids[N];
    struct sample_seen seen = {count, ids, 0};
    const int32_t bias_ids[] = {0, 3, N, -1};
    const float bias[] = {1.5f, -100.0f, 9.0f, 9.0f};
    struct sampling p = {.repetition = 2,
                         .presence = 0.5f,
                         .frequency = 0.25f,
                         .n_bias = 4,
                         .bias_ids = bias_ids,
                         .bias = bias};
    float logits[N] = {1, 2, -2, 3, 4, 0, 1, 1}, top_logits[N];
    const float want[N] = {1.25f, 0.25f, -5.0f, -97, 4, 0, 1, 1};
    sample_seen_add(&seen, 0, false); /* the prompt: 0 1 2 */
    sample_seen_add(&seen, 1, false);
    sample_seen_add(&seen, 2, false);
    for (int i = 0; i < 2; i++) sample_seen_add(&seen, 2, true);
    sample_seen_add(&seen, 1, true);
    assert_true(sample_adjusts(&p) && sample_needs_seen(&p));
    sample_adjust(&p, &seen, logits, N);
    for (int i = 0; i < N; i++) assert_float_equal(logits[i], want[i], 0);
    sample_seen_clear(&seen);
    for (int i = 0; i < N; i++) assert_int_equal(count[i], 0);
    p = (struct sampling){.repetition = 1};
    assert_false(sample_adjusts(&p));
    struct sample_candidate top[3];
    for (int i = 0; i < N; i++) top_logits[i] = i == 5 ? 2.0f : i == 6 ? 2.0f : (float)-i;
    double sum = 0;
    for (int i = 0; i < N; i++) sum += exp((double)top_logits[i]);
    float chosen = sample_logprobs(top_logits, N, 1, 3, top);
    assert_true(fabs((double)chosen - (-1 - log(sum))) < 1e-6);
    assert_true(top[0].id == 5 && top[1].id == 6 && top[2].id == 0);
    assert_true(fabs((double)top[2].score + log(sum)) < 1e-6);
}

/* Among very many equal logits each has the same chance: none is skipped that the noise could
 * lift. */
static void test_choice_among_equals(void **state)
{
    (void)state;
    enum { MANY = 50000, ROUNDS = 400, BINS = 8 };
    float *logits = mem_zalloc(MANY * sizeof *logits);
    struct sample_candidate *scratch = mem_alloc(MANY * sizeof *scratch);
    struct sampling p = {.temp = 1, .top_p = 1, .seed = 7};
    double mean = 0, chi = 0;
    int bins[BINS] = {0};
    for (uint32_t pos = 0; pos < ROUNDS; pos++) {
        int32_t id = sample_choose(&p, 0, pos, logits, MANY, scratch);
        assert_true(id >= 0 && id < MANY);
        mean += (double)id / MANY / ROUNDS;
        bins[id * BINS / MANY]++;
    }
    for (int i = 0; i < BINS; i++)
        chi += (bins[i] - ROUNDS / BINS) * (bins[i] - ROUNDS / BINS) / (double)(ROUNDS / BINS);
    assert_true(fabs(mean - 0.5) < 0.06); /* four standard deviations */
    assert_true(chi < 29);                /* 7 degrees of freedom: one in ten thousand is above */
    mem_free(logits);
    mem_free(scratch);
}

/* Whatever the parameters, finite logits give a token, and the filters keep what they should. */
static void test_extreme_values(void **state)
{
    (void)state;
    uint32_t count[N] = {0};
    int32_t ids[N];
    struct sample_seen seen = {count, ids, 0};
    struct sample_candidate scratch[N];
    const int32_t bias_ids[] = {1, 2, 3};
    const float bias[] = {3e38f, -3e38f, 3e38f};
    const struct sampling adjust[] = {
        {.repetition = 1.2e-38f},
        {.repetition = 3e38f},
        {.repetition = 1, .presence = 3e38f, .frequency = 3e38f},
        {.repetition = 1, .presence = -3e38f, .frequency = -3e38f},
        {.repetition = 1.2e-38f,
         .presence = 3e38f,
         .n_bias = 3,
         .bias_ids = bias_ids,
         .bias = bias},
    };
    for (int32_t i = 0; i < 5; i++) sample_seen_add(&seen, i, i % 2);
    for (size_t i = 0; i < sizeof adjust / sizeof adjust[0]; i++)
        for (int extreme = 0; extreme < 2; extreme++) {
            float logits[N] = {1, 2, -2, 3, 0, 0.5f, -1, 1}, big = extreme ? 1e38f : 1;
            for (int k = 0; k < N; k++) logits[k] *= big;
            sample_adjust(&adjust[i], &seen, logits, N);
            for (int k = 0; k < N; k++) assert_true(isfinite(logits[k]));
        }
    float broken[N] = {INFINITY, NAN, -INFINITY};
    sample_adjust(&adjust[0], &seen, broken, N); /* what the model got wrong stays wrong */
    assert_true(!isfinite(broken[0]) && !isfinite(broken[1]) && !isfinite(broken[2]));
    const float wide[N] = {-3e38f, 1e38f, 3e38f, 2.9e38f, 0, -1e38f, 3e38f, 1};
    const float temps[] = {SAMPLE_TEMP_MIN, 1, 1e38f, 3e38f};
    for (int t = 0; t < 4; t++)
        for (int f = 0; f < 4; f++) {
            struct sampling p = {.temp = temps[t], .top_p = 1, .seed = 3};
            if (f == 1) p.top_p = 1e-38f;
            if (f == 2) p.min_p = 1;
            if (f == 3) p.top_k = 2;
            int seen_ids[N] = {0};
            for (uint32_t pos = 0; pos < 400; pos++) {
                int32_t id = sample_choose(&p, 0, pos, wide, N, scratch);
                assert_in_range(id, 0, N - 1);
                seen_ids[id]++;
            }
            bool flat = t >= 2; /* so hot that all are alike, up to a few e-folds */
            for (int k = 0; k < N && (f || !flat); k++)
                if (f == 1 ? k != 2 : k != 2 && k != 6) assert_int_equal(seen_ids[k], 0);
            if (f != 1) assert_true(seen_ids[2] > 20 && seen_ids[6] > 20);
        }
}

/* ---- the chooser ---- */

enum { VOCAB = 40, POSITIONS = 70, PROMPT = 33, PAGE = 16 };

/* A sequence as each of the two callers keeps it. */
static struct {
    int32_t ids[POSITIONS]; /* prompt, then answer: the engine alone */
    int32_t pool[8 * PAGE]; /* by page, in the order of `pages`: the last stage */
    uint32_t pages[POSITIONS / PAGE + 1];
    uint32_t n_calls;
} seq;

static const int32_t *said_flat(const void *arg, uint32_t pos, uint32_t *ret_n)
{
    (void)arg;
    seq.n_calls++;
    *ret_n = (pos < PROMPT ? PROMPT : POSITIONS) - pos;
    return seq.ids + pos;
}

static const int32_t *said_paged(const void *arg, uint32_t pos, uint32_t *ret_n)
{
    (void)arg;
    *ret_n = PAGE - pos % PAGE;
    return seq.pool + seq.pages[pos / PAGE] * PAGE + pos % PAGE;
}

static void make_sequence(struct rng *r)
{
    static const uint32_t order[] = {6, 0, 3, 7, 1};
    for (uint32_t p = 0; p < POSITIONS; p++) {
        seq.ids[p] = (int32_t)rng_below(r, VOCAB / 2);
        seq.pages[p / PAGE] = order[p / PAGE];
        seq.pool[order[p / PAGE] * PAGE + p % PAGE] = seq.ids[p];
    }
}

static struct sampling any_sampling(struct rng *r)
{
    static const int32_t bias_ids[] = {3, VOCAB - 1};
    static const float bias[] = {-2.5f, 1.5f};
    struct sampling s = SAMPLING_PLAIN;
    s.seed = rng_u64(r);
    s.temp = (float)rng_below(r, 3);
    if (rng_below(r, 2)) s.top_k = 1 + (uint32_t)rng_below(r, VOCAB);
    if (rng_below(r, 2)) s.top_p = 0.7f;
    if (rng_below(r, 3) == 0) s.min_p = 0.1f;
    if (rng_below(r, 2)) s.repetition = 1.3f;
    if (rng_below(r, 2)) s.presence = 0.75f;
    if (rng_below(r, 2)) s.frequency = 0.5f;
    s.logprobs = rng_below(r, 2);
    s.top_logprobs = (uint32_t)rng_below(r, SAMPLING_TOP_MAX + 1);
    if (rng_below(r, 2)) {
        s.n_bias = 2;
        s.bias_ids = bias_ids;
        s.bias = bias;
    }
    return s;
}

/* The definition, written out: earlier tokens are counted, the row adjusted, then a token chosen.
 */
static int32_t by_parts(const struct chooser_ask *a)
{
    uint32_t count[VOCAB] = {0};
    int32_t ids[VOCAB];
    float row[VOCAB];
    struct sample_candidate scratch[VOCAB];
    struct sample_seen seen = {count, ids, 0};
    for (uint32_t p = 0; p < a->pos; p++) sample_seen_add(&seen, seq.ids[p], p >= a->boundary);
    memcpy(row, a->logits, sizeof row);
    sample_adjust(a->sampling, &seen, row, VOCAB);
    return sample_choose(a->sampling, a->sample, a->pos, row, VOCAB, scratch);
}

/* Whatever the parameters, and however a caller keeps the earlier tokens, the choice is the
 * definition's; and it leaves nothing behind that changes the next one. */
static void test_both_callers_choose_the_same(void **state)
{
    (void)state;
    struct rng r = {5};
    struct chooser *c, *alone;
    struct errmsg em = {0};
    uint32_t differ = 0;
    assert_int_equal(chooser_open(VOCAB, &c, &em), 0);
    assert_int_equal(chooser_open(VOCAB, &alone, &em), 0);
    for (int round = 0; round < 3000; round++) {
        float logits[VOCAB];
        struct chooser_choice stage, engine;
        make_sequence(&r);
        for (int i = 0; i < VOCAB; i++) logits[i] = (float)rng_below(&r, 1000) / 250.0f - 2.0f;
        struct sampling s = any_sampling(&r);
        struct chooser_ask a = {.sampling = &s,
                                .sample = (uint32_t)rng_below(&r, 3),
                                .pos = PROMPT + (uint32_t)rng_below(&r, POSITIONS - PROMPT),
                                .boundary = PROMPT,
                                .logits = logits,
                                .said = said_paged};
        assert_int_equal(chooser_choose(c, &a, &stage), 0);
        a.said = said_flat;
        assert_int_equal(chooser_choose(alone, &a, &engine), 0);
        assert_int_equal(stage.token, engine.token);
        assert_int_equal(stage.token, by_parts(&a));
        struct sampling plain = s;
        plain.repetition = 1;
        plain.presence = plain.frequency = 0;
        const struct chooser_ask b = {.sampling = &plain, .pos = a.pos, .logits = logits};
        assert_int_equal(chooser_choose(c, &b, &engine), 0); /* and needs no history */
        differ += engine.token != stage.token;
    }
    assert_true(differ > 300); /* the penalties matter, or the above would show nothing */
    chooser_close(c);
    chooser_close(alone);
}

/* Only tokens before the position are counted, and they are asked for only if penalties need them.
 */
static void test_what_was_said(void **state)
{
    (void)state;
    struct rng r = {9};
    struct chooser *c;
    struct errmsg em = {0};
    struct chooser_choice choice;
    float logits[VOCAB] = {0};
    struct sampling s = SAMPLING_PLAIN;
    struct chooser_ask a = {
        .sampling = &s, .pos = 1, .boundary = 0, .logits = logits, .said = said_flat};
    assert_int_equal(chooser_open(VOCAB, &c, &em), 0);
    make_sequence(&r);
    seq.ids[0] = 0;
    seq.ids[1] = 1;
    seq.n_calls = 0;
    assert_int_equal(chooser_choose(c, &a, &choice), 0);
    assert_int_equal(choice.token, 0);
    assert_int_equal(seq.n_calls, 0);
    s.presence = 1;
    assert_int_equal(chooser_choose(c, &a, &choice), 0);
    assert_int_equal(choice.token, 1); /* what lies at position 1 itself does not count */
    assert_int_equal(seq.n_calls, 1);
    a.pos = 2;
    assert_int_equal(chooser_choose(c, &a, &choice), 0);
    assert_int_equal(choice.token, 2);
    a.boundary = 1; /* the first is the prompt's */
    assert_int_equal(chooser_choose(c, &a, &choice), 0);
    assert_int_equal(choice.token, 0);
    chooser_close(c);
}

/* Log-probabilities are the model's own, whatever bias and penalties do to the choice; there are at
 * most as many alternatives as tokens. */
static void test_logprobs_of_a_choice(void **state)
{
    (void)state;
    enum { FEW = 3 };
    struct chooser *c;
    struct errmsg em = {0};
    struct chooser_choice choice;
    const float logits[FEW] = {0, 2, 1};
    const int32_t id = 0;
    const float bias = 50;
    struct sampling s = SAMPLING_PLAIN;
    s.logprobs = true;
    s.top_logprobs = SAMPLING_TOP_MAX;
    s.n_bias = 1;
    s.bias_ids = &id;
    s.bias = &bias;
    const struct chooser_ask a = {.sampling = &s, .logits = logits};
    double lse = log(1 + exp(2) + exp(1));
    assert_int_equal(chooser_open(FEW, &c, &em), 0);
    assert_int_equal(chooser_n_top(c, &s), FEW);
    assert_int_equal(chooser_choose(c, &a, &choice), 0);
    assert_int_equal(choice.token, 0);
    assert_true(fabs((double)choice.logprob + lse) < 1e-6);
    assert_int_equal(choice.n_top, FEW);
    assert_true(choice.top[0].id == 1 && choice.top[1].id == 2 && choice.top[2].id == 0);
    assert_true(fabs((double)choice.top[0].score - (2 - lse)) < 1e-6);
    const float broken[FEW] = {0, NAN, 1};
    const struct chooser_ask b = {.sampling = &s, .logits = broken};
    assert_int_equal(chooser_choose(c, &b, &choice), ERR_FORMAT);
    chooser_close(c);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct chooser *c = NULL;
    struct errmsg em = {0};
    for (uint32_t i = 1; i <= 4; i++) {
        fail_at = i;
        assert_int_equal(chooser_open(VOCAB, &c, &em), ERR_NOMEM);
        assert_non_null(strstr(em.text, "40 tokens"));
    }
    fail_at = 0;
    assert_int_equal(chooser_open(VOCAB, &c, &em), 0);
    chooser_close(c);
}

/* ---- among allowed tokens ---- */

#define LOTS 3000u

struct some {
    const bool *is;
    uint64_t mask[(LOTS + 63) / 64];
    uint32_t n, asked;
};

static bool some_one(void *arg, int32_t id)
{
    struct some *s = arg;
    s->asked++;
    return s->is[id];
}

static const uint64_t *some_all(void *arg)
{
    struct some *s = arg;
    memset(s->mask, 0, sizeof s->mask);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->is[i]) s->mask[i / 64] |= (uint64_t)1 << i % 64;
    return s->mask;
}

/* The choice is the one from a vocabulary that has the allowed tokens only (the others are so
 * unlikely that nothing chooses them), with all kinds of sampling; and few tokens are asked for. */
static void test_allowed(void **state)
{
    (void)state;
    static float logits[LOTS], only[LOTS];
    static struct sample_candidate scratch[LOTS];
    static bool is[LOTS];
    struct rng r = {12};
    uint32_t asked = 0, free_asked = 0, rounds = 0;
    for (uint32_t pos = 0; pos < 400; pos++) {
        const uint32_t n = LOTS;
        uint32_t share = 1 + (uint32_t)rng_below(&r, 40);
        int32_t top = 0;
        for (uint32_t i = 0; i < n; i++) {
            logits[i] = (float)rng_below(&r, 2000) / 100.0f;
            is[i] = rng_below(&r, share) == 0;
        }
        is[7] = true;
        for (uint32_t i = 0; i < n; i++)
            if (is[i] && (!is[top] || logits[i] > logits[top])) top = (int32_t)i;
        /* As seen from the largest allowed one, whose score is 0, others are far below. */
        for (uint32_t i = 0; i < n; i++) only[i] = is[i] ? logits[i] : logits[top] - 1e6f;
        struct sampling p = {.temp = (float)(pos % 4) * 0.5f, .top_p = 1, .seed = 3};
        if (pos % 5 == 1) p.top_k = 1 + pos % 30;
        if (pos % 5 == 2) p.top_p = 0.7f;
        if (pos % 5 == 3) p.min_p = 0.2f;
        struct some some = {.is = is, .n = n};
        const struct sample_allowed allowed = {some_one, some_all, &some};
        int32_t got = sample_choose_allowed(&p, 1, pos, logits, n, &allowed, scratch);
        assert_int_equal(got, sample_choose(&p, 1, pos, only, n, scratch));
        assert_true(is[got]);
        asked += some.asked;
        memset(is, 1, sizeof is);
        some.asked = 0;
        got = sample_choose_allowed(&p, 1, pos, logits, n, &allowed, scratch);
        assert_int_equal(got, sample_choose(&p, 1, pos, logits, n, scratch));
        free_asked += some.asked;
        rounds++;
    }
    assert_true(asked < 40 * rounds && free_asked < 20 * rounds);
    struct sampling p = SAMPLING_PLAIN;
    memset(is, 0, sizeof is);
    struct some none = {.is = is, .n = N};
    const struct sample_allowed allowed = {some_one, some_all, &none};
    for (p.temp = 0; p.temp < 2; p.temp++)
        assert_int_equal(sample_choose_allowed(&p, 0, 0, logits, N, &allowed, scratch),
                         SAMPLE_NONE_ALLOWED);
    logits[3] = NAN;
    assert_int_equal(sample_choose_allowed(&p, 0, 0, logits, N, &allowed, scratch),
                     SAMPLE_NOT_FINITE);
}

static int better_first(const void *x, const void *y)
{
    const struct sample_candidate *a = x, *b = y;
    return a->score != b->score ? (a->score < b->score ? 1 : -1) : a->id < b->id ? -1 : 1;
}

/* What sample.h says, step by step: all candidates are sorted, filters keep the first of them, each
 * one's noise is drawn alone, and the largest sum wins, of equal ones the lowest id. */
static int32_t choose_plainly(const struct sampling *p, uint32_t sample, uint32_t pos,
                              const float *logits, uint32_t n, const bool *is)
{
    struct sample_candidate *c = mem_alloc(n * sizeof *c);
    uint32_t m = 0, kept = 0;
    int32_t top = -1;
    for (uint32_t i = 0; i < n; i++)
        if (is[i] && (top < 0 || logits[i] > logits[top])) top = (int32_t)i;
    for (uint32_t i = 0; i < n; i++)
        if (is[i])
            c[m++] = (struct sample_candidate){(logits[i] - logits[top]) / p->temp, (int32_t)i};
    float total = 0.0f, mass = 0.0f;
    bool of_best = p->top_k && p->top_k < m; /* then the mass that top-p is of is theirs */
    for (uint32_t i = 0; i < m && !of_best; i++) total += fm_exp(c[i].score);
    qsort(c, m, sizeof *c, better_first);
    if (of_best) m = p->top_k;
    for (uint32_t i = 0; i < m && of_best; i++) total += fm_exp(c[i].score);
    while (kept < m && (p->min_p <= 0 || fm_exp(c[kept].score) >= p->min_p)) {
        mass += fm_exp(c[kept++].score);
        if (p->top_p < 1 && mass >= p->top_p * total) break;
    }
    struct sample_candidate best = {0};
    for (uint32_t i = 0; i < kept; i++) {
        struct philox r = philox(p->seed, pos, (uint32_t)c[i].id / 4, sample, 0);
        float u = ((float)(r.v[c[i].id % 4] >> 9) + 0.5f) * 0x1p-23f;
        struct sample_candidate x = {c[i].score - fm_log(-fm_log(u)), c[i].id};
        if (i == 0 || better_first(&x, &best) < 0) best = x;
    }
    mem_free(c);
    return p->temp < SAMPLE_TEMP_MIN ? top : best.id;
}

/* No shortcut changes a choice: rows of any length, sharp and flat, with equal logits, both zeros
 * and a largest one anywhere, all tokens allowed or some, with any filters. */
static void test_no_shortcut_shows(void **state)
{
    (void)state;
    static float logits[LOTS];
    static struct sample_candidate scratch[LOTS];
    static bool is[LOTS], all[LOTS];
    const float top_ps[] = {1, 1, 1, 0.95f, 0.5f, 0.999f, 1e-6f},
                min_ps[] = {0, 0, 0.05f, 0.9f, 1e-9f};
    const uint32_t top_ks[] = {0, 0, 40, 1, 700};
    memset(all, 1, sizeof all);
    struct rng r = {77};
    for (uint32_t pos = 0; pos < 4000; pos++) {
        uint32_t n = 1 + (uint32_t)rng_below(&r, pos % 2 ? 40 : LOTS), steps = pos % 7 ? 5000 : 3;
        float width = pos % 13 ? 40.0f : 4000.0f;
        for (uint32_t i = 0; i < n; i++) {
            int32_t x = (int32_t)rng_below(&r, steps) - (int32_t)steps / 2;
            logits[i] = (float)x * width / (float)steps;
            if (logits[i] == 0.0f && rng_below(&r, 2)) logits[i] = -0.0f;
            is[i] = rng_below(&r, 3) == 0;
        }
        if (pos % 11 == 0) /* zeros are the largest */
            for (uint32_t i = 0; i < n; i++) logits[i] = logits[i] > 0.0f ? -0.0f : logits[i];
        struct sampling p = {.temp = (float)(pos % 5) * 0.6f,
                             .top_p = top_ps[rng_below(&r, 7)],
                             .min_p = min_ps[rng_below(&r, 5)],
                             .top_k = top_ks[rng_below(&r, 5)],
                             .seed = pos / 100};
        uint32_t sample = pos % 3;
        assert_int_equal(sample_choose(&p, sample, pos, logits, n, scratch),
                         choose_plainly(&p, sample, pos, logits, n, all));
        struct some some = {.is = is, .n = n};
        const struct sample_allowed allowed = {some_one, some_all, &some};
        is[rng_below(&r, n)] = true;
        assert_int_equal(sample_choose_allowed(&p, sample, pos, logits, n, &allowed, scratch),
                         choose_plainly(&p, sample, pos, logits, n, is));
    }
}

/* A mass of many small parts that rounding loses one by one: top-p then wants more than it seems.
 */
static void test_mass_that_rounding_loses(void **state)
{
    (void)state;
    const uint32_t n = 150000;
    float *logits = mem_alloc(n * sizeof *logits);
    struct sample_candidate *scratch = mem_alloc(n * sizeof *scratch);
    bool *all = mem_alloc(n * sizeof *all);
    memset(all, 1, n * sizeof *all);
    for (uint32_t i = 0; i < n; i++) logits[i] = i < 100000 ? -16.7f : -30.0f;
    logits[n - 1] = 0.0f; /* the sum in the order of ids has all parts */
    for (uint32_t pos = 0; pos < 20; pos++) {
        struct sampling p = {.temp = 1, .top_p = 0.9965f, .seed = 8};
        assert_int_equal(sample_choose(&p, 0, pos, logits, n, scratch),
                         choose_plainly(&p, 0, pos, logits, n, all));
    }
    mem_free(logits);
    mem_free(scratch);
    mem_free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mass_that_rounding_loses),
        cmocka_unit_test(test_adjustments),
        cmocka_unit_test(test_choice_among_equals),
        cmocka_unit_test(test_extreme_values),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_choice_is_a_function),
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_both_callers_choose_the_same),
        cmocka_unit_test(test_what_was_said),
        cmocka_unit_test(test_logprobs_of_a_choice),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_shortcut_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
