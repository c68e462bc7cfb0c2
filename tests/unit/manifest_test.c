/* The hashes of a model's tensors: kept for the next start, and made anew when the model's file or
 * the kept one has changed; and a slice that differs from them is not loaded. */
#include "coordinator/manifest.h"

#include "common/base/hash.h"
#include "common/engine/content.h"
#include "common/io/ring.h"
#include "tests/lib/gguf_parts.h"
#include "tests/lib/tiny_llama.h"

#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define LAYERS 4u

static char path[] = "/tmp/flotilla-manifest-test-XXXXXX";
static char folder[] = "/tmp/flotilla-manifest-dir-XXXXXX";
static char kept[128]; /* where the manifest of `path` is kept */
static char below[64];
static struct weights *model;
static struct arch_dims dims;
static unsigned progress_calls;

static bool on_progress(void *arg, uint64_t done, uint64_t total)
{
    assert_true(done <= total);
    progress_calls++;
    return arg == NULL;
}

static struct manifest open_one(void)
{
    struct manifest m;
    struct errmsg em = {0};
    struct manifest_options o = {.weights = model, .folder = below, .progress = on_progress};
    progress_calls = 0;
    if (manifest_open(&o, &m, &em) < 0) fail_msg("%s", em.text);
    assert_string_equal(m.notice, "");
    assert_int_equal(m.n_tensors, weights_n_tensors(model));
    assert_true((progress_calls == 0) == m.kept);
    return m;
}

static bool same(const struct manifest *a, const struct manifest *b)
{
    return a->identity == b->identity && a->header == b->header && a->n_tensors == b->n_tensors &&
           memcmp(a->hashes, b->hashes, a->n_tensors * sizeof *a->hashes) == 0;
}

/* Adds one to a byte of a file. */
static void damage(const char *file, uint64_t at)
{
    uint8_t b = 0;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &b, 1, (off_t)at), 1);
    b++;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
    assert_int_equal(close(fd), 0);
}

static void undo(const char *file, uint64_t at)
{
    for (int i = 0; i < 255; i++) damage(file, at);
}

/* Made once, then found; made anew where the kept file is damaged, cut or longer. */
static void test_kept(void **state)
{
    (void)state;
    struct manifest made = open_one(), found = open_one();
    assert_false(made.kept);
    assert_true(found.kept && same(&made, &found));
    manifest_close(&found);
    struct stat st;
    assert_int_equal(stat(kept, &st), 0);
    for (off_t at = 0; at < st.st_size; at += 8) {
        damage(kept, (uint64_t)at);
        struct manifest again = open_one();
        if (again.kept || !same(&made, &again)) fail_msg("byte %lld", (long long)at);
        manifest_close(&again);
        again = open_one();
        assert_true(again.kept); /* what was damaged has been replaced */
        manifest_close(&again);
    }
    const off_t lengths[] = {0, st.st_size - 1, st.st_size + 1};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(truncate(kept, lengths[i]), 0);
        struct manifest again = open_one();
        assert_true(!again.kept && same(&made, &again));
        manifest_close(&again);
    }
    manifest_close(&made);
}

/* A changed byte changes its tensor's hash and the identity, also where the times are set back. */
static void test_stale(void **state)
{
    (void)state;
    const struct weights_tensor *t = weights_tensor(model, "blk.3.ffn_up.weight");
    uint32_t idx = (uint32_t)(t - weights_tensor_at(model, 0));
    struct manifest before = open_one();
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    damage(path, t->offset + t->bytes - 1);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    struct manifest after = open_one();
    assert_false(after.kept);
    assert_true(after.header == before.header && after.identity != before.identity);
    for (uint32_t i = 0; i < after.n_tensors; i++)
        assert_true((after.hashes[i] == before.hashes[i]) == (i != idx));
    manifest_close(&after);
    undo(path, t->offset + t->bytes - 1);
    after = open_one();
    assert_true(!after.kept && same(&before, &after));
    manifest_close(&after);
    manifest_close(&before);
}

/* Where it cannot be kept it is made all the same, and a notice says so. */
static void test_not_kept(void **state)
{
    (void)state;
    struct manifest want = open_one(), m;
    struct errmsg em = {0};
    struct manifest_options o = {.weights = model, .folder = "/dev/null/x"};
    assert_int_equal(manifest_open(&o, &m, &em), 0);
    assert_non_null(strstr(m.notice, "/dev/null/x"));
    assert_true(!m.kept && same(&m, &want));
    manifest_close(&m);
    o.folder = NULL;
    assert_int_equal(manifest_open(&o, &m, &em), 0);
    assert_true(!m.notice[0] && same(&m, &want));
    manifest_close(&m);
    o.progress = on_progress;
    o.progress_arg = &o; /* the first call ends it */
    progress_calls = 0;
    assert_int_equal(manifest_open(&o, &m, &em), ERR_CANCELLED);
    assert_int_equal(progress_calls, 1);
    manifest_close(&want);
}

/* The folder does not grow without bound: the oldest manifests are removed. */
static void test_few_are_kept(void **state)
{
    (void)state;
    struct manifest m = open_one();
    manifest_close(&m);
    for (int i = 0; i < 100; i++) {
        char name[128];
        (void)snprintf(name, sizeof name, "%s/%d.manifest.old", below, i);
        int fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        const struct timespec old[2] = {{1000 + i, 0}, {1000 + i, 0}};
        assert_true(fd >= 0 && futimens(fd, old) == 0 && close(fd) == 0);
    }
    damage(kept, 0);
    m = open_one();
    manifest_close(&m);
    int left = 0;
    for (int i = 0; i < 100; i++) {
        char name[128];
        (void)snprintf(name, sizeof name, "%s/%d.manifest.old", below, i);
        bool there = unlink(name) == 0;
        assert_true(there == (i >= 37));
        left += there;
    }
    assert_int_equal(left, 63);
    m = open_one();
    assert_true(m.kept);
    manifest_close(&m);
}

static const struct tiny_llama tiny = {.layers = LAYERS, .vocab = 8192, .seed = 8};

static struct manifest open_other(const char *file)
{
    struct manifest m;
    struct errmsg em = {0};
    struct weights *w = NULL;
    if (weights_open(file, &w, &em) < 0) fail_msg("%s", em.text);
    struct manifest_options o = {.weights = w, .folder = below};
    if (manifest_open(&o, &m, &em) < 0) fail_msg("%s", em.text);
    weights_close(w);
    return m;
}

/* A model in three files has the same hashes of tensors as in one; its manifest is kept once,
 * whichever file is named, and made anew when any of them changes. */
static void test_several_files(void **state)
{
    (void)state;
    struct manifest one = open_one(), m;
    struct buf whole = {0};
    char names[3][256];
    size_t n = weights_n_tensors(model);
    tiny_llama_bytes(&tiny, &whole);
    for (uint32_t i = 0; i < 3; i++) {
        const struct gguf_part p = {.no = i,
                                    .count = 3,
                                    .n_tensors_said = (uint32_t)n,
                                    .first = n * i / 3,
                                    .end = n * (i + 1) / 3};
        assert_true(gguf_part_write(&whole, model, &p, folder, i + 1, 3));
        (void)snprintf(names[i], sizeof names[i], "%s/tiny-%05u-of-00003.gguf", folder, i + 1);
    }
    m = open_other(names[1]);
    assert_true(!m.kept && m.n_tensors == n && m.header != one.header);
    assert_memory_equal(m.hashes, one.hashes, n * sizeof *m.hashes);
    uint64_t identity = m.identity;
    manifest_close(&m);
    for (int i = 0; i < 3; i++) {
        m = open_other(names[i]);
        assert_true(m.kept && m.identity == identity);
        manifest_close(&m);
    }
    for (int i = 0; i < 3; i++) {
        struct stat st;
        assert_int_equal(stat(names[i], &st), 0);
        damage(names[i], (uint64_t)st.st_size - 33); /* of its last tensor */
        m = open_other(names[0]);
        assert_true(!m.kept && m.identity != identity);
        identity = m.identity;
        manifest_close(&m);
    }
    char other[128];
    (void)snprintf(other, sizeof other, "%s/%016" PRIx64 ".manifest", below,
                   hash_bytes(names[0], strlen(names[0]), 0));
    assert_int_equal(unlink(other), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(unlink(names[i]), 0);
    buf_close(&whole);
    manifest_close(&one);
}

static int load(const struct manifest *m, uint32_t first, uint32_t last, struct errmsg *em)
{
    uint64_t hashes[64];
    uint32_t n;
    assert_int_equal(manifest_slice(m, model, &dims, first, last, hashes, 64, &n, em), 0);
    struct ring_use use = {0};
    struct eng_options o = {.weights = model,
                            .layer_first = first,
                            .layer_last = last,
                            .n_pages = 1,
                            .rows_max = 1,
                            .logits_max = 1,
                            .threads = 1,
                            .read = ring_read,
                            .read_ctx = &use,
                            .hashes = hashes,
                            .n_hashes = n};
    struct engine *e = NULL;
    int rc = eng_open(&o, &e, em);
    eng_close(e);
    return rc;
}

/* A changed byte of any tensor of the slice is found; those of other slices do not matter. */
static void test_slices(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct manifest m = open_one();
    assert_int_equal(load(&m, 0, LAYERS - 1, &em), 0);
    assert_int_equal(load(&m, 1, 2, &em), 0);
    for (size_t i = 0; i < weights_n_tensors(model); i++) {
        const struct weights_tensor *t = weights_tensor_at(model, i);
        uint64_t at = t->offset + t->bytes * i / weights_n_tensors(model);
        bool in_first = strncmp(t->name, "blk.2.", 6) != 0 && strncmp(t->name, "blk.3.", 6) != 0 &&
                        strcmp(t->name, "output_norm.weight") != 0;
        damage(path, at);
        assert_int_equal(load(&m, 0, LAYERS - 1, &em), ERR_FORMAT);
        if (!strstr(em.text, t->name) || !strstr(em.text, "differs") || !strstr(em.text, path))
            fail_msg("%s: %s", t->name, em.text);
        assert_int_equal(load(&m, 0, 1, &em), in_first ? ERR_FORMAT : 0);
        undo(path, at);
    }
    assert_int_equal(load(&m, 0, LAYERS - 1, &em), 0);
    uint64_t few[3];
    uint32_t n;
    assert_int_equal(manifest_slice(&m, model, &dims, 0, 1, few, 3, &n, &em), ERR_LIMIT);
    manifest_close(&m);
}

/* A large tensor is hashed in parts of 2 MiB of whole panels, at least one panel each; a part's
 * hash depends on where in the tensor it is. */
static void test_parts(void **state)
{
    (void)state;
    struct weights_tensor t = {.type = QTYPE_F32, .n_dims = 2, .dims = {1000, 5000, 1, 1}};
    t.bytes = 4u * 1000 * 5000;
    assert_int_equal(content_rows(&t), 5000);
    assert_int_equal(content_part_rows(&t), (2u << 20) / (4000 * 16) * 16);
    t.dims[0] = 1u << 20; /* a panel is more than a part */
    t.bytes = (4ull << 20) * 5000;
    assert_int_equal(content_part_rows(&t), 16);
    static const uint8_t zeros[64], ones[64] = {1};
    assert_true(content_hash(zeros, 64, 0) != content_hash(zeros, 64, 64)); /* moved parts differ */
    assert_true(content_hash(zeros, 64, 0) != content_hash(ones, 64, 0));
}

/* A model whose embedding is hashed in several parts. */
static int open_model(void **state)
{
    (void)state;
    struct errmsg em = {0};
    bool good = tiny_llama_write(&tiny, path) && mkdtemp(folder) &&
                weights_open(path, &model, &em) == 0 && arch_read(model, &dims, &em) == 0;
    if (!good) (void)fprintf(stderr, "%s\n", em.text);
    (void)snprintf(below, sizeof below, "%s/a/b", folder);
    (void)snprintf(kept, sizeof kept, "%s/%016" PRIx64 ".manifest", below,
                   hash_bytes(path, strlen(path), 0));
    return good ? 0 : -1;
}

static int remove_model(void **state)
{
    (void)state;
    char a[64];
    (void)snprintf(a, sizeof a, "%s/a", folder);
    weights_close(model);
    /* Nothing but the manifest was left behind. */
    return unlink(kept) || rmdir(below) || rmdir(a) || rmdir(folder) || unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),          cmocka_unit_test(test_stale),
        cmocka_unit_test(test_not_kept),      cmocka_unit_test(test_few_are_kept),
        cmocka_unit_test(test_slices),        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_several_files),
    };
    return cmocka_run_group_tests(tests, open_model, remove_model);
}
