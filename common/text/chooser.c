#include "common/text/chooser.h"

#include "common/base/check.h"
#include "common/base/mem.h"
#include "common/text/constraint.h"

#include <inttypes.h>
#include <string.h>

struct chooser {
    uint32_t vocab;
    struct sample_candidate *candidates; /* one for each token, like the next */
    float *adjusted;                     /* logits that bias and penalties have changed */
    struct sample_seen seen;             /* empty between choices */
    struct masks *masks;                 /* NULL: nothing is constrained */
};

#define TOO_DEAR (-3) /* beside SAMPLE_NOT_FINITE and SAMPLE_NONE_ALLOWED */

/* Tokens of one choice that are looked at one by one; then all are. */
#define TRIES_MAX 8u

int chooser_open(uint32_t vocab, struct chooser **ret, struct errmsg *em)
{
    struct chooser *c = mem_zalloc(sizeof *c);
    c->vocab = vocab;
    c->candidates = mem_try_zeroed(vocab, sizeof *c->candidates);
    c->adjusted = mem_try_zeroed(vocab, sizeof *c->adjusted);
    c->seen.count = mem_try_zeroed(vocab, sizeof *c->seen.count);
    c->seen.ids = mem_try_zeroed(vocab, sizeof *c->seen.ids);
    if (c->candidates && c->adjusted && c->seen.count && c->seen.ids) {
        *ret = c;
        return 0;
    }
    chooser_close(c);
    return err_set(em, ERR_NOMEM, "no memory to choose among %" PRIu32 " tokens", vocab);
}

int chooser_learn(struct chooser *c, const struct vocab *v, struct errmsg *em)
{
    return masks_open(v, c->vocab, &c->masks, em);
}

void chooser_close(struct chooser *c)
{
    if (!c) return;
    masks_close(c->masks);
    mem_free(c->candidates);
    mem_free(c->adjusted);
    mem_free(c->seen.count);
    mem_free(c->seen.ids);
    mem_free(c);
}

uint32_t chooser_n_top(const struct chooser *c, const struct sampling *s)
{
    return s->top_logprobs < c->vocab ? s->top_logprobs : c->vocab;
}

/* Counts what was said before the position, the prompt's tokens apart from the answer's. */
static void count_said(struct chooser *c, const struct chooser_ask *a)
{
    for (uint32_t pos = 0; pos < a->pos;) {
        uint32_t n = 0;
        const int32_t *ids = a->said(a->said_arg, pos, &n);
        CHECK(n > 0);
        for (uint32_t i = 0; i < n && pos < a->pos; i++, pos++)
            sample_seen_add(&c->seen, ids[i], pos >= a->boundary);
    }
}

/* The row with bias and penalties, where the request has any. */
static const float *adjust(struct chooser *c, const struct chooser_ask *a)
{
    if (!sample_adjusts(a->sampling)) return a->logits;
    if (sample_needs_seen(a->sampling)) count_said(c, a);
    memcpy(c->adjusted, a->logits, c->vocab * sizeof *c->adjusted);
    sample_adjust(a->sampling, &c->seen, c->adjusted, c->vocab);
    sample_seen_clear(&c->seen);
    return c->adjusted;
}

struct allowance {
    struct masks *masks;
    const struct grammar *grammar;
    const struct grammar_state *state;
    const uint64_t *mask; /* NULL: not asked for yet */
    uint32_t tries;
    uint64_t work; /* that these took */
    bool is_dear;  /* which are allowed takes too long to find */
};

static const uint64_t *allow_all(void *arg)
{
    struct allowance *a = arg;
    if (!a->mask) a->mask = masks_all(a->masks, a->grammar, a->state, &a->is_dear);
    return a->mask;
}

static bool allow_one(void *arg, int32_t id)
{
    struct allowance *a = arg;
    a->is_dear |= a->work > MASKS_WORK;
    if (a->is_dear) return false;
    if (!a->mask && a->tries++ < TRIES_MAX)
        return masks_allow(a->masks, a->grammar, a->state, id, &a->work);
    return allow_all(a)[id / 64] >> id % 64 & 1;
}

/* A token behind guesses that the answer's form refuses is never used: it is chosen as if it were
 * free. */
static int32_t choose(struct chooser *c, const struct chooser_ask *a)
{
    const float *logits = adjust(c, a);
    const struct grammar_state *state = NULL;
    if (a->constraint)
        state = constraint_seek(a->constraint, c->masks, a->boundary, a->pos, a->said, a->said_arg);
    if (state && constraint_is_dear(a->constraint)) return TOO_DEAR;
    if (!state || grammar_is_dead(state))
        return sample_choose(a->sampling, a->sample, a->pos, logits, c->vocab, c->candidates);
    struct allowance x = {c->masks, &a->constraint->grammar, state, NULL, 0, 0, false};
    const struct sample_allowed allowed = {allow_one, allow_all, &x};
    int32_t token = sample_choose_allowed(a->sampling, a->sample, a->pos, logits, c->vocab,
                                          &allowed, c->candidates);
    return x.is_dear && token != SAMPLE_NOT_FINITE ? TOO_DEAR : token;
}

int chooser_choose(struct chooser *c, const struct chooser_ask *a, struct chooser_choice *ret)
{
    CHECK(!a->constraint || c->masks);
    ret->token = choose(c, a);
    if (ret->token == SAMPLE_NONE_ALLOWED) return ERR_NOTFOUND;
    if (ret->token == TOO_DEAR) return ERR_LIMIT;
    if (ret->token < 0) return ERR_FORMAT;
    if (!a->sampling->logprobs) return 0;
    /* The model's own: of the row as it came. */
    ret->n_top = chooser_n_top(c, a->sampling);
    ret->logprob = sample_logprobs(a->logits, c->vocab, ret->token, ret->n_top, ret->top);
    return 0;
}

const char *chooser_why(int rc)
{
    switch (rc) {
    case ERR_NOTFOUND: return "the vocabulary has no token that the answer's form allows here";
    case ERR_LIMIT: return "which tokens the answer's form allows here takes too long to find";
    default: return "the model gave logits that are not finite";
    }
}

struct masks_counts chooser_counts(const struct chooser *c)
{
    return c->masks ? masks_counts(c->masks) : (struct masks_counts){0};
}
