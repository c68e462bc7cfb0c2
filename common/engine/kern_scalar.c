/* The arithmetic contract in C (README.md): every other level must equal this bit for bit.
 * Compiled without -mfma: fmaf is exact either way. Written to be checked, not to be fast. */
#include "common/engine/kern.h"

#include "common/base/fmath.h"

#include <string.h>

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

/* l_i: 16 virtual lanes, then one fixed tree. */
static float tree16(const float *l)
{
    float a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) a[i] = l[i] + l[i + 8];
    for (int i = 0; i < 4; i++) b[i] = a[i] + a[i + 4];
    for (int i = 0; i < 2; i++) c[i] = b[i] + b[i + 2];
    return c[0] + c[1];
}

static void quantise(const float *x, struct act *a, uint32_t token)
{
    for (uint32_t b = 0; b < a->k / ACT_BLOCK; b++, x += ACT_BLOCK) {
        size_t at = act_index(a, token, b);
        int8_t *q = a->q + at * ACT_BLOCK;
        uint32_t bits_max = 0; /* largest |x| as integer bits: exact, order-free, sees NaN */
        for (uint32_t i = 0; i < ACT_BLOCK; i++) {
            uint32_t u = fm_bits(x[i]) & 0x7fffffff;
            if (u > bits_max) bits_max = u;
        }
        int32_t sum = 0;
        memset(q, 0, ACT_BLOCK);
        a->x[at] = 0.0f;
        if (bits_max >= 0x5f800000) { /* >= 2^64, Inf or NaN: poison */
            a->x[at] = fm_float(0x7fc00000);
        } else if (bits_max >= 0x1f800000) { /* >= 2^-64; below: all zero */
            float amax = fm_float(bits_max), id = 127.0f / amax;
            a->x[at] = amax / 127.0f;
            for (uint32_t i = 0; i < ACT_BLOCK; i++) {
                q[i] = (int8_t)lrintf(x[i] * id);
                sum += q[i];
            }
        }
        a->s[at] = sum;
        a->y[at] = a->x[at] * (float)sum;
    }
}

/* One row of a quantised panel in plain arrays: stored integers, scales, minima. */
struct plain_row {
    int16_t *w; /* k */
    float *d;   /* k / 32 */
    float *m;   /* k / 32, or NULL */
};

/* Four bytes to four int16, in order. */
static uint64_t widen(uint32_t bytes)
{
    uint64_t x = bytes;
    x = (x | x << 16) & 0x0000ffff0000ffff;
    return (x | x << 8) & 0x00ff00ff00ff00ff;
}

static void unpack_row(const struct mat *w, const uint8_t *tile, uint32_t lane,
                       const struct plain_row *to)
{
    const struct qtype_info *t = qtype_info((uint32_t)w->type);
    size_t d_at = w->type == QTYPE_Q8_0 ? 512 : 256;
    for (uint32_t b = 0; b < w->k / 32; b++, tile += (size_t)t->bytes * TILE_ROWS) {
        int16_t *out = to->w + 32 * b;
        const uint8_t *four = tile + 4 * lane; /* of every 64-byte vector, this row's four bytes */
        if (w->type == QTYPE_Q8_0) {
            for (uint32_t v = 0; v < 8; v++)
                for (uint32_t j = 0; j < 4; j++) out[4 * v + j] = (int8_t)four[64 * v + j];
        } else {
            for (uint32_t v = 0; v < 4; v++) {
                uint32_t bytes;
                memcpy(&bytes, four + 64 * v, sizeof bytes);
                uint64_t low = widen(bytes & 0x0f0f0f0f), high = widen(bytes >> 4 & 0x0f0f0f0f);
                memcpy(out + 8 * v, &low, sizeof low);
                memcpy(out + 8 * v + 4, &high, sizeof high);
            }
        }
        to->d[b] = half_at(tile + d_at + 2 * lane);
        if (to->m) to->m[b] = half_at(tile + d_at + 32 + 2 * lane);
    }
}

/* The sum of (w - bias) q is the sum of w q less bias times the sum of q: integers, so exactly. */
static float dot_quantised(const struct plain_row *row, int32_t bias, const struct act *a,
                           uint32_t token)
{
    float dot = 0.0f, off = 0.0f;
    for (uint32_t b = 0; b < a->k / 32; b++) {
        size_t at = act_index(a, token, b);
        const int8_t *q = a->q + at * 32;
        const int16_t *w = row->w + 32 * b;
        int32_t sum = -bias * a->s[at];
        for (uint32_t k = 0; k < 32; k++) sum += w[k] * q[k];
        dot = fmaf((float)sum * row->d[b], a->x[at], dot);
        if (row->m) off = fmaf(row->m[b], a->y[at], off);
    }
    return row->m ? dot + off : dot;
}

static float dot_floats(const struct mat *w, const uint8_t *panel, uint32_t lane, const float *x)
{
    float dot = 0.0f;
    for (uint32_t i = 0; i < w->k; i++) {
        size_t at = (size_t)i * TILE_ROWS + lane;
        float weight;
        if (w->type == QTYPE_F16)
            weight = half_at(panel + 2 * at);
        else
            memcpy(&weight, panel + 4 * at, sizeof weight);
        dot = fmaf(weight, x[i], dot);
    }
    return dot;
}

static void linear(const struct mat *w, uint32_t panel0, uint32_t panel1, const struct act *a,
                   const float *x, size_t ldx, uint32_t n_tokens, float *out, size_t ldo,
                   void *scratch)
{
    size_t panel_bytes = quant_panel_bytes(w->type, w->k);
    bool floats = w->type == QTYPE_F32 || w->type == QTYPE_F16;
    struct plain_row row = {.w = scratch};
    int32_t bias = qtype_info((uint32_t)w->type)->bias;
    if (!floats) {
        row.d = (float *)(void *)(row.w + w->k); /* k is a multiple of 32 */
        row.m = qtype_info((uint32_t)w->type)->has_min ? row.d + w->k / 32 : NULL;
    }
    for (uint32_t p = panel0; p < panel1; p++) {
        const uint8_t *panel = w->panels + p * panel_bytes;
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            if (!floats) unpack_row(w, panel, r, &row);
            for (uint32_t t = 0; t < n_tokens; t++)
                out[t * ldo + p * TILE_ROWS + r] =
                    floats ? dot_floats(w, panel, r, x + t * ldx) : dot_quantised(&row, bias, a, t);
        }
    }
}

static void rmsnorm(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++) lanes[i & 15] = fmaf(x[i], x[i], lanes[i & 15]);
    float r = 1.0f / sqrtf(tree16(lanes) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (x[i] * r) * w[i];
}

static void silu_mul(const float *g, const float *u, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] = (g[i] / (1.0f + fm_exp(-g[i]))) * u[i];
}

static void rope(float *x, const float *cs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 2) {
        float x0 = x[i], x1 = x[i + 1], c = cs[i], s = cs[i + 1];
        float t0 = x1 * s, t1 = x1 * c;
        x[i] = fmaf(x0, c, -t0);
        x[i + 1] = fmaf(x0, s, t1);
    }
}

static uint8_t *page_at(const struct kv_view *kv, uint32_t pos)
{
    return kv->base + kv->pages[pos / KV_PAGE] * kv->page_bytes;
}

static void put(enum kv_type type, uint8_t *base, size_t at, float f)
{
    if (type == KV_F32) {
        memcpy(base + 4 * at, &f, sizeof f);
    } else {
        uint16_t h = f16_from_f32(f);
        memcpy(base + 2 * at, &h, sizeof h);
    }
}

static float get(enum kv_type type, const uint8_t *base, size_t at)
{
    if (type == KV_F16) return half_at(base + 2 * at);
    float f;
    memcpy(&f, base + 4 * at, sizeof f);
    return f;
}

static void kv_store(const struct kv_view *kv, uint32_t pos, const float *k, const float *v)
{
    uint8_t *page = page_at(kv, pos);
    uint32_t d = kv->head_size, slot = pos % KV_PAGE;
    for (uint32_t i = 0; i < d; i++) {
        put(kv->type, page, (size_t)i * KV_PAGE + slot, k[i]);
        put(kv->type, page, (size_t)(KV_PAGE + slot) * d + i, v[i]);
    }
}

static void attn_span(const struct kv_view *kv, const float *q, uint32_t n_heads, uint32_t pos0,
                      uint32_t pos1, struct attn_part *ret_parts)
{
    uint32_t d = kv->head_size;
    for (uint32_t h = 0; h < n_heads; h++, q += d) {
        struct attn_part *o = &ret_parts[h];
        float score[ATTN_SPAN], lanes[16] = {0};
        o->max = -INFINITY;
        for (uint32_t p = pos0; p < pos1; p++) {
            const uint8_t *page = page_at(kv, p);
            float s = 0.0f;
            for (uint32_t i = 0; i < d; i++)
                s = fmaf(get(kv->type, page, (size_t)i * KV_PAGE + p % KV_PAGE), q[i], s);
            score[p - pos0] = s;
            o->max = s > o->max ? s : o->max;
        }
        for (uint32_t i = 0; i < d; i++) o->out[i] = 0.0f;
        for (uint32_t p = pos0; p < pos1; p++) {
            const uint8_t *page = page_at(kv, p);
            float e = fm_exp(score[p - pos0] - o->max);
            lanes[p & 15] += e;
            for (uint32_t i = 0; i < d; i++)
                o->out[i] = fmaf(get(kv->type, page, (size_t)(KV_PAGE + p % KV_PAGE) * d + i), e,
                                 o->out[i]);
        }
        o->sum = tree16(lanes);
    }
}

void kern_attn_join(const struct attn_part *parts, size_t stride, uint32_t n_parts,
                    uint32_t head_size, float *ret_out)
{
    float max = parts[0].max, sum = 0.0f;
    for (uint32_t i = 1; i < n_parts; i++)
        max = parts[i * stride].max > max ? parts[i * stride].max : max;
    for (uint32_t j = 0; j < head_size; j++) ret_out[j] = 0.0f;
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct attn_part *p = &parts[i * stride];
        float c = fm_exp(p->max - max);
        sum = fmaf(c, p->sum, sum);
        for (uint32_t j = 0; j < head_size; j++) ret_out[j] = fmaf(c, p->out[j], ret_out[j]);
    }
    float r = 1.0f / sum;
    for (uint32_t j = 0; j < head_size; j++) ret_out[j] *= r;
}

size_t kern_scratch_bytes(uint32_t k)
{
    /* One unpacked panel: 16 rows of int16 weights, and two f32 scales for each block and row. */
    return (size_t)k * TILE_ROWS * 2 + (size_t)k / ACT_BLOCK * TILE_ROWS * 8 + 128;
}

const struct kern kern_scalar = {
    .name = "scalar",
    .quantise = quantise,
    .linear = linear,
    .rmsnorm = rmsnorm,
    .silu_mul = silu_mul,
    .rope = rope,
    .kv_store = kv_store,
    .attn_span = attn_span,
};
