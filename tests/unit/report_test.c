/* A load's report: every figure of its JSON recomputed from hand-made records, and when a load
 * passes. */
#include "coordinator/cli/load.h"

#include "common/base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define REQUESTS 200u
#define TOKENS 3u

/* Request i begins at i ms and waits 1 ms in the queue; its first token comes after i + 1 ms, the
 * next after i % 10 + 1 ms, the last 1 ms later. */
static struct load_run make_run(void)
{
    struct load_run run = {.wall_ms = 500.0, .hits = 3, .lookups = 4, .waste_percent = 8.5};
    run.records = mem_zalloc(REQUESTS * sizeof *run.records);
    run.n_records = REQUESTS;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct load_record *r = &run.records[i];
        *r = (struct load_record){.kind = LOAD_PLAIN,
                                  .n_prompt = 5,
                                  .n_tokens_wanted = TOKENS,
                                  .sent = i,
                                  .queued = 1.0,
                                  .first = 2.0 * i + 1.0,
                                  .ended = 2.0 * i + 100.0,
                                  .done = true,
                                  .match = -1};
        for (uint32_t k = 0; k < TOKENS; k++) tokens_push(&r->tokens, (int32_t)(10 * i + k));
        samples_add(&r->itl, i % 10 + 1.0);
        samples_add(&r->itl, 1.0);
    }
    return run;
}

/* What load_report prints on stdout, and its verdict. */
static char *report(const struct load_options *o, struct load_run *run, bool *ret_pass)
{
    struct errmsg em = {0};
    FILE *to = tmpfile();
    assert_non_null(to);
    (void)fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    assert_true(dup2(fileno(to), STDOUT_FILENO) >= 0);
    int rc = load_report(o, run, true, ret_pass, &em);
    (void)fflush(stdout);
    assert_true(dup2(kept, STDOUT_FILENO) >= 0);
    (void)close(kept);
    assert_int_equal(rc, 0);
    static char text[65536];
    rewind(to);
    text[fread(text, 1, sizeof text - 1, to)] = 0;
    (void)fclose(to);
    return text;
}

/* The number behind "key", inside the object "outer" where that is not NULL; NAN for null. */
static double number(const char *text, const char *outer, const char *key)
{
    char name[64];
    if (outer) {
        (void)snprintf(name, sizeof name, "\"%s\":", outer);
        text = strstr(text, name);
        assert_non_null(text);
    }
    (void)snprintf(name, sizeof name, "\"%s\":", key);
    text = strstr(text, name);
    assert_non_null(text);
    text += strlen(name);
    while (*text == ' ') text++;
    return strncmp(text, "null", 4) == 0 ? (double)NAN : strtod(text, NULL);
}

static void equal(double a, double b)
{
    if (a - b > 1e-9 || b - a > 1e-9 || a != a) fail_msg("%.12g is not %.12g", a, b);
}

static void test_figures(void **state)
{
    (void)state;
    struct load_run run = make_run();
    struct load_options o = {.scenario = LOAD_CLOSED, .clients = 4};
    bool pass = false;
    const char *t = report(&o, &run, &pass);
    assert_true(pass);
    equal(number(t, NULL, "requests"), 200);
    equal(number(t, NULL, "failed"), 0);
    equal(number(t, NULL, "checked"), 0);
    assert_true(isnan(number(t, NULL, "mismatched"))); /* nothing was compared */
    equal(number(t, NULL, "tokens"), 600);
    equal(number(t, NULL, "tokens_per_s"), 1200);
    /* TTFT is i + 1 ms from the request's own beginning: 1 .. 200, nearest rank. */
    equal(number(t, "ttft_ms", "p50"), 100);
    equal(number(t, "ttft_ms", "p95"), 190);
    equal(number(t, "ttft_ms", "p99"), 198);
    equal(number(t, "ttft_ms", "samples"), 200);
    /* ITL: twenty each of 1 .. 10, and two hundred more of 1. */
    equal(number(t, "itl_ms", "p50"), 1);
    equal(number(t, "itl_ms", "p95"), 9);
    equal(number(t, "itl_ms", "p99"), 10);
    equal(number(t, "itl_ms", "samples"), 400);
    equal(number(t, "queue_ms", "p50"), 1);
    equal(number(t, NULL, "prefix_hit_rate"), 0.75);
    equal(number(t, NULL, "kv_waste_percent"), 8.5);
    load_run_close(&run);
}

static void test_one_wrong_answer(void **state)
{
    (void)state;
    struct load_run run = make_run();
    struct load_options o = {.scenario = LOAD_CLOSED, .clients = 4};
    bool pass = true;
    for (uint32_t i = 0; i < 4; i++) {
        struct tokens alone = {0};
        for (uint32_t k = 0; k < TOKENS; k++)
            tokens_push(&alone, (int32_t)(10 * i + k) + (i == 2 && k == TOKENS - 1));
        load_compare(&run.records[i], &alone);
        assert_int_equal(run.records[i].match, i != 2);
        if (i == 1) { /* the same ids, and one more */
            tokens_push(&alone, 7);
            struct load_record shorter = run.records[i];
            load_compare(&shorter, &alone);
            assert_int_equal(shorter.match, 0);
        }
        mem_free(alone.ids);
    }
    const char *t = report(&o, &run, &pass);
    equal(number(t, NULL, "checked"), 4);
    equal(number(t, NULL, "mismatched"), 1);
    assert_false(pass);
    load_run_close(&run);
}

static void test_one_failed(void **state)
{
    (void)state;
    struct load_run run = make_run();
    struct load_options o = {.scenario = LOAD_CLOSED, .clients = 4};
    bool pass = true;
    run.records[9].failed = true;
    run.records[9].first = -1.0; /* it got no token: it has no TTFT */
    const char *t = report(&o, &run, &pass);
    equal(number(t, NULL, "failed"), 1);
    equal(number(t, "ttft_ms", "samples"), 199);
    assert_false(pass);
    load_run_close(&run);
}

static void test_convoy_fails_the_load(void **state)
{
    (void)state;
    struct load_run run = make_run();
    struct load_options o = {.scenario = LOAD_CONVOY, .clients = 4};
    bool pass = true;
    for (uint32_t i = 0; i < REQUESTS; i++)
        run.records[i].kind = i < REQUESTS / 2 ? LOAD_BASELINE : LOAD_SHORT;
    (void)report(&o, &run, &pass);
    assert_true(pass);
    run.records[150].queued = 501.0; /* it stood still for longer than the limit of 500 ms */
    const char *t = report(&o, &run, &pass);
    assert_false(pass);
    equal(number(t, "convoy", "wait_max_ms"), 501);
    assert_non_null(strstr(t, "501"));
    load_run_close(&run);
}

static void test_records(void **state)
{
    (void)state;
    struct load_run run = make_run();
    char path[] = "/tmp/flotilla-records-XXXXXX", line[4096];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    struct load_options o = {.scenario = LOAD_CLOSED, .clients = 4, .out = path};
    bool pass = false;
    (void)report(&o, &run, &pass);
    FILE *f = fdopen(fd, "r");
    assert_non_null(f);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        equal(number(line, NULL, "sent_ms"), i);
        equal(number(line, NULL, "ttft_ms"), i + 1.0); /* since it was sent, not since the start */
        equal(number(line, NULL, "total_ms"), i + 100.0);
        equal(number(line, NULL, "tokens"), TOKENS);
    }
    assert_null(fgets(line, sizeof line, f));
    (void)fclose(f);
    (void)unlink(path);
    load_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures), cmocka_unit_test(test_one_wrong_answer),
        cmocka_unit_test(test_one_failed), cmocka_unit_test(test_convoy_fails_the_load),
        cmocka_unit_test(test_records)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
