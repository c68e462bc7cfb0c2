#include "coordinator/gateway/sse.h"

#include <string.h>

static void put(struct buf *to, const char *text)
{
    (void)buf_append(to, text, strlen(text));
}

/* JSON on one line has no line break, which would end the field. */
void sse_event(struct buf *to, const char *name, struct json *moved)
{
    if (name) {
        put(to, "event: ");
        put(to, name);
        put(to, "\n");
    }
    put(to, "data: ");
    json_write(moved, to);
    put(to, "\n\n");
    json_free(moved);
}

void sse_done(struct buf *to)
{
    put(to, "data: [DONE]\n\n");
}

void sse_comment(struct buf *to)
{
    put(to, ": still here\n\n");
}
