/* The cluster file. Every key is documented in deploy/cluster.example.yaml. */
#ifndef FLOTILLA_COORDINATOR_CONFIG_H
#define FLOTILLA_COORDINATOR_CONFIG_H

#include "common/base/err.h"
#include "common/base/key.h"
#include "common/io/conf.h"
#include "coordinator/draft/settings.h"
#include "proto/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFIG_KEY_LISTS 4u /* a role each */
#define CONFIG_ANY UINT32_MAX

enum config_prefer { CONFIG_ANYWHERE, CONFIG_FIRST, CONFIG_LAST };
enum config_split { CONFIG_MEASURED, CONFIG_EVEN, CONFIG_GIVEN };

/* What the file wishes of the worker of a name. */
struct config_worker {
    const char *name;      /* borrowed from the file's nodes */
    uint64_t memory_bytes; /* 0: any */
    uint32_t layers_max;   /* 0: any */
    uint32_t threads;      /* 0: any */
    enum config_prefer prefer;
    uint32_t replica, stage; /* that it is for; or CONFIG_ANY, both */
};

struct config {
    char *model;              /* absolute */
    bool model_relative;      /* it was not, and stands for a file under this process's folder */
    char *name, *listen, *kv; /* listen: an address of this machine, as in an endpoint */
    char *pre;                /* pre-tokeniser in place of the file's, or NULL */
    char *policy;             /* which replica takes a request: enum route_policy's name */
    char *draft, *draft_len;  /* as they are written; `drafts` is what they mean */
    struct draft_settings drafts;
    uint32_t draft_memory_mib;
    char *chat_template; /* a file with one, in place of the model's; or NULL */
    uint32_t client_port, worker_port, result_port, metrics_port, http_port; /* 0: any free one */
    bool plaintext;
    struct conf_node workers_node, replicas_node,
        split_node;               /* the next ones as they are written */
    uint32_t workers;             /* of the longest chain */
    uint32_t replicas;            /* chains, each of the whole model, that are waited for */
    uint32_t max_replicas;        /* that there are at most, as workers come; 0: replicas */
    uint32_t *chains;             /* workers of each that there may be */
    uint32_t serving;             /* of all `replicas` chains together */
    struct config_worker *wishes; /* n_wishes, each of another name */
    uint32_t n_wishes;
    enum config_split split;
    uint32_t given[LIMIT_STAGES]; /* CONFIG_GIVEN: layers of each of the `workers` stages */
    uint32_t ctx, kv_tokens;      /* positions of a sequence, and of the KV pool; 0: not given */
    uint32_t chunk, window;       /* rows of a Step; Steps in flight, 0: not given */
    uint32_t step_ms;             /* what a Step with decodes may take; 0: the core's choice */
    uint32_t max_requests, max_sequences, max_per_client; /* the last two 0: max_requests */
    bool prefix_cache, metrics;
    uint32_t replica_wait_s, deadline_s, client_stall_s, worker_timeout_ms, step_timeout_ms;
    uint32_t drain_s;        /* what running answers have when it, or their worker, is to stop */
    uint32_t replan_after_s; /* that missing workers are waited for; 0: for ever */
    uint32_t hwm;            /* messages that a client's connection may have waiting */
    uint32_t connections;    /* of clients at once */
    bool http;               /* the gateway runs in this process, with these limits: */
    char *http_api_keys, *http_certificate, *http_key,
        *http_cors; /* files, and an origin; or NULL */
    uint32_t http_connections, http_body_kib, http_read_s, http_stall_s;
    const char *path; /* of the file itself, borrowed; NULL: it has none */
    char *key_file;   /* NULL: plaintext */
    struct conf_list key_texts[CONFIG_KEY_LISTS];
    struct key_list allowed; /* of key_texts */
    struct key_pair own;     /* of key_file; config_read alone reads it */
};

/* path "-" reads stdin. `model`, unless it is NULL, takes the place of the file's key, which may
 * then be missing: a path whose bytes are not UTF-8 cannot be written in YAML. Checks what can be
 * checked without the model file, and looks a host name up, waiting for it. */
int config_read(const char *path, const char *model, struct config *ret, struct errmsg *em);
/* The keys that the file allows now, for a coordinator that runs with this configuration; freed
 * with key_list_close. Nothing else of the file is taken. Errors: those of config_read, and
 * ERR_CONF where it has no keys any more. */
int config_read_allowed(const struct config *c, struct key_list *ret, struct errmsg *em);
/* From memory, and without a look-up or the key file: `listen` stays as it is written. `name`
 * stands for the file in errors. */
int config_parse(const char *name, const char *text, size_t len, struct config *ret,
                 struct errmsg *em);
/* The idx-th key's name, "ports.clients" for one inside a mapping; NULL: there are no more. With it
 * a test sees that the example file has every key. */
const char *config_key(uint32_t idx);
void config_close(struct config *c);

/* Whether `text`, a cluster file of one key, has a key that is known and a value that it may have.
 * `name` stands for the file in errors. */
int config_check_key(const char *name, const char *text, struct errmsg *em);

#endif
