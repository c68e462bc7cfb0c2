/* What the client library makes of a request before it leaves: its copy, and its size. */
#include "common/client/tools.h"
#include "proto/limits.h"
#include "tests/lib/scripted_server.h"

#include <stdlib.h>

static void test_request_is_copied(void **state)
{
    char prompt[] = "once upon", stop[] = "the end", draft[] = "ngram";
    const char *stops[] = {stop};
    int32_t bias_ids[] = {7};
    float bias[] = {1.0f};
    struct seen s = {.n = 0};
    struct errmsg em = {0};
    struct client_request q = request;
    q.prompt = prompt;
    q.draft = draft;
    q.stops = stops;
    q.n_stops = 1;
    q.sampling.bias_ids = bias_ids;
    q.sampling.bias = bias;
    q.sampling.n_bias = 1;
    server.stop_after = 3;
    assert_int_equal(client_start(*state, &q, &s.call, on_reply, on_end, &s, &em), 0);
    turn_for(*state, 1);
    memset(prompt, 'x', sizeof prompt - 1);
    memset(stop, 'x', sizeof stop - 1);
    memset(draft, 'x', sizeof draft - 1);
    bias_ids[0] = 8;
    server.stop_after = 0;
    turn_for(*state, 20);
    assert_whole(&s);
    assert_int_equal(server.n_generates, 2);
    assert_string_equal(server.prompt, "once upon");
    assert_string_equal(server.stop, "the end");
    assert_string_equal(server.draft, "ngram");
    assert_int_equal(server.bias_id, 7);
}

static char *text_of(size_t n)
{
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, 'a', n);
    text[n] = 0;
    return text;
}

static void test_requests_that_no_server_takes(void **state)
{
    struct seen s = {.n = 0};
    struct errmsg em = {0};
    const char *stops[CLIENT_STOPS_MAX + 1];
    for (size_t i = 0; i <= CLIENT_STOPS_MAX; i++) stops[i] = "s";
    struct client_request q = request;
    q.stops = stops;
    q.n_stops = CLIENT_STOPS_MAX + 1;
    assert_int_equal(client_start(*state, &q, &s.call, on_reply, on_end, &s, &em), ERR_LIMIT);
    assert_string_equal(em.text, "more than 16 stop texts");
    char *prompt = text_of(LIMIT_CLIENT_BYTES);
    q = request;
    q.prompt = prompt;
    assert_int_equal(client_start(*state, &q, &s.call, on_reply, on_end, &s, &em), ERR_LIMIT);
    free(prompt);
    assert_non_null(strstr(em.text, "the server takes 17825792"));
    assert_int_equal(client_turn(*state, 0), 0);
    assert_int_equal(s.n_ends + server.n_generates, 0);
}

/* What every server takes leaves at once; what is larger waits until this one has said what it
 * takes, and never reaches one that takes less, which would cut the connection of all calls. */
static void test_requests_that_this_server_does_not_take(void **state)
{
    static struct seen large, small, again;
    struct errmsg em = {0};
    struct client_end end = {0};
    char *prompt = text_of(LIMIT_CLIENT_LEAST);
    struct client_request q = request;
    q.prompt = prompt;
    server.takes = LIMIT_CLIENT_LEAST;
    start(*state, &small, 0);
    assert_int_equal(client_start(*state, &q, &large.call, on_reply, on_end, &large, &em), 0);
    assert_int_equal(server.n_generates, 1);
    (void)client_turn(*state, 0);
    assert_int_not_equal(client_wait_ms(*state), 0); /* it does not spin meanwhile */
    assert_int_equal(server.n_generates, 1);
    turn_for(*state, 2);
    assert_whole(&small);
    assert_int_equal(server.n_generates, 1);
    assert_int_equal(large.n_ends, 1);
    assert_int_equal(large.end.status, STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(large.end.text, "the server takes 4194304"));
    /* Now that it is known, no call begins. */
    assert_int_equal(client_start(*state, &q, &again.call, on_reply, on_end, &again, &em),
                     ERR_LIMIT);
    assert_int_equal(
        client_raw(*state, PROTO_VERSION, "Tokenize", prompt, LIMIT_CLIENT_LEAST + 1, &end, &em),
        0);
    assert_int_equal(end.status, STATUS_INVALID_ARGUMENT);
    assert_int_equal(server.n_unary, 0);
    free(prompt);
}

/* A server that takes more, and one that does not know the field. */
static void test_large_requests(void **state)
{
    static struct seen s;
    struct errmsg em = {0};
    char *prompt = text_of(LIMIT_CLIENT_LEAST);
    struct client_request q = request;
    q.prompt = prompt;
    for (uint32_t i = 0; i < 2; i++) {
        s = (struct seen){.n = 0};
        server.takes = i == 0 ? 0 : LIMIT_CLIENT_LEAST + 4096;
        assert_int_equal(client_start(*state, &q, &s.call, on_reply, on_end, &s, &em), 0);
        turn_for(*state, 2);
        assert_whole(&s);
        assert_int_equal(server.n_generates, i + 1);
    }
    free(prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_request_is_copied, setup, teardown),
        cmocka_unit_test_setup_teardown(test_requests_that_no_server_takes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_requests_that_this_server_does_not_take, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_large_requests, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
