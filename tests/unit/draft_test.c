/* The drafter: what is asked is answered once, in bounded queues, with drafts of the right request,
 * tenant and kind. The drafting thread waits at a gate where a test wants it to. */
#include "coordinator/draft/draft.h"

#include "common/base/mem.h"
#include "coordinator/draft/guess.h"
#include "coordinator/model_file.h"
#include "tests/lib/tiny_llama.h"
#include "tests/lib/tiny_vocab.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#define WAIT_S 30 /* far beyond what a thread needs, below the test's time-out */
#define CTX 400u
#define REQUESTS 6u
#define ASKS 4u
#define END 7

static const int32_t ends[] = {END};
static const struct sampling plain = {.top_p = 1.0f, .repetition = 1.0f};

/* ---- the gate before guess_ask, and tokens that find no memory ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool closed, no_memory;
static uint32_t n_before_gate, n_turns;
static int niceness;

bool __real_guess_ask(struct guesser *g, struct guess *q, const struct guess_ask *a,
                      struct drafter_answer *ret);
bool __wrap_guess_ask(struct guesser *g, struct guess *q, const struct guess_ask *a,
                      struct drafter_answer *ret);
int __real_guess_tokens(struct guesser *g, struct guess *q, const int32_t *tokens, uint32_t n);
int __wrap_guess_tokens(struct guesser *g, struct guess *q, const int32_t *tokens, uint32_t n);

bool __wrap_guess_ask(struct guesser *g, struct guess *q, const struct guess_ask *a,
                      struct drafter_answer *ret)
{
    (void)pthread_mutex_lock(&lock);
    niceness = getpriority(PRIO_PROCESS, 0);
    n_turns++;
    n_before_gate++;
    (void)pthread_cond_broadcast(&changed);
    while (closed) (void)pthread_cond_wait(&changed, &lock);
    n_before_gate--;
    (void)pthread_mutex_unlock(&lock);
    return __real_guess_ask(g, q, a, ret);
}

int __wrap_guess_tokens(struct guesser *g, struct guess *q, const int32_t *tokens, uint32_t n)
{
    (void)pthread_mutex_lock(&lock);
    bool fails = no_memory;
    (void)pthread_mutex_unlock(&lock);
    return fails ? ERR_NOMEM : __real_guess_tokens(g, q, tokens, n);
}

static void set(bool *what, bool value)
{
    (void)pthread_mutex_lock(&lock);
    *what = value;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

static void wait_at_gate(void)
{
    struct timespec end;
    int rc = 0;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_S;
    (void)pthread_mutex_lock(&lock);
    while (!n_before_gate && rc == 0) rc = pthread_cond_timedwait(&changed, &lock, &end);
    (void)pthread_mutex_unlock(&lock);
    assert_int_equal(rc, 0);
}

/* ---- a drafter and its requests ---- */

struct fixture {
    struct net *net;
    struct drafter *d;
    struct errmsg em;
    char path[64]; /* a file that is removed at the end; or "" */
};

static int open_fixture(void **state)
{
    static struct fixture f;
    memset(&f, 0, sizeof f);
    closed = no_memory = false;
    n_before_gate = n_turns = 0;
    *state = &f;
    return net_open(&f.net, &f.em);
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    set(&closed, false);
    drafter_close(f->d);
    net_close(f->net);
    if (f->path[0]) assert_int_equal(unlink(f->path), 0);
    return 0;
}

static int try_open(struct fixture *f, enum draft_kind kind, uint64_t memory)
{
    struct draft_settings s = DRAFT_DEFAULTS;
    s.kind = kind;
    s.path = f->path[0] ? f->path : NULL;
    s.threads = 1;
    s.memory_bytes = memory;
    const struct drafter_options o = {.settings = &s,
                                      .ctx = CTX,
                                      .requests_max = REQUESTS,
                                      .asks_max = ASKS,
                                      .vocab = TINY_VOCAB,
                                      .ends = ends,
                                      .n_ends = 1};
    return drafter_open(f->net, &o, &f->d, &f->em);
}

static void open_drafter(struct fixture *f, enum draft_kind kind)
{
    if (try_open(f, kind, 0) < 0) fail_msg("%s", f->em.text);
}

static int begin_as(struct fixture *f, uint64_t request, uint64_t tenant, enum draft_kind kind,
                    const int32_t *tokens, uint32_t n)
{
    const struct drafter_request r = {.request = request,
                                      .tenant = tenant,
                                      .kind = kind,
                                      .tokens = tokens,
                                      .n_tokens = n,
                                      .n_prompt = n,
                                      .sampling = &plain};
    return drafter_begin(f->d, &r, &f->em);
}

static void begin(struct fixture *f, uint64_t request, enum draft_kind kind, const int32_t *tokens,
                  uint32_t n)
{
    if (begin_as(f, request, 1, kind, tokens, n) < 0) fail_msg("%s", f->em.text);
}

static int ask_behind(struct fixture *f, uint64_t request, uint64_t serial, uint32_t first_pos,
                      const int32_t *tail, uint32_t n_tail, uint32_t want)
{
    const struct drafter_ask a = {.request = request,
                                  .serial = serial,
                                  .first_pos = first_pos,
                                  .tail = tail,
                                  .n_tail = n_tail,
                                  .want = want};
    return drafter_ask(f->d, &a, &f->em);
}

static int ask(struct fixture *f, uint64_t request, uint64_t serial, uint32_t pos, uint32_t want)
{
    return ask_behind(f, request, serial, pos, NULL, 0, want);
}

static struct drafter_answer next(struct fixture *f)
{
    struct drafter_answer a;
    struct net_poll p = {.sock = drafter_socket(f->d)};
    for (int i = 0; i < WAIT_S; i++) {
        if (drafter_take(f->d, &a)) return a;
        (void)net_poll(&p, 1, 1000);
    }
    fail_msg("no answer");
    return a;
}

static struct drafter_answer ask_next(struct fixture *f, uint64_t request, uint32_t pos,
                                      uint32_t want)
{
    if (ask(f, request, pos, pos, want) < 0) fail_msg("%s", f->em.text);
    return next(f);
}

static void assert_tokens(const struct drafter_answer *a, uint64_t request, uint32_t first_pos,
                          const int32_t *tokens, uint32_t n)
{
    assert_int_equal(a->rc, 0);
    assert_int_equal(a->request, request);
    assert_int_equal(a->first_pos, first_pos);
    assert_int_equal(a->n, n);
    if (n) assert_memory_equal(a->tokens, tokens, n * sizeof *tokens);
}

/* 20 .. 39, and the first three of them again. */
static void fill(int32_t *ret)
{
    for (int32_t i = 0; i < 23; i++) ret[i] = 20 + i % 20;
}

/* ---- asks and answers ---- */

static void test_asks_are_answered(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    fill(text);
    open_drafter(f, DRAFT_NGRAM);
    begin(f, 5, DRAFT_NGRAM, text, 23);
    struct drafter_answer a = ask_next(f, 5, 23, 4);
    assert_tokens(&a, 5, 23, text + 3, 4);
    assert_true(a.serial == 23 && a.kind == DRAFT_NGRAM && !a.stale && a.took_ns > 0);
    assert_true(niceness > getpriority(PRIO_PROCESS, 0));
    drafter_tokens(f->d, 5, 22, text + 2, 3); /* the first is known already */
    a = ask_next(f, 5, 25, 2);
    assert_tokens(&a, 5, 25, text + 5, 2);
    assert_int_equal(ask_behind(f, 5, 77, 25, text + 5, 3, 5), 0);
    a = next(f);
    assert_tokens(&a, 5, 28, text + 8, 5);
    assert_int_equal(a.serial, 77);
    assert_false(drafter_take(f->d, &a));
    drafter_tokens(f->d, 5, 30, text, 2); /* a gap */
    assert_int_equal(ask(f, 5, 1, 26, 4), ERR_RANGE);
    assert_int_equal(ask(f, 6, 1, 3, 4), ERR_NOTFOUND);
    begin(f, 6, DRAFT_OFF, text, 3);
    assert_int_equal(ask(f, 6, 1, 3, 4), ERR_NOTFOUND);
    drafter_end(f->d, 5, false);
    assert_int_equal(ask(f, 5, 1, 25, 4), ERR_NOTFOUND);
    drafter_end(f->d, 5, false);
    drafter_tokens(f->d, 5, 25, text, 3);
}

static void test_the_newest_ask_counts(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    struct drafter_stats s;
    fill(text);
    open_drafter(f, DRAFT_NGRAM);
    begin(f, 1, DRAFT_NGRAM, text, 23);
    begin(f, 2, DRAFT_NGRAM, text, 23);
    set(&closed, true);
    assert_int_equal(ask(f, 1, 1, 23, 1), 0);
    wait_at_gate(); /* this one is being drafted */
    assert_int_equal(ask(f, 1, 2, 23, 2), 0);
    assert_int_equal(ask(f, 2, 3, 23, 3), 0);
    assert_int_equal(ask(f, 1, 4, 23, 4), 0); /* in place of 2 */
    set(&closed, false);
    static const uint64_t serials[] = {1, 4, 3};
    uint64_t seen = 0;
    for (uint32_t i = 0; i < 3; i++) {
        struct drafter_answer a = next(f);
        assert_int_equal(a.request, a.serial == 3 ? 2 : 1);
        assert_int_equal(a.n, a.serial);
        seen |= UINT64_C(1) << a.serial;
    }
    for (uint32_t i = 0; i < 3; i++) assert_true(seen >> serials[i] & 1);
    drafter_stats(f->d, &s);
    assert_true(s.asks == 4 && s.replaced == 1 && s.answers == 3 && s.dropped == 0);
}

/* A full queue drops an ask and says so; answers that nobody takes fill it too. */
static void test_queues_are_bounded(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    struct drafter_stats s;
    fill(text);
    open_drafter(f, DRAFT_NGRAM);
    for (uint64_t r = 0; r < REQUESTS; r++) begin(f, r, DRAFT_NGRAM, text, 23);
    assert_int_equal(begin_as(f, 99, 1, DRAFT_NGRAM, text, 23), ERR_LIMIT);
    assert_non_null(strstr(f->em.text, "6 requests"));
    set(&closed, true);
    for (uint64_t r = 0; r < ASKS; r++) assert_int_equal(ask(f, r, r, 23, 1), 0);
    assert_int_equal(ask(f, 4, 4, 23, 1), ERR_LIMIT);
    assert_non_null(strstr(f->em.text, "4 drafts"));
    assert_int_equal(ask(f, 3, 33, 23, 1), 0); /* it has its place */
    set(&closed, false);
    assert_int_equal(ask(f, 4, 4, 23, 1), ERR_LIMIT); /* as long as nobody takes answers */
    struct drafter_answer a = next(f);
    assert_int_equal(ask(f, 4, 5, 23, 1), 0);
    for (uint32_t i = 0; i < ASKS; i++) a = next(f);
    assert_int_equal(a.request, 4);
    drafter_stats(f->d, &s);
    assert_true(s.dropped == 2 && s.answers == 5 && s.requests == REQUESTS);
    /* Seats come back. */
    for (uint64_t r = 0; r < 10 * REQUESTS; r++) {
        drafter_end(f->d, r, false);
        begin(f, r + REQUESTS, DRAFT_NGRAM, text, 23);
        a = ask_next(f, r + REQUESTS, 23, 2);
        assert_tokens(&a, r + REQUESTS, 23, text + 3, 2);
    }
}

/* What has ended has no answers, whether its asks wait, are drafted, or have been answered. */
static void test_an_end_takes_its_asks_along(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    struct drafter_answer a;
    fill(text);
    open_drafter(f, DRAFT_NGRAM);
    for (uint32_t round = 0; round < 5; round++) {
        for (uint64_t r = 0; r < 4; r++) begin(f, r, DRAFT_NGRAM, text, 23);
        assert_int_equal(ask(f, 0, 0, 23, 1), 0);
        a = next(f);
        assert_int_equal(ask(f, 0, 0, 23, 1), 0);
        assert_int_equal(ask(f, 1, 0, 23, 1), 0);
        struct net_poll p = {.sock = drafter_socket(f->d)};
        (void)net_poll(&p, 1, WAIT_S * 1000);
        set(&closed, true);
        assert_int_equal(ask(f, 2, 0, 23, 1), 0);
        wait_at_gate();
        assert_int_equal(ask(f, 3, 0, 23, 1), 0);
        for (uint64_t r = 0; r < 4; r++) drafter_end(f->d, r, true);
        set(&closed, false);
        begin(f, 10, DRAFT_NGRAM, text, 23);
        a = ask_next(f, 10, 23, 2);
        assert_tokens(&a, 10, 23, text + 3, 2);
        assert_false(drafter_take(f->d, &a));
        drafter_end(f->d, 10, false);
    }
}

static void test_close_with_asks(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    fill(text);
    open_drafter(f, DRAFT_NGRAM);
    for (uint64_t r = 0; r < 4; r++) begin(f, r, DRAFT_NGRAM, text, 23);
    assert_int_equal(ask(f, 0, 0, 23, 1), 0);
    (void)next(f);
    set(&closed, true);
    for (uint64_t r = 0; r < 4; r++) assert_int_equal(ask(f, r, 0, 23, 1), 0);
    wait_at_gate();
    drafter_end(f->d, 1, true);
    set(&closed, false); /* the fixture closes it while asks wait */
}

/* A draft that follows guesses which did not hold is none. */
static void test_stale_asks(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    struct drafter_answer a;
    fill(text);
    open_drafter(f, DRAFT_NGRAM);
    begin(f, 1, DRAFT_NGRAM, text, 23);
    drafter_tokens(f->d, 1, 23, text + 3, 2);
    assert_int_equal(ask_behind(f, 1, 1, 23, text + 3, 4, 3), 0); /* two of four are confirmed */
    a = next(f);
    assert_tokens(&a, 1, 27, text + 7, 3);
    assert_int_equal(ask_behind(f, 1, 2, 23, text + 4, 4, 3), 0); /* others were */
    a = next(f);
    assert_true(a.stale && a.n == 0 && a.rc == 0 && a.first_pos == 27);
    assert_int_equal(ask_behind(f, 1, 3, 23, text + 3, 1, 3), 0); /* its first token is known */
    a = next(f);
    assert_true(a.stale && a.n == 0);
    struct drafter_stats s;
    drafter_stats(f->d, &s);
    assert_int_equal(s.stale, 2);
}

static void test_nothing_behind_an_end(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    fill(text);
    text[5] = END;
    open_drafter(f, DRAFT_NGRAM);
    begin(f, 1, DRAFT_NGRAM, text, 23);
    struct drafter_answer a = ask_next(f, 1, 23, 8);
    assert_tokens(&a, 1, 23, text + 3, 3);
}

static void test_texts_beyond_the_context(void **state)
{
    struct fixture *f = *state;
    static int32_t text[CTX + 1];
    struct drafter_answer a;
    open_drafter(f, DRAFT_NGRAM);
    assert_int_equal(begin_as(f, 1, 1, DRAFT_NGRAM, text, CTX + 1), ERR_LIMIT);
    assert_int_equal(begin_as(f, 1, 1, DRAFT_NGRAM, text, 0), ERR_LIMIT);
    begin(f, 1, DRAFT_NGRAM, text, CTX - 1);
    a = ask_next(f, 1, CTX - 1, 4);
    assert_int_equal(a.n, 4);
    drafter_tokens(f->d, 1, CTX - 1, text, 1);
    a = ask_next(f, 1, CTX, 4);
    assert_int_equal(a.n, 4);
    drafter_tokens(f->d, 1, CTX, text, 1);
    assert_int_equal(ask(f, 1, 1, CTX, 4), ERR_NOTFOUND);
    drafter_end(f->d, 1, true);
}

static void test_no_memory_for_a_text(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    fill(text);
    open_drafter(f, DRAFT_NGRAM);
    begin(f, 1, DRAFT_NGRAM, text, 23);
    begin(f, 2, DRAFT_NGRAM, text, 23);
    set(&no_memory, true);
    struct drafter_answer a = ask_next(f, 1, 23, 4);
    assert_true(a.rc == ERR_NOMEM && a.n == 0 && strstr(a.error, "memory"));
    set(&no_memory, false);
    a = ask_next(f, 1, 23, 4); /* its text is incomplete for good */
    assert_int_equal(a.rc, ERR_NOMEM);
    a = ask_next(f, 2, 23, 4);
    assert_tokens(&a, 2, 23, text + 3, 4);
    drafter_end(f->d, 1, true);
    drafter_end(f->d, 2, true);
}

/* ---- what was right ---- */

static void test_outcomes_are_counted(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    struct drafter_stats s;
    fill(text);
    open_drafter(f, DRAFT_NGRAM);
    begin(f, 1, DRAFT_NGRAM, text, 23);
    (void)ask_next(f, 1, 23, 4);
    assert_int_equal(ask_behind(f, 1, 2, 23, text + 3, 4, 2), 0); /* holds, and so does its tail */
    (void)next(f);
    assert_int_equal(ask_behind(f, 1, 3, 23, text + 9, 4, 2), 0); /* behind a tail that does not */
    (void)next(f);
    drafter_tokens(f->d, 1, 23, text + 3, 6);
    (void)ask_next(f, 1, 29, 4);
    drafter_stats(f->d, &s);
    assert_true(s.kinds[DRAFT_NGRAM].right == 6 && s.kinds[DRAFT_NGRAM].wrong == 0);
    drafter_tokens(f->d, 1, 29, (const int32_t[]){text[9], 3, 3}, 3); /* one of four */
    (void)ask(f, 1, 5, 32, 4);
    (void)next(f);
    drafter_stats(f->d, &s);
    assert_true(s.kinds[DRAFT_NGRAM].right == 7 && s.kinds[DRAFT_NGRAM].wrong == 1);
    assert_true(s.kinds[DRAFT_NGRAM].drafts == 5 && s.kinds[DRAFT_NGRAM].tokens == 15);
    assert_int_equal(s.kinds[DRAFT_MODEL].drafts, 0);
}

/* ---- tenants ---- */

static void test_outputs_serve_their_tenant_only(void **state)
{
    struct fixture *f = *state;
    int32_t text[23], said[30];
    struct drafter_stats s;
    fill(text);
    for (int32_t i = 0; i < 30; i++) said[i] = i % 3 ? 1 + i : 40 + i % 8;
    open_drafter(f, DRAFT_NGRAM);
    for (uint64_t r = 0; r < 2; r++) { /* the second is not kept */
        assert_int_equal(begin_as(f, r, 8, DRAFT_NGRAM, text, 20), 0);
        drafter_tokens(f->d, r, 20, said + 10 * r, 20);
        drafter_end(f->d, r, r == 0);
    }
    static const struct {
        uint64_t tenant;
        uint32_t from, n; /* of the three tokens of the prompt; of the draft */
    } cases[] = {{8, 0, 4}, {9, 0, 0}, {0, 0, 0}, {8, 24, 0}};
    for (uint64_t i = 0; i < 4; i++) {
        assert_int_equal(begin_as(f, 10 + i, cases[i].tenant, DRAFT_NGRAM, said + cases[i].from, 3),
                         0);
        struct drafter_answer a = ask_next(f, 10 + i, 3, 4);
        assert_tokens(&a, 10 + i, 3, said + cases[i].from + 3, cases[i].n);
        drafter_end(f->d, 10 + i, false);
    }
    drafter_stats(f->d, &s);
    assert_true(s.foreign == 0 && s.kept_texts == 1 && s.index_bytes > 0);
}

/* ---- kinds ---- */

static void write_recorded(struct fixture *f, const char *text)
{
    strcpy(f->path, "/tmp/flotilla-draft-XXXXXX");
    int fd = mkstemp(f->path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(close(fd), 0);
}

static void write_model(struct fixture *f)
{
    struct buf keys = {0};
    tiny_vocab_keys(&keys, TINY_VOCAB, "t", END, -1);
    const struct tiny_llama t = {
        .layers = 2, .type = QTYPE_F32, .seed = 5, .keys = &keys, .n_keys = TINY_VOCAB_KEYS};
    strcpy(f->path, "/tmp/flotilla-draft-XXXXXX");
    assert_true(tiny_llama_write(&t, f->path));
    buf_close(&keys);
}

static void test_recorded_texts_of_several_requests(void **state)
{
    struct fixture *f = *state;
    static const int32_t a[] = {1, 2, 3, 4, 5, 6, 8, 9}, b[] = {1, 3, 11, 12, END, 13};
    struct drafter_answer got;
    write_recorded(f, "1 2 3 4 5 6 8 9\n1 3 11 12 7 13\n");
    open_drafter(f, DRAFT_RECORDED);
    begin(f, 1, DRAFT_RECORDED, a, 2);
    begin(f, 2, DRAFT_RECORDED, b, 2);
    begin(f, 3, DRAFT_RECORDED, b + 1, 1);
    for (uint32_t i = 2; i < 5; i++) {
        got = ask_next(f, 1, i, 3);
        assert_tokens(&got, 1, i, a + i, 3);
        assert_int_equal(got.kind, DRAFT_RECORDED);
        got = ask_next(f, 2, i, 4);
        assert_tokens(&got, 2, i, b + i, 5 - i); /* up to the end token */
        drafter_tokens(f->d, 1, i, a + i, 1);
        drafter_tokens(f->d, 2, i, b + i, 1);
    }
    got = ask_next(f, 3, 1, 4);
    assert_tokens(&got, 3, 1, NULL, 0);
    assert_true(drafter_has(f->d, DRAFT_RECORDED) && drafter_has(f->d, DRAFT_NGRAM));
    assert_false(drafter_has(f->d, DRAFT_MODEL));
}

/* What the model says after `tokens`, by a drafter of its own. */
static void say(struct fixture *f, uint64_t request, const int32_t *tokens, uint32_t n,
                int32_t *ret, uint32_t n_ret)
{
    const struct drafter_request r = {.request = request,
                                      .tenant = request,
                                      .kind = DRAFT_MODEL,
                                      .tokens = tokens,
                                      .n_tokens = n,
                                      .n_prompt = n,
                                      .sampling = &plain,
                                      .ignore_ends = true};
    assert_int_equal(drafter_begin(f->d, &r, &f->em), 0);
    for (uint32_t got = 0; got < n_ret;) {
        struct drafter_answer a = ask_next(f, request, n + got, n_ret - got < 8 ? n_ret - got : 8);
        assert_true(a.rc == 0 && a.n > 0 && a.kind == DRAFT_MODEL);
        memcpy(ret + got, a.tokens, a.n * sizeof *ret);
        drafter_tokens(f->d, request, n + got, a.tokens, a.n);
        got += a.n;
    }
    drafter_end(f->d, request, false);
}

/* A draft's failure says that it is the draft's, and its request and others go on. */
static void test_a_failed_draft(void **state)
{
    struct fixture *f = *state;
    static const int32_t good[] = {1, 2, 3}, bad[] = {1, 2, TINY_VOCAB};
    struct drafter_answer a;
    struct drafter_stats s;
    write_model(f);
    open_drafter(f, DRAFT_MODEL);
    begin(f, 1, DRAFT_MODEL, bad, 3);
    begin(f, 2, DRAFT_MODEL, good, 3);
    begin(f, 3, DRAFT_NGRAM, bad, 3);
    for (uint32_t i = 0; i < 2; i++) {
        a = ask_next(f, 1, 3, 4);
        assert_true(a.rc == ERR_RANGE && a.n == 0 && a.kind == DRAFT_MODEL && a.error[0]);
        a = ask_next(f, 2, 3, 4);
        assert_true(a.rc == 0 && a.n > 0 && !a.error[0]);
    }
    a = ask_next(f, 3, 3, 4);
    assert_int_equal(a.rc, 0);
    drafter_stats(f->d, &s);
    assert_true(s.kinds[DRAFT_MODEL].failed == 2 && s.rows > 0 && s.pages_used > 0);
}

/* A long prompt is computed in turns, and a short request's ask is answered between them. */
static void test_long_prompts_take_turns(void **state)
{
    struct fixture *f = *state;
    int32_t text[120];
    for (int32_t i = 0; i < 120; i++) text[i] = i % 40;
    write_model(f);
    open_drafter(f, DRAFT_MODEL);
    begin(f, 1, DRAFT_MODEL, text, 120);
    begin(f, 2, DRAFT_MODEL, text, 5);
    set(&closed, true);
    assert_int_equal(ask(f, 1, 1, 120, 2), 0);
    wait_at_gate();
    assert_int_equal(ask(f, 2, 2, 5, 2), 0);
    set(&closed, false);
    struct drafter_answer a = next(f);
    assert_int_equal(a.request, 2);
    a = next(f);
    assert_true(a.request == 1 && a.n > 0);
    assert_int_equal(n_turns, 3);
}

/* A newer ask takes the place of one whose prompt is still being computed. */
static void test_a_newer_ask_ends_a_long_one(void **state)
{
    struct fixture *f = *state;
    int32_t text[120];
    struct drafter_stats s;
    for (int32_t i = 0; i < 120; i++) text[i] = i % 40;
    write_model(f);
    open_drafter(f, DRAFT_MODEL);
    begin(f, 1, DRAFT_MODEL, text, 120);
    set(&closed, true);
    assert_int_equal(ask(f, 1, 1, 120, 2), 0);
    wait_at_gate();
    assert_int_equal(ask(f, 1, 2, 120, 1), 0);
    set(&closed, false);
    struct drafter_answer a = next(f);
    assert_true(a.serial == 2 && a.n == 1);
    assert_false(drafter_take(f->d, &a));
    drafter_stats(f->d, &s);
    assert_true(s.replaced == 1 && s.answers == 1);
    for (uint64_t i = 0; i < 2 * ASKS; i++) { /* nothing of it counts any more */
        assert_int_equal(ask(f, 1, i, 120, 1), 0);
        (void)next(f);
    }
}

/* ---- auto ---- */

static void begin_auto(struct fixture *f, uint64_t request, const int32_t *tokens, uint32_t n)
{
    const struct drafter_request r = {.request = request,
                                      .tenant = request,
                                      .kind = DRAFT_AUTO,
                                      .tokens = tokens,
                                      .n_tokens = n,
                                      .n_prompt = n,
                                      .sampling = &plain,
                                      .ignore_ends = true};
    if (drafter_begin(f->d, &r, &f->em) < 0) fail_msg("%s", f->em.text);
}

/* A target that says `answer`: each ask's draft is verified. Returns the kinds of the last 20
 * drafts. */
static void answer_with(struct fixture *f, uint64_t request, uint32_t pos, const int32_t *answer,
                        uint32_t n, uint32_t ret_kinds[DRAFT_N_KINDS])
{
    memset(ret_kinds, 0, DRAFT_N_KINDS * sizeof *ret_kinds);
    for (uint32_t i = 0; i < n;) {
        struct drafter_answer a = ask_next(f, request, pos + i, 4);
        uint32_t ok = 0;
        while (ok < a.n && i + ok < n && a.tokens[ok] == answer[i + ok]) ok++;
        uint32_t more = i + ok + 1 <= n ? ok + 1 : n - i;
        drafter_tokens(f->d, request, pos + i, answer + i, more);
        i += more;
        if (i > n / 2) ret_kinds[a.kind]++;
    }
}

/* For each request what was right more often. */
static void test_auto_follows_what_is_right(void **state)
{
    struct fixture *f = *state;
    int32_t prompt[60], answer[60];
    uint32_t kinds[DRAFT_N_KINDS];
    write_model(f);
    open_drafter(f, DRAFT_AUTO);
    assert_true(drafter_has(f->d, DRAFT_MODEL) && drafter_has(f->d, DRAFT_NGRAM));
    /* The target is the model. What the prompt has behind the same tokens is never right. */
    int32_t first[5] = {3, 1, 4, 1, 5};
    say(f, 1, first, 5, answer, 60);
    begin_auto(f, 2, first, 5);
    answer_with(f, 2, 5, answer, 60, kinds);
    assert_true(kinds[DRAFT_MODEL] > 4 * (kinds[DRAFT_NGRAM] + kinds[DRAFT_OFF]));
    /* The target repeats the prompt, which is noise to the model. */
    struct rng rng = {4};
    for (uint32_t i = 0; i < 60; i++) prompt[i] = (int32_t)rng_below(&rng, TINY_VOCAB);
    begin_auto(f, 3, prompt, 60);
    answer_with(f, 3, 60, prompt, 60, kinds);
    assert_true(kinds[DRAFT_NGRAM] > 2 * (kinds[DRAFT_MODEL] + kinds[DRAFT_OFF]));
}

/* Where the chain gains nothing from drafts there are none. */
static void test_auto_by_the_chain(void **state)
{
    struct fixture *f = *state;
    int32_t text[23];
    static const struct gain_chain
        dear = {.n_points = 2, .rows = {1, 32}, .slowest_ns = {1e6, 32e6}, .all_ns = {1e6, 32e6}},
        idle = {
            .n_points = 1, .rows = {1}, .slowest_ns = {10e6}, .all_ns = {40e6}, .outside_ns = 1e9};
    const struct gain_load load = {.decoding = 1};
    fill(text);
    open_drafter(f, DRAFT_AUTO);
    assert_false(drafter_has(f->d, DRAFT_MODEL));
    begin(f, 1, DRAFT_AUTO, text, 23);
    for (uint32_t i = 0; i < 4; i++) {
        const struct drafter_ask a = {.request = 1,
                                      .first_pos = 23,
                                      .want = 4,
                                      .chain = i % 2 ? &idle : &dear,
                                      .load = &load};
        assert_int_equal(drafter_ask(f->d, &a, &f->em), 0);
        struct drafter_answer got = next(f);
        assert_tokens(&got, 1, 23, text + 3, i % 2 ? 4 : 0);
        assert_int_equal(got.kind, i % 2 ? DRAFT_NGRAM : DRAFT_OFF);
    }
}

/* ---- what is refused ---- */

static void test_what_is_refused_at_open(void **state)
{
    struct fixture *f = *state;
    struct drafter *none = NULL;
    write_recorded(f, "1 2 48\n");
    assert_int_equal(try_open(f, DRAFT_RECORDED, 0), ERR_FORMAT);
    assert_non_null(strstr(f->em.text, ":1: token 48"));
    assert_ptr_equal(f->d, none);
    assert_int_equal(try_open(f, DRAFT_MODEL, 0), ERR_FORMAT);
    assert_non_null(strstr(f->em.text, f->path));
    assert_int_equal(unlink(f->path), 0);
    write_model(f);
    assert_int_equal(try_open(f, DRAFT_AUTO, DRAFT_MEMORY_LEAST), ERR_NOMEM);
    assert_non_null(strstr(f->em.text, "MiB"));
    struct draft_settings s = DRAFT_DEFAULTS;
    struct drafter_options o = {.settings = &s, .ctx = 8, .requests_max = 1, .asks_max = 1};
    s.length = 33;
    assert_int_equal(drafter_open(f->net, &o, &f->d, &f->em), ERR_RANGE);
    assert_non_null(strstr(f->em.text, "33"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
        T(test_asks_are_answered),
        T(test_the_newest_ask_counts),
        T(test_queues_are_bounded),
        T(test_an_end_takes_its_asks_along),
        T(test_close_with_asks),
        T(test_stale_asks),
        T(test_nothing_behind_an_end),
        T(test_texts_beyond_the_context),
        T(test_no_memory_for_a_text),
        T(test_outcomes_are_counted),
        T(test_outputs_serve_their_tenant_only),
        T(test_recorded_texts_of_several_requests),
        T(test_a_failed_draft),
        T(test_long_prompts_take_turns),
        T(test_a_newer_ask_ends_a_long_one),
        T(test_auto_follows_what_is_right),
        T(test_auto_by_the_chain),
        T(test_what_is_refused_at_open),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
