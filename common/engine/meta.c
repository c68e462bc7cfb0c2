#include "common/engine/meta.h"

#include "common/base/fmath.h" /* refuses flags that change rounding */
#include "common/base/mem.h"

#include <string.h>

static const struct {
    const char *name;
    uint8_t bytes;
} types[META_N_TYPES] = {
    [META_U8] = {"u8", 1},       [META_I8] = {"i8", 1},     [META_U16] = {"u16", 2},
    [META_I16] = {"i16", 2},     [META_U32] = {"u32", 4},   [META_I32] = {"i32", 4},
    [META_F32] = {"f32", 4},     [META_BOOL] = {"bool", 1}, [META_STRING] = {"string", 0},
    [META_ARRAY] = {"array", 0}, [META_U64] = {"u64", 8},   [META_I64] = {"i64", 8},
    [META_F64] = {"f64", 8},
};

uint32_t meta_type_bytes(enum meta_type type)
{
    return types[type].bytes;
}

const char *meta_type_name(enum meta_type type)
{
    return types[type].name;
}

void meta_close(struct meta *m)
{
    mem_free(m->kvs);
    smap_close(&m->by_key);
    *m = (struct meta){0};
}

const struct meta_kv *meta_find(const struct meta *m, const char *key)
{
    const uint32_t *i = smap_get(&m->by_key, key, strlen(key));
    return i ? &m->kvs[*i] : NULL;
}

bool meta_next_string(struct cursor *c, const char **ret, size_t *ret_len)
{
    if (cursor_left(c) == 0) return false;
    uint64_t n = cursor_u64(c);
    const uint8_t *p = cursor_take(c, n);
    if (!p) return false;
    *ret = (const char *)p;
    *ret_len = (size_t)n;
    return true;
}

bool meta_int_at(const struct meta_kv *kv, uint64_t idx, struct meta_int *ret)
{
    size_t width = types[kv->item_type].bytes;
    struct cursor c = {.data = kv->data + idx * width, .size = width};
    int64_t v = 0;
    switch (kv->item_type) {
    case META_U8: v = cursor_u8(&c); break;
    case META_U16: v = cursor_u16(&c); break;
    case META_U32: v = cursor_u32(&c); break;
    case META_U64: *ret = (struct meta_int){false, cursor_u64(&c)}; return true;
    case META_I8: v = (int8_t)cursor_u8(&c); break;
    case META_I16: v = (int16_t)cursor_u16(&c); break;
    case META_I32: v = (int32_t)cursor_u32(&c); break;
    case META_I64: v = (int64_t)cursor_u64(&c); break;
    case META_F32:
    case META_F64:
    case META_BOOL:
    case META_STRING:
    case META_ARRAY:
    case META_N_TYPES: return false;
    }
    *ret = (struct meta_int){v < 0, (uint64_t)v};
    return true;
}

bool meta_f32_at(const struct meta_kv *kv, uint64_t idx, float *ret)
{
    struct meta_int i;
    double d;
    if (kv->item_type == META_F32) {
        memcpy(ret, kv->data + idx * sizeof *ret, sizeof *ret);
    } else if (kv->item_type == META_F64) {
        memcpy(&d, kv->data + idx * sizeof d, sizeof d);
        *ret = (float)d;
    } else if (meta_int_at(kv, idx, &i)) {
        *ret = i.negative ? (float)(int64_t)i.value : (float)i.value;
    } else {
        return false;
    }
    return true;
}

static int find(const struct meta *m, const char *key, const struct meta_kv **ret,
                struct errmsg *em)
{
    *ret = meta_find(m, key);
    return *ret ? 0 : err_set(em, ERR_NOTFOUND, "key '%s' is missing", key);
}

int meta_get_u32(const struct meta *m, const char *key, uint32_t *ret, struct errmsg *em)
{
    const struct meta_kv *kv;
    struct meta_int i;
    int rc = find(m, key, &kv, em);
    if (rc < 0) return rc;
    if (kv->type == META_ARRAY || !meta_int_at(kv, 0, &i))
        return err_set(em, ERR_FORMAT, "key '%s' is not an integer", key);
    if (i.negative || i.value > UINT32_MAX)
        return err_set(em, ERR_FORMAT, "key '%s' does not fit 32 bits without sign", key);
    *ret = (uint32_t)i.value;
    return 0;
}

int meta_get_f32(const struct meta *m, const char *key, float *ret, struct errmsg *em)
{
    const struct meta_kv *kv;
    int rc = find(m, key, &kv, em);
    if (rc < 0) return rc;
    if (kv->type == META_ARRAY || !meta_f32_at(kv, 0, ret))
        return err_set(em, ERR_FORMAT, "key '%s' is not a number", key);
    return 0;
}

int meta_get_bool(const struct meta *m, const char *key, bool *ret, struct errmsg *em)
{
    const struct meta_kv *kv;
    struct meta_int i;
    int rc = find(m, key, &kv, em);
    if (rc < 0) return rc;
    if (kv->type == META_BOOL) {
        *ret = kv->data[0] != 0;
        return 0;
    }
    if (kv->type == META_ARRAY || !meta_int_at(kv, 0, &i) || i.negative || i.value > 1)
        return err_set(em, ERR_FORMAT, "key '%s' is not a boolean", key);
    *ret = i.value != 0;
    return 0;
}

int meta_get_string(const struct meta *m, const char *key, const char **ret, size_t *ret_len,
                    struct errmsg *em)
{
    const struct meta_kv *kv;
    int rc = find(m, key, &kv, em);
    if (rc < 0) return rc;
    if (kv->type != META_STRING) return err_set(em, ERR_FORMAT, "key '%s' is not a string", key);
    *ret = (const char *)kv->data;
    *ret_len = (size_t)kv->data_bytes;
    return 0;
}
