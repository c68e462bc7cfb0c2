#include "coordinator/gateway/response.h"

#include "coordinator/gateway/sse.h"

#include <stdio.h>
#include <string.h>

#define METADATA_MAX 16u

static void put_text(struct json *o, const char *key, const char *text)
{
    json_put_string(o, key, text, strlen(text));
}

static bool is_text(const struct json *v, const char *text)
{
    const char *s;
    size_t n;
    return json_as_string(v, &s, &n) && strcmp(s, text) == 0;
}

/* ---- the input ---- */

/* Items become messages. What an assistant thought, said and called one after the other is one
 * message, which waits until something else comes. */
struct turn {
    struct json *to; /* messages */
    struct buf text, reasoning;
    struct json *calls; /* or NULL */
    bool open, said;
};

static void end_turn(struct turn *t)
{
    if (t->open) {
        struct json *o = json_new_object();
        put_text(o, "role", "assistant");
        json_put_string(o, "content", t->text.data ? t->text.data : "", t->text.len);
        if (t->reasoning.len)
            json_put_string(o, "reasoning_content", t->reasoning.data, t->reasoning.len);
        if (t->calls) json_put(o, "tool_calls", t->calls);
        json_add(t->to, o);
    }
    buf_close(&t->text);
    buf_close(&t->reasoning);
    *t = (struct turn){.to = t->to};
}

static void close_turn(struct turn *t)
{
    json_free(t->calls);
    buf_close(&t->text);
    buf_close(&t->reasoning);
}

/* A text, or parts of one of these types, as one text. */
static int join(const struct json *v, size_t item, const char *type, const char *other,
                struct buf *to, struct fault *f)
{
    const char *text, *name = "";
    size_t n, len;
    if (json_as_string(v, &text, &n)) return buf_append(to, text, n);
    if (!json_count(v, &n))
        return fault_set(f, 400, "input", "'input': item %zu: neither a text nor an array of parts",
                         item);
    for (size_t i = 0; i < n; i++) {
        const struct json *part = json_at(v, i), *said = json_get(part, "type");
        (void)json_as_string(said, &name, &len);
        if ((!is_text(said, type) && !is_text(said, other)) ||
            !json_as_string(json_get(part, "text"), &text, &len))
            return fault_set(f, 400, "input",
                             "'input': item %zu: part %zu, of type '%.40s', is no %s, and others "
                             "are not supported",
                             item, i, name, type);
        (void)buf_append(to, text, len);
    }
    return 0;
}

static int add_message(struct turn *t, size_t i, const struct json *item, struct fault *f)
{
    const struct json *role = json_get(item, "role"), *content = json_get(item, "content");
    struct buf text = {0};
    if (is_text(role, "assistant")) {
        if (t->said || t->calls) end_turn(t);
        t->open = t->said = true;
        return join(content, i, "output_text", "input_text", &t->text, f);
    }
    if (!is_text(role, "user") && !is_text(role, "system") && !is_text(role, "developer"))
        return fault_set(f, 400, "input",
                         "'input': item %zu: a role is none of user, assistant, system, developer",
                         i);
    end_turn(t);
    int rc = join(content, i, "input_text", "input_text", &text, f);
    if (rc == 0) {
        struct json *o = json_new_object();
        json_put(o, "role", json_share(role));
        json_put_string(o, "content", text.data ? text.data : "", text.len);
        json_add(t->to, o);
    }
    buf_close(&text);
    return rc;
}

static int add_call(struct turn *t, size_t i, const struct json *item, struct fault *f)
{
    static const char *const members[] = {"call_id", "name", "arguments"};
    for (size_t k = 0; k < 3; k++)
        if (json_kind(json_get(item, members[k])) != JSON_KIND_STRING)
            return fault_set(f, 400, "input", "'input': item %zu: '%s' is no string", i,
                             members[k]);
    struct json *call = json_new_object(), *function = json_new_object();
    json_put(call, "id", json_share(json_get(item, "call_id")));
    put_text(call, "type", "function");
    json_put(function, "name", json_share(json_get(item, "name")));
    json_put(function, "arguments", json_share(json_get(item, "arguments")));
    json_put(call, "function", function);
    if (!t->calls) t->calls = json_new_array();
    json_add(t->calls, call);
    t->open = true;
    return 0;
}

static int add_result(struct turn *t, size_t i, const struct json *item, struct fault *f)
{
    struct buf text = {0};
    if (json_kind(json_get(item, "call_id")) != JSON_KIND_STRING)
        return fault_set(f, 400, "input", "'input': item %zu: 'call_id' is no string", i);
    end_turn(t);
    int rc = join(json_get(item, "output"), i, "input_text", "output_text", &text, f);
    if (rc == 0) {
        struct json *o = json_new_object();
        put_text(o, "role", "tool");
        json_put_string(o, "content", text.data ? text.data : "", text.len);
        json_put(o, "tool_call_id", json_share(json_get(item, "call_id")));
        json_add(t->to, o);
    }
    buf_close(&text);
    return rc;
}

/* Its summary says the same in fewer words, and stands where there is nothing else. */
static int add_reasoning(struct turn *t, size_t i, const struct json *item, struct fault *f)
{
    const struct json *content = json_get(item, "content"), *summary = json_get(item, "summary");
    size_t n = 0;
    if (t->said || t->calls) end_turn(t);
    t->open = true;
    if (json_kind(json_get(item, "encrypted_content")) != JSON_KIND_NULL)
        return fault_set(f, 400, "input", "'input': item %zu: 'encrypted_content' is not supported",
                         i);
    if (json_count(content, &n) && n)
        return join(content, i, "reasoning_text", "text", &t->reasoning, f);
    return json_kind(summary) == JSON_KIND_NULL
               ? 0
               : join(summary, i, "summary_text", "summary_text", &t->reasoning, f);
}

static int add_item(struct turn *t, size_t i, const struct json *item, struct fault *f)
{
    const struct json *v = json_get(item, "type");
    const char *type = "";
    size_t n;
    (void)json_as_string(v, &type, &n);
    if (json_kind(item) != JSON_KIND_OBJECT)
        return fault_set(f, 400, "input", "'input': item %zu is no object", i);
    if (json_kind(v) == JSON_KIND_NULL || strcmp(type, "message") == 0)
        return add_message(t, i, item, f);
    if (strcmp(type, "function_call") == 0) return add_call(t, i, item, f);
    if (strcmp(type, "function_call_output") == 0) return add_result(t, i, item, f);
    if (strcmp(type, "reasoning") == 0) return add_reasoning(t, i, item, f);
    return fault_set(f, 400, "input", "'input': item %zu: the type '%.40s' is not supported", i,
                     type);
}

static int add_text(struct json *to, const char *role, const struct json *text)
{
    struct json *o = json_new_object();
    put_text(o, "role", role);
    json_put(o, "content", json_share(text));
    json_add(to, o);
    return 0;
}

/* The whole conversation; NULL: f says why. */
static struct json *translate_input(const struct json *body, struct fault *f)
{
    const struct json *input = json_get(body, "input"), *first = json_get(body, "instructions");
    struct turn t = {.to = json_new_array()};
    size_t n = 0;
    int rc = 0;
    if (json_kind(first) == JSON_KIND_STRING)
        rc = add_text(t.to, "system", first);
    else if (json_kind(first) != JSON_KIND_NULL)
        rc = fault_set(f, 400, "instructions", "'instructions' must be a string");
    if (rc == 0 && json_kind(input) == JSON_KIND_STRING)
        rc = add_text(t.to, "user", input);
    else if (rc == 0 && (!json_count(input, &n) || n == 0))
        rc = fault_set(f, 400, "input", "'input' must be a text or an array of at least one item");
    for (size_t i = 0; i < n && rc == 0; i++) rc = add_item(&t, i, json_at(input, i), f);
    if (rc == 0) end_turn(&t);
    close_turn(&t);
    if (rc == 0) return t.to;
    json_free(t.to);
    return NULL;
}

/* ---- the other parameters ---- */

struct translation {
    struct json *chat, *echo;
    struct fault *f;
};

static int wrong(const struct translation *t, const char *name, const char *what)
{
    return fault_set(t->f, 400, name, "'%s' must be %s", name, what);
}

static int unsupported(const struct translation *t, const char *name, const char *what)
{
    return fault_set(t->f, 400, name, "'%s': %s", name, what);
}

static int keep(struct translation *t, const char *name, const struct json *v)
{
    json_put(t->chat, name, json_share(v));
    return 0;
}

static int keep_and_repeat(struct translation *t, const char *name, const struct json *v)
{
    json_put(t->echo, name, json_share(v));
    return keep(t, name, v);
}

static int repeat(struct translation *t, const char *name, const struct json *v)
{
    json_put(t->echo, name, json_share(v));
    return 0;
}

/* The input is looked at when all else is right. */
static int later(struct translation *t, const char *name, const struct json *v)
{
    (void)t;
    (void)name;
    (void)v;
    return 0;
}

static int take_max(struct translation *t, const char *name, const struct json *v)
{
    int64_t x;
    if (!json_as_int(v, &x) || x < 1) return wrong(t, name, "a whole number of at least 1");
    json_put(t->chat, "max_tokens", json_share(v));
    return repeat(t, name, v);
}

static int take_tools(struct translation *t, const char *name, const struct json *v)
{
    static const char *const members[] = {"name", "description", "parameters"};
    size_t n;
    if (!json_count(v, &n)) return wrong(t, name, "an array");
    struct json *list = json_new_array(), *echo = json_new_array();
    json_put(t->chat, name, list);
    json_put(t->echo, name, echo);
    for (size_t i = 0; i < n; i++) {
        const struct json *tool = json_at(v, i);
        if (!is_text(json_get(tool, "type"), "function"))
            return fault_set(t->f, 400, name, "'%s': tool %zu is not of type 'function'", name, i);
        struct json *o = json_new_object(), *function = json_new_object(),
                    *again = json_new_object();
        bool strict = false;
        put_text(again, "type", "function");
        for (size_t k = 0; k < 3; k++) {
            const struct json *x = json_get(tool, members[k]);
            json_put_null(again, members[k]);
            if (json_kind(x) == JSON_KIND_NULL) continue;
            json_put(function, members[k], json_share(x));
            json_put(again, members[k], json_share(x));
        }
        (void)json_as_bool(json_get(tool, "strict"), &strict);
        if (strict) json_put_bool(function, "strict", true);
        json_put_bool(again, "strict", false); /* the model's template may show no tags for calls */
        put_text(o, "type", "function");
        json_put(o, "function", function);
        json_add(list, o);
        json_add(echo, again);
    }
    return 0;
}

static int take_choice(struct translation *t, const char *name, const struct json *v)
{
    if (json_kind(v) != JSON_KIND_OBJECT) return keep_and_repeat(t, name, v);
    if (!is_text(json_get(v, "type"), "function") || !json_get(v, "name"))
        return unsupported(t, name, "is neither a word nor a function with its name");
    struct json *o = json_new_object(), *function = json_new_object();
    json_put(function, "name", json_share(json_get(v, "name")));
    put_text(o, "type", "function");
    json_put(o, "function", function);
    json_put(t->chat, name, o);
    return repeat(t, name, v);
}

/* A schema lies flat here, and within an object of its own in a chat's request. */
static int take_format(struct translation *t, const struct json *v)
{
    const char *key;
    size_t n;
    const struct json *x;
    if (json_kind(json_get(v, "type")) != JSON_KIND_STRING)
        return wrong(t, "text.format", "an object with a 'type'");
    if (!is_text(json_get(v, "type"), "json_schema")) {
        json_put(t->chat, "response_format", json_share(v));
        return 0;
    }
    struct json *o = json_new_object(), *schema = json_new_object();
    put_text(o, "type", "json_schema");
    for (void *at = NULL; json_next(v, &at, &key, &n, &x);)
        if (strcmp(key, "type") != 0) json_put(schema, key, json_share(x));
    json_put(o, "json_schema", schema);
    json_put(t->chat, "response_format", o);
    return 0;
}

static int take_text(struct translation *t, const char *name, const struct json *v)
{
    const char *key;
    size_t n;
    const struct json *x;
    int rc = 0;
    if (json_kind(v) != JSON_KIND_OBJECT) return wrong(t, name, "an object");
    for (void *at = NULL; rc == 0 && json_next(v, &at, &key, &n, &x);) {
        if (json_kind(x) == JSON_KIND_NULL) continue;
        if (strcmp(key, "format") == 0) {
            rc = take_format(t, x);
        } else if (strcmp(key, "verbosity") != 0) {
            rc = fault_set(t->f, 400, name, "'%s': '%.60s' is not known", name, key);
        } else if (!is_text(x, "medium")) {
            rc = unsupported(t, "text.verbosity", "only 'medium' is supported");
        }
    }
    if (rc == 0 && json_kind(json_get(v, "format")) != JSON_KIND_NULL) rc = repeat(t, name, v);
    return rc;
}

static int take_reasoning(struct translation *t, const char *name, const struct json *v)
{
    const char *key;
    size_t n;
    const struct json *x;
    if (json_kind(v) != JSON_KIND_OBJECT) return wrong(t, name, "an object");
    for (void *at = NULL; json_next(v, &at, &key, &n, &x);) {
        if (json_kind(x) == JSON_KIND_NULL) continue;
        if (strcmp(key, "effort") != 0)
            return fault_set(t->f, 400, name, "'%s': '%.60s' is not supported", name, key);
        json_put(t->chat, "reasoning_effort", json_share(x));
        struct json *o = json_new_object();
        json_put(o, "effort", json_share(x));
        json_put_null(o, "summary");
        json_put(t->echo, name, o);
    }
    return 0;
}

static int take_metadata(struct translation *t, const char *name, const struct json *v)
{
    const char *key;
    size_t n;
    const struct json *x;
    if (json_kind(v) != JSON_KIND_OBJECT || json_n_members(v) > METADATA_MAX)
        return fault_set(t->f, 400, name, "'%s' must be an object of at most %u strings", name,
                         METADATA_MAX);
    for (void *at = NULL; json_next(v, &at, &key, &n, &x);)
        if (json_kind(x) != JSON_KIND_STRING)
            return fault_set(t->f, 400, name, "'%s': '%.60s' is no string", name, key);
    return repeat(t, name, v);
}

/* Only the value that changes nothing. */
static int refuse_flag(struct translation *t, const char *name, const struct json *v)
{
    bool on;
    if (!json_as_bool(v, &on)) return wrong(t, name, "true or false");
    if (!on) return 0;
    return unsupported(t, name,
                       strcmp(name, "store") == 0 ? "nothing is stored here, so it may only be "
                                                    "false"
                                                  : "true is not supported");
}

static int refuse_stored(struct translation *t, const char *name, const struct json *v)
{
    (void)v;
    return unsupported(t, name, "nothing is stored here: send the whole conversation as 'input'");
}

static int take_truncation(struct translation *t, const char *name, const struct json *v)
{
    return is_text(v, "disabled") ? 0 : unsupported(t, name, "only 'disabled' is supported");
}

static int take_include(struct translation *t, const char *name, const struct json *v)
{
    size_t n;
    if (!json_count(v, &n)) return wrong(t, name, "an array");
    return n ? unsupported(t, name, "nothing can be included") : 0;
}

static int take_stream_options(struct translation *t, const char *name, const struct json *v)
{
    const char *key;
    size_t n;
    const struct json *x;
    bool on = false;
    if (json_kind(v) != JSON_KIND_OBJECT) return wrong(t, name, "an object");
    for (void *at = NULL; json_next(v, &at, &key, &n, &x);)
        if (strcmp(key, "include_obfuscation") != 0 || !json_as_bool(x, &on) || on)
            return fault_set(t->f, 400, name, "'%s': '%.60s' is not known, or not false", name,
                             key);
    return 0;
}

static const struct {
    const char *name;
    int (*take)(struct translation *t, const char *name, const struct json *v);
} members[] = {
    {"input", later},
    {"instructions", repeat},
    {"model", keep},
    {"stream", keep},
    {"max_output_tokens", take_max},
    {"temperature", keep_and_repeat},
    {"top_p", keep_and_repeat},
    {"tools", take_tools},
    {"tool_choice", take_choice},
    {"parallel_tool_calls", keep_and_repeat},
    {"text", take_text},
    {"reasoning", take_reasoning},
    {"metadata", take_metadata},
    {"user", keep_and_repeat},
    {"service_tier", keep},
    {"prompt_cache_key", repeat}, /* equal beginnings are found without it */
    {"truncation", take_truncation},
    {"store", refuse_flag},
    {"background", refuse_flag},
    {"include", take_include},
    {"stream_options", take_stream_options},
    {"previous_response_id", refuse_stored},
    {"conversation", refuse_stored},
    {"prompt", refuse_stored},
    /* what a chat has beyond OpenAI's parameters, or this API lacks */
    {"top_k", keep},
    {"min_p", keep},
    {"repetition_penalty", keep},
    {"presence_penalty", keep},
    {"frequency_penalty", keep},
    {"seed", keep},
    {"stop", keep},
    {"logit_bias", keep},
    {"ignore_eos", keep},
    {"cache_prompt", keep},
    {"priority", keep},
    {"chat_template_kwargs", keep},
    {"reasoning_format", keep},
};

#define N_MEMBERS (sizeof members / sizeof members[0])

static int take_member(struct translation *t, const char *name, const struct json *v)
{
    size_t i = 0;
    while (i < N_MEMBERS && strcmp(members[i].name, name) != 0) i++;
    if (i < N_MEMBERS) return json_kind(v) == JSON_KIND_NULL ? 0 : members[i].take(t, name, v);
    (void)fault_set(t->f, 400, name, "'%.60s' is no parameter that is supported here", name);
    t->f->code = "unknown_parameter";
    return -1;
}

/* What a response says of parameters that were not given. */
static struct json *new_echo(void)
{
    static const char *const nulls[] = {"instructions", "max_output_tokens", "max_tool_calls",
                                        "previous_response_id", "user"};
    struct json *o = json_new_object(), *text = json_new_object(), *format = json_new_object(),
                *reasoning = json_new_object();
    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++) json_put_null(o, nulls[i]);
    json_put_bool(o, "background", false);
    json_put_bool(o, "store", false);
    json_put_bool(o, "parallel_tool_calls", true);
    json_put_real(o, "temperature", 1);
    json_put_real(o, "top_p", 1);
    json_put_int(o, "top_logprobs", 0);
    put_text(o, "service_tier", "default");
    put_text(o, "tool_choice", "auto");
    put_text(o, "truncation", "disabled");
    json_put(o, "tools", json_new_array());
    json_put(o, "metadata", json_new_object());
    put_text(format, "type", "text");
    json_put(text, "format", format);
    json_put(o, "text", text);
    json_put_null(reasoning, "effort");
    json_put_null(reasoning, "summary");
    json_put(o, "reasoning", reasoning);
    return o;
}

struct json *response_translate(const struct json *body, struct json **ret_echo, struct fault *f)
{
    const char *key;
    size_t n;
    const struct json *v;
    if (json_kind(body) != JSON_KIND_OBJECT) {
        (void)fault_set(f, 400, NULL, "the body is no JSON object");
        return NULL;
    }
    struct translation t = {json_new_object(), new_echo(), f};
    int rc = 0;
    for (void *at = NULL; rc == 0 && json_next(body, &at, &key, &n, &v);)
        rc = take_member(&t, key, v);
    struct json *messages = rc == 0 ? translate_input(body, f) : NULL;
    if (messages) {
        json_put(t.chat, "messages", messages);
        *ret_echo = t.echo;
        return t.chat;
    }
    json_free(t.chat);
    json_free(t.echo);
    return NULL;
}

void response_rename(struct fault *f)
{
    static const char *const names[][2] = {{"messages", "input"},
                                           {"max_tokens", "max_output_tokens"},
                                           {"response_format", "text.format"},
                                           {"reasoning_effort", "reasoning.effort"}};
    char text[sizeof f->text], quoted[64];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n = strlen(names[i][0]);
        if (strncmp(f->param, names[i][0], n) != 0 || !strchr(".[", f->param[n])) continue;
        (void)snprintf(f->param, sizeof f->param, "%s", names[i][1]);
        (void)snprintf(quoted, sizeof quoted, "'%s'", names[i][0]);
        const char *at = strstr(f->text, quoted);
        if (!at) return;
        (void)snprintf(text, sizeof text, "%.*s'%s'%.*s", (int)(at - f->text), f->text, names[i][1],
                       400, at + strlen(quoted));
        (void)snprintf(f->text, sizeof f->text, "%s", text);
        err_clean(f->text); /* the limit may have cut a character */
        return;
    }
}

/* ---- the answer ---- */

static void put_usage(struct json *o, const struct response_head *h)
{
    struct json *u = json_new_object(), *in = json_new_object(), *out = json_new_object();
    json_put_u64(u, "input_tokens", h->n_prompt);
    json_put_u64(in, "cached_tokens", h->n_cached);
    json_put(u, "input_tokens_details", in);
    json_put_u64(u, "output_tokens", h->n_answer);
    json_put_u64(out, "reasoning_tokens", h->n_reasoning);
    json_put(u, "output_tokens_details", out);
    json_put_u64(u, "total_tokens", h->n_prompt + h->n_answer);
    json_put(o, "usage", u);
}

/* Of the errors that the API has. */
static struct json *error_json(const struct fault *f)
{
    struct json *o = json_new_object();
    put_text(o, "code",
             f->http == 429  ? "rate_limit_exceeded"
             : f->http < 500 ? "invalid_prompt"
                             : "server_error");
    put_text(o, "message", f->text);
    return o;
}

static struct json *response_json(const struct response_head *h, const struct response_stream *s,
                                  const char *status, const struct fault *f)
{
    struct json *o = json_new_object();
    const char *key;
    size_t n;
    const struct json *v;
    put_text(o, "id", h->id);
    put_text(o, "object", "response");
    json_put_u64(o, "created_at", h->created_s);
    put_text(o, "status", status);
    if (f)
        json_put(o, "error", error_json(f));
    else
        json_put_null(o, "error");
    if (strcmp(status, "incomplete") == 0) {
        struct json *why = json_new_object();
        put_text(why, "reason", "max_output_tokens");
        json_put(o, "incomplete_details", why);
    } else {
        json_put_null(o, "incomplete_details");
    }
    put_text(o, "model", h->model ? h->model : "");
    json_put(o, "output", s->output ? json_share(s->output) : json_new_array());
    for (void *at = NULL; json_next(h->echo, &at, &key, &n, &v);) json_put(o, key, json_share(v));
    if (strcmp(status, "in_progress") == 0)
        json_put_null(o, "usage");
    else
        put_usage(o, h);
    return o;
}

/* ---- events ---- */

/* to: NULL where nobody wants events. */
static void put_event(struct response_stream *s, const char *type, struct json *moved,
                      struct buf *to)
{
    if (!to) {
        json_free(moved);
        return;
    }
    put_text(moved, "type", type);
    json_put_u64(moved, "sequence_number", s->n_events++);
    sse_event(to, type, moved);
}

static void put_response(struct response_stream *s, const char *type, struct json *response,
                         struct buf *to)
{
    struct json *o = json_new_object();
    json_put(o, "response", response);
    put_event(s, type, o, to);
}

static size_t n_items(const struct response_stream *s)
{
    size_t n = 0;
    (void)json_count(s->output, &n);
    return n;
}

static void put_id(struct json *o, const char *key, const struct response_stream *s,
                   const struct response_head *h)
{
    static const char *const kinds[] = {"", "rs", "msg", "fc"};
    char id[96];
    (void)snprintf(id, sizeof id, "%s-%.60s-%zu", kinds[s->item], h->id, n_items(s));
    put_text(o, key, id);
}

/* What the present item says, as its part. */
static struct json *part_json(const struct response_stream *s)
{
    struct json *o = json_new_object();
    bool message = s->item == ITEM_MESSAGE;
    put_text(o, "type", message ? "output_text" : "reasoning_text");
    json_put_string(o, "text", s->text.data ? s->text.data : "", s->text.len);
    if (message) json_put(o, "annotations", json_new_array());
    if (message) json_put(o, "logprobs", json_new_array());
    return o;
}

static void put_call(struct json *o, const struct response_stream *s, const struct choice *c)
{
    const struct split_call *call = &c->split.calls[s->call];
    struct json *id = json_new_object();
    choice_put_call_id(id, c, s->call);
    json_put(o, "call_id", json_share(json_get(id, "id")));
    json_free(id);
    json_put_string(o, "name", call->name.data ? call->name.data : "", call->name.len);
    json_put_string(o, "arguments", s->text.data ? s->text.data : "", s->text.len);
}

static struct json *item_json(const struct response_stream *s, const struct response_head *h,
                              const struct choice *c, const char *status)
{
    static const char *const types[] = {"", "reasoning", "message", "function_call"};
    struct json *o = json_new_object();
    put_text(o, "type", types[s->item]);
    put_id(o, "id", s, h);
    put_text(o, "status", status);
    if (s->item == ITEM_CALL) {
        put_call(o, s, c);
        return o;
    }
    struct json *content = json_new_array();
    if (strcmp(status, "in_progress") != 0) json_add(content, part_json(s));
    if (s->item == ITEM_MESSAGE)
        put_text(o, "role", "assistant");
    else
        json_put(o, "summary", json_new_array());
    json_put(o, "content", content);
    return o;
}

/* The head of an event within the present item. */
static struct json *of_item(const struct response_stream *s, const struct response_head *h)
{
    struct json *o = json_new_object();
    put_id(o, "item_id", s, h);
    json_put_u64(o, "output_index", n_items(s));
    if (s->item != ITEM_CALL) json_put_int(o, "content_index", 0);
    return o;
}

static const char *event_name(const struct response_stream *s, bool done)
{
    static const char *const names[][2] = {
        {"", ""},
        {"response.reasoning_text.delta", "response.reasoning_text.done"},
        {"response.output_text.delta", "response.output_text.done"},
        {"response.function_call_arguments.delta", "response.function_call_arguments.done"}};
    return names[s->item][done];
}

static void put_item(struct response_stream *s, const char *type, struct json *item, struct buf *to)
{
    struct json *o = json_new_object();
    json_put_u64(o, "output_index", n_items(s));
    json_put(o, "item", item);
    put_event(s, type, o, to);
}

static void put_part(struct response_stream *s, const struct response_head *h, const char *type,
                     struct buf *to)
{
    struct json *o = of_item(s, h);
    json_put(o, "part", part_json(s));
    put_event(s, type, o, to);
}

static void end_item(struct response_stream *s, const struct response_head *h,
                     const struct choice *c, bool cut, struct buf *to)
{
    if (s->item == ITEM_NONE) return;
    bool call = s->item == ITEM_CALL;
    struct json *o = of_item(s, h), *item = item_json(s, h, c, cut ? "incomplete" : "completed");
    json_put_string(o, call ? "arguments" : "text", s->text.data ? s->text.data : "", s->text.len);
    if (call) json_put(o, "name", json_share(json_get(item, "name")));
    if (s->item == ITEM_MESSAGE) json_put(o, "logprobs", json_new_array());
    put_event(s, event_name(s, true), o, to);
    if (!call) put_part(s, h, "response.content_part.done", to);
    put_item(s, "response.output_item.done", json_share(item), to);
    if (!s->output) s->output = json_new_array();
    json_add(s->output, item);
    buf_close(&s->text);
    s->item = ITEM_NONE;
}

static void begin_item(struct response_stream *s, const struct response_head *h,
                       const struct choice *c, enum response_item item, struct buf *to)
{
    end_item(s, h, c, false, to);
    s->item = item;
    put_item(s, "response.output_item.added", item_json(s, h, c, "in_progress"), to);
    if (item != ITEM_CALL) put_part(s, h, "response.content_part.added", to);
}

/* Says more in the present item; what was said is dropped. */
static void add_delta(struct response_stream *s, const struct response_head *h, struct buf *said,
                      struct buf *to)
{
    struct json *o = of_item(s, h);
    json_put_string(o, "delta", said->data, said->len);
    if (s->item == ITEM_MESSAGE) json_put(o, "logprobs", json_new_array());
    put_event(s, event_name(s, false), o, to);
    (void)buf_append(&s->text, said->data, said->len);
    buf_close(said);
}

/* What is new of the present call. */
static void take_arguments(struct response_stream *s, const struct response_head *h,
                           struct choice *c, struct buf *to)
{
    struct buf *arguments = s->item == ITEM_CALL ? &c->split.calls[s->call].arguments : NULL;
    if (arguments && arguments->len) add_delta(s, h, arguments, to);
}

/* Text that stands behind a call may have come together with the call's last arguments, so those
 * are told first. */
static void take_news(struct response_stream *s, const struct response_head *h, struct choice *c,
                      struct buf *to)
{
    take_arguments(s, h, c, to);
    if (c->reasoning.len) {
        if (s->item != ITEM_REASONING) begin_item(s, h, c, ITEM_REASONING, to);
        add_delta(s, h, &c->reasoning, to);
    }
    if (c->text.len) {
        if (s->item != ITEM_MESSAGE) begin_item(s, h, c, ITEM_MESSAGE, to);
        add_delta(s, h, &c->text, to);
    }
    for (; c->told_calls < c->split.n_calls; c->told_calls++) {
        end_item(s, h, c, false, to); /* while s->call is still its own */
        s->call = c->told_calls;
        begin_item(s, h, c, ITEM_CALL, to);
        take_arguments(s, h, c, to);
    }
}

/* An answer without any item is an empty message. */
static void take_end(struct response_stream *s, const struct response_head *h, struct choice *c,
                     struct buf *to)
{
    if (s->item == ITEM_NONE && n_items(s) == 0) begin_item(s, h, c, ITEM_MESSAGE, to);
    end_item(s, h, c, c->finish == FINISH_LENGTH, to);
}

static const char *status_of(const struct choice *c)
{
    return c->finish == FINISH_LENGTH ? "incomplete" : "completed";
}

struct json *response_whole(const struct response_head *h, struct choice *c)
{
    struct response_stream s = {.begun = true};
    take_news(&s, h, c, NULL);
    take_end(&s, h, c, NULL);
    struct json *o = response_json(h, &s, status_of(c), NULL);
    response_close(&s);
    return o;
}

static void put_failure(struct response_stream *s, const struct response_head *h,
                        const struct fault *f, struct buf *to)
{
    struct json *o = json_new_object();
    put_text(o, "code", f->code ? f->code : fault_type(f->http));
    put_text(o, "message", f->text);
    if (f->param[0])
        put_text(o, "param", f->param);
    else
        json_put_null(o, "param");
    put_event(s, "error", o, to);
    put_response(s, "response.failed", response_json(h, s, "failed", f), to);
}

void response_events(struct response_stream *s, const struct response_head *h, struct choice *c,
                     bool ends, const struct fault *f, struct buf *to)
{
    if (!s->begun) {
        put_response(s, "response.created", response_json(h, s, "in_progress", NULL), to);
        put_response(s, "response.in_progress", response_json(h, s, "in_progress", NULL), to);
        s->begun = true;
    }
    take_news(s, h, c, to);
    if (!ends) return;
    if (f) {
        put_failure(s, h, f, to);
        return;
    }
    take_end(s, h, c, to);
    bool cut = c->finish == FINISH_LENGTH;
    put_response(s, cut ? "response.incomplete" : "response.completed",
                 response_json(h, s, status_of(c), NULL), to);
}

void response_close(struct response_stream *s)
{
    buf_close(&s->text);
    json_free(s->output);
    *s = (struct response_stream){.begun = false};
}
