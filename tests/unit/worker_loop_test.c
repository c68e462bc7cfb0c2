/* The worker's control loop against a scripted coordinator and a scripted compute thread, in
 * virtual time. */
#include "worker/loop.h"

#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/keys.h"
#include "proto/wire.h"
#include "tests/lib/fake_net.h"
#include "worker/exec.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MS NS_PER_MS

/* What the coordinator and the compute thread do, when the worker is told to stop, and what was
 * seen. */
static struct script {
    uint64_t stop_ns;
    uint64_t silent_ns; /* from then on the first connection brings no answer; 0: never */
    uint64_t freeze_ns, freeze_for_ns; /* the worker's process is stopped then, for so long */
    uint32_t version;                  /* of the coordinator */
    bool refuse, dismiss;
    uint64_t ready_ns; /* the compute thread says Ready then; 0: never */
    uint64_t steps_ns; /* it has received a Step from then on; 0: never */
    bool sent_ready;
    /* Messages of the worker; n_ready_late: Ready although Steps came. */
    uint32_t n_hello, n_ready, n_ready_late, n_heartbeat, n_goodbye, n_commands;
    uint64_t back_ns;            /* first message on another connection */
    struct exec_options options; /* that the compute thread was opened with */
    char listen[64], advertise[64];
} script;

static struct arena arena;
static struct buf out;

/* ---- the compute thread ---- */

/* Its end of the pair is socket 0, the first connection to the coordinator socket 1. */
struct exec {
    struct net_sock *sock;
};

#define PAIR 0
#define CONTROL 1

static struct exec the_exec;

int exec_open(struct net *net, const struct exec_options *o, struct exec **ret_exec,
              struct errmsg *em)
{
    script.options = *o;
    (void)snprintf(script.listen, sizeof script.listen, "%s", o->listen);
    if (o->advertise) (void)snprintf(script.advertise, sizeof script.advertise, "%s", o->advertise);
    *ret_exec = &the_exec;
    return net_socket(net, NET_PAIR, (struct net_limits){.hwm = 1}, &the_exec.sock, em);
}

void exec_close(struct exec *e)
{
    if (e) net_sock_close(e->sock);
}

struct net_sock *exec_socket(struct exec *e)
{
    return e->sock;
}

bool exec_command(struct exec *e, const struct msg_to_worker *m)
{
    (void)e;
    (void)m;
    script.n_commands++;
    return true;
}

bool exec_next(struct exec *e, struct msg_from_worker *ret)
{
    struct net_msg m;
    if (net_recv(e->sock, &m) < 0) return false;
    net_msg_close(&m);
    *ret = (struct msg_from_worker){
        .type = FROM_READY, .has_epoch = true, .epoch = {7, 0, 1}, .endpoint = "tcp://:5"};
    return true;
}

void exec_heartbeat(struct exec *e, struct msg_from_worker *ret)
{
    (void)e;
    *ret = (struct msg_from_worker){.type = FROM_HEARTBEAT, .has_epoch = true, .epoch = {7, 0, 1}};
    ret->heartbeat.step_received = script.steps_ns && fake.now_ns >= script.steps_ns ? 1 : 0;
}

uint32_t exec_pages(struct exec *e)
{
    (void)e;
    return 0;
}

bool exec_holding(struct exec *e, struct msg_holding *ret)
{
    (void)e;
    (void)ret;
    return false;
}

void exec_metrics(struct exec *e, struct buf *text)
{
    (void)e;
    (void)text;
}

/* ---- the coordinator ---- */

static void say(uint32_t sock, enum to_worker type)
{
    struct msg_to_worker m = {
        .version = script.version ? script.version : PROTO_VERSION, .type = type, .text = "no"};
    wire_put_to_worker(&m, &out);
    struct net_frame f = {out.data, out.len};
    fake_arrive(sock, MS, &f, 1);
}

static int on_send(uint32_t sock, const struct net_frame *f, unsigned n)
{
    struct msg_from_worker m;
    struct errmsg em = {0};
    assert_int_equal(n, 1);
    if (fake.lookup_rc) return ERR_AGAIN; /* there is no connection */
    assert_int_equal(wire_get_from_worker(f->data, f->bytes, &arena, &m, &em), 0);
    if (sock != CONTROL && !script.back_ns) script.back_ns = fake.now_ns;
    switch (m.type) {
    case FROM_HELLO: script.n_hello++; break;
    case FROM_READY:
        script.n_ready++;
        script.n_ready_late += script.steps_ns && fake.now_ns >= script.steps_ns;
        break;
    case FROM_HEARTBEAT: script.n_heartbeat++; break;
    case FROM_GOODBYE: script.n_goodbye++; return 0;
    default: break;
    }
    if (sock == CONTROL && script.silent_ns && fake.now_ns >= script.silent_ns) return 0;
    /* Nothing is sent to a worker that is about to be stopped. */
    if (script.freeze_ns && fake.now_ns + NS_PER_S >= script.freeze_ns) return 0;
    if (m.type == FROM_HEARTBEAT)
        say(sock, script.refuse ? TO_REFUSE : script.dismiss ? TO_LEAVE : TO_ALIVE);
    return 0;
}

static void on_poll(void)
{
    if (fake.now_ns >= script.stop_ns) (void)raise(SIGTERM);
    if (script.freeze_ns && fake.now_ns >= script.freeze_ns) {
        script.freeze_ns = 0;
        fake.now_ns += script.freeze_for_ns;
    }
    if (script.ready_ns && !script.sent_ready && fake.now_ns >= script.ready_ns) {
        struct net_frame f = {"", 0};
        script.sent_ready = true;
        fake_arrive(PAIR, 0, &f, 1);
    }
}

static struct loop_options options(void)
{
    return (struct loop_options){.coordinator = "127.0.0.1:7071", .name = "w", .threads = 1};
}

static int setup(void **state)
{
    (void)state;
    fake_reset();
    fake.on_send = on_send;
    fake.on_poll = on_poll;
    script = (struct script){.stop_ns = fake.now_ns + 20 * NS_PER_S};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    buf_close(&out);
    arena_close(&arena);
    return 0;
}

static int run(const struct loop_options *o, struct errmsg *em)
{
    *em = (struct errmsg){0};
    return loop_run(o, em);
}

static void test_quiet_life(void **state)
{
    struct loop_options o = options();
    struct errmsg em;
    (void)state;
    assert_int_equal(run(&o, &em), 0);
    assert_int_equal(fake.n_sockets, 2);
    assert_string_equal(fake_endpoint(CONTROL), "tcp://127.0.0.1:7071");
    assert_in_range(script.n_heartbeat, 75, 81);
    assert_int_equal(script.n_goodbye, 1);
    assert_in_range(fake.end_within_s, 1, 2); /* whatever the compute thread does */
    assert_int_equal(script.n_commands, 0);   /* Alive is nothing for the compute thread */
}

static void test_lost_ready_is_said_again(void **state)
{
    struct loop_options o = options();
    struct errmsg em;
    (void)state;
    script.ready_ns = fake.now_ns + 2 * NS_PER_S;
    script.steps_ns = fake.now_ns + 10 * NS_PER_S;
    assert_int_equal(run(&o, &em), 0);
    assert_in_range(script.n_ready, 25, 40); /* with each heartbeat, for eight seconds */
    assert_int_equal(script.n_ready_late, 0);
}

static void test_dead_connection_is_made_anew(void **state)
{
    struct loop_options o = options();
    struct errmsg em;
    (void)state;
    script.silent_ns = fake.now_ns + 5 * NS_PER_S;
    assert_int_equal(run(&o, &em), 0);
    assert_int_equal(fake.n_sockets, 3);
    assert_false(fake_is_open(CONTROL));
    assert_in_range(script.back_ns - script.silent_ns, 3 * NS_PER_S, 6 * NS_PER_S);
}

static void hello_when_connected(void)
{
    static uint32_t told;
    if (fake.n_sockets > CONTROL + 1 && told != fake.n_sockets) {
        told = fake.n_sockets;
        fake_event(told - 1, NET_EVENT_CONNECTED);
    }
    on_poll();
}

static void test_new_connection_says_hello(void **state)
{
    struct loop_options o = options();
    struct errmsg em;
    (void)state;
    script.silent_ns = fake.now_ns + 5 * NS_PER_S;
    fake.on_poll = hello_when_connected;
    assert_int_equal(run(&o, &em), 0);
    assert_int_equal(script.n_hello, 1);
}

static void test_stopped_worker_makes_no_new_connection(void **state)
{
    struct loop_options o = options();
    struct errmsg em;
    (void)state;
    script.freeze_ns = fake.now_ns + 3 * NS_PER_S;
    script.freeze_for_ns = 600 * NS_PER_S;
    script.stop_ns += script.freeze_for_ns;
    assert_int_equal(run(&o, &em), 0);
    assert_int_equal(fake.n_sockets, 2);
}

static void test_data_links_off_this_machine(void **state)
{
    static const struct {
        const char *coordinator, *listen, *listens;
        bool off;
    } cases[] = {
        {"127.0.0.1:7071", NULL, "127.0.0.1", false},
        {"localhost:7071", NULL, "127.0.0.1", false},
        {"[::1]:7071", NULL, "[::1]", false},
        {"tcp://10.0.0.5:7071", NULL, "0.0.0.0", true},
        {"[fd00::5]:7071", NULL, "[::]", true},
        {"localhost.example.com:7071", NULL, "[::]", true}, /* it may have either kind */
        {"10.0.0.5:7071", "127.0.0.1", "127.0.0.1", false},
        {"127.0.0.1:7071", "10.0.0.7", "10.0.0.7", true},
    };
    struct errmsg em;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct loop_options o = options();
        (void)setup(state);
        script.stop_ns = fake.now_ns;
        o.coordinator = cases[i].coordinator;
        o.listen = cases[i].listen;
        assert_int_equal(run(&o, &em), 0);
        assert_string_equal(script.listen, cases[i].listens);
        assert_int_equal(script.options.off_machine, cases[i].off);
    }
}

static void test_addresses(void **state)
{
    static const struct {
        const char *coordinator, *advertise, *metrics, *words;
    } cases[] = {
        {"10.0.0.5", NULL, NULL, "--coordinator: '10.0.0.5' names no port"},
        {"http://10.0.0.5:80", NULL, NULL, "only tcp:// is served"},
        {"*:7071", NULL, NULL, "'*' is no host"},
        {"10.0.0.500:7071", NULL, NULL, "it is no IPv4 address"},
        {"127.0.0.1:7071", "here", NULL, "--advertise: 'here' names no port"},
        {"127.0.0.1:7071", "0.0.0.0:5000", NULL, "--advertise: '0.0.0.0:5000' is every address"},
        {"127.0.0.1:7071", "[::]:5000", NULL, "--advertise: '[::]:5000' is every address"},
        {"127.0.0.1:7071", "here:99999", NULL, "the port is not a number in 0..65535"},
        {"127.0.0.1:7071", NULL, "127.0.0.1", "--metrics: '127.0.0.1' is not HOST:PORT"},
    };
    struct errmsg em;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct loop_options o = options();
        (void)setup(state);
        script.stop_ns = fake.now_ns;
        o.coordinator = cases[i].coordinator;
        o.advertise = cases[i].advertise;
        o.metrics = cases[i].metrics;
        assert_int_equal(run(&o, &em), ERR_CONF);
        if (!strstr(em.text, cases[i].words)) fail_msg("'%s' lacks '%s'", em.text, cases[i].words);
    }
    struct loop_options o = options();
    (void)setup(state);
    script.stop_ns = fake.now_ns;
    o.advertise = "node-1.example.com:5000";
    assert_int_equal(run(&o, &em), 0);
    assert_string_equal(script.advertise, "tcp://node-1.example.com:5000");
}

static void test_no_such_host(void **state)
{
    struct loop_options o = options();
    struct errmsg em;
    (void)state;
    o.coordinator = "nohost:7071";
    fake.lookup_rc = ERR_NOTFOUND;
    assert_int_equal(run(&o, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "--coordinator: host 'x' does not resolve"));
    (void)setup(state);
    o = options();
    fake.lookup_rc = ERR_TIMEOUT; /* the name service may come back: the worker asks again */
    assert_int_equal(run(&o, &em), 0);
    assert_in_range(fake.n_sockets, 5, 7);
}

static void test_refused(void **state)
{
    struct loop_options o = options();
    struct errmsg em;
    (void)state;
    script.refuse = true;
    assert_int_equal(run(&o, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "refused: no"));
    (void)setup(state);
    script.version = 9;
    assert_int_equal(run(&o, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "version 9, this worker 2"));
    (void)setup(state);
    o.name = "";
    assert_int_equal(run(&o, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "--name: is empty"));
}

/* A worker that is told to leave ends in order, at once and with success. */
static void test_told_to_leave(void **state)
{
    struct loop_options o = options();
    struct errmsg em;
    (void)state;
    script.dismiss = true;
    assert_int_equal(run(&o, &em), 0);
    assert_int_equal(script.n_goodbye, 1);
    assert_in_range(script.n_heartbeat, 1, 2);
    assert_int_equal(script.n_commands, 0); /* it is nothing for the compute thread */
}

static void refuse_key(void)
{
    static uint32_t told;
    if (fake.n_sockets > CONTROL && told != fake.n_sockets) {
        told = fake.n_sockets;
        fake_event(told - 1, NET_EVENT_REFUSED);
    }
    on_poll();
}

static int no_connection(uint32_t sock, const struct net_frame *f, unsigned n)
{
    (void)sock;
    (void)f;
    (void)n;
    return ERR_AGAIN;
}

/* A worker with a key expects the coordinator's on each connection; where its own is not admitted,
 * it keeps trying, since it may be some day. */
static void test_keys(void **state)
{
    static const char coordinator[] = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
    char path[] = "/tmp/flotilla-key-XXXXXX";
    struct loop_options o = options();
    struct key_pair own;
    struct key expected, got;
    struct errmsg em = {0};
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(keys_make(&own, &em), 0);
    assert_int_equal(keys_write(path, &own, &em), 0);
    assert_true(key_parse(coordinator, &expected));
    o.key = path;
    assert_int_equal(run(&o, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "--coordinator-key"));
    o.coordinator_key = "short";
    assert_int_equal(run(&o, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "--coordinator-key: 'short'"));
    o.coordinator_key = coordinator;
    (void)setup(state);
    script.stop_ns = fake.now_ns + 10 * NS_PER_S;
    fake.on_poll = refuse_key;
    fake.on_send = no_connection;
    assert_int_equal(run(&o, &em), 0);
    assert_true(fake.secure);
    assert_in_range(fake.n_sockets, CONTROL + 3, CONTROL + 4); /* a new connection each 4 s */
    for (uint32_t i = CONTROL; i < fake.n_sockets; i++) {
        got = fake_expected(i);
        assert_true(key_eq(&got, &expected));
    }
    (void)unlink(path);
    (void)setup(state);
    assert_int_equal(run(&o, &em), ERR_CONF);
    assert_non_null(strstr(em.text, path));
}

/* Whichever send or receive fails, once, the worker goes on, and its Ready arrives. */
static void test_failing_once(void **state)
{
    static const int errors[] = {ERR_AGAIN, ERR_CLOSED, ERR_IO};
    struct loop_options o = options();
    struct errmsg em;
    for (uint32_t k = 1; k <= 60; k++)
        for (int e = 0; e < 3; e++) {
            (void)setup(state);
            script.ready_ns = fake.now_ns + 2 * NS_PER_S;
            script.stop_ns = fake.now_ns + 6 * NS_PER_S;
            fake.fail_send = k <= 30 ? k : 0;
            fake.fail_recv = k > 30 ? k - 30 : 0;
            fake.send_error = fake.recv_error = errors[e];
            assert_int_equal(run(&o, &em), 0);
            assert_true(script.n_ready >= 10);
            assert_in_range(script.n_heartbeat, 22, 26);
            assert_int_equal(fake.n_sockets, 2);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_quiet_life, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lost_ready_is_said_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dead_connection_is_made_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(test_new_connection_says_hello, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stopped_worker_makes_no_new_connection, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_data_links_off_this_machine, setup, teardown),
        cmocka_unit_test_setup_teardown(test_addresses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_such_host, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_told_to_leave, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failing_once, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
