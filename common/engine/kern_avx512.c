/* The AVX-512 (F, BW, VL, DQ) + VNNI level. What is not here is shared with AVX2 (kern_vec.h). 16
 * rows of a tile are one zmm; dpbusd adds four products u8 x s8 to every 32-bit lane, exactly.
 *
 * The biases of the types cost nothing: the sum of (w - bias) q begins at -bias times the sum of q.
 * 8-bit weights become unsigned by w + 128, a bias like the others. */
#include "common/engine/kern_vec.h"

#define LOAD(p) _mm512_loadu_si512((const void *)(p))
#define TOKENS_AT_ONCE 8

VEC_INLINE __m512i low_nibbles(__m512i w)
{
    return _mm512_and_si512(w, _mm512_set1_epi8(15));
}

VEC_INLINE __m512i high_nibbles(__m512i w)
{
    return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
}

VEC_INLINE __m512i make_unsigned(__m512i w)
{
    return _mm512_xor_si512(w, _mm512_set1_epi8(-128));
}

VEC_INLINE __m512i four(const int8_t *q, int group)
{
    return _mm512_set1_epi32(four_at(q, group));
}

VEC_INLINE vec scales(const uint8_t *p)
{
    return vec_half((const uint16_t *)(const void *)p);
}

/* ---- one token: straight from the tiles ---- */

VEC_INLINE void decode_tiles(enum qtype type, int bias, const uint8_t *t, const struct act *a,
                             float *out)
{
    const bool wide = type == QTYPE_Q8_0, has_min = type == QTYPE_Q4_1;
    const size_t tile_bytes = wide ? 544 : has_min ? 320 : 288, d_at = wide ? 512 : 256;
    const int8_t *q = a->q;
    vec dot = vec_all(0.0f), off = dot;
    for (uint32_t b = 0; b < a->k / ACT_BLOCK; b++, t += tile_bytes, q += 32) {
        prefetch(t, tile_bytes);
        __m512i u = _mm512_set1_epi32(-bias * a->s[b]), v = _mm512_setzero_si512();
        for (int j = 0; j < 4; j++) {
            __m512i w = wide ? make_unsigned(LOAD(t + 128 * j)) : LOAD(t + 64 * j);
            __m512i first = wide ? w : low_nibbles(w);
            __m512i second = wide ? make_unsigned(LOAD(t + 128 * j + 64)) : high_nibbles(w);
            u = _mm512_dpbusd_epi32(u, first, four(q, 2 * j));
            v = _mm512_dpbusd_epi32(v, second, four(q, 2 * j + 1));
        }
        vec i = _mm512_cvtepi32_ps(_mm512_add_epi32(u, v));
        dot = vec_fma(vec_mul(i, scales(t + d_at)), vec_all(a->x[b]), dot);
        if (has_min) off = vec_fma(scales(t + d_at + 32), vec_all(a->y[b]), off);
    }
    vec_store(out, has_min ? vec_add(dot, off) : dot);
}

static void decode(enum qtype type, const uint8_t *panel, const struct act *a, float *out)
{
    switch (type) {
    case QTYPE_Q4_0: decode_tiles(QTYPE_Q4_0, 8, panel, a, out); break;
    case QTYPE_Q4_1: decode_tiles(QTYPE_Q4_1, 0, panel, a, out); break;
    case QTYPE_Q8_0: decode_tiles(QTYPE_Q8_0, 128, panel, a, out); break;
    default: break;
    }
}

/* ---- many tokens: a panel is unpacked once to unsigned bytes [k/4][16 rows][4] ---- */

static void unpack_panel(enum qtype type, const uint8_t *t, uint32_t n_blocks, uint8_t *w, float *d,
                         float *m)
{
    for (uint32_t b = 0; b < n_blocks; b++, d += 16, m += 16) {
        for (int j = 0; j < 4; j++, w += 128) {
            __m512i v = LOAD(t);
            if (type == QTYPE_Q8_0) {
                _mm512_storeu_si512(w, make_unsigned(v));
                _mm512_storeu_si512(w + 64, make_unsigned(LOAD(t + 64)));
                t += 128;
            } else {
                _mm512_storeu_si512(w, low_nibbles(v));
                _mm512_storeu_si512(w + 64, high_nibbles(v));
                t += 64;
            }
        }
        vec_store(d, scales(t));
        t += 32;
        if (type == QTYPE_Q4_1) {
            vec_store(m, scales(t));
            t += 32;
        }
    }
}

/* 16 rows x n tokens; n is a constant. */
VEC_INLINE void many(const struct panel *p, struct tokens a, int n, bool has_min, float *out,
                     size_t ldo)
{
    vec dot[TOKENS_AT_ONCE], off[TOKENS_AT_ONCE];
    for (int t = 0; t < n; t++) dot[t] = off[t] = vec_all(0.0f);
    const uint8_t *w = p->w;
    const float *d = p->d, *m = p->m;
    for (uint32_t b = 0; b < p->n_blocks; b++, d += 16, m += 16) {
        __m512i sum[TOKENS_AT_ONCE];
        for (int t = 0; t < n; t++) sum[t] = _mm512_set1_epi32(-p->bias * a.s[t]);
#pragma GCC unroll 4
        for (int g = 0; g < 8; g++, w += 64) {
            __m512i v = LOAD(w);
            for (int t = 0; t < n; t++)
                sum[t] = _mm512_dpbusd_epi32(sum[t], v, four(a.q + 32 * t, g));
        }
        vec scale = vec_load(d), min = vec_load(m);
        for (int t = 0; t < n; t++) {
            dot[t] = vec_fma(vec_mul(_mm512_cvtepi32_ps(sum[t]), scale), vec_all(a.x[t]), dot[t]);
            if (has_min) off[t] = vec_fma(min, vec_all(a.y[t]), off[t]);
        }
        a.q += 32 * a.group;
        a.x += a.group;
        a.y += a.group;
        a.s += a.group;
    }
    for (int t = 0; t < n; t++)
        vec_store(out + (size_t)t * ldo, has_min ? vec_add(dot[t], off[t]) : dot[t]);
}

#define MANY(n)                                                                                    \
    static __attribute__((noinline)) void many_##n(const struct panel *p, const struct tokens *a,  \
                                                   bool has_min, float *out, size_t ldo)           \
    {                                                                                              \
        has_min ? many(p, *a, n, true, out, ldo) : many(p, *a, n, false, out, ldo);                \
    }
MANY(1)
MANY(2)
MANY(4)
MANY(8)
#undef MANY

static void panel_many(enum qtype type, const uint8_t *tiles, const struct act *a, float *out,
                       size_t ldo, uint8_t *scratch)
{
    uint32_t nb = a->k / ACT_BLOCK;
    float *d = (float *)(void *)(scratch + (size_t)a->k * TILE_ROWS * 2), *m = d + nb * 16;
    unpack_panel(type, tiles, nb, scratch, d, m);
    struct panel p = {scratch, d, m, nb,
                      type == QTYPE_Q8_0 ? 128 : qtype_info((uint32_t)type)->bias};
    bool has_min = type == QTYPE_Q4_1;
    for (uint32_t t = 0, n; t < a->n_tokens; t += n) {
        struct tokens tok = tokens_at(a, t, TOKENS_AT_ONCE, &n);
        n = n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
        switch (n) {
        case 8: many_8(&p, &tok, has_min, out + t * ldo, ldo); break;
        case 4: many_4(&p, &tok, has_min, out + t * ldo, ldo); break;
        case 2: many_2(&p, &tok, has_min, out + t * ldo, ldo); break;
        default: many_1(&p, &tok, has_min, out + t * ldo, ldo); break;
        }
    }
}

const struct kern kern_avx512 = {
    .name = "avx512",
    .quantise = quantise,
    .linear = linear,
    .rmsnorm = rmsnorm,
    .silu_mul = silu_mul,
    .rope = rope,
    .kv_store = kv_store,
    .attn_span = attn_span,
};
