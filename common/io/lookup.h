/* Host names to numbers, on a thread of its own for each look-up: the system's resolver may take
 * many seconds, and must make nobody wait but the one who asked. */
#ifndef FLOTILLA_IO_LOOKUP_H
#define FLOTILLA_IO_LOOKUP_H

#include "common/base/addr.h"
#include "common/base/err.h"

#define LOOKUPS_MAX 32u /* under way at once in this process */

struct lookup;

/* ERR_LIMIT: too many are under way; ERR_NOMEM or ERR_IO where there is no thread for it. */
int lookup_start(const char *host, struct lookup **ret, struct errmsg *em);
/* May be NULL, and may come at any time: a thread that still waits for the resolver ends later, by
 * itself. */
void lookup_close(struct lookup *l);

/* Readable when there is a result. */
int lookup_fd(const struct lookup *l);
/* ERR_AGAIN: not yet. 0: the host of *ret is an address, an IPv4 one where there is one, and its
 * kind is set. ERR_NOTFOUND: there is no such host; ERR_TIMEOUT: the resolver cannot say now. */
int lookup_result(struct lookup *l, struct addr *ret, struct errmsg *em);

/* The same, waiting for it: for the start of a program. Addresses are taken as they are. */
int lookup_now(struct addr *a, struct errmsg *em);

#endif
