/* An entry is an object of its own, in a hash bucket's list; its holders are sorted by replica.
 * Every page of a replica has a holding, which leads to the entry. */
#include "coordinator/core/index.h"

#include "common/base/check.h"
#include "common/base/mem.h"

#include <string.h>

#define AHEAD 8u /* pages that a walk looks ahead */
/* Entries without a prefix, whose memory is there: taken before any is allocated. */
#define SPARE_LEAST 256u /* so many are kept at hand, */
#define SPARE_MOST 1024u /* and so many at the most */
#define SPARE_MADE 32u   /* at a time */

struct holder {
    uint32_t replica;
    uint32_t page; /* INDEX_NONE: it is only promised */
    uint32_t promises;
};

struct index_node {
    uint64_t serial;
    uint64_t tenant;
    struct hash128 hash;
    struct index_node *parent; /* which has a holder as long as this has one; NULL: the root */
    struct index_node *next_in_bucket;
    struct holder one, *holders; /* n_holders of them: `one`, or an array of room_holders */
    uint32_t n_holders, room_holders;
    int32_t tokens[]; /* page_size */
};

/* What a page holds. */
struct holding {
    struct index_node *entry; /* NULL: nothing */
    uint64_t serial, parent, step;
    uint32_t parent_page;
    uint32_t children; /* of the replica's pages, those whose entry has this one's as parent */
};

struct index {
    struct index_config cfg;
    struct holding **pools; /* of each replica: n_pages */
    uint32_t *n_pages;
    uint64_t all_pages;
    struct index_node **buckets;
    uint64_t n_buckets;       /* a power of two, at least all_pages */
    uint64_t serial;          /* the last one given to an entry or a holding */
    uint32_t n_promised;      /* pages */
    struct index_node *spare; /* n_spare, in a list by next_in_bucket */
    uint32_t n_spare;
};

struct index *index_open(const struct index_config *config)
{
    struct index *x = mem_zalloc(sizeof *x);
    CHECK(config->n_replicas > 0 && config->page_size > 0);
    x->cfg = *config;
    x->pools = mem_zalloc(config->n_replicas * sizeof *x->pools);
    x->n_pages = mem_zalloc(config->n_replicas * sizeof *x->n_pages);
    x->n_buckets = 1;
    x->buckets = mem_zalloc(sizeof(struct index_node *));
    return x;
}

static void free_entry(struct index_node *e)
{
    if (e->holders != &e->one) mem_free(e->holders);
    mem_free(e);
}

static void put_spare(struct index *x, struct index_node *e)
{
    e->next_in_bucket = x->spare;
    x->spare = e;
    x->n_spare++;
}

static size_t entry_bytes(const struct index *x)
{
    return sizeof(struct index_node) + x->cfg.page_size * sizeof(int32_t);
}

/* Written to, since memory that is touched for the first time takes as long as the rest of a
 * look-up. */
void index_stock(struct index *x)
{
    for (uint32_t i = 0; i < SPARE_MADE && x->n_spare < SPARE_LEAST; i++)
        put_spare(x, memset(mem_alloc(entry_bytes(x)), 0, entry_bytes(x)));
}

static struct index_node *take_spare(struct index *x)
{
    struct index_node *e = x->spare;
    if (!e) return mem_alloc(entry_bytes(x));
    x->spare = e->next_in_bucket;
    x->n_spare--;
    return e;
}

void index_close(struct index *x)
{
    if (!x) return;
    for (uint64_t i = 0; i < x->n_buckets; i++)
        for (struct index_node *e = x->buckets[i], *next; e; e = next) {
            next = e->next_in_bucket;
            free_entry(e);
        }
    for (struct index_node *e = x->spare, *next; e; e = next) {
        next = e->next_in_bucket;
        mem_free(e);
    }
    for (uint32_t i = 0; i < x->cfg.n_replicas; i++) mem_free(x->pools[i]);
    mem_free(x->pools);
    mem_free(x->n_pages);
    mem_free(x->buckets);
    mem_free(x);
}

size_t index_bytes(uint32_t page_size)
{
    /* There are up to two buckets for a page. */
    return sizeof(struct holding) + sizeof(struct index_node) + page_size * sizeof(int32_t) +
           2 * sizeof(struct index_node *);
}

/* ---- entries ---- */

static struct index_node **bucket_of(const struct index *x, struct hash128 h)
{
    return &x->buckets[h.lo & (x->n_buckets - 1)];
}

/* Where the replica is among the holders, or would be. */
static uint32_t place_of(const struct index_node *e, uint32_t replica)
{
    uint32_t low = 0, end = e->n_holders;
    while (low < end) {
        uint32_t mid = low + (end - low) / 2;
        if (e->holders[mid].replica < replica)
            low = mid + 1;
        else
            end = mid;
    }
    return low;
}

/* The same, where it is likely to be at `near`: the pages of a prefix have nearly the same holders,
 * and a search among many costs as much as the rest of a page. */
static uint32_t place_near(const struct index_node *e, uint32_t replica, uint32_t near)
{
    bool behind = near <= e->n_holders && (near == 0 || e->holders[near - 1].replica < replica);
    bool before = near >= e->n_holders || e->holders[near].replica >= replica;
    return behind && before ? near : place_of(e, replica);
}

/* The replica's page that holds an entry, or INDEX_NONE. */
static uint32_t page_of(const struct index_node *e, uint32_t replica)
{
    uint32_t at = place_of(e, replica);
    return at < e->n_holders && e->holders[at].replica == replica ? e->holders[at].page
                                                                  : INDEX_NONE;
}

/* The replica among the holders, likely at `near`, who is added if it was not there. */
static struct holder *add_holder(struct index_node *e, uint32_t replica, uint32_t near)
{
    uint32_t at = place_near(e, replica, near);
    if (at < e->n_holders && e->holders[at].replica == replica) return &e->holders[at];
    if (e->n_holders == e->room_holders) {
        uint32_t room = 4 * e->room_holders;
        struct holder *more = mem_alloc(room * sizeof *more);
        memcpy(more, e->holders, e->n_holders * sizeof *more);
        if (e->holders != &e->one) mem_free(e->holders);
        e->holders = more;
        e->room_holders = room;
    }
    memmove(e->holders + at + 1, e->holders + at, (e->n_holders - at) * sizeof *e->holders);
    e->holders[at] = (struct holder){.replica = replica, .page = INDEX_NONE};
    e->n_holders++;
    return &e->holders[at];
}

static void drop_entry(struct index *x, struct index_node *e)
{
    struct index_node **at = bucket_of(x, e->hash);
    while (*at != e) {
        CHECK(*at != NULL);
        at = &(*at)->next_in_bucket;
    }
    *at = e->next_in_bucket;
    if (x->n_spare >= SPARE_MOST) {
        free_entry(e);
        return;
    }
    if (e->holders != &e->one) mem_free(e->holders);
    put_spare(x, e);
}

static struct holder *holder_of(struct index_node *e, uint32_t replica, uint32_t near)
{
    struct holder *h = &e->holders[place_near(e, replica, near)];
    CHECK(h < e->holders + e->n_holders && h->replica == replica);
    return h;
}

/* Where the replica neither has a page for the entry nor is to have one, it is no holder. */
static void drop_holder(struct index *x, struct index_node *e, const struct holder *h)
{
    uint32_t at = (uint32_t)(h - e->holders);
    if (h->page != INDEX_NONE || h->promises) return;
    e->n_holders--;
    memmove(e->holders + at, e->holders + at + 1, (e->n_holders - at) * sizeof *e->holders);
    if (e->n_holders == 0) drop_entry(x, e);
}

/* ---- pools ---- */

/* From the leaves on, since an entry outlives those whose parent it is. */
void index_clear(struct index *x, uint32_t replica)
{
    struct holding *pool = x->pools[replica];
    for (uint32_t i = 0; i < x->n_pages[replica]; i++)
        for (uint32_t at = i; at != INDEX_NONE && pool[at].entry && pool[at].children == 0;)
            at = index_remove(x, replica, at);
}

/* At least as many buckets as there are pages. */
static void grow_buckets(struct index *x)
{
    uint64_t n = x->n_buckets, before = n;
    while (n < x->all_pages) n *= 2;
    if (n == before) return;
    struct index_node **old = x->buckets;
    /* Written to now: a page of memory that is first touched when a prompt comes costs more than
     * the look-up, and a long prompt touches as many as it has pages. */
    x->buckets = mem_alloc(n * sizeof(struct index_node *));
    memset(x->buckets, 0, n * sizeof(struct index_node *));
    x->n_buckets = n;
    for (uint64_t i = 0; i < before; i++)
        for (struct index_node *e = old[i], *next; e; e = next) {
            struct index_node **bucket = bucket_of(x, e->hash);
            next = e->next_in_bucket;
            e->next_in_bucket = *bucket;
            *bucket = e;
        }
    mem_free(old);
}

void index_set_pool(struct index *x, uint32_t replica, uint32_t n_pages)
{
    CHECK(replica < x->cfg.n_replicas);
    index_clear(x, replica);
    mem_free(x->pools[replica]);
    x->pools[replica] = mem_zalloc((n_pages + 1) * sizeof(struct holding));
    x->all_pages += n_pages - (uint64_t)x->n_pages[replica];
    x->n_pages[replica] = n_pages;
    grow_buckets(x);
}

/* ---- walks ---- */

struct prefix index_root(const struct index *x, uint64_t tenant)
{
    uint64_t words[3] = {x->cfg.seed.lo, x->cfg.seed.hi, tenant};
    return (struct prefix){.hash = hash128_bytes(words, sizeof words, x->cfg.page_size),
                           .tenant = tenant};
}

/* The hash of the pages up to these tokens, from that of the pages before them. */
static struct hash128 chain(const struct index *x, struct hash128 before, const int32_t *tokens)
{
    struct hash128 h =
        hash128_bytes(tokens, x->cfg.page_size * sizeof *tokens, before.lo ^ before.hi);
    h.hi ^= before.hi;
    h.lo &= x->cfg.hash_mask;
    h.hi &= x->cfg.hash_mask;
    return h;
}

/* The hash of the page after the walk: once for each page, however often it is looked for. */
static struct hash128 next_hash(const struct index *x, struct prefix *walk, const int32_t *tokens)
{
    if (walk->has_next) return walk->next;
    walk->next = chain(x, walk->hash, tokens);
    walk->has_next = true;
    return walk->next;
}

/* Hashes of pages that a walk comes to. They need nothing but the tokens, so they are known some
 * pages ahead; the bucket of each, and then the first entry there, are on their way from memory
 * while pages before them are looked at. Without that a long prompt costs three cache misses a
 * page, one after the other. */
struct ahead {
    struct hash128 last, ring[AHEAD];
    uint32_t n; /* pages hashed, of the whole walk */
};

/* The walk, which stands behind page `at`, will come to pages up to n_pages. */
static void look_ahead(const struct index *x, struct ahead *a, struct prefix *walk,
                       const int32_t *tokens, uint32_t at, uint32_t n_pages)
{
    if (a->n <= at) {
        a->n = at;
        a->last = walk->hash;
    }
    for (; a->n < n_pages && a->n < at + AHEAD; a->n++) {
        a->last = chain(x, a->last, tokens + (size_t)a->n * x->cfg.page_size);
        a->ring[a->n % AHEAD] = a->last;
        __builtin_prefetch(bucket_of(x, a->last), 1);
    }
    if (at + AHEAD / 2 < a->n) __builtin_prefetch(*bucket_of(x, a->ring[(at + AHEAD / 2) % AHEAD]));
    walk->next = a->ring[at % AHEAD];
    walk->has_next = true;
}

static uint64_t serial_of(const struct index_node *e)
{
    return e ? e->serial : 0;
}

/* The entry of these tokens behind the walk, or NULL. */
static struct index_node *find(const struct index *x, struct prefix *walk, const int32_t *tokens)
{
    struct hash128 h = next_hash(x, walk, tokens);
    for (struct index_node *e = *bucket_of(x, h); e; e = e->next_in_bucket) {
        if (e->hash.lo != h.lo || e->hash.hi != h.hi || e->tenant != walk->tenant) continue;
        if (serial_of(e->parent) != walk->serial) continue;
        if (memcmp(e->tokens, tokens, x->cfg.page_size * sizeof *tokens) == 0) return e;
    }
    return NULL;
}

uint32_t index_find(const struct index *x, uint32_t replica, struct prefix *walk,
                    const int32_t *tokens)
{
    const struct index_node *e = find(x, walk, tokens);
    return e ? page_of(e, replica) : INDEX_NONE;
}

static void follow(struct prefix *walk, const struct index_node *e)
{
    CHECK(serial_of(e->parent) == walk->serial && walk->has_next);
    walk->hash = walk->next;
    walk->serial = e->serial;
    walk->has_next = false;
}

void index_follow(const struct index *x, uint32_t replica, struct prefix *walk, uint32_t page)
{
    const struct holding *h = &x->pools[replica][page];
    CHECK(page < x->n_pages[replica] && h->entry);
    follow(walk, h->entry);
    walk->page = page;
}

static struct index_node *new_entry(struct index *x, struct prefix *walk, const int32_t *tokens,
                                    struct index_node *parent)
{
    size_t bytes = x->cfg.page_size * sizeof *tokens;
    struct index_node *e = take_spare(x);
    *e = (struct index_node){.serial = ++x->serial,
                             .tenant = walk->tenant,
                             .hash = next_hash(x, walk, tokens),
                             .parent = parent,
                             .room_holders = 1};
    e->holders = &e->one;
    memcpy(e->tokens, tokens, bytes);
    struct index_node **bucket = bucket_of(x, e->hash);
    e->next_in_bucket = *bucket;
    *bucket = e;
    return e;
}

void index_enter(struct index *x, uint32_t replica, struct prefix *walk, const int32_t *tokens,
                 uint64_t step, uint32_t page)
{
    struct holding *pool = x->pools[replica], *h = &pool[page], *parent = NULL;
    CHECK(page < x->n_pages[replica] && h->entry == NULL);
    if (walk->serial) {
        parent = &pool[walk->page];
        CHECK(parent->entry && parent->entry->serial == walk->serial);
        parent->children++;
    }
    struct index_node *e = find(x, walk, tokens); /* another replica may hold it */
    if (!e) e = new_entry(x, walk, tokens, parent ? parent->entry : NULL);
    struct holder *holder = add_holder(e, replica, 0);
    CHECK(holder->page == INDEX_NONE);
    holder->page = page;
    *h = (struct holding){.entry = e,
                          .serial = ++x->serial,
                          .parent = parent ? parent->serial : 0,
                          .step = step,
                          .parent_page = parent ? walk->page : INDEX_NONE};
    index_follow(x, replica, walk, page);
}

uint32_t index_remove(struct index *x, uint32_t replica, uint32_t page)
{
    struct holding *pool = x->pools[replica], *h = &pool[page];
    CHECK(page < x->n_pages[replica] && h->entry && h->children == 0);
    uint32_t parent = h->parent_page;
    struct holder *holder = holder_of(h->entry, replica, 0);
    holder->page = INDEX_NONE;
    drop_holder(x, h->entry, holder);
    *h = (struct holding){.entry = NULL};
    if (parent == INDEX_NONE) return INDEX_NONE;
    CHECK(pool[parent].children > 0);
    return --pool[parent].children == 0 ? parent : INDEX_NONE;
}

struct index_node *index_promise(struct index *x, uint32_t replica, const struct index_found *found,
                                 const int32_t *tokens, uint32_t n_pages)
{
    struct prefix walk = found->walk;
    struct index_node *last = found->last;
    CHECK(found->depth <= n_pages);
    if (n_pages > INDEX_PROMISES - x->n_promised) return NULL;
    struct ahead ahead = {.n = 0};
    uint32_t at = 0;
    for (struct index_node *e = last; e; e = e->parent) {
        struct holder *h = add_holder(e, replica, at);
        h->promises++;
        at = (uint32_t)(h - e->holders);
    }
    for (uint32_t i = found->depth; i < n_pages; i++) {
        look_ahead(x, &ahead, &walk, tokens, i, n_pages);
        last = new_entry(x, &walk, tokens + (size_t)i * x->cfg.page_size, last);
        add_holder(last, replica, 0)->promises++;
        follow(&walk, last);
    }
    x->n_promised += n_pages;
    return last;
}

void index_settle(struct index *x, uint32_t replica, struct index_node *promise)
{
    uint32_t at = 0;
    for (struct index_node *e = promise, *parent; e; e = parent) {
        struct holder *h = holder_of(e, replica, at);
        parent = e->parent;
        at = (uint32_t)(h - e->holders);
        CHECK(h->promises > 0 && x->n_promised > 0);
        h->promises--;
        x->n_promised--;
        drop_holder(x, e, h);
    }
}

/* Who holds a page holds the pages before it: from the last one found back, a page with as many
 * holders as the one after it has the same. */
struct index_found index_match(const struct index *x, uint64_t tenant, const int32_t *tokens,
                               uint32_t n_pages, uint32_t *ret_held)
{
    struct index_found found = {.walk = index_root(x, tenant)};
    memset(ret_held, 0, x->cfg.n_replicas * sizeof *ret_held);
    struct ahead ahead = {.n = 0};
    while (found.depth < n_pages) {
        look_ahead(x, &ahead, &found.walk, tokens, found.depth, n_pages);
        const int32_t *page = tokens + (size_t)found.depth * x->cfg.page_size;
        struct index_node *e = find(x, &found.walk, page);
        if (!e) break;
        follow(&found.walk, e);
        found.last = e;
        found.depth++;
    }
    uint32_t depth = found.depth, n_known = 0;
    for (const struct index_node *e = found.last; e; e = e->parent, depth--) {
        for (uint32_t i = 0; i < e->n_holders && e->n_holders > n_known; i++) {
            uint32_t *held = &ret_held[e->holders[i].replica];
            if (*held == 0) *held = depth;
        }
        if (e->n_holders > n_known) n_known = e->n_holders;
    }
    return found;
}

uint32_t index_held(const struct index *x, uint32_t replica, uint64_t tenant, const int32_t *tokens,
                    uint32_t n_pages)
{
    struct prefix walk = index_root(x, tenant);
    uint32_t n = 0;
    for (; n < n_pages; n++) {
        const struct index_node *e = find(x, &walk, tokens + (size_t)n * x->cfg.page_size);
        if (!e) break;
        uint32_t at = place_of(e, replica);
        if (at == e->n_holders || e->holders[at].replica != replica) break;
        follow(&walk, e);
    }
    return n;
}

struct index_entry index_entry_of(const struct index *x, uint32_t replica, uint32_t page)
{
    const struct holding *h = &x->pools[replica][page];
    return (struct index_entry){.serial = h->serial,
                                .parent = h->parent,
                                .step = h->step,
                                .leaf = h->children == 0,
                                .tokens = h->entry ? h->entry->tokens : NULL};
}
