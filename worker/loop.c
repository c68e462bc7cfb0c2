#include "worker/loop.h"

#include "common/base/addr.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/machine.h"
#include "common/base/process.h"
#include "common/base/prom.h"
#include "common/engine/cpu.h"
#include "common/io/http.h"
#include "common/io/keys.h"
#include "proto/wire.h"
#include "worker/exec.h"

#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define HEARTBEAT_NS (250 * NS_PER_MS)
#define CPU_WAIT_NS NS_PER_S       /* how often the threads' waiting for a CPU is read */
#define DRAIN_MS 200               /* the Goodbye has so long to leave */
#define END_S 1                    /* and the compute thread to end, which may read or compute */
#define SILENT_NS (4 * NS_PER_S)   /* a connection on which nothing came for so long is made anew */
#define STALL_NS (200 * NS_PER_MS) /* a wait that took so much longer: this process was stopped */

static atomic_bool asked_to_stop;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&asked_to_stop, true);
}

struct loop {
    const struct loop_options *o;
    struct http *metrics; /* or NULL */
    struct net *net;
    struct net_sock *control, *monitor;
    struct addr coordinator;
    struct key coordinator_key; /* if this worker has a key */
    char listen[ADDR_TEXT_BYTES], advertise[ADDR_TEXT_BYTES];
    uint64_t heard_ns; /* the coordinator's last message, or when its connection was begun */
    bool heard;        /* it has sent a message in this process's life */
    bool told;         /* the log says that it is silent */
    bool refused_key;  /* the coordinator did not admit this worker's key on the last connection */
    struct exec *exec;
    struct instance instance;
    struct msg_hello hello;
    struct arena arena;
    struct buf out;
    bool refused;
    bool dismissed;                         /* the coordinator needs it no more */
    uint64_t cpu_wait_ns, cpu_wait_read_ns; /* the sum, and when it was read */
    struct msg_from_worker standing; /* the last Ready or Linked, repeated until Steps come */
    bool stands;                     /* there is one */
    bool measured;                   /* the log says what a layer takes */
    struct errmsg *em;
};

static void send_up(struct loop *l, struct msg_from_worker *m)
{
    m->version = PROTO_VERSION;
    m->instance = l->instance;
    wire_put_from_worker(m, &l->out);
    struct net_frame f = {l->out.data, l->out.len};
    if (!l->control) return;
    (void)net_send(l->control, &f, 1); /* not connected: the next Hello says it all again */
}

/* From this the coordinator chooses the size of the KV pool. */
static struct msg_memory memory_now(struct loop *l)
{
    struct machine_memory m = machine_memory("");
    return (struct msg_memory){.machine = m.machine,
                               .machine_free = m.machine_free,
                               .group = m.group,
                               .group_free = m.group_free,
                               .held = m.own,
                               .held_pages = exec_pages(l->exec)};
}

static void send_hello(struct loop *l)
{
    struct msg_from_worker m = {.type = FROM_HELLO, .hello = l->hello, .memory = memory_now(l)};
    m.hello.verifies = m.hello.embeds = true;
    m.hello.holds = exec_holding(l->exec, &m.hello.holding);
    send_up(l, &m);
}

/* Resident memory of this process, as the kernel counts it. */
static uint64_t resident_bytes(void)
{
    unsigned long long total, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &total, &resident) != 2) resident = 0;
    (void)fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* How long the threads of this process were ready to run and had no CPU, as the kernel counts it:
 * the second figure of each schedstat. 0 where the kernel does not count. */
static uint64_t cpu_wait_ns(void)
{
    unsigned long long sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return 0;
    for (struct dirent *d; (d = readdir(tasks));) {
        char path[64 + sizeof d->d_name];
        unsigned long long ran, waited;
        if (d->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", d->d_name);
        FILE *f = fopen(path, "re");
        if (!f) continue; /* the thread has ended */
        if (fscanf(f, "%llu %llu", &ran, &waited) == 2) sum += waited;
        (void)fclose(f);
    }
    (void)closedir(tasks);
    return (uint64_t)sum;
}

static void send_heartbeat(struct loop *l)
{
    struct msg_from_worker m = {0};
    uint64_t now = clock_ns();
    if (now - l->cpu_wait_read_ns >= CPU_WAIT_NS) {
        l->cpu_wait_ns = cpu_wait_ns();
        l->cpu_wait_read_ns = now;
    }
    exec_heartbeat(l->exec, &m);
    m.heartbeat.cpu_wait_ns = l->cpu_wait_ns;
    m.heartbeat.resident_bytes = resident_bytes();
    m.memory = memory_now(l);
    send_up(l, &m);
    /* The control connection may have broken and lost it. */
    if (l->stands && m.heartbeat.step_received == 0) send_up(l, &l->standing);
}

/* "tcp://:PORT" is the coordinator's own: it cannot know under which address it is reached. */
static void fill_host(const struct loop *l, char *endpoint, size_t size)
{
    struct addr its, full = l->coordinator;
    if (!addr_split(endpoint, &its) || its.host[0]) return;
    full.port = its.port;
    addr_format(&full, endpoint, size);
}

static void on_control(struct loop *l)
{
    struct net_msg msg;
    while (net_recv(l->control, &msg) == 0) {
        struct errmsg em = {0};
        if (l->told) log_info("the coordinator answers again");
        l->heard = true;
        l->told = l->refused_key = false;
        l->heard_ns = clock_ns();
        struct msg_to_worker m;
        struct net_frame f = net_msg_frame(&msg, 0);
        int rc = msg.n == 1 ? wire_get_to_worker(f.data, f.bytes, &l->arena, &m, &em) : ERR_PROTO;
        net_msg_close(&msg);
        if (rc < 0) {
            log_error("a message from the coordinator was dropped: %s", em.text);
        } else if (m.type == TO_REFUSE) {
            l->refused = true;
            (void)err_set(l->em, ERR_CONF, "refused: %s", m.text);
        } else if (m.version != PROTO_VERSION) {
            l->refused = true;
            (void)err_set(l->em, ERR_CONF,
                          "the coordinator speaks protocol version %" PRIu32 ", this worker %u",
                          m.version, PROTO_VERSION);
        } else if (m.type == TO_WHO) {
            send_hello(l);
        } else if (m.type == TO_LEAVE) {
            log_info("the coordinator needs this worker no more: %s", m.text);
            l->dismissed = true;
        } else if (m.type != TO_ALIVE) {
            if (m.type == TO_ASSIGN) l->stands = false;
            if (m.type == TO_ASSIGN)
                log_info("generation %" PRIu32 ": layers %" PRIu32 "-%" PRIu32 " of %s",
                         m.epoch.generation, m.assign.layer_first, m.assign.layer_last,
                         m.assign.model_path);
            if (m.type == TO_CONNECT) fill_host(l, m.text, sizeof m.text);
            if (!exec_command(l->exec, &m))
                log_error("the compute thread is far behind: a command was dropped");
        }
    }
}

static void log_speed(struct loop *l, const struct msg_from_worker *m)
{
    const struct msg_speed *s = &m->speed;
    if (l->measured && s->n_layer) return; /* told again, to another coordinator */
    l->measured = s->n_layer;
    if (s->n_layer == 0)
        log_warn("a layer could not be measured: %s", m->text);
    else
        log_info("a layer takes %.3f ms for a row, %.3f ms for %" PRIu32 "; the head %.3f ms",
                 (double)s->layer[0].ns / 1e6, (double)s->layer[s->n_layer - 1].ns / 1e6,
                 s->layer[s->n_layer - 1].rows, (double)s->head[0].ns / 1e6);
}

static void on_exec(struct loop *l)
{
    struct msg_from_worker m;
    while (exec_next(l->exec, &m)) {
        if (m.type == FROM_FAULT) log_error("%s", m.text);
        if (m.type == FROM_SPEED) log_speed(l, &m);
        if (m.type == FROM_READY) {
            struct msg_from_worker h = {0};
            exec_heartbeat(l->exec, &h);
            log_info("ready: read %.1f MiB, weights %.1f MiB, KV %.1f MiB",
                     (double)h.heartbeat.read_bytes / (1 << 20),
                     (double)h.heartbeat.weights_bytes / (1 << 20),
                     (double)h.heartbeat.kv_bytes / (1 << 20));
        }
        send_up(l, &m);
        if (m.type == FROM_READY) send_heartbeat(l);
        if (m.type == FROM_READY || m.type == FROM_LINKED) {
            l->standing = m;
            l->stands = true;
        } else if (m.type == FROM_FAULT) {
            l->stands = false;
        }
    }
}

static void on_monitor(struct loop *l)
{
    enum net_event e;
    while ((e = net_monitor_next(l->monitor)) != NET_EVENT_NONE) {
        if (e == NET_EVENT_CONNECTED) send_hello(l);
        if (e != NET_EVENT_REFUSED) continue;
        if (!l->refused_key)
            log_warn("%s does not admit the key of %s: it must be in the cluster file's list "
                     "'keys.workers'. This worker keeps trying",
                     l->o->coordinator, l->o->key);
        l->refused_key = true;
    }
}

/* ---- the connection ---- */

static void close_control(struct loop *l)
{
    net_monitor_close(l->control, l->monitor);
    net_sock_close(l->control);
    l->control = l->monitor = NULL;
}

static int open_control(struct loop *l, struct errmsg *em)
{
    char endpoint[ADDR_TEXT_BYTES];
    struct net_limits limits = {.hwm = 64, .frame_max = LIMIT_CONTROL_BYTES};
    addr_format(&l->coordinator, endpoint, sizeof endpoint);
    l->heard_ns = clock_ns();
    int rc = net_socket(l->net, NET_DEALER, limits, &l->control, em);
    if (rc == 0) rc = net_monitor(l->net, l->control, &l->monitor, em);
    if (rc == 0 && l->o->key) net_expect(l->control, &l->coordinator_key);
    if (rc == 0) rc = net_connect(l->control, endpoint, em);
    if (rc < 0) close_control(l);
    return rc;
}

/* A connection may be dead without this end knowing: the other host lost power, or something
 * between the two has forgotten it. libzmq makes a new one only when the old one breaks, and never
 * looks up a name again; so whatever the reason is, a new socket is tried. */
static void check_silence(struct loop *l)
{
    struct errmsg em = {0};
    int rc = l->control ? net_lookup(l->control, &em) : 0;
    if (rc == ERR_NOTFOUND && !l->heard) {
        l->refused = true;
        (void)err_set(l->em, ERR_CONF, "--coordinator: %s", em.text);
        return;
    }
    if (clock_ns() - l->heard_ns < SILENT_NS) return;
    if (!l->told && !l->refused_key)
        log_warn("no answer from %s: %s", l->o->coordinator,
                 rc < 0 && rc != ERR_AGAIN ? em.text
                 : l->o->key               ? "is it there, and is --coordinator-key its key?"
                                           : "trying new connections until there is one");
    l->told = true;
    close_control(l);
    if (open_control(l, &em) < 0) log_error("%s", em.text);
}

static void turn(struct loop *l, uint64_t *next_heartbeat_ns)
{
    uint64_t now = clock_ns();
    if (now >= *next_heartbeat_ns) {
        send_heartbeat(l);
        *next_heartbeat_ns = now + HEARTBEAT_NS;
    }
    struct net_poll items[] = {
        {.sock = l->control}, {.sock = exec_socket(l->exec)}, {.sock = l->monitor}};
    long wait_ms = (long)((*next_heartbeat_ns - now) / NS_PER_MS) + 1;
    if (net_poll(items, 3, wait_ms) < 0) return;
    uint64_t waited_ns = clock_ns() - now, most_ns = (uint64_t)wait_ms * NS_PER_MS + STALL_NS;
    if (waited_ns > most_ns) l->heard_ns += waited_ns;
    if (items[2].readable) on_monitor(l);
    if (items[0].readable) on_control(l);
    if (items[1].readable) on_exec(l);
    check_silence(l); /* after what had come was taken */
}

static int introduce(struct loop *l, struct errmsg *em)
{
    const struct kern *kern;
    int rc = cpu_kern(l->o->isa, &kern, em);
    if (rc < 0) return rc;
    if (getrandom(&l->instance, sizeof l->instance, 0) != sizeof l->instance)
        return err_set(em, ERR_IO, "no random numbers");
    char host[32] = "worker";
    (void)gethostname(host, sizeof host - 1);
    if (l->o->name && !l->o->name[0]) return err_set(em, ERR_CONF, "--name: is empty");
    if (l->o->name && strlen(l->o->name) >= sizeof l->hello.name)
        return err_set(em, ERR_CONF, "--name: longer than %u bytes", LIMIT_NAME_BYTES - 1);
    if (l->o->name)
        (void)snprintf(l->hello.name, sizeof l->hello.name, "%s", l->o->name);
    else
        (void)snprintf(l->hello.name, sizeof l->hello.name, "%s-%d", host, (int)getpid());
    (void)snprintf(l->hello.isa, sizeof l->hello.isa, "%s", kern->name);
    l->hello.threads = l->o->threads;
    l->hello.pid = (uint32_t)getpid();
    return 0;
}

/* On the HTTP server's thread. */
static void metrics_text(void *arg, struct buf *out)
{
    exec_metrics(((struct loop *)arg)->exec, out);
}

static int open_metrics(struct loop *l, struct errmsg *em)
{
    struct addr at;
    char host[ADDR_TEXT_BYTES];
    uint32_t bound;
    if (!l->o->metrics) return 0;
    int rc = addr_parse(l->o->metrics, &at, em);
    if (rc == 0 && !at.has_port) rc = err_set(em, ERR_CONF, "'%s' is not HOST:PORT", l->o->metrics);
    if (rc == 0)
        rc = http_open(at.host, at.port, "/metrics", PROM_CONTENT_TYPE, metrics_text, l,
                       &l->metrics, &bound, em);
    addr_format_host(&at, host, sizeof host);
    if (rc == 0) log_info("metrics at http://%s:%" PRIu32 "/metrics", host, bound);
    return rc < 0 ? err_wrap(em, ERR_CONF, "--metrics") : 0;
}

/* The addresses of the command line; an error names the option. */
static int read_addresses(struct loop *l, struct errmsg *em)
{
    struct addr advertise;
    if (addr_parse_port(l->o->coordinator, &l->coordinator, em) < 0)
        return err_wrap(em, ERR_CONF, "--coordinator");
    enum addr_kind kind = l->coordinator.kind;
    bool local = addr_is_loopback(l->coordinator.host);
    const char *listen = l->o->listen ? l->o->listen
                         : local      ? (kind == ADDR_V6 ? "[::1]" : "127.0.0.1")
                                      : (kind == ADDR_V4 ? "0.0.0.0" : "[::]");
    int rc = net_listen_address(listen, l->listen, sizeof l->listen, em);
    /* A name may have addresses of both kinds: [::] serves both, but some machines lack IPv6. */
    if (rc < 0 && !l->o->listen && kind == ADDR_NAME)
        rc = net_listen_address("0.0.0.0", l->listen, sizeof l->listen, em);
    if (rc < 0) return err_wrap(em, ERR_CONF, "--listen");
    if (!l->o->advertise) return 0;
    if (addr_parse_port(l->o->advertise, &advertise, em) < 0)
        return err_wrap(em, ERR_CONF, "--advertise");
    if (addr_is_any(advertise.host))
        return err_set(em, ERR_CONF,
                       "--advertise: '%s' is every address: other workers need one that leads here",
                       l->o->advertise);
    addr_format(&advertise, l->advertise, sizeof l->advertise);
    return 0;
}

static int open_keys(struct loop *l, struct errmsg *em)
{
    struct key_pair own;
    if (!l->o->key && !l->o->coordinator_key) return 0;
    if (!l->o->key || !l->o->coordinator_key)
        return err_set(em, ERR_CONF, "--key and --coordinator-key go together");
    if (!key_parse(l->o->coordinator_key, &l->coordinator_key))
        return err_set(em, ERR_CONF,
                       "--coordinator-key: '%.60s' is no public key: 40 characters, as the "
                       "coordinator's log and flotilla keygen tell them",
                       l->o->coordinator_key);
    if (keys_read(l->o->key, &own, em) < 0) return err_wrap(em, ERR_CONF, "--key");
    int rc = net_secure(l->net, &own, em);
    explicit_bzero(&own, sizeof own);
    return rc;
}

static int open_all(struct loop *l, struct errmsg *em)
{
    (void)net_files_max();
    int rc = read_addresses(l, em);
    if (rc < 0) return rc;
    struct exec_options e = {.threads = l->o->threads,
                             .isa = l->o->isa,
                             .listen = l->listen,
                             .advertise = l->advertise[0] ? l->advertise : NULL,
                             .models = l->o->models,
                             .speeds = l->o->speeds,
                             .off_machine = !addr_is_loopback(l->listen)};
    rc = introduce(l, em);
    if (rc == 0) rc = net_open(&l->net, em);
    if (rc == 0) rc = open_keys(l, em);
    if (rc == 0) rc = exec_open(l->net, &e, &l->exec, em);
    if (rc == 0) rc = open_control(l, em);
    if (rc == 0) rc = open_metrics(l, em);
    return rc == ERR_IO ? ERR_CONF : rc;
}

int loop_run(const struct loop_options *o, struct errmsg *em)
{
    struct loop l = {.o = o, .em = em};
    struct sigaction action = {.sa_handler = on_signal};
    atomic_store(&asked_to_stop, false);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    int rc = open_all(&l, em);
    if (rc == 0) log_info("%s joins %s", l.hello.name, o->coordinator);
    uint64_t next_heartbeat_ns = 0;
    while (rc == 0 && !atomic_load(&asked_to_stop) && !l.refused && !l.dismissed)
        turn(&l, &next_heartbeat_ns);
    if (l.refused) rc = ERR_CONF;
    if (rc == 0) {
        struct msg_from_worker bye = {.type = FROM_GOODBYE};
        send_up(&l, &bye);
        log_info("%s leaves", l.hello.name);
    }
    http_close(l.metrics);
    net_monitor_close(l.control, l.monitor);
    if (l.control) net_sock_drain(l.control, DRAIN_MS);
    if (rc == 0) process_end_within(END_S);
    exec_close(l.exec);
    net_close(l.net);
    arena_close(&l.arena);
    buf_close(&l.out);
    return rc;
}
