#include "common/base/sampling.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <sys/random.h>

static bool within(float x, float low, float high)
{
    return x >= low && x <= high; /* false for NaN */
}

int sampling_check(const struct sampling *s, struct errmsg *em)
{
    if (!isfinite(s->temp) || s->temp < 0.0f)
        return err_set(em, ERR_RANGE, "field 'temp' is not a number of at least 0");
    if (!within(s->top_p, 0.0f, 1.0f))
        return err_set(em, ERR_RANGE, "field 'top_p' is not in 0..1");
    if (!within(s->min_p, 0.0f, 1.0f))
        return err_set(em, ERR_RANGE, "field 'min_p' is not in 0..1");
    if (!within(s->repetition, SAMPLING_REPETITION_MIN, SAMPLING_REPETITION_MAX))
        return err_set(em, ERR_RANGE, "field 'repetition_penalty' is not in %g..%g",
                       (double)SAMPLING_REPETITION_MIN, (double)SAMPLING_REPETITION_MAX);
    if (!within(s->presence, -SAMPLING_PENALTY_MAX, SAMPLING_PENALTY_MAX))
        return err_set(em, ERR_RANGE, "field 'presence_penalty' is not in -%g..%g",
                       (double)SAMPLING_PENALTY_MAX, (double)SAMPLING_PENALTY_MAX);
    if (!within(s->frequency, -SAMPLING_PENALTY_MAX, SAMPLING_PENALTY_MAX))
        return err_set(em, ERR_RANGE, "field 'frequency_penalty' is not in -%g..%g",
                       (double)SAMPLING_PENALTY_MAX, (double)SAMPLING_PENALTY_MAX);
    if (s->top_logprobs > SAMPLING_TOP_MAX)
        return err_set(em, ERR_RANGE, "field 'top_logprobs' is %" PRIu32 ", the limit is %u",
                       s->top_logprobs, SAMPLING_TOP_MAX);
    if (s->n_bias > SAMPLING_BIASES_MAX)
        return err_set(em, ERR_RANGE, "field 'logit_bias' has %" PRIu32 " tokens, the limit is %u",
                       s->n_bias, SAMPLING_BIASES_MAX);
    for (uint32_t i = 0; i < s->n_bias; i++)
        if (!within(s->bias[i], -SAMPLING_BIAS_MAX, SAMPLING_BIAS_MAX) || s->bias_ids[i] < 0)
            return err_set(em, ERR_RANGE,
                           "field 'logit_bias': token %" PRId32 " or its value is not in -%g..%g",
                           s->bias_ids[i], (double)SAMPLING_BIAS_MAX, (double)SAMPLING_BIAS_MAX);
    return 0;
}

uint64_t sampling_draw_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = clock_ns();
    return seed >> 11;
}
