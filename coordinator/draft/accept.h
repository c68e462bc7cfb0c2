/* Which tokens of a draft count once the target's choices are known, and the figures of it. Pure.
 */
#ifndef FLOTILLA_DRAFT_ACCEPT_H
#define FLOTILLA_DRAFT_ACCEPT_H

#include <stdbool.h>
#include <stdint.h>

struct accept {
    uint32_t accepted; /* tokens of the draft that are the target's choices, up to the first that is
                          not */
    uint32_t emitted;  /* tokens that the run yields: choices[0..emitted) */
    bool ended;        /* the last of them is an end token */
};

/* A run of n_draft + 1 rows: the first row's token was known to be right, draft[i] is the input of
 * row i + 1, and choices[i] is what the target chooses after row i. An end token (n_ends of them;
 * 0: none ends) is emitted, and nothing after it; what the draft has behind it counts as not
 * accepted. n_choices may be smaller than n_draft + 1 where the last stage left rows out that no
 * longer matter. */
struct accept accept_run(const int32_t *draft, uint32_t n_draft, const int32_t *choices,
                         uint32_t n_choices, const int32_t *ends, uint32_t n_ends);

/* Zeroed, it is empty. */
struct accept_stats {
    uint64_t runs;     /* verified */
    uint64_t drafted;  /* tokens of these runs */
    uint64_t accepted; /* of them */
    uint64_t emitted;
    uint64_t early;  /* runs that were sent before the answer to the last had come */
    uint64_t wasted; /* rows whose answer was not used: behind a rejection, or of a dead run */
    /* Time of decoding that was measured with speculation and without, and what it yielded. */
    uint64_t on_ns, on_tokens, off_ns, off_tokens;
};

void accept_note(struct accept_stats *s, uint32_t n_draft, const struct accept *a);
/* Adds all of `more`. */
void accept_add(struct accept_stats *s, const struct accept_stats *more);
/* Accepted of those drafted; 0: none was drafted. */
double accept_rate(const struct accept_stats *s);
/* Measured time of a token without speculation, divided by the time of one with it: below 1 where
 * speculation loses. 0: not both were measured. */
double accept_speedup(const struct accept_stats *s);

#endif
