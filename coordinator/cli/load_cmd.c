/* `flotilla bench --cluster`: options. */
#include "coordinator/cli/cmd.h"
#include "coordinator/cli/load.h"

#include <string.h>

static int parse_scenario(const char *name, enum load_scenario *ret, struct errmsg *em)
{
    for (int i = 0; i < LOAD_SCENARIOS; i++)
        if (strcmp(name, load_scenario_name((enum load_scenario)i)) == 0) {
            *ret = (enum load_scenario)i;
            return 0;
        }
    return err_set(em, ERR_CONF,
                   "--scenario: '%s' is unknown (closed, poisson, shared-prefix, convoy)", name);
}

static int check(struct load_options *o, bool rate_given, struct errmsg *em)
{
    if (o->scenario == LOAD_SHARED_PREFIX && o->shared == 0) o->shared = 1000;
    if (o->prompt < o->shared + 1 && o->scenario != LOAD_CONVOY) o->prompt = o->shared + 32;
    if (rate_given && o->scenario != LOAD_POISSON)
        return err_set(em, ERR_CONF, "--rate goes with --scenario poisson");
    return 0;
}

int cmd_load(int argc, char **argv)
{
    struct load_options o = {.clients = 8, .prompt = 128, .tokens = 64, .seed = 1, .checks = 8};
    const char *scenario = "closed";
    float rate = 4.0f;
    bool json = false, rate_given = false;
    const struct opt table[] = {
        {"--cluster", 0, OPT_STRING, &o.cluster, 0, 0, NULL, "ADDR  a running cluster"},
        {"--scenario", 0, OPT_STRING, &scenario, 0, 0, NULL,
         "NAME  closed, poisson, shared-prefix, or convoy, whose numbers and lengths are fixed "
         "(closed)"},
        {"--clients", 'c', OPT_U32, &o.clients, 1, 4096, NULL, "N  requests at once (8)"},
        {"--requests", 'r', OPT_U32, &o.requests, 1, 1000000, NULL,
         "N  requests in all (4 a client)"},
        {"--rate", 0, OPT_F32, &rate, 1e-3, 1e6, &rate_given, "R  requests a second (4, poisson)"},
        {"--prompt-tokens", 'p', OPT_U32, &o.prompt, 1, 1 << 20, NULL,
         "P  tokens of a prompt (128)"},
        {"--tokens", 'n', OPT_U32, &o.tokens, 1, 1 << 20, NULL, "T  tokens of an answer (64)"},
        {"--shared-prefix", 0, OPT_U32, &o.shared, 0, 1 << 20, NULL,
         "S  first tokens of all prompts (0; 1000 with shared-prefix)"},
        {"--seed", 0, OPT_U64, &o.seed, 0, 0, NULL,
         "S  from which prompts and times are drawn (1)"},
        {"--model", 'm', OPT_STRING, &o.model, 0, 0, NULL,
         "FILE  check answers against the engine alone"},
        {"--kv", 0, OPT_STRING, &o.kv, 0, 0, NULL,
         "TYPE  the cluster's keys and values, for these checks (f16)"},
        {"--check", 0, OPT_U32, &o.checks, 1, 1000000, NULL, "N  answers that are checked (8)"},
        {"--out", 'o', OPT_STRING, &o.out, 0, 0, NULL, "FILE  one JSON line for each request"},
        {"--plot", 0, OPT_STRING, &o.plot, 0, 0, NULL, "FILE  an SVG of TTFT and ITL"},
        CMD_OPT_JSON(&json),
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options(
            "flotilla bench --cluster ADDR [--scenario NAME] [options]",
            "  flotilla bench --cluster tcp://127.0.0.1:7070 --clients 16 --tokens 128\n"
            "  flotilla bench --cluster tcp://127.0.0.1:7070 --scenario convoy --plot c.svg\n",
            table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    struct load_run run = {0};
    bool pass = false;
    o.rate = (double)rate;
    int rc = parse_scenario(scenario, &o.scenario, &em);
    if (rc == 0) rc = check(&o, rate_given, &em);
    if (rc == 0) rc = load_run(&o, &run, &em);
    if (rc == 0) rc = load_report(&o, &run, json, &pass, &em);
    load_run_close(&run);
    if (rc < 0) return cmd_fail("bench", rc, &em);
    return pass ? CMD_OK : CMD_FAILED;
}
