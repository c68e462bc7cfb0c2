/* Grammars as trees of texts, classes, sequences, alternatives, repetitions and rules, compiled to
 * the automaton of grammar.h. Whoever reads some notation (schema.c, gbnf.c, regex.c) builds one.
 *
 * Nodes are numbers, never freed singly; a node may be used in several places, and then is compiled
 * in each: what is large and used often becomes a rule. Beyond GRAMMAR_NODES_MAX, or without
 * memory, nodes are GRAMMAR_NONE and grammar_compile says so, so that builders need not check. One
 * thread. */
#ifndef FLOTILLA_TEXT_GRAMMAR_TREE_H
#define FLOTILLA_TEXT_GRAMMAR_TREE_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/text/grammar.h"

#define GRAMMAR_NODES_MAX 65536u
#define GRAMMAR_RULES_MAX 4096u
#define GRAMMAR_CODE_POINT_MAX 0x10ffffu

typedef uint32_t gnode;
#define GRAMMAR_NONE 0u /* matches nothing at all */

struct grammar_tree;

/* A range of code points, both ends inclusive. */
struct grammar_range {
    uint32_t low, high;
};

struct grammar_tree *grammar_tree_open(void);
/* May be NULL. */
void grammar_tree_close(struct grammar_tree *t);

/* These bytes; none: what is empty. Copied. */
gnode grammar_text(struct grammar_tree *t, const char *text, size_t bytes);
/* One character, in UTF-8, of ascending ranges that do not meet; surrogates in them are left out.
 */
gnode grammar_class(struct grammar_tree *t, const struct grammar_range *ranges, size_t n);
/* One byte from low to high, whether it is a character or a part of one. */
gnode grammar_bytes(struct grammar_tree *t, uint8_t low, uint8_t high);
gnode grammar_seq(struct grammar_tree *t, gnode a, gnode b);
gnode grammar_alt(struct grammar_tree *t, gnode a, gnode b);
/* min to max times; max GRAMMAR_NO_MAX: or any number above. */
gnode grammar_repeat(struct grammar_tree *t, gnode a, uint32_t min, uint32_t max);
/* The same of lists. */
gnode grammar_seqs(struct grammar_tree *t, const gnode *items, size_t n);
gnode grammar_alts(struct grammar_tree *t, const gnode *items, size_t n);

/* A rule that is defined later, or never: then it matches nothing. GRAMMAR_RULES_MAX at most. */
uint32_t grammar_rule(struct grammar_tree *t);
void grammar_define(struct grammar_tree *t, uint32_t rule, gnode is);
/* This rule is any character of a JSON string (grammar.h). */
void grammar_mark_character(struct grammar_tree *t, uint32_t rule);
gnode grammar_ref(struct grammar_tree *t, uint32_t rule);

bool grammar_is_full(const struct grammar_tree *t);

/* Appends the automaton of answers that are `root`. ERR_LIMIT: it has too many nodes or bytes, or
 * nests deeper than a stack has room for; ERR_RANGE: no answer is possible, a rule begins with
 * itself, or something that may be empty is repeated; ERR_NOMEM. */
int grammar_compile(struct grammar_tree *t, gnode root, struct buf *ret, struct errmsg *em);

#endif
