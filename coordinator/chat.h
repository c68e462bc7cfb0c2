/* How a model wants to be talked to: its chat templates, compiled, and the special tokens that they
 * name. From a model file, or with a template of the operator's in place of the file's.
 *
 * Immutable once open: any thread may render. */
#ifndef FLOTILLA_COORDINATOR_CHAT_H
#define FLOTILLA_COORDINATOR_CHAT_H

#include "common/text/format.h"
#include "common/text/template.h"
#include "coordinator/model_file.h"

#define CHAT_TOKENS_MAX 4

struct chat {
    struct template *plain;    /* NULL: the file has no template */
    struct template *tool_use; /* for conversations with tools; NULL: `plain` does for them too */
    struct template_token tokens[CHAT_TOKENS_MAX]; /* bos_token, eos_token, ...; the vocabulary's */
    size_t n_tokens;
    enum format_calls calls; /* how the templates show tools to be called */
};

/* The templates of a model file, which stays open as long as *ret: tokenizer.chat_template, and the
 * one that the file names tool_use. A file without templates is none of its errors. Errors are
 * those of template_open, with the key before them. */
int chat_open(const struct model_file *f, struct chat *ret, struct errmsg *em);
/* With this template for all conversations. f may be NULL: then no special tokens are known. */
int chat_open_text(const struct model_file *f, const char *text, size_t bytes, struct chat *ret,
                   struct errmsg *em);
/* The same with the template in a file; errors name it. */
int chat_open_file(const struct model_file *f, const char *path, struct chat *ret,
                   struct errmsg *em);
void chat_close(struct chat *c);

/* Renders with the template that fits; of *in, tokens and n_tokens are not read. ERR_NOTFOUND:
 * there is no template; other errors are those of template_render. */
int chat_render(const struct chat *c, const struct template_input *in, struct template_prompt *ret,
                struct errmsg *em);

#endif
