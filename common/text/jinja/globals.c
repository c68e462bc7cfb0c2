/* Functions that every template has. */
#include "common/text/jinja/interp.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define RANGE_MAX 100000 /* as Jinja's sandbox has it */

typedef struct value (*global_fn)(struct interp *in, const struct call_args *a);

static struct value range(struct interp *in, const struct call_args *a)
{
    int64_t at[3] = {0, 0, 1};
    struct list *l = list_new(in, 0);
    bool right = a->n_kw == 0 && a->n_pos >= 1 && a->n_pos <= 3, foreign = false;
    for (size_t i = 0; i < a->n_pos && right; i++) {
        right = value_integer(a->pos[i], &at[a->n_pos == 1 ? 1 : i]);
        foreign = foreign || a->pos[i].foreign;
    }
    if (!right || at[2] == 0) {
        interp_fail(in, ERR_RANGE, "range() wants one to three integers, and a step that is not 0");
        return value_none();
    }
    for (int64_t i = at[0]; (at[2] > 0 ? i < at[1] : i > at[1]) && interp_step(in, 1);) {
        if (l->n == RANGE_MAX) interp_fail(in, ERR_LIMIT, "a range of more than %d", RANGE_MAX);
        list_add(in, l, value_foreign(value_int(i), foreign));
        if (__builtin_add_overflow(i, at[2], &i)) break;
    }
    return list_value(V_RANGE, l);
}

/* What dict() makes of a dictionary or of pairs, and of arguments with names. */
static struct dict *dict_of(struct interp *in, const struct call_args *a)
{
    struct dict *d = dict_new(in);
    if (a->n_pos > 1) interp_fail(in, ERR_RANGE, "at most one argument without a name");
    if (a->n_pos && a->pos[0].type == V_DICT) {
        const struct dict *from = a->pos[0].dict;
        for (uint32_t i = 0; i < from->n && interp_step(in, 1); i++)
            dict_put(in, d, from->entries[i].key, from->entries[i].value);
    } else if (a->n_pos) {
        const struct list *l = list_walk(in, a->pos[0]);
        for (size_t i = 0; l && i < l->n && interp_step(in, 1); i++) {
            const struct list *pair = list_walk(in, l->items[i]);
            if (pair && pair->n == 2)
                dict_put(in, d, pair->items[0], pair->items[1]);
            else
                interp_fail(in, ERR_RANGE, "a dictionary is made of pairs");
        }
    }
    for (size_t i = 0; i < a->n_kw && in->rc == 0; i++)
        dict_put(in, d, a->kw[i].name, a->kw[i].value);
    return d;
}

static struct value dict(struct interp *in, const struct call_args *a)
{
    return dict_value(dict_of(in, a));
}

static struct value namespace(struct interp *in, const struct call_args *a)
{
    struct dict *d = dict_of(in, a);
    for (uint32_t i = 0; i < d->n; i++)
        if (d->entries[i].key.type == V_STRING && d->entries[i].key.len &&
            d->entries[i].key.text[0] == '_')
            interp_fail(in, ERR_RANGE, "a namespace takes no member that begins with _");
    return (struct value){.type = V_NAMESPACE, .dict = d};
}

static struct cycler *cycler_of(struct interp *in, struct list *items)
{
    struct cycler *c = interp_alloc(in, sizeof *c);
    if (c) *c = (struct cycler){.items = items};
    return c;
}

static struct value cycler(struct interp *in, const struct call_args *a)
{
    struct list *l = list_new(in, a->n_pos);
    if (a->n_pos == 0 || a->n_kw) interp_fail(in, ERR_RANGE, "cycler() wants at least one item");
    for (size_t i = 0; i < a->n_pos && in->rc == 0; i++) list_add(in, l, a->pos[i]);
    struct cycler *c = cycler_of(in, l);
    return c ? (struct value){.type = V_CYCLER, .cycler = c} : value_none();
}

static struct value joiner(struct interp *in, const struct call_args *a)
{
    struct value to[CALL_PARAMS_MAX];
    struct list *l = list_new(in, 1);
    if (!call_bind(in, "joiner", "sep?", a, to)) return value_none();
    list_add(in, l, to[0].type == V_MISSING ? value_text(", ", 2) : to[0]);
    struct cycler *c = cycler_of(in, l);
    return c ? (struct value){.type = V_JOINER, .cycler = c} : value_none();
}

static struct value raise_exception(struct interp *in, const struct call_args *a)
{
    struct value to[CALL_PARAMS_MAX];
    if (call_bind(in, "raise_exception", "message", a, to)) interp_refuse(in, repr_str(in, to[0]));
    return value_none();
}

/* The C library's, but for what Python does itself: microseconds, and a zone that local times do
 * not have. */
static struct value strftime_now(struct interp *in, const struct call_args *a)
{
    struct value to[CALL_PARAMS_MAX];
    char text[256], directive[4] = "%";
    struct str_builder b;
    struct tm tm;
    time_t now = (time_t)in->now_s;
    if (!call_bind(in, "strftime_now", "format", a, to)) return value_none();
    if (to[0].type != V_STRING || !localtime_r(&now, &tm)) {
        interp_fail(in, ERR_RANGE, "strftime_now() wants a string");
        return value_none();
    }
    str_begin(&b, in);
    for (size_t i = 0; i < to[0].len && in->rc == 0; i++) {
        char c = i + 1 < to[0].len ? to[0].text[i + 1] : 0;
        if (to[0].text[i] != '%' || c == 0) {
            str_add_part(&b, to[0], i, i + 1);
            continue;
        }
        size_t n = 1;
        if (strchr("-_0^#EO", c) && i + 2 < to[0].len) directive[n++] = to[0].text[++i];
        directive[n] = to[0].text[++i];
        directive[n + 1] = 0;
        bool foreign = str_foreign_at(to[0], i); /* what is no directive stays as it is written */
        if (n == 1 && c == 'f')
            str_add(&b, "000000", 6, foreign);
        else if (n > 1 || (c != 'z' && c != 'Z'))
            str_add(&b, text, strftime(text, sizeof text, directive, &tm), foreign);
    }
    return str_end(&b);
}

static const struct {
    const char *name;
    global_fn run; /* NULL: Jinja has it, this interpreter does not */
} globals[] = {{"range", range},
               {"dict", dict},
               {"namespace", namespace},
               {"cycler", cycler},
               {"joiner", joiner},
               {"lipsum", NULL},
               {"raise_exception", raise_exception},
               {"strftime_now", strftime_now}};

#define N_GLOBALS (sizeof globals / sizeof globals[0])

void globals_set(struct interp *in, struct scope *s)
{
    for (size_t i = 0; i < N_GLOBALS; i++) {
        uint32_t name = program_name(in->program, globals[i].name, strlen(globals[i].name));
        if (name == UINT32_MAX) continue;
        scope_set(in, s, name, (struct value){.type = V_FUNCTION, .integer = (int64_t)i});
    }
}

struct value globals_call(struct interp *in, int64_t which, const struct call_args *a)
{
    if (globals[which].run) return globals[which].run(in, a);
    interp_fail(in, ERR_UNSUPPORTED, "%s() is not supported", globals[which].name);
    return value_none();
}
