/* flotilla-worker: options, then the control loop. */
#include "worker/loop.h"

#include "common/base/log.h"
#include "common/base/opts.h"
#include "common/base/pool.h"
#include "common/base/process.h"
#include "common/base/version.h"

#include <stdio.h>
#include <stdlib.h>

static const struct opts_usage usage = {
    .line = "flotilla-worker --coordinator ADDR [options]",
    .version = version_text,
    .does = "Joins a cluster: computes the layers that the coordinator assigns.",
    .examples =
        "  flotilla-worker --coordinator tcp://10.0.0.5:7071\n"
        "  flotilla-worker --coordinator tcp://10.0.0.5:7071 --name rack1 --models /srv/models\n"
        "  flotilla-worker --coordinator tcp://10.0.0.5:7071 --key worker.key --coordinator-key "
        "'...'\n"};

/* The folder below the user's cache where what was measured here is kept; false: there is none. */
static bool speeds_folder(char *ret, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(ret, size, "%s/flotilla/speeds", cache);
    else if (home && home[0] == '/')
        n = snprintf(ret, size, "%s/.cache/flotilla/speeds", home);
    return n > 0 && (size_t)n < size;
}

int main(int argc, char **argv)
{
    char speeds[4096];
    struct loop_options o = {.threads = pool_cores()};
    const struct opt table[] = {
        {"--coordinator", 'c', OPT_STRING, &o.coordinator, 0, 0, NULL,
         "ADDR  where the coordinator takes workers: tcp://HOST:PORT"},
        {"--key", 0, OPT_STRING, &o.key, 0, 0, NULL,
         "FILE  this worker's key, made by flotilla keygen"},
        {"--coordinator-key", 0, OPT_STRING, &o.coordinator_key, 0, 0, NULL,
         "KEY  the coordinator's public key, which it must have"},
        {"--name", 0, OPT_STRING, &o.name, 0, 0, NULL,
         "NAME  label in plans and status (HOST-PID)"},
        {"--listen", 0, OPT_STRING, &o.listen, 0, 0, NULL,
         "HOST  address at which other workers reach this one"},
        {"--advertise", 0, OPT_STRING, &o.advertise, 0, 0, NULL,
         "HOST:PORT  what they are told instead, behind NAT"},
        {"--models", 0, OPT_STRING, &o.models, 0, 0, NULL,
         "DIR  folder where the model file is looked for by its name"},
        {"--metrics", 0, OPT_STRING, &o.metrics, 0, 0, NULL,
         "HOST:PORT  where Prometheus reads /metrics (nowhere)"},
        {"--threads", 't', OPT_U32, &o.threads, 1, POOL_THREADS_MAX, NULL,
         "N  compute threads (a core each, within affinity and quota)"},
        {"--isa", 0, OPT_STRING, &o.isa, 0, 0, NULL,
         "NAME  force scalar, avx2 or avx512 (the best)"},
        {0},
    };
    process_start();
    process_serve();
    log_program("flotilla-worker");
    log_open();
    struct errmsg em = {0};
    size_t n_rest;
    int rc = opts_parse(&usage, table, argc, argv, NULL, 0, &n_rest, &em);
    if (rc == ERR_CANCELLED) return 0; /* help or version: printed */
    if (rc == 0 && !o.coordinator) rc = err_set(&em, ERR_CONF, "needs --coordinator ADDR");
    if (speeds_folder(speeds, sizeof speeds)) o.speeds = speeds;
    bool misused = rc < 0;
    if (rc == 0) rc = loop_run(&o, &em);
    if (rc < 0) log_error("%s", em.text);
    log_close();
    return rc == 0 ? 0 : misused || rc == ERR_CONF ? 2 : 1;
}
