/* Model architectures: what a file's metadata says of a model's shape, which tensors a layer has,
 * and what is done with them in which order. Layers of one kind share a *block*; stage.c does what
 * a layer's block says. A family of models (arch/NAME.c) fills the blocks from the file's keys.
 * Private to the engine, but for `struct arch_dims`, which engine.h hands out. */
#ifndef FLOTILLA_ENGINE_ARCH_H
#define FLOTILLA_ENGINE_ARCH_H

#include "common/base/err.h"
#include "common/engine/rope.h"
#include "common/engine/weights.h"

#include <stdbool.h>
#include <stdint.h>

#define ARCH_LAYERS_MAX 1024u
#define ARCH_WIDTH_MAX (1u << 20)
#define ARCH_BLOCKS_MAX 4u

/* The families: one line each. X(NAME) is `general.architecture`, and arch_NAME of arch/NAME.c. */
#define ARCH_FAMILIES(X)                                                                           \
    X(llama)                                                                                       \
    X(gemma3)                                                                                      \
    X(qwen2)                                                                                       \
    X(qwen3)

/* The weight matrices of a layer, in the order in which they are used. */
enum arch_mat { MAT_Q, MAT_K, MAT_V, MAT_O, MAT_GATE, MAT_UP, MAT_DOWN, N_MATS };

/* The vectors that a layer may have: norms over the hidden width, but for those of q and k, over a
 * head; and what is added to its queries, keys and values. */
enum arch_vec {
    VEC_ATTN_NORM,
    VEC_Q_BIAS, /* before the norm of q */
    VEC_K_BIAS,
    VEC_V_BIAS,
    VEC_Q_NORM,
    VEC_K_NORM,
    VEC_ATTN_POST_NORM, /* of what attention adds to the stream */
    VEC_FFN_NORM,
    VEC_FFN_POST_NORM, /* of what the feed-forward adds */
    N_VECS
};

enum arch_norm { NORM_RMS, NORM_LAYER };

/* The activation of the feed-forward: down(act(gate x) * up x). */
enum arch_ffn { FFN_SILU, FFN_GELU };

/* What the layers of one kind have and do. */
struct arch_block {
    uint32_t vecs;       /* bits 1 << enum arch_vec: which the layer has, and so where it
                            normalises and what it adds */
    enum arch_norm norm; /* of all its norms */
    enum arch_ffn ffn;
    uint32_t window;   /* attention sees so many positions, a row's own included; 0: all of them */
    bool rope_halves;  /* rotates x[i] with x[n/2 + i], not neighbours */
    bool rope_factors; /* the file's rope_freqs.weight, if any, divides its frequencies */
    struct rope_params rope;
};

struct arch_dims {
    const struct arch *arch; /* static */
    uint32_t n_layers;
    uint32_t hidden; /* width of the residual stream, and of what stages hand on */
    uint32_t n_heads;
    uint32_t n_kv_heads; /* divides n_heads */
    uint32_t head_size;  /* heads x head size need not be the hidden width */
    uint32_t ffn;
    uint32_t vocab;     /* rows of the embedding */
    uint32_t ctx_train; /* the model's own context limit */
    uint32_t rope_dims; /* rotated elements of a head, even */
    float norm_eps;
    float embd_scale;    /* of the embedding; 1: none */
    float q_scale;       /* of queries */
    float score_softcap; /* 0: none, like the next */
    float logit_softcap;
    uint32_t n_blocks;
    struct arch_block blocks[ARCH_BLOCKS_MAX];
    uint8_t block_of[ARCH_LAYERS_MAX]; /* by a layer's index in the whole model */
};

/* By its index in the whole model. */
static inline const struct arch_block *arch_block(const struct arch_dims *d, uint32_t layer)
{
    return &d->blocks[d->block_of[layer]];
}

static inline bool arch_has(const struct arch_block *b, enum arch_vec v)
{
    return b->vecs >> v & 1;
}

/* ERR_UNSUPPORTED for an architecture or a variant that is not computed, by name; ERR_FORMAT for
 * shapes that contradict each other. */
int arch_read(const struct weights *w, struct arch_dims *ret, struct errmsg *em);

/* How many keys of the model's architecture arch_read does not look at; if any, *ret names them. */
size_t arch_unread(const struct weights *w, struct errmsg *ret);

/* A tensor's name within its layer ("attn_q.weight"), and its shape [rows][k]. */
const char *arch_mat_name(enum arch_mat m);
const char *arch_vec_name(enum arch_vec v);
void arch_mat_shape(const struct arch_dims *d, enum arch_mat m, uint32_t *ret_rows,
                    uint32_t *ret_k);
uint32_t arch_vec_width(const struct arch_dims *d, enum arch_vec v);

#endif
