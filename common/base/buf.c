#include "common/base/buf.h"

#include "common/base/err.h"
#include "common/base/mem.h"

#include <string.h>

int buf_append(struct buf *b, const void *data, size_t n)
{
    if (b->max && n > b->max - b->len) return ERR_LIMIT;
    if (b->len + n + 1 > b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 64;
        while (cap < b->len + n + 1) cap *= 2;
        b->data = mem_realloc(b->data, cap);
        b->cap = cap;
    }
    if (n) memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = 0;
    return 0;
}

int buf_reserve(struct buf *b, size_t n)
{
    if (n + 1 <= b->cap) return 0;
    char *data = mem_try(n + 1);
    if (!data) return ERR_NOMEM;
    if (b->len) memcpy(data, b->data, b->len);
    data[b->len] = 0;
    mem_free(b->data);
    b->data = data;
    b->cap = n + 1;
    return 0;
}

void buf_drop(struct buf *b, size_t n)
{
    if (n == 0) return;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

size_t buf_take(struct buf *b, size_t *at, void *to, size_t room)
{
    size_t n = b->len - *at < room ? b->len - *at : room;
    if (n) memcpy(to, b->data + *at, n);
    *at += n;
    if (*at == b->len) {
        buf_close(b);
        *at = 0;
    }
    return n;
}

void buf_close(struct buf *b)
{
    mem_free(b->data);
    *b = (struct buf){0};
}
