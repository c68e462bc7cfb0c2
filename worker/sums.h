/* The sums of the prompts whose embeddings are wanted (common/engine/pooling.h), on the last stage,
 * from a prompt's first run to its close. All memory is taken when it is opened; the system gives
 * pages as they are used. The compute thread's. */
#ifndef FLOTILLA_WORKER_SUMS_H
#define FLOTILLA_WORKER_SUMS_H

#include "common/base/err.h"
#include "proto/msg.h"

#include <stdint.h>

struct sums;

/* width: floats of a hidden row. ERR_NOMEM. */
int sums_open(uint32_t width, struct sums **ret, struct errmsg *em);
/* May be NULL. */
void sums_close(struct sums *s);
/* Forgets all. */
void sums_reset(struct sums *s);

/* A Step begins: the embeddings that sums_add returned are valid no longer. */
void sums_begin(struct sums *s);
/* Adds the hidden rows [n_rows][width] of a run with `embed`. A run at position 0 begins anew; one
 * that does not follow the last is left out, and the prompt then ends with an error. With the last
 * run of a prompt *ret has its embedding (width floats), or is NULL and the returned text, which is
 * static, says why; with others both are NULL. Allocates nothing. */
const char *sums_add(struct sums *s, const struct msg_run *r, const float *rows, const float **ret);
/* A request is closed; it need not have a sum. */
void sums_drop(struct sums *s, uint64_t request);

#endif
