/* The product of quantised weights and activations at the vector levels, written once over the
 * operations of vec.h. Each function is given its type as a constant, so that the layout of the
 * tile (tile.h) folds into addresses and shifts. Mirrors linear of kern_scalar.c.
 *
 * One token reads the tiles strictly forwards with two prefetches a line, a far one to L2 and a
 * near one to L1: one alone is slower than none, both together give 90 % of the memory's read rate.
 * Few tokens do the same, VEC_TOKENS at a time: each tile is unpacked in registers once and used
 * for all of them. Many tokens share a panel that is unpacked once to bytes and f32 scales; there
 * types differ only in their sub-blocks, minima and bits. struct mat says how many are few. */
#ifndef FLOTILLA_ENGINE_KERN_DOT_H
#define FLOTILLA_ENGINE_KERN_DOT_H

#include "common/engine/kern.h"
#include "common/engine/tile.h"
#include "common/engine/vec.h"

/* How many bytes ahead of its reads a product of one token prefetches tiles. The two numbers are
 * hidden from the compiler: in an unrolled tile it would see that one's far address is another's
 * near one, and keep all of them, in vector registers when it has no others (7 % of Q4_K). */
struct ahead {
    size_t far, near;
};

VEC_INLINE struct ahead ahead_of(const struct tile l)
{
    struct ahead a = {l.block == 32 ? 4096 : 3328, 1024};
    __asm__("" : "+r"(a.far), "+r"(a.near));
    return a;
}

VEC_INLINE void prefetch(const uint8_t *p, size_t bytes, struct ahead a)
{
    for (size_t i = 0; i < bytes; i += 64) {
        vec_prefetch_l2(p + i + a.far);
        vec_prefetch_l1(p + i + a.near);
    }
}

VEC_INLINE vec half_at(const uint8_t *p)
{
    return vec_half((const uint16_t *)(const void *)p);
}

/* d of the 16 rows of a tile. */
VEC_INLINE vec tile_scale(const enum qtype type, const struct tile l, const uint8_t *t)
{
    return type == QTYPE_MXFP4 ? vec_powers(t + l.d_at) : half_at(t + l.d_at);
}

/* Bits of a weight as isum_add takes it. */
VEC_INLINE int bits_of(const struct tile l)
{
    switch (l.values) {
    case VALUES_IQ4: return 8;
    case VALUES_FP4:
    case VALUES_GRID: return 5;
    case VALUES_PLAIN: break;
    }
    return l.low + l.high;
}

/* Products that may be added before isum_flush. */
VEC_INLINE int adds_of(const struct tile l)
{
    int bits = bits_of(l);
    return bits <= 4 ? 8 : bits == 5 ? 4 : 2;
}

VEC_INLINE int32_t bias_of(const struct tile l)
{
    return bits_of(l) == 8 ? IV_BIAS_8BIT : l.bias;
}

/* ---- what a tile holds ---- */

/* The four weights of group g of each row, as isum_add takes them. */
VEC_INLINE ivec group_at(const struct tile l, const uint8_t *t, uint32_t g)
{
    ivec w = iv_load(t + tile_low_at(l, g));
    if (l.low == 8) return iv_8bit(w);
    if (l.values == VALUES_GRID) {
        const uint32_t cell = g / 8, bit = g % 8;
        w = iv_entries(quant_grid, w, (int)(g % 4), iv_load(t + tile_ninth_at(cell)),
                       (int)(8 * (cell % 4) + bit));
        return iv_about(l.bias, w, iv_load(t + tile_high_at(l, g)), 1 << bit);
    }
    w = iv_and(iv_shr(w, (int)tile_low_shift(l, g)), (1 << l.low) - 1);
    if (l.values == VALUES_IQ4) return iv_8bit(iv_table(quant_iq4, w));
    if (l.values == VALUES_FP4) return iv_table(quant_fp4, w);
    if (!l.high) return w;
    int to = l.low, from = (int)tile_high_shift(l, g);
    ivec h = iv_load(t + tile_high_at(l, g));
    h = from < to ? iv_shl(h, to - from) : iv_shr(h, from - to);
    return iv_merge(w, h, ((1 << l.high) - 1) << to);
}

/* Four low bits from `low`, two high bits from place `at` (in bits) of `high`. */
VEC_INLINE ivec six_bits(ivec low, bool upper, ivec high, int at)
{
    ivec h = at < 4 ? iv_shl(high, 4 - at) : iv_shr(high, at - 4);
    return iv_merge(iv_and(upper ? iv_shr(low, 4) : low, 15), h, 0x30);
}

/* The half byte j of each row's word at t. */
VEC_INLINE vec half_scale(const uint8_t *t, int j)
{
    return iv_unsigned(iv_and(iv_shr(iv_load(t), j & 1 ? 4 : 0), 15), j / 2);
}

/* D of sub-block j, d being the tile's. */
VEC_INLINE vec scale_at(enum qtype type, const uint8_t *t, vec d, int j)
{
    switch (type) {
    case QTYPE_Q2_K: return vec_mul(d, iv_unsigned(iv_and(iv_load(t + 64 * (j / 4)), 15), j & 3));
    case QTYPE_Q3_K: {
        ivec s = six_bits(iv_load(t + 64 * (j / 8)), j & 4, iv_load(t + 128), 2 * (j / 4));
        return vec_mul(d, vec_sub(iv_unsigned(s, j & 3), vec_all(32.0f)));
    }
    case QTYPE_Q4_K:
    case QTYPE_Q5_K: {
        ivec s = six_bits(iv_load(t), j & 4, iv_load(t + 128), 2 * (j / 4));
        return vec_mul(d, iv_unsigned(s, j & 3));
    }
    case QTYPE_Q6_K: return vec_mul(d, iv_signed(iv_load(t + 64 * (j / 4)), j & 3));
    case QTYPE_IQ4_XS: {
        ivec high = iv_and(iv_shr(iv_words(t + 64), 2 * (j & 3)), 3);
        vec s = vec_fma(iv_unsigned(high, j / 4), vec_all(16.0f), half_scale(t, j));
        return vec_mul(d, vec_sub(s, vec_all(32.0f)));
    }
    case QTYPE_IQ3_S: return vec_mul(d, vec_fma(half_scale(t, j), vec_all(2.0f), vec_all(1.0f)));
    case QTYPE_Q4_0:
    case QTYPE_Q4_1:
    case QTYPE_Q5_0:
    case QTYPE_Q5_1:
    case QTYPE_Q8_0:
    case QTYPE_IQ4_NL:
    case QTYPE_MXFP4:
    case QTYPE_FLOATS: break;
    }
    return d;
}

/* M of sub-block j; m is the tile's, negative in K-quants. */
VEC_INLINE vec min_at(enum qtype type, const uint8_t *t, vec m, int j)
{
    switch (type) {
    case QTYPE_Q2_K: {
        ivec s = iv_and(iv_shr(iv_load(t + 64 * (j / 4)), 4), 15);
        return vec_mul(m, iv_unsigned(s, j & 3));
    }
    case QTYPE_Q4_K:
    case QTYPE_Q5_K: {
        ivec s = six_bits(iv_load(t + 64), j & 4, iv_load(t + 128), 4 + 2 * (j / 4));
        return vec_mul(m, iv_unsigned(s, j & 3));
    }
    case QTYPE_Q4_0:
    case QTYPE_Q4_1:
    case QTYPE_Q5_0:
    case QTYPE_Q5_1:
    case QTYPE_Q8_0:
    case QTYPE_Q3_K:
    case QTYPE_Q6_K:
    case QTYPE_IQ4_NL:
    case QTYPE_IQ3_S:
    case QTYPE_IQ4_XS:
    case QTYPE_MXFP4:
    case QTYPE_FLOATS: break;
    }
    return m;
}

VEC_INLINE vec tile_min(const struct tile l, const uint8_t *t)
{
    if (!l.has_min) return vec_all(0.0f);
    vec m = half_at(t + l.m_at);
    return l.block > 32 ? vec_negate(m) : m;
}

/* ---- one token: straight from the tiles ---- */

/* quant_kv_scale in every lane. */
VEC_INLINE vec kv_scales(vec d)
{
    return vec_max(vec_mul(d, vec_all(-0x1p-30f)), d); /* of a NaN the second: d */
}

/* kv, a constant: the tiles hold keys, not weights. */
VEC_INLINE void dot_tiles(const enum qtype type, const bool kv, const uint8_t *t,
                          const struct act *a, float *out)
{
    const struct tile l = tile_of(type);
    const int groups = l.sub / 4, subs = l.block / l.sub, bits = bits_of(l);
    const struct ahead ahead = ahead_of(l);
    const int8_t *q = a->q;
    vec dot = vec_all(0.0f), off = dot;
    for (uint32_t b = 0; b < a->k / l.block; b++, t += l.bytes) {
        vec d = tile_scale(type, l, t), m = tile_min(l, t);
        if (kv && type == QTYPE_Q8_0) d = kv_scales(d);
        prefetch(t, l.block == 32 ? l.bytes : l.cells_at, ahead);
#pragma GCC unroll 16
        for (int j = 0; j < subs; j++, q += l.sub) {
            uint32_t block = (b * l.block + (uint32_t)(j * l.sub)) / 32;
            int32_t total = l.sub == 32 ? a->s[block] : a->h[2 * block + (j & 1)];
            struct isum s = isum_start(-bias_of(l) * total);
            if (l.block > 32 && j * l.sub % l.cell == 0)
                prefetch(t + l.cells_at + (uint32_t)(j * l.sub / l.cell) * tile_cell_bytes(l),
                         tile_cell_bytes(l), ahead);
#pragma GCC unroll 8
            for (int g = 0; g < groups; g++) {
                ivec w = group_at(l, t, (uint32_t)(j * groups + g));
                isum_add(&s, g & 1, bits, w, iv_four(q + 4 * g));
                if (bits < 8 && ((g + 1) % adds_of(l) == 0 || g + 1 == groups)) isum_flush(&s);
            }
            vec scaled = vec_mul(isum_float(&s, true), scale_at(type, t, d, j));
            dot = vec_fma(scaled, vec_all(a->x[block]), dot);
            if (l.has_min) {
                float y = l.sub == 32 ? a->y[block] : a->x[block] * (float)total;
                off = vec_fma(min_at(type, t, m, j), vec_all(y), off);
            }
        }
    }
    vec_store(out, l.has_min ? vec_add(dot, off) : dot);
}

static void dot_one(enum qtype type, const uint8_t *panel, const struct act *a, float *out)
{
    switch (type) {
#define X(name, number, block, bytes)                                                              \
    case QTYPE_##name: dot_tiles(QTYPE_##name, false, panel, a, out); break;
        QTYPES_BLOCK(X)
#undef X
    case QTYPE_FLOATS: break;
    }
}

/* ---- a block of tokens ---- */

/* Where a token group's data lie. */
struct tokens {
    const int8_t *q;
    const float *x, *y;
    const int32_t *s, *h;
    uint32_t group; /* tokens in the group: the stride between blocks */
};

/* The tokens from `token` on, at most `most` and not beyond their group; *ret_n says how many. */
VEC_INLINE struct tokens tokens_at(const struct act *a, uint32_t token, uint32_t most,
                                   uint32_t *ret_n)
{
    uint32_t in_group = token % ACT_GROUP, left = a->n_tokens - (token - in_group);
    uint32_t group = left < ACT_GROUP ? left : ACT_GROUP;
    size_t at = act_index(a, token, 0);
    *ret_n = group - in_group < most ? group - in_group : most;
    return (struct tokens){a->q + at * 32, a->x + at, a->y + at, a->s + at, a->h + 2 * at, group};
}

/* The same tokens' data of the next block. */
VEC_INLINE struct tokens tokens_next(struct tokens a)
{
    return (struct tokens){a.q + 32 * a.group, a.x + a.group,     a.y + a.group,
                           a.s + a.group,      a.h + 2 * a.group, a.group};
}

/* How many of n tokens are taken at once: about as many in every pass over a panel, and never 5 or
 * 7, for which there are no functions. */
VEC_INLINE uint32_t pass_of(uint32_t n)
{
    uint32_t passes = (n + VEC_TOKENS - 1) / VEC_TOKENS, each = (n + passes - 1) / passes;
    return each == 5 || each == 7 ? each - 1 : each;
}

#if VEC_TOKENS == 8
#define TOKEN_COUNTS(X, ...)                                                                       \
    X(1, __VA_ARGS__)                                                                              \
    X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(6, __VA_ARGS__) X(8, __VA_ARGS__)
#else
#define TOKEN_COUNTS(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#endif

/* s[t] += the products of one sub-block with n tokens (a constant). The weights of its groups lie
 * in vectors one after the other (a panel), or are those of a tile's cells from group g0 on (tiles,
 * a constant). Each group is taken once for all tokens. isum_pin keeps the order: gcc computes all
 * products first otherwise, and spills them, which takes half as long again. */
VEC_INLINE void add_groups(const struct tile l, const bool tiles, const uint8_t *w, uint32_t g0,
                           const int8_t *q, const int n, struct isum *s)
{
    const int groups = l.sub / 4, bits = bits_of(l), step = bits == 6 ? 2 : 1;
#pragma GCC unroll 8
    for (int g = 0; g < groups; g += step) {
        const bool flush = bits < 8 && ((g + step) % adds_of(l) == 0 || g + step == groups);
        ivec v[2];
        for (int i = 0; i < step; i++)
            v[i] = tiles ? group_at(l, w, g0 + (uint32_t)(g + i)) : iv_load(w + 64 * (g + i));
#pragma GCC unroll 8
        for (int t = 0; t < n; t++) {
            for (int i = 0; i < step; i++)
                isum_add(&s[t], 0, bits, v[i], iv_four(q + 32 * t + 4 * (g + i)));
            if (flush) isum_flush(&s[t]);
            isum_pin(&s[t], flush || bits == 8);
        }
    }
}

/* The chains of n tokens, one sub-block on: the sums s times the scales of the rows, and their
 * minima. */
VEC_INLINE void add_results(const struct tile l, const int n, int half, const struct tokens *a,
                            const struct isum *s, vec scale, vec min, vec *dot, vec *off)
{
#pragma GCC unroll 8
    for (int t = 0; t < n; t++) {
        vec scaled = vec_mul(isum_float(&s[t], false), scale);
        dot[t] = vec_fma(scaled, vec_all(a->x[t]), dot[t]);
        if (!l.has_min) continue;
        float y = l.sub == 32 ? a->y[t] : a->x[t] * (float)a->h[2 * t + half];
        off[t] = vec_fma(min, vec_all(y), off[t]);
    }
    for (int t = 0; t < n; t++) vec_park(&dot[t]);
    for (int t = 0; t < n && l.has_min; t++) vec_park(&off[t]);
}

/* ---- few tokens: straight from the tiles ---- */

/* Where sums of products start: -bias times the sums of q, for each block and token, and each half
 * of a block where sub-blocks are halves. */
static const int32_t *starts_of(enum qtype type, const struct act *a, int32_t *room)
{
    const struct tile l = tile_of(type);
    const int32_t *sums = l.sub == 32 ? a->s : a->h, bias = bias_of(l);
    size_t n = (size_t)a->n_tokens * (a->k / l.sub);
    for (size_t i = 0; i < n; i++) room[i] = -bias * sums[i];
    return room;
}

/* A panel of tiles x n tokens; the type and n are constants. */
VEC_INLINE void dot_block(const enum qtype type, const int n, const uint8_t *t, uint32_t k,
                          struct tokens a, const int32_t *starts, float *out, size_t ldo)
{
    const struct tile l = tile_of(type);
    const int subs = l.block / l.sub, halves = 32 / l.sub;
    const struct ahead ahead = ahead_of(l);
    float d[QBLOCK_SUBS][16], m[QBLOCK_SUBS][16]; /* of the sub-blocks, where there are several */
    vec dot[VEC_TOKENS], off[VEC_TOKENS];
    for (int i = 0; i < n; i++) dot[i] = off[i] = vec_all(0.0f);
    for (uint32_t b = 0; b < k / l.block; b++, t += l.bytes) {
        prefetch(t, l.bytes, ahead);
        if (l.block > 32) {
            const vec td = tile_scale(type, l, t), tm = tile_min(l, t);
#pragma GCC unroll 16
            for (int j = 0; j < subs; j++) {
                vec_store(d[j], scale_at(type, t, td, j));
                if (l.has_min) vec_store(m[j], min_at(type, t, tm, j));
            }
        }
#pragma GCC unroll 1
        for (int c = 0; c < l.block / 32; c++) {
            /* The groups are counted from their cell on; but some bits of a grid's indices lie
             * outside the cells. */
            const bool grid = l.values == VALUES_GRID;
            const uint8_t *from = grid ? t : t + (uint32_t)(c * 32 / l.cell) * tile_cell_bytes(l);
            const int g0 = grid ? 8 * c : 0;
#pragma GCC unroll 2
            for (int half = 0; half < halves; half++) {
                const int j = c * halves + half;
                struct isum s[VEC_TOKENS];
                for (int i = 0; i < n; i++)
                    s[i] = isum_start(bias_of(l) ? starts[halves * i + half] : 0);
                add_groups(l, true, from, (uint32_t)(g0 + half * l.sub / 4), a.q + l.sub * half, n,
                           s);
                const vec scale = l.block > 32 ? vec_load(d[j]) : tile_scale(type, l, t);
                const vec min = l.has_min && l.block > 32 ? vec_load(m[j]) : tile_min(l, t);
                add_results(l, n, half, &a, s, scale, min, dot, off);
            }
            starts += (uint32_t)halves * a.group;
            a = tokens_next(a);
        }
    }
    for (int i = 0; i < n; i++)
        vec_store(out + (size_t)i * ldo, l.has_min ? vec_add(dot[i], off[i]) : dot[i]);
}

#define BLOCK_OF(n, name)                                                                          \
    static __attribute__((noinline)) void dot_##name##_##n(                                        \
        const uint8_t *t, uint32_t k, const struct tokens *a, const int32_t *starts, float *out,   \
        size_t ldo)                                                                                \
    {                                                                                              \
        dot_block(QTYPE_##name, n, t, k, *a, starts, out, ldo);                                    \
    }
#define BLOCK_CASE(n, name)                                                                        \
    case n:                                                                                        \
        dot_##name##_##n(t, k, a, starts, out, ldo);                                               \
        break;
#define X(name, number, block, bytes)                                                              \
    TOKEN_COUNTS(BLOCK_OF, name)                                                                   \
    static void dot_##name(uint32_t n, const uint8_t *t, uint32_t k, const struct tokens *a,       \
                           const int32_t *starts, float *out, size_t ldo)                          \
    {                                                                                              \
        switch (n) {                                                                               \
            TOKEN_COUNTS(BLOCK_CASE, name)                                                         \
        default: break;                                                                            \
        }                                                                                          \
    }
QTYPES_BLOCK(X)
#undef X
#undef BLOCK_OF
#undef BLOCK_CASE

/* All tokens of `a` over one panel of tiles. */
static void dot_few(enum qtype type, const uint8_t *t, const struct act *a, const int32_t *starts,
                    float *out, size_t ldo)
{
    const uint32_t halves = 32u / tile_of(type).sub;
    for (uint32_t i = 0, n; i < a->n_tokens; i += n) {
        struct tokens tok = tokens_at(a, i, ACT_GROUP, &n);
        const int32_t *from = starts + halves * act_index(a, i, 0);
        float *o = out + i * ldo;
        n = pass_of(n);
        switch (type) {
#define X(name, number, block, bytes)                                                              \
    case QTYPE_##name: dot_##name(n, t, a->k, &tok, from, o, ldo); break;
            QTYPES_BLOCK(X)
#undef X
        case QTYPE_FLOATS: break;
        }
    }
}

/* ---- many tokens: a panel is unpacked once ---- */

struct panel {
    const uint8_t *w;   /* [k / 4][16 rows][4] */
    const float *d, *m; /* [sub-block][16 rows] */
    uint32_t n_blocks;  /* of 32 */
};

VEC_INLINE void unpack_tiles(const enum qtype type, const uint8_t *t, uint32_t k, uint8_t *w,
                             float *d, float *m)
{
    const struct tile l = tile_of(type);
    const int subs = l.block / l.sub;
    for (uint32_t b = 0; b < k / l.block; b++, t += l.bytes) {
        vec td = tile_scale(type, l, t), tm = tile_min(l, t);
#pragma GCC unroll 16
        for (int j = 0; j < subs; j++, d += 16, m += 16) {
            vec_store(d, scale_at(type, t, td, j));
            if (l.has_min) vec_store(m, min_at(type, t, tm, j));
        }
        for (uint32_t g = 0; g < l.block / 4u; g += 8, w += 512)
#pragma GCC unroll 8
            for (uint32_t i = 0; i < 8; i++) iv_store(w + 64 * i, group_at(l, t, g + i));
    }
}

static void unpack_panel(enum qtype type, const uint8_t *t, uint32_t k, uint8_t *w, float *d,
                         float *m)
{
    switch (type) {
#define X(name, number, block, bytes)                                                              \
    case QTYPE_##name: unpack_tiles(QTYPE_##name, t, k, w, d, m); break;
        QTYPES_BLOCK(X)
#undef X
    case QTYPE_FLOATS: break;
    }
}

/* 16 rows x n tokens; n is a constant, and so is `type`, which stands for all types of its
 * sub-block, minima and bits. `bias` is the type's own. */
VEC_INLINE void dot_panel(const enum qtype type, const struct panel *p, int32_t bias,
                          struct tokens a, int n, float *out, size_t ldo)
{
    const struct tile l = tile_of(type);
    vec dot[VEC_TOKENS], off[VEC_TOKENS];
    for (int t = 0; t < n; t++) dot[t] = off[t] = vec_all(0.0f);
    const uint8_t *w = p->w;
    const float *d = p->d, *m = p->m;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        for (int half = 0; half < 32 / l.sub; half++, d += 16, m += 16) {
            struct isum s[VEC_TOKENS];
            for (int t = 0; t < n; t++)
                s[t] = isum_start(-bias * (l.sub == 32 ? a.s[t] : a.h[2 * t + half]));
            add_groups(l, false, w, 0, a.q + l.sub * half, n, s);
            w += 16 * l.sub;
            vec scale = vec_load(d), min = l.has_min ? vec_load(m) : scale;
            add_results(l, n, half, &a, s, scale, min, dot, off);
        }
        a = tokens_next(a);
    }
    for (int t = 0; t < n; t++)
        vec_store(out + (size_t)t * ldo, l.has_min ? vec_add(dot[t], off[t]) : dot[t]);
}

/* Types of the same sub-block, minima and bits are one shape. */
VEC_INLINE void dot_shape(enum qtype type, const struct panel *p, int32_t bias,
                          const struct tokens *a, int n, float *out, size_t ldo)
{
    switch (type) {
    case QTYPE_Q4_1:
    case QTYPE_Q4_K: dot_panel(QTYPE_Q4_1, p, bias, *a, n, out, ldo); break;
    case QTYPE_Q5_1:
    case QTYPE_Q5_K: dot_panel(QTYPE_Q5_1, p, bias, *a, n, out, ldo); break;
    case QTYPE_Q4_0: dot_panel(QTYPE_Q4_0, p, bias, *a, n, out, ldo); break;
    case QTYPE_Q5_0:
    case QTYPE_IQ3_S:
    case QTYPE_MXFP4: dot_panel(QTYPE_Q5_0, p, bias, *a, n, out, ldo); break;
    case QTYPE_Q8_0:
    case QTYPE_IQ4_NL:
    case QTYPE_IQ4_XS: dot_panel(QTYPE_Q8_0, p, bias, *a, n, out, ldo); break;
    case QTYPE_Q2_K: dot_panel(QTYPE_Q2_K, p, bias, *a, n, out, ldo); break;
    case QTYPE_Q3_K: dot_panel(QTYPE_Q3_K, p, bias, *a, n, out, ldo); break;
    case QTYPE_Q6_K: dot_panel(QTYPE_Q6_K, p, bias, *a, n, out, ldo); break;
    case QTYPE_FLOATS: break;
    }
}

#define X(n, unused)                                                                               \
    static __attribute__((noinline)) void dot_panel_##n(enum qtype type, const struct panel *p,    \
                                                        int32_t bias, const struct tokens *a,      \
                                                        float *out, size_t ldo)                    \
    {                                                                                              \
        dot_shape(type, p, bias, a, n, out, ldo);                                                  \
    }
TOKEN_COUNTS(X, )
#undef X

/* All tokens of `a` over one panel, which is unpacked first. */
static void dot_many(enum qtype type, const uint8_t *tiles, const struct act *a, float *out,
                     size_t ldo, uint8_t *scratch)
{
    float *d = (float *)(void *)(scratch + (size_t)a->k * TILE_ROWS);
    float *m = d + (size_t)a->k / tile_of(type).sub * TILE_ROWS;
    unpack_panel(type, tiles, a->k, scratch, d, m);
    struct panel p = {scratch, d, m, a->k / ACT_BLOCK};
    int32_t bias = bias_of(tile_of(type));
    for (uint32_t t = 0, n; t < a->n_tokens; t += n) {
        struct tokens tok = tokens_at(a, t, ACT_GROUP, &n);
        float *o = out + t * ldo;
        n = pass_of(n);
        switch (n) {
#define X(n, unused)                                                                               \
    case n: dot_panel_##n(type, &p, bias, &tok, o, ldo); break;
            TOKEN_COUNTS(X, )
#undef X
        default: break;
        }
    }
}

/* ---- nothing but products ---- */

/* A turn gives each of VEC_PEAK_SUMS sums as many groups as it may take before isum_flush. All
 * weights are one vector of ones, but the compiler is told each time that it is another: else it
 * would compute one product and add it everywhere, or multiply it by the number of rounds. */
#define PEAK_BITS 4
#define PEAK_GROUPS 8
#define PEAK_TURNS (KERN_PEAK_PRODUCTS / (64u * PEAK_GROUPS * VEC_PEAK_SUMS))
_Static_assert(PEAK_TURNS * 64u * PEAK_GROUPS * VEC_PEAK_SUMS == KERN_PEAK_PRODUCTS, "whole turns");

static uint32_t peak(uint32_t rounds)
{
    struct isum s[VEC_PEAK_SUMS];
    uint8_t ones[64];
    const uint8_t *p = ones;
    memset(ones, 1, sizeof ones);
    __asm__("" : "+r"(p) : : "memory"); /* what lies there may be anything */
    ivec w = iv_load(p);
    const ivec_four x = iv_four((const int8_t *)p);
#pragma GCC unroll 8
    for (int i = 0; i < VEC_PEAK_SUMS; i++) s[i] = isum_start(0);
    for (uint64_t turn = 0; turn < (uint64_t)rounds * PEAK_TURNS; turn++) {
#pragma GCC unroll 8
        for (int g = 0; g < PEAK_GROUPS; g++)
#pragma GCC unroll 8
            for (int i = 0; i < VEC_PEAK_SUMS; i++) {
                iv_hide(&w);
                isum_add(&s[i], g & 1, PEAK_BITS, w, x);
                isum_pin(&s[i], false);
            }
#pragma GCC unroll 8
        for (int i = 0; i < VEC_PEAK_SUMS; i++) {
            isum_flush(&s[i]);
            isum_pin(&s[i], true);
        }
    }
    uint32_t total = 0, words[TILE_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < VEC_PEAK_SUMS; i++) {
        iv_store((uint8_t *)(void *)words, isum_words(&s[i]));
        for (uint32_t j = 0; j < TILE_ROWS; j++) total += words[j];
    }
    return total;
}

#endif
