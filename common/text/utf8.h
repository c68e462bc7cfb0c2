/* Characters of UTF-8. The only module that knows utf8proc. */
#ifndef FLOTILLA_TEXT_UTF8_H
#define FLOTILLA_TEXT_UTF8_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that s begins with (n bytes are there), 0 where it is not valid. ret_c may
 * be NULL. */
size_t utf8_char(const char *s, size_t n, int32_t *ret_c);

/* Appends s, which is valid, in Unicode's normalisation form C. ERR_NOMEM. */
int utf8_compose(const char *s, size_t n, struct buf *ret, struct errmsg *em);

#endif
