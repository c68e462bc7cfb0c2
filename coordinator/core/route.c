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
    uint32_t n;
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

/* What the prompt takes in each replica. */
static void prompts_ns(const struct route_ask *a, double *restrict ret)
{
    const double *restrict own_ns = column(a, ROW_NS);
    const uint32_t *restrict held = a->held;
    int32_t n_tokens = (int32_t)a->n_tokens, page = (int32_t)a->page_size;
    double all_ns = a->row_ns;
    for (uint32_t i = 0, n = a->n_replicas; i < n && !held; i++) ret[i] = n_tokens;
    for (uint32_t i = 0, n = a->n_replicas; i < n && held; i++) {
        int32_t rows = n_tokens - (int32_t)held[i] * page;
        ret[i] = rows > 0 ? rows : 0;
    }
    for (uint32_t i = 0, n = a->n_replicas; i < n; i++)
        ret[i] *= own_ns[i] > 0.0 ? own_ns[i] : all_ns;
}

/* Each replica's backlog; at least NEVER where the request cannot go. */
static void backlogs_ns(const struct route_ask *a, double *restrict ret)
{
    const double *restrict ctx = column(a, CTX), *restrict rows = column(a, ROWS);
    const double *restrict own_ns = column(a, ROW_NS), *restrict answers = column(a, ANSWERS);
    double all_ns = a->row_ns, each_ns = answer_ns(a), least = a->positions ? a->positions : 1;
    for (uint32_t i = 0, n = a->n_replicas; i < n; i++) {
        double ns = rows[i] * (own_ns[i] > 0.0 ? own_ns[i] : all_ns) + each_ns * answers[i];
        ret[i] = ns + (ctx[i] >= least ? 0.0 : NEVER);
    }
}

/* By Little's law as many prompts wait in a replica, n on average, as come to it in the time that
 * its backlog takes; and while those are served, others come: n / (1 - load) in all. The load is
 * taken to be n / (n + 1), as in a queue with one server. */
static struct all look(const struct route_ask *a, const double *restrict wait_ns)
{
    const double *restrict prompts = column(a, PROMPTS), *restrict rows = column(a, ROWS);
    double waiting = 0.0, backlog = 0.0;
    struct all all = {.rows_least = NEVER, .work_most = 2.0};
    for (uint32_t i = 0; i < a->n_replicas; i++) {
        if (!(wait_ns[i] < NEVER)) continue;
        all.n++;
        waiting += prompts[i];
        backlog += wait_ns[i];
        if (rows[i] < all.rows_least) all.rows_least = rows[i];
    }
    if (all.n) all.backlog_ns = backlog / all.n;
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

/* By ROUTE_AUTO: costs of backlogs. */
static void auto_costs(const struct route_ask *a, const struct all *all,
                       const double *restrict prompt_ns, double *restrict costs)
{
    const double *restrict work = column(a, WORK);
    const struct all k = *all;
    for (uint32_t i = 0, n = a->n_replicas; i < n; i++) {
        double cost = with_work(&k, work[i], auto_cost(&k, costs[i], prompt_ns[i]));
        costs[i] = cost + (costs[i] < NEVER ? 0.0 : NEVER);
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

/* One of those whose costs count as the least. */
struct candidate {
    double backlog_ns;
    uint32_t replica, live;
    uint64_t draw;
};

/* Of two that cost the same: where less waits, where fewer are live, and else as drawn. */
static bool less_loaded(const struct candidate *x, const struct candidate *y)
{
    if (x->backlog_ns < y->backlog_ns || y->backlog_ns < x->backlog_ns)
        return x->backlog_ns < y->backlog_ns;
    return x->live != y->live ? x->live < y->live : x->draw < y->draw;
}

/* Four at a time, so that none waits for the one before it. */
static double least_of(const double *x, uint32_t n)
{
    double least[4] = {NEVER, NEVER, NEVER, NEVER};
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (uint32_t k = 0; k < 4; k++) least[k] = x[i + k] < least[k] ? x[i + k] : least[k];
    for (; i < n; i++) least[0] = x[i] < least[0] ? x[i] : least[0];
    for (uint32_t k = 1; k < 4; k++) least[0] = least[k] < least[0] ? least[k] : least[0];
    return least[0];
}

uint32_t route_choose(const struct route_ask *a)
{
    double *costs = a->costs, *prompt_ns = a->costs + a->n_replicas;
    struct candidate chosen = {.replica = ROUTE_NONE};
    backlogs_ns(a, costs);
    struct all all = look(a, costs);
    if (all.n == 0) return ROUTE_NONE;
    if (a->policy == ROUTE_AUTO) {
        prompts_ns(a, prompt_ns);
        auto_costs(a, &all, prompt_ns, costs);
    }
    for (uint32_t i = 0; i < a->n_replicas && a->policy != ROUTE_AUTO; i++)
        if (costs[i] < NEVER) costs[i] = cost_of(a, &all, i);
    double best = least_of(costs, a->n_replicas);
    double most = a->policy == ROUTE_AUTO ? best * (1.0 + ALIKE) : best;
    for (uint32_t i = 0; i < a->n_replicas; i++) {
        const struct route_load *x = &a->loads[i];
        if (costs[i] > most) continue;
        struct candidate new = {backlog_ns(a, x), i, x->live, draw_of(a, i)};
        if (chosen.replica == ROUTE_NONE || less_loaded(&new, &chosen)) chosen = new;
    }
    return chosen.replica;
}
