/* The gateway's pure parts: bodies to requests, answers to JSON and events, errors, API keys. */
#include "coordinator/gateway/access.h"
#include "coordinator/gateway/ask.h"
#include "coordinator/gateway/choice.h"
#include "coordinator/gateway/sse.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/expect_json.h"

/* Parts of it point into it, so the one that was read stays until the next. */
static struct ask taken(enum ask_kind kind, const char *body)
{
    static struct ask a;
    struct fault f = {0};
    if (ask_read(kind, body, strlen(body), &a, &f) < 0) fail_msg("%s: %s", body, f.text);
    return a;
}

static void refused(enum ask_kind kind, const char *body, const char *param, const char *words)
{
    struct ask a;
    struct fault f = {0};
    if (ask_read(kind, body, strlen(body), &a, &f) == 0) fail_msg("%s: taken", body);
    if (strcmp(f.param, param) != 0) fail_msg("%s: names '%s'", body, f.param);
    if (!strstr(f.text, words)) fail_msg("%s: says %s", body, f.text);
    assert_int_equal(f.http, 400);
}

static void test_defaults(void **state)
{
    (void)state;
    struct ask a = taken(ASK_COMPLETION, "{\"prompt\": \"x\"}");
    const struct client_request *r = &a.request;
    assert_int_equal(a.n_prompts, 1);
    assert_string_equal(a.prompts[0].text, "x");
    assert_true(r->sampling.temp == 1 && r->sampling.top_p == 1 && r->sampling.repetition == 1);
    assert_true(r->max_tokens == ASK_COMPLETION_TOKENS && r->special && !r->has_seed);
    assert_true(a.n == 1 && a.best_of == 1 && r->samples == 1 && !a.stream && !a.logprobs);
    assert_true(a.cache_prompt && !r->user && !r->model && !r->pieces && !r->has_priority);
    ask_close(&a);
    a = taken(ASK_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"<|x|>\"}]}");
    assert_true(a.request.max_tokens > 100000 && !a.request.special && a.n_prompts == 1);
    assert_null(a.prompts[0].text);
    assert_string_equal(a.request.chat,
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"<|x|>\"}],\"kwargs\":{}}");
    ask_close(&a);
}

static void test_parameters(void **state)
{
    (void)state;
    struct ask a = taken(
        ASK_COMPLETION,
        "{\"prompt\": [[1, 2], [3]], \"model\": \"m\", \"max_tokens\": 7, \"temperature\": 0.5, "
        "\"top_p\": 0.25, \"top_k\": 3, \"min_p\": 0.125, \"repetition_penalty\": 2, "
        "\"presence_penalty\": -1, \"frequency_penalty\": 1.5, \"seed\": -1, "
        "\"stop\": [\"a\", \"b\"], \"logit_bias\": {\"7\": -100, \"8\": 1.5}, \"n\": 2, "
        "\"best_of\": 3, \"logprobs\": 4, \"ignore_eos\": true, \"cache_prompt\": false, "
        "\"special\": false, \"user\": \"u\", \"priority\": \"low\"}");
    const struct client_request *r = &a.request;
    const struct sampling *s = &r->sampling;
    assert_true(a.n_prompts == 2 && a.prompts[0].n_tokens == 2 && a.prompts[1].tokens[0] == 3);
    assert_string_equal(r->model, "m");
    assert_true(r->max_tokens == 7 && s->temp == 0.5f && s->top_p == 0.25f && s->top_k == 3);
    assert_true(s->min_p == 0.125f && s->repetition == 2 && s->presence == -1);
    assert_true(s->frequency == 1.5f && r->has_seed && s->seed == UINT64_MAX);
    assert_true(r->n_stops == 2 && strcmp(r->stops[1], "b") == 0);
    assert_true(s->n_bias == 2 && s->bias_ids[0] == 7 && s->bias[0] == -100 && s->bias[1] == 1.5f);
    assert_true(a.n == 2 && r->samples == 3 && s->logprobs && s->top_logprobs == 4 && r->pieces);
    assert_true(r->ignore_eos && !a.cache_prompt && !r->special && r->priority == PRIORITY_LOW);
    assert_string_equal(r->user, "u");
    ask_close(&a);
    /* Of several answers the best are told: their likelihood is needed, and not told. */
    a = taken(ASK_COMPLETION, "{\"prompt\": \"x\", \"best_of\": 2}");
    assert_true(a.request.sampling.logprobs && !a.request.pieces && !a.logprobs);
    ask_close(&a);
    a = taken(ASK_CHAT, "{\"messages\": [7], \"chat_template_kwargs\": {\"a\": [1]}, "
                        "\"reasoning_effort\": \"low\", \"add_generation_prompt\": false, "
                        "\"max_tokens\": 5, \"max_completion_tokens\": 4}");
    assert_string_equal(a.request.chat,
                        "{\"messages\":[7],\"kwargs\":{\"reasoning_effort\":\"low\",\"a\":[1]},"
                        "\"add_generation_prompt\":false}");
    assert_int_equal(a.request.max_tokens, 4);
    ask_close(&a);
    a = taken(ASK_CHAT, "{\"messages\": [7], \"max_completion_tokens\": 4, \"max_tokens\": 5}");
    assert_int_equal(a.request.max_tokens, 4); /* whichever comes first */
    ask_close(&a);
}

#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"                                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"g_2\"}}]"

/* Tools are shown to the model, unless none may be called. */
static void test_tools(void **state)
{
    (void)state;
    static const char tools[] = "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    char body[256];
    for (int none = 0; none < 2; none++) {
        (void)snprintf(body, sizeof body, "{\"messages\":[7],\"tool_choice\":\"%s\",%s}",
                       none ? "none" : "auto", tools);
        struct ask a = taken(ASK_CHAT, body);
        assert_int_equal(strstr(a.request.chat, tools) == NULL, none);
        assert_int_equal(a.tools == NULL, none);
        ask_close(&a);
    }
    struct ask a = taken(ASK_CHAT, "{\"messages\":[7],\"tools\":[]}");
    assert_null(a.tools);
    ask_close(&a);
}

static void test_embeddings(void **state)
{
    (void)state;
    struct ask a = taken(ASK_EMBEDDING, "{\"input\": \"x <|y|>\", \"model\": \"m\"}");
    assert_true(a.n_prompts == 1 && a.request.embed && !a.request.special && !a.base64);
    assert_string_equal(a.prompts[0].text, "x <|y|>");
    assert_string_equal(a.request.model, "m");
    ask_close(&a);
    a = taken(ASK_EMBEDDING, "{\"input\": [\"x\", \"y\", [3, 4]], \"encoding_format\": \"base64\", "
                             "\"user\": \"u\", \"priority\": \"low\", \"dimensions\": null}");
    assert_true(a.n_prompts == 3 && a.base64 && a.prompts[2].n_tokens == 2);
    assert_true(a.request.priority == PRIORITY_LOW && strcmp(a.request.user, "u") == 0);
    ask_close(&a);
    a = taken(ASK_EMBEDDING, "{\"input\": [5, 6], \"encoding_format\": \"float\"}");
    assert_true(a.n_prompts == 1 && a.prompts[0].n_tokens == 2 && !a.base64);
    ask_close(&a);
    a = taken(ASK_COMPLETION, "{\"prompt\": \"\"}"); /* which may be empty, as ever */
    assert_false(a.request.embed);
    ask_close(&a);
    refused(ASK_EMBEDDING, "{}", "input", "missing");
    refused(ASK_EMBEDDING, "{\"input\": null}", "input", "missing");
    refused(ASK_EMBEDDING, "{\"input\": \"\"}", "input", "not empty");
    refused(ASK_EMBEDDING, "{\"input\": [\"a\", \"\"]}", "input", "not empty");
    refused(ASK_EMBEDDING, "{\"input\": []}", "input", "must be");
    refused(ASK_EMBEDDING, "{\"input\": [[1], []]}", "input", "must be");
    refused(ASK_EMBEDDING, "{\"input\": {\"a\": 1}}", "input", "must be");
    refused(ASK_EMBEDDING, "{\"input\": [1, \"a\"]}", "input", "no token id");
    refused(ASK_EMBEDDING, "{\"input\": [-1]}", "input", "");
    refused(ASK_EMBEDDING, "{\"input\": \"a\", \"dimensions\": 64}", "dimensions", "not supported");
    refused(ASK_EMBEDDING, "{\"input\": \"a\", \"encoding_format\": \"int8\"}", "encoding_format",
            "float or base64");
    refused(ASK_EMBEDDING, "{\"input\": \"a\", \"temperature\": 1}", "temperature", "no parameter");
    refused(ASK_COMPLETION, "{\"prompt\": \"a\", \"input\": \"a\"}", "input", "no parameter");
    for (unsigned n = ASK_INPUTS_MAX; n <= ASK_INPUTS_MAX + 1; n++) {
        struct buf b = {0};
        (void)buf_append(&b, "{\"input\":[\"a\"", 13);
        for (unsigned i = 1; i < n; i++) (void)buf_append(&b, ",\"a\"", 4);
        (void)buf_append(&b, "]}", 3);
        if (n > ASK_INPUTS_MAX) {
            refused(ASK_EMBEDDING, b.data, "input", "the limit is 2048");
        } else {
            a = taken(ASK_EMBEDDING, b.data);
            assert_int_equal(a.n_prompts, n);
            ask_close(&a);
        }
        buf_close(&b);
    }
}

static void has_format(enum ask_kind kind, const char *body, const char *format)
{
    struct ask a = taken(kind, body);
    if (format)
        assert_string_equal(a.request.format, format);
    else
        assert_null(a.request.format);
    ask_close(&a);
}

/* Whatever asks for a form becomes a format of the client API; numbers keep their digits. */
static void test_formats(void **state)
{
    (void)state;
    has_format(ASK_CHAT, "{\"messages\": [7], \"response_format\": {\"type\": \"text\"}}", NULL);
    has_format(ASK_CHAT, "{\"messages\": [7], \"response_format\": {\"type\": \"json_object\"}}",
               "{\"type\":\"json_object\"}");
    has_format(ASK_CHAT,
               "{\"messages\": [7], \"response_format\": {\"type\": \"json_schema\", "
               "\"json_schema\": {\"name\": \"x\", \"schema\": {\"minimum\": 0.12345678901234}}}}",
               "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"minimum\":"
               "0.12345678901234}}}");
    has_format(ASK_COMPLETION, "{\"prompt\": \"x\", \"json_schema\": {\"type\": \"null\"}}",
               "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"null\"}}}");
    has_format(ASK_COMPLETION, "{\"prompt\": \"x\", \"grammar\": \"root ::= \\\"a\\\"\"}",
               "{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"a\\\"\"}");
    has_format(ASK_COMPLETION, "{\"prompt\": \"x\", \"grammar\": \"\"}", NULL);
    has_format(ASK_CHAT, "{\"messages\": [7], \"tools\": " TOOLS "}",
               "{\"type\":\"tool_calls\",\"tools\":" TOOLS ",\"parallel\":true,\"optional\":true}");
    has_format(ASK_CHAT,
               "{\"messages\": [7], \"tool_choice\": \"auto\", \"parallel_tool_calls\": false, "
               "\"reasoning_format\": \"none\", \"tools\": " TOOLS "}",
               "{\"type\":\"tool_calls\",\"tools\":" TOOLS
               ",\"parallel\":false,\"optional\":true,\"reasoning\":false}");
    has_format(ASK_CHAT, "{\"messages\": [7], \"tool_choice\": \"none\", \"tools\": " TOOLS "}",
               NULL);
    has_format(ASK_CHAT, "{\"messages\": [7], \"ignore_eos\": true, \"tools\": " TOOLS "}", NULL);
    has_format(ASK_CHAT,
               "{\"messages\": [7], \"response_format\": {\"type\": \"json_object\"}, "
               "\"tools\": " TOOLS "}",
               "{\"type\":\"json_object\"}");
    has_format(ASK_CHAT, "{\"messages\": [7], \"tool_choice\": \"required\", \"tools\": " TOOLS "}",
               "{\"type\":\"tool_calls\",\"tools\":" TOOLS ",\"parallel\":true}");
    has_format(ASK_CHAT,
               "{\"messages\": [7], \"tool_choice\": \"required\", \"parallel_tool_calls\": false, "
               "\"tools\": " TOOLS "}",
               "{\"type\":\"tool_calls\",\"tools\":" TOOLS ",\"parallel\":false}");
    has_format(ASK_CHAT,
               "{\"messages\": [7], \"tool_choice\": {\"type\": \"function\", \"function\": "
               "{\"name\": \"f\"}}, \"tools\": " TOOLS "}",
               "{\"type\":\"tool_calls\",\"tools\":" TOOLS ",\"name\":\"f\",\"parallel\":false}");
}

static void test_refused(void **state)
{
    (void)state;
    refused(ASK_COMPLETION, "{}", "prompt", "missing");
    refused(ASK_CHAT, "{\"prompt\": \"x\"}", "prompt", "no parameter");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"messages\": []}", "messages", "no parameter");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"temprature\": 1}", "temprature", "no parameter");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"n\": 17}", "n", "from 1 to 16");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"top_p\": 1.1}", "top_p", "from 0 to 1");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"min_p\": -0.1}", "min_p", "from 0 to 1");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"stop\": [1]}", "stop", "string");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"echo\": true}", "echo", "not supported");
    refused(ASK_COMPLETION, "[1]", "", "no JSON object");
    static const char *const ids[] = {"-1", "+1", " 1", "01", "1 ", "", "x", "2147483648"};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char body[64];
        (void)snprintf(body, sizeof body, "{\"prompt\": \"x\", \"logit_bias\": {\"%s\": 1}}",
                       ids[i]);
        refused(ASK_COMPLETION, body, "logit_bias", "is no token id");
    }
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"top_p\": 1e999}", "top_p", "not JSON");
    refused(ASK_CHAT, "{\"messages\": {}}", "messages", "array");
    refused(ASK_CHAT, "{\"messages\": [1], \"tools\": [{\"type\": \"x\"}]}", "tools", "tool 0");
    refused(ASK_CHAT, "{\"messages\": [1], \"tools\": [{\"type\": \"function\"}]}", "tools",
            "name");
    refused(ASK_CHAT, "{\"messages\": [1], \"tool_choice\": \"required\"}", "tool_choice",
            "no 'tools'");
    refused(ASK_CHAT, "{\"messages\": [1], \"tool_choice\": {\"type\": \"function\"}}",
            "tool_choice", "a function of 'tools'");
    refused(ASK_CHAT,
            "{\"messages\": [1], \"tool_choice\": {\"type\": \"function\", \"function\": "
            "{\"name\": \"g\"}}, \"tools\": " TOOLS "}",
            "tool_choice", "no tool 'g'");
    refused(ASK_CHAT,
            "{\"messages\": [1], \"parallel_tool_calls\": false, \"ignore_eos\": true, "
            "\"tools\": " TOOLS "}",
            "parallel_tool_calls", "not supported");
    refused(ASK_CHAT, "{\"messages\": [1], \"response_format\": {\"type\": \"xml\"}}",
            "response_format", "xml");
    refused(ASK_CHAT, "{\"messages\": [1], \"response_format\": []}", "response_format", "'type'");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"json_schema\": 7}", "json_schema", "schema");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"grammar\": 7}", "grammar", "text");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"json_schema\": {}, \"grammar\": \"x\"}",
            "grammar", "exclude");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"json_schema\": {}, \"ignore_eos\": true}",
            "ignore_eos", "has an end");
    refused(
        ASK_CHAT,
        "{\"messages\": [1], \"grammar\": \"x\", \"tool_choice\": \"required\", \"tools\": " TOOLS
        "}",
        "grammar", "exclude");
    char many[4096] = "{\"prompt\": [";
    for (int i = 0; i < 65; i++) (void)strcat(many, i ? ", \"x\"" : "\"x\"");
    (void)strcat(many, "]}");
    refused(ASK_COMPLETION, many, "prompt", "limit is 64");
    (void)snprintf(many, sizeof many, "{\"prompt\": [%s], \"n\": 16}",
                   "\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"");
    refused(ASK_COMPLETION, many, "n", "limit is 128");
    (void)snprintf(many, sizeof many, "{\"prompt\": \"x\", \"user\": \"%0300d\"}", 1);
    refused(ASK_COMPLETION, many, "user", "limit is 255");
}

/* What newer clients of OpenAI's send and what changes nothing here is taken; what would change
 * something is refused. */
static void test_newer_parameters(void **state)
{
    (void)state;
#define CHAT(more) "{\"messages\": [1], " more "}"
    struct ask a =
        taken(ASK_CHAT, CHAT("\"safety_identifier\": \"s\", \"prompt_cache_key\": \"k\", "
                             "\"metadata\": {\"a\": \"b\"}, \"verbosity\": \"medium\", "
                             "\"stream\": true, \"stream_options\": {\"include_usage\": true, "
                             "\"include_obfuscation\": false}"));
    assert_string_equal(a.request.user, "s"); /* it has taken the place of `user`, */
    assert_true(a.include_usage && a.stream);
    ask_close(&a);
    static const char *const both[] = {CHAT("\"user\": \"u\", \"safety_identifier\": \"s\""),
                                       CHAT("\"safety_identifier\": \"s\", \"user\": \"u\"")};
    for (size_t i = 0; i < 2; i++) { /* which counts where both are given */
        a = taken(ASK_CHAT, both[i]);
        assert_string_equal(a.request.user, "u");
        ask_close(&a);
    }
    refused(ASK_CHAT, CHAT("\"safety_identifier\": 7"), "safety_identifier", "string");
    refused(ASK_CHAT, CHAT("\"prompt_cache_key\": 7"), "prompt_cache_key", "string");
    refused(ASK_CHAT, CHAT("\"metadata\": {\"a\": 1}"), "metadata", "16 strings");
    refused(ASK_CHAT, CHAT("\"metadata\": []"), "metadata", "16 strings");
    refused(ASK_CHAT, CHAT("\"verbosity\": \"low\""), "verbosity", "'medium'");
    refused(ASK_CHAT, CHAT("\"stream\": true, \"stream_options\": {\"include_obfuscation\": true}"),
            "stream_options", "not supported");
    refused(ASK_CHAT, CHAT("\"stream\": true, \"stream_options\": {\"include_usage\": 1}"),
            "stream_options", "include_usage' must be true or false");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"metadata\": {}}", "metadata", "no parameter");
}

/* What a reply needs outlives the body. */
static void test_dropped_body(void **state)
{
    (void)state;
    struct ask a =
        taken(ASK_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"model\": "
                        "\"m\", \"user\": \"u\", \"n\": 2, \"stop\": [\"a\", \"b\"], "
                        "\"logit_bias\": {\"3\": 1}, \"tools\": [{\"type\": \"function\", "
                        "\"function\": {\"name\": \"f\"}}], \"tool_choice\": \"required\"}");
    ask_drop_body(&a);
    assert_string_equal(a.request.model, "m");
    assert_string_equal(a.stops[0], "a");
    assert_string_equal(a.stops[1], "b");
    assert_string_equal(a.format_param, "tools");
    assert_true(a.request.n_stops == 2 && a.n == 2 && a.n_prompts == 1 && a.chat.len == 0);
    const char *name;
    size_t n;
    assert_true(
        json_as_string(json_get(json_get(json_at(a.tools, 0), "function"), "name"), &name, &n));
    assert_string_equal(name, "f");
    ask_close(&a);
    a = taken(ASK_EMBEDDING, "{\"input\": [[1, 2], [3]]}");
    ask_drop_body(&a);
    assert_true(a.n_prompts == 2 && !a.prompts && !a.request.model);
    ask_close(&a);
}

/* ---- answers ---- */

/* That a prompt began the reasoning is told again by a coordinator that took the answer over, when
 * the reasoning may be over. */
static void test_thought_is_opened_once(void **state)
{
    (void)state;
    struct ask a = taken(ASK_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
    const int32_t id = 1;
    struct choice c = {.begun = false};
    choice_split(&c, &a, 1);
    choice_open_thought(&c);
    choice_take(&c, &(struct client_reply){.n_tokens = 1, .tokens = &id, .text = "w</think>\n"},
                false);
    choice_open_thought(&c);
    choice_take(&c, &(struct client_reply){.text = "x", .finish_reason = FINISH_STOP}, false);
    assert_string_equal(c.reasoning.data, "w");
    assert_string_equal(c.text.data, "x");
    choice_close(&c);
    ask_close(&a);
}

static void test_chunks(void **state)
{
    (void)state;
    struct choice c = {.begun = false};
    assert_false(choice_has_news(&c, ASK_CHAT));
    const int32_t ids[2] = {1, 2};
    struct client_reply r = {.n_tokens = 1, .tokens = ids, .text = ""};
    choice_take(&c, &r, false);
    assert_false(choice_has_news(&c, ASK_COMPLETION)); /* an unfinished character */
    assert_true(choice_has_news(&c, ASK_CHAT));
    expect_json(choice_chunk(&c, ASK_CHAT, 3, false),
                "{\"index\":3,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                "\"logprobs\":null,\"finish_reason\":null}");
    assert_false(choice_has_news(&c, ASK_CHAT));
    r.text = "a\"\n";
    choice_take(&c, &r, false);
    r.text = "b";
    r.finish_reason = FINISH_LENGTH;
    choice_take(&c, &r, false);
    expect_json(choice_chunk(&c, ASK_CHAT, 3, false),
                "{\"index\":3,\"delta\":{\"content\":\"a\\\"\\nb\"},\"logprobs\":null,"
                "\"finish_reason\":null}");
    assert_true(choice_has_news(&c, ASK_CHAT));
    expect_json(choice_chunk(&c, ASK_CHAT, 3, false),
                "{\"index\":3,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}");
    assert_false(choice_has_news(&c, ASK_CHAT));
    assert_int_equal(c.n_tokens, 3);
    choice_close(&c);
}

static void test_logprobs(void **state)
{
    (void)state;
    struct choice c = {.begun = false};
    const int32_t ids[2] = {1, 2};
    const float p[2] = {-0.5f, -INFINITY}, top[2] = {-0.5f, -1};
    const uint32_t bytes[4] = {2, 1, 1, 0};
    struct client_reply r = {.n_tokens = 2,
                             .tokens = ids,
                             .text = "\xc3\xa4",
                             .logprobs = p,
                             .n_top = 1,
                             .top_ids = ids,
                             .top_logprobs = top,
                             .pieces = "\xc3\xa4\xffz",
                             .n_pieces = 4,
                             .piece_bytes = bytes};
    choice_take(&c, &r, true);
    assert_int_equal(choice_bytes(&c) > 0, 1);
    /* What is no character is U+FFFD, and its bytes say what it was; the impossible has a number.
     */
    expect_json(
        choice_whole(&c, ASK_COMPLETION, 0, true),
        "{\"index\":0,\"text\":\"\xc3\xa4\",\"logprobs\":{\"tokens\":[\"\xc3\xa4\","
        "\"\xef\xbf\xbd\"],\"token_logprobs\":[-0.5,-9999.0],\"top_logprobs\":[{\"z\":-0.5},"
        "{\"\":-1.0}],\"text_offset\":[0,1]},\"finish_reason\":null}");
    expect_json(
        choice_chunk(&c, ASK_COMPLETION, 0, true),
        "{\"index\":0,\"text\":\"\xc3\xa4\",\"logprobs\":{\"tokens\":[\"\xc3\xa4\","
        "\"\xef\xbf\xbd\"],\"token_logprobs\":[-0.5,-9999.0],\"top_logprobs\":[{\"z\":-0.5},"
        "{\"\":-1.0}],\"text_offset\":[0,1]},\"finish_reason\":null}");
    assert_false(choice_has_news(&c, ASK_COMPLETION));
    choice_take(&c, &r, true); /* offsets go on in the whole text */
    struct json *j = choice_chunk(&c, ASK_COMPLETION, 0, true);
    uint64_t at = 0;
    assert_true(json_as_u64(json_at(json_get(json_get(j, "logprobs"), "text_offset"), 0), &at));
    assert_int_equal(at, 1);
    json_free(j);
    c.told_begin = true;
    choice_take(&c, &r, true);
    expect_json(choice_chunk(&c, ASK_CHAT, 0, true),
                "{\"index\":0,\"delta\":{\"content\":\"\xc3\xa4\"},\"logprobs\":{\"content\":["
                "{\"token\":\"\xc3\xa4\",\"logprob\":-0.5,\"bytes\":[195,164],\"top_logprobs\":["
                "{\"token\":\"z\",\"logprob\":-0.5,\"bytes\":[122]}]},{\"token\":\"\xef\xbf\xbd\","
                "\"logprob\":-9999.0,\"bytes\":[255],\"top_logprobs\":[{\"token\":\"\","
                "\"logprob\":-1.0,\"bytes\":[]}]}],\"refusal\":null},\"finish_reason\":null}");
    choice_close(&c);
}

/* ---- reasoning and calls of tools ---- */

/* What an answer becomes: "reasoning|content|name(arguments)...". `step` bytes come at a time. */
static void said(const char *text, size_t step, bool open, const char *tools, char *ret)
{
    struct split s;
    struct json *j = NULL;
    if (tools) assert_int_equal(json_read(tools, strlen(tools), &j, NULL), 0);
    split_init(&s, true, open, j);
    for (size_t i = 0, n = strlen(text); i < n; i += step)
        split_push(&s, text + i, n - i < step ? n - i : step);
    split_finish(&s);
    int at = sprintf(ret, "%.*s|%.*s", (int)s.reasoning.len, s.reasoning.data, (int)s.content.len,
                     s.content.data);
    for (uint32_t i = 0; i < s.n_calls; i++)
        at += sprintf(ret + at, "|%s(%.*s)", s.calls[i].name.data, (int)s.calls[i].arguments.len,
                      s.calls[i].arguments.data);
    split_close(&s);
    json_free(j);
}

static const struct {
    const char *text, *want;
    bool tools, open;
} split_cases[] = {
    {"Hello <tool_call> {x", "|Hello <tool_call> {x", false, false},
    {"<think>\nwhy\n</think>\n\nso", "why\n|so", false, false},
    {"<think></think>so", "|so", false, false},
    {"\n<think>\n\n</think>\n\nso\n", "|so\n", false, false},
    {"why</think>so", "why|so", false, true},
    {"\nwhy <think> </think>so</think>", "why <think> |so</think>", false, true},
    {"<think>cut </thi", "cut </thi|", false, false},
    {"so <think>x</think>", "|so <think>x</think>", false, false},
    {"<thin", "|<thin", false, false},
    {"", "|", true, false},
    {" \n", "| \n", true, false},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"\"]}}\n</tool_call>",
     "||f({\"a\": [1, \"}\\\"\"]})", true, false},
    {"Let me see. \n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n"
     "{\"name\": \"other\", \"arguments\": {\"b\": {}}, \"x\": \"}\"}</tool_call>\n",
     "|Let me see.|f({})|other({\"b\": {}})", true, false},
    {"<think>x</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call> done",
     "x| done|f({})", true, false},
    {"<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", "||f({\"a\":1})", true,
     false},
    {"<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
     "||f({\"a\": 1})", true, false},
    {"<tool_call>{\"name\": \"f\"}</tool_call>", "||f({})", true, false},
    {"<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"f\", \"arguments\": {}}]"
     "</tool_call>",
     "||f({})|f({})", true, false},
    {"<tool_call>{\"name\": \"f\", \"argu", "|<tool_call>{\"name\": \"f\", \"argu", true, false},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"cut", "||f({\"a\": \"cut)", true,
     false},
    {"<tool_call>not JSON</tool_call>", "|<tool_call>not JSON</tool_call>", true, false},
    {"<tool_call>{oops}</tool_call>", "|<tool_call>{oops}</tool_call>", true, false},
    {"a <tool_cal", "|a <tool_cal", true, false},
    {"{\"name\": \"g_2\", \"parameters\": {\"x\": 1}}", "||g_2({\"x\": 1})", true, false},
    {" {\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g_2\", \"parameters\": {}}",
     "||f({})|g_2({})", true, false},
    {"{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"x\": 1}}", "||f({\"x\":1})",
     true, false},
    {"[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g_2\", \"arguments\": {\"y\": []}}]",
     "||f({})|g_2({\"y\": []})", true, false},
    {"```json\n{\"name\": \"f\", \"arguments\": {}}\n```", "||f({})", true, false},
    {"```\n[{\"name\": \"f\", \"arguments\": {}}]\n```\n", "||f({})", true, false},
    {"```json\n{\"name\": \"f\", \"arguments\": {}}\n```\n```json\n{\"name\": \"g_2\", "
     "\"arguments\": {}}\n```",
     "||f({})|g_2({})", true, false},
    {"{\"name\": \"f\", \"arguments\": {}}\n```j", "|\n```j|f({})", true, false},
    /* Answers that look alike. */
    {"{\"name\": \"h\", \"arguments\": {}}", "|{\"name\": \"h\", \"arguments\": {}}", true, false},
    {"{\"answer\": 42}", "|{\"answer\": 42}", true, false},
    {"[1, 2]", "|[1, 2]", true, false},
    {"[{\"a\": 1}]", "|[{\"a\": 1}]", true, false},
    {"```json\n{\"a\": 1}\n```", "|```json\n{\"a\": 1}\n```", true, false},
    {"```python\nx\n```", "|```python\nx\n```", true, false},
    {"``", "|``", true, false},
    {"```json", "|```json", true, false},
    {"[", "|[", true, false},
    {"{\"name\": \"f\", \"arguments\": {}}", "|{\"name\": \"f\", \"arguments\": {}}", false, false},
};

static void test_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof split_cases / sizeof split_cases[0]; i++)
        for (size_t step = 1; step < 200; step = step < 4 ? step + 1 : step * 3) {
            char got[1024];
            said(split_cases[i].text, step, split_cases[i].open,
                 split_cases[i].tools ? TOOLS : NULL, got);
            if (strcmp(got, split_cases[i].want) != 0)
                fail_msg("'%s' by %zu is '%s', not '%s'", split_cases[i].text, step, got,
                         split_cases[i].want);
        }
}

/* Of a text that comes byte by byte only so much is looked at again each time, and none of it is
 * lost. */
static void test_split_looks_once(void **state)
{
    (void)state;
    static const struct {
        const char *text, *more; /* and then again and again: */
        const char *end, *want;  /* of which `told` bytes of `more` are */
        size_t told;
    } cases[] = {
        {"", " ", "x", "x", 20000},
        {"x", "\n", "y", "xy", 20000},
        {"x", " ", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "x|f({})",
         20000 - SPLIT_BLANKS_MAX},
        {"x", "<", "y", "xy", 20000},
        {"```json", " ", "y", "```jsony", 20000},
        {"[", " ", "1", "[1", 20000},
        {"<tool_call>", " ", "x", "<tool_call>x", 20000},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "\n", "", "|f({})",
         20000 - SPLIT_BLANKS_MAX},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", " ", "</tool_call>", "|f({})", 0},
        {"<tool_call>{\"name\": \"", "f", "\", \"arguments\": {}}</tool_call>", "|({})", 20000},
        {"<tool_call>{\"arguments\": {\"a\": \"", "b", "\"}, \"name\": \"f\"}</tool_call>",
         "|f({\"a\":\"\"})", 20000},
        {"{\"parameters\": {\"a\": \"", "{", "\"}, \"name\": \"f\"}", "|f({\"a\":\"\"})", 20000},
        {"{", " ", "\"name\": \"f\", \"parameters\": {}}", "|f({})", 0},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "b", "\"}}</tool_call>",
         "|f({\"a\": \"\"})", 20000},
    };
    struct json *tools;
    assert_int_equal(json_read(TOOLS, strlen(TOOLS), &tools, NULL), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct split s;
        size_t n = strlen(cases[i].text), n_end = strlen(cases[i].end);
        split_init(&s, true, false, tools);
        for (size_t k = 0; k < n; k++) split_push(&s, cases[i].text + k, 1);
        for (size_t k = 0; k < 20000; k++) {
            split_push(&s, cases[i].more, 1);
            size_t again = s.held.len - (s.whole ? s.scanned : 0);
            if (again > SPLIT_HEAD_MAX) fail_msg("%s: %zu bytes are held", cases[i].text, again);
        }
        for (size_t k = 0; k < n_end; k++) split_push(&s, cases[i].end + k, 1);
        split_finish(&s);
        size_t told = strlen(cases[i].want) + cases[i].told, got = s.content.len;
        for (uint32_t k = 0; k < s.n_calls; k++)
            got += s.calls[k].name.len + s.calls[k].arguments.len + strlen("|()");
        if (got != told || s.n_calls != (strchr(cases[i].want, '|') != NULL))
            fail_msg("%s: %zu bytes and %u calls, not %zu", cases[i].text, got, s.n_calls, told);
        split_close(&s);
    }
    json_free(tools);
}

static void test_call_chunks(void **state)
{
    (void)state;
    struct ask a = taken(ASK_CHAT, "{\"messages\": [1], \"tools\": " TOOLS "}");
    struct choice c = {.begun = false};
    choice_split(&c, &a, 5);
    struct client_reply r = {.n_tokens = 1,
                             .text = "<think>w</think>x <tool_call>{\"name\": \"f\", "
                                     "\"arguments\": {\"a\""};
    choice_take(&c, &r, false);
    r.text = ": 1}}</tool_call>";
    r.finish_reason = FINISH_STOP;
    static const char *const want[] = {
        "{\"role\":\"assistant\",\"content\":\"\"}",
        "{\"reasoning_content\":\"w\"}",
        "{\"content\":\"x\"}",
        ("{\"tool_calls\":[{\"index\":0,\"id\":\"*********\",\"type\":\"function\",\"function\":{"
         "\"name\":\"f\",\"arguments\":\"\"}}]}"),
        "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\"\"}}]}",
        "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\": 1}\"}}]}",
        "{}"};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct buf b = {0};
        if (i == 5) choice_take(&c, &r, false);
        assert_true(choice_has_news(&c, ASK_CHAT));
        struct json *j = choice_chunk(&c, ASK_CHAT, 0, false);
        json_write(json_get(j, "delta"), &b);
        char *id = strstr(b.data, "\"id\":\"");
        for (int k = 0; id && k < 9; k++) {
            assert_non_null(strchr("0123456789abcdefghijklmnopqrstuvwxyz", id[6 + k]));
            id[6 + k] = '*';
        }
        assert_string_equal(b.data, want[i]);
        if (i == 6) assert_non_null(json_get(j, "finish_reason"));
        buf_close(&b);
        json_free(j);
    }
    assert_false(choice_has_news(&c, ASK_CHAT));
    choice_close(&c);
    choice_split(&c, &a, 5);
    choice_take(&c,
                &(struct client_reply){.text = "{\"name\":\"f\",\"parameters\":{}}",
                                       .finish_reason = FINISH_STOP},
                false);
    struct json *j = choice_whole(&c, ASK_CHAT, 0, false);
    const struct json *m = json_get(j, "message");
    struct buf b = {0};
    assert_int_equal(json_kind(json_get(m, "content")), JSON_KIND_NULL);
    json_write(json_get(json_at(json_get(m, "tool_calls"), 0), "function"), &b);
    assert_string_equal(b.data, "{\"name\":\"f\",\"arguments\":\"{}\"}");
    buf_close(&b);
    json_free(j);
    choice_close(&c);
    ask_close(&a);
}

static void test_events(void **state)
{
    (void)state;
    struct buf b = {0};
    struct json *o = json_new_object();
    json_put_string(o, "a", "x\n\ny", 4);
    sse_event(&b, NULL, o);
    sse_event(&b, "error", json_new_object());
    sse_comment(&b);
    sse_done(&b);
    assert_string_equal(b.data, "data: {\"a\":\"x\\n\\ny\"}\n\nevent: error\ndata: {}\n\n"
                                ": still here\n\ndata: [DONE]\n\n");
    buf_close(&b);
}

static void test_faults(void **state)
{
    (void)state;
    static const struct {
        enum status status;
        const char *text;
        unsigned http;
        const char *param, *code;
        uint32_t retry_ms, retry_s;
        int lost;
    } cases[] = {
        {STATUS_INVALID_ARGUMENT, "field 'logit_bias': x", 400, "logit_bias", NULL, 0, 0, 0},
        {STATUS_INVALID_ARGUMENT, "a prompt of 9 tokens does not fit the context of 8", 400, "",
         "context_length_exceeded", 0, 0, 0},
        {STATUS_NOT_FOUND, "field 'model': no such model", 404, "model", "model_not_found", 0, 0,
         0},
        {STATUS_DEADLINE_EXCEEDED, "late", 408, "", NULL, 0, 0, 0},
        {STATUS_RESOURCE_EXHAUSTED, "full", 429, "", "rate_limit_exceeded", 1001, 2, 0},
        {STATUS_INTERNAL, "x", 500, "", NULL, 0, 0, 0},
        {STATUS_UNAVAILABLE, "x", 503, "", NULL, 0, 1, 0},
        {STATUS_UNAVAILABLE, "x", 503, "", NULL, 0, 1, ERR_TIMEOUT},
        {STATUS_CANCELLED, "x", 503, "", NULL, 0, 1, 0},
        {STATUS_PERMISSION_DENIED, "x", 403, "", NULL, 0, 0, 0},
        /* A coordinator of another version: not the fault of whoever asks the gateway. */
        {STATUS_FAILED_PRECONDITION, "x", 503, "", NULL, 0, 1, ERR_PROTO},
        {STATUS_FAILED_PRECONDITION, "x", 400, "", NULL, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fault f;
        struct client_end end = {
            .lost = cases[i].lost, .status = cases[i].status, .retry_ms = cases[i].retry_ms};
        (void)snprintf(end.text, sizeof end.text, "%s", cases[i].text);
        fault_of_end(&f, &end);
        assert_int_equal(f.http, cases[i].http);
        assert_string_equal(f.param, cases[i].param);
        assert_string_equal(f.code ? f.code : "", cases[i].code ? cases[i].code : "");
        assert_int_equal(f.retry_s, cases[i].retry_s);
    }
    struct fault f;
    struct buf b = {0};
    (void)fault_set(&f, 401, NULL, "no \"key\"");
    f.code = "invalid_api_key";
    fault_write(&f, &b);
    assert_string_equal(b.data,
                        "{\"error\":{\"message\":\"no \\\"key\\\"\",\"type\":"
                        "\"authentication_error\",\"param\":null,\"code\":\"invalid_api_key\"}}");
    buf_close(&b);
}

/* A message is told wherever its limit cuts it, and whatever bytes are in it: null would say
 * nothing. */
static void test_fault_of_cut_text(void **state)
{
    (void)state;
    for (int before = 0; before < 3; before++) {
        char key[200] = "xx", body[256];
        struct buf b = {0};
        struct fault f = {0};
        struct ask a;
        size_t n = (size_t)before;
        for (; n < 150; n += 3) memcpy(key + n, "\xe2\x82\xac", 4);
        (void)snprintf(body, sizeof body, "{\"%s\": 1}", key);
        assert_true(ask_read(ASK_CHAT, body, strlen(body), &a, &f) < 0);
        fault_write(&f, &b);
        if (strstr(b.data, "null")) fail_msg("%s", b.data);
        buf_close(&b);
        struct client_end end = {.status = STATUS_INVALID_ARGUMENT};
        (void)snprintf(end.text, sizeof end.text, "field '%s': \xff", key);
        fault_of_end(&f, &end);
        f.code = "x";
        fault_write(&f, &b);
        if (strstr(b.data, "null")) fail_msg("%s", b.data);
        buf_close(&b);
    }
}

/* ---- keys ---- */

static int keys_of(const char *text, mode_t mode, struct access **ret, struct errmsg *em)
{
    char path[] = "/tmp/flotilla-keys-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    (void)close(fd);
    int rc = access_open(path, ret, em);
    (void)unlink(path);
    return rc;
}

static void test_keys(void **state)
{
    (void)state;
    struct access *a;
    struct errmsg em;
    assert_int_equal(keys_of("# all\r\nsk-1\r\n\n  \nsk-22 \t", 0600, &a, &em), 0);
    assert_true(access_admits(a, "Bearer sk-1"));
    assert_true(access_admits(a, "bearer sk-22"));
    static const char *const wrong[] = {"Bearer sk-2",    "Bearer sk-11", "Bearer sk-", "Bearer ",
                                        "Bearer sk-1 ",   "sk-1",         "Basic sk-1", "",
                                        "Bearer sk-1sk-1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (access_admits(a, wrong[i])) fail_msg("'%s' is admitted", wrong[i]);
    assert_false(access_admits(a, NULL));
    access_close(a);
    char longest[400];
    (void)memset(longest, 'k', 257);
    (void)strcpy(longest + 257, "\n");
    static const struct {
        const char *text;
        mode_t mode;
        const char *words;
    } files[] = {{"", 0600, "no key"},
                 {"#\n", 0600, "no key"},
                 {"a b\n", 0600, "line 1"},
                 {"a\n\xc3\xa4\n", 0600, "line 2"},
                 {"a\n", 0640, "others may read it"},
                 {"a\n", 0604, "others may read it"}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        assert_int_equal(keys_of(files[i].text, files[i].mode, &a, &em), ERR_CONF);
        if (!strstr(em.text, files[i].words)) fail_msg("%s", em.text);
    }
    assert_int_equal(keys_of(longest, 0600, &a, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "limit is 256"));
    longest[256] = '\n';
    longest[257] = 0;
    assert_int_equal(keys_of(longest, 0600, &a, &em), 0);
    access_close(a);
    assert_int_equal(access_open("/nowhere/keys", &a, &em), ERR_CONF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_embeddings),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_newer_parameters),
        cmocka_unit_test(test_dropped_body),
        cmocka_unit_test(test_thought_is_opened_once),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_call_chunks),
        cmocka_unit_test(test_split_looks_once),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_fault_of_cut_text),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
