#include "worker/exec.h"

#include "common/base/addr.h"
#include "common/base/arena.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/prom.h"
#include "common/io/link.h"
#include "proto/gate.h"
#include "proto/wire.h"
#include "worker/calibrate.h"
#include "worker/stage_work.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define PAIR_HWM 64
#define BIND_TRIES 50 /* and BIND_PAUSE_MS between them */
#define BIND_PAUSE_MS 20
#define DATA_PEERS_MAX 4 /* one is the stage before; strangers shall not keep it out */
/* Steps that wait here: one to go on with while the next comes. The others wait at the stage
 * before, since a flood may make each as large as a Step of this epoch can be. */
#define STEPS_WAITING 2
#define PROGRESS_NS (200 * NS_PER_MS)
/* An idle thread wakes this often, so that the coordinator can tell it from one that hangs. */
#define IDLE_TURN_MS 100
/* A Step that is passed on may have more bytes than the one that came: fields that were left out
 * are written, and a timing is added. */
#define ENCODING_BYTES (128u * LIMIT_STEP_RUNS)

struct exec {
    struct exec_options o;
    struct net *net;
    struct net_sock *control; /* the control thread's end of the pair */
    pthread_t thread;
    atomic_bool stop;
    atomic_bool give_up;  /* the slice that is being loaded is no longer wanted */
    atomic_ullong moves;  /* goes up with each layer, loaded part and turn; read by any thread */
    pthread_mutex_t lock; /* guards `shared` and nothing else */
    pthread_mutex_t work_lock; /* held where `work` changes, and while its counters are read */
    struct {
        bool has_epoch, holds;
        bool loading;        /* what `assign` says, which stays as it is meanwhile */
        struct epoch newest; /* of all that were assigned */
        struct epoch epoch;
        struct msg_heartbeat heartbeat;
        struct msg_holding holding;
        uint32_t pages;
    } shared;
    /* What follows belongs to the compute thread. */
    struct net_sock *pair, *in;
    struct link *out; /* to the next stage, or to the coordinator */
    struct gate gate;
    struct msg_assign assign;
    uint64_t hashes[LIMIT_SLICE_TENSORS]; /* the assignment's tensor_hashes */
    struct stage_work *work;              /* NULL: no slice is loaded */
    struct arena arena;
    struct buf header;
    bool last;
    struct msg_speed speed;              /* what was measured last, if anything was */
    uint64_t idle_since_ns, progress_ns; /* progress_ns: when it was told last */
};

/* ---- telling the control thread ---- */

static void tell(struct exec *e, struct msg_from_worker *m)
{
    m->has_epoch = true;
    m->epoch = e->gate.epoch;
    struct net_frame f = {m, sizeof *m};
    (void)net_send(e->pair, &f, 1); /* full only when the control thread is gone */
}

static void fault(struct exec *e, bool downstream, const char *text)
{
    struct msg_from_worker m = {.type = FROM_FAULT, .downstream = downstream};
    (void)snprintf(m.text, sizeof m.text, "%s", text);
    tell(e, &m);
}

static void count_drop(struct exec *e)
{
    (void)pthread_mutex_lock(&e->lock);
    e->shared.heartbeat.messages_dropped++;
    (void)pthread_mutex_unlock(&e->lock);
}

/* ---- links ---- */

static void close_links(struct exec *e)
{
    link_disconnect(e->out);
    net_sock_close(e->in);
    e->in = NULL;
}

/* The port may be in use a little longer by the epoch before: libzmq closes sockets later, in a
 * thread of its own. */
static int bind_fixed(struct net_sock *s, const char *endpoint, struct errmsg *em)
{
    int rc = net_bind(s, endpoint, em);
    for (int i = 0; rc < 0 && i < BIND_TRIES; i++) {
        (void)net_poll(NULL, 0, BIND_PAUSE_MS);
        rc = net_bind(s, endpoint, em);
    }
    return rc;
}

/* The most bytes that the header of a Step of this epoch can have: token and page ids, each run's
 * other fields, bias and grammar, the closed requests, the timings. */
static uint64_t header_max(const struct msg_assign *a)
{
    uint64_t runs = a->rows_max < LIMIT_STEP_RUNS ? a->rows_max : LIMIT_STEP_RUNS;
    uint64_t table = a->n_pages < LIMIT_SEQ_PAGES ? a->n_pages : LIMIT_SEQ_PAGES;
    uint64_t pages = runs * table < LIMIT_STEP_PAGES ? runs * table : LIMIT_STEP_PAGES;
    if (a->n_window_pages) pages *= 2; /* a second table, which is no longer */
    uint64_t varint = 5, run = 256 + SAMPLING_BIASES_MAX * (varint + sizeof(float));
    run += LIMIT_GRAMMAR_BYTES;
    return a->rows_max * varint + pages * varint + runs * run + LIMIT_LIVE * sizeof(uint64_t) +
           LIMIT_STAGES * 64;
}

/* Opens the socket to which the stage before connects; at which endpoint, Ready tells. */
static int bind_in(struct exec *e, char *ret_endpoint, size_t size, struct errmsg *em)
{
    char endpoint[NET_ENDPOINT_MAX], bound[NET_ENDPOINT_MAX];
    struct addr at;
    bool fixed = e->o.advertise && addr_split(e->o.advertise, &at);
    int64_t frame =
        (int64_t)e->assign.rows_max * stage_work_width(e->work) * (int64_t)sizeof(float);
    struct net_limits limits = {.hwm = (int)e->assign.window + 2,
                                .recv_hwm = STEPS_WAITING,
                                .frame_max = frame > LIMIT_STEP_BYTES ? frame : LIMIT_STEP_BYTES,
                                .message_max = header_max(&e->assign) + (uint64_t)frame,
                                .peers_max = DATA_PEERS_MAX};
    int rc = net_socket(e->net, NET_PULL, limits, &e->in, em);
    if (rc < 0) return rc;
    net_admit(e->in, (struct net_rule){.only = e->assign.upstream});
    if (fixed)
        (void)snprintf(endpoint, sizeof endpoint, "tcp://%s:%u", e->o.listen, at.port);
    else
        (void)snprintf(endpoint, sizeof endpoint, "tcp://%s:*", e->o.listen);
    rc = fixed ? bind_fixed(e->in, endpoint, em) : net_bind(e->in, endpoint, em);
    if (rc == 0) rc = net_bound(e->in, bound, em);
    if (rc < 0) return rc;
    if (fixed)
        (void)snprintf(ret_endpoint, size, "%s", e->o.advertise);
    else if (addr_split(bound, &at))
        (void)snprintf(ret_endpoint, size, "tcp://:%u", at.port);
    return 0;
}

static void watch_link(struct exec *e, const struct net_poll *items)
{
    enum link_event event;
    while ((event = link_turn(e->out, items)) != LINK_QUIET) {
        struct msg_from_worker linked = {.type = FROM_LINKED};
        if (event == LINK_UP)
            tell(e, &linked);
        else
            fault(e, true, link_why(e->out));
    }
}

/* Hands over what e->header encodes and its frame. Ends the guard: libzmq copies what it sends, and
 * the link what has to wait. */
static void hand_on(struct exec *e, const void *body, size_t body_bytes)
{
    struct net_frame f[2] = {{e->header.data, e->header.len}, {body, body_bytes}};
    mem_guard_end();
    link_send(e->out, f, body_bytes ? 2 : 1);
}

/* ---- assignments ---- */

static bool on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct exec *e = arg;
    uint64_t now = clock_ns();
    atomic_fetch_add_explicit(&e->moves, 1, memory_order_relaxed);
    if (done == total || now - e->progress_ns >= PROGRESS_NS) {
        struct msg_from_worker m = {
            .type = FROM_LOAD_PROGRESS, .bytes_done = done, .bytes_total = total};
        e->progress_ns = now;
        tell(e, &m);
    }
    return !atomic_load(&e->stop) && !atomic_load(&e->give_up);
}

/* Under its lock, so that the metrics thread never sees one that is freed. */
static void set_work(struct exec *e, struct stage_work *work)
{
    (void)pthread_mutex_lock(&e->work_lock);
    e->work = work;
    (void)pthread_mutex_unlock(&e->work_lock);
}

/* A Hello that is said from now on promises no slice. */
static void close_work(struct exec *e)
{
    struct stage_work *work = e->work;
    (void)pthread_mutex_lock(&e->lock);
    e->shared.holds = false;
    e->shared.pages = 0;
    (void)pthread_mutex_unlock(&e->lock);
    set_work(e, NULL);
    stage_work_close(work);
}

static void set_loading(struct exec *e, bool loading)
{
    (void)pthread_mutex_lock(&e->lock);
    e->shared.loading = loading;
    (void)pthread_mutex_unlock(&e->lock);
}

/* This worker's threads, or as many of them as the coordinator lets it use. */
static unsigned threads_of(const struct exec *e, uint32_t most)
{
    return most && most < e->o.threads ? most : e->o.threads;
}

/* Whether a newer assignment of the same coordinator waits behind this one. */
static bool is_over(struct exec *e, struct epoch epoch)
{
    (void)pthread_mutex_lock(&e->lock);
    struct epoch newest = e->shared.newest;
    (void)pthread_mutex_unlock(&e->lock);
    return newest.incarnation == epoch.incarnation && newest.generation > epoch.generation;
}

static int load(struct exec *e, struct errmsg *em)
{
    if (e->o.off_machine && !e->assign.plaintext && !net_is_secure(e->net))
        return err_set(em, ERR_CONF,
                       "data links would leave this machine in plaintext: give the cluster keys, "
                       "listen on loopback, or set 'plaintext: true' in the cluster file");
    if (e->work && stage_work_fits(e->work, &e->assign)) {
        stage_work_reset(e->work);
        return 0;
    }
    set_loading(e, true); /* what is freed may be large: an assignment may come meanwhile */
    if (is_over(e, e->gate.epoch)) atomic_store(&e->give_up, true);
    close_work(e);
    struct stage_work_options o = {.assign = &e->assign,
                                   .threads = threads_of(e, e->assign.threads),
                                   .isa = e->o.isa,
                                   .models = e->o.models,
                                   .progress = on_progress,
                                   .progress_arg = e,
                                   .moves = &e->moves};
    struct stage_work *work = NULL;
    int rc = stage_work_open(&o, &work, em);
    set_loading(e, false);
    set_work(e, work);
    return rc;
}

/* Before the load begins: the next heartbeat tells the coordinator that the Assign has arrived. */
static void publish_epoch(struct exec *e)
{
    (void)pthread_mutex_lock(&e->lock);
    e->shared.has_epoch = true;
    e->shared.epoch = e->gate.epoch;
    e->shared.heartbeat =
        (struct msg_heartbeat){.messages_dropped = e->shared.heartbeat.messages_dropped};
    (void)pthread_mutex_unlock(&e->lock);
}

static void publish_holding(struct exec *e)
{
    struct msg_heartbeat h = {0};
    (void)pthread_mutex_lock(&e->lock);
    h.messages_dropped = e->shared.heartbeat.messages_dropped;
    e->shared.holds = e->work != NULL;
    e->shared.pages = e->work ? stage_work_pages(e->work) : 0;
    if (e->work) {
        stage_work_memory(e->work, &h);
        e->shared.holding = stage_work_holding(e->work);
    }
    e->shared.heartbeat = h;
    (void)pthread_mutex_unlock(&e->lock);
}

static void take_assign(struct exec *e, const struct msg_to_worker *m)
{
    struct errmsg em = {0};
    if (!gate_newer(&e->gate, m->epoch)) {
        count_drop(e);
        return;
    }
    close_links(e);
    gate_open(&e->gate, m->epoch);
    e->assign = m->assign;
    CHECK(m->assign.n_tensors <= LIMIT_SLICE_TENSORS);
    memcpy(e->hashes, m->assign.tensor_hashes, m->assign.n_tensors * sizeof e->hashes[0]);
    e->assign.tensor_hashes = e->hashes;
    publish_epoch(e);
    atomic_store(&e->give_up, false); /* whatever ends this load is told, unless it is given up */
    int rc = load(e, &em);
    publish_holding(e);
    if (rc < 0 && atomic_load(&e->give_up)) return; /* for a newer assignment, which waits */
    struct msg_from_worker ready = {.type = FROM_READY};
    if (rc == 0) rc = bind_in(e, ready.endpoint, sizeof ready.endpoint, &em);
    if (rc < 0) {
        close_links(e);
        fault(e, false, em.text);
        return;
    }
    e->last = stage_work_is_last(e->work);
    e->idle_since_ns = clock_ns();
    tell(e, &ready);
}

/* ---- what a layer takes ---- */

static bool not_stopped(void *arg)
{
    return !atomic_load(&((struct exec *)arg)->stop);
}

static bool is_measured(const struct msg_speed *s, const struct msg_calibrate *ask)
{
    return s->n_layer && s->header_digest == ask->header_digest && s->kv_type == ask->kv_type &&
           s->threads == ask->threads;
}

static void take_calibrate(struct exec *e, const struct msg_calibrate *ask)
{
    char path[2 * LIMIT_PATH_BYTES];
    struct errmsg em = {0};
    struct msg_from_worker m = {.type = FROM_SPEED};
    stage_work_path(e->o.models, ask->model_path, path, sizeof path);
    struct calibrate_options o = {.path = path,
                                  .header_digest = ask->header_digest,
                                  .kv_type = ask->kv_type,
                                  .threads = threads_of(e, ask->threads),
                                  .isa = e->o.isa,
                                  .folder = e->o.speeds,
                                  .goes_on = not_stopped,
                                  .goes_on_arg = e,
                                  .moves = &e->moves};
    if (!is_measured(&e->speed, ask)) {
        struct msg_speed none = {.header_digest = ask->header_digest, .kv_type = ask->kv_type};
        e->speed = none;
        if (calibrate(&o, &e->speed, &em) < 0) e->speed = none;
        e->speed.threads = ask->threads;
    }
    m.speed = e->speed;
    (void)snprintf(m.text, sizeof m.text, "%s", em.text);
    tell(e, &m);
}

static void take_command(struct exec *e)
{
    struct net_msg msg;
    while (net_recv(e->pair, &msg) == 0) {
        struct msg_to_worker m;
        struct net_frame f = net_msg_frame(&msg, 0);
        bool right = f.bytes == sizeof m; /* an empty message only wakes the thread */
        if (right) memcpy(&m, f.data, sizeof m);
        if (right && m.type == TO_ASSIGN && is_over(e, m.epoch)) {
            count_drop(e);
        } else if (right && m.type == TO_ASSIGN) {
            struct net_frame hashes = net_msg_frame(&msg, 1);
            CHECK(hashes.bytes == m.assign.n_tensors * sizeof e->hashes[0]);
            m.assign.tensor_hashes = hashes.data;
            take_assign(e, &m);
        }
        if (right && m.type == TO_CALIBRATE) take_calibrate(e, &m.calibrate);
        net_msg_close(&msg);
        if (right && m.type == TO_CONNECT && epoch_eq(m.epoch, e->gate.epoch) && e->in &&
            !link_is_open(e->out))
            link_connect(e->out, m.text, &m.key, (int)e->assign.window + 2);
    }
}

/* ---- Steps ---- */

static void count_step(struct exec *e, const struct msg_step *s, size_t bytes_in, size_t bytes_out)
{
    (void)pthread_mutex_lock(&e->lock);
    struct msg_heartbeat *h = &e->shared.heartbeat;
    CHECK(s->number == h->step_done + 1); /* the gate lets no others through */
    h->step_done = s->number;
    h->rows += s->rows;
    h->activation_bytes_in += bytes_in;
    h->activation_bytes_out += bytes_out;
    (void)pthread_mutex_unlock(&e->lock);
}

static void note_received(struct exec *e, uint64_t number)
{
    (void)pthread_mutex_lock(&e->lock);
    e->shared.heartbeat.step_received = number;
    (void)pthread_mutex_unlock(&e->lock);
}

/* Under the guard from the first line until the result is handed to the socket. */
static void run_step(struct exec *e, struct msg_step *s, const void *body, size_t body_bytes)
{
    mem_guard_begin();
    struct errmsg em = {0};
    struct stage_output out;
    uint64_t start = clock_ns();
    note_received(e, s->number);
    int rc = stage_work_step(e->work, s, body, &out, &em);
    if (rc < 0) { /* what follows would run over rows that are missing */
        mem_guard_end();
        fault(e, false, em.text);
        close_links(e);
        return;
    }
    uint64_t end = clock_ns();
    struct msg_timing t = {s->n_timings, end - start, start - e->idle_since_ns};
    size_t bytes_out = 0;
    if (e->last) {
        memcpy(out.result.timings, s->timings, s->n_timings * sizeof t);
        out.result.n_timings = s->n_timings;
        if (s->n_timings < LIMIT_STAGES) out.result.timings[out.result.n_timings++] = t;
        wire_put_result(&out.result, &e->header);
    } else {
        bytes_out = (size_t)s->rows * s->width * sizeof(float);
        s->frame_bytes = bytes_out;
        if (s->n_timings < LIMIT_STAGES) s->timings[s->n_timings++] = t;
        wire_put_step(s, &e->header);
    }
    count_step(e, s, body_bytes, bytes_out);
    hand_on(e, out.activations, bytes_out);
    e->idle_since_ns = clock_ns();
}

/* A malformed or foreign message is dropped and counted; the gap it leaves ends the epoch. */
static void take_data(struct exec *e)
{
    struct net_msg msg;
    if (net_recv(e->in, &msg) < 0) return;
    CHECK(e->work != NULL); /* an input link is open only while a slice is loaded */
    stage_work_wake(e->work);
    struct errmsg em = {0};
    struct msg_step s;
    struct net_frame header = net_msg_frame(&msg, 0);
    struct net_frame body = msg.n > 1 ? net_msg_frame(&msg, 1) : (struct net_frame){NULL, 0};
    int rc = msg.n > 2 ? ERR_PROTO : wire_get_step(header.data, header.bytes, &e->arena, &s, &em);
    if (rc == 0 && body.bytes != s.frame_bytes) rc = ERR_PROTO;
    enum gate_verdict v = rc == 0 ? gate_step(&e->gate, s.epoch, s.number) : GATE_STALE;
    if (v == GATE_TAKE) {
        net_prove(&msg);
        run_step(e, &s, body.data, body.bytes);
    } else if (v == GATE_GAP) {
        char text[128];
        (void)snprintf(text, sizeof text, "Step %" PRIu64 " came after %" PRIu64, s.number,
                       e->gate.last);
        fault(e, false, text);
        close_links(e);
    } else {
        count_drop(e);
    }
    net_msg_close(&msg);
}

static void *exec_main(void *arg)
{
    struct exec *e = arg;
    (void)pthread_setname_np(pthread_self(), "compute"); /* for ps and top */
    while (!atomic_load(&e->stop)) {
        struct net_poll items[2 + LINK_POLLS] = {{.sock = e->pair}, {.sock = e->in}};
        link_poll(e->out, items + 2);
        if (net_poll(items, 2 + LINK_POLLS, IDLE_TURN_MS) < 0) break;
        atomic_fetch_add_explicit(&e->moves, 1, memory_order_relaxed);
        watch_link(e, items + 2);
        if (items[1].readable && e->in) take_data(e);
        if (items[0].readable) take_command(e);
    }
    close_links(e);
    close_work(e);
    arena_close(&e->arena);
    buf_close(&e->header);
    link_close(e->out);
    net_sock_close(e->pair);
    return NULL;
}

/* ---- the control thread's side ---- */

int exec_open(struct net *net, const struct exec_options *o, struct exec **ret_exec,
              struct errmsg *em)
{
    struct exec *e = mem_zalloc(sizeof *e);
    struct net_limits limits = {.hwm = PAIR_HWM, .frame_max = 1 << 20};
    e->o = *o;
    e->net = net;
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_mutex_init(&e->work_lock, NULL);
    int rc = buf_reserve(&e->header, LIMIT_STEP_BYTES + ENCODING_BYTES);
    if (rc < 0) (void)err_set(em, rc, "no memory for an encoded Step");
    if (rc == 0) rc = net_pair(net, limits, &e->control, &e->pair, em);
    e->out = link_open(net, LIMIT_WINDOW);
    if (rc == 0 && pthread_create(&e->thread, NULL, exec_main, e) != 0)
        rc = err_set(em, ERR_AGAIN, "cannot start the compute thread");
    if (rc < 0) {
        link_close(e->out);
        net_sock_close(e->pair);
        net_sock_close(e->control);
        buf_close(&e->header);
        mem_free(e);
        return rc;
    }
    *ret_exec = e;
    return 0;
}

void exec_close(struct exec *e)
{
    if (!e) return;
    struct net_frame wake = {"", 0};
    atomic_store(&e->stop, true);
    (void)net_send(e->control, &wake, 1);
    (void)pthread_join(e->thread, NULL);
    net_sock_close(e->control);
    (void)pthread_mutex_destroy(&e->lock);
    (void)pthread_mutex_destroy(&e->work_lock);
    mem_free(e);
}

struct net_sock *exec_socket(struct exec *e)
{
    return e->control;
}

/* A load may take minutes: it is given up where another slice is wanted now. */
static void note_assigned(struct exec *e, const struct msg_to_worker *m)
{
    (void)pthread_mutex_lock(&e->lock);
    struct epoch *newest = &e->shared.newest;
    bool newer =
        m->epoch.incarnation != newest->incarnation || m->epoch.generation > newest->generation;
    if (newer) *newest = m->epoch;
    if (newer && e->shared.loading && !stage_work_alike(&e->assign, &m->assign))
        atomic_store(&e->give_up, true);
    (void)pthread_mutex_unlock(&e->lock);
}

bool exec_command(struct exec *e, const struct msg_to_worker *m)
{
    struct net_frame f[2] = {{m, sizeof *m},
                             {m->assign.tensor_hashes, m->assign.n_tensors * sizeof(uint64_t)}};
    if (net_send(e->control, f, m->type == TO_ASSIGN ? 2 : 1) < 0) return false;
    if (m->type == TO_ASSIGN) note_assigned(e, m);
    return true;
}

bool exec_next(struct exec *e, struct msg_from_worker *ret)
{
    struct net_msg msg;
    if (net_recv(e->control, &msg) < 0) return false;
    struct net_frame f = net_msg_frame(&msg, 0);
    bool right = f.bytes == sizeof *ret;
    if (right) memcpy(ret, f.data, sizeof *ret);
    net_msg_close(&msg);
    return right;
}

void exec_heartbeat(struct exec *e, struct msg_from_worker *ret)
{
    (void)pthread_mutex_lock(&e->lock);
    ret->type = FROM_HEARTBEAT;
    ret->has_epoch = e->shared.has_epoch;
    ret->epoch = e->shared.epoch;
    ret->heartbeat = e->shared.heartbeat;
    (void)pthread_mutex_unlock(&e->lock);
    ret->heartbeat.moves = atomic_load_explicit(&e->moves, memory_order_relaxed);
}

bool exec_holding(struct exec *e, struct msg_holding *ret)
{
    (void)pthread_mutex_lock(&e->lock);
    bool holds = e->shared.holds;
    *ret = e->shared.holding;
    (void)pthread_mutex_unlock(&e->lock);
    return holds;
}

uint32_t exec_pages(struct exec *e)
{
    (void)pthread_mutex_lock(&e->lock);
    uint32_t pages = e->shared.pages;
    (void)pthread_mutex_unlock(&e->lock);
    return pages;
}

void exec_metrics(struct exec *e, struct buf *out)
{
    (void)pthread_mutex_lock(&e->lock);
    const struct msg_heartbeat heartbeat = e->shared.heartbeat, *h = &heartbeat;
    uint32_t generation = e->shared.epoch.generation;
    (void)pthread_mutex_unlock(&e->lock);
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } all[] = {
        {"flotilla_worker_generation", "gauge",
         "Generation of the replica that this worker serves.", generation},
        {"flotilla_worker_steps", "gauge", "Number of the last Step done.", h->step_done},
        {"flotilla_worker_rows", "gauge", "Positions computed in this generation.", h->rows},
        {"flotilla_worker_read_bytes", "gauge", "Bytes read from the file for the slice.",
         h->read_bytes},
        {"flotilla_worker_weights_bytes", "gauge", "Bytes of weights in memory.", h->weights_bytes},
        {"flotilla_worker_kv_bytes", "gauge", "Bytes of keys and values in memory.", h->kv_bytes},
        {"flotilla_worker_activation_bytes_in", "gauge", "Bytes received from the stage before.",
         h->activation_bytes_in},
        {"flotilla_worker_activation_bytes_out", "gauge", "Bytes sent to the stage after.",
         h->activation_bytes_out},
        {"flotilla_worker_messages_dropped", "gauge",
         "Stale or malformed messages that were dropped.", h->messages_dropped},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        prom_head(out, all[i].name, all[i].type, all[i].help);
        prom_int(out, all[i].name, "", all[i].value);
    }
    /* Text of some thousand counters: no Step waits for it. */
    (void)pthread_mutex_lock(&e->work_lock);
    if (e->work) stage_work_metrics(e->work, out);
    (void)pthread_mutex_unlock(&e->work_lock);
}
