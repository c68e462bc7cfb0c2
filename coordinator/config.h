/* The cluster file. Every key is documented in deploy/cluster.example.yaml. */
#ifndef FLOTILLA_COORDINATOR_CONFIG_H
#define FLOTILLA_COORDINATOR_CONFIG_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config {
    char *model, *name, *listen, *kv, *pre;
    uint32_t client_port, worker_port, result_port, metrics_port; /* 0: any free one */
    bool plaintext;
    uint32_t workers;
    uint32_t ctx, kv_tokens, chunk, window, step_ms;
    uint32_t max_requests, max_sequences, max_per_client;
    bool prefix_cache, metrics;
    uint32_t replica_wait_s, deadline_s, client_stall_s, worker_timeout_ms, step_timeout_ms;
    uint32_t hwm; /* messages that a client's connection may have waiting */
};

/* path "-" reads stdin. Checks what can be checked without the model file. */
int config_read(const char *path, struct config *ret, struct errmsg *em);
/* From memory; `name` stands for the file in errors. */
int config_parse(const char *name, const char *text, size_t len, struct config *ret,
                 struct errmsg *em);
/* The idx-th key's name, "ports.clients" for one inside a mapping; NULL: there are no more. */
const char *config_key(uint32_t idx);
void config_close(struct config *c);

#endif
