/* Rotary position embedding tables (Su et al., "RoFormer", 2021), computed in double precision by
 * routines of the project's own that use only + - * /, so that every machine gets the same bits. */
#ifndef FLOTILLA_ENGINE_ROPE_H
#define FLOTILLA_ENGINE_ROPE_H

#include <stdint.h>

/* inv_freq[i] = base^(-2i/n), i < n/2. */
void rope_frequencies(uint32_t n, float base, double *ret_inv_freq);

/* cos and sin of pos * inv_freq[i], interleaved, i < n/2. pos * inv_freq < 2^20. */
void rope_angles(uint32_t pos, const double *inv_freq, uint32_t n, float *ret_cs);

#endif
