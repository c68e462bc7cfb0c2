#include "common/base/stats.h"

#include <math.h>

/* Values below STATS_SUB have a bucket each; above, the power of two and the four bits behind it
 * choose: bucket bounds are exact integers. */
static uint32_t bucket_of(uint64_t ns)
{
    if (ns <= STATS_SUB) return (uint32_t)ns;
    uint64_t v = ns - 1; /* bounds are inclusive */
    uint32_t power = 63u - (uint32_t)__builtin_clzll(v);
    uint32_t b = (power - 4) * STATS_SUB + (uint32_t)(v >> (power - 4)) + 1;
    return b < STATS_BUCKETS - 1 ? b : STATS_BUCKETS - 1;
}

uint64_t stats_le(uint32_t bucket)
{
    if (bucket >= STATS_BUCKETS - 1) return UINT64_MAX;
    if (bucket <= STATS_SUB) return bucket;
    uint32_t power = (bucket - 1) / STATS_SUB - 1, sub = (bucket - 1) % STATS_SUB;
    return ((uint64_t)STATS_SUB + sub + 1) << power;
}

static void raise_to(_Atomic uint64_t *at, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(at, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak_explicit(
                               at, &seen, value, memory_order_relaxed, memory_order_relaxed))
        continue;
}

void stats_record(struct stats *s, uint64_t ns)
{
    double square = (double)ns * (double)ns;
    double seen = atomic_load_explicit(&s->squares, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&s->squares, &seen, seen + square,
                                                  memory_order_relaxed, memory_order_relaxed))
        continue;
    raise_to(&s->max_ns, ns);
    raise_to(&s->min_ns, ~ns);
    atomic_fetch_add_explicit(&s->sum_ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->buckets[bucket_of(ns)], 1, memory_order_relaxed);
}

void stats_read(const struct stats *s, struct stats_view *ret)
{
    *ret =
        (struct stats_view){.sum_ns = atomic_load(&s->sum_ns), .max_ns = atomic_load(&s->max_ns)};
    double squares = atomic_load(&s->squares);
    for (uint32_t i = 0; i < STATS_BUCKETS; i++) {
        ret->buckets[i] = atomic_load(&s->buckets[i]);
        ret->count += ret->buckets[i];
    }
    if (ret->count == 0) return;
    ret->min_ns = ~atomic_load(&s->min_ns);
    double mean = (double)ret->sum_ns / (double)ret->count;
    double variance = squares / (double)ret->count - mean * mean;
    ret->sd_ns = variance > 0.0 ? sqrt(variance) : 0.0;
}

uint64_t stats_quantile(const struct stats_view *v, double q)
{
    uint64_t before = 0;
    for (uint32_t i = 0; i < STATS_BUCKETS; i++) {
        before += v->buckets[i];
        if (before && (double)before >= q * (double)v->count)
            return stats_le(i) < v->max_ns ? stats_le(i) : v->max_ns;
    }
    return v->max_ns;
}
