/* Model architectures: what a GGUF file's metadata says of a model's shape, and which tensors a
 * layer has. Private to the engine, but for `struct arch_dims`, which engine.h hands out. */
#ifndef FLOTILLA_ENGINE_ARCH_H
#define FLOTILLA_ENGINE_ARCH_H

#include "common/base/err.h"
#include "common/engine/gguf.h"

#include <stdint.h>

#define ARCH_LAYERS_MAX 1024u
#define ARCH_WIDTH_MAX (1u << 20)

struct arch_dims {
    uint32_t n_layers;
    uint32_t hidden; /* width of the residual stream, and of what stages hand on */
    uint32_t n_heads;
    uint32_t n_kv_heads; /* divides n_heads */
    uint32_t head_size;
    uint32_t ffn;
    uint32_t vocab;     /* rows of the embedding */
    uint32_t ctx_train; /* the model's own context limit */
    uint32_t rope_dims; /* rotated elements of a head, even */
    float rope_base;
    float norm_eps;
};

/* The weight matrices of a llama layer, in the order in which they are used. */
enum arch_mat { MAT_Q, MAT_K, MAT_V, MAT_O, MAT_GATE, MAT_UP, MAT_DOWN, N_MATS };

/* ERR_UNSUPPORTED for an architecture or a variant that is not computed, by name; ERR_FORMAT for
 * shapes that contradict each other. */
int arch_read(const struct gguf *g, struct arch_dims *ret, struct errmsg *em);

/* Tensor name of a layer's matrix ("attn_q"), and its shape [rows][k]. */
const char *arch_mat_name(enum arch_mat m);
void arch_mat_shape(const struct arch_dims *d, enum arch_mat m, uint32_t *ret_rows,
                    uint32_t *ret_k);

#endif
