/* `drain` and `rebalance`: an admin's orders. The coordinator carries them out by itself; the
 * command waits for that, and says what it sees on stderr. */
#include "coordinator/cli/cmd.h"

#include "common/base/clock.h"
#include "common/client/tools.h"
#include "common/text/json.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS 200
/* A worker that a status does not list may be one that a coordinator which was just started again
 * does not know yet. */
#define GONE_NS (3 * NS_PER_S)

struct orders {
    const char *cluster;
    struct client_keys keys;
    struct msg_order order;
    uint32_t limit_s;
    bool has_limit, no_wait, json;
    char said[256]; /* the last line on stderr */
};

/* A change is worth a line. */
static void say(struct orders *o, const char *text)
{
    if (strcmp(text, o->said) == 0) return;
    (void)snprintf(o->said, sizeof o->said, "%s", text);
    (void)fprintf(stderr, "%s\n", text);
}

static int order(struct orders *o, struct client *c, const char *method, struct errmsg *em)
{
    const char *text = "";
    int rc = client_order(c, method, &o->order, &text, em);
    if (rc == 0) say(o, text);
    return rc;
}

static int open_client(struct orders *o, const char *name, struct client **ret, struct errmsg *em)
{
    if (!o->cluster) return err_set(em, ERR_CONF, "needs --cluster");
    if (name && strlen(name) >= LIMIT_NAME_BYTES)
        return err_set(em, ERR_CONF, "a name has at most %u bytes", LIMIT_NAME_BYTES - 1);
    (void)snprintf(o->order.name, sizeof o->order.name, "%s", name ? name : "");
    o->order.has_limit = o->has_limit;
    o->order.limit_ms = o->limit_s * 1000;
    return client_open_keys(o->cluster, &o->keys, ret, em);
}

/* The options that both have. */
#define ORDER_OPTIONS(o)                                                                           \
    {"--cluster", 0, OPT_STRING, &(o).cluster,                                                     \
     0,           0, NULL,       "ADDR  the coordinator's client address"},                        \
        {"--limit",                                                                                \
         0,                                                                                        \
         OPT_U32,                                                                                  \
         &(o).limit_s,                                                                             \
         0,                                                                                        \
         LIMIT_DEADLINE_MS / 1000,                                                                 \
         &(o).has_limit,                                                                           \
         "S  seconds that running answers have to end (the file's 'drain')"},                      \
        {"--no-wait", 0, OPT_FLAG, &(o).no_wait, 0, 0, NULL, "give the order, and do not wait"},   \
        CMD_OPT_KEYS(&(o).keys), CMD_OPT_JSON(&(o).json)

static void print_json(const char *what, const char *name, const char *state)
{
    struct json *j = json_new_object();
    json_put_string(j, what, name, strlen(name));
    json_put_string(j, "state", state, strlen(state));
    json_print(j, stdout);
    json_free(j);
}

/* ---- drain ---- */

static const struct msg_worker_status *find(const struct msg_worker_status *list, uint32_t n,
                                            const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0) return &list[i];
    return NULL;
}

/* NULL: the cluster does not know the worker. */
static const struct msg_worker_status *find_worker(const struct msg_status *s, const char *name)
{
    const struct msg_worker_status *w = find(s->spares, s->n_spares, name);
    for (uint32_t i = 0; i < s->n_replicas && !w; i++)
        w = find(s->replicas[i].workers, s->replicas[i].n_workers, name);
    return w;
}

/* Gives the order; *ret_pid: of the worker's process before, 0: there was none. */
static int order_drain(struct orders *o, struct client *c, uint32_t *ret_pid, struct errmsg *em)
{
    struct msg_status s;
    int rc = client_status(c, &s, em);
    if (rc < 0) return rc;
    const struct msg_worker_status *w = find_worker(&s, o->order.name);
    *ret_pid = w ? w->pid : 0;
    return order(o, c, "Drain", em);
}

/* Until the worker's process is gone, or another one has its name. Where it goes on, the
 * coordinator was started again and knows nothing of the order: it is given again. */
static int wait_drained(struct orders *o, struct client *c, uint32_t pid, struct errmsg *em)
{
    uint64_t seen_ns = clock_ns();
    bool told = false; /* to leave */
    for (;;) {
        struct msg_status s;
        char line[sizeof o->said];
        int rc = client_status(c, &s, em);
        if (rc < 0) return rc;
        const struct msg_worker_status *w = find_worker(&s, o->order.name);
        if (!w && (told || clock_ns() - seen_ns >= GONE_NS)) return 0;
        if (w && w->pid != pid) return 0;
        if (w) {
            seen_ns = clock_ns();
            told = strcmp(w->state, "drained") == 0;
            (void)snprintf(line, sizeof line, "worker %.64s: %.32s, %" PRIu32 " requests run",
                           w->name, w->state, s.running);
            say(o, line);
            if (!told && strcmp(w->state, "draining") != 0) rc = order(o, c, "Drain", em);
        }
        if (rc < 0) return rc;
        (void)usleep(LOOK_MS * 1000);
    }
}

int cmd_drain(int argc, char **argv)
{
    struct orders o = {.cluster = NULL};
    const struct opt table[] = {ORDER_OPTIONS(o), {0}};
    const char *name[1];
    size_t n = 0;
    int status;
    if (!cmd_options("flotilla drain WORKER --cluster ADDR [--limit S] [--no-wait] [--json]",
                     "  flotilla drain w2 --cluster tcp://127.0.0.1:7070            # until it has "
                     "left\n"
                     "  flotilla drain w2 --cluster tcp://127.0.0.1:7070 --limit 0  # replays at "
                     "once what it computes\n",
                     table, argc, argv, name, 1, &n, &status))
        return status;
    struct errmsg em = {0};
    struct client *c = NULL;
    int rc = n == 1 ? 0 : err_set(&em, ERR_CONF, "needs the name of a worker");
    if (rc == 0) rc = open_client(&o, name[0], &c, &em);
    uint32_t pid = 0;
    if (rc == 0) rc = order_drain(&o, c, &pid, &em);
    if (rc == 0 && !o.no_wait) rc = wait_drained(&o, c, pid, &em);
    client_close(c);
    if (rc < 0) return cmd_fail("drain", rc, &em);
    const char *state = o.no_wait ? "draining" : "gone";
    if (o.json)
        print_json("worker", o.order.name, state);
    else
        (void)printf("worker %s %s\n", o.order.name, o.no_wait ? "drains" : "has left");
    return CMD_OK;
}

/* ---- rebalance ---- */

/* The coordinator ends the order where a replica does not get up. */
static int check_up(const struct msg_status *s, const bool *planned, struct errmsg *em)
{
    for (uint32_t i = 0; i < s->n_replicas && i < LIMIT_REPLICAS; i++)
        if (planned[i] && !s->replicas[i].ready)
            return err_set(em, ERR_CLOSED, "replica %.64s is not ready: %.300s",
                           s->replicas[i].name, s->replicas[i].why);
    return 0;
}

static int wait_rebalanced(struct orders *o, struct client *c, struct errmsg *em)
{
    bool planned[LIMIT_REPLICAS] = {false};
    for (;;) {
        struct msg_status s;
        char line[sizeof o->said];
        bool any = false;
        int rc = client_status(c, &s, em);
        if (rc < 0) return rc;
        for (uint32_t i = 0; i < s.n_replicas && i < LIMIT_REPLICAS; i++) {
            const struct msg_replica_status *r = &s.replicas[i];
            if (!r->rebalancing || (o->order.name[0] && strcmp(r->name, o->order.name) != 0))
                continue;
            planned[i] = true;
            (void)snprintf(line, sizeof line, "replica %.64s: %.32s%s%.120s", r->name, r->state,
                           r->why[0] ? ": " : "", r->why);
            if (!any) say(o, line);
            any = true;
        }
        if (!any) return check_up(&s, planned, em);
        (void)usleep(LOOK_MS * 1000);
    }
}

int cmd_rebalance(int argc, char **argv)
{
    struct orders o = {.cluster = NULL};
    const struct opt table[] = {ORDER_OPTIONS(o), {0}};
    const char *name[1];
    size_t n = 0;
    int status;
    if (!cmd_options("flotilla rebalance [REPLICA] --cluster ADDR [--limit S] [--no-wait] [--json]",
                     "  flotilla rebalance --cluster tcp://127.0.0.1:7070    # one replica after "
                     "the other\n"
                     "  flotilla rebalance b --cluster tcp://127.0.0.1:7070\n",
                     table, argc, argv, name, 1, &n, &status))
        return status;
    struct errmsg em = {0};
    struct client *c = NULL;
    int rc = open_client(&o, n ? name[0] : NULL, &c, &em);
    if (rc == 0) rc = order(&o, c, "Rebalance", &em);
    if (rc == 0 && !o.no_wait) rc = wait_rebalanced(&o, c, &em);
    client_close(c);
    if (rc < 0) return cmd_fail("rebalance", rc, &em);
    const char *state = o.no_wait ? "ordered" : "done";
    if (o.json)
        print_json("replica", o.order.name, state);
    else
        (void)printf("%s\n", o.no_wait ? "ordered" : "the replicas are planned as measured");
    return CMD_OK;
}
