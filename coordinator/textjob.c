/* Queues under one lock, one condition; an empty message on a pair of sockets wakes the loop.
 *
 *   waiting[SHORT], waiting[LONG]: a ring of clients, each with its texts in order
 *                -> running[thread] -> done -> textjobs_next */
#include "coordinator/textjob.h"

#include "common/base/mem.h"

#include <pthread.h>
#include <string.h>

enum kind { SHORT, LONG, KINDS };

#define THREADS 2u /* the first takes short texts only */

struct list {
    struct textjob *first, **end;
};

/* A client's waiting texts of one kind. */
struct line {
    uint64_t client;
    struct list jobs;
    struct line *next;
};

/* The lines of one kind, in the order of their next turn. */
struct ring {
    struct line *first, **end;
};

struct worker {
    struct textjobs *owner;
    pthread_t thread;
    bool takes_long;
    struct textjob *job; /* what it runs, or NULL */
};

struct textjobs {
    struct net_sock *ours, *theirs; /* theirs is used under the lock */
    const struct vocab *vocab;
    pthread_mutex_t lock; /* guards what follows, and the workers' jobs */
    pthread_cond_t some;
    struct ring waiting[KINDS];
    struct list done;
    uint32_t n;   /* waiting, running and done */
    size_t bytes; /* of their texts */
    bool stop;
    struct worker workers[THREADS];
    uint32_t n_workers;
};

static void put(struct list *l, struct textjob *job)
{
    job->next = NULL;
    *l->end = job;
    l->end = &job->next;
}

static struct textjob *take(struct list *l)
{
    struct textjob *job = l->first;
    if (!job) return NULL;
    l->first = job->next;
    if (!l->first) l->end = &l->first;
    return job;
}

static enum kind kind_of(const struct textjob *job)
{
    return job->len <= TEXTJOBS_SHORT_BYTES ? SHORT : LONG;
}

/* ---- whose turn it is ---- */

static void append_line(struct ring *r, struct line *line)
{
    line->next = NULL;
    *r->end = line;
    r->end = &line->next;
}

static struct line *find_line(const struct ring *r, uint64_t client)
{
    for (struct line *l = r->first; l; l = l->next)
        if (l->client == client) return l;
    return NULL;
}

static void enter(struct ring *r, struct textjob *job)
{
    struct line *line = find_line(r, job->client);
    if (!line) {
        line = mem_zalloc(sizeof *line);
        line->client = job->client;
        line->jobs.end = &line->jobs.first;
        append_line(r, line);
    }
    put(&line->jobs, job);
}

/* The first text of the client whose turn it is; the client then comes last. */
static struct textjob *next_turn(struct ring *r)
{
    struct line *line = r->first;
    if (!line) return NULL;
    r->first = line->next;
    if (!r->first) r->end = &r->first;
    struct textjob *job = take(&line->jobs);
    if (line->jobs.first)
        append_line(r, line);
    else
        mem_free(line);
    return job;
}

/* Takes a waiting text out of its line; NULL: none of this id waits. */
static struct textjob *leave(struct ring *r, uint64_t id)
{
    for (struct line **l = &r->first; *l; l = &(*l)->next) {
        struct line *line = *l;
        for (struct textjob **j = &line->jobs.first; *j; j = &(*j)->next) {
            struct textjob *job = *j;
            if (job->id != id) continue;
            *j = job->next;
            if (!*j) line->jobs.end = j;
            if (!line->jobs.first) {
                *l = line->next;
                if (!*l) r->end = l;
                mem_free(line);
            }
            return job;
        }
    }
    return NULL;
}

/* ---- the threads ---- */

static void run(const struct vocab *v, struct textjob *job)
{
    if (job->bos && vocab_adds_bos(v)) {
        tokens_push(&job->tokens, vocab_bos(v));
    }
    job->rc = vocab_encode(v, job->text, job->len, job->special, &job->tokens, &job->em);
}

static void forget(struct textjobs *t, struct textjob *job)
{
    t->n--;
    t->bytes -= job->len;
}

static void *thread_main(void *arg)
{
    struct worker *w = arg;
    struct textjobs *t = w->owner;
    struct net_frame wake = {"", 0};
    (void)pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        struct textjob *job = w->takes_long ? next_turn(&t->waiting[LONG]) : NULL;
        if (!job) job = next_turn(&t->waiting[SHORT]);
        if (!job) {
            (void)pthread_cond_wait(&t->some, &t->lock);
            continue;
        }
        w->job = job;
        (void)pthread_mutex_unlock(&t->lock);
        run(t->vocab, job);
        (void)pthread_mutex_lock(&t->lock);
        w->job = NULL;
        if (job->cancelled) {
            forget(t, job);
            textjob_free(job);
        } else {
            put(&t->done, job);
            (void)net_send(t->theirs, &wake, 1); /* full: the loop has been woken often enough */
        }
    }
    (void)pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int start_threads(struct textjobs *t, struct errmsg *em)
{
    for (uint32_t i = 0; i < THREADS; i++) {
        struct worker *w = &t->workers[i];
        *w = (struct worker){.owner = t, .takes_long = i > 0};
        if (pthread_create(&w->thread, NULL, thread_main, w) != 0)
            return err_set(em, ERR_AGAIN, "cannot start a text thread");
        t->n_workers++;
    }
    return 0;
}

int textjobs_open(struct net *net, const struct vocab *v, struct textjobs **ret, struct errmsg *em)
{
    struct textjobs *t = mem_zalloc(sizeof *t);
    struct net_limits limits = {.hwm = (int)TEXTJOBS_MAX, .frame_max = 64};
    t->vocab = v;
    for (size_t k = 0; k < KINDS; k++) t->waiting[k].end = &t->waiting[k].first;
    t->done.end = &t->done.first;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->some, NULL);
    int rc = net_socket(net, NET_PAIR, limits, &t->ours, em);
    if (rc == 0) rc = net_bind(t->ours, "inproc://text", em);
    if (rc == 0) rc = net_socket(net, NET_PAIR, limits, &t->theirs, em);
    if (rc == 0) rc = net_connect(t->theirs, "inproc://text", em);
    if (rc == 0) rc = start_threads(t, em);
    if (rc < 0)
        textjobs_close(t);
    else
        *ret = t;
    return rc;
}

void textjobs_close(struct textjobs *t)
{
    if (!t) return;
    struct textjob *job;
    (void)pthread_mutex_lock(&t->lock);
    t->stop = true;
    (void)pthread_cond_broadcast(&t->some);
    (void)pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->n_workers; i++) (void)pthread_join(t->workers[i].thread, NULL);
    for (size_t k = 0; k < KINDS; k++)
        while ((job = next_turn(&t->waiting[k]))) textjob_free(job);
    while ((job = take(&t->done))) textjob_free(job);
    net_sock_close(t->theirs);
    net_sock_close(t->ours);
    (void)pthread_cond_destroy(&t->some);
    (void)pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

/* ---- the caller's side ---- */

/* What one client has waiting. */
static void count_waiting(const struct textjobs *t, uint64_t client, uint32_t *ret_n,
                          size_t *ret_bytes)
{
    *ret_n = 0;
    *ret_bytes = 0;
    for (size_t k = 0; k < KINDS; k++) {
        const struct line *line = find_line(&t->waiting[k], client);
        for (const struct textjob *j = line ? line->jobs.first : NULL; j; j = j->next) {
            ++*ret_n;
            *ret_bytes += j->len;
        }
    }
}

static int check_room(const struct textjobs *t, const struct textjob *job, struct errmsg *em)
{
    uint32_t n;
    size_t bytes;
    count_waiting(t, job->client, &n, &bytes);
    if (n > 0 && (n >= TEXTJOBS_MAX / TEXTJOBS_SHARE ||
                  bytes + job->len > TEXTJOBS_BYTES_MAX / TEXTJOBS_SHARE))
        return err_set(em, ERR_LIMIT,
                       "%u texts of this client wait to be tokenised: the limit is %u, and %zu "
                       "bytes",
                       n, TEXTJOBS_MAX / TEXTJOBS_SHARE, TEXTJOBS_BYTES_MAX / TEXTJOBS_SHARE);
    if (t->n >= TEXTJOBS_MAX || job->len > TEXTJOBS_BYTES_MAX - t->bytes)
        return err_set(em, ERR_LIMIT, "%u texts of %zu bytes wait to be tokenised, the limit", t->n,
                       t->bytes);
    return 0;
}

int textjobs_put(struct textjobs *t, struct textjob *job, struct errmsg *em)
{
    (void)pthread_mutex_lock(&t->lock);
    int rc = check_room(t, job, em);
    if (rc == 0) {
        t->n++;
        t->bytes += job->len;
        enter(&t->waiting[kind_of(job)], job);
        /* All: a signal might reach the thread that leaves long texts alone. */
        (void)pthread_cond_broadcast(&t->some);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return rc;
}

void textjobs_cancel(struct textjobs *t, uint64_t id)
{
    struct textjob *job = NULL;
    (void)pthread_mutex_lock(&t->lock);
    for (size_t k = 0; k < KINDS && !job; k++) job = leave(&t->waiting[k], id);
    if (job) forget(t, job);
    for (uint32_t i = 0; i < t->n_workers; i++)
        if (t->workers[i].job && t->workers[i].job->id == id) t->workers[i].job->cancelled = true;
    (void)pthread_mutex_unlock(&t->lock);
    textjob_free(job);
}

struct net_sock *textjobs_socket(struct textjobs *t)
{
    return t->ours;
}

struct textjob *textjobs_next(struct textjobs *t)
{
    struct net_msg m;
    while (net_recv(t->ours, &m) == 0) net_msg_close(&m);
    (void)pthread_mutex_lock(&t->lock);
    struct textjob *job = take(&t->done);
    if (job) forget(t, job);
    (void)pthread_mutex_unlock(&t->lock);
    return job;
}

void textjob_free(struct textjob *job)
{
    if (!job) return;
    mem_free(job->text);
    mem_free(job->tokens.ids);
    mem_free(job);
}
