/* Memory: three ways to get it and one guard.
 *
 * mem_alloc aborts when there is none: for sizes that this program chose. mem_try returns NULL: for
 * any size that came from a file, a peer or a user, after a limit check. mem_pages gives
 * zero-filled, 2 MiB-aligned address space that asks for huge pages: for weights, KV, and buffers
 * of a load, since the system gets it back at once when it is freed. */
#ifndef FLOTILLA_BASE_MEM_H
#define FLOTILLA_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void *mem_alloc(size_t bytes);
void *mem_zalloc(size_t bytes);
void *mem_realloc(void *old, size_t bytes);
void *mem_try(size_t bytes);
/* n items of `size` bytes (above 0) each, zeroed; NULL also when n * size overflows. */
static inline void *mem_try_zeroed(size_t n, size_t size)
{
    void *p = n <= SIZE_MAX / size ? mem_try(n * size) : NULL;
    return p ? memset(p, 0, n * size) : NULL;
}
char *mem_strdup(const char *s);
/* Ends the process, as mem_alloc does without memory. */
_Noreturn void mem_none(void);
void mem_free(void *p);

/* Memory that is touched for the first time costs a page fault, which takes longer than much of
 * what is done with it. After this call the next small allocations, of up to MEM_WARM_BYTES in all,
 * find memory that has been touched: for a thread that has time now and must be quick later. Where
 * that is so already, it takes less than a microsecond. */
#define MEM_WARM_BYTES ((size_t)64 << 10)
void mem_warm(void);

/* Bytes that are allocated, by libraries too; 0 under a sanitizer. It takes the locks of all
 * threads' heaps. */
size_t mem_heap(void);

/* Gives what was freed back to the system, as far as it is whole pages: after work that took much
 * for a while. Slow. */
void mem_trim(void);

/* NULL: there is no such address space. Freed with mem_pages_free and the same size. */
void *mem_pages(size_t bytes);
void mem_pages_free(void *p, size_t bytes);

/* The no-allocation guard. Between begin and end this thread promises not to allocate. The
 * functions above abort if it does; tests/lib/guard_malloc.c, preloaded, makes the C library's
 * malloc abort too. Nests. */
void mem_guard_begin(void);
void mem_guard_end(void);
bool mem_guard_active(void);

#endif
