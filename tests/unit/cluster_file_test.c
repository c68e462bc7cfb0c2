/* Addresses, paths and limits of the cluster file, and the addresses of common/base/addr.h. What
 * each key does is config_test.c's. */
#include "coordinator/config.h"

#include "common/base/addr.h"
#include "common/io/keys.h"
#include "proto/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static int read_text(const char *text, const char *model, struct config *ret, struct errmsg *em)
{
    char path[] = "/tmp/config_test_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    *em = (struct errmsg){0};
    int rc = config_read(path, model, ret, em);
    (void)unlink(path);
    return rc;
}

#define BASE "model: /m.gguf\nworkers: 2\n"

static void test_defaults(void **state)
{
    struct config c;
    struct errmsg em;
    (void)state;
    assert_int_equal(read_text(BASE, NULL, &c, &em), 0);
    assert_string_equal(c.listen, "127.0.0.1");
    assert_int_equal(c.drain_s, 20);
    assert_int_equal(c.connections, 1024);
    assert_false(c.model_relative);
    config_close(&c);
    assert_int_equal(read_text(BASE "drain: 0\nlimits: {connections: 7}\n", NULL, &c, &em), 0);
    assert_int_equal(c.drain_s, 0);
    assert_int_equal(c.connections, 7);
    config_close(&c);
}

static void test_listen(void **state)
{
    static const struct {
        const char *listen, *want, *words;
    } cases[] = {
        {"127.0.0.1", "127.0.0.1", NULL},
        {"localhost", "127.0.0.1", NULL},
        {"127.0.0.1:7070", NULL, "a host, without a port"},
        {"'*'", NULL, "0.0.0.0 stands for every IPv4 address"},
        {"no.such.host.invalid", NULL, "no address and no name that resolves"},
        {"ipc:///tmp/x", NULL, "only tcp:// is served"},
        {"192.0.2.1", NULL, "no address of this machine"},
        {"0.0.0.0", NULL, "plaintext: true"},
        {"0.0.0.0\nplaintext: true", "0.0.0.0", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        struct config c;
        struct errmsg em;
        (void)snprintf(text, sizeof text, BASE "listen: %s\n", cases[i].listen);
        int rc = read_text(text, NULL, &c, &em);
        if (cases[i].want) {
            if (rc < 0) fail_msg("%s: %s", cases[i].listen, em.text);
            assert_string_equal(c.listen, cases[i].want);
            config_close(&c);
        } else {
            assert_int_equal(rc, ERR_CONF);
            assert_non_null(strstr(em.text, "key 'listen'"));
            if (!strstr(em.text, cases[i].words))
                fail_msg("'%s' lacks '%s'", em.text, cases[i].words);
        }
    }
}

static void test_model(void **state)
{
    struct config c;
    struct errmsg em;
    char want[4200], here[4096];
    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    (void)snprintf(want, sizeof want, "%s/some/m.gguf", here);
    assert_int_equal(read_text("model: some/m.gguf\nworkers: 2\n", NULL, &c, &em), 0);
    assert_string_equal(c.model, want);
    assert_true(c.model_relative);
    config_close(&c);
    /* The command line's model comes first, and may have bytes that YAML may not. */
    static const char odd[] = "/caf\xe9\nb.gguf";
    assert_int_equal(read_text("workers: 2\n", odd, &c, &em), 0);
    assert_string_equal(c.model, odd);
    config_close(&c);
    assert_int_equal(read_text(BASE, odd, &c, &em), 0);
    assert_string_equal(c.model, odd);
    config_close(&c);
    assert_int_equal(read_text("workers: 2\n", "some/m.gguf", &c, &em), 0);
    assert_string_equal(c.model, want);
    config_close(&c);
    assert_int_equal(read_text("workers: 2\n", NULL, &c, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "key 'model' is missing"));
    /* What is wrong is said of the key or the option, whichever it came from. */
    char text[2 * LIMIT_PATH_BYTES], *path = text + strlen("model: ");
    (void)snprintf(text, sizeof text, "model: /%0*d\nworkers: 2\n", (int)LIMIT_PATH_BYTES, 0);
    assert_int_equal(read_text(text, NULL, &c, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "key 'model': longer than"));
    path[1 + LIMIT_PATH_BYTES] = 0;
    assert_int_equal(read_text(BASE, path, &c, &em), ERR_CONF);
    assert_string_equal(em.text, "--model: longer than 1023 bytes");
}

/* ---- common/base/addr.h ---- */

static void test_addresses(void **state)
{
    static const struct {
        const char *text, *formatted, *words;
    } cases[] = {
        {"tcp://10.0.0.5:7070", "tcp://10.0.0.5:7070", NULL},
        {"10.0.0.5:7070", "tcp://10.0.0.5:7070", NULL},
        {"host-1.example.com:1", "tcp://host-1.example.com:1", NULL},
        {"my_host", "tcp://my_host", NULL},
        {"[::1]:65535", "tcp://[::1]:65535", NULL},
        {"tcp://[fe80::1]", "tcp://[fe80::1]", NULL},
        {"::1", "tcp://[::1]", NULL},
        {"fd00::5:7070", "tcp://[fd00::5:7070]", NULL},
        {"1:2", NULL, "no IPv4 address"},
        {"", NULL, "names no host"},
        {":7070", NULL, "names no host"},
        {"udp://h:1", NULL, "only tcp://"},
        {"h:", NULL, "not a number in 0..65535"},
        {"h:65536", NULL, "not a number in 0..65535"},
        {"h:+1", NULL, "not a number in 0..65535"},
        {"h:1x", NULL, "not a number in 0..65535"},
        {"[::1", NULL, "[ADDRESS]:PORT"},
        {"[::1]7070", NULL, "[ADDRESS]:PORT"},
        {"[10.0.0.5]:1", NULL, "no IPv6 address"},
        {"a::b::c", NULL, "no IPv6 address"},
        {"256.1.1.1:1", NULL, "no IPv4 address"},
        {"a b:1", NULL, "a host name has"},
        {"*:1", NULL, "'*' is no host"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct addr a;
        struct errmsg em = {0};
        char got[ADDR_TEXT_BYTES];
        int rc = addr_parse(cases[i].text, &a, &em);
        if (cases[i].formatted) {
            if (rc < 0) fail_msg("%s", em.text);
            addr_format(&a, got, sizeof got);
            assert_string_equal(got, cases[i].formatted);
        } else if (rc == 0 || !strstr(em.text, cases[i].words)) {
            fail_msg("'%s': '%s' lacks '%s'", cases[i].text, em.text, cases[i].words);
        }
    }
}

static void test_split(void **state)
{
    struct addr a;
    (void)state;
    assert_true(addr_split("tcp://:7071", &a) && !a.host[0] && a.port == 7071);
    assert_true(addr_split("tcp://127.0.0.1:*", &a) && a.has_port && a.port == 0);
    assert_true(addr_split("tcp://[::]:5", &a) && a.kind == ADDR_V6 && a.port == 5);
    assert_false(addr_split("tcp://", &a));
    assert_false(addr_split("tcp://h:1:2", &a));
    assert_false(addr_split("ipc://h", &a));
}

static void test_kinds(void **state)
{
    static const char *const loopback[] = {"127.0.0.1",      "127.5.6.7",      "localhost",
                                           "localhost:7070", "tcp://[::1]:1",  "::1",
                                           "[::1]",          "127.0.0.1:7070", "tcp://localhost:1"};
    static const char *const not_loopback[] = {
        "localhost.example.com", "127.evil.com", "10.0.0.1", "::2", "128.0.0.1", "*", "",
        "127.0.0.1.nip.io"};
    (void)state;
    for (size_t i = 0; i < sizeof loopback / sizeof loopback[0]; i++)
        assert_true(addr_is_loopback(loopback[i]));
    for (size_t i = 0; i < sizeof not_loopback / sizeof not_loopback[0]; i++)
        assert_false(addr_is_loopback(not_loopback[i]));
    assert_true(addr_is_any("0.0.0.0"));
    assert_true(addr_is_any("::"));
    assert_false(addr_is_any("0.0.0.1"));
}

/* The coordinator's own key, and lists that are read again while it runs. */
static void test_keys(void **state)
{
    char key_path[] = "/tmp/flotilla-key-XXXXXX", file[] = "/tmp/flotilla-cluster-XXXXXX";
    char text[512], public[KEY_TEXT_BYTES];
    struct config c;
    struct errmsg em = {0};
    struct key_pair own;
    struct key_list now;
    (void)state;
    assert_int_equal(keys_make(&own, &em), 0);
    key_format(&own.public, public);
    int fd = mkstemp(key_path);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)unlink(key_path);
    assert_int_equal(keys_write(key_path, &own, &em), 0);
    (void)snprintf(text, sizeof text, BASE "listen: 0.0.0.0\nkeys: {file: %s}\n", key_path);
    assert_int_equal(read_text(text, NULL, &c, &em), 0);
    assert_memory_equal(&c.own, &own, sizeof own);
    assert_int_equal(c.allowed.n, 0);
    c.path = file;
    assert_int_equal(config_read_allowed(&c, &now, &em),
                     ERR_NOTFOUND); /* there is no such file now */
    fd = mkstemp(file);
    assert_true(fd >= 0);
    assert_int_equal(dprintf(fd, BASE "keys:\n  file: /k\n  clients: ['%s']\n", public) > 0, 1);
    assert_int_equal(config_read_allowed(&c, &now, &em), 0);
    assert_int_equal(now.n, 1);
    assert_int_equal(key_roles(&now, &own.public), KEY_CLIENT);
    key_list_close(&now);
    assert_int_equal(ftruncate(fd, (off_t)strlen(BASE)), 0);
    assert_int_equal(config_read_allowed(&c, &now, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "keys.file"));
    (void)close(fd);
    (void)unlink(file);
    config_close(&c);
    assert_int_equal(chmod(key_path, 0644), 0);
    assert_int_equal(read_text(text, NULL, &c, &em), ERR_CONF);
    assert_non_null(strstr(em.text, "keys.file"));
    assert_non_null(strstr(em.text, key_path));
    (void)unlink(key_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_listen),
        cmocka_unit_test(test_model),    cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_split),    cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
