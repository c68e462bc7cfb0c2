/* What a layer of the coordinator's model takes this worker: measured once
 * (common/engine/measure.h), and then kept on this machine for each model, instruction set and
 * number of threads. */
#ifndef FLOTILLA_WORKER_CALIBRATE_H
#define FLOTILLA_WORKER_CALIBRATE_H

#include "common/base/err.h"
#include "proto/msg.h"

#include <stdatomic.h>
#include <stdbool.h>

struct calibrate_options {
    const char *path; /* of the model's file on this machine */
    uint64_t header_digest;
    uint32_t kv_type;
    unsigned threads;
    const char *isa;            /* NULL: the best */
    const char *folder;         /* where figures are kept for the next process; NULL: nowhere */
    bool (*goes_on)(void *arg); /* false: give up; asked between Steps */
    void *goes_on_arg;
    atomic_ullong *moves; /* goes up with each layer computed; borrowed during the call. Or NULL */
};

/* Finds the figures in the folder or measures them, which takes a few seconds at most; where they
 * cannot be kept nothing is said. All but ret->threads is filled in. ERR_NOTFOUND: there is no such
 * file; ERR_FORMAT: it is broken or another model's; other errors: those of measure_model. */
int calibrate(const struct calibrate_options *o, struct msg_speed *ret, struct errmsg *em);

#endif
