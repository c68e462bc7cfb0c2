/* Characters of UTF-8, the one decoder of the tree. What is well-formed is Unicode's table 3-7
 * (Unicode 15, section 3.9): no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef FLOTILLA_BASE_UTF8_H
#define FLOTILLA_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum utf8_kind {
    UTF8_WHOLE,
    UTF8_UNFINISHED, /* well-formed so far: the end of the bytes cuts it off */
    UTF8_BROKEN,
};

/* Looks at what the n bytes at `text` begin with (n > 0). *ret_len is how many of them belong to
 * the character, or to what is unfinished or broken (at least 1). *ret_c is the code point where it
 * is whole. */
static inline enum utf8_kind utf8_decode(const char *text, size_t n, size_t *ret_len,
                                         int32_t *ret_c)
{
    const uint8_t *s = (const uint8_t *)text;
    uint8_t b = s[0], lo = 0x80, hi = 0xbf; /* bounds of the next byte */
    *ret_len = 1;
    *ret_c = b;
    if (b < 0x80) return UTF8_WHOLE;
    size_t len = b < 0xc2 || b > 0xf4 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
    if (len == 0) return UTF8_BROKEN;
    /* A smaller second byte would be an overlong form, a larger one a surrogate, or beyond. */
    if (b == 0xe0) lo = 0xa0;
    if (b == 0xed) hi = 0x9f;
    if (b == 0xf0) lo = 0x90;
    if (b == 0xf4) hi = 0x8f;
    int32_t c = b & (0x7f >> len);
    for (size_t i = 1; i < len; i++) {
        *ret_len = i;
        if (i == n) return UTF8_UNFINISHED;
        if (s[i] < lo || s[i] > hi) return UTF8_BROKEN;
        c = c << 6 | (s[i] & 0x3f);
        lo = 0x80;
        hi = 0xbf;
    }
    *ret_len = len;
    *ret_c = c;
    return UTF8_WHOLE;
}

/* Bytes of the character that the n bytes at `text` begin with; 0: there is no whole one. ret_c may
 * be NULL. A NUL is a character. */
static inline size_t utf8_char(const char *text, size_t n, int32_t *ret_c)
{
    size_t len;
    int32_t c;
    if (n == 0 || utf8_decode(text, n, &len, &c) != UTF8_WHOLE) return 0;
    if (ret_c) *ret_c = c;
    return len;
}

#endif
