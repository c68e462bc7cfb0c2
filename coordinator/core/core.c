#include "coordinator/core/core_state.h"

#include "common/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Actions of one event hold Steps and texts of a bounded number; this bounds their bytes. */
#define STEP_ARENA_BYTES ((size_t)256 << 20)

struct core *core_open(const struct core_config *config)
{
    struct core *c = mem_zalloc(sizeof *c);
    c->cfg = *config;
    (void)snprintf(c->model_path, sizeof c->model_path, "%s", config->model_path);
    (void)snprintf(c->results_endpoint, sizeof c->results_endpoint, "%s", config->results_endpoint);
    c->cfg.model_path = c->model_path;
    c->cfg.results_endpoint = c->results_endpoint;
    c->eog = mem_zalloc((config->n_eog + 1) * sizeof *c->eog);
    if (config->n_eog) memcpy(c->eog, config->eog, config->n_eog * sizeof *c->eog);
    c->cfg.eog = c->eog;
    c->requests = mem_zalloc(config->max_live * sizeof *c->requests);
    c->running = mem_zalloc(config->max_live * sizeof *c->running);
    c->queued = mem_zalloc(config->max_live * sizeof *c->queued);
    c->free_slots = mem_zalloc(config->max_live * sizeof *c->free_slots);
    for (uint32_t i = config->max_live; i-- > 0;) c->free_slots[c->n_free_slots++] = i;
    c->closed = mem_zalloc(2 * config->max_live * sizeof *c->closed);
    c->fixed_pages = config->n_pages;
    c->ctx_most = config->ctx;
    if (config->costs.layer_bytes) {
        c->layer_bytes = mem_alloc(config->n_layers * sizeof *c->layer_bytes);
        memcpy(c->layer_bytes, config->costs.layer_bytes,
               config->n_layers * sizeof *c->layer_bytes);
    }
    c->cfg.costs.layer_bytes = c->layer_bytes;
    room__set_pages(c, c->layer_bytes ? 0 : config->n_pages); /* or when the first plan is made */
    c->arena.budget = STEP_ARENA_BYTES;
    for (uint32_t i = 0; i < LIMIT_STAGES; i++) c->replica.stage[i] = NO_WORKER;
    c->standing = VERDICTS;
    c->asked = mem_zalloc((size_t)config->window * LIMIT_STEP_RUNS * sizeof *c->asked);
    c->status_text = mem_zalloc(LIMIT_TEXT_BYTES);
    (void)snprintf(c->replica.why, sizeof c->replica.why, "waiting for %u worker%s",
                   config->n_stages, config->n_stages == 1 ? "" : "s");
    return c;
}

void core_close(struct core *c)
{
    if (!c) return;
    for (uint32_t i = 0; i < c->cfg.max_live; i++) {
        mem_free(c->requests[i].tokens);
        mem_free(c->requests[i].pages);
        mem_free((void *)(uintptr_t)c->requests[i].sampling.bias_ids);
        mem_free((void *)(uintptr_t)c->requests[i].sampling.bias);
    }
    imap_close(&c->by_id);
    arena_close(&c->arena);
    mem_free(c->requests);
    mem_free(c->running);
    mem_free(c->queued);
    mem_free(c->free_slots);
    mem_free(c->closed);
    mem_free(c->asked);
    mem_free(c->status_text);
    pages_close(c->pages);
    mem_free(c->twice);
    mem_free(c->layer_bytes);
    mem_free(c->actions);
    mem_free(c->eog);
    mem_free(c);
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
    if (!p) abort(); /* bounded by limits.h: more is a fault of ours */
    return p;
}

static const char *format_text(struct core *c, const char *format, va_list args)
{
    char *text = core__alloc(c, LIMIT_TEXT_BYTES);
    (void)vsnprintf(text, LIMIT_TEXT_BYTES, format, args);
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

const char *core__no_replica(struct core *c)
{
    const struct replica *r = &c->replica;
    char held[LIMIT_TEXT_BYTES];
    bool more = r->lost[0] && strcmp(r->lost, r->why) != 0;
    fleet__held(c, held, sizeof held);
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

struct actions core_step(struct core *c, const struct event *e)
{
    c->now_ns = e->now_ns;
    c->n_actions = 0;
    arena_reset(&c->arena);
    switch (e->type) {
    case EV_FROM_WORKER: replica__from_worker(c, e->from.msg, e->from.address); break;
    case EV_LINK_UP: replica__link(c, e->link.epoch, true); break;
    case EV_LINK_LOST: replica__link(c, e->link.epoch, false); break;
    case EV_RESULT:
        if (replica__result(c, e->result)) request__results(c, e->result);
        break;
    case EV_SUBMIT: request__submit(c, e); break;
    case EV_CANCEL:
        request__by_id(c, e->request.request, STATUS_CANCELLED, "", e->request.why);
        break;
    case EV_STOP: request__by_id(c, e->request.request, STATUS_OK, "stop", ""); break;
    case EV_TICK:
        replica__tick(c, e->tick.lost_ns);
        request__tick(c);
        break;
    case EV_COMPOSE: sched__compose(c); break;
    }
    if (c->replica.n_flight == 0 && c->n_running == 0) c->replica.rested = true;
    return (struct actions){c->actions, c->n_actions};
}

static const char *const state_names[] = {"waiting", "loading", "linking", "probing", "ready"};

/* What is waited for, and who is held down. */
static const char *why_of(const struct core *c)
{
    const char *why = c->replica.why;
    char held[LIMIT_TEXT_BYTES];
    fleet__held(c, held, sizeof held);
    (void)snprintf(c->status_text, LIMIT_TEXT_BYTES, "%.200s%s%.300s", why,
                   why[0] && held[0] ? "; " : "", held);
    return c->status_text;
}

static const char *worker_state(const struct core *c, const struct worker *w)
{
    if (c->replica.state == REPLICA_READY || c->replica.state == REPLICA_PROBING) return "serving";
    return w->linked ? "linked" : w->ready ? "loaded" : "loading";
}

void core_status(const struct core *c, struct msg_status *ret)
{
    const struct replica *r = &c->replica;
    *ret = (struct msg_status){
        .ready = r->state == REPLICA_READY, .model = c->model_path, .messages_dropped = c->dropped};
    struct pages_stats pages = pages_stats(c->pages);
    uint64_t unused = 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        const struct request *x = &c->requests[c->running[i]];
        unused += (uint64_t)x->n_pages * c->cfg.page - x->n_issued;
    }
    ret->running = c->n_running;
    ret->queued = c->n_queued;
    ret->replica = (struct msg_replica_status){.name = "a",
                                               .state = state_names[r->state],
                                               .why = why_of(c),
                                               .generation = r->generation,
                                               .pages_total = c->cfg.n_pages,
                                               .pages_free = pages.n_free + pages.n_cached,
                                               .sequences_max = r->sequences_max,
                                               .steps = r->steps,
                                               .steps_mixed = r->steps_mixed,
                                               .wire_ns = r->wire_sum_ns,
                                               .queue_ns = r->queue_sum_ns,
                                               .cache = {.pages_cached = pages.n_cached,
                                                         .pages_held = pages.n_held,
                                                         .positions_unused = unused,
                                                         .lookups = c->prefix_lookups,
                                                         .hits = c->prefix_hits,
                                                         .tokens_saved = c->tokens_saved,
                                                         .tokens_computed = c->tokens_computed,
                                                         .evicted = pages.evicted,
                                                         .preemptions = c->preemptions}};
    for (uint32_t i = 0; i < c->cfg.n_stages; i++) {
        if (r->stage[i] == NO_WORKER) continue;
        const struct worker *w = &c->workers[r->stage[i]];
        ret->replica.workers[ret->replica.n_workers++] =
            (struct msg_worker_status){.name = w->hello.name,
                                       .state = worker_state(c, w),
                                       .isa = w->hello.isa,
                                       .pid = w->hello.pid,
                                       .threads = w->hello.threads,
                                       .layer_first = r->first[i],
                                       .layer_last = r->last[i],
                                       .heartbeat = w->heartbeat,
                                       .load_done = w->load_done,
                                       .load_total = w->load_total,
                                       .compute_ns = w->compute_ns,
                                       .idle_ns = w->idle_ns,
                                       .cpu_waiting = w->waiting,
                                       .faults = c->records[w->record].faults};
    }
}

uint64_t core_dropped(const struct core *c)
{
    return c->dropped;
}

uint32_t core_n_sequences(const struct core *c)
{
    return c->n_running + c->n_queued;
}

struct core_sequence core_sequence_at(const struct core *c, uint32_t idx)
{
    uint32_t slot = idx < c->n_running ? c->running[idx] : c->queued[idx - c->n_running];
    const struct request *r = &c->requests[slot];
    return (struct core_sequence){.request = r->id,
                                  .running = r->running,
                                  .class = r->running ? r->class : r->asked,
                                  .n_pages = r->n_pages,
                                  .n_issued = r->n_issued,
                                  .arrival = r->arrival,
                                  .pages = r->pages};
}

struct pages_stats core_pages(const struct core *c)
{
    return pages_stats(c->pages);
}

struct page_view core_page_at(const struct core *c, uint32_t page)
{
    return pages_view(c->pages, page);
}

uint32_t core_in_flight(const struct core *c)
{
    return c->replica.n_flight;
}
