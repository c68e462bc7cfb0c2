/* The text of a chat's answer, split while it comes: reasoning (<think>), content, calls of tools.
 * Pure.
 *
 * Calls are found in the forms that models write them in, whatever the model:
 *   <tool_call>{"name": "f", "arguments": {...}}</tool_call>     Hermes, Qwen; any number
 *   {"name": "f", "parameters": {...}}                           Llama 3; several apart by ';'
 *   [{"name": "f", "arguments": {...}}, ...]                     Mistral
 *   the latter two in a fence ```json                            small models
 * What stands between tags is a call, whatever its name. The others count only at the beginning of
 * the answer, and if they name a tool that was offered: an answer in JSON stays an answer. */
#ifndef FLOTILLA_GATEWAY_SPLIT_H
#define FLOTILLA_GATEWAY_SPLIT_H

#include "common/base/buf.h"
#include "common/text/json.h"

#include <stdbool.h>
#include <stdint.h>

#define SPLIT_CALLS_MAX 128u /* of an answer; more stay text */
/* What may be looked at again with each piece of text that comes, so that an answer takes time in
 * proportion to its length, whatever the model was talked into. */
#define SPLIT_BLANKS_MAX                                                                           \
    256u                     /* held because a call or a thought may follow them; more are told    \
                              */
#define SPLIT_HEAD_MAX 4096u /* of a call before its arguments; a longer one is read as a whole */

struct split_call {
    struct buf name;
    struct buf arguments; /* JSON, as it was written; what was taken of it is dropped */
};

enum split_state {
    SPLIT_START, /* at the beginning, or behind the reasoning */
    SPLIT_THINK,
    SPLIT_CONTENT,
    SPLIT_CALL,  /* between calls: an object is expected, or the end */
    SPLIT_HEAD,  /* in an object, before its arguments */
    SPLIT_VALUE, /* in the arguments */
    SPLIT_TAIL,  /* behind them */
};

/* Private, but for the results. */
struct split {
    /* Results, growing; whoever takes them drops them. */
    struct buf reasoning, content;
    struct split_call *calls; /* n_calls */
    uint32_t n_calls;

    enum split_state state;
    bool finds_thought, thought; /* it looks for reasoning; there was some */
    bool tagged, list;           /* of the present call: between tags; in an array */
    const struct json *tools;    /* borrowed; NULL: none were offered */
    struct buf lead;             /* what was skipped before a call's object, should it be none */
    struct buf held;             /* text that is not decided */
    bool whole;                  /* a call is read when its object has ended, */
    size_t scanned;              /* and so much of `held` was looked at for that end */
    uint32_t depth;              /* of braces and brackets in a value, */
    bool in_string, escaped;
    bool ends; /* nothing comes any more */
};

/* reasoning: it is split off; open: the prompt has begun it already. tools: an array in OpenAI's
 * form, borrowed until the end; or NULL. */
void split_init(struct split *s, bool reasoning, bool open, const struct json *tools);
void split_close(struct split *s);
void split_push(struct split *s, const char *text, size_t n);
/* Nothing comes any more. */
void split_finish(struct split *s);

#endif
