#include "common/io/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define LINES_MAX 100u

int keys_make(struct key_pair *ret, struct errmsg *em)
{
    char public[KEY_TEXT_BYTES], secret[KEY_TEXT_BYTES];
    if (zmq_curve_keypair(public, secret) != 0 || !key_parse(public, &ret->public) ||
        !key_parse(secret, &ret->secret))
        return err_set(em, ERR_UNSUPPORTED, "no CURVE keys: %s", zmq_strerror(errno));
    explicit_bzero(secret, sizeof secret);
    return 0;
}

int keys_write(const char *path, const struct key_pair *pair, struct errmsg *em)
{
    char public[KEY_TEXT_BYTES], secret[KEY_TEXT_BYTES];
    key_format(&pair->public, public);
    key_format(&pair->secret, secret);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
    int n = dprintf(fd,
                    "# A key of flotilla. The second line is a secret: no other machine needs it.\n"
                    "public %s\nsecret %s\n",
                    public, secret);
    int why = n > 0 && fsync(fd) == 0 ? 0 : errno;
    explicit_bzero(secret, sizeof secret);
    if (close(fd) != 0 && !why) why = errno;
    if (!why) return 0;
    (void)unlink(path);
    return err_set(em, ERR_IO, "%s: cannot be written: %s", path, strerror(why));
}

static int check_mode(const char *path, FILE *f, struct errmsg *em)
{
    struct stat st;
    if (fstat(fileno(f), &st) != 0) return err_set(em, ERR_CONF, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return err_set(em, ERR_CONF, "%s: is no regular file", path);
    if ((st.st_mode & 077) == 0) return 0;
    return err_set(em, ERR_CONF,
                   "%s: others may read or write it (mode %03o), and it holds a secret key: chmod "
                   "600 %s",
                   path, (unsigned)st.st_mode & 0777u, path);
}

/* A line of the file. False: it is wrong, or a key is given twice. */
static bool take_line(char *line, struct key_pair *pair)
{
    line[strcspn(line, "\r\n")] = 0;
    if (line[0] == '#' || !line[0]) return true;
    struct key *to = strncmp(line, "public ", 7) == 0   ? &pair->public
                     : strncmp(line, "secret ", 7) == 0 ? &pair->secret
                                                        : NULL;
    return to && !key_is_set(to) && key_parse(line + 7, to);
}

/* Whether the public key follows from the secret one. */
static bool belong_together(const struct key_pair *pair)
{
    char public[KEY_TEXT_BYTES], secret[KEY_TEXT_BYTES];
    struct key follows;
    key_format(&pair->secret, secret);
    bool right = zmq_curve_public(public, secret) == 0 && key_parse(public, &follows) &&
                 key_eq(&follows, &pair->public);
    explicit_bzero(secret, sizeof secret);
    return right;
}

int keys_read(const char *path, struct key_pair *ret, struct errmsg *em)
{
    char line[256];
    unsigned at = 0;
    struct key_pair pair = {.public = {{0}}};
    FILE *f = fopen(path, "re");
    if (!f) return err_set(em, ERR_CONF, "%s: %s", path, strerror(errno));
    int rc = check_mode(path, f, em);
    while (rc == 0 && fgets(line, sizeof line, f))
        if (++at > LINES_MAX || !take_line(line, &pair))
            rc = err_set(em, ERR_CONF,
                         "%s:%u: is not \"public KEY\" or \"secret KEY\", each once, as flotilla "
                         "keygen writes them",
                         path, at);
    if (rc == 0 && (ferror(f) || !key_is_set(&pair.public) || !key_is_set(&pair.secret)))
        rc = err_set(em, ERR_CONF, "%s: has no public and secret key: flotilla keygen makes them",
                     path);
    if (rc == 0 && !belong_together(&pair))
        rc = err_set(em, ERR_CONF, "%s: the public key does not belong to the secret one", path);
    if (rc == 0) *ret = pair;
    explicit_bzero(&pair, sizeof pair);
    explicit_bzero(line, sizeof line);
    (void)fclose(f);
    return rc;
}
