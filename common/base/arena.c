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
        if (!c) {
            a->starved = true;
            return NULL;
        }
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

static void free_chunks(struct arena *a)
{
    while (a->first) {
        struct arena_chunk *next = a->first->next;
        mem_free(a->first);
        a->first = next;
    }
    a->at = NULL;
}

/* Several chunks become one of their size, so that the same message fits it next time; what is kept
 * is bounded, whatever the largest message was. */
void arena_reset(struct arena *a)
{
    size_t total = 0;
    for (struct arena_chunk *c = a->first; c; c = c->next) total += c->size;
    if (total > ARENA_KEEP_BYTES) {
        free_chunks(a);
    } else if (a->first && a->first->next) {
        struct arena_chunk *one = mem_try(sizeof *one + total);
        free_chunks(a);
        if (one) *one = (struct arena_chunk){.size = total};
        a->first = one;
    }
    a->at = a->first;
    a->used = 0;
    a->starved = false;
    if (a->at) a->at->used = 0;
}

void arena_close(struct arena *a)
{
    free_chunks(a);
    *a = (struct arena){0};
}
