/* Whose keys may connect: the lists of the cluster file, at the start and when they are read again,
 * and the log's lines about those who were refused. */
#include "coordinator/shell.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>

#define TOLD_NS (10 * NS_PER_S) /* between two lines about refusals of one kind */

/* A gateway in this process comes with this process's own key. */
static void allow(struct shell *s, const struct key_list *allowed)
{
    struct key_list with_own = {.items = NULL};
    for (size_t i = 0; i < allowed->n; i++)
        key_add(&with_own, &allowed->items[i].key, allowed->items[i].roles);
    if (s->config->http) key_add(&with_own, &s->config->own.public, KEY_GATEWAY);
    net_allow(s->net, allowed);
    net_allow(s->client_net, &with_own);
    key_list_close(&with_own);
}

int admission__open(struct shell *s, struct errmsg *em)
{
    struct net *nets[] = {s->net, s->client_net};
    if (!s->config->key_file) return 0;
    for (int i = 0; i < 2; i++) {
        int rc = net_secure(nets[i], &s->config->own, em);
        if (rc < 0) return rc;
    }
    allow(s, &s->config->allowed);
    char text[KEY_TEXT_BYTES];
    key_format(&s->config->own.public, text);
    log_info("its key is %s; %zu keys are admitted", text, s->config->allowed.n);
    return 0;
}

void admission__reload(struct shell *s)
{
    struct errmsg em = {0};
    struct key_list allowed;
    if (s->gateway && s->config->http_api_keys) {
        if (gateway_reload(s->gateway, &em) < 0)
            log_error("the API keys stay as they are: %s", em.text);
        else
            log_info("the API keys were read again");
    }
    if (!s->config->key_file) {
        log_info("SIGHUP: there are no keys to be read again");
        return;
    }
    if (config_read_allowed(s->config, &allowed, &em) < 0) {
        log_error("the keys stay as they are: %s", em.text);
        return;
    }
    allow(s, &allowed);
    log_info("the keys were read again: %zu are admitted", allowed.n);
    key_list_close(&allowed);
}

static void tell(uint64_t n, const struct net_refusal *r)
{
    char key[KEY_TEXT_BYTES];
    key_format(&r->key, key);
    switch (r->kind) {
    case NET_REFUSED_KEY:
        log_warn("refused %" PRIu64 " times, last from %s: key %s is in no list of 'keys'", n,
                 r->peer, key);
        break;
    case NET_REFUSED_ROLE:
        log_warn("refused %" PRIu64 " times, last from %s: key %s is listed for another role", n,
                 r->peer, key);
        break;
    case NET_REFUSED_PLAIN:
        log_warn("refused %" PRIu64
                 " times, last at %s: a peer without a key (--key), or that broke off",
                 n, r->peer);
        break;
    case NET_REFUSED_CRYPTO:
        log_warn("refused %" PRIu64 " times, last at %s: a peer that expects another coordinator's "
                 "key (--coordinator-key), or whose messages are damaged",
                 n, r->peer);
        break;
    case NET_REFUSED_KINDS: break;
    }
}

void admission__tick(struct shell *s)
{
    struct net *nets[] = {s->net, s->client_net};
    struct net_refusal r;
    if (!s->config->key_file) return;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < NET_REFUSED_KINDS && net_refusal(nets[i], &r); k++) {
            s->refused[r.kind] += r.count;
            uint64_t *told_ns = &s->refused_told_ns[r.kind];
            if (*told_ns && s->now_ns < *told_ns + TOLD_NS) continue;
            tell(s->refused[r.kind], &r);
            s->refused[r.kind] = 0;
            *told_ns = s->now_ns;
        }
}
