/* The kernel table: the inner loops of the engine, one implementation for each instruction-set
 * level. All levels give the same bits; README.md in this folder is the arithmetic contract, and
 * kern_scalar.c is that contract in C, the oracle that the others are tested against.
 *
 * Kernels allocate nothing, know no threads, and touch only what they are given. */
#ifndef FLOTILLA_ENGINE_KERN_H
#define FLOTILLA_ENGINE_KERN_H

#include "common/engine/tile.h"

#include <stddef.h>
#include <stdint.h>

#define ACT_BLOCK 32u  /* values that share a scale in a quantised activation row */
#define ACT_GROUP 16u  /* tokens that lie together */
#define ATTN_SPAN 256u /* positions of one partial attention result, aligned to position 0 */
#define KV_PAGE 16u    /* positions of a KV page */
#define HEAD_SIZE_MAX 256u
#define ATTN_GROUP_MAX 16u /* query heads that share one KV head */

/* Quantised activations of n tokens. Tokens lie in groups of ACT_GROUP (the last may be smaller);
 * with T the tokens of a group, nb = k / 32, and base = ACT_GROUP * group * k:
 *   q[base + (block * T + token) * 32 + i]      x, y, s[base / 32 + block * T + token]
 * x is the block's scale, s the sum of its q, y = RN(x * s), and h has two values for each block:
 * the sums of its halves. k is a multiple of 32. */
struct act {
    uint32_t n_tokens;
    uint32_t k;
    int8_t *q;
    float *x, *y;
    int32_t *s, *h;
};

/* Most tokens whose product may come straight from tiles (struct mat). */
#define KERN_FEW_MAX 32u

/* A weight matrix in panels (tile.h). Products of up to `few` tokens, at most KERN_FEW_MAX, unpack
 * tiles in registers; those of more unpack each panel to memory first. The results are the same,
 * and one token always reads tiles. Which is faster depends on type and machine. */
struct mat {
    enum qtype type;
    uint32_t rows, k;
    const uint8_t *panels;
    uint32_t few;
};

static inline uint32_t mat_n_panels(const struct mat *m)
{
    return (m->rows + TILE_ROWS - 1) / TILE_ROWS;
}

enum kv_type { KV_F32, KV_F16, KV_Q8_0, KV_Q4_0, KV_N_TYPES };

/* K and V of one KV head as attention sees them: page p of the sequence is at
 * base + pages[p] * page_bytes and holds the keys of 16 positions, then their values.
 *   F32, F16:    keys [head_size][16 positions], values [16 positions][head_size]
 *   Q8_0, Q4_0:  keys a panel of tiles (tile.h) in which a position is a row, values
 *                [16 positions][head_size / 32] blocks as in a file; head_size % 32 == 0 */
struct kv_view {
    enum kv_type type;
    uint32_t head_size;
    uint8_t *base;
    size_t page_bytes;
    const uint32_t *pages;
};

/* The format in which keys and values are stored. */
static inline enum qtype kv_qtype(enum kv_type type)
{
    static const enum qtype of[] = {QTYPE_F32, QTYPE_F16, QTYPE_Q8_0, QTYPE_Q4_0};
    return of[type];
}

/* Bytes of one position's key of one head, and as many of its value. */
static inline size_t kv_row_bytes(enum kv_type type, uint32_t head_size)
{
    return tile_panel_bytes(kv_qtype(type), head_size) / KV_PAGE;
}

/* Bytes of the keys of one head in a page, and as many of its values: a multiple of 64. Q8_0 and
 * Q4_0 of an odd number of blocks leave 32 of them unused. */
static inline size_t kv_half_bytes(enum kv_type type, uint32_t head_size)
{
    return (kv_row_bytes(type, head_size) * KV_PAGE + 63) / 64 * 64;
}

/* Attention of one query head over part of one span: the largest score, the sum of the weights
 * e^(score - max), and the values weighted by them. */
struct attn_part {
    float max, sum;
    float out[HEAD_SIZE_MAX];
};

/* Products of bytes that a round of struct kern's `peak` adds. */
#define KERN_PEAK_PRODUCTS 4096u

struct kern {
    const char *name;
    bool has_few; /* struct mat's `few` has an effect */
    /* Quantises one row of a->k values as token `token` of a. */
    void (*quantise)(const float *x, struct act *a, uint32_t token);
    /* out[token * ldo + row] for the rows of panels [panel0, panel1); writes whole panels, so each
     * out row has room for 16 * panels floats. Quantised types read `a`, float types read
     * x[token * ldx + i]. scratch: kern_scratch_bytes(k) for this thread alone. */
    void (*linear)(const struct mat *w, uint32_t panel0, uint32_t panel1, const struct act *a,
                   const float *x, size_t ldx, uint32_t n_tokens, float *out, size_t ldo,
                   void *scratch);
    /* y may be x, in both. b: NULL, or added. */
    void (*rmsnorm)(const float *x, const float *w, float *y, uint32_t n, float eps);
    void (*layernorm)(const float *x, const float *w, const float *b, float *y, uint32_t n,
                      float eps);
    /* y = silu(g) * u, y = gelu(g) * u (the tanh form) */
    void (*silu_mul)(const float *g, const float *u, float *y, uint32_t n);
    void (*gelu_mul)(const float *g, const float *u, float *y, uint32_t n);
    /* Rotates the n/2 pairs of x: neighbours by angles whose cos, sin lie interleaved in cs; or
     * x[i] with x[n/2 + i], by cs = all cosines, then all sines. */
    void (*rope)(float *x, const float *cs, uint32_t n);
    void (*rope_halves)(float *x, const float *cs, uint32_t n);
    /* Writes one position of one KV head. */
    void (*kv_store)(const struct kv_view *kv, uint32_t pos, const float *k, const float *v);
    /* n_heads query heads (q: [n_heads][head_size], scaled) over positions [pos0, pos1) of one
     * span; writes n_heads parts. softcap: the soft cap of scores; 0: none. */
    void (*attn_span)(const struct kv_view *kv, const float *q, uint32_t n_heads, uint32_t pos0,
                      uint32_t pos1, float softcap, struct attn_part *ret_parts);
    /* x = c times the hyperbolic tangent of x / c */
    void (*softcap)(float *x, uint32_t n, float c);
    /* What `linear` can reach at most: adds rounds * KERN_PEAK_PRODUCTS products of bytes as it
     * adds those of weights of four bits, and does nothing else; operands come from registers
     * (scalar: from the L1 cache). Each product is 1: the sum is their number, modulo 2^32. */
    uint32_t (*peak)(uint32_t rounds);
};

extern const struct kern kern_scalar;
/* On x86-64 only. */
extern const struct kern kern_avx2;
extern const struct kern kern_avx512;

/* Joins a head's parts, spans ascending: part i is parts[i * stride]. Same code at every level. */
void kern_attn_join(const struct attn_part *parts, size_t stride, uint32_t n_parts,
                    uint32_t head_size, float *ret_out);

/* The normalised Walsh-Hadamard transform of each block of 32 elements. The product of two
 * transformed vectors is that of the vectors, and transforming twice gives the vector back, but for
 * rounding. n is a multiple of 32. Same code at every level. */
void kern_hadamard(float *x, uint32_t n);

/* x[0..n) += bias[0..n); NULL: there is none. */
void kern_add_bias(float *x, const float *bias, uint32_t n);

/* A row's norm: RMSNorm, or LayerNorm with or without a bias. */
struct kern_norm {
    bool layer;
    const float *weight, *bias;
    float eps;
};

/* Normalises a row once and, where `a` is not NULL, quantises it once, as row `row` of a: what the
 * products of all panels and threads then share. */
void kern_norm_row(const struct kern *k, const struct kern_norm *norm, const float *x, uint32_t n,
                   float *y, struct act *a, uint32_t row);

/* Bytes of scratch memory that `linear` needs for rows of k weights. */
size_t kern_scratch_bytes(uint32_t k);

/* Where token `token`'s block starts in a (an index into x, y, s; times 32 into q). */
static inline size_t act_index(const struct act *a, uint32_t token, uint32_t block)
{
    uint32_t first = token / ACT_GROUP * ACT_GROUP;
    uint32_t left = a->n_tokens - first, group = left < ACT_GROUP ? left : ACT_GROUP;
    return (size_t)first * (a->k / ACT_BLOCK) + (size_t)block * group + (token - first);
}

#endif
