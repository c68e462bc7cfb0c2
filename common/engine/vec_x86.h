/* The vector operations that AVX2 and AVX-512 do in the same 256 or 128 bits: blocks of 32 to be
 * quantised, rotation of neighbours, single halves, nibbles. Included by vec_avx2.h, vec_avx512.h.
 */
#ifndef FLOTILLA_ENGINE_VEC_X86_H
#define FLOTILLA_ENGINE_VEC_X86_H

#include <immintrin.h>
#include <stdint.h>

/* 32 floats that are quantised together. */
struct vec_block {
    __m256 f[4];
};

VEC_INLINE struct vec_block vec_block_load(const float *x)
{
    struct vec_block b;
    for (int i = 0; i < 4; i++) b.f[i] = _mm256_loadu_ps(x + 8 * i);
    return b;
}

/* The largest of their bits without signs. */
VEC_INLINE uint32_t vec_block_bits(const struct vec_block *b)
{
    __m256i mask = _mm256_set1_epi32(0x7fffffff), m = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(b->f[i]), mask));
    __m128i r = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    r = _mm_max_epi32(r, _mm_shuffle_epi32(r, 0x4e));
    r = _mm_max_epi32(r, _mm_shuffle_epi32(r, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(r);
}

/* q = round-to-even(RN(x id)), and the sums of the two halves. */
VEC_INLINE void vec_block_quantise(const struct vec_block *b, float id, int8_t *q, int32_t *sums)
{
    __m256i c[4];
    for (int i = 0; i < 4; i++)
        c[i] = _mm256_cvtps_epi32(_mm256_mul_ps(b->f[i], _mm256_set1_ps(id)));
    __m256i lo = _mm256_packs_epi32(c[0], c[1]), hi = _mm256_packs_epi32(c[2], c[3]);
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi),
                                                _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    /* Lanes 0, 1: the first half's pairs; 2, 3: the second's; within each 128-bit half. */
    __m256i t = _mm256_hadd_epi32(_mm256_add_epi32(c[0], c[1]), _mm256_add_epi32(c[2], c[3]));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    s = _mm_hadd_epi32(s, s);
    sums[0] = _mm_cvtsi128_si32(s);
    sums[1] = _mm_extract_epi32(s, 1);
}

/* Rotates VEC_PAIRS / 2 neighbouring pairs of x by the cos, sin that lie interleaved in cs. */
#define VEC_PAIRS 8u
VEC_INLINE void vec_rotate_pairs(float *x, const float *cs)
{
    __m256 v = _mm256_loadu_ps(x), t = _mm256_loadu_ps(cs);
    __m256 x0 = _mm256_moveldup_ps(v), x1 = _mm256_movehdup_ps(v);
    __m256 sc = _mm256_permute_ps(t, 0xb1); /* s, c, s, c */
    _mm256_storeu_ps(x, _mm256_fmaddsub_ps(x0, t, _mm256_mul_ps(x1, sc)));
}

/* One half: rounded to nearest even, and exactly widened. */
VEC_INLINE uint16_t vec_one_half(float f)
{
    return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT), 0);
}
VEC_INLINE float vec_one_float(uint16_t h)
{
    return _cvtsh_ss(h);
}

/* The low halves of 16 bytes, or their high ones, less 8. */
VEC_INLINE void vec_nibbles(const uint8_t *p, int upper, int8_t *ret_q)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    b = _mm_and_si128(upper ? _mm_srli_epi16(b, 4) : b, _mm_set1_epi8(15));
    _mm_storeu_si128((__m128i *)(void *)ret_q, _mm_sub_epi8(b, _mm_set1_epi8(8)));
}

#endif
