/* The vector operations over AVX-512 (F, BW, VL, DQ) with VNNI: a vector is one zmm. Included by
 * vec.h. */
#ifndef FLOTILLA_ENGINE_VEC_AVX512_H
#define FLOTILLA_ENGINE_VEC_AVX512_H

#include "common/engine/vec_x86.h"

#define VEC_LEVEL "avx512"
#define VEC_TOKENS 8    /* tokens whose sums fit the registers */
#define VEC_PAGES 2     /* KV pages of four heads' scores that do */
#define VEC_VALUES 4    /* vectors of four heads' outputs that do */
#define VEC_PEAK_SUMS 8 /* sums, of two chains each, that hide the latency of dpbusd */

typedef __m512 vec;
typedef __mmask16 vec_mask;

/* Nothing: there are registers enough. */
VEC_INLINE void vec_park(vec *x)
{
    (void)x;
}

VEC_INLINE vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VEC_INLINE void vec_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}
VEC_INLINE vec vec_all(float f)
{
    return _mm512_set1_ps(f);
}
VEC_INLINE vec vec_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
VEC_INLINE vec vec_bf16(const uint16_t *p)
{
    __m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
}
/* 2^(e - 128) of 16 bytes e; the first two are denormal. */
VEC_INLINE vec vec_powers(const uint8_t *p)
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __mmask16 is_small = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(2), e);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_small, normal, small));
}
VEC_INLINE vec vec_bytes(const int8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}
VEC_INLINE void vec_store_half(uint16_t *p, vec x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
VEC_INLINE vec vec_fma(vec x, vec y, vec z)
{
    return _mm512_fmadd_ps(x, y, z);
}
VEC_INLINE vec vec_add(vec x, vec y)
{
    return _mm512_add_ps(x, y);
}
VEC_INLINE vec vec_sub(vec x, vec y)
{
    return _mm512_sub_ps(x, y);
}
VEC_INLINE vec vec_mul(vec x, vec y)
{
    return _mm512_mul_ps(x, y);
}
VEC_INLINE vec vec_div(vec x, vec y)
{
    return _mm512_div_ps(x, y);
}
VEC_INLINE vec vec_max(vec x, vec y)
{
    return _mm512_max_ps(x, y);
}
VEC_INLINE vec_mask vec_less(vec x, vec y)
{
    return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ);
}
VEC_INLINE vec_mask vec_nan(vec x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}
/* m ? yes : no */
VEC_INLINE vec vec_select(vec_mask m, vec yes, vec no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
VEC_INLINE vec vec_negate(vec x)
{
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN)));
}
/* Lanes lo..hi-1. */
VEC_INLINE vec_mask vec_range(int lo, int hi)
{
    return (vec_mask)(((1u << hi) - 1) & ~((1u << lo) - 1));
}
/* The first n lanes; the others are +0 and their memory is not touched. */
VEC_INLINE vec vec_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(vec_range(0, n), p);
}
VEC_INLINE void vec_store_n(float *p, vec x, int n)
{
    _mm512_mask_storeu_ps(p, vec_range(0, n), x);
}
/* The fixed tree over 16 lanes: +8, +4, +2, +1. */
VEC_INLINE float vec_tree(vec v)
{
    __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(v), high);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
/* Adds t << 23 to the bits of y: the scaling step of exp. */
VEC_INLINE vec vec_scale(vec y, vec t)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

/* ---- 64 bytes: 16 rows x 4 ---- */

typedef __m512i ivec;
typedef __m512i ivec_four; /* the same four bytes in every 32-bit lane */

VEC_INLINE ivec iv_load(const uint8_t *p)
{
    return _mm512_loadu_si512((const void *)p);
}
VEC_INLINE void iv_store(uint8_t *p, ivec v)
{
    _mm512_storeu_si512((void *)p, v);
}
VEC_INLINE ivec iv_and(ivec v, int mask)
{
    return _mm512_and_si512(v, _mm512_set1_epi8((char)mask));
}
/* to | (v & mask), byte by byte */
VEC_INLINE ivec iv_merge(ivec to, ivec v, int mask)
{
    return _mm512_ternarylogic_epi32(to, v, _mm512_set1_epi8((char)mask), 0xf8);
}
#if defined(__clang__) /* the two compilers' headers want counts of different signs */
#define IV_COUNT(n) ((unsigned)(n))
#else
#define IV_COUNT(n) (n)
#endif
/* Shifts cross bytes: bits that came from a neighbour must be masked off. */
VEC_INLINE ivec iv_shl(ivec v, int n)
{
    return n ? _mm512_slli_epi16(v, IV_COUNT(n)) : v;
}
VEC_INLINE ivec iv_shr(ivec v, int n)
{
    return n ? _mm512_srli_epi16(v, IV_COUNT(n)) : v;
}
/* The compiler no longer knows what v is. */
VEC_INLINE void iv_hide(ivec *v)
{
    __asm__("" : "+v"(*v));
}
/* Every byte, below 16, replaced by its entry in a table of 16. */
VEC_INLINE ivec iv_table(const void *table, ivec v)
{
    __m128i t = _mm_loadu_si128((const __m128i *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), v);
}
/* 16 words of 16 bits, each in a 32-bit lane. */
VEC_INLINE ivec iv_words(const uint8_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* The entry of a table of 512 in every 32-bit lane: byte k of `low` and, as the ninth bit of the
 * index, bit `bit` of `ninth`. */
VEC_INLINE ivec iv_entries(const uint32_t *table, ivec low, int k, ivec ninth, int bit)
{
    __m512i i = _mm512_srli_epi32(low, 8 * (unsigned)k),
            n = _mm512_srli_epi32(ninth, (unsigned)bit);
    i = _mm512_and_si512(i, _mm512_set1_epi32(255));
    n = _mm512_slli_epi32(_mm512_and_si512(n, _mm512_set1_epi32(1)), 8);
    return _mm512_i32gather_epi32(_mm512_or_si512(i, n), (const void *)table, 4);
}
/* In every byte `middle` less v where `signs` has the bit, else `middle` and v. */
VEC_INLINE ivec iv_about(int middle, ivec v, ivec signs, int bit)
{
    __mmask64 minus = _mm512_test_epi8_mask(signs, _mm512_set1_epi8((char)bit));
    __m512i m = _mm512_set1_epi8((char)middle), sum = _mm512_add_epi8(m, v);
    return _mm512_mask_sub_epi8(sum, minus, m, v);
}
/* Byte k of every 32-bit lane, as a float. */
VEC_INLINE vec iv_unsigned(ivec v, int k)
{
    v = k == 3 ? _mm512_srli_epi32(v, 24)
               : _mm512_and_si512(_mm512_srli_epi32(v, 8 * (unsigned)k), _mm512_set1_epi32(255));
    return _mm512_cvtepi32_ps(v);
}
VEC_INLINE vec iv_signed(ivec v, int k)
{
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * (unsigned)k), 24));
}
VEC_INLINE ivec_four iv_four(const int8_t *q)
{
    int32_t u;
    memcpy(&u, q, sizeof u);
    return _mm512_set1_epi32(u);
}

/* dpbusd adds four products u8 x s8 to each lane. 8-bit weights become unsigned by w + 128, a bias
 * like that of other types. Two chains hide its latency where only one token is summed. */
#define IV_BIAS_8BIT 128

struct isum {
    __m512i u, v;
};

VEC_INLINE struct isum isum_start(int32_t start)
{
    return (struct isum){_mm512_set1_epi32(start), _mm512_setzero_si512()};
}
VEC_INLINE ivec iv_8bit(ivec w)
{
    return _mm512_xor_si512(w, _mm512_set1_epi8(-128));
}
VEC_INLINE void isum_add(struct isum *s, int chain, int bits, ivec w, ivec_four x)
{
    (void)bits;
    if (chain)
        s->v = _mm512_dpbusd_epi32(s->v, w, x);
    else
        s->u = _mm512_dpbusd_epi32(s->u, w, x);
}
VEC_INLINE void isum_flush(struct isum *s)
{
    (void)s;
}
VEC_INLINE void isum_pin(struct isum *s, bool flushed)
{
    (void)flushed;
    __asm__("" : "+v"(s->u));
}
/* The sum of both chains in every lane. */
VEC_INLINE ivec isum_words(const struct isum *s)
{
    return _mm512_add_epi32(s->u, s->v);
}
VEC_INLINE vec isum_float(const struct isum *s, bool chains)
{
    return _mm512_cvtepi32_ps(chains ? _mm512_add_epi32(s->u, s->v) : s->u);
}

#endif
