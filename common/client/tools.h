/* What this project's own tools ask beside client.h: the whole status, and calls of any method and
 * version. Not installed: these structures change with the cluster's insides. */
#ifndef FLOTILLA_CLIENT_TOOLS_H
#define FLOTILLA_CLIENT_TOOLS_H

#include "common/client/client.h"
#include "proto/msg.h"

/* As client_models. */
int client_status(struct client *c, struct msg_status *ret, struct errmsg *em);

/* An admin's order: method "Drain" or "Rebalance". 0: it is taken, and *ret_text says what follows
 * from it; it is valid until the next function of this client. ERR_PROTO: it is refused, with the
 * server's reason; other errors as of client_models. */
int client_order(struct client *c, const char *method, const struct msg_order *order,
                 const char **ret_text, struct errmsg *em);

/* Makes a call of any method, version and encoded body, and waits for the reply that ends it. 0: it
 * came, and *ret_end says how the call ended; errors as of client_models, but for the status. */
int client_raw(struct client *c, uint32_t version, const char *method, const void *body,
               size_t body_bytes, struct client_end *ret_end, struct errmsg *em);

/* How a call with one reply ended; with STATUS_OK `body` is the reply's, valid during the call. */
typedef void (*client_ask_fn)(void *arg, const struct client_end *end, const void *body,
                              size_t body_bytes);

/* The same for a poll loop: begins it and never waits. on_end comes once from a later client_turn,
 * or from client_close (STATUS_CANCELLED); with `lost` where nothing came within CLIENT_SLOW_MS, or
 * the server fell silent. The body is copied. ERR_LIMIT: it is larger than the server takes;
 * ERR_CLOSED: the client is being closed. */
int client_ask(struct client *c, const char *method, const void *body, size_t body_bytes,
               client_ask_fn on_end, void *arg, struct errmsg *em);

#endif
