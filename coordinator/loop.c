/* A turn: results, then workers' messages, then a bounded number of clients', each through the core
 * and its actions carried out; then one Compose; then replies. */
#include "coordinator/loop.h"

#include "coordinator/setup.h"
#include "coordinator/shell.h"

#include "common/base/addr.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/log.h"
#include "common/base/machine.h"
#include "common/base/mem.h"
#include "common/base/process.h"
#include "common/base/progress.h"
#include "common/io/http.h"
#include "proto/wire.h"

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define TICK_NS (50 * NS_PER_MS)
#define PUBLISH_NS (200 * NS_PER_MS)
#define STALL_NS (200 * NS_PER_MS) /* a turn later than this did not run for that long */
#define RESULTS_A_TURN 256
#define WORKER_MESSAGES_A_TURN 64
#define DRAIN_MS 200                   /* that the last replies have to leave */
#define LOST_NS (5 * NS_PER_S)         /* after a loss, workers are expected to serve again */
#define END_S 2                        /* until the process ends whatever still runs */
#define ROUTE_KEPT_NS (600 * NS_PER_S) /* of a worker that has served, while it is silent */
#define VERSION_TOLD_NS (10 * NS_PER_S)
/* Open files: this process's own, then connections of each kind. */
#define OWN_FILES 48u
#define GATEWAY_FILES 32u     /* beside its connections */
#define PEERS_A_WORKER 4u     /* connections and routes, for each worker that the core may know */
#define WORKER_PEERS_LEAST 8u /* beside those that the file asks for */
#define RESULT_PEERS 8u       /* of a replica: its last stage, and those of earlier generations */
#define CLIENT_PEERS_LEAST 16u
/* Results of a stage that wait here, which a flood may make as large as results can be. The others
 * wait at the stage. */
#define RESULTS_WAITING 4

static atomic_uint signals; /* SIGTERM and SIGINT that came */
static atomic_bool hangup;  /* SIGHUP came: the keys are to be read again */
static atomic_bool hashing; /* the model is read, perhaps from a disk that does not answer */

static void on_signal(int number)
{
    (void)number;
    atomic_fetch_add(&signals, 1);
    if (atomic_load(&hashing)) process_end_within(END_S);
}

static void on_hangup(int number)
{
    (void)number;
    atomic_store(&hangup, true);
}

/* ---- tables ---- */

enum {
    POLL_RESULTS,
    POLL_WORKERS,
    POLL_TEXTS,
    POLL_CLIENTS,
    POLL_DRAFTS,
    POLL_LINKS
}; /* then LINK_POLLS a link */

void shell__open_tables(struct shell *s, uint32_t n_replicas, uint32_t max_workers)
{
    s->n_links = n_replicas;
    s->links = mem_zalloc(n_replicas * sizeof *s->links);
    for (uint32_t i = 0; i < n_replicas; i++) s->links[i].link = link_open(s->net, LIMIT_WINDOW);
    s->polls = mem_zalloc((POLL_LINKS + LINK_POLLS * n_replicas) * sizeof *s->polls);
    s->n_routes = PEERS_A_WORKER * max_workers;
    s->routes = mem_zalloc(s->n_routes * sizeof *s->routes);
    s->silent = mem_zalloc(s->config->max_requests * sizeof *s->silent);
}

void shell__close_tables(struct shell *s)
{
    for (uint32_t i = 0; i < s->n_links; i++) link_close(s->links[i].link);
    mem_free(s->links);
    mem_free(s->polls);
    mem_free(s->routes);
    mem_free(s->silent);
}

/* ---- routes to workers ---- */

/* The route of an instance: its own, or the least recently heard one of those that have proved
 * nothing. Anybody may say Hello; a worker that has served keeps its route. Where all have served,
 * which are more than the core can know at once, the least recently heard gives way. */
static struct worker_route *route_for(struct shell *s, struct instance instance)
{
    struct worker_route *stranger = NULL, *oldest = &s->routes[0];
    for (uint32_t i = 0; i < s->n_routes; i++) {
        struct worker_route *x = &s->routes[i];
        if (instance_eq(x->instance, instance)) return x;
        bool gives_way = !x->proved || s->now_ns >= x->heard_ns + ROUTE_KEPT_NS;
        if (gives_way && (!stranger || x->heard_ns < stranger->heard_ns)) stranger = x;
        if (x->heard_ns < oldest->heard_ns) oldest = x;
    }
    return stranger ? stranger : oldest;
}

/* False: it is another worker's instance, as its key tells. */
static bool learn_route(struct shell *s, struct instance instance, const struct key *key,
                        struct net_frame id)
{
    struct worker_route *w = route_for(s, instance);
    if (!instance_eq(w->instance, instance))
        *w = (struct worker_route){.instance = instance, .key = *key};
    if (!key_eq(&w->key, key)) return false;
    w->heard_ns = s->now_ns;
    w->route.n = id.bytes;
    memcpy(w->route.bytes, id.data, id.bytes);
    return true;
}

/* An Assign as it is sent: the core knows the model by its identity, the shell by its tensors. */
static void put_assign(struct shell *s, const struct msg_to_worker *m)
{
    struct errmsg em = {0};
    struct msg_to_worker whole = *m;
    struct msg_assign *a = &whole.assign;
    uint64_t hashes[LIMIT_SLICE_TENSORS];
    a->header_digest = s->manifest.header;
    a->tensor_hashes = hashes;
    if (manifest_slice(&s->manifest, s->model->weights, &s->model->dims, a->layer_first,
                       a->layer_last, hashes, LIMIT_SLICE_TENSORS, &a->n_tensors, &em) < 0)
        log_error("%s", em.text); /* the worker refuses a slice without hashes */
    wire_put_to_worker(&whole, &s->out);
}

static void send_to_worker(struct shell *s, struct instance to, const struct msg_to_worker *m)
{
    for (uint32_t i = 0; i < s->n_routes; i++) {
        struct worker_route *w = &s->routes[i];
        if (!instance_eq(w->instance, to) || !w->route.n) continue;
        if (m->type == TO_CONNECT) w->linked = m->epoch;
        if (m->type == TO_ASSIGN)
            put_assign(s, m);
        else
            wire_put_to_worker(m, &s->out);
        struct net_frame f[2] = {{w->route.bytes, w->route.n}, {s->out.data, s->out.len}};
        (void)net_send(s->workers, f, 2); /* a worker that is gone is found by its silence */
        return;
    }
}

/* A replica's generation is ready: a token has gone through each of its workers. */
static void prove_routes(struct shell *s, struct first_link *l)
{
    l->proved = true;
    for (uint32_t i = 0; i < s->n_routes; i++)
        s->routes[i].proved |= epoch_eq(s->routes[i].linked, l->epoch);
}

void shell__tell_version(struct shell *s, const char *who, const char *peer, uint32_t version)
{
    if (s->version_told_ns && s->now_ns < s->version_told_ns + VERSION_TOLD_NS) return;
    s->version_told_ns = s->now_ns;
    log_error("a %s from %s speaks protocol version %" PRIu32 ", this coordinator %u: refused", who,
              peer, version, PROTO_VERSION);
}

/* ---- the links to the first stages ---- */

static struct first_link *link_of(struct shell *s, struct epoch epoch)
{
    CHECK(epoch.replica < s->n_links);
    return &s->links[epoch.replica];
}

static void open_link(struct shell *s, struct epoch epoch, const char *endpoint,
                      const struct key *key)
{
    struct first_link *l = link_of(s, epoch);
    l->epoch = epoch;
    l->proved = false;
    link_connect(l->link, endpoint, key, (int)LIMIT_WINDOW + 2);
}

static void watch_link(struct shell *s, struct first_link *l, const struct net_poll *items)
{
    enum link_event happened;
    while ((happened = link_turn(l->link, items)) != LINK_QUIET) {
        struct event e = {.type = happened == LINK_UP ? EV_LINK_UP : EV_LINK_LOST,
                          .link = {l->epoch}};
        if (happened == LINK_LOST) log_info("the first stage: %s", link_why(l->link));
        shell__event(s, &e);
    }
}

/* The queue holds all Steps that may be in flight; a worker that answers Steps before they are sent
 * could fill it all the same, and loses the link. */
static void send_step(struct shell *s, const struct msg_step *m)
{
    wire_put_step(m, &s->out);
    struct net_frame f = {s->out.data, s->out.len};
    link_send(link_of(s, m->epoch)->link, &f, 1);
}

/* ---- actions ---- */

/* Nobody answers this ask. Where the request has asked before in the same event, that ask is over.
 */
static void note_silent(struct shell *s, const struct action *a)
{
    uint32_t i = 0;
    while (i < s->n_silent && s->silent[i].request != a->draft.request) i++;
    if (i == s->n_silent) s->n_silent++;
    CHECK(i < s->config->max_requests);
    s->silent[i] = (struct no_draft){a->draft.request, a->draft.serial, a->draft.first_pos};
}

bool shell__event(struct shell *s, struct event *e)
{
    uint64_t stops[LIMIT_STEP_LOGITS]; /* a result has at most so many tokens */
    size_t n_stops = 0;
    uint32_t n_silent = s->n_silent; /* of an event that this one is carried out within */
    e->now_ns = s->now_ns;
    struct actions actions = core_step(s->core, e);
    for (size_t i = 0; i < actions.n; i++) {
        const struct action *a = &actions.items[i];
        switch (a->type) {
        case ACT_TO_WORKER: send_to_worker(s, a->to_worker.instance, a->to_worker.msg); break;
        case ACT_LINK_OPEN: open_link(s, a->link.epoch, a->link.endpoint, &a->link.key); break;
        case ACT_LINK_CLOSE: link_disconnect(link_of(s, a->link.epoch)->link); break;
        case ACT_STEP: send_step(s, a->step); break;
        case ACT_TOKENS:
            CHECK(n_stops < LIMIT_STEP_LOGITS);
            drafts__tokens(s, a);
            if (calls__tokens(s, a)) stops[n_stops++] = a->tokens.request;
            break;
        case ACT_DRAFT:
            if (!drafts__ask(s, a)) note_silent(s, a);
            break;
        case ACT_EMBEDDING: calls__embedding(s, a); break;
        case ACT_END:
            drafts__end(s, a);
            calls__end(s, a);
            break;
        case ACT_ANSWER:
            s->answer = a->answer.status;
            (void)snprintf(s->answer_text, sizeof s->answer_text, "%s", a->answer.text);
            break;
        case ACT_NOTE: (a->loss ? log_warn : log_info)("%s", a->note); break;
        }
    }
    for (size_t i = 0; i < n_stops; i++) {
        struct event stop = {.type = EV_STOP, .request = {stops[i], ""}};
        shell__event(s, &stop);
    }
    while (s->n_silent > n_silent) {
        struct no_draft x = s->silent[--s->n_silent];
        struct event none = {.type = EV_DRAFT,
                             .draft = {x.request, x.serial, .first_pos = x.first_pos}};
        shell__event(s, &none);
    }
    return actions.awaited;
}

/* ---- messages ---- */

static void take_results(struct shell *s)
{
    struct net_msg m;
    for (int i = 0; i < RESULTS_A_TURN && net_recv(s->results, &m) == 0; i++) {
        struct errmsg em = {0};
        struct msg_result r;
        struct net_frame f = net_msg_frame(&m, 0);
        int rc = m.n == 1 ? wire_get_result(f.data, f.bytes, &s->arena, &r, &em) : ERR_PROTO;
        net_msg_close(&m);
        struct event e = {.type = EV_RESULT, .key = m.key, .result = &r};
        if (rc < 0)
            s->dropped++;
        else if (shell__event(s, &e))
            net_prove(&m);
    }
}

/* A worker that hears nothing makes a new connection, so it must hear something. */
static void say_alive(struct shell *s, struct instance to)
{
    struct msg_to_worker m = {.version = PROTO_VERSION, .type = TO_ALIVE};
    send_to_worker(s, to, &m);
}

static void take_workers(struct shell *s)
{
    struct net_msg m;
    for (int i = 0; i < WORKER_MESSAGES_A_TURN && net_recv(s->workers, &m) == 0; i++) {
        struct errmsg em = {0};
        struct msg_from_worker w;
        struct net_frame id = net_msg_frame(&m, 0);
        int rc = ERR_PROTO;
        if (m.n == 2 && !m.truncated && id.bytes <= ROUTE_BYTES) {
            struct net_frame f = net_msg_frame(&m, 1);
            rc = wire_get_from_worker(f.data, f.bytes, &s->arena, &w, &em);
        }
        if (rc < 0 || !learn_route(s, w.instance, &m.key, id)) {
            s->dropped++;
        } else {
            struct event e = {.type = EV_FROM_WORKER, .key = m.key, .from = {&w, m.peer}};
            if (w.version != PROTO_VERSION) shell__tell_version(s, "worker", m.peer, w.version);
            shell__event(s, &e);
            if (w.type == FROM_HEARTBEAT && w.version == PROTO_VERSION) say_alive(s, w.instance);
        }
        net_msg_close(&m);
    }
}

static void take_texts(struct shell *s)
{
    struct text *t;
    while ((t = offload_next(s->texts))) {
        methods__text_done(s, t);
        texts_free(t);
    }
}

static void tell_status(struct shell *s)
{
    bool ready = false;
    if (s->metrics && s->now_ns >= s->published_ns + PUBLISH_NS) {
        struct msg_status m;
        core_status(s->core, &m);
        m.messages_dropped += s->dropped;
        s->published_ns = s->now_ns;
        drafts__count(s);
        metrics_publish(s->metrics, &s->count, &m);
    }
    for (uint32_t i = 0; i < s->n_links; i++) {
        if (!core_serves(s->core, i)) continue;
        ready = true;
        if (!s->links[i].proved) prove_routes(s, &s->links[i]);
    }
    if (ready && !s->was_ready)
        log_stdout("ready client=%s%s%s", s->client_endpoint, s->gateway ? " http=" : "",
                   s->gateway ? s->http_url : "");
    s->was_ready = ready;
    if (ready) s->ready_ns = s->now_ns;
}

static void wait_for_input(struct shell *s, long wait_ms)
{
    struct net_poll *items = s->polls;
    items[POLL_RESULTS] = (struct net_poll){.sock = s->results};
    items[POLL_WORKERS] = (struct net_poll){.sock = s->workers};
    items[POLL_TEXTS] = (struct net_poll){.sock = offload_socket(s->texts)};
    items[POLL_CLIENTS] = (struct net_poll){.sock = s->clients};
    items[POLL_DRAFTS] = (struct net_poll){.sock = drafts__socket(s)};
    for (uint32_t i = 0; i < s->n_links; i++)
        link_poll(s->links[i].link, &items[POLL_LINKS + LINK_POLLS * i]);
    (void)net_poll(items, POLL_LINKS + LINK_POLLS * s->n_links, wait_ms);
}

void shell__turn(struct shell *s, uint64_t *next_tick_ns)
{
    const struct net_poll *items = s->polls;
    uint64_t before = clock_ns();
    long wait_ms = *next_tick_ns > before ? (long)((*next_tick_ns - before) / NS_PER_MS) + 1 : 0;
    wait_for_input(s, wait_ms);
    s->now_ns = clock_ns();
    uint64_t late = s->now_ns > *next_tick_ns ? s->now_ns - *next_tick_ns : 0;
    if (late > STALL_NS) shell__event(s, &(struct event){.type = EV_LATE});
    if (items[POLL_RESULTS].readable) take_results(s);
    if (items[POLL_WORKERS].readable) take_workers(s);
    for (uint32_t i = 0; i < s->n_links; i++)
        watch_link(s, &s->links[i], &items[POLL_LINKS + LINK_POLLS * i]);
    if (items[POLL_DRAFTS].readable) drafts__take(s);
    if (items[POLL_TEXTS].readable) take_texts(s);
    if (items[POLL_CLIENTS].readable) methods__take(s);
    if (s->now_ns >= *next_tick_ns) {
        /* Pending input was taken: what is still silent was so while this loop ran. */
        struct event e = {.type = EV_TICK, .tick = {late > STALL_NS ? late : 0}};
        shell__event(s, &e);
        calls__tick(s, e.tick.lost_ns);
        admission__tick(s);
        if (atomic_exchange(&hangup, false)) admission__reload(s);
        *next_tick_ns = s->now_ns + TICK_NS;
    }
    struct event compose = {.type = EV_COMPOSE};
    shell__event(s, &compose);
    calls__flush(s);
    tell_status(s);
}

/* ---- opening ---- */

/* One of the sockets that listen. */
struct listener {
    struct net *net;
    enum net_kind kind;
    struct net_limits limits;
    uint32_t port, roles; /* roles: of the keys that may connect */
};

static int bind_one(const struct shell *s, const struct listener *l, struct net_sock **ret,
                    char *ret_endpoint, struct errmsg *em)
{
    char endpoint[NET_ENDPOINT_MAX];
    int rc = net_socket(l->net, l->kind, l->limits, ret, em);
    if (rc < 0) return rc;
    net_admit(*ret, (struct net_rule){.roles = l->roles});
    if (l->port)
        (void)snprintf(endpoint, sizeof endpoint, "tcp://%s:%" PRIu32, s->config->listen, l->port);
    else
        (void)snprintf(endpoint, sizeof endpoint, "tcp://%s:*", s->config->listen);
    rc = net_bind(*ret, endpoint, em);
    return rc < 0 ? rc : net_bound(*ret, ret_endpoint, em);
}

/* A program that listens everywhere is reached at one address: that is what users are told. */
static void tell_reachable(char *endpoint, size_t size)
{
    struct addr bound, own;
    char host[ADDR_HOST_BYTES];
    if (!addr_split(endpoint, &bound) || !addr_is_any(bound.host)) return;
    bool v6 = bound.kind == ADDR_V6;
    if (net_own_address(v6, host, sizeof host) < 0)
        (void)snprintf(host, sizeof host, v6 ? "::1" : "127.0.0.1");
    if (!addr_split(host, &own)) return;
    own.has_port = bound.has_port;
    own.port = bound.port;
    addr_format(&own, endpoint, size);
}

/* What is left for clients and for connections by HTTP; each has half where it is too little. */
static void share_clients(struct shell *s, uint64_t left, uint32_t http, uint64_t max)
{
    const struct config *c = s->config;
    s->http_max = http <= left / 2 || http + c->connections <= left ? http : (uint32_t)left / 2;
    left -= s->http_max;
    s->clients_max = left < c->connections ? (uint32_t)left : c->connections;
    if (s->clients_max < c->connections)
        log_info("open files are limited to %" PRIu64 ": at most %" PRIu32
                 " connections of clients at once, not %" PRIu32 " (key 'limits.connections')",
                 max, s->clients_max, c->connections);
    if (s->http_max < http)
        log_info("open files are limited to %" PRIu64 ": at most %" PRIu32
                 " connections by HTTP at once, not %" PRIu32 " (key 'http.connections')",
                 max, s->http_max, http);
}

/* Shares the open files that this process may have: libzmq accepts no connection without one, and
 * its I/O thread then spins. */
static int share_files(struct shell *s, uint32_t *ret_workers, struct errmsg *em)
{
    const struct config *c = s->config;
    uint64_t max = net_files_max(), fixed = OWN_FILES + RESULT_PEERS * setup_max_replicas(c);
    uint32_t serve = c->serving;
    uint64_t most = PEERS_A_WORKER * setup_max_workers(c);
    if (c->metrics) fixed += HTTP_CONNECTIONS;
    if (c->http) fixed += GATEWAY_FILES;
    uint64_t least = serve + WORKER_PEERS_LEAST;
    if (max < fixed + least + CLIENT_PEERS_LEAST)
        return err_set(em, ERR_CONF,
                       "this process may open %" PRIu64 " files, and needs %" PRIu64 " for %" PRIu32
                       " workers and %u clients: raise the limit (ulimit -n)",
                       max, fixed + least + CLIENT_PEERS_LEAST, serve, CLIENT_PEERS_LEAST);
    uint32_t http = c->http ? c->http_connections : 0;
    bool room = max >= fixed + most + c->connections + http;
    uint64_t workers = room ? most : least, left = max - fixed - workers;
    if (workers < most)
        log_info("open files are limited to %" PRIu64 ": at most %" PRIu64
                 " connections of workers at once, not %" PRIu64,
                 max, workers, most);
    share_clients(s, left, http, max);
    *ret_workers = (uint32_t)workers;
    return 0;
}

static int bind_all(struct shell *s, char *ret_worker, char *ret_results, struct errmsg *em)
{
    const struct config *c = s->config;
    uint32_t worker_peers = 0,
             message = methods__message_bytes(s, setup_context(c, &s->model->dims));
    int rc = share_files(s, &worker_peers, em);
    /* One message of a client waits at a time: it may be large, and costs one wake-up. */
    const struct listener clients = {.net = s->client_net,
                                     .kind = NET_ROUTER,
                                     .limits = {.hwm = (int)c->hwm,
                                                .recv_hwm = 1,
                                                .frame_max = message,
                                                .message_max = message + LIMIT_CONTROL_BYTES,
                                                .peers_max = s->clients_max},
                                     .port = c->client_port,
                                     .roles = KEY_CLIENT | KEY_GATEWAY | KEY_ADMIN};
    const struct listener workers = {.net = s->net,
                                     .kind = NET_ROUTER,
                                     .limits = {.hwm = 256,
                                                .recv_hwm = 64,
                                                .frame_max = LIMIT_CONTROL_BYTES,
                                                .peers_max = worker_peers},
                                     .port = c->worker_port,
                                     .roles = KEY_WORKER};
    const struct listener results = {.net = s->net,
                                     .kind = NET_PULL,
                                     .limits = {.hwm = (int)LIMIT_WINDOW + 2,
                                                .recv_hwm = RESULTS_WAITING,
                                                .frame_max = LIMIT_RESULT_BYTES,
                                                .peers_max = RESULT_PEERS * setup_max_replicas(c)},
                                     .port = c->result_port,
                                     .roles = KEY_WORKER};
    if (rc == 0) rc = bind_one(s, &clients, &s->clients, s->client_endpoint, em);
    if (rc == 0) rc = bind_one(s, &workers, &s->workers, ret_worker, em);
    if (rc == 0) rc = bind_one(s, &results, &s->results, ret_results, em);
    return rc;
}

/* The model's chat templates, or the one that the cluster file names. */
static int open_templates(const struct config *c, const struct model_file *m, struct chat *ret,
                          struct errmsg *em)
{
    if (!c->chat_template) return chat_open(m, ret, em);
    int rc = chat_open_file(m, c->chat_template, ret, em);
    return rc < 0 ? err_wrap(em, rc == ERR_NOMEM ? rc : ERR_CONF, "key 'chat_template'") : 0;
}

/* A model whose templates cannot be used is served all the same; chats are told why. */
static int open_chat(struct shell *s, struct errmsg *em)
{
    s->talk = (struct conversation_model){.vocab = s->model->vocab,
                                          .why = s->no_chat.text,
                                          .ctx = s->ctx,
                                          .token_bytes = s->token_bytes};
    int rc = open_templates(s->config, s->model, &s->chat, &s->no_chat);
    if (rc == 0 && s->chat.plain) {
        s->talk.chat = &s->chat;
        return 0;
    }
    if (rc == 0)
        (void)err_set(&s->no_chat, ERR_NOTFOUND,
                      "the model's file has no chat template, and the cluster file names none "
                      "(key 'chat_template')");
    if (rc == ERR_NOMEM || s->config->chat_template) return err_set(em, rc, "%s", s->no_chat.text);
    log_info("chats are refused: %s", s->no_chat.text);
    return 0;
}

static int open_core(struct shell *s, const char *results_endpoint, uint64_t incarnation,
                     struct errmsg *em)
{
    const struct model_file *m = s->model;
    struct machine_memory here = machine_memory("");
    struct setup_model model = {.dims = &m->dims,
                                .path = m->path,
                                .digest = s->manifest.identity,
                                .header = s->manifest.header};
    int rc = setup_costs(s->config, m->weights, &here, &model, em);
    if (rc < 0) return rc;
    uint32_t n = vocab_size(m->vocab);
    int32_t *eog = mem_alloc(n * sizeof *eog);
    for (uint32_t i = 0; i < n; i++)
        if (vocab_is_eog(m->vocab, (int32_t)i)) eog[model.n_eog++] = (int32_t)i;
    model.eog = eog;
    struct core_config k = setup_core(s->config, &model, incarnation, results_endpoint);
    shell__open_tables(s, k.n_replicas, k.max_workers);
    s->core = core_open(&k);
    setup_close(&k, &model);
    rc = drafts__open(s, eog, model.n_eog, em);
    mem_free(eog);
    return rc;
}

static const char *model_name(const struct config *c, const struct model_file *m)
{
    const char *slash = strrchr(m->path, '/');
    return c->name ? c->name : slash ? slash + 1 : m->path;
}

/* HTTP knows no keys: where there are some, it stays on this machine. */
static const char *http_host(const struct config *c)
{
    return c->key_file && !addr_is_loopback(c->listen) ? "127.0.0.1" : c->listen;
}

static int open_gateway(struct shell *s, struct errmsg *em)
{
    const struct config *c = s->config;
    char key[KEY_TEXT_BYTES];
    struct addr at;
    uint32_t port = 0;
    key_format(&c->own.public, key);
    bool safe = c->http_api_keys && c->http_certificate; /* it has keys of its own, and encrypts */
    struct gateway_options o = {.endpoint = s->client_endpoint,
                                .keys = {c->key_file, c->key_file ? key : NULL},
                                .host = safe ? c->listen : http_host(c),
                                .api_keys = c->http_api_keys,
                                .certificate = c->http_certificate,
                                .key = c->http_key,
                                .cors = c->http_cors,
                                .port = c->http_port,
                                .connections = s->http_max,
                                .body_kib = c->http_body_kib,
                                .read_s = c->http_read_s,
                                .stall_s = c->http_stall_s};
    int rc = gateway_open(&o, &s->gateway, &port, em);
    if (rc < 0) return rc;
    char endpoint[NET_ENDPOINT_MAX] = "";
    if (addr_split(o.host, &at)) {
        at.has_port = true;
        at.port = (uint16_t)port;
        addr_format(&at, endpoint, sizeof endpoint);
        tell_reachable(endpoint, sizeof endpoint);
    }
    const char *host = strncmp(endpoint, "tcp://", 6) == 0 ? endpoint + 6 : endpoint;
    (void)snprintf(s->http_url, sizeof s->http_url, "http%s://%s", c->http_certificate ? "s" : "",
                   host);
    log_info("OpenAI's API at %s/v1", s->http_url);
    return 0;
}

static int open_all(struct shell *s, struct errmsg *em)
{
    char worker_endpoint[NET_ENDPOINT_MAX], results_endpoint[NET_ENDPOINT_MAX];
    const struct config *c = s->config;
    uint64_t incarnation;
    if (getrandom(&incarnation, sizeof incarnation, 0) != sizeof incarnation)
        return err_set(em, ERR_IO, "no random numbers");
    int rc = net_open(&s->net, em);
    if (rc == 0) rc = net_open(&s->client_net, em);
    if (rc == 0) rc = admission__open(s, em);
    if (rc == 0) rc = bind_all(s, worker_endpoint, results_endpoint, em);
    if (rc == 0) rc = texts_open(s->net, &s->texts, em);
    if (rc < 0) return rc;
    tell_reachable(s->client_endpoint, sizeof s->client_endpoint);
    tell_reachable(worker_endpoint, sizeof worker_endpoint);
    /* Workers know the host: it is the one under which they reach this process. */
    struct addr bound;
    char results[NET_ENDPOINT_MAX] = "";
    if (addr_split(results_endpoint, &bound))
        (void)snprintf(results, sizeof results, "tcp://:%u", bound.port);
    rc = open_core(s, results, incarnation, em);
    if (rc == 0) rc = open_chat(s, em);
    if (rc < 0) return rc;
    calls__open(s);
    uint32_t metrics_port = 0;
    const char *host = http_host(c);
    if (c->metrics) rc = metrics_open(host, c->metrics_port, &s->metrics, &metrics_port, em);
    if (rc < 0) return rc;
    if (s->metrics) log_info("metrics at http://%s:%" PRIu32 "/metrics", host, metrics_port);
    if (c->http) rc = open_gateway(s, em);
    if (rc < 0) return rc;
    log_stdout("listening client=%s worker=%s", s->client_endpoint, worker_endpoint);
    return 0;
}

static void close_all(struct shell *s)
{
    metrics_close(s->metrics);
    gateway_close(s->gateway);
    shell__close_tables(s);
    calls__close(s);
    core_close(s->core);
    drafts__close(s);
    offload_close(s->texts);
    chat_close(&s->chat);
    if (s->clients) net_sock_drain(s->clients, DRAIN_MS);
    net_sock_close(s->workers);
    net_sock_close(s->results);
    net_close(s->net);
    net_close(s->client_net);
    buf_close(&s->out);
    buf_close(&s->body);
    buf_close(&s->pieces);
    buf_close(&s->piece_bytes);
    arena_close(&s->arena);
    arena_close(&s->body_arena);
    manifest_close(&s->manifest);
    mem_free(s);
}

/* On the first signal running answers go on for a while, as far as there are workers to compute
 * them, now or within LOST_NS of a loss; their clients then go on at the next coordinator. A second
 * one ends at once. */
static bool goes_on(struct shell *s)
{
    unsigned n = atomic_load(&signals);
    if (n == 0) return true;
    if (!s->draining) {
        s->draining = true;
        if (s->gateway) gateway_drain(s->gateway);
        s->drain_until_ns = clock_ns() + s->config->drain_s * NS_PER_S;
        log_info("stops: running answers have %" PRIu32 " s, new ones are refused",
                 s->config->drain_s);
    }
    bool any = calls__any(s) || (s->gateway && gateway_busy(s->gateway));
    bool served = s->ready_ns && clock_ns() < s->ready_ns + LOST_NS;
    return n == 1 && clock_ns() < s->drain_until_ns && served && any;
}

static bool on_hashing(void *arg, uint64_t done, uint64_t total)
{
    char line[PROGRESS_LINE_BYTES];
    progress_line(arg, clock_ns(), done, total, line);
    if (*line) log_info("%s", line);
    return atomic_load(&signals) == 0;
}

/* Before any worker can be told what the model is. */
static int open_manifest(struct shell *s, const char *folder, struct errmsg *em)
{
    struct progress progress = {.what = "hashing the model"};
    struct manifest_options o = {.weights = s->model->weights,
                                 .folder = folder,
                                 .progress = on_hashing,
                                 .progress_arg = &progress};
    atomic_store(&hashing, true);
    int rc = manifest_open(&o, &s->manifest, em);
    atomic_store(&hashing, false);
    if (rc == 0 && s->manifest.notice[0]) log_info("%s", s->manifest.notice);
    return rc;
}

int loop_run(const struct config *config, const struct model_file *model, const char *manifests,
             struct errmsg *em)
{
    struct sigaction action = {.sa_handler = on_signal};
    atomic_store(&signals, 0);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    action.sa_handler = on_hangup;
    atomic_store(&hangup, false);
    (void)sigaction(SIGHUP, &action, NULL);
    struct shell *s = mem_zalloc(sizeof *s);
    s->config = config;
    s->model = model;
    s->name = model_name(config, model);
    int rc = open_manifest(s, manifests, em);
    if (rc == 0) rc = open_all(s, em);
    if (rc == 0) log_info("serves %s to %s", s->name, s->client_endpoint);
    cores_stay_on(0); /* beside the I/O threads: common/io/net.c says why */
    uint64_t next_tick_ns = clock_ns();
    while (rc == 0 && goes_on(s)) shell__turn(s, &next_tick_ns);
    if (rc == 0) {
        s->now_ns = clock_ns();
        calls__stop(s);
        log_info("ends");
        process_end_within(END_S); /* a prompt may be in the middle of being tokenised */
    }
    close_all(s);
    return rc == ERR_CANCELLED ? 0 : rc; /* stopped while the model was read */
}
