/* A turn: results, then workers' messages, then a bounded number of clients', each through the core
 * and its actions carried out; then one Compose; then replies. */
#include "coordinator/loop.h"

#include "coordinator/setup.h"
#include "coordinator/shell.h"

#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/log.h"
#include "common/base/machine.h"
#include "common/base/mem.h"
#include "common/base/progress.h"
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
#define DRAIN_MS 200

static atomic_bool asked_to_stop;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&asked_to_stop, true);
}

/* ---- routes to workers ---- */

static void learn_route(struct shell *s, struct instance instance, struct net_frame id)
{
    struct worker_route *w = &s->routes[0];
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) {
        struct worker_route *x = &s->routes[i];
        if (instance_eq(x->instance, instance)) {
            w = x;
            break;
        }
        if (x->heard_ns < w->heard_ns) w = x;
    }
    w->instance = instance;
    w->heard_ns = s->now_ns;
    w->route.n = id.bytes;
    memcpy(w->route.bytes, id.data, id.bytes);
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
    if (manifest_slice(&s->manifest, s->model->gguf, &s->model->dims, a->layer_first, a->layer_last,
                       hashes, LIMIT_SLICE_TENSORS, &a->n_tensors, &em) < 0)
        log_error("%s", em.text); /* the worker refuses a slice without hashes */
    wire_put_to_worker(&whole, &s->out);
}

static void send_to_worker(struct shell *s, struct instance to, const struct msg_to_worker *m)
{
    for (uint32_t i = 0; i < LIMIT_WORKERS; i++) {
        struct worker_route *w = &s->routes[i];
        if (!instance_eq(w->instance, to) || !w->route.n) continue;
        if (m->type == TO_ASSIGN)
            put_assign(s, m);
        else
            wire_put_to_worker(m, &s->out);
        struct net_frame f[2] = {{w->route.bytes, w->route.n}, {s->out.data, s->out.len}};
        (void)net_send(s->workers, f, 2); /* a worker that is gone is found by its silence */
        return;
    }
}

/* ---- the link to the first stage ---- */

static void close_link(struct shell *s)
{
    net_monitor_close(s->link, s->link_monitor);
    net_sock_close(s->link);
    s->link = s->link_monitor = NULL;
    s->link_up = false;
    s->step_n = 0;
}

static void link_event(struct shell *s, bool up)
{
    struct event e = {.type = up ? EV_LINK_UP : EV_LINK_LOST, .link = {s->link_epoch}};
    shell__event(s, &e);
}

static void open_link(struct shell *s, struct epoch epoch, const char *endpoint)
{
    struct errmsg em = {0};
    struct net_limits limits = {(int)LIMIT_WINDOW + 2, 1 << 20};
    close_link(s);
    s->link_epoch = epoch;
    int rc = net_socket(s->net, NET_PUSH, limits, &s->link, &em);
    if (rc == 0) rc = net_monitor(s->net, s->link, &s->link_monitor, &em);
    if (rc == 0) rc = net_connect(s->link, endpoint, &em);
    if (rc < 0) {
        log_error("%s", em.text);
        close_link(s);
        s->link_failed = true; /* told in the next turn: the core's actions are being walked */
    }
}

static void watch_link(struct shell *s)
{
    if (s->link_failed) {
        s->link_failed = false;
        link_event(s, false);
    }
    enum net_event e;
    while (s->link_monitor && (e = net_monitor_next(s->link_monitor)) != NET_EVENT_NONE) {
        if (e == NET_EVENT_CONNECTED && !s->link_up) {
            s->link_up = true;
            link_event(s, true);
        } else if (e == NET_EVENT_LOST) {
            close_link(s);
            link_event(s, false);
        }
    }
}

static void flush_steps(struct shell *s)
{
    while (s->step_n && s->link) {
        struct buf *b = &s->step_queue[s->step_at];
        struct net_frame f = {b->data, b->len};
        if (net_send(s->link, &f, 1) < 0) return;
        s->step_at = (s->step_at + 1) % LIMIT_WINDOW;
        s->step_n--;
    }
}

/* No send blocks; the core has at most a window of Steps in flight, so the queue holds them all. */
static void send_step(struct shell *s, const struct msg_step *m)
{
    struct buf *b = &s->step_queue[(s->step_at + s->step_n) % LIMIT_WINDOW];
    wire_put_step(m, b);
    s->step_n++;
    flush_steps(s);
}

/* ---- actions ---- */

void shell__event(struct shell *s, struct event *e)
{
    uint64_t stops[LIMIT_STEP_RUNS]; /* a result has at most so many runs */
    size_t n_stops = 0;
    e->now_ns = s->now_ns;
    struct actions actions = core_step(s->core, e);
    for (size_t i = 0; i < actions.n; i++) {
        const struct action *a = &actions.items[i];
        switch (a->type) {
        case ACT_TO_WORKER: send_to_worker(s, a->to_worker.instance, a->to_worker.msg); break;
        case ACT_LINK_OPEN: open_link(s, a->link.epoch, a->link.endpoint); break;
        case ACT_LINK_CLOSE: close_link(s); break;
        case ACT_STEP: send_step(s, a->step); break;
        case ACT_TOKENS:
            if (calls__tokens(s, a) && n_stops < LIMIT_STEP_RUNS)
                stops[n_stops++] = a->tokens.request;
            break;
        case ACT_END: calls__end(s, a); break;
        case ACT_NOTE: log_info("%s", a->note); break;
        }
    }
    for (size_t i = 0; i < n_stops; i++) {
        struct event stop = {.type = EV_STOP, .request = {stops[i], ""}};
        shell__event(s, &stop);
    }
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
        struct event e = {.type = EV_RESULT, .result = &r};
        if (rc < 0)
            s->dropped++;
        else
            shell__event(s, &e);
    }
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
        if (rc < 0) {
            s->dropped++;
        } else {
            struct event e = {.type = EV_FROM_WORKER, .from = {&w, m.peer}};
            learn_route(s, w.instance, id);
            shell__event(s, &e);
        }
        net_msg_close(&m);
    }
}

static void take_texts(struct shell *s)
{
    struct textjob *job;
    while ((job = textjobs_next(s->text))) {
        calls__text_done(s, job);
        textjob_free(job);
    }
}

static void tell_status(struct shell *s)
{
    struct msg_status m;
    core_status(s->core, &m);
    m.messages_dropped += s->dropped;
    if (s->metrics && s->now_ns >= s->published_ns + PUBLISH_NS) {
        s->published_ns = s->now_ns;
        metrics_publish(s->metrics, &s->count, &m);
    }
    if (m.ready && !s->was_ready) {
        (void)printf("ready client=%s\n", s->client_endpoint);
        (void)fflush(stdout);
    }
    s->was_ready = m.ready;
}

void shell__turn(struct shell *s, uint64_t *next_tick_ns)
{
    struct net_poll items[] = {
        {.sock = s->results},      {.sock = s->workers},
        {.sock = s->link_monitor}, {.sock = textjobs_socket(s->text)},
        {.sock = s->clients},      {.sock = s->step_n ? s->link : NULL, .want_write = true}};
    uint64_t before = clock_ns();
    long wait_ms = *next_tick_ns > before ? (long)((*next_tick_ns - before) / NS_PER_MS) + 1 : 0;
    (void)net_poll(items, 6, wait_ms);
    s->now_ns = clock_ns();
    uint64_t late = s->now_ns > *next_tick_ns ? s->now_ns - *next_tick_ns : 0;
    if (items[5].writable) flush_steps(s);
    if (items[0].readable) take_results(s);
    if (items[1].readable) take_workers(s);
    if (items[2].readable || s->link_failed) watch_link(s);
    if (items[3].readable) take_texts(s);
    if (items[4].readable) calls__take(s);
    if (s->now_ns >= *next_tick_ns) {
        /* Pending input was taken: what is still silent was so while this loop ran. */
        struct event e = {.type = EV_TICK, .tick = {late > STALL_NS ? late : 0}};
        shell__event(s, &e);
        calls__tick(s, e.tick.lost_ns);
        *next_tick_ns = s->now_ns + TICK_NS;
    }
    struct event compose = {.type = EV_COMPOSE};
    shell__event(s, &compose);
    calls__flush(s);
    tell_status(s);
}

/* ---- opening ---- */

static int bind_one(struct shell *s, struct net *net, enum net_kind kind, struct net_limits limits,
                    uint32_t port, struct net_sock **ret, char *ret_endpoint, struct errmsg *em)
{
    char endpoint[NET_ENDPOINT_MAX];
    int rc = net_socket(net, kind, limits, ret, em);
    if (rc < 0) return rc;
    if (port)
        (void)snprintf(endpoint, sizeof endpoint, "tcp://%s:%" PRIu32, s->config->listen, port);
    else
        (void)snprintf(endpoint, sizeof endpoint, "tcp://%s:*", s->config->listen);
    rc = net_bind(*ret, endpoint, em);
    return rc < 0 ? rc : net_bound(*ret, ret_endpoint, em);
}

/* The first slice and the last are the largest. */
static int check_slices(const struct config *c, const struct model_file *m, struct errmsg *em)
{
    uint32_t idx[LIMIT_SLICE_TENSORS], n, layers = m->dims.n_layers;
    uint32_t most = (layers + c->workers - 1) / c->workers;
    int rc = eng_slice_tensors(m->gguf, &m->dims, 0, most - 1, idx, LIMIT_SLICE_TENSORS, &n, em);
    if (rc == 0)
        rc = eng_slice_tensors(m->gguf, &m->dims, layers - most, layers - 1, idx,
                               LIMIT_SLICE_TENSORS, &n, em);
    return rc < 0 ? err_wrap(em, ERR_CONF, "key 'workers'") : 0;
}

int loop_check(const struct config *config, const struct model_file *model, struct errmsg *em)
{
    enum kv_type kv;
    uint64_t bytes;
    if (!eng_kv_parse(config->kv, &kv))
        return err_set(em, ERR_CONF, "key 'kv': '%s' is unknown (f32, f16, q8_0, q4_0)",
                       config->kv);
    int fits = eng_kv_check(&model->dims, kv, em);
    if (fits < 0) return err_wrap(em, ERR_CONF, "key 'kv'");
    if (config->workers > model->dims.n_layers)
        return err_set(em, ERR_CONF, "key 'workers': %" PRIu32 " workers for %" PRIu32 " layers",
                       config->workers, model->dims.n_layers);
    /* Also finds a missing tensor or an unsupported type before any worker is asked. */
    int rc = eng_slice_bytes(model->gguf, &model->dims, 0, model->dims.n_layers - 1, &bytes, em);
    return rc < 0 ? err_wrap(em, ERR_CONF, "%s", model->path) : check_slices(config, model, em);
}

static int open_core(struct shell *s, const char *results_endpoint, uint64_t incarnation,
                     struct errmsg *em)
{
    const struct model_file *m = s->model;
    struct machine_memory here = machine_memory("");
    struct setup_model model = {.dims = &m->dims, .path = m->path, .digest = s->manifest.identity};
    int rc = setup_costs(s->config, m->gguf, &m->dims, &here, &model.costs, em);
    if (rc < 0) return rc;
    uint32_t n = vocab_size(m->vocab);
    int32_t *eog = mem_alloc(n * sizeof *eog);
    for (uint32_t i = 0; i < n; i++)
        if (vocab_is_eog(m->vocab, (int32_t)i)) eog[model.n_eog++] = (int32_t)i;
    model.eog = eog;
    struct core_config k = setup_core(s->config, &model, incarnation, results_endpoint);
    s->core = core_open(&k);
    mem_free(eog);
    mem_free((void *)(uintptr_t)model.costs.layer_bytes);
    return 0;
}

static const char *model_name(const struct config *c, const struct model_file *m)
{
    const char *slash = strrchr(m->path, '/');
    return c->name ? c->name : slash ? slash + 1 : m->path;
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
    if (rc == 0)
        rc = bind_one(
            s, s->client_net, NET_ROUTER,
            (struct net_limits){.hwm = (int)c->hwm,
                                .frame_max = calls__message_bytes(s, setup_context(c, &s->model->dims))},
            c->client_port, &s->clients, s->client_endpoint, em);
    if (rc == 0)
        rc = bind_one(s, s->net, NET_ROUTER, (struct net_limits){256, LIMIT_CONTROL_BYTES},
                      c->worker_port, &s->workers, worker_endpoint, em);
    if (rc == 0)
        rc = bind_one(s, s->net, NET_PULL,
                      (struct net_limits){(int)LIMIT_WINDOW + 2, LIMIT_STEP_BYTES}, c->result_port,
                      &s->results, results_endpoint, em);
    if (rc == 0) rc = textjobs_open(s->net, s->model->vocab, &s->text, em);
    if (rc < 0) return rc;
    /* Workers know the host: it is the one under which they reach this process. */
    char results[NET_ENDPOINT_MAX + 8];
    (void)snprintf(results, sizeof results, "tcp://%s", strrchr(results_endpoint, ':'));
    rc = open_core(s, results, incarnation, em);
    if (rc < 0) return rc;
    calls__open(s);
    uint32_t metrics_port = 0;
    if (c->metrics) rc = metrics_open(c->listen, c->metrics_port, &s->metrics, &metrics_port, em);
    if (rc < 0) return rc;
    if (s->metrics) log_info("metrics at http://%s:%" PRIu32 "/metrics", c->listen, metrics_port);
    (void)printf("listening client=%s worker=%s\n", s->client_endpoint, worker_endpoint);
    (void)fflush(stdout);
    return 0;
}

static void close_all(struct shell *s)
{
    metrics_close(s->metrics);
    close_link(s);
    calls__close(s);
    core_close(s->core);
    textjobs_close(s->text);
    if (s->clients) net_sock_drain(s->clients, DRAIN_MS);
    net_sock_close(s->workers);
    net_sock_close(s->results);
    net_close(s->net);
    net_close(s->client_net);
    for (uint32_t i = 0; i < LIMIT_WINDOW; i++) buf_close(&s->step_queue[i]);
    buf_close(&s->out);
    buf_close(&s->body);
    arena_close(&s->arena);
    arena_close(&s->body_arena);
    manifest_close(&s->manifest);
    mem_free(s);
}

static bool on_hashing(void *arg, uint64_t done, uint64_t total)
{
    return progress_update(arg, done, total) && !atomic_load(&asked_to_stop);
}

/* Before any worker can be told what the model is. */
static int open_manifest(struct shell *s, const char *folder, struct errmsg *em)
{
    struct progress progress = {.what = "hashing the model"};
    struct manifest_options o = {.path = s->model->path,
                                 .gguf = s->model->gguf,
                                 .folder = folder,
                                 .progress = on_hashing,
                                 .progress_arg = &progress};
    int rc = manifest_open(&o, &s->manifest, em);
    if (rc == 0 && s->manifest.notice[0]) log_info("%s", s->manifest.notice);
    return rc;
}

int loop_run(const struct config *config, const struct model_file *model, const char *manifests,
             struct errmsg *em)
{
    struct sigaction action = {.sa_handler = on_signal};
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    struct shell *s = mem_zalloc(sizeof *s);
    s->config = config;
    s->model = model;
    s->name = model_name(config, model);
    int rc = open_manifest(s, manifests, em);
    if (rc == 0) rc = open_all(s, em);
    if (rc == 0) log_info("serves %s to %s", s->name, s->client_endpoint);
    cores_stay_on(0); /* beside the I/O threads: common/io/net.c says why */
    uint64_t next_tick_ns = clock_ns();
    while (rc == 0 && !atomic_load(&asked_to_stop)) shell__turn(s, &next_tick_ns);
    if (rc == 0) {
        s->now_ns = clock_ns();
        calls__stop(s);
        log_info("stops");
    }
    close_all(s);
    return rc == ERR_CANCELLED ? 0 : rc; /* stopped while the model was read */
}
