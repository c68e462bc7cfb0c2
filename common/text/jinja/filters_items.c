/* Filters on lists, dictionaries and values of any kind. */
#include "common/text/jinja/interp.h"

#include <string.h>

#define FILTER(name)                                                                               \
    static struct value name(struct interp *in, struct value v, const struct value *p,             \
                             const struct call_args *a)
#define UNUSED (void)in, (void)p, (void)a

static bool truth(struct interp *in, struct value v)
{
    return v.type != V_MISSING && value_true(in, v);
}

static bool undefined(struct value v)
{
    return v.type == V_UNDEFINED || v.type == V_UNSAFE;
}

static struct value nothing(const char *what)
{
    struct value v = value_of(V_UNDEFINED);
    v.of = V_MISSING;
    v.text = what;
    v.len = (uint32_t)strlen(what);
    return v;
}

/* As Python's generators. */
static struct value iter_value(struct interp *in, const struct list *l)
{
    struct iter *it = interp_alloc(in, sizeof *it);
    if (!it) return value_none();
    *it = (struct iter){.list = *l};
    return (struct value){.type = V_ITER, .iter = it};
}

static struct value lower_case(struct interp *in, struct value v, bool case_sensitive)
{
    return v.type == V_STRING && !case_sensitive ? cases_lower(in, v) : v;
}

FILTER(default_)
{
    UNUSED;
    if (!undefined(v) && !(truth(in, p[1]) && !value_true(in, v))) return v;
    return p[0].type == V_MISSING ? value_text("", 0) : p[0];
}

FILTER(length)
{
    UNUSED;
    size_t n = 0;
    if (!value_length(in, v, &n))
        interp_fail(in, ERR_RANGE, "a '%s' has no length", value_type_name(v));
    return value_int((int64_t)n);
}

FILTER(list)
{
    UNUSED;
    const struct list *from = list_walk(in, v);
    struct list *l = list_new(in, from ? from->n : 0);
    for (size_t i = 0; from && i < from->n && interp_step(in, 1); i++)
        list_add(in, l, from->items[i]);
    return list_value(V_LIST, l);
}

FILTER(items)
{
    UNUSED;
    if (undefined(v)) return iter_value(in, list_new(in, 0));
    if (v.type == V_DICT) return iter_value(in, dict_list(in, v.dict, DICT_ITEMS));
    interp_fail(in, ERR_RANGE, "items() wants a dictionary, not a '%s'", value_type_name(v));
    return v;
}

FILTER(first)
{
    UNUSED;
    if (v.type == V_ITER && v.iter->at < v.iter->list.n) return v.iter->list.items[v.iter->at++];
    if (v.type == V_STRING && v.len > 0) return attr_item(in, v, value_int(0));
    const struct list *l = list_walk(in, v);
    return l && l->n ? l->items[0] : nothing("first");
}

FILTER(last)
{
    UNUSED;
    if (v.type == V_ITER) interp_fail(in, ERR_RANGE, "a generator has no end to begin from");
    const struct list *l = list_walk(in, v);
    return l && l->n ? l->items[l->n - 1] : nothing("last");
}

FILTER(reverse)
{
    UNUSED;
    const struct list *l = list_walk(in, v);
    struct list *r = list_new(in, l ? l->n : 0);
    struct str_builder b;
    str_begin(&b, in);
    for (size_t i = l ? l->n : 0; i > 0 && interp_step(in, 1); i--) {
        if (v.type == V_STRING)
            str_add_value(&b, l->items[i - 1]);
        else
            list_add(in, r, l->items[i - 1]);
    }
    return v.type == V_STRING ? str_end(&b)
           : v.type == V_ITER ? list_value(V_LIST, r)
                              : iter_value(in, r);
}

FILTER(attr)
{
    UNUSED;
    struct value member;
    if (undefined(v)) interp_undefined(in, v);
    if (p[0].type != V_STRING) interp_fail(in, ERR_RANGE, "attr() wants a name");
    if (in->rc < 0) return v;
    if (v.type == V_LOOP || v.type == V_NAMESPACE) return attr_get(in, v, p[0]);
    return method_find(in, v, p[0], &member) ? member : nothing("attr");
}

/* ---- choosing ---- */

FILTER(map)
{
    UNUSED;
    struct list *l = list_new(in, 0);
    struct value to[CALL_PARAMS_MAX];
    const struct filter_def *f = NULL;
    struct call_args rest = *a;
    if (!value_true(in, v)) return iter_value(in, l);
    if (a->n_pos == 0) {
        if (!call_bind(in, "map", "attribute default?", a, to)) return v;
    } else {
        if (a->pos[0].type == V_STRING) f = filter_find(a->pos[0].text, a->pos[0].len);
        if (!f) interp_fail(in, ERR_RANGE, "map() wants the name of a filter");
        rest.pos++;
        rest.n_pos--;
    }
    const struct list *from = list_walk(in, v);
    bool entered = interp_enter(in); /* the filter may be map again, with one argument less */
    for (size_t i = 0; entered && from && i < from->n && interp_step(in, 1); i++) {
        struct value x = from->items[i];
        x = f ? filter_run(in, f, x, &rest) : attr_path(in, x, to[0], to[1]);
        list_add(in, l, x);
    }
    interp_leave(in);
    return iter_value(in, l);
}

/* The items for which a test holds, or not; the test may look at one of their members. */
static struct value chosen(struct interp *in, struct value v, const struct call_args *a,
                           bool member, bool want)
{
    struct list *l = list_new(in, 0);
    struct call_args rest = *a;
    const struct is_def *test = NULL;
    size_t skip = member;
    if (!value_true(in, v)) return iter_value(in, l);
    if (a->n_pos < skip) interp_fail(in, ERR_RANGE, "the name of a member is missing");
    if (a->n_pos > skip) {
        struct value name = a->pos[skip++];
        if (name.type == V_STRING) test = is_find(name.text, name.len);
        if (!test) interp_fail(in, ERR_RANGE, "a filter wants the name of a test");
    }
    const struct list *from = list_walk(in, v);
    if (in->rc < 0) return v;
    if (skip) rest.pos += skip;
    rest.n_pos -= skip;
    for (size_t i = 0; from && i < from->n && interp_step(in, 1); i++) {
        struct value x =
            member ? attr_path(in, from->items[i], a->pos[0], value_none()) : from->items[i];
        if (in->rc < 0) break;
        if ((test ? is_run(in, test, x, &rest) : value_true(in, x)) == want)
            list_add(in, l, from->items[i]);
    }
    return iter_value(in, l);
}

FILTER(select)
{
    UNUSED;
    return chosen(in, v, a, false, true);
}

FILTER(reject)
{
    UNUSED;
    return chosen(in, v, a, false, false);
}

FILTER(selectattr)
{
    UNUSED;
    return chosen(in, v, a, true, true);
}

FILTER(rejectattr)
{
    UNUSED;
    return chosen(in, v, a, true, false);
}

FILTER(unique)
{
    UNUSED;
    struct list *l = list_new(in, 0);
    struct dict *seen = dict_new(in);
    const struct list *from = list_walk(in, v);
    for (size_t i = 0; from && i < from->n && interp_step(in, 1); i++) {
        struct value key =
            lower_case(in, attr_path(in, from->items[i], p[1], value_none()), truth(in, p[0]));
        if (dict_get(in, seen, key)) continue;
        dict_put(in, seen, key, value_none());
        list_add(in, l, from->items[i]);
    }
    return iter_value(in, l);
}

/* ---- order ---- */

static struct list *copy_of(struct interp *in, const struct list *from)
{
    struct list *l = list_new(in, from ? from->n : 0);
    for (size_t i = 0; from && i < from->n && interp_step(in, 1); i++)
        list_add(in, l, from->items[i]);
    return l;
}

/* "a,b.c": several members. */
static struct value sort_key(struct interp *in, struct value x, struct value path, bool sensitive)
{
    struct list *keys = list_new(in, 1);
    if (path.type != V_STRING) {
        list_add(in, keys, lower_case(in, attr_path(in, x, path, value_none()), sensitive));
        return list_value(V_LIST, keys);
    }
    for (size_t at = 0; at <= path.len && interp_step(in, 1);) {
        size_t end = str_find(path, value_text(",", 1), at);
        if (end == SIZE_MAX) end = path.len;
        struct value part = str_part(path, at, end);
        list_add(in, keys, lower_case(in, attr_path(in, x, part, value_none()), sensitive));
        at = end + 1;
    }
    return list_value(V_LIST, keys);
}

FILTER(sort)
{
    UNUSED;
    struct list *l = copy_of(in, list_walk(in, v)), *keys = list_new(in, l->n);
    for (size_t i = 0; i < l->n && in->rc == 0; i++)
        list_add(in, keys, sort_key(in, l->items[i], p[2], truth(in, p[1])));
    if (in->rc == 0) list_sort(in, l, keys, truth(in, p[0]));
    return list_value(V_LIST, l);
}

FILTER(dictsort)
{
    UNUSED;
    bool by_value = value_is(p[1], "value");
    if (undefined(v)) interp_undefined(in, v);
    if (v.type != V_DICT)
        interp_fail(in, ERR_RANGE, "dictsort() wants a dictionary, not a '%s'", value_type_name(v));
    if (p[1].type != V_MISSING && !by_value && !value_is(p[1], "key"))
        interp_fail(in, ERR_RANGE, "dictsort() sorts by key or value");
    if (in->rc < 0) return v;
    struct list *l = dict_list(in, v.dict, DICT_ITEMS), *keys = list_new(in, l->n);
    for (size_t i = 0; i < l->n && in->rc == 0; i++)
        list_add(in, keys, lower_case(in, l->items[i].list->items[by_value], truth(in, p[0])));
    if (in->rc == 0) list_sort(in, l, keys, truth(in, p[2]));
    return list_value(V_LIST, l);
}

static struct value extreme(struct interp *in, struct value v, const struct value *p, bool most)
{
    const struct list *l = list_walk(in, v);
    struct value best = nothing(most ? "max" : "min"), best_key = value_none();
    for (size_t i = 0; l && i < l->n && interp_step(in, 1); i++) {
        struct value key =
            lower_case(in, attr_path(in, l->items[i], p[1], value_none()), truth(in, p[0]));
        if (i > 0) {
            int order = value_order(in, key, best_key, most ? ">" : "<");
            if (most ? order <= 0 : order >= 0) continue;
        }
        best = l->items[i];
        best_key = key;
    }
    return best;
}

FILTER(min)
{
    UNUSED;
    return extreme(in, v, p, false);
}

FILTER(max)
{
    UNUSED;
    return extreme(in, v, p, true);
}

FILTER(sum)
{
    UNUSED;
    const struct list *l = list_walk(in, v);
    struct value total = p[1].type == V_MISSING ? value_int(0) : p[1];
    if (total.type == V_STRING) interp_fail(in, ERR_RANGE, "sum() adds no strings");
    for (size_t i = 0; l && i < l->n && interp_step(in, 1); i++)
        total = ops_binary(in, OP_ADD, total, attr_path(in, l->items[i], p[0], value_none()));
    return total;
}

/* ---- rows ---- */

FILTER(batch)
{
    UNUSED;
    int64_t n;
    struct list *rows = list_new(in, 0), *row = NULL;
    const struct list *l = list_walk(in, v);
    if (!value_integer(p[0], &n) || n < 1) {
        interp_fail(in, ERR_RANGE, "batch() wants a number above 0");
        return v;
    }
    for (size_t i = 0; l && i < l->n && interp_step(in, 1); i++) {
        if (!row || (int64_t)row->n == n) {
            row = list_new(in, 0);
            list_add(in, rows, list_value(V_LIST, row));
        }
        list_add(in, row, l->items[i]);
    }
    bool fill = p[1].type != V_MISSING && p[1].type != V_NONE;
    while (row && fill && (int64_t)row->n < n && interp_step(in, 1)) list_add(in, row, p[1]);
    return iter_value(in, rows);
}

FILTER(slice)
{
    UNUSED;
    int64_t n;
    struct list *columns = list_new(in, 0);
    const struct list *l = list_walk(in, v);
    if (!value_integer(p[0], &n) || n < 1) {
        interp_fail(in, ERR_RANGE, "slice() wants a number above 0");
        return v;
    }
    bool fill = p[1].type != V_MISSING && p[1].type != V_NONE;
    size_t at = 0, each = l ? l->n / (size_t)n : 0, longer = l ? l->n % (size_t)n : 0;
    for (size_t i = 0; i < (size_t)n && interp_step(in, 1); i++) {
        struct list *column = list_new(in, 0);
        for (size_t k = 0; k < each + (i < longer) && in->rc == 0; k++)
            list_add(in, column, l->items[at++]);
        if (fill && i >= longer) list_add(in, column, p[1]);
        list_add(in, columns, list_value(V_LIST, column));
    }
    return iter_value(in, columns);
}

const struct filter_def filters_items[] = {{"attr", "name", attr},
                                           {"count", "", length},
                                           {"d", "default_value? boolean?", default_},
                                           {"default", "default_value? boolean?", default_},
                                           {"dictsort", "case_sensitive? by? reverse?", dictsort},
                                           {"first", "", first},
                                           {"groupby", NULL, NULL},
                                           {"last", "", last},
                                           {"length", "", length},
                                           {"list", "", list},
                                           {"max", "case_sensitive? attribute?", max},
                                           {"min", "case_sensitive? attribute?", min},
                                           {"random", NULL, NULL},
                                           {"reverse", "", reverse},
                                           {"sort", "reverse? case_sensitive? attribute?", sort},
                                           {"sum", "attribute? start?", sum},
                                           {0}};

const struct filter_def filters_lazy[] = {{"batch", "linecount fill_with?", batch},
                                          {"items", "", items},
                                          {"map", NULL, map},
                                          {"reject", NULL, reject},
                                          {"rejectattr", NULL, rejectattr},
                                          {"select", NULL, select},
                                          {"selectattr", NULL, selectattr},
                                          {"slice", "slices fill_with?", slice},
                                          {"unique", "case_sensitive? attribute?", unique},
                                          {0}};
