/* Attention of a step. Its items are (row, kv head), or (row, kv head, span) when rows are few;
 * spans are joined in ascending order either way, so that the split does not show in the result. */
#include "common/engine/stage.h"

static bool split_by_spans(const struct engine *e, uint32_t block, unsigned n_threads)
{
    return e->n_rows < ROWS_FOR_SPLIT * n_threads &&
           (size_t)e->n_rows * e->n_spans[block] * e->model.dims.n_heads <= e->n_parts;
}

/* The parts of one KV head's queries over span i of those that the row sees. */
static void one_span(const struct stage_thread *t, uint32_t layer, uint32_t row,
                     const struct sight *s, uint32_t head, uint32_t i, struct attn_part *parts)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    uint32_t group = d->n_heads / d->n_kv_heads;
    uint32_t p0 = (s->span + i) * ATTN_SPAN, p1 = p0 + ATTN_SPAN < s->end ? p0 + ATTN_SPAN : s->end;
    struct kv_view kv = eng__kv_view(e, layer, head, e->rows[row].pages);
    const float *q = e->qkv + row * e->ld_qkv + (size_t)head * group * d->head_size;
    e->kern->attn_span(&kv, q, group, p0 > s->first ? p0 : s->first, p1, d->score_softcap, parts);
}

static void attend_spans(const struct stage_thread *t, uint32_t layer)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    uint32_t block = eng__block(e, layer), window = d->blocks[block].window;
    uint32_t group = d->n_heads / d->n_kv_heads, most = e->n_spans[block], a, b;
    eng__share(e->n_rows * d->n_kv_heads * most, t->idx, t->n, &a, &b);
    for (uint32_t i = a; i < b; i++) {
        uint32_t head = i % d->n_kv_heads, row = i / d->n_kv_heads % e->n_rows;
        uint32_t span = i / d->n_kv_heads / e->n_rows;
        struct sight s = eng__sight(window, e->rows[row].pos);
        if (span >= s.n_spans) continue;
        struct attn_part *p = e->parts + ((size_t)row * most + span) * d->n_heads + head * group;
        one_span(t, layer, row, &s, head, span, p);
    }
}

static void join_head(const struct engine *e, const struct attn_part *parts, size_t stride,
                      uint32_t n_parts, float *out)
{
    uint32_t d = e->model.dims.head_size;
    kern_attn_join(parts, stride, n_parts, d, out);
    if (eng__transforms(e)) kern_hadamard(out, d);
}

static void join_spans(const struct stage_thread *t, uint32_t layer)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    uint32_t block = eng__block(e, layer), window = d->blocks[block].window;
    uint32_t a, b;
    eng__share(e->n_rows, t->idx, t->n, &a, &b);
    for (uint32_t r = a; r < b; r++)
        for (uint32_t h = 0; h < d->n_heads; h++)
            join_head(e, e->parts + (size_t)r * e->n_spans[block] * d->n_heads + h, d->n_heads,
                      eng__sight(window, e->rows[r].pos).n_spans,
                      e->att + ((size_t)r * d->n_heads + h) * d->head_size);
}

/* Rows interleave over the threads: later rows of a prompt are longer. In a very long context only
 * some threads have room for partial results. */
static void attend_rows(const struct stage_thread *t, uint32_t layer)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    uint32_t block = eng__block(e, layer), window = d->blocks[block].window;
    uint32_t group = d->n_heads / d->n_kv_heads;
    size_t each = (size_t)group * e->n_spans[block], room = e->n_parts / each;
    uint32_t n = room < t->n ? (uint32_t)room : t->n;
    struct attn_part *parts = e->parts + t->idx * each;
    for (uint32_t r = t->idx; t->idx < n && r < e->n_rows; r += n) {
        struct sight s = eng__sight(window, e->rows[r].pos);
        for (uint32_t head = 0; head < d->n_kv_heads; head++) {
            for (uint32_t i = 0; i < s.n_spans; i++)
                one_span(t, layer, r, &s, head, i, parts + i * group);
            for (uint32_t g = 0; g < group; g++)
                join_head(e, parts + g, group, s.n_spans,
                          e->att + ((size_t)r * d->n_heads + head * group + g) * d->head_size);
        }
    }
}

void eng__attend(const struct stage_thread *t, uint32_t layer)
{
    struct engine *e = t->e;
    uint64_t start = clock_ns();
    if (split_by_spans(e, eng__block(e, layer), t->n)) {
        attend_spans(t, layer);
        eng__count_call(t, ENG_ATTENTION, start);
        pool_barrier(e->pool);
        join_spans(t, layer);
    } else {
        attend_rows(t, layer);
        eng__count_call(t, ENG_ATTENTION, start);
        pool_barrier(e->pool);
    }
}
