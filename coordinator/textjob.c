/* Two lists under one lock, one condition; an empty message on a pair of sockets wakes the loop. */
#include "coordinator/textjob.h"

#include "common/base/mem.h"

#include <pthread.h>
#include <string.h>

#define JOBS_MAX 1024u
#define JOBS_BYTES_MAX ((size_t)64 << 20)

struct list {
    struct textjob *first, **end;
};

struct textjobs {
    struct net_sock *ours, *theirs; /* theirs belongs to the thread once it runs */
    const struct vocab *vocab;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t some;
    struct list todo, done;
    uint32_t n;   /* in both lists and in the thread's hands */
    size_t bytes; /* of their texts */
    bool stop;
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

static void run(const struct vocab *v, struct textjob *job)
{
    if (job->bos && vocab_adds_bos(v)) {
        tokens_push(&job->tokens, vocab_bos(v));
    }
    job->rc = vocab_encode(v, job->text, job->len, job->special, &job->tokens, &job->em);
}

static void *thread_main(void *arg)
{
    struct textjobs *t = arg;
    struct net_frame wake = {"", 0};
    (void)pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        struct textjob *job = take(&t->todo);
        if (!job) {
            (void)pthread_cond_wait(&t->some, &t->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&t->lock);
        run(t->vocab, job);
        (void)pthread_mutex_lock(&t->lock);
        put(&t->done, job);
        (void)net_send(t->theirs, &wake, 1); /* full: the loop has been woken often enough */
    }
    (void)pthread_mutex_unlock(&t->lock);
    net_sock_close(t->theirs);
    return NULL;
}

int textjobs_open(struct net *net, const struct vocab *v, struct textjobs **ret, struct errmsg *em)
{
    struct textjobs *t = mem_zalloc(sizeof *t);
    struct net_limits limits = {.hwm = (int)JOBS_MAX, .frame_max = 64};
    t->vocab = v;
    t->todo.end = &t->todo.first;
    t->done.end = &t->done.first;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->some, NULL);
    int rc = net_socket(net, NET_PAIR, limits, &t->ours, em);
    if (rc == 0) rc = net_bind(t->ours, "inproc://text", em);
    if (rc == 0) rc = net_socket(net, NET_PAIR, limits, &t->theirs, em);
    if (rc == 0) rc = net_connect(t->theirs, "inproc://text", em);
    if (rc == 0 && pthread_create(&t->thread, NULL, thread_main, t) != 0)
        rc = err_set(em, ERR_AGAIN, "cannot start the text thread");
    if (rc < 0) {
        net_sock_close(t->theirs);
        net_sock_close(t->ours);
        mem_free(t);
        return rc;
    }
    *ret = t;
    return 0;
}

void textjobs_close(struct textjobs *t)
{
    if (!t) return;
    struct textjob *job;
    (void)pthread_mutex_lock(&t->lock);
    t->stop = true;
    (void)pthread_cond_signal(&t->some);
    (void)pthread_mutex_unlock(&t->lock);
    (void)pthread_join(t->thread, NULL);
    while ((job = take(&t->todo)) || (job = take(&t->done))) textjob_free(job);
    net_sock_close(t->ours);
    (void)pthread_cond_destroy(&t->some);
    (void)pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

bool textjobs_put(struct textjobs *t, struct textjob *job)
{
    (void)pthread_mutex_lock(&t->lock);
    bool room = t->n < JOBS_MAX && job->len <= JOBS_BYTES_MAX - t->bytes;
    if (room) {
        t->n++;
        t->bytes += job->len;
        put(&t->todo, job);
        (void)pthread_cond_signal(&t->some);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return room;
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
    t->n -= job != NULL;
    t->bytes -= job ? job->len : 0;
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
