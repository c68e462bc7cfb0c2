/* Chat templates: renders a conversation to the prompt that a model was trained on, with the Jinja
 * template that the model's file carries. Behaves as `transformers` does (trim_blocks,
 * lstrip_blocks, its tojson, its raise_exception, its immutable sandbox); common/text/jinja has the
 * interpreter.
 *
 * A prompt has two kinds of text. What the template wrote itself (its literals, and the special
 * tokens handed over in `tokens`) may name control tokens. What came from the conversation may not,
 * whatever filter, slice, join or concatenation it went through: every byte of a string knows where
 * it came from. The runs of a prompt say so, and vocab_encode_runs() heeds them. What is neither
 * (digits of a loop's counter, spaces of an indentation) counts as the template's; JSON made by
 * tojson counts as the conversation's. The role of a message is a word of the API and not text of
 * the client where it is one of the known roles (system, developer, user, assistant, tool,
 * function), since templates build control tokens of it.
 *
 * Knows no files, models or vocabularies. Errors name the line of the template. */
#ifndef FLOTILLA_TEXT_TEMPLATE_H
#define FLOTILLA_TEXT_TEMPLATE_H

#include "common/base/err.h"
#include "common/text/json.h"
#include "common/text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limits of one template. */
#define TEMPLATE_BYTES_MAX ((size_t)1 << 20)
#define TEMPLATE_NESTING_MAX 200u /* statements and expressions within each other */

/* Limits of one rendering where the caller sets none. A step is a node of the template that is
 * evaluated, an item that is walked, or 64 bytes of text that are made or looked through (8, where
 * it matters what kind of character each is). */
#define TEMPLATE_STEPS_MAX ((uint64_t)20 << 20)
#define TEMPLATE_DEPTH_MAX 128u /* calls of macros, loops within loops, nesting of values */
#define TEMPLATE_OUTPUT_BYTES_MAX VOCAB_TEXT_BYTES_MAX
#define TEMPLATE_MEMORY_BYTES_MAX ((size_t)256 << 20)

struct template;

/* Compiles a template; the text is copied. The result is immutable: any thread may render with it.
 * ERR_FORMAT: it is no template, with its line; ERR_UNSUPPORTED: it uses what Jinja has and this
 * interpreter lacks (include, import, extends, ...); ERR_LIMIT: size or nesting; ERR_NOMEM. */
int template_open(const char *text, size_t bytes, struct template **ret, struct errmsg *em);
/* May be NULL. */
void template_close(struct template *t);

/* A variable whose text is the model's own, such as bos_token and eos_token. */
struct template_token {
    const char *name;
    struct vocab_string text;
};

struct template_limits { /* 0: the value above */
    uint64_t steps;
    uint32_t depth;
    size_t output_bytes, memory_bytes;
};

/* All of it is borrowed during template_render only. */
struct template_input {
    const struct json *messages;  /* an array of objects, at least one */
    const struct json *tools;     /* an array; NULL or JSON null: none */
    const struct json *documents; /* an array of objects; NULL or JSON null: none */
    const struct json *kwargs;    /* chat_template_kwargs: an object whose members become variables,
                                     before others of the same name, but messages, tools and
                                     documents cannot be there; or NULL */
    bool add_generation_prompt;   /* the prompt ends where the model's answer begins */
    const struct template_token *tokens;
    size_t n_tokens;
    int64_t now_s; /* seconds since 1970, for strftime_now, which shows local time */
    struct template_limits limits;
};

struct template_prompt {
    char *text; /* UTF-8; NUL-terminated, and may hold NULs */
    size_t bytes;
    struct vocab_run
        *runs; /* in order; their bytes sum up to `bytes`; special: the template's own */
    size_t n_runs;
    uint64_t steps; /* that the rendering took */
};

/* As transformers does, members of a message that are null count as missing, and a message's
 * reasoning is found under reasoning_content and thinking whichever of reasoning_content, thinking
 * and reasoning it was sent as. *ret is written on success, and belongs to the caller.
 * ERR_REFUSED: the template called raise_exception; the message is its words, alone. ERR_RANGE: the
 * template cannot render this conversation (an undefined value is used, a type is wrong), with its
 * line; or the input is not what struct template_input says, which names the message or the key.
 * ERR_UNSUPPORTED: the template came to what this interpreter lacks. ERR_LIMIT: one of the limits,
 * which is named. ERR_NOMEM. */
int template_render(const struct template *t, const struct template_input *in,
                    struct template_prompt *ret, struct errmsg *em);
void template_prompt_close(struct template_prompt *p);

#endif
