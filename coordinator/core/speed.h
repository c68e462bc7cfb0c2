/* How long a stage takes for a Step, by what its worker has measured of the model. Pure. */
#ifndef FLOTILLA_CORE_SPEED_H
#define FLOTILLA_CORE_SPEED_H

#include "coordinator/core/cost.h"
#include "proto/msg.h"

#include <stdbool.h>
#include <stdint.h>

/* A measured time for so many rows: between two points on their line, beyond the last one along
 * that of the last two. 0 rows take no time. n: at least 1. */
double speed_at(const struct msg_speed_point *points, uint32_t n, uint32_t rows);

struct speed_stage {
    double layers; /* how many times the layer that the worker measured */
    bool last;     /* with the output head */
};

/* ns; 0: the worker has measured nothing. */
double speed_step(const struct msg_speed *s, struct speed_stage stage, uint32_t rows,
                  uint32_t logits);

/* For a Step whose rows attend to work.depth positions, where speed_step has those with which its
 * worker measured. At least half of speed_step: a position's time is that of one row alone, and the
 * rows of a chunk share some of it. */
double speed_step_at(const struct msg_speed *s, struct speed_stage stage, struct cost_work work);

/* What plans go by: the time of a unit of work, in which prompts and answers have equally many
 * tokens: a chunk of SPEED_CHUNK rows of one prompt, and as many tokens decoded by SPEED_STREAMS
 * requests at once. */
#define SPEED_CHUNK 32u
#define SPEED_STREAMS 4u
double speed_unit(const struct msg_speed *s, struct speed_stage stage);

#endif
