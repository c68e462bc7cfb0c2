/* What an engine will take of memory, told before anything is read. engine.c allocates it; the
 * engine's test compares the two. */
#include "common/engine/stage.h"

#include <inttypes.h>

static uint64_t padded(uint64_t n)
{
    return (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}

/* Bytes of a quantised row of `width` values. */
static uint64_t act_bytes(uint64_t width)
{
    const struct act *a = NULL;
    return width + (width / ACT_BLOCK + 1) *
                       (sizeof *a->x + sizeof *a->y + sizeof *a->s + 2 * sizeof *a->h);
}

size_t eng__own_bytes(const struct arch_dims *d, uint32_t rows_max)
{
    size_t rows = rows_max < LOCAL_ROWS ? rows_max : LOCAL_ROWS, width = eng__act_width(d);
    return (rows * ((d->hidden + width) * sizeof(float) + act_bytes(width)) + 63) & ~(size_t)63;
}

uint32_t eng__logits_rows(const struct arch_dims *d, uint32_t logits_max)
{
    uint64_t fit = LOGITS_BYTES / (padded(d->vocab) * sizeof(float));
    if (fit > LOGITS_PASS) fit -= fit % LOGITS_PASS;
    if (fit == 0) fit = 1;
    return fit < logits_max ? (uint32_t)fit : logits_max;
}

struct eng_sizes eng_sizes(const struct arch_dims *d, uint32_t rows, uint32_t logits_max,
                           uint64_t positions)
{
    uint64_t q = (uint64_t)d->n_heads * d->head_size, kv = (uint64_t)d->n_kv_heads * d->head_size;
    uint64_t widest = d->hidden > d->ffn ? d->hidden : d->ffn;
    if (q > widest) widest = q;
    uint64_t floats = 2 * (uint64_t)d->hidden + padded(q) + 2 * padded(kv) + q +
                      2 * padded(d->ffn) + padded(d->hidden) + (uint64_t)d->n_blocks * d->rope_dims;
    uint64_t row = sizeof(struct row) + 2 * sizeof(uint32_t) + floats * sizeof(float) +
                   act_bytes(eng__act_width(d)) + act_bytes(d->ffn);
    uint64_t heads = (d->n_heads + d->n_kv_heads) * sizeof(atomic_uint);
    uint64_t spans = positions / ATTN_SPAN + 2;
    return (struct eng_sizes){
        .step_bytes = rows * row + heads + SPLIT_PARTS_BYTES,
        .thread_bytes = kern_scratch_bytes((uint32_t)widest) + 64 + eng__own_bytes(d, rows) +
                        ENG_N_OPS * sizeof(struct stats) +
                        spans * (d->n_heads / d->n_kv_heads) * sizeof(struct attn_part),
        .logits_bytes = eng__logits_rows(d, logits_max) * padded(d->vocab) * sizeof(float)};
}

/* Bytes of all but the weights, with a pool of so many pages. */
static uint64_t need(const struct eng_options *o, const struct arch_dims *d, uint64_t n_pages)
{
    uint64_t positions = n_pages * KV_PAGE;
    if (o->ctx && o->ctx < positions) positions = o->ctx;
    struct eng_sizes s = eng_sizes(d, o->rows_max, o->logits_max, positions);
    bool last = o->layer_last == d->n_layers - 1;
    uint64_t windowed = o->n_window_pages < n_pages ? o->n_window_pages : n_pages;
    return eng_kv_bytes(d, o->kv, o->layer_first, o->layer_last, n_pages, windowed) + s.step_bytes +
           o->threads * s.thread_bytes + (last ? s.logits_bytes : 0);
}

static int refuse(const struct eng_options *o, const struct arch_dims *d, uint64_t weights,
                  struct errmsg *em)
{
    uint64_t least = 0, most = o->n_pages,
             room = o->room_bytes > weights ? o->room_bytes - weights : 0;
    while (most - least > 1) {
        uint64_t n = least + (most - least) / 2;
        *(need(o, d, n) <= room ? &least : &most) = n;
    }
    return err_set(
        em, ERR_NOMEM,
        "%s: a KV pool of %" PRIu64 " tokens needs %.1f MiB with its buffers beside %.1f MiB "
        "of weights, and %.1f MiB can be had: the largest that fits is %" PRIu64 " tokens",
        weights_path(o->weights, 0), (uint64_t)o->n_pages * KV_PAGE,
        (double)need(o, d, o->n_pages) / (1 << 20), (double)weights / (1 << 20),
        (double)o->room_bytes / (1 << 20), least * KV_PAGE);
}

int eng__check_room(const struct eng_options *o, struct errmsg *em)
{
    struct arch_dims d;
    uint64_t weights;
    int rc = arch_read(o->weights, &d, em);
    if (rc == 0) rc = eng_kv_check(&d, o->kv, em);
    if (rc == 0 && (o->layer_first > o->layer_last || o->layer_last >= d.n_layers))
        rc = err_set(em, ERR_RANGE, "layers %" PRIu32 "..%" PRIu32 " of a model with %" PRIu32,
                     o->layer_first, o->layer_last, d.n_layers);
    if (rc == 0)
        rc = eng_weights_bytes(o->weights, &d, o->layer_first, o->layer_last, &weights, em);
    if (rc < 0) return err_wrap(em, rc, "%s", weights_path(o->weights, 0));
    if (o->room_bytes == 0) return 0;
    bool fits = weights <= o->room_bytes && need(o, &d, o->n_pages) <= o->room_bytes - weights;
    return fits ? 0 : refuse(o, &d, weights, em);
}
