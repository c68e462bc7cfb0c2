/* The arithmetic of a token's choice, on one row of logits. The choice is a pure function of the
 * logits, the parameters, the seed, the sample's index, the position and the token ids: noise comes
 * from a counter, not from a stream (the Gumbel-max trick; Gumbel 1954, Maddison et al. 2014), so
 * batch, chunk, replica and speculation cannot change it. Order: bias, penalties, temperature,
 * top-k, top-p, min-p, noise, argmax. Where only some tokens are allowed, all from the temperature
 * on is done among those, as if the others were not in the vocabulary.
 *
 * Programs choose through common/text/chooser.h, which puts these steps together. */
#ifndef FLOTILLA_TEXT_SAMPLE_H
#define FLOTILLA_TEXT_SAMPLE_H

#include "common/base/sampling.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Below this temperature the choice is the largest logit. */
#define SAMPLE_TEMP_MIN 1e-5f

/* The tokens that have occurred so far. To begin with n is 0, and the caller gives `count`, zeroed,
 * and `ids` room for the whole vocabulary. */
struct sample_seen {
    uint32_t *count; /* by token: bit 0: it occurs; the rest: how often in the answer */
    int32_t *ids;    /* n tokens that occur */
    uint32_t n;
};

void sample_seen_add(struct sample_seen *s, int32_t id, bool in_answer);
/* Forgets all of them, in time proportional to n. */
void sample_seen_clear(struct sample_seen *s);

/* Whether these parameters change logits at all; whether they need a sample_seen for it. */
bool sample_adjusts(const struct sampling *p);
bool sample_needs_seen(const struct sampling *p);
/* Applies bias and penalties to n logits. Ids beyond n are ignored. */
void sample_adjust(const struct sampling *p, const struct sample_seen *seen, float *logits,
                   uint32_t n);

struct sample_candidate {
    float score;
    int32_t id;
};

/* Log-probabilities of the model's own distribution, before all of the above: of `chosen`, and of
 * the n_top (at most SAMPLING_TOP_MAX and n) likeliest, best first, as scores. The logits are
 * finite. */
float sample_logprobs(const float *logits, uint32_t n, int32_t chosen, uint32_t n_top,
                      struct sample_candidate *ret_top);

/* Which tokens may be chosen, asked as seldom as the choice allows. */
struct sample_allowed {
    bool (*one)(void *arg, int32_t id);
    const uint64_t *(*all)(void *arg); /* a bit for each token; valid until the choice is made */
    void *arg;
};

#define SAMPLE_NOT_FINITE (-1)
#define SAMPLE_NONE_ALLOWED (-2)

/* Returns the token, or -1 when a logit is not finite. scratch: n candidates. Ties go to the lowest
 * id. Allocates nothing. */
int32_t sample_choose(const struct sampling *p, uint32_t sample_idx, uint32_t pos,
                      const float *logits, uint32_t n, struct sample_candidate *scratch);
/* The same among the tokens that are allowed; SAMPLE_NOT_FINITE, SAMPLE_NONE_ALLOWED. */
int32_t sample_choose_allowed(const struct sampling *p, uint32_t sample_idx, uint32_t pos,
                              const float *logits, uint32_t n, const struct sample_allowed *allowed,
                              struct sample_candidate *scratch);

#endif
