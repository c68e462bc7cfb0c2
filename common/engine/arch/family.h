/* What a family of models is made of, and how it reads its keys. Private to arch.c and the files of
 * this folder.
 *
 * arch.c reads what all families have (layers, widths, heads, context, epsilon, soft caps, the
 * vocabulary), with an embedding that is not scaled and queries scaled by 1 / sqrt(head size). Then
 * `fill` adds one block for each kind of layer, says which layer is of which kind, and changes what
 * the family does otherwise. Keys that it asks for count as read; other keys of the family are told
 * to the user as having no effect. */
#ifndef FLOTILLA_ENGINE_ARCH_FAMILY_H
#define FLOTILLA_ENGINE_ARCH_FAMILY_H

#include "common/engine/arch.h"

struct arch_reader {
    const struct weights *w;
    const struct meta *meta; /* of w */
    const struct arch *arch;
    struct errmsg *em;
    int rc;     /* the first error; later reads do nothing */
    bool *read; /* by index of the key, those that were asked for; or NULL */
};

struct arch {
    const char *name; /* `general.architecture`, and the prefix of its keys */
    void (*fill)(struct arch_reader *r, struct arch_dims *d);
};

#define X(name) extern const struct arch arch_##name;
ARCH_FAMILIES(X)
#undef X

#define ARCH_VEC(v) (1u << (v))

/* Adds a block without vectors, with RMS norms, SiLU and rotated neighbours. All layers are of the
 * first block that is added, unless block_of says otherwise. */
struct arch_block *arch__add_block(struct arch_dims *d);

/* Names are without the family's prefix. The first key that is of another type or out of its range
 * ends the reading with ERR_FORMAT. */

/* A count in 1..max; `fallback` where the key is missing, 0 meaning that it is needed. */
uint32_t arch__count(struct arch_reader *r, const char *name, uint32_t max, uint32_t fallback);
/* Any 32-bit number; 0 where the key is missing. */
uint32_t arch__number(struct arch_reader *r, const char *name);
/* Finite and not negative. */
float arch__float(struct arch_reader *r, const char *name, float fallback);
/* The base of rotations, at least 1. */
float arch__rope_base(struct arch_reader *r, const char *name, float fallback);
/* rope.scaling.*: of a block whose base has been read. */
void arch__rope_scaling(struct arch_reader *r, struct rope_params *p);
/* A key that must be missing or 0, since what it asks for is not computed. */
void arch__refuse(struct arch_reader *r, const char *name, const char *what);

#endif
