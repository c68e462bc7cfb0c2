/* What Python's strings do with all of their characters: cases, replacing, padding, numbers. Each
 * character that is made keeps the origin of the one it is made from. */
#include "common/text/jinja/interp.h"
#include "common/text/jinja/unicode.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef size_t (*map_fn)(int32_t c, int32_t *to);

static void add_mapped(struct str_builder *b, map_fn map, int32_t c, bool foreign)
{
    int32_t to[UNICODE_CASE_MAX];
    size_t n = map(c, to);
    for (size_t i = 0; i < n; i++) str_add_char(b, to[i], foreign);
}

#define SIGMA 0x3a3
#define SIGMA_FINAL 0x3c2

/* A sigma that ends a word has a letter of its own. */
static bool ends_word(struct value s, size_t at, size_t behind)
{
    size_t n, before = at;
    if (at == 0) return false;
    do before--;
    while (before > 0 && ((uint8_t)s.text[before] & 0xc0) == 0x80);
    return unicode_alpha(str_char(s, before, &n)) &&
           (behind >= s.len || !unicode_alpha(str_char(s, behind, &n)));
}

static void add_lower(struct str_builder *b, struct value s, size_t at, size_t n, int32_t c)
{
    if (c == SIGMA && ends_word(s, at, at + n))
        str_add_char(b, SIGMA_FINAL, str_foreign_at(s, at));
    else
        add_mapped(b, unicode_to_lower, c, str_foreign_at(s, at));
}

static struct value end_like(struct str_builder *b, struct value s)
{
    struct value v = str_end(b);
    v.markup = s.markup;
    return v;
}

struct value cases_upper(struct interp *in, struct value s)
{
    struct str_builder b;
    str_begin(&b, in);
    for (size_t i = 0, n; i < s.len && in->rc == 0; i += n)
        add_mapped(&b, unicode_to_upper, str_char(s, i, &n), str_foreign_at(s, i));
    return end_like(&b, s);
}

struct value cases_lower(struct interp *in, struct value s)
{
    struct str_builder b;
    str_begin(&b, in);
    for (size_t i = 0, n; i < s.len && in->rc == 0; i += n) {
        int32_t c = str_char(s, i, &n);
        add_lower(&b, s, i, n, c);
    }
    return end_like(&b, s);
}

struct value cases_capitalize(struct interp *in, struct value s)
{
    struct str_builder b;
    str_begin(&b, in);
    for (size_t i = 0, n; i < s.len && in->rc == 0; i += n) {
        int32_t c = str_char(s, i, &n);
        if (i == 0)
            add_mapped(&b, unicode_to_title, c, str_foreign_at(s, i));
        else
            add_lower(&b, s, i, n, c);
    }
    return end_like(&b, s);
}

static bool cased(int32_t c)
{
    return unicode_upper(c) || unicode_lower(c) || unicode_title(c);
}

struct value cases_title(struct interp *in, struct value s)
{
    struct str_builder b;
    bool inside = false;
    str_begin(&b, in);
    for (size_t i = 0, n; i < s.len && in->rc == 0; i += n) {
        int32_t c = str_char(s, i, &n);
        if (inside)
            add_lower(&b, s, i, n, c);
        else
            add_mapped(&b, unicode_to_title, c, str_foreign_at(s, i));
        inside = cased(c);
    }
    return end_like(&b, s);
}

struct value cases_swap(struct interp *in, struct value s)
{
    struct str_builder b;
    str_begin(&b, in);
    for (size_t i = 0, n; i < s.len && in->rc == 0; i += n) {
        int32_t c = str_char(s, i, &n);
        if (unicode_upper(c))
            add_lower(&b, s, i, n, c);
        else if (unicode_lower(c))
            add_mapped(&b, unicode_to_upper, c, str_foreign_at(s, i));
        else
            str_add_char(&b, c, str_foreign_at(s, i));
    }
    return end_like(&b, s);
}

static bool all_of_case(struct interp *in, struct value s, bool (*right)(int32_t),
                        bool (*wrong)(int32_t))
{
    bool some = false;
    if (!interp_kinds(in, s.len)) return false;
    for (size_t i = 0, n; i < s.len; i += n) {
        int32_t c = str_char(s, i, &n);
        if (wrong(c) || unicode_title(c)) return false;
        some = some || right(c);
    }
    return some;
}

bool cases_is_lower(struct interp *in, struct value s)
{
    return all_of_case(in, s, unicode_lower, unicode_upper);
}

bool cases_is_upper(struct interp *in, struct value s)
{
    return all_of_case(in, s, unicode_upper, unicode_lower);
}

/* An empty `old` is found before every character and at the end. */
struct value cases_replace(struct interp *in, struct value s, struct value old, struct value new,
                           int64_t most)
{
    struct str_builder b;
    size_t at = 0;
    str_begin(&b, in);
    if (!interp_bytes(in, s.len)) return s;
    for (; most != 0 && in->rc == 0; most--) {
        size_t found = str_find(s, old, at), n;
        if (found == SIZE_MAX || !interp_step(in, 1)) break;
        str_add_part(&b, s, at, found);
        str_add_value(&b, new);
        at = found + old.len;
        if (old.len > 0) continue;
        if (at >= s.len) break;
        (void)str_char(s, at, &n);
        str_add_part(&b, s, at, at + n);
        at += n;
    }
    str_add_part(&b, s, at, s.len);
    return str_end(&b);
}

struct list *cases_lines(struct interp *in, struct value s, bool keep_ends)
{
    struct list *l = list_new(in, 0);
    size_t from = 0;
    if (!interp_kinds(in, s.len)) return l;
    for (size_t i = 0, n; i < s.len && in->rc == 0; i += n) {
        int32_t c = str_char(s, i, &n);
        if (!unicode_line_end(c)) continue;
        if (c == '\r' && i + 1 < s.len && s.text[i + 1] == '\n') n = 2;
        if (!interp_step(in, 1)) break;
        list_add(in, l, str_part(s, from, keep_ends ? i + n : i));
        from = i + n;
    }
    if (from < s.len) list_add(in, l, str_part(s, from, s.len));
    return l;
}

struct value cases_pad(struct interp *in, struct value s, int64_t n, struct value fill, bool left,
                       bool right)
{
    struct str_builder b;
    if (!interp_bytes(in, s.len)) return s;
    int64_t have = (int64_t)str_chars(s);
    if (n <= have) return s;
    int64_t pad = n - have, before = left ? pad : 0;
    if (left && right) before = pad / 2 + (pad & n & 1); /* as Python's center */
    str_begin(&b, in);
    for (int64_t i = 0; i < before && interp_step(in, 1); i++) str_add_value(&b, fill);
    str_add_value(&b, s);
    for (int64_t i = before; i < pad && interp_step(in, 1); i++) str_add_value(&b, fill);
    return end_like(&b, s);
}

/* ---- numbers ---- */

#define NUMBER_BYTES_MAX 400

/* Without white space around it and underscores between digits, NUL-terminated. */
static bool plain(struct interp *in, struct value s, char to[NUMBER_BYTES_MAX + 1])
{
    size_t n = 0, len;
    s = str_strip(in, s, value_none(), true, true);
    if (s.len == 0 || s.len > NUMBER_BYTES_MAX) return false;
    for (size_t i = 0; i < s.len; i++) {
        if ((uint8_t)s.text[i] >= 0x80 && unicode_decimal(str_char(s, i, &len)))
            interp_fail(in, ERR_UNSUPPORTED, "digits of another script in a number");
        if (s.text[i] == '_') {
            bool between = i > 0 && i + 1 < s.len && strchr("_+-.", s.text[i - 1]) == NULL &&
                           strchr("_+-.", s.text[i + 1]) == NULL;
            if (!between) return false;
            continue;
        }
        if (s.text[i] <= ' ' || (uint8_t)s.text[i] >= 0x80) return false;
        to[n++] = s.text[i];
    }
    to[n] = 0;
    return true;
}

bool cases_to_int(struct interp *in, struct value s, int base, int64_t *ret)
{
    char text[NUMBER_BYTES_MAX + 1], *end, *digits = text;
    if (!plain(in, s, text)) return false;
    bool minus = text[0] == '-';
    if (text[0] == '-' || text[0] == '+') digits++;
    char kind = digits[0] == '0' ? (char)(digits[1] | 0x20) : 0;
    if ((base == 16 && kind == 'x') || (base == 8 && kind == 'o') || (base == 2 && kind == 'b'))
        digits += 2;
    /* strtoll takes a sign or prefix of its own, Python none behind the first */
    if (*digits == '-' || *digits == '+' || *digits == 0) return false;
    if (digits[0] == '0' && base == 16 && (digits[1] | 0x20) == 'x') return false;
    errno = 0;
    int64_t v = strtoll(digits, &end, base);
    if (*end || end == digits) return false;
    if (errno) interp_fail(in, ERR_LIMIT, "an integer is beyond 64 bits");
    *ret = minus ? -v : v;
    return true;
}

bool cases_to_float(struct interp *in, struct value s, double *ret)
{
    char text[NUMBER_BYTES_MAX + 1], *end;
    if (!plain(in, s, text) || strpbrk(text, "xX("))
        return false; /* strtod takes more than Python */
    *ret = strtod(text, &end);
    return *end == 0 && end != text;
}
