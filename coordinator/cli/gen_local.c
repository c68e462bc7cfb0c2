/* The engine alone: one sequence, all layers, no cluster. It shares with a cluster what makes the
 * answer (engine, sampling, text), and nothing of how a cluster arrives at it. */
#include "coordinator/cli/gen.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/text/detok.h"
#include "coordinator/cli/whole.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

struct local {
    const struct gen_options *o;
    struct model_file file;
    struct whole whole;
    struct sample_params sampling;
    struct sample_candidate *candidates;
    struct sample_seen seen; /* and logits that bias and penalties have changed */
    float *adjusted;
    struct detok detok;
    struct gen_result *ret;
    gen_text_fn on_text;
    void *arg;
};

static int encode_prompt(struct local *l, struct errmsg *em)
{
    struct tokens *t = &l->ret->prompt;
    const struct vocab *v = l->file.vocab;
    int rc = 0;
    if (l->o->prompt && vocab_adds_bos(v)) tokens_push(t, vocab_bos(v));
    if (l->o->prompt)
        rc = vocab_encode(v, l->o->prompt, strlen(l->o->prompt), l->o->special, t, em);
    if (rc < 0) return rc;
    if (t->n == 0) return err_set(em, ERR_RANGE, "the prompt has no tokens");
    for (uint32_t i = 0; i < l->o->sampling.n_bias; i++)
        if ((uint32_t)l->o->sampling.bias[i].id >= l->file.dims.vocab)
            return err_set(em, ERR_RANGE, "--logit-bias: token %" PRId32 " of %" PRIu32,
                           l->o->sampling.bias[i].id, l->file.dims.vocab);
    uint32_t ctx =
        l->o->ctx && l->o->ctx < l->file.dims.ctx_train ? l->o->ctx : l->file.dims.ctx_train;
    if (t->n >= ctx)
        return err_set(em, ERR_RANGE, "a prompt of %zu tokens does not fit the context of %" PRIu32,
                       t->n, ctx);
    return 0;
}

static int open_engine(struct local *l, struct errmsg *em)
{
    uint64_t positions = l->ret->prompt.n + l->o->tokens;
    if (positions > l->file.dims.ctx_train) positions = l->file.dims.ctx_train;
    struct whole_options o = {.isa = l->o->isa,
                              .kv = l->o->kv,
                              .threads = l->o->threads,
                              .positions = (uint32_t)positions,
                              .chunk = l->o->chunk};
    int rc = whole_open(&l->file, &o, &l->whole, em);
    if (rc < 0) return rc;
    l->ret->isa = eng_isa(l->whole.engine);
    l->candidates = mem_alloc(l->file.dims.vocab * sizeof *l->candidates);
    l->adjusted = mem_alloc(l->file.dims.vocab * sizeof *l->adjusted);
    l->seen.count = mem_zalloc(l->file.dims.vocab * sizeof *l->seen.count);
    l->seen.ids = mem_zalloc(l->file.dims.vocab * sizeof *l->seen.ids);
    return 0;
}

static const float *adjust(struct local *l, const float *logits)
{
    if (!sample_adjusts(&l->sampling)) return logits;
    const struct tokens *said[] = {&l->ret->prompt, &l->ret->tokens};
    for (int answer = 0; answer < 2 && sample_needs_seen(&l->sampling); answer++)
        for (size_t i = 0; i < said[answer]->n; i++)
            sample_seen_add(&l->seen, said[answer]->ids[i], answer);
    memcpy(l->adjusted, logits, l->file.dims.vocab * sizeof *logits);
    sample_adjust(&l->sampling, &l->seen, l->adjusted, l->file.dims.vocab);
    sample_seen_clear(&l->seen);
    return l->adjusted;
}

static void note_logprobs(struct local *l, const float *logits, int32_t token)
{
    struct sample_candidate top[SAMPLE_TOP_MAX];
    uint32_t n = l->o->top_logprobs < l->file.dims.vocab ? l->o->top_logprobs : l->file.dims.vocab;
    float chosen = sample_logprobs(logits, l->file.dims.vocab, token, n, top);
    l->ret->n_top = n;
    (void)buf_append(&l->ret->chosen, &chosen, sizeof chosen);
    if (n) (void)buf_append(&l->ret->top, top, n * sizeof *top);
}

/* Runs rows [first, first + n) and, if asked, chooses the token after them. */
static int run_rows(struct local *l, uint32_t first, const int32_t *tokens, uint32_t n, bool choose,
                    int32_t *ret_token, struct errmsg *em)
{
    const float *logits;
    int rc = whole_step(&l->whole, first, tokens, n, choose, &logits, em);
    if (rc < 0 || !choose) return rc;
    *ret_token = sample_choose(&l->sampling, l->o->sample, first + n, adjust(l, logits),
                               l->file.dims.vocab, l->candidates);
    if (*ret_token < 0) return err_set(em, ERR_FORMAT, "the model gave logits that are not finite");
    bool kept = !vocab_is_eog(l->file.vocab, *ret_token) || l->o->ignore_eos;
    if (l->o->logprobs && kept) note_logprobs(l, logits, *ret_token);
    return 0;
}

static int prefill(struct local *l, int32_t *ret_token, struct errmsg *em)
{
    uint32_t n = (uint32_t)l->ret->prompt.n;
    for (uint32_t at = 0; at < n; at += l->o->chunk) {
        uint32_t rows = n - at < l->o->chunk ? n - at : l->o->chunk;
        int rc = run_rows(l, at, l->ret->prompt.ids + at, rows, at + rows == n, ret_token, em);
        if (rc < 0) return rc;
    }
    return 0;
}

static void show(struct local *l)
{
    struct buf *t = &l->detok.text;
    if (t->len == 0) return;
    (void)buf_append(&l->ret->text, t->data, t->len);
    if (l->on_text) l->on_text(l->arg, t->data, t->len);
    buf_drop(t, t->len);
}

static void keep(struct local *l, int32_t token)
{
    tokens_push(&l->ret->tokens, token);
    struct vocab_string piece = vocab_piece(l->file.vocab, token);
    if (!vocab_is_control(l->file.vocab, token)) detok_push(&l->detok, piece.data, piece.len);
    show(l);
}

static int decode(struct local *l, int32_t token, struct errmsg *em)
{
    struct gen_result *r = l->ret;
    uint32_t limit = l->file.dims.ctx_train - (uint32_t)r->prompt.n;
    if (l->o->ctx && l->o->ctx - r->prompt.n < limit) limit = l->o->ctx - (uint32_t)r->prompt.n;
    if (l->o->tokens < limit) limit = l->o->tokens;
    r->finish_reason = "length";
    for (;;) {
        if (vocab_is_eog(l->file.vocab, token) && !l->o->ignore_eos) {
            r->finish_reason = "stop";
            break;
        }
        keep(l, token);
        if (l->detok.stopped) {
            r->finish_reason = "stop";
            break;
        }
        if (r->tokens.n == limit) break;
        uint32_t pos = (uint32_t)(r->prompt.n + r->tokens.n - 1);
        int rc = run_rows(l, pos, &token, 1, true, &token, em);
        if (rc < 0) return rc;
    }
    detok_finish(&l->detok);
    show(l);
    return 0;
}

static int generate(struct local *l, struct errmsg *em)
{
    struct gen_result *r = l->ret;
    uint64_t start = clock_ns();
    int32_t token = -1;
    if (l->o->tokens == 0) {
        r->finish_reason = "length";
        return 0;
    }
    int rc = prefill(l, &token, em);
    uint64_t first = clock_ns();
    if (rc == 0) rc = decode(l, token, em);
    uint64_t end = clock_ns();
    r->prompt_ms = r->ttft_ms = (double)(first - start) / (double)NS_PER_MS;
    r->decode_ms = (double)(end - first) / (double)NS_PER_MS;
    if (r->tokens.n > 1 && r->decode_ms > 0.0)
        r->tokens_per_s = (double)(r->tokens.n - 1) * 1000.0 / r->decode_ms;
    return rc;
}

int gen_local(const struct gen_options *o, gen_text_fn on_text, void *arg, struct gen_result *ret,
              struct errmsg *em)
{
    struct local l = {.o = o, .sampling = o->sampling, .ret = ret, .on_text = on_text, .arg = arg};
    detok_init(&l.detok, o->stops.items, o->stops.n);
    if (!o->seed_given) {
        if (getrandom(&l.sampling.seed, sizeof l.sampling.seed, 0) < 0)
            l.sampling.seed = clock_ns();
        l.sampling.seed >>= 11; /* a JSON number holds 53 bits exactly */
    }
    ret->seed = l.sampling.seed;
    int rc = model_file_open(o->model, true, o->pre, &l.file, em);
    if (rc == 0 && l.file.warning[0]) log_warn("%s", l.file.warning);
    if (rc == 0) rc = encode_prompt(&l, em);
    if (rc == 0) rc = open_engine(&l, em);
    if (rc == 0) rc = generate(&l, em);
    detok_close(&l.detok);
    whole_close(&l.whole);
    mem_free(l.candidates);
    mem_free(l.adjusted);
    mem_free(l.seen.count);
    mem_free(l.seen.ids);
    model_file_close(&l.file);
    return rc;
}

void gen_result_close(struct gen_result *r)
{
    mem_free(r->prompt.ids);
    mem_free(r->tokens.ids);
    buf_close(&r->chosen);
    buf_close(&r->top);
    buf_close(&r->text);
    for (uint32_t i = 0; i < r->n_more; i++) gen_result_close(&r->more[i]);
    mem_free(r->more);
    *r = (struct gen_result){0};
}
