/* A cluster's status as a JSON document: what `flotilla status --json` prints, and what the gateway
 * answers at /status. */
#ifndef FLOTILLA_COORDINATOR_STATUS_JSON_H
#define FLOTILLA_COORDINATOR_STATUS_JSON_H

#include "common/text/json.h"
#include "proto/msg.h"

/* The mean of a worker's Steps in this generation, of which sum_ns is the sum. It has some. */
double status_step_ms(uint64_t sum_ns, const struct msg_worker_status *w);

/* The caller's. */
struct json *status_json(const struct msg_status *s);

#endif
