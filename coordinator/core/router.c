/* Requests and replicas: what is counted for route.c to choose by, and when it is asked. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"

#define KEEP 0.99               /* of what was learnt before */
#define ROW_NS 1000.0           /* for a row, where nothing is known: all replicas are alike */
#define AGAIN_NS (1 * NS_PER_S) /* how long a request waits before it is routed again */
#define AGAIN_MOST 32u          /* requests that are, in a tick */
#define AGAIN_FACTOR 2.0        /* it must be so much sooner elsewhere */

/* ---- what is counted ---- */

static struct route_load *load_of(const struct core *c, const struct replica *rep)
{
    return &c->loads[rep->id];
}

void router__due(struct core *c, struct request *r, uint32_t rows)
{
    struct route_load *x = load_of(c, r->replica);
    CHECK(x->rows >= r->due && x->prompts >= (r->due > 0));
    x->rows += (uint64_t)rows - r->due;
    x->prompts += (uint32_t)(rows > 0) - (r->due > 0);
    r->due = rows;
    if (rows > 0 || !r->promise) return;
    index_settle(c->index, r->replica->id, r->promise); /* the index has its pages */
    r->promise = NULL;
}

void router__set(struct core *c, struct request *r, struct replica *rep)
{
    if (r->replica) {
        router__due(c, r, 0);
        load_of(c, r->replica)->live--;
    }
    r->replica = rep;
    r->routed_ns = c->now_ns;
    if (rep) load_of(c, rep)->live++;
}

void router__ready(struct core *c, const struct replica *rep)
{
    load_of(c, rep)->ctx = rep->ctx;
}

void router__lost(struct core *c, const struct replica *rep)
{
    load_of(c, rep)->ctx = 0;
}

/* ---- what is learnt ---- */

static void add(struct pace *p, double ns, double n)
{
    p->ns = p->ns * KEEP + ns;
    p->n = p->n * KEEP + n;
}

static double mean(const struct pace *p, double unknown)
{
    return p->n > 0.0 ? p->ns / p->n : unknown;
}

void router__learn(struct core *c, struct replica *rep, const struct in_flight *step,
                   uint64_t took_ns)
{
    if (step->prompt_rows == 0) {
        c->answers.ns += (double)took_ns;
        return;
    }
    add(&rep->flight.prompts, (double)took_ns, step->prompt_rows);
    add(&c->prompts, (double)took_ns, step->prompt_rows);
    load_of(c, rep)->row_ns = mean(&rep->flight.prompts, 0.0);
}

void router__ended(struct core *c)
{
    add(&c->answers, 0.0, 1.0);
}

/* ---- routes ---- */

static bool knows_prefixes(const struct core *c)
{
    return c->cfg.share && c->cfg.n_replicas > 1;
}

/* Pages of which a hit may cover all positions: the last row is always computed. */
static uint32_t whole_pages(const struct core *c, const struct request *r)
{
    return (r->n_tokens - 1) / c->cfg.page;
}

/* What route.c is asked of a request. */
static struct route_ask ask_of(struct core *c, const struct request *r,
                               struct index_found *ret_found)
{
    bool known = knows_prefixes(c);
    if (known) *ret_found = index_match(c->index, r->tenant, r->tokens, whole_pages(c, r), c->held);
    return (struct route_ask){.policy = c->cfg.policy,
                              .weight = c->cfg.route_weight,
                              .n_replicas = c->cfg.n_replicas,
                              .max_running = c->cfg.max_running,
                              .answer_ns = mean(&c->answers, 0.0),
                              .row_ns = mean(&c->prompts, ROW_NS),
                              .loads = c->loads,
                              .positions = r->n_prompt + r->max_new,
                              .n_tokens = r->n_tokens,
                              .page_size = c->cfg.page,
                              .held = known ? c->held : NULL,
                              .costs = c->costs,
                              .draw = r->arrival,
                              .turn = c->turn};
}

static void send_to(struct core *c, struct request *r, const struct route_ask *ask,
                    const struct index_found *found, uint32_t to)
{
    struct index_node *promise = NULL;
    if (knows_prefixes(
            c)) /* before the request leaves another, whose promise may hold what is found */
        promise = index_promise(c->index, to, found, r->tokens, whole_pages(c, r));
    queue__move(c, r, &c->replicas[to]);
    router__due(c, r, route_rows(ask, to));
    r->promise = promise;
}

void router__send(struct core *c, struct request *r)
{
    struct index_found found;
    struct route_ask ask = ask_of(c, r, &found);
    uint32_t to = route_choose(&ask);
    if (to == ROUTE_NONE) return;
    c->turn = (to + 1) % c->cfg.n_replicas;
    send_to(c, r, &ask, &found, to);
}

void router__send_all(struct core *c)
{
    for (uint32_t i = 0, before; i < c->n_queued; i += c->n_queued == before) {
        before = c->n_queued;
        router__send(c, &c->requests[c->queued[i]]);
    }
}

/* ---- routes that are looked at again ---- */

/* The load of r's replica without r and those that came after it. */
static struct route_load ahead_of(const struct core *c, const struct request *r)
{
    struct route_load x = *load_of(c, r->replica);
    const struct replica *rep = r->replica;
    for (uint32_t i = rep->n_queued; i-- > 0;) {
        const struct request *y = &c->requests[rep->queued[i]];
        if (y->arrival < r->arrival) break;
        x.rows -= y->due;
        x.prompts -= y->due > 0;
        x.live--;
    }
    return x;
}

/* Moves a request that waits, if another replica is to serve it far sooner. */
static void send_again(struct core *c, struct request *r)
{
    uint32_t from = r->replica->id;
    struct route_load all = c->loads[from];
    c->loads[from] = ahead_of(c, r);
    struct index_found found;
    struct route_ask ask = ask_of(c, r, &found);
    uint32_t to = route_choose(&ask);
    double here = route_ttft(&ask, from), there = to == ROUTE_NONE ? here : route_ttft(&ask, to);
    c->loads[from] = all;
    r->routed_ns = c->now_ns;
    if (AGAIN_FACTOR * there < here) send_to(c, r, &ask, &found, to);
}

void router__tick(struct core *c)
{
    uint32_t n = 0;
    if (c->cfg.policy != ROUTE_AUTO || c->cfg.n_replicas == 1) return;
    for (uint32_t k = 0; k < c->cfg.n_replicas; k++) {
        const struct replica *rep = &c->replicas[k];
        for (uint32_t i = rep->n_queued; i-- > 0 && n < AGAIN_MOST;) {
            struct request *r = &c->requests[rep->queued[i]];
            if (c->now_ns - r->routed_ns < AGAIN_NS) continue;
            send_again(c, r);
            n++;
        }
    }
}
