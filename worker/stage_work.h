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
    const struct msg_assign *assign; /* copied */
    unsigned threads;
    const char *isa;    /* NULL: the best */
    const char *models; /* look for the model file here by its name; NULL: at the path assigned */
    bool (*progress)(void *arg, uint64_t bytes_done, uint64_t bytes_total); /* false: give up */
    void *progress_arg;
    atomic_ullong *moves; /* goes up with each layer computed; borrowed until close, or NULL */
};

struct stage_work;

/* Loads the slice. ERR_NOTFOUND names the file, ERR_FORMAT also a file that is another model than
 * the coordinator's. */
int stage_work_open(const struct stage_work_options *o, struct stage_work **ret, struct errmsg *em);
void stage_work_close(struct stage_work *w);

/* Whether what is loaded serves this assignment as it is. */
bool stage_work_fits(const struct stage_work *w, const struct msg_assign *a);
/* A new epoch: sampling state is forgotten. */
void stage_work_reset(struct stage_work *w);

/* KV pages of the slice. */
uint32_t stage_work_pages(const struct stage_work *w);
struct msg_holding stage_work_holding(const struct stage_work *w);
uint32_t stage_work_width(const struct stage_work *w);
bool stage_work_is_last(const struct stage_work *w);
/* Fills in read, weights and KV bytes. */
void stage_work_memory(const struct stage_work *w, struct msg_heartbeat *h);
/* The kernels' calls, as Prometheus reads them. Any thread. */
void stage_work_metrics(const struct stage_work *w, struct buf *out);

/* A Step has arrived and will be run once it is decoded. */
void stage_work_rouse(struct stage_work *w);

struct stage_output {
    const void *activations;  /* rows x width floats; of all stages but the last */
    struct msg_result result; /* of the last stage; timings are the caller's */
};

/* Runs a Step that the gate has taken. The output is valid until the next. ERR_PROTO: the Step does
 * not fit this stage, which ends the epoch. Allocates nothing. */
int stage_work_step(struct stage_work *w, const struct msg_step *s, const void *activations,
                    struct stage_output *ret, struct errmsg *em);

#endif
