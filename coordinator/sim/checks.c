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

/* The token after a position, from the parameters that the last stage was told and the position's
 * tag. */
int32_t check__choose(const struct msg_sampling *s, uint32_t sample, uint64_t tag)
{
    return (int32_t)(check__mix(check__mix(s->seed, s->boundary * 16 + sample), tag) % WORLD_VOCAB);
}

void check__oracle(struct world *w, struct world_request *r)
{
    const struct msg_sampling s = {.seed = r->seed, .boundary = r->n_prompt};
    uint32_t limit = r->n_prompt + r->max_new;
    if (limit > w->cfg.ctx) limit = w->cfg.ctx;
    uint64_t tag = 1;
    for (uint32_t p = 0; p < limit; p++) {
        if (p >= r->n_prompt) {
            r->tokens[p] = check__choose(&s, r->sample, tag);
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

/* A position's place in the shadow of a pool. */
static uint32_t place(const struct world *w, const uint32_t *pages, uint32_t pos)
{
    return pages[pos / w->cfg.page] * w->cfg.page + pos % w->cfg.page;
}

/* 2. Shadow KV: a row finds the right tag at every position before it, and brings the right token.
 * 6. What another request writes is read in later Steps only. */
void check__run(struct world *w, struct world_worker *s, uint64_t step, const struct msg_run *r)
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
        for (uint32_t k = 0; k < p; k++) {
            uint32_t at = place(w, r->pages, k);
            if (s->tags[at] != q->tags[k])
                world__fail(w, "request %" PRIu64 ": row %" PRIu32 " reads a wrong KV at %" PRIu32,
                            r->request, p, k);
            else if (s->wrote_in[at] == step && s->wrote_by[at] != r->request)
                world__fail(w, "request %" PRIu64 " reads what %" PRIu64 " writes in Step %" PRIu64,
                            r->request, s->wrote_by[at], step);
        }
        uint32_t at = place(w, r->pages, p);
        s->tags[at] = q->tags[p];
        s->wrote_in[at] = step;
        s->wrote_by[at] = r->request;
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

/* Live requests of a client, by our count: the one that is being refused has ended already. */
static uint32_t live_of(const struct world *w, uint64_t client)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        const struct world_request *r = &w->requests[i];
        n += r->submitted && !r->ended && r->client == client;
    }
    return n;
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
        wrong = core_n_sequences(w->core) < w->cfg.max_live &&
                        live_of(w, r->client) < w->cfg.max_per_client
                    ? "refused with room to spare"
                    : NULL;
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

/* A run's rows as the core has them written: all before the first are there, in pages that it may
 * read, and none is issued twice but after a preemption. */
static void check_issued(struct world *w, const struct msg_step *s, const struct msg_run *r,
                         struct world_request *q)
{
    struct msg_status now;
    core_status(w->core, &now);
    for (uint32_t k = 0; k < r->first_pos; k++)
        if (w->pages[r->pages[k / w->cfg.page]].tags[k % w->cfg.page] != q->tags[k]) {
            world__fail(
                w, "request %" PRIu64 ": rows from %" PRIu32 ", but %" PRIu32 " was never issued",
                q->id, r->first_pos, k);
            return;
        }
    if (r->first_pos < q->issued && now.replica.cache.preemptions == q->preemptions)
        world__fail(w, "request %" PRIu64 ": rows from %" PRIu32 " again after %" PRIu32, q->id,
                    r->first_pos, q->issued);
    if (r->attempt > q->lost + 1)
        world__fail(w, "request %" PRIu64 ": attempt %" PRIu32, q->id, r->attempt);
    q->issued = r->first_pos + r->n_rows;
    q->preemptions = w->preemptions;
    for (uint32_t p = r->first_pos; p < q->issued && p < q->n_oracle; p++) {
        struct world_page *page = &w->pages[r->pages[p / w->cfg.page]];
        page->tags[p % w->cfg.page] = q->tags[p];
        page->wrote_in = s->number;
    }
}

/* 6. Positions in order; 7. attempts and rows within their limits. */
static void check_step(struct world *w, const struct msg_step *s)
{
    uint32_t rows = 0, logits = 0;
    w->steps_now++;
    for (uint32_t i = 0; i < s->n_runs && !w->failed; i++) {
        const struct msg_run *r = &s->runs[i];
        rows += r->n_rows;
        logits += r->n_logits;
        if (r->kind == RUN_PROBE) continue;
        struct world_request *q = check__find(w, r->request);
        if (!q || q->ended)
            world__fail(w, "a Step with rows of request %" PRIu64 ", which has ended", r->request);
        else
            check_issued(w, s, r, q);
    }
    if (rows != s->rows || rows > w->cfg.rows_max || logits > w->cfg.logits_max)
        world__fail(w, "Step %" PRIu64 " has %" PRIu32 " rows, %" PRIu32 " logits", s->number, rows,
                    logits);
}

void check__new_generation(struct world *w)
{
    memset(w->pages, 0, sizeof w->pages);
    w->first = (struct world_first){0};
    for (uint32_t k = 0; k < w->n_requests; k++) {
        w->requests[k].issued = 0;
        w->requests[k].lost += w->requests[k].submitted;
    }
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

/* 4. Conservation: a page is held by as many tables as it says, or cached, or free. */
static void check_pages(struct world *w)
{
    uint32_t count[WORLD_PAGES_MAX] = {0}, n_free = 0, n_cached = 0, n_held = 0;
    struct pages_stats told = core_pages(w->core);
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++) {
        struct core_sequence s = core_sequence_at(w->core, i);
        for (uint32_t k = 0; k < s.n_pages; k++) count[s.pages[k]]++;
        if (s.n_pages * w->cfg.page < s.n_issued || (!s.running && s.n_pages))
            world__fail(w, "request %" PRIu64 ": %" PRIu32 " rows in %" PRIu32 " pages", s.request,
                        s.n_issued, s.n_pages);
    }
    for (uint32_t p = 0; p < w->cfg.n_pages; p++) {
        struct page_view v = core_page_at(w->core, p);
        n_free += v.free;
        n_cached += !v.free && v.count == 0;
        n_held += v.count > 0;
        if (v.count != count[p] || (v.free && (v.entered || v.count)) ||
            (!v.free && !v.count && !v.entered))
            world__fail(w, "page %" PRIu32 " is in %" PRIu32 " tables, counted %" PRIu32, p,
                        count[p], v.count);
    }
    if (n_free != told.n_free || n_cached != told.n_cached || n_held != told.n_held ||
        n_free + n_cached + n_held != w->cfg.n_pages)
        world__fail(w,
                    "%" PRIu32 " free, %" PRIu32 " cached, %" PRIu32 " held of %" PRIu32 " pages",
                    n_free, n_cached, n_held, w->cfg.n_pages);
}

/* The page of the entry with this serial. */
static uint32_t page_of(const struct world *w, uint64_t serial)
{
    for (uint32_t p = 0; p < w->cfg.n_pages; p++)
        if (core_page_at(w->core, p).serial == serial) return p;
    return UINT32_MAX;
}

/* The tag of the last position of an entry: of the tokens on its way from the root. False: an entry
 * on the way is missing. */
static bool tag_of_entry(const struct world *w, uint32_t page, uint64_t *ret_tag)
{
    struct page_view v = core_page_at(w->core, page);
    uint64_t tag = 1;
    if (v.parent) {
        uint32_t parent = page_of(w, v.parent);
        if (parent == UINT32_MAX || !tag_of_entry(w, parent, &tag)) return false;
    }
    for (uint32_t i = 0; i < w->cfg.page; i++) tag = check__mix(tag, (uint64_t)v.tokens[i] + 1);
    *ret_tag = tag;
    return true;
}

/* 5. Index truth: an entry has its parents, all its rows were issued with the tokens that it names,
 * and nothing is written to it later. */
static void check_index(struct world *w)
{
    for (uint32_t p = 0; p < w->cfg.n_pages && !w->failed; p++) {
        struct page_view v = core_page_at(w->core, p);
        struct world_page *page = &w->pages[p];
        uint64_t tag;
        if (!v.entered || (v.serial == page->serial && page->wrote_in == page->sealed_in)) continue;
        if (v.serial == page->serial)
            world__fail(w, "Step %" PRIu64 " writes page %" PRIu32 ", which is in the index",
                        page->wrote_in, p);
        else if (!tag_of_entry(w, p, &tag))
            world__fail(w, "page %" PRIu32 " is in the index without its parents", p);
        else if (page->tags[w->cfg.page - 1] != tag)
            world__fail(w, "page %" PRIu32 " is in the index, but not what was written", p);
        page->serial = v.serial;
        page->sealed_in = page->wrote_in;
    }
}

/* 8. The most urgent sequence gains a position at least each window + 1 Steps; its place is right.
 */
static void check_first(struct world *w)
{
    struct world_first *f = &w->first;
    if (core_n_sequences(w->core) == 0) return;
    struct core_sequence s = core_sequence_at(w->core, 0);
    const struct world_request *q = check__find(w, s.request);
    for (uint32_t i = 0; i < core_n_sequences(w->core); i++) {
        struct core_sequence x = core_sequence_at(w->core, i);
        enum priority asked = check__find(w, x.request)->class;
        if (x.running && (x.class < s.class || (x.class == s.class && x.arrival < s.arrival)))
            world__fail(w, "request %" PRIu64 " is more urgent than the first", x.request);
        if (x.class > asked || (x.class < asked && x.class < PRIORITY_HIGH))
            world__fail(w, "request %" PRIu64 " is of class %" PRIu32, x.request, x.class);
    }
    if (!s.running || s.request != f->request || s.n_issued != f->n_issued ||
        q->n_tokens != f->n_tokens)
        *f = (struct world_first){s.request, s.n_issued, q->n_tokens, 0};
    else
        f->steps += w->steps_now;
    if (f->steps > w->cfg.window + 1)
        world__fail(w,
                    "request %" PRIu64 ", the most urgent, has stood still for %" PRIu32 " Steps",
                    s.request, f->steps);
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
    if (!w->failed) check_index(w);
    check_first(w);
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
