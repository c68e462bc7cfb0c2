/* The vector operations over AVX2, FMA and F16C: a vector is two ymm. Included by vec.h. */
#ifndef FLOTILLA_ENGINE_VEC_AVX2_H
#define FLOTILLA_ENGINE_VEC_AVX2_H

#include "common/engine/vec_x86.h"

#define VEC_LEVEL "avx2"
#define VEC_TOKENS 4 /* tokens whose sums fit the registers, less the results of blocks */
#define VEC_PAGES 1
#define VEC_VALUES 2
#define VEC_PEAK_SUMS 2 /* sums that stay in registers, narrow and wide */

typedef struct {
    __m256 a, b;
} vec;
/* What is not needed for a while lies in memory, so that other values have the registers. */
VEC_INLINE void vec_park(vec *x)
{
    __asm__("" : "+m"(x->a), "+m"(x->b));
}
typedef vec vec_mask; /* all bits of a lane, or none */

VEC_INLINE vec vec_load(const float *p)
{
    return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
VEC_INLINE void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
VEC_INLINE vec vec_all(float f)
{
    __m256 t = _mm256_set1_ps(f);
    return (vec){t, t};
}
VEC_INLINE vec vec_half(const uint16_t *p)
{
    return (vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
VEC_INLINE vec vec_bf16(const uint16_t *p)
{
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)));
    return (vec){_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}
/* 2^(e - 128) of 16 bytes e; the first two are denormal. */
VEC_INLINE __m256 vec__powers(__m256i e)
{
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
}
VEC_INLINE vec vec_powers(const uint8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (vec){vec__powers(_mm256_cvtepu8_epi32(b)),
                 vec__powers(_mm256_cvtepu8_epi32(_mm_srli_si128(b, 8)))};
}
VEC_INLINE vec vec_bytes(const int8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (vec){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}
VEC_INLINE void vec_store_half(uint16_t *p, vec x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
VEC_INLINE vec vec_fma(vec x, vec y, vec z)
{
    return (vec){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
#define VEC_OP(name, op)                                                                           \
    VEC_INLINE vec name(vec x, vec y)                                                              \
    {                                                                                              \
        return (vec){op(x.a, y.a), op(x.b, y.b)};                                                  \
    }
VEC_OP(vec_add, _mm256_add_ps)
VEC_OP(vec_sub, _mm256_sub_ps)
VEC_OP(vec_mul, _mm256_mul_ps)
VEC_OP(vec_div, _mm256_div_ps)
VEC_OP(vec_max, _mm256_max_ps)
#undef VEC_OP
VEC_INLINE vec_mask vec_less(vec x, vec y)
{
    return (vec){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
VEC_INLINE vec_mask vec_nan(vec x)
{
    return (vec){_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)};
}
/* m ? yes : no */
VEC_INLINE vec vec_select(vec_mask m, vec yes, vec no)
{
    return (vec){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
VEC_INLINE vec vec_negate(vec x)
{
    __m256 s = _mm256_set1_ps(-0.0f);
    return (vec){_mm256_xor_ps(x.a, s), _mm256_xor_ps(x.b, s)};
}
/* Lanes lo..hi-1. */
VEC_INLINE vec_mask vec_range(int lo, int hi)
{
    __m256i i0 = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i i1 = _mm256_add_epi32(i0, _mm256_set1_epi32(8));
    __m256i l = _mm256_set1_epi32(lo - 1), h = _mm256_set1_epi32(hi);
    __m256i a = _mm256_and_si256(_mm256_cmpgt_epi32(i0, l), _mm256_cmpgt_epi32(h, i0));
    __m256i b = _mm256_and_si256(_mm256_cmpgt_epi32(i1, l), _mm256_cmpgt_epi32(h, i1));
    return (vec){_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)};
}
/* The first n lanes; the others are +0 and their memory is not touched. */
VEC_INLINE vec vec_load_n(const float *p, int n)
{
    vec_mask m = vec_range(0, n);
    return (vec){_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
                 _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b))};
}
VEC_INLINE void vec_store_n(float *p, vec x, int n)
{
    vec_mask m = vec_range(0, n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}
/* The fixed tree over 16 lanes: +8, +4, +2, +1. */
VEC_INLINE float vec_tree(vec v)
{
    __m256 x = _mm256_add_ps(v.a, v.b);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
VEC_INLINE __m256 vec__scale(__m256 y, __m256 t)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
VEC_INLINE vec vec_scale(vec y, vec t)
{
    return (vec){vec__scale(y.a, t.a), vec__scale(y.b, t.b)};
}

/* ---- 64 bytes: 16 rows x 4 ---- */

typedef struct {
    __m256i a, b;
} ivec;
typedef __m256i ivec_four; /* the same four bytes in every 32-bit lane */

VEC_INLINE ivec iv_load(const uint8_t *p)
{
    return (ivec){_mm256_loadu_si256((const __m256i *)(const void *)p),
                  _mm256_loadu_si256((const __m256i *)(const void *)(p + 32))};
}
VEC_INLINE void iv_store(uint8_t *p, ivec v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v.a);
    _mm256_storeu_si256((__m256i *)(void *)(p + 32), v.b);
}
VEC_INLINE ivec iv_and(ivec v, int mask)
{
    __m256i m = _mm256_set1_epi8((char)mask);
    return (ivec){_mm256_and_si256(v.a, m), _mm256_and_si256(v.b, m)};
}
/* to | (v & mask), byte by byte */
VEC_INLINE ivec iv_merge(ivec to, ivec v, int mask)
{
    v = iv_and(v, mask);
    return (ivec){_mm256_or_si256(to.a, v.a), _mm256_or_si256(to.b, v.b)};
}
/* Shifts cross bytes: bits that came from a neighbour must be masked off. */
VEC_INLINE ivec iv_shl(ivec v, int n)
{
    return n ? (ivec){_mm256_slli_epi16(v.a, n), _mm256_slli_epi16(v.b, n)} : v;
}
VEC_INLINE ivec iv_shr(ivec v, int n)
{
    return n ? (ivec){_mm256_srli_epi16(v.a, n), _mm256_srli_epi16(v.b, n)} : v;
}
/* The compiler no longer knows what v is. */
VEC_INLINE void iv_hide(ivec *v)
{
    __asm__("" : "+x"(v->a), "+x"(v->b));
}
/* Every byte, below 16, replaced by its entry in a table of 16. */
VEC_INLINE ivec iv_table(const void *table, ivec v)
{
    __m128i t = _mm_loadu_si128((const __m128i *)table);
    __m256i both = _mm256_broadcastsi128_si256(t);
    return (ivec){_mm256_shuffle_epi8(both, v.a), _mm256_shuffle_epi8(both, v.b)};
}
/* 16 words of 16 bits, each in a 32-bit lane. */
VEC_INLINE ivec iv_words(const uint8_t *p)
{
    return (ivec){_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)),
                  _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)))};
}
/* The entry of a table of 512 in every 32-bit lane: byte k of `low` and, as the ninth bit of the
 * index, bit `bit` of `ninth`. */
VEC_INLINE __m256i iv__entries(const uint32_t *table, __m256i low, int k, __m256i ninth, int bit)
{
    __m256i i = _mm256_and_si256(_mm256_srli_epi32(low, 8 * k), _mm256_set1_epi32(255));
    __m256i n = _mm256_and_si256(_mm256_srli_epi32(ninth, bit), _mm256_set1_epi32(1));
    i = _mm256_or_si256(i, _mm256_slli_epi32(n, 8));
    return _mm256_i32gather_epi32((const int *)table, i, 4);
}
VEC_INLINE ivec iv_entries(const uint32_t *table, ivec low, int k, ivec ninth, int bit)
{
    return (ivec){iv__entries(table, low.a, k, ninth.a, bit),
                  iv__entries(table, low.b, k, ninth.b, bit)};
}
/* In every byte `middle` less v where `signs` has the bit, else `middle` and v. */
VEC_INLINE __m256i iv__about(int middle, __m256i v, __m256i signs, int bit)
{
    __m256i b = _mm256_set1_epi8((char)bit);
    __m256i minus = _mm256_cmpeq_epi8(_mm256_and_si256(signs, b), b);
    v = _mm256_sub_epi8(_mm256_xor_si256(v, minus), minus);
    return _mm256_add_epi8(v, _mm256_set1_epi8((char)middle));
}
VEC_INLINE ivec iv_about(int middle, ivec v, ivec signs, int bit)
{
    return (ivec){iv__about(middle, v.a, signs.a, bit), iv__about(middle, v.b, signs.b, bit)};
}
/* Byte k of every 32-bit lane, as a float. */
VEC_INLINE __m256 iv__unsigned(__m256i v, int k)
{
    v = k == 3 ? _mm256_srli_epi32(v, 24)
               : _mm256_and_si256(_mm256_srli_epi32(v, 8 * k), _mm256_set1_epi32(255));
    return _mm256_cvtepi32_ps(v);
}
VEC_INLINE vec iv_unsigned(ivec v, int k)
{
    return (vec){iv__unsigned(v.a, k), iv__unsigned(v.b, k)};
}
VEC_INLINE __m256 iv__signed(__m256i v, int k)
{
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * k), 24));
}
VEC_INLINE vec iv_signed(ivec v, int k)
{
    return (vec){iv__signed(v.a, k), iv__signed(v.b, k)};
}
VEC_INLINE ivec_four iv_four(const int8_t *q)
{
    int32_t u;
    memcpy(&u, q, sizeof u);
    return _mm256_set1_epi32(u);
}

/* maddubs adds two products u8 x s8 in 16 bits, saturating: sums of weights of 4, 5 or 6 bits may
 * take 8, 4 or 2 of them before they are widened (isum_flush). 8-bit weights are taken as |w| with
 * the sign moved to the activation (at most 32,512) and widened at once. */
#define IV_BIAS_8BIT 0

struct isum {
    ivec narrow, wide;
    int32_t start; /* added last: it takes no register meanwhile */
};

VEC_INLINE struct isum isum_start(int32_t start)
{
    __m256i zero = _mm256_setzero_si256();
    return (struct isum){{zero, zero}, {zero, zero}, start};
}
VEC_INLINE ivec iv_8bit(ivec w)
{
    return w;
}
VEC_INLINE __m256i isum__widen(__m256i wide, __m256i narrow)
{
    return _mm256_add_epi32(wide, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
}
VEC_INLINE __m256i isum__8bit(__m256i w, __m256i x)
{
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}
VEC_INLINE void isum_add(struct isum *s, int chain, int bits, ivec w, ivec_four x)
{
    (void)chain;
    if (bits == 8) {
        s->wide.a = isum__widen(s->wide.a, isum__8bit(w.a, x));
        s->wide.b = isum__widen(s->wide.b, isum__8bit(w.b, x));
    } else {
        s->narrow.a = _mm256_add_epi16(s->narrow.a, _mm256_maddubs_epi16(w.a, x));
        s->narrow.b = _mm256_add_epi16(s->narrow.b, _mm256_maddubs_epi16(w.b, x));
    }
}
VEC_INLINE void isum_flush(struct isum *s)
{
    s->wide.a = isum__widen(s->wide.a, s->narrow.a);
    s->wide.b = isum__widen(s->wide.b, s->narrow.b);
    s->narrow.a = s->narrow.b = _mm256_setzero_si256();
}
/* The sum as it is now must be computed before what comes next. flushed: it lies in `wide`. */
VEC_INLINE void isum_pin(struct isum *s, bool flushed)
{
    if (flushed)
        __asm__("" : "+x"(s->wide.a), "+x"(s->wide.b));
    else
        __asm__("" : "+x"(s->narrow.a), "+x"(s->narrow.b));
}
/* The sum in every lane, once it is flushed. */
VEC_INLINE ivec isum_words(const struct isum *s)
{
    __m256i start = _mm256_set1_epi32(s->start);
    return (ivec){_mm256_add_epi32(s->wide.a, start), _mm256_add_epi32(s->wide.b, start)};
}
VEC_INLINE vec isum_float(const struct isum *s, bool chains)
{
    (void)chains;
    __m256i start = _mm256_set1_epi32(s->start);
    return (vec){_mm256_cvtepi32_ps(_mm256_add_epi32(s->wide.a, start)),
                 _mm256_cvtepi32_ps(_mm256_add_epi32(s->wide.b, start))};
}

#endif
