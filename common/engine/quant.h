/* Weight types: the blocks of a GGUF file, and the tiles this engine computes on.
 *
 * A matrix is stored as panels of 16 output rows. A quantised panel is a run of *tiles*, one for
 * each GGUF block along k; a tile holds the 16 rows' blocks, exactly the file's bytes, rearranged
 * so that one SIMD lane is one output row:
 *
 *   vector v of 64 bytes:  byte 4*row + j   row = 0..15, j = 0..3
 *     4-bit types:  low half = weight k = 4*(2v) + j, high half = weight k = 4*(2v+1) + j
 *     Q8_0:         weight k = 4*v + j
 *   then f16 d[16], and for Q4_1 f16 m[16]
 *
 * F32 and F16 panels are [k][16]. Rows beyond the matrix in its last panel are zero. */
#ifndef FLOTILLA_ENGINE_QUANT_H
#define FLOTILLA_ENGINE_QUANT_H

#include "common/base/fmath.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TILE_ROWS 16u

/* Values are those of the GGUF file. */
enum qtype {
    QTYPE_F32 = 0,
    QTYPE_F16 = 1,
    QTYPE_Q4_0 = 2,
    QTYPE_Q4_1 = 3,
    QTYPE_Q8_0 = 8,
};

struct qtype_info {
    const char *name;
    uint16_t block; /* weights in a block */
    uint16_t bytes; /* bytes of a block */
    bool computed;  /* this engine has kernels for it */
    bool has_min;   /* w = d*q + m */
    uint8_t bias;   /* subtracted from the stored integer */
};

/* NULL for a number that GGUF does not define (or no longer does). */
const struct qtype_info *qtype_info(uint32_t type);

/* Bytes of one panel of 16 rows; k is a multiple of the block. */
size_t quant_panel_bytes(enum qtype type, uint32_t k);

/* Packs n_rows (1..16) consecutive file rows of k weights into one panel.
 * False: a scale is not finite, which no valid file has. */
bool quant_pack_panel(enum qtype type, const uint8_t *rows, uint32_t n_rows, uint32_t k,
                      uint8_t *ret_panel);

/* Row `lane` of a packed panel as f32: RN(w*d), or fma(w, d, m). */
void quant_unpack_row(enum qtype type, const uint8_t *panel, uint32_t lane, uint32_t k,
                      float *ret_row);

/* n weights (a multiple of the block) of a file row as f32, in the same arithmetic. */
void quant_dequantise(enum qtype type, const uint8_t *row, uint32_t n, float *ret_row);

/* IEEE half precision, in integers: exact one way, round to nearest even the other, NaN quieted. */
static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff;
    if (exp == 31) return fm_float(sign | 0x7f800000 | man << 13 | (man ? 0x400000 : 0));
    if (exp) return fm_float(sign | (exp + 112) << 23 | man << 13);
    if (man == 0) return fm_float(sign);
    uint32_t shift = 0;
    while (!(man & 0x400)) {
        man <<= 1;
        shift++;
    }
    return fm_float(sign | (113 - shift) << 23 | (man & 0x3ff) << 13);
}

uint16_t f16_from_f32(float f);

#endif
