/* Measured values, all kept: what a report's percentiles are taken from. Percentiles are by nearest
 * rank, the ceil(p n / 100)-th smallest. */
#ifndef FLOTILLA_BASE_SAMPLES_H
#define FLOTILLA_BASE_SAMPLES_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed, it is empty. */
struct samples {
    double *v;      /* freed by samples_close */
    size_t n, cap;  /* cap is private */
    size_t dropped; /* values that were not finite, or negative: counted, not kept */
    bool sorted;    /* private */
};

void samples_add(struct samples *s, double value);
void samples_close(struct samples *s);

/* All are 0 of no samples: ask for n first. p <= 0: the smallest; p >= 100: the largest. */
double samples_percentile(struct samples *s, double p);
double samples_mean(const struct samples *s);
double samples_max(const struct samples *s);

#endif
