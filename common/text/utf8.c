#include "common/text/utf8.h"

#include <utf8proc.h>

size_t utf8_char(const char *s, size_t n, int32_t *ret_c)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &c);
    if (used <= 0) return 0;
    if (ret_c) *ret_c = c;
    return (size_t)used;
}
