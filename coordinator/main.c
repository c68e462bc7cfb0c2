/* flotilla-coordinator: the cluster file, then the loop. */
#include "coordinator/loop.h"
#include "coordinator/setup.h"

#include "common/base/log.h"
#include "common/base/opts.h"
#include "common/base/process.h"
#include "common/base/version.h"
#include "coordinator/chat.h"

#include <stdio.h>
#include <stdlib.h>

static const struct opts_usage usage = {
    .line = "flotilla-coordinator --config FILE [--model FILE] [--check]",
    .version = version_text,
    .does = "Takes requests, forms Steps, and keeps the workers' chain alive.",
    .examples = "  flotilla-coordinator --config cluster.yaml --check\n"
                "  flotilla-coordinator --config cluster.yaml\n"};

/* The folder below the user's cache where models' hashes are kept; false: there is none. */
static bool manifest_folder(char *ret, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(ret, size, "%s/flotilla/manifests", cache);
    else if (home && home[0] == '/')
        n = snprintf(ret, size, "%s/.cache/flotilla/manifests", home);
    return n > 0 && (size_t)n < size;
}

/* The one that the file names, in place of the model's. */
static int check_template(const struct config *c, const struct model_file *m, struct errmsg *em)
{
    struct chat chat;
    if (!c->chat_template) return 0;
    int rc = chat_open_file(m, c->chat_template, &chat, em);
    if (rc < 0) return err_wrap(em, ERR_CONF, "key 'chat_template'");
    chat_close(&chat);
    return 0;
}

static int run(const char *path, const char *model_path, bool check_only, struct errmsg *em)
{
    char folder[4096];
    struct config config;
    struct model_file model;
    int rc = config_read(path, model_path, &config, em);
    if (rc < 0) return rc == ERR_NOTFOUND || rc == ERR_IO ? ERR_CONF : rc;
    rc = model_file_open(config.model, true, config.pre, &model, em);
    if (rc < 0) {
        config_close(&config);
        return ERR_CONF;
    }
    if (config.model_relative) log_info("the model is %s", config.model);
    rc = setup_check(&config, model.weights, &model.dims, model.path, em);
    if (rc == 0) rc = check_template(&config, &model, em);
    if (rc == 0 && check_only)
        log_stdout("%s: in order", path);
    else if (rc == 0)
        rc = loop_run(&config, &model, manifest_folder(folder, sizeof folder) ? folder : NULL, em);
    model_file_close(&model);
    config_close(&config);
    return rc;
}

int main(int argc, char **argv)
{
    const char *path = NULL, *model = NULL;
    bool check_only = false;
    const struct opt table[] = {
        {"--config", 'c', OPT_STRING, &path, 0, 0, NULL,
         "FILE  the cluster file (deploy/cluster.example.yaml); - reads stdin"},
        {"--model", 'm', OPT_STRING, &model, 0, 0, NULL,
         "FILE  the model, in place of the file's key 'model'; any bytes that a path may have"},
        {"--check", 0, OPT_FLAG, &check_only, 0, 0, NULL,
         "check the file and the model's header, and stop"},
        {0},
    };
    process_start();
    process_serve();
    log_program("flotilla-coordinator");
    log_open();
    struct errmsg em = {0};
    size_t n_rest;
    int rc = opts_parse(&usage, table, argc, argv, NULL, 0, &n_rest, &em);
    if (rc == ERR_CANCELLED) return 0; /* help or version: printed */
    if (rc == 0 && !path) rc = err_set(&em, ERR_CONF, "needs --config FILE");
    if (rc == 0) rc = run(path, model, check_only, &em);
    if (rc < 0) log_error("%s", em.text);
    log_close();
    if (rc == 0) return 0;
    return rc == ERR_CONF ? 2 : 1;
}
