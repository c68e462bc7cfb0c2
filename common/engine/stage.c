/* A step over a slice. Every thread of the pool walks the same phases; a phase splits its work by
 * rows (tokens), by panels (output rows of a matrix) or by attention items, and a barrier ends it.
 * Nothing that is computed depends on the split.
 *
 * Buffers, with R = rows of the step:
 *   x     [R][hidden]         the residual stream
 *   norm  [R][hidden]         normalised rows; at last those of a group that wants logits and,
 *                             behind the room for all that want them, hidden rows
 *   qkv   [R][q + 2 kv]       queries, keys, values (each padded to whole panels)
 *   att   [R][q]              attention output
 *   gate, up [R][ffn]         feed-forward (padded)
 *   tmp   [R][hidden]         a projection before it is added to x (padded)
 *   cs    [R][rope_dims]      cos, sin of the row's position, for each block
 *   *_act                     quantised activations: one buffer, reused */
#include "common/engine/stage.h"

#include "common/base/mem.h"
#include "common/engine/rope.h"

/* Panels [p0, p1) of one matrix over all rows of `a` (and of x, which float weights read). */
static void project(const struct stage_thread *t, const struct mat *m, uint32_t p0, uint32_t p1,
                    const struct act *a, const float *x, size_t ldx, float *out, size_t ldo)
{
    if (p0 >= p1) return;
    uint64_t start = clock_ns();
    t->e->kern->linear(m, p0, p1, a, x, ldx, a->n_tokens, out, ldo, t->scratch);
    eng__count_call(t, ENG_LINEAR, start);
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

static void embed(const struct stage_thread *t)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    uint32_t a, b;
    eng__share(e->n_rows, t->idx, t->n, &a, &b);
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
    return (struct kern_norm){.layer =
                                  e->model.dims.blocks[eng__block(e, layer)].norm == NORM_LAYER,
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
static void norm_rows(const struct stage_thread *t, const struct kern_norm *post,
                      const struct kern_norm *norm, bool quantise)
{
    struct engine *e = t->e;
    uint32_t n = e->model.dims.hidden, a, b;
    eng__share(e->n_rows, t->idx, t->n, &a, &b);
    uint64_t start = clock_ns();
    for (uint32_t r = a; r < b; r++) {
        float *y = e->norm + (size_t)r * n;
        if (post->weight) add_normalised(e, r, post);
        kern_norm_row(e->kern, norm, e->x + (size_t)r * n, n, y, quantise ? &e->in_act : NULL, r);
    }
    if (a < b) eng__count_call(t, ENG_NORM, start);
}

static void add_rows(const struct stage_thread *t, const struct kern_norm *post)
{
    uint32_t a, b;
    eng__share(t->e->n_rows, t->idx, t->n, &a, &b);
    uint64_t start = clock_ns();
    for (uint32_t r = a; r < b; r++) add_normalised(t->e, r, post);
    if (a < b) eng__count_call(t, ENG_NORM, start);
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

static void add_bias(float *x, const float *bias, uint32_t n)
{
    for (uint32_t i = 0; bias && i < n; i++) x[i] += bias[i];
}

/* Adds biases where the layer has some, rotates queries and keys, scales queries, writes keys and
 * values. */
static void rotate_and_store(const struct stage_thread *t, uint32_t layer)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    const struct layer *l = &e->model.layers[layer];
    const uint32_t block = eng__block(e, layer), hs = d->head_size;
    const bool halves = d->blocks[block].rope_halves;
    const struct kern_norm q_norm = norm_of(e, layer, l->vecs[VEC_Q_NORM]),
                           k_norm = norm_of(e, layer, l->vecs[VEC_K_NORM]);
    uint32_t a, b;
    eng__share(e->n_rows, t->idx, t->n, &a, &b);
    uint64_t start = clock_ns();
    for (uint32_t r = a; r < b; r++) {
        const float *cs = e->cs[block] + (size_t)r * d->rope_dims;
        float *q = e->qkv + r * e->ld_qkv, *k = q + e->ld_q, *v = k + e->ld_kv;
        add_bias(q, l->vecs[VEC_Q_BIAS], d->n_heads * hs);
        add_bias(k, l->vecs[VEC_K_BIAS], d->n_kv_heads * hs);
        add_bias(v, l->vecs[VEC_V_BIAS], d->n_kv_heads * hs);
        turn_heads(e, q, d->n_heads, &q_norm, halves, cs);
        turn_heads(e, k, d->n_kv_heads, &k_norm, halves, cs);
        for (uint32_t i = 0; i < d->n_heads * hs; i++) q[i] *= d->q_scale;
        if (eng__transforms(e)) {
            kern_hadamard(q, d->n_heads * hs);
            kern_hadamard(k, d->n_kv_heads * hs);
            kern_hadamard(v, d->n_kv_heads * hs);
        }
        for (uint32_t h = 0; h < d->n_kv_heads; h++) {
            uint32_t at;
            struct kv_view kv = eng__kv_view(e, layer, h, &e->rows[r], &at);
            e->kern->kv_store(&kv, e->rows[r].pos - at, k + h * hs, v + h * hs);
        }
    }
    if (a < b) eng__count_call(t, ENG_ROTATE, start);
}

static void quantise_rows(const struct stage_thread *t, struct act *to, const float *x, size_t ldx)
{
    struct engine *e = t->e;
    uint32_t a, b;
    eng__share(e->n_rows, t->idx, t->n, &a, &b);
    uint64_t start = clock_ns();
    for (uint32_t r = a; r < b; r++) e->kern->quantise(x + r * ldx, to, r);
    if (a < b) eng__count_call(t, ENG_QUANTISE, start);
}

/* ---- phases split by panels ---- */

static void project_qkv(const struct stage_thread *t, const struct layer *l)
{
    struct engine *e = t->e;
    const size_t at[3] = {0, e->ld_q, e->ld_q + e->ld_kv};
    uint32_t total = 0, a, b, start = 0;
    for (int m = MAT_Q; m <= MAT_V; m++) total += mat_n_panels(&l->mats[m]);
    eng__share(total, t->idx, t->n, &a, &b);
    for (int m = MAT_Q; m <= MAT_V; m++) {
        uint32_t n = mat_n_panels(&l->mats[m]);
        uint32_t p0 = a > start ? a - start : 0, p1 = b > start ? b - start : 0;
        project(t, &l->mats[m], p0 < n ? p0 : n, p1 < n ? p1 : n, &e->in_act, e->norm,
                e->model.dims.hidden, e->qkv + at[m], e->ld_qkv);
        start += n;
    }
}

/* tmp = mat * in, on this thread's panels; added to x at once unless it is normalised first. */
static void project_and_add(const struct stage_thread *t, const struct mat *m, const struct act *a,
                            const float *in, size_t ld, bool add)
{
    struct engine *e = t->e;
    uint32_t p0, p1;
    eng__share(mat_n_panels(m), t->idx, t->n, &p0, &p1);
    project(t, m, p0, p1, a, in, ld, e->tmp, e->ld_tmp);
    if (!add) return;
    uint32_t end = p1 * TILE_ROWS < m->rows ? p1 * TILE_ROWS : m->rows;
    for (uint32_t r = 0; r < e->n_rows; r++)
        for (uint32_t i = p0 * TILE_ROWS; i < end; i++)
            e->x[(size_t)r * m->rows + i] += e->tmp[r * e->ld_tmp + i];
}

static void project_ffn(const struct stage_thread *t, const struct layer *l, enum arch_ffn ffn)
{
    struct engine *e = t->e;
    uint32_t p0, p1, hidden = e->model.dims.hidden;
    void (*gate)(const float *, const float *, float *, uint32_t) =
        ffn == FFN_GELU ? e->kern->gelu_mul : e->kern->silu_mul;
    eng__share(mat_n_panels(&l->mats[MAT_GATE]), t->idx, t->n, &p0, &p1);
    project(t, &l->mats[MAT_GATE], p0, p1, &e->in_act, e->norm, hidden, e->gate, e->ld_ffn);
    project(t, &l->mats[MAT_UP], p0, p1, &e->in_act, e->norm, hidden, e->up, e->ld_ffn);
    uint64_t start = clock_ns();
    for (uint32_t r = 0; r < e->n_rows; r++) {
        size_t at = r * e->ld_ffn + (size_t)p0 * TILE_ROWS;
        gate(e->gate + at, e->up + at, e->gate + at, (p1 - p0) * TILE_ROWS);
    }
    if (p0 < p1) eng__count_call(t, ENG_GATE, start);
}

/* post: as in norm_rows, of the layer before. */
static void run_layer(const struct stage_thread *t, uint32_t idx, const struct kern_norm *post)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    const struct layer *l = &e->model.layers[idx];
    const struct kern_norm attn_norm = norm_of(e, idx, l->vecs[VEC_ATTN_NORM]),
                           attn_post = norm_of(e, idx, l->vecs[VEC_ATTN_POST_NORM]),
                           ffn_norm = norm_of(e, idx, l->vecs[VEC_FFN_NORM]);
    size_t q_width = (size_t)d->n_heads * d->head_size;
    norm_rows(t, post, &attn_norm,
              eng__is_quantised(&l->mats[MAT_Q]) || eng__is_quantised(&l->mats[MAT_K]) ||
                  eng__is_quantised(&l->mats[MAT_V]));
    pool_barrier(e->pool);
    project_qkv(t, l);
    pool_barrier(e->pool);
    rotate_and_store(t, idx);
    pool_barrier(e->pool);
    eng__attend(t, idx);
    if (eng__is_quantised(&l->mats[MAT_O])) quantise_rows(t, &e->att_act, e->att, q_width);
    pool_barrier(e->pool);
    project_and_add(t, &l->mats[MAT_O], &e->att_act, e->att, q_width, !attn_post.weight);
    pool_barrier(e->pool);
    norm_rows(t, &attn_post, &ffn_norm,
              eng__is_quantised(&l->mats[MAT_GATE]) || eng__is_quantised(&l->mats[MAT_UP]));
    pool_barrier(e->pool);
    project_ffn(t, l, d->blocks[eng__block(e, idx)].ffn);
    pool_barrier(e->pool);
    if (eng__is_quantised(&l->mats[MAT_DOWN])) quantise_rows(t, &e->ffn_act, e->gate, e->ld_ffn);
    pool_barrier(e->pool);
    project_and_add(t, &l->mats[MAT_DOWN], &e->ffn_act, e->gate, e->ld_ffn,
                    !l->vecs[VEC_FFN_POST_NORM]);
    pool_barrier(e->pool);
}

/* The model's last norm of some rows, quantised as rows 0..n - 1 of `a` unless that is NULL. */
static void norm_last(const struct stage_thread *t, const uint32_t *rows, uint32_t n, float *y,
                      struct act *a)
{
    struct engine *e = t->e;
    uint32_t hidden = e->model.dims.hidden, from, to;
    const struct kern_norm norm =
        norm_of(e, e->model.layer_last - e->model.layer_first, e->model.output_norm);
    eng__share(n, t->idx, t->n, &from, &to);
    uint64_t start = clock_ns();
    for (uint32_t i = from; i < to; i++)
        kern_norm_row(e->kern, &norm, e->x + (size_t)rows[i] * hidden, hidden,
                      y + (size_t)i * hidden, a, i);
    if (from < to) eng__count_call(t, ENG_NORM, start);
}

/* The logits of the group of rows at hand. */
static void run_head(const struct stage_thread *t)
{
    struct engine *e = t->e;
    uint32_t a, b;
    norm_last(t, e->logit_rows + e->head_row, e->n_head, e->norm,
              eng__is_quantised(&e->model.output) ? &e->head_act : NULL);
    pool_barrier(e->pool);
    eng__share(mat_n_panels(&e->model.output), t->idx, t->n, &a, &b);
    project(t, &e->model.output, a, b, &e->head_act, e->norm, e->model.dims.hidden, e->logits,
            e->ld_logits);
    for (uint32_t i = 0; i < e->n_head && e->model.dims.logit_softcap != 0.0f; i++)
        e->kern->softcap(e->logits + i * e->ld_logits + (size_t)a * TILE_ROWS, (b - a) * TILE_ROWS,
                         e->model.dims.logit_softcap);
}

static struct stage_thread thread_of(struct engine *e, unsigned idx, unsigned n)
{
    return (struct stage_thread){e, idx, n, e->scratch + idx * e->scratch_bytes};
}

void eng__run_head(void *arg, unsigned idx, unsigned n)
{
    const struct stage_thread t = thread_of(arg, idx, n);
    mem_guard_begin();
    run_head(&t);
    mem_guard_end();
}

void eng__run_step(void *arg, unsigned idx, unsigned n)
{
    struct engine *e = arg;
    const struct stage_thread t = thread_of(e, idx, n);
    mem_guard_begin();
    embed(&t);
    struct kern_norm post = {0};
    for (uint32_t l = 0; l <= e->model.layer_last - e->model.layer_first; l++) {
        run_layer(&t, l, &post);
        if (idx == 0 && e->moves) atomic_fetch_add_explicit(e->moves, 1, memory_order_relaxed);
        post = norm_of(e, l, e->model.layers[l].vecs[VEC_FFN_POST_NORM]);
    }
    if (post.weight) {
        add_rows(&t, &post);
        pool_barrier(e->pool);
    }
    if (e->n_hidden)
        norm_last(&t, e->hidden_rows, e->n_hidden,
                  e->norm + (size_t)e->n_logits * e->model.dims.hidden, NULL);
    if (e->n_head) run_head(&t);
    mem_guard_end();
}
