/* The world: a heap of what is to happen, the network's delays, faults, and the core in the middle.
 */
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
#define FAULTS_FROM_NS (300 * NS_PER_MS)
#define FAULTS_MEAN_NS (600 * NS_PER_MS)
#define SETTLE_NS (40 * NS_PER_S)

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
    struct occurrence o = {.at_ns = w->now_ns + in_ns, .order = w->order++, .what = what};
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
    if (w->now_ns < w->workers[who].deaf_until_ns) return;
    struct occurrence *o = world__schedule(w, world__latency(w), HAPPEN_TO_WORKER);
    o->who = who;
    o->life = w->workers[who].life;
    o->to = mem_alloc(sizeof *o->to);
    *o->to = *a->to_worker.msg;
}

static void open_link(struct world *w, const struct action *a)
{
    uint32_t who = (uint32_t)atoi(a->link.endpoint + strlen("tcp://w"));
    struct occurrence *o = world__schedule(w, world__latency(w), HAPPEN_LINK);
    o->epoch = a->link.epoch;
    o->up = w->workers[who].alive;
    w->link_open = o->up;
    w->link_worker = who;
    w->link_epoch = a->link.epoch;
    w->link_cut = false;
}

static void send_step(struct world *w, const struct msg_step *m)
{
    if (!w->link_open || w->link_cut) return;
    if (world__faulty(w) && rng_below(&w->rng, 400) == 0) {
        w->report->faults++;
        return;
    }
    uint64_t at = w->now_ns + world__latency(w);
    if (at <= w->last_link_ns) at = w->last_link_ns + 1;
    w->last_link_ns = at;
    struct occurrence *o = world__schedule(w, at - w->now_ns, HAPPEN_STEP);
    o->who = w->link_worker;
    o->life = w->workers[w->link_worker].life;
    wire_put_step(m, &o->bytes);
}

static uint64_t fold(uint64_t digest, const struct action *a)
{
    uint64_t x = (uint64_t)a->type;
    if (a->type == ACT_STEP) x = check__mix(x, a->step->number * 4096 + a->step->rows);
    if (a->type == ACT_TOKENS) x = check__mix(x, (uint64_t)a->tokens.tokens[0] + a->tokens.request);
    if (a->type == ACT_END) x = check__mix(x, a->end.request * 64 + (uint64_t)a->end.status);
    return check__mix(digest, x);
}

static void carry_out(struct world *w, struct actions actions)
{
    if (actions.n > 8 * LIMIT_STAGES + 4 * w->cfg.max_live + w->cfg.window)
        world__fail(w, "%zu actions of one event", actions.n);
    for (size_t i = 0; i < actions.n && !w->failed; i++) {
        const struct action *a = &actions.items[i];
        w->report->digest = fold(w->report->digest, a);
        check__action(w, a);
        switch (a->type) {
        case ACT_TO_WORKER: send_control(w, a); break;
        case ACT_LINK_OPEN: open_link(w, a); break;
        case ACT_LINK_CLOSE:
            w->link_open = false;
            check__new_generation(w);
            w->report->generations++;
            break;
        case ACT_STEP: send_step(w, a->step); break;
        case ACT_TOKENS:
            if (rng_below(&w->rng, 60) == 0) { /* the text met a stop string */
                struct occurrence *o = world__schedule(w, 0, HAPPEN_STOP_STRING);
                o->who = (uint32_t)a->tokens.request - 1;
            }
            break;
        case ACT_END:
        case ACT_NOTE: break;
        }
    }
}

void world__core(struct world *w, struct event *e)
{
    struct msg_status s;
    core_status(w->core, &s);
    w->was_ready = s.ready;
    w->preemptions = s.replica.cache.preemptions;
    e->now_ns = w->now_ns;
    w->report->events++;
    w->steps_now = 0;
    carry_out(w, core_step(w->core, e));
    if (!w->failed) check__state(w);
}

/* ---- faults ---- */

static void break_something(struct world *w)
{
    uint32_t who = (uint32_t)rng_below(&w->rng, w->n_workers);
    struct world_worker *s = &w->workers[who];
    struct occurrence *o;
    w->report->faults++;
    switch (rng_below(&w->rng, 6)) {
    case 0: /* kill -9, and started again later */
        if (!s->alive) break;
        stage__kill(w, who);
        o = world__schedule(w, NS_PER_MS * (50 + rng_below(&w->rng, 3000)), HAPPEN_RESTART);
        o->who = who;
        break;
    case 1: /* kill -STOP, and continued */
        if (!s->alive || s->stopped) break;
        s->stopped = true;
        s->continue_ns = w->now_ns + NS_PER_MS * (10 + rng_below(&w->rng, 4000));
        o = world__schedule(w, s->continue_ns - w->now_ns, HAPPEN_CONTINUE);
        o->who = who;
        o->life = s->life;
        break;
    case 2: /* a data link swallows all, heartbeats go on */
        if (s->alive) s->cut = true;
        break;
    case 3: w->link_cut = true; break;
    case 4: /* the control connection breaks and is made anew: what was on its way is lost */
        s->deaf_until_ns = w->now_ns + NS_PER_MS * (50 + rng_below(&w->rng, 1300));
        break;
    default: /* the coordinator itself does not run for a while */
        w->stalled_until_ns = w->now_ns + NS_PER_MS * (50 + rng_below(&w->rng, 2500));
        break;
    }
    uint64_t in = FAULTS_MEAN_NS / 2 + rng_below(&w->rng, FAULTS_MEAN_NS);
    if (w->now_ns + in < w->faults_end_ns) (void)world__schedule(w, in, HAPPEN_FAULT);
}

/* ---- clients ---- */

/* Another answer to an earlier prompt, or a prompt that begins like others, or goes on from an
 * earlier answer, or is all its own. */
static void make_prompt(struct world *w, struct world_request *r)
{
    const struct world_request *other = &w->requests[rng_below(&w->rng, w->n_requests)];
    uint64_t kind = rng_below(&w->rng, 8);
    uint32_t begin = 0;
    r->seed = rng_u64(&w->rng);
    r->n_prompt = (uint32_t)(1 + rng_below(&w->rng, rng_below(&w->rng, 10) ? 100 : 180));
    r->max_new = (uint32_t)rng_below(&w->rng, 60);
    if (kind == 0 && other->submitted && other != r) {
        r->seed = other->seed;
        r->sample = other->sample + 1;
        begin = r->n_prompt = other->n_prompt;
        memcpy(r->tokens, other->tokens, begin * sizeof *r->tokens);
    } else if (kind == 1 && other->submitted && other != r) {
        begin = other->n_tokens < r->n_prompt ? other->n_tokens : r->n_prompt;
        memcpy(r->tokens, other->tokens, begin * sizeof *r->tokens);
    } else if (kind < 6) {
        const uint8_t *family = w->families[rng_below(&w->rng, WORLD_FAMILIES)];
        begin = (uint32_t)rng_below(&w->rng, r->n_prompt + 1);
        for (uint32_t i = 0; i < begin; i++)
            r->tokens[i] = w->blocks[family[i / LIMIT_PAGE]][i % LIMIT_PAGE];
    }
    for (uint32_t i = begin; i < r->n_prompt; i++)
        r->tokens[i] = (int32_t)rng_below(&w->rng, WORLD_VOCAB);
}

static void submit(struct world *w, uint32_t idx)
{
    struct world_request *r = &w->requests[idx];
    uint64_t deadline_ns = NS_PER_MS * (200 + rng_below(&w->rng, 20000));
    r->submitted = true;
    r->id = idx + 1;
    r->client = rng_below(&w->rng, 4);
    r->class = (enum priority)rng_below(&w->rng, 4);
    r->deadline_at_ns = w->now_ns + deadline_ns;
    make_prompt(w, r);
    check__oracle(w, r);
    uint32_t n_new = r->n_oracle > r->n_prompt ? r->n_oracle - r->n_prompt : 0;
    r->n_received = rng_below(&w->rng, 6) ? 0 : (uint32_t)rng_below(&w->rng, n_new + 1);
    r->n_tokens = r->n_prompt + r->n_received;
    if (rng_below(&w->rng, 6) == 0) {
        struct occurrence *o =
            world__schedule(w, NS_PER_MS * rng_below(&w->rng, 300), HAPPEN_CANCEL);
        o->who = idx;
    }
    struct event e = {.type = EV_SUBMIT,
                      .submit = {.request = r->id,
                                 .client = r->client,
                                 .priority = r->class,
                                 .tokens = r->tokens,
                                 .n_prompt = r->n_prompt,
                                 .n_received = r->n_received,
                                 .sample = r->sample,
                                 .max_new = r->max_new,
                                 .sampling = {.seed = r->seed, .repetition = 1.0f},
                                 .deadline_ns = deadline_ns}};
    world__core(w, &e);
}

static void end_request(struct world *w, uint32_t idx, enum event_type type)
{
    struct world_request *r = &w->requests[idx];
    if (type == EV_CANCEL)
        r->cancelled = true;
    else
        r->stopped_by_us = true;
    struct event e = {.type = type, .request = {r->id, "cancelled"}};
    world__core(w, &e);
}

/* ---- what happens ---- */

static void tick(struct world *w)
{
    uint64_t late = w->now_ns - w->next_tick_ns;
    struct event e = {.type = EV_TICK, .tick = {late > 200 * NS_PER_MS ? late : 0}};
    world__core(w, &e);
    w->next_tick_ns = w->now_ns + TICK_NS;
    if (w->now_ns < w->end_ns) (void)world__schedule(w, TICK_NS, HAPPEN_TICK);
}

static void result(struct world *w, const struct buf *bytes)
{
    struct errmsg em;
    struct msg_result r;
    if (wire_get_result(bytes->data, bytes->len, &w->arena, &r, &em) < 0) {
        world__fail(w, "a result does not decode: %s", em.text);
        return;
    }
    struct event e = {.type = EV_RESULT, .result = &r};
    world__core(w, &e);
}

static void heartbeat(struct world *w, const struct occurrence *o)
{
    struct world_worker *s = &w->workers[o->who];
    if (!s->stopped) {
        struct msg_from_worker m = {.type = FROM_HEARTBEAT,
                                    .has_epoch = s->gate.epoch.generation != 0,
                                    .epoch = s->gate.epoch,
                                    .heartbeat = s->heartbeat};
        m.heartbeat.moves = ++s->moves; /* its compute thread turns */
        struct msg_from_worker again = s->standing;
        stage__tell(w, o->who, &m);
        if (s->stands && s->heartbeat.step_received == 0) stage__tell(w, o->who, &again);
    }
    uint64_t life = o->life;
    uint32_t who = o->who;
    if (w->now_ns >= w->end_ns) return;
    struct occurrence *again = world__schedule(w, 250 * NS_PER_MS, HAPPEN_HEARTBEAT);
    again->who = who;
    again->life = life;
}

static bool to_core(enum happening what)
{
    return what == HAPPEN_TO_CORE || what == HAPPEN_RESULT || what == HAPPEN_LINK ||
           what == HAPPEN_TICK || what == HAPPEN_SUBMIT || what == HAPPEN_CANCEL ||
           what == HAPPEN_STOP_STRING;
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

static void happen_to_core(struct world *w, struct occurrence *o)
{
    char address[16];
    (void)snprintf(address, sizeof address, "10.0.0.%" PRIu32, o->who + 1);
    struct event from = {.type = EV_FROM_WORKER, .from = {o->from, address}};
    struct event link = {.type = o->up ? EV_LINK_UP : EV_LINK_LOST, .link = {o->epoch}};
    struct event compose = {.type = EV_COMPOSE};
    switch (o->what) {
    case HAPPEN_TO_CORE: world__core(w, &from); break;
    case HAPPEN_LINK: world__core(w, &link); break;
    case HAPPEN_RESULT: result(w, &o->bytes); break;
    case HAPPEN_TICK: tick(w); break;
    case HAPPEN_SUBMIT: submit(w, o->who); break;
    case HAPPEN_CANCEL: end_request(w, o->who, EV_CANCEL); break;
    case HAPPEN_STOP_STRING: end_request(w, o->who, EV_STOP); break;
    default: break;
    }
    if (!w->failed) world__core(w, &compose);
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
        } else { /* an Assign came in between: nothing is handed on */
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
    if (to_core(o->what)) {
        happen_to_core(w, o);
    } else if (to_worker(o->what)) {
        happen_to_worker(w, o);
    } else if (o->what == HAPPEN_HEARTBEAT) {
        heartbeat(w, o);
    } else if (o->what == HAPPEN_FAULT) {
        break_something(w);
    } else if (o->what == HAPPEN_RESTART) {
        stage__start(w, o->who);
    } else {
        resume(w, o->who);
    }
}

static void open_world(struct world *w)
{
    static const int32_t eog = WORLD_EOG;
    uint32_t n_stages = (uint32_t)(1 + rng_below(&w->rng, 4));
    uint32_t pages = (uint32_t)(16 + rng_below(&w->rng, WORLD_PAGES_MAX - 15));
    static const uint64_t masks[] = {UINT64_MAX, UINT64_MAX, 3,
                                     0}; /* of the hash: 0: always equal */
    static const uint64_t waits[] = {0, 2, 30};
    static const uint64_t rows_ns[] = {50000, 50000, 2 * NS_PER_MS, 10 * NS_PER_MS};
    w->cfg = (struct core_config){.incarnation = rng_u64(&w->rng),
                                  .n_stages = n_stages,
                                  .n_layers = 4 + (uint32_t)rng_below(&w->rng, 8),
                                  .width = 64,
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
                                  .replica_wait_ns = waits[rng_below(&w->rng, 3)] * NS_PER_S,
                                  .deadline_ns = 20 * NS_PER_S,
                                  .worker_timeout_ns = 1500 * NS_PER_MS,
                                  .step_timeout_ns = 2000 * NS_PER_MS};
    if (w->cfg.logits_max > w->cfg.rows_max) w->cfg.logits_max = w->cfg.rows_max;
    if (w->cfg.ctx > pages * w->cfg.page) w->cfg.ctx = pages * w->cfg.page;
    w->cfg.max_running = 1 + (uint32_t)rng_below(&w->rng, w->cfg.max_live);
    w->cfg.max_per_client = 1 + (uint32_t)rng_below(&w->rng, w->cfg.max_live);
    for (uint32_t b = 0; b < WORLD_BLOCKS; b++)
        for (uint32_t i = 0; i < LIMIT_PAGE; i++)
            w->blocks[b][i] = (int32_t)rng_below(&w->rng, WORLD_VOCAB);
    for (uint32_t f = 0; f < WORLD_FAMILIES; f++)
        for (uint32_t i = 0; i < WORLD_TOKENS_MAX / LIMIT_PAGE; i++)
            w->families[f][i] = (uint8_t)rng_below(&w->rng, WORLD_BLOCKS);
    w->core = core_open(&w->cfg);
    w->n_workers = n_stages + (uint32_t)rng_below(&w->rng, 3);
    w->n_requests = 8 + (uint32_t)rng_below(&w->rng, WORLD_REQUESTS - 7);
    w->faults_end_ns = NS_PER_S * (3 + rng_below(&w->rng, 6));
    w->end_ns = w->faults_end_ns + SETTLE_NS;
    w->faultless = rng_below(&w->rng, 8) == 0;
    w->row_ns = rows_ns[rng_below(&w->rng, 4)];
    for (uint32_t i = 0; i < w->n_workers; i++) stage__start(w, i);
    for (uint32_t i = 0; i < w->n_requests; i++)
        world__schedule(w, rng_below(&w->rng, w->faults_end_ns + NS_PER_S), HAPPEN_SUBMIT)->who = i;
    w->next_tick_ns = TICK_NS;
    (void)world__schedule(w, TICK_NS, HAPPEN_TICK);
    if (!w->faultless)
        (void)world__schedule(w, FAULTS_FROM_NS + rng_below(&w->rng, FAULTS_MEAN_NS), HAPPEN_FAULT);
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
    arena_close(&w->arena);
    core_close(w->core);
    mem_free(w);
}

bool sim_run(uint64_t seed, struct sim_report *ret_report)
{
    struct world *w = mem_zalloc(sizeof *w);
    *ret_report = (struct sim_report){0};
    w->rng.s = seed;
    w->report = ret_report;
    open_world(w);
    while (w->n_heap && !w->failed) {
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
