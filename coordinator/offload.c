/* Queues under one lock, one condition; an empty message on a pair of sockets wakes the loop.
 *
 *   waiting[SHORT], waiting[LONG]: a ring of clients, each with its jobs in order
 *                -> running[thread] -> done -> offload_next */
#include "coordinator/offload.h"

#include "common/base/check.h"
#include "common/base/mem.h"

#include <inttypes.h>
#include <pthread.h>

enum kind { SHORT, LONG, KINDS };

struct job {
    struct offload_job is;
    bool cancelled; /* while it runs */
    struct job *next;
};

struct list {
    struct job *first, **end;
};

/* A client's waiting jobs of one kind. */
struct line {
    uint64_t client;
    struct list jobs;
    struct line *next;
};

/* The lines of one kind, in the order of their next turn. */
struct ring {
    struct line *first, **end;
};

struct runner {
    struct offload *owner;
    pthread_t thread;
    bool takes_long;
    struct job *job; /* what it runs, or NULL */
};

struct offload {
    struct offload_options limits;
    struct net_sock *ours, *theirs; /* theirs is used under the lock */
    pthread_mutex_t lock;           /* guards what follows, and the runners' jobs */
    pthread_cond_t some;
    struct ring waiting[KINDS];
    struct list done;
    uint32_t n;   /* waiting, running and done */
    size_t bytes; /* that they count for */
    bool stop;
    struct runner runners[OFFLOAD_THREADS_MAX];
    uint32_t n_runners;
};

static void put(struct list *l, struct job *job)
{
    job->next = NULL;
    *l->end = job;
    l->end = &job->next;
}

static struct job *take(struct list *l)
{
    struct job *job = l->first;
    if (!job) return NULL;
    l->first = job->next;
    if (!l->first) l->end = &l->first;
    return job;
}

static enum kind kind_of(const struct offload *o, const struct offload_job *job)
{
    return job->bytes <= o->limits.short_bytes ? SHORT : LONG;
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

static void enter(struct ring *r, struct job *job)
{
    struct line *line = find_line(r, job->is.client);
    if (!line) {
        line = mem_zalloc(sizeof *line);
        line->client = job->is.client;
        line->jobs.end = &line->jobs.first;
        append_line(r, line);
    }
    put(&line->jobs, job);
}

/* The first job of the client whose turn it is; the client then comes last. */
static struct job *next_turn(struct ring *r)
{
    struct line *line = r->first;
    if (!line) return NULL;
    r->first = line->next;
    if (!r->first) r->end = &r->first;
    struct job *job = take(&line->jobs);
    if (line->jobs.first)
        append_line(r, line);
    else
        mem_free(line);
    return job;
}

/* Takes a waiting job out of its line; NULL: none of this id waits. */
static struct job *leave(struct ring *r, uint64_t id)
{
    for (struct line **l = &r->first; *l; l = &(*l)->next) {
        struct line *line = *l;
        for (struct job **j = &line->jobs.first; *j; j = &(*j)->next) {
            struct job *job = *j;
            if (job->is.id != id) continue;
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

/* It counts no more. */
static void forget(struct offload *o, const struct job *job)
{
    o->n--;
    o->bytes -= job->is.bytes;
}

static void drop(struct job *job)
{
    if (!job) return;
    job->is.drop(job->is.arg);
    mem_free(job);
}

static void *thread_main(void *arg)
{
    struct runner *r = arg;
    struct offload *o = r->owner;
    struct net_frame wake = {"", 0};
    (void)pthread_mutex_lock(&o->lock);
    while (!o->stop) {
        struct job *job = r->takes_long ? next_turn(&o->waiting[LONG]) : NULL;
        if (!job) job = next_turn(&o->waiting[SHORT]);
        if (!job) {
            (void)pthread_cond_wait(&o->some, &o->lock);
            continue;
        }
        r->job = job;
        (void)pthread_mutex_unlock(&o->lock);
        job->is.run(job->is.arg);
        (void)pthread_mutex_lock(&o->lock);
        r->job = NULL;
        if (job->cancelled) {
            forget(o, job);
            (void)pthread_mutex_unlock(&o->lock);
            drop(job);
            (void)pthread_mutex_lock(&o->lock);
        } else {
            put(&o->done, job);
            (void)net_send(o->theirs, &wake, 1); /* full: the loop has been woken often enough */
        }
    }
    (void)pthread_mutex_unlock(&o->lock);
    return NULL;
}

static int start_threads(struct offload *o, struct errmsg *em)
{
    for (uint32_t i = 0; i < o->limits.n_threads; i++) {
        struct runner *r = &o->runners[i];
        *r = (struct runner){.owner = o, .takes_long = i > 0};
        if (pthread_create(&r->thread, NULL, thread_main, r) != 0)
            return err_set(em, ERR_AGAIN, "cannot start a thread for %s", o->limits.what);
        o->n_runners++;
    }
    return 0;
}

int offload_open(struct net *net, const struct offload_options *options, struct offload **ret,
                 struct errmsg *em)
{
    CHECK(options->n_threads >= 2 && options->n_threads <= OFFLOAD_THREADS_MAX &&
          options->share > 0);
    struct offload *o = mem_zalloc(sizeof *o);
    struct net_limits limits = {.hwm = (int)options->jobs_max, .frame_max = 64};
    o->limits = *options;
    for (size_t k = 0; k < KINDS; k++) o->waiting[k].end = &o->waiting[k].first;
    o->done.end = &o->done.first;
    (void)pthread_mutex_init(&o->lock, NULL);
    (void)pthread_cond_init(&o->some, NULL);
    int rc = net_pair(net, limits, &o->ours, &o->theirs, em);
    if (rc == 0) rc = start_threads(o, em);
    if (rc < 0)
        offload_close(o);
    else
        *ret = o;
    return rc;
}

void offload_close(struct offload *o)
{
    if (!o) return;
    struct job *job;
    (void)pthread_mutex_lock(&o->lock);
    o->stop = true;
    (void)pthread_cond_broadcast(&o->some);
    (void)pthread_mutex_unlock(&o->lock);
    for (uint32_t i = 0; i < o->n_runners; i++) (void)pthread_join(o->runners[i].thread, NULL);
    for (size_t k = 0; k < KINDS; k++)
        while ((job = next_turn(&o->waiting[k]))) drop(job);
    while ((job = take(&o->done))) drop(job);
    net_sock_close(o->theirs);
    net_sock_close(o->ours);
    (void)pthread_cond_destroy(&o->some);
    (void)pthread_mutex_destroy(&o->lock);
    mem_free(o);
}

/* ---- the caller's side ---- */

/* What one client has waiting. */
static void count_waiting(const struct offload *o, uint64_t client, uint32_t *ret_n,
                          size_t *ret_bytes)
{
    *ret_n = 0;
    *ret_bytes = 0;
    for (size_t k = 0; k < KINDS; k++) {
        const struct line *line = find_line(&o->waiting[k], client);
        for (const struct job *j = line ? line->jobs.first : NULL; j; j = j->next) {
            ++*ret_n;
            *ret_bytes += j->is.bytes;
        }
    }
}

static int check_room(const struct offload *o, const struct offload_job *job, struct errmsg *em)
{
    const struct offload_options *l = &o->limits;
    uint32_t n, n_most = l->jobs_max / l->share;
    size_t bytes, bytes_most = l->bytes_max / l->share;
    count_waiting(o, job->client, &n, &bytes);
    if (n > 0 && (n >= n_most || bytes + job->bytes > bytes_most))
        return err_set(em, ERR_LIMIT,
                       "%" PRIu32 " %s of this client wait: the limit is %" PRIu32
                       ", and %zu bytes",
                       n, l->what, n_most, bytes_most);
    if (o->n >= l->jobs_max || job->bytes > l->bytes_max - o->bytes)
        return err_set(em, ERR_LIMIT, "%" PRIu32 " %s of %zu bytes wait, the limit", o->n, l->what,
                       o->bytes);
    return 0;
}

int offload_put(struct offload *o, const struct offload_job *job, struct errmsg *em)
{
    (void)pthread_mutex_lock(&o->lock);
    int rc = check_room(o, job, em);
    if (rc == 0) {
        struct job *j = mem_zalloc(sizeof *j);
        j->is = *job;
        o->n++;
        o->bytes += job->bytes;
        enter(&o->waiting[kind_of(o, job)], j);
        /* All: a signal might reach the thread that leaves long jobs alone. */
        (void)pthread_cond_broadcast(&o->some);
    }
    (void)pthread_mutex_unlock(&o->lock);
    return rc;
}

void offload_cancel(struct offload *o, uint64_t id)
{
    struct job *job = NULL;
    (void)pthread_mutex_lock(&o->lock);
    for (size_t k = 0; k < KINDS && !job; k++) job = leave(&o->waiting[k], id);
    if (job) forget(o, job);
    for (uint32_t i = 0; i < o->n_runners; i++)
        if (o->runners[i].job && o->runners[i].job->is.id == id)
            o->runners[i].job->cancelled = true;
    (void)pthread_mutex_unlock(&o->lock);
    drop(job);
}

struct net_sock *offload_socket(struct offload *o)
{
    return o->ours;
}

void *offload_next(struct offload *o)
{
    struct net_msg m;
    while (net_recv(o->ours, &m) == 0) net_msg_close(&m);
    (void)pthread_mutex_lock(&o->lock);
    struct job *job = take(&o->done);
    if (job) forget(o, job);
    (void)pthread_mutex_unlock(&o->lock);
    void *arg = job ? job->is.arg : NULL;
    mem_free(job);
    return arg;
}
