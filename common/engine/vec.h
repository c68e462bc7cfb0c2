/* A vector of 16 floats, the engine's virtual width, over AVX-512 (one zmm) or AVX2 (two ymm),
 * whichever the including file is compiled for. Every operation rounds lane by lane exactly as the
 * scalar one does. */
#ifndef FLOTILLA_ENGINE_VEC_H
#define FLOTILLA_ENGINE_VEC_H

#include <immintrin.h>
#include <stdint.h>

#define VEC_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)

typedef __m512 vec;
typedef __mmask16 vec_mask;

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

#else

typedef struct {
    __m256 a, b;
} vec;
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

#endif

/* fm_exp in every lane. */
VEC_INLINE vec vec_exp(vec x)
{
    vec lo = vec_all(-87.0f), hi = vec_all(88.0f), magic = vec_all(12582912.0f);
    vec_mask under = vec_less(x, lo);
    vec c = vec_select(under, lo, x);
    c = vec_select(vec_less(hi, c), hi, c);
    vec t = vec_fma(c, vec_all(1.44269504f), magic), n = vec_sub(t, magic);
    vec r = vec_fma(n, vec_all(-0.693359375f), c);
    r = vec_fma(n, vec_all(2.12194440e-4f), r);
    vec p = vec_all(1.9875691500e-4f);
    p = vec_fma(p, r, vec_all(1.3981999507e-3f));
    p = vec_fma(p, r, vec_all(8.3334519073e-3f));
    p = vec_fma(p, r, vec_all(4.1665795894e-2f));
    p = vec_fma(p, r, vec_all(1.6666665459e-1f));
    p = vec_fma(p, r, vec_all(5.0000001201e-1f));
    vec y = vec_add(vec_fma(p, vec_mul(r, r), r), vec_all(1.0f));
    y = vec_scale(y, t);
    y = vec_select(under, vec_all(0.0f), y);
    return vec_select(vec_nan(x), x, y);
}

#endif
