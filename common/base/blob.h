/* Bytes that never change and have several owners. One thread at a time: no lock is taken. */
#ifndef FLOTILLA_BASE_BLOB_H
#define FLOTILLA_BASE_BLOB_H

#include <stddef.h>
#include <stdint.h>

struct blob {
    uint32_t owners; /* private */
    size_t bytes;    /* public, read-only, like `data` */
    uint8_t data[];
};

/* A copy of the bytes, with one owner; NULL: no memory for them. */
struct blob *blob_new(const void *data, size_t bytes);
/* One owner more. b may be NULL, here and below. */
struct blob *blob_share(struct blob *b);
/* One owner less; the last one frees it. */
void blob_drop(struct blob *b);

#endif
