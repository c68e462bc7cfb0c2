#include "coordinator/draft/small.h"

#include "common/base/check.h"
#include "common/base/machine.h"
#include "common/base/mem.h"
#include "common/engine/engine.h"
#include "common/io/ring.h"
#include "common/text/chooser.h"
#include "common/text/constraint.h"
#include "coordinator/model_file.h"

#include <inttypes.h>
#include <string.h>

#define KV KV_F16
#define CONTEXTS 2u          /* that the pool is made for, where there is room */
#define POSITIONS_LEAST 256u /* fewer are no pool */

struct small_seq {
    uint64_t tenant, used; /* used: when it last was, by the model's count of drafts */
    bool ended;
    int32_t *tokens; /* whose keys and values it has: n, of which `sure` are confirmed */
    uint32_t n, sure, cap;
    uint32_t *pages; /* room for seq_pages */
    uint32_t n_pages;
    struct constraint *constraint; /* on the answer's form, or NULL */
    struct small_seq *next;
};

struct small {
    struct engine *engine;
    struct chooser *chooser;
    struct vocab *vocab;
    bool learned; /* the chooser knows it */
    int32_t *ends;
    uint32_t n_ends;
    uint32_t ctx, seq_pages; /* of one sequence */
    uint32_t *refs;          /* by page: sequences that have it */
    uint32_t *free, n_free;
    struct small_seq *seqs; /* all: of requests, and ended ones */
    uint32_t n_ended;
    uint64_t clock; /* drafts so far */
    struct small_stats stats;
};

/* ---- opening ---- */

static bool is_end(const int32_t *ends, uint32_t n_ends, int32_t token)
{
    for (uint32_t i = 0; i < n_ends; i++)
        if (ends[i] == token) return true;
    return false;
}

static int check_texts(const struct small_options *o, const struct vocab *own, struct errmsg *em)
{
    for (uint32_t i = 0; i < vocab_size(own); i++) {
        struct vocab_string a = vocab_piece(own, (int32_t)i), b = vocab_piece(o->text, (int32_t)i);
        if (a.len == b.len && memcmp(a.data, b.data, a.len) == 0) continue;
        return err_set(em, ERR_CONF,
                       "token %" PRIu32 " is '%.*s' in the draft model's vocabulary and '%.*s' in "
                       "the target's",
                       i, (int)(a.len < 64 ? a.len : 64), a.data, (int)(b.len < 64 ? b.len : 64),
                       b.data);
    }
    return 0;
}

static int check_vocab(const struct small_options *o, const struct model_file *f, struct errmsg *em)
{
    if (f->dims.vocab != o->vocab)
        return err_set(em, ERR_CONF,
                       "the draft model has a vocabulary of %" PRIu32 " tokens, the target one of "
                       "%" PRIu32,
                       f->dims.vocab, o->vocab);
    uint32_t n = vocab_size(f->vocab);
    if (o->text && n != vocab_size(o->text))
        return err_set(em, ERR_CONF,
                       "the draft model names %" PRIu32 " tokens, the target %" PRIu32, n,
                       vocab_size(o->text));
    for (uint32_t i = 0; i < n; i++) {
        bool own = vocab_is_eog(f->vocab, (int32_t)i);
        if (own == is_end(o->ends, o->n_ends, (int32_t)i)) continue;
        return err_set(em, ERR_CONF, "token %" PRIu32 " ends an answer of the %s and not of the %s",
                       i, own ? "draft model" : "target", own ? "target" : "draft model");
    }
    return o->text ? check_texts(o, f->vocab, em) : 0;
}

/* As many pages as bytes_max has room for, at most those of CONTEXTS whole sequences. */
static int choose_pages(const struct small_options *o, const struct model_file *f, uint32_t ctx,
                        uint32_t *ret, struct errmsg *em)
{
    uint64_t weights, page = eng_page_bytes(&f->dims, KV, f->dims.n_layers);
    int rc = eng_weights_bytes(f->weights, &f->dims, 0, f->dims.n_layers - 1, &weights, em);
    if (rc < 0) return rc;
    struct eng_sizes s = eng_sizes(&f->dims, SMALL_CHUNK, 1, ctx);
    uint64_t fixed = weights + s.step_bytes + o->threads * s.thread_bytes + s.logits_bytes;
    uint64_t least = (ctx < POSITIONS_LEAST ? ctx : POSITIONS_LEAST) / KV_PAGE + 1;
    uint64_t most = CONTEXTS * ((uint64_t)ctx / KV_PAGE + 1);
    uint64_t fit = o->bytes_max > fixed ? (o->bytes_max - fixed) / page : 0;
    if (fit < least)
        return err_set(em, ERR_NOMEM,
                       "the draft model needs %.1f MiB, %.1f of them for weights, and may have "
                       "%.1f MiB",
                       (double)(fixed + least * page) / (1 << 20), (double)weights / (1 << 20),
                       (double)o->bytes_max / (1 << 20));
    *ret = (uint32_t)(fit < most ? fit : most);
    return 0;
}

static int open_engine(struct small *m, const struct small_options *o, const struct model_file *f,
                       struct errmsg *em)
{
    struct ring_use use = {0};
    struct machine_memory memory = machine_memory("");
    uint64_t room = machine_free(&memory);
    int rc = choose_pages(o, f, m->ctx, &m->stats.pages, em);
    if (rc < 0) return rc;
    struct eng_options e = {.weights = f->weights,
                            .layer_last = f->dims.n_layers - 1,
                            .kv = KV,
                            .n_pages = m->stats.pages,
                            .ctx = m->ctx,
                            .rows_max = SMALL_CHUNK,
                            .logits_max = 1,
                            .threads = o->threads,
                            .room_bytes = room ? room : 1, /* 0 would mean any */
                            .isa = o->isa,
                            .read = ring_read,
                            .read_ctx = &use};
    rc = eng_open(&e, &m->engine, em);
    return rc == 0 ? chooser_open(f->dims.vocab, &m->chooser, em) : rc;
}

static int open_tables(struct small *m, const struct small_options *o, struct errmsg *em)
{
    uint32_t n = m->stats.pages;
    m->seq_pages = m->ctx / KV_PAGE + 1;
    m->refs = mem_try_zeroed(n, sizeof *m->refs);
    m->free = mem_try_zeroed(n, sizeof *m->free);
    m->ends = mem_alloc((o->n_ends + 1) * sizeof *m->ends);
    if (!m->refs || !m->free)
        return err_set(em, ERR_NOMEM, "no memory for a table of %" PRIu32 " pages", n);
    m->n_free = n;
    for (uint32_t i = 0; i < n; i++) m->free[i] = n - 1 - i;
    m->n_ends = o->n_ends;
    if (o->n_ends) memcpy(m->ends, o->ends, o->n_ends * sizeof *m->ends);
    return 0;
}

int small_open(const struct small_options *o, struct small **ret, struct errmsg *em)
{
    struct model_file f = {0};
    int rc = model_file_open(o->path, true, NULL, &f, em);
    if (rc < 0) return rc;
    struct small *m = mem_zalloc(sizeof *m);
    m->ctx = o->ctx < f.dims.ctx_train ? o->ctx : f.dims.ctx_train;
    rc = check_vocab(o, &f, em);
    if (rc == 0) rc = open_engine(m, o, &f, em);
    if (rc == 0) rc = open_tables(m, o, em);
    m->vocab = f.vocab; /* the rest of the file is not needed any more */
    f.vocab = NULL;
    model_file_close(&f);
    if (rc < 0) {
        small_close(m);
        return err_wrap(em, rc, "%s", o->path);
    }
    *ret = m;
    return 0;
}

static void free_seq(struct small_seq *s)
{
    mem_free(s->constraint);
    mem_free(s->tokens);
    mem_free(s->pages);
    mem_free(s);
}

void small_close(struct small *m)
{
    if (!m) return;
    while (m->seqs) {
        struct small_seq *s = m->seqs;
        m->seqs = s->next;
        free_seq(s);
    }
    eng_close(m->engine);
    chooser_close(m->chooser);
    vocab_close(m->vocab);
    mem_free(m->ends);
    mem_free(m->refs);
    mem_free(m->free);
    mem_free(m);
}

/* ---- pages ---- */

static void release(struct small *m, uint32_t page)
{
    CHECK(m->refs[page] > 0);
    if (--m->refs[page] == 0) m->free[m->n_free++] = page;
}

/* Gives up the sequence's pages from the idx-th on, and what they hold. */
static void cut(struct small *m, struct small_seq *s, uint32_t idx)
{
    while (s->n_pages > idx) release(m, s->pages[--s->n_pages]);
    if (s->n > idx * KV_PAGE) s->n = idx * KV_PAGE;
    if (s->sure > s->n) s->sure = s->n;
}

static void unlink_seq(struct small *m, struct small_seq *s)
{
    struct small_seq **at = &m->seqs;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
}

static void drop(struct small *m, struct small_seq *s)
{
    cut(m, s, 0);
    unlink_seq(m, s);
    m->n_ended -= s->ended;
    free_seq(s);
}

/* The sequence other than `but` that was used longest ago: ended ones first. NULL: none has pages.
 */
static struct small_seq *oldest(struct small *m, const struct small_seq *but)
{
    struct small_seq *found = NULL;
    for (struct small_seq *s = m->seqs; s; s = s->next) {
        if (s == but || s->n_pages == 0) continue;
        bool before = !found || (s->ended != found->ended ? s->ended : s->used < found->used);
        if (before) found = s;
    }
    return found;
}

/* A page for `s`, from others if need be: a request whose pages are taken computes them again. */
static bool take_page(struct small *m, const struct small_seq *s, uint32_t *ret)
{
    while (m->n_free == 0) {
        struct small_seq *victim = oldest(m, s);
        if (!victim) return false;
        if (victim->ended)
            drop(m, victim);
        else
            cut(m, victim, 0);
    }
    *ret = m->free[--m->n_free];
    m->refs[*ret] = 1;
    return true;
}

/* Pages of its own for rows [s->n, end). A page that others have is never written: where the first
 * row lies in one, the sequence goes back to the page's beginning. */
static int own_pages(struct small *m, struct small_seq *s, uint32_t end, struct errmsg *em)
{
    uint32_t first = s->n / KV_PAGE, n = (end + KV_PAGE - 1) / KV_PAGE;
    bool shared = false;
    for (uint32_t i = first; i < s->n_pages; i++) shared |= m->refs[s->pages[i]] > 1;
    if (shared) cut(m, s, first);
    while (s->n_pages < n) {
        uint32_t page;
        if (!take_page(m, s, &page))
            return err_set(em, ERR_LIMIT, "the draft model's pool of %" PRIu32 " pages is full",
                           m->stats.pages);
        s->pages[s->n_pages++] = page;
    }
    return 0;
}

/* ---- sequences ---- */

/* NULL: drafts are made without. */
static struct constraint *open_constraint(struct small *m, const void *grammar, size_t bytes)
{
    struct errmsg em;
    if (!m->learned) m->learned = chooser_learn(m->chooser, m->vocab, &em) == 0;
    struct constraint *c = m->learned ? mem_try_zeroed(1, sizeof *c) : NULL;
    if (!c || constraint_open(c, grammar, bytes, &em) == 0) return c;
    mem_free(c);
    return NULL;
}

struct small_seq *small_begin(struct small *m, uint64_t tenant, const void *grammar, size_t bytes)
{
    struct small_seq *s = mem_zalloc(sizeof *s);
    if (bytes) s->constraint = open_constraint(m, grammar, bytes);
    s->tenant = tenant;
    s->next = m->seqs;
    m->seqs = s;
    return s;
}

void small_end(struct small *m, struct small_seq *s)
{
    s->n = s->sure; /* guesses behind them are of no use */
    mem_free(s->constraint);
    s->constraint = NULL;
    if (s->n < KV_PAGE) {
        drop(m, s);
        return;
    }
    cut(m, s, s->n / KV_PAGE); /* whole pages alone are shared */
    s->ended = true;
    if (++m->n_ended <= SMALL_ENDED) return;
    struct small_seq *first = NULL;
    for (struct small_seq *x = m->seqs; x; x = x->next)
        if (x->ended && (!first || x->used < first->used)) first = x;
    drop(m, first);
}

static int reserve(struct small *m, struct small_seq *s, uint32_t n, struct errmsg *em)
{
    if (!s->pages) s->pages = mem_try(m->seq_pages * sizeof *s->pages);
    if (n > s->cap) {
        uint32_t cap = n + n / 2 + 64;
        int32_t *tokens = mem_try(cap * sizeof *tokens);
        if (tokens && s->n) memcpy(tokens, s->tokens, s->n * sizeof *tokens);
        if (tokens) {
            mem_free(s->tokens);
            s->tokens = tokens;
            s->cap = cap;
        }
    }
    if (s->pages && s->cap >= n) return 0;
    return err_set(em, ERR_NOMEM, "no memory for a draft of %" PRIu32 " positions", n);
}

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t from, uint32_t n)
{
    while (from < n && a[from] == b[from]) from++;
    return from;
}

/* A sequence that has nothing yet begins with the whole pages of one that begins alike, all but the
 * last position, whose logits are wanted. */
static void share(struct small *m, struct small_seq *s, const struct small_ask *a)
{
    const struct small_seq *best = NULL;
    uint32_t best_pages = 0, most = a->n_sure < a->n ? a->n_sure : a->n - 1;
    for (const struct small_seq *x = m->seqs; x; x = x->next) {
        if (x == s || x->tenant != s->tenant) continue;
        uint32_t pages = common(x->tokens, a->tokens, 0, x->sure < most ? x->sure : most) / KV_PAGE;
        if (pages <= best_pages) continue;
        best = x;
        best_pages = pages;
    }
    for (uint32_t i = 0; i < best_pages; i++) {
        s->pages[i] = best->pages[i];
        m->refs[s->pages[i]]++;
    }
    s->n_pages = best_pages;
    s->n = s->sure = best_pages * KV_PAGE;
    if (s->n) memcpy(s->tokens, a->tokens, s->n * sizeof *s->tokens);
    m->stats.rows_reused += s->n;
}

/* Leaves of the sequence what an ask begins with, but for the ask's last position. */
static void roll_back(struct small *m, struct small_seq *s, const struct small_ask *a)
{
    uint32_t most = s->n < a->n ? s->n : a->n;
    uint32_t same = common(s->tokens, a->tokens, s->sure < most ? s->sure : most, most);
    m->stats.rows_undone += s->n - same;
    s->n = same < a->n ? same : a->n - 1;
    s->sure = s->n < a->n_sure ? s->n : a->n_sure;
}

/* Computes rows up to `end`; *ret: the logits of the last. */
static int compute(struct small *m, struct small_seq *s, const int32_t *tokens, uint32_t end,
                   const float **ret, struct errmsg *em)
{
    int rc = own_pages(m, s, end, em); /* which may take the sequence back */
    while (s->n < end && rc == 0) {
        uint32_t rows = end - s->n < SMALL_CHUNK ? end - s->n : SMALL_CHUNK;
        const struct eng_run run = {s->n, rows, 1, tokens + s->n, .pages = s->pages};
        rc = eng_step(m->engine, &run, 1, NULL, ret, em);
        if (rc < 0) break;
        memcpy(s->tokens + s->n, tokens + s->n, rows * sizeof *tokens);
        s->n += rows;
        m->stats.rows += rows;
    }
    return rc;
}

/* ---- drafts ---- */

struct said {
    const int32_t *tokens;
    uint32_t n;
};

static const int32_t *said(const void *arg, uint32_t pos, uint32_t *ret_n)
{
    const struct said *s = arg;
    *ret_n = s->n - pos;
    return s->tokens + pos;
}

/* ERR_NOTFOUND: the answer's form allows no token. */
static int choose(struct small *m, struct small_seq *s, const struct small_ask *a, uint32_t pos,
                  const float *logits, int32_t *ret, struct errmsg *em)
{
    const struct said before = {a->tokens, pos};
    const struct chooser_ask ask = {.sampling = a->sampling,
                                    .sample = a->sample,
                                    .pos = pos,
                                    .boundary = a->n_prompt,
                                    .logits = logits,
                                    .said = said,
                                    .said_arg = &before,
                                    .constraint = s->constraint};
    struct chooser_choice c;
    int rc = chooser_choose(m->chooser, &ask, &c);
    if (rc == ERR_NOTFOUND || rc == ERR_LIMIT) return ERR_NOTFOUND;
    if (rc < 0) return err_set(em, rc, "draft: %s", chooser_why(rc));
    *ret = c.token;
    return 0;
}

int small_draft(struct small *m, struct small_seq *s, const struct small_ask *a, uint32_t *ret_n,
                struct errmsg *em)
{
    const float *logits = NULL;
    uint32_t want = a->want, n = 0;
    *ret_n = 0;
    if (a->n >= m->ctx) return 0;
    if (want > m->ctx - a->n) want = m->ctx - a->n;
    int rc = reserve(m, s, a->n + want, em);
    if (rc < 0) return rc;
    s->used = ++m->clock;
    if (s->n_pages == 0) share(m, s, a);
    roll_back(m, s, a);
    bool far = a->n - s->n > SMALL_CHUNK;
    rc = compute(m, s, a->tokens, far ? s->n + SMALL_CHUNK : a->n, &logits, em);
    s->sure = s->n < a->n_sure ? s->n : a->n_sure;
    if (rc == 0 && far) return ERR_AGAIN;
    while (rc == 0 && n < want && !(n && a->stop && atomic_load(a->stop))) {
        int32_t token = -1;
        if (n) rc = compute(m, s, a->tokens, a->n + n, &logits, em);
        if (rc == 0) rc = choose(m, s, a, a->n + n, logits, &token, em);
        if (rc < 0) break;
        a->tokens[a->n + n++] = token;
        if (!a->ignore_ends && is_end(m->ends, m->n_ends, token)) break;
    }
    if (rc == ERR_NOTFOUND) rc = 0; /* the target will say what ends the answer */
    if (rc == 0) *ret_n = n;
    return rc;
}

struct small_stats small_stats(const struct small *m)
{
    struct small_stats s = m->stats;
    s.pages_used = s.pages - m->n_free;
    return s;
}
