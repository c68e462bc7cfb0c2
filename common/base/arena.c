#include "common/base/arena.h"

#include "common/base/mem.h"

#include <stdint.h>

#define CHUNK_BYTES ((size_t)64 << 10)

struct arena_chunk {
    struct arena_chunk *next;
    size_t size, used;
    _Alignas(16) uint8_t data[];
};

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (bytes > a->budget || a->used > a->budget - bytes) return NULL;
    size_t want = (bytes + 15) & ~(size_t)15;
    while (a->at && a->at->size - a->at->used < want && a->at->next) {
        a->at = a->at->next;
        a->at->used = 0;
    }
    if (!a->at || a->at->size - a->at->used < want) {
        size_t size = want > CHUNK_BYTES ? want : CHUNK_BYTES;
        struct arena_chunk *c = mem_try(sizeof *c + size);
        if (!c) return NULL;
        *c = (struct arena_chunk){.size = size};
        if (a->at) {
            c->next = a->at->next;
            a->at->next = c;
        } else {
            a->first = c;
        }
        a->at = c;
    }
    void *p = a->at->data + a->at->used;
    a->at->used += want;
    a->used += bytes;
    return p;
}

void arena_reset(struct arena *a)
{
    a->at = a->first;
    a->used = 0;
    if (a->at) a->at->used = 0;
}

void arena_close(struct arena *a)
{
    while (a->first) {
        struct arena_chunk *next = a->first->next;
        mem_free(a->first);
        a->first = next;
    }
    *a = (struct arena){0};
}
