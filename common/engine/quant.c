#include "common/engine/quant.h"

#include "common/engine/tile.h"

#include <string.h>

/* All types of the GGUF specification (ggml's docs/gguf.md), so that one which is not computed is
 * refused by its name. Numbers 4, 5 and 31..33, 36..38 were removed from the format. */
static const struct qtype_info types[] = {
#define X(name, number, block, bytes) [number] = {#name, block, bytes, true},
    QTYPES_FLOAT(X) QTYPES_BLOCK(X)
#undef X
        [9] = {"Q8_1", 32, 36, false},
    [15] = {"Q8_K", 256, 292, false},
    [16] = {"IQ2_XXS", 256, 66, false},
    [17] = {"IQ2_XS", 256, 74, false},
    [18] = {"IQ3_XXS", 256, 98, false},
    [19] = {"IQ1_S", 256, 50, false},
    [20] = {"IQ4_NL", 32, 18, false},
    [21] = {"IQ3_S", 256, 110, false},
    [22] = {"IQ2_S", 256, 82, false},
    [23] = {"IQ4_XS", 256, 136, false},
    [24] = {"I8", 1, 1, false},
    [25] = {"I16", 1, 2, false},
    [26] = {"I32", 1, 4, false},
    [27] = {"I64", 1, 8, false},
    [28] = {"F64", 1, 8, false},
    [29] = {"IQ1_M", 256, 56, false},
    [34] = {"TQ1_0", 256, 54, false},
    [35] = {"TQ2_0", 256, 66, false},
    [39] = {"MXFP4", 32, 17, false},
};

const struct qtype_info *qtype_info(uint32_t type)
{
    if (type >= sizeof types / sizeof types[0] || !types[type].name) return NULL;
    return &types[type];
}

uint16_t f16_from_f32(float f)
{
    uint32_t u = fm_bits(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    if (a < 0x33000000) return (uint16_t)sign; /* 2^-25 itself ties to even 0 */
    if (a < 0x38800000) {                      /* a denormal half */
        uint32_t shift = 126 - (a >> 23), man = (a & 0x7fffff) | 0x800000;
        uint32_t r = man >> shift, rest = man & ((1u << shift) - 1), half = 1u << (shift - 1);
        if (rest > half || (rest == half && (r & 1))) r++;
        return (uint16_t)(sign | r);
    }
    uint32_t r = a - 0x38000000;
    r += 0xfff + ((r >> 13) & 1);
    return (uint16_t)(sign | (r >> 13));
}

static uint16_t u16_at(const uint8_t *p)
{
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* ---- blocks taken apart ---- */

/* 16 bytes: low halves are weights 0..15, high halves 16..31; bit i of `fifth` is bit 4 of i. */
static void take_nibbles(const uint8_t *q, uint32_t fifth, uint8_t *u)
{
    for (uint32_t i = 0; i < 16; i++) {
        u[i] = (uint8_t)((q[i] & 15) | (fifth >> i & 1) << 4);
        u[i + 16] = (uint8_t)(q[i] >> 4 | (fifth >> (i + 16) & 1) << 4);
    }
}

/* The 6-bit scales and minima of Q4_K and Q5_K, in 12 bytes. */
static void take_scales_k4(const uint8_t *s, struct qblock *r)
{
    for (uint32_t j = 0; j < 4; j++) {
        r->scale[j] = s[j] & 63;
        r->min[j] = s[j + 4] & 63;
        r->scale[j + 4] = (uint8_t)((s[j + 8] & 15) | (s[j] >> 6) << 4);
        r->min[j + 4] = (uint8_t)(s[j + 8] >> 4 | (s[j + 4] >> 6) << 4);
    }
}

static void take_q2_k(const uint8_t *b, struct qblock *r)
{
    for (uint32_t j = 0; j < 16; j++) {
        r->scale[j] = b[j] & 15;
        r->min[j] = b[j] >> 4;
    }
    for (uint32_t n = 0; n < 8; n++) /* 32 weights */
        for (uint32_t i = 0; i < 32; i++)
            r->u[32 * n + i] = b[16 + 32 * (n / 4) + i] >> (2 * (n & 3)) & 3;
    r->d = u16_at(b + 80);
    r->m = u16_at(b + 82);
}

static void take_q3_k(const uint8_t *b, struct qblock *r)
{
    const uint8_t *high = b, *low = b + 32, *s = b + 96;
    for (uint32_t n = 0; n < 8; n++)
        for (uint32_t i = 0; i < 32; i++)
            r->u[32 * n + i] =
                (uint8_t)((low[32 * (n / 4) + i] >> (2 * (n & 3)) & 3) | (high[i] >> n & 1) << 2);
    for (uint32_t j = 0; j < 16; j++)
        r->scale[j] = (uint8_t)((s[j & 7] >> (j & 8 ? 4 : 0) & 15) |
                                (s[8 + (j & 3)] >> (2 * (j / 4)) & 3) << 4);
    r->d = u16_at(b + 108);
}

static void take_q4_k(const uint8_t *q, const uint8_t *fifth, struct qblock *r)
{
    for (uint32_t n = 0; n < 4; n++, q += 32) /* 64 weights */
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t h = fifth ? (uint32_t)fifth[i] >> (2 * n) : 0;
            r->u[64 * n + i] = (uint8_t)((q[i] & 15) | (h & 1) << 4);
            r->u[64 * n + 32 + i] = (uint8_t)(q[i] >> 4 | (h >> 1 & 1) << 4);
        }
}

static void take_q6_k(const uint8_t *b, struct qblock *r)
{
    const uint8_t *low = b, *high = b + 128;
    for (uint32_t n = 0; n < 2; n++, low += 64, high += 32)
        for (uint32_t i = 0; i < 32; i++) {
            uint8_t *u = r->u + 128 * n + i;
            u[0] = (uint8_t)((low[i] & 15) | (high[i] & 3) << 4);
            u[32] = (uint8_t)((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
            u[64] = (uint8_t)(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
            u[96] = (uint8_t)(low[i + 32] >> 4 | (high[i] >> 6) << 4);
        }
    memcpy(r->scale, b + 192, 16);
    r->d = u16_at(b + 208);
}

void quant_take(enum qtype type, const uint8_t *b, struct qblock *ret)
{
    ret->kv = false;
    ret->d = u16_at(b); /* where the type has it elsewhere, its own function reads it */
    if (tile_of(type).has_min) ret->m = u16_at(b + 2);
    switch (type) {
    case QTYPE_Q4_0: take_nibbles(b + 2, 0, ret->u); break;
    case QTYPE_Q4_1: take_nibbles(b + 4, 0, ret->u); break;
    case QTYPE_Q5_0: take_nibbles(b + 6, u32_at(b + 2), ret->u); break;
    case QTYPE_Q5_1: take_nibbles(b + 8, u32_at(b + 4), ret->u); break;
    case QTYPE_Q8_0: memcpy(ret->u, b + 2, 32); break;
    case QTYPE_Q2_K: take_q2_k(b, ret); break;
    case QTYPE_Q3_K: take_q3_k(b, ret); break;
    case QTYPE_Q4_K:
        take_scales_k4(b + 4, ret);
        take_q4_k(b + 16, NULL, ret);
        break;
    case QTYPE_Q5_K:
        take_scales_k4(b + 4, ret);
        take_q4_k(b + 48, b + 16, ret);
        break;
    case QTYPE_Q6_K: take_q6_k(b, ret); break;
    case QTYPE_FLOATS: break;
    }
}

void quant_scales(enum qtype type, const struct qblock *b, float *ret_d, float *ret_m)
{
    const struct tile t = tile_of(type);
    float d = f16_to_f32(b->d), m = t.has_min ? f16_to_f32(b->m) : 0.0f;
    if (b->kv && type == QTYPE_Q8_0) d = quant_kv_scale(d);
    if (t.block == 32) {
        ret_d[0] = d;
        if (t.has_min) ret_m[0] = m;
        return;
    }
    for (uint32_t j = 0; j < t.block / t.sub; j++) {
        int s = type == QTYPE_Q6_K ? (int8_t)b->scale[j] : b->scale[j];
        ret_d[j] = d * (float)(type == QTYPE_Q3_K ? s - 32 : s);
        if (t.has_min) ret_m[j] = -(m * (float)b->min[j]);
    }
}

void quant_values(enum qtype type, const struct qblock *b, float *ret)
{
    const struct tile t = tile_of(type);
    float d[QBLOCK_SUBS], m[QBLOCK_SUBS];
    quant_scales(type, b, d, m);
    for (uint32_t i = 0; i < t.block; i++) {
        float u = (float)tile_integer(t, b->u[i]);
        ret[i] = t.has_min ? fmaf(u, d[i / t.sub], m[i / t.sub]) : u * d[i / t.sub];
    }
}

void quant_dequantise(enum qtype type, const uint8_t *row, uint32_t n, float *ret_row)
{
    const struct qtype_info *t = qtype_info((uint32_t)type);
    for (uint32_t i = 0; i < n; i += t->block, row += t->bytes) {
        struct qblock b;
        switch (type) {
        case QTYPE_F32: memcpy(ret_row + i, row, 4); break;
        case QTYPE_F16: ret_row[i] = f16_to_f32(u16_at(row)); break;
        case QTYPE_BF16: ret_row[i] = bf16_to_f32(u16_at(row)); break;
        case QTYPE_BLOCKS: quant_take(type, row, &b); quant_values(type, &b, ret_row + i);
        }
    }
}

/* ---- keys and values ---- */

/* The largest that a half with the exponent of quant_kv_scale has: 65504 x 2^-30. As a half without
 * it, it would be rounded up to 2^-14, and its block would change when it is quantised again. */
#define SMALL_SCALE_MAX 0x1.ffcp-15f

static void encode_q8_0(const float *x, float amax, struct qblock *r)
{
    const float scale = amax / 127.0f;
    r->d = f16_from_f32(scale);
    if (scale <= SMALL_SCALE_MAX) {
        uint16_t small = f16_from_f32(scale * 0x1p30f);
        r->d = small ? (uint16_t)(0x8000 | small) : 0;
    }
    float d = quant_kv_scale(f16_to_f32(r->d)), id = d != 0.0f ? 1.0f / d : 0.0f;
    for (uint32_t i = 0; i < 32; i++) {
        float q = x[i] * id;
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        r->u[i] = (uint8_t)(int8_t)lrintf(q);
    }
}

static void encode_q4_0(const float *x, float amax, struct qblock *r)
{
    float extreme = 0.0f;
    for (uint32_t i = 32; i-- > 0;)
        if (fabsf(x[i]) == amax) extreme = x[i]; /* the first of equals */
    float d = extreme / -8.0f, id = d != 0.0f ? 1.0f / d : 0.0f;
    r->d = f16_from_f32(d);
    for (uint32_t i = 0; i < 32; i++) {
        int q = (int)fmaf(x[i], id, 8.5f); /* as ggml's loop is compiled where there is FMA */
        r->u[i] = (uint8_t)(q < 15 ? q : 15);
    }
}

void quant_encode(enum qtype type, const float *x, struct qblock *ret)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t u = fm_bits(x[i]) & 0x7fffffff;
        if (u > bits) bits = u;
    }
    ret->d = 0x7e00;
    ret->kv = true;
    /* The largest value whose scale is still finite is 65504 x 127 (Q8_0); beyond, and for Inf and
     * NaN, the block is poison. Tiny blocks, whose 1 / d overflows, are zero. */
    if (bits < 0x7f800000) {
        float amax = fm_float(bits);
        if (amax < 0x1p-120f) amax = 0.0f;
        const float zero[32] = {0};
        if (type == QTYPE_Q8_0)
            encode_q8_0(amax == 0.0f ? zero : x, amax, ret);
        else
            encode_q4_0(amax == 0.0f ? zero : x, amax, ret);
    }
    if (f16_finite(ret->d)) return;
    ret->d = 0x7e00;
    memset(ret->u, tile_of(type).bias, 32);
}

void quant_write(enum qtype type, const struct qblock *b, uint8_t *ret_block)
{
    memcpy(ret_block, &b->d, 2);
    if (type == QTYPE_Q8_0)
        memcpy(ret_block + 2, b->u, 32);
    else
        for (uint32_t i = 0; i < 16; i++) ret_block[2 + i] = (uint8_t)(b->u[i] | b->u[i + 16] << 4);
}
