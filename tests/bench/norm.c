/* Rows per second through a norm and the three products that read it (Q4_0, the shapes of Llama 3.2
 * 1B's queries, keys and values), in one thread: `fused`, where each row is normalised and
 * quantised once, or `apart`, where each product normalises and quantises its own input.
 *
 *   norm_bench fused|apart LEVEL ROWS       prints {"rows_per_s": X} */
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/engine/cpu.h"
#include "common/engine/kern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 2048, N_MATS = 3, ROWS_MAX = 64, PASS_NS = 300000000 };

struct bench {
    const struct kern *k;
    uint32_t rows;
    struct mat mats[N_MATS];
    float *x, *y, *weight, *out;
    struct act a;
    void *scratch;
};

static void open_bench(struct bench *b)
{
    static const uint32_t out_rows[N_MATS] = {2048, 512, 512};
    for (int m = 0; m < N_MATS; m++) {
        size_t bytes = tile_panel_bytes(QTYPE_Q4_0, HIDDEN) * (out_rows[m] / TILE_ROWS);
        uint8_t *panels = mem_alloc(bytes);
        memset(panels, 0x2c, bytes); /* scales of 0.065, weights of 4 and -6 */
        b->mats[m] = (struct mat){QTYPE_Q4_0, out_rows[m], HIDDEN, panels, 0};
    }
    size_t n = (size_t)b->rows * HIDDEN, blocks = n / ACT_BLOCK;
    b->x = mem_zalloc(n * sizeof *b->x);
    b->y = mem_zalloc(n * sizeof *b->y);
    b->weight = mem_zalloc(HIDDEN * sizeof *b->weight);
    b->out = mem_zalloc((size_t)b->rows * out_rows[0] * sizeof *b->out);
    for (size_t i = 0; i < n; i++) b->x[i] = (float)(i * 37 % 101) - 50.0f;
    for (size_t i = 0; i < HIDDEN; i++) b->weight[i] = 1.0f;
    b->a = (struct act){.n_tokens = b->rows,
                        .k = HIDDEN,
                        .q = mem_zalloc(n),
                        .x = mem_zalloc(blocks * sizeof(float)),
                        .y = mem_zalloc(blocks * sizeof(float)),
                        .s = mem_zalloc(blocks * sizeof(int32_t)),
                        .h = mem_zalloc(2 * blocks * sizeof(int32_t))};
    b->scratch = mem_zalloc(kern_scratch_bytes(HIDDEN));
}

static void close_bench(struct bench *b)
{
    for (int m = 0; m < N_MATS; m++) mem_free((void *)b->mats[m].panels);
    void *all[] = {b->x,   b->y,   b->weight, b->out, b->a.q,
                   b->a.x, b->a.y, b->a.s,    b->a.h, b->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) mem_free(all[i]);
}

static void normalise(struct bench *b)
{
    const struct kern_norm norm = {.weight = b->weight, .eps = 1e-5f};
    for (uint32_t r = 0; r < b->rows; r++)
        kern_norm_row(b->k, &norm, b->x + (size_t)r * HIDDEN, HIDDEN, b->y + (size_t)r * HIDDEN,
                      &b->a, r);
}

static void pass(struct bench *b, bool fused)
{
    if (fused) normalise(b);
    for (int m = 0; m < N_MATS; m++) {
        if (!fused) normalise(b);
        b->k->linear(&b->mats[m], 0, mat_n_panels(&b->mats[m]), &b->a, b->y, HIDDEN, b->rows,
                     b->out, b->mats[0].rows, b->scratch);
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.rows = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0};
    struct errmsg em;
    if (b.rows == 0 || b.rows > ROWS_MAX || cpu_kern(argv[2], &b.k, &em) < 0) {
        (void)fprintf(stderr, "usage: norm_bench fused|apart LEVEL ROWS (1..%d)\n", ROWS_MAX);
        return 2;
    }
    bool fused = strcmp(argv[1], "fused") == 0;
    open_bench(&b);
    pass(&b, fused);
    uint64_t start = clock_ns(), now = start, n = 0;
    while (now - start < PASS_NS) {
        pass(&b, fused);
        n++;
        now = clock_ns();
    }
    (void)printf("{\"rows_per_s\": %.1f}\n", (double)n * b.rows / ((double)(now - start) / 1e9));
    close_bench(&b);
    return 0;
}
