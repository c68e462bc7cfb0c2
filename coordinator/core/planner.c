/* When a replica begins a generation, and with whom: what is known of workers goes into a plan
 * (plan.c), and its stages are given to them. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "coordinator/core/plan.h"

#include <inttypes.h>

#define SETTLE_NS (5 * NS_PER_S) /* for all workers to come, before the first plan */

/* ---- one replica ---- */

/* The spares that may be planned with. */
static uint32_t list_candidates(const struct core *c, const struct replica *r,
                                struct plan_worker *list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        const struct worker *w = &c->workers[i];
        const struct msg_holding *h = &w->hello.holding;
        if (!fleet__may_serve(c, w)) continue;
        list[n++] =
            (struct plan_worker){.id = i,
                                 .rank = fleet__rank(c, r, w),
                                 .name = w->hello.name,
                                 .holds = w->hello.holds && h->model_digest == c->cfg.model_digest,
                                 .layer_first = h->layer_first,
                                 .layer_last = h->layer_last};
    }
    return n;
}

static void give_stage(struct core *c, struct replica *r, uint32_t stage,
                       const struct plan_stage *plan)
{
    struct worker *w = &c->workers[plan->worker];
    CHECK(!w->replica && r->stage[stage] == NO_WORKER);
    r->stage[stage] = plan->worker;
    r->first[stage] = plan->layer_first;
    r->last[stage] = plan->layer_last;
    w->replica = r;
    w->stage = stage;
}

/* Gives each stage of a replica without workers one that is a spare, and its layers; false, and
 * nothing is given: there are too few. */
static bool plan(struct core *c, struct replica *r)
{
    struct plan_worker *list = core__alloc(c, c->cfg.max_workers * sizeof *list);
    struct plan_stage stages[LIMIT_STAGES];
    plan_cut_even(c->cfg.n_layers, r->n_stages, stages);
    if (!plan_choose(list, list_candidates(c, r, list), stages, r->n_stages)) return false;
    for (uint32_t i = 0; i < r->n_stages; i++) give_stage(c, r, i, &stages[i]);
    return true;
}

/* ---- chains of fewer workers ---- */

static bool is_wanted(const struct core *c, const struct replica *r)
{
    return c->cfg.n_wanted == 0 || r->id < c->cfg.n_wanted;
}

static uint64_t last_joined_ns(const struct core *c)
{
    uint64_t last_ns = 0;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++)
        if (c->workers[i].used && c->workers[i].joined_ns > last_ns)
            last_ns = c->workers[i].joined_ns;
    return last_ns;
}

/* Whether workers have been missing for long, and none has come of late. */
static bool is_given_up(const struct core *c, const struct replica *r)
{
    uint64_t after_ns = c->cfg.replan_after_ns;
    uint64_t late_ns = after_ns < SETTLE_NS ? after_ns : SETTLE_NS;
    return r->short_ns && after_ns && c->now_ns - r->short_ns >= after_ns &&
           c->now_ns - last_joined_ns(c) >= late_ns;
}

/* Of how many stages the chain is to be now: as many as it is to have, or, where workers are given
 * up, as many as there are. */
static uint32_t stages_now(const struct core *c, const struct replica *r)
{
    uint32_t n = fleet__n_spares(c),
             least = c->cfg.costs.stages_least ? c->cfg.costs.stages_least : 1;
    return n < r->stages_wanted && n >= least && is_given_up(c, r) ? n : r->stages_wanted;
}

/* Since when too few workers are there; before its first generation there must be any. */
static void count_missing(const struct core *c, struct replica *r)
{
    uint32_t n = fleet__n_spares(c);
    if (n >= r->stages_wanted || (n == 0 && !r->generation))
        r->short_ns = 0;
    else if (!r->short_ns)
        r->short_ns = c->now_ns;
}

static void begin(struct core *c, struct replica *r)
{
    if (r->state != REPLICA_WAITING) return;
    if (r->generation) count_missing(c, r);
    if (c->now_ns < r->retry_ns) return;
    uint32_t n = stages_now(c, r);
    r->n_stages = n;
    if (!plan(c, r) || !room__plan(c, r)) {
        r->n_stages = r->stages_wanted;
        return;
    }
    if (n < r->stages_wanted)
        core__note(
            c,
            "%sworkers have been missing for %" PRIu64 " s: it is cut for %" PRIu32 " of %" PRIu32,
            core__of_replica(c, r), (c->now_ns - r->short_ns) / NS_PER_S, n, r->stages_wanted);
    replica__begin(c, r);
}

bool planner__gains(const struct core *c, const struct replica *r)
{
    if (r->n_stages < r->stages_wanted && fleet__n_spares(c) > 0) return true;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        const struct worker *w = &c->workers[i];
        if (!fleet__may_serve(c, w)) continue;
        for (uint32_t s = 0; s < r->n_stages; s++)
            if (fleet__rank(c, r, w) < fleet__rank(c, r, &c->workers[r->stage[s]])) return true;
    }
    return false;
}

/* ---- all of them ---- */

/* Where pools are chosen by the workers' memory, the first ones wait a while for all workers, so
 * that each replica on a machine gets its part. */
static bool settling(struct core *c)
{
    uint32_t all = 0;
    if (c->cfg.n_replicas == 1 || !c->layer_bytes) return false;
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++)
        if (is_wanted(c, &c->replicas[i])) all += c->replicas[i].n_stages;
    if (fleet__n_known(c) >= all) return false;
    if (c->settled_ns == 0) c->settled_ns = c->now_ns + SETTLE_NS;
    return c->now_ns < c->settled_ns;
}

/* First those that lost a worker. One that never ran begins only where spares suffice for all;
 * where none has lost any, and some are missing for long, with as many as there are. */
void planner__begin(struct core *c)
{
    uint32_t lost = 0; /* workers that those need */
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++)
        if (c->replicas[i].generation) begin(c, &c->replicas[i]);
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        const struct replica *r = &c->replicas[i];
        if (r->generation && r->state == REPLICA_WAITING) lost += r->n_stages;
    }
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        struct replica *r = &c->replicas[i];
        if (r->generation) continue;
        if (is_wanted(c, r)) count_missing(c, r);
        bool enough = fleet__n_spares(c) >= lost + r->n_stages && !settling(c);
        if (!enough && (lost || !is_given_up(c, r))) break;
        begin(c, r);
    }
}
