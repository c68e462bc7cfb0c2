/* exp and log in single precision with one defined order of operations: the scalar form of what
 * every instruction-set level computes lane by lane (common/engine/README.md, "Functions").
 * Cephes-style polynomials. Compile with -ffp-contract=off; fmaf is exact and allowed. */
#ifndef FLOTILLA_BASE_FMATH_H
#define FLOTILLA_BASE_FMATH_H

#include "common/base/insn.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Results are defined to the bit, so the compiler may not reorder, contract or assume. -ffast-math
 * and -Ofast define the first of these; parts of it given alone define the others. */
#if defined __FAST_MATH__ || (defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__) ||             \
    defined __ASSOCIATIVE_MATH__ || defined __RECIPROCAL_MATH__ || defined __NO_SIGNED_ZEROS__
#error                                                                                             \
    "flotilla's results are defined to the bit: build without -ffast-math, -Ofast and their parts"
#endif

/* Rounds to nearest and keeps denormals in the calling thread: a library built with -ffast-math may
 * have turned flush-to-zero on for the whole process. */
static inline void fm_set_rounding(void)
{
    insn_set_float_mode(INSN_FLOAT_MODE);
}

static inline uint32_t fm_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float fm_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* e^x; +0 below -87, clamped at 88; a NaN passes through. Maximum error 0.994 ulp; exact at 0. */
static inline float fm_exp(float x)
{
    float c = x < -87.0f ? -87.0f : x; /* NaN falls through both comparisons */
    c = c > 88.0f ? 88.0f : c;
    float t = fmaf(c, 1.44269504f, 12582912.0f), n = t - 12582912.0f;
    float r = fmaf(n, -0.693359375f, c);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    float y = fmaf(p, r * r, r) + 1.0f;
    y = fm_float(fm_bits(y) + (fm_bits(t) << 23)); /* the low bits of t are n */
    if (x < -87.0f) y = 0.0f;
    return x != x ? x : y;
}

/* y[i] = fm_exp(x[i] - shift) for n elements, the same bits on every CPU; y may be x. */
void fm_exp_each(const float *x, float shift, uint32_t n, float *y);

/* tanh x = 1 - 2 / (1 + e^2x). */
static inline float fm_tanh(float x)
{
    return 1.0f - 2.0f / (1.0f + fm_exp(2.0f * x));
}

/* The tanh form of GELU: x / (1 + e^-u), u = sqrt(8 / pi) (x + 0.044715 x^3). */
static inline float fm_gelu(float x)
{
    float u = (x * fmaf(0.044715f, x * x, 1.0f)) * 1.5957691216f;
    return x / (1.0f + fm_exp(-u));
}

/* ln x; -Inf below 2^-126 (denormals and 0), NaN below 0. Maximum error 0.82 ulp. */
static inline float fm_log(float x)
{
    uint32_t b = fm_bits(x);
    int32_t e = (int32_t)(b - 0x3f3504f3u) >> 23;
    float f = fm_float(b - ((uint32_t)e << 23)) - 1.0f, z = f * f, n = (float)e;
    float p = 7.0376836292e-2f;
    p = fmaf(p, f, -1.1514610310e-1f);
    p = fmaf(p, f, 1.1676998740e-1f);
    p = fmaf(p, f, -1.2420140846e-1f);
    p = fmaf(p, f, 1.4249322787e-1f);
    p = fmaf(p, f, -1.6668057665e-1f);
    p = fmaf(p, f, 2.0000714765e-1f);
    p = fmaf(p, f, -2.4999993993e-1f);
    p = fmaf(p, f, 3.3333331174e-1f);
    float y = (f * z) * p;
    y = fmaf(n, -2.12194440e-4f, y);
    y = fmaf(-0.5f, z, y);
    y = fmaf(n, 0.693359375f, f + y);
    if (x < 1.17549435e-38f) y = -INFINITY;
    if (x < 0.0f) y = NAN;
    if (x > 3.4028235e38f) y = x;
    return x != x ? x : y;
}

#endif
