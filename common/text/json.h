/* Building and reading JSON documents. The only module that knows jansson.
 *
 * A value belongs to the caller until it is put into an object or array, which then owns it. Keys
 * and strings are copied. A string that is not UTF-8, or a number that is not finite, becomes null
 * in an object and is left out of an array. */
#ifndef FLOTILLA_TEXT_JSON_H
#define FLOTILLA_TEXT_JSON_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct json;

struct json *json_new_object(void);
struct json *json_new_array(void);
void json_free(struct json *j);

void json_put_string(struct json *object, const char *key, const char *s, size_t len);
void json_put_int(struct json *object, const char *key, int64_t v);
/* Up to 2^53 a number, since JSON's readers hold those exactly; above, a string of its digits. */
void json_put_u64(struct json *object, const char *key, uint64_t v);
void json_put_real(struct json *object, const char *key, double v);
void json_put_bool(struct json *object, const char *key, bool v);
void json_put_null(struct json *object, const char *key);
void json_put(struct json *object, const char *key, struct json *moved);
void json_add_int(struct json *array, int64_t v);
void json_add_real(struct json *array, double v);
void json_add_string(struct json *array, const char *s, size_t len);
void json_add(struct json *array, struct json *moved);
/* One more owner of a value that somebody has, to be put or freed. Both see the same value, which
 * nobody may change then; one thread. */
struct json *json_share(const struct json *j);
/* An array of token ids. */
struct json *json_tokens(const int32_t *ids, size_t n);

/* One line, then a newline. */
void json_print(const struct json *j, FILE *to);
/* Appends it on one line, without a newline. */
void json_write(const struct json *j, struct buf *to);
/* The same of any value, also one that is no object or array, and with all digits of numbers. */
void json_write_exact(const struct json *j, struct buf *to);

/* ---- reading ---- */

/* Reads one document, an object or an array, which the caller frees with json_free. ERR_FORMAT,
 * with the byte at which it goes wrong: what is not JSON, a key twice in one object, an integer
 * beyond 64 bits, anything behind the document, or nesting deeper than 2,048. */
int json_read(const char *text, size_t bytes, struct json **ret, struct errmsg *em);
/* The same; *ret_byte (which may be NULL) is where it goes wrong. */
int json_read_at(const char *text, size_t bytes, struct json **ret, size_t *ret_byte,
                 struct errmsg *em);
/* The key of the outermost object whose value holds the byte `at` of a text that need not be JSON
 * behind it: what to tell a person about an error there. Cut to fit; empty where there is none. */
void json_key_at(const char *text, size_t at, char *ret, size_t size);

/* What is found belongs to its document, and is valid until that is freed. */

/* NULL: `object` has no such key, or is no object. */
const struct json *json_get(const struct json *object, const char *key);
/* False: it is no array. */
bool json_count(const struct json *array, size_t *ret_n);
/* The i-th of an array that has more than i. */
const struct json *json_at(const struct json *array, size_t i);
/* False: it is no integer, or is below 0. NULL counts as none. */
bool json_as_u64(const struct json *v, uint64_t *ret);

enum json_kind {
    JSON_KIND_NULL, /* NULL counts as null */
    JSON_KIND_BOOL,
    JSON_KIND_INT,
    JSON_KIND_REAL,
    JSON_KIND_STRING,
    JSON_KIND_ARRAY,
    JSON_KIND_OBJECT
};

enum json_kind json_kind(const struct json *v);
/* False: it is of another kind; *ret stays as it is. An integer is a real too. A string is UTF-8
 * and NUL-terminated. */
bool json_as_bool(const struct json *v, bool *ret);
bool json_as_int(const struct json *v, int64_t *ret);
bool json_as_real(const struct json *v, double *ret);
bool json_as_string(const struct json *v, const char **ret, size_t *ret_len);

/* The members of an object in their order: begin with *at = NULL; false at the end. */
bool json_next(const struct json *object, void **at, const char **ret_key, size_t *ret_key_len,
               const struct json **ret_value);
size_t json_n_members(const struct json *object);

#endif
