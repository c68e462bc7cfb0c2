/* A load on a running cluster: many clients' requests from one process, and what each of them saw.
 */
#ifndef FLOTILLA_CLI_LOAD_H
#define FLOTILLA_CLI_LOAD_H

#include "common/base/err.h"
#include "common/base/samples.h"
#include "common/text/vocab.h"
#include "coordinator/cli/convoy.h"

#include <stdbool.h>
#include <stdint.h>

enum load_scenario {
    LOAD_CLOSED,        /* n clients, each asks again when it is answered */
    LOAD_POISSON,       /* requests at random times, so many a second */
    LOAD_SHARED_PREFIX, /* closed, and the prompts begin alike */
    LOAD_CONVOY,        /* short requests alone, then beside long ones */
    LOAD_SCENARIOS,
};

struct load_options {
    const char *cluster;
    enum load_scenario scenario;
    uint32_t clients, requests; /* requests 0: four for each client */
    uint32_t prompt, tokens;    /* of a request: tokens of its prompt, and of its answer */
    uint32_t shared;            /* first tokens of all prompts */
    double rate;                /* poisson: requests a second */
    uint64_t seed;
    const char *model;      /* to check answers against the engine alone; NULL: not checked */
    const char *kv;         /* the cluster's KV type, for these checks; NULL: f16 */
    uint32_t checks;        /* how many */
    const char *out, *plot; /* files, or NULL */
};

enum load_kind { LOAD_PLAIN, LOAD_BASELINE, LOAD_SHORT, LOAD_LONG };

/* One request. Times are ms of this process's clock, from the start of the run. */
struct load_record {
    enum load_kind kind;
    int32_t *prompt; /* n_prompt */
    uint32_t n_prompt, n_tokens_wanted;
    double sent, first, ended; /* first: when the first token came, -1 without one */
    double queued;             /* in the coordinator's queue */
    struct tokens tokens;
    struct samples itl; /* ms between tokens */
    bool done, failed;
    uint32_t retry_ms;
    char status[96]; /* how it ended, if not well */
    int match;       /* 1 as the engine alone, 0 not, -1 not checked */
};

struct load_run {
    struct load_record *records;
    uint32_t n_records;
    double wall_ms;
    uint64_t hits, lookups; /* of the prefix index, in this run */
    double waste_percent; /* of the positions of KV pages held while it ran, those without a row */
};

/* load.c */
/* Sends all requests and waits for their ends; *ret is closed with load_run_close, also after an
 * error. Errors: the cluster is not reached, or a request could not be begun. A request that ends
 * badly is no error: its record says so. */
int load_run(const struct load_options *o, struct load_run *ret, struct errmsg *em);

/* load_report.c */
/* As --scenario takes it and reports tell it. */
const char *load_scenario_name(enum load_scenario s);
void load_run_close(struct load_run *r);
/* Notes whether an answer is, token by token, what the engine alone says. */
void load_compare(struct load_record *r, const struct tokens *alone);
/* One JSON document or a table on stdout; records as JSON lines and a plot where
 * they are asked for. *ret_pass: nothing failed, nothing differed, and a convoy passed. */
int load_report(const struct load_options *o, struct load_run *r, bool json, bool *ret_pass,
                struct errmsg *em);

#endif
