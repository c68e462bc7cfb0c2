/* Buffers are page-aligned and a little larger than the largest extent, because an O_DIRECT read
 * starts and ends on ALIGN boundaries around the extent. A slot is one buffer and one read:
 *
 *   free --take--> (cached: sink at once) --or--> in flight --completion--> sink --> free
 *                                                     ^---- short read: the rest ---'
 *
 * A kernel may give a ring and refuse its use: system calls that a container's filter forbids, an
 * operation that it does not know. Whatever goes wrong with the ring, what it has not delivered is
 * read by pread; only an error of pread is an error of the file. */
#include "common/io/ring.h"

#include "common/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN 4096u

struct slot {
    uint8_t *buf;
    size_t idx;     /* extent */
    uint64_t start; /* file offset of buf[0] */
    uint64_t want;  /* bytes of buf to fill */
    uint64_t have;
    bool direct;
    bool busy;   /* in flight */
    bool undone; /* given up by the ring, not delivered */
};

struct reading {
    struct ring_use *use;
    const char *path;
    const struct extent *extents;
    size_t n, next;
    source_sink_fn sink;
    void *sink_arg;
    int fd, fd_direct;    /* fd_direct is -1 where O_DIRECT is refused */
    bool direct, may_ask; /* direct reads work; mincore tells what is cached */
    struct slot slots[RING_DEPTH];
    uint8_t *buffers; /* of all slots */
    size_t buffers_bytes;
    unsigned in_flight;
    int refused; /* the errno for which the ring is not used any more; 0: it is used */
    struct errmsg *em;
};

static int io_error(struct reading *r, const struct extent *x, int errno_value)
{
    return err_set(r->em, err_from_errno(errno_value),
                   "%s: read of %" PRIu64 " bytes at %" PRIu64 ": %s", r->path, x->bytes, x->offset,
                   strerror(errno_value));
}

static int cut_error(struct reading *r, const struct extent *x, uint64_t have)
{
    return err_set(r->em, ERR_FORMAT,
                   "%s: the file ends inside bytes %" PRIu64 "+%" PRIu64 " (%" PRIu64
                   " bytes are missing): was it cut?",
                   r->path, x->offset, x->bytes, x->bytes - have);
}

/* Whether the page cache holds the whole extent. The mapping is never touched, only asked about: a
 * read with RWF_NOWAIT would start read-ahead of what it does not find. */
static bool is_cached(const struct reading *r, const struct extent *x)
{
    uint8_t resident[RING_EXTENT_BYTES_MAX / ALIGN + 2];
    if (!r->may_ask) return false;
    uint64_t start = x->offset / ALIGN * ALIGN, bytes = x->offset + x->bytes - start;
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, r->fd, (off_t)start);
    if (map == MAP_FAILED) return false;
    bool all = mincore(map, (size_t)bytes, resident) == 0;
    for (uint64_t i = 0; i < (bytes + ALIGN - 1) / ALIGN && all; i++) all = resident[i] & 1;
    (void)munmap(map, (size_t)bytes);
    return all;
}

/* The extent's bytes straight from the page cache, if all of them are there. */
static bool read_cached(struct reading *r, struct slot *s, const struct extent *x)
{
    if (!is_cached(r, x)) return false;
    ssize_t n = pread(r->fd, s->buf, (size_t)x->bytes, (off_t)x->offset);
    return n >= 0 && (uint64_t)n == x->bytes;
}

static int deliver(struct reading *r, const struct slot *s)
{
    const struct extent *x = &r->extents[s->idx];
    if (s->direct)
        r->use->direct_bytes += s->have;
    else
        r->use->cached_bytes += x->bytes;
    return r->sink(r->sink_arg, s->idx, s->buf + (x->offset - s->start), r->em);
}

static void aim(struct reading *r, struct slot *s, size_t idx)
{
    const struct extent *x = &r->extents[idx];
    s->idx = idx;
    s->direct = r->direct;
    s->start = s->direct ? x->offset / ALIGN * ALIGN : x->offset;
    uint64_t end = x->offset + x->bytes;
    s->want = (s->direct ? (end + ALIGN - 1) / ALIGN * ALIGN : end) - s->start;
    s->have = 0;
}

/* Whether the extent itself is whole; an O_DIRECT read ends short at the end of the file. */
static bool whole(const struct reading *r, const struct slot *s)
{
    const struct extent *x = &r->extents[s->idx];
    return s->start + s->have >= x->offset + x->bytes;
}

static int open_buffers(struct reading *r, unsigned n)
{
    uint64_t most = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->extents[i].bytes > most) most = r->extents[i].bytes;
    if (most > RING_EXTENT_BYTES_MAX)
        return err_set(r->em, ERR_LIMIT, "%s: a read of %" PRIu64 " bytes, the limit is %" PRIu64,
                       r->path, most, RING_EXTENT_BYTES_MAX);
    size_t bytes = (size_t)(most / ALIGN + 3) * ALIGN;
    r->buffers_bytes = n * bytes;
    r->buffers = mem_pages(r->buffers_bytes);
    if (!r->buffers) return err_set(r->em, ERR_NOMEM, "read buffers");
    for (unsigned i = 0; i < n; i++) r->slots[i].buf = r->buffers + i * bytes;
    return 0;
}

/* ---- io_uring ---- */

static void submit(struct reading *r, struct io_uring *ring, struct slot *s)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring); /* never NULL: depth = slots */
    io_uring_prep_read(sqe, s->direct ? r->fd_direct : r->fd, s->buf + s->have,
                       (unsigned)(s->want - s->have), s->start + s->have);
    io_uring_sqe_set_data(sqe, s);
    s->busy = true;
}

/* Fills free slots: cached extents are delivered here and now. */
static int fill(struct reading *r, struct io_uring *ring)
{
    for (unsigned i = 0; i < RING_DEPTH && r->next < r->n;) {
        struct slot *s = &r->slots[i];
        if (s->busy) {
            i++;
            continue;
        }
        const struct extent *x = &r->extents[r->next];
        if (read_cached(r, s, x)) {
            *s = (struct slot){.buf = s->buf, .idx = r->next++, .start = x->offset};
            int rc = deliver(r, s);
            if (rc < 0) return rc;
            continue;
        }
        aim(r, s, r->next++);
        submit(r, ring, s);
        r->in_flight++;
    }
    return 0;
}

static int complete(struct reading *r, struct io_uring *ring, struct slot *s, int res)
{
    const struct extent *x = &r->extents[s->idx];
    s->busy = false;
    r->in_flight--;
    if (res == -EINVAL && s->direct) { /* a file system that takes the flag but not the read */
        r->direct = false;
        aim(r, s, s->idx);
        res = 0;
    } else if (res == -EINTR || res == -EAGAIN) {
        res = 0;
    } else if (res < 0) { /* absent or forbidden, or the file's error, which pread will meet too */
        r->refused = -res;
        s->undone = true;
        return 0;
    } else if (res == 0) {
        uint64_t at = s->start + s->have;
        return cut_error(r, x, at > x->offset ? at - x->offset : 0);
    }
    s->have += (uint64_t)res;
    if (whole(r, s)) return deliver(r, s);
    if (s->direct && s->have % ALIGN) { /* the rest would start unaligned: read it buffered */
        s->direct = false;
        s->start = x->offset;
        s->want = x->bytes;
        s->have = 0;
    }
    submit(r, ring, s);
    r->in_flight++;
    return 0;
}

/* The kernel owns the buffers of reads in flight: waits for all of them, also after an error.
 * False: the wait failed, and the kernel may still write to the buffers. */
static bool drain(struct reading *r, struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    int rc;
    while ((rc = io_uring_submit(ring)) == -EINTR) continue;
    r->in_flight -= io_uring_sq_ready(ring); /* what the kernel did not take, it does not own */
    while (r->in_flight) {
        rc = io_uring_wait_cqe(ring, &cqe);
        if (rc == -EINTR) continue; /* a signal, or a process that was stopped and goes on */
        if (rc < 0) return false;
        io_uring_cqe_seen(ring, cqe);
        r->in_flight--;
    }
    return true;
}

/* Reads until all is delivered or the ring is refused; `undone` then marks what was in flight. */
static int run_uring(struct reading *r, struct io_uring *ring)
{
    int rc = fill(r, ring);
    while (rc == 0 && r->in_flight && !r->refused) {
        struct io_uring_cqe *cqe;
        int n = io_uring_submit_and_wait(ring, 1);
        if (n == -EINTR) continue;
        if (n < 0) r->refused = -n;
        while (rc == 0 && !r->refused && io_uring_peek_cqe(ring, &cqe) == 0) {
            struct slot *s = io_uring_cqe_get_data(cqe);
            int res = cqe->res;
            io_uring_cqe_seen(ring, cqe);
            rc = complete(r, ring, s, res);
        }
        if (rc == 0 && !r->refused) rc = fill(r, ring);
    }
    for (unsigned i = 0; i < RING_DEPTH; i++) r->slots[i].undone |= r->slots[i].busy;
    if (!drain(r, ring)) r->buffers = NULL; /* never freed */
    return rc;
}

/* ---- pread ---- */

static int pread_extent(struct reading *r, struct slot *s, size_t idx)
{
    const struct extent *x = &r->extents[idx];
    *s = (struct slot){.buf = s->buf, .idx = idx, .start = x->offset};
    while (s->have < x->bytes) {
        ssize_t n = pread(r->fd, s->buf + s->have, (size_t)(x->bytes - s->have),
                          (off_t)(x->offset + s->have));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error(r, x, errno);
        if (n == 0) return cut_error(r, x, s->have);
        s->have += (uint64_t)n;
    }
    return deliver(r, s);
}

/* All that is left. */
static int run_pread(struct reading *r)
{
    int rc = r->buffers ? 0 : open_buffers(r, RING_DEPTH);
    for (unsigned i = 0; i < RING_DEPTH && rc == 0; i++)
        if (r->slots[i].undone) rc = pread_extent(r, &r->slots[i], r->slots[i].idx);
    while (rc == 0 && r->next < r->n) rc = pread_extent(r, &r->slots[0], r->next++);
    return rc;
}

/* Whether mincore tells the truth: since Linux 5.2 it calls all of a file cached for a process that
 * neither owns the file nor may write to it. */
static bool may_ask(const struct reading *r)
{
    struct stat st;
    return fstat(r->fd, &st) == 0 &&
           (st.st_uid == geteuid() || faccessat(AT_FDCWD, r->path, W_OK, AT_EACCESS) == 0);
}

static int run(struct reading *r)
{
    struct io_uring ring;
    int rc = open_buffers(r, RING_DEPTH);
    if (rc < 0) return rc;
    r->refused = r->use->mode == RING_PREAD ? ENOSYS : -io_uring_queue_init(RING_DEPTH, &ring, 0);
    if (!r->refused) {
        r->fd_direct = open(r->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        r->direct = r->fd_direct >= 0;
        r->may_ask = may_ask(r);
        rc = run_uring(r, &ring);
        io_uring_queue_exit(&ring);
        if (r->fd_direct >= 0) (void)close(r->fd_direct);
    }
    r->use->used_uring = !r->refused;
    if (rc == 0 && r->refused && r->use->mode == RING_URING)
        return err_set(r->em, ERR_UNSUPPORTED, "io_uring: %s", strerror(r->refused));
    return rc == 0 && r->refused ? run_pread(r) : rc;
}

int ring_read(void *ctx, const char *path, const struct extent *extents, size_t n_extents,
              source_sink_fn sink, void *sink_arg, struct errmsg *em)
{
    struct ring_use *use = ctx;
    struct reading *r = mem_zalloc(sizeof *r);
    *r = (struct reading){.use = use,
                          .path = path,
                          .extents = extents,
                          .n = n_extents,
                          .sink = sink,
                          .sink_arg = sink_arg,
                          .fd_direct = -1,
                          .em = em};
    use->direct_bytes = use->cached_bytes = 0;
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    /* No read-ahead: it would fetch what lies behind the slice. */
    if (r->fd >= 0) (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_RANDOM);
    int rc =
        r->fd < 0 ? err_set(em, err_from_errno(errno), "%s: %s", path, strerror(errno)) : run(r);
    if (r->fd >= 0) (void)close(r->fd);
    mem_pages_free(r->buffers, r->buffers_bytes);
    mem_free(r);
    return rc;
}
