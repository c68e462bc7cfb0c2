/* Building JSON documents. The only module that knows jansson.
 *
 * A value is owned by who made it until it is put into an object or array, which then owns it.
 * Adding aborts only when memory is out; strings must be UTF-8 (others become null). */
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
/* A number up to 2^53, as a JSON number holds it exactly everywhere; above a string of digits. */
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
