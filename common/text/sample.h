/* Choosing a token from logits. The choice is a pure function of the logits, the parameters, the
 * seed, the sample's index, the position and the token ids: noise comes from a counter, not from a
 * stream (the Gumbel-max trick; Gumbel 1954, Maddison et al. 2014), so batch, chunk, replica and
 * speculation cannot change it. Order: temperature, top-k, top-p, min-p, noise, argmax. */
#ifndef FLOTILLA_TEXT_SAMPLE_H
#define FLOTILLA_TEXT_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

/* Below this temperature the choice is the largest logit. */
#define SAMPLE_TEMP_MIN 1e-5f

struct sample_params {
    float temp;     /* 0: greedy */
    uint32_t top_k; /* 0: no limit */
    float top_p;    /* 1: no limit */
    float min_p;    /* 0: no limit */
    uint64_t seed;
};

struct sample_candidate {
    float score;
    int32_t id;
};

/* Returns the token, or -1 when a logit is not finite. scratch: n candidates. Ties go to the lowest
 * id. Allocates nothing. */
int32_t sample_choose(const struct sample_params *p, uint32_t sample_idx, uint32_t pos,
                      const float *logits, uint32_t n, struct sample_candidate *scratch);

#endif
