/* What does not move: silent workers, overdue Steps, and generations that do not get up.
 *
 * A worker that is slow is not lost. Its heartbeats say which Step has arrived, which is done, and
 * carry a counter that its compute thread moves with each layer and with each idle turn. A counter
 * that moves while a Step is computed means patience, up to a hard cap; one that stands still means
 * a hung compute thread; a worker that turns idly and still lacks a Step that the one before it has
 * passed on means a broken link. */
#include "coordinator/core/core_state.h"

#include "common/base/clock.h"

#include <inttypes.h>

#define LINK_MOST_NS (5 * NS_PER_S)    /* a link that is not up by then will not be */
#define HUNG_NS (10 * NS_PER_S)        /* without a move, where no Step's time is known yet */
#define LOAD_STILL_NS (120 * NS_PER_S) /* loading without a sign of progress */
#define ASK_AGAIN_NS (1 * NS_PER_S)    /* an Assign that nobody speaks of is sent again */
#define OVERDUE_FACTOR 5u              /* times the predicted time of a Step */
#define IDLE_FACTOR 10u /* times the configured limit: a Step that does not arrive, at the most */
/* The most that a Step may take while it moves: times the configured limit, and its own. */
#define SLOW_FACTOR 30u
#define SLOW_LIMITS 6u

/* ---- what is heard ---- */

uint64_t watch__begun_ns(const struct replica *r, const struct in_flight *f)
{
    return f->issued_ns > r->moved_ns ? f->issued_ns : r->moved_ns;
}

static uint32_t size_of(uint32_t rows)
{
    uint32_t size = 0;
    while (size + 1 < STEP_SIZES && rows >> size > 1) size++;
    return size;
}

void watch__learn(struct replica *r, uint64_t took_ns, uint32_t rows)
{
    uint64_t *known = &r->took_ns[size_of(rows)];
    if (took_ns > *known)
        *known = took_ns;
    else
        *known -= (*known - took_ns) / 16; /* one slow Step is forgotten in time */
}

/* What a Step of so many rows may take: what such Steps took, or larger ones, or in proportion the
 * largest that are known. */
static uint64_t predict(const struct replica *r, uint32_t rows)
{
    uint32_t size = size_of(rows);
    for (uint32_t i = size; i < STEP_SIZES; i++)
        if (r->took_ns[i]) return r->took_ns[i];
    for (uint32_t i = size; i-- > 0;)
        if (r->took_ns[i]) return r->took_ns[i] << (size - i);
    return 0;
}

/* The share of the time in which a thread of the worker was ready to run and had no CPU. All its
 * threads are in the sum, also those that hardly run. */
static void note_waiting(const struct core *c, struct worker *w, uint64_t waited_ns)
{
    uint64_t passed_ns = c->now_ns - w->beat_ns;
    if (waited_ns == w->waited_ns && passed_ns < NS_PER_S) return; /* it is not read each time */
    uint32_t threads = w->hello.threads ? w->hello.threads : 1;
    if (w->beat_ns && waited_ns >= w->waited_ns && passed_ns)
        w->waiting = (double)(waited_ns - w->waited_ns) / (double)passed_ns / threads;
    if (w->waiting > 1.0) w->waiting = 1.0;
    w->waited_ns = waited_ns;
    w->beat_ns = c->now_ns;
}

void watch__heartbeat(struct core *c, struct worker *w, const struct msg_from_worker *m)
{
    const struct msg_heartbeat *h = &m->heartbeat;
    if (h->moves != w->moves) { /* of whatever epoch: the thread is the same */
        w->moves = h->moves;
        w->moved_ns = c->now_ns;
    }
    note_waiting(c, w, h->cpu_wait_ns);
    w->memory = m->memory;
    if (!m->has_epoch || !epoch_eq(m->epoch, replica__epoch(c))) return;
    if (h->step_done != w->heartbeat.step_done) w->passed_ns = c->now_ns;
    w->heartbeat = *h;
    w->knows = true;
}

/* ---- overdue Steps ---- */

static void lose_to(struct core *c, struct worker *w, const char *why)
{
    fleet__blame(c, w, why);
    replica__lose(c, true, why);
}

/* A Step that is on its way, and a thread that waits for one, compute nothing: what Steps of its
 * size took does not excuse them for longer than this. */
static uint64_t idle_limit(const struct core *c, uint64_t limit_ns)
{
    uint64_t most_ns = IDLE_FACTOR * c->cfg.step_timeout_ns;
    return limit_ns < most_ns ? limit_ns : most_ns;
}

/* The oldest Step is later than `limit`: the first stage that did not finish it is hung, or slow,
 * or the link to it is broken. `since_ns`: when the stage before was heard to have passed it on. */
static void look_at_stage(struct core *c, uint32_t stage, const struct in_flight *f,
                          uint64_t since_ns, uint64_t limit_ns)
{
    struct worker *w = replica__at(c, stage);
    const char *name = w->hello.name;
    uint64_t number = f->number, age_ns = c->now_ns - watch__begun_ns(&c->replica, f);
    uint64_t idle_ns = idle_limit(c, limit_ns);
    bool arrived = w->heartbeat.step_received >= number;
    if (c->now_ns - w->moved_ns >= (arrived ? limit_ns : idle_ns)) {
        lose_to(c, w,
                core__text(c, "Step %" PRIu64 " is overdue at worker %s: its compute thread hangs",
                           number, name));
    } else if (arrived) {
        if (age_ns < SLOW_FACTOR * c->cfg.step_timeout_ns || age_ns < SLOW_LIMITS * limit_ns)
            return;
        lose_to(c, w,
                core__text(c,
                           "Step %" PRIu64
                           " is overdue at worker %s: it still computes after %" PRIu64 " s",
                           number, name, age_ns / NS_PER_S));
    } else if (c->now_ns - since_ns >= idle_ns) {
        const char *from = stage ? replica__at(c, stage - 1)->hello.name : "the coordinator";
        replica__link_failed(
            c, stage,
            core__text(c, "Step %" PRIu64 " is overdue: the link from %s to worker %s", number,
                       from, name));
    }
}

static void check_overdue(struct core *c)
{
    struct replica *r = &c->replica;
    if (r->n_flight == 0) return;
    const struct in_flight *f = &r->flight[0];
    uint64_t begun_ns = watch__begun_ns(r, f), since_ns = begun_ns;
    uint64_t limit_ns = predict(r, f->work.rows) * OVERDUE_FACTOR;
    if (r->state == REPLICA_PROBING) limit_ns = HUNG_NS;
    if (limit_ns < c->cfg.step_timeout_ns) limit_ns = c->cfg.step_timeout_ns;
    uint64_t idle_ns = idle_limit(c, limit_ns);
    if (c->now_ns < begun_ns + idle_ns) return;
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) {
        const struct worker *w = replica__at(c, i);
        if (w->heartbeat.step_done < f->number) {
            look_at_stage(c, i, f, since_ns, limit_ns);
            return;
        }
        if (w->passed_ns > since_ns) since_ns = w->passed_ns;
    }
    if (c->now_ns - since_ns >= idle_ns)
        replica__link_failed(
            c, c->cfg.n_stages,
            core__text(c, "Step %" PRIu64 " is overdue: the link from worker %s to the coordinator",
                       f->number, replica__at(c, c->cfg.n_stages - 1)->hello.name));
}

/* ---- beginnings ---- */

/* False: the worker does not load, and the generation is over. */
static bool check_load(struct core *c, uint32_t stage)
{
    struct worker *w = replica__at(c, stage);
    if (w->ready) return true;
    if (!w->knows && c->now_ns - c->replica.since_ns >= HUNG_NS &&
        c->now_ns - w->moved_ns >= HUNG_NS) {
        lose_to(c, w,
                core__text(c, "worker %s does not take its layers: its compute thread hangs",
                           w->hello.name));
        return false;
    }
    if (c->now_ns - w->loaded_ns < LOAD_STILL_NS) return true;
    lose_to(c, w, core__text(c, "worker %s does not load its layers", w->hello.name));
    return false;
}

static void check_links(struct core *c)
{
    struct replica *r = &c->replica;
    if (c->now_ns - r->since_ns < LINK_MOST_NS) return;
    if (!r->link_up) {
        replica__link_failed(c, 0,
                             core__text(c, "the coordinator does not reach worker %s",
                                        replica__at(c, 0)->hello.name));
        return;
    }
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) {
        const char *name = replica__at(c, i)->hello.name;
        if (replica__at(c, i)->linked) continue;
        if (i + 1 < c->cfg.n_stages)
            replica__link_failed(c, i + 1,
                                 core__text(c, "worker %s does not reach worker %s", name,
                                            replica__at(c, i + 1)->hello.name));
        else
            replica__link_failed(c, i + 1,
                                 core__text(c, "worker %s does not reach the coordinator", name));
        return;
    }
}

/* A generation that does not get up: what was lost on the way is sent again, what does not move is
 * given up. */
static void check_beginning(struct core *c)
{
    struct replica *r = &c->replica;
    if (r->state != REPLICA_LOADING && r->state != REPLICA_LINKING) return;
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) {
        struct worker *w = replica__at(c, i);
        if (!w->knows && c->now_ns - w->assigned_ns >= ASK_AGAIN_NS) replica__assign(c, i);
    }
    for (uint32_t i = 0; i < c->cfg.n_stages && r->state == REPLICA_LOADING; i++)
        if (!check_load(c, i)) return;
    if (r->state == REPLICA_LINKING) check_links(c);
}

/* ---- silence ---- */

static void check_silence(struct core *c, struct worker *w)
{
    if (!w->used || c->now_ns < w->heard_ns + c->cfg.worker_timeout_ns) return;
    bool serves = replica__stage_of(c, w) != NO_WORKER;
    const char *why = core__text(c, "worker %s lost: silent for %" PRIu64 " ms", w->hello.name,
                                 (c->now_ns - w->heard_ns) / NS_PER_MS);
    if (!fleet__settle_doubt(c, w, why) && serves) fleet__blame(c, w, why);
    if (serves)
        replica__lose(c, true, why);
    else
        core__note_loss(c, "%s", why);
    w->used = false;
}

/* Time that the shell itself lost counts for nobody; what was heard in this very turn stays now. */
static void forgive(const struct core *c, uint64_t *since_ns, uint64_t lost_ns)
{
    *since_ns = *since_ns + lost_ns < c->now_ns ? *since_ns + lost_ns : c->now_ns;
}

static void forgive_all(struct core *c, uint64_t lost_ns)
{
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) {
        struct worker *w = &c->workers[i];
        forgive(c, &w->heard_ns, lost_ns);
        forgive(c, &w->moved_ns, lost_ns);
        forgive(c, &w->passed_ns, lost_ns);
        forgive(c, &w->loaded_ns, lost_ns);
    }
    for (uint32_t i = 0; i < c->replica.n_flight; i++)
        forgive(c, &c->replica.flight[i].issued_ns, lost_ns);
    forgive(c, &c->replica.moved_ns, lost_ns);
    forgive(c, &c->replica.since_ns, lost_ns);
}

void watch__tick(struct core *c, uint64_t lost_ns)
{
    if (lost_ns) forgive_all(c, lost_ns);
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) check_silence(c, &c->workers[i]);
    check_overdue(c);
    check_beginning(c);
    fleet__served(c);
}
