/* The convoy verdict: whether long prompts held up the short requests behind them. */
#ifndef FLOTILLA_CLI_CONVOY_H
#define FLOTILLA_CLI_CONVOY_H

#include "common/base/samples.h"

#include <stdbool.h>

struct convoy_limits {
    double increase_percent; /* of the p99 over the baseline's */
    double wait_ms;          /* longest time that a request stands still */
    double waste_percent;    /* of the KV pages held */
};

#define CONVOY_LIMITS ((struct convoy_limits){50.0, 500.0, 15.0})
#define CONVOY_REASONS 4
#define CONVOY_REASON_BYTES 128

struct convoy_verdict {
    bool pass;
    double baseline_p99, convoy_p99, increase_percent;
    double wait_max, wait_mean;
    int n_reasons; /* one for each limit that is broken, with value and limit */
    char reasons[CONVOY_REASONS][CONVOY_REASON_BYTES];
};

/* baseline, convoy: ms, of short requests without and with long ones beside them; waits: ms that
 * the latter stood still at the longest, before the first row was computed or between two tokens.
 * No baseline, or nothing to compare with it, is not a pass. A value at its limit passes. */
void convoy_judge(struct samples *baseline, struct samples *convoy, struct samples *waits,
                  double waste_percent, const struct convoy_limits *limits,
                  struct convoy_verdict *ret);

#endif
