/* Attention of a step. Its items are blocks of rows, or (row, kv head, span) when rows are few;
 * spans are joined in ascending order either way, so that the split does not show in the result. */
#include "common/engine/stage.h"

#include "common/base/check.h"

/* Rows whose attention is computed together; where a step has few, each thread still has some
 * blocks, so that all end at about the same time. */
#define ROWS_OF_BLOCK 16u
#define BLOCKS_OF_THREAD 4u

/* Where all rows together have at most so many parts a head, each thread joins all of them for
 * itself; more are worth a barrier. */
#define JOINED_BY_ALL 4u

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
    while (pool_claim(e->pool, e->n_rows * d->n_kv_heads * most, &a, &b))
        for (uint32_t i = a; i < b; i++) {
            uint32_t head = i % d->n_kv_heads, row = i / d->n_kv_heads % e->n_rows;
            uint32_t span = i / d->n_kv_heads / e->n_rows;
            struct sight s = eng__sight(window, e->rows[row].pos);
            if (span >= s.n_spans) continue;
            struct attn_part *p =
                e->parts + ((size_t)row * most + span) * d->n_heads + head * group;
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

/* This thread's rows, into `to`. */
static void join_spans(const struct stage_thread *t, uint32_t layer, float *to)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    uint32_t block = eng__block(e, layer), window = d->blocks[block].window;
    for (uint32_t r = t->row_a; r < t->row_b; r++)
        for (uint32_t h = 0; h < d->n_heads; h++)
            join_head(e, e->parts + (size_t)r * e->n_spans[block] * d->n_heads + h, d->n_heads,
                      eng__sight(window, e->rows[r].pos).n_spans,
                      to + ((size_t)r * d->n_heads + h) * d->head_size);
}

/* All rows, whose heads threads take as they come free, into e->att. */
static void join_heads(struct stage_thread *t, uint32_t layer)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    uint32_t block = eng__block(e, layer), window = d->blocks[block].window, a, b;
    while (pool_claim(e->pool, e->n_rows * d->n_heads, &a, &b))
        for (uint32_t i = a; i < b; i++) {
            uint32_t r = i / d->n_heads, h = i % d->n_heads;
            join_head(e, e->parts + (size_t)r * e->n_spans[block] * d->n_heads + h, d->n_heads,
                      eng__sight(window, e->rows[r].pos).n_spans,
                      e->att + (size_t)i * d->head_size);
        }
}

/* Rows [a, b) of t->att. */
static void quantise_rows(struct stage_thread *t, uint32_t a, uint32_t b)
{
    const struct engine *e = t->e;
    const uint32_t width = e->model.dims.n_heads * e->model.dims.head_size;
    struct act to = eng__act_of(t, e->n_rows, width);
    uint64_t start = clock_ns();
    for (uint32_t r = a; r < b; r++) e->kern->quantise(t->att + (size_t)r * width, &to, r);
    if (a < b) (void)eng__spent(t, ENG_QUANTISE, start);
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
static void attend_rows(struct stage_thread *t, uint32_t layer, bool quantise)
{
    struct engine *e = t->e;
    const struct arch_dims *d = &e->model.dims;
    const size_t each = (size_t)(d->n_heads / d->n_kv_heads) * e->n_spans[eng__block(e, layer)];
    const size_t room = e->n_parts / each; /* rows */
    CHECK(room > 0);                       /* or nobody would compute anything */
    const uint32_t n = room < t->n ? (uint32_t)room : t->n;
    if (t->idx >= n) return;
    uint32_t rows = e->n_rows / (BLOCKS_OF_THREAD * n);
    if (rows > ROWS_OF_BLOCK) rows = ROWS_OF_BLOCK;
    if (rows > room / n) rows = (uint32_t)(room / n);
    if (rows == 0) rows = 1;
    struct attn_part *parts = e->parts + t->idx * rows * each;
    for (uint32_t r = t->idx * rows; r < e->n_rows; r += n * rows) {
        uint32_t end = e->n_rows - r < rows ? e->n_rows : r + rows;
        uint64_t start = clock_ns();
        attend_block(t, layer, r, end - r, parts);
        (void)eng__spent(t, ENG_ATTENTION, start);
        if (quantise) quantise_rows(t, r, end);
    }
}

/* Parts are joined by heads where there are many, into e->att, else by rows, into `to`. */
static void join(struct stage_thread *t, uint32_t layer, bool by_heads, float *to)
{
    if (!by_heads) {
        join_spans(t, layer, to);
        return;
    }
    join_heads(t, layer);
    pool_barrier(t->e->pool);
}

/* Where each thread is to have all rows for itself, it joins them for itself, or quantises what all
 * have written to e->att. */
void eng__attend(struct stage_thread *t, uint32_t layer, bool quantise)
{
    struct engine *e = t->e;
    uint32_t block = eng__block(e, layer);
    bool spans = split_by_spans(e, block, t->n);
    bool by_heads = t->local && e->n_rows * e->n_spans[block] > JOINED_BY_ALL;
    float *to = spans && t->local && !by_heads ? t->norm : e->att;
    t->att = to;
    if (spans) {
        uint64_t start = clock_ns();
        attend_spans(t, layer);
        (void)eng__spent(t, ENG_ATTENTION, start);
    } else {
        attend_rows(t, layer, quantise && !t->local);
    }
    if (spans || t->local) {
        eng__count(t, ENG_ATTENTION);
        pool_barrier(e->pool);
        if (spans) join(t, layer, by_heads, to);
        if (quantise) quantise_rows(t, t->row_a, t->row_b);
    }
    if (!t->local) pool_barrier(e->pool);
    eng__count(t, ENG_ATTENTION);
    eng__count(t, ENG_QUANTISE);
}
