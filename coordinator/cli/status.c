/* `status`: a cluster's replicas, workers and requests. */
#include "coordinator/cli/cmd.h"

#include "common/client/tools.h"
#include "common/text/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* From this share of the time on, a worker's waiting for CPU is worth a line. */
#define CPU_WAITING 0.2

static void put(struct json *j, const char *key, const char *s)
{
    json_put_string(j, key, s, strlen(s));
}

/* The mean of its Steps in this generation. */
static double step_ms(uint64_t sum_ns, const struct msg_worker_status *w)
{
    return (double)sum_ns / (double)w->timed_steps / 1e6;
}

static struct json *worker_json(const struct msg_worker_status *w)
{
    const struct msg_heartbeat *h = &w->heartbeat;
    struct json *j = json_new_object(), *layers = json_new_array();
    put(j, "name", w->name);
    put(j, "state", w->state);
    put(j, "isa", w->isa);
    json_put_int(j, "pid", w->pid);
    json_put_int(j, "threads", w->threads);
    if (w->layer_first <= w->layer_last) {
        json_add_int(layers, w->layer_first);
        json_add_int(layers, w->layer_last);
    }
    json_put(j, "layers", layers);
    json_put_int(j, "resident_bytes", (int64_t)h->resident_bytes);
    json_put_int(j, "read_bytes", (int64_t)h->read_bytes);
    json_put_int(j, "weights_bytes", (int64_t)h->weights_bytes);
    json_put_int(j, "kv_bytes", (int64_t)h->kv_bytes);
    json_put_int(j, "rows", (int64_t)h->rows);
    json_put_int(j, "activation_bytes_in", (int64_t)h->activation_bytes_in);
    json_put_int(j, "activation_bytes_out", (int64_t)h->activation_bytes_out);
    json_put_int(j, "compute_ns", (int64_t)w->compute_ns);
    json_put_int(j, "idle_ns", (int64_t)w->idle_ns);
    json_put_int(j, "messages_dropped", (int64_t)h->messages_dropped);
    json_put_int(j, "load_done", (int64_t)w->load_done);
    json_put_int(j, "load_total", (int64_t)w->load_total);
    if (w->timed_steps) {
        struct json *step = json_new_object();
        if (w->predicted_ns) json_put_real(step, "predicted", step_ms(w->predicted_ns, w));
        json_put_real(step, "measured", step_ms(w->compute_ns, w));
        json_put(j, "step_ms", step);
    }
    json_put_real(j, "cpu_waiting", w->cpu_waiting);
    json_put_int(j, "faults", w->faults);
    return j;
}

/* Pages are a replica's: every stage has the same ones. */
static struct json *pages_json(const struct msg_replica_status *r)
{
    struct json *j = json_new_object();
    json_put_int(j, "total", r->pages_total);
    json_put_int(j, "free", r->pages_free);
    return j;
}

static struct json *cache_json(const struct msg_replica_status *r)
{
    const struct msg_cache_status *c = &r->cache;
    struct json *j = json_new_object();
    json_put_int(j, "pages_cached", c->pages_cached);
    json_put_int(j, "pages_held", c->pages_held);
    json_put_int(j, "positions_unused", (int64_t)c->positions_unused);
    json_put_int(j, "pages_evicted", (int64_t)c->evicted);
    json_put_int(j, "lookups", (int64_t)c->lookups);
    json_put_int(j, "hits", (int64_t)c->hits);
    json_put_int(j, "tokens_saved", (int64_t)c->tokens_saved);
    json_put_int(j, "tokens_computed", (int64_t)c->tokens_computed);
    return j;
}

static struct json *draft_json(const struct msg_replica_status *r)
{
    const struct msg_draft_status *d = &r->draft;
    struct json *j = json_new_object();
    json_put_int(j, "runs", (int64_t)d->runs);
    json_put_int(j, "drafted", (int64_t)d->drafted);
    json_put_int(j, "accepted", (int64_t)d->accepted);
    json_put_int(j, "early", (int64_t)d->early);
    json_put_int(j, "wasted", (int64_t)d->wasted);
    return j;
}

static struct json *replica_json(const struct msg_replica_status *r)
{
    struct json *x = json_new_object(), *workers = json_new_array();
    put(x, "name", r->name);
    put(x, "state", r->state);
    put(x, "why", r->why);
    json_put_bool(x, "rebalancing", r->rebalancing);
    json_put_int(x, "epoch", r->generation);
    json_put_int(x, "steps", (int64_t)r->steps);
    json_put_int(x, "steps_mixed", (int64_t)r->steps_mixed);
    json_put_int(x, "sequences_max", r->sequences_max);
    json_put_int(x, "running", r->running);
    json_put_int(x, "queued", r->queued);
    json_put_int(x, "preemptions", (int64_t)r->cache.preemptions);
    json_put(x, "prefix_cache", cache_json(r));
    json_put(x, "speculation", draft_json(r));
    for (uint32_t i = 0; i < r->n_workers; i++) {
        struct json *w = worker_json(&r->workers[i]);
        json_put(w, "kv_pages", pages_json(r));
        json_add(workers, w);
    }
    json_put(x, "workers", workers);
    return x;
}

static void print_json(const struct msg_status *s)
{
    struct json *j = json_new_object(), *replicas = json_new_array(), *requests = json_new_object();
    struct json *spares = json_new_array();
    json_put_bool(j, "ready", s->ready);
    put(j, "model", s->model);
    for (uint32_t i = 0; i < s->n_replicas; i++) json_add(replicas, replica_json(&s->replicas[i]));
    json_put(j, "replicas", replicas);
    for (uint32_t i = 0; i < s->n_spares; i++) json_add(spares, worker_json(&s->spares[i]));
    json_put(j, "spares", spares);
    json_put_int(requests, "running", s->running);
    json_put_int(requests, "queued", s->queued);
    json_put(j, "requests", requests);
    json_put_int(j, "messages_dropped", (int64_t)s->messages_dropped);
    json_print(j, stdout);
    json_free(j);
}

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
        if (w->timed_steps) (void)snprintf(took, sizeof took, "%.2f", step_ms(w->compute_ns, w));
        if (w->timed_steps && w->predicted_ns)
            (void)snprintf(predicted, sizeof predicted, "%.2f", step_ms(w->predicted_ns, w));
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
    (void)printf(
        "replica   %s: %s%s%s, generation %" PRIu32 ", %" PRIu32 " running, %" PRIu32 " queued\n"
        "KV pages  %" PRIu32 " free of %" PRIu32 ", %" PRIu32 " of them kept for prefixes\n"
        "prefixes  %" PRIu64 " of %" PRIu64 " requests found theirs, %" PRIu64
        " tokens saved, %" PRIu64 " computed\n",
        r->name, r->state, r->why[0] ? ": " : "", r->why, r->generation, r->running, r->queued,
        r->pages_free, r->pages_total, r->cache.pages_cached, r->cache.hits, r->cache.lookups,
        r->cache.tokens_saved, r->cache.tokens_computed);
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
        json ? print_json(&s) : print_text(&s);
        (void)fflush(stdout);
        if (watch) (void)sleep(1);
    } while (watch && !ferror(stdout));
    client_close(c);
    return rc < 0 ? cmd_fail("status", rc, &em) : CMD_OK;
}
