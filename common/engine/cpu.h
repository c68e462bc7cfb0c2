/* Instruction-set levels: which this build has, which this CPU can run, and which it should use. */
#ifndef FLOTILLA_ENGINE_CPU_H
#define FLOTILLA_ENGINE_CPU_H

#include "common/base/err.h"
#include "common/engine/kern.h"

/* Kernels for `isa`: "scalar", "avx2" or "avx512", or NULL or "" for the best that this CPU runs.
 * ERR_UNSUPPORTED names what is missing (in the build, or of the CPU's features). */
int cpu_kern(const char *isa, const struct kern **ret_kern, struct errmsg *em);

#endif
