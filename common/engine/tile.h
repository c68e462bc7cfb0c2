/* Tiles: how the engine keeps weights. A matrix is stored as panels of 16 output rows. A quantised
 * panel is a run of tiles, one for each GGUF block along k: the 16 rows' blocks, exactly as many
 * bytes as the file has, rearranged so that one SIMD lane is one output row.
 *
 * Everything lies in vectors of 64 bytes, four bytes a row: byte 4 * row + i of a vector is of row
 * `row`. A *group* is four consecutive weights k = 4g + i; one byte of a vector has one weight of
 * each of 8 / bits groups. In the order in which kernels read it:
 *
 *   blocks of 256: the scales of the sub-blocks, d[16 rows], dmin[16 rows] (f16)
 *   cells:         vectors of the low bits, then, in types of 3, 5 or 6 bits, one vector of high
 *                  bits
 *   blocks of 32:  d[16 rows], m[16 rows] (f16); in MXFP4 exponents[16 rows], a byte each
 *
 *               bits: low  high   weights of a cell
 *   Q4_0, Q4_1        4    -      32
 *   Q5_0, Q5_1        4    1      32
 *   Q8_0              8    -      32
 *   Q2_K              2    -      32
 *   Q3_K              2    1      32
 *   Q4_K              4    -      32
 *   Q5_K              4    1      32
 *   Q6_K              4    2      16
 *   IQ4_NL, IQ4_XS    4    -      32
 *   MXFP4             4    -      32
 *   IQ3_S             2    1      32    as indices of fours and signs: see below
 *
 * Scales of sub-blocks j, as bytes i = 0..3 of a row in vectors v:
 *   Q2_K         v 0..3: scale | min << 4 of j = 4v + i
 *   Q6_K         v 0..3: scale of j = 4v + i
 *   Q4_K, Q5_K   v 0: low halves of the scales of i and i + 4; v 1: of the minima; v 2: two high
 *                bits of scale i, scale i + 4, min i, min i + 4
 *   Q3_K         v 0: low halves of the scales of i and i + 4; v 1: of i + 8 and i + 12; v 2: two
 *                high bits of each of the four
 *   IQ4_XS       v 0: low halves of the scales of 2i and 2i + 1; then, two bytes a row, two high
 *                bits of each scale in the order of j
 *   IQ3_S        v 0: the scales of 2i and 2i + 1; v 1: bit g of byte i is the ninth bit of the
 *                index of group g of cell i; v 2: of cell i + 4
 *
 * A cell of IQ3_S has 8 groups, whose four magnitudes are an entry of quant_grid. Its two vectors
 * of low bits hold the indices of the groups i and i + 4, its vector of high bits in bit g of byte
 * i the sign of weight i of group g.
 *
 * Panels of F32, F16 and BF16 are [k][16]. Rows beyond the matrix in its last panel are zero. */
#ifndef FLOTILLA_ENGINE_TILE_H
#define FLOTILLA_ENGINE_TILE_H

#include "common/engine/quant.h"

#define TILE_ROWS 16u

/* How stored integers become weights: less the bias; by quant_iq4; by quant_fp4 and then less the
 * bias; as entries of quant_grid with signs. */
enum tile_values { VALUES_PLAIN, VALUES_IQ4, VALUES_FP4, VALUES_GRID };

/* A type's layout. Inline, so that kernels for one type see constants. */
struct tile {
    uint16_t block;    /* weights of a tile along k */
    uint16_t bytes;    /* of a tile */
    uint8_t sub;       /* weights that share a scale */
    uint8_t low, high; /* bits of a weight in the vectors of low and of high bits */
    uint8_t bias;      /* subtracted from the stored integer, or from what stands for it */
    bool has_min;
    uint8_t cell;                  /* weights of a row in a cell */
    uint16_t cells_at, d_at, m_at; /* bytes from the start of the tile */
    enum tile_values values;
};

static inline __attribute__((always_inline)) struct tile tile_of(enum qtype type)
{
    const enum tile_values P = VALUES_PLAIN;
    switch (type) {
    case QTYPE_Q4_0: return (struct tile){32, 288, 32, 4, 0, 8, false, 32, 0, 256, 0, P};
    case QTYPE_Q4_1: return (struct tile){32, 320, 32, 4, 0, 0, true, 32, 0, 256, 288, P};
    case QTYPE_Q5_0: return (struct tile){32, 352, 32, 4, 1, 16, false, 32, 0, 320, 0, P};
    case QTYPE_Q5_1: return (struct tile){32, 384, 32, 4, 1, 0, true, 32, 0, 320, 352, P};
    case QTYPE_Q8_0: return (struct tile){32, 544, 32, 8, 0, 0, false, 32, 0, 512, 0, P};
    case QTYPE_Q2_K: return (struct tile){256, 1344, 16, 2, 0, 0, true, 32, 320, 256, 288, P};
    case QTYPE_Q3_K: return (struct tile){256, 1760, 16, 2, 1, 4, false, 32, 224, 192, 0, P};
    case QTYPE_Q4_K: return (struct tile){256, 2304, 32, 4, 0, 0, true, 32, 256, 192, 224, P};
    case QTYPE_Q5_K: return (struct tile){256, 2816, 32, 4, 1, 0, true, 32, 256, 192, 224, P};
    case QTYPE_Q6_K: return (struct tile){256, 3360, 16, 4, 2, 32, false, 16, 288, 256, 0, P};
    case QTYPE_IQ4_NL: return (struct tile){32, 288, 32, 4, 0, 0, false, 32, 0, 256, 0, VALUES_IQ4};
    case QTYPE_IQ3_S:
        return (struct tile){256, 1760, 32, 2, 1, 15, false, 32, 224, 192, 0, VALUES_GRID};
    case QTYPE_IQ4_XS:
        return (struct tile){256, 2176, 32, 4, 0, 0, false, 32, 128, 96, 0, VALUES_IQ4};
    case QTYPE_MXFP4:
        return (struct tile){32, 272, 32, 4, 0, QUANT_FP4_BIAS, false, 32, 0, 256, 0, VALUES_FP4};
    case QTYPE_FLOATS: break;
    }
    return (struct tile){1, 0, 1, 0, 0, 0, false, 0, 0, 0, 0, P};
}

/* The integer that a stored one stands for. */
static inline int tile_integer(const struct tile t, uint8_t u)
{
    switch (t.values) {
    case VALUES_IQ4: return quant_iq4[u];
    case VALUES_FP4: return quant_fp4[u] - t.bias;
    case VALUES_PLAIN:
    case VALUES_GRID: break;
    }
    return t.low == 8 ? (int8_t)u : u - t.bias;
}

static inline uint32_t tile_cell_bytes(const struct tile t)
{
    return 64u * ((uint32_t)t.cell * t.low / 32 + (t.high ? 1 : 0));
}

/* Where the vector with group g's low bits begins, and how far to shift them right. */
static inline uint32_t tile_low_at(const struct tile t, uint32_t g)
{
    uint32_t in_cell = g % (t.cell / 4u);
    return t.cells_at + g / (t.cell / 4u) * tile_cell_bytes(t) + 64 * (in_cell / (8u / t.low));
}

static inline uint32_t tile_low_shift(const struct tile t, uint32_t g)
{
    return t.low * (g % (8u / t.low));
}

/* Where the ninth bits of the grid's indices of a cell lie: a bit a group, in byte cell % 4. */
static inline uint32_t tile_ninth_at(uint32_t cell)
{
    return 64 + 64 * (cell / 4);
}

/* The same for its high bits. */
static inline uint32_t tile_high_at(const struct tile t, uint32_t g)
{
    return t.cells_at + (g / (t.cell / 4u) + 1) * tile_cell_bytes(t) - 64;
}

static inline uint32_t tile_high_shift(const struct tile t, uint32_t g)
{
    return t.high * (g % (t.cell / 4u));
}

/* Puts a block into lane `row` of a tile; takes it out again. */
void tile_put(enum qtype type, const struct qblock *b, uint32_t row, uint8_t *tile);
void tile_take(enum qtype type, const uint8_t *tile, uint32_t row, struct qblock *ret);

/* Bytes of one panel of 16 rows; k is a multiple of the block. */
size_t tile_panel_bytes(enum qtype type, uint32_t k);

/* Packs n_rows (1..16) consecutive file rows of k weights into one panel.
 * False: a scale is not finite, which no valid file has. */
bool tile_pack(enum qtype type, const uint8_t *rows, uint32_t n_rows, uint32_t k,
               uint8_t *ret_panel);

/* Row `row` of a packed panel as f32. */
void tile_unpack_row(enum qtype type, const uint8_t *panel, uint32_t row, uint32_t k,
                     float *ret_row);

#endif
