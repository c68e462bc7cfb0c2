/* The methods of dictionaries, lists and loops, and which a value has. Those that Python has and
 * this file lacks have no function: calling one is an error that names it. What would change a
 * value is forbidden, as by the sandbox. */
#include "common/text/jinja/interp.h"

#include <string.h>

#define METHOD(name)                                                                               \
    static struct value name(struct interp *in, struct value self, const struct value *p,          \
                             const struct call_args *a)
#define UNUSED (void)in, (void)p, (void)a

static struct value view(struct interp *in, struct value self, enum dict_part part)
{
    struct value v = list_value(V_VIEW, dict_list(in, self.dict, part));
    v.of = (uint8_t)part;
    return v;
}

METHOD(keys)
{
    UNUSED;
    return view(in, self, DICT_KEYS);
}

METHOD(values)
{
    UNUSED;
    return view(in, self, DICT_VALUES);
}

METHOD(items)
{
    UNUSED;
    return view(in, self, DICT_ITEMS);
}

METHOD(get)
{
    UNUSED;
    const struct value *v = dict_get(in, self.dict, p[0]);
    if (v) return *v;
    return p[1].type == V_MISSING ? value_none() : p[1];
}

METHOD(copy)
{
    UNUSED;
    return self; /* nothing changes either of the two */
}

METHOD(count)
{
    UNUSED;
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n && interp_step(in, 1); i++)
        n += value_equal(in, self.list->items[i], p[0]);
    return value_int(n);
}

METHOD(index_)
{
    UNUSED;
    for (size_t i = 0; i < self.list->n && interp_step(in, 1); i++)
        if (value_equal(in, self.list->items[i], p[0])) return value_int((int64_t)i);
    interp_fail(in, ERR_RANGE, "a value is not in the list");
    return value_none();
}

METHOD(cycle)
{
    UNUSED;
    if (a->n_pos) return a->pos[self.loop->at % a->n_pos];
    interp_fail(in, ERR_RANGE, "loop.cycle() has nothing to choose from");
    return value_none();
}

METHOD(changed)
{
    UNUSED;
    struct loop *l = self.loop;
    bool same = l->changed && l->n_changed == a->n_pos;
    for (size_t i = 0; i < a->n_pos && same; i++) same = value_equal(in, l->changed[i], a->pos[i]);
    l->changed = a->n_pos ? a->pos : interp_alloc(in, 1);
    l->n_changed = a->n_pos;
    return value_bool(!same);
}

METHOD(next)
{
    UNUSED;
    struct cycler *c = self.cycler;
    struct value v = c->items->items[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}

METHOD(reset)
{
    UNUSED;
    self.cycler->at = 0;
    return value_none();
}

static const struct method_def methods_dict[] = {{"copy", "", copy},
                                                 {"fromkeys", NULL, NULL},
                                                 {"get", "key default?", get},
                                                 {"items", "", items},
                                                 {"keys", "", keys},
                                                 {"values", "", values},
                                                 {0}};
static const struct method_def methods_list[] = {
    {"copy", "", copy}, {"count", "value", count}, {"index", "value", index_}, {0}};
static const struct method_def methods_tuple[] = {
    {"count", "value", count}, {"index", "value", index_}, {0}};
static const struct method_def methods_loop[] = {
    {"cycle", NULL, cycle}, {"changed", NULL, changed}, {0}};
static const struct method_def methods_cycler[] = {{"next", "", next}, {"reset", "", reset}, {0}};
static const struct method_def no_methods[] = {{0}};

static const char *const changes_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
static const char *const changes_list[] = {"append", "clear",   "extend", "insert", "pop",
                                           "remove", "reverse", "sort",   NULL};
static const char *const changes_nothing[] = {NULL};

static const struct method_def *methods_of(struct value of, const char *const **ret_forbidden)
{
    *ret_forbidden = changes_nothing;
    switch (of.type) {
    case V_STRING: return methods_str;
    case V_DICT: *ret_forbidden = changes_dict; return methods_dict;
    case V_LIST: *ret_forbidden = changes_list; return methods_list;
    case V_TUPLE:
    case V_RANGE: return methods_tuple;
    case V_LOOP: return methods_loop;
    case V_CYCLER: return methods_cycler;
    default: return no_methods;
    }
}

bool method_find(struct interp *in, struct value of, struct value name, struct value *ret)
{
    const char *const *forbidden;
    const struct method_def *d = methods_of(of, &forbidden);
    for (; d->name; d++) {
        if (!value_is(name, d->name)) continue;
        struct method *m = interp_alloc(in, sizeof *m);
        if (!m) return false;
        *m = (struct method){of, d, name};
        *ret = (struct value){.type = V_METHOD, .method = m};
        return true;
    }
    bool hidden = name.len > 4 && memcmp(name.text, "__", 2) == 0 &&
                  memcmp(name.text + name.len - 2, "__", 2) == 0 && of.type != V_NAMESPACE;
    for (; *forbidden; forbidden++) hidden = hidden || value_is(name, *forbidden);
    if (!hidden) return false;
    *ret = name;
    ret->type = V_UNSAFE;
    return true;
}
