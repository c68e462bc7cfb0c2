/* `keygen`: a key for a coordinator, worker or client. */
#include "coordinator/cli/cmd.h"

#include "common/io/keys.h"
#include "common/text/json.h"

#include <stdio.h>
#include <string.h>

static void print(const struct key *public, bool json)
{
    char text[KEY_TEXT_BYTES];
    key_format(public, text);
    if (!json) {
        (void)printf("%s\n", text);
        return;
    }
    struct json *j = json_new_object();
    json_put_string(j, "public", text, strlen(text));
    json_print(j, stdout);
    json_free(j);
}

int cmd_keygen(int argc, char **argv)
{
    bool show = false, json = false;
    const struct opt table[] = {
        {"--show", 0, OPT_FLAG, &show, 0, 0, NULL, "make nothing: print the public key of FILE"},
        CMD_OPT_JSON(&json),
        {0},
    };
    const char *path[1];
    size_t n = 0;
    int status;
    if (!cmd_options("flotilla keygen FILE [--show] [--json]",
                     "  flotilla keygen worker1.key     # the public key is printed: it goes into "
                     "the cluster file\n"
                     "  flotilla keygen --show worker1.key\n",
                     table, argc, argv, path, 1, &n, &status))
        return status;
    struct errmsg em = {0};
    struct key_pair pair = {.public = {{0}}};
    int rc = n == 1 ? 0 : err_set(&em, ERR_CONF, "needs the name of one file");
    if (rc == 0 && show) rc = keys_read(path[0], &pair, &em);
    if (rc == 0 && !show) rc = keys_make(&pair, &em);
    if (rc == 0 && !show) rc = keys_write(path[0], &pair, &em);
    if (rc == 0) print(&pair.public, json);
    explicit_bzero(&pair, sizeof pair);
    return rc < 0 ? cmd_fail("keygen", rc, &em) : CMD_OK;
}
