/* Requests for embeddings in the core: what their runs ask for, what of a result counts, and that
 * every row of a prompt is computed for it. */
#include "tests/lib/core_fixture.h"

#include "common/base/mem.h"

#include <math.h>

#define PROMPT 40u /* tokens, in runs of 16, 16 and 8 */
#define WIDTH 8u   /* of core_config.h */

static const float direction[WIDTH] = {0.5f, -0.5f, 0.5f, 0.5f};

/* Of the Step that was composed last. */
static struct {
    uint64_t number, closed[4];
    uint32_t n_runs, n_closed;
    struct msg_run runs[8]; /* without their tokens and pages */
} last;

static struct event embed(uint64_t id, uint32_t n_prompt)
{
    struct event e = request(id, n_prompt, 0, PRIORITY_NORMAL);
    e.submit.embed = true;
    return e;
}

static bool compose(struct fixture *f)
{
    const struct action *a = first(feed(f, (struct event){.type = EV_COMPOSE}), ACT_STEP);
    if (!a) return false;
    last.number = a->step->number;
    last.n_runs = a->step->n_runs;
    last.n_closed = a->step->n_closed;
    memcpy(last.runs, a->step->runs, last.n_runs * sizeof *last.runs);
    if (last.n_closed) memcpy(last.closed, a->step->closed, last.n_closed * sizeof *last.closed);
    return true;
}

static struct actions answer(struct fixture *f, const struct msg_run_result *runs, uint32_t n)
{
    struct msg_result r = {.epoch = f->epoch, .number = last.number, .runs = runs, .n_runs = n};
    return feed(f, (struct event){.type = EV_RESULT, .result = &r});
}

static struct msg_run_result answer_of(const struct msg_run *r)
{
    return (struct msg_run_result){.request = r->request,
                                   .attempt = r->attempt,
                                   .sample = r->sample,
                                   .first_pos = r->first_pos + r->n_rows + 1,
                                   .embedding = direction,
                                   .n_embedding = WIDTH};
}

/* Runs of the request's prompt from position 0 up to the last, which is left in flight. */
static void run_to_the_last(struct fixture *f, uint64_t id, uint32_t attempt)
{
    for (uint32_t at = 0; at < PROMPT; at += 16) {
        assert_true(compose(f));
        assert_int_equal(last.n_runs, 1);
        const struct msg_run *r = &last.runs[0];
        assert_true(r->request == id && r->attempt == attempt && r->kind == RUN_PREFILL);
        assert_true(r->first_pos == at && r->n_rows == (PROMPT - at < 16 ? PROMPT - at : 16));
        assert_true(r->embed == PROMPT && r->n_logits == 0 && !r->has_open);
        if (!msg_run_embeds(r)) assert_int_equal(answer(f, NULL, 0).n, 0);
    }
}

static void expect_embedding(struct actions a, uint64_t id)
{
    assert_int_equal(a.n, 2);
    assert_int_equal(a.items[0].type, ACT_EMBEDDING);
    assert_true(a.items[0].embedding.request == id && a.items[0].embedding.n == WIDTH);
    assert_memory_equal(a.items[0].embedding.values, direction, sizeof direction);
    expect_end(a, STATUS_OK, "");
    assert_int_equal(first(a, ACT_END)->end.finish_reason, FINISH_NONE);
}

/* One Step at a time. */
static void one_by_one(struct fixture *f)
{
    struct core_config k = config();
    k.window = 1;
    reopen(f, k);
}

static void test_an_embedding(void **state)
{
    struct fixture *f = *state;
    one_by_one(f);
    assert_null(first(feed(f, embed(1, PROMPT)), ACT_END));
    run_to_the_last(f, 1, 1);
    struct msg_run_result x = answer_of(&last.runs[0]);
    expect_embedding(answer(f, &x, 1), 1);
    assert_int_equal(core_n_sequences(f->core), 0);
    assert_false(compose(f));
    (void)submit(f, 2, 3, 1); /* the next Step has the last stage forget the sum */
    assert_true(compose(f));
    assert_true(last.n_closed == 1 && last.closed[0] == 1);
}

/* An embedding takes no row from the prefix cache, and leaves none there. */
static void test_nothing_is_shared(void **state)
{
    struct fixture *f = *state;
    struct msg_step s;
    struct msg_run r[8];
    one_by_one(f);
    (void)feed(f, embed(1, PROMPT));
    run_to_the_last(f, 1, 1);
    struct msg_run_result x = answer_of(&last.runs[0]);
    (void)answer(f, &x, 1);
    assert_int_equal(core_pages(f->core, 0).n_cached, 0);
    (void)submit(f, 2, PROMPT, 1);
    assert_true(turn(f, &s, r));
    assert_true(r[0].request == 2 && r[0].first_pos == 0);
    while (turn(f, &s, r)) continue;
    assert_int_equal(core_pages(f->core, 0).n_cached, 2); /* whole ones */
    (void)feed(f, embed(3, PROMPT));
    run_to_the_last(f, 3, 1);
    x = answer_of(&last.runs[0]);
    expect_embedding(answer(f, &x, 1), 3);
    assert_int_equal(core_pages(f->core, 0).n_cached, 2);
    assert_int_equal(ready_cache(f).lookups, 1); /* of the answer alone */
}

/* Each result differs from what was asked for in one thing. Nothing of it counts, and the prompt is
 * computed again, from its first row on. */
static void test_wrong_results(void **state)
{
    struct fixture *f = *state;
    static const int32_t token = 7;
    static const float no_number[WIDTH] = {[3] = NAN};
    for (int i = 0; i < 8; i++) {
        one_by_one(f);
        (void)feed(f, embed(9, PROMPT));
        run_to_the_last(f, 9, 1);
        struct msg_run_result x = answer_of(&last.runs[0]);
        uint32_t n = 1;
        switch (i) {
        case 0: x.n_embedding--; break;
        case 1: x.embedding = no_number; break;
        case 2: x.first_pos--; break;
        case 3: x.attempt++; break;
        case 4: x.dead = true; break;
        case 5: n = 0; break;
        case 6: x.n_embedding = 0; break;
        default:
            x.n_embedding = 0;
            x.tokens = &token;
            x.n_tokens = 1;
        }
        struct actions a = answer(f, &x, n);
        assert_null(first(a, ACT_EMBEDDING));
        assert_null(first(a, ACT_END));
        assert_non_null(first(a, ACT_LINK_CLOSE));
        assert_non_null(strstr(first(a, ACT_NOTE)->note, "worker b is not what was asked for"));
        f->now_ns += 200 * MS;
        begin_generation(f, feed(f, (struct event){.type = EV_TICK}));
        run_to_the_last(f, 9, 2);
        x = answer_of(&last.runs[0]);
        expect_embedding(answer(f, &x, 1), 9);
    }
}

/* Who wants tokens is told no numbers, in their place or beside them. */
static void test_an_uninvited_embedding(void **state)
{
    struct fixture *f = *state;
    static const int32_t token = 7;
    for (uint32_t n_tokens = 0; n_tokens < 2; n_tokens++) {
        one_by_one(f);
        (void)submit(f, 9, 4, 2);
        assert_true(compose(f));
        struct msg_run_result x = answer_of(&last.runs[0]);
        x.first_pos--;
        x.n_tokens = n_tokens;
        x.tokens = &token;
        assert_non_null(first(answer(f, &x, 1), ACT_LINK_CLOSE));
    }
}

static void test_an_error(void **state)
{
    struct fixture *f = *state;
    one_by_one(f);
    (void)feed(f, embed(9, PROMPT));
    run_to_the_last(f, 9, 1);
    struct msg_run_result x = answer_of(&last.runs[0]);
    x.n_embedding = 0;
    x.error = "not finite";
    struct actions a = answer(f, &x, 1);
    expect_end(a, STATUS_INTERNAL, "not finite");
    assert_null(first(a, ACT_LINK_CLOSE));
    assert_null(first(a, ACT_EMBEDDING));
}

/* A generation that is lost in the middle of a prompt takes the sum with it. */
static void test_replay(void **state)
{
    struct fixture *f = *state;
    one_by_one(f);
    (void)feed(f, embed(1, PROMPT));
    assert_true(compose(f));
    (void)answer(f, NULL, 0);
    assert_true(compose(f));
    assert_int_equal(last.runs[0].first_pos, 16);
    assert_non_null(
        first(from(f, 2, (struct msg_from_worker){.type = FROM_GOODBYE}), ACT_LINK_CLOSE));
    f->now_ns += 500 * MS;
    begin_generation(f, hello(f, 2, "b"));
    run_to_the_last(f, 1, 2);
    struct msg_run_result x = answer_of(&last.runs[0]);
    expect_embedding(answer(f, &x, 1), 1);
}

/* So many may live as the last stage has room for; each that ends makes room. */
static void test_limit(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    k.max_live = k.max_per_client = LIMIT_EMBEDS + 8;
    reopen(f, k);
    for (uint64_t id = 1; id <= LIMIT_EMBEDS; id++)
        assert_null(first(feed(f, embed(id, 3)), ACT_END));
    struct actions a = feed(f, embed(5000, 3));
    expect_end(a, STATUS_RESOURCE_EXHAUSTED, "256 requests for embeddings are live");
    assert_true(first(a, ACT_END)->end.retry_ms > 0);
    assert_null(first(submit(f, 5001, 3, 1), ACT_END));
    (void)feed(f, (struct event){.type = EV_CANCEL, .request = {7, "asked"}});
    assert_null(first(feed(f, embed(5002, 3)), ACT_END));
    expect_end(feed(f, embed(5003, 3)), STATUS_RESOURCE_EXHAUSTED, "embeddings");
}

/* A result has room for so many numbers: what is more waits for the next Step. */
static void test_room_of_a_result(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    k.window = 1;
    k.width = LIMIT_EMBEDDED / 2;
    reopen(f, k);
    for (uint64_t id = 1; id <= 3; id++) (void)feed(f, embed(id, 3));
    uint32_t n = 0;
    assert_true(compose(f));
    for (uint32_t i = 0; i < last.n_runs; i++) n += msg_run_embeds(&last.runs[i]);
    assert_int_equal(n, 2);
    float *values = mem_zalloc(k.width * sizeof *values);
    struct msg_run_result x[2] = {answer_of(&last.runs[0]), answer_of(&last.runs[1])};
    for (int i = 0; i < 2; i++) {
        x[i].embedding = values;
        x[i].n_embedding = k.width;
        assert_true(msg_run_embeds(&last.runs[i]));
    }
    assert_int_equal(answer(f, x, 2).n, 4);
    assert_true(compose(f));
    assert_true(last.n_runs == 1 && last.runs[0].request == 3 && msg_run_embeds(&last.runs[0]));
    mem_free(values);
    k.width = LIMIT_EMBEDDED + 1; /* no model is so wide */
    reopen(f, k);
    expect_end(feed(f, embed(1, 3)), STATUS_INVALID_ARGUMENT, "the limit is 262144");
}

/* ---- room ---- */

/* Answers the Step that was composed last: embeddings, and token 7 to whoever wants one. */
static void answer_all(struct fixture *f)
{
    static const int32_t token = 7;
    struct msg_run_result x[8];
    uint32_t n = 0;
    for (uint32_t i = 0; i < last.n_runs; i++) {
        const struct msg_run *r = &last.runs[i];
        if (msg_run_embeds(r))
            x[n++] = answer_of(r);
        else if (r->n_logits)
            x[n++] = (struct msg_run_result){.request = r->request,
                                             .attempt = r->attempt,
                                             .sample = r->sample,
                                             .first_pos = r->first_pos + r->n_rows,
                                             .n_tokens = 1,
                                             .tokens = &token};
    }
    struct actions a = answer(f, x, n);
    for (size_t i = 0; i < a.n; i++) f->n_ended += a.items[i].type == ACT_END;
}

static void finish(struct fixture *f)
{
    while (compose(f)) answer_all(f);
}

/* A core with so many pages, and one Step at a time. */
static void small_pool(struct fixture *f, uint32_t n_pages)
{
    struct core_config k = config();
    k.n_pages = n_pages;
    k.window = 1;
    reopen(f, k);
    f->n_ended = 0;
}

static void expect_work(struct fixture *f, uint32_t n_ended, uint64_t rows, uint64_t preemptions)
{
    struct msg_cache_status s = ready_cache(f);
    assert_int_equal(f->n_ended, n_ended);
    assert_int_equal(s.tokens_computed, rows);
    assert_int_equal(s.preemptions, preemptions);
    assert_int_equal(s.pages_held, 0);
    assert_int_equal(s.windowed_held, 0);
}

/* Three prompts of five pages each, and twelve pages: the third waits until one of the others has
 * ended, and each row is computed once. */
static void test_room_before_the_first_row(void **state)
{
    struct fixture *f = *state;
    small_pool(f, 12);
    for (uint64_t id = 1; id <= 3; id++) (void)feed(f, embed(id, 80));
    assert_true(compose(f));
    assert_true(ready_runs(f, 1) && ready_runs(f, 2) && !ready_runs(f, 3));
    assert_int_equal(ready_cache(f).pages_held, 10);
    answer_all(f);
    finish(f);
    expect_work(f, 3, 3 * 80, 0);
}

/* A prompt of six pages has taken one when an embedding of five comes: nine have room for both only
 * one after the other. */
static void test_room_beside_a_prompt(void **state)
{
    struct fixture *f = *state;
    small_pool(f, 9);
    (void)submit(f, 1, 90, 1);
    assert_true(compose(f));
    answer_all(f);
    assert_int_equal(ready_cache(f).pages_held, 1);
    (void)feed(f, embed(2, 80));
    assert_true(compose(f));
    assert_true(ready_runs(f, 1) && !ready_runs(f, 2));
    answer_all(f);
    finish(f);
    expect_work(f, 2, 90 + 80, 0);
}

/* An answer that was asked for before it takes its pages when others run out. Then it waits until
 * it can have them for good, and does not begin again in vain. */
static void test_room_is_taken_by_an_answer(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    k.window = 1;
    k.rows_max = 2; /* so one row of each in a Step */
    reopen(f, k);
    f->n_ended = 0;
    (void)submit(f, 1, 10, 70);
    (void)feed(f, embed(2, 80));
    uint64_t given_up = 0;
    while (compose(f)) {
        answer_all(f);
        if (ready_runs(f, 2)) continue;
        if (!given_up) given_up = ready_cache(f).tokens_computed;
        assert_true(f->n_ended == 0 || ready_cache(f).tokens_computed == given_up);
        if (f->n_ended) break;
    }
    assert_true(given_up > 10 && given_up < 90);
    finish(f);
    expect_work(f, 2, given_up + 80, 1);
}

/* Where layers see a window, an embedding has windowed pages for a chunk and the window before it
 * from the beginning, and never another one. */
static void test_room_in_windows(void **state)
{
    struct fixture *f = *state;
    struct core_config k = config();
    uint32_t each = room_window(32, 16, 16);
    k.n_pages = 24;
    k.window = 1;
    k.attn_window = 32;
    k.costs.windowed_least = k.costs.windowed_most = 2 * each + 2;
    reopen(f, k);
    f->n_ended = 0;
    for (uint64_t id = 1; id <= 3; id++) (void)feed(f, embed(id, 96)); /* six pages each */
    uint32_t steps = 0;
    for (; compose(f); steps++) {
        uint32_t n_running = 3 - f->n_ended < 2 ? 3 - f->n_ended : 2;
        uint32_t held = core_windowed(f->core, 0).n_held;
        if (steps == 0) assert_int_equal(held, 2 * each);
        assert_true(held <= n_running * each); /* fewer where the end is near */
        assert_int_equal(ready_cache(f).pages_held, n_running * 6);
        answer_all(f);
    }
    assert_true(steps > 12);
    expect_work(f, 3, 3 * 96, 0);
    (void)feed(f, embed(4, 96)); /* given up before its windowed pages have come to the end */
    assert_true(compose(f));
    (void)feed(f, (struct event){.type = EV_CANCEL, .request = {4, "asked"}});
    assert_int_equal(core_windowed(f->core, 0).n_held, 0);
    assert_int_equal(core_pages(f->core, 0).n_held, 0);
}

/* A worker of an earlier version would drop what it does not know: it is named, and the chain
 * serves all else. */
static void test_an_old_worker(void **state)
{
    struct fixture *f = *state;
    struct msg_step s;
    struct msg_run r[8];
    struct core_config k = config();
    core_close(f->core);
    f->core = core_open(&k);
    struct msg_from_worker old = {.type = FROM_HELLO, .hello = {.name = "a", .verifies = true}};
    (void)from(f, 1, old);
    begin_generation(f, hello(f, 2, "b"));
    (void)feed(f, embed(1, 3));
    expect_end(feed(f, (struct event){.type = EV_COMPOSE}), STATUS_UNIMPLEMENTED,
               "worker a is of a version without embeddings");
    (void)submit(f, 2, 3, 1);
    assert_true(turn(f, &s, r));
    assert_int_equal(f->n_new, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(test_an_embedding),
        TEST(test_nothing_is_shared),
        TEST(test_wrong_results),
        TEST(test_an_uninvited_embedding),
        TEST(test_an_error),
        TEST(test_replay),
        TEST(test_limit),
        TEST(test_room_of_a_result),
        TEST(test_an_old_worker),
        TEST(test_room_before_the_first_row),
        TEST(test_room_beside_a_prompt),
        TEST(test_room_is_taken_by_an_answer),
        TEST(test_room_in_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
