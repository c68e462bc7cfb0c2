/* Requests and replicas: what is counted for route.c to choose by, and when it is asked. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"

#define KEEP 0.99               /* of what was learnt before */
#define WORK_KEPT 64.0          /* requests a replica for which its work is remembered */
#define ROW_NS 1000.0           /* for a row, where nothing is known: all replicas are alike */
#define AGAIN_NS (1 * NS_PER_S) /* how long a request waits before it is routed again */
#define AGAIN_MOST 32u          /* requests that are, in a tick */
#define AGAIN_FACTOR 2.0        /* it must be so much sooner elsewhere */
/* Before Steps are composed: */
#define STARVED_MOST 8u     /* replicas with nothing to do that are given a request */
#define LOOKS_A_COMPOSE 64u /* requests that are looked at for that, */
#define LOOKS_A_TICK 1024u  /* and from one tick to the next */
#define STARVED_PRICE 1.25  /* of a row that is computed again where nothing else would be, */
#define EVEN_PRICE 10.0     /* and where other requests wait for it */
#define EVEN_LEAST 0.15     /* of the mean backlog: queues that differ by less are even */
#define USABLE_LOOKS 8u     /* replicas of which it is counted what of a prefix they can use */

/* ---- what is counted ---- */

static struct route_load *load_of(const struct core *c, const struct replica *rep)
{
    return &c->loads[rep->id];
}

/* The replica's load has changed. */
static void note_load(struct core *c, uint32_t replica)
{
    route_note(c->columns, c->cfg.n_replicas, replica, &c->loads[replica], c->cfg.max_running);
}

void router__due(struct core *c, struct request *r, uint32_t rows)
{
    struct route_load *x = load_of(c, r->replica);
    CHECK(x->rows >= r->due && x->prompts >= (r->due > 0));
    x->rows += (uint64_t)rows - r->due;
    x->prompts += (uint32_t)(rows > 0) - (r->due > 0);
    r->due = rows;
    note_load(c, r->replica->id);
    if (rows > 0 || !r->promise) return;
    index_settle(c->index, r->replica->id, r->promise); /* the index has its pages */
    r->promise = NULL;
}

void router__set(struct core *c, struct request *r, struct replica *rep)
{
    if (r->replica) {
        router__due(c, r, 0);
        CHECK(load_of(c, r->replica)->live > 0);
        load_of(c, r->replica)->live--;
        note_load(c, r->replica->id);
    }
    r->replica = rep;
    r->routed_ns = c->now_ns;
    if (!rep) return;
    load_of(c, rep)->live++;
    note_load(c, rep->id);
}

/* The replica is given so many rows. What it was given before counts less with each request of any
 * replica; a unit grows instead, until all are written down in a new one. */
static void give_work(struct core *c, uint32_t replica, uint32_t rows)
{
    double work = c->work_unit * (rows + 1.0);
    c->loads[replica].work += work;
    c->work_all += work;
    note_load(c, replica);
    c->work_unit *= 1.0 + 1.0 / (WORK_KEPT * (double)c->cfg.n_replicas);
    if (c->work_unit < 1e100) return;
    for (uint32_t i = 0; i < c->cfg.n_replicas; i++) {
        c->loads[i].work /= c->work_unit;
        note_load(c, i);
    }
    c->work_all /= c->work_unit;
    c->work_unit = 1.0;
}

void router__ready(struct core *c, const struct replica *rep)
{
    load_of(c, rep)->ctx = rep->ctx;
    note_load(c, rep->id);
}

void router__lost(struct core *c, const struct replica *rep)
{
    load_of(c, rep)->ctx = 0;
    note_load(c, rep->id);
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
    note_load(c, rep->id);
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

/* Pages of which a hit may cover all positions: the last row is always computed. An embedding needs
 * every row. */
static uint32_t whole_pages(const struct core *c, const struct request *r)
{
    return r->embed ? 0 : (r->n_tokens - 1) / c->cfg.page;
}

/* What route.c is told of the replicas, whatever the request. */
static struct route_ask ask_of_all(const struct core *c)
{
    return (struct route_ask){.policy = c->cfg.policy,
                              .weight = c->cfg.route_weight,
                              .n_replicas = c->cfg.n_replicas,
                              .max_running = c->cfg.max_running,
                              .answer_ns = mean(&c->answers, 0.0),
                              .row_ns = mean(&c->prompts, ROW_NS),
                              .loads = c->loads,
                              .columns = c->columns,
                              .costs = c->costs,
                              .alike = c->alike,
                              .work_all = c->work_all,
                              .page_size = c->cfg.page,
                              .turn = c->turn};
}

/* And of a request. */
static struct route_ask ask_of(struct core *c, const struct request *r,
                               struct index_found *ret_found)
{
    struct route_ask ask = ask_of_all(c);
    *ret_found = (struct index_found){0};
    ask.positions = r->n_prompt + r->max_new;
    ask.n_tokens = r->n_tokens;
    ask.draw = r->arrival;
    if (!knows_prefixes(c)) return ask;
    *ret_found = index_match(c->index, r->tenant, r->tokens, whole_pages(c, r), c->held);
    ask.held = c->held;
    return ask;
}

/* Counts for one replica as held what it can use of a prompt, where that is less: windowed pages
 * may have gone. Returns whether it is what was counted before. */
static bool count_usable(struct core *c, const struct route_ask *ask,
                         const struct index_found *found, uint32_t replica)
{
    if (!ask->held || !c->cfg.attn_window) return true;
    uint32_t n_held = c->held[replica];
    c->held[replica] = table__usable(c, &c->replicas[replica], *found, n_held);
    return c->held[replica] == n_held;
}

/* What a replica can use is counted by looking at the pages of a whole window there, which is too
 * much to do for all that hold some pages of a prefix. But it is never more than they hold, and by
 * each policy a replica costs no less where less of the prompt is held. So all are compared by what
 * they hold, and whoever is chosen is looked at: if it can use all of that, no other one is
 * better; if not, all are compared again. Where the best few cannot, the others are taken to be no
 * better than the best of these. */
static uint32_t choose(struct core *c, const struct route_ask *ask, const struct index_found *found)
{
    uint32_t to = route_choose(ask), most = 0;
    for (uint32_t n = 0; n < USABLE_LOOKS && to != ROUTE_NONE; n++) {
        if (count_usable(c, ask, found, to)) return to;
        if (c->held[to] > most) most = c->held[to];
        to = route_choose(ask);
    }
    for (uint32_t i = 0; i < c->cfg.n_replicas && to != ROUTE_NONE; i++)
        if (c->held[i] > most) c->held[i] = most;
    return route_choose(ask);
}

static void send_to(struct core *c, struct request *r, const struct route_ask *ask,
                    const struct index_found *found, uint32_t to)
{
    struct index_node *promise = NULL;
    (void)count_usable(c, ask, found, to); /* it may have been chosen without a look */
    if (knows_prefixes(
            c)) /* before the request leaves another, whose promise may hold what is found */
        promise = index_promise(c->index, to, found, r->tokens, whole_pages(c, r));
    queue__move(c, r, &c->replicas[to]);
    router__due(c, r, route_rows(ask, to));
    r->promise = promise;
}

/* An answer that may be as long as its context: where it had a longer one before, or other replicas
 * have become ready, it is bounded by those that serve now. False: it is already. */
static bool bound(const struct core *c, struct request *r)
{
    if (!r->open_ended || !room__some_serve(c, r->n_tokens)) return false;
    uint32_t ctx = room__open_ctx(c, r->n_tokens);
    if (r->n_prompt + r->max_new <= ctx) return false;
    r->max_new = ctx - r->n_prompt;
    return true;
}

void router__send(struct core *c, struct request *r)
{
    struct index_found found;
    struct route_ask ask = ask_of(c, r, &found);
    uint32_t to = choose(c, &ask, &found);
    if (to == ROUTE_NONE && bound(c, r)) {
        ask = ask_of(c, r, &found);
        to = choose(c, &ask, &found);
    }
    if (to == ROUTE_NONE) return;
    c->turn = (to + 1) % c->cfg.n_replicas;
    send_to(c, r, &ask, &found, to);
    give_work(c, to, route_rows(&ask, to));
}

void router__send_all(struct core *c)
{
    for (uint32_t i = 0, before; i < c->n_queued; i += c->n_queued == before) {
        before = c->n_queued;
        router__send(c, &c->requests[c->queued[i]]);
    }
}

/* ---- queues that are evened out ---- */

/* Takes r and what came after it out of the load of its replica. */
static void leave_out(struct route_load *x, const struct request *r)
{
    CHECK(x->rows >= r->due && x->live > 0 && x->queued > 0);
    x->rows -= r->due;
    x->prompts -= r->due > 0;
    x->live--;
    x->queued--;
}

/* What a request gains that moves to another replica, in ns of its own time to the first token.
 * Rows that it has to compute there, and would not have to where it is, cost `price` times what
 * they take. */
static double gain_of(const struct core *c, const struct request *r, uint32_t to, double price)
{
    struct route_ask ask = ask_of_all(c);
    uint32_t from = r->replica->id, rows = r->n_tokens;
    if (knows_prefixes(c)) {
        struct index_found found =
            index_held(c->index, to, r->tenant, r->tokens, whole_pages(c, r));
        rows -= c->cfg.page * table__usable(c, &c->replicas[to], found, found.depth);
    }
    double here = route_backlog(&ask, from) + r->due * route_row_ns(&ask, from);
    double there = route_backlog(&ask, to) + rows * route_row_ns(&ask, to);
    double more = rows > r->due ? (rows - r->due) * route_row_ns(&ask, to) : 0.0;
    return here - there - (price - 1.0) * more;
}

/* Moves to another replica the request of a queue with which all gain most: itself, and those
 * behind it, which no longer wait for it. It must gain more than least_ns itself, since it comes
 * last there: so nobody waits longer for the sake of others. Looks at *looks requests at most, and
 * takes from *looks those that it looked at. */
static bool take_one(struct core *c, const struct replica *from, uint32_t to, double price,
                     double least_ns, uint32_t *looks)
{
    struct route_load *ahead = &c->loads[from->id], all = *ahead;
    struct request *chosen = NULL;
    double most_ns = 0.0, row_ns = mean(&c->prompts, ROW_NS);
    uint32_t n = from->n_queued;
    for (uint32_t behind = 0; behind < n && *looks; behind++, --*looks) {
        struct request *r = &c->requests[from->queued[n - 1 - behind]];
        leave_out(ahead, r);
        double gain_ns = gain_of(c, r, to, price);
        bool fits = r->n_prompt + r->max_new <= c->loads[to].ctx;
        if (request__on_trial(r) || gain_ns <= least_ns || !fits) continue;
        gain_ns += (double)behind * r->due * row_ns;
        if (gain_ns <= most_ns) continue;
        most_ns = gain_ns;
        chosen = r;
    }
    *ahead = all;
    if (!chosen) return false;
    struct index_found found;
    struct route_ask ask = ask_of(c, chosen, &found);
    send_to(c, chosen, &ask, &found, to);
    return true;
}

/* The replicas that serve, by their backlogs. */
struct backlogs {
    uint32_t longest, shortest; /* longest: of those with requests that wait for a place; or
                                   ROUTE_NONE */
    double longest_ns, shortest_ns, mean_ns;
    uint32_t n_starved, starved[STARVED_MOST]; /* that have nothing to do */
};

static struct backlogs backlogs_of(const struct core *c)
{
    struct route_ask ask = ask_of_all(c);
    struct backlogs b = {.longest = ROUTE_NONE, .shortest = ROUTE_NONE};
    double sum_ns = 0.0;
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->cfg.n_replicas; k++) {
        uint32_t i = (c->balance_from + k) % c->cfg.n_replicas;
        const struct route_load *x = &c->loads[i];
        if (!x->ctx) continue;
        double ns = route_backlog(&ask, i);
        bool full = x->live - x->queued >= c->cfg.max_running;
        if (x->queued && full && (b.longest == ROUTE_NONE || ns > b.longest_ns)) {
            b.longest = i;
            b.longest_ns = ns;
        }
        if (b.shortest == ROUTE_NONE || ns < b.shortest_ns) {
            b.shortest = i;
            b.shortest_ns = ns;
        }
        if (x->live == 0 && b.n_starved < STARVED_MOST) b.starved[b.n_starved++] = i;
        sum_ns += ns;
        n++;
    }
    b.mean_ns = n ? sum_ns / n : 0.0;
    return b;
}

/* A replica that has nothing to do takes a request out of the longest queue; and where queues are
 * uneven, the shortest one takes a request from the longest. */
void router__balance(struct core *c)
{
    if (c->cfg.policy != ROUTE_AUTO || c->cfg.n_replicas == 1 || c->n_waiting == 0) return;
    uint32_t looks = LOOKS_A_TICK - c->looked; /* what is left until the next tick */
    if (looks > LOOKS_A_COMPOSE) looks = LOOKS_A_COMPOSE;
    if (looks == 0) return;
    uint32_t left = looks;
    struct backlogs b = backlogs_of(c);
    for (uint32_t k = 0; k < b.n_starved && b.longest != ROUTE_NONE && left; k++) {
        uint32_t to = b.starved[k], before = b.longest;
        if (take_one(c, &c->replicas[before], to, STARVED_PRICE, 0.0, &left)) {
            struct backlogs now = backlogs_of(c);
            b.longest = now.longest;
        }
        c->balance_from = (to + 1) % c->cfg.n_replicas;
    }
    if (b.n_starved == 0 && b.longest != ROUTE_NONE &&
        b.longest_ns - b.shortest_ns > EVEN_LEAST * b.mean_ns)
        (void)take_one(c, &c->replicas[b.longest], b.shortest, EVEN_PRICE, EVEN_LEAST * b.mean_ns,
                       &left);
    c->looked += looks - left;
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
        leave_out(&x, y);
    }
    return x;
}

/* Moves a request that waits, if another replica is to serve it far sooner. */
static void send_again(struct core *c, struct request *r)
{
    uint32_t from = r->replica->id;
    struct route_load all = c->loads[from];
    c->loads[from] = ahead_of(c, r);
    note_load(c, from);
    struct index_found found;
    struct route_ask ask = ask_of(c, r, &found);
    uint32_t to = choose(c, &ask, &found);
    (void)count_usable(c, &ask, &found, from);
    double here = route_ttft(&ask, from), there = to == ROUTE_NONE ? here : route_ttft(&ask, to);
    c->loads[from] = all;
    note_load(c, from);
    r->routed_ns = c->now_ns;
    if (AGAIN_FACTOR * there < here) send_to(c, r, &ask, &found, to);
}

/* Looks again at up to `most` requests of a replica's queue, the last ones first, since most is
 * ahead of them. Returns how many there were. */
static uint32_t look_again(struct core *c, const struct replica *rep, uint32_t most)
{
    uint32_t n = 0;
    for (uint32_t i = rep->n_queued; i-- > 0 && n < most;) {
        struct request *r = &c->requests[rep->queued[i]];
        if (c->now_ns - r->routed_ns < AGAIN_NS) continue;
        send_again(c, r);
        n++;
    }
    return n;
}

/* A tick that does not come to all replicas leaves the others to the next one: a queue that is
 * longer than what ticks can look at in a second would else hide all that come after it. */
void router__tick(struct core *c)
{
    uint32_t n = 0, from = c->again_from;
    c->looked = 0;
    if (c->cfg.policy != ROUTE_AUTO || c->cfg.n_replicas == 1) return;
    for (uint32_t k = 0; k < c->cfg.n_replicas && n < AGAIN_MOST; k++) {
        uint32_t at = (from + k) % c->cfg.n_replicas;
        n += look_again(c, &c->replicas[at], AGAIN_MOST - n);
        if (n == AGAIN_MOST) c->again_from = (at + 1) % c->cfg.n_replicas;
    }
}
