#include "common/base/hash.h"

#include "common/base/err.h"
#include "common/base/mem.h"

#include <string.h>
#include <xxhash.h>

uint64_t hash_bytes(const void *data, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, n, seed);
}

struct hash128 hash128_bytes(const void *data, size_t n, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(data, n, seed);
    return (struct hash128){h.low64, h.high64};
}

struct imap_slot {
    uint64_t key;
    uint32_t value;
    bool used;
};

/* splitmix64's finaliser: keys are often small consecutive numbers. */
static size_t mix(uint64_t key)
{
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    return (size_t)(key ^ (key >> 31));
}

static struct imap_slot *imap_find(const struct imap *m, uint64_t key)
{
    size_t i = mix(key) & (m->cap - 1);
    while (m->slots[i].used && m->slots[i].key != key) i = (i + 1) & (m->cap - 1);
    return &m->slots[i];
}

uint32_t *imap_get(const struct imap *m, uint64_t key)
{
    if (m->cap == 0) return NULL;
    struct imap_slot *s = imap_find(m, key);
    return s->used ? &s->value : NULL;
}

/* Slots for n keys at 1/2 load, at least `least`; 0: more than memory can have. */
static size_t slots_for(size_t n, size_t least)
{
    size_t cap = least;
    while (cap / 2 < n + 1 && cap <= SIZE_MAX / 4) cap *= 2;
    return cap / 2 < n + 1 ? 0 : cap;
}

/* Zeroed; NULL when there is no room. */
static void *try_slots(size_t cap, size_t size)
{
    void *p = cap && cap <= SIZE_MAX / size ? mem_try(cap * size) : NULL;
    return p ? memset(p, 0, cap * size) : NULL;
}

static int resize(struct imap *m, size_t cap)
{
    struct imap old = *m;
    struct imap_slot *slots = try_slots(cap, sizeof *slots);
    if (!slots) return ERR_NOMEM;
    m->cap = cap;
    m->slots = slots;
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].used) *imap_find(m, old.slots[i].key) = old.slots[i];
    mem_free(old.slots);
    return 0;
}

int imap_reserve(struct imap *m, size_t n)
{
    size_t cap = slots_for(n, 16);
    return cap && cap <= m->cap ? 0 : resize(m, cap);
}

void imap_put(struct imap *m, uint64_t key, uint32_t value)
{
    if (m->used * 2 >= m->cap && resize(m, m->cap ? m->cap * 2 : 16) < 0) mem_none();
    struct imap_slot *s = imap_find(m, key);
    if (!s->used) m->used++;
    *s = (struct imap_slot){.key = key, .value = value, .used = true};
}

void imap_clear(struct imap *m)
{
    if (m->cap) memset(m->slots, 0, m->cap * sizeof *m->slots);
    m->used = 0;
}

/* Backward-shift deletion (Knuth, TAOCP 3, 6.4 algorithm R): no tombstones. */
void imap_remove(struct imap *m, uint64_t key)
{
    if (m->cap == 0) return;
    struct imap_slot *s = imap_find(m, key);
    if (!s->used) return;
    size_t hole = (size_t)(s - m->slots), mask = m->cap - 1;
    m->used--;
    for (size_t i = (hole + 1) & mask; m->slots[i].used; i = (i + 1) & mask) {
        size_t home = mix(m->slots[i].key) & mask;
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole].used = false;
}

void imap_close(struct imap *m)
{
    mem_free(m->slots);
    *m = (struct imap){0};
}

struct smap_slot {
    const char *key;
    size_t len;
    uint64_t hash;
    uint32_t value;
};

static struct smap_slot *smap_find(const struct smap *m, const char *key, size_t len, uint64_t hash)
{
    size_t i = (size_t)hash & (m->cap - 1);
    for (;; i = (i + 1) & (m->cap - 1)) {
        struct smap_slot *s = &m->slots[i];
        if (!s->key) return s;
        if (s->hash == hash && s->len == len && memcmp(s->key, key, len) == 0) return s;
    }
}

static int smap_resize(struct smap *m, size_t cap)
{
    struct smap old = *m;
    struct smap_slot *slots = try_slots(cap, sizeof *slots);
    if (!slots) return ERR_NOMEM;
    m->cap = cap;
    m->slots = slots;
    for (size_t i = 0; i < old.cap; i++) {
        struct smap_slot *s = &old.slots[i];
        if (s->key) *smap_find(m, s->key, s->len, s->hash) = *s;
    }
    mem_free(old.slots);
    return 0;
}

int smap_reserve(struct smap *m, size_t n)
{
    size_t cap = slots_for(n, 64);
    return cap && cap <= m->cap ? 0 : smap_resize(m, cap);
}

bool smap_put(struct smap *m, const char *key, size_t len, uint32_t value)
{
    if (m->used * 2 >= m->cap && smap_resize(m, m->cap ? m->cap * 2 : 64) < 0) mem_none();
    uint64_t hash = hash_bytes(key, len, 0);
    struct smap_slot *s = smap_find(m, key, len, hash);
    if (s->key) return false;
    *s = (struct smap_slot){.key = key, .len = len, .hash = hash, .value = value};
    m->used++;
    return true;
}

const uint32_t *smap_get(const struct smap *m, const char *key, size_t len)
{
    if (m->cap == 0) return NULL;
    struct smap_slot *s = smap_find(m, key, len, hash_bytes(key, len, 0));
    return s->key ? &s->value : NULL;
}

void smap_close(struct smap *m)
{
    mem_free(m->slots);
    *m = (struct smap){0};
}
