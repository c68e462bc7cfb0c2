/* Drafts from texts: searches against a plain one, what is drafted, whose texts are used, and how
 * memory is bounded. */
#include "coordinator/draft/ngram.h"

#include "common/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Set for one call of mem_try: none of it is there. */
static bool no_memory;

void *__real_mem_try(size_t bytes);
void *__wrap_mem_try(size_t bytes);

void *__wrap_mem_try(size_t bytes)
{
    return no_memory ? NULL : __real_mem_try(bytes);
}

/* ---- one text ---- */

static void assert_found(const struct suffix *s, const int32_t *context, uint32_t n, uint32_t limit)
{
    uint32_t at[SUFFIX_FOUND_MAX], len, best = 0, count = 0, want[SUFFIX_FOUND_MAX];
    uint32_t shown = n < SUFFIX_CONTEXT_MAX ? n : SUFFIX_CONTEXT_MAX;
    for (uint32_t p = s->n < limit ? s->n : limit; p-- > 1;) {
        uint32_t l = 0;
        while (l < shown && l < p && s->tokens[p - 1 - l] == context[n - 1 - l]) l++;
        if (l < SUFFIX_LEAST || l < best) continue;
        if (l > best) count = 0;
        best = l;
        if (count < SUFFIX_FOUND_MAX) want[count++] = p;
    }
    uint32_t found = suffix_find(s, context, n, limit, at, &len);
    assert_int_equal(found, count);
    assert_int_equal(len, best);
    for (uint32_t i = 0; i < found; i++) assert_int_equal(at[i], want[i]);
}

static void test_search_against_a_plain_one(void **state)
{
    (void)state;
    struct rng rng = {1};
    for (uint32_t round = 0; round < 400; round++) {
        struct suffix s = {0};
        int32_t context[100];
        uint64_t alphabet = 1 + rng_below(&rng, 6);
        for (uint32_t n = 0; n < 200;) {
            int32_t part[40];
            uint32_t more = (uint32_t)rng_below(&rng, 41);
            for (uint32_t i = 0; i < more; i++) part[i] = (int32_t)rng_below(&rng, alphabet);
            assert_int_equal(suffix_add(&s, part, more), 0);
            n += more + 1;
            if (rng_below(&rng, 8) == 0) suffix_drop(&s, (uint32_t)rng_below(&rng, 100));
            assert_true(s.n <= s.cap || s.n == 0);
            /* A text's own end, with guesses behind it or without, and any other context. */
            uint32_t own = s.n < 60 ? s.n : 60, len = own + (uint32_t)rng_below(&rng, 30);
            if (rng_below(&rng, 4) == 0) own = 0;
            if (own) memcpy(context, s.tokens + (s.n - own), own * sizeof *context);
            for (uint32_t i = own; i < len; i++) context[i] = (int32_t)rng_below(&rng, alphabet);
            assert_found(&s, context, len, UINT32_MAX);
            assert_found(&s, context, len, (uint32_t)rng_below(&rng, 200));
        }
        suffix_close(&s);
    }
}

/* More occurrences than a search looks at: the most recent ones, and in bounded time. */
static void test_search_is_bounded(void **state)
{
    (void)state;
    struct suffix s = {0};
    static int32_t same[5000];
    uint32_t at[SUFFIX_FOUND_MAX], len;
    assert_int_equal(suffix_find(&s, same, 10, UINT32_MAX, at, &len), 0);
    assert_int_equal(suffix_add(&s, same, 5000), 0);
    assert_int_equal(suffix_find(&s, same, 5000, UINT32_MAX, at, &len), SUFFIX_FOUND_MAX);
    assert_int_equal(len, SUFFIX_CONTEXT_MAX);
    for (uint32_t i = 0; i < SUFFIX_FOUND_MAX; i++) assert_int_equal(at[i], 4999 - i);
    assert_int_equal(suffix_find(&s, same, 1, UINT32_MAX, at, &len), 0);
    assert_int_equal(len, 0);
    assert_int_equal(suffix_bytes(5000), 8192 * 20);
    suffix_close(&s);
}

static void test_text_without_memory(void **state)
{
    (void)state;
    struct suffix s = {0};
    static const int32_t text[100] = {1, 2, 3, 4, 5, 1, 2, 3};
    assert_int_equal(suffix_add(&s, text, 8), 0);
    no_memory = true;
    assert_int_equal(suffix_add(&s, text, 100), ERR_NOMEM);
    no_memory = false;
    assert_int_equal(s.n, 8);
    assert_found(&s, text, 8, UINT32_MAX);
    suffix_close(&s);
}

/* ---- drafts ---- */

#define BYTES ((size_t)1 << 20)

/* 0, 1, 2, ... */
static void fill_text(int32_t *text, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) text[i] = (int32_t)i;
}

static uint32_t draft(struct ngram *g, const struct ngram_text *t, uint32_t want, int32_t *ret)
{
    return ngram_draft(g, t, NULL, 0, want, ret);
}

/* An answer that repeats the prompt but for one token is drafted from the prompt. */
static void test_rewriting(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(BYTES);
    struct ngram_text t;
    struct rng rng = {2};
    int32_t text[200], got[32];
    uint32_t asked = 0, right = 0;
    for (uint32_t i = 0; i < 200; i++) text[i] = (int32_t)rng_below(&rng, 30000);
    ngram_begin(g, &t, 7);
    ngram_add(g, &t, text, 200);
    text[100] = 30001;
    ngram_add(g, &t, text, 2);
    for (uint32_t at = 2; at < 200;) {
        uint32_t n = draft(g, &t, 8, got), ok = 0;
        while (ok < n && at + ok < 200 && got[ok] == text[at + ok]) ok++;
        uint32_t next = at + ok + 1 < 200 ? ok + 1 : 200 - at;
        asked++;
        right += ok;
        ngram_add(g, &t, text + at, next);
        at += next;
    }
    /* Six tokens behind the first two, then eight a time; one token alone at the change. */
    assert_true(asked <= 25 && right >= 174);
    ngram_end(g, &t, NULL, 0);
    assert_int_equal(ngram_stats(g).bytes, 0);
    ngram_close(g);
}

static void test_guesses_are_followed_and_not_kept(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(BYTES);
    struct ngram_text t;
    static const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 90, 91};
    static const int32_t tail[] = {2, 3, 4}, other[] = {5, 6};
    int32_t got[32];
    ngram_begin(g, &t, 0);
    ngram_add(g, &t, text, 12);
    assert_int_equal(draft(g, &t, 32, got), 0);
    assert_int_equal(ngram_draft(g, &t, tail, 3, 4, got), 4);
    assert_memory_equal(got, text + 4, 4 * sizeof *got);
    assert_int_equal(ngram_draft(g, &t, other, 2, 3, got), 3);
    assert_memory_equal(got, text + 6, 3 * sizeof *got);
    assert_int_equal(draft(g, &t, 32, got), 0);
    assert_int_equal(t.suffix.n, 12);
    ngram_end(g, &t, NULL, 0);
    /* Of a tail that is longer than a context, the end. */
    int32_t longer[200];
    for (int32_t i = 0; i < 200; i++) longer[i] = i;
    ngram_begin(g, &t, 0);
    ngram_add(g, &t, longer, 200);
    assert_int_equal(ngram_draft(g, &t, longer, 100, 4, got), 4);
    assert_memory_equal(got, longer + 100, 4 * sizeof *got);
    ngram_end(g, &t, NULL, 0);
    ngram_close(g);
}

/* At most NGRAM_FACTOR tokens for each of the match. */
static void test_length_by_the_match(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(BYTES);
    struct ngram_text t;
    int32_t text[64], got[32];
    for (int32_t i = 0; i < 64; i++) text[i] = i;
    for (uint32_t len = 1; len <= 20; len++) {
        ngram_begin(g, &t, 0);
        ngram_add(g, &t, text, 64);
        ngram_add(g, &t, text + 10, len);
        uint32_t want = len < SUFFIX_LEAST ? 0 : NGRAM_FACTOR * len < 32 ? NGRAM_FACTOR * len : 32;
        assert_int_equal(draft(g, &t, 32, got), want);
        if (want) assert_memory_equal(got, text + 10 + len, want * sizeof *got);
        ngram_end(g, &t, NULL, 0);
    }
    ngram_close(g);
}

/* A copy with a few tokens changed, more or fewer goes on behind them. */
static void test_edited_copies(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(BYTES);
    struct ngram_text t;
    static const struct {
        int32_t edit[4];        /* behind the copy of the first ten tokens */
        uint32_t n, from, most; /* the draft: from this token of the text on, so many at most */
    } cases[] = {
        {{500}, 1, 11, 3},                /* one token in place of another */
        {{500, 501, 502}, 3, 13, 3},      /* three of three */
        {{500, 10}, 2, 11, 24},           /* one more, then the copy goes on */
        {{12}, 1, 13, 24},                /* two fewer */
        {{500, 501, 502, 12}, 4, 13, 24}, /* three in place of two */
        {{500, 501, 502, 503}, 4, 14, 3},
    };
    int32_t text[60], got[32];
    fill_text(text, 60);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (uint32_t in_tail = 0; in_tail <= cases[i].n; in_tail++) {
            uint32_t own = cases[i].n - in_tail;
            ngram_begin(g, &t, 0);
            ngram_add(g, &t, text, 60);
            ngram_add(g, &t, text, 10);
            ngram_add(g, &t, cases[i].edit, own);
            uint32_t n = ngram_draft(g, &t, cases[i].edit + own, in_tail, 32, got);
            assert_int_equal(n, cases[i].most);
            assert_memory_equal(got, text + cases[i].from, n * sizeof *got);
            ngram_end(g, &t, NULL, 0);
        }
    }
    /* Nothing was copied: a short match and an edit are chance. */
    static const int32_t edit[] = {500};
    ngram_begin(g, &t, 0);
    ngram_add(g, &t, text, 60);
    ngram_add(g, &t, text, 5);
    ngram_add(g, &t, edit, 1);
    assert_int_equal(draft(g, &t, 32, got), 0);
    ngram_end(g, &t, NULL, 0);
    ngram_close(g);
}

/* A text that repeats itself goes on so, also beyond what it has, and through guesses. */
static void test_repetition_goes_on(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(BYTES);
    struct ngram_text t;
    static const int32_t text[] = {9, 1, 2, 3, 1, 2, 3, 1, 2, 3}, tail[] = {1, 2};
    int32_t got[8];
    ngram_begin(g, &t, 0);
    ngram_add(g, &t, text, 10);
    assert_int_equal(draft(g, &t, 8, got), 8);
    for (int32_t i = 0; i < 8; i++) assert_int_equal(got[i], 1 + i % 3);
    assert_int_equal(ngram_draft(g, &t, tail, 2, 8, got), 8);
    for (int32_t i = 0; i < 8; i++) assert_int_equal(got[i], 1 + (i + 2) % 3);
    ngram_end(g, &t, NULL, 0);
    ngram_close(g);
}

static void test_votes(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(BYTES);
    struct ngram_text t;
    /* Behind 1 2: 5 6 twice, 5 8 once, 7 9 most recently. */
    static const int32_t text[] = {1, 2, 5, 6,  30, 1, 2, 5, 6,  31, 1,
                                   2, 5, 8, 32, 1,  2, 7, 9, 33, 1,  2};
    static const int32_t even[] = {1, 2, 5, 40, 1, 2, 6, 41, 1, 2};
    static const int32_t longer[] = {3, 1, 2, 5, 40, 4, 1, 2, 6, 41, 4, 1, 2, 6, 42, 3, 1, 2};
    int32_t got[4];
    ngram_begin(g, &t, 0);
    ngram_add(g, &t, text, sizeof text / sizeof *text);
    assert_int_equal(draft(g, &t, 2, got), 2);
    assert_true(got[0] == 5 && got[1] == 6);
    ngram_end(g, &t, NULL, 0);
    ngram_begin(g, &t, 0); /* among equals, the most recent */
    ngram_add(g, &t, even, sizeof even / sizeof *even);
    assert_int_equal(draft(g, &t, 2, got), 2);
    assert_true(got[0] == 6 && got[1] == 41);
    ngram_end(g, &t, NULL, 0);
    ngram_begin(g, &t, 0); /* the longest match, however few have it */
    ngram_add(g, &t, longer, sizeof longer / sizeof *longer);
    assert_int_equal(draft(g, &t, 2, got), 2);
    assert_true(got[0] == 5 && got[1] == 40);
    ngram_end(g, &t, NULL, 0);
    ngram_close(g);
}

/* ---- tenants ---- */

/* A text of n tokens that is nobody else's. */
static void fill(int32_t *text, uint32_t n, int32_t base)
{
    for (uint32_t i = 0; i < n; i++) text[i] = base + (int32_t)i;
}

static void keep_output(struct ngram *g, uint64_t tenant, const int32_t *output, uint32_t n)
{
    struct ngram_text t;
    ngram_begin(g, &t, tenant);
    ngram_add(g, &t, output, n);
    ngram_end(g, &t, output, n);
}

/* What a new request of the tenant, whose prompt is the first three tokens, has as a draft. */
static uint32_t draft_for(struct ngram *g, uint64_t tenant, const int32_t *output, int32_t *got)
{
    struct ngram_text t;
    ngram_begin(g, &t, tenant);
    ngram_add(g, &t, output, 3);
    uint32_t n = draft(g, &t, 4, got);
    ngram_end(g, &t, NULL, 0);
    return n;
}

static void test_never_across_tenants(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(BYTES);
    int32_t a[40], b[40], got[4];
    fill(a, 40, 100);
    fill(b, 40, 100);
    for (uint32_t i = 3; i < 40; i++) b[i] += 1000; /* begins alike, goes on otherwise */
    keep_output(g, 1, a, 40);
    assert_int_equal(draft_for(g, 2, a, got), 0);
    assert_int_equal(draft_for(g, 0, a, got), 0);
    assert_int_equal(draft_for(g, 1, a, got), 4);
    assert_memory_equal(got, a + 3, sizeof got);
    keep_output(g, 2, b, 40);
    assert_int_equal(draft_for(g, 1, a, got), 4);
    assert_memory_equal(got, a + 3, sizeof got);
    assert_int_equal(draft_for(g, 2, b, got), 4);
    assert_memory_equal(got, b + 3, sizeof got);
    /* While both are running, too. */
    struct ngram_text one, other;
    ngram_begin(g, &one, 3);
    ngram_begin(g, &other, 4);
    ngram_add(g, &one, a, 40);
    ngram_add(g, &other, a, 3);
    assert_int_equal(draft(g, &other, 4, got), 0);
    ngram_end(g, &one, NULL, 0);
    ngram_end(g, &other, NULL, 0);
    assert_int_equal(ngram_stats(g).foreign, 0);
    ngram_close(g);
}

/* Owners come and go in any order, and each finds its own outputs. */
static void test_many_tenants(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(40 * suffix_bytes(64));
    struct rng rng = {3};
    int32_t text[64], got[4];
    uint32_t hits = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        uint64_t tenant = rng_below(&rng, 30);
        fill(text, 64, 1000 * (int32_t)tenant);
        if (rng_below(&rng, 2)) {
            keep_output(g, tenant, text, 64);
        } else if (draft_for(g, tenant, text, got)) {
            hits++;
            assert_memory_equal(got, text + 3, sizeof got);
        }
        struct ngram_stats s = ngram_stats(g);
        assert_true(s.bytes <= s.bytes_max && s.foreign == 0);
    }
    assert_true(hits > 500 && ngram_stats(g).evicted > 500);
    ngram_close(g);
}

/* ---- memory ---- */

static void test_oldest_outputs_make_room(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(4 * suffix_bytes(128) + suffix_bytes(3));
    int32_t text[6][128], got[4];
    for (int32_t i = 0; i < 6; i++) fill(text[i], 128, 1000 * i);
    keep_output(g, 2, text[5], 128);
    for (uint32_t i = 0; i < 4; i++) keep_output(g, 1, text[i], 128);
    /* The tenant that holds most makes room, not the other, whose output is the oldest. */
    assert_int_equal(ngram_stats(g).kept, 4);
    assert_int_equal(draft_for(g, 2, text[5], got), 4);
    assert_int_equal(draft_for(g, 1, text[0], got), 0);
    for (uint32_t i = 1; i < 4; i++) assert_int_equal(draft_for(g, 1, text[i], got), 4);
    assert_int_equal(ngram_stats(g).evicted, 1);
    ngram_close(g);
}

/* Tenants that never come back, as requests that share nothing are, make room for one that does. */
static void test_tenants_that_are_gone_make_room(void **state)
{
    (void)state;
    struct ngram *g = ngram_open((size_t)1 << 30);
    int32_t text[NGRAM_KEPT_LEAST], mine[3][NGRAM_KEPT_LEAST], got[4];
    fill(text, NGRAM_KEPT_LEAST, 5);
    for (uint32_t i = 0; i < NGRAM_KEPT_MAX; i++) keep_output(g, 10 + i, text, NGRAM_KEPT_LEAST);
    for (int32_t i = 0; i < 3; i++) {
        fill(mine[i], NGRAM_KEPT_LEAST, 1000 * (i + 1));
        keep_output(g, 1, mine[i], NGRAM_KEPT_LEAST);
    }
    for (int32_t i = 0; i < 3; i++) assert_int_equal(draft_for(g, 1, mine[i], got), 4);
    assert_int_equal(ngram_stats(g).evicted, 3);
    ngram_close(g);
}

static void test_outputs_are_counted(void **state)
{
    (void)state;
    struct ngram *g = ngram_open((size_t)1 << 30);
    int32_t text[NGRAM_KEPT_LEAST], got[4];
    fill(text, NGRAM_KEPT_LEAST, 5);
    keep_output(g, 1, text, NGRAM_KEPT_LEAST - 1);
    assert_int_equal(ngram_stats(g).kept, 0);
    for (uint32_t i = 0; i < NGRAM_KEPT_MAX + 10; i++) keep_output(g, i, text, NGRAM_KEPT_LEAST);
    struct ngram_stats s = ngram_stats(g);
    assert_int_equal(s.kept, NGRAM_KEPT_MAX);
    assert_int_equal(s.evicted, 10);
    assert_int_equal(draft_for(g, NGRAM_KEPT_MAX + 9, text, got), 4);
    ngram_close(g);
}

/* A text that is longer than its share keeps its last part; one without room has no drafts. */
static void test_long_texts(void **state)
{
    (void)state;
    struct ngram *g = ngram_open(BYTES); /* an eighth of it: 4,096 tokens */
    static int32_t text[20000];
    int32_t got[32];
    struct ngram_text t[14];
    fill(text, 20000, 0);
    ngram_begin(g, &t[0], 1);
    ngram_add(g, &t[0], text, 20000);
    assert_int_equal(t[0].suffix.n, 2048);
    assert_true(suffix_bytes(t[0].suffix.cap) <= BYTES / 8);
    for (uint32_t i = 0; i < 3000; i++) {
        ngram_add(g, &t[0], text + 19000 + i % 500, 1);
        assert_true(t[0].suffix.n <= 4096);
    }
    assert_int_equal(draft(g, &t[0], 32, got), 32);
    assert_int_equal(got[0], 19000);
    assert_int_equal(ngram_stats(g).bytes, suffix_bytes(4096));
    for (uint32_t i = 1; i < 14; i++) {
        ngram_begin(g, &t[i], 1);
        ngram_add(g, &t[i], text, 3000);
        assert_int_equal(t[i].full, i > 11);
        assert_int_equal(ngram_draft(g, &t[i], text + 100, 4, 4, got), i > 11 ? 0 : 4);
        ngram_add(g, &t[i], text, 10);
    }
    assert_int_equal(ngram_stats(g).unindexed, 2);
    for (uint32_t i = 0; i < 14; i++) ngram_end(g, &t[i], NULL, 0);
    assert_int_equal(ngram_stats(g).bytes, 0);
    /* The system has none: the same. */
    ngram_begin(g, &t[0], 1);
    no_memory = true;
    ngram_add(g, &t[0], text, 100);
    ngram_end(g, &t[0], text, 100);
    no_memory = false;
    assert_true(t[0].full && ngram_stats(g).bytes == 0 && ngram_stats(g).kept == 0);
    ngram_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_against_a_plain_one),
        cmocka_unit_test(test_search_is_bounded),
        cmocka_unit_test(test_text_without_memory),
        cmocka_unit_test(test_rewriting),
        cmocka_unit_test(test_guesses_are_followed_and_not_kept),
        cmocka_unit_test(test_length_by_the_match),
        cmocka_unit_test(test_edited_copies),
        cmocka_unit_test(test_repetition_goes_on),
        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_never_across_tenants),
        cmocka_unit_test(test_many_tenants),
        cmocka_unit_test(test_oldest_outputs_make_room),
        cmocka_unit_test(test_tenants_that_are_gone_make_room),
        cmocka_unit_test(test_outputs_are_counted),
        cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
