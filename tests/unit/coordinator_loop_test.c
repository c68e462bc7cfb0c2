/* The coordinator's loop with a scripted core, scripted calls and a scripted network, in virtual
 * time: what it tells the core of lost time, which workers it answers and remembers, and how it
 * ends. */
#include "coordinator/loop.h"

#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "coordinator/setup.h"
#include "coordinator/shell.h"
#include "proto/wire.h"
#include "tests/lib/fake_net.h"
#include "tests/lib/printed.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MS NS_PER_MS
#define CLIENTS 0 /* sockets in the order in which they are opened */
#define WORKERS 1
#define RESULTS 2
#define ROUTES_A_WORKER 4u /* that the core may know, as in loop.c */

static struct script {
    bool ready, calls; /* the replica is ready; there are calls */
    uint64_t signals_ns[2];
    uint64_t freeze_ns, freeze_for_ns;
    uint64_t end_ns; /* the test's, if the loop does not end by itself */
    void (*on_poll)(void);
    /* seen */
    struct core_config config;
    uint32_t n_ticks, n_lost, n_from_worker, from_worker_at_lost, n_alive, n_assign;
    uint64_t lost_ns, stopped_ns, draining_ns;
    uint32_t n_polls, n_keys[3];
    char alive_route[16], assign_route[16];
    struct instance assign_to; /* the core sends an Assign there with the next tick */
    struct instance connect_to;
    char client_endpoint[NET_ENDPOINT_MAX], results[64];
} script;

static struct arena arena;
static struct buf out;

/* ---- the core ---- */

struct core {
    int unused;
};

static struct core the_core;
static struct action actions[2];
static struct msg_to_worker to_worker;

struct core *core_open(const struct core_config *config)
{
    script.config = *config;
    (void)snprintf(script.results, sizeof script.results, "%s", config->results_endpoint);
    return &the_core;
}

void core_close(struct core *c)
{
    (void)c;
}

static void act(struct actions *a, struct instance *to, enum to_worker type)
{
    to_worker = (struct msg_to_worker){
        .version = PROTO_VERSION,
        .type = type,
        .epoch = {7, 0, 1},
        .text = "tcp://127.0.0.1:9",
        .assign = {.n_pages = 1, .ctx = 16, .rows_max = 1, .logits_max = 1, .window = 1}};
    actions[0] = (struct action){.type = ACT_TO_WORKER, .to_worker = {*to, &to_worker}};
    actions[1] = (struct action){.type = ACT_LINK_OPEN,
                                 .link = {.epoch = {7, 0, 1}, .endpoint = "tcp://127.0.0.1:9"}};
    *a = (struct actions){.items = actions, .n = type == TO_CONNECT ? 2 : 1};
    *to = (struct instance){0, 0};
}

struct actions core_step(struct core *c, const struct event *e)
{
    struct actions a = {0};
    (void)c;
    switch (e->type) {
    case EV_TICK:
        script.n_ticks++;
        if (e->tick.lost_ns) {
            script.n_lost++;
            script.lost_ns = e->tick.lost_ns;
            script.from_worker_at_lost = script.n_from_worker;
        }
        if (script.assign_to.hi)
            act(&a, &script.assign_to, TO_ASSIGN);
        else if (script.connect_to.hi)
            act(&a, &script.connect_to, TO_CONNECT);
        break;
    case EV_FROM_WORKER: script.n_from_worker++; break;
    default: break;
    }
    return a;
}

bool core_serves(const struct core *c, uint32_t replica)
{
    (void)c;
    return replica == 0 && script.ready;
}

void core_status(struct core *c, struct msg_status *ret)
{
    static struct msg_replica_status replica;
    (void)c;
    replica.ready = script.ready;
    *ret = (struct msg_status){.ready = script.ready, .n_replicas = 1, .replicas = &replica};
}

/* ---- the rest of the coordinator ---- */

void calls__open(struct shell *s)
{
    (void)snprintf(script.client_endpoint, sizeof script.client_endpoint, "%s", s->client_endpoint);
}

void calls__close(struct shell *s)
{
    (void)s;
}

int drafts__open(struct shell *s, const int32_t *ends, uint32_t n_ends, struct errmsg *em)
{
    (void)s, (void)ends, (void)n_ends, (void)em;
    return 0;
}

void drafts__close(struct shell *s)
{
    (void)s;
}

struct net_sock *drafts__socket(const struct shell *s)
{
    (void)s;
    return NULL;
}

void drafts__take(struct shell *s)
{
    (void)s;
}

void drafts__count(struct shell *s)
{
    (void)s;
}

void drafts__tokens(struct shell *s, const struct action *a)
{
    (void)s, (void)a;
}

void drafts__end(struct shell *s, const struct action *a)
{
    (void)s, (void)a;
}

bool drafts__ask(struct shell *s, const struct action *a)
{
    (void)s, (void)a;
    return false;
}

void methods__take(struct shell *s)
{
    struct net_msg m;
    while (net_recv(s->clients, &m) == 0) net_msg_close(&m);
}

uint32_t methods__message_bytes(struct shell *s, uint32_t ctx)
{
    (void)s;
    (void)ctx;
    return LIMIT_CLIENT_BYTES;
}

void methods__text_done(struct shell *s, struct text *t)
{
    (void)s;
    (void)t;
}

bool calls__tokens(struct shell *s, const struct action *a)
{
    (void)s;
    (void)a;
    return false;
}

void calls__embedding(struct shell *s, const struct action *a)
{
    (void)s;
    (void)a;
}

void calls__end(struct shell *s, const struct action *a)
{
    (void)s;
    (void)a;
}

void calls__flush(struct shell *s)
{
    if (s->draining && !script.draining_ns) script.draining_ns = fake.now_ns;
}

void calls__tick(struct shell *s, uint64_t lost_ns)
{
    (void)s;
    (void)lost_ns;
}

void calls__stop(struct shell *s)
{
    (void)s;
    script.stopped_ns = fake.now_ns;
}

bool calls__any(const struct shell *s)
{
    (void)s;
    return script.calls;
}

int texts_open(struct net *net, struct offload **ret, struct errmsg *em)
{
    (void)net;
    (void)em;
    *ret = NULL;
    return 0;
}

void offload_close(struct offload *o)
{
    (void)o;
}

struct net_sock *offload_socket(struct offload *o)
{
    (void)o;
    return NULL;
}

void *offload_next(struct offload *o)
{
    (void)o;
    return NULL;
}

void texts_free(struct text *t)
{
    (void)t;
}

int metrics_open(const char *host, uint32_t port, struct metrics **ret, uint32_t *ret_port,
                 struct errmsg *em)
{
    (void)host;
    (void)em;
    *ret = NULL;
    *ret_port = port;
    return 0;
}

int gateway_open(const struct gateway_options *o, struct gateway **ret, uint32_t *ret_port,
                 struct errmsg *em)
{
    (void)o;
    (void)em;
    *ret = NULL;
    *ret_port = 0;
    return 0;
}

int gateway_reload(struct gateway *g, struct errmsg *em)
{
    (void)g;
    (void)em;
    return 0;
}

bool gateway_busy(struct gateway *g)
{
    (void)g;
    return false;
}

void gateway_drain(struct gateway *g)
{
    (void)g;
}

void gateway_close(struct gateway *g)
{
    (void)g;
}

int chat_open(const struct model_file *f, struct chat *ret, struct errmsg *em)
{
    (void)f;
    (void)em;
    *ret = (struct chat){.plain = NULL};
    return 0;
}

int chat_open_file(const struct model_file *f, const char *path, struct chat *ret,
                   struct errmsg *em)
{
    (void)path;
    return chat_open(f, ret, em);
}

void chat_close(struct chat *c)
{
    (void)c;
}

void metrics_close(struct metrics *m)
{
    (void)m;
}

void metrics_publish(struct metrics *m, const struct counters *c, const struct msg_status *s)
{
    (void)m;
    (void)c;
    (void)s;
}

uint32_t vocab_size(const struct vocab *v)
{
    (void)v;
    return 4;
}

bool vocab_is_eog(const struct vocab *v, int32_t id)
{
    (void)v;
    return id == 2;
}

/* ---- the network ---- */

static void from_version(uint32_t version, const char *route, uint64_t who, enum from_worker type)
{
    struct msg_from_worker m = {.version = version,
                                .instance = {1, who},
                                .type = type,
                                .hello = {.name = "w"},
                                .has_epoch = true,
                                .epoch = {7, 0, 1}};
    wire_put_from_worker(&m, &out);
    struct net_frame f[2] = {{route, strlen(route)}, {out.data, out.len}};
    fake_arrive(WORKERS, 0, f, 2);
}

static void from_worker(const char *route, uint64_t who, enum from_worker type)
{
    from_version(PROTO_VERSION, route, who, type);
}

/* Whether so much time has passed since it was last so, or since another test. */
static bool again(uint64_t *last_ns, uint64_t after_ns)
{
    if (fake.now_ns < *last_ns + after_ns && fake.now_ns >= *last_ns) return false;
    *last_ns = fake.now_ns;
    return true;
}

static int on_send(uint32_t sock, const struct net_frame *f, unsigned n)
{
    struct msg_to_worker m;
    struct errmsg em = {0};
    if (sock != WORKERS) return 0;
    assert_int_equal(n, 2);
    assert_int_equal(wire_get_to_worker(f[1].data, f[1].bytes, &arena, &m, &em), 0);
    char *route = m.type == TO_ALIVE ? script.alive_route : script.assign_route;
    script.n_alive += m.type == TO_ALIVE;
    script.n_assign += m.type == TO_ASSIGN;
    (void)snprintf(route, sizeof script.alive_route, "%.*s", (int)f[0].bytes,
                   (const char *)f[0].data);
    return 0;
}

static void on_poll(void)
{
    for (int i = 0; i < 2; i++)
        if (script.signals_ns[i] && fake.now_ns >= script.signals_ns[i]) {
            script.signals_ns[i] = 0;
            (void)raise(SIGTERM);
        }
    if (fake.now_ns >= script.end_ns) {
        (void)raise(SIGTERM);
        (void)raise(SIGTERM);
    }
    if (script.freeze_ns && fake.now_ns >= script.freeze_ns) {
        script.freeze_ns = 0;
        from_worker("a", 1, FROM_HEARTBEAT); /* waits in the kernel meanwhile */
        fake.now_ns += script.freeze_for_ns;
    }
    if (script.on_poll) script.on_poll();
}

static struct config config(void)
{
    static uint32_t chain = 2;
    return (struct config){.model = (char *)(uintptr_t) "/m",
                           .listen = (char *)(uintptr_t) "127.0.0.1",
                           .kv = (char *)(uintptr_t) "f16",
                           .policy = (char *)(uintptr_t) "auto",
                           .workers = 2,
                           .replicas = 1,
                           .chains = &chain,
                           .serving = 2,
                           .chunk = 16,
                           .prefix_cache = true,
                           .max_requests = 8,
                           .drain_s = 10,
                           .hwm = 64,
                           .connections = 1024};
}

int __wrap_setup_costs(const struct config *c, const struct weights *weights,
                       const struct machine_memory *here, struct setup_model *m, struct errmsg *em);

int __wrap_setup_costs(const struct config *c, const struct weights *weights,
                       const struct machine_memory *here, struct setup_model *m, struct errmsg *em)
{
    (void)c;
    (void)weights;
    (void)here;
    (void)em;
    m->costs = (struct room_costs){.layer_bytes = NULL};
    return 0;
}

int manifest_open(const struct manifest_options *o, struct manifest *ret, struct errmsg *em)
{
    (void)o;
    (void)em;
    *ret = (struct manifest){.identity = 1};
    return 0;
}

void manifest_close(struct manifest *m)
{
    (void)m;
}

int manifest_slice(const struct manifest *m, const struct weights *g, const struct arch_dims *d,
                   uint32_t layer_first, uint32_t layer_last, uint64_t *ret_hashes, uint32_t max,
                   uint32_t *ret_n, struct errmsg *em)
{
    (void)m;
    (void)g;
    (void)d;
    (void)layer_first;
    (void)layer_last;
    (void)max;
    (void)em;
    ret_hashes[0] = 3;
    *ret_n = 1;
    return 0;
}

static int setup(void **state)
{
    (void)state;
    fake_reset();
    fake.on_send = on_send;
    fake.on_poll = on_poll;
    script = (struct script){.ready = true, .end_ns = fake.now_ns + 30 * NS_PER_S};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    buf_close(&out);
    arena_close(&arena);
    return 0;
}

static int run(const struct config *c, struct errmsg *em)
{
    struct model_file m = {.path = (char *)(uintptr_t) "/m",
                           .dims = {.n_layers = 4, .hidden = 8, .vocab = 4, .ctx_train = 64}};
    *em = (struct errmsg){0};
    return loop_run(c, &m, NULL, em);
}

/* ---- time ---- */

static void test_lost_time_reaches_the_core(void **state)
{
    struct config c = config();
    struct errmsg em;
    (void)state;
    script.freeze_ns = fake.now_ns + 5 * NS_PER_S;
    script.freeze_for_ns = 7 * NS_PER_S;
    assert_int_equal(run(&c, &em), 0);
    assert_int_equal(script.n_lost, 1);
    assert_in_range(script.lost_ns / MS, 6900, 7100);
    assert_int_equal(script.from_worker_at_lost, 1); /* what had come was taken before */
    assert_in_range(script.n_ticks, 400, 500);
}

/* ---- workers ---- */

static void beat(void)
{
    static uint64_t last_ns;
    if (!again(&last_ns, 250 * MS)) return;
    from_worker("a", 1, FROM_HEARTBEAT);
}

static void test_heartbeats_are_answered(void **state)
{
    struct config c = config();
    struct errmsg em;
    (void)state;
    script.on_poll = beat;
    assert_int_equal(run(&c, &em), 0);
    assert_true(script.n_from_worker >= 100);
    assert_int_equal(script.n_alive, script.n_from_worker);
    assert_string_equal(script.alive_route, "a");
}

/* A worker serves; then strangers say Hello; then the core has something for the worker. */
static void strangers(void)
{
    static const struct instance worker = {1, 1};
    switch (script.n_polls++) {
    case 0: from_worker("real", 1, FROM_HELLO); break;
    case 1:
        script.ready = false;
        script.connect_to = worker;
        break;
    case 4: script.ready = true; break;
    case 6:
        for (uint64_t i = 0; i < 2000; i++) from_worker("forged", 100 + i, FROM_HELLO);
        break;
    case 100: script.assign_to = worker; break;
    default: break;
    }
}

static void hello_of_another_version(void)
{
    static uint64_t last_ns;
    if (!again(&last_ns, 250 * MS)) return;
    from_version(PROTO_VERSION + 1, "a", 1, FROM_HELLO);
}

/* The log tells of peers of another version, once in ten seconds, with both versions. */
static void test_another_version_is_logged(void **state)
{
    static const char line[] = "a worker from 127.0.0.1 speaks protocol version";
    struct config c = config();
    struct errmsg em;
    char text[4096], both[200];
    (void)state;
    script.on_poll = hello_of_another_version;
    script.end_ns = fake.now_ns + 15 * NS_PER_S;
    struct printed p = printed_begin(STDERR_FILENO);
    int rc = run(&c, &em);
    printed_end(&p, text, sizeof text);
    assert_int_equal(rc, 0);
    uint32_t n = 0;
    for (const char *at = text; (at = strstr(at, line)); at++) n++;
    assert_int_equal(n, 2);
    (void)snprintf(both, sizeof both, "%s %u, this coordinator %u: refused", line,
                   PROTO_VERSION + 1, PROTO_VERSION);
    assert_non_null(strstr(text, both));
}

static void test_serving_worker_keeps_its_route(void **state)
{
    struct config c = config();
    struct errmsg em;
    (void)state;
    script.on_poll = strangers;
    script.ready = false;
    assert_int_equal(run(&c, &em), 0);
    assert_int_equal(script.n_from_worker, 2001);
    assert_int_equal(script.n_assign, 1);
    assert_string_equal(script.assign_route, "real");
}

/* As many workers as there are routes have served, one after the other; then one more comes. */
static void many_served(void)
{
    uint32_t n = ROUTES_A_WORKER * script.config.max_workers;
    if (script.connect_to.hi || script.n_polls > n) return; /* it is told with the next tick */
    uint64_t who = ++script.n_polls;
    from_worker(who <= n ? "old" : "new", who, FROM_HELLO);
    *(who <= n ? &script.connect_to : &script.assign_to) = (struct instance){1, who};
}

static void test_a_newcomer_has_a_route(void **state)
{
    struct config c = config();
    struct errmsg em;
    (void)state;
    script.on_poll = many_served;
    assert_int_equal(run(&c, &em), 0);
    assert_int_equal(script.n_assign, 1);
    assert_string_equal(script.assign_route, "new");
}

/* ---- the end ---- */

static uint64_t lost_ns, back_ns; /* when the replica is lost, and ready again */

static void lose_it(void)
{
    script.ready = fake.now_ns < lost_ns || fake.now_ns >= back_ns;
}

static void test_running_answers_go_on(void **state)
{
    static const struct {
        bool ready, calls;
        uint32_t drain_s;
        uint64_t second_ms, least_ms, most_ms; /* second signal after the first; 0: none */
        uint64_t lost_ms, back_ms;             /* likewise; 0: it is not lost */
    } cases[] = {
        {true, true, 10, 0, 9900, 10300, 0, 0},      {true, true, 0, 0, 0, 200, 0, 0},
        {true, true, 10, 3000, 2900, 3300, 0, 0},    {true, false, 10, 0, 0, 200, 0, 0},
        {false, true, 10, 0, 0, 200, 0, 0},          {true, true, 10, 0, 9900, 10300, 500, 3000},
        {true, true, 10, 0, 5400, 5800, 500, 60000},
    };
    struct errmsg em;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config c = config();
        (void)setup(state);
        uint64_t first_ns = fake.now_ns + NS_PER_S;
        script.ready = cases[i].ready;
        script.calls = cases[i].calls;
        script.signals_ns[0] = first_ns;
        script.signals_ns[1] = cases[i].second_ms ? first_ns + cases[i].second_ms * MS : 0;
        c.drain_s = cases[i].drain_s;
        lost_ns = first_ns + cases[i].lost_ms * MS;
        back_ns = first_ns + cases[i].back_ms * MS;
        if (cases[i].lost_ms) script.on_poll = lose_it;
        assert_int_equal(run(&c, &em), 0);
        assert_in_range(fake.end_within_s, 1, 3);
        assert_in_range((script.stopped_ns - first_ns) / MS, cases[i].least_ms, cases[i].most_ms);
        if (cases[i].least_ms) assert_in_range(script.draining_ns - first_ns, 0, 200 * MS);
    }
}

/* ---- keys ---- */

static const struct key_pair own = {.public = {{8}}};

/* With a key of its own the coordinator has both contexts secured and says who may connect where.
 */
static void test_rules(void **state)
{
    struct config c = config();
    struct errmsg em;
    (void)state;
    script.end_ns = fake.now_ns;
    assert_int_equal(run(&c, &em), 0);
    assert_false(fake.secure);
    (void)setup(state);
    script.end_ns = fake.now_ns;
    c.key_file = (char *)(uintptr_t) "/k";
    c.own = own;
    key_add(&c.allowed, &(struct key){{3}}, KEY_WORKER);
    assert_int_equal(run(&c, &em), 0);
    assert_true(fake.secure);
    assert_int_equal(fake.allowed.n, 1);
    assert_true(key_eq(&script.config.key, &own.public));
    assert_int_equal(fake_rule(CLIENTS).roles, KEY_CLIENT | KEY_GATEWAY | KEY_ADMIN);
    assert_int_equal(fake_rule(WORKERS).roles, KEY_WORKER);
    assert_int_equal(fake_rule(RESULTS).roles, KEY_WORKER);
    key_list_close(&c.allowed);
}

/* SIGHUP reads the keys again; a file that is wrong changes nothing. */
static char reloaded[] = "/tmp/flotilla-reload-XXXXXX";

static void write_lists(const char *lists)
{
    FILE *f = fopen(reloaded, "we");
    assert_non_null(f);
    (void)fprintf(f, "model: /m\nworkers: 2\nkeys: {file: /k, %s}\n", lists);
    (void)fclose(f);
}

static void hang_up(void)
{
    static uint64_t last_ns;
    static uint32_t seen; /* keys of the list, in each second */
    if (!again(&last_ns, NS_PER_S)) return;
    script.n_keys[seen++ % 3] = (uint32_t)fake.allowed.n;
    if (seen == 2) write_lists("workers: [x]");
    (void)raise(SIGHUP);
}

static void test_reload(void **state)
{
    struct config c = config();
    struct errmsg em;
    (void)state;
    int fd = mkstemp(reloaded);
    assert_true(fd >= 0);
    (void)close(fd);
    c.key_file = (char *)(uintptr_t) "/k";
    c.own = own;
    c.path = reloaded;
    write_lists("workers: ['Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID']");
    script.on_poll = hang_up;
    script.end_ns = fake.now_ns + 2500 * MS;
    assert_int_equal(run(&c, &em), 0);
    assert_int_equal(script.n_keys[0], 0);
    assert_int_equal(script.n_keys[1], 1);
    assert_int_equal(script.n_keys[2], 1);
    (void)unlink(reloaded);
}

/* Another key speaks for worker 1: it gets no route to it, and the core hears nothing of that. */
static void impostor(void)
{
    static uint64_t last_ns;
    if (!again(&last_ns, 250 * MS)) return;
    bool first = script.n_from_worker == 0;
    fake.key = (struct key){{first ? 1 : 2}};
    from_worker(first ? "a" : "x", 1, FROM_HEARTBEAT);
}

static void test_impostor(void **state)
{
    struct config c = config();
    struct errmsg em;
    (void)state;
    script.on_poll = impostor;
    assert_int_equal(run(&c, &em), 0);
    assert_int_equal(script.n_from_worker, 1);
    assert_string_equal(script.alive_route, "a");
    assert_int_equal(script.n_alive, 1);
}

/* ---- what the file says ---- */

static void test_keys_reach_the_core(void **state)
{
    struct config c = config();
    struct errmsg em;
    (void)state;
    script.end_ns = fake.now_ns;
    c.max_sequences = 3;
    c.max_per_client = 2;
    c.prefix_cache = false;
    c.plaintext = true;
    assert_int_equal(run(&c, &em), 0);
    assert_int_equal(script.config.max_running, 3);
    assert_int_equal(script.config.max_per_client, 2);
    assert_false(script.config.share);
    assert_true(script.config.plaintext);
    (void)setup(state);
    script.end_ns = fake.now_ns;
    c = config();
    c.max_sequences = 9; /* of 8 live ones */
    assert_int_equal(run(&c, &em), 0);
    assert_int_equal(script.config.max_running, 8);
    assert_int_equal(script.config.max_per_client, 8);
    assert_true(script.config.share);
    assert_false(script.config.plaintext);
}

static void test_open_files(void **state)
{
    static const struct {
        uint64_t files;
        uint32_t clients; /* connections that are left for them, of which 1,024 are used; 0: the
                           * loop does not start */
    } cases[] = {{65536, 1024}, {1336, 1024}, {1335, 1335 - 56 - 10}, {128, 62}, {81, 0}};
    struct errmsg em;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config c = config();
        (void)setup(state);
        script.end_ns = fake.now_ns;
        fake.files_max = cases[i].files;
        int rc = run(&c, &em);
        if (cases[i].clients) {
            uint32_t most = cases[i].clients < 1024 ? cases[i].clients : 1024;
            assert_int_equal(rc, 0);
            assert_int_equal(fake_limits(CLIENTS)->peers_max, most);
        } else {
            assert_int_equal(rc, ERR_CONF);
            assert_int_equal(fake.end_within_s, 0); /* that would end it with status 0 */
            assert_non_null(strstr(em.text, "may open 81 files, and needs 82 for 2 workers"));
        }
    }
}

static void test_addresses(void **state)
{
    struct config c = config();
    struct errmsg em;
    (void)state;
    script.end_ns = fake.now_ns;
    c.listen = (char *)(uintptr_t) "0.0.0.0";
    c.client_port = 7070;
    c.hwm = 7;
    assert_int_equal(run(&c, &em), 0);
    assert_int_equal(fake_limits(CLIENTS)->hwm, 7);
    assert_string_equal(fake_endpoint(CLIENTS), "tcp://0.0.0.0:7070");
    assert_string_equal(fake_endpoint(WORKERS), "tcp://0.0.0.0:*");
    assert_string_equal(script.client_endpoint, "tcp://10.0.0.5:7070");
    assert_string_equal(script.results, "tcp://:7002");
    /* The same in IPv6. */
    (void)setup(state);
    script.end_ns = fake.now_ns;
    c.listen = (char *)(uintptr_t) "[::]";
    assert_int_equal(run(&c, &em), 0);
    assert_string_equal(fake_endpoint(CLIENTS), "tcp://[::]:7070");
    assert_string_equal(fake_endpoint(WORKERS), "tcp://[::]:*");
    assert_string_equal(script.client_endpoint, "tcp://[fd00::5]:7070");
    assert_string_equal(script.results, "tcp://:7002");
}

/* Whichever send or receive fails, once, the loop goes on. */
static void test_failing_once(void **state)
{
    static const int errors[] = {ERR_AGAIN, ERR_CLOSED, ERR_IO};
    struct config c = config();
    struct errmsg em;
    for (uint32_t k = 1; k <= 20; k++)
        for (int e = 0; e < 3; e++) {
            (void)setup(state);
            script.on_poll = beat;
            script.end_ns = fake.now_ns + 10 * NS_PER_S;
            fake.fail_send = k <= 10 ? k : 0;
            fake.fail_recv = k > 10 ? k - 10 : 0;
            fake.send_error = fake.recv_error = errors[e];
            assert_int_equal(run(&c, &em), 0);
            assert_true(script.n_from_worker >= 38);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lost_time_reaches_the_core, setup, teardown),
        cmocka_unit_test_setup_teardown(test_heartbeats_are_answered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_version_is_logged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_serving_worker_keeps_its_route, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_newcomer_has_a_route, setup, teardown),
        cmocka_unit_test_setup_teardown(test_running_answers_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rules, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reload, setup, teardown),
        cmocka_unit_test_setup_teardown(test_impostor, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys_reach_the_core, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_addresses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failing_once, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
