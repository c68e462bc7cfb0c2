/* A fixed team of threads that run one function together (fork and join), with a barrier.
 *
 * The caller is thread 0. A thread that waits at a barrier spins for a moment, at most
 * POOL_SPIN_NS, and then sleeps on a futex; one that waits for the next job spins for
 * POOL_IDLE_SPIN_NS. The second is short because the core is wanted: in a chain of workers the next
 * one starts when this one has finished. It never yields: a yield beside busy processes gives the
 * core away for several milliseconds, while a thread that sleeps is run soon after it is woken.
 *
 * Each thread learns how long spinning pays. After a wait that outlasted its spin by far, its limit
 * is halved: the thread that it waited for had no core, since other processes have them. Any other
 * wait raises the limit again, by a quarter.
 *
 * A team of as many threads as there are cores is pinned, thread i to core i: woken threads then
 * find their core at once. (Two workers and a coordinator on two cores, one stream: 0.86 of one
 * process's rate unpinned, 0.89 pinned; see common/io/net.c for the I/O threads.) Only one process
 * of a machine does so, the first (cores_claim).
 *
 * Where other processes have the cores, a team that waits for its slowest thread is slower than one
 * thread: beside eight busy processes on two cores two threads decoded 6 tokens/s and one 20. Each
 * thread therefore measures how long it lacked a core in its jobs. If all of them together lacked
 * one for more than two fifths of POOL_LOOK_NS, half as many threads do the next jobs, down to one,
 * and the team is not pinned; after POOL_PAUSE_NS without such a lack, twice as many. What a job
 * computes must therefore not depend on the number of threads, which `fn` is told each time.
 *
 * Owned by the thread that calls pool_open, pool_run and pool_close; it stays pinned in between. */
#ifndef FLOTILLA_BASE_POOL_H
#define FLOTILLA_BASE_POOL_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define POOL_SPIN_NS 50000
#define POOL_SPIN_LEAST_NS 1000
#define POOL_IDLE_SPIN_NS 5000
#define POOL_LOOK_NS UINT64_C(200000000)
#define POOL_PAUSE_NS UINT64_C(250000000)
#define POOL_PAUSE_MOST_NS UINT64_C(16000000000)
#define POOL_THREADS_MAX 256

struct pool;

typedef void (*pool_fn)(void *arg, unsigned thread_idx, unsigned n_threads);

/* Starts n_threads - 1 threads. ERR_RANGE, or ERR_AGAIN when a thread cannot be had. */
int pool_open(unsigned n_threads, struct pool **ret_pool, struct errmsg *em);
void pool_close(struct pool *p);

/* Runs fn on every thread of the team, or only on the first few where others have the cores, and
 * returns when fn has returned on all of them. */
void pool_run(struct pool *p, pool_fn fn, void *arg);

/* A job is about to come: wakes the threads that sleep, so that they spin once more. */
void pool_wake(struct pool *p);

/* Inside fn: returns when all threads that run fn have called it. */
void pool_barrier(struct pool *p);

/* Inside fn: shares out `total` items, numbered from 0, as threads come free. Each thread has a
 * share of them, of which it takes a part with each call, from the front; one that has taken all of
 * its own takes from the back of others'. So a thread mostly gets the items that it got the last
 * time, which its caches or its memory node may have, and one that is slower, or has no core, is
 * left fewer. *ret_a, *ret_b: items [*ret_a, *ret_b) are the caller's. False: it gets none any
 * more. Every thread calls it with the same total until it gets none; a barrier lies between one
 * total and the next. */
bool pool_claim(struct pool *p, uint32_t total, uint32_t *ret_a, uint32_t *ret_b);

/* How waits at barriers ended since the pool was opened, and what became of the team. For the
 * owner, between jobs: threads that have just been let go may lack their last wait. */
struct pool_waits {
    uint64_t spun;   /* while spinning */
    uint64_t slept;  /* after the spin ran out */
    uint64_t looks;  /* times that a spinning thread looked at the clock */
    uint64_t shrunk; /* times that the team was halved because others had its cores */
    unsigned active; /* threads of the last job */
    bool pinned;
};
struct pool_waits pool_waits(const struct pool *p);

/* Threads that this process can give a core each (its affinity, its group's quota), at most
 * POOL_THREADS_MAX. */
unsigned pool_cores(void);

#endif
