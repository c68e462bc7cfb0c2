/* What an admin orders: that a worker leaves (drain), or that replicas are planned anew
 * (rebalance).
 *
 * Either way a replica's generation ends in order. First the replica drains: it takes no more
 * requests, and those that it has may end there. It is over when none is left, when their time is
 * up, or at once where waiting has no use:
 *  - a worker leaves, and spares can take the place of all that leave;
 *  - the replica is planned anew, and no other takes requests, so that all wait for this one.
 * Then what still runs is replayed on another replica, or waits for one, like what a lost
 * generation leaves; but nobody is to blame. With `replica_wait: 0` nothing may wait, so that the
 * replica is over at once only where another one takes requests.
 *
 * A worker that was ordered to leave is not planned with. As soon as it has no stage it is told to
 * leave, again each second until it is gone. The order is the process's: when a worker of that name
 * comes again, it is a worker like others. Replicas are planned anew one after the other; one that
 * does not get up again ends the order, since no other is to be taken down beside it. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TELL_AGAIN_NS (1 * NS_PER_S)
#define REPLAN_WAIT_NS (60 * NS_PER_S) /* for workers of a replica that is planned anew */
#define REPLAN_TRIES 3u                /* generations of it that do not get up */

static void answer(struct core *c, enum status status, const char *text)
{
    struct action *a = core__act(c, ACT_ANSWER);
    a->answer.status = status;
    a->answer.text = text;
}

static uint32_t live_in(const struct core *c, const struct replica *r)
{
    return c->loads[r->id].live;
}

/* ---- replicas that drain ---- */

static uint32_t n_leaving(struct core *c, const struct replica *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_stages; i++) n += replica__at(c, r, i)->leaves;
    return n;
}

/* Whether it has no use to wait for the requests that a draining replica has. */
static bool ends_at_once(struct core *c, const struct replica *r)
{
    bool others = core__ready(c);
    uint32_t leaving = n_leaving(c, r);
    if (!others && c->cfg.replica_wait_ns == 0) return false;
    return leaving ? planner__n_spares(c, r) >= leaving : !others;
}

static void go_on(struct core *c, struct replica *r)
{
    if (r->state != REPLICA_DRAINING) return;
    uint32_t live = live_in(c, r);
    if (live && c->now_ns < r->drained_ns && !ends_at_once(c, r)) return;
    const char *left =
        live ? core__text(c, "; %" PRIu32 " request%s replayed", live, live > 1 ? "s are" : " is")
             : "";
    replica__end(c, r, core__text(c, "%.300s%s", r->why, left));
}

/* ---- drain ---- */

static void tell_to_leave(struct core *c, struct worker *w)
{
    if (w->told_ns && c->now_ns - w->told_ns < TELL_AGAIN_NS) return;
    if (!w->told_ns) core__note(c, "worker %s is told to leave: it is drained", w->hello.name);
    w->told_ns = c->now_ns;
    struct msg_to_worker *m = replica__to_worker(c, w->instance, TO_LEAVE);
    (void)snprintf(m->text, sizeof m->text, "it is drained");
}

static void drain(struct core *c, struct worker *w, uint64_t limit_ns)
{
    struct replica *r = w->replica;
    if (!w->leaves) c->leaving[c->n_leaving++ % c->cfg.max_workers] = w->instance;
    w->leaves = true;
    if (!r) return;
    const char *why = core__text(c, "worker %s is to leave", w->hello.name);
    if (r->state < REPLICA_READY)
        replica__end(c, r, why);
    else
        replica__drain(c, r, limit_ns, why);
}

bool order__leaves(const struct core *c, struct instance instance)
{
    for (uint32_t i = 0; i < c->cfg.max_workers && i < c->n_leaving; i++)
        if (instance_eq(c->leaving[i], instance)) return true;
    return false;
}

void order__drain(struct core *c, const char *name, uint64_t limit_ns)
{
    struct worker *last = NULL;
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        struct worker *w = &c->workers[i];
        if (!w->used || strcmp(w->hello.name, name) != 0) continue;
        drain(c, w, limit_ns);
        last = w;
    }
    if (!last) {
        answer(c, STATUS_NOT_FOUND, core__text(c, "there is no worker '%s'", name));
        return;
    }
    order__tick(c);
    planner__begin(c);
    const struct replica *r = last->replica;
    uint32_t live = r ? live_in(c, r) : 0;
    answer(c, STATUS_OK,
           r ? core__text(c,
                          "worker %s leaves when the %" PRIu32
                          " request%s of replica %s %s ended, in "
                          "%" PRIu64 " s at the latest",
                          name, live, live == 1 ? "" : "s", r->name, live == 1 ? "has" : "have",
                          (r->drained_ns - c->now_ns + NS_PER_S - 1) / NS_PER_S)
             : core__text(c, "worker %s is told to leave", name));
}

/* ---- rebalance ---- */

/* Whether a replica that is planned anew does not get up. */
static bool stays_down(const struct core *c, struct replica *r)
{
    if (r->state != REPLICA_WAITING) {
        r->replan_since_ns = c->now_ns;
        return false;
    }
    return r->replan_tries >= REPLAN_TRIES || c->now_ns - r->replan_since_ns >= REPLAN_WAIT_NS;
}

static void replan_no_further(struct core *c, const struct replica *r)
{
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) c->replicas[i].replans = false;
    core__note(c, "%sit does not get up again (%.300s): nothing more is planned anew",
               core__of_replica(c, r), r->why);
}

/* One after the other: the next one when the one before is ready again. */
static void replan_next(struct core *c)
{
    struct replica *next = NULL;
    bool down = false;
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        struct replica *r = &c->replicas[i];
        if (!r->replans) continue;
        if (stays_down(c, r)) {
            replan_no_further(c, r);
            return;
        }
        down |= r->state != REPLICA_READY;
        if (!next) next = r;
    }
    if (down) return;
    if (!next) return;
    if (!planner__gains(c, next)) {
        next->replans = false;
        core__note(c, "%snothing is gained by planning it anew", core__of_replica(c, next));
        return;
    }
    replica__drain(c, next, next->replan_limit_ns, "it is planned anew, as ordered");
    go_on(c, next);
}

void order__rebalance(struct core *c, const char *name, uint64_t limit_ns)
{
    uint32_t n = 0, n_gain = 0;
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        struct replica *r = &c->replicas[i];
        if (name[0] && strcmp(r->name, name) != 0) continue;
        n++;
        if (r->state < REPLICA_READY) continue; /* it is planned anyway */
        if (r->state == REPLICA_READY && !planner__gains(c, r)) continue;
        n_gain++;
        r->replans = true;
        r->replan_limit_ns = limit_ns;
        r->replan_since_ns = c->now_ns;
        r->replan_tries = 0;
    }
    if (n == 0) {
        answer(c, STATUS_NOT_FOUND, core__text(c, "there is no replica '%s'", name));
        return;
    }
    order__tick(c);
    planner__begin(c);
    answer(c, STATUS_OK,
           n_gain ? core__text(c, "%" PRIu32 " replica%s planned anew%s", n_gain,
                               n_gain == 1 ? " is" : "s are",
                               n_gain > 1 ? ", one after the other" : "")
                  : "nothing is gained by planning anew: all stays as it is");
}

void order__tick(struct core *c)
{
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) go_on(c, &c->replicas[i]);
    replan_next(c);
    for (uint32_t i = 0; i < c->cfg.max_workers; i++) {
        struct worker *w = &c->workers[i];
        if (w->used && w->leaves && !w->replica) tell_to_leave(c, w);
    }
}
