/* workers   N, or a list of names and of mappings with a name and wishes
 * replicas  K chains of N workers, or of the list's workers, shared out evenly; or a list for each
 *           chain, with the names of its workers in their order
 * split     measured, even, or how many layers each stage has */
#include "coordinator/config_workers.h"

#include "common/base/mem.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct taking {
    const char *path;
    struct config *c;
    struct errmsg *em;
};

static int bad(const struct taking *t, const struct conf_node *at, const char *key,
               const char *format, ...) __attribute__((format(printf, 4, 5)));

static int bad(const struct taking *t, const struct conf_node *at, const char *key,
               const char *format, ...)
{
    char reason[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return err_set(t->em, ERR_CONF, "%s:%zu:%zu: key '%s': %s", t->path, at->line, at->column, key,
                   reason);
}

/* What stands there, for an error. */
static const char *text_of(const struct conf_node *node)
{
    return node->shape == CONF_SCALAR     ? node->text
           : node->shape == CONF_SEQUENCE ? "a list"
                                          : "a mapping";
}

static int take_u32(const struct taking *t, const struct conf_node *node, const char *key,
                    uint32_t min, uint32_t max, uint32_t *ret)
{
    if (conf_node_u32(node, min, max, ret)) return 0;
    return bad(t, node, key, "'%.20s' is not a whole number in %" PRIu32 "..%" PRIu32,
               text_of(node), min, max);
}

/* ---- workers by name ---- */

static struct config_worker *find(const struct config *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_wishes; i++)
        if (strcmp(c->wishes[i].name, name) == 0) return &c->wishes[i];
    return NULL;
}

static struct config_worker *add(struct config *c, const char *name)
{
    c->wishes = mem_realloc(c->wishes, (c->n_wishes + 1) * sizeof *c->wishes);
    c->wishes[c->n_wishes] =
        (struct config_worker){.name = name, .replica = CONFIG_ANY, .stage = CONFIG_ANY};
    return &c->wishes[c->n_wishes++];
}

static int check_name(const struct taking *t, const struct conf_node *node, const char *key)
{
    if (node->shape != CONF_SCALAR) return bad(t, node, key, "needs a worker's name");
    if (strlen(node->text) < LIMIT_NAME_BYTES && node->text[0]) return 0;
    return bad(t, node, key, "a worker's name has 1 to %u bytes", LIMIT_NAME_BYTES - 1);
}

/* "6 GiB", "512MiB". */
static int take_memory(const struct taking *t, const struct conf_node *node, uint64_t *ret)
{
    static const char key[] = "workers.memory";
    uint64_t n = 0;
    const char *s = node->shape == CONF_SCALAR ? node->text : "";
    size_t digits = strspn(s, "0123456789");
    const char *unit = s + digits + strspn(s + digits, " ");
    for (size_t i = 0; i < digits && i < 8; i++) n = n * 10 + (uint64_t)(s[i] - '0');
    unsigned shift = strcmp(unit, "MiB") == 0 ? 20 : strcmp(unit, "GiB") == 0 ? 30 : 0;
    if (digits == 0 || digits > 7 || n == 0 || s[0] == '0' || shift == 0)
        return bad(t, node, key, "'%.20s' is not a size like 6 GiB or 512 MiB", text_of(node));
    *ret = n << shift;
    return 0;
}

static int take_prefer(const struct taking *t, const struct conf_node *node,
                       enum config_prefer *ret)
{
    const char *s = node->shape == CONF_SCALAR ? node->text : "";
    bool first = strcmp(s, "first") == 0;
    if (!first && strcmp(s, "last") != 0)
        return bad(t, node, "workers.prefer", "'%.20s' is neither first nor last", text_of(node));
    *ret = first ? CONFIG_FIRST : CONFIG_LAST;
    return 0;
}

static int take_wish(const struct taking *t, const struct conf_node *node, struct config_worker *w)
{
    char key[64];
    if (strcmp(node->key, "name") == 0) return 0;
    if (strcmp(node->key, "memory") == 0) return take_memory(t, node, &w->memory_bytes);
    if (strcmp(node->key, "prefer") == 0) return take_prefer(t, node, &w->prefer);
    if (strcmp(node->key, "max_layers") == 0)
        return take_u32(t, node, "workers.max_layers", 1, 65535, &w->layers_max);
    if (strcmp(node->key, "threads") == 0)
        return take_u32(t, node, "workers.threads", 1, 4096, &w->threads);
    (void)snprintf(key, sizeof key, "workers.%.48s", node->key);
    return bad(t, node, key, "unknown");
}

static int take_worker(const struct taking *t, const struct conf_node *node)
{
    const struct conf_node *name = node->shape == CONF_SCALAR ? node : NULL;
    for (size_t i = 0; i < node->n && node->shape == CONF_MAPPING; i++)
        if (strcmp(node->items[i].key, "name") == 0) name = &node->items[i];
    if (!name) return bad(t, node, "workers", "needs a worker's name, or a mapping with 'name'");
    int rc = check_name(t, name, "workers");
    if (rc < 0) return rc;
    if (find(t->c, name->text))
        return bad(t, name, "workers", "worker '%s' appears twice", name->text);
    struct config_worker *w = add(t->c, name->text);
    for (size_t i = 0; i < node->n && rc == 0 && node->shape == CONF_MAPPING; i++)
        rc = take_wish(t, &node->items[i], w);
    return rc;
}

/* ---- chains ---- */

static void set_chains(struct config *c, uint32_t n)
{
    mem_free(c->chains);
    c->chains = mem_zalloc(n * sizeof *c->chains);
    c->replicas = n;
}

static int take_chain(const struct taking *t, const struct conf_node *node, uint32_t replica)
{
    struct config *c = t->c;
    if (node->shape != CONF_SEQUENCE || node->n == 0 || node->n > LIMIT_STAGES)
        return bad(t, node, "replicas", "needs a list of 1 to %u workers for each replica",
                   LIMIT_STAGES);
    for (size_t i = 0; i < node->n; i++) {
        const struct conf_node *item = &node->items[i];
        int rc = check_name(t, item, "replicas");
        if (rc < 0) return rc;
        struct config_worker *w = find(c, item->text);
        if (w && w->replica != CONFIG_ANY)
            return bad(t, item, "replicas", "worker '%s' appears twice", item->text);
        if (!w) w = add(c, item->text);
        w->replica = replica;
        w->stage = (uint32_t)i;
    }
    c->chains[replica] = (uint32_t)node->n;
    return 0;
}

static int take_named_chains(const struct taking *t)
{
    const struct conf_node *node = &t->c->replicas_node;
    if (node->n == 0 || node->n > LIMIT_REPLICAS)
        return bad(t, node, "replicas", "needs 1 to %u lists of workers", LIMIT_REPLICAS);
    if (t->c->workers_node.shape == CONF_SCALAR)
        return bad(t, &t->c->workers_node, "workers",
                   "a number has no place beside 'replicas' with workers by name");
    set_chains(t->c, (uint32_t)node->n);
    int rc = 0;
    for (size_t i = 0; i < node->n && rc == 0; i++)
        rc = take_chain(t, &node->items[i], (uint32_t)i);
    return rc;
}

static int take_counted_chains(const struct taking *t)
{
    struct config *c = t->c;
    const struct conf_node *workers = &c->workers_node, *replicas = &c->replicas_node;
    uint32_t n = 1, each = 0, all = c->n_wishes;
    if (workers->shape == CONF_ABSENT)
        return err_set(t->em, ERR_CONF, "%s: key 'workers' is missing", t->path);
    int rc = replicas->shape == CONF_ABSENT
                 ? 0
                 : take_u32(t, replicas, "replicas", 1, LIMIT_REPLICAS, &n);
    if (rc == 0 && workers->shape == CONF_SCALAR)
        rc = take_u32(t, workers, "workers", 1, LIMIT_STAGES, &each);
    if (rc < 0) return rc;
    if (!each && (all < n || (all + n - 1) / n > LIMIT_STAGES))
        return bad(t, workers, "workers",
                   "%" PRIu32 " workers are not 1 to %u for each of %" PRIu32 " replicas", all,
                   LIMIT_STAGES, n);
    set_chains(c, n);
    for (uint32_t i = 0; i < n; i++) c->chains[i] = each ? each : all / n + (i < all % n);
    return 0;
}

/* ---- the cut ---- */

static int take_split(const struct taking *t)
{
    struct config *c = t->c;
    const struct conf_node *node = &c->split_node;
    const char *s = node->shape == CONF_SCALAR ? node->text : "";
    if (node->shape == CONF_ABSENT || strcmp(s, "measured") == 0) return 0;
    c->split = strcmp(s, "even") == 0 ? CONFIG_EVEN : CONFIG_GIVEN;
    if (c->split == CONFIG_EVEN) return 0;
    if (node->shape != CONF_SEQUENCE)
        return bad(t, node, "split",
                   "'%.20s' is neither measured, nor even, nor a list of numbers of layers",
                   text_of(node));
    for (uint32_t i = 0; i < c->replicas; i++)
        if (c->chains[i] != node->n)
            return bad(t, node, "split",
                       "%zu numbers of layers for a replica of %" PRIu32 " workers", node->n,
                       c->chains[i]);
    for (size_t i = 0; i < node->n; i++) {
        int rc = take_u32(t, &node->items[i], "split", 1, 65535, &c->given[i]);
        if (rc < 0) return rc;
    }
    return 0;
}

int config__take_workers(const char *path, struct config *c, struct errmsg *em)
{
    const struct taking t = {path, c, em};
    const struct conf_node *workers = &c->workers_node;
    int rc = 0;
    if (workers->shape == CONF_MAPPING)
        return bad(&t, workers, "workers", "needs a number or a list of workers");
    for (size_t i = 0; i < workers->n && rc == 0; i++) rc = take_worker(&t, &workers->items[i]);
    if (rc == 0)
        rc = c->replicas_node.shape == CONF_SEQUENCE ? take_named_chains(&t)
                                                     : take_counted_chains(&t);
    for (uint32_t i = 0; i < c->replicas && rc == 0; i++) {
        c->serving += c->chains[i];
        if (c->chains[i] > c->workers) c->workers = c->chains[i];
    }
    return rc == 0 ? take_split(&t) : rc;
}
