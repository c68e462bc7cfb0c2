/* What everything stands on (common/base): errors, memory, maps, random numbers, threads, figures,
 * options and UTF-8. Processes and logs are system_test.c's. */
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/check.h"
#include "common/base/cores.h"
#include "common/base/cursor.h"
#include "common/base/err.h"
#include "common/base/fmath.h"
#include "common/base/hash.h"
#include "common/base/insn.h"
#include "common/base/mem.h"
#include "common/base/opts.h"
#include "common/base/pool.h"
#include "common/base/rng.h"
#include "common/base/sampling.h"
#include "common/base/stats.h"
#include "common/base/utf8.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_err(void **state)
{
    (void)state;
    struct errmsg em;
    assert_int_equal(err_set(&em, ERR_FORMAT, "key '%s'", "a"), ERR_FORMAT);
    assert_int_equal(err_wrap(&em, ERR_IO, "file %d", 7), ERR_IO);
    assert_string_equal(em.text, "file 7: key 'a'");
    assert_string_equal(err_text(ERR_LIMIT), "limit exceeded");
    assert_int_equal(err_set(NULL, ERR_IO, "nobody reads this"), ERR_IO);
}

/* Whatever is in it, and wherever a limit cuts it. */
static void test_err_is_utf8(void **state)
{
    (void)state;
    struct errmsg em;
    char euros[3 * sizeof em.text];
    size_t n = 0;
    (void)err_set(&em, ERR_IO, "a\tb\x7f \xc3\xa9 \xc2\x85 \xff \xc3 \xed\xa0\x80 %.2s",
                  "\xe2\x82\xac");
    assert_string_equal(em.text, "a?b? \xc3\xa9 ?? ? ? ??? ??");
    while (n + 3 < sizeof euros) {
        memcpy(euros + n, "\xe2\x82\xac", 4);
        n += 3;
    }
    for (int before = 0; before < 3; before++) {
        (void)err_set(&em, ERR_IO, "%.*s%s", before, "xx", euros);
        assert_int_equal(strlen(em.text), sizeof em.text - 1);
        (void)err_wrap(&em, ERR_IO, "y");
        for (size_t i = 0, len; i < strlen(em.text); i += len) {
            len = utf8_char(em.text + i, strlen(em.text) - i, NULL);
            assert_true(len > 0);
        }
    }
}

static void test_cursor(void **state)
{
    (void)state;
    const uint8_t data[] = {1, 2, 3, 4, 5};
    struct cursor c = {.data = data, .size = sizeof data};
    assert_int_equal(cursor_u32(&c), 0x04030201);
    assert_null(cursor_take(&c, UINT64_MAX)); /* position + n would wrap */
    assert_true(c.bad);
    assert_int_equal(cursor_u8(&c), 0); /* stays bad */
}

static void test_arena(void **state)
{
    (void)state;
    struct arena a = {.budget = 100000};
    void *first = arena_alloc(&a, 10);
    assert_non_null(first);
    assert_non_null(arena_alloc(&a, 90000));
    assert_null(arena_alloc(&a, 9991)); /* one byte above the budget */
    assert_non_null(arena_alloc(&a, 9990));
    assert_null(arena_alloc(&a, SIZE_MAX));
    arena_reset(&a);
    assert_non_null(arena_alloc(&a, 90000)); /* in one chunk, into which the others were merged */
    arena_reset(&a);
    first = arena_alloc(&a, 10);
    assert_non_null(arena_alloc(&a, 90000));
    arena_reset(&a);
    assert_ptr_equal(arena_alloc(&a, 10), first); /* which stays */
    /* Messages that grow do not pile up chunks of every size. */
    a.budget = (size_t)64 << 20;
    for (size_t n = 1000; n < 20000000; n += 77777) {
        arena_reset(&a);
        assert_non_null(arena_alloc(&a, n));
    }
    arena_close(&a);
}

static void test_buf(void **state)
{
    (void)state;
    struct buf b = {.max = 8};
    assert_int_equal(buf_append(&b, "abcdef", 6), 0);
    assert_int_equal(buf_append(&b, "ghi", 3), ERR_LIMIT);
    assert_string_equal(b.data, "abcdef");
    buf_drop(&b, 4);
    assert_string_equal(b.data, "ef");
    char to[4];
    size_t at = 0;
    assert_int_equal(buf_append(&b, "ghi", 3), 0);
    assert_int_equal(buf_take(&b, &at, to, 4), 4);
    assert_memory_equal(to, "efgh", 4);
    assert_int_equal(b.len - at, 1);
    assert_int_equal(buf_take(&b, &at, to, 4), 1);
    assert_true(to[0] == 'i' && at == 0 && !b.data && !b.len);
    assert_int_equal(buf_take(&b, &at, to, 4), 0);
    buf_close(&b);
}

/* Against a plain array, with many collisions and removals. */
static void test_imap(void **state)
{
    (void)state;
    struct imap m = {0};
    struct rng rng = {7};
    static int32_t want[500];
    memset(want, 0xff, sizeof want);
    for (int i = 0; i < 200000; i++) {
        uint32_t key = (uint32_t)rng_below(&rng, 500), value = (uint32_t)rng_below(&rng, 1000);
        if (rng_below(&rng, 2)) {
            imap_put(&m, key, value);
            want[key] = (int32_t)value;
        } else {
            imap_remove(&m, key);
            want[key] = -1;
        }
        key = (uint32_t)rng_below(&rng, 500);
        const uint32_t *got = imap_get(&m, key);
        assert_int_equal(got ? (int32_t)*got : -1, want[key]);
    }
    imap_close(&m);
}

static void test_smap(void **state)
{
    (void)state;
    struct smap m = {0};
    static char keys[3000][8];
    for (uint32_t i = 0; i < 3000; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "k%u", i);
        assert_true(smap_put(&m, keys[i], strlen(keys[i]), i));
    }
    assert_false(smap_put(&m, "k17", 3, 1)); /* the first value stays */
    assert_int_equal(*smap_get(&m, "k17", 3), 17);
    assert_null(smap_get(&m, "k17", 2 + 5));
    smap_close(&m);
}

/* Room for as many keys as a file says: an error where there is none; the entries stay. */
static void test_reserve(void **state)
{
    (void)state;
    static char keys[1000][8];
    struct imap m = {0};
    struct smap s = {0};
    imap_put(&m, 5, 50);
    assert_true(smap_put(&s, "five", 4, 50));
    assert_int_equal(imap_reserve(&m, SIZE_MAX / 2), ERR_NOMEM);
    assert_int_equal(smap_reserve(&s, SIZE_MAX / 2), ERR_NOMEM);
    assert_int_equal(imap_reserve(&m, 1001), 0);
    assert_int_equal(smap_reserve(&s, 1001), 0);
    mem_guard_begin(); /* from here on nothing is allocated */
    for (uint32_t i = 0; i < 1000; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "k%u", i);
        imap_put(&m, 100 + i, i);
        assert_true(smap_put(&s, keys[i], strlen(keys[i]), i));
    }
    assert_int_equal(*imap_get(&m, 5), 50);
    assert_int_equal(*smap_get(&s, "five", 4), 50);
    imap_clear(&m);
    assert_null(imap_get(&m, 5));
    imap_put(&m, 5, 51);
    mem_guard_end();
    assert_int_equal(*imap_get(&m, 5), 51);
    imap_close(&m);
    smap_close(&s);
}

static long faults(void)
{
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    return u.ru_minflt;
}

/* Sanitizers have heaps of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_HEAP false
#elif defined(__has_feature)
#define OWN_HEAP (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define OWN_HEAP true
#endif

/* What is allocated after mem_warm has been touched. */
static void test_warm(void **state)
{
    (void)state;
    enum { ROUNDS = 20, N = 50, EACH = 1000 }; /* more than a heap has at hand */
    static void *p[ROUNDS][N];
    for (int round = 0; round < ROUNDS; round++) {
        mem_warm();
        long before = faults();
        for (int i = 0; i < N; i++) p[round][i] = memset(mem_alloc(EACH), round, EACH);
        if (OWN_HEAP) assert_in_range(faults() - before, 0, 2);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < N; i++) mem_free(p[round][i]);
}

/* Known answers of the authors' own test suite (Random123, kat_vectors). */
static void test_philox(void **state)
{
    (void)state;
    struct philox r = philox(0, 0, 0, 0, 0);
    const uint32_t zeros[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    assert_memory_equal(r.v, zeros, sizeof zeros);
    r = philox(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    const uint32_t ones[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    assert_memory_equal(r.v, ones, sizeof ones);
}

static void test_fmath(void **state)
{
    (void)state;
    double worst_exp = 0, worst_log = 0;
    for (double x = -86.9; x < 87.9; x += 0.0137) {
        float f = (float)x;
        double e = fabs((double)fm_exp(f) / exp((double)f) - 1.0);
        if (e > worst_exp) worst_exp = e;
        float y = fm_exp(f);
        double want = log((double)y), err = fabs((double)fm_log(y) - want);
        if (fabs(want) > 1e-3 && err / fabs(want) > worst_log) worst_log = err / fabs(want);
    }
    assert_true(worst_exp < 1.3e-7 && worst_log < 1.3e-7);
    assert_int_equal(fm_bits(fm_exp(0.0f)), fm_bits(1.0f));
    assert_int_equal(fm_bits(fm_exp(-87.5f)), 0);
    assert_true(isnan(fm_exp(NAN)) && isnan(fm_log(-1.0f)));
    assert_true(fm_log(0.0f) == -INFINITY);
}

/* Many at once, with and without the CPU's instructions, are what each is alone. */
static void test_exp_each(void **state)
{
    (void)state;
    enum { MOST = 67 };
    float x[MOST], y[MOST];
    struct rng r = {4};
    for (uint32_t n = 0; n <= MOST; n++) {
        float shift = (float)n * 3.7f;
        for (uint32_t i = 0; i < n; i++)
            x[i] = shift + (float)rng_below(&r, 200000) / 1000.0f - 100.0f;
        if (n > 3) x[n - 3] = NAN;
        memcpy(y, x, sizeof y);
        fm_exp_each(y, shift, n, y);
        for (uint32_t i = 0; i < n; i++)
            assert_true(isnan(x[i]) ? isnan(y[i]) : fm_bits(y[i]) == fm_bits(fm_exp(x[i] - shift)));
    }
}

struct team {
    struct pool *pool;
    atomic_int arrived, wrong;
};

static void team_work(void *arg, unsigned idx, unsigned n)
{
    struct team *t = arg;
    (void)idx;
    for (int round = 1; round <= 200; round++) {
        atomic_fetch_add(&t->arrived, 1);
        pool_barrier(t->pool);
        if (atomic_load(&t->arrived) != round * (int)n) atomic_fetch_add(&t->wrong, 1);
        pool_barrier(t->pool);
    }
}

static void test_pool(void **state)
{
    (void)state;
    struct errmsg em;
    for (unsigned n = 1; n <= 5; n++) {
        struct team t = {0};
        assert_int_equal(pool_open(n, &t.pool, &em), 0);
        for (int i = 0; i < 20; i++) {
            atomic_store(&t.arrived, 0);
            pool_run(t.pool, team_work, &t);
            assert_int_equal(atomic_load(&t.wrong), 0);
        }
        pool_close(t.pool);
    }
    struct pool *p;
    assert_int_equal(pool_open(0, &p, &em), ERR_RANGE);
    assert_int_equal(pool_open(POOL_THREADS_MAX + 1, &p, &em), ERR_RANGE);
}

#define ITEMS_MOST 1000u

struct claims {
    struct pool *pool;
    atomic_uint taken[ITEMS_MOST], wrong, by_others;
    atomic_uint last;        /* items of the job's last total, behind which no barrier lies */
    atomic_uint begun, done; /* of test_pool_claims_of_the_slow */
    uint32_t of_slow;
};

/* Items of several totals in turn, some of them fewer than there are threads. */
static void claim_all(void *arg, unsigned idx, unsigned n)
{
    static const uint32_t totals[] = {ITEMS_MOST, 0, 1, 3, 17, 2, 400, 5};
    struct claims *c = arg;
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t total = totals[round % (sizeof totals / sizeof totals[0])], a, b;
        while (pool_claim(c->pool, total, &a, &b)) {
            if (a >= b || b > total) atomic_fetch_add(&c->wrong, 1);
            for (uint32_t i = a; i < b && i < ITEMS_MOST; i++) {
                atomic_fetch_add(&c->taken[i], 1);
                bool own = i >= (uint64_t)total * idx / n && i < (uint64_t)total * (idx + 1) / n;
                atomic_fetch_add(&c->by_others, !own);
            }
            for (uint32_t k = 0; k < (idx + round) % 3 * 2000; k++) insn_pause();
        }
        pool_barrier(c->pool);
        for (uint32_t i = idx; i < ITEMS_MOST; i += n)
            if (atomic_exchange(&c->taken[i], 0) != (i < total)) atomic_fetch_add(&c->wrong, 1);
        if (round % 3 == 0) pool_barrier(c->pool); /* phases without items, too */
        pool_barrier(c->pool);
    }
    uint32_t a, b;
    while (pool_claim(c->pool, 100, &a, &b)) atomic_fetch_add(&c->last, b - a);
}

/* Each item is taken once, whatever the threads' speeds, job after job. */
static void test_pool_claims(void **state)
{
    (void)state;
    struct errmsg em;
    static struct claims c;
    for (unsigned n = 1; n <= 5; n++) {
        assert_int_equal(pool_open(n, &c.pool, &em), 0);
        for (int i = 0; i < 10; i++) {
            pool_run(c.pool, claim_all, &c);
            assert_int_equal(atomic_load(&c.wrong), 0);
            assert_int_equal(atomic_exchange(&c.last, 0), 100);
        }
        pool_close(c.pool);
        if (n == 1) assert_int_equal(atomic_load(&c.by_others), 0);
    }
    assert_true(atomic_load(&c.by_others) > 0);
}

/* The first thread takes a part and does nothing more until the other one has done what it can. */
static void claim_slowly(void *arg, unsigned idx, unsigned n)
{
    struct claims *c = arg;
    uint32_t a, b;
    assert_int_equal(n, 2);
    if (idx == 0) {
        assert_true(pool_claim(c->pool, 100, &a, &b));
        c->of_slow = b - a;
        assert_int_equal(a, 0);
        atomic_store(&c->begun, 1);
        while (!atomic_load(&c->done)) insn_pause();
        assert_false(pool_claim(c->pool, 100, &a, &b));
        return;
    }
    while (!atomic_load(&c->begun)) insn_pause();
    while (pool_claim(c->pool, 100, &a, &b)) atomic_fetch_add(&c->by_others, b - a);
    atomic_store(&c->done, 1);
}

/* What a thread has not begun is done by others: it does not hold them up. */
static void test_pool_claims_of_the_slow(void **state)
{
    (void)state;
    struct errmsg em;
    static struct claims c;
    assert_int_equal(pool_open(2, &c.pool, &em), 0);
    pool_run(c.pool, claim_slowly, &c);
    assert_int_equal(c.of_slow, 38); /* of 50, three quarters */
    assert_int_equal(atomic_load(&c.by_others), 62);
    pool_close(c.pool);
}

/* How many cores each thread may use, and the last one it ran on. */
struct seen_cores {
    int cores[POOL_THREADS_MAX], ran_on[POOL_THREADS_MAX];
};

static void see_cores(void *arg, unsigned idx, unsigned n)
{
    struct seen_cores *s = arg;
    cpu_set_t set;
    (void)n;
    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof set, &set), 0);
    s->cores[idx] = CPU_COUNT(&set);
    s->ran_on[idx] = sched_getcpu();
}

/* A pool with a thread for each core is pinned; a second pool, opened by a pinned thread, is not;
 * and when the pinned one is closed its owner may use all cores again. */
static void test_pool_cores(void **state)
{
    (void)state;
    struct errmsg em;
    struct pool *full, *other;
    struct seen_cores s;
    unsigned n = cores_count();
    if (n < 2) skip();
    assert_int_equal(pool_open(n, &full, &em), 0);
    if (!pool_waits(full).pinned) { /* another process of this machine has claimed the cores */
        pool_close(full);
        skip();
    }
    assert_int_equal(pool_open(n + 1, &other, &em), 0);
    pool_wake(full);
    pool_run(full, see_cores, &s);
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(s.cores[i], 1);
        assert_int_equal(s.ran_on[i], cores_number(i));
    }
    pool_wake(other);
    pool_run(other, see_cores, &s);
    for (unsigned i = 1; i <= n; i++) assert_int_equal(s.cores[i], n);
    assert_int_equal(cores_count(), n);
    pool_close(full);
    pool_run(other, see_cores, &s);
    assert_int_equal(s.cores[0], n);
    pool_close(other);
}

#define SECOND_NS UINT64_C(1000000000)

/* Durations that several threads recorded, each in its own place, read together as if one thread
 * had recorded them all. */
static void test_stats_of_threads(void **state)
{
    (void)state;
    struct rng rng = {9};
    static struct stats own[6], one;
    struct stats_view all, want;
    for (int i = 0; i < 5000; i++) {
        uint64_t ns = rng_u64(&rng) >> (24 + rng_below(&rng, 36));
        stats_record(&one, ns);
        stats_record_own(&own[2 * rng_below(&rng, 3)], ns); /* every second is another kind's */
    }
    stats_record_own(&own[1], 1);
    stats_read(&one, &want);
    stats_read_all(own, 3, 2, &all);
    assert_memory_equal(all.buckets, want.buckets, sizeof want.buckets);
    assert_true(all.count == want.count && all.sum_ns == want.sum_ns);
    assert_true(all.min_ns == want.min_ns && all.max_ns == want.max_ns);
    assert_true(fabs(all.sd_ns - want.sd_ns) <= 1e-6 * want.sd_ns);
    stats_read_all(&own[3], 1, 1, &all);
    assert_true(all.count == 0 && all.min_ns == 0 && all.max_ns == 0);
}

/* A value is in the first bucket whose bound it does not exceed. */
static void test_stats_buckets(void **state)
{
    (void)state;
    struct rng rng = {9};
    assert_int_equal(stats_le(0), 0);
    assert_true(stats_le(STATS_BUCKETS - 1) == UINT64_MAX);
    for (uint32_t i = 1; i < STATS_BUCKETS; i++) assert_true(stats_le(i) > stats_le(i - 1));
    for (int round = 0; round < 20000; round++) {
        uint64_t ns = rng_u64(&rng) >> rng_below(&rng, 64);
        if (round % 3 == 0) ns = stats_le((uint32_t)rng_below(&rng, STATS_BUCKETS - 1));
        struct stats s = {0};
        struct stats_view v;
        stats_record(&s, ns);
        stats_read(&s, &v);
        uint32_t at = 0;
        while (v.buckets[at] == 0) at++;
        assert_true(ns <= stats_le(at) && (at == 0 || ns > stats_le(at - 1)));
        assert_true(v.count == 1 && v.sum_ns == ns && v.min_ns == ns && v.max_ns == ns);
        assert_true(stats_quantile(&v, 0.99) == ns || stats_le(at) < ns * 17 / 16 + 2);
    }
}

static void test_stats_figures(void **state)
{
    (void)state;
    static struct stats s, none, far, spread;
    struct stats_view v;
    for (int i = 0; i < 100; i++) stats_record(&s, SECOND_NS);
    stats_read(&s, &v);
    assert_true(v.count == 100 && v.sum_ns == 100 * SECOND_NS && v.sd_ns >= 0);
    assert_true(fabs((double)stats_quantile(&v, 0.99) / (double)SECOND_NS - 1) < 0.1);
    stats_read(&none, &v);
    assert_true(v.count == 0 && v.sum_ns == 0 && v.min_ns == 0 && v.max_ns == 0 && v.sd_ns == 0);
    assert_int_equal(stats_quantile(&v, 0.5), 0);
    for (uint64_t i = 0; i < 1000; i++) stats_record(&far, 1000000 * SECOND_NS + i); /* 1e9 us */
    stats_read(&far, &v);
    assert_true(isfinite(v.sd_ns) && v.sd_ns >= 0 && v.min_ns == 1000000 * SECOND_NS);
    for (uint64_t i = 1; i <= 1000; i++) stats_record(&spread, i * 1000);
    stats_read(&spread, &v);
    assert_true(fabs(v.sd_ns / 288675.0 - 1) < 0.01);
    assert_true(stats_quantile(&v, 0.5) >= 500000 && stats_quantile(&v, 0.5) <= 540000);
}

struct recorders {
    struct stats stats;
    atomic_int left;
};

static void record_many(void *arg, unsigned idx, unsigned n)
{
    struct recorders *r = arg;
    struct stats_view v;
    for (uint64_t i = 0; i < 1000000 && idx; i++) stats_record(&r->stats, 1 + i % 1000);
    if (idx) atomic_fetch_sub(&r->left, 1);
    uint64_t last = 0;
    while (idx == 0 && atomic_load(&r->left)) { /* a scrape under load */
        stats_read(&r->stats, &v);
        assert_true(v.count >= last && v.count <= (uint64_t)(n - 1) * 1000000);
        last = v.count;
    }
}

static void test_stats_threads(void **state)
{
    (void)state;
    static struct recorders r;
    struct errmsg em;
    struct pool *pool;
    struct stats_view v;
    atomic_store(&r.left, 8);
    assert_int_equal(pool_open(9, &pool, &em), 0);
    pool_run(pool, record_many, &r);
    pool_close(pool);
    stats_read(&r.stats, &v);
    assert_true(v.count == 8000000 && v.sum_ns == 8 * UINT64_C(500500000));
    assert_true(v.min_ns == 1 && v.max_ns == 1000);
}

static void test_opts(void **state)
{
    (void)state;
    uint32_t n = 1;
    uint64_t seed = 0;
    float t = 0;
    bool flag = false;
    struct opt_list list = {.n = 0};
    const struct opt table[] = {{"--tokens", 'n', OPT_U32, &n, 1, 10, NULL, ""},
                                {"--temp", 0, OPT_F32, &t, 0, 2, NULL, ""},
                                {"--flag", 0, OPT_FLAG, &flag, 0, 0, NULL, ""},
                                {"--stop", 0, OPT_LIST, &list, 0, 0, NULL, ""},
                                {"--seed", 0, OPT_U64, &seed, 0, 0, NULL, ""},
                                {0}};
    const struct opts_usage usage = {.line = "x", .examples = ""};
    struct errmsg em;
    size_t rest;
    char *good[] = {"x", "-n", "7", "--temp=0.5", "--flag", "--stop", "a", "--stop", "b"};
    assert_int_equal(opts_parse(&usage, table, 9, good, NULL, 0, &rest, &em), 0);
    assert_true(n == 7 && t == 0.5f && flag && list.n == 2);
    char *most[] = {"x", "--seed", "18446744073709551615"};
    assert_int_equal(opts_parse(&usage, table, 3, most, NULL, 0, &rest, &em), 0);
    assert_true(seed == UINT64_MAX);
    char *bad[][3] = {{"x", "--tokens", "11"},
                      {"x", "--tokens", "0x5"},
                      {"x", "--tokens", "-1"},
                      {"x", "--temp", "nan"},
                      {"x", "--nope", "1"},
                      {"x", "--flag=1", "y"},
                      {"x", "--seed", "18446744073709551616"}};
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(opts_parse(&usage, table, 3, bad[i], NULL, 0, &rest, &em), ERR_CONF);
        assert_non_null(strstr(em.text, "--"));
    }
}

/* Help is made from the table that the options are read by, and is printed where it is asked for.
 */
static void test_help(void **state)
{
    (void)state;
    uint32_t n = 1;
    const struct opt table[] = {{"--tokens", 'n', OPT_U32, &n, 1, 10, NULL, "N  how many"},
                                {"--json", 0, OPT_FLAG, NULL, 0, 0, NULL, "one document"},
                                {0}};
    const struct opts_usage usage = {
        .line = "x [options]", .does = "Does it.", .examples = "  x -n 3\n"};
    char *words[][3] = {{"x", "--help", NULL}, {"x", "-n2", "-h"}, {"x", "--tokens=2", "-h"}};
    struct errmsg em;
    size_t rest;
    char text[1024];
    FILE *kept = stdout, *f = fmemopen(text, sizeof text, "w");
    assert_non_null(f);
    stdout = f;
    int rc = opts_parse(&usage, table, 2, words[0], NULL, 0, &rest, &em);
    (void)fflush(f);
    (void)opts_parse(&usage, table, 3, words[2], NULL, 0, &rest, &em);
    stdout = kept;
    (void)fclose(f);
    assert_int_equal(rc, ERR_CANCELLED);
    assert_int_equal(n, 2);
    static const char want[] = "usage: x [options]\n\nDoes it.\n\noptions:\n"
                               "  -n, --tokens       N  how many\n"
                               "      --json         one document\n"
                               "  -h, --help         this text\n"
                               "\nexamples:\n  x -n 3\n";
    assert_int_equal(strncmp(text, want, strlen(want)), 0);
    assert_int_equal(strncmp(text + strlen(want), want, strlen(want)), 0);
    assert_int_equal(opts_parse(&usage, table, 3, words[1], NULL, 0, &rest, &em), ERR_CONF);
}

/* Runs CHECK(pages > least) in a process of its own: its wait status, and what it wrote to stderr.
 */
static int run_check(int pages, int least, char *ret_text, size_t size)
{
    int pipe_fd[2], status;
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(pipe_fd[1], STDERR_FILENO);
        CHECK(pages > least);
        _exit(0);
    }
    (void)close(pipe_fd[1]);
    size_t n = 0;
    for (ssize_t got; n < size - 1 && (got = read(pipe_fd[0], ret_text + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    ret_text[n] = 0;
    (void)close(pipe_fd[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_check(void **state)
{
    (void)state;
    char text[8192];
    int status = run_check(1, 0, text, sizeof text);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_string_equal(text, "");
    status = run_check(0, 0, text, sizeof text);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "base_test.c:"));
    assert_non_null(strstr(text, "run_check: CHECK(pages > least) failed\n"));
    assert_non_null(strstr(strchr(text, '\n') + 1, "base_test")); /* a frame of the trace */
}

/* A code point by the definition; returns its bytes. */
static size_t encode_utf8(int32_t c, char *ret)
{
    size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len; --i > 0; c >>= 6) ret[i] = (char)(0x80 | (c & 0x3f));
    ret[0] = (char)(first[len] | c);
    return len;
}

/* Each code point but the surrogates is whole with its last byte, and unfinished before it. */
static void test_utf8_characters(void **state)
{
    (void)state;
    for (int32_t c = 0, got; c < 0x110000; c++) {
        char s[4];
        size_t len = encode_utf8(c, s), n;
        if (c >= 0xd800 && c < 0xe000) {
            assert_int_equal(utf8_decode(s, len, &n, &got), UTF8_BROKEN);
            continue;
        }
        assert_int_equal(utf8_char(s, len, &got), len);
        assert_int_equal(got, c);
        for (size_t cut = 1; cut < len; cut++) {
            assert_int_equal(utf8_decode(s, cut, &n, &got), UTF8_UNFINISHED);
            assert_int_equal(n, cut);
        }
    }
    assert_int_equal(utf8_char("x", 0, NULL), 0);
}

/* No other bytes are a character: of all byte strings of a length, as many are whole as there are
 * code points of that length. */
static void test_utf8_nothing_else(void **state)
{
    (void)state;
    uint32_t n_whole[5] = {0};
    size_t len;
    int32_t c;
    for (uint32_t i = 0; i < 1u << 24; i++) {
        const char s[] = {(char)(i >> 16), (char)(i >> 8), (char)i};
        if (utf8_decode(s, 3, &len, &c) == UTF8_WHOLE && (len == 3 || !(i & 0xff))) n_whole[len]++;
    }
    assert_int_equal(n_whole[1], 128 * 256);
    assert_int_equal(n_whole[2], 0x800 - 0x80);
    assert_int_equal(n_whole[3], 0x10000 - 0x800 - 0x800); /* without surrogates */
    static const uint8_t some[] = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
    for (uint32_t i = 0; i < 1u << 16; i++)
        for (size_t k = 0; k < 36; k++) {
            const char s[] = {(char)(i >> 8), (char)i, (char)some[k / 6], (char)some[k % 6]};
            n_whole[4] += utf8_decode(s, 4, &len, &c) == UTF8_WHOLE && len == 4;
        }
    assert_int_equal(n_whole[4], (0x110 - 0x10) * 4);
}

/* Every limit, from both sides; what is refused names its field. */
static void test_sampling_limits(void **state)
{
    (void)state;
    static const int32_t ids[SAMPLING_BIASES_MAX + 1] = {7}, negative[] = {-1};
    static const float zeros[SAMPLING_BIASES_MAX + 1] = {0}, most[] = {100}, more[] = {100.1f},
                                                   no_number[] = {NAN};
    const struct {
        const char *field; /* NULL: it is right */
        struct sampling s;
    } cases[] = {
        {NULL, SAMPLING_PLAIN},
        {NULL, {.temp = 3e38f, .repetition = 10, .presence = -2, .frequency = 2, .min_p = 1}},
        {NULL, {.repetition = 0.01f, .top_logprobs = 20, .top_k = UINT32_MAX}},
        {NULL, {.repetition = 1, .n_bias = 1, .bias_ids = ids, .bias = most}},
        {NULL, {.repetition = 1, .n_bias = SAMPLING_BIASES_MAX, .bias_ids = ids, .bias = zeros}},
        {"'temp'", {.repetition = 1, .temp = -0.1f}},
        {"'temp'", {.repetition = 1, .temp = INFINITY}},
        {"'top_p'", {.repetition = 1, .top_p = 1.1f}},
        {"'top_p'", {.repetition = 1, .top_p = NAN}},
        {"'min_p' is not in 0..1", {.repetition = 1, .min_p = -0.1f}},
        {"'repetition_penalty' is not in 0.01..10", {.repetition = 0}},
        {"'repetition_penalty'", {.repetition = 10.1f}},
        {"'presence_penalty' is not in -2..2", {.repetition = 1, .presence = 2.1f}},
        {"'frequency_penalty'", {.repetition = 1, .frequency = -2.1f}},
        {"'top_logprobs' is 21, the limit is 20", {.repetition = 1, .top_logprobs = 21}},
        {"'logit_bias': token 7 or its value is not in -100..100",
         {.repetition = 1, .n_bias = 1, .bias_ids = ids, .bias = more}},
        {"'logit_bias'", {.repetition = 1, .n_bias = 1, .bias_ids = ids, .bias = no_number}},
        {"'logit_bias'", {.repetition = 1, .n_bias = 1, .bias_ids = negative, .bias = zeros}},
        {"'logit_bias' has 301 tokens, the limit is 300",
         {.repetition = 1, .n_bias = SAMPLING_BIASES_MAX + 1, .bias_ids = ids, .bias = zeros}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct errmsg em = {0};
        int rc = sampling_check(&cases[i].s, &em);
        assert_int_equal(rc, cases[i].field ? ERR_RANGE : 0);
        if (rc < 0 && !strstr(em.text, cases[i].field))
            fail_msg("'%s' does not say %s", em.text, cases[i].field);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err),
        cmocka_unit_test(test_err_is_utf8),
        cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_imap),
        cmocka_unit_test(test_smap),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_warm),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_fmath),
        cmocka_unit_test(test_exp_each),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_pool_claims),
        cmocka_unit_test(test_pool_claims_of_the_slow),
        cmocka_unit_test(test_pool_cores),
        cmocka_unit_test(test_stats_buckets),
        cmocka_unit_test(test_stats_of_threads),
        cmocka_unit_test(test_stats_figures),
        cmocka_unit_test(test_stats_threads),
        cmocka_unit_test(test_opts),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_sampling_limits),
        cmocka_unit_test(test_utf8_characters),
        cmocka_unit_test(test_utf8_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
