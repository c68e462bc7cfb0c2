/* A kept manifest is a file of 64-bit little-endian numbers:
 *
 *   magic | CONTENT_VERSION | header digest | n tensors | hash of path | n files
 *   | for each file: size | inode | mtime ns | ctime ns
 *   | n tensor hashes | XXH3 of all before
 *
 * What stands before the hashes is its head: a manifest counts if its head is that of the model's
 * files now. It is named by the hash of the absolute path of the first file, and written under
 * another name first, so that no half of one is ever found. ctime is compared too, because a
 * changed file may be given its old mtime back. */
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
#define MAGIC UINT64_C(0x3274736566696e6d) /* "mnifest2" */

enum head_field { H_MAGIC, H_VERSION, H_HEADER, H_TENSORS, H_PATH, H_FILES, N_HEAD };
enum file_field { F_SIZE, F_INODE, F_MTIME, F_CTIME, N_FILE };

/* A manifest's words: the head, the hashes, and room for the checksum. */
struct words {
    uint64_t *at;
    size_t n_head, n_tensors;
};

static size_t n_words(const struct words *w)
{
    return w->n_head + w->n_tensors + 1;
}

static uint64_t ns_of(struct timespec t)
{
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int describe_file(const char *path, uint64_t ret[static N_FILE], struct errmsg *em)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(em, err_from_errno(errno), "%s: %s", path, strerror(errno));
    ret[F_SIZE] = (uint64_t)st.st_size;
    ret[F_INODE] = (uint64_t)st.st_ino;
    ret[F_MTIME] = ns_of(st.st_mtim);
    ret[F_CTIME] = ns_of(st.st_ctim);
    return 0;
}

/* The head that a manifest of the model must have now. */
static int describe(const struct weights *w, const char *absolute, uint64_t *ret_head,
                    struct errmsg *em)
{
    uint32_t n = weights_n_files(w);
    ret_head[H_MAGIC] = MAGIC;
    ret_head[H_VERSION] = CONTENT_VERSION;
    ret_head[H_HEADER] = weights_digest(w);
    ret_head[H_TENSORS] = weights_n_tensors(w);
    ret_head[H_PATH] = hash_bytes(absolute, strlen(absolute), 0);
    ret_head[H_FILES] = n;
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++)
        rc = describe_file(weights_path(w, i), ret_head + N_HEAD + (size_t)i * N_FILE, em);
    return rc;
}

/* ---- keeping ---- */

static uint64_t checksum(const struct words *w)
{
    return hash_bytes(w->at, (n_words(w) - 1) * sizeof *w->at, MAGIC);
}

/* Reads what is kept under `name` into the words behind the head, if its head is ours. */
static bool find_kept(const char *name, struct words *w)
{
    uint64_t *kept = mem_try(n_words(w) * sizeof *kept);
    size_t bytes = n_words(w) * sizeof *kept;
    FILE *f = kept ? fopen(name, "rbe") : NULL;
    bool right = false;
    if (f) {
        right = fread(kept, 1, bytes, f) == bytes && fgetc(f) == EOF;
        (void)fclose(f);
    }
    const struct words found = {kept, w->n_head, w->n_tensors};
    right = right && memcmp(kept, w->at, w->n_head * sizeof *kept) == 0 &&
            kept[n_words(w) - 1] == checksum(&found);
    if (right) memcpy(w->at, kept, bytes);
    mem_free(kept);
    return right;
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

static void keep(const char *folder, const char *name, const struct words *w, struct manifest *m)
{
    w->at[n_words(w) - 1] = checksum(w);
    int failed = make_folder(folder);
    if (!failed) failed = write_new(name, w->at, n_words(w));
    prune(folder);
    if (failed)
        (void)snprintf(m->notice, sizeof m->notice,
                       "the model's hashes cannot be kept in %.120s (%s): the next start reads the "
                       "whole model again",
                       folder, strerror(failed));
}

/* ---- making ---- */

struct making {
    const struct manifest_options *o;
    struct extent *extents; /* of the file that is being read */
    uint32_t *of;           /* the tensor of each extent */
    size_t n;
    uint64_t *hashes;
    uint64_t done, total;
};

static int take_part(void *arg, size_t idx, const uint8_t *data, struct errmsg *em)
{
    struct making *k = arg;
    const struct extent *x = &k->extents[idx];
    const struct weights_tensor *t = weights_tensor_at(k->o->weights, k->of[idx]);
    k->hashes[k->of[idx]] += content_hash(data, (size_t)x->bytes, x->offset - t->offset);
    k->done += x->bytes;
    if (k->o->progress && !k->o->progress(k->o->progress_arg, k->done, k->total))
        return err_set(em, ERR_CANCELLED, "reading was cancelled");
    return 0;
}

static size_t parts_of(const struct weights_tensor *t)
{
    return (size_t)((content_rows(t) - 1) / content_part_rows(t) + 1);
}

static void cut(struct making *k, uint32_t idx)
{
    const struct weights_tensor *t = weights_tensor_at(k->o->weights, idx);
    uint64_t part = t->bytes / content_rows(t) * content_part_rows(t);
    for (uint64_t at = 0; at < t->bytes; at += part) {
        uint64_t bytes = t->bytes - at < part ? t->bytes - at : part;
        k->extents[k->n] = (struct extent){t->offset + at, bytes};
        k->of[k->n++] = idx;
    }
}

static int read_file(struct making *k, uint32_t file, struct errmsg *em)
{
    const struct weights *w = k->o->weights;
    struct ring_use use = {0};
    k->n = 0;
    for (uint32_t i = 0; i < weights_n_tensors(w); i++)
        if (weights_tensor_at(w, i)->file == file) cut(k, i);
    return k->n ? ring_read(&use, weights_path(w, file), k->extents, k->n, take_part, k, em) : 0;
}

/* Reads all tensors; hashes begin as zeros. */
static int make(const struct manifest_options *o, uint64_t *hashes, struct errmsg *em)
{
    const struct weights *w = o->weights;
    struct making k = {.o = o, .hashes = hashes};
    size_t n = 0;
    for (uint32_t i = 0; i < weights_n_tensors(w); i++) {
        n += parts_of(weights_tensor_at(w, i));
        k.total += weights_tensor_at(w, i)->bytes;
    }
    k.extents = mem_try(n * sizeof *k.extents);
    k.of = mem_try(n * sizeof *k.of);
    int rc = 0;
    if (!k.extents || !k.of) rc = err_set(em, ERR_NOMEM, "a list of %zu parts to read", n);
    for (uint32_t f = 0; f < weights_n_files(w) && rc == 0; f++) rc = read_file(&k, f, em);
    mem_free(k.extents);
    mem_free(k.of);
    return rc;
}

/* The hashes behind the head; ERR_FORMAT when a file changed meanwhile. */
static int make_words(const struct manifest_options *o, const char *absolute, struct words *w,
                      struct errmsg *em)
{
    uint64_t *after = mem_try(w->n_head * sizeof *after);
    if (!after) return err_set(em, ERR_NOMEM, "a manifest's head");
    memset(w->at + w->n_head, 0, w->n_tensors * sizeof *w->at);
    int rc = make(o, w->at + w->n_head, em);
    if (rc == 0) rc = describe(o->weights, absolute, after, em);
    if (rc == 0 && memcmp(after, w->at, w->n_head * sizeof *after) != 0)
        rc = err_set(em, ERR_FORMAT, "%s: the model was changed while it was read",
                     weights_path(o->weights, 0));
    mem_free(after);
    return rc;
}

/* The words from what is kept, or made and, where there is a folder, kept. */
static int find_or_make(const struct manifest_options *o, const char *absolute, struct words *w,
                        struct manifest *m, struct errmsg *em)
{
    char name[4096];
    int rc = describe(o->weights, absolute, w->at, em);
    if (rc < 0) return rc;
    bool may_keep = o->folder && o->folder[0] &&
                    snprintf(name, sizeof name, "%s/%016" PRIx64 ".manifest", o->folder,
                             w->at[H_PATH]) < (int)sizeof name;
    m->kept = may_keep && find_kept(name, w);
    if (m->kept) return 0;
    rc = make_words(o, absolute, w, em);
    if (rc == 0 && may_keep) keep(o->folder, name, w, m);
    return rc;
}

int manifest_open(const struct manifest_options *o, struct manifest *ret, struct errmsg *em)
{
    const char *path = weights_path(o->weights, 0);
    struct words w = {.n_head = N_HEAD + (size_t)weights_n_files(o->weights) * N_FILE,
                      .n_tensors = weights_n_tensors(o->weights)};
    struct manifest m = {.n_tensors = (uint32_t)w.n_tensors};
    char *absolute = realpath(path, NULL);
    if (!absolute) return err_set(em, err_from_errno(errno), "%s: %s", path, strerror(errno));
    w.at = mem_try(n_words(&w) * sizeof *w.at);
    m.hashes = mem_try(w.n_tensors * sizeof *m.hashes);
    int rc = 0;
    if (!w.at || !m.hashes) rc = err_set(em, ERR_NOMEM, "%zu tensor hashes", w.n_tensors);
    if (rc == 0) rc = find_or_make(o, absolute, &w, &m, em);
    if (rc == 0) {
        memcpy(m.hashes, w.at + w.n_head, w.n_tensors * sizeof *m.hashes);
        m.header = w.at[H_HEADER];
        m.identity = hash_bytes(m.hashes, w.n_tensors * sizeof *m.hashes, m.header);
        *ret = m;
    } else {
        manifest_close(&m);
    }
    mem_free(w.at);
    free(absolute);
    return rc;
}

void manifest_close(struct manifest *m)
{
    mem_free(m->hashes);
    *m = (struct manifest){0};
}

int manifest_slice(const struct manifest *m, const struct weights *w, const struct arch_dims *d,
                   uint32_t layer_first, uint32_t layer_last, uint64_t *ret_hashes, uint32_t max,
                   uint32_t *ret_n, struct errmsg *em)
{
    uint32_t *idx = mem_try(max * sizeof *idx), n = 0;
    if (!idx) return err_set(em, ERR_NOMEM, "a list of %" PRIu32 " tensors", max);
    int rc = eng_slice_tensors(w, d, layer_first, layer_last, idx, max, &n, em);
    for (uint32_t i = 0; i < n && rc == 0; i++) ret_hashes[i] = m->hashes[idx[i]];
    if (rc == 0) *ret_n = n;
    mem_free(idx);
    return rc;
}
