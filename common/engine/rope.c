#include "common/engine/rope.h"

#include "common/base/fmath.h"

#include <string.h>

/* 1.5 * 2^52: adding it rounds to an integer that lies in the low bits. */
#define ROUND 6755399441055744.0
#define LN2_HI 0.6931471803691238
#define LN2_LO 1.9082149292705877e-10

static double power_of_two(int n)
{
    uint64_t u = (uint64_t)(n + 1023) << 52;
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

/* x > 0 and normal; 2 atanh((m-1)/(m+1)) as a series. */
static double log_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int e = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &u, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0.0;
    for (int k = 27; k >= 3; k -= 2) p = (p + 1.0 / k) * z;
    return (double)e * LN2_HI + ((2.0 * s + 2.0 * s * p) + (double)e * LN2_LO);
}

static double exp_f64(double x)
{
    double n = (x * 1.4426950408889634 + ROUND) - ROUND;
    double r = (x - n * LN2_HI) - n * LN2_LO, p = 1.0;
    for (int k = 18; k >= 1; k--) p = 1.0 + r / k * p;
    return p * power_of_two((int)n);
}

/* Three-part reduction by pi/2 (Cody and Waite), then the polynomials of the half octant. */
static void sincos_f64(double x, double *ret_sin, double *ret_cos)
{
    double n = (x * 0.6366197723675814 + ROUND) - ROUND;
    double r = ((x - n * 1.57079632673412561417e+00) - n * 6.07710050630396597660e-11) -
               n * 2.02226624879595063154e-21;
    double z = r * r;
    double s =
        r +
        r * z *
            (-1.66666666666666324348e-01 +
             z * (8.33333333332248946124e-03 +
                  z * (-1.98412698298579493134e-04 +
                       z * (2.75573137070700676789e-06 +
                            z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
    double c = 1.0 - (0.5 * z - z * z *
                                    (4.16666666666666019037e-02 +
                                     z * (-1.38888888888741095749e-03 +
                                          z * (2.48015872894767294178e-05 +
                                               z * (-2.75573143513906633035e-07 +
                                                    z * (2.08757232129817482790e-09 +
                                                         z * -1.13596475577881948265e-11))))));
    switch ((int)((int64_t)n & 3)) {
    case 0: *ret_sin = s, *ret_cos = c; break;
    case 1: *ret_sin = c, *ret_cos = -s; break;
    case 2: *ret_sin = -s, *ret_cos = -c; break;
    default: *ret_sin = -c, *ret_cos = s; break;
    }
}

/* The dimension whose frequency turns `rotations` times over the trained context. */
static double yarn_dim(const struct rope_params *p, uint32_t n, double rotations)
{
    return (double)n * log_f64((double)p->ctx_orig / (rotations * 6.283185307179586)) /
           (2.0 * log_f64((double)p->base));
}

/* NaN, which base 1 can give, becomes lo. */
static double clamp(double x, double lo, double hi)
{
    return x > hi ? hi : x > lo ? x : lo;
}

/* How much of pair i keeps its trained frequency: 1 for fast pairs, 0 for slow ones. */
static double yarn_keeps(const struct rope_params *p, uint32_t n, uint32_t i)
{
    double fast = yarn_dim(p, n, (double)p->beta_fast), slow = yarn_dim(p, n, (double)p->beta_slow);
    double lo = (double)(int64_t)clamp(fast, 0.0, (double)n); /* rounded down */
    double hi = (double)(int64_t)clamp(slow, 0.0, (double)n);
    if (hi < slow) hi += 1.0; /* rounded up */
    hi = clamp(hi, 0.0, (double)n - 1.0);
    double width = hi - lo > 0.001 ? hi - lo : 0.001;
    return 1.0 - clamp(((double)i - lo) / width, 0.0, 1.0);
}

void rope_frequencies(const struct rope_params *p, uint32_t n, const float *factors,
                      double *ret_inv_freq, double *ret_magnitude)
{
    double log_base = log_f64((double)p->base), factor = (double)p->factor;
    for (uint32_t i = 0; i < n / 2; i++) {
        double f = exp_f64(-(2.0 * (double)i / (double)n) * log_base);
        if (factors) f = f / (double)factors[i];
        if (p->scaling == ROPE_LINEAR) f = f / factor;
        if (p->scaling == ROPE_YARN) {
            double keeps = yarn_keeps(p, n, i);
            f = (f / factor) * (1.0 - keeps) + f * keeps;
        }
        ret_inv_freq[i] = f;
    }
    *ret_magnitude = 1.0;
    if (p->scaling == ROPE_YARN)
        *ret_magnitude = (double)p->attn_factor * (1.0 + 0.1 * log_f64(factor));
}

void rope_angles(uint32_t pos, const double *inv_freq, double magnitude, uint32_t n, bool halves,
                 float *ret_cs)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        double s, c;
        sincos_f64((double)pos * inv_freq[i], &s, &c);
        ret_cs[halves ? i : 2 * i] = (float)(c * magnitude);
        ret_cs[halves ? n / 2 + i : 2 * i + 1] = (float)(s * magnitude);
    }
}
