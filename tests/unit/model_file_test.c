/* A vocabulary's keys in every type that a file's writer may have chosen, and what is refused; what
 * is not read of a model's metadata is in the log. */
#include "coordinator/model_file.h"

#include "tests/lib/printed.h"
#include "tests/lib/tiny_llama.h"
#include "tests/lib/tiny_vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N_TOKENS 5u

static const enum meta_type integers[] = {META_U8,  META_I8,  META_U16, META_I16,
                                          META_U32, META_I32, META_U64, META_I64};
#define N_INTEGERS (sizeof integers / sizeof integers[0])

/* What the file has. A string of NULL, or a type of META_N_TYPES: the key is missing. */
struct spec {
    const char *model, *pre;
    enum meta_type ids, flags, types, scores;
    int64_t bos, eos, add_bos, last_type;
};

static const struct spec plain = {.model = "gpt2",
                                  .pre = "gpt-2",
                                  .ids = META_U32,
                                  .flags = META_BOOL,
                                  .types = META_I32,
                                  .scores = META_F32,
                                  .bos = 3,
                                  .eos = 4,
                                  .add_bos = 1,
                                  .last_type = TOKEN_CONTROL};

static void scalar(struct buf *b, uint32_t *n, const char *key, enum meta_type type, int64_t v)
{
    if (type == META_N_TYPES) return;
    put_number_key(b, key, type, v);
    ++*n;
}

static void array(struct buf *b, uint32_t *n, const char *key, enum meta_type type,
                  const int64_t *items)
{
    if (type == META_N_TYPES) return;
    str(b, key);
    u32(b, META_ARRAY);
    u32(b, type);
    u64(b, N_TOKENS);
    for (uint32_t i = 0; i < N_TOKENS; i++) put_number(b, type, items[i]);
    ++*n;
}

static void text(struct buf *b, uint32_t *n, const char *key, const char *value)
{
    if (!value) return;
    put_text_key(b, key, value);
    ++*n;
}

static void texts(struct buf *b, uint32_t *n, const char *key, const char *const *items,
                  uint32_t n_items)
{
    str(b, key);
    u32(b, META_ARRAY);
    u32(b, META_STRING);
    u64(b, n_items);
    for (uint32_t i = 0; i < n_items; i++) str(b, items[i]);
    ++*n;
}

static int open_spec(const struct spec *s, const char *pre, struct model_file *ret,
                     struct errmsg *em)
{
    static const char *const tokens[N_TOKENS] = {"a", "b", "ab", "<x>", "<y>"}, *const merges[] = {
                                                                                    "a b"};
    const int64_t types[N_TOKENS] = {1, 1, 1, TOKEN_CONTROL, s->last_type},
                  scores[N_TOKENS] = {-3, -2, -1, 0, 0};
    struct buf keys = {0}, b = {0};
    uint32_t n = 0;
    text(&keys, &n, "tokenizer.ggml.model", s->model);
    text(&keys, &n, "tokenizer.ggml.pre", s->pre);
    texts(&keys, &n, "tokenizer.ggml.tokens", tokens, N_TOKENS);
    texts(&keys, &n, "tokenizer.ggml.merges", merges, 1);
    array(&keys, &n, "tokenizer.ggml.token_type", s->types, types);
    array(&keys, &n, "tokenizer.ggml.scores", s->scores, scores);
    scalar(&keys, &n, "tokenizer.ggml.bos_token_id", s->ids, s->bos);
    scalar(&keys, &n, "tokenizer.ggml.eos_token_id", s->ids, s->eos);
    scalar(&keys, &n, "tokenizer.ggml.add_bos_token", s->flags, s->add_bos);
    put_header(&b, 0, n);
    (void)buf_append(&b, keys.data, keys.len);
    char path[] = "/tmp/flotilla-vocab-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, b.data, b.len) == (ssize_t)b.len && close(fd) == 0);
    int rc = model_file_open(path, false, pre, ret, em);
    assert_int_equal(unlink(path), 0);
    buf_close(&keys);
    buf_close(&b);
    return rc;
}

static void good(const struct spec *s, int32_t bos, bool adds_bos)
{
    struct model_file f;
    struct errmsg em = {0};
    if (open_spec(s, NULL, &f, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(vocab_bos(f.vocab), bos);
    assert_int_equal(vocab_adds_bos(f.vocab), adds_bos);
    assert_true(vocab_is_control(f.vocab, 3) && !vocab_is_control(f.vocab, 2));
    assert_true(vocab_is_eog(f.vocab, 4) == (s->eos == 4));
    model_file_close(&f);
}

static void bad(const struct spec *s, const char *pre, int want, const char *what)
{
    struct model_file f;
    struct errmsg em = {0};
    int rc = open_spec(s, pre, &f, &em);
    if (rc != want || !strstr(em.text, what)) fail_msg("%d: '%s' and not '%s'", rc, em.text, what);
}

static void test_any_integer(void **state)
{
    (void)state;
    good(&plain, 3, true);
    for (size_t i = 0; i < N_INTEGERS; i++) {
        struct spec s = plain;
        s.ids = s.flags = s.types = s.scores = integers[i];
        if (integers[i] != META_I8 && integers[i] != META_I16 && integers[i] != META_I32 &&
            integers[i] != META_I64)
            s.scores = META_F64; /* the scores are negative */
        good(&s, 3, true);
        s.add_bos = 0;
        good(&s, 3, false);
        s.model = "llama";
        good(&s, 3, false);
        s.add_bos = 1;
        good(&s, 3, true);
        s.add_bos = 2;
        bad(&s, NULL, ERR_FORMAT, "tokenizer.ggml.add_bos_token");
    }
}

/* A special token is absent: no key, a negative number, or -1 read as a u32. */
static void test_no_token(void **state)
{
    (void)state;
    struct spec s = plain;
    s.bos = UINT32_MAX;
    good(&s, -1, false);
    s.ids = META_I64;
    s.bos = -1;
    good(&s, -1, false);
    s.ids = META_N_TYPES;
    s.eos = -1;
    good(&s, -1, false);
    s = plain;
    s.types = s.flags = META_N_TYPES; /* all are normal; BPE adds no BOS by itself */
    struct model_file f;
    struct errmsg em = {0};
    assert_int_equal(open_spec(&s, NULL, &f, &em), 0);
    assert_false(vocab_is_control(f.vocab, 3) || vocab_adds_bos(f.vocab));
    model_file_close(&f);
}

static void test_wrong_values(void **state)
{
    (void)state;
    struct spec s = plain;
    s.bos = 5;
    bad(&s, NULL, ERR_FORMAT, "special token id 5 of 5");
    s.ids = META_U64;
    s.bos = 1ll << 40;
    bad(&s, NULL, ERR_FORMAT, "tokenizer.ggml.bos_token_id");
    s = plain;
    s.ids = META_F32;
    bad(&s, NULL, ERR_FORMAT, "tokenizer.ggml.bos_token_id");
    s = plain;
    s.flags = META_F32;
    bad(&s, NULL, ERR_FORMAT, "tokenizer.ggml.add_bos_token");
    s = plain;
    s.types = META_F32;
    bad(&s, NULL, ERR_FORMAT, "tokenizer.ggml.token_type");
    s.types = META_I64;
    s.last_type = 1ll << 33;
    bad(&s, NULL, ERR_FORMAT, "item 4");
    s = plain;
    s.scores = META_BOOL;
    bad(&s, NULL, ERR_FORMAT, "tokenizer.ggml.scores");
}

/* A pre-tokeniser other than in training gives other ids: an unknown one is refused unless --pre
 * says which to use. */
static void test_pre(void **state)
{
    (void)state;
    struct model_file f;
    struct errmsg em = {0};
    struct spec s = plain;
    static const char *const unknown[] = {"tekken", "falcon3", "deepseek-llm", "gpt", ""};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        s.pre = unknown[i];
        bad(&s, NULL, ERR_UNSUPPORTED, "--pre");
        assert_int_equal(open_spec(&s, "llama-bpe", &f, &em), 0);
        model_file_close(&f);
    }
    s.pre = NULL; /* not said at all */
    bad(&s, NULL, ERR_UNSUPPORTED, "''");
    bad(&s, "nosuch", ERR_UNSUPPORTED, "'nosuch'");
    s.model = "llama";
    bad(&s, "gpt-2", ERR_CONF, "uses none");
}

/* Opens a model, or its vocabulary alone, that has a key which no architecture reads: the log. */
static const char *log_of(bool with_model)
{
    static char text[4096];
    struct model_file f;
    struct errmsg em = {0};
    struct buf keys = {0};
    tiny_vocab_keys(&keys, TINY_VOCAB, "t", 7, -1);
    put_number_key(&keys, "llama.no_such_key", META_U32, 1);
    const struct tiny_llama t = {
        .layers = 1, .seed = 1, .keys = &keys, .n_keys = TINY_VOCAB_KEYS + 1};
    char path[] = "/tmp/flotilla-model-file-XXXXXX";
    assert_true(tiny_llama_write(&t, path));
    struct printed p = printed_begin(STDERR_FILENO);
    int rc = model_file_open(path, with_model, NULL, &f, &em);
    printed_end(&p, text, sizeof text);
    if (rc < 0) fail_msg("%s", em.text);
    if (text[0] && !strstr(text, path)) fail_msg("the log does not name the file: %s", text);
    model_file_close(&f);
    assert_int_equal(unlink(path), 0);
    buf_close(&keys);
    return text;
}

/* Whoever opens a model, the log says what of its metadata is without effect. */
static void test_unread_keys(void **state)
{
    (void)state;
    const char *text = log_of(true);
    if (!strstr(text, "1 key is of the model without effect here: 'llama.no_such_key'"))
        fail_msg("'%s'", text);
    assert_string_equal(log_of(false), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_integer),  cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_wrong_values), cmocka_unit_test(test_pre),
        cmocka_unit_test(test_unread_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
