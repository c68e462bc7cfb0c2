/* When a replica begins a generation, and with whom: what is known of workers goes into a plan
 * (plan.c), and its stages are given to them. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "coordinator/core/plan.h"

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

static void begin(struct core *c, struct replica *r)
{
    if (r->state != REPLICA_WAITING || c->now_ns < r->retry_ns) return;
    if (plan(c, r) && room__plan(c, r)) replica__begin(c, r);
}

/* ---- all of them ---- */

/* Where pools are chosen by the workers' memory, the first ones wait a while for all workers, so
 * that each replica on a machine gets its part. */
static bool settling(struct core *c)
{
    uint32_t all = 0;
    if (c->cfg.n_replicas == 1 || !c->layer_bytes) return false;
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) all += c->replicas[i].n_stages;
    if (fleet__n_known(c) >= all) return false;
    if (c->settled_ns == 0) c->settled_ns = c->now_ns + SETTLE_NS;
    return c->now_ns < c->settled_ns;
}

/* First those that lost a worker. One that never ran begins only where spares suffice for all. */
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
        if (fleet__n_spares(c) < lost + r->n_stages || settling(c)) break;
        begin(c, r);
    }
}
