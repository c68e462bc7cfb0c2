#include "common/engine/tile.h"

#include <string.h>

static uint32_t word_at(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static void put_word(uint8_t *p, uint32_t u)
{
    memcpy(p, &u, sizeof u);
}

static void put_half(uint8_t *p, uint16_t h)
{
    memcpy(p, &h, sizeof h);
}

static uint16_t half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

#define BYTES(b) ((uint32_t)(b)*0x01010101u) /* the same byte four times */

/* One row's indices and signs of IQ3_S. */
static void put_grid(const struct tile t, const struct qblock *b, uint8_t *lane)
{
    for (uint32_t g = 0; g < QBLOCK_MAX / 4; g++) {
        const uint32_t cell = g / 8, bit = g % 8;
        uint8_t *ninth = lane + tile_ninth_at(cell) + cell % 4, *signs = lane + tile_high_at(t, g);
        lane[tile_low_at(t, g) + g % 4] = (uint8_t)b->grid[g];
        if (bit == 0) {
            *ninth = 0;
            memset(signs, 0, 4);
        }
        *ninth |= (uint8_t)(b->grid[g] >> 8 << bit);
        for (uint32_t i = 0; i < 4; i++) signs[i] |= (uint8_t)((b->u[4 * g + i] < t.bias) << bit);
    }
}

static void take_grid(const struct tile t, const uint8_t *lane, struct qblock *r)
{
    for (uint32_t g = 0; g < QBLOCK_MAX / 4; g++) {
        const uint32_t cell = g / 8, bit = g % 8;
        uint32_t ninth = lane[tile_ninth_at(cell) + cell % 4] >> bit & 1;
        r->grid[g] = (uint16_t)(lane[tile_low_at(t, g) + g % 4] | ninth << 8);
        for (uint32_t i = 0; i < 4; i++) {
            int w = (int)(quant_grid[r->grid[g]] >> (8 * i) & 15);
            bool minus = lane[tile_high_at(t, g) + i] >> bit & 1;
            r->u[4 * g + i] = (uint8_t)(t.bias + (minus ? -w : w));
        }
    }
}

/* One row's four bytes of every vector of a tile's cells. With a constant type all shifts are
 * constants; a group's four weights are moved at once. */
static inline __attribute__((always_inline)) void put_cells(const struct tile t,
                                                            const struct qblock *b, uint8_t *lane)
{
    const uint8_t *u = b->u;
    if (t.values == VALUES_GRID) {
        put_grid(t, b, lane);
        return;
    }
    const uint32_t groups = t.cell / 4u, per_low = 8u / t.low;
    const uint32_t low = BYTES((1u << t.low) - 1);
    for (uint32_t cell = 0; cell < (uint32_t)t.block / t.cell; cell++) {
        uint8_t *at = lane + t.cells_at + cell * tile_cell_bytes(t);
        for (uint32_t g = 0; g < groups; g += per_low, u += 4 * per_low, at += 64) {
            uint32_t w = 0;
            for (uint32_t i = 0; i < per_low; i++) w |= (word_at(u + 4 * i) & low) << (t.low * i);
            put_word(at, w);
        }
        if (!t.high) continue;
        uint32_t w = 0;
        for (uint32_t g = 0; g < groups; g++)
            w |= (word_at(u - 4 * groups + 4 * g) >> t.low & BYTES((1u << t.high) - 1))
                 << (t.high * g);
        put_word(at, w);
    }
}

static inline __attribute__((always_inline)) void take_cells(const struct tile t,
                                                             const uint8_t *lane, struct qblock *r)
{
    uint8_t *u = r->u;
    if (t.values == VALUES_GRID) {
        take_grid(t, lane, r);
        return;
    }
    const uint32_t low = BYTES((1u << t.low) - 1), high = BYTES((1u << t.high) - 1);
    for (uint32_t g = 0; g < t.block / 4u; g++, u += 4) {
        uint32_t w = word_at(lane + tile_low_at(t, g)) >> tile_low_shift(t, g) & low;
        if (t.high)
            w |= (word_at(lane + tile_high_at(t, g)) >> tile_high_shift(t, g) & high) << t.low;
        put_word(u, w);
    }
}

/* ---- scales of sub-blocks: s is lane `row` of the tile's first vector ---- */

static void put_scales(enum qtype type, const struct qblock *b, uint32_t row, uint8_t *s)
{
    const uint8_t *sc = b->scale, *m = b->min;
    if (type == QTYPE_IQ4_XS) {
        uint32_t high = 0;
        for (uint32_t j = 0; j < 8; j++) high |= (uint32_t)(sc[j] >> 4) << (2 * j);
        put_half(s - 4 * row + 64 + 2 * row, (uint16_t)high);
    }
    for (uint32_t i = 0; i < 4; i++, s++) switch (type) {
        case QTYPE_Q4_K:
        case QTYPE_Q5_K:
            s[0] = (uint8_t)((sc[i] & 15) | (sc[i + 4] & 15) << 4);
            s[64] = (uint8_t)((m[i] & 15) | (m[i + 4] & 15) << 4);
            s[128] = (uint8_t)(sc[i] >> 4 | (sc[i + 4] >> 4) << 2 | (m[i] >> 4) << 4 |
                               (m[i + 4] >> 4) << 6);
            break;
        case QTYPE_Q3_K:
            s[0] = (uint8_t)((sc[i] & 15) | (sc[i + 4] & 15) << 4);
            s[64] = (uint8_t)((sc[i + 8] & 15) | (sc[i + 12] & 15) << 4);
            s[128] = (uint8_t)(sc[i] >> 4 | (sc[i + 4] >> 4) << 2 | (sc[i + 8] >> 4) << 4 |
                               (sc[i + 12] >> 4) << 6);
            break;
        case QTYPE_Q6_K:
            for (uint32_t v = 0; v < 4; v++) s[64 * v] = sc[4 * v + i];
            break;
        case QTYPE_Q2_K:
            for (uint32_t v = 0; v < 4; v++)
                s[64 * v] = (uint8_t)(sc[4 * v + i] | m[4 * v + i] << 4);
            break;
        case QTYPE_IQ4_XS:
        case QTYPE_IQ3_S: s[0] = (uint8_t)((sc[2 * i] & 15) | (sc[2 * i + 1] & 15) << 4); break;
        case QTYPE_Q4_0:
        case QTYPE_Q4_1:
        case QTYPE_Q5_0:
        case QTYPE_Q5_1:
        case QTYPE_Q8_0:
        case QTYPE_IQ4_NL:
        case QTYPE_MXFP4:
        case QTYPE_FLOATS: break; /* no scales of sub-blocks */
        }
}

static void take_scales(enum qtype type, const uint8_t *s, uint32_t row, struct qblock *r)
{
    uint8_t *sc = r->scale, *m = r->min;
    uint32_t high = type == QTYPE_IQ4_XS ? half_at(s - 4 * row + 64 + 2 * row) : 0;
    for (uint32_t i = 0; i < 4; i++, s++) switch (type) {
        case QTYPE_Q4_K:
        case QTYPE_Q5_K:
            sc[i] = (uint8_t)((s[0] & 15) | (s[128] & 3) << 4);
            sc[i + 4] = (uint8_t)(s[0] >> 4 | (s[128] >> 2 & 3) << 4);
            m[i] = (uint8_t)((s[64] & 15) | (s[128] >> 4 & 3) << 4);
            m[i + 4] = (uint8_t)(s[64] >> 4 | (s[128] >> 6) << 4);
            break;
        case QTYPE_Q3_K:
            sc[i] = (uint8_t)((s[0] & 15) | (s[128] & 3) << 4);
            sc[i + 4] = (uint8_t)(s[0] >> 4 | (s[128] >> 2 & 3) << 4);
            sc[i + 8] = (uint8_t)((s[64] & 15) | (s[128] >> 4 & 3) << 4);
            sc[i + 12] = (uint8_t)(s[64] >> 4 | (s[128] >> 6) << 4);
            break;
        case QTYPE_Q6_K:
            for (uint32_t v = 0; v < 4; v++) sc[4 * v + i] = s[64 * v];
            break;
        case QTYPE_Q2_K:
            for (uint32_t v = 0; v < 4; v++) {
                sc[4 * v + i] = s[64 * v] & 15;
                m[4 * v + i] = s[64 * v] >> 4;
            }
            break;
        case QTYPE_IQ4_XS:
        case QTYPE_IQ3_S:
            sc[2 * i] = (uint8_t)((s[0] & 15) | (high >> (4 * i) & 3) << 4);
            sc[2 * i + 1] = (uint8_t)(s[0] >> 4 | (high >> (4 * i + 2) & 3) << 4);
            break;
        case QTYPE_Q4_0:
        case QTYPE_Q4_1:
        case QTYPE_Q5_0:
        case QTYPE_Q5_1:
        case QTYPE_Q8_0:
        case QTYPE_IQ4_NL:
        case QTYPE_MXFP4:
        case QTYPE_FLOATS: break; /* no scales of sub-blocks */
        }
}

void tile_put(enum qtype type, const struct qblock *b, uint32_t row, uint8_t *tile)
{
    const struct tile t = tile_of(type);
    uint8_t *lane = tile + (size_t)4 * row;
    if (t.block > 32) put_scales(type, b, row, lane);
    switch (type) {
#define X(name, number, block, bytes)                                                              \
    case QTYPE_##name: put_cells(tile_of(QTYPE_##name), b, lane); break;
        QTYPES_BLOCK(X)
#undef X
    case QTYPE_FLOATS: break;
    }
    if (type == QTYPE_MXFP4)
        tile[t.d_at + row] = (uint8_t)b->d;
    else
        put_half(tile + t.d_at + 2 * row, b->d);
    if (t.has_min) put_half(tile + t.m_at + 2 * row, b->m);
}

void tile_take(enum qtype type, const uint8_t *tile, uint32_t row, struct qblock *ret)
{
    const struct tile t = tile_of(type);
    const uint8_t *lane = tile + (size_t)4 * row;
    ret->kv = false;
    if (t.block > 32) take_scales(type, lane, row, ret);
    switch (type) {
#define X(name, number, block, bytes)                                                              \
    case QTYPE_##name: take_cells(tile_of(QTYPE_##name), lane, ret); break;
        QTYPES_BLOCK(X)
#undef X
    case QTYPE_FLOATS: break;
    }
    ret->d = type == QTYPE_MXFP4 ? tile[t.d_at + row] : half_at(tile + t.d_at + 2 * row);
    if (t.has_min) ret->m = half_at(tile + t.m_at + 2 * row);
}

/* ---- panels ---- */

size_t tile_panel_bytes(enum qtype type, uint32_t k)
{
    const struct qtype_info *t = qtype_info((uint32_t)type);
    return (size_t)k / t->block * t->bytes * TILE_ROWS;
}

static void pack_floats(const uint8_t *rows, uint32_t n_rows, uint32_t k, size_t size,
                        uint8_t *panel)
{
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < k; i++)
            memcpy(panel + ((size_t)i * TILE_ROWS + r) * size, rows + ((size_t)r * k + i) * size,
                   size);
}

bool tile_pack(enum qtype type, const uint8_t *rows, uint32_t n_rows, uint32_t k,
               uint8_t *ret_panel)
{
    const struct qtype_info *t = qtype_info((uint32_t)type);
    if (n_rows < TILE_ROWS) memset(ret_panel, 0, tile_panel_bytes(type, k));
    if (qtype_is_float(type)) {
        pack_floats(rows, n_rows, k, t->bytes, ret_panel);
        return true;
    }
    const struct tile l = tile_of(type);
    bool finite = true;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t b = 0; b < k / t->block; b++, rows += t->bytes) {
            struct qblock block;
            quant_take(type, rows, &block);
            tile_put(type, &block, r, ret_panel + (size_t)b * l.bytes);
            finite &= quant_finite(type, &block);
        }
    return finite;
}

void tile_unpack_row(enum qtype type, const uint8_t *panel, uint32_t row, uint32_t k,
                     float *ret_row)
{
    const struct tile t = tile_of(type);
    for (uint32_t i = 0; i < k; i += t.block) {
        struct qblock b;
        const uint8_t *at = panel + (size_t)i / t.block * t.bytes;
        size_t lane = (size_t)i * TILE_ROWS + row;
        switch (type) {
        case QTYPE_F32: memcpy(ret_row + i, panel + 4 * lane, 4); break;
        case QTYPE_F16: ret_row[i] = f16_to_f32(half_at(panel + 2 * lane)); break;
        case QTYPE_BF16: ret_row[i] = bf16_to_f32(half_at(panel + 2 * lane)); break;
        case QTYPE_BLOCKS: tile_take(type, at, row, &b); quant_values(type, &b, ret_row + i);
        }
    }
}
