#include "common/text/format.h"

#include "common/text/format_state.h"
#include "common/text/gbnf.h"

#include <string.h>

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

const char *format__string(const struct json *object, const char *key, size_t *ret_n)
{
    const char *text = NULL;
    *ret_n = 0;
    (void)json_as_string(json_get(object, key), &text, ret_n);
    return text;
}

static int build(struct format_builder *b, const struct json *format, bool open_thought, gnode *ret)
{
    size_t n = 0, bytes = 0;
    const char *type = format__string(format, "type", &n), *text;
    int rc = 0;
    if (!type) return err_set(b->em, ERR_FORMAT, "it is no object with a 'type'");
    if (strcmp(type, "json_object") == 0) {
        *ret = schema_any_object(b->schema);
    } else if (strcmp(type, "json_schema") == 0) {
        const struct json *schema = json_get(json_get(format, "json_schema"), "schema");
        if (!schema) return err_set(b->em, ERR_FORMAT, "'json_schema' has no 'schema'");
        rc = schema_build(b->schema, schema, ret, b->em);
    } else if (strcmp(type, "tool_calls") == 0) {
        rc = format__calls(b, format, open_thought, ret);
        if (format__is_optional(format)) return rc;
    } else if (strcmp(type, "grammar") == 0) {
        text = format__string(format, "grammar", &bytes);
        if (!text) return err_set(b->em, ERR_FORMAT, "'grammar' must be a text");
        rc = gbnf_build(b->t, text, bytes, ret, b->em);
    } else {
        return err_set(
            b->em, ERR_UNSUPPORTED,
            "the type '%.40s' is not supported (text, json_object, json_schema, grammar)", type);
    }
    if (rc == 0 && open_thought) *ret = format__behind_thought(b, *ret);
    return rc;
}

/* Whether the answer may be anything: nothing is asked of it, or its calls cannot be told from
 * text. ERR_UNSUPPORTED: then there is no telling whether it is one call. */
static int is_free(const struct json *format, enum format_calls calls, bool *ret, struct errmsg *em)
{
    size_t n;
    const char *type = format__string(format, "type", &n);
    bool parallel = true;
    bool among_text = type && strcmp(type, "tool_calls") == 0 && format__is_optional(format);
    *ret = (type && strcmp(type, "text") == 0) || (among_text && calls != FORMAT_TAGGED);
    (void)json_as_bool(json_get(format, "parallel"), &parallel);
    if (!*ret || !among_text || parallel) return 0;
    return err_set(em, ERR_UNSUPPORTED,
                   "'parallel': false is not supported where no tool must be called: the model's "
                   "template shows no tags around calls");
}

static int compile(const struct json *format, enum format_calls calls, bool open_thought,
                   enum format_hold hold, struct buf *ret, struct errmsg *em)
{
    struct format_builder b = {.t = grammar_tree_open(), .calls = calls, .hold = hold, .em = em};
    gnode root = GRAMMAR_NONE;
    b.schema = schema_open(b.t);
    int rc = build(&b, format, open_thought, &root);
    if (rc == 0) rc = grammar_compile(b.t, root, ret, em);
    schema_close(b.schema);
    grammar_tree_close(b.t);
    return rc;
}

int format_compile(const char *json, size_t bytes, enum format_calls calls, bool open_thought,
                   struct buf *ret, struct errmsg *em)
{
    struct json *format = NULL;
    bool any = false;
    int rc = json_read(json, bytes, &format, em);
    if (rc < 0) return rc;
    rc = is_free(format, calls, &any, em);
    if (rc == 0 && !any) {
        bool optional = format__is_optional(format);
        rc = compile(format, calls, open_thought, FORMAT_HOLD_ALL, ret, em);
        if (rc < 0 && optional)
            rc = compile(format, calls, open_thought, FORMAT_HOLD_POSSIBLE, ret, em);
        if (rc < 0 && optional)
            rc = compile(format, calls, open_thought, FORMAT_HOLD_STRICT, ret, em);
    }
    json_free(format);
    return rc;
}
