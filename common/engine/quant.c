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
    [22] = {"IQ2_S", 256, 82, false},
    [24] = {"I8", 1, 1, false},
    [25] = {"I16", 1, 2, false},
    [26] = {"I32", 1, 4, false},
    [27] = {"I64", 1, 8, false},
    [28] = {"F64", 1, 8, false},
    [29] = {"IQ1_M", 256, 56, false},
    [34] = {"TQ1_0", 256, 54, false},
    [35] = {"TQ2_0", 256, 66, false},
};

const struct qtype_info *qtype_info(uint32_t type)
{
    if (type >= sizeof types / sizeof types[0] || !types[type].name) return NULL;
    return &types[type];
}

const int8_t quant_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
const uint8_t quant_fp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* Four magnitudes 2 n + 1, written as the octal digits n; the last digit is the first weight. */
#define G(n)                                                                                       \
    (0x01010101u +                                                                                 \
     2u * (((n)&07u) | ((n) >> 3 & 07u) << 8 | ((n) >> 6 & 07u) << 16 | ((n) >> 9 & 07u) << 24))
#define ROW(a, b, c, d, e, f, g, h) G(a), G(b), G(c), G(d), G(e), G(f), G(g), G(h)
/* The grid of IQ3_S, as the format defines it (ggml's iq3s_grid). */
const uint32_t quant_grid[512] = {
    ROW(00000, 00001, 00002, 00005, 00007, 00010, 00011, 00012),
    ROW(00014, 00016, 00020, 00021, 00025, 00033, 00040, 00042),
    ROW(00045, 00047, 00051, 00053, 00060, 00062, 00071, 00074),
    ROW(00077, 00100, 00101, 00102, 00104, 00110, 00111, 00115),
    ROW(00120, 00123, 00127, 00131, 00135, 00144, 00161, 00165),
    ROW(00172, 00200, 00201, 00205, 00207, 00210, 00213, 00216),
    ROW(00221, 00225, 00230, 00234, 00242, 00245, 00247, 00251),
    ROW(00253, 00270, 00273, 00303, 00311, 00315, 00320, 00322),
    ROW(00331, 00333, 00336, 00344, 00350, 00352, 00367, 00371),
    ROW(00375, 00400, 00413, 00417, 00421, 00424, 00432, 00440),
    ROW(00443, 00451, 00470, 00502, 00504, 00520, 00522, 00526),
    ROW(00533, 00541, 00545, 00547, 00566, 00573, 00606, 00611),
    ROW(00613, 00631, 00652, 00671, 00700, 00702, 00704, 00720),
    ROW(00722, 00726, 00733, 00750, 00754, 01000, 01001, 01002),
    ROW(01004, 01010, 01011, 01013, 01015, 01017, 01020, 01022),
    ROW(01031, 01034, 01036, 01054, 01056, 01061, 01072, 01100),
    ROW(01101, 01103, 01106, 01110, 01114, 01121, 01130, 01133),
    ROW(01141, 01150, 01152, 01170, 01176, 01200, 01212, 01215),
    ROW(01217, 01220, 01224, 01232, 01240, 01243, 01255, 01260),
    ROW(01272, 01301, 01304, 01307, 01310, 01313, 01321, 01327),
    ROW(01330, 01334, 01341, 01362, 01370, 01403, 01405, 01412),
    ROW(01414, 01431, 01433, 01442, 01446, 01450, 01454, 01501),
    ROW(01510, 01513, 01521, 01530, 01532, 01551, 01620, 01624),
    ROW(01627, 01644, 01646, 01701, 01703, 01710, 01712, 01721),
    ROW(01735, 01741, 01762, 01770, 02000, 02001, 02003, 02005),
    ROW(02007, 02010, 02012, 02014, 02016, 02021, 02023, 02027),
    ROW(02030, 02032, 02041, 02043, 02045, 02050, 02052, 02067),
    ROW(02070, 02073, 02075, 02100, 02102, 02110, 02113, 02117),
    ROW(02122, 02125, 02131, 02134, 02142, 02151, 02201, 02204),
    ROW(02207, 02221, 02223, 02230, 02237, 02241, 02253, 02257),
    ROW(02271, 02274, 02300, 02302, 02305, 02311, 02322, 02324),
    ROW(02331, 02333, 02342, 02350, 02366, 02401, 02407, 02420),
    ROW(02423, 02432, 02435, 02441, 02472, 02475, 02504, 02511),
    ROW(02522, 02537, 02540, 02553, 02570, 02600, 02602, 02607),
    ROW(02621, 02655, 02661, 02705, 02711, 02726, 02730, 02743),
    ROW(02750, 03002, 03011, 03013, 03015, 03017, 03022, 03031),
    ROW(03033, 03035, 03042, 03044, 03047, 03051, 03063, 03071),
    ROW(03101, 03103, 03105, 03114, 03121, 03123, 03140, 03160),
    ROW(03172, 03176, 03200, 03212, 03220, 03232, 03234, 03250),
    ROW(03301, 03310, 03314, 03321, 03323, 03327, 03330, 03341),
    ROW(03343, 03347, 03355, 03373, 03403, 03411, 03416, 03422),
    ROW(03431, 03452, 03460, 03464, 03501, 03510, 03512, 03525),
    ROW(03532, 03544, 03556, 03573, 03616, 03641, 03701, 03703),
    ROW(03720, 03722, 03735, 04000, 04004, 04012, 04020, 04024),
    ROW(04027, 04032, 04041, 04050, 04070, 04102, 04107, 04111),
    ROW(04113, 04122, 04130, 04135, 04143, 04151, 04155, 04201),
    ROW(04203, 04210, 04215, 04221, 04233, 04240, 04257, 04262),
    ROW(04270, 04304, 04311, 04313, 04320, 04322, 04331, 04335),
    ROW(04400, 04402, 04424, 04437, 04440, 04471, 04505, 04507),
    ROW(04521, 04562, 04613, 04634, 04660, 04710, 04715, 04730),
    ROW(04743, 04751, 05002, 05010, 05014, 05022, 05040, 05044),
    ROW(05047, 05052, 05066, 05074, 05101, 05103, 05105, 05112),
    ROW(05121, 05132, 05172, 05200, 05211, 05223, 05230, 05236),
    ROW(05253, 05302, 05307, 05310, 05327, 05344, 05351, 05365),
    ROW(05373, 05401, 05404, 05420, 05432, 05446, 05512, 05526),
    ROW(05551, 05553, 05642, 05702, 05704, 05722, 06011, 06013),
    ROW(06015, 06031, 06033, 06060, 06100, 06120, 06127, 06164),
    ROW(06212, 06234, 06242, 06255, 06262, 06270, 06300, 06314),
    ROW(06321, 06340, 06425, 06443, 06462, 06500, 06503, 06534),
    ROW(06560, 06605, 06640, 06711, 06713, 07000, 07004, 07007),
    ROW(07020, 07022, 07036, 07040, 07054, 07062, 07102, 07111),
    ROW(07124, 07143, 07145, 07201, 07204, 07210, 07216, 07221),
    ROW(07230, 07251, 07302, 07332, 07335, 07353, 07401, 07405),
    ROW(07413, 07420, 07450, 07522, 07542, 07602, 07631, 07700),
};
#undef ROW
#undef G

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

static void take_iq4_xs(const uint8_t *b, struct qblock *r)
{
    const uint32_t high = u16_at(b + 2);
    for (uint32_t j = 0; j < 8; j++) {
        r->scale[j] =
            (uint8_t)((b[4 + j / 2] >> (j & 1 ? 4 : 0) & 15) | (high >> (2 * j) & 3) << 4);
        take_nibbles(b + 8 + 16 * j, 0, r->u + 32 * j);
    }
}

static void take_iq3_s(const uint8_t *b, struct qblock *r)
{
    const uint8_t *low = b + 2, *high = b + 66, *signs = b + 74, *s = b + 106;
    for (uint32_t j = 0; j < 8; j++) r->scale[j] = s[j / 2] >> (j & 1 ? 4 : 0) & 15;
    for (uint32_t g = 0; g < 64; g++) {
        r->grid[g] = (uint16_t)(low[g] | (high[g / 8] >> (g % 8) & 1) << 8);
        for (uint32_t i = 0; i < 4; i++) {
            int w = (int)(quant_grid[r->grid[g]] >> (8 * i) & 15);
            bool minus = signs[g / 2] >> (4 * (g & 1) + i) & 1;
            r->u[4 * g + i] = (uint8_t)(15 + (minus ? -w : w));
        }
    }
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
    case QTYPE_IQ4_NL: take_nibbles(b + 2, 0, ret->u); break;
    case QTYPE_IQ4_XS: take_iq4_xs(b, ret); break;
    case QTYPE_IQ3_S: take_iq3_s(b, ret); break;
    case QTYPE_MXFP4:
        ret->d = b[0];
        take_nibbles(b + 1, 0, ret->u);
        break;
    case QTYPE_FLOATS: break;
    }
}

/* 2^(e - 128); below 2^-126 a denormal. */
static float power_of(uint32_t e)
{
    return fm_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

bool quant_finite(enum qtype type, const struct qblock *b)
{
    if (type == QTYPE_MXFP4) return b->d < 255;
    return f16_finite(b->d) && (!tile_of(type).has_min || f16_finite(b->m));
}

/* What a sub-block's stored scale multiplies d by. */
static int scale_integer(enum qtype type, uint8_t stored)
{
    switch (type) {
    case QTYPE_Q6_K: return (int8_t)stored;
    case QTYPE_Q3_K:
    case QTYPE_IQ4_XS: return stored - 32;
    case QTYPE_IQ3_S: return 1 + 2 * stored;
    case QTYPE_Q2_K:
    case QTYPE_Q4_K:
    case QTYPE_Q5_K: return stored;
    case QTYPE_Q4_0:
    case QTYPE_Q4_1:
    case QTYPE_Q5_0:
    case QTYPE_Q5_1:
    case QTYPE_Q8_0:
    case QTYPE_IQ4_NL:
    case QTYPE_MXFP4:
    case QTYPE_FLOATS: break; /* no scales of sub-blocks */
    }
    return 1;
}

void quant_scales(enum qtype type, const struct qblock *b, float *ret_d, float *ret_m)
{
    const struct tile t = tile_of(type);
    float d = type == QTYPE_MXFP4 ? power_of(b->d) : f16_to_f32(b->d);
    float m = t.has_min ? f16_to_f32(b->m) : 0.0f;
    if (b->kv && type == QTYPE_Q8_0) d = quant_kv_scale(d);
    if (t.block == 32) {
        ret_d[0] = d;
        if (t.has_min) ret_m[0] = m;
        return;
    }
    for (uint32_t j = 0; j < t.block / t.sub; j++) {
        ret_d[j] = d * (float)scale_integer(type, b->scale[j]);
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

/* Smaller scales have the exponent of small blocks; from here on, times 2^30, a half is infinite.
 */
#define SMALL_BELOW 0x1.ffep-15f

static void encode_q8_0(const float *x, float amax, struct qblock *r)
{
    float scale = amax / 127.0f;
    if (scale < SMALL_BELOW) {
        uint16_t small = f16_from_f32(scale * 0x1p30f);
        r->d = small ? (uint16_t)(0x8000 | small) : 0;
    } else {
        r->d = f16_from_f32(scale);
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
