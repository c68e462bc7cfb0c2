/* Every page has a record; free pages are a stack, and the cached ones a list threaded through the
 * records in the order in which they were let go of. */
#include "coordinator/core/windowed.h"

#include "common/base/check.h"
#include "common/base/mem.h"

struct page {
    uint32_t count;
    uint32_t whole;        /* to which it is attached, or WINDOWED_NONE */
    uint32_t older, newer; /* of a cached page: its neighbours in the list, or WINDOWED_NONE */
    uint64_t step;         /* of an attached page: in which its last row is issued */
    bool free;
};

struct windowed {
    uint32_t n_pages, n_whole;
    struct page *pages;
    uint32_t *attached;      /* n_whole: to each whole page, or WINDOWED_NONE */
    uint32_t *free;          /* n_free, a stack */
    uint32_t oldest, newest; /* cached */
    struct windowed_stats stats;
};

struct windowed *windowed_open(uint32_t n_pages, uint32_t n_whole)
{
    struct windowed *w = mem_zalloc(sizeof *w);
    w->n_pages = n_pages;
    w->n_whole = n_whole;
    w->pages = mem_zalloc((n_pages + 1) * sizeof *w->pages);
    w->attached = mem_zalloc((n_whole + 1) * sizeof *w->attached);
    w->free = mem_zalloc((n_pages + 1) * sizeof *w->free);
    windowed_clear(w);
    return w;
}

void windowed_close(struct windowed *w)
{
    if (!w) return;
    mem_free(w->pages);
    mem_free(w->attached);
    mem_free(w->free);
    mem_free(w);
}

size_t windowed_bytes(void)
{
    /* A record, what is attached, its places in the stack and in the list of pages that a step
     * build had twice. */
    return sizeof(struct page) + 3 * sizeof(uint32_t);
}

void windowed_clear(struct windowed *w)
{
    CHECK(w->stats.n_held == 0);
    for (uint32_t i = 0; i < w->n_pages; i++) {
        w->pages[i] = (struct page){.whole = WINDOWED_NONE, .free = true};
        w->free[i] = w->n_pages - 1 - i;
    }
    for (uint32_t i = 0; i < w->n_whole; i++) w->attached[i] = WINDOWED_NONE;
    w->oldest = w->newest = WINDOWED_NONE;
    w->stats.n_free = w->n_pages;
    w->stats.n_cached = w->stats.n_held = 0;
}

/* ---- cached pages ---- */

static void leave_list(struct windowed *w, const struct page *x)
{
    *(x->older == WINDOWED_NONE ? &w->oldest : &w->pages[x->older].newer) = x->newer;
    *(x->newer == WINDOWED_NONE ? &w->newest : &w->pages[x->newer].older) = x->older;
    CHECK(w->stats.n_cached > 0);
    w->stats.n_cached--;
}

static void enter_list(struct windowed *w, uint32_t i)
{
    struct page *x = &w->pages[i];
    x->older = w->newest;
    x->newer = WINDOWED_NONE;
    *(x->older == WINDOWED_NONE ? &w->oldest : &w->pages[x->older].newer) = i;
    w->newest = i;
    w->stats.n_cached++;
}

/* A page that nobody holds, and that is not cached, is free. */
static void make_free(struct windowed *w, uint32_t i)
{
    CHECK(w->stats.n_free < w->n_pages);
    w->pages[i] = (struct page){.whole = WINDOWED_NONE, .free = true};
    w->free[w->stats.n_free++] = i;
}

void windowed_forget(struct windowed *w, uint32_t whole)
{
    uint32_t i = w->attached[whole];
    if (i == WINDOWED_NONE) return;
    CHECK(w->pages[i].count == 0 && w->pages[i].whole == whole);
    w->attached[whole] = WINDOWED_NONE;
    leave_list(w, &w->pages[i]);
    make_free(w, i);
}

/* ---- counts ---- */

bool windowed_take(struct windowed *w, uint32_t *ret_page)
{
    if (w->stats.n_free == 0 && w->oldest != WINDOWED_NONE) {
        windowed_forget(w, w->pages[w->oldest].whole);
        w->stats.evicted++;
    }
    if (w->stats.n_free == 0) return false;
    *ret_page = w->free[--w->stats.n_free];
    struct page *x = &w->pages[*ret_page];
    CHECK(x->free && x->count == 0);
    x->free = false;
    x->count = 1;
    w->stats.n_held++;
    return true;
}

uint32_t windowed_available(const struct windowed *w)
{
    return w->stats.n_free + w->stats.n_cached;
}

void windowed_drop(struct windowed *w, uint32_t page)
{
    CHECK(page < w->n_pages);
    struct page *x = &w->pages[page];
    CHECK(x->count > 0 && w->stats.n_held > 0);
    if (--x->count > 0) return;
    w->stats.n_held--;
    if (x->whole != WINDOWED_NONE)
        enter_list(w, page);
    else
        make_free(w, page);
}

void windowed_hold(struct windowed *w, uint32_t page)
{
    struct page *x = &w->pages[page];
    CHECK(page < w->n_pages && x->whole != WINDOWED_NONE);
    if (x->count++ > 0) return;
    leave_list(w, x);
    w->stats.n_held++;
}

/* ---- what is attached ---- */

uint32_t windowed_of(const struct windowed *w, uint32_t whole, uint64_t *ret_step)
{
    CHECK(whole < w->n_whole);
    uint32_t i = w->attached[whole];
    if (i != WINDOWED_NONE) *ret_step = w->pages[i].step;
    return i;
}

uint32_t windowed_attach(struct windowed *w, uint32_t whole, uint32_t page, uint64_t step)
{
    CHECK(whole < w->n_whole && page < w->n_pages);
    struct page *x = &w->pages[page];
    uint32_t before = w->attached[whole];
    CHECK(x->count > 0 && x->whole == WINDOWED_NONE);
    if (before != WINDOWED_NONE) {
        windowed_hold(w, before);
        return before;
    }
    w->attached[whole] = page;
    x->whole = whole;
    x->step = step;
    return page;
}

struct windowed_stats windowed_stats(const struct windowed *w)
{
    return w->stats;
}

struct windowed_view windowed_view(const struct windowed *w, uint32_t page)
{
    const struct page *x = &w->pages[page];
    return (struct windowed_view){
        .count = x->count, .whole = x->whole, .step = x->step, .free = x->free};
}
