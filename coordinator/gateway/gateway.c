/* The gateway's thread: one poll over HTTP's sockets, the client's and a descriptor that wakes it.
 * What each request asks for goes to job.c or page.c. */
#include "coordinator/gateway/gateway_state.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/client/tools.h"
#include "coordinator/gateway/message.h"
#include "proto/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define MODEL_NS (10 * NS_PER_S)        /* how long the model's name is believed, */
#define MODEL_AGAIN_NS NS_PER_S         /* and after which it is asked for again */
#define LAST_WORDS_NS (300 * NS_PER_MS) /* that the last replies have to leave */
#define WAIT_MOST_MS 1000
#define PEM_BYTES_MAX ((size_t)256 << 10)
#define ASKED_HEADERS_MAX 2048u /* bytes of a browser's list that is repeated */

/* ---- replies ---- */

static void count_reply(struct gateway *g, unsigned status)
{
    if (status < GATEWAY_STATUSES) g->count.replies[status]++;
}

void gateway__reply(struct gateway *g, struct httpd_request *r, unsigned status, struct json *moved)
{
    static const struct httpd_field type = {"Content-Type", "application/json"};
    struct buf text = {0};
    json_write(moved, &text);
    json_free(moved);
    count_reply(g, status);
    httpd_reply(r, status, &type, 1, text.data, text.len);
    buf_close(&text);
}

/* In the form of the API whose path was asked for. r: NULL where that is not known. */
static void write_fault(const struct httpd_request *r, const struct fault *f, struct buf *to)
{
    bool anthropic = r && strncmp(httpd_path(r), "/v1/messages", 12) == 0;
    (anthropic ? message_fault : fault_write)(f, to);
}

void gateway__refuse(struct gateway *g, struct httpd_request *r, const struct fault *f)
{
    char retry[16];
    struct httpd_field fields[3] = {{"Content-Type", "application/json"}};
    size_t n = 1;
    struct buf text = {0};
    (void)snprintf(retry, sizeof retry, "%u", (unsigned)f->retry_s);
    if (f->retry_s) fields[n++] = (struct httpd_field){"Retry-After", retry};
    if (f->http == 401) fields[n++] = (struct httpd_field){"WWW-Authenticate", "Bearer"};
    if (f->allow) fields[n++] = (struct httpd_field){"Allow", f->allow};
    write_fault(r, f, &text);
    count_reply(g, f->http);
    httpd_reply(r, f->http, fields, n, text.data, text.len);
    buf_close(&text);
}

static void on_error(void *arg, const struct httpd_request *r, unsigned status, const char *text,
                     struct buf *out)
{
    struct fault f;
    (void)fault_set(&f, status, NULL, "%s", text);
    count_reply(arg, status);
    write_fault(r, &f, out);
}

static void reply_alive(struct gateway *g, struct httpd_request *r)
{
    struct json *o = json_new_object();
    json_put_string(o, "status", "ok", 2);
    gateway__reply(g, r, 200, o);
}

/* ---- what is asked for ---- */

enum route {
    ROUTE_FRONT,
    ROUTE_STATUS,
    ROUTE_HEALTH,
    ROUTE_READY,
    ROUTE_METRICS,
    ROUTE_MODELS,
    ROUTE_MODEL, /* and a name */
    ROUTE_COMPLETIONS,
    ROUTE_CHAT,
    ROUTE_MESSAGES,
    ROUTE_RESPONSES,
    ROUTE_EMBEDDINGS,
    ROUTE_COUNT,
    ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE,
    ROUTE_TEMPLATE,
};

static const struct {
    const char *path, *method;
    enum route route;
    bool prefix; /* something follows */
} routes[] = {
    {"/", "GET", ROUTE_FRONT, false},
    {"/status", "GET", ROUTE_STATUS, false},
    {"/health", "GET", ROUTE_HEALTH, false},
    {"/v1/health", "GET", ROUTE_HEALTH, false},
    {"/ready", "GET", ROUTE_READY, false},
    {"/metrics", "GET", ROUTE_METRICS, false},
    {"/v1/models", "GET", ROUTE_MODELS, false},
    {"/v1/models/", "GET", ROUTE_MODEL, true},
    {"/v1/completions", "POST", ROUTE_COMPLETIONS, false},
    {"/v1/chat/completions", "POST", ROUTE_CHAT, false},
    {"/v1/messages", "POST", ROUTE_MESSAGES, false},
    {"/v1/responses", "POST", ROUTE_RESPONSES, false},
    {"/v1/embeddings", "POST", ROUTE_EMBEDDINGS, false},
    {"/v1/messages/count_tokens", "POST", ROUTE_COUNT, false},
    {"/tokenize", "POST", ROUTE_TOKENIZE, false},
    {"/detokenize", "POST", ROUTE_DETOKENIZE, false},
    {"/apply-template", "POST", ROUTE_TEMPLATE, false},
};

#define N_ROUTES (sizeof routes / sizeof routes[0])

static bool fits(const char *path, size_t i)
{
    size_t n = strlen(routes[i].path);
    return routes[i].prefix ? strncmp(path, routes[i].path, n) == 0 && path[n]
                            : strcmp(path, routes[i].path) == 0;
}

static void refuse_method(struct gateway *g, struct httpd_request *r, size_t i)
{
    struct fault f;
    (void)fault_set(&f, 405, NULL, "%s takes %s, not %.20s", routes[i].path, routes[i].method,
                    httpd_method(r));
    f.allow = strcmp(routes[i].method, "GET") == 0 ? "GET, HEAD" : routes[i].method;
    gateway__refuse(g, r, &f);
}

static void serve(struct gateway *g, struct httpd_request *r, size_t i)
{
    switch (routes[i].route) {
    case ROUTE_FRONT: page__front(g, r); break;
    case ROUTE_STATUS: page__status(g, r); break;
    case ROUTE_HEALTH: reply_alive(g, r); break;
    case ROUTE_READY: page__ready(g, r); break;
    case ROUTE_METRICS: page__metrics(g, r); break;
    case ROUTE_MODELS: page__models(g, r, ""); break;
    case ROUTE_MODEL: page__models(g, r, httpd_path(r) + strlen(routes[i].path)); break;
    case ROUTE_COMPLETIONS: job__begin(g, r, ASK_COMPLETION, JOB_COMPLETIONS); break;
    case ROUTE_CHAT: job__begin(g, r, ASK_CHAT, JOB_COMPLETIONS); break;
    case ROUTE_MESSAGES: job__begin(g, r, ASK_CHAT, JOB_MESSAGES); break;
    case ROUTE_RESPONSES: job__begin(g, r, ASK_CHAT, JOB_RESPONSES); break;
    case ROUTE_EMBEDDINGS: embed__begin(g, r); break;
    case ROUTE_COUNT: tokenize__count(g, r); break;
    case ROUTE_TOKENIZE: tokenize__text(g, r); break;
    case ROUTE_DETOKENIZE: tokenize__back(g, r); break;
    case ROUTE_TEMPLATE: tokenize__template(g, r); break;
    }
}

static bool has_method(const struct httpd_request *r, const char *wanted)
{
    const char *m = httpd_method(r);
    return strcmp(m, wanted) == 0 || (strcmp(m, "HEAD") == 0 && strcmp(wanted, "GET") == 0);
}

/* The headers that a page may send: all that its browser asks for, since the official clients have
 * many of their own; where it asks for none, or for what are no names, the usual ones. */
static const char *allowed_headers(const struct httpd_request *r)
{
    static const char name_bytes[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    const char *asked = httpd_header(r, "Access-Control-Request-Headers");
    for (const char *at = asked; at && *at; at++)
        if (!strchr(name_bytes, *at) && *at != ',' && *at != ' ') asked = NULL;
    if (asked && *asked && strlen(asked) <= ASKED_HEADERS_MAX) return asked;
    return "Authorization, Content-Type, X-Api-Key, Anthropic-Version, X-Deadline-Ms";
}

/* Before a page of another origin asks, its browser asks whether it may. */
static void allow_origin(struct gateway *g, struct httpd_request *r)
{
    const struct httpd_field fields[] = {{"Access-Control-Allow-Methods", "GET, POST"},
                                         {"Access-Control-Allow-Headers", allowed_headers(r)},
                                         {"Access-Control-Max-Age", "86400"}};
    count_reply(g, 204);
    httpd_reply(r, 204, fields, sizeof fields / sizeof fields[0], "", 0);
}

/* Whether it lives and whether it is ready may be asked without a key; the page says nothing of the
 * cluster by itself, and has a field for the key. */
static bool admits(const struct gateway *g, const struct httpd_request *r, size_t i)
{
    bool open = i < N_ROUTES && (routes[i].route == ROUTE_HEALTH ||
                                 routes[i].route == ROUTE_READY || routes[i].route == ROUTE_FRONT);
    return !g->keys || open || access_admits(g->keys, httpd_header(r, "Authorization")) ||
           access_knows(g->keys, httpd_header(r, "X-Api-Key"));
}

static size_t route_of(const struct httpd_request *r)
{
    size_t i = 0;
    while (i < N_ROUTES && !fits(httpd_path(r), i)) i++;
    return i;
}

/* Who is not admitted takes no memory for what it sends. */
static bool wants_body(void *arg, const struct httpd_request *r)
{
    size_t i = route_of(r);
    return i < N_ROUTES && admits(arg, r, i);
}

static void on_request(void *arg, struct httpd_request *r)
{
    struct gateway *g = arg;
    struct fault f;
    size_t i = route_of(r);
    if (g->cors && strcmp(httpd_method(r), "OPTIONS") == 0) {
        allow_origin(g, r);
        return;
    }
    if (!admits(g, r, i)) {
        (void)fault_set(&f, 401, NULL,
                        "no API key, or one that is not known here "
                        "(Authorization: Bearer KEY)");
        f.code = "invalid_api_key";
        gateway__refuse(g, r, &f);
    } else if (i == N_ROUTES) {
        (void)fault_set(&f, 404, NULL, "there is nothing at %.200s", httpd_path(r));
        gateway__refuse(g, r, &f);
    } else if (!has_method(r, routes[i].method)) {
        refuse_method(g, r, i);
    } else if (atomic_load(&g->draining) && routes[i].route != ROUTE_HEALTH &&
               routes[i].route != ROUTE_METRICS) {
        (void)fault_set(&f, 503, NULL, "the server is stopping");
        f.retry_s = 1;
        gateway__refuse(g, r, &f);
    } else {
        serve(g, r, i);
    }
}

static void on_request_end(void *arg, void *context, bool gone)
{
    struct exchange *e = context;
    (void)arg;
    if (e) e->end(e, gone);
}

/* ---- the model's name, for replies to requests that name none ---- */

static void on_model(void *arg, const struct client_end *end, const void *body, size_t bytes)
{
    struct gateway *g = arg;
    struct arena arena = {0};
    const char *name;
    g->asking = false;
    if (!end->lost && end->status == STATUS_OK &&
        wire_get_models(body, bytes, &arena, &name, NULL) == 0) {
        mem_free(g->model);
        g->model = mem_strdup(name);
    }
    arena_close(&arena);
}

static void learn_model(struct gateway *g, uint64_t now)
{
    if (g->asking || (g->asked_ns && now < g->asked_ns + (g->model ? MODEL_NS : MODEL_AGAIN_NS)))
        return;
    g->asked_ns = now;
    g->asking = client_ask(g->client, "Models", "", 0, on_model, g, NULL) == 0;
}

/* ---- the thread ---- */

static int least(int a, int b)
{
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

static void take_keys(struct gateway *g)
{
    struct access *keys = atomic_exchange(&g->new_keys, NULL);
    if (!keys) return;
    access_close(g->keys);
    g->keys = keys;
}

static void turn(struct gateway *g)
{
    struct pollfd fds[] = {{.fd = g->wakeup, .events = POLLIN},
                           {.fd = httpd_fd(g->httpd), .events = POLLIN},
                           {.fd = client_fd(g->client), .events = POLLIN}};
    uint64_t woken;
    int wait_ms = least(least(httpd_wait_ms(g->httpd), client_wait_ms(g->client)), WAIT_MOST_MS);
    (void)poll(fds, sizeof fds / sizeof fds[0], wait_ms);
    if (fds[0].revents) (void)!read(g->wakeup, &woken, sizeof woken);
    uint64_t now = clock_ns();
    take_keys(g);
    (void)client_turn(g->client, 0); /* first: what it brings leaves in this turn */
    learn_model(g, now);
    job__beat(g, now);
    httpd_turn(g->httpd);
}

/* All calls end, which answers their requests; then these answers leave. */
static void stop(struct gateway *g)
{
    client_close(g->client);
    g->client = NULL;
    uint64_t end = clock_ns() + LAST_WORDS_NS;
    while ((g->n_jobs || g->n_queries) && clock_ns() < end) {
        struct pollfd p = {.fd = httpd_fd(g->httpd), .events = POLLIN};
        (void)poll(&p, 1, least(httpd_wait_ms(g->httpd), 50));
        httpd_turn(g->httpd);
    }
    httpd_close(g->httpd);
}

static void *run(void *arg)
{
    struct gateway *g = arg;
    while (!atomic_load(&g->stopping)) {
        turn(g);
        atomic_store(&g->busy, g->n_jobs > 0 || g->n_queries > 0);
    }
    stop(g);
    return NULL;
}

/* What the options name: keys, certificate, headers. */
static int open_files(struct gateway *g, const struct gateway_options *o, struct buf *certificate,
                      struct buf *key, struct errmsg *em)
{
    int rc = 0;
    if (o->api_keys) {
        g->keys_path = mem_strdup(o->api_keys);
        rc = access_open(o->api_keys, &g->keys, em);
    }
    if (!o->certificate != !o->key)
        rc = err_set(em, ERR_CONF, "a certificate and its key go together");
    if (rc == 0 && o->certificate)
        rc = access_read_file(o->certificate, false, PEM_BYTES_MAX, certificate, em);
    if (rc == 0 && o->key) rc = access_read_file(o->key, true, PEM_BYTES_MAX, key, em);
    if (rc == 0 && o->certificate && (!certificate->len || !key->len))
        rc = err_set(em, ERR_CONF, "%s: is empty", certificate->len ? o->key : o->certificate);
    if (o->cors) {
        g->cors = mem_strdup(o->cors);
        g->fields[0] = (struct httpd_field){"Access-Control-Allow-Origin", g->cors};
        g->fields[1] = (struct httpd_field){"Vary", "Origin"};
        g->fields[2] = (struct httpd_field){"Access-Control-Expose-Headers", "Retry-After"};
    }
    return rc;
}

static int open_all(struct gateway *g, const struct gateway_options *o, uint32_t *ret_port,
                    struct errmsg *em)
{
    struct buf certificate = {0}, key = {0};
    struct httpd_options http = {.host = o->host,
                                 .port = o->port,
                                 .connections = o->connections,
                                 .body_bytes = (size_t)o->body_kib << 10,
                                 .read_s = o->read_s,
                                 .stall_s = o->stall_s,
                                 .fields = g->fields,
                                 .n_fields = o->cors ? 3 : 0,
                                 .on_error = on_error,
                                 .wants_body = wants_body,
                                 .on_request = on_request,
                                 .on_end = on_request_end,
                                 .arg = g};
    if (g->wakeup < 0) return err_set(em, ERR_IO, "eventfd: %s", strerror(errno));
    if (getrandom(&g->ids, sizeof g->ids, 0) != sizeof g->ids)
        return err_set(em, ERR_IO, "no random numbers");
    int rc = open_files(g, o, &certificate, &key, em);
    http.certificate = certificate.data;
    http.key = key.data;
    if (rc == 0) rc = client_open_keys(o->endpoint, &o->keys, &g->client, em);
    if (rc == 0) rc = httpd_open(&http, &g->httpd, ret_port, em);
    if (key.data) explicit_bzero(key.data, key.len);
    buf_close(&certificate);
    buf_close(&key);
    if (rc == 0 && pthread_create(&g->thread, NULL, run, g) != 0)
        rc = err_set(em, ERR_IO, "no thread for HTTP");
    return rc;
}

/* But for the client and the server. */
static void free_all(struct gateway *g)
{
    if (g->wakeup >= 0) (void)close(g->wakeup);
    access_close(g->keys);
    access_close(atomic_load(&g->new_keys));
    mem_free(g->keys_path);
    mem_free(g->cors);
    mem_free(g->model);
    mem_free(g);
}

int gateway_open(const struct gateway_options *o, struct gateway **ret, uint32_t *ret_port,
                 struct errmsg *em)
{
    struct gateway *g = mem_zalloc(sizeof *g);
    g->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->begun_s = (uint64_t)time(NULL);
    int rc = open_all(g, o, ret_port, em);
    if (rc == 0) {
        *ret = g;
        return 0;
    }
    client_close(g->client);
    httpd_close(g->httpd);
    free_all(g);
    return rc;
}

static void wake(struct gateway *g)
{
    uint64_t one = 1;
    (void)!write(g->wakeup, &one, sizeof one);
}

bool gateway_busy(struct gateway *g)
{
    return atomic_load(&g->busy);
}

void gateway_drain(struct gateway *g)
{
    atomic_store(&g->draining, true);
    wake(g);
}

void gateway_close(struct gateway *g)
{
    if (!g) return;
    atomic_store(&g->draining, true);
    atomic_store(&g->stopping, true);
    wake(g);
    (void)pthread_join(g->thread, NULL);
    free_all(g);
}

int gateway_reload(struct gateway *g, struct errmsg *em)
{
    struct access *keys;
    if (!g->keys_path) return 0;
    int rc = access_open(g->keys_path, &keys, em);
    if (rc < 0) return rc;
    access_close(atomic_exchange(&g->new_keys, keys));
    wake(g);
    return 0;
}
