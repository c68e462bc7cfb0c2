/* What the parts of the schema compiler share: schema.c (references, combinations, which types),
 * schema_types.c (strings, arrays, objects) and schema_number.c. */
#ifndef FLOTILLA_TEXT_SCHEMA_STATE_H
#define FLOTILLA_TEXT_SCHEMA_STATE_H

#include "common/text/schema.h"

#define SCHEMA_NESTING_MAX 64u

/* A schema that something references: its place in the document, and its rule. */
struct schema_ref {
    const struct json *at;
    uint32_t rule;
    struct schema_ref *next;
};

struct schema {
    struct grammar_tree *t;
    const struct json *root;
    struct schema_ref *refs;
    uint32_t n_refs;
    /* Rules; 0: not made yet, else one more than the rule. */
    uint32_t space, character, value;
    uint32_t nesting;
    uint64_t compared; /* work that telling schemas of `oneOf` apart has taken */
    char path[256];    /* of what is being compiled, for errors */
    struct errmsg *em;
    int rc;
};

/* Whether an error ended it, or the tree is full, which is one. */
bool schema__is_over(struct schema *s);
/* Both return GRAMMAR_NONE. The first error counts. */
gnode schema__unsupported(struct schema *s, const char *keyword, const char *why);
gnode schema__wrong(struct schema *s, const char *keyword, const char *must);

/* The schema j, which stands at `key` of the present one. */
gnode schema__node(struct schema *s, const char *key, const struct json *j);
gnode schema__text(struct schema *s, const char *text);
/* Whichever of n texts, sorted and different, with a node behind each; `behind` NULL: nothing. */
gnode schema__texts(struct schema *s, const struct buf *texts, const gnode *behind, size_t n);
/* A character of a string, and a value of any kind. */
gnode schema__character(struct schema *s);
gnode schema__value(struct schema *s);
/* A member: its name, quoted, a colon, and the value. */
gnode schema__pair(struct schema *s, const char *name, size_t bytes, gnode value);
gnode schema__list(struct schema *s, char open, gnode item, uint32_t min, uint32_t max, char close);
/* A count of j's; `otherwise` where it is absent. False: it is wrong, and told. */
bool schema__count(struct schema *s, const struct json *j, const char *key, uint32_t otherwise,
                   uint32_t *ret);

gnode schema__string(struct schema *s, const struct json *j);
gnode schema__array(struct schema *s, const struct json *j);
gnode schema__object(struct schema *s, const struct json *j);
gnode schema__number(struct schema *s, const struct json *j, bool whole);
/* A number without bounds. */
gnode schema__any_number(struct schema *s, bool whole);

#endif
