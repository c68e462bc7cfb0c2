/* Addresses as people write them: "tcp://HOST:PORT", "HOST:PORT", "HOST", where HOST is a name, an
 * IPv4 address, or an IPv6 address ("[::1]", without brackets where no port follows). Nothing here
 * asks the network; common/io/lookup.h turns names into numbers. */
#ifndef FLOTILLA_BASE_ADDR_H
#define FLOTILLA_BASE_ADDR_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ADDR_HOST_BYTES 256u /* a name of the DNS has at most 253 */
#define ADDR_TEXT_BYTES (ADDR_HOST_BYTES + 16u)

enum addr_kind { ADDR_NAME, ADDR_V4, ADDR_V6 };

struct addr {
    char host[ADDR_HOST_BYTES]; /* without brackets; empty only after addr_split of ":PORT" */
    enum addr_kind kind;
    bool has_port;
    uint16_t port;
};

/* Reads an address and says in words what is wrong with it and what would be right: ERR_CONF. */
int addr_parse(const char *text, struct addr *ret, struct errmsg *em);
/* The same, and the port is needed, and not 0. */
int addr_parse_port(const char *text, struct addr *ret, struct errmsg *em);
/* Takes apart an endpoint that a program wrote: like addr_parse, but the host may be empty, and the
 * port may be "*", which counts as 0. False: it is no endpoint. */
bool addr_split(const char *text, struct addr *ret);

/* "tcp://HOST:PORT" as libzmq and users read it, with brackets where they are needed; the port only
 * where there is one. */
void addr_format(const struct addr *a, char *ret, size_t size);
/* The host as it stands in front of ":PORT". */
void addr_format_host(const struct addr *a, char *ret, size_t size);

/* Whether a host is this machine's loopback: 127.x.y.z, ::1 or localhost, with or without "tcp://"
 * before and ":PORT" behind it. A name that only begins like one is not. */
bool addr_is_loopback(const char *host);
/* Whether it stands for every address of the machine: 0.0.0.0 or ::. */
bool addr_is_any(const char *host);

#endif
