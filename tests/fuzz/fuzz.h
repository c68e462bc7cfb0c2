/* What the fuzz targets of this folder share: libFuzzer's entry, and a check that ends the process.
 */
#ifndef FLOTILLA_TESTS_FUZZ_H
#define FLOTILLA_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void fuzz_check(bool right)
{
    if (!right) abort();
}

#endif
