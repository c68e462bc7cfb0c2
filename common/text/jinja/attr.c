/* Members, items and slices. As in Jinja, `a.b` asks for an attribute first and for an item then,
 * and `a['b']` the other way round; what there is not is undefined. Attributes are the methods of
 * Python's classes, which the sandbox lets through only where they change nothing. */
#include "common/text/jinja/interp.h"

#include "common/base/mem.h"

#include <string.h>

static struct value undefined(struct value of, struct value name)
{
    struct value v = value_of(V_UNDEFINED);
    v.of = of.type;
    v.text = name.type == V_STRING ? name.text : "item";
    v.len = name.type == V_STRING ? name.len : 4;
    return v;
}

static struct value loop_member(struct interp *in, struct value of, struct value name)
{
    const struct loop *l = of.loop;
    int64_t at = (int64_t)l->at, n = (int64_t)l->items->n;
    struct value method;
    if (value_is(name, "index")) return value_int(at + 1);
    if (value_is(name, "index0")) return value_int(at);
    if (value_is(name, "revindex")) return value_int(n - at);
    if (value_is(name, "revindex0")) return value_int(n - at - 1);
    if (value_is(name, "first")) return value_bool(at == 0);
    if (value_is(name, "last")) return value_bool(at + 1 == n);
    if (value_is(name, "length")) return value_int(n);
    if (value_is(name, "depth")) return value_int(l->depth);
    if (value_is(name, "depth0")) return value_int((int64_t)l->depth - 1);
    if (value_is(name, "previtem")) return at > 0 ? l->items->items[at - 1] : undefined(of, name);
    if (value_is(name, "nextitem"))
        return at + 1 < n ? l->items->items[at + 1] : undefined(of, name);
    return method_find(in, of, name, &method) ? method : undefined(of, name);
}

static const struct value *member_of_dict(struct interp *in, struct value of, struct value name)
{
    if (of.type != V_DICT && of.type != V_NAMESPACE) return NULL;
    return dict_get(in, of.dict, name);
}

struct value attr_get(struct interp *in, struct value of, struct value name)
{
    struct value method;
    if (in->rc < 0) return value_none();
    if (of.type == V_UNDEFINED || of.type == V_UNSAFE) {
        interp_undefined(in, of);
        return value_none();
    }
    if (of.type == V_LOOP) return loop_member(in, of, name);
    if (of.type == V_MACRO && value_is(name, "name")) return of.macro->node->constant;
    if (of.type == V_CYCLER && value_is(name, "current"))
        return of.cycler->items->items[of.cycler->at];
    if (method_find(in, of, name, &method)) return method;
    const struct value *v = member_of_dict(in, of, name);
    return v ? *v : undefined(of, name);
}

static bool can_be_key(struct value v)
{
    return v.type != V_LIST && v.type != V_DICT && v.type != V_VIEW;
}

struct value attr_item(struct interp *in, struct value of, struct value item)
{
    struct value method;
    int64_t i, n;
    if (in->rc < 0) return value_none();
    if (of.type == V_UNDEFINED || of.type == V_UNSAFE) {
        interp_undefined(in, of);
        return value_none();
    }
    const struct value *v = can_be_key(item) ? member_of_dict(in, of, item) : NULL;
    if (v) return *v;
    if (of.type == V_LIST || of.type == V_TUPLE || of.type == V_RANGE) {
        n = (int64_t)of.list->n;
        if (value_integer(item, &i) && i < n && i >= -n) return of.list->items[i < 0 ? i + n : i];
    } else if (of.type == V_STRING && value_integer(item, &i) && interp_bytes(in, of.len)) {
        n = (int64_t)str_chars(of);
        if (i < n && i >= -n) {
            size_t at = str_byte_of(of, (size_t)(i < 0 ? i + n : i)), bytes;
            (void)str_char(of, at, &bytes);
            return str_part(of, at, at + bytes);
        }
    }
    if (item.type == V_STRING && of.type == V_LOOP) return loop_member(in, of, item);
    if (item.type == V_STRING && method_find(in, of, item, &method)) return method;
    return undefined(of, item);
}

/* An end of a slice as Python makes it fit: `none` where it is not given. */
static bool slice_end(struct interp *in, struct value v, int64_t n, int64_t lo, int64_t hi,
                      int64_t none, int64_t *ret)
{
    *ret = none;
    if (v.type == V_NONE) return true;
    if (!value_integer(v, ret)) {
        if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
        interp_fail(in, ERR_RANGE, "a slice wants integers, not a '%s'", value_type_name(v));
        return false;
    }
    if (*ret < 0) *ret = *ret < -n ? -1 : *ret + n;
    *ret = *ret < lo ? lo : *ret > hi ? hi : *ret;
    return true;
}

static struct value slice_string(struct interp *in, struct value s, int64_t from, int64_t to,
                                 int64_t step)
{
    struct str_builder b;
    if (step == 1)
        return from < to ? str_part(s, str_byte_of(s, (size_t)from), str_byte_of(s, (size_t)to))
                         : str_part(s, 0, 0);
    struct list *chars = list_walk(in, s);
    str_begin(&b, in);
    for (int64_t i = from; chars && (step > 0 ? i < to : i > to) && interp_step(in, 1); i += step)
        str_add_value(&b, chars->items[i]);
    struct value v = str_end(&b);
    v.markup = s.markup;
    return v;
}

struct value attr_slice(struct interp *in, struct value of, struct value start, struct value stop,
                        struct value step_value)
{
    int64_t step = 1, from, to, n;
    bool is_list = of.type == V_LIST || of.type == V_TUPLE || of.type == V_RANGE;
    if (in->rc < 0) return value_none();
    if (of.type == V_UNDEFINED || of.type == V_UNSAFE) {
        interp_undefined(in, of);
        return value_none();
    }
    if (!is_list && of.type != V_STRING) {
        interp_fail(in, ERR_RANGE, "a '%s' cannot be sliced", value_type_name(of));
        return value_none();
    }
    if (step_value.type != V_NONE && (!value_integer(step_value, &step) || step == 0)) {
        interp_fail(in, ERR_RANGE, "a slice's step is an integer, and not 0");
        return value_none();
    }
    n = is_list ? (int64_t)of.list->n : (int64_t)str_chars(of);
    bool back = step < 0;
    if (step < -n - 1) step = -n - 1; /* beyond that it makes no difference, and i + step fits */
    if (step > n + 1) step = n + 1;
    if (!slice_end(in, start, n, back ? -1 : 0, back ? n - 1 : n, back ? n - 1 : 0, &from) ||
        !slice_end(in, stop, n, back ? -1 : 0, back ? n - 1 : n, back ? -1 : n, &to))
        return value_none();
    if (!is_list) return interp_bytes(in, of.len) ? slice_string(in, of, from, to, step) : of;
    struct list *l = list_new(in, 0);
    for (int64_t i = from; (back ? i > to : i < to) && interp_step(in, 1); i += step)
        list_add(in, l, of.list->items[i]);
    return list_value((enum value_type)of.type, l);
}

/* "12" -> 12, as Jinja takes digits in paths. */
static bool as_index(struct value s, int64_t *ret)
{
    *ret = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.text[i] < '0' || s.text[i] > '9' || i > 9) return false;
        *ret = *ret * 10 + (s.text[i] - '0');
    }
    return s.len > 0;
}

struct value attr_path(struct interp *in, struct value v, struct value path, struct value missing)
{
    const struct value dot = value_text(".", 1);
    bool has_default = missing.type != V_NONE && missing.type != V_MISSING;
    if (path.type == V_NONE || path.type == V_MISSING) return v;
    if (path.type == V_STRING && !interp_bytes(in, path.len)) return v;
    for (size_t at = 0, end; in->rc == 0; at = end + 1) {
        int64_t i;
        struct value part = path;
        end = SIZE_MAX;
        if (path.type == V_STRING) {
            end = str_find(path, dot, at);
            part = str_part(path, at, end == SIZE_MAX ? path.len : end);
            if (as_index(part, &i)) part = value_int(i);
        }
        v = attr_item(in, v, part);
        if (has_default && (v.type == V_UNDEFINED || v.type == V_UNSAFE)) v = missing;
        if (end == SIZE_MAX || !interp_step(in, 1)) break;
    }
    return v;
}
