/* What the wire says of embeddings, and what of it is refused. */
#include "proto/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct arena arena;
static struct buf out;
static const int32_t tokens[] = {5, 6, 7};
static const uint32_t pages[] = {2, 0};
static const float values[] = {0.5f, -0.25f, 1e-30f};

/* Positions 20 to 22 of a prompt of `embed` positions, beside another request's row. */
static struct msg_step step_of(struct msg_run *runs, uint32_t embed)
{
    runs[0] = (struct msg_run){.request = 3,
                               .attempt = 1,
                               .kind = RUN_PREFILL,
                               .first_pos = 20,
                               .n_rows = 3,
                               .n_pages = 2,
                               .embed = embed,
                               .tokens = tokens,
                               .pages = pages};
    runs[1] = (struct msg_run){.request = 4,
                               .kind = RUN_DECODE,
                               .n_rows = 1,
                               .n_logits = 1,
                               .n_pages = 1,
                               .tokens = tokens,
                               .pages = pages};
    return (struct msg_step){
        .epoch = {7, 0, 3}, .number = 99, .rows = 4, .width = 576, .n_runs = 2, .runs = runs};
}

static void test_steps(void **state)
{
    (void)state;
    struct msg_run runs[2];
    struct msg_step s = step_of(runs, 100), r;
    struct errmsg em = {0};
    wire_put_step(&s, &out);
    if (wire_get_step(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    assert_true(r.runs[0].embed == 100 && !msg_run_embeds(&r.runs[0]) && r.runs[1].embed == 0);
    s = step_of(runs, 23);
    wire_put_step(&s, &out);
    assert_int_equal(wire_get_step(out.data, out.len, &arena, &r, &em), 0);
    assert_true(msg_run_embeds(&r.runs[0]) && !msg_run_embeds(&r.runs[1]));
}

static void refused(const struct msg_step *s)
{
    struct msg_step r;
    struct errmsg em = {0};
    wire_put_step(s, &out);
    assert_int_equal(wire_get_step(out.data, out.len, &arena, &r, &em), ERR_PROTO);
    if (!strstr(em.text, "embed")) fail_msg("%s", em.text);
}

/* Rows of a prompt whose embedding is wanted are a prefill's, want nothing else, and end with it.
 */
static void test_rules(void **state)
{
    (void)state;
    struct msg_run runs[2];
    struct msg_step s;
    for (int i = 0; i < 6; i++) {
        s = step_of(runs, 23);
        switch (i) {
        case 0: runs[0].embed = 22; break;
        case 1: runs[0].embed = LIMIT_CONTEXT + 1; break;
        case 2: runs[0].kind = RUN_DECODE; break;
        case 3: runs[0].n_logits = 1; break;
        case 4:
            runs[0].has_open = true;
            runs[0].open.sampling = SAMPLING_PLAIN;
            break;
        default: s.width = LIMIT_EMBEDDED + 1; /* its result would be too large */
        }
        refused(&s);
    }
    s = step_of(runs, 24); /* what ends later has its room then */
    s.width = LIMIT_EMBEDDED + 1;
    struct msg_step r;
    wire_put_step(&s, &out);
    assert_int_equal(wire_get_step(out.data, out.len, &arena, &r, NULL), 0);
}

static void test_results(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct msg_run_result results[] = {
        {.request = 4, .attempt = 1, .embedding = values, .n_embedding = 3}, {.request = 5}};
    struct msg_result m = {.epoch = {7, 0, 3}, .number = 9, .n_runs = 2, .runs = results}, got;
    wire_put_result(&m, &out);
    if (wire_get_result(out.data, out.len, &arena, &got, &em) < 0) fail_msg("%s", em.text);
    assert_true(got.runs[0].n_embedding == 3 && got.runs[1].n_embedding == 0);
    assert_memory_equal(got.runs[0].embedding, values, sizeof values);
    static float many[LIMIT_EMBEDDED + 1];
    results[0].embedding = results[1].embedding = many;
    for (uint32_t i = 0; i < 2; i++) { /* all that a result may have, and one more */
        results[0].n_embedding = LIMIT_EMBEDDED - 3;
        results[1].n_embedding = 3 + i;
        wire_put_result(&m, &out);
        assert_true(i || out.len <= LIMIT_RESULT_BYTES);
        assert_int_equal(wire_get_result(out.data, out.len, &arena, &got, &em), i ? ERR_PROTO : 0);
    }
    assert_non_null(strstr(em.text, "embedding"));
    results[0] = (struct msg_run_result){
        .request = 4, .n_tokens = 1, .tokens = tokens, .embedding = values, .n_embedding = 3};
    m.n_runs = 1;
    wire_put_result(&m, &out);
    assert_int_equal(wire_get_result(out.data, out.len, &arena, &got, &em), ERR_PROTO);
}

static void test_calls(void **state)
{
    (void)state;
    struct errmsg em = {0};
    static float many[LIMIT_EMBEDDED + 1];
    struct msg_generate g = {.prompt = "Hi", .sampling = SAMPLING_PLAIN, .embed = true}, g2;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &g2, &em), 0);
    assert_true(g2.embed);
    g.embed = false;
    wire_put_generate(&g, &out);
    assert_int_equal(wire_get_generate(out.data, out.len, &arena, &g2, &em), 0);
    assert_false(g2.embed);
    struct msg_generate_reply a = {.text = "", .embedding = values, .n_embedding = 3}, b;
    wire_put_generate_reply(&a, &out);
    assert_int_equal(wire_get_generate_reply(out.data, out.len, &arena, &b, &em), 0);
    assert_true(b.n_embedding == 3 && memcmp(b.embedding, values, sizeof values) == 0);
    a.embedding = many;
    a.n_embedding = LIMIT_EMBEDDED + 1;
    wire_put_generate_reply(&a, &out);
    assert_int_equal(wire_get_generate_reply(out.data, out.len, &arena, &b, &em), ERR_PROTO);
}

/* A worker says that it can. */
static void test_hello(void **state)
{
    (void)state;
    for (int embeds = 0; embeds < 2; embeds++) {
        struct msg_from_worker m = {.version = PROTO_VERSION,
                                    .instance = {1, 2},
                                    .type = FROM_HELLO,
                                    .hello = {.name = "w1", .embeds = embeds}},
                               r;
        wire_put_from_worker(&m, &out);
        assert_int_equal(wire_get_from_worker(out.data, out.len, &arena, &r, NULL), 0);
        assert_int_equal(r.hello.embeds, embeds);
    }
}

static int clean_up(void **state)
{
    (void)state;
    arena_close(&arena);
    buf_close(&out);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps), cmocka_unit_test(test_rules), cmocka_unit_test(test_results),
        cmocka_unit_test(test_calls), cmocka_unit_test(test_hello),
    };
    return cmocka_run_group_tests(tests, NULL, clean_up);
}
