/* An entry is an object of its own, in a hash bucket's list. Every page of a replica has a holding,
 * which leads to the entry.
 *
 * An entry has one holder, or crowds of up to 64 each: a word says who is there, and the records
 * stand in an array in the same order, so that a record's place is the number of bits before its
 * own. So looking at all holders of a page takes a few words, and one more holder moves and grows
 * one short array, however many there are. */
#include "coordinator/core/index.h"

#include "common/base/check.h"
#include "common/base/mem.h"
#include "proto/limits.h"

#include <string.h>

#define AHEAD 8u /* pages that a walk looks ahead */
#define LINE 64u /* bytes that come from memory at once, or more */
/* Entries without a prefix, whose memory is there: taken before any is allocated. */
#define SPARE_LEAST 256u /* so many are kept at hand, */
#define SPARE_MOST 1024u /* and so many at the most */
#define SPARE_MADE 32u   /* at a time */

/* Of a replica that holds an entry, or is promised to. */
struct holder {
    uint32_t page;     /* INDEX_NONE: it is only promised */
    uint32_t promises; /* that end with this entry, and entries behind it that are only promised */
};

#define CROWD 64u

/* The holders among the replicas id x CROWD and the next ones. */
struct crowd {
    uint64_t who;            /* bit i: replica id x CROWD + i holds the entry */
    union {                  /* the records of the bits that are set, in their order: */
        struct holder one;   /* of one, where there is no room, */
        struct holder *many; /* or room for `room` */
    };
    uint32_t id, room;
};

struct index_node {
    uint64_t serial;
    uint64_t tenant;
    struct hash128 hash;
    struct index_node *parent; /* which has a holder as long as this has one; NULL: the root */
    struct index_node *next_in_bucket;
    struct crowd *crowds; /* n_crowds, by id; 0: there was never more than one holder, */
    struct holder one;    /* this one, */
    uint32_t only;        /* which is this replica */
    uint32_t n_crowds, n_holders;
    uint32_t depth;   /* pages of the prefix */
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
    CHECK(config->n_replicas > 0 && config->n_replicas <= LIMIT_REPLICAS && config->page_size > 0);
    x->cfg = *config;
    x->pools = mem_zalloc(config->n_replicas * sizeof *x->pools);
    x->n_pages = mem_zalloc(config->n_replicas * sizeof *x->n_pages);
    x->n_buckets = 1;
    x->buckets = mem_zalloc(sizeof(struct index_node *));
    return x;
}

static void free_crowds(const struct index_node *e)
{
    for (uint32_t i = 0; i < e->n_crowds; i++)
        if (e->crowds[i].room) mem_free(e->crowds[i].many);
    mem_free(e->crowds);
}

static void free_entry(struct index_node *e)
{
    free_crowds(e);
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
    CHECK(x->n_spare > 0);
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

/* The number of crowds up to this one: it is the last of these, or is not there. Where all crowds
 * are, none is looked at in vain. */
static uint32_t crowds_to(const struct index_node *e, uint32_t id)
{
    uint32_t n = id < e->n_crowds ? id + 1 : e->n_crowds;
    while (n > 0 && e->crowds[n - 1].id > id) n--;
    return n;
}

/* The replica's crowd, or NULL. */
static struct crowd *crowd_of(const struct index_node *e, uint32_t replica)
{
    uint32_t id = replica / CROWD, n = crowds_to(e, id);
    return n > 0 && e->crowds[n - 1].id == id ? &e->crowds[n - 1] : NULL;
}

static struct holder *records_of(struct crowd *k)
{
    return k->room ? k->many : &k->one;
}

/* Where the replica's record stands, or would stand. */
static struct holder *place_of(struct crowd *k, uint32_t replica)
{
    uint64_t before = k->who & ((UINT64_C(1) << replica % CROWD) - 1);
    return records_of(k) + __builtin_popcountll(before);
}

/* The replica's record, or NULL: it is no holder. */
static struct holder *holder_of(struct index_node *e, uint32_t replica)
{
    if (e->n_crowds == 0) return e->n_holders && e->only == replica ? &e->one : NULL;
    struct crowd *k = crowd_of(e, replica);
    return k && (k->who >> replica % CROWD) & 1 ? place_of(k, replica) : NULL;
}

/* The replica's page that holds an entry, or INDEX_NONE. */
static uint32_t page_of(struct index_node *e, uint32_t replica)
{
    const struct holder *h = holder_of(e, replica);
    return h ? h->page : INDEX_NONE;
}

static struct crowd *add_crowd(struct index_node *e, uint32_t id)
{
    uint32_t at = crowds_to(e, id), n = e->n_crowds++;
    if (n == 0 || (n > 1 && (n & (n - 1)) == 0)) /* there is room for 2, 4, 8 and so on */
        e->crowds = mem_realloc(e->crowds, (n ? 2 * n : 2) * sizeof *e->crowds);
    memmove(e->crowds + at + 1, e->crowds + at, (n - at) * sizeof *e->crowds);
    e->crowds[at] = (struct crowd){.id = id};
    return &e->crowds[at];
}

/* There is room for one record more in a crowd that has n. */
static void make_room(struct crowd *k, uint32_t n)
{
    struct holder one = k->one, *before = k->room ? k->many : NULL;
    if (n == 0 || n < k->room) return;
    k->many = mem_realloc(before, 2 * (size_t)n * sizeof *before);
    if (!before) k->many[0] = one;
    k->room = 2 * n;
}

/* The record of a replica that has none yet. */
static struct holder *insert(struct index_node *e, uint32_t replica, struct holder new)
{
    struct crowd *k = crowd_of(e, replica);
    if (!k) k = add_crowd(e, replica / CROWD);
    uint32_t n = (uint32_t)__builtin_popcountll(k->who);
    make_room(k, n);
    struct holder *at = place_of(k, replica);
    memmove(at + 1, at, (size_t)(records_of(k) + n - at) * sizeof *at);
    *at = new;
    k->who |= UINT64_C(1) << replica % CROWD;
    return at;
}

/* A replica that is no holder yet becomes one, without a page or a promise. */
static struct holder *add_holder(struct index_node *e, uint32_t replica)
{
    static const struct holder none = {.page = INDEX_NONE};
    if (e->n_holders++ == 0) {
        e->only = replica;
        e->one = none;
        return &e->one;
    }
    if (e->n_crowds == 0) (void)insert(e, e->only, e->one);
    return insert(e, replica, none);
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
    free_crowds(e);
    put_spare(x, e);
}

/* The replica has neither a page for the entry nor is to have one: it is no holder any more. */
static void drop_holder(struct index *x, struct index_node *e, uint32_t replica)
{
    struct crowd *k = crowd_of(e, replica);
    if (k) {
        struct holder *at = place_of(k, replica);
        const struct holder *end = records_of(k) + __builtin_popcountll(k->who);
        memmove(at, at + 1, (size_t)(end - at - 1) * sizeof *at);
        k->who &= ~(UINT64_C(1) << replica % CROWD);
    }
    CHECK(e->n_holders > 0);
    if (--e->n_holders == 0) drop_entry(x, e);
}

/* ---- promises ---- */

/* A promise is written down at the entry that it ends with. A replica that is to hold an entry is
 * to hold those before it too: an entry that is only promised counts as a promise at its parent. So
 * the way back is as long as what the replica does not hold yet. */
static void promise(struct index_node *e, uint32_t replica)
{
    for (bool added = true; e && added; e = e->parent) {
        struct holder *h = holder_of(e, replica);
        added = !h;
        if (added) h = add_holder(e, replica);
        h->promises++;
    }
}

/* One promise less; and where nothing is left of an entry in the replica, one less before it. */
static void settle(struct index *x, struct index_node *e, uint32_t replica)
{
    for (struct index_node *parent; e; e = parent) {
        struct holder *h = holder_of(e, replica);
        CHECK(h != NULL && h->promises > 0);
        parent = e->parent;
        if (--h->promises > 0 || h->page != INDEX_NONE) return;
        drop_holder(x, e, replica);
    }
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
    if (at + AHEAD / 2 < a->n) {
        uintptr_t e = (uintptr_t)*bucket_of(x, a->ring[(at + AHEAD / 2) % AHEAD]);
        __builtin_prefetch((const void *)e);
        __builtin_prefetch((const void *)(e + LINE)); /* of nothing where there is none */
    }
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
    struct index_node *e = find(x, walk, tokens);
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
                             .depth = parent ? parent->depth + 1 : 1};
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
    struct holder *holder = holder_of(e, replica);
    if (!holder)
        holder = add_holder(e, replica);
    else if (parent) /* the entry was only promised, and counted as such at its parent */
        settle(x, parent->entry, replica);
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
    struct index_node *e = h->entry;
    struct holder *holder = holder_of(e, replica);
    CHECK(holder != NULL && holder->page == page);
    holder->page = INDEX_NONE;
    if (holder->promises == 0)
        drop_holder(x, e, replica);
    else if (parent != INDEX_NONE) /* it is only promised now */
        promise(pool[parent].entry, replica);
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
    for (uint32_t i = found->depth; i < n_pages; i++) {
        look_ahead(x, &ahead, &walk, tokens, i, n_pages);
        last = new_entry(x, &walk, tokens + (size_t)i * x->cfg.page_size, last);
        follow(&walk, last);
    }
    promise(last, replica);
    x->n_promised += n_pages;
    return last;
}

void index_settle(struct index *x, uint32_t replica, struct index_node *last)
{
    if (!last) return;
    CHECK(x->n_promised >= last->depth);
    x->n_promised -= last->depth;
    settle(x, last, replica);
}

/* Replicas that hold an entry and none behind it: they hold so many pages. known: those that hold
 * one behind it, to which these are added. */
static void note_holders(const struct index_node *e, uint64_t *known, uint32_t *ret_held)
{
    const struct crowd one = {.who = UINT64_C(1) << e->only % CROWD, .id = e->only / CROWD};
    const struct crowd *crowds = e->n_crowds ? e->crowds : &one;
    for (uint32_t i = 0; i < (e->n_crowds ? e->n_crowds : 1); i++) {
        uint32_t id = crowds[i].id;
        uint64_t new = crowds[i].who & ~known[id];
        known[id] |= new;
        for (; new; new &= new - 1)
            ret_held[id * CROWD + (uint32_t)__builtin_ctzll(new)] = e->depth;
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
    uint64_t known[LIMIT_REPLICAS / CROWD] = {0};
    uint32_t n_known = 0;
    for (const struct index_node *e = found.last; e; e = e->parent) {
        if (e->n_holders > n_known) note_holders(e, known, ret_held);
        n_known = e->n_holders;
    }
    return found;
}

struct index_found index_held(const struct index *x, uint32_t replica, uint64_t tenant,
                              const int32_t *tokens, uint32_t n_pages)
{
    struct index_found found = {.walk = index_root(x, tenant)};
    for (; found.depth < n_pages; found.depth++) {
        const int32_t *page = tokens + (size_t)found.depth * x->cfg.page_size;
        struct index_node *e = find(x, &found.walk, page);
        if (!e || !holder_of(e, replica)) break;
        follow(&found.walk, e);
        found.last = e;
    }
    return found;
}

uint32_t index_back(struct index_found *found, uint32_t replica)
{
    struct index_node *e = found->last;
    CHECK(e != NULL && found->depth == e->depth);
    found->last = e->parent;
    found->depth--;
    return page_of(e, replica);
}

struct index_entry index_entry_of(const struct index *x, uint32_t replica, uint32_t page)
{
    const struct holding *h = &x->pools[replica][page];
    return (struct index_entry){.serial = h->serial,
                                .parent = h->parent,
                                .step = h->step,
                                .tokens = h->entry ? h->entry->tokens : NULL};
}
