/* Calls of clients: what the coordinator keeps of one, and who does what with it. Private to the
 * coordinator's shell.
 *
 *   calls.c     a call's life: its slot, its replies, its end
 *   methods.c   what clients send, method by method
 *   generate.c  a Generate from its message to the core
 *   texts.c     texts to tokens, off the loop */
#ifndef FLOTILLA_COORDINATOR_CALLS_H
#define FLOTILLA_COORDINATOR_CALLS_H

#include "common/base/buf.h"
#include "common/io/net.h"
#include "coordinator/answer.h"
#include "coordinator/core/core.h"
#include "coordinator/texts.h"

struct shell;

#define ROUTE_BYTES 32u

/* A ROUTER's name for a peer's connection. */
struct route {
    uint8_t bytes[ROUTE_BYTES];
    size_t n;
};

/* A client's call. */
struct call {
    bool used, dirty, usage_sent;
    bool ended;   /* status and text below are known */
    bool give_up; /* an answer has failed: the others are to be cancelled */
    struct route route;
    struct instance client;
    uint64_t share;         /* whose share of the queues it takes: a hash of client and user */
    uint64_t id;            /* the client's */
    uint64_t request;       /* the core's number of the first answer; the others' follow it. The
                               call's text has the same (struct text) */
    struct answer *answers; /* n_answers; none but with Generate */
    uint32_t n_answers;
    uint64_t begun_ns;    /* when it came, */
    uint64_t heard_ns;    /* when its client was last heard of it, */
    uint64_t replied_ns;  /* and last told of it */
    bool text_waits;      /* its text is being tokenised, or waits for that */
    uint64_t refused_ns;  /* since when its connection takes no reply; 0: it does */
    uint64_t retry_ns;    /* when it is tried again */
    uint64_t deadline_ns; /* when, not how long */
    uint32_t max_new;
    enum priority priority;
    enum draft_kind draft;    /* of its answers */
    uint32_t draft_length;    /* 0: as configured */
    uint64_t tenant;          /* a hash of its name; 0: none */
    struct sampling sampling; /* its arrays: */
    struct buf bias_ids, bias;
    struct blob *grammar; /* of the answers, or NULL */
    bool ignore_eos, pieces, open_thought;
    bool embed;                     /* its prompt's embedding is wanted, and no tokens */
    struct tokens prompt, received; /* received: tokens of the answer from an earlier call */
    enum status status;             /* once ended */
    char text[LIMIT_TEXT_BYTES];
    uint32_t retry_ms;
};

/* To clients whose call ends because this coordinator does. */
#define CALLS_RESTARTING "the coordinator is restarting"

/* ---- calls.c, for the loop ---- */

void calls__open(struct shell *s);
void calls__close(struct shell *s);
/* Actions of the core. calls__tokens returns true when the text met a stop string: the caller then
 * feeds EV_STOP. */
bool calls__tokens(struct shell *s, const struct action *a);
void calls__embedding(struct shell *s, const struct action *a);
void calls__end(struct shell *s, const struct action *a);
/* Replies to each call that is due one; cancels calls whose clients are gone or silent. */
void calls__flush(struct shell *s);
void calls__tick(struct shell *s, uint64_t lost_ns);
/* Ends all calls: their clients are told to go on at the next coordinator. */
void calls__stop(struct shell *s);
/* Whether a client still waits for something. */
bool calls__any(const struct shell *s);

/* ---- calls.c, for the methods ---- */

/* NULL: there is no such call. */
struct call *calls__find(struct shell *s, struct instance client, uint64_t id);
struct call *calls__of_request(struct shell *s, uint64_t request);
/* A new call. Answers of a Generate get consecutive requests; a Tokenize, which has no answers,
 * gets one. NULL: there is no room, as the client was told. */
struct call *calls__new(struct shell *s, const struct msg_call *h, const struct route *from,
                        const char *user, uint32_t n_answers);
/* Gives the slot back; nothing more is sent. */
void calls__free(struct shell *s, struct call *c);
/* Replies are due. */
void calls__mark(struct shell *s, struct call *c);
/* The client speaks on this connection now. */
void calls__set_route(struct call *c, const struct route *r);
/* Cancels what the core still computes of the call; ends follow from it. */
void calls__cancel(struct shell *s, struct call *c, const char *why);
/* Ends the call with a status, and what has not ended of it. */
void calls__finish(struct shell *s, struct call *c, enum status status, const char *text,
                   uint32_t retry_ms);
/* Why the last message's body could not be read: malformed, or there was no memory for it. */
enum status calls__unread(const struct shell *s);
/* The one reply to a message that has no call: body may be NULL. */
void calls__reply(struct shell *s, const struct route *to, uint64_t call, enum status status,
                  const char *text, const struct buf *body);
/* Has the call's text tokenised, or ends the call where too many wait. */
void calls__start_text(struct shell *s, struct call *c, const struct text *t);

/* ---- methods.c ---- */

/* Bytes of the largest frame that a client may send, as the context and the vocabulary give it.
 * Before the clients' socket is opened. */
uint32_t methods__message_bytes(struct shell *s, uint32_t ctx);
/* Clients' messages, until a turn's budget is used; the rest waits in the socket. */
void methods__take(struct shell *s);
/* A text that was tokenised. What the call keeps of it is moved out of `t`. */
void methods__text_done(struct shell *s, struct text *t);

/* ---- generate.c ---- */

/* A Generate came. */
void generate__call(struct shell *s, const struct msg_call *h, const struct route *from,
                    struct net_frame body);
/* Its prompt is tokenised, unless it came so, and its format compiled; both are moved. */
void generate__prompt(struct shell *s, struct call *c, struct text *t);

#endif
