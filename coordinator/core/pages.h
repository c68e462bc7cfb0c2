/* The KV pages of one replica, as the core counts them: who holds a page, which are free, and which
 * keep a prefix that others may share. The stages keep what is in them.
 *
 * A page is free, held (by as many tables as its count says), or cached: nobody holds it, but the
 * cluster's index (index.h) knows what it keeps. When none is free, pages_take makes a new
 * page of the cached one that was let go of first. Tables let go of their pages from the end, so a
 * chain is given up from its end.
 *
 * Pure, owned by one thread. */
#ifndef FLOTILLA_CORE_PAGES_H
#define FLOTILLA_CORE_PAGES_H

#include "coordinator/core/index.h"
#include "coordinator/core/windowed.h"

#include <stdbool.h>
#include <stdint.h>

struct pages_config {
    struct index *index; /* of the cluster, borrowed until pages_close */
    uint32_t replica;    /* whose pool this is: the only one with this number at a time */
    uint32_t n_pages;
    bool share;                /* false: nothing is kept or found */
    struct windowed *windowed; /* whose pages are attached to these, or NULL; borrowed likewise */
};

struct pages_stats {
    uint32_t n_free, n_cached, n_held; /* sum: n_pages */
    uint64_t evicted;                  /* cached pages that were given up */
};

enum pages_found {
    PAGES_NONE, /* not in the index */
    PAGES_HIT,  /* held for the caller */
    PAGES_SOON, /* it is being computed in the very Step that is being composed */
};

struct pages;

struct pages *pages_open(const struct pages_config *config);
void pages_close(struct pages *p);
/* Bytes that the tables take for each page of so many positions, its part of the index included. */
size_t pages_bytes(uint32_t page_size);
/* A new generation: every page is free, and the index has none of them. Nobody may hold one. */
void pages_clear(struct pages *p);

/* A page with a count of one; false: every page is held. */
bool pages_take(struct pages *p, uint32_t *ret_page);
/* Pages that pages_take can give. */
uint32_t pages_available(const struct pages *p);
/* One holder less of a page that is held. */
void pages_drop(struct pages *p, uint32_t page);

/* Where a tenant's walk begins. */
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
    uint64_t serial, parent; /* of an entered page: as in struct index_entry */
    const int32_t *tokens;   /* page_size of an entered page */
};
struct page_view pages_view(const struct pages *p, uint32_t page);

#endif
