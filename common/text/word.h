/* Merging, as all byte-pair vocabularies do it: a word begins as symbols (bytes or characters), and
 * neighbours that together are a token are merged, the best pair first, until none are. A
 * heap of candidates over a linked list of symbols: O(n log n). Private to common/text. */
#ifndef FLOTILLA_TEXT_WORD_H
#define FLOTILLA_TEXT_WORD_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct symbol {
    uint32_t at, len; /* bytes of the text; len 0: merged into the one before */
    int32_t id;       /* -1: no token */
    int32_t prev, next;
};

struct word {
    struct symbol *symbols;
    /* Pairs of neighbours that are tokens: order << 32 | left symbol. The smallest is merged first,
     * of equals the leftmost. */
    uint64_t *heap;
    size_t n_heap, cap;
};

/* The token that two neighbours make together, and its order: the lowest is merged first. False:
 * they make none. */
typedef bool (*word_find_fn)(const void *arg, const char *text, const struct symbol *left,
                             const struct symbol *right, int32_t *ret_id, uint32_t *ret_order);

/* Room for n symbols: the caller fills in `at`, `len`, `id`; word_merge links them. ERR_NOMEM. */
int word_room(struct word *w, size_t n, struct errmsg *em);
/* Merges symbols[0..n); what is left is the chain from symbol 0 on by `next` (-1: the end). */
void word_merge(struct word *w, size_t n, const char *text, word_find_fn find, const void *arg);
void word_close(struct word *w);

#endif
