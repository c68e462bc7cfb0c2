/* The typed metadata of a model file: keys with numbers, booleans, strings or arrays of them. A
 * reader of a file format fills the table once; nothing changes it afterwards, and any thread may
 * read it. Values stay bytes of the file's header until one is asked for. */
#ifndef FLOTILLA_ENGINE_META_H
#define FLOTILLA_ENGINE_META_H

#include "common/base/cursor.h"
#include "common/base/err.h"
#include "common/base/hash.h"

#include <stdbool.h>
#include <stdint.h>

#define META_KEY_BYTES_MAX 1024u

/* Values are those of the GGUF file. */
enum meta_type {
    META_U8,
    META_I8,
    META_U16,
    META_I16,
    META_U32,
    META_I32,
    META_F32,
    META_BOOL,
    META_STRING,
    META_ARRAY,
    META_U64,
    META_I64,
    META_F64,
    META_N_TYPES
};

struct meta_kv {
    const char *key; /* not NUL-terminated; valid while the directory is open, like all below */
    uint32_t key_len;
    enum meta_type type;
    enum meta_type item_type; /* of an array; else the same as type */
    uint64_t n_items;         /* of an array; 1 otherwise */
    const uint8_t *data;      /* little-endian; a string is a u64 length and its bytes in an array,
                                 and its bytes alone otherwise */
    uint64_t data_bytes;
};

struct meta {
    struct meta_kv *kvs; /* in the order of the file; from mem_try, meta_close frees it */
    size_t n;
    struct smap by_key; /* key -> index in kvs */
};

void meta_close(struct meta *m);

/* Bytes of a value of a type that has a fixed size; 0 for strings and arrays. */
uint32_t meta_type_bytes(enum meta_type type);
/* "u8", "string" and so on. */
const char *meta_type_name(enum meta_type type);

/* NULL: there is no such key. */
const struct meta_kv *meta_find(const struct meta *m, const char *key);

/* An integer of whatever type the file gave it: writers differ in that. */
struct meta_int {
    bool negative;
    uint64_t value; /* negative: as int64_t */
};

/* Item idx (below n_items) of an array, or the value itself with idx 0. False: no integer. */
bool meta_int_at(const struct meta_kv *kv, uint64_t idx, struct meta_int *ret);
/* The same for floating-point numbers, and integers, which are rounded to one. */
bool meta_f32_at(const struct meta_kv *kv, uint64_t idx, float *ret);
/* The next string of an array whose data the cursor walks; false at the end. */
bool meta_next_string(struct cursor *c, const char **ret, size_t *ret_len);

/* Values by key. 0; ERR_NOTFOUND when there is no such key (em is filled then too, for a caller
 * that needs the key); ERR_FORMAT when it is of another kind or does not fit. Integers and
 * floating-point numbers may have any width; a boolean may be an integer that is 0 or 1. */
int meta_get_u32(const struct meta *m, const char *key, uint32_t *ret, struct errmsg *em);
int meta_get_f32(const struct meta *m, const char *key, float *ret, struct errmsg *em);
int meta_get_bool(const struct meta *m, const char *key, bool *ret, struct errmsg *em);
/* The string's bytes; not NUL-terminated. */
int meta_get_string(const struct meta *m, const char *key, const char **ret, size_t *ret_len,
                    struct errmsg *em);

#endif
