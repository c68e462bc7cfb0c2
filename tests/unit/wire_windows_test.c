/* Layers with a window on the wire: a run's second table, an assignment's second pool, and what a
 * status tells of it. */
#include "proto/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct arena arena;
static struct buf out;

static const int32_t tokens[] = {5, 0, 7};
static const uint32_t pages[] = {9, 3}, window_pages[] = {6};

/* Positions 20 to 22, of which the second page is in both tables. */
static struct msg_step make_step(struct msg_run *run)
{
    *run = (struct msg_run){.request = 4,
                            .kind = RUN_PREFILL,
                            .first_pos = 20,
                            .n_rows = 3,
                            .n_pages = 2,
                            .tokens = tokens,
                            .pages = pages,
                            .window_first = 1,
                            .n_window_pages = 1,
                            .window_pages = window_pages};
    return (struct msg_step){
        .epoch = {7, 0, 3}, .number = 2, .rows = 3, .width = 8, .n_runs = 1, .runs = run};
}

static void test_run(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct msg_run run;
    struct msg_step s = make_step(&run), r;
    wire_put_step(&s, &out);
    if (wire_get_step(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(r.runs[0].window_first, 1);
    assert_int_equal(r.runs[0].n_window_pages, 1);
    assert_int_equal(r.runs[0].window_pages[0], 6);
    run.window_first = run.n_window_pages = 0; /* one table for all layers */
    wire_put_step(&s, &out);
    if (wire_get_step(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(r.runs[0].n_window_pages, 0);
}

/* The table begins no later than the first row's page, and goes on to the end of the other one. */
static void test_run_rules(void **state)
{
    (void)state;
    const struct {
        uint32_t first, n;
        const char *field;
    } bad[] = {{2, 0, "window_first"}, {0, 1, "window_pages"}, {1, 2, "window_pages"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct errmsg em = {0};
        struct msg_run run;
        struct msg_step s = make_step(&run), r;
        run.window_first = bad[i].first;
        run.n_window_pages = bad[i].n;
        run.window_pages = pages;
        wire_put_step(&s, &out);
        assert_int_equal(wire_get_step(out.data, out.len, &arena, &r, &em), ERR_PROTO);
        assert_non_null(strstr(em.text, bad[i].field));
    }
}

static void test_assign(void **state)
{
    (void)state;
    for (uint32_t n = 0; n <= 6; n++) {
        struct errmsg em = {0};
        struct msg_to_worker t = {.version = PROTO_VERSION,
                                  .type = TO_ASSIGN,
                                  .epoch = {1, 0, 1},
                                  .assign = {.model_path = "/m",
                                             .ctx = 17,
                                             .n_pages = 5,
                                             .n_window_pages = n,
                                             .rows_max = 6,
                                             .logits_max = 6,
                                             .window = 3}},
                             u;
        wire_put_to_worker(&t, &out);
        int rc = wire_get_to_worker(out.data, out.len, &arena, &u, &em);
        assert_int_equal(rc, n <= 5 ? 0 : ERR_PROTO);
        if (n <= 5)
            assert_int_equal(u.assign.n_window_pages, n);
        else
            assert_non_null(strstr(em.text, "n_window_pages"));
    }
}

static void test_status(void **state)
{
    (void)state;
    struct errmsg em = {0};
    const struct msg_replica_status replica = {.name = "r",
                                               .state = "ready",
                                               .why = "",
                                               .windowed_total = 11,
                                               .cache = {.windowed_cached = 3, .windowed_held = 4}};
    struct msg_status m = {.model = "m", .n_replicas = 1, .replicas = &replica}, r;
    wire_put_status(&m, &out);
    if (wire_get_status(out.data, out.len, &arena, &r, &em) < 0) fail_msg("%s", em.text);
    assert_int_equal(r.replicas[0].windowed_total, 11);
    assert_memory_equal(&r.replicas[0].cache, &replica.cache, sizeof replica.cache);
}

static int close_all(void **state)
{
    (void)state;
    buf_close(&out);
    arena_close(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_run_rules),
        cmocka_unit_test(test_assign),
        cmocka_unit_test(test_status),
    };
    return cmocka_run_group_tests(tests, NULL, close_all);
}
