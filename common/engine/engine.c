/* The door: an engine is opened over a slice, takes steps, and is closed. What a step computes is
 * stage.c's; here are the checks before it, and everything that is allocated for it. */
#include "common/engine/stage.h"

#include "common/base/check.h"
#include "common/base/mem.h"
#include "common/engine/cpu.h"
#include "common/engine/rope.h"

#include <inttypes.h>

/* Most memory for partial results of attention. Threads that have no room for theirs leave the rows
 * to the others. */
#define ALL_PARTS_BYTES ((size_t)256 << 20)

static size_t round16(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

/* ---- a step ---- */

static int check_pages(const uint32_t *pages, uint64_t n, uint32_t n_pages, struct errmsg *em)
{
    for (uint64_t p = 0; p < n; p++)
        if (pages[p] >= n_pages)
            return err_set(em, ERR_RANGE, "page %" PRIu32 " of %" PRIu32, pages[p], n_pages);
    return 0;
}

/* The pages of layers with a window reach from what the first row sees to the last row. */
static int check_window_pages(const struct engine *e, const struct eng_run *run, uint64_t n,
                              struct errmsg *em)
{
    uint32_t first = eng__sight(e->window, run->first_pos).first;
    if (!run->window_pages || run->window_first > first / KV_PAGE)
        return err_set(em, ERR_RANGE, "position %" PRIu32 " is seen, but has no page", first);
    return check_pages(run->window_pages, n - run->window_first, e->n_window_pages, em);
}

static int take_run(struct engine *e, const struct eng_run *run, struct errmsg *em)
{
    uint64_t end = (uint64_t)run->first_pos + run->n_rows;
    if (run->n_rows == 0 || run->n_rows > e->rows_max - e->n_rows)
        return err_set(em, ERR_RANGE, "a step of more than %" PRIu32 " rows", e->rows_max);
    if (end > e->ctx)
        return err_set(em, ERR_RANGE, "position %" PRIu64 " is beyond the context of %" PRIu64,
                       end - 1, e->ctx);
    bool hidden = run->n_logits == ENG_HIDDEN;
    uint32_t n_logits = hidden ? 0 : run->n_logits;
    if (n_logits > run->n_rows || n_logits > e->logits_max - e->n_logits ||
        (run->n_logits && !e->model.last))
        return err_set(em, ERR_RANGE, "logits of %" PRIu32 " rows", n_logits);
    uint64_t n_pages = (end + KV_PAGE - 1) / KV_PAGE;
    int rc = check_pages(run->pages, n_pages, e->n_pages, em);
    if (rc == 0 && e->window) rc = check_window_pages(e, run, n_pages, em);
    if (rc < 0) return rc;
    for (uint32_t i = 0; i < run->n_rows; i++) {
        int32_t token = e->model.first ? run->tokens[i] : 0;
        if (token < 0 || (uint32_t)token >= e->model.dims.vocab)
            return err_set(em, ERR_RANGE, "token %" PRId32 " of %" PRIu32, token,
                           e->model.dims.vocab);
        if (i + n_logits >= run->n_rows) e->logit_rows[e->n_logits++] = e->n_rows;
        if (hidden) e->hidden_rows[e->n_hidden++] = e->n_rows;
        e->rows[e->n_rows++] = (struct row){.pos = run->first_pos + i,
                                            .token = token,
                                            .pages = run->pages,
                                            .window_pages = run->window_pages,
                                            .window_at = run->window_first * KV_PAGE};
        for (uint32_t b = 0; b < e->model.dims.n_blocks; b++) {
            uint32_t n = eng__sight(e->model.dims.blocks[b].window, run->first_pos + i).n_spans;
            if (n > e->n_spans[b]) e->n_spans[b] = n;
        }
    }
    return 0;
}

/* The logits at hand, or about to be computed, are those of the rows from `first` on. */
static void take_group(struct engine *e, uint32_t first)
{
    uint32_t left = e->n_logits - first;
    e->head_row = first;
    e->n_head = left < e->logits_rows ? left : e->logits_rows;
}

int eng_step(struct engine *e, const struct eng_run *runs, uint32_t n_runs, const void *in,
             const float **ret_out, struct errmsg *em)
{
    e->n_rows = e->n_logits = e->n_hidden = 0;
    memset(e->n_spans, 0, sizeof e->n_spans);
    for (uint32_t i = 0; i < n_runs; i++) {
        int rc = take_run(e, &runs[i], em);
        if (rc < 0) return rc;
    }
    if (e->n_rows == 0 || (!in && !e->model.first))
        return err_set(em, ERR_RANGE, "a step without rows or input");
    e->in = in;
    e->ffn_act.n_tokens = e->n_rows;
    take_group(e, 0);
    pool_run(e->pool, eng__run_step, e);
    *ret_out = e->model.last ? e->logits : e->x;
    return 0;
}

const float *eng_logits(struct engine *e, uint32_t i)
{
    CHECK(i < e->n_logits);
    if (i < e->head_row || i - e->head_row >= e->n_head) {
        take_group(e, i);
        pool_run(e->pool, eng__run_head, e);
    }
    return e->logits + (size_t)(i - e->head_row) * e->ld_logits;
}

const float *eng_hidden(const struct engine *e)
{
    return e->norm + (size_t)e->n_logits * e->model.dims.hidden;
}

/* ---- keys and values ---- */

int eng_kv_check(const struct arch_dims *d, enum kv_type kv, struct errmsg *em)
{
    uint32_t block = qtype_info((uint32_t)kv_qtype(kv))->block;
    if (d->head_size % block)
        return err_set(em, ERR_UNSUPPORTED,
                       "KV type %s needs heads of a multiple of %" PRIu32 "; these have %" PRIu32,
                       kv == KV_Q8_0 ? "q8_0" : "q4_0", block, d->head_size);
    return 0;
}

size_t eng_page_bytes(const struct arch_dims *d, enum kv_type kv, uint32_t n_layers)
{
    return (size_t)n_layers * d->n_kv_heads * 2 * kv_half_bytes(kv, d->head_size);
}

uint64_t eng_kv_bytes(const struct arch_dims *d, enum kv_type kv, uint32_t layer_first,
                      uint32_t layer_last, uint64_t n_pages, uint64_t n_window_pages)
{
    uint64_t pages = 0;
    for (uint32_t l = layer_first; l <= layer_last; l++)
        pages += n_window_pages && arch_block(d, l)->window ? n_window_pages : n_pages;
    return pages * eng_page_bytes(d, kv, 1);
}

/* The pages of the pool are touched before the engine is ready, a piece at a time, by all threads:
 * what the system has not got is missed now, and the progress moves while it is found. */
#define TOUCH_BYTES ((size_t)256 << 20)

struct touch {
    uint8_t *at;
    size_t bytes;
};

static void touch_part(void *arg, unsigned idx, unsigned n)
{
    const struct touch *t = arg;
    size_t a = t->bytes / 64 * idx / n * 64, b = t->bytes / 64 * (idx + 1) / n * 64;
    memset(t->at + a, 0, (idx + 1 == n ? t->bytes : b) - a);
}

static int touch_kv(struct engine *e, const struct eng_options *o, struct errmsg *em)
{
    size_t total = (size_t)e->stats.kv_bytes;
    for (size_t done = 0, n; done < total; done += n) {
        n = total - done < TOUCH_BYTES ? total - done : TOUCH_BYTES;
        struct touch t = {e->pool_kv + done, n};
        pool_run(e->pool, touch_part, &t);
        if (o->progress && !o->progress(o->progress_arg, e->model.read_bytes + done + n,
                                        e->model.read_bytes + total))
            return err_set(em, ERR_CANCELLED, "loading was cancelled");
    }
    return 0;
}

static int open_kv(struct engine *e, const struct eng_options *o, struct errmsg *em)
{
    const struct arch_dims *d = &e->model.dims;
    uint32_t first = e->model.layer_first, last = e->model.layer_last;
    e->page_bytes = eng_page_bytes(d, e->kv, 1);
    e->head_bytes = e->page_bytes / d->n_kv_heads;
    e->stats.kv_bytes = eng_kv_bytes(d, e->kv, first, last, e->n_pages, e->n_window_pages);
    for (uint32_t l = first; l <= last; l++) {
        uint32_t window = e->n_window_pages ? arch_block(d, l)->window : 0;
        e->layer_at[l - first] =
            (size_t)eng_kv_bytes(d, e->kv, first, l, e->n_pages, e->n_window_pages) -
            e->page_bytes * (window ? e->n_window_pages : e->n_pages);
        if (window > e->window) e->window = window;
    }
    e->pool_kv = mem_pages((size_t)e->stats.kv_bytes);
    if (!e->pool_kv)
        return err_set(em, ERR_NOMEM, "KV pool of %" PRIu64 " bytes", e->stats.kv_bytes);
    return touch_kv(e, o, em);
}

/* ---- buffers ---- */

/* NULL without memory: sizes follow from the file's dimensions, so none may abort the process. */
static float *floats(size_t n)
{
    return mem_try_zeroed(n, sizeof(float));
}

static uint32_t widest(const struct arch_dims *d)
{
    uint32_t q = d->n_heads * d->head_size, w = d->hidden > d->ffn ? d->hidden : d->ffn;
    return q > w ? q : w;
}

size_t eng__parts(const struct arch_dims *d, uint64_t ctx, unsigned threads)
{
    size_t spans = (size_t)((ctx - 1) / ATTN_SPAN + 1), one = spans * (d->n_heads / d->n_kv_heads);
    size_t few = ROWS_FOR_SPLIT * threads * d->n_heads * spans, many = threads * one;
    if (few > SPLIT_PARTS_BYTES / sizeof(struct attn_part))
        few = SPLIT_PARTS_BYTES / sizeof(struct attn_part);
    if (many > ALL_PARTS_BYTES / sizeof(struct attn_part))
        many = ALL_PARTS_BYTES / sizeof(struct attn_part);
    if (many < one) many = one;
    return few > many ? few : many;
}

/* Room for `rows` rows of k quantised values. */
static struct act open_act(size_t rows, uint32_t k)
{
    size_t blocks = rows * (k / ACT_BLOCK + 1);
    return (struct act){.k = k,
                        .q = mem_try_zeroed(rows, k),
                        .x = floats(blocks),
                        .y = floats(blocks),
                        .s = mem_try_zeroed(blocks, sizeof(int32_t)),
                        .h = mem_try_zeroed(blocks * 2, sizeof(int32_t))};
}

static bool is_complete(const struct act *a)
{
    return a->q && a->x && a->y && a->s && a->h;
}

static void close_act(struct act *a)
{
    mem_free(a->q);
    mem_free(a->x);
    mem_free(a->y);
    mem_free(a->s);
    mem_free(a->h);
}

/* Everything a step needs, for the largest step. */
static int open_buffers(struct engine *e, unsigned threads, struct errmsg *em)
{
    const struct arch_dims *d = &e->model.dims;
    size_t rows = e->rows_max, q = (size_t)d->n_heads * d->head_size;
    bool complete = true;
    e->ld_q = round16(q);
    e->ld_kv = round16((size_t)d->n_kv_heads * d->head_size);
    e->ld_qkv = e->ld_q + 2 * e->ld_kv;
    e->ld_ffn = round16(d->ffn);
    e->ld_tmp = round16(d->hidden);
    e->ld_logits = round16(d->vocab);
    e->rows = mem_try_zeroed(rows, sizeof *e->rows);
    e->logit_rows = mem_try_zeroed(rows, sizeof *e->logit_rows);
    e->hidden_rows = mem_try_zeroed(rows, sizeof *e->hidden_rows);
    e->x = floats(rows * d->hidden);
    e->norm = floats(rows * d->hidden);
    e->qkv = floats(rows * e->ld_qkv);
    e->att = floats(rows * q);
    e->gate = floats(rows * e->ld_ffn);
    e->up = floats(rows * e->ld_ffn);
    e->tmp = floats(rows * e->ld_tmp);
    for (uint32_t i = 0; i < d->n_blocks; i++) {
        e->cs[i] = floats(rows * d->rope_dims);
        e->inv_freq[i] = mem_try_zeroed(d->rope_dims, sizeof *e->inv_freq[i]);
        complete = complete && e->cs[i] && e->inv_freq[i];
    }
    e->logits_rows = eng__logits_rows(d, e->logits_max);
    if (e->model.last) e->logits = floats(e->logits_rows * e->ld_logits);
    e->act = open_act(rows, eng__act_width(d));
    e->ffn_act = open_act(rows, d->ffn);
    e->own_bytes = eng__own_bytes(d, e->rows_max);
    e->own = mem_try_zeroed(threads, e->own_bytes);
    e->head_panels = mem_try_zeroed(d->n_heads + d->n_kv_heads, sizeof *e->head_panels);
    e->scratch_bytes = (kern_scratch_bytes(widest(d)) + 63) & ~(size_t)63;
    e->scratch = mem_try_zeroed(threads, e->scratch_bytes);
    e->n_threads = threads;
    e->dispatch = mem_try_zeroed((size_t)threads * ENG_N_OPS, sizeof *e->dispatch);
    e->n_parts = eng__parts(d, e->ctx, threads);
    e->parts = mem_try_zeroed(e->n_parts, sizeof *e->parts);
    if (!e->rows || !e->logit_rows || !e->hidden_rows || !e->x || !e->norm || !e->qkv || !e->att ||
        !e->gate || !e->up || !e->tmp || !complete || (e->model.last && !e->logits) ||
        !is_complete(&e->act) || !is_complete(&e->ffn_act) || !e->own || !e->head_panels ||
        !e->scratch || !e->dispatch || !e->parts)
        return err_set(em, ERR_NOMEM, "buffers for steps of %zu rows", rows);
    for (uint32_t i = 0; i < d->n_blocks; i++)
        rope_frequencies(&d->blocks[i].rope, d->rope_dims,
                         d->blocks[i].rope_factors ? e->model.rope_factors : NULL, e->inv_freq[i],
                         &e->magnitude[i]);
    return 0;
}

/* ---- opening, closing, asking ---- */

int eng_open(const struct eng_options *o, struct engine **ret_engine, struct errmsg *em)
{
    if (o->rows_max == 0 || o->rows_max > ENG_ROWS_MAX || o->logits_max == 0 ||
        o->logits_max > o->rows_max || o->n_pages == 0 || o->n_pages > UINT32_MAX / KV_PAGE)
        return err_set(em, ERR_RANGE,
                       "rows %" PRIu32 " (1..%u), logits %" PRIu32 ", pages %" PRIu32, o->rows_max,
                       ENG_ROWS_MAX, o->logits_max, o->n_pages);
    if (o->n_window_pages > o->n_pages)
        return err_set(em, ERR_RANGE, "%" PRIu32 " windowed pages of %" PRIu32, o->n_window_pages,
                       o->n_pages);
    fm_set_rounding(); /* tables and weights are computed here too */
    struct engine *e = mem_zalloc(sizeof *e);
    e->kv = o->kv;
    e->moves = o->moves;
    e->n_pages = o->n_pages;
    e->n_window_pages = o->n_window_pages;
    e->ctx = (uint64_t)o->n_pages * KV_PAGE;
    if (o->ctx && o->ctx < e->ctx) e->ctx = o->ctx;
    e->rows_max = o->rows_max;
    e->logits_max = o->logits_max;
    int rc = cpu_kern(o->isa, &e->kern, em);
    if (rc == 0) rc = eng__check_room(o, em);
    if (rc == 0) rc = pool_open(o->threads, &e->pool, em);
    if (rc == 0) rc = model_load(o, &e->model, em);
    if (rc == 0) rc = open_kv(e, o, em);
    if (rc == 0) rc = open_buffers(e, o->threads, em);
    if (rc < 0) {
        eng_close(e);
        return rc;
    }
    eng__choose_few(e);
    e->stats.weights_bytes = e->model.weights_bytes;
    e->stats.read_bytes = e->model.read_bytes;
    *ret_engine = e;
    return 0;
}

void eng_close(struct engine *e)
{
    if (!e) return;
    pool_close(e->pool);
    model_close(&e->model);
    mem_pages_free(e->pool_kv, (size_t)e->stats.kv_bytes);
    for (uint32_t i = 0; i < ARCH_BLOCKS_MAX; i++) {
        mem_free(e->cs[i]);
        mem_free(e->inv_freq[i]);
    }
    close_act(&e->act);
    close_act(&e->ffn_act);
    void *buffers[] = {e->rows, e->logit_rows,  e->x,           e->norm,   e->qkv,     e->att,
                       e->gate, e->up,          e->tmp,         e->logits, e->scratch, e->dispatch,
                       e->own,  e->head_panels, e->hidden_rows, e->parts};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) mem_free(buffers[i]);
    mem_free(e);
}

void eng_wake(struct engine *e)
{
    pool_wake(e->pool);
}

const struct arch_dims *eng_dims(const struct engine *e)
{
    return &e->model.dims;
}

static uint64_t products_of(const struct mat *m)
{
    return m->panels && eng__is_quantised(m) ? (uint64_t)m->rows * m->k : 0;
}

struct eng_products eng_products(const struct engine *e)
{
    struct eng_products p = {.head = products_of(&e->model.output)};
    for (uint32_t l = 0; l <= e->model.layer_last - e->model.layer_first; l++)
        for (int i = 0; i < N_MATS; i++) p.layers += products_of(&e->model.layers[l].mats[i]);
    return p;
}

const char *eng_op_name(enum eng_op op)
{
    static const char *const names[ENG_N_OPS] = {"linear", "attention", "norm",
                                                 "rotate", "quantise",  "gate"};
    return names[op];
}

void eng_dispatch(const struct engine *e, enum eng_op op, struct stats_view *ret)
{
    stats_read_all(e->dispatch + op, e->n_threads, ENG_N_OPS, ret);
}

const char *eng_isa(const struct engine *e)
{
    return e->kern->name;
}

struct eng_stats eng_stats(const struct engine *e)
{
    return e->stats;
}

static const char *const kv_names[KV_N_TYPES] = {"f32", "f16", "q8_0", "q4_0"};

bool eng_kv_parse(const char *name, enum kv_type *ret)
{
    for (int i = 0; i < KV_N_TYPES; i++)
        if (strcmp(name, kv_names[i]) == 0) {
            *ret = (enum kv_type)i;
            return true;
        }
    return false;
}
