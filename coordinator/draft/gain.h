/* What speculation gains: from measured times and an acceptance to the length that yields most
 * tokens a second, which is 0 where speculation loses. Pure.
 *
 * A chain is described by what a Step of n rows takes its slowest stage and all its stages
 * together, and by the time that a Step spends outside them. */
#ifndef FLOTILLA_DRAFT_GAIN_H
#define FLOTILLA_DRAFT_GAIN_H

#include "coordinator/draft/settings.h"

#define GAIN_POINTS 8u

/* Speculation has to promise so much more than none, since figures are noisy. */
#define GAIN_MARGIN 1.05

struct gain_chain {
    /* Numbers of rows, ascending from 1 on, and the times of Steps of so many rows; between two
     * points and beyond the last they are interpolated linearly. */
    uint32_t n_points; /* 1..GAIN_POINTS */
    uint32_t rows[GAIN_POINTS];
    double slowest_ns[GAIN_POINTS]; /* of the slowest stage */
    double all_ns[GAIN_POINTS];     /* of all stages one after the other */
    double outside_ns;              /* of a round trip: links, queues, the coordinator */
};

struct gain_draft {
    double first_ns; /* of a draft, whatever its length: waiting, catching up */
    double token_ns; /* of each of its tokens */
    double rate;     /* probability that a token is right if the one before it was, 0..1 */
};

struct gain_load {
    uint32_t decoding; /* sequences that decode on this chain, this one included: at least 1 */
    bool pipelined;
    uint32_t depth_max; /* pipelined: tokens that may be on the way unverified; 0: no limit */
};

/* Time of a Step of n rows, at the slowest stage and at all. */
double gain_slowest_ns(const struct gain_chain *c, double rows);
double gain_all_ns(const struct gain_chain *c, double rows);

/* Tokens that a run of k drafted tokens yields on average: 1..k + 1. */
double gain_tokens(double rate, uint32_t k);

/* Tokens a second of one sequence with drafts of k tokens; k = 0: without speculation. */
double gain_speed(const struct gain_chain *c, const struct gain_draft *d, const struct gain_load *l,
                  uint32_t k);

/* The k of 1..k_max at which gain_speed is largest, or 0 where none reaches GAIN_MARGIN times the
 * speed without. Figures that are not finite, or a chain without points, give 0. */
uint32_t gain_best(const struct gain_chain *c, const struct gain_draft *d,
                   const struct gain_load *l, uint32_t k_max);

/* A running estimate of the rate: successes and trials that fade, so that the last about 64 tokens
 * count. Zeroed, it knows nothing. */
struct gain_rate {
    double right, all;
};

/* A draft of which `accepted` tokens were right: the one behind them was wrong, if n has one. */
void gain_rate_note(struct gain_rate *r, uint32_t n, uint32_t accepted);
/* `prior` while nothing is known, then ever less of it. */
double gain_rate_value(const struct gain_rate *r, double prior);

#endif
