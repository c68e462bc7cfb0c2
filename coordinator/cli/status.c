/* `status`: a cluster's replicas, workers and requests. */
#include "coordinator/cli/cmd.h"

#include "common/client/tools.h"
#include "coordinator/status_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* From this share of the time on, a worker's waiting for CPU is worth a line. */
#define CPU_WAITING 0.2

/* The share of the time in which requests ran that the stage was idle (its bubbles). */
static double idle_percent(const struct msg_worker_status *w)
{
    double all = (double)w->compute_ns + (double)w->idle_ns;
    return all > 0.0 ? 100.0 * (double)w->idle_ns / all : 0.0;
}

static void print_workers(const struct msg_worker_status *list, uint32_t n)
{
    (void)printf("%-20s %-9s %7s %8s %8s %10s %10s %8s %10s %10s  %s\n", "worker", "state", "pid",
                 "layers", "threads", "read MiB", "memory MiB", "idle", "ms a Step", "predicted",
                 "isa");
    for (uint32_t i = 0; i < n; i++) {
        const struct msg_worker_status *w = &list[i];
        char layers[32] = "none", took[16] = "-", predicted[16] = "-";
        if (w->timed_steps)
            (void)snprintf(took, sizeof took, "%.2f", status_step_ms(w->compute_ns, w));
        if (w->timed_steps && w->predicted_ns)
            (void)snprintf(predicted, sizeof predicted, "%.2f", status_step_ms(w->predicted_ns, w));
        if (w->layer_first <= w->layer_last)
            (void)snprintf(layers, sizeof layers, "%" PRIu32 "-%" PRIu32, w->layer_first,
                           w->layer_last);
        (void)printf("%-20s %-9s %7" PRIu32 " %8s %8" PRIu32
                     " %10.1f %10.1f %6.0f %% %10s %10s  %s\n",
                     w->name, w->state, w->pid, layers, w->threads,
                     (double)w->heartbeat.read_bytes / (1 << 20),
                     (double)w->heartbeat.resident_bytes / (1 << 20), idle_percent(w), took,
                     predicted, w->isa);
        if (w->cpu_waiting >= CPU_WAITING)
            (void)printf("%-20s waits for CPU %.0f %% of the time: its machine is busy\n", "",
                         100.0 * w->cpu_waiting);
    }
}

static void print_replica(const struct msg_replica_status *r)
{
    char windowed[96] = "";
    if (r->windowed_total)
        (void)snprintf(windowed, sizeof windowed,
                       "\nwindowed  %" PRIu32 " free of %" PRIu32 ", %" PRIu32
                       " of them kept for prefixes",
                       r->windowed_total - r->cache.windowed_held, r->windowed_total,
                       r->cache.windowed_cached);
    (void)printf(
        "replica   %s: %s%s%s, generation %" PRIu32 ", %" PRIu32 " running, %" PRIu32 " queued\n"
        "KV pages  %" PRIu32 " free of %" PRIu32 ", %" PRIu32 " of them kept for prefixes%s\n"
        "prefixes  %" PRIu64 " of %" PRIu64 " requests found theirs, %" PRIu64
        " tokens saved, %" PRIu64 " computed\n",
        r->name, r->state, r->why[0] ? ": " : "", r->why, r->generation, r->running, r->queued,
        r->pages_free, r->pages_total, r->cache.pages_cached, windowed, r->cache.hits,
        r->cache.lookups, r->cache.tokens_saved, r->cache.tokens_computed);
    if (r->n_workers) print_workers(r->workers, r->n_workers);
}

static void print_text(const struct msg_status *s)
{
    (void)printf("model     %s\nrequests  %" PRIu32 " running, %" PRIu32 " queued\n", s->model,
                 s->running, s->queued);
    for (uint32_t i = 0; i < s->n_replicas; i++) print_replica(&s->replicas[i]);
    if (!s->n_spares) return;
    (void)printf("spares    %" PRIu32 "\n", s->n_spares);
    print_workers(s->spares, s->n_spares);
}

static void print_json(const struct msg_status *s)
{
    struct json *j = status_json(s);
    json_print(j, stdout);
    json_free(j);
}

int cmd_status(int argc, char **argv)
{
    const char *cluster = NULL;
    struct client_keys keys = {.file = NULL};
    bool json = false, watch = false;
    const struct opt table[] = {
        {"--cluster", 0, OPT_STRING, &cluster, 0, 0, NULL,
         "ADDR  the coordinator's client address"},
        CMD_OPT_KEYS(&keys),
        CMD_OPT_JSON(&json),
        {"--watch", 0, OPT_FLAG, &watch, 0, 0, NULL, "again each second, until ^C"},
        {0},
    };
    size_t n_rest;
    int exit_status;
    if (!cmd_options("flotilla status --cluster ADDR [--json] [--watch]",
                     "  flotilla status --cluster tcp://127.0.0.1:7070\n", table, argc, argv, NULL,
                     0, &n_rest, &exit_status))
        return exit_status;
    struct errmsg em = {0};
    struct client *c = NULL;
    struct msg_status s;
    int rc = cluster ? client_open_keys(cluster, &keys, &c, &em)
                     : err_set(&em, ERR_CONF, "needs --cluster");
    do {
        if (rc == 0) rc = client_status(c, &s, &em);
        if (rc < 0) break;
        if (watch && isatty(STDOUT_FILENO)) (void)printf("\033[H\033[J");
        if (json)
            print_json(&s);
        else
            print_text(&s);
        (void)fflush(stdout);
        if (watch) (void)sleep(1);
    } while (watch && !ferror(stdout));
    client_close(c);
    return rc < 0 ? cmd_fail("status", rc, &em) : CMD_OK;
}
