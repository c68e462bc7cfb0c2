/* The product of quantised weights and activations at the vector levels, written once over the
 * operations of vec.h. Each function is given its type as a constant, so that the layout of the
 * tile (tile.h) folds into addresses and shifts. Mirrors linear of kern_scalar.c.
 *
 * One token reads the tiles strictly forwards with two prefetches a line, a far one to L2 and a
 * near one to L1: one alone is slower than none, both together give 90 % of the memory's read rate.
 * Many tokens share a panel that is unpacked once to bytes and f32 scales; there types differ only
 * in their sub-blocks, minima and bits. */
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

/* 16 rows x n tokens; n is a constant, and so is `type`, which stands for all types of its
 * sub-block, minima and bits. `bias` is the type's own. */
VEC_INLINE void dot_panel(const enum qtype type, const struct panel *p, int32_t bias,
                          struct tokens a, int n, float *out, size_t ldo)
{
    const struct tile l = tile_of(type);
    const int groups = l.sub / 4, bits = bits_of(l);
    vec dot[VEC_TOKENS], off[VEC_TOKENS];
    for (int t = 0; t < n; t++) dot[t] = off[t] = vec_all(0.0f);
    const uint8_t *w = p->w;
    const float *d = p->d, *m = p->m;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        for (int half = 0; half < 32 / l.sub; half++, d += 16, m += 16) {
            struct isum s[VEC_TOKENS];
            for (int t = 0; t < n; t++)
                s[t] = isum_start(-bias * (l.sub == 32 ? a.s[t] : a.h[2 * t + half]));
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++, w += 64) {
                ivec v = iv_load(w);
                for (int t = 0; t < n; t++) {
                    isum_add(&s[t], 0, bits, v, iv_four(a.q + 32 * t + l.sub * half + 4 * g));
                    if (bits < 8 && ((g + 1) % adds_of(l) == 0 || g + 1 == groups))
                        isum_flush(&s[t]);
                }
            }
            vec scale = vec_load(d), min = l.has_min ? vec_load(m) : scale;
            for (int t = 0; t < n; t++) {
                dot[t] = vec_fma(vec_mul(isum_float(&s[t], false), scale), vec_all(a.x[t]), dot[t]);
                if (!l.has_min) continue;
                float y = l.sub == 32 ? a.y[t] : a.x[t] * (float)a.h[2 * t + half];
                off[t] = vec_fma(min, vec_all(y), off[t]);
            }
        }
        a.q += 32 * a.group;
        a.x += a.group;
        a.y += a.group;
        a.s += a.group;
        a.h += 2 * a.group;
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

#define TOKENS(n)                                                                                  \
    static __attribute__((noinline)) void dot_##n(enum qtype type, const struct panel *p,          \
                                                  int32_t bias, const struct tokens *a,            \
                                                  float *out, size_t ldo)                          \
    {                                                                                              \
        dot_shape(type, p, bias, a, n, out, ldo);                                                  \
    }
TOKENS(1)
TOKENS(2)
#if VEC_TOKENS == 8
TOKENS(4)
TOKENS(8)
#endif
#undef TOKENS

/* All tokens of `a` over one panel of tiles. */
static void dot_many(enum qtype type, const uint8_t *tiles, const struct act *a, float *out,
                     size_t ldo, uint8_t *scratch)
{
    float *d = (float *)(void *)(scratch + (size_t)a->k * TILE_ROWS);
    float *m = d + (size_t)a->k / tile_of(type).sub * TILE_ROWS;
    unpack_panel(type, tiles, a->k, scratch, d, m);
    struct panel p = {scratch, d, m, a->k / ACT_BLOCK};
    int32_t bias = bias_of(tile_of(type));
    for (uint32_t t = 0, n; t < a->n_tokens; t += n) {
        struct tokens tok = tokens_at(a, t, VEC_TOKENS, &n);
        float *o = out + t * ldo;
#if VEC_TOKENS == 8
        n = n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
        if (n == 8)
            dot_8(type, &p, bias, &tok, o, ldo);
        else if (n == 4)
            dot_4(type, &p, bias, &tok, o, ldo);
        else
#endif
            if (n == 2)
            dot_2(type, &p, bias, &tok, o, ldo);
        else
            dot_1(type, &p, bias, &tok, o, ldo);
    }
}

#endif
