#include "coordinator/gateway/access.h"

#include "common/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)

struct access {
    size_t n;
    struct {
        size_t bytes;
        char text[ACCESS_KEY_BYTES];
    } keys[];
};

static int read_open(FILE *file, bool private, struct buf *ret, struct errmsg *em)
{
    struct stat s;
    char block[4096];
    size_t n;
    if (fstat(fileno(file), &s) != 0 || !S_ISREG(s.st_mode))
        return err_set(em, ERR_CONF, "is no file");
    if (private && s.st_mode & (S_IRWXG | S_IRWXO))
        return err_set(em, ERR_CONF, "others may read it: chmod 600");
    while ((n = fread(block, 1, sizeof block, file)) > 0)
        if (buf_append(ret, block, n) < 0)
            return err_set(em, ERR_CONF, "has more than %zu bytes", ret->max);
    return ferror(file) ? err_set(em, ERR_CONF, "cannot be read") : 0;
}

int access_read_file(const char *path, bool private, size_t max, struct buf *ret, struct errmsg *em)
{
    FILE *file = fopen(path, "re");
    if (!file) return err_set(em, ERR_CONF, "%s: %s", path, strerror(errno));
    ret->max = max;
    int rc = read_open(file, private, ret, em);
    (void)fclose(file);
    if (rc < 0) buf_close(ret);
    return rc < 0 ? err_wrap(em, rc, "%s", path) : 0;
}

/* A line of n bytes without its end. */
static int take_line(struct access *a, const char *line, size_t n, size_t number, struct errmsg *em)
{
    while (n && (line[n - 1] == '\r' || line[n - 1] == ' ' || line[n - 1] == '\t')) n--;
    if (n == 0 || line[0] == '#') return 0;
    for (size_t i = 0; i < n; i++)
        if (line[i] <= ' ' || line[i] > '~')
            return err_set(em, ERR_CONF, "line %zu: a key has no blanks, and no bytes but ASCII's",
                           number);
    if (n > ACCESS_KEY_BYTES)
        return err_set(em, ERR_CONF, "line %zu: a key of %zu bytes, the limit is %u", number, n,
                       ACCESS_KEY_BYTES);
    if (a->n == ACCESS_KEYS_MAX) return err_set(em, ERR_CONF, "more than %u keys", ACCESS_KEYS_MAX);
    memcpy(a->keys[a->n].text, line, n);
    a->keys[a->n++].bytes = n;
    return 0;
}

static int take_lines(struct access *a, const struct buf *text, struct errmsg *em)
{
    size_t number = 1;
    int rc = 0;
    for (size_t i = 0; i < text->len && rc == 0; number++) {
        const char *end = memchr(text->data + i, '\n', text->len - i);
        size_t n = end ? (size_t)(end - (text->data + i)) : text->len - i;
        rc = take_line(a, text->data + i, n, number, em);
        i += n + 1;
    }
    return rc == 0 && a->n == 0 ? err_set(em, ERR_CONF, "has no key") : rc;
}

int access_open(const char *path, struct access **ret, struct errmsg *em)
{
    struct buf text = {0};
    int rc = access_read_file(path, true, FILE_BYTES_MAX, &text, em);
    if (rc < 0) return rc;
    size_t lines = 1;
    for (size_t i = 0; i < text.len; i++) lines += text.data[i] == '\n';
    if (lines > ACCESS_KEYS_MAX) lines = ACCESS_KEYS_MAX;
    struct access *a = mem_zalloc(sizeof *a + lines * sizeof a->keys[0]);
    rc = take_lines(a, &text, em);
    explicit_bzero(text.data, text.len);
    buf_close(&text);
    if (rc < 0) {
        access_close(a);
        return err_wrap(em, rc, "%s", path);
    }
    *ret = a;
    return 0;
}

void access_close(struct access *a)
{
    if (!a) return;
    for (size_t i = 0; i < a->n; i++) explicit_bzero(a->keys[i].text, ACCESS_KEY_BYTES);
    mem_free(a);
}

/* All bytes of all keys are looked at, whatever is found before. */
static unsigned differ(const char *key, size_t n_key, const char *given, size_t n)
{
    unsigned bits = (unsigned)(n_key ^ n) | (unsigned)((n_key ^ n) >> 16);
    for (size_t i = 0; i < n_key; i++) bits |= (unsigned)(key[i] ^ given[n ? i % n : 0]);
    return bits;
}

bool access_admits(const struct access *a, const char *authorization)
{
    unsigned found = 0;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return false;
    const char *given = authorization + 7;
    size_t n = strlen(given);
    for (size_t i = 0; i < a->n; i++)
        found |= differ(a->keys[i].text, a->keys[i].bytes, given, n) == 0;
    return found;
}
