/* `bench --model`: what was measured, and how it is told. bench.c measures, bench_steps.c steps of
 * several rows; bench_report.c, which is pure, prints, makes JSON and draws. */
#ifndef FLOTILLA_CLI_BENCH_H
#define FLOTILLA_CLI_BENCH_H

#include "common/engine/engine.h"
#include "common/engine/kern_rate.h"
#include "common/text/json.h"
#include "coordinator/cli/bench_steps.h"

#define BENCH_TYPE_NUMBERS 64u /* beyond those that GGUF has given to weight types */

/* Rows of the table of kernels. */
#define BENCH_KERNEL_COUNTS 6u
extern const uint32_t bench_kernel_rows[BENCH_KERNEL_COUNTS];

struct bench_kernels {
    uint32_t n; /* types; 0: not asked for */
    enum qtype types[BENCH_TYPE_NUMBERS];
    struct kern_rate rates[BENCH_TYPE_NUMBERS][BENCH_KERNEL_COUNTS];
    double peak_per_s; /* of one thread */
};

struct bench {
    /* what was asked for */
    uint32_t prompt, tokens, threads, depth;
    bool with_model;
    /* what was measured; 0: it was not */
    const char *isa;
    double prompt_rate, decode_rate; /* tokens a second */
    struct eng_products products;    /* of a row */
    uint32_t prompt_heads;           /* rows of the prompt that met the output head */
    uint64_t bytes_per_token;        /* of weights that a decoded token reads */
    double peak_per_s, read_per_s;   /* the machine's: products, bytes */
    struct bench_steps rows, streams;
    struct bench_kernels kernels;
    struct stats_view dispatch[ENG_N_OPS];
    uint32_t few[BENCH_TYPE_NUMBERS]; /* eng_few */
};

/* Products of quantised weights a second of the prompt, and bytes of weights a second of what is
 * decoded. Their shares of the machine's: 0 where that was not measured. */
double bench_prompt_products(const struct bench *b);
double bench_decode_bytes(const struct bench *b);
double bench_prompt_share(const struct bench *b);
double bench_decode_share(const struct bench *b);

void bench_print(const struct bench *b);
struct json *bench_json(const struct bench *b);
/* Rows against time and streams against tokens a second, as far as they were measured. ERR_IO. */
int bench_plot(const struct bench *b, const char *path, struct errmsg *em);

#endif
