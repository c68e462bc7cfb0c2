/* Patterns of JSON schemas as grammars of what stands in a JSON string: the part of ECMA-262's
 * regular expressions that has the same meaning to every reader of schemas. Characters, classes, \d
 * \w \s (of ASCII, and so their opposites), groups, alternatives, repetitions, and ^ and $ at the
 * ends of the alternatives of the whole. Private to common/text. */
#ifndef FLOTILLA_TEXT_REGEX_H
#define FLOTILLA_TEXT_REGEX_H

#include "common/text/grammar_tree.h"

#define REGEX_NO_MAX UINT32_MAX

/* any: any character of a JSON string. The text has min to max characters (REGEX_NO_MAX: any number
 * above). ERR_UNSUPPORTED, with a text that names the construction; ERR_FORMAT: it is no pattern.
 */
int regex_build(struct grammar_tree *t, const char *pattern, size_t bytes, gnode any, uint32_t min,
                uint32_t max, gnode *ret, struct errmsg *em);

#endif
