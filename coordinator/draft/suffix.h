/* One text of tokens, and where in it a context occurred before. Tokens are appended; a search
 * changes nothing. Knows nothing of requests or tenants. One thread at a time.
 *
 * The idea is SuffixDecoding's (Oliaro et al. 2024): what followed the longest end of the context
 * that occurred before is likely to follow again. In place of a suffix tree each position is in two
 * hash tables, by the last two and by the last four tokens, whose chains are walked from the most
 * recent occurrence back, as LZ77 compressors do: appending costs two writes, and memory is 20
 * bytes a position whatever the text. */
#ifndef FLOTILLA_DRAFT_SUFFIX_H
#define FLOTILLA_DRAFT_SUFFIX_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define SUFFIX_CONTEXT_MAX                                                                         \
    64u                 /* tokens of a context that are compared; longer matches are alike         \
                         */
#define SUFFIX_LEAST 2u /* shorter matches are chance */
#define SUFFIX_FOUND_MAX 64u
#define SUFFIX_WALK 256u /* occurrences that a search looks at */

struct suffix {
    int32_t *tokens;    /* public, read-only: n of them */
    uint32_t n;         /* public, read-only */
    uint32_t cap;       /* private, like the next: 0 or a power of two */
    uint32_t *table[4]; /* of two and of four tokens: heads, chains */
};

/* Zeroed, a text is empty. */
void suffix_close(struct suffix *s);

/* Bytes that a text of n tokens takes. */
size_t suffix_bytes(uint32_t n);

/* ERR_NOMEM: nothing changed. n is below 2^30 with what the text has. */
int suffix_add(struct suffix *s, const int32_t *tokens, uint32_t n);
/* Forgets the first tokens, so that at most `keep` are left. */
void suffix_drop(struct suffix *s, uint32_t keep);

/* Finds where the end of the context (n tokens, of which the last SUFFIX_CONTEXT_MAX count)
 * occurred with a token behind it: the positions of those tokens, the most recent first, all of
 * them below `limit`. All of them follow equally long matches, the longest that were seen. Returns
 * how many they are; *ret_len is the length of the match, 0 if there is none of SUFFIX_LEAST. */
uint32_t suffix_find(const struct suffix *s, const int32_t *context, uint32_t n, uint32_t limit,
                     uint32_t ret_at[static SUFFIX_FOUND_MAX], uint32_t *ret_len);

#endif
