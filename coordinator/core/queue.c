/* Who waits for a replica and who runs in it: by class, then by arrival. In the queue, waiting
 * longer counts like a better class; with that class a request is admitted, and while it runs its
 * place in the order is fixed. A running request that is less urgent gives its pages, or its turn,
 * to one that is more urgent by the class it asked for, and is computed again later: so the most
 * urgent one can always take every page. A preempted request keeps its waiting time, and so rises
 * in class. */
#include "coordinator/core/core_state.h"

#include "common/base/check.h"
#include "common/base/clock.h"

#include <string.h>

#define AGE_NS (10 * NS_PER_S) /* of waiting, for a better class; never better than high */

static struct request *at(const struct core *c, const uint32_t *list, uint32_t i)
{
    return &c->requests[list[i]];
}

/* What waiting so long makes of the class that was asked for. */
static enum priority aged(const struct core *c, const struct request *r)
{
    enum priority class = r->asked;
    uint64_t waited_ns = r->waited_ns + c->now_ns - r->queued_ns;
    for (uint64_t left = waited_ns / AGE_NS; left && class > PRIORITY_HIGH; left--) class --;
    return class;
}

static bool before(enum priority a, const struct request *x, enum priority b,
                   const struct request *y)
{
    return a != b ? a < b : x->arrival < y->arrival;
}

static void insert(uint32_t *list, uint32_t *n, uint32_t where, uint32_t slot)
{
    memmove(list + where + 1, list + where, (*n - where) * sizeof *list);
    list[where] = slot;
    ++*n;
}

static void take_out(uint32_t *list, uint32_t *n, uint32_t slot)
{
    uint32_t where = 0;
    while (where < *n && list[where] != slot) where++;
    CHECK(where < *n);
    --*n;
    memmove(list + where, list + where + 1, (*n - where) * sizeof *list);
}

static uint32_t slot_of(const struct core *c, const struct request *r)
{
    return (uint32_t)(r - c->requests);
}

/* The queue that the request is in, or is to be in. */
static uint32_t *queue_of(struct core *c, const struct request *r, uint32_t **ret_n)
{
    *ret_n = r->replica ? &r->replica->n_queued : &c->n_queued;
    return r->replica ? r->replica->queued : c->queued;
}

/* So many more requests wait for the request's replica. */
static void count_queued(struct core *c, const struct request *r, int more)
{
    if (!r->replica) return;
    c->loads[r->replica->id].queued += (uint32_t)more;
    c->n_waiting += (uint32_t)more;
}

static void enter(struct core *c, struct request *r)
{
    uint32_t *n, *queue = queue_of(c, r, &n), where = *n;
    CHECK(r->used && !r->running && *n < c->cfg.max_live);
    while (where && at(c, queue, where - 1)->arrival > r->arrival) where--;
    insert(queue, n, where, slot_of(c, r));
    count_queued(c, r, 1);
}

void queue__enter(struct core *c, struct request *r)
{
    r->queued_ns = c->now_ns;
    enter(c, r);
}

void queue__leave(struct core *c, struct request *r)
{
    uint32_t *n, *queue = queue_of(c, r, &n);
    CHECK(r->n_pages == 0);
    if (r->running) {
        take_out(r->replica->running, &r->replica->n_running, slot_of(c, r));
    } else {
        take_out(queue, n, slot_of(c, r));
        count_queued(c, r, -1);
    }
    r->running = false;
}

void queue__move(struct core *c, struct request *r, struct replica *to)
{
    CHECK(!r->running);
    queue__leave(c, r);
    if (r->replica && to) r->arrival = c->arrivals++;
    router__set(c, r, to);
    enter(c, r);
}

/* From the last to the first: of a chain in the index, the end is the first to be given up. */
void queue__release(struct request *r)
{
    CHECK(r->running || r->n_pages == 0);
    spec__drop(r);
    while (r->n_pages) table__shrink(r);
    r->n_issued = r->n_right = r->n_walked = r->first_windowed = 0;
    r->chosen_in = r->put_in = 0;
    r->spoke_ns = 0;
}

void queue__again(struct core *c, struct request *r)
{
    /* They stay so for a while, and so do the windowed pages that are seen from there. */
    uint32_t cached = r->n_walked * c->cfg.page;
    router__due(c, r, r->n_tokens - cached);
    queue__release(r);
    queue__leave(c, r);
    queue__enter(c, r);
}

/* One that was chosen to decode in the present step build is one decode less of it. */
static void preempt(struct core *c, struct request *r)
{
    struct replica *rep = r->replica;
    CHECK(rep != NULL);
    if (r->chosen_in == rep->step_build) {
        CHECK(rep->n_chosen > 0);
        rep->n_chosen--;
    }
    queue__again(c, r);
    rep->preemptions++;
}

/* ---- admission ---- */

/* Pages of the request's known tokens. */
static uint32_t known_pages(const struct core *c, const struct request *r)
{
    return (r->n_tokens + c->cfg.page - 1) / c->cfg.page;
}

/* Pages that must be available for r to be admitted: those of its known tokens, one more for the
 * tokens to come, and one for each request that runs, which may need it soon. */
static uint32_t room_for(const struct core *c, const struct request *r, uint32_t n_running)
{
    return known_pages(c, r) + 1 + n_running;
}

/* The most windowed pages that a sequence holds, beside those of guesses. */
static uint32_t windowed_most(const struct core *c)
{
    return room_window(c->cfg.attn_window, c->cfg.page, c->cfg.rows_max);
}

/* The same of windowed pages: those of a prompt that is longer than a window slide on. */
static uint32_t windowed_for(const struct core *c, const struct request *r, uint32_t n_running)
{
    uint32_t most = windowed_most(c) + 1 + n_running;
    uint32_t all = room_for(c, r, n_running);
    return all < most ? all : most;
}

/* Pages of each kind that somebody can have; of windowed ones none where no layer is windowed. */
struct supply {
    uint32_t whole, windowed;
};

/* Pages that the first n running requests have not taken yet for their known tokens. */
static struct supply still_taken(const struct core *c, const struct replica *rep, uint32_t n)
{
    struct supply sum = {0};
    for (uint32_t i = 0; i < n; i++) {
        const struct request *x = at(c, rep->running, i);
        uint32_t known = known_pages(c, x), held = x->n_pages - x->first_windowed, slide = 0;
        if (known <= x->n_pages) continue;
        sum.whole += known - x->n_pages;
        if (c->cfg.attn_window && windowed_most(c) > held) slide = windowed_most(c) - held;
        sum.windowed += slide < known - x->n_pages ? slide : known - x->n_pages;
    }
    return sum;
}

/* Whether r can be admitted beside the first n_running ones. An embedding that gives its pages back
 * begins with its first row again. So it waits until there is room for it beside what prompts that
 * run will still take; another request does not, since it finds in the cache what it had. */
static bool fits(const struct core *c, const struct request *r, uint32_t n_running,
                 const struct supply *s)
{
    if (n_running == 0) return true; /* nothing runs: all pages are available */
    if (n_running >= c->cfg.max_running) return false;
    struct supply taken = {0};
    if (r->embed) taken = still_taken(c, r->replica, n_running);
    if (c->cfg.attn_window && windowed_for(c, r, n_running) + taken.windowed > s->windowed)
        return false;
    return room_for(c, r, n_running) + taken.whole <= s->whole;
}

/* Pages that nobody but r holds. */
static struct supply held_alone(const struct replica *rep, const struct request *r)
{
    uint32_t n = 0, n_windowed = 0;
    for (uint32_t i = 0; i < r->n_pages; i++) n += pages_view(rep->pages, r->pages[i]).count == 1;
    for (uint32_t i = r->first_windowed; i < r->n_pages - r->n_ahead && rep->windowed; i++)
        n_windowed += windowed_view(rep->windowed, r->windowed[i]).count == 1;
    return (struct supply){n, n_windowed};
}

/* Pages of each kind that the request holds beyond those of its known tokens, for guesses alone. */
static uint32_t held_for_guesses(const struct core *c, const struct request *r)
{
    uint32_t known = r->n_issued < r->n_tokens ? r->n_issued : r->n_tokens;
    uint32_t needed = (known + c->cfg.page - 1) / c->cfg.page;
    return r->drafts && r->n_pages > needed ? r->n_pages - needed : 0;
}

/* The pages of one request, the least urgent one but r, that hold nothing but guesses go back. Rows
 * in flight that write them run before any that uses them anew; the present step build has no
 * guesses yet. */
static bool give_back_guesses(struct core *c, struct replica *rep, const struct request *r)
{
    for (uint32_t i = rep->n_running; i-- > 0;) {
        struct request *x = at(c, rep->running, i);
        uint32_t n = held_for_guesses(c, x);
        if (n == 0 || x == r) continue;
        spec__drop(x);
        while (n--) table__shrink(x);
        return true;
    }
    return false;
}

/* Preempts the least urgent ones, if that makes room for r; otherwise nobody. */
static bool make_room(struct core *c, struct replica *rep, const struct request *r)
{
    uint32_t keep = rep->n_running, guesses = 0;
    for (uint32_t i = 0; i < keep; i++) guesses += held_for_guesses(c, at(c, rep->running, i));
    struct supply available = {pages_available(rep->pages) + guesses, guesses};
    if (rep->windowed) available.windowed += windowed_available(rep->windowed);
    while (!fits(c, r, keep, &available)) {
        const struct request *victim = at(c, rep->running, keep - 1);
        if (!before(r->asked, r, victim->class, victim)) return false;
        struct supply alone = held_alone(rep, victim);
        available.whole += alone.whole - held_for_guesses(c, victim);
        available.windowed += alone.windowed - held_for_guesses(c, victim);
        keep--;
    }
    while (rep->n_running > keep) preempt(c, at(c, rep->running, rep->n_running - 1));
    return true;
}

/* The most urgent request in the queue, of those that are on trial or not. */
static struct request *most_urgent(const struct core *c, const struct replica *rep, bool on_trial)
{
    struct request *best = NULL;
    for (uint32_t i = 0; i < rep->n_queued; i++) {
        struct request *x = at(c, rep->queued, i);
        if (request__on_trial(x) != on_trial) continue;
        if (!best || before(aged(c, x), x, aged(c, best), best)) best = x;
    }
    return best;
}

/* The most urgent one that asked for a better class than r, which waits, and that may take its
 * place from one that runs; there is none where r did not rise by waiting. */
static struct request *overtaker(const struct core *c, const struct replica *rep,
                                 const struct request *r)
{
    struct request *best = NULL;
    if (aged(c, r) == r->asked || rep->n_running == 0) return NULL;
    const struct request *victim = at(c, rep->running, rep->n_running - 1);
    for (uint32_t i = 0; i < rep->n_queued; i++) {
        struct request *x = at(c, rep->queued, i);
        if (x->asked >= r->asked || !before(x->asked, x, victim->class, victim)) continue;
        if (!best || before(aged(c, x), x, aged(c, best), best)) best = x;
    }
    return best;
}

/* The request that is admitted next, with room made for it; or NULL. Requests on trial run in a
 * replica one after the other, and nobody else is admitted there meanwhile. Nobody overtakes the
 * most urgent one while it waits for pages or a place, except one that is urgent enough to take
 * them from a running one. */
static struct request *next_in(struct core *c, struct replica *rep)
{
    for (uint32_t i = 0; i < rep->n_running && c->n_trials; i++)
        if (request__on_trial(at(c, rep->running, i))) return NULL;
    struct request *suspect = c->n_trials ? most_urgent(c, rep, true) : NULL;
    struct request *r = suspect ? suspect : most_urgent(c, rep, false);
    if (!r || make_room(c, rep, r)) return r;
    r = suspect ? NULL : overtaker(c, rep, r);
    return r && make_room(c, rep, r) ? r : NULL;
}

/* The stage of a replica that cannot do with embeddings, or NULL. */
static const struct worker *cannot_embed(struct core *c, const struct replica *rep)
{
    for (uint32_t i = 0; i < rep->n_stages; i++)
        if (!replica__at(c, rep, i)->hello.embeds) return replica__at(c, rep, i);
    return NULL;
}

/* An embedding that was admitted takes its pages before its first row: so no other one, of which
 * the same holds, ever takes pages from it, nor it from them. fits() has found that there are
 * enough, some of them perhaps with nothing but guesses. */
static void reserve(struct core *c, struct replica *rep, struct request *r)
{
    bool guesses = true;
    while (guesses && !table__reserve(c, r)) guesses = give_back_guesses(c, rep, r);
    CHECK(guesses);
}

void queue__admit(struct core *c, struct replica *rep)
{
    CHECK(rep->state >= REPLICA_READY);
    while (rep->n_queued) {
        struct request *r = next_in(c, rep);
        if (!r) return;
        const struct worker *old = r->embed ? cannot_embed(c, rep) : NULL;
        if (old) {
            request__end(
                c, r, STATUS_UNIMPLEMENTED, FINISH_NONE,
                core__text(c, "worker %s is of a version without embeddings", old->hello.name));
            continue;
        }
        r->class = aged(c, r);
        r->waited_ns += c->now_ns - r->queued_ns;
        queue__leave(c, r);
        uint32_t where = rep->n_running;
        while (where && before(r->class, r, at(c, rep->running, where - 1)->class,
                               at(c, rep->running, where - 1)))
            where--;
        request__move_in(c, r, rep);
        r->running = true;
        r->walk = pages_root(rep->pages, r->tenant);
        insert(rep->running, &rep->n_running, where, slot_of(c, r));
        if (r->embed) reserve(c, rep, r);
    }
}

bool queue__page(struct core *c, struct request *r)
{
    struct replica *rep = r->replica;
    CHECK(rep != NULL);
    while (!table__grow(r)) {
        if (give_back_guesses(c, rep, r)) continue;
        struct request *victim = NULL;
        for (uint32_t i = rep->n_running; i-- > 0 && !victim;) {
            struct request *x = at(c, rep->running, i);
            if (x == r) return false;
            if (x->put_in != rep->step_build) victim = x;
        }
        if (!victim) return false;
        preempt(c, victim);
    }
    return true;
}
