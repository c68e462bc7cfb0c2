/* Strings, arrays and objects of a schema. */
#include "common/base/mem.h"
#include "common/base/utf8.h"
#include "common/text/grammar_chars.h"
#include "common/text/regex.h"
#include "common/text/schema_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROPERTIES_MAX 1024u

/* ---- strings ---- */

#define DATE "\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\\d|2[0-8])" /* days that each month has */
#define TIME "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,4}"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", "^(" BYTE "\\.){3}" BYTE "$"},
    {"hostname", "^" HOST "$"},
    {"email", "^[a-z0-9_+-]{1,32}(\\.[a-z0-9_+-]{1,32}){0,3}@" HOST "$"},
    {"uri", "^https?://" HOST "(:[1-9]\\d{0,3})?(/[A-Za-z0-9._~-]{0,64}){0,8}$"},
};

/* Of a pattern, or of a format's; NULL: there is none. */
static const char *pattern_of(struct schema *s, const struct json *j, size_t *ret_n)
{
    const struct json *pattern = json_get(j, "pattern"), *format = json_get(j, "format");
    const char *text = NULL;
    if (pattern && format) (void)schema__unsupported(s, "format", "beside 'pattern'");
    if (pattern && !json_as_string(pattern, &text, ret_n))
        (void)schema__wrong(s, "pattern", "a text");
    if (pattern || !format) return text;
    if (!json_as_string(format, &text, ret_n)) {
        (void)schema__wrong(s, "format", "a text");
        return NULL;
    }
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, text) == 0) {
            *ret_n = strlen(formats[i].pattern);
            return formats[i].pattern;
        }
    char what[64];
    (void)snprintf(what, sizeof what, "'%.50s'", text);
    (void)schema__unsupported(s, "format", what);
    return NULL;
}

gnode schema__string(struct schema *s, const struct json *j)
{
    uint32_t min, max;
    size_t n = 0;
    if (!schema__count(s, j, "minLength", 0, &min) ||
        !schema__count(s, j, "maxLength", GRAMMAR_NO_MAX, &max))
        return GRAMMAR_NONE;
    const char *pattern = pattern_of(s, j, &n);
    if (s->rc < 0 || max < min) return GRAMMAR_NONE;
    gnode quote = schema__text(s, "\""), any = schema__character(s), body = GRAMMAR_NONE;
    if (!pattern) {
        body = grammar_repeat(s->t, any, min, max);
    } else {
        struct errmsg em = {0};
        int rc = regex_build(s->t, pattern, n, any, min, max == GRAMMAR_NO_MAX ? REGEX_NO_MAX : max,
                             &body, &em);
        if (rc < 0 && s->rc == 0)
            s->rc =
                err_set(s->em, rc, "the schema at '%s': %s", s->path[0] ? s->path : "/", em.text);
    }
    return grammar_seq(s->t, quote, grammar_seq(s->t, body, quote));
}

/* ---- arrays ---- */

/* The items that prefixItems names, and behind them others; all as one list. */
static gnode tuple(struct schema *s, const struct json *prefix, gnode item, uint32_t min,
                   uint32_t max)
{
    size_t n = 0;
    char key[40];
    gnode comma = grammar_seq(s->t, schema__text(s, ","), schema_space(s));
    gnode end = grammar_seq(s->t, schema_space(s), schema__text(s, "]"));
    if (!json_count(prefix, &n) || n > PROPERTIES_MAX)
        return schema__wrong(s, "prefixItems", "a list of at most 1024 schemas");
    if (item == GRAMMAR_NONE && min > n) return GRAMMAR_NONE;
    /* From the last to the first: what may come from item i on, if there are i already. */
    uint32_t more_max = max == GRAMMAR_NO_MAX ? max : max > n ? max - (uint32_t)n : 0;
    gnode more =
        grammar_repeat(s->t, grammar_seq(s->t, comma, item), min > n ? min - (uint32_t)n : 0,
                       item == GRAMMAR_NONE ? 0 : more_max);
    gnode rest = grammar_seq(s->t, more, end);
    for (size_t i = n; i-- > 0;) {
        (void)snprintf(key, sizeof key, "prefixItems/%zu", i);
        gnode one = schema__node(s, key, json_at(prefix, i));
        gnode here =
            i >= max ? GRAMMAR_NONE
                     : grammar_seq(s->t, i ? comma : schema_space(s), grammar_seq(s->t, one, rest));
        rest = i >= min ? grammar_alt(s->t, here, end) : here;
    }
    return grammar_seq(s->t, schema__text(s, "["), rest);
}

gnode schema__array(struct schema *s, const struct json *j)
{
    const struct json *items = json_get(j, "items"), *prefix = json_get(j, "prefixItems");
    uint32_t min, max;
    bool unique = false;
    size_t n;
    if (!schema__count(s, j, "minItems", 0, &min) ||
        !schema__count(s, j, "maxItems", GRAMMAR_NO_MAX, &max))
        return GRAMMAR_NONE;
    if (json_as_bool(json_get(j, "uniqueItems"), &unique) && unique && max > 1)
        return schema__unsupported(s, "uniqueItems", "");
    if (json_count(items, &n))
        return schema__unsupported(s, "items", "as a list (see prefixItems)");
    if (max < min) return GRAMMAR_NONE;
    gnode item = items ? schema__node(s, "items", items) : schema__value(s);
    bool none = prefix && json_count(prefix, &n) && n == 0;
    if (prefix && !none) return tuple(s, prefix, item, min, max);
    if (item == GRAMMAR_NONE && s->rc == 0) max = 0;
    return max < min ? GRAMMAR_NONE : schema__list(s, '[', item, min, max, ']');
}

/* ---- objects ---- */

struct property {
    const char *name;
    size_t bytes;
    gnode pair; /* name, colon, value */
    bool required;
};

struct properties {
    struct property *items; /* n */
    size_t n;
};

/* The quoted form of a name, without its quotation marks. */
static struct buf quoted(const char *name, size_t bytes)
{
    struct json *list = json_new_array();
    struct buf text = {0};
    json_add_string(list, name, bytes);
    json_write_exact(list, &text); /* ["name"] */
    json_free(list);
    buf_drop(&text, 2);
    text.len -= 2;
    return text;
}

gnode schema__pair(struct schema *s, const char *name, size_t bytes, gnode value)
{
    struct buf text = quoted(name, bytes);
    const gnode all[] = {schema__text(s, "\""), grammar_text(s->t, text.data, text.len),
                         schema__text(s, "\":"), schema_space(s), value};
    buf_close(&text);
    return grammar_seqs(s->t, all, 5);
}

static bool is_required(const struct json *list, size_t n, const char *name, size_t bytes)
{
    const char *text;
    size_t len;
    for (size_t i = 0; i < n; i++)
        if (json_as_string(json_at(list, i), &text, &len) && len == bytes &&
            memcmp(text, name, len) == 0)
            return true;
    return false;
}

/* What is named in `properties`, and what in `required` only. */
static void read_properties(struct schema *s, const struct json *j, gnode others,
                            struct properties *ret)
{
    const struct json *all = json_get(j, "properties"), *required = json_get(j, "required"), *v;
    const char *key;
    size_t n, n_required = 0;
    char at[80];
    if (all && json_kind(all) != JSON_KIND_OBJECT)
        (void)schema__wrong(s, "properties", "an object");
    if (required && !json_count(required, &n_required))
        (void)schema__wrong(s, "required", "a list of names");
    size_t n_all = json_kind(all) == JSON_KIND_OBJECT ? json_n_members(all) : 0;
    if (n_all + n_required > PROPERTIES_MAX)
        (void)schema__unsupported(s, "properties", "of more than 1024 names");
    if (s->rc < 0) return;
    ret->items = mem_zalloc((n_all + n_required + 1) * sizeof *ret->items);
    for (void *i = NULL; n_all && json_next(all, &i, &key, &n, &v);) {
        (void)snprintf(at, sizeof at, "properties/%.60s", key);
        gnode value = schema__node(s, at, v);
        bool needed = is_required(required, n_required, key, n);
        /* One that nothing is valid for stays: it is none of the other names. */
        ret->items[ret->n++] = (struct property){key, n, schema__pair(s, key, n, value), needed};
    }
    for (size_t i = 0; i < n_required && s->rc == 0; i++) {
        if (!json_as_string(json_at(required, i), &key, &n)) {
            (void)schema__wrong(s, "required", "a list of names");
        } else if (!json_get(all, key) && !is_required(required, i, key, n)) {
            ret->items[ret->n++] = (struct property){key, n, schema__pair(s, key, n, others), true};
        }
    }
}

/* ---- names other than those ---- */

static int by_name(const void *a, const void *b)
{
    const struct property *x = a, *y = b;
    int c = memcmp(x->name, y->name, x->bytes < y->bytes ? x->bytes : y->bytes);
    return c ? c : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The rest of a name, and its quotation mark, that is none of p[0..n) behind their first d bytes,
 * in which they agree. A name leaves them with a character that stands as it is. */
static gnode other_rest(struct schema *s, const struct property *p, size_t n, size_t d)
{
    struct grammar_chars others = {.n = 0};
    gnode quote = schema__text(s, "\""), all = GRAMMAR_NONE;
    if (schema__is_over(s)) return GRAMMAR_NONE;
    if (s->nesting++ >= 500)
        return schema__unsupported(s, "additionalProperties", "with such names");
    size_t i = n && p[0].bytes == d ? 1 : 0;
    if (i == 0) all = quote;
    grammar_chars_add(&others, 0, 0x1f);
    grammar_chars_add(&others, '"', '"');
    grammar_chars_add(&others, '\\', '\\');
    while (i < n) {
        size_t from = i, len = utf8_char(p[i].name + d, p[i].bytes - d, NULL);
        int32_t c = 0;
        (void)utf8_char(p[i].name + d, p[i].bytes - d, &c);
        while (i < n && p[i].bytes >= d + len && memcmp(p[i].name + d, p[from].name + d, len) == 0)
            i++;
        struct buf text = quoted(p[from].name + d, len);
        grammar_chars_add(&others, (uint32_t)c, (uint32_t)c);
        gnode branch = grammar_seq(s->t, grammar_text(s->t, text.data, text.len),
                                   other_rest(s, p + from, i - from, d + len));
        all = grammar_alt(s->t, branch, all);
        buf_close(&text);
    }
    grammar_chars_negate(&others);
    if (others.full) (void)schema__unsupported(s, "additionalProperties", "with such names");
    gnode any = grammar_repeat(s->t, schema__character(s), 0, GRAMMAR_NO_MAX);
    gnode leaves =
        grammar_seq(s->t, grammar_class(s->t, others.r, others.n), grammar_seq(s->t, any, quote));
    s->nesting--;
    return grammar_alt(s->t, leaves, all);
}

static gnode other_pair(struct schema *s, const struct properties *p, gnode value)
{
    struct property *sorted = mem_alloc((p->n + 1) * sizeof *sorted);
    memcpy(sorted, p->items, p->n * sizeof *sorted);
    qsort(sorted, p->n, sizeof *sorted, by_name);
    const gnode all[] = {schema__text(s, "\""), other_rest(s, sorted, p->n, 0),
                         schema__text(s, ":"), schema_space(s), value};
    mem_free(sorted);
    return grammar_seqs(s->t, all, 5);
}

/* ---- the object ---- */

/* Only names that are free: any number of them from min to max. */
static gnode free_object(struct schema *s, const struct json *j, gnode value)
{
    const struct properties none = {0};
    uint32_t min, max;
    if (!schema__count(s, j, "minProperties", 0, &min) ||
        !schema__count(s, j, "maxProperties", GRAMMAR_NO_MAX, &max))
        return GRAMMAR_NONE;
    if (min > 1) return schema__unsupported(s, "minProperties", "above 1 without names");
    if (value == GRAMMAR_NONE) max = 0;
    if (max < min) return GRAMMAR_NONE;
    return schema__list(s, '{', other_pair(s, &none, value), min, max, '}');
}

/* For each property, from the last to the first, two rules: `next` is all from its name on, `rest`
 * what follows where some property stands already. */
static gnode named_object(struct schema *s, const struct properties *p, gnode others)
{
    struct grammar_tree *t = s->t;
    gnode comma = grammar_seq(t, schema__text(s, ","), schema_space(s));
    gnode end = grammar_seq(t, schema_space(s), schema__text(s, "}"));
    gnode next = GRAMMAR_NONE, rest = end;
    bool may_end = true; /* nothing behind here is required */
    if (others != GRAMMAR_NONE) {
        uint32_t rule = grammar_rule(t);
        rest = grammar_ref(t, rule);
        next = grammar_seq(t, other_pair(s, p, others), rest);
        uint32_t again = grammar_rule(t);
        grammar_define(t, again, next);
        next = grammar_ref(t, again);
        grammar_define(t, rule, grammar_alt(t, grammar_seq(t, comma, next), end));
    }
    for (size_t i = p->n; i-- > 0;) {
        if (p->items[i].pair == GRAMMAR_NONE && !p->items[i].required) continue;
        uint32_t rule = grammar_rule(t);
        gnode one = grammar_seq(t, p->items[i].pair, rest);
        grammar_define(t, rule, p->items[i].required ? one : grammar_alt(t, one, next));
        may_end &= !p->items[i].required;
        next = grammar_ref(t, rule);
        rule = grammar_rule(t);
        gnode goes_on = grammar_seq(t, comma, next);
        grammar_define(t, rule, may_end ? grammar_alt(t, goes_on, end) : goes_on);
        rest = grammar_ref(t, rule);
    }
    gnode begin = grammar_seq(t, schema__text(s, "{"), schema_space(s));
    gnode none = schema__text(s, "}");
    return grammar_seq(t, begin, may_end ? grammar_alt(t, next, none) : next);
}

gnode schema__object(struct schema *s, const struct json *j)
{
    const struct json *additional = json_get(j, "additionalProperties");
    const struct json *named = json_get(j, "properties");
    struct properties p = {0};
    gnode value = GRAMMAR_NONE, is = GRAMMAR_NONE;
    if (additional) value = schema__node(s, "additionalProperties", additional);
    if (!additional && !named) value = schema__value(s);
    read_properties(s, j, additional ? value : schema__value(s), &p);
    if (p.n && (json_get(j, "minProperties") || json_get(j, "maxProperties")))
        (void)schema__unsupported(
            s, json_get(j, "minProperties") ? "minProperties" : "maxProperties", "beside names");
    if (s->rc == 0) is = p.n ? named_object(s, &p, value) : free_object(s, j, value);
    mem_free(p.items);
    return is;
}
