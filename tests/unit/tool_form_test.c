/* Answers that may call tools: whatever the grammar lets through, the gateway reads as text,
 * reasoning and calls whose names and arguments are those of a tool; and it lets through whatever
 * holds no call. */
#include "common/base/rng.h"
#include "common/text/format.h"
#include "common/text/grammar.h"
#include "coordinator/gateway/split.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define ARGUMENTS                                                                                  \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"enum\":[\"Rome\",\"</think>\","              \
    "\"<tool_call>\"]},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":7}},"              \
    "\"required\":[\"city\"],\"additionalProperties\":false}"
#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":" ARGUMENTS "}},"   \
    "{\"type\":\"function\",\"function\":{\"name\":\"we\"}}]"
#define FORMAT(more)                                                                               \
    "{\"type\":\"tool_calls\",\"optional\":true,\"parallel\":true,\"tools\":" TOOLS more "}"

static struct buf code;

static struct grammar compiled(const char *format, bool open_thought)
{
    struct grammar g = {0};
    struct errmsg em = {0};
    buf_close(&code);
    code = (struct buf){0};
    if (format_compile(format, strlen(format), FORMAT_TAGGED, open_thought, &code, &em) < 0 ||
        grammar_open(code.data, code.len, &g, &em) < 0)
        fail_msg("%s", em.text);
    return g;
}

static struct grammar_state a, b;

/* Goes on from `a` by these bytes; false: the grammar does not, and `a` is as it was. */
static bool goes_on(const struct grammar *g, const char *bytes, size_t n)
{
    static struct grammar_state was;
    was = a;
    for (size_t i = 0; i < n; i++) {
        if (!grammar_step(g, &a, (uint8_t)bytes[i], &b)) {
            a = was;
            return false;
        }
        a = b;
    }
    return true;
}

static const char *is(const struct grammar *g, const char *bytes, size_t n)
{
    grammar_start(g, &a);
    return goes_on(g, bytes, n) ? a.may_end ? "whole" : "prefix" : "no";
}

#define IS(g, text, want) assert_string_equal(is(g, text, sizeof text - 1), want)
#define CALL "{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}"
#define WRONG "{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}"

/* All bytes are text: also those that are no characters, and parts of the words. */
static void test_text_is_free(void **state)
{
    (void)state;
    struct grammar g = compiled(FORMAT(""), false);
    char all[256];
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    assert_string_equal(is(&g, all, 256), "whole");
    for (int c = 0; c < 256; c++) {
        char text[16];
        int n = snprintf(text, sizeof text, "<tool_%c", c);
        if (c) assert_string_equal(is(&g, text, (size_t)n), "whole");
    }
    IS(&g, "", "whole");
    IS(&g, "\xff\x80 \xe6\xad", "whole");
    IS(&g, "{\"name\": \"x\"} and </tool_call> and </think>", "whole");
    IS(&g, "<tool_cal l><tool_call <tool call>", "whole");
}

static void test_calls(void **state)
{
    (void)state;
    struct grammar g = compiled(FORMAT(""), false);
    IS(&g, "Well: <tool_call>", "prefix");
    IS(&g, "<tool_call>\n" CALL "\n</tool_call>", "whole");
    IS(&g, "<<tool_<tool_call>" CALL "</tool_call> and\n<tool_call>" CALL "</tool_call>.", "whole");
    IS(&g, "<tool_call>{\n  \"name\":\"we\",\"arguments\":{}\n}</tool_call>", "whole");
    IS(&g, "<tool_call>" CALL, "prefix");
    IS(&g, "<tool_call>" CALL "x", "no");
    IS(&g, "<tool_call>\n" WRONG, "no");
    IS(&g, "<tool_call>{\"name\": \"wea\"", "no");
    IS(&g, "<tool_call>Rome", "no");
    IS(&g, "<<tool_call>" WRONG, "no");
    IS(&g, "<tool_<tool_call>" WRONG, "no");
    IS(&g, "a <tool_call>" CALL "</tool_call> b <tool_call>" WRONG, "no");
    g = compiled("{\"type\":\"tool_calls\",\"optional\":true,\"parallel\":false,\"tools\":" TOOLS
                 "}",
                 false);
    IS(&g, "Well: <tool_call>" CALL "</tool_call>", "whole");
    IS(&g, "Well: <tool_call>" CALL "</tool_call>\n", "no");
    IS(&g, "Well.", "whole");
}

/* What stands in the reasoning calls nothing; it is found where the gateway finds it. */
static void test_reasoning(void **state)
{
    (void)state;
    struct grammar g = compiled(FORMAT(""), false);
    IS(&g, "<think>Hm <tool_call>" WRONG, "whole");
    IS(&g, "\n <think><tool_call></think>Hm <tool_call>" WRONG, "no");
    IS(&g, "<think>a</think>\n<tool_call>" CALL "</tool_call>", "whole");
    IS(&g, "<think></think><think><tool_call>" WRONG, "no");
    IS(&g, "x <think><tool_call>" WRONG, "no");
    IS(&g, "<<think><tool_call>" WRONG, "no");
    IS(&g, "<th<tool_call>" CALL "</tool_call>", "whole");
    IS(&g, "<tool_call>" CALL "</tool_call><think><tool_call>" WRONG, "no");
    char text[FORMAT_BLANKS_MAX + 64];
    for (size_t blanks = FORMAT_BLANKS_MAX - 1; blanks <= FORMAT_BLANKS_MAX + 1; blanks++) {
        memset(text, ' ', blanks);
        (void)strcpy(text + blanks, "<think><tool_call>x");
        assert_string_equal(is(&g, text, strlen(text)),
                            blanks > FORMAT_BLANKS_MAX ? "no" : "whole");
        (void)strcpy(text + blanks, "a");
        assert_string_equal(is(&g, text, blanks + 1), "whole");
        (void)strcpy(text + blanks, "a<tool_call>x");
        assert_string_equal(is(&g, text, strlen(text)), "no");
    }
    g = compiled(FORMAT(""), true);
    IS(&g, "Hm <tool_call>" WRONG, "whole");
    IS(&g, "Hm </think>\n\n<tool_call>" WRONG, "no");
    IS(&g, "Hm </think>\n\n<tool_call>" CALL "</tool_call>", "whole");
    g = compiled(FORMAT(",\"reasoning\":false"), true);
    IS(&g, "<think>Hm <tool_call>" WRONG, "no");
    IS(&g, "<think>Hm</think>", "whole");
}

/* Tools whose schemas cannot be held, as clients have them, do not make an answer impossible. */
static void test_loose(void **state)
{
    (void)state;
    static const char other[] =
        "{\"type\":\"tool_calls\",\"optional\":true,\"parallel\":true,\"tools\":[{\"function\":{"
        "\"name\":\"f\",\"strict\":%s,\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
        "\"type\":\"array\",\"uniqueItems\":true}}}}},{\"function\":{\"name\":\"weather\","
        "\"parameters\":" ARGUMENTS "}}]}";
    char format[1024];
    (void)snprintf(format, sizeof format, other, "false");
    struct grammar g = compiled(format, false);
    IS(&g, "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\": [1]}}</tool_call>", "whole");
    IS(&g, "<tool_call>{\"name\": \"f\", \"arguments\": []", "no");
    IS(&g, "<tool_call>" WRONG, "no"); /* the others' are still held */
    struct errmsg em;
    struct buf none = {0};
    (void)snprintf(format, sizeof format, other, "true");
    assert_int_equal(format_compile(format, strlen(format), FORMAT_TAGGED, false, &none, &em),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(em.text, "tool 'f'"));
    assert_non_null(strstr(em.text, "uniqueItems"));
    assert_int_equal(none.len, 0);
}

/* Where all schemas together are too large, the strict ones are held. */
static void test_too_large(void **state)
{
    (void)state;
    struct buf format = {0};
    char text[256];
    static const char begin[] =
        "{\"type\":\"tool_calls\",\"optional\":true,\"parallel\":true,\"tools\":[{\"function\":{"
        "\"name\":\"weather\",\"strict\":true,\"parameters\":" ARGUMENTS "}}";
    (void)buf_append(&format, begin, strlen(begin));
    for (int i = 0; i < 40; i++) {
        int n = snprintf(text, sizeof text,
                         ",{\"function\":{\"name\":\"f%d\",\"parameters\":{\"properties\":{", i);
        (void)buf_append(&format, text, (size_t)n);
        for (int k = 0; k < 40; k++) {
            n = snprintf(text, sizeof text, "%s\"a member with a long name, %d, %d\":{}",
                         k ? "," : "", i, k);
            (void)buf_append(&format, text, (size_t)n);
        }
        (void)buf_append(&format, "}}}}", 4);
    }
    (void)buf_append(&format, "]}", 3);
    struct grammar g = compiled(format.data, false);
    IS(&g, "<tool_call>{\"name\": \"f7\", \"arguments\": {\"b\": 1}}</tool_call>", "whole");
    IS(&g, "<tool_call>{\"name\": \"f77\"", "no");
    IS(&g, "<tool_call>" WRONG, "no");
    buf_close(&format);
}

/* Calls in other forms begin as answers do. */
static void test_other_forms(void **state)
{
    (void)state;
    static const char one[] =
        "{\"type\":\"tool_calls\",\"optional\":true,\"parallel\":false,\"tools\":" TOOLS "}";
    for (enum format_calls f = FORMAT_PLAIN; f <= FORMAT_LIST; f++) {
        struct buf to = {0};
        struct errmsg em;
        const char *format = FORMAT("");
        assert_int_equal(format_compile(format, strlen(format), f, false, &to, &em), 0);
        assert_int_equal(to.len > 0, f == FORMAT_TAGGED);
        int rc = format_compile(one, strlen(one), f, false, &to, &em);
        assert_int_equal(rc, f == FORMAT_TAGGED ? 0 : ERR_UNSUPPORTED);
        buf_close(&to);
    }
}

/* ---- what the gateway reads ---- */

static uint64_t seed;
static uint32_t drawn;

static uint32_t draw(uint32_t n)
{
    return philox(seed, drawn++, 0, 0, 0).v[0] % n;
}

/* Mostly pieces of calls and reasoning, where the grammar goes on by them; else any byte. Without
 * brackets and quotes outside of calls, which might be a call in another form. */
static size_t random_answer(const struct grammar *g, char *to, size_t room)
{
    static const char *const pieces[] = {"<tool_call>",
                                         "</tool_call>",
                                         "<think>",
                                         "</think>",
                                         "<",
                                         "<tool_",
                                         "<th",
                                         "{\"name\": ",
                                         "\"weather\"",
                                         "\"we\"",
                                         ",",
                                         "\"arguments\":",
                                         " {\"city\": ",
                                         "\"Rome\"",
                                         "\"Oslo\"",
                                         "\"</think>\"",
                                         "\"<tool_call>",
                                         "\"",
                                         "}",
                                         " \n",
                                         ", \"days\": 3",
                                         "{",
                                         "{\"x\": \"",
                                         "text"};
    size_t n = 0;
    grammar_start(g, &a);
    while (n + 32 < room) {
        const char *piece = pieces[draw(sizeof pieces / sizeof pieces[0])];
        char byte = (char)(draw(4) ? 0x20 + draw(0x5f) : draw(256));
        if (a.may_end && draw(40) == 0) return n;
        size_t len = draw(6) ? strlen(piece) : 1;
        if (len == 1) piece = &byte;
        if (a.may_end && strchr("{[`", piece[0])) continue;
        if (!goes_on(g, piece, len)) continue;
        memcpy(to + n, piece, len);
        n += len;
    }
    return a.may_end ? n : 0;
}

static void test_what_is_read(void **state)
{
    (void)state;
    static char text[4096];
    uint32_t answers = 0, calls = 0, thoughts = 0;
    struct json *tools = NULL;
    static const char schema[] =
        "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":" ARGUMENTS "}}";
    struct errmsg em;
    static const char any[] = "{\"type\":\"json_object\"}";
    struct buf of_schema = {0}, of_any = {0};
    struct grammar right, object;
    assert_int_equal(json_read(TOOLS, strlen(TOOLS), &tools, NULL), 0);
    assert_int_equal(format_compile(schema, strlen(schema), FORMAT_PLAIN, false, &of_schema, &em),
                     0);
    assert_int_equal(grammar_open(of_schema.data, of_schema.len, &right, &em), 0);
    assert_int_equal(format_compile(any, strlen(any), FORMAT_PLAIN, false, &of_any, &em), 0);
    assert_int_equal(grammar_open(of_any.data, of_any.len, &object, &em), 0);
    for (seed = 1; seed <= 500; seed++) {
        drawn = 0;
        bool open = draw(2), reasoning = draw(4);
        struct grammar g = compiled(reasoning ? FORMAT("") : FORMAT(",\"reasoning\":false"), open);
        size_t n = random_answer(&g, text, 64 + draw(2000));
        struct split s;
        split_init(&s, reasoning, open, tools);
        for (size_t i = 0, step; i < n; i += step) {
            step = 1 + draw(20);
            split_push(&s, text + i, n - i < step ? n - i : step);
        }
        split_finish(&s);
        answers += n > 0;
        thoughts += s.reasoning.len > 0;
        for (uint32_t i = 0; i < s.n_calls; i++, calls++) {
            const struct buf *name = &s.calls[i].name, *args = &s.calls[i].arguments;
            bool we = name->len == 2 && memcmp(name->data, "we", 2) == 0;
            bool weather = name->len == 7 && memcmp(name->data, "weather", 7) == 0;
            const char *form = is(weather ? &right : &object, args->data, args->len);
            if (!(we || weather) || strcmp(form, "whole") != 0)
                fail_msg("seed %llu: %.*s(%.*s) in: %.*s", (unsigned long long)seed, (int)name->len,
                         name->data, (int)args->len, args->data, (int)n, text);
        }
        split_close(&s);
    }
    assert_true(answers > 200 && calls > 50 && thoughts > 50);
    buf_close(&of_schema);
    buf_close(&of_any);
    json_free(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_free), cmocka_unit_test(test_calls),
        cmocka_unit_test(test_reasoning),    cmocka_unit_test(test_loose),
        cmocka_unit_test(test_too_large),    cmocka_unit_test(test_other_forms),
        cmocka_unit_test(test_what_is_read),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    buf_close(&code);
    return rc;
}
