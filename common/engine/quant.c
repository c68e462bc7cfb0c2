#include "common/engine/quant.h"

#include "common/base/fmath.h"

#include <string.h>

/* All types of the GGUF specification (ggml's docs/gguf.md), so that one which is not computed is
 * refused by its name. Numbers 4, 5 and 31..33, 36..38 were removed from the format. */
static const struct qtype_info types[] = {
    [0] = {"F32", 1, 4, true, false, 0},          [1] = {"F16", 1, 2, true, false, 0},
    [2] = {"Q4_0", 32, 18, true, false, 8},       [3] = {"Q4_1", 32, 20, true, true, 0},
    [6] = {"Q5_0", 32, 22, false, false, 16},     [7] = {"Q5_1", 32, 24, false, true, 0},
    [8] = {"Q8_0", 32, 34, true, false, 0},       [9] = {"Q8_1", 32, 36, false, false, 0},
    [10] = {"Q2_K", 256, 84, false, true, 0},     [11] = {"Q3_K", 256, 110, false, false, 4},
    [12] = {"Q4_K", 256, 144, false, true, 0},    [13] = {"Q5_K", 256, 176, false, true, 0},
    [14] = {"Q6_K", 256, 210, false, false, 32},  [15] = {"Q8_K", 256, 292, false, false, 0},
    [16] = {"IQ2_XXS", 256, 66, false, false, 0}, [17] = {"IQ2_XS", 256, 74, false, false, 0},
    [18] = {"IQ3_XXS", 256, 98, false, false, 0}, [19] = {"IQ1_S", 256, 50, false, false, 0},
    [20] = {"IQ4_NL", 32, 18, false, false, 0},   [21] = {"IQ3_S", 256, 110, false, false, 0},
    [22] = {"IQ2_S", 256, 82, false, false, 0},   [23] = {"IQ4_XS", 256, 136, false, false, 0},
    [24] = {"I8", 1, 1, false, false, 0},         [25] = {"I16", 1, 2, false, false, 0},
    [26] = {"I32", 1, 4, false, false, 0},        [27] = {"I64", 1, 8, false, false, 0},
    [28] = {"F64", 1, 8, false, false, 0},        [29] = {"IQ1_M", 256, 56, false, false, 0},
    [30] = {"BF16", 1, 2, false, false, 0},       [34] = {"TQ1_0", 256, 54, false, false, 0},
    [35] = {"TQ2_0", 256, 66, false, false, 0},   [39] = {"MXFP4", 32, 17, false, false, 0},
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

size_t quant_panel_bytes(enum qtype type, uint32_t k)
{
    const struct qtype_info *t = qtype_info(type);
    return (size_t)k / t->block * t->bytes * TILE_ROWS;
}

static bool f16_finite(const uint8_t *p)
{
    return (p[1] & 0x7c) != 0x7c;
}

/* 16 bytes of nibbles (low half: weights 0..15, high half: 16..31) into a tile's four vectors, four
 * weights at a time: vector v takes weights 8v..8v+3 low, 8v+4..8v+7 high. */
static void put_nibbles(const uint8_t *q, uint32_t row, uint8_t *tile)
{
    for (uint32_t v = 0; v < 4; v++, tile += 64) {
        uint32_t a, b;
        memcpy(&a, q + 8 * (v & 1), sizeof a);
        memcpy(&b, q + 8 * (v & 1) + 4, sizeof b);
        uint32_t both = v < 2 ? (a & 0x0f0f0f0f) | (b & 0x0f0f0f0f) << 4
                              : (a >> 4 & 0x0f0f0f0f) | (b & 0xf0f0f0f0);
        memcpy(tile + 4 * row, &both, sizeof both);
    }
}

static bool pack_block(enum qtype type, const uint8_t *b, uint32_t row, uint8_t *tile)
{
    switch (type) {
    case QTYPE_Q4_0:
        put_nibbles(b + 2, row, tile);
        memcpy(tile + 256 + 2 * row, b, 2);
        return f16_finite(b);
    case QTYPE_Q4_1:
        put_nibbles(b + 4, row, tile);
        memcpy(tile + 256 + 2 * row, b, 2);
        memcpy(tile + 288 + 2 * row, b + 2, 2);
        return f16_finite(b) && f16_finite(b + 2);
    case QTYPE_Q8_0:
        for (uint32_t g = 0; g < 8; g++) memcpy(tile + 64 * g + 4 * row, b + 2 + 4 * g, 4);
        memcpy(tile + 512 + 2 * row, b, 2);
        return f16_finite(b);
    default: return false;
    }
}

static void pack_floats(const uint8_t *rows, uint32_t n_rows, uint32_t k, size_t size,
                        uint8_t *panel)
{
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < k; i++)
            memcpy(panel + ((size_t)i * TILE_ROWS + r) * size, rows + ((size_t)r * k + i) * size,
                   size);
}

bool quant_pack_panel(enum qtype type, const uint8_t *rows, uint32_t n_rows, uint32_t k,
                      uint8_t *ret_panel)
{
    const struct qtype_info *t = qtype_info(type);
    if (n_rows < TILE_ROWS) memset(ret_panel, 0, quant_panel_bytes(type, k));
    if (t->block == 1) {
        pack_floats(rows, n_rows, k, t->bytes, ret_panel);
        return true;
    }
    bool finite = true;
    uint32_t n_blocks = k / t->block;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t b = 0; b < n_blocks; b++, rows += t->bytes)
            finite &= pack_block(type, rows, r, ret_panel + (size_t)b * t->bytes * TILE_ROWS);
    return finite;
}

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

static void unpack_tile_row(enum qtype type, const uint8_t *tile, uint32_t lane, float *out)
{
    const struct qtype_info *t = qtype_info(type);
    if (type == QTYPE_Q8_0) {
        float d = load_f16(tile + 512 + 2 * lane);
        for (uint32_t k = 0; k < 32; k++)
            out[k] = (float)(int8_t)tile[(k / 4) * 64 + 4 * lane + (k & 3)] * d;
        return;
    }
    float d = load_f16(tile + 256 + 2 * lane);
    float m = t->has_min ? load_f16(tile + 288 + 2 * lane) : 0.0f;
    for (uint32_t k = 0; k < 32; k++) {
        int w = (tile[(k / 8) * 64 + 4 * lane + (k & 3)] >> (k & 4)) & 15;
        out[k] = t->has_min ? fmaf((float)w, d, m) : (float)(w - t->bias) * d;
    }
}

void quant_unpack_row(enum qtype type, const uint8_t *panel, uint32_t lane, uint32_t k,
                      float *ret_row)
{
    const struct qtype_info *t = qtype_info(type);
    if (type == QTYPE_F32)
        for (uint32_t i = 0; i < k; i++)
            memcpy(&ret_row[i], panel + ((size_t)i * TILE_ROWS + lane) * 4, 4);
    else if (type == QTYPE_F16)
        for (uint32_t i = 0; i < k; i++)
            ret_row[i] = load_f16(panel + ((size_t)i * TILE_ROWS + lane) * 2);
    else
        for (uint32_t i = 0; i < k; i += t->block, panel += (size_t)t->bytes * TILE_ROWS)
            unpack_tile_row(type, panel, lane, ret_row + i);
}

void quant_dequantise(enum qtype type, const uint8_t *row, uint32_t n, float *ret_row)
{
    const struct qtype_info *t = qtype_info(type);
    if (type == QTYPE_F32) {
        memcpy(ret_row, row, (size_t)n * 4);
        return;
    }
    if (type == QTYPE_F16) {
        for (uint32_t i = 0; i < n; i++) ret_row[i] = load_f16(row + 2 * (size_t)i);
        return;
    }
    uint8_t tile[34 * TILE_ROWS];
    for (uint32_t i = 0; i < n; i += t->block, row += t->bytes) {
        memset(tile, 0, sizeof tile);
        (void)pack_block(type, row, 0, tile);
        unpack_tile_row(type, tile, 0, ret_row + i);
    }
}
