/* encode_tool q4_0|q8_0: f32 values on stdin, as blocks of quantised keys or values on stdout. */
#include "common/engine/quant.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    float x[32];
    uint8_t block[QBLOCK_BYTES];
    struct qblock b;
    if (argc != 2) return 2;
    enum qtype type = strcmp(argv[1], "q4_0") == 0 ? QTYPE_Q4_0 : QTYPE_Q8_0;
    while (fread(x, sizeof x, 1, stdin) == 1) {
        quant_encode(type, x, &b);
        quant_write(type, &b, block);
        (void)fwrite(block, qtype_info((uint32_t)type)->bytes, 1, stdout);
    }
    return 0;
}
