/* The worker's control thread: it joins the coordinator, passes assignments to the compute thread,
 * and answers for the worker (heartbeats, faults) while that computes. */
#ifndef FLOTILLA_WORKER_LOOP_H
#define FLOTILLA_WORKER_LOOP_H

#include "common/base/err.h"

struct loop_options { /* the strings are borrowed; NULL where an option was not given */
    const char *coordinator, *name, *listen, *advertise, *models, *isa;
    const char *key, *coordinator_key; /* a file; Z85. Both, or none: plaintext */
    const char *metrics;               /* HOST:PORT of an HTTP port for Prometheus */
    const char *speeds;                /* folder where what was measured here is kept */
    unsigned threads;
};

/* Serves until SIGTERM or SIGINT, and returns 0. ERR_CONF: an option is wrong, or the coordinator
 * refuses this worker; other errors: it could not start. One at a time in a process. */
int loop_run(const struct loop_options *o, struct errmsg *em);

#endif
