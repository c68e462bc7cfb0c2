/* A Step whose rows want more logits than the engine holds at once, on the last stage (stage_work),
 * without sockets. */
#include "worker/stage_work.h"

#include "common/engine/engine.h"
#include "tests/lib/tiny_llama.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/stage_steps.h"

#define MANY 40u
#define LARGE_VOCAB (1u << 18) /* logits of 16 rows are held at once */

/* The result of a Step of rows that want tokens, each of a request of its own. */
static void many_steps(struct stage_work *w, struct msg_run *runs, uint32_t n, int32_t *ret)
{
    struct stage_output out;
    for (uint32_t i = 0; i < MANY; i += n) {
        step(w, runs + i, n, &out);
        for (uint32_t k = 0; k < n; k++) {
            ret[i + k] = out.result.runs[k].tokens[0];
            assert_int_equal(out.result.runs[k].first_pos, runs[i + k].n_rows);
        }
    }
}

/* One Step has the tokens of as many sequences as a message may have, with a vocabulary of whose
 * logits the engine holds fewer rows: the same ones as a Step for each. A run of guesses whose rows
 * lie in several groups is verified up to the first wrong one. */
static void test_more_rows_than_logits(void **state)
{
    (void)state;
    struct errmsg em = {0};
    const struct tiny_llama t = {.layers = 1, .vocab = LARGE_VOCAB, .type = QTYPE_Q8_0, .seed = 8};
    struct msg_assign a = {.header_digest = 0,
                           .kv_type = KV_F16,
                           .n_pages = PAGES,
                           .ctx = PAGES * LIMIT_PAGE,
                           .rows_max = MANY,
                           .logits_max = MANY};
    struct weights *large;
    struct msg_run runs[MANY];
    struct stage_output out;
    int32_t tokens[MANY], alone[MANY], together[MANY], said[MANY];
    for (uint32_t i = 0; i < PAGES; i++) straight[i] = i;
    (void)snprintf(a.model_path, sizeof a.model_path, "/tmp/flotilla-logits-test-XXXXXX");
    if (!tiny_llama_write(&t, a.model_path)) fail_msg("%s", a.model_path);
    if (weights_open(a.model_path, &large, &em) < 0) fail_msg("%s", em.text);
    a.header_digest = weights_digest(large);
    weights_close(large);
    struct stage_work *w = open_work(&a);
    for (uint32_t i = 0; i < MANY; i++) {
        tokens[i] = (int32_t)(i * 6551 % LARGE_VOCAB);
        runs[i] = run_of(1 + i, 0, 1, &tokens[i]);
        runs[i].pages = &straight[i];
        runs[i].open.sampling.temp = 0.7f;
        runs[i].open.sampling.seed = i;
    }
    many_steps(w, runs, 1, alone);
    many_steps(w, runs, MANY, together);
    assert_memory_equal(together, alone, sizeof alone);
    /* The most likely text, row by row; then all of it as guesses, of which the 30th is wrong. */
    said[0] = tokens[0];
    for (uint32_t i = 0; i + 1 < MANY; i++) {
        struct msg_run r = run_of(100, i, 1, &said[i]);
        step(w, &r, 1, &out);
        said[i + 1] = out.result.runs[0].tokens[0];
    }
    int32_t right = said[30];
    said[30] = (right + 1) % (int32_t)LARGE_VOCAB;
    struct msg_run all = run_of(101, 0, MANY, said);
    all.kind = RUN_VERIFY;
    all.n_logits = MANY;
    all.n_guesses = MANY - 1;
    struct msg_step s = {
        .number = 1, .width = TINY_HIDDEN, .rows = MANY, .n_runs = 1, .runs = &all};
    if (stage_work_step(w, &s, NULL, &out, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(out.result.runs[0].n_tokens, 30);
    for (uint32_t i = 0; i < 29; i++) assert_int_equal(out.result.runs[0].tokens[i], said[i + 1]);
    assert_int_equal(out.result.runs[0].tokens[29], right);
    stage_work_close(w);
    assert_int_equal(unlink(a.model_path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_more_rows_than_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
