/* Unicode's normalisation form C. */
#ifndef FLOTILLA_TEXT_NFC_H
#define FLOTILLA_TEXT_NFC_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stddef.h>

/* Appends to *ret the n bytes of valid UTF-8 at `s`, put into normalisation form C. ERR_NOMEM. */
int nfc_append(const char *s, size_t n, struct buf *ret, struct errmsg *em);

#endif
