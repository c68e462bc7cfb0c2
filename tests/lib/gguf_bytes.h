/* The bytes of GGUF files that tests write: a header, its keys and tensors' entries. Little-endian,
 * as the machines that run the tests are. */
#ifndef FLOTILLA_TESTS_GGUF_BYTES_H
#define FLOTILLA_TESTS_GGUF_BYTES_H

#include "common/base/buf.h"
#include "common/engine/meta.h"

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

/* A value of any type but string and array. */
static inline void put_number(struct buf *b, enum meta_type type, int64_t v)
{
    float f = (float)v;
    double d = (double)v;
    if (type == META_F32)
        (void)buf_append(b, &f, sizeof f);
    else if (type == META_F64)
        (void)buf_append(b, &d, sizeof d);
    else
        (void)buf_append(b, &v, meta_type_bytes(type));
}

static inline void put_number_key(struct buf *b, const char *name, enum meta_type type, int64_t v)
{
    str(b, name);
    u32(b, type);
    put_number(b, type, v);
}

static inline void put_text_key(struct buf *b, const char *name, const char *value)
{
    str(b, name);
    u32(b, META_STRING);
    str(b, value);
}

static inline void put_header(struct buf *b, uint64_t n_tensors, uint64_t n_keys)
{
    (void)buf_append(b, "GGUF", 4);
    u32(b, 3);
    u64(b, n_tensors);
    u64(b, n_keys);
}

/* Up to the alignment of tensors. */
static inline void put_padding(struct buf *b)
{
    static const char zero[32];
    (void)buf_append(b, zero, (32 - b->len % 32) % 32);
}

#endif
