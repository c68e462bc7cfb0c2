/* Jobs travel as pointers through a pair of sockets; whoever received one owns it. */
#include "coordinator/textjob.h"

#include "common/base/mem.h"

#include <pthread.h>
#include <string.h>

#define JOBS_MAX 1024

struct textjobs {
    struct net_sock *ours, *theirs;
    const struct vocab *vocab;
    pthread_t thread;
};

static void put_pointer(struct net_sock *s, void *p)
{
    struct net_frame f = {&p, sizeof p};
    (void)net_send(s, &f, 1);
}

static bool get_pointer(struct net_sock *s, void **ret)
{
    struct net_msg m;
    if (net_recv(s, &m) < 0) return false;
    memcpy(ret, net_msg_frame(&m, 0).data, sizeof *ret);
    net_msg_close(&m);
    return true;
}

static void run(const struct vocab *v, struct textjob *job)
{
    if (job->bos && vocab_adds_bos(v)) {
        job->tokens.ids = mem_alloc(sizeof *job->tokens.ids);
        job->tokens.ids[0] = vocab_bos(v);
        job->tokens.n = job->tokens.cap = 1;
    }
    job->rc = vocab_encode(v, job->text, job->len, job->special, &job->tokens, &job->em);
}

static void *thread_main(void *arg)
{
    struct textjobs *t = arg;
    for (;;) {
        struct net_poll item = {.sock = t->theirs};
        void *p;
        (void)net_poll(&item, 1, -1);
        while (get_pointer(t->theirs, &p)) {
            if (!p) {
                net_sock_close(t->theirs);
                return NULL;
            }
            run(t->vocab, p);
            put_pointer(t->theirs, p);
        }
    }
}

int textjobs_open(struct net *net, const struct vocab *v, struct textjobs **ret, struct errmsg *em)
{
    struct textjobs *t = mem_zalloc(sizeof *t);
    struct net_limits limits = {JOBS_MAX, 64};
    t->vocab = v;
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
    put_pointer(t->ours, NULL);
    (void)pthread_join(t->thread, NULL);
    while ((job = textjobs_next(t))) textjob_free(job);
    net_sock_close(t->ours);
    mem_free(t);
}

bool textjobs_put(struct textjobs *t, struct textjob *job)
{
    struct net_frame f = {&job, sizeof job};
    return net_send(t->ours, &f, 1) == 0;
}

struct net_sock *textjobs_socket(struct textjobs *t)
{
    return t->ours;
}

struct textjob *textjobs_next(struct textjobs *t)
{
    void *p;
    return get_pointer(t->ours, &p) ? p : NULL;
}

void textjob_free(struct textjob *job)
{
    if (!job) return;
    mem_free(job->text);
    mem_free(job->tokens.ids);
    mem_free(job);
}
