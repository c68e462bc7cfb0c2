/* How many tokens a request's next draft has: the length follows the acceptance of the last one.
 * Pure. */
#ifndef FLOTILLA_DRAFT_LENGTH_H
#define FLOTILLA_DRAFT_LENGTH_H

#include "coordinator/draft/settings.h"

struct length {
    uint32_t now; /* public: of the next draft, 1..max */
    uint32_t max;
    float low, high;
    bool adaptive;
};

/* ERR_RANGE: settings that draft_settings_check refuses. */
int length_init(struct length *l, const struct draft_settings *s, struct errmsg *em);
/* After a draft was verified: one more above `high`, one fewer below `low`, within 1..max. A
 * constant length stays, and so does one whose acceptance is not a number. */
void length_note(struct length *l, float acceptance);

#endif
