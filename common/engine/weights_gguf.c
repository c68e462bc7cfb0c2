/* A model's directory from GGUF files: one file, or the parts that gguf-split has cut a model into.
 * All parts say how many they are (split.count), which they are (split.no, from 0) and how many
 * tensors they have together (split.tensors.count). Part 0 has the model's metadata. Part i of n is
 * named PREFIX-iiiii-of-nnnnn.gguf, i from 1, and that is how the others are found. */
#include "common/engine/gguf.h"
#include "common/engine/weights_dir.h"

#include "common/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY_COUNT "split.count"
#define KEY_NO "split.no"
#define KEY_TENSORS "split.tensors.count"

#define SUFFIX_BYTES (sizeof "-00001-of-00002.gguf" - 1)

/* The open headers, in the order of the parts; `format` of the directory. */
struct parts {
    struct gguf *files; /* n, zeroed until they are read */
    uint32_t n;
};

/* What a part says of the whole. */
struct split {
    uint32_t no, count, tensors;
};

static void close_parts(void *format)
{
    struct parts *p = format;
    for (uint32_t i = 0; i < p->n; i++) gguf_close(&p->files[i]);
    mem_free(p->files);
    mem_free(p);
}

/* Room for n files in the directory, all empty. */
static int open_room(struct weights *w, uint32_t n, struct errmsg *em)
{
    struct parts *p = mem_zalloc(sizeof *p);
    w->format = p;
    w->close_format = close_parts;
    p->files = mem_try(n * sizeof *p->files);
    w->files = mem_try(n * sizeof *w->files);
    if (!p->files || !w->files) return err_set(em, ERR_NOMEM, "a list of %" PRIu32 " files", n);
    memset(p->files, 0, n * sizeof *p->files);
    memset(w->files, 0, n * sizeof *w->files);
    p->n = w->n_files = n;
    return 0;
}

/* ---- several files ---- */

static int read_split(const struct gguf *g, struct split *ret, struct errmsg *em)
{
    int rc = meta_get_u32(&g->meta, KEY_COUNT, &ret->count, em);
    if (rc == 0) rc = meta_get_u32(&g->meta, KEY_NO, &ret->no, em);
    if (rc == 0) rc = meta_get_u32(&g->meta, KEY_TENSORS, &ret->tensors, em);
    return rc == ERR_NOTFOUND ? ERR_FORMAT : rc;
}

/* How many files the model has that this header belongs to. */
static int count_files(const struct gguf *g, uint32_t *ret, struct errmsg *em)
{
    uint32_t n = 1;
    int rc = meta_get_u32(&g->meta, KEY_COUNT, &n, em);
    if (rc < 0 && rc != ERR_NOTFOUND) return rc;
    if (n > WEIGHTS_FILES_MAX)
        return err_set(em, ERR_LIMIT, "key '" KEY_COUNT "' is %" PRIu32 ", the limit is %u", n,
                       WEIGHTS_FILES_MAX);
    *ret = n ? n : 1;
    return 0;
}

/* The path of part `no`, in the folder and with the prefix of `path`, which is a part's too. */
static char *part_path(const char *path, uint32_t no, uint32_t count)
{
    char suffix[32];
    size_t prefix = strlen(path) - SUFFIX_BYTES;
    (void)snprintf(suffix, sizeof suffix, "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", no + 1, count);
    char *p = mem_alloc(prefix + sizeof suffix);
    memcpy(p, path, prefix);
    memcpy(p + prefix, suffix, strlen(suffix) + 1);
    return p;
}

/* Whether `path` is what part `no` of `count` is called. */
static bool is_named(const char *path, uint32_t no, uint32_t count)
{
    if (strlen(path) <= SUFFIX_BYTES) return false;
    char *right = part_path(path, no, count);
    bool is = strcmp(right, path) == 0;
    mem_free(right);
    return is;
}

/* Part `no` must say that it is, and of the same whole as the file that was named. */
static int check_part(const struct weights *w, uint32_t no, const struct split *whole,
                      const char *named, struct errmsg *em)
{
    const char *path = w->files[no].path;
    struct split s;
    int rc = read_split(&((struct parts *)w->format)->files[no], &s, em);
    if (rc < 0) return err_wrap(em, rc, "%s", path);
    if (s.count != whole->count)
        return err_set(em, ERR_FORMAT,
                       "%s: key '" KEY_COUNT "' is %" PRIu32 ", but %" PRIu32 " in %s", path,
                       s.count, whole->count, named);
    if (s.no != no)
        return err_set(em, ERR_FORMAT,
                       "%s: key '" KEY_NO "' is %" PRIu32 ", but %" PRIu32 " by the file's name",
                       path, s.no, no);
    if (s.tensors != whole->tensors)
        return err_set(em, ERR_FORMAT,
                       "%s: key '" KEY_TENSORS "' is %" PRIu32 ", but %" PRIu32
                       " in %s: a part of another model",
                       path, s.tensors, whole->tensors, named);
    return 0;
}

/* The files of a model whose header `g`, of the file `path`, is moved in. */
static int open_parts(struct weights *w, const char *path, struct gguf *g, uint32_t count,
                      struct errmsg *em)
{
    struct split whole;
    int rc = read_split(g, &whole, em);
    if (rc < 0) rc = err_wrap(em, rc, "key '" KEY_COUNT "' is %" PRIu32, count);
    if (rc == 0 && whole.no >= count)
        rc = err_set(em, ERR_FORMAT, "key '" KEY_NO "' is %" PRIu32 " of %" PRIu32 " parts",
                     whole.no, count);
    if (rc == 0 && !is_named(path, whole.no, count))
        rc = err_set(em, ERR_FORMAT,
                     "keys '" KEY_NO "' %" PRIu32 " and '" KEY_COUNT "' %" PRIu32
                     " make it a part whose name ends in -%05" PRIu32 "-of-%05" PRIu32
                     ".gguf, and by such names the other parts are found",
                     whole.no, count, whole.no + 1, count);
    if (rc == 0) rc = open_room(w, count, em);
    if (rc < 0) {
        gguf_close(g);
        return err_wrap(em, rc, "%s", path);
    }
    struct parts *p = w->format;
    p->files[whole.no] = *g;
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        w->files[i].path = part_path(path, i, count);
        if (i != whole.no) rc = gguf_open(w->files[i].path, &p->files[i], em);
        if (rc < 0)
            return err_wrap(em, rc, "part %" PRIu32 " of %" PRIu32 " (key '" KEY_COUNT "' of %s)",
                            i + 1, count, path);
        rc = check_part(w, i, &whole, path, em);
    }
    return rc;
}

/* ---- the directory ---- */

static int take_tensors(struct weights *w, uint32_t file, struct errmsg *em)
{
    const struct gguf *g = &((struct parts *)w->format)->files[file];
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct weights_tensor *t = &w->tensors[w->n_tensors];
        *t = g->tensors[i];
        t->file = file;
        if (!smap_put(&w->by_name, t->name, strlen(t->name), (uint32_t)w->n_tensors))
            return err_set(em, ERR_FORMAT, "%s: tensor '%s' is in %s too", w->files[file].path,
                           t->name, w->files[weights_tensor(w, t->name)->file].path);
        w->n_tensors++;
    }
    return 0;
}

static int fill(struct weights *w, struct errmsg *em)
{
    const struct parts *p = w->format;
    uint64_t *digests = mem_try(p->n * sizeof *digests);
    size_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) n += p->files[i].n_tensors;
    if (n > GGUF_TENSORS_MAX) {
        mem_free(digests);
        return err_set(em, ERR_LIMIT, "%s: %zu tensors in %" PRIu32 " files: the limit is %u",
                       w->files[0].path, n, p->n, GGUF_TENSORS_MAX);
    }
    w->tensors = mem_try(n * sizeof *w->tensors);
    int rc = 0;
    if (!digests || !w->tensors || smap_reserve(&w->by_name, n) < 0)
        rc = err_set(em, ERR_NOMEM, "a directory of %zu tensors", n);
    w->meta = &p->files[0].meta;
    for (uint32_t i = 0; i < p->n && rc == 0; i++) {
        const struct gguf *g = &p->files[i];
        w->files[i].file_bytes = g->file_bytes;
        w->files[i].header_bytes = g->header_bytes;
        digests[i] = hash_bytes(g->header, g->parsed_bytes, g->file_bytes);
        rc = take_tensors(w, i, em);
    }
    if (rc == 0)
        w->digest = p->n == 1 ? digests[0] : hash_bytes(digests, p->n * sizeof *digests, p->n);
    mem_free(digests);
    return rc;
}

/* Whether the parts have together what they say. */
static int check_total(const struct weights *w, struct errmsg *em)
{
    uint32_t said = 0;
    int rc = meta_get_u32(w->meta, KEY_TENSORS, &said, em);
    if (rc == 0 && said != w->n_tensors)
        rc = err_set(em, ERR_FORMAT,
                     "%s: key '" KEY_TENSORS "' is %" PRIu32 ", but its %" PRIu32
                     " parts have %zu tensors",
                     w->files[0].path, said, w->n_files, w->n_tensors);
    return rc;
}

static int open_one(struct weights *w, const char *path, struct gguf *g, struct errmsg *em)
{
    int rc = open_room(w, 1, em);
    if (rc < 0) {
        gguf_close(g);
        return rc;
    }
    ((struct parts *)w->format)->files[0] = *g;
    w->files[0].path = mem_strdup(path);
    return fill(w, em);
}

int weights__gguf_open(struct weights *w, const char *path, struct errmsg *em)
{
    struct gguf g;
    uint32_t count = 1;
    int rc = gguf_open(path, &g, em);
    if (rc < 0) return rc;
    rc = count_files(&g, &count, em);
    if (rc < 0) {
        gguf_close(&g);
        return err_wrap(em, rc, "%s", path);
    }
    if (count == 1) return open_one(w, path, &g, em);
    rc = open_parts(w, path, &g, count, em);
    if (rc == 0) rc = fill(w, em);
    return rc == 0 ? check_total(w, em) : rc;
}

int weights__gguf_parse(struct weights *w, const uint8_t *data, size_t size, uint64_t file_bytes,
                        struct errmsg *em)
{
    struct gguf g;
    uint32_t count = 1;
    int rc = gguf_parse(data, size, file_bytes, &g, em);
    if (rc < 0) return rc;
    rc = count_files(&g, &count, em);
    if (rc == 0 && count > 1)
        rc =
            err_set(em, ERR_UNSUPPORTED,
                    "key '" KEY_COUNT "' is %" PRIu32 ": the other parts are not in memory", count);
    if (rc == 0) return open_one(w, "memory", &g, em);
    gguf_close(&g);
    return rc;
}
