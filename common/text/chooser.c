#include "common/text/chooser.h"

#include "common/base/check.h"
#include "common/base/mem.h"

#include <inttypes.h>
#include <string.h>

struct chooser {
    uint32_t vocab;
    struct sample_candidate *candidates; /* one for each token, like the next */
    float *adjusted;                     /* logits that bias and penalties have changed */
    struct sample_seen seen;             /* empty between choices */
};

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

void chooser_close(struct chooser *c)
{
    if (!c) return;
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

int chooser_choose(struct chooser *c, const struct chooser_ask *a, struct chooser_choice *ret)
{
    ret->token =
        sample_choose(a->sampling, a->sample, a->pos, adjust(c, a), c->vocab, c->candidates);
    if (ret->token < 0) return ERR_FORMAT;
    if (!a->sampling->logprobs) return 0;
    /* The model's own: of the row as it came. */
    ret->n_top = chooser_n_top(c, a->sampling);
    ret->logprob = sample_logprobs(a->logits, c->vocab, ret->token, ret->n_top, ret->top);
    return 0;
}
