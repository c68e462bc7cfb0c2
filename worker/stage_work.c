#include "worker/stage_work.h"

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/machine.h"
#include "common/base/mem.h"
#include "common/base/prom.h"
#include "common/engine/engine.h"
#include "common/io/ring.h"
#include "common/text/chooser.h"
#include "worker/constrain.h"
#include "worker/sums.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

_Static_assert(LIMIT_PAGE == KV_PAGE && LIMIT_STEP_ROWS <= ENG_ROWS_MAX,
               "the engine can run whatever a Step may carry");

/* A request's sampling parameters on the last stage: from its first row that wants logits until it
 * is closed. */
struct sampler {
    struct sampling sampling; /* its bias is in the arrays below */
    int32_t bias_ids[SAMPLING_BIASES_MAX];
    float bias[SAMPLING_BIASES_MAX];
    uint32_t boundary; /* the first position that is not the prompt's */
    /* What was chosen after the last live row, and where: the row there is live if it has it. */
    uint32_t next;
    int32_t token;
    struct constraint *constraint; /* of its answer's form, or NULL */
    char wrong[128];               /* why it cannot be constrained as it asks, or "" */
};

/* Log-probabilities of a Step's tokens, by row of logits. A run's alternatives lie side by side
 * from its first row on. */
struct logprobs {
    float chosen[LIMIT_STEP_LOGITS];
    int32_t ids[LIMIT_STEP_LOGITS * SAMPLING_TOP_MAX];
    float top[LIMIT_STEP_LOGITS * SAMPLING_TOP_MAX];
};

/* Requests that ended keep their slot until a later Step closes them. */
#define SLOTS (2u * LIMIT_LIVE)

struct stage_work {
    struct msg_assign assign; /* without the hashes */
    struct engine *engine;
    struct eng_run runs[LIMIT_STEP_RUNS];
    struct msg_run_result results[LIMIT_STEP_RUNS];
    int32_t tokens[LIMIT_STEP_LOGITS];
    struct sampler *samplers; /* SLOTS of them */
    uint32_t *free_samplers, n_free;
    struct imap by_request;
    struct chooser *chooser;
    struct constrain *constrain; /* NULL, unless this is the last stage, like the next one */
    struct sums *sums;
    /* Token ids by KV page, as keys and values are: the tokens before a position are found through
     * the run's own pages, whichever request wrote them. */
    int32_t *page_tokens;
    struct logprobs *logprobs;
    atomic_ullong *moves; /* of its options */
};

void stage_work_path(const char *models, const char *model_path, char *ret, size_t size)
{
    const char *slash = strrchr(model_path, '/');
    if (models)
        (void)snprintf(ret, size, "%s/%s", models, slash ? slash + 1 : model_path);
    else
        (void)snprintf(ret, size, "%s", model_path);
}

static int open_engine(struct stage_work *w, const struct stage_work_options *o,
                       const struct weights *model, struct errmsg *em)
{
    if (weights_digest(model) != o->assign->header_digest)
        return err_set(em, ERR_FORMAT, "%s is not the coordinator's model", weights_path(model, 0));
    if (o->assign->kv_type >= KV_N_TYPES)
        return err_set(em, ERR_UNSUPPORTED, "KV type %" PRIu32 " is unknown", o->assign->kv_type);
    struct ring_use use = {0};
    struct machine_memory memory = machine_memory("");
    uint64_t room = machine_free(&memory);
    struct eng_options e = {.weights = model,
                            .layer_first = o->assign->layer_first,
                            .layer_last = o->assign->layer_last,
                            .kv = (enum kv_type)o->assign->kv_type,
                            .n_pages = o->assign->n_pages,
                            .n_window_pages = o->assign->n_window_pages,
                            .ctx = o->assign->ctx,
                            .hashes = o->assign->tensor_hashes,
                            .n_hashes = o->assign->n_tensors,
                            .rows_max = o->assign->rows_max,
                            .logits_max = o->assign->logits_max,
                            .threads = o->threads,
                            .room_bytes = room ? room : 1, /* 0 would mean any */
                            .isa = o->isa,
                            .read = ring_read,
                            .read_ctx = &use,
                            .progress = o->progress,
                            .progress_arg = o->progress_arg,
                            .moves = o->moves};
    return eng_open(&e, &w->engine, em);
}

static int open_tables(struct stage_work *w, const struct weights *model, struct errmsg *em)
{
    w->samplers = mem_try_zeroed(SLOTS, sizeof *w->samplers);
    w->free_samplers = mem_try_zeroed(SLOTS, sizeof *w->free_samplers);
    w->page_tokens = mem_try_zeroed((size_t)w->assign.n_pages * LIMIT_PAGE, sizeof *w->page_tokens);
    w->logprobs = mem_try_zeroed(1, sizeof *w->logprobs);
    if (!w->samplers || !w->free_samplers || !w->page_tokens || !w->logprobs ||
        imap_reserve(&w->by_request, SLOTS) < 0)
        return err_set(em, ERR_NOMEM, "no memory for sampling state of %" PRIu32 " pages",
                       w->assign.n_pages);
    int rc = chooser_open(eng_dims(w->engine)->vocab, &w->chooser, em);
    if (rc == 0 && stage_work_is_last(w)) rc = constrain_open(model, w->chooser, &w->constrain, em);
    if (rc == 0 && stage_work_is_last(w)) rc = sums_open(stage_work_width(w), &w->sums, em);
    return rc;
}

int stage_work_open(const struct stage_work_options *o, struct stage_work **ret, struct errmsg *em)
{
    char path[2 * LIMIT_PATH_BYTES];
    struct weights *model;
    stage_work_path(o->models, o->assign->model_path, path, sizeof path);
    int rc = weights_open(path, &model, em);
    if (rc < 0) return rc;
    struct stage_work *w = mem_zalloc(sizeof *w);
    w->assign = *o->assign;
    w->moves = o->moves;
    rc = open_engine(w, o, model, em);
    w->assign.tensor_hashes = NULL; /* the caller's */
    if (rc == 0) rc = open_tables(w, model, em);
    weights_close(model);
    mem_trim(); /* the file's header and vocabulary, and what it took to look into them */
    if (rc < 0) {
        stage_work_close(w);
        return rc;
    }
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
    mem_free(w->page_tokens);
    mem_free(w->logprobs);
    chooser_close(w->chooser);
    constrain_close(w->constrain);
    sums_close(w->sums);
    mem_free(w);
}

bool stage_work_fits(const struct stage_work *w, const struct msg_assign *a)
{
    return stage_work_alike(&w->assign, a);
}

bool stage_work_alike(const struct msg_assign *a, const struct msg_assign *b)
{
    return a->model_digest == b->model_digest && a->layer_first == b->layer_first &&
           a->layer_last == b->layer_last && a->kv_type == b->kv_type && a->n_pages == b->n_pages &&
           a->n_window_pages == b->n_window_pages && a->ctx == b->ctx &&
           a->rows_max == b->rows_max && a->logits_max == b->logits_max && a->threads == b->threads;
}

void stage_work_reset(struct stage_work *w)
{
    imap_clear(&w->by_request);
    if (w->constrain) constrain_reset(w->constrain);
    if (w->sums) sums_reset(w->sums);
    w->n_free = SLOTS;
    for (uint32_t i = 0; i < w->n_free; i++) w->free_samplers[i] = i;
}

void stage_work_wake(struct stage_work *w)
{
    eng_wake(w->engine);
}

struct msg_holding stage_work_holding(const struct stage_work *w)
{
    return (struct msg_holding){w->assign.model_digest, w->assign.layer_first,
                                w->assign.layer_last};
}

uint32_t stage_work_pages(const struct stage_work *w)
{
    return w->assign.n_pages;
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

void stage_work_metrics(const struct stage_work *w, struct buf *out)
{
    static const char name[] = "flotilla_kernel_seconds";
    prom_head(out, name, "histogram",
              "What a thread does with a kind of kernels in a phase of a Step.");
    for (int op = 0; op < ENG_N_OPS; op++) {
        char labels[64];
        struct stats_view v;
        eng_dispatch(w->engine, (enum eng_op)op, &v);
        (void)snprintf(labels, sizeof labels, "isa=\"%s\",op=\"%s\"", eng_isa(w->engine),
                       eng_op_name((enum eng_op)op));
        prom_histogram(out, name, labels, &v);
    }
    if (w->constrain) constrain_metrics(w->constrain, out);
}

/* ---- sampling state ---- */

static void open_sampler(struct stage_work *w, const struct msg_run *r)
{
    const uint32_t *known = imap_get(&w->by_request, r->request);
    if (!known && w->n_free == 0) return; /* more than may live: choose() says so of the run */
    uint32_t slot = known ? *known : w->free_samplers[--w->n_free];
    CHECK(slot < SLOTS);
    if (!known) imap_put(&w->by_request, r->request, slot);
    const struct sampling *o = &r->open.sampling;
    struct sampler *s = &w->samplers[slot];
    if (known) constrain_give(w->constrain, s->constraint);
    s->constraint = NULL;
    s->wrong[0] = 0;
    if (r->open.grammar_bytes) {
        const char *why;
        s->constraint = constrain_take(w->constrain, r->open.grammar, r->open.grammar_bytes, &why);
        if (!s->constraint) (void)snprintf(s->wrong, sizeof s->wrong, "%s", why);
    }
    for (uint32_t i = 0; i < o->n_bias; i++) { /* the decoder takes SAMPLING_BIASES_MAX at most */
        s->bias_ids[i] = o->bias_ids[i];
        s->bias[i] = o->bias[i];
    }
    s->boundary = r->open.boundary;
    s->next = 0; /* no token is chosen for the first position */
    s->sampling = *o;
    s->sampling.bias_ids = s->bias_ids;
    s->sampling.bias = s->bias;
}

/* A Step's rows overwrite what their positions held, as keys and values do. The engine has checked
 * the pages; tokens it checks on the first stage only. */
static int note_tokens(struct stage_work *w, const struct msg_run *r, struct errmsg *em)
{
    for (uint32_t i = 0; i < r->n_rows; i++) {
        uint32_t pos = r->first_pos + i;
        if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= eng_dims(w->engine)->vocab)
            return err_set(em, ERR_PROTO, "token %" PRId32 " is not in a vocabulary of %" PRIu32,
                           r->tokens[i], eng_dims(w->engine)->vocab);
        uint32_t page = r->pages[pos / LIMIT_PAGE];
        CHECK(page < w->assign.n_pages);
        w->page_tokens[(size_t)page * LIMIT_PAGE + pos % LIMIT_PAGE] = r->tokens[i];
    }
    return 0;
}

struct history {
    const struct stage_work *work;
    const uint32_t *pages;
};

/* A chooser_ask's `said`: a run's tokens from pos to the end of their page. */
static const int32_t *said(const void *arg, uint32_t pos, uint32_t *ret_n)
{
    const struct history *h = arg;
    *ret_n = LIMIT_PAGE - pos % LIMIT_PAGE;
    return h->work->page_tokens + (size_t)h->pages[pos / LIMIT_PAGE] * LIMIT_PAGE +
           pos % LIMIT_PAGE;
}

/* Keeps token i of a run whose first token is in row `row`. */
static void note_logprobs(struct stage_work *w, const struct chooser_choice *c, size_t row,
                          uint32_t i)
{
    struct logprobs *l = w->logprobs;
    int32_t *ids = l->ids + row * SAMPLING_TOP_MAX + (size_t)i * c->n_top;
    float *scores = l->top + row * SAMPLING_TOP_MAX + (size_t)i * c->n_top;
    l->chosen[row + i] = c->logprob;
    for (uint32_t k = 0; k < c->n_top; k++) {
        ids[k] = c->top[k].id;
        scores[k] = c->top[k].score;
    }
}

static void close_samplers(struct stage_work *w, const struct msg_step *s)
{
    for (uint32_t i = 0; i < s->n_closed; i++) {
        const uint32_t *slot = imap_get(&w->by_request, s->closed[i]);
        sums_drop(w->sums, s->closed[i]);
        if (!slot) continue;
        constrain_give(w->constrain, w->samplers[*slot].constraint);
        CHECK(w->n_free < SLOTS);
        w->free_samplers[w->n_free++] = *slot;
        imap_remove(&w->by_request, s->closed[i]);
    }
}

/* Whether a row continues what was chosen: its token is known to the coordinator, or it is the one
 * chosen after the row before, which was live. */
static bool is_live(const struct sampler *s, const struct msg_run *r, uint32_t i)
{
    if (i < r->n_rows - r->n_guesses) return true;
    return s->next == r->first_pos + i && s->token == r->tokens[i];
}

/* Chooses the token after each of the run's last n_logits rows, up to the first that is not live;
 * `row` is the first of these rows among the Step's rows of logits. The tokens of rows before,
 * which a choice may look at, are right: a guess that was not is overwritten by the rows that
 * follow it in the order of Steps. */
static void choose(struct stage_work *w, const struct msg_run *r, uint32_t row,
                   struct msg_run_result *ret)
{
    int32_t *tokens = w->tokens + row;
    const uint32_t *slot = imap_get(&w->by_request, r->request);
    uint32_t first = r->first_pos + r->n_rows - r->n_logits + 1;
    *ret = (struct msg_run_result){.request = r->request,
                                   .attempt = r->attempt,
                                   .sample = r->sample,
                                   .first_pos = first,
                                   .tokens = tokens};
    if (!slot) {
        ret->error = "the last stage has no sampling state for this request";
        return;
    }
    struct sampler *s = &w->samplers[*slot];
    const struct history h = {w, r->pages};
    if (s->wrong[0]) {
        ret->error = s->wrong;
        return;
    }
    for (uint32_t i = 0; i < r->n_logits; i++) {
        if (!is_live(s, r, r->n_rows - r->n_logits + i)) break;
        const struct chooser_ask ask = {.sampling = &s->sampling,
                                        .sample = r->sample,
                                        .pos = first + i,
                                        .boundary = s->boundary,
                                        .logits = eng_logits(w->engine, row + i),
                                        .said = said,
                                        .said_arg = &h,
                                        .constraint = s->constraint};
        struct chooser_choice c;
        if (w->moves) atomic_fetch_add_explicit(w->moves, 1, memory_order_relaxed);
        int rc = chooser_choose(w->chooser, &ask, &c);
        if (rc < 0) {
            ret->error = chooser_why(rc);
            break; /* the tokens of the rows before count */
        }
        tokens[ret->n_tokens++] = s->token = c.token;
        s->next = first + i;
        if (s->sampling.logprobs) note_logprobs(w, &c, row, i);
    }
    ret->dead = ret->n_tokens == 0 && !ret->error;
    if (s->sampling.logprobs && ret->n_tokens)
        ret->logprobs = (struct msg_logprobs){
            w->logprobs->chosen + row, chooser_n_top(w->chooser, &s->sampling),
            w->logprobs->ids + row * SAMPLING_TOP_MAX, w->logprobs->top + row * SAMPLING_TOP_MAX};
}

/* Adds a run's hidden rows to the sum of its prompt. False: it is not the last, and there is
 * nothing to say. */
static bool embed(struct stage_work *w, const struct msg_run *r, const float *hidden,
                  struct msg_run_result *ret)
{
    const float *embedding;
    const char *error = sums_add(w->sums, r, hidden, &embedding);
    if (!msg_run_embeds(r)) return false;
    *ret = (struct msg_run_result){.request = r->request,
                                   .attempt = r->attempt,
                                   .sample = r->sample,
                                   .first_pos = r->first_pos + r->n_rows + 1,
                                   .error = error,
                                   .embedding = embedding,
                                   .n_embedding = embedding ? stage_work_width(w) : 0};
    return true;
}

static void finish(struct stage_work *w, const struct msg_step *s, struct msg_result *ret)
{
    *ret = (struct msg_result){.epoch = s->epoch, .number = s->number, .runs = w->results};
    uint32_t row = 0;
    const float *hidden = eng_hidden(w->engine);
    sums_begin(w->sums);
    for (uint32_t i = 0; i < s->n_runs; i++) {
        const struct msg_run *r = &s->runs[i];
        if (r->embed) {
            ret->n_runs += embed(w, r, hidden, &w->results[ret->n_runs]);
            hidden += (size_t)r->n_rows * stage_work_width(w);
        }
        if (r->n_logits == 0) continue;
        CHECK(row + r->n_logits <= LIMIT_STEP_LOGITS);
        if (r->kind == RUN_PROBE)
            ret->digest = hash_bytes(eng_logits(w->engine, row),
                                     eng_dims(w->engine)->vocab * sizeof(float), 0);
        else
            choose(w, r, row, &w->results[ret->n_runs++]);
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
        uint32_t n_logits = !last ? 0 : r->embed ? ENG_HIDDEN : r->n_logits;
        w->runs[i] = (struct eng_run){.first_pos = r->first_pos,
                                      .n_rows = r->n_rows,
                                      .n_logits = n_logits,
                                      .tokens = r->tokens,
                                      .pages = r->pages,
                                      .window_first = r->window_first,
                                      .window_pages = r->n_window_pages ? r->window_pages : NULL};
        if (last && r->has_open) open_sampler(w, r);
    }
    const float *out;
    int rc = eng_step(w->engine, w->runs, s->n_runs, activations, &out, em);
    for (uint32_t i = 0; i < s->n_runs && last && rc == 0; i++)
        rc = note_tokens(w, &s->runs[i], em);
    if (rc < 0) return err_wrap(em, ERR_PROTO, "Step %" PRIu64, s->number);
    ret->activations = out;
    if (last) {
        finish(w, s, &ret->result);
        constrain_count(w->constrain, chooser_counts(w->chooser));
        close_samplers(w, s);
    }
    return 0;
}
