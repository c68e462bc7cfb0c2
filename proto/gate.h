/* What a stage takes from its data link: Steps of its epoch, in number order, without gaps. The one
 * rule that every stage and every simulated stage obeys. Pure. */
#ifndef FLOTILLA_PROTO_GATE_H
#define FLOTILLA_PROTO_GATE_H

#include "proto/msg.h"

struct gate {
    struct epoch epoch; /* generation 0: closed */
    uint64_t last;      /* number of the last Step taken */
};

enum gate_verdict {
    GATE_TAKE,
    GATE_STALE, /* of another epoch, or taken before: drop it */
    GATE_GAP,   /* one before it is missing: the epoch cannot go on */
};

/* Whether an Assign of `e` replaces what the stage has: another coordinator process, or a later
 * generation of the same. */
static inline bool gate_newer(const struct gate *g, struct epoch e)
{
    return e.incarnation != g->epoch.incarnation || e.generation > g->epoch.generation;
}

static inline void gate_open(struct gate *g, struct epoch e)
{
    *g = (struct gate){.epoch = e};
}

static inline enum gate_verdict gate_step(struct gate *g, struct epoch e, uint64_t number)
{
    if (!epoch_eq(e, g->epoch)) return GATE_STALE;
    if (number <= g->last) return GATE_STALE;
    if (number != g->last + 1) return GATE_GAP;
    g->last = number;
    return GATE_TAKE;
}

#endif
