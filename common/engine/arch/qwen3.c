/* Qwen 3 without experts (Qwen Team 2025, arXiv 2505.09388): as Llama, but the heads of queries and
 * keys have norms, and halves are rotated. */
#include "common/engine/arch/family.h"

static void fill(struct arch_reader *r, struct arch_dims *d)
{
    struct arch_block *b = arch__add_block(d);
    b->vecs = ARCH_VEC(VEC_ATTN_NORM) | ARCH_VEC(VEC_Q_NORM) | ARCH_VEC(VEC_K_NORM) |
              ARCH_VEC(VEC_FFN_NORM);
    b->rope_halves = true;
    b->rope_factors = true;
    b->rope.base = arch__rope_base(r, "rope.freq_base", 10000.0f);
    arch__rope_scaling(r, &b->rope);
    arch__refuse(r, "attention.sliding_window", "windows of attention");
}

const struct arch arch_qwen3 = {.name = "qwen3", .fill = fill};
