#include "common/io/zap.h"

#include "common/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define ENDPOINT "inproc://zeromq.zap.01"
/* Of a request: version, id, domain, address, identity, mechanism, credentials. */
enum { VERSION, ID, DOMAIN, ADDRESS, IDENTITY, MECHANISM, CREDENTIALS, FRAMES };
#define FRAME_BYTES 256u /* libzmq writes each of them shorter */

struct frame {
    char data[FRAME_BYTES];
    size_t bytes;
};

struct zap {
    void *socket; /* the handler thread's */
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    struct key_list keys;
    struct {
        bool used;
        struct net_rule rule;
    } domains[ZAP_DOMAINS_MAX];
    struct net_refusal refusals[NET_REFUSED_KINDS]; /* since they were told */
};

/* ---- the rule ---- */

static uint32_t roles_of(const struct zap *z, uint32_t domain, const struct key *key)
{
    if (domain >= ZAP_DOMAINS_MAX || !z->domains[domain].used) return 0;
    const struct net_rule *rule = &z->domains[domain].rule;
    if (key_is_set(&rule->only)) return key_eq(&rule->only, key) ? KEY_ANY : 0;
    uint32_t roles = key_roles(&z->keys, key);
    return roles & rule->roles ? roles : 0;
}

uint32_t zap_roles(struct zap *z, uint32_t domain, const struct key *key)
{
    (void)pthread_mutex_lock(&z->lock);
    uint32_t roles = roles_of(z, domain, key);
    (void)pthread_mutex_unlock(&z->lock);
    return roles;
}

void zap_allow(struct zap *z, const struct key_list *keys)
{
    struct key_list copy = {.items = mem_alloc(keys->n * sizeof *copy.items + 1), .n = keys->n};
    if (keys->n) memcpy(copy.items, keys->items, keys->n * sizeof *copy.items);
    (void)pthread_mutex_lock(&z->lock);
    struct key_list old = z->keys;
    z->keys = copy;
    (void)pthread_mutex_unlock(&z->lock);
    key_list_close(&old);
}

int zap_add(struct zap *z, struct net_rule rule, uint32_t *ret_domain,
            char ret_name[static ZAP_DOMAIN_BYTES], struct errmsg *em)
{
    uint32_t i = 0;
    (void)pthread_mutex_lock(&z->lock);
    while (i < ZAP_DOMAINS_MAX && z->domains[i].used) i++;
    if (i < ZAP_DOMAINS_MAX) {
        z->domains[i].used = true;
        z->domains[i].rule = rule;
    }
    (void)pthread_mutex_unlock(&z->lock);
    if (i == ZAP_DOMAINS_MAX)
        return err_set(em, ERR_LIMIT, "more than %u sockets listen", ZAP_DOMAINS_MAX);
    *ret_domain = i;
    (void)snprintf(ret_name, ZAP_DOMAIN_BYTES, "%u", i);
    return 0;
}

void zap_drop(struct zap *z, uint32_t domain)
{
    (void)pthread_mutex_lock(&z->lock);
    z->domains[domain].used = false;
    (void)pthread_mutex_unlock(&z->lock);
}

/* ---- what was refused ---- */

static void note(struct zap *z, enum net_refused kind, const char *peer, const struct key *key)
{
    struct net_refusal *r = &z->refusals[kind];
    r->kind = kind;
    r->count++;
    if (key) r->key = *key;
    (void)snprintf(r->peer, sizeof r->peer, "%.60s", peer);
}

void zap_refuse(struct zap *z, enum net_refused kind, const char *peer, const struct key *key)
{
    (void)pthread_mutex_lock(&z->lock);
    note(z, kind, peer, key);
    (void)pthread_mutex_unlock(&z->lock);
}

bool zap_refusal(struct zap *z, struct net_refusal *ret)
{
    bool any = false;
    (void)pthread_mutex_lock(&z->lock);
    for (int i = 0; i < NET_REFUSED_KINDS && !any; i++) {
        any = z->refusals[i].count > 0;
        if (any) *ret = z->refusals[i];
        if (any) z->refusals[i].count = 0;
    }
    (void)pthread_mutex_unlock(&z->lock);
    return any;
}

/* ---- the handler ---- */

/* A whole request. False: the context is terminated. A frame that does not fit is left empty. */
static bool receive(struct zap *z, struct frame *frames, unsigned *ret_n)
{
    unsigned n = 0;
    bool more = true;
    while (more) {
        zmq_msg_t m;
        (void)zmq_msg_init(&m);
        while (zmq_msg_recv(&m, z->socket, 0) < 0) {
            if (errno == EINTR) continue;
            (void)zmq_msg_close(&m);
            return false;
        }
        more = zmq_msg_more(&m);
        struct frame *f = &frames[n < FRAMES ? n : FRAMES];
        f->bytes = zmq_msg_size(&m) < FRAME_BYTES ? zmq_msg_size(&m) : 0;
        memcpy(f->data, zmq_msg_data(&m), f->bytes);
        f->data[f->bytes] = 0;
        n += n <= FRAMES;
        (void)zmq_msg_close(&m);
    }
    *ret_n = n;
    return true;
}

/* Whether the owner of the key that a request carries is let in. Refusals are counted. */
static bool admits(struct zap *z, const struct frame *frames, struct key *ret_key)
{
    unsigned domain;
    char rest;
    if (strcmp(frames[MECHANISM].data, "CURVE") != 0 || frames[CREDENTIALS].bytes != KEY_BYTES ||
        sscanf(frames[DOMAIN].data, "%u%c", &domain, &rest) != 1)
        return false;
    memcpy(ret_key, frames[CREDENTIALS].data, sizeof *ret_key);
    (void)pthread_mutex_lock(&z->lock);
    bool admitted = roles_of(z, domain, ret_key) != 0;
    if (!admitted)
        note(z, key_roles(&z->keys, ret_key) ? NET_REFUSED_ROLE : NET_REFUSED_KEY,
             frames[ADDRESS].data, ret_key);
    (void)pthread_mutex_unlock(&z->lock);
    return admitted;
}

/* The key becomes the peer's user id, which comes with each of its messages. 400 tells the peer
 * that it is not admitted; it would try again at once after 300. */
static bool answer(struct zap *z, const struct frame *id, bool admitted, const struct key *key)
{
    char name[KEY_TEXT_BYTES] = "";
    if (admitted) key_format(key, name);
    const struct {
        const char *data;
        size_t bytes;
    } parts[] = {{"1.0", 3},
                 {id->data, id->bytes},
                 {admitted ? "200" : "400", 3},
                 {admitted ? "OK" : "refused", admitted ? 2 : 7},
                 {name, strlen(name)},
                 {"", 0}};
    enum { N = sizeof parts / sizeof parts[0] };
    for (int i = 0; i < N; i++)
        while (zmq_send(z->socket, parts[i].data, parts[i].bytes, i + 1 < N ? ZMQ_SNDMORE : 0) < 0)
            if (errno != EINTR) return false;
    return true;
}

static void *run(void *arg)
{
    struct zap *z = arg;
    struct frame frames[FRAMES + 1]; /* the last one for whatever is too much */
    unsigned n;
    bool serves = true;
    (void)pthread_setname_np(pthread_self(), "zap");
    while (serves && receive(z, frames, &n)) {
        struct key key = {{0}};
        bool admitted = n == FRAMES && admits(z, frames, &key);
        serves = answer(z, &frames[ID], admitted, &key);
    }
    (void)zmq_close(z->socket);
    return NULL;
}

int zap_open(void *context, struct zap **ret, struct errmsg *em)
{
    sigset_t all, before;
    int linger = 0;
    struct zap *z = mem_zalloc(sizeof *z);
    z->socket = zmq_socket(context, ZMQ_REP);
    if (!z->socket || zmq_setsockopt(z->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_bind(z->socket, ENDPOINT) != 0) {
        int rc = err_set(em, ERR_IO, "authentication: %s", zmq_strerror(errno));
        if (z->socket) (void)zmq_close(z->socket);
        mem_free(z);
        return rc;
    }
    (void)pthread_mutex_init(&z->lock, NULL);
    (void)sigfillset(&all); /* signals are the program's thread's */
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&z->thread, NULL, run, z);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        (void)zmq_close(z->socket);
        (void)pthread_mutex_destroy(&z->lock);
        mem_free(z);
        return err_set(em, ERR_IO, "no thread for authentication: %s", strerror(failed));
    }
    *ret = z;
    return 0;
}

void zap_close(struct zap *z)
{
    if (!z) return;
    (void)pthread_join(z->thread, NULL);
    (void)pthread_mutex_destroy(&z->lock);
    key_list_close(&z->keys);
    mem_free(z);
}
