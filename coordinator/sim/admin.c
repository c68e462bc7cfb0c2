/* An admin's orders: workers are drained, replicas planned anew; and what must hold of both. */
#include "coordinator/sim/world.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <string.h>

#define LIMIT_MOST_MS 5000u
#define DRAINS_SLACK_NS (200 * NS_PER_MS) /* two ticks, and what happens between them */
#define ORDER_MOST_NS                                                                              \
    (20 * NS_PER_S)                    /* until a worker is gone, limit and lost messages included \
                                        */
#define REPLAN_MOST_NS (60 * NS_PER_S) /* until the replicas are planned, if all get up */

static struct event make_order(struct world *w, enum event_type type, const char *name)
{
    static const uint32_t limits_ms[] = {0, 300, 2000, LIMIT_MOST_MS};
    w->limit_ns = limits_ms[rng_below(&w->rng, 4)] * NS_PER_MS;
    w->order_ns = w->now_ns;
    return (struct event){.type = type, .order = {name, w->limit_ns}};
}

static void give(struct world *w, struct event e, bool known)
{
    w->ordering = true;
    w->answered = 0;
    world__core(w, &e);
    w->ordering = false;
    if (w->failed) return;
    if (w->answered != 1)
        world__fail(w, "an order has %" PRIu32 " answers", w->answered);
    else if (known && w->answer != STATUS_OK)
        world__fail(w, "an order for '%s' ends with status %d", e.order.name, (int)w->answer);
}

/* Workers that the core knows for certain get no stage after this. */
void admin__drain(struct world *w)
{
    const struct world_worker *x = &w->workers[rng_below(&w->rng, w->n_workers)];
    bool known = false;
    for (uint32_t i = 0; i < w->n_workers; i++) {
        struct world_worker *y = &w->workers[i];
        if (strcmp(y->name, x->name) != 0 || !world__knows(w, i)) continue;
        known = true;
        y->leaves |= y->greeted;
    }
    give(w, make_order(w, EV_DRAIN, x->name), known);
}

void admin__rebalance(struct world *w)
{
    static const char *const names[] = {"", "", "a", "b", "c", "d"};
    const char *name = names[rng_below(&w->rng, 6)];
    bool known = !name[0] || (uint32_t)(name[0] - 'a') < w->cfg.n_replicas;
    give(w, make_order(w, EV_REBALANCE, name), known);
    if (!w->failed && !known && w->answer != STATUS_NOT_FOUND)
        world__fail(w, "replica '%s' is known", name);
}

void admin__assigned(struct world *w, struct instance to)
{
    for (uint32_t i = 0; i < w->n_workers; i++)
        if (w->workers[i].leaves && instance_eq(w->workers[i].instance, to))
            world__fail(w, "worker %" PRIu32 " has a stage although it is to leave", i);
}

/* ---- what must hold after every event ---- */

/* A draining replica has less and less to do, and not for longer than was ordered. */
static void check_draining(struct world *w, const struct msg_status *s, uint32_t replica)
{
    struct world_replica *x = &w->replicas[replica];
    bool drains = strcmp(s->replicas[replica].state, "draining") == 0;
    if (!drains || !x->was_draining) {
        x->drains_until_ns = w->now_ns + LIMIT_MOST_MS * NS_PER_MS;
        return;
    }
    uint64_t went_on = w->stalled_until_ns, until = x->drains_until_ns;
    if (w->now_ns > (until > went_on ? until : went_on) + DRAINS_SLACK_NS)
        world__fail(w, "replica %s drains for longer than was ordered", s->replicas[replica].name);
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++) {
        struct core_sequence q = core_sequence_at(w->core, i);
        const struct world_request *r = check__find(w, q.request);
        if (q.replica == replica && r->with != replica)
            world__fail(w, "request %" PRIu64 " is sent to a replica that drains", q.request);
    }
}

/* The workers of a list are not to blame in a world where nothing breaks; and who is to leave is
 * gone in time. */
static void check_workers(struct world *w, const struct msg_worker_status *list, uint32_t n)
{
    bool late = w->now_ns > w->faults_end_ns && w->now_ns > w->order_ns + ORDER_MOST_NS;
    for (uint32_t i = 0; i < n; i++) {
        if (w->faultless && list[i].faults)
            world__fail(w, "worker %s is to blame, but nothing broke", list[i].name);
        if (late &&
            (strcmp(list[i].state, "drained") == 0 || strcmp(list[i].state, "draining") == 0))
            world__fail(w, "worker %s was to leave, but is there: %s", list[i].name, list[i].state);
    }
}

/* A new generation has all layers, each once; and fewer stages than it is to have only where
 * workers are missing and may be given up. */
static void check_cut(struct world *w, const struct msg_status *s, uint32_t replica)
{
    const struct msg_replica_status *r = &s->replicas[replica];
    uint32_t next = 0, spares = 0;
    uint32_t wanted = w->cfg.chains ? w->cfg.chains[replica] : w->cfg.n_stages;
    if (r->n_workers == 0 || r->generation == w->replicas[replica].was_generation) return;
    w->replicas[replica].was_generation = r->generation;
    for (uint32_t i = 0; i < r->n_workers; i++) {
        if (r->workers[i].layer_first != next || r->workers[i].layer_last < next)
            world__fail(
                w, "stage %" PRIu32 " has layers %" PRIu32 " to %" PRIu32 ", not from %" PRIu32, i,
                r->workers[i].layer_first, r->workers[i].layer_last, next);
        next = r->workers[i].layer_last + 1;
    }
    for (uint32_t i = 0; i < s->n_spares; i++) spares += strcmp(s->spares[i].state, "spare") == 0;
    if (next != w->cfg.n_layers)
        world__fail(w, "a generation has %" PRIu32 " of %" PRIu32 " layers", next, w->cfg.n_layers);
    if (r->n_workers < wanted && (w->cfg.replan_after_ns == 0 || r->n_workers + spares >= wanted))
        world__fail(w, "a generation has %" PRIu32 " stages although there are %" PRIu32 " spares",
                    r->n_workers, spares);
    w->report->replanned += r->rebalancing;
    w->report->cut_shorter += r->n_workers < wanted;
}

void admin__state(struct world *w, const struct msg_status *s)
{
    uint32_t n_replanned = 0;
    bool all_ready = true, any = false;
    check_workers(w, s->spares, s->n_spares);
    for (uint32_t i = 0; i < w->cfg.n_replicas && !w->failed; i++) {
        const struct msg_replica_status *r = &s->replicas[i];
        check_workers(w, r->workers, r->n_workers);
        check_draining(w, s, i);
        check_cut(w, s, i);
        n_replanned += r->rebalancing && !r->ready;
        all_ready &= r->ready;
        any |= r->rebalancing;
        w->replicas[i].was_draining = strcmp(r->state, "draining") == 0;
        w->replicas[i].was_rebalancing = r->rebalancing;
    }
    if (w->faultless && !(w->faults >> FAULT_DRAIN & 1) && n_replanned > 1)
        world__fail(w, "%" PRIu32 " replicas are planned anew at a time", n_replanned);
    if (any && all_ready && w->now_ns > w->order_ns + REPLAN_MOST_NS)
        world__fail(w, "replicas are not planned anew, although that was ordered");
}
