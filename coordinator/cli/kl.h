/* How far one model's predictions lie from another's: Kullback-Leibler divergences in nats over the
 * positions of a text, and what `quality` says of them. Pure. */
#ifndef FLOTILLA_COORDINATOR_CLI_KL_H
#define FLOTILLA_COORDINATOR_CLI_KL_H

#include <stddef.h>
#include <stdint.h>

/* log sum exp(logits), in f64; n > 0. */
double kl_log_sum_exp(const float *logits, uint32_t n);
/* The largest logit, the first of equals; n > 0. */
uint32_t kl_largest(const float *logits, uint32_t n);

/* Sum over the n tokens of p (log p - log q), p and q being the softmax of the baseline's and the
 * judged model's logits; never below 0. +Inf where a logit is NaN or +Inf, or where the judged
 * model rules out (-Inf) what the baseline does not. 0 for no tokens at all. */
double kl_between(const float *baseline, const float *judged, uint32_t n);

#define KL_TOP 128u

/* A baseline's prediction as it is recorded: its largest logits, the largest first. */
struct kl_recorded {
    double lse; /* of all its logits */
    uint32_t id[KL_TOP];
    float logit[KL_TOP];
};

/* The same from a recorded baseline, all tokens that it does not name counting as one. Every id is
 * below n. */
double kl_from_recorded(const struct kl_recorded *baseline, const float *judged, uint32_t n);

/* The divergences of a text's positions. Zeroed, it is empty; freed with kl_close. */
struct kl_list {
    double *kl;
    size_t n, cap;
    uint64_t agreed; /* positions whose likeliest token is the baseline's */
};

struct kl_figures {
    double mean, p99, max; /* p99 by nearest rank: the ceil(0.99 n)-th smallest */
    double top1_agreement; /* a share of 1 */
};

void kl_add(struct kl_list *l, double kl, int agrees);
/* Sorts the list; all 0 of an empty one. */
struct kl_figures kl_figures(struct kl_list *l);
void kl_close(struct kl_list *l);

#endif
