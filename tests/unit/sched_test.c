/* What a Step holds: how many decodes, how many rows of prompts, and how many Steps are in flight.
 */
#include "tests/lib/core_fixture.h"

static void answer_all(struct fixture *r)
{
    while (r->n_flight) (void)ready_answer(r, 0);
}

/* There are two stages, but a Step is under way four times as long as a stage computes it: eight
 * sequences are put into four Steps, so that the stages have work while other Steps travel. */
static void test_decodes_by_the_round_trip(void **state)
{
    (void)state;
    struct core_config k = ready_config();
    k.window = 8;
    struct fixture r = ready_open(k);
    ready_submit(&r, 1, 3, 4, 400, PRIORITY_NORMAL);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(ready_compose(&r), 1);
        r.now_ns += 4 * MS;
        (void)ready_answer(&r, 1 * MS);
    }
    for (uint64_t id = 2; id <= 8; id++)
        ready_submit(&r, id, 3 + (int32_t)id, 4, 400, PRIORITY_NORMAL);
    uint32_t n_decoding = 0;
    for (int i = 0; i < 10 && n_decoding < 8; i++) { /* until all decode, and none is in flight */
        (void)ready_compose(&r);
        answer_all(&r);
        n_decoding = 0;
        for (uint32_t s = 0; s < core_n_sequences(r.core); s++)
            n_decoding += core_sequence_at(r.core, s).n_issued >= 4;
    }
    assert_int_equal(n_decoding, 8);
    assert_int_equal(ready_compose(&r), 4);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(r.flight[i].n_decodes, 2);
    core_close(r.core);
}

/* While a request's first token is on its way, a Step of another's prompt takes a quarter of the
 * time that it may take otherwise, so that the request decodes soon. A row takes 1 ms, a Step up
 * to 75. */
static void test_steps_are_a_quarter_while_one_is_about_to_decode(void **state)
{
    (void)state;
    for (uint32_t max_new = 1; max_new <= 2; max_new++) {
        struct core_config k = ready_config();
        k.share = false;
        struct fixture r = ready_open(k);
        ready_submit(&r, 1, 3, 1500, 1, PRIORITY_NORMAL);
        while (ready_compose(&r) || r.n_flight) {
            r.now_ns += r.flight[0].rows * MS;
            (void)ready_answer(&r, r.flight[0].rows * MS);
        }
        ready_submit(&r, 2, 4, 4, max_new, PRIORITY_NORMAL);
        ready_submit(&r, 3, 5, 400, 1, PRIORITY_NORMAL);
        assert_int_equal(ready_compose(&r), 2);
        assert_int_equal(r.flight[0].runs[0].request, 2); /* its prompt is all in the first Step */
        assert_int_equal(r.flight[1].n_runs, 1);
        if (max_new == 1)
            assert_in_range(r.flight[1].rows, 48, 80);
        else
            assert_in_range(r.flight[1].rows, 8, 20);
        core_close(r.core);
    }
}

/* One stage, Steps of three rows: a high request and a low one decode, a normal one has a long
 * prompt. When the low one is preempted for the high one's next page, its row goes to the prompt.
 */
static void test_a_preempted_decode_gives_its_row_back(void **state)
{
    (void)state;
    struct core_config k = ready_config();
    k.n_stages = 1;
    k.window = 1;
    k.n_pages = 10;
    k.ctx = 150;
    k.rows_max = 3;
    k.share = false;
    struct fixture r = ready_open(k);
    ready_submit(&r, 1, 3, 3, 130, PRIORITY_HIGH);
    ready_submit(&r, 2, 4, 6, 130, PRIORITY_LOW);
    uint32_t n_steps = 0;
    struct ready_step s = {0};
    for (; ready_cache(&r).preemptions == 0 && n_steps < 200; n_steps++) {
        if (n_steps == 10) ready_submit(&r, 3, 5, 60, 1, PRIORITY_NORMAL);
        assert_int_equal(ready_compose(&r), 1);
        s = ready_answer(&r, 0);
        if (n_steps > 12 && ready_cache(&r).preemptions == 0) assert_int_equal(s.n_runs, 3);
    }
    assert_int_equal(ready_cache(&r).preemptions, 1);
    assert_int_equal(s.n_runs, 2);
    assert_int_equal(s.runs[0].request, 1);
    assert_int_equal(s.runs[1].request, 3);
    assert_int_equal(s.runs[1].n_rows, 2);
    core_close(r.core);
}

/* Rows of prompts and replays count as computed, those of decodes do not. */
static void test_what_counts_as_computed(void **state)
{
    (void)state;
    struct fixture r = ready_open(ready_config());
    ready_submit(&r, 1, 3, 20, 6, PRIORITY_NORMAL);
    while (ready_compose(&r)) answer_all(&r);
    assert_int_equal(r.n_ended, 1);
    assert_int_equal(ready_cache(&r).tokens_computed, 20);
    core_close(r.core);
}

static void test_the_window_is_never_exceeded(void **state)
{
    (void)state;
    for (uint32_t window = 1; window <= 5; window++) {
        struct core_config k = ready_config();
        k.window = window;
        k.rows_max = 8;
        struct fixture r = ready_open(k);
        ready_submit(&r, 1, 3, 400, 1, PRIORITY_NORMAL);
        assert_int_equal(ready_compose(&r), window);
        assert_int_equal(ready_compose(&r), 0);
        (void)ready_answer(&r, 0);
        assert_int_equal(ready_compose(&r), 1);
        assert_int_equal(core_in_flight(r.core, 0), window);
        core_close(r.core);
    }
}

/* A Step's only row of logits is the most urgent request's, although a prompt waits; of two rows,
 * one is the prompt's. */
static void test_the_last_place_of_a_step(void **state)
{
    (void)state;
    for (uint32_t places = 1; places <= 2; places++) {
        struct core_config k = ready_config();
        k.n_stages = k.window = 1;
        k.logits_max = places;
        struct fixture r = ready_open(k);
        ready_submit(&r, 1, 3, 4, 90, PRIORITY_NORMAL);
        ready_submit(&r, 2, 4, 4, 90, PRIORITY_NORMAL);
        for (int i = 0; i < 8; i++) {
            (void)ready_compose(&r);
            answer_all(&r);
        }
        ready_submit(&r, 3, 5, 40, 1, PRIORITY_NORMAL);
        assert_int_equal(ready_compose(&r), 1);
        assert_int_equal(r.flight[0].runs[0].request, 1);
        assert_int_equal(r.flight[0].runs[0].kind, RUN_DECODE);
        assert_int_equal(r.flight[0].n_decodes, 1);
        core_close(r.core);
    }
}

/* Of two prompts that wait, the first takes half of a Step's rows, not all. */
static void test_prompts_share_a_step(void **state)
{
    (void)state;
    struct core_config k = ready_config();
    k.n_stages = k.window = 1;
    k.rows_max = 64;
    struct fixture r = ready_open(k);
    ready_submit(&r, 1, 3, 300, 1, PRIORITY_NORMAL);
    ready_submit(&r, 2, 4, 300, 1, PRIORITY_NORMAL);
    assert_int_equal(ready_compose(&r), 1);
    assert_int_equal(r.flight[0].n_runs, 2);
    assert_int_equal(r.flight[0].runs[0].n_rows, 32);
    assert_int_equal(r.flight[0].runs[1].n_rows, 32);
    core_close(r.core);
}

/* Of two equal prompts, the second waits behind the first: each shared page is computed once. */
static void test_a_like_prompt_rides_behind(void **state)
{
    (void)state;
    struct core_config k = ready_config();
    k.n_stages = k.window = 1;
    k.rows_max = 24;
    struct fixture r = ready_open(k);
    ready_submit(&r, 1, 3, 80, 1, PRIORITY_NORMAL);
    ready_submit(&r, 2, 3, 80, 1, PRIORITY_NORMAL);
    while (ready_compose(&r)) answer_all(&r);
    assert_int_equal(r.n_ended, 2);
    /* 80, and the last page again: it has the last row, whose logits the second needs too. */
    assert_int_equal(ready_cache(&r).tokens_computed, 80 + 16);
    core_close(r.core);
}

/* Beside a decode, this prompt gets a row only once in window + 1 Steps. When the decode, which is
 * less urgent, finds no page, there are no Steps to count, and the prompt goes on at once. So
 * whenever the prompt comes, a Step is in flight until both requests have ended. */
static void test_a_decode_without_a_page_holds_up_no_prompt(void **state)
{
    (void)state;
    for (int start = 1; start < 60; start++) {
        struct core_config k = ready_config();
        k.n_stages = 1;
        k.window = 3;
        k.n_pages = 6;
        k.ctx = 90;
        k.share = false;
        struct fixture r = ready_open(k);
        ready_submit(&r, 1, 3, 15, 70, PRIORITY_LOW);
        for (int i = 0; r.n_ended < 2; i++) {
            if (i == start) ready_submit(&r, 2, 4, 30, 1, PRIORITY_HIGH);
            (void)ready_compose(&r);
            if (core_n_sequences(r.core) == 0) break;
            assert_true(r.n_flight > 0);
            uint64_t ns = r.flight[0].rows * MS;
            r.now_ns += ns;
            (void)ready_answer(&r, ns);
        }
        core_close(r.core);
    }
}

/* More prompts than a Step may have runs: none takes the run of a decode that was chosen. */
static void test_runs_are_kept_for_decodes(void **state)
{
    (void)state;
    struct core_config k = ready_config();
    k.max_live = k.max_running = k.max_per_client = LIMIT_STEP_RUNS + 2;
    k.n_pages = 2 * LIMIT_STEP_RUNS;
    k.logits_max = LIMIT_STEP_LOGITS;
    k.step_ns = 60 * NS_PER_S;
    k.window = 1;
    k.draft = (struct draft_settings){.kind = DRAFT_NGRAM, .pipelined = true};
    struct fixture r = ready_open(k);
    ready_submit(&r, 1, 3, 4, 400, PRIORITY_NORMAL);
    assert_int_equal(ready_compose(&r), 1);
    answer_all(&r);
    for (uint64_t id = 2; id <= LIMIT_STEP_RUNS + 1; id++)
        ready_submit(&r, id, (int32_t)(id % 40), id > LIMIT_STEP_RUNS ? 2 : 1, 400, PRIORITY_HIGH);
    const struct action *a = first(feed(&r, (struct event){.type = EV_COMPOSE}), ACT_STEP);
    assert_non_null(a);
    assert_int_equal(a->step->n_runs, LIMIT_STEP_RUNS);
    uint32_t n_decodes = 0;
    for (uint32_t i = 0; i < a->step->n_runs; i++)
        n_decodes += a->step->runs[i].request == 1 && a->step->runs[i].kind == RUN_DECODE;
    assert_int_equal(n_decodes, 1);
    core_close(r.core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decodes_by_the_round_trip),
        cmocka_unit_test(test_steps_are_a_quarter_while_one_is_about_to_decode),
        cmocka_unit_test(test_a_preempted_decode_gives_its_row_back),
        cmocka_unit_test(test_what_counts_as_computed),
        cmocka_unit_test(test_the_window_is_never_exceeded),
        cmocka_unit_test(test_the_last_place_of_a_step),
        cmocka_unit_test(test_prompts_share_a_step),
        cmocka_unit_test(test_a_like_prompt_rides_behind),
        cmocka_unit_test(test_a_decode_without_a_page_holds_up_no_prompt),
        cmocka_unit_test(test_runs_are_kept_for_decodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
