/* What a layer of a model takes this machine: measured by the engine itself, on a slice of the
 * model's shapes and weight types whose weights are made up. No tensor is read, so it costs the
 * same whether the files are here or on a slow disk. */
#ifndef FLOTILLA_ENGINE_MEASURE_H
#define FLOTILLA_ENGINE_MEASURE_H

#include "common/engine/engine.h"

#define MEASURE_POINTS 8u

struct measure_options {
    const struct weights *weights; /* borrowed, like all else here */
    enum kv_type kv;
    unsigned threads;
    const char *isa;     /* NULL: the best */
    uint64_t room_bytes; /* memory that it may take; 0: no limit */
    /* What is done with each row of logits is measured with the output head. NULL: nothing. */
    void (*choose)(void *arg, const float *logits);
    bool (*goes_on)(void *arg); /* false: give up; asked before each step. NULL: it goes on */
    void *arg;                  /* of both */
    atomic_ullong *moves;       /* as in eng_options, and raised while the slice is made */
};

struct measure_point {
    uint32_t rows;
    uint64_t ns; /* at least 1 */
};

/* By ascending rows: one layer of layer_bytes, for rows of a step; the output head, for rows of
 * logits. At least one of each. Each row of them attends to `depth` positions beside its step's. */
struct measure {
    uint32_t n_layer, n_head;
    struct measure_point layer[MEASURE_POINTS], head[MEASURE_POINTS];
    uint64_t layer_bytes; /* of weights in memory; at least 1 */
    uint32_t depth;
    uint64_t position_ps; /* a layer and row take longer for each position more; 0: not known */
};

/* Takes seven seconds at most, beside what making the slice takes, and one step of one row. Errors:
 * those of eng_open but for what reading can find; ERR_CANCELLED. */
int measure_model(const struct measure_options *o, struct measure *ret, struct errmsg *em);

#endif
