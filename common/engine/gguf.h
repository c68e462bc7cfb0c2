/* The GGUF reader: the header of one file as metadata and a table of tensors. Versions 2 and 3,
 * little-endian. Private to the engine: weights.h is what others see, and weights_gguf.c makes one
 * directory of the files of a model.
 *
 * The file is not trusted: every length, count, offset, type and alignment is checked, and an error
 * names the key or tensor and the byte offset. Limits: GGUF_* below. */
#ifndef FLOTILLA_ENGINE_GGUF_H
#define FLOTILLA_ENGINE_GGUF_H

#include "common/base/err.h"
#include "common/engine/meta.h"
#include "common/engine/weights.h"

#include <stdint.h>

#define GGUF_HEADER_BYTES_MAX (UINT64_C(256) << 20)
#define GGUF_KEYS_MAX 65536u
#define GGUF_TENSORS_MAX 65536u
#define GGUF_NAME_BYTES_MAX META_KEY_BYTES_MAX

/* One file. Public, read only. */
struct gguf {
    struct meta meta;               /* values point into header */
    struct weights_tensor *tensors; /* of file 0 */
    size_t n_tensors;
    size_t header_bytes; /* up to the start of the tensor data */
    size_t parsed_bytes; /* the same without the padding */
    uint64_t file_bytes;
    uint8_t *header;
    char *names;         /* private, like the rest: tensor names with their NULs */
    struct smap by_name; /* only while the header is parsed, like the next */
    uint32_t alignment;
};

/* Reads the header of the file and fills *ret; after an error there is nothing to close. */
int gguf_open(const char *path, struct gguf *ret, struct errmsg *em);
/* The same from bytes in memory (copied). `file_bytes` is the size the whole file would have. */
int gguf_parse(const uint8_t *data, size_t size, uint64_t file_bytes, struct gguf *ret,
               struct errmsg *em);
void gguf_close(struct gguf *g);

#endif
