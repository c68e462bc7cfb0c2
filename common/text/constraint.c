#include "common/text/constraint.h"

#include "common/base/check.h"

#include <string.h>

static void copy_state(struct constraint_at *to, const struct constraint_at *from)
{
    to->n = from->n;
    to->state.n_words = from->state.n_words;
    to->state.may_end = from->state.may_end;
    to->state.work = from->state.work;
    memcpy(to->state.words, from->state.words, from->state.n_words * sizeof *from->state.words);
}

static void begin(struct constraint *c)
{
    c->old.n = 0;
    grammar_start(&c->grammar, &c->old.state);
    copy_state(&c->now, &c->old);
}

int constraint_open(struct constraint *c, const void *grammar, size_t bytes, struct errmsg *em)
{
    memcpy(c->bytes, grammar, bytes < sizeof c->bytes ? bytes : sizeof c->bytes);
    int rc = grammar_open(c->bytes, bytes, &c->grammar, em);
    if (rc == 0) begin(c);
    return rc;
}

/* Goes on by a token. `work` is what is beyond the tokens' share so far. */
static void go_on(struct constraint *c, const struct masks *m, struct grammar_state *s,
                  int32_t token)
{
    (void)masks_step(m, &c->grammar, s, token);
    s->work = s->work > CONSTRAINT_WORK ? s->work - CONSTRAINT_WORK : 0;
}

/* Goes on by a token, which is noted where it is behind c->old. */
static void step(struct constraint *c, const struct masks *m, int32_t token)
{
    if (c->now.n - c->old.n == 2 * CONSTRAINT_BACK) {
        for (uint32_t i = 0; i < CONSTRAINT_BACK; i++) go_on(c, m, &c->old.state, c->told[i]);
        c->old.n += CONSTRAINT_BACK;
        memmove(c->told, c->told + CONSTRAINT_BACK, CONSTRAINT_BACK * sizeof *c->told);
    }
    c->told[c->now.n - c->old.n] = token;
    go_on(c, m, &c->now.state, token);
    c->now.n++;
}

/* How many of the noted tokens, of which `most` count, are still the answer's. */
static uint32_t unchanged(const struct constraint *c, uint32_t boundary, uint32_t most,
                          constraint_said_fn said, const void *arg)
{
    uint32_t i = 0;
    while (i < most) {
        uint32_t n = 0;
        const int32_t *ids = said(arg, boundary + c->old.n + i, &n);
        CHECK(n > 0);
        for (uint32_t k = 0; k < n && i < most; k++, i++)
            if (ids[k] != c->told[i]) return i;
    }
    return i;
}

const struct grammar_state *constraint_seek(struct constraint *c, const struct masks *m,
                                            uint32_t boundary, uint32_t pos,
                                            constraint_said_fn said, const void *arg)
{
    uint32_t n = pos > boundary ? pos - boundary : 0; /* of the answer's tokens so far */
    if (n < c->old.n) begin(c);
    uint32_t noted = c->now.n - c->old.n, most = n - c->old.n < noted ? n - c->old.n : noted;
    uint32_t same = unchanged(c, boundary, most, said, arg);
    if (same < noted) { /* from the old state on, by the tokens that are still right */
        copy_state(&c->now, &c->old);
        for (uint32_t i = 0; i < same; i++) go_on(c, m, &c->now.state, c->told[i]);
        c->now.n = c->old.n + same;
    }
    while (c->now.n < n && !constraint_is_dear(c)) {
        uint32_t some = 0;
        const int32_t *ids = said(arg, boundary + c->now.n, &some);
        CHECK(some > 0);
        for (uint32_t k = 0; k < some && c->now.n < n && !constraint_is_dear(c); k++)
            step(c, m, ids[k]);
    }
    return &c->now.state;
}

bool constraint_is_dear(const struct constraint *c)
{
    return c->now.state.work > (uint64_t)CONSTRAINT_BACK * CONSTRAINT_WORK;
}
