/* A model's weights as a directory: tensors by name with their type, shape, file and place in it,
 * and typed metadata. Only the reader of a format (weights_gguf.c) knows in which format they lie
 * and in how many files. The directory is read from the files' headers; tensor data are read by the
 * code that needs them, from weights_path(w, tensor->file).
 *
 * Files are not trusted: every length, count, offset, type and alignment is checked, and an error
 * names the file, the key or tensor, and the byte offset. A directory does not change once it is
 * open; any thread may read it. */
#ifndef FLOTILLA_ENGINE_WEIGHTS_H
#define FLOTILLA_ENGINE_WEIGHTS_H

#include "common/base/err.h"
#include "common/engine/meta.h"
#include "common/engine/quant.h"

#include <stddef.h>
#include <stdint.h>

#define WEIGHTS_FILES_MAX 1024u

struct weights_tensor {
    const char *name; /* NUL-terminated; valid while the directory is open */
    enum qtype type;  /* any that qtype_info knows, also one that is not computed */
    uint32_t n_dims;
    uint64_t dims[4]; /* dims[0] is the row length k; unused ones are 1 */
    uint32_t file;    /* index for weights_path */
    uint64_t offset;  /* bytes from the start of that file */
    uint64_t bytes;
};

struct weights;

/* The model that `path` is a file of: a GGUF file, or any part of one that was cut into parts
 * (NAME-00001-of-0000N.gguf), whose other parts are then opened too. ERR_NOTFOUND, ERR_IO: a file
 * cannot be read; ERR_FORMAT, ERR_UNSUPPORTED, ERR_LIMIT: it is refused. */
int weights_open(const char *path, struct weights **ret, struct errmsg *em);
/* The same from the bytes of one whole file's header (copied). `file_bytes` is the size that the
 * file would have. */
int weights_parse(const uint8_t *data, size_t size, uint64_t file_bytes, struct weights **ret,
                  struct errmsg *em);
void weights_close(struct weights *w);

uint32_t weights_n_files(const struct weights *w);
/* Files are numbered as their parts are, whichever of them was named; "memory" after
 * weights_parse. */
const char *weights_path(const struct weights *w, uint32_t file);
/* Of all files together. */
uint64_t weights_file_bytes(const struct weights *w);
uint64_t weights_header_bytes(const struct weights *w);

const struct meta *weights_meta(const struct weights *w);
size_t weights_n_tensors(const struct weights *w);
const struct weights_tensor *weights_tensor_at(const struct weights *w, size_t idx);
/* NULL: there is none. */
const struct weights_tensor *weights_tensor(const struct weights *w, const char *name);

/* Identity of the model's headers: a hash of them and of the files' sizes. The same from whichever
 * part it was opened. */
uint64_t weights_digest(const struct weights *w);

#endif
