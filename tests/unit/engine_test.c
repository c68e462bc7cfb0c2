/* The engine's door on a small random llama: what is out of range is refused and leaves no trace;
 * KV pages may be anywhere and be used again; the size of a page follows from heads and KV type. */
#include "common/engine/engine.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/ring.h"
#include "tests/lib/tiny_llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LAYERS 2u
#define KV_HEADS TINY_KV_HEADS
#define HEAD TINY_HEAD
#define VOCAB TINY_VOCAB
#define PAGES 8u
#define ROWS 16u

static char path[] = "/tmp/flotilla-engine-test-XXXXXX";
static struct gguf *gguf;

static int write_model(void **state)
{
    (void)state;
    struct errmsg em = {0};
    const struct tiny_llama model = {.layers = LAYERS, .seed = 5};
    bool good = tiny_llama_write(&model, path) && gguf_open(path, &gguf, &em) == 0;
    if (!good) (void)fprintf(stderr, "%s\n", em.text);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_bytes),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_out_of_range),
    };
    return cmocka_run_group_tests(tests, write_model, remove_model);
}
