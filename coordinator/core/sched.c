/* Composing Steps. First come decodes, in turn; then, by urgency, chunks of prompts, as many rows
 * as the Step's predicted time allows; then guesses, in what is left. Pages are taken as rows are
 * issued; a prompt's pages that the prefix index has are not computed again. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/mem.h"

#include <string.h>

/* Beside decodes, prefill may take this many percent of the time that the decodes take; where more
 * prompts wait than sequences decode, as many times that as there are prompts to a decode. But the
 * most urgent prompt has CHUNK_LEAST rows each window + 1 Steps, however long they take. */
#define PREFILL_PERCENT 50u
#define CHUNK_LEAST 2u
#define TURNS 8u /* prompts for which a more urgent one leaves time */

/* While nothing decodes, a Step is cut so that all stages have work. The Steps in flight together
 * take at most FLIGHT_MOST_NS, so that a request that comes soon has its turn; but one Step may
 * always take STEP_MOST_ROWS times as long as a one-row Step, so that weights are read for many
 * rows. While a request is about to decode, both are divided by SOON_PARTS. */
#define SHARE_LEAST 128u /* rows that such a cut leaves at the least */
#define FLIGHT_MOST_NS (150 * NS_PER_MS)
#define STEP_MOST_ROWS 8u
#define SOON_PARTS 4u

/* A Step that is being composed. rep->n_chosen belongs to it too: the decodes that were chosen for
 * it and are not added yet. */
struct step_build {
    struct msg_run *runs;
    struct request *of[LIMIT_STEP_RUNS]; /* whose runs they are; a probe's is not here */
    uint64_t number;
    uint32_t n_runs;
    uint32_t n_pages;  /* in tables of runs, chosen decodes' included */
    uint32_t n_embeds; /* embeddings that its result will have */
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

uint32_t sched__rows_due(const struct request *r)
{
    return r->n_tokens > r->n_issued ? r->n_tokens - r->n_issued : 0;
}

bool sched__decoding(const struct request *r)
{
    return r->n_issued >= r->n_prompt && sched__rows_due(r) <= 1;
}

/* Whether it decodes, and its row may be issued now. */
static bool due(const struct core *c, const struct request *r)
{
    return sched__decoding(r) && sched__rows_due(r) && !spec__waits(c, r);
}

static struct request *running(const struct core *c, const struct replica *rep, uint32_t i)
{
    return &c->requests[rep->running[i]];
}

/* ---- what runs at this time ---- */

struct load {
    uint32_t n_decoding, n_due; /* sequences that decode, and those not in flight */
    bool soon;                  /* one will: its first token is on the way */
    uint64_t depth;             /* positions of those that decode */
    uint64_t prefill;           /* rows of prompts that are due, */
    uint32_t n_prompts;         /* and of how many requests */
};

static struct load load_of(const struct core *c, const struct replica *rep)
{
    struct load l = {0};
    for (uint32_t i = 0; i < rep->n_running; i++) {
        const struct request *r = running(c, rep, i);
        if (sched__decoding(r)) {
            if (r->n_tokens == r->n_prompt) {
                l.soon |= r->max_new > 1;
                continue;
            }
            l.n_decoding++;
            l.n_due += due(c, r);
            l.depth += r->n_issued;
        } else {
            l.prefill += sched__rows_due(r);
            l.n_prompts += sched__rows_due(r) > 0;
        }
    }
    return l;
}

uint32_t sched__steps_wanted(const struct core *c, const struct replica *rep)
{
    uint32_t n = (uint32_t)(rep->flight.trips + 0.5);
    if (n > c->cfg.window) n = c->cfg.window;
    return n > rep->n_stages ? n : rep->n_stages;
}

/* Sequences that start together would otherwise clump into one Step and leave the rest of the
 * chain empty. */
static uint32_t decodes_a_step(const struct core *c, const struct replica *rep,
                               const struct load *l)
{
    uint32_t n = sched__steps_wanted(c, rep);
    return (l->n_decoding + n - 1) / n;
}

/* Most predicted time of one Step without decodes. */
static uint64_t most_alone(const struct core *c, const struct replica *rep)
{
    uint64_t rows = STEP_MOST_ROWS * cost_predict(&rep->flight.cost, (struct cost_work){1, 1, 0});
    uint64_t share = FLIGHT_MOST_NS / c->cfg.window;
    return share > rows ? share : rows;
}

/* While sequences decode, the Steps of a round trip share one limit: a Step may take its share, or
 * what those in flight have left of the whole. */
static uint64_t limit_beside_decodes(const struct core *c, const struct replica *rep,
                                     const struct load *l)
{
    const struct flight *f = &rep->flight;
    uint32_t n = decodes_a_step(c, rep, l);
    struct cost_work decodes = {n, n, l->depth * n / l->n_decoding};
    uint64_t each = cost_predict(&f->cost, decodes), prefill = each * PREFILL_PERCENT / 100;
    uint64_t crowd = prefill * l->n_prompts / l->n_decoding, most = most_alone(c, rep) / SOON_PARTS;
    if (crowd > most) crowd = most;
    if (prefill < crowd) prefill = crowd;
    each = c->cfg.step_ns ? c->cfg.step_ns : each + prefill;
    uint64_t all = each * sched__steps_wanted(c, rep), under_way = 0;
    for (uint32_t i = 0; i < f->n; i++) under_way += cost_predict(&f->cost, f->steps[i].work);
    return under_way >= all ? 1 : all - under_way < each ? all - under_way : each;
}

/* The Step's limits in predicted time (0: nothing is measured yet) and in rows of one prompt. */
static void set_limits(const struct core *c, const struct replica *rep, const struct load *l,
                       struct step_build *b)
{
    b->limit_ns = 0;
    b->chunk = c->cfg.rows_max;
    if (l->n_decoding == 0 && rep->n_stages > 1) {
        uint32_t parts = 2 * sched__steps_wanted(c, rep);
        uint64_t share = (l->prefill + parts - 1) / parts;
        if (share < SHARE_LEAST) share = SHARE_LEAST;
        if (share < b->chunk) b->chunk = (uint32_t)share;
    }
    if (rep->flight.cost.n == 0) return;
    b->limit_ns = l->n_decoding ? limit_beside_decodes(c, rep, l)
                                : most_alone(c, rep) / (l->soon ? SOON_PARTS : 1);
}

/* ---- runs ---- */

/* Pages of a table when the first `end` positions are in it. */
static uint32_t table_of(const struct core *c, uint32_t end)
{
    return (end + c->cfg.page - 1) / c->cfg.page;
}

/* For the first rows of r in the Step. */
static bool take_pages(struct core *c, struct request *r, uint32_t end)
{
    table__slide(c, r);
    while (r->n_pages * c->cfg.page < end)
        if (!queue__page(c, r)) return false;
    return true;
}

void sched__enter_pages(struct core *c, struct request *r)
{
    table__enter(c, r, r->replica->flight.next_number - 1);
    table__drop_twice(r->replica);
}

/* The first n pages of a table, of which the run has n_had already. */
static uint32_t *copy_table(struct core *c, const uint32_t *had, uint32_t n_had,
                            const uint32_t *table, uint32_t n)
{
    CHECK(n_had <= n);
    uint32_t *pages = core__alloc(c, n * sizeof *pages);
    if (n_had) memcpy(pages, had, n_had * sizeof *pages);
    memcpy(pages + n_had, table + n_had, (n - n_had) * sizeof *pages);
    return pages;
}

/* Gives the run a copy of its request's tables, which may change before the Step is sent; pages
 * that it had already stay as they are. */
static void set_table(struct core *c, const struct request *r, struct msg_run *run)
{
    uint32_t n = table_of(c, run->first_pos + run->n_rows);
    CHECK(n <= r->n_pages);
    run->pages = copy_table(c, run->pages, run->n_pages, r->pages, n);
    run->n_pages = n;
    if (!r->windowed) return;
    CHECK(run->n_window_pages == 0 || run->window_first == r->first_windowed);
    CHECK(n <= r->n_pages - r->n_ahead);
    run->window_first = r->first_windowed;
    n -= run->window_first;
    run->window_pages =
        copy_table(c, run->window_pages, run->n_window_pages, r->windowed + run->window_first, n);
    run->n_window_pages = n;
}

/* A run of n rows from the first that was not issued on, of which n_logits want logits. */
static struct msg_run *new_run(struct core *c, struct step_build *b, struct request *r, uint32_t n,
                               uint32_t n_logits)
{
    CHECK(n > 0 && b->n_runs < LIMIT_STEP_RUNS);
    b->of[b->n_runs] = r;
    struct msg_run *run = &b->runs[b->n_runs++];
    *run = (struct msg_run){.request = r->id,
                            .attempt = r->attempt,
                            .sample = r->sample,
                            .first_pos = r->n_issued,
                            .n_rows = n,
                            .n_logits = n_logits,
                            .tokens = r->tokens + r->n_issued};
    set_table(c, r, run);
    for (uint32_t i = 0; i < n; i++) b->work.depth += r->n_issued + i;
    b->work.rows += n;
    b->work.logits += n_logits;
    r->n_issued += n;
    r->put_in = r->replica->step_build;
    return run;
}

static void add_run(struct core *c, struct step_build *b, struct request *r, uint32_t n)
{
    bool decode = sched__decoding(r);
    CHECK(r->n_issued + n <= r->n_tokens);
    struct msg_run *run = new_run(c, b, r, n, !r->embed && r->n_issued + n == r->n_tokens);
    run->kind = decode ? RUN_DECODE : RUN_PREFILL;
    if (r->embed) {
        run->embed = r->n_tokens;
        b->n_embeds += msg_run_embeds(run);
        r->opened = r->replica; /* the last stage has its sum */
    }
    if (run->n_logits && !r->opened) {
        run->has_open = true;
        r->opened = r->replica;
        run->open = (struct msg_open){.sampling = r->sampling, .boundary = r->n_prompt};
        if (r->grammar) {
            run->open.grammar = r->grammar->data;
            run->open.grammar_bytes = r->grammar->bytes;
        }
    }
    r->n_right = r->n_issued; /* no token here is a guess */
    r->anchored |= run->n_logits > 0;
    if (!r->begun_ns) r->begun_ns = c->now_ns;
    b->decodes |= decode;
    b->prefills |= !decode;
    if (!decode) {
        r->replica->tokens_computed += n;
        b->chunk -= n;
    }
    table__enter(c, r, b->number);
    router__due(c, r, sched__decoding(r) ? 0 : sched__rows_due(r));
}

/* ---- decodes ---- */

static bool choose(struct core *c, struct replica *rep, struct step_build *b, uint32_t i)
{
    struct request *r = running(c, rep, i);
    uint32_t n_pages = table_of(c, r->n_issued + 1);
    if (n_pages > LIMIT_STEP_PAGES - b->n_pages) return false;
    r->chosen_in = rep->step_build;
    b->n_pages += n_pages;
    rep->n_chosen++;
    rep->decode_from = i + 1;
    return true;
}

/* Whether one of `most` places in the Step is kept for a prompt; the only place is kept for it
 * where the most urgent request is one. */
static bool left_for_prefill(const struct request *most_urgent, const struct load *l, uint32_t most)
{
    return l->prefill > 0 && (most > 1 || !sched__decoding(most_urgent));
}

/* The most urgent request always, the others in turn, beginning behind the last one served. */
static void choose_decodes(struct core *c, struct replica *rep, struct step_build *b,
                           const struct load *l)
{
    const struct request *first = running(c, rep, 0);
    uint32_t most = decodes_a_step(c, rep, l), start = rep->decode_from;
    uint32_t rows = c->cfg.rows_max - (left_for_prefill(first, l, c->cfg.rows_max) ? 1 : 0);
    uint32_t logits = c->cfg.logits_max - (left_for_prefill(first, l, c->cfg.logits_max) ? 1 : 0);
    uint32_t runs = LIMIT_STEP_RUNS - (l->prefill > 0 ? 1 : 0);
    if (most > rows) most = rows;
    if (most > logits) most = logits;
    if (most > runs) most = runs;
    if (l->n_due == 0 || most == 0) return;
    if (due(c, first) && choose(c, rep, b, 0)) rep->decode_from = start;
    for (uint32_t i = 0; i < rep->n_running && rep->n_chosen < most; i++) {
        uint32_t at = (start + i) % rep->n_running;
        const struct request *r = running(c, rep, at);
        if (!due(c, r) || r->chosen_in == rep->step_build) continue;
        if (!choose(c, rep, b, at)) return;
    }
}

/* ---- prefill ---- */

/* Whether all tokens of the page after those that r has walked are known. */
static bool knows_next_page(const struct core *c, const struct request *r)
{
    return (r->n_walked + 1) * c->cfg.page <= r->n_tokens;
}

/* Whether r's next page is the one that another request has begun to compute in this Step. */
static bool another_begins(const struct core *c, const struct step_build *b,
                           const struct request *r)
{
    size_t bytes = c->cfg.page * sizeof *r->tokens;
    for (uint32_t i = 0; i < b->n_growing && c->cfg.share; i++) {
        const struct request *x = b->growing[i];
        if (x->walk.serial == r->walk.serial && x->tenant == r->tenant &&
            memcmp(x->tokens + x->n_walked * c->cfg.page, r->tokens + r->n_walked * c->cfg.page,
                   bytes) == 0)
            return true;
    }
    return false;
}

/* Walks over the pages that others have computed, but for the last row's. False: the next one is
 * being computed in this very Step, and r waits for the next Step. */
static bool find_prefix(struct core *c, struct step_build *b, struct request *r)
{
    struct replica *rep = r->replica;
    uint32_t page = c->cfg.page;
    enum pages_found found;
    if (r->n_issued != r->n_walked * page || r->embed) return true;
    while (r->n_pages > r->n_walked) table__shrink(r);
    uint32_t n_hits = table__walk(c, r, b->number, &found);
    r->n_issued = r->n_right += n_hits * page;
    router__due(c, r, sched__rows_due(r));
    rep->prefix_lookups += !r->looked;
    rep->prefix_hits += !r->looked && n_hits;
    rep->tokens_saved += (uint64_t)n_hits * page;
    if (r->n_tokens == r->n_prompt) {
        bool first = r->n_issued == n_hits * page; /* of this admission */
        r->n_found = n_hits * page + (first ? 0 : r->n_found);
    }
    r->looked = true;
    if (found == PAGES_NONE && knows_next_page(c, r) && another_begins(c, b, r)) return false;
    return found != PAGES_SOON;
}

/* What the Step takes with n rows more of a prompt, the first one at position pos. */
static uint64_t time_with(const struct replica *rep, const struct step_build *b, uint32_t pos,
                          uint32_t n)
{
    struct cost_work w = b->work;
    w.rows += n + rep->n_chosen;
    w.logits += rep->n_chosen;
    w.depth += (uint64_t)n * pos + (uint64_t)n * n / 2;
    return cost_predict(&rep->flight.cost, w);
}

/* Until when in the Step's time a prompt may take rows: half of what is left while others wait, and
 * each of these, up to TURNS, is left the time of CHUNK_LEAST first rows. The last one has all. */
static uint64_t time_for(const struct replica *rep, const struct step_build *b)
{
    uint64_t before = time_with(rep, b, 0, 0), least = time_with(rep, b, 0, CHUNK_LEAST) - before;
    if (b->n_prompts == 0 || b->limit_ns <= before) return b->limit_ns;
    uint64_t left = b->limit_ns - before;
    uint64_t kept = least * (b->n_prompts < TURNS ? b->n_prompts : TURNS);
    uint64_t share = left > kept + least ? left - kept : least;
    if (share > left / 2 && left / 2 >= least) share = left / 2;
    return share < left ? before + share : b->limit_ns;
}

/* Where there is no time for a prompt's first row, there is none for any row; but the most urgent
 * one may have some nevertheless. */
static bool is_full(const struct core *c, const struct replica *rep, const struct step_build *b)
{
    if (b->work.rows + rep->n_chosen >= c->cfg.rows_max || b->chunk == 0) return true;
    if (b->n_runs + rep->n_chosen >= LIMIT_STEP_RUNS) return true;
    return b->limit_ns && b->seen_first && time_with(rep, b, 0, 1) > b->limit_ns;
}

/* Whether the most urgent prompt has rows although there is no time for them: where nothing else
 * would go on, and each window + 1 Steps. */
static bool must_go_on(const struct core *c, const struct replica *rep, const struct step_build *b)
{
    bool empty = !rep->n_chosen && !b->decodes;
    return (empty && rep->flight.n == 0) || b->number - rep->prefilled > c->cfg.window;
}

/* How many of at most n rows of r the Step's time allows. */
static uint32_t rows_in_time(const struct step_build *b, const struct request *r, uint32_t n)
{
    const struct replica *rep = r->replica;
    if (!b->limit_ns) return n;
    uint64_t limit = time_for(rep, b);
    if (time_with(rep, b, r->n_issued, 1) > limit) return 0;
    uint32_t low = 0, most = n;
    while (low < most) {
        uint32_t mid = (low + most + 1) / 2;
        if (time_with(rep, b, r->n_issued, mid) <= limit)
            low = mid;
        else
            most = mid - 1;
    }
    return low;
}

/* Whether the Step has no room for what follows the prompt's last row. */
static bool last_row_waits(const struct core *c, const struct step_build *b,
                           const struct request *r)
{
    if (r->embed) return b->n_embeds == LIMIT_EMBEDDED / c->cfg.width;
    return b->work.logits + r->replica->n_chosen >= c->cfg.logits_max;
}

static void add_prefill(struct core *c, struct step_build *b, struct request *r)
{
    struct replica *rep = r->replica;
    uint32_t page = c->cfg.page;
    CHECK(b->n_prompts > 0);
    b->n_prompts--;
    if (!find_prefix(c, b, r)) return;
    CHECK(b->work.rows + rep->n_chosen <= c->cfg.rows_max);
    uint32_t room = c->cfg.rows_max - b->work.rows - rep->n_chosen, n = sched__rows_due(r);
    if (room > b->chunk) room = b->chunk;
    if (b->n_prompts > 0) room = (room + 1) / 2; /* the others' */
    if (n <= room && last_row_waits(c, b, r)) n--;
    if (n > room) n = room;
    bool first = !b->seen_first;
    b->seen_first = true;
    if (n == 0) return;
    uint32_t least = first && must_go_on(c, rep, b) ? CHUNK_LEAST : 0;
    uint32_t in_time = rows_in_time(b, r, n);
    if (in_time < least) in_time = least;
    if (n > in_time) n = in_time;
    uint32_t past = (r->n_issued + n) % page;
    if (n < sched__rows_due(r) && n / 2 > past)
        n -= past; /* chunks end with a page, where that costs little */
    if (n && !take_pages(c, r, r->n_issued + n)) {
        uint32_t have = r->n_pages * page;
        n = have > r->n_issued ? have - r->n_issued : 0;
    }
    uint32_t n_pages = table_of(c, r->n_issued + n);
    if (n == 0 || n_pages > LIMIT_STEP_PAGES - b->n_pages) return;
    b->n_pages += n_pages;
    if (first) rep->prefilled = b->number;
    add_run(c, b, r, n);
    if (knows_next_page(c, r) && r->n_issued > r->n_walked * page && !r->embed)
        b->growing[b->n_growing++] = r; /* at most one for each run */
}

/* ---- guesses ---- */

/* How many of at most n guesses the Step has room for: rows, logits, and time while prompts wait.
 */
static uint32_t guesses_that_fit(const struct core *c, const struct replica *rep,
                                 const struct step_build *b, const struct load *l, uint32_t n)
{
    uint32_t rows = c->cfg.rows_max - b->work.rows, logits = c->cfg.logits_max - b->work.logits;
    if (n > rows) n = rows;
    if (n > logits) n = logits;
    if (l->prefill == 0 || b->limit_ns == 0) return n;
    for (; n; n--) {
        struct cost_work w = b->work;
        w.rows += n;
        w.logits += n;
        if (cost_predict(&rep->flight.cost, w) <= b->limit_ns) break;
    }
    return n;
}

/* How many of at most n guesses have pages, in a run that had n_before: no request gives up any for
 * them. */
static uint32_t guesses_with_pages(struct core *c, const struct step_build *b, struct request *r,
                                   uint32_t n, uint32_t n_before)
{
    uint32_t room = LIMIT_STEP_PAGES - b->n_pages + n_before;
    while (r->n_pages * c->cfg.page < r->n_issued + n && r->n_pages < room)
        if (!table__grow(r)) break;
    uint32_t end = (r->n_pages < room ? r->n_pages : room) * c->cfg.page;
    if (end <= r->n_issued) return 0;
    return n < end - r->n_issued ? n : end - r->n_issued;
}

static uint32_t guesses_at_hand(const struct request *r)
{
    uint32_t n = r->n_guessed - r->n_issued;
    return n < r->run ? n : r->run;
}

/* The row of a known token is in the Step already: guesses go behind it. */
static void add_guesses_behind(struct core *c, struct step_build *b, uint32_t i,
                               const struct load *l)
{
    struct request *r = b->of[i];
    struct msg_run *run = &b->runs[i];
    if (!r->drafts || run->kind != RUN_DECODE || r->n_issued != r->n_tokens) return;
    uint32_t n = guesses_that_fit(c, r->replica, b, l, guesses_at_hand(r));
    n = n ? guesses_with_pages(c, b, r, n, run->n_pages) : 0;
    if (n == 0) return;
    for (uint32_t k = 0; k < n; k++) b->work.depth += r->n_issued + k;
    b->n_pages -= run->n_pages;
    r->n_issued += n;
    run->kind = RUN_VERIFY;
    run->n_rows += n;
    run->n_logits += n;
    run->n_guesses = n;
    set_table(c, r, run);
    b->n_pages += run->n_pages;
    b->work.rows += n;
    b->work.logits += n;
}

/* Whether a run of nothing but guesses is to follow those rows of the request that are in flight.
 * It makes a Step of its own only where stages would else have nothing to do, and a short one only
 * where no more guesses are on their way. */
static bool may_run_ahead(const struct core *c, const struct replica *rep,
                          const struct step_build *b, const struct request *r)
{
    if (!r->drafts || !c->cfg.draft.pipelined || r->put_in == rep->step_build) return false;
    if (!sched__decoding(r) || r->n_issued < r->n_tokens || r->n_guessed == r->n_issued)
        return false;
    if (b->n_runs == 0 && rep->flight.n >= sched__steps_wanted(c, rep)) return false;
    return r->anchored && (r->n_guessed - r->n_issued >= r->run || !r->ask);
}

static void run_ahead(struct core *c, struct step_build *b, struct request *r, const struct load *l)
{
    uint32_t n = guesses_that_fit(c, r->replica, b, l, guesses_at_hand(r));
    table__slide(c, r);
    n = n ? guesses_with_pages(c, b, r, n, 0) : 0;
    if (n == 0) return;
    struct msg_run *run = new_run(c, b, r, n, n);
    run->kind = RUN_VERIFY;
    run->n_guesses = n;
    b->n_pages += run->n_pages;
    b->decodes = true;
    r->accept.early++;
    r->replica->accept.early++;
}

/* What the Step has left goes to guesses, by urgency. */
static void add_guesses(struct core *c, struct replica *rep, struct step_build *b,
                        const struct load *l)
{
    if (c->cfg.draft.kind == DRAFT_OFF) return;
    CHECK(rep->n_chosen == 0);
    for (uint32_t i = 0, n = b->n_runs; i < n; i++) add_guesses_behind(c, b, i, l);
    for (uint32_t i = 0; i < rep->n_running && b->n_runs < LIMIT_STEP_RUNS; i++) {
        struct request *r = running(c, rep, i);
        if (may_run_ahead(c, rep, b, r)) run_ahead(c, b, r, l);
    }
}

/* ---- Steps ---- */

static struct step_build new_build(struct core *c, struct replica *rep)
{
    rep->step_build++;
    rep->n_chosen = 0;
    return (struct step_build){.runs = c->build_runs, .number = rep->flight.next_number};
}

static void issue(struct core *c, struct replica *rep, const struct step_build *b)
{
    struct msg_step *step = core__alloc(c, sizeof *step);
    struct msg_run *runs = core__alloc(c, b->n_runs * sizeof *runs);
    memcpy(runs, b->runs, b->n_runs * sizeof *runs);
    *step = (struct msg_step){.epoch = replica__epoch(c, rep),
                              .number = b->number,
                              .rows = b->work.rows,
                              .width = c->cfg.width,
                              .n_runs = b->n_runs,
                              .runs = runs};
    CHECK(b->work.rows <= c->cfg.rows_max);
    if (rep->n_closed) {
        uint64_t *closed = core__alloc(c, rep->n_closed * sizeof *closed);
        memcpy(closed, rep->closed, rep->n_closed * sizeof *closed);
        step->closed = closed;
        step->n_closed = rep->n_closed;
        rep->n_closed = 0;
    }
    flight__add(c, rep, step, b->work);
    core__act(c, ACT_STEP)->step = step;
}

/* By urgency, so that pages go to the more urgent first. */
static void fill(struct core *c, struct replica *rep, struct step_build *b)
{
    struct load l = load_of(c, rep);
    b->n_prompts = l.n_prompts;
    set_limits(c, rep, &l, b);
    choose_decodes(c, rep, b, &l);
    b->full = is_full(c, rep, b);
    uint64_t preemptions = rep->preemptions;
    for (uint32_t i = 0; i < rep->n_running && b->n_runs < LIMIT_STEP_RUNS; i++) {
        struct request *r = running(c, rep, i);
        if (rep->preemptions != preemptions) { /* maybe of a decode that was chosen */
            preemptions = rep->preemptions;
            b->full = is_full(c, rep, b);
        }
        if (b->full && rep->n_chosen == 0) break; /* nobody behind has anything to add */
        if (r->chosen_in == rep->step_build) {
            CHECK(rep->n_chosen > 0);
            rep->n_chosen--;
            r->chosen_in = 0;
            if (take_pages(c, r, r->n_issued + 1)) add_run(c, b, r, 1);
        } else if (!b->full && !sched__decoding(r) && sched__rows_due(r)) {
            uint32_t rows = b->work.rows;
            bool first = !b->seen_first;
            add_prefill(c, b, r);
            if (first || b->work.rows != rows) b->full = is_full(c, rep, b);
        }
    }
    add_guesses(c, rep, b, &l);
    table__drop_twice(rep);
}

/* The decodes that were chosen found no page, and left no time to prompts. Without a Step in flight
 * nothing would ever change that, so the most urgent prompt goes on. */
static void fill_with_a_prompt(struct core *c, struct replica *rep, struct step_build *b)
{
    b->seen_first = false;
    for (uint32_t i = 0; i < rep->n_running && b->n_runs == 0; i++) {
        struct request *r = running(c, rep, i);
        if (sched__decoding(r) || !sched__rows_due(r)) continue;
        b->n_prompts = 1;
        add_prefill(c, b, r);
    }
    table__drop_twice(rep);
}

void sched__compose(struct core *c, struct replica *rep)
{
    if (rep->flight.n == 0 && rep->n_running == 0) rep->flight.rested = true;
    while (rep->state >= REPLICA_READY && rep->flight.n < c->cfg.window) {
        queue__admit(c, rep);
        if (rep->n_running == 0) return;
        struct step_build b = new_build(c, rep);
        fill(c, rep, &b);
        if (b.n_runs == 0 && rep->flight.n == 0) fill_with_a_prompt(c, rep, &b);
        if (b.n_runs == 0) return;
        issue(c, rep, &b);
        rep->steps++;
        rep->steps_mixed += b.decodes && b.prefills;
        if (b.n_runs > rep->sequences_max) rep->sequences_max = b.n_runs;
    }
}

/* One row through every stage of a new generation. Its page goes back at once: whatever is written
 * there next is written by a later Step. */
void sched__probe(struct core *c, struct replica *rep)
{
    static const int32_t token = 0;
    static const uint32_t page = 0;
    struct step_build b = new_build(c, rep);
    b.work.rows = b.n_runs = 1;
    b.runs[0] = (struct msg_run){.kind = RUN_PROBE,
                                 .n_rows = 1,
                                 .n_logits = 1,
                                 .n_pages = 1,
                                 .tokens = &token,
                                 .pages = &page,
                                 .n_window_pages = c->cfg.attn_window > 0,
                                 .window_pages = &page};
    issue(c, rep, &b);
}
