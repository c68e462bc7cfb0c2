/* Hashing (xxHash) and the two hash maps of the project. */
#ifndef FLOTILLA_BASE_HASH_H
#define FLOTILLA_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash128 {
    uint64_t lo, hi;
};

uint64_t hash_bytes(const void *data, size_t n, uint64_t seed);
struct hash128 hash128_bytes(const void *data, size_t n, uint64_t seed);

/* Both maps are open-addressed, grow at 1/2 load, are empty when zeroed, and belong to one thread.
 * A put that grows a map aborts without memory: reserve room first for a number of keys that a file
 * or a peer has chosen. */

/* u64 -> u32 */
struct imap {
    struct imap_slot *slots; /* private */
    size_t cap, used;        /* private */
};

/* The value's address (valid until the next put), or NULL. */
uint32_t *imap_get(const struct imap *m, uint64_t key);
/* Inserts or overwrites. */
void imap_put(struct imap *m, uint64_t key, uint32_t value);
/* Room for n keys in all, so that putting them allocates nothing. ERR_NOMEM: nothing changed. */
int imap_reserve(struct imap *m, size_t n);
void imap_remove(struct imap *m, uint64_t key);
/* Removes all keys and keeps the room. */
void imap_clear(struct imap *m);
void imap_close(struct imap *m);

/* Byte string -> u32. Keys are borrowed and must outlive the map. The first value of a key stays:
 * a second put of the same key returns false and changes nothing. */
struct smap {
    struct smap_slot *slots; /* private */
    size_t cap, used;        /* private */
};

bool smap_put(struct smap *m, const char *key, size_t len, uint32_t value);
int smap_reserve(struct smap *m, size_t n); /* as imap_reserve */
const uint32_t *smap_get(const struct smap *m, const char *key, size_t len);
void smap_close(struct smap *m);

#endif
