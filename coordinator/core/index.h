/* Which page of a pool holds a prefix: whole pages of token ids, found by a hash chained over the
 * pages before. The hash is seeded so that it covers the cluster, the model, the KV type, the page
 * size and the tenant. It only finds: a hit needs the same tenant and token ids, and as parent the
 * very entry that the walk came through.
 *
 * An entry belongs to one page. The entries are a tree; only a leaf may be removed, so that a chain
 * is given up from its end. Who holds a page is not known here (pages.h).
 *
 * Pure, owned by one thread, allocates when opened only. */
#ifndef FLOTILLA_CORE_INDEX_H
#define FLOTILLA_CORE_INDEX_H

#include "common/base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INDEX_NONE UINT32_MAX /* no page */

struct index_config {
    uint32_t n_pages, page_size; /* positions of a page, at least 1 */
    struct hash128 seed;         /* of cluster, model, KV type and page size */
    uint64_t hash_mask;          /* of the hash: all ones in service, fewer to force collisions */
};

/* Where a walk along a sequence's pages stands; begins with index_root. The tokens of the page
 * after it are the same whenever it is looked for: their hash is kept. */
struct prefix {
    struct hash128 hash, next; /* of the pages walked, and with the page after them */
    uint64_t tenant;
    uint64_t serial; /* of the last entry walked; 0: the root */
    uint32_t page;   /* that entry's */
    bool has_next;
};

struct index;

struct index *index_open(const struct index_config *config);
void index_close(struct index *x);
/* Bytes that the tables take for each page of so many positions. */
size_t index_bytes(uint32_t page_size);
/* Forgets all entries. */
void index_clear(struct index *x);

struct prefix index_root(const struct index *x, uint64_t tenant);
/* The page that holds tokens[page_size] behind the walk, or INDEX_NONE. */
uint32_t index_find(const struct index *x, struct prefix *walk, const int32_t *tokens);
/* The walk goes on over the entry of a page that index_find has found behind it. */
void index_follow(const struct index *x, struct prefix *walk, uint32_t page);
/* Enters a page that has no entry, behind the walk, where index_find has found none for these
 * tokens; its last row is issued in Step `step`. The walk goes on over it. */
void index_enter(struct index *x, struct prefix *walk, const int32_t *tokens, uint64_t step,
                 uint32_t page);
/* Removes a page's entry, a leaf. Returns the page of its parent where that is a leaf now, or
 * INDEX_NONE. */
uint32_t index_remove(struct index *x, uint32_t page);

/* A page's entry; serial 0: it has none. */
struct index_entry {
    uint64_t serial, parent; /* parent 0: the root */
    uint64_t step;           /* in which its last row is issued */
    bool leaf;
    const int32_t *tokens; /* page_size; valid until the entry is removed */
};
struct index_entry index_entry_of(const struct index *x, uint32_t page);

#endif
