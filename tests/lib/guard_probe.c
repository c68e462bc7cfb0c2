/* Asks for memory under the guard in the way that its argument names, to show that guard_malloc
 * aborts. "outside" asks in all ways without the guard, and must end with status 0; so must a name
 * that is no way to ask. */
#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *volatile sink; /* so that no compiler leaves an allocation out */

static void *map(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void ask(const char *how, void *mapped)
{
    void *p = NULL;
    if (strcmp(how, "malloc") == 0) p = malloc(10);
    if (strcmp(how, "calloc") == 0) p = calloc(1, 10);
    if (strcmp(how, "realloc") == 0) p = realloc(NULL, 10);
    if (strcmp(how, "reallocarray") == 0) p = reallocarray(NULL, 1, 10);
    if (strcmp(how, "posix_memalign") == 0 && posix_memalign(&p, 64, 64) != 0) p = NULL;
    if (strcmp(how, "aligned_alloc") == 0) p = aligned_alloc(64, 64);
    if (strcmp(how, "mmap") == 0) p = map(4096);
    if (strcmp(how, "mremap") == 0) p = mremap(mapped, 4096, 8192, MREMAP_MAYMOVE);
    if (strcmp(how, "mem") == 0) p = mem_try(10);
    if (strcmp(how, "mem_pages") == 0) p = mem_pages(10);
    sink = p;
}

int main(int argc, char **argv)
{
    static const char *const all[] = {"malloc",         "calloc",        "realloc", "reallocarray",
                                      "posix_memalign", "aligned_alloc", "mmap",    "mem",
                                      "mem_pages"};
    void *mapped = map(4096);
    if (argc != 2) return 2;
    if (strcmp(argv[1], "outside") == 0) {
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            ask(all[i], NULL);
            if (!sink) return 1;
        }
        return 0;
    }
    mem_guard_begin();
    ask(argv[1], mapped);
    mem_guard_end();
    return 0;
}
