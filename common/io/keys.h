/* Making CURVE keys, and the files in which programs keep theirs.
 *
 * A key file has two lines, "public KEY" and "secret KEY", each key in Z85; lines that begin with
 * '#' are comments. Nobody but its owner may read or write it (mode 0600 or less). */
#ifndef FLOTILLA_IO_KEYS_H
#define FLOTILLA_IO_KEYS_H

#include "common/base/err.h"
#include "common/base/key.h"

/* ERR_UNSUPPORTED: this libzmq was built without CURVE. */
int keys_make(struct key_pair *ret, struct errmsg *em);
/* Makes the file, with mode 0600. ERR_IO: it exists already, or cannot be written. */
int keys_write(const char *path, const struct key_pair *pair, struct errmsg *em);
/* ERR_CONF: it cannot be opened, others may read or write it, it is no key file, or its two keys do
 * not belong together. The text names the file, and the line where there is one. */
int keys_read(const char *path, struct key_pair *ret, struct errmsg *em);

#endif
