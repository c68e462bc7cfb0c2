#include "common/text/sample.h"

#include "common/base/fmath.h"
#include "common/base/rng.h"

#include <float.h>

/* What is done to a whole row is done to so many of its elements at a time. */
#define ROW_BLOCK 256u

/* The noise of tokens: draws of one choice. Four neighbours share one. */
struct draws {
    const struct sampling *p;
    uint32_t sample_idx, pos, block; /* of the four tokens that `four` is for */
    struct philox four;
};

static struct draws draws_of(const struct sampling *p, uint32_t sample_idx, uint32_t pos)
{
    return (struct draws){p, sample_idx, pos, 0, philox(p->seed, pos, 0, sample_idx, 0)};
}

/* k, uniform below 2^23: u = (k + 1/2) / 2^23 lies in (0, 1), on a grid of one bit less than a
 * float has, so that it is never rounded up to 1. */
static uint32_t draw(struct draws *d, int32_t id)
{
    uint32_t block = (uint32_t)id / 4;
    if (block != d->block) {
        d->block = block;
        d->four = philox(d->p->seed, d->pos, block, d->sample_idx, 0);
    }
    return d->four.v[(uint32_t)id % 4] >> 9;
}

/* Standard Gumbel noise: -ln(-ln u). */
static float gumbel(uint32_t k)
{
    return -fm_log(-fm_log(((float)k + 0.5f) * 0x1p-23f));
}

/* No noise is above this: 24 ln 2, rounded up. */
#define GUMBEL_MAX 16.7f

/* At least gumbel(k), without logarithms. -ln u >= 1 - u, so it is at most -ln(1 - u), and
 * 1 - u >= m / 2^24 where m = 2^23 - k; ln 2 and the sum are rounded up. */
static float gumbel_bound(uint32_t k)
{
    return 0.6932f * (float)(__builtin_clz(0x800000u - k) - 7) + 0.001f;
}

static bool before(struct sample_candidate a, struct sample_candidate b)
{
    return a.score != b.score ? a.score > b.score : a.id < b.id;
}

static void sift(struct sample_candidate *c, uint32_t n, uint32_t i)
{
    struct sample_candidate x = c[i];
    for (uint32_t k; (k = 2 * i + 1) < n; i = k) {
        if (k + 1 < n && before(c[k + 1], c[k])) k++;
        if (!before(c[k], x)) break;
        c[i] = c[k];
    }
    c[i] = x;
}

/* Moves the best of c[0..n) to c[n-1] and keeps the rest a heap. */
static struct sample_candidate pop(struct sample_candidate *c, uint32_t n)
{
    struct sample_candidate best = c[0];
    c[0] = c[n - 1];
    c[n - 1] = best;
    sift(c, n - 1, 0);
    return best;
}

static void make_heap(struct sample_candidate *c, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;) sift(c, n, i);
}

/* Where scores lie: how many candidates, and with what mass, in each step below the best, whose
 * score is 0. The last step has all further ones. */
#define STEPS 256u
#define STEPS_A_UNIT 8.0f

struct profile {
    uint32_t count[STEPS];
    double mass[STEPS]; /* e^score, like the next: only where it is asked for */
    float total;        /* in the order of the candidates */
};

static void profile(const struct sample_candidate *c, uint32_t n, bool masses, struct profile *ret)
{
    float e[ROW_BLOCK] = {0};
    *ret = (struct profile){.total = 0.0f};
    for (uint32_t from = 0; from < n; from += ROW_BLOCK) {
        uint32_t m = n - from < ROW_BLOCK ? n - from : ROW_BLOCK;
        for (uint32_t i = 0; masses && i < m; i++) e[i] = c[from + i].score;
        if (masses) fm_exp_each(e, 0.0f, m, e);
        for (uint32_t i = 0; i < m; i++) {
            float x = -STEPS_A_UNIT * c[from + i].score;
            uint32_t step = x < (float)(STEPS - 1) ? (uint32_t)x : STEPS - 1;
            ret->count[step]++;
            ret->mass[step] += (double)e[i];
            ret->total += e[i];
        }
    }
}

/* Moves candidates to the end of c among which all survivors are, and returns how many; only where
 * top-p's mass is just reached, rounding may want more of them, the next best. *most is top-k, or
 * n, and is lowered to what min-p leaves at most. The sum of all masses goes to *total where top-p
 * is of all. */
static uint32_t shortlist(const struct sampling *p, struct sample_candidate *c, uint32_t n,
                          uint32_t *most, float *total)
{
    struct profile f;
    bool by_count = *most < n, by_mass = !by_count && p->top_p < 1.0f, enough = false;
    /* The mass of the k best is asked for before min-p drops any of them. */
    bool by_least = p->min_p > 0.0f && !(by_count && p->top_p < 1.0f), below = false;
    float least = by_least ? fm_log(p->min_p) - 0.01f : 0.0f, above = 0.0f;
    uint32_t count = 0;
    double mass = 0.0;
    profile(c, n, by_mass, &f);
    *total = f.total;
    for (uint32_t step = 0; step < STEPS - 1 && !enough && !below; step++) {
        count += f.count[step];
        mass += f.mass[step];
        above = (float)(step + 1) / -STEPS_A_UNIT; /* exact, as the products above are */
        enough = (by_count && count >= *most) ||
                 (by_mass && mass >= (double)p->top_p * (double)f.total * 1.001);
        below = by_least && above < least;
    }
    if (!enough && !below) return n;
    uint32_t at = n;
    for (uint32_t i = n; i-- > 0;) {
        if (!(c[i].score > above)) continue;
        struct sample_candidate x = c[--at];
        c[at] = c[i];
        c[i] = x;
    }
    if (below && n - at < *most) *most = n - at;
    return n - at;
}

/* Takes the best of what is left to its place from the end of c. Of the n candidates the last m
 * are a heap; `popped` of them have been taken, or all and some of the others. */
static struct sample_candidate take(struct sample_candidate *c, uint32_t n, uint32_t m,
                                    uint32_t popped)
{
    if (popped < m) return pop(c + (n - m), m - popped);
    if (popped == m) make_heap(c, n - m);
    return pop(c, n - popped);
}

/* Leaves the survivors of top-k, top-p and min-p at the end of c and returns how many they are. The
 * best score is 0. Candidates are taken best first until a filter is full, so that the cost is that
 * of the survivors and not of sorting the vocabulary. */
static uint32_t filter(const struct sampling *p, struct sample_candidate *c, uint32_t n)
{
    float total = 0.0f, mass = 0.0f;
    uint32_t most = p->top_k && p->top_k < n ? p->top_k : n, popped = 0, kept = 0;
    bool of_best = p->top_p < 1.0f && most < n; /* top-p is of the mass of the k best */
    uint32_t m = shortlist(p, c, n, &most, &total);
    make_heap(c + (n - m), m);
    for (; of_best && popped < most; popped++) total += fm_exp(take(c, n, m, popped).score);
    while (kept < most) {
        float score = kept < popped ? c[n - 1 - kept].score : take(c, n, m, kept).score;
        float e = fm_exp(score);
        if (e < p->min_p) break;
        kept++;
        mass += e;
        if (p->top_p < 1.0f && mass >= p->top_p * total) break;
    }
    return kept ? kept : 1;
}

/* A number that is larger for a larger float that is finite; both zeros have the same. */
static int32_t rank_of(float x)
{
    int32_t b = (int32_t)fm_bits(x + 0.0f);
    return b ^ (int32_t)((uint32_t)(b >> 31) >> 1);
}

/* The lowest id of the largest logit, -1 where one is not finite. In blocks, as the compiler makes
 * vectors of them. */
static int32_t largest(const float *logits, uint32_t n)
{
    uint32_t at = 0, poison = 0;
    int32_t most = INT32_MIN;
    for (uint32_t from = 0; from < n; from += ROW_BLOCK) {
        uint32_t end = n - from < ROW_BLOCK ? n : from + ROW_BLOCK;
        int32_t here = INT32_MIN;
        for (uint32_t i = from; i < end; i++) {
            int32_t r = rank_of(logits[i]);
            here = r > here ? r : here;
            poison |= (fm_bits(logits[i]) & 0x7f800000u) == 0x7f800000u;
        }
        if (here <= most) continue;
        most = here;
        at = from;
    }
    if (poison) return -1;
    while (rank_of(logits[at]) != most) at++;
    return (int32_t)at;
}

/* Best score plus noise among those of c[0..n) that are allowed (NULL: all), as start is; a
 * candidate that even the largest noise cannot lift above the best so far is skipped, and so is one
 * whose own noise cannot. The order of the candidates does not matter; neighbours cost less. */
static int32_t noisy_argmax(const struct sampling *p, uint32_t sample_idx, uint32_t pos,
                            const struct sample_candidate *c, uint32_t n,
                            struct sample_candidate start, const struct sample_allowed *allowed)
{
    struct draws d = draws_of(p, sample_idx, pos);
    struct sample_candidate best = start;
    best.score += gumbel(draw(&d, start.id));
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].score + GUMBEL_MAX < best.score) continue;
        uint32_t k = draw(&d, c[i].id);
        if (c[i].score + gumbel_bound(k) < best.score) continue;
        struct sample_candidate x = {c[i].score + gumbel(k), c[i].id};
        if (before(x, best) && (!allowed || allowed->one(allowed->arg, x.id))) best = x;
    }
    return best.id;
}

void sample_seen_add(struct sample_seen *s, int32_t id, bool in_answer)
{
    if (!s->count[id]) s->ids[s->n++] = id;
    s->count[id] = (s->count[id] | 1u) + (in_answer ? 2u : 0u);
}

void sample_seen_clear(struct sample_seen *s)
{
    for (uint32_t i = 0; i < s->n; i++) s->count[s->ids[i]] = 0;
    s->n = 0;
}

bool sample_needs_seen(const struct sampling *p)
{
    return p->repetition != 1.0f || p->presence != 0.0f || p->frequency != 0.0f;
}

bool sample_adjusts(const struct sampling *p)
{
    return p->n_bias || sample_needs_seen(p);
}

/* Finite logits stay finite when they are adjusted, however extreme the parameters are. */
static float bounded(float x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

void sample_adjust(const struct sampling *p, const struct sample_seen *seen, float *logits,
                   uint32_t n)
{
    for (uint32_t i = 0; i < p->n_bias; i++) {
        if (p->bias_ids[i] < 0 || (uint32_t)p->bias_ids[i] >= n) continue;
        float *l = &logits[p->bias_ids[i]];
        if (isfinite(*l)) *l = bounded(*l + p->bias[i]);
    }
    for (uint32_t i = 0; i < seen->n; i++) {
        float *l = &logits[seen->ids[i]];
        uint32_t said = seen->count[seen->ids[i]] / 2;
        if (!isfinite(*l)) continue;
        *l = bounded(*l > 0.0f ? *l / p->repetition : *l * p->repetition);
        if (said) *l = bounded(*l - bounded((float)said * p->frequency + p->presence));
    }
}

float sample_logprobs(const float *logits, uint32_t n, int32_t chosen, uint32_t n_top,
                      struct sample_candidate *ret_top)
{
    uint32_t kept = 0;
    float max = logits[largest(logits, n)], e[ROW_BLOCK];
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        if (i % ROW_BLOCK == 0)
            fm_exp_each(logits + i, max, n - i < ROW_BLOCK ? n - i : ROW_BLOCK, e);
        sum += (double)e[i % ROW_BLOCK];
        if (n_top == 0 || (kept == n_top && logits[i] <= ret_top[kept - 1].score)) continue;
        uint32_t at = kept < n_top ? kept++ : kept - 1;
        for (; at && ret_top[at - 1].score < logits[i]; at--) ret_top[at] = ret_top[at - 1];
        ret_top[at] = (struct sample_candidate){logits[i], (int32_t)i};
    }
    float lse = max + fm_log((float)sum);
    for (uint32_t i = 0; i < kept; i++) ret_top[i].score -= lse;
    return logits[chosen] - lse;
}

/* From the largest on, so that no score can overflow upwards: -Inf is below all others, but among
 * two +Inf, filters and noise could not choose. */
static struct sample_candidate scored(const struct sampling *p, const float *logits, uint32_t top,
                                      uint32_t i)
{
    return (struct sample_candidate){(logits[i] - logits[top]) / p->temp, (int32_t)i};
}

int32_t sample_choose(const struct sampling *p, uint32_t sample_idx, uint32_t pos,
                      const float *logits, uint32_t n, struct sample_candidate *scratch)
{
    int32_t top = largest(logits, n);
    if (top < 0 || p->temp < SAMPLE_TEMP_MIN) return top;
    for (uint32_t i = 0; i < n; i++) scratch[i] = scored(p, logits, (uint32_t)top, i);
    struct sample_candidate start = scratch[top];
    if (!p->top_k && p->top_p >= 1.0f && p->min_p <= 0.0f)
        return noisy_argmax(p, sample_idx, pos, scratch, n, start, NULL);
    uint32_t kept = filter(p, scratch, n);
    return noisy_argmax(p, sample_idx, pos, scratch + (n - kept), kept, start, NULL);
}

static bool in(const uint64_t *mask, uint32_t id)
{
    return mask[id / 64] >> id % 64 & 1;
}

static int32_t largest_in(const float *logits, uint32_t n, const uint64_t *mask)
{
    int32_t best = SAMPLE_NONE_ALLOWED;
    for (uint32_t i = 0; i < n; i++)
        if (in(mask, i) && (best < 0 || logits[i] > logits[best])) best = (int32_t)i;
    return best;
}

/* Filters need to know all that is allowed. So does whoever finds that the likeliest token is not:
 * what is left is then often far below. Else tokens are asked for only when they would be chosen.
 */
int32_t sample_choose_allowed(const struct sampling *p, uint32_t sample_idx, uint32_t pos,
                              const float *logits, uint32_t n, const struct sample_allowed *allowed,
                              struct sample_candidate *scratch)
{
    const uint64_t *mask = NULL;
    int32_t top = largest(logits, n);
    if (top < 0) return SAMPLE_NOT_FINITE;
    bool filters = p->top_k || p->top_p < 1.0f || p->min_p > 0.0f,
         greedy = p->temp < SAMPLE_TEMP_MIN;
    if ((filters && !greedy) || !allowed->one(allowed->arg, top)) {
        mask = allowed->all(allowed->arg);
        top = largest_in(logits, n, mask);
    }
    if (top < 0 || greedy) return top;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!mask || in(mask, i)) scratch[kept++] = scored(p, logits, (uint32_t)top, i);
    const struct sample_candidate start = {0.0f, top};
    if (!filters)
        return noisy_argmax(p, sample_idx, pos, scratch, kept, start, mask ? NULL : allowed);
    n = kept;
    kept = filter(p, scratch, n);
    return noisy_argmax(p, sample_idx, pos, scratch + (n - kept), kept, start, NULL);
}
