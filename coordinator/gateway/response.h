/* OpenAI's Responses API: its body as that of a chat, and the answer as a response of items, or as
 * the events of one. Nothing is stored: a request carries its whole conversation. Pure. */
#ifndef FLOTILLA_GATEWAY_RESPONSE_H
#define FLOTILLA_GATEWAY_RESPONSE_H

#include "common/text/json.h"
#include "coordinator/gateway/choice.h"
#include "coordinator/gateway/fault.h"

#include <stdint.h>

/* The body of a chat that asks for the same. *ret_echo: what a response repeats of its request.
 * The caller frees both. NULL, and nothing is to be freed: f says why. */
struct json *response_translate(const struct json *body, struct json **ret_echo, struct fault *f);
/* A fault of the translated body names a parameter of the chat's: it gets this API's name. */
void response_rename(struct fault *f);

struct response_head {
    const char *id, *model; /* model may be NULL */
    uint64_t created_s;
    const struct json *echo;
    uint64_t n_prompt, n_cached, n_answer, n_reasoning; /* tokens */
};

/* What an answer consists of, as events tell it. */
enum response_item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };

/* What was told of a response: as much as the answer is long, since the last events repeat it.
 * Zeroed, it has not begun; closed with response_close. */
struct response_stream {
    bool begun;
    uint64_t n_events;
    enum response_item item; /* the present one, */
    uint32_t call;           /* which call it is, */
    struct buf text;         /* and what it says so far: events repeat it at its end */
    struct json *output;     /* an array of the items before it; NULL: none yet */
};

void response_close(struct response_stream *s);

/* The whole answer. */
struct json *response_whole(const struct response_head *h, struct choice *c);
/* Appends the events of what is new in the choice, which is forgotten. ends: the answer is whole;
 * or with f, which may be NULL, it broke off. */
void response_events(struct response_stream *s, const struct response_head *h, struct choice *c,
                     bool ends, const struct fault *f, struct buf *to);

#endif
