#include "coordinator/draft/length.h"

#include <math.h>

int length_init(struct length *l, const struct draft_settings *s, struct errmsg *em)
{
    int rc = draft_settings_check(s, em);
    if (rc < 0) return rc;
    *l = (struct length){.now = s->length,
                         .max = s->length_max,
                         .low = s->low,
                         .high = s->high,
                         .adaptive = s->adaptive};
    return 0;
}

void length_note(struct length *l, float acceptance)
{
    if (!l->adaptive || isnan(acceptance)) return;
    if (acceptance > l->high && l->now < l->max) l->now++;
    if (acceptance < l->low && l->now > 1) l->now--;
}
