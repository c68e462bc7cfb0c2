#include "common/base/hash.h"

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

static void resize(struct imap *m, size_t cap)
{
    struct imap old = *m;
    m->cap = cap;
    m->slots = mem_zalloc(cap * sizeof *m->slots);
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].used) *imap_find(m, old.slots[i].key) = old.slots[i];
    mem_free(old.slots);
}

void imap_reserve(struct imap *m, size_t n)
{
    size_t cap = 16;
    while (cap / 2 < n + 1) cap *= 2;
    if (cap > m->cap) resize(m, cap);
}

void imap_put(struct imap *m, uint64_t key, uint32_t value)
{
    if (m->used * 2 >= m->cap) resize(m, m->cap ? m->cap * 2 : 16);
    struct imap_slot *s = imap_find(m, key);
    if (!s->used) m->used++;
    *s = (struct imap_slot){.key = key, .value = value, .used = true};
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

bool smap_put(struct smap *m, const char *key, size_t len, uint32_t value)
{
    if (m->used * 2 >= m->cap) {
        struct smap old = *m;
        m->cap = old.cap ? old.cap * 2 : 64;
        m->slots = mem_zalloc(m->cap * sizeof *m->slots);
        for (size_t i = 0; i < old.cap; i++) {
            struct smap_slot *s = &old.slots[i];
            if (s->key) *smap_find(m, s->key, s->len, s->hash) = *s;
        }
        mem_free(old.slots);
    }
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
