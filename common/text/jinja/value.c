#include "common/text/jinja/value.h"

#include "common/base/hash.h"
#include "common/text/jinja/interp.h"

#include <math.h>
#include <string.h>

const char *value_type_name(struct value v)
{
    static const char *const names[] = {[V_UNDEFINED] = "undefined", [V_NONE] = "NoneType",
                                        [V_BOOL] = "bool",           [V_INT] = "int",
                                        [V_FLOAT] = "float",         [V_STRING] = "str",
                                        [V_LIST] = "list",           [V_TUPLE] = "tuple",
                                        [V_RANGE] = "range",         [V_VIEW] = "dict view",
                                        [V_DICT] = "dict",           [V_ITER] = "generator",
                                        [V_NAMESPACE] = "Namespace", [V_MACRO] = "Macro",
                                        [V_FUNCTION] = "function",   [V_METHOD] = "method",
                                        [V_LOOP] = "loop",           [V_JOINER] = "Joiner",
                                        [V_CYCLER] = "Cycler",       [V_UNSAFE] = "forbidden",
                                        [V_MISSING] = "missing"};
    return names[v.type];
}

bool value_is(struct value v, const char *text)
{
    return v.type == V_STRING && v.len == strlen(text) && memcmp(v.text, text, v.len) == 0;
}

bool value_integer(struct value v, int64_t *ret)
{
    if (v.type == V_INT)
        *ret = v.integer;
    else if (v.type == V_BOOL)
        *ret = v.truth;
    else
        return false;
    return true;
}

bool value_number(struct value v, double *ret)
{
    int64_t i;
    if (v.type == V_FLOAT)
        *ret = v.real;
    else if (value_integer(v, &i))
        *ret = (double)i;
    else
        return false;
    return true;
}

bool value_true(struct interp *in, struct value v)
{
    switch (v.type) {
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_UNSAFE: return false; /* as any other undefined value */
    case V_BOOL: return v.truth;
    case V_INT: return v.integer != 0;
    case V_FLOAT: return v.real != 0.0;
    case V_STRING: return v.len > 0;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW: return v.list->n > 0;
    case V_DICT: return v.dict->n > 0;
    default: (void)in; return true;
    }
}

static bool lists_equal(struct interp *in, const struct list *a, const struct list *b)
{
    if (a->n != b->n) return false;
    bool equal = interp_enter(in);
    for (size_t i = 0; i < a->n && equal; i++)
        equal = interp_step(in, 1) && value_equal(in, a->items[i], b->items[i]);
    interp_leave(in);
    return equal;
}

static bool dicts_equal(struct interp *in, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n) return false;
    bool equal = interp_enter(in);
    for (uint32_t i = 0; i < a->n && equal; i++) {
        const struct value *v = dict_get(in, b, a->entries[i].key);
        equal = v && interp_step(in, 1) && value_equal(in, a->entries[i].value, *v);
    }
    interp_leave(in);
    return equal;
}

bool value_equal(struct interp *in, struct value a, struct value b)
{
    int64_t i, k;
    double x, y;
    if (value_integer(a, &i) && value_integer(b, &k)) return i == k;
    if (value_number(a, &x) && value_number(b, &y)) return x == y;
    if (a.type != b.type) return false;
    switch (a.type) {
    case V_UNDEFINED:
    case V_NONE: return true;
    case V_STRING:
        if (a.len != b.len) return false;
        return interp_bytes(in, a.len) && memcmp(a.text, b.text, a.len) == 0;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW: return lists_equal(in, a.list, b.list);
    case V_DICT: return dicts_equal(in, a.dict, b.dict);
    case V_FUNCTION: return a.integer == b.integer;
    default: return a.text == b.text; /* the same object */
    }
}

static int sign(bool less, bool more)
{
    return less ? -1 : more ? 1 : 0;
}

int value_order(struct interp *in, struct value a, struct value b, const char *op)
{
    int64_t i, k;
    double x, y;
    int order = 0;
    if (value_integer(a, &i) && value_integer(b, &k)) return sign(i<k, i> k);
    if (value_number(a, &x) && value_number(b, &y)) return sign(x<y, x> y);
    if (a.type == V_STRING && b.type == V_STRING) {
        uint32_t n = a.len < b.len ? a.len : b.len;
        if (!interp_bytes(in, n)) return 0;
        order = memcmp(a.text, b.text, n); /* UTF-8 has the order of its characters */
        return order ? sign(order < 0, true) : sign(a.len<b.len, a.len> b.len);
    }
    if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
        if (!interp_enter(in)) order = 1;
        size_t n = a.list->n < b.list->n ? a.list->n : b.list->n;
        for (size_t at = 0; at < n && order == 0 && interp_step(in, 1); at++)
            if (!value_equal(in, a.list->items[at], b.list->items[at]))
                order = value_order(in, a.list->items[at], b.list->items[at], op);
        interp_leave(in);
        return order ? order : sign(a.list->n<b.list->n, a.list->n> b.list->n);
    }
    if (a.type == V_UNDEFINED || a.type == V_UNSAFE)
        interp_undefined(in, a);
    else if (b.type == V_UNDEFINED || b.type == V_UNSAFE)
        interp_undefined(in, b);
    interp_fail(in, ERR_RANGE, "'%s' does not go between a '%s' and a '%s'", op, value_type_name(a),
                value_type_name(b));
    return 0;
}

/* Small integers and short strings are one object in Python too, by and large. */
bool value_same(struct value a, struct value b)
{
    if (a.type != b.type) return false;
    switch (a.type) {
    case V_NONE: return true;
    case V_BOOL: return a.truth == b.truth;
    case V_INT:
    case V_FUNCTION: return a.integer == b.integer;
    case V_FLOAT: return a.real == b.real;
    case V_STRING: return a.len == b.len && memcmp(a.text, b.text, a.len) == 0;
    default: return a.text == b.text;
    }
}

bool value_contains(struct interp *in, struct value in_what, struct value v)
{
    if (in_what.type == V_STRING) {
        if (v.type == V_STRING)
            return interp_bytes(in, (size_t)in_what.len + v.len) &&
                   str_find(in_what, v, 0) != SIZE_MAX;
        if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
        interp_fail(in, ERR_RANGE, "only a string can be in a string, not a '%s'",
                    value_type_name(v));
        return false;
    }
    if (in_what.type == V_DICT) return dict_get(in, in_what.dict, v) != NULL;
    const struct list *l = list_walk(in, in_what);
    for (size_t i = 0; l && i < l->n && interp_step(in, 1); i++)
        if (value_equal(in, l->items[i], v)) return true;
    return false;
}

/* ---- lists ---- */

struct list *list_new(struct interp *in, size_t cap)
{
    struct list *l = interp_alloc(in, sizeof *l);
    if (!l) return &in->no_list;
    *l = (struct list){.items = interp_alloc(in, cap * sizeof *l->items)};
    l->cap = l->items ? cap : 0;
    return l;
}

void list_add(struct interp *in, struct list *l, struct value v)
{
    if (in->rc < 0) return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        struct value *more = interp_alloc(in, cap * sizeof *more);
        if (!more) return;
        if (l->n) memcpy(more, l->items, l->n * sizeof *more);
        l->items = more;
        l->cap = cap;
    }
    l->items[l->n++] = v;
}

struct value list_value(enum value_type type, struct list *l)
{
    return (struct value){.type = (uint8_t)type, .list = l};
}

static struct list *chars_of(struct interp *in, struct value s)
{
    struct list *l = list_new(in, str_chars(s));
    s.markup = false; /* characters of markup are plain */
    for (size_t i = 0, n; i < s.len && interp_step(in, 1); i += n) {
        (void)str_char(s, i, &n);
        list_add(in, l, str_part(s, i, i + n));
    }
    return l;
}

struct list *list_walk(struct interp *in, struct value v)
{
    struct list *l;
    if (in->rc < 0) return NULL;
    switch (v.type) {
    case V_UNDEFINED:
    case V_UNSAFE: return list_new(in, 0);
    case V_STRING: return chars_of(in, v);
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW: return v.list;
    case V_DICT: return dict_list(in, v.dict, DICT_KEYS);
    case V_ITER:
        l = list_new(in, 0);
        if (in->rc < 0) return NULL;
        *l = (struct list){.items = v.iter->list.n ? v.iter->list.items + v.iter->at : NULL,
                           .n = v.iter->list.n - v.iter->at};
        l->cap = l->n;
        v.iter->at = v.iter->list.n;
        if (v.iter->rc < 0) interp_raise(in, v.iter->rc, v.iter->em);
        return l;
    default: interp_fail(in, ERR_RANGE, "a '%s' cannot be walked", value_type_name(v)); return NULL;
    }
}

bool value_length(struct interp *in, struct value v, size_t *ret)
{
    switch (v.type) {
    case V_UNDEFINED:
    case V_UNSAFE: *ret = 0; return true;
    case V_STRING: *ret = interp_bytes(in, v.len) ? str_chars(v) : 0; return true;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW: *ret = v.list->n; return true;
    case V_DICT: *ret = v.dict->n; return true;
    case V_LOOP: *ret = v.loop->items->n; return true;
    default: return false;
    }
}

/* Merge sort, bottom up: stable, and an order that fails midway does no harm. */
void list_sort(struct interp *in, struct list *items, struct list *keys, bool reverse)
{
    size_t n = items->n;
    struct value *from[2] = {items->items, keys->items};
    struct value *to[2] = {interp_alloc(in, n * sizeof **to), interp_alloc(in, n * sizeof **to)};
    if (!to[0] || !to[1]) return;
    for (size_t width = 1; width < n && in->rc == 0; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n;
            size_t hi = lo + 2 * width < n ? lo + 2 * width : n;
            size_t a = lo, b = mid;
            for (size_t at = lo; at < hi; at++) {
                bool right = a == mid;
                if (!right && b < hi && interp_step(in, 1)) {
                    int order = value_order(in, from[1][b], from[1][a], "<");
                    right = reverse ? order > 0 : order < 0;
                }
                size_t take = right ? b++ : a++;
                to[0][at] = from[0][take];
                to[1][at] = from[1][take];
            }
        }
        for (int k = 0; k < 2; k++) {
            struct value *swap = from[k];
            from[k] = to[k];
            to[k] = swap;
        }
    }
    items->items = from[0];
    keys->items = from[1];
    items->cap = keys->cap = n;
}

/* ---- dictionaries ---- */

#define FEW 8 /* entries that are searched one by one */

struct dict *dict_new(struct interp *in)
{
    struct dict *d = interp_alloc(in, sizeof *d);
    if (!d) return &in->no_dict;
    *d = (struct dict){0};
    return d;
}

struct value dict_value(struct dict *d)
{
    return (struct value){.type = V_DICT, .dict = d};
}

/* Equal keys have equal hashes: 1, 1.0 and true are one key. */
static bool hash_key(struct interp *in, struct value k, uint64_t *ret)
{
    double d;
    uint64_t h;
    if (k.type == V_STRING) {
        *ret = hash_bytes(k.text, k.len, 1);
        return interp_bytes(in, k.len);
    }
    if (value_number(k, &d)) {
        d = d == 0.0 ? 0.0 : d;
        *ret = hash_bytes(&d, sizeof d, 2);
        return true;
    }
    if (k.type == V_TUPLE && interp_enter(in)) {
        *ret = 3;
        bool right = true;
        for (size_t i = 0; i < k.list->n && right; i++) {
            right = interp_step(in, 1) && hash_key(in, k.list->items[i], &h);
            *ret = right ? *ret * 31 + h : *ret;
        }
        interp_leave(in);
        return right;
    }
    if (k.type == V_TUPLE) interp_leave(in);
    if (k.type == V_LIST || k.type == V_DICT || k.type == V_TUPLE || k.type == V_VIEW) {
        interp_fail(in, ERR_RANGE, "a '%s' cannot be a key", value_type_name(k));
        return false;
    }
    *ret = k.type;
    return true;
}

static uint32_t *slot_of(struct interp *in, const struct dict *d, struct value key, uint64_t hash)
{
    uint32_t mask = d->n_slots - 1, at = (uint32_t)hash & mask;
    while (d->slots[at] && interp_step(in, 1)) {
        const struct dict_entry *e = &d->entries[d->slots[at] - 1];
        if (e->hash == hash && value_equal(in, e->key, key)) break;
        at = (at + 1) & mask;
    }
    return &d->slots[at];
}

static struct dict_entry *find(struct interp *in, const struct dict *d, struct value key,
                               uint64_t hash)
{
    if (d->slots) {
        uint32_t slot = *slot_of(in, d, key, hash);
        return in->rc == 0 && slot ? &d->entries[slot - 1] : NULL;
    }
    for (uint32_t i = 0; i < d->n; i++)
        if (d->entries[i].hash == hash && value_equal(in, d->entries[i].key, key))
            return &d->entries[i];
    return NULL;
}

struct value *dict_get(struct interp *in, const struct dict *d, struct value key)
{
    uint64_t hash;
    struct dict_entry *e = hash_key(in, key, &hash) ? find(in, d, key, hash) : NULL;
    return e ? &e->value : NULL;
}

struct value *dict_get_text(struct interp *in, const struct dict *d, const char *key)
{
    return dict_get(in, d, value_text(key, strlen(key)));
}

static bool more_slots(struct interp *in, struct dict *d)
{
    uint32_t n = d->n_slots ? 2 * d->n_slots : 4 * FEW;
    uint32_t *slots = interp_alloc(in, n * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0, n * sizeof *slots);
    d->slots = slots;
    d->n_slots = n;
    for (uint32_t i = 0; i < d->n; i++)
        *slot_of(in, d, d->entries[i].key, d->entries[i].hash) = i + 1;
    return true;
}

void dict_put(struct interp *in, struct dict *d, struct value key, struct value v)
{
    uint64_t hash;
    struct dict_entry *e = hash_key(in, key, &hash) ? find(in, d, key, hash) : NULL;
    if (in->rc < 0) return;
    if (e) {
        e->value = v;
        return;
    }
    if (d->n == d->cap) {
        uint32_t cap = d->cap ? 2 * d->cap : 4;
        struct dict_entry *more = interp_alloc(in, cap * sizeof *more);
        if (!more) return;
        if (d->n) memcpy(more, d->entries, d->n * sizeof *more);
        d->entries = more;
        d->cap = cap;
    }
    d->entries[d->n++] = (struct dict_entry){key, v, hash};
    if (d->n <= FEW) return;
    if (!d->slots || d->n > d->n_slots / 2)
        (void)more_slots(in, d);
    else
        *slot_of(in, d, key, hash) = d->n;
}

struct list *dict_list(struct interp *in, const struct dict *d, enum dict_part part)
{
    struct list *l = list_new(in, d->n);
    for (uint32_t i = 0; i < d->n && interp_step(in, 1); i++) {
        struct value v = part == DICT_VALUES ? d->entries[i].value : d->entries[i].key;
        if (part == DICT_ITEMS) {
            struct list *pair = list_new(in, 2);
            list_add(in, pair, d->entries[i].key);
            list_add(in, pair, d->entries[i].value);
            v = list_value(V_TUPLE, pair);
        }
        list_add(in, l, v);
    }
    return l;
}
