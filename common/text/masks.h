/* Which tokens of a vocabulary a grammar allows at a state: a bit for each token. Found by a walk
 * through all tokens, sorted by their bytes, that leaves out whatever begins like a token that was
 * refused; and kept for the states that come again.
 *
 * It holds the vocabulary's bytes, and room for its masks, and allocates nothing after it is open.
 * One thread. */
#ifndef FLOTILLA_TEXT_MASKS_H
#define FLOTILLA_TEXT_MASKS_H

#include "common/text/grammar.h"
#include "common/text/vocab.h"

/* Operations of a grammar's code that it may take to find which tokens come next. Forms as users
 * write them take some thousands, 300 alternatives at once that begin alike 200,000. */
#define MASKS_WORK (1u << 20)

struct masks;

struct masks_counts {
    uint64_t tested; /* tokens that were looked at one by one, */
    uint64_t made;   /* masks that were found by a walk, */
    uint64_t kept;   /* and those that were known already */
};

/* For `n` tokens, as the model has logits; those beyond the vocabulary are never allowed. The
 * vocabulary is not needed afterwards. ERR_NOMEM. */
int masks_open(const struct vocab *v, uint32_t n, struct masks **ret, struct errmsg *em);
/* May be NULL. */
void masks_close(struct masks *m);

/* Whether one token may come next: its bytes lead on, or it ends an answer that may end. Adds the
 * operations that this took. */
bool masks_allow(struct masks *m, const struct grammar *g, const struct grammar_state *s,
                 int32_t token, uint64_t *add_work);
/* The same of all tokens, (n + 63) / 64 words; valid until the next call. *ret_is_dear: the
 * grammar goes on in so many ways at once that this takes more than MASKS_WORK, so that it is not
 * known; the same for the same state, whatever was asked before. */
const uint64_t *masks_all(struct masks *m, const struct grammar *g, const struct grammar_state *s,
                          bool *ret_is_dear);
/* Goes on by a token. False: it is not allowed, or ends the answer; *s is dead then. */
bool masks_step(const struct masks *m, const struct grammar *g, struct grammar_state *s,
                int32_t token);

struct masks_counts masks_counts(const struct masks *m);

#endif
