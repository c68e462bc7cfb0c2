/* Which job runs next, and how many may wait. A job keeps its thread until the test lets it
 * through. */
#include "coordinator/offload.h"

#include "common/base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define JOBS_MAX 1024u
#define BYTES_MAX ((size_t)64 << 20)
#define SHARE 4u
#define SHORT_BYTES ((size_t)64 << 10)

#define WAIT_S 30 /* far beyond what a thread needs, below the test's time-out */

/* By the name of a job. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool begun[256], let_through[256];
static char order[64];
static size_t n_order;

struct work {
    char name; /* the job's */
    bool ran;
};

static uint32_t n_dropped;

static void run(void *arg)
{
    struct work *w = arg;
    uint8_t c = (uint8_t)w->name;
    (void)pthread_mutex_lock(&lock);
    begun[c] = true;
    if (n_order < sizeof order - 1) order[n_order++] = w->name;
    (void)pthread_cond_broadcast(&changed);
    while (!let_through[c]) (void)pthread_cond_wait(&changed, &lock);
    (void)pthread_mutex_unlock(&lock);
    w->ran = true;
}

static void drop(void *arg)
{
    (void)pthread_mutex_lock(&lock);
    n_dropped++;
    (void)pthread_mutex_unlock(&lock);
    mem_free(arg);
}

static void open_gate(char c)
{
    (void)pthread_mutex_lock(&lock);
    let_through[(uint8_t)c] = true;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

static void wait_begun(char c)
{
    struct timespec end;
    int rc = 0;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_S;
    (void)pthread_mutex_lock(&lock);
    while (!begun[(uint8_t)c] && rc == 0) rc = pthread_cond_timedwait(&changed, &lock, &end);
    bool ok = begun[(uint8_t)c];
    (void)pthread_mutex_unlock(&lock);
    assert_true(ok);
}

struct fixture {
    struct net *net;
    struct offload *o;
    struct errmsg em;
};

static int open_fixture(void **state)
{
    static struct fixture f;
    f = (struct fixture){.net = NULL};
    memset(begun, 0, sizeof begun);
    memset(let_through, 0, sizeof let_through);
    memset(order, 0, sizeof order);
    n_order = 0;
    n_dropped = 0;
    *state = &f;
    if (net_open(&f.net, &f.em) < 0) return -1;
    const struct offload_options o = {.what = "jobs",
                                      .n_threads = 2,
                                      .short_bytes = SHORT_BYTES,
                                      .jobs_max = JOBS_MAX,
                                      .bytes_max = BYTES_MAX,
                                      .share = SHARE};
    return offload_open(f.net, &o, &f.o, &f.em);
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    for (int c = 0; c < 256; c++) open_gate((char)c);
    offload_close(f->o);
    net_close(f->net);
    return 0;
}

/* A job whose id is its name. */
static int put(struct fixture *f, uint64_t client, char name, size_t bytes)
{
    struct work *w = mem_zalloc(sizeof *w);
    w->name = name;
    const struct offload_job job = {
        .id = (uint64_t)name, .client = client, .bytes = bytes, .run = run, .drop = drop, .arg = w};
    int rc = offload_put(f->o, &job, &f->em);
    if (rc < 0) mem_free(w);
    return rc;
}

/* The next finished job's name. */
static char next(struct fixture *f)
{
    struct work *w = offload_next(f->o);
    struct net_poll p = {.sock = offload_socket(f->o)};
    for (int i = 0; i < WAIT_S && !w; i++) {
        (void)net_poll(&p, 1, 1000);
        w = offload_next(f->o);
    }
    assert_non_null(w);
    char name = w->name;
    assert_true(w->ran);
    mem_free(w);
    return name;
}

#define LONG_JOB (SHORT_BYTES + 1)

static void test_short_jobs_do_not_wait_for_long_ones(void **state)
{
    struct fixture *f = *state;
    for (char c = 'A'; c <= 'D'; c++) assert_int_equal(put(f, 1, c, LONG_JOB), 0);
    wait_begun('A');
    open_gate('s');
    for (int i = 0; i < 20; i++) { /* while the long one keeps its thread */
        assert_int_equal(put(f, 2, 's', SHORT_BYTES), 0);
        assert_int_equal(next(f), 's');
    }
    assert_false(begun['B']);
}

/* Among long jobs the clients take turns, and each client's jobs keep their order. */
static void test_clients_take_turns(void **state)
{
    struct fixture *f = *state;
    for (char c = 'A'; c <= 'E'; c++) assert_int_equal(put(f, 1, c, LONG_JOB), 0);
    wait_begun('A');
    assert_int_equal(put(f, 2, 'P', LONG_JOB), 0);
    assert_int_equal(put(f, 2, 'Q', LONG_JOB), 0);
    assert_int_equal(put(f, 3, 'X', LONG_JOB), 0);
    for (int c = 0; c < 256; c++) open_gate((char)c);
    char want[] = "ABPXCQDE";
    for (size_t i = 0; want[i]; i++) assert_int_equal(next(f), want[i]);
    assert_string_equal(order, want);
}

static void test_cancel(void **state)
{
    struct fixture *f = *state;
    for (char c = 'A'; c <= 'D'; c++) assert_int_equal(put(f, 1, c, LONG_JOB), 0);
    assert_int_equal(put(f, 2, 'P', LONG_JOB), 0);
    wait_begun('A');
    offload_cancel(f->o, 'A'); /* it runs: its result is dropped */
    offload_cancel(f->o, 'D'); /* the last of a client's, */
    offload_cancel(f->o, 'B'); /* the first that waits, */
    offload_cancel(f->o, 'P'); /* the only one, */
    offload_cancel(f->o, 'Z'); /* no job */
    assert_int_equal(put(f, 1, 'E', LONG_JOB), 0);
    assert_int_equal(put(f, 2, 'Q', LONG_JOB), 0);
    for (int c = 0; c < 256; c++) open_gate((char)c);
    char want[] = "CQE";
    for (size_t i = 0; want[i]; i++) assert_int_equal(next(f), want[i]);
    assert_string_equal(order, "ACQE");
    assert_null(offload_next(f->o));
    assert_int_equal(n_dropped, 4); /* every job that was cancelled, once */
}

/* Jobs that wait, and results that were not taken, are dropped when the queue closes. */
static void test_close_drops(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(put(f, 1, 'd', 1), 0);
    open_gate('d');
    struct net_poll p = {.sock = offload_socket(f->o)};
    (void)net_poll(&p, 1, WAIT_S * 1000);
    assert_int_equal(put(f, 1, 'A', LONG_JOB), 0);
    assert_int_equal(put(f, 1, 'b', 1), 0);
    wait_begun('A');
    wait_begun('b'); /* both threads are taken */
    assert_int_equal(put(f, 1, 'e', 1), 0);
    assert_int_equal(put(f, 2, 'E', LONG_JOB), 0);
    for (int c = 0; c < 256; c++) open_gate((char)c);
    offload_close(f->o);
    f->o = NULL;
    assert_int_equal(n_dropped, 5);
}

/* One client's jobs leave room for others'; what it cancels is room again. */
static void test_a_client_has_its_share(void **state)
{
    struct fixture *f = *state;
    size_t share = BYTES_MAX / SHARE;
    assert_int_equal(put(f, 1, 'A', share), 0);
    wait_begun('A');
    assert_int_equal(put(f, 1, 'B', share + 1), 0); /* one job may wait whatever its size */
    assert_int_equal(put(f, 1, 'C', 1), ERR_LIMIT);
    assert_non_null(strstr(f->em.text, "of this client"));
    assert_int_equal(put(f, 2, 's', 1), 0);
    offload_cancel(f->o, 'B');
    assert_int_equal(put(f, 1, 'C', share / 2), 0);
    assert_int_equal(put(f, 1, 'D', share / 2), 0);
    assert_int_equal(put(f, 1, 'E', 1), ERR_LIMIT);
    /* For all clients together, jobs that run and results that were not taken count too. */
    wait_begun('s');
    for (uint64_t client = 3; client < 5; client++)
        assert_int_equal(put(f, client, 'x', share - 1), 0);
    assert_int_equal(put(f, 6, 'y', share), ERR_LIMIT);
    for (int c = 0; c < 256; c++) open_gate((char)c);
    for (int i = 0; i < 6; i++) (void)next(f);
    assert_int_equal(put(f, 6, 'y', share), 0);
    assert_int_equal(next(f), 'y');
}

static void test_count_limits(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(put(f, 1, 'A', LONG_JOB), 0);
    wait_begun('A');
    assert_int_equal(put(f, 1, 'a', 1), 0);
    wait_begun('a'); /* both threads are taken */
    uint32_t n = 0;
    while (put(f, 1, 'b', 1) == 0) n++;
    assert_int_equal(n, JOBS_MAX / SHARE);
    uint64_t client = 2;
    for (n += 2; put(f, client, 'c', 1) == 0; n++) client++;
    assert_int_equal(n, JOBS_MAX);
    offload_cancel(f->o, 'c');
    assert_int_equal(put(f, 9999, 'd', 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_short_jobs_do_not_wait_for_long_ones, open_fixture,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(test_clients_take_turns, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_cancel, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_close_drops, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_a_client_has_its_share, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_count_limits, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
