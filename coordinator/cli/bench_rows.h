/* `bench --model --rows`: what a step of n rows costs, as a multiple of a step of one. */
#ifndef FLOTILLA_CLI_BENCH_ROWS_H
#define FLOTILLA_CLI_BENCH_ROWS_H

#include "common/text/json.h"
#include "coordinator/cli/whole.h"

#define BENCH_ROWS_MAX 512u /* rows of a step */
#define BENCH_COUNTS_MAX 16u

struct bench_rows {
    uint32_t n_counts; /* 0: not asked for */
    uint32_t counts[BENCH_COUNTS_MAX];
    uint64_t step_ns[BENCH_COUNTS_MAX]; /* medians */
    double times_one[BENCH_COUNTS_MAX]; /* medians of the ratios to the step of one row beside it */
};

/* Reads numbers of rows with commas between them. ERR_CONF names the one that is wrong. */
int bench_rows_parse(const char *list, struct bench_rows *ret, struct errmsg *em);

/* The largest of them; 0: none was asked for. */
uint32_t bench_rows_most(const struct bench_rows *b);

/* Measures, with rows at consecutive positions from `depth` on that all want logits, as the rows of
 * many streams and those of a draft do. A round has a step of each count, each after a step of one
 * row; the first round does not count. */
int bench_rows_run(struct whole *w, uint32_t depth, struct bench_rows *b, struct errmsg *em);

void bench_rows_print(const struct bench_rows *b);
struct json *bench_rows_json(const struct bench_rows *b);

#endif
