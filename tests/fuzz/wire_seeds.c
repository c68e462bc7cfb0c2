/* Writes the wire fuzzer's first inputs: wire_seeds DIR. */
#include "tests/lib/random_msg.h"

int main(int argc, char **argv)
{
    /* The byte by which wire_fuzz.c chooses the decoder of each kind. */
    static const uint8_t first[RANDOM_KINDS] = {0, 1, 2, 3, 4, 5, 49, 7};
    struct rng r = {1};
    struct buf b = {0};
    for (unsigned i = 0; argc == 2 && i < 5 * RANDOM_KINDS; i++) {
        char path[4096];
        random_msg(&r, (enum random_kind)(i % RANDOM_KINDS), &b);
        (void)snprintf(path, sizeof path, "%s/seed%02u", argv[1], i);
        FILE *f = fopen(path, "wb");
        if (!f) return 1;
        (void)fputc(first[i % RANDOM_KINDS], f);
        (void)fwrite(b.data, 1, b.len, f);
        (void)fclose(f);
    }
    buf_close(&b);
    return argc == 2 ? 0 : 2;
}
