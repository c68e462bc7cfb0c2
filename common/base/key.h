/* CURVE keys as programs pass them on, and what the owner of one may do. Keys are made, and kept in
 * files, by common/io/keys.h. */
#ifndef FLOTILLA_BASE_KEY_H
#define FLOTILLA_BASE_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KEY_BYTES 32u
#define KEY_TEXT_BYTES 41u /* 40 characters of Z85, and a NUL */

/* All zero: no key. No CURVE key is. */
struct key {
    uint8_t bytes[KEY_BYTES];
};

struct key_pair {
    struct key public, secret;
};

/* What a key is admitted for; one key may have several roles. */
enum key_role { KEY_CLIENT = 1, KEY_GATEWAY = 2, KEY_WORKER = 4, KEY_ADMIN = 8, KEY_ANY = 15 };

struct key_entry {
    struct key key;
    uint32_t roles; /* of enum key_role, together */
};

struct key_list {
    struct key_entry *items;
    size_t n;
};

/* Public keys only: a comparison tells by its time where two differ. */
static inline bool key_eq(const struct key *a, const struct key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static inline bool key_is_set(const struct key *k)
{
    return !key_eq(k, &(struct key){{0}});
}

/* Reads 40 characters of Z85 (ZeroMQ RFC 32), at which the text ends. False: they are none. */
bool key_parse(const char *text, struct key *ret);
/* The reverse. */
void key_format(const struct key *k, char ret[static KEY_TEXT_BYTES]);

/* The roles of a key, 0 if the list does not have it. */
uint32_t key_roles(const struct key_list *list, const struct key *key);
/* Adds roles to those of a key. */
void key_add(struct key_list *list, const struct key *key, uint32_t roles);
void key_list_close(struct key_list *list);

#endif
