/* The methods of strings. */
#include "common/text/jinja/interp.h"
#include "common/text/jinja/unicode.h"

#include <string.h>

#define METHOD(name)                                                                               \
    static struct value name(struct interp *in, struct value s, const struct value *p,             \
                             const struct call_args *a)
#define UNUSED (void)in, (void)p, (void)a

static bool given(struct value v)
{
    return v.type != V_MISSING && v.type != V_NONE;
}

static bool want_string(struct interp *in, struct value v)
{
    if (v.type == V_STRING) return true;
    if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
    interp_fail(in, ERR_RANGE, "a string is wanted, not a '%s'", value_type_name(v));
    return false;
}

static bool want_int(struct interp *in, struct value v, int64_t none, int64_t *ret)
{
    *ret = none;
    if (v.type == V_MISSING || value_integer(v, ret)) return true;
    if (v.type == V_UNDEFINED || v.type == V_UNSAFE) interp_undefined(in, v);
    interp_fail(in, ERR_RANGE, "an integer is wanted, not a '%s'", value_type_name(v));
    return false;
}

static bool truth(struct interp *in, struct value v)
{
    return v.type != V_MISSING && value_true(in, v);
}

/* ---- cases ---- */

METHOD(upper)
{
    UNUSED;
    return cases_upper(in, s);
}

METHOD(lower)
{
    UNUSED;
    return cases_lower(in, s);
}

METHOD(capitalize)
{
    UNUSED;
    return cases_capitalize(in, s);
}

METHOD(title)
{
    UNUSED;
    return cases_title(in, s);
}

METHOD(swapcase)
{
    UNUSED;
    return cases_swap(in, s);
}

/* ---- ends ---- */

static struct value strip_ends(struct interp *in, struct value s, const struct value *p, bool left,
                               bool right)
{
    if (given(p[0]) && !want_string(in, p[0])) return s;
    return str_strip(in, s, given(p[0]) ? p[0] : value_none(), left, right);
}

METHOD(strip)
{
    UNUSED;
    return strip_ends(in, s, p, true, true);
}

METHOD(lstrip)
{
    UNUSED;
    return strip_ends(in, s, p, true, false);
}

METHOD(rstrip)
{
    UNUSED;
    return strip_ends(in, s, p, false, true);
}

static bool ends_with(struct value s, struct value what)
{
    return s.len >= what.len && str_begins(s, s.len - what.len, what);
}

METHOD(removeprefix)
{
    UNUSED;
    bool has = want_string(in, p[0]) && str_begins(s, 0, p[0]);
    return has ? str_part(s, p[0].len, s.len) : s;
}

METHOD(removesuffix)
{
    UNUSED;
    bool has = want_string(in, p[0]) && p[0].len && ends_with(s, p[0]);
    return has ? str_part(s, 0, s.len - p[0].len) : s;
}

/* The part of s from character p[1] to p[2], where they are given; *ret_from is its first. False:
 * it begins beyond the end of s, where not even an empty string is found. */
static bool range_of(struct interp *in, struct value *s, const struct value *p, size_t *ret_from)
{
    *ret_from = 0;
    if (!given(p[1]) && !given(p[2])) return in->rc == 0;
    struct value none = value_none(), start = given(p[1]) ? p[1] : none;
    int64_t from = 0, n = (int64_t)str_chars(*s);
    if (start.type != V_NONE && !want_int(in, start, 0, &from)) return false;
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (from > n) return false;
    *s = attr_slice(in, *s, start, given(p[2]) ? p[2] : none, none);
    *ret_from = (size_t)from;
    return in->rc == 0;
}

static struct value at_end(struct interp *in, struct value s, const struct value *p, bool end)
{
    size_t from;
    struct list one = {.items = (struct value *)p, .n = 1};
    struct list *all = p[0].type == V_TUPLE ? p[0].list : &one;
    if (!range_of(in, &s, p, &from)) return value_bool(false);
    for (size_t i = 0; i < all->n && interp_step(in, 1); i++) {
        if (!want_string(in, all->items[i])) break;
        if (end ? ends_with(s, all->items[i]) : str_begins(s, 0, all->items[i]))
            return value_bool(true);
    }
    return value_bool(false);
}

METHOD(startswith)
{
    UNUSED;
    return at_end(in, s, p, false);
}

METHOD(endswith)
{
    UNUSED;
    return at_end(in, s, p, true);
}

/* ---- looking for something ---- */

static int64_t found_at(struct interp *in, struct value s, const struct value *p, bool right)
{
    size_t from;
    if (!want_string(in, p[0]) || !interp_bytes(in, s.len) || !range_of(in, &s, p, &from))
        return -1;
    size_t at = right ? str_rfind(in, s, p[0]) : str_find(s, p[0], 0);
    return at == SIZE_MAX ? -1 : (int64_t)(from + str_chars(str_part(s, 0, at)));
}

METHOD(find)
{
    UNUSED;
    return value_int(found_at(in, s, p, false));
}

METHOD(rfind)
{
    UNUSED;
    return value_int(found_at(in, s, p, true));
}

static struct value index_of(struct interp *in, struct value s, const struct value *p, bool right)
{
    int64_t at = found_at(in, s, p, right);
    if (at < 0) interp_fail(in, ERR_RANGE, "a string is not found in another");
    return value_int(at);
}

METHOD(index_)
{
    UNUSED;
    return index_of(in, s, p, false);
}

METHOD(rindex_)
{
    UNUSED;
    return index_of(in, s, p, true);
}

METHOD(count)
{
    UNUSED;
    int64_t n = 0;
    size_t from;
    if (!want_string(in, p[0]) || !interp_bytes(in, s.len) || !range_of(in, &s, p, &from))
        return value_int(0);
    if (p[0].len == 0) return value_int((int64_t)str_chars(s) + 1);
    for (size_t at = 0; (at = str_find(s, p[0], at)) != SIZE_MAX && interp_step(in, 1); n++)
        at += p[0].len;
    return value_int(n);
}

METHOD(replace)
{
    UNUSED;
    int64_t most;
    if (!want_string(in, p[0]) || !want_string(in, p[1]) || !want_int(in, p[2], -1, &most))
        return s;
    return cases_replace(in, s, p[0], s.markup ? str_escape(in, p[1]) : p[1], most);
}

/* ---- cutting and joining ---- */

static struct list *reversed(struct interp *in, const struct list *l)
{
    struct list *r = list_new(in, l->n);
    for (size_t i = l->n; i > 0 && in->rc == 0; i--) list_add(in, r, l->items[i - 1]);
    return r;
}

/* At white space; what is left after `most` cuts stays whole. */
static struct list *split_space(struct interp *in, struct value s, int64_t most)
{
    struct list *l = list_new(in, 0);
    s = str_strip(in, s, value_none(), true, false);
    for (size_t at = 0, n; at < s.len && interp_step(in, 1);) {
        if (most-- == 0) {
            list_add(in, l, str_part(s, at, s.len));
            break;
        }
        size_t end = at;
        while (end < s.len && !unicode_space(str_char(s, end, &n))) end += n;
        list_add(in, l, str_part(s, at, end));
        while (end < s.len && unicode_space(str_char(s, end, &n))) end += n;
        at = end;
    }
    return l;
}

static struct list *rsplit_space(struct interp *in, struct value s, int64_t most)
{
    struct list *words = split_space(in, s, -1), *l = list_new(in, 0);
    if (most < 0 || (int64_t)words->n - 1 <= most) return words;
    size_t keep = words->n - (size_t)most; /* the words of the first piece */
    struct value last = words->items[keep - 1];
    list_add(in, l, str_part(s, 0, (size_t)(last.text + last.len - s.text)));
    for (size_t i = keep; i < words->n; i++) list_add(in, l, words->items[i]);
    return l;
}

static struct list *split_at(struct interp *in, struct value s, struct value sep, int64_t most,
                             bool right)
{
    struct list *l = list_new(in, 0);
    while (most != 0 && interp_step(in, 1)) {
        size_t at = right ? str_rfind(in, s, sep) : str_find(s, sep, 0);
        if (at == SIZE_MAX) break;
        most--;
        list_add(in, l, right ? str_part(s, at + sep.len, s.len) : str_part(s, 0, at));
        s = right ? str_part(s, 0, at) : str_part(s, at + sep.len, s.len);
    }
    list_add(in, l, s);
    return right ? reversed(in, l) : l;
}

static struct value split_either(struct interp *in, struct value s, const struct value *p,
                                 bool right)
{
    int64_t most;
    struct list *l;
    if (!want_int(in, p[1], -1, &most) || !interp_kinds(in, s.len)) return s;
    if (most < 0) most = -1; /* counting down from the least integer would overflow */
    if (!given(p[0])) {
        l = right ? rsplit_space(in, s, most) : split_space(in, s, most);
        return list_value(V_LIST, l);
    }
    if (!want_string(in, p[0])) return s;
    if (p[0].len == 0) {
        interp_fail(in, ERR_RANGE, "the separator is empty");
        return s;
    }
    return list_value(V_LIST, split_at(in, s, p[0], most, right));
}

METHOD(split)
{
    UNUSED;
    return split_either(in, s, p, false);
}

METHOD(rsplit)
{
    UNUSED;
    return split_either(in, s, p, true);
}

METHOD(splitlines)
{
    UNUSED;
    return list_value(V_LIST, cases_lines(in, s, truth(in, p[0])));
}

static struct value part_in_three(struct interp *in, struct value s, struct value sep, bool right)
{
    struct list *l = list_new(in, 3);
    struct value empty = str_part(s, 0, 0);
    if (!want_string(in, sep) || !interp_bytes(in, s.len)) return s;
    if (sep.len == 0) interp_fail(in, ERR_RANGE, "the separator is empty");
    size_t at = right ? str_rfind(in, s, sep) : str_find(s, sep, 0);
    if (at == SIZE_MAX) {
        list_add(in, l, right ? empty : s);
        list_add(in, l, empty);
        list_add(in, l, right ? s : empty);
    } else {
        list_add(in, l, str_part(s, 0, at));
        list_add(in, l, str_part(s, at, at + sep.len));
        list_add(in, l, str_part(s, at + sep.len, s.len));
    }
    return list_value(V_TUPLE, l);
}

METHOD(partition)
{
    UNUSED;
    return part_in_three(in, s, p[0], false);
}

METHOD(rpartition)
{
    UNUSED;
    return part_in_three(in, s, p[0], true);
}

METHOD(join)
{
    UNUSED;
    struct str_builder b;
    const struct list *l = list_walk(in, p[0]);
    str_begin(&b, in);
    for (size_t i = 0; l && i < l->n && interp_step(in, 1); i++) {
        if (!want_string(in, l->items[i])) break;
        if (i > 0) str_add_value(&b, s);
        str_add_value(&b, s.markup ? str_escape(in, l->items[i]) : l->items[i]);
    }
    return str_end(&b);
}

/* ---- padding ---- */

static struct value padded(struct interp *in, struct value s, const struct value *p, bool left,
                           bool right)
{
    int64_t n;
    struct value fill = given(p[1]) ? p[1] : value_text(" ", 1);
    if (!want_int(in, p[0], 0, &n) || !want_string(in, fill)) return s;
    if (str_chars(fill) != 1) interp_fail(in, ERR_RANGE, "what is filled with is one character");
    return cases_pad(in, s, n, s.markup ? str_escape(in, fill) : fill, left, right);
}

METHOD(center)
{
    UNUSED;
    return padded(in, s, p, true, true);
}

METHOD(ljust)
{
    UNUSED;
    return padded(in, s, p, false, true);
}

METHOD(rjust)
{
    UNUSED;
    return padded(in, s, p, true, false);
}

METHOD(zfill)
{
    UNUSED;
    int64_t n;
    struct value zero = value_text("0", 1);
    bool sign = s.len && (s.text[0] == '+' || s.text[0] == '-');
    if (!want_int(in, p[0], 0, &n)) return s;
    if (n < 0) n = 0;
    if (!sign) return cases_pad(in, s, n, zero, true, false);
    return str_concat(in, str_part(s, 0, 1),
                      cases_pad(in, str_part(s, 1, s.len), n - 1, zero, true, false));
}

/* ---- what it is made of ---- */

static bool alnum(int32_t c)
{
    return unicode_alpha(c) || unicode_numeric(c);
}

static bool ascii(int32_t c)
{
    return c < 0x80;
}

static struct value all_are(struct interp *in, struct value s, bool (*is)(int32_t), bool of_none)
{
    bool right = interp_kinds(in, s.len) && (s.len > 0 || of_none);
    for (size_t i = 0, n; i < s.len && right; i += n) right = is(str_char(s, i, &n));
    return value_bool(right);
}

METHOD(isalnum_)
{
    UNUSED;
    return all_are(in, s, alnum, false);
}

METHOD(isalpha_)
{
    UNUSED;
    return all_are(in, s, unicode_alpha, false);
}

METHOD(isascii_)
{
    UNUSED;
    return all_are(in, s, ascii, true);
}

METHOD(isdecimal)
{
    UNUSED;
    return all_are(in, s, unicode_decimal, false);
}

METHOD(isnumeric)
{
    UNUSED;
    return all_are(in, s, unicode_numeric, false);
}

METHOD(isprintable)
{
    UNUSED;
    return all_are(in, s, unicode_printable, true);
}

METHOD(isspace_)
{
    UNUSED;
    return all_are(in, s, unicode_space, false);
}

METHOD(islower_)
{
    UNUSED;
    return value_bool(cases_is_lower(in, s));
}

METHOD(isupper_)
{
    UNUSED;
    return value_bool(cases_is_upper(in, s));
}

METHOD(format)
{
    UNUSED;
    return format_braces(in, s, a);
}

const struct method_def methods_str[] = {{"capitalize", "", capitalize},
                                         {"casefold", "", NULL},
                                         {"center", "width fillchar?", center},
                                         {"count", "sub start? end?", count},
                                         {"encode", NULL, NULL},
                                         {"endswith", "suffix start? end?", endswith},
                                         {"expandtabs", NULL, NULL},
                                         {"find", "sub start? end?", find},
                                         {"format", NULL, format},
                                         {"format_map", NULL, NULL},
                                         {"index", "sub start? end?", index_},
                                         {"isalnum", "", isalnum_},
                                         {"isalpha", "", isalpha_},
                                         {"isascii", "", isascii_},
                                         {"isdecimal", "", isdecimal},
                                         {"isdigit", "", isdecimal}, /* superscripts apart */
                                         {"isidentifier", NULL, NULL},
                                         {"islower", "", islower_},
                                         {"isnumeric", "", isnumeric},
                                         {"isprintable", "", isprintable},
                                         {"isspace", "", isspace_},
                                         {"istitle", NULL, NULL},
                                         {"isupper", "", isupper_},
                                         {"join", "iterable", join},
                                         {"ljust", "width fillchar?", ljust},
                                         {"lower", "", lower},
                                         {"lstrip", "chars?", lstrip},
                                         {"maketrans", NULL, NULL},
                                         {"partition", "sep", partition},
                                         {"removeprefix", "prefix", removeprefix},
                                         {"removesuffix", "suffix", removesuffix},
                                         {"replace", "old new count?", replace},
                                         {"rfind", "sub start? end?", rfind},
                                         {"rindex", "sub start? end?", rindex_},
                                         {"rjust", "width fillchar?", rjust},
                                         {"rpartition", "sep", rpartition},
                                         {"rsplit", "sep? maxsplit?", rsplit},
                                         {"rstrip", "chars?", rstrip},
                                         {"split", "sep? maxsplit?", split},
                                         {"splitlines", "keepends?", splitlines},
                                         {"startswith", "prefix start? end?", startswith},
                                         {"strip", "chars?", strip},
                                         {"swapcase", "", swapcase},
                                         {"title", "", title},
                                         {"translate", NULL, NULL},
                                         {"upper", "", upper},
                                         {"zfill", "width", zfill},
                                         {0}};
