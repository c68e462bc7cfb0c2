/* The outgoing data link over a scripted network: which messages wait, in which order they leave,
 * and when the link is lost. */
#include "common/io/link.h"

#include "tests/lib/fake_net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define DEPTH 3u
#define ENDPOINT "tcp://10.0.0.7:7000"

static const struct key no_key;
static struct link *the_link;
static struct net *net;
static bool takes;     /* whether the connection takes messages */
static char sent[256]; /* the messages taken, a '|' before each and a '+' between frames */

static int on_send(uint32_t sock, const struct net_frame *f, unsigned n)
{
    (void)sock;
    if (!takes) return ERR_AGAIN;
    for (unsigned i = 0; i < n; i++) {
        size_t at = strlen(sent);
        (void)snprintf(sent + at, sizeof sent - at, "%s%.*s", i ? "+" : "|", (int)f[i].bytes,
                       (const char *)f[i].data);
    }
    return 0;
}

static int open_link(void **state)
{
    (void)state;
    fake_reset();
    fake.on_send = on_send;
    takes = true;
    sent[0] = 0;
    if (net_open(&net, NULL) < 0) return -1;
    the_link = link_open(net, DEPTH);
    return 0;
}

static int close_link(void **state)
{
    (void)state;
    link_close(the_link);
    for (uint32_t i = 0; i < fake.n_sockets; i++) assert_false(fake_is_open(i));
    return 0;
}

static void send_text(const char *text)
{
    struct net_frame f = {text, strlen(text)};
    link_send(the_link, &f, 1);
}

/* What a turn of a loop does with the link: its first event. */
static enum link_event turn(void)
{
    struct net_poll items[LINK_POLLS];
    link_poll(the_link, items);
    assert_int_equal(net_poll(items, LINK_POLLS, 0), 0);
    enum link_event e = link_turn(the_link, items);
    if (e != LINK_QUIET) assert_int_equal(link_turn(the_link, items), LINK_QUIET);
    return e;
}

static void connect_link(void)
{
    link_connect(the_link, ENDPOINT, &no_key, 9);
    fake_event(fake.n_sockets - 1, NET_EVENT_CONNECTED);
    assert_int_equal(turn(), LINK_UP);
}

static void expect_lost(const char *why)
{
    assert_int_equal(turn(), LINK_LOST);
    assert_string_equal(link_why(the_link), why);
    assert_false(link_is_open(the_link));
    assert_int_equal(turn(), LINK_QUIET); /* it is told once */
}

static void test_up_is_told_once(void **state)
{
    (void)state;
    assert_false(link_is_open(the_link));
    assert_int_equal(turn(), LINK_QUIET);
    link_connect(the_link, ENDPOINT, &no_key, 9);
    assert_true(link_is_open(the_link));
    assert_int_equal(fake_kind(0), NET_PUSH);
    assert_string_equal(fake_endpoint(0), ENDPOINT);
    assert_int_equal(fake_limits(0)->hwm, 9);
    assert_int_equal(turn(), LINK_QUIET);
    fake_event(0, NET_EVENT_CONNECTED);
    fake_event(0, NET_EVENT_CONNECTED);
    assert_int_equal(turn(), LINK_UP);
}

/* A message that is refused waits, and later ones wait behind it. */
static void test_what_is_refused_waits_in_order(void **state)
{
    (void)state;
    connect_link();
    send_text("a");
    takes = false;
    char text[] = "b";
    send_text(text);
    text[0] = 'x'; /* it was copied */
    struct net_frame two[LINK_FRAMES] = {{"header", 6}, {"body", 4}};
    link_send(the_link, two, 2);
    assert_int_equal(turn(), LINK_QUIET); /* it still takes nothing */
    assert_string_equal(sent, "|a");
    takes = true;
    send_text("c");
    assert_string_equal(sent, "|a");
    assert_int_equal(turn(), LINK_QUIET);
    assert_string_equal(sent, "|a|b|header+body|c");
    send_text("d");
    assert_string_equal(sent, "|a|b|header+body|c|d");
    struct net_poll items[LINK_POLLS];
    link_poll(the_link, items);
    assert_null(items[1].sock); /* nothing waits, so there is nothing to poll for */
}

/* More messages than the queue holds, but never more at once. */
static void test_the_queue_goes_round(void **state)
{
    (void)state;
    char want[64] = "", text[2] = "";
    connect_link();
    for (int i = 0; i < 10; i++) {
        takes = false;
        for (uint32_t k = 0; k < 2; k++) {
            text[0] = (char)('a' + 2 * i + (int)k);
            send_text(text);
            (void)snprintf(want + strlen(want), sizeof want - strlen(want), "|%s", text);
        }
        takes = true;
        assert_int_equal(turn(), LINK_QUIET);
        assert_string_equal(sent, want);
    }
}

static void test_a_full_queue_is_a_lost_link(void **state)
{
    (void)state;
    connect_link();
    takes = false;
    for (uint32_t i = 0; i < DEPTH; i++) send_text("waits");
    assert_true(link_is_open(the_link));
    send_text("one more");
    assert_false(link_is_open(the_link));
    takes = true;
    uint32_t n_sends = fake.n_sends;
    send_text("after it");
    expect_lost("its data link takes nothing");
    assert_int_equal(fake.n_sends, n_sends);
    assert_string_equal(sent, "");
}

/* Nothing that was meant for the peer before reaches the one after it. */
static void test_a_closed_link_forgets(void **state)
{
    (void)state;
    connect_link();
    takes = false;
    send_text("old");
    fake_event(0, NET_EVENT_LOST);
    expect_lost("its data link closed");
    takes = true;
    connect_link();
    send_text("new");
    assert_int_equal(turn(), LINK_QUIET);
    assert_string_equal(sent, "|new");
    takes = false;
    send_text("older");
    link_disconnect(the_link); /* by its owner: no event */
    assert_false(link_is_open(the_link));
    assert_int_equal(turn(), LINK_QUIET);
    takes = true;
    connect_link();
    assert_int_equal(turn(), LINK_QUIET);
    assert_string_equal(sent, "|new");
}

static void test_a_link_that_never_stood(void **state)
{
    (void)state;
    link_connect(the_link, ENDPOINT, &no_key, 9);
    fake_event(0, NET_EVENT_LOST);
    expect_lost("its data link cannot be reached");
    /* A second connection takes the place of the first. */
    connect_link();
    connect_link();
    assert_false(fake_is_open(1));
    assert_true(fake_is_open(2));
}

/* A connection that cannot even be begun is told by link_turn, like every loss. */
static void test_a_connection_that_cannot_be_begun(void **state)
{
    (void)state;
    fake.connect_rc = ERR_CONF;
    link_connect(the_link, "tcp://nonsense", &no_key, 9);
    assert_false(link_is_open(the_link));
    send_text("goes nowhere");
    expect_lost("cannot connect to tcp://nonsense");
    assert_string_equal(sent, "");
    link_connect(the_link, "tcp://nonsense", &no_key, 9);
    fake.connect_rc = 0;
    connect_link(); /* the loss before it was never told, and is not now */
    assert_int_equal(turn(), LINK_QUIET);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, open_link, close_link)
    const struct CMUnitTest tests[] = {
        TEST(test_up_is_told_once),
        TEST(test_what_is_refused_waits_in_order),
        TEST(test_the_queue_goes_round),
        TEST(test_a_full_queue_is_a_lost_link),
        TEST(test_a_closed_link_forgets),
        TEST(test_a_link_that_never_stood),
        TEST(test_a_connection_that_cannot_be_begun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
