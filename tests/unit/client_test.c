/* The client library against a scripted coordinator, in virtual time. */
#include "common/io/keys.h"
#include "tests/lib/scripted_server.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

/* While somebody asks, a new connection is tried again and again, however long nobody answers: the
 * server may come back at another address. */
static void test_connections_do_not_grow_rare(void **state)
{
    static struct seen s[60];
    server.dead = true;
    for (uint32_t i = 0; i < 60; i++) {
        start(*state, &s[i], 0);
        uint64_t next = fake.now_ns + 10 * NS_PER_S;
        while (fake.now_ns < next) (void)client_turn(*state, 100);
    }
    assert_in_range(fake.n_sockets, 600 / 25, 600 / 20);
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

static uint64_t back_ns;

static void come_back(void)
{
    if (fake.now_ns >= back_ns) server.refuses = false;
}

/* A call with one reply is asked again until the next coordinator answers; not for ever. */
static void test_restarting_at_a_question(void **state)
{
    const char *name;
    struct errmsg em = {0};
    uint64_t since = fake.now_ns;
    server.refuses = true;
    assert_int_equal(client_models(*state, &name, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "restarting"));
    assert_in_range((fake.now_ns - since) / MS, CLIENT_PATIENCE_MS, CLIENT_PATIENCE_MS + 1000);
    assert_in_range(server.n_unary, 50, 62); /* each 500 ms */
    back_ns = fake.now_ns + 3 * NS_PER_S;
    fake.on_poll = come_back;
    server.n_unary = 0;
    assert_int_equal(client_models(*state, &name, &em), 0);
    assert_string_equal(name, "demo");
    assert_in_range((fake.now_ns - back_ns) / MS, 0, 600);
    assert_in_range(server.n_unary, 6, 8);
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
        cmocka_unit_test_setup_teardown(test_connections_do_not_grow_rare, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_server, setup, teardown),
        cmocka_unit_test_setup_teardown(test_silent_server, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_turn_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restarting, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restarting_for_ever, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restarting_at_a_question, setup, teardown),
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
        cmocka_unit_test_setup_teardown(test_poll_loop, setup, teardown),
        cmocka_unit_test_setup_teardown(test_poll_loop_does_not_spin, setup, teardown),
        cmocka_unit_test_setup_teardown(test_descriptor_follows_the_connection, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
