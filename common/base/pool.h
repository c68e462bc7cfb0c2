/* A fixed team of threads that run one function together (fork and join), with a barrier.
 *
 * The caller is thread 0. A thread that waits at a barrier spins for at most POOL_SPIN_NS, one that
 * waits for the next job for POOL_IDLE_SPIN_NS; then it sleeps on a futex. The second is short
 * because the core is wanted: in a chain of workers the next one starts when this one has finished.
 *
 * A team of as many threads as there are cores is pinned, thread i to core i: woken threads then
 * find their core at once. (Two workers and a coordinator on two cores, one stream: 0.86 of one
 * process's rate unpinned, 0.89 pinned; see common/io/net.c for the I/O threads.)
 *
 * Owned by the thread that calls pool_open, pool_run and pool_close; it stays pinned in between. */
#ifndef FLOTILLA_BASE_POOL_H
#define FLOTILLA_BASE_POOL_H

#include "common/base/err.h"

#include <stdint.h>

#define POOL_SPIN_NS 50000
#define POOL_IDLE_SPIN_NS 5000
#define POOL_THREADS_MAX 256

struct pool;

typedef void (*pool_fn)(void *arg, unsigned thread_idx, unsigned n_threads);

/* Starts n_threads - 1 threads. ERR_RANGE, or ERR_AGAIN when a thread cannot be had. */
int pool_open(unsigned n_threads, struct pool **ret_pool, struct errmsg *em);
void pool_close(struct pool *p);

/* Runs fn on every thread and returns when all have come back. */
void pool_run(struct pool *p, pool_fn fn, void *arg);

/* Something to run is about to come: threads that sleep are woken, and spin once more. */
void pool_rouse(struct pool *p);

/* Inside fn: returns when all threads of the pool have called it. */
void pool_barrier(struct pool *p);

/* Threads that this process can give a core each (its affinity, its group's quota), at most
 * POOL_THREADS_MAX. */
unsigned pool_cores(void);

#endif
