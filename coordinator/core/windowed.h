/* The windowed pages of one replica, as the core counts them: they keep positions for the layers
 * that see only a window. What is said of pages in pages.h holds for them too, with one difference:
 * what such a page keeps is found through the whole page of the same positions, to which it is
 * attached. At most one is attached to each. An attached page that nobody holds is cached; when
 * none is free, windowed_take detaches the least recently used one. No such page depends on
 * another.
 *
 * Pure, owned by one thread. */
#ifndef FLOTILLA_CORE_WINDOWED_H
#define FLOTILLA_CORE_WINDOWED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WINDOWED_NONE UINT32_MAX /* no page */

struct windowed_stats {
    uint32_t n_free, n_cached, n_held; /* sum: all */
    uint64_t evicted;                  /* cached pages that were given up */
};

struct windowed;

/* For a pool of n_whole whole pages. */
struct windowed *windowed_open(uint32_t n_pages, uint32_t n_whole);
/* May be NULL. */
void windowed_close(struct windowed *w);
/* Bytes that the tables take for each whole page, at most. */
size_t windowed_bytes(void);
/* A new generation: every page is free. Nobody may hold one. */
void windowed_clear(struct windowed *w);

/* A page with a count of one; false: every page is held. */
bool windowed_take(struct windowed *w, uint32_t *ret_page);
/* Pages that windowed_take can give. */
uint32_t windowed_available(const struct windowed *w);
/* One holder less of a page that is held. */
void windowed_drop(struct windowed *w, uint32_t page);

/* The page that is attached to a whole page, or WINDOWED_NONE. *ret_step: the Step in which its
 * last row is issued; it may be read in later ones. */
uint32_t windowed_of(const struct windowed *w, uint32_t whole, uint64_t *ret_step);
/* One holder more of an attached page. */
void windowed_hold(struct windowed *w, uint32_t page);
/* The caller holds a page that keeps the same positions of the same tokens as a whole page which is
 * in the index; its last row is issued in Step `step`. Returns the page to go on with: `page`,
 * which is attached now, or the one that was attached before, which is then held too; the caller
 * lets go of `page` when the Step is composed, for until then its rows still go there. */
uint32_t windowed_attach(struct windowed *w, uint32_t whole, uint32_t page, uint64_t step);
/* A whole page, which nobody holds, keeps something else from now on. */
void windowed_forget(struct windowed *w, uint32_t whole);

struct windowed_stats windowed_stats(const struct windowed *w);

/* What a checker needs to recount. */
struct windowed_view {
    uint32_t count, whole; /* whole: the page to which it is attached, or WINDOWED_NONE, */
    uint64_t step;         /* and the Step in which its last row was issued */
    bool free;
};
struct windowed_view windowed_view(const struct windowed *w, uint32_t page);

#endif
