/* What it takes to read parts of a file: the engine says which extents of which file it needs and
 * takes the bytes; who reads them, and how, is the caller's (common/io/ring.h in service). */
#ifndef FLOTILLA_BASE_SOURCE_H
#define FLOTILLA_BASE_SOURCE_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct extent {
    uint64_t offset; /* bytes from the start of the file */
    uint64_t bytes;
};

/* Called once for each extent, in any order, from the reading thread. `data` is valid during the
 * call. A negative result ends the reading with that error. */
typedef int (*source_sink_fn)(void *arg, size_t extent_idx, const uint8_t *data, struct errmsg *em);

/* Reads all extents of the file `path` and hands each to the sink. */
typedef int (*source_read_fn)(void *ctx, const char *path, const struct extent *extents,
                              size_t n_extents, source_sink_fn sink, void *sink_arg,
                              struct errmsg *em);

#endif
