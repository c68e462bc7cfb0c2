/* What a stage does with a Step: engine, sampling state, result. No sockets, no threads but the
 * engine's; the compute thread (exec.c) calls it. */
#ifndef FLOTILLA_WORKER_STAGE_WORK_H
#define FLOTILLA_WORKER_STAGE_WORK_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "proto/msg.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct stage_work_options {
    const struct msg_assign *assign; /* copied, without its hashes */
    unsigned threads;
    const char *isa;    /* NULL: the best */
    const char *models; /* folder where the model file is looked for by its name; NULL: at the path
                         * of the assignment */
    bool (*progress)(void *arg, uint64_t bytes_done, uint64_t bytes_total); /* false: give up */
    void *progress_arg;
    atomic_ullong *moves; /* goes up with each layer computed and each token chosen; borrowed until
                             the close. Or NULL */
};

struct stage_work;

/* Where this machine has the model's file: as `model_path` says, or, by its name, in the folder
 * `models`, if that is not NULL. */
void stage_work_path(const char *models, const char *model_path, char *ret, size_t size);

/* Loads the slice. ERR_NOTFOUND: there is no such file; ERR_FORMAT: it is broken, or is another
 * model than the coordinator's; ERR_UNSUPPORTED; ERR_NOMEM, with the largest pool that fits;
 * ERR_CANCELLED: `progress` gave up. */
int stage_work_open(const struct stage_work_options *o, struct stage_work **ret, struct errmsg *em);
/* May be NULL. */
void stage_work_close(struct stage_work *w);

/* Whether what is loaded serves this assignment without a new load. */
bool stage_work_fits(const struct stage_work *w, const struct msg_assign *a);
/* Whether a load for one of them serves the other. */
bool stage_work_alike(const struct msg_assign *a, const struct msg_assign *b);
/* A new epoch begins: forgets the sampling state of all requests. */
void stage_work_reset(struct stage_work *w);

uint32_t stage_work_pages(const struct stage_work *w); /* KV pages of the slice */
uint32_t stage_work_width(const struct stage_work *w); /* floats of a row of activations */
bool stage_work_is_last(const struct stage_work *w);
/* The slice's model and layers, as Hello names them. */
struct msg_holding stage_work_holding(const struct stage_work *w);
/* Fills in read_bytes, weights_bytes and kv_bytes. */
void stage_work_memory(const struct stage_work *w, struct msg_heartbeat *h);
/* Appends the kernels' calls, as Prometheus reads them. Any thread. */
void stage_work_metrics(const struct stage_work *w, struct buf *out);

/* Wakes the engine's threads while the Step that has just arrived is decoded. */
void stage_work_wake(struct stage_work *w);

struct stage_output {
    const void *activations;  /* rows x width floats; of all stages but the last */
    struct msg_result result; /* of the last stage; the caller adds the timings */
};

/* Runs a Step that the gate has taken. `activations`: rows x width floats of the stage before; NULL
 * on the first. What *ret points to is valid until the next call. ERR_PROTO: the Step does not fit
 * this stage, which ends the epoch. Allocates nothing. */
int stage_work_step(struct stage_work *w, const struct msg_step *s, const void *activations,
                    struct stage_output *ret, struct errmsg *em);

#endif
