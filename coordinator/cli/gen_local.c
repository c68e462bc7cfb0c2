/* The engine alone: one sequence, all layers, no cluster. It shares with a cluster what makes the
 * answer (engine, sampling, text), and nothing of how a cluster arrives at it. */
#include "coordinator/cli/gen.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/text/chooser.h"
#include "common/text/constraint.h"
#include "common/text/detok.h"
#include "common/text/format.h"
#include "coordinator/chat.h"
#include "coordinator/cli/whole.h"
#include "coordinator/conversation.h"

#include <inttypes.h>
#include <string.h>

struct gen_local {
    struct model_file file;
    struct whole whole;
    struct tokens computed; /* whose rows the engine holds, from position 0 on */
    /* Of the present generation. */
    const struct gen_options *o;
    struct sampling sampling;
    struct chooser *chooser;
    struct constraint *constraint; /* on the answer's form, or NULL */
    struct detok detok;
    struct gen_result *ret;
    gen_text_fn on_text;
    void *arg;
};

static int encode_chat(struct gen_local *l, struct errmsg *em)
{
    struct chat chat;
    const struct conversation_model m = {.vocab = l->file.vocab, .chat = &chat};
    const char *conversation = l->o->conversation;
    int rc = chat_open(&l->file, &chat, em);
    if (rc < 0) return rc;
    if (!chat.plain) rc = err_set(em, ERR_RANGE, "%s has no chat template", l->o->model);
    if (rc == 0)
        rc = conversation_encode(&m, conversation, strlen(conversation), &l->ret->prompt, NULL,
                                 &l->ret->open_thought, em);
    chat_close(&chat);
    return rc;
}

static int encode_text(struct gen_local *l, struct errmsg *em)
{
    struct tokens *t = &l->ret->prompt;
    const struct vocab *v = l->file.vocab;
    if (vocab_adds_bos(v)) tokens_push(t, vocab_bos(v));
    return vocab_encode(v, l->o->prompt, strlen(l->o->prompt), l->o->special, t, em);
}

static int encode_prompt(struct gen_local *l, struct errmsg *em)
{
    struct tokens *t = &l->ret->prompt;
    int rc = l->o->conversation ? encode_chat(l, em) : l->o->prompt ? encode_text(l, em) : 0;
    if (rc < 0) return rc;
    if (t->n == 0) return err_set(em, ERR_RANGE, "the prompt has no tokens");
    for (uint32_t i = 0; i < l->o->sampling.n_bias; i++)
        if ((uint32_t)l->o->sampling.bias_ids[i] >= l->file.dims.vocab)
            return err_set(em, ERR_RANGE, "--logit-bias: token %" PRId32 " of %" PRIu32,
                           l->o->sampling.bias_ids[i], l->file.dims.vocab);
    uint32_t ctx =
        l->o->ctx && l->o->ctx < l->file.dims.ctx_train ? l->o->ctx : l->file.dims.ctx_train;
    if (t->n >= ctx)
        return err_set(em, ERR_RANGE, "a prompt of %zu tokens does not fit the context of %" PRIu32,
                       t->n, ctx);
    return 0;
}

static int open_engine(struct gen_local *l, const struct gen_options *o, uint64_t positions,
                       struct errmsg *em)
{
    if (positions > l->file.dims.ctx_train) positions = l->file.dims.ctx_train;
    struct whole_options w = {.isa = o->isa,
                              .kv = o->kv,
                              .threads = o->threads,
                              .positions = (uint32_t)positions,
                              .chunk = o->chunk};
    int rc = whole_open(&l->file, &w, &l->whole, em);
    if (rc < 0) return rc;
    return chooser_open(l->file.dims.vocab, &l->chooser, em);
}

static int open_constraint(struct gen_local *l, struct errmsg *em)
{
    struct buf grammar = {0};
    if (!l->o->format) return 0;
    int rc = format_compile(l->o->format, strlen(l->o->format), FORMAT_PLAIN, false, &grammar, em);
    if (rc == 0 && grammar.len) {
        l->constraint = mem_alloc(sizeof *l->constraint);
        rc = constraint_open(l->constraint, grammar.data, grammar.len, em);
        if (rc == 0) rc = chooser_learn(l->chooser, l->file.vocab, em);
    }
    buf_close(&grammar);
    return rc;
}

/* The prompt, and behind it the answer so far. */
static const int32_t *said(const void *arg, uint32_t pos, uint32_t *ret_n)
{
    const struct gen_local *l = arg;
    const struct tokens *prompt = &l->ret->prompt, *answer = &l->ret->tokens;
    bool in_prompt = pos < prompt->n;
    size_t at = in_prompt ? pos : pos - prompt->n;
    *ret_n = (uint32_t)((in_prompt ? prompt : answer)->n - at);
    return (in_prompt ? prompt : answer)->ids + at;
}

static void note_logprobs(struct gen_local *l, const struct chooser_choice *c)
{
    l->ret->n_top = c->n_top;
    (void)buf_append(&l->ret->chosen, &c->logprob, sizeof c->logprob);
    if (c->n_top) (void)buf_append(&l->ret->top, c->top, c->n_top * sizeof *c->top);
}

/* Runs rows [first, first + n) and, if asked, chooses the token after them. */
static int run_rows(struct gen_local *l, uint32_t first, const int32_t *tokens, uint32_t n,
                    bool choose, int32_t *ret_token, struct errmsg *em)
{
    const float *logits;
    l->computed.n = first;
    int rc = whole_step(&l->whole, first, tokens, n, choose, &logits, em);
    for (uint32_t i = 0; rc == 0 && i < n; i++) tokens_push(&l->computed, tokens[i]);
    if (rc < 0 || !choose) return rc;
    const struct chooser_ask ask = {.sampling = &l->sampling,
                                    .sample = l->o->sample,
                                    .pos = first + n,
                                    .boundary = (uint32_t)l->ret->prompt.n,
                                    .logits = logits,
                                    .said = said,
                                    .said_arg = l,
                                    .constraint = l->constraint};
    struct chooser_choice c;
    rc = chooser_choose(l->chooser, &ask, &c);
    if (rc < 0) return err_set(em, rc, "%s", chooser_why(rc));
    *ret_token = c.token;
    bool kept = !vocab_is_eog(l->file.vocab, c.token) || l->o->ignore_eos;
    if (l->sampling.logprobs && kept) note_logprobs(l, &c);
    return 0;
}

/* Tokens at the prompt's beginning that need not be computed again; never the last. */
static uint32_t known(const struct gen_local *l)
{
    const struct tokens *prompt = &l->ret->prompt;
    uint32_t n = 0;
    while (n < l->computed.n && n + 1 < prompt->n && l->computed.ids[n] == prompt->ids[n]) n++;
    return n;
}

static bool is_interrupted(const struct gen_local *l)
{
    if (l->o->interrupted && l->o->interrupted(l->o->interrupted_arg)) l->ret->interrupted = true;
    return l->ret->interrupted;
}

static int prefill(struct gen_local *l, int32_t *ret_token, struct errmsg *em)
{
    uint32_t n = (uint32_t)l->ret->prompt.n;
    l->ret->cached = known(l);
    for (uint32_t at = l->ret->cached; at < n && !is_interrupted(l); at += l->o->chunk) {
        uint32_t rows = n - at < l->o->chunk ? n - at : l->o->chunk;
        int rc = run_rows(l, at, l->ret->prompt.ids + at, rows, at + rows == n, ret_token, em);
        if (rc < 0) return rc;
    }
    return 0;
}

static void show(struct gen_local *l)
{
    struct buf *t = &l->detok.text;
    if (t->len == 0) return;
    (void)buf_append(&l->ret->text, t->data, t->len);
    if (l->on_text) l->on_text(l->arg, t->data, t->len);
    buf_drop(t, t->len);
}

static void keep(struct gen_local *l, int32_t token)
{
    tokens_push(&l->ret->tokens, token);
    struct vocab_string piece = vocab_piece(l->file.vocab, token);
    if (!vocab_is_control(l->file.vocab, token)) detok_push(&l->detok, piece.data, piece.len);
    show(l);
}

static int decode(struct gen_local *l, int32_t token, struct errmsg *em)
{
    struct gen_result *r = l->ret;
    uint32_t limit = l->file.dims.ctx_train - (uint32_t)r->prompt.n;
    if (l->o->ctx && l->o->ctx - r->prompt.n < limit) limit = l->o->ctx - (uint32_t)r->prompt.n;
    if (l->o->tokens < limit) limit = l->o->tokens;
    r->finish_reason = FINISH_LENGTH;
    for (;;) {
        if (vocab_is_eog(l->file.vocab, token) && !l->o->ignore_eos) {
            r->finish_reason = FINISH_STOP;
            break;
        }
        keep(l, token);
        if (l->detok.stopped) {
            r->finish_reason = FINISH_STOP;
            break;
        }
        if (r->tokens.n == limit || is_interrupted(l)) break;
        uint32_t pos = (uint32_t)(r->prompt.n + r->tokens.n - 1);
        int rc = run_rows(l, pos, &token, 1, true, &token, em);
        if (rc < 0) return rc;
    }
    detok_finish(&l->detok);
    show(l);
    return 0;
}

static int generate(struct gen_local *l, struct errmsg *em)
{
    struct gen_result *r = l->ret;
    uint64_t start = clock_ns();
    int32_t token = -1;
    if (l->o->tokens == 0) {
        r->finish_reason = FINISH_LENGTH;
        return 0;
    }
    int rc = prefill(l, &token, em);
    uint64_t first = clock_ns();
    if (rc == 0 && !r->interrupted) rc = decode(l, token, em);
    uint64_t end = clock_ns();
    if (r->tokens.n) gen_result_times(r, start, first, end);
    return rc;
}

static void begin(struct gen_local *l, const struct gen_options *o, gen_text_fn on_text, void *arg,
                  struct gen_result *ret)
{
    l->o = o;
    l->sampling = o->sampling;
    l->ret = ret;
    l->on_text = on_text;
    l->arg = arg;
    detok_init(&l->detok, o->stops.items, o->stops.n);
    if (!o->seed_given) l->sampling.seed = sampling_draw_seed();
    ret->seed = l->sampling.seed;
}

static void close_all(struct gen_local *l)
{
    whole_close(&l->whole);
    chooser_close(l->chooser);
    mem_free(l->constraint);
    model_file_close(&l->file);
    mem_free(l->computed.ids);
}

int gen_local(const struct gen_options *o, gen_text_fn on_text, void *arg, struct gen_result *ret,
              struct errmsg *em)
{
    struct gen_local l = {.o = o};
    begin(&l, o, on_text, arg, ret);
    int rc = model_file_open(o->model, true, o->pre, &l.file, em);
    if (rc == 0) rc = encode_prompt(&l, em);
    if (rc == 0) rc = open_engine(&l, o, ret->prompt.n + o->tokens, em);
    if (rc == 0) rc = open_constraint(&l, em);
    if (rc == 0) ret->isa = eng_isa(l.whole.engine);
    if (rc == 0) rc = generate(&l, em);
    if (l.constraint) ret->counts = chooser_counts(l.chooser);
    detok_close(&l.detok);
    close_all(&l);
    return rc;
}

int gen_local_open(const struct gen_options *o, struct gen_local **ret, struct errmsg *em)
{
    struct gen_local *l = mem_zalloc(sizeof *l);
    int rc = model_file_open(o->model, true, o->pre, &l->file, em);
    if (rc == 0) rc = open_engine(l, o, o->ctx, em);
    if (rc < 0)
        gen_local_close(l);
    else
        *ret = l;
    return rc;
}

void gen_local_close(struct gen_local *l)
{
    if (!l) return;
    close_all(l);
    mem_free(l);
}

int gen_local_next(struct gen_local *l, const struct gen_options *o, gen_text_fn on_text, void *arg,
                   struct gen_result *ret, struct errmsg *em)
{
    begin(l, o, on_text, arg, ret);
    int rc = encode_prompt(l, em);
    if (rc == 0) rc = generate(l, em);
    detok_close(&l->detok);
    return rc;
}

void gen_result_times(struct gen_result *r, uint64_t asked_ns, uint64_t first_ns, uint64_t last_ns)
{
    r->prompt_ms = r->ttft_ms = (double)(first_ns - asked_ns) / (double)NS_PER_MS;
    r->decode_ms = (double)(last_ns - first_ns) / (double)NS_PER_MS;
    if (r->tokens.n > 1 && r->decode_ms > 0.0)
        r->tokens_per_s = (double)(r->tokens.n - 1) * 1000.0 / r->decode_ms;
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
