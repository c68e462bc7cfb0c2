#include "common/text/format.h"

#include "common/base/mem.h"
#include "common/text/gbnf.h"
#include "common/text/schema_state.h"

#include <stdlib.h>
#include <string.h>

#define TOOLS_MAX 128u

struct builder {
    struct grammar_tree *t;
    struct schema *schema;
    enum format_calls calls;
    struct errmsg *em;
};

static bool has(const char *text, size_t bytes, const char *what)
{
    return memmem(text, bytes, what, strlen(what)) != NULL;
}

enum format_calls format_calls_of(const char *text, size_t bytes)
{
    if (has(text, bytes, "<tool_call>")) return FORMAT_TAGGED;
    if (has(text, bytes, "[TOOL_CALLS]")) return FORMAT_LIST;
    if (has(text, bytes, "\"parameters\":")) return FORMAT_PARAMETERS;
    return FORMAT_PLAIN;
}

static const char *string_of(const struct json *object, const char *key, size_t *ret_n)
{
    const char *text = NULL;
    *ret_n = 0;
    (void)json_as_string(json_get(object, key), &text, ret_n);
    return text;
}

/* ---- calls of tools ---- */

/* A tool's name, quoted as JSON. */
static struct buf quoted(const char *name, size_t n)
{
    struct json *list = json_new_array();
    struct buf text = {0};
    json_add_string(list, name, n);
    json_write_exact(list, &text);
    json_free(list);
    buf_drop(&text, 1); /* the brackets around it */
    text.len--;
    return text;
}

static int arguments_of(struct builder *b, const struct json *function, const char *name,
                        gnode *ret)
{
    const struct json *parameters = json_get(function, "parameters");
    if (json_kind(parameters) == JSON_KIND_NULL || !json_n_members(parameters)) {
        *ret = schema_any_object(b->schema);
        return 0;
    }
    int rc = schema_build(b->schema, parameters, ret, b->em);
    return rc < 0 ? err_wrap(b->em, rc, "tool '%.64s'", name) : 0;
}

struct call {
    struct buf name;
    gnode behind;
};

static int by_name(const void *a, const void *b)
{
    const struct call *x = a, *y = b;
    return strcmp(x->name.data, y->name.data);
}

/* One call of any of the tools. */
static gnode any_call(struct builder *b, struct call *calls, size_t n)
{
    struct buf names[TOOLS_MAX];
    gnode behind[TOOLS_MAX];
    size_t kept = 0;
    qsort(calls, n, sizeof *calls, by_name);
    for (size_t i = 0; i < n; i++) {
        if (kept && strcmp(names[kept - 1].data, calls[i].name.data) == 0) continue;
        names[kept] = calls[i].name;
        behind[kept++] = calls[i].behind;
    }
    const gnode all[] = {schema__text(b->schema, "{\"name\": "),
                         schema__texts(b->schema, names, behind, kept),
                         schema__text(b->schema, "}")};
    return grammar_seqs(b->t, all, 3);
}

static gnode wrap(struct builder *b, const char *before, gnode a, const char *behind)
{
    return grammar_seq(b->t, schema__text(b->schema, before),
                       grammar_seq(b->t, a, schema__text(b->schema, behind)));
}

/* One call, or several, as the model writes them. */
static gnode written(struct builder *b, gnode call, bool parallel)
{
    static const struct {
        const char *before, *behind, *begin, *between, *end;
    } forms[] = {
        [FORMAT_PLAIN] = {"", "", "", "; ", ""},
        [FORMAT_PARAMETERS] = {"", "", "", "; ", ""},
        [FORMAT_TAGGED] = {"<tool_call>\n", "\n</tool_call>", "", "\n", ""},
        [FORMAT_LIST] = {"", "", "[", ", ", "]"},
    };
    uint32_t rule = grammar_rule(b->t);
    grammar_define(b->t, rule, wrap(b, forms[b->calls].before, call, forms[b->calls].behind));
    gnode one = grammar_ref(b->t, rule);
    gnode more = grammar_seq(b->t, schema__text(b->schema, forms[b->calls].between), one);
    more = grammar_repeat(b->t, more, 0, parallel ? FORMAT_CALLS_MAX - 1 : 0);
    return wrap(b, forms[b->calls].begin, grammar_seq(b->t, one, more), forms[b->calls].end);
}

static int tool_calls(struct builder *b, const struct json *format, gnode *ret)
{
    const struct json *tools = json_get(format, "tools");
    const char *arguments =
        b->calls == FORMAT_PARAMETERS ? ", \"parameters\": " : ", \"arguments\": ";
    size_t n, len, n_only, n_calls = 0;
    const char *only = string_of(format, "name", &n_only), *name;
    bool parallel = false;
    struct call calls[TOOLS_MAX];
    (void)json_as_bool(json_get(format, "parallel"), &parallel);
    if (!json_count(tools, &n) || n == 0 || n > TOOLS_MAX)
        return err_set(b->em, ERR_FORMAT, "'tools' must be a list of 1 to %u tools", TOOLS_MAX);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct json *function = json_get(json_at(tools, i), "function");
        name = string_of(function, "name", &len);
        if (!name || !len) {
            rc = err_set(b->em, ERR_FORMAT, "tool %zu has no function with a name", i);
            break;
        }
        if (only && (len != n_only || memcmp(only, name, len) != 0)) continue;
        gnode value = GRAMMAR_NONE;
        rc = arguments_of(b, function, name, &value);
        calls[n_calls++] = (struct call){
            quoted(name, len), grammar_seq(b->t, schema__text(b->schema, arguments), value)};
    }
    if (rc == 0 && n_calls == 0)
        rc = err_set(b->em, ERR_FORMAT, "there is no tool '%.64s'", only ? only : "");
    if (rc == 0) *ret = written(b, any_call(b, calls, n_calls), parallel);
    for (size_t i = 0; i < n_calls; i++) buf_close(&calls[i].name);
    return rc;
}

/* ---- reasoning ---- */

#define END_OF_THOUGHT "</think>"

/* Any text up to the first </think>, and line ends behind it. State i: the text so far ends with i
 * bytes of the tag; '<' is the only one that it has twice. */
static gnode thought(struct builder *b)
{
    static const char tag[] = END_OF_THOUGHT;
    const uint32_t n = sizeof tag - 1;
    uint32_t rules[sizeof tag];
    struct grammar_tree *t = b->t;
    for (uint32_t i = 0; i < n; i++) rules[i] = grammar_rule(t);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = (uint8_t)tag[i];
        const struct grammar_range others[] = {{0, (c < '<' ? c : '<') - 1},
                                               {(c < '<' ? c : '<') + 1, (c < '<' ? '<' : c) - 1},
                                               {(c < '<' ? '<' : c) + 1, GRAMMAR_CODE_POINT_MAX}};
        const struct grammar_range begin[] = {{0, '<' - 1}, {'<' + 1, GRAMMAR_CODE_POINT_MAX}};
        gnode away = i == 0 ? grammar_class(t, begin, 2) : grammar_class(t, others, 3);
        gnode all = grammar_seq(t, away, grammar_ref(t, rules[0]));
        gnode next = i + 1 < n ? grammar_ref(t, rules[i + 1]) : grammar_text(t, "", 0);
        if (i > 0) /* the tag begins anew */
            all = grammar_alt(
                t, grammar_seq(t, schema__text(b->schema, "<"), grammar_ref(t, rules[1])), all);
        grammar_define(t, rules[i],
                       grammar_alt(t, grammar_seq(t, grammar_text(t, tag + i, 1), next), all));
    }
    gnode lines = grammar_repeat(t, schema__text(b->schema, "\n"), 0, 2);
    return grammar_seq(t, grammar_ref(t, rules[0]), lines);
}

/* ---- formats ---- */

static int build(struct builder *b, const struct json *format, gnode *ret)
{
    size_t n = 0, bytes = 0;
    const char *type = string_of(format, "type", &n), *text;
    if (!type) return err_set(b->em, ERR_FORMAT, "it is no object with a 'type'");
    if (strcmp(type, "json_object") == 0) {
        *ret = schema_any_object(b->schema);
        return 0;
    }
    if (strcmp(type, "json_schema") == 0) {
        const struct json *schema = json_get(json_get(format, "json_schema"), "schema");
        if (!schema) return err_set(b->em, ERR_FORMAT, "'json_schema' has no 'schema'");
        return schema_build(b->schema, schema, ret, b->em);
    }
    if (strcmp(type, "tool_calls") == 0) return tool_calls(b, format, ret);
    if (strcmp(type, "grammar") != 0)
        return err_set(
            b->em, ERR_UNSUPPORTED,
            "the type '%.40s' is not supported (text, json_object, json_schema, grammar)", type);
    text = string_of(format, "grammar", &bytes);
    if (!text) return err_set(b->em, ERR_FORMAT, "'grammar' must be a text");
    return gbnf_build(b->t, text, bytes, ret, b->em);
}

static bool is_free(const struct json *format)
{
    size_t n;
    const char *type = string_of(format, "type", &n);
    return type && strcmp(type, "text") == 0;
}

int format_compile(const char *json, size_t bytes, enum format_calls calls, bool open_thought,
                   struct buf *ret, struct errmsg *em)
{
    struct json *format = NULL;
    int rc = json_read(json, bytes, &format, em);
    if (rc < 0) return rc;
    if (is_free(format)) {
        json_free(format);
        return 0;
    }
    struct builder b = {.t = grammar_tree_open(), .calls = calls, .em = em};
    gnode root = GRAMMAR_NONE;
    b.schema = schema_open(b.t);
    rc = build(&b, format, &root);
    if (rc == 0 && open_thought) root = grammar_seq(b.t, thought(&b), root);
    if (rc == 0) rc = grammar_compile(b.t, root, ret, em);
    schema_close(b.schema);
    grammar_tree_close(b.t);
    json_free(format);
    return rc;
}
