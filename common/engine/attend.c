/* Attention of a step. Its items are (row, kv head), or (row, kv head, span) when rows are few;
 * spans are joined in ascending order either way, so that the split does not show in the result. */
#include "common/engine/stage.h"

/* Rows whose attention is computed together; where a step has few, each thread still has some
 * blocks, so that all end at about the same time. */
#define ROWS_OF_BLOCK 16u
#define BLOCKS_OF_THREAD 4u

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
    uint32_t at;
    struct kv_view kv = eng__kv_view(e, layer, head, &e->rows[row], &at);
    const float *q = e->qkv + row * e->ld_qkv + (size_t)head * group * d->head_size;
    if (p0 < s->first) p0 = s->first;
    e->kern->attn_span(&kv, q, group, p0 - at, p1 - at, d->score_softcap, parts);
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

/* Rows [row, row + n), a KV head and a span of 256 positions at a time: the next row finds its keys
 * and values in the cache. parts: [row][span that it sees][query head]. */
static void attend_block(const struct stage_thread *t, uint32_t layer, uint32_t row, uint32_t n,
                         struct attn_part *parts)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    const uint32_t block = eng__block(e, layer), window = d->blocks[block].window;
    const uint32_t group = d->n_heads / d->n_kv_heads, each = group * e->n_spans[block];
    struct sight s[ROWS_OF_BLOCK];
    uint32_t first = UINT32_MAX, end = 0;
    for (uint32_t r = 0; r < n; r++) {
        s[r] = eng__sight(window, e->rows[row + r].pos);
        if (s[r].span < first) first = s[r].span;
        if (s[r].span + s[r].n_spans > end) end = s[r].span + s[r].n_spans;
    }
    for (uint32_t head = 0; head < d->n_kv_heads; head++) {
        for (uint32_t span = first; span < end; span++)
            for (uint32_t r = 0; r < n; r++) {
                uint32_t i = span - s[r].span; /* beyond n_spans where it is negative, too */
                if (i >= s[r].n_spans) continue;
                one_span(t, layer, row + r, &s[r], head, i, parts + r * each + i * group);
            }
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t g = 0; g < group; g++)
                join_head(e, parts + r * each + g, group, s[r].n_spans,
                          e->att +
                              ((size_t)(row + r) * d->n_heads + head * group + g) * d->head_size);
    }
}

/* Blocks of rows interleave over the threads: later rows of a prompt are longer. In a very long
 * context blocks are smaller, or only some threads have room for partial results. */
static void attend_rows(const struct stage_thread *t, uint32_t layer)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    const size_t each = (size_t)(d->n_heads / d->n_kv_heads) * e->n_spans[eng__block(e, layer)];
    const size_t room = e->n_parts / each; /* rows */
    const uint32_t n = room < t->n ? (uint32_t)room : t->n;
    if (t->idx >= n) return;
    uint32_t rows = e->n_rows / (BLOCKS_OF_THREAD * n);
    if (rows > ROWS_OF_BLOCK) rows = ROWS_OF_BLOCK;
    if (rows > room / n) rows = (uint32_t)(room / n);
    if (rows == 0) rows = 1;
    struct attn_part *parts = e->parts + t->idx * rows * each;
    for (uint32_t r = t->idx * rows; r < e->n_rows; r += n * rows)
        attend_block(t, layer, r, e->n_rows - r < rows ? e->n_rows - r : rows, parts);
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
