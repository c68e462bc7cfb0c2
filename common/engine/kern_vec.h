/* The vector levels, written once over the operations of vec.h: rows, attention, float weights, the
 * quantiser, and, in kern_dot.h, the product. kern_avx2.c and kern_avx512.c include this and are
 * compiled for their instruction sets. Mirrors kern_scalar.c function by function. */
#ifndef FLOTILLA_ENGINE_KERN_VEC_H
#define FLOTILLA_ENGINE_KERN_VEC_H

#include "common/base/fmath.h"
#include "common/engine/kern.h"
#include "common/engine/kern_dot.h"
#include "common/engine/kern_shared.h"
#include "common/engine/vec.h"

#include <string.h>

/* ---- activations ---- */

static void quantise(const float *x, struct act *a, uint32_t token)
{
    for (uint32_t b = 0; b < a->k / ACT_BLOCK; b++, x += ACT_BLOCK) {
        size_t at = act_index(a, token, b);
        int8_t *q = a->q + at * ACT_BLOCK;
        struct vec_block block = vec_block_load(x);
        uint32_t bits = vec_block_bits(&block);
        if (bits >= 0x5f800000 || bits < 0x1f800000) {
            memset(q, 0, ACT_BLOCK);
            a->s[at] = a->h[2 * at] = a->h[2 * at + 1] = 0;
            a->x[at] = a->y[at] = fm_float(bits >= 0x5f800000 ? 0x7fc00000 : 0);
            continue;
        }
        float amax = fm_float(bits);
        a->x[at] = amax / 127.0f;
        vec_block_quantise(&block, 127.0f / amax, q, a->h + 2 * at);
        a->s[at] = a->h[2 * at] + a->h[2 * at + 1];
        a->y[at] = a->x[at] * (float)a->s[at];
    }
}

/* ---- float weights ---- */

/* 16 floats stored as `type`, a constant. */
VEC_INLINE vec load_floats(enum qtype type, const uint8_t *p)
{
    const uint16_t *h = (const uint16_t *)(const void *)p;
    switch (type) {
    case QTYPE_F32: return vec_load((const float *)(const void *)p);
    case QTYPE_F16: return vec_half(h);
    case QTYPE_BF16: return vec_bf16(h);
    case QTYPE_BLOCKS: break;
    }
    return vec_all(0.0f);
}

/* One panel x n tokens (a constant); each output is one chain over k. */
VEC_INLINE void floats(enum qtype type, const uint8_t *w, uint32_t k, const float *x, size_t ldx,
                       int n, float *out, size_t ldo)
{
    const size_t step = type == QTYPE_F32 ? 64 : 32;
    vec dot[4];
    for (int t = 0; t < n; t++) dot[t] = vec_all(0.0f);
    for (uint32_t i = 0; i < k; i++, w += step) {
        vec_prefetch_l1(w + 1024);
        vec v = load_floats(type, w);
        for (int t = 0; t < n; t++) dot[t] = vec_fma(v, vec_all(x[(size_t)t * ldx + i]), dot[t]);
    }
    for (int t = 0; t < n; t++) vec_store(out + (size_t)t * ldo, dot[t]);
}

VEC_INLINE void panel_of(enum qtype type, const uint8_t *w, uint32_t k, const float *x, size_t ldx,
                         uint32_t n_tokens, float *out, size_t ldo)
{
    uint32_t t = 0;
    for (; t + 4 <= n_tokens; t += 4) floats(type, w, k, x + t * ldx, ldx, 4, out + t * ldo, ldo);
    for (; t < n_tokens; t++) floats(type, w, k, x + t * ldx, ldx, 1, out + t * ldo, ldo);
}

static void panel_floats(enum qtype type, const uint8_t *w, uint32_t k, const float *x, size_t ldx,
                         uint32_t n_tokens, float *out, size_t ldo)
{
    switch (type) {
    case QTYPE_F32: panel_of(QTYPE_F32, w, k, x, ldx, n_tokens, out, ldo); break;
    case QTYPE_F16: panel_of(QTYPE_F16, w, k, x, ldx, n_tokens, out, ldo); break;
    case QTYPE_BF16: panel_of(QTYPE_BF16, w, k, x, ldx, n_tokens, out, ldo); break;
    case QTYPE_BLOCKS: break;
    }
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

/* 16 elements from i on; what lies beyond n is +0. */
VEC_INLINE vec part(const float *x, uint32_t i, uint32_t n)
{
    return i + 16 <= n ? vec_load(x + i) : vec_load_n(x + i, (int)(n - i));
}

static void layernorm(const float *x, const float *w, const float *b, float *y, uint32_t n,
                      float eps)
{
    vec sums = vec_all(0.0f), lanes = sums, zero = sums;
    for (uint32_t i = 0; i < n; i += 16) sums = vec_add(sums, part(x, i, n));
    vec mean = vec_all(vec_tree(sums) / (float)n);
    for (uint32_t i = 0; i < n; i += 16) {
        vec d = vec_sub(part(x, i, n), mean);
        if (n - i < 16) d = vec_select(vec_range(0, (int)(n - i)), d, zero);
        lanes = vec_fma(d, d, lanes);
    }
    vec r = vec_all(1.0f / sqrtf(vec_tree(lanes) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        vec d = vec_mul(vec_sub(part(x, i, n), mean), r);
        vec out = vec_fma(d, part(w, i, n), b ? part(b, i, n) : zero);
        if (n - i >= 16)
            vec_store(y + i, out);
        else
            vec_store_n(y + i, out, (int)(n - i));
    }
}

/* y = act(g) * u */
VEC_INLINE vec gate(bool gelu, vec g, vec u)
{
    vec silu = vec_div(g, vec_add(vec_all(1.0f), vec_exp(vec_negate(g))));
    return vec_mul(gelu ? vec_gelu(g) : silu, u);
}

VEC_INLINE void gate_row(bool gelu, const float *g, const float *u, float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) vec_store(y + i, gate(gelu, vec_load(g + i), vec_load(u + i)));
    int rest = (int)(n - i);
    if (rest)
        vec_store_n(y + i, gate(gelu, vec_load_n(g + i, rest), vec_load_n(u + i, rest)), rest);
}

static void silu_mul(const float *g, const float *u, float *y, uint32_t n)
{
    gate_row(false, g, u, y, n);
}

static void gelu_mul(const float *g, const float *u, float *y, uint32_t n)
{
    gate_row(true, g, u, y, n);
}

/* c times the hyperbolic tangent of x / c. */
VEC_INLINE vec soft_capped(vec x, vec c)
{
    return vec_mul(c, vec_tanh(vec_div(x, c)));
}

static void softcap(float *x, uint32_t n, float c)
{
    uint32_t i = 0;
    vec all = vec_all(c);
    for (; i + 16 <= n; i += 16) vec_store(x + i, soft_capped(vec_load(x + i), all));
    int rest = (int)(n - i);
    if (rest) vec_store_n(x + i, soft_capped(vec_load_n(x + i, rest), all), rest);
}

static void rope(float *x, const float *cs, uint32_t n)
{
    uint32_t i = 0;
    for (; i + VEC_PAIRS <= n; i += VEC_PAIRS) vec_rotate_pairs(x + i, cs + i);
    for (; i < n; i += 2) {
        float x0 = x[i], x1 = x[i + 1], c = cs[i], s = cs[i + 1], t0 = x1 * s, t1 = x1 * c;
        x[i] = fmaf(x0, c, -t0);
        x[i + 1] = fmaf(x0, s, t1);
    }
}

static void rope_halves(float *x, const float *cs, uint32_t n)
{
    uint32_t half = n / 2, i = 0;
    for (; i + 16 <= half; i += 16) {
        vec x0 = vec_load(x + i), x1 = vec_load(x + half + i);
        vec c = vec_load(cs + i), s = vec_load(cs + half + i);
        vec_store(x + i, vec_fma(x0, c, vec_negate(vec_mul(x1, s))));
        vec_store(x + half + i, vec_fma(x0, s, vec_mul(x1, c)));
    }
    for (; i < half; i++) {
        float x0 = x[i], x1 = x[half + i], c = cs[i], s = cs[half + i], t0 = x1 * s, t1 = x1 * c;
        x[i] = fmaf(x0, c, -t0);
        x[half + i] = fmaf(x0, s, t1);
    }
}

/* ---- attention ---- */

VEC_INLINE uint8_t *page_at(const struct kv_view *kv, uint32_t page)
{
    return kv->base + kv->pages[page] * kv->page_bytes;
}

static void kv_store(const struct kv_view *kv, uint32_t pos, const float *k, const float *v)
{
    uint8_t *page = page_at(kv, pos / KV_PAGE);
    uint32_t d = kv->head_size, slot = pos % KV_PAGE;
    if (kv->type > KV_F16) {
        kern_store_quantised(kv, page, slot, k, v);
    } else if (kv->type == KV_F32) {
        float *keys = (float *)(void *)page;
        for (uint32_t i = 0; i < d; i++) keys[i * KV_PAGE + slot] = k[i];
        memcpy(keys + (KV_PAGE + slot) * d, v, d * sizeof *v);
    } else {
        uint16_t *keys = (uint16_t *)(void *)page, *values = keys + (KV_PAGE + slot) * d;
        for (uint32_t i = 0; i < d; i++) keys[i * KV_PAGE + slot] = vec_one_half(k[i]);
        uint32_t i = 0;
        for (; i + 16 <= d; i += 16) vec_store_half(values + i, vec_load(v + i));
        for (; i < d; i++) values[i] = vec_one_half(v[i]);
    }
}

/* Lanes of page `page` that lie in [pos0, pos1). */
VEC_INLINE vec_mask valid_lanes(uint32_t page, uint32_t pos0, uint32_t pos1)
{
    uint32_t first = page * KV_PAGE;
    return vec_range(pos0 > first ? (int)(pos0 - first) : 0,
                     pos1 - first < KV_PAGE ? (int)(pos1 - first) : (int)KV_PAGE);
}

/* The scores of n heads against some pages of float keys (constants): a lane is a position, one
 * chain over the head's elements. Pages further on come to L1 meanwhile, and the values to L2. */
VEC_INLINE void score_floats(const struct kv_view *kv, enum qtype type, uint32_t page, int pages,
                             uint32_t last, const float *q, int n, vec (*s)[4])
{
    const size_t step = type == QTYPE_F32 ? 64 : 32, half = kv_half_bytes(kv->type, kv->head_size);
    const uint8_t *keys[VEC_PAGES], *next[VEC_PAGES];
    for (int g = 0; g < pages; g++) {
        uint32_t then = page + (uint32_t)(2 * pages + g);
        keys[g] = page_at(kv, page + (uint32_t)g);
        next[g] = then < last ? page_at(kv, then) : keys[g];
        for (int h = 0; h < n; h++) s[g][h] = vec_all(0.0f);
    }
    for (uint32_t i = 0; i < kv->head_size; i++)
        for (int g = 0; g < pages; g++) {
            const uint8_t *at = keys[g] + i * step;
            if (i * step % 64 == 0) {
                vec_prefetch_l1(next[g] + i * step);
                vec_prefetch_l2(at + half);
            }
            vec k = load_floats(type, at);
            for (int h = 0; h < n; h++)
                s[g][h] = vec_fma(k, vec_all(q[(uint32_t)h * kv->head_size + i]), s[g][h]);
        }
}

/* The scores of n heads against pages [page, page + pages) of the span from page0 on. */
VEC_INLINE void score_pages(const struct kv_view *kv, enum qtype type,
                            const struct kern_query *query, int n, uint32_t page, int pages,
                            uint32_t pos0, uint32_t pos1, float cap, float (*score)[ATTN_SPAN],
                            vec *max)
{
    const uint32_t page0 = pos0 / KV_PAGE, last = (pos1 + KV_PAGE - 1) / KV_PAGE;
    vec s[VEC_PAGES][4];
    if (qtype_is_float(type)) {
        score_floats(kv, type, page, pages, last, query->q, n, s);
    } else {
        for (int g = 0; g < pages; g++)
            for (int h = 0; h < n; h++) {
                float out[16];
                dot_tiles(type, true, page_at(kv, page + (uint32_t)g), &query->act[h], out);
                s[g][h] = vec_load(out);
            }
    }
    for (int g = 0; g < pages; g++) {
        uint32_t p = page + (uint32_t)g;
        vec_mask valid = valid_lanes(p, pos0, pos1);
        for (int h = 0; h < n; h++) {
            vec x = cap != 0.0f ? soft_capped(s[g][h], vec_all(cap)) : s[g][h];
            x = vec_select(valid, x, vec_all(-INFINITY));
            vec_store(score[h] + (p - page0) * KV_PAGE, x);
            max[h] = vec_max(max[h], x);
        }
    }
}

VEC_INLINE void scores(const struct kv_view *kv, enum qtype type, const struct kern_query *query,
                       int n, uint32_t pos0, uint32_t pos1, float cap, float (*score)[ATTN_SPAN],
                       float *ret_max)
{
    uint32_t p = pos0 / KV_PAGE, last = (pos1 + KV_PAGE - 1) / KV_PAGE;
    vec max[4];
    for (int h = 0; h < n; h++) max[h] = vec_all(-INFINITY);
    for (; p + VEC_PAGES <= last; p += VEC_PAGES)
        score_pages(kv, type, query, n, p, VEC_PAGES, pos0, pos1, cap, score, max);
    for (; p < last; p++) score_pages(kv, type, query, n, p, 1, pos0, pos1, cap, score, max);
    for (int h = 0; h < n; h++) {
        float lanes[16];
        vec_store(lanes, max[h]);
        ret_max[h] = lanes[0];
        for (int i = 1; i < 16; i++) ret_max[h] = lanes[i] > ret_max[h] ? lanes[i] : ret_max[h];
    }
}

/* 16 elements of the value block at p; upper: the second 16. Without the block's scale. */
VEC_INLINE vec value_integers(enum qtype type, const uint8_t *p, int upper)
{
    if (type == QTYPE_Q8_0) return vec_bytes((const int8_t *)p + 2 + 16 * upper);
    int8_t q[16];
    vec_nibbles(p + 2, upper, q);
    return vec_bytes(q);
}

/* o[0..16 * c) of n heads: one chain over positions for each element. c = 2 is one block of a
 * quantised type. The same rows of the next page come to L1 meanwhile. */
VEC_INLINE void values(const struct kv_view *kv, enum qtype type, int n, int c, uint32_t at,
                       uint32_t pos0, uint32_t pos1, float (*weight)[ATTN_SPAN],
                       struct attn_part *parts)
{
    const uint32_t d = kv->head_size, page0 = pos0 / KV_PAGE;
    const size_t half = kv_half_bytes(kv->type, d), row_bytes = kv_row_bytes(kv->type, d);
    const size_t offset = half + row_bytes * at / d;
    const size_t size = !qtype_is_float(type) ? 0 : type == QTYPE_F32 ? 4 : 2;
    vec o[4][VEC_VALUES];
    for (int h = 0; h < n; h++)
        for (int j = 0; j < c; j++) o[h][j] = vec_all(0.0f);
    for (uint32_t p = pos0; p < pos1;) {
        uint32_t page = p / KV_PAGE,
                 end = (page + 1) * KV_PAGE < pos1 ? (page + 1) * KV_PAGE : pos1;
        const uint8_t *row = page_at(kv, page) + offset + p % KV_PAGE * row_bytes;
        ptrdiff_t next = end < pos1 ? page_at(kv, page + 1) - page_at(kv, page) : 0;
        for (; p < end; p++, row += row_bytes) {
            float e[4];
            for (int h = 0; h < n; h++) e[h] = weight[h][p - page0 * KV_PAGE];
            if (!qtype_is_float(type)) {
                uint16_t stored;
                memcpy(&stored, row, sizeof stored);
                float scale = vec_one_float(stored);
                if (type == QTYPE_Q8_0) scale = quant_kv_scale(scale);
                for (int h = 0; h < n; h++) e[h] *= scale;
            }
            for (size_t i = 0; i < 16 * (size_t)c * size; i += 64) vec_prefetch_l1(row + next + i);
            for (int j = 0; j < c; j++) {
                vec v = qtype_is_float(type) ? load_floats(type, row + 16 * (size_t)j * size)
                                             : value_integers(type, row, j);
                for (int h = 0; h < n; h++) o[h][j] = vec_fma(v, vec_all(e[h]), o[h][j]);
            }
        }
    }
    for (int h = 0; h < n; h++)
        for (int j = 0; j < c; j++) vec_store(parts[h].out + at + 16 * j, o[h][j]);
}

/* The last d % 16 elements, one by one. */
static void values_rest(const struct kv_view *kv, int n, uint32_t at, uint32_t pos0, uint32_t pos1,
                        float (*weight)[ATTN_SPAN], struct attn_part *parts)
{
    uint32_t d = kv->head_size, page0 = pos0 / KV_PAGE;
    for (int h = 0; h < n; h++)
        for (uint32_t i = at; i < d; i++) {
            float o = 0.0f;
            for (uint32_t p = pos0; p < pos1; p++) {
                size_t row = (size_t)(KV_PAGE + p % KV_PAGE) * d + i;
                const uint8_t *page = page_at(kv, p / KV_PAGE);
                float v = kv->type == KV_F16
                              ? vec_one_float(((const uint16_t *)(const void *)page)[row])
                              : ((const float *)(const void *)page)[row];
                o = fmaf(v, weight[h][p - page0 * KV_PAGE], o);
            }
            parts[h].out[i] = o;
        }
}

VEC_INLINE void heads(const struct kv_view *kv, enum qtype type, const struct kern_query *query,
                      int n, uint32_t pos0, uint32_t pos1, float cap, struct attn_part *parts)
{
    uint32_t page0 = pos0 / KV_PAGE, page1 = (pos1 + KV_PAGE - 1) / KV_PAGE;
    float weight[4][ATTN_SPAN], max[4];
    scores(kv, type, query, n, pos0, pos1, cap, weight, max);
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
    if (qtype_is_float(type) && VEC_VALUES > 2)
        for (; at + 16 * VEC_VALUES <= d; at += 16 * VEC_VALUES)
            values(kv, type, n, VEC_VALUES, at, pos0, pos1, weight, parts);
    for (; at + 32 <= d; at += 32) values(kv, type, n, 2, at, pos0, pos1, weight, parts);
    if (!qtype_is_float(type)) return;
    for (; at + 16 <= d; at += 16) values(kv, type, n, 1, at, pos0, pos1, weight, parts);
    if (at < d) values_rest(kv, n, at, pos0, pos1, weight, parts);
}

VEC_INLINE void attn_of(const struct kv_view *kv, enum qtype type, const float *q, uint32_t n_heads,
                        uint32_t pos0, uint32_t pos1, float cap, struct attn_part *parts)
{
    while (n_heads) {
        uint32_t n = n_heads >= 4 ? 4 : n_heads;
        struct kern_query query = {.q = q};
        struct kern_query_room room;
        if (!qtype_is_float(type))
            for (uint32_t h = 0; h < n; h++) {
                query.act[h] = kern_query_act(&room, h, kv->head_size);
                quantise(q + h * kv->head_size, &query.act[h], 0);
            }
        switch (n) {
        case 4: heads(kv, type, &query, 4, pos0, pos1, cap, parts); break;
        case 3: heads(kv, type, &query, 3, pos0, pos1, cap, parts); break;
        case 2: heads(kv, type, &query, 2, pos0, pos1, cap, parts); break;
        default: heads(kv, type, &query, 1, pos0, pos1, cap, parts); break;
        }
        n_heads -= n;
        q += n * kv->head_size;
        parts += n;
    }
}

static void attn_span(const struct kv_view *kv, const float *q, uint32_t n_heads, uint32_t pos0,
                      uint32_t pos1, float cap, struct attn_part *ret_parts)
{
    switch (kv->type) {
    case KV_F32: attn_of(kv, QTYPE_F32, q, n_heads, pos0, pos1, cap, ret_parts); break;
    case KV_F16: attn_of(kv, QTYPE_F16, q, n_heads, pos0, pos1, cap, ret_parts); break;
    case KV_Q8_0: attn_of(kv, QTYPE_Q8_0, q, n_heads, pos0, pos1, cap, ret_parts); break;
    case KV_Q4_0: attn_of(kv, QTYPE_Q4_0, q, n_heads, pos0, pos1, cap, ret_parts); break;
    case KV_N_TYPES: break;
    }
}

/* ---- the table ---- */

static void linear(const struct mat *w, uint32_t panel0, uint32_t panel1, const struct act *a,
                   const float *x, size_t ldx, uint32_t n_tokens, float *out, size_t ldo,
                   void *scratch)
{
    const size_t panel_bytes = tile_panel_bytes(w->type, w->k);
    const bool few = n_tokens > 1 && n_tokens <= w->few && !qtype_is_float(w->type);
    const int32_t *starts = few ? starts_of(w->type, a, scratch) : NULL;
    for (uint32_t p = panel0; p < panel1; p++) {
        const uint8_t *panel = w->panels + p * panel_bytes;
        float *o = out + p * TILE_ROWS;
        if (qtype_is_float(w->type))
            panel_floats(w->type, panel, w->k, x, ldx, n_tokens, o, ldo);
        else if (n_tokens == 1)
            dot_one(w->type, panel, a, o);
        else if (few)
            dot_few(w->type, panel, a, starts, o, ldo);
        else
            dot_many(w->type, panel, a, o, ldo, scratch);
    }
}

#define KERN_VEC                                                                                   \
    {                                                                                              \
        .name = VEC_LEVEL, .has_few = true, .quantise = quantise, .linear = linear,                \
        .rmsnorm = rmsnorm, .layernorm = layernorm, .silu_mul = silu_mul, .gelu_mul = gelu_mul,    \
        .rope = rope, .rope_halves = rope_halves, .kv_store = kv_store, .attn_span = attn_span,    \
        .softcap = softcap, .peak = peak                                                           \
    }

#endif
