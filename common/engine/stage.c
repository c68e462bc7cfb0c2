/* A step over a slice. Every thread of the pool walks the same phases; a phase splits its work by
 * rows (tokens), by panels (output rows of a matrix) or by attention items, and a barrier ends it.
 * Nothing that is computed depends on the split.
 *
 * Buffers, with R = rows of the step:
 *   x     [R][hidden]         the residual stream
 *   norm  [R][hidden]         normalised rows
 *   qkv   [R][q + 2 kv]       queries, keys, values (each padded to whole panels)
 *   att   [R][q]              attention output
 *   gate, up [R][ffn]         feed-forward (padded)
 *   tmp   [R][hidden]         a projection before it is added to x (padded)
 *   cs    [R][rope_dims]      cos, sin of the row's position, for each block
 *   *_act                     quantised activations: one buffer, reused */
#include "common/engine/stage.h"

#include "common/base/mem.h"
#include "common/engine/cpu.h"
#include "common/engine/rope.h"

#include <inttypes.h>
#include <math.h>

/* Most memory for partial results of attention: where rows are split by spans, and in all. Threads
 * that have no room for theirs leave the rows to the others. */
#define PARTS_BYTES ((size_t)32 << 20)
#define ALL_PARTS_BYTES ((size_t)256 << 20)

static size_t round16(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

/* Panels [p0, p1) of one matrix over all rows of `a` (and of x, which float weights read). */
static void project(const struct worker *w, const struct mat *m, uint32_t p0, uint32_t p1,
                    const struct act *a, const float *x, size_t ldx, float *out, size_t ldo)
{
    if (p0 >= p1) return;
    uint64_t start = clock_ns();
    w->e->kern->linear(m, p0, p1, a, x, ldx, a->n_tokens, out, ldo, w->scratch);
    count_call(w, ENG_LINEAR, start);
}

/* ---- phases split by rows ---- */

static void embed_token(const struct engine *e, uint32_t token, float *x)
{
    const struct mat *m = &e->model.embd;
    tile_unpack_row(m->type, m->panels + token / TILE_ROWS * tile_panel_bytes(m->type, m->k),
                    token % TILE_ROWS, m->k, x);
    if (e->model.dims.embd_scale != 1.0f)
        for (uint32_t i = 0; i < m->k; i++) x[i] *= e->model.dims.embd_scale;
}

static void embed(const struct worker *w)
{
    struct engine *e = w->e;
    const struct arch_dims *d = &e->model.dims;
    uint32_t a, b;
    share(e->n_rows, w->idx, w->n, &a, &b);
    for (uint32_t r = a; r < b; r++) {
        float *x = e->x + (size_t)r * d->hidden;
        for (uint32_t i = 0; i < d->n_blocks; i++)
            rope_angles(e->rows[r].pos, e->inv_freq[i], e->magnitude[i], d->rope_dims,
                        d->blocks[i].rope_halves, e->cs[i] + (size_t)r * d->rope_dims);
        if (e->model.first)
            embed_token(e, (uint32_t)e->rows[r].token, x);
        else
            memcpy(x, e->in + (size_t)r * d->hidden * sizeof *x, d->hidden * sizeof *x);
    }
}

/* A norm of the layer's kind. */
static struct kern_norm norm_of(const struct engine *e, uint32_t layer, const float *weight)
{
    return (struct kern_norm){.layer = e->model.dims.blocks[block_of(e, layer)].norm == NORM_LAYER,
                              .weight = weight,
                              .eps = e->model.dims.norm_eps};
}

/* x += the projection in tmp, normalised. */
static void add_normalised(struct engine *e, uint32_t r, const struct kern_norm *norm)
{
    uint32_t n = e->model.dims.hidden;
    float *tmp = e->tmp + r * e->ld_tmp, *x = e->x + (size_t)r * n;
    kern_norm_row(e->kern, norm, tmp, n, tmp, NULL, r);
    for (uint32_t i = 0; i < n; i++) x[i] += tmp[i];
}

/* post: the norm of a projection that is still to be added to the stream; without weights: none. */
static void norm_rows(const struct worker *w, const struct kern_norm *post,
                      const struct kern_norm *norm, bool quantise)
{
    struct engine *e = w->e;
    uint32_t n = e->model.dims.hidden, a, b;
    share(e->n_rows, w->idx, w->n, &a, &b);
    uint64_t start = clock_ns();
    for (uint32_t r = a; r < b; r++) {
        float *y = e->norm + (size_t)r * n;
        if (post->weight) add_normalised(e, r, post);
        kern_norm_row(e->kern, norm, e->x + (size_t)r * n, n, y, quantise ? &e->in_act : NULL, r);
    }
    if (a < b) count_call(w, ENG_NORM, start);
}

static void add_rows(const struct worker *w, const struct kern_norm *post)
{
    uint32_t a, b;
    share(w->e->n_rows, w->idx, w->n, &a, &b);
    uint64_t start = clock_ns();
    for (uint32_t r = a; r < b; r++) add_normalised(w->e, r, post);
    if (a < b) count_call(w, ENG_NORM, start);
}

/* Normalises heads where the norm has weights, and rotates them. */
static void turn_heads(const struct engine *e, float *x, uint32_t n, const struct kern_norm *norm,
                       bool halves, const float *cs)
{
    const struct arch_dims *d = &e->model.dims;
    void (*rope)(float *, const float *, uint32_t) = halves ? e->kern->rope_halves : e->kern->rope;
    for (uint32_t h = 0; h < n; h++, x += d->head_size) {
        if (norm->weight) kern_norm_row(e->kern, norm, x, d->head_size, x, NULL, h);
        rope(x, cs, d->rope_dims);
    }
}

/* Rotates queries and keys, scales queries, writes keys and values. */
static void rotate_and_store(const struct worker *w, uint32_t layer)
{
    struct engine *e = w->e;
    const struct arch_dims *d = &e->model.dims;
    const struct layer *l = &e->model.layers[layer];
    const uint32_t block = block_of(e, layer), hs = d->head_size;
    const bool halves = d->blocks[block].rope_halves;
    const struct kern_norm q_norm = norm_of(e, layer, l->vecs[VEC_Q_NORM]),
                           k_norm = norm_of(e, layer, l->vecs[VEC_K_NORM]);
    uint32_t a, b;
    share(e->n_rows, w->idx, w->n, &a, &b);
    uint64_t start = clock_ns();
    for (uint32_t r = a; r < b; r++) {
        const float *cs = e->cs[block] + (size_t)r * d->rope_dims;
        float *q = e->qkv + r * e->ld_qkv, *k = q + e->ld_q, *v = k + e->ld_kv;
        turn_heads(e, q, d->n_heads, &q_norm, halves, cs);
        turn_heads(e, k, d->n_kv_heads, &k_norm, halves, cs);
        for (uint32_t i = 0; i < d->n_heads * hs; i++) q[i] *= d->q_scale;
        if (spreads(e)) {
            kern_spread(q, d->n_heads * hs);
            kern_spread(k, d->n_kv_heads * hs);
            kern_spread(v, d->n_kv_heads * hs);
        }
        for (uint32_t h = 0; h < d->n_kv_heads; h++) {
            struct kv_view kv = view(e, layer, h, e->rows[r].pages);
            e->kern->kv_store(&kv, e->rows[r].pos, k + h * hs, v + h * hs);
        }
    }
    if (a < b) count_call(w, ENG_ROTATE, start);
}

static void quantise_rows(const struct worker *w, struct act *to, const float *x, size_t ldx)
{
    struct engine *e = w->e;
    uint32_t a, b;
    share(e->n_rows, w->idx, w->n, &a, &b);
    uint64_t start = clock_ns();
    for (uint32_t r = a; r < b; r++) e->kern->quantise(x + r * ldx, to, r);
    if (a < b) count_call(w, ENG_QUANTISE, start);
}

/* ---- phases split by panels ---- */

static void project_qkv(const struct worker *w, const struct layer *l)
{
    struct engine *e = w->e;
    const size_t at[3] = {0, e->ld_q, e->ld_q + e->ld_kv};
    uint32_t total = 0, a, b, start = 0;
    for (int m = MAT_Q; m <= MAT_V; m++) total += mat_n_panels(&l->mats[m]);
    share(total, w->idx, w->n, &a, &b);
    for (int m = MAT_Q; m <= MAT_V; m++) {
        uint32_t n = mat_n_panels(&l->mats[m]);
        uint32_t p0 = a > start ? a - start : 0, p1 = b > start ? b - start : 0;
        project(w, &l->mats[m], p0 < n ? p0 : n, p1 < n ? p1 : n, &e->in_act, e->norm,
                e->model.dims.hidden, e->qkv + at[m], e->ld_qkv);
        start += n;
    }
}

/* tmp = mat * in, on this thread's panels; added to x at once unless it is normalised first. */
static void project_and_add(const struct worker *w, const struct mat *m, const struct act *a,
                            const float *in, size_t ld, bool add)
{
    struct engine *e = w->e;
    uint32_t p0, p1;
    share(mat_n_panels(m), w->idx, w->n, &p0, &p1);
    project(w, m, p0, p1, a, in, ld, e->tmp, e->ld_tmp);
    if (!add) return;
    uint32_t end = p1 * TILE_ROWS < m->rows ? p1 * TILE_ROWS : m->rows;
    for (uint32_t r = 0; r < e->n_rows; r++)
        for (uint32_t i = p0 * TILE_ROWS; i < end; i++)
            e->x[(size_t)r * m->rows + i] += e->tmp[r * e->ld_tmp + i];
}

static void project_ffn(const struct worker *w, const struct layer *l, enum arch_ffn ffn)
{
    struct engine *e = w->e;
    uint32_t p0, p1, hidden = e->model.dims.hidden;
    void (*gate)(const float *, const float *, float *, uint32_t) =
        ffn == FFN_GELU ? e->kern->gelu_mul : e->kern->silu_mul;
    share(mat_n_panels(&l->mats[MAT_GATE]), w->idx, w->n, &p0, &p1);
    project(w, &l->mats[MAT_GATE], p0, p1, &e->in_act, e->norm, hidden, e->gate, e->ld_ffn);
    project(w, &l->mats[MAT_UP], p0, p1, &e->in_act, e->norm, hidden, e->up, e->ld_ffn);
    uint64_t start = clock_ns();
    for (uint32_t r = 0; r < e->n_rows; r++) {
        size_t at = r * e->ld_ffn + (size_t)p0 * TILE_ROWS;
        gate(e->gate + at, e->up + at, e->gate + at, (p1 - p0) * TILE_ROWS);
    }
    if (p0 < p1) count_call(w, ENG_GATE, start);
}

/* post: as in norm_rows, of the layer before. */
static void run_layer(const struct worker *w, uint32_t idx, const struct kern_norm *post)
{
    struct engine *e = w->e;
    const struct arch_dims *d = &e->model.dims;
    const struct layer *l = &e->model.layers[idx];
    const struct kern_norm attn_norm = norm_of(e, idx, l->vecs[VEC_ATTN_NORM]),
                           attn_post = norm_of(e, idx, l->vecs[VEC_ATTN_POST_NORM]),
                           ffn_norm = norm_of(e, idx, l->vecs[VEC_FFN_NORM]);
    size_t q_width = (size_t)d->n_heads * d->head_size;
    norm_rows(w, post, &attn_norm,
              quantised(&l->mats[MAT_Q]) || quantised(&l->mats[MAT_K]) ||
                  quantised(&l->mats[MAT_V]));
    pool_barrier(e->pool);
    project_qkv(w, l);
    pool_barrier(e->pool);
    rotate_and_store(w, idx);
    pool_barrier(e->pool);
    attend(w, idx);
    if (quantised(&l->mats[MAT_O])) quantise_rows(w, &e->att_act, e->att, q_width);
    pool_barrier(e->pool);
    project_and_add(w, &l->mats[MAT_O], &e->att_act, e->att, q_width, !attn_post.weight);
    pool_barrier(e->pool);
    norm_rows(w, &attn_post, &ffn_norm,
              quantised(&l->mats[MAT_GATE]) || quantised(&l->mats[MAT_UP]));
    pool_barrier(e->pool);
    project_ffn(w, l, d->blocks[block_of(e, idx)].ffn);
    pool_barrier(e->pool);
    if (quantised(&l->mats[MAT_DOWN])) quantise_rows(w, &e->ffn_act, e->gate, e->ld_ffn);
    pool_barrier(e->pool);
    project_and_add(w, &l->mats[MAT_DOWN], &e->ffn_act, e->gate, e->ld_ffn,
                    !l->vecs[VEC_FFN_POST_NORM]);
    pool_barrier(e->pool);
}

static void run_head(const struct worker *w)
{
    struct engine *e = w->e;
    uint32_t n = e->model.dims.hidden, a, b;
    const struct kern_norm norm =
        norm_of(e, e->model.layer_last - e->model.layer_first, e->model.output_norm);
    share(e->n_logits, w->idx, w->n, &a, &b);
    uint64_t start = clock_ns();
    for (uint32_t i = a; i < b; i++) {
        float *y = e->norm + (size_t)i * n;
        kern_norm_row(e->kern, &norm, e->x + (size_t)e->logit_rows[i] * n, n, y,
                      quantised(&e->model.output) ? &e->head_act : NULL, i);
    }
    if (a < b) count_call(w, ENG_NORM, start);
    pool_barrier(e->pool);
    share(mat_n_panels(&e->model.output), w->idx, w->n, &a, &b);
    project(w, &e->model.output, a, b, &e->head_act, e->norm, n, e->logits, e->ld_logits);
    for (uint32_t i = 0; i < e->n_logits && e->model.dims.logit_softcap != 0.0f; i++)
        e->kern->softcap(e->logits + i * e->ld_logits + (size_t)a * TILE_ROWS, (b - a) * TILE_ROWS,
                         e->model.dims.logit_softcap);
}

static void run_step(void *arg, unsigned idx, unsigned n)
{
    struct engine *e = arg;
    struct worker w = {e, idx, n, e->scratch + idx * e->scratch_bytes};
    mem_guard_begin();
    embed(&w);
    struct kern_norm post = {0};
    for (uint32_t l = 0; l <= e->model.layer_last - e->model.layer_first; l++) {
        run_layer(&w, l, &post);
        if (idx == 0 && e->moves) atomic_fetch_add_explicit(e->moves, 1, memory_order_relaxed);
        post = norm_of(e, l, e->model.layers[l].vecs[VEC_FFN_POST_NORM]);
    }
    if (post.weight) {
        add_rows(&w, &post);
        pool_barrier(e->pool);
    }
    if (e->model.last && e->n_logits) run_head(&w);
    mem_guard_end();
}

/* ---- the door ---- */

static int take_run(struct engine *e, const struct eng_run *run, struct errmsg *em)
{
    uint64_t end = (uint64_t)run->first_pos + run->n_rows;
    if (run->n_rows == 0 || run->n_rows > e->rows_max - e->n_rows)
        return err_set(em, ERR_RANGE, "a step of more than %" PRIu32 " rows", e->rows_max);
    if (end > e->ctx)
        return err_set(em, ERR_RANGE, "position %" PRIu64 " is beyond the context of %" PRIu64,
                       end - 1, e->ctx);
    if (run->n_logits > run->n_rows || run->n_logits > e->logits_max - e->n_logits ||
        (run->n_logits && !e->model.last))
        return err_set(em, ERR_RANGE, "logits of %" PRIu32 " rows", run->n_logits);
    for (uint64_t p = 0; p < (end + KV_PAGE - 1) / KV_PAGE; p++)
        if (run->pages[p] >= e->n_pages)
            return err_set(em, ERR_RANGE, "page %" PRIu32 " of %" PRIu32, run->pages[p],
                           e->n_pages);
    for (uint32_t i = 0; i < run->n_rows; i++) {
        int32_t token = e->model.first ? run->tokens[i] : 0;
        if (token < 0 || (uint32_t)token >= e->model.dims.vocab)
            return err_set(em, ERR_RANGE, "token %" PRId32 " of %" PRIu32, token,
                           e->model.dims.vocab);
        if (i + run->n_logits >= run->n_rows) e->logit_rows[e->n_logits++] = e->n_rows;
        e->rows[e->n_rows++] = (struct row){run->first_pos + i, token, run->pages};
        for (uint32_t b = 0; b < e->model.dims.n_blocks; b++) {
            uint32_t n = sight_of(e->model.dims.blocks[b].window, run->first_pos + i).n_spans;
            if (n > e->n_spans[b]) e->n_spans[b] = n;
        }
    }
    return 0;
}

/* The shapes in which a step's layers share the one activation buffer; a barrier lies between the
 * last reader in one shape and the first writer in the next. */
static void set_shapes(struct engine *e)
{
    const struct arch_dims *d = &e->model.dims;
    e->in_act.n_tokens = e->att_act.n_tokens = e->ffn_act.n_tokens = e->n_rows;
    e->head_act = e->in_act;
    e->head_act.n_tokens = e->n_logits;
    e->in_act.k = e->head_act.k = d->hidden;
    e->att_act.k = d->n_heads * d->head_size;
    e->ffn_act.k = d->ffn;
}

int eng_step(struct engine *e, const struct eng_run *runs, uint32_t n_runs, const void *in,
             const float **ret_out, struct errmsg *em)
{
    e->n_rows = e->n_logits = 0;
    memset(e->n_spans, 0, sizeof e->n_spans);
    for (uint32_t i = 0; i < n_runs; i++) {
        int rc = take_run(e, &runs[i], em);
        if (rc < 0) return rc;
    }
    if (e->n_rows == 0 || (!in && !e->model.first))
        return err_set(em, ERR_RANGE, "a step without rows or input");
    e->in = in;
    set_shapes(e);
    pool_run(e->pool, run_step, e);
    *ret_out = e->model.last ? e->logits : e->x;
    return 0;
}

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
    uint32_t n_layers = e->model.layer_last - e->model.layer_first + 1;
    e->page_bytes = eng_page_bytes(d, e->kv, 1);
    e->head_bytes = e->page_bytes / d->n_kv_heads;
    e->layer_bytes = e->page_bytes * e->n_pages;
    e->stats.kv_bytes = (uint64_t)e->layer_bytes * n_layers;
    e->pool_kv = mem_pages((size_t)e->stats.kv_bytes);
    if (!e->pool_kv)
        return err_set(em, ERR_NOMEM, "KV pool of %" PRIu64 " bytes", e->stats.kv_bytes);
    return touch_kv(e, o, em);
}

/* Sizes follow from the file's dimensions: none of them may abort the process. */
static void *try_zero(size_t n, size_t size)
{
    if (n > SIZE_MAX / size) return NULL;
    void *p = mem_try(n * size);
    return p ? memset(p, 0, n * size) : NULL;
}

static float *floats(size_t n)
{
    return try_zero(n, sizeof(float));
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
    if (few > PARTS_BYTES / sizeof(struct attn_part)) few = PARTS_BYTES / sizeof(struct attn_part);
    if (many > ALL_PARTS_BYTES / sizeof(struct attn_part))
        many = ALL_PARTS_BYTES / sizeof(struct attn_part);
    if (many < one) many = one;
    return few > many ? few : many;
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
    e->rows = try_zero(rows, sizeof *e->rows);
    e->logit_rows = try_zero(rows, sizeof *e->logit_rows);
    e->x = floats(rows * d->hidden);
    e->norm = floats(rows * d->hidden);
    e->qkv = floats(rows * e->ld_qkv);
    e->att = floats(rows * q);
    e->gate = floats(rows * e->ld_ffn);
    e->up = floats(rows * e->ld_ffn);
    e->tmp = floats(rows * e->ld_tmp);
    for (uint32_t i = 0; i < d->n_blocks; i++) {
        e->cs[i] = floats(rows * d->rope_dims);
        e->inv_freq[i] = try_zero(d->rope_dims, sizeof *e->inv_freq[i]);
        complete = complete && e->cs[i] && e->inv_freq[i];
    }
    if (e->model.last) e->logits = floats(e->logits_max * e->ld_logits);
    size_t k = widest(d), blocks = k / ACT_BLOCK + 1;
    e->in_act.q = try_zero(rows, k);
    e->in_act.x = floats(rows * blocks);
    e->in_act.y = floats(rows * blocks);
    e->in_act.s = try_zero(rows * blocks, sizeof *e->in_act.s);
    e->in_act.h = try_zero(rows * blocks * 2, sizeof *e->in_act.h);
    e->att_act = e->ffn_act = e->head_act = e->in_act;
    e->scratch_bytes = (kern_scratch_bytes((uint32_t)k) + 63) & ~(size_t)63;
    e->scratch = try_zero(threads, e->scratch_bytes);
    e->n_parts = eng__parts(d, e->ctx, threads);
    e->parts = try_zero(e->n_parts, sizeof *e->parts);
    if (!e->rows || !e->logit_rows || !e->x || !e->norm || !e->qkv || !e->att || !e->gate ||
        !e->up || !e->tmp || !complete || (e->model.last && !e->logits) || !e->in_act.q ||
        !e->in_act.x || !e->in_act.y || !e->in_act.s || !e->in_act.h || !e->scratch || !e->parts)
        return err_set(em, ERR_NOMEM, "buffers for steps of %zu rows", rows);
    for (uint32_t i = 0; i < d->n_blocks; i++)
        rope_frequencies(&d->blocks[i].rope, d->rope_dims,
                         d->blocks[i].rope_factors ? e->model.rope_factors : NULL, e->inv_freq[i],
                         &e->magnitude[i]);
    return 0;
}

int eng_open(const struct eng_options *o, struct engine **ret_engine, struct errmsg *em)
{
    if (o->rows_max == 0 || o->rows_max > ENG_ROWS_MAX || o->logits_max == 0 ||
        o->logits_max > o->rows_max || o->n_pages == 0 || o->n_pages > UINT32_MAX / KV_PAGE)
        return err_set(em, ERR_RANGE,
                       "rows %" PRIu32 " (1..%u), logits %" PRIu32 ", pages %" PRIu32, o->rows_max,
                       ENG_ROWS_MAX, o->logits_max, o->n_pages);
    fm_set_rounding(); /* tables and weights are computed here too */
    struct engine *e = mem_zalloc(sizeof *e);
    e->kv = o->kv;
    e->moves = o->moves;
    e->n_pages = o->n_pages;
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
    void *buffers[] = {e->rows,     e->logit_rows, e->x,        e->norm,     e->qkv,
                       e->att,      e->gate,       e->up,       e->tmp,      e->logits,
                       e->in_act.q, e->in_act.x,   e->in_act.y, e->in_act.s, e->in_act.h,
                       e->scratch,  e->parts};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) mem_free(buffers[i]);
    mem_free(e);
}

void eng_rouse(struct engine *e)
{
    pool_rouse(e->pool);
}

size_t eng_logits_stride(const struct engine *e)
{
    return e->ld_logits;
}

const struct arch_dims *eng_dims(const struct engine *e)
{
    return &e->model.dims;
}

const char *eng_op_name(enum eng_op op)
{
    static const char *const names[ENG_N_OPS] = {"linear", "attention", "norm",
                                                 "rotate", "quantise",  "gate"};
    return names[op];
}

const struct stats *eng_dispatch(const struct engine *e, enum eng_op op)
{
    return &e->dispatch[op];
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
