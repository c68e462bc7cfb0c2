#include "common/io/http.h"

#include "common/base/addr.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/lookup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

/* Above our limit: at its own, libmicrohttpd accepts nobody, so nobody would be pushed out. */
#define ACCEPTED (HTTP_CONNECTIONS + 8)
#define REQUEST_BYTES 8192u /* of a connection's memory: request line, headers, reply headers */

/* A connection that is open, the newest first. It is silent but for HTTP_IDLE_S from when it has
 * asked: a request with a body, which nobody waits for, asks nothing before its end. */
struct conn {
    struct conn *newer, *older;
    int fd;
    bool cut;
    uint64_t asked_ns; /* when its request was whole; 0: it has none, or has its reply */
};

struct http {
    struct MHD_Daemon *daemon;
    struct conn *newest, *oldest; /* on the server's thread only */
    uint32_t n_conns;             /* not cut */
    const char *path, *content_type;
    http_text_fn text;
    void *arg;
};

static enum MHD_Result reply(struct MHD_Connection *c, unsigned status, const char *content_type,
                             const struct buf *text)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(
        text->len, text->data ? text->data : (char *)(uintptr_t) "", MHD_RESPMEM_MUST_COPY);
    if (!r) return MHD_NO;
    (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, content_type);
    enum MHD_Result rc = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return rc;
}

static bool is_silent(const struct conn *k, uint64_t now_ns)
{
    return !k->asked_ns || now_ns >= k->asked_ns + HTTP_IDLE_S * NS_PER_S;
}

/* Connections that stay silent must not keep out one that asks: the longest silent one goes. */
static void cut_silent(struct http *h)
{
    struct conn *k = h->oldest;
    uint64_t now_ns = clock_ns();
    while (k && (k->cut || !is_silent(k, now_ns))) k = k->newer;
    if (!k) return;
    (void)shutdown(k->fd, SHUT_RDWR); /* the server reads the end and closes it */
    k->cut = true;
    h->n_conns--;
}

static void on_connection(void *arg, struct MHD_Connection *c, void **state,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http *h = arg;
    struct conn *k = *state;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *i =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        k = mem_zalloc(sizeof *k);
        *k = (struct conn){.older = h->newest, .fd = i ? i->connect_fd : -1};
        *(h->newest ? &h->newest->newer : &h->oldest) = k;
        h->newest = k;
        *state = k;
        if (++h->n_conns > HTTP_CONNECTIONS) cut_silent(h);
    } else if (k) {
        *(k->newer ? &k->newer->older : &h->newest) = k->older;
        *(k->older ? &k->older->newer : &h->oldest) = k->newer;
        h->n_conns -= !k->cut;
        mem_free(k);
        *state = NULL;
    }
}

static struct conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

static void on_completed(void *arg, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode code)
{
    struct conn *k = conn_of(c);
    (void)arg;
    (void)state;
    (void)code;
    if (k) k->asked_ns = 0;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **state)
{
    struct http *h = arg;
    static int seen;
    (void)version;
    (void)data;
    if (!*state) { /* the headers are whole; a body, if any, follows and is dropped */
        *state = &seen;
        return MHD_YES;
    }
    if (*n) {
        *n = 0;
        return MHD_YES;
    }
    struct conn *k = conn_of(c);
    if (k) k->asked_ns = clock_ns();
    struct buf text = {0};
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0,
         found = strcmp(url, h->path) == 0;
    if (get && found) h->text(h->arg, &text);
    const char *why = !found ? "not found\n" : !get ? "only GET and HEAD are served\n" : "";
    if (*why) (void)buf_append(&text, why, strlen(why));
    enum MHD_Result rc = reply(c,
                               !found ? MHD_HTTP_NOT_FOUND
                               : !get ? 405u
                                      : MHD_HTTP_OK,
                               *why ? "text/plain" : h->content_type, &text);
    buf_close(&text);
    return rc;
}

int http__address(const char *host, uint32_t port, struct http_address *ret, struct errmsg *em)
{
    struct addr a;
    if (addr_parse(host, &a, em) < 0 || lookup_now(&a, em) < 0) return ERR_CONF;
    *ret = (struct http_address){.v6 = a.kind == ADDR_V6};
    if (ret->v6) {
        ret->at.in6 =
            (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
        (void)inet_pton(AF_INET6, a.host, &ret->at.in6.sin6_addr);
    } else {
        ret->at.in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        (void)inet_pton(AF_INET, a.host, &ret->at.in.sin_addr);
    }
    return 0;
}

int http_open(const char *host, uint32_t port, const char *path, const char *content_type,
              http_text_fn text, void *arg, struct http **ret, uint32_t *ret_port,
              struct errmsg *em)
{
    struct http_address at;
    if (http__address(host, port, &at, em) < 0) return ERR_CONF;
    struct http *h = mem_zalloc(sizeof *h);
    h->path = path;
    h->content_type = content_type;
    h->text = text;
    h->arg = arg;
    h->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | (at.v6 ? MHD_USE_IPv6 : 0), 0, NULL, NULL,
        on_request, h, MHD_OPTION_SOCK_ADDR, &at.at.any, MHD_OPTION_CONNECTION_LIMIT, ACCEPTED,
        MHD_OPTION_CONNECTION_TIMEOUT, HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)REQUEST_BYTES, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_END);
    if (!h->daemon) {
        mem_free(h);
        return err_set(em, ERR_IO, "cannot listen for HTTP at %s:%" PRIu32 ": %s", host, port,
                       strerror(errno));
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    *ret_port = info ? info->port : port;
    *ret = h;
    return 0;
}

void http_close(struct http *h)
{
    if (!h) return;
    MHD_stop_daemon(h->daemon);
    mem_free(h);
}
