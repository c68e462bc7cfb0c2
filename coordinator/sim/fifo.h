/* The shipped core under virtual time, on a trace, with FIFO replicas that take the time that a
 * model says (README.md of this folder). Nothing breaks here: that is what sim.h is for.
 *
 * A pure function of trace and options, but for the core's own time, which is measured. Owned by
 * one thread. */
#ifndef FLOTILLA_SIM_FIFO_H
#define FLOTILLA_SIM_FIFO_H

#include "common/base/samples.h"
#include "coordinator/core/route.h"
#include "coordinator/sim/trace.h"

#include <stdint.h>

struct fifo_options {
    uint32_t n_replicas;   /* at least 1 */
    uint32_t cache_blocks; /* of each replica; at least those of the longest prompt */
    double load;           /* open loop: what requests come with, of what the replicas can do */
    uint32_t concurrency;  /* closed loop: so many live requests at once; 0: open loop */
    uint64_t block_ns;     /* that a replica takes for a block which it has not, */
    uint64_t token_ns;     /* and for a token of an answer */
    uint64_t seed;         /* of what the core draws */
    enum route_policy policy;
    double route_weight; /* of ROUTE_COST; 0: 1 */
};

struct fifo_replica {
    uint32_t requests; /* that it computed */
    uint64_t work_ns;  /* that it took for them */
};

struct fifo_result {
    uint64_t blocks_computed; /* of all prompts */
    uint64_t took_ns;         /* from the first request to the last one's end */
    struct samples ttft_ms;   /* of each request, in the order of their first tokens */
    struct fifo_replica *replicas;
    uint32_t n_replicas;
    /* The core's own CPU time, in us: of all events, and of single ones. An arrival is the event
     * that submits a request; a compose follows the events of one moment. */
    uint64_t events;
    double events_us;
    struct samples arrival_us, compose_us;
};

/* Runs the trace to its last answer. ERR_CONF: an option does not fit the trace or the machine's
 * memory. ERR_PROTO: the core refused a request, ended one without its answer, or let it wait for
 * ever. */
int fifo_run(const struct trace *t, const struct fifo_options *o, struct fifo_result *ret,
             struct errmsg *em);
void fifo_close(struct fifo_result *r);

/* Blocks that were found, of all blocks of all prompts; and with a cache that all share and that
 * never ends. */
double fifo_hit_rate(const struct trace *t, const struct fifo_result *r);
double fifo_bound_hit_rate(const struct trace *t);
/* The busiest replica's work, of the mean of all. */
double fifo_max_over_mean(const struct fifo_result *r);
/* The requests of the replica that computed most, of all. */
double fifo_largest_share(const struct fifo_result *r);

#endif
