/* Random messages of every kind that decode, for programs that mutate them: the wire fuzzer's first
 * corpus, and the noise that is sent to running programs. */
#ifndef FLOTILLA_TESTS_RANDOM_MSG_H
#define FLOTILLA_TESTS_RANDOM_MSG_H

#include "common/base/rng.h"
#include "proto/wire.h"

#include <stdio.h>

enum random_kind {
    RANDOM_STEP,
    RANDOM_RESULT,
    RANDOM_FROM_WORKER,
    RANDOM_TO_WORKER,
    RANDOM_GENERATE,
    RANDOM_REPLY,
    RANDOM_PING,
    RANDOM_STATUS,
    RANDOM_KINDS
};

static inline struct epoch random_epoch(struct rng *r)
{
    return (struct epoch){rng_u64(r) >> rng_below(r, 64), 0, (uint32_t)rng_below(r, 4) + 1};
}

static inline void random_step(struct rng *r, struct buf *to)
{
    enum { RUNS = 3, ROWS = 8 };
    static int32_t tokens[ROWS];
    static uint32_t pages[8];
    struct msg_run runs[RUNS] = {{0}};
    struct msg_step s = {
        .epoch = random_epoch(r), .number = rng_below(r, 9) + 1, .width = 576, .runs = runs};
    for (int i = 0; i < ROWS; i++) tokens[i] = (int32_t)rng_below(r, 49152);
    for (int i = 0; i < 8; i++) pages[i] = (uint32_t)rng_below(r, 64);
    s.n_runs = 1 + (uint32_t)rng_below(r, RUNS);
    for (uint32_t i = 0; i < s.n_runs; i++) {
        struct msg_run *x = &runs[i];
        *x = (struct msg_run){
            .request = rng_below(r, 9) + 1, .attempt = 1, .tokens = tokens, .pages = pages};
        x->kind = (enum run_kind)rng_below(r, 2);
        x->first_pos = (uint32_t)rng_below(r, 100);
        x->n_rows = 1 + (uint32_t)rng_below(r, ROWS);
        x->n_logits = (uint32_t)rng_below(r, 2);
        if (rng_below(r, 3) == 0) { /* guesses, behind a known row or behind none */
            x->kind = RUN_VERIFY;
            x->n_logits = x->n_rows;
            x->n_guesses = (uint32_t)rng_below(r, x->n_rows + 1);
        }
        if (rng_below(r, 5) == 0) { /* rows of a prompt whose embedding is wanted */
            x->kind = RUN_PREFILL;
            x->n_logits = x->n_guesses = 0;
            x->embed = x->first_pos + x->n_rows + (uint32_t)rng_below(r, 3);
        }
        x->n_pages = (x->first_pos + x->n_rows + LIMIT_PAGE - 1) / LIMIT_PAGE;
        if (x->first_pos % 2) { /* a second table, of the last pages */
            x->window_first = x->first_pos / LIMIT_PAGE;
            x->n_window_pages = x->n_pages - x->window_first;
            x->window_pages = pages;
        }
        x->has_open = x->n_logits && rng_below(r, 2);
        x->open.sampling = SAMPLING_PLAIN;
        x->open.sampling.temp = 1;
        x->open.sampling.seed = rng_u64(r);
        x->open.grammar = "FG\1\0\2\0a\7";
        x->open.grammar_bytes = rng_below(r, 2) * 8;
        s.rows += x->n_rows;
    }
    wire_put_step(&s, to);
}

static inline void random_result(struct rng *r, struct buf *to)
{
    int32_t token = (int32_t)rng_below(r, 49152);
    struct msg_run_result x = {
        .request = rng_below(r, 9), .attempt = 1, .n_tokens = 1, .tokens = &token};
    struct msg_result m = {
        .epoch = random_epoch(r), .number = rng_below(r, 9) + 1, .n_runs = 1, .runs = &x};
    x.first_pos = (uint32_t)rng_below(r, 100);
    static const float values[4] = {0.5f, 0.5f, -0.5f, 0.5f};
    if (rng_below(r, 3) == 0) x.n_tokens = 0, x.embedding = values, x.n_embedding = 4;
    wire_put_result(&m, to);
}

static inline void random_from_worker(struct rng *r, struct buf *to)
{
    static struct msg_from_worker m;
    m = (struct msg_from_worker){.version = PROTO_VERSION,
                                 .instance = {rng_below(r, 5), 1},
                                 .type = (enum from_worker)rng_below(r, FROM_SPEED + 1),
                                 .has_epoch = true,
                                 .epoch = random_epoch(r)};
    (void)snprintf(m.hello.name, sizeof m.hello.name, "noise%u", (unsigned)rng_below(r, 9));
    (void)snprintf(m.hello.isa, sizeof m.hello.isa, "scalar");
    m.memory = (struct msg_memory){.machine = rng_below(r, 3),
                                   .machine_free = rng_u64(r),
                                   .group = rng_below(r, 3),
                                   .group_free = rng_u64(r),
                                   .held = rng_u64(r),
                                   .held_pages = (uint32_t)rng_u64(r)};
    (void)snprintf(m.endpoint, sizeof m.endpoint, "tcp://127.0.0.1:1");
    m.speed.n_layer = m.speed.n_head = (uint32_t)rng_below(r, LIMIT_SPEED_POINTS + 1);
    m.speed.layer_bytes = 1 + rng_below(r, 1 << 20);
    m.speed.depth = (uint32_t)rng_below(r, 1 << 10);
    m.speed.position_ps = rng_below(r, 1 << 30);
    for (uint32_t i = 0; i < m.speed.n_layer; i++)
        m.speed.layer[i] = m.speed.head[i] =
            (struct msg_speed_point){i + 1, 1 + rng_below(r, 1 << 30)};
    wire_put_from_worker(&m, to);
}

static inline void random_to_worker(struct rng *r, struct buf *to)
{
    static struct msg_to_worker m;
    static uint64_t hashes[20];
    m = (struct msg_to_worker){.version = PROTO_VERSION,
                               .type = (enum to_worker)rng_below(r, TO_LEAVE + 1),
                               .epoch = random_epoch(r),
                               .assign = {.layer_last = (uint32_t)rng_below(r, 9),
                                          .n_pages = 4,
                                          .ctx = 64,
                                          .tensor_hashes = hashes,
                                          .n_tensors = (uint32_t)rng_below(r, 21),
                                          .rows_max = 16,
                                          .logits_max = 1,
                                          .window = 2}};
    (void)snprintf(m.assign.model_path, sizeof m.assign.model_path, "/no/such/model.gguf");
    (void)snprintf(m.calibrate.model_path, sizeof m.calibrate.model_path, "/no/such/model.gguf");
    (void)snprintf(m.text, sizeof m.text, "tcp://127.0.0.1:1");
    wire_put_to_worker(&m, to);
}

static inline void random_generate(struct rng *r, struct buf *to)
{
    struct msg_generate g = {.prompt = rng_below(r, 2) ? "Once" : "",
                             .max_tokens = (uint32_t)rng_below(r, 4)};
    static int32_t ids[20];
    for (int i = 0; i < 20; i++) ids[i] = (int32_t)rng_below(r, 50000);
    g.sampling = SAMPLING_PLAIN;
    g.sampling.temp = (float)rng_below(r, 3);
    if (rng_below(r, 2)) g.prompt_tokens = ids, g.n_prompt_tokens = (uint32_t)rng_below(r, 20);
    if (rng_below(r, 4) == 0) g.received = ids, g.n_received = (uint32_t)rng_below(r, 5);
    g.from_index = (uint32_t)rng_below(r, 3);
    g.samples = (uint32_t)rng_below(r, 4);
    g.embed = rng_below(r, 4) == 0;
    if (rng_below(r, 3) == 0) g.stops[g.n_stops++] = " the";
    wire_put_generate(&g, to);
}

static inline void random_msg(struct rng *r, enum random_kind kind, struct buf *to)
{
    uint64_t ids[3] = {1, rng_u64(r), rng_below(r, 100)};
    static const int32_t tokens[2] = {5, 7};
    struct msg_generate_reply reply = {
        .n_tokens = 2, .tokens = tokens, .text = "abc", .finish_reason = FINISH_STOP};
    static const struct msg_replica_status replica = {.name = "a", .state = "ready", .why = ""};
    struct msg_status status = {.model = "m", .n_replicas = 1, .replicas = &replica};
    switch (kind) {
    case RANDOM_STEP: random_step(r, to); break;
    case RANDOM_RESULT: random_result(r, to); break;
    case RANDOM_FROM_WORKER: random_from_worker(r, to); break;
    case RANDOM_TO_WORKER: random_to_worker(r, to); break;
    case RANDOM_GENERATE: random_generate(r, to); break;
    case RANDOM_REPLY: wire_put_generate_reply(&reply, to); break;
    case RANDOM_PING: wire_put_ping(ids, 3, to); break;
    default: wire_put_status(&status, to); break;
    }
}

/* Flips, cuts, repeats or inserts a few bytes. */
static inline void mutate(struct rng *r, struct buf *b)
{
    for (uint64_t n = rng_below(r, 4) + 1; n && b->len; n--) {
        size_t at = (size_t)rng_below(r, b->len);
        uint8_t some[8];
        for (int i = 0; i < 8; i++) some[i] = (uint8_t)rng_u64(r);
        switch (rng_below(r, 4)) {
        case 0: b->data[at] = (char)(b->data[at] ^ (1 << rng_below(r, 8))); break;
        case 1: b->data[at] = (char)some[0]; break;
        case 2: (void)buf_append(b, some, 1 + (size_t)rng_below(r, 8)); break;
        default: buf_drop(b, at / 2); break;
        }
    }
}

#endif
