/* `gateway`: OpenAI's API in front of a cluster, in a process of its own, until ^C. */
#include "coordinator/cli/cmd.h"

#include "common/base/addr.h"
#include "common/base/log.h"
#include "common/base/process.h"
#include "common/io/net.h"
#include "coordinator/gateway/gateway.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define OWN_FILES 32u /* beside connections */

static int serve(struct gateway *g)
{
    sigset_t set;
    int number = 0;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    while (number != SIGTERM && number != SIGINT) {
        struct errmsg em = {0};
        if (sigwait(&set, &number) != 0 || number != SIGHUP) continue;
        if (gateway_reload(g, &em) < 0)
            log_error("the API keys stay as they are: %s", em.text);
        else
            log_info("the API keys were read again");
    }
    return CMD_OK;
}

/* Before any thread: theirs is this mask. */
static void block_signals(void)
{
    sigset_t set;
    process_serve();
    (void)signal(SIGHUP, SIG_DFL); /* what is ignored is not waited for */
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* Without keys and encryption of its own it serves this machine only, unless told otherwise. */
static int check(const struct gateway_options *o, bool plaintext, struct errmsg *em)
{
    if (!o->endpoint) return err_set(em, ERR_CONF, "needs --cluster");
    if (addr_is_loopback(o->host) || plaintext || (o->api_keys && o->certificate)) return 0;
    return err_set(em, ERR_CONF,
                   "--listen: %s is not loopback: give --api-keys, --certificate and --tls-key, or "
                   "--plaintext if the network is yours alone",
                   o->host);
}

/* Where no file descriptor is left, connections are neither accepted nor refused. */
static void fit_files(struct gateway_options *o)
{
    uint64_t max = net_files_max(), most = max > 2 * OWN_FILES ? max - OWN_FILES : OWN_FILES;
    if (o->connections <= most) return;
    log_info("open files are limited to %" PRIu64 ": at most %" PRIu64 " connections, not %" PRIu32,
             max, most, o->connections);
    o->connections = (uint32_t)most;
}

int cmd_gateway(int argc, char **argv)
{
    struct gateway_options o = {.host = "127.0.0.1",
                                .port = GATEWAY_PORT,
                                .connections = GATEWAY_CONNECTIONS,
                                .body_kib = GATEWAY_BODY_KIB,
                                .read_s = GATEWAY_READ_S,
                                .stall_s = GATEWAY_STALL_S};
    bool plaintext = false;
    const struct opt table[] = {
        {"--cluster", 0, OPT_STRING, &o.endpoint, 0, 0, NULL, "ADDR  the coordinator's clients"},
        CMD_OPT_KEYS(&o.keys),
        {"--listen", 0, OPT_STRING, &o.host, 0, 0, NULL,
         "HOST  an address of this machine "
         "(127.0.0.1)"},
        {"--port", 0, OPT_U32, &o.port, 0, 65535, NULL, "N  (8080); 0: any free one"},
        {"--api-keys", 0, OPT_STRING, &o.api_keys, 0, 0, NULL,
         "FILE  keys that clients need, one a line; read again on SIGHUP"},
        {"--certificate", 0, OPT_STRING, &o.certificate, 0, 0, NULL, "FILE  PEM; makes it HTTPS"},
        {"--tls-key", 0, OPT_STRING, &o.key, 0, 0, NULL, "FILE  the certificate's key, PEM"},
        {"--cors", 0, OPT_STRING, &o.cors, 0, 0, NULL,
         "ORIGIN  whose pages may ask; '*': all of them"},
        {"--connections", 0, OPT_U32, &o.connections, 1, 100000, NULL, "N  at once (1024)"},
        {"--body-kib", 0, OPT_U32, &o.body_kib, 1, LIMIT_CLIENT_BYTES >> 10, NULL,
         "N  of a request, at most (4096)"},
        {"--plaintext", 0, OPT_FLAG, &plaintext, 0, 0, NULL,
         "HTTP without encryption may leave this machine"},
        {0},
    };
    size_t n_rest;
    int status;
    struct errmsg em = {0};
    struct gateway *g;
    uint32_t port;
    if (!cmd_options("flotilla gateway --cluster ADDR [options]",
                     "  flotilla gateway --cluster tcp://10.0.0.1:7070 --port 8080\n", table, argc,
                     argv, NULL, 0, &n_rest, &status))
        return status;
    int rc = check(&o, plaintext, &em);
    if (rc == 0) fit_files(&o);
    if (rc == 0) block_signals();
    if (rc == 0) rc = gateway_open(&o, &g, &port, &em);
    if (rc < 0) return cmd_fail("gateway", rc, &em);
    log_open();
    log_stdout("ready http=http%s://%s:%" PRIu32, o.certificate ? "s" : "", o.host, port);
    status = serve(g);
    gateway_close(g);
    log_close();
    return status;
}
