/* A vector of 16 floats, the engine's virtual width, a vector of 64 bytes, and sums of products of
 * bytes: what the vector levels of kern_vec.h and kern_dot.h are written over. A header for each
 * instruction set defines the operations; this one takes that of the including file's flags, and
 * adds what is the same for all. Every operation rounds lane by lane exactly as the scalar one
 * does; sums of integers are exact.
 *
 * A header of a further instruction set defines the types vec, vec_mask, ivec, ivec_four, struct
 * isum and struct vec_block, the constants VEC_LEVEL, VEC_TOKENS, VEC_PAGES, VEC_VALUES,
 * VEC_PEAK_SUMS and IV_BIAS_8BIT, and every function that vec_avx512.h and vec_x86.h have between
 * them. */
#ifndef FLOTILLA_ENGINE_VEC_H
#define FLOTILLA_ENGINE_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VEC_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "common/engine/vec_avx512.h"
#elif defined(__AVX2__)
#include "common/engine/vec_avx2.h"
#else
#error "no vector operations for the instruction set of this file"
#endif

/* A line that will be read soon; one that will be read later. */
VEC_INLINE void vec_prefetch_l1(const uint8_t *p)
{
    __builtin_prefetch(p, 0, 3);
}
VEC_INLINE void vec_prefetch_l2(const uint8_t *p)
{
    __builtin_prefetch(p, 0, 2);
}

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

/* fm_tanh, fm_gelu in every lane. */
VEC_INLINE vec vec_tanh(vec x)
{
    vec one = vec_all(1.0f), two = vec_all(2.0f);
    return vec_sub(one, vec_div(two, vec_add(one, vec_exp(vec_mul(two, x)))));
}
VEC_INLINE vec vec_gelu(vec x)
{
    vec one = vec_all(1.0f), u = vec_fma(vec_all(0.044715f), vec_mul(x, x), one);
    u = vec_mul(vec_mul(x, u), vec_all(1.5957691216f));
    return vec_div(x, vec_add(one, vec_exp(vec_negate(u))));
}

#endif
