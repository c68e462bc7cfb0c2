#include "common/base/fmath.h"

static inline __attribute__((always_inline)) void exp_each(const float *x, float shift, uint32_t n,
                                                           float *y)
{
    for (uint32_t i = 0; i < n; i++) y[i] = fm_exp(x[i] - shift);
}

INSN_FMA static void exp_each_fma(const float *x, float shift, uint32_t n, float *y)
{
    exp_each(x, shift, n, y);
}

void fm_exp_each(const float *x, float shift, uint32_t n, float *y)
{
    if (insn_has_fma())
        exp_each_fma(x, shift, n, y);
    else
        exp_each(x, shift, n, y);
}
