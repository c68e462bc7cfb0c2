/* A small HTTP server for texts that this process makes, on a thread of its own (libmicrohttpd,
 * known to this module only). */
#ifndef FLOTILLA_IO_HTTP_H
#define FLOTILLA_IO_HTTP_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#define HTTP_IDLE_S 5u       /* after which a silent connection is closed */
#define HTTP_CONNECTIONS 64u /* at once; one more pushes out the longest silent one */

struct http;

/* Fills `out`, which is empty, with what GET of the one path answers (and HEAD, without the text).
 * Called on the server's thread. */
typedef void (*http_text_fn)(void *arg, struct buf *out);

/* Listens at `host`, an address or a name, which is then looked up, and `port` (0: any free one);
 * *ret_port is the port. Another path is answered 404, another method 405. `path` and
 * `content_type` are borrowed until http_close. ERR_CONF: no such host; ERR_IO: it cannot listen
 * there. */
int http_open(const char *host, uint32_t port, const char *path, const char *content_type,
              http_text_fn text, void *arg, struct http **ret, uint32_t *ret_port,
              struct errmsg *em);
/* May be NULL. */
void http_close(struct http *h);

/* Where an HTTP server listens, also for httpd.c. */
struct http_address {
    bool v6;
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } at;
};

/* An address of a host, which is looked up if it is a name, and a port. ERR_CONF: no such host. */
int http__address(const char *host, uint32_t port, struct http_address *ret, struct errmsg *em);

#endif
