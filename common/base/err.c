#include "common/base/err.h"

#include "common/base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

const char *err_text(int code)
{
    switch (code) {
#define X(name, number, text)                                                                      \
    case ERR_##name: return text;
        ERR_MAP(X)
#undef X
    default: return code == 0 ? "success" : "unknown error";
    }
}

int err_from_errno(int errno_value)
{
    switch (errno_value) {
    case ENOMEM: return ERR_NOMEM;
    case ENOENT: return ERR_NOTFOUND;
    case EAGAIN: return ERR_AGAIN;
    case ETIMEDOUT: return ERR_TIMEOUT;
    default: return ERR_IO;
    }
}

/* What steers a terminal is C0, DEL, and C1 as UTF-8. */
void err_clean(char *text)
{
    size_t left = strlen(text), n;
    int32_t c;
    for (; left; text += n, left -= n) {
        bool whole = utf8_decode(text, left, &n, &c) == UTF8_WHOLE;
        if (!whole || c < 0x20 || (c >= 0x7f && c < 0xa0)) memset(text, '?', n);
    }
}

int err_set(struct errmsg *em, int code, const char *format, ...)
{
    if (em) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(em->text, sizeof em->text, format, args);
        va_end(args);
        err_clean(em->text);
    }
    return code;
}

int err_wrap(struct errmsg *em, int code, const char *format, ...)
{
    if (em) {
        char inner[sizeof em->text], outer[sizeof em->text];
        memcpy(inner, em->text, sizeof inner);
        va_list args;
        va_start(args, format);
        (void)vsnprintf(outer, sizeof outer, format, args);
        va_end(args);
        size_t used = strlen(outer);
        (void)snprintf(em->text, sizeof em->text, "%s", outer);
        (void)snprintf(em->text + used, sizeof em->text - used, "%s%s", inner[0] ? ": " : "",
                       inner);
        err_clean(em->text);
    }
    return code;
}
