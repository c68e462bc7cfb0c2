/* Gemma 3 (Gemma Team 2025, arXiv 2503.19786): norms before and after attention and feed-forward
 * and of the heads of queries and keys, GELU, rotated halves, an embedding times sqrt(hidden), and
 * most layers with a window of attention and a RoPE base of their own. */
#include "common/engine/arch/family.h"

#include <math.h>

#define PATTERN 6u /* of so many layers the last sees all positions, unless the file says */

static struct arch_block *add_block(struct arch_dims *d)
{
    struct arch_block *b = arch__add_block(d);
    b->vecs = ARCH_VEC(VEC_ATTN_NORM) | ARCH_VEC(VEC_Q_NORM) | ARCH_VEC(VEC_K_NORM) |
              ARCH_VEC(VEC_ATTN_POST_NORM) | ARCH_VEC(VEC_FFN_NORM) | ARCH_VEC(VEC_FFN_POST_NORM);
    b->ffn = FFN_GELU;
    b->rope_halves = true;
    return b;
}

/* Queries are scaled by the head size, but in the model of 62 layers (27B) by hidden / heads:
 * https://github.com/google/gemma_pytorch, config.py, query_pre_attn_scalar. */
static float query_scale(const struct arch_dims *d)
{
    bool by_width = d->n_layers == 62;
    return 1.0f / sqrtf((float)(by_width ? d->hidden / d->n_heads : d->head_size));
}

static void fill(struct arch_reader *r, struct arch_dims *d)
{
    d->embd_scale = sqrtf((float)d->hidden);
    d->q_scale = query_scale(d);
    struct arch_block *all = add_block(d);
    all->rope_factors = true;
    all->rope.base = arch__rope_base(r, "rope.freq_base", 10000.0f);
    arch__rope_scaling(r, &all->rope);
    float window_base = arch__rope_base(r, "rope.freq_base_swa", 10000.0f);
    uint32_t window = arch__number(r, "attention.sliding_window");
    if (window == 0) return;
    uint32_t every = arch__count(r, "attention.sliding_window_pattern", ARCH_LAYERS_MAX, PATTERN);
    struct arch_block *windowed = add_block(d);
    windowed->window = window;
    windowed->rope.base = window_base;
    for (uint32_t l = 0; l < d->n_layers; l++) d->block_of[l] = l % every != every - 1;
}

const struct arch arch_gemma3 = {.name = "gemma3", .fill = fill};
