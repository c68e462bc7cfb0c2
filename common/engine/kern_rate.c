#include "common/engine/kern_rate.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/engine/cpu.h"

#include <inttypes.h>

_Static_assert(KERN_RATE_ROWS_MAX == KERN_FEW_MAX, "the forms that a level may have");

int kern_rate_isa(const char *isa, const char **ret_name, struct errmsg *em)
{
    const struct kern *kern;
    int rc = cpu_kern(isa, &kern, em);
    if (rc == 0) *ret_name = kern->name;
    return rc;
}

/* ---- the peak ---- */

#define PEAK_PASSES 8
#define PEAK_PASS_NS (10 * NS_PER_MS) /* at least; long enough that starting threads is nothing */
#define PEAK_ROUNDS_MAX (UINT32_C(1) << 24)

struct peak {
    const struct kern *kern;
    uint32_t rounds;
    unsigned n_threads; /* that took part */
};

static void peak_part(void *arg, unsigned idx, unsigned n)
{
    struct peak *p = arg;
    if (idx == 0) p->n_threads = n;
    uint32_t sum = p->kern->peak(p->rounds);
    CHECK(sum == p->rounds * KERN_PEAK_PRODUCTS);
}

static double peak_pass(struct pool *pool, struct peak *p, uint64_t *ret_ns)
{
    uint64_t start = clock_ns();
    pool_run(pool, peak_part, p);
    *ret_ns = clock_ns() - start;
    if (*ret_ns == 0) *ret_ns = 1;
    return (double)p->rounds * KERN_PEAK_PRODUCTS * p->n_threads * 1e9 / (double)*ret_ns;
}

int kern_rate_peak(const char *isa, unsigned threads, double *ret_per_s, struct errmsg *em)
{
    struct peak p = {.rounds = 64};
    struct pool *pool;
    uint64_t ns;
    int rc = cpu_kern(isa, &p.kern, em);
    if (rc == 0) rc = pool_open(threads, &pool, em);
    if (rc < 0) return rc;
    while (peak_pass(pool, &p, &ns), ns < PEAK_PASS_NS && p.rounds < PEAK_ROUNDS_MAX) p.rounds *= 2;
    double best = 0.0;
    for (int pass = 0; pass < PEAK_PASSES; pass++) {
        double rate = peak_pass(pool, &p, &ns);
        if (rate > best) best = rate;
    }
    pool_close(pool);
    *ret_per_s = best;
    return 0;
}

/* ---- products with a matrix ---- */

#define PANELS 4u
#define PASSES 7
#define PASS_NS (NS_PER_MS / 5)

struct piece {
    struct mat mat;
    struct act act;
    uint8_t *panels;
    float *x, *out;
    void *scratch;
};

static void open_piece(struct piece *p, enum qtype type, uint32_t rows)
{
    size_t bytes = PANELS * tile_panel_bytes(type, KERN_RATE_K), n = (size_t)rows * KERN_RATE_K;
    *p = (struct piece){.panels = mem_pages(bytes),
                        .x = mem_zalloc(n * sizeof(float)),
                        .out = mem_zalloc((size_t)rows * PANELS * TILE_ROWS * sizeof(float)),
                        .scratch = mem_zalloc(kern_scratch_bytes(KERN_RATE_K))};
    if (!p->panels) mem_none();
    memset(p->panels, quant_made_up(type), bytes);
    p->mat = (struct mat){type, PANELS * TILE_ROWS, KERN_RATE_K, p->panels, 0};
    p->act = (struct act){.n_tokens = rows,
                          .k = KERN_RATE_K,
                          .q = mem_zalloc(n),
                          .x = mem_zalloc(n / ACT_BLOCK * sizeof(float)),
                          .y = mem_zalloc(n / ACT_BLOCK * sizeof(float)),
                          .s = mem_zalloc(n / ACT_BLOCK * sizeof(int32_t)),
                          .h = mem_zalloc(n / ACT_BLOCK * 2 * sizeof(int32_t))};
}

static void close_piece(struct piece *p)
{
    mem_pages_free(p->panels, PANELS * tile_panel_bytes(p->mat.type, KERN_RATE_K));
    void *buffers[] = {p->x, p->out, p->scratch, p->act.q, p->act.x, p->act.y, p->act.s, p->act.h};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) mem_free(buffers[i]);
}

/* Products a second over calls of at least PASS_NS together. */
static double linear_pass(const struct kern *kern, struct piece *p, bool tiles)
{
    uint32_t rows = p->act.n_tokens, calls = 0;
    uint64_t start = clock_ns(), ns;
    p->mat.few = tiles ? KERN_FEW_MAX : 1;
    do {
        kern->linear(&p->mat, 0, PANELS, &p->act, p->x, KERN_RATE_K, rows, p->out,
                     (size_t)PANELS * TILE_ROWS, p->scratch);
        calls++;
        ns = clock_ns() - start;
    } while (ns < PASS_NS);
    return (double)calls * rows * PANELS * TILE_ROWS * KERN_RATE_K * 1e9 / (double)ns;
}

int kern_rate_linear(const char *isa, enum qtype type, uint32_t rows, struct kern_rate *ret,
                     struct errmsg *em)
{
    const struct kern *kern;
    struct piece p;
    if (rows == 0 || rows > KERN_RATE_ROWS_MAX)
        return err_set(em, ERR_RANGE, "%" PRIu32 " rows are not in 1..%u", rows,
                       KERN_RATE_ROWS_MAX);
    int rc = cpu_kern(isa, &kern, em);
    if (rc < 0) return rc;
    bool floats = qtype_is_float(type), tiles = !floats && (rows == 1 || kern->has_few);
    struct kern_rate best = {0.0, 0.0};
    open_piece(&p, type, rows);
    for (int pass = 0; pass < PASSES; pass++) {
        double by_tiles = tiles ? linear_pass(kern, &p, true) : 0.0;
        double by_panels = floats || rows > 1 ? linear_pass(kern, &p, false) : 0.0;
        if (by_tiles > best.tiles) best.tiles = by_tiles;
        if (by_panels > best.panels) best.panels = by_panels;
    }
    close_piece(&p);
    *ret = best;
    return 0;
}
