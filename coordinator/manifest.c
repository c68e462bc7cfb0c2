/* A kept manifest is a file of 64-bit little-endian numbers:
 *
 *   magic | CONTENT_VERSION | size | inode | mtime ns | ctime ns | header digest | n
 *   | hash of path | n tensor hashes | XXH3 of all before
 *
 * It is named by the hash of the file's absolute path, and written under another name first, so
 * that no half of one is ever found. ctime is compared too, because a changed file may be given its
 * old mtime back. */
#include "coordinator/manifest.h"

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/engine/content.h"
#include "common/io/ring.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEPT_MAX 64u                       /* manifests in a folder; the oldest go */
#define MAGIC UINT64_C(0x3174736566696e6d) /* "mnifest1" */

enum field {
    F_MAGIC,
    F_VERSION,
    F_SIZE,
    F_INODE,
    F_MTIME,
    F_CTIME,
    F_HEADER,
    F_N,
    F_PATH,
    N_FIELDS /* behind them: the hashes, then the checksum */
};

static uint64_t ns_of(struct timespec t)
{
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What a kept manifest of this file must begin with. */
static int describe(const struct manifest_options *o, const char *absolute,
                    uint64_t ret[static N_FIELDS], struct errmsg *em)
{
    struct stat st;
    if (stat(o->path, &st) != 0)
        return err_set(em, err_from_errno(errno), "%s: %s", o->path, strerror(errno));
    ret[F_MAGIC] = MAGIC;
    ret[F_VERSION] = CONTENT_VERSION;
    ret[F_SIZE] = (uint64_t)st.st_size;
    ret[F_INODE] = (uint64_t)st.st_ino;
    ret[F_MTIME] = ns_of(st.st_mtim);
    ret[F_CTIME] = ns_of(st.st_ctim);
    ret[F_HEADER] = gguf_digest(o->gguf);
    ret[F_N] = gguf_n_tensors(o->gguf);
    ret[F_PATH] = hash_bytes(absolute, strlen(absolute), 0);
    return 0;
}

/* ---- keeping ---- */

static size_t kept_words(size_t n)
{
    return N_FIELDS + n + 1;
}

static uint64_t checksum(const uint64_t *words, size_t n)
{
    return hash_bytes(words, (kept_words(n) - 1) * sizeof *words, MAGIC);
}

static bool find_kept(const char *name, const uint64_t fields[static N_FIELDS], uint64_t *words)
{
    size_t n = (size_t)fields[F_N], bytes = kept_words(n) * sizeof *words;
    FILE *f = fopen(name, "rbe");
    if (!f) return false;
    bool right = fread(words, 1, bytes, f) == bytes && fgetc(f) == EOF;
    (void)fclose(f);
    return right && memcmp(words, fields, N_FIELDS * sizeof *words) == 0 &&
           words[kept_words(n) - 1] == checksum(words, n);
}

/* The folder and those above it. */
static int make_folder(const char *folder)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/", folder) >= (int)sizeof path) return ENAMETOOLONG;
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST) return errno;
        *at = '/';
    }
    return 0;
}

/* Removes the oldest files of the folder until few enough are left. */
static void prune(const char *folder)
{
    for (;;) {
        char oldest[4096] = "";
        struct timespec since = {0};
        unsigned n = 0;
        DIR *d = opendir(folder);
        if (!d) return;
        for (struct dirent *e; (e = readdir(d));) {
            struct stat st;
            if (!strstr(e->d_name, ".manifest") || fstatat(dirfd(d), e->d_name, &st, 0) != 0)
                continue;
            if (n++ > 0 && ns_of(st.st_mtim) >= ns_of(since)) continue;
            since = st.st_mtim;
            (void)snprintf(oldest, sizeof oldest, "%s/%s", folder, e->d_name);
        }
        (void)closedir(d);
        if (n <= KEPT_MAX || unlink(oldest) != 0) return;
    }
}

/* 0 or an errno value. */
static int write_new(const char *name, const uint64_t *words, size_t n)
{
    char fresh[4096 + 32];
    (void)snprintf(fresh, sizeof fresh, "%s.XXXXXX", name);
    int fd = mkostemp(fresh, O_CLOEXEC), failed = 0;
    if (fd < 0) return errno;
    const char *data = (const char *)words;
    for (size_t left = n * sizeof *words; left && !failed;) {
        ssize_t k = write(fd, data, left);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) failed = k < 0 ? errno : EIO;
        if (failed) break;
        data += k;
        left -= (size_t)k;
    }
    if (close(fd) != 0 && !failed) failed = errno;
    if (!failed && rename(fresh, name) != 0) failed = errno;
    if (failed) (void)unlink(fresh);
    return failed;
}

static void keep(const struct manifest_options *o, const char *name, uint64_t *words, size_t n,
                 struct manifest *m)
{
    words[kept_words(n) - 1] = checksum(words, n);
    int failed = make_folder(o->folder);
    if (!failed) failed = write_new(name, words, kept_words(n));
    prune(o->folder);
    if (failed)
        (void)snprintf(m->notice, sizeof m->notice,
                       "the model's hashes cannot be kept in %.120s (%s): the next start reads the "
                       "whole file again",
                       o->folder, strerror(failed));
}

/* ---- making ---- */

struct making {
    const struct manifest_options *o;
    struct extent *extents;
    uint32_t *of; /* the tensor of each extent */
    size_t n;
    uint64_t *hashes;
    uint64_t done, total;
};

static int take_part(void *arg, size_t idx, const uint8_t *data, struct errmsg *em)
{
    struct making *k = arg;
    const struct extent *x = &k->extents[idx];
    const struct gguf_tensor *t = gguf_tensor_at(k->o->gguf, k->of[idx]);
    k->hashes[k->of[idx]] += content_hash(data, (size_t)x->bytes, x->offset - t->offset);
    k->done += x->bytes;
    if (k->o->progress && !k->o->progress(k->o->progress_arg, k->done, k->total))
        return err_set(em, ERR_CANCELLED, "reading was cancelled");
    return 0;
}

static size_t parts_of(const struct gguf_tensor *t)
{
    return (size_t)((content_rows(t) - 1) / content_part_rows(t) + 1);
}

static void cut(struct making *k, uint32_t idx)
{
    const struct gguf_tensor *t = gguf_tensor_at(k->o->gguf, idx);
    uint64_t part = t->bytes / content_rows(t) * content_part_rows(t);
    for (uint64_t at = 0; at < t->bytes; at += part) {
        uint64_t bytes = t->bytes - at < part ? t->bytes - at : part;
        k->extents[k->n] = (struct extent){t->offset + at, bytes};
        k->of[k->n++] = idx;
    }
    k->total += t->bytes;
}

/* Reads all tensors; hashes begin as zeros. */
static int make(const struct manifest_options *o, uint64_t *hashes, struct errmsg *em)
{
    struct making k = {.o = o, .hashes = hashes};
    struct ring_file file = {.path = o->path};
    uint32_t n_tensors = (uint32_t)gguf_n_tensors(o->gguf);
    size_t n = 0;
    for (uint32_t i = 0; i < n_tensors; i++) n += parts_of(gguf_tensor_at(o->gguf, i));
    k.extents = mem_try(n * sizeof *k.extents);
    k.of = mem_try(n * sizeof *k.of);
    int rc = 0;
    if (!k.extents || !k.of) rc = err_set(em, ERR_NOMEM, "a list of %zu parts to read", n);
    for (uint32_t i = 0; i < n_tensors && rc == 0; i++) cut(&k, i);
    if (rc == 0) rc = ring_read(&file, k.extents, k.n, take_part, &k, em);
    mem_free(k.extents);
    mem_free(k.of);
    return rc;
}

/* Makes it into words; ERR_FORMAT when the file changed meanwhile. */
static int make_words(const struct manifest_options *o, const char *absolute,
                      const uint64_t fields[static N_FIELDS], uint64_t *words, struct errmsg *em)
{
    uint64_t after[N_FIELDS];
    memset(words, 0, kept_words((size_t)fields[F_N]) * sizeof *words);
    memcpy(words, fields, N_FIELDS * sizeof *words);
    int rc = make(o, words + N_FIELDS, em);
    if (rc == 0) rc = describe(o, absolute, after, em);
    if (rc == 0 && memcmp(after, fields, sizeof after) != 0)
        rc = err_set(em, ERR_FORMAT, "%s: the file was changed while it was read", o->path);
    return rc;
}

int manifest_open(const struct manifest_options *o, struct manifest *ret, struct errmsg *em)
{
    char name[4096] = "";
    uint64_t fields[N_FIELDS];
    struct manifest m = {0};
    char *absolute = realpath(o->path, NULL);
    if (!absolute) return err_set(em, err_from_errno(errno), "%s: %s", o->path, strerror(errno));
    int rc = describe(o, absolute, fields, em);
    size_t n = rc == 0 ? (size_t)fields[F_N] : 0;
    bool may_keep = rc == 0 && o->folder && o->folder[0] &&
                    snprintf(name, sizeof name, "%s/%016" PRIx64 ".manifest", o->folder,
                             fields[F_PATH]) < (int)sizeof name;
    uint64_t *words = rc == 0 ? mem_try(kept_words(n) * sizeof *words) : NULL;
    m.hashes = mem_try(n * sizeof *m.hashes);
    if (rc == 0 && (!words || !m.hashes)) rc = err_set(em, ERR_NOMEM, "%zu tensor hashes", n);
    m.kept = rc == 0 && may_keep && find_kept(name, fields, words);
    if (rc == 0 && !m.kept) {
        rc = make_words(o, absolute, fields, words, em);
        if (rc == 0 && may_keep) keep(o, name, words, n, &m);
    }
    if (rc == 0) {
        memcpy(m.hashes, words + N_FIELDS, n * sizeof *m.hashes);
        m.n_tensors = (uint32_t)n;
        m.header = fields[F_HEADER];
        m.identity = hash_bytes(m.hashes, n * sizeof *m.hashes, m.header);
        *ret = m;
    } else {
        manifest_close(&m);
    }
    mem_free(words);
    free(absolute);
    return rc;
}

void manifest_close(struct manifest *m)
{
    mem_free(m->hashes);
    *m = (struct manifest){0};
}

int manifest_slice(const struct manifest *m, const struct gguf *g, const struct arch_dims *d,
                   uint32_t layer_first, uint32_t layer_last, uint64_t *ret_hashes, uint32_t max,
                   uint32_t *ret_n, struct errmsg *em)
{
    uint32_t *idx = mem_try(max * sizeof *idx), n = 0;
    if (!idx) return err_set(em, ERR_NOMEM, "a list of %" PRIu32 " tensors", max);
    int rc = eng_slice_tensors(g, d, layer_first, layer_last, idx, max, &n, em);
    for (uint32_t i = 0; i < n && rc == 0; i++) ret_hashes[i] = m->hashes[idx[i]];
    if (rc == 0) *ret_n = n;
    mem_free(idx);
    return rc;
}
