#include "coordinator/cli/convoy.h"

#include <stdarg.h>
#include <stdio.h>

static void fail(struct convoy_verdict *v, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void fail(struct convoy_verdict *v, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (v->n_reasons < CONVOY_REASONS)
        (void)vsnprintf(v->reasons[v->n_reasons++], CONVOY_REASON_BYTES, format, args);
    va_end(args);
    v->pass = false;
}

void convoy_judge(struct samples *baseline, struct samples *convoy, struct samples *waits,
                  double waste_percent, const struct convoy_limits *limits,
                  struct convoy_verdict *ret)
{
    *ret = (struct convoy_verdict){.pass = true};
    ret->baseline_p99 = samples_percentile(baseline, 99.0);
    ret->convoy_p99 = samples_percentile(convoy, 99.0);
    ret->wait_max = samples_max(waits);
    ret->wait_mean = samples_mean(waits);
    if (baseline->n == 0 || convoy->n == 0 || ret->baseline_p99 <= 0.0) {
        fail(ret, "no %s to compare",
             baseline->n && ret->baseline_p99 > 0.0 ? "convoy" : "baseline");
    } else {
        ret->increase_percent = (ret->convoy_p99 / ret->baseline_p99 - 1.0) * 100.0;
        if (ret->increase_percent > limits->increase_percent)
            fail(ret, "p99 rose by %.4g %%, the limit is %.4g %%", ret->increase_percent,
                 limits->increase_percent);
    }
    if (ret->wait_max > limits->wait_ms)
        fail(ret, "a request waited %.4g ms, the limit is %.4g ms", ret->wait_max, limits->wait_ms);
    if (waste_percent > limits->waste_percent)
        fail(ret, "%.4g %% of the KV pages held were unused, the limit is %.4g %%", waste_percent,
             limits->waste_percent);
}
