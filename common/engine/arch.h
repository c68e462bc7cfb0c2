/* Model architectures: what a GGUF file's metadata says of a model's shape, which tensors a layer
 * has, and what is done with them in which order. An architecture is a row of the table in arch.c;
 * stage.c does what the row says. Private to the engine, but for `struct arch_dims`, which engine.h
 * hands out. */
#ifndef FLOTILLA_ENGINE_ARCH_H
#define FLOTILLA_ENGINE_ARCH_H

#include "common/base/err.h"
#include "common/engine/rope.h"
#include "common/engine/weights.h"

#include <stdint.h>

#define ARCH_LAYERS_MAX 1024u
#define ARCH_WIDTH_MAX (1u << 20)

/* Layers of two kinds: those that see all positions, and those that see a window of the last ones.
 */
enum arch_reach { REACH_ALL, REACH_WINDOW, N_REACHES };

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
    struct rope_params rope[N_REACHES];
    uint32_t window; /* positions that REACH_WINDOW sees, itself included; 0: no such layers */
    uint32_t window_every; /* every so many layers, the last sees all */
    float norm_eps;
    float embd_scale;    /* of the embedding; 1: none */
    float q_scale;       /* of queries */
    float score_softcap; /* 0: none, like the next */
    float logit_softcap;
};

/* The weight matrices of a layer, in the order in which they are used. */
enum arch_mat { MAT_Q, MAT_K, MAT_V, MAT_O, MAT_GATE, MAT_UP, MAT_DOWN, N_MATS };

/* The vectors of a layer: norms over the hidden width, but for those of q and k, over a head. */
enum arch_vec {
    VEC_ATTN_NORM,
    VEC_Q_NORM,
    VEC_K_NORM,
    VEC_ATTN_POST_NORM, /* of what attention adds to the stream */
    VEC_FFN_NORM,
    VEC_FFN_POST_NORM,
    N_VECS
};

struct arch {
    const char *name;
    uint32_t vecs;    /* bit 1 << enum arch_vec: those that its layers have */
    bool rope_halves; /* rotates x[i] with x[n/2 + i], not neighbours */
    bool gelu;        /* gate's activation; SiLU otherwise */
    bool scaled_embd; /* embedding times sqrt(hidden) */
    uint32_t windows; /* window_every where the file names a window but no pattern; 0: no windows */
    float window_base; /* RoPE base of windowed layers unless the file names one */
};

static inline bool arch_has(const struct arch_dims *d, enum arch_vec v)
{
    return d->arch->vecs >> v & 1;
}

/* By its index in the whole model. */
static inline enum arch_reach arch_reach(const struct arch_dims *d, uint32_t layer)
{
    return d->window && layer % d->window_every != d->window_every - 1 ? REACH_WINDOW : REACH_ALL;
}

/* ERR_UNSUPPORTED for an architecture or a variant that is not computed, by name; ERR_FORMAT for
 * shapes that contradict each other. */
int arch_read(const struct weights *w, struct arch_dims *ret, struct errmsg *em);

/* The keys of the model's architecture that arch_read does not look at: how many, and a text that
 * names them, if any. */
size_t arch_unread(const struct weights *w, struct errmsg *ret);

/* Tensor name of a layer's matrix or vector ("attn_q"), and its shape [rows][k]. */
const char *arch_mat_name(enum arch_mat m);
const char *arch_vec_name(enum arch_vec v);
void arch_mat_shape(const struct arch_dims *d, enum arch_mat m, uint32_t *ret_rows,
                    uint32_t *ret_k);
uint32_t arch_vec_width(const struct arch_dims *d, enum arch_vec v);

#endif
