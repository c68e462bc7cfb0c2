#include "coordinator/conversation.h"

#include "common/base/mem.h"
#include "common/text/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MESSAGES_MAX 65536u
#define PARTS_MAX 4096u

/* Where in the conversation, for errors: "messages[3].content[0]". */
struct place {
    char text[96];
};

static int wrong(const struct place *at, const char *member, const char *what, struct errmsg *em)
{
    return err_set(em, ERR_RANGE, "field '%s%s%s': %s", at->text, member[0] ? "." : "", member,
                   what);
}

/* ---- contents ---- */

static int append_part(const struct place *at, const struct json *part, struct buf *to,
                       struct errmsg *em)
{
    const char *type, *text;
    size_t n;
    if (!json_as_string(json_get(part, "type"), &type, &n))
        return wrong(at, "type", "is not the name of a type", em);
    if (strcmp(type, "text") != 0)
        return err_set(em, ERR_RANGE, "field '%s': parts of type '%.40s' are not supported",
                       at->text, type);
    if (!json_as_string(json_get(part, "text"), &text, &n))
        return wrong(at, "text", "is not a string", em);
    (void)buf_append(to, text, n);
    return 0;
}

/* Parts of text are one text: they are joined as they are. */
static int join_parts(const struct place *message, const struct json *parts, size_t n,
                      struct json *to, struct errmsg *em)
{
    struct buf text = {0};
    int rc = n <= PARTS_MAX ? 0 : wrong(message, "content", "has too many parts", em);
    for (size_t i = 0; i < n && rc == 0; i++) {
        struct place at;
        (void)snprintf(at.text, sizeof at.text, "%.60s.content[%zu]", message->text, i);
        rc = append_part(&at, json_at(parts, i), &text, em);
    }
    if (rc == 0) json_put_string(to, "content", text.data, text.len);
    buf_close(&text);
    return rc;
}

/* What an assistant did not say is an empty text; everybody else has to say something. */
static int put_content(const struct place *at, const struct json *message, const char *role,
                       struct json *to, struct errmsg *em)
{
    const struct json *content = json_get(message, "content");
    const char *text;
    size_t n;
    if (json_as_string(content, &text, &n)) {
        json_put_string(to, "content", text, n);
        return 0;
    }
    if (json_count(content, &n)) return join_parts(at, content, n, to, em);
    if (json_kind(content) != JSON_KIND_NULL)
        return wrong(at, "content", "is neither a string nor an array of parts", em);
    if (strcmp(role, "assistant") != 0) return wrong(at, "content", "is missing", em);
    json_put_string(to, "content", "", 0);
    return 0;
}

/* ---- calls of tools ---- */

/* The API has arguments as a text in JSON; templates want what it says. */
static void put_function(const struct json *function, struct json *to)
{
    const char *key, *text;
    size_t n;
    const struct json *v;
    struct json *o = json_new_object();
    for (void *it = NULL; json_next(function, &it, &key, &n, &v);) {
        struct json *arguments = NULL;
        size_t bytes;
        bool parsed = strcmp(key, "arguments") == 0 && json_as_string(v, &text, &bytes) &&
                      json_read(text, bytes, &arguments, NULL) == 0;
        json_put(o, key, parsed ? arguments : json_share(v));
    }
    json_put(to, "function", o);
}

static int put_calls(const struct place *message, const struct json *calls, struct json *to,
                     struct errmsg *em)
{
    size_t n, len;
    const char *key;
    const struct json *v;
    if (json_kind(calls) == JSON_KIND_NULL) return 0;
    if (!json_count(calls, &n)) return wrong(message, "tool_calls", "is not an array", em);
    struct json *list = json_new_array();
    for (size_t i = 0; i < n; i++) {
        const struct json *call = json_at(calls, i), *function = json_get(call, "function");
        if (json_kind(function) != JSON_KIND_OBJECT ||
            json_kind(json_get(function, "name")) != JSON_KIND_STRING) {
            json_free(list);
            return err_set(em, ERR_RANGE, "field '%s.tool_calls[%zu].function': has no name",
                           message->text, i);
        }
        struct json *o = json_new_object();
        for (void *it = NULL; json_next(call, &it, &key, &len, &v);)
            if (strcmp(key, "function") != 0) json_put(o, key, json_share(v));
        put_function(function, o);
        json_add(list, o);
    }
    if (n)
        json_put(to, "tool_calls", list);
    else
        json_free(list);
    return 0;
}

/* ---- the conversation ---- */

static int put_message(const struct place *at, const struct json *message, struct json *to,
                       struct errmsg *em)
{
    const char *key, *role;
    size_t n;
    const struct json *v;
    if (json_kind(message) != JSON_KIND_OBJECT) return wrong(at, "", "is not an object", em);
    if (!json_as_string(json_get(message, "role"), &role, &n) || n == 0)
        return wrong(at, "role", "is missing, or not a string", em);
    struct json *o = json_new_object();
    int rc = 0;
    for (void *it = NULL; json_next(message, &it, &key, &n, &v);)
        if (strcmp(key, "content") != 0 && strcmp(key, "tool_calls") != 0)
            json_put(o, key, json_share(v));
    rc = put_content(at, message, role, o, em);
    if (rc == 0) rc = put_calls(at, json_get(message, "tool_calls"), o, em);
    if (rc == 0)
        json_add(to, o);
    else
        json_free(o);
    return rc;
}

static int read_messages(const struct json *chat, struct json **ret, struct errmsg *em)
{
    const struct json *messages = json_get(chat, "messages");
    size_t n;
    if (!json_count(messages, &n) || n == 0)
        return err_set(em, ERR_RANGE, "field 'messages': is not an array of at least one message");
    if (n > MESSAGES_MAX)
        return err_set(em, ERR_LIMIT, "field 'messages': has %zu messages, the limit is %u", n,
                       MESSAGES_MAX);
    struct json *list = json_new_array();
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        struct place at;
        (void)snprintf(at.text, sizeof at.text, "messages[%zu]", i);
        rc = put_message(&at, json_at(messages, i), list, em);
    }
    if (rc == 0)
        *ret = list;
    else
        json_free(list);
    return rc;
}

/* An error of the template, as clients are to hear it. */
static int explain(int rc, struct errmsg *em)
{
    if (rc == ERR_REFUSED)
        return err_wrap(em, ERR_RANGE, "field 'messages': the model's chat template refuses them");
    if (rc == ERR_NOMEM || rc == ERR_LIMIT) return err_wrap(em, rc, "field 'messages'");
    return err_wrap(em, ERR_RANGE, "field 'messages': the model's chat template fails");
}

static int render(const struct conversation_model *m, const struct json *chat,
                  const struct json *messages, struct template_prompt *ret, struct errmsg *em)
{
    struct template_input in = {.messages = messages,
                                .tools = json_get(chat, "tools"),
                                .documents = json_get(chat, "documents"),
                                .kwargs = json_get(chat, "kwargs"),
                                .add_generation_prompt = true,
                                .now_s = (int64_t)time(NULL)};
    (void)json_as_bool(json_get(chat, "add_generation_prompt"), &in.add_generation_prompt);
    int rc = chat_render(m->chat, &in, ret, em);
    return rc < 0 ? explain(rc, em) : 0;
}

/* What can never fit the context is not handed to the tokeniser. */
static int check_size(const struct conversation_model *m, const struct template_prompt *p,
                      struct errmsg *em)
{
    if (!m->ctx || p->bytes / m->token_bytes <= m->ctx) return 0;
    return err_set(em, ERR_LIMIT,
                   "field 'messages': a prompt of %zu bytes does not fit the context of %" PRIu32
                   " tokens: the longest token has %" PRIu32 " bytes",
                   p->bytes, m->ctx, m->token_bytes);
}

/* Some templates begin the reasoning for the model. */
static bool ends_in_thought(const struct template_prompt *p)
{
    static const char word[] = "<think>";
    size_t n = p->bytes;
    while (n && strchr(" \n\t", p->text[n - 1])) n--;
    return n >= strlen(word) && memcmp(p->text + n - strlen(word), word, strlen(word)) == 0;
}

int conversation_encode(const struct conversation_model *m, const char *json, size_t bytes,
                        struct tokens *ret, char **ret_prompt, bool *ret_open_thought,
                        struct errmsg *em)
{
    struct json *chat = NULL, *messages = NULL;
    struct template_prompt prompt = {.text = NULL};
    if (!m->chat) return err_set(em, ERR_RANGE, "field 'messages': %.400s", m->why);
    int rc = json_read(json, bytes, &chat, em);
    if (rc < 0) return err_wrap(em, ERR_RANGE, "field 'chat_json'");
    rc = read_messages(chat, &messages, em);
    if (rc == 0) rc = render(m, chat, messages, &prompt, em);
    if (rc == 0) rc = check_size(m, &prompt, em);
    if (rc == 0) rc = vocab_encode_runs(m->vocab, prompt.text, prompt.runs, prompt.n_runs, ret, em);
    if (rc == 0) *ret_open_thought = ends_in_thought(&prompt);
    if (rc == 0 && ret_prompt) {
        *ret_prompt = prompt.text;
        prompt.text = NULL;
    }
    template_prompt_close(&prompt);
    json_free(messages);
    json_free(chat);
    return rc;
}
