/* What a step does inside, on a small random llama: what a row sees, how pages are aligned, that
 * keys and values are written once, that each row is normalised and quantised once for all products
 * that read it, that more rows get logits than are held at once, and how durations are counted. */
#include "common/engine/stage.h"

#include "common/base/buf.h"
#include "common/base/fmath.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/prom.h"
#include "common/base/rng.h"
#include "tests/lib/tiny_engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LAYERS TINY_LAYERS
#define KV_HEADS TINY_KV_HEADS
#define HEAD TINY_HEAD
#define VOCAB TINY_VOCAB
#define PAGES TINY_PAGES
#define ROWS TINY_ROWS

/* The same shape with weights of F32 and of Q8_0. */
static char path[] = "/tmp/flotilla-step-test-XXXXXX";
static char path_q8[] = "/tmp/flotilla-step-test-XXXXXX";
static struct weights *model, *model_q8;
static struct rng rng = {5};

static bool write_file(char *to, enum qtype type, struct weights **ret)
{
    struct errmsg em = {0};
    const struct tiny_llama tiny = {.layers = LAYERS, .type = type, .seed = 5};
    bool good = tiny_llama_write(&tiny, to) && weights_open(to, ret, &em) == 0;
    if (!good) (void)fprintf(stderr, "%s\n", em.text);
    return good;
}

static int write_models(void **state)
{
    (void)state;
    return write_file(path, QTYPE_F32, &model) && write_file(path_q8, QTYPE_Q8_0, &model_q8) ? 0
                                                                                             : -1;
}

static int remove_models(void **state)
{
    (void)state;
    weights_close(model);
    weights_close(model_q8);
    return unlink(path) + unlink(path_q8);
}

/* A vocabulary of whose logits the engine holds a few rows only. */
#define LARGE_VOCAB (1u << 18)
#define LARGE_ROWS 40u
#define LARGE_GROUP 16u

static struct engine *open_large(const struct weights *w, uint32_t logits_max)
{
    struct errmsg em = {0};
    struct ring_use use = {0};
    struct engine *e = NULL;
    const struct eng_options o = {.weights = w,
                                  .layer_last = 0,
                                  .kv = KV_F16,
                                  .n_pages = PAGES,
                                  .rows_max = LARGE_ROWS,
                                  .logits_max = logits_max,
                                  .threads = 2,
                                  .read = ring_read,
                                  .read_ctx = &use};
    if (eng_open(&o, &e, &em) < 0) fail_msg("%s", em.text);
    return e;
}

/* Hashes of the logits of positions 0..LARGE_ROWS-1, asked for in ascending order. */
static void hash_logits(struct engine *e, uint64_t *ret)
{
    for (uint32_t i = 0; i < LARGE_ROWS; i++)
        ret[i] = hash_bytes(eng_logits(e, i), LARGE_VOCAB * sizeof(float), 0);
}

/* Rows beyond those whose logits the engine holds at once get theirs in the same step: to the bit
 * those of steps of one row, in any order, beside hidden rows, which stay, and of less memory. */
static void test_logits_in_groups(void **state)
{
    (void)state;
    char name[] = "/tmp/flotilla-step-test-XXXXXX";
    struct errmsg em = {0};
    struct weights *w;
    struct arch_dims d;
    const struct tiny_llama tiny = {
        .layers = 1, .vocab = LARGE_VOCAB, .type = QTYPE_Q8_0, .seed = 7};
    const uint32_t pages[PAGES] = {3, 0, 2, 1, 4, 5, 6, 7}, other[] = {7};
    static const uint32_t order[] = {39, 0, 15, 16, 17, 31, 32, 3, 38};
    int32_t tokens[LARGE_ROWS];
    uint64_t want[LARGE_ROWS], got[LARGE_ROWS];
    float hidden[4 * TINY_HIDDEN];
    const float *out;
    if (!tiny_llama_write(&tiny, name) || weights_open(name, &w, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(arch_read(w, &d, &em), 0);
    assert_int_equal(eng_sizes(&d, LARGE_ROWS, LARGE_ROWS, 256).logits_bytes, LOGITS_BYTES);
    assert_int_equal(eng_sizes(&d, LARGE_ROWS, 3, 256).logits_bytes,
                     (size_t)3 * LARGE_VOCAB * sizeof(float));
    for (uint32_t i = 0; i < LARGE_ROWS; i++) tokens[i] = (int32_t)(i * 6551u % LARGE_VOCAB);
    struct engine *one = open_large(w, 1), *e = open_large(w, LARGE_ROWS);
    assert_int_equal(one->logits_rows, 1);
    assert_int_equal(e->logits_rows, LARGE_GROUP);
    for (uint32_t i = 0; i < LARGE_ROWS; i++) {
        struct eng_run r = {i, 1, 1, tokens + i, .pages = pages};
        if (eng_step(one, &r, 1, NULL, &out, &em) < 0) fail_msg("%s", em.text);
        want[i] = hash_bytes(out, LARGE_VOCAB * sizeof *out, 0);
    }
    struct eng_run all = {0, LARGE_ROWS, LARGE_ROWS, tokens, .pages = pages};
    if (eng_step(e, &all, 1, NULL, &out, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(hash_bytes(out, LARGE_VOCAB * sizeof *out, 0), want[0]);
    hash_logits(e, got);
    assert_memory_equal(got, want, sizeof want);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        assert_int_equal(hash_bytes(eng_logits(e, order[i]), LARGE_VOCAB * sizeof *out, 0),
                         want[order[i]]);
    struct eng_run few = {0, 4, ENG_HIDDEN, tokens, .pages = other};
    if (eng_step(e, &few, 1, NULL, &out, &em) < 0) fail_msg("%s", em.text);
    memcpy(hidden, eng_hidden(e), sizeof hidden);
    const struct eng_run both[] = {{0, 4, ENG_HIDDEN, tokens, .pages = other},
                                   {4, LARGE_ROWS - 4, 30, tokens + 4, .pages = pages}};
    if (eng_step(e, both, 2, NULL, &out, &em) < 0) fail_msg("%s", em.text);
    for (uint32_t i = 0; i < 30; i++)
        assert_int_equal(hash_bytes(eng_logits(e, i), LARGE_VOCAB * sizeof *out, 0), want[10 + i]);
    assert_memory_equal(eng_hidden(e), hidden, sizeof hidden);
    eng_close(one);
    eng_close(e);
    weights_close(w);
    assert_int_equal(unlink(name), 0);
}

static struct engine *open_all(bool q8, enum kv_type kv, unsigned threads)
{
    return tiny_open(q8 ? model_q8 : model, kv, 0, LAYERS - 1, threads);
}

/* What a row sees: all positions up to its own, or the last `window` of them. */
static void test_sight(void **state)
{
    (void)state;
    const uint32_t windows[] = {1, 7, 255, 256, 257, 512};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        for (uint32_t pos = 0; pos < 1200; pos++) {
            struct sight s = eng__sight(windows[i], pos), all = eng__sight(0, pos);
            assert_int_equal(s.end, pos + 1);
            assert_int_equal(s.end - s.first, pos + 1 < windows[i] ? pos + 1 : windows[i]);
            assert_int_equal(s.span, s.first / ATTN_SPAN);
            assert_int_equal(s.span + s.n_spans, pos / ATTN_SPAN + 1);
            assert_true(all.first == 0 && all.end == pos + 1 && all.span == 0);
        }
}

/* The pool, every page of a KV head in it and the values of that page begin at a multiple of 64
 * bytes, whatever the type and the size of heads; so do the rows of float values of 32 elements.
 * Nothing overlaps. */
static void test_alignment(void **state)
{
    (void)state;
    for (int kv = 0; kv < KV_N_TYPES; kv++) {
        for (uint32_t size = 32; size <= HEAD_SIZE_MAX; size += 32) {
            const struct arch_dims d = {.n_kv_heads = 3, .head_size = size};
            assert_int_equal(eng_page_bytes(&d, (enum kv_type)kv, 1) % (64 * 3), 0);
            assert_int_equal(eng_page_bytes(&d, (enum kv_type)kv, 1),
                             (size_t)3 * 2 * kv_half_bytes((enum kv_type)kv, size));
            assert_int_equal(kv_half_bytes((enum kv_type)kv, size) % 64, 0);
            assert_in_range(kv_half_bytes((enum kv_type)kv, size) -
                                KV_PAGE * kv_row_bytes((enum kv_type)kv, size),
                            0, kv > KV_F16 ? 32 : 0);
            if (kv <= KV_F16) assert_int_equal(kv_row_bytes((enum kv_type)kv, size) % 64, 0);
        }
        struct engine *e = open_all(false, (enum kv_type)kv, 2);
        size_t used = 0;
        const uint32_t pages[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
        const struct row row = {.pages = pages};
        uint32_t from;
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t p = 0; p < PAGES; p++)
                for (uint32_t h = 0; h < KV_HEADS; h++) {
                    struct kv_view v = eng__kv_view(e, l, h, &row, &from);
                    assert_int_equal(from, 0);
                    uint8_t *at = v.base + pages[p] * v.page_bytes;
                    assert_int_equal((uintptr_t)at % 64, 0);
                    assert_ptr_equal(at, e->pool_kv + used); /* [layer][page][kv head] */
                    used += 2 * kv_half_bytes((enum kv_type)kv, HEAD);
                }
        assert_int_equal(used, eng_stats(e).kv_bytes);
        eng_close(e);
    }
}

/* A page's bytes after positions 0..n-1, written in steps of `chunk` rows. */
static void written(enum kv_type kv, uint32_t chunk, uint8_t *ret, size_t n_bytes)
{
    static float logits[ROWS * VOCAB];
    const uint32_t pages[] = {3};
    struct engine *e = open_all(false, kv, 2);
    for (uint32_t at = 0; at < ROWS; at += chunk) tiny_run(e, at, chunk, pages, logits);
    assert_int_equal(e->page_bytes, n_bytes);
    memcpy(ret, e->pool_kv + 3 * e->page_bytes, n_bytes);
    eng_close(e);
}

/* Keys and values written one by one are, to the byte, those written at once: a position's are not
 * touched when others are written. */
static void test_written_once(void **state)
{
    (void)state;
    struct arch_dims d;
    struct errmsg em;
    assert_int_equal(arch_read(model, &d, &em), 0);
    for (int kv = 0; kv < KV_N_TYPES; kv++) {
        size_t n = eng_page_bytes(&d, (enum kv_type)kv, 1);
        uint8_t *at_once = mem_alloc(n), *single = mem_alloc(n), *pairs = mem_alloc(n);
        written((enum kv_type)kv, ROWS, at_once, n);
        written((enum kv_type)kv, 1, single, n);
        written((enum kv_type)kv, 2, pairs, n);
        assert_memory_equal(single, at_once, n);
        assert_memory_equal(pairs, at_once, n);
        mem_free(at_once);
        mem_free(single);
        mem_free(pairs);
    }
}

#define WINDOW 8u

/* A model with windowed layers, all of them; own: these have pages of their own. */
static struct engine *open_windowed(enum kv_type kv, bool own)
{
    struct engine *e = open_all(false, kv, 2);
    e->model.dims.blocks[0].window = WINDOW;
    if (!own) return e;
    e->n_window_pages = PAGES; /* as many as others: the pool is laid out like this already */
    e->window = WINDOW;
    return e;
}

/* Two pages that are written in turn do for a window of half a page, to the bit. */
static void test_windowed_pages(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB];
    const uint32_t pages[] = {1, 2, 3, 4}, turns[] = {6, 5, 6, 5};
    for (int kv = 0; kv < KV_N_TYPES; kv++) {
        struct engine *all = open_windowed((enum kv_type)kv, false);
        struct engine *own = open_windowed((enum kv_type)kv, true);
        struct errmsg em = {0};
        const float *out;
        for (uint32_t at = 0; at < 4 * KV_PAGE; at += KV_PAGE) {
            uint32_t first = eng__sight(WINDOW, at).first / KV_PAGE;
            struct eng_run r = {at, ROWS, ROWS, tiny_tokens, .pages = pages};
            r.window_first = first;
            r.window_pages = turns + first;
            tiny_run(all, at, ROWS, pages, want);
            if (eng_step(own, &r, 1, NULL, &out, &em) < 0) fail_msg("%s", em.text);
            for (uint32_t i = 0; i < ROWS; i++)
                assert_memory_equal(eng_logits(own, i), want + i * VOCAB, VOCAB * sizeof *want);
        }
        eng_close(all);
        eng_close(own);
    }
}

/* A table of windowed pages that does not reach back to what the first row sees, or names no page
 * of the pool, is refused; nothing is computed. */
static void test_windowed_table(void **state)
{
    (void)state;
    struct engine *e = open_windowed(KV_F16, true);
    const uint32_t pages[] = {1, 2}, beyond[] = {1, PAGES};
    struct errmsg em = {0};
    const float *out;
    struct eng_run r = {20, 1, 1, tiny_tokens, .pages = pages};
    assert_int_equal(eng_step(e, &r, 1, NULL, &out, &em), ERR_RANGE);
    assert_string_equal(em.text, "position 13 is seen, but has no page");
    r.window_pages = pages;
    r.window_first = 1; /* position 16 */
    assert_int_equal(eng_step(e, &r, 1, NULL, &out, &em), ERR_RANGE);
    r.first_pos = 22;
    assert_int_equal(eng_step(e, &r, 1, NULL, &out, &em), ERR_RANGE);
    r.first_pos = 23;
    assert_int_equal(eng_step(e, &r, 1, NULL, &out, &em), 0);
    r.window_first = 0;
    assert_int_equal(eng_step(e, &r, 1, NULL, &out, &em), 0);
    r.window_pages = beyond;
    assert_int_equal(eng_step(e, &r, 1, NULL, &out, &em), ERR_RANGE);
    assert_string_equal(em.text, "page 8 of 8");
    eng_close(e);
}

/* Spans are joined by the chains of the contract, to the sign of a zero. */
static void test_join(void **state)
{
    (void)state;
    static struct attn_part parts[4];
    for (uint32_t round = 0; round < 400; round++) {
        uint32_t n = 1 + round % 4;
        float max = -INFINITY, sum = 0.0f, got[HEAD];
        for (uint32_t i = 0; i < n; i++) {
            parts[i].max = (float)rng_below(&rng, 5) * 20.0f;
            parts[i].sum = 1.0f + (float)rng_below(&rng, 100);
            for (uint32_t j = 0; j < HEAD; j++) {
                parts[i].out[j] =
                    ((float)rng_below(&rng, 2001) - 1000.0f) * (j % 3 ? 0.01f : 1e-41f);
                if (j % 5 == 0) parts[i].out[j] = -0.0f;
            }
            if (parts[i].max > max) max = parts[i].max;
        }
        kern_attn_join(parts, 1, n, HEAD, got);
        for (uint32_t i = 0; i < n; i++) sum = fmaf(fm_exp(parts[i].max - max), parts[i].sum, sum);
        for (uint32_t j = 0; j < HEAD; j++) {
            float o = 0.0f;
            for (uint32_t i = 0; i < n; i++)
                o = fmaf(fm_exp(parts[i].max - max), parts[i].out[j], o);
            assert_int_equal(fm_bits(got[j]), fm_bits(o * (1.0f / sum)));
        }
    }
}

static const struct kern *counted;
static _Atomic unsigned n_norms, n_quantised; /* rows; blocks of 32 */

static void count_rmsnorm(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    n_norms++;
    counted->rmsnorm(x, w, y, n, eps);
}

static void count_quantise(const float *x, struct act *a, uint32_t token)
{
    n_quantised += a->k / ACT_BLOCK;
    counted->quantise(x, a, token);
}

/* However many threads and panels read it, one of many rows is normalised once and quantised once
 * for all products that read it: counted in a step of the engine, whose threads give the bits of
 * one. Where rows are few, each thread does so once, but for what threads quantise of the
 * feed-forward as they compute it. */
static void test_each_row_once(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB], got[ROWS * VOCAB];
    const uint32_t pages[] = {1};
    const uint32_t hidden = TINY_HIDDEN / ACT_BLOCK, ffn = TINY_FFN / ACT_BLOCK,
                   att = TINY_HEADS * HEAD / ACT_BLOCK;
    for (unsigned threads = 1; threads <= 4; threads++)
        for (int q8 = 0; q8 < 2; q8++) {
            struct engine *e = open_all(q8, KV_F16, threads);
            struct kern counting = *e->kern;
            counted = e->kern;
            counting.rmsnorm = count_rmsnorm;
            counting.quantise = count_quantise;
            e->kern = &counting;
            n_norms = n_quantised = 0;
            tiny_run(e, 0, ROWS, pages, got);
            /* Two norms a layer, and one before the head. Products read, in each layer, attention's
             * norm, attention, the FFN's norm and the gate; and the head reads its norm. */
            assert_int_equal(n_norms, ROWS * (2 * LAYERS + 1));
            unsigned each = (2 * hidden + att) * LAYERS + hidden;
            assert_int_equal(n_quantised, q8 ? ROWS * (each + ffn * LAYERS) : 0);
            n_norms = n_quantised = 0;
            tiny_run(e, 0, LOCAL_ROWS, pages, got);
            assert_int_equal(n_norms, threads * LOCAL_ROWS * (2 * LAYERS + 1));
            assert_int_equal(n_quantised, q8 ? LOCAL_ROWS * (threads * each + ffn * LAYERS) : 0);
            e->kern = counted;
            tiny_run(e, 0, ROWS, pages, got);
            eng_close(e);
            struct engine *one = open_all(q8, KV_F16, 1);
            tiny_run(one, 0, ROWS, pages, want);
            assert_memory_equal(got, want, sizeof want);
            eng_close(one);
        }
}

/* Steps of few rows, whose threads do much for themselves, and of many: the same bits, on any
 * number of threads, also where others split attention by spans and where the model adds norms
 * behind its projections. */
static void test_few_rows(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB], got[ROWS * VOCAB], norm[TINY_HIDDEN];
    static const uint32_t chunks[] = {1, 2, 3, 5, LOCAL_ROWS, LOCAL_ROWS + 1, ROWS};
    const uint32_t pages[] = {1};
    for (uint32_t i = 0; i < TINY_HIDDEN; i++) norm[i] = 0.5f + (float)i / TINY_HIDDEN;
    for (int kv = 0; kv < KV_N_TYPES; kv++)
        for (int q8 = 0; q8 < 2; q8++)
            for (int post = 0; post < 2; post++) {
                for (unsigned threads = 1; threads <= 4; threads++) {
                    struct engine *e = open_all(q8, (enum kv_type)kv, threads);
                    for (uint32_t l = 0; l < LAYERS && post; l++)
                        e->model.layers[l].vecs[VEC_ATTN_POST_NORM] =
                            e->model.layers[l].vecs[VEC_FFN_POST_NORM] = norm;
                    if (threads == 1) tiny_run(e, 0, ROWS, pages, want);
                    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
                        for (uint32_t at = 0, n; at < ROWS; at += n) {
                            n = ROWS - at < chunks[c] ? ROWS - at : chunks[c];
                            tiny_run(e, at, n, pages, got + at * VOCAB);
                        }
                        if (memcmp(got, want, sizeof want) != 0)
                            fail_msg("KV type %d, %u threads, steps of %u rows", kv, threads,
                                     chunks[c]);
                    }
                    eng_close(e);
                }
            }
}

/* Heads that share a panel with their neighbours, and threads that project parts of one head: who
 * finishes a head does not show. Heads are taken apart otherwise than the file has them, which is
 * as good as any model. */
static void test_heads_of_any_size(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB], got[ROWS * VOCAB];
    static const uint32_t sizes[] = {HEAD, 40, 28, 16, 8}; /* buffers are as large as HEAD needs */
    const uint32_t pages[] = {1};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (unsigned threads = 1; threads <= 4; threads++) {
            struct engine *e = open_all(false, KV_F16, threads);
            struct arch_dims *d = &e->model.dims;
            d->head_size = sizes[s];
            d->rope_dims = sizes[s];
            e->ld_q = (TINY_HEADS * sizes[s] + 15) / 16 * 16;
            e->ld_kv = (KV_HEADS * sizes[s] + 15) / 16 * 16;
            for (uint32_t l = 0; l < LAYERS; l++) {
                e->model.layers[l].mats[MAT_Q].rows = TINY_HEADS * sizes[s];
                e->model.layers[l].mats[MAT_K].rows = KV_HEADS * sizes[s];
                e->model.layers[l].mats[MAT_V].rows = KV_HEADS * sizes[s];
                e->model.layers[l].mats[MAT_O].k = TINY_HEADS * sizes[s];
            }
            e->page_bytes = eng_page_bytes(d, KV_F16, 1);
            e->head_bytes = e->page_bytes / KV_HEADS;
            tiny_run(e, 0, ROWS, pages, threads == 1 ? want : got);
            if (threads > 1) assert_memory_equal(got, want, sizeof want);
            for (uint32_t at = 0; at < ROWS; at += 2) tiny_run(e, at, 2, pages, got + at * VOCAB);
            assert_memory_equal(got, want, sizeof want);
            eng_close(e);
        }
        for (uint32_t i = 0; i < ROWS * VOCAB; i++) assert_true(isfinite(want[i]));
    }
}

/* The logits of positions 0..LONG-1 in steps of `chunk` rows, with a window (0: none). parts: room
 * for so many partial results of attention, or as many as the engine has (0). */
#define LONG 600u
static void run_long(unsigned threads, uint32_t chunk, uint32_t window, size_t parts, float *ret)
{
    struct errmsg em = {0};
    struct ring_use use = {0};
    struct engine *e = NULL;
    const float *out;
    uint32_t pages[LONG / KV_PAGE + 1];
    int32_t tokens[LONG];
    struct eng_options o = {.weights = model,
                            .layer_last = LAYERS - 1,
                            .kv = KV_F16,
                            .n_pages = LONG / KV_PAGE + 1,
                            .rows_max = 64,
                            .logits_max = 64,
                            .threads = threads,
                            .read = ring_read,
                            .read_ctx = &use};
    for (uint32_t i = 0; i < o.n_pages; i++) pages[i] = (i * 7 + 3) % o.n_pages;
    for (uint32_t i = 0; i < LONG; i++) tokens[i] = tiny_tokens[(i * 5 + i / 16) % ROWS];
    if (eng_open(&o, &e, &em) < 0) fail_msg("%s", em.text);
    for (uint32_t b = 0; b < e->model.dims.n_blocks; b++) e->model.dims.blocks[b].window = window;
    if (parts) e->n_parts = parts;
    for (uint32_t at = 0, n; at < LONG; at += n, ret += n * VOCAB) {
        n = LONG - at < chunk ? LONG - at : chunk;
        struct eng_run r = {at, n, n, tokens + at, .pages = pages};
        if (eng_step(e, &r, 1, NULL, &out, &em) < 0) fail_msg("%s", em.text);
        for (uint32_t i = 0; i < n; i++)
            memcpy(ret + i * VOCAB, eng_logits(e, i), VOCAB * sizeof *ret);
    }
    eng_close(e);
}

/* Rows attend in blocks, over spans that not all of them see: each as if it were alone, however
 * many threads and however much room there are. */
static void test_blocks_of_rows(void **state)
{
    (void)state;
    static float want[LONG * VOCAB], got[LONG * VOCAB];
    static const uint32_t windows[] = {0, 7, 300}, chunks[] = {64, 37, 9, 5, 2};
    for (int w = 0; w < 3; w++) {
        run_long(1, 1, windows[w], 0, want);
        for (unsigned threads = 1; threads <= 3; threads++)
            for (int c = 0; c < 5; c++) {
                size_t few = c == 2 ? 3 * 2 * 5 : 0; /* spans, heads of a KV head, rows */
                run_long(threads, chunks[c], windows[w], few, got);
                for (uint32_t i = 0; i < LONG; i++)
                    if (memcmp(got + i * VOCAB, want + i * VOCAB, VOCAB * sizeof *got) != 0)
                        fail_msg("window %u, %u threads, chunks of %u: row %u", windows[w], threads,
                                 chunks[c], i);
            }
    }
}

/* What a thread does in a phase is counted once. */
static void test_dispatch(void **state)
{
    (void)state;
    static float logits[ROWS * VOCAB];
    const uint32_t pages[] = {1};
    struct engine *e = open_all(true, KV_F32, 1);
    const unsigned
        steps = 5,
        want[ENG_N_OPS] = {
            [ENG_LINEAR] = 4 * LAYERS + 1, [ENG_ATTENTION] = LAYERS,    [ENG_NORM] = 2 * LAYERS + 1,
            [ENG_ROTATE] = LAYERS,         [ENG_QUANTISE] = 2 * LAYERS, [ENG_GATE] = LAYERS};
    for (unsigned i = 0; i < steps; i++) tiny_run(e, i, 1, pages, logits);
    for (int op = 0; op < ENG_N_OPS; op++) {
        struct stats_view v;
        eng_dispatch(e, (enum eng_op)op, &v);
        assert_int_equal(v.count, steps * want[op]);
        assert_true(v.sum_ns > 0 && v.min_ns <= v.max_ns && v.sum_ns <= v.count * v.max_ns);
    }
    eng_close(e);
}

/* Which way a few rows take is chosen for each type that the slice multiplies with, and only where
 * the level has two ways. */
static void test_few_is_chosen(void **state)
{
    (void)state;
    struct engine *e = open_all(true, KV_F32, 1);
    uint32_t few = eng_few(e, QTYPE_Q8_0);
    if (strcmp(eng_isa(e), "scalar") == 0)
        assert_int_equal(few, 1);
    else
        assert_in_range(few, 1, KERN_FEW_MAX);
    assert_int_equal(eng_few(e, QTYPE_Q4_K), 0);
    assert_int_equal(eng_few(e, QTYPE_F32), 0);
    eng_close(e);
}

/* Products are those of the quantised matrices: here of every one, or of none. */
static void test_products(void **state)
{
    (void)state;
    const uint64_t q = TINY_HEADS * TINY_HEAD, kv = TINY_KV_HEADS * TINY_HEAD;
    struct engine *e = open_all(true, KV_F32, 1);
    struct eng_products p = eng_products(e);
    assert_int_equal(p.layers, LAYERS * TINY_HIDDEN * (2 * q + 2 * kv + 3 * TINY_FFN));
    assert_int_equal(p.head, TINY_VOCAB * TINY_HIDDEN);
    eng_close(e);
    e = open_all(false, KV_F32, 1);
    p = eng_products(e);
    assert_int_equal(p.layers + p.head, 0);
    eng_close(e);
}

/* The histogram that is exported says of each bound how many durations do not exceed it. */
static void test_histogram(void **state)
{
    (void)state;
    enum { MANY = 20000 };
    static uint64_t ns[MANY];
    static struct stats s;
    struct stats_view v;
    struct buf text = {0};
    unsigned lines = 0;
    for (int i = 0; i < MANY; i++) {
        ns[i] = rng_u64(&rng) >> (20 + rng_below(&rng, 40));
        if (i % 5 == 0) ns[i] = (UINT64_C(1) << rng_below(&rng, 42)) + (uint64_t)(i % 3) - 1;
        stats_record(&s, ns[i]);
    }
    stats_read(&s, &v);
    prom_histogram(&text, "x_seconds", "", &v);
    const char *last = NULL;
    for (const char *p = text.data; (p = strstr(p, "le=\"")) != NULL; lines++) {
        char *end;
        double bound = strncmp(p + 4, "+Inf", 4) ? round(strtod(p + 4, NULL) * 1e9) : INFINITY;
        uint64_t said = strtoull(strchr(p, '}') + 1, &end, 10), within = 0;
        for (int i = 0; i < MANY; i++) within += (double)ns[i] <= bound;
        assert_int_equal(said, within);
        last = p;
        p = end;
    }
    assert_true(lines > 20);
    assert_int_equal(strncmp(last, "le=\"+Inf\"", 9), 0);
    const char *count = strstr(text.data, "x_seconds_count ");
    assert_non_null(count);
    assert_int_equal(strtoull(count + 16, NULL, 10), MANY);
    buf_close(&text);
}

/* Hidden rows are those from which logits follow, wherever a step has others; they come without
 * logits, and from the last slice only. */
static void test_hidden_rows(void **state)
{
    (void)state;
    static float want[ROWS * TINY_HIDDEN], logits[ROWS * VOCAB];
    const uint32_t pages[3][1] = {{0}, {1}, {2}};
    struct errmsg em = {0};
    const float *out;
    for (int q8 = 0; q8 < 2; q8++) {
        struct engine *e = open_all(q8, KV_F32, 2);
        struct eng_run all = {0, 8, ENG_HIDDEN, tiny_tokens, .pages = pages[0]};
        tiny_run(e, 0, 8, pages[1], logits); /* leaves its rows behind */
        if (eng_step(e, &all, 1, NULL, &out, &em) < 0) fail_msg("%s", em.text);
        memcpy(want, eng_hidden(e), sizeof(float) * 8 * TINY_HIDDEN);
        for (uint32_t i = 0; i < TINY_HIDDEN; i++) assert_true(isfinite(want[i]) && want[i] != 0);
        const struct eng_run runs[] = {{0, 1, 1, tiny_tokens, .pages = pages[1]},
                                       {0, 3, ENG_HIDDEN, tiny_tokens, .pages = pages[0]},
                                       {0, 4, 2, tiny_tokens, .pages = pages[2]},
                                       {3, 5, ENG_HIDDEN, tiny_tokens + 3, .pages = pages[0]}};
        if (eng_step(e, runs, 4, NULL, &out, &em) < 0) fail_msg("%s", em.text);
        assert_memory_equal(eng_hidden(e), want, sizeof(float) * 8 * TINY_HIDDEN);
        assert_memory_equal(out, logits, VOCAB * sizeof(float)); /* of position 0 */
        assert_memory_equal(eng_logits(e, 2), logits + 3 * VOCAB, VOCAB * sizeof(float));
        eng_close(e);
    }
    struct engine *first = tiny_open(model, KV_F32, 0, 0, 1);
    struct eng_run run = {0, 1, ENG_HIDDEN, tiny_tokens, .pages = pages[0]};
    assert_int_equal(eng_step(first, &run, 1, NULL, &out, &em), ERR_RANGE);
    eng_close(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hidden_rows),
        cmocka_unit_test(test_sight),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_written_once),
        cmocka_unit_test(test_each_row_once),
        cmocka_unit_test(test_dispatch),
        cmocka_unit_test(test_few_is_chosen),
        cmocka_unit_test(test_blocks_of_rows),
        cmocka_unit_test(test_windowed_pages),
        cmocka_unit_test(test_windowed_table),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_logits_in_groups),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_heads_of_any_size),
        cmocka_unit_test(test_products),
    };
    return cmocka_run_group_tests(tests, write_models, remove_models);
}
