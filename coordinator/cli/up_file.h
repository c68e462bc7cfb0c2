/* The cluster file that `up` writes for its coordinator: its own keys, and those given with --set,
 * which stand instead of its own. */
#ifndef FLOTILLA_CLI_UP_FILE_H
#define FLOTILLA_CLI_UP_FILE_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/opts.h"

#include <stdint.h>

#define UP_KEYS_MAX 20
#define UP_VALUE_BYTES 2200 /* a path with each byte doubled, and its key */

struct up_file {
    char own[UP_KEYS_MAX][UP_VALUE_BYTES]; /* "KEY=VALUE", like those of --set */
    size_t n_own;
};

/* At most UP_KEYS_MAX keys. A line "KEY=VALUE" is cut to UP_VALUE_BYTES. */
void up_file_string(struct up_file *f, const char *key, const char *value);
/* The value in quotes, so that it may hold any character. */
void up_file_quoted(struct up_file *f, const char *key, const char *value);
void up_file_number(struct up_file *f, const char *key, uint32_t value);

/* ERR_CONF names the option and what is wrong with its key or value. */
int up_file_check(const struct opt_list *set, struct errmsg *em);

/* Appends the file, a key a line, to `out`. Of a key that is given more than once the last stands.
 */
void up_file_write(const struct up_file *f, const struct opt_list *set, struct buf *out);

#endif
