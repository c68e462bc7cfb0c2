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

/* Whether one token may come next: its bytes lead on, or it ends an answer that may end. */
bool masks_allow(struct masks *m, const struct grammar *g, const struct grammar_state *s,
                 int32_t token);
/* The same of all tokens, (n + 63) / 64 words; valid until the next call. */
const uint64_t *masks_all(struct masks *m, const struct grammar *g, const struct grammar_state *s);
/* Goes on by a token. False: it is not allowed, or ends the answer; *s is dead then. */
bool masks_step(const struct masks *m, const struct grammar *g, struct grammar_state *s,
                int32_t token);

struct masks_counts masks_counts(const struct masks *m);

#endif
