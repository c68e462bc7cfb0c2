/* Anthropic's form of a chat: its body as OpenAI's, and the answer as its message or events. Pure.
 */
#ifndef FLOTILLA_GATEWAY_MESSAGE_H
#define FLOTILLA_GATEWAY_MESSAGE_H

#include "common/text/json.h"
#include "coordinator/gateway/choice.h"
#include "coordinator/gateway/fault.h"

/* The body of a chat that asks for the same; the caller frees it. NULL: f says why. counts: only
 * its tokens are to be counted, so it needs no limit. */
struct json *message_translate(const struct json *body, bool counts, struct fault *f);

struct message_usage {
    uint64_t prompt, cached, answer;
};

struct message_head {
    const char *id, *model; /* model may be NULL */
    const char *stop;       /* the stop text that ended the answer, or NULL */
    struct message_usage usage;
};

/* The whole answer. */
struct json *message_whole(const struct message_head *h, struct choice *c);

/* How far a stream has been told. Zeroed, it has not begun. */
struct message_stream {
    bool begun;
    enum { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL } block;
    uint32_t n_blocks; /* begun */
};

/* Appends the events of what is new, which is forgotten. ends: the answer is whole. */
void message_events(struct message_stream *s, const struct message_head *h, struct choice *c,
                    bool ends, struct buf *to);

/* Appends {"type":"error","error":{"type","message"}}. */
void message_fault(const struct fault *f, struct buf *to);

#endif
