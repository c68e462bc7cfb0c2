/* Values as text: Python's str() and repr(), and JSON as json.dumps() writes it. */
#include "common/text/jinja/interp.h"
#include "common/text/jinja/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

/* The digits and the exponent of the shortest decimal number that reads back as d, finite and not
 * 0: 0.d1d2d3... x 10^point. */
static size_t shortest(double d, char digits[20], int *ret_point)
{
    char text[40];
    int precision = 1;
    for (; precision <= 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision - 1, d);
        if (strtod(text, NULL) == d) break;
    }
    char *e = strchr(text, 'e');
    size_t n = 0;
    for (char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0') n--;
    *ret_point = atoi(e + 1) + 1;
    return n;
}

size_t repr_double(double d, char to[40])
{
    char digits[20];
    int point;
    if (isnan(d)) return (size_t)snprintf(to, 40, "nan");
    if (isinf(d)) return (size_t)snprintf(to, 40, "%sinf", d < 0 ? "-" : "");
    if (d == 0.0) return (size_t)snprintf(to, 40, "%s0.0", signbit(d) ? "-" : "");
    size_t n = shortest(fabs(d), digits, &point), at = 0;
    if (d < 0) to[at++] = '-';
    if (point > 16 || point < -3) {
        to[at++] = digits[0];
        if (n > 1) to[at++] = '.';
        for (size_t i = 1; i < n; i++) to[at++] = digits[i];
        return at +
               (size_t)snprintf(to + at, 40 - at, "e%c%02d", point > 0 ? '+' : '-', abs(point - 1));
    }
    if (point <= 0) {
        to[at++] = '0';
        to[at++] = '.';
        for (int i = point; i < 0; i++) to[at++] = '0';
        for (size_t i = 0; i < n; i++) to[at++] = digits[i];
        return at;
    }
    for (int i = 0; i < point; i++) to[at++] = (size_t)i < n ? digits[i] : '0';
    to[at++] = '.';
    for (size_t i = (size_t)point; i < n; i++) to[at++] = digits[i];
    if (n <= (size_t)point) to[at++] = '0';
    return at;
}

/* ---- repr ---- */

static void add(struct str_builder *b, const char *text)
{
    str_add(b, text, strlen(text), true);
}

static void add_hex(struct str_builder *b, const char *format, uint32_t c)
{
    char text[16];
    (void)snprintf(text, sizeof text, format, c);
    add(b, text);
}

static void repr_string(struct str_builder *b, struct value s)
{
    bool single = memchr(s.text, '\'', s.len) != NULL, twice = memchr(s.text, '"', s.len) != NULL;
    char quote = single && !twice ? '"' : '\'';
    if (s.markup) add(b, "Markup(");
    str_add(b, &quote, 1, true);
    for (size_t i = 0, n; i < s.len && b->in->rc == 0; i += n) {
        int32_t c = str_char(s, i, &n);
        if (c == quote || c == '\\') add(b, "\\");
        if (c == '\n' || c == '\r' || c == '\t')
            add(b, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (unicode_printable(c))
            str_add(b, s.text + i, n, true);
        else
            add_hex(b, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (uint32_t)c);
    }
    str_add(b, &quote, 1, true);
    if (s.markup) add(b, ")");
}

static void repr_to(struct str_builder *b, struct value v);

static void repr_list(struct str_builder *b, struct value v)
{
    static const char *const views[] = {"dict_keys([", "dict_values([", "dict_items(["};
    bool tuple = v.type == V_TUPLE;
    add(b, tuple ? "(" : v.type == V_VIEW ? views[v.of] : "[");
    for (size_t i = 0; i < v.list->n && interp_step(b->in, 1); i++) {
        if (i > 0) add(b, ", ");
        repr_to(b, v.list->items[i]);
    }
    add(b, tuple ? v.list->n == 1 ? ",)" : ")" : v.type == V_VIEW ? "])" : "]");
}

static void repr_dict(struct str_builder *b, const struct dict *d)
{
    add(b, "{");
    for (uint32_t i = 0; i < d->n && interp_step(b->in, 1); i++) {
        if (i > 0) add(b, ", ");
        repr_to(b, d->entries[i].key);
        add(b, ": ");
        repr_to(b, d->entries[i].value);
    }
    add(b, "}");
}

static void repr_to(struct str_builder *b, struct value v)
{
    char text[40];
    struct interp *in = b->in;
    if (!interp_enter(in)) v.type = V_NONE;
    switch (v.type) {
    case V_UNDEFINED:
    case V_UNSAFE: add(b, "Undefined"); break;
    case V_NONE: add(b, "None"); break;
    case V_BOOL: add(b, v.truth ? "True" : "False"); break;
    case V_INT:
        str_add(b, text, (size_t)snprintf(text, sizeof text, "%" PRId64, v.integer), true);
        break;
    case V_FLOAT: str_add(b, text, repr_double(v.real, text), true); break;
    case V_STRING: repr_string(b, v); break;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW: repr_list(b, v); break;
    case V_DICT: repr_dict(b, v.dict); break;
    case V_NAMESPACE:
        add(b, "<Namespace ");
        repr_dict(b, v.dict);
        add(b, ">");
        break;
    default:
        interp_fail(in, ERR_UNSUPPORTED, "a '%s' as text is not supported", value_type_name(v));
    }
    interp_leave(in);
}

struct value repr_repr(struct interp *in, struct value v)
{
    struct str_builder b;
    str_begin(&b, in);
    repr_to(&b, v);
    return str_end(&b);
}

struct value repr_str(struct interp *in, struct value v)
{
    char text[40];
    size_t n;
    switch (v.type) {
    case V_STRING: return v;
    case V_UNDEFINED:
    case V_UNSAFE: return value_text("", 0);
    case V_NONE: return value_text("None", 4);
    case V_BOOL: return v.truth ? value_text("True", 4) : value_text("False", 5);
    case V_INT:
        n = (size_t)snprintf(text, sizeof text, "%" PRId64, v.integer);
        return str_copy(in, text, n, v.foreign);
    case V_FLOAT: return str_copy(in, text, repr_double(v.real, text), v.foreign);
    default: return repr_repr(in, v);
    }
}

/* ---- JSON ---- */

static void json_text(struct str_builder *b, struct value s, bool ascii)
{
    static const char what[] = "\"\\\n\r\t\f\b";
    static const char *const as[] = {"\\\"", "\\\\", "\\n", "\\r", "\\t", "\\f", "\\b"};
    size_t plain = 0; /* from here on characters stay as they are */
    add(b, "\"");
    for (size_t i = 0, n; i < s.len && b->in->rc == 0; i += n) {
        int32_t c = str_char(s, i, &n);
        const char *p = c > 0 && c < 0x80 ? strchr(what, c) : NULL;
        if (!p && c >= 0x20 && !(ascii && c >= 0x7f)) continue;
        str_add(b, s.text + plain, i - plain, true);
        plain = i + n;
        if (p) {
            add(b, as[p - what]);
        } else if (c < 0x10000) {
            add_hex(b, "\\u%04x", (uint32_t)c);
        } else {
            add_hex(b, "\\u%04x", 0xd800 + ((uint32_t)(c - 0x10000) >> 10));
            add_hex(b, "\\u%04x", 0xdc00 + ((uint32_t)(c - 0x10000) & 0x3ff));
        }
    }
    str_add(b, s.text + plain, s.len - plain, true);
    add(b, "\"");
}

static void json_number(struct str_builder *b, struct value v)
{
    char text[40];
    if (v.type == V_INT)
        str_add(b, text, (size_t)snprintf(text, sizeof text, "%" PRId64, v.integer), true);
    else if (isnan(v.real))
        add(b, "NaN");
    else if (isinf(v.real))
        add(b, v.real < 0 ? "-Infinity" : "Infinity");
    else
        str_add(b, text, repr_double(v.real, text), true);
}

static void json_line(struct str_builder *b, const struct json_style *style, uint32_t level)
{
    if (!style->lines) return;
    add(b, "\n");
    for (uint32_t i = 0; i < level && interp_step(b->in, 1); i++)
        str_add(b, style->indent.text, style->indent.len, true);
}

static void json_value(struct str_builder *b, struct value v, const struct json_style *style,
                       uint32_t level);

static void json_list(struct str_builder *b, const struct list *l, const struct json_style *style,
                      uint32_t level)
{
    add(b, "[");
    for (size_t i = 0; i < l->n && interp_step(b->in, 1); i++) {
        if (i > 0) str_add(b, style->item_sep.text, style->item_sep.len, true);
        json_line(b, style, level + 1);
        json_value(b, l->items[i], style, level + 1);
    }
    if (l->n) json_line(b, style, level);
    add(b, "]");
}

/* A key that is no string is written as one. */
static void json_key(struct str_builder *b, struct value key, const struct json_style *style)
{
    if (key.type == V_STRING) {
        json_text(b, key, style->ascii);
        return;
    }
    add(b, "\"");
    if (key.type == V_INT || key.type == V_FLOAT)
        json_number(b, key);
    else if (key.type == V_BOOL)
        add(b, key.truth ? "true" : "false");
    else if (key.type == V_NONE)
        add(b, "null");
    else
        interp_fail(b->in, ERR_RANGE, "a '%s' cannot be a key in JSON", value_type_name(key));
    add(b, "\"");
}

static void json_dict(struct str_builder *b, const struct dict *d, const struct json_style *style,
                      uint32_t level)
{
    struct list *keys = dict_list(b->in, d, DICT_KEYS), *items = dict_list(b->in, d, DICT_ITEMS);
    if (style->sort) list_sort(b->in, items, keys, false);
    add(b, "{");
    for (size_t i = 0; i < items->n && interp_step(b->in, 1); i++) {
        if (i > 0) str_add(b, style->item_sep.text, style->item_sep.len, true);
        json_line(b, style, level + 1);
        json_key(b, items->items[i].list->items[0], style);
        str_add(b, style->key_sep.text, style->key_sep.len, true);
        json_value(b, items->items[i].list->items[1], style, level + 1);
    }
    if (items->n) json_line(b, style, level);
    add(b, "}");
}

static void json_value(struct str_builder *b, struct value v, const struct json_style *style,
                       uint32_t level)
{
    if (!interp_enter(b->in)) v.type = V_NONE;
    switch (v.type) {
    case V_NONE: add(b, "null"); break;
    case V_BOOL: add(b, v.truth ? "true" : "false"); break;
    case V_INT:
    case V_FLOAT: json_number(b, v); break;
    case V_STRING: json_text(b, v, style->ascii); break;
    case V_LIST:
    case V_TUPLE: json_list(b, v.list, style, level); break;
    case V_DICT: json_dict(b, v.dict, style, level); break;
    default: interp_fail(b->in, ERR_RANGE, "a '%s' has no form in JSON", value_type_name(v));
    }
    interp_leave(b->in);
}

struct value repr_json(struct interp *in, struct value v, const struct json_style *style)
{
    struct str_builder b;
    str_begin(&b, in);
    json_value(&b, v, style, 0);
    return str_end(&b);
}
