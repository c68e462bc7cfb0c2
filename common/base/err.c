#include "common/base/err.h"

#include <errno.h>
#include <stdarg.h>
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

/* Texts end up on terminals and in logs, and names in them come from files and peers: what steers a
 * terminal (C0, DEL, and C1 as UTF-8) becomes '?'. */
static void clean(char *text)
{
    for (uint8_t *s = (uint8_t *)text; *s; s++) {
        if (*s < 0x20 || *s == 0x7f) *s = '?';
        if (*s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0) s[0] = s[1] = '?';
    }
}

int err_set(struct errmsg *em, int code, const char *format, ...)
{
    if (em) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(em->text, sizeof em->text, format, args);
        va_end(args);
        clean(em->text);
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
        clean(em->text);
    }
    return code;
}
