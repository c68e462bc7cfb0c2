/* Requests that are answered at once, or with one call to the coordinator. */
#include "coordinator/gateway/gateway_state.h"

#include "common/base/mem.h"
#include "common/base/prom.h"
#include "common/client/tools.h"
#include "coordinator/gateway/front.h"
#include "coordinator/status_json.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void free_query(struct query *q)
{
    if (q->e.http || q->asking) return;
    q->e.g->n_queries--;
    arena_close(&q->arena);
    mem_free(q);
}

static void on_http_end(struct exchange *e, bool gone)
{
    e->g->count.gone += gone;
    e->http = NULL;
    free_query((struct query *)e);
}

static void on_asked(void *arg, const struct client_end *end, const void *body, size_t bytes)
{
    struct query *q = arg;
    struct fault f = {0};
    struct json *o = NULL;
    q->asking = false;
    if (end->lost || end->status != STATUS_OK)
        fault_of_end(&f, end);
    else if (q->e.http)
        o = q->make(q, body, bytes, &f);
    if (q->e.http && o)
        gateway__reply(q->e.g, q->e.http, 200, o);
    else if (q->e.http)
        gateway__refuse(q->e.g, q->e.http, &f);
    free_query(q);
}

struct query *query__new(struct gateway *g, struct httpd_request *r, query_make_fn make)
{
    struct query *q = mem_zalloc(sizeof *q);
    *q = (struct query){.e = {g, r, on_http_end}, .make = make};
    g->n_queries++;
    httpd_set_context(r, &q->e);
    return q;
}

void query__ask(struct query *q, const char *method, const void *body, size_t bytes)
{
    struct errmsg em = {0};
    struct fault f;
    q->asking = true;
    int rc = client_ask(q->e.g->client, method, body, bytes, on_asked, q, &em);
    if (rc == 0) return;
    q->asking = false;
    (void)fault_set(&f, rc == ERR_LIMIT ? 413 : 503, NULL, "%s", em.text);
    gateway__refuse(q->e.g, q->e.http, &f);
}

struct json *query__unread(struct fault *f, const struct errmsg *em)
{
    (void)fault_set(f, 500, NULL, "the coordinator's reply: %s", em->text);
    return NULL;
}

/* ---- the page, and what it shows ---- */

void page__front(struct gateway *g, struct httpd_request *r)
{
    /* Nothing from elsewhere, nothing in a frame; its own script and style are in it. */
    static const struct httpd_field fields[] = {
        {"Content-Type", "text/html; charset=utf-8"},
        {"Content-Security-Policy",
         "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; "
         "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"Cache-Control", "no-cache"}};
    g->count.replies[200]++;
    httpd_reply(r, 200, fields, sizeof fields / sizeof fields[0], front_page, front_page_bytes);
}

static struct json *make_status(struct query *q, const void *body, size_t bytes, struct fault *f)
{
    struct errmsg em = {0};
    struct msg_status s;
    if (wire_get_status(body, bytes, &q->arena, &s, &em) < 0) return query__unread(f, &em);
    return status_json(&s);
}

void page__status(struct gateway *g, struct httpd_request *r)
{
    query__ask(query__new(g, r, make_status), "Status", "", 0);
}

/* ---- models ---- */

static struct json *model_json(const struct query *q, const char *name)
{
    struct json *o = json_new_object();
    json_put_string(o, "id", name, strlen(name));
    json_put_string(o, "object", "model", 5);
    json_put_u64(o, "created", q->e.g->begun_s);
    json_put_string(o, "owned_by", "flotilla", 8);
    return o;
}

static struct json *make_models(struct query *q, const void *body, size_t bytes, struct fault *f)
{
    struct errmsg em = {0};
    const char *name;
    if (wire_get_models(body, bytes, &q->arena, &name, &em) < 0) return query__unread(f, &em);
    if (q->name[0] && strcmp(q->name, name) != 0) {
        (void)fault_set(f, 404, "model", "there is no model '%s'", q->name);
        f->code = "model_not_found";
        return NULL;
    }
    struct json *one = model_json(q, name);
    if (q->name[0]) return one;
    struct json *o = json_new_object(), *list = json_new_array();
    json_add(list, one);
    json_put_string(o, "object", "list", 4);
    json_put(o, "data", list);
    return o;
}

void page__models(struct gateway *g, struct httpd_request *r, const char *name)
{
    struct query *q = query__new(g, r, make_models);
    (void)snprintf(q->name, sizeof q->name, "%s", name);
    query__ask(q, "Models", "", 0);
}

/* ---- readiness ---- */

static struct json *make_ready(struct query *q, const void *body, size_t bytes, struct fault *f)
{
    struct errmsg em = {0};
    struct msg_status s;
    if (wire_get_status(body, bytes, &q->arena, &s, &em) < 0) return query__unread(f, &em);
    if (!s.ready) {
        const char *why = s.n_replicas ? s.replicas[0].why : "";
        (void)fault_set(f, 503, NULL, "not ready%s%.400s", why && why[0] ? ": " : "",
                        why ? why : "");
        f->retry_s = 1;
        return NULL;
    }
    struct json *o = json_new_object();
    json_put_string(o, "status", "ready", 5);
    json_put_int(o, "running", s.running);
    json_put_int(o, "queued", s.queued);
    return o;
}

void page__ready(struct gateway *g, struct httpd_request *r)
{
    query__ask(query__new(g, r, make_ready), "Status", "", 0);
}

/* ---- metrics ---- */

void page__metrics(struct gateway *g, struct httpd_request *r)
{
    static const struct httpd_field type = {"Content-Type", PROM_CONTENT_TYPE};
    struct buf b = {0};
    char label[32];
    struct stats_view first;
    prom_head(&b, "flotilla_gateway_replies_total", "counter", "Replies, by HTTP status.");
    for (unsigned i = 0; i < GATEWAY_STATUSES; i++) {
        if (!g->count.replies[i]) continue;
        (void)snprintf(label, sizeof label, "status=\"%u\"", i);
        prom_int(&b, "flotilla_gateway_replies_total", label, g->count.replies[i]);
    }
    prom_head(&b, "flotilla_gateway_connections", "gauge", "Open connections.");
    prom_int(&b, "flotilla_gateway_connections", "", httpd_connections(g->httpd));
    prom_head(&b, "flotilla_gateway_requests", "gauge", "Completions that are not answered yet.");
    prom_int(&b, "flotilla_gateway_requests", "", g->n_jobs);
    prom_head(&b, "flotilla_gateway_gone_total", "counter",
              "Clients that left before their reply was whole.");
    prom_int(&b, "flotilla_gateway_gone_total", "", g->count.gone);
    prom_head(&b, "flotilla_gateway_slow_total", "counter",
              "Streams given up because too much of them waited to be read.");
    prom_int(&b, "flotilla_gateway_slow_total", "", g->count.slow);
    prom_head(&b, "flotilla_gateway_tokens_total", "counter", "Tokens of answers.");
    prom_int(&b, "flotilla_gateway_tokens_total", "", g->count.tokens);
    stats_read(&g->count.first, &first);
    prom_head(&b, "flotilla_gateway_first_token_seconds", "histogram",
              "From a request's last byte to its first token.");
    prom_histogram(&b, "flotilla_gateway_first_token_seconds", "", &first);
    g->count.replies[200]++;
    httpd_reply(r, 200, &type, 1, b.data, b.len);
    buf_close(&b);
}
