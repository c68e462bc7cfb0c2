/* A request's guesses: what is asked of the drafter, what becomes of its answers, and how many of
 * them a run has. README.md of this folder, "Speculation", has the rules. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"

#include <string.h>

/* A known token's row waits no longer than this for its guesses. */
#define PATIENCE_MOST_NS (40 * NS_PER_MS)
/* Where speculation loses, guesses are held against the tokens that come: so many, each so many
 * tokens. */
#define LOOK_TOKENS 4u
#define LOOK_REST 16u
/* What the first guess of all is expected to be: as likely right as wrong. */
#define RATE_PRIOR 0.5
#define PACE_KEEP 0.9 /* of what was measured of drafts before, an answer */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t more(uint32_t a, uint32_t b)
{
    return a > b ? a - b : 0;
}

void spec__submit(const struct core *c, struct request *r, const struct event *e)
{
    struct draft_settings s = c->cfg.draft;
    if (s.kind == DRAFT_OFF || !e->submit.drafts) return;
    if (e->submit.draft_length) {
        s.length = s.length_max = e->submit.draft_length;
        s.adaptive = false;
    }
    if (length_init(&r->length, &s, NULL) < 0) return; /* the shell has checked both */
    r->run = r->length.now;
    r->drafts = true;
}

/* Guesses from position `from` on are given up, and what is in flight of them: runs of the line
 * that ends here may be dead. */
static void give_up(struct request *r, uint32_t from)
{
    r->line++;
    r->anchored = false;
    r->ask = 0;
    r->dry = r->was_dry = false;
    r->n_guessed = from;
    r->n_issued = least(r->n_issued, from);
    r->n_right = least(r->n_issued, r->n_tokens);
}

void spec__drop(struct request *r)
{
    if (r->drafts) give_up(r, r->n_tokens);
}

static void note_guess(struct core *c, struct request *r, bool right)
{
    gain_rate_note(&r->rate, 1, right);
    gain_rate_note(&c->rate, 1, right);
}

void spec__token(struct core *c, struct request *r, int32_t token)
{
    uint32_t pos = r->n_tokens;
    if (r->n_guessed > pos) {
        bool right = r->tokens[pos] == token;
        note_guess(c, r, right);
        if (!right) give_up(r, pos);
    }
    r->tokens[pos] = token;
    r->n_tokens++;
    if (r->n_guessed < r->n_tokens) r->n_guessed = r->n_tokens;
    r->n_right = least(r->n_issued, r->n_tokens);
    r->dry = false;
    r->rest = more(r->rest, 1);
}

/* ---- what is measured ---- */

/* A Step of n rows, by what was measured. */
static void chain_of(const struct core *c, const struct replica *rep, struct gain_chain *ret)
{
    const struct flight *f = &rep->flight;
    double stages = f->stages > 1.0 ? f->stages : 1.0;
    *ret = (struct gain_chain){.outside_ns = (double)f->wire_ns};
    if (f->cost.n == 0) return;
    for (uint32_t rows = 1; rows <= 32 && rows <= c->cfg.rows_max; rows *= 2) {
        uint64_t ns = cost_predict(&f->cost, (struct cost_work){rows, rows, 0});
        uint32_t i = ret->n_points++;
        ret->rows[i] = rows;
        ret->slowest_ns[i] = ns ? (double)ns : 1.0;
        ret->all_ns[i] = stages * ret->slowest_ns[i];
    }
}

static double mean(const struct pace *p)
{
    return p->n > 0.0 ? p->ns / p->n : 0.0;
}

static void note_pace(struct pace *p, uint64_t ns, uint32_t n)
{
    p->ns = p->ns * PACE_KEEP + (double)ns;
    p->n = p->n * PACE_KEEP + n;
}

/* What a draft of n guesses takes. */
static double draft_ns(const struct core *c, uint32_t n)
{
    return mean(&c->waits) + n * mean(&c->takes);
}

/* ---- asking ---- */

/* Steps that are under way before the answer to the first of them comes. */
static uint32_t ahead(const struct core *c, const struct replica *rep)
{
    return least(sched__steps_wanted(c, rep), c->cfg.window);
}

static uint32_t n_decoding(const struct core *c, const struct replica *rep)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < rep->n_running; i++)
        n += sched__decoding(&c->requests[rep->running[i]]);
    return n;
}

/* Guesses of the request's next run. */
static uint32_t run_of(const struct core *c, const struct request *r,
                       const struct gain_chain *chain, const struct gain_load *load)
{
    double prior = gain_rate_value(&c->rate, RATE_PRIOR);
    const struct gain_draft d = {.first_ns = mean(&c->waits),
                                 .token_ns = mean(&c->takes),
                                 .rate = gain_rate_value(&r->rate, prior)};
    if (!r->length.adaptive || chain->n_points == 0) return r->length.now;
    return gain_best(chain, &d, load, r->length.now);
}

/* How many guesses the request may have beyond its known tokens. */
static uint32_t horizon(const struct core *c, const struct request *r)
{
    uint32_t runs = c->cfg.draft.pipelined ? ahead(c, r->replica) + 1 : 1;
    uint32_t n = r->run ? r->run * runs : LOOK_TOKENS;
    return least(n, GUESSES_MAX);
}

/* The end of its guesses, at most: the last token is never an input. */
static uint32_t last_guess(const struct request *r)
{
    return r->n_prompt + r->max_new - 1;
}

/* Whether it lacks guesses: of a run, or, where it has none, of the few that are looked at. */
static bool lacks(const struct core *c, const struct request *r)
{
    uint32_t issued = r->n_issued > r->n_tokens ? r->n_issued : r->n_tokens;
    if (!r->drafts || r->ask || r->dry || !sched__decoding(r)) return false;
    if (!c->cfg.draft.pipelined && !sched__rows_due(r)) return false; /* a run is under way */
    return r->run ? r->n_guessed - issued < r->run : !r->rest && r->n_guessed == r->n_tokens;
}

/* How many guesses are wanted now; 0: none. */
static uint32_t wants(const struct core *c, const struct request *r)
{
    if (!lacks(c, r)) return 0;
    uint32_t n = more(r->n_tokens + horizon(c, r), r->n_guessed);
    n = least(n, more(last_guess(r), r->n_guessed));
    n = least(n, r->run ? r->run : LOOK_TOKENS);
    return least(n, DRAFT_LENGTH_MAX);
}

static void ask(struct core *c, struct request *r, uint32_t want, const struct gain_chain *chain,
                const struct gain_load *load)
{
    uint32_t n_tail = r->n_guessed - r->n_tokens;
    int32_t *tail = core__alloc(c, (n_tail + 1) * sizeof *tail);
    memcpy(tail, r->tokens + r->n_tokens, n_tail * sizeof *tail);
    r->ask = ++c->asks;
    r->asked_ns = c->now_ns;
    r->asked_step = r->replica->flight.next_number;
    if (r->run == 0) r->rest = LOOK_REST;
    struct action *a = core__act(c, ACT_DRAFT);
    a->draft.request = r->id;
    a->draft.serial = r->ask;
    a->draft.first_pos = r->n_tokens;
    a->draft.tail = tail;
    a->draft.n_tail = n_tail;
    a->draft.want = want;
    a->draft.chain = chain;
    a->draft.load = *load;
}

/* Whether its last stage can tell which guesses are right. */
static bool verifies(struct core *c, const struct replica *rep)
{
    return rep->state >= REPLICA_READY && replica__at(c, rep, rep->n_stages - 1)->hello.verifies;
}

void spec__ask(struct core *c, struct replica *rep)
{
    struct gain_chain *chain = NULL;
    if (c->cfg.draft.kind == DRAFT_OFF || !verifies(c, rep)) return;
    struct gain_load load = {.decoding = n_decoding(c, rep), .pipelined = c->cfg.draft.pipelined};
    for (uint32_t i = 0; i < rep->n_running; i++) {
        struct request *r = &c->requests[rep->running[i]];
        if (!lacks(c, r)) continue;
        if (!chain) {
            chain = core__alloc(c, sizeof *chain);
            chain_of(c, rep, chain);
        }
        r->run = run_of(c, r, chain, &load);
        uint32_t want = wants(c, r);
        if (want) ask(c, r, want, chain, &load);
    }
}

bool spec__waits(const struct core *c, const struct request *r)
{
    const struct flight *f = &r->replica->flight;
    if (!r->ask || r->run == 0 || r->dry || r->was_dry || r->n_guessed > r->n_tokens) return false;
    if (f->next_number >= r->asked_step + ahead(c, r->replica)) return false;
    double step_ns = (double)cost_predict(&f->cost, (struct cost_work){1, 1, 0});
    double takes_ns = draft_ns(c, r->run);
    if (c->cfg.draft.pipelined && f->cost.n && takes_ns > step_ns) return false;
    double patience_ns = 4.0 * takes_ns > step_ns ? 4.0 * takes_ns : step_ns;
    if (patience_ns > (double)PATIENCE_MOST_NS || c->takes.n == 0.0 || f->cost.n == 0)
        patience_ns = (double)PATIENCE_MOST_NS;
    return (double)(c->now_ns - r->asked_ns) < patience_ns;
}

/* ---- answers ---- */

/* A guess for position pos. False: what follows it is of no use. */
static bool take_guess(struct core *c, struct request *r, uint32_t pos, int32_t token)
{
    if (token < 0 || (uint32_t)token >= c->cfg.vocab) return false;
    if (pos < r->n_guessed) { /* it came to be known, or to be guessed, meanwhile */
        bool same = r->tokens[pos] == token;
        if (pos < r->n_tokens) note_guess(c, r, same);
        return same;
    }
    if (pos >= last_guess(r) || pos - r->n_tokens >= GUESSES_MAX) return false;
    if (request__is_end(c, token) && !r->ignore_eos) return false; /* nothing comes behind it */
    r->tokens[pos] = token;
    r->n_guessed = pos + 1;
    return true;
}

void spec__answer(struct core *c, const struct event *e)
{
    struct request *r = request__find(c, e->draft.request);
    if (!r || !r->ask || e->draft.serial != r->ask) return;
    uint32_t n = e->draft.n, before = r->n_guessed, from = e->draft.first_pos;
    r->ask = 0;
    note_pace(&c->waits, e->draft.waited_ns, 1);
    if (n) note_pace(&c->takes, e->draft.took_ns, n);
    for (uint32_t i = 0; i < n && from <= r->n_guessed; i++)
        if (!take_guess(c, r, from + i, e->draft.tokens[i])) break;
    r->dry = r->was_dry = r->n_guessed == before;
}

/* ---- results ---- */

bool spec__agrees(struct core *c, const struct asked *a, const struct msg_run_result *x)
{
    const struct request *r = request__find(c, x->request);
    if (!r || r->attempt != a->attempt || r->line != a->line || a->n_guesses == 0) return true;
    /* Results come in the order of Steps, so that all tokens up to this run are known, and no guess
     * of it was given up. */
    const int32_t *issued = r->tokens + a->first_pos;
    if (x->n_tokens == 0) return false;
    uint32_t n_live = x->error && x->error[0] ? x->n_tokens : x->n_tokens - 1; /* and one behind */
    for (uint32_t i = 0; i < n_live; i++)
        if (x->tokens[i] != issued[i]) return false;
    return n_live == x->n_tokens || x->n_tokens == a->n_tokens ||
           x->tokens[x->n_tokens - 1] != issued[x->n_tokens - 1];
}

/* What a run brings the request. Its guesses are not compared anew: they may have been given up
 * since, and the last stage has chosen behind live rows only. */
static struct accept accept_of(const struct core *c, const struct request *r, const struct asked *a,
                               const struct msg_run_result *x)
{
    bool failed = x->error && x->error[0];
    const struct accept_rows rows = {.n_rows = a->n_tokens,
                                     .n_draft = a->n_guesses,
                                     .n_live = x->n_tokens + failed,
                                     .choices = x->tokens,
                                     .n_choices = x->n_tokens,
                                     .room = more(r->n_prompt + r->max_new, x->first_pos),
                                     .ends = c->eog,
                                     .n_ends = r->ignore_eos ? 0 : c->cfg.n_eog};
    return accept_run(&rows);
}

void spec__verified(struct core *c, struct replica *rep, struct request *r, const struct asked *a,
                    const struct msg_run_result *x)
{
    const struct accept run = r ? accept_of(c, r, a, x) : (struct accept){0};
    accept_note(&rep->accept, a->n_tokens, a->n_guesses, run);
    if (!r) return;
    accept_note(&r->accept, a->n_tokens, a->n_guesses, run);
    if (r->line == a->line) length_note(&r->length, (float)run.accepted / (float)a->n_guesses);
}

void spec__spoke(struct core *c, struct replica *rep, struct request *r, uint32_t n_tokens)
{
    if (n_tokens == 0) return;
    uint64_t took_ns = c->now_ns - r->spoke_ns;
    struct accept_stats more = {0};
    if (r->drafts && r->run) {
        more.on_ns = took_ns;
        more.on_tokens = n_tokens;
    } else {
        more.off_ns = took_ns;
        more.off_tokens = n_tokens;
    }
    if (r->spoke_ns) accept_add(&rep->accept, &more);
    r->spoke_ns = c->now_ns;
}
