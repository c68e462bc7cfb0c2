/* A slice of a model in memory: the tensors of a run of layers, repacked into panels. Private to
 * the engine. */
#ifndef FLOTILLA_ENGINE_MODEL_H
#define FLOTILLA_ENGINE_MODEL_H

#include "common/base/source.h"
#include "common/engine/arch.h"
#include "common/engine/engine.h"
#include "common/engine/kern.h"

struct layer {
    const float *vecs[N_VECS]; /* NULL where the layer has none */
    struct mat mats[N_MATS];
};

struct model {
    struct arch_dims dims;
    uint32_t layer_first, layer_last; /* inclusive */
    bool first, last;                 /* holds the embedding; the output head */
    struct layer *layers;             /* layer_last - layer_first + 1 */
    struct mat embd;                  /* first stage, and the last of a tied model */
    struct mat output;                /* last stage */
    const float *output_norm;         /* last stage */
    const float *rope_factors;        /* rope_dims / 2, or NULL */
    uint8_t *weights;                 /* one block for all of the above */
    size_t weights_bytes;
    uint64_t read_bytes; /* of tensor data, from the file */
};

/* Binds, reads, checks and packs the slice; errors as of eng_open. */
int model_load(const struct eng_options *o, struct model *ret, struct errmsg *em);
void model_close(struct model *m);

#endif
