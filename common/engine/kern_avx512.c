/* The AVX-512 (F, BW, VL, DQ) + VNNI level: kern_vec.h over zmm. */
#include "common/engine/kern_vec.h"

const struct kern kern_avx512 = KERN_VEC;
