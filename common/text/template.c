#include "common/text/template.h"

#include "common/base/mem.h"
#include "common/text/jinja/interp.h"
#include "common/text/jinja/parse.h"

#include <string.h>

/* A tree takes some sixty times the bytes of its template. */
#define TREE_BYTES_MAX ((size_t)256 << 20)

struct template
{
    struct program program;
};

int template_open(const char *text, size_t bytes, struct template **ret, struct errmsg *em)
{
    if (bytes > TEMPLATE_BYTES_MAX)
        return err_set(em, ERR_LIMIT, "a template of %zu bytes, the limit is %zu", bytes,
                       TEMPLATE_BYTES_MAX);
    struct template *t = mem_zalloc(sizeof *t);
    t->program.arena.budget = TREE_BYTES_MAX;
    int rc = parse_program(text, bytes, TEMPLATE_NESTING_MAX, &t->program, em);
    if (rc < 0) {
        template_close(t);
        return rc;
    }
    *ret = t;
    return 0;
}

void template_close(struct template *t)
{
    if (!t) return;
    arena_close(&t->program.arena);
    mem_free(t);
}

/* ---- the conversation as values ---- */

static struct value convert(struct interp *in, const struct json *j);

static struct value convert_text(const struct json *j)
{
    const char *text = "";
    size_t len = 0;
    (void)json_as_string(j, &text, &len);
    return value_foreign(value_text(text, len), true);
}

static struct value convert_array(struct interp *in, const struct json *j)
{
    size_t n = 0;
    (void)json_count(j, &n);
    struct list *l = list_new(in, n);
    for (size_t i = 0; i < n && interp_step(in, 1); i++)
        list_add(in, l, convert(in, json_at(j, i)));
    return list_value(V_LIST, l);
}

static struct value convert_object(struct interp *in, const struct json *j)
{
    struct dict *d = dict_new(in);
    const char *key;
    size_t len;
    const struct json *v;
    for (void *at = NULL; json_next(j, &at, &key, &len, &v) && interp_step(in, 1);)
        dict_put(in, d, value_foreign(value_text(key, len), true), convert(in, v));
    return dict_value(d);
}

static struct value convert(struct interp *in, const struct json *j)
{
    struct value v = value_none();
    if (!interp_enter(in)) {
        interp_leave(in);
        return v;
    }
    switch (json_kind(j)) {
    case JSON_KIND_NULL: break;
    case JSON_KIND_BOOL:
        v = value_bool(false);
        (void)json_as_bool(j, &v.truth);
        break;
    case JSON_KIND_INT:
        v = value_foreign(value_int(0), true);
        (void)json_as_int(j, &v.integer);
        break;
    case JSON_KIND_REAL:
        v = value_foreign(value_float(0.0), true);
        (void)json_as_real(j, &v.real);
        break;
    case JSON_KIND_STRING: v = convert_text(j); break;
    case JSON_KIND_ARRAY: v = convert_array(in, j); break;
    case JSON_KIND_OBJECT: v = convert_object(in, j); break;
    }
    interp_leave(in);
    return v;
}

static bool is_null(const struct json *j)
{
    return json_kind(j) == JSON_KIND_NULL;
}

/* A role that the API knows is a word of ours. */
static void own_role(struct interp *in, struct dict *message)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    struct value *role = dict_get_text(in, message, "role");
    for (size_t i = 0; role && i < sizeof roles / sizeof roles[0]; i++)
        if (value_is(*role, roles[i])) *role = value_text(roles[i], strlen(roles[i]));
}

/* Under both names that templates ask for, whichever it was sent as. */
static struct dict *with_reasoning(struct interp *in, struct dict *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const struct value *reasoning = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !reasoning; i++)
        reasoning = dict_get_text(in, message, names[i]);
    if (!reasoning) return message;
    struct dict *d = dict_new(in);
    dict_put(in, d, value_text("thinking", 8), *reasoning);
    for (uint32_t i = 0; i < message->n; i++)
        dict_put(in, d, message->entries[i].key, message->entries[i].value);
    dict_put(in, d, value_text("reasoning_content", 17), *reasoning);
    return d;
}

static struct value convert_message(struct interp *in, const struct json *j)
{
    struct dict *d = dict_new(in);
    const char *key;
    size_t len;
    const struct json *v;
    for (void *at = NULL; json_next(j, &at, &key, &len, &v) && interp_step(in, 1);)
        if (!is_null(v)) dict_put(in, d, value_foreign(value_text(key, len), true), convert(in, v));
    own_role(in, d);
    return dict_value(with_reasoning(in, d));
}

static struct value convert_messages(struct interp *in, const struct json *j)
{
    size_t n = 0;
    struct list *l = list_new(in, 0);
    (void)json_count(j, &n);
    for (size_t i = 0; i < n && interp_step(in, 1); i++)
        list_add(in, l, convert_message(in, json_at(j, i)));
    return list_value(V_LIST, l);
}

/* ---- checking ---- */

static int check_objects(const struct json *j, const char *what, struct errmsg *em)
{
    size_t n;
    if (!json_count(j, &n)) return err_set(em, ERR_RANGE, "%s: not an array", what);
    for (size_t i = 0; i < n; i++)
        if (json_kind(json_at(j, i)) != JSON_KIND_OBJECT)
            return err_set(em, ERR_RANGE, "%s[%zu]: not an object", what, i);
    return 0;
}

static int check_input(const struct template_input *t, struct errmsg *em)
{
    size_t n = 0;
    int rc = check_objects(t->messages, "messages", em);
    if (rc == 0 && json_count(t->messages, &n) && n == 0)
        rc = err_set(em, ERR_RANGE, "messages: there is none");
    if (rc == 0 && !is_null(t->tools)) rc = check_objects(t->tools, "tools", em);
    if (rc == 0 && !is_null(t->documents)) rc = check_objects(t->documents, "documents", em);
    if (rc == 0 && !is_null(t->kwargs) && json_kind(t->kwargs) != JSON_KIND_OBJECT)
        rc = err_set(em, ERR_RANGE, "chat_template_kwargs: not an object");
    return rc;
}

/* ---- rendering ---- */

static void set(struct interp *in, struct scope *s, const char *name, size_t len, struct value v)
{
    uint32_t id = program_name(in->program, name, len);
    if (id != UINT32_MAX) scope_set(in, s, id, v);
}

static void set_inputs(struct interp *in, struct scope *s, const struct template_input *t)
{
    const char *key;
    size_t len;
    const struct json *v;
    globals_set(in, s);
    for (size_t i = 0; i < t->n_tokens; i++)
        set(in, s, t->tokens[i].name, strlen(t->tokens[i].name),
            value_text(t->tokens[i].text.data, t->tokens[i].text.len));
    set(in, s, "messages", 8, convert_messages(in, t->messages));
    set(in, s, "tools", 5, convert(in, t->tools));
    set(in, s, "documents", 9, convert(in, t->documents));
    set(in, s, "add_generation_prompt", 21, value_bool(t->add_generation_prompt));
    if (is_null(t->kwargs)) return;
    for (void *at = NULL; json_next(t->kwargs, &at, &key, &len, &v) && interp_step(in, 1);)
        set(in, s, key, len, convert(in, v));
}

static int take_text(struct interp *in, const struct str_builder *out, struct template_prompt *ret,
                     struct errmsg *em)
{
    size_t n = 1;
    for (size_t i = 1; i < out->len && out->marks; i++) n += out->marks[i] != out->marks[i - 1];
    struct template_prompt p = {.bytes = out->len, .steps = in->steps};
    p.text = mem_try(out->len + 1);
    p.runs = mem_try(n * sizeof *p.runs);
    if (!p.text || !p.runs) {
        template_prompt_close(&p);
        return err_set(em, ERR_NOMEM, "out of memory");
    }
    if (out->len) memcpy(p.text, out->data, out->len);
    p.text[out->len] = 0;
    for (size_t i = 0, from = 0; i < out->len; i++) {
        bool foreign = out->marks ? out->marks[i] : out->foreign;
        bool ends = i + 1 == out->len || (out->marks && out->marks[i + 1] != out->marks[i]);
        if (!ends) continue;
        p.runs[p.n_runs++] = (struct vocab_run){i + 1 - from, !foreign};
        from = i + 1;
    }
    *ret = p;
    return 0;
}

int template_render(const struct template *t, const struct template_input *input,
                    struct template_prompt *ret, struct errmsg *em)
{
    const struct template_limits *l = &input->limits;
    int rc = check_input(input, em);
    if (rc < 0) return rc;
    struct interp in = {.program = &t->program, .em = em, .line = 1, .now_s = input->now_s};
    struct scope top = {0};
    struct str_builder out;
    in.steps_max = l->steps ? l->steps : TEMPLATE_STEPS_MAX;
    in.depth_max = l->depth ? l->depth : TEMPLATE_DEPTH_MAX;
    in.output_max = l->output_bytes ? l->output_bytes : TEMPLATE_OUTPUT_BYTES_MAX;
    in.memory_max = l->memory_bytes ? l->memory_bytes : TEMPLATE_MEMORY_BYTES_MAX;
    in.arena.budget = in.memory_max;
    in.scope = &top;
    in.block = value_text("", 0);
    str_begin(&out, &in);
    in.out = &out;
    set_inputs(&in, &top, input);
    exec_body(&in, t->program.body);
    rc = in.rc < 0 ? in.rc : take_text(&in, &out, ret, em);
    arena_close(&in.arena);
    return rc;
}

void template_prompt_close(struct template_prompt *p)
{
    mem_free(p->text);
    mem_free(p->runs);
    *p = (struct template_prompt){0};
}
