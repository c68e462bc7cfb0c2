/* A growable byte string with a limit: appending beyond `max` fails and changes nothing. It is
 * empty when zeroed. Growing aborts without memory: where others choose the size, set `max` or
 * reserve. */
#ifndef FLOTILLA_BASE_BUF_H
#define FLOTILLA_BASE_BUF_H

#include <stddef.h>

struct buf {
    char *data; /* public, read-only; NUL-terminated once something was appended */
    size_t len; /* public, read-only; without the NUL */
    size_t cap; /* private */
    size_t max; /* public; 0 means no limit */
};

/* Copies n bytes to the end. ERR_LIMIT: beyond `max`. */
int buf_append(struct buf *b, const void *data, size_t n);
/* Room for n bytes and their NUL, so that appending up to them allocates nothing. ERR_NOMEM. */
int buf_reserve(struct buf *b, size_t n);
/* Drops the first n bytes (n <= len). */
void buf_drop(struct buf *b, size_t n);
/* Copies up to `room` of the bytes from *at on, which moves behind them; the last ones close the
 * buffer, and *at is 0 again. Returns how many. */
size_t buf_take(struct buf *b, size_t *at, void *to, size_t room);
void buf_close(struct buf *b);

#endif
