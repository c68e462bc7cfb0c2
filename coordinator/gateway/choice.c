#include "coordinator/gateway/choice.h"

#include "common/base/utf8.h"

#include <string.h>

/* As OpenAI tells a probability of 0. */
#define LOGPROB_LEAST (-9999.0f)

void choice_close(struct choice *c)
{
    struct choice_tokens *t = &c->tokens;
    struct buf *bufs[] = {&c->text,         &t->logprobs,        &t->piece_bytes, &t->pieces,
                          &t->top_logprobs, &t->top_piece_bytes, &t->top_pieces};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) buf_close(bufs[i]);
}

size_t choice_bytes(const struct choice *c)
{
    const struct choice_tokens *t = &c->tokens;
    return c->text.len + t->logprobs.len + t->piece_bytes.len + t->pieces.len +
           t->top_logprobs.len + t->top_piece_bytes.len + t->top_pieces.len;
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

void choice_take(struct choice *c, const struct client_reply *r, bool keep_tokens)
{
    (void)buf_append(&c->text, r->text, strlen(r->text));
    c->n_tokens += r->n_tokens;
    for (uint32_t i = 0; r->logprobs && i < r->n_tokens; i++)
        c->sum += r->logprobs[i] > LOGPROB_LEAST ? r->logprobs[i] : LOGPROB_LEAST;
    /* Tokens of before a coordinator's restart come without. */
    if (keep_tokens && r->logprobs && r->n_pieces == r->n_tokens * (1 + r->n_top))
        take_tokens(&c->tokens, r);
    if (r->finish_reason) c->finish = r->finish_reason;
    c->begun |= r->n_tokens || r->finish_reason;
}

static bool is_ended(const struct choice *c)
{
    return c->finish != FINISH_NONE;
}

bool choice_has_news(const struct choice *c, enum ask_kind kind)
{
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

static void put_finish(struct json *o, enum finish_reason finish)
{
    const char *text = finish_text(finish);
    if (finish == FINISH_NONE)
        json_put_null(o, "finish_reason");
    else
        json_put_string(o, "finish_reason", text, strlen(text));
}

struct json *choice_whole(struct choice *c, enum ask_kind kind, uint32_t index, bool logprobs)
{
    struct json *o = json_new_object();
    json_put_int(o, "index", index);
    if (kind == ASK_CHAT) {
        struct json *message = json_new_object();
        json_put_string(message, "role", "assistant", 9);
        json_put_string(message, "content", c->text.data, c->text.len);
        json_put_null(message, "refusal");
        json_put(o, "message", message);
    } else {
        json_put_string(o, "text", c->text.data, c->text.len);
    }
    put_logprobs(o, c, kind, logprobs);
    put_finish(o, c->finish);
    return o;
}

static void forget(struct choice *c)
{
    struct choice_tokens *t = &c->tokens;
    uint32_t n_top = t->n_top;
    c->told_text += characters(c->text.data ? c->text.data : "", c->text.len);
    choice_close(c);
    c->text = (struct buf){0};
    *t = (struct choice_tokens){.n_top = n_top};
}

struct json *choice_chunk(struct choice *c, enum ask_kind kind, uint32_t index, bool logprobs)
{
    struct json *o = json_new_object(), *delta = json_new_object();
    bool begins = kind == ASK_CHAT && !c->told_begin,
         says = !begins && (c->text.len || c->tokens.n);
    json_put_int(o, "index", index);
    if (begins) json_put_string(delta, "role", "assistant", 9);
    if (begins) json_put_string(delta, "content", "", 0);
    if (says) json_put_string(delta, "content", c->text.data, c->text.len);
    if (kind == ASK_CHAT) {
        json_put(o, "delta", delta);
    } else {
        json_put_string(o, "text", c->text.data, c->text.len);
        json_free(delta);
    }
    put_logprobs(o, c, kind, logprobs && says);
    /* The end is a chunk of its own, behind all text. */
    bool ends = !begins && !says;
    put_finish(o, ends ? c->finish : FINISH_NONE);
    c->told_begin = true;
    if (says) forget(c);
    c->told_end |= ends;
    return o;
}
