/* The KV pages of one replica, as the core counts them: who holds a page, which are free, and which
 * keep a prefix that others may share. The stages keep what is in them.
 *
 * A page is free, held (by as many tables as its count says), or cached: nobody holds it, but the
 * index knows what it keeps. pages_take turns the cached leaf that was used least lately into a new
 * page when none is free; a page whose continuation is in the index is not a leaf, so a chain is
 * given up from its end.
 *
 * The index finds whole pages of token ids by a hash chained over the pages before, seeded so that
 * it covers the cluster, the model, the KV type, the page size and the tenant. The hash only finds:
 * a hit needs the same tenant and token ids, and as parent the very entry that the walk came
 * through.
 *
 * Pure, owned by one thread, allocates when opened only. */
#ifndef FLOTILLA_CORE_PAGES_H
#define FLOTILLA_CORE_PAGES_H

#include "common/base/hash.h"

#include <stdbool.h>
#include <stdint.h>

struct pages_config {
    uint32_t n_pages, page_size; /* positions of a page, at least 1 */
    bool share;                  /* false: nothing is kept or found */
    struct hash128 seed;         /* of cluster, model, KV type and page size */
    uint64_t hash_mask;          /* of the hash: all ones in service, fewer to force collisions */
};

struct pages_stats {
    uint32_t n_free, n_cached, n_held; /* sum: n_pages */
    uint64_t hashes;                   /* updates of a chained hash */
    uint64_t lookups;                  /* of one page in the index */
    uint64_t entered, evicted;
};

/* Where a walk along a sequence's pages stands; begins with pages_root. The tokens of the page
 * after it are the same whenever it is looked for: their hash is kept. */
struct prefix {
    struct hash128 hash, next; /* of the pages walked, and with the page after them */
    uint64_t tenant;
    uint64_t serial; /* of the last entry walked; 0: the root */
    uint32_t page;   /* that entry's */
    bool has_next;
};

enum pages_found {
    PAGES_NONE, /* not in the index */
    PAGES_HIT,  /* held for the caller */
    PAGES_SOON, /* it is being computed in the very Step that is being composed */
};

struct pages;

struct pages *pages_open(const struct pages_config *config);
void pages_close(struct pages *p);
/* Bytes that the tables take for each page of so many positions. */
size_t pages_bytes(uint32_t page_size);
/* A new generation: every page is free, the index is empty. */
void pages_clear(struct pages *p);

/* A page with a count of one; false: every page is held. */
bool pages_take(struct pages *p, uint32_t *ret_page);
/* Pages that pages_take can give. */
uint32_t pages_available(const struct pages *p);
/* One holder less. */
void pages_drop(struct pages *p, uint32_t page);

struct prefix pages_root(const struct pages *p, uint64_t tenant);
/* Looks for the page after the walk, which holds tokens[page_size], and holds it: look-up and pin
 * are one. A hit is a page that was entered before Step `step`; the walk then goes on. */
enum pages_found pages_find(struct pages *p, struct prefix *walk, const int32_t *tokens,
                            uint64_t step, uint32_t *ret_page);
/* Enters a page that the caller holds and whose last row is issued in Step `step`. Returns the page
 * to go on with: `page`, or the one that the index has for these tokens, which is then held too;
 * the caller lets go of `page` when the Step is composed, for until then its rows still go there.
 */
uint32_t pages_enter(struct pages *p, struct prefix *walk, const int32_t *tokens, uint64_t step,
                     uint32_t page);

struct pages_stats pages_stats(const struct pages *p);

/* What a checker needs to recount without this module's help. */
struct page_view {
    uint32_t count;
    bool free, entered;
    uint64_t serial, parent; /* of an entered page; parent 0: the root */
    const int32_t *tokens;   /* page_size */
};
struct page_view pages_view(const struct pages *p, uint32_t page);

#endif
