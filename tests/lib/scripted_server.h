/* A scripted coordinator for tests of the client library, in virtual time: it answers Generates
 * with tokens 100, 101, ..., and pings, and keeps what it was asked. */
#ifndef FLOTILLA_TESTS_SCRIPTED_SERVER_H
#define FLOTILLA_TESTS_SCRIPTED_SERVER_H

#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/client/client.h"
#include "proto/wire.h"
#include "tests/lib/fake_net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS NS_PER_MS
#define CALLS_MAX 1024
#define TOKENS_MAX 4096

/* What the server does, and what it has seen. */
static struct server {
    bool dead, swallows; /* answers nothing; the socket below takes messages and loses them */
    uint32_t swallowing; /* which one */
    bool refuses;        /* says that it is restarting */
    uint32_t version;    /* of its replies; 0: the right one */
    uint32_t n_tokens;   /* of each answer; token k is 100 + k */
    uint32_t each;       /* tokens of a reply */
    uint32_t stop_after; /* tokens after which it says no more; 0: never */
    bool knows_nothing;  /* pings are answered with all calls unknown */
    bool mute_pings;
    uint32_t takes; /* bytes of a message, as its pongs say; 0: they do not */
    uint64_t unary_delay_ns;
    uint64_t seed;
    uint32_t n_generates, n_pings, n_unary, n_cancels;
    uint64_t pinged[CALLS_MAX], deadline_ms; /* how often each call was; of the last Generate */
    uint64_t cancelled;                      /* the last call that was */
    uint32_t n_embedding;                    /* numbers: 1, 2, ... */
    char prompt[32], stop[32], draft[16];    /* of the last Generate */
    int32_t bias_id;
    uint32_t from_index, n_received;
    bool has_seed;
    uint64_t asked_seed;
    uint64_t generate_ns[CALLS_MAX], generate_call[CALLS_MAX];
    bool cancels_late; /* more tokens arrive before a cancelled call's end */
} server;

static struct arena arena, body_arena;
static struct buf header, body;

static inline void reply(uint32_t sock, uint64_t delay_ns, const struct msg_reply *h)
{
    wire_put_reply(h, &header);
    if (server.version && server.version != PROTO_VERSION) {
        /* Field 1 is the version: the first two bytes. */
        assert_int_equal(header.data[0], 8);
        header.data[1] = (char)server.version;
    }
    struct net_frame f[2] = {{header.data, header.len}, {body.data, body.len}};
    fake_arrive(sock, delay_ns, f, 2);
    buf_drop(&body, body.len);
}

static inline void say_tokens(uint32_t sock, uint64_t call, uint32_t from, uint32_t n, bool last,
                              uint64_t delay_ns)
{
    int32_t tokens[TOKENS_MAX];
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)(100 + from + i);
    struct msg_generate_reply r = {.first_index = from,
                                   .n_tokens = n,
                                   .tokens = tokens,
                                   .text = "",
                                   .finish_reason = last ? FINISH_LENGTH : FINISH_NONE,
                                   .has_usage = from == 0 || server.n_received,
                                   .seed = server.seed};
    wire_put_generate_reply(&r, &body);
    reply(sock, delay_ns, &(struct msg_reply){.call = call, .end = last});
}

static inline void say_embedding(uint32_t sock, uint64_t call)
{
    float values[64];
    for (uint32_t i = 0; i < server.n_embedding; i++) values[i] = (float)(i + 1);
    struct msg_generate_reply r = {
        .text = "", .has_usage = true, .embedding = values, .n_embedding = server.n_embedding};
    wire_put_generate_reply(&r, &body);
    reply(sock, MS, &(struct msg_reply){.call = call, .end = true});
}

static inline void refuse(uint32_t sock, uint64_t call)
{
    struct msg_reply r = {.call = call,
                          .end = true,
                          .status = STATUS_UNAVAILABLE,
                          .restarting = true,
                          .retry_ms = 1000};
    (void)snprintf(r.message, sizeof r.message, "the coordinator is restarting");
    reply(sock, MS, &r);
}

static inline void on_generate(uint32_t sock, const struct msg_call *h, struct net_frame b)
{
    struct msg_generate g;
    struct errmsg em = {0};
    assert_int_equal(wire_get_generate(b.data, b.bytes, &body_arena, &g, &em), 0);
    if (server.n_generates < CALLS_MAX) {
        server.generate_ns[server.n_generates] = fake.now_ns;
        server.generate_call[server.n_generates] = h->call;
    }
    server.n_generates++;
    server.deadline_ms = h->deadline_ms;
    server.from_index = g.from_index;
    server.n_received = g.n_received;
    (void)snprintf(server.prompt, sizeof server.prompt, "%s", g.prompt);
    (void)snprintf(server.stop, sizeof server.stop, "%s", g.n_stops ? g.stops[0] : "");
    (void)snprintf(server.draft, sizeof server.draft, "%s", g.draft ? g.draft : "");
    server.bias_id = g.sampling.n_bias ? g.sampling.bias_ids[0] : -1;
    server.has_seed = g.has_seed;
    server.asked_seed = g.sampling.seed;
    if (server.refuses) {
        refuse(sock, h->call);
        return;
    }
    if (g.embed) {
        say_embedding(sock, h->call);
        return;
    }
    uint64_t delay = MS;
    for (uint32_t at = g.from_index; at < server.n_tokens; at += server.each, delay += 10 * MS) {
        uint32_t n = server.n_tokens - at < server.each ? server.n_tokens - at : server.each;
        if (server.stop_after && at >= server.stop_after) return;
        say_tokens(sock, h->call, at, n, at + n == server.n_tokens, delay);
    }
}

static inline void on_ping(uint32_t sock, const struct msg_call *h, struct net_frame b)
{
    const uint64_t *ids;
    uint32_t n;
    struct errmsg em = {0};
    assert_int_equal(wire_get_ping(b.data, b.bytes, &body_arena, &ids, &n, &em), 0);
    server.n_pings++;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < CALLS_MAX) server.pinged[ids[i]]++;
    if (server.mute_pings) return;
    wire_put_pong(ids, server.knows_nothing ? n : 0, server.takes, &body);
    reply(sock, MS, &(struct msg_reply){.call = h->call, .end = true});
}

static inline int on_send(uint32_t sock, const struct net_frame *f, unsigned n)
{
    struct msg_call h;
    struct errmsg em = {0};
    assert_int_equal(n, 2);
    assert_int_equal(wire_get_call(f[0].data, f[0].bytes, &arena, &h, &em), 0);
    if (fake.full) return ERR_AGAIN;
    if (server.dead || (server.swallows && sock == server.swallowing)) return 0;
    if (strcmp(h.method, "Generate") == 0) {
        on_generate(sock, &h, f[1]);
    } else if (strcmp(h.method, "Ping") == 0) {
        on_ping(sock, &h, f[1]);
    } else if (strcmp(h.method, "Cancel") == 0) {
        assert_int_equal(
            wire_get_cancel(f[1].data, f[1].bytes, &body_arena, &server.cancelled, &em), 0);
        server.n_cancels++;
        reply(
            sock, server.cancels_late ? 45 * MS : MS,
            &(struct msg_reply){.call = server.cancelled, .end = true, .status = STATUS_CANCELLED});
    } else {
        server.n_unary++;
        if (server.refuses) {
            refuse(sock, h.call);
            return 0;
        }
        wire_put_models("demo", &body);
        reply(sock, server.unary_delay_ns, &(struct msg_reply){.call = h.call, .end = true});
    }
    return 0;
}

/* What the client's user sees of one call. Tests have them static, since on_end may come from the
 * teardown. */
struct seen {
    struct client_call *call;
    int32_t tokens[TOKENS_MAX];
    uint32_t n, n_ends;
    struct client_end end;
    uint32_t cancel_at; /* it cancels when it has so many tokens; 0: never */
    /* What it does at the end. */
    void (*at_end)(struct seen *s);
    struct client *client;
    struct seen *next;
};

static inline void on_reply(void *arg, struct client_call *call, const struct client_reply *r)
{
    struct seen *s = arg;
    assert_ptr_equal(call, s->call);
    assert_int_equal(s->n_ends, 0);
    for (uint32_t i = 0; i < r->n_tokens && s->n < TOKENS_MAX; i++)
        s->tokens[s->n++] = r->tokens[i];
    if (s->cancel_at && s->n >= s->cancel_at) client_cancel(call);
}

static inline void on_end(void *arg, struct client_call *call, const struct client_end *end)
{
    struct seen *s = arg;
    assert_ptr_equal(call, s->call);
    client_cancel(call); /* of one that ends: nothing */
    s->n_ends++;
    s->end = *end;
    if (s->at_end) s->at_end(s);
}

static const struct client_request request = {
    .prompt = "a", .max_tokens = 20, .sampling = {.top_p = 1, .repetition = 1}};

static inline int setup(void **state)
{
    fake_reset();
    fake.on_send = on_send;
    server = (struct server){.n_tokens = 20, .each = 1, .seed = 77};
    struct client *c;
    struct errmsg em = {0};
    assert_int_equal(client_open("127.0.0.1:7070", &c, &em), 0);
    assert_string_equal(fake_endpoint(0), "tcp://127.0.0.1:7070");
    *state = c;
    return 0;
}

static inline int teardown(void **state)
{
    client_close(*state);
    buf_close(&header);
    buf_close(&body);
    arena_close(&arena);
    arena_close(&body_arena);
    return 0;
}

static inline void start(struct client *c, struct seen *s, uint64_t deadline_ms)
{
    struct errmsg em = {0};
    struct client_request q = request;
    q.deadline_ms = deadline_ms;
    *s = (struct seen){.client = c};
    assert_int_equal(client_start(c, &q, &s->call, on_reply, on_end, s, &em), 0);
}

/* Until no call runs, at most so many virtual seconds. */
static inline void turn_for(struct client *c, uint64_t seconds)
{
    uint64_t end = fake.now_ns + seconds * NS_PER_S;
    while (fake.now_ns < end && client_turn(c, 100)) continue;
}

static inline void assert_whole(const struct seen *s)
{
    assert_int_equal(s->n_ends, 1);
    assert_int_equal(s->end.lost, 0);
    assert_int_equal(s->n, 20);
    for (uint32_t i = 0; i < 20; i++) assert_int_equal(s->tokens[i], 100 + i);
}

#endif
