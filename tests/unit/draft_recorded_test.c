/* Drafts from a file: its form, and which of its texts a request follows. */
#include "coordinator/draft/recorded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BYTES ((size_t)1 << 20)

static int open_text(const char *text, size_t n, size_t bytes_max, struct recorded **ret,
                     struct errmsg *em)
{
    char path[] = "/tmp/flotilla-recorded-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), n);
    assert_int_equal(close(fd), 0);
    int rc = recorded_open(path, 1000, bytes_max, ret, em);
    assert_int_equal(unlink(path), 0);
    return rc;
}

static struct recorded *open_good(const char *text)
{
    struct recorded *r;
    struct errmsg em = {0};
    if (open_text(text, strlen(text), BYTES, &r, &em) < 0) fail_msg("%s", em.text);
    return r;
}

/* A request that has said so far `tokens`, the last of which may be -1 for none. */
static void assert_draft(const struct recorded *r, struct recorded_choice *c, const int32_t *tokens,
                         uint32_t n, uint32_t n_prompt, uint32_t n_tail, uint32_t want,
                         const int32_t *expected, uint32_t n_expected)
{
    int32_t got[32];
    assert_int_equal(recorded_draft(r, c, tokens, n, n_prompt, n + n_tail, want, got), n_expected);
    if (n_expected) assert_memory_equal(got, expected, n_expected * sizeof *got);
}

static void test_file(void **state)
{
    (void)state;
    static const int32_t first[] = {1, 2, 3, 4, 5}, second[] = {7, 8, 9, 999, 0};
    struct recorded *r = open_good("# prompt and answer\n"
                                   "1 2 3 4 5\n\n  # nothing\n"
                                   "7,8, 9\t999 0 # the second\r\n"
                                   "6");
    struct recorded_choice c = {0}, d = {0}, e = {0}, f = {0};
    assert_draft(r, &c, first, 2, 2, 0, 32, first + 2, 3);
    assert_draft(r, &d, second, 1, 1, 0, 2, second + 1, 2);
    assert_draft(r, &d, second, 1, 1, 3, 32, second + 4, 1);
    assert_draft(r, &d, second, 1, 1, 4, 32, NULL, 0);
    assert_draft(r, &d, second, 5, 1, 0, 32, NULL, 0);
    const int32_t six[] = {6, 6}, unknown[] = {1, 3};
    assert_draft(r, &e, six, 1, 1, 0, 8, NULL, 0);
    assert_draft(r, &f, unknown, 2, 2, 0, 8, NULL, 0);
    recorded_close(r);
}

static void assert_refused(const char *text, size_t n, size_t bytes_max, int code, const char *why)
{
    struct recorded *r;
    struct errmsg em = {0};
    assert_int_equal(open_text(text, n, bytes_max, &r, &em), code);
    if (!strstr(em.text, why)) fail_msg("'%s' lacks '%s'", em.text, why);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct recorded *r;
    assert_refused("1 2\n3 1000 4\n", 13, BYTES, ERR_FORMAT,
                   ":2: token 1000 is not in the target's");
    assert_refused("99999999999999999999", 20, BYTES, ERR_FORMAT, ":1: token");
    assert_refused("1 2\n\n1 x\n", 9, BYTES, ERR_FORMAT, ":3: neither");
    assert_refused("1 -2\n", 5, BYTES, ERR_FORMAT, ":1: neither");
    assert_refused("1\0002\n", 4, BYTES, ERR_FORMAT, ":1: neither");
    assert_refused("", 0, BYTES, ERR_FORMAT, "no texts");
    assert_refused("# 1 2\n \n", 8, BYTES, ERR_FORMAT, "no texts");
    assert_int_equal(recorded_open("/nonexistent/x", 10, BYTES, &r, &em), ERR_NOTFOUND);
    assert_non_null(strstr(em.text, "/nonexistent/x"));
    /* Two bytes of a file may be four in memory, and more with the texts' places. */
    static char many[200000];
    for (size_t i = 0; i < sizeof many; i += 2) memcpy(many + i, "1 ", 2);
    assert_refused(many, sizeof many, 100000, ERR_LIMIT, "100000 bytes");
    for (size_t i = 0; i < sizeof many; i += 2) memcpy(many + i, "1\n", 2);
    assert_refused(many, sizeof many, (size_t)64 << 20, ERR_LIMIT, ":65537: more than 65536 texts");
}

/* Texts with one prompt: the one that agrees with the answer for longest is followed. */
static void test_which_text(void **state)
{
    (void)state;
    struct recorded *r = open_good("1 2 10 11 12 13\n1 2 10 21 22 23 24\n1 2 10 21 32 33 34 35\n");
    struct recorded_choice c = {0}, other = {0};
    int32_t said[] = {1, 2, 10, 21, 32, 40, 34};
    static const int32_t first[] = {10, 11}, second[] = {21, 22}, third[] = {32, 33, 34};
    assert_draft(r, &c, said, 2, 2, 0, 2, first, 2);
    assert_draft(r, &c, said, 3, 2, 0, 1, first + 1, 1); /* both agree so far: the first */
    assert_draft(r, &c, said, 4, 2, 0, 1, second + 1, 1);
    assert_draft(r, &c, said, 5, 2, 0, 2, third + 1, 2);
    assert_false(c.final);
    /* The answer is none of them: the last that agreed is followed by position. */
    assert_draft(r, &c, said, 6, 2, 0, 1, third + 2, 1);
    assert_true(c.final);
    assert_draft(r, &c, said, 6, 2, 1, 1, (const int32_t[]){35}, 1);
    /* Asked late for the first time; and a prompt of which none is the beginning. */
    assert_draft(r, &other, said, 4, 2, 0, 1, second + 1, 1);
    struct recorded_choice none = {0};
    static const int32_t longer[] = {1, 2, 10, 11, 12, 14};
    assert_draft(r, &none, longer, 6, 6, 0, 4, NULL, 0);
    recorded_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_which_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
