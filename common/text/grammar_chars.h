/* Sets of characters, as classes of patterns and grammars write them, and how a character stands in
 * a JSON string. Private to common/text. */
#ifndef FLOTILLA_TEXT_GRAMMAR_CHARS_H
#define FLOTILLA_TEXT_GRAMMAR_CHARS_H

#include "common/text/grammar_tree.h"

#define GRAMMAR_RANGES_MAX 256u

struct grammar_chars {
    struct grammar_range r[GRAMMAR_RANGES_MAX];
    uint32_t n;
    bool full; /* there were more */
};

void grammar_chars_add(struct grammar_chars *c, uint32_t low, uint32_t high);
/* Sorts and joins the ranges, as grammar_class wants them. */
void grammar_chars_sort(struct grammar_chars *c);
/* All other characters. */
void grammar_chars_negate(struct grammar_chars *c);

/* One of the characters, as it is. c is sorted. */
gnode grammar_chars_plain(struct grammar_tree *t, struct grammar_chars *c);
/* One of the characters within a JSON string: as it is, but a quotation mark, a reverse solidus and
 * control characters by their escape. c is sorted. */
gnode grammar_chars_json(struct grammar_tree *t, struct grammar_chars *c);
/* Any character of a JSON string, also by any escape that stands for it alone. */
gnode grammar_chars_any_json(struct grammar_tree *t);

/* Hexadecimal digits: false, if the text does not begin with n of them. */
bool grammar_hex(const char *text, size_t bytes, size_t n, uint32_t *ret);

#endif
