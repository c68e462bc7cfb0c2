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

#endif
