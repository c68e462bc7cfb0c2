/* Whether products of a few rows come straight from tiles or from unpacked panels is chosen when an
 * engine is opened, for each type of its weights, by measuring both on a piece of them. Results are
 * the same either way, so nothing depends on how the measurement comes out but the speed. */
#include "common/engine/stage.h"

#define PIECE_PANELS 4u /* they stay in the caches: both ways read the same bytes from memory */
#define PASSES 5        /* of each way, in turn; the best counts */

static uint64_t time_of(struct engine *e, struct mat *m, uint32_t panels, uint32_t rows, bool tiles)
{
    struct act a = m->k <= e->act.k ? e->act : e->ffn_act; /* zeros */
    a.n_tokens = rows;
    a.k = m->k;
    m->few = tiles ? KERN_FEW_MAX : 1;
    uint64_t start = clock_ns();
    e->kern->linear(m, 0, panels, &a, NULL, 0, rows, e->tmp, e->ld_tmp, e->scratch);
    return clock_ns() - start;
}

/* The most rows up to which tiles were faster each time. */
static uint32_t measure(struct engine *e, const struct mat *like)
{
    static const uint32_t counts[] = {2, 3, 4, 6, 8, 12, 16, 24, 32};
    struct mat m = *like;
    uint32_t panels = mat_n_panels(&m), few = 1;
    if (panels > PIECE_PANELS) panels = PIECE_PANELS;
    if (panels > e->ld_tmp / TILE_ROWS) panels = (uint32_t)(e->ld_tmp / TILE_ROWS);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
        if (counts[i] > e->rows_max || counts[i] > KERN_FEW_MAX) break;
        for (int pass = 0; pass < 2 * PASSES; pass++) {
            uint64_t ns = time_of(e, &m, panels, counts[i], pass & 1);
            if (ns < best[pass & 1]) best[pass & 1] = ns;
        }
        if (best[1] > best[0]) break;
        few = counts[i];
    }
    return few;
}

/* Matrix i of the slice; NULL: there are no more. */
static struct mat *mat_at(struct engine *e, uint32_t i)
{
    uint32_t n_layers = e->model.layer_last - e->model.layer_first + 1;
    if (i == n_layers * N_MATS) return &e->model.output;
    return i < n_layers * N_MATS ? &e->model.layers[i / N_MATS].mats[i % N_MATS] : NULL;
}

static bool multiplies(const struct mat *m)
{
    return m->panels && eng__is_quantised(m);
}

void eng__choose_few(struct engine *e)
{
    struct mat *m, *other;
    for (uint32_t i = 0; (m = mat_at(e, i)); i++) {
        if (!multiplies(m) || m->few) continue;
        uint32_t few = e->kern->has_few ? measure(e, m) : 1;
        for (uint32_t j = i; (other = mat_at(e, j)); j++)
            if (multiplies(other) && other->type == m->type) other->few = few;
    }
}

uint32_t eng_few(const struct engine *e, uint32_t type)
{
    const struct mat *m;
    for (uint32_t i = 0; (m = mat_at((struct engine *)(uintptr_t)e, i)); i++)
        if (multiplies(m) && (uint32_t)m->type == type) return m->few;
    return 0;
}
