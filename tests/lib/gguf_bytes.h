/* The bytes of GGUF files that tests write: little-endian numbers and strings. */
#ifndef FLOTILLA_TESTS_GGUF_BYTES_H
#define FLOTILLA_TESTS_GGUF_BYTES_H

#include "common/base/buf.h"

#include <stdint.h>
#include <string.h>

static inline void u32(struct buf *b, uint32_t v)
{
    (void)buf_append(b, &v, sizeof v);
}

static inline void u64(struct buf *b, uint64_t v)
{
    (void)buf_append(b, &v, sizeof v);
}

static inline void str(struct buf *b, const char *s)
{
    u64(b, strlen(s));
    (void)buf_append(b, s, strlen(s));
}

#endif
