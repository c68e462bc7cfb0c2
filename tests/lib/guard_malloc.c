/* Preloaded into a worker: memory that is asked of the C library or the kernel while the thread is
 * in the guarded compute path (common/base/mem.h) aborts the process. The worker's own mem_*
 * functions check the same guard by themselves; this catches what goes around them. */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef bool (*active_fn)(void);

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);
void *memalign(size_t alignment, size_t n);

static active_fn active;

static __attribute__((constructor)) void find(void)
{
    /* A worker exports it (ENABLE_EXPORTS); other programs that this library is loaded into do not.
     */
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

void *memalign(size_t alignment, size_t n)
{
    check();
    return __libc_memalign(alignment, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    check();
    return __libc_memalign(alignment, n);
}

int posix_memalign(void **ret, size_t alignment, size_t n)
{
    check();
    if (alignment < sizeof(void *) || (alignment & (alignment - 1))) return EINVAL;
    void *p = __libc_memalign(alignment, n);
    if (!p) return ENOMEM;
    *ret = p;
    return 0;
}

void *reallocarray(void *p, size_t n, size_t size)
{
    check();
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(p, bytes);
}

/* Pages straight from the kernel. What the C library maps by itself does not come through here, but
 * then one of the functions above was called before. */
void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    check();
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

void *mremap(void *old, size_t old_bytes, size_t n, int flags, ...)
{
    check();
    va_list args;
    va_start(args, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(args, void *) : NULL;
    va_end(args);
    return (void *)syscall(SYS_mremap, old, old_bytes, n, flags, to);
}

void *sbrk(intptr_t n)
{
    check();
    static void *(*real)(intptr_t);
    if (!real) {
        void *symbol = dlsym(RTLD_NEXT, "sbrk");
        memcpy(&real, &symbol, sizeof real);
    }
    return real(n);
}
