/* Both ways of reading a file, on the same extents. */
#include "common/io/ring.h"

#include "common/base/mem.h"
#include "common/base/rng.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FILE_BYTES 3000017u

static char path[] = "/tmp/flotilla-ring-XXXXXX";
static uint8_t *content;

struct sink {
    const struct extent *extents;
    unsigned seen[64];
    int fail_at;
};

static int take(void *arg, size_t idx, const uint8_t *data, struct errmsg *em)
{
    struct sink *s = arg;
    const struct extent *x = &s->extents[idx];
    assert_memory_equal(data, content + x->offset, (size_t)x->bytes);
    s->seen[idx]++;
    if ((int)idx == s->fail_at) return err_set(em, ERR_CANCELLED, "enough");
    return 0;
}

static const enum ring_mode modes[] = {RING_URING, RING_PREAD, RING_AUTO};

/* Extents at all alignments, touching the end; with the file in the page cache and not. */
static void test_extents(void **state)
{
    (void)state;
    struct rng rng = {5};
    struct extent x[64];
    for (int i = 0; i < 64; i++) {
        uint64_t bytes = 1 + rng_below(&rng, i % 3 ? 9000 : 500000);
        x[i] = (struct extent){rng_below(&rng, FILE_BYTES - bytes), bytes};
    }
    x[7] = (struct extent){FILE_BYTES - 1, 1};
    x[8] = (struct extent){0, FILE_BYTES};
    for (size_t m = 0; m < 3; m++)
        for (int cold = 0; cold < 2; cold++) {
            int fd = open(path, O_RDONLY);
            (void)fsync(fd);
            if (cold) (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            (void)close(fd);
            struct sink s = {.extents = x, .fail_at = -1};
            struct ring_file f = {.path = path, .mode = modes[m]};
            struct errmsg em = {0};
            int rc = ring_read(&f, x, 64, take, &s, &em);
            if (rc == ERR_UNSUPPORTED && modes[m] == RING_URING) {
                (void)printf("not tested here: %s\n", em.text);
                break;
            }
            assert_int_equal(rc, 0);
            for (int i = 0; i < 64; i++) assert_int_equal(s.seen[i], 1);
            assert_true(f.used_uring == (modes[m] != RING_PREAD) || modes[m] == RING_AUTO);
            assert_true(f.direct_bytes + f.cached_bytes > 0);
        }
}

static void test_errors(void **state)
{
    (void)state;
    for (size_t m = 1; m < 3; m++) {
        struct errmsg em = {0};
        struct extent beyond[] = {{0, 10}, {FILE_BYTES - 5, 12}};
        struct sink s = {.extents = beyond, .fail_at = -1};
        struct ring_file f = {.path = path, .mode = modes[m]};
        assert_int_equal(ring_read(&f, beyond, 2, take, &s, &em), ERR_FORMAT);
        assert_non_null(strstr(em.text, "7 bytes are missing"));
        assert_non_null(strstr(em.text, path));
        struct extent many[40];
        for (int i = 0; i < 40; i++) many[i] = (struct extent){(uint64_t)i * 7000, 6000};
        s = (struct sink){.extents = many, .fail_at = 3};
        assert_int_equal(ring_read(&f, many, 40, take, &s, &em), ERR_CANCELLED);
        assert_string_equal(em.text, "enough");
        struct extent huge[] = {{0, RING_EXTENT_BYTES_MAX + 1}};
        s = (struct sink){.extents = huge, .fail_at = -1};
        assert_int_equal(ring_read(&f, huge, 1, take, &s, &em), ERR_LIMIT);
        struct ring_file none = {.path = "/nonexistent/file", .mode = modes[m]};
        assert_int_equal(ring_read(&none, beyond, 1, take, &s, &em), ERR_NOTFOUND);
    }
}

static int make_file(void **state)
{
    (void)state;
    struct rng rng = {1};
    content = mem_alloc(FILE_BYTES);
    for (size_t i = 0; i < FILE_BYTES; i++) content[i] = (uint8_t)rng_u64(&rng);
    int fd = mkstemp(path);
    return write(fd, content, FILE_BYTES) == (ssize_t)FILE_BYTES && close(fd) == 0 ? 0 : -1;
}

static int drop_file(void **state)
{
    (void)state;
    mem_free(content);
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_extents),
                                       cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, make_file, drop_file);
}
