/* The keys of the cluster file: each value reaches the configuration, and from there the core; what
 * is out of range is refused by the key's name; the example file has every key, with its default.
 */
#include "coordinator/setup.h"

#include "common/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define GIVEN "model: /m.gguf\nworkers: 2\n"

static const struct arch_dims dims = {.n_layers = 12,
                                      .hidden = 64,
                                      .vocab = 1000,
                                      .n_heads = 4,
                                      .n_kv_heads = 4,
                                      .head_size = 16,
                                      .ctx_train = 4096};

static struct setup_model nothing; /* of which setup_close has nothing to free */

static int read_text(const char *text, struct config *ret, struct errmsg *em)
{
    return config_parse("c.yaml", text, strlen(text), ret, em);
}

/* The core's configuration with these lines beside the two keys that every file needs. */
static struct core_config core_with(const char *lines, struct config *ret)
{
    char text[1024];
    struct errmsg em = {0};
    struct setup_model m = {.dims = &dims, .path = "/m.gguf", .digest = 9};
    (void)snprintf(text, sizeof text, GIVEN "%s", lines);
    if (read_text(text, ret, &em) < 0) fail_msg("%s: %s", lines, em.text);
    return setup_core(ret, &m, 5, "tcp://:9");
}

static void test_defaults(void **state)
{
    (void)state;
    struct config c;
    struct core_config k = core_with("", &c);
    assert_string_equal(c.model, "/m.gguf");
    assert_string_equal(c.listen, "127.0.0.1");
    assert_string_equal(c.kv, "f16");
    assert_true(c.client_port == 7070 && c.worker_port == 7071 && c.result_port == 7072 &&
                c.metrics_port == 7073 && c.http_port == 8080);
    assert_true(c.http && c.http_connections == 1024 && c.http_body_kib == 4096 &&
                c.http_read_s == 30 && c.http_stall_s == 60 && !c.http_api_keys &&
                !c.http_certificate && !c.http_cors && !c.chat_template);
    assert_true(c.metrics && !c.plaintext && !c.name && c.hwm == 64 && c.client_stall_s == 60);
    assert_true(k.n_replicas == 1 && k.n_wanted == 1 && k.policy == ROUTE_AUTO);
    assert_true(k.replan_after_ns == 60 * NS_PER_S);
    assert_true(k.draft.kind == DRAFT_OFF && k.draft.adaptive && k.draft.pipelined);
    assert_true(c.drafts.threads == 0 && c.drafts.memory_bytes == DRAFT_MEMORY_BYTES);
    assert_true(k.n_stages == 2 && k.n_layers == 12 && k.width == 64 && k.vocab == 1000);
    assert_true(k.model_digest == 9 && k.incarnation == 5 && k.hash_seed == 5);
    assert_string_equal(k.results_endpoint, "tcp://:9");
    assert_true(k.kv_type == KV_F16 && k.ctx == 4096 && k.n_pages == 0);
    /* No size is named: by the workers' room, from 1,024 positions to what all sequences can use.
     */
    assert_true(k.pages_least == 1024 / 16 && k.pages_most == 256 * 4096 / 16);
    assert_true(k.rows_max == 512 && k.logits_max == LIMIT_STEP_LOGITS && k.window == 3 &&
                k.step_ns == 0);
    assert_true(k.share && k.max_live == 256 && k.max_running == 256 && k.max_per_client == 256);
    assert_true(k.replica_wait_ns == 30 * NS_PER_S && k.deadline_ns == 600 * NS_PER_S);
    assert_true(k.worker_timeout_ns == 1500 * NS_PER_MS && k.step_timeout_ns == 2000 * NS_PER_MS);
    assert_true(k.split == PLAN_BY_SPEED && !k.given && k.n_wishes == 0 && k.chains[0] == 2);
    setup_close(&k, &nothing);
    config_close(&c);
}

/* What holds with these lines. */
#define WITH(lines, holds)                                                                         \
    do {                                                                                           \
        struct config c;                                                                           \
        struct core_config k = core_with(lines, &c);                                               \
        (void)k;                                                                                   \
        if (!(holds)) fail_msg("%s: not %s", lines, #holds);                                       \
        setup_close(&k, &nothing);                                                                 \
        config_close(&c);                                                                          \
    } while (0)

static void test_each_key(void **state)
{
    (void)state;
    WITH("name: other\n", strcmp(c.name, "other") == 0);
    WITH("listen: 127.0.0.9\n", strcmp(c.listen, "127.0.0.9") == 0);
    WITH("listen: 0.0.0.0\nplaintext: true\n", c.plaintext && k.plaintext);
    WITH("replicas: 3\n", k.n_replicas == 3 && k.n_stages == 2 && k.max_workers == 64);
    WITH("replicas: 40\n", k.n_replicas == 40 && k.max_workers == 160);
    WITH("split: measured\n", k.split == PLAN_BY_SPEED);
    WITH("split: even\n", k.split == PLAN_EVEN);
    WITH("split: [11, 1]\n", k.split == PLAN_GIVEN && k.given[0] == 11 && k.given[1] == 1);
    WITH("ports: {clients: 1, workers: 2, results: 3, metrics: 4}\n",
         c.client_port == 1 && c.worker_port == 2 && c.result_port == 3 && c.metrics_port == 4);
    WITH("metrics: false\n", !c.metrics);
    WITH("ports: {http: 5}\n", c.http_port == 5 && c.http);
    WITH("http: {serve: false}\n", !c.http);
    WITH("http: {connections: 7, body_kib: 8, read: 9, stall: 10}\n",
         c.http_connections == 7 && c.http_body_kib == 8 && c.http_read_s == 9 &&
             c.http_stall_s == 10);
    WITH("http: {api_keys: a, certificate: b, key: c, cors: d}\n",
         strcmp(c.http_api_keys, "a") == 0 && strcmp(c.http_certificate, "b") == 0 &&
             strcmp(c.http_key, "c") == 0 && strcmp(c.http_cors, "d") == 0);
    WITH("chat_template: t\n", strcmp(c.chat_template, "t") == 0);
    WITH("kv: q8_0\n", k.kv_type == KV_Q8_0);
    WITH("ctx: 2000\n", k.ctx == 2000 && k.pages_least == 125 && k.pages_most == 256 * 125);
    WITH("ctx: 8000\n", k.ctx == 4096); /* the model's own limit */
    WITH("ctx: 100\n", k.ctx == 100 && k.pages_least == 7);
    WITH("kv_tokens: 65537\n", k.n_pages == 4097 && k.ctx == 4096);
    WITH("chunk: 32\n", k.rows_max == 32 && k.logits_max == 32);
    WITH("chunk: 4096\n", k.rows_max == 4096 && k.logits_max == LIMIT_STEP_LOGITS);
    WITH("window: 7\n", k.window == 7);
    WITH("step_ms: 40\n", k.step_ns == 40 * NS_PER_MS);
    WITH("policy: round_robin\n", k.policy == ROUTE_ROUND_ROBIN);
    WITH("policy: near_min\n", k.policy == ROUTE_NEAR_MIN);
    WITH("prefix_cache: false\n", !k.share);
    WITH("max_requests: 40\n", k.max_live == 40 && k.max_running == 40 && k.max_per_client == 40);
    WITH("max_sequences: 3\n",
         k.max_running == 3 && k.max_live == 256 && k.pages_most == 3 * 4096 / 16);
    WITH("max_sequences: 9\nmax_requests: 4\n", k.max_running == 4);
    WITH("max_per_client: 5\n", k.max_per_client == 5 && k.max_live == 256);
    WITH("replica_wait: 0\n", k.replica_wait_ns == 0);
    WITH("replica_wait: 7\n", k.replica_wait_ns == 7 * NS_PER_S);
    WITH("deadline: 7\n", k.deadline_ns == 7 * NS_PER_S && c.deadline_s == 7);
    WITH("drain: 0\n", c.drain_s == 0);
    WITH("replicas: 2\nmax_replicas: 40\n",
         k.n_replicas == 40 && k.n_wanted == 2 && k.max_workers == 160);
    WITH("replan_after: 7\n", k.replan_after_ns == 7 * NS_PER_S);
    WITH("replan_after: 0\n", k.replan_after_ns == 0);
    WITH("limits: {connections: 7}\n", c.connections == 7 && c.hwm == 64);
    WITH("pre: qwen2\n", strcmp(c.pre, "qwen2") == 0);
    WITH("client_stall: 7\n", c.client_stall_s == 7);
    WITH("limits:\n  hwm: 7\n", c.hwm == 7);
    WITH("worker_timeout_ms: 700\n", k.worker_timeout_ns == 700 * NS_PER_MS);
    WITH("step_timeout_ms: 700\n", k.step_timeout_ns == 700 * NS_PER_MS);
}

/* Of the named worker; NULL: the file wishes nothing of it. */
static const struct core_wish *wish(const struct core_config *k, const char *name)
{
    for (uint32_t i = 0; i < k->n_wishes; i++)
        if (strcmp(k->wishes[i].name, name) == 0) return &k->wishes[i];
    return NULL;
}

static struct core_config core_of(const char *text, struct config *ret)
{
    struct errmsg em = {0};
    struct setup_model m = {.dims = &dims, .path = "/m.gguf", .digest = 9, .header = 10};
    if (read_text(text, ret, &em) < 0) fail_msg("%s: %s", text, em.text);
    return setup_core(ret, &m, 5, "tcp://:9");
}

/* A model file may name any window: one that is wider than the context counts as one as wide. As
 * they stand, 134217190 would make 2^32 windowed pages of the pool, which is none, and 4294967290
 * none for a sequence. */
static void test_wide_windows(void **state)
{
    (void)state;
    static const struct {
        uint32_t window, want;
    } cases[] = {{0, 0},
                 {1, 1},
                 {4095, 4095},
                 {4096, 4096},
                 {4097, 4096},
                 {134217190, 4096},
                 {134217201, 4096},
                 {4294967283, 4096},
                 {UINT32_MAX, 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config c;
        struct errmsg em = {0};
        struct arch_dims d = dims;
        struct setup_model m = {.dims = &d, .path = "/m.gguf", .digest = 9};
        d.blocks[0].window = cases[i].window;
        assert_int_equal(read_text(GIVEN, &c, &em), 0);
        struct core_config k = setup_core(&c, &m, 5, "tcp://:9");
        assert_int_equal(k.attn_window, cases[i].want);
        setup_close(&k, &nothing);
        config_close(&c);
    }
}

/* Workers by name, and what the file wishes of them. */
static void test_workers(void **state)
{
    (void)state;
    struct config c;
    struct core_config k =
        core_of("model: /m\nworkers:\n  - a\n  - {name: b, memory: 6 GiB}\n"
                "  - name: c\n    memory: 512MiB\n    max_layers: 3\n"
                "    threads: 2\n    prefer: last\n  - {prefer: first, name: d}\n",
                &c);
    assert_true(k.n_stages == 4 && k.n_replicas == 1 && k.chains[0] == 4 && k.n_wishes == 4);
    assert_true(k.header_digest == 10);
    const struct core_wish *w = wish(&k, "a");
    assert_true(w->memory_bytes == 0 && w->layers_max == 0 && w->threads == 0 &&
                w->prefer == PLAN_ANYWHERE && w->replica == CORE_ANY_REPLICA &&
                w->stage == PLAN_ANY_STAGE);
    assert_true(wish(&k, "b")->memory_bytes == (uint64_t)6 << 30);
    w = wish(&k, "c");
    assert_true(w->memory_bytes == (uint64_t)512 << 20 && w->layers_max == 3 && w->threads == 2 &&
                w->prefer == PLAN_LAST);
    assert_true(wish(&k, "d")->prefer == PLAN_FIRST);
    setup_close(&k, &nothing);
    config_close(&c);
    k = core_of("model: /m\nworkers: [a, b, c, d, e]\nreplicas: 2\n", &c);
    assert_true(k.n_replicas == 2 && k.n_stages == 3 && k.chains[0] == 3 && k.chains[1] == 2);
    assert_true(k.window == 4 && c.serving == 5 && k.max_workers == 64);
    setup_close(&k, &nothing);
    config_close(&c);
}

/* Replicas of named workers, of different lengths. */
static void test_named_replicas(void **state)
{
    (void)state;
    struct config c;
    struct core_config k =
        core_of("model: /m\nreplicas: [[a, b, c], [d]]\nworkers:\n  - {name: d, threads: 2}\n", &c);
    assert_true(k.n_replicas == 2 && k.n_stages == 3 && k.chains[0] == 3 && k.chains[1] == 1);
    assert_true(k.n_wishes == 4 && c.serving == 4);
    assert_true(wish(&k, "a")->replica == 0 && wish(&k, "a")->stage == 0);
    assert_true(wish(&k, "c")->replica == 0 && wish(&k, "c")->stage == 2);
    assert_true(wish(&k, "d")->replica == 1 && wish(&k, "d")->stage == 0 &&
                wish(&k, "d")->threads == 2);
    setup_close(&k, &nothing);
    config_close(&c);
}

#define KEY_1 "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
#define KEY_2 "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"

static uint32_t roles(const struct config *c, const char *text)
{
    struct key k;
    assert_true(key_parse(text, &k));
    return key_roles(&c->allowed, &k);
}

/* Whose keys are admitted, and as what. With keys the cluster may leave this machine. */
static void test_keys(void **state)
{
    (void)state;
    WITH("keys: {file: /k}\n", strcmp(c.key_file, "/k") == 0 && c.allowed.n == 0);
    WITH("listen: 0.0.0.0\nkeys: {file: /k}\n", !k.plaintext);
    WITH("keys:\n  file: /k\n  clients: ['" KEY_1 "']\n  workers:\n    - '" KEY_2 "' # a comment\n",
         c.allowed.n == 2 && roles(&c, KEY_1) == KEY_CLIENT && roles(&c, KEY_2) == KEY_WORKER);
    WITH("keys:\n  file: /k\n  gateways: ['" KEY_1 "']\n  admins: [\"" KEY_1 "\", '" KEY_2 "']\n",
         roles(&c, KEY_1) == (KEY_GATEWAY | KEY_ADMIN) && roles(&c, KEY_2) == KEY_ADMIN);
}

static void refused(const char *text, const char *key)
{
    struct config c;
    struct errmsg em = {0};
    if (read_text(text, &c, &em) != ERR_CONF) fail_msg("accepted: %s", text);
    if (!strstr(em.text, key)) fail_msg("'%s' does not name '%s' (%s)", em.text, key, text);
}

/* The keys that say who serves, and with which layers. */
/* What is guessed ahead, and how much of it. */
/* Quantised keys and values need heads of whole blocks: it is said before anything is loaded. */
static void test_kv_and_head_size(void **state)
{
    (void)state;
    struct config c;
    struct errmsg em = {0};
    const struct arch_dims odd = {
        .n_layers = 4, .n_heads = 4, .n_kv_heads = 4, .head_size = 40, .ctx_train = 64};
    assert_int_equal(read_text(GIVEN "kv: q8_0\n", &c, &em), 0);
    assert_int_equal(setup_check(&c, NULL, &odd, "/m.gguf", &em), ERR_CONF);
    assert_non_null(strstr(em.text, "key 'kv'"));
    assert_non_null(strstr(em.text, "q8_0"));
    assert_non_null(strstr(em.text, "40"));
    config_close(&c);
}

static void test_drafts(void **state)
{
    (void)state;
    struct config c;
    struct core_config k = core_with("draft: ngram\ndraft_len: 32\ndraft_pipelined: false\n"
                                     "draft_threads: 3\ndraft_memory_mib: 5\n",
                                     &c);
    assert_true(k.draft.kind == DRAFT_NGRAM && !k.draft.adaptive && !k.draft.pipelined);
    assert_true(k.draft.length == 32 && c.drafts.threads == 3 && c.drafts.memory_bytes == 5 << 20);
    setup_close(&k, &nothing);
    config_close(&c);
    k = core_with("draft: recorded:/a b.ids\ndraft_len: 1\n", &c);
    assert_true(k.draft.kind == DRAFT_RECORDED && k.draft.length == 1);
    assert_string_equal(c.drafts.path, "/a b.ids");
    setup_close(&k, &nothing);
    config_close(&c);
    refused(GIVEN "draft: clever\n", "key 'draft': 'clever'");
    refused(GIVEN "draft: 'recorded:'\n", "key 'draft'");
    refused(GIVEN "draft_len: 0\n", "key 'draft_len': draft length 0");
    refused(GIVEN "draft_len: 33\n", "key 'draft_len': draft length 33");
    refused(GIVEN "draft_len: some\n", "key 'draft_len': draft length 'some'");
    refused(GIVEN "draft_threads: 65\n", "draft_threads");
    refused(GIVEN "draft_memory_mib: 0\n", "draft_memory_mib");
}

static void test_refused_workers(void **state)
{
    (void)state;
    refused(GIVEN "replicas: 0\n", "replicas");
    refused(GIVEN "replicas: 1025\n", "replicas");
    refused("model: /m\nworkers: 0\n", "workers");
    refused("model: /m\nworkers: 33\n", "workers");
#define LIST "model: /m\nworkers:\n  - a\n  - "
    refused(LIST "a\n", "c.yaml:4:5: key 'workers': worker 'a' appears twice");
    refused(LIST "{memory: 1 GiB}\n", "c.yaml:4:5: key 'workers': needs a worker's name");
    refused(LIST "[b]\n", "c.yaml:4:5: key 'workers': needs a worker's name");
    refused(LIST "{name: b, memory: 6}\n", "c.yaml:4:23: key 'workers.memory': '6' is not a size");
    refused(LIST "{name: b, memory: 0 GiB}\n", "'workers.memory': '0 GiB' is not");
    refused(LIST "{name: b, memory: 1 GB}\n", "'workers.memory': '1 GB' is not");
    refused(LIST "{name: b, memory: 12345678 MiB}\n", "'workers.memory'");
    refused(LIST "{name: b, memory: [1]}\n", "'workers.memory': 'a list' is not a size");
    refused(LIST "{name: b, max_layers: 0}\n", "c.yaml:4:27: key 'workers.max_layers': '0' is not");
    refused(LIST "{name: b, max_layers: x}\n", "'workers.max_layers': 'x' is not");
    refused(LIST "{name: b, threads: 0}\n", "c.yaml:4:24: key 'workers.threads': '0' is not");
    refused(LIST "{name: b, threads: 4097}\n", "'workers.threads': '4097' is not");
    refused(LIST "{name: b, prefer: middle}\n",
            "c.yaml:4:23: key 'workers.prefer': 'middle' is neither first nor last");
    refused(LIST "{name: b, color: 1}\n", "c.yaml:4:22: key 'workers.color': unknown");
    refused(LIST "{name: b, name: c}\n", "key 'workers': has a key twice");
    refused(LIST "{name: b, memory: ~}\n", "key 'workers': has an empty value");
    refused(LIST "{name: [[[b]]]}\n", "key 'workers': has too many lists inside each other");
    refused(LIST "&x b\n", "key 'workers': anchors and tags are not read");
    refused(LIST "''\n", "a worker's name has 1 to 63 bytes");
    refused("model: /m\nworkers: {a: 1}\n", "c.yaml:2:10: key 'workers': needs a number or a list");
    refused("model: /m\nworkers: []\n", "c.yaml:2:10: key 'workers': 0 workers are not 1 to 32");
    refused("model: /m\nworkers: [a]\nreplicas: 2\n", "1 workers are not 1 to 32 for each of 2");
    refused(GIVEN "replicas: [[a, b], [c, d]]\n", "a number has no place beside 'replicas'");
    refused("model: /m\nreplicas: [[a, b], [c, a]]\n",
            "c.yaml:2:24: key 'replicas': worker 'a' appears twice");
    refused("model: /m\nreplicas: [a]\n", "'replicas': needs a list of 1 to 32 workers");
    refused("model: /m\nreplicas: [[]]\n", "'replicas': needs a list of 1 to 32 workers");
    refused("model: /m\nreplicas: []\n", "'replicas': needs 1 to 1024 lists");
    refused("model: /m\nreplicas: [[[a]]]\n", "'replicas': needs a worker's name");
    refused("model: /m\nreplicas: {a: 1}\nworkers: 2\n", "key 'replicas': 'a mapping' is not");
    refused(GIVEN "split: odd\n", "c.yaml:3:8: key 'split': 'odd' is neither measured, nor even");
    refused(GIVEN "split: [1, 2, 3]\n", "key 'split': 3 numbers of layers for a replica of 2");
    refused(GIVEN "split: [1, 0]\n", "c.yaml:3:12: key 'split': '0' is not");
    refused("model: /m\nreplicas: [[a, b], [c]]\nsplit: [1, 2]\n",
            "key 'split': 2 numbers of layers for a replica of 1");
#undef LIST
}

static void test_elastic_refused(void **state)
{
    (void)state;
    refused(GIVEN "replicas: 3\nmax_replicas: 2\n", "max_replicas");
    refused(GIVEN "max_replicas: 1025\n", "max_replicas");
    refused(GIVEN "replan_after: 86401\n", "replan_after");
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t min, max;
    } numbers[] = {{"ctx", 1, LIMIT_CONTEXT},
                   {"kv_tokens", LIMIT_PAGE, 1u << 30},
                   {"chunk", 1, LIMIT_STEP_ROWS},
                   {"window", 1, LIMIT_WINDOW},
                   {"step_ms", 0, 60000},
                   {"max_requests", 1, LIMIT_LIVE},
                   {"max_sequences", 1, LIMIT_LIVE},
                   {"max_per_client", 1, LIMIT_LIVE},
                   {"replica_wait", 0, 86400},
                   {"deadline", 1, 86400},
                   {"client_stall", 1, 86400},
                   {"worker_timeout_ms", 500, 600000},
                   {"step_timeout_ms", 500, 600000}};
    char text[256];
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const char *key = numbers[i].key;
        const uint32_t good[] = {numbers[i].min, numbers[i].max};
        for (int k = 0; k < 2; k++) {
            struct config c;
            struct errmsg em = {0};
            (void)snprintf(text, sizeof text, GIVEN "%s: %u\n", key, good[k]);
            if (read_text(text, &c, &em) < 0) fail_msg("%s", em.text);
            config_close(&c);
        }
        (void)snprintf(text, sizeof text, GIVEN "%s: %u\n", key, numbers[i].max + 1);
        refused(text, key);
        if (numbers[i].min) {
            (void)snprintf(text, sizeof text, GIVEN "%s: %u\n", key, numbers[i].min - 1);
            refused(text, key);
        }
        static const char *const odd[] = {"!!int 600", "\"600\"", "&a 600", "*a",
                                          "[600]",     "6e2",     ""};
        for (size_t k = 0; k < sizeof odd / sizeof odd[0]; k++) {
            (void)snprintf(text, sizeof text, GIVEN "%s: %s\n", key, odd[k]);
            refused(text, key);
        }
        (void)snprintf(text, sizeof text, GIVEN "%s: %u\n%s: %u\n", key, numbers[i].max, key,
                       numbers[i].min);
        refused(text, "appears twice");
    }
    refused("model: /m\n", "workers");
    refused("workers: 2\n", "model");
    refused(GIVEN "workers: 2\n", "workers");
    refused(GIVEN "ports: {clients: 65536}\n", "ports.clients");
    refused(GIVEN "ports: {clients: 1}\nports: {clients: 2}\n", "ports.clients");
    refused(GIVEN "limits: {hwm: 0}\n", "limits.hwm");
    refused(GIVEN "metrics: \"true\"\n", "metrics");
    refused(GIVEN "kv: !!str f16\n", "kv");
    refused(GIVEN "policy: nosuch\n",
            "'nosuch' is unknown (auto, round_robin, least_loaded, affinity, cost");
    refused(GIVEN "listen: 10.0.0.1\n", "listen");
    refused(GIVEN "kv-tokens: 600\n", "kv-tokens");
    refused(GIVEN "keys: {clients: ['" KEY_1 "']}\n", "keys.file");
    refused(GIVEN "keys: {file: /k}\nplaintext: true\n", "plaintext");
    refused(GIVEN "keys:\n  file: /k\n  workers:\n    - '" KEY_1 "'\n    - short\n",
            ":7:7: key 'keys.workers': 'short'");
    refused(GIVEN "keys: {file: /k, workers: '" KEY_1 "'}\n", "'keys.workers': needs a list");
    refused(GIVEN "keys: {file: /k, workers: [[a]]}\n", "'keys.workers': needs a single value");
    refused(GIVEN "keys: {file: /k, workers: [~]}\n", "'keys.workers': has an empty item");
    refused(GIVEN "keys: {file: /k, workers: &a []}\n", "'keys.workers': needs a list, without");
    refused(GIVEN "keys: {file: /k, admin: []}\n", "keys.admin");
}

static void test_http_refused(void **state)
{
    (void)state;
    refused(GIVEN "ports: {http: 65536}\n", "ports.http");
    refused(GIVEN "http: {body_kib: 17409}\n", "http.body_kib");
    refused(GIVEN "http: {read: 0}\n", "http.read");
    refused(GIVEN "http: {certificate: x}\n", "http.key");
    refused(GIVEN "http: {key: x}\n", "http.certificate");
    refused(GIVEN "http: true\n", "http");
}

/* The example has the keys without a fixed default as comments, with values that are accepted. */
static void test_example(void **state)
{
    (void)state;
    static char all[16384], given[16384];
    char line[256];
    FILE *f = fopen(EXAMPLE, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *key = line + 1 + strspn(line + 1, " "), *colon = strchr(key, ':');
        bool commented = strncmp(line, "# ", 2) == 0 && colon && colon < key + strcspn(key, " \n");
        if (commented) strcat(all, line + 2);
        if (commented) continue;
        strcat(all, line);
        strcat(given, line);
    }
    (void)fclose(f);
    struct config c, want;
    struct errmsg em = {0};
    if (read_text(given, &c, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(read_text(GIVEN, &want, &em), 0);
    assert_string_equal(c.listen, want.listen);
    assert_string_equal(c.kv, want.kv);
    assert_string_equal(c.policy, want.policy);
#define SAME(field) assert_int_equal(c.field, want.field)
    SAME(client_port), SAME(worker_port), SAME(result_port), SAME(metrics_port), SAME(plaintext);
    SAME(http_port), SAME(http), SAME(http_connections), SAME(http_body_kib), SAME(http_read_s);
    SAME(http_stall_s);
    SAME(replicas), SAME(replan_after_s), SAME(metrics), SAME(prefix_cache), SAME(ctx),
        SAME(kv_tokens), SAME(chunk), SAME(window);
    SAME(step_ms), SAME(max_requests), SAME(max_sequences), SAME(max_per_client), SAME(deadline_s);
    SAME(replica_wait_s), SAME(client_stall_s), SAME(worker_timeout_ms), SAME(step_timeout_ms);
    SAME(hwm);
    config_close(&c);
    config_close(&want);
    if (read_text(all, &c, &em) < 0) fail_msg("%s", em.text);
    config_close(&c);
    const char *key;
    for (uint32_t i = 0; (key = config_key(i)); i++) {
        const char *part = strchr(key, '.') ? strchr(key, '.') + 1 : key;
        (void)snprintf(line, sizeof line, "%s:", part);
        if (!strstr(all, line)) fail_msg("the example has no %s", key);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_defaults),
                                       cmocka_unit_test(test_each_key),
                                       cmocka_unit_test(test_keys),
                                       cmocka_unit_test(test_wide_windows),
                                       cmocka_unit_test(test_workers),
                                       cmocka_unit_test(test_named_replicas),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_elastic_refused),
                                       cmocka_unit_test(test_refused_workers),
                                       cmocka_unit_test(test_kv_and_head_size),
                                       cmocka_unit_test(test_drafts),
                                       cmocka_unit_test(test_http_refused),
                                       cmocka_unit_test(test_example)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
