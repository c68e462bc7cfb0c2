/* The body of a request for completions or embeddings, as the client API takes it. Pure: bytes in,
 * a structure or a fault out. A parameter that is not known, or not supported with this value, is
 * refused by name.
 */
#ifndef FLOTILLA_GATEWAY_ASK_H
#define FLOTILLA_GATEWAY_ASK_H

#include "common/client/client.h"
#include "common/text/json.h"
#include "coordinator/gateway/fault.h"

#define ASK_PROMPTS_MAX 64u
#define ASK_METADATA_MAX 16u /* of `metadata`, as OpenAI has it */
#define ASK_INPUTS_MAX 2048u /* texts of one request for embeddings, as OpenAI has it */
#define ASK_TOOLS_MAX 128u
#define ASK_CHOICES_MAX 128u      /* of all prompts together */
#define ASK_COMPLETION_TOKENS 16u /* where a completion names no limit, as OpenAI has it */

enum ask_kind { ASK_COMPLETION = 1, ASK_CHAT = 2, ASK_EMBEDDING = 4 };

struct ask_prompt {
    const char *text; /* or NULL, and then: */
    int32_t *tokens;
    uint32_t n_tokens;
};

struct ask {
    enum ask_kind kind;
    struct json *doc;              /* what the texts below point into */
    struct client_request request; /* but for the prompt; its arrays are the ask's */
    struct ask_prompt *prompts;
    uint32_t n_prompts;
    uint32_t n, best_of; /* answers that are told, and computed, for each prompt */
    bool stream, include_usage;
    bool newer_max;    /* max_completion_tokens was given */
    bool logprobs;     /* they are told */
    bool cache_prompt; /* look for the prompt's beginning among computed ones */
    const char *stops[CLIENT_STOPS_MAX];
    int32_t *bias_ids;
    float *bias;
    /* Of a chat, within doc; NULL: not given. */
    const struct json *messages, *kwargs;
    const char *effort;
    bool no_generation_prompt;
    const struct json *tools; /* that may be called */
    bool no_tools;            /* tool_choice: none */
    bool holds_tools;         /* one may be called, and calls are held to the tools' schemas */
    bool forces_tools;        /* one must be called: */
    const char *forced;       /* the one of this name, or NULL: any */
    bool one_call;            /* parallel_tool_calls: false */
    const struct json *form;  /* response_format, json_schema or grammar, which stands under */
    const char *form_name;    /* this name; NULL: not given */
    struct buf format;        /* as the client API takes it; empty: the answer is free */
    const char *format_param; /* which parameter it follows from */
    bool raw_reasoning;       /* it stays in the content */
    bool base64;              /* encoding_format: embeddings are told so, not as numbers */
    struct buf chat;          /* as the client API takes it */
    char user[256];
};

/* On failure nothing is to be closed. Statuses: 400, and 503 where there is no memory. */
int ask_read(enum ask_kind kind, const char *body, size_t bytes, struct ask *ret, struct fault *f);
/* The calls have begun, and have copies: only what the reply needs stays, which are the counts and
 * flags, `tools`, `stops`, and the model and user of `request`. As a document a body takes many
 * times its bytes. */
void ask_drop_body(struct ask *a);
void ask_close(struct ask *a);

#endif
