#include "common/engine/content.h"

#include "common/base/hash.h"
#include "common/engine/tile.h"

#define PART_BYTES ((uint64_t)2 << 20)

uint64_t content_rows(const struct weights_tensor *t)
{
    return t->dims[1] * t->dims[2] * t->dims[3]; /* the reader has checked the product */
}

uint64_t content_part_rows(const struct weights_tensor *t)
{
    uint64_t panel_bytes = t->bytes / content_rows(t) * TILE_ROWS;
    uint64_t panels = panel_bytes < PART_BYTES ? PART_BYTES / panel_bytes : 1;
    return panels * TILE_ROWS;
}

uint64_t content_hash(const void *data, size_t bytes, uint64_t at)
{
    return hash_bytes(data, bytes, at);
}
