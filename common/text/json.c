#include "common/text/json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>

/* struct json is jansson's json_t under a name that keeps its header out of the other modules. */
static json_t *inner(struct json *j)
{
    return (json_t *)(void *)j;
}

static struct json *outer(json_t *j)
{
    return (struct json *)(void *)j;
}

struct json *json_new_object(void)
{
    return outer(json_object());
}

struct json *json_new_array(void)
{
    return outer(json_array());
}

void json_free(struct json *j)
{
    json_decref(inner(j));
}

static void put(struct json *object, const char *key, json_t *v)
{
    (void)json_object_set_new(inner(object), key, v ? v : json_null());
}

void json_put_string(struct json *object, const char *key, const char *s, size_t len)
{
    put(object, key, json_stringn(s ? s : "", len));
}

void json_put_int(struct json *object, const char *key, int64_t v)
{
    put(object, key, json_integer(v));
}

void json_put_u64(struct json *object, const char *key, uint64_t v)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, v);
    if (v <= UINT64_C(1) << 53)
        json_put_int(object, key, (int64_t)v);
    else
        json_put_string(object, key, digits, (size_t)n);
}

void json_put_real(struct json *object, const char *key, double v)
{
    put(object, key, isfinite(v) ? json_real(v) : json_null());
}

void json_put_null(struct json *object, const char *key)
{
    put(object, key, json_null());
}

void json_put_bool(struct json *object, const char *key, bool v)
{
    put(object, key, json_boolean(v));
}

void json_put(struct json *object, const char *key, struct json *moved)
{
    put(object, key, inner(moved));
}

void json_add_int(struct json *array, int64_t v)
{
    (void)json_array_append_new(inner(array), json_integer(v));
}

void json_add_real(struct json *array, double v)
{
    (void)json_array_append_new(inner(array), json_real(v));
}

void json_add_string(struct json *array, const char *s, size_t len)
{
    (void)json_array_append_new(inner(array), json_stringn(s, len));
}

void json_add(struct json *array, struct json *moved)
{
    (void)json_array_append_new(inner(array), inner(moved));
}

struct json *json_share(const struct json *j)
{
    return outer(json_incref((json_t *)(uintptr_t)j));
}

struct json *json_tokens(const int32_t *ids, size_t n)
{
    struct json *a = json_new_array();
    for (size_t i = 0; i < n; i++) json_add_int(a, ids[i]);
    return a;
}

void json_print(const struct json *j, FILE *to)
{
    (void)json_dumpf((const json_t *)(const void *)j, to, JSON_COMPACT | JSON_REAL_PRECISION(9));
    (void)fputc('\n', to);
}

static int append(const char *data, size_t n, void *to)
{
    return buf_append(to, data, n);
}

void json_write(const struct json *j, struct buf *to)
{
    (void)json_dump_callback((const json_t *)(const void *)j, append, to,
                             JSON_COMPACT | JSON_REAL_PRECISION(9));
}

void json_write_exact(const struct json *j, struct buf *to)
{
    (void)json_dump_callback((const json_t *)(const void *)j, append, to,
                             JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
}

/* ---- reading ---- */

static const json_t *inner_const(const struct json *j)
{
    return (const json_t *)(const void *)j;
}

int json_read_at(const char *text, size_t bytes, struct json **ret, size_t *ret_byte,
                 struct errmsg *em)
{
    json_error_t error;
    json_t *j = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (j) {
        *ret = outer(j);
        return 0;
    }
    if (ret_byte) *ret_byte = error.position > 0 ? (size_t)error.position : 0;
    return err_set(em, ERR_FORMAT, "byte %d: not JSON: %s", error.position, error.text);
}

int json_read(const char *text, size_t bytes, struct json **ret, struct errmsg *em)
{
    return json_read_at(text, bytes, ret, NULL, em);
}

void json_key_at(const char *text, size_t at, char *ret, size_t size)
{
    size_t depth = 0, begin = 0, end = 0; /* of the last string of the outermost object */
    ret[0] = 0;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '"') {
            size_t from = ++i;
            while (i < at && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
            if (depth == 1) begin = from, end = i < at ? i : at;
        } else if (text[i] == ':' && depth == 1 && end > begin) {
            (void)snprintf(ret, size, "%.*s", (int)(end - begin), text + begin);
        } else if (text[i] == ',' && depth == 1) {
            ret[0] = 0;
        } else if (text[i] == '{' || text[i] == '[') {
            depth++;
        } else if ((text[i] == '}' || text[i] == ']') && depth) {
            depth--;
        }
    }
}

const struct json *json_get(const struct json *object, const char *key)
{
    return outer(json_object_get(inner_const(object), key));
}

bool json_count(const struct json *array, size_t *ret_n)
{
    if (!json_is_array(inner_const(array))) return false;
    *ret_n = json_array_size(inner_const(array));
    return true;
}

const struct json *json_at(const struct json *array, size_t i)
{
    return outer(json_array_get(inner_const(array), i));
}

bool json_as_u64(const struct json *v, uint64_t *ret)
{
    if (!json_is_integer(inner_const(v)) || json_integer_value(inner_const(v)) < 0) return false;
    *ret = (uint64_t)json_integer_value(inner_const(v));
    return true;
}

enum json_kind json_kind(const struct json *v)
{
    if (!v) return JSON_KIND_NULL;
    switch (json_typeof(inner_const(v))) {
    case JSON_TRUE:
    case JSON_FALSE: return JSON_KIND_BOOL;
    case JSON_INTEGER: return JSON_KIND_INT;
    case JSON_REAL: return JSON_KIND_REAL;
    case JSON_STRING: return JSON_KIND_STRING;
    case JSON_ARRAY: return JSON_KIND_ARRAY;
    case JSON_OBJECT: return JSON_KIND_OBJECT;
    default: return JSON_KIND_NULL;
    }
}

bool json_as_bool(const struct json *v, bool *ret)
{
    if (!json_is_boolean(inner_const(v))) return false;
    *ret = json_is_true(inner_const(v));
    return true;
}

bool json_as_int(const struct json *v, int64_t *ret)
{
    if (!json_is_integer(inner_const(v))) return false;
    *ret = json_integer_value(inner_const(v));
    return true;
}

bool json_as_real(const struct json *v, double *ret)
{
    if (!json_is_number(inner_const(v))) return false;
    *ret = json_number_value(inner_const(v));
    return true;
}

bool json_as_string(const struct json *v, const char **ret, size_t *ret_len)
{
    if (!json_is_string(inner_const(v))) return false;
    *ret = json_string_value(inner_const(v));
    *ret_len = json_string_length(inner_const(v));
    return true;
}

bool json_next(const struct json *object, void **at, const char **ret_key, size_t *ret_key_len,
               const struct json **ret_value)
{
    json_t *o = (json_t *)(uintptr_t)inner_const(object); /* its iterators want no const */
    *at = *at ? json_object_iter_next(o, *at) : json_object_iter(o);
    if (!*at) return false;
    *ret_key = json_object_iter_key(*at);
    *ret_key_len = json_object_iter_key_len(*at);
    *ret_value = outer(json_object_iter_value(*at));
    return true;
}

size_t json_n_members(const struct json *object)
{
    return json_object_size(inner_const(object));
}
