/* The GGUF reader on files that are cut, overflow, or contradict themselves. */
#include "common/engine/arch.h"
#include "common/engine/gguf.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/gguf_bytes.h"

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

/* A header with two keys and two tensors; the second tensor is what the caller says. */
static struct buf make(uint32_t type, uint64_t d0, uint64_t d1, uint64_t offset)
{
    struct buf b = {0};
    (void)buf_append(&b, "GGUF", 4);
    u32(&b, 3);
    u64(&b, 2);
    u64(&b, 2);
    str(&b, "general.architecture");
    u32(&b, GGUF_STRING);
    str(&b, "llama");
    str(&b, "a.list");
    u32(&b, GGUF_ARRAY);
    u32(&b, GGUF_STRING);
    u64(&b, 2);
    str(&b, "x");
    str(&b, "yy");
    tensor(&b, "first", 1, 8, 0, QTYPE_F32, 0);
    tensor(&b, "second", 2, d0, d1, type, offset);
    while (b.len % 32) (void)buf_append(&b, "", 1);
    for (int i = 0; i < 4096; i++) (void)buf_append(&b, "", 1);
    return b;
}

static int parse(const struct buf *b, struct errmsg *em)
{
    struct gguf *g = NULL;
    em->text[0] = 0;
    int rc = gguf_parse((const uint8_t *)b->data, b->len, b->len, &g, em);
    gguf_close(g);
    return rc;
}

static void test_valid(void **state)
{
    (void)state;
    struct errmsg em;
    struct buf b = make(QTYPE_Q8_0, 64, 3, 32);
    struct gguf *g;
    assert_int_equal(gguf_parse((const uint8_t *)b.data, b.len, b.len, &g, &em), 0);
    const struct gguf_tensor *t = gguf_tensor(g, "second");
    assert_int_equal(t->bytes, 2 * 34 * 3);
    assert_int_equal(t->offset, gguf_header_bytes(g) + 32);
    const char *s;
    size_t n;
    assert_int_equal(gguf_get_string(g, "general.architecture", &s, &n, &em), 0);
    assert_int_equal(n, 5);
    uint32_t v;
    assert_int_equal(gguf_get_u32(g, "general.architecture", &v, &em), ERR_FORMAT);
    assert_int_equal(gguf_get_u32(g, "nothing", &v, &em), ERR_NOTFOUND);
    gguf_close(g);
    /* Cut anywhere: an error that says so, never a read beyond the bytes. */
    for (size_t cut = 0; cut < b.len - 4096 + 32 + 204; cut++) {
        uint8_t *exact = mem_alloc(cut);
        memcpy(exact, b.data, cut);
        g = NULL;
        int rc = gguf_parse(exact, cut, cut, &g, &em);
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

/* Random damage never leads anywhere but to a result or an error (run under ASan and UBSan). */
static void test_damage(void **state)
{
    (void)state;
    struct rng rng = {2};
    struct buf good = make(QTYPE_Q4_1, 64, 3, 32);
    uint8_t *bytes = mem_alloc(good.len);
    for (int i = 0; i < 50000; i++) {
        struct errmsg em;
        struct gguf *g = NULL;
        memcpy(bytes, good.data, good.len);
        for (uint64_t k = 1 + rng_below(&rng, 6); k > 0; k--)
            bytes[rng_below(&rng, 300)] = (uint8_t)rng_u64(&rng);
        int rc = gguf_parse(bytes, good.len, good.len, &g, &em);
        if (rc == 0) {
            struct arch_dims d;
            assert_true(arch_read(g, &d, &em) < 0); /* it has no dimensions at all */
        }
        gguf_close(g);
    }
    mem_free(bytes);
    buf_close(&good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_valid), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_damage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
