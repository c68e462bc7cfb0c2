/* The worker's control thread: it joins the coordinator, passes assignments to the compute thread,
 * and answers for the worker (heartbeats, faults) while that computes. */
#ifndef FLOTILLA_WORKER_LOOP_H
#define FLOTILLA_WORKER_LOOP_H

#include "common/base/err.h"

struct loop_options { /* all borrowed; NULL where not given */
    const char *coordinator, *name, *listen, *advertise, *models, *isa;
    const char *metrics; /* HOST:PORT of an HTTP port for Prometheus */
    unsigned threads;
};

/* Until SIGTERM or SIGINT (0), or until the coordinator refuses this worker (an error). */
int loop_run(const struct loop_options *o, struct errmsg *em);

#endif
