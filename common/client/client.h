/* The client library: calls to a coordinator, with streamed replies and cancellation.
 *
 * A client is one connection that any number of calls share. A call is one Generate: client_start
 * begins it, its on_reply is given the tokens as they come, and its on_end is told how it ended.
 * Replies are taken in client_turn only. A program that has nothing else to wait for lets
 * client_turn wait; one with a poll loop of its own waits for client_fd, at most for
 * client_wait_ms, and then calls client_turn with a timeout of 0. client_generate does one call and
 * returns when it has ended.
 *
 * Errors: a function that fails returns a negative ERR_* and writes why into its `struct errmsg *`,
 * which may be NULL. How a call itself ended is what its on_end is told.
 *
 * Ownership: requests are copied when a call begins. A `struct client_call *` is valid until its
 * on_end has returned; the client owns it. What a reply points to is valid during on_reply.
 *
 * Threads: a client and its calls are used by one thread at a time. Two clients know nothing of
 * each other. The library has one thread of its own for each client (libzmq's), which calls nothing
 * back.
 *
 * Callbacks come from within client_turn, client_generate, client_models, client_tokenize and
 * client_close, and never from within the function that begins or cancels their own call. They may
 * begin and cancel calls of their client; they must not close it. A function that waits returns
 * ERR_RANGE when a callback calls it.
 *
 * Lost servers: while calls run the client pings, so that the server knows that somebody listens,
 * and takes whatever the server says as a sign of life. A connection that breaks or falls silent
 * is made again (host names are then looked up again). A call that the server does not know any
 * more, that is silent, or that ended because the coordinator restarts, is asked for again behind
 * the tokens that it has, for up to CLIENT_PATIENCE_MS: to the caller all these are a pause, after
 * which the answer goes on with the very next token. A call with several samples ends instead. Time
 * in which this process itself stood still does not count as the server's silence. */
#ifndef FLOTILLA_CLIENT_CLIENT_H
#define FLOTILLA_CLIENT_CLIENT_H

#include "common/base/err.h"
#include "common/base/sampling.h"
#include "proto/api.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLIENT_CONNECT_MS 5000 /* how long a coordinator may take to accept the connection */
#define CLIENT_AGAIN_MS                                                                            \
    3000                      /* of silence, after which a new connection is made; doubled to 24 s \
                               */
#define CLIENT_SILENT_MS 5000 /* of silence, after which a call is lost */
#define CLIENT_SLOW_MS 60000  /* how long Models and Tokenize may take if pings are answered */
#define CLIENT_PATIENCE_MS 30000  /* how long a lost Generate is asked for again */
#define CLIENT_CALLS_MAX 65536    /* of a client at once */
#define CLIENT_REPLIES_A_TURN 256 /* taken at most in a client_turn */

struct client;
struct client_call;

/* endpoint: "tcp://HOST:PORT" or "HOST:PORT". Waits for the look-up of a host that is a name, but
 * not for a connection. ERR_CONF: the address is wrong, or there is no such host; ERR_TIMEOUT: the
 * name service is silent; ERR_IO: the system refuses a socket. */
int client_open(const char *endpoint, struct client **ret_client, struct errmsg *em);
/* For a coordinator with keys. */
struct client_keys {
    const char *file; /* this client's own, made by `flotilla keygen`; nobody else reads it */
    const char *coordinator; /* the coordinator's public key, 40 characters of Z85 */
};

/* As client_open, encrypted, and with a coordinator that has that key. Both NULL: plaintext. The
 * strings are borrowed for the call. ERR_CONF also: one of the two is missing, or wrong. A
 * coordinator that does not admit the key is silent: calls end with ERR_TIMEOUT. */
int client_open_keys(const char *endpoint, const struct client_keys *keys,
                     struct client **ret_client, struct errmsg *em);
/* Ends the calls that still run, each with STATUS_CANCELLED, here and at the server. Waits up to
 * 200 ms for that to leave. NULL is allowed. */
void client_close(struct client *c);

/* ---- Generate ---- */

struct client_request {
    const char *prompt;           /* UTF-8; NULL or "" where the tokens are given */
    const int32_t *prompt_tokens; /* n_prompt_tokens ids, instead of the prompt */
    uint32_t n_prompt_tokens;
    /* A conversation, instead of the prompt: JSON, as client.proto says under Chat. */
    const char *chat;
    /* The form that the answer must have: JSON, as client.proto says under Formats; NULL: any. */
    const char *format;
    bool special;        /* names of control tokens in the prompt are those tokens */
    bool ignore_eos;     /* go on to max_tokens */
    bool has_seed;       /* otherwise the server draws sampling.seed, and tells it */
    uint32_t max_tokens; /* of an answer */
    uint32_t samples;    /* answers to the one prompt, at most 16; 0: one */
    struct sampling sampling;
    const char *const *stops; /* n_stops texts, at most CLIENT_STOPS_MAX, before which it ends */
    uint32_t n_stops;
    const char *model;  /* the name of the one that is expected to be served, or NULL */
    const char *tenant; /* computed prefixes are shared within a tenant only; NULL: with all */
    const char *user; /* of a gateway: whose share of the server's queues it takes; NULL: its own */
    bool pieces;      /* replies have their tokens' bytes */
    bool has_priority; /* otherwise PRIORITY_NORMAL */
    enum priority priority;
    uint64_t deadline_ms; /* from now, a day at most; 0: the server's default */
    /* How tokens are guessed ahead, which changes none of them: "off", "ngram", "model",
     * "recorded", "auto"; NULL: as the server does. And how many at once, 1 to 32; 0: as the server
     * does. */
    const char *draft;
    uint32_t draft_length;
    bool embed; /* no answer, but the prompt's embedding; see client_embed */
};

#define CLIENT_STOPS_MAX 16

/* A greedy answer of up to 256 tokens; the prompt is to be filled in. */
void client_request_init(struct client_request *r);

/* Tokens and text of an answer, as they come. */
struct client_reply {
    uint32_t sample;      /* of which answer, from 0 */
    uint32_t first_index; /* of the first of these tokens in the answer */
    uint32_t n_tokens;
    const int32_t *tokens;
    const char *text; /* of the answer, what follows the text of the replies before */
    enum finish_reason finish_reason; /* in an answer's last reply */
    /* Log-probabilities, where they were asked for; NULL otherwise. */
    const float *logprobs; /* n_tokens */
    uint32_t n_top;        /* alternatives told of each token */
    const int32_t *top_ids;
    const float *top_logprobs; /* n_tokens x n_top */
    uint64_t queued_us;        /* with the first token: from submission to its first computation, */
    uint32_t cached;           /* and tokens of the prompt that were found computed */
    /* Bytes of the tokens, then of top_ids, where asked for; they need not be UTF-8. */
    const char *pieces;          /* one behind the other, */
    uint32_t n_pieces;           /* n_tokens x (1 + n_top), or 0 */
    const uint32_t *piece_bytes; /* n_pieces */
    bool has_usage;              /* what follows counts: in a call's first reply */
    const int32_t *prompt_tokens;
    uint32_t n_prompt_tokens;
    uint64_t seed;
    bool open_thought; /* the conversation's prompt ends within <think> */
    /* In an answer's last reply, where its tokens were guessed: guesses that the model has looked
     * at, in so many runs, and those that were right. */
    bool has_drafts;
    uint64_t draft_runs, drafted, accepted;
    /* In the last reply of a request with `embed`: n_embedding numbers. Else NULL and 0. */
    const float *embedding;
    uint32_t n_embedding;
    /* With FINISH_STOP: one of the request's stops ended the answer; else the model did. */
    bool has_stop;
    uint32_t stop; /* its index in client_request.stops */
};

/* How a call ended. */
struct client_end {
    int lost; /* 0: the server ended it; ERR_TIMEOUT, ERR_CLOSED, ERR_PROTO: the server was lost */
    enum status status;
    char text[512];    /* why; empty with STATUS_OK */
    uint32_t retry_ms; /* with STATUS_RESOURCE_EXHAUSTED: when to try again */
};

typedef void (*client_reply_fn)(void *arg, struct client_call *call,
                                const struct client_reply *reply);
/* Exactly once for each call that began. */
typedef void (*client_end_fn)(void *arg, struct client_call *call, const struct client_end *end);

/* Begins a Generate; never waits. A coordinator that is not there within CLIENT_CONNECT_MS ends the
 * call with ERR_TIMEOUT. on_reply may be NULL. *ret_call (which may be NULL) is written before any
 * callback comes. ERR_LIMIT: the request is larger than the server takes; ERR_AGAIN: too many
 * calls run; ERR_CLOSED: the client is being closed. A request above 4 MiB waits until the server
 * has said what it takes, and may then end with STATUS_INVALID_ARGUMENT. */
int client_start(struct client *c, const struct client_request *request,
                 struct client_call **ret_call, client_reply_fn on_reply, client_end_fn on_end,
                 void *arg, struct errmsg *em);
/* No reply of this call is handed out any more. Its on_end comes from a later turn, with
 * STATUS_CANCELLED, or with how the server had ended the call before it heard of this. May be
 * called twice. */
void client_cancel(struct client_call *call);

/* Waits up to timeout_ms for replies (0: not at all), takes up to CLIENT_REPLIES_A_TURN of those
 * that came, pings, and looks after calls that are silent. To be called at least each 500 ms while
 * calls run, or as client_wait_ms says. Returns how many calls still run. */
size_t client_turn(struct client *c, int timeout_ms);

/* For a poll loop: a descriptor, the same for the whole life of the client, that is readable when
 * client_turn has something to do. It is the client's: to be waited for (POLLIN), nothing else. */
int client_fd(const struct client *c);
/* For how many milliseconds the loop may wait for it: 0 if something is there already, -1 if
 * nothing but the descriptor matters. It tells of changes only, so this is asked before each wait.
 */
int client_wait_ms(struct client *c);

/* One Generate until its end; other calls of the client go on meanwhile. 0: the server has ended it
 * (ret_end says how); ERR_TIMEOUT, ERR_CLOSED or ERR_PROTO: the server was lost; or what
 * client_start returns. on_reply may be NULL; it may cancel. */
int client_generate(struct client *c, const struct client_request *request,
                    client_reply_fn on_reply, void *arg, struct client_end *ret_end,
                    struct errmsg *em);

/* The embedding of a request's prompt, its tokens or its conversation; as client_generate of the
 * request with `embed`, for which client_start does the same without waiting. *ret_embedding has
 * *ret_n numbers, as many as the model is wide: the mean over all positions of the last layer's
 * output behind the model's last norm, with length 1. It is the same to the bit for the same model
 * file, KV type and tokens, and valid until the next function of this client. Of the request only
 * the prompt, model, tenant, user, priority and deadline count. Where ret_end has another status
 * than STATUS_OK, *ret_n is 0. */
int client_embed(struct client *c, const struct client_request *request,
                 const float **ret_embedding, uint32_t *ret_n, struct client_end *ret_end,
                 struct errmsg *em);

/* "RESOURCE_EXHAUSTED" and the like. */
const char *client_status_name(enum status status);

/* ---- calls with one reply ---- */

/* Both wait for it, and calls of the client go on meanwhile. On success *ret is valid until the
 * next function of this client. ERR_TIMEOUT: the server is silent, or there is none. ERR_PROTO,
 * with the server's text: it answers with another status than OK. */
int client_models(struct client *c, const char **ret_name, struct errmsg *em);
int client_tokenize(struct client *c, const char *text, bool special, const int32_t **ret_tokens,
                    uint32_t *ret_n, struct errmsg *em);

#ifdef __cplusplus
}
#endif

#endif
