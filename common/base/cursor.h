/* A bounded reader of bytes that came from outside. Little-endian. Every read checks the count
 * against what is left (never pos + n, which may wrap). After the first short read the cursor is
 * `bad` and all further reads give zero, so that a parser may check once after a group of reads. */
#ifndef FLOTILLA_BASE_CURSOR_H
#define FLOTILLA_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cursor {
    const uint8_t *data; /* borrowed */
    size_t size;
    size_t pos;
    bool bad;
};

static inline size_t cursor_left(const struct cursor *c)
{
    return c->size - c->pos;
}

/* The next n bytes, valid as long as the data; NULL (and bad) if there are fewer. */
static inline const uint8_t *cursor_take(struct cursor *c, uint64_t n)
{
    if (c->bad || n > cursor_left(c)) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->data + c->pos;
    c->pos += (size_t)n;
    return p;
}

#define CURSOR_INT(type, name)                                                                     \
    static inline type cursor_##name(struct cursor *c)                                             \
    {                                                                                              \
        const uint8_t *p = cursor_take(c, sizeof(type));                                           \
        type v = 0;                                                                                \
        if (p) memcpy(&v, p, sizeof v);                                                            \
        return v;                                                                                  \
    }
CURSOR_INT(uint8_t, u8)
CURSOR_INT(uint16_t, u16)
CURSOR_INT(uint32_t, u32)
CURSOR_INT(uint64_t, u64)
#undef CURSOR_INT

#endif
