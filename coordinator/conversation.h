/* A conversation, as clients send it (client.proto, Chat), to the token ids of its prompt: checks
 * its form, brings it into the one form that chat templates expect, renders and tokenises it. Pure;
 * any thread. */
#ifndef FLOTILLA_COORDINATOR_CHAT_H
#define FLOTILLA_COORDINATOR_CHAT_H

#include "common/text/template.h"
#include "common/text/vocab.h"

/* What the model brings; all borrowed. */
struct chat_model {
    const struct vocab *vocab;
    const struct template *template; /* NULL: it has none, */
    const char *no_template;         /* and why */
    const struct template_token *tokens;
    size_t n_tokens;
};

/* Appends the prompt's ids to `ret`. ret_prompt: NULL, or where the rendered text goes, which the
 * caller frees with mem_free. ERR_RANGE, with a text that names the field: the conversation has a
 * wrong form, the template refuses it (with its own words) or cannot render it, or the model has no
 * template. ERR_LIMIT: it is too large; ERR_NOMEM. */
int chat_encode(const struct chat_model *m, const char *json, size_t bytes, struct tokens *ret,
                char **ret_prompt, struct errmsg *em);

#endif
