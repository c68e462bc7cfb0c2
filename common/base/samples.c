#include "common/base/samples.h"

#include "common/base/mem.h"

#include <math.h>
#include <stdlib.h>

void samples_add(struct samples *s, double value)
{
    if (!isfinite(value) || value < 0.0) {
        s->dropped++;
        return;
    }
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->v = mem_realloc(s->v, s->cap * sizeof *s->v);
    }
    s->v[s->n++] = value;
    s->sorted = false;
}

void samples_close(struct samples *s)
{
    mem_free(s->v);
    *s = (struct samples){0};
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(struct samples *s)
{
    if (!s->sorted && s->n) qsort(s->v, s->n, sizeof *s->v, compare);
    s->sorted = true;
}

double samples_percentile(struct samples *s, double p)
{
    if (s->n == 0) return 0.0;
    sort(s);
    double rank = ceil(p * (double)s->n / 100.0);
    if (rank < 1.0) rank = 1.0;
    if (rank > (double)s->n) rank = (double)s->n;
    return s->v[(size_t)rank - 1];
}

double samples_mean(const struct samples *s)
{
    double sum = 0.0;
    for (size_t i = 0; i < s->n; i++) sum += s->v[i];
    return s->n ? sum / (double)s->n : 0.0;
}

double samples_max(const struct samples *s)
{
    double max = 0.0;
    for (size_t i = 0; i < s->n; i++) max = s->v[i] > max ? s->v[i] : max;
    return max;
}
