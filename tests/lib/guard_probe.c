/* Allocates inside the guard, to show that guard_malloc aborts when it must. */
#include "common/base/mem.h"

#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    mem_guard_begin();
    char *p = argc > 1 && strcmp(argv[1], "direct") == 0 ? malloc(10) : mem_try(10);
    mem_guard_end();
    free(p);
    return 0;
}
