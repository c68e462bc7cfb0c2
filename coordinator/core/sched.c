/* Composing Steps. First come decodes, in turn; then, by urgency, chunks of prompts, as many rows
 * as the Step's predicted time allows. Pages are taken as rows are issued; a prompt's pages that
 * the prefix index has are not computed again. */
#include "coordinator/core/core_state.h"

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <string.h>

/* Beside decodes, prefill may take this many percent of the time that the decodes take, and where
 * more prompts wait than sequences decode, as many times more; but the most urgent prompt has some
 * rows each window + 1 Steps, however long they take. */
#define PREFILL_PERCENT 50u
#define CHUNK_LEAST 2u
#define TURNS 8u /* prompts for which a more urgent one leaves time */

/* While nothing decodes, a Step is cut so that all stages have work; and the Steps in flight take
 * no longer together than FLIGHT_MOST_NS, so that who comes soon has a turn, or each than
 * STEP_MOST_ROWS times one row, so that weights are read for many rows; a part of that while one is
 * about to decode. */
#define SHARE_LEAST 128u /* rows that it has nevertheless */
#define FLIGHT_MOST_NS (150 * NS_PER_MS)
#define STEP_MOST_ROWS 8u
#define SOON_PARTS 4u

struct draft {
    struct msg_step *step;
    struct msg_run *runs;
    uint64_t number;
    uint32_t n_runs;
    uint32_t n_decodes; /* chosen and not added yet */
    uint32_t n_pages;   /* in tables of runs, chosen ones included */
    struct cost_work work;
    uint64_t limit_ns;  /* what it should take; 0: no limit */
    uint32_t chunk;     /* rows of prompts that it may still take */
    uint32_t n_prompts; /* that have not had their turn */
    bool decodes, prefills;
    const struct request *growing[LIMIT_STEP_RUNS]; /* their last page here is not whole yet, */
    uint32_t n_growing;                             /* and all its tokens are known */
    bool seen_first;                                /* the most urgent prompt has had its turn */
    bool full;                                      /* no prompt gets a row more */
};

/* Rows of r that may be issued now: all its known tokens' positions. */
static uint32_t rows_due(const struct request *r)
{
    return r->n_tokens - r->n_issued;
}

static bool decoding(const struct request *r)
{
    return r->n_issued >= r->n_prompt && rows_due(r) <= 1;
}

static struct request *running(const struct core *c, uint32_t i)
{
    return &c->requests[c->running[i]];
}

/* ---- what runs at this time ---- */

struct load {
    uint32_t n_decoding, n_due; /* sequences that decode, and those not in flight */
    bool soon;                  /* one will: its first token is on the way */
    uint64_t depth;             /* positions of those that decode */
    uint64_t prefill;           /* rows of prompts that are due, */
    uint32_t n_prompts;         /* and of how many requests */
};

static struct load load_of(const struct core *c)
{
    struct load l = {0};
    for (uint32_t i = 0; i < c->n_running; i++) {
        const struct request *r = running(c, i);
        if (decoding(r)) {
            if (r->n_tokens == r->n_prompt) {
                l.soon |= r->max_new > 1;
                continue;
            }
            l.n_decoding++;
            l.n_due += rows_due(r);
            l.depth += r->n_issued;
        } else {
            l.prefill += rows_due(r);
            l.n_prompts += rows_due(r) > 0;
        }
    }
    return l;
}

/* Steps that must be in flight to keep every stage busy. */
static uint32_t steps_wanted(const struct core *c)
{
    uint32_t n = (uint32_t)(c->replica.trips + 0.5);
    if (n > c->cfg.window) n = c->cfg.window;
    return n > c->cfg.n_stages ? n : c->cfg.n_stages;
}

/* Sequences that start together would otherwise clump into one Step and leave the rest of the
 * chain empty. */
static uint32_t decodes_a_step(const struct core *c, const struct load *l)
{
    uint32_t n = steps_wanted(c);
    return (l->n_decoding + n - 1) / n;
}

/* Most predicted time of one Step without decodes. */
static uint64_t most_alone(const struct core *c)
{
    uint64_t rows = STEP_MOST_ROWS * cost_predict(&c->replica.cost, (struct cost_work){1, 1, 0});
    uint64_t share = FLIGHT_MOST_NS / c->cfg.window;
    return share > rows ? share : rows;
}

/* While sequences decode, the limit is for the Steps of a round trip together. */
static uint64_t limit_beside_decodes(const struct core *c, const struct load *l)
{
    const struct replica *r = &c->replica;
    uint32_t n = decodes_a_step(c, l);
    struct cost_work decodes = {n, n, l->depth * n / l->n_decoding};
    uint64_t each = cost_predict(&r->cost, decodes), prefill = each * PREFILL_PERCENT / 100;
    uint64_t crowd = prefill * l->n_prompts / l->n_decoding, most = most_alone(c) / SOON_PARTS;
    if (crowd > most) crowd = most;
    if (prefill < crowd) prefill = crowd;
    each = c->cfg.step_ns ? c->cfg.step_ns : each + prefill;
    uint64_t all = each * steps_wanted(c), under_way = 0;
    for (uint32_t i = 0; i < r->n_flight; i++)
        under_way += cost_predict(&r->cost, r->flight[i].work);
    return under_way >= all ? 1 : all - under_way < each ? all - under_way : each;
}

/* The Step's limits in predicted time (0: nothing is measured yet) and in rows of one prompt. */
static void set_limits(const struct core *c, const struct load *l, struct draft *d)
{
    d->limit_ns = 0;
    d->chunk = c->cfg.rows_max;
    if (l->n_decoding == 0 && c->cfg.n_stages > 1) {
        uint32_t parts = 2 * steps_wanted(c);
        uint64_t share = (l->prefill + parts - 1) / parts;
        if (share < SHARE_LEAST) share = SHARE_LEAST;
        if (share < d->chunk) d->chunk = (uint32_t)share;
    }
    if (c->replica.cost.n == 0) return;
    d->limit_ns =
        l->n_decoding ? limit_beside_decodes(c, l) : most_alone(c) / (l->soon ? SOON_PARTS : 1);
}

/* ---- runs ---- */

/* Pages of a table when the first `end` positions are in it. */
static uint32_t table_of(const struct core *c, uint32_t end)
{
    return (end + c->cfg.page - 1) / c->cfg.page;
}

static bool take_pages(struct core *c, struct request *r, uint32_t end)
{
    while (r->n_pages * c->cfg.page < end) {
        if (!queue__page(c, r, &r->pages[r->n_pages])) return false;
        r->n_pages++;
    }
    return true;
}

/* Full pages whose rows are all issued may be shared from the next Step on. */
static void enter_pages(struct core *c, struct draft *d, struct request *r)
{
    uint32_t page = c->cfg.page, issued = r->n_issued;
    while ((r->n_walked + 1) * page <= issued && (r->n_walked + 1) * page <= r->n_tokens &&
           r->n_walked < r->n_pages) {
        uint32_t mine = r->pages[r->n_walked];
        uint32_t kept =
            pages_enter(c->pages, &r->walk, r->tokens + r->n_walked * page, d->number, mine);
        if (kept != mine) c->twice[c->n_twice++] = mine;
        r->pages[r->n_walked++] = kept;
    }
}

static void add_run(struct core *c, struct draft *d, struct request *r, uint32_t n)
{
    uint32_t end = r->n_issued + n, n_pages = table_of(c, end);
    bool decode = decoding(r);
    uint32_t *pages =
        core__alloc(c, n_pages * sizeof *pages); /* the table may change before it is sent */
    memcpy(pages, r->pages, n_pages * sizeof *pages);
    struct msg_run *run = &d->runs[d->n_runs++];
    *run = (struct msg_run){.request = r->id,
                            .attempt = r->attempt,
                            .sample = r->sample,
                            .kind = decode ? RUN_DECODE : RUN_PREFILL,
                            .first_pos = r->n_issued,
                            .n_rows = n,
                            .n_logits = end == r->n_tokens,
                            .n_pages = n_pages,
                            .tokens = r->tokens + r->n_issued,
                            .pages = pages};
    if (run->n_logits && !r->opened) {
        run->has_open = r->opened = true;
        run->open = r->sampling;
    }
    for (uint32_t i = 0; i < n; i++) d->work.depth += r->n_issued + i;
    r->n_issued = end;
    r->put_in = c->draft;
    if (!r->begun_ns) r->begun_ns = c->now_ns;
    d->work.rows += n;
    d->work.logits += run->n_logits;
    d->decodes |= decode;
    d->prefills |= !decode;
    if (!decode) {
        c->tokens_computed += n;
        d->chunk -= n;
    }
    enter_pages(c, d, r);
}

/* ---- decodes ---- */

static bool choose(struct core *c, struct draft *d, uint32_t i)
{
    struct request *r = running(c, i);
    uint32_t n_pages = table_of(c, r->n_issued + 1);
    if (n_pages > LIMIT_STEP_PAGES - d->n_pages) return false;
    r->chosen_in = c->draft;
    d->n_pages += n_pages;
    d->n_decodes++;
    c->decode_from = i + 1;
    return true;
}

/* Whether one of `most` is kept for a prompt: where it is the only one, for the most urgent only.
 */
static bool left_for_prefill(const struct core *c, const struct load *l, uint32_t most)
{
    return l->prefill > 0 && (most > 1 || !decoding(running(c, 0)));
}

/* The most urgent request always, the others in turn, beginning behind the last one served. */
static void choose_decodes(struct core *c, struct draft *d, const struct load *l)
{
    const struct request *first = running(c, 0);
    uint32_t most = decodes_a_step(c, l), start = c->decode_from;
    uint32_t rows = c->cfg.rows_max - (left_for_prefill(c, l, c->cfg.rows_max) ? 1 : 0);
    uint32_t logits = c->cfg.logits_max - (left_for_prefill(c, l, c->cfg.logits_max) ? 1 : 0);
    uint32_t runs = LIMIT_STEP_RUNS - (l->prefill > 0 ? 1 : 0);
    if (most > rows) most = rows;
    if (most > logits) most = logits;
    if (most > runs) most = runs;
    if (l->n_due == 0 || most == 0) return;
    if (decoding(first) && rows_due(first) && choose(c, d, 0)) c->decode_from = start;
    for (uint32_t i = 0; i < c->n_running && d->n_decodes < most; i++) {
        uint32_t at = (start + i) % c->n_running;
        const struct request *r = running(c, at);
        if (!decoding(r) || !rows_due(r) || r->chosen_in == c->draft) continue;
        if (!choose(c, d, at)) return;
    }
}

/* ---- prefill ---- */

/* Whether all tokens of the page after those that r has walked are known. */
static bool knows_next_page(const struct core *c, const struct request *r)
{
    return (r->n_walked + 1) * c->cfg.page <= r->n_tokens;
}

/* Whether r's next page is the one that another request has begun to compute in this Step. */
static bool another_begins(struct core *c, const struct draft *d, struct request *r)
{
    size_t bytes = c->cfg.page * sizeof *r->tokens;
    for (uint32_t i = 0; i < d->n_growing && c->cfg.share; i++) {
        const struct request *x = d->growing[i];
        if (x->walk.serial == r->walk.serial && x->tenant == r->tenant &&
            memcmp(x->tokens + x->n_walked * c->cfg.page, r->tokens + r->n_walked * c->cfg.page,
                   bytes) == 0)
            return true;
    }
    return false;
}

/* Walks over the pages that others have computed, but for the last row's. False: the next one is
 * being computed in this very Step, and r rides behind. */
static bool find_prefix(struct core *c, struct draft *d, struct request *r)
{
    uint32_t page = c->cfg.page, n_hits = 0;
    enum pages_found found = PAGES_HIT;
    if (r->n_issued != r->n_walked * page) return true;
    while (r->n_pages > r->n_walked) pages_drop(c->pages, r->pages[--r->n_pages]);
    while (found == PAGES_HIT && r->n_issued + page < r->n_tokens) {
        found = pages_find(c->pages, &r->walk, r->tokens + r->n_issued, d->number,
                           &r->pages[r->n_pages]);
        if (found != PAGES_HIT) break;
        r->n_pages++;
        r->n_walked++;
        r->n_issued += page;
        n_hits++;
    }
    c->prefix_lookups += !r->looked;
    c->prefix_hits += !r->looked && n_hits;
    c->tokens_saved += (uint64_t)n_hits * page;
    r->looked = true;
    if (found == PAGES_NONE && knows_next_page(c, r) && another_begins(c, d, r)) return false;
    return found != PAGES_SOON;
}

/* What the Step takes with n rows more of a prompt, the first one at position pos. */
static uint64_t time_with(const struct core *c, const struct draft *d, uint32_t pos, uint32_t n)
{
    struct cost_work w = d->work;
    w.rows += n + d->n_decodes;
    w.logits += d->n_decodes;
    w.depth += (uint64_t)n * pos + (uint64_t)n * n / 2;
    return cost_predict(&c->replica.cost, w);
}

/* Half of the time that is left, while others wait; and the time of CHUNK_LEAST first rows is left
 * for each of them, up to TURNS. The last one has all of it. */
static uint64_t time_for(const struct core *c, const struct draft *d)
{
    uint64_t before = time_with(c, d, 0, 0), least = time_with(c, d, 0, CHUNK_LEAST) - before;
    if (d->n_prompts == 0 || d->limit_ns <= before) return d->limit_ns;
    uint64_t left = d->limit_ns - before;
    uint64_t kept = least * (d->n_prompts < TURNS ? d->n_prompts : TURNS);
    uint64_t share = left > kept + least ? left - kept : least;
    if (share > left / 2 && left / 2 >= least) share = left / 2;
    return share < left ? before + share : d->limit_ns;
}

/* Where there is no time for a prompt's first row, there is none for any row; but the most urgent
 * one may have some nevertheless. */
static bool is_full(const struct core *c, const struct draft *d)
{
    if (d->work.rows + d->n_decodes >= c->cfg.rows_max || d->chunk == 0) return true;
    return d->limit_ns && d->seen_first && time_with(c, d, 0, 1) > d->limit_ns;
}

/* Whether the first prompt of a Step has rows even where there is no time for them: where nothing
 * else would go on, and each window + 1 Steps. */
static bool must_go_on(const struct core *c, const struct draft *d)
{
    const struct replica *r = &c->replica;
    bool empty = !d->n_decodes && !d->decodes;
    return (empty && r->n_flight == 0) || d->number - r->prefilled > c->cfg.window;
}

/* How many of at most n rows of r the Step's time allows. */
static uint32_t rows_in_time(const struct core *c, const struct draft *d, const struct request *r,
                             uint32_t n)
{
    if (!d->limit_ns) return n;
    uint64_t limit = time_for(c, d);
    if (time_with(c, d, r->n_issued, 1) > limit) return 0;
    uint32_t low = 0, most = n;
    while (low < most) {
        uint32_t mid = (low + most + 1) / 2;
        if (time_with(c, d, r->n_issued, mid) <= limit)
            low = mid;
        else
            most = mid - 1;
    }
    return low;
}

static void add_prefill(struct core *c, struct draft *d, struct request *r)
{
    uint32_t page = c->cfg.page;
    d->n_prompts--;
    if (!find_prefix(c, d, r)) return;
    uint32_t room = c->cfg.rows_max - d->work.rows - d->n_decodes, n = rows_due(r);
    if (room > d->chunk) room = d->chunk;
    if (d->n_prompts > 0) room = (room + 1) / 2; /* the others' */
    if (n <= room && d->work.logits + d->n_decodes >= c->cfg.logits_max)
        n--; /* its last row waits */
    if (n > room) n = room;
    bool first = !d->seen_first;
    d->seen_first = true;
    if (n == 0) return;
    uint32_t least = first && must_go_on(c, d) ? CHUNK_LEAST : 0;
    uint32_t in_time = rows_in_time(c, d, r, n);
    if (in_time < least) in_time = least;
    if (n > in_time) n = in_time;
    uint32_t past = (r->n_issued + n) % page;
    if (n < rows_due(r) && n / 2 > past)
        n -= past; /* chunks end with a page, where that costs little */
    if (n && !take_pages(c, r, r->n_issued + n)) {
        uint32_t have = r->n_pages * page;
        n = have > r->n_issued ? have - r->n_issued : 0;
    }
    uint32_t n_pages = table_of(c, r->n_issued + n);
    if (n == 0 || n_pages > LIMIT_STEP_PAGES - d->n_pages) return;
    d->n_pages += n_pages;
    if (first) c->replica.prefilled = d->number;
    add_run(c, d, r, n);
    if (knows_next_page(c, r) && r->n_issued > r->n_walked * page)
        d->growing[d->n_growing++] = r; /* at most one for each run */
}

/* ---- Steps ---- */

static struct draft new_draft(struct core *c)
{
    c->draft++;
    struct draft d = {.step = core__alloc(c, sizeof *d.step),
                      .runs = core__alloc(c, LIMIT_STEP_RUNS * sizeof *d.runs),
                      .number = c->replica.next_number};
    return d;
}

/* What the Step's result must hold; a probe's is its digest. */
static uint32_t note_asked(struct core *c, const struct draft *d)
{
    struct asked *asked = c->asked + d->number % c->cfg.window * LIMIT_STEP_RUNS;
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_runs; i++) {
        const struct msg_run *x = &d->runs[i];
        if (x->kind == RUN_PROBE) continue;
        const struct msg_sampling *s =
            &c->requests[*(const uint32_t *)imap_get(&c->by_id, x->request)].sampling;
        asked[n++] =
            (struct asked){.request = x->request,
                           .attempt = x->attempt,
                           .sample = x->sample,
                           .first_pos = x->first_pos + x->n_rows,
                           .n_top = s->top_logprobs < c->cfg.vocab ? s->top_logprobs : c->cfg.vocab,
                           .token = x->n_logits > 0,
                           .logprobs = s->logprobs};
    }
    return n;
}

static void issue(struct core *c, struct draft *d)
{
    struct replica *r = &c->replica;
    *d->step = (struct msg_step){.epoch = replica__epoch(c),
                                 .number = r->next_number++,
                                 .rows = d->work.rows,
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
    r->flight[r->n_flight] = (struct in_flight){.number = d->number,
                                                .issued_ns = c->now_ns,
                                                .work = d->work,
                                                .n_asked = note_asked(c, d),
                                                .alone = r->n_flight == 0,
                                                .first = r->rested};
    r->rested = false;
    r->n_flight++;
    core__act(c, ACT_STEP)->step = d->step;
}

/* Decodes chosen for this Step, from place i on: a more urgent request may have preempted some. */
static uint32_t chosen_from(const struct core *c, uint32_t i)
{
    uint32_t n = 0;
    for (; i < c->n_running; i++) n += running(c, i)->chosen_in == c->draft;
    return n;
}

/* By urgency, so that pages go to the more urgent first. */
static void fill(struct core *c, struct draft *d)
{
    struct load l = load_of(c);
    d->n_prompts = l.n_prompts;
    set_limits(c, &l, d);
    choose_decodes(c, d, &l);
    d->full = is_full(c, d);
    uint64_t preemptions = c->preemptions;
    for (uint32_t i = 0; i < c->n_running && d->n_runs < LIMIT_STEP_RUNS; i++) {
        struct request *r = running(c, i);
        if (c->preemptions != preemptions) {
            preemptions = c->preemptions;
            d->n_decodes = chosen_from(c, i);
            d->full = is_full(c, d);
        }
        if (r->chosen_in == c->draft) {
            d->n_decodes--;
            if (take_pages(c, r, r->n_issued + 1)) add_run(c, d, r, 1);
        } else if (!d->full && !decoding(r) && rows_due(r)) {
            add_prefill(c, d, r);
            d->full = is_full(c, d);
        }
    }
    while (c->n_twice) pages_drop(c->pages, c->twice[--c->n_twice]);
}

/* The decodes that were chosen found no page, and left no time to prompts: without a Step in flight
 * nothing would change that. The most urgent prompt goes on. */
static void fill_with_a_prompt(struct core *c, struct draft *d)
{
    d->seen_first = false;
    for (uint32_t i = 0; i < c->n_running && d->n_runs == 0; i++) {
        struct request *r = running(c, i);
        if (decoding(r) || !rows_due(r)) continue;
        d->n_prompts = 1;
        add_prefill(c, d, r);
    }
    while (c->n_twice) pages_drop(c->pages, c->twice[--c->n_twice]);
}

void sched__compose(struct core *c)
{
    struct replica *r = &c->replica;
    while (r->state == REPLICA_READY && r->n_flight < c->cfg.window) {
        queue__admit(c);
        if (c->n_running == 0) return;
        struct draft d = new_draft(c);
        fill(c, &d);
        if (d.n_runs == 0 && r->n_flight == 0) fill_with_a_prompt(c, &d);
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
    d.work.rows = d.n_runs = 1;
    d.runs[0] = (struct msg_run){.kind = RUN_PROBE,
                                 .n_rows = 1,
                                 .n_logits = 1,
                                 .n_pages = 1,
                                 .tokens = &token,
                                 .pages = &page};
    issue(c, &d);
}
