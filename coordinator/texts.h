/* Clients' texts to token ids, off the loop (coordinator/offload.h). */
#ifndef FLOTILLA_COORDINATOR_TEXTS_H
#define FLOTILLA_COORDINATOR_TEXTS_H

#include "common/base/buf.h"
#include "common/text/vocab.h"
#include "coordinator/conversation.h"
#include "coordinator/offload.h"

#define TEXTS_MAX 1024u /* texts and bytes in the queue, */
#define TEXTS_BYTES_MAX ((size_t)64 << 20)
#define TEXTS_SHARE 4u                       /* of which one client may have a fourth waiting */
#define TEXTS_SHORT_BYTES ((size_t)64 << 10) /* up to which a text is short (offload.h) */

struct text {
    uint64_t request; /* the caller's name for it, as for offload_cancel */
    const struct vocab *vocab;
    char *bytes; /* len of them */
    size_t len;
    bool special; /* names of control tokens are those tokens */
    bool bos;     /* begin with BOS where the model wants that */
    /* The bytes are a conversation (conversation.h) and not a text; borrowed until the queue is
     * closed. */
    const struct conversation_model *chat;
    bool want_prompt; /* tell the rendered prompt too */
    char *format;     /* of the answer (common/text/format.h), to be compiled; or NULL */
    /* The result. */
    int rc;
    struct errmsg em;
    struct tokens tokens;
    bool open_thought;  /* of a conversation: its prompt ends within <think> */
    char *prompt;       /* rendered, where it was wanted; or NULL */
    struct buf grammar; /* of the format; empty: the answer is free */
};

/* A queue for texts; offload_next then returns a struct text, which the caller frees with
 * texts_free. */
int texts_open(struct net *net, struct offload **ret, struct errmsg *em);
/* Puts a copy of `t`, with a copy of its bytes and its format; the vocabulary is borrowed until the
 * queue is closed. ERR_LIMIT: too many wait; ERR_NOMEM. */
int texts_put(struct offload *o, uint64_t client, const struct text *t, struct errmsg *em);
/* May be NULL. */
void texts_free(struct text *t);

#endif
