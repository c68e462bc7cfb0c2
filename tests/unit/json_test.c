/* Reading JSON: what is found, and what is refused with the byte at which it goes wrong. */
#include "common/text/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct json *read_text(const char *text)
{
    struct json *j = NULL;
    struct errmsg em = {0};
    if (json_read(text, strlen(text), &j, &em) < 0) fail_msg("%s: %s", text, em.text);
    return j;
}

static void test_values(void **state)
{
    (void)state;
    struct json *j =
        read_text(" {\"a\": 7, \"b\": [1, -2, 3.0, \"4\", 9223372036854775807], \"c\": {}}\n");
    uint64_t v = 0;
    size_t n = 0;
    assert_true(json_as_u64(json_get(j, "a"), &v));
    assert_int_equal(v, 7);
    const struct json *b = json_get(j, "b");
    assert_true(json_count(b, &n));
    assert_int_equal(n, 5);
    assert_true(json_as_u64(json_at(b, 4), &v));
    assert_true(v == INT64_MAX);
    for (size_t i = 1; i < 4; i++) assert_false(json_as_u64(json_at(b, i), &v));
    assert_true(v == INT64_MAX); /* written only on success */
    assert_null(json_get(j, "d"));
    assert_null(json_get(b, "a")); /* no object */
    assert_false(json_as_u64(json_get(j, "d"), &v));
    assert_false(json_count(json_get(j, "c"), &n));
    assert_false(json_count(NULL, &n));
    json_free(j);
}

static void test_write(void **state)
{
    (void)state;
    struct json *j = read_text("{\"t\": \"h\\u00e9\", \"n\": null, \"r\": 2.5, \"o\": {}}");
    struct buf out = {0};
    json_write(j, &out);
    assert_string_equal(out.data, "{\"t\":\"h\xc3\xa9\",\"n\":null,\"r\":2.5,\"o\":{}}");
    buf_close(&out);
    json_free(j);
}

/* The key that an error's byte lies in. */
static void test_key_of_an_error(void **state)
{
    (void)state;
    static const struct {
        const char *text, *key;
    } cases[] = {
        {"{\"a\": 1, \"seed\": 9223372036854775808}", "seed"},
        {"{\"logit_bias\": {\"35\": 1e400}, \"b\": 2}", "logit_bias"},
        {"{\"temperature\": NaN}", "temperature"},
        {"{\"a\": \"b\\\"c:{\", \"d\": [1, x]}", "d"},
        {"[NaN]", ""},
        {"{\"a\" 1}", ""},
        {"{", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json *j = NULL;
        size_t at = 0;
        char key[32];
        assert_int_equal(json_read_at(cases[i].text, strlen(cases[i].text), &j, &at, NULL),
                         ERR_FORMAT);
        assert_true(at <= strlen(cases[i].text));
        json_key_at(cases[i].text, at, key, sizeof key);
        assert_string_equal(key, cases[i].key);
    }
}

/* Every kind, and only as what it is. */
static void test_kinds(void **state)
{
    (void)state;
    struct json *j = read_text("{\"z\": null, \"b\": true, \"i\": -3, \"r\": 0.5, "
                               "\"s\": \"\\u00e4\", \"a\": [], \"o\": {\"k\": 1}}");
    static const char names[] = "zbirsao";
    size_t at = 0, len = 0;
    const char *key;
    const struct json *v;
    for (void *it = NULL; json_next(j, &it, &key, &len, &v); at++) {
        bool b = false;
        int64_t i = 0;
        double r = 0.0;
        const char *s = NULL;
        assert_int_equal(len, 1);
        assert_int_equal(key[0], names[at]); /* in the document's order */
        assert_int_equal(json_kind(v), JSON_KIND_NULL + (int)at);
        assert_int_equal(json_as_bool(v, &b), at == JSON_KIND_BOOL);
        assert_int_equal(json_as_int(v, &i), at == JSON_KIND_INT);
        assert_int_equal(json_as_real(v, &r), at == JSON_KIND_INT || at == JSON_KIND_REAL);
        assert_int_equal(json_as_string(v, &s, &len), at == JSON_KIND_STRING);
        if (at == JSON_KIND_BOOL) assert_true(b);
        if (at == JSON_KIND_INT) assert_true(i == -3 && r == -3.0);
        if (at == JSON_KIND_REAL) assert_true(r == 0.5);
        if (at == JSON_KIND_STRING) assert_true(len == 2 && strcmp(s, "\u00e4") == 0);
        assert_int_equal(json_n_members(v), at == JSON_KIND_OBJECT);
    }
    assert_int_equal(at, 7);
    assert_int_equal(json_kind(NULL), JSON_KIND_NULL);
    json_free(j);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "byte 0"},
        {"{\"a\": 1", "byte 7"},
        {"{\"a\": 1} x", "byte 10"},
        {"7", "byte 1"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"[9223372036854775808]", "too big"},
        {"[\"\\ud800\"]", "invalid Unicode"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json *j = NULL;
        struct errmsg em = {0};
        assert_int_equal(json_read(cases[i].text, strlen(cases[i].text), &j, &em), ERR_FORMAT);
        assert_null(j);
        if (!strstr(em.text, cases[i].says)) fail_msg("'%s' says: %s", cases[i].text, em.text);
    }
    char deep[6001];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    struct json *j = NULL;
    assert_int_equal(json_read(deep, sizeof deep - 1, &j, NULL), ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),          cmocka_unit_test(test_write),
        cmocka_unit_test(test_key_of_an_error), cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
