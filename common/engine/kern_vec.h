/* What the vector levels share, written once over `vec` (vec.h): rows, attention, float weights,
 * and the quantiser. Each level's file includes it and is compiled for its instruction set;
 * everything is static, so each has its own copy. Mirrors kern_scalar.c function by function. */
#ifndef FLOTILLA_ENGINE_KERN_VEC_H
#define FLOTILLA_ENGINE_KERN_VEC_H

#include "common/base/fmath.h"
#include "common/engine/kern.h"
#include "common/engine/vec.h"

#include <string.h>

#define STORE(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), v)

/* Four activations, to be broadcast to every 32-bit lane. */
VEC_INLINE int32_t four_at(const int8_t *q, int group)
{
    int32_t v;
    memcpy(&v, q + 4 * group, sizeof v);
    return v;
}

VEC_INLINE void prefetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)p + i + 4096, _MM_HINT_T1);
        _mm_prefetch((const char *)p + i + 1024, _MM_HINT_T0);
    }
}

/* An unpacked panel, and where a token group's data lie. */
struct panel {
    const uint8_t *w;
    const float *d, *m;
    uint32_t n_blocks;
    int bias;
};

struct tokens {
    const int8_t *q;
    const float *x, *y;
    const int32_t *s;
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
    return (struct tokens){a->q + at * 32, a->x + at, a->y + at, a->s + at, group};
}

/* ---- activations ---- */

static uint32_t bits_max(const __m256 *f)
{
    __m256i mask = _mm256_set1_epi32(0x7fffffff), m = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(f[i]), mask));
    __m128i r = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    r = _mm_max_epi32(r, _mm_shuffle_epi32(r, 0x4e));
    r = _mm_max_epi32(r, _mm_shuffle_epi32(r, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(r);
}

static int32_t quantise_block(const __m256 *f, float id, int8_t *q)
{
    __m256i c[4], all = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        c[i] = _mm256_cvtps_epi32(_mm256_mul_ps(f[i], _mm256_set1_ps(id)));
        all = _mm256_add_epi32(all, c[i]);
    }
    __m256i lo = _mm256_packs_epi32(c[0], c[1]), hi = _mm256_packs_epi32(c[2], c[3]);
    STORE(q, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi),
                                         _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

static void quantise(const float *x, struct act *a, uint32_t token)
{
    for (uint32_t b = 0; b < a->k / ACT_BLOCK; b++, x += ACT_BLOCK) {
        size_t at = act_index(a, token, b);
        int8_t *q = a->q + at * ACT_BLOCK;
        __m256 f[4];
        for (int i = 0; i < 4; i++) f[i] = _mm256_loadu_ps(x + 8 * i);
        uint32_t bits = bits_max(f);
        if (bits >= 0x5f800000 || bits < 0x1f800000) {
            memset(q, 0, ACT_BLOCK);
            a->s[at] = 0;
            a->x[at] = a->y[at] = fm_float(bits >= 0x5f800000 ? 0x7fc00000 : 0);
            continue;
        }
        float amax = fm_float(bits);
        a->x[at] = amax / 127.0f;
        a->s[at] = quantise_block(f, 127.0f / amax, q);
        a->y[at] = a->x[at] * (float)a->s[at];
    }
}

/* ---- float weights ---- */

VEC_INLINE vec load_weights(bool half, const uint8_t *w)
{
    return half ? vec_half((const uint16_t *)(const void *)w)
                : vec_load((const float *)(const void *)w);
}

/* One panel x n tokens (a constant 1 or 4); each output is one chain over k. */
VEC_INLINE void floats(bool half, const uint8_t *w, uint32_t k, const float *x, size_t ldx, int n,
                       float *out, size_t ldo)
{
    const size_t step = half ? 32 : 64;
    vec dot[4];
    for (int t = 0; t < n; t++) dot[t] = vec_all(0.0f);
    for (uint32_t i = 0; i < k; i++, w += step) {
        _mm_prefetch((const char *)w + 1024, _MM_HINT_T0);
        vec v = load_weights(half, w);
        for (int t = 0; t < n; t++) dot[t] = vec_fma(v, vec_all(x[(size_t)t * ldx + i]), dot[t]);
    }
    for (int t = 0; t < n; t++) vec_store(out + (size_t)t * ldo, dot[t]);
}

static void panel_floats(bool half, const uint8_t *w, uint32_t k, const float *x, size_t ldx,
                         uint32_t n_tokens, float *out, size_t ldo)
{
    uint32_t t = 0;
    for (; t + 4 <= n_tokens; t += 4)
        half ? floats(true, w, k, x + t * ldx, ldx, 4, out + t * ldo, ldo)
             : floats(false, w, k, x + t * ldx, ldx, 4, out + t * ldo, ldo);
    for (; t < n_tokens; t++)
        half ? floats(true, w, k, x + t * ldx, ldx, 1, out + t * ldo, ldo)
             : floats(false, w, k, x + t * ldx, ldx, 1, out + t * ldo, ldo);
}

/* ---- rows ---- */

static void rmsnorm(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    vec lanes = vec_all(0.0f);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) lanes = vec_fma(vec_load(x + i), vec_load(x + i), lanes);
    if (i < n) {
        vec v = vec_load_n(x + i, (int)(n - i));
        lanes = vec_fma(v, v, lanes);
    }
    vec r = vec_all(1.0f / sqrtf(vec_tree(lanes) / (float)n + eps));
    for (i = 0; i + 16 <= n; i += 16)
        vec_store(y + i, vec_mul(vec_mul(vec_load(x + i), r), vec_load(w + i)));
    if (i < n) {
        vec v = vec_mul(vec_load_n(x + i, (int)(n - i)), r);
        vec_store_n(y + i, vec_mul(v, vec_load_n(w + i, (int)(n - i))), (int)(n - i));
    }
}

VEC_INLINE vec silu_times(vec g, vec u)
{
    return vec_mul(vec_div(g, vec_add(vec_all(1.0f), vec_exp(vec_negate(g)))), u);
}

static void silu_mul(const float *g, const float *u, float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) vec_store(y + i, silu_times(vec_load(g + i), vec_load(u + i)));
    int rest = (int)(n - i);
    if (rest)
        vec_store_n(y + i, silu_times(vec_load_n(g + i, rest), vec_load_n(u + i, rest)), rest);
}

static void rope(float *x, const float *cs, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), t = _mm256_loadu_ps(cs + i);
        __m256 x0 = _mm256_moveldup_ps(v), x1 = _mm256_movehdup_ps(v);
        __m256 sc = _mm256_permute_ps(t, 0xb1); /* s, c, s, c */
        _mm256_storeu_ps(x + i, _mm256_fmaddsub_ps(x0, t, _mm256_mul_ps(x1, sc)));
    }
    for (; i < n; i += 2) {
        float x0 = x[i], x1 = x[i + 1], c = cs[i], s = cs[i + 1], t0 = x1 * s, t1 = x1 * c;
        x[i] = fmaf(x0, c, -t0);
        x[i + 1] = fmaf(x0, s, t1);
    }
}

/* ---- attention ---- */

VEC_INLINE uint8_t *page_at(const struct kv_view *kv, uint32_t page)
{
    return kv->base + kv->pages[page] * kv->page_bytes;
}

static uint16_t half_from(float f)
{
    return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT), 0);
}

static void kv_store(const struct kv_view *kv, uint32_t pos, const float *k, const float *v)
{
    uint8_t *page = page_at(kv, pos / KV_PAGE);
    uint32_t d = kv->head_size, slot = pos % KV_PAGE;
    if (kv->type == KV_F32) {
        float *keys = (float *)(void *)page;
        for (uint32_t i = 0; i < d; i++) keys[i * KV_PAGE + slot] = k[i];
        memcpy(keys + (KV_PAGE + slot) * d, v, d * sizeof *v);
        return;
    }
    uint16_t *keys = (uint16_t *)(void *)page, *values = keys + (KV_PAGE + slot) * d;
    for (uint32_t i = 0; i < d; i++) keys[i * KV_PAGE + slot] = half_from(k[i]);
    uint32_t i = 0;
    for (; i + 16 <= d; i += 16) vec_store_half(values + i, vec_load(v + i));
    for (; i < d; i++) values[i] = half_from(v[i]);
}

VEC_INLINE vec load_kv(bool half, const uint8_t *p, size_t at)
{
    return half ? vec_half((const uint16_t *)(const void *)p + at)
                : vec_load((const float *)(const void *)p + at);
}

/* Lanes of page `page` that lie in [pos0, pos1). */
VEC_INLINE vec_mask valid_lanes(uint32_t page, uint32_t pos0, uint32_t pos1)
{
    uint32_t first = page * KV_PAGE;
    return vec_range(pos0 > first ? (int)(pos0 - first) : 0,
                     pos1 - first < KV_PAGE ? (int)(pos1 - first) : (int)KV_PAGE);
}

/* Scores of n heads (a constant): a lane is a position, one chain over the head's elements. */
VEC_INLINE void scores(const struct kv_view *kv, bool half, const float *q, int n, uint32_t pos0,
                       uint32_t pos1, float (*score)[ATTN_SPAN], float *ret_max)
{
    uint32_t d = kv->head_size, page0 = pos0 / KV_PAGE, page1 = (pos1 + KV_PAGE - 1) / KV_PAGE;
    const vec low = vec_all(-INFINITY);
    vec max[4];
    for (int h = 0; h < n; h++) max[h] = low;
    for (uint32_t p = page0; p < page1; p++) {
        const uint8_t *keys = page_at(kv, p);
        vec s[4];
        for (int h = 0; h < n; h++) s[h] = vec_all(0.0f);
        for (uint32_t i = 0; i < d; i++) {
            vec k = load_kv(half, keys, (size_t)i * KV_PAGE);
            for (int h = 0; h < n; h++) s[h] = vec_fma(k, vec_all(q[(uint32_t)h * d + i]), s[h]);
        }
        vec_mask valid = valid_lanes(p, pos0, pos1);
        for (int h = 0; h < n; h++) {
            s[h] = vec_select(valid, s[h], low);
            vec_store(score[h] + (p - page0) * KV_PAGE, s[h]);
            max[h] = vec_max(max[h], s[h]);
        }
    }
    for (int h = 0; h < n; h++) {
        float lanes[16];
        vec_store(lanes, max[h]);
        ret_max[h] = lanes[0];
        for (int i = 1; i < 16; i++) ret_max[h] = lanes[i] > ret_max[h] ? lanes[i] : ret_max[h];
    }
}

/* o[0..16 * c) of n heads: one chain over positions for each element. */
VEC_INLINE void values(const struct kv_view *kv, bool half, int n, int c, uint32_t at,
                       uint32_t pos0, uint32_t pos1, float (*weight)[ATTN_SPAN],
                       struct attn_part *parts)
{
    uint32_t d = kv->head_size, page0 = pos0 / KV_PAGE;
    vec o[4][2];
    for (int h = 0; h < n; h++)
        for (int j = 0; j < c; j++) o[h][j] = vec_all(0.0f);
    for (uint32_t p = pos0; p < pos1; p++) {
        size_t row = (size_t)(KV_PAGE + p % KV_PAGE) * d + at;
        const uint8_t *page = page_at(kv, p / KV_PAGE);
        for (int j = 0; j < c; j++) {
            vec v = load_kv(half, page, row + 16 * (uint32_t)j);
            for (int h = 0; h < n; h++)
                o[h][j] = vec_fma(v, vec_all(weight[h][p - page0 * KV_PAGE]), o[h][j]);
        }
    }
    for (int h = 0; h < n; h++)
        for (int j = 0; j < c; j++) vec_store(parts[h].out + at + 16 * j, o[h][j]);
}

/* The last d % 16 elements, one by one. */
static void values_rest(const struct kv_view *kv, bool half, int n, uint32_t at, uint32_t pos0,
                        uint32_t pos1, float (*weight)[ATTN_SPAN], struct attn_part *parts)
{
    uint32_t d = kv->head_size, page0 = pos0 / KV_PAGE;
    for (int h = 0; h < n; h++)
        for (uint32_t i = at; i < d; i++) {
            float o = 0.0f;
            for (uint32_t p = pos0; p < pos1; p++) {
                size_t row = (size_t)(KV_PAGE + p % KV_PAGE) * d + i;
                const uint8_t *page = page_at(kv, p / KV_PAGE);
                float v;
                if (half)
                    v = _cvtsh_ss(((const uint16_t *)(const void *)page)[row]);
                else
                    v = ((const float *)(const void *)page)[row];
                o = fmaf(v, weight[h][p - page0 * KV_PAGE], o);
            }
            parts[h].out[i] = o;
        }
}

VEC_INLINE void heads(const struct kv_view *kv, bool half, const float *q, int n, uint32_t pos0,
                      uint32_t pos1, struct attn_part *parts)
{
    uint32_t page0 = pos0 / KV_PAGE, page1 = (pos1 + KV_PAGE - 1) / KV_PAGE;
    float weight[4][ATTN_SPAN], max[4];
    scores(kv, half, q, n, pos0, pos1, weight, max);
    for (int h = 0; h < n; h++) {
        vec sum = vec_all(0.0f), m = vec_all(max[h]);
        for (uint32_t p = page0; p < page1; p++) {
            float *s = weight[h] + (p - page0) * KV_PAGE;
            vec e = vec_exp(vec_sub(vec_load(s), m));
            e = vec_select(valid_lanes(p, pos0, pos1), e, vec_all(0.0f));
            vec_store(s, e);
            sum = vec_add(sum, e);
        }
        parts[h].max = max[h];
        parts[h].sum = vec_tree(sum);
    }
    uint32_t d = kv->head_size, at = 0;
    for (; at + 32 <= d; at += 32) values(kv, half, n, 2, at, pos0, pos1, weight, parts);
    for (; at + 16 <= d; at += 16) values(kv, half, n, 1, at, pos0, pos1, weight, parts);
    if (at < d) values_rest(kv, half, n, at, pos0, pos1, weight, parts);
}

static void attn_span(const struct kv_view *kv, const float *q, uint32_t n_heads, uint32_t pos0,
                      uint32_t pos1, struct attn_part *ret_parts)
{
    bool half = kv->type == KV_F16;
    while (n_heads) {
        uint32_t n = n_heads >= 4 ? 4 : n_heads;
        switch (n) {
        case 4:
            half ? heads(kv, true, q, 4, pos0, pos1, ret_parts)
                 : heads(kv, false, q, 4, pos0, pos1, ret_parts);
            break;
        case 3:
            half ? heads(kv, true, q, 3, pos0, pos1, ret_parts)
                 : heads(kv, false, q, 3, pos0, pos1, ret_parts);
            break;
        case 2:
            half ? heads(kv, true, q, 2, pos0, pos1, ret_parts)
                 : heads(kv, false, q, 2, pos0, pos1, ret_parts);
            break;
        default:
            half ? heads(kv, true, q, 1, pos0, pos1, ret_parts)
                 : heads(kv, false, q, 1, pos0, pos1, ret_parts);
            break;
        }
        n_heads -= n;
        q += n * kv->head_size;
        ret_parts += n;
    }
}

/* ---- the product: the integer parts are each level's own, in the file that includes this ---- */

/* One token, straight from the tiles. */
static void decode(enum qtype type, const uint8_t *panel, const struct act *a, float *out);
/* All tokens of `a`, from a panel that is unpacked once. */
static void panel_many(enum qtype type, const uint8_t *tiles, const struct act *a, float *out,
                       size_t ldo, uint8_t *scratch);

static void linear(const struct mat *w, uint32_t panel0, uint32_t panel1, const struct act *a,
                   const float *x, size_t ldx, uint32_t n_tokens, float *out, size_t ldo,
                   void *scratch)
{
    size_t panel_bytes = quant_panel_bytes(w->type, w->k);
    for (uint32_t p = panel0; p < panel1; p++) {
        const uint8_t *panel = w->panels + p * panel_bytes;
        float *o = out + p * TILE_ROWS;
        if (w->type == QTYPE_F32 || w->type == QTYPE_F16)
            panel_floats(w->type == QTYPE_F16, panel, w->k, x, ldx, n_tokens, o, ldo);
        else if (n_tokens == 1)
            decode(w->type, panel, a, o);
        else
            panel_many(w->type, panel, a, o, ldo, scratch);
    }
}

#endif
