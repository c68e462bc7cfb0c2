/* Configuration files in YAML, read against a table of keys. The only module that knows libyaml.
 *
 * YAML leaves typing to the caller. Here: an integer is decimal digits without a leading zero; a
 * boolean is true or false, not quoted; a string is any scalar, quoted or not, taken as it stands
 * (no, 1.10 and 010 stay what they are), but for an unquoted empty value, ~ and null. Unknown and
 * duplicate keys, aliases, tags and second documents are refused. Errors read
 * "file:line:column: key 'x': reason". */
#ifndef FLOTILLA_IO_CONF_H
#define FLOTILLA_IO_CONF_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum conf_kind {
    CONF_STRING, /* char *, NULL or from mem_alloc; conf_free frees it */
    CONF_U32,    /* uint32_t in [min, max] */
    CONF_BOOL,   /* bool */
    CONF_LIST,   /* struct conf_list: strings, at most `max`; freed with conf_free */
    CONF_NODE    /* struct conf_node: scalars, lists and mappings, to be looked into by the caller;
                    at most `max` values, at most CONF_DEPTH lists and mappings inside each other.
                    Freed with conf_free */
};

/* A string of a list, and where it stands in the file, from 1. */
struct conf_item {
    char *text;
    size_t line, column;
};

struct conf_list {
    struct conf_item *items;
    size_t n;
};

#define CONF_DEPTH 3u

enum conf_shape { CONF_ABSENT, CONF_SCALAR, CONF_SEQUENCE, CONF_MAPPING };

/* A value, and where it stands in the file, from 1. */
struct conf_node {
    enum conf_shape shape;
    char *key;  /* of a value in a mapping: of which no two are equal */
    char *text; /* of a scalar */
    bool plain; /* it is not quoted */
    size_t line, column;
    struct conf_node *items; /* n of a list or mapping */
    size_t n;
};

struct conf_key {
    /* "ports.clients" for a key inside the mapping `ports`; a table ends with NULL. */
    const char *name;
    enum conf_kind kind;
    void *value;       /* keeps its default where the file does not name the key */
    uint32_t min, max; /* of CONF_U32 */
    bool needed;       /* a file without the key is refused */
};

/* path "-" reads stdin. ERR_CONF, or ERR_NOTFOUND and ERR_IO for the file itself. */
int conf_read(const char *path, const struct conf_key *table, struct errmsg *em);
/* The same from memory; `name` stands for the file in errors. */
int conf_parse(const char *name, const char *text, size_t len, const struct conf_key *table,
               struct errmsg *em);
/* A scalar that is a whole number in min..max, written as CONF_U32 wants it. */
bool conf_node_u32(const struct conf_node *node, uint32_t min, uint32_t max, uint32_t *ret);

/* Frees the strings, lists and nodes of a table. */
void conf_free(const struct conf_key *table);

#endif
