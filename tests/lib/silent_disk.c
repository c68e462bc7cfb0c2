/* Preloaded into a program: a disk that does not answer. Opening a *.gguf file never returns; with
 * SILENT_READS in the environment reading its tensors never does, and makes the file named there.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEHIND_HEADER (8 << 20) /* of the models that tests use */

typedef int (*open_fn)(const char *path, int flags, ...);
typedef ssize_t (*pread_fn)(int fd, void *buf, size_t bytes, off_t at);

static int is_model(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

/* So that all is read by pread. */
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
{
    (void)entries, (void)ring, (void)flags;
    return -ENOSYS;
}

ssize_t pread(int fd, void *buf, size_t bytes, off_t at)
{
    pread_fn real;
    void *symbol = dlsym(RTLD_NEXT, "pread");
    memcpy(&real, &symbol, sizeof real);
    char link[64], path[4096];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    const char *told = getenv("SILENT_READS");
    if (told && at >= BEHIND_HEADER && is_model(path)) {
        (void)creat(told, 0600);
        for (;;) (void)pause();
    }
    return real(fd, buf, bytes, at);
}

int open(const char *path, int flags, ...)
{
    open_fn real;
    void *symbol = dlsym(RTLD_NEXT, "open");
    memcpy(&real, &symbol, sizeof real);
    while (!getenv("SILENT_READS") && is_model(path)) (void)pause();
    va_list args;
    va_start(args, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, int) : 0;
    va_end(args);
    return real(path, flags, mode);
}
