/* Texts and conversations to token ids, and back: /tokenize, /detokenize, /apply-template. Bodies
 * and replies have the names that other servers give them. */
#include "coordinator/gateway/gateway_state.h"

#include "common/base/mem.h"
#include "common/base/utf8.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <string.h>

static int parse(struct httpd_request *r, struct json **ret, struct fault *f)
{
    struct errmsg em = {0};
    size_t n;
    const char *body = httpd_body(r, &n);
    if (json_read(body, n, ret, &em) < 0)
        return fault_set(f, 400, NULL, "the body: %.400s", em.text);
    if (json_kind(*ret) == JSON_KIND_OBJECT) return 0;
    json_free(*ret);
    return fault_set(f, 400, NULL, "the body is no JSON object");
}

/* A model that is named is the one that is served, as far as its name is known here. */
static int check_model(const struct gateway *g, const char *model, struct fault *f)
{
    if (!model || !model[0] || !g->model || strcmp(model, g->model) == 0) return 0;
    (void)fault_set(f, 404, "model", "there is no model '%.200s'", model);
    f->code = "model_not_found";
    return -1;
}

static struct json *make_tokens(struct query *q, const void *body, size_t bytes, struct fault *f)
{
    struct errmsg em = {0};
    struct msg_tokens t;
    if (wire_get_tokens(body, bytes, &q->arena, &t, &em) < 0) return query__unread(f, &em);
    struct json *o = json_new_object();
    json_put(o, "tokens", json_tokens(t.tokens, t.n));
    json_put_int(o, "count", t.n);
    return o;
}

static struct json *make_prompt(struct query *q, const void *body, size_t bytes, struct fault *f)
{
    struct errmsg em = {0};
    struct msg_tokens t;
    if (wire_get_tokens(body, bytes, &q->arena, &t, &em) < 0) return query__unread(f, &em);
    struct json *o = json_new_object();
    json_put_string(o, "prompt", t.prompt, t.prompt ? strlen(t.prompt) : 0);
    return o;
}

static struct json *make_text(struct query *q, const void *body, size_t bytes, struct fault *f)
{
    struct errmsg em = {0};
    const char *raw;
    size_t n, len;
    int32_t c;
    if (wire_get_bytes(body, bytes, &q->arena, &raw, &n, &em) < 0) return query__unread(f, &em);
    struct buf text = {0};
    for (size_t i = 0; i < n; i += len) { /* tokens may end within a character */
        bool whole = utf8_decode(raw + i, n - i, &len, &c) == UTF8_WHOLE;
        (void)buf_append(&text, whole ? raw + i : "\xef\xbf\xbd", whole ? len : 3);
    }
    struct json *o = json_new_object();
    json_put_string(o, "content", text.data, text.len);
    buf_close(&text);
    return o;
}

static struct json *make_count(struct query *q, const void *body, size_t bytes, struct fault *f)
{
    struct errmsg em = {0};
    struct msg_tokens t;
    if (wire_get_tokens(body, bytes, &q->arena, &t, &em) < 0) return query__unread(f, &em);
    struct json *o = json_new_object();
    json_put_int(o, "input_tokens", t.n);
    return o;
}

static void ask_chat(struct gateway *g, struct httpd_request *r, const struct ask *a,
                     query_make_fn make)
{
    struct buf m = {0};
    struct fault f;
    if (check_model(g, a->request.model, &f) < 0) {
        gateway__refuse(g, r, &f);
        return;
    }
    wire_put_tokenize(&(struct msg_tokenize){.chat = a->chat.data}, &m);
    query__ask(query__new(g, r, make), "Tokenize", m.data, m.len);
    buf_close(&m);
}

/* The body is that of a chat's completion. */
static void chat(struct gateway *g, struct httpd_request *r, bool tokens)
{
    struct fault f;
    struct ask a;
    size_t n;
    const char *body = httpd_body(r, &n);
    if (ask_read(ASK_CHAT, body, n, &a, &f) < 0) {
        gateway__refuse(g, r, &f);
        return;
    }
    ask_chat(g, r, &a, tokens ? make_tokens : make_prompt);
    ask_close(&a);
}

void tokenize__count(struct gateway *g, struct httpd_request *r)
{
    struct fault f;
    struct ask a;
    if (job__read_anthropic(r, true, &a, &f) < 0) {
        gateway__refuse(g, r, &f);
        return;
    }
    ask_chat(g, r, &a, make_count);
    ask_close(&a);
}

void tokenize__template(struct gateway *g, struct httpd_request *r)
{
    chat(g, r, false);
}

struct text_request {
    const char *text, *model; /* model may be NULL */
    bool special;
};

static int read_text(const struct json *doc, struct text_request *ret, struct fault *f)
{
    const char *key;
    size_t n;
    const struct json *v;
    *ret = (struct text_request){.special = true};
    for (void *at = NULL; json_next(doc, &at, &key, &n, &v);) {
        bool right = json_kind(v) == JSON_KIND_NULL;
        if (strcmp(key, "content") == 0 || strcmp(key, "prompt") == 0)
            right = json_as_string(v, &ret->text, &n);
        else if (strcmp(key, "special") == 0)
            right |= json_as_bool(v, &ret->special);
        else if (strcmp(key, "model") == 0)
            right |= json_as_string(v, &ret->model, &n);
        else
            return fault_set(f, 400, key, "'%.60s' is no parameter that is supported here", key);
        if (!right) return fault_set(f, 400, key, "'%.60s' has a value of a wrong kind", key);
    }
    if (ret->text) return 0;
    return fault_set(f, 400, "content", "'content' (a text) or 'messages' is missing");
}

void tokenize__text(struct gateway *g, struct httpd_request *r)
{
    struct fault f;
    struct json *doc;
    struct text_request t;
    struct buf m = {0};
    if (parse(r, &doc, &f) < 0) {
        gateway__refuse(g, r, &f);
        return;
    }
    bool is_chat = json_kind(json_get(doc, "messages")) != JSON_KIND_NULL;
    if (is_chat) {
        chat(g, r, true);
    } else if (read_text(doc, &t, &f) < 0 || check_model(g, t.model, &f) < 0) {
        gateway__refuse(g, r, &f);
    } else {
        wire_put_tokenize(&(struct msg_tokenize){.text = t.text, .special = t.special}, &m);
        query__ask(query__new(g, r, make_tokens), "Tokenize", m.data, m.len);
    }
    buf_close(&m);
    json_free(doc);
}

static int read_tokens(const struct json *doc, struct buf *ret, const char **ret_model,
                       struct fault *f)
{
    const struct json *v = json_get(doc, "tokens"), *x;
    const char *key;
    size_t n;
    uint64_t id;
    for (void *at = NULL; json_next(doc, &at, &key, &n, &x);) {
        if (strcmp(key, "model") == 0 &&
            (json_as_string(x, ret_model, &n) || json_kind(x) == JSON_KIND_NULL))
            continue;
        if (strcmp(key, "tokens") != 0)
            return fault_set(f, 400, key, "'%.60s' is no parameter that is supported here", key);
    }
    if (!json_count(v, &n) || n > LIMIT_CONTEXT)
        return fault_set(f, 400, "tokens", "'tokens' must be an array of at most %u token ids",
                         LIMIT_CONTEXT);
    for (size_t i = 0; i < n; i++) {
        if (!json_as_u64(json_at(v, i), &id) || id > INT32_MAX)
            return fault_set(f, 400, "tokens", "'tokens': item %zu is no token id", i);
        (void)buf_append(ret, &(int32_t){(int32_t)id}, sizeof(int32_t));
    }
    return 0;
}

void tokenize__back(struct gateway *g, struct httpd_request *r)
{
    struct fault f;
    struct json *doc;
    struct buf ids = {0}, m = {0};
    const char *model = NULL;
    if (parse(r, &doc, &f) < 0) {
        gateway__refuse(g, r, &f);
        return;
    }
    if (read_tokens(doc, &ids, &model, &f) < 0 || check_model(g, model, &f) < 0) {
        gateway__refuse(g, r, &f);
    } else {
        wire_put_detokenize((const int32_t *)(const void *)ids.data,
                            (uint32_t)(ids.len / sizeof(int32_t)), &m);
        query__ask(query__new(g, r, make_text), "Detokenize", m.data, m.len);
    }
    buf_close(&ids);
    buf_close(&m);
    json_free(doc);
}
