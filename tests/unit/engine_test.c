/* The engine's door on a small random llama: what is out of range is refused and leaves no trace;
 * KV pages may be anywhere and be used again; the size of a page follows from heads and KV type. */
#include "common/engine/engine.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/ring.h"
#include "tests/lib/gguf_bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <cmocka.h>

#define LAYERS 2u
#define HIDDEN 96u /* not heads x head size, nor KV heads x head size */
#define HEADS 4u
#define KV_HEADS 2u
#define HEAD 64u
#define FFN 160u
#define VOCAB 48u
#define PAGES 8u
#define ROWS 16u

static char path[] = "/tmp/flotilla-engine-test-XXXXXX";
static struct gguf *gguf;
static struct rng rng = {5};

static void key(struct buf *b, const char *name, uint32_t value)
{
    str(b, name);
    u32(b, GGUF_U32);
    u32(b, value);
}

/* One tensor's entry, and its values behind those of the others. */
static void tensor(struct buf *table, struct buf *data, const char *name, uint32_t k, uint32_t rows)
{
    str(table, name);
    u32(table, rows ? 2 : 1);
    u64(table, k);
    if (rows) u64(table, rows);
    u32(table, QTYPE_F32);
    u64(table, data->len);
    for (uint32_t i = 0; i < k * (rows ? rows : 1); i++) {
        float f = (float)rng_below(&rng, 2001) / 1000.0f - 1.0f;
        if (!rows) f = 1.0f + f / 10.0f;
        (void)buf_append(data, &f, sizeof f);
    }
    static const char zero[32];
    (void)buf_append(data, zero, (32 - data->len % 32) % 32);
}

static int write_model(void **state)
{
    (void)state;
    static const char *const names[] = {"attn_norm",   "ffn_norm", "attn_q", "attn_k",  "attn_v",
                                        "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
    const uint32_t shapes[][2] = {{HIDDEN, 0},
                                  {HIDDEN, 0},
                                  {HIDDEN, HEADS * HEAD},
                                  {HIDDEN, KV_HEADS * HEAD},
                                  {HIDDEN, KV_HEADS * HEAD},
                                  {HEADS * HEAD, HIDDEN},
                                  {HIDDEN, FFN},
                                  {HIDDEN, FFN},
                                  {FFN, HIDDEN}};
    struct buf b = {0}, table = {0}, data = {0};
    tensor(&table, &data, "token_embd.weight", HIDDEN, VOCAB);
    tensor(&table, &data, "output_norm.weight", HIDDEN, 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (int i = 0; i < 9; i++) {
            char name[64];
            (void)snprintf(name, sizeof name, "blk.%u.%s.weight", l, names[i]);
            tensor(&table, &data, name, shapes[i][0], shapes[i][1]);
        }
    (void)buf_append(&b, "GGUF", 4);
    u32(&b, 3);
    u64(&b, 2 + 9 * LAYERS);
    u64(&b, 9);
    str(&b, "general.architecture");
    u32(&b, GGUF_STRING);
    str(&b, "llama");
    key(&b, "llama.context_length", 128);
    key(&b, "llama.embedding_length", HIDDEN);
    key(&b, "llama.block_count", LAYERS);
    key(&b, "llama.feed_forward_length", FFN);
    key(&b, "llama.attention.head_count", HEADS);
    key(&b, "llama.attention.head_count_kv", KV_HEADS);
    key(&b, "llama.attention.key_length", HEAD);
    key(&b, "llama.attention.value_length", HEAD);
    (void)buf_append(&b, table.data, table.len);
    static const char zero[32];
    (void)buf_append(&b, zero, (32 - b.len % 32) % 32);
    (void)buf_append(&b, data.data, data.len);
    struct errmsg em = {0};
    int fd = mkstemp(path);
    bool good = fd >= 0 && write(fd, b.data, b.len) == (ssize_t)b.len && close(fd) == 0 &&
                gguf_open(path, &gguf, &em) == 0;
    if (!good) (void)fprintf(stderr, "%s\n", em.text);
    buf_close(&b);
    buf_close(&table);
    buf_close(&data);
    return good ? 0 : -1;
}

static int remove_model(void **state)
{
    (void)state;
    gguf_close(gguf);
    return unlink(path);
}

static struct engine *open_slice(enum kv_type kv, uint32_t first, uint32_t last)
{
    struct errmsg em = {0};
    struct ring_file file = {.path = path};
    struct engine *e = NULL;
    struct eng_options o = {.path = path,
                            .gguf = gguf,
                            .layer_first = first,
                            .layer_last = last,
                            .kv = kv,
                            .n_pages = PAGES,
                            .rows_max = ROWS,
                            .logits_max = ROWS,
                            .threads = 2,
                            .read = ring_read,
                            .read_ctx = &file};
    if (eng_open(&o, &e, &em) < 0) fail_msg("%s", em.text);
    return e;
}

static const int32_t tokens[ROWS] = {1, 5, 9, 40, 47, 0, 3, 3, 17, 22, 8, 31, 2, 46, 12, 6};

/* The logits of `tokens` at positions first.., through `pages`. */
static void run(struct engine *e, uint32_t first, uint32_t n, const uint32_t *pages, float *ret)
{
    struct errmsg em = {0};
    const float *out;
    struct eng_run r = {first, n, n, tokens + first % ROWS, pages};
    if (eng_step(e, &r, 1, NULL, &out, &em) < 0) fail_msg("%s", em.text);
    for (uint32_t i = 0; i < n; i++)
        memcpy(ret + i * VOCAB, out + i * eng_logits_stride(e), VOCAB * sizeof *ret);
}

static void test_page_bytes(void **state)
{
    (void)state;
    struct arch_dims d;
    struct errmsg em;
    assert_int_equal(arch_read(gguf, &d, &em), 0);
    const double per_value[KV_N_TYPES] = {4, 2, 1.0625, 0.5625};
    for (int kv = 0; kv < KV_N_TYPES; kv++) {
        size_t bytes = eng_page_bytes(&d, (enum kv_type)kv, LAYERS);
        double want = per_value[kv] * LAYERS * 2 * KV_HEADS * HEAD * KV_PAGE; /* K and V */
        assert_true((double)bytes == want);
        assert_int_equal(eng_page_bytes(&d, (enum kv_type)kv, 1) % 64, 0);
        struct engine *e = open_slice((enum kv_type)kv, 0, LAYERS - 1);
        assert_int_equal(eng_stats(e).kv_bytes, bytes * PAGES);
        eng_close(e);
    }
    d.head_size = 40;
    assert_int_equal(eng_kv_check(&d, KV_F16, &em), 0);
    assert_int_equal(eng_kv_check(&d, KV_Q8_0, &em), ERR_UNSUPPORTED);
    assert_non_null(strstr(em.text, "q8_0"));
    assert_int_equal(eng_kv_check(&d, KV_Q4_0, &em), ERR_UNSUPPORTED);
}

/* Pages in any order, positions one by one or together, and pages that were used before. */
static void test_pages(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB], got[ROWS * VOCAB];
    const uint32_t straight[] = {0, 1}, others[] = {6, 2}, swapped[] = {1, 0};
    for (int kv = 0; kv < KV_N_TYPES; kv++) {
        struct engine *e = open_slice((enum kv_type)kv, 0, LAYERS - 1);
        run(e, 0, ROWS, straight, want);
        run(e, 0, ROWS, others, got);
        assert_memory_equal(got, want, sizeof want);
        run(e, 0, ROWS, swapped, got); /* both pages were written before */
        assert_memory_equal(got, want, sizeof want);
        for (uint32_t i = 0; i < ROWS; i++) run(e, i, 1, straight, got + i * VOCAB);
        assert_memory_equal(got, want, sizeof want);
        run(e, 7, 4, straight, got); /* rolled back: the same positions once more */
        assert_memory_equal(got, want + 7 * VOCAB, 4 * VOCAB * sizeof *got);
        eng_close(e);
    }
}

/* An error code, and nothing was written: what was there is read as before. */
static void test_out_of_range(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB], got[ROWS * VOCAB];
    const uint32_t pages[PAGES + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 0}, beyond[] = {0, PAGES};
    const int32_t foreign[] = {1, VOCAB}, below[] = {-1, 1};
    struct engine *e = open_slice(KV_Q8_0, 0, LAYERS - 1);
    run(e, 0, ROWS, pages, want);
    struct errmsg em;
    const float *out;
    const struct eng_run bad[] = {
        {15, 2, 1, tokens, beyond},                 /* no such page */
        {PAGES * KV_PAGE - 1, 2, 1, tokens, pages}, /* full */
        {UINT32_MAX, 2, 1, tokens, pages},          /* wraps */
        {8, 0, 0, tokens, pages},
        {8, ROWS + 1, 1, tokens, pages},
        {8, 2, 3, tokens, pages}, /* more logits than rows */
        {8, 2, 1, foreign, pages},
        {8, 2, 1, below, pages},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(eng_step(e, &bad[i], 1, NULL, &out, &em), ERR_RANGE);
        const struct eng_run two[] = {{8, 2, 1, tokens, pages},
                                      bad[i]}; /* all of a step or nothing */
        assert_int_equal(eng_step(e, two, 2, NULL, &out, &em), ERR_RANGE);
    }
    run(e, ROWS - 1, 1, pages, got);
    assert_memory_equal(got, want + (ROWS - 1) * VOCAB, VOCAB * sizeof *got);
    eng_close(e);
    e = open_slice(KV_F16, 1, 1);
    const struct eng_run no_input = {0, 1, 1, tokens, pages};
    assert_int_equal(eng_step(e, &no_input, 1, NULL, &out, &em), ERR_RANGE);
    eng_close(e);
    struct ring_file file = {.path = path};
    struct eng_options o = {.path = path,
                            .gguf = gguf,
                            .layer_first = 1,
                            .layer_last = LAYERS,
                            .n_pages = 1,
                            .rows_max = 1,
                            .logits_max = 1,
                            .threads = 1,
                            .read = ring_read,
                            .read_ctx = &file};
    assert_int_equal(eng_open(&o, &e, &em), ERR_RANGE);
}

/* Tables and weights are made when the engine is opened: also by a thread in which a library has
 * changed the rounding and turned denormals off. */
static void test_rounding(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB], got[ROWS * VOCAB];
    uint32_t pages[PAGES] = {0};
    struct engine *e = open_slice(KV_F16, 0, LAYERS - 1);
    run(e, 0, ROWS, pages, want);
    eng_close(e);
    _mm_setcsr(0x1F80 | 0x4000 | 0x8040); /* towards plus infinity, flush to zero */
    e = open_slice(KV_F16, 0, LAYERS - 1);
    assert_int_equal(_mm_getcsr() & 0xFFC0, 0x1F80);
    run(e, 0, ROWS, pages, got);
    eng_close(e);
    assert_memory_equal(got, want, sizeof want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_bytes),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_rounding),
    };
    return cmocka_run_group_tests(tests, write_model, remove_model);
}
