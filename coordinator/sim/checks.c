/* The oracle and what must hold after every event. Nothing here shares code with the core. */
#include "coordinator/sim/world.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <string.h>

#define DEADLINE_SLACK_NS (2 * NS_PER_S)
#define ATTEMPTS_MAX 3u

uint64_t check__mix(uint64_t a, uint64_t b)
{
    struct rng r = {a ^ (b * 0x9E3779B97F4A7C15u)};
    return rng_u64(&r) ^ b;
}

/* The token after a position, from the request's seed and the position's tag. */
int32_t check__choose(const struct world_request *r, uint64_t tag)
{
    return (int32_t)(check__mix(r->seed, tag) % WORLD_VOCAB);
}

void check__oracle(struct world *w, struct world_request *r)
{
    uint32_t limit = r->n_prompt + r->max_new;
    if (limit > w->cfg.ctx) limit = w->cfg.ctx;
    uint64_t tag = 1;
    for (uint32_t p = 0; p < limit; p++) {
        if (p >= r->n_prompt) {
            r->tokens[p] = check__choose(r, tag);
            if (r->tokens[p] == WORLD_EOG) break;
        }
        tag = check__mix(tag, (uint64_t)r->tokens[p] + 1);
        r->tags[p] = tag;
        r->n_oracle = p + 1;
    }
}

struct world_request *check__find(struct world *w, uint64_t id)
{
    return id >= 1 && id <= w->n_requests ? &w->requests[id - 1] : NULL;
}

/* 2. Shadow KV: a row finds the right tag at every position before it, and brings the right token.
 */
void check__run(struct world *w, struct world_worker *s, const struct msg_run *r)
{
    struct world_request *q = check__find(w, r->request);
    if (!q) {
        world__fail(w, "a Step names request %" PRIu64, r->request);
        return;
    }
    for (uint32_t i = 0; i < r->n_rows && !w->failed; i++) {
        uint32_t p = r->first_pos + i;
        if (p >= q->n_oracle || r->tokens[i] != q->tokens[p]) {
            world__fail(w, "request %" PRIu64 ": row %" PRIu32 " brings token %" PRId32, r->request,
                        p, r->tokens[i]);
            return;
        }
        for (uint32_t k = 0; k < p; k++)
            if (s->tags[r->pages[k / LIMIT_PAGE] * LIMIT_PAGE + k % LIMIT_PAGE] != q->tags[k]) {
                world__fail(w, "request %" PRIu64 ": row %" PRIu32 " reads a wrong KV at %" PRIu32,
                            r->request, p, k);
                return;
            }
        s->tags[r->pages[p / LIMIT_PAGE] * LIMIT_PAGE + p % LIMIT_PAGE] = q->tags[p];
    }
}

/* 1. Exactly once. */
static void check_tokens(struct world *w, const struct action *a)
{
    struct world_request *r = check__find(w, a->tokens.request);
    if (!r || r->ended) {
        world__fail(w, "tokens for request %" PRIu64 ", which has ended", a->tokens.request);
        return;
    }
    for (uint32_t i = 0; i < a->tokens.n; i++) {
        uint32_t p = r->n_prompt + a->tokens.first_index + i;
        if (p != r->n_tokens || p >= r->n_oracle || a->tokens.tokens[i] != r->tokens[p]) {
            world__fail(w, "request %" PRIu64 ": token %" PRId32 " at %" PRIu32 ", have %" PRIu32,
                        r->id, a->tokens.tokens[i], p, r->n_tokens);
            return;
        }
        r->n_tokens++;
        w->report->tokens++;
    }
}

/* Every status has its reason. */
static void check_reason(struct world *w, const struct world_request *r, enum status status)
{
    const char *wrong = NULL;
    switch (status) {
    case STATUS_OK: break;
    case STATUS_CANCELLED: wrong = r->cancelled ? NULL : "cancelled by nobody"; break;
    case STATUS_DEADLINE_EXCEEDED:
        wrong = w->now_ns >= r->deadline_at_ns ? NULL : "ended before its deadline";
        break;
    case STATUS_UNAVAILABLE:
        wrong = w->was_ready && r->lost == 0 ? "unavailable while all was well" : NULL;
        break;
    case STATUS_INTERNAL: wrong = r->lost < ATTEMPTS_MAX ? "given up too early" : NULL; break;
    case STATUS_RESOURCE_EXHAUSTED:
        wrong = core_n_sequences(w->core) < w->cfg.max_live ? "refused with room to spare" : NULL;
        break;
    case STATUS_INVALID_ARGUMENT:
        wrong = r->n_prompt < w->cfg.ctx ? "refused though it fits" : NULL;
        break;
    default: wrong = "a status that nothing asks for"; break;
    }
    if (wrong) world__fail(w, "request %" PRIu64 ": %s", r->id, wrong);
}

static void check_terminal(struct world *w, const struct action *a)
{
    struct world_request *r = check__find(w, a->end.request);
    if (!r || r->ended) {
        world__fail(w, "request %" PRIu64 " ended twice", a->end.request);
        return;
    }
    r->ended = true;
    bool complete = r->n_tokens == r->n_oracle;
    if (a->end.status == STATUS_OK && !complete && !r->stopped_by_us)
        world__fail(w, "request %" PRIu64 ": OK after %" PRIu32 " of %" PRIu32 " tokens", r->id,
                    r->n_tokens, r->n_oracle);
    check_reason(w, r, a->end.status);
    if (a->end.status == STATUS_OK) w->report->completed++;
    w->report->requests++;
}

/* 6. Positions in order; 7. attempts and rows within their limits. */
static void check_step(struct world *w, const struct msg_step *s)
{
    uint32_t rows = 0, logits = 0;
    for (uint32_t i = 0; i < s->n_runs; i++) {
        const struct msg_run *r = &s->runs[i];
        rows += r->n_rows;
        logits += r->n_logits;
        if (r->kind == RUN_PROBE) continue;
        struct world_request *q = check__find(w, r->request);
        if (!q || q->ended) {
            world__fail(w, "a Step with rows of request %" PRIu64 ", which has ended", r->request);
            return;
        }
        if (r->first_pos != q->issued)
            world__fail(w, "request %" PRIu64 ": rows from %" PRIu32 " after %" PRIu32, q->id,
                        r->first_pos, q->issued);
        if (r->attempt > ATTEMPTS_MAX)
            world__fail(w, "request %" PRIu64 ": attempt %" PRIu32, q->id, r->attempt);
        q->issued = r->first_pos + r->n_rows;
    }
    if (rows != s->rows || rows > w->cfg.rows_max || logits > w->cfg.logits_max)
        world__fail(w, "Step %" PRIu64 " has %" PRIu32 " rows, %" PRIu32 " logits", s->number, rows,
                    logits);
}

void check__action(struct world *w, const struct action *a)
{
    switch (a->type) {
    case ACT_TOKENS: check_tokens(w, a); break;
    case ACT_END: check_terminal(w, a); break;
    case ACT_STEP: check_step(w, a->step); break;
    default: break;
    }
}

/* 4. Conservation: every page is free or in exactly one table (nothing is shared yet). */
static void check_pages(struct world *w)
{
    uint8_t count[WORLD_PAGES_MAX] = {0};
    const uint32_t *free_pages;
    uint32_t n_free = core_free_pages(w->core, &free_pages), held = 0;
    for (uint32_t i = 0; i < n_free; i++) count[free_pages[i]]++;
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++) {
        struct core_sequence s = core_sequence_at(w->core, i);
        for (uint32_t k = 0; k < s.n_pages; k++) count[s.pages[k]]++;
        held += s.n_pages;
        if (s.n_pages * LIMIT_PAGE < s.n_issued)
            world__fail(w, "request %" PRIu64 ": %" PRIu32 " rows in %" PRIu32 " pages", s.request,
                        s.n_issued, s.n_pages);
    }
    for (uint32_t p = 0; p < w->cfg.n_pages; p++)
        if (count[p] != 1)
            world__fail(w, "page %" PRIu32 " is in %u places", p, (unsigned)count[p]);
    if (n_free + held != w->cfg.n_pages)
        world__fail(w, "%" PRIu32 " free + %" PRIu32 " held of %" PRIu32 " pages", n_free, held,
                    w->cfg.n_pages);
}

/* 8. Nobody outlives the deadline. */
static void check_deadlines(struct world *w)
{
    for (uint32_t i = 0; i < w->n_requests; i++) {
        const struct world_request *r = &w->requests[i];
        uint64_t limit = r->deadline_at_ns + DEADLINE_SLACK_NS;
        if (w->stalled_until_ns + DEADLINE_SLACK_NS > limit)
            limit = w->stalled_until_ns + DEADLINE_SLACK_NS;
        if (r->submitted && !r->ended && w->now_ns > limit)
            world__fail(w, "request %" PRIu64 " lives beyond its deadline", r->id);
    }
}

void check__state(struct world *w)
{
    check_pages(w);
    check_deadlines(w);
    if (core_in_flight(w->core) > w->cfg.window)
        world__fail(w, "%" PRIu32 " Steps in flight", core_in_flight(w->core));
    if (core_n_sequences(w->core) > w->cfg.max_live)
        world__fail(w, "%" PRIu32 " requests live", core_n_sequences(w->core));
}

/* Once faults have stopped for long enough, all have ended and a replica is ready. */
void check__end(struct world *w)
{
    for (uint32_t i = 0; i < w->n_requests && !w->failed; i++)
        if (w->requests[i].submitted && !w->requests[i].ended)
            world__fail(w, "request %" PRIu64 " never ended", w->requests[i].id);
    struct msg_status s;
    core_status(w->core, &s);
    if (!w->failed && w->faultless && s.replica.generation != 1)
        world__fail(w, "nothing broke, but generation %" PRIu32 " began: %s", s.replica.generation,
                    s.replica.why);
    if (!w->failed && !s.ready)
        world__fail(w, "faults have stopped, but nothing is ready: %s", s.replica.why);
}
