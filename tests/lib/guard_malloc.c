/* Preloaded into a worker: an allocation by the C library's malloc while the thread is in the
 * guarded compute path (common/base/mem.h) aborts the process. The worker's own mem_* functions
 * check the same guard by themselves; this catches what goes around them. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef bool (*active_fn)(void);

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);

static active_fn active;

static __attribute__((constructor)) void find(void)
{
    /* The program exports it (ENABLE_EXPORTS); others that are started with this library do not. */
    void *symbol = dlsym(RTLD_DEFAULT, "mem_guard_active");
    memcpy(&active, &symbol, sizeof active);
    if (active && getenv("GUARD_MALLOC_SAY")) (void)fprintf(stderr, "guard_malloc: watching\n");
}

static void check(void)
{
    static const char text[] = "guard_malloc: allocation in the guarded compute path\n";
    if (!active || !active()) return;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    abort();
}

void *malloc(size_t n)
{
    check();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    check();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    check();
    return __libc_realloc(p, n);
}
