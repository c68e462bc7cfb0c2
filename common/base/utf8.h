/* Which bytes are a character of UTF-8: for texts of others that end up in logs, on terminals and
 * in formats whose readers refuse anything else. */
#ifndef FLOTILLA_BASE_UTF8_H
#define FLOTILLA_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed character at s, of which n bytes are there; 0: none begins here (Unicode
 * 15, table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF). A NUL is none. */
static inline size_t utf8_bytes(const char *text, size_t n)
{
    const uint8_t *s = (const uint8_t *)text;
    if (n == 0 || s[0] == 0) return 0;
    uint8_t b = s[0], lo = 0x80, hi = 0xbf;
    size_t len = b < 0x80                 ? 1
                 : b >= 0xc2 && b <= 0xdf ? 2
                 : b >= 0xe0 && b <= 0xef ? 3
                 : b >= 0xf0 && b <= 0xf4 ? 4
                                          : 0;
    if (len > n) return 0;
    if (b == 0xe0) lo = 0xa0;
    if (b == 0xed) hi = 0x9f;
    if (b == 0xf0) lo = 0x90;
    if (b == 0xf4) hi = 0x8f;
    for (size_t i = 1; i < len; i++) {
        if (s[i] < lo || s[i] > hi) return 0;
        lo = 0x80;
        hi = 0xbf;
    }
    return len;
}

#endif
