/* Calls with one reply. They change nothing at the server, so after a silence they are sent again
 * on a new connection. The answers to pings tell a slow server from a dead one. */
#include "common/client/client_state.h"

#include "common/client/tools.h"
#include "proto/wire.h"

#include <string.h>

void unary__send(struct client *c)
{
    struct unary *u = c->unary;
    struct msg_call h = client__header(c, u->method, u->id);
    h.version = u->version;
    u->sent = client__send(c, &h, u->body, u->body_bytes) == 0;
    u->asked |= u->sent;
}

void unary__take_reply(struct client *c, const struct msg_reply *h, struct net_frame body)
{
    struct unary *u = c->unary;
    if (client__other_version(h, u->end)) {
        u->done = true;
        return;
    }
    if (!h->end) return;
    buf_drop(&c->reply, c->reply.len);
    (void)buf_append(&c->reply, body.data, body.bytes);
    *u->end = (struct client_end){.status = h->status, .retry_ms = h->retry_ms};
    memcpy(u->end->text, h->message, sizeof u->end->text);
    u->done = true;
}

int client_raw(struct client *c, uint32_t version, const char *method, const void *body,
               size_t body_bytes, struct client_end *ret_end, struct errmsg *em)
{
    if (c->in_turn) return err_set(em, ERR_RANGE, "%s: called from a callback", method);
    uint64_t begun_ns = clock_ns(), now = begun_ns;
    struct unary u = {.id = c->next_call++,
                      .version = version,
                      .method = method,
                      .body = body,
                      .body_bytes = body_bytes,
                      .end = ret_end};
    client__expect(c, begun_ns);
    c->unary = &u;
    unary__send(c);
    while (!u.done && now - begun_ns < CLIENT_SLOW_MS * NS_PER_MS) {
        uint64_t said_ns = c->said_ns > begun_ns ? c->said_ns : begun_ns;
        if (now >= said_ns + CLIENT_SILENT_MS * NS_PER_MS) break;
        (void)client_turn(c, 100);
        now = clock_ns();
    }
    c->unary = NULL;
    if (u.done) return ret_end->lost ? err_set(em, ret_end->lost, "%s", ret_end->text) : 0;
    return u.asked ? err_set(em, ERR_TIMEOUT, "%s is silent", c->endpoint) : client__nobody(c, em);
}

/* A call for which another status than OK is an error too. */
static int ask(struct client *c, const char *method, const void *body, size_t body_bytes,
               struct errmsg *em)
{
    struct client_end end;
    int rc = client_raw(c, PROTO_VERSION, method, body, body_bytes, &end, em);
    if (rc < 0 || end.status == STATUS_OK) return rc;
    return err_set(em, ERR_PROTO, "status %d: %s", (int)end.status, end.text);
}

int client_status(struct client *c, struct msg_status *ret, struct errmsg *em)
{
    int rc = ask(c, "Status", "", 0, em);
    return rc < 0 ? rc : wire_get_status(c->reply.data, c->reply.len, &c->body_arena, ret, em);
}

int client_order(struct client *c, const char *method, const struct msg_order *order,
                 const char **ret_text, struct errmsg *em)
{
    struct buf request = {0};
    struct client_end end;
    wire_put_order(order, &request);
    int rc = client_raw(c, PROTO_VERSION, method, request.data, request.len, &end, em);
    buf_close(&request);
    if (rc < 0) return rc;
    if (end.status != STATUS_OK)
        return err_set(em, ERR_PROTO, "%s: %s", client_status_name(end.status), end.text);
    return wire_get_order_reply(c->reply.data, c->reply.len, &c->body_arena, ret_text, em);
}

int client_models(struct client *c, const char **ret_name, struct errmsg *em)
{
    int rc = ask(c, "Models", "", 0, em);
    return rc < 0 ? rc : wire_get_models(c->reply.data, c->reply.len, &c->body_arena, ret_name, em);
}

int client_tokenize(struct client *c, const char *text, bool special, const int32_t **ret_tokens,
                    uint32_t *ret_n, struct errmsg *em)
{
    struct buf request = {0};
    wire_put_tokenize(text, special, &request);
    int rc = ask(c, "Tokenize", request.data, request.len, em);
    buf_close(&request);
    if (rc < 0) return rc;
    return wire_get_tokens(c->reply.data, c->reply.len, &c->body_arena, ret_tokens, ret_n, em);
}
