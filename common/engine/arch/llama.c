/* Llama and the many models that are built like it (Touvron et al. 2023): RMS norms before
 * attention and before a SiLU feed-forward, rotated neighbours, all positions seen. */
#include "common/engine/arch/family.h"

static void fill(struct arch_reader *r, struct arch_dims *d)
{
    struct arch_block *b = arch__add_block(d);
    b->vecs = ARCH_VEC(VEC_ATTN_NORM) | ARCH_VEC(VEC_FFN_NORM);
    b->rope_factors = true;
    b->rope.base = arch__rope_base(r, "rope.freq_base", 10000.0f);
    arch__rope_scaling(r, &b->rope);
    arch__refuse(r, "attention.sliding_window", "windows of attention");
}

const struct arch arch_llama = {.name = "llama", .fill = fill};
