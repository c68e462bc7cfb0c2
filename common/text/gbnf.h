/* Grammars in GBNF, the notation of llama.cpp: rules of texts, classes, groups, alternatives and
 * repetitions, of which `root` is the whole answer. Private to common/text. */
#ifndef FLOTILLA_TEXT_GBNF_H
#define FLOTILLA_TEXT_GBNF_H

#include "common/text/grammar_tree.h"

/* ERR_FORMAT, ERR_LIMIT, ERR_UNSUPPORTED, with a text that names the line. */
int gbnf_build(struct grammar_tree *t, const char *text, size_t bytes, gnode *ret,
               struct errmsg *em);

#endif
