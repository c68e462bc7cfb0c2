/* logits_tool FILE SLICES KV ISA CHUNK THREADS LAST WINDOWED: token ids (int32) on stdin, the
 * logits (f32) of the last LAST positions (0: of all) on stdout, by a chain of engines that hold a
 * slice each. LAST `embedding`: the embedding of the tokens instead. WINDOWED: pages of layers with
 * a window, which are written again and again; 0: all are kept. */
#include "common/base/mem.h"
#include "common/engine/engine.h"
#include "common/engine/pooling.h"
#include "common/io/ring.h"

#include <stdio.h>
#include <stdlib.h>

#define SLICES_MAX 8u
#define TOKENS_MAX 8192u

struct chain {
    struct engine *slice[SLICES_MAX];
    uint32_t n, hidden, vocab, from; /* the first position whose logits are wanted */
    uint32_t *pages;
    double *sum; /* of hidden rows, where the embedding is wanted; else NULL */
    uint32_t window, n_windowed, *windowed; /* by page of the sequence */
};

static int open_chain(struct chain *c, const struct weights *g, enum kv_type kv, const char *isa,
                      uint32_t chunk, unsigned threads, struct errmsg *em)
{
    struct arch_dims d;
    struct ring_use use = {0};
    int rc = arch_read(g, &d, em);
    for (uint32_t i = 0; i < c->n && rc == 0; i++) {
        struct eng_options o = {.weights = g,
                                .layer_first = d.n_layers * i / c->n,
                                .layer_last = d.n_layers * (i + 1) / c->n - 1,
                                .kv = kv,
                                .n_pages = TOKENS_MAX / KV_PAGE,
                                .n_window_pages = c->n_windowed,
                                .rows_max = chunk,
                                .logits_max = chunk,
                                .threads = threads,
                                .isa = isa,
                                .read = ring_read,
                                .read_ctx = &use};
        rc = eng_open(&o, &c->slice[i], em);
    }
    c->hidden = d.hidden;
    c->vocab = d.vocab;
    c->pages = mem_alloc(TOKENS_MAX / KV_PAGE * sizeof *c->pages);
    for (uint32_t i = 0; i < TOKENS_MAX / KV_PAGE; i++) c->pages[i] = TOKENS_MAX / KV_PAGE - 1 - i;
    for (uint32_t b = 0; b < d.n_blocks; b++)
        if (d.blocks[b].window > c->window) c->window = d.blocks[b].window;
    if (!c->n_windowed) return rc;
    c->windowed = mem_alloc(TOKENS_MAX / KV_PAGE * sizeof *c->windowed);
    for (uint32_t i = 0; i < TOKENS_MAX / KV_PAGE; i++)
        c->windowed[i] = c->n_windowed - 1 - i % c->n_windowed;
    return rc;
}

static int step(const struct chain *c, uint32_t first, const int32_t *ids, uint32_t n, float *hop,
                struct errmsg *em)
{
    const float *out = NULL;
    uint32_t wanted = first + n <= c->from ? 0 : first >= c->from ? n : first + n - c->from;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t n_logits = i + 1 < c->n ? 0 : c->sum ? ENG_HIDDEN : wanted;
        struct eng_run run = {first, n, n_logits, ids, .pages = c->pages};
        if (c->windowed) {
            run.window_first = first + 1 > c->window ? (first + 1 - c->window) / KV_PAGE : 0;
            run.window_pages = c->windowed + run.window_first;
        }
        int rc = eng_step(c->slice[i], &run, 1, i ? hop : NULL, &out, em);
        if (rc < 0) return rc;
        if (i + 1 < c->n) memcpy(hop, out, (size_t)n * c->hidden * sizeof *hop);
    }
    if (c->sum) pooling_add(c->sum, eng_hidden(c->slice[c->n - 1]), n, c->hidden);
    for (uint32_t r = 0; r < wanted && !c->sum; r++)
        (void)fwrite(eng_logits(c->slice[c->n - 1], r), sizeof *out, c->vocab, stdout);
    return 0;
}

static int print_embedding(const struct chain *c, struct errmsg *em)
{
    float *values = mem_alloc(c->hidden * sizeof *values);
    int rc = pooling_finish(c->sum, c->hidden, values);
    if (rc < 0) (void)err_set(em, rc, "not finite");
    if (rc == 0) (void)fwrite(values, sizeof *values, c->hidden, stdout);
    mem_free(values);
    return rc;
}

int main(int argc, char **argv)
{
    struct errmsg em = {0};
    struct weights *g = NULL;
    enum kv_type kv;
    static int32_t ids[TOKENS_MAX];
    if (argc != 9 || !eng_kv_parse(argv[3], &kv)) return 2;
    struct chain c = {.n = (uint32_t)atoi(argv[2]), .n_windowed = (uint32_t)atoi(argv[8])};
    uint32_t chunk = (uint32_t)atoi(argv[5]), n = (uint32_t)fread(ids, 4, TOKENS_MAX, stdin);
    uint32_t last = (uint32_t)atoi(argv[7]);
    c.from = last && last < n ? n - last : 0;
    if (c.n == 0 || c.n > SLICES_MAX) return 2;
    int rc = weights_open(argv[1], &g, &em);
    if (rc == 0)
        rc =
            open_chain(&c, g, kv, argv[4][0] ? argv[4] : NULL, chunk, (unsigned)atoi(argv[6]), &em);
    float *hop = rc == 0 ? mem_alloc((size_t)chunk * c.hidden * sizeof *hop) : NULL;
    if (rc == 0 && strcmp(argv[7], "embedding") == 0) c.sum = mem_zalloc(c.hidden * sizeof *c.sum);
    for (uint32_t at = 0; at < n && rc == 0; at += chunk)
        rc = step(&c, at, ids + at, n - at < chunk ? n - at : chunk, hop, &em);
    if (rc == 0 && c.sum) rc = print_embedding(&c, &em);
    for (uint32_t i = 0; i < c.n; i++) eng_close(c.slice[i]);
    mem_free(c.sum);
    mem_free(hop);
    mem_free(c.pages);
    mem_free(c.windowed);
    weights_close(g);
    if (rc < 0) (void)fprintf(stderr, "%s\n", em.text);
    return rc < 0;
}
