/* One answer of a request, as far as the HTTP client has not been told of it, and its JSON. */
#ifndef FLOTILLA_GATEWAY_CHOICE_H
#define FLOTILLA_GATEWAY_CHOICE_H

#include "common/base/buf.h"
#include "common/client/client.h"
#include "common/text/json.h"
#include "coordinator/gateway/ask.h"
#include "coordinator/gateway/split.h"

/* Tokens with their log-probabilities. Each has n_top alternatives. */
struct choice_tokens {
    uint32_t n, n_top;
    struct buf logprobs;    /* float, n */
    struct buf piece_bytes; /* uint32_t, n: the length of each in `pieces` */
    struct buf pieces;
    struct buf top_logprobs, top_piece_bytes, top_pieces; /* the same, n x n_top */
};

struct choice {
    struct buf text;      /* not told yet; without streaming all of it; */
    struct buf reasoning; /* and of a chat the reasoning before it */
    struct split split;   /* of a chat: what has come of its calls, and what is not decided */
    bool splits;
    uint32_t told_calls; /* calls of tools whose beginning was told */
    uint64_t seed;       /* of the calls' ids */
    struct choice_tokens tokens;
    uint32_t n_tokens;    /* of the whole answer */
    uint32_t n_reasoning; /* of them, those of the reasoning, but for the one that ends it */
    double sum;           /* of its log-probabilities */
    uint32_t told_text;   /* characters of it, for text_offset */
    bool begun;           /* it has a token, or an end */
    bool told_begin, told_end;
    enum finish_reason finish;
    bool has_stop; /* a stop text ended it, */
    uint32_t stop; /* the one with this place in the request */
};

/* Of a chat, whose text is split as the ask says. */
void choice_split(struct choice *c, const struct ask *a, uint64_t seed);
/* The prompt has begun the reasoning already. Nothing, once the answer has begun. */
void choice_open_thought(struct choice *c);
void choice_close(struct choice *c);
/* What a reply says of this answer; keep_tokens: its log-probabilities are told. */
void choice_take(struct choice *c, const struct client_reply *reply, bool keep_tokens);
/* Memory of what is not told yet. */
size_t choice_bytes(const struct choice *c);
/* Of it, that of tokens and their log-probabilities. */
size_t choice_logprob_bytes(const struct choice *c);
bool choice_has_news(const struct choice *c, enum ask_kind kind);

/* The `id` of a call of a tool. */
void choice_put_call_id(struct json *o, const struct choice *c, uint32_t i);

/* The whole answer, for `choices` of a reply. */
struct json *choice_whole(struct choice *c, enum ask_kind kind, uint32_t index, bool logprobs);
/* The next of its news as an item for `choices` of a chunk; there must be some. It is forgotten. */
struct json *choice_chunk(struct choice *c, enum ask_kind kind, uint32_t index, bool logprobs);

#endif
