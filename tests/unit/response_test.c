/* The Responses API: bodies to those of chats, answers to responses and events. */
#include "coordinator/gateway/message.h"
#include "coordinator/gateway/response.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

static struct json *read_json(const char *text)
{
    struct json *j = NULL;
    struct errmsg em = {0};
    if (json_read(text, strlen(text), &j, &em) < 0) fail_msg("%s: %s", text, em.text);
    return j;
}

/* The chat's body, or what is said against it; what a response repeats is in *ret_echo. */
static void translated(const char *body, const char *want, struct json **ret_echo)
{
    struct json *doc = read_json(body), *echo = NULL;
    struct fault f = {0};
    struct buf b = {0};
    struct json *j = response_translate(doc, &echo, &f);
    json_free(doc);
    if (!j) {
        if (want[0] == '{' || !strstr(f.text, want)) fail_msg("%s: %s", body, f.text);
        assert_int_equal(f.http, 400);
        return;
    }
    json_write(j, &b);
    if (strcmp(b.data, want) != 0) fail_msg("%s\n is %s\n not %s", body, b.data, want);
    buf_close(&b);
    json_free(j);
    if (ret_echo)
        *ret_echo = echo;
    else
        json_free(echo);
}

static void test_input(void **state)
{
    (void)state;
    translated("{\"input\":\"x\",\"instructions\":\"s\"}",
               "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
               "\"content\":\"x\"}]}",
               NULL);
    /* Without a type an item is a message; parts are joined. */
    translated("{\"input\":[{\"role\":\"developer\",\"content\":\"d\"},{\"type\":\"message\","
               "\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":"
               "\"input_text\",\"text\":\"b\"}]}]}",
               "{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\","
               "\"content\":\"ab\"}]}",
               NULL);
    /* Thoughts, words and calls in a row are one message; a second thought begins another. */
    translated(
        "{\"input\":[{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":[],\"content\":[{\"type\":"
        "\"reasoning_text\",\"text\":\"h\"}]},{\"type\":\"message\",\"role\":\"assistant\","
        "\"content\":[{\"type\":\"output_text\",\"text\":\"t\",\"annotations\":[]}]},{\"type\":"
        "\"function_call\",\"call_id\":\"i\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"
        "\"function_call\",\"call_id\":\"k\",\"name\":\"g\",\"arguments\":\"{}\"},{\"type\":"
        "\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"z\"}]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":\"t\",\"reasoning_content\":\"h\","
        "\"tool_calls\":[{\"id\":\"i\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{}\"}},{\"id\":\"k\",\"type\":\"function\",\"function\":{\"name\":\"g\","
        "\"arguments\":\"{}\"}}]},{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":"
        "\"z\"}]}",
        NULL);
    /* Two messages of an assistant's stay two; a call whose result comes is ended by it. */
    translated("{\"input\":[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\","
               "\"content\":\"b\"},{\"type\":\"function_call\",\"call_id\":\"i\",\"name\":\"f\","
               "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"i\","
               "\"output\":[{\"type\":\"input_text\",\"text\":\"r\"}]}]}",
               "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\","
               "\"content\":\"b\",\"tool_calls\":[{\"id\":\"i\",\"type\":\"function\",\"function\":"
               "{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"r\","
               "\"tool_call_id\":\"i\"}]}",
               NULL);
    static const char *const wrong[][2] = {
        {"[]", "no JSON object"},
        {"{}", "'input' must be"},
        {"{\"input\":[]}", "'input' must be"},
        {"{\"input\":7}", "'input' must be"},
        {"{\"input\":[7]}", "item 0 is no object"},
        {"{\"input\":\"x\",\"instructions\":[]}", "'instructions' must be a string"},
        {"{\"input\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "item 0: a role"},
        {"{\"input\":[{\"role\":\"user\"}]}", "item 0: neither a text"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
         "part 0, of type 'input_image'"},
        {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", "'item_reference'"},
        {"{\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"\"}]}",
         "'call_id' is no string"},
        {"{\"input\":[{\"type\":\"function_call_output\",\"output\":\"\"}]}",
         "'call_id' is no string"},
        {"{\"input\":[{\"type\":\"reasoning\",\"encrypted_content\":\"x\"}]}",
         "'encrypted_content'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        translated(wrong[i][0], wrong[i][1], NULL);
}

static void test_parameters(void **state)
{
    (void)state;
    struct json *echo = NULL;
    struct buf b = {0};
    translated(
        "{\"input\":\"x\",\"model\":\"m\",\"stream\":true,\"max_output_tokens\":5,\"temperature\":"
        "0,"
        "\"store\":false,\"previous_response_id\":null,\"tools\":[{\"type\":\"function\",\"name\":"
        "\"f\",\"parameters\":{},\"strict\":true}],\"tool_choice\":{\"type\":\"function\",\"name\":"
        "\"f\"},\"reasoning\":{\"effort\":\"low\"},\"top_k\":2,\"metadata\":{\"a\":\"b\"},\"text\":"
        "{"
        "\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{}}}}",
        "{\"model\":\"m\",\"stream\":true,\"max_tokens\":5,\"temperature\":0,\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{},\"strict\":true}}],"
        "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},\"reasoning_"
        "effort\":\"low\",\"top_k\":2,"
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":"
        "{}}},\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
        &echo);
    /* Nothing is stored, and whether a call is held to its schema is not known here, whatever was
     * asked for. */
    json_write(json_get(echo, "tools"), &b);
    assert_string_equal(b.data, "[{\"type\":\"function\",\"name\":\"f\",\"description\":null,"
                                "\"parameters\":{},\"strict\":false}]");
    buf_close(&b);
    json_write(echo, &b);
    static const char *const has[] = {"\"store\":false",
                                      "\"max_output_tokens\":5",
                                      "\"temperature\":0,",
                                      "\"metadata\":{\"a\":\"b\"}",
                                      "\"text\":{\"format\":{\"type\":\"json_schema\"",
                                      "\"previous_response_id\":null",
                                      "\"top_p\":1.0"};
    for (size_t i = 0; i < sizeof has / sizeof has[0]; i++)
        if (!strstr(b.data, has[i])) fail_msg("no %s in %s", has[i], b.data);
    buf_close(&b);
    json_free(echo);
    static const char *const wrong[][2] = {
        {"{\"input\":\"x\",\"store\":true}", "'store': nothing is stored"},
        {"{\"input\":\"x\",\"previous_response_id\":\"r\"}", "'previous_response_id': nothing is"},
        {"{\"input\":\"x\",\"conversation\":\"c\"}", "'conversation': nothing is stored"},
        {"{\"input\":\"x\",\"background\":true}", "'background': true"},
        {"{\"input\":\"x\",\"messages\":[]}", "'messages' is no parameter"},
        {"{\"input\":\"x\",\"n\":2}", "'n' is no parameter"},
        {"{\"input\":\"x\",\"max_output_tokens\":0}", "'max_output_tokens' must be"},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"web_search\"}]}", "tool 0"},
        {"{\"input\":\"x\",\"tool_choice\":{\"type\":\"file_search\"}}", "'tool_choice'"},
        {"{\"input\":\"x\",\"text\":{\"format\":{}}}", "'text.format' must be"},
        {"{\"input\":\"x\",\"text\":{\"verbosity\":\"low\"}}", "'text.verbosity'"},
        {"{\"input\":\"x\",\"reasoning\":{\"summary\":\"auto\"}}", "'summary'"},
        {"{\"input\":\"x\",\"include\":[\"reasoning.encrypted_content\"]}", "'include'"},
        {"{\"input\":\"x\",\"truncation\":\"auto\"}", "'truncation'"},
        {"{\"input\":\"x\",\"metadata\":{\"a\":1}}", "'a' is no string"},
        {"{\"input\":\"x\",\"stream_options\":{\"include_usage\":true}}", "'include_usage'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        translated(wrong[i][0], wrong[i][1], NULL);
}

/* A fault of the chat that it became has this API's words. */
static void test_names(void **state)
{
    (void)state;
    static const char *const cases[][4] = {
        {"max_tokens", "'max_tokens' must be x", "max_output_tokens",
         "'max_output_tokens' must be x"},
        {"response_format", "'response_format': no", "text.format", "'text.format': no"},
        {"messages[3].content", "field 'messages[3].content': no", "input",
         "field 'messages[3].content': no"},
        {"messages", "field 'messages': no", "input", "field 'input': no"},
        {"top_p", "'top_p': no", "top_p", "'top_p': no"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fault f;
        (void)fault_set(&f, 400, cases[i][0], "%s", cases[i][1]);
        response_rename(&f);
        assert_string_equal(f.param, cases[i][2]);
        assert_string_equal(f.text, cases[i][3]);
    }
}

/* A name that grows may push a long text beyond its limit, in the middle of a character. */
static void test_renamed_text_is_utf8(void **state)
{
    (void)state;
    for (int before = 0; before < 3; before++) {
        struct fault f;
        char euros[451] = "";
        for (int i = 0; i < 450; i += 3) (void)strcat(euros, "\xe2\x82\xac");
        (void)fault_set(&f, 400, "messages", "'messages' %.*s%s", before, "xx", euros);
        response_rename(&f);
        struct buf b = {0};
        f.code = "x";
        fault_write(&f, &b);
        if (strstr(b.data, "null")) fail_msg("%s", b.data);
        buf_close(&b);
    }
}

/* ---- the answer ---- */

struct answer {
    struct choice c;
    struct response_stream s;
    struct response_head h;
    struct ask ask;
    struct json *echo;
};

static void begin(struct answer *a)
{
    static const char body[] = "{\"messages\": [1], \"tools\": " TOOLS "}";
    struct fault f;
    *a = (struct answer){.echo = read_json("{\"store\":false}")};
    assert_int_equal(ask_read(ASK_CHAT, body, strlen(body), &a->ask, &f), 0);
    choice_split(&a->c, &a->ask, 5);
    a->h = (struct response_head){.id = "resp-1",
                                  .model = "m",
                                  .created_s = 9,
                                  .echo = a->echo,
                                  .n_prompt = 20,
                                  .n_cached = 16,
                                  .n_answer = 7,
                                  .n_reasoning = 2};
}

static void end(struct answer *a)
{
    choice_close(&a->c);
    response_close(&a->s);
    ask_close(&a->ask);
    json_free(a->echo);
}

static void say(struct answer *a, const char *text, enum finish_reason finish)
{
    choice_take(&a->c, &(struct client_reply){.text = text, .n_tokens = 1, .finish_reason = finish},
                false);
}

/* The next events, each as "TYPE key=VALUE ..." of what matters; sequence numbers go up by one. */
static void expect_events(struct answer *a, bool ends, const struct fault *f,
                          const char *const *want, int64_t first)
{
    static const char *const keys[] = {"output_index", "delta", "text", "arguments", "code"};
    struct buf b = {0};
    response_events(&a->s, &a->h, &a->c, ends, f, &b);
    char *at = b.data;
    for (size_t i = 0; want[i]; i++) {
        char got[512], *data = at ? strstr(at, "\ndata: ") : NULL, *line_end;
        if (!data) fail_msg("no event %s", want[i]);
        assert_memory_equal(at, "event: ", 7);
        data += strlen("\ndata: ");
        line_end = strstr(data, "\n\n");
        assert_non_null(line_end);
        *line_end = 0;
        struct json *j = read_json(data);
        const char *type = "", *text;
        size_t n = 0;
        int64_t number = -1;
        assert_true(json_as_string(json_get(j, "type"), &type, &n));
        assert_true(strncmp(at + 7, type, n) == 0 && at[7 + n] == '\n');
        assert_true(json_as_int(json_get(j, "sequence_number"), &number));
        assert_int_equal(number, first + (int64_t)i);
        int len = snprintf(got, sizeof got, "%s", type);
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            int64_t x;
            if (json_as_string(json_get(j, keys[k]), &text, &n))
                len += snprintf(got + len, sizeof got - (size_t)len, " %s=%s", keys[k], text);
            if (json_as_int(json_get(j, keys[k]), &x))
                len += snprintf(got + len, sizeof got - (size_t)len, " %s=%d", keys[k], (int)x);
        }
        if (strcmp(got, want[i]) != 0) fail_msg("event %zu is '%s', not '%s'", i, got, want[i]);
        json_free(j);
        at = line_end + 2;
    }
    if (at && *at) fail_msg("more events: %s", at);
    buf_close(&b);
}

#define EVENT(name) "response." name

static void test_events(void **state)
{
    (void)state;
    struct answer a;
    begin(&a);
    say(&a, "<think>w", FINISH_NONE);
    static const char *const first[] = {EVENT("created"),
                                        EVENT("in_progress"),
                                        EVENT("output_item.added output_index=0"),
                                        EVENT("content_part.added output_index=0"),
                                        EVENT("reasoning_text.delta output_index=0 delta=w"),
                                        NULL};
    expect_events(&a, false, NULL, first, 0);
    say(&a, "v</think>x <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":", FINISH_NONE);
    static const char *const second[] = {
        EVENT("reasoning_text.delta output_index=0 delta=v"),
        EVENT("reasoning_text.done output_index=0 text=wv"),
        EVENT("content_part.done output_index=0"),
        EVENT("output_item.done output_index=0"),
        EVENT("output_item.added output_index=1"),
        EVENT("content_part.added output_index=1"),
        EVENT("output_text.delta output_index=1 delta=x"),
        EVENT("output_text.done output_index=1 text=x"),
        EVENT("content_part.done output_index=1"),
        EVENT("output_item.done output_index=1"),
        EVENT("output_item.added output_index=2"),
        EVENT("function_call_arguments.delta output_index=2 delta={\"a\":"),
        NULL};
    expect_events(&a, false, NULL, second, 5);
    /* What a call still has to say comes before text that stands behind it. */
    say(&a, "1}}</tool_call> y", FINISH_STOP);
    static const char *const third[] = {
        EVENT("function_call_arguments.delta output_index=2 delta=1}"),
        EVENT("function_call_arguments.done output_index=2 arguments={\"a\":1}"),
        EVENT("output_item.done output_index=2"),
        EVENT("output_item.added output_index=3"),
        EVENT("content_part.added output_index=3"),
        EVENT("output_text.delta output_index=3 delta= y"),
        EVENT("output_text.done output_index=3 text= y"),
        EVENT("content_part.done output_index=3"),
        EVENT("output_item.done output_index=3"),
        EVENT("completed"),
        NULL};
    expect_events(&a, true, NULL, third, 17);
    size_t n = 0;
    assert_true(json_count(a.s.output, &n));
    assert_int_equal(n, 4);
    assert_int_equal(a.c.n_reasoning, 1); /* the second reply's tokens end it */
    end(&a);
    /* What breaks off has an error, and the response as far as it came. */
    begin(&a);
    say(&a, "x", FINISH_NONE);
    static const char *const fourth[] = {EVENT("created"),
                                         EVENT("in_progress"),
                                         EVENT("output_item.added output_index=0"),
                                         EVENT("content_part.added output_index=0"),
                                         EVENT("output_text.delta output_index=0 delta=x"),
                                         "error code=service_unavailable_error",
                                         EVENT("failed"),
                                         NULL};
    struct fault f;
    (void)fault_set(&f, 503, NULL, "gone");
    expect_events(&a, true, &f, fourth, 0);
    end(&a);
}

/* Anthropic's events too: a call's last arguments belong to its block, not to that of the text. */
static void test_text_behind_a_call(void **state)
{
    (void)state;
    struct answer a;
    struct message_stream s = {.begun = false};
    struct message_head h = {.id = "msg-1"};
    struct buf b = {0};
    begin(&a);
    say(&a, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":", FINISH_NONE);
    message_events(&s, &h, &a.c, false, &b);
    buf_close(&b);
    say(&a, "1}}</tool_call> y", FINISH_STOP);
    message_events(&s, &h, &a.c, true, &b);
    const char *rest = strstr(b.data, "\"partial_json\":\"1}\""),
               *text = strstr(b.data, "\"text\":\" y\"");
    assert_non_null(rest);
    assert_non_null(text);
    assert_true(rest < text);
    assert_non_null(strstr(b.data, "data: {\"index\":0,\"delta\":{\"type\":\"input_json_delta\""));
    buf_close(&b);
    end(&a);
}

static void expect_whole(const char *said, enum finish_reason finish, const char *const *has)
{
    struct answer a;
    struct buf b = {0};
    begin(&a);
    say(&a, said, finish);
    struct json *j = response_whole(&a.h, &a.c);
    json_write(j, &b);
    for (size_t i = 0; has[i]; i++)
        if (!strstr(b.data, has[i])) fail_msg("no %s in %s", has[i], b.data);
    json_free(j);
    buf_close(&b);
    end(&a);
}

static void test_whole(void **state)
{
    (void)state;
    static const char *const calls[] = {
        "{\"id\":\"resp-1\",\"object\":\"response\",\"created_at\":9,\"status\":\"completed\","
        "\"error\":null,\"incomplete_details\":null,\"model\":\"m\",\"output\":[{\"type\":"
        "\"reasoning\",\"id\":\"rs-resp-1-0\",\"status\":\"completed\",\"summary\":[],\"content\":["
        "{\"type\":\"reasoning_text\",\"text\":\"w\"}]},{\"type\":\"message\",\"id\":\"msg-resp-1-"
        "1\",\"status\":\"completed\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_"
        "text\","
        "\"text\":\"x\",\"annotations\":[],\"logprobs\":[]}]},{\"type\":\"function_call\",\"id\":"
        "\"fc-resp-1-2\",\"status\":\"completed\",\"call_id\":\"",
        "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}],\"store\":false,\"usage\":{\"input_"
        "tokens\":20,\"input_tokens_details\":{\"cached_tokens\":16},\"output_tokens\":7,\"output_"
        "tokens_details\":{\"reasoning_tokens\":2},\"total_tokens\":27}}",
        NULL};
    expect_whole(
        "<think>w</think>x <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>",
        FINISH_STOP, calls);
    static const char *const cut[] = {"\"status\":\"incomplete\",\"error\":null,\"incomplete_"
                                      "details\":{\"reason\":\"max_output_tokens\"}",
                                      "\"status\":\"incomplete\",\"role\":\"assistant\"", NULL};
    expect_whole("x", FINISH_LENGTH, cut);
    static const char *const nothing[] = {"\"output\":[{\"type\":\"message\"", "\"text\":\"\"",
                                          NULL};
    expect_whole("", FINISH_STOP, nothing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_input),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_text_behind_a_call),
        cmocka_unit_test(test_renamed_text_is_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
