#include "worker/stage_work.h"

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/engine/engine.h"
#include "common/io/ring.h"
#include "common/text/sample.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

_Static_assert(LIMIT_PAGE == KV_PAGE && LIMIT_STEP_ROWS <= ENG_ROWS_MAX,
               "what a Step may carry, the engine can run");

/* A request's sampling state on the last stage, from its first row that wants logits to its end. */
struct sampler {
    struct sample_params params;
};

struct stage_work {
    struct msg_assign assign;
    struct engine *engine;
    struct eng_run runs[LIMIT_STEP_RUNS];
    struct msg_run_result results[LIMIT_STEP_RUNS];
    int32_t tokens[LIMIT_STEP_LOGITS];
    struct sampler *samplers; /* 2 * LIMIT_LIVE slots */
    uint32_t *free_samplers, n_free;
    struct imap by_request;
    struct sample_candidate *candidates;
};

static void find_path(const struct stage_work_options *o, char *ret, size_t size)
{
    const char *path = o->assign->model_path, *slash = strrchr(path, '/');
    if (o->models)
        (void)snprintf(ret, size, "%s/%s", o->models, slash ? slash + 1 : path);
    else
        (void)snprintf(ret, size, "%s", path);
}

static int open_engine(struct stage_work *w, const struct stage_work_options *o, const char *path,
                       const struct gguf *g, struct errmsg *em)
{
    if (gguf_digest(g) != o->assign->model_digest)
        return err_set(em, ERR_FORMAT, "%s is not the coordinator's model", path);
    if (o->assign->kv_type >= KV_N_TYPES)
        return err_set(em, ERR_UNSUPPORTED, "KV type %" PRIu32, o->assign->kv_type);
    struct ring_file file = {.path = path};
    struct eng_options e = {.path = path,
                            .gguf = g,
                            .layer_first = o->assign->layer_first,
                            .layer_last = o->assign->layer_last,
                            .kv = (enum kv_type)o->assign->kv_type,
                            .n_pages = o->assign->n_pages,
                            .rows_max = o->assign->rows_max,
                            .logits_max = o->assign->logits_max,
                            .threads = o->threads,
                            .isa = o->isa,
                            .read = ring_read,
                            .read_ctx = &file,
                            .progress = o->progress,
                            .progress_arg = o->progress_arg};
    return eng_open(&e, &w->engine, em);
}

int stage_work_open(const struct stage_work_options *o, struct stage_work **ret, struct errmsg *em)
{
    char path[2 * LIMIT_PATH_BYTES];
    struct gguf *g;
    find_path(o, path, sizeof path);
    int rc = gguf_open(path, &g, em);
    if (rc < 0) return rc;
    struct stage_work *w = mem_zalloc(sizeof *w);
    w->assign = *o->assign;
    rc = open_engine(w, o, path, g, em);
    gguf_close(g);
    if (rc < 0) {
        mem_free(w);
        return rc;
    }
    w->samplers = mem_zalloc(2 * LIMIT_LIVE * sizeof *w->samplers);
    w->free_samplers = mem_zalloc(2 * LIMIT_LIVE * sizeof *w->free_samplers);
    w->candidates = mem_zalloc(eng_dims(w->engine)->vocab * sizeof *w->candidates);
    stage_work_reset(w);
    *ret = w;
    return 0;
}

void stage_work_close(struct stage_work *w)
{
    if (!w) return;
    eng_close(w->engine);
    imap_close(&w->by_request);
    mem_free(w->samplers);
    mem_free(w->free_samplers);
    mem_free(w->candidates);
    mem_free(w);
}

bool stage_work_fits(const struct stage_work *w, const struct msg_assign *a)
{
    const struct msg_assign *b = &w->assign;
    return a->model_digest == b->model_digest && a->layer_first == b->layer_first &&
           a->layer_last == b->layer_last && a->kv_type == b->kv_type && a->n_pages == b->n_pages &&
           a->rows_max == b->rows_max && a->logits_max == b->logits_max;
}

void stage_work_reset(struct stage_work *w)
{
    imap_close(&w->by_request);
    imap_reserve(&w->by_request, 2 * LIMIT_LIVE);
    w->n_free = 2 * LIMIT_LIVE;
    for (uint32_t i = 0; i < w->n_free; i++) w->free_samplers[i] = i;
}

void stage_work_rouse(struct stage_work *w)
{
    eng_rouse(w->engine);
}

struct msg_holding stage_work_holding(const struct stage_work *w)
{
    return (struct msg_holding){w->assign.model_digest, w->assign.layer_first,
                                w->assign.layer_last};
}

uint32_t stage_work_width(const struct stage_work *w)
{
    return eng_dims(w->engine)->hidden;
}

bool stage_work_is_last(const struct stage_work *w)
{
    return w->assign.layer_last == eng_dims(w->engine)->n_layers - 1;
}

void stage_work_memory(const struct stage_work *w, struct msg_heartbeat *h)
{
    struct eng_stats s = eng_stats(w->engine);
    h->read_bytes = s.read_bytes;
    h->weights_bytes = s.weights_bytes;
    h->kv_bytes = s.kv_bytes;
}

/* ---- sampling state ---- */

static void open_sampler(struct stage_work *w, const struct msg_run *r)
{
    const uint32_t *known = imap_get(&w->by_request, r->request);
    if (!known && w->n_free == 0) return; /* beyond every limit: the run then has no state */
    uint32_t slot = known ? *known : w->free_samplers[--w->n_free];
    if (!known) imap_put(&w->by_request, r->request, slot);
    w->samplers[slot] =
        (struct sampler){{r->open.temp, r->open.top_k, r->open.top_p, r->open.min_p, r->open.seed}};
}

static void close_samplers(struct stage_work *w, const struct msg_step *s)
{
    for (uint32_t i = 0; i < s->n_closed; i++) {
        const uint32_t *slot = imap_get(&w->by_request, s->closed[i]);
        if (!slot) continue;
        w->free_samplers[w->n_free++] = *slot;
        imap_remove(&w->by_request, s->closed[i]);
    }
}

/* Chooses the tokens after the run's last rows. */
static void choose(struct stage_work *w, const struct msg_run *r, const float *logits,
                   int32_t *tokens, struct msg_run_result *ret)
{
    const uint32_t *slot = imap_get(&w->by_request, r->request);
    uint32_t vocab = eng_dims(w->engine)->vocab, first = r->first_pos + r->n_rows - r->n_logits + 1;
    *ret = (struct msg_run_result){.request = r->request,
                                   .attempt = r->attempt,
                                   .sample = r->sample,
                                   .first_pos = first,
                                   .tokens = tokens};
    if (!slot) {
        ret->error = "the last stage has no sampling state for this request";
        return;
    }
    for (uint32_t i = 0; i < r->n_logits; i++) {
        tokens[i] = sample_choose(&w->samplers[*slot].params, r->sample, first + i,
                                  logits + i * eng_logits_stride(w->engine), vocab, w->candidates);
        if (tokens[i] < 0) {
            ret->error = "the model gave logits that are not finite";
            return;
        }
        ret->n_tokens++;
    }
}

static void finish(struct stage_work *w, const struct msg_step *s, const float *logits,
                   struct msg_result *ret)
{
    *ret = (struct msg_result){.epoch = s->epoch, .number = s->number, .runs = w->results};
    uint32_t row = 0;
    for (uint32_t i = 0; i < s->n_runs; i++) {
        const struct msg_run *r = &s->runs[i];
        const float *at = logits + row * eng_logits_stride(w->engine);
        if (r->n_logits == 0) continue;
        if (r->kind == RUN_PROBE)
            ret->digest = hash_bytes(at, eng_dims(w->engine)->vocab * sizeof *at, 0);
        else
            choose(w, r, at, w->tokens + row, &w->results[ret->n_runs++]);
        row += r->n_logits;
    }
}

int stage_work_step(struct stage_work *w, const struct msg_step *s, const void *activations,
                    struct stage_output *ret, struct errmsg *em)
{
    bool first = w->assign.layer_first == 0, last = stage_work_is_last(w);
    if (s->width != stage_work_width(w) || (s->frame_bytes != 0) == first)
        return err_set(em, ERR_PROTO,
                       "Step %" PRIu64 " does not fit this stage: width %" PRIu32 ", %" PRIu64
                       " bytes",
                       s->number, s->width, s->frame_bytes);
    for (uint32_t i = 0; i < s->n_runs; i++) {
        const struct msg_run *r = &s->runs[i];
        w->runs[i] =
            (struct eng_run){r->first_pos, r->n_rows, last ? r->n_logits : 0, r->tokens, r->pages};
        if (last && r->has_open) open_sampler(w, r);
    }
    const float *out;
    int rc = eng_step(w->engine, w->runs, s->n_runs, activations, &out, em);
    if (rc < 0) return err_wrap(em, ERR_PROTO, "Step %" PRIu64, s->number);
    ret->activations = out;
    if (last) {
        finish(w, s, out, &ret->result);
        close_samplers(w, s);
    }
    return 0;
}
