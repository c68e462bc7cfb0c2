#include "coordinator/cli/bench_rows.h"

#include "common/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 21

int bench_rows_parse(const char *list, struct bench_rows *ret, struct errmsg *em)
{
    for (const char *at = list;; at++) {
        char *end = NULL;
        unsigned long n = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (n == 0 || n > BENCH_ROWS_MAX || (*end && *end != ','))
            return err_set(em, ERR_CONF,
                           "--rows: '%.20s' should be a number of 1 to %u, and others "
                           "after commas",
                           at, BENCH_ROWS_MAX);
        if (ret->n_counts == BENCH_COUNTS_MAX)
            return err_set(em, ERR_CONF, "--rows: more than %u numbers", BENCH_COUNTS_MAX);
        ret->counts[ret->n_counts++] = (uint32_t)n;
        at = end;
        if (!*at) return 0;
    }
}

uint32_t bench_rows_most(const struct bench_rows *b)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->n_counts; i++) most = b->counts[i] > most ? b->counts[i] : most;
    return most;
}

static int time_step(struct whole *w, uint32_t pos, uint32_t rows, uint64_t *ret_ns,
                     struct errmsg *em)
{
    int32_t tokens[BENCH_ROWS_MAX];
    const float *logits;
    for (uint32_t i = 0; i < rows; i++)
        tokens[i] = (int32_t)((i * 7919u + 11u) % eng_dims(w->engine)->vocab);
    uint64_t start = clock_ns();
    int rc = whole_step(w, pos, tokens, rows, rows, &logits, em);
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

int bench_rows_run(struct whole *w, uint32_t depth, struct bench_rows *b, struct errmsg *em)
{
    double ns[BENCH_COUNTS_MAX][ROUNDS], ratio[BENCH_COUNTS_MAX][ROUNDS];
    int rc = 0;
    for (int round = -1; round < ROUNDS && rc == 0; round++)
        for (uint32_t i = 0; i < b->n_counts && rc == 0; i++) {
            uint64_t one = 1, many = 1;
            rc = time_step(w, depth, 1, &one, em);
            if (rc == 0) rc = time_step(w, depth, b->counts[i], &many, em);
            if (round < 0) continue;
            ns[i][round] = (double)many;
            ratio[i][round] = (double)many / (double)one;
        }
    for (uint32_t i = 0; i < b->n_counts && rc == 0; i++) {
        b->step_ns[i] = (uint64_t)median(ns[i]);
        b->times_one[i] = median(ratio[i]);
    }
    return rc;
}

void bench_rows_print(const struct bench_rows *b)
{
    (void)printf("rows    step       x one row    tokens/s\n");
    for (uint32_t i = 0; i < b->n_counts; i++)
        (void)printf("%4" PRIu32 "    %7.2f ms  %9.2f  %10.1f\n", b->counts[i],
                     (double)b->step_ns[i] / 1e6, b->times_one[i],
                     (double)b->counts[i] * 1e9 / (double)b->step_ns[i]);
}

struct json *bench_rows_json(const struct bench_rows *b)
{
    struct json *all = json_new_array();
    for (uint32_t i = 0; i < b->n_counts; i++) {
        struct json *o = json_new_object();
        json_put_int(o, "rows", b->counts[i]);
        json_put_real(o, "step_ms", (double)b->step_ns[i] / 1e6);
        json_put_real(o, "times_one", b->times_one[i]);
        json_add(all, o);
    }
    return all;
}
