/* A whole GGUF file in memory: the engine is opened on it as programs do, and a few steps are run
 * with every KV type. Any bytes give an error, or an engine whose steps end. */
#include "common/base/mem.h"
#include "common/engine/engine.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define LAYERS_MAX 8u
#define ROWS 5u
#define PAGES 3u
/* Larger models are refused by no rule, but would make the fuzzer slow. */
#define WIDTH_MAX 4096u

struct file {
    const uint8_t *data;
    size_t size;
};

/* A source_read_fn; each extent in memory of its own, so that a sanitizer sees its end. */
static int read_memory(void *ctx, const char *path, const struct extent *x, size_t n,
                       source_sink_fn sink, void *arg, struct errmsg *em)
{
    (void)path;
    const struct file *f = ctx;
    for (size_t i = n; i-- > 0;) { /* any order will do */
        fuzz_check(x[i].offset <= f->size && x[i].bytes <= f->size - x[i].offset);
        uint8_t *copy = mem_alloc((size_t)x[i].bytes);
        memcpy(copy, f->data + x[i].offset, (size_t)x[i].bytes);
        int rc = sink(arg, i, copy, em);
        mem_free(copy);
        if (rc < 0) return rc;
    }
    return 0;
}

static volatile float sum; /* of all logits, so that each is read */

static void run_steps(struct engine *e, const struct arch_dims *d)
{
    struct errmsg em;
    int32_t ids[4 * ROWS];
    const uint32_t pages[PAGES] = {2, 0, 1};
    const float *out;
    for (uint32_t i = 0; i < 4 * ROWS; i++) ids[i] = (int32_t)(i * 7 % d->vocab);
    for (uint32_t at = 0; at < 4 * ROWS; at += ROWS) {
        const struct eng_run r = {at, ROWS, 2, ids + at, .pages = pages};
        fuzz_check(eng_step(e, &r, 1, NULL, &out, &em) == 0);
        for (uint32_t i = 0; i < d->vocab; i++) sum += out[i];
        out = eng_logits(e, 1);
        for (uint32_t i = 0; i < d->vocab; i++) sum += out[i];
    }
}

static void load(const struct weights *g, const struct arch_dims *d, struct file *f)
{
    static const char *const isas[] = {NULL, "scalar"};
    uint32_t idx[64], n = 0;
    struct errmsg em;
    (void)eng_slice_tensors(g, d, 0, d->n_layers - 1, idx, 64, &n, &em);
    for (uint32_t i = 0; i < n; i++) fuzz_check(idx[i] < weights_n_tensors(g));
    for (int kv = 0; kv < KV_N_TYPES; kv++) {
        struct engine *e = NULL;
        struct eng_options o = {.weights = g,
                                .layer_last = d->n_layers - 1,
                                .kv = (enum kv_type)kv,
                                .n_pages = PAGES,
                                .rows_max = ROWS,
                                .logits_max = 2,
                                .threads = 1,
                                .isa = isas[(f->size + (size_t)kv) % 2],
                                .read = read_memory,
                                .read_ctx = f};
        if (eng_open(&o, &e, &em) < 0) continue;
        run_steps(e, d);
        eng_close(e);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct errmsg em = {0};
    struct weights *g;
    struct arch_dims d;
    struct file f = {data, size};
    if (weights_parse(data, size, size, &g, &em) < 0) return 0;
    if (arch_read(g, &d, &em) == 0) {
        (void)arch_unread(g, &em);
        if (d.n_layers <= LAYERS_MAX && d.hidden <= WIDTH_MAX && d.ffn <= WIDTH_MAX &&
            d.n_heads * d.head_size <= WIDTH_MAX)
            load(g, &d, &f);
    }
    weights_close(g);
    return 0;
}
