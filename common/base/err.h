/* Error codes and human-readable error text for the whole project.
 *
 * A fallible function returns 0 or a negative ERR_* code. Where a person will read the reason it
 * also takes a `struct errmsg *` (may be NULL) as its last parameter and fills it on failure; each
 * caller on the way up may prefix context with err_wrap(). */
#ifndef FLOTILLA_BASE_ERR_H
#define FLOTILLA_BASE_ERR_H

#define ERR_MAP(X)                                                                                 \
    X(NOMEM, 1, "out of memory")                                                                   \
    X(IO, 2, "input/output error")                                                                 \
    X(FORMAT, 3, "malformed file")                                                                 \
    X(UNSUPPORTED, 4, "not supported")                                                             \
    X(CONF, 5, "configuration error")                                                              \
    X(PROTO, 6, "protocol error")                                                                  \
    X(LIMIT, 7, "limit exceeded")                                                                  \
    X(RANGE, 8, "argument out of range")                                                           \
    X(NOTFOUND, 9, "not found")                                                                    \
    X(AGAIN, 10, "try again")                                                                      \
    X(CLOSED, 11, "peer is gone")                                                                  \
    X(TIMEOUT, 12, "timed out")                                                                    \
    X(CANCELLED, 13, "cancelled")                                                                  \
    X(REFUSED, 14, "refused")

enum err_code {
#define X(name, number, text) ERR_##name = -(number),
    ERR_MAP(X)
#undef X
};

struct errmsg {
    char text[512]; /* always NUL-terminated; empty until an error is reported */
};

/* The fixed text of a code; "unknown error" for anything else. */
const char *err_text(int code);

/* Negative ERR_* for an errno value. */
int err_from_errno(int errno_value);

/* Makes a text fit for terminals, logs, JSON and strings of protobuf: each control character, and
 * each byte of what is not UTF-8, becomes '?'. A limit that cuts a text may leave half a character.
 */
void err_clean(char *text);

/* Replaces the text and returns `code`, so that `return err_set(em, ERR_IO, ...)` reads well. The
 * text is cleaned, here and below. */
int err_set(struct errmsg *em, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the present text and returns `code`. */
int err_wrap(struct errmsg *em, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
