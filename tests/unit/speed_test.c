/* Predicted times of Steps, from what a worker measured. */
#include "coordinator/core/speed.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct msg_speed speed = {.n_layer = 3,
                                       .n_head = 2,
                                       .layer = {{1, 100}, {4, 160}, {32, 1000}},
                                       .head = {{1, 50}, {4, 80}}};

static void test_points(void **state)
{
    (void)state;
    const struct msg_speed_point *p = speed.layer;
    assert_true(speed_at(p, 3, 0) == 0.0);
    assert_true(speed_at(p, 3, 1) == 100.0 && speed_at(p, 3, 4) == 160.0);
    assert_true(speed_at(p, 3, 2) == 120.0 && speed_at(p, 3, 18) == 580.0);
    assert_true(speed_at(p, 3, 60) == 1840.0); /* on the line of the last two */
    assert_true(speed_at(p, 1, 8) == 800.0);
    const struct msg_speed_point falls[] = {{1, 100}, {2, 90}};
    assert_true(speed_at(falls, 2, 8) == 100.0); /* not below what fewer rows take */
}

static void test_steps(void **state)
{
    (void)state;
    const struct speed_stage middle = {2.5, false}, last = {2.5, true};
    const struct msg_speed none = {.n_layer = 0};
    assert_true(speed_step(&speed, middle, 4, 4) == 400.0);
    assert_true(speed_step(&speed, last, 4, 4) == 480.0);
    assert_true(speed_step(&speed, last, 32, 1) == 2550.0);
    assert_true(speed_step(&none, last, 1, 1) == 0.0);
    /* A chunk of 32 rows, and 8 Steps of 4. */
    assert_true(speed_unit(&speed, middle) == 2500.0 + 8 * 400.0);
    assert_true(speed_unit(&speed, last) == 2550.0 + 8 * 480.0);
}

/* Rows take longer where they attend to more positions than those that were measured, and less
 * where to fewer, each by the layers that a stage has; the head has no attention. */
static void test_depth(void **state)
{
    (void)state;
    const struct speed_stage middle = {2.5, false}, last = {2.5, true};
    struct msg_speed deep = speed;
    deep.depth = 10;
    deep.position_ps = 400;
    assert_true(speed_step_at(&deep, middle, (struct cost_work){4, 4, 40}) == 400.0);
    assert_true(speed_step_at(&deep, middle, (struct cost_work){4, 4, 140}) == 500.0);
    assert_true(speed_step_at(&deep, last, (struct cost_work){4, 4, 140}) == 580.0);
    assert_true(speed_step_at(&deep, middle, (struct cost_work){4, 4, 0}) == 360.0);
    deep.position_ps = 1000000;
    assert_true(speed_step_at(&deep, middle, (struct cost_work){4, 4, 0}) == 200.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_points), cmocka_unit_test(test_steps),
                                       cmocka_unit_test(test_depth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
