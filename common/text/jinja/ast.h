/* A compiled template: a tree of nodes. Immutable once parsed. */
#ifndef FLOTILLA_TEXT_JINJA_AST_H
#define FLOTILLA_TEXT_JINJA_AST_H

#include "common/base/arena.h"
#include "common/text/jinja/value.h"

enum node_kind {
    /* Expressions */
    NODE_CONST,  /* constant */
    NODE_NAME,   /* name */
    NODE_LIST,   /* items */
    NODE_TUPLE,  /* items */
    NODE_DICT,   /* items: key, value, key, value, ... */
    NODE_ATTR,   /* a.constant */
    NODE_ITEM,   /* a[b] */
    NODE_SLICE,  /* a[b:c:d], each of b, c, d may be NULL */
    NODE_CALL,   /* a(args) */
    NODE_FILTER, /* a | constant(args); a is NULL for a block's text; filter NULL: no such filter */
    NODE_TEST,   /* a is constant(args); test NULL: no such test */
    NODE_UNARY,  /* op a */
    NODE_BINARY, /* a op b */
    NODE_CONCAT, /* items joined by ~ */
    NODE_COMPARE, /* a, then items with ops[i] before each */
    NODE_AND,
    NODE_OR,
    NODE_NOT,
    NODE_COND,  /* b if a else c; c may be NULL */
    NODE_NSREF, /* name.constant, as a target */
    /* Statements, linked by next */
    NODE_TEXT,         /* constant */
    NODE_PRINT,        /* items */
    NODE_IF,           /* a, body, else_body */
    NODE_FOR,          /* target a in b if c, body, else_body; recursive */
    NODE_SET,          /* target a = b */
    NODE_SET_BLOCK,    /* target a = body, through the filters b (NODE_FILTER or NULL) */
    NODE_FILTER_BLOCK, /* body through the filters b */
    NODE_MACRO,        /* name, items: parameters, defaults, body */
    NODE_CALL_BLOCK,   /* call a, items: parameters, defaults, body */
    NODE_WITH,         /* items: target, value, ...; body */
    NODE_SCOPE,        /* body, in a scope of its own */
    NODE_BREAK,
    NODE_CONTINUE
};

enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
};

struct node_kw {
    struct value name;
    struct node *value;
};

struct node {
    enum node_kind kind;
    uint32_t line;
    uint32_t name; /* of a variable: an index into the program's names */
    enum op op;
    bool recursive;
    bool sees_varargs, sees_kwargs, sees_caller; /* of a macro: its body names them */
    struct value constant;
    struct node *a, *b, *c, *d;
    struct node **items;
    uint32_t n_items;
    struct node **defaults; /* of the last n_defaults parameters */
    uint32_t n_defaults;
    enum op *ops;
    struct node_kw *kw; /* arguments by name */
    uint32_t n_kw;
    struct node *star, *star_star; /* *args, **kwargs, or NULL */
    const struct filter_def *filter;
    const struct is_def *test;
    struct node *body, *else_body, *next;
};

/* Names that the interpreter itself sets or asks for. */
enum { NAME_LOOP, NAME_CALLER, NAME_VARARGS, NAME_KWARGS, NAME_FIRST_OF_TEMPLATE };

struct program {
    struct arena arena; /* has everything below */
    struct node *body;
    struct value *names;
    uint32_t n_names, names_cap;
};

/* The index of a name. UINT32_MAX: the template names no such variable. */
uint32_t program_name(const struct program *p, const char *text, size_t len);

#endif
