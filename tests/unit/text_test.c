/* Tokens to text: characters over several tokens, stop strings. Text to tokens: merges, special
 * tokens and pre-tokenisers, on vocabularies made for one fact each. */
#include "common/base/rng.h"
#include "common/text/detok.h"
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

/* UTF-8 by its arithmetic, not by the decoder's table: whether k bytes at s are a whole character
 * other than NUL (*ret_whole), or can begin one. */
static bool utf8_begins(const uint8_t *s, size_t k, bool *ret_whole)
{
    static const uint32_t least[] = {0, 1, 0x80, 0x800, 0x10000};
    size_t len = s[0] < 0x80       ? 1
                 : s[0] >> 5 == 6  ? 2
                 : s[0] >> 4 == 14 ? 3
                 : s[0] >> 3 == 30 ? 4
                                   : 0;
    if (len == 0 || s[0] == 0 || k > len) return false;
    uint32_t lo = len == 1 ? s[0] : s[0] & ((1u << (7 - len)) - 1), hi;
    for (size_t i = 1; i < k; i++) {
        if (s[i] >> 6 != 2) return false;
        lo = lo << 6 | (s[i] & 63);
    }
    hi = lo;
    for (size_t i = k; i < len; i++) { /* all that the missing bytes could make of it */
        lo <<= 6;
        hi = hi << 6 | 63;
    }
    if (lo < least[len]) lo = least[len];
    if (hi > 0x10ffff) hi = 0x10ffff;
    bool possible = lo <= hi && !(lo >= 0xd800 && hi <= 0xdfff);
    *ret_whole = possible && k == len;
    return possible;
}

/* The bytes as they should be shown: what is no character becomes one U+FFFD for each longest part
 * that begins one (Unicode 15, 3.9, "maximal subparts"). */
static size_t shown(const char *bytes, size_t n, char *ret)
{
    const uint8_t *s = (const uint8_t *)bytes;
    size_t len = 0;
    for (size_t at = 0, used; at < n; at += used) {
        bool whole = false;
        size_t longest = 0, most = n - at < 4 ? n - at : 4;
        for (size_t k = 1; k <= most && !whole; k++)
            if (utf8_begins(s + at, k, &whole)) longest = k;
        used = longest ? longest : 1;
        memcpy(ret + len, whole ? bytes + at : "\xef\xbf\xbd", whole ? used : 3);
        len += whole ? used : 3;
    }
    return len;
}

/* Whatever bytes come, in whatever pieces, the text is what another decoder makes of them. */
static void test_any_bytes(void **state)
{
    (void)state;
    struct rng rng = {3};
    for (int round = 0; round < 20000; round++) {
        char bytes[24], want[3 * sizeof bytes];
        size_t n = 1 + rng_below(&rng, sizeof bytes);
        static const uint8_t pool[] = {'a',  0,    0x80, 0xbf, 0xc1, 0xc2, 0xe0, 0xa0, 0xed, 0x9f,
                                       0xf0, 0x90, 0x8f, 0xf4, 0xf5, 0xff, 0xe6, 0xad, 0xaa};
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
        size_t len = shown(bytes, n, want);
        assert_int_equal(one.text.len, len);
        assert_memory_equal(one.text.data, want, len);
        assert_int_equal(many.text.len, len);
        assert_memory_equal(many.text.data, want, len);
        detok_close(&one);
        detok_close(&many);
    }
    const char surrogate[] = "\xed\xa0\x80"; /* U+D800: three bytes that begin nothing */
    struct detok d;
    detok_init(&d, NULL, 0);
    detok_push(&d, surrogate, 3);
    expect(&d, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    detok_close(&d);
}

/* At every moment the text that is shown is exactly what no stop string can still take back. */
static void test_stops_are_never_shown(void **state)
{
    (void)state;
    struct rng rng = {11};
    for (int round = 0; round < 3000; round++) {
        char stop[2][5] = {"", ""}, text[24];
        const char *stops[2] = {stop[0], stop[1]};
        for (int i = 0; i < 2; i++)
            for (size_t k = 0, n = 1 + rng_below(&rng, 4); k < n; k++)
                stop[i][k] = (char)('a' + rng_below(&rng, 2));
        for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + rng_below(&rng, 2));
        struct detok d;
        detok_init(&d, stops, 2);
        for (size_t n = 1; n <= sizeof text && !d.stopped; n++) {
            detok_push(&d, text + n - 1, 1);
            size_t partial = n, whole = SIZE_MAX; /* where the first of each begins */
            for (size_t at = n; at-- > 0;)
                for (int i = 0; i < 2; i++) {
                    size_t len = strlen(stop[i]), left = n - at;
                    if (memcmp(text + at, stop[i], left < len ? left : len) != 0) continue;
                    if (left >= len) whole = at;
                    if (left < len) partial = at;
                }
            bool stopped = whole != SIZE_MAX;
            size_t want = stopped ? whole : partial;
            if (d.text.len != want)
                fail_msg("of '%.*s', stops '%s' '%s': %zu shown, not %zu", (int)n, text, stop[0],
                         stop[1], d.text.len, want);
            assert_int_equal(d.stopped, stopped);
        }
        detok_close(&d);
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
        size_t stop;
    } cases[] = {
        {{"O P Q"}, 1, "A B C ", true, 0},
        {{" O P"}, 1, "A B C", true, 0},
        {{"P Q R S T"}, 1, "A B C O P Q R S", false, 0},
        {{"D"}, 1, "A B C O P Q R S", false, 0},
        {{""}, 1, "A B C O P Q R S", false, 0},
        {{"zz", "O P Q"}, 2, "A B C ", true, 1},
        {{"C O", "B C"}, 2, "A ", true, 1},
        {{"", "O P Q"}, 2, "A B C ", true, 1}, /* an empty one has its place, too */
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
        if (d.stopped) assert_int_equal(d.stop, cases[i].stop);
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

/* ---- vocabularies made for one fact each ---- */

#define MADE_MAX 400

/* A vocabulary under construction. Its token texts live as long as it does. */
struct made {
    struct vocab_string tokens[MADE_MAX], merges[MADE_MAX];
    int32_t types[MADE_MAX];
    float scores[MADE_MAX];
    char alphabet[256][3];
    struct vocab_spec spec;
};

static struct made *make(const char *model, const char *pre)
{
    struct made *m = mem_zalloc(sizeof *m);
    m->spec = (struct vocab_spec){.model = {model, strlen(model)},
                                  .pre = {pre, strlen(pre)},
                                  .tokens = m->tokens,
                                  .types = m->types,
                                  .scores = m->scores,
                                  .merges = m->merges,
                                  .bos = -1,
                                  .eos = -1,
                                  .eot = -1,
                                  .eom = -1,
                                  .unknown = -1};
    return m;
}

static int32_t add(struct made *m, const char *text, int32_t type, float score)
{
    uint32_t i = m->spec.n_tokens++;
    m->tokens[i] = (struct vocab_string){text, strlen(text)};
    m->types[i] = type;
    m->scores[i] = score;
    return (int32_t)i;
}

static void add_merge(struct made *m, const char *text)
{
    m->merges[m->spec.n_merges++] = (struct vocab_string){text, strlen(text)};
}

/* Tokens 0..255: the bytes, as GPT-2's alphabet writes them. */
static void add_bytes(struct made *m)
{
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int c = printable ? b : next++;
        char *s = m->alphabet[b];
        if (c < 0x80) {
            s[0] = (char)c;
        } else {
            s[0] = (char)(0xc0 | c >> 6);
            s[1] = (char)(0x80 | (c & 63));
        }
        (void)add(m, s, TOKEN_NORMAL, 0);
    }
}

static struct vocab *open_made(struct made *m)
{
    struct vocab *v = NULL;
    struct errmsg em = {0};
    if (vocab_open(&m->spec, &v, &em) < 0) fail_msg("%s", em.text);
    return v;
}

/* The ids of a text are those listed, up to -1. */
static void expect_run_ids(const struct vocab *v, const char *text, size_t len,
                           const struct vocab_run *runs, size_t n_runs, const int32_t *want)
{
    struct tokens t = {0};
    struct errmsg em = {0};
    size_t n = 0;
    if (vocab_encode_runs(v, text, runs, n_runs, &t, &em) < 0) fail_msg("%s", em.text);
    while (want[n] >= 0) n++;
    bool equal = t.n == n;
    for (size_t i = 0; i < n && equal; i++) equal = t.ids[i] == want[i];
    if (!equal) {
        for (size_t i = 0; i < t.n; i++) print_error("%d ", (int)t.ids[i]);
        fail_msg("the ids of '%.*s'", (int)len, text);
    }
    mem_free(t.ids);
}

static void expect_ids(const struct vocab *v, const char *text, size_t len, bool special,
                       const int32_t *want)
{
    struct tokens t = {0};
    const struct vocab_run whole = {len, special};
    if (vocab_encode(v, text, len, special, &t, NULL) < 0) fail_msg("'%.*s'", (int)len, text);
    mem_free(t.ids);
    expect_run_ids(v, text, len, &whole, 1, want);
}

#define EXPECT_IDS(v, text, ...)                                                                   \
    expect_ids(v, text, sizeof text - 1, false, (const int32_t[]){__VA_ARGS__, -1})

static void close_made(struct made *m, struct vocab *v)
{
    vocab_close(v);
    mem_free(m);
}

/* Pairs of equal rank or score are merged from the left; of a merge that is listed twice the first
 * counts; negative scores are ordered too. */
static void test_ties_of_merges(void **state)
{
    (void)state;
    struct made *m = make("gpt2", "gpt-2");
    (void)add(m, "a", TOKEN_NORMAL, 0);
    (void)add(m, "b", TOKEN_NORMAL, 0);
    (void)add(m, "c", TOKEN_NORMAL, 0);
    int32_t aa = add(m, "aa", TOKEN_NORMAL, 0), ab = add(m, "ab", TOKEN_NORMAL, 0);
    (void)add(m, "bc", TOKEN_NORMAL, 0);
    add_merge(m, "a b");
    add_merge(m, "b c");
    add_merge(m, "a b");
    add_merge(m, "a a");
    struct vocab *v = open_made(m);
    EXPECT_IDS(v, "aaa", aa, 0);
    EXPECT_IDS(v, "aaaaa", aa, aa, 0);
    EXPECT_IDS(v, "abc", ab, 2);
    close_made(m, v);
    m = make("llama", "");
    (void)add(m, "a", TOKEN_NORMAL, -9);
    (void)add(m, "b", TOKEN_NORMAL, -9);
    (void)add(m, "c", TOKEN_NORMAL, -9);
    aa = add(m, "aa", TOKEN_NORMAL, -2);
    ab = add(m, "ab", TOKEN_NORMAL, -1);
    (void)add(m, "bc", TOKEN_NORMAL, -2);
    int32_t cb = add(m, "cb", TOKEN_NORMAL, -2), ca = add(m, "ca", TOKEN_NORMAL, 0.5f);
    v = open_made(m);
    EXPECT_IDS(v, "aaa", aa, 0);
    EXPECT_IDS(v, "abc", ab, 2);
    EXPECT_IDS(v, "cbc", cb, 2); /* "cb" and "bc" have the same score */
    EXPECT_IDS(v, "cab", ca, 1);
    close_made(m, v);
}

/* Merging by its definition: again and again the best pair of neighbours, of equals the leftmost.
 */
static void merge_plainly(const struct made *m, const char *text, size_t len, int32_t *ret)
{
    size_t at[256], n = len;
    assert_true(len < 256);
    for (size_t i = 0; i <= len; i++) at[i] = i;
    for (;;) {
        size_t best = n;
        float score = 0;
        for (size_t i = 0; i + 2 <= n; i++)
            for (uint32_t k = 0; k < m->spec.n_tokens; k++) {
                bool equal = m->tokens[k].len == at[i + 2] - at[i] &&
                             memcmp(m->tokens[k].data, text + at[i], m->tokens[k].len) == 0;
                if (!equal || (best < n && m->scores[k] <= score)) continue;
                best = i;
                score = m->scores[k];
            }
        if (best == n) break;
        memmove(at + best + 1, at + best + 2, (n - best - 1) * sizeof *at);
        n--;
    }
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < m->spec.n_tokens; k++)
            if (m->tokens[k].len == at[i + 1] - at[i] &&
                memcmp(m->tokens[k].data, text + at[i], m->tokens[k].len) == 0)
                ret[i] = (int32_t)k;
    ret[n] = -1;
}

static void test_merges_by_definition(void **state)
{
    (void)state;
    struct rng rng = {31};
    char texts[20][6], text[128];
    int32_t want[129];
    for (int round = 0; round < 1000; round++) {
        struct made *m = make("llama", "");
        (void)add(m, "a", TOKEN_NORMAL, -9);
        (void)add(m, "b", TOKEN_NORMAL, -9);
        for (int i = 0; i < 20; i++) { /* few scores: many ties */
            size_t len = 2 + rng_below(&rng, 4);
            for (size_t k = 0; k < len; k++) texts[i][k] = (char)('a' + rng_below(&rng, 2));
            texts[i][len] = 0;
            bool repeated = false;
            for (int k = 0; k < i; k++) repeated |= strcmp(texts[k], texts[i]) == 0;
            if (!repeated) (void)add(m, texts[i], TOKEN_NORMAL, -(float)rng_below(&rng, 4));
        }
        struct vocab *v = open_made(m);
        size_t len = 1 + rng_below(&rng, sizeof text);
        for (size_t i = 0; i < len; i++) text[i] = (char)('a' + rng_below(&rng, 2));
        merge_plainly(m, text, len, want);
        expect_ids(v, text, len, false, want);
        close_made(m, v);
    }
    /* Each merge makes two new pairs while the old ones wait: as many as there can be at once. */
    struct made *m = make("llama", "");
    static const char *const later[] = {"aba", "bab", "abab"};
    (void)add(m, "a", TOKEN_NORMAL, -9);
    (void)add(m, "b", TOKEN_NORMAL, -9);
    (void)add(m, "ab", TOKEN_NORMAL, 0);
    (void)add(m, "ba", TOKEN_NORMAL, -1);
    for (int i = 0; i < 3; i++) (void)add(m, later[i], TOKEN_NORMAL, -2);
    struct vocab *v = open_made(m);
    static char many[400];
    static int32_t all[101];
    for (size_t i = 0; i < sizeof many; i++) many[i] = "ab"[i % 2];
    for (size_t i = 0; i < 100; i++) all[i] = 6;
    all[100] = -1;
    expect_ids(v, many, sizeof many, false, all);
    close_made(m, v);
}

/* Texts of one letter, each length of which is a token. */
static void test_one_letter(void **state)
{
    (void)state;
    enum { N = 220 };
    static char texts[N][N + 1], text[N + 1];
    struct made *m = make("llama", "");
    for (int i = 0; i < N; i++) {
        memset(texts[i], 'a', (size_t)i + 1);
        (void)add(m, texts[i], TOKEN_NORMAL, (float)-i); /* the shortest first */
    }
    struct vocab *v = open_made(m);
    memset(text, 'a', N);
    for (size_t n = 1; n <= N; n++)
        expect_ids(v, text, n, false, (const int32_t[]){(int32_t)n - 1, -1});
    close_made(m, v);
}

/* llama-bpe takes a piece of text that is a token whole; others merge its letters. */
static void test_whole_words(void **state)
{
    (void)state;
    static const char *const pres[] = {"llama-bpe", "gpt-2", "qwen2"};
    for (int i = 0; i < 3; i++) {
        struct made *m = make("gpt2", pres[i]);
        (void)add(m, "a", TOKEN_NORMAL, 0);
        (void)add(m, "b", TOKEN_NORMAL, 0);
        int32_t whole = add(m, "abb", TOKEN_NORMAL, 0);
        struct vocab *v = open_made(m);
        if (i == 0)
            EXPECT_IDS(v, "abb", whole);
        else
            EXPECT_IDS(v, "abb", 0, 1, 1);
        close_made(m, v);
    }
}

/* A byte that is no token becomes the unknown token, or nothing where that token would steer the
 * model. */
static void test_unknown_bytes(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt2", "llama"};
    for (int i = 0; i < 2; i++)
        for (int kind = 0; kind < 6; kind++) {
            struct made *m = make(models[i], "gpt-2");
            (void)add(m, "a", TOKEN_NORMAL, 0);
            int32_t type = kind == 0 ? TOKEN_UNKNOWN : kind == 1 ? TOKEN_CONTROL : TOKEN_NORMAL;
            int32_t id = add(m, "?", type, 0);
            if (kind != 5) m->spec.unknown = id;
            if (kind == 2) m->spec.bos = id;
            if (kind == 3) m->spec.eos = id;
            struct vocab *v = open_made(m);
            bool kept = kind == 0 || kind == 4;
            expect_ids(v, "a\x04\xc3\xa9z", 5, false, /* é: two bytes */
                       kept ? (const int32_t[]){0, 1, 1, 1, 1, -1} : (const int32_t[]){0, -1});
            close_made(m, v);
        }
}

/* U+180E is no white space: the space before it belongs to its piece, as before a symbol. */
static void test_mongolian_vowel_separator(void **state)
{
    (void)state;
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    for (int i = 0; i < 4; i++) {
        struct made *m = make("gpt2", pres[i]);
        add_bytes(m);
        int32_t joined = add(m, "\xc4\xa0\xc3\xa1", TOKEN_NORMAL, 0); /* a space and byte E1 */
        int32_t two = add(m, "\xc4\xa0\xc4\xa0", TOKEN_NORMAL, 0);
        add_merge(m, "\xc4\xa0 \xc3\xa1");
        add_merge(m, "\xc4\xa0 \xc4\xa0");
        struct vocab *v = open_made(m);
        EXPECT_IDS(v, "x \xe1\xa0\x8ey", 'x', joined, 0xa0, 0x8e, 'y');
        EXPECT_IDS(v, "x   \xe1\xa0\x8e", 'x', two, joined, 0xa0, 0x8e);
        /* U+1680 is white space: the space before it is of the same run. */
        EXPECT_IDS(v, "x \xe1\x9a\x80y", 'x', ' ', 0xe1, 0x9a, 0x80, 'y');
        EXPECT_IDS(v, "x  ", 'x', two);
        close_made(m, v);
    }
}

/* Qwen2 composes its text (NFC) before it is cut into pieces, others leave it as it is. */
static void test_composition(void **state)
{
    (void)state;
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    static const char *const cases[][2] = {
        {"e\u0301", "\u00e9"},             /* a letter and its accent */
        {"ab\u212b c", "ab\u00c5 c"},      /* the sign of the unit is the letter */
        {"\u1112\u1161\u11ab", "\ud55c"},  /* a Korean syllable of three parts */
        {"a\u0315\u0300", "\u00e0\u0315"}, /* marks are sorted first */
        {"\u0958", "\u0915\u093c"},        /* what Unicode never composes */
        {"\u09c7\u09be", "\u09cb"},        /* a vowel that is no non-spacing mark */
        {"\u0301e", "\u0301e"},            /* a mark with nothing before it */
        {"\u4e2d\u0301x\u0308y\u0308", "\u4e2d\u0301\u1e8d\u00ff"},
        {"\uc838\u11a7", "\uc838\u11a7"}, /* one before the first final consonant */
        {"plain", "plain"},
    };
    for (int i = 0; i < 4; i++) {
        struct made *m = make("gpt2", pres[i]);
        add_bytes(m);
        struct vocab *v = open_made(m);
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            const char *want = cases[c][i == 3];
            int32_t ids[32];
            size_t n = 0;
            for (; want[n]; n++) ids[n] = (uint8_t)want[n];
            ids[n] = -1;
            expect_ids(v, cases[c][0], strlen(cases[c][0]), false, ids);
        }
        EXPECT_IDS(v, "\xff\x65\xcc", 0xff, 'e', 0xcc); /* not UTF-8: not touched */
        close_made(m, v);
    }
}

/* Marks in an order in which a naive sort is quadratic (an hour here), and a run of spaces longer
 * than the ten million steps after which PCRE2 gives up by itself. */
static void test_long_runs(void **state)
{
    (void)state;
    const size_t n = 300000, spaces = 10000100;
    struct made *m = make("gpt2", "qwen2");
    add_bytes(m);
    struct vocab *v = open_made(m);
    char *text = mem_alloc(4 * n);
    for (size_t i = 0; i < n; i++) memcpy(text + 4 * i, i % 2 ? "\u0301\u0316" : "\u0315\u0301", 4);
    struct tokens t = {0};
    struct errmsg em;
    assert_int_equal(vocab_encode(v, text, 4 * n, false, &t, &em), 0);
    assert_int_equal(t.n, 4 * n);
    assert_int_equal(t.ids[1], 0x96); /* U+0316 has the lowest class of the three */
    mem_free(text);
    mem_free(t.ids);
    close_made(m, v);

    char *token = mem_alloc(2 * spaces + 1);
    text = mem_alloc(spaces + 1);
    for (size_t i = 0; i < spaces; i++) memcpy(token + 2 * i, "\xc4\xa0", 2);
    token[2 * spaces] = 0;
    memset(text, ' ', spaces);
    m = make("gpt2", "llama-bpe");
    int32_t whole = add(m, token, TOKEN_NORMAL, 0);
    v = open_made(m);
    expect_ids(v, text, spaces, false, (const int32_t[]){whole, -1});
    mem_free(token);
    mem_free(text);
    close_made(m, v);
}

/* Up to 5 runs that sum up to `len`, some of them empty. */
static size_t random_runs(struct rng *rng, size_t len, struct vocab_run *runs)
{
    size_t n = 1 + rng_below(rng, 5);
    for (size_t i = 0; i < n; i++) {
        runs[i].bytes = i + 1 == n ? len : (size_t)rng_below(rng, (uint32_t)len + 1);
        runs[i].special = rng_below(rng, 2);
        len -= runs[i].bytes;
    }
    return n;
}

/* At each place the longest special token, found by comparing with all of them; control tokens only
 * where all their bytes are allowed to be; of equal texts the lowest id. */
static void test_special_tokens(void **state)
{
    (void)state;
    struct rng rng = {21};
    for (int round = 0; round < 400; round++) {
        struct made *m = make("gpt2", "gpt-2");
        static char texts[40][6];
        add_bytes(m);
        int n = 1 + (int)rng_below(&rng, 40);
        for (int i = 0; i < n; i++) {
            size_t len = 1 + rng_below(&rng, 5);
            for (size_t k = 0; k < len; k++) texts[i][k] = "<|x"[rng_below(&rng, 3)];
            texts[i][len] = 0;
            (void)add(m, texts[i], rng_below(&rng, 2) ? TOKEN_CONTROL : TOKEN_USER, 0);
        }
        struct vocab *v = open_made(m);
        for (int k = 0; k < 4; k++) {
            char text[30], allowed[31] = {0};
            struct vocab_run runs[5];
            int32_t want[31];
            size_t len = sizeof text, n_want = 0, n_runs = random_runs(&rng, len, runs), to = 0;
            for (size_t i = 0; i < len; i++) text[i] = "<|x"[rng_below(&rng, 3)];
            for (size_t i = 0; i < n_runs; to += runs[i++].bytes)
                memset(allowed + to, runs[i].special ? '1' : '0', runs[i].bytes);
            for (size_t at = 0; at < len;) {
                int best = -1;
                for (int i = 0; i < n; i++) {
                    size_t bytes = strlen(texts[i]);
                    if (bytes > len - at || memcmp(text + at, texts[i], bytes) != 0) continue;
                    if (m->types[256 + i] == TOKEN_CONTROL && memchr(allowed + at, '0', bytes))
                        continue;
                    if (best < 0 || bytes > strlen(texts[best])) best = i;
                }
                want[n_want++] = best < 0 ? (uint8_t)text[at] : 256 + best;
                at += best < 0 ? 1 : strlen(texts[best]);
            }
            want[n_want] = -1;
            expect_run_ids(v, text, len, runs, n_runs, want);
        }
        close_made(m, v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters_over_tokens),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_stops_are_never_shown),
        cmocka_unit_test(test_ties_of_merges),
        cmocka_unit_test(test_merges_by_definition),
        cmocka_unit_test(test_one_letter),
        cmocka_unit_test(test_whole_words),
        cmocka_unit_test(test_unknown_bytes),
        cmocka_unit_test(test_mongolian_vowel_separator),
        cmocka_unit_test(test_composition),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_control_is_not_merged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
