#include "coordinator/cli/bench_steps.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <stdlib.h>

#define ROUNDS 21u
#define POSITIONS                                                                                  \
    (ROUNDS + 1u) /* of a stream: the first round does not count, but writes one too */

int bench_steps_parse(const char *option, const char *list, struct bench_steps *ret,
                      struct errmsg *em)
{
    for (const char *at = list;; at++) {
        char *end = NULL;
        unsigned long n = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (n == 0 || n > BENCH_ROWS_MAX || (*end && *end != ','))
            return err_set(em, ERR_CONF,
                           "%s: '%.20s' should be a number of 1 to %u, and others after commas",
                           option, at, BENCH_ROWS_MAX);
        if (ret->n == BENCH_COUNTS_MAX)
            return err_set(em, ERR_CONF, "%s: more than %u numbers", option, BENCH_COUNTS_MAX);
        ret->of[ret->n++].rows = (uint32_t)n;
        at = end;
        if (!*at) return 0;
    }
}

uint32_t bench_steps_rows(const struct bench_steps *b)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->n; i++) most = b->of[i].rows > most ? b->of[i].rows : most;
    return most;
}

uint32_t bench_steps_context(const struct bench_steps *b, uint32_t depth)
{
    if (b->n == 0) return 0;
    return depth + (b->streams ? POSITIONS : bench_steps_rows(b));
}

/* Of each stream's table. */
static uint32_t n_pages(uint32_t depth)
{
    return (depth + POSITIONS + KV_PAGE - 1) / KV_PAGE;
}

uint32_t bench_steps_positions(const struct bench_steps *b, uint32_t depth)
{
    return b->streams ? bench_steps_rows(b) * n_pages(depth) * KV_PAGE
                      : bench_steps_context(b, depth);
}

static int time_step(struct whole *w, bool streams, uint32_t depth, uint32_t pos, uint32_t rows,
                     uint64_t *ret_ns, struct errmsg *em)
{
    struct eng_run runs[BENCH_ROWS_MAX];
    int32_t tokens[BENCH_ROWS_MAX];
    const float *logits;
    for (uint32_t i = 0; i < rows; i++)
        tokens[i] = (int32_t)((i * 7919u + 11u) % eng_dims(w->engine)->vocab);
    runs[0] = (struct eng_run){pos, rows, rows, tokens, .pages = w->pages};
    for (uint32_t i = 0; i < rows && streams; i++)
        runs[i] = (struct eng_run){pos, 1, 1, tokens + i, .pages = w->pages + i * n_pages(depth)};
    uint64_t start = clock_ns();
    int rc = eng_step(w->engine, runs, streams ? rows : 1, NULL, &logits, em);
    for (uint32_t i = 1; i < rows && rc == 0; i++) (void)eng_logits(w->engine, i);
    *ret_ns = clock_ns() - start;
    return rc;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *of)
{
    qsort(of, ROUNDS, sizeof *of, ascending);
    return of[ROUNDS / 2];
}

static double mean(const double *of)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < ROUNDS; i++) sum += of[i];
    return sum / ROUNDS;
}

/* Steps of one count, as they were measured. */
struct measured {
    double step[ROUNDS], one[ROUNDS], ratio[ROUNDS];
};

static void sum_up(struct measured *m, struct bench_step *ret)
{
    ret->mean_ns = (uint64_t)mean(m->step);
    ret->one_mean_ns = (uint64_t)mean(m->one);
    ret->step_ns = (uint64_t)median(m->step);
    ret->one_ns = (uint64_t)median(m->one);
    ret->times_one = median(m->ratio);
}

int bench_steps_run(struct whole *w, uint32_t depth, struct bench_steps *b, struct errmsg *em)
{
    struct measured all[BENCH_COUNTS_MAX];
    int rc = 0;
    for (uint32_t round = 0; round <= ROUNDS && rc == 0; round++)
        for (uint32_t i = 0; i < b->n && rc == 0; i++) {
            struct measured *m = &all[i];
            uint32_t pos = b->streams ? depth + round : depth;
            uint64_t one = 1, many = 1;
            rc = time_step(w, b->streams, depth, pos, 1, &one, em);
            if (rc == 0) rc = time_step(w, b->streams, depth, pos, b->of[i].rows, &many, em);
            if (round == 0) continue;
            m->one[round - 1] = (double)one;
            m->step[round - 1] = (double)many;
            m->ratio[round - 1] = (double)many / (double)one;
        }
    for (uint32_t i = 0; i < b->n && rc == 0; i++) sum_up(&all[i], &b->of[i]);
    return rc;
}
