#include "common/base/stats.h"

#include <math.h>

/* Values up to STATS_SUB have a bucket each; above, the power of two and the four bits behind it
 * choose the bucket. All bounds are exact integers. */
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

/* Adds without a locked instruction: nobody else writes. */
static void add_own(_Atomic uint64_t *at, uint64_t n)
{
    atomic_store_explicit(at, atomic_load_explicit(at, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

static void raise_own(_Atomic uint64_t *at, uint64_t value)
{
    if (atomic_load_explicit(at, memory_order_relaxed) < value)
        atomic_store_explicit(at, value, memory_order_relaxed);
}

void stats_record_own(struct stats *s, uint64_t ns)
{
    double seen = atomic_load_explicit(&s->squares, memory_order_relaxed);
    atomic_store_explicit(&s->squares, seen + (double)ns * (double)ns, memory_order_relaxed);
    raise_own(&s->max_ns, ns);
    raise_own(&s->min_ns, ~ns);
    add_own(&s->sum_ns, ns);
    add_own(&s->buckets[bucket_of(ns)], 1);
}

void stats_read_all(const struct stats *s, size_t n, size_t stride, struct stats_view *ret)
{
    uint64_t min_inverted = 0;
    double squares = 0.0;
    *ret = (struct stats_view){0};
    for (size_t k = 0; k < n; k++, s += stride) {
        uint64_t max = atomic_load(&s->max_ns), min = atomic_load(&s->min_ns);
        ret->sum_ns += atomic_load(&s->sum_ns);
        if (max > ret->max_ns) ret->max_ns = max;
        if (min > min_inverted) min_inverted = min;
        squares += atomic_load(&s->squares);
        for (uint32_t i = 0; i < STATS_BUCKETS; i++) {
            uint64_t in = atomic_load(&s->buckets[i]);
            ret->buckets[i] += in;
            ret->count += in;
        }
    }
    if (ret->count == 0) return;
    ret->min_ns = ~min_inverted;
    double mean = (double)ret->sum_ns / (double)ret->count;
    double variance = squares / (double)ret->count - mean * mean;
    ret->sd_ns = variance > 0.0 ? sqrt(variance) : 0.0;
}

void stats_read(const struct stats *s, struct stats_view *ret)
{
    stats_read_all(s, 1, 1, ret);
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
