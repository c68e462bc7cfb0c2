#include "coordinator/draft/guess.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "coordinator/draft/ngram.h"
#include "coordinator/draft/recorded.h"
#include "coordinator/draft/small.h"

#include <stdio.h>
#include <string.h>

#define MADE_MAX 16u /* drafts of a request whose outcome is not known yet */
/* DRAFT_AUTO: acceptances to begin with, and how often a model is tried that seems not to pay. */
#define NGRAM_PRIOR 0.6
#define MODEL_PRIOR 0.7
#define TRY_EVERY 32u
/* Of the memory, where a model has the rest. */
#define INDEX_SHARE 8u

/* What a kind's drafts took, as means that fade. */
struct cost {
    double first_ns, token_ns;
    bool known;
};

struct guesser {
    struct ngram *ngram;
    struct small *small;
    struct recorded *recorded;
    enum draft_kind kind;
    int32_t *ends;
    uint32_t n_ends;
    struct cost cost[DRAFT_N_KINDS];
    struct drafter_kind_stats stats[DRAFT_N_KINDS];
    uint64_t stale;
};

/* A draft that was made, until confirmed tokens tell what of it was right. */
struct made {
    enum draft_kind kind;
    bool handed_out;    /* or made for comparison only */
    uint32_t asked_pos; /* the tail began here, */
    uint32_t first_pos; /* the draft here */
    uint64_t tail_hash; /* the draft tells nothing where the tail was wrong */
    uint32_t n;
    int32_t tokens[DRAFT_LENGTH_MAX];
};

struct guess {
    enum draft_kind kind;
    uint32_t n_prompt, sample;
    bool ignore_ends;
    struct sampling sampling;
    int32_t *bias_ids; /* of the sampling, like the next; or NULL */
    float *bias;
    int32_t *tokens; /* n confirmed ones, and room for a tail and a draft */
    uint32_t n, cap;
    struct ngram_text text;
    struct small_seq *seq;
    struct recorded_choice choice;
    struct gain_rate rate[DRAFT_N_KINDS];
    struct made made[MADE_MAX]; /* n_made, the oldest first */
    uint32_t n_made;
    bool going_on;         /* guess_ask returned false */
    enum draft_kind using; /* which kind makes the draft, then */
    uint32_t unused;       /* asks since DRAFT_AUTO used the model */
    uint64_t spent_ns;     /* on this draft, in earlier turns */
};

/* ---- all requests ---- */

static int open_kind(struct guesser *g, const struct drafter_options *o, struct errmsg *em)
{
    const struct draft_settings *s = o->settings;
    uint64_t bytes = s->memory_bytes ? s->memory_bytes : DRAFT_MEMORY_BYTES, index = bytes;
    bool model = s->kind == DRAFT_MODEL || (s->kind == DRAFT_AUTO && s->path);
    unsigned cores = pool_cores();
    int rc = 0;
    if (model || s->kind == DRAFT_RECORDED) index = bytes / INDEX_SHARE;
    g->ngram = ngram_open(index);
    if (model) {
        const struct small_options small = {.path = s->path,
                                            .isa = o->isa,
                                            .threads = s->threads  ? s->threads
                                                       : cores > 1 ? cores - 1
                                                                   : 1,
                                            .bytes_max = bytes - index,
                                            .ctx = o->ctx,
                                            .vocab = o->vocab,
                                            .ends = o->ends,
                                            .n_ends = o->n_ends,
                                            .text = o->text};
        rc = small_open(&small, &g->small, em);
    } else if (s->kind == DRAFT_RECORDED) {
        rc = recorded_open(s->path, o->vocab, bytes - index, &g->recorded, em);
    }
    return rc < 0 ? err_wrap(em, rc, "draft") : 0;
}

int guesser_open(const struct drafter_options *o, struct guesser **ret, struct errmsg *em)
{
    int rc = draft_settings_check(o->settings, em);
    if (rc < 0) return rc;
    struct guesser *g = mem_zalloc(sizeof *g);
    g->kind = o->settings->kind;
    g->n_ends = o->n_ends;
    g->ends = mem_alloc((o->n_ends + 1) * sizeof *g->ends);
    if (o->n_ends) memcpy(g->ends, o->ends, o->n_ends * sizeof *g->ends);
    rc = open_kind(g, o, em);
    if (rc < 0)
        guesser_close(g);
    else
        *ret = g;
    return rc;
}

void guesser_close(struct guesser *g)
{
    if (!g) return;
    ngram_close(g->ngram);
    small_close(g->small);
    recorded_close(g->recorded);
    mem_free(g->ends);
    mem_free(g);
}

bool guesser_has(const struct guesser *g, enum draft_kind kind)
{
    switch (kind) {
    case DRAFT_OFF: return true;
    case DRAFT_NGRAM:
    case DRAFT_AUTO: return g->kind != DRAFT_OFF;
    case DRAFT_MODEL: return g->small != NULL;
    case DRAFT_RECORDED: return g->recorded != NULL;
    case DRAFT_N_KINDS: break;
    }
    return false;
}

void guesser_stats(const struct guesser *g, struct drafter_stats *ret)
{
    struct ngram_stats n = ngram_stats(g->ngram);
    memcpy(ret->kinds, g->stats, sizeof ret->kinds);
    ret->stale = g->stale;
    ret->index_bytes = n.bytes;
    ret->index_bytes_max = n.bytes_max;
    ret->kept_texts = n.kept;
    ret->evicted_texts = n.evicted;
    ret->unindexed = n.unindexed;
    ret->foreign = n.foreign;
    if (!g->small) return;
    struct small_stats s = small_stats(g->small);
    ret->rows = s.rows;
    ret->rows_reused = s.rows_reused;
    ret->rows_undone = s.rows_undone;
    ret->pages = s.pages;
    ret->pages_used = s.pages_used;
}

/* ---- a request's text ---- */

struct guess *guess_begin(struct guesser *g, const struct drafter_request *r)
{
    struct guess *q = mem_zalloc(sizeof *q);
    q->kind = r->kind;
    q->n_prompt = r->n_prompt;
    q->sample = r->sample;
    q->ignore_ends = r->ignore_ends;
    q->sampling = *r->sampling;
    q->sampling.logprobs = false;
    if (q->sampling.n_bias) {
        size_t n = q->sampling.n_bias;
        q->sampling.bias_ids = q->bias_ids = mem_alloc(n * sizeof *q->bias_ids);
        q->sampling.bias = q->bias = mem_alloc(n * sizeof *q->bias);
        memcpy(q->bias_ids, r->sampling->bias_ids, n * sizeof *q->bias_ids);
        memcpy(q->bias, r->sampling->bias, n * sizeof *q->bias);
    }
    ngram_begin(g->ngram, &q->text, r->tenant);
    if (g->small && (r->kind == DRAFT_MODEL || r->kind == DRAFT_AUTO))
        q->seq = small_begin(g->small, r->tenant, r->grammar, r->grammar_bytes);
    return q;
}

static void count_made(struct guesser *g, struct guess *q, const struct made *m, uint32_t reached)
{
    uint32_t right = 0;
    while (right < reached && m->tokens[right] == q->tokens[m->first_pos + right]) right++;
    gain_rate_note(&q->rate[m->kind], reached, right);
    if (!m->handed_out) return;
    g->stats[m->kind].right += right;
    g->stats[m->kind].wrong += right < reached;
}

/* Whether the outcome is known; then it is counted. `ended`: more will not be known. */
static bool settle(struct guesser *g, struct guess *q, const struct made *m, bool ended)
{
    if (q->n <= m->first_pos) return ended;
    const int32_t *tail = q->tokens + m->asked_pos;
    uint32_t n_tail = m->first_pos - m->asked_pos, reached = q->n - m->first_pos;
    if (hash_bytes(tail, n_tail * sizeof *tail, 0) != m->tail_hash) return true;
    if (reached > m->n) reached = m->n;
    bool differs = memcmp(m->tokens, q->tokens + m->first_pos, reached * sizeof *tail) != 0;
    if (reached < m->n && !differs && !ended) return false;
    count_made(g, q, m, reached);
    return true;
}

static void settle_all(struct guesser *g, struct guess *q, bool ended)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < q->n_made; i++)
        if (!settle(g, q, &q->made[i], ended)) q->made[left++] = q->made[i];
    q->n_made = left;
}

void guess_end(struct guesser *g, struct guess *q, bool keep)
{
    uint32_t n = keep && q->n > q->n_prompt ? q->n - q->n_prompt : 0;
    settle_all(g, q, true);
    ngram_end(g->ngram, &q->text, q->tokens + (n ? q->n_prompt : 0), n);
    if (q->seq) small_end(g->small, q->seq);
    mem_free(q->bias_ids);
    mem_free(q->bias);
    mem_free(q->tokens);
    mem_free(q);
}

static int reserve(struct guess *q, uint32_t more)
{
    uint32_t need = q->n + more + DRAFTER_TAIL_MAX + DRAFT_LENGTH_MAX;
    if (need <= q->cap) return 0;
    uint32_t cap = need + need / 2;
    int32_t *tokens = mem_try(cap * sizeof *tokens);
    if (!tokens) return ERR_NOMEM;
    if (q->n) memcpy(tokens, q->tokens, q->n * sizeof *tokens);
    mem_free(q->tokens);
    q->tokens = tokens;
    q->cap = cap;
    return 0;
}

int guess_tokens(struct guesser *g, struct guess *q, const int32_t *tokens, uint32_t n)
{
    int rc = reserve(q, n);
    if (rc < 0) return rc;
    if (n) memcpy(q->tokens + q->n, tokens, n * sizeof *tokens);
    q->n += n;
    if (q->kind == DRAFT_NGRAM || q->kind == DRAFT_AUTO) ngram_add(g->ngram, &q->text, tokens, n);
    settle_all(g, q, false);
    return 0;
}

/* ---- drafts ---- */

/* Keeps a draft until its outcome is known; the oldest makes room. */
static void note_made(struct guess *q, const struct guess_ask *a, enum draft_kind kind,
                      bool handed_out, const int32_t *tokens, uint32_t n)
{
    if (n == 0) return;
    if (q->n_made == MADE_MAX) memmove(q->made, q->made + 1, --q->n_made * sizeof *q->made);
    struct made *m = &q->made[q->n_made++];
    *m = (struct made){.kind = kind,
                       .handed_out = handed_out,
                       .asked_pos = a->first_pos,
                       .first_pos = a->first_pos + a->n_tail,
                       .tail_hash = hash_bytes(a->tail, a->n_tail * sizeof *a->tail, 0),
                       .n = n};
    memcpy(m->tokens, tokens, n * sizeof *tokens);
}

/* n tokens, or fewer where one of them ends the answer. */
static uint32_t up_to_end(const struct guesser *g, const struct guess *q, const int32_t *tokens,
                          uint32_t n)
{
    for (uint32_t i = 0; i < n && !q->ignore_ends; i++)
        for (uint32_t e = 0; e < g->n_ends; e++)
            if (tokens[i] == g->ends[e]) return i + 1;
    return n;
}

/* The tail behind the confirmed tokens, which lie side by side then. False: they contradict it, or
 * go beyond it. */
static bool put_tail(struct guess *q, const struct guess_ask *a, uint32_t *ret_n)
{
    CHECK(a->first_pos <= q->n && a->n_tail <= DRAFTER_TAIL_MAX);
    uint32_t known = q->n - a->first_pos;
    if (known > a->n_tail) return false;
    if (known && memcmp(q->tokens + a->first_pos, a->tail, known * sizeof *a->tail) != 0)
        return false;
    *ret_n = a->first_pos + a->n_tail;
    if (known < a->n_tail)
        memcpy(q->tokens + q->n, a->tail + known, (a->n_tail - known) * sizeof *a->tail);
    return true;
}

static uint32_t draft_ngram(struct guesser *g, struct guess *q, uint32_t n, uint32_t want,
                            int32_t *ret)
{
    uint32_t got = ngram_draft(g->ngram, &q->text, q->tokens + q->n, n - q->n, want, ret);
    return up_to_end(g, q, ret, got);
}

/* ERR_AGAIN: it is to be called again. */
static int draft_model(struct guesser *g, struct guess *q, const struct guess_ask *a, uint32_t n,
                       struct drafter_answer *ret, struct errmsg *em)
{
    const struct small_ask ask = {.tokens = q->tokens,
                                  .n = n,
                                  .n_sure = q->n,
                                  .n_prompt = q->n_prompt,
                                  .want = a->want,
                                  .sample = q->sample,
                                  .sampling = &q->sampling,
                                  .ignore_ends = q->ignore_ends,
                                  .stop = a->stop};
    if (n == 0) return 0;
    int rc = small_draft(g->small, q->seq, &ask, &ret->n, em);
    if (rc == 0 && ret->n) memcpy(ret->tokens, q->tokens + n, ret->n * sizeof *ret->tokens);
    return rc;
}

/* What drafts of k tokens and fewer gain at best: tokens a second, or without figures of the chain
 * tokens a run. 0: less than without. */
static double worth(const struct guesser *g, const struct guess *q, const struct guess_ask *a,
                    enum draft_kind kind, uint32_t k)
{
    const struct cost *cost = &g->cost[kind];
    double rate = gain_rate_value(&q->rate[kind], kind == DRAFT_MODEL ? MODEL_PRIOR : NGRAM_PRIOR);
    const struct gain_draft d = {cost->first_ns, cost->token_ns, rate};
    if (k == 0) return 0.0;
    if (!a->chain || !a->load) return gain_tokens(rate, k) - 1.0;
    uint32_t best = gain_best(a->chain, &d, a->load, k);
    return best ? gain_speed(a->chain, &d, a->load, best) : 0.0;
}

/* The kind that gains most, DRAFT_OFF where none gains. ret->tokens: what ngram has. */
static enum draft_kind choose(struct guesser *g, struct guess *q, const struct guess_ask *a,
                              uint32_t n, struct drafter_answer *ret)
{
    uint32_t found = draft_ngram(g, q, n, a->want, ret->tokens);
    double ngram = worth(g, q, a, DRAFT_NGRAM, found);
    double model = q->seq ? worth(g, q, a, DRAFT_MODEL, a->want) : 0.0;
    bool use_model = model > ngram || (q->seq && ++q->unused >= TRY_EVERY);
    if (use_model) q->unused = 0;
    enum draft_kind kind = use_model ? DRAFT_MODEL : ngram > 0.0 ? DRAFT_NGRAM : DRAFT_OFF;
    if (kind == DRAFT_NGRAM)
        ret->n = found;
    else
        note_made(q, a, DRAFT_NGRAM, false, ret->tokens, found);
    return kind;
}

static void note_cost(struct cost *c, const struct drafter_answer *r)
{
    double first = (double)r->waited_ns, token = (double)r->took_ns / r->n;
    double share = c->known ? 0.125 : 1.0;
    c->first_ns += share * (first - c->first_ns);
    c->token_ns += share * (token - c->token_ns);
    c->known = true;
}

/* 0, an error, or ERR_AGAIN. */
static int draft(struct guesser *g, struct guess *q, const struct guess_ask *a, uint32_t n,
                 struct drafter_answer *ret, struct errmsg *em)
{
    if (!q->going_on) q->using = q->kind == DRAFT_AUTO ? choose(g, q, a, n, ret) : q->kind;
    ret->kind = q->using;
    switch (q->using) {
    case DRAFT_NGRAM:
        if (q->kind != DRAFT_AUTO) ret->n = draft_ngram(g, q, n, a->want, ret->tokens);
        return 0;
    case DRAFT_MODEL: return draft_model(g, q, a, n, ret, em);
    case DRAFT_RECORDED:
        ret->n = recorded_draft(g->recorded, &q->choice, q->tokens, q->n, q->n_prompt, n, a->want,
                                ret->tokens);
        ret->n = up_to_end(g, q, ret->tokens, ret->n);
        return 0;
    case DRAFT_OFF:
    case DRAFT_AUTO:
    case DRAFT_N_KINDS: break;
    }
    return 0;
}

bool guess_ask(struct guesser *g, struct guess *q, const struct guess_ask *a,
               struct drafter_answer *ret)
{
    uint64_t start = clock_ns();
    uint32_t n;
    int rc = 0;
    struct errmsg em = {0};
    ret->n = 0;
    ret->kind = q->kind == DRAFT_AUTO ? DRAFT_OFF : q->kind;
    ret->first_pos = a->first_pos + a->n_tail;
    ret->stale = false;
    ret->waited_ns = a->waited_ns;
    ret->error[0] = '\0';
    bool again = q->going_on;
    if (reserve(q, 0) < 0)
        rc = err_set(&em, ERR_NOMEM, "no memory for a draft");
    else if ((ret->stale = !put_tail(q, a, &n)))
        g->stale++;
    else
        rc = draft(g, q, a, n, ret, &em);
    uint64_t took = clock_ns() - start;
    g->stats[ret->kind].ns += took;
    q->spent_ns += took;
    q->going_on = rc == ERR_AGAIN;
    if (q->going_on) return false;
    ret->rc = rc;
    ret->took_ns = q->spent_ns;
    q->spent_ns = 0;
    if (rc < 0) {
        ret->n = 0;
        g->stats[ret->kind].failed++;
        (void)snprintf(ret->error, sizeof ret->error, "%.159s", em.text);
    } else if (ret->n) {
        g->stats[ret->kind].drafts++;
        g->stats[ret->kind].tokens += ret->n;
        /* A prompt that was computed first says nothing of later drafts. */
        if (!again) note_cost(&g->cost[ret->kind], ret);
        note_made(q, a, ret->kind, true, ret->tokens, ret->n);
    }
    return true;
}
