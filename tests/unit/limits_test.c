/* How much one client may send, and which requests are refused before they reach the core: sizes,
 * budgets, ranges, and whatever comes when it is about to end. */
#include "tests/lib/shell_world.h"

#include "common/base/mem.h"
#include "proto/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define CLIENT WORLD_CLIENT

/* ---- sizes and budgets ---- */

/* Appends a length-delimited field of a protobuf message. */
static void field(struct buf *b, uint32_t number, const void *data, size_t n)
{
    uint8_t head[12];
    size_t k = 0;
    for (uint64_t v = (uint64_t)number << 3 | 2, pass = 0; pass < 2; v = n, pass++) {
        for (; v >= 0x80; v >>= 7) head[k++] = (uint8_t)(v | 0x80);
        head[k++] = (uint8_t)v;
    }
    (void)buf_append(b, head, k);
    (void)buf_append(b, data, n);
}

/* What cannot fit the context is refused before it is unpacked. */
static void test_too_large_is_not_unpacked(void **state)
{
    (void)state;
    static const struct {
        uint32_t number;
        const char *words;
    } cases[] = {{3, "'prompt_tokens': a prompt of 3000000 tokens does not fit the context of 64"},
                 {2, "'prompt': 3000000 bytes do not fit the context of 64 tokens"},
                 {18, "'received'"}};
    struct world *w = world_open("ctx: 64\n");
    char *many = mem_zalloc(3000000);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf b = {0};
        memset(many, cases[i].number == 2 ? 'a' : 0, 3000000);
        field(&b, cases[i].number, many, 3000000);
        world_send(w, 0, CLIENT, 1 + i, "Generate", b.data, b.len);
        world_run(w, 10);
        world_expect_end(w, 1 + i, STATUS_INVALID_ARGUMENT, cases[i].words);
        buf_close(&b);
    }
    assert_null(w->s->body_arena.first); /* nothing was unpacked at all */
    struct buf b = {0};                  /* a million empty fields */
    for (int i = 0; i < 1000000; i++) (void)buf_append(&b, "\x22", 2);
    world_send(w, 0, CLIENT, 9, "Generate", b.data, b.len);
    world_send(w, 0, CLIENT, 1000009, "Tokenize", b.data, b.len);
    world_send(w, 0, CLIENT, 900009, "Status", b.data, b.len);
    for (int i = 0; i < 3; i++) world_run(w, 10);
    world_expect_end(w, 9, STATUS_INVALID_ARGUMENT, "1024 fields");
    world_expect_end(w, 1000009, STATUS_INVALID_ARGUMENT, "1024 fields");
    world_expect_end(w, 900009, STATUS_INVALID_ARGUMENT, "65536");
    assert_null(w->s->body_arena.first);
    buf_close(&b);
    mem_free(many);
    world_expect_idle(w);
    world_close(w);
}

/* A prompt one token below the limit is served, one at the limit is refused. The ids come as fields
 * of their own, not packed. */
static void test_what_fits_is_taken(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    struct buf b = {0};
    for (int i = 0; i < 63; i++) (void)buf_append(&b, "\x18\x01", 2);
    (void)buf_append(&b, "\x40\x01", 2); /* max_tokens */
    world_send(w, 0, CLIENT, 1, "Generate", b.data, b.len);
    world_run(w, 50);
    world_expect_end(w, 1, STATUS_OK, "");
    assert_int_equal(world_seen(w, 1)->n_prompt, 63);
    (void)buf_append(&b, "\x18\x01", 2);
    world_send(w, 0, CLIENT, 2, "Generate", b.data, b.len);
    world_run(w, 50);
    world_expect_end(w, 2, STATUS_INVALID_ARGUMENT, "'prompt_tokens': a prompt of 64 tokens");
    buf_close(&b);
    world_close(w);
}

/* A turn takes clients' messages until there are 256 KiB or 32 of them; the last may be larger. */
static void test_bytes_of_a_turn(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    char *large = mem_zalloc(1 << 20);
    struct buf b = {0};
    field(&b, 3, large, 1 << 20);
    for (uint64_t i = 0; i < 4; i++) world_send(w, 0, CLIENT, 1 + i, "Generate", b.data, b.len);
    for (size_t left = 4; left-- > 0;) {
        world_turn(w);
        assert_int_equal(w->n_waiting, left);
    }
    buf_close(&b);
    field(&b, 3, large, 100 << 10);
    for (uint64_t i = 0; i < 6; i++) world_send(w, 0, CLIENT, 11 + i, "Generate", b.data, b.len);
    world_turn(w);
    assert_int_equal(w->n_waiting, 3);
    world_turn(w);
    assert_int_equal(w->n_waiting, 0);
    for (uint64_t i = 0; i < 40; i++) world_send(w, 0, CLIENT, 900100 + i, "Status", "", 0);
    world_turn(w);
    assert_int_equal(w->n_waiting, 8);
    buf_close(&b);
    mem_free(large);
    world_close(w);
}

/* The largest message of a client follows from what the context can hold. */
static void test_message_limit(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    assert_int_equal(w->s->token_bytes, WORLD_LONGEST);
    assert_int_equal(w->message_bytes, 4 << 20);
    assert_int_equal(w->s->message_bytes, 4 << 20);
    assert_int_equal(methods__message_bytes(w->s, 500000),
                     500000 * (WORLD_LONGEST + 5) + LIMIT_CONTROL_BYTES);
    assert_int_equal(methods__message_bytes(w->s, LIMIT_CONTEXT), LIMIT_CLIENT_BYTES);
    world_close(w);
}

static void test_tokenize(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    world_tokenize(w, 0, CLIENT, 1000001, "abc .x");
    world_turn(w);
    world_wait_text(w);
    world_expect_end(w, 1000001, STATUS_OK, "");
    assert_int_equal(world_seen(w, 1000001)->n_ids, 6);
    world_expect_idle(w);
    world_close(w);
}

/* Where the reply would be larger than its receiver takes, the call is refused instead. */
static void test_tokenize_reply_limit(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    for (int over = 0; over < 2; over++) {
        world_tokenize(w, 0, CLIENT, 1000001 + (uint64_t)over, "a");
        world_turn(w);
        /* Stands for a text of so many tokens. */
        struct text *t = mem_zalloc(sizeof *t);
        t->request = w->s->next_request - 1;
        t->tokens.n = LIMIT_CLIENT_BYTES - 16 + (uint32_t)over;
        t->tokens.ids = mem_zalloc(t->tokens.n * sizeof(int32_t));
        methods__text_done(w->s, t);
        texts_free(t);
        world_run(w, 20);
    }
    world_expect_end(w, 1000001, STATUS_OK, "");
    char words[64];
    (void)snprintf(words, sizeof words, "the limit is %u", LIMIT_CLIENT_BYTES);
    world_expect_end(w, 1000002, STATUS_INVALID_ARGUMENT, words);
    world_expect_idle(w);
    world_close(w);
}

/* ---- what a request may ask for ---- */

static void test_stop_strings(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 64\n");
    for (uint32_t n = LIMIT_STOPS; n <= LIMIT_STOPS + 1; n++) {
        struct buf b = {0};
        for (uint32_t i = 0; i < n; i++) field(&b, 14, "zz", 2);
        field(&b, 3, "\1\2\3", 3);
        (void)buf_append(&b, "\x40\x01", 2); /* max_tokens */
        world_send(w, 0, CLIENT, n, "Generate", b.data, b.len);
        world_run(w, 50);
        buf_close(&b);
    }
    world_expect_end(w, LIMIT_STOPS, STATUS_OK, "");
    world_expect_end(w, LIMIT_STOPS + 1, STATUS_INVALID_ARGUMENT, "'stop'");
    world_expect_idle(w);
    world_close(w);
}

static void test_bias_of_no_token(void **state)
{
    (void)state;
    struct msg_generate g = world_ask(3, 1), got;
    struct buf b = {0};
    struct arena a = {0};
    struct errmsg em = {0};
    const float bias = 1;
    g.sampling = (struct sampling){
        .top_p = 1, .repetition = 1, .n_bias = 1, .bias_ids = (const int32_t[]){-1}, .bias = &bias};
    wire_put_generate(&g, &b);
    assert_int_equal(wire_get_generate(b.data, b.len, &a, &got, &em), ERR_PROTO);
    assert_non_null(strstr(em.text, "'logit_bias'"));
    buf_close(&b);
    arena_close(&a);
}

/* Small in bytes, large once unpacked: unpacking may take LIMIT_UNPACK_FACTOR times the bytes. */
static void test_unpack_budget(void **state)
{
    (void)state;
    struct msg_generate got;
    struct buf b = {0};
    struct arena a = {0};
    struct errmsg em = {0};
    for (int i = 0; i < 100000; i++) (void)buf_append(&b, "\x22", 2); /* empty `messages` */
    assert_int_equal(wire_get_generate(b.data, b.len, &a, &got, &em), ERR_PROTO);
    assert_true(a.used <= b.len * LIMIT_UNPACK_FACTOR + 65536);
    buf_close(&b);
    arena_close(&a);
}

/* Fields inside `sampling` count like the others: unpacking them costs the same. */
static void test_fields_of_sampling(void **state)
{
    (void)state;
    struct msg_generate_size z;
    struct errmsg em = {0};
    for (uint32_t n = LIMIT_FIELDS - 1; n <= LIMIT_FIELDS; n++) {
        struct buf inner = {0}, b = {0};
        for (uint32_t i = 0; i < n; i++) (void)buf_append(&inner, "\x10\x01", 2); /* top_k: 1 */
        const uint8_t head[] = {9 << 3 | 2, (uint8_t)((inner.len & 0x7f) | 0x80),
                                (uint8_t)(inner.len >> 7)};
        (void)buf_append(&b, head, sizeof head);
        (void)buf_append(&b, inner.data, inner.len);
        assert_int_equal(wire_size_generate(b.data, b.len, &z, &em),
                         n < LIMIT_FIELDS ? 0 : ERR_PROTO);
        b.data[sizeof head] = 0x17; /* no wire type */
        assert_int_equal(wire_size_generate(b.data, b.len, &z, &em), ERR_PROTO);
        assert_non_null(strstr(em.text, "malformed"));
        buf_close(&inner);
        buf_close(&b);
    }
}

static void test_penalty_range(void **state)
{
    (void)state;
    static const struct {
        float value;
        bool fine;
    } cases[] = {{1.2e-38f, false}, {0.009f, false}, {0.01f, true}, {10, true}, {10.1f, false}};
    struct world *w = world_open("ctx: 64\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct msg_generate g = world_ask(3, 1);
        g.sampling.repetition = cases[i].value;
        world_generate(w, 0, CLIENT, 1 + i, 0, &g);
        world_run(w, 30);
        if (cases[i].fine)
            world_expect_end(w, 1 + i, STATUS_OK, "");
        else
            world_expect_end(w, 1 + i, STATUS_INVALID_ARGUMENT,
                             "'repetition_penalty' is not in 0.01..10");
    }
    world_close(w);
}

/* A format is compiled where texts are tokenised; what is wrong with it ends the call. */
static void test_formats(void **state)
{
    (void)state;
    static const struct {
        const char *format, *why;
        bool tokens; /* the prompt is token ids */
        bool ignore_eos;
    } asked[] = {
        {"{\"type\": \"json_object\"}", NULL, true, false},
        {"{\"type\": \"json_object\"}", NULL, false, false},
        {"{\"type\": \"text\"}", NULL, true, false},
        {"{\"type\": \"json_object\"}", "'ignore_eos'", true, true},
        {"{\"type\": \"xml\"}", "field 'format_json': the type 'xml'", true, false},
        {"{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"not\": {}}}}", "'not'",
         false, false},
        {"{", "field 'format_json': byte 1: not JSON", false, false},
    };
    struct world *w = world_open("ctx: 64\n");
    for (uint64_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        struct msg_generate g = world_ask(3, 2);
        g.format = asked[i].format;
        g.ignore_eos = asked[i].ignore_eos;
        if (!asked[i].tokens) {
            g.n_prompt_tokens = 0;
            g.prompt = "bcd";
            g.prompt_len = 3;
        }
        world_generate(w, 0, CLIENT, 1 + i, 0, &g);
        world_turn(w);
        if (!asked[i].ignore_eos) world_wait_text(w);
        world_run(w, 100);
        world_expect_end(w, 1 + i, asked[i].why ? STATUS_INVALID_ARGUMENT : STATUS_OK,
                         asked[i].why ? asked[i].why : "");
        assert_int_equal(w->n_opened_grammars, i < 2 ? i + 1 : 2);
    }
    world_expect_idle(w);
    world_close(w);
}

/* ---- its end ---- */

/* A coordinator that drains goes on with the calls that it has, and sends new ones to the next
 * coordinator; when it ends, those that are left, whatever they ask for. */
static void test_draining(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 128\n");
    struct msg_generate g = world_ask(3, 100);
    world_ask_tokens(w, 1, 3, 100);
    world_run(w, 20);
    w->s->draining = true;
    world_ask_tokens(w, 2, 3, 10);
    world_generate(w, 0, CLIENT, 1, 0, &g); /* joins its own call */
    uint32_t before = world_seen(w, 1)->n_tokens;
    world_run(w, 20);
    world_expect_end(w, 2, STATUS_UNAVAILABLE, "the coordinator is restarting");
    assert_true(world_seen(w, 2)->restarting);
    assert_int_equal(world_seen(w, 2)->retry_ms, 1000);
    assert_false(world_seen(w, 1)->ended);
    assert_true(world_seen(w, 1)->n_tokens > before);
    world_tokenize(w, 0, CLIENT, WORLD_TOKENIZES, "bcd");
    world_turn(w);
    calls__stop(w->s);
    const uint64_t left[] = {1, WORLD_TOKENIZES};
    for (size_t i = 0; i < 2; i++) {
        world_expect_end(w, left[i], STATUS_UNAVAILABLE, "the coordinator is restarting");
        assert_true(world_seen(w, left[i])->restarting);
        assert_int_equal(world_seen(w, left[i])->retry_ms, 1000);
    }
    world_close(w);
}

/* ---- full connections ---- */

/* In each of `seconds` the connection takes `credit` replies each 50 ms, and every call is told at
 * least once that it lives, and not more often than it needs. */
static void expect_all_told(struct world *w, const uint64_t *calls, uint32_t n, uint32_t credit,
                            int seconds)
{
    uint32_t before[64];
    for (int second = 0; second <= seconds; second++) { /* the first is still of what was before */
        for (uint32_t i = 0; i < n; i++) before[i] = world_seen(w, calls[i])->n_replies;
        for (int i = 0; i < 20; i++) {
            w->credit[0] = credit;
            world_ping(w, 0, CLIENT, calls, n);
            world_run(w, 50);
        }
        for (uint32_t i = 0; i < n && second > 0; i++)
            assert_in_range(world_seen(w, calls[i])->n_replies - before[i], 1, 3);
    }
}

/* A connection may take fewer replies at once than its client has calls, and even fewer than all
 * are due. */
static void test_full_connections_serve_all_calls(void **state)
{
    (void)state;
    enum { N = 40 };
    struct world *w = world_open("ctx: 64\nmax_requests: 64\nworker_timeout_ms: 600000\n"
                                 "step_timeout_ms: 600000\n");
    uint64_t calls[N];
    w->paused = true;
    w->taking[0] = TAKES_CREDIT;
    for (uint64_t call = 1; call <= N; call++) {
        calls[call - 1] = call;
        world_ask_tokens(w, call, 3, 2);
    }
    world_run(w, 500);
    expect_all_told(w, calls, N, 20, 5);
    expect_all_told(w, calls, N, 3, 5);
    w->taking[0] = TAKES;
    w->paused = false;
    world_run(w, 300);
    for (uint32_t i = 0; i < N; i++) world_expect_end(w, calls[i], STATUS_OK, "");
    world_expect_idle(w);
    world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_large_is_not_unpacked),
        cmocka_unit_test(test_what_fits_is_taken),
        cmocka_unit_test(test_bytes_of_a_turn),
        cmocka_unit_test(test_message_limit),
        cmocka_unit_test(test_tokenize),
        cmocka_unit_test(test_tokenize_reply_limit),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_bias_of_no_token),
        cmocka_unit_test(test_unpack_budget),
        cmocka_unit_test(test_fields_of_sampling),
        cmocka_unit_test(test_penalty_range),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_draining),
        cmocka_unit_test(test_full_connections_serve_all_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
