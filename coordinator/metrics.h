/* What the coordinator counts, as Prometheus reads it: the loop publishes a text now and then, the
 * HTTP server's thread hands out the last one. */
#ifndef FLOTILLA_COORDINATOR_METRICS_H
#define FLOTILLA_COORDINATOR_METRICS_H

#include "common/base/err.h"
#include "common/base/stats.h"
#include "proto/msg.h"

#include <stdint.h>

#define METRICS_STATUSES 17u /* gRPC's codes */

/* Owned by the loop. */
struct counters {
    uint64_t ended[METRICS_STATUSES]; /* answers, by status */
    uint64_t tokens;                  /* generated */
    uint64_t embeddings;              /* told to a client, */
    uint64_t embedding_tokens;        /* and the tokens of their texts */
    struct stats ttft, itl; /* ns, at the coordinator: from the call's arrival to its first token;
                               between two tokens of an answer */
    bool drafts;            /* there is a drafter, of which the next ones are */
    uint64_t draft_asks, draft_failed, draft_foreign, draft_index_bytes;
};

struct metrics;

/* Serves http://host:port/metrics, empty until something is published; port 0: any free one, and
 * *ret_port says which. Errors as of http_open. */
int metrics_open(const char *host, uint32_t port, struct metrics **ret, uint32_t *ret_port,
                 struct errmsg *em);
/* May be NULL. */
void metrics_close(struct metrics *m);
/* Makes the text that is handed out from now on. */
void metrics_publish(struct metrics *m, const struct counters *c, const struct msg_status *s);

#endif
