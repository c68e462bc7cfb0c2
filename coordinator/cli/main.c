#include "coordinator/cli/cmd.h"

#include "common/base/process.h"
#include "common/base/version.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"up", cmd_up, "a whole cluster on this machine, until ^C"},
    {"generate", cmd_generate, "continue a prompt, on a cluster or with a model file alone"},
    {"chat", cmd_chat, "a conversation, at a terminal or from a pipe"},
    {"status", cmd_status, "a cluster's replicas, workers and requests"},
    {"plan", cmd_plan, "which worker has which layers, and how fast that is"},
    {"drain", cmd_drain, "have a worker leave, without losing a request"},
    {"rebalance", cmd_rebalance, "plan a cluster's replicas anew, one after the other"},
    {"gateway", cmd_gateway, "OpenAI's API in front of a cluster, in a process of its own"},
    {"keygen", cmd_keygen, "make a key for a program, or show its public half"},
    {"inspect", cmd_inspect, "show what a GGUF file holds"},
    {"tokenize", cmd_tokenize, "text on stdin to token ids"},
    {"template", cmd_template, "messages on stdin to a model's prompt"},
    {"quality", cmd_quality, "perplexity, and distance from a baseline"},
    {"bench", cmd_bench, "the engine's speed on this machine; a load on a cluster"},
    {"simulate", cmd_simulate, "the coordinator's core on a trace of requests, in virtual time"},
};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void usage(FILE *to)
{
    (void)fprintf(to, "usage: flotilla COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        (void)fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
    (void)fprintf(to, "\n'flotilla COMMAND --help' tells more, with examples; 'flotilla --version' "
                      "the version.\n");
}

int cmd_fail(const char *name, int code, const struct errmsg *em)
{
    (void)fprintf(stderr, "flotilla %s: %s\n", name, em->text[0] ? em->text : err_text(code));
    return code == ERR_CONF ? CMD_USAGE : CMD_FAILED;
}

bool cmd_options(const char *usage_line, const char *examples, const struct opt *table, int argc,
                 char **argv, const char **rest, size_t rest_max, size_t *ret_n_rest,
                 int *ret_status)
{
    const struct opts_usage u = {.line = usage_line, .version = version_text, .examples = examples};
    struct errmsg em = {0};
    int rc = opts_parse(&u, table, argc, argv, rest, rest_max, ret_n_rest, &em);
    *ret_status = rc == ERR_CANCELLED ? CMD_OK : CMD_USAGE;
    if (rc < 0 && rc != ERR_CANCELLED)
        (void)fprintf(stderr, "flotilla %s: %s\nusage: %s\n", argv[0], em.text, usage_line);
    return rc == 0;
}

/* A result that could not be written is no success. */
static int finish(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    (void)fprintf(stderr, "flotilla: cannot write to stdout: %s\n", strerror(errno));
    return status == CMD_OK ? CMD_FAILED : status;
}

int main(int argc, char **argv)
{
    process_start();
    if (argc < 2) {
        usage(stderr);
        return CMD_USAGE;
    }
    if (opts_is_help(argv[1])) {
        usage(stdout);
        return CMD_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        opts_print_version(&(struct opts_usage){.line = "flotilla", .version = version_text});
        return finish(CMD_OK);
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return finish(commands[i].run(argc - 1, argv + 1));
    (void)fprintf(stderr, "flotilla: unknown command '%s'\n", argv[1]);
    usage(stderr);
    return CMD_USAGE;
}
