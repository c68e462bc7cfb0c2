/* Drafts from a small model: what it chooses is what the model says, whatever was asked before;
 * pages are shared, taken back and taken away; other vocabularies are refused. */
#include "coordinator/draft/small.h"

#include "common/text/chooser.h"
#include "common/text/constraint.h"
#include "common/text/format.h"
#include "coordinator/model_file.h"
#include "tests/lib/tiny_engine.h"
#include "tests/lib/tiny_vocab.h"

#define END 7
#define ROOM 1200u
#define BYTES ((uint64_t)64 << 20)

static const int32_t ends[] = {END};

/* A model file of its own name; the test unlinks it. */
static void write_model(char *path, uint32_t vocab, uint32_t context, int32_t end, int32_t other)
{
    struct buf keys = {0};
    tiny_vocab_keys(&keys, vocab, "t", end, other);
    const struct tiny_llama t = {.layers = TINY_LAYERS,
                                 .vocab = vocab,
                                 .context = context,
                                 .type = QTYPE_F32,
                                 .seed = 5,
                                 .keys = &keys,
                                 .n_keys = TINY_VOCAB_KEYS};
    strcpy(path, "/tmp/flotilla-small-XXXXXX");
    assert_true(tiny_llama_write(&t, path));
    buf_close(&keys);
}

struct fixture {
    char path[64];
    struct model_file file;
    struct engine *engine; /* the reference */
    struct chooser *chooser;
    struct constraint *constraint; /* or NULL */
    struct small *small;
};

static struct small_options options(const struct fixture *f)
{
    return (struct small_options){.path = f->path,
                                  .threads = 1,
                                  .bytes_max = BYTES,
                                  .ctx = 128,
                                  .vocab = TINY_VOCAB,
                                  .ends = ends,
                                  .n_ends = 1,
                                  .text = f->file.vocab};
}

static int open_fixture(void **state)
{
    static struct fixture f;
    struct errmsg em = {0};
    memset(&f, 0, sizeof f);
    *state = &f;
    write_model(f.path, TINY_VOCAB, 0, END, -1);
    if (model_file_open(f.path, true, NULL, &f.file, &em) < 0) fail_msg("%s", em.text);
    f.engine = tiny_open(f.file.weights, KV_F16, 0, TINY_LAYERS - 1, 1);
    assert_int_equal(chooser_open(TINY_VOCAB, &f.chooser, &em), 0);
    const struct small_options o = options(&f);
    if (small_open(&o, &f.small, &em) < 0) fail_msg("%s", em.text);
    return 0;
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    small_close(f->small);
    chooser_close(f->chooser);
    eng_close(f->engine);
    model_file_close(&f->file);
    return unlink(f->path);
}

/* ---- the reference: all rows from the first, a step each ---- */

struct text {
    int32_t ids[ROOM];
    uint32_t n;
};

static const int32_t *said(const void *arg, uint32_t pos, uint32_t *ret_n)
{
    const struct text *t = arg;
    *ret_n = 1;
    return t->ids + pos;
}

static uint32_t reference(struct fixture *f, const struct small_ask *a, int32_t *ret)
{
    struct text t = {.n = a->n};
    struct errmsg em = {0};
    uint32_t pages[TINY_PAGES], n = 0;
    const float *logits = NULL;
    for (uint32_t i = 0; i < TINY_PAGES; i++) pages[i] = TINY_PAGES - 1 - i;
    memcpy(t.ids, a->tokens, a->n * sizeof *t.ids);
    for (uint32_t row = 0; n < a->want && t.n < 128; row++) {
        struct eng_run r = {row, 1, 1, t.ids + row, .pages = pages};
        if (eng_step(f->engine, &r, 1, NULL, &logits, &em) < 0) fail_msg("%s", em.text);
        if (row + 1 < t.n) continue;
        const struct chooser_ask ask = {.sampling = a->sampling,
                                        .sample = a->sample,
                                        .pos = t.n,
                                        .boundary = a->n_prompt,
                                        .logits = logits,
                                        .said = said,
                                        .said_arg = &t,
                                        .constraint = f->constraint};
        struct chooser_choice c;
        assert_int_equal(chooser_choose(f->chooser, &ask, &c), 0);
        t.ids[t.n++] = ret[n++] = c.token;
        if (c.token == END && !a->ignore_ends) break;
    }
    return n;
}

/* Drafts until it is done; returns in how many turns. */
static uint32_t draft(struct small *m, struct small_seq *s, const struct small_ask *a,
                      uint32_t *ret_n)
{
    struct errmsg em = {0};
    for (uint32_t turns = 1;; turns++) {
        int rc = small_draft(m, s, a, ret_n, &em);
        if (rc == 0) return turns;
        if (rc != ERR_AGAIN) fail_msg("%s", em.text);
    }
}

static void assert_as_reference(struct fixture *f, struct small_seq *s, const struct small_ask *a)
{
    int32_t want[32];
    uint32_t n_want = reference(f, a, want), n;
    (void)draft(f->small, s, a, &n);
    assert_int_equal(n, n_want);
    assert_memory_equal(a->tokens + a->n, want, n * sizeof *want);
}

/* ---- tests ---- */

/* One request: guesses hold or not, in part or not at all, with every kind of sampling. */
static void test_drafts_are_what_the_model_says(void **state)
{
    struct fixture *f = *state;
    struct rng rng = {11};
    const int32_t bias_ids[] = {3, END};
    const float bias[] = {1.5f, -2.0f};
    uint32_t n_ended = 0;
    for (uint32_t round = 0; round < 24; round++) {
        struct sampling p = SAMPLING_PLAIN;
        struct text t = {.n = 1 + (uint32_t)rng_below(&rng, 20)};
        p.temp = round % 3 ? 0.8f : 0.0f;
        p.seed = round;
        if (round % 4 == 1) p.repetition = 1.3f;
        if (round % 4 == 2) p.frequency = 0.5f;
        if (round % 4 == 3) {
            p.n_bias = 2;
            p.bias_ids = bias_ids;
            p.bias = bias;
        }
        uint32_t n_sure = t.n, n_prompt = t.n;
        struct small_seq *s = small_begin(f->small, round, NULL, 0);
        for (uint32_t i = 0; i < t.n; i++) t.ids[i] = (int32_t)rng_below(&rng, TINY_VOCAB);
        while (n_sure < 100) {
            const struct small_ask a = {.tokens = t.ids,
                                        .n = t.n,
                                        .n_sure = n_sure,
                                        .n_prompt = n_prompt,
                                        .want = 1 + (uint32_t)rng_below(&rng, 8),
                                        .sample = round % 2,
                                        .sampling = &p,
                                        .ignore_ends = round % 2};
            assert_as_reference(f, s, &a);
            uint32_t n;
            (void)draft(f->small, s, &a, &n);
            n_ended += n && t.ids[t.n + n - 1] == END;
            t.n += n; /* the next ask follows the guesses, ... */
            if (rng_below(&rng, 3) == 0 || t.n - n_sure > 24) {
                /* ... or some of them are confirmed and one is another token */
                n_sure += (uint32_t)rng_below(&rng, t.n - n_sure) + 1;
                t.n = n_sure;
                t.ids[n_sure - 1] = (int32_t)rng_below(&rng, TINY_VOCAB);
                for (uint64_t k = rng_below(&rng, 6); k; k--) /* with other guesses behind it */
                    t.ids[t.n++] = (int32_t)rng_below(&rng, TINY_VOCAB);
            }
        }
        small_end(f->small, s);
    }
    assert_true(n_ended > 5);
    struct small_stats stats = small_stats(f->small);
    assert_true(stats.rows_undone > 100 && stats.rows < 24 * 400);
}

/* Drafts have the form that the answer is to have, behind guesses too. */
static void test_an_answer_of_a_form(void **state)
{
    struct fixture *f = *state;
    static const char format[] =
        "{\"type\": \"grammar\", \"grammar\": \"root ::= (\\\"t\\\" [1-4]){70}\"}";
    static struct constraint constraint;
    struct errmsg em = {0};
    struct buf grammar = {0};
    struct rng rng = {14};
    struct sampling p = SAMPLING_PLAIN;
    struct text t = {.ids = {9, 30, 11, 40, 22}, .n = 5};
    if (format_compile(format, strlen(format), FORMAT_PLAIN, false, &grammar, &em) < 0)
        fail_msg("%s", em.text);
    assert_int_equal(constraint_open(&constraint, grammar.data, grammar.len, &em), 0);
    assert_int_equal(chooser_learn(f->chooser, f->file.vocab, &em), 0);
    f->constraint = &constraint;
    p.temp = 0.9f;
    struct small_seq *s = small_begin(f->small, 1, grammar.data, grammar.len);
    for (uint32_t n_sure = 5; n_sure < 60;) {
        const struct small_ask a = {.tokens = t.ids,
                                    .n = t.n,
                                    .n_sure = n_sure,
                                    .n_prompt = 5,
                                    .want = 4,
                                    .sampling = &p,
                                    .ignore_ends = true};
        assert_as_reference(f, s, &a);
        for (uint32_t i = 0; i < 4; i++) assert_in_range(t.ids[t.n + i], 1, 4);
        t.n += 4;
        if (t.n - n_sure < 12) continue;
        n_sure += 3; /* the third of them is another, and what follows it is given up */
        t.n = n_sure;
        t.ids[n_sure - 1] = 1 + (int32_t)rng_below(&rng, 4);
    }
    small_end(f->small, s);
    /* What is no grammar is left out. */
    s = small_begin(f->small, 1, "grammar", 7);
    f->constraint = NULL;
    const struct small_ask a = {
        .tokens = t.ids, .n = 5, .n_sure = 5, .n_prompt = 5, .want = 4, .sampling = &p};
    assert_as_reference(f, s, &a);
    small_end(f->small, s);
    buf_close(&grammar);
}

/* Requests in turn, with a pool that is too small for all of them: each has its own answers. */
static void test_requests_share_a_pool(void **state)
{
    struct fixture *f = *state;
    struct rng rng = {12};
    struct sampling p = SAMPLING_PLAIN;
    enum { N = 6 };
    static struct text t[N];
    struct small_seq *s[N];
    p.temp = 0.7f;
    for (uint32_t i = 0; i < N; i++) {
        s[i] = small_begin(f->small, i, NULL, 0);
        t[i].n = 60;
        for (uint32_t k = 0; k < 60; k++) t[i].ids[k] = (int32_t)rng_below(&rng, TINY_VOCAB);
    }
    assert_true(small_stats(f->small).pages < N * 5);
    for (uint32_t turn = 0; turn < 40; turn++) {
        uint32_t i = (uint32_t)rng_below(&rng, N);
        const struct small_ask a = {.tokens = t[i].ids,
                                    .n = t[i].n,
                                    .n_sure = t[i].n,
                                    .n_prompt = 60,
                                    .want = 3,
                                    .sample = i,
                                    .sampling = &p,
                                    .ignore_ends = true};
        assert_as_reference(f, s[i], &a);
        t[i].n += 2;
        if (rng_below(&rng, 10) == 0) { /* another request takes its place */
            small_end(f->small, s[i]);
            s[i] = small_begin(f->small, i, NULL, 0);
        }
    }
    for (uint32_t i = 0; i < N; i++) small_end(f->small, s[i]);
}

static uint32_t reused(struct fixture *f, uint64_t tenant, int32_t *tokens, uint32_t n,
                       struct small_seq **ret)
{
    static const struct sampling p = SAMPLING_PLAIN;
    const struct small_ask a = {.tokens = tokens,
                                .n = n,
                                .n_sure = n,
                                .n_prompt = n,
                                .want = 2,
                                .sampling = &p,
                                .ignore_ends = true};
    uint64_t before = small_stats(f->small).rows_reused;
    *ret = small_begin(f->small, tenant, NULL, 0);
    assert_as_reference(f, *ret, &a);
    return (uint32_t)(small_stats(f->small).rows_reused - before);
}

/* Whole pages of a prompt serve other requests of the tenant, while it runs and afterwards. */
static void test_prompts_that_begin_alike(void **state)
{
    struct fixture *f = *state;
    struct small_seq *s[6];
    int32_t a[ROOM], b[ROOM];
    struct rng rng = {13};
    for (uint32_t i = 0; i < 60; i++) a[i] = b[i] = (int32_t)rng_below(&rng, TINY_VOCAB);
    b[40] = (b[40] + 1) % (int32_t)TINY_VOCAB;
    assert_int_equal(reused(f, 1, a, 50, &s[0]), 0);
    assert_int_equal(reused(f, 1, b, 50, &s[1]), 32);
    assert_int_equal(reused(f, 2, a, 50, &s[2]), 0);  /* another tenant's */
    assert_int_equal(reused(f, 1, a, 48, &s[3]), 32); /* its last position is wanted itself */
    assert_int_equal(reused(f, 1, a, 49, &s[4]), 48);
    for (uint32_t i = 0; i < 5; i++) small_end(f->small, s[i]);
    assert_int_equal(reused(f, 1, b, 60, &s[5]), 48);
    small_end(f->small, s[5]);
}

/* Who shares a page and has to compute a position of it again, as an attempt from an earlier
 * position does, writes into a page of its own. */
static void test_a_shared_page_is_not_written(void **state)
{
    struct fixture *f = *state;
    static const struct sampling p = SAMPLING_PLAIN;
    struct small_seq *s[2];
    int32_t a[ROOM], b[ROOM];
    for (uint32_t i = 0; i < 60; i++) a[i] = (int32_t)(i * 7 % TINY_VOCAB);
    memcpy(b, a, sizeof b);
    (void)reused(f, 1, a, 50, &s[0]);
    assert_int_equal(reused(f, 1, a, 50, &s[1]), 48);
    struct small_ask ask = {.tokens = b,
                            .n = 20,
                            .n_sure = 20,
                            .n_prompt = 20,
                            .want = 4,
                            .sampling = &p,
                            .ignore_ends = true};
    assert_as_reference(f, s[1], &ask);
    ask.n = 40; /* other tokens behind the 20 than those of the shared pages */
    assert_as_reference(f, s[1], &ask);
    ask.tokens = a;
    ask.n = ask.n_sure = ask.n_prompt = 50;
    assert_as_reference(f, s[0], &ask);
    for (uint32_t i = 0; i < 2; i++) small_end(f->small, s[i]);
}

/* A long prompt takes turns; a request that is at the context's end has no drafts. */
static void test_turns_and_the_end_of_the_context(void **state)
{
    struct fixture *f = *state;
    static const struct sampling p = SAMPLING_PLAIN;
    int32_t tokens[ROOM];
    uint32_t n;
    for (uint32_t i = 0; i < 128; i++) tokens[i] = (int32_t)(i * 5 % TINY_VOCAB);
    struct small_seq *s = small_begin(f->small, 1, NULL, 0);
    struct small_ask a = {.tokens = tokens,
                          .n = 125,
                          .n_sure = 125,
                          .n_prompt = 125,
                          .want = 8,
                          .sampling = &p,
                          .ignore_ends = true};
    assert_int_equal(draft(f->small, s, &a, &n), 2);
    assert_int_equal(n, 3);
    assert_int_equal(draft(f->small, s, &a, &n), 1);
    a.n = a.n_sure = 128;
    assert_int_equal(draft(f->small, s, &a, &n), 1);
    assert_int_equal(n, 0);
    small_end(f->small, s);
}

static void test_stopped(void **state)
{
    struct fixture *f = *state;
    static const struct sampling p = SAMPLING_PLAIN;
    int32_t tokens[ROOM] = {1, 2, 3};
    uint32_t n;
    atomic_bool stop;
    atomic_init(&stop, true);
    struct small_seq *s = small_begin(f->small, 1, NULL, 0);
    struct small_ask a = {.tokens = tokens,
                          .n = 3,
                          .n_sure = 3,
                          .n_prompt = 3,
                          .want = 8,
                          .sampling = &p,
                          .ignore_ends = true,
                          .stop = &stop};
    assert_int_equal(draft(f->small, s, &a, &n), 1);
    assert_int_equal(n, 1);
    atomic_store(&stop, false);
    assert_int_equal(draft(f->small, s, &a, &n), 1);
    assert_int_equal(n, 8);
    small_end(f->small, s);
}

/* A draft that fails leaves its request, and others, usable. */
static void test_a_failure_ends_one_draft(void **state)
{
    struct fixture *f = *state;
    static const struct sampling p = SAMPLING_PLAIN;
    int32_t tokens[ROOM] = {1, 2, TINY_VOCAB};
    uint32_t n = 9;
    struct errmsg em = {0};
    struct small_seq *s = small_begin(f->small, 1, NULL, 0);
    struct small_ask a = {.tokens = tokens,
                          .n = 3,
                          .n_sure = 2,
                          .n_prompt = 2,
                          .want = 4,
                          .sampling = &p,
                          .ignore_ends = true};
    assert_int_equal(small_draft(f->small, s, &a, &n, &em), ERR_RANGE);
    assert_int_equal(n, 0);
    assert_non_null(strstr(em.text, "48"));
    tokens[2] = 5;
    assert_as_reference(f, s, &a);
    small_end(f->small, s);
}

/* A pool that is smaller than the context: who needs more has no draft, and the others go on. */
static void test_small_pool(void **state)
{
    struct fixture *f = *state;
    static const struct sampling p = SAMPLING_PLAIN;
    struct small_options o = options(f);
    char path[64];
    struct small *m = NULL;
    struct errmsg em = {0};
    int32_t tokens[ROOM];
    uint32_t n;
    write_model(path, TINY_VOCAB, 1024, END, -1);
    o.path = path;
    o.ctx = 2000;
    o.bytes_max = 1;
    assert_int_equal(small_open(&o, &m, &em), ERR_NOMEM);
    assert_non_null(strstr(em.text, path));
    assert_non_null(strstr(em.text, "MiB"));
    for (o.bytes_max = 1 << 20; small_open(&o, &m, &em) < 0;) o.bytes_max += 1 << 14;
    struct small_stats stats = small_stats(m);
    assert_true(stats.pages >= 17 && stats.pages < 40);
    for (uint32_t i = 0; i < ROOM; i++) tokens[i] = (int32_t)(i * 5 % TINY_VOCAB);
    struct small_ask a = {.tokens = tokens,
                          .n = 16 * stats.pages,
                          .n_sure = 900,
                          .n_prompt = 900,
                          .want = 1,
                          .sampling = &p,
                          .ignore_ends = true};
    struct small_seq *s[2] = {small_begin(m, 1, NULL, 0), small_begin(m, 2, NULL, 0)};
    (void)draft(m, s[0], &a, &n);
    assert_int_equal(n, 1);
    assert_int_equal(small_stats(m).pages_used, stats.pages);
    a.n = 100;
    (void)draft(m, s[1], &a, &n); /* takes the other's pages */
    assert_int_equal(n, 1);
    a.n = 900;
    int rc;
    while ((rc = small_draft(m, s[0], &a, &n, &em)) == ERR_AGAIN) continue;
    assert_int_equal(rc, ERR_LIMIT);
    assert_non_null(strstr(em.text, "full"));
    a.n = 120;
    (void)draft(m, s[1], &a, &n);
    assert_int_equal(n, 1);
    small_end(m, s[0]);
    small_end(m, s[1]);
    small_close(m);
    assert_int_equal(unlink(path), 0);
}

static void assert_refused(const struct small_options *o, int code, const char *a, const char *b)
{
    struct small *m;
    struct errmsg em = {0};
    assert_int_equal(small_open(o, &m, &em), code);
    if (!strstr(em.text, a) || !strstr(em.text, b) || !strstr(em.text, o->path))
        fail_msg("'%s' lacks '%s' or '%s'", em.text, a, b);
}

/* Both vocabularies, and both ends, are named. */
static void test_other_vocabularies_are_refused(void **state)
{
    struct fixture *f = *state;
    struct small_options o = options(f);
    static const int32_t others[] = {END, 9};
    struct model_file other;
    struct errmsg em = {0};
    char path[64];
    o.vocab = TINY_VOCAB + 1;
    assert_refused(&o, ERR_CONF, "of 48 tokens", "of 49");
    o = options(f);
    o.n_ends = 0;
    assert_refused(&o, ERR_CONF, "token 7 ends an answer of the draft model", "not of the target");
    o.ends = others;
    o.n_ends = 2;
    assert_refused(&o, ERR_CONF, "token 9 ends an answer of the target", "not of the draft model");
    o = options(f);
    o.path = "/nonexistent/draft.gguf";
    assert_refused(&o, ERR_NOTFOUND, "draft.gguf", "");
    write_model(path, TINY_VOCAB, 0, END, 30);
    assert_int_equal(model_file_open(path, true, NULL, &other, &em), 0);
    o = options(f);
    o.text = other.vocab;
    assert_refused(&o, ERR_CONF, "token 30 is 't30' in the draft model", "'other30' in the target");
    model_file_close(&other);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
        T(test_drafts_are_what_the_model_says),
        T(test_an_answer_of_a_form),
        T(test_requests_share_a_pool),
        T(test_prompts_that_begin_alike),
        T(test_a_shared_page_is_not_written),
        T(test_turns_and_the_end_of_the_context),
        T(test_stopped),
        T(test_a_failure_ends_one_draft),
        T(test_small_pool),
        T(test_other_vocabularies_are_refused),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
