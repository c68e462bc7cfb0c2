#include "coordinator/gateway/message.h"

#include "coordinator/gateway/sse.h"

#include <string.h>

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

/* ---- the body ---- */

static struct json *wrong(struct fault *f, const char *name, const char *what)
{
    (void)fault_set(f, 400, name, "'%s' %s", name, what);
    return NULL;
}

/* A text, or blocks of text, as one text. */
static int join(const struct json *v, const char *name, struct buf *to, struct fault *f)
{
    const char *text, *type;
    size_t n, len;
    if (json_as_string(v, &text, &n)) return buf_append(to, text, n);
    if (!json_count(v, &n))
        return fault_set(f, 400, name, "'%s' is neither a text nor an array of blocks", name);
    for (size_t i = 0; i < n; i++) {
        const struct json *block = json_at(v, i);
        if (!json_as_string(json_get(block, "type"), &type, &len) || strcmp(type, "text") != 0 ||
            !json_as_string(json_get(block, "text"), &text, &len))
            return fault_set(f, 400, name,
                             "'%s': block %zu is no text, and others are not "
                             "supported",
                             name, i);
        (void)buf_append(to, text, len);
    }
    return 0;
}

static struct json *new_message(const char *role, const struct buf *text)
{
    struct json *o = json_new_object();
    put_text(o, "role", role);
    json_put_string(o, "content", text->data, text->len);
    return o;
}

/* A message of blocks: results of tools stand before it, as messages of their own. */
struct blocks {
    struct json *to; /* messages */
    struct buf text, reasoning;
    struct json *calls; /* or NULL */
    bool said;          /* it has something beside results of tools */
};

static void add_call(struct blocks *b, const struct json *block)
{
    struct json *call = json_new_object(), *function = json_new_object();
    json_put(call, "id", json_share(json_get(block, "id")));
    put_text(call, "type", "function");
    json_put(function, "name", json_share(json_get(block, "name")));
    json_put(function, "arguments", json_share(json_get(block, "input")));
    json_put(call, "function", function);
    if (!b->calls) b->calls = json_new_array();
    json_add(b->calls, call);
}

static int add_result(struct blocks *b, const struct json *block, struct fault *f)
{
    struct buf text = {0};
    const struct json *content = json_get(block, "content");
    int rc = json_kind(content) == JSON_KIND_NULL ? 0 : join(content, "messages", &text, f);
    if (rc == 0) {
        struct json *o = new_message("tool", &text);
        json_put(o, "tool_call_id", json_share(json_get(block, "tool_use_id")));
        json_add(b->to, o);
    }
    buf_close(&text);
    return rc;
}

static int add_block(struct blocks *b, const struct json *block, struct fault *f)
{
    const char *type, *text;
    size_t n;
    if (!json_as_string(json_get(block, "type"), &type, &n))
        return fault_set(f, 400, "messages", "'messages': a block has no type");
    if (strcmp(type, "tool_result") == 0) return add_result(b, block, f);
    b->said = true;
    if (strcmp(type, "text") == 0 && json_as_string(json_get(block, "text"), &text, &n))
        return buf_append(&b->text, text, n);
    if (strcmp(type, "thinking") == 0 && json_as_string(json_get(block, "thinking"), &text, &n))
        return buf_append(&b->reasoning, text, n);
    if (strcmp(type, "tool_use") == 0 && json_kind(json_get(block, "name")) == JSON_KIND_STRING) {
        add_call(b, block);
        return 0;
    }
    return fault_set(f, 400, "messages",
                     "'messages': a block of type '%.40s' is not supported, or "
                     "lacks what it must have",
                     type);
}

static int add_message(struct json *to, const struct json *m, struct fault *f)
{
    struct blocks b = {.to = to};
    const struct json *content = json_get(m, "content");
    const char *role, *text;
    size_t n = 0;
    if (!json_as_string(json_get(m, "role"), &role, &n) ||
        (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
         strcmp(role, "system") != 0))
        return fault_set(f, 400, "messages",
                         "'messages': a role is none of user, assistant, system");
    int rc = 0;
    if (json_as_string(content, &text, &n)) {
        rc = buf_append(&b.text, text, n);
        b.said = true;
    } else if (!json_count(content, &n)) {
        rc = fault_set(f, 400, "messages", "'messages': a content is neither a text nor an array");
    }
    b.said |= n == 0; /* an empty message is one */
    for (size_t i = 0; rc == 0 && json_kind(content) == JSON_KIND_ARRAY && i < n; i++)
        rc = add_block(&b, json_at(content, i), f);
    if (rc == 0 && b.said) {
        struct json *o = new_message(role, &b.text);
        if (b.reasoning.len)
            json_put_string(o, "reasoning_content", b.reasoning.data, b.reasoning.len);
        if (b.calls) json_put(o, "tool_calls", b.calls);
        b.calls = NULL;
        json_add(to, o);
    }
    json_free(b.calls);
    buf_close(&b.text);
    buf_close(&b.reasoning);
    return rc;
}

static struct json *translate_messages(const struct json *body, struct fault *f)
{
    const struct json *system = json_get(body, "system"), *messages = json_get(body, "messages");
    struct json *list = json_new_array();
    struct buf text = {0};
    size_t n = 0;
    int rc = 0;
    if (json_kind(system) != JSON_KIND_NULL) {
        rc = join(system, "system", &text, f);
        if (rc == 0) json_add(list, new_message("system", &text));
        buf_close(&text);
    }
    if (rc == 0 && (!json_count(messages, &n) || n == 0))
        rc = fault_set(f, 400, "messages", "'messages' must be an array of at least one message");
    for (size_t i = 0; i < n && rc == 0; i++) rc = add_message(list, json_at(messages, i), f);
    if (rc == 0) return list;
    json_free(list);
    return NULL;
}

static struct json *translate_tools(const struct json *v, struct fault *f)
{
    size_t n;
    if (!json_count(v, &n)) return wrong(f, "tools", "must be an array");
    struct json *list = json_new_array();
    for (size_t i = 0; i < n; i++) {
        const struct json *t = json_at(v, i), *schema = json_get(t, "input_schema");
        const struct json *type = json_get(t, "type");
        if (json_kind(type) != JSON_KIND_NULL && !is_text(type, "custom")) {
            json_free(list);
            (void)fault_set(f, 400, "tools", "'tools': tool %zu is not of type 'custom'", i);
            return NULL;
        }
        struct json *o = json_new_object(), *function = json_new_object();
        if (json_get(t, "name")) json_put(function, "name", json_share(json_get(t, "name")));
        if (json_get(t, "description"))
            json_put(function, "description", json_share(json_get(t, "description")));
        if (schema) json_put(function, "parameters", json_share(schema));
        if (json_kind(json_get(t, "strict")) != JSON_KIND_NULL)
            json_put(function, "strict", json_share(json_get(t, "strict")));
        put_text(o, "type", "function");
        json_put(o, "function", function);
        json_add(list, o);
    }
    return list;
}

/* {"type": "auto"} and the like. */
static bool translate_choice(const struct json *v, struct json *to, struct fault *f)
{
    const char *type = "";
    size_t n;
    bool one = false;
    (void)json_as_string(json_get(v, "type"), &type, &n);
    if (json_as_bool(json_get(v, "disable_parallel_tool_use"), &one) && one)
        json_put_bool(to, "parallel_tool_calls", false);
    if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0) {
        put_text(to, "tool_choice", type);
    } else if (strcmp(type, "any") == 0) {
        put_text(to, "tool_choice", "required");
    } else if (strcmp(type, "tool") == 0 && json_get(v, "name")) {
        struct json *o = json_new_object(), *function = json_new_object();
        json_put(function, "name", json_share(json_get(v, "name")));
        put_text(o, "type", "function");
        json_put(o, "function", function);
        json_put(to, "tool_choice", o);
    } else {
        (void)wrong(f, "tool_choice", "may be auto, none, any, or a tool with its name");
        return false;
    }
    return true;
}

/* What templates have a switch for is switched: `enable_thinking`, which others do not look at. How
 * much the model thinks is its own affair, as it is with this API: a budget is no limit, but
 * `max_tokens` is one for thoughts too. */
static bool translate_thinking(const struct json *v, struct json *to, struct fault *f)
{
    const struct json *type = json_get(v, "type"), *display = json_get(v, "display");
    bool off = is_text(type, "disabled");
    if (!off && !is_text(type, "enabled") && !is_text(type, "adaptive")) {
        (void)wrong(f, "thinking", "may be of type enabled, adaptive or disabled");
        return false;
    }
    if (json_kind(display) != JSON_KIND_NULL && !is_text(display, "summarized")) {
        (void)wrong(f, "thinking", "is always displayed");
        return false;
    }
    struct json *kwargs = json_new_object();
    json_put_bool(kwargs, "enable_thinking", !off);
    json_put(to, "chat_template_kwargs", kwargs);
    return true;
}

/* The form of the answer, and how hard the model shall try. */
static bool translate_output(const struct json *v, struct json *to, struct fault *f)
{
    const char *key;
    size_t n;
    const struct json *x;
    if (json_kind(v) != JSON_KIND_OBJECT) {
        (void)wrong(f, "output_config", "must be an object");
        return false;
    }
    for (void *at = NULL; json_next(v, &at, &key, &n, &x);) {
        if (json_kind(x) == JSON_KIND_NULL) continue;
        if (strcmp(key, "effort") == 0) {
            json_put(to, "reasoning_effort", json_share(x));
        } else if (strcmp(key, "format") == 0 && is_text(json_get(x, "type"), "json_schema") &&
                   json_get(x, "schema")) {
            json_put(to, "json_schema", json_share(json_get(x, "schema")));
        } else {
            (void)fault_set(f, 400, "output_config",
                            "'output_config': '%.60s' is not known, or no 'json_schema' with its "
                            "'schema'",
                            key);
            return false;
        }
    }
    return true;
}

/* Of a tier those that any server has. */
static bool check_tier(const struct json *v, struct fault *f)
{
    if (is_text(v, "auto") || is_text(v, "standard_only")) return true;
    (void)wrong(f, "service_tier", "may be auto or standard_only");
    return false;
}

/* One member of the body. False: it is wrong. */
static bool translate_one(struct json *to, const char *key, const struct json *v, struct fault *f)
{
    static const char *const same[] = {"model",       "max_tokens", "stream",
                                       "temperature", "top_p",      "top_k"};
    struct json *x;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (strcmp(key, same[i]) == 0) {
            json_put(to, key, json_share(v));
            return true;
        }
    if (strcmp(key, "messages") == 0 || strcmp(key, "system") == 0) return true;
    if (json_kind(v) == JSON_KIND_NULL) return true;
    if (strcmp(key, "cache_control") == 0) return true; /* equal beginnings are found without it */
    if (strcmp(key, "stop_sequences") == 0) {
        json_put(to, "stop", json_share(v));
    } else if (strcmp(key, "metadata") == 0) {
        const struct json *user = json_get(v, "user_id");
        if (json_kind(user) != JSON_KIND_NULL) json_put(to, "user", json_share(user));
    } else if (strcmp(key, "tools") == 0) {
        if ((x = translate_tools(v, f))) json_put(to, "tools", x);
        return x != NULL;
    } else if (strcmp(key, "tool_choice") == 0) {
        return translate_choice(v, to, f);
    } else if (strcmp(key, "thinking") == 0) {
        return translate_thinking(v, to, f);
    } else if (strcmp(key, "output_config") == 0) {
        return translate_output(v, to, f);
    } else if (strcmp(key, "service_tier") == 0) {
        return check_tier(v, f);
    } else {
        (void)fault_set(f, 400, key, "'%.60s' is no parameter that is supported here", key);
        return false;
    }
    return true;
}

/* The API would have the model go on from there. */
static bool ends_with_an_answer(const struct json *body)
{
    const struct json *messages = json_get(body, "messages");
    size_t n = 0;
    return json_count(messages, &n) && n > 0 &&
           is_text(json_get(json_at(messages, n - 1), "role"), "assistant");
}

struct json *message_translate(const struct json *body, bool counts, struct fault *f)
{
    const char *key;
    size_t n;
    const struct json *v;
    if (json_kind(body) != JSON_KIND_OBJECT) {
        (void)fault_set(f, 400, NULL, "the body is no JSON object");
        return NULL;
    }
    struct json *to = json_new_object();
    bool right = true;
    for (void *at = NULL; right && json_next(body, &at, &key, &n, &v);)
        right = translate_one(to, key, v, f);
    if (right && !counts && json_kind(json_get(body, "max_tokens")) == JSON_KIND_NULL)
        right = wrong(f, "max_tokens", "is missing") != NULL;
    struct json *messages = right ? translate_messages(body, f) : NULL;
    if (messages && !counts && ends_with_an_answer(body)) {
        (void)wrong(f, "messages",
                    "ends with the assistant: an answer that was begun cannot be gone on with");
        json_free(messages);
        messages = NULL;
    }
    if (messages) {
        json_put(to, "messages", messages);
        return to;
    }
    json_free(to);
    return NULL;
}

/* ---- the answer ---- */

static struct json *usage_json(const struct message_usage *u)
{
    struct json *o = json_new_object();
    json_put_u64(o, "input_tokens", u->prompt - (u->cached < u->prompt ? u->cached : u->prompt));
    json_put_u64(o, "cache_read_input_tokens", u->cached);
    json_put_u64(o, "cache_creation_input_tokens", 0);
    json_put_u64(o, "output_tokens", u->answer);
    return o;
}

/* An answer that is not whole has no reason yet. */
static void put_stop(struct json *o, const struct message_head *h, const struct choice *c,
                     bool ended)
{
    const char *stop = ended && c->finish == FINISH_STOP && !c->split.n_calls ? h->stop : NULL;
    if (!ended)
        json_put_null(o, "stop_reason");
    else
        put_text(o, "stop_reason",
                 c->finish == FINISH_LENGTH ? "max_tokens"
                 : c->split.n_calls         ? "tool_use"
                 : stop                     ? "stop_sequence"
                                            : "end_turn");
    if (stop)
        put_text(o, "stop_sequence", stop);
    else
        json_put_null(o, "stop_sequence");
}

static struct json *head_json(const struct message_head *h, const struct choice *c, bool ended,
                              struct json *content)
{
    struct json *o = json_new_object();
    put_text(o, "id", h->id);
    put_text(o, "type", "message");
    put_text(o, "role", "assistant");
    put_text(o, "model", h->model ? h->model : "");
    json_put(o, "content", content);
    put_stop(o, h, c, ended);
    json_put(o, "usage", usage_json(&h->usage));
    return o;
}

static struct json *block_json(const char *type, const char *key, const char *text, size_t n)
{
    struct json *o = json_new_object();
    put_text(o, "type", type);
    json_put_string(o, key, text, n);
    return o;
}

static struct json *tool_json(const struct choice *c, uint32_t i, bool whole)
{
    const struct split_call *call = &c->split.calls[i];
    struct json *o = block_json("tool_use", "name", call->name.data, call->name.len), *input = NULL;
    choice_put_call_id(o, c, i);
    if (!whole || json_read(call->arguments.data ? call->arguments.data : "", call->arguments.len,
                            &input, NULL) < 0)
        input = json_new_object(); /* a call that the limit cut off */
    json_put(o, "input", input);
    return o;
}

struct json *message_whole(const struct message_head *h, struct choice *c)
{
    struct json *content = json_new_array();
    if (c->reasoning.len) {
        struct json *o = block_json("thinking", "thinking", c->reasoning.data, c->reasoning.len);
        put_text(o, "signature", "");
        json_add(content, o);
    }
    if (c->text.len || !c->split.n_calls)
        json_add(content, block_json("text", "text", c->text.data, c->text.len));
    for (uint32_t i = 0; i < c->split.n_calls; i++) json_add(content, tool_json(c, i, true));
    return head_json(h, c, true, content);
}

/* ---- events ---- */

static void put_event(struct buf *to, const char *type, struct json *moved)
{
    put_text(moved, "type", type);
    sse_event(to, type, moved);
}

static struct json *of_block(const struct message_stream *s)
{
    struct json *o = json_new_object();
    json_put_int(o, "index", (int64_t)s->n_blocks - 1);
    return o;
}

static void end_block(struct message_stream *s, struct buf *to)
{
    if (s->block != BLOCK_NONE) put_event(to, "content_block_stop", of_block(s));
    s->block = BLOCK_NONE;
}

static void begin_block(struct message_stream *s, struct json *block, struct buf *to)
{
    end_block(s, to);
    s->n_blocks++;
    struct json *o = of_block(s);
    json_put(o, "content_block", block);
    put_event(to, "content_block_start", o);
}

static void put_delta(const struct message_stream *s, const char *type, const char *key,
                      struct buf *text, struct buf *to)
{
    struct json *o = of_block(s);
    json_put(o, "delta", block_json(type, key, text->data, text->len));
    put_event(to, "content_block_delta", o);
    buf_close(text);
}

/* What is new of the call that was begun last, which is the present block. */
static void put_arguments(const struct message_stream *s, struct choice *c, struct buf *to)
{
    struct buf *arguments =
        s->block == BLOCK_TOOL ? &c->split.calls[c->told_calls - 1].arguments : NULL;
    if (arguments && arguments->len)
        put_delta(s, "input_json_delta", "partial_json", arguments, to);
}

static void put_calls(struct message_stream *s, struct choice *c, struct buf *to)
{
    struct split *p = &c->split;
    while (c->told_calls < p->n_calls) {
        begin_block(s, tool_json(c, c->told_calls, false), to);
        s->block = BLOCK_TOOL;
        c->told_calls++;
        put_arguments(s, c, to);
    }
}

void message_events(struct message_stream *s, const struct message_head *h, struct choice *c,
                    bool ends, struct buf *to)
{
    if (!s->begun) {
        struct json *o = json_new_object();
        json_put(o, "message", head_json(h, c, false, json_new_array()));
        put_event(to, "message_start", o);
        s->begun = true;
    }
    put_arguments(s, c, to); /* before text that came together with them, and stands behind */
    if (c->reasoning.len) {
        if (s->block != BLOCK_THINKING) {
            struct json *block = block_json("thinking", "thinking", "", 0);
            put_text(block, "signature", "");
            begin_block(s, block, to);
        }
        s->block = BLOCK_THINKING;
        put_delta(s, "thinking_delta", "thinking", &c->reasoning, to);
    }
    if (c->text.len) {
        if (s->block != BLOCK_TEXT) begin_block(s, block_json("text", "text", "", 0), to);
        s->block = BLOCK_TEXT;
        put_delta(s, "text_delta", "text", &c->text, to);
    }
    put_calls(s, c, to);
    if (!ends) return;
    end_block(s, to);
    struct json *o = json_new_object(), *delta = json_new_object();
    put_stop(delta, h, c, true);
    json_put(o, "delta", delta);
    json_put(o, "usage", usage_json(&h->usage));
    put_event(to, "message_delta", o);
    put_event(to, "message_stop", json_new_object());
}

void message_fault(const struct fault *f, struct buf *to)
{
    struct json *whole = json_new_object(), *error = json_new_object();
    put_text(error, "type",
             f->http == 503   ? "overloaded_error"
             : f->http == 413 ? "request_too_large"
             : f->http >= 500 ? "api_error"
                              : fault_type(f->http));
    put_text(error, "message", f->text);
    put_text(whole, "type", "error");
    json_put(whole, "error", error);
    json_write(whole, to);
    json_free(whole);
}
