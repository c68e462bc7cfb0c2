/* Filters that make text of what they get. */
#include "common/text/jinja/interp.h"
#include "common/text/jinja/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static struct value name(struct interp *in, struct value v, const struct value *p,             \
                             const struct call_args *a)
#define UNUSED (void)in, (void)p, (void)a

static bool given(struct value v)
{
    return v.type != V_MISSING && v.type != V_NONE;
}

static bool truth(struct interp *in, struct value v)
{
    return v.type != V_MISSING && value_true(in, v);
}

static bool want_int(struct interp *in, struct value v, int64_t none, int64_t *ret)
{
    *ret = none;
    if (v.type == V_MISSING || value_integer(v, ret)) return true;
    if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
    interp_fail(in, ERR_RANGE, "an integer is wanted, not a '%s'", value_type_name(v));
    return false;
}

FILTER(upper)
{
    UNUSED;
    return cases_upper(in, repr_str(in, v));
}

FILTER(lower)
{
    UNUSED;
    return cases_lower(in, repr_str(in, v));
}

FILTER(capitalize)
{
    UNUSED;
    return cases_capitalize(in, repr_str(in, v));
}

static bool between_words(int32_t c)
{
    return unicode_space(c) || (c > 0 && c < 0x80 && strchr("-({[<", c));
}

/* What stands between words is cased like a word, which changes nothing. */
FILTER(title)
{
    UNUSED;
    struct str_builder b;
    struct value s = repr_str(in, v);
    str_begin(&b, in);
    for (size_t at = 0, end, n; at < s.len && interp_step(in, 1); at = end) {
        bool between = between_words(str_char(s, at, &n));
        size_t rest = at + n;
        for (end = rest; end < s.len && between_words(str_char(s, end, &n)) == between;) end += n;
        str_add_value(&b, cases_upper(in, str_part(s, at, rest)));
        str_add_value(&b, cases_lower(in, str_part(s, rest, end)));
    }
    return str_end(&b);
}

FILTER(trim)
{
    UNUSED;
    struct value s = repr_str(in, v);
    if (given(p[0]) && p[0].type != V_STRING) interp_fail(in, ERR_RANGE, "trim() wants a string");
    return str_strip(in, s, given(p[0]) ? p[0] : value_none(), true, true);
}

FILTER(string)
{
    UNUSED;
    return repr_str(in, v);
}

FILTER(safe)
{
    UNUSED;
    v = repr_str(in, v);
    v.markup = true;
    return v;
}

FILTER(escape)
{
    UNUSED;
    return str_escape(in, repr_str(in, v));
}

FILTER(forceescape)
{
    UNUSED;
    v = repr_str(in, v);
    v.markup = false;
    return str_escape(in, v);
}

FILTER(replace)
{
    UNUSED;
    int64_t most;
    if (!want_int(in, p[2].type == V_NONE ? value_of(V_MISSING) : p[2], -1, &most)) return v;
    v = cases_replace(in, repr_str(in, v), repr_str(in, p[0]), repr_str(in, p[1]), most);
    v.markup = false;
    return v;
}

FILTER(center)
{
    UNUSED;
    int64_t n;
    if (!want_int(in, p[0], 80, &n)) return v;
    return cases_pad(in, repr_str(in, v), n, value_text(" ", 1), true, true);
}

static struct value joined(struct interp *in, struct value a, struct value b)
{
    return ops_binary(in, OP_ADD, a, b); /* minds which of the two is markup */
}

static struct value indention(struct interp *in, struct value width)
{
    int64_t n;
    if (width.type == V_STRING) return width;
    if (!want_int(in, width, 4, &n)) return value_text("", 0);
    return ops_binary(in, OP_MUL, value_text(" ", 1), value_int(n));
}

FILTER(indent)
{
    UNUSED;
    struct value by = indention(in, p[0]), newline = value_text("\n", 1);
    bool first = truth(in, p[1]), blank = truth(in, p[2]);
    if (v.type != V_STRING) {
        if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
        interp_fail(in, ERR_RANGE, "indent() wants a string, not a '%s'", value_type_name(v));
        return v;
    }
    struct str_builder b;
    str_begin(&b, in);
    str_add_value(&b, v);
    str_add_value(&b, newline);
    struct list *lines = cases_lines(in, str_end(&b), false);
    str_begin(&b, in);
    for (size_t i = 0; i < lines->n && interp_step(in, 1); i++) {
        struct value line = lines->items[i];
        if (i > 0) str_add_value(&b, newline);
        if (i == 0 ? first : blank || line.len > 0) str_add_value(&b, by);
        str_add_value(&b, line);
    }
    struct value s = str_end(&b);
    s.markup = v.markup;
    return s;
}

FILTER(truncate)
{
    UNUSED;
    int64_t length, leeway;
    struct value none = value_none(), end = given(p[2]) ? p[2] : value_text("...", 3);
    size_t n = 0;
    if (!want_int(in, p[0], 255, &length) ||
        !want_int(in, p[3].type == V_NONE ? value_of(V_MISSING) : p[3], 5, &leeway))
        return v;
    if (!value_length(in, v, &n) || end.type != V_STRING || length < (int64_t)str_chars(end) ||
        leeway < 0)
        interp_fail(in, ERR_RANGE, "truncate() cannot shorten this so");
    if (in->rc < 0 || (int64_t)n - leeway <= length) return v;
    struct value s = attr_slice(in, v, none, value_int(length - (int64_t)str_chars(end)), none);
    if (!truth(in, p[1]) && s.type == V_STRING) {
        size_t space = str_rfind(in, s, value_text(" ", 1));
        if (space != SIZE_MAX) s = str_part(s, 0, space);
    }
    return joined(in, s, end);
}

FILTER(wordcount)
{
    UNUSED;
    int64_t words = 0;
    bool inside = false;
    struct value s = repr_str(in, v);
    if (!interp_kinds(in, s.len)) return v;
    for (size_t i = 0, n; i < s.len; i += n) {
        bool word = unicode_word(str_char(s, i, &n));
        words += word && !inside;
        inside = word;
    }
    return value_int(words);
}

FILTER(format)
{
    UNUSED;
    if (a->n_pos && a->n_kw)
        interp_fail(in, ERR_RANGE, "format() takes arguments with names or without, not both");
    struct list all = {.items = a->pos, .n = a->n_pos};
    struct dict *d = dict_new(in);
    for (size_t i = 0; i < a->n_kw && in->rc == 0; i++)
        dict_put(in, d, a->kw[i].name, a->kw[i].value);
    struct value what = a->n_kw ? dict_value(d) : list_value(V_TUPLE, &all);
    return format_percent(in, repr_str(in, v), what);
}

FILTER(join)
{
    UNUSED;
    struct str_builder b;
    struct value sep = p[0].type == V_MISSING ? value_text("", 0) : repr_str(in, p[0]);
    const struct list *l = list_walk(in, v);
    str_begin(&b, in);
    for (size_t i = 0; l && i < l->n && interp_step(in, 1); i++) {
        if (i > 0) str_add_value(&b, sep);
        str_add_value(&b, repr_str(in, attr_path(in, l->items[i], p[1], value_none())));
    }
    return str_end(&b);
}

/* Two strings, or an error. */
static void separators(struct interp *in, struct value v, struct json_style *style)
{
    const struct list *l = list_walk(in, v);
    if (!l) return;
    if (l->n == 2 && l->items[0].type == V_STRING && l->items[1].type == V_STRING) {
        style->item_sep = l->items[0];
        style->key_sep = l->items[1];
    } else {
        interp_fail(in, ERR_RANGE, "separators are two strings");
    }
}

FILTER(tojson)
{
    UNUSED;
    int64_t n = 0;
    struct json_style style = {.ascii = truth(in, p[0]), .sort = truth(in, p[3])};
    style.lines = given(p[1]);
    style.item_sep = style.lines ? value_text(",", 1) : value_text(", ", 2);
    style.key_sep = value_text(": ", 2);
    style.indent = value_text("", 0);
    if (style.lines && p[1].type == V_STRING)
        style.indent = p[1];
    else if (style.lines && want_int(in, p[1], 0, &n) && n > 0)
        style.indent = ops_binary(in, OP_MUL, value_text(" ", 1), value_int(n));
    if (given(p[2])) separators(in, p[2], &style);
    return in->rc < 0 ? v : repr_json(in, v, &style);
}

/* ---- numbers ---- */

FILTER(to_int)
{
    UNUSED;
    int64_t base, i = 0;
    double d = 0.0;
    bool is_float = false;
    struct value none = p[0].type == V_MISSING ? value_int(0) : p[0];
    if (!want_int(in, p[1], 10, &base)) return v;
    if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
    if (value_integer(v, &i)) return value_foreign(value_int(i), v.foreign);
    if (v.type == V_STRING) {
        if (base < 2 || base > 36) interp_fail(in, ERR_RANGE, "int() wants a base from 2 to 36");
        if (in->rc < 0) return none;
        if (cases_to_int(in, v, (int)base, &i))
            return value_foreign(value_int(i), str_any_foreign(v));
        is_float = cases_to_float(in, v, &d);
    } else {
        is_float = value_number(v, &d);
        if (is_float && isinf(d)) interp_fail(in, ERR_RANGE, "infinity is no integer");
    }
    if (!is_float || isnan(d) || isinf(d)) return none;
    if (fabs(d) >= 0x1p63) interp_fail(in, ERR_LIMIT, "an integer is beyond 64 bits");
    bool foreign = v.type == V_STRING ? str_any_foreign(v) : v.foreign;
    return in->rc < 0 ? none : value_foreign(value_int((int64_t)d), foreign);
}

FILTER(to_float)
{
    UNUSED;
    double d;
    if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
    if (value_number(v, &d)) return value_foreign(value_float(d), v.foreign);
    if (v.type == V_STRING && cases_to_float(in, v, &d))
        return value_foreign(value_float(d), str_any_foreign(v));
    return p[0].type == V_MISSING ? value_float(0.0) : p[0];
}

FILTER(abs_)
{
    UNUSED;
    double d;
    if (!value_number(v, &d)) {
        if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
        interp_fail(in, ERR_RANGE, "abs() wants a number, not a '%s'", value_type_name(v));
    }
    if (v.type == V_FLOAT) return value_foreign(value_float(fabs(d)), v.foreign);
    return d < 0 && in->rc == 0 ? ops_unary(in, OP_SUB, v) : ops_unary(in, OP_ADD, v);
}

FILTER(round_)
{
    UNUSED;
    int64_t precision;
    double d;
    char text[400];
    struct value how = p[1].type == V_MISSING ? value_text("common", 6) : p[1];
    if (!want_int(in, p[0], 0, &precision)) return v;
    if (!value_number(v, &d) || precision < 0 || precision > 20) {
        if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
        interp_fail(in, ERR_RANGE, "round() wants a number, and a precision from 0 to 20");
        return v;
    }
    if (value_is(how, "common")) {
        if (v.type != V_FLOAT) return ops_unary(in, OP_ADD, v);
        (void)snprintf(text, sizeof text, "%.*f", (int)precision, d);
        return value_foreign(value_float(strtod(text, NULL)), v.foreign);
    }
    double scale = pow(10.0, (double)precision); /* + 0.0: Python's integers have no -0 */
    if (value_is(how, "ceil"))
        return value_foreign(value_float((ceil(d * scale) + 0.0) / scale), v.foreign);
    if (!value_is(how, "floor")) interp_fail(in, ERR_RANGE, "round() is common, ceil or floor");
    return value_foreign(value_float((floor(d * scale) + 0.0) / scale), v.foreign);
}

const struct filter_def filters_text[] = {
    {"abs", "", abs_},
    {"capitalize", "", capitalize},
    {"center", "width?", center},
    {"e", "", escape},
    {"escape", "", escape},
    {"filesizeformat", NULL, NULL},
    {"float", "default?", to_float},
    {"forceescape", "", forceescape},
    {"format", NULL, format},
    {"indent", "width? first? blank?", indent},
    {"int", "default? base?", to_int},
    {"join", "d? attribute?", join},
    {"lower", "", lower},
    {"pprint", NULL, NULL},
    {"replace", "old new count?", replace},
    {"round", "precision? method?", round_},
    {"safe", "", safe},
    {"string", "", string},
    {"striptags", NULL, NULL},
    {"title", "", title},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", tojson},
    {"trim", "chars?", trim},
    {"truncate", "length? killwords? end? leeway?", truncate},
    {"upper", "", upper},
    {"urlencode", NULL, NULL},
    {"urlize", NULL, NULL},
    {"wordcount", "", wordcount},
    {"wordwrap", NULL, NULL},
    {"xmlattr", NULL, NULL},
    {0}};
