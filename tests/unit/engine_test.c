/* The engine's interface on a small random llama: what is out of range is refused and leaves no
 * trace; KV pages may be anywhere and be used again; the size of a page follows from heads and KV
 * type; what does not fit the memory is refused before anything is read. */
#include "common/engine/stage.h"

#include "common/base/buf.h"
#include "common/base/insn.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "coordinator/setup.h"
#include "tests/lib/tiny_engine.h"

#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
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
#define HEADS_A_KV_HEAD (TINY_HEADS / TINY_KV_HEADS)

/* The largest allocation since it was set to 0; linked with --wrap. */
static size_t largest_alloc;

void *__real_mem_try(size_t bytes);
void *__wrap_mem_try(size_t bytes);

void *__wrap_mem_try(size_t bytes)
{
    if (bytes > largest_alloc) largest_alloc = bytes;
    return __real_mem_try(bytes);
}

static char path[] = "/tmp/flotilla-engine-test-XXXXXX";
static struct weights *model;

static int write_model(void **state)
{
    (void)state;
    struct errmsg em = {0};
    const struct tiny_llama tiny = {.layers = LAYERS, .seed = 5};
    bool good = tiny_llama_write(&tiny, path) && weights_open(path, &model, &em) == 0;
    if (!good) (void)fprintf(stderr, "%s\n", em.text);
    return good ? 0 : -1;
}

static int remove_model(void **state)
{
    (void)state;
    weights_close(model);
    return unlink(path);
}

static struct engine *open_slice(enum kv_type kv, uint32_t first, uint32_t last)
{
    return tiny_open(model, kv, first, last, 2);
}

static void test_page_bytes(void **state)
{
    (void)state;
    struct arch_dims d;
    struct errmsg em;
    assert_int_equal(arch_read(model, &d, &em), 0);
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
        tiny_run(e, 0, ROWS, straight, want);
        tiny_run(e, 0, ROWS, others, got);
        assert_memory_equal(got, want, sizeof want);
        tiny_run(e, 0, ROWS, swapped, got); /* both pages were written before */
        assert_memory_equal(got, want, sizeof want);
        for (uint32_t i = 0; i < ROWS; i++) tiny_run(e, i, 1, straight, got + i * VOCAB);
        assert_memory_equal(got, want, sizeof want);
        tiny_run(e, 7, 4, straight, got); /* rolled back: the same positions once more */
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
    tiny_run(e, 0, ROWS, pages, want);
    struct errmsg em;
    const float *out;
    const struct eng_run bad[] = {
        {15, 2, 1, tiny_tokens, .pages = beyond},                 /* no such page */
        {PAGES * KV_PAGE - 1, 2, 1, tiny_tokens, .pages = pages}, /* full */
        {UINT32_MAX, 2, 1, tiny_tokens, .pages = pages},          /* wraps */
        {8, 0, 0, tiny_tokens, .pages = pages},
        {8, ROWS + 1, 1, tiny_tokens, .pages = pages},
        {8, 2, 3, tiny_tokens, .pages = pages}, /* more logits than rows */
        {8, 2, 1, foreign, .pages = pages},
        {8, 2, 1, below, .pages = pages},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(eng_step(e, &bad[i], 1, NULL, &out, &em), ERR_RANGE);
        const struct eng_run two[] = {{8, 2, 1, tiny_tokens, .pages = pages},
                                      bad[i]}; /* all of a step or nothing */
        assert_int_equal(eng_step(e, two, 2, NULL, &out, &em), ERR_RANGE);
    }
    tiny_run(e, ROWS - 1, 1, pages, got);
    assert_memory_equal(got, want + (ROWS - 1) * VOCAB, VOCAB * sizeof *got);
    eng_close(e);
    e = open_slice(KV_F16, 1, 1);
    const struct eng_run no_input = {0, 1, 1, tiny_tokens, .pages = pages};
    assert_int_equal(eng_step(e, &no_input, 1, NULL, &out, &em), ERR_RANGE);
    eng_close(e);
    struct ring_use use = {0};
    struct eng_options o = {.weights = model,
                            .layer_first = 1,
                            .layer_last = LAYERS,
                            .n_pages = 1,
                            .rows_max = 1,
                            .logits_max = 1,
                            .threads = 1,
                            .read = ring_read,
                            .read_ctx = &use};
    assert_int_equal(eng_open(&o, &e, &em), ERR_RANGE);
    o.layer_last = 1;
    o.n_window_pages = 2;
    assert_int_equal(eng_open(&o, &e, &em), ERR_RANGE);
    assert_string_equal(em.text, "2 windowed pages of 1");
}

/* The last page of a table counts although it is not full. */
static void test_last_page(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB], got[ROWS * VOCAB];
    const uint32_t good[] = {0, 1}, partial[] = {0, PAGES}, huge[] = {UINT32_MAX};
    const float *out;
    struct errmsg em;
    struct engine *e = open_slice(KV_F16, 0, LAYERS - 1);
    tiny_run(e, 0, ROWS, good, want);
    for (uint32_t n = 1; n < KV_PAGE; n++) {
        const struct eng_run r = {KV_PAGE, n, 1, tiny_tokens, .pages = partial},
                             first = {0, n, 1, tiny_tokens, .pages = huge};
        assert_int_equal(eng_step(e, &r, 1, NULL, &out, &em), ERR_RANGE);
        assert_non_null(strstr(em.text, "page 8 of 8"));
        assert_int_equal(eng_step(e, &first, 1, NULL, &out, &em), ERR_RANGE);
    }
    tiny_run(e, 0, ROWS, good, got);
    assert_memory_equal(got, want, sizeof want);
    eng_close(e);
}

/* The memory for attention's partial results follows the context of one sequence, not the pool; and
 * a position beyond the context is refused. */
static void test_context(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct ring_use use = {0};
    struct eng_options o = {.weights = model,
                            .layer_first = 0,
                            .layer_last = 0,
                            .kv = KV_Q4_0,
                            .n_pages = 8192,
                            .rows_max = 1,
                            .logits_max = 1,
                            .threads = 4,
                            .read = ring_read,
                            .read_ctx = &use};
    size_t largest[2];
    for (int i = 0; i < 2; i++) {
        struct engine *e = NULL;
        o.ctx = i ? 4096 : 0;
        largest_alloc = 0;
        if (eng_open(&o, &e, &em) < 0) fail_msg("%s", em.text);
        largest[i] = largest_alloc;
        uint32_t *pages = mem_zalloc(o.n_pages * sizeof *pages);
        const float *out;
        struct eng_run within = {4095, 1, 0, tiny_tokens, .pages = pages},
                       beyond = {4096, 1, 0, tiny_tokens, .pages = pages};
        assert_int_equal(eng_step(e, &within, 1, NULL, &out, &em), 0);
        assert_int_equal(eng_step(e, &beyond, 1, NULL, &out, &em), i ? ERR_RANGE : 0);
        mem_free(pages);
        eng_close(e);
    }
    assert_true(largest[0] > ((size_t)4 << 20) && largest[1] < ((size_t)2 << 20));
    /* 64 threads and a million positions: bounded. */
    o.ctx = 0;
    o.threads = 64;
    o.n_pages = 65536;
    assert_true(eng__parts(&(struct arch_dims){.n_heads = 64, .n_kv_heads = 8}, 1u << 20, 64) *
                    sizeof(struct attn_part) <=
                (size_t)256 << 20);
}

/* Threads that find no room for partial results leave the rows to the others: the same bits. */
static void test_few_parts(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB], got[ROWS * VOCAB];
    const uint32_t pages[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct engine *e = open_slice(KV_F16, 0, LAYERS - 1); /* two threads; 16 rows are not split */
    tiny_run(e, 0, ROWS, pages, want);
    size_t beyond = (e->n_parts - HEADS_A_KV_HEAD) * sizeof *e->parts;
    e->n_parts = HEADS_A_KV_HEAD; /* of one thread, one span */
    uint8_t *rest = (uint8_t *)(e->parts + e->n_parts);
    memset(rest, 0x5a, beyond);
    tiny_run(e, 0, ROWS, pages, got);
    assert_memory_equal(got, want, sizeof want);
    for (size_t i = 0; i < beyond; i++) assert_int_equal(rest[i], 0x5a);
    eng_close(e);
}

/* YaRN by its definition, in libm: the ramp from floor to ceil, and the file's factor of the
 * magnitude. */
static void test_yarn(void **state)
{
    (void)state;
    const double pi2 = 6.283185307179586;
    for (uint32_t n = 16; n <= 128; n += 16)
        for (int k = 0; k < 20; k++) {
            struct rope_params p = {.scaling = ROPE_YARN,
                                    .base = (float)(10000 * (1 + k)),
                                    .factor = (float)(1 + k),
                                    .ctx_orig = (float)(512 << (k % 6)),
                                    .attn_factor = 0.5f + (float)k / 8.0f,
                                    .beta_fast = 32,
                                    .beta_slow = 1};
            double inv[64], magnitude, base = (double)p.base;
            rope_frequencies(&p, n, NULL, inv, &magnitude);
            double want = (double)p.attn_factor * (1 + 0.1 * log((double)p.factor));
            assert_true(fabs(magnitude - want) < 1e-12);
            double fast = n * log((double)p.ctx_orig / (32 * pi2)) / (2 * log(base));
            double slow = n * log((double)p.ctx_orig / pi2) / (2 * log(base));
            double lo = fmax(floor(fast), 0), hi = fmin(ceil(slow), n - 1.0);
            for (uint32_t i = 0; i < n / 2; i++) {
                double ramp = fmin(fmax((i - lo) / fmax(hi - lo, 0.001), 0), 1);
                double f = pow(base, -2.0 * i / n);
                double right = f / (double)p.factor * ramp + f * (1 - ramp);
                if (fabs(inv[i] - right) > 1e-12 * right)
                    fail_msg("n %u, case %d, pair %u: %.17g is not %.17g", n, k, i, inv[i], right);
            }
        }
}

/* ---- memory ---- */

struct watched {
    struct ring_use use;
    uint32_t n_reads;
    uint64_t done, total, cancel_at; /* of the progress; a load is cancelled there */
};

static int count_reads(void *ctx, const char *file, const struct extent *extents, size_t n,
                       source_sink_fn sink, void *arg, struct errmsg *em)
{
    struct watched *w = ctx;
    w->n_reads++;
    return ring_read(&w->use, file, extents, n, sink, arg, em);
}

static bool note_progress(void *arg, uint64_t done, uint64_t total)
{
    struct watched *w = arg;
    assert_true(done >= w->done && done <= total && (w->total == 0 || w->total == total));
    w->done = done;
    w->total = total;
    return w->cancel_at == 0 || done < w->cancel_at;
}

static struct eng_options watched_options(struct watched *w, uint32_t n_pages, uint64_t room_bytes)
{
    *w = (struct watched){0};
    return (struct eng_options){.weights = model,
                                .layer_last = LAYERS - 1,
                                .kv = KV_F32,
                                .n_pages = n_pages,
                                .rows_max = ROWS,
                                .logits_max = ROWS,
                                .threads = 2,
                                .room_bytes = room_bytes,
                                .read = count_reads,
                                .read_ctx = w,
                                .progress = note_progress,
                                .progress_arg = w};
}

/* What needs more than there is room for is refused before a byte is read, with the largest pool
 * that fits; a pool of that size is taken. */
static void test_room(void **state)
{
    (void)state;
    struct watched w;
    struct errmsg em = {0};
    struct engine *e = NULL;
    struct eng_options o = watched_options(&w, 1u << 27, (uint64_t)64 << 20); /* petabytes */
    assert_int_equal(eng_open(&o, &e, &em), ERR_NOMEM);
    assert_int_equal(w.n_reads, 0);
    const char *fits = strstr(em.text, "the largest that fits is ");
    if (!fits) fail_msg("%s", em.text);
    uint32_t tokens_max = (uint32_t)strtoul(fits + strlen("the largest that fits is "), NULL, 10);
    assert_true(tokens_max > 0 && tokens_max % KV_PAGE == 0);
    o = watched_options(&w, tokens_max / KV_PAGE + 1, (uint64_t)64 << 20);
    assert_int_equal(eng_open(&o, &e, &em), ERR_NOMEM);
    assert_int_equal(w.n_reads, 0);
    o = watched_options(&w, tokens_max / KV_PAGE, (uint64_t)64 << 20);
    assert_int_equal(eng_open(&o, &e, &em), 0);
    eng_close(e);
    o = watched_options(&w, 1, 1); /* not even the weights */
    assert_int_equal(eng_open(&o, &e, &em), ERR_NOMEM);
    assert_non_null(strstr(em.text, "the largest that fits is 0 tokens"));
}

static uint64_t resident_bytes(void)
{
    unsigned long long total, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu", &total, &resident), 2);
    (void)fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* All of the pool is resident when the engine is open; the progress counts it, and a load can be
 * given up while it is touched. */
static void test_touched(void **state)
{
    (void)state;
    struct watched w;
    struct errmsg em = {0};
    struct engine *e = NULL;
    uint32_t n_pages = 12000; /* 375 MiB, more than is touched at once */
    struct eng_options o = watched_options(&w, n_pages, 0);
    uint64_t before = resident_bytes();
    assert_int_equal(eng_open(&o, &e, &em), 0);
    uint64_t grown = resident_bytes() - before, kv = eng_stats(e).kv_bytes;
    assert_true(kv >= (uint64_t)350 << 20 && grown >= kv);
    assert_true(w.done == w.total && w.total == eng_stats(e).read_bytes + kv);
    uint64_t read_bytes = eng_stats(e).read_bytes;
    eng_close(e);
    o = watched_options(&w, n_pages, 0);
    w.cancel_at = read_bytes + 1;
    assert_int_equal(eng_open(&o, &e, &em), ERR_CANCELLED);
    assert_true(w.done > read_bytes && w.done < w.total);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC false
#elif defined(__has_feature)
#define COUNTS_MALLOC (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define COUNTS_MALLOC true
#endif

/* eng_sizes tells what the engine allocates; of attention's partial results, the most that there
 * may be. */
static void test_sizes(void **state)
{
    (void)state;
    if (!COUNTS_MALLOC) skip();
    struct arch_dims d;
    struct errmsg em;
    assert_int_equal(arch_read(model, &d, &em), 0);
    for (unsigned threads = 1; threads <= 4; threads += 3) {
        uint64_t took_before = 0, told_before = 0;
        for (uint32_t rows = 1; rows <= 4096; rows += 4095) {
            struct watched w;
            struct engine *e = NULL;
            struct eng_options o = watched_options(&w, 512, 0);
            o.threads = threads;
            o.rows_max = rows;
            o.logits_max = 1;
            struct mallinfo2 m = mallinfo2();
            size_t before = m.uordblks + m.hblkhd;
            assert_int_equal(eng_open(&o, &e, &em), 0);
            m = mallinfo2();
            size_t took = m.uordblks + m.hblkhd - before;
            struct eng_sizes s = eng_sizes(&d, rows, 1, 512 * KV_PAGE);
            uint64_t told = s.step_bytes + threads * s.thread_bytes + s.logits_bytes;
            const uint64_t parts = (uint64_t)32 << 20, small = (uint64_t)1 << 20;
            if (took > told || told > took + parts + small)
                fail_msg("%u threads, %u rows: %zu bytes, told %llu", threads, rows, took,
                         (unsigned long long)told);
            if (took_before &&
                llabs((int64_t)(took - took_before - (told - told_before))) > (int64_t)small)
                fail_msg("rows: %llu bytes, told %llu", (unsigned long long)(took - took_before),
                         (unsigned long long)(told - told_before));
            took_before = took;
            told_before = told;
            uint64_t weights;
            assert_int_equal(eng_weights_bytes(model, &d, 0, LAYERS - 1, &weights, &em), 0);
            assert_int_equal(weights, eng_stats(e).weights_bytes);
            uint64_t all = weights + eng_stats(e).kv_bytes + told;
            eng_close(e);
            o = watched_options(&w, 512, all);
            o.threads = threads;
            o.rows_max = rows;
            o.logits_max = 1;
            assert_int_equal(eng_open(&o, &e, &em), 0); /* to the byte */
            eng_close(e);
            o.room_bytes--;
            assert_int_equal(eng_open(&o, &e, &em), ERR_NOMEM);
        }
    }
}

/* What the coordinator's core is told of a slice's memory is what the engine takes. */
static void test_costs(void **state)
{
    (void)state;
    char kv[] = "q8_0";
    const struct config c = {.kv = kv, .chunk = ROWS, .ctx = 64};
    const struct machine_memory here = {.machine = 1, .machine_free = 4000}, unknown = {0};
    struct arch_dims d;
    struct errmsg em = {0};
    struct setup_model m = {.dims = &d};
    struct core_config none = {.wishes = NULL};
    assert_int_equal(arch_read(model, &d, &em), 0);
    assert_int_equal(setup_costs(&c, model, &here, &m, &em), 0);
    struct room_costs costs = m.costs;
    uint64_t first, last, whole;
    assert_int_equal(eng_weights_bytes(model, &d, 0, 0, &first, &em), 0);
    assert_int_equal(eng_weights_bytes(model, &d, 1, 1, &last, &em), 0);
    assert_int_equal(eng_weights_bytes(model, &d, 0, 1, &whole, &em), 0);
    /* Both ends are the embedding, which one slice has once. */
    assert_true(costs.layer_bytes[0] == first && costs.layer_bytes[1] == last);
    assert_true(costs.tied_bytes == VOCAB * d.hidden * sizeof(float));
    assert_true(first + last - costs.tied_bytes == whole);
    /* The layers alone: what the first slice has beside the embedding; the last also has a norm. */
    assert_true(m.layer_work[0] == first - costs.tied_bytes);
    assert_true(m.layer_work[1] == m.layer_work[0]);
    struct eng_sizes s = eng_sizes(&d, ROWS, ROWS, 64);
    assert_true(costs.worker_bytes == s.step_bytes + ((uint64_t)64 << 20));
    assert_true(costs.thread_bytes == s.thread_bytes && costs.last_bytes == s.logits_bytes);
    assert_true(costs.page_layer_bytes == eng_page_bytes(&d, KV_Q8_0, 1));
    assert_true(costs.page_bytes == KV_PAGE * sizeof(int32_t)); /* token ids */
    assert_true(costs.table_bytes == 1001);
    setup_close(&none, &m);
    assert_int_equal(setup_costs(&c, model, &unknown, &m, &em), 0);
    assert_true(m.costs.table_bytes == 0);
    setup_close(&none, &m);
}

/* Rounding towards plus infinity, denormals flushed to zero. */
#if defined(__x86_64__)
#define UP_WITHOUT_DENORMALS (0x1F80 | 0x4000 | 0x8040)
#else
#define UP_WITHOUT_DENORMALS (1u << 22 | 1u << 24)
#endif

/* Tables and weights are made when the engine is opened: also by a thread in which a library has
 * changed the rounding and turned denormals off. */
static void test_rounding(void **state)
{
    (void)state;
    static float want[ROWS * VOCAB], got[ROWS * VOCAB];
    uint32_t pages[PAGES] = {0};
    struct engine *e = open_slice(KV_F16, 0, LAYERS - 1);
    tiny_run(e, 0, ROWS, pages, want);
    eng_close(e);
    insn_set_float_mode(UP_WITHOUT_DENORMALS);
    e = open_slice(KV_F16, 0, LAYERS - 1);
    assert_int_equal(insn_float_mode(), INSN_FLOAT_MODE);
    tiny_run(e, 0, ROWS, pages, got);
    eng_close(e);
    assert_memory_equal(got, want, sizeof want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_page),    cmocka_unit_test(test_context),
        cmocka_unit_test(test_few_parts),    cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_page_bytes),   cmocka_unit_test(test_pages),
        cmocka_unit_test(test_out_of_range), cmocka_unit_test(test_room),
        cmocka_unit_test(test_touched),      cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_costs),        cmocka_unit_test(test_rounding),
    };
    return cmocka_run_group_tests(tests, write_model, remove_model);
}
