/* What Prometheus reads from a real port is what `status` tells and what was counted. */
#include "coordinator/metrics.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/prom.h"
#include "common/base/utf8.h"
#include "common/io/http.h"
#include "proto/wire.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_MS 30000 /* far beyond what an answer takes, below the test's time-out */

static int dial(uint32_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, "127.0.0.1", &at.sin_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* Reads until the server closes. False: it did not in time. */
static bool read_all(int fd, struct buf *ret)
{
    char bytes[4096];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, WAIT_MS) == 1) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0) return true;
        (void)buf_append(ret, bytes, (size_t)n);
    }
    return false;
}

static void request(uint32_t port, const char *method, const char *path, struct buf *ret)
{
    char text[256];
    int fd = dial(port);
    int n = snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                     method, path);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
    buf_drop(ret, ret->len);
    assert_true(read_all(fd, ret));
    (void)close(fd);
    assert_true(ret->len > 0);
}

/* The value of a line that begins with a name and its labels. */
static double value_of(const struct buf *text, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = text->data; (at = strstr(at, name)); at += len)
        if ((at == text->data || at[-1] == '\n') && at[len] == ' ') return strtod(at + len, NULL);
    fail_msg("there is no %s", name);
    return 0;
}

static bool has(const struct buf *text, const char *words)
{
    return strstr(text->data, words) != NULL;
}

static struct msg_replica_status replicas[2];
static struct msg_worker_status workers[2];

/* Every figure has another value, so that none can stand for another. */
static struct msg_status status(void)
{
    struct msg_status s = {.ready = true, .model = "m", .running = 3, .queued = 17};
    s.messages_dropped = 5;
    s.n_replicas = 1;
    s.replicas = replicas;
    replicas[0] = (struct msg_replica_status){.name = "a",
                                              .workers = workers,
                                              .state = "ready",
                                              .why = "",
                                              .generation = 7,
                                              .n_workers = 2,
                                              .pages_total = 100,
                                              .pages_free = 60,
                                              .steps = 1234,
                                              .wire_ns = 2500000000,
                                              .queue_ns = 1500000000,
                                              .cache = {.pages_cached = 22,
                                                        .pages_held = 40,
                                                        .positions_unused = 9,
                                                        .lookups = 31,
                                                        .hits = 13,
                                                        .tokens_saved = 4321,
                                                        .tokens_computed = 8765,
                                                        .evicted = 6,
                                                        .preemptions = 8}};
    for (uint32_t i = 0; i < 2; i++)
        workers[i] = (struct msg_worker_status){.name = i ? "w2" : "w1",
                                                .state = "ready",
                                                .isa = "avx2",
                                                .compute_ns = 1000000000 * (UINT64_C(11) + i),
                                                .idle_ns = 1000000000 * (UINT64_C(51) + i)};
    return s;
}

struct fixture {
    struct metrics *m;
    uint32_t port;
    struct counters *count;
};

static int open_fixture(void **state)
{
    static struct fixture f;
    struct errmsg em = {0};
    f.count = mem_zalloc(sizeof *f.count);
    *state = &f;
    return metrics_open("127.0.0.1", 0, &f.m, &f.port, &em);
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    metrics_close(f->m);
    mem_free(f->count);
    return 0;
}

static void test_equals_status(void **state)
{
    struct fixture *f = *state;
    struct msg_status s = status();
    struct buf text = {0};
    f->count->tokens = 777;
    f->count->embeddings = 61;
    f->count->embedding_tokens = 9876;
    f->count->ended[STATUS_OK] = 41;
    f->count->ended[STATUS_CANCELLED] = 2;
    metrics_publish(f->m, f->count, &s);
    request(f->port, "GET", "/metrics", &text);
    assert_true(has(&text, "HTTP/1.1 200"));
    assert_true(has(&text, "Content-Type: text/plain; version=0.0.4\r\n"));
    const struct {
        const char *name;
        double value;
    } want[] = {
        {"flotilla_ready", 1},
        {"flotilla_generation{replica=\"a\"}", 7},
        {"flotilla_steps_total{replica=\"a\"}", 1234},
        {"flotilla_step_wire_seconds_total{replica=\"a\"}", 2.5},
        {"flotilla_step_queue_seconds_total{replica=\"a\"}", 1.5},
        {"flotilla_stage_compute_seconds_total{replica=\"a\",stage=\"0\",worker=\"w1\"}", 11},
        {"flotilla_stage_compute_seconds_total{replica=\"a\",stage=\"1\",worker=\"w2\"}", 12},
        {"flotilla_stage_idle_seconds_total{replica=\"a\",stage=\"0\",worker=\"w1\"}", 51},
        {"flotilla_stage_idle_seconds_total{replica=\"a\",stage=\"1\",worker=\"w2\"}", 52},
        {"flotilla_answers_total{status=\"0\"}", 41},
        {"flotilla_answers_total{status=\"1\"}", 2},
        {"flotilla_tokens_total", 777},
        {"flotilla_embeddings_total", 61},
        {"flotilla_embedding_tokens_total", 9876},
        {"flotilla_requests{state=\"running\"}", 3},
        {"flotilla_requests{state=\"queued\"}", 17},
        {"flotilla_messages_dropped_total", 5},
        {"flotilla_kv_pages{replica=\"a\",state=\"free\"}",
         60 - 22}, /* each page is in one state */
        {"flotilla_kv_pages{replica=\"a\",state=\"cached\"}", 22},
        {"flotilla_kv_pages{replica=\"a\",state=\"held\"}", 40},
        {"flotilla_kv_positions_unused{replica=\"a\"}", 9},
        {"flotilla_prefix_lookups_total{replica=\"a\"}", 31},
        {"flotilla_prefix_hits_total{replica=\"a\"}", 13},
        {"flotilla_prefix_tokens_saved_total{replica=\"a\"}", 4321},
        {"flotilla_prefill_tokens_total{replica=\"a\"}", 8765},
        {"flotilla_pages_evicted_total{replica=\"a\"}", 6},
        {"flotilla_preemptions_total{replica=\"a\"}", 8},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        double got = value_of(&text, want[i].name);
        if (got != want[i].value) /* exact: whole numbers and halves */
            fail_msg("%s is %g, not %g", want[i].name, got, want[i].value);
    }
    buf_close(&text);
}

/* A replica's figures are told for each, by its name, under one head for the metric. */
static void test_two_replicas(void **state)
{
    struct fixture *f = *state;
    struct msg_status s = status();
    struct buf text = {0};
    s.n_replicas = 2;
    replicas[1] = (struct msg_replica_status){
        .name = "b", .state = "waiting", .why = "", .generation = 8, .pages_free = 70};
    metrics_publish(f->m, f->count, &s);
    request(f->port, "GET", "/metrics", &text);
    assert_true(value_of(&text, "flotilla_generation{replica=\"a\"}") == 7);
    assert_true(value_of(&text, "flotilla_generation{replica=\"b\"}") == 8);
    assert_true(value_of(&text, "flotilla_kv_pages{replica=\"b\",state=\"free\"}") == 70);
    assert_null(strstr(text.data, "windowed")); /* no layer is */
    replicas[1].windowed_total = 50;
    replicas[1].cache.windowed_cached = 20;
    replicas[1].cache.windowed_held = 7;
    metrics_publish(f->m, f->count, &s);
    request(f->port, "GET", "/metrics", &text);
    const char *name = "flotilla_kv_windowed_pages";
    const struct {
        const char *labels;
        double value;
    } want[] = {{"b\",state=\"free", 23},
                {"b\",state=\"cached", 20},
                {"b\",state=\"held", 7},
                {"a\",state=\"free", 0}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        char full[96];
        (void)snprintf(full, sizeof full, "%s{replica=\"%s\"}", name, want[i].labels);
        assert_true(value_of(&text, full) == want[i].value);
    }
    const char *head = strstr(text.data, "# TYPE flotilla_generation ");
    assert_non_null(head);
    assert_null(strstr(head + 1, "# TYPE flotilla_generation "));
    buf_close(&text);
}

/* Each bucket's count is the number of values that do not exceed its bound; the last has all. */
static void test_histogram(void **state)
{
    struct fixture *f = *state;
    struct msg_status s = status();
    struct buf text = {0};
    static const uint64_t values[] = {1,       1023,    1024,       1025,          2048,
                                      1 << 20, 1000000, 1000000000, 1000000000000, 299999999999};
    uint64_t n = sizeof values / sizeof values[0], sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        stats_record(&f->count->itl, values[i]);
        sum += values[i];
    }
    metrics_publish(f->m, f->count, &s);
    request(f->port, "GET", "/metrics", &text);
    uint32_t bounds = 0;
    const char *line = "flotilla_itl_seconds_bucket{le=\"";
    for (const char *at = text.data; (at = strstr(at, line));) {
        char *end;
        at += strlen(line);
        if (strncmp(at, "+Inf", 4) == 0) continue;
        double le = strtod(at, &end);
        uint64_t told = strtoull(end + 2, NULL, 10), want = 0;
        uint64_t le_ns = (uint64_t)(le * 1e9 + 0.5);
        for (uint64_t i = 0; i < n; i++) want += values[i] <= le_ns;
        if (told != want) fail_msg("le %.9g: %" PRIu64 ", not %" PRIu64, le, told, want);
        bounds++;
    }
    assert_true(bounds > 20);
    assert_true(value_of(&text, "flotilla_itl_seconds_bucket{le=\"+Inf\"}") == (double)n);
    assert_true(value_of(&text, "flotilla_itl_seconds_count") == (double)n);
    double told = value_of(&text, "flotilla_itl_seconds_sum"), want = (double)sum / 1e9;
    assert_true(told > want * (1 - 1e-8) && told < want * (1 + 1e-8));
    assert_true(value_of(&text, "flotilla_ttft_seconds_count") == 0);
    buf_close(&text);
}

static void test_methods(void **state)
{
    struct fixture *f = *state;
    struct msg_status s = status();
    struct buf text = {0}, head = {0};
    metrics_publish(f->m, f->count, &s);
    request(f->port, "GET", "/metrics", &text);
    request(f->port, "HEAD", "/metrics", &head);
    assert_true(has(&head, "HTTP/1.1 200"));
    assert_true(has(&head, "version=0.0.4"));
    const char *end = strstr(head.data, "\r\n\r\n");
    assert_non_null(end);
    assert_int_equal(strlen(end), 4); /* no body, but its length */
    char length[64];
    (void)snprintf(length, sizeof length, "Content-Length: %zu\r\n",
                   strlen(strstr(text.data, "\r\n\r\n") + 4));
    assert_true(has(&head, length));
    request(f->port, "POST", "/metrics", &text);
    assert_true(has(&text, "HTTP/1.1 405"));
    request(f->port, "GET", "/other", &text);
    assert_true(has(&text, "HTTP/1.1 404"));
    buf_close(&text);
    buf_close(&head);
}

enum { SILENT = 4 * HTTP_CONNECTIONS };

/* Four times as many connections as there is room for that say one of these and no more, and a
 * scrape now and then. Returns the milliseconds that took. */
static double scrape_among_silent(struct fixture *f, const char *const says[2])
{
    struct buf text = {0};
    static int fds[SILENT];
    uint64_t begun = clock_ns();
    for (int i = 0; i < SILENT; i++) {
        fds[i] = dial(f->port);
        const char *word = says[i % 2];
        if (*word) (void)send(fds[i], word, strlen(word), MSG_NOSIGNAL);
        if (i % 32 != 31) continue;
        request(f->port, "GET", "/metrics", &text);
        assert_true(has(&text, "flotilla_ready 1"));
    }
    struct pollfd first = {.fd = fds[0], .events = POLLIN};
    assert_int_equal(poll(&first, 1, WAIT_MS), 1); /* it was closed */
    double ms = (double)(clock_ns() - begun) / 1e6;
    for (int i = 0; i < SILENT; i++) (void)close(fds[i]);
    buf_close(&text);
    return ms;
}

/* A scrape is answered while they are open: the oldest of them was closed for it, and not after a
 * time-out of seconds. Only a round that took less shows that; a busy machine may need several. */
static void test_silent_connections(void **state)
{
    struct fixture *f = *state;
    struct msg_status s = status();
    static const char endless[] =
        "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\nx";
    static const char *const says[][2] = {{"", "GET /me"}, {endless, endless}};
    metrics_publish(f->m, f->count, &s);
    for (size_t k = 0; k < sizeof says / sizeof says[0]; k++) {
        bool quick = false;
        for (int i = 0; i < 5 && !quick; i++)
            quick = scrape_among_silent(f, says[k]) < HTTP_IDLE_S * 1000.0 * 0.8;
        assert_true(quick);
    }
}

static void test_labels(void **state)
{
    (void)state;
    char out[96];
    assert_string_equal(prom_label("a\"b\\c\nd", out, sizeof out), "a\\\"b\\\\c\\nd");
    /* Cut between characters and never inside an escape, whatever the size. */
    static const char *const texts[] = {"\xc3\xa4\xe2\x82\xac\xf0\x9f\xa6\x99\xc3\xa4", "\"\"\"\"",
                                        "\\\n\\\n"};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++)
        for (size_t size = 1; size < 20; size++) {
            (void)prom_label(texts[t], out, size);
            size_t n = strlen(out), at = 0;
            assert_true(n < size);
            while (at < n) {
                size_t used = utf8_char(out + at, n - at, NULL);
                assert_true(used > 0);
                if (out[at] == '\\') assert_true(at + 1 < n);
                at += used + (out[at] == '\\');
            }
        }
    /* Lone continuation, overlong, surrogate, beyond U+10FFFF, unfinished: none is UTF-8. */
    assert_string_equal(
        prom_label("\x80|\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80|\xe2\x82", out, sizeof out),
        "?|??|???|????|??");
}

/* A worker's name as it comes off the wire. */
static void test_names_from_the_wire(void **state)
{
    struct fixture *f = *state;
    struct msg_from_worker m = {.version = PROTO_VERSION, .type = FROM_HELLO, .instance = {1, 2}},
                           got;
    struct buf b = {0}, text = {0};
    struct arena a = {0};
    struct errmsg em = {0};
    (void)snprintf(m.hello.name, sizeof m.hello.name, "w\xed\xa0\x80\xe2\x82\xac\x1b[0m");
    wire_put_from_worker(&m, &b);
    assert_int_equal(wire_get_from_worker(b.data, b.len, &a, &got, &em), 0);
    assert_string_equal(got.hello.name, "w???\xe2\x82\xac?[0m");
    struct msg_status s = status();
    workers[0].name = "w\xed\xa0\x80"; /* whatever it is: the text stays UTF-8 */
    metrics_publish(f->m, f->count, &s);
    request(f->port, "GET", "/metrics", &text);
    for (size_t at = 0; at < text.len;) {
        size_t used = utf8_char(text.data + at, text.len - at, NULL);
        assert_true(used > 0);
        at += used;
    }
    buf_close(&text);
    buf_close(&b);
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_equals_status, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_two_replicas, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_histogram, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_methods, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_silent_connections, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_names_from_the_wire, open_fixture, close_fixture),
        cmocka_unit_test(test_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
