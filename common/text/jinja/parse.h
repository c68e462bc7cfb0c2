/* The parser: parse.c has the statements, parse_expr.c the expressions. */
#ifndef FLOTILLA_TEXT_JINJA_PARSE_H
#define FLOTILLA_TEXT_JINJA_PARSE_H

#include "common/base/err.h"
#include "common/text/jinja/ast.h"
#include "common/text/jinja/lex.h"

/* Parses a template into *ret, whose arena the caller closes also after an error. Errors are those
 * of template_open. */
int parse_program(const char *text, size_t bytes, uint32_t nesting_max, struct program *ret,
                  struct errmsg *em);

/* ---- private to the parser ---- */

struct parser {
    struct program *program;
    struct lex_tokens tokens;
    size_t at;
    struct errmsg *em;
    int rc; /* once below 0, the token at hand is T_EOF, so that all loops end */
    uint32_t depth, depth_max;
    bool soft; /* directly within the body of an if */
    const struct node
        *unknown;        /* the first filter or test that is not there and must be, or NULL */
    struct node *macro;  /* whose body this is, or NULL */
    struct node no_node; /* in place of one after an error, when nobody looks at nodes any more */
    uint32_t loops;      /* around the statement at hand */
};

const struct lex_token *parse__token(const struct parser *p);
const struct lex_token *parse__look(const struct parser *p); /* the one behind it */
const struct lex_token *parse__take(struct parser *p);
bool parse__is(const struct parser *p, enum token_kind kind);
bool parse__is_name(const struct parser *p, const char *name);
bool parse__skip(struct parser *p, enum token_kind kind);
bool parse__skip_name(struct parser *p, const char *name);
void parse__expect(struct parser *p, enum token_kind kind);
void parse__fail(struct parser *p, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool parse__enter(struct parser *p);
void parse__leave(struct parser *p);

struct node *parse__node(struct parser *p, enum node_kind kind, uint32_t line);
uint32_t parse__intern(struct parser *p, const char *text, size_t len);
struct value parse__string(const struct lex_token *t);

/* A growing list of nodes in the arena. */
struct node_list {
    struct node **at;
    uint32_t n, cap;
};
void parse__add(struct parser *p, struct node_list *l, struct node *n);

/* Never NULL: after an error, some node. */
struct node *parse__expression(struct parser *p, bool with_cond);
/* Several with commas are a tuple. end_name: a name that ends it, or NULL. */
struct node *parse__tuple(struct parser *p, bool with_cond, const char *end_name, bool parentheses);
/* What a set or for assigns to. */
struct node *parse__target(struct parser *p, bool with_namespace, const char *end_name);
/* `| name(args) | ...` after `of`; first: the first has no bar before it. */
struct node *parse__filters(struct parser *p, struct node *of, bool first);

#endif
