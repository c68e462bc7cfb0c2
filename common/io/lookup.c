#include "common/io/lookup.h"

#include "common/base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_uint n_running; /* of the process: threads are what is limited */

/* Shared by the asker and the thread; the last of the two frees it. */
struct lookup {
    pthread_mutex_t lock;
    bool done, orphan;
    int event, rc;
    struct errmsg why;
    struct addr addr;
};

static void set_host(struct addr *a, const struct addrinfo *i)
{
    const void *bytes =
        i->ai_family == AF_INET
            ? (const void *)&((const struct sockaddr_in *)(const void *)i->ai_addr)->sin_addr
            : (const void *)&((const struct sockaddr_in6 *)(const void *)i->ai_addr)->sin6_addr;
    (void)inet_ntop(i->ai_family, bytes, a->host, sizeof a->host);
    a->kind = i->ai_family == AF_INET ? ADDR_V4 : ADDR_V6;
}

/* Asks the system, and waits. IPv4 first: a server that listens at 127.0.0.1 is not found at ::1,
 * which "localhost" is as well. */
static int ask(struct addr *a, struct errmsg *em)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(a->host, NULL, &hints, &list);
    if (rc != 0) {
        bool later = rc == EAI_AGAIN || rc == EAI_SYSTEM || rc == EAI_MEMORY;
        return err_set(em, later ? ERR_TIMEOUT : ERR_NOTFOUND, "host '%s' does not resolve: %s",
                       a->host, gai_strerror(rc));
    }
    const struct addrinfo *best = NULL;
    for (const struct addrinfo *i = list; i; i = i->ai_next)
        if (i->ai_family == AF_INET ? !best || best->ai_family != AF_INET
                                    : i->ai_family == AF_INET6 && !best)
            best = i;
    if (best) set_host(a, best);
    freeaddrinfo(list);
    return best ? 0 : err_set(em, ERR_NOTFOUND, "host '%s' has no IP address", a->host);
}

static void free_lookup(struct lookup *l)
{
    (void)close(l->event);
    (void)pthread_mutex_destroy(&l->lock);
    mem_free(l);
}

static void *run(void *arg)
{
    struct lookup *l = arg;
    struct addr a = l->addr; /* written by the asker before this thread began */
    struct errmsg why = {0};
    int rc = ask(&a, &why);
    (void)pthread_mutex_lock(&l->lock);
    l->addr = a;
    l->why = why;
    l->rc = rc;
    l->done = true;
    bool orphan = l->orphan;
    if (!orphan) (void)eventfd_write(l->event, 1);
    (void)pthread_mutex_unlock(&l->lock);
    if (orphan) free_lookup(l);
    (void)atomic_fetch_sub(&n_running, 1);
    return NULL;
}

int lookup_start(const char *host, struct lookup **ret, struct errmsg *em)
{
    pthread_t thread;
    if (atomic_fetch_add(&n_running, 1) >= LOOKUPS_MAX) {
        (void)atomic_fetch_sub(&n_running, 1);
        return err_set(em, ERR_LIMIT, "host '%s': %u look-ups are under way", host, LOOKUPS_MAX);
    }
    struct lookup *l = mem_zalloc(sizeof *l);
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)snprintf(l->addr.host, sizeof l->addr.host, "%s", host);
    l->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int failed = l->event < 0 ? errno : pthread_create(&thread, NULL, run, l);
    if (failed) {
        (void)atomic_fetch_sub(&n_running, 1);
        free_lookup(l);
        return err_set(em, ERR_IO, "host '%s': no thread for its look-up: %s", host,
                       strerror(failed));
    }
    (void)pthread_detach(thread);
    *ret = l;
    return 0;
}

void lookup_close(struct lookup *l)
{
    if (!l) return;
    (void)pthread_mutex_lock(&l->lock);
    bool done = l->done;
    l->orphan = true;
    (void)pthread_mutex_unlock(&l->lock);
    if (done) free_lookup(l);
}

int lookup_fd(const struct lookup *l)
{
    return l->event;
}

int lookup_result(struct lookup *l, struct addr *ret, struct errmsg *em)
{
    (void)pthread_mutex_lock(&l->lock);
    int rc = l->done ? l->rc : ERR_AGAIN;
    if (l->done && rc < 0) (void)err_set(em, rc, "%s", l->why.text);
    if (rc == 0) {
        memcpy(ret->host, l->addr.host, sizeof ret->host);
        ret->kind = l->addr.kind;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}

int lookup_now(struct addr *a, struct errmsg *em)
{
    return a->kind == ADDR_NAME ? ask(a, em) : 0;
}
