/* Traces of requests: what is read of a file and what of it is refused, by line and key; made-up
 * traces. */
#include "coordinator/sim/trace.h"

#include "common/base/mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LINE(at, blocks, ids)                                                                      \
    "{\"timestamp\": " #at ", \"input_length\": " #blocks "00, \"output_length\": 7, "             \
    "\"hash_ids\": [" ids "]}\n"

static char path[] = "/tmp/flotilla_trace_XXXXXX";

static int write_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static int read_bytes(const char *bytes, size_t n, struct trace *ret, struct errmsg *em)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return trace_read(path, ret, em);
}

static struct trace read_good(const char *text)
{
    struct trace t = {0};
    struct errmsg em = {0};
    if (read_bytes(text, strlen(text), &t, &em) < 0) fail_msg("%s", em.text);
    return t;
}

static void refuse(const char *text, const char *says)
{
    struct trace t = {0};
    struct errmsg em = {0};
    assert_true(read_bytes(text, strlen(text), &t, &em) < 0);
    assert_null(t.requests);
    if (!strstr(em.text, says)) fail_msg("'%.80s' says '%s', not '%s'", text, em.text, says);
}

static void test_requests(void **state)
{
    (void)state;
    struct trace t = read_good(LINE(5, 10, "3, 9000000000000000000") "\n" LINE(5, 6, "3, 4") LINE(
        2000, 5, "3") "{\"hash_ids\": [4], \"timestamp\": 2001, \"more\": {}, \"input_length\": 1, "
                      "\"output_length\": 1000000}");
    assert_int_equal(t.n_requests, 4);
    assert_int_equal(t.n_blocks, 6);
    assert_int_equal(t.prompt_most, 2);
    assert_int_equal(t.answer_tokens, 3 * 7 + 1000000);
    assert_int_equal(t.requests[2].at_us, 2000000);
    assert_int_equal(t.requests[2].first_block, 4);
    assert_int_equal(t.requests[2].n_blocks, 1);
    assert_int_equal(t.requests[3].n_answer, 1000000);
    /* A block is what stands before it, too: 4 behind 3 is another block than 4 alone. */
    static const uint32_t blocks[] = {0, 1, 0, 2, 0, 3};
    assert_memory_equal(t.blocks, blocks, sizeof blocks);
    assert_int_equal(t.n_distinct, 4);
    trace_close(&t);
    assert_null(t.requests);
    trace_close(&t);
}

static void test_many(void **state)
{
    (void)state;
    char *text = mem_alloc(4 << 20), *end = text;
    for (int i = 0; i < 3000; i++) {
        end += sprintf(
            end, "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": 1, \"hash_ids\": [0",
            i, 512 * 50);
        for (int k = 1; k < 50; k++) end += sprintf(end, ",%d", k < 25 ? k : i * 50 + k);
        end += sprintf(end, "]}\n");
    }
    struct trace t = read_good(text);
    assert_int_equal(t.n_requests, 3000);
    assert_int_equal(t.n_blocks, 150000);
    assert_int_equal(t.n_distinct, 25 + 3000 * 25);
    assert_int_equal(t.blocks[149999], 25 + 3000 * 25 - 1);
    trace_close(&t);
    mem_free(text);
}

static void test_refused(void **state)
{
    (void)state;
    refuse("", ": no requests");
    refuse("\n\n", ": no requests");
    refuse(LINE(0, 5, "1") "\n{\"timestamp\": 1,", ":3: byte 16: not JSON");
    refuse("[1]", ":1: 'timestamp' is missing");
    refuse("{\"timestamp\": -1}", ":1: 'timestamp' is not a whole number in 0..1000000000000");
    refuse("{\"timestamp\": 1.5}", ":1: 'timestamp' is not");
    refuse("{\"timestamp\": 1}", ":1: 'input_length' is missing");
    refuse("{\"timestamp\": 1, \"input_length\": 0}",
           ":1: 'input_length' is not a whole number in 1..");
    refuse("{\"timestamp\": 1, \"input_length\": 33554433}", ":1: 'input_length' is not");
    refuse("{\"timestamp\": 1, \"input_length\": 9, \"output_length\": 1000001}",
           ":1: 'output_length' is not a whole number in 1..1000000");
    refuse("{\"timestamp\": 1, \"input_length\": 9, \"output_length\": 1}",
           ":1: 'hash_ids' is not a list");
    refuse(LINE(0, 5, "1, 2"), ":1: 'hash_ids' has 2 blocks, but 'input_length' 500 is 1 blocks");
    refuse(LINE(0, 6, "1"), ":1: 'hash_ids' has 1 blocks, but 'input_length' 600 is 2 blocks");
    refuse(LINE(0, 6, "1, -1"), ":1: 'hash_ids': number 2 is no whole number");
    refuse(LINE(0, 6, "1, []"), ":1: 'hash_ids': number 2 is no whole number");
    refuse(LINE(9, 5, "1") LINE(8, 5, "1"), ":2: 'timestamp' 8 is before 9 of the request above");
    struct errmsg em = {0};
    struct trace t = {0};
    assert_int_equal(trace_read("/nonexistent/trace", &t, &em), ERR_IO);
    assert_non_null(strstr(em.text, "/nonexistent/trace: No such file"));
    assert_int_equal(trace_read("/tmp", &t, &em), ERR_IO);
}

static void test_lines(void **state)
{
    (void)state;
    struct trace t = {0};
    struct errmsg em = {0};
    static const char zero[] = LINE(0, 5, "1") "{\0}\n";
    assert_int_equal(read_bytes(zero, sizeof zero - 1, &t, &em), ERR_LIMIT);
    assert_non_null(strstr(em.text, ":2: a zero byte"));
    /* A line as long as is allowed, and one that is a byte longer. */
    static const char line[] = LINE(0, 5, "1");
    char *text = mem_alloc(TRACE_LINE_BYTES);
    memset(text, ' ', TRACE_LINE_BYTES);
    memcpy(text, line, sizeof line - 2);
    text[TRACE_LINE_BYTES - 2] = '\n';
    assert_int_equal(read_bytes(text, TRACE_LINE_BYTES - 1, &t, &em), 0);
    trace_close(&t);
    text[TRACE_LINE_BYTES - 2] = ' ';
    text[TRACE_LINE_BYTES - 1] = '\n';
    assert_int_equal(read_bytes(text, TRACE_LINE_BYTES, &t, &em), ERR_LIMIT);
    assert_non_null(strstr(em.text, ":1: a zero byte, or more than 4194302 bytes"));
    mem_free(text);
}

/* ---- made-up traces ---- */

static struct trace make(const char *text, uint64_t seed)
{
    struct trace_spec spec = TRACE_SPEC_DEFAULT;
    struct trace t = {0};
    struct errmsg em = {0};
    if (trace_parse_spec(text, &spec, &em) < 0) fail_msg("%s", em.text);
    if (trace_make(&spec, seed, &t, &em) < 0) fail_msg("%s", em.text);
    return t;
}

static void test_made(void **state)
{
    (void)state;
    struct trace t = make("requests=5000,groups=4,shared=10,own=3,answer=50,skew=1,", 7);
    uint32_t firsts[4], n_firsts = 0, counts[4] = {0}, shared = 0;
    assert_int_equal(t.n_requests, 5000);
    for (uint32_t i = 0; i < t.n_requests; i++) {
        const struct trace_request *r = &t.requests[i];
        uint32_t first = t.blocks[r->first_block], g = 0;
        while (g < n_firsts && firsts[g] != first) g++;
        if (g == n_firsts) firsts[n_firsts++] = first;
        assert_true(n_firsts <= 4);
        counts[g]++;
        assert_in_range(r->n_blocks, 5 + 1, 15 + 5);
        assert_in_range(r->n_answer, 1, 99);
        if (i) assert_true(r->at_us >= r[-1].at_us);
        shared += r->n_blocks;
    }
    assert_int_equal(shared, t.n_blocks);
    /* With 1/g weights the first group has 12/25 of the requests; sd is 35. */
    uint32_t most = 0;
    for (uint32_t g = 0; g < 4; g++) most = counts[g] > most ? counts[g] : most;
    assert_in_range(most, 2400 - 200, 2400 + 200);
    /* Each request's own blocks are in no other one: 15,000 on average; the groups' are 20..60. */
    assert_in_range(t.n_distinct, 14400 + 20, 15600 + 60);
    assert_in_range(t.answer_tokens, 5000 * 48, 5000 * 52);
    assert_in_range(t.requests[4999].at_us, 4700u * 1000000u, UINT64_C(5300) * 1000000);
    struct trace again = make("requests=5000,groups=4,shared=10,own=3,answer=50,skew=1", 7);
    struct trace other = make("requests=5000,groups=4,shared=10,own=3,answer=50,skew=1", 8);
    assert_int_equal(again.n_blocks, t.n_blocks);
    assert_memory_equal(again.blocks, t.blocks, t.n_blocks * sizeof *t.blocks);
    assert_memory_equal(again.requests, t.requests, t.n_requests * sizeof *t.requests);
    assert_int_not_equal(other.requests[0].at_us, t.requests[0].at_us);
    trace_close(&t);
    trace_close(&again);
    trace_close(&other);
    t = make("groups=1,own=0,requests=9,shared=1", 1);
    assert_int_equal(t.n_blocks, 9);
    assert_int_equal(t.n_distinct, 1);
    trace_close(&t);
}

static void test_specs_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"own", "'own' is not KEY=VALUE"},
        {"owned=3", "'owned' is unknown (requests, groups, shared, own, answer, skew)"},
        {"own=3x", "own=3x: not a whole number in 0..16384"},
        {"own=", "own=: not a whole number"},
        {"own=1.5", "own=1.5: not a whole number"},
        {"requests=0", "requests=0: not a whole number in 1..1000000"},
        {"requests=1000001", "requests=1000001: not"},
        {"skew=nan", "skew=nan: not a number in 0..4"},
        {"skew=4.1", "skew=4.1: not a number in 0..4"},
        {"shared=0,own=0", "the prompts have no blocks"},
        {"0123456789012345678901234567890123456789012345678901234567890123=1", "is too long"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct trace_spec spec = TRACE_SPEC_DEFAULT;
        struct errmsg em = {0};
        assert_int_equal(trace_parse_spec(cases[i].text, &spec, &em), ERR_CONF);
        if (!strstr(em.text, cases[i].says)) fail_msg("'%s' says %s", cases[i].text, em.text);
    }
}

/* Blocks of all prompts beyond the limit: refused before they are made. */
static void test_too_many_blocks(void **state)
{
    (void)state;
    struct trace_spec spec = TRACE_SPEC_DEFAULT;
    struct trace t = {0};
    struct errmsg em = {0};
    spec.groups = 1;
    spec.shared = 16384;
    spec.own = 0;
    spec.requests = TRACE_BLOCKS_MAX / 8192 + 1;
    assert_int_equal(trace_make(&spec, 1, &t, &em), ERR_LIMIT);
    assert_string_equal(em.text, "more than 8388608 blocks of all prompts");
    assert_null(t.requests);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_made),
        cmocka_unit_test(test_specs_refused),
        cmocka_unit_test(test_too_many_blocks),
    };
    return cmocka_run_group_tests(tests, write_file, remove_file);
}
