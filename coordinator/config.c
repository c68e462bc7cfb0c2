#include "coordinator/config.h"
#include "coordinator/config_workers.h"

#include "common/base/addr.h"
#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/io/conf.h"
#include "common/io/keys.h"
#include "common/io/net.h"
#include "coordinator/core/route.h"
#include "proto/limits.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define N_KEYS 55
#define ROLE_KEYS_MAX 4096u /* of each role */

static const struct {
    const char *key;
    uint32_t role;
} key_lists[CONFIG_KEY_LISTS] = {{"keys.clients", KEY_CLIENT},
                                 {"keys.gateways", KEY_GATEWAY},
                                 {"keys.workers", KEY_WORKER},
                                 {"keys.admins", KEY_ADMIN}};

static void fill_table(struct config *c, bool model_given, struct conf_key *table)
{
    const struct conf_key keys[N_KEYS] = {
        {"model", CONF_STRING, &c->model, 0, 0, !model_given},
        {"name", CONF_STRING, &c->name, 0, 0, false},
        {"listen", CONF_STRING, &c->listen, 0, 0, false},
        {"ports.clients", CONF_U32, &c->client_port, 0, 65535, false},
        {"ports.workers", CONF_U32, &c->worker_port, 0, 65535, false},
        {"ports.results", CONF_U32, &c->result_port, 0, 65535, false},
        {"ports.metrics", CONF_U32, &c->metrics_port, 0, 65535, false},
        {"ports.http", CONF_U32, &c->http_port, 0, 65535, false},
        {"metrics", CONF_BOOL, &c->metrics, 0, 0, false},
        {"http.serve", CONF_BOOL, &c->http, 0, 0, false},
        {"http.connections", CONF_U32, &c->http_connections, 1, 100000, false},
        {"http.body_kib", CONF_U32, &c->http_body_kib, 1, LIMIT_CLIENT_BYTES >> 10, false},
        {"http.api_keys", CONF_STRING, &c->http_api_keys, 0, 0, false},
        {"http.certificate", CONF_STRING, &c->http_certificate, 0, 0, false},
        {"http.key", CONF_STRING, &c->http_key, 0, 0, false},
        {"http.cors", CONF_STRING, &c->http_cors, 0, 0, false},
        {"http.read", CONF_U32, &c->http_read_s, 1, 3600, false},
        {"http.stall", CONF_U32, &c->http_stall_s, 1, 3600, false},
        {"plaintext", CONF_BOOL, &c->plaintext, 0, 0, false},
        {"workers", CONF_NODE, &c->workers_node, 0, CONFIG_NODES_MAX, false},
        {"replicas", CONF_NODE, &c->replicas_node, 0, CONFIG_NODES_MAX, false},
        {"max_replicas", CONF_U32, &c->max_replicas, 1, LIMIT_REPLICAS, false},
        {"split", CONF_NODE, &c->split_node, 0, LIMIT_STAGES + 2, false},
        {"kv", CONF_STRING, &c->kv, 0, 0, false},
        {"pre", CONF_STRING, &c->pre, 0, 0, false},
        {"chat_template", CONF_STRING, &c->chat_template, 0, 0, false},
        {"draft", CONF_STRING, &c->draft, 0, 0, false},
        {"draft_len", CONF_STRING, &c->draft_len, 0, 0, false},
        {"draft_pipelined", CONF_BOOL, &c->drafts.pipelined, 0, 0, false},
        {"draft_threads", CONF_U32, &c->drafts.threads, 0, DRAFT_THREADS_MAX, false},
        {"draft_memory_mib", CONF_U32, &c->draft_memory_mib, 1, 1u << 20, false},
        {"ctx", CONF_U32, &c->ctx, 1, LIMIT_CONTEXT, false},
        {"kv_tokens", CONF_U32, &c->kv_tokens, LIMIT_PAGE, 1u << 30, false},
        {"chunk", CONF_U32, &c->chunk, 1, LIMIT_STEP_ROWS, false},
        {"window", CONF_U32, &c->window, 1, LIMIT_WINDOW, false},
        {"step_ms", CONF_U32, &c->step_ms, 0, 60000, false},
        {"policy", CONF_STRING, &c->policy, 0, 0, false},
        {"prefix_cache", CONF_BOOL, &c->prefix_cache, 0, 0, false},
        {"max_requests", CONF_U32, &c->max_requests, 1, LIMIT_LIVE, false},
        {"max_sequences", CONF_U32, &c->max_sequences, 1, LIMIT_LIVE, false},
        {"max_per_client", CONF_U32, &c->max_per_client, 1, LIMIT_LIVE, false},
        {"replica_wait", CONF_U32, &c->replica_wait_s, 0, 86400, false},
        {"deadline", CONF_U32, &c->deadline_s, 1, 86400, false},
        {"client_stall", CONF_U32, &c->client_stall_s, 1, 86400, false},
        {"drain", CONF_U32, &c->drain_s, 0, 86400, false},
        {"replan_after", CONF_U32, &c->replan_after_s, 0, 86400, false},
        {"limits.connections", CONF_U32, &c->connections, 1, 100000, false},
        {"limits.hwm", CONF_U32, &c->hwm, 1, 100000, false},
        {"worker_timeout_ms", CONF_U32, &c->worker_timeout_ms, 500, 600000, false},
        {"step_timeout_ms", CONF_U32, &c->step_timeout_ms, 500, 600000, false},
        {"keys.file", CONF_STRING, &c->key_file, 0, 0, false},
        {key_lists[0].key, CONF_LIST, &c->key_texts[0], 0, ROLE_KEYS_MAX, false},
        {key_lists[1].key, CONF_LIST, &c->key_texts[1], 0, ROLE_KEYS_MAX, false},
        {key_lists[2].key, CONF_LIST, &c->key_texts[2], 0, ROLE_KEYS_MAX, false},
        {key_lists[3].key, CONF_LIST, &c->key_texts[3], 0, ROLE_KEYS_MAX, false},
    };
    memcpy(table, keys, sizeof keys);
    table[N_KEYS] = (struct conf_key){0};
}

/* The key's host becomes an address that libzmq takes without asking anybody. */
static int resolve_listen(const char *path, struct config *c, struct errmsg *em)
{
    char address[ADDR_TEXT_BYTES];
    if (net_listen_address(c->listen, address, sizeof address, em) < 0)
        return err_wrap(em, ERR_CONF, "%s: key 'listen'", path);
    mem_free(c->listen);
    c->listen = mem_strdup(address);
    return 0;
}

/* Workers get the path, and run in other folders. */
static int make_absolute(struct config *c, struct errmsg *em)
{
    char folder[LIMIT_PATH_BYTES];
    struct buf path = {0};
    if (c->model[0] == '/') return 0;
    if (!getcwd(folder, sizeof folder))
        return err_set(em, ERR_CONF, "this process's folder: %s", strerror(errno));
    (void)buf_append(&path, folder, strlen(folder));
    (void)buf_append(&path, "/", 1);
    (void)buf_append(&path, c->model, strlen(c->model) + 1);
    mem_free(c->model);
    c->model = mem_strdup(path.data);
    c->model_relative = true;
    buf_close(&path);
    return 0;
}

/* `given` is the command line's, or NULL. */
static int take_model(const char *path, const char *given, struct config *c, struct errmsg *em)
{
    if (given) {
        mem_free(c->model);
        c->model = mem_strdup(given);
    }
    int rc = make_absolute(c, em);
    if (rc == 0 && strlen(c->model) >= LIMIT_PATH_BYTES)
        rc = err_set(em, ERR_CONF, "longer than %u bytes", LIMIT_PATH_BYTES - 1);
    if (rc == 0) return 0;
    return given ? err_wrap(em, rc, "--model") : err_wrap(em, rc, "%s: key 'model'", path);
}

static int take_keys(const char *path, struct config *c, struct errmsg *em)
{
    for (size_t l = 0; l < CONFIG_KEY_LISTS; l++) {
        const struct conf_list *list = &c->key_texts[l];
        if (list->n && !c->key_file)
            return err_set(em, ERR_CONF,
                           "%s: key 'keys.file' is missing: the coordinator needs a key of its own "
                           "beside '%s'",
                           path, key_lists[l].key);
        for (size_t i = 0; i < list->n; i++) {
            const struct conf_item *item = &list->items[i];
            struct key key;
            if (!key_parse(item->text, &key))
                return err_set(em, ERR_CONF,
                               "%s:%zu:%zu: key '%s': '%.60s' is no public key: 40 characters, as "
                               "flotilla keygen prints them",
                               path, item->line, item->column, key_lists[l].key, item->text);
            key_add(&c->allowed, &key, key_lists[l].role);
        }
    }
    return 0;
}

/* What is guessed ahead, of the keys that say so. */
static int take_drafts(const char *path, struct config *c, struct errmsg *em)
{
    int rc = draft_settings_source(&c->drafts, c->draft, em);
    if (rc < 0) return err_wrap(em, ERR_CONF, "%s: key 'draft'", path);
    rc = draft_settings_length(&c->drafts, c->draft_len, em);
    if (rc < 0) return err_wrap(em, ERR_CONF, "%s: key 'draft_len'", path);
    c->drafts.memory_bytes = (uint64_t)c->draft_memory_mib << 20;
    rc = draft_settings_check(&c->drafts, em);
    return rc < 0 ? err_wrap(em, ERR_CONF, "%s: key 'draft'", path) : 0;
}

static int check(const char *path, const struct config *c, struct errmsg *em)
{
    if (c->key_file && c->plaintext)
        return err_set(em, ERR_CONF,
                       "%s: key 'plaintext': true has no place beside 'keys', with which nothing "
                       "is plaintext",
                       path);
    if (!addr_is_loopback(c->listen) && !c->plaintext && !c->key_file)
        return err_set(em, ERR_CONF,
                       "%s: key 'listen': %s is not loopback, and without 'keys' nothing on these "
                       "links is encrypted or authenticated: set 'plaintext: true' if the network "
                       "is yours alone",
                       path, c->listen);
    if (c->max_replicas && c->max_replicas < c->replicas)
        return err_set(em, ERR_CONF,
                       "%s: key 'max_replicas': %" PRIu32 ", but 'replicas' asks for %" PRIu32,
                       path, c->max_replicas, c->replicas);
    enum route_policy policy;
    char names[ROUTE_POLICIES_TEXT_BYTES];
    if (!route_policy_parse(c->policy, &policy))
        return err_set(em, ERR_CONF, "%s: key 'policy': '%.60s' is unknown (%s)", path, c->policy,
                       route_policies_text(names));
    if (!c->http_certificate != !c->http_key)
        return err_set(em, ERR_CONF,
                       "%s: keys 'http.certificate' and 'http.key' go together: one is missing",
                       path);
    if (c->name && strlen(c->name) >= LIMIT_NAME_BYTES)
        return err_set(em, ERR_CONF, "%s: key 'name': longer than %u bytes", path,
                       LIMIT_NAME_BYTES - 1);
    return 0;
}

static struct config defaults(void)
{
    return (struct config){.listen = mem_strdup("127.0.0.1"),
                           .kv = mem_strdup("f16"),
                           .policy = mem_strdup("auto"),
                           .draft = mem_strdup("off"),
                           .draft_len = mem_strdup("auto"),
                           .drafts = DRAFT_DEFAULTS,
                           .draft_memory_mib = (uint32_t)(DRAFT_MEMORY_BYTES >> 20),
                           .client_port = 7070,
                           .worker_port = 7071,
                           .result_port = 7072,
                           .metrics_port = 7073,
                           .http_port = 8080,
                           .http = true,
                           .http_connections = 1024,
                           .http_body_kib = 4096,
                           .http_read_s = 30,
                           .http_stall_s = 60,
                           .metrics = true,
                           .chunk = 512,
                           .prefix_cache = true,
                           .max_requests = 256,
                           .replica_wait_s = 30,
                           .deadline_s = 600,
                           .client_stall_s = 60,
                           .drain_s = 20,
                           .replan_after_s = 60,
                           .hwm = 64,
                           .connections = 1024,
                           .worker_timeout_ms = 1500,
                           .step_timeout_ms = 2000};
}

int config_read(const char *path, const char *model, struct config *ret, struct errmsg *em)
{
    struct config c = defaults();
    struct conf_key table[N_KEYS + 1];
    fill_table(&c, model != NULL, table);
    int rc = conf_read(path, table, em);
    if (rc == 0) rc = take_model(path, model, &c, em);
    if (rc == 0) rc = config__take_workers(path, &c, em);
    if (rc == 0) rc = resolve_listen(path, &c, em);
    if (rc == 0) rc = take_keys(path, &c, em);
    if (rc == 0) rc = take_drafts(path, &c, em);
    if (rc == 0) rc = check(path, &c, em);
    if (rc == 0 && c.key_file && keys_read(c.key_file, &c.own, em) < 0)
        rc = err_wrap(em, ERR_CONF, "%s: key 'keys.file'", path);
    c.path = strcmp(path, "-") == 0 ? NULL : path;
    if (rc < 0)
        config_close(&c);
    else
        *ret = c;
    return rc;
}

int config_read_allowed(const struct config *c, struct key_list *ret, struct errmsg *em)
{
    if (!c->path) return err_set(em, ERR_CONF, "the cluster file came by stdin");
    struct config now = defaults();
    struct conf_key table[N_KEYS + 1];
    fill_table(&now, true, table);
    int rc = conf_read(c->path, table, em);
    if (rc == 0) rc = take_keys(c->path, &now, em);
    if (rc == 0 && !now.key_file)
        rc = err_set(em, ERR_CONF,
                     "%s: key 'keys.file' is missing: to do without keys takes a restart", c->path);
    if (rc == 0) {
        *ret = now.allowed;
        now.allowed = (struct key_list){.items = NULL};
    }
    config_close(&now);
    return rc;
}

int config_parse(const char *name, const char *text, size_t len, struct config *ret,
                 struct errmsg *em)
{
    struct config c = defaults();
    struct conf_key table[N_KEYS + 1];
    fill_table(&c, false, table);
    int rc = conf_parse(name, text, len, table, em);
    if (rc == 0) rc = take_model(name, NULL, &c, em);
    if (rc == 0) rc = config__take_workers(name, &c, em);
    if (rc == 0) rc = take_keys(name, &c, em);
    if (rc == 0) rc = take_drafts(name, &c, em);
    if (rc == 0) rc = check(name, &c, em);
    if (rc < 0)
        config_close(&c);
    else
        *ret = c;
    return rc;
}

const char *config_key(uint32_t idx)
{
    struct config c = {.model = NULL};
    struct conf_key table[N_KEYS + 1];
    fill_table(&c, false, table);
    return idx < N_KEYS ? table[idx].name : NULL;
}

void config_close(struct config *c)
{
    struct conf_key table[N_KEYS + 1];
    fill_table(c, false, table);
    conf_free(table);
    key_list_close(&c->allowed);
    mem_free(c->chains);
    mem_free(c->wishes);
    explicit_bzero(&c->own, sizeof c->own);
}

int config_check_key(const char *name, const char *text, struct errmsg *em)
{
    struct config c = {0};
    struct conf_key table[N_KEYS + 1];
    fill_table(&c, false, table);
    for (size_t i = 0; i < N_KEYS; i++) table[i].needed = false;
    int rc = conf_parse(name, text, strlen(text), table, em);
    conf_free(table);
    return rc;
}
