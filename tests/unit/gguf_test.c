/* The GGUF reader on files that are cut, overflow, or contradict themselves. */
#include "common/engine/arch.h"
#include "common/engine/weights.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/tiny_llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void tensor(struct buf *b, const char *name, uint32_t n_dims, uint64_t d0, uint64_t d1,
                   uint32_t type, uint64_t offset)
{
    str(b, name);
    u32(b, n_dims);
    u64(b, d0);
    if (n_dims > 1) u64(b, d1);
    u32(b, type);
    u64(b, offset);
}

/* A file of two keys and two tensors, of which the second is as the caller says. */
static struct buf make(uint32_t type, uint64_t d0, uint64_t d1, uint64_t offset)
{
    struct buf b = {0};
    put_header(&b, 2, 2);
    put_text_key(&b, "general.architecture", "llama");
    str(&b, "a.list");
    u32(&b, META_ARRAY);
    u32(&b, META_STRING);
    u64(&b, 2);
    str(&b, "x");
    str(&b, "yy");
    tensor(&b, "first", 1, 8, 0, QTYPE_F32, 0);
    tensor(&b, "second", 2, d0, d1, type, offset);
    put_padding(&b);
    for (int i = 0; i < 4096; i++) (void)buf_append(&b, "", 1);
    return b;
}

static int parse(const struct buf *b, struct errmsg *em)
{
    struct weights *g = NULL;
    em->text[0] = 0;
    int rc = weights_parse((const uint8_t *)b->data, b->len, b->len, &g, em);
    weights_close(g);
    return rc;
}

static void test_valid(void **state)
{
    (void)state;
    struct errmsg em;
    struct buf b = make(QTYPE_Q8_0, 64, 3, 32);
    struct weights *g;
    assert_int_equal(weights_parse((const uint8_t *)b.data, b.len, b.len, &g, &em), 0);
    const struct weights_tensor *t = weights_tensor(g, "second");
    assert_int_equal(t->bytes, 2 * 34 * 3);
    assert_int_equal(t->offset, weights_header_bytes(g) + 32);
    const char *s;
    size_t n;
    assert_int_equal(meta_get_string(weights_meta(g), "general.architecture", &s, &n, &em), 0);
    assert_int_equal(n, 5);
    uint32_t v;
    assert_int_equal(meta_get_u32(weights_meta(g), "general.architecture", &v, &em), ERR_FORMAT);
    assert_int_equal(meta_get_u32(weights_meta(g), "nothing", &v, &em), ERR_NOTFOUND);
    weights_close(g);
    /* Cut anywhere: an error, and never a read beyond the bytes. */
    for (size_t cut = 0; cut < b.len - 4096 + 32 + 204; cut++) {
        uint8_t *exact = mem_alloc(cut);
        memcpy(exact, b.data, cut);
        g = NULL;
        int rc = weights_parse(exact, cut, cut, &g, &em);
        if (rc != ERR_FORMAT) fail_msg("cut at %zu: %d", cut, rc);
        mem_free(exact);
    }
    buf_close(&b);
}

static void refused(struct buf b, const char *what)
{
    struct errmsg em;
    int rc = parse(&b, &em);
    if (rc >= 0 || !strstr(em.text, what))
        fail_msg("%d '%s' does not name '%s'", rc, em.text, what);
    buf_close(&b);
}

static void test_refused(void **state)
{
    (void)state;
    refused(make(9999, 64, 3, 32), "9999");
    refused(make(4, 64, 3, 32), "second");
    refused(make(QTYPE_Q8_0, 48, 3, 32), "multiple of Q8_0's block 32");
    refused(make(QTYPE_Q8_0, 0, 3, 32), "dimension 0");
    refused(make(QTYPE_F32, UINT64_MAX, 3, 32), "dimension 0");
    refused(make(QTYPE_F32, 1ull << 62, 1ull << 62, 32), "overflows");
    refused(make(QTYPE_F32, 1ull << 62, 1, 32), "overflow");
    refused(make(QTYPE_F32, 64, 3, 33), "alignment");
    refused(make(QTYPE_F32, 64, 3, UINT64_MAX - 31), "missing");
    refused(make(QTYPE_F32, 64, 99, 32), "second");
    struct buf b = make(QTYPE_F32, 64, 3, 32);
    b.data[4] = 1;
    refused(b, "version 1");
    b = make(QTYPE_F32, 64, 3, 32);
    memcpy(b.data + 4, "\0\0\0\3", 4);
    refused(b, "big-endian");
    b = make(QTYPE_F32, 64, 3, 32);
    memset(b.data + 8, 0x20, 8);
    refused(b, "limits");
    b = make(QTYPE_F32, 64, 3, 32);
    memset(b.data + 24, 0xff, 8); /* the first key's length */
    refused(b, "byte 24");
}

/* Random damage gives a result or an error, and never a bad access (as ASan and UBSan show). */
static void test_damage(void **state)
{
    (void)state;
    struct rng rng = {2};
    struct buf good = make(QTYPE_Q4_1, 64, 3, 32);
    uint8_t *bytes = mem_alloc(good.len);
    for (int i = 0; i < 50000; i++) {
        struct errmsg em;
        struct weights *g = NULL;
        memcpy(bytes, good.data, good.len);
        for (uint64_t k = 1 + rng_below(&rng, 6); k > 0; k--)
            bytes[rng_below(&rng, 300)] = (uint8_t)rng_u64(&rng);
        int rc = weights_parse(bytes, good.len, good.len, &g, &em);
        if (rc == 0) {
            struct arch_dims d;
            assert_true(arch_read(g, &d, &em) < 0); /* it has no dimensions at all */
        }
        weights_close(g);
    }
    mem_free(bytes);
    buf_close(&good);
}

/* ---- what a model's metadata means ---- */

static const enum meta_type integers[] = {META_U8,  META_I8,  META_U16, META_I16,
                                          META_U32, META_I32, META_U64, META_I64};
static const enum meta_type floats[] = {META_F32, META_F64};

/* One key "k" alone. */
static struct weights *one_key(enum meta_type type, int64_t v)
{
    struct buf b = {0};
    struct weights *g;
    struct errmsg em;
    put_header(&b, 0, 1);
    put_number_key(&b, "k", type, v);
    if (weights_parse((const uint8_t *)b.data, b.len, b.len, &g, &em) < 0) fail_msg("%s", em.text);
    buf_close(&b);
    return g;
}

/* A value reads the same whichever type of integer the file has it in; one that does not fit is
 * refused. */
static void test_integers(void **state)
{
    (void)state;
    const int64_t values[] = {0, 1, 2, 100, 127};
    struct errmsg em;
    for (size_t t = 0; t < sizeof integers / sizeof integers[0]; t++)
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            struct weights *g = one_key(integers[t], values[i]);
            uint32_t u = 7;
            float f = 7;
            bool b = false;
            assert_int_equal(meta_get_u32(weights_meta(g), "k", &u, &em), 0);
            assert_int_equal(u, values[i]);
            assert_int_equal(meta_get_f32(weights_meta(g), "k", &f, &em), 0);
            assert_true(f == (float)values[i]);
            assert_int_equal(meta_get_bool(weights_meta(g), "k", &b, &em),
                             values[i] > 1 ? ERR_FORMAT : 0);
            assert_true(values[i] > 1 || b == (values[i] == 1));
            weights_close(g);
        }
    for (size_t t = 1; t < sizeof integers / sizeof integers[0]; t += 2) { /* the signed ones */
        struct weights *g = one_key(integers[t], -3);
        struct meta_int x;
        uint32_t u;
        float f;
        bool b;
        assert_true(meta_int_at(meta_find(weights_meta(g), "k"), 0, &x));
        assert_true(x.negative && (int64_t)x.value == -3);
        assert_int_equal(meta_get_u32(weights_meta(g), "k", &u, &em), ERR_FORMAT);
        assert_int_equal(meta_get_f32(weights_meta(g), "k", &f, &em), 0);
        assert_true(f == -3.0f);
        assert_int_equal(meta_get_bool(weights_meta(g), "k", &b, &em), ERR_FORMAT);
        assert_non_null(strstr(em.text, "'k'"));
        weights_close(g);
    }
    struct weights *g = one_key(META_U64, -1); /* the largest */
    struct meta_int x;
    uint32_t u;
    assert_true(meta_int_at(meta_find(weights_meta(g), "k"), 0, &x) && !x.negative &&
                x.value == UINT64_MAX);
    assert_int_equal(meta_get_u32(weights_meta(g), "k", &u, &em), ERR_FORMAT);
    weights_close(g);
    for (size_t t = 0; t < 2; t++) {
        g = one_key(floats[t], 5);
        float f;
        assert_int_equal(meta_get_f32(weights_meta(g), "k", &f, &em), 0);
        assert_true(f == 5.0f);
        assert_int_equal(meta_get_u32(weights_meta(g), "k", &u, &em), ERR_FORMAT);
        weights_close(g);
    }
}

static struct weights *open_tiny(const struct tiny_llama *t)
{
    struct buf b = {0};
    struct weights *g;
    struct errmsg em;
    tiny_llama_bytes(t, &b);
    if (weights_parse((const uint8_t *)b.data, b.len, b.len, &g, &em) < 0) fail_msg("%s", em.text);
    buf_close(&b);
    return g;
}

/* A layer beyond the count of the metadata would be left out, and the answer be another one. */
static void test_layers_beyond_the_count(void **state)
{
    (void)state;
    struct arch_dims d;
    struct errmsg em = {0};
    for (uint32_t count = 1; count <= 4; count++) {
        const struct tiny_llama t = {.layers = 3, .block_count = count, .seed = 1};
        struct weights *g = open_tiny(&t);
        int rc = arch_read(g, &d, &em);
        assert_int_equal(rc, count < 3 ? ERR_FORMAT : 0); /* 4: binding finds what is missing */
        char name[64];
        (void)snprintf(name, sizeof name, "tensor 'blk.%u.", count);
        if (count < 3 && (!strstr(em.text, name) || !strstr(em.text, "llama.block_count")))
            fail_msg("%s", em.text);
        weights_close(g);
    }
}

/* A name that is nearly a layer tensor's is refused. */
static void test_layer_names(void **state)
{
    (void)state;
    static const char *const names[] = {"blk.01.ffn_up.weight", "blk.+1.ffn_up.weight",
                                        "blk..ffn_up.weight", "blk.1x.ffn_up.weight",
                                        "blk.99999999999999999999.ffn_up.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct tiny_llama t = {.layers = 2, .seed = 1, .more = names[i]};
        struct weights *g = open_tiny(&t);
        struct arch_dims d;
        struct errmsg em = {0};
        assert_true(arch_read(g, &d, &em) < 0);
        if (!strstr(em.text, names[i])) fail_msg("%s: %s", names[i], em.text);
        weights_close(g);
    }
}

/* Keys of the architecture that are not read are counted and named; other keys are not. */
static void test_unread_keys(void **state)
{
    (void)state;
    struct buf keys = {0};
    struct errmsg em = {0};
    put_number_key(&keys, "llama.vocab_size", META_U32, TINY_VOCAB);
    put_number_key(&keys, "llama.expert_count", META_U32, 0);
    put_number_key(&keys, "llama.no_such_key", META_U32, 1);
    put_number_key(&keys, "llama.rope.new", META_U32, 1);
    put_number_key(&keys, "llama2.x", META_U32, 1);
    put_number_key(&keys, "general.x", META_U32, 1);
    const struct tiny_llama plain = {.layers = 1, .seed = 1},
                            t = {.layers = 1, .seed = 1, .keys = &keys, .n_keys = 6};
    struct weights *g = open_tiny(&plain);
    assert_int_equal(arch_unread(g, &em), 0);
    assert_string_equal(em.text, "");
    weights_close(g);
    g = open_tiny(&t);
    struct arch_dims d;
    assert_int_equal(arch_read(g, &d, &em), 0);
    assert_int_equal(arch_unread(g, &em), 2);
    assert_non_null(strstr(em.text, ": 'llama.no_such_key', 'llama.rope.new'"));
    weights_close(g);
    buf_close(&keys);
    for (int i = 0; i < 100; i++) { /* more than a text holds */
        char name[64];
        (void)snprintf(name, sizeof name, "llama.key_%d", i);
        put_number_key(&keys, name, META_U32, 1);
    }
    const struct tiny_llama many = {.layers = 1, .seed = 1, .keys = &keys, .n_keys = 100};
    g = open_tiny(&many);
    assert_int_equal(arch_unread(g, &em), 100);
    assert_non_null(strstr(em.text, "100 keys"));
    weights_close(g);
    buf_close(&keys);
}

static void refused_with(const struct buf *keys, uint32_t n, const char *what)
{
    const struct tiny_llama t = {.layers = 1, .seed = 1, .keys = keys, .n_keys = n};
    struct weights *g = open_tiny(&t);
    struct arch_dims d;
    struct errmsg em = {0};
    assert_int_equal(arch_read(g, &d, &em), ERR_FORMAT);
    if (!strstr(em.text, what)) fail_msg("'%s' does not name '%s'", em.text, what);
    weights_close(g);
}

/* YaRN divides by the logarithm of the base; a vocabulary has one size. */
static void test_contradictions(void **state)
{
    (void)state;
    struct buf keys = {0};
    put_number_key(&keys, "llama.rope.freq_base", META_U32, 1);
    put_number_key(&keys, "llama.rope.scaling.factor", META_U32, 4);
    put_number_key(&keys, "llama.rope.scaling.original_context_length", META_U32, 64);
    put_text_key(&keys, "llama.rope.scaling.type", "yarn");
    refused_with(&keys, 4, "'llama.rope.freq_base' is 1");
    buf_close(&keys);
    put_number_key(&keys, "llama.vocab_size", META_U32, TINY_VOCAB + 1);
    refused_with(&keys, 1, "llama.vocab_size");
    buf_close(&keys);
}

/* Names of a file's keys and tensors do not steer the terminal on which an error is shown. */
static void test_errors_are_clean(void **state)
{
    (void)state;
    static const char name[] = "\x1b[2J\xc2\x9b\x7f\n\xc3\xa9";
    const struct tiny_llama t = {.layers = 1, .seed = 1, .more = name};
    struct weights *g = open_tiny(&t);
    struct arch_dims d;
    struct errmsg em = {0};
    assert_true(arch_read(g, &d, &em) < 0);
    assert_non_null(strstr(em.text, "'?[2J????\xc3\xa9'"));
    (void)err_wrap(&em, ERR_FORMAT, "%s", "a\tb");
    assert_non_null(strstr(em.text, "a?b: "));
    weights_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_valid),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_damage),
                                       cmocka_unit_test(test_integers),
                                       cmocka_unit_test(test_layers_beyond_the_count),
                                       cmocka_unit_test(test_layer_names),
                                       cmocka_unit_test(test_unread_keys),
                                       cmocka_unit_test(test_contradictions),
                                       cmocka_unit_test(test_errors_are_clean)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
