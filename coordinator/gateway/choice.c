#include "coordinator/gateway/choice.h"

#include "common/base/hash.h"
#include "common/base/utf8.h"

#include <string.h>

/* As OpenAI tells a probability of 0. */
#define LOGPROB_LEAST (-9999.0f)

void choice_split(struct choice *c, const struct ask *a, uint64_t seed)
{
    c->splits = true;
    c->seed = seed;
    split_init(&c->split, !a->raw_reasoning, false, a->tools);
}

void choice_open_thought(struct choice *c)
{
    /* A coordinator that took the answer over says it again, when the reasoning may be over. */
    if (c->splits && !c->begun && c->split.finds_thought && c->split.state == SPLIT_START)
        c->split.state = SPLIT_THINK;
}

static void forget_text(struct choice *c)
{
    struct choice_tokens *t = &c->tokens;
    struct buf *bufs[] = {&c->text,         &t->logprobs,        &t->piece_bytes, &t->pieces,
                          &t->top_logprobs, &t->top_piece_bytes, &t->top_pieces};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) buf_close(bufs[i]);
}

void choice_close(struct choice *c)
{
    split_close(&c->split);
    buf_close(&c->reasoning);
    forget_text(c);
}

size_t choice_logprob_bytes(const struct choice *c)
{
    const struct choice_tokens *t = &c->tokens;
    return t->logprobs.len + t->piece_bytes.len + t->pieces.len + t->top_logprobs.len +
           t->top_piece_bytes.len + t->top_pieces.len;
}

size_t choice_bytes(const struct choice *c)
{
    size_t calls = 0;
    for (uint32_t i = 0; i < c->split.n_calls; i++) calls += c->split.calls[i].arguments.len;
    return calls + c->reasoning.len + c->split.lead.len + c->split.held.len + c->text.len +
           choice_logprob_bytes(c);
}

static size_t sum_of(const uint32_t *bytes, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += bytes[i];
    return sum;
}

static void take_tokens(struct choice_tokens *t, const struct client_reply *r)
{
    size_t n = r->n_tokens, n_top = n * r->n_top;
    size_t bytes = sum_of(r->piece_bytes, n), top_bytes = sum_of(r->piece_bytes + n, n_top);
    t->n += r->n_tokens;
    t->n_top = r->n_top;
    (void)buf_append(&t->logprobs, r->logprobs, n * sizeof *r->logprobs);
    (void)buf_append(&t->piece_bytes, r->piece_bytes, n * sizeof *r->piece_bytes);
    (void)buf_append(&t->pieces, r->pieces, bytes);
    (void)buf_append(&t->top_logprobs, r->top_logprobs, n_top * sizeof *r->top_logprobs);
    (void)buf_append(&t->top_piece_bytes, r->piece_bytes + n, n_top * sizeof *r->piece_bytes);
    (void)buf_append(&t->top_pieces, r->pieces + bytes, top_bytes);
}

static void move(struct buf *from, struct buf *to)
{
    (void)buf_append(to, from->data, from->len);
    buf_drop(from, from->len);
}

static void take_text(struct choice *c, const struct client_reply *r)
{
    if (!c->splits) {
        (void)buf_append(&c->text, r->text, strlen(r->text));
        return;
    }
    split_push(&c->split, r->text, strlen(r->text));
    if (r->finish_reason) split_finish(&c->split);
    move(&c->split.content, &c->text);
    move(&c->split.reasoning, &c->reasoning);
}

void choice_take(struct choice *c, const struct client_reply *r, bool keep_tokens)
{
    take_text(c, r);
    c->n_tokens += r->n_tokens;
    if (c->splits && c->split.state == SPLIT_THINK) c->n_reasoning += r->n_tokens;
    for (uint32_t i = 0; r->logprobs && i < r->n_tokens; i++)
        c->sum += r->logprobs[i] > LOGPROB_LEAST ? r->logprobs[i] : LOGPROB_LEAST;
    /* Tokens of before a coordinator's restart come without. */
    if (keep_tokens && r->logprobs && r->n_pieces == r->n_tokens * (1 + r->n_top) &&
        (c->tokens.n == 0 || c->tokens.n_top == r->n_top)) /* in all replies, of a right server */
        take_tokens(&c->tokens, r);
    if (r->finish_reason) c->finish = r->finish_reason;
    if (r->has_stop) c->stop = r->stop;
    c->has_stop |= r->has_stop;
    c->begun |= r->n_tokens || r->finish_reason;
}

static bool is_ended(const struct choice *c)
{
    return c->finish != FINISH_NONE;
}

static bool choice_has_calls(const struct choice *c)
{
    const struct split *p = &c->split;
    return c->told_calls < p->n_calls || (p->n_calls && p->calls[p->n_calls - 1].arguments.len > 0);
}

bool choice_has_news(const struct choice *c, enum ask_kind kind)
{
    if (c->reasoning.len || choice_has_calls(c)) return true;
    return c->text.len || c->tokens.n || (kind == ASK_CHAT && c->begun && !c->told_begin) ||
           (is_ended(c) && !c->told_end);
}

/* ---- JSON ---- */

/* A token need not be whole characters: what is none becomes U+FFFD, as in the answer's text. */
static struct buf piece_text(const char *bytes, size_t n)
{
    struct buf text = {0};
    size_t len;
    int32_t c;
    (void)buf_append(&text, "", 0);
    for (size_t i = 0; i < n; i += len) {
        bool whole = utf8_decode(bytes + i, n - i, &len, &c) == UTF8_WHOLE;
        (void)buf_append(&text, whole ? bytes + i : "\xef\xbf\xbd", whole ? len : 3);
    }
    return text;
}

static double logprob_of(float x)
{
    return (double)(x > LOGPROB_LEAST ? x : LOGPROB_LEAST);
}

/* Walks along tokens and their bytes. */
struct walk {
    const float *logprobs;
    const uint32_t *piece_bytes;
    const char *piece;
};

static struct walk walk_of(const struct buf *logprobs, const struct buf *piece_bytes,
                           const struct buf *pieces)
{
    return (struct walk){(const float *)(const void *)logprobs->data,
                         (const uint32_t *)(const void *)piece_bytes->data,
                         pieces->data ? pieces->data : ""};
}

static void step(struct walk *w)
{
    w->piece += *w->piece_bytes++;
    w->logprobs++;
}

static struct json *token_json(const struct walk *w)
{
    struct json *o = json_new_object(), *bytes = json_new_array();
    struct buf text = piece_text(w->piece, *w->piece_bytes);
    json_put_string(o, "token", text.data, text.len);
    buf_close(&text);
    json_put_real(o, "logprob", logprob_of(*w->logprobs));
    for (uint32_t i = 0; i < *w->piece_bytes; i++) json_add_int(bytes, (uint8_t)w->piece[i]);
    json_put(o, "bytes", bytes);
    return o;
}

static struct json *chat_logprobs(const struct choice_tokens *t)
{
    struct json *whole = json_new_object(), *content = json_new_array();
    struct walk w = walk_of(&t->logprobs, &t->piece_bytes, &t->pieces),
                top = walk_of(&t->top_logprobs, &t->top_piece_bytes, &t->top_pieces);
    for (uint32_t i = 0; i < t->n; i++, step(&w)) {
        struct json *o = token_json(&w), *others = json_new_array();
        for (uint32_t k = 0; k < t->n_top; k++, step(&top)) json_add(others, token_json(&top));
        json_put(o, "top_logprobs", others);
        json_add(content, o);
    }
    json_put(whole, "content", content);
    json_put_null(whole, "refusal");
    return whole;
}

static uint32_t characters(const char *text, size_t n)
{
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((uint8_t)text[i] & 0xc0) != 0x80;
    return count;
}

static struct json *completion_logprobs(const struct choice *c)
{
    const struct choice_tokens *t = &c->tokens;
    struct json *whole = json_new_object(), *tokens = json_new_array(),
                *logprobs = json_new_array(), *tops = json_new_array(), *offsets = json_new_array();
    struct walk w = walk_of(&t->logprobs, &t->piece_bytes, &t->pieces),
                top = walk_of(&t->top_logprobs, &t->top_piece_bytes, &t->top_pieces);
    uint32_t offset = c->told_text;
    for (uint32_t i = 0; i < t->n; i++, step(&w)) {
        struct json *others = json_new_object();
        struct buf text = piece_text(w.piece, *w.piece_bytes);
        json_add_string(tokens, text.data, text.len);
        buf_close(&text);
        json_add_real(logprobs, logprob_of(*w.logprobs));
        for (uint32_t k = 0; k < t->n_top; k++, step(&top)) {
            struct buf key = piece_text(top.piece, *top.piece_bytes);
            json_put_real(others, key.data, logprob_of(*top.logprobs));
            buf_close(&key);
        }
        json_add(tops, others);
        json_add_int(offsets, offset);
        offset += characters(w.piece, *w.piece_bytes);
    }
    json_put(whole, "tokens", tokens);
    json_put(whole, "token_logprobs", logprobs);
    json_put(whole, "top_logprobs", tops);
    json_put(whole, "text_offset", offsets);
    return whole;
}

static void put_logprobs(struct json *o, const struct choice *c, enum ask_kind kind, bool logprobs)
{
    if (!logprobs)
        json_put_null(o, "logprobs");
    else
        json_put(o, "logprobs",
                 kind == ASK_CHAT ? chat_logprobs(&c->tokens) : completion_logprobs(c));
}

static void put_finish(struct json *o, const struct choice *c, enum finish_reason finish)
{
    bool calls = c->split.n_calls && finish == FINISH_STOP;
    const char *text = calls ? "tool_calls" : finish_text(finish);
    if (finish == FINISH_NONE)
        json_put_null(o, "finish_reason");
    else
        json_put_string(o, "finish_reason", text, strlen(text));
}

/* Nine letters and digits, as some models' templates want them. */
void choice_put_call_id(struct json *o, const struct choice *c, uint32_t i)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    char id[10] = {0};
    uint64_t words[2] = {c->seed, i}, x = hash_bytes(words, sizeof words, 3);
    for (size_t k = 0; k < 9; k++, x /= 36) id[k] = digits[x % 36];
    json_put_string(o, "id", id, 9);
}

/* A call, or what is new of it. */
static struct json *call_json(struct choice *c, uint32_t i, bool index, bool begins, bool arguments)
{
    struct split_call *call = &c->split.calls[i];
    struct json *o = json_new_object(), *function = json_new_object();
    if (index) json_put_int(o, "index", i);
    if (begins) choice_put_call_id(o, c, i);
    if (begins) json_put_string(o, "type", "function", 8);
    if (begins) json_put_string(function, "name", call->name.data, call->name.len);
    json_put_string(function, "arguments", arguments ? call->arguments.data : "",
                    arguments ? call->arguments.len : 0);
    json_put(o, "function", function);
    return o;
}

static struct json *message_json(struct choice *c)
{
    struct json *message = json_new_object();
    json_put_string(message, "role", "assistant", 9);
    if (c->reasoning.len)
        json_put_string(message, "reasoning_content", c->reasoning.data, c->reasoning.len);
    if (c->split.n_calls && !c->text.len)
        json_put_null(message, "content");
    else
        json_put_string(message, "content", c->text.data, c->text.len);
    json_put_null(message, "refusal");
    if (!c->split.n_calls) return message;
    struct json *calls = json_new_array();
    for (uint32_t i = 0; i < c->split.n_calls; i++)
        json_add(calls, call_json(c, i, false, true, true));
    json_put(message, "tool_calls", calls);
    return message;
}

struct json *choice_whole(struct choice *c, enum ask_kind kind, uint32_t index, bool logprobs)
{
    struct json *o = json_new_object();
    json_put_int(o, "index", index);
    if (kind == ASK_CHAT) {
        json_put(o, "message", message_json(c));
    } else {
        json_put_string(o, "text", c->text.data, c->text.len);
    }
    put_logprobs(o, c, kind, logprobs);
    put_finish(o, c, c->finish);
    return o;
}

static void forget(struct choice *c)
{
    uint32_t n_top = c->tokens.n_top;
    c->told_text += characters(c->text.data ? c->text.data : "", c->text.len);
    forget_text(c);
    c->text = (struct buf){0};
    c->tokens = (struct choice_tokens){.n_top = n_top};
}

/* What is new of the calls: a beginning, or arguments of the present one. */
static struct json *calls_delta(struct choice *c)
{
    struct json *calls = json_new_array();
    uint32_t i = c->told_calls;
    bool begins = i < c->split.n_calls && (i == 0 || !c->split.calls[i - 1].arguments.len);
    if (!begins) i--;
    json_add(calls, call_json(c, i, true, begins, !begins));
    if (begins)
        c->told_calls++;
    else
        buf_close(&c->split.calls[i].arguments);
    return calls;
}

/* Fills the delta of a chat's chunk; false: there is nothing but the end. */
static bool put_delta(struct choice *c, struct json *delta, bool *ret_text)
{
    *ret_text = false;
    if (!c->told_begin) {
        json_put_string(delta, "role", "assistant", 9);
        json_put_string(delta, "content", "", 0);
    } else if (c->reasoning.len) {
        json_put_string(delta, "reasoning_content", c->reasoning.data, c->reasoning.len);
        buf_close(&c->reasoning);
    } else if (c->text.len || c->tokens.n) {
        json_put_string(delta, "content", c->text.data, c->text.len);
        *ret_text = true;
    } else if (choice_has_calls(c)) {
        json_put(delta, "tool_calls", calls_delta(c));
    } else {
        return false;
    }
    return true;
}

struct json *choice_chunk(struct choice *c, enum ask_kind kind, uint32_t index, bool logprobs)
{
    struct json *o = json_new_object(), *delta = json_new_object();
    bool says = c->text.len || c->tokens.n, ends = !says;
    json_put_int(o, "index", index);
    if (kind == ASK_CHAT) {
        ends = !put_delta(c, delta, &says);
        json_put(o, "delta", delta);
    } else {
        json_put_string(o, "text", c->text.data, c->text.len);
        json_free(delta);
    }
    put_logprobs(o, c, kind, logprobs && says);
    /* The end is a chunk of its own, behind all text. */
    put_finish(o, c, ends ? c->finish : FINISH_NONE);
    c->told_begin = true;
    if (says) forget(c);
    c->told_end |= ends;
    return o;
}
