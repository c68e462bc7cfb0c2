/* The inside of the directory of weights.h, which the reader of a format fills. Private to
 * weights.c and the readers (weights_gguf.c). */
#ifndef FLOTILLA_ENGINE_WEIGHTS_DIR_H
#define FLOTILLA_ENGINE_WEIGHTS_DIR_H

#include "common/base/hash.h"
#include "common/engine/weights.h"

struct weights_file {
    char *path; /* mem_strdup, freed with the directory */
    uint64_t file_bytes, header_bytes;
};

struct weights {
    struct weights_file *files; /* n_files; mem_try, like tensors */
    uint32_t n_files;
    const struct meta *meta; /* the format's */
    struct weights_tensor *tensors;
    size_t n_tensors;
    struct smap by_name; /* name -> index in tensors */
    uint64_t digest;
    void *format; /* the reader's own; names and metadata are valid until close_format(format) */
    void (*close_format)(void *format);
};

/* weights_gguf.c: fill a zeroed directory; after an error the caller closes it. */
int weights__gguf_open(struct weights *w, const char *path, struct errmsg *em);
int weights__gguf_parse(struct weights *w, const uint8_t *data, size_t size, uint64_t file_bytes,
                        struct errmsg *em);

#endif
