/* Steps in flight: what their results must hold, how long Steps take, and when one is overdue.
 *
 * A worker that is slow is not lost. Its heartbeats say which Step has arrived, which is done, and
 * carry a counter that its compute thread moves with each layer and with each idle turn. A counter
 * that moves while a Step is computed means patience, up to a hard cap; one that stands still means
 * a hung compute thread; a worker that turns idly and still lacks a Step that the one before it has
 * passed on means a broken link. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define HUNG_NS (10 * NS_PER_S) /* limit of a probe: no Step's time is known yet */
#define OVERDUE_FACTOR 5u       /* a Step's limit: so many times its predicted time */
#define IDLE_FACTOR 10u         /* most time for a Step to arrive: so many times step_timeout_ns */
/* The most time for a Step whose stage computes: so many times step_timeout_ns, or its own limit.
 */
#define SLOW_FACTOR 30u
#define SLOW_LIMITS 6u
#define SHARE_SHIFT 16 /* a stage computes for at least 1 / 2^SHARE_SHIFT of a Step's time */

/* ---- in flight ---- */

static void set_n(struct core *c, struct replica *r, uint32_t n)
{
    r->flight.n = n;
    c->full[r->id] = n == c->cfg.window;
}

void flight__begin(struct flight *f)
{
    CHECK(f->n == 0);
    f->next_number = 1;
    f->rested = true;
}

struct asked *flight__asked(const struct core *c, const struct flight *f, uint64_t number)
{
    return f->asked + number % c->cfg.window * LIMIT_STEP_RUNS;
}

/* What the Step's result must hold; a probe's is its digest. */
static uint32_t note_asked(struct core *c, const struct flight *f, const struct msg_step *step)
{
    struct asked *asked = flight__asked(c, f, step->number);
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_runs; i++) {
        const struct msg_run *x = &step->runs[i];
        if (x->kind == RUN_PROBE) continue;
        const uint32_t *slot = imap_get(&c->by_id, x->request);
        CHECK(slot != NULL);
        const struct request *r = &c->requests[*slot];
        const struct sampling *s = &r->sampling;
        asked[n++] =
            (struct asked){.request = x->request,
                           .attempt = x->attempt,
                           .sample = x->sample,
                           .first_pos = x->first_pos + x->n_rows - x->n_logits + 1,
                           .n_tokens = x->n_logits,
                           .n_guesses = x->n_guesses,
                           .line = r->line,
                           .n_top = s->top_logprobs < c->cfg.vocab ? s->top_logprobs : c->cfg.vocab,
                           .logprobs = s->logprobs,
                           .embeds = msg_run_embeds(x)};
    }
    return n;
}

static uint32_t prompt_rows(const struct msg_step *step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_runs; i++)
        n += step->runs[i].kind == RUN_PREFILL ? step->runs[i].n_rows : 0;
    return n;
}

void flight__add(struct core *c, struct replica *r, const struct msg_step *step,
                 struct cost_work work)
{
    struct flight *f = &r->flight;
    CHECK(r->state >= REPLICA_PROBING && f->n < c->cfg.window);
    CHECK(step->number == f->next_number && step->n_runs > 0 && step->n_runs <= LIMIT_STEP_RUNS);
    f->steps[f->n] = (struct in_flight){.number = step->number,
                                        .issued_ns = c->now_ns,
                                        .work = work,
                                        .n_asked = note_asked(c, f, step),
                                        .prompt_rows = prompt_rows(step),
                                        .alone = f->n == 0,
                                        .first = f->rested};
    f->next_number++;
    f->rested = false;
    set_n(c, r, f->n + 1);
}

void flight__end(struct core *c, struct replica *r)
{
    set_n(c, r, 0);
}

/* ---- how long Steps take ---- */

/* When the chain turned to this Step: when it was issued, or when the one before it came back. */
static uint64_t begun_ns(const struct flight *f, const struct in_flight *step)
{
    return step->issued_ns > f->moved_ns ? step->issued_ns : f->moved_ns;
}

static uint32_t size_of(uint32_t rows)
{
    uint32_t size = 0;
    while (size + 1 < STEP_SIZES && rows >> size > 1) size++;
    return size;
}

static void learn_speed(struct flight *f, uint64_t took_ns, uint32_t rows)
{
    uint64_t *known = &f->took_ns[size_of(rows)];
    if (took_ns > *known)
        *known = took_ns;
    else
        *known -= (*known - took_ns) / 16; /* one slow Step is forgotten in time */
}

/* How long a Step of so many rows is expected to take: as long as such Steps took, else as larger
 * ones, else in proportion to the largest that are known. 0: nothing is known. */
static uint64_t predict(const struct flight *f, uint32_t rows)
{
    uint32_t size = size_of(rows);
    for (uint32_t i = size; i < STEP_SIZES; i++)
        if (f->took_ns[i]) return f->took_ns[i];
    for (uint32_t i = size; i-- > 0;)
        if (f->took_ns[i]) return f->took_ns[i] << (size - i);
    return 0;
}

/* ---- results ---- */

/* What the stages took for a Step: the slowest, and all together. */
struct took {
    uint64_t slowest_ns, all_ns;
};

/* Times are what workers say. None computes for longer than the Step was on its way; nor for so
 * short a part of it that its figure would outweigh all others. */
static struct took take_timings(struct core *c, const struct replica *r, const struct msg_result *m,
                                const struct in_flight *step)
{
    struct took took = {0, 0};
    uint64_t trip_ns = c->now_ns - step->issued_ns, least_ns = trip_ns >> SHARE_SHIFT;
    for (uint32_t i = 0; i < m->n_timings; i++) {
        if (m->timings[i].stage >= r->n_stages) continue;
        uint32_t stage = m->timings[i].stage;
        struct worker *w = replica__at(c, r, stage);
        w->heard_ns = w->moved_ns = c->now_ns; /* it has just computed: it lives */
        uint64_t ns = m->timings[i].compute_ns;
        if (ns > trip_ns) ns = trip_ns;
        if (ns < least_ns) ns = least_ns;
        w->compute_ns += ns;
        if (!step->first) w->idle_ns += m->timings[i].idle_ns;
        w->timed_steps++;
        double predicted_ns = speed_step_at(
            &w->speed, planner__stage(c, w, r->first[stage], r->last[stage]), step->work);
        w->predicted_ns +=
            predicted_ns < (double)LIMIT_SPEED_NS ? (uint64_t)predicted_ns : LIMIT_SPEED_NS;
        if (ns > took.slowest_ns) took.slowest_ns = ns;
        took.all_ns += ns;
    }
    return took;
}

/* What composing goes by: a Step's time on its slowest stage, and how many times that a lone Step's
 * round trip takes. */
static void learn_cost(struct core *c, struct replica *r, const struct in_flight *step,
                       struct took took)
{
    struct flight *f = &r->flight;
    uint64_t trip_ns = c->now_ns - step->issued_ns;
    uint64_t beside_ns = trip_ns > took.all_ns ? trip_ns - took.all_ns : 0;
    if (took.slowest_ns == 0) return;
    cost_learn(&f->cost, step->work, took.slowest_ns);
    router__learn(c, r, step, took.slowest_ns);
    if (step->alone) f->wire_ns = f->wire_ns ? (f->wire_ns * 7 + beside_ns) / 8 : beside_ns;
    uint64_t wire_ns = beside_ns < f->wire_ns ? beside_ns : f->wire_ns;
    f->wire_sum_ns += wire_ns;
    f->queue_sum_ns += beside_ns - wire_ns;
    double stages = (double)took.all_ns / (double)took.slowest_ns;
    f->stages = f->stages == 0.0 ? stages : f->stages + (stages - f->stages) / 8.0;
    if (!step->alone) return;
    double trips = (double)trip_ns / (double)took.slowest_ns;
    f->trips = f->trips == 0.0 ? trips : f->trips + (trips - f->trips) / 8.0;
}

static bool all_in_vocab(const struct core *c, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= c->cfg.vocab) return false;
    return true;
}

/* Tokens of the vocabulary, with log-probabilities exactly if they are wanted. */
static bool has_its_logprobs(const struct core *c, const struct asked *a,
                             const struct msg_run_result *x)
{
    if (!all_in_vocab(c, x->tokens, x->n_tokens)) return false;
    if (x->n_tokens == 0) return true;
    if (!a->logprobs || !x->logprobs.chosen) return !a->logprobs && !x->logprobs.chosen;
    return x->logprobs.n_top == a->n_top &&
           all_in_vocab(c, x->logprobs.top_ids, (size_t)x->n_tokens * a->n_top);
}

/* A row failed; in a run of guesses, those before it have their tokens. */
static bool is_error(struct core *c, const struct asked *a, const struct msg_run_result *x)
{
    if (x->dead) return false;
    if (a->n_guesses == 0 || x->n_tokens == 0) return true;
    return x->first_pos == a->first_pos && x->n_tokens < a->n_tokens && spec__agrees(c, a, x) &&
           has_its_logprobs(c, a, x);
}

/* An embedding, of numbers, and nothing else. */
static bool is_embedding(const struct core *c, const struct asked *a,
                         const struct msg_run_result *x)
{
    if (x->first_pos != a->first_pos || x->n_tokens || x->dead || x->n_embedding != c->cfg.width)
        return false;
    for (uint32_t i = 0; i < x->n_embedding; i++)
        if (!isfinite(x->embedding[i])) return false;
    return true;
}

/* A token for each row whose own token is known, and for as many guesses behind them as held. */
static bool has_its_tokens(const struct asked *a, const struct msg_run_result *x)
{
    uint32_t n_known = a->n_tokens - a->n_guesses;
    if (x->first_pos != a->first_pos || x->n_tokens < n_known || x->n_tokens > a->n_tokens)
        return false;
    return x->dead == (x->n_tokens == 0);
}

/* A result's run is what the Step's run asked for: the same request, and tokens of the vocabulary
 * at the right place, with log-probabilities exactly if they are wanted, or an error. */
static bool is_answer(struct core *c, const struct asked *a, const struct msg_run_result *x)
{
    if (x->request != a->request || x->attempt != a->attempt || x->sample != a->sample)
        return false;
    if (x->error && x->error[0]) return is_error(c, a, x);
    if (a->embeds) return is_embedding(c, a, x);
    if (x->n_embedding) return false;
    return has_its_tokens(a, x) && spec__agrees(c, a, x) && has_its_logprobs(c, a, x);
}

/* One for each run that wants a token or an embedding, in their order. */
static bool is_what_was_asked(struct core *c, const struct flight *f, const struct in_flight *step,
                              const struct msg_result *m)
{
    const struct asked *asked = flight__asked(c, f, step->number);
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_asked; i++) {
        if (!asked[i].n_tokens && !asked[i].embeds) continue;
        if (n == m->n_runs || !is_answer(c, &asked[i], &m->runs[n])) return false;
        n++;
    }
    return n == m->n_runs;
}

/* The replica of whose Steps in flight this is the next one's result; NULL: of none. */
static struct replica *whose(struct core *c, const struct msg_result *m)
{
    struct replica *r = replica__of(c, m->epoch);
    if (!r || r->state < REPLICA_PROBING) return NULL;
    const struct flight *f = &r->flight;
    return m->number < (f->n ? f->steps[0].number : f->next_number) ? NULL : r;
}

bool flight__result(struct core *c, const struct msg_result *m, const struct key *key,
                    bool *ret_awaited)
{
    *ret_awaited = false;
    struct replica *r = whose(c, m);
    /* A key that is not its last stage's may be a worker's all the same. */
    if (!r || !key_eq(key, &replica__at(c, r, r->n_stages - 1)->key)) {
        c->dropped++;
        return false;
    }
    struct flight *f = &r->flight;
    uint32_t last = r->n_stages - 1;
    const char *name = replica__at(c, r, last)->hello.name;
    if (f->n == 0 || m->number != f->steps[0].number) {
        replica__link_failed(c, r, last + 1, false,
                             core__text(c, "the result of Step %" PRIu64 " of worker %s is missing",
                                        f->n ? f->steps[0].number : f->next_number, name));
        return false;
    }
    struct in_flight step = f->steps[0];
    if (!is_what_was_asked(c, f, &step, m)) {
        replica__lose_to(
            c, replica__at(c, r, last),
            core__text(c, "the result of Step %" PRIu64 " of worker %s is not what was asked for",
                       step.number, name));
        return false;
    }
    bool probe = r->state == REPLICA_PROBING;
    *ret_awaited = true;
    if (!step.waited) learn_speed(f, c->now_ns - begun_ns(f, &step), step.work.rows);
    f->moved_ns = c->now_ns;
    struct took took = take_timings(c, r, m, &step);
    if (!probe && !step.waited) learn_cost(c, r, &step, took);
    set_n(c, r, f->n - 1);
    memmove(&f->steps[0], &f->steps[1], f->n * sizeof f->steps[0]);
    if (probe) replica__probed(c, r, m->digest);
    return !probe;
}

/* ---- overdue ---- */

/* A Step that is on its way, and a thread that waits for one, compute nothing: what Steps of its
 * size took does not excuse them for longer than this. */
static uint64_t idle_limit(const struct core *c, uint64_t limit_ns)
{
    uint64_t most_ns = IDLE_FACTOR * c->cfg.step_timeout_ns;
    return limit_ns < most_ns ? limit_ns : most_ns;
}

/* The oldest Step is later than `limit`: the first stage that did not finish it is hung, or slow,
 * or the link to it is broken. `since_ns`: when the stage before was heard to have passed it on. */
static void look_at_stage(struct core *c, struct replica *r, uint32_t stage, uint64_t since_ns,
                          uint64_t limit_ns)
{
    const struct in_flight *step = &r->flight.steps[0];
    struct worker *w = replica__at(c, r, stage);
    const char *name = w->hello.name;
    uint64_t number = step->number, age_ns = c->now_ns - begun_ns(&r->flight, step);
    uint64_t idle_ns = idle_limit(c, limit_ns);
    bool arrived = w->heartbeat.step_received >= number;
    if (c->now_ns - w->moved_ns >= (arrived ? limit_ns : idle_ns)) {
        replica__lose_to(
            c, w,
            core__text(c, "Step %" PRIu64 " is overdue at worker %s: its compute thread hangs",
                       number, name));
    } else if (arrived) {
        if (age_ns < SLOW_FACTOR * c->cfg.step_timeout_ns || age_ns < SLOW_LIMITS * limit_ns)
            return;
        replica__lose_to(c, w,
                         core__text(c,
                                    "Step %" PRIu64
                                    " is overdue at worker %s: it still computes after %" PRIu64
                                    " s",
                                    number, name, age_ns / NS_PER_S));
    } else if (c->now_ns - since_ns >= idle_ns) {
        const char *from = stage ? replica__at(c, r, stage - 1)->hello.name : "the coordinator";
        replica__link_failed(
            c, r, stage, false,
            core__text(c, "Step %" PRIu64 " is overdue: the link from %s to worker %s", number,
                       from, name));
    }
}

void flight__check_overdue(struct core *c, struct replica *r)
{
    const struct flight *f = &r->flight;
    if (f->n == 0) return;
    const struct in_flight *step = &f->steps[0];
    uint64_t since_ns = begun_ns(f, step);
    uint64_t limit_ns = predict(f, step->work.rows) * OVERDUE_FACTOR;
    if (r->state == REPLICA_PROBING) limit_ns = HUNG_NS;
    if (limit_ns < c->cfg.step_timeout_ns) limit_ns = c->cfg.step_timeout_ns;
    uint64_t idle_ns = idle_limit(c, limit_ns);
    if (c->now_ns < since_ns + idle_ns) return;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        const struct worker *w = replica__at(c, r, i);
        if (w->heartbeat.step_done < step->number) {
            look_at_stage(c, r, i, since_ns, limit_ns);
            return;
        }
        if (w->passed_ns > since_ns) since_ns = w->passed_ns;
    }
    if (c->now_ns - since_ns >= idle_ns)
        replica__link_failed(
            c, r, r->n_stages, false,
            core__text(c, "Step %" PRIu64 " is overdue: the link from worker %s to the coordinator",
                       step->number, replica__at(c, r, r->n_stages - 1)->hello.name));
}

void flight__late(struct flight *f)
{
    for (uint32_t i = 0; i < f->n; i++) f->steps[i].waited = true;
}

void flight__forgive(const struct core *c, struct flight *f, uint64_t lost_ns)
{
    for (uint32_t i = 0; i < f->n; i++) fleet__forgive(c, &f->steps[i].issued_ns, lost_ns);
    fleet__forgive(c, &f->moved_ns, lost_ns);
}
