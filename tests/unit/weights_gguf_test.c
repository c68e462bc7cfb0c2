/* A model in one GGUF file, and cut into several: the same directory of tensors, whichever part is
 * named; and an error of a set of parts names the file and the key. */
#include "common/engine/engine.h"
#include "common/engine/weights.h"

#include "common/base/mem.h"
#include "common/io/ring.h"
#include "tests/lib/gguf_parts.h"
#include "tests/lib/tiny_llama.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define PARTS_MAX 4u

static char folder[] = "/tmp/flotilla-parts-test-XXXXXX";
static struct buf whole;
static struct weights *one; /* the directory of `whole` */
static size_t n_tensors;

static int set_up(void **state)
{
    (void)state;
    const struct tiny_llama tiny = {.layers = 2, .type = QTYPE_Q8_0, .seed = 3};
    struct errmsg em = {0};
    tiny_llama_bytes(&tiny, &whole);
    if (!mkdtemp(folder) ||
        weights_parse((const uint8_t *)whole.data, whole.len, whole.len, &one, &em) < 0)
        return -1;
    n_tensors = weights_n_tensors(one);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    weights_close(one);
    buf_close(&whole);
    return rmdir(folder);
}

static const char *name_of(uint32_t as, uint32_t n)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/tiny-%05u-of-%05u.gguf", folder, as, n);
    return path;
}

/* Parts of about equal size; with without_first the first has the metadata alone. */
static void cut(uint32_t n, bool without_first, struct gguf_part *ret)
{
    uint32_t shares = without_first ? n - 1 : n, from = n - shares;
    for (uint32_t i = 0; i < n; i++)
        ret[i] = (struct gguf_part){.no = i,
                                    .count = n,
                                    .n_tensors_said = (uint32_t)n_tensors,
                                    .first = i < from ? 0 : n_tensors * (i - from) / shares,
                                    .end = i < from ? 0 : n_tensors * (i - from + 1) / shares};
}

static void write_parts(const struct gguf_part *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_true(gguf_part_write(&whole, one, &p[i], folder, i + 1, n));
}

static void remove_parts(uint32_t n)
{
    for (uint32_t i = 1; i <= n; i++) (void)unlink(name_of(i, n));
}

static void same_tensors(const struct weights *w)
{
    assert_int_equal(weights_n_tensors(w), n_tensors);
    for (size_t i = 0; i < n_tensors; i++) {
        const struct weights_tensor *t = weights_tensor_at(one, i),
                                    *got = weights_tensor(w, t->name);
        assert_non_null(got);
        assert_ptr_equal(got, weights_tensor_at(w, i));
        assert_int_equal(got->type, t->type);
        assert_memory_equal(got->dims, t->dims, sizeof t->dims);
        assert_int_equal(got->bytes, t->bytes);
        uint8_t *bytes = mem_alloc((size_t)t->bytes);
        int fd = open(weights_path(w, got->file), O_RDONLY | O_CLOEXEC);
        assert_true(pread(fd, bytes, (size_t)t->bytes, (off_t)got->offset) == (ssize_t)t->bytes);
        assert_memory_equal(bytes, whole.data + t->offset, (size_t)t->bytes);
        assert_int_equal(close(fd), 0);
        mem_free(bytes);
    }
    assert_int_equal(weights_meta(w)->kvs[0].type, META_STRING);
    assert_non_null(meta_find(weights_meta(w), "llama.block_count"));
}

/* Logits of a few tokens by all layers. */
static void logits(const struct weights *w, float *ret)
{
    struct errmsg em = {0};
    struct ring_use use = {0};
    struct engine *e;
    const int32_t tokens[] = {1, 7, 30, 2};
    const uint32_t pages[] = {0};
    const float *out;
    struct eng_options o = {.weights = w,
                            .layer_last = 1,
                            .n_pages = 1,
                            .rows_max = 4,
                            .logits_max = 1,
                            .threads = 1,
                            .read = ring_read,
                            .read_ctx = &use};
    if (eng_open(&o, &e, &em) < 0) fail_msg("%s", em.text);
    const struct eng_run run = {0, 4, 1, tokens, .pages = pages};
    if (eng_step(e, &run, 1, NULL, &out, &em) < 0) fail_msg("%s", em.text);
    memcpy(ret, out, TINY_VOCAB * sizeof *ret);
    eng_close(e);
}

/* The same tensors and logits from one file or several, and from each name of several. */
static void test_parts_are_a_whole(void **state)
{
    (void)state;
    struct errmsg em = {0};
    float want[TINY_VOCAB], got[TINY_VOCAB];
    for (uint32_t n = 1; n <= PARTS_MAX; n++)
        for (int without_first = 0; without_first < (n > 1 ? 2 : 1); without_first++) {
            struct gguf_part p[PARTS_MAX];
            uint64_t digest = 0;
            cut(n, without_first, p);
            write_parts(p, n);
            for (uint32_t named = 1; named <= n; named++) {
                struct weights *w;
                if (weights_open(name_of(named, n), &w, &em) < 0) fail_msg("%s", em.text);
                assert_int_equal(weights_n_files(w), n);
                for (uint32_t i = 0; i < n; i++)
                    assert_string_equal(weights_path(w, i), name_of(i + 1, n));
                same_tensors(w);
                assert_true(named == 1 || weights_digest(w) == digest);
                digest = weights_digest(w);
                logits(w, n == 1 ? want : got);
                if (n > 1) assert_memory_equal(got, want, sizeof want);
                weights_close(w);
            }
            remove_parts(n);
        }
}

/* The digest is of all headers: another cut of the same model has another one. */
static void test_digest(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct gguf_part p[3];
    uint64_t digests[2];
    for (int i = 0; i < 2; i++) {
        struct weights *w;
        cut(3, false, p);
        p[1].end += (size_t)i;
        p[2].first += (size_t)i;
        write_parts(p, 3);
        assert_int_equal(weights_open(name_of(2, 3), &w, &em), 0);
        digests[i] = weights_digest(w);
        weights_close(w);
        remove_parts(3);
    }
    assert_true(digests[0] != digests[1]);
}

/* Writes the three parts and opens the first: this error, and its text has all of `names`. */
static void refused(const struct gguf_part *p, int code, const char *const names[static 3])
{
    struct errmsg em = {0};
    struct weights *w = NULL;
    write_parts(p, 3);
    int rc = weights_open(name_of(1, 3), &w, &em);
    if (rc != code) fail_msg("%d: %s", rc, em.text);
    for (int i = 0; i < 3 && names[i]; i++)
        if (!strstr(em.text, names[i])) fail_msg("'%s' does not name '%s'", em.text, names[i]);
    remove_parts(3);
}

static void test_wrong_parts(void **state)
{
    (void)state;
    struct gguf_part p[3];
    cut(3, false, p);
    p[1] = p[2]; /* a part under another part's name */
    refused(p, ERR_FORMAT, (const char *[]){"00002-of", "'split.no' is 2", "1 by the file's name"});
    cut(3, false, p);
    p[2].count = 4;
    refused(p, ERR_FORMAT, (const char *[]){"00003-of", "'split.count' is 4", "but 3 in"});
    cut(3, false, p);
    p[2].n_tensors_said++;
    refused(p, ERR_FORMAT,
            (const char *[]){"00003-of", "'split.tensors.count' is 21", "another model"});
    cut(3, false, p);
    p[1].end--; /* a tensor is nowhere */
    refused(p, ERR_FORMAT,
            (const char *[]){"00001-of", "'split.tensors.count' is 20", "have 19 tensors"});
    cut(3, false, p);
    p[1].first--; /* a tensor is in two parts */
    refused(p, ERR_FORMAT, (const char *[]){"00002-of", "is in ", "00001-of"});
    cut(3, false, p);
    p[1].without_keys = true;
    refused(p, ERR_FORMAT, (const char *[]){"00002-of", "'split.count' is missing", NULL});
    cut(3, false, p);
    for (int i = 0; i < 3; i++) p[i].count = 60000;
    refused(p, ERR_LIMIT, (const char *[]){"00001-of", "'split.count' is 60000", "1024"});
    cut(3, false, p);
    p[0].no = 3; /* none of three */
    refused(p, ERR_FORMAT, (const char *[]){"00001-of", "'split.no' is 3", NULL});
}

static void test_missing_part(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct weights *w = NULL;
    struct gguf_part p[3];
    cut(3, false, p);
    for (uint32_t gone = 2; gone <= 3; gone++) {
        char number[16];
        write_parts(p, 3);
        (void)unlink(name_of(gone, 3));
        assert_int_equal(weights_open(name_of(1, 3), &w, &em), ERR_NOTFOUND);
        (void)snprintf(number, sizeof number, "%05u-of", gone);
        if (!strstr(em.text, number) || !strstr(em.text, "split.count")) fail_msg("%s", em.text);
    }
    remove_parts(3);
}

/* From a name that is no part's the other parts cannot be found; a part in memory has no name. */
static void test_names(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct weights *w = NULL;
    struct gguf_part p[2];
    struct buf b = {0};
    static const char *const names[] = {"x.gguf", "tiny-00002-of-00002.gguf", "tiny-1-of-2.gguf",
                                        "tiny-00001-of-00003.gguf"};
    cut(2, false, p);
    gguf_part_bytes(&whole, one, &p[0], &b);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(b.data, 1, b.len, f), b.len);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(weights_open(path, &w, &em), ERR_FORMAT);
        if (!strstr(em.text, names[i]) || !strstr(em.text, "-00001-of-00002.gguf"))
            fail_msg("%s", em.text);
        (void)unlink(path);
    }
    assert_int_equal(weights_parse((const uint8_t *)b.data, b.len, b.len, &w, &em),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(em.text, "split.count"));
    buf_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_are_a_whole),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_wrong_parts),
        cmocka_unit_test(test_missing_part),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
