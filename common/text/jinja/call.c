/* Calls: arguments, macros, and what else can be called. */
#include "common/text/jinja/interp.h"

#include <string.h>

static void add_kw(struct interp *in, struct call_args *a, size_t *cap, struct value name,
                   struct value v)
{
    if (a->n_kw == *cap) {
        *cap = *cap ? 2 * *cap : 4;
        struct call_kw *more = interp_alloc(in, *cap * sizeof *more);
        if (!more) {
            *cap = a->n_kw;
            return;
        }
        if (a->n_kw) memcpy(more, a->kw, a->n_kw * sizeof *more);
        a->kw = more;
    }
    a->kw[a->n_kw++] = (struct call_kw){name, v};
}

struct call_args call_args(struct interp *in, const struct node *n)
{
    struct call_args a = {0};
    size_t cap = 0;
    if (n->n_items == 0 && n->n_kw == 0 && !n->star && !n->star_star) return a;
    struct list *pos = list_new(in, n->n_items);
    for (uint32_t i = 0; i < n->n_items && in->rc == 0; i++)
        list_add(in, pos, eval(in, n->items[i]));
    if (n->star) {
        const struct list *more = list_walk(in, eval(in, n->star));
        for (size_t i = 0; more && i < more->n && interp_step(in, 1); i++)
            list_add(in, pos, more->items[i]);
    }
    for (uint32_t i = 0; i < n->n_kw && in->rc == 0; i++)
        add_kw(in, &a, &cap, n->kw[i].name, eval(in, n->kw[i].value));
    if (n->star_star) {
        struct value d = eval(in, n->star_star);
        if (d.type != V_DICT) interp_fail(in, ERR_RANGE, "what follows ** is not a dictionary");
        for (uint32_t i = 0; in->rc == 0 && i < d.dict->n && interp_step(in, 1); i++) {
            if (d.dict->entries[i].key.type != V_STRING)
                interp_fail(in, ERR_RANGE, "the name of an argument is not a string");
            add_kw(in, &a, &cap, d.dict->entries[i].key, d.dict->entries[i].value);
        }
    }
    a.pos = pos->items;
    a.n_pos = pos->n;
    return a;
}

/* The i-th name in `params`; its length is 0 beyond the last. */
static struct value param_at(const char *params, size_t i, bool *ret_optional)
{
    size_t len = strcspn(params, " ");
    for (; i > 0 && *params; i--) {
        params += len + (params[len] == ' ');
        len = strcspn(params, " ");
    }
    *ret_optional = len > 0 && params[len - 1] == '?';
    return value_text(params, len - *ret_optional);
}

bool call_bind(struct interp *in, const char *what, const char *params, const struct call_args *a,
               struct value to[CALL_PARAMS_MAX])
{
    bool optional[CALL_PARAMS_MAX];
    struct value names[CALL_PARAMS_MAX];
    size_t n = 0;
    if (in->rc < 0) return false;
    for (; n < CALL_PARAMS_MAX; n++) {
        names[n] = param_at(params, n, &optional[n]);
        to[n] = value_of(V_MISSING);
        if (names[n].len == 0) break;
        if (n < a->n_pos) to[n] = a->pos[n];
    }
    if (a->n_pos > n)
        interp_fail(in, ERR_RANGE, "%s takes at most %zu arguments, not %zu", what, n, a->n_pos);
    for (size_t k = 0; k < a->n_kw; k++) {
        size_t i = 0;
        while (i < n && !value_equal(in, names[i], a->kw[k].name)) i++;
        if (i == n || i < a->n_pos || to[i].type != V_MISSING) {
            interp_fail(in, ERR_RANGE, "%s takes no argument '%.*s', or got it twice", what,
                        (int)(a->kw[k].name.len > 64 ? 64 : a->kw[k].name.len), a->kw[k].name.text);
            return false;
        }
        to[i] = a->kw[k].value;
    }
    for (size_t i = 0; i < n; i++)
        if (to[i].type == V_MISSING && !optional[i])
            interp_fail(in, ERR_RANGE, "%s needs the argument '%.*s'", what, (int)names[i].len,
                        names[i].text);
    return in->rc == 0;
}

/* ---- macros ---- */

static const char *macro_name(const struct node *n, char to[80])
{
    size_t len = n->constant.len > 60 ? 60 : n->constant.len;
    memcpy(to, "macro '", 7);
    memcpy(to + 7, n->constant.text, len);
    memcpy(to + 7 + len, "'", 2);
    return to;
}

/* The argument of this name, which is taken out of them; NULL: there is none. */
static const struct value *take_kw(struct interp *in, struct call_args *a, bool *taken,
                                   struct value name)
{
    for (size_t i = 0; i < a->n_kw; i++) {
        if (!value_equal(in, a->kw[i].name, name)) continue;
        taken[i] = true;
        return &a->kw[i].value;
    }
    return NULL;
}

static void set_params(struct interp *in, const struct node *n, struct call_args *a, bool *taken,
                       struct scope *s)
{
    struct value missing = value_of(V_UNDEFINED);
    missing.of = V_MISSING;
    for (uint32_t i = 0; i < n->n_items && in->rc == 0; i++) {
        const struct node *param = n->items[i];
        const struct value *v = i < a->n_pos ? &a->pos[i] : take_kw(in, a, taken, param->constant);
        if (v) {
            scope_set(in, s, param->name, *v);
        } else if (i + n->n_defaults >= n->n_items) {
            scope_set(in, s, param->name, eval(in, n->defaults[i + n->n_defaults - n->n_items]));
        } else {
            missing.text = param->constant.text;
            missing.len = param->constant.len;
            scope_set(in, s, param->name, missing);
        }
    }
}

/* What is left of the arguments: varargs, kwargs and the caller, if the macro asks for them. */
static void set_rest(struct interp *in, const struct node *n, struct call_args *a, bool *taken,
                     struct scope *s)
{
    char name[80];
    struct list *rest = list_new(in, 0);
    struct dict *others = dict_new(in);
    struct value caller = value_of(V_UNDEFINED);
    caller.of = V_MISSING;
    caller.text = "caller";
    caller.len = 6;
    for (size_t i = n->n_items; i < a->n_pos; i++) list_add(in, rest, a->pos[i]);
    if (n->sees_caller) {
        const struct value *v = take_kw(in, a, taken, value_text("caller", 6));
        scope_set(in, s, NAME_CALLER, v ? *v : caller);
    }
    for (size_t i = 0; i < a->n_kw && in->rc == 0; i++) {
        if (taken[i]) continue;
        dict_put(in, others, a->kw[i].name, a->kw[i].value);
        if (!n->sees_kwargs)
            interp_fail(in, ERR_RANGE, "%s takes no argument '%.*s'", macro_name(n, name),
                        (int)(a->kw[i].name.len > 64 ? 64 : a->kw[i].name.len), a->kw[i].name.text);
    }
    if (rest->n && !n->sees_varargs)
        interp_fail(in, ERR_RANGE, "%s takes at most %zu arguments, not %zu", macro_name(n, name),
                    (size_t)n->n_items, a->n_pos);
    if (n->sees_varargs) scope_set(in, s, NAME_VARARGS, list_value(V_TUPLE, rest));
    if (n->sees_kwargs) scope_set(in, s, NAME_KWARGS, dict_value(others));
}

static struct value call_macro(struct interp *in, const struct macro *m, struct call_args *a)
{
    struct scope *was = in->scope, *s = interp_alloc(in, sizeof *s);
    bool *taken = interp_alloc(in, a->n_kw + 1);
    struct value v = value_none();
    uint32_t loops = in->loop_depth;
    if (!s || !taken) return v;
    memset(taken, 0, a->n_kw + 1);
    *s = (struct scope){.outer = m->scope};
    in->scope = s;
    in->loop_depth = 0;
    if (interp_enter(in)) {
        set_params(in, m->node, a, taken, s);
        set_rest(in, m->node, a, taken, s);
        v = exec_capture(in, m->node->body);
    }
    interp_leave(in);
    in->loop_depth = loops;
    in->scope = was;
    return v;
}

/* A recursive loop called with what its next level walks. */
static struct value call_loop(struct interp *in, const struct loop *l, const struct call_args *a)
{
    struct value to[CALL_PARAMS_MAX], v = value_none();
    struct str_builder out, *was = in->out;
    if (!l->node) {
        interp_fail(in, ERR_RANGE, "the loop is called, but is not recursive");
        return v;
    }
    if (!call_bind(in, "loop", "iterable", a, to)) return v;
    struct list *items = list_walk(in, to[0]);
    str_begin(&out, in);
    in->out = &out;
    if (interp_enter(in) && items) exec_loop(in, l->node, items, l->scope);
    interp_leave(in);
    in->out = was;
    return str_end(&out);
}

static struct value call_joiner(struct cycler *c)
{
    return c->at++ ? c->items->items[0] : value_text("", 0);
}

struct value call_value(struct interp *in, struct value callee, struct call_args *a)
{
    struct value to[CALL_PARAMS_MAX] = {0};
    const struct method_def *d;
    if (!interp_step(in, 1)) return value_none();
    switch (callee.type) {
    case V_MACRO: return call_macro(in, callee.macro, a);
    case V_FUNCTION: return globals_call(in, callee.integer, a);
    case V_LOOP: return call_loop(in, callee.loop, a);
    case V_JOINER: return call_joiner(callee.cycler);
    case V_METHOD:
        d = callee.method->def;
        if (!d->run) {
            interp_fail(in, ERR_UNSUPPORTED, "the method '%s' is not supported", d->name);
            return value_none();
        }
        if (d->params && !call_bind(in, d->name, d->params, a, to)) return value_none();
        return d->run(in, callee.method->self, to, a);
    case V_UNDEFINED:
    case V_UNSAFE: interp_undefined(in, callee); return value_none();
    default:
        interp_fail(in, ERR_RANGE, "a '%s' cannot be called", value_type_name(callee));
        return value_none();
    }
}
