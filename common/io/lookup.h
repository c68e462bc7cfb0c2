/* Host names to IP addresses, each look-up on a thread of its own: the system's resolver may take
 * many seconds, and must not hold up a program's other work. */
#ifndef FLOTILLA_IO_LOOKUP_H
#define FLOTILLA_IO_LOOKUP_H

#include "common/base/addr.h"
#include "common/base/err.h"

#define LOOKUPS_MAX 32u /* under way at once in this process */

struct lookup;

/* Begins to look up `host` (copied). ERR_LIMIT: LOOKUPS_MAX are under way; ERR_IO: there is no
 * thread for it. */
int lookup_start(const char *host, struct lookup **ret, struct errmsg *em);
/* At any time: a thread that still waits for the resolver ends later, by itself. May be NULL. */
void lookup_close(struct lookup *l);

/* Readable when there is a result. */
int lookup_fd(const struct lookup *l);
/* ERR_AGAIN: not yet. 0: the host of *ret is an address, an IPv4 one where there is one, and its
 * kind is set. ERR_NOTFOUND: there is no such host; ERR_TIMEOUT: the resolver cannot say now. */
int lookup_result(struct lookup *l, struct addr *ret, struct errmsg *em);

/* Looks up a name and waits, at the start of a program. An address stays as it is. */
int lookup_now(struct addr *a, struct errmsg *em);

#endif
