/* Binding and loading. A *piece* is one tensor's place in the weights block; pieces are cut into
 * extents of whole panels, and each extent is hashed and packed as soon as its bytes arrive, while
 * others are still being read. When all of a tensor is there its hash is compared. */
#include "common/engine/model.h"

#include "common/base/check.h"
#include "common/base/mem.h"
#include "common/engine/content.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define N_ENDS 4u /* tensors that bind_ends may bind */

struct piece {
    const struct weights_tensor *tensor;
    uint32_t rows, k;
    bool vector; /* a norm or a bias: kept as f32, not packed */
    size_t at;   /* bytes from the start of the weights */
    size_t bytes;
    struct mat *mat;
    const float **vec;
};

struct binding {
    const struct weights *w;
    struct piece *pieces; /* room for all of a slice */
    uint32_t n;
    size_t room;
    size_t bytes; /* of the weights block so far */
};

static int check_shape(const struct weights_tensor *t, uint32_t rows, uint32_t k, struct errmsg *em)
{
    if (t->dims[0] != k || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        return err_set(em, ERR_FORMAT,
                       "tensor '%s' is %" PRIu64 " x %" PRIu64 ", the model needs %" PRIu32
                       " x %" PRIu32,
                       t->name, t->dims[0], t->dims[1], k, rows);
    const struct qtype_info *q = qtype_info((uint32_t)t->type);
    if (!q->computed)
        return err_set(em, ERR_UNSUPPORTED, "tensor '%s': type %s is not supported", t->name,
                       q->name);
    return 0;
}

static int bind_tensor(struct binding *b, const char *name, uint32_t rows, uint32_t k,
                       struct mat *mat, const float **vec, struct errmsg *em)
{
    const struct weights_tensor *t = weights_tensor(b->w, name);
    if (!t) return err_set(em, ERR_FORMAT, "tensor '%s' is missing", name);
    int rc = check_shape(t, rows, k, em);
    if (rc < 0) return rc;
    if (vec && !qtype_is_float(t->type))
        return err_set(em, ERR_UNSUPPORTED, "tensor '%s': a vector of type %s", name,
                       qtype_info((uint32_t)t->type)->name);
    size_t panels = ((size_t)rows + TILE_ROWS - 1) / TILE_ROWS;
    size_t bytes = vec ? (size_t)k * sizeof(float) : panels * tile_panel_bytes(t->type, k);
    CHECK(b->n < b->room);
    b->pieces[b->n++] = (struct piece){.tensor = t,
                                       .rows = rows,
                                       .k = k,
                                       .vector = vec != NULL,
                                       .at = b->bytes,
                                       .bytes = bytes,
                                       .mat = mat,
                                       .vec = vec};
    b->bytes += (bytes + 63) & ~(size_t)63;
    return 0;
}

static int bind_layer(struct binding *b, const struct arch_dims *d, uint32_t layer, struct layer *l,
                      struct errmsg *em)
{
    char name[64];
    const struct arch_block *block = arch_block(d, layer);
    int rc = 0;
    for (int v = 0; v < N_VECS && rc == 0; v++) {
        if (!arch_has(block, (enum arch_vec)v)) continue;
        (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", layer,
                       arch_vec_name((enum arch_vec)v));
        rc = bind_tensor(b, name, 1, arch_vec_width(d, (enum arch_vec)v), NULL, &l->vecs[v], em);
    }
    for (int m = 0; m < N_MATS && rc == 0; m++) {
        uint32_t rows, k;
        arch_mat_shape(d, (enum arch_mat)m, &rows, &k);
        (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", layer,
                       arch_mat_name((enum arch_mat)m));
        rc = bind_tensor(b, name, rows, k, &l->mats[m], NULL, em);
    }
    return rc;
}

/* A model without `output.weight` uses its embedding as the output head; a slice that is first and
 * last then holds it once. */
static int bind_ends(struct binding *b, struct model *m, struct errmsg *em)
{
    const struct arch_dims *d = &m->dims;
    bool tied = !weights_tensor(b->w, "output.weight");
    int rc = 0;
    if (weights_tensor(b->w, "rope_freqs.weight"))
        rc = bind_tensor(b, "rope_freqs.weight", 1, d->rope_dims / 2, NULL, &m->rope_factors, em);
    if (rc == 0 && (m->first || (m->last && tied)))
        rc = bind_tensor(b, "token_embd.weight", d->vocab, d->hidden, &m->embd, NULL, em);
    if (rc == 0 && m->last)
        rc = bind_tensor(b, "output_norm.weight", 1, d->hidden, NULL, &m->output_norm, em);
    if (rc == 0 && m->last && !tied)
        rc = bind_tensor(b, "output.weight", d->vocab, d->hidden, &m->output, NULL, em);
    return rc;
}

static int bind_slice(struct binding *b, struct model *m, struct errmsg *em)
{
    uint32_t n = m->layer_last - m->layer_first + 1;
    b->room = N_ENDS + (size_t)n * (N_VECS + N_MATS);
    b->pieces = mem_try(b->room * sizeof *b->pieces);
    m->layers = mem_try(n * sizeof *m->layers);
    if (!b->pieces || !m->layers) return err_set(em, ERR_NOMEM, "%" PRIu32 " layers", n);
    memset(m->layers, 0, n * sizeof *m->layers);
    int rc = bind_ends(b, m, em);
    for (uint32_t i = 0; i < n && rc == 0; i++)
        rc = bind_layer(b, &m->dims, m->layer_first + i, &m->layers[i], em);
    return rc;
}

/* ---- loading ---- */

/* How much of a piece has come. */
struct arrival {
    uint64_t left; /* bytes still to come */
    uint64_t hash; /* of those that have come */
    bool finite;   /* all their scales are */
};

struct load {
    struct model *m;
    const struct eng_options *o;
    struct extent *extents; /* of one file after the other */
    struct extent_of {
        uint32_t piece_idx, row0, n_rows;
    } * of;
    size_t n, room;
    size_t first; /* extent of the file that is being read */
    const struct piece *pieces;
    struct arrival *arrivals; /* one for each piece */
    uint64_t total;
};

static void cut(struct load *l, const struct piece *p, uint32_t piece_idx)
{
    uint64_t row_bytes = p->tensor->bytes / p->rows, rows = content_part_rows(p->tensor);
    for (uint64_t row = 0; row < p->rows; row += rows) {
        uint64_t n = p->rows - row < rows ? p->rows - row : rows;
        CHECK(l->n < l->room);
        l->extents[l->n] = (struct extent){p->tensor->offset + row * row_bytes, n * row_bytes};
        l->of[l->n++] = (struct extent_of){piece_idx, (uint32_t)row, (uint32_t)n};
    }
    l->arrivals[piece_idx] = (struct arrival){.left = p->tensor->bytes, .finite = true};
}

/* False: a scale is infinite or not a number. */
static bool pack(const struct load *l, const struct extent_of *of, const uint8_t *data)
{
    const struct piece *p = &l->pieces[of->piece_idx];
    uint8_t *to = l->m->weights + p->at;
    uint64_t row_bytes = p->tensor->bytes / p->rows;
    size_t panel_bytes = tile_panel_bytes(p->tensor->type, p->k);
    bool finite = true;
    if (p->vector) {
        quant_dequantise(p->tensor->type, data, p->k, (float *)(void *)to);
        return true;
    }
    for (uint32_t r = 0; r < of->n_rows; r += TILE_ROWS) {
        uint32_t n = of->n_rows - r < TILE_ROWS ? of->n_rows - r : TILE_ROWS;
        finite &= tile_pack(p->tensor->type, data + r * row_bytes, n, p->k,
                            to + (of->row0 + r) / TILE_ROWS * panel_bytes);
    }
    return finite;
}

/* Once all of a tensor has come. The hash goes first, so that a damaged tensor is called so even
 * where the damage made its scales infinite. */
static int check_content(const struct load *l, uint32_t piece_idx, struct errmsg *em)
{
    const struct arrival *a = &l->arrivals[piece_idx];
    const char *name = l->pieces[piece_idx].tensor->name;
    if (a->left) return 0;
    if (l->o->hashes && a->hash != l->o->hashes[piece_idx])
        return err_set(em, ERR_FORMAT, "tensor '%s' differs from the coordinator's", name);
    if (!a->finite)
        return err_set(em, ERR_FORMAT, "tensor '%s': a scale is infinite or not a number", name);
    return 0;
}

static int take_extent(void *arg, size_t idx, const uint8_t *data, struct errmsg *em)
{
    struct load *l = arg;
    const struct extent_of *of = &l->of[l->first + idx];
    const struct extent *x = &l->extents[l->first + idx];
    struct arrival *a = &l->arrivals[of->piece_idx];
    if (l->o->hashes)
        a->hash += content_hash(data, (size_t)x->bytes,
                                x->offset - l->pieces[of->piece_idx].tensor->offset);
    a->finite &= pack(l, of, data);
    CHECK(a->left >= x->bytes);
    a->left -= x->bytes;
    int rc = check_content(l, of->piece_idx, em);
    if (rc < 0) return rc;
    l->m->read_bytes += x->bytes;
    if (l->o->progress && !l->o->progress(l->o->progress_arg, l->m->read_bytes, l->total))
        return err_set(em, ERR_CANCELLED, "loading was cancelled");
    return 0;
}

/* The pieces that lie in one file. */
static int load_file(struct load *l, uint32_t n_pieces, uint32_t file, struct errmsg *em)
{
    const struct eng_options *o = l->o;
    l->first = l->n;
    for (uint32_t i = 0; i < n_pieces; i++)
        if (l->pieces[i].tensor->file == file) cut(l, &l->pieces[i], i);
    if (l->n == l->first) return 0;
    return o->read(o->read_ctx, weights_path(o->weights, file), l->extents + l->first,
                   l->n - l->first, take_extent, l, em);
}

static int load_pieces(struct model *m, const struct eng_options *o, const struct binding *b,
                       struct errmsg *em)
{
    struct load l = {.m = m, .o = o, .pieces = b->pieces};
    l.total = eng_kv_bytes(&m->dims, o->kv, m->layer_first, m->layer_last, o->n_pages,
                           o->n_window_pages); /* it is touched after the tensors are read */
    for (uint32_t i = 0; i < b->n; i++) {
        l.room += b->pieces[i].rows / content_part_rows(b->pieces[i].tensor) + 1;
        l.total += b->pieces[i].tensor->bytes;
    }
    l.extents = mem_try(l.room * sizeof *l.extents);
    l.of = mem_try(l.room * sizeof *l.of);
    l.arrivals = mem_try(b->n * sizeof *l.arrivals);
    int rc = 0;
    if (!l.extents || !l.of || !l.arrivals)
        rc = err_set(em, ERR_NOMEM, "a list of %zu parts to read", l.room);
    for (uint32_t f = 0; f < weights_n_files(o->weights) && rc == 0; f++)
        rc = load_file(&l, b->n, f, em);
    for (uint32_t i = 0; i < b->n && rc == 0; i++) CHECK(l.arrivals[i].left == 0);
    mem_free(l.extents);
    mem_free(l.of);
    mem_free(l.arrivals);
    return rc;
}

static void point(struct model *m, const struct binding *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct piece *p = &b->pieces[i];
        if (p->vector)
            *p->vec = (const float *)(const void *)(m->weights + p->at);
        else
            *p->mat = (struct mat){
                .type = p->tensor->type, .rows = p->rows, .k = p->k, .panels = m->weights + p->at};
    }
    if (m->last && !m->output.panels) m->output = m->embd;
}

static int check_factors(const struct model *m, struct errmsg *em)
{
    for (uint32_t i = 0; m->rope_factors && i < m->dims.rope_dims / 2; i++)
        if (!(m->rope_factors[i] > 1e-6f && m->rope_factors[i] < 1e6f))
            return err_set(em, ERR_FORMAT, "tensor 'rope_freqs.weight': factor %" PRIu32 " is %g",
                           i, (double)m->rope_factors[i]);
    return 0;
}

int model_load(const struct eng_options *o, struct model *ret, struct errmsg *em)
{
    struct model m = {.layer_first = o->layer_first, .layer_last = o->layer_last};
    struct binding b = {.w = o->weights};
    int rc = arch_read(o->weights, &m.dims, em);
    if (rc == 0) {
        m.first = o->layer_first == 0;
        m.last = o->layer_last == m.dims.n_layers - 1;
        rc = bind_slice(&b, &m, em);
    }
    if (rc == 0 && o->hashes && o->n_hashes != b.n)
        rc = err_set(em, ERR_PROTO,
                     "%" PRIu32 " hashes came for the %" PRIu32 " tensors of layers %" PRIu32
                     "..%" PRIu32,
                     o->n_hashes, b.n, o->layer_first, o->layer_last);
    if (rc == 0) {
        m.weights_bytes = b.bytes;
        m.weights = mem_pages(b.bytes);
        if (!m.weights) rc = err_set(em, ERR_NOMEM, "weights of %zu bytes", b.bytes);
    }
    if (rc == 0) rc = load_pieces(&m, o, &b, em);
    if (rc == 0) {
        point(&m, &b);
        rc = check_factors(&m, em);
    }
    if (rc == 0) {
        *ret = m;
    } else {
        model_close(&m);
        rc = err_wrap(em, rc, "%s", weights_path(o->weights, 0));
    }
    mem_free(b.pieces);
    return rc;
}

void model_close(struct model *m)
{
    mem_pages_free(m->weights, m->weights_bytes);
    mem_free(m->layers);
    *m = (struct model){0};
}

/* The tensors of a slice as pieces, unread; where the pieces point to is gone. ends: with the
 * embedding and the output head, where the slice has them. The caller frees ret->pieces on success.
 */
static int list_pieces(const struct weights *w, const struct arch_dims *d, uint32_t layer_first,
                       uint32_t layer_last, bool ends, struct binding *ret, struct errmsg *em)
{
    struct model m = {.dims = *d,
                      .layer_first = layer_first,
                      .layer_last = layer_last,
                      .first = ends && layer_first == 0,
                      .last = ends && layer_last == d->n_layers - 1};
    *ret = (struct binding){.w = w};
    int rc = bind_slice(ret, &m, em);
    if (rc < 0) mem_free(ret->pieces);
    model_close(&m);
    return rc;
}

int eng_slice_tensors(const struct weights *w, const struct arch_dims *d, uint32_t layer_first,
                      uint32_t layer_last, uint32_t *ret_idx, uint32_t idx_max, uint32_t *ret_n,
                      struct errmsg *em)
{
    struct binding b;
    int rc = list_pieces(w, d, layer_first, layer_last, true, &b, em);
    if (rc < 0) return rc;
    if (b.n > idx_max)
        rc = err_set(em, ERR_LIMIT,
                     "layers %" PRIu32 "..%" PRIu32 " have %" PRIu32
                     " tensors, more than the %" PRIu32 " of a slice",
                     layer_first, layer_last, b.n, idx_max);
    for (uint32_t i = 0; i < b.n && rc == 0; i++)
        ret_idx[i] = (uint32_t)(b.pieces[i].tensor - weights_tensor_at(w, 0));
    if (rc == 0) *ret_n = b.n;
    mem_free(b.pieces);
    return rc;
}

int eng_slice_bytes(const struct weights *w, const struct arch_dims *d, uint32_t layer_first,
                    uint32_t layer_last, uint64_t *ret_bytes, struct errmsg *em)
{
    struct binding b;
    uint64_t bytes = 0;
    int rc = list_pieces(w, d, layer_first, layer_last, true, &b, em);
    if (rc < 0) return rc;
    for (uint32_t i = 0; i < b.n; i++) bytes += b.pieces[i].tensor->bytes;
    *ret_bytes = bytes;
    mem_free(b.pieces);
    return 0;
}

int eng_weights_bytes(const struct weights *w, const struct arch_dims *d, uint32_t layer_first,
                      uint32_t layer_last, uint64_t *ret_bytes, struct errmsg *em)
{
    struct binding b;
    int rc = list_pieces(w, d, layer_first, layer_last, true, &b, em);
    if (rc < 0) return rc;
    *ret_bytes = b.bytes;
    mem_free(b.pieces);
    return 0;
}

int eng_layers_bytes(const struct weights *w, const struct arch_dims *d, uint32_t layer_first,
                     uint32_t layer_last, uint64_t *ret_bytes, struct errmsg *em)
{
    struct binding b;
    int rc = list_pieces(w, d, layer_first, layer_last, false, &b, em);
    if (rc < 0) return rc;
    *ret_bytes = b.bytes;
    mem_free(b.pieces);
    return 0;
}
