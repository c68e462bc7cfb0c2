/* The client library against a scripted coordinator, in virtual time. */
#include "common/client/client.h"

#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/io/keys.h"
#include "proto/wire.h"
#include "tests/lib/fake_net.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

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
    uint64_t unary_delay_ns;
    uint64_t seed;
    uint32_t n_generates, n_pings, n_unary, n_cancels;
    uint64_t pinged[CALLS_MAX], deadline_ms; /* how often each call was; of the last Generate */
    uint64_t cancelled;                      /* the last call that was */
    uint32_t n_embedding;                    /* numbers: 1, 2, ... */
    char prompt[32], stop[32];               /* of the last Generate */
    int32_t bias_id;
    uint32_t from_index, n_received;
    bool has_seed;
    uint64_t asked_seed;
    uint64_t generate_ns[CALLS_MAX], generate_call[CALLS_MAX];
    bool cancels_late; /* more tokens arrive before a cancelled call's end */
} server;

static struct arena arena, body_arena;
static struct buf header, body;

static void reply(uint32_t sock, uint64_t delay_ns, const struct msg_reply *h)
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

static void say_tokens(uint32_t sock, uint64_t call, uint32_t from, uint32_t n, bool last,
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

static void say_embedding(uint32_t sock, uint64_t call)
{
    float values[64];
    for (uint32_t i = 0; i < server.n_embedding; i++) values[i] = (float)(i + 1);
    struct msg_generate_reply r = {
        .text = "", .has_usage = true, .embedding = values, .n_embedding = server.n_embedding};
    wire_put_generate_reply(&r, &body);
    reply(sock, MS, &(struct msg_reply){.call = call, .end = true});
}

static void on_generate(uint32_t sock, const struct msg_call *h, struct net_frame b)
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
    server.bias_id = g.sampling.n_bias ? g.sampling.bias_ids[0] : -1;
    server.has_seed = g.has_seed;
    server.asked_seed = g.sampling.seed;
    if (server.refuses) {
        struct msg_reply r = {.call = h->call,
                              .end = true,
                              .status = STATUS_UNAVAILABLE,
                              .restarting = true,
                              .retry_ms = 1000};
        (void)snprintf(r.message, sizeof r.message, "the coordinator is restarting");
        reply(sock, MS, &r);
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

static void on_ping(uint32_t sock, const struct msg_call *h, struct net_frame b)
{
    const uint64_t *ids;
    uint32_t n;
    struct errmsg em = {0};
    assert_int_equal(wire_get_ping(b.data, b.bytes, &body_arena, &ids, &n, &em), 0);
    server.n_pings++;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < CALLS_MAX) server.pinged[ids[i]]++;
    if (server.mute_pings) return;
    wire_put_pong(ids, server.knows_nothing ? n : 0, &body);
    reply(sock, MS, &(struct msg_reply){.call = h->call, .end = true});
}

static int on_send(uint32_t sock, const struct net_frame *f, unsigned n)
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

static void on_reply(void *arg, struct client_call *call, const struct client_reply *r)
{
    struct seen *s = arg;
    assert_ptr_equal(call, s->call);
    assert_int_equal(s->n_ends, 0);
    for (uint32_t i = 0; i < r->n_tokens && s->n < TOKENS_MAX; i++)
        s->tokens[s->n++] = r->tokens[i];
    if (s->cancel_at && s->n >= s->cancel_at) client_cancel(call);
}

static void on_end(void *arg, struct client_call *call, const struct client_end *end)
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

static int setup(void **state)
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

static int teardown(void **state)
{
    client_close(*state);
    buf_close(&header);
    buf_close(&body);
    arena_close(&arena);
    arena_close(&body_arena);
    return 0;
}

static void start(struct client *c, struct seen *s, uint64_t deadline_ms)
{
    struct errmsg em = {0};
    struct client_request q = request;
    q.deadline_ms = deadline_ms;
    *s = (struct seen){.client = c};
    assert_int_equal(client_start(c, &q, &s->call, on_reply, on_end, s, &em), 0);
}

/* Until no call runs, at most so many virtual seconds. */
static void turn_for(struct client *c, uint64_t seconds)
{
    uint64_t end = fake.now_ns + seconds * NS_PER_S;
    while (fake.now_ns < end && client_turn(c, 100)) continue;
}

static void assert_whole(const struct seen *s)
{
    assert_int_equal(s->n_ends, 1);
    assert_int_equal(s->end.lost, 0);
    assert_int_equal(s->n, 20);
    for (uint32_t i = 0; i < 20; i++) assert_int_equal(s->tokens[i], 100 + i);
}

static void test_answer(void **state)
{
    static struct seen s;
    start(*state, &s, 0);
    turn_for(*state, 60);
    assert_whole(&s);
    assert_int_equal(server.n_generates, 1);
}

/* Of the first embedding nothing is left in the second, which is shorter. */
static void test_embed(void **state)
{
    const float *values = NULL;
    uint32_t n;
    struct client_end end;
    struct errmsg em = {0};
    for (server.n_embedding = 48; server.n_embedding; server.n_embedding -= 16) {
        assert_int_equal(client_embed(*state, &request, &values, &n, &end, &em), 0);
        assert_true(end.status == STATUS_OK && n == server.n_embedding);
        for (uint32_t i = 0; i < n; i++) assert_true(values[i] == (float)(i + 1));
    }
    server.dead = true;
    assert_int_equal(client_embed(*state, &request, &values, &n, &end, &em), ERR_TIMEOUT);
}

static void test_vanished_coordinator(void **state)
{
    static struct seen s;
    fake.reading_ns = 1000;
    server.stop_after = 3;
    start(*state, &s, 0);
    turn_for(*state, 1);
    assert_int_equal(s.n, 3);
    server.dead = true;
    uint64_t since = fake.now_ns;
    turn_for(*state, 120);
    assert_int_equal(s.n_ends, 1);
    assert_int_equal(s.end.lost, ERR_TIMEOUT);
    assert_int_equal(s.n, 3);
    assert_in_range((fake.now_ns - since) / MS, CLIENT_PATIENCE_MS,
                    CLIENT_PATIENCE_MS + CLIENT_SILENT_MS + 1000);
}

static void test_silent_call(void **state)
{
    /* The connection lives, the call does not speak: it is asked for again. */
    static struct seen s;
    server.stop_after = 3;
    start(*state, &s, 0);
    turn_for(*state, 1);
    server.stop_after = 0;
    turn_for(*state, 20);
    assert_whole(&s);
    assert_int_equal(server.n_generates, 2);
    assert_int_equal(server.from_index, 3);
    assert_int_equal(fake.n_sockets, 1);
}

static void test_half_open(void **state)
{
    /* From now on nothing comes through the connection in either direction, and neither end
     * notices. */
    static struct seen s;
    fake.reading_ns = 1000; /* the clock goes on within a turn */
    server.stop_after = 3;
    start(*state, &s, 0);
    turn_for(*state, 1);
    server.stop_after = 0;
    server.swallows = true;
    server.swallowing = 0;
    uint64_t since = fake.now_ns;
    turn_for(*state, 60);
    assert_whole(&s);
    assert_true(fake.now_ns - since < 10 * NS_PER_S);
    assert_int_equal(fake.n_sockets, 2);
    assert_false(fake_is_open(0));
}

static void test_stopped_client_makes_no_new_connection(void **state)
{
    static struct seen s;
    server.each = 1;
    start(*state, &s, 0);
    turn_for(*state, 0);
    (void)client_turn(*state, 1);
    fake.now_ns += 3600 * NS_PER_S; /* what was sent to it waits */
    turn_for(*state, 60);
    assert_whole(&s);
    assert_int_equal(fake.n_sockets, 1);
}

static void stand_still_once(void)
{
    fake.on_poll = NULL;
    fake.now_ns += 3600 * NS_PER_S;
}

static void test_standstill_is_nobodys_silence(void **state)
{
    /* Nothing has arrived when the client goes on: it listens before it takes anyone for silent. */
    static struct seen s;
    server.stop_after = 3;
    start(*state, &s, 0);
    turn_for(*state, 1);
    server.mute_pings = true;
    turn_for(*state, 1);
    fake.on_poll = stand_still_once;
    (void)client_turn(*state, 100);
    server.mute_pings = false;
    turn_for(*state, 1);
    assert_int_equal(fake.n_sockets, 1);
    assert_int_equal(server.n_generates, 1);
    assert_int_equal(s.n_ends, 0);
}

static void test_duplicates_are_taken_once(void **state)
{
    static struct seen s;
    server.stop_after = 1;
    server.each = 2;
    start(*state, &s, 0);
    turn_for(*state, 1);
    assert_int_equal(s.n, 2);
    server.stop_after = 0;
    say_tokens(0, 2, 0, 2, false, MS); /* the same again, late; the call's id is 2 */
    turn_for(*state, 60);
    assert_whole(&s);
}

static void test_gap_is_asked_for(void **state)
{
    static struct seen s;
    server.stop_after = 1;
    server.each = 2;
    start(*state, &s, 0);
    turn_for(*state, 1);
    server.stop_after = 0;
    say_tokens(0, 2, 4, 2, false, MS);
    turn_for(*state, 60);
    assert_whole(&s);
}

static void test_seed_is_kept(void **state)
{
    static struct seen s;
    server.stop_after = 5;
    start(*state, &s, 0);
    turn_for(*state, 1);
    assert_false(server.has_seed);
    server.stop_after = 0;
    server.seed = 5; /* a coordinator that was started again draws another */
    server.knows_nothing = true;
    turn_for(*state, 60);
    assert_whole(&s);
    assert_int_equal(server.n_received, 5);
    assert_true(server.has_seed);
    assert_int_equal(server.asked_seed, 77);
}

static void test_all_calls_are_pinged(void **state)
{
    static struct seen seen[600];
    server.stop_after = 1;
    for (int i = 0; i < 600; i++) start(*state, &seen[i], 0);
    turn_for(*state, 2);
    for (uint64_t id = 2; id < 602; id++) assert_in_range(server.pinged[id], 2, 5);
}

static void test_deadline_in_the_past(void **state)
{
    static struct seen s;
    server.stop_after = 5;
    start(*state, &s, 1500);
    assert_in_range(server.deadline_ms, 1500, 1501);
    server.stop_after = 0;
    turn_for(*state, 20); /* silent for five seconds, then asked for again */
    assert_int_equal(server.n_generates, 2);
    assert_int_equal(server.deadline_ms, 1);
}

/* As long as there is no end to it, and not at once because it overflows. */
static void test_longest_deadlines(void **state)
{
    static struct seen s[3];
    static const uint64_t deadlines[] = {LIMIT_DEADLINE_MS + UINT64_C(1), UINT64_MAX / 1000000 + 1,
                                         UINT64_MAX};
    server.stop_after = 5;
    for (size_t i = 0; i < 3; i++) {
        start(*state, &s[i], deadlines[i]);
        assert_in_range(server.deadline_ms, LIMIT_DEADLINE_MS, LIMIT_DEADLINE_MS + 1);
    }
}

static void test_slow_server(void **state)
{
    const char *name;
    struct errmsg em = {0};
    server.unary_delay_ns = 20 * NS_PER_S; /* it answers pings meanwhile */
    assert_int_equal(client_models(*state, &name, &em), 0);
    assert_string_equal(name, "demo");
    assert_int_equal(server.n_unary, 1);
    server.unary_delay_ns = 2 * CLIENT_SLOW_MS * MS;
    assert_int_equal(client_models(*state, &name, &em), ERR_TIMEOUT);
}

static void test_silent_server(void **state)
{
    const char *name;
    struct errmsg em = {0};
    uint64_t since = fake.now_ns;
    server.dead = true;
    assert_int_equal(client_models(*state, &name, &em), ERR_TIMEOUT);
    assert_non_null(strstr(em.text, "is silent"));
    assert_in_range((fake.now_ns - since) / MS, CLIENT_SILENT_MS, CLIENT_SILENT_MS + 200);
    server.dead = false;
    server.swallows = true; /* the connection of before is dead */
    server.swallowing = fake.n_sockets - 1;
    assert_int_equal(client_models(*state, &name, &em), 0);
}

static void test_a_turn_is_bounded(void **state)
{
    static struct seen s;
    server.stop_after = 1;
    start(*state, &s, 0);
    turn_for(*state, 1);
    uint32_t before = fake.n_recvs, pings = server.n_pings;
    server.mute_pings = true;
    for (int i = 0; i < 10 * CLIENT_REPLIES_A_TURN; i++) say_tokens(0, 999, 0, 1, false, 0);
    fake.now_ns += 600 * MS;
    assert_int_equal(client_turn(*state, 100), 1);
    assert_int_equal(fake.n_recvs - before, CLIENT_REPLIES_A_TURN);
    assert_int_equal(server.n_pings - pings, 1);
}

static void test_restarting(void **state)
{
    /* The coordinator ends in order; the next one is there three seconds later. */
    static struct seen s;
    server.stop_after = 4;
    start(*state, &s, 0);
    turn_for(*state, 1);
    server.refuses = true;
    struct msg_reply r = {.call = 2, .end = true, .status = STATUS_UNAVAILABLE, .restarting = true};
    (void)snprintf(r.message, sizeof r.message, "the coordinator is restarting");
    wire_put_generate_reply(&(struct msg_generate_reply){.first_index = 4, .text = ""}, &body);
    reply(0, MS, &r);
    turn_for(*state, 3);
    assert_int_equal(s.n_ends, 0);
    server.refuses = false;
    server.stop_after = 0;
    turn_for(*state, 60);
    assert_whole(&s);
}

static void test_restarting_for_ever(void **state)
{
    static struct seen s;
    uint64_t since = fake.now_ns;
    server.refuses = true;
    start(*state, &s, 0);
    turn_for(*state, 120);
    assert_int_equal(s.n_ends, 1);
    assert_int_equal(s.end.status, STATUS_UNAVAILABLE);
    assert_non_null(strstr(s.end.text, "restarting"));
    assert_in_range((fake.now_ns - since) / MS, CLIENT_PATIENCE_MS, CLIENT_PATIENCE_MS + 1000);
    assert_in_range(server.n_generates, 20, 70); /* each 500 ms */
}

static void test_other_version(void **state)
{
    static struct seen s;
    const char *name;
    struct errmsg em = {0};
    uint64_t since = fake.now_ns;
    server.version = 9;
    start(*state, &s, 0);
    turn_for(*state, 60);
    assert_int_equal(s.n_ends, 1);
    assert_int_equal(s.end.status, STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(s.end.text, "version 9, this client 2"));
    assert_int_equal(client_models(*state, &name, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "version 9, this client 2"));
    assert_true(fake.now_ns - since < NS_PER_S);
}

static void test_no_such_host(void **state)
{
    struct client *c = NULL;
    struct errmsg em = {0};
    (void)state;
    fake.lookup_rc = ERR_NOTFOUND;
    assert_int_equal(client_open("nohost:7070", &c, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "does not resolve"));
    assert_int_equal(client_open("nohost", &c, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "names no port"));
    assert_null(c);
}

/* With keys a client expects the coordinator's on every connection that it makes. */
static void test_keys(void **state)
{
    static const char coordinator[] = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
    char path[] = "/tmp/flotilla-key-XXXXXX";
    struct client *c = NULL;
    struct errmsg em = {0};
    struct key_pair own;
    struct key expected;
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    const struct client_keys wrong[] = {{path, NULL},
                                        {NULL, coordinator},
                                        {path, "short"},
                                        {path, coordinator}}; /* the last: an empty file */
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(client_open_keys("h:1", &wrong[i], &c, &em), ERR_CONF);
    assert_non_null(strstr(em.text, path));
    assert_null(c);
    (void)unlink(path);
    assert_int_equal(keys_make(&own, &em), 0);
    assert_int_equal(keys_write(path, &own, &em), 0);
    assert_true(key_parse(coordinator, &expected));
    fake_reset();
    fake.on_send = on_send;
    assert_int_equal(client_open_keys("h:1", &wrong[3], &c, &em), 0);
    (void)unlink(path);
    assert_true(fake.secure);
    struct seen s;
    server.dead = true;
    start(c, &s, 0);
    uint64_t until_ns = fake.now_ns + 10 * NS_PER_S;
    while (fake.now_ns < until_ns) (void)client_turn(c, 100);
    assert_in_range(fake.n_sockets, 2, 5);
    for (uint32_t i = 0; i < fake.n_sockets; i++) {
        struct key got = fake_expected(i);
        assert_true(key_eq(&got, &expected));
    }
    client_close(c);
}

/* Whichever send or receive fails, once, the answer is whole. */
static void test_failing_once(void **state)
{
    static const int errors[] = {ERR_AGAIN, ERR_CLOSED, ERR_IO};
    static struct seen s;
    uint32_t failed = 0;
    for (uint32_t k = 1; k <= 40; k++)
        for (int e = 0; e < 3; e++) {
            (void)teardown(state);
            (void)setup(state);
            server.stop_after = 10;
            server.each = 3;
            start(*state, &s, 0);
            fake.fail_send = fake.n_sends + (k <= 20 ? k : 0);
            fake.fail_recv = fake.n_recvs + (k > 20 ? k - 20 : 0);
            fake.send_error = fake.recv_error = errors[e];
            uint32_t sends = fake.fail_send, recvs = fake.fail_recv;
            turn_for(*state, 2);
            server.stop_after = 0;
            turn_for(*state, 60);
            assert_whole(&s);
            failed += k <= 20 ? fake.n_sends >= sends : fake.n_recvs >= recvs;
        }
    assert_true(failed >= 60);
}

/* ---- handles, and several calls at once ---- */

static void assert_cancelled(const struct seen *s)
{
    assert_int_equal(s->n_ends, 1);
    assert_int_equal(s->end.lost, 0);
    assert_int_equal(s->end.status, STATUS_CANCELLED);
}

static void test_cancel_in_flight(void **state)
{
    static struct seen s, other;
    server.cancels_late = true;
    start(*state, &s, 0);
    start(*state, &other, 0);
    s.cancel_at = 3;
    turn_for(*state, 60);
    assert_cancelled(&s);
    assert_int_equal(s.n, 3); /* nothing is handed out after it, whatever still came */
    assert_int_equal(server.n_cancels, 1);
    assert_int_equal(server.cancelled, 2);
    assert_whole(&other);
}

static void test_cancel_from_outside(void **state)
{
    static struct seen s;
    server.stop_after = 5;
    start(*state, &s, 0);
    turn_for(*state, 1);
    client_cancel(s.call);
    client_cancel(s.call);
    assert_int_equal(s.n_ends, 0); /* never inside the call */
    turn_for(*state, 1);
    assert_cancelled(&s);
    assert_int_equal(server.n_cancels, 1);
}

static void test_cancel_is_said_again(void **state)
{
    /* The connection takes nothing when it is cancelled. */
    static struct seen s;
    server.stop_after = 5;
    start(*state, &s, 0);
    turn_for(*state, 1);
    fake.full = true;
    client_cancel(s.call);
    turn_for(*state, 1);
    assert_int_equal(s.n_ends, 0);
    fake.full = false;
    turn_for(*state, 1);
    assert_cancelled(&s);
    assert_int_equal(server.n_cancels, 1);
}

static void test_cancel_of_a_dead_server(void **state)
{
    static struct seen s;
    server.stop_after = 5;
    start(*state, &s, 0);
    turn_for(*state, 1);
    server.dead = true;
    client_cancel(s.call);
    turn_for(*state, CLIENT_SILENT_MS / 1000 + 1); /* without the patience of others */
    assert_cancelled(&s);
}

static void test_cancel_before_anybody_is_there(void **state)
{
    static struct seen s;
    fake.full = true;
    start(*state, &s, 0);
    client_cancel(s.call);
    assert_int_equal(client_turn(*state, 0), 0);
    assert_cancelled(&s);
    assert_int_equal(server.n_generates + server.n_cancels, 0);
}

static void test_connection_comes_late(void **state)
{
    static struct seen s;
    fake.full = true;
    start(*state, &s, 0);
    turn_for(*state, 2);
    assert_int_equal(s.n_ends, 0);
    fake.full = false;
    turn_for(*state, 10);
    assert_whole(&s);
    assert_int_equal(server.n_generates, 1);
}

static void test_nobody_is_there(void **state)
{
    static struct seen s;
    struct client_end end;
    struct errmsg em = {0};
    uint64_t since = fake.now_ns;
    fake.full = true;
    start(*state, &s, 0);
    turn_for(*state, 60);
    assert_int_equal(s.n_ends, 1);
    assert_int_equal(s.end.lost, ERR_TIMEOUT);
    assert_string_equal(
        s.end.text, "no coordinator answers at tcp://127.0.0.1:7070 (one with keys answers only "
                    "clients that have one)");
    assert_in_range((fake.now_ns - since) / MS, CLIENT_CONNECT_MS, CLIENT_CONNECT_MS + 200);
    assert_int_equal(client_generate(*state, &request, NULL, NULL, &end, &em), ERR_TIMEOUT);
    assert_string_equal(em.text, s.end.text);
}

static void test_generate_waits_for_its_own(void **state)
{
    /* Another call runs before, meanwhile and afterwards. */
    static struct seen other;
    struct client_end end;
    struct errmsg em = {0};
    const char *name;
    server.n_tokens = 400;
    start(*state, &other, 0);
    server.n_tokens = 20;
    assert_int_equal(client_generate(*state, &request, NULL, NULL, &end, &em), 0);
    assert_int_equal(end.status, STATUS_OK);
    assert_in_range(other.n, 15, 30);
    server.unary_delay_ns = NS_PER_S;
    assert_int_equal(client_models(*state, &name, &em), 0);
    assert_string_equal(name, "demo");
    assert_in_range(other.n, 110, 140);
    turn_for(*state, 60);
    assert_int_equal(other.n, 400);
    assert_int_equal(other.n_ends, 1);
}

static void begin_next(struct seen *s)
{
    const char *name;
    struct errmsg em = {0};
    struct client_end end;
    assert_int_equal(client_models(s->client, &name, &em), ERR_RANGE); /* waits: not from here */
    assert_int_equal(client_generate(s->client, &request, NULL, NULL, &end, &em), ERR_RANGE);
    assert_int_equal(client_turn(s->client, 100), 0);
    if (s->next) start(s->client, s->next, 0);
}

static void test_calls_begin_in_callbacks(void **state)
{
    static struct seen first, second;
    start(*state, &first, 0);
    first.at_end = begin_next;
    first.next = &second;
    turn_for(*state, 60);
    assert_whole(&first);
    assert_whole(&second);
}

static void refuse_next(struct seen *s)
{
    struct errmsg em = {0};
    assert_int_equal(client_start(s->client, &request, NULL, NULL, on_end, s, &em), ERR_CLOSED);
}

static void test_close_ends_calls(void **state)
{
    static struct seen a, b;
    server.stop_after = 2;
    start(*state, &a, 0);
    start(*state, &b, 0);
    a.at_end = refuse_next;
    turn_for(*state, 1);
    client_close(*state);
    *state = NULL;
    assert_cancelled(&a);
    assert_cancelled(&b);
    assert_string_equal(b.end.text, "the client was closed");
    assert_int_equal(server.n_cancels, 2);
}

static void test_request_is_copied(void **state)
{
    char prompt[] = "once upon", stop[] = "the end";
    const char *stops[] = {stop};
    int32_t bias_ids[] = {7};
    float bias[] = {1.0f};
    struct seen s = {.n = 0};
    struct errmsg em = {0};
    struct client_request q = request;
    q.prompt = prompt;
    q.stops = stops;
    q.n_stops = 1;
    q.sampling.bias_ids = bias_ids;
    q.sampling.bias = bias;
    q.sampling.n_bias = 1;
    server.stop_after = 3;
    assert_int_equal(client_start(*state, &q, &s.call, on_reply, on_end, &s, &em), 0);
    turn_for(*state, 1);
    memset(prompt, 'x', sizeof prompt - 1);
    memset(stop, 'x', sizeof stop - 1);
    bias_ids[0] = 8;
    server.stop_after = 0;
    turn_for(*state, 20);
    assert_whole(&s);
    assert_int_equal(server.n_generates, 2);
    assert_string_equal(server.prompt, "once upon");
    assert_string_equal(server.stop, "the end");
    assert_int_equal(server.bias_id, 7);
}

static void test_requests_that_no_server_takes(void **state)
{
    struct seen s = {.n = 0};
    struct errmsg em = {0};
    const char *stops[CLIENT_STOPS_MAX + 1];
    for (size_t i = 0; i <= CLIENT_STOPS_MAX; i++) stops[i] = "s";
    struct client_request q = request;
    q.stops = stops;
    q.n_stops = CLIENT_STOPS_MAX + 1;
    assert_int_equal(client_start(*state, &q, &s.call, on_reply, on_end, &s, &em), ERR_LIMIT);
    assert_string_equal(em.text, "more than 16 stop texts");
    char *prompt = malloc(LIMIT_CLIENT_BYTES + 1);
    memset(prompt, 'a', LIMIT_CLIENT_BYTES);
    prompt[LIMIT_CLIENT_BYTES] = 0;
    q = request;
    q.prompt = prompt;
    assert_int_equal(client_start(*state, &q, &s.call, on_reply, on_end, &s, &em), ERR_LIMIT);
    free(prompt);
    assert_non_null(strstr(em.text, "servers take 17825792"));
    assert_int_equal(client_turn(*state, 0), 0);
    assert_int_equal(s.n_ends + server.n_generates, 0);
}

/* ---- somebody else's poll loop ---- */

/* Waits as client_wait_ms says, until no call runs or so many virtual seconds have passed. Returns
 * how often it woke up. */
static uint32_t poll_for(struct client *c, uint64_t seconds)
{
    uint64_t end = fake.now_ns + seconds * NS_PER_S;
    uint32_t n = 0;
    for (size_t running = 1; running && fake.now_ns < end; n++) {
        int ms = client_wait_ms(c);
        assert_true(ms >= 0 && n < 10000); /* a call runs; it does not spin */
        uint64_t due = fake.now_ns + (uint64_t)ms * MS;
        if (ms) fake.now_ns = fake.next_ns < due ? fake.next_ns : due;
        running = client_turn(c, 0);
    }
    return n;
}

static void test_poll_loop(void **state)
{
    static struct seen s, t;
    start(*state, &s, 0);
    start(*state, &t, 0);
    uint32_t n = poll_for(*state, 60);
    assert_whole(&s);
    assert_whole(&t);
    assert_in_range(n, 20, 50); /* 20 replies each, together or apart, and a ping */
    assert_int_equal(client_wait_ms(*state), -1);
}

static void test_poll_loop_does_not_spin(void **state)
{
    /* It wakes up to ping twice a second, whatever it waits for. */
    static struct seen s;
    server.stop_after = 3;
    start(*state, &s, 0);
    uint32_t n = poll_for(*state, 60);
    assert_int_equal(s.n_ends, 1);
    assert_in_range(n, 70, 300);
    assert_in_range(server.n_pings, 65, 75);
    start(*state, &s, 0);
    (void)poll_for(*state, 1);
    fake.full = true; /* it is lost, and no connection takes that it is asked for again */
    n = poll_for(*state, 60);
    assert_int_equal(s.n_ends, 1);
    assert_in_range(n, 60, 300);
    uint64_t since = fake.now_ns;
    start(*state, &s, 0);
    n = poll_for(*state, 60);
    assert_int_equal(s.end.lost, ERR_TIMEOUT);
    assert_in_range((fake.now_ns - since) / MS, CLIENT_CONNECT_MS, CLIENT_CONNECT_MS + 200);
    assert_in_range(n, 5, 50);
}

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void test_descriptor_follows_the_connection(void **state)
{
    static struct seen s;
    int fd = client_fd(*state);
    assert_false(is_readable(fd));
    assert_int_equal(eventfd_write(fake_fd(0), 1), 0);
    assert_true(is_readable(fd));
    eventfd_t ignored;
    assert_int_equal(eventfd_read(fake_fd(0), &ignored), 0);
    server.stop_after = 3;
    start(*state, &s, 0);
    (void)poll_for(*state, 1);
    server.swallows = true; /* a half-open connection: another one is made */
    (void)poll_for(*state, 10);
    assert_int_equal(fake.n_sockets, 2);
    assert_int_equal(client_fd(*state), fd);
    assert_false(is_readable(fd));
    assert_int_equal(eventfd_write(fake_fd(1), 1), 0);
    assert_true(is_readable(fd));
}

/* Calls that begin before there is a connection are asked in the order in which they began. */
static void test_calls_are_asked_in_order(void **state)
{
    static struct seen s[8];
    memset(s, 0, sizeof s);
    fake.full = true;
    for (int i = 0; i < 8; i++) start(*state, &s[i], 0);
    turn_for(*state, 1);
    fake.full = false;
    turn_for(*state, 1);
    assert_int_equal(server.n_generates, 8);
    for (int i = 1; i < 8; i++) assert_true(server.generate_call[i] > server.generate_call[i - 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_embed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_calls_are_asked_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_vanished_coordinator, setup, teardown),
        cmocka_unit_test_setup_teardown(test_silent_call, setup, teardown),
        cmocka_unit_test_setup_teardown(test_half_open, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stopped_client_makes_no_new_connection, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_standstill_is_nobodys_silence, setup, teardown),
        cmocka_unit_test_setup_teardown(test_duplicates_are_taken_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gap_is_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_seed_is_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_calls_are_pinged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deadline_in_the_past, setup, teardown),
        cmocka_unit_test_setup_teardown(test_longest_deadlines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_server, setup, teardown),
        cmocka_unit_test_setup_teardown(test_silent_server, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_turn_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restarting, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restarting_for_ever, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_version, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_such_host, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failing_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_in_flight, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_from_outside, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_is_said_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_of_a_dead_server, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_before_anybody_is_there, setup, teardown),
        cmocka_unit_test_setup_teardown(test_connection_comes_late, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody_is_there, setup, teardown),
        cmocka_unit_test_setup_teardown(test_generate_waits_for_its_own, setup, teardown),
        cmocka_unit_test_setup_teardown(test_calls_begin_in_callbacks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_close_ends_calls, setup, teardown),
        cmocka_unit_test_setup_teardown(test_request_is_copied, setup, teardown),
        cmocka_unit_test_setup_teardown(test_requests_that_no_server_takes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_poll_loop, setup, teardown),
        cmocka_unit_test_setup_teardown(test_poll_loop_does_not_spin, setup, teardown),
        cmocka_unit_test_setup_teardown(test_descriptor_follows_the_connection, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
