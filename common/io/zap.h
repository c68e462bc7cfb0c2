/* Who may connect: the answer to what libzmq asks about each CURVE handshake (ZAP, ZeroMQ RFC 27).
 *
 * A context has one handler, a thread of its own. It is there before any socket of the context and
 * ends with it. Each listening socket is a ZAP domain with a rule of its own: the roles of the keys
 * that it admits, or the one key. The list of keys may be replaced at any time; that concerns later
 * handshakes, and whoever receives messages asks again for each of them (zap_roles).
 *
 * Private to net.c; any thread may call what is here. */
#ifndef FLOTILLA_IO_ZAP_H
#define FLOTILLA_IO_ZAP_H

#include "common/base/err.h"
#include "common/base/key.h"
#include "common/io/net.h"

#define ZAP_DOMAINS_MAX 32u
#define ZAP_DOMAIN_BYTES 16u

struct zap;

/* Starts the handler in a context of libzmq that has no socket yet. */
int zap_open(void *context, struct zap **ret, struct errmsg *em);
/* After the context was terminated, which ends the thread. May be NULL. */
void zap_close(struct zap *z);

/* The keys that have roles; copied. */
void zap_allow(struct zap *z, const struct key_list *keys);

/* A new domain, whose name is written to ret_name. ERR_LIMIT: there are ZAP_DOMAINS_MAX. */
int zap_add(struct zap *z, struct net_rule rule, uint32_t *ret_domain,
            char ret_name[static ZAP_DOMAIN_BYTES], struct errmsg *em);
void zap_drop(struct zap *z, uint32_t domain);

/* What a key may do at a domain now: its roles, or KEY_ANY for the one key of a rule; 0: nothing.
 */
uint32_t zap_roles(struct zap *z, uint32_t domain, const struct key *key);

/* Counts a peer that was refused. key may be NULL. */
void zap_refuse(struct zap *z, enum net_refused kind, const char *peer, const struct key *key);
/* What net_refusal does. */
bool zap_refusal(struct zap *z, struct net_refusal *ret);

#endif
