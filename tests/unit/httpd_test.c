/* The HTTP server, over real sockets of this process: how a request is framed, and what is refused
 * because two readers could disagree where it ends. What its owner makes of requests is
 * tests/e2e/gateway_test.py's. */
#include "common/base/clock.h"
#include "common/io/httpd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define BODY_BYTES 64u

struct server {
    struct httpd *h;
    uint32_t port;
    unsigned n_requests, n_ends;
};

static void on_error(void *arg, const struct httpd_request *r, unsigned status, const char *text,
                     struct buf *out)
{
    char line[256];
    (void)arg, (void)r;
    (void)buf_append(out, line, (size_t)snprintf(line, sizeof line, "%u: %s", status, text));
}

static bool wants_body(void *arg, const struct httpd_request *r)
{
    (void)arg;
    return strcmp(httpd_path(r), "/unwanted") != 0;
}

/* Says what it read. */
static void on_request(void *arg, struct httpd_request *r)
{
    struct server *s = arg;
    char line[256];
    size_t n;
    const char *body = httpd_body(r, &n);
    s->n_requests++;
    httpd_set_context(r, s);
    int len =
        snprintf(line, sizeof line, "<%s %s %.*s>", httpd_method(r), httpd_path(r), (int)n, body);
    httpd_reply(r, 200, NULL, 0, line, (size_t)len);
}

static void on_end(void *arg, void *context, bool gone)
{
    struct server *s = arg;
    (void)context;
    (void)gone;
    s->n_ends++;
}

static int setup(void **state)
{
    static struct server s;
    struct errmsg em;
    const struct httpd_options o = {.host = "127.0.0.1",
                                    .connections = 8,
                                    .body_bytes = BODY_BYTES,
                                    .read_s = 30,
                                    .stall_s = 30,
                                    .on_error = on_error,
                                    .wants_body = wants_body,
                                    .on_request = on_request,
                                    .on_end = on_end,
                                    .arg = &s};
    s = (struct server){0};
    *state = &s;
    return httpd_open(&o, &s.h, &s.port, &em);
}

static int teardown(void **state)
{
    struct server *s = *state;
    httpd_close(s->h);
    return s->n_ends == s->n_requests ? 0 : -1; /* each was told its end, once */
}

static int dial(const struct server *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static bool arrives(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* Sends all, and has the server work until it has nothing to do and nothing more comes back, or
 * has closed. Returns whether it has closed; `reply` has what came. */
static bool talk(struct server *s, const char *data, size_t bytes, char *reply, size_t room)
{
    int fd = dial(s);
    size_t n = 0;
    bool closed = false;
    uint64_t give_up = clock_ns() + 20 * NS_PER_S, quiet = 0;
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    for (; !closed && quiet < 5; quiet++) {
        struct pollfd p = {.fd = httpd_fd(s->h), .events = POLLIN};
        assert_true(clock_ns() < give_up);
        if (poll(&p, 1, 20) > 0) quiet = 0;
        httpd_turn(s->h);
        while (!closed && arrives(fd)) {
            ssize_t got = recv(fd, reply + n, room - 1 - n, 0);
            closed = got <= 0;
            n += got > 0 ? (size_t)got : 0;
            quiet = 0;
        }
    }
    reply[n] = 0;
    (void)close(fd);
    for (int i = 0; i < 3; i++) httpd_turn(s->h);
    return closed;
}

static unsigned count(const char *text, const char *what)
{
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

#define HOST "Host: a\r\n"
#define POST "POST /a HTTP/1.1\r\n" HOST
#define NEXT "GET /next HTTP/1.1\r\n" HOST "\r\n"
#define CHUNKS "3\r\nabc\r\n0\r\n\r\n"

/* What is right is read as it is meant, and the next request behind it. */
static void test_framing(void **state)
{
    struct server *s = *state;
    static const char *const right[] = {
        POST "Content-Length: 3\r\n\r\nabc" NEXT,
        POST "content-length:3\r\nX-Content-Length: 9\r\n\r\nabc" NEXT,
        POST "Transfer-Encoding: chunked\r\n\r\n" CHUNKS NEXT,
        POST "Transfer-Encoding: Chunked\r\n\r\n1;a=b\r\na\r\n2\r\nbc\r\n0\r\nX: y\r\n\r\n" NEXT,
        POST "Content-Length: 3\r\nExpect: 100-continue\r\n\r\nabc" NEXT,
        "POST /a HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc" NEXT,
    };
    char reply[4096];
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        (void)talk(s, right[i], strlen(right[i]), reply, sizeof reply);
        if (!strstr(reply, "<POST /a abc>") || !strstr(reply, "<GET /next >"))
            fail_msg("%s:\n%s", right[i], reply);
    }
}

/* Where another server before this one could see another end of the request, what follows would
 * pass for a request of its own: refused, and nothing behind it is read. */
static void test_ambiguous_framing(void **state)
{
    struct server *s = *state;
    static const struct {
        const char *request;
        unsigned status;
    } wrong[] = {
        {POST "Content-Length: 3\r\nContent-Length: 50\r\n\r\nabc", 400},
        {POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
        {POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" CHUNKS, 501},
        {POST "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n" CHUNKS, 501},
        {POST "Transfer-Encoding: gzip, chunked\r\n\r\n" CHUNKS, 501},
        {POST "Transfer-Encoding: identity\r\n\r\n", 501},
        {POST "Transfer-Encoding: xchunked\r\n\r\n", 501},
        {"POST /a HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n" CHUNKS, 400},
        {POST "Content-Length : 3\r\n\r\nabc", 400},
        {POST "Transfer-Encoding : chunked\r\n\r\n" CHUNKS, 400},
        {POST "Content-Length:\r\n 3\r\n\r\nabc", 400},
        {POST "Content-Length: 3\r\n\t0\r\n\r\nabc", 400},
        {POST "Transfer-Encoding:\r\n chunked\r\n\r\n" CHUNKS, 400},
        {POST "X: y\r\n Content-Length: 3\r\n\r\nabc", 400},
        {POST "Content-Length: +3\r\n\r\nabc", 400},
        {POST "Content-Length: 3, 3\r\n\r\nabc", 400},
        {"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400},
        {"POST /a HTTP/1.1\r\n" HOST HOST "Content-Length: 3\r\n\r\nabc", 400},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char request[1024], reply[4096], line[32];
        (void)snprintf(line, sizeof line, "HTTP/1.1 %u ", wrong[i].status);
        (void)snprintf(request, sizeof request, "%s%s", wrong[i].request, NEXT);
        bool closed = talk(s, request, strlen(request), reply, sizeof reply);
        /* libmicrohttpd's own refusals are pages, with their heads twice. */
        bool theirs = strstr(reply, "<html>") != NULL;
        if (!closed || count(reply, line) != 1u + theirs || count(reply, "HTTP/1.1") != 1u + theirs)
            fail_msg("%s: %s:\n%s", wrong[i].request, closed ? "closed" : "open", reply);
    }
    assert_int_equal(s->n_requests, 0);
}

/* A body beyond the limit is dropped and answered, and the connection stays of use; far beyond, it
 * is not even read. */
static void test_large_bodies(void **state)
{
    struct server *s = *state;
    char request[1024], reply[4096], body[401] = {0};
    memset(body, 'x', 400);
    (void)snprintf(request, sizeof request, POST "Content-Length: 100\r\n\r\n%.100s" NEXT, body);
    assert_false(talk(s, request, strlen(request), reply, sizeof reply));
    assert_true(strstr(reply, "413") && strstr(reply, "<GET /next >"));
    (void)snprintf(request, sizeof request, POST "Content-Length: 400\r\n\r\n%s" NEXT, body);
    assert_true(talk(s, request, strlen(request), reply, sizeof reply));
    assert_int_equal(count(reply, "HTTP/1.1 413"), 1);
    (void)snprintf(request, sizeof request,
                   POST "Transfer-Encoding: chunked\r\n\r\n41\r\n%.65s\r\n0\r\n\r\n" NEXT, body);
    assert_false(talk(s, request, strlen(request), reply, sizeof reply));
    assert_true(strstr(reply, "413") && strstr(reply, "<GET /next >"));
    assert_int_equal(s->n_requests, 2);
}

/* It takes no memory; what comes behind it is read as ever, and a limit it has too. */
static void test_unwanted_bodies(void **state)
{
    struct server *s = *state;
    static const char *const unwanted[] = {
        "POST /unwanted HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc" NEXT,
        "POST /unwanted HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n" CHUNKS NEXT,
    };
    char reply[4096], request[1024], body[401] = {0};
    for (size_t i = 0; i < sizeof unwanted / sizeof unwanted[0]; i++) {
        assert_false(talk(s, unwanted[i], strlen(unwanted[i]), reply, sizeof reply));
        if (!strstr(reply, "<POST /unwanted >") || !strstr(reply, "<GET /next >"))
            fail_msg("%s:\n%s", unwanted[i], reply);
    }
    memset(body, 'x', 400);
    (void)snprintf(request, sizeof request,
                   "POST /unwanted HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n190\r\n%s"
                   "\r\n0\r\n\r\n" NEXT,
                   body);
    assert_true(talk(s, request, strlen(request), reply, sizeof reply));
    assert_null(strstr(reply, "<"));
    assert_int_equal(s->n_requests, 4);
}

/* Who leaves in the middle of a body is noticed at once, also where the end comes with the bytes.
 */
static void test_gone_in_a_body(void **state)
{
    struct server *s = *state;
    static const char *const parts[] = {POST "Content-Length: 7\r\n\r\n",
                                        POST "Content-Length: 7\r\n\r\nabc",
                                        POST "Transfer-Encoding: chunked\r\n\r\n7\r\nab"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        int fd = dial(s);
        assert_int_equal(send(fd, parts[i], strlen(parts[i]), MSG_NOSIGNAL),
                         (ssize_t)strlen(parts[i]));
        (void)close(fd);
        uint64_t give_up = clock_ns() + 10 * NS_PER_S; /* a request has 30 s to come */
        bool came = false;
        while (!came || httpd_connections(s->h)) {
            struct pollfd p = {.fd = httpd_fd(s->h), .events = POLLIN};
            assert_true(clock_ns() < give_up);
            (void)poll(&p, 1, 20);
            httpd_turn(s->h);
            came |= httpd_connections(s->h) > 0;
        }
    }
    assert_int_equal(s->n_requests, 0);
}

/* The system looks after each connection, so that a client that is gone without a word is noticed
 * while its answer is computed. */
static void test_keepalive(void **state)
{
    struct server *s = *state;
    struct sockaddr_in mine, other;
    socklen_t n = sizeof mine;
    int fd = dial(s), accepted = -1, on = 0;
    assert_int_equal(getsockname(fd, (struct sockaddr *)(void *)&mine, &n), 0);
    uint64_t give_up = clock_ns() + 10 * NS_PER_S;
    while (!httpd_connections(s->h) && clock_ns() < give_up) {
        struct pollfd p = {.fd = httpd_fd(s->h), .events = POLLIN};
        (void)poll(&p, 1, 20);
        httpd_turn(s->h);
    }
    for (int k = 3; k < 1024 && accepted < 0; k++) {
        n = sizeof other;
        if (getpeername(k, (struct sockaddr *)(void *)&other, &n) == 0 &&
            other.sin_port == mine.sin_port)
            accepted = k;
    }
    n = sizeof on;
    assert_int_equal(getsockopt(accepted, SOL_SOCKET, SO_KEEPALIVE, &on, &n), 0);
    assert_true(on);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_framing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ambiguous_framing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_bodies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unwanted_bodies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gone_in_a_body, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keepalive, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
