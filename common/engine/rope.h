/* Rotary position embedding (Su et al., RoFormer, 2021): tables of angles in f64 by routines of
 * this module (+ - x / only, so that every machine gets the same bits), rounded to f32 once.
 *
 * Longer contexts than trained for: linear scaling (Chen et al. 2023), YaRN (Peng et al. 2023, with
 * the ramp over dimensions that ggml and the authors' code use), or factors that the file brings
 * for each pair (Llama 3.1). */
#ifndef FLOTILLA_ENGINE_ROPE_H
#define FLOTILLA_ENGINE_ROPE_H

#include <stdbool.h>
#include <stdint.h>

enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_YARN };

struct rope_params {
    enum rope_scaling scaling;
    float base;
    float factor;               /* of linear and YaRN: how much longer; >= 1 */
    float ctx_orig;             /* YaRN: positions that were trained */
    float attn_factor;          /* YaRN: multiplies the magnitude */
    float beta_fast, beta_slow; /* YaRN: rotations that bound the ramp */
};

/* n is even; ret_inv_freq holds n / 2. factors: n / 2 divisors of the frequencies, or NULL.
 * *ret_magnitude multiplies sines and cosines. */
void rope_frequencies(const struct rope_params *p, uint32_t n, const float *factors,
                      double *ret_inv_freq, double *ret_magnitude);

/* The n values that kernels rotate by: cos, sin of pair after pair, or halves: all cosines, then
 * all sines. */
void rope_angles(uint32_t pos, const double *inv_freq, double magnitude, uint32_t n, bool halves,
                 float *ret_cs);

#endif
