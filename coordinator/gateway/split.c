#include "coordinator/gateway/split.h"

#include "common/base/mem.h"
#include "common/text/format.h"

#include <string.h>

_Static_assert(SPLIT_BLANKS_MAX == FORMAT_BLANKS_MAX,
               "what is held to a form is what is found here");

static const char THINK[] = "<think>", THOUGHT[] = "</think>", TAG[] = "<tool_call>",
                  END_TAG[] = "</tool_call>", FENCE[] = "```";

void split_init(struct split *s, bool reasoning, bool open, const struct json *tools)
{
    *s = (struct split){.finds_thought = reasoning,
                        .tools = tools,
                        .state = reasoning && open ? SPLIT_THINK : SPLIT_START};
}

void split_close(struct split *s)
{
    for (uint32_t i = 0; i < s->n_calls; i++) {
        buf_close(&s->calls[i].name);
        buf_close(&s->calls[i].arguments);
    }
    mem_free(s->calls);
    buf_close(&s->reasoning);
    buf_close(&s->content);
    buf_close(&s->lead);
    buf_close(&s->held);
    *s = (struct split){.calls = NULL};
}

/* ---- text ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t blanks(const struct split *s, size_t from)
{
    while (from < s->held.len && is_blank(s->held.data[from])) from++;
    return from;
}

/* What stands in `held` from `at` on: the word, a beginning of it that may become it, or another
 * text. */
enum match { NO, MAYBE, YES };

static enum match match(const struct split *s, size_t at, const char *word)
{
    size_t n = strlen(word), left = s->held.len - at;
    if (left >= n) return memcmp(s->held.data + at, word, n) == 0 ? YES : NO;
    return left == 0 || memcmp(s->held.data + at, word, left) == 0 ? MAYBE : NO;
}

/* Where the word begins, or may begin at the end of the text; the text's length: nowhere. */
static size_t find(const struct split *s, const char *word, enum match *ret)
{
    size_t i = 0;
    for (*ret = NO; i < s->held.len; i++)
        if ((*ret = match(s, i, word)) != NO) break;
    return i;
}

static void move(struct split *s, struct buf *to, size_t n)
{
    (void)buf_append(to, s->held.data, n);
    buf_drop(&s->held, n);
}

/* ---- objects ---- */

/* The string at `at`, which is its quote: *ret_end is behind its end. */
static enum match string_end(const struct split *s, size_t at, size_t *ret_end)
{
    for (size_t i = at + 1; i < s->held.len; i++) {
        if (s->held.data[i] == '\\') {
            i++;
        } else if (s->held.data[i] == '"') {
            *ret_end = i + 1;
            return YES;
        }
    }
    return MAYBE;
}

/* A word behind blanks; *at is moved behind it. */
static enum match next(const struct split *s, size_t *at, const char *word)
{
    size_t from = blanks(s, *at);
    enum match m = match(s, from, word);
    if (m == YES) *at = from + strlen(word);
    return m;
}

/* The form in which nearly all calls are written: {"name": NAME, "arguments": {. *ret_name is where
 * NAME's quote is, *ret_value where the last brace is. */
static enum match head(const struct split *s, size_t *ret_name, size_t *ret_name_end,
                       size_t *ret_value)
{
    size_t at = 0, key;
    static const char *const words[] = {"{", "\"name\"", ":"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        enum match m = next(s, &at, words[i]);
        if (m != YES) return m;
    }
    *ret_name = at = blanks(s, at);
    enum match m = match(s, at, "\"");
    if (m != YES) return m;
    m = string_end(s, at, ret_name_end);
    if (m != YES) return m;
    at = *ret_name_end;
    m = next(s, &at, ",");
    if (m != YES) return m;
    key = at;
    m = next(s, &at, "\"arguments\"");
    if (m == NO) {
        at = key;
        m = next(s, &at, "\"parameters\"");
    }
    if (m == YES) m = next(s, &at, ":");
    if (m != YES) return m;
    *ret_value = at = blanks(s, at);
    return match(s, at, "{");
}

static bool is_tool(const struct split *s, const char *name, size_t n)
{
    size_t n_tools = 0, len;
    const char *text;
    (void)json_count(s->tools, &n_tools);
    for (size_t i = 0; i < n_tools; i++)
        if (json_as_string(json_get(json_get(json_at(s->tools, i), "function"), "name"), &text,
                           &len) &&
            len == n && memcmp(text, name, n) == 0)
            return true;
    return false;
}

/* NULL: there are too many. */
static struct split_call *add_call(struct split *s, const char *name, size_t n)
{
    if (s->n_calls == SPLIT_CALLS_MAX) return NULL;
    if (!s->calls) s->calls = mem_zalloc(SPLIT_CALLS_MAX * sizeof *s->calls);
    struct split_call *c = &s->calls[s->n_calls++];
    buf_close(&s->lead);
    (void)buf_append(&c->name, name, n);
    return c;
}

/* One more character of a value. True: it ends the value that began at depth 0. */
static bool scan(struct split *s, char c)
{
    if (s->in_string) {
        if (!s->escaped && c == '"') s->in_string = false;
        s->escaped = !s->escaped && c == '\\';
        return false;
    }
    if (c == '"') s->in_string = true;
    if (c == '{' || c == '[') s->depth++;
    if (c == '}' || c == ']') s->depth -= s->depth > 0;
    return (c == '}' || c == ']') && s->depth == 0;
}

static void begin_scan(struct split *s, uint32_t depth)
{
    s->depth = depth;
    s->in_string = s->escaped = false;
}

/* ---- states: each returns whether it got on ---- */

/* What looked like a call is text, as it was written. */
static bool is_text(struct split *s)
{
    (void)buf_append(&s->content, s->lead.data, s->lead.len);
    buf_close(&s->lead);
    s->tagged = s->list = s->whole = false;
    s->state = SPLIT_CONTENT;
    return true;
}

static void skip(struct split *s, size_t n)
{
    move(s, &s->lead, n);
}

static bool start(struct split *s)
{
    size_t at = blanks(s, 0);
    if (at > SPLIT_BLANKS_MAX) {
        s->state = SPLIT_CONTENT;
        return true;
    }
    if (at == s->held.len) return false;
    if (s->finds_thought && !s->thought) {
        enum match m = match(s, at, THINK);
        if (m == MAYBE) return false;
        if (m == YES) {
            buf_drop(&s->held, at + strlen(THINK));
            s->state = SPLIT_THINK;
            return true;
        }
    }
    if (s->thought) buf_drop(&s->held, at); /* the lines between reasoning and answer */
    at = s->thought ? 0 : at;
    char c = s->held.data[at];
    if (!s->tools || (c != '{' && c != '[' && c != '`')) {
        s->state = SPLIT_CONTENT;
        return true;
    }
    if (c == '`') {
        size_t from = at;
        enum match m = next(s, &from, FENCE);
        if (m == MAYBE) return false;
        if (m == YES && match(s, from, "json") == MAYBE) return false;
        if (m == YES && match(s, from, "json") == YES) from += strlen("json");
        size_t object = blanks(s, from);
        bool many = object - from > SPLIT_BLANKS_MAX;
        if (m == YES && object == s->held.len && !many) return false;
        if (m == NO || many || (s->held.data[object] != '{' && s->held.data[object] != '[')) {
            s->state = SPLIT_CONTENT;
            return true;
        }
    }
    s->state = SPLIT_CALL;
    return true;
}

static bool think(struct split *s)
{
    enum match m;
    size_t at = find(s, THOUGHT, &m);
    if (s->reasoning.len == 0 && !s->thought) { /* its first line break is no thought */
        size_t from = blanks(s, 0);
        if (from > at) from = at;
        buf_drop(&s->held, from);
        at -= from;
    }
    if (at) s->thought = true;
    move(s, &s->reasoning, at);
    if (m != YES) return false;
    buf_drop(&s->held, strlen(THOUGHT));
    s->thought = true;
    s->state = SPLIT_START;
    return true;
}

static bool content(struct split *s)
{
    enum match m = NO;
    size_t at = s->tools ? find(s, TAG, &m) : s->held.len, end = at;
    size_t least = at > SPLIT_BLANKS_MAX ? at - SPLIT_BLANKS_MAX : 0;
    /* Blanks before a call are not told; whether one follows is not known yet. */
    while (s->tools && end > least && is_blank(s->held.data[end - 1])) end--;
    move(s, &s->content, end);
    if (m != YES) return false;
    skip(s, at - end + strlen(TAG));
    s->tagged = true;
    s->list = false;
    s->state = SPLIT_CALL;
    return true;
}

/* An object, an array of them, or the end of the calls. */
static bool call(struct split *s)
{
    size_t at = blanks(s, 0);
    if (at == s->held.len) {
        if (at > SPLIT_BLANKS_MAX) skip(s, at - SPLIT_BLANKS_MAX);
        return false;
    }
    char c = s->held.data[at];
    if (c == '{') {
        skip(s, at);
        s->state = SPLIT_HEAD;
        return true;
    }
    bool more = s->n_calls > 0;
    if ((c == '[' && !s->list) || (c == ']' && s->list) || (more && (c == ',' || c == ';'))) {
        size_t object = blanks(s, at + 1);
        if (c == '[' && object - at > SPLIT_BLANKS_MAX) return is_text(s);
        if (c == '[' && object == s->held.len) return false;
        if (c == '[' && s->held.data[object] != '{') return is_text(s);
        s->list = c == '[' || (c != ']' && s->list);
        skip(s, at + 1);
        return true;
    }
    enum match m = s->tagged ? match(s, at, END_TAG) : match(s, at, FENCE);
    if (m == MAYBE) return false;
    if (m == NO) return is_text(s);
    size_t n = strlen(s->tagged ? END_TAG : FENCE);
    enum match again = s->tagged ? NO : match(s, at + n, "json");
    if (again == MAYBE && !s->ends) return false; /* an end, or another beginning */
    if (again == YES) n += strlen("json");
    skip(s, at + n);
    if (!s->tagged) return true;
    s->tagged = false;
    s->state = SPLIT_CONTENT;
    buf_close(&s->lead);
    return true;
}

/* A whole object in another order, or with its arguments as a text. */
static bool whole_call(struct split *s)
{
    size_t len, bytes;
    const char *name, *text;
    if (!s->whole) {
        begin_scan(s, 0);
        s->scanned = 0;
        s->whole = true;
    }
    while (s->scanned < s->held.len && !scan(s, s->held.data[s->scanned])) s->scanned++;
    if (s->scanned == s->held.len) return false;
    struct json *j = NULL;
    if (json_read(s->held.data, s->scanned + 1, &j, NULL) < 0) return is_text(s);
    const struct json *v = json_get(j, "arguments");
    if (!v) v = json_get(j, "parameters");
    struct split_call *c = NULL;
    if (json_as_string(json_get(j, "name"), &name, &len) && (s->tagged || is_tool(s, name, len)))
        c = add_call(s, name, len);
    if (c && json_as_string(v, &text, &bytes))
        (void)buf_append(&c->arguments, text, bytes);
    else if (c && v)
        json_write(v, &c->arguments);
    else if (c)
        (void)buf_append(&c->arguments, "{}", 2);
    json_free(j);
    if (!c) return is_text(s);
    buf_drop(&s->held, s->scanned + 1);
    s->whole = false;
    s->state = SPLIT_CALL;
    return true;
}

/* An object without tags whose first key is none of a call's is an answer, and is told as it comes.
 */
static bool may_be_call(const struct split *s)
{
    static const char *const keys[] = {"\"name\"", "\"arguments\"", "\"parameters\"", "\"type\"",
                                       "\"id\""};
    bool found = false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        found |= match(s, blanks(s, 1), keys[i]) != NO;
    return found;
}

static bool in_head(struct split *s)
{
    size_t name = 0, name_end = 0, value = 0;
    if (s->whole) return whole_call(s);
    enum match m = head(s, &name, &name_end, &value);
    if (m == MAYBE && s->held.len <= SPLIT_HEAD_MAX) return false;
    if (m != YES || value >= SPLIT_HEAD_MAX)
        return s->tagged || may_be_call(s) ? whole_call(s) : is_text(s);
    const char *text = s->held.data + name + 1;
    size_t n = name_end - name - 2;
    if (!s->tagged && !is_tool(s, text, n)) return is_text(s);
    if (!add_call(s, text, n)) return is_text(s);
    buf_drop(&s->held, value);
    begin_scan(s, 0);
    s->state = SPLIT_VALUE;
    return true;
}

static bool in_value(struct split *s)
{
    struct buf *to = &s->calls[s->n_calls - 1].arguments;
    size_t n = 0;
    bool ended = false;
    while (n < s->held.len && !ended) ended = scan(s, s->held.data[n++]);
    move(s, to, n);
    if (!ended) return false;
    begin_scan(s, 1); /* in the call's own object */
    s->state = SPLIT_TAIL;
    return true;
}

static bool in_tail(struct split *s)
{
    size_t n = 0;
    bool ended = false;
    while (n < s->held.len && !ended) ended = scan(s, s->held.data[n++]);
    buf_drop(&s->held, n);
    if (ended) s->state = SPLIT_CALL;
    return ended;
}

static bool step(struct split *s)
{
    switch (s->state) {
    case SPLIT_START: return start(s);
    case SPLIT_THINK: return think(s);
    case SPLIT_CONTENT: return content(s);
    case SPLIT_CALL: return call(s);
    case SPLIT_HEAD: return in_head(s);
    case SPLIT_VALUE: return in_value(s);
    case SPLIT_TAIL: return in_tail(s);
    }
    return false;
}

void split_push(struct split *s, const char *text, size_t n)
{
    (void)buf_append(&s->held, text, n);
    while (s->held.len && step(s)) continue;
}

void split_finish(struct split *s)
{
    s->ends = true;
    while (s->held.len && s->state == SPLIT_CALL && call(s)) continue;
    bool in_call = s->state == SPLIT_VALUE || s->state == SPLIT_TAIL;
    /* A call that broke off before its arguments is text; so is a beginning of one. */
    if (s->state == SPLIT_HEAD || (s->state == SPLIT_CALL && s->n_calls == 0)) (void)is_text(s);
    if (s->state == SPLIT_START && s->thought) buf_drop(&s->held, blanks(s, 0));
    if (s->state == SPLIT_THINK)
        move(s, &s->reasoning, s->held.len);
    else if (!in_call && (s->n_calls == 0 || blanks(s, 0) < s->held.len))
        move(s, &s->content, s->held.len);
}
