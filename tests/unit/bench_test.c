/* The figures of `bench --model`: which steps are measured for --rows and --streams, with an engine
 * that takes virtual time; what is made of their times; and every figure of the report recomputed
 * from hand-made ones. */
#include "coordinator/cli/bench.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/lib/printed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- an engine in virtual time ---- */

#define STEPS_MAX 512
#define STREAMS 16u
#define ROUNDS 21u /* that count */

struct seen {
    uint32_t n_runs, n_rows, n_logits, pos; /* of a step; n_rows, n_logits of all runs together */
    uint32_t pages[STREAMS];                /* the first in each run's table */
};

static struct seen seen[STEPS_MAX];
static unsigned n_seen;
static uint64_t now_ns;
static uint32_t n_asked;   /* rows of the last step whose logits were asked for, but the first */
static unsigned slow_step; /* the number of a step that takes a second more */

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret);
const struct arch_dims *__wrap_eng_dims(const struct engine *e);
int __wrap_eng_step(struct engine *e, const struct eng_run *runs, uint32_t n_runs, const void *in,
                    const float **ret_out, struct errmsg *em);
const float *__wrap_eng_logits(struct engine *e, uint32_t i);

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret)
{
    (void)clock;
    ret->tv_sec = (time_t)(now_ns / NS_PER_S);
    ret->tv_nsec = (long)(now_ns % NS_PER_S);
    return 0;
}

const struct arch_dims *__wrap_eng_dims(const struct engine *e)
{
    static const struct arch_dims dims = {.vocab = 100};
    (void)e;
    return &dims;
}

/* All rows of a step have logits, and each is asked for: only then are they computed. */
const float *__wrap_eng_logits(struct engine *e, uint32_t i)
{
    (void)e;
    assert_int_equal(i, ++n_asked);
    assert_true(i < seen[n_seen - 1].n_logits);
    return NULL;
}

/* A step of n rows takes n + 3 ms. */
int __wrap_eng_step(struct engine *e, const struct eng_run *runs, uint32_t n_runs, const void *in,
                    const float **ret_out, struct errmsg *em)
{
    (void)e;
    (void)in;
    (void)ret_out;
    assert_in_range(n_runs, 1, STREAMS);
    assert_true(n_seen < STEPS_MAX);
    if (n_seen) assert_int_equal(n_asked + 1, seen[n_seen - 1].n_logits);
    n_asked = 0;
    struct seen *s = &seen[n_seen++];
    *s = (struct seen){.n_runs = n_runs, .pos = runs[0].first_pos};
    for (uint32_t i = 0; i < n_runs; i++) {
        assert_int_equal(runs[i].first_pos, s->pos);
        for (uint32_t r = 0; r < runs[i].n_rows; r++) assert_in_range(runs[i].tokens[r], 0, 99);
        s->n_rows += runs[i].n_rows;
        s->n_logits += runs[i].n_logits;
        s->pages[i] = runs[i].pages[0];
    }
    now_ns += (s->n_rows + 3) * NS_PER_MS + (n_seen == slow_step ? NS_PER_S : 0);
    return s->n_rows == 13 ? err_set(em, ERR_RANGE, "thirteen") : 0;
}

static struct whole fake_whole(uint32_t n_pages)
{
    struct whole w = {.pages = mem_alloc(n_pages * sizeof *w.pages)};
    for (uint32_t i = 0; i < n_pages; i++) w.pages[i] = i;
    n_seen = slow_step = 0;
    now_ns = NS_PER_S;
    return w;
}

static struct bench_steps steps_of(bool streams, const char *list)
{
    struct errmsg em = {0};
    struct bench_steps b = {.streams = streams};
    assert_int_equal(bench_steps_parse("--x", list, &b, &em), 0);
    return b;
}

static void equal(double a, double b)
{
    if (a - b > 1e-9 || b - a > 1e-9 || a != a) fail_msg("%.12g is not %.12g", a, b);
}

/* ---- steps ---- */

static void test_lists(void **state)
{
    (void)state;
    static const char *const bad[] = {"",    "0",   "2,",
                                      ",2",  "2,x", "2;3",
                                      "513", "-1",  "99999999999999999999",
                                      "+1",  " 1",  "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"};
    struct bench_steps b = steps_of(false, "3,1,512");
    assert_int_equal(b.n, 3);
    assert_int_equal(b.of[0].rows, 3);
    assert_int_equal(b.of[2].rows, 512);
    assert_int_equal(bench_steps_rows(&b), 512);
    assert_int_equal(steps_of(false, "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1").n, BENCH_COUNTS_MAX);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct errmsg em = {0};
        struct bench_steps none = {.n = 0};
        assert_int_equal(bench_steps_parse("--rows", bad[i], &none, &em), ERR_CONF);
        assert_non_null(strstr(em.text, "--rows"));
    }
}

static void test_room(void **state)
{
    (void)state;
    struct bench_steps none = {.streams = true}, rows = steps_of(false, "3,1,18"),
                       streams = steps_of(true, "4,16");
    assert_int_equal(bench_steps_context(&none, 100), 0);
    assert_int_equal(bench_steps_positions(&none, 100), 0);
    assert_int_equal(bench_steps_context(&rows, 5), 23);
    assert_int_equal(bench_steps_positions(&rows, 5), 23);
    assert_int_equal(bench_steps_context(&streams, 100), 100 + ROUNDS + 1);
    assert_int_equal(bench_steps_positions(&streams, 100), 16 * 8 * KV_PAGE);
}

static void test_rows(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct bench_steps b = steps_of(false, "3,1,18");
    struct whole w = fake_whole(8);
    assert_int_equal(bench_steps_run(&w, 40, &b, &em), 0);
    assert_int_equal(n_seen, 2 * 3 * (ROUNDS + 1));
    for (unsigned i = 0; i < n_seen; i++) {
        uint32_t rows = i % 2 ? b.of[i / 2 % 3].rows : 1; /* each after a step of one row */
        assert_int_equal(seen[i].n_runs, 1);
        assert_int_equal(seen[i].n_rows, rows);
        assert_int_equal(seen[i].n_logits, rows);
        assert_int_equal(seen[i].pos, 40);
    }
    for (uint32_t i = 0; i < b.n; i++) {
        assert_int_equal(b.of[i].step_ns, (b.of[i].rows + 3) * NS_PER_MS);
        assert_int_equal(b.of[i].one_ns, 4 * NS_PER_MS);
        equal(b.of[i].times_one, (b.of[i].rows + 3) / 4.0);
    }
    mem_free(w.pages);
}

/* Every stream has pages of its own, enough for all rounds, and goes on by a position in each. */
static void test_streams(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct bench_steps b = steps_of(true, "1,16,4");
    struct whole w = fake_whole(bench_steps_positions(&b, 30) / KV_PAGE);
    assert_int_equal(bench_steps_run(&w, 30, &b, &em), 0);
    assert_int_equal(n_seen, 2 * 3 * (ROUNDS + 1));
    for (unsigned i = 0; i < n_seen; i++) {
        uint32_t streams = i % 2 ? b.of[i / 2 % 3].rows : 1;
        assert_int_equal(seen[i].n_runs, streams);
        assert_int_equal(seen[i].n_rows, streams);
        assert_int_equal(seen[i].n_logits, streams);
        assert_int_equal(seen[i].pos, 30 + i / 6);
        for (uint32_t s = 0; s < streams; s++) /* 30 + 22 positions are 4 pages */
            assert_int_equal(seen[i].pages[s], 4 * s);
    }
    mem_free(w.pages);
}

/* A step that was disturbed shows in the mean, which rates are made of, and not in medians. The
 * first round does not count at all. */
static void test_disturbed(void **state)
{
    (void)state;
    struct errmsg em = {0};
    for (unsigned round = 0; round <= ROUNDS; round += ROUNDS) {
        struct bench_steps b = steps_of(true, "4");
        struct whole w = fake_whole(bench_steps_positions(&b, 0) / KV_PAGE);
        slow_step = 2 * round + 2;
        assert_int_equal(bench_steps_run(&w, 0, &b, &em), 0);
        assert_int_equal(b.of[0].step_ns, 7 * NS_PER_MS);
        assert_int_equal(b.of[0].one_mean_ns, 4 * NS_PER_MS);
        assert_int_equal(b.of[0].mean_ns,
                         7 * NS_PER_MS + (round ? (uint64_t)(NS_PER_S / ROUNDS) : 0));
        equal(b.of[0].times_one, 7.0 / 4.0);
        mem_free(w.pages);
    }
}

static void test_a_step_fails(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct bench_steps b = steps_of(false, "2,13,3");
    struct whole w = fake_whole(8);
    assert_int_equal(bench_steps_run(&w, 0, &b, &em), ERR_RANGE);
    assert_string_equal(em.text, "thirteen");
    assert_int_equal(n_seen, 4);
    mem_free(w.pages);
}

/* ---- what is told ---- */

/* 250 tokens/s of a prompt in two chunks: 1e9 products in layers and 2e8 in the head, of which each
 * of 500 rows has a 250th. */
static struct bench make_bench(void)
{
    struct bench b = {.prompt = 500,
                      .tokens = 128,
                      .threads = 2,
                      .depth = 64,
                      .with_model = true,
                      .isa = "avx2",
                      .prompt_rate = 250.0,
                      .decode_rate = 40.0,
                      .products = {1000000000, 200000000},
                      .prompt_heads = 2,
                      .bytes_per_token = 800000000,
                      .peak_per_s = 500.4e9,
                      .read_per_s = 40e9,
                      .rows = {.n = 2},
                      .streams = {.streams = true, .n = 2}};
    b.rows.of[0] = (struct bench_step){4, 50000000, 25000000, 2.0, 51000000, 25500000};
    b.rows.of[1] = (struct bench_step){1, 25000000, 25000000, 1.0, 25000000, 25000000};
    b.streams.of[0] = (struct bench_step){1, 24000000, 24000000, 1.0, 25000000, 25000000};
    b.streams.of[1] = (struct bench_step){16, 90000000, 24000000, 3.2, 100000000, 25000000};
    b.few[QTYPE_Q4_K] = 8;
    return b;
}

static void add_kernels(struct bench *b)
{
    b->kernels.n = 2;
    b->kernels.peak_per_s = 300e9;
    b->kernels.types[0] = QTYPE_F16;
    b->kernels.types[1] = QTYPE_Q4_K;
    for (uint32_t i = 0; i < BENCH_KERNEL_COUNTS; i++) {
        b->kernels.rates[0][i] = (struct kern_rate){0.0, 5e9};
        b->kernels.rates[1][i] = (struct kern_rate){30e9 + 1e9 * i, i ? 20e9 + 1e9 * i : 0.0};
    }
}

static struct json *read_back(const struct bench *b)
{
    struct errmsg em = {0};
    struct json *written = bench_json(b), *read;
    struct buf text = {0};
    json_write(written, &text);
    if (json_read((const char *)text.data, text.len, &read, &em) < 0) fail_msg("%s", em.text);
    json_free(written);
    buf_close(&text);
    return read;
}

static double number(const struct json *object, const char *key)
{
    double v;
    if (!json_as_real(json_get(object, key), &v)) fail_msg("%s is no number", key);
    return v;
}

static void test_json(void **state)
{
    (void)state;
    struct bench b = make_bench();
    struct json *j = read_back(&b);
    equal(number(j, "prompt_tokens_per_s"), 250);
    equal(number(j, "prompt_gmac_per_s"), 250.2);
    equal(number(j, "peak_gmac_per_s"), 500.4);
    equal(number(j, "prompt_share_of_peak"), 0.5);
    equal(number(j, "decode_gb_per_s"), 32);
    equal(number(j, "read_gb_per_s"), 40);
    equal(number(j, "decode_share_of_read"), 0.8);
    equal(number(j, "depth"), 64);
    const struct json *rows = json_at(json_get(j, "rows"), 0);
    equal(number(rows, "rows"), 4);
    equal(number(rows, "step_ms"), 50);
    equal(number(rows, "one_ms"), 25);
    equal(number(rows, "times_one"), 2);
    const struct json *streams = json_at(json_get(j, "streams"), 1);
    equal(number(streams, "streams"), 16);
    equal(number(streams, "tokens_per_s"), 160); /* of all steps, not of the median */
    equal(number(streams, "one_tokens_per_s"), 40);
    equal(number(streams, "times_one"), 5);
    equal(number(streams, "step_ms"), 90);
    equal(number(json_get(j, "rows_from_tiles"), "Q4_K"), 8);
    assert_int_equal(json_n_members(json_get(j, "rows_from_tiles")), 1);
    assert_null(json_get(j, "kernels"));
    json_free(j);
}

/* What was not measured is not told, and has no share of anything. */
static void test_json_of_less(void **state)
{
    (void)state;
    struct bench b = make_bench();
    b.prompt = b.tokens = b.rows.n = b.streams.n = 0;
    b.peak_per_s = b.read_per_s = b.prompt_rate = b.decode_rate = 0.0;
    struct json *j = read_back(&b);
    equal(number(j, "prompt_gmac_per_s"), 0);
    static const char *const absent[] = {"peak_gmac_per_s",
                                         "prompt_share_of_peak",
                                         "read_gb_per_s",
                                         "decode_share_of_read",
                                         "rows",
                                         "streams",
                                         "kernels"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        assert_null(json_get(j, absent[i]));
    json_free(j);
    b.with_model = false;
    add_kernels(&b);
    j = read_back(&b);
    assert_null(json_get(j, "prompt_tokens_per_s"));
    assert_non_null(json_get(j, "kernels"));
    json_free(j);
}

static void test_json_of_kernels(void **state)
{
    (void)state;
    struct bench b = make_bench();
    add_kernels(&b);
    struct json *j = read_back(&b);
    const struct json *k = json_get(j, "kernels"), *types = json_get(k, "types");
    equal(number(k, "peak_gmac_per_s"), 300);
    equal(number(k, "k"), KERN_RATE_K);
    assert_int_equal(json_n_members(types), 2);
    for (uint32_t i = 0; i < BENCH_KERNEL_COUNTS; i++) {
        const struct json *of_f16 = json_at(json_get(types, "F16"), i),
                          *of_q4 = json_at(json_get(types, "Q4_K"), i);
        equal(number(of_q4, "rows"), 1u << i);
        equal(number(of_q4, "tiles_gmac_per_s"), 30 + i);
        if (i) equal(number(of_q4, "panels_gmac_per_s"), 20 + i);
        assert_int_equal(json_get(of_q4, "panels_gmac_per_s") == NULL, i == 0);
        equal(number(of_f16, "panels_gmac_per_s"), 5);
        assert_null(json_get(of_f16, "tiles_gmac_per_s"));
    }
    json_free(j);
}

/* What bench_print prints. */
static const char *text_of(const struct bench *b)
{
    static char text[65536];
    struct printed p = printed_begin(STDOUT_FILENO);
    bench_print(b);
    printed_end(&p, text, sizeof text);
    return text;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("no '%s' in:\n%s", part, text);
}

static void test_text(void **state)
{
    (void)state;
    struct bench b = make_bench();
    const char *t = text_of(&b);
    has(t, "avx2, 2 threads; rows straight from tiles, at most: Q4_K 8\n");
    has(t, "250.0 tokens/s    250.2 GMAC/s, 50 % of the peak of 500.4\n");
    has(t, "40.0 tokens/s     32.0 GB/s of weights, 80 % of the memory's 40.0\n");
    has(t, "\n   4      50.00 ms       2.00       80.0\n");
    has(t, "\n  16      90.00 ms          5.00      160.0\n");
    assert_null(strstr(t, "from panels"));
    add_kernels(&b);
    t = text_of(&b);
    has(t, "the peak is 300.0\n");
    has(t, "\nF16               5.0          5.0 ");
    has(t, "\nQ4_K             30.0    31.0/21.0    32.0/22.0 ");
}

static void test_plot(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct bench b = make_bench();
    char path[] = "/tmp/flotilla-bench-XXXXXX", text[16384];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(bench_plot(&b, path, &em), 0);
    text[pread(fd, text, sizeof text - 1, 0)] = 0;
    /* 1 and 4 rows take 25 and 50 ms, 1 and 16 streams have 40 and 160 tokens/s; boxes begin at 60
     * and 530, end 400 further, and stand on 260, 220 high. */
    has(text, "points='160.0,150.0 460.0,40.0 '");
    has(text, "points='555.0,205.0 930.0,40.0 '");
    has(text, "avx2, 2 threads, 64 positions before");
    has(text, "</svg>");
    b.streams.n = 0;
    assert_int_equal(bench_plot(&b, path, &em), 0);
    text[pread(fd, text, sizeof text - 1, 0)] = 0;
    has(text, "points='160.0,150.0");
    assert_null(strstr(text, "streams"));
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(bench_plot(&b, "/nowhere/at/all.svg", &em), ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists),
                                       cmocka_unit_test(test_room),
                                       cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_streams),
                                       cmocka_unit_test(test_disturbed),
                                       cmocka_unit_test(test_a_step_fails),
                                       cmocka_unit_test(test_json),
                                       cmocka_unit_test(test_json_of_less),
                                       cmocka_unit_test(test_json_of_kernels),
                                       cmocka_unit_test(test_text),
                                       cmocka_unit_test(test_plot)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
