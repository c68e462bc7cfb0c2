/* Text of templates: building strings that know where each byte came from, and characters. A string
 * is valid UTF-8; positions and lengths that templates see count characters. */
#ifndef FLOTILLA_TEXT_JINJA_STR_H
#define FLOTILLA_TEXT_JINJA_STR_H

#include "common/text/jinja/value.h"

/* A string under construction. */
struct str_builder {
    struct interp *in;
    char *data;
    uint8_t *marks; /* NULL while all bytes came from one side */
    size_t len, cap;
    bool foreign; /* where they came from then */
};

void str_begin(struct str_builder *b, struct interp *in);
/* Appends bytes, all of one origin. */
void str_add(struct str_builder *b, const char *text, size_t n, bool foreign);
/* Appends bytes `from` to `to` of a string. */
void str_add_part(struct str_builder *b, struct value s, size_t from, size_t to);
void str_add_value(struct str_builder *b, struct value s);
void str_add_char(struct str_builder *b, int32_t c, bool foreign);
struct value str_end(struct str_builder *b);

/* Bytes `from` to `to` of a string, sharing its memory. */
struct value str_part(struct value s, size_t from, size_t to);
/* a and b one after the other. Repeated appending to what it returned is linear. */
struct value str_concat(struct interp *in, struct value a, struct value b);
bool str_foreign_at(struct value s, size_t i);
bool str_any_foreign(struct value s);
struct value str_copy(struct interp *in, const char *text, size_t n, bool foreign);

/* The character at byte i < len; *ret_bytes is how many it has. */
int32_t str_char(struct value s, size_t i, size_t *ret_bytes);
size_t str_chars(struct value s); /* how many it has */
/* The byte at which character i begins; len beyond the last. */
size_t str_byte_of(struct value s, size_t i);
/* Where `what` begins in s from byte `from` on; SIZE_MAX: nowhere. */
size_t str_find(struct value s, struct value what, size_t from);
size_t str_rfind(struct interp *in, struct value s, struct value what);
bool str_begins(struct value s, size_t at, struct value what);

/* Without white space, or the characters of `chars` (a string, or V_NONE), at its ends. */
struct value str_strip(struct interp *in, struct value s, struct value chars, bool left,
                       bool right);
/* `&`, `<`, `>` and quotes as HTML writes them; what is markup stays. */
struct value str_escape(struct interp *in, struct value s);

#endif
