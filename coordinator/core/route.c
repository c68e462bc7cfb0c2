#include "coordinator/core/route.h"

#include "common/base/insn.h"
#include "proto/limits.h"

#include <stdio.h>
#include <string.h>

#define ALIKE (1.0 / 32.0)    /* costs that differ by less, in proportion, count as equal */
#define WORK_MOST (1.0 / 8.0) /* of a cost, for the work of late */
#define NEVER 1e300           /* a cost that is never the least */

static const char *const names[ROUTE_POLICIES] = {
    [ROUTE_AUTO] = "auto",         [ROUTE_ROUND_ROBIN] = "round_robin",
    [ROUTE_AFFINITY] = "affinity", [ROUTE_LEAST_LOADED] = "least_loaded",
    [ROUTE_COST] = "cost",         [ROUTE_PRODUCT] = "product",
    [ROUTE_NEAR_MIN] = "near_min",
};

const char *route_policy_name(enum route_policy policy)
{
    return names[policy];
}

bool route_policy_parse(const char *name, enum route_policy *ret)
{
    for (int i = 0; i < ROUTE_POLICIES; i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (enum route_policy)i;
            return true;
        }
    return false;
}

const char *route_policies_text(char ret[ROUTE_POLICIES_TEXT_BYTES])
{
    size_t n = 0;
    for (int i = 0; i < ROUTE_POLICIES && n < ROUTE_POLICIES_TEXT_BYTES; i++)
        n += (size_t)snprintf(ret + n, ROUTE_POLICIES_TEXT_BYTES - n, "%s%s", i ? ", " : "",
                              names[i]);
    return ret;
}

/* What is known of all replicas that may take the request. */
struct all {
    double n;
    double rows_least; /* that wait in one */
    double backlog_ns; /* on average */
    double care;       /* later requests that one delays, for each ns of backlog before it */
    double per_work;   /* 1 / the work on average; 0: unknown */
    double work_most;  /* of it that counts, in times of that average */
};

uint32_t route_rows(const struct route_ask *a, uint32_t replica)
{
    uint32_t held = a->held ? a->held[replica] * a->page_size : 0;
    return held < a->n_tokens ? a->n_tokens - held : 0;
}

static double row_ns(const struct route_ask *a, const struct route_load *x)
{
    return x->row_ns > 0.0 ? x->row_ns : a->row_ns;
}

/* So many sequences that decode together make a Step take about twice as long as one alone. */
#define DECODES_TWICE 8u

/* Answers that go before one more request: where all places are taken, as many as requests must
 * end. Below that, what others' decoding adds to the time that the request's answer takes. */
static double answers_before(uint32_t live, uint32_t max_running)
{
    uint32_t twice = max_running < DECODES_TWICE ? max_running : DECODES_TWICE;
    return live >= max_running ? live + 1.0 - max_running : (double)live / twice;
}

static double answer_ns(const struct route_ask *a)
{
    return a->answer_ns > 0.0 ? a->answer_ns : 0.0;
}

/* What goes before: rows of prompts, and answers. */
static double backlog_ns(const struct route_ask *a, const struct route_load *x)
{
    return (double)x->rows * row_ns(a, x) + answer_ns(a) * answers_before(x->live, a->max_running);
}

/* ---- all replicas ---- */

/* Each arrival looks at all replicas. So what the look needs of a load is kept as numbers, column
 * by column, and the loops over them have no branches: the compiler takes several replicas at a
 * time, and the processor has nothing to guess wrong. They are compiled once more for AVX2, which
 * takes four at a time and can choose between two numbers in one instruction; what comes out is the
 * same to the last bit, since no operation is another one or comes in another order. */
#define FOR_EACH_LEVEL static inline __attribute__((always_inline))

enum column { CTX, ROWS, PROMPTS, ROW_NS, ANSWERS, WORK };

_Static_assert(WORK + 1 == ROUTE_COLUMNS, "one for each");

void route_note(double *columns, uint32_t n_replicas, uint32_t replica, const struct route_load *x,
                uint32_t max_running)
{
    size_t stride = ROUTE_PADDED(n_replicas);
    double *of = columns + replica;
    of[CTX * stride] = x->ctx;
    of[ROWS * stride] = (double)x->rows;
    of[PROMPTS * stride] = x->prompts;
    of[ROW_NS * stride] = x->row_ns;
    of[ANSWERS * stride] = answers_before(x->live, max_running);
    of[WORK * stride] = x->work;
}

static const double *column(const struct route_ask *a, enum column c)
{
    return a->columns + (size_t)c * ROUTE_PADDED(a->n_replicas);
}

/* What each replica would have to compute of the prompt, in rows. */
FOR_EACH_LEVEL void prompt_rows(const struct route_ask *a, double *restrict ret)
{
    const uint32_t *restrict held = a->held;
    int32_t n_tokens = (int32_t)a->n_tokens, page = (int32_t)a->page_size;
    uint32_t n = ROUTE_PADDED(a->n_replicas);
    for (uint32_t i = 0; i < n && !held; i++) ret[i] = n_tokens;
    for (uint32_t i = 0; i < n && held; i++) {
        int32_t rows = n_tokens - (int32_t)held[i] * page;
        ret[i] = rows > 0 ? rows : 0;
    }
}

/* Four replicas at a time, so that no sum waits for the one before it: columns, and what is made of
 * them, are padded to that. */
#define LANES ROUTE_LANES
typedef double lanes __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
typedef int64_t mask __attribute__((vector_size(8 * LANES)));

_Static_assert(LANES == 4, "what follows writes out four");

#define AT(column, i) (*(lanes *)((column) + (i)))
#define SEEN(column, i) (*(const lanes *)((column) + (i)))
#define EACH(x) ((lanes){(x), (x), (x), (x)})
#define SELECT(m, a, b) ((lanes)(((mask)(m) & (mask)(a)) | (~(mask)(m) & (mask)(b))))
#define SUM(x) ((x)[0] + (x)[1] + (x)[2] + (x)[3])

FOR_EACH_LEVEL double least_lane(const lanes *x)
{
    double least = (*x)[0];
    for (uint32_t k = 1; k < LANES; k++) least = (*x)[k] < least ? (*x)[k] : least;
    return least;
}

/* Each replica's backlog, NEVER where the request cannot go, and what is known of all.
 *
 * By Little's law as many prompts wait in a replica, n on average, as come to it in the time that
 * its backlog takes; and while those are served, others come: n / (1 - load) in all. The load is
 * taken to be n / (n + 1), as in a queue with one server. */
FOR_EACH_LEVEL struct all look(const struct route_ask *a, double *restrict ret_wait_ns)
{
    const double *ctx = column(a, CTX), *rows = column(a, ROWS), *prompts = column(a, PROMPTS);
    const double *own_ns = column(a, ROW_NS), *answers = column(a, ANSWERS);
    const lanes zero = EACH(0.0), one = EACH(1.0), never = EACH(NEVER);
    const lanes all_ns = EACH(a->row_ns), each_ns = EACH(answer_ns(a));
    const lanes least = EACH((double)(a->positions ? a->positions : 1));
    lanes n = zero, waiting = zero, backlog = zero, rows_least = never;
    for (uint32_t i = 0; i < a->n_replicas; i += LANES) {
        lanes own = SEEN(own_ns, i), wait = SEEN(rows, i);
        mask may = SEEN(ctx, i) >= least;
        lanes may_rows = SELECT(may, wait, never);
        wait = wait * SELECT(own > zero, own, all_ns) + each_ns * SEEN(answers, i);
        n += SELECT(may, one, zero);
        waiting += SELECT(may, SEEN(prompts, i), zero);
        backlog += SELECT(may, wait, zero);
        rows_least = SELECT(may_rows < rows_least, may_rows, rows_least);
        AT(ret_wait_ns, i) = SELECT(may, wait, never);
    }
    struct all all = {.n = SUM(n), .rows_least = least_lane(&rows_least), .work_most = 2.0};
    if (all.n > 0.0) all.backlog_ns = SUM(backlog) / all.n;
    if (a->work_all > 0.0) all.per_work = all.n / a->work_all;
    if (SUM(backlog) > 0.0) all.care = SUM(waiting) / SUM(backlog) * (1.0 + SUM(waiting) / all.n);
    return all;
}

double route_row_ns(const struct route_ask *a, uint32_t replica)
{
    return row_ns(a, &a->loads[replica]);
}

double route_backlog(const struct route_ask *a, uint32_t replica)
{
    return backlog_ns(a, &a->loads[replica]);
}

double route_ttft(const struct route_ask *a, uint32_t replica)
{
    const struct route_load *x = &a->loads[replica];
    return backlog_ns(a, x) + (double)route_rows(a, replica) * row_ns(a, x);
}

/* By ROUTE_AUTO: costs of rows to compute.
 *
 * This request's wait, and what its rows make later ones wait: those that come while the backlog is
 * served wait for all of its rows, those that come while these are computed for half of them, on
 * average. A shorter backlog than the average will not stay so.
 *
 * Costs are the less by up to a part of WORK_MOST where little was done of late, and the more where
 * much was, so that replicas with equal queues, or none, get equal work: also where all prompts
 * begin alike, and one replica is the first to hold how. */
FOR_EACH_LEVEL void auto_costs(const struct route_ask *a, const struct all *all,
                               const double *restrict wait_ns, double *restrict costs)
{
    const double *own_ns = column(a, ROW_NS), *work = column(a, WORK);
    const lanes zero = EACH(0.0), half = EACH(0.5), one = EACH(1.0), never = EACH(NEVER);
    const lanes all_ns = EACH(a->row_ns), mean_ns = EACH(all->backlog_ns), care = EACH(all->care);
    const lanes per_work = EACH(all->per_work), most = EACH(all->work_most);
    const lanes part = EACH(all->per_work > 0.0 ? WORK_MOST : 0.0);
    for (uint32_t i = 0; i < a->n_replicas; i += LANES) {
        lanes own = SEEN(own_ns, i), wait = SEEN(wait_ns, i), share = SEEN(work, i) * per_work;
        lanes prompt = AT(costs, i) * SELECT(own > zero, own, all_ns);
        lanes later = SELECT(wait > mean_ns, wait, mean_ns);
        lanes cost = wait + prompt + care * prompt * (later + prompt * half);
        share = SELECT(share < most, share, most);
        AT(costs, i) = SELECT(wait < never, cost * (one + part * (share - one)), never);
    }
}

/* By another policy, of one replica. The less the better; only compared with others of the same
 * policy. */
static double cost_of(const struct route_ask *a, const struct all *all, uint32_t i)
{
    const struct route_load *x = &a->loads[i];
    double rows = route_rows(a, i), weight = a->weight > 0.0 ? a->weight : 1.0;
    switch (a->policy) {
    case ROUTE_ROUND_ROBIN: return i < a->turn ? i + a->n_replicas : i;
    case ROUTE_LEAST_LOADED: return x->live;
    case ROUTE_AFFINITY: return rows;
    case ROUTE_COST: return weight * (double)x->rows + rows;
    case ROUTE_PRODUCT: return rows * (x->live + 1.0);
    default: /* ROUTE_NEAR_MIN */
        return (double)x->rows <= all->rows_least + 2.0 * a->n_tokens ? rows : NEVER;
    }
}

/* SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", OOPSLA'14). */
static uint64_t draw_of(const struct route_ask *a, uint32_t i)
{
    uint64_t z = (a->draw * LIMIT_REPLICAS + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

FOR_EACH_LEVEL double least_of(const double *x, uint32_t n)
{
    lanes least = EACH(NEVER);
    for (uint32_t i = 0; i < n; i += LANES) least = SELECT(SEEN(x, i) < least, SEEN(x, i), least);
    return least_lane(&least);
}

/* The replicas that cost no more than `most`, in their order. Returns how many. */
FOR_EACH_LEVEL uint32_t find_alike(const double *restrict costs, uint32_t n, double most,
                                   uint32_t *restrict ret)
{
    const lanes limit = EACH(most);
    uint32_t n_alike = 0;
    for (uint32_t i = 0; i < n; i += LANES) {
        mask may = SEEN(costs, i) <= limit;
        if (!(may[0] | may[1] | may[2] | may[3])) continue;
        for (uint32_t k = 0; k < LANES; k++) {
            ret[n_alike] = i + k; /* overwritten by the next one, unless this one counts */
            n_alike += costs[i + k] <= most;
        }
    }
    return n_alike;
}

/* Of those that cost the same: where least waits, where fewest are live, and else as drawn. In an
 * idle cluster these are nearly all. */
static uint32_t least_loaded(const struct route_ask *a, const double *wait_ns, uint32_t n_alike)
{
    uint32_t chosen = a->alike[0], live = a->loads[chosen].live;
    double least_ns = wait_ns[chosen];
    uint64_t draw = draw_of(a, chosen);
    for (uint32_t k = 1; k < n_alike; k++) {
        uint32_t i = a->alike[k], i_live = a->loads[i].live;
        if (wait_ns[i] > least_ns || (!(wait_ns[i] < least_ns) && i_live > live)) continue;
        uint64_t i_draw = draw_of(a, i);
        if (!(wait_ns[i] < least_ns) && i_live == live && i_draw >= draw) continue;
        chosen = i;
        least_ns = wait_ns[i];
        live = i_live;
        draw = i_draw;
    }
    return chosen;
}

FOR_EACH_LEVEL uint32_t choose(const struct route_ask *a)
{
    uint32_t n = ROUTE_PADDED(a->n_replicas);
    double *costs = a->costs, *wait_ns = a->costs + n;
    struct all all = look(a, wait_ns);
    if (!(all.n > 0.0)) return ROUTE_NONE;
    if (a->policy == ROUTE_AUTO) {
        prompt_rows(a, costs);
        auto_costs(a, &all, wait_ns, costs);
    }
    for (uint32_t i = 0; i < n && a->policy != ROUTE_AUTO; i++)
        costs[i] = wait_ns[i] < NEVER ? cost_of(a, &all, i) : NEVER;
    double best = least_of(costs, n);
    double most = a->policy == ROUTE_AUTO ? best * (1.0 + ALIKE) : best;
    uint32_t n_alike = find_alike(costs, n, most, a->alike);
    return n_alike ? least_loaded(a, wait_ns, n_alike) : ROUTE_NONE;
}

INSN_FMA static uint32_t choose_fma(const struct route_ask *a)
{
    return choose(a);
}

uint32_t route_choose(const struct route_ask *a)
{
    return insn_has_fma() ? choose_fma(a) : choose(a);
}
