/* Code that all levels share, so that it cannot differ between them: storing quantised keys and
 * values, and room for the queries that meet them; and, declared in kern.h, joining spans, the
 * Hadamard transform of blocks, and a row's norm. Private to the kernels. */
#ifndef FLOTILLA_ENGINE_KERN_SHARED_H
#define FLOTILLA_ENGINE_KERN_SHARED_H

#include "common/engine/kern.h"

/* Stores one position in a page of Q8_0 or Q4_0. */
void kern_store_quantised(const struct kv_view *kv, uint8_t *page, uint32_t slot, const float *k,
                          const float *v);

/* Up to four query heads of one KV head. */
struct kern_query {
    const float *q;    /* [head][head_size] */
    struct act act[4]; /* the same quantised, for quantised keys */
};

struct kern_query_room {
    int8_t q[4][HEAD_SIZE_MAX];
    float x[4][HEAD_SIZE_MAX / ACT_BLOCK], y[4][HEAD_SIZE_MAX / ACT_BLOCK];
    int32_t s[4][HEAD_SIZE_MAX / ACT_BLOCK], h[4][HEAD_SIZE_MAX / ACT_BLOCK * 2];
};

/* Activations of one row for head h. */
static inline struct act kern_query_act(struct kern_query_room *r, uint32_t h, uint32_t head_size)
{
    return (struct act){.n_tokens = 1,
                        .k = head_size,
                        .q = r->q[h],
                        .x = r->x[h],
                        .y = r->y[h],
                        .s = r->s[h],
                        .h = r->h[h]};
}

#endif
