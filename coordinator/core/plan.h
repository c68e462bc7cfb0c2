/* Which workers a chain is made of, and which layers each of them has. Pure: it goes by what it is
 * given, and knows neither the core's state nor why one worker is better than another. */
#ifndef FLOTILLA_CORE_PLAN_H
#define FLOTILLA_CORE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

/* A worker that may be planned with. */
struct plan_worker {
    uint32_t id;      /* the caller's */
    uint32_t rank;    /* the lower, the better */
    const char *name; /* borrowed; decides among workers of one rank */
    bool holds;       /* it has layers of this very model in memory: */
    uint32_t layer_first, layer_last;
};

struct plan_stage {
    uint32_t worker; /* its id */
    uint32_t layer_first, layer_last;
};

/* Cuts the layers evenly; the first stages have one more where they do not divide. n_stages: at
 * least 1, at most n_layers. Fills in the stages' layers. */
void plan_cut_even(uint32_t n_layers, uint32_t n_stages, struct plan_stage *stages);

/* Gives each stage, whose layers are known, a worker of its own: those of the best ranks, and of
 * equals those that hold a stage's layers already. Sorts `workers`. False: there are too few, and
 * the stages are as they were. */
bool plan_choose(struct plan_worker *workers, uint32_t n_workers, struct plan_stage *stages,
                 uint32_t n_stages);

#endif
