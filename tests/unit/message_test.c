/* Anthropic's form of a chat: bodies to those of chats, answers to messages and events. */
#include "coordinator/gateway/ask.h"
#include "coordinator/gateway/choice.h"
#include "coordinator/gateway/message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/expect_json.h"

#define TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

/* Parts of it point into it, so the one that was read stays until the next. */
static struct ask taken(const char *body)
{
    static struct ask a;
    struct fault f = {0};
    if (ask_read(ASK_CHAT, body, strlen(body), &a, &f) < 0) fail_msg("%s: %s", body, f.text);
    return a;
}

static void translated(const char *body, const char *want)
{
    struct json *doc = NULL;
    struct fault f = {0};
    assert_int_equal(json_read(body, strlen(body), &doc, NULL), 0);
    struct json *j = message_translate(doc, false, &f);
    json_free(doc);
    if (!j && (want[0] == '{' || !strstr(f.text, want))) fail_msg("%s: %s", body, f.text);
    if (!j) return;
    expect_json(j, want);
}

static void test_translation(void **state)
{
    (void)state;
    translated(
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"system\":\"s\","
        "\"stop_sequences\":[\"q\"],\"metadata\":{\"user_id\":\"u\"},\"top_k\":3,"
        "\"thinking\":{\"type\":\"disabled\"}}",
        "{\"max_tokens\":1,\"stop\":[\"q\"],\"user\":\"u\",\"top_k\":3,"
        "\"chat_template_kwargs\":{\"enable_thinking\":false},\"messages\":["
        "{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"x\"}]}");
    /* Results of tools are messages of their own, in front of what else the user says. */
    translated(
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":"
        "\"thinking\",\"thinking\":\"h\"},{\"type\":\"text\",\"text\":\"t\"},{\"type\":\"tool_"
        "use\","
        "\"id\":\"i\",\"name\":\"f\",\"input\":{\"a\":1}}]},{\"role\":\"user\",\"content\":[{"
        "\"type\":"
        "\"tool_result\",\"tool_use_id\":\"i\",\"content\":[{\"type\":\"text\",\"text\":\"r\"}]},"
        "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}],\"tools\":[{"
        "\"name\":"
        "\"f\",\"input_schema\":{}}],\"tool_choice\":{\"type\":\"none\"}}",
        "{\"max_tokens\":1,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"parameters\":{}}}],\"tool_choice\":\"none\",\"messages\":[{\"role\":\"assistant\","
        "\"content\":\"t\",\"reasoning_content\":\"h\",\"tool_calls\":[{\"id\":\"i\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]},{\"role\":\"tool\","
        "\"content\":\"r\",\"tool_call_id\":\"i\"},{\"role\":\"user\",\"content\":\"ab\"}]}");
    translated("{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[]}]}",
               "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}");
    translated("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "'max_tokens' is missing");
    translated("{\"max_tokens\":1,\"messages\":[]}", "'messages'");
    translated(
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
        "'image'");
    translated("{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":7}]}",
               "neither a text");
    translated("{\"max_tokens\":1,\"betas\":[],\"messages\":[]}", "'betas'");
    translated("{\"max_tokens\":1,\"tool_choice\":{\"type\":\"x\"},\"messages\":[]}",
               "auto, none, any");
    translated("{\"max_tokens\":1,\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":"
               "true},\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
               "{\"max_tokens\":1,\"parallel_tool_calls\":false,\"tool_choice\":\"required\","
               "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    translated("{\"max_tokens\":1,\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"},"
               "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
               "{\"max_tokens\":1,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
               "\"f\"}},\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
}

#define ASKED "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

/* What coding agents send beside text and tools. */
static void test_translation_of_settings(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2048}",
         "\"chat_template_kwargs\":{\"enable_thinking\":true}"},
        {"\"thinking\":{\"type\":\"adaptive\",\"display\":\"summarized\"}",
         "\"chat_template_kwargs\":{\"enable_thinking\":true}"},
        {"\"output_config\":{\"effort\":\"low\",\"format\":{\"type\":\"json_schema\","
         "\"schema\":{\"type\":\"integer\"}}}",
         "\"reasoning_effort\":\"low\",\"json_schema\":{\"type\":\"integer\"}"},
        {"\"cache_control\":{\"type\":\"ephemeral\"},\"service_tier\":\"auto\",\"top_p\":0.5",
         "\"top_p\":0.5"},
        {"\"tools\":[{\"type\":\"custom\",\"name\":\"f\",\"strict\":true,\"input_schema\":{}}]",
         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{},"
         "\"strict\":true}}]"},
    };
    static const char *const wrong[][2] = {
        {"\"thinking\":{\"type\":\"between_tools\"}", "'thinking' may be of type enabled"},
        {"\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"}", "displayed"},
        {"\"output_config\":{\"format\":{\"type\":\"xml\"}}", "'format'"},
        {"\"output_config\":{\"speed\":1}", "'speed'"},
        {"\"output_config\":7", "'output_config' must be an object"},
        {"\"service_tier\":\"batch\"", "'service_tier'"},
        {"\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"s\"}]", "tool 0"},
    };
    char body[512], want[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"max_tokens\":1,%s," ASKED "}", cases[i][0]);
        (void)snprintf(want, sizeof want, "{\"max_tokens\":1,%s," ASKED "}", cases[i][1]);
        translated(body, want);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"max_tokens\":1,%s," ASKED "}", wrong[i][0]);
        translated(body, wrong[i][1]);
    }
    /* The system may say more in the middle. */
    translated("{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
               "\"system\",\"content\":[{\"type\":\"text\",\"text\":\"s\"}]}]}",
               "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
               "\"system\",\"content\":\"s\"}]}");
    translated("{\"max_tokens\":1,\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}",
               "none of user, assistant, system");
    /* Nobody goes on with an answer that the client has begun. */
    static const char begun[] = "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":"
                                "\"x\"},{\"role\":\"assistant\",\"content\":\"The best is (\"}]}";
    translated(begun, "'messages' ends with the assistant");
    struct json *doc = NULL;
    struct fault f;
    assert_int_equal(json_read(begun, strlen(begun), &doc, NULL), 0);
    struct json *counted = message_translate(doc, true, &f);
    assert_non_null(counted); /* but its tokens can be counted */
    json_free(counted);
    json_free(doc);
}

/* Which stop text ended an answer is told; an answer that calls tools, or was cut, did not end so.
 */
static void test_stop_sequence(void **state)
{
    (void)state;
    static const struct {
        enum finish_reason finish;
        const char *stop, *text, *want;
    } cases[] = {
        {FINISH_STOP, "q", "x", "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"q\""},
        {FINISH_STOP, NULL, "x", "\"stop_reason\":\"end_turn\",\"stop_sequence\":null"},
        {FINISH_LENGTH, NULL, "x", "\"stop_reason\":\"max_tokens\",\"stop_sequence\":null"},
        {FINISH_STOP, "q", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
         "\"stop_reason\":\"tool_use\",\"stop_sequence\":null"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ask a = taken("{\"messages\": [1], \"tools\": " TOOLS "}");
        struct message_head h = {.id = "msg-1", .model = "m", .stop = cases[i].stop};
        struct message_stream s = {.begun = false};
        struct choice c = {.begun = false};
        struct buf b = {0};
        choice_split(&c, &a, 5);
        choice_take(&c,
                    &(struct client_reply){.text = cases[i].text,
                                           .finish_reason = cases[i].finish,
                                           .has_stop = true,
                                           .stop = 3},
                    false);
        assert_true(c.has_stop && c.stop == 3);
        struct json *j = message_whole(&h, &c);
        json_write(j, &b);
        json_free(j);
        if (!strstr(b.data, cases[i].want)) fail_msg("%s is not in %s", cases[i].want, b.data);
        buf_drop(&b, b.len);
        message_events(&s, &h, &c, true, &b);
        assert_non_null(strstr(b.data, "\"stop_reason\":null,\"stop_sequence\":null"));
        if (!strstr(b.data, cases[i].want)) fail_msg("%s is not in %s", cases[i].want, b.data);
        buf_close(&b);
        choice_close(&c);
        ask_close(&a);
    }
}

static void test_message_events(void **state)
{
    (void)state;
    struct ask a = taken("{\"messages\": [1], \"tools\": " TOOLS "}");
    struct choice c = {.begun = false};
    struct message_stream s = {.begun = false};
    struct message_head h = {.id = "msg-1", .model = "m", .usage = {.prompt = 20, .cached = 16}};
    struct buf b = {0};
    choice_split(&c, &a, 5);
    choice_take(&c, &(struct client_reply){.text = "<think>w</think>x"}, false);
    message_events(&s, &h, &c, false, &b);
    assert_string_equal(
        b.data,
        "event: message_start\ndata: {\"message\":{\"id\":\"msg-1\",\"type\":\"message\",\"role\":"
        "\"assistant\",\"model\":\"m\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,"
        "\"usage\":{\"input_tokens\":4,\"cache_read_input_tokens\":16,"
        "\"cache_creation_input_tokens\":0,\"output_tokens\":0}},\"type\":\"message_start\"}\n\n"
        "event: content_block_start\ndata: {\"index\":0,\"content_block\":{\"type\":\"thinking\","
        "\"thinking\":\"\",\"signature\":\"\"},\"type\":\"content_block_start\"}\n\n"
        "event: content_block_delta\ndata: {\"index\":0,\"delta\":{\"type\":\"thinking_delta\","
        "\"thinking\":\"w\"},\"type\":\"content_block_delta\"}\n\n"
        "event: content_block_stop\ndata: {\"index\":0,\"type\":\"content_block_stop\"}\n\n"
        "event: content_block_start\ndata: "
        "{\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":"
        "\"\"},\"type\":\"content_block_start\"}\n\n"
        "event: content_block_delta\ndata: "
        "{\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":"
        "\"x\"},\"type\":\"content_block_delta\"}\n\n");
    buf_close(&b);
    choice_take(&c,
                &(struct client_reply){.text = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":"},
                false);
    message_events(&s, &h, &c, false, &b);
    assert_non_null(
        strstr(b.data, "\"content_block\":{\"type\":\"tool_use\",\"name\":\"f\",\"id\":"));
    assert_non_null(strstr(b.data, "\"partial_json\":\"{\\\"a\\\":\""));
    buf_close(&b);
    choice_take(&c, &(struct client_reply){.text = "1}}</tool_call>", .finish_reason = FINISH_STOP},
                false);
    message_events(&s, &h, &c, true, &b);
    assert_non_null(strstr(b.data, "\"partial_json\":\"1}\""));
    assert_non_null(strstr(b.data, "{\"index\":2,\"type\":\"content_block_stop\"}"));
    assert_non_null(
        strstr(b.data, "\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":null}"));
    assert_non_null(strstr(b.data, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
    buf_close(&b);
    choice_close(&c);
    ask_close(&a);
    struct fault f;
    (void)fault_set(&f, 503, NULL, "x");
    message_fault(&f, &b);
    assert_string_equal(b.data, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
                                "\"message\":\"x\"}}");
    buf_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_translation),
        cmocka_unit_test(test_translation_of_settings),
        cmocka_unit_test(test_stop_sequence),
        cmocka_unit_test(test_message_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
