/* Weight types: the blocks of a GGUF file, taken apart and given values. How the engine keeps them
 * in memory is tile.h's. Block formats: ggml's quantisation structures, as the GGUF specification
 * names them.
 *
 * A block's weights lie in sub-blocks that share a scale D, and in some types a minimum M:
 *   w = RN(u' D), or fma(u', D, M)
 *   u' = the stored integer less the type's bias, or its entry in the type's table
 * D and M are exact in f32: half precision times at most 8 bits, or a power of two. */
#ifndef FLOTILLA_ENGINE_QUANT_H
#define FLOTILLA_ENGINE_QUANT_H

#include "common/base/fmath.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QBLOCK_MAX 256u   /* weights of the largest block */
#define QBLOCK_SUBS 16u   /* most sub-blocks of a block */
#define QBLOCK_BYTES 210u /* bytes of the largest computed block */

/* The weight types that this engine computes: X(name, number in a GGUF file, weights of a block,
 * bytes of a block). A switch over them has no `default:`, so that the compiler names every place
 * that a new type lacks; README.md says what stands there. */
#define QTYPES_FLOAT(X)                                                                            \
    X(F32, 0, 1, 4)                                                                                \
    X(F16, 1, 1, 2)                                                                                \
    X(BF16, 30, 1, 2)
#define QTYPES_BLOCK(X)                                                                            \
    X(Q4_0, 2, 32, 18)                                                                             \
    X(Q4_1, 3, 32, 20)                                                                             \
    X(Q5_0, 6, 32, 22)                                                                             \
    X(Q5_1, 7, 32, 24)                                                                             \
    X(Q8_0, 8, 32, 34)                                                                             \
    X(Q2_K, 10, 256, 84)                                                                           \
    X(Q3_K, 11, 256, 110)                                                                          \
    X(Q4_K, 12, 256, 144)                                                                          \
    X(Q5_K, 13, 256, 176)                                                                          \
    X(Q6_K, 14, 256, 210)                                                                          \
    X(IQ4_NL, 20, 32, 18)                                                                          \
    X(IQ3_S, 21, 256, 110)                                                                         \
    X(IQ4_XS, 23, 256, 136)                                                                        \
    X(MXFP4, 39, 32, 17)

/* A tensor's type may also be a number that is none of these: one that is not computed. */
enum qtype {
#define X(name, number, block, bytes) QTYPE_##name = (number),
    QTYPES_FLOAT(X) QTYPES_BLOCK(X)
#undef X
};

/* `case QTYPE_FLOATS:` where no float comes or all are alike, `case QTYPE_BLOCKS:` likewise. */
#define QTYPE_FLOATS                                                                               \
    QTYPE_F32:                                                                                     \
    case QTYPE_F16:                                                                                \
    case QTYPE_BF16
#define QTYPE_BLOCKS                                                                               \
    QTYPE_Q4_0:                                                                                    \
    case QTYPE_Q4_1:                                                                               \
    case QTYPE_Q5_0:                                                                               \
    case QTYPE_Q5_1:                                                                               \
    case QTYPE_Q8_0:                                                                               \
    case QTYPE_Q2_K:                                                                               \
    case QTYPE_Q3_K:                                                                               \
    case QTYPE_Q4_K:                                                                               \
    case QTYPE_Q5_K:                                                                               \
    case QTYPE_Q6_K:                                                                               \
    case QTYPE_IQ4_NL:                                                                             \
    case QTYPE_IQ3_S:                                                                              \
    case QTYPE_IQ4_XS:                                                                             \
    case QTYPE_MXFP4

struct qtype_info {
    const char *name;
    uint16_t block; /* weights in a block; 1: a float */
    uint16_t bytes; /* bytes of a block */
    bool computed;  /* this engine has kernels for it */
};

/* NULL for a number that GGUF does not define (or no longer does). */
const struct qtype_info *qtype_info(uint32_t type);

static inline bool qtype_is_float(enum qtype type)
{
    switch (type) {
    case QTYPE_FLOATS: return true;
    case QTYPE_BLOCKS: break;
    }
    return false;
}

/* The byte of which weights are made where only their speed matters. Kernels take equally long for
 * all finite numbers that are not denormal: zeros will do, but for MXFP4, where a byte 0 is a
 * denormal scale; 0x70 is 2^-16. */
static inline uint8_t quant_made_up(enum qtype type)
{
    return type == QTYPE_MXFP4 ? 0x70 : 0;
}

/* What the stored integers of IQ4_NL and IQ4_XS stand for. */
extern const int8_t quant_iq4[16];
/* The same of MXFP4: its floats of four bits, doubled, and 12 more. */
extern const uint8_t quant_fp4[16];
#define QUANT_FP4_BIAS 12
/* IQ3_S stores the magnitudes of four weights as an index into this grid; the first is the lowest
 * byte. */
extern const uint32_t quant_grid[512];

/* A block taken apart. */
struct qblock {
    uint8_t u[QBLOCK_MAX];         /* stored integers; two's complement in Q8_0; of IQ3_S the
                                      signed values, and 15 more */
    uint16_t grid[QBLOCK_MAX / 4]; /* of IQ3_S: indices of fours */
    uint8_t scale[QBLOCK_SUBS];    /* of the sub-blocks, as stored; where a block has several */
    uint8_t min[QBLOCK_SUBS];
    uint16_t d, m; /* half precision; m only where the type has minima; of MXFP4 d is the exponent
                      e of a scale 2^(e - 128) */
    bool kv;       /* keys or values, not a file's weights: see quant_kv_scale */
};

/* Whether the scales are finite, as those of every valid file are. */
bool quant_finite(enum qtype type, const struct qblock *b);

void quant_take(enum qtype type, const uint8_t *block, struct qblock *ret);
/* D and M of each sub-block; ret_m is written where the type has minima. */
void quant_scales(enum qtype type, const struct qblock *b, float *ret_d, float *ret_m);
/* All weights of a block. */
void quant_values(enum qtype type, const struct qblock *b, float *ret);

/* n weights (a multiple of the block) of a file row as f32. */
void quant_dequantise(enum qtype type, const uint8_t *row, uint32_t n, float *ret_row);

/* The scale D of a block of Q8_0 keys or values whose d reads as this float. A half has few bits
 * below 2^-14, and none below 2^-25, where small blocks would lose their precision. The sign of d,
 * which no quantiser sets, therefore serves as one more bit of exponent: with it D = |d| 2^-30. */
static inline float quant_kv_scale(float d)
{
    float small = d * -0x1p-30f;
    return small > d ? small : d; /* NaN stays NaN */
}

/* 32 values into a block of Q8_0 or Q4_0, taken apart, as keys and values are stored.
 * Q8_0: D = RN(amax / 127) rounded to half precision with the exponent of quant_kv_scale, q =
 * round-to-even(RN(x RN(1 / D))), at most 127 in magnitude. From amax = 2^-37 on the error of a
 * value is at most amax / 254 (1 + 2^-10), and quantising the values again gives the same block.
 * Q4_0: ggml's reference quantiser. A block with a value that is not finite, or whose d is not, is
 * poison: d is a NaN, all integers stand for 0. */
void quant_encode(enum qtype type, const float *x, struct qblock *ret);
/* The same block as the file has it. */
void quant_write(enum qtype type, const struct qblock *b, uint8_t *ret_block);

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

static inline bool f16_finite(uint16_t h)
{
    return (h & 0x7c00) != 0x7c00;
}

static inline float bf16_to_f32(uint16_t h)
{
    return fm_float((uint32_t)h << 16);
}

#endif
