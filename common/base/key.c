#include "common/base/key.h"

#include "common/base/mem.h"

/* Z85: five characters, the digits of a number in base 85, for four bytes. */
static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             ".-:+=^!/*?&<>()[]{}@%$#";

bool key_parse(const char *text, struct key *ret)
{
    struct key k;
    if (strnlen(text, KEY_TEXT_BYTES) != KEY_TEXT_BYTES - 1) return false;
    for (size_t i = 0; i < KEY_BYTES / 4; i++) {
        uint64_t v = 0;
        for (size_t j = 0; j < 5; j++) {
            const char *at = memchr(digits, text[5 * i + j], sizeof digits - 1);
            if (!at) return false;
            v = v * 85 + (uint64_t)(at - digits);
        }
        if (v > UINT32_MAX) return false;
        for (size_t j = 0; j < 4; j++) k.bytes[4 * i + j] = (uint8_t)(v >> (24 - 8 * j));
    }
    if (!key_is_set(&k)) return false;
    *ret = k;
    return true;
}

void key_format(const struct key *k, char ret[static KEY_TEXT_BYTES])
{
    for (size_t i = 0; i < KEY_BYTES / 4; i++) {
        uint32_t v = 0;
        for (size_t j = 0; j < 4; j++) v = v << 8 | k->bytes[4 * i + j];
        for (size_t j = 5; j-- > 0; v /= 85) ret[5 * i + j] = digits[v % 85];
    }
    ret[KEY_TEXT_BYTES - 1] = 0;
}

static struct key_entry *find(const struct key_list *list, const struct key *key)
{
    for (size_t i = 0; i < list->n; i++)
        if (key_eq(&list->items[i].key, key)) return &list->items[i];
    return NULL;
}

uint32_t key_roles(const struct key_list *list, const struct key *key)
{
    const struct key_entry *e = find(list, key);
    return e ? e->roles : 0;
}

void key_add(struct key_list *list, const struct key *key, uint32_t roles)
{
    struct key_entry *e = find(list, key);
    if (!e) {
        list->items = mem_realloc(list->items, (list->n + 1) * sizeof *list->items);
        e = &list->items[list->n++];
        *e = (struct key_entry){.key = *key};
    }
    e->roles |= roles;
}

void key_list_close(struct key_list *list)
{
    mem_free(list->items);
    *list = (struct key_list){.items = NULL};
}
