#include "coordinator/cli/kl.h"

#include "common/base/mem.h"

#include <math.h>
#include <stdlib.h>

double kl_log_sum_exp(const float *logits, uint32_t n)
{
    float max = logits[0];
    double sum = 0.0;
    for (uint32_t i = 1; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)max);
    return (double)max + log(sum);
}

uint32_t kl_largest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Rounding may leave a divergence just below 0. What is not a number is as far as can be. */
static double at_least_0(double kl)
{
    return kl != kl ? INFINITY : kl > 0.0 ? kl : 0.0;
}

double kl_between(const float *baseline, const float *judged, uint32_t n)
{
    if (n == 0) return 0.0;
    double lp = kl_log_sum_exp(baseline, n), lq = kl_log_sum_exp(judged, n), kl = 0.0;
    if (!isfinite(lp) || !isfinite(lq)) return INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        double p = (double)baseline[i] - lp;
        if (exp(p) > 0.0) kl += exp(p) * (p - ((double)judged[i] - lq));
    }
    return at_least_0(kl);
}

double kl_from_recorded(const struct kl_recorded *r, const float *judged, uint32_t n)
{
    double lse = kl_log_sum_exp(judged, n), kl = 0.0, p_sum = 0.0, q_sum = 0.0;
    for (uint32_t i = 0; i < KL_TOP; i++) {
        double lp = (double)r->logit[i] - r->lse, lq = (double)judged[r->id[i]] - lse;
        kl += exp(lp) * (lp - lq);
        p_sum += exp(lp);
        q_sum += exp(lq);
    }
    double p_rest = 1.0 - p_sum, q_rest = 1.0 - q_sum;
    if (p_rest > 0.0 && q_rest > 0.0) kl += p_rest * log(p_rest / q_rest);
    return at_least_0(kl);
}

void kl_add(struct kl_list *l, double kl, int agrees)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 1024;
        l->kl = mem_realloc(l->kl, l->cap * sizeof *l->kl);
    }
    l->kl[l->n++] = kl;
    l->agreed += agrees != 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct kl_figures kl_figures(struct kl_list *l)
{
    struct kl_figures f = {0};
    if (l->n == 0) return f;
    qsort(l->kl, l->n, sizeof *l->kl, ascending);
    for (size_t i = 0; i < l->n; i++) f.mean += l->kl[i] / (double)l->n;
    f.p99 = l->kl[(l->n * 99 + 99) / 100 - 1];
    f.max = l->kl[l->n - 1];
    f.top1_agreement = (double)l->agreed / (double)l->n;
    return f;
}

void kl_close(struct kl_list *l)
{
    mem_free(l->kl);
    *l = (struct kl_list){0};
}
