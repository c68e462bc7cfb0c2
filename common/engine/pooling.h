/* The embedding of a text: the mean of its hidden rows, all positions, with length 1. One copy of
 * its arithmetic (README.md, "Embeddings"): the result is the same to the bit however the rows were
 * cut into steps, as long as they are added in the order of their positions. */
#ifndef FLOTILLA_ENGINE_POOLING_H
#define FLOTILLA_ENGINE_POOLING_H

#include "common/base/err.h"

#include <stdint.h>

/* sum[n] += the next n_rows hidden rows [n_rows][n] (eng_hidden). The sum of nothing is all +0. */
void pooling_add(double *sum, const float *rows, uint32_t n_rows, uint32_t n);
/* ret[n] = the sum's direction: the mean differs from the sum by a factor only. ERR_RANGE: a value
 * is not finite, or all are 0. */
int pooling_finish(const double *sum, uint32_t n, float *ret);

#endif
