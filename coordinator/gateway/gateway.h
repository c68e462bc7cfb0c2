/* The gateway: OpenAI's HTTP API in front of a coordinator, whose client it is. One thread of its
 * own, which serves all connections and calls; README.md has the design. */
#ifndef FLOTILLA_GATEWAY_GATEWAY_H
#define FLOTILLA_GATEWAY_GATEWAY_H

#include "common/base/err.h"
#include "common/client/client.h"

#include <stdbool.h>
#include <stdint.h>

struct gateway;

struct gateway_options {
    const char *endpoint; /* of the coordinator's clients, "tcp://HOST:PORT" */
    struct client_keys keys;
    const char *host; /* to listen at: an address, or a name, which is looked up */
    uint32_t port;    /* 0: any free one */
    uint32_t connections;
    const char *api_keys;          /* a file (access.h); NULL: everybody may ask */
    const char *certificate, *key; /* PEM files; both NULL: no TLS */
    const char *cors;              /* an origin whose pages may ask, "*": all; NULL: none */
    uint32_t body_kib;             /* of a request, at most */
    uint32_t read_s,
        stall_s; /* that a request may take to arrive; that a reader may take nothing */
};

#define GATEWAY_PORT 8080u
#define GATEWAY_CONNECTIONS 1024u
#define GATEWAY_BODY_KIB 4096u
#define GATEWAY_READ_S 30u
#define GATEWAY_STALL_S 60u

/* Begins to serve. The strings are borrowed for the call. The coordinator need not be there yet.
 * ERR_CONF, ERR_IO: as of client_open_keys and httpd_open. */
int gateway_open(const struct gateway_options *o, struct gateway **ret, uint32_t *ret_port,
                 struct errmsg *em);
/* Ends what runs: requests get 503, streams an error. Waits a moment for that to leave. May be
 * NULL.
 */
void gateway_close(struct gateway *g);
/* From now on new requests are refused with 503; running ones go on. Any thread. */
void gateway_drain(struct gateway *g);
/* Whether requests wait for a part of their reply: also where the coordinator has sent it all. Any
 * thread. */
bool gateway_busy(struct gateway *g);
/* Reads the API keys again; any one thread. ERR_CONF: the file is wrong, and nothing changes. */
int gateway_reload(struct gateway *g, struct errmsg *em);

#endif
