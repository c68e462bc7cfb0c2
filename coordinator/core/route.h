/* Which of several replicas takes a request: by policy, from what is known of each replica's load
 * and of how much of the request's prompt it holds. README.md of this folder, "Routing".
 *
 * Pure: it reads flat arrays of loads, and draws by a hash of what it is given. */
#ifndef FLOTILLA_CORE_ROUTE_H
#define FLOTILLA_CORE_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

enum route_policy {
    ROUTE_AUTO,         /* the least predicted cost to this request and to those that come later */
    ROUTE_ROUND_ROBIN,  /* in turn */
    ROUTE_LEAST_LOADED, /* fewest live requests */
    ROUTE_AFFINITY,     /* most of the prompt held */
    ROUTE_COST,         /* least weight x rows that wait there + rows to compute of the prompt */
    ROUTE_PRODUCT,      /* least rows to compute of the prompt x (live requests + 1): LMetric, "LLM
                           Scheduling with a Multiplicative Metric", arXiv 2603.15202 */
    ROUTE_NEAR_MIN, /* most of the prompt held, of those where no more rows wait than where fewest
                       do, and twice the prompt */
    ROUTE_POLICIES
};

/* "auto", "round_robin" and so on. */
const char *route_policy_name(enum route_policy policy);
/* The policy of that name; false: there is none. */
bool route_policy_parse(const char *name, enum route_policy *ret);
/* All their names, "auto, round_robin, ..."; returns ret. */
#define ROUTE_POLICIES_TEXT_BYTES 128u
const char *route_policies_text(char ret[ROUTE_POLICIES_TEXT_BYTES]);

/* A replica's load. */
struct route_load {
    uint64_t rows;    /* of prompts, which wait to be computed there */
    uint32_t live;    /* requests that run there or wait for it, */
    uint32_t prompts; /* and those of them that have such rows, */
    uint32_t queued;  /* and those that wait for it */
    uint32_t ctx;     /* positions of a sequence that it takes; 0: it takes no request now */
    double row_ns;    /* of its time for a row of a prompt; 0: unknown */
    double work;      /* rows that it was given of late, in a unit of the caller's */
};

/* Arrays that route_choose reads or writes have so many entries for n replicas; what is behind the
 * last replica is zero. */
#define ROUTE_LANES 4u
#define ROUTE_PADDED(n) (((n) + ROUTE_LANES - 1) / ROUTE_LANES * ROUTE_LANES)

struct route_ask {
    enum route_policy policy;
    double weight;        /* of ROUTE_COST; 0: 1 */
    uint32_t n_replicas;  /* entries of loads; held has ROUTE_PADDED of it */
    uint32_t max_running; /* sequences that a replica computes at once, at least 1 */
    double row_ns;        /* of a replica of which nothing is known */
    double work_all;      /* sum of the loads' work; 0: nothing is known of it */
    double answer_ns;     /* of a replica's time for what follows a prompt, each request */
    const struct route_load *loads;
    const double *columns; /* what route_note has made of them */
    /* The request: */
    uint32_t positions;   /* that it may come to have */
    uint32_t n_tokens;    /* to be computed, as far as they are not held */
    uint32_t page_size;   /* positions of a page */
    const uint32_t *held; /* pages of its prompt that each replica holds; NULL: unknown */
    double *costs;        /* 2 x ROUTE_PADDED(n_replicas), */
    uint32_t *alike;      /* and ROUTE_PADDED(n_replicas) + 1: for route_choose to use */
    uint64_t draw;        /* a number of its own: ties are decided by a hash of it */
    uint32_t turn;        /* ROUTE_ROUND_ROBIN: the replica whose turn it is */
};

/* What route_choose reads of the loads: ROUTE_COLUMNS x ROUTE_PADDED(n_replicas) numbers, of which
 * each replica has one in each column. All zero, no replica takes requests. A load that has changed
 * is to be noted before the next choice. */
#define ROUTE_COLUMNS 6u
void route_note(double *columns, uint32_t n_replicas, uint32_t replica, const struct route_load *x,
                uint32_t max_running);

#define ROUTE_NONE UINT32_MAX

/* The replica, or ROUTE_NONE: none has a context for it, or takes requests now. */
uint32_t route_choose(const struct route_ask *a);
/* Of its prompt, what a replica would have to compute. */
uint32_t route_rows(const struct route_ask *a, uint32_t replica);
/* What is predicted of a replica, in ns: its time for a row of a prompt, for all that goes before
 * the request, and until the request's first token. */
double route_row_ns(const struct route_ask *a, uint32_t replica);
double route_backlog(const struct route_ask *a, uint32_t replica);
double route_ttft(const struct route_ask *a, uint32_t replica);

#endif
