#include "common/text/schema.h"

#include "common/base/mem.h"
#include "common/text/grammar_chars.h"
#include "common/text/schema_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFS_MAX 1024u
#define VALUES_MAX 4096u        /* of an enum */
#define COMPARED_MAX (2u << 20) /* looks at values and names, to tell schemas of `oneOf` apart */

/* ---- errors ---- */

static const char *place(const struct schema *s)
{
    return s->path[0] ? s->path : "/";
}

gnode schema__unsupported(struct schema *s, const char *keyword, const char *why)
{
    if (s->rc == 0)
        s->rc = err_set(s->em, ERR_UNSUPPORTED, "the schema at '%s': '%.60s'%s%s is not supported",
                        place(s), keyword, why[0] ? " " : "", why);
    return GRAMMAR_NONE;
}

bool schema__is_over(struct schema *s)
{
    if (s->rc == 0 && grammar_is_full(s->t))
        s->rc = err_set(s->em, ERR_LIMIT, "it has too many parts");
    return s->rc < 0;
}

gnode schema__wrong(struct schema *s, const char *keyword, const char *must)
{
    if (s->rc == 0)
        s->rc = err_set(s->em, ERR_FORMAT, "the schema at '%s': '%.60s' must be %s", place(s),
                        keyword, must);
    return GRAMMAR_NONE;
}

/* ---- what all types share ---- */

gnode schema__text(struct schema *s, const char *text)
{
    return grammar_text(s->t, text, strlen(text));
}

gnode schema_space(struct schema *s)
{
    static const struct grammar_range blank[] = {{'\t', '\t'}, {' ', ' '}};
    if (!s->space) {
        uint32_t rule = grammar_rule(s->t);
        gnode indent = grammar_repeat(s->t, grammar_class(s->t, blank, 2), 0, 20);
        gnode line = grammar_seq(s->t, schema__text(s, "\n"), indent);
        gnode some = grammar_alt(s->t, schema__text(s, " "), line);
        grammar_define(s->t, rule, grammar_repeat(s->t, some, 0, 1));
        s->space = rule + 1;
    }
    return grammar_ref(s->t, s->space - 1);
}

gnode schema__character(struct schema *s)
{
    if (!s->character) {
        uint32_t rule = grammar_rule(s->t);
        grammar_define(s->t, rule, grammar_chars_any_json(s->t));
        grammar_mark_character(s->t, rule);
        s->character = rule + 1;
    }
    return grammar_ref(s->t, s->character - 1);
}

/* open item, ... close: min to max items. */
gnode schema__list(struct schema *s, char open, gnode item, uint32_t min, uint32_t max, char close)
{
    gnode space = schema_space(s), none = grammar_text(s->t, "", 0);
    gnode more = grammar_seq(s->t, schema__text(s, ","), grammar_seq(s->t, space, item));
    uint32_t most = max == GRAMMAR_NO_MAX ? max : max ? max - 1 : 0;
    gnode some = grammar_seq(s->t, item, grammar_repeat(s->t, more, min ? min - 1 : 0, most));
    if (max == 0) some = none;
    if (max && min == 0) some = grammar_repeat(s->t, some, 0, 1);
    const gnode all[] = {grammar_text(s->t, &open, 1), space, some, space,
                         grammar_text(s->t, &close, 1)};
    return grammar_seqs(s->t, all, 5);
}

static gnode any_string(struct schema *s)
{
    gnode quote = schema__text(s, "\"");
    gnode body = grammar_repeat(s->t, schema__character(s), 0, GRAMMAR_NO_MAX);
    return grammar_seq(s->t, quote, grammar_seq(s->t, body, quote));
}

static gnode any_object(struct schema *s)
{
    const gnode pair[] = {any_string(s), schema__text(s, ":"), schema_space(s), schema__value(s)};
    return schema__list(s, '{', grammar_seqs(s->t, pair, 4), 0, GRAMMAR_NO_MAX, '}');
}

gnode schema__value(struct schema *s)
{
    if (!s->value) {
        uint32_t rule = grammar_rule(s->t);
        s->value = rule + 1;
        const gnode kinds[] = {
            any_object(s),           schema__list(s, '[', schema__value(s), 0, GRAMMAR_NO_MAX, ']'),
            any_string(s),           schema__any_number(s, false),
            schema__text(s, "true"), schema__text(s, "false"),
            schema__text(s, "null")};
        grammar_define(s->t, rule, grammar_alts(s->t, kinds, 7));
    }
    return grammar_ref(s->t, s->value - 1);
}

gnode schema_any_object(struct schema *s)
{
    return any_object(s);
}

bool schema__count(struct schema *s, const struct json *j, const char *key, uint32_t otherwise,
                   uint32_t *ret)
{
    const struct json *v = json_get(j, key);
    double real;
    *ret = otherwise;
    if (!v) return true;
    if (!json_as_real(v, &real) || real < 0 || real > 1e15 || real != (double)(uint64_t)real) {
        (void)schema__wrong(s, key, "a whole number of at least 0");
        return false;
    }
    *ret = real > GRAMMAR_COUNT_MAX ? GRAMMAR_COUNT_MAX : (uint32_t)real;
    if (real > GRAMMAR_COUNT_MAX && strncmp(key, "min", 3) == 0) {
        (void)schema__unsupported(s, key, "above 65000");
        return false;
    }
    return true;
}

/* ---- constants ---- */

static int by_bytes(const void *a, const void *b)
{
    const struct buf *x = a, *y = b;
    int c = memcmp(x->data, y->data, x->len < y->len ? x->len : y->len);
    return c ? c : x->len < y->len ? -1 : x->len > y->len;
}

/* Texts [0, n) agree in their first d bytes. What they have in common further is one text; then
 * each byte that goes on is a branch of its own. */
static gnode texts_from(struct schema *s, const struct buf *x, const gnode *behind, size_t n,
                        size_t d)
{
    size_t common = x[0].len, i = 0;
    for (size_t k = d; k < common; k++)
        if (k >= x[n - 1].len || x[n - 1].data[k] != x[0].data[k]) common = k;
    gnode head = grammar_text(s->t, x[0].data + d, common - d), all = GRAMMAR_NONE;
    if (n == 1) return behind ? grammar_seq(s->t, head, behind[0]) : head;
    if (schema__is_over(s)) return GRAMMAR_NONE;
    if (s->nesting++ >= 1000) return schema__unsupported(s, "enum", "of such texts");
    if (x[0].len == common) { /* one ends here */
        all = behind ? behind[0] : grammar_text(s->t, "", 0);
        i = 1;
    }
    while (i < n) {
        size_t from = i;
        while (i < n && x[i].data[common] == x[from].data[common]) i++;
        gnode branch = texts_from(s, x + from, behind ? behind + from : NULL, i - from, common);
        all = grammar_alt(s->t, branch, all);
    }
    s->nesting--;
    return common > d ? grammar_seq(s->t, head, all) : all;
}

gnode schema__texts(struct schema *s, const struct buf *texts, const gnode *behind, size_t n)
{
    return n ? texts_from(s, texts, behind, n, 0) : GRAMMAR_NONE;
}

/* As short as it can be without another value. */
static void write_real(double x, struct buf *to)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    (void)buf_append(to, text, strlen(text));
}

/* Types of JSON values, as bits. Whole numbers are both of the last two. */
enum {
    OF_NULL = 1,
    OF_BOOL = 2,
    OF_STRING = 4,
    OF_ARRAY = 8,
    OF_OBJECT = 16,
    OF_REAL = 32,
    OF_INT = 64
};
#define OF_NUMBER (OF_REAL | OF_INT)
#define OF_ANY 127u

static unsigned type_of(const struct json *v)
{
    static const unsigned of[] = {
        [JSON_KIND_NULL] = OF_NULL,     [JSON_KIND_BOOL] = OF_BOOL,
        [JSON_KIND_INT] = OF_INT,       [JSON_KIND_REAL] = OF_REAL,
        [JSON_KIND_STRING] = OF_STRING, [JSON_KIND_ARRAY] = OF_ARRAY,
        [JSON_KIND_OBJECT] = OF_OBJECT,
    };
    return of[json_kind(v)];
}

static gnode constant(struct schema *s, const struct json *v);

/* The members or items of a value that has some, with the space that others have too. */
static gnode container(struct schema *s, const struct json *v)
{
    bool object = json_kind(v) == JSON_KIND_OBJECT;
    gnode comma = grammar_seq(s->t, schema__text(s, ","), schema_space(s));
    gnode all = grammar_seq(s->t, schema__text(s, object ? "{" : "["), schema_space(s));
    const char *key;
    size_t n = 0, len, i = 0;
    const struct json *x;
    (void)json_count(v, &n);
    for (void *at = NULL; object && json_next(v, &at, &key, &len, &x); i++) {
        gnode pair = schema__pair(s, key, len, constant(s, x));
        all = grammar_seq(s->t, all, i ? grammar_seq(s->t, comma, pair) : pair);
    }
    for (; !object && i < n; i++) {
        gnode item = constant(s, json_at(v, i));
        all = grammar_seq(s->t, all, i ? grammar_seq(s->t, comma, item) : item);
    }
    if (i > 500) return schema__unsupported(s, "enum", "of values with more than 500 items");
    gnode end = grammar_seq(s->t, schema_space(s), schema__text(s, object ? "}" : "]"));
    return grammar_seq(s->t, all, end);
}

static gnode constant(struct schema *s, const struct json *v)
{
    struct buf text = {0};
    double real = 0;
    if (json_kind(v) == JSON_KIND_ARRAY || json_kind(v) == JSON_KIND_OBJECT) {
        if (s->nesting++ >= SCHEMA_NESTING_MAX)
            return schema__unsupported(s, "enum", "deeper than 64 levels");
        gnode is = container(s, v);
        s->nesting--;
        return is;
    }
    if (json_kind(v) == JSON_KIND_REAL && json_as_real(v, &real))
        write_real(real, &text);
    else
        json_write_exact(v, &text);
    gnode is = grammar_text(s->t, text.data, text.len);
    buf_close(&text);
    return is;
}

/* Those without members or items, as one tree of texts; the others side by side. */
static gnode values(struct schema *s, const struct json *list, const struct json *one,
                    unsigned types)
{
    size_t n = 1, kept = 0;
    gnode containers = GRAMMAR_NONE;
    if (list && (!json_count(list, &n) || n == 0))
        return schema__wrong(s, "enum", "a list of values");
    if (n > VALUES_MAX) return schema__unsupported(s, "enum", "of more than 4096 values");
    struct buf *texts = mem_alloc(n * sizeof *texts);
    for (size_t i = 0; i < n; i++) {
        const struct json *v = list ? json_at(list, i) : one;
        double real = 0;
        if (!(type_of(v) & types)) continue;
        if (type_of(v) & (OF_ARRAY | OF_OBJECT)) {
            containers = grammar_alt(s->t, constant(s, v), containers);
            continue;
        }
        texts[kept] = (struct buf){0};
        if (json_kind(v) == JSON_KIND_REAL && json_as_real(v, &real))
            write_real(real, &texts[kept]);
        else
            json_write_exact(v, &texts[kept]);
        kept++;
    }
    qsort(texts, kept, sizeof *texts, by_bytes);
    size_t different = 0;
    for (size_t i = 0; i < kept; i++) {
        if (different && by_bytes(&texts[i], &texts[different - 1]) == 0)
            buf_close(&texts[i]);
        else
            texts[different++] = texts[i];
    }
    gnode all = schema__texts(s, texts, NULL, different);
    for (size_t i = 0; i < different; i++) buf_close(&texts[i]);
    mem_free(texts);
    return grammar_alt(s->t, containers, all);
}

/* ---- keywords ---- */

enum group { NOTE, GENERAL, STRING, ARRAY, OBJECT, NUMBER, COMBINE };

static const struct {
    const char *name;
    enum group group;
} keywords[] = {
    {"title", NOTE},
    {"description", NOTE},
    {"default", NOTE},
    {"examples", NOTE},
    {"example", NOTE},
    {"deprecated", NOTE},
    {"readOnly", NOTE},
    {"writeOnly", NOTE},
    {"$comment", NOTE},
    {"$schema", NOTE},
    {"$id", NOTE},
    {"$defs", NOTE},
    {"definitions", NOTE},
    {"contentMediaType", NOTE},
    {"contentEncoding", NOTE},
    {"discriminator", NOTE},
    {"type", GENERAL},
    {"enum", GENERAL},
    {"const", GENERAL},
    {"minLength", STRING},
    {"maxLength", STRING},
    {"pattern", STRING},
    {"format", STRING},
    {"items", ARRAY},
    {"prefixItems", ARRAY},
    {"minItems", ARRAY},
    {"maxItems", ARRAY},
    {"uniqueItems", ARRAY},
    {"properties", OBJECT},
    {"required", OBJECT},
    {"additionalProperties", OBJECT},
    {"minProperties", OBJECT},
    {"maxProperties", OBJECT},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"multipleOf", NUMBER},
    {"anyOf", COMBINE},
    {"oneOf", COMBINE},
    {"allOf", COMBINE},
    {"$ref", COMBINE},
};

#define N_KEYWORDS (sizeof keywords / sizeof keywords[0])

/* Which groups of keywords a schema uses, as bits; what is not known is refused. */
static unsigned groups_of(struct schema *s, const struct json *j)
{
    unsigned groups = 0;
    const char *key;
    size_t n;
    const struct json *v;
    for (void *at = NULL; json_next(j, &at, &key, &n, &v);) {
        size_t i = 0;
        while (i < N_KEYWORDS && strcmp(keywords[i].name, key) != 0) i++;
        if (i == N_KEYWORDS && strncmp(key, "x-", 2) != 0)
            (void)schema__unsupported(s, key, "");
        else if (i < N_KEYWORDS)
            groups |= 1u << keywords[i].group;
    }
    return groups;
}

static unsigned type_named(const struct json *v)
{
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"null", OF_NULL},   {"boolean", OF_BOOL},  {"string", OF_STRING},
                 {"array", OF_ARRAY}, {"object", OF_OBJECT}, {"number", OF_NUMBER},
                 {"integer", OF_INT}};
    const char *text = "";
    size_t n;
    (void)json_as_string(v, &text, &n);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].name, text) == 0) return names[i].type;
    return 0;
}

/* The types that a schema allows; 0: it is wrong. */
static unsigned types_of(const struct json *j, unsigned groups)
{
    const struct json *type = json_get(j, "type");
    size_t n;
    unsigned all = 0;
    if (type && !json_count(type, &n)) return type_named(type);
    if (type) {
        for (size_t i = 0; i < n; i++) {
            unsigned one = type_named(json_at(type, i));
            if (!one) return 0;
            all |= one;
        }
        return all;
    }
    if (groups & 1u << STRING) all |= OF_STRING;
    if (groups & 1u << ARRAY) all |= OF_ARRAY;
    if (groups & 1u << OBJECT) all |= OF_OBJECT;
    if (groups & 1u << NUMBER) all |= OF_NUMBER;
    return all ? all : OF_ANY;
}

static gnode of_types(struct schema *s, const struct json *j, unsigned types)
{
    gnode all[8];
    size_t n = 0;
    if (types & OF_NULL) all[n++] = schema__text(s, "null");
    if (types & OF_BOOL) all[n++] = schema__text(s, "true");
    if (types & OF_BOOL) all[n++] = schema__text(s, "false");
    if (types & OF_STRING) all[n++] = schema__string(s, j);
    if (types & OF_ARRAY) all[n++] = schema__array(s, j);
    if (types & OF_OBJECT) all[n++] = schema__object(s, j);
    if (types & OF_NUMBER) all[n++] = schema__number(s, j, !(types & OF_REAL));
    return grammar_alts(s->t, all, n);
}

/* ---- references ---- */

/* Decodes ~0, ~1 and %XX of one part of a pointer. */
static bool decode(const char *from, size_t n, char *to, size_t size)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++, len++) {
        uint32_t hex;
        if (len + 1 >= size) return false;
        to[len] = from[i];
        if (from[i] == '%' && grammar_hex(from + i + 1, n - i - 1, 2, &hex)) {
            to[len] = (char)hex;
            i += 2;
        } else if (from[i] == '~' && i + 1 < n) {
            to[len] = from[++i] == '1' ? '/' : '~';
        }
    }
    to[len] = 0;
    return true;
}

/* NULL: it leads nowhere, or out of the document. */
static const struct json *resolve(const struct schema *s, const char *ref)
{
    const struct json *j = s->root;
    char part[256];
    if (*ref++ != '#') return NULL;
    while (j && *ref == '/') {
        size_t n = strcspn(++ref, "/"), count;
        if (!decode(ref, n, part, sizeof part)) return NULL;
        if (json_count(j, &count)) {
            char *end;
            unsigned long i = strtoul(part, &end, 10);
            j = *part && !*end && i < count ? json_at(j, i) : NULL;
        } else {
            j = json_get(j, part);
        }
        ref += n;
    }
    return *ref ? NULL : j;
}

static gnode reference(struct schema *s, const struct json *j)
{
    const char *text;
    size_t n;
    if (!json_as_string(json_get(j, "$ref"), &text, &n)) return schema__wrong(s, "$ref", "a text");
    const struct json *at = resolve(s, text);
    if (!at) return schema__unsupported(s, "$ref", "to something that is not in the schema");
    for (const struct schema_ref *r = s->refs; r; r = r->next)
        if (r->at == at) return grammar_ref(s->t, r->rule);
    if (s->n_refs++ == REFS_MAX) return schema__unsupported(s, "$ref", "to more than 1024 places");
    struct schema_ref *r = mem_zalloc(sizeof *r);
    *r = (struct schema_ref){at, grammar_rule(s->t), s->refs};
    s->refs = r;
    char path[sizeof s->path];
    (void)snprintf(path, sizeof path, "%s", s->path);
    (void)snprintf(s->path, sizeof s->path, "%.250s", text + 1);
    grammar_define(s->t, r->rule, schema__node(s, "", at));
    (void)snprintf(s->path, sizeof s->path, "%s", path);
    return grammar_ref(s->t, r->rule);
}

/* ---- combinations ---- */

/* Values of both kinds are compared with each other, so their number is bounded, however they are
 * written. */
static bool may_compare(struct schema *s, uint64_t work)
{
    s->compared += work;
    return s->compared <= COMPARED_MAX;
}

static const struct json *follow(struct schema *s, const struct json *j)
{
    const char *text;
    size_t n;
    for (int i = 0; i < 16 && json_as_string(json_get(j, "$ref"), &text, &n); i++) {
        if (!may_compare(s, 1 + n / 16)) break;
        const struct json *to = resolve(s, text);
        if (!to) break;
        j = to;
    }
    return j;
}

/* Values that a schema is restricted to by const or enum; 0: it is not. */
static size_t restricted(const struct json *j, const struct json **ret_list)
{
    size_t n;
    *ret_list = json_get(j, "enum");
    if (*ret_list && json_count(*ret_list, &n)) return n;
    *ret_list = NULL;
    return json_get(j, "const") ? 1 : 0;
}

static const struct json *restricted_at(const struct json *j, const struct json *list, size_t i)
{
    return list ? json_at(list, i) : json_get(j, "const");
}

static bool same(struct schema *s, const struct json *a, const struct json *b);

static bool same_members(struct schema *s, const struct json *a, const struct json *b)
{
    const char *key;
    size_t n;
    const struct json *v;
    if (json_n_members(a) != json_n_members(b)) return false;
    for (void *at = NULL; json_next(a, &at, &key, &n, &v);)
        if (may_compare(s, n / 64) && (!json_get(b, key) || !same(s, v, json_get(b, key))))
            return false;
    return true;
}

/* As JSON schemas mean it: numbers by their values, members in any order. What costs too much to
 * compare is taken for the same, which is refused. */
static bool same(struct schema *s, const struct json *a, const struct json *b)
{
    double p, q;
    bool x, y;
    size_t n, m;
    const char *t, *u;
    if (!may_compare(s, 1)) return true;
    if (json_as_real(a, &p) && json_as_real(b, &q)) return p == q;
    if (json_kind(a) != json_kind(b)) return false;
    if (json_as_bool(a, &x) && json_as_bool(b, &y)) return x == y;
    if (json_as_string(a, &t, &n) && json_as_string(b, &u, &m))
        return n == m && (!may_compare(s, n / 64) || memcmp(t, u, n) == 0);
    if (json_kind(a) == JSON_KIND_OBJECT) return same_members(s, a, b);
    if (!json_count(a, &n) || !json_count(b, &m)) return true; /* null */
    if (n != m) return false;
    for (size_t i = 0; i < n; i++)
        if (!same(s, json_at(a, i), json_at(b, i))) return false;
    return true;
}

static bool different_values(struct schema *s, const struct json *a, const struct json *b)
{
    const struct json *la, *lb;
    size_t na = restricted(a, &la), nb = restricted(b, &lb);
    for (size_t i = 0; i < na; i++)
        for (size_t k = 0; k < nb; k++)
            if (same(s, restricted_at(a, la, i), restricted_at(b, lb, k))) return false;
    return na && nb;
}

static bool requires(struct schema *s, const struct json *j, const char *name)
{
    const struct json *list = json_get(j, "required");
    const char *text;
    size_t n, len;
    if (!json_count(list, &n)) return false;
    for (size_t i = 0; i < n && may_compare(s, 1); i++)
        if (json_as_string(json_at(list, i), &text, &len) && strcmp(text, name) == 0) return true;
    return false;
}

/* Whether no value is valid by both, as far as it is easily seen: by their types, by values, or by
 * a member that both need and that tells them apart. */
static bool apart(struct schema *s, const struct json *a, const struct json *b)
{
    const char *key;
    size_t n;
    const struct json *v;
    if (!may_compare(s, 1)) return false;
    a = follow(s, a);
    b = follow(s, b);
    unsigned x = json_kind(a) == JSON_KIND_OBJECT ? types_of(a, 0) : OF_ANY;
    unsigned y = json_kind(b) == JSON_KIND_OBJECT ? types_of(b, 0) : OF_ANY;
    if (!(x & y)) return true;
    if (different_values(s, a, b)) return true;
    const struct json *pa = json_get(a, "properties"), *pb = json_get(b, "properties");
    if ((x | y) != OF_OBJECT || json_kind(pa) != JSON_KIND_OBJECT) return false;
    for (void *at = NULL; json_next(pa, &at, &key, &n, &v);)
        if (requires(s, a, key) && requires(s, b, key) && json_get(pb, key) &&
            different_values(s, follow(s, v), follow(s, json_get(pb, key))))
            return true;
    return false;
}

static gnode combination(struct schema *s, const struct json *j, const char *key)
{
    const struct json *list = json_get(j, key);
    size_t n;
    char at[64];
    if (!json_count(list, &n) || n == 0) return schema__wrong(s, key, "a list of schemas");
    if (n > VALUES_MAX) return schema__unsupported(s, key, "of so many schemas");
    bool one = strcmp(key, "oneOf") == 0;
    for (size_t i = 0; i < n && one; i++)
        for (size_t k = 0; k < i; k++)
            if (!apart(s, json_at(list, i), json_at(list, k)))
                return schema__unsupported(s, key, "of schemas that may both be valid");
    if (strcmp(key, "allOf") == 0 && n > 1)
        return schema__unsupported(s, key, "of more than one schema");
    gnode all = GRAMMAR_NONE, *parts = mem_alloc(n * sizeof *parts);
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(at, sizeof at, "%s/%zu", key, i);
        parts[i] = schema__node(s, at, json_at(list, i));
    }
    all = grammar_alts(s->t, parts, n);
    mem_free(parts);
    return all;
}

/* ---- schemas ---- */

static gnode combined(struct schema *s, const struct json *j, unsigned groups)
{
    static const char *const keys[] = {"$ref", "anyOf", "oneOf", "allOf"};
    const char *found = NULL;
    unsigned n = 0;
    for (int i = 0; i < 4; i++) {
        if (!json_get(j, keys[i])) continue;
        found = keys[i];
        n++;
    }
    if (n > 1 || groups & ~(1u << NOTE | 1u << COMBINE))
        return schema__unsupported(s, found, "beside other keywords");
    return strcmp(found, "$ref") == 0 ? reference(s, j) : combination(s, j, found);
}

static gnode object_schema(struct schema *s, const struct json *j)
{
    unsigned groups = groups_of(s, j), types = types_of(j, groups);
    const struct json *list = json_get(j, "enum"), *one = json_get(j, "const");
    if (s->rc < 0) return GRAMMAR_NONE;
    if (groups & 1u << COMBINE) return combined(s, j, groups);
    if (!types) return schema__wrong(s, "type", "a type of JSON, or a list of types");
    if (list || one) {
        if (groups & ~(1u << NOTE | 1u << GENERAL) || (list && one))
            return schema__unsupported(s, list ? "enum" : "const", "beside other keywords");
        return values(s, list, one, types & OF_REAL ? types | OF_INT : types);
    }
    return types == OF_ANY ? schema__value(s) : of_types(s, j, types);
}

gnode schema__node(struct schema *s, const char *key, const struct json *j)
{
    size_t len = strlen(s->path);
    bool yes;
    gnode is = GRAMMAR_NONE;
    if (schema__is_over(s)) return is;
    if (key[0]) (void)snprintf(s->path + len, sizeof s->path - len, "/%s", key);
    if (s->nesting++ == SCHEMA_NESTING_MAX)
        (void)schema__unsupported(s, key, "deeper than 64 levels");
    else if (json_kind(j) == JSON_KIND_OBJECT)
        is = object_schema(s, j);
    else if (!json_as_bool(j, &yes))
        (void)schema__wrong(s, key, "a schema");
    else if (yes)
        is = schema__value(s);
    s->nesting--;
    s->path[len] = 0;
    return is;
}

struct schema *schema_open(struct grammar_tree *t)
{
    struct schema *s = mem_zalloc(sizeof *s);
    s->t = t;
    return s;
}

void schema_close(struct schema *s)
{
    if (!s) return;
    for (struct schema_ref *r = s->refs, *next; r; r = next) {
        next = r->next;
        mem_free(r);
    }
    mem_free(s);
}

int schema_build(struct schema *s, const struct json *j, gnode *ret, struct errmsg *em)
{
    s->root = j;
    s->em = em;
    s->rc = 0;
    s->path[0] = 0;
    s->nesting = 0;
    gnode is = schema__node(s, "", j);
    if (s->rc == 0) *ret = is;
    return s->rc;
}
