/* File layout: "GGUF", u32 version, u64 tensor count, u64 key count, the keys (string, u32 type,
 * value), the tensor table (string, u32 n_dims, u64 dims[], u32 type, u64 offset), padding to the
 * alignment, tensor data. A string is a u64 length and its bytes. */
#include "common/engine/gguf.h"

#include "common/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

/* A cursor that ran out means either a longer header than was read so far or a cut file. */
static int short_header(const struct cursor *c, const char *what, struct errmsg *em)
{
    return err_set(em, ERR_AGAIN, "%s ends beyond the file's end (at byte %zu)", what, c->pos);
}

static int parse_array(struct cursor *c, struct meta_kv *kv, struct errmsg *em)
{
    uint32_t item_type = cursor_u32(c);
    kv->n_items = cursor_u64(c);
    if (c->bad) return short_header(c, "an array", em);
    if (item_type >= META_N_TYPES || item_type == META_ARRAY)
        return err_set(em, ERR_FORMAT, "array of unknown or nested type %" PRIu32 " at byte %zu",
                       item_type, c->pos);
    kv->item_type = (enum meta_type)item_type;
    kv->data = c->data + c->pos;
    size_t start = c->pos;
    if (item_type == META_STRING) {
        if (kv->n_items > GGUF_HEADER_BYTES_MAX / 8)
            return err_set(em, ERR_FORMAT, "array of %" PRIu64 " strings at byte %zu", kv->n_items,
                           start);
        for (uint64_t i = 0; i < kv->n_items; i++) {
            const char *s;
            size_t n;
            if (!meta_next_string(c, &s, &n)) return short_header(c, "a string array", em);
        }
    } else {
        uint32_t width = meta_type_bytes(kv->item_type);
        if (kv->n_items > GGUF_HEADER_BYTES_MAX / width)
            return err_set(em, ERR_FORMAT, "array of %" PRIu64 " items at byte %zu", kv->n_items,
                           start);
        if (!cursor_take(c, kv->n_items * width)) return short_header(c, "an array", em);
    }
    kv->data_bytes = c->pos - start;
    return 0;
}

static int parse_kv(struct gguf *g, struct cursor *c, struct meta_kv *kv, struct errmsg *em)
{
    size_t start = c->pos;
    uint64_t key_len = cursor_u64(c);
    if (!c->bad && (key_len == 0 || key_len > GGUF_NAME_BYTES_MAX))
        return err_set(em, ERR_FORMAT, "key at byte %zu: length %" PRIu64 " is not in 1..%u", start,
                       key_len, GGUF_NAME_BYTES_MAX);
    kv->key = (const char *)cursor_take(c, key_len);
    uint32_t type = cursor_u32(c);
    if (c->bad) return short_header(c, "the metadata", em);
    kv->key_len = (uint32_t)key_len;
    if (type >= META_N_TYPES)
        return err_set(em, ERR_FORMAT, "key '%.*s' at byte %zu: unknown type %" PRIu32,
                       (int)key_len, kv->key, start, type);
    kv->type = kv->item_type = (enum meta_type)type;
    kv->n_items = 1;
    int rc = 0;
    if (type == META_ARRAY) {
        rc = parse_array(c, kv, em);
    } else if (type == META_STRING) {
        kv->data_bytes = cursor_u64(c);
        kv->data = cursor_take(c, kv->data_bytes);
    } else {
        kv->data_bytes = meta_type_bytes(kv->type);
        kv->data = cursor_take(c, kv->data_bytes);
    }
    if (rc == 0 && c->bad) rc = short_header(c, "the value", em);
    if (rc < 0) return err_wrap(em, rc, "key '%.*s'", (int)key_len, kv->key);
    if (!smap_put(&g->meta.by_key, kv->key, kv->key_len, (uint32_t)(kv - g->meta.kvs)))
        return err_set(em, ERR_FORMAT, "key '%.*s' at byte %zu: appears twice", (int)key_len,
                       kv->key, start);
    return 0;
}

static int tensor_size(struct weights_tensor *t, struct errmsg *em)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0 || t->dims[i] > INT64_MAX)
            return err_set(em, ERR_FORMAT, "dimension %" PRIu32 " is %" PRIu64, i, t->dims[i]);
        if (__builtin_mul_overflow(n, t->dims[i], &n) || n > INT64_MAX)
            return err_set(em, ERR_FORMAT, "the product of its dimensions overflows");
    }
    const struct qtype_info *q = qtype_info((uint32_t)t->type);
    if (!q) return err_set(em, ERR_FORMAT, "unknown type %d", (int)t->type);
    if (t->dims[0] % q->block)
        return err_set(em, ERR_FORMAT, "row length %" PRIu64 " is not a multiple of %s's block %u",
                       t->dims[0], q->name, q->block);
    if (__builtin_mul_overflow(n / q->block, (uint64_t)q->bytes, &t->bytes))
        return err_set(em, ERR_FORMAT, "its size in bytes overflows");
    return 0;
}

static int parse_tensor(struct gguf *g, struct cursor *c, struct weights_tensor *t, char **name_at,
                        struct errmsg *em)
{
    size_t start = c->pos;
    uint64_t len = cursor_u64(c);
    if (!c->bad && (len == 0 || len > GGUF_NAME_BYTES_MAX))
        return err_set(em, ERR_FORMAT,
                       "tensor name at byte %zu: length %" PRIu64 " is not in 1..%u", start, len,
                       GGUF_NAME_BYTES_MAX);
    const uint8_t *name = cursor_take(c, len);
    t->n_dims = cursor_u32(c);
    if (c->bad) return short_header(c, "the tensor table", em);
    memcpy(*name_at, name, (size_t)len);
    (*name_at)[len] = 0;
    t->name = *name_at;
    *name_at += len + 1;
    if (strlen(t->name) != len)
        return err_set(em, ERR_FORMAT, "tensor name at byte %zu: holds a NUL", start);
    if (t->n_dims == 0 || t->n_dims > 4)
        return err_set(em, ERR_FORMAT, "tensor '%s' at byte %zu: %" PRIu32 " dimensions (1..4)",
                       t->name, start, t->n_dims);
    for (uint32_t i = 0; i < 4; i++) t->dims[i] = i < t->n_dims ? cursor_u64(c) : 1;
    t->type = (enum qtype)cursor_u32(c);
    t->offset = cursor_u64(c);
    if (c->bad) return short_header(c, "the tensor table", em);
    int rc = tensor_size(t, em);
    if (rc == 0 && t->offset % g->alignment)
        rc = err_set(em, ERR_FORMAT,
                     "data offset %" PRIu64 " is not a multiple of the alignment %" PRIu32,
                     t->offset, g->alignment);
    if (rc == 0 && !smap_put(&g->by_name, t->name, (size_t)len, (uint32_t)(t - g->tensors)))
        rc = err_set(em, ERR_FORMAT, "appears twice");
    return rc < 0 ? err_wrap(em, rc, "tensor '%s' at byte %zu", t->name, start) : 0;
}

/* Checks offsets and sizes, and makes offsets absolute, now that the header's end is known. */
static int place_tensors(struct gguf *g, struct errmsg *em)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct weights_tensor *t = &g->tensors[i];
        uint64_t room = g->file_bytes - g->header_bytes;
        if (t->offset > room || t->bytes > room - t->offset)
            return err_set(em, ERR_FORMAT,
                           "tensor '%s': needs bytes %" PRIu64 "+%" PRIu64 " of the data part, "
                           "which has %" PRIu64 " (%" PRIu64 " bytes are missing)",
                           t->name, t->offset, t->bytes, room,
                           t->offset > room ? t->bytes + (t->offset - room)
                                            : t->bytes - (room - t->offset));
        t->offset += g->header_bytes;
    }
    return 0;
}

static int read_alignment(struct gguf *g, struct errmsg *em)
{
    g->alignment = 32;
    int rc = meta_get_u32(&g->meta, "general.alignment", &g->alignment, em);
    if (rc < 0 && rc != ERR_NOTFOUND) return rc;
    uint32_t a = g->alignment;
    if (a < 8 || a > 1u << 20 || (a & (a - 1)))
        return err_set(em, ERR_FORMAT,
                       "key 'general.alignment': %" PRIu32 " is not a power of two in 8..1048576",
                       a);
    return 0;
}

static int parse_counts(struct gguf *g, struct cursor *c, struct errmsg *em)
{
    const uint8_t *magic = cursor_take(c, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return err_set(em, ERR_FORMAT, "not a GGUF file (no magic at byte 0)");
    uint32_t version = cursor_u32(c);
    if (c->bad) return short_header(c, "the version", em);
    if (version != 2 && version != 3)
        return err_set(em, version & 0xffff ? ERR_UNSUPPORTED : ERR_FORMAT,
                       "GGUF version %" PRIu32 "%s (2 and 3 are read)", version,
                       version && !(version & 0xffff) ? ", a big-endian file" : "");
    uint64_t n_tensors = cursor_u64(c), n_kvs = cursor_u64(c);
    if (c->bad) return short_header(c, "the counts", em);
    if (n_tensors > GGUF_TENSORS_MAX || n_kvs > GGUF_KEYS_MAX)
        return err_set(em, ERR_LIMIT,
                       "%" PRIu64 " tensors and %" PRIu64 " keys at byte 8: the "
                       "limits are %u and %u",
                       n_tensors, n_kvs, GGUF_TENSORS_MAX, GGUF_KEYS_MAX);
    g->n_tensors = (size_t)n_tensors;
    g->meta.n = (size_t)n_kvs;
    return 0;
}

/* Parses g->header. ERR_AGAIN: the bytes end before the header does. */
static int parse(struct gguf *g, size_t size, struct errmsg *em)
{
    struct cursor c = {.data = g->header, .size = size};
    int rc = parse_counts(g, &c, em);
    if (rc < 0) return rc;
    g->meta.kvs = mem_try(g->meta.n * sizeof *g->meta.kvs);
    g->tensors = mem_try(g->n_tensors * sizeof *g->tensors);
    if (!g->meta.kvs || !g->tensors || smap_reserve(&g->meta.by_key, g->meta.n) < 0 ||
        smap_reserve(&g->by_name, g->n_tensors) < 0)
        return err_set(em, ERR_NOMEM, "%zu tensors and %zu keys", g->n_tensors, g->meta.n);
    memset(g->meta.kvs, 0, g->meta.n * sizeof *g->meta.kvs);
    memset(g->tensors, 0, g->n_tensors * sizeof *g->tensors);
    for (size_t i = 0; i < g->meta.n; i++)
        if ((rc = parse_kv(g, &c, &g->meta.kvs[i], em)) < 0) return rc;
    if ((rc = read_alignment(g, em)) < 0) return rc;
    /* A name and its NUL need no more room than the name and its length in the file. */
    g->names = mem_try(cursor_left(&c) + 1);
    if (!g->names) return err_set(em, ERR_NOMEM, "tensor names");
    char *name_at = g->names;
    for (size_t i = 0; i < g->n_tensors; i++)
        if ((rc = parse_tensor(g, &c, &g->tensors[i], &name_at, em)) < 0) return rc;
    g->parsed_bytes = c.pos;
    g->header_bytes = (c.pos + g->alignment - 1) / g->alignment * g->alignment;
    if (g->header_bytes > g->file_bytes) {
        if (g->n_tensors) return short_header(&c, "the header", em);
        g->header_bytes = c.pos; /* a vocabulary file may end without padding */
    }
    return place_tensors(g, em);
}

static void reset(struct gguf *g)
{
    meta_close(&g->meta);
    mem_free(g->tensors);
    mem_free(g->names);
    smap_close(&g->by_name);
    *g = (struct gguf){.header = g->header, .file_bytes = g->file_bytes};
}

void gguf_close(struct gguf *g)
{
    reset(g);
    mem_free(g->header);
    *g = (struct gguf){0};
}

int gguf_parse(const uint8_t *data, size_t size, uint64_t file_bytes, struct gguf *ret,
               struct errmsg *em)
{
    struct gguf g = {.file_bytes = file_bytes, .header = mem_try(size)};
    int rc = g.header ? 0 : err_set(em, ERR_NOMEM, "header of %zu bytes", size);
    if (rc == 0) {
        if (size) memcpy(g.header, data, size);
        rc = parse(&g, size, em);
    }
    if (rc < 0) {
        gguf_close(&g);
        return rc == ERR_AGAIN ? ERR_FORMAT : rc;
    }
    *ret = g;
    return 0;
}

/* Extends the header in memory to `want` bytes of the file. */
static int read_more(int fd, struct gguf *g, size_t have, size_t want, struct errmsg *em)
{
    uint8_t *bigger = mem_try(want);
    if (!bigger) return err_set(em, ERR_NOMEM, "header of %zu bytes", want);
    if (have) memcpy(bigger, g->header, have);
    mem_free(g->header);
    g->header = bigger;
    while (have < want) {
        ssize_t n = pread(fd, g->header + have, want - have, (off_t)have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_set(em, ERR_IO, "read at byte %zu: %s", have, strerror(errno));
        if (n == 0) return err_set(em, ERR_FORMAT, "the file was cut while it was read");
        have += (size_t)n;
    }
    return 0;
}

int gguf_open(const char *path, struct gguf *ret, struct errmsg *em)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us up */
    if (fd < 0) return err_set(em, err_from_errno(errno), "%s: %s", path, strerror(errno));
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* the header only, no read-ahead behind it */
    struct gguf g = {0};
    struct stat st;
    int rc = 0;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) rc = err_set(em, ERR_IO, "not a regular file");
    g.file_bytes = rc == 0 ? (uint64_t)st.st_size : 0;
    /* Most headers fit the first read; a large vocabulary takes a few more, each twice as long. */
    size_t have = 0, want = (size_t)1 << 20;
    while (rc == 0) {
        if (want > g.file_bytes) want = (size_t)g.file_bytes;
        rc = read_more(fd, &g, have, want, em);
        if (rc < 0) break;
        have = want;
        rc = parse(&g, have, em);
        if (rc == 0) break;
        if (rc != ERR_AGAIN || have == g.file_bytes) {
            rc = rc == ERR_AGAIN ? ERR_FORMAT : rc;
        } else if (have >= GGUF_HEADER_BYTES_MAX) {
            rc = err_set(em, ERR_LIMIT, "the header is longer than %" PRIu64 " bytes",
                         GGUF_HEADER_BYTES_MAX);
        } else {
            rc = 0;
            want = have * 2;
            reset(&g);
        }
    }
    (void)close(fd);
    if (rc < 0) {
        gguf_close(&g);
        return err_wrap(em, rc, "%s", path);
    }
    *ret = g;
    return 0;
}
