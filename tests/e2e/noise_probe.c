/* Sends random and mutated messages to the sockets of running programs, and counts what came back:
 *
 *   noise_probe SECONDS SEED [key=FILE] (client|worker|push)=ENDPOINT[,KEY] ...
 *
 * With a key file, KEY is that of the other end. Prints "sent N replies N statuses CODE:COUNT ...".
 */
#include "common/base/clock.h"
#include "common/io/keys.h"
#include "common/io/net.h"
#include "tests/lib/random_msg.h"

#include <stdlib.h>
#include <string.h>

#define TARGETS 16

struct target {
    char kind; /* 'c', 'w' or 'p': client, worker, push */
    struct net_sock *sock;
};

static uint64_t sent, replies, statuses[32];

static void take_replies(struct net_sock *s)
{
    static struct arena arena;
    struct net_msg m;
    while (net_recv(s, &m) == 0) {
        struct msg_reply h;
        struct errmsg em;
        struct net_frame f = net_msg_frame(&m, 0);
        replies++;
        if (wire_get_reply(f.data, f.bytes, &arena, &h, &em) == 0 && h.end &&
            (unsigned)h.status < 32)
            statuses[h.status]++;
        net_msg_close(&m);
    }
}

/* A call's header: mostly right, so that the body is looked at. */
static void header(struct rng *r, struct buf *to)
{
    static const char *const methods[] = {"Generate", "Ping",   "Cancel", "Tokenize",
                                          "Models",   "Status", "None"};
    struct msg_call h = {.version = rng_below(r, 20) ? PROTO_VERSION : (uint32_t)rng_below(r, 4),
                         .client = {7, rng_below(r, 3)},
                         .call = rng_below(r, 1000),
                         .deadline_ms = rng_below(r, 3) * 500};
    (void)snprintf(h.method, sizeof h.method, "%s", methods[rng_below(r, rng_below(r, 3) ? 1 : 7)]);
    wire_put_call(&h, to);
}

static void send_one(struct rng *r, struct target *t)
{
    static struct buf a, b;
    enum random_kind kind = (enum random_kind)rng_below(r, RANDOM_KINDS);
    if (t->kind == 'c' && rng_below(r, 4)) kind = RANDOM_GENERATE;
    if (t->kind == 'w' && rng_below(r, 4)) kind = RANDOM_FROM_WORKER;
    random_msg(r, kind, &b);
    if (t->kind == 'c') header(r, &a);
    if (rng_below(r, 3)) mutate(r, &b);
    if (t->kind == 'c' && rng_below(r, 6) == 0) mutate(r, &a);
    struct net_frame f[3] = {{a.data, a.len}, {b.data, b.len}, {b.data, b.len}};
    unsigned n = t->kind == 'c' ? 2 : 1;
    const struct net_frame *first = t->kind == 'c' ? f : f + 1;
    if (rng_below(r, 12) == 0) n = 1 + (unsigned)rng_below(r, t->kind == 'c' ? 3 : 2);
    if (net_send(t->sock, first, n) == 0) sent++;
}

static int use_key(struct net *net, const char *path, struct errmsg *em)
{
    struct key_pair own;
    int rc = keys_read(path, &own, em);
    return rc < 0 ? rc : net_secure(net, &own, em);
}

static int open_target(struct net *net, char *arg, struct target *t, struct errmsg *em)
{
    char *endpoint = strchr(arg, '=') + 1, *comma = strchr(arg, ',');
    const struct net_limits limits = {.hwm = 64, .frame_max = 1 << 24};
    struct key key = {{0}};
    t->kind = arg[0];
    if (comma) *comma = 0;
    int rc = net_socket(net, t->kind == 'p' ? NET_PUSH : NET_DEALER, limits, &t->sock, em);
    if (rc == 0 && comma && !key_parse(comma + 1, &key)) return ERR_CONF;
    if (rc == 0) net_expect(t->sock, &key);
    return rc < 0 ? rc : net_connect(t->sock, endpoint, em);
}

int main(int argc, char **argv)
{
    struct errmsg em = {0};
    struct net *net;
    struct target targets[TARGETS];
    size_t n = 0;
    if (argc < 4 || argc - 3 > TARGETS || net_open(&net, &em) < 0) return 2;
    struct rng r = {strtoull(argv[2], NULL, 10)};
    for (int i = 3; i < argc; i++) {
        int rc = argv[i][0] == 'k' ? use_key(net, argv[i] + 4, &em)
                                   : open_target(net, argv[i], &targets[n++], &em);
        if (rc < 0) {
            (void)fprintf(stderr, "%s: %s\n", argv[i], em.text);
            return 2;
        }
    }
    uint64_t end = clock_ns() + strtoull(argv[1], NULL, 10) * NS_PER_S;
    while (clock_ns() < end) {
        for (size_t i = 0; i < n; i++) send_one(&r, &targets[i]);
        struct net_poll p[TARGETS];
        for (size_t i = 0; i < n; i++) p[i] = (struct net_poll){.sock = targets[i].sock};
        (void)net_poll(p, (unsigned)n, 2);
        for (size_t i = 0; i < n; i++)
            if (targets[i].kind == 'c') take_replies(targets[i].sock);
    }
    (void)printf("sent %llu replies %llu statuses", (unsigned long long)sent,
                 (unsigned long long)replies);
    for (int i = 0; i < 32; i++)
        if (statuses[i]) (void)printf(" %d:%llu", i, (unsigned long long)statuses[i]);
    (void)printf("\n");
    for (size_t i = 0; i < n; i++) net_sock_close(targets[i].sock);
    net_close(net);
    return 0;
}
