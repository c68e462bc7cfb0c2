#include "common/text/jinja/parse.h"

#include "common/text/jinja/interp.h"

#include <string.h>

static struct node *unary(struct parser *p, bool with_filter);

static struct node *with(struct node *n, struct node *a, struct node *b)
{
    n->a = a;
    n->b = b;
    return n;
}

static void set_items(struct node *n, struct node_list l)
{
    n->items = l.at;
    n->n_items = l.n;
}

static bool text_is(const struct lex_token *t, const char *text)
{
    return t->len == strlen(text) && memcmp(t->text, text, t->len) == 0;
}

/* ---- what stands alone ---- */

static struct node *constant(struct parser *p, const struct lex_token *t, struct value v)
{
    struct node *n = parse__node(p, NODE_CONST, t->line);
    n->constant = v;
    return n;
}

/* Those that a macro's body names are handed to it. */
static void note_macro_name(struct parser *p, uint32_t name)
{
    if (!p->macro) return;
    p->macro->sees_caller |= name == NAME_CALLER;
    p->macro->sees_varargs |= name == NAME_VARARGS;
    p->macro->sees_kwargs |= name == NAME_KWARGS;
}

static struct node *name(struct parser *p, bool with_namespace)
{
    const struct lex_token *t = parse__take(p);
    if (text_is(t, "true") || text_is(t, "True")) return constant(p, t, value_bool(true));
    if (text_is(t, "false") || text_is(t, "False")) return constant(p, t, value_bool(false));
    if (text_is(t, "none") || text_is(t, "None")) return constant(p, t, value_none());
    struct node *n = parse__node(p, NODE_NAME, t->line);
    n->name = parse__intern(p, t->text, t->len);
    note_macro_name(p, n->name);
    if (with_namespace && parse__skip(p, T_DOT)) {
        n->kind = NODE_NSREF;
        n->constant = parse__string(parse__token(p));
        parse__expect(p, T_NAME);
    }
    return n;
}

/* Strings one after the other are one. */
static struct node *string(struct parser *p)
{
    const struct lex_token *t = parse__take(p);
    struct value v = parse__string(t);
    while (parse__is(p, T_STRING)) {
        const struct lex_token *more = parse__take(p);
        char *text = arena_alloc(&p->program->arena, v.len + more->len + 1);
        if (!text) {
            parse__fail(p, ERR_LIMIT, "the template needs too much memory");
            break;
        }
        memcpy(text, v.text, v.len);
        memcpy(text + v.len, more->text, more->len);
        v = value_text(text, v.len + more->len);
    }
    return constant(p, t, v);
}

static struct node *list(struct parser *p)
{
    struct node *n = parse__node(p, NODE_LIST, parse__take(p)->line);
    struct node_list l = {0};
    while (!parse__is(p, T_RBRACKET) && p->rc == 0) {
        if (l.n) parse__expect(p, T_COMMA);
        if (parse__is(p, T_RBRACKET)) break;
        parse__add(p, &l, parse__expression(p, true));
    }
    parse__expect(p, T_RBRACKET);
    set_items(n, l);
    return n;
}

static struct node *dict(struct parser *p)
{
    struct node *n = parse__node(p, NODE_DICT, parse__take(p)->line);
    struct node_list l = {0};
    while (!parse__is(p, T_RBRACE) && p->rc == 0) {
        if (l.n) parse__expect(p, T_COMMA);
        if (parse__is(p, T_RBRACE)) break;
        parse__add(p, &l, parse__expression(p, true));
        parse__expect(p, T_COLON);
        parse__add(p, &l, parse__expression(p, true));
    }
    parse__expect(p, T_RBRACE);
    set_items(n, l);
    return n;
}

static struct node *primary(struct parser *p, bool with_namespace)
{
    const struct lex_token *t = parse__token(p);
    struct node *n = NULL;
    if (!parse__enter(p)) {
        n = constant(p, t, value_none());
    } else if (t->kind == T_NAME) {
        n = name(p, with_namespace);
    } else if (t->kind == T_STRING) {
        n = string(p);
    } else if (t->kind == T_INT || t->kind == T_FLOAT) {
        (void)parse__take(p);
        n = constant(p, t, t->kind == T_INT ? value_int(t->integer) : value_float(t->real));
    } else if (parse__skip(p, T_LPAREN)) {
        n = parse__tuple(p, true, NULL, true);
        parse__expect(p, T_RPAREN);
    } else if (t->kind == T_LBRACKET) {
        n = list(p);
    } else if (t->kind == T_LBRACE) {
        n = dict(p);
    } else {
        parse__fail(p, ERR_FORMAT, "an expression is missing");
        n = constant(p, t, value_none());
    }
    parse__leave(p);
    return n;
}

/* ---- what follows it ---- */

static void add_kw(struct parser *p, struct node *n, struct value key, struct node *v)
{
    struct node_kw *more = arena_alloc(&p->program->arena, (n->n_kw + 1) * sizeof *more);
    if (!more) {
        parse__fail(p, ERR_LIMIT, "the template needs too much memory");
        return;
    }
    if (n->n_kw) memcpy(more, n->kw, n->n_kw * sizeof *more);
    more[n->n_kw++] = (struct node_kw){key, v};
    n->kw = more;
}

static void arguments(struct parser *p, struct node *n)
{
    struct node_list pos = {0};
    bool first = true;
    parse__expect(p, T_LPAREN);
    for (; !parse__is(p, T_RPAREN) && p->rc == 0; first = false) {
        if (!first) parse__expect(p, T_COMMA);
        if (parse__is(p, T_RPAREN)) break;
        if (!n->star && !n->star_star && parse__skip(p, T_MUL)) {
            n->star = parse__expression(p, true);
        } else if (!n->star_star && parse__skip(p, T_POW)) {
            n->star_star = parse__expression(p, true);
        } else if (parse__is(p, T_NAME) && parse__look(p)->kind == T_ASSIGN && !n->star_star) {
            struct value key = parse__string(parse__take(p));
            (void)parse__take(p);
            add_kw(p, n, key, parse__expression(p, true));
        } else if (!n->star && !n->star_star && n->n_kw == 0) {
            parse__add(p, &pos, parse__expression(p, true));
        } else {
            parse__fail(p, ERR_FORMAT, "arguments of a call are in a wrong order");
        }
    }
    parse__expect(p, T_RPAREN);
    set_items(n, pos);
}

static struct node *call(struct parser *p, struct node *of)
{
    struct node *n = parse__node(p, NODE_CALL, parse__token(p)->line);
    arguments(p, n);
    return with(n, of, NULL);
}

/* What stands between brackets: an expression, or a slice. */
static struct node *subscript(struct parser *p, struct node *of)
{
    struct node *n = parse__node(p, NODE_ITEM, parse__take(p)->line);
    struct node *part[3] = {NULL, NULL, NULL};
    n->a = of;
    if (!parse__is(p, T_COLON)) part[0] = parse__expression(p, true);
    if (parse__is(p, T_COMMA)) {
        struct node_list l = {0};
        parse__add(p, &l, part[0]);
        while (parse__skip(p, T_COMMA) && p->rc == 0) parse__add(p, &l, parse__expression(p, true));
        part[0] = parse__node(p, NODE_TUPLE, n->line);
        set_items(part[0], l);
    } else if (parse__skip(p, T_COLON)) {
        n->kind = NODE_SLICE;
        if (!parse__is(p, T_COLON) && !parse__is(p, T_RBRACKET))
            part[1] = parse__expression(p, true);
        if (parse__skip(p, T_COLON) && !parse__is(p, T_RBRACKET))
            part[2] = parse__expression(p, true);
    }
    parse__expect(p, T_RBRACKET);
    n->b = part[0];
    n->c = part[1];
    n->d = part[2];
    return n;
}

static struct node *member(struct parser *p, struct node *of)
{
    uint32_t line = parse__take(p)->line;
    const struct lex_token *t = parse__take(p);
    struct node *n = parse__node(p, t->kind == T_INT ? NODE_ITEM : NODE_ATTR, line);
    n->a = of;
    if (t->kind == T_INT)
        n->b = constant(p, t, value_int(t->integer));
    else if (t->kind == T_NAME)
        n->constant = parse__string(t);
    else
        parse__fail(p, ERR_FORMAT, "a name or a number is missing behind a dot");
    return n;
}

static struct node *postfix(struct parser *p, struct node *n)
{
    while (p->rc == 0) {
        if (parse__is(p, T_DOT))
            n = member(p, n);
        else if (parse__is(p, T_LBRACKET))
            n = subscript(p, n);
        else if (parse__is(p, T_LPAREN))
            n = call(p, n);
        else
            break;
    }
    return n;
}

/* "name", or "name.name", as filters and tests may be called. */
static struct value dotted(struct parser *p)
{
    const struct lex_token *t = parse__token(p);
    struct value v = parse__string(t);
    parse__expect(p, T_NAME);
    if (parse__is(p, T_DOT))
        parse__fail(p, ERR_FORMAT, "there is no filter or test with a dot in its name");
    return v;
}

/* A filter or test that is not there is an error of the template, but within an if only once it
 * runs: templates ask for the version of their interpreter so. */
static void note_unknown(struct parser *p, const struct node *n)
{
    if (!p->soft && !p->unknown) p->unknown = n;
}

struct node *parse__filters(struct parser *p, struct node *of, bool first)
{
    while (p->rc == 0 && (first || parse__skip(p, T_PIPE))) {
        struct node *n = parse__node(p, NODE_FILTER, parse__token(p)->line);
        first = false;
        n->constant = dotted(p);
        n->filter = filter_find(n->constant.text, n->constant.len);
        if (!n->filter) note_unknown(p, n);
        if (parse__is(p, T_LPAREN)) arguments(p, n);
        of = with(n, of, NULL);
    }
    return of;
}

static bool begins_argument(const struct parser *p)
{
    static const enum token_kind kinds[] = {T_NAME,   T_STRING,   T_INT,   T_FLOAT,
                                            T_LPAREN, T_LBRACKET, T_LBRACE};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (parse__is(p, kinds[i]))
            return !parse__is_name(p, "else") && !parse__is_name(p, "or") &&
                   !parse__is_name(p, "and");
    return false;
}

static struct node *test(struct parser *p, struct node *of)
{
    struct node *n = parse__node(p, NODE_TEST, parse__take(p)->line);
    bool negated = parse__skip_name(p, "not");
    n->constant = dotted(p);
    n->test = is_find(n->constant.text, n->constant.len);
    if (!n->test) note_unknown(p, n);
    if (parse__is(p, T_LPAREN)) {
        arguments(p, n);
    } else if (begins_argument(p)) {
        struct node_list l = {0};
        if (parse__is_name(p, "is")) parse__fail(p, ERR_FORMAT, "tests cannot be chained with is");
        parse__add(p, &l, postfix(p, primary(p, false)));
        set_items(n, l);
    }
    n->a = of;
    if (!negated) return n;
    return with(parse__node(p, NODE_NOT, n->line), n, NULL);
}

static struct node *filters_and_tests(struct parser *p, struct node *n)
{
    while (p->rc == 0) {
        if (parse__is(p, T_PIPE))
            n = parse__filters(p, n, false);
        else if (parse__is_name(p, "is"))
            n = test(p, n);
        else if (parse__is(p, T_LPAREN))
            n = call(p, n);
        else
            break;
    }
    return n;
}

/* ---- operators, by rising precedence from the bottom up ---- */

static struct node *unary(struct parser *p, bool with_filter)
{
    struct node *n;
    uint32_t line = parse__token(p)->line;
    bool minus = parse__skip(p, T_SUB);
    if (minus || parse__skip(p, T_ADD)) {
        n = parse__node(p, NODE_UNARY, line);
        n->op = minus ? OP_SUB : OP_ADD;
        if (parse__enter(p)) n->a = unary(p, false);
        parse__leave(p);
    } else {
        n = primary(p, false);
    }
    n = postfix(p, n);
    return with_filter ? filters_and_tests(p, n) : n;
}

struct binary_op {
    enum token_kind token;
    enum op op;
};

static const struct binary_op pow_ops[] = {{T_POW, OP_POW}, {T_EOF, 0}};
static const struct binary_op mul_ops[] = {
    {T_MUL, OP_MUL}, {T_DIV, OP_DIV}, {T_FLOORDIV, OP_FLOORDIV}, {T_MOD, OP_MOD}, {T_EOF, 0}};
static const struct binary_op add_ops[] = {{T_ADD, OP_ADD}, {T_SUB, OP_SUB}, {T_EOF, 0}};
static const struct binary_op compare_ops[] = {{T_EQ, OP_EQ}, {T_NE, OP_NE}, {T_LT, OP_LT},
                                               {T_LE, OP_LE}, {T_GT, OP_GT}, {T_GE, OP_GE},
                                               {T_EOF, 0}};

static bool take_op(struct parser *p, const struct binary_op *ops, enum op *ret)
{
    for (; ops->token != T_EOF; ops++) {
        if (!parse__skip(p, ops->token)) continue;
        *ret = ops->op;
        return true;
    }
    return false;
}

/* Left-associative; each level has its operators and the level that binds more tightly. */
static struct node *binary(struct parser *p, int level);

static struct node *operand(struct parser *p, int level)
{
    return level == 0 ? unary(p, true) : binary(p, level - 1);
}

static struct node *concat(struct parser *p)
{
    struct node *n = binary(p, 1);
    if (!parse__is(p, T_TILDE)) return n;
    struct node *c = parse__node(p, NODE_CONCAT, n->line);
    struct node_list l = {0};
    parse__add(p, &l, n);
    while (parse__skip(p, T_TILDE) && p->rc == 0) parse__add(p, &l, binary(p, 1));
    set_items(c, l);
    return c;
}

/* Levels: 0 power, 1 multiplication, 2 addition, whose operands are joins with ~. */
static struct node *binary(struct parser *p, int level)
{
    static const struct binary_op *const ops[] = {pow_ops, mul_ops, add_ops};
    struct node *n = level == 2 ? concat(p) : operand(p, level);
    enum op op;
    while (p->rc == 0 && take_op(p, ops[level], &op)) {
        struct node *right = level == 2 ? concat(p) : operand(p, level);
        n = with(parse__node(p, NODE_BINARY, n->line), n, right);
        n->op = op;
    }
    return n;
}

static bool take_compare(struct parser *p, enum op *ret)
{
    if (take_op(p, compare_ops, ret)) return true;
    *ret = OP_IN;
    if (parse__skip_name(p, "in")) return true;
    *ret = OP_NOT_IN;
    const struct lex_token *next = parse__look(p);
    if (!parse__is_name(p, "not") || next->kind != T_NAME || !text_is(next, "in")) return false;
    (void)parse__take(p);
    (void)parse__take(p);
    return true;
}

static struct node *compare(struct parser *p)
{
    struct node *first = binary(p, 2), *n = NULL;
    struct node_list l = {0};
    enum op op, *ops = NULL;
    while (p->rc == 0 && take_compare(p, &op)) {
        enum op *more = arena_alloc(&p->program->arena, (l.n + 1) * sizeof *more);
        if (!n) n = parse__node(p, NODE_COMPARE, first->line);
        if (!more) {
            parse__fail(p, ERR_LIMIT, "the template needs too much memory");
            break;
        }
        if (l.n) memcpy(more, ops, l.n * sizeof *more);
        more[l.n] = op;
        ops = more;
        parse__add(p, &l, binary(p, 2));
    }
    if (!n) return first;
    n->a = first;
    n->ops = ops;
    set_items(n, l);
    return n;
}

static struct node *not_(struct parser *p)
{
    uint32_t line = parse__token(p)->line;
    if (!parse__skip_name(p, "not")) return compare(p);
    struct node *n = parse__node(p, NODE_NOT, line);
    if (parse__enter(p)) n->a = not_(p);
    parse__leave(p);
    return n;
}

static struct node *and_(struct parser *p)
{
    struct node *n = not_(p);
    while (p->rc == 0 && parse__skip_name(p, "and"))
        n = with(parse__node(p, NODE_AND, n->line), n, not_(p));
    return n;
}

static struct node *or_(struct parser *p)
{
    struct node *n = and_(p);
    while (p->rc == 0 && parse__skip_name(p, "or"))
        n = with(parse__node(p, NODE_OR, n->line), n, and_(p));
    return n;
}

/* Where there is an if, nothing in the whole of it needs to be there before it runs. */
static struct node *cond(struct parser *p)
{
    const struct node *unknown = p->unknown;
    struct node *n = or_(p);
    bool is_cond = parse__is_name(p, "if");
    while (p->rc == 0 && parse__skip_name(p, "if")) {
        struct node *c = parse__node(p, NODE_COND, n->line);
        c->a = or_(p);
        c->b = n;
        if (parse__skip_name(p, "else")) {
            if (parse__enter(p)) c->c = cond(p);
            parse__leave(p);
        }
        n = c;
    }
    if (is_cond) p->unknown = unknown;
    return n;
}

struct node *parse__expression(struct parser *p, bool with_cond)
{
    struct node *n;
    if (parse__enter(p))
        n = with_cond ? cond(p) : or_(p);
    else
        n = parse__node(p, NODE_CONST, 0);
    parse__leave(p);
    return n;
}

struct node *parse__tuple(struct parser *p, bool with_cond, const char *end_name, bool parentheses)
{
    struct node_list l = {0};
    uint32_t line = parse__token(p)->line;
    bool is_tuple = false;
    while (p->rc == 0) {
        if (l.n) parse__expect(p, T_COMMA);
        if (parse__is(p, T_PRINT_END) || parse__is(p, T_TAG_END) || parse__is(p, T_RPAREN) ||
            (end_name && parse__is_name(p, end_name)))
            break;
        parse__add(p, &l, parse__expression(p, with_cond));
        if (!parse__is(p, T_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && l.n) return l.at[0];
    if (!is_tuple && !parentheses) parse__fail(p, ERR_FORMAT, "an expression is missing");
    struct node *n = parse__node(p, NODE_TUPLE, line);
    set_items(n, l);
    return n;
}

struct node *parse__target(struct parser *p, bool with_namespace, const char *end_name)
{
    struct node_list l = {0};
    uint32_t line = parse__token(p)->line;
    bool is_tuple = false;
    while (p->rc == 0) {
        if (l.n) parse__expect(p, T_COMMA);
        if (parse__is(p, T_TAG_END) || parse__is(p, T_ASSIGN) || parse__is(p, T_RPAREN) ||
            (end_name && parse__is_name(p, end_name)))
            break;
        struct node *n;
        if (parse__skip(p, T_LPAREN)) {
            n = parse__enter(p) ? parse__target(p, with_namespace, NULL)
                                : parse__node(p, NODE_TUPLE, line);
            parse__leave(p);
            parse__expect(p, T_RPAREN);
        } else {
            n = primary(p, with_namespace);
        }
        if (n->kind != NODE_NAME && n->kind != NODE_NSREF && n->kind != NODE_TUPLE)
            parse__fail(p, ERR_FORMAT, "this cannot be assigned to");
        parse__add(p, &l, n);
        if (!parse__is(p, T_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && l.n) return l.at[0];
    if (!is_tuple) parse__fail(p, ERR_FORMAT, "a name is missing");
    struct node *n = parse__node(p, NODE_TUPLE, line);
    set_items(n, l);
    return n;
}
