#include "common/base/mem.h"

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define PAGE_BYTES_LEAST 4096u /* of any machine */

static _Thread_local unsigned guard_depth;

void mem_guard_begin(void)
{
    guard_depth++;
}

void mem_guard_end(void)
{
    guard_depth--;
}

bool mem_guard_active(void)
{
    return guard_depth > 0;
}

static _Noreturn void die(const char *why, size_t bytes)
{
    (void)fprintf(stderr, "flotilla: %s (%zu bytes)\n", why, bytes);
    abort();
}

void mem_none(void)
{
    (void)fprintf(stderr, "flotilla: out of memory\n");
    abort();
}

void *mem_try(size_t bytes)
{
    if (guard_depth) die("allocation in the guarded compute path", bytes);
    return malloc(bytes ? bytes : 1);
}

void *mem_alloc(size_t bytes)
{
    void *p = mem_try(bytes);
    if (!p) die("out of memory", bytes);
    return p;
}

void *mem_zalloc(size_t bytes)
{
    if (guard_depth) die("allocation in the guarded compute path", bytes);
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) die("out of memory", bytes);
    return p;
}

void *mem_realloc(void *old, size_t bytes)
{
    if (guard_depth) die("allocation in the guarded compute path", bytes);
    void *p = realloc(old, bytes ? bytes : 1);
    if (!p) die("out of memory", bytes);
    return p;
}

char *mem_strdup(const char *s)
{
    size_t bytes = strlen(s) + 1;
    return memcpy(mem_alloc(bytes), s, bytes);
}

void mem_free(void *p)
{
    free(p);
}

/* The C library takes what it has not at hand from the end of its heap, and what is freed there
 * stays there, touched. The stores are volatile so that they are not left out. */
void mem_warm(void)
{
    char *p = mem_try(MEM_WARM_BYTES);
    for (size_t i = 0; p && i < MEM_WARM_BYTES; i += PAGE_BYTES_LEAST)
        *(volatile char *)(p + i) = 0;
    mem_free(p);
}

size_t mem_heap(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

void mem_trim(void)
{
    (void)malloc_trim(0);
}

static size_t round_huge(size_t bytes)
{
    return (bytes + HUGE_PAGE_BYTES - 1) & ~(HUGE_PAGE_BYTES - 1);
}

void *mem_pages(size_t bytes)
{
    if (guard_depth) die("allocation in the guarded compute path", bytes);
    if (bytes == 0 || bytes > SIZE_MAX - 2 * HUGE_PAGE_BYTES) return NULL;
    size_t want = round_huge(bytes);
    /* One huge page more, so that an aligned run can be cut out of it. */
    uint8_t *p = mmap(NULL, want + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t head = (HUGE_PAGE_BYTES - ((uintptr_t)p & (HUGE_PAGE_BYTES - 1))) % HUGE_PAGE_BYTES;
    if (head) (void)munmap(p, head);
    if (HUGE_PAGE_BYTES - head) (void)munmap(p + head + want, HUGE_PAGE_BYTES - head);
    (void)madvise(p + head, want, MADV_HUGEPAGE);
    return p + head;
}

void mem_pages_free(void *p, size_t bytes)
{
    if (p) (void)munmap(p, round_huge(bytes));
}
