/* `up`: a whole cluster on this machine, as separate processes, until ^C. */
#include "coordinator/cli/cmd.h"

#include "common/base/mem.h"
#include "common/base/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORKERS_MAX 32

struct up {
    const char *model, *kv, *isa, *pre;
    uint32_t workers, replicas, threads, ctx, kv_tokens, chunk, replica_wait, max_requests;
    bool replica_wait_given;
    struct opt_list keys; /* KEY=VALUE of the cluster file */
    char bin[4096];       /* folder of the programs */
    pid_t coordinator, children[WORKERS_MAX];
    FILE *from_coordinator;
};

static atomic_bool asked_to_stop;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&asked_to_stop, true);
}

static int find_programs(struct up *u, struct errmsg *em)
{
    ssize_t n = readlink("/proc/self/exe", u->bin, sizeof u->bin - 1);
    char *slash = n > 0 ? (u->bin[n] = 0, strrchr(u->bin, '/')) : NULL;
    if (!slash) return err_set(em, ERR_IO, "cannot find this program's folder");
    *slash = 0;
    return 0;
}

/* stdin and stdout are taken over where they are not -1. A child ends when this process does. */
static pid_t spawn(const struct up *u, const char *program, char *const *args, int in, int out)
{
    char path[sizeof u->bin + 64];
    (void)snprintf(path, sizeof path, "%s/%s", u->bin, program);
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) return pid;
    (void)setpgid(0, 0); /* ^C is this process's to pass on */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    if (in >= 0) (void)dup2(in, STDIN_FILENO);
    if (out >= 0) (void)dup2(out, STDOUT_FILENO);
    (void)execv(path, args);
    (void)fprintf(stderr, "flotilla up: %s: %s\n", path, strerror(errno));
    _exit(127);
}

/* A YAML string in double quotes. */
static void put_quoted(FILE *f, const char *key, const char *s)
{
    (void)fprintf(f, "%s: \"", key);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') (void)fputc('\\', f);
        (void)fputc(*s, f);
    }
    (void)fprintf(f, "\"\n");
}

static void write_config(const struct up *u, FILE *f)
{
    char *absolute = realpath(u->model, NULL); /* workers may run in another folder one day */
    put_quoted(f, "model", absolute ? absolute : u->model);
    free(absolute);
    (void)fprintf(f, "ports: {clients: 0, workers: 0, results: 0, metrics: 0}\n");
    (void)fprintf(f, "workers: %" PRIu32 "\nchunk: %" PRIu32 "\n", u->workers, u->chunk);
    if (u->kv) put_quoted(f, "kv", u->kv);
    if (u->pre) put_quoted(f, "pre", u->pre);
    if (u->ctx) (void)fprintf(f, "ctx: %" PRIu32 "\n", u->ctx);
    if (u->kv_tokens) (void)fprintf(f, "kv_tokens: %" PRIu32 "\n", u->kv_tokens);
    if (u->max_requests) (void)fprintf(f, "max_requests: %" PRIu32 "\n", u->max_requests);
    if (u->replica_wait_given) (void)fprintf(f, "replica_wait: %" PRIu32 "\n", u->replica_wait);
    for (size_t i = 0; i < u->keys.n; i++) {
        const char *key = u->keys.items[i], *value = strchr(key, '=') + 1, *dot = strchr(key, '.');
        int n = (int)(value - 1 - key), outer = dot && dot < value ? (int)(dot - key) : 0;
        if (outer)
            (void)fprintf(f, "%.*s: {%.*s: %s}\n", outer, key, n - outer - 1, dot + 1, value);
        else
            (void)fprintf(f, "%.*s: %s\n", n, key, value);
    }
}

static int start_coordinator(struct up *u, char *ret_worker, size_t size, struct errmsg *em)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        return err_set(em, ERR_IO, "pipe: %s", strerror(errno));
    char *args[] = {"flotilla-coordinator", "--config", "-", NULL};
    u->coordinator = spawn(u, "flotilla-coordinator", args, in[0], out[1]);
    if (u->coordinator < 0) return err_set(em, ERR_IO, "fork: %s", strerror(errno));
    (void)close(in[0]);
    (void)close(out[1]);
    FILE *config = fdopen(in[1], "w"), *lines = fdopen(out[0], "r");
    if (!config || !lines) return err_set(em, ERR_IO, "pipe: %s", strerror(errno));
    write_config(u, config);
    (void)fclose(config);
    u->from_coordinator = lines;
    char line[512], *worker;
    if (!fgets(line, sizeof line, lines) || !(worker = strstr(line, " worker=")))
        return err_set(em, ERR_CONF, "the coordinator did not start");
    worker[strcspn(worker, "\n")] = 0;
    (void)snprintf(ret_worker, size, "%s", worker + strlen(" worker="));
    (void)fprintf(stderr, "workers join at %s\n", ret_worker);
    return 0;
}

static int start_workers(struct up *u, const char *coordinator, struct errmsg *em)
{
    char threads[16], name[16];
    uint32_t each = pool_cores() / u->workers;
    (void)snprintf(threads, sizeof threads, "%" PRIu32, u->threads ? u->threads : each ? each : 1);
    for (uint32_t i = 0; i < u->workers; i++) {
        (void)snprintf(name, sizeof name, "w%" PRIu32, i + 1);
        char *args[] = {"flotilla-worker",
                        "--coordinator",
                        (char *)(uintptr_t)coordinator,
                        "--name",
                        name,
                        "--threads",
                        threads,
                        u->isa ? "--isa" : NULL,
                        (char *)(uintptr_t)u->isa,
                        NULL};
        u->children[i] = spawn(u, "flotilla-worker", args, -1, -1);
        if (u->children[i] < 0) return err_set(em, ERR_IO, "fork: %s", strerror(errno));
    }
    return 0;
}

/* Passes the coordinator's "ready" lines on until it ends or a signal comes. */
static int wait_for_end(struct up *u, struct errmsg *em)
{
    char line[512];
    bool told = false;
    while (!atomic_load(&asked_to_stop) && fgets(line, sizeof line, u->from_coordinator)) {
        if (told || strncmp(line, "ready ", 6) != 0) continue;
        told = true;
        (void)fputs(line, stdout);
        (void)fflush(stdout);
    }
    return atomic_load(&asked_to_stop) ? 0 : err_set(em, ERR_CLOSED, "the coordinator ended");
}

static void stop_all(struct up *u)
{
    for (uint32_t i = 0; i < u->workers; i++)
        if (u->children[i] > 0) (void)kill(u->children[i], SIGTERM);
    if (u->coordinator > 0) (void)kill(u->coordinator, SIGTERM);
    /* In order within five seconds; a child that is stopped or stuck gets no longer. */
    struct timespec pause = {0, 20 * 1000000};
    for (int i = 0; i < 250 && waitpid(-1, NULL, WNOHANG) >= 0; i++) (void)nanosleep(&pause, NULL);
    for (uint32_t i = 0; i < u->workers; i++)
        if (u->children[i] > 0) (void)kill(u->children[i], SIGKILL);
    if (u->coordinator > 0) (void)kill(u->coordinator, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) continue;
    if (u->from_coordinator) (void)fclose(u->from_coordinator);
}

int cmd_up(int argc, char **argv)
{
    struct up u = {.workers = 2, .replicas = 1, .chunk = 512};
    const struct opt table[] = {
        {"--model", 'm', OPT_STRING, &u.model, 0, 0, NULL, "FILE  a GGUF file"},
        {"--workers", 'w', OPT_U32, &u.workers, 1, WORKERS_MAX, NULL,
         "N  workers that share the layers (2)"},
        {"--replicas", 0, OPT_U32, &u.replicas, 1, 1, NULL, "N  chains of workers (1)"},
        {"--threads", 't', OPT_U32, &u.threads, 1, 256, NULL,
         "N  threads of each worker (cores or quota / workers)"},
        {"--ctx", 0, OPT_U32, &u.ctx, 1, 1 << 20, NULL, "N  context limit (the model's)"},
        {"--kv-tokens", 0, OPT_U32, &u.kv_tokens, 16, 1 << 30, NULL,
         "N  tokens the KV pool has room for (what the workers have memory for)"},
        {"--kv", 0, OPT_STRING, &u.kv, 0, 0, NULL,
         "TYPE  keys and values: f32, f16, q8_0, q4_0 (f16)"},
        {"--pre", 0, OPT_STRING, &u.pre, 0, 0, NULL, "NAME  pre-tokeniser in place of the file's"},
        {"--chunk", 0, OPT_U32, &u.chunk, 1, 4096, NULL, "N  rows of a Step (512)"},
        {"--max-requests", 0, OPT_U32, &u.max_requests, 1, 4096, NULL, "N  live requests (256)"},
        {"--isa", 0, OPT_STRING, &u.isa, 0, 0, NULL,
         "NAME  force scalar, avx2 or avx512 (the best)"},
        {"--replica-wait", 0, OPT_U32, &u.replica_wait, 0, 86400, &u.replica_wait_given,
         "S  how long requests wait for lost workers (30)"},
        {"--set", 0, OPT_LIST, &u.keys, 0, 0, NULL,
         "KEY=VALUE  any other key of the cluster file, e.g. limits.hwm=8; may be repeated"},
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options(
            "up --model FILE [--workers 2] [options]",
            "  flotilla up --model smol.gguf\n"
            "  flotilla up --model smol.gguf --workers 3 --kv-tokens 4096 --replica-wait 0\n",
            table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    if (!u.model) {
        (void)err_set(&em, ERR_CONF, "needs --model");
        return cmd_fail("up", ERR_CONF, &em);
    }
    for (size_t i = 0; i < u.keys.n; i++)
        if (!strchr(u.keys.items[i], '=')) {
            (void)err_set(&em, ERR_CONF, "--set: '%s' is not KEY=VALUE", u.keys.items[i]);
            return cmd_fail("up", ERR_CONF, &em);
        }
    struct sigaction action = {.sa_handler = on_signal};
    (void)signal(SIGPIPE, SIG_IGN); /* a coordinator that ends early is told by its output */
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    char coordinator[256];
    int rc = find_programs(&u, &em);
    if (rc == 0) rc = start_coordinator(&u, coordinator, sizeof coordinator, &em);
    if (rc == 0) rc = start_workers(&u, coordinator, &em);
    if (rc == 0) rc = wait_for_end(&u, &em);
    stop_all(&u);
    return rc < 0 ? cmd_fail("up", rc, &em) : CMD_OK;
}
