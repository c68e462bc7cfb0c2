/* Calls with one reply. They change nothing at the server, so after a silence they are sent again
 * on a new connection, and likewise to a server that restarts. The answers to pings tell a slow
 * server from a dead one. */
#include "common/client/client_state.h"

#include "common/base/mem.h"
#include "common/client/tools.h"
#include "proto/wire.h"

#include <stdio.h>
#include <string.h>

static void send_one(struct client *c, struct unary *u)
{
    struct msg_call h = client__header(c, u->method, u->id);
    h.version = u->version;
    u->sent = client__send(c, &h, u->body.data ? u->body.data : "", u->body.len) == 0;
    u->asked |= u->sent;
}

/* Takes it out of the list, tells its end, and frees it. */
static void end_one(struct client *c, struct unary *u, const struct client_end *end,
                    struct net_frame body)
{
    struct unary **at = &c->unaries;
    while (*at != u) at = &(*at)->next;
    *at = u->next;
    u->on_end(u->arg, end, body.data, body.bytes);
    buf_close(&u->body);
    mem_free(u);
}

/* A server that restarts is asked again until the next one answers, as long as it may take. */
static bool asks_again(struct unary *u)
{
    uint64_t now = clock_ns();
    if (!u->restarts_ns) u->restarts_ns = now;
    if (now >= u->restarts_ns + CLIENT_PATIENCE_MS * NS_PER_MS) return false;
    u->sent = false;
    u->again_ns = now + CLIENT_PING_NS;
    return true;
}

bool unary__take_reply(struct client *c, const struct msg_reply *h, struct net_frame body)
{
    struct client_end end;
    struct unary *u = c->unaries;
    while (u && u->id != h->call) u = u->next;
    if (!u) return false;
    if (client__other_version(h, &end)) {
        end_one(c, u, &end, (struct net_frame){"", 0});
    } else if (h->end && !(h->restarting && asks_again(u))) {
        end = (struct client_end){.status = h->status, .retry_ms = h->retry_ms};
        memcpy(end.text, h->message, sizeof end.text);
        end_one(c, u, &end, body);
    }
    return true;
}

/* When it is given up. */
static uint64_t due_ns(const struct client *c, const struct unary *u)
{
    uint64_t said_ns = c->said_ns > u->begun_ns ? c->said_ns : u->begun_ns;
    uint64_t slow = u->begun_ns + CLIENT_SLOW_MS * NS_PER_MS,
             silent = said_ns + CLIENT_SILENT_MS * NS_PER_MS;
    return slow < silent ? slow : silent;
}

static void give_up(struct client *c, struct unary *u)
{
    struct errmsg em;
    struct client_end end = {.lost = ERR_TIMEOUT, .status = STATUS_UNAVAILABLE};
    if (u->asked)
        (void)err_set(&em, ERR_TIMEOUT, "%s is silent", c->endpoint);
    else
        (void)client__nobody(c, &em);
    (void)snprintf(end.text, sizeof end.text, "%s", em.text);
    end_one(c, u, &end, (struct net_frame){"", 0});
}

/* Sends it if the server takes it; ends it if not. */
static void try_one(struct client *c, struct unary *u)
{
    struct errmsg em;
    int rc = client__fits(c, u->body.len, &em);
    u->held = rc == ERR_AGAIN;
    if (rc == 0) {
        send_one(c, u);
    } else if (rc == ERR_LIMIT) {
        struct client_end end = {.status = STATUS_INVALID_ARGUMENT};
        (void)snprintf(end.text, sizeof end.text, "%s", em.text);
        end_one(c, u, &end, (struct net_frame){"", 0});
    }
}

void unary__look_after(struct client *c, uint64_t now)
{
    for (struct unary *u = c->unaries, *next; u; u = next) {
        next = u->next;
        if (now >= due_ns(c, u))
            give_up(c, u);
        else if (!u->sent && now >= u->again_ns)
            try_one(c, u);
    }
}

uint64_t unary__due_ns(const struct client *c)
{
    uint64_t due = UINT64_MAX;
    for (const struct unary *u = c->unaries; u; u = u->next) {
        uint64_t next = due_ns(c, u);
        if (!u->sent && u->again_ns > clock_ns() && u->again_ns < next) next = u->again_ns;
        if (next < due) due = next;
    }
    return due;
}

bool unary__wants_to_send(const struct client *c)
{
    for (const struct unary *u = c->unaries; u; u = u->next)
        if (!u->sent && clock_ns() >= u->again_ns && !(u->held && !c->takes)) return true;
    return false;
}

void unary__renew(struct client *c)
{
    for (struct unary *u = c->unaries; u; u = u->next) u->sent = false;
}

void unary__close(struct client *c)
{
    static const struct client_end closed = {.status = STATUS_CANCELLED,
                                             .text = "the client was closed"};
    while (c->unaries) end_one(c, c->unaries, &closed, (struct net_frame){"", 0});
}

static void begin(struct client *c, uint32_t version, const char *method, const void *body,
                  size_t body_bytes, client_ask_fn on_end, void *arg)
{
    struct unary *u = mem_alloc(sizeof *u);
    *u = (struct unary){.id = c->next_call++,
                        .begun_ns = clock_ns(),
                        .version = version,
                        .on_end = on_end,
                        .arg = arg};
    (void)snprintf(u->method, sizeof u->method, "%s", method);
    (void)buf_append(&u->body, body, body_bytes);
    client__expect(c, u->begun_ns);
    u->next = c->unaries;
    c->unaries = u;
    u->held = client__fits(c, u->body.len, NULL) < 0; /* the next turn ends it if it never fits */
    if (!u->held) send_one(c, u);
}

int client_ask(struct client *c, const char *method, const void *body, size_t body_bytes,
               client_ask_fn on_end, void *arg, struct errmsg *em)
{
    if (c->closing) return err_set(em, ERR_CLOSED, "the client is being closed");
    if (client__fits(c, body_bytes, em) == ERR_LIMIT) return ERR_LIMIT;
    begin(c, PROTO_VERSION, method, body, body_bytes, on_end, arg);
    return 0;
}

/* ---- waiting for it ---- */

struct wait {
    struct client *c;
    struct client_end *end;
    bool done;
};

static void on_waited(void *arg, const struct client_end *end, const void *body, size_t body_bytes)
{
    struct wait *w = arg;
    *w->end = *end;
    buf_drop(&w->c->reply, w->c->reply.len);
    (void)buf_append(&w->c->reply, body, body_bytes);
    w->done = true;
}

int client_raw(struct client *c, uint32_t version, const char *method, const void *body,
               size_t body_bytes, struct client_end *ret_end, struct errmsg *em)
{
    if (c->in_turn) return err_set(em, ERR_RANGE, "%s: called from a callback", method);
    struct wait w = {.c = c, .end = ret_end};
    begin(c, version, method, body, body_bytes, on_waited, &w);
    while (!w.done) (void)client_turn(c, 100);
    return ret_end->lost ? err_set(em, ret_end->lost, "%s", ret_end->text) : 0;
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
    wire_put_tokenize(&(struct msg_tokenize){.text = text, .special = special}, &request);
    int rc = ask(c, "Tokenize", request.data, request.len, em);
    buf_close(&request);
    if (rc < 0) return rc;
    struct msg_tokens tokens;
    rc = wire_get_tokens(c->reply.data, c->reply.len, &c->body_arena, &tokens, em);
    if (rc < 0) return rc;
    *ret_tokens = tokens.tokens;
    *ret_n = tokens.n;
    return 0;
}
