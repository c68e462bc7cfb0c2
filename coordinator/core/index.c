/* Every page has an entry; hash buckets are lists threaded through the entries. */
#include "coordinator/core/index.h"

#include "common/base/check.h"
#include "common/base/mem.h"

#include <string.h>

struct entry {
    uint64_t serial; /* 0: there is none */
    uint64_t parent; /* its serial; 0: the root */
    uint64_t tenant;
    uint64_t step;
    struct hash128 hash;
    uint32_t parent_page;
    uint32_t children; /* entries whose parent this is */
    uint32_t next_in_bucket;
};

struct index {
    struct index_config cfg;
    struct entry *entries;
    int32_t *tokens; /* page_size for each page */
    uint32_t *buckets, n_buckets;
    uint64_t serial;
};

struct index *index_open(const struct index_config *config)
{
    struct index *x = mem_zalloc(sizeof *x);
    x->cfg = *config;
    x->n_buckets = 1;
    while (x->n_buckets < config->n_pages) x->n_buckets *= 2;
    x->entries = mem_zalloc((config->n_pages + 1) * sizeof *x->entries);
    x->tokens = mem_zalloc((size_t)config->n_pages * config->page_size * sizeof *x->tokens + 1);
    x->buckets = mem_zalloc(x->n_buckets * sizeof *x->buckets);
    index_clear(x);
    return x;
}

void index_close(struct index *x)
{
    if (!x) return;
    mem_free(x->entries);
    mem_free(x->tokens);
    mem_free(x->buckets);
    mem_free(x);
}

size_t index_bytes(uint32_t page_size)
{
    /* There are up to two buckets for a page. */
    return sizeof(struct entry) + page_size * sizeof(int32_t) + 2 * sizeof(uint32_t);
}

void index_clear(struct index *x)
{
    for (uint32_t i = 0; i < x->cfg.n_pages; i++)
        x->entries[i] = (struct entry){.next_in_bucket = INDEX_NONE};
    for (uint32_t i = 0; i < x->n_buckets; i++) x->buckets[i] = INDEX_NONE;
}

static int32_t *tokens_of(const struct index *x, uint32_t page)
{
    return x->tokens + (size_t)page * x->cfg.page_size;
}

static uint32_t *bucket_of(const struct index *x, struct hash128 h)
{
    return &x->buckets[h.lo & (x->n_buckets - 1)];
}

struct prefix index_root(const struct index *x, uint64_t tenant)
{
    uint64_t words[3] = {x->cfg.seed.lo, x->cfg.seed.hi, tenant};
    return (struct prefix){.hash = hash128_bytes(words, sizeof words, x->cfg.page_size),
                           .tenant = tenant};
}

/* The hash of the page after the walk: once for each page, however often it is looked for. */
static struct hash128 next_hash(const struct index *x, struct prefix *walk, const int32_t *tokens)
{
    if (walk->has_next) return walk->next;
    struct hash128 h =
        hash128_bytes(tokens, x->cfg.page_size * sizeof *tokens, walk->hash.lo ^ walk->hash.hi);
    h.hi ^= walk->hash.hi;
    h.lo &= x->cfg.hash_mask;
    h.hi &= x->cfg.hash_mask;
    walk->next = h;
    walk->has_next = true;
    return h;
}

uint32_t index_find(const struct index *x, struct prefix *walk, const int32_t *tokens)
{
    struct hash128 h = next_hash(x, walk, tokens);
    size_t bytes = x->cfg.page_size * sizeof *tokens;
    for (uint32_t i = *bucket_of(x, h); i != INDEX_NONE; i = x->entries[i].next_in_bucket) {
        const struct entry *e = &x->entries[i];
        if (e->hash.lo != h.lo || e->hash.hi != h.hi || e->tenant != walk->tenant) continue;
        if (e->parent != walk->serial) continue;
        if (memcmp(tokens_of(x, i), tokens, bytes) == 0) return i;
    }
    return INDEX_NONE;
}

void index_follow(const struct index *x, struct prefix *walk, uint32_t page)
{
    const struct entry *e = &x->entries[page];
    CHECK(e->serial && e->parent == walk->serial && walk->has_next);
    walk->hash = walk->next;
    walk->serial = e->serial;
    walk->page = page;
    walk->has_next = false;
}

void index_enter(struct index *x, struct prefix *walk, const int32_t *tokens, uint64_t step,
                 uint32_t page)
{
    struct entry *e = &x->entries[page];
    CHECK(page < x->cfg.n_pages && e->serial == 0);
    *e = (struct entry){.serial = ++x->serial,
                        .parent = walk->serial,
                        .tenant = walk->tenant,
                        .step = step,
                        .hash = next_hash(x, walk, tokens),
                        .parent_page = walk->page};
    memcpy(tokens_of(x, page), tokens, x->cfg.page_size * sizeof *tokens);
    uint32_t *bucket = bucket_of(x, e->hash);
    e->next_in_bucket = *bucket;
    *bucket = page;
    if (e->parent) {
        CHECK(x->entries[e->parent_page].serial == e->parent);
        x->entries[e->parent_page].children++;
    }
    index_follow(x, walk, page);
}

uint32_t index_remove(struct index *x, uint32_t page)
{
    struct entry *e = &x->entries[page];
    CHECK(e->serial && e->children == 0);
    uint32_t *at = bucket_of(x, e->hash), parent = e->parent ? e->parent_page : INDEX_NONE;
    while (*at != page) {
        CHECK(*at != INDEX_NONE);
        at = &x->entries[*at].next_in_bucket;
    }
    *at = e->next_in_bucket;
    *e = (struct entry){.next_in_bucket = INDEX_NONE};
    if (parent == INDEX_NONE) return INDEX_NONE;
    CHECK(x->entries[parent].children > 0);
    return --x->entries[parent].children == 0 ? parent : INDEX_NONE;
}

struct index_entry index_entry_of(const struct index *x, uint32_t page)
{
    const struct entry *e = &x->entries[page];
    return (struct index_entry){.serial = e->serial,
                                .parent = e->parent,
                                .step = e->step,
                                .leaf = e->children == 0,
                                .tokens = tokens_of(x, page)};
}
