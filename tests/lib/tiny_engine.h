/* Engines on a small random llama (tiny_llama.h), and the tokens that tests run through them. The
 * includer links common/io. */
#ifndef FLOTILLA_TESTS_TINY_ENGINE_H
#define FLOTILLA_TESTS_TINY_ENGINE_H

#include "common/engine/engine.h"
#include "common/io/ring.h"
#include "tests/lib/tiny_llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define TINY_LAYERS 2u
#define TINY_PAGES 8u
#define TINY_ROWS 16u

static const int32_t tiny_tokens[TINY_ROWS] = {1,  5,  9, 40, 47, 0,  3,  3,
                                               17, 22, 8, 31, 2,  46, 12, 6};

/* Layers first..last of an open model. The caller closes it. */
static inline struct engine *tiny_open(const struct weights *model, enum kv_type kv, uint32_t first,
                                       uint32_t last, unsigned threads)
{
    struct errmsg em = {0};
    struct ring_use use = {0};
    struct engine *e = NULL;
    struct eng_options o = {.weights = model,
                            .layer_first = first,
                            .layer_last = last,
                            .kv = kv,
                            .n_pages = TINY_PAGES,
                            .rows_max = TINY_ROWS,
                            .logits_max = TINY_ROWS,
                            .threads = threads,
                            .read = ring_read,
                            .read_ctx = &use};
    if (eng_open(&o, &e, &em) < 0) fail_msg("%s", em.text);
    return e;
}

/* The logits [n][TINY_VOCAB] of tiny_tokens at positions first.., through `pages`, by an engine of
 * all layers. */
static inline void tiny_run(struct engine *e, uint32_t first, uint32_t n, const uint32_t *pages,
                            float *ret)
{
    struct errmsg em = {0};
    const float *out;
    struct eng_run r = {first, n, n, tiny_tokens + first % TINY_ROWS, .pages = pages};
    if (eng_step(e, &r, 1, NULL, &out, &em) < 0) fail_msg("%s", em.text);
    for (uint32_t i = 0; i < n; i++)
        memcpy(ret + i * TINY_VOCAB, eng_logits(e, i), TINY_VOCAB * sizeof *ret);
}

#endif
