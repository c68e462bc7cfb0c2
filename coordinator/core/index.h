/* Which replica holds which prefix: one index for the cluster. A prefix is whole pages of token
 * ids. It is found by a hash chained over its pages, which is seeded so that it covers the cluster,
 * the model, the KV type, the page size and the tenant. The hash only finds: a hit needs the same
 * tenant and token ids, and as parent the very entry that the walk came through.
 *
 * An entry is a prefix, whoever holds it. Its holders are replicas, each with the page of its own
 * pool that keeps the last page of the prefix; a page holds for one entry at most. A replica that
 * holds an entry holds the entry's parent too: what a replica holds is a tree, and only a leaf of
 * it may be removed, so that a chain is given up from its end. An entry without holders is gone.
 *
 * A replica may also be promised to hold a prefix soon. It counts among the holders, without a
 * page.
 *
 * What a page keeps, and whether a sequence refers to it, is not known here (pages.h). Whatever
 * else than keys and values is kept for the end of a prefix, by replica, can have holders too.
 *
 * Pure, owned by one thread. Takes memory when a pool is set, when an entry or a holder is added,
 * and in index_stock. */
#ifndef FLOTILLA_CORE_INDEX_H
#define FLOTILLA_CORE_INDEX_H

#include "common/base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INDEX_NONE UINT32_MAX     /* no page */
#define INDEX_PROMISES (1u << 18) /* pages, at the most */

struct index_config {
    uint32_t n_replicas; /* at most LIMIT_REPLICAS */
    uint32_t page_size;  /* positions of a page, at least 1 */
    struct hash128 seed; /* of cluster, model, KV type and page size */
    uint64_t hash_mask;  /* of the hash: all ones in service, fewer to force collisions */
};

/* Where a walk along a sequence's pages in one replica stands; begins with index_root. The tokens
 * of the page after it are the same whenever it is looked for: their hash is kept. */
struct prefix {
    struct hash128 hash, next; /* of the pages walked, and with the page after them */
    uint64_t tenant;
    uint64_t serial; /* of the last entry walked; 0: the root */
    uint32_t page;   /* of the replica, which holds that entry */
    bool has_next;
};

struct index;

struct index *index_open(const struct index_config *config);
void index_close(struct index *x);
/* Bytes that the tables take for each page of so many positions, where no two replicas hold one
 * prefix. */
size_t index_bytes(uint32_t page_size);
/* A replica's pool has so many pages from now on; it holds nothing. */
void index_set_pool(struct index *x, uint32_t replica, uint32_t n_pages);
/* The replica holds nothing any more. */
void index_clear(struct index *x, uint32_t replica);

/* Memory for entries to come, a little of it at each call; between arrivals, so that they need not
 * take it. Without it, all works as well. */
void index_stock(struct index *x);

struct prefix index_root(const struct index *x, uint64_t tenant);
/* The replica's page that holds tokens[page_size] behind the walk, or INDEX_NONE. */
uint32_t index_find(const struct index *x, uint32_t replica, struct prefix *walk,
                    const int32_t *tokens);
/* The walk goes on over the entry of a page that index_find has found behind it. */
void index_follow(const struct index *x, uint32_t replica, struct prefix *walk, uint32_t page);
/* A page of the replica that holds nothing holds from now on what is behind the walk, where
 * index_find has found nothing for these tokens; its last row is issued in Step `step`. The walk
 * goes on over it. */
void index_enter(struct index *x, uint32_t replica, struct prefix *walk, const int32_t *tokens,
                 uint64_t step, uint32_t page);
/* The replica's page, a leaf, holds nothing any more. Returns the page of its parent where that is
 * a leaf now, or INDEX_NONE. */
uint32_t index_remove(struct index *x, uint32_t replica, uint32_t page);

/* Where a look ended: valid until the index changes. */
struct index_found {
    struct prefix walk;
    struct index_node *last; /* NULL: nothing was found */
    uint32_t depth;          /* pages found */
};

/* How many of the first n_pages pages of these tokens each replica holds: ret_held[n_replicas].
 * Takes time for the pages found and for the replicas. */
struct index_found index_match(const struct index *x, uint64_t tenant, const int32_t *tokens,
                               uint32_t n_pages, uint32_t *ret_held);

/* The same of one replica: what was found is what it holds. Takes time for these pages. */
struct index_found index_held(const struct index *x, uint32_t replica, uint64_t tenant,
                              const int32_t *tokens, uint32_t n_pages);

/* From the last page found back to the first: the page of the replica that holds it, or INDEX_NONE,
 * where it is only promised or is not held at all. `found`, of which something is left, has one
 * page less then; its walk stays where it was. */
uint32_t index_back(struct index_found *found, uint32_t replica);

/* The request whose first n_pages pages index_match was just asked for, with these tokens, is sent
 * to the replica: until index_settle, which takes what this returns, index_match counts them as
 * held there. Both take time for the pages that the replica does not hold. NULL: nothing is
 * promised, since n_pages is 0 or INDEX_PROMISES pages are. */
struct index_node *index_promise(struct index *x, uint32_t replica, const struct index_found *found,
                                 const int32_t *tokens, uint32_t n_pages);
void index_settle(struct index *x, uint32_t replica, struct index_node *promise);

/* What a page of a replica holds. */
struct index_entry {
    uint64_t serial;       /* of its holding, no other page has or had it; 0: it holds nothing */
    uint64_t parent;       /* serial of the replica's holding of the parent; 0: the root */
    uint64_t step;         /* in which its last row is issued */
    const int32_t *tokens; /* page_size; valid until the page holds nothing */
};
struct index_entry index_entry_of(const struct index *x, uint32_t replica, uint32_t page);

#endif
