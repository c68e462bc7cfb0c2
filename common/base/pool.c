#include "common/base/pool.h"

#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/fmath.h"
#include "common/base/insn.h"
#include "common/base/machine.h"
#include "common/base/mem.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A wait that lasts longer is not due to uneven shares of work: the thread waited for has no core.
 */
#define AWAY_NS 500000
/* A thread that is woken runs within this time, if there is a core for it. */
#define PROMPT_NS 200000
/* The team waits for each of its threads. Where one after the other lacks a core, together for the
 * share S of the time, n threads do the work of n (1 - S): above S = 1/2, half as many do more.
 * Where weights come from memory, one thread does more than half of what two do, so the limit is
 * lower. (SmolLM2 on two cores, another process on the second: 0.49 of the rate alone with S = 1/2,
 * 0.59 with 2/5; five runs each, on a shared machine.) */
#define LOST_SHARE_PERCENT 40u
/* A thread takes this part of what is left of its own share, so that others find something when
 * they come to it, and yet most of it at once: each part costs a call. */
#define PART_OF_OWN(left) ((left) - (left) / 4)
#define PART_OF_OTHERS(left) (((left) + 1) / 2)
/* Threads whose shares one looks at that has none left: looking at all would cost a large team more
 * than it gives. */
#define NEIGHBOURS 4u
/* The job word is a count of jobs and, in its lowest bits, how many threads the job is for: 0 ends
 * the pool. A thread that has no part in a job reads nothing else, as the next one may be written
 * by then. */
#define PART_BITS 9
_Static_assert(POOL_THREADS_MAX < 1 << PART_BITS, "any number of threads fits");

/* A word that threads wait on: they spin first and count themselves as sleepers before they sleep,
 * so that the waker makes the system call only when somebody does sleep. */
struct futex_word {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
    _Atomic uint64_t woken_ns; /* when the sleepers were last woken */
};

struct pool {
    struct futex_word job;     /* a change wakes the team */
    struct futex_word barrier; /* counts barriers passed */
    _Alignas(64) atomic_uint arrived;
    _Atomic uint64_t away_ns; /* for how long threads lacked a core in jobs, summed up */
    pool_fn fn; /* written before `job` changes, read by its threads, like the next three */
    void *arg;
    unsigned n_active; /* threads of this job */
    bool pinned;
    bool claimed;    /* what follows is thread 0's */
    uint64_t job_ns; /* of the jobs since it last took away_ns */
    uint64_t grow_ns, grown_ns, pause_ns, n_shrunk;
    unsigned n_threads;
    pthread_t *threads;
    struct member {
        /* What is taken of its share of items: low half, how many from the front; high half, from
         * the back. One for each parity of `phase`: see pool_barrier. */
        _Alignas(64) _Atomic uint64_t taken[2];
        _Alignas(64) struct pool *pool;
        unsigned idx;
        unsigned phase; /* barriers that it has come to in this job */
        bool pinned;
        uint64_t spin_ns;                    /* how long it spins at a barrier */
        uint64_t slept_ns, late_ns;          /* in this job */
        _Atomic uint64_t spun, slept, looks; /* written by this thread, read by the owner */
    } * members;
};

/* The member that the calling thread is, in the job that it runs. */
static _Thread_local struct member *self;

static void futex(atomic_uint *word, int op, unsigned value)
{
    (void)syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* How a wait ended: after a sleep or not, after so many readings of the clock and, where it slept,
 * how long it lasted and how long after its waking the thread ran. */
struct wait {
    bool slept;
    uint64_t looks, ns, late_ns;
};

static struct wait word_wait(struct futex_word *w, unsigned seen, uint64_t spin_ns)
{
    struct wait r = {0};
    uint64_t start = 0, deadline = 0;
    for (unsigned i = 0; atomic_load_explicit(&w->value, memory_order_acquire) == seen; i++) {
        insn_pause();
        if (i % 32 != 31) continue;
        uint64_t now = clock_ns();
        r.looks++;
        if (start == 0) start = now;
        if (deadline == 0) deadline = now + spin_ns;
        if (now < deadline) continue;
        atomic_fetch_add(&w->sleepers, 1);
        if (atomic_load(&w->value) == seen) futex(&w->value, FUTEX_WAIT, seen);
        atomic_fetch_sub(&w->sleepers, 1);
        r.slept = true;
        deadline = 0; /* woken without a change: spin again */
    }
    if (r.slept) {
        uint64_t now = clock_ns(), woken = atomic_load_explicit(&w->woken_ns, memory_order_relaxed);
        r.ns = now - start;
        if (woken >= start && woken < now) r.late_ns = now - woken;
    }
    return r;
}

static void word_set(struct futex_word *w, unsigned value)
{
    atomic_store(&w->value, value);
    if (!atomic_load(&w->sleepers)) return;
    atomic_store_explicit(&w->woken_ns, clock_ns(), memory_order_relaxed);
    futex(&w->value, FUTEX_WAKE, INT_MAX);
}

void pool_wake(struct pool *p)
{
    if (p->n_active > 1 && atomic_load(&p->job.sleepers)) futex(&p->job.value, FUTEX_WAKE, INT_MAX);
}

/* ---- waiting ---- */

static void adapt_spin(struct member *m, const struct wait *w)
{
    if (w->slept && w->ns >= AWAY_NS)
        m->spin_ns /= 2;
    else
        m->spin_ns += m->spin_ns / 4 + 1;
    if (m->spin_ns < POOL_SPIN_LEAST_NS) m->spin_ns = POOL_SPIN_LEAST_NS;
    if (m->spin_ns > POOL_SPIN_NS) m->spin_ns = POOL_SPIN_NS;
}

static void count(_Atomic uint64_t *c, uint64_t n)
{
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

void pool_barrier(struct pool *p)
{
    /* Once this thread has arrived, the others may end the job, and the next one may have another
     * team: its size is read before. */
    const unsigned n = p->n_active;
    struct member *m = self;
    /* Nothing is taken of its share of what comes behind the barrier. That word was used before the
     * last barrier, so nobody looks at it any more, or yet. */
    m->phase++;
    atomic_store_explicit(&m->taken[m->phase % 2], 0, memory_order_relaxed);
    if (n == 1) return;
    unsigned seen = atomic_load_explicit(&p->barrier.value, memory_order_acquire);
    if (atomic_fetch_add(&p->arrived, 1) + 1 == n) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        word_set(&p->barrier, seen + 1);
        return;
    }
    struct wait w = word_wait(&p->barrier, seen, m->spin_ns);
    count(&m->spun, !w.slept);
    count(&m->slept, w.slept);
    count(&m->looks, w.looks);
    m->slept_ns += w.ns;
    if (w.late_ns > PROMPT_NS) m->late_ns += w.late_ns;
    adapt_spin(m, &w);
}

/* ---- shares of items ---- */

/* Takes a part of what is left of m's share of `size` items, in phase `phase`: of its front for m
 * itself, else of its back. */
static bool take_part(struct member *m, unsigned phase, uint32_t size, bool own, bool all,
                      uint32_t *ret_at, uint32_t *ret_n)
{
    _Atomic uint64_t *taken = &m->taken[phase % 2];
    uint64_t seen = atomic_load_explicit(taken, memory_order_relaxed);
    for (;;) {
        uint32_t front = (uint32_t)seen, back = (uint32_t)(seen >> 32), left = size - front - back;
        if (left == 0) return false;
        uint32_t n = all ? left : own ? PART_OF_OWN(left) : PART_OF_OTHERS(left);
        uint64_t then = seen + (own ? n : (uint64_t)n << 32);
        if (!atomic_compare_exchange_weak_explicit(taken, &seen, then, memory_order_relaxed,
                                                   memory_order_relaxed))
            continue;
        *ret_at = own ? front : size - back - n;
        *ret_n = n;
        return true;
    }
}

bool pool_claim(struct pool *p, uint32_t total, uint32_t *ret_a, uint32_t *ret_b)
{
    const struct member *me = self;
    const unsigned n = p->n_active, look = n - 1 < NEIGHBOURS ? n - 1 : NEIGHBOURS;
    for (unsigned i = 0; i <= look; i++) {
        unsigned whose = (me->idx + i) % n;
        uint32_t first = (uint32_t)((uint64_t)total * whose / n), at, got;
        uint32_t size = (uint32_t)((uint64_t)total * (whose + 1) / n) - first;
        if (!take_part(&p->members[whose], me->phase, size, i == 0, n == 1, &at, &got)) continue;
        *ret_a = first + at;
        *ret_b = first + at + got;
        return true;
    }
    return false;
}

/* ---- jobs ---- */

static uint64_t computed_ns(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return 0;
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* A thread's time in a job is what it computed, what it slept, and what it lacked a core: other
 * processes had it. */
static void count_away(struct member *m, uint64_t job_ns, uint64_t cpu_ns)
{
    uint64_t away = m->late_ns, known = cpu_ns + m->slept_ns;
    if (job_ns > known) away += job_ns - known;
    m->slept_ns = m->late_ns = 0;
    if (away) atomic_fetch_add_explicit(&m->pool->away_ns, away, memory_order_relaxed);
    if (m->idx == 0) m->pool->job_ns += job_ns;
}

static void run_job(struct member *m)
{
    struct pool *p = m->pool;
    self = m;
    m->phase = 0;
    fm_set_rounding();
    if (m->pinned != p->pinned) {
        m->pinned = p->pinned;
        if (m->pinned)
            cores_stay_on(m->idx);
        else
            cores_roam();
    }
    uint64_t start = clock_ns(), cpu = computed_ns();
    p->fn(p->arg, m->idx, p->n_active);
    pool_barrier(p);
    count_away(m, clock_ns() - start, computed_ns() - cpu);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct pool *p = m->pool;
    cores_roam(); /* the thread that opened the pool may be pinned */
    for (unsigned seen = 0;;) {
        (void)word_wait(&p->job, seen, POOL_IDLE_SPIN_NS);
        seen = atomic_load_explicit(&p->job.value, memory_order_acquire);
        unsigned n = seen & ((1u << PART_BITS) - 1);
        if (n == 0) return NULL;
        if (m->idx < n) run_job(m);
    }
}

static void start_job(struct pool *p, unsigned n)
{
    unsigned count = atomic_load_explicit(&p->job.value, memory_order_relaxed) >> PART_BITS;
    word_set(&p->job, (count + 1) << PART_BITS | n);
}

static bool crowded(struct pool *p)
{
    if (p->job_ns < POOL_LOOK_NS) return false;
    uint64_t away = atomic_exchange_explicit(&p->away_ns, 0, memory_order_relaxed);
    bool lost = away > p->job_ns / 100 * LOST_SHARE_PERCENT;
    p->job_ns = 0;
    return lost;
}

/* Where threads lack cores, half as many do the next jobs, on any core. After a pause in which none
 * did, twice as many; the whole team is pinned again. The pause doubles when the larger team lacked
 * cores at once. */
static void size_team(struct pool *p)
{
    if (crowded(p)) {
        uint64_t now = clock_ns();
        bool at_once = p->grown_ns && now - p->grown_ns < POOL_PAUSE_NS;
        p->pause_ns = at_once ? p->pause_ns * 2 : POOL_PAUSE_NS;
        if (p->pause_ns > POOL_PAUSE_MOST_NS) p->pause_ns = POOL_PAUSE_MOST_NS;
        p->n_shrunk++;
        p->n_active = (p->n_active + 1) / 2;
        p->pinned = false;
        p->grow_ns = now + p->pause_ns;
    } else if (p->n_active < p->n_threads && clock_ns() >= p->grow_ns) {
        p->grown_ns = clock_ns();
        p->n_active = p->n_active * 2 < p->n_threads ? p->n_active * 2 : p->n_threads;
        p->pinned = p->claimed && p->n_active == p->n_threads;
        p->grow_ns = p->grown_ns + p->pause_ns;
    }
}

void pool_run(struct pool *p, pool_fn fn, void *arg)
{
    p->fn = fn;
    p->arg = arg;
    size_team(p);
    for (unsigned i = 0; i < p->n_active; i++)
        for (int k = 0; k < 2; k++)
            atomic_store_explicit(&p->members[i].taken[k], 0, memory_order_relaxed);
    if (p->n_active > 1) start_job(p, p->n_active);
    run_job(&p->members[0]);
}

/* ---- opening ---- */

int pool_open(unsigned n_threads, struct pool **ret_pool, struct errmsg *em)
{
    if (n_threads == 0 || n_threads > POOL_THREADS_MAX)
        return err_set(em, ERR_RANGE, "threads: %u is not in 1..%d", n_threads, POOL_THREADS_MAX);
    struct pool *p = NULL;
    struct member *members = NULL;
    if (posix_memalign((void **)&p, 64, sizeof *p) != 0 ||
        posix_memalign((void **)&members, 64, n_threads * sizeof *members) != 0) {
        free(p);
        return err_set(em, ERR_NOMEM, "thread pool");
    }
    *p = (struct pool){.n_threads = n_threads, .n_active = n_threads, .members = members};
    p->claimed = n_threads > 1 && n_threads == cores_count() && cores_claim();
    p->pinned = p->claimed;
    p->threads = mem_zalloc(n_threads * sizeof *p->threads);
    for (unsigned i = 0; i < n_threads; i++)
        members[i] = (struct member){.pool = p, .idx = i, .spin_ns = POOL_SPIN_NS};
    for (unsigned i = 1; i < n_threads; i++) {
        int rc = pthread_create(&p->threads[i], NULL, member_main, &p->members[i]);
        if (rc == 0) continue;
        p->n_threads = i;
        pool_close(p);
        return err_set(em, ERR_AGAIN, "cannot start thread %u of %u: %s", i, n_threads,
                       strerror(rc));
    }
    *ret_pool = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p) return;
    if (p->n_threads > 1) start_job(p, 0);
    for (unsigned i = 1; i < p->n_threads; i++) (void)pthread_join(p->threads[i], NULL);
    if (p->members[0].pinned) cores_roam();
    if (p->claimed) cores_release();
    if (self == &p->members[0]) self = NULL;
    mem_free(p->threads);
    free(p->members);
    free(p);
}

struct pool_waits pool_waits(const struct pool *p)
{
    struct pool_waits all = {.shrunk = p->n_shrunk, .active = p->n_active, .pinned = p->pinned};
    for (unsigned i = 0; i < p->n_threads; i++) {
        all.spun += atomic_load_explicit(&p->members[i].spun, memory_order_relaxed);
        all.slept += atomic_load_explicit(&p->members[i].slept, memory_order_relaxed);
        all.looks += atomic_load_explicit(&p->members[i].looks, memory_order_relaxed);
    }
    return all;
}

unsigned pool_cores(void)
{
    unsigned n = machine_threads("", cores_count());
    return n < POOL_THREADS_MAX ? n : POOL_THREADS_MAX;
}
