/* Both ways of reading a file, io_uring and pread, on the same extents; and the change from one to
 * the other when the kernel refuses the ring, even halfway. */
#include "common/io/ring.h"

#include "common/base/mem.h"
#include "common/base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FILE_BYTES 3000017u
#define ALIGN 4096u

static char path[] = "/tmp/flotilla-ring-XXXXXX";
static uint8_t *content;

/* ---- what goes wrong: linked with --wrap ---- */

static struct {
    int from;           /* entries into the kernel before it begins; -1: never */
    int setup, enter;   /* errno values */
    uint8_t opcode;     /* in place of a read's */
    unsigned short_len; /* bytes that a read may ask for; 0: all */
    int short_res;      /* bytes that a read says it has; 0: all */
    int reads;          /* reads to shorten or change; -1: all */
    int pread;          /* errno value */
} fault;
static int entered;

int __real_io_uring_queue_init(unsigned n, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned n, struct io_uring *ring, unsigned flags);
int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned n);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned n);
ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);

int __wrap_io_uring_queue_init(unsigned n, struct io_uring *ring, unsigned flags)
{
    return fault.setup ? -fault.setup : __real_io_uring_queue_init(n, ring, flags);
}

int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
    bool now = fault.from >= 0 && entered++ >= fault.from;
    if (now && fault.enter) return -fault.enter;
    for (unsigned i = ring->sq.sqe_head; now && i != ring->sq.sqe_tail; i++) {
        struct io_uring_sqe *sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];
        if (fault.reads == 0) break;
        if (fault.opcode) sqe->opcode = fault.opcode;
        if (fault.short_len && sqe->len > fault.short_len) sqe->len = fault.short_len;
        if (!fault.short_res) fault.reads -= fault.reads > 0;
    }
    int rc = __real_io_uring_submit_and_wait(ring, n);
    for (unsigned i = *ring->cq.khead; now && fault.short_res && i != *ring->cq.ktail; i++) {
        struct io_uring_cqe *cqe = &ring->cq.cqes[i & *ring->cq.kring_mask];
        if (fault.reads == 0 || cqe->res <= fault.short_res) continue;
        cqe->res = fault.short_res;
        fault.reads--;
    }
    return rc;
}

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    if (!fault.pread) return __real_pread(fd, to, n, at);
    errno = fault.pread;
    return -1;
}

static int no_fault(void **state)
{
    (void)state;
    memset(&fault, 0, sizeof fault);
    fault.from = -1;
    fault.reads = -1;
    entered = 0;
    return 0;
}

/* ---- extents and where they go ---- */

struct sink {
    const struct extent *extents;
    unsigned seen[64];
    int fail_at;
};

static int take(void *arg, size_t idx, const uint8_t *data, struct errmsg *em)
{
    struct sink *s = arg;
    const struct extent *x = &s->extents[idx];
    if (memcmp(data, content + x->offset, (size_t)x->bytes) != 0)
        fail_msg("extent %zu: other bytes", idx);
    s->seen[idx]++;
    if ((int)idx == s->fail_at) return err_set(em, ERR_CANCELLED, "enough");
    return 0;
}

/* At any alignment; two of them touch the end of the file. */
static void make_extents(struct extent x[static 64])
{
    struct rng rng = {5};
    for (int i = 0; i < 64; i++) {
        uint64_t bytes = 1 + rng_below(&rng, i % 3 ? 9000 : 500000);
        x[i] = (struct extent){rng_below(&rng, FILE_BYTES - bytes), bytes};
    }
    x[7] = (struct extent){FILE_BYTES - 1, 1};
    x[8] = (struct extent){0, FILE_BYTES};
}

static void set_cache(bool cold)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    (void)fsync(fd);
    if (cold) (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)close(fd);
}

static void need_uring(void)
{
    struct io_uring ring;
    int rc = __real_io_uring_queue_init(4, &ring, 0);
    if (rc < 0) {
        (void)printf("skipped: no io_uring here: %s\n", strerror(-rc));
        skip();
    }
    io_uring_queue_exit(&ring);
}

/* Reads all extents: each arrives once, as it is in the file. */
static struct ring_use read_extents(const struct extent x[static 64], enum ring_mode mode,
                                    bool cold)
{
    set_cache(cold);
    struct sink s = {.extents = x, .fail_at = -1};
    struct ring_use f = {.mode = mode};
    struct errmsg em = {0};
    if (ring_read(&f, path, x, 64, take, &s, &em) < 0) fail_msg("%s", em.text);
    for (int i = 0; i < 64; i++) assert_int_equal(s.seen[i], 1);
    assert_true(f.direct_bytes + f.cached_bytes > 0);
    return f;
}

static struct ring_use read_all(enum ring_mode mode, bool cold)
{
    struct extent x[64];
    make_extents(x);
    return read_extents(x, mode, cold);
}

static void test_uring(void **state)
{
    (void)state;
    need_uring();
    for (int cold = 0; cold < 2; cold++) {
        assert_true(read_all(RING_URING, cold).used_uring);
        assert_true(read_all(RING_AUTO, cold).used_uring);
    }
}

static void test_pread(void **state)
{
    (void)state;
    for (int cold = 0; cold < 2; cold++) {
        assert_false(read_all(RING_PREAD, cold).used_uring);
        fault.setup = EPERM;
        assert_false(read_all(RING_AUTO, cold).used_uring);
        no_fault(NULL);
    }
}

/* The ring is refused at its setup, at its first use, or after some reads went well: the rest comes
 * by pread, each extent once; RING_URING, which allows no pread, is an error. */
static void test_refused(void **state)
{
    (void)state;
    need_uring();
    for (int from = 0; from < 3; from++)
        for (int how = 0; how < 3; how++) {
            no_fault(NULL);
            fault.from = from;
            fault.setup = how == 0 ? ENOSYS : 0;
            fault.enter = how == 1 ? EPERM : 0;
            fault.opcode = how == 2 ? 255 : 0; /* an operation that no kernel knows */
            assert_false(read_all(RING_AUTO, true).used_uring);
            struct extent x[64];
            make_extents(x);
            set_cache(true);
            entered = 0;
            struct sink s = {.extents = x, .fail_at = -1};
            struct ring_use f = {.mode = RING_URING};
            struct errmsg em = {0};
            assert_int_equal(ring_read(&f, path, x, 64, take, &s, &em), ERR_UNSUPPORTED);
            assert_non_null(strstr(em.text, "io_uring"));
        }
}

/* A read that fails by pread too is an error of the file. */
static void test_broken_file(void **state)
{
    (void)state;
    struct extent x[64];
    make_extents(x);
    set_cache(true);
    struct sink s = {.extents = x, .fail_at = -1};
    struct ring_use f = {.mode = RING_AUTO};
    struct errmsg em = {0};
    fault.from = 1;
    fault.opcode = 255;
    fault.pread = EIO;
    assert_int_equal(ring_read(&f, path, x, 64, take, &s, &em), ERR_IO);
    assert_non_null(strstr(em.text, path));
}

/* The first reads end early, at a block's end or within one, and their rest is read. Only where the
 * rest would begin within a block is that extent read through the page cache; all others pass it
 * by, as before. */
static void test_short_reads(void **state)
{
    (void)state;
    need_uring();
    struct extent x[64];
    for (uint64_t i = 0; i < 64; i++) x[i] = (struct extent){i * 46001, 40000}; /* share no page */
    struct ring_use want = read_extents(x, RING_URING, true);
    if (want.direct_bytes == 0) {
        (void)printf("skipped: no direct reads here\n");
        skip();
    }
    const unsigned lengths[] = {ALIGN, 2 * ALIGN, 100, ALIGN + 1};
    for (int i = 0; i < 4; i++) {
        no_fault(NULL);
        fault.from = 0;
        fault.reads = 3;
        /* A direct read of a part of a block is an error: only its result can be short so. */
        if (lengths[i] % ALIGN)
            fault.short_res = (int)lengths[i];
        else
            fault.short_len = lengths[i];
        struct ring_use f = read_extents(x, RING_URING, true);
        assert_true(f.used_uring);
        assert_int_equal(fault.reads, 0);
        uint64_t through = lengths[i] % ALIGN ? 3 * x[0].bytes : 0;
        assert_int_equal(f.cached_bytes, want.cached_bytes + through);
    }
}

/* A read that returned as many bytes as its extent has, but began before it, is not whole. */
static void test_not_whole(void **state)
{
    (void)state;
    need_uring();
    for (unsigned before = 1; before < ALIGN; before += 819) {
        const struct extent x[] = {{10 * ALIGN + before, 2 * ALIGN}};
        struct sink s = {.extents = x, .fail_at = -1};
        struct ring_use f = {.mode = RING_URING};
        struct errmsg em = {0};
        set_cache(true);
        no_fault(NULL);
        fault.from = 0;
        fault.reads = 1;
        fault.short_len = 2 * ALIGN;
        if (ring_read(&f, path, x, 1, take, &s, &em) < 0) fail_msg("%s", em.text);
        assert_int_equal(s.seen[0], 1);
    }
}

static void test_errors(void **state)
{
    (void)state;
    static const enum ring_mode modes[] = {RING_PREAD, RING_AUTO};
    for (size_t m = 0; m < 2; m++) {
        struct errmsg em = {0};
        struct extent beyond[] = {{0, 10}, {FILE_BYTES - 5, 12}};
        struct sink s = {.extents = beyond, .fail_at = -1};
        struct ring_use f = {.mode = modes[m]};
        assert_int_equal(ring_read(&f, path, beyond, 2, take, &s, &em), ERR_FORMAT);
        assert_non_null(strstr(em.text, "7 bytes are missing"));
        assert_non_null(strstr(em.text, path));
        struct extent many[40];
        for (int i = 0; i < 40; i++) many[i] = (struct extent){(uint64_t)i * 7000, 6000};
        s = (struct sink){.extents = many, .fail_at = 3};
        assert_int_equal(ring_read(&f, path, many, 40, take, &s, &em), ERR_CANCELLED);
        assert_string_equal(em.text, "enough");
        struct extent huge[] = {{0, RING_EXTENT_BYTES_MAX + 1}};
        s = (struct sink){.extents = huge, .fail_at = -1};
        assert_int_equal(ring_read(&f, path, huge, 1, take, &s, &em), ERR_LIMIT);
        struct ring_use none = {.mode = modes[m]};
        assert_int_equal(ring_read(&none, "/nonexistent/file", beyond, 1, take, &s, &em),
                         ERR_NOTFOUND);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_uring, no_fault),
        cmocka_unit_test_setup(test_pread, no_fault),
        cmocka_unit_test_setup(test_refused, no_fault),
        cmocka_unit_test_setup(test_broken_file, no_fault),
        cmocka_unit_test_setup(test_short_reads, no_fault),
        cmocka_unit_test_setup(test_not_whole, no_fault),
        cmocka_unit_test_setup(test_errors, no_fault),
    };
    return cmocka_run_group_tests(tests, make_file, drop_file);
}
