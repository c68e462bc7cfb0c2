#include "common/base/rng.h"
#include "common/text/detok.h"
#include "common/text/sample.h"
#include "common/text/vocab.h"

#include "common/base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void expect(struct detok *d, const char *text)
{
    assert_string_equal(d->text.data ? d->text.data : "", text);
    buf_drop(&d->text, d->text.len);
}

static void test_characters_over_tokens(void **state)
{
    (void)state;
    struct detok d;
    detok_init(&d, NULL, 0);
    detok_push(&d, "ok \xe6\xad", 5);
    expect(&d, "ok ");
    detok_push(&d, "\xaa!", 2);
    expect(&d, "\xe6\xad\xaa!");
    for (int i = 0; i < 3; i++) {
        detok_push(&d, &"\xf0\x9f\xa6\x99"[i], 1);
        expect(&d, "");
    }
    detok_push(&d, "\x99", 1);
    expect(&d, "\xf0\x9f\xa6\x99");
    detok_push(&d, " \x85", 2); /* a lone continuation byte */
    expect(&d, " \xef\xbf\xbd");
    detok_push(&d, "a\0b", 3);
    expect(&d, "a\xef\xbf\xbd"
               "b");
    detok_push(&d, "\xf0\x9f", 2); /* cut by the limit */
    expect(&d, "");
    detok_finish(&d);
    expect(&d, "\xef\xbf\xbd");
    detok_close(&d);
}

/* Whatever bytes come, in whatever pieces, what is shown is UTF-8; and pieces do not matter. */
static void test_any_bytes(void **state)
{
    (void)state;
    struct rng rng = {3};
    for (int round = 0; round < 3000; round++) {
        char bytes[24];
        size_t n = 1 + rng_below(&rng, sizeof bytes);
        static const uint8_t pool[] = {'a',  0x80, 0xbf, 0xc2, 0xe0, 0xa0, 0xed,
                                       0xf0, 0x90, 0xf4, 0xff, 0xe6, 0xad, 0xaa};
        for (size_t i = 0; i < n; i++) bytes[i] = (char)pool[rng_below(&rng, sizeof pool)];
        struct detok one, many;
        detok_init(&one, NULL, 0);
        detok_init(&many, NULL, 0);
        detok_push(&one, bytes, n);
        for (size_t i = 0; i < n;) {
            size_t k = 1 + rng_below(&rng, n - i);
            detok_push(&many, bytes + i, k);
            i += k;
        }
        detok_finish(&one);
        detok_finish(&many);
        assert_string_equal(one.text.data, many.text.data);
        struct detok again; /* what was shown is well-formed: it passes unchanged */
        detok_init(&again, NULL, 0);
        detok_push(&again, one.text.data, one.text.len);
        assert_int_equal(again.pending.len, 0);
        assert_string_equal(again.text.data, one.text.data);
        detok_close(&one);
        detok_close(&many);
        detok_close(&again);
    }
}

static void test_stop_strings(void **state)
{
    (void)state;
    static const char *const tokens[] = {"A", " B", " C", " O", " P", " Q", " R", " S"};
    static const struct {
        const char *stops[2];
        size_t n;
        const char *want;
        bool stopped;
    } cases[] = {
        {{"O P Q"}, 1, "A B C ", true},
        {{" O P"}, 1, "A B C", true},
        {{"P Q R S T"}, 1, "A B C O P Q R S", false},
        {{"D"}, 1, "A B C O P Q R S", false},
        {{""}, 1, "A B C O P Q R S", false},
        {{"zz", "O P Q"}, 2, "A B C ", true},
        {{"C O", "B C"}, 2, "A ", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct detok d;
        detok_init(&d, cases[i].stops, cases[i].n);
        for (size_t t = 0; t < 8 && !d.stopped; t++) {
            detok_push(&d, tokens[t], strlen(tokens[t]));
            if (i == 0) assert_null(strstr(d.text.data ? d.text.data : "", " O"));
        }
        detok_finish(&d);
        assert_string_equal(d.text.data, cases[i].want);
        assert_int_equal(d.stopped, cases[i].stopped);
        detok_close(&d);
    }
}

/* A vocabulary of letters with two merges that compete. */
static void test_merge_order(void **state)
{
    (void)state;
    struct vocab_string tokens[] = {{"a", 1}, {"b", 1}, {"c", 1}, {"ab", 2}, {"bc", 2}, {"<e>", 3}};
    int32_t types[] = {1, 1, 1, 1, 1, TOKEN_CONTROL};
    struct vocab_string merges[] = {{"b c", 3}, {"a b", 3}};
    struct vocab_spec s = {.model = {"gpt2", 4},
                           .pre = {"gpt-2", 5},
                           .tokens = tokens,
                           .types = types,
                           .n_tokens = 6,
                           .merges = merges,
                           .n_merges = 2,
                           .bos = -1,
                           .eos = 5,
                           .eot = -1,
                           .eom = -1,
                           .unknown = -1};
    struct vocab *v;
    struct errmsg em = {0};
    assert_int_equal(vocab_open(&s, &v, &em), 0);
    struct tokens t = {0};
    assert_int_equal(vocab_encode(v, "abc", 3, false, &t, &em), 0);
    assert_int_equal(t.n, 2); /* "b c" ranks before "a b" */
    assert_int_equal(t.ids[0], 0);
    assert_int_equal(t.ids[1], 4);
    t.n = 0;
    assert_int_equal(vocab_encode(v, "a<e>z", 5, true, &t, &em), 0);
    assert_int_equal(t.n, 2); /* z is not in the vocabulary, and there is no unknown token */
    assert_int_equal(t.ids[1], 5);
    t.n = 0;
    assert_int_equal(vocab_encode(v, "a<e>", 4, false, &t, &em), 0);
    assert_int_equal(t.n, 1); /* as text: '<', 'e' and '>' are not there */
    assert_true(vocab_is_eog(v, 5) && !vocab_is_eog(v, 0) && !vocab_is_eog(v, -1));
    mem_free(t.ids);
    vocab_close(v);
    s.pre = (struct vocab_string){"nobody", 6};
    assert_int_equal(vocab_open(&s, &v, &em), ERR_UNSUPPORTED);
    assert_non_null(strstr(em.text, "'nobody' is unknown"));
    assert_non_null(strstr(em.text, "gpt-2, smollm, llama-bpe, qwen2"));
    assert_non_null(strstr(em.text, "--pre"));
    s.pre = (struct vocab_string){"gpt-2", 5};
    s.unknown = 6;
    assert_int_equal(vocab_open(&s, &v, &em), ERR_FORMAT);
}

/* Characters that look like a control token's name stay text, whatever merges there are. */
static void test_control_is_not_merged(void **state)
{
    (void)state;
    struct vocab_string tokens[] = {{"<", 1}, {"|", 1}, {">", 1}, {"|>", 2}, {"<|>", 3}};
    int32_t types[] = {1, 1, 1, 1, TOKEN_CONTROL};
    float scores[] = {-3, -3, -3, -1, 0};
    struct vocab_string merges[] = {{"| >", 3}, {"< |>", 4}};
    static const char *const models[] = {"gpt2", "llama"};
    for (int i = 0; i < 2; i++) {
        struct vocab_spec s = {.model = {models[i], strlen(models[i])},
                               .pre = {"gpt-2", 5},
                               .tokens = tokens,
                               .types = types,
                               .n_tokens = 5,
                               .scores = scores,
                               .merges = merges,
                               .n_merges = 2,
                               .bos = -1,
                               .eos = 4,
                               .eot = -1,
                               .eom = -1,
                               .unknown = -1};
        struct vocab *v;
        struct errmsg em;
        struct tokens t = {0};
        assert_int_equal(vocab_open(&s, &v, &em), 0);
        assert_int_equal(vocab_encode(v, "<|>", 3, false, &t, &em), 0);
        assert_int_equal(t.n, 2);
        assert_int_equal(t.ids[0], 0);
        assert_int_equal(t.ids[1], 3);
        t.n = 0;
        assert_int_equal(vocab_encode(v, "<|>", 3, true, &t, &em), 0);
        assert_int_equal(t.n, 1);
        assert_int_equal(t.ids[0], 4);
        mem_free(t.ids);
        vocab_close(v);
    }
}

/* ---- sampling ---- */

#define N 8

static void frequencies(const struct sample_params *p, const float *logits, double *ret)
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
        struct sample_params p = {.temp = temp, .top_p = 1, .seed = 99};
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
    struct sample_params p = {.temp = 1, .top_p = 1, .top_k = 2, .seed = 5};
    frequencies(&p, logits, got);
    assert_true(fabs(got[1] - 0.5) < 0.01 && fabs(got[5] - 0.5) < 0.01);
    p = (struct sample_params){.temp = 1, .top_p = 1, .top_k = 1, .seed = 5};
    frequencies(&p, logits, got);
    assert_true(got[1] > 0.9999); /* the lower id of the tie */
    p = (struct sample_params){.temp = 1, .top_p = 0.3f, .seed = 5};
    frequencies(&p, logits, got); /* the best alone holds more than 0.3 of the mass */
    assert_true(got[1] > 0.9999);
    p = (struct sample_params){.temp = 1, .top_p = 0.8f, .seed = 5};
    frequencies(&p, logits, got); /* 1 and 5 hold 0.78: the third is needed too */
    assert_true(got[1] > 0 && got[5] > 0 && got[2] > 0 && got[0] + got[3] + got[4] == 0);
    p = (struct sample_params){.temp = 1, .top_p = 0.5f, .top_k = 3, .seed = 5};
    frequencies(&p, logits, got); /* of the three best, 1 and 5 hold 0.84 */
    assert_true(got[1] > 0 && got[5] > 0 && got[2] == 0);
    p = (struct sample_params){.temp = 1, .top_p = 1, .min_p = 0.3f, .seed = 5};
    frequencies(&p, logits, got); /* e^-1 = 0.37 stays, e^-2 goes */
    assert_true(got[2] > 0 && got[0] == 0);
}

static void test_choice_is_a_function(void **state)
{
    (void)state;
    float logits[N] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct sample_candidate scratch[N];
    struct sample_params greedy = {.temp = 0, .top_p = 1}, tiny = {.temp = 1e-30f, .top_p = 1};
    assert_int_equal(sample_choose(&greedy, 0, 9, logits, N, scratch), 0); /* ties: lowest id */
    assert_int_equal(sample_choose(&tiny, 0, 9, logits, N, scratch), 0);
    struct sample_params p = {.temp = 1, .top_p = 1, .seed = 1};
    int differ_pos = 0, differ_sample = 0, differ_seed = 0;
    for (uint32_t pos = 0; pos < 200; pos++) {
        struct sample_params q = p;
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
    const struct sample_bias bias[] = {{0, 1.5f}, {3, -100.0f}, {N, 9.0f}, {-1, 9.0f}};
    struct sample_params p = {
        .repetition = 2, .presence = 0.5f, .frequency = 0.25f, .bias = bias, .n_bias = 4};
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
    p = (struct sample_params){.repetition = 1};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adjustments),
        cmocka_unit_test(test_characters_over_tokens),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_control_is_not_merged),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_choice_is_a_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
