/* Who runs and who waits, by our own count of classes, arrivals and time in the queue. */
#include "coordinator/sim/world.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <string.h>

#define TRIAL 2u               /* losses in whose Steps it was */
#define AGE_NS (10 * NS_PER_S) /* in the queue: as good as the next better class, up to high */

/* What waiting so long makes of the class that was asked for. */
static enum priority aged(const struct world_request *r, uint64_t waited_ns)
{
    uint64_t steps = waited_ns / AGE_NS;
    if (r->class <= PRIORITY_HIGH) return r->class;
    uint64_t most = (uint64_t)r->class - PRIORITY_HIGH;
    return (enum priority)(r->class - (steps < most ? steps : most));
}

static bool before(enum priority a, const struct world_request *x, enum priority b,
                   const struct world_request *y)
{
    return a != b ? a < b : x->arrival < y->arrival;
}

/* Nobody who came in was less urgent than one who waits, unless that one asked for less and only
 * its waiting made it more urgent: waiting preempts nobody. A request that may be what ends
 * generations comes first, and alone. */
static void check_admitted(struct world *w, const struct world_request *x)
{
    if (x->lost_in_flight >= TRIAL) return;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        const struct world_request *y = &w->requests[i];
        if (!y->submitted || y->ended || y->running || y->was_running || y->class > x->class)
            continue;
        if (y->with != x->replica) continue;
        if (before(aged(y, y->waited_ns + w->now_ns - y->queued_ns), y, x->admitted, x))
            world__fail(w, "request %" PRIu64 " runs before %" PRIu64 ", which is more urgent",
                        x->id, y->id);
    }
}

/* Whoever gave way was the least urgent of those that had no rows in the present Steps. */
static void check_preempted(struct world *w, const struct world_request *p)
{
    for (uint32_t i = 0; i < w->n_requests; i++) {
        const struct world_request *x = &w->requests[i];
        if (x->replica != p->replica) continue;
        if (x->running && x->was_running && !x->in_step && before(p->admitted, p, x->admitted, x))
            world__fail(w, "request %" PRIu64 " gave way, not %" PRIu64 ", which is less urgent",
                        p->id, x->id);
    }
}

/* Somebody runs to whom an embedding may have given way: not another embedding of its class. */
static void check_undone(struct world *w, const struct world_request *p)
{
    for (uint32_t i = 0; i < w->n_requests; i++) {
        const struct world_request *x = &w->requests[i];
        if (x->replica != p->replica || !x->running) continue;
        if (!x->embed || x->admitted < p->admitted) return;
    }
    world__fail(w, "request %" PRIu64 " begins again, but only embeddings run", p->id);
}

/* Where a Step was composed nobody waits who asked for a better class than everybody has who runs:
 * all of these would give way. A request that may be what ends generations runs alone. */
static void check_waiting(struct world *w, uint32_t replica)
{
    const struct world_request *first = NULL;
    enum priority best = PRIORITY_LOW;
    bool runs = false;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        const struct world_request *x = &w->requests[i];
        if (!x->submitted || x->ended || x->with != replica) continue;
        if (x->lost_in_flight >= TRIAL) return;
        if (x->running && (!runs || x->admitted < best)) best = x->admitted;
        runs |= x->running;
        if (!x->running && (!first || x->class < first->class)) first = x;
    }
    if (runs && first && first->class < best)
        world__fail(w, "request %" PRIu64 " waits behind less urgent ones", first->id);
}

/* One that the core has, as it is now. */
static void note(struct world *w, struct world_request *r, const struct core_sequence *s)
{
    if (s->running && !r->running) {
        r->waited_ns += w->now_ns - r->queued_ns;
        r->admitted = aged(r, r->waited_ns);
    } else if (!s->running && r->running) {
        r->queued_ns = w->now_ns;
    }
    if (s->running && s->class != (uint32_t)r->admitted)
        world__fail(w, "request %" PRIu64 " runs in class %" PRIu32 ", not %d", r->id, s->class,
                    (int)r->admitted);
    r->running = s->running;
    if (s->running) r->replica = s->replica;
    r->with = s->replica;
    r->core_arrival = s->arrival;
}

/* Whether a request has come from one replica to another in this event, maybe to one that was lost
 * in it too. */
static bool has_moved(const struct world *w, const struct world_request *r,
                      const struct core_sequence *s)
{
    if (r->with == CORE_NO_REPLICA || s->replica == r->with) return false;
    return s->replica != CORE_NO_REPLICA || (w->n_lost_now > 1 && s->arrival != r->core_arrival);
}

/* Who comes from another replica comes last of its class there; several in the order that the core
 * gave them. */
static void note_moves(struct world *w)
{
    struct core_sequence moved[WORLD_REQUESTS + WORLD_WITNESSES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++) {
        struct core_sequence s = core_sequence_at(w->core, i);
        const struct world_request *r = check__find(w, s.request);
        if (!has_moved(w, r, &s)) continue;
        uint32_t at = n++;
        for (; at && moved[at - 1].arrival > s.arrival; at--) moved[at] = moved[at - 1];
        moved[at] = s;
    }
    for (uint32_t i = 0; i < n; i++) check__find(w, moved[i].request)->arrival = w->arrivals++;
}

void order__state(struct world *w)
{
    const struct world_request *last[WORLD_REPLICAS] = {NULL};
    bool changed = false;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        struct world_request *r = &w->requests[i];
        r->was_running = r->running;
        if (r->ended) r->running = r->was_running = false;
    }
    note_moves(w);
    for (uint32_t i = 0; i < core_n_sequences(w->core) && !w->failed; i++) {
        struct core_sequence s = core_sequence_at(w->core, i);
        struct world_request *r = check__find(w, s.request);
        note(w, r, &s);
        changed |= r->running != r->was_running;
        if (!r->running) continue;
        const struct world_request *x = last[r->replica];
        if (x && before(r->admitted, r, x->admitted, x))
            world__fail(w, "request %" PRIu64 " runs behind %" PRIu64 ", but is more urgent", r->id,
                        x->id);
        last[r->replica] = r;
    }
    for (uint32_t i = 0; i < w->n_requests && changed && !w->failed; i++) {
        const struct world_request *r = &w->requests[i];
        if (r->running && !r->was_running) check_admitted(w, r);
        if (!r->running && r->was_running) check_preempted(w, r);
        if (!r->running && r->was_running && r->embed) check_undone(w, r);
    }
    for (uint32_t i = 0; i < w->cfg.n_replicas && !w->failed; i++)
        if (w->replicas[i].steps_now) check_waiting(w, i);
}

void order__new_generation(struct world *w, uint32_t replica)
{
    struct world_replica *x = &w->replicas[replica];
    memset(x->pages, 0, sizeof x->pages);
    memset(x->windowed, 0, sizeof x->windowed);
    x->first = (struct world_first){0};
    x->flight_first = x->flight_next;
    x->idle_ns = 0;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        struct world_request *r = &w->requests[i];
        r->told[replica] = false;
        if (r->replica != replica) continue;
        if (r->running) r->queued_ns = w->now_ns;
        r->issued = 0;
        r->last_step = 0;
        r->running = false;
    }
}
