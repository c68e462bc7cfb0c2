/* flotilla-worker: options, then the control loop. */
#include "worker/loop.h"

#include "common/base/log.h"
#include "common/base/opts.h"
#include "common/base/pool.h"
#include "common/base/process.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char examples[] =
    "  flotilla-worker --coordinator tcp://10.0.0.5:7071\n"
    "  flotilla-worker --coordinator tcp://10.0.0.5:7071 --name rack1 --models /srv/models\n";

int main(int argc, char **argv)
{
    struct loop_options o = {.threads = pool_cores()};
    bool help = false;
    const struct opt table[] = {
        {"--coordinator", 'c', OPT_STRING, &o.coordinator, 0, 0, NULL,
         "ADDR  where the coordinator takes workers: tcp://HOST:PORT"},
        {"--name", 0, OPT_STRING, &o.name, 0, 0, NULL,
         "NAME  label in plans and status (HOST-PID)"},
        {"--listen", 0, OPT_STRING, &o.listen, 0, 0, NULL,
         "HOST  address at which other workers reach this one"},
        {"--advertise", 0, OPT_STRING, &o.advertise, 0, 0, NULL,
         "HOST:PORT  what they are told instead, behind NAT"},
        {"--models", 0, OPT_STRING, &o.models, 0, 0, NULL,
         "DIR  where model files lie here, by name"},
        {"--metrics", 0, OPT_STRING, &o.metrics, 0, 0, NULL,
         "HOST:PORT  where Prometheus reads /metrics (nowhere)"},
        {"--threads", 't', OPT_U32, &o.threads, 1, POOL_THREADS_MAX, NULL,
         "N  compute threads (a core each, within affinity and quota)"},
        {"--isa", 0, OPT_STRING, &o.isa, 0, 0, NULL,
         "NAME  force scalar, avx2 or avx512 (the best)"},
        {"--help", 'h', OPT_FLAG, &help, 0, 0, NULL, "this text"},
        {0},
    };
    process_start();
    process_serve();
    log_program("flotilla-worker");
    log_open();
    struct errmsg em = {0};
    size_t n_rest;
    int rc = opts_parse(table, argc, argv, NULL, 0, &n_rest, &em);
    if (rc == 0 && help) {
        (void)printf(
            "usage: flotilla-worker --coordinator ADDR [options]\n\n"
            "Joins a cluster: computes the layers that the coordinator assigns.\n\noptions:\n");
        opts_help(table);
        (void)printf("\nexamples:\n%s", examples);
        return 0;
    }
    if (rc == 0 && !o.coordinator) rc = err_set(&em, ERR_CONF, "needs --coordinator ADDR");
    bool usage = rc < 0;
    if (rc == 0) rc = loop_run(&o, &em);
    if (rc < 0) log_error("%s", em.text);
    log_close();
    return rc == 0 ? 0 : usage || rc == ERR_CONF ? 2 : 1;
}
