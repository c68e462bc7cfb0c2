/* `plan`: which worker has which layers, what a Step is predicted to take each stage, and what
 * bounds the chain. Of a running cluster, or of a cluster file alone. */
#include "coordinator/cli/cmd.h"
#include "coordinator/cli/dry_run.h"

#include "common/client/tools.h"
#include "common/text/json.h"
#include "coordinator/core/speed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void put(struct json *j, const char *key, const char *s)
{
    json_put_string(j, key, s, strlen(s));
}

/* The work that plans go by, on one stage: a chunk of prompt and as many decoded tokens. 0: it was
 * not measured. */
static double unit_ns(const struct msg_worker_status *w)
{
    return (double)w->chunk_ns + (double)SPEED_CHUNK / SPEED_STREAMS * (double)w->streams_ns;
}

/* The slowest stage, or NULL where one was not measured. */
static const struct msg_worker_status *bottleneck(const struct msg_replica_status *r)
{
    const struct msg_worker_status *slowest = NULL;
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const struct msg_worker_status *w = &r->workers[i];
        if (w->row_ns == 0) return NULL;
        if (!slowest || unit_ns(w) > unit_ns(slowest)) slowest = w;
    }
    return slowest;
}

/* What a Step took outside the stages until now, on all links together. */
static double network_ms(const struct msg_replica_status *r)
{
    return (double)r->wire_ns / (double)r->steps / 1e6;
}

static struct json *worker_json(const struct msg_worker_status *w)
{
    struct json *j = json_new_object(), *layers = json_new_array(), *ms = json_new_object();
    put(j, "name", w->name);
    put(j, "isa", w->isa);
    json_put_int(j, "threads", w->threads);
    json_add_int(layers, w->layer_first);
    json_add_int(layers, w->layer_last);
    json_put(j, "layers", layers);
    if (w->row_ns) {
        json_put_real(ms, "row", (double)w->row_ns / 1e6);
        json_put_real(ms, "streams", (double)w->streams_ns / 1e6);
        json_put_real(ms, "chunk", (double)w->chunk_ns / 1e6);
    }
    json_put(j, "step_ms", ms);
    return j;
}

static void print_json(const struct msg_status *s)
{
    struct json *j = json_new_object(), *replicas = json_new_array();
    put(j, "model", s->model);
    for (uint32_t i = 0; i < s->n_replicas; i++) {
        const struct msg_replica_status *r = &s->replicas[i];
        struct json *x = json_new_object(), *workers = json_new_array();
        put(x, "name", r->name);
        json_put_bool(x, "planned", r->n_workers != 0);
        put(x, "why", r->n_workers ? "" : r->why);
        json_put_int(x, "kv_pages", r->n_workers ? r->pages_total : 0);
        if (r->windowed_total)
            json_put_int(x, "kv_windowed_pages", r->n_workers ? r->windowed_total : 0);
        json_put_int(x, "ctx", r->n_workers ? r->ctx : 0);
        if (r->steps) json_put_real(x, "network_ms", network_ms(r));
        put(x, "bottleneck", bottleneck(r) ? bottleneck(r)->name : "");
        for (uint32_t k = 0; k < r->n_workers; k++) json_add(workers, worker_json(&r->workers[k]));
        json_put(x, "workers", workers);
        json_add(replicas, x);
    }
    json_put(j, "replicas", replicas);
    json_print(j, stdout);
    json_free(j);
}

static void print_replica(const struct msg_replica_status *r)
{
    if (!r->n_workers) {
        (void)printf("replica   %s: no plan: %s\n", r->name, r->why);
        return;
    }
    const struct msg_worker_status *slowest = bottleneck(r);
    if (r->steps) (void)printf("network   %.2f ms a Step, all links together\n", network_ms(r));
    char windowed[64] = "";
    if (r->windowed_total)
        (void)snprintf(windowed, sizeof windowed, " and %" PRIu32 " windowed ones",
                       r->windowed_total);
    (void)printf("replica   %s: KV pool of %" PRIu64 " tokens (%" PRIu32
                 " pages%s), contexts of %" PRIu32 "\n",
                 r->name, (uint64_t)r->pages_total * LIMIT_PAGE, r->pages_total, windowed, r->ctx);
    (void)printf("%-20s %8s %8s %10s %10s %10s  %s\n", "worker", "layers", "threads", "1 row",
                 "4 streams", "32 rows", "isa");
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const struct msg_worker_status *w = &r->workers[i];
        char layers[32];
        (void)snprintf(layers, sizeof layers, "%" PRIu32 "-%" PRIu32, w->layer_first,
                       w->layer_last);
        (void)printf("%-20s %8s %8" PRIu32 " ", w->name, layers, w->threads);
        if (w->row_ns)
            (void)printf("%7.2f ms %7.2f ms %7.2f ms", (double)w->row_ns / 1e6,
                         (double)w->streams_ns / 1e6, (double)w->chunk_ns / 1e6);
        else
            (void)printf("%10s %10s %10s", "-", "-", "-");
        (void)printf("  %s%s\n", w->isa, w == slowest ? "  <- the bottleneck" : "");
    }
}

/* False: a replica has no plan. */
static bool print(const struct msg_status *s, bool json)
{
    bool whole = true;
    for (uint32_t i = 0; i < s->n_replicas; i++) whole = whole && s->replicas[i].n_workers;
    if (json) {
        print_json(s);
        return whole;
    }
    (void)printf("model     %s\n", s->model);
    for (uint32_t i = 0; i < s->n_replicas; i++) print_replica(&s->replicas[i]);
    return whole;
}

static int plan_of_file(const char *path, const char *isa, bool json, bool *ret_whole,
                        struct errmsg *em)
{
    struct config config;
    struct model_file model;
    struct dry_run d = {.core = NULL};
    int rc = config_read(path, NULL, &config, em);
    if (rc < 0) return rc == ERR_NOTFOUND || rc == ERR_IO ? ERR_CONF : rc;
    rc = model_file_open(config.model, true, config.pre, &model, em);
    if (rc == 0) {
        rc = dry_run_open(&config, &model, isa, &d, em);
        if (rc == 0) *ret_whole = print(&d.status, json);
        if (rc == 0 && !json)
            (void)printf("Each worker is taken to be like this machine, and to have it for itself; "
                         "of a running cluster, plan --cluster tells.\n");
        dry_run_close(&d);
        model_file_close(&model);
    }
    config_close(&config);
    return rc;
}

static int plan_of_cluster(const char *cluster, const struct client_keys *keys, bool json,
                           bool *ret_whole, struct errmsg *em)
{
    struct client *c = NULL;
    struct msg_status s;
    int rc = client_open_keys(cluster, keys, &c, em);
    if (rc == 0) rc = client_status(c, &s, em);
    if (rc == 0) *ret_whole = print(&s, json);
    client_close(c);
    return rc;
}

int cmd_plan(int argc, char **argv)
{
    const char *config = NULL, *cluster = NULL, *isa = NULL;
    struct client_keys keys = {.file = NULL};
    bool json = false, whole = false;
    const struct opt table[] = {
        {"--config", 0, OPT_STRING, &config, 0, 0, NULL,
         "FILE  a cluster file; its workers are taken to be like this machine"},
        {"--cluster", 0, OPT_STRING, &cluster, 0, 0, NULL,
         "ADDR  a running coordinator's client address"},
        CMD_OPT_KEYS(&keys),
        CMD_OPT_ISA(&isa),
        CMD_OPT_JSON(&json),
        {0},
    };
    size_t n_rest;
    int exit_status;
    if (!cmd_options("flotilla plan (--config FILE | --cluster ADDR) [--json]",
                     "  flotilla plan --config cluster.yaml\n"
                     "  flotilla plan --cluster tcp://127.0.0.1:7070 --json\n",
                     table, argc, argv, NULL, 0, &n_rest, &exit_status))
        return exit_status;
    struct errmsg em = {0};
    int rc = !config == !cluster ? err_set(&em, ERR_CONF, "needs either --config or --cluster")
             : config            ? plan_of_file(config, isa, json, &whole, &em)
                                 : plan_of_cluster(cluster, &keys, json, &whole, &em);
    if (rc < 0) return cmd_fail("plan", rc, &em);
    return whole ? CMD_OK : CMD_FAILED;
}
