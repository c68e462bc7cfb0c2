/* Memory for one message or request, freed as one. Allocation fails above the budget: sizes that a
 * peer chose cannot take more. Up to ARENA_KEEP_BYTES are kept over a reset, so a warm arena
 * allocates nothing for ordinary messages. */
#ifndef FLOTILLA_BASE_ARENA_H
#define FLOTILLA_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#define ARENA_KEEP_BYTES ((size_t)4 << 20)

struct arena {
    struct arena_chunk *first, *at; /* private */
    size_t used;                    /* private: bytes handed out since the last reset */
    size_t budget;                  /* public: set before use, and at any reset */
    bool starved; /* public, to read: since the last reset the machine had no memory for more */
};

/* 16-byte aligned, not zeroed, valid until reset; NULL above the budget or without memory. */
void *arena_alloc(struct arena *a, size_t bytes);
void arena_reset(struct arena *a);
void arena_close(struct arena *a);

#endif
