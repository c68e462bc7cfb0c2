/* Messages come back as they were encoded; bytes that break a rule are refused, by the field's
 * name. */
#include "proto/gate.h"
#include "proto/wire.h"

#include "common/base/mem.h"
#include "common/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct arena arena;
static struct buf out;

static const int32_t tokens[] = {5, 0, 49151};
static const uint32_t pages[] = {9, 3};
static const int32_t bias_ids[] = {0, 49151};
static const float bias[] = {-100, 1.5f}, tiny[] = {-101, 0};
static const uint64_t closed[] = {17, UINT64_MAX};

static struct msg_step make_step(struct msg_run *runs)
{
    runs[0] = (struct msg_run){.request = 1ull << 60,
                               .attempt = 2,
                               .kind = RUN_PREFILL,
                               .first_pos = 20,
                               .n_rows = 3,
                               .n_logits = 1,
                               .n_pages = 2,
                               .tokens = tokens,
                               .pages = pages,
                               .has_open = true,
                               .open = {.sampling = {.temp = 0.8f,
                                                     .top_p = 0.9f,
                                                     .min_p = 0.05f,
                                                     .top_k = 40,
                                                     .seed = 123456789,
                                                     .repetition = 1.25f,
                                                     .presence = -0.5f,
                                                     .frequency = 2,
                                                     .logprobs = true,
                                                     .top_logprobs = 20,
                                                     .n_bias = 2,
                                                     .bias_ids = bias_ids,
                                                     .bias = bias},
                                        .boundary = 23,
                                        .grammar = "FG",
                                        .grammar_bytes = 2}};
    runs[1] = (struct msg_run){.request = 4,
                               .kind = RUN_DECODE,
                               .first_pos = 0,
                               .n_rows = 1,
                               .n_logits = 1,
                               .n_pages = 1,
                               .tokens = tokens,
                               .pages = pages};
    struct msg_step s = {.epoch = {7, 0, 3},
                         .number = 99,
                         .rows = 4,
                         .width = 576,
                         .frame_bytes = 4 * 576 * 4,
                         .n_runs = 2,
                         .runs = runs,
                         .n_closed = 2,
                         .closed = closed,
                         .n_timings = 1};
    s.timings[0] = (struct msg_timing){0, 1000, 50};
    return s;
}

static void test_step(void **state)
{
    (void)state;
    struct msg_run runs[2];
    struct msg_step s = make_step(runs), r;
    struct errmsg em = {0};
    wire_put_step(&s, &out);
    assert_int_equal(wire_get_step(out.data, out.len, &arena, &r, &em), 0);
    assert_true(epoch_eq(r.epoch, s.epoch) && r.number == 99 && r.rows == 4 && r.n_runs == 2);
    assert_memory_equal(r.runs[0].tokens, tokens, sizeof tokens);
    assert_memory_equal(r.runs[0].pages, pages, sizeof pages);
    struct msg_open open = r.runs[0].open;
    assert_memory_equal(open.sampling.bias_ids, bias_ids, sizeof bias_ids);
    assert_memory_equal(open.sampling.bias, bias, sizeof bias);
    open.sampling.bias_ids = bias_ids;
    open.sampling.bias = bias;
    assert_memory_equal(open.grammar, "FG", 2);
    open.grammar = s.runs[0].open.grammar;
    assert_memory_equal(&open, &s.runs[0].open, sizeof open);
    assert_false(r.runs[1].has_open);
    assert_true(r.runs[0].n_guesses == 0 && r.runs[1].n_guesses == 0);
    runs[0].kind = RUN_VERIFY;
    runs[0].n_logits = 3;
    runs[0].n_guesses = 2;
    wire_put_step(&s, &out);
    assert_int_equal(wire_get_step(out.data, out.len, &arena, &r, &em), 0);
    assert_true(r.runs[0].kind == RUN_VERIFY && r.runs[0].n_guesses == 2);
    assert_memory_equal(r.closed, closed, sizeof closed);
    assert_int_equal(r.timings[0].compute_ns, 1000);
}

/* All runs of a Step bring the longest grammar; a longer one is refused. */
static void test_grammars(void **state)
{
    (void)state;
    static struct msg_run runs[LIMIT_STEP_RUNS];
    struct msg_run one[2];
    struct msg_step s = make_step(one), r;
    struct errmsg em = {0};
    char *grammar = mem_zalloc(LIMIT_GRAMMAR_BYTES + 1);
    for (uint32_t i = 0; i < LIMIT_STEP_RUNS; i++) {
        runs[i] = one[0];
        runs[i].n_rows = 1;
        runs[i].open.grammar = grammar;
        runs[i].open.grammar_bytes = LIMIT_GRAMMAR_BYTES;
    }
    s.runs = runs;
    s.n_runs = s.rows = LIMIT_STEP_RUNS;
    s.frame_bytes = 0;
    wire_put_step(&s, &out);
    assert_true(out.len > (size_t)LIMIT_STEP_RUNS * LIMIT_GRAMMAR_BYTES);
    if (wire_get_step(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(r.runs[LIMIT_STEP_RUNS - 1].open.grammar_bytes, LIMIT_GRAMMAR_BYTES);
    runs[3].open.grammar_bytes++;
    wire_put_step(&s, &out);
    assert_int_equal(wire_get_step(out.data, out.len, &arena, &r, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "grammar"));
    mem_free(grammar);
}

static void broken(struct msg_step s, const char *field)
{
    struct msg_step r;
    struct errmsg em = {0};
    wire_put_step(&s, &out);
    assert_int_equal(wire_get_step(out.data, out.len, &arena, &r, &em), ERR_PROTO);
    if (!strstr(em.text, field)) fail_msg("'%s' does not name %s", em.text, field);
}

static void test_step_rules(void **state)
{
    (void)state;
    static const int32_t negative[3] = {1, -1, 2};
    struct msg_run runs[2];
    struct msg_step s = make_step(runs);
#define WITH(target, value, field)                                                                 \
    do {                                                                                           \
        s = make_step(runs);                                                                       \
        target = value;                                                                            \
        broken(s, field);                                                                          \
    } while (0)
    WITH(s.rows, 5, "rows");
    WITH(s.frame_bytes, 12, "frame_bytes");
    WITH(s.width, 0, "width");
    WITH(s.number, 0, "number");
    WITH(s.epoch.generation, 0, "epoch");
    WITH(s.n_runs, 0, "runs");
    WITH(runs[0].n_pages, 1, "pages"); /* 20 + 3 positions need two */
    WITH(runs[0].n_pages, 3, "pages");
    WITH(runs[0].first_pos, LIMIT_CONTEXT, "first_pos");
    WITH(runs[0].tokens, negative, "tokens");
    WITH(runs[1].n_logits, 2, "n_logits");
    WITH(runs[0].n_guesses, 2, "guesses"); /* of which one has no logits */
    WITH(runs[0].open.sampling.temp, NAN, "temp");
    WITH(runs[0].open.sampling.top_p, 1.5f, "top_p");
    WITH(runs[0].open.sampling.repetition, 0, "repetition_penalty");
    WITH(runs[0].open.sampling.presence, NAN, "presence_penalty");
    WITH(runs[0].open.sampling.frequency, -3, "frequency_penalty");
    WITH(runs[0].open.sampling.top_logprobs, 21, "top_logprobs");
    WITH(runs[0].open.sampling.bias, tiny, "logit_bias");
#undef WITH
}

/* Rows and rows that want logits, at the limit and one above. */
static void test_step_limits(void **state)
{
    (void)state;
    static int32_t many[LIMIT_STEP_ROWS];
    static uint32_t table[LIMIT_STEP_ROWS / LIMIT_PAGE + 1];
    struct msg_run runs[2];
    struct msg_step s = make_step(runs), r;
    struct errmsg em = {0};
    runs[0] = (struct msg_run){.request = 1,
                               .n_rows = LIMIT_STEP_ROWS - 1,
                               .n_logits = LIMIT_STEP_LOGITS - 1,
                               .n_pages = LIMIT_STEP_ROWS / LIMIT_PAGE,
                               .tokens = many,
                               .pages = table};
    s.rows = LIMIT_STEP_ROWS;
    s.frame_bytes = 0;
    wire_put_step(&s, &out);
    if (wire_get_step(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    struct msg_run more[3] = {runs[0], runs[1], runs[1]};
    s.runs = more;
    s.n_runs = 3;
    s.rows = LIMIT_STEP_ROWS + 1;
    more[2].n_logits = 0;
    broken(s, "rows");
    more[0].n_rows = 1000;
    more[0].n_pages = 1000 / LIMIT_PAGE + 1;
    s.rows = 1002;
    more[2].n_logits = 1;
    broken(s, "n_logits");
}

/* Log-probabilities come back as they were encoded; more alternatives than may be are refused. */
static void test_logprobs(void **state)
{
    (void)state;
    struct errmsg em = {0};
    const float chosen[] = {-0.5f, -2}, top[] = {-0.5f, -1, -2, -3, -0.25f, -2};
    const int32_t ids[] = {4, 5, 6, 7, 8, 9};
    struct msg_run_result runs[] = {{.request = 4,
                                     .attempt = 1,
                                     .first_pos = 9,
                                     .n_tokens = 2,
                                     .tokens = tokens,
                                     .logprobs = {chosen, 3, ids, top}},
                                    {.request = 5, .attempt = 1, .n_tokens = 1, .tokens = tokens}};
    struct msg_result m = {.epoch = {7, 0, 3}, .number = 1, .n_runs = 2, .runs = runs}, r;
    wire_put_result(&m, &out);
    assert_int_equal(wire_get_result(out.data, out.len, &arena, &r, &em), 0);
    assert_int_equal(r.runs[0].logprobs.n_top, 3);
    assert_memory_equal(r.runs[0].logprobs.chosen, chosen, sizeof chosen);
    assert_memory_equal(r.runs[0].logprobs.top, top, sizeof top);
    assert_memory_equal(r.runs[0].logprobs.top_ids, ids, sizeof ids);
    assert_null(r.runs[1].logprobs.chosen);
    struct msg_generate_reply g = {.n_tokens = 2,
                                   .tokens = tokens,
                                   .text = "",
                                   .logprobs = {chosen, 3, ids, top}},
                              h;
    wire_put_generate_reply(&g, &out);
    assert_int_equal(wire_get_generate_reply(out.data, out.len, &arena, &h, &em), 0);
    assert_memory_equal(h.logprobs.top, top, sizeof top);
    float many[2 * 21] = {0};
    int32_t many_ids[2 * 21] = {0};
    runs[0].logprobs = (struct msg_logprobs){chosen, 21, many_ids, many};
    wire_put_result(&m, &out);
    assert_int_equal(wire_get_result(out.data, out.len, &arena, &r, &em), ERR_PROTO);
}

/* Every 64-bit word differs from the others, so that two fields that changed places are seen. */
static struct msg_heartbeat distinct_heartbeat(uint64_t from)
{
    struct msg_heartbeat h;
    uint64_t words[sizeof h / sizeof(uint64_t)];
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) words[i] = from + i;
    _Static_assert(sizeof words == sizeof h, "fields of 64 bits only");
    memcpy(&h, words, sizeof h);
    return h;
}

static void test_control(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct msg_from_worker m = {.version = 1,
                                .instance = {1, 2},
                                .type = FROM_HELLO,
                                .hello = {.name = "w1",
                                          .isa = "avx2",
                                          .threads = 2,
                                          .pid = 9,
                                          .holds = true,
                                          .holding = {5, 0, 14}}},
                           r;
    wire_put_from_worker(&m, &out);
    assert_int_equal(wire_get_from_worker(out.data, out.len, &arena, &r, &em), 0);
    assert_string_equal(r.hello.name, "w1");
    assert_true(r.hello.holds && r.hello.holding.layer_last == 14 && r.instance.lo == 2);
    m = (struct msg_from_worker){.version = 1,
                                 .type = FROM_HEARTBEAT,
                                 .has_epoch = true,
                                 .epoch = {1, 0, 2},
                                 .heartbeat = distinct_heartbeat(90)};
    wire_put_from_worker(&m, &out);
    assert_int_equal(wire_get_from_worker(out.data, out.len, &arena, &r, &em), 0);
    assert_true(r.has_epoch && epoch_eq(r.epoch, m.epoch));
    assert_memory_equal(&r.heartbeat, &m.heartbeat, sizeof m.heartbeat);
}

/* ---- what a layer takes a worker ---- */

static struct msg_from_worker make_speed(uint32_t n_layer, uint32_t n_head)
{
    struct msg_from_worker m = {.version = 1,
                                .type = FROM_SPEED,
                                .speed = {.header_digest = UINT64_MAX,
                                          .kv_type = 1,
                                          .threads = 3,
                                          .n_layer = n_layer,
                                          .n_head = n_head,
                                          .layer_bytes = 77,
                                          .depth = 128,
                                          .position_ps = 900}};
    for (uint32_t i = 0; i < LIMIT_SPEED_POINTS; i++) {
        m.speed.layer[i] = (struct msg_speed_point){i + 1, 100 + i};
        m.speed.head[i] = (struct msg_speed_point){2 * i + 1, 200 + i};
    }
    return m;
}

static int speed_again(const struct msg_from_worker *m, struct msg_from_worker *ret,
                       struct errmsg *em)
{
    wire_put_from_worker(m, &out);
    return wire_get_from_worker(out.data, out.len, &arena, ret, em);
}

static void broken_speed(struct msg_from_worker m, const char *field)
{
    struct msg_from_worker r;
    struct errmsg em = {0};
    assert_int_equal(speed_again(&m, &r, &em), ERR_PROTO);
    if (!strstr(em.text, field)) fail_msg("'%s' does not name %s", em.text, field);
}

/* All points come back; none may be 0, above the limits, or out of order, and layers and head are
 * measured both or neither. */
static void test_speed(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct msg_from_worker r, m = make_speed(LIMIT_SPEED_POINTS, 2);
    if (speed_again(&m, &r, &em) < 0) fail_msg("%s", em.text);
    assert_true(r.type == FROM_SPEED && r.speed.header_digest == UINT64_MAX &&
                r.speed.kv_type == 1 && r.speed.threads == 3 && r.speed.layer_bytes == 77);
    assert_true(r.speed.depth == 128 && r.speed.position_ps == 900);
    assert_true(r.speed.n_layer == LIMIT_SPEED_POINTS && r.speed.n_head == 2);
    for (uint32_t i = 0; i < LIMIT_SPEED_POINTS; i++)
        assert_true(r.speed.layer[i].rows == i + 1 && r.speed.layer[i].ns == 100 + i);
    assert_true(r.speed.head[1].rows == 3 && r.speed.head[1].ns == 201);
    m = make_speed(0, 0);
    m.speed.layer_bytes = 0;
    (void)snprintf(m.text, sizeof m.text, "no such file");
    if (speed_again(&m, &r, &em) < 0) fail_msg("%s", em.text);
    assert_true(r.speed.n_layer == 0 && strcmp(r.text, "no such file") == 0);
    broken_speed(make_speed(1, 0), "head");
    broken_speed(make_speed(0, 1), "head");
    m = make_speed(1, 1);
    m.speed.depth = LIMIT_CONTEXT + 1;
    broken_speed(m, "depth");
    m = make_speed(1, 1);
    m.speed.position_ps = LIMIT_POSITION_PS + 1;
    broken_speed(m, "position_ps");
    m = make_speed(2, 2);
    m.speed.layer[1].rows = 1;
    broken_speed(m, "layer");
    m.speed.layer[1].rows = LIMIT_STEP_ROWS + 1;
    broken_speed(m, "layer");
    m = make_speed(2, 2);
    m.speed.head[0].ns = 0;
    broken_speed(m, "head");
    m.speed.head[0].ns = LIMIT_SPEED_NS + 1;
    broken_speed(m, "head");
    m = make_speed(1, 1);
    m.speed.layer_bytes = 0;
    broken_speed(m, "layer_bytes");
}

static void test_calibrate(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct msg_to_worker r,
        m = {.version = 1,
             .type = TO_CALIBRATE,
             .calibrate = {
                 .model_path = "/m", .header_digest = UINT64_MAX, .kv_type = 2, .threads = 3}};
    wire_put_to_worker(&m, &out);
    if (wire_get_to_worker(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(r.type, TO_CALIBRATE);
    assert_memory_equal(&r.calibrate, &m.calibrate, sizeof m.calibrate);
}

static uint64_t hashes[LIMIT_SLICE_TENSORS + 1];

static struct msg_to_worker make_assign(uint32_t n_tensors)
{
    for (uint32_t i = 0; i < LIMIT_SLICE_TENSORS; i++) hashes[i] = UINT64_MAX - i;
    return (struct msg_to_worker){.version = 1,
                                  .type = TO_ASSIGN,
                                  .epoch = {1, 0, 2},
                                  .assign = {.model_path = "/m",
                                             .model_digest = 3,
                                             .header_digest = UINT64_MAX,
                                             .tensor_hashes = hashes,
                                             .n_tensors = n_tensors,
                                             .ctx = 17,
                                             .layer_first = 2,
                                             .layer_last = 4,
                                             .kv_type = 1,
                                             .n_pages = 5,
                                             .rows_max = 6,
                                             .logits_max = 7,
                                             .window = 3,
                                             .threads = 9,
                                             .plaintext = true,
                                             .upstream = {{4, 5, [31] = 6}}}};
}

/* Every field comes back, up to the largest slice, in a message that a control connection takes. */
static void test_assign(void **state)
{
    (void)state;
    struct errmsg em = {0};
    const uint32_t sizes[] = {0, 1, 2000, LIMIT_SLICE_TENSORS};
    for (size_t i = 0; i < 4; i++) {
        struct msg_to_worker t = make_assign(sizes[i]), u;
        wire_put_to_worker(&t, &out);
        assert_true(out.len <= LIMIT_CONTROL_BYTES);
        if (wire_get_to_worker(out.data, out.len, &arena, &u, &em) < 0) fail_msg("%s", em.text);
        assert_int_equal(u.assign.n_tensors, sizes[i]);
        if (sizes[i])
            assert_memory_equal(u.assign.tensor_hashes, hashes, sizes[i] * sizeof hashes[0]);
        u.assign.tensor_hashes = hashes;
        assert_memory_equal(&u.assign, &t.assign, sizeof t.assign);
    }
}

static void broken_assign(struct msg_to_worker t, const char *field)
{
    struct msg_to_worker u;
    struct errmsg em = {0};
    wire_put_to_worker(&t, &out);
    assert_int_equal(wire_get_to_worker(out.data, out.len, &arena, &u, &em), ERR_PROTO);
    if (!strstr(em.text, field)) fail_msg("'%s' does not name %s", em.text, field);
}

static void test_assign_rules(void **state)
{
    (void)state;
    struct msg_to_worker t;
#define WITH(field, value)                                                                         \
    do {                                                                                           \
        t = make_assign(3);                                                                        \
        t.assign.field = value;                                                                    \
        broken_assign(t, #field);                                                                  \
    } while (0)
    WITH(window, 0);
    WITH(window, LIMIT_WINDOW + 1);
    WITH(rows_max, 0);
    WITH(rows_max, LIMIT_STEP_ROWS + 1);
    WITH(logits_max, 0);
    WITH(logits_max, LIMIT_STEP_LOGITS + 1);
    WITH(n_pages, 0);
    WITH(ctx, 0);
    WITH(ctx, LIMIT_CONTEXT + 1);
#undef WITH
    t = make_assign(LIMIT_SLICE_TENSORS + 1);
    broken_assign(t, "tensor_hashes");
    t = make_assign(3);
    t.assign.layer_first = t.assign.layer_last + 1;
    broken_assign(t, "layers");
}

/* A key is 32 bytes that are not all zero, or it is left out. */
static void test_connect(void **state)
{
    static const uint8_t short_key[] = {0x08, 1, 0x1a, 7, 0x1a, 5, 1, 2, 3, 4, 5};
    uint8_t no_key[6 + KEY_BYTES] = {0x08, 1, 0x1a, 34, 0x1a, KEY_BYTES};
    struct errmsg em = {0};
    struct msg_to_worker u,
        m = {.version = PROTO_VERSION, .type = TO_CONNECT, .epoch = {1, 0, 2}, .text = "tcp://h:1"};
    (void)state;
    for (uint8_t first = 0; first < 2; first++) {
        m.key.bytes[0] = first;
        wire_put_to_worker(&m, &out);
        assert_int_equal(wire_get_to_worker(out.data, out.len, &arena, &u, &em), 0);
        assert_string_equal(u.text, "tcp://h:1");
        assert_true(key_eq(&u.key, &m.key));
    }
    assert_int_equal(wire_get_to_worker(short_key, sizeof short_key, &arena, &u, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "key"));
    assert_int_equal(wire_get_to_worker(no_key, sizeof no_key, &arena, &u, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "key"));
}

static struct msg_worker_status distinct_worker(uint32_t from)
{
    struct msg_worker_status w = {.name = from & 1 ? "w1" : "w2",
                                  .state = from & 1 ? "ready" : "loading",
                                  .isa = from & 1 ? "avx2" : "scalar",
                                  .pid = from + 1,
                                  .threads = from + 2,
                                  .layer_first = from + 3,
                                  .layer_last = from + 4,
                                  .heartbeat = distinct_heartbeat(from + 5),
                                  .load_done = from + 1000,
                                  .load_total = from + 1001,
                                  .compute_ns = from + 1002,
                                  .idle_ns = from + 1003,
                                  .predicted_ns = from + 1004,
                                  .timed_steps = from + 1005,
                                  .row_ns = from + 1006,
                                  .streams_ns = from + 1007,
                                  .chunk_ns = from + 1008};
    /* Not part of a status. */
    w.heartbeat.step_received = w.heartbeat.step_done = 0;
    w.heartbeat.moves = w.heartbeat.cpu_wait_ns = 0;
    return w;
}

static void assert_same_worker(const struct msg_worker_status *x, const struct msg_worker_status *y)
{
    assert_string_equal(y->name, x->name);
    assert_string_equal(y->state, x->state);
    assert_string_equal(y->isa, x->isa);
    assert_true(y->pid == x->pid && y->threads == x->threads && y->layer_first == x->layer_first &&
                y->layer_last == x->layer_last && y->load_done == x->load_done &&
                y->load_total == x->load_total && y->compute_ns == x->compute_ns &&
                y->idle_ns == x->idle_ns);
    assert_true(y->predicted_ns == x->predicted_ns && y->timed_steps == x->timed_steps &&
                y->row_ns == x->row_ns && y->streams_ns == x->streams_ns &&
                y->chunk_ns == x->chunk_ns);
    assert_memory_equal(&y->heartbeat, &x->heartbeat, sizeof x->heartbeat);
}

/* Every field of a status has another value, and comes back with it. */
static void test_status(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct msg_status m = {.ready = true,
                           .model = "m",
                           .running = 1,
                           .queued = 2,
                           .messages_dropped = 3},
                      r;
    const struct msg_worker_status workers[] = {distinct_worker(101), distinct_worker(5000)};
    const struct msg_replica_status replicas[] = {
        {.name = "r",
         .state = "s",
         .why = "because",
         .generation = 4,
         .n_workers = 2,
         .workers = workers,
         .pages_total = 5,
         .ctx = 6,
         .pages_free = 7,
         .sequences_max = 8,
         .running = 9,
         .queued = 10,
         .steps = 11,
         .steps_mixed = 12,
         .wire_ns = 13,
         .queue_ns = 14,
         .cache = {.pages_cached = 15,
                   .pages_held = 16,
                   .positions_unused = 17,
                   .lookups = 18,
                   .hits = 19,
                   .tokens_saved = 20,
                   .tokens_computed = 21,
                   .evicted = 22,
                   .preemptions = 23}},
        {.name = "other", .state = "ready", .why = "", .n_workers = 1, .workers = workers + 1}};
    m.n_replicas = 2;
    m.replicas = replicas;
    wire_put_status(&m, &out);
    if (wire_get_status(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(r.n_replicas, 2);
    assert_string_equal(r.replicas[1].name, "other");
    assert_true(r.replicas[1].ready && !r.replicas[0].ready);
    assert_string_equal(r.replicas[1].workers[0].name, workers[1].name);
    const struct msg_replica_status *a = &m.replicas[0], *b = &r.replicas[0];
    assert_true(r.ready && r.running == m.running && r.queued == m.queued &&
                r.messages_dropped == m.messages_dropped);
    assert_string_equal(r.model, m.model);
    assert_string_equal(b->name, a->name);
    assert_string_equal(b->state, a->state);
    assert_string_equal(b->why, a->why);
    assert_true(b->generation == a->generation && b->pages_total == a->pages_total &&
                b->pages_free == a->pages_free && b->sequences_max == a->sequences_max &&
                b->running == a->running && b->queued == a->queued && b->steps == a->steps &&
                b->steps_mixed == a->steps_mixed && b->wire_ns == a->wire_ns &&
                b->queue_ns == a->queue_ns && b->ctx == a->ctx);
    assert_memory_equal(&b->cache, &a->cache, sizeof a->cache);
    assert_int_equal(b->n_workers, 2);
    for (int i = 0; i < 2; i++) assert_same_worker(&a->workers[i], &b->workers[i]);
}

static void test_spares(void **state)
{
    (void)state;
    struct errmsg em = {0};
    const struct msg_worker_status spare = distinct_worker(9000);
    const struct msg_replica_status replicas[] = {
        {.name = "a", .state = "ready", .why = "", .rebalancing = true},
        {.name = "b", .state = "draining", .why = ""}};
    struct msg_status m = {.model = "m",
                           .n_replicas = 2,
                           .replicas = replicas,
                           .n_spares = 1,
                           .spares = &spare},
                      r;
    wire_put_status(&m, &out);
    if (wire_get_status(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    assert_true(r.replicas[0].rebalancing && !r.replicas[1].rebalancing);
    assert_true(r.replicas[0].ready && !r.replicas[1].ready);
    assert_int_equal(r.n_spares, 1);
    assert_string_equal(r.spares[0].name, spare.name);
    assert_true(r.spares[0].pid == spare.pid && r.spares[0].layer_last == spare.layer_last);
}

/* What an admin orders, the answer, and what a worker is told. */
static void test_orders(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct msg_order m = {.name = "w2", .has_limit = true, .limit_ms = LIMIT_DEADLINE_MS}, r;
    const char *text = NULL;
    wire_put_order(&m, &out);
    if (wire_get_order(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    assert_string_equal(r.name, "w2");
    assert_true(r.has_limit && r.limit_ms == LIMIT_DEADLINE_MS);
    m.limit_ms++;
    wire_put_order(&m, &out);
    assert_int_equal(wire_get_order(out.data, out.len, &arena, &r, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "limit_ms"));
    assert_int_equal(wire_get_order("", 0, &arena, &r, &em), 0); /* all replicas */
    assert_true(!r.name[0] && !r.has_limit);
    char name[LIMIT_NAME_BYTES + 2] = {0x0a, LIMIT_NAME_BYTES}; /* field 1, its length */
    memset(name + 2, 'w', LIMIT_NAME_BYTES);
    assert_int_equal(wire_get_order(name, sizeof name, &arena, &r, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "name"));
    wire_put_order_reply("as ordered", &out);
    assert_int_equal(wire_get_order_reply(out.data, out.len, &arena, &text, &em), 0);
    assert_string_equal(text, "as ordered");
    static struct msg_to_worker leave = {.version = PROTO_VERSION, .type = TO_LEAVE}, got;
    (void)snprintf(leave.text, sizeof leave.text, "it is drained");
    wire_put_to_worker(&leave, &out);
    assert_int_equal(wire_get_to_worker(out.data, out.len, &arena, &got, &em), 0);
    assert_int_equal(got.type, TO_LEAVE);
    assert_string_equal(got.text, "it is drained");
}

/* A worker's memory is in its Hello and in each heartbeat; it may also be absent. */
static void test_memory(void **state)
{
    (void)state;
    const size_t bytes =
        offsetof(struct msg_memory, held_pages) + sizeof(uint32_t); /* no padding */
    const struct msg_memory memory = {11, 12, 13, 14, 15, 16}, unknown = {0};
    static const enum from_worker types[] = {FROM_HELLO, FROM_HEARTBEAT};
    struct errmsg em = {0};
    for (int i = 0; i < 2; i++) {
        struct msg_from_worker r,
            m = {.version = PROTO_VERSION, .type = types[i], .memory = memory};
        (void)snprintf(m.hello.name, sizeof m.hello.name, "w");
        wire_put_from_worker(&m, &out);
        assert_int_equal(wire_get_from_worker(out.data, out.len, &arena, &r, &em), 0);
        assert_memory_equal(&r.memory, &memory, bytes);
        m.memory = unknown;
        wire_put_from_worker(&m, &out);
        assert_int_equal(wire_get_from_worker(out.data, out.len, &arena, &r, &em), 0);
        assert_memory_equal(&r.memory, &unknown, bytes);
    }
}

/* A peer's name ends up in logs and on terminals: control characters and broken UTF-8 become '?'.
 */
static void test_names_are_cleaned(void **state)
{
    (void)state;
    static struct msg_from_worker m, r;
    struct errmsg em = {0};
    m = (struct msg_from_worker){
        .version = PROTO_VERSION,
        .type = FROM_HELLO,
        .hello = {.name = "a\n\x1b[2Jb\xff\xc3(\xe6\xad\xaa\xf0\x9f", .isa = "x"}};
    wire_put_from_worker(&m, &out);
    assert_int_equal(wire_get_from_worker(out.data, out.len, &arena, &r, &em), 0);
    assert_string_equal(r.hello.name, "a?"
                                      "?[2Jb?"
                                      "?(\xe6\xad\xaa?"
                                      "?");
    /* An overlong '/', a surrogate, beyond Unicode, and what a terminal takes for an escape. */
    (void)snprintf(m.hello.name, sizeof m.hello.name,
                   "\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80.\xc2\x9b");
    wire_put_from_worker(&m, &out);
    assert_int_equal(wire_get_from_worker(out.data, out.len, &arena, &r, &em), 0);
    assert_string_equal(r.hello.name, "?????????.??");
}

/* What gateways ask for, and what they are told. */
static void test_gateway_fields(void **state)
{
    (void)state;
    struct errmsg em = {0};
    char long_user[LIMIT_USER_BYTES + 1] = {0};
    struct msg_generate g = {.chat = "{}", .user = "u", .pieces = true, .sampling = SAMPLING_PLAIN},
                        r;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), 0);
    assert_true(r.pieces && strcmp(r.chat, "{}") == 0 && strcmp(r.user, "u") == 0);
    memset(long_user, 'u', LIMIT_USER_BYTES);
    g.user = long_user;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "user"));
    static const int32_t two[] = {1, 2}, top_ids[] = {3, 4};
    static const float p[] = {-1, -2};
    uint32_t bytes[] = {1, 0, 2, 1};
    struct msg_generate_reply reply = {.n_tokens = 2,
                                       .tokens = two,
                                       .text = "",
                                       .logprobs = {p, 1, top_ids, p},
                                       .cached = 16,
                                       .pieces = "abcd",
                                       .n_pieces = 4,
                                       .piece_bytes = bytes,
                                       .has_usage = true,
                                       .open_thought = true},
                              got;
    wire_put_generate_reply(&reply, &out);
    assert_int_equal(wire_get_generate_reply(out.data, out.len, &arena, &got, &em), 0);
    assert_true(got.cached == 16 && got.n_pieces == 4 && got.open_thought);
    assert_memory_equal(got.pieces, "abcd", 4);
    assert_memory_equal(got.piece_bytes, bytes, sizeof bytes);
    reply.n_pieces = 3; /* not one for each token and alternative */
    wire_put_generate_reply(&reply, &out);
    assert_int_equal(wire_get_generate_reply(out.data, out.len, &arena, &got, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "piece_bytes"));
    reply.n_pieces = 4;
    wire_put_generate_reply(&reply, &out);
    const char from[] = {0x6a, 4, 1, 0, 2, 1}; /* field 13: the lengths */
    char *at = memmem(out.data, out.len, from, sizeof from);
    assert_non_null(at);
    at[2] = 2; /* more bytes than there are */
    assert_int_equal(wire_get_generate_reply(out.data, out.len, &arena, &got, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "pieces"));
}

static void test_texts(void **state)
{
    (void)state;
    struct errmsg em = {0};
    static const int32_t ids[] = {5, 6};
    struct msg_tokenize t = {.chat = "[]"}, t2;
    struct msg_tokens k = {ids, 2, "p"}, k2;
    const int32_t *back;
    const char *text;
    uint32_t n;
    size_t bytes;
    wire_put_tokenize(&t, &out);
    assert_int_equal(wire_get_tokenize(out.data, out.len, &arena, &t2, &em), 0);
    assert_true(strcmp(t2.chat, "[]") == 0 && !t2.text[0]);
    wire_put_tokenize(&(struct msg_tokenize){.text = "x", .special = true}, &out);
    assert_int_equal(wire_get_tokenize(out.data, out.len, &arena, &t2, &em), 0);
    assert_true(!t2.chat && strcmp(t2.text, "x") == 0 && t2.special);
    wire_put_tokens(&k, &out);
    assert_int_equal(wire_get_tokens(out.data, out.len, &arena, &k2, &em), 0);
    assert_true(k2.n == 2 && k2.tokens[1] == 6 && strcmp(k2.prompt, "p") == 0);
    wire_put_detokenize(ids, 2, &out);
    assert_int_equal(wire_get_detokenize(out.data, out.len, &arena, &back, &n, &em), 0);
    assert_true(n == 2 && back[0] == 5);
    wire_put_bytes("\xff\0x", 3, &out);
    assert_int_equal(wire_get_bytes(out.data, out.len, &arena, &text, &bytes, &em), 0);
    assert_true(bytes == 3 && memcmp(text, "\xff\0x", 3) == 0);
    assert_int_equal(wire_get_bytes("", 0, &arena, &text, &bytes, &em), 0);
    assert_int_equal(bytes, 0);
}

static void test_generate(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct msg_generate g = {.prompt = "Hi",
                             .prompt_len = 2,
                             .max_tokens = 0,
                             .has_seed = true,
                             .sampling = {.temp = 0, .top_p = 1, .seed = 5, .repetition = 1},
                             .stops = {"x"},
                             .n_stops = 1},
                        r;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), 0);
    assert_string_equal(r.prompt, "Hi");
    assert_true(r.max_tokens == 0 && r.has_seed && r.sampling.temp == 0.0f && r.n_stops == 1);
    assert_null(r.format);
    g.from_index = 3;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), 0);
    assert_int_equal(r.from_index, 3);
    assert_true(r.samples == 1 && r.priority == PRIORITY_NORMAL && !r.tenant[0]);
    (void)buf_append(&out, "\x32\x01x", 3); /* field 6, format_json */
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), 0);
    assert_string_equal(r.format, "x");
    g.format = "{\"type\": \"json_object\"}";
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), 0);
    assert_string_equal(r.format, g.format);
    g.format = NULL;
    char *long_format = mem_alloc(LIMIT_FORMAT_BYTES + 2);
    memset(long_format, ' ', LIMIT_FORMAT_BYTES + 1);
    long_format[LIMIT_FORMAT_BYTES + 1] = 0;
    g.format = long_format;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), ERR_PROTO);
    long_format[LIMIT_FORMAT_BYTES] = 0;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), 0);
    mem_free(long_format);
    g.format = NULL;
    /* Without `sampling`: greedy, nothing filtered; and a seed is to be drawn. */
    assert_int_equal(wire_get_generate("\x12\x01x", 3, &arena, &r, &em), 0);
    assert_true(r.sampling.temp == 0.0f && r.sampling.top_p == 1.0f &&
                r.sampling.repetition == 1.0f && r.sampling.n_bias == 0);
    assert_false(r.has_seed);
    g.has_seed = false;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), 0);
    assert_false(r.has_seed);
    assert_true(!r.draft[0] && !r.has_draft_length);
    g.draft = "ngram";
    g.has_draft_length = true;
    g.draft_length = 33; /* who serves it says what is wrong with that */
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), 0);
    assert_string_equal(r.draft, "ngram");
    assert_true(r.has_draft_length && r.draft_length == 33);
    g.sampling.temp = -1.0f;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &r, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "temp"));
}

/* Changed and cut messages: an error, or a message within the limits. */
static void test_mutations(void **state)
{
    (void)state;
    struct rng rng = {11};
    struct msg_run runs[2];
    struct msg_step s = make_step(runs), r;
    struct msg_result result;
    struct msg_from_worker w;
    struct msg_to_worker t;
    struct msg_call call;
    struct msg_generate g;
    struct errmsg em;
    wire_put_step(&s, &out);
    uint8_t *bytes = mem_alloc(out.len);
    size_t whole = out.len;
    for (int round = 0; round < 100000; round++) {
        size_t n = whole;
        memcpy(bytes, out.data, whole);
        for (uint64_t k = 1 + rng_below(&rng, 4); k > 0; k--)
            bytes[rng_below(&rng, whole)] = (uint8_t)rng_u64(&rng);
        if (rng_below(&rng, 3) == 0) n = rng_below(&rng, whole);
        if (wire_get_step(bytes, n, &arena, &r, &em) == 0) {
            assert_true(r.n_runs <= LIMIT_STEP_RUNS && r.rows <= LIMIT_STEP_ROWS);
            for (uint32_t i = 0; i < r.n_runs; i++)
                assert_true(r.runs[i].n_pages * LIMIT_PAGE >=
                            r.runs[i].first_pos + r.runs[i].n_rows);
        }
        (void)wire_get_result(bytes, n, &arena, &result, &em);
        (void)wire_get_from_worker(bytes, n, &arena, &w, &em);
        (void)wire_get_to_worker(bytes, n, &arena, &t, &em);
        (void)wire_get_call(bytes, n, &arena, &call, &em);
        (void)wire_get_generate(bytes, n, &arena, &g, &em);
    }
    mem_free(bytes);
}

static void test_gate(void **state)
{
    (void)state;
    struct gate g = {0};
    struct epoch one = {5, 0, 1}, two = {5, 0, 2}, other = {6, 0, 1};
    assert_int_equal(gate_step(&g, one, 1), GATE_STALE); /* closed */
    assert_true(gate_newer(&g, one));
    gate_open(&g, two);
    assert_false(gate_newer(&g, one));
    assert_false(gate_newer(&g, two));
    assert_true(gate_newer(&g, other)); /* another coordinator process */
    assert_int_equal(gate_step(&g, two, 1), GATE_TAKE);
    assert_int_equal(gate_step(&g, two, 1), GATE_STALE);
    assert_int_equal(gate_step(&g, one, 2), GATE_STALE);
    assert_int_equal(gate_step(&g, two, 3), GATE_GAP);
    assert_int_equal(gate_step(&g, two, 2), GATE_TAKE);
}

static int clean_up(void **state)
{
    (void)state;
    arena_close(&arena);
    buf_close(&out);
    return 0;
}

/* The fields of `status` for a worker that has faults and waits for a CPU. */
static void test_worker_status(void **state)
{
    (void)state;
    static struct msg_status m, r;
    struct errmsg em = {0};
    const struct msg_worker_status worker = {
        .name = "w1", .state = "serving", .isa = "avx2", .cpu_waiting = 0.75, .faults = 3};
    const struct msg_replica_status replica = {.name = "a",
                                               .state = "ready",
                                               .why = "worker w2 is held down",
                                               .n_workers = 1,
                                               .workers = &worker};
    m = (struct msg_status){.model = "m", .n_replicas = 1, .replicas = &replica};
    wire_put_status(&m, &out);
    assert_int_equal(wire_get_status(out.data, out.len, &arena, &r, &em), 0);
    assert_string_equal(r.replicas[0].why, "worker w2 is held down");
    assert_true(r.replicas[0].workers[0].cpu_waiting == 0.75);
    assert_int_equal(r.replicas[0].workers[0].faults, 3);
}

/* As many sub-messages as the limits allow, each as small as can be: their bytes are few, and
 * unpacking them takes most for each byte. */
static void test_many_small(void **state)
{
    (void)state;
    static struct msg_run runs[LIMIT_STEP_RUNS];
    static struct msg_run_result results[LIMIT_STEP_RUNS];
    static struct msg_replica_status replicas[LIMIT_REPLICAS];
    static struct msg_worker_status workers[LIMIT_STAGES];
    struct errmsg em = {0};
    const int32_t token = 1;
    const uint32_t page = 1;
    for (uint32_t i = 0; i < LIMIT_STEP_RUNS; i++) {
        runs[i] = (struct msg_run){.request = 1,
                                   .n_rows = 1,
                                   .n_logits = 1,
                                   .n_pages = 1,
                                   .tokens = &token,
                                   .pages = &page,
                                   .has_open = true,
                                   .open = {.sampling = {.top_p = 1, .repetition = 1}}};
        results[i] = (struct msg_run_result){.request = 1};
    }
    struct msg_step step, got_step;
    struct msg_run one[2];
    step = make_step(one);
    step.runs = runs;
    step.n_runs = step.rows = LIMIT_STEP_RUNS;
    step.frame_bytes = 0;
    wire_put_step(&step, &out);
    if (wire_get_step(out.data, out.len, &arena, &got_step, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(got_step.n_runs, LIMIT_STEP_RUNS);

    struct msg_result result = {.epoch = step.epoch,
                                .number = 1,
                                .n_runs = LIMIT_STEP_RUNS,
                                .runs = results},
                      got_result;
    wire_put_result(&result, &out);
    if (wire_get_result(out.data, out.len, &arena, &got_result, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(got_result.n_runs, LIMIT_STEP_RUNS);

    for (uint32_t i = 0; i < LIMIT_REPLICAS; i++)
        replicas[i] = (struct msg_replica_status){.n_workers = LIMIT_STAGES, .workers = workers};
    static struct msg_worker_status spares[LIMIT_SPARES];
    struct msg_status status = {.n_replicas = LIMIT_REPLICAS,
                                .replicas = replicas,
                                .n_spares = LIMIT_SPARES,
                                .spares = spares},
                      got_status;
    wire_put_status(&status, &out);
    if (wire_get_status(out.data, out.len, &arena, &got_status, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(got_status.n_replicas, LIMIT_REPLICAS);
    assert_int_equal(got_status.replicas[LIMIT_REPLICAS - 1].n_workers, LIMIT_STAGES);
    assert_int_equal(got_status.n_spares, LIMIT_SPARES);

    /* Empty ones from somebody else: two bytes each. */
    buf_drop(&out, out.len);
    for (uint32_t i = 0; i < LIMIT_REPLICAS; i++) (void)buf_append(&out, "\x1a", 2);
    if (wire_get_status(out.data, out.len, &arena, &got_status, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(got_status.n_replicas, LIMIT_REPLICAS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step),           cmocka_unit_test(test_grammars),
        cmocka_unit_test(test_step_rules),     cmocka_unit_test(test_step_limits),
        cmocka_unit_test(test_logprobs),       cmocka_unit_test(test_control),
        cmocka_unit_test(test_status),         cmocka_unit_test(test_assign),
        cmocka_unit_test(test_assign_rules),   cmocka_unit_test(test_connect),
        cmocka_unit_test(test_spares),         cmocka_unit_test(test_orders),
        cmocka_unit_test(test_memory),         cmocka_unit_test(test_names_are_cleaned),
        cmocka_unit_test(test_worker_status),  cmocka_unit_test(test_speed),
        cmocka_unit_test(test_calibrate),      cmocka_unit_test(test_generate),
        cmocka_unit_test(test_gateway_fields), cmocka_unit_test(test_texts),
        cmocka_unit_test(test_mutations),      cmocka_unit_test(test_gate),
        cmocka_unit_test(test_many_small),
    };
    return cmocka_run_group_tests(tests, NULL, clean_up);
}
