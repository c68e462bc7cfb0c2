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
/* Frees the strings of a table. */
void conf_free(const struct conf_key *table);

#endif
