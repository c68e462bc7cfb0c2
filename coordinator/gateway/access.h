/* Who may ask: API keys from a file, a key a line; '#' begins a comment. Its owner alone may read
 * it. */
#ifndef FLOTILLA_GATEWAY_ACCESS_H
#define FLOTILLA_GATEWAY_ACCESS_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define ACCESS_KEYS_MAX 4096u
#define ACCESS_KEY_BYTES 256u

struct access;

/* ERR_CONF, with the file's name: it cannot be read, others may read it, it has no key, too many,
 * or one that is too long or has blanks. */
int access_open(const char *path, struct access **ret, struct errmsg *em);
/* May be NULL. */
void access_close(struct access *a);
/* Whether the header's value is "Bearer KEY" with one of the keys. It takes the same time for all
 * values of one length, right or wrong. NULL: no header. */
bool access_admits(const struct access *a, const char *authorization);

/* Appends a whole file of at most `max` bytes; ERR_CONF, with its name. private: nobody but its
 * owner may be able to read it. */
int access_read_file(const char *path, bool private, size_t max, struct buf *ret,
                     struct errmsg *em);

#endif
