/* Server-sent events, as the official clients of OpenAI's API read them. */
#ifndef FLOTILLA_GATEWAY_SSE_H
#define FLOTILLA_GATEWAY_SSE_H

#include "common/base/buf.h"
#include "common/text/json.h"

/* Appends an event of one document, which is freed. name: NULL, or the event's. */
void sse_event(struct buf *to, const char *name, struct json *moved);
/* Appends the end that OpenAI's clients wait for. */
void sse_done(struct buf *to);
/* Appends a line that clients skip, so that a connection without news is not taken for dead. */
void sse_comment(struct buf *to);

#endif
