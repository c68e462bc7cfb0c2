/* The drafters of draft.h behind one door, without threads: which kinds there are, a request's text
 * and what each kind keeps of it, how often each was right, and what DRAFT_AUTO chooses. Owned by
 * one thread, which opened it. */
#ifndef FLOTILLA_DRAFT_GUESS_H
#define FLOTILLA_DRAFT_GUESS_H

#include "coordinator/draft/draft.h"

#include <stdatomic.h>

struct guesser; /* all requests share it */
struct guess;   /* a request */

/* As drafter_open, but for what needs no thread. */
int guesser_open(const struct drafter_options *o, struct guesser **ret, struct errmsg *em);
/* May be NULL. Requests must have ended. */
void guesser_close(struct guesser *g);
bool guesser_has(const struct guesser *g, enum draft_kind kind);
/* Those of its fields that drafters keep; the others stay as they are. */
void guesser_stats(const struct guesser *g, struct drafter_stats *ret);

/* The tokens of `r` are not read. */
struct guess *guess_begin(struct guesser *g, const struct drafter_request *r);
/* keep: see drafter_end. */
void guess_end(struct guesser *g, struct guess *q, bool keep);
/* The next n confirmed tokens. ERR_NOMEM: they are forgotten; the request can have no drafts. */
int guess_tokens(struct guesser *g, struct guess *q, const int32_t *tokens, uint32_t n);

struct guess_ask {
    uint32_t first_pos, n_tail, want; /* as in drafter_ask, like the next three */
    const int32_t *tail;
    const struct gain_chain *chain;
    const struct gain_load *load;
    uint64_t waited_ns;
    const atomic_bool *stop; /* as in small_ask */
};

/* Fills all of *ret but request and serial. False: other requests are to have their turn now, then
 * it is to be called again, with the same ask or a newer one. */
bool guess_ask(struct guesser *g, struct guess *q, const struct guess_ask *a,
               struct drafter_answer *ret);

#endif
