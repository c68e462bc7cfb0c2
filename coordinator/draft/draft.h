/* Drafts: guesses at the next tokens of a request, made off the loop. The drafter knows nothing of
 * stages, Steps or clients; a wrong guess costs time and can change no answer.
 *
 *   begin -> tokens, ask, ask, tokens, ... -> end
 *
 * The loop tells it what a request has said (drafter_begin, drafter_tokens) and asks for guesses
 * behind that, or behind guesses that are being verified (drafter_ask). Answers are taken with
 * drafter_take when drafter_socket is readable. One thread of the drafter's own, of low priority,
 * makes them; the engine of a draft model has threads beside it.
 *
 * All functions belong to the thread that opened it. They copy what they are given, and wait for
 * nothing but a lock that is held for the time of a copy. */
#ifndef FLOTILLA_DRAFT_DRAFT_H
#define FLOTILLA_DRAFT_DRAFT_H

#include "common/base/err.h"
#include "common/base/sampling.h"
#include "common/io/net.h"
#include "common/text/vocab.h"
#include "coordinator/draft/gain.h"
#include "coordinator/draft/settings.h"

#include <stdbool.h>
#include <stdint.h>

#define DRAFTER_TAIL_MAX 1024u /* guesses that an ask may follow */

struct drafter;

struct drafter_options {
    const struct draft_settings *settings; /* checked; copied, like all here */
    const char *isa;                       /* of the draft model's engine; NULL: the best */
    uint32_t ctx;                          /* most positions of a request */
    uint32_t requests_max;                 /* between begin and end */
    uint32_t asks_max;                     /* that wait, and answers that are not taken */
    /* Of the target: rows of its output, its end-of-generation tokens, and its vocabulary (NULL:
     * the texts of tokens are not compared). A draft model must have the same. */
    uint32_t vocab;
    const int32_t *ends;
    uint32_t n_ends;
    const struct vocab *text;
};

/* Reads the model or the recorded texts, which may take a while. ERR_CONF: the draft model has
 * another vocabulary or other end tokens, or a recorded text has a token that the target lacks, and
 * both are named; ERR_NOMEM: it needs more than settings->memory_bytes; and errors of the files. */
int drafter_open(struct net *net, const struct drafter_options *o, struct drafter **ret,
                 struct errmsg *em);
/* May be NULL. */
void drafter_close(struct drafter *d);

/* Whether requests may have drafts of this kind (DRAFT_OFF: always). */
bool drafter_has(const struct drafter *d, enum draft_kind kind);

struct drafter_request {
    uint64_t request;      /* the caller's; no other between begin and end has it */
    uint64_t tenant;       /* whose texts are drafted from: never another's */
    enum draft_kind kind;  /* one that drafter_has */
    const int32_t *tokens; /* the prompt's n_prompt, and the answer's so far */
    uint32_t n_tokens, n_prompt;
    uint32_t sample; /* which of several answers to the prompt */
    const struct sampling *sampling;
    bool ignore_ends;    /* the answer goes on behind an end token */
    const void *grammar; /* of the answer, as common/text/constraint.h takes it: grammar_bytes, 0:
                            it is free. A model's drafts keep to it; other kinds do not read it */
    size_t grammar_bytes;
};

/* ERR_LIMIT: requests_max are open, or the tokens are more than `ctx`: the request has no drafts.
 */
int drafter_begin(struct drafter *d, const struct drafter_request *r, struct errmsg *em);

/* Confirmed tokens from first_pos on; those that are known already are skipped. A gap, an unknown
 * request and tokens beyond `ctx` are ignored, and the latter ends the request's drafts. */
void drafter_tokens(struct drafter *d, uint64_t request, uint32_t first_pos, const int32_t *tokens,
                    uint32_t n);

struct drafter_ask {
    uint64_t request;
    uint64_t serial;     /* the caller's, told with the answer */
    uint32_t first_pos;  /* how many tokens are confirmed; */
    const int32_t *tail; /* the guesses from there on that the draft is to follow */
    uint32_t n_tail;     /* at most DRAFTER_TAIL_MAX */
    uint32_t want;       /* 1..DRAFT_LENGTH_MAX */
    /* DRAFT_AUTO chooses by them; NULL: it takes the drafter of the higher acceptance. */
    const struct gain_chain *chain;
    const struct gain_load *load;
};

/* A request's newest ask replaces one that still waits, which is then never answered. Each other
 * ask has one answer, unless the request ends. ERR_LIMIT: asks_max wait; the ask is dropped.
 * ERR_NOTFOUND: no such request, or one without drafts; ERR_RANGE: it was not told tokens up to
 * first_pos. */
int drafter_ask(struct drafter *d, const struct drafter_ask *a, struct errmsg *em);

/* keep: the answer's tokens may serve later requests of the tenant. Its asks have no answer any
 * more, and those made already are not handed out. Unknown requests are ignored. */
void drafter_end(struct drafter *d, uint64_t request, bool keep);

struct drafter_answer {
    uint64_t request, serial;
    uint32_t first_pos; /* of tokens[0]: behind the ask's tail */
    uint32_t n;         /* 0..want; an end token comes last, unless the request ignores them */
    int32_t tokens[DRAFT_LENGTH_MAX];
    enum draft_kind kind; /* which drafter made it: not DRAFT_AUTO; DRAFT_OFF: auto took none */
    bool stale;           /* confirmed tokens contradict the tail already: n is 0 */
    uint64_t waited_ns;   /* from the ask until its drafting began, */
    uint64_t took_ns;     /* and from there to the answer */
    int rc;               /* ERR_* of a drafter that failed: n is 0. The request may ask again. */
    char error[160];      /* in words: what failed is the draft, not the target */
};

/* Readable when drafter_take has something. */
struct net_sock *drafter_socket(struct drafter *d);
/* false: none is there. */
bool drafter_take(struct drafter *d, struct drafter_answer *ret);

/* Of one kind of drafter. */
struct drafter_kind_stats {
    uint64_t drafts, tokens; /* answers that were not empty, and their tokens */
    uint64_t right, wrong; /* of them, those that confirmed tokens have reached: up to and including
                              the first wrong one of a draft */
    uint64_t failed;
    uint64_t ns; /* of drafting */
};

struct drafter_stats {
    uint64_t asks, replaced, dropped; /* dropped: the queue was full */
    uint64_t answers, stale;
    struct drafter_kind_stats kinds[DRAFT_N_KINDS]; /* DRAFT_OFF: auto took none */
    uint32_t requests;
    /* Of ngram. */
    uint64_t index_bytes, index_bytes_max;
    uint64_t kept_texts, evicted_texts; /* earlier outputs: held now; dropped for newer ones */
    uint64_t unindexed;                 /* requests for which there was no room */
    uint64_t foreign; /* matches in another tenant's text, which were not used: a fault if not 0 */
    /* Of the model. */
    uint64_t rows;        /* computed */
    uint64_t rows_reused; /* of a prompt, found computed for another request of the tenant */
    uint64_t rows_undone; /* computed for guesses that did not hold */
    uint32_t pages, pages_used;
};

void drafter_stats(struct drafter *d, struct drafter_stats *ret);

#endif
