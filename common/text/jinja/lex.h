/* The words of a template: text, and tags cut into names, numbers, strings and operators. White
 * space goes as trim_blocks, lstrip_blocks and the signs of the tags say. */
#ifndef FLOTILLA_TEXT_JINJA_LEX_H
#define FLOTILLA_TEXT_JINJA_LEX_H

#include "common/base/arena.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum token_kind {
    T_EOF,
    T_TEXT,
    T_PRINT_BEGIN,
    T_PRINT_END,
    T_TAG_BEGIN,
    T_TAG_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_POW,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON
};

struct lex_token {
    enum token_kind kind;
    uint32_t line;
    const char *text; /* T_TEXT, T_NAME, T_STRING: its text, unescaped; others: as written */
    size_t len;
    union {
        int64_t integer;
        double real;
    };
};

struct lex_tokens {
    struct lex_token *at; /* the last is T_EOF */
    size_t n, cap;
};

/* Cuts a template; tokens and their texts are the arena's. ERR_FORMAT with the line; ERR_LIMIT or
 * ERR_NOMEM where the arena is at its end. */
int lex_template(const char *text, size_t bytes, struct arena *arena, struct lex_tokens *ret,
                 struct errmsg *em);

#endif
