#include "tests/lib/shell_world.h"

#include "common/base/mem.h"
#include "coordinator/setup.h"
#include "proto/wire.h"
#include "tests/lib/gguf_bytes.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FRAMES 3u
#define QUEUE_MAX 4096u

struct message {
    struct buf frames[FRAMES];
    unsigned n;
};

struct queue {
    struct message *items[QUEUE_MAX];
    size_t at, n;
};

static struct world *the_world;
static struct queue from_clients, from_workers, results;
static struct arena arena;
/* Stand for sockets, by their addresses. */
static char clients_sock, workers_sock, results_sock, link_sock, monitor_sock;
static bool link_told; /* that the link to the stage is up */
static struct epoch epoch;
static uint64_t spoke_ns; /* when the worker did, last */

static struct net_sock *sock(char *c)
{
    return (struct net_sock *)(void *)c;
}

static bool is_fake(const struct net_sock *s)
{
    const char *p = (const char *)(const void *)s;
    return p == &clients_sock || p == &workers_sock || p == &results_sock || p == &link_sock ||
           p == &monitor_sock;
}

static struct queue *queue_of(const struct net_sock *s)
{
    const char *p = (const char *)(const void *)s;
    return p == &clients_sock   ? &from_clients
           : p == &workers_sock ? &from_workers
           : p == &results_sock ? &results
                                : NULL;
}

static void push(struct queue *q, const struct net_frame *frames, unsigned n)
{
    struct message *m = mem_zalloc(sizeof *m);
    m->n = n;
    for (unsigned i = 0; i < n; i++)
        (void)buf_append(&m->frames[i], frames[i].data, frames[i].bytes);
    assert_true(q->at + q->n < QUEUE_MAX);
    q->items[q->at + q->n++] = m;
    if (q == &from_clients) the_world->n_waiting = q->n;
}

static void drop(struct message *m)
{
    for (unsigned i = 0; i < m->n; i++) buf_close(&m->frames[i]);
    mem_free(m);
}

/* ---- what the linker leads here ---- */

int __real_net_send(struct net_sock *s, const struct net_frame *f, unsigned n);
int __wrap_net_send(struct net_sock *s, const struct net_frame *f, unsigned n);
int __real_net_recv(struct net_sock *s, struct net_msg *m);
int __wrap_net_recv(struct net_sock *s, struct net_msg *m);
struct net_frame __real_net_msg_frame(const struct net_msg *m, unsigned i);
struct net_frame __wrap_net_msg_frame(const struct net_msg *m, unsigned i);
void __real_net_msg_close(struct net_msg *m);
void __wrap_net_msg_close(struct net_msg *m);
int __real_net_poll(struct net_poll *items, unsigned n, long ms);
int __wrap_net_poll(struct net_poll *items, unsigned n, long ms);
int __real_net_socket(struct net *n, enum net_kind kind, struct net_limits l, struct net_sock **ret,
                      struct errmsg *em);
int __wrap_net_socket(struct net *n, enum net_kind kind, struct net_limits l, struct net_sock **ret,
                      struct errmsg *em);
int __real_net_connect(struct net_sock *s, const char *endpoint, struct errmsg *em);
int __wrap_net_connect(struct net_sock *s, const char *endpoint, struct errmsg *em);
int __wrap_net_monitor(struct net *n, struct net_sock *s, struct net_sock **ret, struct errmsg *em);
enum net_event __wrap_net_monitor_next(struct net_sock *m);
void __wrap_net_monitor_close(struct net_sock *s, struct net_sock *m);
void __real_net_sock_close(struct net_sock *s);
void __wrap_net_sock_close(struct net_sock *s);
int __wrap_clock_gettime(clockid_t id, struct timespec *ret);

static void on_step(const struct net_frame *f);
static void on_to_worker(const struct net_frame *f);
static void on_reply(const struct net_frame *f);

int __wrap_clock_gettime(clockid_t id, struct timespec *ret)
{
    (void)id;
    uint64_t now = the_world ? the_world->now_ns : 0;
    *ret = (struct timespec){(time_t)(now / NS_PER_S), (long)(now % NS_PER_S)};
    return 0;
}

static int send_to_client(const struct net_frame *f)
{
    uint32_t route = (uint32_t)(*(const char *)f[0].data - 'A');
    assert_true(f[0].bytes == 1 && route < WORLD_ROUTES);
    the_world->n_tried++;
    if (the_world->taking[route] == GONE) return ERR_CLOSED;
    if (the_world->taking[route] == REFUSES) return ERR_AGAIN;
    if (the_world->taking[route] == TAKES_CREDIT && the_world->credit[route]-- == 0) {
        the_world->credit[route] = 0;
        return ERR_AGAIN;
    }
    if (the_world->fail_at && --the_world->fail_at == 0) return ERR_AGAIN;
    on_reply(f);
    return 0;
}

int __wrap_net_send(struct net_sock *s, const struct net_frame *f, unsigned n)
{
    if (!is_fake(s)) return __real_net_send(s, f, n);
    if (s == sock(&clients_sock)) {
        assert_int_equal(n, 3);
        return send_to_client(f);
    }
    if (s == sock(&workers_sock))
        on_to_worker(&f[1]);
    else
        on_step(f);
    return 0;
}

int __wrap_net_recv(struct net_sock *s, struct net_msg *m)
{
    if (!is_fake(s)) return __real_net_recv(s, m);
    struct queue *q = queue_of(s);
    *m = (struct net_msg){0};
    if (!q || q->n == 0) return ERR_AGAIN;
    struct message *got = q->items[q->at++];
    if (--q->n == 0) q->at = 0;
    if (q == &from_clients) the_world->n_waiting = q->n;
    m->n = got->n;
    m->roles = the_world->roles;
    (void)snprintf(m->peer, sizeof m->peer, "127.0.0.1");
    memcpy(m->frames[NET_FRAMES_MAX - 1].raw, &got, sizeof got);
    return 0;
}

/* The message that __wrap_net_recv took from a queue, or NULL for one of real sockets. It has a
 * peer and at most three frames; its pointer is in the place of the fourth. */
static struct message *mine(const struct net_msg *m)
{
    struct message *got = NULL;
    if (m->n && m->peer[0]) memcpy(&got, m->frames[NET_FRAMES_MAX - 1].raw, sizeof got);
    return got;
}

struct net_frame __wrap_net_msg_frame(const struct net_msg *m, unsigned i)
{
    struct message *got = mine(m);
    if (!got) return __real_net_msg_frame(m, i);
    return (struct net_frame){got->frames[i].data, got->frames[i].len};
}

void __wrap_net_msg_close(struct net_msg *m)
{
    struct message *got = mine(m);
    if (!got) {
        __real_net_msg_close(m);
        return;
    }
    drop(got);
    m->n = 0;
}

int __wrap_net_poll(struct net_poll *items, unsigned n, long ms)
{
    (void)ms; /* the test lets the time pass */
    for (unsigned i = 0; i < n; i++) {
        struct net_sock *s = items[i].sock;
        items[i].readable = items[i].writable = false;
        if (s && !is_fake(s)) {
            (void)__real_net_poll(&items[i], 1, 0);
        } else if (s) {
            struct queue *q = queue_of(s);
            items[i].readable = (q && q->n) || (s == sock(&monitor_sock) && !link_told);
            items[i].writable = items[i].want_write;
        }
    }
    return 0;
}

int __wrap_net_socket(struct net *n, enum net_kind kind, struct net_limits l, struct net_sock **ret,
                      struct errmsg *em)
{
    if (kind != NET_PUSH) return __real_net_socket(n, kind, l, ret, em);
    *ret = sock(&link_sock);
    return 0;
}

int __wrap_net_connect(struct net_sock *s, const char *endpoint, struct errmsg *em)
{
    return is_fake(s) ? 0 : __real_net_connect(s, endpoint, em);
}

int __wrap_net_monitor(struct net *n, struct net_sock *s, struct net_sock **ret, struct errmsg *em)
{
    (void)n;
    (void)s;
    (void)em;
    link_told = false;
    *ret = sock(&monitor_sock);
    return 0;
}

enum net_event __wrap_net_monitor_next(struct net_sock *m)
{
    (void)m;
    bool told = link_told;
    link_told = true;
    return told ? NET_EVENT_NONE : NET_EVENT_CONNECTED;
}

void __wrap_net_monitor_close(struct net_sock *s, struct net_sock *m)
{
    (void)s;
    (void)m;
}

void __wrap_net_sock_close(struct net_sock *s)
{
    if (s && !is_fake(s)) __real_net_sock_close(s);
}

/* ---- the worker: one stage ---- */

static void say(struct msg_from_worker m)
{
    struct buf b = {0};
    m.version = PROTO_VERSION;
    m.instance = (struct instance){7, 7};
    m.has_epoch = m.type != FROM_HELLO;
    m.epoch = epoch;
    wire_put_from_worker(&m, &b);
    struct net_frame f[2] = {{"w", 1}, {b.data, b.len}};
    push(&from_workers, f, 2);
    buf_close(&b);
    spoke_ns = the_world->now_ns;
}

static void on_to_worker(const struct net_frame *f)
{
    struct errmsg em = {0};
    struct msg_to_worker m;
    assert_int_equal(wire_get_to_worker(f->data, f->bytes, &arena, &m, &em), 0);
    if (m.type == TO_ASSIGN) {
        epoch = m.epoch;
        the_world->n_open = 0;
        say((struct msg_from_worker){.type = FROM_READY, .endpoint = "tcp://127.0.0.1:5"});
    } else if (m.type == TO_CONNECT) {
        say((struct msg_from_worker){.type = FROM_LINKED});
    }
}

/* Chooses the run's token, with log-probabilities where the request asked for them. */
static void choose(const struct msg_run *r, struct msg_run_result *ret)
{
    static int32_t tokens[LIMIT_STEP_RUNS], ids[LIMIT_STEP_RUNS][SAMPLING_TOP_MAX];
    static float chosen[LIMIT_STEP_RUNS], top[LIMIT_STEP_RUNS][SAMPLING_TOP_MAX];
    static uint32_t at;
    static struct {
        uint64_t request;
        bool logprobs;
        uint32_t top;
    } asked[LIMIT_LIVE];
    uint32_t slot = (uint32_t)(r->request % LIMIT_LIVE), pos = r->first_pos + r->n_rows;
    at = (at + 1) % LIMIT_STEP_RUNS;
    if (r->has_open) {
        the_world->n_open++;
        the_world->n_opened_grammars += r->open.grammar_bytes > 0;
        asked[slot].request = r->request;
        asked[slot].logprobs = r->open.sampling.logprobs;
        asked[slot].top = r->open.sampling.top_logprobs;
    }
    tokens[at] = the_world->always >= 0 ? the_world->always : (int32_t)(pos % 26);
    *ret = (struct msg_run_result){.request = r->request,
                                   .attempt = r->attempt,
                                   .sample = r->sample,
                                   .first_pos = pos,
                                   .n_tokens = 1,
                                   .tokens = &tokens[at]};
    if (the_world->run_error) {
        ret->error = the_world->run_error;
        ret->n_tokens = 0;
        the_world->run_error = NULL;
        return;
    }
    if (!asked[slot].logprobs) return;
    uint32_t n = asked[slot].top;
    chosen[at] = -(float)pos;
    for (uint32_t i = 0; i < n; i++) {
        ids[at][i] = (int32_t)i;
        top[at][i] = -(float)pos - (float)i / 32;
    }
    ret->logprobs = (struct msg_logprobs){&chosen[at], n, ids[at], top[at]};
}

/* The embedding of a prompt of n tokens is n, n + 1, ... False: it is not the prompt's last run. */
static bool embed(const struct msg_run *r, struct msg_run_result *ret)
{
    static float values[LIMIT_STEP_RUNS][WORLD_WIDTH];
    static uint32_t at;
    the_world->n_open += r->first_pos == 0;
    if (!msg_run_embeds(r)) return false;
    at = (at + 1) % LIMIT_STEP_RUNS;
    for (uint32_t i = 0; i < WORLD_WIDTH; i++) values[at][i] = (float)(r->embed + i);
    *ret = (struct msg_run_result){.request = r->request,
                                   .attempt = r->attempt,
                                   .sample = r->sample,
                                   .first_pos = r->embed + 1,
                                   .error = the_world->run_error,
                                   .embedding = values[at],
                                   .n_embedding = WORLD_WIDTH};
    the_world->run_error = NULL;
    return true;
}

static void on_step(const struct net_frame *f)
{
    static struct msg_run_result runs[LIMIT_STEP_RUNS];
    struct errmsg em = {0};
    struct msg_step s;
    struct buf b = {0};
    assert_int_equal(wire_get_step(f->data, f->bytes, &arena, &s, &em), 0);
    struct msg_result r = {.epoch = s.epoch, .number = s.number, .runs = runs, .n_timings = 1};
    assert_true(the_world->n_open >= s.n_closed);
    the_world->n_open -= s.n_closed;
    for (uint32_t i = 0; i < s.n_runs; i++) {
        if (s.runs[i].embed) r.n_runs += embed(&s.runs[i], &runs[r.n_runs]);
        if (s.runs[i].n_logits == 0) continue;
        if (s.runs[i].kind == RUN_PROBE)
            r.digest = 42;
        else
            choose(&s.runs[i], &runs[r.n_runs++]);
    }
    wire_put_result(&r, &b);
    push(&results, &(struct net_frame){b.data, b.len}, 1);
    buf_close(&b);
}

/* ---- what clients read ---- */

static struct seen *find(struct world *w, uint64_t call)
{
    for (size_t i = 0; i < w->n_seen; i++)
        if (w->seen[i].call == call) return &w->seen[i];
    w->seen = mem_realloc(w->seen, (w->n_seen + 1) * sizeof *w->seen);
    w->seen[w->n_seen] = (struct seen){.call = call};
    return &w->seen[w->n_seen++];
}

static void read_generate(struct seen *x, const struct msg_generate_reply *r)
{
    size_t len = strlen(x->text);
    if (r->n_tokens) {
        assert_true(r->first_index + r->n_tokens <= 512);
        memcpy(x->tokens + r->first_index, r->tokens, r->n_tokens * sizeof *r->tokens);
        x->n_tokens = r->first_index + r->n_tokens;
    }
    (void)snprintf(x->text + len, sizeof x->text - len, "%s", r->text);
    (void)snprintf(x->finish, sizeof x->finish, "%s", finish_text(r->finish_reason));
    if (r->has_usage) {
        x->n_usage++;
        x->n_prompt = r->n_prompt_tokens;
        x->seed = r->seed;
        x->open_thought = r->open_thought;
    }
    x->has_stop = r->has_stop;
    x->stop = r->stop;
    if (r->n_tokens && r->first_index == 0) x->cached = r->cached;
    if (r->n_embedding == WORLD_WIDTH) memcpy(x->embedding, r->embedding, sizeof x->embedding);
    x->n_embedding += r->n_embedding;
    for (uint32_t i = 0, at = 0; i < r->n_pieces; at += r->piece_bytes[i++]) {
        size_t n = strlen(x->pieces);
        (void)snprintf(x->pieces + n, sizeof x->pieces - n, "[%.*s]", (int)r->piece_bytes[i],
                       r->pieces + at);
    }
    for (uint32_t i = 0; r->logprobs.chosen && i < r->n_tokens; i++) {
        x->chosen[x->n_chosen++] = r->logprobs.chosen[i];
        for (uint32_t k = 0; k < r->logprobs.n_top; k++, x->n_top++) {
            x->top_ids[x->n_top] = r->logprobs.top_ids[i * r->logprobs.n_top + k];
            x->top[x->n_top] = r->logprobs.top[i * r->logprobs.n_top + k];
        }
    }
}

static void on_reply(const struct net_frame *f)
{
    struct errmsg em = {0};
    struct msg_reply h;
    struct msg_generate_reply r;
    struct msg_tokens tokens = {.n = 0};
    assert_int_equal(wire_get_reply(f[1].data, f[1].bytes, &arena, &h, &em), 0);
    struct seen *x = find(the_world, h.call);
    x->n_replies++;
    x->ended |= h.end;
    if (h.end) {
        x->status = h.status;
        x->retry_ms = h.retry_ms;
        x->restarting = h.restarting;
        (void)snprintf(x->message, sizeof x->message, "%s", h.message);
    }
    if (h.call >= WORLD_TOKENIZES) {
        if (h.end && h.status == STATUS_OK && f[2].bytes)
            assert_int_equal(wire_get_tokens(f[2].data, f[2].bytes, &arena, &tokens, &em), 0);
        x->n_ids = tokens.n;
    } else if (f[2].bytes && h.call < WORLD_OTHERS) {
        assert_int_equal(wire_get_generate_reply(f[2].data, f[2].bytes, &arena, &r, &em), 0);
        if (r.sample == 0) read_generate(x, &r);
    }
}

const struct seen *world_seen(struct world *w, uint64_t call)
{
    return find(w, call);
}

/* ---- the world ---- */

static struct vocab *make_vocab(void)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    struct vocab_string tokens[WORLD_VOCAB];
    int32_t types[WORLD_VOCAB];
    for (uint32_t i = 0; i < WORLD_VOCAB; i++) {
        tokens[i] = (struct vocab_string){letters + i, 1};
        types[i] = TOKEN_NORMAL;
    }
    tokens[26] = (struct vocab_string){"\xc4\xa0", 2}; /* a space */
    tokens[27] = (struct vocab_string){".", 1};
    tokens[28] = (struct vocab_string){"xxxxxxxxxxxxxxxx", WORLD_LONGEST};
    tokens[WORLD_EOS] = (struct vocab_string){"<e>", 3};
    types[WORLD_EOS] = TOKEN_CONTROL;
    struct vocab_spec s = {.model = {"gpt2", 4},
                           .pre = {"gpt-2", 5},
                           .tokens = tokens,
                           .types = types,
                           .n_tokens = WORLD_VOCAB,
                           .bos = -1,
                           .eos = WORLD_EOS,
                           .eot = -1,
                           .eom = -1,
                           .unknown = -1};
    struct vocab *v;
    struct errmsg em = {0};
    assert_int_equal(vocab_open(&s, &v, &em), 0);
    return v;
}

/* A header of one tensor, for the model's digest. */
static struct weights *make_gguf(void)
{
    static uint8_t bytes[4096];
    struct buf b = {0};
    struct weights *g;
    struct errmsg em = {0};
    put_header(&b, 1, 1);
    put_text_key(&b, "general.architecture", "llama");
    str(&b, "first");
    u32(&b, 1);
    u64(&b, 8);
    u32(&b, 0);
    u64(&b, 0);
    assert_true(b.len < 1024);
    memcpy(bytes, b.data, b.len);
    buf_close(&b);
    assert_int_equal(weights_parse(bytes, sizeof bytes, sizeof bytes, &g, &em), 0);
    return g;
}

static void read_config(struct world *w, const char *yaml)
{
    char path[] = "/tmp/flotilla-world-XXXXXX";
    struct errmsg em = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    (void)fprintf(f, "model: /none\nworkers: 1\nmetrics: false\nhttp: {serve: false}\n%s%s", yaml,
                  strstr(yaml, "kv_tokens") ? "" : "kv_tokens: 512\n");
    (void)fclose(f);
    int rc = config_read(path, NULL, &w->config, &em);
    (void)unlink(path);
    if (rc < 0) fail_msg("%s", em.text);
}

static void open_shell(struct world *w)
{
    struct shell *s = w->s = mem_zalloc(sizeof *s);
    struct errmsg em = {0};
    s->config = &w->config;
    s->model = &w->model;
    s->name = "m";
    s->now_ns = w->now_ns;
    assert_int_equal(net_open(&s->net, &em), 0);
    s->clients = sock(&clients_sock);
    s->workers = sock(&workers_sock);
    s->results = sock(&results_sock);
    static const int32_t eog = WORLD_EOS;
    struct setup_model m = {.dims = &w->model.dims, .path = w->model.path, .eog = &eog, .n_eog = 1};
    w->core = setup_core(s->config, &m, 77, "tcp://:9");
    w->message_bytes = methods__message_bytes(s, w->core.ctx);
    shell__open_tables(s, w->core.n_replicas, w->core.max_workers);
    s->core = core_open(&w->core);
    setup_close(&w->core, &m);
    calls__open(s);
    assert_int_equal(texts_open(s->net, &s->texts, &em), 0);
}

struct world *world_open(const char *yaml)
{
    struct world *w = the_world = mem_zalloc(sizeof *w);
    *w = (struct world){.now_ns = 1000 * NS_PER_S, .always = -1, .roles = KEY_ANY};
    w->next_tick_ns = w->now_ns;
    read_config(w, yaml);
    w->model =
        (struct model_file){.path = w->config.model, .weights = make_gguf(), .vocab = make_vocab()};
    w->model.dims.n_layers = 2;
    w->model.dims.hidden = WORLD_WIDTH;
    w->model.dims.vocab = WORLD_VOCAB;
    w->model.dims.ctx_train = 1024;
    open_shell(w);
    struct msg_from_worker hello = {.type = FROM_HELLO, .hello = {.embeds = true}};
    (void)snprintf(hello.hello.name, sizeof hello.hello.name, "w1");
    say(hello);
    for (int i = 0; i < 100 && !world_status(w)->ready; i++) world_run(w, 10);
    assert_true(world_status(w)->ready);
    return w;
}

static void clear(struct queue *q)
{
    while (q->n) drop(q->items[q->at + --q->n]);
    q->at = 0;
}

void world_close(struct world *w)
{
    struct shell *s = w->s;
    calls__close(s);
    core_close(s->core);
    offload_close(s->texts);
    shell__close_tables(s);
    net_close(s->net);
    buf_close(&s->out);
    buf_close(&s->body);
    buf_close(&s->pieces);
    buf_close(&s->piece_bytes);
    arena_close(&s->arena);
    arena_close(&s->body_arena);
    mem_free(s);
    clear(&from_clients);
    clear(&from_workers);
    clear(&results);
    arena_close(&arena);
    weights_close(w->model.weights);
    vocab_close(w->model.vocab);
    config_close(&w->config);
    mem_free(w->seen);
    mem_free(w);
    the_world = NULL;
}

void world_turn(struct world *w)
{
    struct queue kept = {.n = 0};
    if (w->paused) { /* the results stay where they are */
        kept = results;
        results = (struct queue){.n = 0};
    }
    shell__turn(w->s, &w->next_tick_ns);
    if (!w->paused) return;
    for (size_t i = 0; i < results.n; i++) kept.items[kept.at + kept.n++] = results.items[i];
    results = kept;
}

void world_run(struct world *w, uint64_t ms)
{
    for (uint64_t t = 0; t < ms; t += 10) {
        w->now_ns += 10 * NS_PER_MS;
        if (!w->silent && w->now_ns >= spoke_ns + 200 * NS_PER_MS)
            say((struct msg_from_worker){.type = FROM_HEARTBEAT});
        world_turn(w);
    }
}

void world_wait_text(struct world *w)
{
    struct net_poll p = {.sock = offload_socket(w->s->texts)};
    (void)__real_net_poll(&p, 1, 30000);
    assert_true(p.readable);
    world_turn(w);
}

void world_send(struct world *w, uint32_t route, uint64_t client, uint64_t call, const char *method,
                const void *body, size_t bytes)
{
    char id = (char)('A' + route);
    struct msg_call h = {.version = PROTO_VERSION, .client = {client, 1}, .call = call};
    struct buf header = {0};
    (void)w;
    (void)snprintf(h.method, sizeof h.method, "%s", method);
    wire_put_call(&h, &header);
    struct net_frame f[3] = {{&id, 1}, {header.data, header.len}, {body, bytes}};
    push(&from_clients, f, 3);
    buf_close(&header);
}

void world_generate(struct world *w, uint32_t route, uint64_t client, uint64_t call,
                    uint64_t deadline_ms, const struct msg_generate *g)
{
    char id = (char)('A' + route);
    struct msg_generate m = *g;
    struct msg_call h = {.version = PROTO_VERSION,
                         .method = "Generate",
                         .client = {client, 1},
                         .call = call,
                         .deadline_ms = deadline_ms};
    struct buf header = {0}, body = {0};
    (void)w;
    if (m.sampling.top_p == 0.0f) m.sampling.top_p = 1.0f;
    if (m.sampling.repetition == 0.0f) m.sampling.repetition = 1.0f;
    wire_put_call(&h, &header);
    wire_put_generate(&m, &body);
    struct net_frame f[3] = {{&id, 1}, {header.data, header.len}, {body.data, body.len}};
    push(&from_clients, f, 3);
    buf_close(&header);
    buf_close(&body);
}

void world_ping(struct world *w, uint32_t route, uint64_t client, const uint64_t *calls, uint32_t n)
{
    struct buf b = {0};
    wire_put_ping(calls, n, &b);
    world_send(w, route, client, WORLD_OTHERS, "Ping", b.data, b.len);
    buf_close(&b);
}

void world_cancel(struct world *w, uint32_t route, uint64_t client, uint64_t call, uint64_t what)
{
    struct buf b = {0};
    wire_put_cancel(what, &b);
    world_send(w, route, client, call, "Cancel", b.data, b.len);
    buf_close(&b);
}

void world_tokenize(struct world *w, uint32_t route, uint64_t client, uint64_t call,
                    const char *text)
{
    struct buf b = {0};
    assert_true(call >= WORLD_TOKENIZES);
    wire_put_tokenize(&(struct msg_tokenize){.text = text}, &b);
    world_send(w, route, client, call, "Tokenize", b.data, b.len);
    buf_close(&b);
}

const struct msg_status *world_status(struct world *w)
{
    static struct msg_status m;
    core_status(w->s->core, &m);
    return &m;
}

static const int32_t prompt[512] = {1, 2, 3};

struct msg_generate world_ask(uint32_t n_prompt, uint32_t max_tokens)
{
    return (struct msg_generate){
        .prompt_tokens = prompt, .n_prompt_tokens = n_prompt, .max_tokens = max_tokens};
}

void world_ask_tokens(struct world *w, uint64_t call, uint32_t n_prompt, uint32_t max_tokens)
{
    struct msg_generate g = world_ask(n_prompt, max_tokens);
    world_generate(w, 0, WORLD_CLIENT, call, 0, &g);
}

void world_run_pinging(struct world *w, uint64_t ms, uint64_t client, uint64_t call)
{
    for (uint64_t t = 0; t < ms; t += 500) {
        world_ping(w, 0, client, &call, 1);
        world_run(w, ms - t < 500 ? ms - t : 500);
    }
}

void world_expect_end(struct world *w, uint64_t call, enum status status, const char *words)
{
    const struct seen *x = world_seen(w, call);
    if (!x->ended || x->status != status || !strstr(x->message, words))
        fail_msg("call %" PRIu64 ": ended %d, status %d '%s', not %d '%s'", call, x->ended,
                 (int)x->status, x->message, (int)status, words);
}

void world_expect_idle(struct world *w)
{
    const struct msg_status *m = world_status(w);
    assert_int_equal(m->running + m->queued, 0);
    assert_int_equal(w->s->n_free_calls, w->s->n_calls);
    assert_int_equal(m->replicas[0].cache.pages_held, 0);
    assert_int_equal(w->s->by_client.used, 0);
    assert_int_equal(w->s->by_request.used, 0);
    assert_int_equal(w->s->by_name.used, 0);
}
