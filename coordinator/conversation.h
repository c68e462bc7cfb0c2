/* A conversation, as clients send it (client.proto, Chat), to the token ids of its prompt: checks
 * its form, brings it into the one form that chat templates expect, renders and tokenises it. Pure;
 * any thread. */
#ifndef FLOTILLA_COORDINATOR_CONVERSATION_H
#define FLOTILLA_COORDINATOR_CONVERSATION_H

#include "common/text/vocab.h"
#include "coordinator/chat.h"

/* What the model brings; borrowed. */
struct conversation_model {
    const struct vocab *vocab;
    const struct chat *chat; /* NULL: it has no templates, */
    const char *why;         /* and why */
    uint32_t ctx;            /* tokens of a prompt at most; 0: any number */
    uint32_t token_bytes;    /* of the longest token, where ctx is given */
};

/* Appends the prompt's ids to `ret`. ret_prompt: NULL, or where the rendered text goes, which the
 * caller frees with mem_free. *ret_open_thought: the prompt ends within <think>. ERR_RANGE, with a
 * text that names the field: the conversation has a wrong form, the template refuses it (with its
 * own words) or cannot render it, or the model has no template. ERR_LIMIT: it is too large;
 * ERR_NOMEM. */
int conversation_encode(const struct conversation_model *m, const char *json, size_t bytes,
                        struct tokens *ret, char **ret_prompt, bool *ret_open_thought,
                        struct errmsg *em);

#endif
