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

static struct ask taken(enum ask_kind kind, const char *body)
{
    struct ask a;
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

static void test_refused(void **state)
{
    (void)state;
    refused(ASK_COMPLETION, "{}", "prompt", "missing");
    refused(ASK_CHAT, "{\"prompt\": \"x\"}", "prompt", "no parameter");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"messages\": []}", "messages", "no parameter");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"temprature\": 1}", "temprature", "no parameter");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"n\": 17}", "n", "from 1 to 16");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"stop\": [1]}", "stop", "string");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"echo\": true}", "echo", "not supported");
    refused(ASK_COMPLETION, "[1]", "", "no JSON object");
    refused(ASK_COMPLETION, "{\"prompt\": \"x\", \"top_p\": 1e999}", "top_p", "not JSON");
    refused(ASK_CHAT, "{\"messages\": {}}", "messages", "array");
    refused(ASK_CHAT, "{\"messages\": [1], \"response_format\": {\"type\": \"json_object\"}}",
            "response_format", "json_object");
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

/* ---- answers ---- */

static void expect_json(struct json *j, const char *text)
{
    struct buf b = {0};
    json_write(j, &b);
    assert_string_equal(b.data, text);
    buf_close(&b);
    json_free(j);
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
    } cases[] = {
        {STATUS_INVALID_ARGUMENT, "field 'logit_bias': x", 400, "logit_bias", NULL, 0, 0},
        {STATUS_INVALID_ARGUMENT, "a prompt of 9 tokens does not fit the context of 8", 400, "",
         "context_length_exceeded", 0, 0},
        {STATUS_NOT_FOUND, "field 'model': no such model", 404, "model", "model_not_found", 0, 0},
        {STATUS_DEADLINE_EXCEEDED, "late", 408, "", NULL, 0, 0},
        {STATUS_RESOURCE_EXHAUSTED, "full", 429, "", "rate_limit_exceeded", 1001, 2},
        {STATUS_INTERNAL, "x", 500, "", NULL, 0, 0},
        {STATUS_UNAVAILABLE, "x", 503, "", NULL, 0, 1},
        {STATUS_CANCELLED, "x", 503, "", NULL, 0, 1},
        {STATUS_PERMISSION_DENIED, "x", 403, "", NULL, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fault f;
        struct client_end end = {.status = cases[i].status, .retry_ms = cases[i].retry_ms};
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
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_logprobs), cmocka_unit_test(test_events),
        cmocka_unit_test(test_faults),   cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
