/* What programs share: log lines that never wait, standard descriptors, the end of a process,
 * progress, the cores of a process, and how the pool waits where cores are short. What changes a
 * whole process runs in a child of its own. */
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/log.h"
#include "common/base/pool.h"
#include "common/base/process.h"
#include "common/base/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

typedef void (*child_fn)(int said);

struct child {
    pid_t pid;
    int log;  /* the other end of its stderr */
    int said; /* what it tells beside the log */
};

/* A child whose stderr is a pipe. */
static struct child start(child_fn fn)
{
    int log[2], said[2];
    assert_int_equal(pipe(log), 0);
    assert_int_equal(pipe(said), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)dup2(log[1], STDERR_FILENO);
        (void)close(log[0]);
        (void)close(log[1]);
        (void)close(said[0]);
        fn(said[1]);
        _exit(0);
    }
    (void)close(log[1]);
    (void)close(said[1]);
    return (struct child){pid, log[0], said[0]};
}

static int status_of(const struct child *c)
{
    int status;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    return status;
}

/* Everything until the other end is closed. */
static char *read_all(int fd)
{
    size_t n = 0, cap = 1 << 20;
    char *text = malloc(cap);
    assert_non_null(text);
    for (ssize_t got; (got = read(fd, text + n, cap - n - 1)) > 0;) n += (size_t)got;
    text[n] = 0;
    (void)close(fd);
    return text;
}

/* ---- the log ---- */

#define MANY 5000
#define LATER 200
#define GAPS 50
#define LATER_MOST 10000000 /* lines, should the reader be gone */

static void log_many(int said)
{
    log_program("many");
    log_open();
    unsigned long n = 0;
    while (n < MANY) log_info("line %lu of a log that is not read yet", n++);
    (void)!write(said, "x", 1);
    /* It is read from now on, until there were GAPS gaps: lines come faster than they are read, so
     * that a line that finds room mostly follows some that found none. */
    struct pollfd stop = {.fd = STDIN_FILENO, .events = POLLIN};
    while (n < LATER_MOST && poll(&stop, 1, 0) == 0)
        log_info("line %lu of a log that is not read yet", n++);
    log_close();
    (void)!write(said, &n, sizeof n);
}

/* The writer's pipe takes 64 KiB and the queue LOG_LINES lines; other lines are dropped, and no
 * call waits for the reader. Once it is read again, the log tells how many were dropped: every line
 * is accounted for. */
static void test_log_unread(void **state)
{
    (void)state;
    int hold[2];
    char x, text[2048];
    assert_int_equal(pipe(hold), 0);
    (void)dup2(hold[0], STDIN_FILENO);
    struct child c = start(log_many);
    assert_int_equal(read(c.said, &x, 1), 1); /* it got through all its calls */
    (void)close(hold[0]);
    FILE *f = fdopen(c.log, "r");
    unsigned long lines = 0, next = 0, gaps = 0, n;
    while (fgets(text, sizeof text, f)) {
        const char *at = strstr(text, "info many: line "), *lost = strstr(text, "warn many: ");
        assert_true(at || lost);
        n = strtoul(at ? at + strlen("info many: line ") : lost + strlen("warn many: "), NULL, 10);
        if (at) {
            assert_int_equal(n, next); /* in order, and the gaps are where they are told */
            next = n + 1;
            lines++;
        } else {
            next += n;
            if (++gaps == GAPS) (void)!write(hold[1], "x", 1);
        }
    }
    assert_int_equal(read(c.said, &n, sizeof n), sizeof n);
    assert_int_equal(n, next);
    assert_true(lines >= LOG_LINES && gaps >= GAPS);
    (void)close(hold[1]);
    assert_int_equal(status_of(&c), 0);
    (void)fclose(f);
    (void)close(c.said);
}

static void log_to_nobody(int said)
{
    char x;
    process_serve();
    log_open();
    (void)!write(said, "x", 1);
    while (read(STDIN_FILENO, &x, 1) < 0) continue;
    for (int i = 0; i < 100; i++) log_error("nobody hears this");
    log_close();
    (void)!write(STDERR_FILENO, "x", 1); /* the process itself is not killed by the signal either */
    (void)!write(said, errno == EPIPE ? "y" : "n", 1);
}

static void test_log_reader_gone(void **state)
{
    (void)state;
    int hold[2];
    char x;
    assert_int_equal(pipe(hold), 0);
    (void)dup2(hold[0], STDIN_FILENO);
    struct child c = start(log_to_nobody);
    assert_int_equal(read(c.said, &x, 1), 1);
    (void)close(c.log);
    (void)!write(hold[1], "x", 1);
    assert_int_equal(read(c.said, &x, 1), 1);
    assert_int_equal(x, 'y');
    assert_int_equal(status_of(&c), 0);
    (void)close(hold[0]);
    (void)close(hold[1]);
    (void)close(c.said);
}

static void log_a_little(int said)
{
    (void)said;
    log_program("p");
    log_info("before");
    log_open();
    log_warn("a\nb\x1b[31m \xc3\xa9 %s", "end");
    log_text("as it is");
    for (int i = 0; i < LATER; i++) log_text("%d", i);
    log_close();
}

static void test_log_lines(void **state)
{
    (void)state;
    struct child c = start(log_a_little);
    char *text = read_all(c.log), *line = text;
    assert_int_equal(status_of(&c), 0);
    for (int i = 0; i < 2; i++) {
        unsigned year, month, day, hour, minute, second, ms;
        assert_int_equal(sscanf(line, "%4u-%2u-%2u %2u:%2u:%2u.%3u ", &year, &month, &day, &hour,
                                &minute, &second, &ms),
                         7);
        assert_true(year >= 2024 && month >= 1 && month <= 12 && day >= 1 && day <= 31);
        line += strlen("2026-01-31 23:59:59.999");
        const char *want = i ? " warn p: a\\x0ab\\x1b[31m \xc3\xa9 end\n" : " info p: before\n";
        assert_memory_equal(line, want, strlen(want));
        line += strlen(want);
    }
    assert_memory_equal(line, "as it is\n", strlen("as it is\n"));
    line += strlen("as it is\n");
    for (long i = 0; i < LATER; i++, line++) assert_int_equal(strtol(line, &line, 10), i);
    assert_int_equal(*line, 0);
    free(text);
    (void)close(c.said);
}

/* ---- the process ---- */

static void open_closed(int said)
{
    int held = fcntl(said, F_DUPFD, 10);
    for (int fd = 0; fd < 3; fd++) (void)close(fd);
    process_start();
    int next = open("/dev/zero", O_RDONLY);
    char x = 0;
    bool right = next > 2 && read(STDIN_FILENO, &x, 1) == 0 && write(STDOUT_FILENO, "x", 1) == 1 &&
                 write(STDERR_FILENO, "x", 1) == 1;
    (void)!write(held, right ? "y" : "n", 1);
}

static void test_closed_descriptors(void **state)
{
    (void)state;
    char x;
    struct child c = start(open_closed);
    assert_int_equal(read(c.said, &x, 1), 1);
    assert_int_equal(x, 'y');
    assert_int_equal(status_of(&c), 0);
    (void)close(c.log);
    (void)close(c.said);
}

static void hang_up(int said)
{
    (void)said;
    process_serve();
    (void)raise(SIGHUP);
}

static void test_hangup(void **state)
{
    (void)state;
    struct child c = start(hang_up);
    assert_int_equal(status_of(&c), 0);
    (void)close(c.log);
    (void)close(c.said);
}

static void never_end(int said)
{
    (void)said;
    process_end_within(1);
    for (;;) (void)pause();
}

/* A process that would never end by itself ends; else ctest's time limit would end this test. */
static void test_end_within(void **state)
{
    (void)state;
    struct child c = start(never_end);
    int status = status_of(&c);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    (void)close(c.log);
    (void)close(c.said);
}

/* ---- progress ---- */

static void test_progress_lines(void **state)
{
    (void)state;
    struct progress p = {.what = "loading"};
    char line[PROGRESS_LINE_BYTES];
    unsigned lines = 0;
    for (uint64_t ms = 1; ms <= 35000; ms++) { /* a load of 35 s, with a call each ms */
        progress_line(&p, ms * NS_PER_MS, ms, 35000, line);
        lines += line[0] != 0;
        if (lines == 1 && line[0]) assert_string_equal(line, "loading: 29% of 0.0 MiB");
    }
    assert_int_equal(lines, 3);
}

/* ---- cores ---- */

static bool many_cores;

/* A machine of 2,000 cores, on which the process may use four. */
int __wrap_pthread_getaffinity_np(pthread_t thread, size_t bytes, cpu_set_t *set);
int __real_pthread_getaffinity_np(pthread_t thread, size_t bytes, cpu_set_t *set);
int __wrap_pthread_getaffinity_np(pthread_t thread, size_t bytes, cpu_set_t *set)
{
    if (!many_cores) return __real_pthread_getaffinity_np(thread, bytes, set);
    if (bytes * 8 < 2000) return EINVAL;
    CPU_ZERO_S(bytes, set);
    for (size_t c = 1500; c < 1504; c++) CPU_SET_S(c, bytes, set);
    return 0;
}

static void ask_cores(int said)
{
    many_cores = true;
    bool right = cores_count() == 4 && cores_number(0) == 1500 && cores_number(3) == 1503 &&
                 cores_number(4) == -1;
    (void)!write(said, right ? "y" : "n", 1);
}

static void test_many_cores(void **state)
{
    (void)state;
    char x;
    struct child c = start(ask_cores);
    assert_int_equal(read(c.said, &x, 1), 1);
    assert_int_equal(x, 'y');
    assert_int_equal(status_of(&c), 0);
    (void)close(c.log);
    (void)close(c.said);
}

static void claim_cores(int said)
{
    (void)!write(said, cores_claim() ? "y" : "n", 1);
}

#define CLAIMS "ynny" /* the first, the first again, another process, the first once it let go */

/* Names of sockets that are no files belong to a network: in one of its own, nobody else holds the
 * cores. */
static void claim_alone(int said)
{
    char told[] = "????";
    if (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) {
        told[0] = cores_claim() ? 'y' : 'n';
        told[1] = cores_claim() ? 'y' : 'n';
        struct child c = start(claim_cores);
        (void)!read(c.said, &told[2], 1);
        (void)status_of(&c);
        cores_release();
        told[3] = cores_claim() ? 'y' : 'n';
        cores_release();
    }
    (void)!write(said, told, sizeof told);
}

/* Two processes never claim the cores at once. */
static void test_claims(void **state)
{
    (void)state;
    char told[sizeof CLAIMS];
    struct child c = start(claim_alone);
    assert_int_equal(read(c.said, told, sizeof told), sizeof told);
    assert_int_equal(status_of(&c), 0);
    (void)close(c.log);
    (void)close(c.said);
    if (told[0] == '?') skip(); /* no network of its own is allowed */
    assert_string_equal(told, CLAIMS);
}

/* ---- the pool where cores are short ---- */

struct work {
    struct pool *pool;
    atomic_uint rounds;
    uint64_t burn_ns;
};

#define WAITS 200

/* Thread 0 computes while the others wait for it. */
static void uneven(void *arg, unsigned idx, unsigned n)
{
    struct work *w = arg;
    for (int i = 0; i < WAITS; i++) {
        uint64_t end = clock_ns() + w->burn_ns;
        while (idx == 0 && clock_ns() < end) continue;
        pool_barrier(w->pool);
    }
    if (idx == 0) atomic_store(&w->rounds, n);
}

/* When waits are long, the spinning becomes short and the thread sleeps. It is counted in readings
 * of the clock, of which a thread that spins for POOL_SPIN_NS makes more than 40; in one job, since
 * on a busy machine the next one may have fewer threads. */
static void test_pool_sleeps(void **state)
{
    (void)state;
    struct errmsg em;
    struct work w = {.burn_ns = NS_PER_MS};
    assert_int_equal(pool_open(2, &w.pool, &em), 0);
    pool_run(w.pool, uneven, &w);
    struct pool_waits waits = pool_waits(w.pool);
    pool_close(w.pool);
    assert_int_equal(atomic_load(&w.rounds), 2);
    assert_true(waits.slept >= WAITS / 2);
    assert_true(waits.looks < 15 * WAITS);
}

static uint64_t computed_ns(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void burn_all(void *arg, unsigned idx, unsigned n)
{
    struct work *w = arg;
    (void)idx;
    (void)n;
    for (int i = 0; i < 5; i++) {
        uint64_t end = computed_ns() + w->burn_ns;
        while (computed_ns() < end) continue;
        pool_barrier(w->pool);
    }
    atomic_fetch_add(&w->rounds, 1);
}

/* A pool of four threads on one core, beside a process that never sleeps: its threads wait for a
 * core most of the time, and in the end it works with one thread. */
static void share_a_core(int said)
{
    cpu_set_t one;
    struct errmsg em;
    struct work w = {.burn_ns = 10 * NS_PER_MS};
    CPU_ZERO(&one);
    CPU_SET((size_t)cores_number(0), &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    pid_t other = fork();
    while (other == 0) continue;
    bool right = other > 0 && pool_open(4, &w.pool, &em) == 0;
    unsigned least = 4, jobs = 0;
    for (; right && least > 1 && jobs < 40; jobs++) {
        pool_run(w.pool, burn_all, &w);
        if (pool_waits(w.pool).active < least) least = pool_waits(w.pool).active;
    }
    if (other > 0) (void)kill(other, SIGKILL);
    (void)!write(said, right && least == 1 ? "y" : "n", 1);
}

static void test_pool_shrinks(void **state)
{
    (void)state;
    char x;
    struct child c = start(share_a_core);
    assert_int_equal(read(c.said, &x, 1), 1);
    assert_int_equal(x, 'y');
    assert_int_equal(status_of(&c), 0);
    (void)close(c.log);
    (void)close(c.said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_unread),     cmocka_unit_test(test_log_reader_gone),
        cmocka_unit_test(test_log_lines),      cmocka_unit_test(test_closed_descriptors),
        cmocka_unit_test(test_hangup),         cmocka_unit_test(test_end_within),
        cmocka_unit_test(test_progress_lines), cmocka_unit_test(test_many_cores),
        cmocka_unit_test(test_claims),         cmocka_unit_test(test_pool_sleeps),
        cmocka_unit_test(test_pool_shrinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
