/* The client library: calls to a coordinator over ZeroMQ, streamed replies, cancellation. While a
 * call runs it pings, so that the server knows that somebody listens, and it gives up on a server
 * that is silent. One thread at a time. */
#ifndef FLOTILLA_CLIENT_CLIENT_H
#define FLOTILLA_CLIENT_CLIENT_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "proto/msg.h"

#include <stdbool.h>
#include <stdint.h>

#define CLIENT_CONNECT_MS 5000   /* how long a coordinator may take to accept the connection */
#define CLIENT_AGAIN_MS 3000     /* after which a silent server is asked on a new connection */
#define CLIENT_SILENT_MS 5000    /* after which a server that answers nothing is given up, */
#define CLIENT_SLOW_MS 60000     /* or, where it answers pings, that takes so long for one reply; */
#define CLIENT_PATIENCE_MS 30000 /* or, within a Generate, is looked for this much longer */
#define CLIENT_REPLIES_A_TURN 256

struct client;

/* endpoint: "tcp://HOST:PORT" or "HOST:PORT". Waits for the look-up of a host that is a name, but
 * not for a connection. ERR_CONF: the address is wrong, or there is no such host. */
int client_open(const char *endpoint, struct client **ret_client, struct errmsg *em);
void client_close(struct client *c);

/* How a call ended; text is empty with STATUS_OK. */
struct client_end {
    int lost; /* 0, or the code (ERR_TIMEOUT, ERR_CLOSED, ERR_PROTO) with which the server was lost
               */
    enum status status;
    char text[LIMIT_TEXT_BYTES];
    uint32_t retry_ms;
};

/* A reply of a running Generate; valid during the call. False: cancel the request. */
typedef bool (*client_reply_fn)(void *arg, const struct msg_generate_reply *reply);

typedef void (*client_end_fn)(void *arg, const struct client_end *end);

/* Starts a Generate; client_turn calls back. What `request` points to is borrowed until on_end,
 * which comes exactly once unless the client is closed before. A connection that breaks or dies, or
 * a coordinator that is started again, is a pause: the answer goes on with the very next token.
 * deadline_ms 0: the server's default. ERR_TIMEOUT when nobody is there. */
int client_start(struct client *c, const struct msg_generate *request, uint64_t deadline_ms,
                 client_reply_fn on_reply, client_end_fn on_end, void *arg, struct errmsg *em);
/* Waits up to timeout_ms for replies, takes up to CLIENT_REPLIES_A_TURN of those that came, and
 * keeps the server informed. To be called at least each 500 ms while calls run. Returns how many
 * still do. */
size_t client_turn(struct client *c, long timeout_ms);

/* Both until the end. 0 when the server has ended it (ret_end says how), ERR_TIMEOUT, ERR_CLOSED or
 * ERR_PROTO when the server is lost. */
int client_generate(struct client *c, const struct msg_generate *request, uint64_t deadline_ms,
                    client_reply_fn on_reply, void *arg, struct client_end *ret_end,
                    struct errmsg *em);

/* The other methods. On success *ret is valid until the next call of this client. ERR_PROTO with
 * the server's text when it answers with another status than OK. */
int client_status(struct client *c, struct msg_status *ret, struct errmsg *em);
int client_models(struct client *c, const char **ret_name, struct errmsg *em);
int client_tokenize(struct client *c, const char *text, bool special, const int32_t **ret_tokens,
                    uint32_t *ret_n, struct errmsg *em);

/* A call as it stands on the wire, for tests and for methods that have no function here: sends and
 * waits for the reply's header and body. */
int client_raw(struct client *c, uint32_t version, const char *method, const void *body,
               size_t body_bytes, struct client_end *ret_end, struct errmsg *em);

#endif
