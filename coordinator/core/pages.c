/* Every page has a record; free pages are a stack, and the cached ones a list threaded through the
 * records in the order in which they were let go of. Whoever holds a page holds those that it
 * continues, and lets go of it first. So the oldest of the list is one that no other continues. */
#include "coordinator/core/pages.h"

#include "common/base/check.h"
#include "common/base/mem.h"

#define NONE UINT32_MAX

struct page {
    uint32_t count;
    uint32_t older, newer; /* of a cached page: its neighbours in the list, or NONE */
    bool free;
};

struct pages {
    struct pages_config cfg;
    struct page *pages;
    uint32_t *free;          /* n_free, a stack */
    uint32_t oldest, newest; /* cached */
    struct pages_stats stats;
};

struct pages *pages_open(const struct pages_config *config)
{
    struct pages *p = mem_zalloc(sizeof *p);
    p->cfg = *config;
    index_set_pool(config->index, config->replica, config->n_pages);
    p->pages = mem_zalloc((config->n_pages + 1) * sizeof *p->pages);
    p->free = mem_zalloc((config->n_pages + 1) * sizeof *p->free);
    pages_clear(p);
    return p;
}

size_t pages_bytes(uint32_t page_size)
{
    /* A record, its entry in the index, its places in the stack and in the list of pages that a
     * step build had twice. */
    return sizeof(struct page) + index_bytes(page_size) + 2 * sizeof(uint32_t);
}

void pages_close(struct pages *p)
{
    if (!p) return;
    index_set_pool(p->cfg.index, p->cfg.replica, 0);
    mem_free(p->pages);
    mem_free(p->free);
    mem_free(p);
}

void pages_clear(struct pages *p)
{
    uint32_t n = p->cfg.n_pages;
    CHECK(p->stats.n_held == 0); /* whoever held some has let go of them */
    for (uint32_t i = 0; i < n; i++) {
        p->pages[i] = (struct page){.free = true};
        p->free[i] = n - 1 - i;
    }
    index_clear(p->cfg.index, p->cfg.replica);
    if (p->cfg.windowed) windowed_clear(p->cfg.windowed);
    p->oldest = p->newest = NONE;
    p->stats.n_free = n;
    p->stats.n_cached = p->stats.n_held = 0;
}

static struct index_entry entry_of(const struct pages *p, uint32_t i)
{
    return index_entry_of(p->cfg.index, p->cfg.replica, i);
}

/* ---- cached pages ---- */

static void leave_list(struct pages *p, const struct page *x)
{
    *(x->older == NONE ? &p->oldest : &p->pages[x->older].newer) = x->newer;
    *(x->newer == NONE ? &p->newest : &p->pages[x->newer].older) = x->older;
    CHECK(p->stats.n_cached > 0);
    p->stats.n_cached--;
}

static void enter_list(struct pages *p, uint32_t i)
{
    struct page *x = &p->pages[i];
    CHECK(!x->free && x->count == 0);
    x->older = p->newest;
    x->newer = NONE;
    *(x->older == NONE ? &p->oldest : &p->pages[x->older].newer) = i;
    p->newest = i;
    p->stats.n_cached++;
}

/* ---- counts ---- */

static void make_free(struct pages *p, uint32_t i)
{
    CHECK(p->stats.n_free < p->cfg.n_pages);
    p->pages[i] = (struct page){.free = true};
    p->free[p->stats.n_free++] = i;
}

static void evict(struct pages *p, uint32_t i)
{
    (void)index_remove(p->cfg.index, p->cfg.replica, i);
    leave_list(p, &p->pages[i]);
    make_free(p, i);
    if (p->cfg.windowed) windowed_forget(p->cfg.windowed, i);
    p->stats.evicted++;
}

bool pages_take(struct pages *p, uint32_t *ret_page)
{
    if (p->stats.n_free == 0 && p->oldest != NONE) evict(p, p->oldest);
    if (p->stats.n_free == 0) return false;
    struct page *x = &p->pages[p->free[p->stats.n_free - 1]];
    CHECK(x->free && x->count == 0);
    *ret_page = p->free[--p->stats.n_free];
    x->free = false;
    x->count = 1;
    p->stats.n_held++;
    return true;
}

uint32_t pages_available(const struct pages *p)
{
    return p->stats.n_free + p->stats.n_cached;
}

static void hold(struct pages *p, uint32_t i)
{
    struct page *x = &p->pages[i];
    CHECK(!x->free);
    if (x->count++ > 0) return;
    leave_list(p, x);
    p->stats.n_held++;
}

void pages_drop(struct pages *p, uint32_t page)
{
    CHECK(page < p->cfg.n_pages);
    struct page *x = &p->pages[page];
    CHECK(x->count > 0 && p->stats.n_held > 0);
    if (--x->count > 0) return;
    p->stats.n_held--;
    if (entry_of(p, page).serial)
        enter_list(p, page);
    else
        make_free(p, page);
}

/* ---- the index ---- */

struct prefix pages_root(const struct pages *p, uint64_t tenant)
{
    return index_root(p->cfg.index, tenant);
}

enum pages_found pages_find(struct pages *p, struct prefix *walk, const int32_t *tokens,
                            uint64_t step, uint32_t *ret_page)
{
    uint32_t i = p->cfg.share ? index_find(p->cfg.index, p->cfg.replica, walk, tokens) : INDEX_NONE;
    if (i == INDEX_NONE) return PAGES_NONE;
    if (entry_of(p, i).step >= step) return PAGES_SOON;
    hold(p, i);
    index_follow(p->cfg.index, p->cfg.replica, walk, i);
    *ret_page = i;
    return PAGES_HIT;
}

uint32_t pages_enter(struct pages *p, struct prefix *walk, const int32_t *tokens, uint64_t step,
                     uint32_t page)
{
    if (!p->cfg.share) return page;
    CHECK(p->pages[page].count > 0);
    uint32_t i = index_find(p->cfg.index, p->cfg.replica, walk, tokens);
    if (i == INDEX_NONE) {
        index_enter(p->cfg.index, p->cfg.replica, walk, tokens, step, page);
        return page;
    }
    hold(p, i);
    index_follow(p->cfg.index, p->cfg.replica, walk, i);
    return i;
}

struct pages_stats pages_stats(const struct pages *p)
{
    return p->stats;
}

struct page_view pages_view(const struct pages *p, uint32_t page)
{
    const struct page *x = &p->pages[page];
    struct index_entry entry = entry_of(p, page);
    return (struct page_view){.count = x->count,
                              .free = x->free,
                              .entered = entry.serial != 0,
                              .serial = entry.serial,
                              .parent = entry.parent,
                              .tokens = entry.tokens};
}
