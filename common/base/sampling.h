/* How a request wants its tokens chosen: one structure, from the client's message to the stage that
 * chooses (common/text/chooser.h), and one check of it. */
#ifndef FLOTILLA_BASE_SAMPLING_H
#define FLOTILLA_BASE_SAMPLING_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define SAMPLING_TOP_MAX 20u     /* alternatives to a token that may be asked for */
#define SAMPLING_BIASES_MAX 300u /* tokens whose logits may be changed */
#define SAMPLING_BIAS_MAX 100.0f /* by so much, up or down */
/* Logits are divided by it: a value near 0 would make infinities of them. */
#define SAMPLING_REPETITION_MIN 0.01f
#define SAMPLING_REPETITION_MAX 10.0f
#define SAMPLING_PENALTY_MAX 2.0f /* of presence and frequency, up or down */

struct sampling {
    float temp;     /* temperature; 0: the likeliest token */
    uint32_t top_k; /* choose among so many of the likeliest; 0: all */
    float top_p;    /* among the likeliest that together have this probability; 1: all */
    float min_p;    /* among those with this share of the likeliest's probability; 0: all */
    uint64_t seed;
    /* Penalties on tokens that have occurred: `repetition` in prompt or answer (Keskar et al.,
     * CTRL, 2019: a positive logit is divided by it, a negative one multiplied; 1: none),
     * `presence` in the answer (subtracted once; 0: none), and
     * `frequency` there (subtracted for each occurrence; 0: none). */
    float repetition, presence, frequency;
    bool logprobs;         /* tell each token's log-probability, */
    uint32_t top_logprobs; /* and those of so many of the likeliest */
    uint32_t n_bias;
    const int32_t *bias_ids; /* n_bias tokens, borrowed like the next, */
    const float *bias;       /* and what is added to the logit of each, before all else */
};

/* Greedy, with nothing filtered, changed or told. */
#define SAMPLING_PLAIN ((struct sampling){.top_p = 1.0f, .repetition = 1.0f})

/* Whether all values are within the limits above: ERR_RANGE, with a text that names the field as
 * clients know it, and its limit. Whether the tokens are in a vocabulary is the caller's to say. */
int sampling_check(const struct sampling *s, struct errmsg *em);

/* A seed for a request that names none: random, of 53 bits, since a JSON number holds no more of
 * them exactly. */
uint64_t sampling_draw_seed(void);

#endif
