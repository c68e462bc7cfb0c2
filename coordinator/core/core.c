#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Actions of one event hold Steps and texts of a bounded number; this bounds their bytes. */
#define STEP_ARENA_BYTES ((size_t)256 << 20)

static void *copy_of(const void *from, size_t bytes)
{
    if (!from || bytes == 0) return NULL;
    return memcpy(mem_alloc(bytes), from, bytes);
}

static void copy_config(struct core *c, const struct core_config *config)
{
    c->cfg = *config;
    (void)snprintf(c->model_path, sizeof c->model_path, "%s", config->model_path);
    (void)snprintf(c->results_endpoint, sizeof c->results_endpoint, "%s", config->results_endpoint);
    c->cfg.model_path = c->model_path;
    c->cfg.results_endpoint = c->results_endpoint;
    c->eog = mem_zalloc((config->n_eog + 1) * sizeof *c->eog);
    if (config->n_eog) memcpy(c->eog, config->eog, config->n_eog * sizeof *c->eog);
    c->cfg.eog = c->eog;
    if (config->costs.layer_bytes) {
        c->layer_bytes = mem_alloc(config->n_layers * sizeof *c->layer_bytes);
        memcpy(c->layer_bytes, config->costs.layer_bytes,
               config->n_layers * sizeof *c->layer_bytes);
    }
    c->cfg.costs.layer_bytes = c->layer_bytes;
    c->cfg.costs.layer_windowed = c->layer_windowed =
        copy_of(config->costs.layer_windowed, config->n_layers * sizeof *c->layer_windowed);
    c->cfg.layer_work = c->layer_work =
        copy_of(config->layer_work, config->n_layers * sizeof *c->layer_work);
    c->cfg.chains = c->chains = copy_of(config->chains, config->n_replicas * sizeof *c->chains);
    c->cfg.given = c->given = copy_of(config->given, config->n_stages * sizeof *c->given);
    c->cfg.wishes = c->wishes = copy_of(config->wishes, config->n_wishes * sizeof *c->wishes);
    for (uint32_t i = 0; i < config->n_wishes; i++)
        c->wishes[i].name = mem_strdup(config->wishes[i].name);
}

static struct index *open_index(const struct core_config *config)
{
    uint64_t seed[] = {config->hash_seed, config->model_digest, config->kv_type, config->page};
    struct index_config index = {.n_replicas = config->n_replicas,
                                 .page_size = config->page,
                                 .seed = hash128_bytes(seed, sizeof seed, 0),
                                 .hash_mask = config->hash_mask};
    return index_open(&index);
}

/* Workers of all replicas. */
static uint64_t n_needed(const struct core_config *k)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < k->n_replicas; i++) {
        uint32_t chain = k->chains ? k->chains[i] : k->n_stages;
        CHECK(chain > 0 && chain <= k->n_stages);
        n += chain;
    }
    return n;
}

/* A map does not grow, and move all that it has, while a request comes. */
static void reserve(struct imap *m, uint32_t n)
{
    if (imap_reserve(m, n) < 0) mem_none();
}

struct core *core_open(const struct core_config *config)
{
    CHECK(config->n_replicas > 0 && config->n_stages > 0 && config->n_stages <= LIMIT_STAGES);
    CHECK(config->n_wanted <= config->n_replicas);
    CHECK(config->max_workers >= n_needed(config));
    CHECK(config->window > 0 && config->window <= LIMIT_WINDOW && config->page > 0);
    CHECK((config->attn_window > 0) == (config->costs.windowed_most > 0));
    struct core *c = mem_zalloc(sizeof *c);
    copy_config(c, config);
    c->workers = mem_zalloc(config->max_workers * sizeof *c->workers);
    c->leaving = mem_zalloc(config->max_workers * sizeof *c->leaving);
    c->n_records = NAMES_A_WORKER * config->max_workers;
    c->records = mem_zalloc(c->n_records * sizeof *c->records);
    for (uint32_t i = 0; i < VERDICTS; i++)
        c->verdicts[i].names = mem_zalloc(c->n_records * sizeof *c->verdicts[i].names);
    c->standing = VERDICTS;
    c->work_unit = 1.0;
    /* Written to now: the first request of a slot is not to wait for memory. */
    c->requests = mem_alloc(config->max_live * sizeof *c->requests);
    memset(c->requests, 0, config->max_live * sizeof *c->requests);
    reserve(&c->by_id, config->max_live);
    reserve(&c->n_live, config->max_live);
    c->queued = mem_zalloc(config->max_live * sizeof *c->queued);
    c->loads = mem_zalloc(config->n_replicas * sizeof *c->loads);
    size_t padded = ROUTE_PADDED(config->n_replicas);
    c->held = mem_zalloc(padded * sizeof *c->held);
    c->costs = mem_zalloc(2 * padded * sizeof *c->costs);
    c->alike = mem_zalloc((padded + 1) * sizeof *c->alike);
    c->columns = mem_zalloc(ROUTE_COLUMNS * padded * sizeof *c->columns);
    c->free_slots = mem_zalloc(config->max_live * sizeof *c->free_slots);
    for (uint32_t i = config->max_live; i-- > 0;) c->free_slots[c->n_free_slots++] = i;
    c->arena.budget = STEP_ARENA_BYTES;
    c->index = open_index(config);
    c->replicas = mem_zalloc(config->n_replicas * sizeof *c->replicas);
    c->full = mem_zalloc(config->n_replicas * sizeof *c->full);
    c->n_dead_most =
        2 * config->n_replicas > PRESUMED_LEAST ? 2 * config->n_replicas : PRESUMED_LEAST;
    c->dead = mem_zalloc(c->n_dead_most * sizeof *c->dead);
    c->candidates = mem_zalloc(config->max_workers * sizeof *c->candidates);
    c->build_runs = mem_zalloc(LIMIT_STEP_RUNS * sizeof *c->build_runs);
    c->status = mem_zalloc(config->n_replicas * sizeof *c->status);
    c->staff = mem_zalloc((size_t)config->n_replicas * config->n_stages * sizeof *c->staff);
    c->spares = mem_zalloc(config->max_workers * sizeof *c->spares);
    for (uint32_t i = 0; i < config->n_replicas; i++) replica__open(c, &c->replicas[i], i);
    return c;
}

void core_close(struct core *c)
{
    if (!c) return;
    for (uint32_t i = 0; i < c->cfg.max_live; i++) {
        mem_free(c->requests[i].tokens);
        mem_free(c->requests[i].pages);
        mem_free(c->requests[i].windowed);
        mem_free((void *)(uintptr_t)c->requests[i].sampling.bias_ids);
        mem_free((void *)(uintptr_t)c->requests[i].sampling.bias);
        blob_drop(c->requests[i].grammar);
    }
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) replica__close(&c->replicas[i]);
    index_close(c->index);
    for (uint32_t i = 0; i < VERDICTS; i++) mem_free(c->verdicts[i].names);
    imap_close(&c->by_id);
    imap_close(&c->n_live);
    imap_close(&c->dead_by);
    arena_close(&c->arena);
    mem_free(c->workers);
    mem_free(c->records);
    mem_free(c->leaving);
    mem_free(c->dead);
    mem_free(c->candidates);
    mem_free(c->build_runs);
    mem_free(c->replicas);
    mem_free(c->full);
    mem_free(c->requests);
    mem_free(c->queued);
    mem_free(c->loads);
    mem_free(c->held);
    mem_free(c->costs);
    mem_free(c->alike);
    mem_free(c->columns);
    mem_free(c->free_slots);
    mem_free(c->status);
    mem_free(c->staff);
    mem_free(c->spares);
    mem_free(c->layer_bytes);
    mem_free(c->layer_windowed);
    mem_free(c->layer_work);
    mem_free(c->chains);
    mem_free(c->given);
    for (uint32_t i = 0; i < c->cfg.n_wishes; i++) mem_free((void *)(uintptr_t)c->wishes[i].name);
    mem_free(c->wishes);
    mem_free(c->actions);
    mem_free(c->eog);
    mem_free(c);
}

bool core_serves(const struct core *c, uint32_t replica)
{
    return c->replicas[replica].state == REPLICA_READY;
}

bool core__ready(const struct core *c)
{
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++)
        if (c->replicas[i].state == REPLICA_READY) return true;
    return false;
}

struct action *core__act(struct core *c, enum action_type type)
{
    if (c->n_actions == c->cap_actions) {
        c->cap_actions = c->cap_actions ? c->cap_actions * 2 : 64;
        c->actions = mem_realloc(c->actions, c->cap_actions * sizeof *c->actions);
    }
    struct action *a = &c->actions[c->n_actions++];
    *a = (struct action){.type = type};
    return a;
}

void *core__alloc(struct core *c, size_t bytes)
{
    void *p = arena_alloc(&c->arena, bytes);
    CHECK(p != NULL); /* what one event asks for is bounded by limits.h */
    return p;
}

static const char *format_text(struct core *c, const char *format, va_list args)
{
    char *text = core__alloc(c, LIMIT_TEXT_BYTES);
    (void)vsnprintf(text, LIMIT_TEXT_BYTES, format, args);
    err_clean(text); /* a limit within the format may have cut a character */
    return text;
}

const char *core__text(struct core *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const char *text = format_text(c, format, args);
    va_end(args);
    return text;
}

const char *core__of_replica(struct core *c, const struct replica *r)
{
    return c->cfg.n_replicas == 1 ? "" : core__text(c, "replica %s: ", r->name);
}

/* None serves: the first one's reasons stand for all. */
const char *core__no_replica(struct core *c)
{
    if (core__ready(c)) return "no replica that is ready has room for so long a context";
    const struct replica *r = &c->replicas[0];
    char held[LIMIT_TEXT_BYTES];
    bool more = r->lost[0] && strcmp(r->lost, r->why) != 0;
    fleet__held(c, r->why, held, sizeof held);
    return core__text(c, "no replica is ready: %.200s%s%.200s%s%s", r->why,
                      more ? "; before that: " : "", more ? r->lost : "", held[0] ? "; " : "",
                      held);
}

void core__note(struct core *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    core__act(c, ACT_NOTE)->note = format_text(c, format, args);
    va_end(args);
}

void core__note_loss(struct core *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    struct action *a = core__act(c, ACT_NOTE);
    a->loss = true;
    a->note = format_text(c, format, args);
    va_end(args);
}

/* Nothing follows from a replica without requests, nor from one that may have no more Steps in
 * flight, unless guesses are to be asked for. These are passed over without looking at them: of a
 * thousand replicas nearly all are such, and what is known of each would push everything else out
 * of the caches. */
static void compose(struct core *c)
{
    bool asks = c->cfg.draft.kind != DRAFT_OFF;
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        if ((c->full[i] && !asks) || !c->loads[i].live) continue;
        spec__ask(c, &c->replicas[i]);
        sched__compose(c, &c->replicas[i]);
        spec__ask(c, &c->replicas[i]); /* guesses that were issued make room for others */
    }
}

struct actions core_step(struct core *c, const struct event *e)
{
    c->now_ns = e->now_ns;
    c->n_actions = 0;
    arena_reset(&c->arena);
    bool awaited = false;
    switch (e->type) {
    case EV_FROM_WORKER: replica__from_worker(c, e->from.msg, e->from.address, &e->key); break;
    case EV_LINK_UP: replica__link(c, e->link.epoch, true); break;
    case EV_LINK_LOST: replica__link(c, e->link.epoch, false); break;
    case EV_RESULT:
        if (flight__result(c, e->result, &e->key, &awaited)) request__results(c, e->result);
        break;
    case EV_SUBMIT: request__submit(c, e); break;
    case EV_DRAFT: spec__answer(c, e); break;
    case EV_CANCEL:
        request__by_id(c, e->request.request, STATUS_CANCELLED, FINISH_NONE, e->request.why);
        break;
    case EV_STOP: request__by_id(c, e->request.request, STATUS_OK, FINISH_STOP, ""); break;
    case EV_DRAIN: order__drain(c, e->order.name, e->order.limit_ns); break;
    case EV_REBALANCE: order__rebalance(c, e->order.name, e->order.limit_ns); break;
    case EV_LATE:
        for (uint32_t i = 0; i < c->cfg.n_replicas; i++) flight__late(&c->replicas[i].flight);
        break;
    case EV_TICK:
        replica__tick(c, e->tick.lost_ns);
        request__tick(c);
        router__tick(c);
        break;
    case EV_COMPOSE:
        mem_warm(); /* for the next arrivals, like the index's stock */
        if (c->cfg.n_replicas > 1) index_stock(c->index);
        router__balance(c);
        compose(c);
        break;
    }
    return (struct actions){c->actions, c->n_actions, awaited};
}

static const char *const state_names[] = {"waiting", "loading", "linking",
                                          "probing", "ready",   "draining"};

/* What is waited for, and who is held down. */
static const char *why_of(const struct core *c, struct replica *r)
{
    char held[LIMIT_TEXT_BYTES];
    fleet__held(c, r->why, held, sizeof held);
    (void)snprintf(r->told, sizeof r->told, "%.200s%s%.300s", r->why,
                   r->why[0] && held[0] ? "; " : "", held);
    return r->told;
}

static const char *worker_state(const struct core *c, const struct worker *w)
{
    const struct replica *r = w->replica;
    if (!r)
        return w->leaves                                         ? "drained"
               : w->suspect                                      ? "silent"
               : c->now_ns < c->records[w->record].held_until_ns ? "held down"
                                                                 : "spare";
    if (w->leaves) return "draining";
    if (r->state >= REPLICA_PROBING) return "serving";
    return w->linked ? "linked" : w->ready ? "loaded" : "loading";
}

/* Where it is a spare, the layers are those that it holds. */
static struct msg_worker_status worker_status(struct core *c, const struct worker *w)
{
    const struct msg_hello *h = &w->hello;
    struct msg_holding layers = h->holds ? h->holding : (struct msg_holding){.layer_first = 1};
    if (w->replica)
        layers = (struct msg_holding){.layer_first = w->replica->first[w->stage],
                                      .layer_last = w->replica->last[w->stage]};
    struct speed_stage stage = {0};
    if (w->replica) stage = planner__stage(c, w, layers.layer_first, layers.layer_last);
    return (struct msg_worker_status){
        .name = w->hello.name,
        .state = worker_state(c, w),
        .isa = w->hello.isa,
        .pid = w->hello.pid,
        .threads = fleet__threads(w),
        .layer_first = layers.layer_first,
        .layer_last = layers.layer_last,
        .heartbeat = w->heartbeat,
        .load_done = w->load_done,
        .load_total = w->load_total,
        .compute_ns = w->compute_ns,
        .idle_ns = w->idle_ns,
        .predicted_ns = w->predicted_ns,
        .timed_steps = w->timed_steps,
        .row_ns = (uint64_t)speed_step(&w->speed, stage, 1, 1),
        .streams_ns = (uint64_t)speed_step(&w->speed, stage, SPEED_STREAMS, SPEED_STREAMS),
        .chunk_ns = (uint64_t)speed_step(&w->speed, stage, SPEED_CHUNK, 1),
        .cpu_waiting = w->waiting,
        .faults = c->records[w->record].faults};
}

static void replica_status(struct core *c, struct replica *r, struct msg_replica_status *ret)
{
    struct msg_worker_status *workers = c->staff + (size_t)r->id * c->cfg.n_stages;
    struct pages_stats pages = pages_stats(r->pages);
    struct windowed_stats windowed = core_windowed(c, r->id);
    uint64_t unused = 0;
    for (uint32_t i = 0; i < r->n_running; i++) {
        const struct request *x = &c->requests[r->running[i]];
        unused += (uint64_t)x->n_pages * c->cfg.page - x->n_issued;
    }
    *ret = (struct msg_replica_status){.name = r->name,
                                       .state = state_names[r->state],
                                       .why = why_of(c, r),
                                       .ready = r->state == REPLICA_READY,
                                       .rebalancing = r->replans,
                                       .workers = workers,
                                       .generation = r->generation,
                                       .pages_total = r->n_pages,
                                       .windowed_total = r->n_windowed,
                                       .ctx = r->ctx,
                                       .pages_free = pages.n_free + pages.n_cached,
                                       .sequences_max = r->sequences_max,
                                       .running = r->n_running,
                                       .queued = r->n_queued,
                                       .steps = r->steps,
                                       .steps_mixed = r->steps_mixed,
                                       .wire_ns = r->flight.wire_sum_ns,
                                       .queue_ns = r->flight.queue_sum_ns,
                                       .cache = {.pages_cached = pages.n_cached,
                                                 .pages_held = pages.n_held,
                                                 .windowed_cached = windowed.n_cached,
                                                 .windowed_held = windowed.n_held,
                                                 .positions_unused = unused,
                                                 .lookups = r->prefix_lookups,
                                                 .hits = r->prefix_hits,
                                                 .tokens_saved = r->tokens_saved,
                                                 .tokens_computed = r->tokens_computed,
                                                 .evicted = pages.evicted,
                                                 .preemptions = r->preemptions},
                                       .draft = {.runs = r->accept.runs,
                                                 .drafted = r->accept.drafted,
                                                 .accepted = r->accept.accepted,
                                                 .early = r->accept.early,
                                                 .wasted = r->accept.wasted,
                                                 .on_ns = r->accept.on_ns,
                                                 .on_tokens = r->accept.on_tokens,
                                                 .off_ns = r->accept.off_ns,
                                                 .off_tokens = r->accept.off_tokens}};
    if (r->state == REPLICA_WAITING) return;
    for (uint32_t i = 0; i < r->n_stages; i++) workers[i] = worker_status(c, replica__at(c, r, i));
    ret->n_workers = r->n_stages;
}

static uint32_t n_queued(const struct core *c)
{
    uint32_t n = c->n_queued;
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) n += c->replicas[i].n_queued;
    return n;
}

void core_status(struct core *c, struct msg_status *ret)
{
    uint32_t n = c->cfg.n_wanted ? c->cfg.n_wanted : c->cfg.n_replicas;
    for (uint32_t i = n; i < c->cfg.n_replicas; i++)
        if (c->replicas[i].generation) n = i + 1;
    *ret = (struct msg_status){.ready = core__ready(c),
                               .model = c->model_path,
                               .queued = n_queued(c),
                               .messages_dropped = c->dropped,
                               .n_replicas = n,
                               .replicas = c->status};
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        ret->running += c->replicas[i].n_running;
        replica_status(c, &c->replicas[i], &c->status[i]);
    }
    ret->spares = c->spares;
    for (uint32_t i = 0; i < c->cfg.max_workers && ret->n_spares < LIMIT_SPARES; i++)
        if (c->workers[i].used && !c->workers[i].replica)
            c->spares[ret->n_spares++] = worker_status(c, &c->workers[i]);
}

uint32_t core_n_sequences(const struct core *c)
{
    uint32_t n = n_queued(c);
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) n += c->replicas[i].n_running;
    return n;
}

static uint32_t slot_at(const struct core *c, uint32_t idx)
{
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        const struct replica *r = &c->replicas[i];
        if (idx < r->n_running) return r->running[idx];
        idx -= r->n_running;
    }
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        const struct replica *r = &c->replicas[i];
        if (idx < r->n_queued) return r->queued[idx];
        idx -= r->n_queued;
    }
    CHECK(idx < c->n_queued);
    return c->queued[idx];
}

struct core_sequence core_sequence_at(const struct core *c, uint32_t idx)
{
    const struct request *r = &c->requests[slot_at(c, idx)];
    return (struct core_sequence){.request = r->id,
                                  .running = r->running,
                                  .replica = r->replica ? r->replica->id : CORE_NO_REPLICA,
                                  .class = r->running ? r->class : r->asked,
                                  .n_pages = r->n_pages,
                                  .n_issued = r->n_issued,
                                  .n_right = r->n_right,
                                  .n_tokens = r->n_tokens,
                                  .n_guessed = r->n_guessed,
                                  .arrival = r->arrival,
                                  .pages = r->pages,
                                  .windowed = r->windowed,
                                  .first_windowed = r->first_windowed,
                                  .end_windowed = r->n_pages - r->n_ahead};
}

struct pages_stats core_pages(const struct core *c, uint32_t replica)
{
    return pages_stats(c->replicas[replica].pages);
}

struct page_view core_page_at(const struct core *c, uint32_t replica, uint32_t page)
{
    return pages_view(c->replicas[replica].pages, page);
}

uint32_t core_n_windowed(const struct core *c, uint32_t replica)
{
    return c->replicas[replica].n_windowed;
}

struct windowed_stats core_windowed(const struct core *c, uint32_t replica)
{
    const struct windowed *w = c->replicas[replica].windowed;
    return w ? windowed_stats(w) : (struct windowed_stats){0};
}

struct windowed_view core_windowed_at(const struct core *c, uint32_t replica, uint32_t page)
{
    return windowed_view(c->replicas[replica].windowed, page);
}

uint32_t core_in_flight(const struct core *c, uint32_t replica)
{
    return c->replicas[replica].flight.n;
}
