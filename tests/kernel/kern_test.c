/* Every kernel of every level that this machine has against the scalar oracle: equal bit for bit,
 * or both NaN; outputs lie between canaries. Data: Gaussian, extremes, exact ties, tiny, huge,
 * zeros, NaN. And the oracle against f64. */
#include "common/engine/cpu.h"
#include "common/engine/kern.h"

#include "common/base/fmath.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CANARY 0x7f7f7f7fu
#define GUARD 16

static const struct kern *levels[4];
static unsigned n_levels;
static struct rng rng = {1};

static float uniform(void)
{
    return (float)(rng_u64(&rng) >> 40) * 0x1p-24f;
}

static float gauss(void)
{
    float s = 0;
    for (int i = 0; i < 12; i++) s += uniform();
    return s - 6.0f;
}

enum data {
    GAUSS,
    EXTREME,
    OUTLIER,
    TIES,
    TINY,
    SMALL,
    HUGE_VALUES,
    SOME_ZERO,
    NOT_FINITE,
    N_DATA
};

static void fill(float *x, size_t n, enum data kind)
{
    for (size_t i = 0; i < n; i++) switch (kind) {
        case GAUSS: x[i] = gauss(); break;
        case EXTREME: x[i] = rng_below(&rng, 2) ? 7.0f : -7.0f; break;
        case OUTLIER: x[i] = i % 256 == 17 ? 4000.0f : gauss(); break;
        case TIES: x[i] = i % 32 == 0 ? 127.0f : (float)rng_below(&rng, 254) - 126.5f; break;
        case TINY: x[i] = fm_float((uint32_t)rng_u64(&rng) & 0x80ffffff); break;
        case SMALL: x[i] = gauss() * fm_float((100 + (uint32_t)(i / 32 % 27)) << 23); break;
        case HUGE_VALUES: x[i] = gauss() * 1e30f; break;
        case SOME_ZERO: x[i] = i / 32 % 3 ? gauss() : 0.0f; break;
        default: x[i] = i % 97 == 50 ? NAN : i % 89 == 3 ? INFINITY : gauss(); break;
        }
}

static bool same(const float *a, const float *b, size_t n, size_t *ret_at)
{
    for (*ret_at = 0; *ret_at < n; ++*ret_at) {
        float x = a[*ret_at], y = b[*ret_at];
        if (fm_bits(x) != fm_bits(y) && !(x != x && y != y)) return false;
    }
    return true;
}

/* n floats between two guards. */
static float *guarded(size_t n)
{
    float *p = mem_alloc((n + 2 * GUARD) * sizeof *p);
    for (size_t i = 0; i < n + 2 * GUARD; i++) p[i] = fm_float(CANARY);
    return p + GUARD;
}

static void check_guards(float *p, size_t n)
{
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(fm_bits(p[-1 - (ptrdiff_t)i]), CANARY);
        assert_int_equal(fm_bits(p[n + i]), CANARY);
    }
    mem_free(p - GUARD);
}

static const enum qtype types[] = {
#define X(name, number, block, bytes) QTYPE_##name,
    QTYPES_FLOAT(X) QTYPES_BLOCK(X)
#undef X
};
#define N_TYPES (sizeof types / sizeof types[0])

/* Where a block's d lies; its minimum follows. */
static size_t scale_offset(enum qtype type)
{
    switch (type) {
    case QTYPE_Q2_K: return 80;
    case QTYPE_Q3_K: return 108;
    case QTYPE_Q6_K: return 208;
    default: return 0;
    }
}

/* Random file rows; kind 0 ordinary, 1 all-maximal integers, 2 odd scales. */
static void random_rows(enum qtype type, uint8_t *rows, size_t n_blocks, int kind)
{
    const struct qtype_info *t = qtype_info((uint32_t)type);
    for (size_t b = 0; b < n_blocks; b++, rows += t->bytes) {
        for (int i = 0; i < t->bytes; i++) rows[i] = kind == 1 ? 0xff : (uint8_t)rng_u64(&rng);
        if (type == QTYPE_F32) {
            float f = kind == 2 ? gauss() * 1e-38f : gauss();
            memcpy(rows, &f, 4);
            continue;
        }
        float d = kind == 2 ? (rng_below(&rng, 2) ? 6e-8f : -65504.0f) : (uniform() - 0.3f) * 0.01f;
        if (type == QTYPE_MXFP4) {
            static const uint8_t odd[] = {0, 1, 2, 250}; /* the first two are denormal */
            rows[0] = kind == 2 ? odd[rng_below(&rng, 4)] : (uint8_t)(112 + rng_below(&rng, 12));
            continue;
        }
        uint16_t h = f16_from_f32(d), m = f16_from_f32(gauss());
        if (type == QTYPE_BF16) h = (uint16_t)(fm_bits(gauss()) >> 16);
        size_t at = scale_offset(type);
        memcpy(rows + at, &h, 2);
        if (tile_of(type).has_min) memcpy(rows + at + 2, &m, 2);
    }
}

struct act_room {
    struct act a;
    size_t q_bytes, blocks;
};

static struct act_room new_act(uint32_t n_tokens, uint32_t k)
{
    struct act_room r = {{n_tokens, k, NULL, NULL, NULL, NULL, NULL},
                         (size_t)n_tokens * k,
                         (size_t)n_tokens * (k / 32)};
    r.a.q = mem_zalloc(r.q_bytes);
    r.a.x = mem_zalloc(r.blocks * sizeof(float));
    r.a.y = mem_zalloc(r.blocks * sizeof(float));
    r.a.s = mem_zalloc(r.blocks * sizeof(int32_t));
    r.a.h = mem_zalloc(r.blocks * 2 * sizeof(int32_t));
    return r;
}

static void free_act(struct act_room *r)
{
    mem_free(r->a.q);
    mem_free(r->a.x);
    mem_free(r->a.y);
    mem_free(r->a.s);
    mem_free(r->a.h);
}

static void test_quantise(void **state)
{
    (void)state;
    if (n_levels == 0) skip(); /* nothing to compare */
    size_t at;
    for (int kind = 0; kind < N_DATA; kind++)
        for (uint32_t n = 1; n < 40; n += 7) {
            uint32_t k = 32 * (1 + n % 5);
            float *x = mem_alloc((size_t)n * k * sizeof *x);
            fill(x, (size_t)n * k, (enum data)kind);
            struct act_room want = new_act(n, k);
            for (uint32_t t = 0; t < n; t++) kern_scalar.quantise(x + t * k, &want.a, t);
            for (unsigned l = 0; l < n_levels; l++) {
                struct act_room got = new_act(n, k);
                for (uint32_t t = 0; t < n; t++) levels[l]->quantise(x + t * k, &got.a, t);
                assert_memory_equal(got.a.q, want.a.q, want.q_bytes);
                assert_memory_equal(got.a.s, want.a.s, want.blocks * sizeof(int32_t));
                assert_memory_equal(got.a.h, want.a.h, want.blocks * 2 * sizeof(int32_t));
                assert_true(same(got.a.x, want.a.x, want.blocks, &at));
                assert_true(same(got.a.y, want.a.y, want.blocks, &at));
                free_act(&got);
            }
            free_act(&want);
            mem_free(x);
        }
}

/* A matrix of random weights (random_rows), packed; free_mat. */
static struct mat new_mat(enum qtype type, uint32_t rows, uint32_t k, int wkind)
{
    const struct qtype_info *t = qtype_info((uint32_t)type);
    uint32_t panels = (rows + 15) / 16;
    size_t row_bytes = (size_t)k / t->block * t->bytes, panel_bytes = tile_panel_bytes(type, k);
    uint8_t *file = mem_alloc(row_bytes * rows), *packed = mem_pages(panel_bytes * panels);
    random_rows(type, file, (size_t)rows * k / t->block, wkind);
    for (uint32_t p = 0; p < panels; p++) {
        uint32_t n = rows - p * 16 < 16 ? rows - p * 16 : 16;
        assert_true(tile_pack(type, file + p * 16 * row_bytes, n, k, packed + p * panel_bytes));
    }
    mem_free(file);
    return (struct mat){type, rows, k, packed, 0};
}

static void free_mat(const struct mat *m)
{
    mem_pages_free((void *)(uintptr_t)m->panels, tile_panel_bytes(m->type, m->k) * mat_n_panels(m));
}

static void one_linear(enum qtype type, uint32_t rows, uint32_t k, uint32_t tokens, int wkind,
                       enum data kind)
{
    const struct qtype_info *t = qtype_info((uint32_t)type);
    struct mat m = new_mat(type, rows, k, wkind);
    uint32_t panels = mat_n_panels(&m), ldo = panels * 16 + 16;
    float *x = mem_alloc((size_t)tokens * k * sizeof *x);
    fill(x, (size_t)tokens * k, kind);
    struct act_room a = new_act(tokens, k);
    if (t->block > 1)
        for (uint32_t i = 0; i < tokens; i++) kern_scalar.quantise(x + (size_t)i * k, &a.a, i);
    void *scratch = NULL;
    assert_int_equal(posix_memalign(&scratch, 64, kern_scratch_bytes(k)), 0);
    size_t n_out = (size_t)(tokens - 1) * ldo + panels * 16, at;
    float *want = guarded(n_out);
    kern_scalar.linear(&m, 0, panels, &a.a, x, k, tokens, want, ldo, scratch);
    for (unsigned i = 0; i < 2 * n_levels; i++) {
        const struct kern *level = levels[i / 2];
        float *got = guarded(n_out);
        uint32_t half = panels / 2; /* any split over threads */
        m.few = i % 2 ? KERN_FEW_MAX : 0;
        level->linear(&m, half, panels, &a.a, x, k, tokens, got, ldo, scratch);
        level->linear(&m, 0, half, &a.a, x, k, tokens, got, ldo, scratch);
        if (!same(got, want, n_out, &at))
            fail_msg("%s %s rows %u k %u tokens %u few %u data %d/%d: %a, oracle %a at %zu",
                     level->name, t->name, rows, k, tokens, m.few, wkind, (int)kind,
                     (double)got[at], (double)want[at], at);
        check_guards(got, n_out);
    }
    check_guards(want, n_out);
    free(scratch);
    free_act(&a);
    mem_free(x);
    free_mat(&m);
}

/* A step of n rows at once, straight from the tiles or not, gives what n steps of one row give. */
static void one_step(const struct kern *k, const struct mat *m, uint32_t n, const float *x,
                     const float *want)
{
    uint32_t width = mat_n_panels(m) * 16, ldo = width + 16;
    struct act_room a = new_act(n, m->k);
    void *scratch = NULL;
    assert_int_equal(posix_memalign(&scratch, 64, kern_scratch_bytes(m->k)), 0);
    for (uint32_t i = 0; i < n && !qtype_is_float(m->type); i++)
        k->quantise(x + (size_t)i * m->k, &a.a, i);
    float *got = guarded((size_t)n * ldo);
    k->linear(m, 0, mat_n_panels(m), &a.a, x, m->k, n, got, ldo, scratch);
    for (uint32_t r = 0; r < n; r++) {
        size_t at;
        if (!same(got + r * ldo, want + r * width, width, &at))
            fail_msg("%s %s of %u x %u, few %u: row %u of %u is %a, alone %a, at %zu", k->name,
                     qtype_info((uint32_t)m->type)->name, m->rows, m->k, m->few, r, n,
                     (double)got[r * ldo + at], (double)want[r * width + at], at);
        for (uint32_t i = width; i < ldo; i++) assert_int_equal(fm_bits(got[r * ldo + i]), CANARY);
    }
    check_guards(got, (size_t)n * ldo);
    free(scratch);
    free_act(&a);
}

/* Every type, every level with the oracle, K to 32 (and beyond what may be few), odd sizes. */
static void test_step_of_k_and_1_rows_equals_k_and_1_steps(void **state)
{
    (void)state;
    enum { MOST = KERN_FEW_MAX + 3 };
    static const uint32_t widths[][2] = {{17, 97}, {96, 288}, {256, 768}}; /* by block */
    static const uint32_t rows[2] = {33, 7};
    for (size_t t = 0; t < N_TYPES; t++)
        for (int shape = 0; shape < 2; shape++) {
            uint32_t block = qtype_info((uint32_t)types[t])->block;
            uint32_t k = widths[block == 1 ? 0 : block == 32 ? 1 : 2][shape];
            struct mat m = new_mat(types[t], rows[shape], k, shape);
            uint32_t width = mat_n_panels(&m) * 16;
            float *x = mem_alloc((size_t)MOST * k * sizeof *x);
            float *want = mem_alloc((size_t)MOST * width * sizeof *want);
            fill(x, (size_t)MOST * k, shape ? OUTLIER : GAUSS);
            for (unsigned l = 0; l <= n_levels; l++) {
                const struct kern *level = l == n_levels ? &kern_scalar : levels[l];
                struct act_room a = new_act(1, k);
                void *scratch = mem_alloc(kern_scratch_bytes(k));
                for (uint32_t r = 0; r < MOST; r++) {
                    if (block > 1) level->quantise(x + (size_t)r * k, &a.a, 0);
                    level->linear(&m, 0, width / 16, &a.a, x + (size_t)r * k, k, 1,
                                  want + (size_t)r * width, width, scratch);
                }
                mem_free(scratch);
                free_act(&a);
                for (uint32_t n = 1; n <= MOST; n++)
                    for (m.few = 0; m.few <= KERN_FEW_MAX; m.few += KERN_FEW_MAX)
                        one_step(level, &m, n, x, want);
            }
            mem_free(x);
            mem_free(want);
            free_mat(&m);
        }
}

static void test_linear(void **state)
{
    (void)state;
    if (n_levels == 0) skip(); /* nothing to compare */
    static const uint32_t tokens[] = {1, 2, 3, 4, 5, 15, 16, 17, 33, 64};
    static const uint32_t rows[] = {1, 15, 16, 17, 48, 129};
    static const uint32_t floats[] = {1, 17, 257, 576}, of32[] = {32, 96, 576, 1536},
                          of256[] = {256, 512, 768, 1792};
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t n = 0; n < 10; n++)
            for (size_t r = 0; r < 6; r++) {
                uint32_t block = qtype_info((uint32_t)types[t])->block;
                const uint32_t *widths = block == 1 ? floats : block == 32 ? of32 : of256;
                for (int kind = 0; kind < N_DATA; kind++)
                    one_linear(types[t], rows[r], widths[(n + r) % 4], tokens[n],
                               (int)(n + r + (size_t)kind) % 3, (enum data)kind);
            }
}

static void test_rows(void **state)
{
    (void)state;
    if (n_levels == 0) skip(); /* nothing to compare */
    size_t at;
    for (int kind = 0; kind < N_DATA; kind++)
        for (uint32_t n = 1; n < 700; n += 1 + n / 5) {
            float *x = mem_alloc(n * sizeof *x), *w = mem_alloc(n * sizeof *w);
            fill(x, n, (enum data)kind);
            fill(w, n, GAUSS);
            for (unsigned l = 0; l < n_levels; l++) {
                float *want = guarded(n), *got = guarded(n);
                kern_scalar.rmsnorm(x, w, want, n, 1e-5f);
                levels[l]->rmsnorm(x, w, got, n, 1e-5f);
                assert_true(same(got, want, n, &at));
                for (int b = 0; b < 2; b++) {
                    kern_scalar.layernorm(x, w, b ? x : NULL, want, n, 1e-5f);
                    levels[l]->layernorm(x, w, b ? x : NULL, got, n, 1e-5f);
                    assert_true(same(got, want, n, &at));
                }
                kern_scalar.silu_mul(x, w, want, n);
                levels[l]->silu_mul(x, w, got, n);
                assert_true(same(got, want, n, &at));
                kern_scalar.gelu_mul(x, w, want, n);
                levels[l]->gelu_mul(x, w, got, n);
                assert_true(same(got, want, n, &at));
                for (int i = 0; i < (n % 2 ? 1 : 3); i++) {
                    memcpy(want, x, n * sizeof *x);
                    memcpy(got, x, n * sizeof *x);
                    if (i == 0) {
                        kern_scalar.softcap(want, n, 30.0f);
                        levels[l]->softcap(got, n, 30.0f);
                    } else if (i == 1) {
                        kern_scalar.rope(want, w, n);
                        levels[l]->rope(got, w, n);
                    } else {
                        kern_scalar.rope_halves(want, w, n);
                        levels[l]->rope_halves(got, w, n);
                    }
                    assert_true(same(got, want, n, &at));
                }
                check_guards(want, n);
                check_guards(got, n);
            }
            mem_free(x);
            mem_free(w);
        }
}

/* Attention over positions [lo, hi), its spans joined. Of the partial results exactly those of the
 * n spans and all heads are written, and of each exactly head_size elements: the rest keeps its
 * canary. */
static void attend(const struct kern *k, const struct kv_view *kv, const float *q, uint32_t heads,
                   uint32_t lo, uint32_t hi, float cap, float *out)
{
    const size_t size = sizeof(struct attn_part) / sizeof(float);
    struct attn_part parts[8 * 8 + 1];
    uint32_t s0 = lo / ATTN_SPAN, n = (hi - 1) / ATTN_SPAN - s0 + 1;
    assert_true(heads * n <= 64);
    for (size_t i = 0; i < (heads * n + 1) * size; i++) ((float *)parts)[i] = fm_float(CANARY);
    for (uint32_t s = 0; s < n; s++) {
        uint32_t a = (s0 + s) * ATTN_SPAN, b = a + ATTN_SPAN;
        k->attn_span(kv, q, heads, a < lo ? lo : a, b > hi ? hi : b, cap, parts + s * heads);
    }
    for (uint32_t h = 0; h < heads * n; h++) {
        assert_int_not_equal(fm_bits(parts[h].max), CANARY);
        assert_int_not_equal(fm_bits(parts[h].sum), CANARY);
        for (uint32_t i = 0; i < HEAD_SIZE_MAX; i++)
            assert_true((fm_bits(parts[h].out[i]) == CANARY) == (i >= kv->head_size));
    }
    for (size_t i = 0; i < size; i++)
        assert_int_equal(fm_bits(((float *)&parts[heads * n])[i]), CANARY);
    for (uint32_t h = 0; h < heads; h++)
        kern_attn_join(parts + h, heads, n, kv->head_size, out + h * kv->head_size);
}

static void one_attention(enum kv_type type, uint32_t d, uint32_t heads, enum data kind)
{
    uint32_t n_pages = 40, n_pos = n_pages * KV_PAGE, pages[40];
    size_t page_bytes = 2 * kv_half_bytes(type, d), at;
    for (uint32_t i = 0; i < n_pages; i++) pages[i] = (i * 7 + 3) % n_pages;
    float *q = mem_alloc((size_t)heads * d * sizeof *q);
    float *row = mem_alloc((size_t)2 * d * sizeof *row);
    uint8_t *pool[2] = {mem_zalloc(page_bytes * n_pages), mem_zalloc(page_bytes * n_pages)};
    for (unsigned l = 0; l < n_levels; l++) {
        struct kv_view want = {type, d, pool[0], page_bytes, pages}, got = want;
        got.base = pool[1];
        for (uint32_t p = 0; p < n_pos; p++) {
            fill(row, 2 * d, kind);
            kern_scalar.kv_store(&want, p, row, row + d);
            levels[l]->kv_store(&got, p, row, row + d);
        }
        if (kind != NOT_FINITE) assert_memory_equal(pool[0], pool[1], page_bytes * n_pages);
        fill(q, heads * d, kind == NOT_FINITE ? GAUSS : kind);
        for (int i = 0; i < 6; i++) {
            uint32_t hi = i == 0 ? 1 : (uint32_t)(1 + rng_below(&rng, n_pos));
            uint32_t lo = i < 3 ? 0 : (uint32_t)rng_below(&rng, hi);
            float *a = guarded(heads * d), *b = guarded(heads * d);
            float cap = i % 2 ? 0.0f : 20.0f;
            attend(&kern_scalar, &want, q, heads, lo, hi, cap, a);
            attend(levels[l], &want, q, heads, lo, hi, cap, b);
            if (!same(b, a, heads * d, &at))
                fail_msg("%s kv %d d %u heads %u data %d [%u, %u): %a, oracle %a at %zu",
                         levels[l]->name, (int)type, d, heads, (int)kind, lo, hi, (double)b[at],
                         (double)a[at], at);
            check_guards(a, heads * d);
            check_guards(b, heads * d);
        }
    }
    mem_free(q);
    mem_free(row);
    mem_free(pool[0]);
    mem_free(pool[1]);
}

static void test_attention(void **state)
{
    (void)state;
    if (n_levels == 0) skip(); /* nothing to compare */
    static const uint32_t sizes[] = {32, 40, 64, 80, 100, 128, 256};
    static const uint32_t heads[] = {1, 2, 3, 4, 5, 8};
    static const enum data kinds[] = {GAUSS, EXTREME, TINY, NOT_FINITE, SMALL};
    for (int type = 0; type < KV_N_TYPES; type++)
        for (size_t d = 0; d < 7; d++)
            for (size_t h = 0; h < 6; h++)
                if (type <= KV_F16 || sizes[d] % 32 == 0)
                    one_attention((enum kv_type)type, sizes[d], heads[h], kinds[(d + h) % 5]);
}

/* The oracle itself against f64. A product of quantised weights is w.x for activations
 * whose every value is off by at most half a step X = amax / 127 of its block, and by the rounding
 * of x id, id and X: relative errors of 2^-24 each, of q up to 127. So it is off by at most
 * sum |w_i| (X / 2 + |x_i| 2^-21), and what the chains round: a sum of n terms is off by at most
 * n 2^-24 of the sum of their magnitudes (Higham, Accuracy and Stability, 4.2). With minima those
 * magnitudes are those of both chains: |u D q X| and |M Y|. */
static void test_oracle_against_f64(void **state)
{
    (void)state;
    double closest = 0;
    for (size_t t = 0; t < N_TYPES; t++) {
        const struct qtype_info *info = qtype_info((uint32_t)types[t]);
        const struct tile l = tile_of(types[t]);
        uint32_t k = 768, rows = 16;
        size_t row_bytes = (size_t)k / info->block * info->bytes;
        uint8_t *file = mem_alloc(rows * row_bytes), *packed = mem_alloc(rows * row_bytes);
        float *x = mem_alloc(k * sizeof *x), *w = mem_alloc(k * sizeof *w), out[16];
        float *lane = mem_alloc(k * sizeof *lane), d[QBLOCK_SUBS], min[QBLOCK_SUBS];
        random_rows(types[t], file, (size_t)rows * k / info->block, 0);
        assert_true(tile_pack(types[t], file, rows, k, packed));
        fill(x, k, GAUSS);
        struct act_room a = new_act(1, k);
        kern_scalar.quantise(x, &a.a, 0);
        void *scratch = mem_alloc(kern_scratch_bytes(k));
        struct mat m = {types[t], rows, k, packed, 0};
        kern_scalar.linear(&m, 0, 1, &a.a, x, k, 1, out, 16, scratch);
        for (uint32_t r = 0; r < rows; r++) {
            double want = 0, magnitude = 0, quantised = 0;
            quant_dequantise(types[t], file + r * row_bytes, k, w);
            tile_unpack_row(types[t], packed, r, k, lane);
            assert_memory_equal(w, lane, k * sizeof *w);
            for (uint32_t i = 0; i < k; i++) {
                double wi = (double)w[i], xi = (double)x[i], part = 0;
                if (l.has_min && info->block > 1) {
                    struct qblock b;
                    quant_take(types[t], file + r * row_bytes + i / l.block * info->bytes, &b);
                    quant_scales(types[t], &b, d, min);
                    part = fabs((double)min[i % l.block / l.sub]);
                }
                want += wi * xi;
                magnitude += (fabs(wi) + 2 * part) * fabs(xi);
                if (info->block > 1)
                    quantised += fabs(wi) * ((double)a.a.x[i / 32] / 2 + fabs(xi) * 0x1p-21);
            }
            double limit = quantised + (k + 8) * 0x1p-24 * magnitude;
            if (fabs((double)out[r] - want) > limit)
                fail_msg("%s row %u: %g, exactly %g, at most %g off", info->name, r, (double)out[r],
                         want, limit);
            /* Rounding errors are as good as independent: their sum is far below the sum of their
             * largest values, but for six times its standard deviation. */
            double sd = 0;
            for (uint32_t i = 0; i < k && info->block > 1; i++)
                sd += pow((double)w[i] * (double)a.a.x[i / 32], 2) / 12;
            limit = info->block == 1 ? 1e-6 * magnitude : 6 * sqrt(sd) + 1e-6 * magnitude;
            if (fabs((double)out[r] - want) > limit)
                fail_msg("%s row %u: %g off, 6 standard deviations are %g", info->name, r,
                         fabs((double)out[r] - want), limit);
            if (info->block > 1 && fabs((double)out[r] - want) / limit > closest)
                closest = fabs((double)out[r] - want) / limit;
        }
        mem_free(scratch);
        free_act(&a);
        mem_free(file);
        mem_free(packed);
        mem_free(x);
        mem_free(w);
        mem_free(lane);
    }
    assert_true(closest > 0.2); /* the limit is about the errors that there are */
}

/* All halves and what lies between them: the scalar conversion against its definition, and against
 * the machine's own where there is one. */
static void test_half_precision(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double value = (double)f16_to_f32((uint16_t)h),
               next = (double)f16_to_f32((uint16_t)(h + 1));
        double want =
            h < 0x400 ? (double)h * 0x1p-24 : ldexp(1024 + (h & 0x3ff), (int)(h >> 10) - 25);
        assert_true(value == want);
        if (h == 0x7bff) next = 65536;              /* what rounds to the infinity */
        float middle = (float)((value + next) / 2); /* exact */
        for (int sign = 0; sign < 2; sign++) {
            float s = sign ? -1.0f : 1.0f;
            uint32_t minus = sign ? 0x8000 : 0, even = h & 1 ? h + 1 : h;
            assert_int_equal(f16_from_f32(s * (float)value), minus | h);
            assert_int_equal(f16_from_f32(s * middle), minus | even); /* ties go to even */
            assert_int_equal(f16_from_f32(s * nextafterf(middle, 0)), minus | h);
            assert_int_equal(f16_from_f32(s * nextafterf(middle, 1e9f)), minus | (h + 1));
        }
    }
    assert_true(f16_to_f32(0x7c00) == INFINITY && f16_to_f32(0xfc00) == -INFINITY);
    for (uint32_t h = 0x7c01; h < 0x8000; h++) {
        assert_true(isnan(f16_to_f32((uint16_t)h)));
        assert_false(f16_finite(f16_from_f32(f16_to_f32((uint16_t)h))));
    }
}

/* Keys and values are stored by the level's own conversion: F16C where there is one. */
static void test_half_precision_of_levels(void **state)
{
    (void)state;
    if (n_levels == 0) skip();
    const uint32_t d = 32, page = 0;
    uint16_t want[2 * 32 * KV_PAGE], got[2 * 32 * KV_PAGE];
    float k[32], v[32];
    for (unsigned l = 0; l < n_levels; l++)
        for (uint32_t h = 0; h < 0x7c00; h += 8) {
            for (uint32_t i = 0; i < d; i++) {
                float a = f16_to_f32((uint16_t)(h + i / 4)),
                      b = f16_to_f32((uint16_t)(h + i / 4 + 1));
                float middle = i % 4 == 1 ? a : a + (b - a) / 2;
                k[i] = i % 4 == 2   ? nextafterf(middle, 0)
                       : i % 4 == 3 ? nextafterf(middle, 1e9f)
                                    : middle;
                v[i] = -k[i];
            }
            memset(want, 0, sizeof want);
            memset(got, 0, sizeof got);
            struct kv_view w = {KV_F16, d, (uint8_t *)want, sizeof want, &page};
            struct kv_view g = {KV_F16, d, (uint8_t *)got, sizeof got, &page};
            kern_scalar.kv_store(&w, 3, k, v);
            levels[l]->kv_store(&g, 3, k, v);
            assert_memory_equal(got, want, sizeof want);
        }
}

/* What is put into a lane of a tile can be taken out again, whatever the other lanes hold; and the
 * tile's description agrees with the file's block. */
static void test_tiles(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        if (qtype_is_float(types[t])) continue;
        const struct qtype_info *info = qtype_info((uint32_t)types[t]);
        const struct tile l = tile_of(types[t]);
        assert_int_equal(l.block, info->block);
        assert_int_equal(l.bytes, info->bytes * TILE_ROWS);
        uint8_t file[TILE_ROWS][QBLOCK_BYTES], *tile = mem_zalloc(l.bytes);
        struct qblock want, got;
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            random_rows(types[t], file[r], 1, 0);
            quant_take(types[t], file[r], &want);
            tile_put(types[t], &want, r, tile);
        }
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            memset(&want, 0, sizeof want);
            memset(&got, 0, sizeof got);
            quant_take(types[t], file[r], &want);
            tile_take(types[t], tile, r, &got);
            assert_memory_equal(&got, &want, sizeof want);
        }
        mem_free(tile);
    }
}

/* A product by hand: W = [[1,2,3],[4,5,6]] as [in][out], so three rows of two in the file's order,
 * and a bias. */
static void test_linear_vector(void **state)
{
    (void)state;
    const float rows[3][2] = {{1, 4}, {2, 5}, {3, 6}}, x[2] = {1, 10}, bias[3] = {0.5f, -0.5f, 0};
    float packed[2 * 16], out[16];
    assert_true(tile_pack(QTYPE_F32, (const uint8_t *)rows, 3, 2, (uint8_t *)packed));
    struct mat m = {QTYPE_F32, 3, 2, (const uint8_t *)packed, 0};
    struct act none = {0};
    for (unsigned l = 0; l <= n_levels; l++) {
        const struct kern *k = l == n_levels ? &kern_scalar : levels[l];
        k->linear(&m, 0, 1, &none, x, 2, 1, out, 16, NULL);
        kern_add_bias(out, NULL, 3);
        assert_float_equal(out[1], 52, 0);
        kern_add_bias(out, bias, 3);
        assert_float_equal(out[0], 41.5f, 0);
        assert_float_equal(out[1], 51.5f, 0);
        assert_float_equal(out[2], 63, 0);
    }
}

/* A random product of 64 rows, 257 -> 129, against f64: no output is off by more than 1e-5 of the
 * sum of its terms' magnitudes. */
static void test_linear_random(void **state)
{
    (void)state;
    enum { ROWS = 64, IN = 257, OUT = 129, PANELS = (OUT + 15) / 16, LDO = PANELS * 16 };
    static float w[OUT][IN], x[ROWS][IN], packed[PANELS * 16 * IN], out[ROWS][LDO];
    fill(&w[0][0], OUT * IN, GAUSS);
    fill(&x[0][0], ROWS * IN, GAUSS);
    for (uint32_t p = 0; p < PANELS; p++)
        assert_true(tile_pack(QTYPE_F32, (const uint8_t *)w[p * 16],
                              OUT - p * 16 < 16 ? OUT - p * 16 : 16, IN,
                              (uint8_t *)(packed + (size_t)p * 16 * IN)));
    struct mat m = {QTYPE_F32, OUT, IN, (const uint8_t *)packed, 0};
    struct act none = {0};
    for (unsigned l = 0; l <= n_levels; l++) {
        const struct kern *k = l == n_levels ? &kern_scalar : levels[l];
        k->linear(&m, 0, PANELS, &none, &x[0][0], IN, ROWS, &out[0][0], LDO, NULL);
        for (int r = 0; r < ROWS; r++)
            for (int o = 0; o < OUT; o++) {
                double want = 0, magnitude = 0;
                for (int i = 0; i < IN; i++) {
                    want += (double)w[o][i] * (double)x[r][i];
                    magnitude += fabs((double)w[o][i] * (double)x[r][i]);
                }
                assert_true(fabs((double)out[r][o] - want) <= 1e-5 * magnitude);
            }
    }
}

static unsigned n_norms, n_quantised;
static const struct kern *counted;

static void count_layernorm(const float *x, const float *w, const float *b, float *y, uint32_t n,
                            float eps)
{
    n_norms++;
    counted->layernorm(x, w, b, y, n, eps);
}

static void count_rmsnorm(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    n_norms++;
    counted->rmsnorm(x, w, y, n, eps);
}

static void count_quantise(const float *x, struct act *a, uint32_t token)
{
    n_quantised++;
    counted->quantise(x, a, token);
}

static void fused_vector(const struct kern *k)
{
    const float x[4] = {1, 2, 3, 4}, one[4] = {1, 1, 1, 1}, constant[4] = {7, 7, 7, 7};
    const float want[4] = {-1.3416355f, -0.4472118f, 0.4472118f, 1.3416355f};
    float identity[4][4] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}};
    float packed[4 * 16], y[4], out[16];
    struct act none = {0};
    struct kern_norm norm = {.layer = true, .weight = one, .eps = 1e-5f};
    assert_true(tile_pack(QTYPE_F32, (const uint8_t *)identity, 4, 4, (uint8_t *)packed));
    struct mat m = {QTYPE_F32, 4, 4, (const uint8_t *)packed, 0};
    kern_norm_row(k, &norm, x, 4, y, NULL, 0);
    k->linear(&m, 0, 1, &none, y, 4, 1, out, 16, NULL);
    for (int i = 0; i < 4; i++) assert_float_equal(out[i], want[i], 1e-6);
    const struct kern_norm rms = {.weight = one, .eps = 1e-5f}; /* x / sqrt(7.5 + eps) */
    const float want_rms[4] = {0.3651481f, 0.7302962f, 1.0954443f, 1.4605924f};
    kern_norm_row(k, &rms, x, 4, y, NULL, 0);
    k->linear(&m, 0, 1, &none, y, 4, 1, out, 16, NULL);
    for (int i = 0; i < 4; i++) assert_float_equal(out[i], want_rms[i], 1e-6);
    kern_norm_row(k, &norm, constant, 4, y, NULL, 0);
    for (int i = 0; i < 4; i++) assert_float_equal(y[i], 0, 0);
}

static void fused_equals_unfused(const struct kern *k, bool layer)
{
    enum { ROWS = 5, WIDTH = 576, OUT = 48 };
    static float x[ROWS * WIDTH], w[WIDTH], y[ROWS * WIDTH], z[ROWS * WIDTH], one[ROWS * OUT],
        split[ROWS * OUT];
    struct kern counting = *k;
    counting.layernorm = count_layernorm;
    counting.rmsnorm = count_rmsnorm;
    counting.quantise = count_quantise;
    counted = k;
    n_norms = n_quantised = 0;
    size_t row_bytes = WIDTH / 32 * 20, at;
    uint8_t *file = mem_alloc(row_bytes * OUT), *packed = mem_alloc(row_bytes * OUT);
    random_rows(QTYPE_Q4_1, file, OUT * WIDTH / 32, 0);
    for (uint32_t p = 0; p < OUT / 16; p++)
        assert_true(tile_pack(QTYPE_Q4_1, file + p * 16 * row_bytes, 16, WIDTH,
                              packed + p * 16 * row_bytes));
    struct mat m = {QTYPE_Q4_1, OUT, WIDTH, packed, 0};
    struct kern_norm norm = {.layer = layer, .weight = w, .bias = layer ? w : NULL, .eps = 1e-5f};
    struct act_room a = new_act(ROWS, WIDTH), b = new_act(ROWS, WIDTH);
    void *scratch = mem_alloc(kern_scratch_bytes(WIDTH));
    fill(x, ROWS * WIDTH, GAUSS);
    fill(w, WIDTH, GAUSS);
    for (uint32_t r = 0; r < ROWS; r++) {
        kern_norm_row(&counting, &norm, x + r * WIDTH, WIDTH, y + r * WIDTH, &a.a, r);
        if (layer)
            k->layernorm(x + r * WIDTH, w, w, z + r * WIDTH, WIDTH, 1e-5f);
        else
            k->rmsnorm(x + r * WIDTH, w, z + r * WIDTH, WIDTH, 1e-5f);
        k->quantise(z + r * WIDTH, &b.a, r);
    }
    for (uint32_t p = 0; p < OUT / 16; p++) /* as threads split it */
        counting.linear(&m, p, p + 1, &a.a, y, WIDTH, ROWS, split, OUT, scratch);
    k->linear(&m, 0, OUT / 16, &b.a, z, WIDTH, ROWS, one, OUT, scratch);
    assert_true(same(split, one, ROWS * OUT, &at));
    assert_int_equal(n_norms, ROWS);
    assert_int_equal(n_quantised, ROWS);
    mem_free(scratch);
    mem_free(file);
    mem_free(packed);
    free_act(&a);
    free_act(&b);
}

/* kern_norm_row and the product of its output, for LayerNorm and RMSNorm: values by hand, a
 * constant row, and the bits of norm, quantiser and product one after another. Each row is
 * normalised and quantised once. */
static void test_norm_and_linear(void **state)
{
    (void)state;
    for (unsigned l = 0; l <= n_levels; l++) {
        const struct kern *k = l == n_levels ? &kern_scalar : levels[l];
        fused_vector(k);
        fused_equals_unfused(k, true);
        fused_equals_unfused(k, false);
    }
}

/* The product of one Q4_K block with x = 256 ones, at the level k, and a bias of 0.5. */
static float q4_k_product(const struct kern *k, float d, float dmin, const uint8_t *scales,
                          uint8_t nibbles)
{
    const float half = 0.5f;
    uint8_t block[144], packed[144 * 16];
    float x[256], out[16];
    uint16_t h = f16_from_f32(d), m = f16_from_f32(dmin);
    memcpy(block, &h, 2);
    memcpy(block + 2, &m, 2);
    memcpy(block + 4, scales, 12);
    memset(block + 16, nibbles, 128);
    for (int i = 0; i < 256; i++) x[i] = 1;
    struct act_room a = new_act(1, 256);
    k->quantise(x, &a.a, 0);
    assert_true(tile_pack(QTYPE_Q4_K, block, 1, 256, packed));
    struct mat mat = {QTYPE_Q4_K, 1, 256, packed, 0};
    void *scratch = mem_alloc(kern_scratch_bytes(256));
    k->linear(&mat, 0, 1, &a.a, x, 256, 1, out, 16, scratch);
    mem_free(scratch);
    free_act(&a);
    kern_add_bias(out, &half, 1);
    return out[0];
}

static void test_q4_k_vectors(void **state)
{
    (void)state;
    const uint8_t ones[12] = {1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1};
    const uint8_t mins[12] = {1, 1, 1, 1, 1, 1, 1, 1, 0x11, 0x11, 0x11, 0x11};
    const uint8_t high[12] = {0xc1, 0xc2, 0xc3, 0xc4, 0, 0, 0, 0, 0x0f, 0x0e, 0x0d, 0x0c};
    for (unsigned l = 0; l <= n_levels; l++) {
        const struct kern *k = l == n_levels ? &kern_scalar : levels[l];
        assert_float_equal(q4_k_product(k, 1, 0, ones, 0x21), 384.5, 1e-4);
        assert_float_equal(q4_k_product(k, 1, 1, mins, 0x21), 128.5, 1e-4);
        assert_float_equal(q4_k_product(k, 1, 0, high, 0x11), 8192.5, 2e-3);
    }
    assert_int_equal(tile_panel_bytes(QTYPE_Q4_K, 4096) * (4096 / 16), 9437184);
}

/* Blocks of keys and values: errors in f64 against the bounds that quant.h promises, at every size
 * from 2^-37 to the largest; relative RMSE of Gaussian blocks. */
static void test_kv_blocks(void **state)
{
    (void)state;
    double err8 = 0, err4 = 0, power = 0;
    struct qblock b, again;
    float x[32], y[32];
    for (int round = 0; round < 200000; round++) {
        /* A third of them Gaussian with sigma 1, the others of any size. */
        float amax = 0,
              scale = round % 3 ? fm_float((uint32_t)(90 + rng_below(&rng, 60)) << 23) : 1;
        for (int i = 0; i < 32; i++) {
            x[i] = gauss() * scale;
            amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        }
        if (amax < 0x1p-37f) continue;
        quant_encode(QTYPE_Q8_0, x, &b);
        quant_values(QTYPE_Q8_0, &b, y);
        for (int i = 0; i < 32; i++) {
            double error = fabs((double)x[i] - (double)y[i]), limit = (double)amax / 254;
            if (error > limit * (1 + 0x1p-10))
                fail_msg("amax %g: error %.4f of amax / 254", (double)amax, error / limit);
            err8 += scale == 1 ? error * error : 0;
            power += scale == 1 ? (double)x[i] * (double)x[i] : 0;
        }
        quant_encode(QTYPE_Q8_0, y, &again);
        assert_int_equal(again.d, b.d);
        assert_memory_equal(again.u, b.u, 32);
        if (scale != 1) continue;
        quant_encode(QTYPE_Q4_0, x, &b);
        quant_values(QTYPE_Q4_0, &b, y);
        for (int i = 0; i < 32; i++) err4 += pow((double)x[i] - (double)y[i], 2);
    }
    assert_true(sqrt(err8 / power) <= 0.006);
    assert_true(sqrt(err4 / power) <= 0.10);
}

/* What saturates, what is too small and what is not finite. */
static void test_kv_blocks_at_the_ends(void **state)
{
    (void)state;
    struct qblock b;
    float x[32], y[32];
    for (int type = 0; type < 2; type++) {
        enum qtype t = type ? QTYPE_Q8_0 : QTYPE_Q4_0;
        const float tiny[] = {0, 0x1p-149f, 0x1p-126f, 0x1p-121f, 0x1p-60f};
        for (int i = 0; i < 5; i++) {
            for (int k = 0; k < 32; k++) x[k] = k % 2 ? -tiny[i] : tiny[i];
            quant_encode(t, x, &b);
            quant_values(t, &b, y);
            for (int k = 0; k < 32; k++) assert_true(fabsf(y[k]) <= tiny[i]);
            for (int k = 0; k < 32 && i < 4; k++) assert_int_equal(b.u[k], type ? 0 : 8);
        }
        const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
        for (int i = 0; i < 4; i++) {
            x[7] = bad[i];
            quant_encode(t, x, &b);
            assert_false(f16_finite(b.d)); /* flagged: every product with it is a NaN */
            quant_values(t, &b, y);
            assert_true(y[0] != y[0]);
        }
    }
    /* A block at every scale that there is, from 2^-44 on, has the same scale when it is quantised
     * again. */
    for (uint32_t h = 0x400; h < 0x7c00; h++)
        for (uint32_t small = 0; small < 2; small++) {
            b = (struct qblock){.d = (uint16_t)(h | small << 15), .kv = true};
            memset(b.u, 1, 32);
            b.u[9] = 127;
            quant_values(QTYPE_Q8_0, &b, x);
            struct qblock again;
            quant_encode(QTYPE_Q8_0, x, &again);
            assert_int_equal(again.d, b.d);
        }
    /* The largest scale of small blocks, and the smallest of others: exact, also a second time. */
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 32; k++) x[k] = 127 * (i ? 0x1p-14f : 65504 * 0x1p-30f);
        for (int again = 0; again < 2; again++) {
            quant_encode(QTYPE_Q8_0, x, &b);
            assert_int_equal(b.d, i ? 0x0400 : 0xfbff);
            quant_values(QTYPE_Q8_0, &b, y);
            assert_memory_equal(x, y, sizeof x);
        }
    }
    /* Both signs of the largest value, at every size: neither wraps to the other sign. */
    for (int e = -60; e < 22; e++)
        for (int f = 0; f < 64; f++) {
            float amax = fm_float((uint32_t)(127 + e) << 23) * (1 + (float)f / 64);
            for (int k = 0; k < 32; k++) x[k] = k % 2 ? -amax : amax;
            quant_encode(QTYPE_Q8_0, x, &b);
            quant_values(QTYPE_Q8_0, &b, y);
            for (int k = 0; k < 32; k++)
                assert_true(fabsf(y[k] - x[k]) <= (e < -37 ? amax : amax / 253));
            quant_encode(QTYPE_Q4_0, x, &b); /* -8 is there, +8 is not: 7 stands for it */
            for (int k = 0; k < 32 && f16_finite(b.d); k++)
                assert_int_equal(b.u[k], k % 2 ? 15 : 0);
        }
}

int main(void)
{
    struct errmsg em;
    const struct kern *k;
    static const char *const names[] = {"avx2", "avx512"};
    for (size_t i = 0; i < 2; i++)
        if (cpu_kern(names[i], &k, &em) == 0)
            levels[n_levels++] = k;
        else
            (void)printf("not tested here: %s\n", em.text);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_quantise),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_step_of_k_and_1_rows_equals_k_and_1_steps),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_oracle_against_f64),
        cmocka_unit_test(test_linear_vector),
        cmocka_unit_test(test_norm_and_linear),
        cmocka_unit_test(test_q4_k_vectors),
        cmocka_unit_test(test_kv_blocks),
        cmocka_unit_test(test_kv_blocks_at_the_ends),
        cmocka_unit_test(test_half_precision),
        cmocka_unit_test(test_half_precision_of_levels),
        cmocka_unit_test(test_linear_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
