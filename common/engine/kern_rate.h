/* How fast the kernels of a level are on this machine, apart from any model: the most that products
 * can reach (struct kern's `peak`), and products of each weight type with a number of rows. Weights
 * are made up. Times are those of the wall; of several passes the fastest counts, since what other
 * processes took of the CPU meanwhile is not the speed of this machine.
 *
 * `isa` as in struct eng_options; errors are those of cpu_kern, and of pool_open. */
#ifndef FLOTILLA_ENGINE_KERN_RATE_H
#define FLOTILLA_ENGINE_KERN_RATE_H

#include "common/base/err.h"
#include "common/engine/quant.h"

#include <stdint.h>

#define KERN_RATE_ROWS_MAX 32u /* KERN_FEW_MAX */
#define KERN_RATE_K 2048u      /* of the matrices that are multiplied */

/* The name of the level. */
int kern_rate_isa(const char *isa, const char **ret_name, struct errmsg *em);

/* Products a second of so many threads at once. */
int kern_rate_peak(const char *isa, unsigned threads, double *ret_per_s, struct errmsg *em);

/* Products a second of one thread, by the form of the product (README.md, rows of a step); 0: these
 * rows have no such form. */
struct kern_rate {
    double tiles;  /* each tile unpacked in registers */
    double panels; /* each panel unpacked to memory; or of floats */
};

/* Of 1 to KERN_RATE_ROWS_MAX rows with a matrix that stays in the caches. ERR_RANGE: more rows. */
int kern_rate_linear(const char *isa, enum qtype type, uint32_t rows, struct kern_rate *ret,
                     struct errmsg *em);

#endif
