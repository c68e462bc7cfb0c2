/* YAML scalars mean what they look like, or are refused by file, line, column and key. */
#include "common/io/conf.h"

#include "common/base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct values {
    char *model, *name;
    uint32_t port, inner;
    bool cache;
};

static int parse(const char *text, struct values *v, struct errmsg *em)
{
    const struct conf_key table[] = {{"model", CONF_STRING, &v->model, 0, 0, true},
                                     {"name", CONF_STRING, &v->name, 0, 0, false},
                                     {"port", CONF_U32, &v->port, 1, 65535, false},
                                     {"ports.inner", CONF_U32, &v->inner, 0, 9, false},
                                     {"cache", CONF_BOOL, &v->cache, 0, 0, false},
                                     {0}};
    *v = (struct values){.port = 1};
    int rc = conf_parse("c.yaml", text, strlen(text), table, em);
    if (rc < 0) conf_free(table);
    return rc;
}

static void release(struct values *v)
{
    mem_free(v->model);
    mem_free(v->name);
}

static void test_accepted(void **state)
{
    (void)state;
    struct values v;
    struct errmsg em;
    assert_int_equal(parse("\xef\xbb\xbfmodel: m\r\nport: 8080\r\ncache: true\r\nports:\r\n"
                           "  inner: 3\r\n",
                           &v, &em),
                     0);
    assert_true(v.port == 8080 && v.cache && v.inner == 3);
    release(&v);
    static const char *const names[] = {"no", "1.10", "\"no\"", "NO", "010", "'a b'", "\"~\""};
    static const char *const want[] = {"no", "1.10", "no", "NO", "010", "a b", "~"};
    for (size_t i = 0; i < 7; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "model: m\nname: %s\n", names[i]);
        assert_int_equal(parse(text, &v, &em), 0);
        assert_string_equal(v.name, want[i]);
        release(&v);
    }
}

static void refused(const char *text, const char *where, const char *key)
{
    struct values v;
    struct errmsg em = {0};
    if (parse(text, &v, &em) != ERR_CONF) fail_msg("accepted: %s", text);
    if (!strstr(em.text, where) || !strstr(em.text, key))
        fail_msg("'%s' has no '%s' or '%s' (%s)", em.text, where, key, text);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const ports[] = {
        "08080", "0o17620", "0x1F90", "8_080",  "8080abc", "99999999999", "-1",       "\"\"",
        "~",     "1e4",     "22:30",  "[8080]", "70000",   "0",           "\"8080\"", "2G"};
    static const char *const bools[] = {"no", "off", "False", "n", "\"false\"", "maybe", "1"};
    char text[128];
    for (size_t i = 0; i < sizeof ports / sizeof ports[0]; i++) {
        (void)snprintf(text, sizeof text, "model: m\nport: %s\n", ports[i]);
        refused(text, "c.yaml:2:7", "port");
    }
    for (size_t i = 0; i < sizeof bools / sizeof bools[0]; i++) {
        (void)snprintf(text, sizeof text, "model: m\ncache: %s\n", bools[i]);
        refused(text, "c.yaml:2:8", "cache");
    }
    refused("model: m\nmodle: x\n", "c.yaml:2:1", "modle");
    refused("model: m\nmodel: n\n", "c.yaml:2:1", "twice");
    refused("model: m\nports:\n  inner: 10\n", "c.yaml:3:10", "ports.inner");
    refused("model: m\nports: 3\n", "c.yaml:2:8", "ports");
    refused("model: m\nport:\n\t80\n", "c.yaml:3", "");
    refused("", "c.yaml", "empty");
    refused("port: 8080\n", "c.yaml", "model");
    refused("model: m\n---\nmodel: n\n", "c.yaml", "second document");
    refused("- a\n", "c.yaml:1:1", "mapping");
    refused("model: &a m\nname: *a\n", "c.yaml:1:8", "anchors");
    refused("model: ~\n", "c.yaml:1:8", "no value");
    refused("model: m\nport: !!str 80\n", "c.yaml:2:7", "anchors and tags");
    refused("model: m\nport: !!int 80\n", "c.yaml:2:7", "anchors and tags");
    refused("model: m\nport: &a 80\n", "c.yaml:2:7", "anchors and tags");
    refused("model: m\n!!str port: 80\n", "c.yaml:2:1", "a tag");
    refused("model: m\nport: 80\nport: 81\n", "c.yaml:3:1", "twice");
    refused("model: m\nports: {inner: 1}\nports: {inner: 2}\n", "c.yaml:3:9", "twice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_accepted),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
