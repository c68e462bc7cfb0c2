/* Drafts without a model: what followed the same tokens in the request's own text, or in earlier
 * outputs of its tenant. Texts of other tenants are never drafted from. Bounded in memory: the
 * oldest outputs of the tenant that holds most make room. Knows no sockets or threads; one thread
 * at a time. */
#ifndef FLOTILLA_DRAFT_NGRAM_H
#define FLOTILLA_DRAFT_NGRAM_H

#include "coordinator/draft/suffix.h"

#include <stdbool.h>
#include <stdint.h>

#define NGRAM_KEPT_MAX 4096u    /* earlier outputs, of all tenants */
#define NGRAM_SEARCHED_MAX 256u /* of a tenant's, the most recent, that a draft looks into */
#define NGRAM_KEPT_LEAST 8u     /* shorter outputs are not kept */
/* A draft has at most so many tokens for each of the match that it follows. */
#define NGRAM_FACTOR 3u

struct ngram;

struct ngram *ngram_open(size_t bytes_max);
/* May be NULL. Texts must have ended. */
void ngram_close(struct ngram *g);

/* A request's text, prompt and answer; embedded by the caller. */
struct ngram_text {
    uint64_t tenant;
    struct suffix suffix; /* of its last tokens; private, like the next */
    bool full;            /* there was no room for it: it has no drafts */
};

void ngram_begin(struct ngram *g, struct ngram_text *t, uint64_t tenant);
/* The text's next tokens. Of a text that is longer than an eighth of all memory the last part is
 * kept. */
void ngram_add(struct ngram *g, struct ngram_text *t, const int32_t *tokens, uint32_t n);
/* output: n tokens, which later requests of the tenant may have drafts from; n = 0: none. */
void ngram_end(struct ngram *g, struct ngram_text *t, const int32_t *output, uint32_t n);

/* Up to `want` tokens that are likely to follow the text and n_tail guesses behind it. Of the
 * places where the longest match occurred, those that agree with most others are followed, token by
 * token, and among equals the most recent. Where there is hardly a match, but was a long one a few
 * tokens ago, the text is taken for an edited copy that goes on behind the edit. Returns how many
 * tokens there are. */
uint32_t ngram_draft(struct ngram *g, const struct ngram_text *t, const int32_t *tail,
                     uint32_t n_tail, uint32_t want, int32_t *ret);

struct ngram_stats {
    size_t bytes, bytes_max;
    uint64_t kept, evicted; /* earlier outputs: held now; dropped for others */
    uint64_t unindexed;     /* texts for which there was no room */
    uint64_t foreign;       /* matches in another tenant's text that were refused: a fault */
};

struct ngram_stats ngram_stats(const struct ngram *g);

#endif
