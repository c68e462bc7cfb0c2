/* What breaks, and what is mended: each world draws the kinds of fault that it has. */
#include "coordinator/sim/world.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FIRST_NS (300 * NS_PER_MS)
#define MEAN_NS (600 * NS_PER_MS)
#define SHORT_ROW_NS 50000u
#define STRANGERS (LIMIT_WORKERS + 6u) /* more than the core can know */

static uint32_t bit(enum fault f)
{
    return (uint32_t)1 << f;
}

static bool one_in(struct world *w, uint64_t n)
{
    return rng_below(&w->rng, n) == 0;
}

/* Faults that keep their worker broken until it is mended: a spare must take its place. */
static const enum fault lasting[] = {FAULT_HANG, FAULT_LOAD, FAULT_UNREACHABLE, FAULT_DAMAGE};
#define LASTING (sizeof lasting / sizeof lasting[0])

static bool lasts(enum fault f)
{
    for (size_t i = 0; i < LASTING; i++)
        if (lasting[i] == f) return true;
    return false;
}

static void cripple(struct world *w, uint32_t who, enum fault f)
{
    struct world_worker *s = &w->workers[who];
    s->hung |= f == FAULT_HANG;
    s->unloadable |= f == FAULT_LOAD;
    s->unreachable |= f == FAULT_UNREACHABLE;
    s->damaged |= f == FAULT_DAMAGE;
}

/* Whatever an admin orders, every request that may wait is answered. */
static void plan_orders(struct world *w)
{
    static const uint32_t orders[] = {1u << FAULT_DRAIN, 1u << FAULT_REBALANCE,
                                      1u << FAULT_DRAIN | 1u << FAULT_REBALANCE};
    w->faults |= orders[rng_below(&w->rng, 3)];
    w->cfg.replica_wait_ns = 30 * NS_PER_S;
}

/* Faultless worlds: nothing may be lost in them. What they have is what must not be taken for a
 * fault: a coordinator that does not run for a while, forged messages, loads that take minutes, a
 * slow machine. */
static void plan_faultless(struct world *w)
{
    w->faultless = true;
    w->faults = bit(FAULT_STALL) | bit(FAULT_FORGE);
    w->slow = one_in(w, 3);
    w->long_load = !w->slow && one_in(w, 8);
    if (!w->slow && !w->long_load && one_in(w, 2)) plan_orders(w);
    if (w->slow) {
        w->faults = bit(FAULT_FORGE);
        w->faults_end_ns = 20 * NS_PER_S;
        w->n_requests = 8;
        w->workers[rng_below(&w->rng, w->cfg.n_stages)].slow = true;
        if (w->cfg.replica_wait_ns == 0) w->cfg.replica_wait_ns = 30 * NS_PER_S;
    }
}

static void name_all(struct world *w)
{
    for (uint32_t i = 0; i < WORLD_WORKERS; i++)
        (void)snprintf(w->workers[i].name, sizeof w->workers[i].name, "w%" PRIu32, i);
}

static void plan_faults(struct world *w)
{
    w->faults = bit(FAULT_KILL) | bit(FAULT_STOP) | bit(FAULT_CUT) | bit(FAULT_CUT_LINK) |
                bit(FAULT_DEAF) | bit(FAULT_STALL);
    for (enum fault f = FAULT_DEAF_UP; f < N_FAULTS; f++)
        if (f != FAULT_STALL && one_in(w, 3)) w->faults |= bit(f);
    if (w->n_workers > w->cfg.n_stages && one_in(w, 8)) {
        w->cripple = (int)rng_below(&w->rng, w->n_workers);
        name_all(w); /* a name is what is blamed: it must be one worker's */
        cripple(w, (uint32_t)w->cripple, lasting[rng_below(&w->rng, LASTING)]);
    }
    if (one_in(w, 16)) { /* compute threads hang, and nothing else breaks: check_hung() */
        w->faults = bit(FAULT_HANG);
        w->row_ns = SHORT_ROW_NS;
        w->faults_end_ns = 12 * NS_PER_S; /* it must be noticed before it is mended */
    }
    if (one_in(w, 8))
        for (uint32_t i = 0; i < STRANGERS; i++) (void)world__schedule(w, i, HAPPEN_STRANGER);
}

void fault__plan(struct world *w)
{
    w->cripple = -1;
    name_all(w);
    if (w->n_workers > 1 && one_in(w, 6)) /* two of one name */
        memcpy(w->workers[1].name, w->workers[0].name, sizeof w->workers[1].name);
    if (one_in(w, 6))
        plan_faultless(w);
    else
        plan_faults(w);
    (void)world__schedule(w, FIRST_NS + rng_below(&w->rng, MEAN_NS), HAPPEN_FAULT);
    (void)world__schedule(w, w->faults_end_ns, HAPPEN_REPAIR);
}

/* ---- one fault ---- */

void fault__restart_later(struct world *w, uint32_t who)
{
    world__schedule(w, NS_PER_MS * (50 + rng_below(&w->rng, 3000)), HAPPEN_RESTART)->who = who;
}

static void stop(struct world *w, uint32_t who)
{
    struct world_worker *s = &w->workers[who];
    if (s->stopped) return;
    s->stopped = true;
    s->continue_ns = w->now_ns + NS_PER_MS * (10 + rng_below(&w->rng, 4000));
    struct occurrence *o = world__schedule(w, s->continue_ns - w->now_ns, HAPPEN_CONTINUE);
    o->who = who;
    o->life = s->life;
}

/* A fault of one worker, which is alive. */
static void break_worker(struct world *w, uint32_t who, enum fault f)
{
    struct world_worker *s = &w->workers[who];
    uint64_t until = w->now_ns + NS_PER_MS * (50 + rng_below(&w->rng, 1300));
    switch (f) {
    case FAULT_KILL:
        stage__kill(w, who);
        fault__restart_later(w, who);
        break;
    case FAULT_GOODBYE:
        if (s->stopped) break;
        stage__goodbye(w, who);
        fault__restart_later(w, who);
        break;
    case FAULT_STOP: stop(w, who); break;
    case FAULT_CUT: s->cut = true; break;
    case FAULT_DEAF: s->deaf_up_ns = s->deaf_down_ns = until; break;
    case FAULT_DEAF_UP: s->deaf_up_ns = until; break;
    case FAULT_DEAF_DOWN: s->deaf_down_ns = until; break;
    case FAULT_BLOCK: s->last_out_ns = until; break;
    case FAULT_BABBLE: stage__babble(w, who); break;
    default: break;
    }
}

/* The next result with a token that a last stage sends will lie. */
static void spoil(struct world *w, enum lie lie)
{
    for (uint32_t i = 0; i < w->n_workers; i++)
        if (w->workers[i].alive && w->workers[i].downstream == -1) w->workers[i].next_lie = lie;
}

static void break_world(struct world *w, enum fault f)
{
    uint64_t until = w->now_ns + NS_PER_MS * (50 + rng_below(&w->rng, 2500));
    switch (f) {
    case FAULT_CUT_LINK: world__some_replica(w)->link_cut = true; break;
    case FAULT_STALL:
        if (w->stalled_until_ns <= w->now_ns) w->stalled_until_ns = until;
        break;
    case FAULT_BLOCK:
        world__some_replica(w)->last_link_ns =
            w->now_ns + NS_PER_MS * (50 + rng_below(&w->rng, 1000));
        break;
    case FAULT_LIE: spoil(w, (enum lie)(1 + rng_below(&w->rng, N_LIES - 1))); break;
    case FAULT_ERROR: spoil(w, LIE_ERROR); break;
    case FAULT_FORGE: (void)world__schedule(w, 0, HAPPEN_FORGED); break;
    case FAULT_NEW_CORE: world__new_core(w); break;
    case FAULT_DRAIN: admin__drain(w); break;
    case FAULT_REBALANCE: admin__rebalance(w); break;
    default: break;
    }
}

/* One of the kinds that the world has; every third is an order, if it has these. */
static enum fault draw_fault(struct world *w)
{
    const uint32_t orders = bit(FAULT_DRAIN) | bit(FAULT_REBALANCE);
    uint32_t kinds = w->faults;
    if ((kinds & orders) && one_in(w, 3)) kinds &= orders;
    for (;;) {
        enum fault f = (enum fault)rng_below(&w->rng, N_FAULTS);
        if (kinds & bit(f)) return f;
    }
}

void fault__break(struct world *w)
{
    uint32_t who = (uint32_t)rng_below(&w->rng, w->n_workers);
    enum fault f = draw_fault(w);
    w->report->faults++;
    const struct world_worker *x = &w->workers[who];
    if (f == FAULT_HANG && x->busy && w->replicas[x->gate.epoch.replica].was_ready)
        w->hung_ns = w->now_ns;
    if (lasts(f) && (f != FAULT_DAMAGE || w->ever_ready))
        cripple(w, who, f);
    else if (w->workers[who].alive && !(f == FAULT_BLOCK && one_in(w, 2)))
        break_worker(w, who, f);
    break_world(w, f);
    uint64_t in = MEAN_NS / 2 + rng_below(&w->rng, MEAN_NS);
    if (w->now_ns + in < w->faults_end_ns) (void)world__schedule(w, in, HAPPEN_FAULT);
}

/* A worker that is broken for good is replaced by a machine that is not. */
void fault__repair(struct world *w)
{
    for (uint32_t i = 0; i < w->n_workers; i++) {
        struct world_worker *s = &w->workers[i];
        bool broken = s->hung || s->unloadable || s->unreachable || s->damaged;
        s->slow = false;
        s->next_lie = LIE_NONE;
        if (!broken || (int)i == w->cripple) continue;
        s->hung = s->unloadable = s->unreachable = s->damaged = false;
        if (!s->alive) continue;
        stage__kill(w, i);
        fault__restart_later(w, i);
    }
}

/* ---- peers that are no workers ---- */

static struct instance random_instance(struct world *w)
{
    return (struct instance){rng_u64(&w->rng), rng_u64(&w->rng)};
}

/* One of more than there is room for, and its name comes before all others. */
void fault__stranger(struct world *w)
{
    struct msg_from_worker m = {
        .version = PROTO_VERSION, .type = FROM_HELLO, .instance = random_instance(w)};
    struct event e = {.type = EV_FROM_WORKER, .from = {&m, "10.0.9.9"}};
    (void)snprintf(m.hello.name, sizeof m.hello.name, "a%" PRIu64, rng_below(&w->rng, 1000));
    world__core(w, &e);
}

/* 3. Fencing: a message of another generation, or of somebody who is in none, changes nothing. */
void fault__forge(struct world *w)
{
    static const enum from_worker types[] = {FROM_LOAD_PROGRESS, FROM_READY, FROM_LINKED,
                                             FROM_FAULT, FROM_HEARTBEAT};
    const struct world_worker *x = &w->workers[rng_below(&w->rng, w->n_workers)];
    struct msg_status s;
    uint32_t id = (uint32_t)(world__some_replica(w) - w->replicas);
    core_status(w->core, &s);
    bool ready = s.ready;
    const struct msg_replica_status before = s.replicas[id], *after = &s.replicas[id];
    struct epoch now = {w->cfg.incarnation, id, before.generation}, other = now;
    if (w->cfg.n_replicas > 1 && one_in(w, 3)) /* another replica's */
        other.generation = s.replicas[(id + 1) % w->cfg.n_replicas].generation;
    else if (one_in(w, 2))
        other.generation += one_in(w, 2) ? 1 : UINT32_MAX;
    else
        other.incarnation++;
    bool stranger = one_in(w, 2);
    struct msg_from_worker m = {.version = PROTO_VERSION,
                                .type = types[rng_below(&w->rng, 5)],
                                .instance = stranger ? random_instance(w) : x->instance,
                                .has_epoch = true,
                                .epoch = stranger ? now : other,
                                .endpoint = "tcp://w9:1",
                                .heartbeat = {.step_received = 1u << 30, .step_done = 1u << 30}};
    struct event e = {.type = EV_FROM_WORKER, .from = {&m, "10.0.9.9"}};
    struct event link = {.type = one_in(w, 2) ? EV_LINK_LOST : EV_LINK_UP, .link = {other}};
    if (!stranger && !x->alive) return;
    uint32_t flight = core_in_flight(w->core, id), live = core_n_sequences(w->core);
    world__core(w, &e);
    world__core(w, &link);
    core_status(w->core, &s);
    if (before.generation != after->generation || ready != s.ready ||
        strcmp(before.state, after->state) != 0 || flight != core_in_flight(w->core, id) ||
        live != core_n_sequences(w->core))
        world__fail(w, "a message of another generation changes state '%s' to '%s'", before.state,
                    after->state);
}

/* ---- results that are not what was asked for ---- */

uint64_t fault__lie(struct world *w, enum lie *lie, struct msg_result *m,
                    struct msg_run_result *runs)
{
    static const int32_t many[LIMIT_STEP_LOGITS], foreign = WORLD_VOCAB;
    static const float numbers[WORLD_WIDTH];
    if (m->n_runs == 0) {
        *lie = LIE_NONE;
        return 0;
    }
    struct msg_run_result *x = &runs[rng_below(&w->rng, m->n_runs)];
    uint64_t request = x->request;
    bool embeds = x->n_embedding > 0;
    if (*lie == LIE_DEAD || *lie == LIE_MORE_TOKENS || *lie == LIE_TOKEN || *lie == LIE_ERROR)
        x->n_embedding = 0; /* beside tokens it would be no message at all */
    switch (*lie) {
    case LIE_DEAD:
        x->dead = true;
        x->tokens = many;
        x->n_tokens = 1;
        break;
    case LIE_LATE_POSITION: x->first_pos++; break;
    case LIE_EARLY_POSITION: x->first_pos--; break;
    case LIE_ATTEMPT: x->attempt++; break;
    case LIE_REQUEST: x->request = 1 + rng_below(&w->rng, w->n_requests); break;
    case LIE_MORE_TOKENS:
        x->tokens = many;
        x->n_tokens = w->cfg.logits_max + 1;
        x->dead = false;
        break;
    case LIE_TOKEN:
        x->tokens = &foreign;
        x->n_tokens = 1;
        x->dead = false;
        break;
    case LIE_FEWER: m->n_runs--; break;
    case LIE_EMBEDDING: /* one that is too short, or that nobody wants */
        x->embedding = numbers;
        x->n_embedding = WORLD_WIDTH - embeds;
        x->n_tokens = 0;
        x->dead = false;
        break;
    case LIE_ERROR:
        x->error = "out of samplers";
        x->n_tokens = 0;
        x->dead = false;
        break;
    default: break;
    }
    if (*lie == LIE_REQUEST && x->request == request) *lie = LIE_NONE;
    return request;
}
