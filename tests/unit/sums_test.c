/* Embeddings on the last stage (stage_work and its sums), without sockets, on a tiny model: the
 * same bits however a prompt is cut, and what becomes of prompts that are begun again, or lack
 * rows. */
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

#define LAYERS 3u
#define PAGES 8u
#define ROWS 16u

static char path[] = "/tmp/flotilla-sums-test-XXXXXX";
static struct weights *model;
static const uint32_t straight[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};

static struct stage_work *open_work(uint32_t first, uint32_t last)
{
    struct errmsg em = {0};
    struct stage_work *w = NULL;
    struct msg_assign a = {.header_digest = weights_digest(model),
                           .layer_first = first,
                           .layer_last = last,
                           .kv_type = KV_F16,
                           .n_pages = PAGES,
                           .ctx = PAGES * LIMIT_PAGE,
                           .rows_max = ROWS,
                           .logits_max = ROWS,
                           .window = 4};
    (void)snprintf(a.model_path, sizeof a.model_path, "%s", path);
    struct stage_work_options o = {.assign = &a, .threads = 1};
    if (stage_work_open(&o, &w, &em) < 0) fail_msg("%s", em.text);
    return w;
}

/* Rows of tokens at positions first.., which want a token, or are of a prompt of `embed` tokens
 * whose embedding is wanted. */
static struct msg_run run_of(uint64_t request, uint32_t first, uint32_t n, const int32_t *list,
                             uint32_t embed)
{
    return (struct msg_run){.request = request,
                            .attempt = 1,
                            .first_pos = first,
                            .n_rows = n,
                            .n_logits = embed == 0,
                            .n_pages = (first + n + LIMIT_PAGE - 1) / LIMIT_PAGE,
                            .embed = embed,
                            .tokens = list + first,
                            .pages = straight,
                            .has_open = embed == 0,
                            .open = {.sampling = SAMPLING_PLAIN}};
}

#define EMBEDDED 40u /* tokens of a prompt whose embedding is wanted */

/* The embedding of a prompt by a chain, in runs of `chunk` rows; beside: other requests have rows
 * before and behind them. */
static void embed_by(struct stage_work **chain, uint32_t n_chain, uint32_t chunk, bool beside,
                     float *ret)
{
    static uint64_t request = 500;
    int32_t list[EMBEDDED];
    for (uint32_t i = 0; i < EMBEDDED; i++) list[i] = (int32_t)((7 * i * i + 3) % TINY_VOCAB);
    request++;
    for (uint32_t at = 0, n; at < EMBEDDED; at += n) {
        struct errmsg em = {0};
        struct stage_output out;
        const void *in = NULL;
        n = EMBEDDED - at < chunk ? EMBEDDED - at : chunk;
        struct msg_run runs[3] = {run_of(1, 0, 2, list, 0), run_of(request, at, n, list, EMBEDDED),
                                  run_of(2, 0, 1, list, 0)};
        runs[0].pages = &straight[PAGES / 2];
        runs[2].pages = &straight[PAGES / 2 + 1];
        struct msg_step s = {.number = 1,
                             .width = TINY_HIDDEN,
                             .rows = n + (beside ? 3 : 0),
                             .n_runs = beside ? 3 : 1,
                             .runs = beside ? runs : &runs[1]};
        for (uint32_t i = 0; i < n_chain; i++) {
            s.frame_bytes = i ? s.rows * TINY_HIDDEN * sizeof(float) : 0;
            if (stage_work_step(chain[i], &s, in, &out, &em) < 0) fail_msg("%s", em.text);
            in = out.activations;
        }
        bool last = at + n == EMBEDDED;
        assert_int_equal(out.result.n_runs, (beside ? 2 : 0) + last);
        if (beside) assert_int_equal(out.result.runs[0].n_tokens, 1);
        const struct msg_run_result *x = &out.result.runs[beside];
        if (!last) continue;
        if (x->error) fail_msg("%s", x->error);
        assert_true(x->request == request && x->n_embedding == TINY_HIDDEN && x->n_tokens == 0);
        assert_int_equal(x->first_pos, EMBEDDED + 1);
        memcpy(ret, x->embedding, TINY_HIDDEN * sizeof *ret);
    }
}

/* The same bits in whatever runs, beside whatever else, and on whatever slices; of length 1. */
static void test_embedding(void **state)
{
    (void)state;
    struct stage_work *w = open_work(0, LAYERS - 1);
    struct stage_work *cut[] = {open_work(0, 0), open_work(1, LAYERS - 1)};
    float want[TINY_HIDDEN], got[TINY_HIDDEN];
    double square = 0;
    embed_by(&w, 1, ROWS, false, want);
    for (uint32_t i = 0; i < TINY_HIDDEN; i++) square += (double)want[i] * (double)want[i];
    assert_true(square > 1 - 1e-6 && square < 1 + 1e-6);
    for (uint32_t chunk = 1; chunk <= ROWS - 3; chunk += 4)
        for (int beside = 0; beside < 2; beside++)
            for (int slices = 1; slices <= 2; slices++) {
                embed_by(slices == 1 ? &w : cut, (uint32_t)slices, chunk, beside, got);
                assert_memory_equal(got, want, sizeof want);
            }
    stage_work_close(w);
    stage_work_close(cut[0]);
    stage_work_close(cut[1]);
}

/* One Step with one run of a prompt of 12 tokens. */
static struct msg_run_result embed_step(struct stage_work *w, uint64_t request, uint32_t first,
                                        uint32_t n, uint64_t closed)
{
    static const int32_t list[12] = {3, 9, 40, 7, 7, 1, 12, 13, 5, 2, 30, 11};
    struct errmsg em = {0};
    struct stage_output out;
    struct msg_run r = run_of(request, first, n, list, 12);
    struct msg_step s = {.number = 1,
                         .width = TINY_HIDDEN,
                         .rows = n,
                         .n_runs = 1,
                         .runs = &r,
                         .n_closed = closed > 0,
                         .closed = &closed};
    if (stage_work_step(w, &s, NULL, &out, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(out.result.n_runs, first + n == 12);
    return out.result.n_runs ? out.result.runs[0] : (struct msg_run_result){0};
}

/* A prompt that is begun again is summed again; one that lacks rows ends with a reason, whatever
 * its last rows are. So many prompts have room as may live, and as many more that are not closed
 * yet. */
static void test_sums(void **state)
{
    (void)state;
    struct stage_work *w = open_work(0, LAYERS - 1);
    float want[TINY_HIDDEN];
    memcpy(want, embed_step(w, 1, 0, 12, 0).embedding, sizeof want);
    (void)embed_step(w, 2, 0, 5, 1);
    (void)embed_step(w, 2, 0, 7, 0);
    assert_memory_equal(embed_step(w, 2, 7, 5, 0).embedding, want, sizeof want);
    (void)embed_step(w, 3, 0, 4, 2);
    struct msg_run_result x = embed_step(w, 3, 8, 4, 0);
    assert_non_null(strstr(x.error, "lacks rows"));
    assert_true(!x.embedding && x.n_embedding == 0);
    stage_work_reset(w); /* another epoch: what was summed in the last one is gone */
    assert_non_null(embed_step(w, 3, 4, 8, 0).error);
    uint64_t n = 2 * LIMIT_EMBEDS;
    for (uint64_t i = 1; i <= n + 1; i++) (void)embed_step(w, i, 0, 11, 0);
    assert_memory_equal(embed_step(w, n, 11, 1, 0).embedding, want, sizeof want);
    assert_non_null(embed_step(w, n + 1, 11, 1, 0).error);
    (void)embed_step(w, 1, 0, 1, 9); /* 9 is closed */
    (void)embed_step(w, n + 2, 0, 11, 0);
    assert_memory_equal(embed_step(w, n + 2, 11, 1, 0).embedding, want, sizeof want);
    assert_non_null(embed_step(w, 9, 11, 1, 0).error);
    stage_work_close(w);
}

static int set_up(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct tiny_llama t = {.layers = LAYERS, .seed = 3};
    int rc = tiny_llama_write(&t, path) ? weights_open(path, &model, &em) : -1;
    if (rc < 0) (void)fprintf(stderr, "%s\n", em.text);
    return rc;
}

static int tear_down(void **state)
{
    (void)state;
    weights_close(model);
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_sums),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
