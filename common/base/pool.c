#include "common/base/pool.h"

#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/machine.h"
#include "common/base/mem.h"

#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

/* A word that threads wait on: they spin first and count themselves as sleepers before they sleep,
 * so that the waker makes the system call only when somebody does sleep. */
struct gate_word {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
};

struct pool {
    struct gate_word job;     /* counts jobs; a change wakes the team */
    struct gate_word barrier; /* counts barriers passed */
    _Alignas(64) atomic_uint arrived;
    pool_fn fn; /* written before `job` changes, read after */
    void *arg;
    bool stop;
    unsigned n_threads;
    bool pinned;
    pthread_t *threads;
    struct member {
        struct pool *pool;
        unsigned idx;
    } * members;
};

static void futex(atomic_uint *word, int op, unsigned value)
{
    (void)syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void word_wait(struct gate_word *w, unsigned seen, uint64_t spin_ns)
{
    uint64_t deadline = 0;
    for (unsigned i = 0; atomic_load_explicit(&w->value, memory_order_acquire) == seen; i++) {
        _mm_pause();
        if (i % 32 != 31) continue;
        (void)sched_yield(); /* what we wait for may need this core */
        uint64_t now = clock_ns();
        if (deadline == 0) deadline = now + spin_ns;
        if (now < deadline) continue;
        atomic_fetch_add(&w->sleepers, 1);
        if (atomic_load(&w->value) == seen) futex(&w->value, FUTEX_WAIT, seen);
        atomic_fetch_sub(&w->sleepers, 1);
        deadline = 0; /* roused without a change: spin again */
    }
}

static void word_advance(struct gate_word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers)) futex(&w->value, FUTEX_WAKE, INT_MAX);
}

void pool_rouse(struct pool *p)
{
    if (atomic_load(&p->job.sleepers)) futex(&p->job.value, FUTEX_WAKE, INT_MAX);
}

void pool_barrier(struct pool *p)
{
    if (p->n_threads == 1) return;
    unsigned seen = atomic_load_explicit(&p->barrier.value, memory_order_acquire);
    if (atomic_fetch_add(&p->arrived, 1) + 1 == p->n_threads) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        word_advance(&p->barrier);
    } else {
        word_wait(&p->barrier, seen, POOL_SPIN_NS);
    }
}

/* A library built with -ffast-math may have turned on flush-to-zero for the whole process: the
 * arithmetic here is defined with denormals, rounding to nearest. */
static void set_rounding(void)
{
    _mm_setcsr(0x1F80);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct pool *p = m->pool;
    set_rounding();
    if (p->pinned)
        cores_stay_on(m->idx);
    else
        cores_roam(); /* whoever opened the pool may be pinned */
    for (unsigned seen = 0;; seen++) {
        word_wait(&p->job, seen, POOL_IDLE_SPIN_NS);
        if (p->stop) return NULL;
        p->fn(p->arg, m->idx, p->n_threads);
        pool_barrier(p);
    }
}

void pool_run(struct pool *p, pool_fn fn, void *arg)
{
    p->fn = fn;
    p->arg = arg;
    set_rounding();
    if (p->n_threads > 1) word_advance(&p->job);
    fn(arg, 0, p->n_threads);
    pool_barrier(p);
}

int pool_open(unsigned n_threads, struct pool **ret_pool, struct errmsg *em)
{
    if (n_threads == 0 || n_threads > POOL_THREADS_MAX)
        return err_set(em, ERR_RANGE, "threads: %u is not in 1..%d", n_threads, POOL_THREADS_MAX);
    struct pool *p = NULL;
    if (posix_memalign((void **)&p, 64, sizeof *p) != 0)
        return err_set(em, ERR_NOMEM, "thread pool");
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->pinned = n_threads > 1 && n_threads == cores_count();
    p->threads = mem_zalloc(n_threads * sizeof *p->threads);
    p->members = mem_zalloc(n_threads * sizeof *p->members);
    for (unsigned i = 1; i < n_threads; i++) {
        p->members[i] = (struct member){p, i};
        int rc = pthread_create(&p->threads[i], NULL, member_main, &p->members[i]);
        if (rc == 0) continue;
        p->n_threads = i;
        pool_close(p);
        return err_set(em, ERR_AGAIN, "cannot start thread %u of %u: %s", i, n_threads,
                       strerror(rc));
    }
    if (p->pinned) cores_stay_on(0);
    *ret_pool = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p) return;
    p->stop = true;
    if (p->n_threads > 1) word_advance(&p->job);
    for (unsigned i = 1; i < p->n_threads; i++) (void)pthread_join(p->threads[i], NULL);
    if (p->pinned) cores_roam();
    mem_free(p->threads);
    mem_free(p->members);
    mem_free(p);
}

unsigned pool_cores(void)
{
    unsigned n = machine_threads("", cores_count());
    return n < POOL_THREADS_MAX ? n : POOL_THREADS_MAX;
}
