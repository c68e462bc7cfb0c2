/* The world: a heap of what is to happen, the network's delays, and the core in the middle. */
#include "coordinator/sim/world.h"

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_NS (50 * NS_PER_MS)
#define SETTLE_NS (400 * NS_PER_S) /* at the most: a world ends when all in it has */
#define QUIET_NS (1 * NS_PER_S)    /* after the last fault, before that is looked for */
#define TURN_NS (1 * NS_PER_MS)
#define STALL_NS (200 * NS_PER_MS) /* a turn later than this did not run for that long */
#define WINDOW_SEED 0x77696e646f77u
#define TURN_SEED 0x7475726eu

void world__fail(struct world *w, const char *format, ...)
{
    if (w->failed) return;
    w->failed = true;
    char text[400];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)snprintf(w->report->failure, sizeof w->report->failure, "at %" PRIu64 " us: %s",
                   w->now_ns / 1000, text);
}

bool world__faulty(const struct world *w)
{
    return !w->faultless && w->now_ns < w->faults_end_ns;
}

/* 0.1 to 2 ms, now and then 50 times that. */
uint64_t world__latency(struct world *w)
{
    uint64_t ns = 100000 + rng_below(&w->rng, 1900000);
    return rng_below(&w->rng, 200) == 0 && world__faulty(w) ? ns * 50 : ns;
}

/* ---- the heap ---- */

static bool earlier(const struct occurrence *a, const struct occurrence *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

struct occurrence *world__schedule(struct world *w, uint64_t in_ns, enum happening what)
{
    if (w->n_heap == w->cap_heap) {
        w->cap_heap = w->cap_heap ? 2 * w->cap_heap : 256;
        w->heap = mem_realloc(w->heap, w->cap_heap * sizeof *w->heap);
    }
    struct occurrence o = {
        .at_ns = w->now_ns + in_ns, .order = w->order++, .what = what, .core_life = w->core_life};
    uint32_t i = w->n_heap++;
    while (i && earlier(&o, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = o;
    return &w->heap[i]; /* valid until the next is scheduled */
}

static struct occurrence next(struct world *w)
{
    struct occurrence top = w->heap[0], last = w->heap[--w->n_heap];
    uint32_t i = 0;
    for (uint32_t k; (k = 2 * i + 1) < w->n_heap; i = k) {
        if (k + 1 < w->n_heap && earlier(&w->heap[k + 1], &w->heap[k])) k++;
        if (!earlier(&w->heap[k], &last)) break;
        w->heap[i] = w->heap[k];
    }
    w->heap[i] = last;
    return top;
}

static void release(struct occurrence *o)
{
    mem_free(o->from);
    mem_free(o->to);
    buf_close(&o->bytes);
}

/* ---- the core's actions ---- */

static uint32_t worker_of(const struct world *w, struct instance instance)
{
    for (uint32_t i = 0; i < w->n_workers; i++)
        if (instance_eq(w->workers[i].instance, instance)) return i;
    return UINT32_MAX;
}

static void send_control(struct world *w, const struct action *a)
{
    uint32_t who = worker_of(w, a->to_worker.instance);
    if (who == UINT32_MAX || !w->workers[who].alive) return;
    if (w->now_ns < w->workers[who].deaf_down_ns) return;
    struct occurrence *o = world__schedule(w, world__latency(w), HAPPEN_TO_WORKER);
    o->who = who;
    o->life = w->workers[who].life;
    o->to = mem_alloc(sizeof *o->to);
    *o->to = *a->to_worker.msg;
}

static void open_link(struct world *w, const struct action *a)
{
    uint32_t who = (uint32_t)atoi(a->link.endpoint + strlen("tcp://w"));
    struct world_replica *x = &w->replicas[a->link.epoch.replica];
    x->link_open = w->workers[who].alive;
    x->link_worker = who;
    x->link_epoch = a->link.epoch;
    x->link_cut = false;
    if (w->workers[who].unreachable) return; /* neither up nor lost */
    struct occurrence *o = world__schedule(w, world__latency(w), HAPPEN_LINK);
    o->epoch = a->link.epoch;
    o->up = x->link_open;
}

static void send_step(struct world *w, const struct msg_step *m)
{
    struct world_replica *x = &w->replicas[m->epoch.replica];
    if (!x->link_open || x->link_cut) return;
    if (world__faulty(w) && rng_below(&w->rng, 400) == 0) {
        w->report->faults++;
        return;
    }
    uint64_t at = w->now_ns + world__latency(w);
    if (at <= x->last_link_ns) at = x->last_link_ns + 1;
    x->last_link_ns = at;
    struct occurrence *o = world__schedule(w, at - w->now_ns, HAPPEN_STEP);
    o->who = x->link_worker;
    o->life = w->workers[x->link_worker].life;
    wire_put_step(m, &o->bytes);
}

static uint64_t fold_bytes(uint64_t digest, const struct buf *b)
{
    return check__mix(digest, hash_bytes(b->data, b->len, 0));
}

/* All that an action says, but for the texts of notes and ends. */
static uint64_t fold(struct world *w, uint64_t digest, const struct action *a)
{
    digest = check__mix(digest, (uint64_t)a->type);
    switch (a->type) {
    case ACT_TO_WORKER:
        wire_put_to_worker(a->to_worker.msg, &w->folded);
        digest = check__mix(digest, a->to_worker.instance.lo);
        return fold_bytes(digest, &w->folded);
    case ACT_LINK_OPEN:
    case ACT_LINK_CLOSE: return check__mix(digest, a->link.epoch.generation);
    case ACT_STEP: wire_put_step(a->step, &w->folded); return fold_bytes(digest, &w->folded);
    case ACT_TOKENS:
        digest = check__mix(digest, a->tokens.request + a->tokens.first_index);
        for (uint32_t i = 0; i < a->tokens.n; i++)
            digest = check__mix(digest, (uint64_t)a->tokens.tokens[i]);
        return check__mix(digest, a->tokens.queued_ns);
    case ACT_EMBEDDING:
        digest = check__mix(digest, a->embedding.request);
        return check__mix(digest,
                          hash_bytes(a->embedding.values, a->embedding.n * sizeof(float), 0));
    case ACT_END: return check__mix(digest, a->end.request * 64 + (uint64_t)a->end.status);
    case ACT_DRAFT: return check__mix(digest, a->draft.serial * 64 + a->draft.want);
    case ACT_ANSWER: return check__mix(digest, (uint64_t)a->answer.status);
    case ACT_NOTE: break;
    }
    return check__mix(digest, a->loss);
}

static void carry_out(struct world *w, struct actions actions)
{
    if (actions.n > 8 * LIMIT_STAGES + 4 * w->cfg.max_live + w->cfg.window)
        world__fail(w, "%zu actions of one event", actions.n);
    for (size_t i = 0; i < actions.n && !w->failed; i++) {
        const struct action *a = &actions.items[i];
        w->report->digest = fold(w, w->report->digest, a);
        check__action(w, a);
        switch (a->type) {
        case ACT_TO_WORKER: send_control(w, a); break;
        case ACT_LINK_OPEN: open_link(w, a); break;
        case ACT_LINK_CLOSE:
            w->replicas[a->link.epoch.replica].link_open = false;
            w->report->generations++;
            break;
        case ACT_STEP: send_step(w, a->step); break;
        case ACT_DRAFT: draft__asked(w, a); break;
        case ACT_TOKENS:
            if (rng_below(&w->rng, 60) == 0 && !w->requests[a->tokens.request - 1].witness) {
                /* the text met a stop string */
                struct occurrence *o = world__schedule(w, 0, HAPPEN_STOP_STRING);
                o->who = (uint32_t)a->tokens.request - 1;
            }
            break;
        case ACT_ANSWER:
            w->answered++;
            w->answer = a->answer.status;
            break;
        case ACT_EMBEDDING:
        case ACT_END:
        case ACT_NOTE: break;
        }
    }
}

bool world__ready(const struct world *w)
{
    struct msg_status s;
    core_status(w->core, &s);
    return s.ready;
}

struct world_replica *world__some_replica(struct world *w)
{
    return &w->replicas[w->cfg.n_replicas > 1 ? rng_below(&w->rng, w->cfg.n_replicas) : 0];
}

void world__core(struct world *w, struct event *e)
{
    if (w->failed) return;
    check__before(w);
    e->now_ns = w->now_ns;
    w->report->events++;
    carry_out(w, core_step(w->core, e));
    if (!w->failed) check__state(w, e);
}

void world__new_core(struct world *w)
{
    core_close(w->core);
    w->cfg.incarnation = rng_u64(&w->rng);
    w->core = core_open(&w->cfg);
    w->core_life++;
    w->ever_ready = w->was_ready = false;
    for (uint32_t i = 0; i < WORLD_REPLICAS; i++)
        w->replicas[i].was_ready = w->replicas[i].was_draining = w->replicas[i].was_rebalancing =
            false;
    for (uint32_t i = 0; i < WORLD_WORKERS; i++)
        w->workers[i].greeted = w->workers[i].leaves = false;
    w->stalled_until_ns = 0;
    w->unready_ns = w->now_ns;
    w->n_gone = 0;
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++) {
        w->replicas[i].link_open = false;
        w->replicas[i].flight_first = w->replicas[i].flight_next = 0;
        order__new_generation(w, i);
    }
    client__reconnect(w);
}

/* ---- what happens ---- */

static void tick(struct world *w)
{
    uint64_t late = w->now_ns - w->next_tick_ns;
    struct event e = {.type = EV_TICK, .tick = {late > STALL_NS ? late : 0}};
    world__core(w, &e);
    w->next_tick_ns = w->now_ns + TICK_NS;
    if (w->now_ns < w->end_ns) (void)world__schedule(w, TICK_NS, HAPPEN_TICK);
}

static void result(struct world *w, const struct occurrence *o)
{
    struct errmsg em;
    struct msg_result r;
    size_t n = o->lie == LIE_CUT_SHORT ? rng_below(&w->rng, o->bytes.len) : o->bytes.len;
    if (wire_get_result(o->bytes.data, n, &w->arena, &r, &em) < 0) {
        if (n == o->bytes.len) world__fail(w, "a result does not decode: %s", em.text);
        return; /* the shell drops it */
    }
    bool counts = check__counts(w, &r, o->lie, o->lied);
    struct event e = {.type = EV_RESULT, .result = &r};
    world__core(w, &e);
    check__result(w, counts, o->lie, o->lied);
}

/* What the worker says; the world's end ends it. */
static void heartbeat(struct world *w, const struct occurrence *o)
{
    uint64_t life = o->life;
    uint32_t who = o->who;
    if (!w->workers[who].stopped) stage__heartbeat(w, who);
    if (w->now_ns >= w->end_ns) return;
    struct occurrence *again = world__schedule(w, 250 * NS_PER_MS, HAPPEN_HEARTBEAT);
    again->who = who;
    again->life = life;
}

static bool to_core(enum happening what)
{
    return what == HAPPEN_TO_CORE || what == HAPPEN_RESULT || what == HAPPEN_LINK ||
           what == HAPPEN_TICK || what == HAPPEN_SUBMIT || what == HAPPEN_CANCEL ||
           what == HAPPEN_DRAFT || what == HAPPEN_STOP_STRING || what == HAPPEN_STRANGER ||
           what == HAPPEN_FORGED;
}

static bool to_worker(enum happening what)
{
    return what == HAPPEN_TO_WORKER || what == HAPPEN_STEP || what == HAPPEN_STAGE_DONE ||
           what == HAPPEN_LOADED;
}

static void resume(struct world *w, uint32_t who)
{
    struct world_worker *s = &w->workers[who];
    if (!s->stopped) return;
    s->stopped = false;
    stage__next(w, who);
}

/* What was on its way to or from an earlier coordinator process is lost with its connections; Steps
 * on a data link and results that come late are not. */
static bool of_earlier_core(const struct world *w, const struct occurrence *o)
{
    bool control =
        o->what == HAPPEN_TO_CORE || o->what == HAPPEN_TO_WORKER || o->what == HAPPEN_LINK;
    return control && o->core_life != w->core_life;
}

static bool lists(const struct msg_worker_status *list, uint32_t n, const char *name, uint32_t who)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i].pid == who && strcmp(list[i].name, name) == 0) return true;
    return false;
}

bool world__knows(const struct world *w, uint32_t who)
{
    const char *name = w->workers[who].name;
    struct msg_status s;
    core_status(w->core, &s);
    bool known = lists(s.spares, s.n_spares, name, who);
    for (uint32_t r = 0; r < s.n_replicas; r++)
        known |= lists(s.replicas[r].workers, s.replicas[r].n_workers, name, who);
    return known;
}

static void greeted(struct world *w, struct instance instance)
{
    uint32_t who = worker_of(w, instance);
    if (who != UINT32_MAX) w->workers[who].greeted |= world__knows(w, who);
}

static void from_worker(struct world *w, const struct occurrence *o)
{
    char address[16];
    (void)snprintf(address, sizeof address, "10.0.0.%" PRIu32, o->who + 1);
    struct event e = {.type = EV_FROM_WORKER, .from = {o->from, address}};
    world__core(w, &e);
    if (o->from->type == FROM_HELLO) greeted(w, o->from->instance);
    if (o->from->type == FROM_GOODBYE) w->gone[w->n_gone++ % WORLD_GONE] = o->from->instance;
}

/* In half of the worlds a turn of the coordinator takes what comes within a moment before it
 * composes, as the shell does; in the others each event is a turn. */
static bool turn_goes_on(struct world *w)
{
    const struct occurrence *o = w->heap;
    if (!w->in_turns || w->n_heap == 0 || !to_core(o->what) || of_earlier_core(w, o)) return false;
    return o->at_ns < w->now_ns + TURN_NS && rng_below(&w->turn_rng, 4);
}

static void happen_to_core(struct world *w, struct occurrence *o)
{
    struct event late = {.type = EV_LATE};
    if (!w->late && w->now_ns > w->next_tick_ns + STALL_NS) world__core(w, &late);
    w->late = w->now_ns > w->next_tick_ns + STALL_NS && o->what != HAPPEN_TICK;
    struct event link = {.type = o->up ? EV_LINK_UP : EV_LINK_LOST, .link = {o->epoch}};
    struct event compose = {.type = EV_COMPOSE};
    switch (o->what) {
    case HAPPEN_TO_CORE: from_worker(w, o); break;
    case HAPPEN_LINK: world__core(w, &link); break;
    case HAPPEN_RESULT: result(w, o); break;
    case HAPPEN_TICK: tick(w); break;
    case HAPPEN_SUBMIT: client__submit(w, o->who); break;
    case HAPPEN_CANCEL: client__end(w, o->who, EV_CANCEL); break;
    case HAPPEN_STOP_STRING: client__end(w, o->who, EV_STOP); break;
    case HAPPEN_STRANGER: fault__stranger(w); break;
    case HAPPEN_FORGED: fault__forge(w); break;
    case HAPPEN_DRAFT: draft__answer(w, o); break;
    default: break;
    }
    if (!turn_goes_on(w)) world__core(w, &compose);
    if (o->what == HAPPEN_TICK && w->now_ns > w->faults_end_ns + QUIET_NS) client__witness(w);
}

static void happen_to_worker(struct world *w, struct occurrence *o)
{
    struct world_worker *s = &w->workers[o->who];
    switch (o->what) {
    case HAPPEN_TO_WORKER: stage__message(w, o->who, o->to); break;
    case HAPPEN_STEP: stage__step(w, o->who, &o->bytes); break;
    case HAPPEN_LOADED: stage__loaded(w, o->who, o->epoch); break;
    case HAPPEN_STAGE_DONE:
        if (epoch_eq(o->epoch, s->gate.epoch)) {
            stage__done(w, o->who);
        } else if (!s->hung) { /* an Assign came in between: nothing is handed on */
            s->busy = false;
            stage__next(w, o->who);
        }
        break;
    default: break;
    }
}

/* Something meant for a process that does not run waits until it does. */
static bool postpone(struct world *w, struct occurrence *o)
{
    uint64_t until = 0;
    if (to_core(o->what) && w->now_ns < w->stalled_until_ns)
        until = w->stalled_until_ns;
    else if (to_worker(o->what) && w->workers[o->who].stopped)
        until = w->workers[o->who].continue_ns; /* all at once, in the order in which they came */
    if (!until) return false;
    struct occurrence keep = *o, *again = world__schedule(w, until - w->now_ns, o->what);
    uint64_t at = again->at_ns, order = again->order;
    *again = keep;
    again->at_ns = at;
    again->order = order;
    return true;
}

static void happen(struct world *w, struct occurrence *o)
{
    bool of_worker =
        to_worker(o->what) || o->what == HAPPEN_HEARTBEAT || o->what == HAPPEN_CONTINUE;
    if (of_worker && (!w->workers[o->who].alive || w->workers[o->who].life != o->life)) return;
    if (of_earlier_core(w, o)) return;
    if (to_core(o->what)) {
        happen_to_core(w, o);
    } else if (to_worker(o->what)) {
        happen_to_worker(w, o);
    } else if (o->what == HAPPEN_HEARTBEAT) {
        heartbeat(w, o);
    } else if (o->what == HAPPEN_FAULT) {
        fault__break(w);
    } else if (o->what == HAPPEN_REPAIR) {
        fault__repair(w);
    } else if (o->what == HAPPEN_RESTART) {
        if (!w->workers[o->who].alive) stage__start(w, o->who);
    } else {
        resume(w, o->who);
    }
}

static void draw_config(struct world *w)
{
    static const int32_t eog = WORLD_EOG;
    static const uint64_t masks[] = {UINT64_MAX, UINT64_MAX, 3,
                                     0}; /* of the hash: 0: always equal */
    static const uint64_t waits[] = {0, 2, 30}, replans_ms[] = {0, 300, 1500};
    static const uint64_t rows_ns[] = {50000, 50000, 2 * NS_PER_MS, 10 * NS_PER_MS};
    uint32_t n_stages = (uint32_t)(1 + rng_below(&w->rng, WORLD_STAGES));
    uint32_t pages = (uint32_t)(16 + rng_below(&w->rng, WORLD_PAGES_MAX - 15));
    w->cfg = (struct core_config){.incarnation = rng_u64(&w->rng),
                                  .n_replicas = 1 + (uint32_t)rng_below(&w->rng, WORLD_REPLICAS),
                                  .n_stages = n_stages,
                                  .max_workers = LIMIT_WORKERS,
                                  .n_layers = 4 + (uint32_t)rng_below(&w->rng, 8),
                                  .width = WORLD_WIDTH,
                                  .model_digest = 1,
                                  .model_path = "model",
                                  .results_endpoint = "results",
                                  .eog = &eog,
                                  .n_eog = 1,
                                  .n_pages = pages,
                                  .page = LIMIT_PAGE,
                                  .share = rng_below(&w->rng, 8) != 0,
                                  .hash_mask = masks[rng_below(&w->rng, 4)],
                                  .vocab = WORLD_VOCAB,
                                  .ctx = 160,
                                  .rows_max = (uint32_t)(1 + rng_below(&w->rng, 64)),
                                  .logits_max = (uint32_t)(1 + rng_below(&w->rng, 8)),
                                  .window = (uint32_t)(1 + rng_below(&w->rng, n_stages + 2)),
                                  .max_live = (uint32_t)(4 + rng_below(&w->rng, 40)),
                                  .replan_after_ns = replans_ms[rng_below(&w->rng, 3)] * NS_PER_MS,
                                  .replica_wait_ns = waits[rng_below(&w->rng, 3)] * NS_PER_S,
                                  .deadline_ns = 20 * NS_PER_S,
                                  .worker_timeout_ns = 1500 * NS_PER_MS,
                                  .step_timeout_ns = 2000 * NS_PER_MS};
    if (w->cfg.logits_max > w->cfg.rows_max) w->cfg.logits_max = w->cfg.rows_max;
    if (w->cfg.ctx > pages * w->cfg.page) w->cfg.ctx = pages * w->cfg.page;
    w->cfg.max_running = 1 + (uint32_t)rng_below(&w->rng, w->cfg.max_live);
    w->cfg.max_per_client = 1 + (uint32_t)rng_below(&w->rng, w->cfg.max_live);
    w->row_ns = rows_ns[rng_below(&w->rng, 4)];
    if (rng_below(&w->rng, 2))
        w->cfg.policy = (enum route_policy)rng_below(&w->rng, ROUTE_POLICIES);
    w->cfg.header_digest = rng_below(&w->rng, 2);
    if (rng_below(&w->rng, 3)) return;
    w->cfg.chains = w->chains;
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++)
        w->chains[i] = 1 + (uint32_t)rng_below(&w->rng, n_stages);
}

static uint32_t n_needed(const struct world *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->cfg.n_replicas; i++)
        n += w->cfg.chains ? w->cfg.chains[i] : w->cfg.n_stages;
    return n;
}

/* Layers with a window, of fewer positions than a sequence may have; and pages for one sequence, or
 * for some. */
static void draw_window(struct world *w)
{
    static const uint32_t windows[] = {1, 5, 16, 18, 34, 50, 80};
    struct rng *rng = &w->window_rng;
    uint32_t page = w->cfg.page;
    if (rng_below(rng, 2)) return;
    w->cfg.attn_window = windows[rng_below(rng, 7)];
    uint32_t before = (w->cfg.attn_window + page - 2) / page;
    uint32_t rows = (w->cfg.rows_max + 2 * page - 2) / page;
    w->cfg.costs.windowed_least = before + rows;
    w->cfg.costs.windowed_most = before + rows + (uint32_t)rng_below(rng, 2 * (before + rows));
}

static void open_world(struct world *w, bool drafts, bool windows)
{
    draw_config(w);
    if (drafts) draft__plan(w);
    if (windows) draw_window(w);
    for (uint32_t b = 0; b < WORLD_BLOCKS; b++)
        for (uint32_t i = 0; i < LIMIT_PAGE; i++)
            w->blocks[b][i] = (int32_t)rng_below(&w->rng, WORLD_VOCAB);
    for (uint32_t f = 0; f < WORLD_FAMILIES; f++)
        for (uint32_t i = 0; i < WORLD_TOKENS_MAX / LIMIT_PAGE; i++)
            w->families[f][i] = (uint8_t)rng_below(&w->rng, WORLD_BLOCKS);
    w->n_workers = n_needed(w) + (uint32_t)rng_below(&w->rng, 3);
    for (uint32_t i = 0; i < WORLD_WORKERS; i++)
        w->workers[i].layer_ns = 1000 + 7000 * rng_below(&w->rng, 2);
    if (w->cfg.n_replicas > 1 && rng_below(&w->rng, 3) == 0)
        w->cfg.n_wanted = 1 + (uint32_t)rng_below(&w->rng, w->cfg.n_replicas);
    w->n_requests = 8 + (uint32_t)rng_below(&w->rng, WORLD_REQUESTS - 7);
    w->faults_end_ns = NS_PER_S * (3 + rng_below(&w->rng, 6));
    fault__plan(w);
    w->core = core_open(&w->cfg);
    w->end_ns = w->faults_end_ns + SETTLE_NS;
    for (uint32_t i = 0; i < w->n_workers; i++) {
        bool late = i + 1 == w->n_workers && rng_below(&w->rng, 4) == 0;
        if (late)
            world__schedule(w, rng_below(&w->rng, w->faults_end_ns), HAPPEN_RESTART)->who = i;
        else
            stage__start(w, i);
    }
    for (uint32_t i = 0; i < w->n_requests; i++)
        world__schedule(w, rng_below(&w->rng, w->faults_end_ns + NS_PER_S), HAPPEN_SUBMIT)->who = i;
    w->next_tick_ns = TICK_NS;
    (void)world__schedule(w, TICK_NS, HAPPEN_TICK);
}

static void close_world(struct world *w)
{
    while (w->n_heap) {
        struct occurrence o = next(w);
        release(&o);
    }
    for (uint32_t i = 0; i < WORLD_WORKERS; i++) {
        for (uint32_t k = 0; k < WORLD_INBOX; k++) buf_close(&w->workers[i].inbox[k]);
        buf_close(&w->workers[i].outgoing);
    }
    mem_free(w->heap);
    buf_close(&w->folded);
    arena_close(&w->arena);
    core_close(w->core);
    mem_free(w);
}

bool sim_run(uint64_t seed, bool drafts, bool windows, struct sim_report *ret_report)
{
    struct world *w = mem_zalloc(sizeof *w);
    *ret_report = (struct sim_report){0};
    w->rng.s = seed;
    w->draft_rng.s = ~seed;
    w->embed_rng.s = seed ^ 0xe3bedd;
    w->report = ret_report;
    w->window_rng.s = seed ^ WINDOW_SEED;
    w->turn_rng.s = seed ^ TURN_SEED;
    w->in_turns = rng_below(&w->turn_rng, 2);
    open_world(w, drafts, windows);
    while (w->n_heap && !w->failed && !w->done) {
        struct occurrence o = next(w);
        w->now_ns = o.at_ns;
        if (postpone(w, &o)) continue;
        happen(w, &o);
        release(&o);
    }
    if (!w->failed) check__end(w);
    bool held = !w->failed;
    close_world(w);
    return held;
}
