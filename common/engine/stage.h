/* The engine's state, shared by engine.c (the door), stage.c (the phases of a step), attend.c (its
 * attention), few.c, size.c and nothing else. */
#ifndef FLOTILLA_ENGINE_STAGE_H
#define FLOTILLA_ENGINE_STAGE_H

#include "common/engine/engine.h"
#include "common/engine/model.h"

#include "common/base/clock.h"
#include "common/base/pool.h"

/* Below this many rows for each thread, attention is also split by spans where there is room for
 * the partial results, for which at most SPLIT_PARTS_BYTES are set aside. */
#define ROWS_FOR_SPLIT 4u
#define SPLIT_PARTS_BYTES ((size_t)32 << 20)

/* Logits are held for as many rows as fit into LOGITS_BYTES. More rows have theirs computed in
 * groups, each of which reads the output head anew; so a group should have enough rows to keep the
 * cores busy while the head is read. Where it has more than LOGITS_PASS, which the widest kernel
 * computes at once, it is a multiple of that. */
#define LOGITS_BYTES ((size_t)16 << 20)
#define LOGITS_PASS 8u

/* In a step of so few rows each thread norms and quantises all of them for itself, which takes less
 * time than a barrier. */
#define LOCAL_ROWS 8u

struct row {
    uint32_t pos;
    int32_t token;
    const uint32_t *pages;        /* of all positions */
    const uint32_t *window_pages; /* where layers with a window have their own: from window_at on */
    uint32_t window_at;           /* a position */
};

struct engine {
    struct model model;
    const struct kern *kern;
    struct pool *pool;
    enum kv_type kv;
    uint32_t n_pages, rows_max, logits_max;
    uint32_t n_window_pages;       /* 0: layers with a window have n_pages */
    uint32_t window;               /* the widest of layers with pages of their own; 0: none has */
    uint64_t ctx;                  /* positions of one sequence, at most */
    uint8_t *pool_kv;              /* [layer][page][kv head][keys, values] */
    size_t head_bytes, page_bytes; /* its strides, */
    size_t layer_at[ARCH_LAYERS_MAX]; /* and where each layer of the slice begins */
    double *inv_freq[ARCH_BLOCKS_MAX], magnitude[ARCH_BLOCKS_MAX]; /* by block, like the next two */
    /* the step at hand */
    struct row *rows;
    /* Indices of the rows that want logits, and of those that want to be hidden rows. */
    uint32_t *logit_rows, *hidden_rows;
    uint32_t n_rows, n_logits, n_hidden;
    uint32_t head_row, n_head; /* the rows whose logits are held: [head_row, head_row + n_head) of
                                  n_logits */
    uint32_t n_spans[ARCH_BLOCKS_MAX]; /* the most that a row sees, by block */
    const uint8_t *in;                 /* of eng_step */
    /* buffers (stage.c), and floats from one row of them to the next */
    float *x, *norm, *qkv, *att, *gate, *up, *tmp, *cs[ARCH_BLOCKS_MAX], *logits;
    size_t ld_q, ld_kv, ld_qkv, ld_ffn, ld_tmp, ld_logits;
    uint32_t logits_rows; /* room in `logits` */
    /* Quantised activations: rows that products read, in several shapes (eng__act_of), and those of
     * the feed-forward's second. Each one's k is the widest that it has room for. */
    struct act act, ffn_act;
    uint8_t *own; /* [thread] what a thread has for itself where rows are few: see use_own */
    size_t own_bytes;
    atomic_uint *head_panels; /* of query heads, then of KV heads: panels that are projected */
    struct attn_part *parts;  /* [row][span][head] when split by spans, else [thread][span][head] */
    size_t n_parts;           /* room in it */
    uint8_t *scratch;         /* one for each thread */
    size_t scratch_bytes;
    struct eng_stats stats;
    atomic_ullong *moves;   /* of eng_options */
    struct stats *dispatch; /* [thread][op], each of one thread */
    unsigned n_threads;
};

/* Partial results of attention that steps may need at once, in a context of so many positions. */
size_t eng__parts(const struct arch_dims *d, uint64_t ctx, unsigned threads);

/* What each thread has for itself for up to LOCAL_ROWS rows: floats of the stream, floats and
 * quantised values of what products read. */
size_t eng__own_bytes(const struct arch_dims *d, uint32_t rows_max);

/* The widest that products read but for the feed-forward's second one. */
static inline uint32_t eng__act_width(const struct arch_dims *d)
{
    uint32_t q = d->n_heads * d->head_size;
    return q > d->hidden ? q : d->hidden;
}

/* Rows whose logits are held at once, of at most logits_max in a step. */
uint32_t eng__logits_rows(const struct arch_dims *d, uint32_t logits_max);

/* Thread `idx` of n takes items [*a, *b) of `total`. */
static inline void eng__share(uint32_t total, unsigned idx, unsigned n, uint32_t *a, uint32_t *b)
{
    *a = (uint32_t)((uint64_t)total * idx / n);
    *b = (uint32_t)((uint64_t)total * (idx + 1) / n);
}

static inline bool eng__is_quantised(const struct mat *m)
{
    return !qtype_is_float(m->type);
}

/* A thread of the pool in a step. */
struct stage_thread {
    struct engine *e;
    unsigned idx, n;
    void *scratch;
    bool local; /* rows are few: `x`, `norm` and `act` are this thread's own, else all threads' */
    uint32_t row_a, row_b; /* the rows that it norms and quantises: its share, or all if local */
    float *x, *norm;       /* [row][hidden] */
    const float *att;      /* [row][q]: of the layer at hand */
    struct act act;
    /* The projection in tmp is still to be added to x, normalised if the norm has weights. */
    bool due;
    struct kern_norm due_norm;
    uint64_t ns[ENG_N_OPS]; /* spent in the phase at hand */
};

/* Adds what has passed since `start` to the phase's time; returns the time now. */
static inline uint64_t eng__spent(struct stage_thread *t, enum eng_op op, uint64_t start)
{
    uint64_t now = clock_ns();
    t->ns[op] += now - start;
    return now;
}

/* A phase ends: its time is one duration. */
static inline void eng__count(struct stage_thread *t, enum eng_op op)
{
    if (t->ns[op]) stats_record_own(&t->e->dispatch[t->idx * ENG_N_OPS + op], t->ns[op]);
    t->ns[op] = 0;
}

/* The thread's activations as n rows of k values. */
static inline struct act eng__act_of(const struct stage_thread *t, uint32_t n, uint32_t k)
{
    struct act a = t->act;
    a.n_tokens = n;
    a.k = k;
    return a;
}

/* The index of the block of a layer of the slice. */
static inline uint32_t eng__block(const struct engine *e, uint32_t layer)
{
    return e->model.dims.block_of[e->model.layer_first + layer];
}

/* The keys and values that a row sees in a layer. *ret_at: the position, a multiple of KV_PAGE,
 * from which on the view counts positions. */
static inline struct kv_view eng__kv_view(const struct engine *e, uint32_t layer, uint32_t head,
                                          const struct row *row, uint32_t *ret_at)
{
    bool own = e->n_window_pages && e->model.dims.blocks[eng__block(e, layer)].window;
    *ret_at = own ? row->window_at : 0;
    return (struct kv_view){e->kv, e->model.dims.head_size,
                            e->pool_kv + e->layer_at[layer] + head * e->head_bytes, e->page_bytes,
                            own ? row->window_pages : row->pages};
}

/* Keys and values to be quantised are Hadamard-transformed first, so that one large element does
 * not set the scale of its whole block. Mean KL from F32 keys and values on 510 tokens, without and
 * with: Q4_0 0.150 and 0.059 (SmolLM2), 0.143 and 0.061 (Gemma 3 270M); Q8_0 0.0050 and 0.0041,
 * 0.0049 and 0.0037. A transform over whole heads made Gemma's Q4_0 worse (0.167). */
static inline bool eng__transforms(const struct engine *e)
{
    return e->kv > KV_F16;
}

/* The positions [first, end) that a row sees in a layer with a window (0: none), and the spans that
 * they lie in. */
struct sight {
    uint32_t first, end; /* positions */
    uint32_t span, n_spans;
};

static inline struct sight eng__sight(uint32_t window, uint32_t pos)
{
    struct sight s = {.end = pos + 1};
    if (window && s.end > window) s.first = s.end - window;
    s.span = s.first / ATTN_SPAN;
    s.n_spans = pos / ATTN_SPAN - s.span + 1;
    return s;
}

/* size.c: ERR_NOMEM, and nothing was read, if what is asked for needs more than o->room_bytes. */
int eng__check_room(const struct eng_options *o, struct errmsg *em);

/* few.c: measures and sets `few` of every matrix that products read. The engine is open otherwise.
 */
void eng__choose_few(struct engine *e);

/* A step, as a pool_fn; arg is the engine, whose rows have been checked. */
void eng__run_step(void *arg, unsigned idx, unsigned n);
/* The logits of rows [head_row, head_row + n_head) of the step before, likewise. */
void eng__run_head(void *arg, unsigned idx, unsigned n);

/* The attention of every row's queries in qkv over its pages: t->att, and, if `quantise`, t->act.
 * On return all rows are complete. */
void eng__attend(struct stage_thread *t, uint32_t layer, bool quantise);

#endif
