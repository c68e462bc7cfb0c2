/* The core on traces whose figures are known by hand: hits, times to the first token, work. */
#include "coordinator/sim/fifo.h"

#include "common/base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK_NS 1000000u /* 1 ms */
#define TOKEN_NS 10000u   /* 0.01 ms */

/* A request of a test: when it comes, its blocks (a string, a letter each) and its answer. Each
 * letter is a block of its own wherever it stands. */
struct ask {
    uint64_t at_ms;
    const char *blocks;
    uint32_t n_answer;
};

static struct trace trace_of(const struct ask *asks, uint32_t n)
{
    struct trace t = {.n_requests = n};
    bool seen[26] = {false};
    t.requests = mem_zalloc(n * sizeof *t.requests);
    t.blocks = mem_zalloc(n * 26 * sizeof *t.blocks);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_blocks = (uint32_t)strlen(asks[i].blocks);
        t.requests[i] = (struct trace_request){.at_us = asks[i].at_ms * 1000,
                                               .first_block = t.n_blocks,
                                               .n_blocks = n_blocks,
                                               .n_answer = asks[i].n_answer};
        for (uint32_t k = 0; k < n_blocks; k++) {
            uint32_t block = (uint32_t)(asks[i].blocks[k] - 'a');
            t.blocks[t.n_blocks++] = block;
            t.n_distinct += !seen[block];
            seen[block] = true;
        }
        if (n_blocks > t.prompt_most) t.prompt_most = n_blocks;
        t.answer_tokens += asks[i].n_answer;
    }
    return t;
}

/* The load at which a trace's times stay as they are. */
static double load_as_it_is(const struct trace *t, uint32_t n_replicas)
{
    double span_ms = (double)(t->requests[t->n_requests - 1].at_us - t->requests[0].at_us) / 1e3;
    return (t->n_distinct + (double)t->answer_tokens / 100.0) / n_replicas / span_ms;
}

static struct fifo_options options(uint32_t n_replicas, uint32_t cache_blocks)
{
    return (struct fifo_options){.n_replicas = n_replicas,
                                 .cache_blocks = cache_blocks,
                                 .load = 0.8,
                                 .block_ns = BLOCK_NS,
                                 .token_ns = TOKEN_NS,
                                 .seed = 1};
}

static struct fifo_result run(const struct trace *t, const struct fifo_options *o)
{
    struct fifo_result r = {0};
    struct errmsg em = {0};
    if (fifo_run(t, o, &r, &em) < 0) fail_msg("%s", em.text);
    return r;
}

static void expect(double got, double want)
{
    if (fabs(got - want) > 1e-4) fail_msg("%.9g, not %.9g", got, want);
}

/* One replica. The second request finds one block, the third all of its blocks; each waits for the
 * whole of those before it, answers included. */
static void test_known_by_hand(void **state)
{
    (void)state;
    static const struct ask asks[] = {{0, "abc", 100}, {1, "ad", 50}, {2, "abc", 1}};
    struct trace t = trace_of(asks, 3);
    struct fifo_options o = options(1, 100);
    o.load = load_as_it_is(&t, 1);
    struct fifo_result r = run(&t, &o);
    assert_int_equal(r.ttft_ms.n, 3);
    expect(r.ttft_ms.v[0], 3);                   /* its three blocks */
    expect(r.ttft_ms.v[1], 3 + 1 + 1 - 1);       /* behind the first one's answer, one block */
    expect(r.ttft_ms.v[2], 3 + 1 + 1 + 0.5 - 2); /* and nothing of its own */
    expect((double)r.took_ns / 1e6, 3 + 1 + 1 + 0.5 + 0.01);
    expect((double)r.replicas[0].work_ns / 1e6, 3 + 1 + 1 + 0.5 + 0.01);
    assert_int_equal(r.blocks_computed, 4);
    expect(fifo_hit_rate(&t, &r), 4.0 / 8.0); /* of all blocks of all prompts */
    expect(fifo_bound_hit_rate(&t), 4.0 / 8.0);
    expect(fifo_largest_share(&r), 1);
    expect(fifo_max_over_mean(&r), 1);
    assert_int_equal(r.arrival_us.n, 3);
    assert_true(r.compose_us.n >= 3 && r.events >= 3 + r.compose_us.n);
    fifo_close(&r);
    trace_close(&t);
}

/* At twice the load requests come in half the time. */
static void test_load_stretches_times(void **state)
{
    (void)state;
    static const struct ask asks[] = {{50, "ab", 200}, {60, "cd", 200}};
    struct trace t = trace_of(asks, 2);
    struct fifo_options o = options(1, 100);
    o.load = 0.5; /* 8 ms of work: the second one comes after 16 ms, */
    struct fifo_result r = run(&t, &o);
    expect((double)r.took_ns / 1e6, 16 + 4);
    fifo_close(&r);
    o.load = 2; /* or after 4 ms */
    r = run(&t, &o);
    expect((double)r.took_ns / 1e6, 4 + 4);
    expect(r.ttft_ms.v[1], 2);
    fifo_close(&r);
    o.n_replicas = 2; /* two replicas can do twice as much: 2 ms */
    r = run(&t, &o);
    expect((double)r.took_ns / 1e6, 2 + 4);
    expect(r.ttft_ms.v[1], 2);
    expect(fifo_largest_share(&r), 0.5);
    fifo_close(&r);
    trace_close(&t);
}

/* A cache holds exactly as many blocks as it is said to, and what else a request needs takes none
 * of them; the end of the oldest chain goes first. */
static void test_cache_size(void **state)
{
    (void)state;
    static const struct ask asks[] = {{0, "abc", 1}, {10, "def", 2000}, {90, "abc", 1}};
    struct trace t = trace_of(asks, 3);
    for (uint32_t blocks = 3; blocks <= 7; blocks++) {
        struct fifo_options o = options(1, blocks);
        struct fifo_result r = run(&t, &o);
        uint32_t found = blocks - 3 < 3 ? blocks - 3 : 3;
        assert_int_equal(r.blocks_computed, 9 - found);
        expect(fifo_hit_rate(&t, &r), found / 9.0);
        fifo_close(&r);
    }
    trace_close(&t);
}

/* Nothing but blocks of prompts stays: seven of them do in a cache of seven. */
static void test_blocks_only(void **state)
{
    (void)state;
    static const struct ask asks[] = {{0, "abc", 1}, {50, "def", 1}, {90, "g", 1}, {99, "abc", 1}};
    struct trace t = trace_of(asks, 4);
    struct fifo_options o = options(1, 7);
    struct fifo_result r = run(&t, &o);
    assert_int_equal(r.blocks_computed, 7);
    fifo_close(&r);
    trace_close(&t);
}

/* Prompts of more rows than a Step may have take as long as their blocks do. */
static void test_long_prompts(void **state)
{
    (void)state;
    struct trace_spec spec = {.requests = 2, .groups = 1, .shared = 4000, .answer = 1};
    struct trace t = {0};
    assert_int_equal(trace_make(&spec, 1, &t, NULL), 0);
    struct fifo_options o = options(1, t.prompt_most);
    o.concurrency = 1;
    struct fifo_result r = run(&t, &o);
    expect(r.ttft_ms.v[0], t.prompt_most);
    expect(r.ttft_ms.v[1], 0);
    assert_int_equal(r.blocks_computed, t.prompt_most);
    fifo_close(&r);
    trace_close(&t);
}

/* A closed loop: as many live requests as are asked for, and each comes when another ends. */
static void test_concurrency(void **state)
{
    (void)state;
    static const struct ask asks[] = {
        {0, "ab", 100}, {0, "cd", 100}, {0, "ef", 100}, {0, "gh", 100}};
    struct trace t = trace_of(asks, 4);
    struct fifo_options o = options(4, 10);
    for (uint32_t n = 1; n <= 4; n++) {
        static const double took_ms[] = {12, 6, 6, 3};
        o.concurrency = n;
        struct fifo_result r = run(&t, &o);
        expect((double)r.took_ns / 1e6, took_ms[n - 1]);
        for (uint32_t i = 0; i < 4; i++) expect(r.ttft_ms.v[i], 2); /* nobody waits */
        fifo_close(&r);
    }
    trace_close(&t);
}

/* The core routes by the policy that is asked for: in turn, a prefix comes to the replica that
 * lacks it; by the longest match, to the one that has it. */
static void test_policies(void **state)
{
    (void)state;
    static const struct ask asks[] = {{0, "abc", 1},   {100, "def", 1}, {200, "g", 1},
                                      {300, "abc", 1}, {400, "def", 1}, {500, "def", 1}};
    struct trace t = trace_of(asks, 6);
    struct fifo_options o = options(2, 10);
    o.policy = ROUTE_ROUND_ROBIN;
    struct fifo_result r = run(&t, &o);
    assert_int_equal(r.blocks_computed, 3 + 3 + 1 + 3 + 3 + 0);
    assert_int_equal(r.replicas[0].requests, 3);
    fifo_close(&r);
    o.policy = ROUTE_AFFINITY;
    r = run(&t, &o);
    assert_int_equal(r.blocks_computed, 7);
    fifo_close(&r);
    trace_close(&t);
}

/* Nothing is lost and nothing counted twice, with many replicas and more load than they can bear;
 * and the same trace, options and seed give the same again. */
static void test_conservation(void **state)
{
    (void)state;
    struct trace_spec spec = TRACE_SPEC_DEFAULT;
    spec.requests = 2000;
    struct trace t = {0};
    assert_int_equal(trace_make(&spec, 3, &t, NULL), 0);
    struct fifo_options o = options(30, 200);
    o.load = 1.3;
    struct fifo_result r = run(&t, &o), again = run(&t, &o);
    uint64_t work_ns = 0, requests = 0;
    for (uint32_t i = 0; i < r.n_replicas; i++) {
        work_ns += r.replicas[i].work_ns;
        requests += r.replicas[i].requests;
        assert_true(r.replicas[i].work_ns <= r.took_ns);
    }
    assert_int_equal(requests, t.n_requests);
    assert_int_equal(r.ttft_ms.n, t.n_requests);
    assert_int_equal(r.arrival_us.n, t.n_requests);
    assert_true(work_ns == r.blocks_computed * BLOCK_NS + t.answer_tokens * TOKEN_NS);
    assert_true(r.blocks_computed >= t.n_distinct && r.blocks_computed <= t.n_blocks);
    assert_true(fifo_max_over_mean(&r) >= 1 && fifo_largest_share(&r) >= 1.0 / 30);
    assert_int_equal(again.took_ns, r.took_ns);
    assert_int_equal(again.events, r.events);
    assert_memory_equal(again.ttft_ms.v, r.ttft_ms.v, r.ttft_ms.n * sizeof *r.ttft_ms.v);
    fifo_close(&r);
    fifo_close(&again);
    trace_close(&t);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct ask asks[] = {{7, "abc", 1}, {7, "d", 1}};
    struct trace t = trace_of(asks, 2);
    struct fifo_result r = {0};
    struct errmsg em = {0};
    struct fifo_options o = options(1, 2);
    assert_int_equal(fifo_run(&t, &o, &r, &em), ERR_CONF);
    assert_string_equal(em.text, "a cache of 2 blocks cannot hold the longest prompt, which has 3");
    o = options(1, 3);
    assert_int_equal(fifo_run(&t, &o, &r, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "all requests come at the same time"));
    o = options(1000, TRACE_BLOCKS_MAX);
    assert_int_equal(fifo_run(&t, &o, &r, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "the tables of 1000 caches of 8388608 blocks take "));
    t.requests[1].at_us++;
    o = options(1, 3);
    o.block_ns = UINT64_C(100000000000);
    t.n_distinct = 500000; /* 50,000,000 s */
    assert_int_equal(fifo_run(&t, &o, &r, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "more than a year"));
    assert_null(r.replicas);
    trace_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_by_hand), cmocka_unit_test(test_load_stretches_times),
        cmocka_unit_test(test_cache_size),    cmocka_unit_test(test_blocks_only),
        cmocka_unit_test(test_long_prompts),  cmocka_unit_test(test_concurrency),
        cmocka_unit_test(test_policies),      cmocka_unit_test(test_conservation),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
