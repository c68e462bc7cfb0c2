/* JSON schemas (2020-12, and what older ones have in common with it) as grammars of the JSON texts
 * that are valid by them. A grammar may allow less than its schema, never more:
 *
 * - members come in the order of `properties`; others only where additionalProperties allows them
 *   in words, or where no properties are named
 * - without `type`, the types are those that the other keywords speak of
 * - white space: one space or one line end with up to 20 spaces and tabs, behind a bracket, a colon
 *   or a comma, and before a closing bracket
 * - numbers have up to 16 digits before and 15 behind the point, and exponents two
 * - recursion ends where the automaton's stack does
 *
 * What a schema asks for beyond that is an error that names it. Private to common/text. */
#ifndef FLOTILLA_TEXT_SCHEMA_H
#define FLOTILLA_TEXT_SCHEMA_H

#include "common/text/grammar_tree.h"
#include "common/text/json.h"

struct schema;

/* The tree is borrowed until the close. */
struct schema *schema_open(struct grammar_tree *t);
/* May be NULL. */
void schema_close(struct schema *s);

/* A JSON text that is valid by `j`, which references from the document's root and is borrowed until
 * the tree is compiled. ERR_UNSUPPORTED, ERR_FORMAT, ERR_LIMIT, with a text that names the place.
 */
int schema_build(struct schema *s, const struct json *j, gnode *ret, struct errmsg *em);
/* Any JSON object. */
gnode schema_any_object(struct schema *s);
/* A space, a line end and an indentation, or nothing. */
gnode schema_space(struct schema *s);

#endif
