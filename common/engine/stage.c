/* A step over a slice. Every thread of the pool walks the same phases, and a barrier ends each. A
 * phase splits its work by rows (tokens), or by panels (output rows of a matrix) or items of
 * attention, which threads take as they come free. Nothing that is computed depends on the split.
 *
 * Of a layer's phases, some are split by rows. Where rows are few, each thread instead does them
 * all for itself, into buffers of its own, which takes less time than a barrier: it has the whole
 * residual stream, to which it adds what all threads have projected; and the thread that projects
 * the last panel of a head rotates the head, or stores its keys and values. The feed-forward's rows
 * are quantised block by block by the thread that has computed a block.
 *
 *   phase                          split by            barriers   where rows are few
 *   norm, quantise                 rows                1          -
 *   queries, keys, values          panels              1          1
 *   rotate, store                  rows                1          -
 *   attention                      rows                1          1
 *   output                         panels              1          1
 *   norm, quantise                 rows                1          -
 *   gate, up; activate, quantise   panels              1          1
 *   down                           panels              1          1
 *
 * Attention is split by spans where that gives each thread more to do: attend.c.
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
 *   act, ffn_act              quantised rows that products read
 *   own   [thread]            x, norm and act of a thread where rows are few */
#include "common/engine/stage.h"

#include "common/base/check.h"
#include "common/base/mem.h"
#include "common/engine/rope.h"

/* Panels [p0, p1) of one matrix over all rows of `a` (and of x, which float weights read). */
static void project(const struct stage_thread *t, const struct mat *m, uint32_t p0, uint32_t p1,
                    const struct act *a, const float *x, size_t ldx, float *out, size_t ldo)
{
    t->e->kern->linear(m, p0, p1, a, x, ldx, a->n_tokens, out, ldo, t->scratch);
}

/* A barrier that threads need only where each has a share of the rows. */
static void meet(const struct stage_thread *t)
{
    if (!t->local) pool_barrier(t->e->pool);
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

/* The rows' angles, for all threads, and what the first layer reads. */
static void embed(struct stage_thread *t)
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
    if (!t->local) return;
    pool_barrier(e->pool);
    memcpy(t->x, e->x, (size_t)e->n_rows * d->hidden * sizeof *t->x);
}

/* A norm of the layer's kind. */
static struct kern_norm norm_of(const struct engine *e, uint32_t layer, const float *weight)
{
    return (struct kern_norm){.layer =
                                  e->model.dims.blocks[eng__block(e, layer)].norm == NORM_LAYER,
                              .weight = weight,
                              .eps = e->model.dims.norm_eps};
}

/* x += the projection in tmp, if one is due. */
static void add_due(const struct stage_thread *t, uint32_t r)
{
    struct engine *e = t->e;
    uint32_t n = e->model.dims.hidden;
    const float *tmp = e->tmp + r * e->ld_tmp;
    float *x = t->x + (size_t)r * n, *y = t->norm + (size_t)r * n;
    if (!t->due) return;
    if (t->due_norm.weight) {
        kern_norm_row(e->kern, &t->due_norm, tmp, n, y, NULL, r);
        tmp = y;
    }
    for (uint32_t i = 0; i < n; i++) x[i] += tmp[i];
}

/* The rows' norms, after what is due has been added to them. */
static void norm_rows(struct stage_thread *t, const struct kern_norm *norm, bool quantise)
{
    struct engine *e = t->e;
    uint32_t n = e->model.dims.hidden;
    struct act a = eng__act_of(t, e->n_rows, n);
    uint64_t start = clock_ns();
    for (uint32_t r = t->row_a; r < t->row_b; r++) {
        add_due(t, r);
        kern_norm_row(e->kern, norm, t->x + (size_t)r * n, n, t->norm + (size_t)r * n,
                      quantise ? &a : NULL, r);
    }
    t->due = false;
    if (t->row_a < t->row_b) (void)eng__spent(t, ENG_NORM, start);
    eng__count(t, ENG_NORM);
}

/* After the last layer: x is complete, in all threads' buffer too. */
static void complete_rows(struct stage_thread *t)
{
    struct engine *e = t->e;
    size_t n = e->model.dims.hidden;
    uint32_t a, b;
    uint64_t start = clock_ns();
    for (uint32_t r = t->row_a; r < t->row_b; r++) add_due(t, r);
    t->due = false;
    eng__share(e->n_rows, t->idx, t->n, &a, &b);
    if (t->local && a < b) memcpy(e->x + a * n, t->x + a * n, (b - a) * n * sizeof *e->x);
    if (t->row_a < t->row_b) (void)eng__spent(t, ENG_NORM, start);
}

/* ---- phases split by panels ---- */

/* Normalises a head where the norm has weights, and rotates it. */
static void turn_head(const struct engine *e, float *x, const struct kern_norm *norm, bool halves,
                      const float *cs)
{
    const struct arch_dims *d = &e->model.dims;
    if (norm->weight) kern_norm_row(e->kern, norm, x, d->head_size, x, NULL, 0);
    (halves ? e->kern->rope_halves : e->kern->rope)(x, cs, d->rope_dims);
}

/* A head's bias; NULL: the layer has none. */
static const float *bias_of(const struct engine *e, uint32_t layer, enum arch_vec vec, uint32_t h)
{
    const float *bias = e->model.layers[layer].vecs[vec];
    return bias ? bias + (size_t)h * e->model.dims.head_size : NULL;
}

/* Query head h of a row, which is projected: its bias, norm, rotation and scale. */
static void finish_query(const struct engine *e, uint32_t layer, uint32_t h, uint32_t r)
{
    const struct arch_dims *d = &e->model.dims;
    const uint32_t block = eng__block(e, layer), hs = d->head_size;
    const struct kern_norm norm = norm_of(e, layer, e->model.layers[layer].vecs[VEC_Q_NORM]);
    float *q = e->qkv + r * e->ld_qkv + (size_t)h * hs;
    kern_add_bias(q, bias_of(e, layer, VEC_Q_BIAS, h), hs);
    turn_head(e, q, &norm, d->blocks[block].rope_halves, e->cs[block] + (size_t)r * d->rope_dims);
    for (uint32_t i = 0; i < hs; i++) q[i] *= d->q_scale;
    if (eng__transforms(e)) kern_hadamard(q, hs);
}

/* KV head h of a row, whose key and value are projected: likewise, and stores them. */
static void finish_kv(const struct engine *e, uint32_t layer, uint32_t h, uint32_t r)
{
    const struct arch_dims *d = &e->model.dims;
    const uint32_t block = eng__block(e, layer), hs = d->head_size;
    const struct kern_norm norm = norm_of(e, layer, e->model.layers[layer].vecs[VEC_K_NORM]);
    float *k = e->qkv + r * e->ld_qkv + e->ld_q + (size_t)h * hs, *v = k + e->ld_kv;
    kern_add_bias(k, bias_of(e, layer, VEC_K_BIAS, h), hs);
    kern_add_bias(v, bias_of(e, layer, VEC_V_BIAS, h), hs);
    turn_head(e, k, &norm, d->blocks[block].rope_halves, e->cs[block] + (size_t)r * d->rope_dims);
    if (eng__transforms(e)) {
        kern_hadamard(k, hs);
        kern_hadamard(v, hs);
    }
    uint32_t at;
    struct kv_view kv = eng__kv_view(e, layer, h, &e->rows[r], &at);
    e->kern->kv_store(&kv, e->rows[r].pos - at, k, v);
}

/* All heads of this thread's rows. */
static void finish_rows(struct stage_thread *t, uint32_t layer)
{
    const struct arch_dims *d = &t->e->model.dims;
    uint64_t start = clock_ns();
    for (uint32_t r = t->row_a; r < t->row_b; r++) {
        for (uint32_t h = 0; h < d->n_heads; h++) finish_query(t->e, layer, h, r);
        for (uint32_t h = 0; h < d->n_kv_heads; h++) finish_kv(t->e, layer, h, r);
    }
    if (t->row_a < t->row_b) (void)eng__spent(t, ENG_ROTATE, start);
    eng__count(t, ENG_ROTATE);
}

/* Panels that head h has a part of, from *ret_first on. */
static uint32_t panels_of_head(uint32_t h, uint32_t head_size, uint32_t *ret_first)
{
    *ret_first = h * head_size / TILE_ROWS;
    return ((h + 1) * head_size + TILE_ROWS - 1) / TILE_ROWS - *ret_first;
}

/* Panels [p0, p1) of queries, keys or values are projected. Heads of which they are the last are
 * finished, in all rows. */
static void finish_heads(const struct stage_thread *t, uint32_t layer, enum arch_mat m, uint32_t p0,
                         uint32_t p1)
{
    struct engine *e = t->e;
    const uint32_t hs = e->model.dims.head_size, rows = e->model.layers[layer].mats[m].rows;
    const uint32_t end = p1 * TILE_ROWS < rows ? p1 * TILE_ROWS : rows;
    for (uint32_t h = p0 * TILE_ROWS / hs; h * hs < end; h++) {
        uint32_t first, n = panels_of_head(h, hs, &first);
        uint32_t from = p0 > first ? p0 : first, to = p1 < first + n ? p1 : first + n;
        uint32_t all = m == MAT_Q ? n : 2 * n; /* keys and values together */
        atomic_uint *done = &e->head_panels[m == MAT_Q ? h : e->model.dims.n_heads + h];
        if (atomic_fetch_add_explicit(done, to - from, memory_order_acq_rel) + to - from < all)
            continue;
        atomic_store_explicit(done, 0, memory_order_relaxed); /* for the next layer */
        for (uint32_t r = 0; r < e->n_rows; r++)
            (m == MAT_Q ? finish_query : finish_kv)(e, layer, h, r);
    }
}

static void project_qkv(struct stage_thread *t, uint32_t layer)
{
    struct engine *e = t->e;
    const struct layer *l = &e->model.layers[layer];
    const size_t at[3] = {0, e->ld_q, e->ld_q + e->ld_kv};
    const struct act in = eng__act_of(t, e->n_rows, e->model.dims.hidden);
    uint32_t total = 0, a, b;
    for (int m = MAT_Q; m <= MAT_V; m++) total += mat_n_panels(&l->mats[m]);
    while (pool_claim(e->pool, total, &a, &b))
        for (uint32_t m = MAT_Q, first = 0; m <= MAT_V; first += mat_n_panels(&l->mats[m++])) {
            uint32_t n = mat_n_panels(&l->mats[m]);
            uint32_t p0 = a > first ? a - first : 0, p1 = b > first ? b - first : 0;
            if (p1 > n) p1 = n;
            if (p0 >= p1) continue;
            uint64_t start = clock_ns();
            project(t, &l->mats[m], p0, p1, &in, t->norm, e->model.dims.hidden,
                    e->qkv + at[m - MAT_Q], e->ld_qkv);
            start = eng__spent(t, ENG_LINEAR, start);
            if (!t->local) continue;
            finish_heads(t, layer, (enum arch_mat)m, p0, p1);
            (void)eng__spent(t, ENG_ROTATE, start);
        }
    eng__count(t, ENG_LINEAR);
    eng__count(t, ENG_ROTATE);
    pool_barrier(e->pool);
    if (t->local) return;
    finish_rows(t, layer);
    pool_barrier(e->pool);
}

/* tmp = m * in. It is due to be added to x, normalised if `post` has weights. */
static void project_stream(struct stage_thread *t, const struct mat *m, const struct act *a,
                           const float *in, size_t ld, const struct kern_norm *post)
{
    struct engine *e = t->e;
    uint32_t p0, p1;
    uint64_t start = clock_ns();
    while (pool_claim(e->pool, mat_n_panels(m), &p0, &p1)) {
        project(t, m, p0, p1, a, in, ld, e->tmp, e->ld_tmp);
        start = eng__spent(t, ENG_LINEAR, start);
    }
    eng__count(t, ENG_LINEAR);
    t->due = true;
    t->due_norm = *post;
}

/* Blocks [b0, b1) of the feed-forward's rows. */
static void quantise_blocks(struct engine *e, uint32_t b0, uint32_t b1)
{
    for (uint32_t first = 0; first < e->n_rows; first += ACT_GROUP) {
        uint32_t left = e->n_rows - first, n = left < ACT_GROUP ? left : ACT_GROUP;
        size_t at = act_index(&e->ffn_act, first, b0);
        struct act part = {.n_tokens = n,
                           .k = (b1 - b0) * ACT_BLOCK,
                           .q = e->ffn_act.q + at * ACT_BLOCK,
                           .x = e->ffn_act.x + at,
                           .y = e->ffn_act.y + at,
                           .s = e->ffn_act.s + at,
                           .h = e->ffn_act.h + 2 * at};
        for (uint32_t r = 0; r < n; r++)
            e->kern->quantise(e->gate + (first + r) * e->ld_ffn + (size_t)b0 * ACT_BLOCK, &part, r);
    }
}

/* Two panels are one block of what the next product reads. */
#define BLOCK_PANELS (ACT_BLOCK / TILE_ROWS)

static void project_ffn(struct stage_thread *t, const struct layer *l, enum arch_ffn ffn)
{
    struct engine *e = t->e;
    const struct act in = eng__act_of(t, e->n_rows, e->model.dims.hidden);
    const struct mat *gate = &l->mats[MAT_GATE], *up = &l->mats[MAT_UP];
    const uint32_t panels = mat_n_panels(gate), hidden = e->model.dims.hidden;
    const bool quantise = eng__is_quantised(&l->mats[MAT_DOWN]);
    void (*activate)(const float *, const float *, float *, uint32_t) =
        ffn == FFN_GELU ? e->kern->gelu_mul : e->kern->silu_mul;
    uint32_t b0, b1;
    uint64_t start = clock_ns();
    while (pool_claim(e->pool, (panels + BLOCK_PANELS - 1) / BLOCK_PANELS, &b0, &b1)) {
        uint32_t p0 = b0 * BLOCK_PANELS, p1 = b1 * BLOCK_PANELS;
        if (p1 > panels) p1 = panels;
        project(t, gate, p0, p1, &in, t->norm, hidden, e->gate, e->ld_ffn);
        project(t, up, p0, p1, &in, t->norm, hidden, e->up, e->ld_ffn);
        start = eng__spent(t, ENG_LINEAR, start);
        for (uint32_t r = 0; r < e->n_rows; r++) {
            size_t at = r * e->ld_ffn + (size_t)p0 * TILE_ROWS;
            activate(e->gate + at, e->up + at, e->gate + at, (p1 - p0) * TILE_ROWS);
        }
        start = eng__spent(t, ENG_GATE, start);
        if (!quantise) continue; /* such rows may have no whole blocks */
        quantise_blocks(e, b0, b1);
        start = eng__spent(t, ENG_QUANTISE, start);
    }
    eng__count(t, ENG_LINEAR);
    eng__count(t, ENG_GATE);
    eng__count(t, ENG_QUANTISE);
}

static void run_layer(struct stage_thread *t, uint32_t idx)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    const struct layer *l = &e->model.layers[idx];
    const struct kern_norm attn_norm = norm_of(e, idx, l->vecs[VEC_ATTN_NORM]),
                           attn_post = norm_of(e, idx, l->vecs[VEC_ATTN_POST_NORM]),
                           ffn_norm = norm_of(e, idx, l->vecs[VEC_FFN_NORM]),
                           ffn_post = norm_of(e, idx, l->vecs[VEC_FFN_POST_NORM]);
    const uint32_t q_width = d->n_heads * d->head_size;
    const struct act att = eng__act_of(t, e->n_rows, q_width);
    norm_rows(t, &attn_norm,
              eng__is_quantised(&l->mats[MAT_Q]) || eng__is_quantised(&l->mats[MAT_K]) ||
                  eng__is_quantised(&l->mats[MAT_V]));
    meet(t);
    project_qkv(t, idx);
    eng__attend(t, idx, eng__is_quantised(&l->mats[MAT_O]));
    project_stream(t, &l->mats[MAT_O], &att, t->att, q_width, &attn_post);
    pool_barrier(e->pool);
    norm_rows(t, &ffn_norm,
              eng__is_quantised(&l->mats[MAT_GATE]) || eng__is_quantised(&l->mats[MAT_UP]));
    meet(t);
    project_ffn(t, l, d->blocks[eng__block(e, idx)].ffn);
    pool_barrier(e->pool);
    project_stream(t, &l->mats[MAT_DOWN], &e->ffn_act, e->gate, e->ld_ffn, &ffn_post);
    pool_barrier(e->pool);
}

/* ---- the head ---- */

/* The model's last norm of rows[a..b), as rows a.. of y and, unless that is NULL, of `act`. */
static void norm_last(struct stage_thread *t, const uint32_t *rows, uint32_t a, uint32_t b,
                      float *y, struct act *act)
{
    struct engine *e = t->e;
    uint32_t n = e->model.dims.hidden;
    const struct kern_norm norm =
        norm_of(e, e->model.layer_last - e->model.layer_first, e->model.output_norm);
    uint64_t start = clock_ns();
    for (uint32_t i = a; i < b; i++)
        kern_norm_row(e->kern, &norm, t->x + (size_t)rows[i] * n, n, y + (size_t)i * n, act, i);
    if (a < b) (void)eng__spent(t, ENG_NORM, start);
}

/* Hidden rows lie behind the room for all that want logits. */
static void run_hidden(struct stage_thread *t)
{
    struct engine *e = t->e;
    uint32_t a, b;
    eng__share(e->n_hidden, t->idx, t->n, &a, &b);
    norm_last(t, e->hidden_rows, a, b, e->norm + (size_t)e->n_logits * e->model.dims.hidden, NULL);
}

/* The logits of the group of rows at hand. */
static void run_head(struct stage_thread *t)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    const struct mat *m = &e->model.output;
    struct act in = eng__act_of(t, e->n_head, d->hidden);
    uint32_t a = 0, b = e->n_head;
    if (!t->local) eng__share(e->n_head, t->idx, t->n, &a, &b);
    norm_last(t, e->logit_rows + e->head_row, a, b, t->norm, eng__is_quantised(m) ? &in : NULL);
    eng__count(t, ENG_NORM);
    meet(t);
    uint64_t start = clock_ns();
    while (pool_claim(e->pool, mat_n_panels(m), &a, &b)) {
        project(t, m, a, b, &in, t->norm, d->hidden, e->logits, e->ld_logits);
        for (uint32_t i = 0; i < e->n_head && d->logit_softcap != 0.0f; i++)
            e->kern->softcap(e->logits + i * e->ld_logits + (size_t)a * TILE_ROWS,
                             (b - a) * TILE_ROWS, d->logit_softcap);
        start = eng__spent(t, ENG_LINEAR, start);
    }
    eng__count(t, ENG_LINEAR);
}

/* ---- threads ---- */

static struct stage_thread thread_of(struct engine *e, unsigned idx, unsigned n)
{
    struct stage_thread t = {.e = e,
                             .idx = idx,
                             .n = n,
                             .scratch = e->scratch + idx * e->scratch_bytes,
                             .x = e->x,
                             .norm = e->norm,
                             .act = e->act};
    eng__share(e->n_rows, idx, n, &t.row_a, &t.row_b);
    return t;
}

/* The thread has buffers of its own, and all rows. */
static void use_own(struct stage_thread *t)
{
    const struct arch_dims *d = &t->e->model.dims;
    const uint32_t width = eng__act_width(d);
    const size_t rows = t->e->rows_max < LOCAL_ROWS ? t->e->rows_max : LOCAL_ROWS,
                 blocks = rows * (width / ACT_BLOCK + 1);
    t->local = true;
    t->row_a = 0;
    t->row_b = t->e->n_rows;
    t->x = (float *)(void *)(t->e->own + t->idx * t->e->own_bytes);
    t->norm = t->x + rows * d->hidden;
    t->act.x = t->norm + rows * width;
    t->act.y = t->act.x + blocks;
    t->act.s = (int32_t *)(void *)(t->act.y + blocks);
    t->act.h = t->act.s + blocks;
    t->act.q = (int8_t *)(t->act.h + 2 * blocks);
    CHECK((uint8_t *)t->act.q + rows * width <= t->e->own + (t->idx + 1) * t->e->own_bytes);
}

void eng__run_head(void *arg, unsigned idx, unsigned n)
{
    struct stage_thread t = thread_of(arg, idx, n);
    mem_guard_begin();
    run_head(&t);
    mem_guard_end();
}

void eng__run_step(void *arg, unsigned idx, unsigned n)
{
    struct engine *e = arg;
    struct stage_thread t = thread_of(e, idx, n);
    mem_guard_begin();
    if (n > 1 && e->n_rows <= LOCAL_ROWS) use_own(&t);
    embed(&t);
    for (uint32_t l = 0; l <= e->model.layer_last - e->model.layer_first; l++) {
        run_layer(&t, l);
        if (idx == 0 && e->moves) atomic_fetch_add_explicit(e->moves, 1, memory_order_relaxed);
    }
    complete_rows(&t);
    if (e->n_hidden + e->n_head) meet(&t);
    if (e->n_hidden) run_hidden(&t);
    if (e->n_head) run_head(&t);
    eng__count(&t, ENG_NORM);
    mem_guard_end();
}
