#include "common/text/jinja/str.h"

#include "common/base/utf8.h"
#include "common/text/jinja/interp.h"
#include "common/text/jinja/unicode.h"

#include <string.h>

#define BYTES_MAX ((size_t)1 << 30)

/* ---- building ---- */

void str_begin(struct str_builder *b, struct interp *in)
{
    *b = (struct str_builder){.in = in};
}

static bool grow(struct str_builder *b, size_t n)
{
    if (b->cap - b->len >= n) return b->in->rc == 0;
    if (n > BYTES_MAX || b->len > BYTES_MAX - n) {
        interp_fail(b->in, ERR_LIMIT, "a string is longer than %zu bytes", BYTES_MAX);
        return false;
    }
    size_t cap = b->cap ? 2 * b->cap : 32;
    while (cap < b->len + n) cap *= 2;
    char *data = interp_alloc(b->in, cap);
    uint8_t *marks = b->marks && data ? interp_alloc(b->in, cap) : NULL;
    if (!data || (b->marks && !marks)) return false;
    if (b->len) memcpy(data, b->data, b->len);
    if (b->marks) memcpy(marks, b->marks, b->len);
    b->data = data;
    b->marks = marks;
    b->cap = cap;
    return true;
}

/* Room for n bytes more, and for their marks where the string has bytes of both origins then. */
static bool ready(struct str_builder *b, size_t n, bool mixed)
{
    if (!interp_bytes(b->in, n) || !grow(b, n)) return false;
    if (!mixed || b->marks) return true;
    b->marks = interp_alloc(b->in, b->cap);
    if (!b->marks) return false;
    memset(b->marks, b->foreign, b->len);
    return true;
}

void str_add(struct str_builder *b, const char *text, size_t n, bool foreign)
{
    if (n == 0 || !ready(b, n, b->len > 0 && foreign != b->foreign)) return;
    if (b->len == 0) b->foreign = foreign;
    memcpy(b->data + b->len, text, n);
    if (b->marks) memset(b->marks + b->len, foreign, n);
    b->len += n;
}

void str_add_part(struct str_builder *b, struct value s, size_t from, size_t to)
{
    if (from >= to) return;
    if (!s.marks) {
        str_add(b, s.text + from, to - from, s.foreign);
        return;
    }
    if (!ready(b, to - from, true)) return;
    memcpy(b->data + b->len, s.text + from, to - from);
    memcpy(b->marks + b->len, s.marks + from, to - from);
    b->len += to - from;
}

void str_add_value(struct str_builder *b, struct value s)
{
    str_add_part(b, s, 0, s.len);
}

void str_add_char(struct str_builder *b, int32_t c, bool foreign)
{
    char to[4];
    str_add(b, to, unicode_encode(c, to), foreign);
}

struct value str_end(struct str_builder *b)
{
    struct value v = value_text(b->len ? b->data : "", b->len);
    v.foreign = b->foreign;
    v.marks = b->marks;
    return v;
}

struct value str_copy(struct interp *in, const char *text, size_t n, bool foreign)
{
    struct str_builder b;
    str_begin(&b, in);
    str_add(&b, text, n, foreign);
    return str_end(&b);
}

/* ---- parts and sums ---- */

struct value str_part(struct value s, size_t from, size_t to)
{
    s.text += from;
    s.len = (uint32_t)(to - from);
    s.room = s.room && from == 0;
    if (s.marks) s.marks += from;
    return s;
}

/* Where templates build a text by appending, each result begins a block with room behind it, so
 * that the next append needs no copy. The bytes before `used` never change: strings share them. */
struct room {
    size_t used, cap;
    uint8_t *marks;
    char data[];
};

#define ROOM_LEAST 256

static struct room *room_of(struct value s)
{
    return (struct room *)(void *)(uintptr_t)(s.text - offsetof(struct room, data));
}

static struct room *room_new(struct interp *in, struct value s, size_t more)
{
    size_t cap = 2 * ((size_t)s.len + more);
    struct room *r = interp_alloc(in, sizeof *r + 2 * cap);
    if (!r) return NULL;
    r->used = s.len;
    r->cap = cap;
    r->marks = (uint8_t *)r->data + cap;
    memcpy(r->data, s.text, s.len);
    if (s.marks)
        memcpy(r->marks, s.marks, s.len);
    else
        memset(r->marks, s.foreign, s.len);
    return interp_bytes(in, s.len) ? r : NULL;
}

struct value str_concat(struct interp *in, struct value a, struct value b)
{
    struct str_builder s;
    if (b.len == 0) return a;
    if (a.len == 0) return b;
    if ((size_t)a.len + b.len < ROOM_LEAST || (size_t)a.len + b.len > BYTES_MAX / 4) {
        str_begin(&s, in);
        str_add_value(&s, a);
        str_add_value(&s, b);
        return str_end(&s);
    }
    struct room *r = a.room ? room_of(a) : NULL;
    if (!r || r->used != a.len || r->cap - r->used < b.len) r = room_new(in, a, b.len);
    if (!r || !interp_bytes(in, b.len)) return value_text("", 0);
    memcpy(r->data + a.len, b.text, b.len);
    if (b.marks)
        memcpy(r->marks + a.len, b.marks, b.len);
    else
        memset(r->marks + a.len, b.foreign, b.len);
    r->used += b.len;
    struct value v = value_text(r->data, r->used);
    v.room = true;
    v.marks = r->marks;
    if (!a.marks && !b.marks && a.foreign == b.foreign) {
        v.marks = NULL;
        v.foreign = a.foreign;
    }
    return v;
}

bool str_foreign_at(struct value s, size_t i)
{
    return s.marks ? s.marks[i] : s.foreign;
}

bool str_any_foreign(struct value s)
{
    return s.len > 0 && (s.marks ? memchr(s.marks, 1, s.len) != NULL : s.foreign);
}

/* ---- characters ---- */

int32_t str_char(struct value s, size_t i, size_t *ret_bytes)
{
    int32_t c = 0xfffd;
    if ((uint8_t)s.text[i] < 0x80) {
        *ret_bytes = 1;
        return s.text[i];
    }
    *ret_bytes = utf8_char(s.text + i, s.len - i, &c);
    if (*ret_bytes == 0) *ret_bytes = 1; /* cannot be: strings are valid */
    return c;
}

size_t str_chars(struct value s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) n += ((uint8_t)s.text[i] & 0xc0) != 0x80;
    return n;
}

size_t str_byte_of(struct value s, size_t i)
{
    size_t at = 0;
    for (; at < s.len; at++)
        if (((uint8_t)s.text[at] & 0xc0) != 0x80 && i-- == 0) break;
    return at;
}

bool str_begins(struct value s, size_t at, struct value what)
{
    return s.len - at >= what.len && memcmp(s.text + at, what.text, what.len) == 0;
}

size_t str_find(struct value s, struct value what, size_t from)
{
    if (from > s.len) return SIZE_MAX;
    const char *p = memmem(s.text + from, s.len - from, what.text, what.len);
    return p ? (size_t)(p - s.text) : SIZE_MAX;
}

size_t str_rfind(struct interp *in, struct value s, struct value what)
{
    if (what.len > s.len) return SIZE_MAX;
    if (what.len == 0) return s.len;
    for (size_t at = s.len - what.len + 1; at-- > 0;) {
        if (s.text[at] != what.text[0]) continue;
        if (!interp_bytes(in, what.len)) break;
        if (str_begins(s, at, what)) return at;
    }
    return SIZE_MAX;
}

static bool is_in(int32_t c, struct value chars)
{
    if (chars.type != V_STRING) return unicode_space(c);
    for (size_t i = 0, n; i < chars.len; i += n)
        if (str_char(chars, i, &n) == c) return true;
    return false;
}

struct value str_strip(struct interp *in, struct value s, struct value chars, bool left, bool right)
{
    size_t from = 0, to = s.len, n, looks = chars.type == V_STRING ? chars.len : 1;
    if (!interp_bytes(in, s.len * looks)) return s;
    while (left && from < to && is_in(str_char(s, from, &n), chars)) from += n;
    while (right && to > from) {
        size_t at = to - 1;
        while (at > from && ((uint8_t)s.text[at] & 0xc0) == 0x80) at--;
        if (!is_in(str_char(s, at, &n), chars)) break;
        to = at;
    }
    return str_part(s, from, to);
}

struct value str_escape(struct interp *in, struct value s)
{
    static const char what[] = "&<>\"'";
    static const char *const as[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    struct str_builder b;
    if (s.markup) return s;
    str_begin(&b, in);
    for (size_t i = 0; i < s.len; i++) {
        const char *p = s.text[i] ? strchr(what, s.text[i]) : NULL;
        if (p)
            str_add(&b, as[p - what], strlen(as[p - what]), str_foreign_at(s, i));
        else
            str_add_part(&b, s, i, i + 1);
    }
    s = str_end(&b);
    s.markup = true;
    return s;
}
