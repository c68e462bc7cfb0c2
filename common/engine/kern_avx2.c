/* The AVX2 + FMA + F16C level: kern_vec.h over pairs of ymm. */
#include "common/engine/kern_vec.h"

const struct kern kern_avx2 = KERN_VEC;
