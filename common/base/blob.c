#include "common/base/blob.h"

#include "common/base/mem.h"

#include <string.h>

struct blob *blob_new(const void *data, size_t bytes)
{
    struct blob *b = mem_try(sizeof *b + bytes);
    if (!b) return NULL;
    b->owners = 1;
    b->bytes = bytes;
    if (bytes) memcpy(b->data, data, bytes);
    return b;
}

struct blob *blob_share(struct blob *b)
{
    if (b) b->owners++;
    return b;
}

void blob_drop(struct blob *b)
{
    if (b && --b->owners == 0) mem_free(b);
}
