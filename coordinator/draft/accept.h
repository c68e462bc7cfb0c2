/* Which tokens of a draft count once the target's choices are known, and the figures of it. Pure.
 */
#ifndef FLOTILLA_DRAFT_ACCEPT_H
#define FLOTILLA_DRAFT_ACCEPT_H

#include <stdint.h>

/* A run that was verified: its rows that want logits. The last n_draft of them have a token of the
 * draft as input, the others a known token; there are none of these where the run follows rows that
 * are in flight.
 *
 * A row is live if its token is known, or is what the target chose behind a live row; rows behind
 * the first that is not are dead. choices[i] is what the target chose behind row i. */
struct accept_rows {
    uint32_t n_rows, n_draft;
    uint32_t n_live;        /* the first of these rows; at most n_rows */
    const int32_t *choices; /* n_choices: n_live, or one less where the last live row failed */
    uint32_t n_choices;
    uint32_t room;       /* tokens that the answer may still have, from choices[0] on */
    const int32_t *ends; /* n_ends tokens that end an answer; 0: none does */
    uint32_t n_ends;
};

struct accept {
    uint32_t accepted; /* tokens of the draft that are the target's choices */
    uint32_t emitted;  /* tokens that the run yields: choices[0..emitted) */
};

/* An end token is emitted, and nothing behind it. A drafted token is accepted if it is what the
 * target chose in its place: an end token, too, and what the draft has behind it is not. */
struct accept accept_run(const struct accept_rows *rows);

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

/* Counts a run of n_rows rows, of which n_draft had tokens of the draft. */
void accept_note(struct accept_stats *s, uint32_t n_rows, uint32_t n_draft, struct accept a);
/* Adds all of `more`. */
void accept_add(struct accept_stats *s, const struct accept_stats *more);
/* Accepted of those drafted; 0: none was drafted. */
double accept_rate(const struct accept_stats *s);
/* Measured time of a token without speculation, divided by the time of one with it: below 1 where
 * speculation loses. 0: not both were measured. */
double accept_speedup(const struct accept_stats *s);

#endif
