/* The arithmetic contract in C (README.md): every other level must equal this bit for bit.
 * Compiled without -mfma: fmaf is exact either way. Written to be checked, with loops that
 * compilers vectorise where the order of operations allows it. */
#include "common/engine/kern.h"

#include "common/base/fmath.h"
#include "common/engine/kern_shared.h"

#include <string.h>

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
        int32_t *h = a->h + 2 * at;
        memset(q, 0, ACT_BLOCK);
        a->x[at] = 0.0f;
        h[0] = h[1] = 0;
        if (bits_max >= 0x5f800000) { /* >= 2^64, Inf or NaN: poison */
            a->x[at] = fm_float(0x7fc00000);
        } else if (bits_max >= 0x1f800000) { /* >= 2^-64; below: all zero */
            float amax = fm_float(bits_max), id = 127.0f / amax;
            a->x[at] = amax / 127.0f;
            for (uint32_t i = 0; i < ACT_BLOCK; i++) {
                q[i] = (int8_t)lrintf(x[i] * id);
                h[i / 16] += q[i];
            }
        }
        a->s[at] = h[0] + h[1];
        a->y[at] = a->x[at] * (float)a->s[at];
    }
}

/* One row of a panel of tiles in plain arrays: integers, D and M of its sub-blocks. */
struct plain_row {
    struct tile t;
    int16_t *w;   /* k */
    float *d, *m; /* k / t.sub */
};

/* kv: the panel holds keys, not weights. scratch: k int16, then twice k / 16 floats. */
static struct plain_row unpack_row(enum qtype type, const uint8_t *tile, uint32_t k, uint32_t lane,
                                   bool kv, void *scratch)
{
    struct plain_row r = {.t = tile_of(type), .w = scratch};
    r.d = (float *)(void *)(r.w + k); /* k is a multiple of 32 */
    r.m = r.d + k / r.t.sub;
    const int bias = r.t.bias;
    for (uint32_t i = 0; i < k; i += r.t.block, tile += r.t.bytes) {
        struct qblock b;
        int16_t *restrict w = r.w + i;
        tile_take(type, tile, lane, &b);
        b.kv = kv;
        quant_scales(type, &b, r.d + i / r.t.sub, r.m + i / r.t.sub);
        if (r.t.low == 8 || r.t.values == VALUES_IQ4 || r.t.values == VALUES_FP4)
            for (uint32_t j = 0; j < r.t.block; j++) w[j] = (int16_t)tile_integer(r.t, b.u[j]);
        else
            for (uint32_t j = 0; j < r.t.block; j++) w[j] = (int16_t)(b.u[j] - bias);
    }
    return r;
}

/* The sum of n products. */
static inline int32_t products(const int16_t *w, const int8_t *q, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t k = 0; k < n; k++) sum += w[k] * q[k];
    return sum;
}

static float dot_row(const struct plain_row *row, const struct act *a, uint32_t token)
{
    const uint32_t sub = row->t.sub;
    float dot = 0.0f, off = 0.0f;
    for (uint32_t j = 0; j < a->k / sub; j++) {
        size_t at = act_index(a, token, j * sub / ACT_BLOCK);
        const int8_t *q = a->q + at * ACT_BLOCK + j * sub % ACT_BLOCK;
        int32_t sum = products(row->w + j * sub, q, sub);
        dot = fmaf((float)sum * row->d[j], a->x[at], dot);
        if (!row->t.has_min) continue;
        float y = sub == 32 ? a->y[at] : a->x[at] * (float)a->h[2 * at + (j & 1)];
        off = fmaf(row->m[j], y, off);
    }
    return row->t.has_min ? dot + off : dot;
}

/* Element `at` of an array of F32, F16 or BF16. */
static float float_at(enum qtype type, const uint8_t *base, size_t at)
{
    float f = 0.0f;
    uint16_t h;
    switch (type) {
    case QTYPE_F32: memcpy(&f, base + 4 * at, sizeof f); break;
    case QTYPE_F16:
        memcpy(&h, base + 2 * at, sizeof h);
        f = f16_to_f32(h);
        break;
    case QTYPE_BF16:
        memcpy(&h, base + 2 * at, sizeof h);
        f = bf16_to_f32(h);
        break;
    case QTYPE_BLOCKS: break;
    }
    return f;
}

static float dot_floats(const struct mat *w, const uint8_t *panel, uint32_t lane, const float *x)
{
    float dot = 0.0f;
    for (uint32_t i = 0; i < w->k; i++)
        dot = fmaf(float_at(w->type, panel, (size_t)i * TILE_ROWS + lane), x[i], dot);
    return dot;
}

static void linear(const struct mat *w, uint32_t panel0, uint32_t panel1, const struct act *a,
                   const float *x, size_t ldx, uint32_t n_tokens, float *out, size_t ldo,
                   void *scratch)
{
    size_t panel_bytes = tile_panel_bytes(w->type, w->k);
    bool floats = qtype_is_float(w->type);
    for (uint32_t p = panel0; p < panel1; p++) {
        const uint8_t *panel = w->panels + p * panel_bytes;
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            struct plain_row row = {0};
            if (!floats) row = unpack_row(w->type, panel, w->k, r, false, scratch);
            for (uint32_t t = 0; t < n_tokens; t++)
                out[t * ldo + p * TILE_ROWS + r] =
                    floats ? dot_floats(w, panel, r, x + t * ldx) : dot_row(&row, a, t);
        }
    }
}

static uint32_t peak(uint32_t rounds)
{
    int16_t w[ACT_BLOCK];
    int8_t q[ACT_BLOCK];
    uint32_t total = 0;
    for (uint32_t i = 0; i < ACT_BLOCK; i++) w[i] = q[i] = 1;
    for (uint64_t n = (uint64_t)rounds * (KERN_PEAK_PRODUCTS / ACT_BLOCK); n; n--) {
        const int16_t *some_w = w;
        const int8_t *some_q = q;
        /* What lies there may be anything, and something else each time. */
        __asm__ volatile("" : "+r"(some_w), "+r"(some_q) : : "memory");
        total += (uint32_t)products(some_w, some_q, ACT_BLOCK);
    }
    return total;
}

static void rmsnorm(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++) lanes[i & 15] = fmaf(x[i], x[i], lanes[i & 15]);
    float r = 1.0f / sqrtf(tree16(lanes) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (x[i] * r) * w[i];
}

static void layernorm(const float *x, const float *w, const float *b, float *y, uint32_t n,
                      float eps)
{
    float sums[16] = {0}, lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++) sums[i & 15] += x[i];
    float mean = tree16(sums) / (float)n;
    for (uint32_t i = 0; i < n; i++) {
        float d = x[i] - mean;
        lanes[i & 15] = fmaf(d, d, lanes[i & 15]);
    }
    float r = 1.0f / sqrtf(tree16(lanes) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = fmaf((x[i] - mean) * r, w[i], b ? b[i] : 0.0f);
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

static void gelu_mul(const float *g, const float *u, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] = fm_gelu(g[i]) * u[i];
}

static void softcap(float *x, uint32_t n, float c)
{
    for (uint32_t i = 0; i < n; i++) x[i] = c * fm_tanh(x[i] / c);
}

static void rope_halves(float *x, const float *cs, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        float x0 = x[i], x1 = x[n / 2 + i], c = cs[i], s = cs[n / 2 + i];
        float t0 = x1 * s, t1 = x1 * c;
        x[i] = fmaf(x0, c, -t0);
        x[n / 2 + i] = fmaf(x0, s, t1);
    }
}

/* ---- attention ---- */

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

static void kv_store(const struct kv_view *kv, uint32_t pos, const float *k, const float *v)
{
    uint8_t *page = page_at(kv, pos);
    uint32_t d = kv->head_size, slot = pos % KV_PAGE;
    if (kv->type > KV_F16) {
        kern_store_quantised(kv, page, slot, k, v);
        return;
    }
    for (uint32_t i = 0; i < d; i++) {
        put(kv->type, page, (size_t)i * KV_PAGE + slot, k[i]);
        put(kv->type, page, (size_t)(KV_PAGE + slot) * d + i, v[i]);
    }
}

/* The score of position p: the product of its key and one query head. */
static float score_at(const struct kv_view *kv, uint32_t p, const float *q, const struct act *a)
{
    const uint8_t *page = page_at(kv, p);
    enum qtype type = kv_qtype(kv->type);
    if (!qtype_is_float(type)) {
        _Alignas(8) uint8_t scratch[HEAD_SIZE_MAX * 3];
        struct plain_row row = unpack_row(type, page, kv->head_size, p % KV_PAGE, true, scratch);
        return dot_row(&row, a, 0);
    }
    float s = 0.0f;
    for (uint32_t i = 0; i < kv->head_size; i++)
        s = fmaf(float_at(type, page, (size_t)i * KV_PAGE + p % KV_PAGE), q[i], s);
    return s;
}

/* out += e times the value of position p. */
static void add_value(const struct kv_view *kv, uint32_t p, float e, float *out)
{
    enum qtype type = kv_qtype(kv->type);
    uint32_t d = kv->head_size, slot = p % KV_PAGE;
    const uint8_t *values = page_at(kv, p) + kv_half_bytes(kv->type, d);
    if (qtype_is_float(type)) {
        for (uint32_t i = 0; i < d; i++)
            out[i] = fmaf(float_at(type, values, (size_t)slot * d + i), e, out[i]);
        return;
    }
    const struct tile t = tile_of(type);
    uint32_t bytes = qtype_info((uint32_t)type)->bytes;
    values += (size_t)slot * (d / t.block) * bytes;
    for (uint32_t i = 0; i < d; i += t.block, values += bytes) {
        struct qblock b;
        float scale;
        quant_take(type, values, &b);
        b.kv = true;
        quant_scales(type, &b, &scale, NULL);
        for (uint32_t j = 0; j < t.block; j++)
            out[i + j] = fmaf((float)tile_integer(t, b.u[j]), e * scale, out[i + j]);
    }
}

static void attn_span(const struct kv_view *kv, const float *q, uint32_t n_heads, uint32_t pos0,
                      uint32_t pos1, float cap, struct attn_part *ret_parts)
{
    uint32_t d = kv->head_size;
    for (uint32_t h = 0; h < n_heads; h++, q += d) {
        struct attn_part *o = &ret_parts[h];
        struct kern_query_room room;
        struct act a = kern_query_act(&room, 0, d);
        float score[ATTN_SPAN], lanes[16] = {0};
        if (kv->type > KV_F16) quantise(q, &a, 0);
        o->max = -INFINITY;
        for (uint32_t p = pos0; p < pos1; p++) {
            float s = score_at(kv, p, q, &a);
            if (cap != 0.0f) softcap(&s, 1, cap);
            score[p - pos0] = s;
            o->max = s > o->max ? s : o->max;
        }
        for (uint32_t i = 0; i < d; i++) o->out[i] = 0.0f;
        for (uint32_t p = pos0; p < pos1; p++) {
            float e = fm_exp(score[p - pos0] - o->max);
            lanes[p & 15] += e;
            add_value(kv, p, e, o->out);
        }
        o->sum = tree16(lanes);
    }
}

const struct kern kern_scalar = {
    .name = "scalar",
    .quantise = quantise,
    .linear = linear,
    .rmsnorm = rmsnorm,
    .layernorm = layernorm,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .rope = rope,
    .rope_halves = rope_halves,
    .kv_store = kv_store,
    .attn_span = attn_span,
    .softcap = softcap,
    .peak = peak,
};
