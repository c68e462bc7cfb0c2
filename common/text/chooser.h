/* Chooses a token from a row of logits: bias, penalties, filters, noise, the choice, and its
 * log-probabilities. The last stage of a chain and a program that runs the engine by itself both
 * choose here, so that their answers cannot differ.
 *
 * It holds room for one row of a vocabulary, and nothing of any request: what a request asked for
 * and the tokens before the chosen one come with each choice. One thread at a time. */
#ifndef FLOTILLA_TEXT_CHOOSER_H
#define FLOTILLA_TEXT_CHOOSER_H

#include "common/base/err.h"
#include "common/base/sampling.h"
#include "common/text/masks.h"
#include "common/text/sample.h"

struct chooser;
struct constraint; /* constraint.h */

/* vocab: tokens, as the model's file says (at least 1). ERR_NOMEM. */
int chooser_open(uint32_t vocab, struct chooser **ret, struct errmsg *em);
/* From now on answers may be constrained. The vocabulary is read once. ERR_NOMEM. */
int chooser_learn(struct chooser *c, const struct vocab *v, struct errmsg *em);
/* May be NULL. */
void chooser_close(struct chooser *c);

/* The sequence's tokens from position `pos` on, as many as lie side by side: *ret_n, at least 1.
 * Borrowed until the choice is made. Each is in the vocabulary. */
typedef const int32_t *(*chooser_said_fn)(const void *arg, uint32_t pos, uint32_t *ret_n);

struct chooser_ask {
    const struct sampling *sampling; /* borrowed, like all else here */
    uint32_t sample;                 /* which of several answers to the one prompt */
    uint32_t pos;                    /* of the token that is chosen */
    uint32_t boundary;               /* the first position that is not the prompt's */
    const float *logits;             /* one for each token of the vocabulary */
    chooser_said_fn said;            /* gives the tokens before `pos`; called only for penalties and
                                        constraints */
    const void *said_arg;
    struct constraint *constraint; /* on the answer's form; NULL: none. Needs chooser_learn */
};

struct chooser_choice {
    int32_t token;
    /* Where log-probabilities were asked for: of the token, and of the likeliest, best first (as
     * many as were asked for and as there are tokens). */
    float logprob;
    uint32_t n_top;
    struct sample_candidate top[SAMPLING_TOP_MAX];
};

/* ERR_FORMAT: a logit is not finite; ERR_NOTFOUND: no token is allowed; ERR_LIMIT: which are takes
 * too long to find. Allocates nothing. */
int chooser_choose(struct chooser *c, const struct chooser_ask *a, struct chooser_choice *ret);
/* The words for what it returned below 0, for a request's end. */
const char *chooser_why(int rc);
/* How many alternatives to each token are told: what was asked for, at most the vocabulary. */
uint32_t chooser_n_top(const struct chooser *c, const struct sampling *s);
/* What constraints cost so far. */
struct masks_counts chooser_counts(const struct chooser *c);

#endif
