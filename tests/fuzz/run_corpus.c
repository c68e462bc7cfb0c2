/* Runs a fuzz target over a folder of inputs, without a fuzzer: NAME_corpus DIR. Each input is run
 * whole and cut: at every length up to 4 KiB, above that at some. */
#include "tests/fuzz/fuzz.h"

#include "common/base/mem.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static size_t run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    uint8_t *data = mem_alloc(1 << 20);
    size_t n = fread(data, 1, 1 << 20, f);
    (void)fclose(f);
    for (size_t cut = n;; cut -= cut > 4096 ? cut / 64 : 1) {
        uint8_t *exact = mem_alloc(cut + !cut); /* so that a sanitizer sees its end */
        memcpy(exact, data, cut);
        (void)LLVMFuzzerTestOneInput(exact, cut);
        mem_free(exact);
        if (cut == 0) break;
    }
    mem_free(data);
    return 1;
}

int main(int argc, char **argv)
{
    DIR *d = argc == 2 ? opendir(argv[1]) : NULL;
    size_t n = 0;
    if (!d) return 2;
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        if (e->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        n += run_file(path);
    }
    (void)closedir(d);
    (void)printf("%zu inputs\n", n);
    return n ? 0 : 1;
}
