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
    uint64_t rows_least; /* that wait in one */
    double backlog_ns;   /* on average */
    double care;         /* later requests that one delays, for each ns of backlog before it */
    double per_work;     /* 1 / the work on average; 0: unknown */
};

static bool may_take(const struct route_ask *a, uint32_t i)
{
    return a->loads[i].ctx && a->positions <= a->loads[i].ctx;
}

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

/* What goes before: rows of prompts; and where all places are taken, as many answers as requests
 * must end. Below that, what others' decoding adds to the time that the request's answer takes.
 * This is computed for each replica at each arrival: it takes no branch that depends on the load,
 * since a wrong guess of the processor at one costs as much as all the rest. */
static double backlog_ns(const struct route_ask *a, const struct route_load *x)
{
    uint32_t twice = a->max_running < DECODES_TWICE ? a->max_running : DECODES_TWICE;
    bool full = x->live >= a->max_running;
    uint32_t answers = full ? x->live + 1 - a->max_running : x->live, of = full ? 1 : twice;
    double answer_ns = a->answer_ns > 0.0 ? a->answer_ns : 0.0;
    return (double)(int64_t)x->rows * row_ns(a, x) + answer_ns * ((double)answers / (double)of);
}

/* By Little's law as many prompts wait in a replica, n on average, as come to it in the time that
 * its backlog takes; and while those are served, others come: n / (1 - load) in all. The load is
 * taken to be n / (n + 1), as in a queue with one server. Leaves the backlogs in a->costs, and
 * NEVER where the request cannot go. */
static struct all look(const struct route_ask *a)
{
    struct all all = {.rows_least = UINT64_MAX};
    double backlog = 0.0;
    uint64_t n_waiting = 0;
    for (uint32_t i = 0; i < a->n_replicas; i++) {
        const struct route_load *x = &a->loads[i];
        a->costs[i] = NEVER;
        if (!may_take(a, i)) continue;
        a->costs[i] = backlog_ns(a, x);
        all.n++;
        n_waiting += x->prompts;
        backlog += a->costs[i];
        if (x->rows < all.rows_least) all.rows_least = x->rows;
    }
    double waiting = (double)n_waiting;
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
static double with_work(const struct all *all, const struct route_load *x, double cost)
{
    if (!(all->per_work > 0.0)) return cost;
    double share = x->work * all->per_work;
    return cost * (1.0 + WORK_MOST * ((share < 2.0 ? share : 2.0) - 1.0));
}

/* The less the better; only compared with others of the same policy. */
static double cost_of(const struct route_ask *a, const struct all *all, uint32_t i,
                      enum route_policy policy)
{
    const struct route_load *x = &a->loads[i];
    double rows = route_rows(a, i), weight = a->weight > 0.0 ? a->weight : 1.0;
    switch (policy) {
    case ROUTE_ROUND_ROBIN: return i < a->turn ? i + a->n_replicas : i;
    case ROUTE_LEAST_LOADED: return x->live;
    case ROUTE_AFFINITY: return rows;
    case ROUTE_COST: return weight * (double)x->rows + rows;
    case ROUTE_PRODUCT: return rows * (x->live + 1.0);
    case ROUTE_NEAR_MIN:
        return x->rows <= all->rows_least + 2 * (uint64_t)a->n_tokens ? rows : NEVER;
    default: return with_work(all, x, auto_cost(all, a->costs[i], rows * row_ns(a, x)));
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

/* Makes costs of the backlogs in a->costs; returns the least. Where the policy is a constant, the
 * compiler takes it out of the loop. */
static inline double costs(const struct route_ask *a, const struct all *all,
                           enum route_policy policy)
{
    double best = NEVER;
    for (uint32_t i = 0; i < a->n_replicas; i++) {
        if (!(a->costs[i] < NEVER)) continue;
        double cost = a->costs[i] = cost_of(a, all, i, policy);
        best = cost < best ? cost : best;
    }
    return best;
}

uint32_t route_choose(const struct route_ask *a)
{
    struct all all = look(a);
    struct candidate chosen = {.replica = ROUTE_NONE};
    if (all.n == 0) return ROUTE_NONE;
    double best = a->policy == ROUTE_AUTO ? costs(a, &all, ROUTE_AUTO) : costs(a, &all, a->policy);
    double most = a->policy == ROUTE_AUTO ? best * (1.0 + ALIKE) : best;
    for (uint32_t i = 0; i < a->n_replicas; i++) {
        const struct route_load *x = &a->loads[i];
        if (a->costs[i] > most) continue;
        struct candidate new = {backlog_ns(a, x), i, x->live, draw_of(a, i)};
        if (chosen.replica == ROUTE_NONE || less_loaded(&new, &chosen)) chosen = new;
    }
    return chosen.replica;
}
