/* `bench --model --rows` and `--streams`: what a step of n rows takes, beside a step of one. The
 * rows are consecutive ones of one sequence, as those of a draft are, or the next ones of n
 * sequences that are decoded together. All of them want logits. */
#ifndef FLOTILLA_CLI_BENCH_STEPS_H
#define FLOTILLA_CLI_BENCH_STEPS_H

#include "coordinator/cli/whole.h"

#define BENCH_ROWS_MAX 512u /* rows of a step */
#define BENCH_COUNTS_MAX 16u

struct bench_step {
    uint32_t rows;
    uint64_t step_ns, one_ns; /* medians: of steps of so many rows, of those of one beside them */
    double times_one;         /* the median of their ratios */
    uint64_t mean_ns, one_mean_ns;
};

struct bench_steps {
    bool streams; /* each row of a step is of another sequence */
    uint32_t n;   /* 0: not asked for */
    struct bench_step of[BENCH_COUNTS_MAX];
};

/* Reads numbers of rows with commas between them. ERR_CONF names the option and the number that is
 * wrong. */
int bench_steps_parse(const char *option, const char *list, struct bench_steps *ret,
                      struct errmsg *em);

/* The largest of them; 0: none was asked for. */
uint32_t bench_steps_rows(const struct bench_steps *b);
/* Positions that one sequence needs, and that all of them need together, where it has so many
 * positions before. */
uint32_t bench_steps_context(const struct bench_steps *b, uint32_t depth);
uint32_t bench_steps_positions(const struct bench_steps *b, uint32_t depth);

/* Measures, at so many positions; the engine has room for the above. A round has a step of each
 * count, each after a step of one row; the first round does not count. Streams go on by a position
 * in each round. */
int bench_steps_run(struct whole *w, uint32_t depth, struct bench_steps *b, struct errmsg *em);

#endif
