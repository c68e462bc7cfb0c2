/* Expressions. */
#include "common/text/jinja/interp.h"

#include <string.h>

static struct value eval_name(struct interp *in, const struct node *n)
{
    const struct value *v = scope_get(in, in->scope, n->name);
    if (v) return *v;
    struct value u = value_of(V_UNDEFINED);
    u.of = V_MISSING;
    u.text = in->program->names[n->name].text;
    u.len = in->program->names[n->name].len;
    return u;
}

static struct value eval_list(struct interp *in, const struct node *n)
{
    struct list *l = list_new(in, n->n_items);
    for (uint32_t i = 0; i < n->n_items && in->rc == 0; i++) list_add(in, l, eval(in, n->items[i]));
    return list_value(n->kind == NODE_LIST ? V_LIST : V_TUPLE, l);
}

static struct value eval_dict(struct interp *in, const struct node *n)
{
    struct dict *d = dict_new(in);
    for (uint32_t i = 0; i + 1 < n->n_items && in->rc == 0; i += 2) {
        struct value key = eval(in, n->items[i]);
        dict_put(in, d, key, eval(in, n->items[i + 1]));
    }
    return dict_value(d);
}

static struct value eval_or_none(struct interp *in, const struct node *n)
{
    return n ? eval(in, n) : value_none();
}

static struct value eval_slice(struct interp *in, const struct node *n)
{
    struct value of = eval(in, n->a), start = eval_or_none(in, n->b);
    struct value stop = eval_or_none(in, n->c);
    struct value step = eval_or_none(in, n->d);
    in->line = n->line;
    return attr_slice(in, of, start, stop, step);
}

static struct value eval_call(struct interp *in, const struct node *n)
{
    struct value callee = eval(in, n->a);
    struct call_args a = call_args(in, n);
    in->line = n->line;
    return call_value(in, callee, &a);
}

static struct value eval_filter(struct interp *in, const struct node *n)
{
    struct value v = n->a ? eval(in, n->a) : in->block;
    struct call_args a = call_args(in, n);
    in->line = n->line;
    if (!n->filter) {
        interp_fail(in, ERR_RANGE, "there is no filter '%.*s'",
                    (int)(n->constant.len > 64 ? 64 : n->constant.len), n->constant.text);
        return v;
    }
    return in->rc < 0 ? v : filter_run(in, n->filter, v, &a);
}

static struct value eval_test(struct interp *in, const struct node *n)
{
    struct value v = eval(in, n->a);
    struct call_args a = call_args(in, n);
    in->line = n->line;
    if (!n->test)
        interp_fail(in, ERR_RANGE, "there is no test '%.*s'",
                    (int)(n->constant.len > 64 ? 64 : n->constant.len), n->constant.text);
    return value_bool(in->rc == 0 && is_run(in, n->test, v, &a));
}

static struct value eval_concat(struct interp *in, const struct node *n)
{
    struct value v = value_text("", 0);
    for (uint32_t i = 0; i < n->n_items && in->rc == 0; i++) {
        struct value part = repr_str(in, eval(in, n->items[i]));
        v = in->rc < 0 ? v : str_concat(in, v, part);
    }
    v.markup = false;
    return v;
}

/* a < b < c: each operand is evaluated once, up to the first comparison that is false. */
static struct value eval_compare(struct interp *in, const struct node *n)
{
    struct value left = eval(in, n->a);
    for (uint32_t i = 0; i < n->n_items && in->rc == 0; i++) {
        struct value right = eval(in, n->items[i]);
        in->line = n->line;
        if (!ops_compare(in, n->ops[i], left, right)) return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

static struct value eval_cond(struct interp *in, const struct node *n)
{
    if (value_true(in, eval(in, n->a))) return in->rc < 0 ? value_none() : eval(in, n->b);
    if (n->c) return eval(in, n->c);
    struct value u = value_of(V_UNDEFINED);
    u.of = V_MISSING;
    u.text = "an if without else";
    u.len = 18;
    return u;
}

static struct value eval_kind(struct interp *in, const struct node *n)
{
    struct value a, b;
    switch (n->kind) {
    case NODE_CONST: return n->constant;
    case NODE_NAME: return eval_name(in, n);
    case NODE_LIST:
    case NODE_TUPLE: return eval_list(in, n);
    case NODE_DICT: return eval_dict(in, n);
    case NODE_ATTR:
        a = eval(in, n->a);
        in->line = n->line;
        return attr_get(in, a, n->constant);
    case NODE_ITEM:
        a = eval(in, n->a);
        b = eval(in, n->b);
        in->line = n->line;
        return attr_item(in, a, b);
    case NODE_SLICE: return eval_slice(in, n);
    case NODE_CALL: return eval_call(in, n);
    case NODE_FILTER: return eval_filter(in, n);
    case NODE_TEST: return eval_test(in, n);
    case NODE_UNARY:
        a = eval(in, n->a);
        in->line = n->line;
        return ops_unary(in, n->op, a);
    case NODE_BINARY:
        a = eval(in, n->a);
        b = eval(in, n->b);
        in->line = n->line;
        return ops_binary(in, n->op, a, b);
    case NODE_CONCAT: return eval_concat(in, n);
    case NODE_COMPARE: return eval_compare(in, n);
    case NODE_AND: a = eval(in, n->a); return value_true(in, a) && in->rc == 0 ? eval(in, n->b) : a;
    case NODE_OR: a = eval(in, n->a); return value_true(in, a) || in->rc < 0 ? a : eval(in, n->b);
    case NODE_NOT: return value_bool(!value_true(in, eval(in, n->a)));
    case NODE_COND: return eval_cond(in, n);
    default: return value_none();
    }
}

struct value eval(struct interp *in, const struct node *n)
{
    struct value v = value_none();
    if (!interp_step(in, 1)) return v;
    in->line = n->line;
    if (++in->nesting > INTERP_NESTING_MAX)
        interp_fail(in, ERR_LIMIT, "expressions and calls nest more than %u deep",
                    INTERP_NESTING_MAX);
    else
        v = eval_kind(in, n);
    in->nesting--;
    return v;
}
