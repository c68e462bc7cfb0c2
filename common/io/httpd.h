/* An HTTP server in its owner's poll loop, for requests with bodies and for replies that come later
 * or bit by bit (libmicrohttpd, known to this module and http.c only). It knows nothing of what the
 * requests mean.
 *
 * A request is handed over when it is whole. Its owner replies at once or later, with httpd_reply
 * or httpd_stream, once. Of each request that was handed over the owner is told its end exactly
 * once: the reply was sent whole, or the peer is gone. From then on the request is not valid.
 *
 * Limits, and what meets them: a body beyond body_bytes is answered 413; headers beyond
 * HTTPD_HEADER_BYTES 431; headers that are not whole read_s after the connection began or became
 * idle, and a body that is not read_s after its headers, 408; a connection beyond `connections`
 * pushes out the one that has been silent for longest between two requests, or is answered 503
 * where none is. A reader that takes nothing for stall_s is cut.
 *
 * A request of which it could be read in two ways where it ends is answered 400, or 501 where its
 * transfer coding is another than chunked, and its connection closed.
 *
 * A peer that closes its connection, or only its half of it, is gone, and is noticed at once,
 * whatever its request is doing; but before its headers are whole perhaps only after read_s.
 *
 * Threads: one, the owner's. */
#ifndef FLOTILLA_IO_HTTPD_H
#define FLOTILLA_IO_HTTPD_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTPD_HEADER_BYTES 16384u /* request line and headers; the memory of a connection */

struct httpd;
struct httpd_request;

struct httpd_field {
    const char *name, *value;
};

/* The body of an error that the server itself answers: appended to `out`. r: NULL where the headers
 * have not come. */
typedef void (*httpd_error_fn)(void *arg, const struct httpd_request *r, unsigned status,
                               const char *text, struct buf *out);
/* Whether the body of a request whose headers are whole is worth its memory. One that is not is
 * read and dropped, and the request is handed over without it. */
typedef bool (*httpd_wants_body_fn)(void *arg, const struct httpd_request *r);
/* A whole request. */
typedef void (*httpd_request_fn)(void *arg, struct httpd_request *r);
/* `context` is what httpd_set_context was given; NULL: nothing. gone: the reply was not sent whole.
 */
typedef void (*httpd_end_fn)(void *arg, void *context, bool gone);

struct httpd_options {
    const char *host; /* an address or a name, which is then looked up */
    uint32_t port;    /* 0: any free one */
    uint32_t connections;
    size_t body_bytes;
    uint32_t read_s, stall_s;
    const char *certificate, *key; /* PEM texts, copied; NULL: no TLS */
    /* Further headers of each reply, also of errors; borrowed. */
    const struct httpd_field *fields;
    size_t n_fields;
    httpd_error_fn on_error;
    httpd_wants_body_fn wants_body; /* NULL: all are */
    httpd_request_fn on_request;
    httpd_end_fn on_end;
    void *arg;
};

/* The options' strings are borrowed for the call. ERR_CONF: no such host, or TLS that this library
 * or these files do not allow; ERR_IO: it cannot listen there. */
int httpd_open(const struct httpd_options *o, struct httpd **ret, uint32_t *ret_port,
               struct errmsg *em);
/* Ends all requests. May be NULL. */
void httpd_close(struct httpd *h);

/* For the poll loop: readable when httpd_turn has something to do, */
int httpd_fd(const struct httpd *h);
/* or when so many milliseconds have passed (-1: only then when it is readable). */
int httpd_wait_ms(const struct httpd *h);
/* Does what there is to do; calls back. */
void httpd_turn(struct httpd *h);
/* Open connections. */
uint32_t httpd_connections(const struct httpd *h);

/* ---- a request ---- */

const char *httpd_method(const struct httpd_request *r);
/* Without the query; "%xx" is decoded. */
const char *httpd_path(const struct httpd_request *r);
/* NULL: it has no such header. Valid as long as the request. */
const char *httpd_header(const struct httpd_request *r, const char *name);
/* Valid until httpd_drop_body. */
const char *httpd_body(const struct httpd_request *r, size_t *ret_bytes);
/* The body is not needed any more. */
void httpd_drop_body(struct httpd_request *r);
void httpd_set_context(struct httpd_request *r, void *context);

/* The whole reply; copied. */
void httpd_reply(struct httpd_request *r, unsigned status, const struct httpd_field *fields,
                 size_t n_fields, const void *body, size_t bytes);

#define HTTPD_WAIT 0    /* nothing now: asked again after httpd_wake */
#define HTTPD_DONE (-1) /* the reply is whole */

/* Writes the reply's next bytes, at most `room` of them (above 0), to `to`; returns how many, or
 * one of the above. Asked only when the peer can take some. */
typedef long (*httpd_pull_fn)(void *context, char *to, size_t room);

/* Begins a reply whose bytes come bit by bit: chunked, or for HTTP/1.0 until the connection ends.
 */
void httpd_stream(struct httpd_request *r, unsigned status, const struct httpd_field *fields,
                  size_t n_fields, httpd_pull_fn pull);
/* There are bytes, or an end, for a stream that waits. */
void httpd_wake(struct httpd_request *r);

#endif
