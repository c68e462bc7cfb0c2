/* `up`: a whole cluster on this machine, as separate processes, until ^C.
 *
 * One loop over the pipes from the children and the signals (a descriptor, so that none is missed
 * between a check and a wait). A worker that ends is started again, after a pause that doubles each
 * time; one that ends before the cluster was ever ready would end again: then `up` ends with its
 * reason. Where the coordinator ends, so does `up`: the next one would have other ports. */
#include "coordinator/cli/cmd.h"
#include "coordinator/cli/up_file.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/engine/engine.h"
#include "coordinator/core/route.h"
#include "proto/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAUSE_MOST_S 30
#define SETTLED_S 60 /* a worker that ran so long begins with the first pause again */
#define STOP_S 5

#define WORKERS_MOST 64u /* on one machine */

struct child {
    char name[16];
    pid_t pid; /* 0: not running */
    int log;   /* its stderr; -1: closed */
    char line[2048];
    size_t n;
    char reason[512]; /* its last line that was no plain information */
    uint64_t started_ns, restart_ns;
    uint32_t pause_s;
};

struct up {
    const char *model, *kv, *isa, *pre, *policy, *draft, *draft_len;
    uint32_t workers, replicas, threads, ctx, kv_tokens, chunk, replica_wait, max_requests;
    bool replica_wait_given, verbose, no_restart;
    struct opt_list keys; /* KEY=VALUE of the cluster file */
    char bin[4096];       /* folder of the programs */
    char join[256];       /* where workers find the coordinator; empty: it does not listen yet */
    struct child children[1 + WORKERS_MOST]; /* the coordinator, then the workers */
    uint32_t n_workers;                      /* of all replicas */
    sigset_t mask_before;
    int signals, from_coordinator;
    char line[512]; /* of the coordinator's stdout */
    size_t n;
    bool served, stopping;
};

/* ---- children ---- */

static int find_programs(struct up *u, struct errmsg *em)
{
    ssize_t n = readlink("/proc/self/exe", u->bin, sizeof u->bin - 1);
    char *slash = n > 0 ? (u->bin[n] = 0, strrchr(u->bin, '/')) : NULL;
    if (!slash) return err_set(em, ERR_IO, "cannot find this program's folder");
    *slash = 0;
    return 0;
}

/* stdin and stdout are taken over where they are not -1. A child ends when this process does. */
static int spawn(struct up *u, struct child *c, const char *program, char *const *args, int in,
                 int out, struct errmsg *em)
{
    char path[sizeof u->bin + 64];
    int log[2];
    (void)snprintf(path, sizeof path, "%s/%s", u->bin, program);
    if (pipe2(log, O_CLOEXEC) != 0) return err_set(em, ERR_IO, "pipe: %s", strerror(errno));
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        (void)close(log[0]);
        (void)close(log[1]);
        return err_set(em, ERR_IO, "fork: %s", strerror(errno));
    }
    if (pid > 0) {
        (void)close(log[1]);
        (void)fcntl(log[0], F_SETFL, O_NONBLOCK);
        c->pid = pid;
        c->log = log[0];
        c->n = 0;
        c->reason[0] = 0;
        c->started_ns = clock_ns();
        return 0;
    }
    (void)setpgid(0, 0); /* ^C is this process's to pass on */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    (void)sigprocmask(SIG_SETMASK, &u->mask_before, NULL);
    if (in >= 0) (void)dup2(in, STDIN_FILENO);
    if (out >= 0) (void)dup2(out, STDOUT_FILENO);
    (void)dup2(log[1], STDERR_FILENO);
    (void)execv(path, args);
    (void)dprintf(STDERR_FILENO, "%s: %s\n", path, strerror(errno));
    _exit(127);
}

static void write_file(const struct up *u, struct buf *out)
{
    struct up_file f = {0};
    static const char *const ports[] = {"ports.clients", "ports.workers", "ports.results",
                                        "ports.metrics", "ports.http"};
    for (size_t i = 0; i < sizeof ports / sizeof ports[0]; i++) up_file_number(&f, ports[i], 0);
    up_file_number(&f, "workers", u->workers);
    if (u->replicas > 1) up_file_number(&f, "replicas", u->replicas);
    up_file_number(&f, "chunk", u->chunk);
    if (u->kv) up_file_string(&f, "kv", u->kv);
    if (u->pre) up_file_string(&f, "pre", u->pre);
    if (u->policy) up_file_string(&f, "policy", u->policy);
    if (u->draft) up_file_quoted(&f, "draft", u->draft);
    if (u->draft_len) up_file_string(&f, "draft_len", u->draft_len);
    if (u->ctx) up_file_number(&f, "ctx", u->ctx);
    if (u->kv_tokens) up_file_number(&f, "kv_tokens", u->kv_tokens);
    if (u->max_requests) up_file_number(&f, "max_requests", u->max_requests);
    if (u->replica_wait_given) up_file_number(&f, "replica_wait", u->replica_wait);
    up_file_write(&f, &u->keys, out);
}

/* The model's path goes on the command line: its bytes need not be UTF-8. The coordinator, which
 * has the same folder, makes it absolute. The file is smaller than a pipe. */
static int start_coordinator(struct up *u, struct errmsg *em)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        return err_set(em, ERR_IO, "pipe: %s", strerror(errno));
    char *args[] = {"flotilla-coordinator",      "--config", "-", "--model",
                    (char *)(uintptr_t)u->model, NULL};
    (void)snprintf(u->children[0].name, sizeof u->children[0].name, "coordinator");
    int rc = spawn(u, &u->children[0], "flotilla-coordinator", args, in[0], out[1], em);
    (void)close(in[0]);
    (void)close(out[1]);
    struct buf file = {0};
    write_file(u, &file);
    if (rc == 0 && write(in[1], file.data, file.len) != (ssize_t)file.len && errno != EPIPE)
        rc = err_set(em, ERR_IO, "the coordinator's stdin: %s", strerror(errno));
    buf_close(&file);
    (void)close(in[1]);
    (void)fcntl(out[0], F_SETFL, O_NONBLOCK);
    u->from_coordinator = out[0];
    return rc;
}

static int start_worker(struct up *u, struct child *c, struct errmsg *em)
{
    char threads[16];
    uint32_t each = pool_cores() / u->n_workers;
    (void)snprintf(threads, sizeof threads, "%" PRIu32, u->threads ? u->threads : each ? each : 1);
    char *args[] = {"flotilla-worker",
                    "--coordinator",
                    u->join,
                    "--name",
                    c->name,
                    "--threads",
                    threads,
                    u->isa ? "--isa" : NULL,
                    (char *)(uintptr_t)u->isa,
                    NULL};
    c->restart_ns = 0;
    return spawn(u, c, "flotilla-worker", args, -1, -1, em);
}

static int start_workers(struct up *u, struct errmsg *em)
{
    int rc = 0;
    log_text("workers join at %s", u->join);
    for (uint32_t i = 1; i <= u->n_workers && rc == 0; i++) {
        struct child *c = &u->children[i];
        (void)snprintf(c->name, sizeof c->name, "w%" PRIu32, i);
        rc = start_worker(u, c, em);
    }
    return rc;
}

/* ---- what children say ---- */

/* "2026-01-31 23:59:59.999 info program: text" (common/base/log.h). */
static bool is_info(const char *line)
{
    static const char level[] = " info ";
    size_t at = strlen("2026-01-31 23:59:59.999");
    return strlen(line) > at && strncmp(line + at, level, strlen(level)) == 0;
}

/* The text alone of a log line; any other line whole. */
static const char *text_of(const char *line)
{
    size_t stamp = strlen("2026-01-31 23:59:59.999");
    const char *colon = strlen(line) > stamp && line[4] == '-' ? strstr(line + stamp, ": ") : NULL;
    return colon ? colon + 2 : line;
}

static void show(const struct up *u, struct child *c)
{
    c->line[c->n] = 0;
    c->n = 0;
    bool info = is_info(c->line);
    if (!info) (void)snprintf(c->reason, sizeof c->reason, "%.500s", text_of(c->line));
    if (!info || u->verbose) log_text("%s: %s", c->name, c->line);
}

static void read_log(const struct up *u, struct child *c)
{
    char block[4096];
    ssize_t n = 0;
    while (c->log >= 0 && (n = read(c->log, block, sizeof block)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (block[i] != '\n') c->line[c->n++] = block[i];
            if (block[i] == '\n' || c->n == sizeof c->line - 1) show(u, c);
        }
    if (c->log < 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    if (c->n) show(u, c);
    (void)close(c->log);
    c->log = -1;
}

/* line: "tcp://HOST:PORT", and perhaps " http=URL". */
static void say_next(char *line)
{
    char *http = strstr(line, " http=");
    const char *address = line;
    if (http) *http = 0;
    log_text("%s generate --cluster %s --prompt 'Once upon a time'", program_invocation_name,
             address);
    log_text("%s status --cluster %s", program_invocation_name, address);
    if (http)
        log_text("curl %s/v1/completions -d '{\"prompt\": \"Once upon a time\"}'",
                 http + strlen(" http="));
}

static int coordinator_says(struct up *u, struct errmsg *em)
{
    char *worker = strstr(u->line, " worker=");
    if (u->stopping) return 0;
    if (strncmp(u->line, "listening ", 10) == 0 && worker && !u->join[0]) {
        (void)snprintf(u->join, sizeof u->join, "%s", worker + strlen(" worker="));
        return start_workers(u, em);
    }
    if (u->served || strncmp(u->line, "ready client=", 13) != 0) return 0;
    u->served = true;
    log_stdout("%s", u->line);
    say_next(u->line + 13);
    return 0;
}

static int read_coordinator(struct up *u, struct errmsg *em)
{
    char block[512];
    ssize_t n = read(u->from_coordinator, block, sizeof block);
    if (n == 0) { /* it ends, or prints no more */
        (void)close(u->from_coordinator);
        u->from_coordinator = -1;
    }
    int rc = 0;
    for (ssize_t i = 0; i < n && rc == 0; i++) {
        if (block[i] != '\n' && u->n < sizeof u->line - 1) {
            u->line[u->n++] = block[i];
        } else if (block[i] == '\n') {
            u->line[u->n] = 0;
            u->n = 0;
            rc = coordinator_says(u, em);
        }
    }
    return rc;
}

/* ---- their ends ---- */

static void describe(int status, char *ret, size_t size)
{
    if (WIFSIGNALED(status))
        (void)snprintf(ret, size, "killed by signal %d, %s", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    else
        (void)snprintf(ret, size, "exit status %d", WEXITSTATUS(status));
}

static int ended(struct up *u, struct child *c, int status, struct errmsg *em)
{
    char how[64];
    bool coordinator = c == &u->children[0];
    int code = WIFEXITED(status) && WEXITSTATUS(status) == CMD_USAGE ? ERR_CONF : ERR_CLOSED;
    describe(status, how, sizeof how);
    if (coordinator || !u->served)
        return err_set(em, code, "%s ended %s(%s)%s%s", c->name,
                       u->served ? "" : "before the cluster was ready ", how,
                       c->reason[0] ? ": " : "", c->reason);
    if (u->no_restart || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        log_text("worker %s ended (%s) and is not started again", c->name, how);
        return 0;
    }
    uint64_t now = clock_ns();
    bool settled = now - c->started_ns >= SETTLED_S * NS_PER_S;
    c->pause_s = settled || !c->pause_s ? 1 : c->pause_s * 2;
    if (c->pause_s > PAUSE_MOST_S) c->pause_s = PAUSE_MOST_S;
    c->restart_ns = now + c->pause_s * NS_PER_S;
    log_text("worker %s ended (%s); it is started again in %" PRIu32 " s", c->name, how,
             c->pause_s);
    return 0;
}

static int reap(struct up *u, struct errmsg *em)
{
    int rc = 0, status;
    for (uint32_t i = 0; i <= u->n_workers; i++) {
        struct child *c = &u->children[i];
        if (c->pid <= 0 || waitpid(c->pid, &status, WNOHANG) != c->pid) continue;
        c->pid = 0;
        read_log(u, c);
        if (c->log >= 0) (void)close(c->log); /* a process of its own may hold the other end */
        c->log = -1;
        if (rc == 0 && !u->stopping) rc = ended(u, c, status, em);
    }
    return rc;
}

static int restart(struct up *u, struct errmsg *em)
{
    int rc = 0;
    uint64_t now = clock_ns();
    for (uint32_t i = 1; i <= u->n_workers && rc == 0; i++) {
        struct child *c = &u->children[i];
        if (c->restart_ns && c->restart_ns <= now) rc = start_worker(u, c, em);
    }
    return rc;
}

/* ---- the loop ---- */

static int take_signals(struct up *u, struct errmsg *em)
{
    struct signalfd_siginfo s;
    int rc = 0;
    while (rc == 0 && read(u->signals, &s, sizeof s) == (ssize_t)sizeof s) {
        if (s.ssi_signo == SIGCHLD)
            rc = reap(u, em);
        else
            u->stopping = true;
    }
    return rc;
}

/* Waits until something happens, at most until `until_ns`, and takes it. */
static int turn(struct up *u, uint64_t until_ns, struct errmsg *em)
{
    struct pollfd fds[3 + WORKERS_MOST];
    for (uint32_t i = 0; i <= u->n_workers; i++) {
        if (u->children[i].restart_ns && u->children[i].restart_ns < until_ns)
            until_ns = u->children[i].restart_ns;
        fds[2 + i] = (struct pollfd){.fd = u->children[i].log, .events = POLLIN};
    }
    fds[0] = (struct pollfd){.fd = u->signals, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = u->from_coordinator, .events = POLLIN};
    uint64_t now = clock_ns();
    uint64_t wait_ms = until_ns > now ? (until_ns - now) / NS_PER_MS + 1 : 0;
    (void)poll(fds, 3 + u->n_workers, wait_ms > 60000 ? 60000 : (int)wait_ms);
    int rc = 0;
    for (uint32_t i = 0; i <= u->n_workers; i++)
        if (fds[2 + i].revents) read_log(u, &u->children[i]);
    if (fds[1].revents) rc = read_coordinator(u, em);
    if (rc == 0 && fds[0].revents) rc = take_signals(u, em);
    return rc;
}

static int open_signals(struct up *u, struct errmsg *em)
{
    struct sigaction hangup;
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGCHLD);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        (void)sigaddset(&set, SIGHUP); /* the terminal is gone; under nohup it does not matter */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL); /* a parent that ignored it would hide the children's ends */
    (void)sigprocmask(SIG_BLOCK, &set, &u->mask_before);
    u->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return u->signals < 0 ? err_set(em, ERR_IO, "signalfd: %s", strerror(errno)) : 0;
}

static bool any_runs(const struct up *u)
{
    for (uint32_t i = 0; i <= u->n_workers; i++)
        if (u->children[i].pid > 0) return true;
    return false;
}

static void signal_all(const struct up *u, int number)
{
    for (uint32_t i = 0; i <= u->n_workers; i++)
        if (u->children[i].pid > 0) (void)kill(u->children[i].pid, number);
}

/* In order within STOP_S; a child that is stopped or stuck gets no longer. */
static void stop_all(struct up *u)
{
    struct errmsg em;
    u->stopping = true;
    signal_all(u, SIGTERM);
    for (uint32_t i = 0; i <= u->n_workers; i++) u->children[i].restart_ns = 0;
    uint64_t end = clock_ns() + STOP_S * NS_PER_S;
    while (any_runs(u) && clock_ns() < end) (void)turn(u, end, &em);
    signal_all(u, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) continue;
}

static int run(struct up *u, struct errmsg *em)
{
    int rc = open_signals(u, em);
    log_open();
    if (rc == 0) rc = find_programs(u, em);
    if (rc == 0) rc = start_coordinator(u, em);
    while (rc == 0 && !u->stopping) {
        rc = turn(u, UINT64_MAX, em);
        if (rc == 0 && !u->stopping) rc = restart(u, em);
    }
    stop_all(u);
    if (rc < 0) log_text("flotilla up: %s", em->text);
    log_close();
    return rc == 0 ? CMD_OK : rc == ERR_CONF ? CMD_USAGE : CMD_FAILED;
}

/* Whether it can stand in quotes in the cluster file. */
static bool is_one_line(const char *text)
{
    size_t n = strlen(text);
    for (size_t at = 0; at < n;) {
        int32_t c;
        size_t used = utf8_char(text + at, n - at, &c);
        if (used == 0 || c < ' ' || c == 0x7f) return false;
        at += used;
    }
    return true;
}

static int check(struct up *u, struct errmsg *em)
{
    enum kv_type kv;
    enum route_policy policy;
    char names[ROUTE_POLICIES_TEXT_BYTES];
    if (!u->model) return err_set(em, ERR_CONF, "needs --model");
    if (u->kv && !eng_kv_parse(u->kv, &kv))
        return err_set(em, ERR_CONF, "--kv: '%s' is unknown (f32, f16, q8_0, q4_0)", u->kv);
    if (u->policy && !route_policy_parse(u->policy, &policy))
        return err_set(em, ERR_CONF, "--policy: '%s' is unknown (%s)", u->policy,
                       route_policies_text(names));
    if (u->draft && !is_one_line(u->draft))
        return err_set(em, ERR_CONF, "--draft: a path in UTF-8 without control characters");
    u->n_workers = u->workers * u->replicas;
    if (u->n_workers > WORKERS_MOST)
        return err_set(em, ERR_CONF,
                       "%" PRIu32 " replicas of %" PRIu32 " workers: at most %u workers",
                       u->replicas, u->workers, WORKERS_MOST);
    return up_file_check(&u->keys, em);
}

int cmd_up(int argc, char **argv)
{
    struct up u = {.workers = 2, .replicas = 1, .chunk = 512, .from_coordinator = -1};
    for (uint32_t i = 0; i <= WORKERS_MOST; i++) u.children[i].log = -1;
    const struct opt table[] = {
        {"--model", 'm', OPT_STRING, &u.model, 0, 0, NULL, "FILE  a GGUF file"},
        {"--workers", 'w', OPT_U32, &u.workers, 1, LIMIT_STAGES, NULL,
         "N  workers that share the layers (2)"},
        {"--replicas", 'r', OPT_U32, &u.replicas, 1, WORKERS_MOST, NULL,
         "N  such chains of workers, each with the whole model (1)"},
        {"--threads", 't', OPT_U32, &u.threads, 1, POOL_THREADS_MAX, NULL,
         "N  threads of each worker (cores or quota / all workers)"},
        {"--ctx", 0, OPT_U32, &u.ctx, 1, LIMIT_CONTEXT, NULL, "N  context limit (the model's)"},
        {"--kv-tokens", 0, OPT_U32, &u.kv_tokens, LIMIT_PAGE, 1 << 30, NULL,
         "N  tokens the KV pool has room for (what the workers have memory for)"},
        CMD_OPT_KV(&u.kv),
        CMD_OPT_PRE(&u.pre),
        {"--chunk", 0, OPT_U32, &u.chunk, 1, LIMIT_STEP_ROWS, NULL, "N  rows of a Step (512)"},
        {"--max-requests", 0, OPT_U32, &u.max_requests, 1, LIMIT_LIVE, NULL,
         "N  live requests (256)"},
        CMD_OPT_ISA(&u.isa),
        {"--policy", 0, OPT_STRING, &u.policy, 0, 0, NULL,
         "NAME  which replica takes a request; others than auto are for comparison (auto)"},
        {"--draft", 0, OPT_STRING, &u.draft, 0, 0, NULL,
         "D  guess tokens ahead: ngram, auto, F.gguf, auto:F.gguf, recorded:FILE or off (off)"},
        {"--draft-len", 0, OPT_STRING, &u.draft_len, 0, 0, NULL,
         "K  tokens of a draft, 1 to 32, or auto (auto)"},
        {"--replica-wait", 0, OPT_U32, &u.replica_wait, 0, 86400, &u.replica_wait_given,
         "S  how long requests wait for lost workers (30)"},
        {"--set", 0, OPT_LIST, &u.keys, 0, 0, NULL,
         "KEY=VALUE  any key of the cluster file, e.g. ports.clients=7070; may be repeated"},
        {"--no-restart", 0, OPT_FLAG, &u.no_restart, 0, 0, NULL,
         "a worker that ends is not started again"},
        {"--verbose", 'v', OPT_FLAG, &u.verbose, 0, 0, NULL,
         "show all that coordinator and workers log"},
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options("flotilla up --model FILE [--workers 2] [--replicas 1] [options]",
                     "  flotilla up --model smol.gguf\n"
                     "  flotilla up --model smol.gguf --workers 3 --kv-tokens 4096 --set "
                     "ports.clients=7070\n",
                     table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    int rc = check(&u, &em);
    return rc < 0 ? cmd_fail("up", rc, &em) : run(&u, &em);
}
