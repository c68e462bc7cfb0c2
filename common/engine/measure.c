/* The slice is the model's last layers with the output head: as many as are too large for the CPU's
 * caches, so that weights come from memory as they do in service, and no more than a slow CPU has
 * the time for. Steps of one row at a depth of DEPTH positions, then of more rows; first without
 * logits, which gives the layers, then with logits and the choice of a token, which gives the head.
 *
 * Of several runs the fastest counts: what other processes took of the CPU meanwhile is not the
 * speed of this machine.
 *
 * What a position takes attention is measured with one row at two depths, all of whose keys and
 * values are in the CPU's caches. */
#include "common/engine/measure.h"

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 128u /* positions that the rows of a step attend to, beside themselves */
#define DEEP 384u  /* likewise, for what a position takes */
#define CACHES_LEAST ((uint64_t)32 << 20)
#define CACHES_MOST ((uint64_t)512 << 20)
#define FIRST_MOST_NS                                                                              \
    (40 * NS_PER_MS)                    /* of a step of one row: fewer layers, if it takes longer  \
                                         */
#define POINT_NS (30 * NS_PER_MS)       /* for so long, and RUNS_LEAST times, a point is run */
#define POINT_MOST_NS (500 * NS_PER_MS) /* while others have the CPU, it may be fewer times */
#define RUNS_LEAST 4u
#define ALL_NS                                                                                     \
    (2 * NS_PER_S) /* for layers, a position, the head: each; what is beyond is left out */

/* Rows of steps of which the layers are measured; of those, the first N_HEADS also with logits. */
static const uint32_t rows_of_point[] = {1, 2, 4, 8, 32};
#define N_POINTS (sizeof rows_of_point / sizeof rows_of_point[0])
#define N_HEADS 3u
#define ROWS_MAX 32u
#define LOGITS_MAX 4u
#define N_PAGES ((DEEP + ROWS_MAX) / KV_PAGE)

_Static_assert(N_POINTS <= MEASURE_POINTS && N_HEADS <= N_POINTS, "they fit the figures");
_Static_assert((DEEP + ROWS_MAX) % KV_PAGE == 0 && DEPTH < DEEP, "whole pages for all depths");

/* ---- weights that are made up ---- */

/* The tensor of the model that has this byte of a file. */
static const struct weights_tensor *tensor_with(const struct weights *w, const char *path,
                                                uint64_t offset)
{
    for (size_t i = 0; i < weights_n_tensors(w); i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        if (offset >= t->offset && offset - t->offset < t->bytes &&
            strcmp(weights_path(w, t->file), path) == 0)
            return t;
    }
    return NULL;
}

static uint8_t byte_of(const struct weights_tensor *t)
{
    return t ? quant_made_up(t->type) : 0;
}

/* A source_read_fn: norms, biases and factors of RoPE, which are F32, are ones, all other weights
 * what byte_of says. */
static int make_up(void *ctx, const char *path, const struct extent *extents, size_t n,
                   source_sink_fn sink, void *sink_arg, struct errmsg *em)
{
    const struct weights *w = ctx;
    uint64_t most = 1;
    int rc = 0;
    for (size_t i = 0; i < n; i++)
        if (extents[i].bytes > most) most = extents[i].bytes;
    uint8_t *bytes = mem_pages(most), filled = 0;
    float *ones = mem_pages(most + sizeof(float));
    if (!bytes || !ones) rc = err_set(em, ERR_NOMEM, "no memory to measure a layer with");
    for (size_t i = 0; i < most / sizeof(float) + 1 && rc == 0; i++) ones[i] = 1.0f;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct weights_tensor *t = tensor_with(w, path, extents[i].offset);
        bool f32 = t && t->type == QTYPE_F32;
        if (byte_of(t) != filled) memset(bytes, filled = byte_of(t), most);
        rc = sink(sink_arg, i, f32 ? (const uint8_t *)ones : bytes, em);
    }
    mem_pages_free(bytes, most);
    mem_pages_free(ones, most + sizeof(float));
    return rc;
}

/* ---- a slice to measure ---- */

struct bench {
    const struct measure_options *o;
    struct arch_dims dims;
    struct engine *engine;
    uint32_t n_layers; /* of the slice */
    uint32_t depth;    /* positions before a step's rows */
    float *in;         /* ROWS_MAX rows of activations */
    uint64_t begun_ns;
};

/* The caches that all weights of a stage pass through. */
static uint64_t cache_bytes(void)
{
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t twice = l3 > 0 ? 2 * (uint64_t)l3 : CACHES_LEAST;
    return twice < CACHES_LEAST ? CACHES_LEAST : twice > CACHES_MOST ? CACHES_MOST : twice;
}

static uint32_t first_layer(const struct bench *b)
{
    return b->dims.n_layers - b->n_layers;
}

/* Making the slice is a sign of life too. */
static bool on_progress(void *arg, uint64_t done, uint64_t total)
{
    const struct bench *b = arg;
    (void)done;
    (void)total;
    if (b->o->moves) atomic_fetch_add_explicit(b->o->moves, 1, memory_order_relaxed);
    return true;
}

static int open_slice(struct bench *b, uint32_t n_layers, struct errmsg *em)
{
    eng_close(b->engine);
    b->engine = NULL;
    b->n_layers = n_layers;
    struct eng_options e = {.weights = b->o->weights,
                            .layer_first = first_layer(b),
                            .layer_last = b->dims.n_layers - 1,
                            .kv = b->o->kv,
                            .n_pages = N_PAGES,
                            .rows_max = ROWS_MAX,
                            .logits_max = LOGITS_MAX,
                            .threads = b->o->threads,
                            .room_bytes = b->o->room_bytes,
                            .isa = b->o->isa,
                            .read = make_up,
                            .read_ctx = (void *)(uintptr_t)b->o->weights,
                            .progress = on_progress,
                            .progress_arg = b,
                            .moves = b->o->moves};
    return eng_open(&e, &b->engine, em);
}

/* As many layers as exceed the caches; where memory is short, one. */
static int open_first(struct bench *b, struct errmsg *em)
{
    uint64_t one;
    uint32_t last = b->dims.n_layers - 1;
    int rc = eng_layers_bytes(b->o->weights, &b->dims, last, last, &one, em);
    if (rc < 0) return rc;
    uint64_t n = cache_bytes() / (one ? one : 1) + 1;
    rc = open_slice(b, n < last ? (uint32_t)n : last ? last : 1, em);
    return rc == ERR_NOMEM && b->n_layers > 1 ? open_slice(b, 1, em) : rc;
}

/* One thread's own time on a CPU does not count what others took of it; for several threads there
 * is no such time, since they wait for each other. */
static uint64_t now_ns(const struct bench *b)
{
    return b->o->threads == 1 ? clock_thread_ns() : clock_ns();
}

/* One step; its time. */
static int run(struct bench *b, uint32_t rows, uint32_t logits, uint64_t *ret_ns, struct errmsg *em)
{
    static const int32_t tokens[ROWS_MAX];
    static const uint32_t pages[N_PAGES]; /* all positions in one page: the bytes are the same */
    struct eng_run r = {b->depth, rows, logits, tokens, .pages = pages};
    const float *out;
    if (b->o->goes_on && !b->o->goes_on(b->o->arg)) return err_set(em, ERR_CANCELLED, "given up");
    uint64_t start = now_ns(b);
    int rc = eng_step(b->engine, &r, 1, first_layer(b) ? b->in : NULL, &out, em);
    for (uint32_t i = 0; i < logits && rc == 0; i++) {
        out = eng_logits(b->engine, i);
        if (b->o->choose) b->o->choose(b->o->arg, out);
    }
    *ret_ns = now_ns(b) - start;
    return rc;
}

/* The fastest of several steps; 0: there is no time left for them. */
static int measure(struct bench *b, uint32_t rows, uint32_t logits, uint64_t expected_ns,
                   uint64_t *ret_ns, struct errmsg *em)
{
    uint64_t start = clock_ns(), best = UINT64_MAX, took = 0, passed = 0;
    *ret_ns = 0;
    if (start - b->begun_ns + RUNS_LEAST * expected_ns > ALL_NS) return 0;
    for (uint32_t n = 0;
         n == 0 || (passed < POINT_MOST_NS && (n < RUNS_LEAST || passed < POINT_NS)); n++) {
        int rc = run(b, rows, logits, &took, em);
        if (rc < 0) return rc;
        if (took < best) best = took;
        passed = clock_ns() - start;
    }
    *ret_ns = best ? best : 1;
    return 0;
}

/* ---- the points ---- */

static void add(struct measure_point *list, uint32_t *n, uint32_t rows, uint64_t ns)
{
    list[(*n)++] = (struct measure_point){rows, ns ? ns : 1};
}

/* More rows never take less time, nor more than the same rows in several steps: a point that says
 * otherwise was disturbed. */
static void mend(struct measure_point *list, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        uint64_t most = list[i - 1].ns * list[i].rows / list[i - 1].rows;
        if (list[i].ns > most) list[i].ns = most;
    }
    for (uint32_t i = n; i-- > 1;)
        if (list[i - 1].ns > list[i].ns) list[i - 1].ns = list[i].ns;
}

/* The layers' points; whole_ns: of the slice, for each of them. */
static int measure_layers(struct bench *b, struct measure *s, uint64_t *whole_ns, struct errmsg *em)
{
    for (uint32_t i = 0; i < N_POINTS; i++) {
        uint64_t expected = i ? whole_ns[i - 1] * rows_of_point[i] / rows_of_point[i - 1] : 0;
        int rc = measure(b, rows_of_point[i], 0, expected, &whole_ns[i], em);
        if (rc < 0) return rc;
        if (whole_ns[i] == 0) break;
        add(s->layer, &s->n_layer, rows_of_point[i], whole_ns[i] / b->n_layers);
    }
    mend(s->layer, s->n_layer);
    return 0;
}

/* A head's time is a difference: the layers are measured once more beside it, since neither of the
 * two may be what was disturbed. */
static int measure_heads(struct bench *b, struct measure *s, const uint64_t *whole_ns,
                         struct errmsg *em)
{
    uint64_t before = 0, again;
    for (uint32_t i = 0; i < N_HEADS && i < s->n_layer; i++) {
        uint64_t expected = i ? before * rows_of_point[i] / rows_of_point[i - 1] : 0, ns;
        int rc = measure(b, rows_of_point[i], rows_of_point[i], expected, &ns, em);
        if (rc < 0) return rc;
        if (ns == 0) break;
        before = ns;
        rc = measure(b, rows_of_point[i], 0, 0, &again, em);
        if (rc < 0) return rc;
        uint64_t whole = again && again < whole_ns[i] ? again : whole_ns[i];
        add(s->head, &s->n_head, rows_of_point[i], ns > whole ? ns - whole : 1);
    }
    mend(s->head, s->n_head);
    return 0;
}

/* What a position takes is a difference, too. It is never more than all of a row's time, divided by
 * the positions: then only attention would take any. */
static int measure_position(struct bench *b, struct measure *s, uint64_t whole_ns,
                            struct errmsg *em)
{
    uint64_t deep, again;
    s->depth = DEPTH;
    b->depth = DEEP;
    int rc = measure(b, 1, 0, whole_ns, &deep, em);
    b->depth = DEPTH;
    if (rc == 0) rc = measure(b, 1, 0, whole_ns, &again, em);
    if (rc < 0 || deep == 0 || again == 0) return rc;
    if (again > whole_ns) again = whole_ns;
    uint64_t ps = deep > again ? (deep - again) * 1000 / b->n_layers / (DEEP - DEPTH) : 0;
    uint64_t most = again * 1000 / b->n_layers / DEPTH;
    s->position_ps = ps < most ? ps : most;
    return 0;
}

static int measure_all(struct bench *b, struct measure *ret, struct errmsg *em)
{
    struct measure s = {.n_layer = 0};
    uint64_t whole_ns[N_POINTS] = {0}, took = 0, bytes = 0;
    int rc = open_first(b, em);
    if (rc == 0) rc = run(b, 1, 0, &took, em); /* the first also touches the memory */
    if (rc == 0) rc = run(b, 1, 0, &took, em);
    if (rc == 0 && took > FIRST_MOST_NS && b->n_layers > 1) {
        uint64_t n = b->n_layers * FIRST_MOST_NS / took;
        rc = open_slice(b, n ? (uint32_t)n : 1, em);
        if (rc == 0) rc = run(b, 1, 0, &took, em);
    }
    b->begun_ns = clock_ns();
    if (rc == 0) rc = measure_layers(b, &s, whole_ns, em);
    b->begun_ns = clock_ns();
    if (rc == 0) rc = measure_position(b, &s, whole_ns[0], em);
    b->begun_ns = clock_ns();
    if (rc == 0) rc = measure_heads(b, &s, whole_ns, em);
    if (rc == 0)
        rc = eng_layers_bytes(b->o->weights, &b->dims, first_layer(b), b->dims.n_layers - 1, &bytes,
                              em);
    if (rc < 0) return rc;
    s.layer_bytes = bytes / b->n_layers ? bytes / b->n_layers : 1;
    *ret = s;
    return 0;
}

/* ---- all of it ---- */

int measure_model(const struct measure_options *o, struct measure *ret, struct errmsg *em)
{
    struct bench b = {.o = o, .depth = DEPTH};
    int rc = arch_read(o->weights, &b.dims, em);
    if (rc < 0) return rc;
    b.in = mem_try_zeroed((size_t)ROWS_MAX * b.dims.hidden, sizeof *b.in);
    rc = b.in ? measure_all(&b, ret, em)
              : err_set(em, ERR_NOMEM, "no memory for %u rows of activations", ROWS_MAX);
    eng_close(b.engine);
    mem_free(b.in);
    return rc;
}
