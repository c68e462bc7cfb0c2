/* Keys in texts and files, and whom sockets with keys admit: over this machine's loopback. */
#include "common/base/clock.h"
#include "common/io/keys.h"
#include "common/io/net.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* The example keys of the CURVE documentation of ZeroMQ, which is where the bytes are from too. */
#define PUBLIC "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
#define SECRET "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"

/* ---- texts ---- */

static void test_text(void **state)
{
    static const uint8_t first[] = {0xbb, 0x88, 0x47, 0x1d, 0x65, 0xe2, 0x65, 0x9b};
    static const char *const wrong[] = {
        "",
        "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hI",
        PUBLIC "x",
        "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hI,", /* no digit of Z85 */
        "#####w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", /* more than 32 bits */
        "0000000000000000000000000000000000000000"};
    struct key k, untouched = {{7}};
    char text[KEY_TEXT_BYTES];
    (void)state;
    assert_true(key_parse(PUBLIC, &k));
    assert_memory_equal(k.bytes, first, sizeof first);
    key_format(&k, text);
    assert_string_equal(text, PUBLIC);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_false(key_parse(wrong[i], &untouched));
        assert_int_equal(untouched.bytes[0], 7);
    }
}

static void test_list(void **state)
{
    struct key_list list = {.items = NULL};
    struct key a = {{1}}, b = {{2}};
    (void)state;
    key_add(&list, &a, KEY_CLIENT);
    key_add(&list, &a, KEY_ADMIN);
    assert_int_equal(list.n, 1);
    assert_int_equal(key_roles(&list, &a), KEY_CLIENT | KEY_ADMIN);
    assert_int_equal(key_roles(&list, &b), 0);
    key_list_close(&list);
    assert_int_equal(key_roles(&list, &a), 0);
}

/* ---- files ---- */

static char folder[] = "/tmp/flotilla-keys-XXXXXX";
static char path[64];

static void put_file(const char *text, mode_t mode)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    (void)fputs(text, f);
    (void)fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_file(void **state)
{
    struct key_pair made, other, got;
    struct errmsg em = {0};
    struct stat st;
    (void)state;
    assert_int_equal(keys_make(&made, &em), 0);
    assert_int_equal(keys_make(&other, &em), 0);
    assert_false(key_eq(&made.secret, &other.secret));
    (void)umask(0);
    assert_int_equal(keys_write(path, &made, &em), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(keys_read(path, &got, &em), 0);
    assert_memory_equal(&got, &made, sizeof made);
    assert_int_equal(keys_write(path, &other, &em), ERR_IO); /* a key is not overwritten */
    assert_non_null(strstr(em.text, path));
    assert_int_equal(keys_read(path, &got, &em), 0);
    assert_memory_equal(&got, &made, sizeof made);
}

static void test_wrong_file(void **state)
{
    static const struct {
        const char *text, *words;
        mode_t mode;
    } cases[] = {
        {"public " PUBLIC "\nsecret " SECRET "\n", NULL, 0600},
        {"# a comment\n\nsecret " SECRET "\r\npublic " PUBLIC "\n", NULL, 0400},
        {"public " PUBLIC "\nsecret " SECRET "\n", "mode 644", 0644},
        {"public " PUBLIC "\nsecret " SECRET "\n", "mode 620", 0620},
        {"public " PUBLIC "\n", "has no public and secret key", 0600},
        {"", "has no public and secret key", 0600},
        {"public " PUBLIC "\npublic " PUBLIC "\n", ":2: ", 0600},
        {"public " PUBLIC "\nsecret short\n", ":2: ", 0600},
        {"-----BEGIN PRIVATE KEY-----\n", ":1: ", 0600},
        {"public " SECRET "\nsecret " SECRET "\n", "does not belong", 0600},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct key_pair got;
        struct errmsg em = {0};
        (void)unlink(path);
        put_file(cases[i].text, cases[i].mode);
        int rc = keys_read(path, &got, &em);
        if (!cases[i].words) {
            if (rc < 0) fail_msg("%zu: %s", i, em.text);
            continue;
        }
        assert_int_equal(rc, ERR_CONF);
        if (!strstr(em.text, path) || !strstr(em.text, cases[i].words))
            fail_msg("'%s' lacks '%s' or '%s'", em.text, path, cases[i].words);
    }
    struct key_pair got;
    struct errmsg em = {0};
    (void)unlink(path);
    assert_int_equal(keys_read(path, &got, &em), ERR_CONF);
    assert_non_null(strstr(em.text, path));
}

/* ---- sockets ---- */

static struct key_pair server_key, peer_keys[3];
static struct net *net;
static struct net_sock *server;
static char endpoint[NET_ENDPOINT_MAX];

/* The first peer's key is a client's, the second's a worker's, the third's is in no list. */
static void allow(bool client, bool worker, bool third)
{
    struct key_list list = {.items = NULL};
    if (client) key_add(&list, &peer_keys[0].public, KEY_CLIENT);
    if (worker) key_add(&list, &peer_keys[1].public, KEY_WORKER);
    if (third) key_add(&list, &peer_keys[2].public, KEY_CLIENT | KEY_ADMIN);
    net_allow(net, &list);
    key_list_close(&list);
}

static void listen_as(enum net_kind kind, struct net_rule rule, int64_t frame_max)
{
    struct errmsg em = {0};
    struct net_limits limits = {.hwm = 16, .recv_hwm = 1, .frame_max = frame_max};
    assert_int_equal(net_open(&net, &em), 0);
    assert_int_equal(net_secure(net, &server_key, &em), 0);
    allow(true, true, false);
    assert_int_equal(net_socket(net, kind, limits, &server, &em), 0);
    net_admit(server, rule);
    if (net_bind(server, "tcp://127.0.0.1:*", &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(net_bound(server, endpoint, &em), 0);
}

static int teardown(void **state)
{
    (void)state;
    net_sock_close(server);
    net_close(net);
    server = NULL;
    net = NULL;
    return 0;
}

/* A peer in a context of its own. */
struct peer {
    struct net *net;
    struct net_sock *sock, *monitor;
};

static struct peer connect_as(enum net_kind kind, const struct key_pair *own,
                              const struct key *expected)
{
    struct peer p;
    struct errmsg em = {0};
    struct net_limits limits = {.hwm = 16, .frame_max = 65536};
    assert_int_equal(net_open(&p.net, &em), 0);
    if (own) assert_int_equal(net_secure(p.net, own, &em), 0);
    assert_int_equal(net_socket(p.net, kind, limits, &p.sock, &em), 0);
    assert_int_equal(net_monitor(p.net, p.sock, &p.monitor, &em), 0);
    if (expected) net_expect(p.sock, expected);
    if (net_connect(p.sock, endpoint, &em) < 0) fail_msg("%s", em.text);
    return p;
}

static void close_peer(struct peer *p)
{
    net_monitor_close(p->sock, p->monitor);
    net_sock_close(p->sock);
    net_close(p->net);
}

static enum net_event next_event(struct peer *p)
{
    enum net_event e = NET_EVENT_NONE;
    for (int i = 0; i < 300 && (e = net_monitor_next(p->monitor)) == NET_EVENT_NONE; i++) {
        struct net_poll item = {.sock = p->monitor};
        (void)net_poll(&item, 1, 100);
    }
    return e;
}

static bool receive(struct net_sock *s, struct net_msg *m, long ms)
{
    uint64_t end = clock_ns() + (uint64_t)ms * NS_PER_MS;
    while (net_recv(s, m) != 0) {
        struct net_poll item = {.sock = s};
        if (clock_ns() >= end) return false;
        (void)net_poll(&item, 1, ms < 100 ? ms : 100);
    }
    return true;
}

static void say(struct peer *p, const char *text)
{
    struct net_frame f = {text, strlen(text)};
    uint64_t give_up_ns = clock_ns() + 30 * NS_PER_S;
    while (net_send(p->sock, &f, 1) == ERR_AGAIN) {
        if (clock_ns() >= give_up_ns) fail_msg("there is no connection to say '%s'", text);
        struct net_poll item = {.sock = p->sock, .want_write = true};
        (void)net_poll(&item, 1, 100);
    }
}

/* Takes a refusal of this kind, waiting for it. */
static struct net_refusal refusal(enum net_refused kind)
{
    struct net_refusal r;
    for (int i = 0; i < 3000; i++) {
        if (net_refusal(net, &r) && r.kind == kind) return r;
        (void)net_poll(NULL, 0, 10);
    }
    fail_msg("nothing was refused as %d", (int)kind);
    return r;
}

static const struct net_rule clients = {.roles = KEY_CLIENT | KEY_ADMIN};

static void test_admitted(void **state)
{
    struct net_msg m;
    struct net_refusal r;
    (void)state;
    listen_as(NET_ROUTER, clients, 1024);
    struct peer p = connect_as(NET_DEALER, &peer_keys[0], &server_key.public);
    assert_int_equal(next_event(&p), NET_EVENT_CONNECTED);
    say(&p, "hello");
    assert_true(receive(server, &m, 30000));
    assert_int_equal(m.n, 2);
    assert_memory_equal(net_msg_frame(&m, 1).data, "hello", 5);
    assert_true(key_eq(&m.key, &peer_keys[0].public));
    assert_int_equal(m.roles, KEY_CLIENT);
    assert_string_equal(m.peer, "127.0.0.1");
    struct net_frame f[2] = {net_msg_frame(&m, 0), {"answer", 6}};
    assert_int_equal(net_send(server, f, 2), 0);
    net_msg_close(&m);
    assert_true(receive(p.sock, &m, 30000));
    assert_int_equal(m.roles, KEY_ANY); /* the other end was chosen, by its key */
    net_msg_close(&m);
    assert_false(net_refusal(net, &r));
    close_peer(&p);
}

/* A peer whose key is not admitted is told so, and nothing that it sends is received. */
static void refused(const struct key_pair *own, enum net_refused kind)
{
    struct net_msg m;
    struct peer p = connect_as(NET_DEALER, own, &server_key.public);
    assert_int_equal(next_event(&p), NET_EVENT_REFUSED);
    struct net_frame f = {"x", 1};
    assert_int_equal(net_send(p.sock, &f, 1), ERR_AGAIN);
    struct net_refusal r = refusal(kind);
    assert_true(key_eq(&r.key, &own->public));
    assert_string_equal(r.peer, "127.0.0.1");
    assert_int_equal(r.count, 1);
    assert_false(receive(server, &m, 0));
    close_peer(&p);
}

static void test_unlisted(void **state)
{
    (void)state;
    listen_as(NET_ROUTER, clients, 1024);
    refused(&peer_keys[2], NET_REFUSED_KEY);
}

static void test_wrong_role(void **state)
{
    (void)state;
    listen_as(NET_ROUTER, clients, 1024);
    refused(&peer_keys[1], NET_REFUSED_ROLE);
}

static void test_nobody_without_a_rule(void **state)
{
    (void)state;
    listen_as(NET_ROUTER, (struct net_rule){.roles = 0}, 1024);
    refused(&peer_keys[0], NET_REFUSED_ROLE);
}

static void test_one_key(void **state)
{
    struct net_msg m;
    (void)state;
    listen_as(NET_PULL, (struct net_rule){.only = peer_keys[2].public}, 1024);
    struct peer other = connect_as(NET_PUSH, &peer_keys[1], &server_key.public);
    assert_int_equal(next_event(&other), NET_EVENT_REFUSED);
    struct peer p = connect_as(NET_PUSH, &peer_keys[2], &server_key.public);
    assert_int_equal(next_event(&p), NET_EVENT_CONNECTED);
    say(&p, "x");
    assert_true(receive(server, &m, 30000));
    assert_int_equal(m.roles, KEY_ANY);
    net_msg_close(&m);
    close_peer(&other);
    close_peer(&p);
}

static void test_without_keys(void **state)
{
    struct net_msg m;
    (void)state;
    listen_as(NET_ROUTER, clients, 1024);
    struct peer p = connect_as(NET_DEALER, NULL, NULL);
    struct net_refusal r = refusal(NET_REFUSED_PLAIN);
    assert_string_equal(r.peer, endpoint);
    assert_false(receive(server, &m, 0));
    close_peer(&p);
}

static void test_wrong_server(void **state)
{
    struct net_msg m;
    (void)state;
    listen_as(NET_ROUTER, clients, 1024);
    struct peer p = connect_as(NET_DEALER, &peer_keys[0], &peer_keys[1].public);
    (void)refusal(NET_REFUSED_CRYPTO);
    assert_false(receive(server, &m, 0));
    close_peer(&p);
}

/* A new list admits new keys; a connection whose key is gone is cut, although it says nothing. */
static void test_reload(void **state)
{
    struct net_msg m;
    (void)state;
    listen_as(NET_ROUTER, clients, 1024);
    refused(&peer_keys[2], NET_REFUSED_KEY);
    struct peer old = connect_as(NET_DEALER, &peer_keys[0], &server_key.public);
    assert_int_equal(next_event(&old), NET_EVENT_CONNECTED);
    say(&old, "a");
    assert_true(receive(server, &m, 30000));
    net_msg_close(&m);
    allow(false, true, true);
    assert_int_equal(next_event(&old), NET_EVENT_LOST); /* although it says nothing */
    assert_int_equal(next_event(&old), NET_EVENT_REFUSED);
    struct peer new = connect_as(NET_DEALER, &peer_keys[2], &server_key.public);
    assert_int_equal(next_event(&new), NET_EVENT_CONNECTED);
    say(&new, "b");
    assert_true(receive(server, &m, 30000));
    assert_int_equal(m.roles, KEY_CLIENT | KEY_ADMIN);
    net_msg_close(&m);
    allow(false, true, true); /* whoever stays admitted is left alone */
    (void)net_poll(NULL, 0, 200);
    say(&new, "d");
    assert_true(receive(server, &m, 30000));
    net_msg_close(&m);
    assert_int_equal(net_monitor_next(new.monitor), NET_EVENT_NONE);
    close_peer(&old);
    close_peer(&new);
}

/* A connection of which nothing was ever received is made again when the list changes, and is then
 * admitted by the new one, or not. */
static void test_reload_beside_silent_peers(void **state)
{
    struct net_msg m;
    (void)state;
    listen_as(NET_ROUTER, (struct net_rule){.roles = KEY_CLIENT | KEY_WORKER}, 1024);
    struct peer gone = connect_as(NET_DEALER, &peer_keys[0], &server_key.public);
    struct peer stays = connect_as(NET_DEALER, &peer_keys[1], &server_key.public);
    assert_int_equal(next_event(&gone), NET_EVENT_CONNECTED);
    assert_int_equal(next_event(&stays), NET_EVENT_CONNECTED);
    allow(false, true, false);
    assert_int_equal(next_event(&gone), NET_EVENT_LOST);
    assert_int_equal(next_event(&gone), NET_EVENT_REFUSED);
    assert_int_equal(next_event(&stays), NET_EVENT_LOST);
    assert_int_equal(next_event(&stays), NET_EVENT_CONNECTED);
    say(&stays, "a");
    assert_true(receive(server, &m, 30000));
    net_msg_close(&m);
    close_peer(&gone);
    close_peer(&stays);
}

/* A message that waits while its key is taken from the list is received by nobody. */
static void test_queued_before_a_reload(void **state)
{
    struct net_msg m;
    (void)state;
    listen_as(NET_ROUTER, clients, 1024);
    struct peer p = connect_as(NET_DEALER, &peer_keys[0], &server_key.public);
    assert_int_equal(next_event(&p), NET_EVENT_CONNECTED);
    say(&p, "a");
    struct net_poll item = {.sock = server};
    for (int i = 0; i < 300 && !item.readable; i++) (void)net_poll(&item, 1, 100);
    assert_true(item.readable);
    allow(false, true, false);
    assert_false(receive(server, &m, 200));
    struct net_refusal r = refusal(NET_REFUSED_KEY);
    assert_true(key_eq(&r.key, &peer_keys[0].public));
    assert_int_equal(next_event(&p), NET_EVENT_LOST);
    close_peer(&p);
}

/* What encryption adds to each frame counts as handed over: nobody is cut for it. */
static void test_small_frames_are_counted(void **state)
{
    enum { N = 4000 }; /* 33 bytes each are 130 kB, the limit with 64 bytes a frame is 5 kB */
    struct net_msg m;
    (void)state;
    listen_as(NET_ROUTER, clients, 64);
    struct peer p = connect_as(NET_DEALER, &peer_keys[0], &server_key.public);
    uint64_t give_up_ns = clock_ns() + 30 * NS_PER_S;
    for (int sent = 0, got = 0; got < N;) {
        if (clock_ns() >= give_up_ns) fail_msg("%d of %d frames came", got, N);
        struct net_frame f = {"12345678", 8};
        while (sent < N && sent < got + 16 && net_send(p.sock, &f, 1) == 0) sent++;
        while (net_recv(server, &m) == 0) {
            got++;
            net_msg_close(&m);
        }
        if (sent == N && got < N) (void)net_poll(NULL, 0, 1);
        if (got % 500 == 0) (void)net_poll(NULL, 0, 15); /* a look of the guard */
    }
    (void)net_poll(NULL, 0, 1200); /* and a sweep */
    assert_int_equal(next_event(&p), NET_EVENT_CONNECTED);
    assert_int_equal(net_monitor_next(p.monitor), NET_EVENT_NONE);
    close_peer(&p);
}

static int raw_connect(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)(const void *)&at, sizeof at), 0);
    return fd;
}

/* Connections that never show a key give way to the next ones, and to no one whose key was
 * admitted; those that stay are closed when their handshake has taken too long. */
static void test_half_open(void **state)
{
    enum { PEERS = 4, N = 3 * PEERS };
    struct net_msg m;
    char c[256];
    int fds[N];
    (void)state;
    listen_as(NET_ROUTER, clients, 1024);
    net_sock_close(server);
    struct errmsg em = {0};
    struct net_limits limits = {.hwm = 4, .frame_max = 1024, .peers_max = PEERS};
    assert_int_equal(net_socket(net, NET_ROUTER, limits, &server, &em), 0);
    net_admit(server, clients);
    assert_int_equal(net_bind(server, "tcp://127.0.0.1:*", &em), 0);
    assert_int_equal(net_bound(server, endpoint, &em), 0);
    struct peer p = connect_as(NET_DEALER, &peer_keys[0], &server_key.public);
    say(&p, "a");
    assert_true(receive(server, &m, 30000));
    net_msg_close(&m);
    uint64_t began_ns = clock_ns();
    for (int i = 0; i < N; i++) fds[i] = raw_connect();
    for (int i = 0; i < N; i++) {
        ssize_t k;
        while ((k = recv(fds[i], c, sizeof c, 0)) > 0) continue; /* libzmq's greeting */
        (void)close(fds[i]);
    }
    assert_in_range(clock_ns() - began_ns, NS_PER_S, 4 * NS_PER_S); /* some had their 2 s */
    say(&p, "b");
    assert_true(receive(server, &m, 30000));
    net_msg_close(&m);
    assert_int_equal(next_event(&p), NET_EVENT_CONNECTED);
    assert_int_equal(net_monitor_next(p.monitor), NET_EVENT_NONE);
    assert_true(refusal(NET_REFUSED_PLAIN).count > 0);
    close_peer(&p);
}

static void test_half_a_pair(void **state)
{
    struct errmsg em = {0};
    struct net_sock *s;
    struct net *plain;
    struct net_limits limits = {.hwm = 4, .frame_max = 1024};
    (void)state;
    listen_as(NET_ROUTER, clients, 1024);
    assert_int_equal(net_socket(net, NET_PUSH, limits, &s, &em), 0);
    assert_int_equal(net_connect(s, "tcp://127.0.0.1:9", &em), ERR_CONF);
    net_sock_close(s);
    assert_int_equal(net_open(&plain, &em), 0);
    assert_int_equal(net_socket(plain, NET_PUSH, limits, &s, &em), 0);
    net_expect(s, &server_key.public);
    assert_int_equal(net_connect(s, "tcp://127.0.0.1:9", &em), ERR_CONF);
    net_sock_close(s);
    net_close(plain);
}

int main(void)
{
    struct errmsg em = {0};
    if (!mkdtemp(folder) || keys_make(&server_key, &em) < 0) return 1;
    for (int i = 0; i < 3; i++)
        if (keys_make(&peer_keys[i], &em) < 0) return 1;
    (void)snprintf(path, sizeof path, "%s/key", folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_wrong_file),
        cmocka_unit_test_teardown(test_admitted, teardown),
        cmocka_unit_test_teardown(test_unlisted, teardown),
        cmocka_unit_test_teardown(test_wrong_role, teardown),
        cmocka_unit_test_teardown(test_nobody_without_a_rule, teardown),
        cmocka_unit_test_teardown(test_one_key, teardown),
        cmocka_unit_test_teardown(test_without_keys, teardown),
        cmocka_unit_test_teardown(test_wrong_server, teardown),
        cmocka_unit_test_teardown(test_reload, teardown),
        cmocka_unit_test_teardown(test_reload_beside_silent_peers, teardown),
        cmocka_unit_test_teardown(test_queued_before_a_reload, teardown),
        cmocka_unit_test_teardown(test_small_frames_are_counted, teardown),
        cmocka_unit_test_teardown(test_half_open, teardown),
        cmocka_unit_test_teardown(test_half_a_pair, teardown),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    (void)rmdir(folder);
    return failed;
}
