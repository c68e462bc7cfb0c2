/* When a replica begins a generation, and with whom: what is known of workers goes into a plan
 * (plan.c), and its stages are given to them. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "coordinator/core/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SETTLE_NS (5 * NS_PER_S) /* for all workers to come, or for those that are named */
#define RETRY_NS (1 * NS_PER_S)  /* what does not fit is tried again */
#define GAIN_FACTOR 1.1          /* a chain that is faster by so much is worth a new plan */

/* ---- who may serve ---- */

/* Whether the cluster file has the worker for this replica, or for none; spares: it may also take
 * the place of one that the file names. */
static bool is_for(const struct replica *r, const struct worker *w, bool spares)
{
    if (w->wish && w->wish->replica != CORE_ANY_REPLICA) return w->wish->replica == r->id;
    return !r->named || spares;
}

/* Whether those whom the file names have had the time to come, so that others may stand in. */
static bool takes_spares(const struct core *c, const struct replica *r)
{
    return c->now_ns - r->waits_ns >= SETTLE_NS;
}

/* Where nothing depends on what a worker measures, nobody waits for it. */
static bool may_be_planned(const struct core *c, const struct replica *r, const struct worker *w)
{
    bool waits = c->cfg.split == PLAN_BY_SPEED && r->n_stages > 1;
    return fleet__may_serve(c, w) && is_for(r, w, takes_spares(c, r)) &&
           (!waits || fleet__is_measured(c, w));
}

static uint32_t n_candidates(const struct core *c, const struct replica *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) n += may_be_planned(c, r, &c->workers[i]);
    return n;
}

/* ---- what is known of them ---- */

/* Bytes that layers first..last read, or their number. */
static double work_of(const struct core *c, uint32_t first, uint32_t last)
{
    double sum = 0.0;
    for (uint32_t l = first; l <= last; l++) sum += c->layer_work ? (double)c->layer_work[l] : 1.0;
    return sum;
}

/* The layer that a worker measured, in the same unit. */
static double measured_work(const struct core *c, const struct worker *w)
{
    return c->layer_work && w->speed.layer_bytes ? (double)w->speed.layer_bytes : 1.0;
}

struct speed_stage planner__stage(const struct core *c, const struct worker *w, uint32_t first,
                                  uint32_t last)
{
    return (struct speed_stage){.layers = work_of(c, first, last) / measured_work(c, w),
                                .last = last == c->cfg.n_layers - 1};
}

static struct plan_worker describe(const struct core *c, const struct replica *r, uint32_t idx)
{
    const struct worker *w = &c->workers[idx];
    const struct msg_holding *h = &w->hello.holding;
    const struct room_stage memory = fleet__memory(w);
    struct plan_worker x = {.id = idx,
                            .rank = fleet__rank(c, r, w),
                            .name = w->hello.name,
                            .holds = w->hello.holds && !r->replans &&
                                     h->model_digest == c->cfg.model_digest,
                            .layer_first = h->layer_first,
                            .layer_last = h->layer_last,
                            .room_bytes = UINT64_MAX,
                            .stage = PLAN_ANY_STAGE};
    if (c->layer_bytes) x.room_bytes = room_for_slice(&c->cfg.costs, &memory, false);
    double layer_ns = speed_unit(&w->speed, (struct speed_stage){1.0, false});
    x.head_ns = speed_unit(&w->speed, (struct speed_stage){0.0, true});
    x.byte_ns = layer_ns / measured_work(c, w);
    if (!w->wish) return x;
    x.layers_max = w->wish->layers_max;
    x.prefer = w->wish->prefer;
    x.stage = w->wish->stage;
    return x;
}

static uint32_t list_candidates(const struct core *c, const struct replica *r,
                                struct plan_worker *list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++)
        if (may_be_planned(c, r, &c->workers[i])) list[n++] = describe(c, r, i);
    return n;
}

/* ---- one replica ---- */

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

static void refuse(struct core *c, struct replica *r, const char *why)
{
    (void)snprintf(r->why, sizeof r->why, "%s", why);
    if (!r->cramped) core__note(c, "%sno generation can begin: %s", core__of_replica(c, r), r->why);
    r->cramped = true;
    r->retry_ns = c->now_ns + RETRY_NS;
}

/* Whether no worker has more layers than the file allows, which an even or a given cut may break.
 */
static bool check_layers(struct core *c, struct replica *r, const struct plan_stage *stages)
{
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const struct worker *w = &c->workers[stages[i].worker];
        uint32_t n = stages[i].layer_last - stages[i].layer_first + 1;
        if (!w->wish || !w->wish->layers_max || n <= w->wish->layers_max) continue;
        refuse(c, r,
               core__text(c,
                          "'split' gives worker %s %" PRIu32 " layers, %" PRIu32
                          " more than its 'max_layers' of %" PRIu32,
                          w->hello.name, n, n - w->wish->layers_max, w->wish->layers_max));
        return false;
    }
    return true;
}

/* Whether the stages have room for the smallest pool, with what they share. */
static bool fit_together(const struct core *c, const struct plan_ask *ask,
                         const struct plan_stage *stages)
{
    struct room_stage all[LIMIT_STAGES];
    if (!c->layer_bytes) return true;
    for (uint32_t i = 0; i < ask->n_stages; i++) {
        all[i] = fleet__memory(&c->workers[stages[i].worker]);
        all[i].layer_first = stages[i].layer_first;
        all[i].layer_last = stages[i].layer_last;
    }
    return room_of(&c->cfg.costs, ask->n_layers, all, ask->n_stages, false).pages >=
           ask->pages_least;
}

/* The workers of the plan share what their machine has equally. */
static void share_machines(const struct core *c, const struct plan_ask *ask,
                           const struct plan_stage *stages, struct plan_worker *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct msg_memory *mine = &c->workers[list[i].id].memory;
        uint32_t sharing = 0;
        for (uint32_t s = 0; s < ask->n_stages; s++)
            sharing += c->workers[stages[s].worker].memory.machine == mine->machine;
        if (sharing && list[i].room_bytes != UINT64_MAX) list[i].room_bytes /= sharing;
    }
}

/* plan_make takes each worker to have its machine for itself. Where that is not so and the pool
 * does not fit, each gets an equal part; if that does not help, the first plan stands. */
static enum plan_result make(struct core *c, const struct plan_ask *ask, struct plan_worker *list,
                             uint32_t n, struct plan_stage *ret_stages)
{
    struct plan_stage shared[LIMIT_STAGES] = {{0}};
    enum plan_result result = plan_make(ask, list, n, ret_stages);
    if (result != PLAN_MADE || ask->split != PLAN_BY_SPEED || fit_together(c, ask, ret_stages))
        return result;
    share_machines(c, ask, ret_stages, list, n);
    if (plan_make(ask, list, n, shared) == PLAN_MADE && fit_together(c, ask, shared))
        memcpy(ret_stages, shared, ask->n_stages * sizeof *shared);
    return result;
}

/* Where the chain is shorter than it is to be, the file's numbers of layers say nothing. */
static struct plan_ask ask_for(const struct core *c, const struct replica *r, uint32_t n_stages)
{
    const struct core_config *k = &c->cfg;
    bool shorter = k->split == PLAN_GIVEN && n_stages < r->stages_wanted;
    return (struct plan_ask){.n_layers = k->n_layers,
                             .n_stages = n_stages,
                             .work = c->layer_work,
                             .costs = &k->costs,
                             .pages_least = k->n_pages ? k->n_pages : k->pages_least,
                             .pages_most = k->n_pages ? k->n_pages : k->pages_most,
                             .split = shorter ? PLAN_BY_SPEED : k->split,
                             .given = k->given};
}

/* Gives each stage of a replica without workers one that is a spare, and its layers; false, and
 * nothing is given: there are too few. */
static bool plan(struct core *c, struct replica *r)
{
    struct plan_worker *list = c->candidates;
    struct plan_stage stages[LIMIT_STAGES];
    struct plan_ask ask = ask_for(c, r, r->n_stages);
    switch (make(c, &ask, list, list_candidates(c, r, list), stages)) {
    case PLAN_TOO_FEW_WORKERS: return false;
    case PLAN_TOO_FEW_LAYERS:
        refuse(c, r,
               core__text(c,
                          "the workers may have %" PRIu32 " of %" PRIu32
                          " layers together ('max_layers'): %" PRIu32 " more are needed",
                          plan_layers_max(&ask, list), ask.n_layers,
                          ask.n_layers - plan_layers_max(&ask, list)));
        return false;
    case PLAN_MADE: break;
    }
    if (!check_layers(c, r, stages)) return false;
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

/* Workers that it may be planned with, now or when they have measured themselves. */
static uint32_t n_there(const struct core *c, const struct replica *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++)
        n += fleet__may_serve(c, &c->workers[i]) && is_for(r, &c->workers[i], takes_spares(c, r));
    return n;
}

/* Of how many stages the chain is to be now: as many as it is to have, or, where workers are given
 * up, as many as there are. */
static uint32_t stages_now(const struct core *c, const struct replica *r)
{
    uint32_t n = n_candidates(c, r), least = c->cfg.costs.stages_least;
    if (n >= r->stages_wanted || n == 0 || n < least || n < n_there(c, r)) return r->stages_wanted;
    return is_given_up(c, r) ? n : r->stages_wanted;
}

/* Since when too few workers are there, n; before its first generation there must be any. */
static void count_missing(const struct core *c, struct replica *r, uint32_t n)
{
    if (n >= r->stages_wanted || (n == 0 && !r->generation))
        r->short_ns = 0;
    else if (!r->short_ns)
        r->short_ns = c->now_ns;
}

/* spare: workers that any replica could be planned with. Where they are too few, each of many
 * replicas does without counting its own. */
static void begin(struct core *c, struct replica *r, uint32_t spare)
{
    if (r->state != REPLICA_WAITING) return;
    bool few = spare < r->stages_wanted;
    if (r->generation) count_missing(c, r, few ? spare : n_there(c, r));
    if (c->now_ns < r->retry_ns || (few && !is_given_up(c, r))) return;
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

/* ---- plans that are ordered ---- */

uint32_t planner__n_spares(const struct core *c, const struct replica *r)
{
    return n_candidates(c, r);
}

/* Of the chain as it is, in the unit of plan_stage.ns; 0: a worker was not measured. */
static double slowest_stage(const struct core *c, const struct replica *r)
{
    double most = 0.0;
    for (uint32_t s = 0; s < r->n_stages; s++) {
        const struct plan_worker x = describe(c, r, r->stage[s]);
        double ns = work_of(c, r->first[s], r->last[s]) * x.byte_ns;
        if (r->last[s] == c->cfg.n_layers - 1) ns += x.head_ns;
        if (!(x.byte_ns > 0.0)) return 0.0;
        if (ns > most) most = ns;
    }
    return most;
}

/* Whether workers of a plan have fewer faults than those of the chain, or it is so much faster. */
static bool is_better(const struct core *c, const struct replica *r, const struct plan_stage *plan)
{
    uint32_t ranks = 0, ranks_now = 0;
    double slowest = 0.0, now = slowest_stage(c, r);
    for (uint32_t s = 0; s < r->n_stages; s++) {
        ranks += fleet__rank(c, r, &c->workers[plan[s].worker]);
        ranks_now += fleet__rank(c, r, &c->workers[r->stage[s]]);
        if (plan[s].ns > slowest) slowest = plan[s].ns;
    }
    return ranks < ranks_now || (slowest > 0.0 && slowest * GAIN_FACTOR < now);
}

bool planner__gains(struct core *c, const struct replica *r)
{
    struct plan_worker *list = c->candidates;
    struct plan_stage stages[LIMIT_STAGES] = {{0}};
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        const struct worker *w = &c->workers[i];
        bool own = w->used && w->replica == r && !w->leaves;
        if (!own && !may_be_planned(c, r, w)) continue;
        list[n] = describe(c, r, i);
        list[n++].holds = false;
    }
    uint32_t n_stages = n < r->stages_wanted ? n : r->stages_wanted;
    if (n_stages < r->n_stages) return false;
    struct plan_ask ask = ask_for(c, r, n_stages);
    if (make(c, &ask, list, n, stages) != PLAN_MADE) return false;
    return n_stages > r->n_stages || is_better(c, r, stages);
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

/* Whether there are workers for a new replica: all that the file names for it, or spares beside
 * those that replicas need which lost some. */
static bool has_enough(const struct core *c, const struct replica *r, uint32_t lost)
{
    uint32_t named = 0;
    for (uint32_t i = 0; i < c->cfg.max_workers && r->named; i++) {
        const struct worker *w = &c->workers[i];
        named += may_be_planned(c, r, w) && w->wish && w->wish->replica == r->id;
    }
    return named == r->n_stages || n_candidates(c, r) >= lost + r->n_stages;
}

/* Workers that any replica could be planned with. */
static uint32_t n_spare(const struct core *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) n += fleet__may_serve(c, &c->workers[i]);
    return n;
}

/* First those that lost a worker. One that never ran begins only where spares suffice for all;
 * where none has lost any, and some are missing for long, with as many as there are. */
void planner__begin(struct core *c)
{
    uint32_t lost = 0; /* workers that those need */
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++)
        if (c->replicas[i].waits_ns == 0) c->replicas[i].waits_ns = c->now_ns;
    uint32_t spare = n_spare(c);
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        struct replica *r = &c->replicas[i];
        if (!r->generation || r->state != REPLICA_WAITING) continue;
        begin(c, r, spare);
        if (r->state != REPLICA_WAITING) spare = n_spare(c);
    }
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        const struct replica *r = &c->replicas[i];
        if (r->generation && r->state == REPLICA_WAITING) lost += r->n_stages;
    }
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        struct replica *r = &c->replicas[i];
        if (r->generation) continue;
        bool count = spare && (r->named || spare >= r->stages_wanted); /* else they are too few */
        if (is_wanted(c, r)) count_missing(c, r, count ? n_there(c, r) : spare);
        bool enough = spare >= r->n_stages && has_enough(c, r, lost) && !settling(c);
        if (!enough && (lost || !is_given_up(c, r))) continue;
        begin(c, r, spare);
        if (r->state != REPLICA_WAITING) spare = n_spare(c);
    }
}
