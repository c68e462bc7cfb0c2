/* libmicrohttpd in external polling mode: its epoll set and one of ours lie in a third, which is
 * the descriptor that the owner waits for.
 *
 * A request that waits for its reply, and a stream that has nothing to send, suspend their
 * connection, or libmicrohttpd would spin. It does not watch a suspended connection at all, and it
 * misses an end that came together with the last bytes before it; so the second set watches the
 * sockets of all requests whose headers are whole for EPOLLRDHUP. */
#include "common/io/httpd.h"

#include "common/base/addr.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/http.h"
#include "common/io/net.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Above our limit: at its own, libmicrohttpd accepts nobody, so nobody would be answered 503. */
#define ACCEPTED_ABOVE 16u
#define TICK_NS (250 * NS_PER_MS)
#define BLOCK_BYTES 4096u /* of a stream's buffer */
#define HANGUPS_A_TURN 64
#define SEND_BYTES                                                                                 \
    65536 /* that the kernel holds for a reader; by itself it would take megabytes                 \
           */
/* Of a body that is too large so many times the limit is read and dropped: a client that is
 * answered while it sends sees a broken connection instead of the answer. */
#define DROP_FACTOR 4u

enum conn_state {
    CONN_IDLE,    /* between requests; of the next one the headers are not whole */
    CONN_READING, /* its body is coming */
    CONN_RUNNING, /* a reply is due, or on its way */
};

/* A connection, the newest first. */
struct conn {
    struct httpd *h;
    struct conn *newer, *older;
    struct MHD_Connection *c;
    int fd;
    enum conn_state state;
    bool cut;
    bool watched;        /* its socket is in the set `hangups` */
    uint64_t since_ns;   /* of the state */
    uint64_t idle_bytes; /* received when it became idle */
    struct httpd_request *r;
};

struct httpd_request {
    struct conn *k;
    char *path;
    const char *method;
    struct buf body;
    bool too_large, unwanted;
    uint64_t dropped; /* bytes of a body that is not kept */
    bool whole;       /* on_request was called */
    bool ended;       /* on_end was called, or is not to be */
    bool suspended, replied;
    unsigned status;
    struct MHD_Response *response; /* until libmicrohttpd asks for it */
    httpd_pull_fn pull;
    void *context;
};

struct httpd {
    struct MHD_Daemon *daemon;
    int all, hangups; /* epoll sets */
    struct conn *newest, *oldest;
    uint32_t n_conns; /* not cut */
    uint32_t connections;
    size_t body_bytes;
    uint64_t read_ns, ticked_ns;
    bool tls;
    const struct httpd_field *fields;
    size_t n_fields;
    httpd_error_fn on_error;
    httpd_wants_body_fn wants_body;
    httpd_request_fn on_request;
    httpd_end_fn on_end;
    void *arg;
};

/* ---- replies ---- */

static void add_fields(struct MHD_Response *r, const struct httpd_field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void)MHD_add_response_header(r, fields[i].name, fields[i].value);
}

static void resume(struct httpd_request *r)
{
    if (!r->suspended) return;
    r->suspended = false;
    MHD_resume_connection(r->k->c);
}

static void set_response(struct httpd_request *r, unsigned status, struct MHD_Response *response,
                         const struct httpd_field *fields, size_t n)
{
    if (!response) { /* no memory: the connection is closed instead */
        (void)shutdown(r->k->fd, SHUT_RDWR);
        return;
    }
    add_fields(response, r->k->h->fields, r->k->h->n_fields);
    add_fields(response, fields, n);
    r->replied = true;
    r->status = status;
    r->response = response;
    resume(r);
}

void httpd_reply(struct httpd_request *r, unsigned status, const struct httpd_field *fields,
                 size_t n_fields, const void *body, size_t bytes)
{
    if (r->replied) return;
    set_response(r, status,
                 MHD_create_response_from_buffer(bytes, (void *)(uintptr_t)(bytes ? body : ""),
                                                 MHD_RESPMEM_MUST_COPY),
                 fields, n_fields);
}

static ssize_t on_pull(void *cls, uint64_t pos, char *to, size_t room)
{
    struct httpd_request *r = cls;
    (void)pos;
    if (r->ended) return MHD_CONTENT_READER_END_WITH_ERROR;
    long n = r->pull(r->context, to, room);
    if (n > 0) return n;
    if (n == HTTPD_DONE) return MHD_CONTENT_READER_END_OF_STREAM;
    if (n != HTTPD_WAIT) return MHD_CONTENT_READER_END_WITH_ERROR;
    r->suspended = true;
    MHD_suspend_connection(r->k->c);
    return 0;
}

void httpd_stream(struct httpd_request *r, unsigned status, const struct httpd_field *fields,
                  size_t n_fields, httpd_pull_fn pull)
{
    if (r->replied) return;
    r->pull = pull;
    set_response(r, status,
                 MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, on_pull, r, NULL),
                 fields, n_fields);
}

void httpd_wake(struct httpd_request *r)
{
    if (r->pull) resume(r);
}

static const char *reason_of(unsigned status)
{
    return status == 408 ? "Request Timeout" : "Service Unavailable";
}

/* Where libmicrohttpd has no place for a reply: to a connection whose request is not whole. With
 * TLS there is nothing to be said. */
static void send_raw(const struct conn *k, unsigned status, const char *text)
{
    struct httpd *h = k->h;
    struct buf body = {0};
    char head[256];
    if (h->tls) return;
    h->on_error(h->arg, NULL, status, text, &body);
    int n =
        snprintf(head, sizeof head,
                 "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 "%sContent-Length: %zu\r\n\r\n",
                 status, reason_of(status), status == 503 ? "Retry-After: 1\r\n" : "", body.len);
    (void)send(k->fd, head, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_MORE);
    (void)send(k->fd, body.data, body.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    buf_close(&body);
}

/* ---- the end of a request, and peers that are gone ---- */

static void watch(struct conn *k)
{
    struct epoll_event e = {.events = EPOLLRDHUP, .data.ptr = k};
    if (!k->watched) k->watched = epoll_ctl(k->h->hangups, EPOLL_CTL_ADD, k->fd, &e) == 0;
}

static void unwatch(struct conn *k)
{
    if (k->watched) (void)epoll_ctl(k->h->hangups, EPOLL_CTL_DEL, k->fd, NULL);
    k->watched = false;
}

static void tell_end(struct httpd_request *r, bool gone)
{
    struct httpd *h = r->k->h;
    bool first = r->whole && !r->ended;
    r->ended = true;
    if (first) h->on_end(h->arg, r->context, gone);
}

/* The server reads the end of the connection, and closes it. */
static void cut(struct conn *k)
{
    if (k->cut) return;
    (void)shutdown(k->fd, SHUT_RDWR);
    k->cut = true;
    k->h->n_conns--;
}

/* The peer is gone: the owner hears of it now, and libmicrohttpd when it looks at the socket. */
static void hang_up(struct conn *k)
{
    unwatch(k);
    if (!k->r || k->r->ended) return;
    tell_end(k->r, true);
    cut(k);
    resume(k->r);
}

static void take_hangups(struct httpd *h)
{
    struct epoll_event events[HANGUPS_A_TURN];
    int n = epoll_wait(h->hangups, events, HANGUPS_A_TURN, 0);
    for (int i = 0; i < n; i++) hang_up(events[i].data.ptr);
}

static void free_request(struct httpd_request *r)
{
    if (r->response) MHD_destroy_response(r->response);
    buf_close(&r->body);
    mem_free(r->path);
    mem_free(r);
}

/* ---- connections ---- */

/* Bytes that came on the socket; 0: unknown. */
static uint64_t received(int fd)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 ? info.tcpi_bytes_received : 0;
}

static void set_state(struct conn *k, enum conn_state state)
{
    k->state = state;
    k->since_ns = clock_ns();
    if (state == CONN_IDLE) k->idle_bytes = received(k->fd);
}

/* One connection too many: the one that is idle for longest gives way to it. */
static void make_room(struct httpd *h, struct conn *newest)
{
    struct conn *victim = NULL;
    for (struct conn *k = h->oldest; k; k = k->newer)
        if (k != newest && !k->cut && k->state == CONN_IDLE &&
            (!victim || k->since_ns < victim->since_ns))
            victim = k;
    if (!victim) {
        send_raw(newest, 503, "too many connections");
        victim = newest;
    }
    cut(victim);
}

static void on_connection(void *arg, struct MHD_Connection *c, void **state,
                          enum MHD_ConnectionNotificationCode code)
{
    static const int send_bytes = SEND_BYTES;
    struct httpd *h = arg;
    struct conn *k = *state;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *i =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        k = mem_zalloc(sizeof *k);
        *k = (struct conn){.h = h, .c = c, .older = h->newest, .fd = i ? i->connect_fd : -1};
        set_state(k, CONN_IDLE);
        (void)setsockopt(k->fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
        net_keepalive(k->fd);
        *(h->newest ? &h->newest->newer : &h->oldest) = k;
        h->newest = k;
        *state = k;
        if (++h->n_conns > h->connections) make_room(h, k);
    } else if (k) {
        unwatch(k);
        *(k->newer ? &k->newer->older : &h->newest) = k->older;
        *(k->older ? &k->older->newer : &h->oldest) = k->newer;
        h->n_conns -= !k->cut;
        mem_free(k);
        *state = NULL;
    }
}

/* Who has not sent a whole request in time. */
static void tick(struct httpd *h, uint64_t now)
{
    if (now < h->ticked_ns + TICK_NS) return;
    h->ticked_ns = now;
    for (struct conn *k = h->oldest; k; k = k->newer) {
        if (k->cut || k->state == CONN_RUNNING || now < k->since_ns + h->read_ns) continue;
        if (k->state == CONN_READING || received(k->fd) != k->idle_bytes)
            send_raw(k, 408, "the request did not arrive in time");
        cut(k);
    }
}

/* ---- requests ---- */

static struct conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

/* close: nothing more is read of this connection. */
static void refuse(struct httpd_request *r, unsigned status, const char *text, bool close)
{
    static const struct httpd_field fields[] = {{"Content-Type", "application/json"},
                                                {"Connection", "close"}};
    struct httpd *h = r->k->h;
    struct buf body = {0};
    h->on_error(h->arg, r, status, text, &body);
    httpd_reply(r, status, fields, close ? 2 : 1, body.data, body.len);
    buf_close(&body);
}

static void refuse_body(struct httpd_request *r, bool close)
{
    char text[128];
    (void)snprintf(text, sizeof text, "the request's body has more than %zu bytes, the limit",
                   r->k->h->body_bytes);
    refuse(r, 413, text, close);
}

/* ---- where a request ends ---- */

/* What its headers say of that. libmicrohttpd takes the first of several, and ignores what it does
 * not understand; another server before it may take the last, or refuse. Where the two could differ
 * a client could have its own bytes pass for another's request (RFC 9112, 6.3 and 11.2). */
struct framing {
    unsigned lengths, codings, hosts;
    bool other_coding; /* than chunked */
    bool broken;       /* a name that is none; a line that goes on in the next one */
};

static bool is_token(const char *name)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    if (!*name) return false;
    for (; *name; name++) {
        char c = *name, small = (char)(c | 0x20);
        if (!(c >= '0' && c <= '9') && !(small >= 'a' && small <= 'z') && !strchr(marks, c))
            return false;
    }
    return true;
}

/* Counts a header of this name. One that only begins so is a line that goes on: libmicrohttpd puts
 * what follows behind the name. */
static void count_field(struct framing *f, const char *name, const char *word, unsigned *n)
{
    size_t len = strlen(word);
    if (strncasecmp(name, word, len) != 0) return;
    ++*n;
    f->broken |= name[len] != 0;
}

static enum MHD_Result look_at_field(void *arg, enum MHD_ValueKind kind, const char *name,
                                     const char *value)
{
    struct framing *f = arg;
    (void)kind;
    unsigned codings = f->codings;
    f->broken |= !is_token(name);
    count_field(f, name, "Content-Length", &f->lengths);
    count_field(f, name, "Transfer-Encoding", &f->codings);
    f->hosts += strcasecmp(name, "Host") == 0;
    f->other_coding |= f->codings > codings && (!value || strcasecmp(value, "chunked") != 0);
    return MHD_YES;
}

/* Why a request is refused before its body is read; NULL: it is well framed. */
static const char *misframed(struct MHD_Connection *c, const char *version, unsigned *ret_status)
{
    struct framing f = {0};
    bool old = strcmp(version, "HTTP/1.0") == 0;
    (void)MHD_get_connection_values(c, MHD_HEADER_KIND, look_at_field, &f);
    *ret_status = 400;
    if (f.broken) return "a header's name is none, or a header goes on in a second line";
    if (!old && f.hosts != 1) return "a request has one header 'Host'";
    if (f.lengths > 1) return "more than one 'Content-Length'";
    if (f.lengths && f.codings) return "both 'Content-Length' and 'Transfer-Encoding'";
    if (f.codings && old) return "'Transfer-Encoding' is none of HTTP/1.0";
    *ret_status = 501;
    return f.codings > 1 || f.other_coding ? "'Transfer-Encoding' can only be 'chunked'" : NULL;
}

static enum MHD_Result queue_response(struct httpd_request *r)
{
    enum MHD_Result rc = MHD_queue_response(r->k->c, r->status, r->response);
    MHD_destroy_response(r->response);
    r->response = NULL;
    return rc;
}

/* The headers are whole. */
static enum MHD_Result begin(struct httpd *h, struct MHD_Connection *c, const char *url,
                             const char *method, const char *version, void **state)
{
    struct conn *k = conn_of(c);
    if (!k || k->cut) return MHD_NO;
    struct httpd_request *r = mem_zalloc(sizeof *r);
    *r = (struct httpd_request){.k = k, .method = method, .path = mem_strdup(url)};
    r->body.max = h->body_bytes;
    k->r = r;
    *state = r;
    set_state(k, CONN_READING);
    watch(k);
    unsigned status;
    const char *wrong = misframed(c, version, &status);
    const char *length = httpd_header(r, "Content-Length");
    uint64_t bytes = length ? strtoull(length, NULL, 10) : 0;
    r->too_large = bytes > h->body_bytes;
    r->unwanted = h->wants_body && !h->wants_body(h->arg, r);
    if (wrong)
        refuse(r, status, wrong, true);
    else if (r->too_large && (bytes / DROP_FACTOR > h->body_bytes || httpd_header(r, "Expect")))
        refuse_body(r, true); /* so large, or not sent yet: answered unread */
    else
        return MHD_YES;
    set_state(k, CONN_RUNNING);
    return r->response ? queue_response(r) : MHD_NO;
}

static enum MHD_Result take_body(struct httpd_request *r, const char *data, size_t n)
{
    if (!r->too_large && !r->unwanted) {
        size_t need = r->body.len + n;
        r->too_large = n > r->body.max - r->body.len;
        if (!r->too_large && r->body.cap <= need) /* no memory: too large for this machine */
            r->too_large =
                buf_reserve(&r->body, need > 2 * r->body.cap ? need : 2 * r->body.cap) < 0;
        if (!r->too_large) return buf_append(&r->body, data, n) == 0 ? MHD_YES : MHD_NO;
        buf_close(&r->body);
    }
    r->dropped += n;
    return r->dropped / DROP_FACTOR > r->k->h->body_bytes ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_access(void *arg, struct MHD_Connection *c, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *n, void **state)
{
    struct httpd *h = arg;
    struct httpd_request *r = *state;
    if (!r) return begin(h, c, url, method, version, state);
    if (*n) {
        enum MHD_Result rc = take_body(r, data, *n);
        *n = 0;
        return rc;
    }
    if (r->ended) return MHD_NO;
    if (r->k->state == CONN_READING) {
        set_state(r->k, CONN_RUNNING);
        if (r->too_large) {
            refuse_body(r, false);
        } else {
            r->whole = true;
            h->on_request(h->arg, r);
        }
    }
    if (r->response) return queue_response(r);
    r->suspended = true;
    MHD_suspend_connection(c);
    return MHD_YES;
}

static void on_completed(void *arg, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode code)
{
    struct httpd_request *r = *state;
    (void)arg;
    (void)c;
    if (!r) return;
    tell_end(r, code != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    unwatch(r->k);
    r->k->r = NULL;
    set_state(r->k, CONN_IDLE);
    free_request(r);
    *state = NULL;
}

const char *httpd_method(const struct httpd_request *r)
{
    return r->method;
}

const char *httpd_path(const struct httpd_request *r)
{
    return r->path;
}

const char *httpd_header(const struct httpd_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->k->c, MHD_HEADER_KIND, name);
}

const char *httpd_body(const struct httpd_request *r, size_t *ret_bytes)
{
    *ret_bytes = r->body.len;
    return r->body.data ? r->body.data : "";
}

void httpd_drop_body(struct httpd_request *r)
{
    buf_close(&r->body);
}

void httpd_set_context(struct httpd_request *r, void *context)
{
    r->context = context;
}

/* ---- the server ---- */

static int nest(int set, int fd, struct errmsg *em)
{
    struct epoll_event e = {.events = EPOLLIN};
    if (set >= 0 && fd >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &e) == 0) return 0;
    return err_set(em, ERR_IO, "no descriptor to wait for HTTP: %s", strerror(errno));
}

static int start(struct httpd *h, const struct httpd_options *o, struct errmsg *em)
{
    struct http_address at;
    int rc = http__address(o->host, o->port, &at, em);
    if (rc < 0) return rc;
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | (at.v6 ? MHD_USE_IPv6 : 0);
    if (h->tls && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return err_set(em, ERR_CONF, "this libmicrohttpd has no TLS");
    if (h->tls) flags |= MHD_USE_TLS;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)o->certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)o->key},
        {MHD_OPTION_END, 0, NULL}};
    errno = 0;
    h->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, h, MHD_OPTION_SOCK_ADDR, &at.at.any,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_CONNECTION_LIMIT,
        o->connections + ACCEPTED_ABOVE, MHD_OPTION_CONNECTION_TIMEOUT, o->stall_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTPD_HEADER_BYTES,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
        h, MHD_OPTION_ARRAY, h->tls ? tls : &tls[2], MHD_OPTION_END);
    if (h->daemon) return 0;
    if (h->tls && errno == 0)
        return err_set(em, ERR_CONF,
                       "no HTTPS with this certificate and key: they must be PEM "
                       "files that belong together");
    return err_set(em, ERR_IO, "cannot listen for HTTP at %s:%" PRIu32 ": %s", o->host, o->port,
                   strerror(errno));
}

int httpd_open(const struct httpd_options *o, struct httpd **ret, uint32_t *ret_port,
               struct errmsg *em)
{
    struct httpd *h = mem_zalloc(sizeof *h);
    *h = (struct httpd){.all = epoll_create1(EPOLL_CLOEXEC),
                        .hangups = epoll_create1(EPOLL_CLOEXEC),
                        .connections = o->connections,
                        .body_bytes = o->body_bytes,
                        .read_ns = o->read_s * NS_PER_S,
                        .tls = o->certificate != NULL,
                        .fields = o->fields,
                        .n_fields = o->n_fields,
                        .on_error = o->on_error,
                        .wants_body = o->wants_body,
                        .on_request = o->on_request,
                        .on_end = o->on_end,
                        .arg = o->arg};
    int rc = nest(h->all, h->hangups, em);
    if (rc == 0) rc = start(h, o, em);
    const union MHD_DaemonInfo *info =
        rc == 0 ? MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (rc == 0) rc = nest(h->all, info ? info->epoll_fd : -1, em);
    if (rc < 0) {
        httpd_close(h);
        return rc;
    }
    info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    *ret_port = info ? info->port : o->port;
    *ret = h;
    return 0;
}

void httpd_close(struct httpd *h)
{
    if (!h) return;
    for (struct conn *k = h->oldest; k; k = k->newer) hang_up(k);
    if (h->daemon) MHD_stop_daemon(h->daemon); /* ends what is left: no connection is suspended */
    if (h->hangups >= 0) (void)close(h->hangups);
    if (h->all >= 0) (void)close(h->all);
    mem_free(h);
}

int httpd_fd(const struct httpd *h)
{
    return h->all;
}

int httpd_wait_ms(const struct httpd *h)
{
    MHD_UNSIGNED_LONG_LONG ms;
    bool due = MHD_get_timeout(h->daemon, &ms) == MHD_YES;
    int tick_ms = h->oldest ? (int)(TICK_NS / NS_PER_MS) : -1;
    if (!due) return tick_ms;
    return tick_ms < 0 || ms < (MHD_UNSIGNED_LONG_LONG)tick_ms ? (int)(ms < 60000 ? ms : 60000)
                                                               : tick_ms;
}

void httpd_turn(struct httpd *h)
{
    take_hangups(h);
    (void)MHD_run(h->daemon);
    tick(h, clock_ns());
}

uint32_t httpd_connections(const struct httpd *h)
{
    return h->n_conns;
}
