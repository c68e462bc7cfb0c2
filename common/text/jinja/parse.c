#include "common/text/jinja/parse.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct lex_token no_token = {.kind = T_EOF, .text = ""};

/* ---- tokens ---- */

const struct lex_token *parse__token(const struct parser *p)
{
    return p->rc < 0 ? &no_token : &p->tokens.at[p->at];
}

const struct lex_token *parse__look(const struct parser *p)
{
    return p->rc < 0 || p->at + 1 >= p->tokens.n ? &no_token : &p->tokens.at[p->at + 1];
}

const struct lex_token *parse__take(struct parser *p)
{
    const struct lex_token *t = parse__token(p);
    p->at += p->at + 1 < p->tokens.n;
    return t;
}

bool parse__is(const struct parser *p, enum token_kind kind)
{
    return parse__token(p)->kind == kind;
}

bool parse__is_name(const struct parser *p, const char *name)
{
    const struct lex_token *t = parse__token(p);
    return t->kind == T_NAME && t->len == strlen(name) && memcmp(t->text, name, t->len) == 0;
}

bool parse__skip(struct parser *p, enum token_kind kind)
{
    if (!parse__is(p, kind)) return false;
    (void)parse__take(p);
    return true;
}

bool parse__skip_name(struct parser *p, const char *name)
{
    if (!parse__is_name(p, name)) return false;
    (void)parse__take(p);
    return true;
}

static const char *kind_text(enum token_kind kind)
{
    switch (kind) {
    case T_PRINT_END: return "'}}'";
    case T_TAG_END: return "'%}'";
    case T_NAME: return "a name";
    case T_LPAREN: return "'('";
    case T_RPAREN: return "')'";
    case T_RBRACKET: return "']'";
    case T_RBRACE: return "'}'";
    case T_COMMA: return "','";
    case T_COLON: return "':'";
    case T_ASSIGN: return "'='";
    default: return "something else";
    }
}

void parse__expect(struct parser *p, enum token_kind kind)
{
    const struct lex_token *t = parse__token(p);
    if (parse__skip(p, kind)) return;
    if (t->kind == T_EOF)
        parse__fail(p, ERR_FORMAT, "the template ends where %s is expected", kind_text(kind));
    else
        parse__fail(p, ERR_FORMAT, "%s is expected, not '%.*s'", kind_text(kind),
                    (int)(t->len > 32 ? 32 : t->len), t->text);
}

void parse__fail(struct parser *p, int code, const char *format, ...)
{
    char why[256];
    va_list args;
    if (p->rc < 0) return;
    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    p->rc = err_set(p->em, code, "line %" PRIu32 ": %s", parse__token(p)->line, why);
}

bool parse__enter(struct parser *p)
{
    if (++p->depth > p->depth_max)
        parse__fail(p, ERR_LIMIT, "it nests more than %" PRIu32 " deep", p->depth_max);
    return p->rc == 0;
}

void parse__leave(struct parser *p)
{
    p->depth--;
}

/* ---- nodes ---- */

struct node *parse__node(struct parser *p, enum node_kind kind, uint32_t line)
{
    struct node *n = arena_alloc(&p->program->arena, sizeof *n);
    if (!n) {
        bool starved = p->program->arena.starved;
        parse__fail(p, starved ? ERR_NOMEM : ERR_LIMIT, "the template needs too much memory");
        p->no_node = (struct node){.kind = NODE_CONST};
        return &p->no_node;
    }
    *n = (struct node){.kind = kind, .line = line, .constant = value_none()};
    return n;
}

void parse__add(struct parser *p, struct node_list *l, struct node *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? 2 * l->cap : 4;
        struct node **more = arena_alloc(&p->program->arena, cap * sizeof *more);
        if (!more) {
            parse__fail(p, ERR_LIMIT, "the template needs too much memory");
            return;
        }
        if (l->n) memcpy(more, l->at, l->n * sizeof *more);
        l->at = more;
        l->cap = cap;
    }
    l->at[l->n++] = n;
}

struct value parse__string(const struct lex_token *t)
{
    return value_text(t->text, t->len);
}

uint32_t program_name(const struct program *p, const char *text, size_t len)
{
    for (uint32_t i = 0; i < p->n_names; i++)
        if (p->names[i].len == len && memcmp(p->names[i].text, text, len) == 0) return i;
    return UINT32_MAX;
}

#define NAMES_MAX 4096u

uint32_t parse__intern(struct parser *p, const char *text, size_t len)
{
    struct program *g = p->program;
    uint32_t i = program_name(g, text, len);
    if (i != UINT32_MAX) return i;
    if (g->n_names == NAMES_MAX) {
        parse__fail(p, ERR_LIMIT, "the template has more than %u names", NAMES_MAX);
        return 0;
    }
    if (g->n_names == g->names_cap) {
        uint32_t cap = g->names_cap ? 2 * g->names_cap : 64;
        struct value *more = arena_alloc(&g->arena, cap * sizeof *more);
        if (!more) {
            parse__fail(p, ERR_LIMIT, "the template needs too much memory");
            return 0;
        }
        if (g->n_names) memcpy(more, g->names, g->n_names * sizeof *more);
        g->names = more;
        g->names_cap = cap;
    }
    g->names[g->n_names] = value_text(text, len);
    return g->n_names++;
}

/* ---- statements ---- */

static struct node *body_until(struct parser *p, const char *const *ends);

/* The body of a statement, up to one of `ends` in a tag, which is at hand then. The tag's end is
 * still before it. in_if: what runs only if a condition holds. */
static struct node *body(struct parser *p, const char *const *ends, bool in_if)
{
    bool was_soft = p->soft;
    p->soft = in_if;
    (void)parse__skip(p, T_COLON);
    parse__expect(p, T_TAG_END);
    struct node *n = parse__enter(p) ? body_until(p, ends) : NULL;
    parse__leave(p);
    p->soft = was_soft;
    return n;
}

static struct node *body_to(struct parser *p, const char *end)
{
    struct node *n = body(p, (const char *const[]){end, NULL}, false);
    (void)parse__take(p);
    return n;
}

static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = parse__node(p, NODE_IF, parse__take(p)->line);
    bool was_soft = p->soft;
    p->soft = true;
    n->a = parse__tuple(p, false, NULL, false);
    n->body = body(p, ends, true);
    if (parse__is_name(p, "elif")) {
        if (parse__enter(p)) n->else_body = parse_if(p);
        parse__leave(p);
    } else if (parse__skip_name(p, "else")) {
        n->else_body = body(p, (const char *const[]){"endif", NULL}, true);
        (void)parse__take(p);
    } else {
        (void)parse__take(p);
    }
    p->soft = was_soft;
    return n;
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *n = parse__node(p, NODE_FOR, parse__take(p)->line);
    n->a = parse__target(p, false, "in");
    if (!parse__skip_name(p, "in")) parse__fail(p, ERR_FORMAT, "'in' is missing in a for");
    n->b = parse__tuple(p, false, "recursive", false);
    if (parse__skip_name(p, "if")) n->c = parse__expression(p, true);
    n->recursive = parse__skip_name(p, "recursive");
    p->loops++;
    n->body = body(p, ends, false);
    p->loops--;
    if (parse__skip_name(p, "else"))
        n->else_body = body_to(p, "endfor");
    else
        (void)parse__take(p);
    return n;
}

static struct node *parse_set(struct parser *p)
{
    struct node *n = parse__node(p, NODE_SET, parse__take(p)->line);
    n->a = parse__target(p, true, NULL);
    if (parse__skip(p, T_ASSIGN)) {
        n->b = parse__tuple(p, true, NULL, false);
        return n;
    }
    n->kind = NODE_SET_BLOCK;
    n->b = parse__filters(p, NULL, false);
    n->body = body_to(p, "endset");
    return n;
}

/* Parameters in parentheses; those with a default come last. */
static void signature(struct parser *p, struct node *n)
{
    struct node_list params = {0}, defaults = {0};
    parse__expect(p, T_LPAREN);
    while (!parse__is(p, T_RPAREN) && p->rc == 0) {
        if (params.n) parse__expect(p, T_COMMA);
        const struct lex_token *t = parse__token(p);
        parse__expect(p, T_NAME);
        struct node *param = parse__node(p, NODE_NAME, t->line);
        param->name = parse__intern(p, t->text, t->len);
        param->constant = parse__string(t);
        for (uint32_t i = 0; i < params.n; i++)
            if (params.at[i]->name == param->name)
                parse__fail(p, ERR_FORMAT, "two parameters have the same name");
        parse__add(p, &params, param);
        if (parse__skip(p, T_ASSIGN))
            parse__add(p, &defaults, parse__expression(p, true));
        else if (defaults.n)
            parse__fail(p, ERR_FORMAT, "a parameter without a default is behind one with it");
    }
    parse__expect(p, T_RPAREN);
    n->items = params.at;
    n->n_items = params.n;
    n->defaults = defaults.at;
    n->n_defaults = defaults.n;
}

/* The body of a macro or of a call's block. */
static void macro_body(struct parser *p, struct node *n, const char *end)
{
    struct node *outer = p->macro;
    uint32_t loops = p->loops;
    p->macro = n;
    p->loops = 0;
    n->body = body_to(p, end);
    p->macro = outer;
    p->loops = loops;
}

static struct node *parse_macro(struct parser *p)
{
    struct node *n = parse__node(p, NODE_MACRO, parse__take(p)->line);
    const struct lex_token *t = parse__token(p);
    parse__expect(p, T_NAME);
    n->name = parse__intern(p, t->text, t->len);
    n->constant = parse__string(t);
    signature(p, n);
    macro_body(p, n, "endmacro");
    return n;
}

static struct node *parse_call(struct parser *p)
{
    struct node *n = parse__node(p, NODE_CALL_BLOCK, parse__take(p)->line);
    n->constant = value_text("caller", 6);
    if (parse__is(p, T_LPAREN)) signature(p, n);
    n->a = parse__expression(p, true);
    if (n->a->kind != NODE_CALL) parse__fail(p, ERR_FORMAT, "a call is missing");
    macro_body(p, n, "endcall");
    return n;
}

static struct node *parse_with(struct parser *p)
{
    struct node *n = parse__node(p, NODE_WITH, parse__take(p)->line);
    struct node_list l = {0};
    while (!parse__is(p, T_TAG_END) && p->rc == 0) {
        if (l.n) parse__expect(p, T_COMMA);
        parse__add(p, &l, parse__target(p, false, NULL));
        parse__expect(p, T_ASSIGN);
        parse__add(p, &l, parse__expression(p, true));
    }
    n->items = l.at;
    n->n_items = l.n;
    n->body = body_to(p, "endwith");
    return n;
}

static struct node *parse_print(struct parser *p)
{
    struct node *n = parse__node(p, NODE_PRINT, parse__take(p)->line);
    struct node_list l = {0};
    while (!parse__is(p, T_TAG_END) && p->rc == 0) {
        if (l.n) parse__expect(p, T_COMMA);
        parse__add(p, &l, parse__expression(p, true));
    }
    n->items = l.at;
    n->n_items = l.n;
    return n;
}

static struct node *parse_filter_block(struct parser *p)
{
    struct node *n = parse__node(p, NODE_FILTER_BLOCK, parse__take(p)->line);
    n->b = parse__filters(p, NULL, true);
    n->body = body_to(p, "endfilter");
    return n;
}

/* A part of the prompt that the assistant wrote. Its text is text like any other; only training
 * asks which it is. */
static struct node *parse_generation(struct parser *p)
{
    struct node *n = parse__node(p, NODE_SCOPE, parse__take(p)->line);
    uint32_t loops = p->loops;
    p->loops = 0;
    n->body = body_to(p, "endgeneration");
    p->loops = loops;
    return n;
}

static struct node *parse_jump(struct parser *p)
{
    bool is_break = parse__is_name(p, "break");
    struct node *n = parse__node(p, is_break ? NODE_BREAK : NODE_CONTINUE, parse__token(p)->line);
    if (p->loops == 0) parse__fail(p, ERR_FORMAT, "a break or continue outside of loops");
    (void)parse__take(p);
    return n;
}

/* Of Jinja, but of no use where there are no other templates, and no HTML. */
static const char *const not_here[] = {"block",      "extends", "include", "import", "from",
                                       "autoescape", "trans",   "do",      "debug"};

static struct node *statement(struct parser *p)
{
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *p);
    } all[] = {{"if", parse_if},
               {"for", parse_for},
               {"set", parse_set},
               {"macro", parse_macro},
               {"call", parse_call},
               {"with", parse_with},
               {"print", parse_print},
               {"filter", parse_filter_block},
               {"generation", parse_generation},
               {"break", parse_jump},
               {"continue", parse_jump}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (parse__is_name(p, all[i].name)) return all[i].parse(p);
    const struct lex_token *t = parse__token(p);
    int len = (int)(t->len > 64 ? 64 : t->len);
    for (size_t i = 0; i < sizeof not_here / sizeof not_here[0]; i++)
        if (parse__is_name(p, not_here[i]))
            parse__fail(p, ERR_UNSUPPORTED, "the tag '%s' is not supported", not_here[i]);
    parse__fail(p, ERR_FORMAT, "there is no tag '%.*s'", len, t->text);
    return parse__node(p, NODE_CONST, 0);
}

static bool at_one_of(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (parse__is_name(p, *ends)) return true;
    return false;
}

/* Statements up to a tag that begins with one of `ends`, or where that is NULL to the end. */
static struct node *body_until(struct parser *p, const char *const *ends)
{
    struct node *first = NULL, **at = &first;
    while (!parse__is(p, T_EOF)) {
        const struct lex_token *t = parse__take(p);
        struct node *n;
        if (t->kind == T_TEXT) {
            n = parse__node(p, NODE_TEXT, t->line);
            n->constant = parse__string(t);
        } else if (t->kind == T_PRINT_BEGIN) {
            struct node_list l = {0};
            n = parse__node(p, NODE_PRINT, t->line);
            parse__add(p, &l, parse__tuple(p, true, NULL, false));
            n->items = l.at;
            n->n_items = l.n;
            parse__expect(p, T_PRINT_END);
        } else {
            if (at_one_of(p, ends)) return first;
            n = statement(p);
            parse__expect(p, T_TAG_END);
        }
        if (p->rc < 0) return first;
        *at = n;
        at = &n->next;
    }
    if (ends) parse__fail(p, ERR_FORMAT, "the template ends where a tag '%s' is expected", ends[0]);
    return first;
}

int parse_program(const char *text, size_t bytes, uint32_t nesting_max, struct program *ret,
                  struct errmsg *em)
{
    static const char *const names[] = {"loop", "caller", "varargs", "kwargs"};
    struct parser p = {.program = ret, .em = em, .depth_max = nesting_max};
    p.rc = lex_template(text, bytes, &ret->arena, &p.tokens, em);
    for (size_t i = 0; i < sizeof names / sizeof names[0] && p.rc == 0; i++)
        (void)parse__intern(&p, names[i], strlen(names[i]));
    if (p.rc == 0) ret->body = body_until(&p, NULL);
    if (p.rc == 0 && p.unknown)
        p.rc = err_set(em, ERR_FORMAT, "line %" PRIu32 ": there is no %s '%.*s'", p.unknown->line,
                       p.unknown->kind == NODE_FILTER ? "filter" : "test",
                       (int)(p.unknown->constant.len > 64 ? 64 : p.unknown->constant.len),
                       p.unknown->constant.text);
    return p.rc;
}
