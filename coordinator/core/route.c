#include "coordinator/core/route.h"

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
 * time, and the processor has nothing to guess wrong. */
enum column { CTX, ROWS, PROMPTS, ROW_NS, ANSWERS, WORK };

_Static_assert(WORK + 1 == ROUTE_COLUMNS, "one for each");

void route_note(double *columns, uint32_t n_replicas, uint32_t replica, const struct route_load *x,
                uint32_t max_running)
{
    double *of = columns + replica;
    of[(size_t)CTX * n_replicas] = x->ctx;
    of[(size_t)ROWS * n_replicas] = (double)x->rows;
    of[(size_t)PROMPTS * n_replicas] = x->prompts;
    of[(size_t)ROW_NS * n_replicas] = x->row_ns;
    of[(size_t)ANSWERS * n_replicas] = answers_before(x->live, max_running);
    of[(size_t)WORK * n_replicas] = x->work;
}

static const double *column(const struct route_ask *a, enum column c)
{
    return a->columns + (size_t)c * a->n_replicas;
}

/* What each replica would have to compute of the prompt, in rows. */
static void prompt_rows(const struct route_ask *a, double *restrict ret)
{
    const uint32_t *restrict held = a->held;
    int32_t n_tokens = (int32_t)a->n_tokens, page = (int32_t)a->page_size;
    for (uint32_t i = 0, n = a->n_replicas; i < n && !held; i++) ret[i] = n_tokens;
    for (uint32_t i = 0, n = a->n_replicas; i < n && held; i++) {
        int32_t rows = n_tokens - (int32_t)held[i] * page;
        ret[i] = rows > 0 ? rows : 0;
    }
}

/* A sum waits for the one before it. So there are several side by side, which are added up at the
 * end. */
#define LANES 4u
struct sums {
    double n[LANES], prompts[LANES], backlog[LANES], rows_least[LANES];
};

/* What `look` reads of all replicas. */
struct seen {
    const double *restrict ctx, *restrict rows, *restrict own_ns, *restrict answers,
                                                                      *restrict prompts;
    double all_ns, each_ns, ctx_least;
};

/* Replica i's backlog, at least NEVER where the request cannot go; adds it to the sums. */
static inline double look_at(const struct seen *x, uint32_t i, struct sums *s, uint32_t lane)
{
    double rows = x->rows[i], own_ns = x->own_ns[i];
    double ns = rows * (own_ns > 0.0 ? own_ns : x->all_ns) + x->each_ns * x->answers[i];
    bool may = x->ctx[i] >= x->ctx_least;
    s->n[lane] += may ? 1.0 : 0.0;
    s->prompts[lane] += may ? x->prompts[i] : 0.0;
    s->backlog[lane] += may ? ns : 0.0;
    rows = may ? rows : NEVER;
    s->rows_least[lane] = rows < s->rows_least[lane] ? rows : s->rows_least[lane];
    return ns + (may ? 0.0 : NEVER);
}

static double sum_of(const double lanes[LANES])
{
    double sum = lanes[0];
    for (uint32_t k = 1; k < LANES; k++) sum += lanes[k];
    return sum;
}

static double least_lane(const double lanes[LANES])
{
    double least = lanes[0];
    for (uint32_t k = 1; k < LANES; k++) least = lanes[k] < least ? lanes[k] : least;
    return least;
}

/* Each replica's backlog, and what is known of all.
 *
 * By Little's law as many prompts wait in a replica, n on average, as come to it in the time that
 * its backlog takes; and while those are served, others come: n / (1 - load) in all. The load is
 * taken to be n / (n + 1), as in a queue with one server. */
static struct all look(const struct route_ask *a, double *restrict ret_wait_ns)
{
    const struct seen x = {.ctx = column(a, CTX),
                           .rows = column(a, ROWS),
                           .own_ns = column(a, ROW_NS),
                           .answers = column(a, ANSWERS),
                           .prompts = column(a, PROMPTS),
                           .all_ns = a->row_ns,
                           .each_ns = answer_ns(a),
                           .ctx_least = a->positions ? a->positions : 1};
    struct sums s = {.rows_least = {NEVER, NEVER, NEVER, NEVER}};
    uint32_t i = 0, n = a->n_replicas;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) ret_wait_ns[i + k] = look_at(&x, i + k, &s, k);
    for (uint32_t k = 0; i < n; i++, k++) ret_wait_ns[i] = look_at(&x, i, &s, k);
    struct all all = {.n = sum_of(s.n), .rows_least = least_lane(s.rows_least), .work_most = 2.0};
    double waiting = sum_of(s.prompts), backlog = sum_of(s.backlog);
    if (all.n > 0.0) all.backlog_ns = backlog / all.n;
    if (a->work_all > 0.0) all.per_work = all.n / a->work_all;
    if (backlog > 0.0) all.care = waiting / backlog * (1.0 + waiting / all.n);
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

/* This request's wait, and what its rows make later ones wait: those that come while the backlog is
 * served wait for all of its rows, those that come while these are computed for half of them, on
 * average. A shorter backlog than the average will not stay so. */
static double auto_cost(const struct all *all, double wait_ns, double prompt_ns)
{
    double later_ns = wait_ns > all->backlog_ns ? wait_ns : all->backlog_ns;
    return wait_ns + prompt_ns + all->care * prompt_ns * (later_ns + prompt_ns / 2.0);
}

/* Costs are the less by up to a part of WORK_MOST where little was done of late, and the more where
 * much was, so that replicas with equal queues, or none, get equal work: also where all prompts
 * begin alike, and one replica is the first to hold how. */
static double with_work(const struct all *all, double work, double cost)
{
    if (!(all->per_work > 0.0)) return cost;
    double share = work * all->per_work;
    return cost * (1.0 + WORK_MOST * ((share < all->work_most ? share : all->work_most) - 1.0));
}

/* By ROUTE_AUTO: costs of rows to compute. */
static void auto_costs(const struct route_ask *a, const struct all *all,
                       const double *restrict wait_ns, double *restrict costs)
{
    const double *restrict own_ns = column(a, ROW_NS), *restrict work = column(a, WORK);
    const struct all k = *all;
    double all_ns = a->row_ns;
    for (uint32_t i = 0, n = a->n_replicas; i < n; i++) {
        double prompt_ns = costs[i] * (own_ns[i] > 0.0 ? own_ns[i] : all_ns);
        double cost = with_work(&k, work[i], auto_cost(&k, wait_ns[i], prompt_ns));
        costs[i] = cost + (wait_ns[i] < NEVER ? 0.0 : NEVER);
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

static double least_of(const double *x, uint32_t n)
{
    double least[LANES] = {NEVER, NEVER, NEVER, NEVER};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) least[k] = x[i + k] < least[k] ? x[i + k] : least[k];
    for (; i < n; i++) least[0] = x[i] < least[0] ? x[i] : least[0];
    return least_lane(least);
}

/* The replicas that cost no more than `most`, in their order. Returns how many. */
static uint32_t find_alike(const double *restrict costs, uint32_t n, double most,
                           uint32_t *restrict ret)
{
    uint32_t n_alike = 0;
    for (uint32_t i = 0; i < n; i++) {
        ret[n_alike] = i; /* overwritten by the next one, unless this one counts */
        n_alike += costs[i] <= most;
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

uint32_t route_choose(const struct route_ask *a)
{
    double *costs = a->costs, *wait_ns = a->costs + a->n_replicas;
    struct all all = look(a, wait_ns);
    if (!(all.n > 0.0)) return ROUTE_NONE;
    if (a->policy == ROUTE_AUTO) {
        prompt_rows(a, costs);
        auto_costs(a, &all, wait_ns, costs);
    }
    for (uint32_t i = 0; i < a->n_replicas && a->policy != ROUTE_AUTO; i++)
        costs[i] = wait_ns[i] < NEVER ? cost_of(a, &all, i) : NEVER;
    double best = least_of(costs, a->n_replicas);
    double most = a->policy == ROUTE_AUTO ? best * (1.0 + ALIKE) : best;
    uint32_t n_alike = find_alike(costs, a->n_replicas, most, a->alike);
    return n_alike ? least_loaded(a, wait_ns, n_alike) : ROUTE_NONE;
}
