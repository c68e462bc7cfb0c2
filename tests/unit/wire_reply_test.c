/* What the wire says of how an answer ended, and what of it is refused. */
#include "proto/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct arena arena;
static struct buf out;

static int passed(const struct msg_generate_reply *r, struct msg_generate_reply *ret,
                  struct errmsg *em)
{
    wire_put_generate_reply(r, &out);
    return wire_get_generate_reply(out.data, out.len, &arena, ret, em);
}

static void test_stop(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct msg_generate_reply r = {.text = "", .finish_reason = FINISH_STOP}, got;
    assert_int_equal(passed(&r, &got, &em), 0);
    assert_true(got.finish_reason == FINISH_STOP && !got.has_stop);
    r.has_stop = true;
    for (r.stop = 0; r.stop < LIMIT_STOPS; r.stop++) {
        assert_int_equal(passed(&r, &got, &em), 0);
        assert_true(got.has_stop && got.stop == r.stop);
    }
    assert_int_equal(passed(&r, &got, &em), ERR_PROTO); /* a request has no such text */
    assert_non_null(strstr(em.text, "stop"));
    r.stop = 0;
    r.finish_reason = FINISH_LENGTH;
    assert_int_equal(passed(&r, &got, &em), ERR_PROTO);
    r.finish_reason = FINISH_NONE;
    assert_int_equal(passed(&r, &got, &em), ERR_PROTO);
    buf_close(&out);
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
