/* Composing Steps: decodes first, then prefill chunks in order of arrival, up to the row limit,
 * while the window has room. And the pages behind them: a request is admitted when all the pages it
 * can ever need can be promised, and takes them one by one as its rows are issued. */
#include "coordinator/core_state.h"

#include "common/base/mem.h"

#include <string.h>

struct draft {
    struct msg_step *step;
    struct msg_run *runs;
    uint32_t n_runs, rows, logits, n_results;
    bool decodes, prefills;
};

static bool admit(struct core *c, struct request *r)
{
    uint64_t end = (uint64_t)r->n_prompt + r->max_new - 1;
    if (end > c->cfg.ctx) end = c->cfg.ctx;
    uint32_t need = (uint32_t)((end + LIMIT_PAGE - 1) / LIMIT_PAGE);
    if (need > c->cfg.n_pages - c->n_reserved) return false;
    r->pages = mem_alloc(need * sizeof *r->pages);
    r->n_pages = 0;
    r->n_reserved = need;
    c->n_reserved += need;
    r->running = true;
    return true;
}

void sched__release(struct core *c, struct request *r)
{
    uint32_t first = MUTATED(PAGE_EARLY) && r->n_issued >= r->n_prompt && r->n_pages ? 1 : 0;
    for (uint32_t i = first; i < r->n_pages; i++) c->free_pages[c->n_free++] = r->pages[i];
    c->n_reserved -= r->n_reserved;
    mem_free(r->pages);
    r->pages = NULL;
    r->n_pages = r->n_reserved = r->n_issued = 0;
    r->running = false;
}

static void take_pages(struct core *c, struct request *r, uint32_t end)
{
    while (r->n_pages * LIMIT_PAGE < end) r->pages[r->n_pages++] = c->free_pages[--c->n_free];
}

static void add_run(struct core *c, struct draft *d, struct request *r, uint32_t n)
{
    uint32_t end = r->n_issued + n;
    bool decode = r->n_issued >= r->n_prompt && n == 1;
    take_pages(c, r, end);
    struct msg_run *run = &d->runs[d->n_runs++];
    *run = (struct msg_run){.request = r->id,
                            .attempt = r->attempt,
                            .kind = decode ? RUN_DECODE : RUN_PREFILL,
                            .first_pos = r->n_issued,
                            .n_rows = n,
                            .n_logits = end == r->n_tokens,
                            .n_pages = (end + LIMIT_PAGE - 1) / LIMIT_PAGE,
                            .tokens = r->tokens + r->n_issued,
                            .pages = r->pages};
    if (run->n_logits && !r->opened) {
        run->has_open = r->opened = true;
        run->open = r->sampling;
    }
    r->n_issued = end;
    d->rows += n;
    d->logits += run->n_logits;
    d->n_results += run->n_logits > 0;
    d->decodes |= decode;
    d->prefills |= !decode;
    if (MUTATED(PAGE_EARLY) && !decode && end >= r->n_prompt)
        c->free_pages[c->n_free++] = r->pages[0];
}

/* Rows of r that may be issued now: all its known tokens' positions. */
static uint32_t rows_due(const struct request *r)
{
    return r->n_tokens - r->n_issued;
}

/* In turn, beginning behind the last one served, so that more sequences than fit a Step all move.
 * One row's logits are left for a prompt that ends in this Step. */
static void add_decodes(struct core *c, struct draft *d, bool prefill_waits)
{
    uint32_t most = c->cfg.logits_max - (prefill_waits && c->cfg.logits_max > 1);
    uint32_t start = c->decode_from;
    for (uint32_t i = 0; i < c->n_live; i++) {
        uint32_t at = (start + i) % c->n_live;
        struct request *r = &c->requests[c->order[at]];
        if (d->rows == c->cfg.rows_max || d->logits >= most || d->n_runs == LIMIT_STEP_RUNS) return;
        if (!r->running || rows_due(r) != 1 || r->n_issued < r->n_prompt) continue;
        add_run(c, d, r, 1);
        c->decode_from = at + 1;
    }
}

static bool any_prefill(const struct core *c)
{
    for (uint32_t i = 0; i < c->n_live; i++) {
        const struct request *r = &c->requests[c->order[i]];
        if (r->running && rows_due(r) && (rows_due(r) > 1 || r->n_issued < r->n_prompt))
            return true;
    }
    return false;
}

static void add_prefills(struct core *c, struct draft *d)
{
    for (uint32_t i = 0; i < c->n_live; i++) {
        struct request *r = &c->requests[c->order[i]];
        uint32_t room = c->cfg.rows_max - d->rows;
        if (room == 0 || d->n_runs == LIMIT_STEP_RUNS) return;
        if (!r->running && !admit(c, r)) return; /* nobody overtakes the one that waits for pages */
        uint32_t n = rows_due(r);
        if (n == 0 || (n == 1 && r->n_issued >= r->n_prompt)) continue;
        if (n <= room && d->logits == c->cfg.logits_max) n--; /* its last row waits a Step */
        if (n > room) n = room;
        if (n) add_run(c, d, r, n);
    }
}

static struct draft new_draft(struct core *c)
{
    struct draft d = {.step = core__alloc(c, sizeof *d.step),
                      .runs = core__alloc(c, LIMIT_STEP_RUNS * sizeof *d.runs)};
    return d;
}

static void issue(struct core *c, struct draft *d)
{
    struct replica *r = &c->replica;
    *d->step = (struct msg_step){.epoch = replica__epoch(c),
                                 .number = r->next_number++,
                                 .rows = d->rows,
                                 .width = c->cfg.width,
                                 .n_runs = d->n_runs,
                                 .runs = d->runs};
    if (c->n_closed) {
        uint64_t *closed = core__alloc(c, c->n_closed * sizeof *closed);
        memcpy(closed, c->closed, c->n_closed * sizeof *closed);
        d->step->closed = closed;
        d->step->n_closed = c->n_closed;
        c->n_closed = 0;
    }
    r->flight[r->n_flight++] =
        (struct in_flight){d->step->number, c->now_ns, d->rows, d->n_results};
    core__act(c, ACT_STEP)->step = d->step;
}

void sched__compose(struct core *c)
{
    struct replica *r = &c->replica;
    while (r->state == REPLICA_READY && r->n_flight < c->cfg.window) {
        struct draft d = new_draft(c);
        add_decodes(c, &d, any_prefill(c));
        add_prefills(c, &d);
        if (d.n_runs == 0) return;
        issue(c, &d);
        r->steps++;
        r->steps_mixed += d.decodes && d.prefills;
        if (d.n_runs > r->sequences_max) r->sequences_max = d.n_runs;
    }
}

/* One row through every stage of a new generation. Its page goes back at once: whatever is written
 * there next is written by a later Step. */
void sched__probe(struct core *c)
{
    static const int32_t token = 0;
    static const uint32_t page = 0;
    struct draft d = new_draft(c);
    d.rows = d.n_runs = 1;
    d.runs[0] = (struct msg_run){.kind = RUN_PROBE,
                                 .n_rows = 1,
                                 .n_logits = 1,
                                 .n_pages = 1,
                                 .tokens = &token,
                                 .pages = &page};
    issue(c, &d);
}
