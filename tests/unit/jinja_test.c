/* Chat templates: limits, errors and their lines, the kinds of refusal, and where each byte of a
 * prompt came from. What templates render is tests/model/template_test.py's. */
#include "common/base/mem.h"
#include "common/text/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct result {
    int rc;
    struct errmsg em;
    struct template_prompt prompt;
};

static struct result render_with(const char *text, const char *json, struct template_limits limits)
{
    struct result r = {0};
    struct template *t = NULL;
    struct json *j = NULL;
    if (json_read(json, strlen(json), &j, &r.em) < 0) fail_msg("%s: %s", json, r.em.text);
    const struct template_token bos = {"bos_token", {"<s>", 3}};
    const struct template_input in = {.messages = json_get(j, "messages"),
                                      .tools = json_get(j, "tools"),
                                      .documents = json_get(j, "documents"),
                                      .kwargs = json_get(j, "kwargs"),
                                      .tokens = &bos,
                                      .n_tokens = 1,
                                      .limits = limits};
    r.rc = template_open(text, strlen(text), &t, &r.em);
    if (r.rc == 0) r.rc = template_render(t, &in, &r.prompt, &r.em);
    template_close(t);
    json_free(j);
    return r;
}

#define NO_LIMITS ((struct template_limits){0})
#define HELLO "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}"

static void expect_error_with(const char *text, const char *json, struct template_limits limits,
                              int rc, const char *says)
{
    struct result r = render_with(text, json, limits);
    if (r.rc != rc || strcmp(r.em.text, says) != 0)
        fail_msg("%.80s: %d '%s', not %d '%s'", text, r.rc, r.em.text, rc, says);
    assert_null(r.prompt.text); /* written only on success */
}

static void expect_error(const char *text, int rc, const char *says)
{
    expect_error_with(text, HELLO, NO_LIMITS, rc, says);
}

static void expect_text(const char *text, const char *json, const char *want)
{
    struct result r = render_with(text, json, NO_LIMITS);
    if (r.rc < 0) fail_msg("%s: %s", text, r.em.text);
    assert_string_equal(r.prompt.text, want);
    assert_int_equal(r.prompt.bytes, strlen(want));
    template_prompt_close(&r.prompt);
}

/* ---- limits ---- */

/* Each limit is reached by a template that is right otherwise, and named with its line. */
static void test_limits(void **state)
{
    (void)state;
    static const char forever[] = "{% set r = range(99999) %}\n{% for i in r %}{% for k in r %}"
                                  "{% endfor %}{% endfor %}";
    static const char deep[] = "{% macro m(n) %}\n{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    static const char grows[] = "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}\n"
                                "{% set ns.s = ns.s + ns.s %}{% endfor %}";
    expect_error_with(forever, HELLO, (struct template_limits){.steps = 150000}, ERR_LIMIT,
                      "line 2: the template takes more than 150000 steps");
    expect_error(forever, ERR_LIMIT, "line 2: the template takes more than 20971520 steps");
    expect_error_with(deep, HELLO, (struct template_limits){.depth = 9}, ERR_LIMIT,
                      "line 2: calls or values nest more than 9 deep");
    expect_error(deep, ERR_LIMIT, "line 2: calls or values nest more than 128 deep");
    expect_error_with("\n\n{{ 'x' * 1000 }}{{ 'y' * 1000 }}", HELLO,
                      (struct template_limits){.output_bytes = 1999}, ERR_LIMIT,
                      "line 3: the text is longer than 1999 bytes");
    expect_error_with(grows, HELLO, (struct template_limits){.memory_bytes = 1 << 20}, ERR_LIMIT,
                      "line 2: the template needs more than 1048576 bytes of memory");
    expect_error(grows, ERR_LIMIT,
                 "line 2: the template needs more than 268435456 bytes of memory");
    expect_error("\n{{ range(100001) }}", ERR_LIMIT, "line 2: a range of more than 100000");
    expect_error("{{ 9223372036854775807 + 1 }}", ERR_LIMIT,
                 "line 1: an integer is beyond 64 bits");
    expect_error("{{ 'x' * 2000000000 }}", ERR_LIMIT,
                 "line 1: the template takes more than 20971520 steps");
}

/* The bodies of the loops above cost a step for each item: two templates that are as long. */
static void test_limits_are_met_exactly(void **state)
{
    (void)state;
    static const char text[] = "{% for i in range(100) %}{{ i }}{% endfor %}";
    struct result r = render_with(text, HELLO, NO_LIMITS);
    assert_int_equal(r.rc, 0);
    uint64_t steps = r.prompt.steps;
    template_prompt_close(&r.prompt);
    r = render_with(text, HELLO, (struct template_limits){.steps = steps, .output_bytes = 190});
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.prompt.bytes, 190);
    template_prompt_close(&r.prompt);
    r = render_with(text, HELLO, (struct template_limits){.steps = steps - 1});
    assert_int_equal(r.rc, ERR_LIMIT);
    r = render_with(text, HELLO, (struct template_limits){.output_bytes = 189});
    assert_int_equal(r.rc, ERR_LIMIT);
}

/* What looks through a text takes steps for it, whatever comes out: 200 times 100 KB here. */
static void test_looking_takes_steps(void **state)
{
    (void)state;
    static const char *const looks[] = {"b is lower",
                                        "b is upper",
                                        "b.isupper()",
                                        "b.isalpha()",
                                        "b.center(3)",
                                        "b | wordcount",
                                        "b is sameas c",
                                        "b == c",
                                        "b in c",
                                        "b | length",
                                        "b.find('x')",
                                        "b.rfind('y')",
                                        "b[1:2]",
                                        "b.split() | length",
                                        "b.splitlines() | length",
                                        "b | trim | length",
                                        "b.strip('y')",
                                        "[{}] | map(attribute=b) | list | length",
                                        "b | int",
                                        "b.startswith('y', 1)"};
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        char text[300];
        (void)snprintf(text, sizeof text,
                       "{%% set b = 'x' * 100000 %%}{%% set c = 'x' * 100000 %%}"
                       "{%% for i in range(200) %%}{%% set q = %s %%}{%% endfor %%}",
                       looks[i]);
        expect_error_with(text, HELLO, (struct template_limits){.steps = 400000}, ERR_LIMIT,
                          "line 1: the template takes more than 400000 steps");
    }
    static const char strip[] = "{{ ('x' * 20000).strip('y' * 10000 + 'x') }}";
    expect_error_with(strip, HELLO, (struct template_limits){.steps = 1000000}, ERR_LIMIT,
                      "line 1: the template takes more than 1000000 steps");
    static const char rfind[] = "{{ ('x' * 20000).rfind('x' * 10000 + 'y') }}";
    expect_error_with(rfind, HELLO, (struct template_limits){.steps = 1000000}, ERR_LIMIT,
                      "line 1: the template takes more than 1000000 steps");
}

/* Names are looked for one by one. */
static void test_many_names_take_steps(void **state)
{
    (void)state;
    char *text = mem_alloc(100000);
    size_t n = 0;
    for (int i = 0; i < 4000; i++) n += (size_t)sprintf(text + n, "{%% set v%d = 1 %%}", i);
    (void)sprintf(text + n, "{%% for i in range(1000) %%}{{ nobody }}{%% endfor %%}");
    expect_error_with(text, HELLO, (struct template_limits){.steps = 100000}, ERR_LIMIT,
                      "line 1: the template takes more than 100000 steps");
    mem_free(text);
}

/* The largest integers are arguments like others. */
static void test_extreme_integers(void **state)
{
    (void)state;
    expect_text("{{ 'a b c'.rsplit(none, 9223372036854775807) }}", HELLO, "['a', 'b', 'c']");
    expect_text("{{ 'a b c'.split(none, -9223372036854775807 - 1) }}", HELLO, "['a', 'b', 'c']");
    expect_text("{{ 'abc def' | truncate(9223372036854775807) }}", HELLO, "abc def");
    static const char *const many[] = {"[1] * 9223372036854775807",
                                       "9223372036854775807 * (1, 2)",
                                       "'x' * 9223372036854775807",
                                       "'x'.center(9223372036854775807)",
                                       "['x'] | batch(9223372036854775807, 'y') | list",
                                       "['x'] | slice(9223372036854775807, 'y') | list",
                                       "'x' | indent(9223372036854775807)",
                                       "[1] | tojson(indent=9223372036854775807)"};
    for (size_t i = 0; i < sizeof many / sizeof many[0]; i++) {
        char text[128];
        (void)snprintf(text, sizeof text, "{{ %s }}", many[i]);
        expect_error_with(text, HELLO, (struct template_limits){.steps = 100000}, ERR_LIMIT,
                          "line 1: the template takes more than 100000 steps");
    }
    expect_text("{{ [] * 9223372036854775807 }}{{ '' * 9223372036854775807 }}", HELLO, "[]");
    expect_text("{{ '-5'.zfill(-9223372036854775807 - 1) }}", HELLO, "-5");
    expect_error("{{ '%99999999999999999999d' % 5 }}", ERR_RANGE,
                 "line 1: a format: a field is too wide");
}

static char *repeated(const char *what, size_t n, const char *behind)
{
    size_t len = strlen(what);
    char *s = mem_alloc(n * len + strlen(behind) + 1);
    for (size_t i = 0; i < n; i++) memcpy(s + i * len, what, len);
    memcpy(s + n * len, behind, strlen(behind) + 1);
    return s;
}

static void expect_many(const char *what, size_t n, const char *behind, int rc, const char *says)
{
    char *text = repeated(what, n, behind);
    expect_error(text, rc, says);
    mem_free(text);
}

/* What nests without an end, in each way there is, ends with an error and not with the stack. */
static void test_nesting(void **state)
{
    (void)state;
    expect_many("{{ (", 1, "1) }}{{ missing.x }}", ERR_RANGE, "line 1: 'missing' is undefined");
    char *open = repeated("(", 1000, ""), *text = mem_alloc(2100);
    (void)snprintf(text, 2100, "\n{{ %s", open);
    expect_error(text, ERR_LIMIT, "line 2: brackets nest too deeply");
    open[250] = 0;
    (void)snprintf(text, 2100, "\n{{ %s", open);
    expect_error(text, ERR_LIMIT, "line 2: it nests more than 200 deep");
    mem_free(open);
    mem_free(text);
    expect_many("{% if 1 %}", 1000, "", ERR_LIMIT, "line 1: it nests more than 200 deep");
    expect_many("{% for i in [1] %}", 1000, "", ERR_LIMIT, "line 1: it nests more than 200 deep");
    expect_many("{% if 0 %}{% el", 1, "if 1 %}{% endif %}{{ missing.x }}", ERR_RANGE,
                "line 1: 'missing' is undefined");
    text = repeated(" + 1", 100000, " }}"); /* no brackets, but a tree as deep as it is long */
    text[0] = '{';
    text[1] = '{';
    expect_error(text, ERR_LIMIT, "line 1: expressions and calls nest more than 1000 deep");
    mem_free(text);
    text = repeated("not ", 100000, "1 }}");
    memcpy(text, "{{  ", 4);
    expect_error(text, ERR_LIMIT, "line 1: it nests more than 200 deep");
    mem_free(text);
    expect_error("\n{{ 'a' | map(*(['map'] * 100000)) | list }}", ERR_LIMIT,
                 "line 2: calls or values nest more than 128 deep");
    char *json = repeated("[", 300, ""), *all = mem_alloc(1000);
    (void)snprintf(all, 1000, "{\"messages\": [{\"role\": \"user\", \"content\": %s", json);
    mem_free(json);
    json = repeated("]", 300, "}]}");
    (void)strcat(all, json);
    expect_error_with("", all, NO_LIMITS, ERR_LIMIT,
                      "line 1: calls or values nest more than 128 deep");
    mem_free(json);
    mem_free(all);
}

static void test_size(void **state)
{
    (void)state;
    char *text = repeated("x", TEMPLATE_BYTES_MAX, "");
    struct result r = render_with(text, HELLO, NO_LIMITS);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.prompt.bytes, TEMPLATE_BYTES_MAX);
    template_prompt_close(&r.prompt);
    mem_free(text);
    expect_many("x", TEMPLATE_BYTES_MAX + 1, "", ERR_LIMIT,
                "a template of 1048577 bytes, the limit is 1048576");
    char *names = mem_alloc(100000);
    size_t n = 0;
    for (int i = 0; i < 5000; i++) n += (size_t)sprintf(names + n, "{{ v%d }}\n", i);
    expect_error(names, ERR_LIMIT, "line 4093: the template has more than 4096 names");
    mem_free(names);
}

/* Appending to a text over and over takes steps and memory in proportion to it: 4 MiB here. */
static void test_appending_is_linear(void **state)
{
    (void)state;
    struct result r =
        render_with("{% set ns = namespace(s='') %}{% set x = 'abcdefgh' * 128 %}"
                    "{% for i in range(4096) %}{% set ns.s = ns.s + x %}{% endfor %}{{ ns.s }}",
                    HELLO, (struct template_limits){.memory_bytes = 64 << 20});
    if (r.rc < 0) fail_msg("%s", r.em.text);
    assert_int_equal(r.prompt.bytes, 4 << 20);
    assert_true(r.prompt.steps < 400000);
    template_prompt_close(&r.prompt);
}

/* 100 messages take few thousand steps: each a fraction of a microsecond. */
static void test_steps_of_100_messages(void **state)
{
    (void)state;
    static const char text[] =
        "{% for m in messages %}{% if m.role == 'system' and loop.index > 1 %}"
        "{{ raise_exception('late') }}{% endif %}{{ '<|' + m.role + '|>\\n' + m.content | trim }}"
        "{{ '</s>\\n' }}{% endfor %}";
    char *json = mem_alloc(100000);
    size_t n = (size_t)sprintf(json, "{\"messages\": [");
    for (int i = 0; i < 100; i++)
        n += (size_t)sprintf(json + n, "%s{\"role\": \"%s\", \"content\": \"%0500d\"}",
                             i ? ", " : "", i % 2 ? "assistant" : "user", i);
    (void)sprintf(json + n, "]}");
    struct result r = render_with(text, json, NO_LIMITS);
    if (r.rc < 0) fail_msg("%s", r.em.text);
    assert_true(r.prompt.steps > 1000 && r.prompt.steps < 8000);
    template_prompt_close(&r.prompt);
    mem_free(json);
}

/* ---- errors ---- */

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int rc;
        const char *says;
    } cases[] = {
        {"a\n{{ 1 + }}", ERR_FORMAT, "line 2: an expression is missing"},
        {"a\n{% nope %}", ERR_FORMAT, "line 2: there is no tag 'nope'"},
        {"\n\n{% include 'x' %}", ERR_UNSUPPORTED, "line 3: the tag 'include' is not supported"},
        {"\n{{ 1 | nope }}", ERR_FORMAT, "line 2: there is no filter 'nope'"},
        {"\n{{ 1 is nope }}", ERR_FORMAT, "line 2: there is no test 'nope'"},
        {"{% if 1 %}\n\n{{ 1 | nope }}{% endif %}", ERR_RANGE, "line 3: there is no filter 'nope'"},
        {"{% if 1 %}\n", ERR_FORMAT, "line 1: the template ends where a tag 'elif' is expected"},
        {"\n{{ 'x", ERR_FORMAT, "line 2: an unexpected character in a tag"},
        {"\n{# x", ERR_FORMAT, "line 2: Missing end of comment tag"},
        {"\n{{ '\\ud800' }}", ERR_FORMAT,
         "line 2: a string has an escape sequence that is no character"},
        {"a\n\xff", ERR_FORMAT, "line 2: the template is not UTF-8"},
        {"{% for x in messages %}\n{{ x.nope.more }}{% endfor %}", ERR_RANGE,
         "line 2: 'nope' is undefined: no such member of a 'dict'"},
        {"\n{{ messages + 'x' }}", ERR_RANGE,
         "line 2: '+' does not go between a 'list' and a 'str'"},
        {"{{ 1 / 0 }}", ERR_RANGE, "line 1: division by zero"},
        {"\n{{ messages.append(1) }}", ERR_RANGE,
         "line 2: 'append' is forbidden: templates may not change values"},
        {"{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}", ERR_RANGE,
         "line 2: macro 'm' takes at most 1 arguments, not 2"},
        {"\n{{ 'x' | wordwrap }}", ERR_UNSUPPORTED,
         "line 2: the filter 'wordwrap' is not supported"},
        {"\n{{ 'x'.encode() }}", ERR_UNSUPPORTED, "line 2: the method 'encode' is not supported"},
        {"{% macro m(a,\na) %}{% endmacro %}", ERR_FORMAT,
         "line 2: two parameters have the same name"},
        {"{{ '{:.3}'.format(2.0) }}", ERR_RANGE,
         "line 1: a format: digits behind the point without a type"},
        {"{{ '%#.3g' % 1.0 }}", ERR_RANGE, "line 1: a format: '#' of a number with a point"},
        {"{{ (-8) ** 0.5 }}", ERR_UNSUPPORTED, "line 1: complex numbers are not supported"},
        {"{{ '%a' % 'x' }}", ERR_RANGE, "line 1: a format: an unknown type"},
        {"{{ '{:010,}'.format(1234) }}", ERR_RANGE,
         "line 1: a format: commas among zeros that fill"},
        {"{{ '\u0663' | int }}", ERR_UNSUPPORTED, "line 1: digits of another script in a number"},
        {"{{ [1] | tojson(x=1) }}", ERR_RANGE,
         "line 1: tojson takes no argument 'x', or got it twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_error(cases[i].text, cases[i].rc, cases[i].says);
}

/* The template's own words, and nothing else; as much of them as an error holds. */
static void test_refusal(void **state)
{
    (void)state;
    expect_error("\n\n{{ raise_exception('No, ' ~ messages[0].content) }}", ERR_REFUSED, "No, hi");
    expect_error("{% if messages[0].role != 'system' %}{{ raise_exception('System first') }}"
                 "{% endif %}",
                 ERR_REFUSED, "System first");
    expect_error("a{{ raise_exception('one') }}{{ raise_exception('two') }}{{ 1 / 0 }}",
                 ERR_REFUSED, "one");
    struct result r = render_with("{{ raise_exception('x' * 1000) }}", HELLO, NO_LIMITS);
    assert_int_equal(r.rc, ERR_REFUSED);
    assert_int_equal(strlen(r.em.text), sizeof r.em.text - 1);
}

static void test_input(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"{}", "messages: not an array"},
        {"{\"messages\": {}}", "messages: not an array"},
        {"{\"messages\": []}", "messages: there is none"},
        {"{\"messages\": [{}, \"x\"]}", "messages[1]: not an object"},
        {"{\"messages\": [{}], \"tools\": 5}", "tools: not an array"},
        {"{\"messages\": [{}], \"tools\": [null]}", "tools[0]: not an object"},
        {"{\"messages\": [{}], \"documents\": [[]]}", "documents[0]: not an object"},
        {"{\"messages\": [{}], \"kwargs\": []}", "chat_template_kwargs: not an object"},
        {"{\"messages\": [{}], \"kwargs\": {\"messages\": []}}",
         "chat_template_kwargs: 'messages' is given apart"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_error_with("x", cases[i].json, NO_LIMITS, ERR_RANGE, cases[i].says);
    expect_text("{{ messages[0] }}{{ tools }}{{ x }}",
                "{\"messages\": [{\"a\": null, \"b\": [null]}], \"tools\": null, "
                "\"kwargs\": {\"x\": \"y\"}}",
                "{'b': [None]}Noney");
    expect_text("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}",
                "{\"messages\": [{\"reasoning\": \"r\"}]}", "rr");
    expect_text("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}",
                "{\"messages\": [{\"reasoning_content\": \"r\", \"thinking\": \"t\"}]}", "rt");
    expect_text("{{ bos_token }}", "{\"messages\": [{}], \"kwargs\": {\"bos_token\": \"b\"}}", "b");
}

/* ---- where text came from ---- */

/* The prompt with what came from the conversation between [ and ]. */
static void expect_runs(const char *text, const char *want)
{
    static const char json[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \" hi,Yo \", \"n\": 12, \"f\": 1.5, "
        "\"list\": [\"p\", \"q\"], \"obj\": {\"k\": \"v\"}, \"u\": \"\\u00e4b\"}, "
        "{\"role\": \"strange\"}], \"kwargs\": {\"kw\": \"w\"}}";
    char got[500];
    size_t n = 0, at = 0;
    struct result r = render_with(text, json, NO_LIMITS);
    if (r.rc < 0) fail_msg("%s: %s", text, r.em.text);
    for (size_t i = 0; i < r.prompt.n_runs; at += r.prompt.runs[i++].bytes) {
        assert_true(r.prompt.runs[i].bytes > 0);
        if (i > 0) assert_true(r.prompt.runs[i].special != r.prompt.runs[i - 1].special);
        n += (size_t)snprintf(got + n, sizeof got - n, r.prompt.runs[i].special ? "%.*s" : "[%.*s]",
                              (int)r.prompt.runs[i].bytes, r.prompt.text + at);
    }
    got[n] = 0;
    assert_int_equal(at, r.prompt.bytes);
    if (strcmp(got, want) != 0) fail_msg("%s: '%s', not '%s'", text, got, want);
    template_prompt_close(&r.prompt);
}

static void test_origin(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"a{{ 'b' }}{{ bos_token }}", "ab<s>"},
        {"{% set c = messages[0].content %}<{{ c }}>", "<[ hi,Yo ]>"},
        {"{% set c = messages[0].content %}{{ '<' + c + '>' }}{{ '<' ~ c ~ '>' }}",
         "<[ hi,Yo ]><[ hi,Yo ]>"},
        {"{{ ('<' + messages[0].content + '>') | upper }}", "<[ HI,YO ]>"},
        {"{{ ('< ' + messages[0].content | trim + ' >').split() }}", "[['<', 'hi,Yo', '>']]"},
        {"{{ ('<' + messages[0].content + '>').split(',')[0] }}", "<[ hi]"},
        {"{{ ('ab' + messages[0].content | trim + 'cd')[1:5] }}", "b[hi,]"},
        {"{{ ('ab' + messages[0].content | trim)[::-1] }}", "[oY,ih]ba"},
        {"{{ ('ab' + messages[0].u)[2] }}{{ ('ab' + messages[0].u) | last }}", "[\u00e4b]"},
        {"{{ messages[0].content | replace(',', '<|>') | trim }}", "[hi]<|>[Yo]"},
        {"{{ 'a-b' | replace('-', messages[0].u) }}", "a[\u00e4b]b"},
        {"{{ messages[0].list | join('|') }}{{ '|'.join(messages[0].list) }}", "[p]|[qp]|[q]"},
        {"{{ '%s=%d' % (messages[0].u, 5) }}{{ '{}!'.format(messages[0].u) }}",
         "[\u00e4b]=5[\u00e4b]!"},
        {"{{ messages[0].u | indent(2, true) }}{{ messages[0].u.center(4, '*') }}",
         "  [\u00e4b]*[\u00e4b]*"},
        {"{{ messages[0].u * 2 }}{{ 'x' * 2 }}", "[\u00e4b\u00e4b]xx"},
        {"{{ messages[0].n }}{{ messages[0].n + 1 }}{{ messages | length }}{{ messages[0].f }}",
         "[1213]2[1.5]"},
        {"{{ messages[0].n | string }}{{ '7' | int + 1 }}{{ '1' ~ messages[0].n | int }}",
         "[12]81[12]"},
        {"{% for k, v in messages[0].obj.items() %}{{ k }}={{ v }}{% endfor %}", "[k]=[v]"},
        {"{{ messages[0].obj | tojson }}{{ 'x' | tojson }}", "[{\"k\": \"v\"}\"x\"]"},
        {"{{ messages[0].obj }}{{ none }}{{ true }}", "[{'k': 'v'}]NoneTrue"},
        {"{{ '<|' + messages[0].role + '|>' }}{{ '<|' + messages[1].role + '|>' }}",
         "<|user|><|[strange]|>"},
        {"{{ {'hi': '<|hi|>'}[messages[0].content[1:3]] }}", "<|hi|>"},
        {"{{ kw }}{% set t %}<{{ kw }}>{% endset %}{{ t | upper }}", "[w]<[W]>"},
        {"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(kw) }}{% filter upper %}a{{ kw }}{% "
         "endfilter %}",
         "<[w]>A[W]"},
        {"{% for c in '<' + kw %}{{ c }}.{% endfor %}", "<.[w]."},
        {"{{ (kw + '<') | escape }}{{ ('%s<' | safe) % kw }}", "[w]&lt;[w]<"},
        {"{{ ('<' + kw).partition(kw)[1] }}{{ ('<' + kw + '>').removesuffix('>') }}", "[w]<[w]"},
        {"{{ ('a ' + kw) | title }}{{ ('a' + kw) | capitalize }}{{ ('<' + kw).swapcase() }}",
         "A [W]A[w]<[W]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_runs(cases[i][0], cases[i][1]);
}

/* The block with room behind a text that is appended to is shared by what was appended before. */
static void test_origin_of_appended(void **state)
{
    (void)state;
    struct result r = render_with("{% set a = '<' * 300 %}{% set b = a + kw %}{% set c = a + '!' %}"
                                  "{% set d = b + '>' %}{% set e = b + kw %}"
                                  "{{ b[298:] }}{{ c[298:] }}{{ d[298:] }}{{ e[298:] }}",
                                  "{\"messages\": [{}], \"kwargs\": {\"kw\": \"w\"}}", NO_LIMITS);
    if (r.rc < 0) fail_msg("%s", r.em.text);
    assert_string_equal(r.prompt.text, "<<w<<!<<w><<ww");
    static const size_t bytes[] = {2, 1, 5, 1, 3, 2};
    assert_int_equal(r.prompt.n_runs, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(r.prompt.runs[i].bytes, bytes[i]);
        assert_int_equal(r.prompt.runs[i].special, i % 2 == 0);
    }
    template_prompt_close(&r.prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_limits_are_met_exactly),
        cmocka_unit_test(test_looking_takes_steps),
        cmocka_unit_test(test_many_names_take_steps),
        cmocka_unit_test(test_extreme_integers),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_appending_is_linear),
        cmocka_unit_test(test_steps_of_100_messages),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_input),
        cmocka_unit_test(test_origin),
        cmocka_unit_test(test_origin_of_appended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
