/* One answer of a call: all its tokens, their text, and how much of both the client has. Nothing is
 * queued: whatever the client lacks goes into one reply when its connection takes one, and a client
 * that comes back is told again from where it says. */
#ifndef FLOTILLA_COORDINATOR_ANSWER_H
#define FLOTILLA_COORDINATOR_ANSWER_H

#include "common/base/buf.h"
#include "common/text/detok.h"
#include "common/text/vocab.h"
#include "proto/msg.h"

#define ANSWER_NEWS_TOKENS 4096u

struct answer {
    struct tokens tokens;
    struct detok detok; /* its text: of all tokens */
    struct buf ends;    /* uint32_t for each token: bytes of text when it had been taken */
    bool logprobs;      /* they were asked for, */
    uint32_t n_top;     /* with so many alternatives to each token */
    struct buf chosen, top_ids, top; /* of the tokens from n_received on, as in msg_logprobs */
    struct buf embedding;            /* float: the prompt's, told with the end; else empty */
    uint32_t n_received;             /* tokens that the client brought along */
    uint32_t n_sent;                 /* tokens, */
    size_t text_sent;                /* and bytes of text that the client has */
    bool end_sent;                   /* and that this is all */
    uint32_t n_told;                 /* tokens up to the end of what answer_news told last */
    struct buf part;                 /* its text, where it was not all */
    uint64_t queued_us;              /* told with the first token, like the next */
    uint32_t cached;
    uint64_t token_ns; /* when the last token came */
    bool ended;
    enum finish_reason finish_reason; /* once ended */
    bool drafts;                      /* its tokens were guessed, and, once ended, how well: */
    struct msg_draft_status draft;
};

/* How an answer is to be told. */
struct answer_options {
    const char *const *stops; /* n_stops; copied */
    uint32_t n_stops;
    bool logprobs;
    uint32_t n_top; /* alternatives to each token, with `logprobs` */
};

void answer_open(struct answer *a, const struct answer_options *o);
void answer_close(struct answer *a);

/* Takes one more token, the k-th that l speaks of (if it does). Every token gets the same number of
 * log-probabilities, the one that was asked for: of what l has more is left out, and what it lacks
 * is told as token -1 with a log-probability of minus infinity. False: the text met a stop string,
 * now or before; nothing comes after it. */
bool answer_take(struct answer *a, const struct vocab *v, int32_t token,
                 const struct msg_logprobs *l, uint32_t k);
/* The prompt's embedding; the end follows. */
void answer_embed(struct answer *a, const float *values, uint32_t n);
/* Tokens that the client has from an earlier call. */
void answer_receive(struct answer *a, const struct vocab *v, const int32_t *tokens, uint32_t n);
/* A text that has met a stop string ended with that, whatever the reason. */
void answer_end(struct answer *a, enum finish_reason reason);

/* The client has the first n tokens and their text, and no more. False: there are not so many. */
bool answer_rewind(struct answer *a, uint32_t n);
bool answer_has_news(const struct answer *a);
/* What the client lacks, at most ANSWER_NEWS_TOKENS of it, so that the reply stays far below what a
 * client takes; points into a, until its next change. True: that is all there is. */
bool answer_news(struct answer *a, struct msg_generate_reply *ret);
/* The client has what answer_news told last. */
void answer_sent(struct answer *a);

#endif
