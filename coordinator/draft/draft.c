/* The loop's thread writes into seats and a queue of them; the drafting thread takes what is there,
 * works on its own copy, and leaves answers in a ring:
 *
 *   drafter_tokens, _ask, _end -> seat -> queue -> drafting thread -> answers -> drafter_take
 *
 * A seat is in the queue at most once. All that both threads touch is under one lock, which is held
 * for the time of a copy. What a request is to the drafters (guess.h) is the drafting thread's
 * alone. */
#include "coordinator/draft/draft.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "coordinator/draft/guess.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* Added to the drafting thread's niceness, and so to that of the threads that it starts: about a
 * third of the processor time of another that wants the core, too. */
#define NICER 5

struct ask {
    uint64_t serial, asked_ns;
    uint32_t first_pos, n_tail, want;
    bool has_chain;
    struct gain_chain chain;
    struct gain_load load;
};

/* Of the drafting thread alone. */
struct work {
    struct guess *guess; /* NULL: not begun */
    bool asked;          /* `ask` has no answer yet */
    bool failed;         /* tokens are missing: there was no memory for them */
    struct ask ask;
    int32_t *tail; /* DRAFTER_TAIL_MAX */
};

struct seat {
    /* Of the loop's thread. */
    uint64_t request;
    enum draft_kind kind;
    uint32_t n_said; /* confirmed tokens that it was told */
    bool broken;     /* no drafts any more */
    /* Under the lock. */
    struct drafter_request begin; /* until the drafting thread has begun it; with copies of: */
    struct sampling sampling;
    int32_t bias_ids[SAMPLING_BIASES_MAX];
    float bias[SAMPLING_BIASES_MAX];
    void *grammar;
    int32_t *fresh; /* confirmed tokens that the drafting thread has not taken */
    uint32_t n_fresh, fresh_cap;
    struct ask ask;
    bool has_ask;
    int32_t *tail; /* of the ask: DRAFTER_TAIL_MAX; or NULL */
    bool queued, ended, keep;
    atomic_bool newer; /* what is being drafted is not what is wanted now */
    struct work work;
};

struct drafter {
    uint32_t ctx, requests_max, asks_max;
    struct guesser *guesser; /* of the drafting thread, once it runs */
    bool has[DRAFT_N_KINDS];
    struct imap by_request;         /* of the loop's thread: seats */
    struct net_sock *ours, *theirs; /* theirs is used under the lock */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* guards what follows, and the seats' parts */
    pthread_cond_t some;
    bool stop;
    struct seat **seats; /* n_seats, made when needed */
    uint32_t n_seats, *free, n_free;
    uint32_t *queue, queue_first, n_queue; /* a ring of n_seats */
    struct drafter_answer *answers;        /* a ring of asks_max */
    uint32_t answers_first, n_answers;
    uint32_t n_asks;     /* that have no answer, or one that was not taken */
    uint32_t n_requests; /* between begin and end */
    struct drafter_stats stats;
    /* Until the drafting thread has opened the drafters. */
    const struct drafter_options *opening;
    bool opened;
    int open_rc;
    struct errmsg open_em;
};

/* ---- the drafting thread: all under the lock, but for `serve` and what it calls ---- */

static void enqueue(struct drafter *d, uint32_t seat)
{
    if (d->seats[seat]->queued) return;
    d->seats[seat]->queued = true;
    d->queue[(d->queue_first + d->n_queue++) % d->n_seats] = seat;
    (void)pthread_cond_signal(&d->some);
}

static uint32_t dequeue(struct drafter *d)
{
    uint32_t seat = d->queue[d->queue_first];
    d->queue_first = (d->queue_first + 1) % d->n_seats;
    d->n_queue--;
    return seat;
}

/* What of a seat the drafting thread works on meanwhile. */
struct taken {
    int32_t *fresh;
    uint32_t n_fresh;
    bool ended, keep;
};

static struct taken take(struct drafter *d, struct seat *s)
{
    struct taken t = {.fresh = s->fresh, .n_fresh = s->n_fresh, .ended = s->ended, .keep = s->keep};
    s->fresh = NULL;
    s->n_fresh = s->fresh_cap = 0;
    if (s->has_ask) {
        int32_t *tail = s->work.tail;
        if (s->work.asked) {
            d->stats.replaced++;
            d->n_asks--;
        }
        s->work.ask = s->ask;
        s->work.tail = s->tail;
        s->tail = tail;
        s->work.asked = true;
        s->has_ask = false;
    }
    atomic_store(&s->newer, false);
    return t;
}

/* A turn of a seat's. True: *ret is the answer to its ask. */
static bool serve(struct drafter *d, struct seat *s, const struct taken *t,
                  struct drafter_answer *ret)
{
    struct work *w = &s->work;
    if (!w->guess) {
        w->guess = guess_begin(d->guesser, &s->begin);
        mem_free(s->grammar);
        s->grammar = NULL;
    }
    if (!w->failed) w->failed = guess_tokens(d->guesser, w->guess, t->fresh, t->n_fresh) < 0;
    mem_free(t->fresh);
    if (t->ended) {
        guess_end(d->guesser, w->guess, t->keep && !w->failed);
        w->guess = NULL;
        return false;
    }
    if (!w->asked) return false;
    *ret = (struct drafter_answer){.request = s->begin.request,
                                   .serial = w->ask.serial,
                                   .first_pos = w->ask.first_pos + w->ask.n_tail,
                                   .kind = s->begin.kind == DRAFT_AUTO ? DRAFT_OFF : s->begin.kind};
    if (w->failed) {
        ret->rc = ERR_NOMEM;
        (void)snprintf(ret->error, sizeof ret->error, "no memory for the text of a draft");
        return true;
    }
    const struct guess_ask a = {.first_pos = w->ask.first_pos,
                                .n_tail = w->ask.n_tail,
                                .want = w->ask.want,
                                .tail = w->tail,
                                .chain = w->ask.has_chain ? &w->ask.chain : NULL,
                                .load = w->ask.has_chain ? &w->ask.load : NULL,
                                .waited_ns = clock_ns() - w->ask.asked_ns,
                                .stop = &s->newer};
    return guess_ask(d->guesser, w->guess, &a, ret);
}

static void give_back(struct drafter *d, uint32_t seat)
{
    struct seat *s = d->seats[seat];
    d->n_asks -= s->work.asked;
    mem_free(s->tail);
    mem_free(s->work.tail);
    mem_free(s->fresh);
    mem_free(s->grammar);
    mem_free(s);
    d->seats[seat] = NULL;
    d->free[d->n_free++] = seat;
}

static void one_turn(struct drafter *d)
{
    struct drafter_answer answer;
    struct net_frame wake = {"", 0};
    uint32_t seat = dequeue(d);
    struct seat *s = d->seats[seat];
    struct taken t = take(d, s);
    (void)pthread_mutex_unlock(&d->lock);
    bool done = serve(d, s, &t, &answer);
    struct drafter_stats stats = {0};
    guesser_stats(d->guesser, &stats);
    (void)pthread_mutex_lock(&d->lock);
    stats.asks = d->stats.asks;
    stats.replaced = d->stats.replaced;
    stats.dropped = d->stats.dropped;
    stats.answers = d->stats.answers;
    d->stats = stats;
    if (t.ended) {
        give_back(d, seat);
        return;
    }
    if (done) {
        s->work.asked = false;
        CHECK(d->n_answers < d->asks_max);
        d->answers[(d->answers_first + d->n_answers++) % d->asks_max] = answer;
        (void)net_send(d->theirs, &wake, 1); /* full: the loop has been woken often enough */
    }
    s->queued = false;
    if (s->has_ask || s->ended || s->work.asked) enqueue(d, seat);
}

static void *thread_main(void *arg)
{
    struct drafter *d = arg;
    struct guesser *guesser = NULL;
    int nice = getpriority(PRIO_PROCESS, 0);
    (void)setpriority(PRIO_PROCESS, 0, nice + NICER); /* on Linux, of this thread */
    int rc = guesser_open(d->opening, &guesser, &d->open_em);
    (void)pthread_mutex_lock(&d->lock);
    d->guesser = guesser;
    d->open_rc = rc;
    d->opened = true;
    (void)pthread_cond_broadcast(&d->some);
    while (!d->stop && rc == 0) {
        if (d->n_queue)
            one_turn(d);
        else
            (void)pthread_cond_wait(&d->some, &d->lock);
    }
    (void)pthread_mutex_unlock(&d->lock);
    for (uint32_t i = 0; i < d->n_seats; i++)
        if (d->seats[i] && d->seats[i]->work.guess)
            guess_end(guesser, d->seats[i]->work.guess, false);
    guesser_close(guesser);
    return NULL;
}

/* ---- opening and closing ---- */

static int start(struct drafter *d, const struct drafter_options *o, struct errmsg *em)
{
    d->opening = o;
    if (pthread_create(&d->thread, NULL, thread_main, d) != 0)
        return err_set(em, ERR_AGAIN, "cannot start a thread for drafts");
    d->running = true;
    (void)pthread_mutex_lock(&d->lock);
    while (!d->opened) (void)pthread_cond_wait(&d->some, &d->lock);
    for (int k = 0; k < DRAFT_N_KINDS && d->open_rc == 0; k++)
        d->has[k] = guesser_has(d->guesser, (enum draft_kind)k);
    if (d->open_rc == 0) guesser_stats(d->guesser, &d->stats);
    (void)pthread_mutex_unlock(&d->lock);
    d->opening = NULL;
    return d->open_rc < 0 ? err_set(em, d->open_rc, "%s", d->open_em.text) : 0;
}

int drafter_open(struct net *net, const struct drafter_options *o, struct drafter **ret,
                 struct errmsg *em)
{
    CHECK(o->requests_max > 0 && o->requests_max < UINT32_MAX / 4 && o->asks_max > 0);
    struct drafter *d = mem_zalloc(sizeof *d);
    const struct net_limits limits = {.hwm = 64, .frame_max = 64};
    d->ctx = o->ctx;
    d->requests_max = o->requests_max;
    d->asks_max = o->asks_max;
    /* An ended request has its seat until the drafting thread has put it away. */
    d->n_seats = d->n_free = 2 * o->requests_max;
    d->seats = mem_zalloc(d->n_seats * sizeof *d->seats);
    d->free = mem_alloc(d->n_seats * sizeof *d->free);
    d->queue = mem_alloc(d->n_seats * sizeof *d->queue);
    d->answers = mem_alloc(o->asks_max * sizeof *d->answers);
    for (uint32_t i = 0; i < d->n_seats; i++) d->free[i] = d->n_seats - 1 - i;
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->some, NULL);
    int rc = net_pair(net, limits, &d->ours, &d->theirs, em);
    if (rc == 0) rc = start(d, o, em);
    if (rc < 0)
        drafter_close(d);
    else
        *ret = d;
    return rc;
}

void drafter_close(struct drafter *d)
{
    if (!d) return;
    (void)pthread_mutex_lock(&d->lock);
    d->stop = true;
    for (uint32_t i = 0; i < d->n_seats; i++)
        if (d->seats[i]) atomic_store(&d->seats[i]->newer, true);
    (void)pthread_cond_broadcast(&d->some);
    (void)pthread_mutex_unlock(&d->lock);
    if (d->running) (void)pthread_join(d->thread, NULL);
    for (uint32_t i = 0; i < d->n_seats; i++)
        if (d->seats[i]) give_back(d, i);
    net_sock_close(d->theirs);
    net_sock_close(d->ours);
    (void)pthread_cond_destroy(&d->some);
    (void)pthread_mutex_destroy(&d->lock);
    imap_close(&d->by_request);
    mem_free(d->seats);
    mem_free(d->free);
    mem_free(d->queue);
    mem_free(d->answers);
    mem_free(d);
}

bool drafter_has(const struct drafter *d, enum draft_kind kind)
{
    return d->has[kind];
}

/* ---- the loop's side ---- */

static struct seat *find(const struct drafter *d, uint64_t request, uint32_t *ret_seat)
{
    const uint32_t *seat = imap_get(&d->by_request, request);
    if (!seat) return NULL;
    *ret_seat = *seat;
    return d->seats[*seat];
}

/* Copies tokens behind those that the drafting thread has not taken. Under the lock. */
static int push_fresh(struct seat *s, const int32_t *tokens, uint32_t n)
{
    uint32_t need = s->n_fresh + n;
    if (need > s->fresh_cap) {
        uint32_t cap = need + need / 2 + 16;
        int32_t *fresh = mem_try(cap * sizeof *fresh);
        if (!fresh) return ERR_NOMEM;
        if (s->n_fresh) memcpy(fresh, s->fresh, s->n_fresh * sizeof *fresh);
        mem_free(s->fresh);
        s->fresh = fresh;
        s->fresh_cap = cap;
    }
    memcpy(s->fresh + s->n_fresh, tokens, n * sizeof *tokens);
    s->n_fresh = need;
    s->n_said += n;
    return 0;
}

static struct seat *make_seat(const struct drafter_request *r)
{
    struct seat *s = mem_zalloc(sizeof *s);
    const struct sampling *p = r->sampling;
    s->request = r->request;
    s->kind = r->kind;
    s->sampling = *p;
    if (p->n_bias) {
        memcpy(s->bias_ids, p->bias_ids, p->n_bias * sizeof *p->bias_ids);
        memcpy(s->bias, p->bias, p->n_bias * sizeof *p->bias);
    }
    s->sampling.bias_ids = s->bias_ids;
    s->sampling.bias = s->bias;
    s->begin = *r;
    s->begin.sampling = &s->sampling;
    s->begin.tokens = NULL;
    if (r->grammar_bytes) s->grammar = mem_try(r->grammar_bytes);
    s->begin.grammar = s->grammar;
    if (s->grammar)
        memcpy(s->grammar, r->grammar, r->grammar_bytes);
    else
        s->begin.grammar_bytes = 0; /* its drafts are worse */
    atomic_init(&s->newer, false);
    return s;
}

int drafter_begin(struct drafter *d, const struct drafter_request *r, struct errmsg *em)
{
    CHECK(d->has[r->kind] && r->sampling->n_bias <= SAMPLING_BIASES_MAX);
    CHECK(!imap_get(&d->by_request, r->request));
    if (r->n_tokens == 0 || r->n_tokens > d->ctx || r->n_prompt > r->n_tokens)
        return err_set(em, ERR_LIMIT,
                       "drafts of a request of %" PRIu32 " tokens: the limit is %" PRIu32,
                       r->n_tokens, d->ctx);
    int rc = ERR_LIMIT;
    (void)pthread_mutex_lock(&d->lock);
    if (d->n_requests < d->requests_max && d->n_free) {
        struct seat *s = make_seat(r);
        rc = push_fresh(s, r->tokens, r->n_tokens);
        if (rc == 0) {
            d->seats[d->free[--d->n_free]] = s;
            imap_put(&d->by_request, r->request, d->free[d->n_free]);
            d->n_requests++;
        } else {
            mem_free(s->grammar);
            mem_free(s);
        }
    }
    (void)pthread_mutex_unlock(&d->lock);
    if (rc == ERR_LIMIT)
        return err_set(em, rc, "%" PRIu32 " requests have drafts, the limit", d->requests_max);
    return rc < 0 ? err_set(em, rc, "no memory for drafts of a request") : 0;
}

void drafter_tokens(struct drafter *d, uint64_t request, uint32_t first_pos, const int32_t *tokens,
                    uint32_t n)
{
    uint32_t seat;
    struct seat *s = find(d, request, &seat);
    if (!s || s->broken || first_pos > s->n_said || n <= s->n_said - first_pos) return;
    uint32_t known = s->n_said - first_pos;
    if (n - known > d->ctx - s->n_said) {
        s->broken = true;
        return;
    }
    (void)pthread_mutex_lock(&d->lock);
    s->broken = push_fresh(s, tokens + known, n - known) < 0;
    (void)pthread_mutex_unlock(&d->lock);
}

static void put_ask(struct drafter *d, struct seat *s, const struct drafter_ask *a)
{
    if (s->has_ask)
        d->stats.replaced++;
    else
        d->n_asks++;
    d->stats.asks++;
    s->has_ask = true;
    s->ask = (struct ask){.serial = a->serial,
                          .asked_ns = clock_ns(),
                          .first_pos = a->first_pos,
                          .n_tail = a->n_tail,
                          .want = a->want,
                          .has_chain = a->chain && a->load};
    if (s->ask.has_chain) {
        s->ask.chain = *a->chain;
        s->ask.load = *a->load;
    }
    if (!s->tail) s->tail = mem_alloc(DRAFTER_TAIL_MAX * sizeof *s->tail);
    if (a->n_tail) memcpy(s->tail, a->tail, a->n_tail * sizeof *a->tail);
    atomic_store(&s->newer, true);
}

int drafter_ask(struct drafter *d, const struct drafter_ask *a, struct errmsg *em)
{
    CHECK(a->want > 0 && a->want <= DRAFT_LENGTH_MAX && a->n_tail <= DRAFTER_TAIL_MAX);
    uint32_t seat, n_asks;
    struct seat *s = find(d, a->request, &seat);
    if (!s || s->broken || s->kind == DRAFT_OFF)
        return err_set(em, ERR_NOTFOUND, "request %" PRIu64 " has no drafts", a->request);
    if (a->first_pos > s->n_said)
        return err_set(em, ERR_RANGE, "a draft from position %" PRIu32 " on, of %" PRIu32 " told",
                       a->first_pos, s->n_said);
    (void)pthread_mutex_lock(&d->lock);
    n_asks = d->n_asks;
    bool full = !s->has_ask && n_asks >= d->asks_max;
    if (full) {
        d->stats.dropped++;
    } else {
        put_ask(d, s, a);
        enqueue(d, seat);
    }
    (void)pthread_mutex_unlock(&d->lock);
    if (!full) return 0;
    return err_set(em, ERR_LIMIT, "%" PRIu32 " drafts wait or were not taken, the limit", n_asks);
}

void drafter_end(struct drafter *d, uint64_t request, bool keep)
{
    uint32_t seat;
    struct seat *s = find(d, request, &seat);
    if (!s) return;
    imap_remove(&d->by_request, request);
    (void)pthread_mutex_lock(&d->lock);
    d->n_asks -= s->has_ask;
    d->n_requests--;
    s->has_ask = false;
    s->ended = true;
    s->keep = keep && !s->broken;
    atomic_store(&s->newer, true);
    enqueue(d, seat);
    (void)pthread_mutex_unlock(&d->lock);
}

struct net_sock *drafter_socket(struct drafter *d)
{
    return d->ours;
}

bool drafter_take(struct drafter *d, struct drafter_answer *ret)
{
    struct net_msg m;
    bool found = false;
    while (net_recv(d->ours, &m) == 0) net_msg_close(&m);
    (void)pthread_mutex_lock(&d->lock);
    while (d->n_answers && !found) {
        *ret = d->answers[d->answers_first];
        d->answers_first = (d->answers_first + 1) % d->asks_max;
        d->n_answers--;
        d->n_asks--;
        found = imap_get(&d->by_request, ret->request) != NULL; /* or it has ended since */
    }
    d->stats.answers += found;
    (void)pthread_mutex_unlock(&d->lock);
    return found;
}

void drafter_stats(struct drafter *d, struct drafter_stats *ret)
{
    (void)pthread_mutex_lock(&d->lock);
    *ret = d->stats;
    ret->requests = d->n_requests;
    (void)pthread_mutex_unlock(&d->lock);
}
