/* Formatting: `text % values` and `text.format(values)`, as far as Python's formats are text,
 * integers and floating-point numbers. What the format says itself has its origin, what is put in
 * has that of the value. */
#include "common/text/jinja/interp.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH_MAX 1000 /* of a field, and digits of a number */

struct spec {
    char fill[4];
    size_t fill_len;
    char align; /* < > ^ = or 0 */
    bool zeros; /* a 0 before the width: the fill, and without an align '=' of numbers */
    char sign;  /* + - space or 0 */
    bool alternate, comma;
    int64_t width, precision; /* -1: not given */
    char type;                /* 0: none */
};

static const struct spec no_spec = {.fill = " ", .fill_len = 1, .width = -1, .precision = -1};

static struct value bad(struct interp *in, const char *why)
{
    interp_fail(in, ERR_RANGE, "a format: %s", why);
    return value_none();
}

static struct value pad(struct interp *in, struct value s, const struct spec *f, char align)
{
    struct value fill = value_text(f->fill, f->fill_len);
    if (f->align) align = f->align;
    if (f->width < 0) return s;
    if (align == '=') { /* between the sign and the digits */
        bool sign = s.len && strchr("+- ", s.text[0]);
        return str_concat(
            in, str_part(s, 0, sign),
            cases_pad(in, str_part(s, sign, s.len), f->width - sign, fill, true, false));
    }
    if (align == '^') { /* the odd one is on the right, always, unlike in center() */
        int64_t have = (int64_t)str_chars(s), all = f->width > have ? f->width - have : 0;
        s = cases_pad(in, s, have + all / 2, fill, true, false);
    }
    return cases_pad(in, s, f->width, fill, align == '>', align != '>');
}

/* Groups of three digits before the point. */
static void add_commas(char *text, size_t size)
{
    size_t begin = text[0] == '-' || text[0] == '+' || text[0] == ' ', n = begin;
    while (text[n] >= '0' && text[n] <= '9') n++;
    for (size_t at = n; at > begin + 3 && strlen(text) + 2 < size;) {
        at -= 3;
        memmove(text + at + 1, text + at, strlen(text + at) + 1);
        text[at] = ',';
    }
}

static void put_sign(char *text, char sign)
{
    if (text[0] == '-' || (sign != '+' && sign != ' ')) return;
    memmove(text + 1, text, strlen(text) + 1);
    text[0] = sign;
}

#define DIGITS_MAX 70 /* of an integer: 64 in binary, and a few zeros before them */

static struct value format_int(struct interp *in, int64_t i, const struct spec *f, bool foreign)
{
    char text[128], digits[DIGITS_MAX];
    size_t n = 0;
    if (f->precision > DIGITS_MAX) return bad(in, "too many digits");
    uint64_t rest = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    unsigned base = f->type == 'x' || f->type == 'X' ? 16
                    : f->type == 'o'                 ? 8
                    : f->type == 'b'                 ? 2
                                                     : 10;
    const char *set = f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    do digits[n++] = set[rest % base];
    while ((rest /= base) > 0);
    while ((int64_t)n < f->precision) digits[n++] = '0';
    size_t at = 0;
    if (i < 0) text[at++] = '-';
    if (f->alternate && base != 10) {
        text[at++] = '0';
        text[at++] = f->type;
    }
    while (n > 0) text[at++] = digits[--n];
    text[at] = 0;
    if (f->comma) add_commas(text, sizeof text);
    put_sign(text, f->sign);
    return pad(in, str_copy(in, text, strlen(text), foreign), f, '>');
}

#define FLOAT_BYTES (WIDTH_MAX + 500) /* 309 digits, 102 commas, and those behind the point */

/* 'g' of Python is that of C; without a type it is repr's digits. */
static struct value format_float(struct interp *in, double d, const struct spec *f, bool foreign)
{
    char text[FLOAT_BYTES], c[8] = "%.*";
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    bool percent = f->type == '%';
    if (f->alternate) return bad(in, "'#' of a number with a point");
    if (f->type == 0 && f->precision >= 0) return bad(in, "digits behind the point without a type");
    if (f->precision > WIDTH_MAX) return bad(in, "too many digits");
    c[3] = percent ? 'f' : f->type;
    c[4] = 0;
    if (f->type == 0)
        text[repr_double(d, text)] = 0;
    else
        (void)snprintf(text, sizeof text, c, precision, percent ? d * 100.0 : d);
    if (percent) strcat(text, "%");
    if (f->comma) add_commas(text, sizeof text);
    put_sign(text, f->sign);
    return pad(in, str_copy(in, text, strlen(text), foreign), f, '>');
}

static struct value format_text(struct interp *in, struct value s, const struct spec *f)
{
    if (f->precision >= 0 && in->rc == 0)
        s = attr_slice(in, s, value_none(), value_int(f->precision), value_none());
    return in->rc < 0 ? s : pad(in, s, f, '<');
}

/* ---- % ---- */

/* A number that is as good as any other beyond WIDTH_MAX. False: there is none at *at. */
static bool number_at(struct value s, size_t *at, int64_t *ret)
{
    size_t begin = *at;
    for (*ret = 0; *at < s.len && s.text[*at] >= '0' && s.text[*at] <= '9'; ++*at)
        *ret = *ret > WIDTH_MAX ? *ret : *ret * 10 + (s.text[*at] - '0');
    return *at > begin;
}

/* Flags, width and precision behind a %; *at is left at the type. */
static void percent_spec(struct value s, size_t *at, struct spec *f)
{
    bool left = false, zero = false;
    int64_t n;
    for (; *at < s.len && s.text[*at] && strchr("-+ #0", s.text[*at]); ++*at) {
        char c = s.text[*at];
        left = left || c == '-';
        zero = zero || c == '0';
        f->alternate = f->alternate || c == '#';
        if (c == '+' || (c == ' ' && f->sign != '+')) f->sign = c;
    }
    if (number_at(s, at, &n)) f->width = n;
    if (*at < s.len && s.text[*at] == '.') {
        ++*at;
        (void)number_at(s, at, &f->precision); /* none is 0 */
    }
    while (*at < s.len && s.text[*at] && strchr("hlL", s.text[*at])) ++*at;
    f->align = left ? '<' : '>';
    if (zero && !left) {
        f->fill[0] = '0';
        f->align = '=';
    }
}

static struct value percent_one(struct interp *in, char type, struct value v, struct spec *f,
                                bool markup)
{
    double d;
    int64_t i;
    if (f->width > WIDTH_MAX || f->precision > WIDTH_MAX) return bad(in, "a field is too wide");
    if (type == 's' || type == 'r') {
        struct value s = type == 's' ? repr_str(in, v) : repr_repr(in, v);
        f->fill[0] = ' ';
        if (f->align == '=') f->align = '>';
        return format_text(in, markup ? str_escape(in, s) : s, f);
    }
    if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
    if (!type || !strchr("diuxXofFeEgGc", type)) return bad(in, "an unknown type");
    if (type == 'c') {
        if (v.type != V_STRING || str_chars(v) != 1) return bad(in, "%c wants a character");
        return format_text(in, v, f);
    }
    if (!value_number(v, &d)) return bad(in, "a number is wanted");
    f->type = type == 'i' || type == 'u' ? 'd' : type;
    if (strchr("diuxXo", type)) {
        if (v.type == V_FLOAT && (!strchr("diu", type) || !(fabs(d) < 0x1p63)))
            return bad(in, "an integer is wanted");
        i = v.type == V_FLOAT ? (int64_t)d : 0;
        if (v.type != V_FLOAT) (void)value_integer(v, &i);
        return format_int(in, i, f, v.foreign);
    }
    return format_float(in, d, f, v.foreign);
}

/* The value of a field: the next one, or of the name in parentheses. */
static struct value percent_value(struct interp *in, struct value s, size_t *at, struct value what,
                                  size_t *used)
{
    if (*at < s.len && s.text[*at] == '(') {
        size_t end = str_find(s, value_text(")", 1), *at);
        if (end == SIZE_MAX || what.type != V_DICT) return bad(in, "a name needs a dictionary");
        const struct value *v = dict_get(in, what.dict, str_part(s, *at + 1, end));
        *at = end + 1;
        *used = SIZE_MAX;
        return v ? *v : bad(in, "there is no value of that name");
    }
    return value_of(V_MISSING);
}

struct value format_percent(struct interp *in, struct value s, struct value what)
{
    struct list one = {.items = &what, .n = 1};
    const struct list *all = what.type == V_TUPLE ? what.list : &one;
    size_t used = 0, plain = 0;
    struct str_builder b;
    str_begin(&b, in);
    for (size_t at = 0; at < s.len && interp_step(in, 1);) {
        const char *p = memchr(s.text + at, '%', s.len - at);
        if (!p) break;
        size_t from = (size_t)(p - s.text);
        struct spec f = no_spec;
        str_add_part(&b, s, plain, from);
        at = from + 1;
        if (at < s.len && s.text[at] == '%') { /* with anything between them Python fails */
            str_add_part(&b, s, at, at + 1);
            plain = ++at;
            continue;
        }
        struct value v = percent_value(in, s, &at, what, &used);
        percent_spec(s, &at, &f);
        if (at >= s.len) return bad(in, "it ends within a field");
        char type = s.text[at++];
        plain = at;
        if (v.type == V_MISSING && used < all->n)
            v = all->items[used++];
        else if (v.type == V_MISSING)
            return bad(in, "there are too few values");
        str_add_value(&b, in->rc < 0 ? s : percent_one(in, type, v, &f, s.markup));
    }
    bool has_items = what.type == V_DICT || what.type == V_LIST || what.type == V_RANGE ||
                     what.type == V_UNDEFINED || what.type == V_UNSAFE; /* as far as Python sees */
    if (used < all->n && !has_items && in->rc == 0) return bad(in, "there are too many values");
    str_add_part(&b, s, plain, s.len);
    struct value v = str_end(&b);
    v.markup = s.markup;
    return v;
}

/* ---- format() ---- */

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static bool brace_spec(struct value s, struct spec *f)
{
    size_t at = 0, n = 0;
    int64_t v;
    bool filled = false;
    if (s.len) (void)str_char(s, 0, &n);
    if (s.len > n && strchr("<>^=", s.text[n]) && s.text[n]) {
        memcpy(f->fill, s.text, n);
        f->fill_len = n;
        f->align = s.text[n];
        filled = true;
        at = n + 1;
    } else if (s.len && s.text[0] && strchr("<>^=", s.text[0])) {
        f->align = s.text[at++];
    }
    if (at < s.len && s.text[at] && strchr("+- ", s.text[at])) f->sign = s.text[at++];
    if (at < s.len && s.text[at] == '#') f->alternate = ++at;
    if (at < s.len && s.text[at] == '0' && !filled) {
        f->fill[0] = '0';
        f->zeros = ++at;
    }
    if (number_at(s, &at, &v)) f->width = v;
    if (at < s.len && s.text[at] == ',') f->comma = ++at;
    if (at < s.len && s.text[at] == '.') {
        at++;
        if (!number_at(s, &at, &f->precision)) return false;
    }
    if (at < s.len) f->type = s.text[at++];
    return at == s.len && f->width <= WIDTH_MAX && f->precision <= WIDTH_MAX;
}

static struct value brace_value(struct interp *in, struct value v, struct value spec)
{
    struct spec f = no_spec;
    double d;
    int64_t i;
    if (!brace_spec(spec, &f)) return bad(in, "a field's format is not understood");
    if (v.type == V_STRING) {
        if (f.type && f.type != 's') return bad(in, "a number is wanted");
        if (f.sign || f.alternate || f.comma || f.align == '=')
            return bad(in, "what a text takes no part in");
        return format_text(in, v, &f);
    }
    if (spec.len == 0) return repr_str(in, v);
    if (!value_number(v, &d)) return bad(in, "this value takes no format");
    if (f.zeros && !f.align) f.align = '=';
    if (f.comma && f.align == '=' && f.fill[0] == '0')
        return bad(in, "commas among zeros that fill");
    if (f.comma && f.type && strchr("xXob", f.type)) return bad(in, "commas in this type");
    if ((!f.type || strchr("dxXob", f.type)) && value_integer(v, &i)) {
        if (f.precision >= 0) return bad(in, "an integer has no digits behind the point");
        return format_int(in, i, &f, v.foreign);
    }
    if ((f.type && strchr("fFeEgG%", f.type)) || (f.type == 0 && v.type == V_FLOAT))
        return format_float(in, d, &f, v.foreign);
    return bad(in, "a type that does not go with this value");
}

/* "name.a[b]" or "0" or "", looked up among the arguments. */
static struct value brace_lookup(struct interp *in, struct value field, const struct call_args *a,
                                 int64_t *next)
{
    size_t end = 0, at = 0;
    int64_t i;
    struct value v = value_of(V_MISSING);
    while (end < field.len && field.text[end] != '.' && field.text[end] != '[') end++;
    struct value name = str_part(field, 0, end);
    if (name.len == 0 || (number_at(name, &at, &i) && at == name.len)) {
        if (name.len && i > WIDTH_MAX) return bad(in, "there is no value for a field");
        if ((name.len == 0) != (*next >= 0) && *next != 0)
            return bad(in, "fields with numbers and without");
        if (name.len == 0) i = (*next)++;
        if (name.len) *next = -1;
        if ((size_t)i < a->n_pos) v = a->pos[i];
    } else {
        for (size_t k = 0; k < a->n_kw; k++)
            if (value_equal(in, a->kw[k].name, name)) v = a->kw[k].value;
    }
    if (v.type == V_MISSING) return bad(in, "there is no value for a field");
    for (at = end; at < field.len && in->rc == 0; at = end) {
        bool item = field.text[at] == '[';
        end = ++at;
        while (end < field.len &&
               (item ? field.text[end] != ']' : field.text[end] != '.' && field.text[end] != '['))
            end++;
        struct value part = str_part(field, at, end);
        size_t k = 0;
        bool number = item && number_at(part, &k, &i) && k == part.len;
        if (number && i > WIDTH_MAX) return bad(in, "a number of an item that is too large");
        v = item ? attr_item(in, v, number ? value_int(i) : part) : attr_get(in, v, part);
        end += item && end < field.len;
    }
    return v;
}

/* What stands between braces. */
static struct value brace_field(struct interp *in, struct value s, const struct call_args *a,
                                int64_t *next)
{
    size_t colon = str_find(s, value_text(":", 1), 0), mark;
    struct value spec = value_text("", 0), name = s;
    if (colon != SIZE_MAX) {
        spec = str_part(s, colon + 1, s.len);
        name = str_part(s, 0, colon);
    }
    mark = str_find(name, value_text("!", 1), 0);
    struct value v = brace_lookup(in, mark == SIZE_MAX ? name : str_part(name, 0, mark), a, next);
    if (mark != SIZE_MAX && in->rc == 0) {
        struct value how = str_part(name, mark + 1, name.len);
        if (!value_is(how, "r") && !value_is(how, "s")) return bad(in, "an unknown conversion");
        v = value_is(how, "r") ? repr_repr(in, v) : repr_str(in, v);
    }
    if (str_find(spec, value_text("{", 1), 0) != SIZE_MAX) {
        interp_fail(in, ERR_UNSUPPORTED, "a format within a format is not supported");
        return v;
    }
    return in->rc < 0 ? v : brace_value(in, v, spec);
}

struct value format_braces(struct interp *in, struct value s, const struct call_args *a)
{
    struct str_builder b;
    int64_t next = 0; /* the next field without a number; -1: fields have numbers */
    str_begin(&b, in);
    for (size_t at = 0; at < s.len && interp_step(in, 1);) {
        char c = s.text[at];
        if (c != '{' && c != '}') {
            size_t end = at;
            while (end < s.len && s.text[end] != '{' && s.text[end] != '}') end++;
            str_add_part(&b, s, at, end);
            at = end;
        } else if (at + 1 < s.len && s.text[at + 1] == c) {
            str_add_part(&b, s, at, at + 1);
            at += 2;
        } else {
            size_t end = str_find(s, value_text("}", 1), at);
            if (c == '}' || end == SIZE_MAX) return bad(in, "braces that do not go together");
            struct value v = brace_field(in, str_part(s, at + 1, end), a, &next);
            if (in->rc < 0) return v;
            str_add_value(&b, s.markup ? str_escape(in, v) : v);
            at = end + 1;
        }
    }
    struct value v = str_end(&b);
    v.markup = s.markup;
    return v;
}
