#include "common/text/nfc.h"

#include "common/base/mem.h"
#include "common/base/utf8.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#define CANONICAL (UTF8PROC_STABLE | UTF8PROC_COMPOSE)

static unsigned combining_class(int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

/* Sorts n marks by their combining class (1..254), stably, by counting: utf8proc's own sort takes
 * quadratic time for a text made to slow it down. `room` holds n. */
static void order_marks(int32_t *c, size_t n, int32_t *room)
{
    size_t at[256] = {0};
    for (size_t i = 0; i < n; i++) at[combining_class(c[i]) + 1]++;
    for (unsigned k = 1; k < 256; k++) at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++) room[at[combining_class(c[i])]++] = c[i];
    memcpy(c, room, n * sizeof *c);
}

/* The canonical decomposition of s into c, which has room for two of each byte: no character of n
 * bytes decomposes to more. Returns how many characters. */
static size_t decompose(const char *s, size_t n, int32_t *c)
{
    size_t len = 0, marks = 0;
    for (size_t at = 0; at < n;) {
        int32_t one = 0;
        int boundary = 0;
        at += utf8_char(s + at, n - at, &one);
        len += (size_t)utf8proc_decompose_char(one, c + len, (utf8proc_ssize_t)(2 * n - len),
                                               CANONICAL, &boundary);
    }
    for (size_t i = 0; i <= len; i++) {
        if (i < len && combining_class(c[i])) continue;
        if (i - marks > 1) order_marks(c + marks, i - marks, c + 2 * n);
        marks = i + 1;
    }
    return len;
}

/* Characters that may compose with, or be sorted before, what precedes them: marks, and the vowels
 * and final consonants of Korean syllables (but not U+11A7, which utf8proc takes for one). */
static bool follows(int32_t c)
{
    if (c < 0x300) return false;
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME ||
           combining_class(c) || (c >= 0x1161 && c <= 0x1175) || (c >= 0x11a8 && c <= 0x11c2);
}

#define SHORT 16 /* bytes of a stretch that needs no memory of its own */

/* A character and those that follow it. */
static int compose_stretch(const char *s, size_t n, struct buf *ret, struct errmsg *em)
{
    int32_t few[4 * SHORT + 1], *c = few; /* the characters, and room to sort them in */
    if (n > SHORT) c = mem_try((4 * n + 1) * sizeof *c);
    if (!c) return err_set(em, ERR_NOMEM, "composing a text of %zu bytes", n);
    utf8proc_ssize_t bytes = utf8proc_reencode(c, (utf8proc_ssize_t)decompose(s, n, c), CANONICAL);
    int rc = bytes < 0 ? err_set(em, ERR_FORMAT, "%s", utf8proc_errmsg(bytes)) : 0;
    if (rc == 0) rc = buf_append(ret, c, (size_t)bytes);
    if (c != few) mem_free(c);
    return rc;
}

int nfc_append(const char *s, size_t n, struct buf *ret, struct errmsg *em)
{
    size_t from = 0; /* what is as it should be and not yet appended */
    int rc = 0;
    for (size_t at = 0, end; at < n && rc == 0; at = end) {
        int32_t c = 0;
        end = at + utf8_char(s + at, n - at, NULL);
        for (size_t used; end < n; end += used) {
            used = utf8_char(s + end, n - end, &c);
            if (!follows(c)) break;
        }
        if (end - at == 1) continue; /* an ASCII character alone */
        rc = buf_append(ret, s + from, at - from);
        if (rc == 0) rc = compose_stretch(s + at, end - at, ret, em);
        from = end;
    }
    return rc == 0 ? buf_append(ret, s + from, n - from) : rc;
}
