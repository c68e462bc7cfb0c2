/* Building JSON documents. The only module that knows jansson.
 *
 * A value belongs to the caller until it is put into an object or array, which then owns it. Keys
 * and strings are copied. A string that is not UTF-8, or a number that is not finite, becomes null
 * in an object and is left out of an array. */
#ifndef FLOTILLA_TEXT_JSON_H
#define FLOTILLA_TEXT_JSON_H

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
/* An array of token ids. */
struct json *json_tokens(const int32_t *ids, size_t n);

/* One line, then a newline. */
void json_print(const struct json *j, FILE *to);

#endif
