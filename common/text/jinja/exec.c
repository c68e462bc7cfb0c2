/* Statements. Each body but that of an if has a scope of its own; what it sets is gone behind it.
 */
#include "common/text/jinja/interp.h"

#include <string.h>

static void print(struct interp *in, struct value text)
{
    if (in->rc < 0) return;
    if (text.len > in->output_max || in->out->len > in->output_max - text.len) {
        interp_fail(in, ERR_LIMIT, "the text is longer than %zu bytes", in->output_max);
        return;
    }
    str_add_value(in->out, text);
}

static struct scope *scope_new(struct interp *in, struct scope *outer)
{
    struct scope *s = interp_alloc(in, sizeof *s);
    if (s) *s = (struct scope){.outer = outer};
    return s;
}

struct value exec_capture(struct interp *in, const struct node *first)
{
    struct str_builder out, *was = in->out;
    str_begin(&out, in);
    in->out = &out;
    exec_body(in, first);
    in->out = was;
    return str_end(&out);
}

/* A body in a scope of its own within the one at hand. */
static struct value capture_scoped(struct interp *in, const struct node *first)
{
    struct scope *was = in->scope, *s = scope_new(in, was);
    if (!s) return value_text("", 0);
    in->scope = s;
    struct value v = exec_capture(in, first);
    in->scope = was;
    return v;
}

static void assign(struct interp *in, struct scope *s, const struct node *target, struct value v)
{
    if (in->rc < 0) return;
    in->line = target->line;
    if (target->kind == NODE_NAME) {
        scope_set(in, s, target->name, v);
    } else if (target->kind == NODE_NSREF) {
        const struct value *ns = scope_get(in, s, target->name);
        if (ns && ns->type == V_NAMESPACE && target->constant.text[0] != '_')
            dict_put(in, ns->dict, target->constant, v);
        else if (ns && ns->type == V_NAMESPACE)
            interp_fail(in, ERR_RANGE, "a namespace takes no member that begins with _");
        else
            interp_fail(in, ERR_RANGE, "only a namespace's members can be set");
    } else {
        const struct list *l = list_walk(in, v);
        if (l && l->n != target->n_items)
            interp_fail(in, ERR_RANGE, "%zu values for %zu names", l->n, (size_t)target->n_items);
        for (size_t i = 0; l && in->rc == 0 && i < l->n && interp_step(in, 1); i++)
            assign(in, s, target->items[i], l->items[i]);
    }
}

/* ---- loops ---- */

/* The items for which the loop's condition holds. */
static struct list *filtered(struct interp *in, const struct node *n, struct list *items,
                             struct scope *scope)
{
    struct scope *was = in->scope;
    struct list *l = list_new(in, 0);
    for (size_t i = 0; i < items->n && interp_step(in, 1); i++) {
        struct scope *s = scope_new(in, scope);
        if (!s) break;
        assign(in, s, n->a, items->items[i]);
        in->scope = s;
        if (value_true(in, eval(in, n->c))) list_add(in, l, items->items[i]);
        in->scope = was;
    }
    return l;
}

void exec_loop(struct interp *in, const struct node *n, struct list *items, struct scope *scope)
{
    struct scope *was = in->scope;
    struct loop *l = interp_alloc(in, sizeof *l);
    if (n->c) items = filtered(in, n, items, scope);
    if (!l || in->rc < 0) return;
    *l = (struct loop){.items = items, .node = n->recursive ? n : NULL, .scope = scope};
    l->depth = n->recursive ? ++in->loop_depth : 1;
    struct scope *s = NULL;
    bool whole = false; /* some turn went to the body's end */
    uint64_t macros = in->macros;
    for (; l->at < items->n && interp_step(in, 1); l->at++) {
        /* A scope that no macro was defined in is of no use any more. */
        if (s && in->macros == macros)
            s->n = 0;
        else
            s = scope_new(in, scope);
        macros = in->macros;
        if (!s) break;
        assign(in, s, n->a, items->items[l->at]);
        scope_set(in, s, NAME_LOOP, (struct value){.type = V_LOOP, .loop = l});
        in->scope = s;
        exec_body(in, n->body);
        in->scope = was;
        bool stop = in->flow == FLOW_BREAK;
        whole = whole || in->flow == FLOW_ON;
        in->flow = FLOW_ON;
        if (stop) break;
    }
    if (n->recursive) in->loop_depth--;
    if (!whole && n->else_body) { /* as in Jinja, also where each turn ended early */
        in->scope = scope_new(in, scope);
        if (in->scope) exec_body(in, n->else_body);
        in->scope = was;
    }
}

static void exec_for(struct interp *in, const struct node *n)
{
    struct value of = eval(in, n->b);
    in->line = n->b->line;
    struct list *items = list_walk(in, of);
    uint32_t loops = in->loop_depth;
    if (n->recursive) in->loop_depth = 0; /* a new tree of levels */
    if (interp_enter(in) && items) exec_loop(in, n, items, in->scope);
    interp_leave(in);
    in->loop_depth = loops;
}

/* ---- the others ---- */

/* Text through the filters of a block. */
static struct value through(struct interp *in, const struct node *filters, struct value text)
{
    struct value was = in->block;
    in->block = text;
    if (filters) text = eval(in, filters);
    in->block = was;
    return text;
}

static void exec_with(struct interp *in, const struct node *n)
{
    struct scope *was = in->scope, *s = scope_new(in, was);
    if (!s) return;
    for (uint32_t i = 0; i + 1 < n->n_items; i += 2)
        assign(in, s, n->items[i], eval(in, n->items[i + 1])); /* in the outer scope */
    in->scope = s;
    exec_body(in, n->body);
    in->scope = was;
}

static struct value macro_value(struct interp *in, const struct node *n)
{
    struct macro *m = interp_alloc(in, sizeof *m);
    if (!m) return value_none();
    *m = (struct macro){n, in->scope};
    in->macros++;
    return (struct value){.type = V_MACRO, .macro = m};
}

static void exec_call_block(struct interp *in, const struct node *n)
{
    struct value callee = eval(in, n->a->a);
    struct call_args a = call_args(in, n->a);
    struct call_kw *kw = interp_alloc(in, (a.n_kw + 1) * sizeof *kw);
    if (!kw) return;
    if (a.n_kw) memcpy(kw, a.kw, a.n_kw * sizeof *kw);
    kw[a.n_kw++] = (struct call_kw){value_text("caller", 6), macro_value(in, n)};
    a.kw = kw;
    in->line = n->line;
    print(in, repr_str(in, call_value(in, callee, &a)));
}

static void exec_print(struct interp *in, const struct node *n)
{
    for (uint32_t i = 0; i < n->n_items && in->rc == 0; i++)
        print(in, repr_str(in, eval(in, n->items[i])));
}

static void exec_scope(struct interp *in, const struct node *n)
{
    print(in, capture_scoped(in, n->body));
}

static void exec_if(struct interp *in, const struct node *n)
{
    bool holds = value_true(in, eval(in, n->a));
    exec_body(in, holds ? n->body : n->else_body);
}

static void exec_one(struct interp *in, const struct node *n)
{
    struct value v;
    switch (n->kind) {
    case NODE_TEXT: print(in, n->constant); break;
    case NODE_PRINT: exec_print(in, n); break;
    case NODE_IF: exec_if(in, n); break;
    case NODE_FOR: exec_for(in, n); break;
    case NODE_SET: assign(in, in->scope, n->a, eval(in, n->b)); break;
    case NODE_SET_BLOCK:
        v = through(in, n->b, capture_scoped(in, n->body));
        if (in->flow == FLOW_ON) assign(in, in->scope, n->a, v);
        break;
    case NODE_FILTER_BLOCK:
        v = through(in, n->b, capture_scoped(in, n->body));
        if (in->flow == FLOW_ON) print(in, repr_str(in, v));
        break;
    case NODE_MACRO: scope_set(in, in->scope, n->name, macro_value(in, n)); break;
    case NODE_CALL_BLOCK: exec_call_block(in, n); break;
    case NODE_WITH: exec_with(in, n); break;
    case NODE_SCOPE: exec_scope(in, n); break;
    case NODE_BREAK: in->flow = FLOW_BREAK; break;
    case NODE_CONTINUE: in->flow = FLOW_CONTINUE; break;
    default: break;
    }
}

void exec_body(struct interp *in, const struct node *first)
{
    for (const struct node *n = first; n && in->flow == FLOW_ON && interp_step(in, 1);
         n = n->next) {
        in->line = n->line;
        if (++in->nesting > INTERP_NESTING_MAX)
            interp_fail(in, ERR_LIMIT, "statements and calls nest more than %u deep",
                        INTERP_NESTING_MAX);
        else
            exec_one(in, n);
        in->nesting--;
    }
}
