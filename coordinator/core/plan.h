/* Which workers a chain is made of, in which order, and which layers each of them has. Pure: it
 * goes by what it is given, and knows neither the core's state nor why one worker is better than
 * another.
 *
 * A chain is as fast as its slowest stage. So workers that were measured are given as many layers
 * as make the slowest stage as fast as possible, the output head counted as the work of whoever is
 * last. What is measured is never exact: an even cut, the order of the names, and what workers have
 * in memory already stand where something else would hardly be faster. */
#ifndef FLOTILLA_CORE_PLAN_H
#define FLOTILLA_CORE_PLAN_H

#include "coordinator/core/room.h"
#include "proto/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define PLAN_ANY_STAGE UINT32_MAX

enum plan_split {
    PLAN_BY_SPEED, /* even, as long as no worker was measured */
    PLAN_EVEN,
    PLAN_GIVEN
};

enum plan_prefer { PLAN_ANYWHERE, PLAN_FIRST, PLAN_LAST };

/* A worker that may be planned with. */
struct plan_worker {
    uint32_t id;      /* the caller's; no two have the same */
    uint32_t rank;    /* the lower, the better */
    const char *name; /* borrowed; decides among workers of one rank */
    bool holds;       /* it has layers of this very model in memory: */
    uint32_t layer_first, layer_last;
    /* What a unit of work takes it, whatever the unit is: each byte of the layers' weights, and the
     * output head. byte_ns 0: it was not measured, and counts like the mean of those that were. */
    double byte_ns, head_ns;
    uint64_t room_bytes; /* for weights and pages; UINT64_MAX: unknown */
    uint32_t layers_max; /* 0: any number */
    enum plan_prefer prefer;
    uint32_t stage; /* that it is to have, if the chain has it, or PLAN_ANY_STAGE */
};

struct plan_ask {
    uint32_t n_layers, n_stages;      /* stages: 1..LIMIT_STAGES, at most n_layers */
    const uint64_t *work;             /* bytes that each layer reads; NULL: they are alike */
    const struct room_costs *costs;   /* borrowed; costs->layer_bytes NULL: any memory suffices */
    uint32_t pages_least, pages_most; /* of the KV pool */
    enum plan_split split;
    const uint32_t *given; /* PLAN_GIVEN: layers of each stage, n_layers together */
};

struct plan_stage {
    uint32_t worker; /* its id */
    uint32_t layer_first, layer_last;
    double ns; /* of a unit of work; 0: nothing was measured */
};

enum plan_result {
    PLAN_MADE, /* the best that there is; whether there is memory for it is not said */
    PLAN_TOO_FEW_WORKERS,
    PLAN_TOO_FEW_LAYERS /* that they may have (layers_max) */
};

/* Chooses n_stages workers of the best ranks, among equals the fastest, and cuts. A cut of which
 * the workers hold all stages is kept; one of which they hold some, if its slowest stage is at most
 * a quarter slower than the best cut's. Of cuts that are about equally fast it takes one whose KV
 * pool may be larger. Sorts `workers`. ret_stages: n_stages, only if a plan was made. */
enum plan_result plan_make(const struct plan_ask *ask, struct plan_worker *workers,
                           uint32_t n_workers, struct plan_stage *ret_stages);

/* How many layers at most these workers may have together, by their layers_max; n_layers if it is
 * enough. Those of the best ranks count, n_stages of them. `workers` as plan_make has sorted them.
 */
uint32_t plan_layers_max(const struct plan_ask *ask, const struct plan_worker *workers);

#endif
