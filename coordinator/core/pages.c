/* Every page has a record; free pages are a stack, hash buckets and the leaves that may be evicted
 * are lists threaded through the records. The leaves lie in the order of their last use. */
#include "coordinator/core/pages.h"

#include "common/base/mem.h"

#include <string.h>

#define NONE UINT32_MAX

struct page {
    uint32_t count;
    uint32_t children; /* entries whose parent this is */
    uint64_t serial;   /* 0: not in the index */
    uint64_t parent;   /* its serial; 0: the root */
    uint64_t tenant;
    uint32_t parent_page;
    uint64_t step; /* in which its last row is issued */
    struct hash128 hash;
    uint32_t next_in_bucket;
    uint64_t used; /* when it was last let go of */
    uint32_t older, newer;
    bool leaf; /* it is in the list of leaves */
    bool free;
};

struct pages {
    struct pages_config cfg;
    struct page *pages;
    int32_t *tokens; /* page_size for each page */
    uint32_t *free;
    uint32_t *buckets, n_buckets;
    uint32_t oldest, newest; /* leaves */
    uint64_t serial, clock;
    struct pages_stats stats;
};

struct pages *pages_open(const struct pages_config *config)
{
    struct pages *p = mem_zalloc(sizeof *p);
    p->cfg = *config;
    p->n_buckets = 1;
    while (p->n_buckets < config->n_pages) p->n_buckets *= 2;
    p->pages = mem_zalloc((config->n_pages + 1) * sizeof *p->pages);
    p->tokens = mem_zalloc((size_t)config->n_pages * config->page_size * sizeof *p->tokens + 1);
    p->free = mem_zalloc((config->n_pages + 1) * sizeof *p->free);
    p->buckets = mem_zalloc(p->n_buckets * sizeof *p->buckets);
    pages_clear(p);
    return p;
}

size_t pages_bytes(uint32_t page_size)
{
    /* A record, its tokens, its places in the stack and in the index, which has up to two buckets
     * for a page, and in the list of pages that a Step had twice. */
    return sizeof(struct page) + page_size * sizeof(int32_t) + 4 * sizeof(uint32_t);
}

void pages_close(struct pages *p)
{
    if (!p) return;
    mem_free(p->pages);
    mem_free(p->tokens);
    mem_free(p->free);
    mem_free(p->buckets);
    mem_free(p);
}

void pages_clear(struct pages *p)
{
    uint32_t n = p->cfg.n_pages;
    for (uint32_t i = 0; i < n; i++) {
        p->pages[i] = (struct page){.free = true, .next_in_bucket = NONE};
        p->free[i] = n - 1 - i;
    }
    for (uint32_t i = 0; i < p->n_buckets; i++) p->buckets[i] = NONE;
    p->oldest = p->newest = NONE;
    p->stats.n_free = n;
    p->stats.n_cached = p->stats.n_held = 0;
}

/* ---- leaves ---- */

static void leave_list(struct pages *p, uint32_t i)
{
    struct page *x = &p->pages[i];
    if (!x->leaf) return;
    *(x->older == NONE ? &p->oldest : &p->pages[x->older].newer) = x->newer;
    *(x->newer == NONE ? &p->newest : &p->pages[x->newer].older) = x->older;
    x->leaf = false;
}

/* A page that is let go of is the newest. A parent whose last child went was used no earlier than
 * that child, the oldest of all: its place is near the old end. */
static void enter_list(struct pages *p, uint32_t i, bool newest)
{
    struct page *x = &p->pages[i];
    uint32_t older = newest ? p->newest : NONE;
    for (uint32_t at = newest ? NONE : p->oldest; at != NONE && p->pages[at].used < x->used;
         at = p->pages[at].newer)
        older = at;
    x->older = older;
    x->newer = older == NONE ? p->oldest : p->pages[older].newer;
    *(x->older == NONE ? &p->oldest : &p->pages[x->older].newer) = i;
    *(x->newer == NONE ? &p->newest : &p->pages[x->newer].older) = i;
    x->leaf = true;
}

/* ---- counts ---- */

static void evict(struct pages *p, uint32_t i)
{
    struct page *x = &p->pages[i];
    uint32_t *at = &p->buckets[x->hash.lo & (p->n_buckets - 1)];
    while (*at != i) at = &p->pages[*at].next_in_bucket;
    *at = x->next_in_bucket;
    leave_list(p, i);
    if (x->parent) {
        struct page *parent = &p->pages[x->parent_page];
        if (--parent->children == 0 && parent->count == 0) enter_list(p, x->parent_page, false);
    }
    *x = (struct page){.free = true, .next_in_bucket = NONE};
    p->free[p->stats.n_free++] = i;
    p->stats.n_cached--;
    p->stats.evicted++;
}

bool pages_take(struct pages *p, uint32_t *ret_page)
{
    if (p->stats.n_free == 0 && p->oldest != NONE) evict(p, p->oldest);
    if (p->stats.n_free == 0) return false;
    *ret_page = p->free[--p->stats.n_free];
    p->pages[*ret_page].free = false;
    p->pages[*ret_page].count = 1;
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
    if (x->count++ > 0) return;
    leave_list(p, i);
    p->stats.n_cached--;
    p->stats.n_held++;
}

void pages_drop(struct pages *p, uint32_t page)
{
    struct page *x = &p->pages[page];
    if (--x->count > 0) return;
    p->stats.n_held--;
    x->used = ++p->clock;
    if (x->serial) {
        p->stats.n_cached++;
        if (x->children == 0) enter_list(p, page, true);
    } else {
        x->free = true;
        p->free[p->stats.n_free++] = page;
    }
}

/* ---- the index ---- */

struct prefix pages_root(const struct pages *p, uint64_t tenant)
{
    uint64_t words[3] = {p->cfg.seed.lo, p->cfg.seed.hi, tenant};
    return (struct prefix){.hash = hash128_bytes(words, sizeof words, p->cfg.page_size),
                           .tenant = tenant};
}

/* The hash of the page after the walk: once for each page, however often it is looked for. */
static struct hash128 next_hash(struct pages *p, struct prefix *walk, const int32_t *tokens)
{
    if (walk->has_next) return walk->next;
    struct hash128 h =
        hash128_bytes(tokens, p->cfg.page_size * sizeof *tokens, walk->hash.lo ^ walk->hash.hi);
    h.hi ^= walk->hash.hi;
    h.lo &= p->cfg.hash_mask;
    h.hi &= p->cfg.hash_mask;
    walk->next = h;
    walk->has_next = true;
    p->stats.hashes++;
    return h;
}

static void go_on(struct prefix *walk, const struct page *x, uint32_t i)
{
    walk->hash = walk->next;
    walk->serial = x->serial;
    walk->page = i;
    walk->has_next = false;
}

static uint32_t look_up(struct pages *p, struct prefix *walk, const int32_t *tokens)
{
    struct hash128 h = next_hash(p, walk, tokens);
    size_t bytes = p->cfg.page_size * sizeof *tokens;
    uint32_t i = p->buckets[h.lo & (p->n_buckets - 1)];
    p->stats.lookups++;
    for (; i != NONE; i = p->pages[i].next_in_bucket) {
        const struct page *x = &p->pages[i];
        if (x->hash.lo != h.lo || x->hash.hi != h.hi || x->tenant != walk->tenant) continue;
        if (x->parent != walk->serial) continue;
        if (memcmp(p->tokens + (size_t)i * p->cfg.page_size, tokens, bytes) == 0) return i;
    }
    return NONE;
}

enum pages_found pages_find(struct pages *p, struct prefix *walk, const int32_t *tokens,
                            uint64_t step, uint32_t *ret_page)
{
    uint32_t i = p->cfg.share ? look_up(p, walk, tokens) : NONE;
    if (i == NONE) return PAGES_NONE;
    if (p->pages[i].step >= step) return PAGES_SOON;
    hold(p, i);
    go_on(walk, &p->pages[i], i);
    *ret_page = i;
    return PAGES_HIT;
}

uint32_t pages_enter(struct pages *p, struct prefix *walk, const int32_t *tokens, uint64_t step,
                     uint32_t page)
{
    if (!p->cfg.share) return page;
    uint32_t i = look_up(p, walk, tokens);
    if (i != NONE) {
        hold(p, i);
        go_on(walk, &p->pages[i], i);
        return i;
    }
    struct page *x = &p->pages[page];
    x->serial = ++p->serial;
    x->parent = walk->serial;
    x->tenant = walk->tenant;
    x->parent_page = walk->page;
    x->step = step;
    x->hash = walk->next;
    memcpy(p->tokens + (size_t)page * p->cfg.page_size, tokens, p->cfg.page_size * sizeof *tokens);
    uint32_t *bucket = &p->buckets[x->hash.lo & (p->n_buckets - 1)];
    x->next_in_bucket = *bucket;
    *bucket = page;
    if (walk->serial) p->pages[walk->page].children++;
    p->stats.entered++;
    go_on(walk, x, page);
    return page;
}

struct pages_stats pages_stats(const struct pages *p)
{
    return p->stats;
}

struct page_view pages_view(const struct pages *p, uint32_t page)
{
    const struct page *x = &p->pages[page];
    return (struct page_view){.count = x->count,
                              .free = x->free,
                              .entered = x->serial != 0,
                              .serial = x->serial,
                              .parent = x->parent,
                              .tokens = p->tokens + (size_t)page * p->cfg.page_size};
}
