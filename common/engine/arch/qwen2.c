/* Qwen 2 and 2.5 (Qwen Team 2024, arXiv 2407.10671): as Llama, but queries, keys and values have
 * biases, and halves are rotated. */
#include "common/engine/arch/family.h"

static void fill(struct arch_reader *r, struct arch_dims *d)
{
    struct arch_block *b = arch__add_block(d);
    b->vecs = ARCH_VEC(VEC_ATTN_NORM) | ARCH_VEC(VEC_Q_BIAS) | ARCH_VEC(VEC_K_BIAS) |
              ARCH_VEC(VEC_V_BIAS) | ARCH_VEC(VEC_FFN_NORM);
    b->rope_halves = true;
    b->rope_factors = true;
    b->rope.base = arch__rope_base(r, "rope.freq_base", 10000.0f);
    arch__rope_scaling(r, &b->rope);
    arch__refuse(r, "attention.sliding_window", "windows of attention");
}

const struct arch arch_qwen2 = {.name = "qwen2", .fill = fill};
