/* A stage's work on a tiny model: Steps of runs that want a token each. Included behind cmocka.h.
 */
#ifndef FLOTILLA_TESTS_STAGE_STEPS_H
#define FLOTILLA_TESTS_STAGE_STEPS_H

#include "proto/limits.h"
#include "proto/msg.h"
#include "tests/lib/tiny_llama.h"
#include "worker/stage_work.h"

#include <inttypes.h>

#define PAGES 64u /* of its pool */

static uint32_t straight[PAGES];

/* Rows of tokens at positions first.., the last of which wants one. */
static inline struct msg_run run_of(uint64_t request, uint32_t first, uint32_t n,
                                    const int32_t *tokens)
{
    return (struct msg_run){.request = request,
                            .attempt = 1,
                            .first_pos = first,
                            .n_rows = n,
                            .n_logits = 1,
                            .n_pages = (first + n + LIMIT_PAGE - 1) / LIMIT_PAGE,
                            .tokens = tokens,
                            .pages = straight,
                            .has_open = true,
                            .open = {.sampling = SAMPLING_PLAIN}};
}

static inline struct stage_work *open_work(const struct msg_assign *a)
{
    struct errmsg em = {0};
    struct stage_work *w = NULL;
    struct stage_work_options o = {.assign = a, .threads = 1};
    if (stage_work_open(&o, &w, &em) < 0) fail_msg("%s", em.text);
    return w;
}

/* Each run gets its token. */
static inline void step(struct stage_work *w, struct msg_run *runs, uint32_t n,
                        struct stage_output *ret)
{
    struct errmsg em = {0};
    struct msg_step s = {.number = 1, .width = TINY_HIDDEN, .n_runs = n, .runs = runs};
    for (uint32_t i = 0; i < n; i++) s.rows += runs[i].n_rows;
    if (stage_work_step(w, &s, NULL, ret, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(ret->result.n_runs, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct msg_run_result *r = &ret->result.runs[i];
        if (r->error || r->n_tokens != 1 || r->request != runs[i].request)
            fail_msg("run %" PRIu32 ": %s", i, r->error ? r->error : "not what was asked for");
    }
}

#endif
