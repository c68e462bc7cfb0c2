/* Drafts from a small model: a GGUF of the target's vocabulary, through the project's own engine.
 * It chooses with the noise of the target (common/text/chooser.h: the same seed, sample and
 * position, the same penalties over the same history), so that acceptance is close to the best
 * possible (Daliri et al. 2024). Owned by the thread that opened it.
 *
 * Keys and values lie in pages of a pool. A sequence keeps those of the tokens that it computed
 * last; where an ask has other tokens from some position on, it goes on from there. Whole pages of
 * confirmed tokens are shared by sequences of one tenant that begin alike, and stay after their
 * request until others need the room. */
#ifndef FLOTILLA_DRAFT_SMALL_H
#define FLOTILLA_DRAFT_SMALL_H

#include "common/base/err.h"
#include "common/base/sampling.h"
#include "common/text/vocab.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SMALL_CHUNK 64u /* rows of a step, after which others have their turn */
#define SMALL_ENDED 64u /* sequences of ended requests that are kept */

struct small_options {
    const char *path;
    const char *isa;    /* NULL: the best */
    uint32_t threads;   /* at least 1 */
    uint64_t bytes_max; /* of weights, buffers, keys and values */
    uint32_t ctx;       /* most positions of a sequence; the model may have fewer */
    uint32_t vocab;     /* of the target, as are the next */
    const int32_t *ends;
    uint32_t n_ends;
    const struct vocab *text; /* NULL: tokens' texts are not compared */
};

struct small;
struct small_seq;

/* ERR_CONF: the model has another vocabulary or other end tokens than the target, and both are
 * named; ERR_NOMEM: it does not fit bytes_max or this machine; and errors of the file. */
int small_open(const struct small_options *o, struct small **ret, struct errmsg *em);
/* May be NULL. */
void small_close(struct small *m);

/* grammar: of the answer, bytes of it (copied); 0: it is free. One that cannot be read, or that
 * there is no memory for, is left out: drafts are wrong more often then. */
struct small_seq *small_begin(struct small *m, uint64_t tenant, const void *grammar, size_t bytes);
/* Its keys and values may serve others of the tenant. */
void small_end(struct small *m, struct small_seq *s);

struct small_ask {
    int32_t *tokens; /* n of them, and room for `want` more */
    uint32_t n;      /* at least 1 */
    uint32_t n_sure; /* of them, those that no later ask changes */
    uint32_t n_prompt;
    uint32_t want;
    uint32_t sample;
    const struct sampling *sampling; /* without log-probabilities */
    bool ignore_ends;
    const atomic_bool
        *stop; /* set by another thread: what there is by then is enough. May be NULL */
};

/* Puts up to `want` tokens behind the n and tells how many; the last may be an end token. Where the
 * sequence lacks more than SMALL_CHUNK rows it computes so many and returns ERR_AGAIN: to be called
 * again. ERR_LIMIT: there is no room for its keys and values; ERR_FORMAT: the model's logits are
 * not finite; ERR_RANGE: a token that it lacks. */
int small_draft(struct small *m, struct small_seq *s, const struct small_ask *a, uint32_t *ret_n,
                struct errmsg *em);

struct small_stats {
    uint64_t rows;        /* computed */
    uint64_t rows_reused; /* found computed by another sequence */
    uint64_t rows_undone; /* computed for tokens that did not hold */
    uint32_t pages, pages_used;
};

struct small_stats small_stats(const struct small *m);

#endif
