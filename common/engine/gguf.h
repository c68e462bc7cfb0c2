/* The GGUF reader: a file's header as a directory of metadata and tensors. Versions 2 and 3,
 * little-endian. It reads the header only; tensors are read by who needs them.
 *
 * The file is not trusted: every length, count, offset, type and alignment is checked, and an error
 * names the key or tensor and the byte offset. Limits: GGUF_* below. */
#ifndef FLOTILLA_ENGINE_GGUF_H
#define FLOTILLA_ENGINE_GGUF_H

#include "common/base/cursor.h"
#include "common/base/err.h"
#include "common/engine/quant.h"

#include <stdbool.h>
#include <stdint.h>

#define GGUF_HEADER_BYTES_MAX (UINT64_C(256) << 20)
#define GGUF_KEYS_MAX 65536u
#define GGUF_TENSORS_MAX 65536u
#define GGUF_NAME_BYTES_MAX 1024u

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPES
};

struct gguf_kv {
    const char *key; /* not NUL-terminated; valid while the directory is open, like all below */
    uint32_t key_len;
    enum gguf_type type;
    enum gguf_type item_type; /* of an array */
    uint64_t n_items;         /* of an array; 1 otherwise */
    const uint8_t *data;      /* the value's bytes as in the file (an array's: its items') */
    uint64_t data_bytes;
};

struct gguf_tensor {
    const char *name; /* NUL-terminated */
    enum qtype type;
    uint32_t n_dims;
    uint64_t dims[4]; /* dims[0] is the row length k; unused ones are 1 */
    uint64_t offset;  /* bytes from the start of the file */
    uint64_t bytes;
};

struct gguf;

int gguf_open(const char *path, struct gguf **ret_gguf, struct errmsg *em);
/* The same from bytes in memory (copied). `file_bytes` is the size the whole file would have. */
int gguf_parse(const uint8_t *data, size_t size, uint64_t file_bytes, struct gguf **ret_gguf,
               struct errmsg *em);
void gguf_close(struct gguf *g);

size_t gguf_n_kvs(const struct gguf *g);
const struct gguf_kv *gguf_kv_at(const struct gguf *g, size_t idx);
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t idx);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);

/* An integer of whatever type the file gave it: writers differ in that. */
struct gguf_int {
    bool negative;
    uint64_t value; /* negative: as int64_t */
};

/* Item idx (below n_items) of an array, or the value itself with idx 0. False: no integer. */
bool gguf_int_at(const struct gguf_kv *kv, uint64_t idx, struct gguf_int *ret);
/* The same for floating-point numbers, and integers, which are rounded to one. */
bool gguf_f32_at(const struct gguf_kv *kv, uint64_t idx, float *ret);

/* Values by key. 0; ERR_NOTFOUND when there is no such key (em is then still filled, for who needs
 * it); ERR_FORMAT when it is of another kind or does not fit. Integers and floating-point numbers
 * may have any width; a boolean may be an integer that is 0 or 1. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret, struct errmsg *em);
int gguf_get_f32(const struct gguf *g, const char *key, float *ret, struct errmsg *em);
int gguf_get_bool(const struct gguf *g, const char *key, bool *ret, struct errmsg *em);
/* The string's bytes; not NUL-terminated. */
int gguf_get_string(const struct gguf *g, const char *key, const char **ret, size_t *ret_len,
                    struct errmsg *em);

/* The next string of an array whose data the cursor walks; false at the end. */
bool gguf_next_string(struct cursor *c, const char **ret, size_t *ret_len);

/* Identity of the model: a hash of the header and of the file's size. */
uint64_t gguf_digest(const struct gguf *g);
uint64_t gguf_header_bytes(const struct gguf *g);
uint64_t gguf_file_bytes(const struct gguf *g);

#endif
