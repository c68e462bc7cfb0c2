/* Reading parts of a file fast: io_uring with a deep queue, or pread behind the same interface.
 *
 * What the page cache already holds is copied from there; the rest is read in large aligned blocks
 * past the cache (O_DIRECT) where the file system allows it. Each extent goes to the sink as soon
 * as it is whole, while the next ones are in flight. The only module that knows liburing. */
#ifndef FLOTILLA_IO_RING_H
#define FLOTILLA_IO_RING_H

#include "common/base/source.h"

#include <stdbool.h>

#define RING_DEPTH 16u
#define RING_EXTENT_BYTES_MAX ((uint64_t)64 << 20)

enum ring_mode {
    RING_AUTO,  /* io_uring as long as the kernel allows it, pread for what is left */
    RING_URING, /* ERR_UNSUPPORTED where the kernel does not allow it */
    RING_PREAD,
};

struct ring_use {
    enum ring_mode mode;                 /* public: set before the call */
    uint64_t direct_bytes, cached_bytes; /* results of a call: read past the cache; through it */
    bool used_uring;                     /* result of a call: io_uring alone delivered all */
};

/* A source_read_fn; ctx is a struct ring_use. An extent that ends beyond the file gives ERR_FORMAT
 * with the missing bytes (the file may have been cut since it was opened). */
int ring_read(void *ctx, const char *path, const struct extent *extents, size_t n_extents,
              source_sink_fn sink, void *sink_arg, struct errmsg *em);

#endif
