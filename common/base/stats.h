/* How long something took, many times: count, sum, extremes, spread and a histogram. Any thread may
 * record while another reads; nothing is lost and nothing locks. Threads that record much have one
 * each, which costs them no locked instruction, and the reader adds them up (stats_read_all).
 *
 * Each power of two has 16 buckets, so that a quantile is within 1/16 of the truth. A value is in
 * the first bucket whose bound it does not exceed (Prometheus's `le`). */
#ifndef FLOTILLA_BASE_STATS_H
#define FLOTILLA_BASE_STATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define STATS_SUB 16u      /* buckets of each power of two */
#define STATS_BUCKETS 785u /* up to 2^52 ns, and one for what lies beyond */

/* Zeroed, it is empty. */
struct stats {
    _Atomic uint64_t buckets[STATS_BUCKETS], sum_ns, min_ns, max_ns; /* min is kept as ~min */
    _Atomic double squares;
};

void stats_record(struct stats *s, uint64_t ns);
/* The same, where the calling thread is the only one that records in s. */
void stats_record_own(struct stats *s, uint64_t ns);

/* What was recorded so far, consistent in itself: `count` is the sum of the buckets. */
struct stats_view {
    uint64_t count, sum_ns, min_ns, max_ns;
    double sd_ns;
    uint64_t buckets[STATS_BUCKETS];
};

void stats_read(const struct stats *s, struct stats_view *ret);
/* The sum of n of them: s[0], s[stride], s[2 * stride] and so on. */
void stats_read_all(const struct stats *s, size_t n, size_t stride, struct stats_view *ret);
/* The bucket's upper bound in ns, itself included; UINT64_MAX for the last. */
uint64_t stats_le(uint32_t bucket);
/* The bound of the bucket in which quantile q (0..1) lies, at most the largest value; 0 if empty.
 */
uint64_t stats_quantile(const struct stats_view *v, double q);

#endif
