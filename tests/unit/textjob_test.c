/* Whose text is tokenised next. The linker leads vocab_encode to a gate here: a text is held in its
 * thread until the test lets it through. */
#include "coordinator/textjob.h"

#include "common/base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define WAIT_S 30 /* far beyond what a thread needs, below the test's time-out */

/* By the first letter of a text. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool begun[256], let_through[256];
static char order[64];
static size_t n_order;

int __wrap_vocab_encode(const struct vocab *v, const char *text, size_t len, bool special,
                        struct tokens *ret, struct errmsg *em);
bool __wrap_vocab_adds_bos(const struct vocab *v);

int __wrap_vocab_encode(const struct vocab *v, const char *text, size_t len, bool special,
                        struct tokens *ret, struct errmsg *em)
{
    uint8_t c = (uint8_t)text[0];
    (void)v;
    (void)len;
    (void)special;
    (void)em;
    (void)pthread_mutex_lock(&lock);
    begun[c] = true;
    if (n_order < sizeof order - 1) order[n_order++] = text[0];
    (void)pthread_cond_broadcast(&changed);
    while (!let_through[c]) (void)pthread_cond_wait(&changed, &lock);
    (void)pthread_mutex_unlock(&lock);
    tokens_push(ret, c);
    return 0;
}

bool __wrap_vocab_adds_bos(const struct vocab *v)
{
    (void)v;
    return false;
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
    struct textjobs *t;
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
    *state = &f;
    if (net_open(&f.net, &f.em) < 0) return -1;
    return textjobs_open(f.net, NULL, &f.t, &f.em);
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    for (int c = 0; c < 256; c++) open_gate((char)c);
    textjobs_close(f->t);
    net_close(f->net);
    return 0;
}

/* A text whose id is its first letter. */
static int put(struct fixture *f, uint64_t client, char first, size_t len)
{
    struct textjob *job = mem_zalloc(sizeof *job);
    job->id = (uint64_t)first;
    job->client = client;
    job->len = len;
    job->text = mem_zalloc(len + 1);
    job->text[0] = first;
    int rc = textjobs_put(f->t, job, &f->em);
    if (rc < 0) textjob_free(job);
    return rc;
}

/* The next finished text's letter. */
static char next(struct fixture *f)
{
    struct textjob *job = textjobs_next(f->t);
    struct net_poll p = {.sock = textjobs_socket(f->t)};
    for (int i = 0; i < WAIT_S && !job; i++) {
        (void)net_poll(&p, 1, 1000);
        job = textjobs_next(f->t);
    }
    assert_non_null(job);
    char first = job->text[0];
    assert_int_equal(job->tokens.n, 1);
    textjob_free(job);
    return first;
}

#define LONG_TEXT (TEXTJOBS_SHORT_BYTES + 1)

static void test_short_texts_do_not_wait_for_long_ones(void **state)
{
    struct fixture *f = *state;
    for (char c = 'A'; c <= 'D'; c++) assert_int_equal(put(f, 1, c, LONG_TEXT), 0);
    wait_begun('A');
    open_gate('s');
    for (int i = 0; i < 20; i++) { /* while the long one stands */
        assert_int_equal(put(f, 2, 's', TEXTJOBS_SHORT_BYTES), 0);
        assert_int_equal(next(f), 's');
    }
    assert_false(begun['B']);
}

/* Texts of one kind: the clients take turns, and each keeps its order. */
static void test_clients_take_turns(void **state)
{
    struct fixture *f = *state;
    for (char c = 'A'; c <= 'E'; c++) assert_int_equal(put(f, 1, c, LONG_TEXT), 0);
    wait_begun('A');
    assert_int_equal(put(f, 2, 'P', LONG_TEXT), 0);
    assert_int_equal(put(f, 2, 'Q', LONG_TEXT), 0);
    assert_int_equal(put(f, 3, 'X', LONG_TEXT), 0);
    for (int c = 0; c < 256; c++) open_gate((char)c);
    char want[] = "ABPXCQDE";
    for (size_t i = 0; want[i]; i++) assert_int_equal(next(f), want[i]);
    assert_string_equal(order, want);
}

static void test_cancel(void **state)
{
    struct fixture *f = *state;
    for (char c = 'A'; c <= 'D'; c++) assert_int_equal(put(f, 1, c, LONG_TEXT), 0);
    assert_int_equal(put(f, 2, 'P', LONG_TEXT), 0);
    wait_begun('A');
    textjobs_cancel(f->t, 'A'); /* it runs: its result is not wanted */
    textjobs_cancel(f->t, 'D'); /* the last of a line, */
    textjobs_cancel(f->t, 'B'); /* the first, */
    textjobs_cancel(f->t, 'P'); /* a whole line, */
    textjobs_cancel(f->t, 'Z'); /* none */
    assert_int_equal(put(f, 1, 'E', LONG_TEXT), 0);
    assert_int_equal(put(f, 2, 'Q', LONG_TEXT), 0);
    for (int c = 0; c < 256; c++) open_gate((char)c);
    char want[] = "CQE";
    for (size_t i = 0; want[i]; i++) assert_int_equal(next(f), want[i]);
    assert_string_equal(order, "ACQE");
    assert_null(textjobs_next(f->t));
}

/* One client's texts leave room for others'; what it cancels is room again. */
static void test_a_client_has_its_share(void **state)
{
    struct fixture *f = *state;
    size_t share = TEXTJOBS_BYTES_MAX / TEXTJOBS_SHARE;
    assert_int_equal(put(f, 1, 'A', share), 0);
    wait_begun('A');
    assert_int_equal(put(f, 1, 'B', share + 1), 0); /* one may always wait */
    assert_int_equal(put(f, 1, 'C', 1), ERR_LIMIT);
    assert_non_null(strstr(f->em.text, "of this client"));
    assert_int_equal(put(f, 2, 's', 1), 0);
    textjobs_cancel(f->t, 'B');
    assert_int_equal(put(f, 1, 'C', share / 2), 0);
    assert_int_equal(put(f, 1, 'D', share / 2), 0);
    assert_int_equal(put(f, 1, 'E', 1), ERR_LIMIT);
    /* All together: the sizes of texts that run or were not taken back count too. */
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
    assert_int_equal(put(f, 1, 'A', LONG_TEXT), 0);
    wait_begun('A');
    assert_int_equal(put(f, 1, 'a', 1), 0);
    wait_begun('a'); /* both threads stand */
    uint32_t n = 0;
    while (put(f, 1, 'b', 1) == 0) n++;
    assert_int_equal(n, TEXTJOBS_MAX / TEXTJOBS_SHARE);
    uint64_t client = 2;
    for (n += 2; put(f, client, 'c', 1) == 0; n++) client++;
    assert_int_equal(n, TEXTJOBS_MAX);
    textjobs_cancel(f->t, 'c');
    assert_int_equal(put(f, 9999, 'd', 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_short_texts_do_not_wait_for_long_ones, open_fixture,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(test_clients_take_turns, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_cancel, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_a_client_has_its_share, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_count_limits, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
