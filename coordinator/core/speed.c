#include "coordinator/core/speed.h"

double speed_at(const struct msg_speed_point *points, uint32_t n, uint32_t rows)
{
    if (rows <= points[0].rows) return (double)points[0].ns * rows / points[0].rows;
    if (n == 1) return (double)points[0].ns * rows / points[0].rows;
    uint32_t i = 1;
    while (i + 1 < n && points[i].rows < rows) i++;
    const struct msg_speed_point *a = &points[i - 1], *b = &points[i];
    double slope = ((double)b->ns - (double)a->ns) / (b->rows - a->rows);
    if (slope < 0.0) slope = 0.0; /* more rows never take less time */
    return (double)a->ns + slope * (rows - a->rows);
}

double speed_step(const struct msg_speed *s, struct speed_stage stage, uint32_t rows,
                  uint32_t logits)
{
    if (s->n_layer == 0) return 0.0;
    double head = stage.last ? speed_at(s->head, s->n_head, logits) : 0.0;
    return stage.layers * speed_at(s->layer, s->n_layer, rows) + head;
}

double speed_step_at(const struct msg_speed *s, struct speed_stage stage, struct cost_work work)
{
    double all = speed_step(s, stage, work.rows, work.logits);
    double more = (double)work.depth - (double)work.rows * s->depth;
    double at = all + stage.layers * more * (double)s->position_ps / 1000.0;
    return at > all / 2.0 ? at : all / 2.0;
}

double speed_unit(const struct msg_speed *s, struct speed_stage stage)
{
    return speed_step(s, stage, SPEED_CHUNK, 1) +
           (double)SPEED_CHUNK / SPEED_STREAMS * speed_step(s, stage, SPEED_STREAMS, SPEED_STREAMS);
}
