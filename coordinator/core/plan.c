#include "coordinator/core/plan.h"

#include "common/base/check.h"

#include <stdlib.h>
#include <string.h>

#define NOBODY UINT32_MAX

void plan_cut_even(uint32_t n_layers, uint32_t n_stages, struct plan_stage *stages)
{
    CHECK(n_stages > 0 && n_stages <= n_layers);
    uint32_t each = n_layers / n_stages, more = n_layers % n_stages;
    for (uint32_t i = 0, at = 0; i < n_stages; i++) {
        stages[i].layer_first = at;
        at += each + (i < more);
        stages[i].layer_last = at - 1;
    }
}

/* The order of plan_choose: by rank, then by name, then by the caller's number. */
static int compare(const void *left, const void *right)
{
    const struct plan_worker *a = left, *b = right;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    int names = strcmp(a->name, b->name);
    return names ? names : a->id < b->id ? -1 : a->id > b->id;
}

static bool holds(const struct plan_worker *w, const struct plan_stage *s)
{
    return w->holds && w->layer_first == s->layer_first && w->layer_last == s->layer_last;
}

/* Whether the list's idx-th worker has a stage. */
static bool has_stage(const struct plan_stage *stages, uint32_t n_stages, uint32_t id)
{
    for (uint32_t s = 0; s < n_stages; s++)
        if (stages[s].worker == id) return true;
    return false;
}

bool plan_choose(struct plan_worker *workers, uint32_t n_workers, struct plan_stage *stages,
                 uint32_t n_stages)
{
    uint32_t left = n_stages, must = 0;
    if (n_workers < n_stages) return false;
    qsort(workers, n_workers, sizeof *workers, compare);
    for (uint32_t s = 0; s < n_stages; s++) stages[s].worker = NOBODY;
    /* Those of a better rank than the last that is needed are all taken: `must` of them are left.
     */
    uint32_t last_rank = workers[n_stages - 1].rank;
    for (uint32_t i = 0; i < n_workers; i++) must += workers[i].rank < last_rank;
    for (uint32_t s = 0; s < n_stages; s++) { /* whoever holds a stage's layers keeps it */
        for (uint32_t i = 0; i < n_workers && workers[i].rank <= last_rank; i++) {
            const struct plan_worker *w = &workers[i];
            if (!holds(w, &stages[s]) || has_stage(stages, n_stages, w->id)) continue;
            if (w->rank == last_rank && left == must) continue;
            must -= w->rank < last_rank;
            left--;
            stages[s].worker = w->id;
            break;
        }
    }
    for (uint32_t s = 0, i = 0; s < n_stages; s++) {
        if (stages[s].worker != NOBODY) continue;
        while (has_stage(stages, n_stages, workers[i].id)) i++;
        stages[s].worker = workers[i].id;
    }
    return true;
}
