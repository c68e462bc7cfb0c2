/* The grammars of requests whose answers are constrained, on the last stage: room for all that may
 * live at once, and the vocabulary that their tokens are looked up in. All memory is taken when it
 * is opened; the system gives pages as they are used. The compute thread's, but for the metrics. */
#ifndef FLOTILLA_WORKER_CONSTRAIN_H
#define FLOTILLA_WORKER_CONSTRAIN_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/engine/weights.h"
#include "common/text/chooser.h"
#include "common/text/constraint.h"

struct constrain;

/* Reads the model's vocabulary into the chooser; a model without one that can be read only has no
 * constrained answers. ERR_NOMEM. */
int constrain_open(const struct weights *model, struct chooser *chooser, struct constrain **ret,
                   struct errmsg *em);
/* May be NULL. */
void constrain_close(struct constrain *c);
/* Gives back all. */
void constrain_reset(struct constrain *c);

/* A request's grammar, as a peer sent it, until it is given back. NULL: it cannot be used, and
 * *ret_why says why, valid until the next one is taken. Allocates nothing. */
struct constraint *constrain_take(struct constrain *c, const void *grammar, size_t bytes,
                                  const char **ret_why);
/* x may be NULL. */
void constrain_give(struct constrain *c, struct constraint *x);

/* After a Step: what choices cost so far, for the metrics. */
void constrain_count(struct constrain *c, struct masks_counts counts);
/* Appends them, as Prometheus reads them. Any thread. */
void constrain_metrics(const struct constrain *c, struct buf *out);

#endif
