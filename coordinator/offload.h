/* Work off the loop: a queue of jobs that threads of their own run, so that no turn of the loop
 * waits for a long job, no short job for a long one, and no client for another's queue. It knows
 * nothing of what a job does.
 *
 * The first thread takes short jobs only; the others take long ones first. Within each kind clients
 * take turns, whatever number of jobs each has waiting. All functions but a job's own belong to the
 * thread that opened the queue. */
#ifndef FLOTILLA_COORDINATOR_OFFLOAD_H
#define FLOTILLA_COORDINATOR_OFFLOAD_H

#include "common/base/err.h"
#include "common/io/net.h"

#include <stdbool.h>
#include <stdint.h>

struct offload_options {
    const char *what;   /* jobs in the plural, for errors; borrowed until close */
    uint32_t n_threads; /* at least 2, so that short jobs have one, to OFFLOAD_THREADS_MAX */
    size_t short_bytes; /* a job of at most so many bytes is short */
    /* Limits of all that is not taken back yet: waiting, running and done. One client may have a
     * share of either waiting (1 / share of it), and always one job. */
    uint32_t jobs_max;
    size_t bytes_max;
    uint32_t share;
};

#define OFFLOAD_THREADS_MAX 8u

struct offload_job {
    uint64_t id;     /* the caller's, for offload_cancel */
    uint64_t client; /* the caller's: whose turn it is */
    size_t bytes;    /* what it counts for */
    /* Runs on a thread of the queue, and touches nothing that another thread changes. */
    void (*run)(void *arg);
    /* Frees the argument of a job whose result nobody takes; on any thread. */
    void (*drop)(void *arg);
    void *arg;
};

struct offload;

int offload_open(struct net *net, const struct offload_options *o, struct offload **ret,
                 struct errmsg *em);
/* Waits for the jobs that run; drops all. May be NULL. */
void offload_close(struct offload *o);

/* The job is copied; its argument is moved on success. ERR_LIMIT: too many wait, of this client or
 * of all. */
int offload_put(struct offload *o, const struct offload_job *job, struct errmsg *em);
/* The result is not wanted any more: a waiting job is dropped; one that runs is dropped when it is
 * done. One that is done already is still returned by offload_next. */
void offload_cancel(struct offload *o, uint64_t id);
/* Readable when offload_next has something. */
struct net_sock *offload_socket(struct offload *o);
/* The argument of a job that has run, moved to the caller; NULL: none. */
void *offload_next(struct offload *o);

#endif
