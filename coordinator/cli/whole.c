#include "coordinator/cli/whole.h"

#include "common/base/clock.h"
#include "common/base/machine.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/progress.h"
#include "common/io/ring.h"

int whole_open(const struct model_file *f, const struct whole_options *o, struct whole *ret,
               struct errmsg *em)
{
    enum kv_type kv = KV_F16;
    if (o->kv && !eng_kv_parse(o->kv, &kv))
        return err_set(em, ERR_CONF, "--kv: '%s' is unknown (f32, f16, q8_0, q4_0)", o->kv);
    int rc = eng_kv_check(&f->dims, kv, em); /* before hours of loading */
    if (rc < 0) return err_wrap(em, rc, "--kv");
    struct ring_use use = {0};
    struct machine_memory memory = machine_memory("");
    uint64_t free = machine_free(&memory), room = free;
    if (free != UINT64_MAX) { /* as for a pool of a cluster whose size somebody has named */
        uint64_t reserve = machine_reserve(free) / 2;
        room = free > reserve ? free - reserve : 1;
    }
    struct progress progress = {.what = "loading"};
    struct eng_options e = {.weights = f->weights,
                            .layer_last = f->dims.n_layers - 1,
                            .kv = kv,
                            .n_pages = o->positions / KV_PAGE + 1,
                            .ctx = o->context,
                            .rows_max = o->chunk,
                            .logits_max = o->logits ? o->logits : 1,
                            .threads = o->threads ? o->threads : pool_cores(),
                            .room_bytes = room,
                            .isa = o->isa,
                            .read = ring_read,
                            .read_ctx = &use,
                            .progress = progress_update,
                            .progress_arg = &progress};
    rc = eng_open(&e, &ret->engine, em);
    if (rc < 0) return rc;
    ret->pages = mem_alloc(e.n_pages * sizeof *ret->pages);
    for (uint32_t i = 0; i < e.n_pages; i++) ret->pages[i] = i;
    return 0;
}

void whole_close(struct whole *w)
{
    eng_close(w->engine);
    mem_free(w->pages);
    *w = (struct whole){0};
}

int whole_step(struct whole *w, uint32_t first_pos, const int32_t *tokens, uint32_t n,
               uint32_t n_logits, const float **ret_logits, struct errmsg *em)
{
    struct eng_run run = {first_pos, n, n_logits, tokens, .pages = w->pages};
    const float *out;
    int rc = eng_step(w->engine, &run, 1, NULL, &out, em);
    if (rc == 0 && n_logits) *ret_logits = out;
    return rc;
}

int whole_measure(struct whole *w, const struct whole_work *work, double *ret_prompt,
                  double *ret_decode, struct errmsg *em)
{
    uint32_t vocab = eng_dims(w->engine)->vocab;
    const float *logits;
    int32_t *tokens = mem_alloc(work->chunk * sizeof *tokens);
    for (uint32_t i = 0; i < work->chunk; i++) tokens[i] = (int32_t)((i * 7919u + 11u) % vocab);
    int rc = whole_step(w, 0, tokens, 1, 1, &logits, em); /* warm up: page tables, threads */
    uint64_t start = clock_ns();
    for (uint32_t at = 0; at < work->prompt && rc == 0; at += work->chunk) {
        uint32_t left = work->prompt - at, rows = left < work->chunk ? left : work->chunk;
        rc = whole_step(w, work->prompt_at + at, tokens, rows, 1, &logits, em);
    }
    uint64_t middle = clock_ns();
    for (uint32_t i = 0; i < work->tokens && rc == 0; i++)
        rc = whole_step(w, work->depth + i, tokens + i % work->chunk, 1, 1, &logits, em);
    uint64_t end = clock_ns();
    if (work->prompt && rc == 0)
        *ret_prompt = (double)work->prompt * 1e9 / (double)(middle - start);
    if (work->tokens && rc == 0) *ret_decode = (double)work->tokens * 1e9 / (double)(end - middle);
    mem_free(tokens);
    return rc;
}
