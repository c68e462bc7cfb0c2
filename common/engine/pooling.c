#include "common/engine/pooling.h"

#include "common/base/fmath.h"

void pooling_add(double *sum, const float *rows, uint32_t n_rows, uint32_t n)
{
    for (uint32_t r = 0; r < n_rows; r++, rows += n)
        for (uint32_t i = 0; i < n; i++) sum[i] += (double)rows[i];
}

int pooling_finish(const double *sum, uint32_t n, float *ret)
{
    double square = 0.0;
    for (uint32_t i = 0; i < n; i++) square += sum[i] * sum[i];
    if (!isfinite(square) || !(square > 0.0)) return ERR_RANGE;
    double length = sqrt(square);
    for (uint32_t i = 0; i < n; i++) ret[i] = (float)(sum[i] / length);
    return 0;
}
