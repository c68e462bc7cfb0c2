/* A token's time is the larger of two: what it waits for (latency), and what the busiest part of
 * the chain needs for all sequences (capacity). README.md has the formulas and what they leave
 * out. */
#include "coordinator/draft/gain.h"

#include <math.h>

#define FADE (63.0 / 64.0)

/* y at x on the line through the points around it; left of the first it is the first's. */
static double between(const struct gain_chain *c, const double *y, double x)
{
    uint32_t i = 1;
    if (c->n_points == 1 || x <= c->rows[0]) return y[0];
    while (i + 1 < c->n_points && x > c->rows[i]) i++;
    double x0 = c->rows[i - 1], x1 = c->rows[i];
    double at = y[i - 1] + (y[i] - y[i - 1]) * (x - x0) / (x1 - x0);
    return at > y[0] ? at : y[0];
}

double gain_slowest_ns(const struct gain_chain *c, double rows)
{
    return between(c, c->slowest_ns, rows);
}

double gain_all_ns(const struct gain_chain *c, double rows)
{
    return between(c, c->all_ns, rows);
}

double gain_tokens(double rate, uint32_t k)
{
    double sum = 1.0, p = 1.0;
    for (uint32_t i = 0; i < k; i++) sum += p *= rate;
    return sum;
}

/* How many sequences share a Step when each has so many rows: as many as keep the chain full. */
static double sharing(const struct gain_chain *c, double sequences, double rows)
{
    double stages = (gain_all_ns(c, rows) + c->outside_ns) / gain_slowest_ns(c, rows);
    double m = ceil(sequences / (stages > 1.0 ? stages : 1.0));
    return m > 1.0 ? m : 1.0;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The time of a round in which each sequence has one run of `rows` rows after drafting for
 * `draft_ns`. */
static double round_ns(const struct gain_chain *c, double sequences, double rows, double draft_ns)
{
    double m = sharing(c, sequences, rows);
    double latency = draft_ns + gain_all_ns(c, m * rows) + c->outside_ns;
    double capacity = sequences / m * gain_slowest_ns(c, m * rows);
    return larger(larger(latency, capacity), sequences * draft_ns);
}

/* The time of a token where runs of k tokens follow each other without waiting for answers. */
static double streamed_ns(const struct gain_chain *c, const struct gain_draft *d,
                          const struct gain_load *l, double k)
{
    double n = l->decoding, m = sharing(c, n, k);
    double trip = gain_all_ns(c, m * k) + c->outside_ns;
    double row = gain_slowest_ns(c, m * k) / (m * k); /* what one takes the slowest stage */
    double draft = d->first_ns + k * d->token_ns;
    double period = larger(n * k * row, n * draft); /* from one run to the next */
    if (l->depth_max) period = larger(period, k * trip / l->depth_max);
    double wrong = 1.0 - d->rate, dead = trip / period * k; /* rows behind a wrong token */
    double latency = wrong * (trip + draft) + d->rate * period / k;
    return larger(latency, (1.0 + wrong * dead) * n * row);
}

double gain_speed(const struct gain_chain *c, const struct gain_draft *d, const struct gain_load *l,
                  uint32_t k)
{
    double n = l->decoding;
    if (k == 0) return 1e9 / round_ns(c, n, 1.0, 0.0);
    if (l->pipelined) return 1e9 / streamed_ns(c, d, l, k);
    double draft = d->first_ns + k * d->token_ns;
    return 1e9 * gain_tokens(d->rate, k) / round_ns(c, n, k + 1.0, draft);
}

static bool sensible(const struct gain_chain *c, const struct gain_draft *d)
{
    if (c->n_points == 0 || c->n_points > GAIN_POINTS) return false;
    for (uint32_t i = 0; i < c->n_points; i++) {
        if (!(c->slowest_ns[i] > 0.0 && c->all_ns[i] >= c->slowest_ns[i])) return false;
        if (i && c->rows[i] <= c->rows[i - 1]) return false;
    }
    return c->outside_ns >= 0.0 && d->first_ns >= 0.0 && d->token_ns >= 0.0 && d->rate >= 0.0 &&
           d->rate <= 1.0;
}

uint32_t gain_best(const struct gain_chain *c, const struct gain_draft *d,
                   const struct gain_load *l, uint32_t k_max)
{
    if (!sensible(c, d)) return 0;
    double off = gain_speed(c, d, l, 0), best = GAIN_MARGIN * off;
    uint32_t ret = 0;
    for (uint32_t k = 1; k <= k_max; k++) {
        double speed = gain_speed(c, d, l, k);
        if (!isfinite(speed) || speed <= best) continue;
        best = speed;
        ret = k;
    }
    return ret;
}

void gain_rate_note(struct gain_rate *r, uint32_t n, uint32_t accepted)
{
    uint32_t trials = accepted < n ? accepted + 1 : n;
    for (uint32_t i = 0; i < trials; i++) {
        r->all = FADE * r->all + 1.0;
        r->right = FADE * r->right + (i < accepted ? 1.0 : 0.0);
    }
}

/* The prior counts as two trials. */
double gain_rate_value(const struct gain_rate *r, double prior)
{
    return (r->right + 2.0 * prior) / (r->all + 2.0);
}
