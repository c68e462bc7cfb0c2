/* How long a Step takes its slowest stage, learnt from what Steps took: a weighted sum of what is
 * in them, fitted by least squares in which older Steps count less and less. Pure. */
#ifndef FLOTILLA_CORE_COST_H
#define FLOTILLA_CORE_COST_H

#include <stdint.h>

enum { COST_TERMS = 4 };

/* What a Step has to compute. */
struct cost_work {
    uint32_t rows, logits;
    uint64_t depth; /* positions that its rows attend to, summed */
};

struct cost {
    double xx[COST_TERMS][COST_TERMS], xy[COST_TERMS]; /* normal equations */
    double weight[COST_TERMS];                         /* ns a unit; 0 before anything is known */
    uint64_t n;                                        /* Steps learnt from */
};

void cost_learn(struct cost *c, struct cost_work work, uint64_t took_ns);
/* 0: nothing is known yet. */
uint64_t cost_predict(const struct cost *c, struct cost_work work);

#endif
